//! `fileserve`: a server of files, which asks its file system for most of what it does.
//!
//! Each request opens a file, reads it in pieces, checks a word of each page, looks up words at random in a table of
//! the thread's own, and closes it. After so many requests a thread drops the file from the page cache first, so that the
//! disk serves it; after so many it writes a piece of it anew (the same bytes), which the kernel's writeback brings to the
//! disk. So there are system calls, fills by the kernel, block requests, their interrupts, writeback and a journal
//! beside work in user mode with a working set of its own.

use crate::cli::{Args, Failure, NO_PIN, Opt, PIN, Workload, WorkloadReport};
use crate::latency::{Latencies, in_us};
use crate::random::{FastRandom, mix};
use crate::series;
use crate::team::{Member, ThreadTeam};
use std::fs::{File, OpenOptions};
use std::io::Error;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Bytes that one call reads or writes.
const PIECE: usize = 64 << 10;
const PAGE: usize = 4096;

/// The program.
pub const PROGRAM: Workload = Workload {
    name: "fileserve",
    about: "A server of files: threads read whole files of a folder, and use a table of their own between.",
    operand: None,
    options: &[
        Opt {
            name: "folder",
            value: Some("PATH"),
            default: "/disk",
            help: "where the files are made, and removed at the end",
        },
        Opt {
            name: "files",
            value: Some("N"),
            default: "64",
            help: "files, 1 to 65536",
        },
        Opt {
            name: "file-kb",
            value: Some("KB"),
            default: "256",
            help: "size of each, a multiple of 64",
        },
        Opt {
            name: "threads",
            value: Some("T"),
            default: "4",
            help: "threads, 1 to 1024",
        },
        Opt {
            name: "cpus",
            value: Some("LIST"),
            default: "all that the process may use",
            help: "CPUs of the threads, one thread on each in turns",
        },
        PIN,
        NO_PIN,
        Opt {
            name: "table-kb",
            value: Some("KB"),
            default: "512",
            help: "table of each thread",
        },
        Opt {
            name: "lookups",
            value: Some("N"),
            default: "2000",
            help: "words of it that a request adds up",
        },
        Opt {
            name: "cold-every",
            value: Some("N"),
            default: "4",
            help: "each N-th request of a thread finds its file on the disk alone; 0 none",
        },
        Opt {
            name: "write-every",
            value: Some("N"),
            default: "8",
            help: "each N-th request of a thread writes 64 KB of its file; 0 none",
        },
        Opt {
            name: "seconds",
            value: Some("S"),
            default: "5",
            help: "how long it runs",
        },
    ],
    run,
};

/// What the command line says.
struct Plan {
    folder: PathBuf,
    files: u64,
    bytes: usize,
    table_words: usize,
    lookups: u64,
    cold_every: u64,
    write_every: u64,
    limit: Duration,
}

/// What a thread did.
#[derive(Default)]
struct Done {
    latencies: Latencies,
    bytes: u64,
    wrong: u64,
    sum: u64,
}

/// The files; they go when this does.
struct Files(PathBuf);

impl Drop for Files {
    fn drop(&mut self) {
        // What cannot be removed is seen by its owner.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn run(args: &Args) -> Result<WorkloadReport, Failure> {
    let threads = args.number("threads", 1..=1024)?;
    let team = ThreadTeam::with_cpus(args, threads as usize)?;
    let seconds = args.number("seconds", 1..=1 << 16)?;
    let file_kb = args.number("file-kb", 64..=1 << 20)?;
    if file_kb % 64 != 0 {
        return Err(crate::cli::usage(format!(
            "--file-kb {file_kb}: give a multiple of 64"
        )));
    }
    let plan = Plan {
        folder: PathBuf::from(args.text("folder").unwrap_or("/disk")),
        files: args.number("files", 1..=65_536)?,
        bytes: (file_kb as usize) << 10,
        table_words: (args.number("table-kb", 1..=1 << 20)? as usize) << 7,
        lookups: args.number("lookups", 0..=1 << 30)?,
        cold_every: args.number("cold-every", 0..=1 << 30)?,
        write_every: args.number("write-every", 0..=1 << 30)?,
        limit: Duration::from_secs(seconds),
    };
    if !plan.folder.is_dir() {
        return Err(crate::cli::usage(format!(
            "--folder {}: there is no such folder; name one with room for the files",
            plan.folder.display()
        )));
    }
    let started = Instant::now();
    let files = plan.make_files()?;
    let setup = started.elapsed().as_secs_f64();
    let results = team.run(|member| member.measure(|| plan.serve(member)))?;
    drop(files);
    let took = results[0].1;
    let mut all = Done::default();
    for (done, _) in results {
        let done = done.map_err(|error| plan.failed("serving", &error))?;
        all.latencies.merge(&done.latencies);
        all.bytes += done.bytes;
        all.wrong += done.wrong;
        all.sum ^= done.sum;
    }
    let title = format!(
        "fileserve: {threads} threads, {} files of {file_kb} KB",
        plan.files
    );
    let report = WorkloadReport::new(title).line("setup_seconds", format!("{setup:.6}"));
    let report = series::lines(report, seconds, |second| all.latencies.line(second));
    let whole = all.latencies.as_one();
    Ok(report
        .line(
            "requests_per_second",
            format!("{:.0}", whole.total() as f64 / took),
        )
        .line(
            "mb_per_second",
            format!("{:.1}", all.bytes as f64 / took / 1e6),
        )
        .line("p50_us", in_us(whole.quantile_ns(0, 0.5)))
        .line("p99_us", in_us(whole.quantile_ns(0, 0.99)))
        .line("wrong_words", all.wrong)
        .finish(took, mix(plan.files ^ (file_kb << 32)) ^ all.wrong))
}

impl Plan {
    fn failed(&self, doing: &str, error: &Error) -> Failure {
        Failure::Machine(format!("{doing} {}: {error}", self.folder.display()))
    }

    fn path(&self, file: u64) -> PathBuf {
        self.own_folder().join(file.to_string())
    }

    fn own_folder(&self) -> PathBuf {
        self.folder
            .join(format!("fileserve-{}", std::process::id()))
    }

    /// Writes all files, to the disk.
    fn make_files(&self) -> Result<Files, Failure> {
        let folder = self.own_folder();
        std::fs::create_dir(&folder).map_err(|error| self.failed("making files in", &error))?;
        let files = Files(folder);
        let mut piece = vec![0; PIECE];
        let mut make = |file: u64| -> Result<(), Error> {
            let out = File::create(self.path(file))?;
            for at in (0..self.bytes).step_by(PIECE) {
                fill(&mut piece, file, at);
                out.write_all_at(&piece, at as u64)?;
            }
            out.sync_data()
        };
        (0..self.files)
            .try_for_each(&mut make)
            .map_err(|error| self.failed("making files in", &error))?;
        Ok(files)
    }

    /// Requests of one thread until the time is over.
    fn serve(&self, member: &Member<'_>) -> Result<Done, Error> {
        let mut random = FastRandom::new(mix(member.id as u64 + 1));
        let table: Vec<u64> = (0..self.table_words as u64).map(mix).collect();
        let mut done = Done::default();
        let mut piece = vec![0; PIECE];
        let start = Instant::now();
        let mut next = start.elapsed();
        for request in 1_u64.. {
            if next >= self.limit {
                break;
            }
            let from = next;
            let file = random.below(self.files);
            let is_due = |every: u64| every > 0 && request % every == 0;
            self.answer(file, is_due(self.cold_every), &mut piece, &mut done)?;
            if is_due(self.write_every) {
                let pieces = (self.bytes / PIECE) as u64;
                let at = random.below(pieces) as usize * PIECE;
                fill(&mut piece, file, at);
                let out = OpenOptions::new().write(true).open(self.path(file))?;
                out.write_all_at(&piece, at as u64)?;
            }
            for _ in 0..self.lookups {
                let at = random.below(self.table_words as u64) as usize;
                done.sum = done.sum.wrapping_add(table[at]);
            }
            next = start.elapsed();
            done.latencies
                .add(next.min(self.limit - Duration::from_nanos(1)), next - from);
        }
        Ok(done)
    }

    /// Reads a file and checks a word of each page.
    fn answer(
        &self,
        file: u64,
        is_cold: bool,
        piece: &mut [u8],
        done: &mut Done,
    ) -> Result<(), Error> {
        let input = open(&self.path(file), is_cold)?;
        for at in (0..self.bytes).step_by(PIECE) {
            input.read_exact_at(piece, at as u64)?;
            done.bytes += PIECE as u64;
            for page in (0..PIECE).step_by(PAGE) {
                let word = piece[page..].first_chunk::<8>();
                let expected = word_at(file, at + page);
                done.wrong += u64::from(word != Some(&expected));
            }
        }
        Ok(())
    }
}

/// Opens a file, without its pages where it shall be cold.
fn open(path: &Path, is_cold: bool) -> Result<File, Error> {
    let file = File::open(path)?;
    if is_cold {
        // SAFETY: an open descriptor; the call takes numbers alone. Pages that are being written stay.
        unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
    }
    Ok(file)
}

/// What a file holds at this place.
fn fill(piece: &mut [u8], file: u64, at: usize) {
    for (number, word) in piece.chunks_exact_mut(8).enumerate() {
        word.copy_from_slice(&word_at(file, at + number * 8));
    }
}

fn word_at(file: u64, at: usize) -> [u8; 8] {
    mix((file << 32) ^ at as u64).to_le_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_that_is_not_what_was_stored_is_counted() {
        let folder = tempdir();
        let plan = Plan {
            folder: folder.clone(),
            files: 2,
            bytes: 2 * PIECE,
            table_words: 16,
            lookups: 3,
            cold_every: 1,
            write_every: 1,
            limit: Duration::from_secs(1),
        };
        let files = plan.make_files().unwrap();
        let (mut piece, mut done) = (vec![0; PIECE], Done::default());
        plan.answer(1, true, &mut piece, &mut done).unwrap();
        assert_eq!((done.wrong, done.bytes), (0, 2 * PIECE as u64));
        let out = OpenOptions::new().write(true).open(plan.path(1)).unwrap();
        out.write_all_at(b"wrong", (PIECE + 3 * PAGE) as u64)
            .unwrap();
        plan.answer(1, false, &mut piece, &mut done).unwrap();
        assert_eq!(done.wrong, 1);
        drop(files);
        assert!(!plan.own_folder().exists());
        std::fs::remove_dir_all(folder).unwrap();
    }

    fn tempdir() -> PathBuf {
        let folder = std::env::temp_dir().join(format!("fileserve-test-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        folder
    }
}
