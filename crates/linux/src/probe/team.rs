//! Threads that read, write or copy while a clock runs.
//!
//! Problem: threads that are started together neither begin nor end together, and what the last of
//! them does alone is not what was asked.
//!
//! Mechanism: each thread, on its CPU, works through memory of its own over and over and counts; the
//! counts are read at two moments while all of them work.

use crate::backend::copy;
use crate::sys::{self, NodeMemory};
use hither_core::ids::{CpuId, NodeId};
use std::hint::{black_box, spin_loop};
use std::io;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Bytes between two counts.
pub const CHUNK_BYTES: usize = 256 << 10;
const CHUNK_WORDS: usize = CHUNK_BYTES / 8;
const LINE_WORDS: usize = 8;

/// What a thread does with its memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// Loads all of it (BwMemRd).
    Read,
    /// Ordinary stores: each line is fetched before it is overwritten (BwMemWr).
    Write,
    /// Streaming stores, which fetch nothing.
    WriteStreaming,
    /// Loads of one half, ordinary stores to the other (BwMemCp).
    Copy,
    /// The same with streaming stores.
    CopyStreaming,
}

impl Work {
    /// All kinds.
    pub const ALL: [Self; 5] = [
        Self::Read,
        Self::Write,
        Self::WriteStreaming,
        Self::Copy,
        Self::CopyStreaming,
    ];

    /// For people and for JSON.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::WriteStreaming => "write, streaming",
            Self::Copy => "copy",
            Self::CopyStreaming => "copy, streaming",
        }
    }
}

/// What every thread of a team has.
#[derive(Clone, Copy, Debug)]
pub struct Task {
    /// Where its memory is; for copies both halves.
    pub node: NodeId,
    /// Of each thread; [`CHUNK_BYTES`] at least.
    pub bytes: usize,
    /// In huge pages.
    pub huge: bool,
}

struct Shared {
    stop: AtomicBool,
    /// Position in [`Work::ALL`].
    work: AtomicUsize,
    /// Turns of an empty loop after each line that is read.
    pause: AtomicU32,
    /// Bytes so far, by thread.
    done: Vec<Count>,
}

/// In a line of its own: threads do not disturb each other.
#[repr(align(128))]
#[derive(Default)]
struct Count(AtomicU64);

/// Threads at work; they end when it is dropped.
pub struct Team {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

impl Team {
    /// Starts a thread on each CPU, and waits until all of them read.
    ///
    /// # Errors
    /// What the kernel said of CPUs, memory or threads.
    pub fn start(cpus: Vec<CpuId>, task: &Task) -> io::Result<Self> {
        let shared = Arc::new(Shared {
            stop: AtomicBool::new(false),
            work: AtomicUsize::new(0),
            pause: AtomicU32::new(0),
            done: cpus.iter().map(|_| Count::default()).collect(),
        });
        let mut team = Self {
            shared: Arc::clone(&shared),
            threads: Vec::new(),
        };
        let (sender, ready) = mpsc::channel();
        for (index, cpu) in cpus.into_iter().enumerate() {
            let (shared, sender, task) = (Arc::clone(&shared), sender.clone(), *task);
            let run = move || {
                let memory = prepare(cpu, &task);
                let refused = memory.as_ref().err().map(|error| {
                    io::Error::new(
                        error.kind(),
                        format!("{cpu}, memory of {}: {error}", task.node),
                    )
                });
                // The team may be gone already, after another thread's error.
                let _ = sender.send(refused);
                if let Ok(memory) = memory {
                    work(memory, &task, &shared, index);
                }
            };
            let thread = std::thread::Builder::new().name(format!("hither-probe{index}"));
            team.threads.push(thread.spawn(run)?);
        }
        drop(sender);
        // A thread that is at work keeps its sender.
        if let Some(error) = ready.iter().take(team.threads.len()).flatten().next() {
            return Err(error);
        }
        team.settle();
        Ok(team)
    }

    /// Everybody does this from now on.
    pub fn turn_to(&self, work: Work) {
        let index = Work::ALL.iter().position(|known| *known == work);
        self.shared.work.store(index.unwrap_or(0), Relaxed);
        self.settle();
    }

    /// Waits until every thread has begun with what it was told last.
    fn settle(&self) {
        let counts = || self.shared.done.iter().map(|count| count.0.load(Relaxed));
        let before: Vec<u64> = counts().collect();
        while counts()
            .zip(&before)
            .any(|(now, before)| now < before + 2 * CHUNK_BYTES as u64)
        {
            std::thread::sleep(Duration::from_micros(200));
        }
    }

    /// Less load: so many turns of an empty loop after each line that is read.
    pub fn pause(&self, turns: u32) {
        self.shared.pause.store(turns, Relaxed);
    }

    fn done(&self) -> u64 {
        self.shared
            .done
            .iter()
            .map(|count| count.0.load(Relaxed))
            .sum()
    }

    /// GB/s of all threads while something else goes on.
    pub fn during(&self, other: impl FnOnce()) -> f64 {
        let (begin, before) = (Instant::now(), self.done());
        other();
        let (ns, after) = (begin.elapsed().as_nanos(), self.done());
        (after - before) as f64 / ns as f64
    }

    /// GB/s of all threads for a while.
    #[must_use]
    pub fn gbs(&self, slice: Duration) -> f64 {
        self.during(|| std::thread::sleep(slice))
    }
}

impl Drop for Team {
    fn drop(&mut self) {
        self.shared.stop.store(true, Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// Keeps the calling thread on one CPU.
pub(super) fn stay_on(cpu: CpuId) -> io::Result<()> {
    sys::stay_on(&std::iter::once(cpu).collect())
}

fn prepare(cpu: CpuId, task: &Task) -> io::Result<NodeMemory> {
    stay_on(cpu)?;
    NodeMemory::new(task.bytes, task.node.0, task.huge)
}

fn work(mut memory: NodeMemory, task: &Task, shared: &Shared, index: usize) {
    let words = memory.values_mut(1u64);
    let words = &mut words[..task.bytes / 8];
    let count = &shared.done[index].0;
    let mut next = 0;
    while !shared.stop.load(Relaxed) {
        let work = Work::ALL[shared.work.load(Relaxed)];
        let (front, rear) = words.split_at_mut(words.len() / 2);
        let whole = match work {
            Work::Copy | Work::CopyStreaming => front.len(),
            _ => front.len() + rear.len(),
        };
        if next >= whole {
            next = 0;
        }
        let length = CHUNK_WORDS.min(whole - next);
        let range = next..next + length;
        match work {
            Work::Read => match shared.pause.load(Relaxed) {
                0 => read(&words[range]),
                turns => read_slowly(&words[range], turns),
            },
            Work::Write => write_ordinary(&mut words[range], next as u64),
            Work::WriteStreaming => write_streaming(&mut words[range], next as u64),
            Work::Copy => copy_ordinary(&front[range.clone()], &mut rear[range]),
            Work::CopyStreaming => {
                let (from, to) = (&front[range.clone()], &mut rear[range]);
                // SAFETY: two slices of one length, the one exclusive.
                unsafe {
                    copy::nontemporal(from.as_ptr().cast(), to.as_mut_ptr().cast(), length * 8);
                }
            }
        }
        next += length;
        count.store(count.load(Relaxed) + length as u64 * 8, Relaxed);
    }
}

/// Loads every word.
pub fn read(words: &[u64]) {
    let mut sums = [0u64; LINE_WORDS];
    for line in words.chunks_exact(LINE_WORDS) {
        for (sum, word) in sums.iter_mut().zip(line) {
            *sum = sum.wrapping_add(*word);
        }
    }
    black_box(sums);
}

fn read_slowly(words: &[u64], turns: u32) {
    for line in words.chunks_exact(LINE_WORDS) {
        black_box(line[0]);
        for turn in 0..turns {
            black_box(turn);
        }
    }
}

/// What is written differs from word to word, so that no library call takes its place.
fn write_ordinary(words: &mut [u64], first: u64) {
    for (value, word) in (first..).zip(words) {
        *word = value;
    }
}

fn copy_ordinary(from: &[u64], to: &mut [u64]) {
    // As above: zero, which the compiler does not know.
    let mask = black_box(0);
    for (to, from) in to.iter_mut().zip(from) {
        *to = *from ^ mask;
    }
}

#[cfg(target_arch = "x86_64")]
fn write_streaming(words: &mut [u64], first: u64) {
    use std::arch::x86_64::{__m128i, _mm_set1_epi64x, _mm_sfence, _mm_stream_si128};
    // SAFETY: SSE2 is part of x86-64; pairs of words of this slice, whose memory begins at a page
    // and is gone through in whole lines, are aligned to 16 bytes.
    unsafe {
        let value = _mm_set1_epi64x(first as i64);
        for pair in words.chunks_exact_mut(2) {
            _mm_stream_si128(pair.as_mut_ptr().cast::<__m128i>(), value);
        }
        _mm_sfence();
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn write_streaming(words: &mut [u64], first: u64) {
    write_ordinary(words, first);
}

/// Two CPUs hand a line to and fro; ns one way.
///
/// # Errors
/// A CPU that may not be used.
pub fn hand_over(cpus: [CpuId; 2], slice: Duration) -> io::Result<f64> {
    /// Round trips between two looks at the clock.
    const BATCH: u64 = 64;
    const END: u64 = u64::MAX;
    let line = Count::default();
    let ball = &line.0;
    let wait = |from: u64| loop {
        match ball.load(Acquire) {
            now if now != from => return now,
            _ => spin_loop(),
        }
    };
    let (sender, ready) = mpsc::channel();
    std::thread::scope(|scope| {
        // Odd numbers are for the other, even ones come back.
        scope.spawn(move || {
            let bound = stay_on(cpus[1]);
            let is_lost = bound.is_err();
            // Whoever receives is waiting.
            let _ = sender.send(bound);
            if is_lost {
                return;
            }
            let mut seen = 0;
            loop {
                seen = wait(seen);
                if seen == END {
                    return;
                }
                seen += 1;
                ball.store(seen, Release);
            }
        });
        ready.recv().map_err(io::Error::other)??;
        let first = scope.spawn(move || {
            stay_on(cpus[0])?;
            let mut number = 0;
            let mut there_and_back = || {
                for _ in 0..BATCH {
                    number += 1;
                    ball.store(number, Release);
                    number = wait(number);
                }
            };
            there_and_back();
            Ok(super::per_call(slice, 2 * BATCH, there_and_back))
        });
        let ns = first.join();
        ball.store(END, Release);
        ns.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn first_cpu() -> CpuId {
        sys::allowed_cpus().unwrap().iter().next().unwrap()
    }

    #[test]
    fn every_kind_of_work_goes_through_all_of_its_memory() {
        let task = Task {
            node: NodeId(0),
            bytes: 3 * CHUNK_BYTES + 4096,
            huge: false,
        };
        let team = Team::start(vec![first_cpu()], &task).unwrap();
        for work in Work::ALL {
            team.turn_to(work);
            let gbs = team.gbs(Duration::from_millis(5));
            assert!(gbs > 0.01 && gbs < 10_000.0, "{work:?}: {gbs}");
        }
    }

    #[test]
    fn copies_are_copies() {
        let from: Vec<u64> = (0..100).collect();
        let mut to = vec![0; 100];
        copy_ordinary(&from, &mut to);
        assert_eq!(from, to);
        write_ordinary(&mut to, 7);
        assert_eq!((to[0], to[99]), (7, 106));
    }

    #[test]
    fn what_cannot_be_had_is_told() {
        let task = Task {
            node: NodeId(1023),
            bytes: CHUNK_BYTES,
            huge: false,
        };
        let error = Team::start(vec![first_cpu()], &task).err().unwrap();
        assert!(error.to_string().contains("node1023"), "{error}");
        let task = Task {
            node: NodeId(0),
            ..task
        };
        assert!(Team::start(vec![CpuId(60_000)], &task).is_err());
        assert!(hand_over([first_cpu(), CpuId(60_000)], Duration::from_millis(1)).is_err());
    }
}
