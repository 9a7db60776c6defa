//! The board on which the preload shim notes what it did (layout: [`hither_core::shim::board`]).

use crate::error::{Error, Result};
use crate::sys::{self, SharedMap};
use hither_core::shim::board::{
    BLOCKS, BYTES, COARSE, COUNTS, FREED, MAPS, PROCESSES, RULE_BYTES, RULES, SEAT_COUNT, SEATS,
    THREADS, THREADS_REFUSED, TOTAL_BYTES, UNPLACED, WORD,
};
use hither_core::shim::{BoardId, MOST_CPUS, Seats};
use std::fs::File;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

/// Memory that this process shares with the programs of a run.
#[derive(Debug)]
pub struct Board {
    map: SharedMap,
    shared: io::Result<Shared>,
    cpu_count: usize,
}

/// By what others find it.
#[derive(Debug)]
struct Shared {
    file: File,
    id: BoardId,
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
    /// One for an order of so many CPUs. Where the system has no files in memory, or refuses them, it
    /// is this process's own ([`Board::refusal`]).
    ///
    /// # Errors
    /// More CPUs than there is room for; no memory.
    pub fn new(cpu_count: usize) -> Result<Self> {
        if cpu_count > MOST_CPUS {
            let reason = format!("{cpu_count} CPUs are too many to keep threads on");
            let remedy = format!("name {MOST_CPUS} at most with --on");
            return Err(Error::new("--threads", reason, remedy));
        }
        let failed = |error| Error::io("mmap", "no memory for counters", "free some", error);
        let shared = sys::memory_file(TOTAL_BYTES as u64)
            .and_then(|file| Ok((SharedMap::new(&file, TOTAL_BYTES)?, Shared::new(file)?)));
        let (map, shared) = match shared {
            Ok((map, shared)) => (map, Ok(shared)),
            Err(error) => {
                let own = SharedMap::of_nobody(TOTAL_BYTES).map_err(failed)?;
                (own, Err(error))
            }
        };
        if let Ok(shared) = &shared {
            map.write64_release(WORD, shared.id.word);
        }
        Ok(Self {
            map,
            shared,
            cpu_count,
        })
    }

    /// Why nobody else can find it, where that is so.
    #[must_use]
    pub fn refusal(&self) -> Option<&io::Error> {
        self.shared.as_ref().err()
    }

    /// Where programs of the same user find it while this process lives.
    #[must_use]
    pub fn path(&self) -> Option<PathBuf> {
        let file = self.shared.as_ref().ok()?.file.as_raw_fd();
        let pid = std::process::id();
        Some(PathBuf::from(format!("/proc/{pid}/fd/{file}")))
    }

    /// By what they know it.
    #[must_use]
    pub fn id(&self) -> Option<BoardId> {
        Some(self.shared.as_ref().ok()?.id)
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

impl Shared {
    fn new(file: File) -> io::Result<Self> {
        let about = file.metadata()?;
        // Keys of the standard library's tables are random. Not 0, which is what new files hold.
        let word = RandomState::new().build_hasher().finish() | 1;
        let id = BoardId {
            device: about.dev(),
            inode: about.ino(),
            word,
        };
        Ok(Self { file, id })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// For this thread alone, which ends with the test.
    fn refuse_files_in_memory() {
        let filter = |code: u32, jt, jf, k: u32| libc::sock_filter {
            code: code as u16,
            jt,
            jf,
            k,
        };
        let mut filters = [
            filter(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
            filter(
                libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K,
                0,
                1,
                libc::SYS_memfd_create as u32,
            ),
            filter(
                libc::BPF_RET,
                0,
                0,
                libc::SECCOMP_RET_ERRNO | libc::EPERM as u32,
            ),
            filter(libc::BPF_RET, 0, 0, libc::SECCOMP_RET_ALLOW),
        ];
        let program = libc::sock_fprog {
            len: filters.len() as u16,
            filter: filters.as_mut_ptr(),
        };
        // SAFETY: the filters live until the kernel has copied them.
        unsafe {
            assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
            let mode = libc::SECCOMP_MODE_FILTER;
            assert_eq!(
                libc::prctl(libc::PR_SET_SECCOMP, mode, &raw const program),
                0
            );
        }
    }

    #[test]
    fn where_files_in_memory_are_refused_it_is_this_process_own() {
        let alone = std::thread::spawn(|| {
            refuse_files_in_memory();
            let board = Board::new(2).unwrap();
            board.seats().sit(9, board.seats().take_place().unwrap());
            assert_eq!(board.seats().place(9), Some(0));
            assert_eq!((board.path(), board.id()), (None, None));
            board.refusal().map(io::Error::kind)
        });
        assert_eq!(alone.join().unwrap(), Some(io::ErrorKind::PermissionDenied));
    }

    #[test]
    fn others_find_it_and_what_they_write_is_read() {
        let board = Board::new(2).unwrap();
        let other = File::options()
            .read(true)
            .write(true)
            .open(board.path().unwrap())
            .unwrap();
        // Whoever has it mapped would be killed by the first access behind its end.
        for bytes in [0, TOTAL_BYTES as u64 + 4096] {
            let refused = other.set_len(bytes).unwrap_err();
            assert_eq!(refused.kind(), io::ErrorKind::PermissionDenied);
        }
        let other = SharedMap::new(&other, TOTAL_BYTES).unwrap();
        assert_eq!(other.read64(WORD), board.id().unwrap().word);
        other.write64_release(RULES + RULE_BYTES + BYTES, 7);
        other.write64_release(THREADS, 5);
        assert_eq!((board.rule(1).bytes, board.counts().thread_count), (7, 5));
        board.seats().sit(9, board.seats().take_place().unwrap());
        assert_eq!(other.read32(COUNTS), 1);
        assert!(Board::new(MOST_CPUS + 1).is_err());
    }
}
