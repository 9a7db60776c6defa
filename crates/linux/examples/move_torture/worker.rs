//! The threads of the mover end without a word: the one that works, at a random step, or the one
//! that answers for pages that are away.

use crate::common::{self, Options, Random, Report, tick};
use crate::memory::{Field, HUGE, LANES, PAGE};
use crate::mover::backend;
use hither_core::ids::{NodeId, Pid};
use hither_linux::backend::swap::{Step, SwapBackend};
use hither_linux::sys;
use hither_mover::{Action, Backend, Job, Pages, Race};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Steps at which the worker ends, those with the lock held too.
const STEPS: [Step; 9] = Step::ALL;

/// Small pages of a huge one.
const UNIT: u64 = HUGE / PAGE;

/// Ends the calling thread: nothing of it is cleaned up, and its locks stay locked.
fn end_thread() -> ! {
    // SAFETY: the thread's stack and what it owns stay as they are, and nobody waits for it.
    unsafe { libc::syscall(libc::SYS_exit, 0) };
    unreachable!("the thread has ended")
}

/// What the threads that store do: everywhere, whether something is in flight or not.
fn write(field: &Field, lane: u64, stop: &AtomicBool, count: &AtomicU64, seed: u64) {
    let mut random = Random::new(seed ^ (lane + 1) << 40);
    while !stop.load(Ordering::Relaxed) {
        for _ in 0..64 {
            let page = random.below(field.pages());
            field.store(field.pick(page, lane, &mut random));
        }
        count.fetch_add(64, Ordering::Relaxed);
        std::thread::yield_now();
    }
}

/// Moves whatever is in a range, over and over.
fn work(mut backend: SwapBackend, field: &'static Field, options: Options, seed: u64, most: u64) {
    let mut random = Random::new(seed);
    let range = field.region.range();
    let pages = (range.end - range.start) / PAGE;
    for _ in 0..most {
        let mut count = 1 + random.below(pages);
        let mut first = random.below(pages - count + 1);
        if options.huge && !random.one_in(4) {
            (first, count) = (random.below(pages / UNIT) * UNIT, UNIT);
        }
        let start = range.start / PAGE + first;
        let job = Job {
            pid: Pid(0),
            action: Action::Migrate {
                pages: Pages::Run(start..start + count),
                to: NodeId(random.below(u64::from(options.nodes)) as u32),
            },
            race: random.pick(&[Race::Recover, Race::Fail, Race::Block]),
        };
        let _ = backend.execute(&[job]);
    }
}

/// Waits until every page can be read and is right.
fn look_at_all(field: &Field) {
    for page in 0..field.pages() {
        let index = page * (PAGE / 8) + LANES - 1;
        let word = field.region.word(index);
        let found = word.load(Ordering::Relaxed);
        let expected = common::value(crate::memory::address(word), 0);
        if found != expected {
            common::wrong(crate::memory::address(word), expected, found);
        }
    }
    tick();
}

/// Parts of the memory that somebody still waits for accesses to.
fn registered(field: &Field) -> usize {
    let text = std::fs::read_to_string("/proc/self/smaps").unwrap_or_default();
    let mut inside = false;
    let mut count = 0;
    for line in text.lines() {
        // 7f3a1c000000-7f3a1c021000 rw-p 00000000 00:00 0
        let start = line
            .split_once('-')
            .and_then(|(text, _)| u64::from_str_radix(text, 16).ok());
        if let Some(start) = start {
            inside = field.region.range().contains(&start);
        }
        // VmFlags: rd wr mr mw me ac um
        count += usize::from(inside && line.starts_with("VmFlags:") && line.contains(" um"));
    }
    count
}

/// Waits until nobody holds the memory any more, now that nobody works on it.
fn wait_released(field: &Field, step: Step) {
    let start = Instant::now();
    while registered(field) > 0 {
        if start.elapsed() > Duration::from_secs(5) {
            common::fail(&format!(
                "after a death at {step:?} memory stays registered"
            ));
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A worker ends at the `turn`th time that it comes to a step.
fn one_death(options: &Options, field: &'static Field, random: &mut Random) -> (usize, bool) {
    let step = random.below(STEPS.len() as u64) as usize;
    let turn = random.below(12);
    let ended = Arc::new(AtomicI32::new(0));
    let inside = Arc::clone(&ended);
    let count = AtomicU64::new(0);
    let hook: hither_linux::backend::swap::Hook = Some(Arc::new(move |at| {
        if at == STEPS[step] && count.fetch_add(1, Ordering::Relaxed) == turn {
            inside.store(sys::thread_id(), Ordering::SeqCst);
            end_thread();
        }
    }));
    let backend = backend(options, random, &hook);
    let (options, seed) = (*options, random.next());
    let thread = Arc::new(AtomicI32::new(0));
    let own = Arc::clone(&thread);
    // Never joined: it tells nobody that it has ended.
    drop(std::thread::spawn(move || {
        own.store(sys::thread_id(), Ordering::SeqCst);
        work(backend, field, options, seed, 64);
        own.store(-1, Ordering::SeqCst);
    }));
    let start = Instant::now();
    loop {
        let thread = thread.load(Ordering::SeqCst);
        if thread < 0 || (thread > 0 && !sys::thread_lives(thread)) {
            break;
        }
        if start.elapsed() > Duration::from_secs(15) {
            common::fail(&format!(
                "a worker neither ends nor goes on, to end at {:?}",
                STEPS[step]
            ));
        }
        std::thread::yield_now();
    }
    look_at_all(field);
    wait_released(field, STEPS[step]);
    (step, ended.load(Ordering::SeqCst) > 0)
}

/// Ends the thread that this signal reaches, where it waits for events: elsewhere it may hold a
/// lock of the C library, which nobody survives.
extern "C" fn end_if_waiting(_: libc::c_int, _: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel passes the interrupted context.
    let registers = unsafe { (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs };
    // Of the calls that the thread makes only poll(2) is interrupted with this answer.
    if registers[libc::REG_RAX as usize] == -i64::from(libc::EINTR) {
        // SAFETY: as in `end_thread`.
        unsafe { libc::syscall(libc::SYS_exit, 0) };
    }
}

fn monitors() -> Vec<i32> {
    let mut found = Vec::new();
    for task in std::fs::read_dir("/proc/self/task")
        .into_iter()
        .flatten()
        .flatten()
    {
        let name = std::fs::read_to_string(task.path().join("comm")).unwrap_or_default();
        let thread: Option<i32> = task.file_name().to_string_lossy().parse().ok();
        if name.trim() == "hither-faults" {
            found.extend(thread);
        }
    }
    found
}

/// The monitor ends while a worker works, which goes on.
fn one_monitor(options: &Options, field: &'static Field, random: &mut Random) -> bool {
    let before = monitors();
    let backend = backend(options, random, &None);
    let mine: Vec<i32> = monitors()
        .into_iter()
        .filter(|one| !before.contains(one))
        .collect();
    let (options, seed) = (*options, random.next());
    let working = Arc::new(AtomicBool::new(true));
    let inside = Arc::clone(&working);
    let handle = std::thread::spawn(move || {
        work(backend, field, options, seed, 48);
        inside.store(false, Ordering::SeqCst);
    });
    std::thread::sleep(Duration::from_micros(random.below(2000)));
    let mut ended = false;
    while working.load(Ordering::SeqCst) && !ended {
        for &thread in &mine {
            // SAFETY: a signal with a handler to a thread of this process, or of nobody.
            unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), thread, libc::SIGUSR2) };
            std::thread::sleep(Duration::from_micros(100));
            ended |= !sys::thread_lives(thread);
        }
    }
    if handle.join().is_err() {
        common::fail("the worker panicked without its monitor");
    }
    look_at_all(field);
    ended
}

pub fn run(options: &Options) -> Report {
    let mut report = Report::new("worker");
    // SAFETY: a handler that keeps to what handlers may do; all zero is a valid action otherwise.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        let handler: extern "C" fn(_, _, _) = end_if_waiting;
        action.sa_sigaction = handler as usize;
        action.sa_flags = libc::SA_SIGINFO;
        libc::sigaction(libc::SIGUSR2, &action, std::ptr::null_mut());
    }
    let bytes = if options.huge { 2 * HUGE } else { HUGE };
    // Threads that are ended use it, so it stays for ever.
    let field: &'static Field = Box::leak(Box::new(Field::new(bytes, options.huge, 3)));
    let mut random = Random::new(options.seed ^ 0xE1);
    let (stop, stores) = (AtomicBool::new(false), AtomicU64::new(0));
    let mut at_steps = [0u64; STEPS.len()];
    let mut monitors_ended = 0;
    std::thread::scope(|scope| {
        for lane in 0..field.lanes {
            let (stop, stores) = (&stop, &stores);
            scope.spawn(move || write(field, lane, stop, stores, options.seed));
        }
        for round in 0..options.rounds {
            let (step, ended) = one_death(options, field, &mut random);
            at_steps[step] += u64::from(ended);
            if round % 4 == 0 {
                monitors_ended += u64::from(one_monitor(options, field, &mut random));
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
    field.verify();
    report.met("workers that ended", at_steps.iter().sum());
    for (step, count) in STEPS.iter().zip(at_steps) {
        // In a short run not every step has its turn.
        if options.rounds >= 100 {
            report.met(&format!("at {step:?}"), count);
        } else {
            report.count(&format!("at {step:?}"), count);
        }
    }
    report.met("monitors that ended", monitors_ended);
    report.met("stores meanwhile", stores.into_inner());
    report
}
