//! The thread that answers for pages that are away: it reads the events of the context, tells the
//! worker who waits, gives children their pages, and cleans up after a worker that died.

use super::journal::Shared;
use crate::sys::{self, EventFd};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

/// Between two looks at a fork that the kernel cannot tell of for want of a descriptor.
const NO_DESCRIPTOR: Duration = Duration::from_millis(1);

/// A running monitor.
pub(super) struct Monitor {
    control: Arc<Control>,
    thread: Option<JoinHandle<()>>,
}

/// What it is told.
struct Control {
    bell: EventFd,
    stop: AtomicBool,
    /// Its own thread number.
    thread: AtomicI32,
    /// A new worker to watch.
    worker: Mutex<Option<Watched>>,
}

/// A thread that exchanges.
struct Watched {
    thread: i32,
    /// Readable once it has ended.
    descriptor: OwnedFd,
}

impl Monitor {
    pub(super) fn start(shared: Arc<Shared>) -> io::Result<Self> {
        let control = Arc::new(Control {
            bell: EventFd::new()?,
            stop: AtomicBool::new(false),
            thread: AtomicI32::new(0),
            worker: Mutex::new(None),
        });
        let (started, wait) = mpsc::channel();
        let inside = Arc::clone(&control);
        let thread = std::thread::Builder::new()
            .name("hither-faults".into())
            .spawn(move || {
                inside.thread.store(sys::thread_id(), Ordering::Release);
                let _ = started.send(());
                watch(&shared, &inside);
            })?;
        let _ = wait.recv();
        Ok(Self {
            control,
            thread: Some(thread),
        })
    }

    /// Watches this thread from now on: when it ends within a window, its work is undone.
    pub(super) fn watch_worker(&self, thread: i32) {
        // Without such descriptors (Linux before 6.9) the death of a thread is not noticed.
        if let Ok(descriptor) = sys::thread_descriptor(thread) {
            *self.control.next_worker() = Some(Watched { thread, descriptor });
            self.control.bell.ring();
        }
    }

    /// Does it live?
    pub(super) fn lives(&self) -> bool {
        sys::thread_lives(self.control.thread.load(Ordering::Acquire))
    }
}

impl Control {
    fn next_worker(&self) -> MutexGuard<'_, Option<Watched>> {
        self.worker.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Monitor {
    fn drop(&mut self) {
        self.control.stop.store(true, Ordering::Release);
        self.control.bell.ring();
        // A thread that was ended from outside cannot be joined: it has told nobody.
        if let Some(thread) = self.thread.take().filter(|_| self.lives()) {
            let _ = thread.join();
        }
    }
}

fn watch(shared: &Shared, control: &Control) {
    let mut worker: Option<Watched> = None;
    loop {
        let [event, bell, death] = sys::wait_readable([
            Some(shared.traps.descriptor()),
            Some(control.bell.descriptor()),
            worker.as_ref().map(|worker| worker.descriptor.as_fd()),
        ]);
        if bell {
            control.bell.clear();
            if control.stop.load(Ordering::Acquire) {
                return;
            }
        }
        if event || death {
            let mut journal = shared.journal();
            let dead = worker
                .as_ref()
                .filter(|_| death)
                .map(|worker| worker.thread);
            if journal.owner_died || dead.is_some_and(|dead| journal.is_owned_by(dead)) {
                // In the middle of a job. Nobody can use this backend any more: what it has in
                // stock goes back to the system by itself, with the pool's thread.
                shared.recover(&mut journal);
                return;
            }
            let told = shared.serve(&mut journal);
            drop(journal);
            if !told {
                std::thread::sleep(NO_DESCRIPTOR);
            }
        }
        // Another thread works now, or nobody does.
        if let Some(next) = control.next_worker().take() {
            worker = Some(next);
        } else if death {
            worker = None;
        }
    }
}
