//! How long a waiting thread spins before it sleeps.
//!
//! Sleeping and being woken costs two system calls and a switch: some microseconds, some tens of them in a virtual
//! machine. Who spins as long as that and sleeps then never waits at more than twice the cost of the better choice
//! (Karlin, Manasse, McGeoch and Owicki 1990), whatever it waits for. That is the longest spin. It is not always
//! right to spin at all: visits may be long, or the one that is waited for may need this CPU. So a spin that was in
//! vain halves the next ones, down to 1/64; one that was not makes them long again; and of short ones, each
//! 16th is long, to learn anew. Before it sleeps a thread gives its CPU to others once (`sched_yield`), which is enough
//! where the one that is waited for runs on the same CPU.
//!
//! Spins are counted in pauses, which take 10 cycles on some processors and 140 on others: how many there are to a
//! microsecond is measured once.

use crate::protocol::Inbox;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
#[cfg(not(loom))]
use std::time::Duration;

/// A spin in vain leaves so much of the next one at least.
const LEAST_SHARE: u32 = 64;
/// Of short spins, one in so many is long.
const LEARN: u32 = 16;

/// What those who wait for one thing have learned. All of it are hints: no order, and a lost update is no harm.
#[derive(Debug)]
pub(crate) struct Patience {
    /// In pauses.
    longest: u32,
    limit: AtomicU32,
    /// Waits with a short limit.
    short: AtomicU32,
    sleeps: AtomicU64,
}

impl Patience {
    pub(crate) fn new(longest: u32) -> Self {
        Self {
            longest,
            limit: AtomicU32::new(longest),
            short: AtomicU32::new(0),
            sleeps: AtomicU64::new(0),
        }
    }

    /// How often a thread slept.
    pub(crate) fn sleeps(&self) -> u64 {
        self.sleeps.load(Ordering::Relaxed)
    }

    /// Owner of the inbox: returns when something is there, and sometimes before.
    #[inline]
    pub(crate) fn wait(&self, inbox: &Inbox) {
        let limit = self.limit.load(Ordering::Relaxed);
        let mut tries = limit;
        if limit < self.longest
            && self
                .short
                .fetch_add(1, Ordering::Relaxed)
                .is_multiple_of(LEARN)
        {
            tries = self.longest;
        }
        for _ in 0..tries {
            if !inbox.is_empty() {
                if limit < self.longest {
                    self.limit.store(self.longest, Ordering::Relaxed);
                }
                return;
            }
            std::hint::spin_loop();
        }
        self.give_up(inbox, limit);
    }

    #[cold]
    fn give_up(&self, inbox: &Inbox, limit: u32) {
        let shorter = (limit / 2).max(self.longest / LEAST_SHARE);
        self.limit.store(shorter, Ordering::Relaxed);
        #[cfg(not(loom))]
        std::thread::yield_now();
        if !inbox.is_empty() {
            return;
        }
        self.sleeps.fetch_add(1, Ordering::Relaxed);
        #[cfg(not(loom))]
        inbox.sleep(crate::life::end_lost_child);
        #[cfg(loom)]
        inbox.sleep(|| {});
    }
}

/// So many pauses take this long on this machine.
#[cfg(not(loom))]
pub(crate) fn pauses(time: Duration) -> u32 {
    use std::time::Instant;
    const COUNT: u32 = 1000;
    /// Of one pause; 0 before it was measured. No `OnceLock`: a child that is forked while another thread measures
    /// would wait for that thread for ever.
    static PICOSECONDS: AtomicU64 = AtomicU64::new(0);
    let once = || {
        let start = Instant::now();
        for _ in 0..COUNT {
            std::hint::spin_loop();
        }
        start.elapsed().as_nanos() as u64 * 1000 / u64::from(COUNT)
    };
    let mut each = PICOSECONDS.load(Ordering::Relaxed);
    if each == 0 {
        // The least of several, as a thread may lose its CPU meanwhile.
        each = (0..5).map(|_| once()).min().unwrap_or(0).max(100);
        PICOSECONDS.store(each, Ordering::Relaxed);
    }
    u32::try_from(time.as_nanos() as u64 * 1000 / each).unwrap_or(u32::MAX)
}
