//! How near the backend `copy` comes to the best memcpy of this machine:
//! `cargo bench -p hither-linux --bench copy`, with `-- small` on 4 KB pages.
//!
//! Every figure is the best of ten rounds in GB/s, all ways in turn in each round, on the same two
//! buffers, touched before. Besides `copy` (one worker) there are the ways to beat: the library's
//! memcpy, `rep movsb`, and plain loops of streaming stores.
//!
//! - *warm*: the same bytes again and again; up to a MiB they stay in the CPU's own cache.
//! - *cold*: pages of 4 KB in a scattered order over 256 MiB, one call each.
//! - *two threads*: two workers against two threads that each copy their half by the best way.
//! - *job*: through the `Backend` trait, the checks of both ranges included.

use hither_core::ids::Pid;
use hither_linux::backend::copy::{self, Copier, CopyBackend};
use hither_mover::{Action, Backend, Job, Race};
use std::hint::spin_loop;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

const ROUNDS: usize = 10;
const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;
const MOST: usize = 256 * MIB;
/// Sizes of the table, in KiB.
const SIZES: [usize; 9] = [4, 16, 64, 256, KIB, 4 * KIB, 16 * KIB, 64 * KIB, MOST / KIB];
/// Bytes per figure and round, at least: some ms.
const ENOUGH: usize = 32 * MIB;

type CopyFn = unsafe fn(*const u8, *mut u8, usize);

/// The ways to beat.
fn rivals() -> Vec<(&'static str, CopyFn)> {
    let mut ways: Vec<(&'static str, CopyFn)> = vec![("memcpy", memcpy)];
    #[cfg(target_arch = "x86_64")]
    {
        ways.push(("rep movsb", rivals_x86::string));
        ways.push(("stream 16", rivals_x86::stream16));
        if is_x86_feature_detected!("avx512f") {
            ways.push(("stream 64", rivals_x86::stream64));
        }
    }
    ways
}

/// The library's.
unsafe fn memcpy(from: *const u8, to: *mut u8, bytes: usize) {
    // SAFETY: the caller gives two ranges of that length that do not overlap.
    unsafe { libc::memcpy(to.cast(), from.cast(), bytes) };
}

#[cfg(target_arch = "x86_64")]
mod rivals_x86 {
    use std::arch::asm;
    use std::arch::x86_64::{
        _mm_loadu_si128, _mm_sfence, _mm_stream_si128, _mm512_loadu_si512, _mm512_stream_si512,
    };

    pub(super) unsafe fn string(from: *const u8, to: *mut u8, bytes: usize) {
        // SAFETY: the caller gives two ranges of that length that do not overlap.
        unsafe {
            asm!("rep movsb", inout("rsi") from => _, inout("rdi") to => _,
                inout("rcx") bytes => _, options(nostack, preserves_flags));
        }
    }

    /// Multiples of 16 bytes, aligned.
    pub(super) unsafe fn stream16(from: *const u8, to: *mut u8, bytes: usize) {
        for offset in (0..bytes).step_by(16) {
            // SAFETY: the caller gives two aligned ranges of that length.
            unsafe {
                let line = _mm_loadu_si128(from.add(offset).cast());
                _mm_stream_si128(to.add(offset).cast(), line);
            }
        }
        // SAFETY: a fence.
        unsafe { _mm_sfence() };
    }

    /// Multiples of 64 bytes, aligned.
    pub(super) unsafe fn stream64(from: *const u8, to: *mut u8, bytes: usize) {
        // SAFETY: offered only where the processor has AVX-512.
        unsafe { stream64_inner(from, to, bytes) }
    }

    #[target_feature(enable = "avx512f")]
    unsafe fn stream64_inner(from: *const u8, to: *mut u8, bytes: usize) {
        for offset in (0..bytes).step_by(64) {
            // SAFETY: the caller gives two aligned ranges of that length.
            unsafe {
                let line = _mm512_loadu_si512(from.add(offset).cast());
                _mm512_stream_si512(to.add(offset).cast(), line);
            }
        }
        _mm_sfence();
    }
}

/// Two touched buffers of [`MOST`] bytes.
struct Buffers {
    from: *mut u8,
    to: *mut u8,
}

impl Buffers {
    fn new(huge: bool) -> Self {
        let bytes = 2 * MOST + 2 * MIB;
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a new mapping where the kernel chooses; it lives as long as the process.
        let base = unsafe { libc::mmap(std::ptr::null_mut(), bytes, access, flags, -1, 0) };
        assert_ne!(base, libc::MAP_FAILED, "memory for the buffers");
        let advice = if huge {
            libc::MADV_HUGEPAGE
        } else {
            libc::MADV_NOHUGEPAGE
        };
        // SAFETY: the mapping just made, which nobody else has.
        unsafe {
            libc::madvise(base, bytes, advice);
            let from = base.cast::<u8>();
            let from = from.add(from.align_offset(2 * MIB));
            for offset in (0..2 * MOST).step_by(8) {
                from.add(offset).cast::<u64>().write(offset as u64);
            }
            Self {
                from,
                to: from.add(MOST),
            }
        }
    }
}

/// The best GB/s of each of several ways over all rounds. `run` goes one of them once and returns
/// the bytes that it copied; a first time is not counted, so that none finds the caches as the
/// way before it left them.
fn best(count: usize, calls: usize, mut run: impl FnMut(usize) -> usize) -> Vec<f64> {
    let mut best = vec![0f64; count];
    for _ in 0..ROUNDS {
        for (way, best) in best.iter_mut().enumerate() {
            run(way);
            let start = Instant::now();
            let bytes: usize = (0..calls).map(|_| run(way)).sum();
            *best = best.max(bytes as f64 / start.elapsed().as_nanos() as f64);
        }
    }
    best
}

/// The best of a list of figures, with its name.
fn best_of(names: &[(&'static str, CopyFn)], figures: &[f64]) -> (&'static str, f64) {
    names
        .iter()
        .zip(figures)
        .map(|(&(name, _), &figure)| (name, figure))
        .max_by(|one, other| one.1.total_cmp(&other.1))
        .expect("there is memcpy")
}

fn main() {
    let small = std::env::args().any(|word| word == "small");
    let buffers = Buffers::new(!small);
    let pages = if small { "4 KB pages" } else { "huge pages" };
    println!("{pages}, GB/s, best of {ROUNDS} rounds\n");
    warm(&buffers);
    cold(&buffers);
    two_threads(&buffers);
    jobs(&buffers);
}

fn warm(buffers: &Buffers) {
    let rivals = rivals();
    let mut ways: Vec<CopyFn> = vec![copy::copy, copy::nontemporal];
    ways.extend(rivals.iter().map(|&(_, way)| way));
    println!("warm          copy  nontemporal   best memcpy            copy/best");
    for kib in SIZES {
        let bytes = kib * KIB;
        let calls = ENOUGH.div_ceil(bytes);
        let figures = best(ways.len(), calls, |way| {
            // SAFETY: both buffers are longer, and apart.
            unsafe { ways[way](buffers.from, buffers.to, bytes) };
            bytes
        });
        let (name, rival) = best_of(&rivals, &figures[2..]);
        let ratio = figures[0] / rival;
        println!(
            "{kib:>7} KiB {:>7.2} {:>12.2} {rival:>13.2} {name:<10} {ratio:>9.2}",
            figures[0], figures[1]
        );
    }
}

fn cold(buffers: &Buffers) {
    const PAGE: usize = 4096;
    // An odd multiplier visits every page once; far apart, so that nothing is read ahead.
    let page_of = |number: usize| number * 40_503 % (MOST / PAGE) * PAGE;
    let rivals = rivals();
    let mut ways: Vec<CopyFn> = vec![copy::copy, copy::nontemporal];
    ways.extend(rivals.iter().map(|&(_, way)| way));
    let figures = best(ways.len(), 1, |way| {
        for number in 0..MOST / PAGE {
            let offset = page_of(number);
            // SAFETY: a page of each buffer.
            unsafe { ways[way](buffers.from.add(offset), buffers.to.add(offset), PAGE) };
        }
        MOST
    });
    let (name, rival) = best_of(&rivals, &figures[2..]);
    println!(
        "\ncold 4 KB pages: copy {:.2}, nontemporal {:.2}, best memcpy {rival:.2} ({name})",
        figures[0], figures[1]
    );
}

fn two_threads(buffers: &Buffers) {
    println!("\ntwo threads   copy   raw, best way            copy/raw   one thread");
    for mib in [1, 4, 16, 64, 256] {
        let bytes = mib * MIB;
        let calls = ENOUGH.div_ceil(bytes);
        let mut names = rivals();
        names.push(("nontemporal", copy::nontemporal));
        // All three figures are of the same ten rounds: those of the best raw way.
        let (name, (copy, raw, one)) = names
            .iter()
            .map(|&(name, way)| (name, against_raw(buffers, bytes, calls, way)))
            .max_by(|one, other| one.1.1.total_cmp(&other.1.1))
            .expect("there is memcpy");
        println!(
            "{mib:>7} MiB {copy:>7.2} {raw:>7.2} {name:<14} {:>14.2} {one:>12.2}",
            copy / raw
        );
    }
}

/// Two workers, two raw threads, and one worker, in turn.
fn against_raw(buffers: &Buffers, bytes: usize, calls: usize, way: CopyFn) -> (f64, f64, f64) {
    let mut two = Copier::new(2, &[]).expect("a thread");
    let mut one = Copier::new(1, &[]).expect("no thread is needed");
    let timed = |copier: &mut Copier| {
        // Not timed, as in the other tables; the raw threads are awake when their clock starts.
        // SAFETY: both buffers are longer, and apart.
        unsafe { copier.copy(buffers.from, buffers.to, bytes) };
        let start = Instant::now();
        for _ in 0..calls {
            // SAFETY: both buffers are longer, and apart.
            unsafe { copier.copy(buffers.from, buffers.to, bytes) };
        }
        (calls * bytes) as f64 / start.elapsed().as_nanos() as f64
    };
    let mut best = (0f64, 0f64, 0f64);
    for _ in 0..ROUNDS {
        best.0 = best.0.max(timed(&mut two));
        best.1 = best.1.max(raw(buffers, bytes, calls, way));
        best.2 = best.2.max(timed(&mut one));
    }
    best
}

/// GB/s of two threads that each copy a half and spin in between. The second lives for this round
/// only, so that its spinning takes no CPU from the other ways.
fn raw(buffers: &Buffers, bytes: usize, calls: usize, way: CopyFn) -> f64 {
    // Even: the second thread is ready; odd: it shall copy.
    let turn = &AtomicU64::new(u64::MAX);
    let wait = |wanted: u64| {
        while turn.load(Ordering::Acquire) != wanted {
            spin_loop();
        }
    };
    let half = bytes / 2;
    // SAFETY: inside the buffers.
    let (from, to) = unsafe { (buffers.from.add(half), buffers.to.add(half)) };
    let (from, to) = (from as usize, to as usize);
    std::thread::scope(|scope| {
        scope.spawn(move || {
            for call in 0..calls as u64 {
                turn.store(2 * call, Ordering::Release);
                wait(2 * call + 1);
                // SAFETY: the second half of both buffers.
                unsafe { way(from as *const u8, to as *mut u8, half) };
            }
            turn.store(2 * calls as u64, Ordering::Release);
        });
        wait(0);
        let start = Instant::now();
        for call in 0..calls as u64 {
            turn.store(2 * call + 1, Ordering::Release);
            // SAFETY: the first half of both buffers.
            unsafe { way(buffers.from, buffers.to, half) };
            wait(2 * call + 2);
        }
        (calls * bytes) as f64 / start.elapsed().as_nanos() as f64
    })
}

fn jobs(buffers: &Buffers) {
    println!("\njob           with checks      copy   share");
    let mut backend = CopyBackend::new(1, Vec::new()).expect("no thread is needed");
    for kib in SIZES {
        let bytes = kib * KIB;
        let calls = ENOUGH.div_ceil(bytes);
        let job = Job {
            pid: Pid(std::process::id() as i32),
            action: Action::Replicate {
                from: buffers.from as u64,
                to: buffers.to as u64,
                bytes: bytes as u64,
            },
            race: Race::default(),
        };
        let figures = best(2, calls, |way| {
            if way == 1 {
                // SAFETY: both buffers are longer, and apart.
                unsafe { copy::copy(buffers.from, buffers.to, bytes) };
            } else {
                let outcome = backend.execute(std::slice::from_ref(&job));
                assert_eq!(outcome[0].bytes, bytes as u64);
            }
            bytes
        });
        println!(
            "{kib:>7} KiB {:>14.2} {:>9.2} {:>7.2}",
            figures[0],
            figures[1],
            figures[0] / figures[1]
        );
    }
}
