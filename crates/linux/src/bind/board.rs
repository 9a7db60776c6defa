//! The board on which the preload shim notes what it did (layout: [`hither_core::shim::board`]).

use crate::error::{Error, Result};
use crate::sys::{self, SharedMap};
use hither_core::shim::board::{
    BLOCKS, BYTES, COARSE, COUNTS, FREED, MAPS, PROCESSES, RULE_BYTES, RULES, SEAT_COUNT, SEATS,
    THREADS, THREADS_REFUSED, TOTAL_BYTES, UNPLACED,
};
use hither_core::shim::{MOST_CPUS, Seats};
use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::PathBuf;

/// Memory that this process shares with the programs of a run.
#[derive(Debug)]
pub struct Board {
    map: SharedMap,
    file: File,
    cpu_count: usize,
}

/// What became of a rule.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RuleCounts {
    /// Blocks that were placed, mappings included.
    pub block_count: u64,
    /// Bytes of them, as asked for.
    pub bytes: u64,
    /// Mappings among them.
    pub map_count: u64,
    /// Blocks that went elsewhere.
    pub unplaced_count: u64,
    /// Blocks in fewer parts than asked for.
    pub coarse_count: u64,
}

/// What became of everything else.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Programs that read the plan; a process that becomes another program counts again.
    pub process_count: u64,
    /// Threads that had a CPU before their first instruction.
    pub thread_count: u64,
    /// Threads that the kernel would not put there.
    pub refused_count: u64,
    /// Blocks of the heap, of those placed, that were given back.
    pub freed_count: u64,
}

impl Board {
    /// One for an order of so many CPUs.
    ///
    /// # Errors
    /// More CPUs than there is room for; no memory.
    pub fn new(cpu_count: usize) -> Result<Self> {
        if cpu_count > MOST_CPUS {
            let reason = format!("{cpu_count} CPUs are too many to keep threads on");
            let remedy = format!("name {MOST_CPUS} at most with --on");
            return Err(Error::new("--threads", reason, remedy));
        }
        let failed = |error| Error::io("memfd_create", "no shared memory", "free some", error);
        let file = sys::memory_file(TOTAL_BYTES as u64).map_err(failed)?;
        let map = SharedMap::new(&file, TOTAL_BYTES).map_err(failed)?;
        Ok(Self {
            map,
            file,
            cpu_count,
        })
    }

    /// Where programs of the same user find it while this process lives.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        let (pid, file) = (std::process::id(), self.file.as_raw_fd());
        PathBuf::from(format!("/proc/{pid}/fd/{file}"))
    }

    /// Who sits where.
    #[must_use]
    pub fn seats(&self) -> Seats<'_> {
        Seats::new(
            self.map.words32(COUNTS, self.cpu_count),
            self.map.words64(SEATS, SEAT_COUNT),
        )
    }

    /// What became of a rule, by its number.
    #[must_use]
    pub fn rule(&self, number: usize) -> RuleCounts {
        let read = |offset| self.map.read64(RULES + number * RULE_BYTES + offset);
        RuleCounts {
            block_count: read(BLOCKS),
            bytes: read(BYTES),
            map_count: read(MAPS),
            unplaced_count: read(UNPLACED),
            coarse_count: read(COARSE),
        }
    }

    /// What became of everything else.
    #[must_use]
    pub fn counts(&self) -> Counts {
        Counts {
            process_count: self.map.read64(PROCESSES),
            thread_count: self.map.read64(THREADS),
            refused_count: self.map.read64(THREADS_REFUSED),
            freed_count: self.map.read64(FREED),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn others_find_it_and_what_they_write_is_read() {
        let board = Board::new(2).unwrap();
        let other = File::options()
            .read(true)
            .write(true)
            .open(board.path())
            .unwrap();
        let other = SharedMap::new(&other, TOTAL_BYTES).unwrap();
        other.write64_release(RULES + RULE_BYTES + BYTES, 7);
        other.write64_release(THREADS, 5);
        assert_eq!((board.rule(1).bytes, board.counts().thread_count), (7, 5));
        board.seats().sit(9, board.seats().take_place().unwrap());
        assert_eq!(other.read32(COUNTS), 1);
        assert!(Board::new(MOST_CPUS + 1).is_err());
    }
}
