//! Workers: threads that answer the visits of one lane, pinned once.

use crate::life::{self, Life};
use crate::protocol::Desk;
use crate::region::Shared;
use hither_core::set::CpuSet;
use hither_linux::sys;
use std::cell::Cell;
use std::io;
use std::ptr::null;
use std::sync::{Arc, Condvar, Mutex, PoisonError};

/// What a worker knows of itself.
pub(crate) struct Worker<'a> {
    pub(crate) desk: Desk<'a>,
    pub(crate) region: *const Shared,
    /// A child that is forked in a visit is no worker.
    pub(crate) life: Life,
}

thread_local! {
    /// The worker that this thread is; null in threads of the program.
    static HERE: Cell<*const Worker<'static>> = const { Cell::new(null()) };
}

/// Calls `act` with the worker that the calling thread is, if it is one.
#[inline]
pub(crate) fn with_own<T>(act: impl FnOnce(Option<&Worker<'_>>) -> T) -> T {
    // SAFETY: `work` sets it to what lives on its own stack frame, below everything that this thread runs
    // until it sets it back.
    act(unsafe { HERE.get().as_ref() })
}

/// The CPUs that the kernel keeps a worker on. (A channel of the standard library would leave memory with the thread
/// that waits.)
#[derive(Debug, Default)]
pub(crate) struct Told {
    granted: Mutex<Option<io::Result<CpuSet>>>,
    is_there: Condvar,
}

impl Told {
    fn tell(&self, granted: io::Result<CpuSet>) {
        let mut place = self.granted.lock().unwrap_or_else(PoisonError::into_inner);
        *place = Some(granted);
        self.is_there.notify_one();
    }

    pub(crate) fn wait(&self) -> io::Result<CpuSet> {
        let mut place = self.granted.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            match place.take() {
                Some(granted) => return granted,
                None => {
                    place = self
                        .is_there
                        .wait(place)
                        .unwrap_or_else(PoisonError::into_inner)
                }
            }
        }
    }
}

/// The life of a worker's thread: until a stop is in its inbox. `told` gets the CPUs that the kernel keeps it on.
pub(crate) fn work(shared: &Arc<Shared>, lane: usize, told: &Told) {
    let wanted = shared.domain.cpus();
    let granted = sys::stay_on(wanted).and_then(|()| sys::allowed_cpus());
    let is_pinned = granted.as_ref().is_ok_and(|granted| granted == wanted);
    // Who made the region waits for it.
    told.tell(granted);
    if !is_pinned {
        return;
    }
    let lane = &shared.lanes[lane];
    let worker = Worker {
        desk: Desk::new(&lane.inbox),
        region: Arc::as_ptr(shared),
        life: shared.life,
    };
    HERE.set((&raw const worker).cast());
    life::note(Some(shared.life));
    worker.desk.serve(None, lane.patience());
    life::note(None);
    HERE.set(null());
}
