//! How clients that have nothing to do learn of completions.
//!
//! A client that is going to sleep *arms* the notifier and then looks at the completion queues
//! once more. A worker that has put completions there *announces* them: it takes all arms at once
//! and signals where it found one. Arming and announcing are read-modify-writes of one word, so
//! one of them comes first: either the worker finds the arm, or the client's second look finds the
//! completion. Nobody who is not armed costs the worker a system call.
//!
//! Who waits for several completions arms with their number, and is left asleep by a worker that
//! finds fewer: that worker arms again in its place, and looks once more itself.
//!
//! There are two ways to sleep: in `wait` on a bell, and in `poll()` on an eventfd. The eventfd
//! stays readable after the completions that made it so were retrieved; reading it empty costs a
//! system call, which a steady stream of `retrieve` must not make. So it is drained only by the
//! second `retrieve` in a row that finds nothing: a loop that polls, as that of the paper's figure
//! 2, spins at most once more than it must, and sleeps the next time. Draining comes before arming
//! and the second look, so that what is drained is either seen by that look or announced anew. One
//! that drained and then found a completion raises the eventfd again, because another thread may
//! be about to poll for the next one.

use crate::layout::Header;
use crate::queue;
use crate::sync::{AtomicU32, Flag, Ordering};
use std::io;

/// A client is, or is going to be, in `poll()`.
const POLLING: u64 = 1;
/// A client is, or is going to be, in `wait`. Above [`LEAST_SHIFT`] stands for how many
/// completions: the least number of all who are.
const WAITING: u64 = 2;
const LEAST_SHIFT: u32 = 16;

pub(crate) struct Notifier {
    flag: Option<Flag>,
    /// Times that the eventfd was raised, or is about to be, and not drained: added to before the
    /// eventfd is raised, and lowered after draining by what the eventfd itself counted. So it is
    /// 0 only while the eventfd is not readable, however long a thread is kept from going on.
    raised: AtomicU32,
    /// Retrievals in a row that found nothing, up to 2; only a hint.
    empties: AtomicU32,
}

impl Notifier {
    pub(crate) fn new(eventfd: bool) -> io::Result<Self> {
        Ok(Self {
            flag: eventfd.then(Flag::new).transpose()?,
            raised: AtomicU32::new(0),
            empties: AtomicU32::new(0),
        })
    }

    pub(crate) fn flag(&self) -> Option<&Flag> {
        self.flag.as_ref()
    }

    /// The worker's part.
    pub(crate) fn announce(&self, header: &Header) {
        loop {
            // Release: who arms after this sees the completions. Acquire: pairs with the arming.
            let armed = header.armed.0.swap(0, Ordering::AcqRel);
            if armed & POLLING != 0 {
                self.raise();
            }
            if armed & WAITING == 0 {
                return;
            }
            let least = armed >> LEAST_SHIFT;
            if completed(header) >= least {
                header.completion_bell.0.ring(i32::MAX as u32);
                return;
            }
            self.arm_waiting(header, least);
            if completed(header) < least {
                return;
            }
        }
    }

    /// Wakes every client, whether armed or not: something is wrong, and they shall look.
    pub(crate) fn wake_all(&self, header: &Header) {
        header.completion_bell.0.ring(i32::MAX as u32);
        self.raise();
    }

    fn raise(&self) {
        if let Some(flag) = &self.flag {
            self.raised.fetch_add(1, Ordering::Relaxed);
            flag.raise();
        }
    }

    /// A retrieval found something.
    #[inline]
    pub(crate) fn found(&self) {
        if self.flag.is_some() && self.empties.load(Ordering::Relaxed) != 0 {
            self.empties.store(0, Ordering::Relaxed);
        }
    }

    /// A retrieval found nothing: prepares for `poll()` and looks once more with `look`.
    pub(crate) fn found_nothing<T>(
        &self,
        header: &Header,
        look: impl FnOnce() -> Option<T>,
    ) -> Option<T> {
        let flag = self.flag.as_ref()?;
        let again = self.empties.load(Ordering::Relaxed) != 0;
        self.empties.store(1, Ordering::Relaxed);
        let drain = again && self.raised.load(Ordering::Relaxed) != 0;
        if drain {
            self.raised.fetch_sub(flag.lower(), Ordering::Relaxed);
        }
        header.armed.0.fetch_or(POLLING, Ordering::AcqRel);
        let found = look();
        if found.is_some() {
            self.found();
            if drain {
                self.raise();
            }
        }
        found
    }

    /// Rings so far: to be read before [`Notifier::arm_waiting`].
    pub(crate) fn rings(&self, header: &Header) -> u32 {
        header.completion_bell.0.rings()
    }

    /// Prepares for sleeping on the completion bell until there are so many completions; the caller
    /// must look once more.
    pub(crate) fn arm_waiting(&self, header: &Header, least: u64) {
        let armed = &header.armed.0;
        let mut seen = armed.load(Ordering::Relaxed);
        loop {
            let least = match seen & WAITING {
                0 => least,
                _ => least.min(seen >> LEAST_SHIFT),
            };
            let next = seen & POLLING | WAITING | least << LEAST_SHIFT;
            match armed.compare_exchange(seen, next, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return,
                Err(now) => seen = now,
            }
        }
    }
}

/// Completions that nobody has retrieved.
pub(crate) fn completed(header: &Header) -> u64 {
    queue::depth(&header.done) + queue::depth(&header.failed)
}
