//! What hither tells the preload shim about placement, and what the shim tells hither.
//!
//! Rules and the order of CPUs go there as a text in the environment ([`Plan`]), since that reaches
//! every program that a program starts. What was done comes back through a file that all of them map
//! shared, the *board*: counters, and which thread has which place in the order of CPUs ([`Seats`]).
//! Whoever cannot open the board follows the rules all the same, and counts for itself.

use crate::bind::KernelPolicy;
use crate::ids::CpuId;
use std::fmt;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Variables of the environment that the shim reads.
pub mod environment {
    /// The plan as a text. Without it nothing is placed.
    pub const PLAN: &str = "HITHER_PLACE_PLAN";
    /// Absolute path of the board.
    pub const BOARD: &str = "HITHER_PLACE_BOARD";
}

/// Most rules of a plan.
pub const MOST_RULES: usize = 16;
/// Most CPUs in the order of a plan.
pub const MOST_CPUS: usize = 1024;
/// Highest node number that a plan can name, plus one: the kernel's own limit.
pub const MOST_NODES: usize = 1024;
/// Most parts of one block: each is a mapping of the kernel's, of which a process has 65,530 unless
/// the administrator says otherwise (`vm.max_map_count`).
pub const MOST_PARTS: u64 = 2048;
/// Most parts of all blocks of a process.
pub const MOST_PARTS_TOGETHER: u64 = 32_768;

/// How often a policy that takes nodes in turns changes the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Stride {
    /// As the kernel does it: page by page where it interleaves, else not at all.
    Kernel,
    /// After so many pages.
    Pages(u64),
    /// So that each node has one part of the block, and all parts are alike.
    Blocks,
}

/// What a rule is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Kinds {
    /// Memory of the heap: `malloc` and its relatives, `new`.
    pub heap: bool,
    /// Anonymous private mappings that the program makes itself.
    pub maps: bool,
}

/// Code of which the calls are meant.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Site {
    /// File name of the object.
    pub module: String,
    /// First address in the file's own numbers.
    pub start: u64,
    /// The address after the last.
    pub end: u64,
}

/// Where some of a program's memory is to be.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Rule {
    /// Of what kind.
    pub kinds: Kinds,
    /// Least bytes.
    pub least_bytes: u64,
    /// Most bytes.
    pub most_bytes: u64,
    /// Asked for by this code, or by what it calls.
    pub site: Option<Site>,
    /// By which policy.
    pub policy: KernelPolicy,
    /// Turns of the policy.
    pub stride: Stride,
}

/// Which file the board is. Its path leads through the number of a process, which another program has
/// some time after hither has ended: a file that differs in any of these is not the board.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BoardId {
    /// Device of the file, as stat(2) has it.
    pub device: u64,
    /// Its inode.
    pub inode: u64,
    /// What it holds at [`board::WORD`]: random, as inodes are used again.
    pub word: u64,
}

/// Everything that the shim is told.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// What the board must be; without it none is opened.
    pub board: Option<BoardId>,
    /// CPUs in the order in which threads get them; none where threads are left alone.
    pub cpus: Vec<CpuId>,
    /// Nodes with memory: where small blocks under the policy `local` have an arena each.
    pub nodes: Vec<u32>,
    /// The first that fits counts.
    pub rules: Vec<Rule>,
}

/// `board 1 1027 99;cpus 0,2,1;nodes 0,1;rule hm 1048576 18446744073709551615 - 0 0 3 kernel 0,1`: of
/// the board device, inode and word; of a rule kinds, least and most bytes, the site's module, start and
/// end, the kernel's number of the mode, stride, nodes.
impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let numbers = |list: &[u32]| {
            let list: Vec<String> = list.iter().map(u32::to_string).collect();
            list.join(",")
        };
        if let Some(board) = &self.board {
            write!(f, "board {} {} {};", board.device, board.inode, board.word)?;
        }
        let cpus: Vec<u32> = self.cpus.iter().map(|cpu| cpu.0).collect();
        write!(f, "cpus {};nodes {}", numbers(&cpus), numbers(&self.nodes))?;
        for rule in &self.rules {
            let nodes: Vec<u32> = rule.policy.nodes.iter().map(|node| node.0).collect();
            let (module, start, end) = match &rule.site {
                Some(site) => (site.module.as_str(), site.start, site.end),
                None => ("-", 0, 0),
            };
            let stride = match rule.stride {
                Stride::Kernel => "kernel".to_owned(),
                Stride::Blocks => "blocks".to_owned(),
                Stride::Pages(pages) => pages.to_string(),
            };
            write!(
                f,
                ";rule {}{} {} {} {module} {start} {end} {} {stride} {}",
                if rule.kinds.heap { "h" } else { "" },
                if rule.kinds.maps { "m" } else { "" },
                rule.least_bytes,
                rule.most_bytes,
                rule.policy.mode as u32,
                numbers(&nodes),
            )?;
        }
        Ok(())
    }
}

/// Layout of the board: offsets in bytes. Every word but [`board::WORD`] is written by all
/// processes, by atomic adding.
pub mod board {
    /// u64 processes that have read the plan; a program that becomes another counts again.
    pub const PROCESSES: usize = 0;
    /// u64 threads that were given a CPU before their first instruction.
    pub const THREADS: usize = 8;
    /// u64 threads that could not be.
    pub const THREADS_REFUSED: usize = 16;
    /// u64 blocks of the heap that were given back, of those placed.
    pub const FREED: usize = 24;
    /// u64 that tells the board from other files ([`super::BoardId`]); hither writes it, once.
    pub const WORD: usize = 32;
    /// Counters of the first rule; `RULE_BYTES` further on those of the second.
    pub const RULES: usize = 256;
    /// Bytes of a rule's counters.
    pub const RULE_BYTES: usize = 64;
    /// u64 blocks that were placed.
    pub const BLOCKS: usize = 0;
    /// u64 bytes of them, as asked for.
    pub const BYTES: usize = 8;
    /// u64 mappings among the placed blocks.
    pub const MAPS: usize = 16;
    /// u64 blocks that went elsewhere: no addresses or no memory were left, or the kernel refused.
    pub const UNPLACED: usize = 24;
    /// u64 blocks in fewer parts than the stride asks for.
    pub const COARSE: usize = 32;
    /// u32 threads on each place of the order.
    pub const COUNTS: usize = 4096;
    /// u64 seats: thread in the upper half, place plus one in the lower.
    pub const SEATS: usize = 8192;
    /// Number of seats.
    pub const SEAT_COUNT: usize = 4096;
    /// Bytes of the board.
    pub const TOTAL_BYTES: usize = SEATS + SEAT_COUNT * 8;
}

/// How far from where it belongs a thread's seat can be.
const PROBES: usize = 256;

/// Which thread has which place in the order of CPUs. Used by many processes at once, without a lock:
/// a process may be killed at any moment. Whoever takes a seat out takes its count away, so that
/// nothing is counted down twice.
#[derive(Clone, Copy, Debug)]
pub struct Seats<'a> {
    counts: &'a [AtomicU32],
    seats: &'a [AtomicU64],
}

impl<'a> Seats<'a> {
    /// Over the words of a board: one count for each place.
    #[must_use]
    #[inline]
    pub fn new(counts: &'a [AtomicU32], seats: &'a [AtomicU64]) -> Self {
        Self { counts, seats }
    }

    /// Takes the first place that fewest threads have; nothing where there are no places. To be
    /// followed by [`Seats::sit`], or by [`Seats::leave_place`].
    #[must_use]
    #[inline]
    pub fn take_place(&self) -> Option<usize> {
        loop {
            let counts = self
                .counts
                .iter()
                .map(|count| count.load(Ordering::Relaxed));
            let (place, count) = counts
                .enumerate()
                .min_by_key(|&(place, count)| (count, place))?;
            // Exchanged, not added to: of two that saw the same place the second looks again.
            let taken = self.counts.get(place)?.compare_exchange(
                count,
                count.saturating_add(1),
                Ordering::Relaxed,
                Ordering::Relaxed,
            );
            if taken.is_ok() {
                return Some(place);
            }
        }
    }

    /// Gives a place back.
    #[inline]
    pub fn leave_place(&self, place: usize) {
        if let Some(count) = self.counts.get(place) {
            let less = |count: u32| Some(count.saturating_sub(1));
            let _ = count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
        }
    }

    /// Notes that a thread has a place that was taken; another one that it had is given back.
    #[inline]
    pub fn sit(&self, thread: u32, place: usize) {
        let word = u64::from(thread) << 32 | (place as u64 + 1);
        if let Some((seat, before)) = self.find(thread)
            && seat
                .compare_exchange(before, word, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok()
        {
            self.leave_place(place_of(before));
            return;
        }
        for seat in self.probes(thread) {
            if seat.load(Ordering::Relaxed) == 0
                && seat
                    .compare_exchange(0, word, Ordering::Relaxed, Ordering::Relaxed)
                    .is_ok()
            {
                return;
            }
        }
        // Nobody would find it to give the place back.
        self.leave_place(place);
    }

    /// The place of a thread.
    #[must_use]
    #[inline]
    pub fn place(&self, thread: u32) -> Option<usize> {
        self.find(thread).map(|(_, word)| place_of(word))
    }

    /// A thread ends, or is gone.
    #[inline]
    pub fn stand_up(&self, thread: u32) {
        if let Some((seat, word)) = self.find(thread)
            && seat
                .compare_exchange(word, 0, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok()
        {
            self.leave_place(place_of(word));
        }
    }

    /// Threads that sit.
    pub fn threads(&self) -> impl Iterator<Item = u32> + '_ {
        let words = self.seats.iter().map(|seat| seat.load(Ordering::Relaxed));
        words
            .filter(|word| *word != 0)
            .map(|word| (word >> 32) as u32)
    }

    #[inline]
    fn probes(&self, thread: u32) -> impl Iterator<Item = &'a AtomicU64> + use<'a> {
        let start = thread as usize % self.seats.len().max(1);
        let (before, after) = (self.seats.get(..start), self.seats.get(start..));
        let seats = after.unwrap_or(&[]).iter().chain(before.unwrap_or(&[]));
        seats.take(PROBES)
    }

    #[inline]
    fn find(&self, thread: u32) -> Option<(&'a AtomicU64, u64)> {
        self.probes(thread).find_map(|seat| {
            let word = seat.load(Ordering::Relaxed);
            (word != 0 && (word >> 32) as u32 == thread).then_some((seat, word))
        })
    }
}

#[inline]
fn place_of(word: u64) -> usize {
    (word as u32 as usize).saturating_sub(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words() -> (Vec<AtomicU32>, Vec<AtomicU64>) {
        let counts = (0..3).map(|_| AtomicU32::new(0)).collect();
        (counts, (0..8).map(|_| AtomicU64::new(0)).collect())
    }

    #[test]
    fn the_place_with_fewest_threads_is_next() {
        let (counts, seats) = words();
        let seats = Seats::new(&counts, &seats);
        for (thread, place) in [(11, 0), (12, 1), (13, 2), (14, 0)] {
            let taken = seats.take_place().unwrap();
            seats.sit(thread, taken);
            assert_eq!((taken, seats.place(thread)), (place, Some(place)));
        }
        seats.stand_up(12);
        seats.stand_up(12);
        assert_eq!(seats.take_place(), Some(1));
        seats.leave_place(1);
        assert_eq!(seats.threads().count(), 3);
        // A thread that sits already changes its place.
        seats.sit(11, seats.take_place().unwrap());
        assert_eq!(seats.place(11), Some(1));
        let counts: Vec<u32> = counts.iter().map(|c| c.load(Ordering::Relaxed)).collect();
        assert_eq!(counts, [1, 1, 1]);
    }

    #[test]
    fn who_finds_no_seat_is_not_counted() {
        let (counts, seats) = words();
        let seats = Seats::new(&counts, &seats);
        for thread in 1..=20 {
            let place = seats.take_place().unwrap();
            seats.sit(thread, place);
        }
        let total: u32 = counts.iter().map(|c| c.load(Ordering::Relaxed)).sum();
        assert_eq!((total, seats.threads().count()), (8, 8));
        assert_eq!(Seats::new(&[], &[]).take_place(), None);
    }

    #[test]
    fn many_at_once_are_spread_evenly_and_leave_nothing() {
        let (counts, _) = words();
        let seats: Vec<AtomicU64> = (0..4096).map(|_| AtomicU64::new(0)).collect();
        let board = Seats::new(&counts, &seats);
        std::thread::scope(|scope| {
            for thread in 0..6u32 {
                scope.spawn(move || {
                    for round in 0..5000 {
                        let own = thread << 16 | round;
                        board.sit(own, board.take_place().unwrap());
                        if round % 2 == 0 {
                            board.stand_up(own);
                        } else {
                            board.stand_up(own);
                            board.stand_up(own);
                        }
                    }
                });
            }
        });
        assert_eq!(board.threads().count(), 0);
        assert!(
            counts
                .iter()
                .all(|count| count.load(Ordering::Relaxed) == 0)
        );
    }
}
