//! A thread that maintains an array: builds copies at first, copies again what was written, gives up and takes
//! back as the rule says.

use crate::array::{Shared, maintain};
use crate::error::Error;
use std::sync::{Arc, Condvar, Mutex, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

/// Most bytes copied in one turn, as a writer waits for its end: some 20 ms at the speed of memory.
const SLICE_BYTES: u64 = 128 << 20;
/// How long it waits for readers of earlier epochs before it gives the turn to others.
const PATIENCE: Duration = Duration::from_millis(5);

#[derive(Debug, Default)]
struct Signal {
    /// Something was published; it is time to end.
    told: Mutex<(bool, bool)>,
    changed: Condvar,
}

/// Ends its thread when dropped.
#[derive(Debug)]
pub(crate) struct Keeper {
    signal: Arc<Signal>,
    thread: Option<JoinHandle<()>>,
    owner: u32,
}

impl Keeper {
    pub(crate) fn start(shared: &Arc<Shared>, period: Duration) -> Result<Self, Error> {
        let signal = Arc::new(Signal::default());
        let (array, heard) = (Arc::downgrade(shared), Arc::clone(&signal));
        let thread = std::thread::Builder::new()
            .name("hither-replica".to_owned())
            .spawn(move || work(&array, &heard, period.max(Duration::from_micros(100))))
            .map_err(Error::system("no thread to maintain a replicated array"))?;
        Ok(Self {
            signal,
            thread: Some(thread),
            owner: std::process::id(),
        })
    }

    pub(crate) fn wake(&self) {
        self.signal.tell(|told| told.0 = true);
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        // A child after fork has no such thread.
        if self.owner != std::process::id() {
            std::mem::forget(self.thread.take());
            return;
        }
        self.signal.tell(|told| told.1 = true);
        // Never the thread itself: it has no array, only what arrays share, from which the array takes this before
        // it goes. It cannot panic, and there would be nobody to tell.
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Signal {
    fn tell(&self, change: impl FnOnce(&mut (bool, bool))) {
        change(&mut self.told.lock().unwrap_or_else(PoisonError::into_inner));
        self.changed.notify_all();
    }

    /// Waits until something is told, and at most so long. Is it time to end?
    fn wait(&self, limit: Duration) -> bool {
        let told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self
            .changed
            .wait_timeout_while(told, limit, |told| !told.0 && !told.1);
        let mut told = waited.unwrap_or_else(PoisonError::into_inner).0;
        told.0 = false;
        told.1
    }
}

fn work(array: &Weak<Shared>, signal: &Signal, period: Duration) {
    loop {
        let Some(shared) = array.upgrade() else {
            return;
        };
        let mut is_behind = true;
        while is_behind {
            // A reader that holds an earlier epoch, or no thread for copying: later.
            let _ = maintain(&shared, PATIENCE, SLICE_BYTES);
            let state = shared.state();
            is_behind = state.figures.later > 0 && state.waiting == 0 && !state.given_up;
            drop(state);
            if signal.wait(Duration::ZERO) {
                return;
            }
        }
        drop(shared);
        if signal.wait(period) {
            return;
        }
    }
}
