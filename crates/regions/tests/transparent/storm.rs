//! Many threads that go from region to region, under signals, forks, system calls and jumps: each addition is counted.

use crate::begin;
use crate::memory::{PAGE, Pages};
use crate::signals::{BY_ONE, set_nested};
use hither_regions::Form;
use hither_workloads::random::FastRandom;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::{Duration, Instant};

/// By page protection there is one.
const THREADS: usize = 8;
/// The words of a thread begin at so many times its number; handlers use those below.
const FIRST: usize = 32;

fn fork(pages: &[Pages; 2]) {
    // SAFETY: the child touches its own copy of memory of ours, and ends.
    let child = unsafe { libc::fork() };
    assert!(child >= 0);
    if child == 0 {
        let words = [0, 1].map(|at: usize| pages[at].word(FIRST - 1));
        let before = words.map(|word| word.load(Relaxed));
        for turn in 0..20 {
            words[turn % 2].fetch_add(1, Relaxed);
        }
        let good = words.map(|word| word.load(Relaxed)) == before.map(|value| value + 10);
        // SAFETY: ends this process at once.
        unsafe { libc::_exit(i32::from(!good)) };
    }
    let mut status = 0;
    // SAFETY: a child of ours. Signals interrupt the wait.
    while unsafe { libc::waitpid(child, &raw mut status, 0) } != child {}
    assert_eq!(status, 0, "the child says no, or was ended by a signal");
}

/// What one thread did.
#[derive(Default)]
struct Done {
    additions: u64,
    signals: u64,
    children: u64,
}

fn work(pages: &[Pages; 2], thread: usize, turns: u64) -> Done {
    let mut done = Done::default();
    let mut random = FastRandom::new(thread as u64 + 1);
    let mut ends = [0; 2];
    // SAFETY: room for two numbers.
    assert_eq!(unsafe { libc::pipe(ends.as_mut_ptr()) }, 0);
    let first = FIRST * (thread + 1);
    let mut expected = [0u64; 2];
    for turn in 0..turns {
        let at = turn as usize % 2;
        let value = random.below(1000);
        pages[at].word(first).fetch_add(value, Relaxed);
        expected[at] += value;
        done.additions += 1;
        if turn % 50 == 0 {
            // From one domain to the other by the kernel.
            let [from, to] = [&pages[at], &pages[1 - at]].map(|pages| pages.word(first).as_ptr());
            // SAFETY: 8 bytes each, of this thread alone; the calls are stood in for.
            unsafe {
                assert_eq!(libc::write(ends[1], from.cast(), 8), 8);
                assert_eq!(libc::read(ends[0], to.add(1).cast(), 8), 8);
            }
            assert_eq!(pages[1 - at].word(first + 1).load(Relaxed), expected[at]);
        }
        if turn % 200 == 0 {
            // SAFETY: its handler touches both domains, and raises another.
            unsafe { libc::raise(libc::SIGUSR1) };
            done.signals += 1;
        }
        if turn % 4000 == 500 * thread as u64 {
            fork(pages);
            done.children += 1;
        }
    }
    for (page, expected) in pages.iter().zip(expected) {
        assert_eq!(page.word(first).load(Relaxed), expected);
    }
    // SAFETY: the ends of the pipe.
    unsafe {
        libc::close(ends[0]);
        libc::close(ends[1]);
    }
    done
}

/// So many micro-schedules at least, by all threads together.
pub fn storm(form: Form, switches: u64) {
    let threads = if form == Form::Keys { THREADS } else { 1 };
    let regions = begin(form).unwrap();
    let pages = [Pages::new(4), Pages::new(4)];
    let _registered = [0, 1].map(|index| pages[index].register(&regions, index));
    assert!(FIRST * (threads + 1) * 8 < 4 * PAGE);
    set_nested(&pages, 9);
    let start = Instant::now();
    let turns = switches.div_ceil(threads as u64);
    let done: Vec<Done> = if threads == 1 {
        vec![work(&pages, 0, turns)]
    } else {
        let (is_over, raised) = (AtomicBool::new(false), AtomicU64::new(0));
        let done = std::thread::scope(|scope| {
            let workers: Vec<_> = (0..threads)
                .map(|thread| {
                    let pages = &pages;
                    scope.spawn(move || work(pages, thread, turns))
                })
                .collect();
            // To the process: any thread takes it, wherever it is.
            scope.spawn(|| {
                while !is_over.load(Relaxed) {
                    // SAFETY: a signal whose handler is set. Waiting ones of a kind become one: it is raised here, not counted.
                    unsafe { libc::kill(libc::getpid(), libc::SIGWINCH) };
                    raised.fetch_add(1, Relaxed);
                    std::thread::sleep(Duration::from_micros(300));
                }
            });
            let done = workers.into_iter().map(|one| one.join().unwrap()).collect();
            is_over.store(true, Relaxed);
            done
        });
        assert!(raised.load(Relaxed) > 0);
        done
    };
    let sum = |figure: fn(&Done) -> u64| done.iter().map(figure).sum::<u64>();
    let moves = regions.moves();
    println!(
        "{} additions by {threads} threads in {:.1} s, {} signals, {} children: {moves:?}",
        sum(|done| done.additions),
        start.elapsed().as_secs_f64(),
        sum(|done| done.signals),
        sum(|done| done.children)
    );
    for page in &pages {
        assert_eq!(
            page.word(9).load(Relaxed),
            BY_ONE * sum(|done| done.signals)
        );
    }
    assert!(moves.faults >= switches, "{moves:?}");
    assert!(sum(|done| done.children) > 0 && sum(|done| done.signals) > 0);
}
