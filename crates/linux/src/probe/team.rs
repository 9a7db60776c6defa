//! Threads that read, write or copy while a clock runs ([`super::crew`]), each through memory of its
//! own over and over.

use super::crew::{Count, Crew, Worker, stay_on};
use super::memory_under;
use crate::backend::copy;
use hither_core::bind::KernelPolicy;
use hither_core::ids::CpuId;
use std::hint::{black_box, spin_loop};
use std::io;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU32, AtomicUsize};
use std::sync::{Arc, mpsc};
use std::time::Duration;

/// Bytes between two counts.
pub const CHUNK_BYTES: usize = 256 << 10;
const CHUNK_WORDS: usize = CHUNK_BYTES / 8;
const LINE_WORDS: usize = 8;
/// By so much more than half of the memory the target of a copy is behind its source. Halves of a
/// large power of two look alike to caches that tell lines by some bits of their addresses: on a
/// Zen 4, 256 MiB apart, copies were a third slower than with five pages more.
const SKEW_WORDS: usize = 5 * 4096 / 8;

/// What a thread does with its memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProbeWork {
    /// Loads all of it (BwMemRd).
    Read,
    /// Ordinary stores: each line is fetched before it is overwritten (BwMemWr).
    Write,
    /// Streaming stores, which fetch nothing.
    WriteStreaming,
    /// Loads of one half, ordinary stores to the other (BwMemCp).
    Copy,
    /// The same with streaming stores, in order.
    CopyStreaming,
    /// With streaming stores to several pages in turn, as glibc's memcpy of what is large.
    CopyInterleaved,
}

impl ProbeWork {
    /// All kinds.
    pub const ALL: [Self; 6] = [
        Self::Read,
        Self::Write,
        Self::WriteStreaming,
        Self::Copy,
        Self::CopyStreaming,
        Self::CopyInterleaved,
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
            Self::CopyInterleaved => "copy, interleaved",
        }
    }
}

/// What every thread of a team has.
#[derive(Clone, Debug)]
pub struct ProbeTask {
    /// Where its memory is; for copies both halves.
    pub policy: KernelPolicy,
    /// Of each thread; [`CHUNK_BYTES`] at least.
    pub bytes: usize,
    /// In huge pages.
    pub huge: bool,
}

/// What every thread of a team is told.
#[derive(Default)]
struct Orders {
    /// Position in [`ProbeWork::ALL`].
    work: AtomicUsize,
    /// Turns of an empty loop after each line that is read.
    pause: AtomicU32,
}

/// Threads at work on memory; they end when it is dropped.
pub struct Team {
    orders: Arc<Orders>,
    crew: Crew,
}

impl Team {
    /// Starts a thread on each CPU, and waits until all of them read.
    ///
    /// # Errors
    /// What the kernel said of CPUs, memory or threads.
    pub fn start(cpus: Vec<CpuId>, task: &ProbeTask) -> io::Result<Self> {
        let orders = Arc::new(Orders::default());
        let (task, told) = (task.clone(), Arc::clone(&orders));
        let body = move |cpu, worker: Worker| {
            let refused = |error: io::Error| {
                let text = format!("{cpu}, memory by {}: {error}", task.policy);
                io::Error::new(error.kind(), text)
            };
            let mut memory = memory_under(task.bytes, &task.policy, task.huge).map_err(refused)?;
            let words = &mut memory.values_mut(1u64)[..task.bytes / 8];
            let mut next = 0;
            worker.repeat(|| chunk(words, &mut next, &told));
            Ok(())
        };
        let crew = Crew::start(cpus, CHUNK_BYTES as u64, body)?;
        Ok(Self { orders, crew })
    }

    /// Everybody does this from now on.
    pub fn turn_to(&self, work: ProbeWork) {
        let index = ProbeWork::ALL.iter().position(|known| *known == work);
        self.orders.work.store(index.unwrap_or(0), Relaxed);
        self.crew.settle();
    }

    /// Less load: so many turns of an empty loop after each line that is read.
    pub fn pause(&self, turns: u32) {
        self.orders.pause.store(turns, Relaxed);
    }

    /// GB/s of all threads while something else goes on.
    pub fn during(&self, other: impl FnOnce()) -> f64 {
        self.crew.during(other)
    }

    /// GB/s of all threads for a while; `None` where they were given no time.
    #[must_use]
    pub fn gbs(&self, slice: Duration) -> Option<f64> {
        self.crew.per_ns(slice)
    }
}

/// Works through the next chunk; its bytes.
fn chunk(words: &mut [u64], next: &mut usize, told: &Orders) -> u64 {
    let work = ProbeWork::ALL[told.work.load(Relaxed)];
    let all = words.len();
    let (front, rear) = words.split_at_mut(all / 2);
    let rear = &mut rear[SKEW_WORDS..];
    let whole = match work {
        ProbeWork::Read | ProbeWork::Write | ProbeWork::WriteStreaming => all,
        _ => front.len().min(rear.len()),
    };
    if *next >= whole {
        *next = 0;
    }
    let first = *next as u64;
    let length = CHUNK_WORDS.min(whole - *next);
    let range = *next..*next + length;
    *next = range.end;
    match work {
        ProbeWork::Read => match told.pause.load(Relaxed) {
            0 => read(&words[range]),
            turns => read_slowly(&words[range], turns),
        },
        ProbeWork::Write => write_ordinary(&mut words[range], first),
        ProbeWork::WriteStreaming => write_streaming(&mut words[range], first),
        ProbeWork::Copy => copy_ordinary(&front[range.clone()], &mut rear[range]),
        ProbeWork::CopyStreaming => copy_streaming(&front[range.clone()], &mut rear[range]),
        ProbeWork::CopyInterleaved => {
            let (from, to) = (&front[range.clone()], &mut rear[range]);
            // SAFETY: two slices of one length, the one exclusive.
            unsafe {
                copy::interleaved(from.as_ptr().cast(), to.as_mut_ptr().cast(), length * 8);
            }
        }
    }
    length as u64 * 8
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

/// One page after the other, and nothing asked for ahead. On a Zen 4 that was half as fast again as
/// several pages in turn, on a Xeon the contrary was measured (`backend/copy/stream.rs`); wider registers
/// gained nothing.
#[cfg(target_arch = "x86_64")]
fn copy_streaming(from: &[u64], to: &mut [u64]) {
    use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_sfence, _mm_stream_si128};
    // SAFETY: any words are a vector, and every vector is two words.
    let (head, pairs, tail) = unsafe { to.align_to_mut::<__m128i>() };
    let (from_head, from) = from.split_at(head.len());
    let (from_pairs, from_tail) = from.split_at(2 * pairs.len());
    copy_ordinary(from_head, head);
    for (pair, from) in pairs.iter_mut().zip(from_pairs.chunks_exact(2)) {
        // SAFETY: SSE2 is part of x86-64; `from` is two words, `pair` is aligned as its type is.
        unsafe { _mm_stream_si128(pair, _mm_loadu_si128(from.as_ptr().cast())) };
    }
    copy_ordinary(from_tail, tail);
    // SAFETY: a fence; every x86-64 has it.
    unsafe { _mm_sfence() };
}

#[cfg(not(target_arch = "x86_64"))]
fn copy_streaming(from: &[u64], to: &mut [u64]) {
    copy_ordinary(from, to);
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
    use crate::probe::crew::above;
    use crate::sys;

    fn first_cpu() -> CpuId {
        sys::allowed_cpus().unwrap().iter().next().unwrap()
    }

    #[test]
    fn every_kind_of_work_goes_through_all_of_its_memory() {
        let task = ProbeTask {
            policy: "bind:0".parse().unwrap(),
            bytes: 3 * CHUNK_BYTES + 4096,
            huge: false,
        };
        let team = Team::start(vec![first_cpu()], &task).unwrap();
        for work in ProbeWork::ALL {
            team.turn_to(work);
            let gbs = above(0.01, || team.gbs(Duration::from_millis(5)));
            assert!(gbs < 10_000.0, "{work:?}: {gbs}");
        }
    }

    #[test]
    fn copies_are_copies() {
        let from: Vec<u64> = (0..100).collect();
        let mut to = vec![0; 100];
        for copy in [copy_ordinary, copy_streaming] {
            // Odd numbers of words, at odd places.
            for (first, end) in [(0, 100), (1, 100), (1, 98), (2, 97), (5, 6), (7, 7)] {
                to.fill(1000);
                copy(&from[first..end], &mut to[first..end]);
                assert_eq!(to[first..end], from[first..end]);
                let mut beside = to[..first].iter().chain(&to[end..]);
                assert!(beside.all(|word| *word == 1000));
            }
        }
        write_ordinary(&mut to, 7);
        assert_eq!((to[0], to[99]), (7, 106));
    }

    #[test]
    fn copies_go_through_all_of_the_source_that_has_a_target() {
        let half = 2 * CHUNK_WORDS;
        let copied = half - SKEW_WORDS;
        for work in &ProbeWork::ALL[3..] {
            let mut words: Vec<u64> = (1..=2 * half as u64).collect();
            let before = words.clone();
            let told = Orders::default();
            let index = ProbeWork::ALL.iter().position(|known| known == work);
            told.work.store(index.unwrap(), Relaxed);
            let mut next = 0;
            let bytes: u64 = (0..2).map(|_| chunk(&mut words, &mut next, &told)).sum();
            assert_eq!((bytes, next), (copied as u64 * 8, copied));
            assert_eq!(words[..half + SKEW_WORDS], before[..half + SKEW_WORDS]);
            assert_eq!(words[half + SKEW_WORDS..], before[..copied], "{work:?}");
        }
    }

    #[test]
    fn what_cannot_be_had_is_told() {
        let task = ProbeTask {
            policy: "bind:1023".parse().unwrap(),
            bytes: CHUNK_BYTES,
            huge: false,
        };
        let error = Team::start(vec![first_cpu()], &task).err().unwrap();
        assert!(error.to_string().contains("bind:1023"), "{error}");
        let task = ProbeTask {
            policy: "bind:0".parse().unwrap(),
            ..task
        };
        assert!(Team::start(vec![CpuId(60_000)], &task).is_err());
        assert!(hand_over([first_cpu(), CpuId(60_000)], Duration::from_millis(1)).is_err());
    }
}
