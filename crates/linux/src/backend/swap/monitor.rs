//! The thread that answers for pages that are away: it reads the events of the context, tells the
//! worker who waits, gives children their pages, and cleans up after a worker that died.

use super::journal::Shared;
use crate::sys::{self, EventFd};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread::JoinHandle;

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
    worker: Mutex<Option<OwnedFd>>,
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
            *self.worker() = Some(descriptor);
            self.control.bell.ring();
        }
    }

    fn worker(&self) -> std::sync::MutexGuard<'_, Option<OwnedFd>> {
        self.control
            .worker
            .lock()
            .unwrap_or_else(|poison| poison.into_inner())
    }

    /// Does it live?
    pub(super) fn lives(&self) -> bool {
        sys::thread_lives(self.control.thread.load(Ordering::Acquire))
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
    let mut worker: Option<OwnedFd> = None;
    loop {
        let [event, bell, death] = sys::wait_readable([
            Some(shared.traps.descriptor()),
            Some(control.bell.descriptor()),
            worker.as_ref().map(|descriptor| descriptor.as_fd()),
        ]);
        if bell {
            control.bell.clear();
            if control.stop.load(Ordering::Acquire) {
                return;
            }
            let mut next = control
                .worker
                .lock()
                .unwrap_or_else(|poison| poison.into_inner());
            worker = next.take().or(worker);
        }
        if death {
            worker = None;
            let mut journal = shared.journal();
            if journal.owner_died || journal.open || !journal.trapped.is_empty() {
                // In the middle of a job. Nobody can use this backend any more: what it has in
                // stock goes back to the system by itself, with the pool's thread.
                shared.recover(&mut journal);
                return;
            }
        }
        if event {
            let mut journal = shared.journal();
            if journal.owner_died {
                shared.recover(&mut journal);
                return;
            }
            shared.serve(&mut journal);
        }
    }
}
