//! Visits by many threads under a storm of signals, and with forks meanwhile: each result is checked, and so is
//! what visits leave in memory that they change without a lock.
//!
//! `cargo test --release -p hither-regions --test storm -- --ignored --nocapture` makes ten million.

use hither_core::ids::CpuId;
use hither_linux::sys;
use hither_regions::{Config, Domain, Region};
use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

const THREADS: u64 = 8;
/// The last has several workers.
const REGIONS: usize = 3;

static SIGNALS: AtomicU64 = AtomicU64::new(0);

extern "C" fn count(_: i32) {
    SIGNALS.fetch_add(1, Ordering::Relaxed);
}

/// Changed by visits to one region with one worker, without a lock and in two steps.
#[derive(Default)]
struct Memory(UnsafeCell<[u64; 2]>);

// SAFETY: one worker alone uses it; that it is so is what the test shows.
unsafe impl Sync for Memory {}

impl Memory {
    /// # Safety
    /// In visits to its region, or when these have ended.
    unsafe fn add(&self, value: u64) -> u64 {
        // SAFETY: as the caller vouches.
        let [count, sum] = unsafe { &mut *self.0.get() };
        *count += 1;
        *sum = sum.wrapping_add(value);
        value.wrapping_mul(3) ^ 0x55
    }
}

/// What a visit answers.
fn expected(value: u64) -> u64 {
    value.wrapping_mul(3) ^ 0x55
}

fn regions() -> Vec<Region> {
    let cpus: Vec<CpuId> = sys::allowed_cpus().unwrap().iter().collect();
    (0..REGIONS)
        .map(|index| {
            let domain = Domain::of_cpus([cpus[index % cpus.len()]]).unwrap();
            let config = Config {
                workers: if index + 1 == REGIONS { 2 } else { 1 },
                ..Config::default()
            };
            Region::with(domain, &config).unwrap()
        })
        .collect()
}

/// Signals to each of these threads in turns, to the process, and by a timer, until it is over.
fn signal(threads: &[libc::pthread_t], is_over: &AtomicBool) {
    let handler = count as extern "C" fn(i32) as libc::sighandler_t;
    let every = libc::timeval {
        tv_sec: 0,
        tv_usec: 1000,
    };
    let timer = libc::itimerval {
        it_interval: every,
        it_value: every,
    };
    // SAFETY: the handler adds to an atomic word; the timer is of this process.
    unsafe {
        for signal in [libc::SIGUSR1, libc::SIGUSR2, libc::SIGALRM] {
            // Without SA_RESTART: calls are interrupted.
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = handler;
            assert_eq!(
                libc::sigaction(signal, &raw const action, std::ptr::null_mut()),
                0
            );
        }
        libc::setitimer(libc::ITIMER_REAL, &raw const timer, std::ptr::null_mut());
    }
    while !is_over.load(Ordering::Relaxed) {
        for &thread in threads {
            // SAFETY: the threads live until this has ended.
            unsafe { libc::pthread_kill(thread, libc::SIGUSR1) };
        }
        // SAFETY: to this process, whose handler is above: any thread takes it, workers as well.
        unsafe { libc::kill(libc::getpid(), libc::SIGUSR2) };
        std::thread::sleep(Duration::from_micros(500));
    }
    // SAFETY: as above.
    unsafe {
        let none: libc::itimerval = std::mem::zeroed();
        libc::setitimer(libc::ITIMER_REAL, &raw const none, std::ptr::null_mut());
    }
}

/// Children that visit in place, one after another; how many there were.
fn fork(regions: &[Region], is_over: &AtomicBool) -> u64 {
    let mut children = 0;
    while !is_over.load(Ordering::Relaxed) || children == 0 {
        // SAFETY: the child visits in place, which takes no lock and no memory, and ends by _exit.
        let pid = unsafe { libc::fork() };
        assert!(pid >= 0);
        if pid == 0 {
            let thread = sys::thread_id();
            let good = (0..100).all(|value| {
                let one = &regions[value as usize % REGIONS];
                let two = &regions[(value + 1) as usize % REGIONS];
                let nested = one.run(|| two.run(|| (expected(value), sys::thread_id())));
                nested == (expected(value), thread)
            });
            // SAFETY: ends this process at once.
            unsafe { libc::_exit(i32::from(!good)) };
        }
        let mut status = 0;
        // SAFETY: a child of ours, and a place for its status. Signals interrupt the wait.
        while unsafe { libc::waitpid(pid, &raw mut status, 0) } != pid {}
        assert_eq!(status, 0, "the child says no, or was ended by a signal");
        children += 1;
        std::thread::sleep(Duration::from_millis(20));
    }
    children
}

/// So many visits by all threads together, a quarter of them within others.
fn storm(visits: u64) {
    let (regions, memories) = (regions(), [Memory::default(), Memory::default()]);
    let shared = AtomicU64::new(0);
    let visit = |index: usize, value: u64| match memories.get(index) {
        // SAFETY: within a visit to its region.
        Some(memory) => unsafe { memory.add(value) },
        None => {
            shared.fetch_add(1, Ordering::Relaxed);
            expected(value)
        }
    };
    let each = visits / THREADS;
    let (is_over, left) = (AtomicBool::new(false), AtomicU64::new(THREADS));
    let (told, names) = std::sync::mpsc::channel();
    let go = std::sync::Barrier::new(THREADS as usize + 1);
    let start = Instant::now();
    let children = std::thread::scope(|scope| {
        let callers: Vec<_> = (0..THREADS)
            .map(|thread| {
                let (regions, visit, told, go) = (&regions, &visit, told.clone(), &go);
                let left = &left;
                scope.spawn(move || {
                    // SAFETY: asks for the calling thread's name.
                    told.send(unsafe { libc::pthread_self() }).unwrap();
                    go.wait();
                    let mut made = 0;
                    while made < each {
                        let value = thread << 32 | made;
                        let index = value as usize % REGIONS;
                        let found = regions[index].run(|| visit(index, value));
                        assert_eq!(found, expected(value));
                        made += 1;
                        if made % 4 == 3 && made < each {
                            // Round: each region is visited within each other.
                            let within = (index + 1 + thread as usize % (REGIONS - 1)) % REGIONS;
                            let found = regions[within]
                                .run(|| regions[index].run(|| visit(index, value + 1)));
                            assert_eq!(found, expected(value + 1));
                            made += 1;
                        }
                    }
                    left.fetch_sub(1, Ordering::Relaxed);
                })
            })
            .collect();
        let names: Vec<libc::pthread_t> = names.iter().take(THREADS as usize).collect();
        let is_over = &is_over;
        let signals = scope.spawn(move || signal(&names, is_over));
        let forks = scope.spawn(|| fork(&regions, is_over));
        go.wait();
        while left.load(Ordering::Relaxed) > 0 && !callers.iter().all(|caller| caller.is_finished())
        {
            std::thread::sleep(Duration::from_millis(5));
        }
        is_over.store(true, Ordering::Relaxed);
        signals.join().unwrap();
        forks.join().unwrap()
    });
    let took = start.elapsed();
    // SAFETY: all visits have ended.
    let counts = memories.map(|memory| unsafe { *memory.0.get() }[0]);
    let all = counts[0] + counts[1] + shared.load(Ordering::Relaxed);
    assert_eq!(all, each * THREADS, "a visit was lost or made twice");
    let counted: Vec<_> = regions.iter().map(Region::counts).collect();
    println!(
        "{all} visits by {THREADS} threads in {:.1} s, {} signals, {children} children: {counted:?}",
        took.as_secs_f64(),
        SIGNALS.load(Ordering::Relaxed)
    );
    assert!(SIGNALS.load(Ordering::Relaxed) > 0 && children > 0);
    // Outer visits of nested ones are hand-overs too.
    assert!(counted.iter().map(|counts| counts.visits).sum::<u64>() >= all);
}

#[test]
fn every_visit_is_made_once_under_signals_and_forks() {
    storm(4_000);
}

#[test]
#[ignore = "minutes: ten million visits"]
fn long_ten_million_visits() {
    storm(10_000_000);
}
