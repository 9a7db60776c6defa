//! Children are made at every step of an exchange; each must have what its parent had.

use crate::common::{self, Options, Random, Report};
use crate::memory::{Field, LANES, MADV_COLLAPSE, PAGE, address, advise, word_at};
use crate::mover::{Mover, Traffic};
use crate::writers::{Met, write};
use hither_linux::backend::swap::Step;
use std::os::fd::{FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Steps at which children are made. The lock is held at some of them: there the mover waits for
/// the beginning of a fork only, which ends when the lock is free.
const STEPS: [Step; 9] = Step::ALL;
/// Children that may live at once.
const MOST_CHILDREN: usize = 6;

/// A child's verdict, in memory that it shares with its parent.
#[derive(Debug)]
#[repr(C)]
pub struct Verdict {
    checked: AtomicU64,
    wrong: AtomicU32,
    address: AtomicU64,
    expected: AtomicU64,
    found: AtomicU64,
}

impl Verdict {
    /// In fresh shared memory, which lives as long as this process.
    pub fn new() -> &'static Self {
        // SAFETY: a fresh shared mapping, zeroed, larger than the verdict, never unmapped; zeros
        // are a valid verdict.
        unsafe {
            let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS;
            let access = libc::PROT_READ | libc::PROT_WRITE;
            let start = libc::mmap(std::ptr::null_mut(), PAGE as usize, access, flags, -1, 0);
            if start == libc::MAP_FAILED {
                common::fail("no shared memory for the verdicts of children");
            }
            &*start.cast()
        }
    }

    /// In a child: looks at all memory, and notes what is wrong.
    pub fn look(&self, field: &Field, least: &[u32]) -> bool {
        self.look_done();
        let Err([address, expected, found]) = field.check_copy(least) else {
            return true;
        };
        self.note(address, expected, found);
        false
    }

    /// In a child: this is wrong.
    pub fn note(&self, address: u64, expected: u64, found: u64) {
        if self.wrong.fetch_add(1, Ordering::Relaxed) == 0 {
            self.address.store(address, Ordering::Relaxed);
            self.expected.store(expected, Ordering::Relaxed);
            self.found.store(found, Ordering::Relaxed);
        }
    }

    /// In a child: something was looked at and was right.
    pub fn look_done(&self) {
        self.checked.fetch_add(1, Ordering::Relaxed);
    }

    /// A number that parent and children share.
    pub fn flag(&self) -> &AtomicU64 {
        &self.checked
    }

    /// In the parent.
    pub fn assert_good(&self, what: &str) {
        if self.wrong.load(Ordering::Acquire) > 0 {
            let address = self.address.load(Ordering::Relaxed);
            common::fail(&format!(
                "{what} has at {address:#x} not {:#018x} or later, but {:#018x}; its parent has \
                 {:#018x}",
                self.expected.load(Ordering::Relaxed),
                self.found.load(Ordering::Relaxed),
                word_at(address).load(Ordering::Relaxed)
            ));
        }
    }

    pub fn checked(&self) -> u64 {
        self.checked.load(Ordering::Relaxed)
    }
}

/// A child by the system call itself, of which the C library knows nothing, or by its `fork`.
/// Returns 0 in the child, which must end by `_exit` and may neither allocate nor lock.
pub fn make_child(raw: bool) -> i32 {
    // SAFETY: without flags beside the signal the call takes no pointers. The child keeps to what
    // is said above.
    let child = unsafe {
        if raw {
            libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) as i32
        } else {
            libc::fork()
        }
    };
    if child < 0 {
        common::fail(&format!("fork: {}", std::io::Error::last_os_error()));
    }
    child
}

/// Ends a child.
pub fn exit(code: i32) -> ! {
    // SAFETY: ends this process; nothing of it is used any more.
    unsafe { libc::_exit(code) }
}

/// In a child: lives for a while with stores of its own, which are nobody else's business.
fn live_on(field: &Field, duration_us: i64) -> bool {
    let pages = field.pages();
    for page in 0..pages {
        let word = field.region.word(page * (PAGE / 8) + LANES - 1);
        word.store(!address(word), Ordering::Relaxed);
    }
    let nap = libc::timespec {
        tv_sec: 0,
        tv_nsec: duration_us * 1000,
    };
    // SAFETY: a valid time; the rest is not asked for.
    unsafe { libc::nanosleep(&nap, std::ptr::null_mut()) };
    (0..pages).all(|page| {
        let word = field.region.word(page * (PAGE / 8) + LANES - 1);
        word.load(Ordering::Relaxed) == !address(word)
    })
}

/// Descriptors of this process at most, so that it takes no time to use all of them up.
const MOST_DESCRIPTORS: libc::rlim_t = 256;

/// Takes all descriptors that this process may open, and gives them back: the kernel cannot tell of
/// a fork then, as a child comes with a descriptor.
#[derive(Default)]
struct Shortage {
    taken: Vec<OwnedFd>,
}

impl Shortage {
    fn begin(&mut self) {
        // SAFETY: copies of standard error, each of them owned here.
        self.taken.extend(std::iter::from_fn(|| unsafe {
            let copy = libc::fcntl(2, libc::F_DUPFD_CLOEXEC, 0);
            (copy >= 0).then(|| OwnedFd::from_raw_fd(copy))
        }));
    }
}

/// Lets this process open so many descriptors; returns the limit before.
fn limit_descriptors(most: libc::rlim_t) -> libc::rlim_t {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: a valid place, and a limit not above the hard one.
    unsafe {
        libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit);
        let before = limit.rlim_cur;
        limit.rlim_cur = most.min(limit.rlim_max);
        libc::setrlimit(libc::RLIMIT_NOFILE, &limit);
        before
    }
}

/// Where the mover and the thread that forks meet.
#[derive(Default)]
struct Meeting {
    /// No descriptor is to be had.
    short: AtomicBool,
    /// The step at which a child is wanted, from 1 on; 0: none.
    wanted: AtomicU32,
    /// The fork has begun.
    begun: AtomicBool,
    /// Children made at each step.
    by_step: [AtomicU64; STEPS.len()],
    /// Children made without a descriptor to be had, from before until after.
    by_shortage: AtomicU64,
}

impl Meeting {
    /// Is a child wanted at this step that no child was made at yet?
    fn is_new(&self, step: Step) -> bool {
        let mut steps = STEPS.iter().zip(&self.by_step);
        steps.any(|(known, count)| *known == step && count.load(Ordering::Relaxed) == 0)
    }

    fn has_met_all(&self) -> bool {
        let mut counts = self.by_step.iter().chain([&self.by_shortage]);
        counts.all(|count| count.load(Ordering::Relaxed) > 0)
    }

    fn hold(&self, step: Step) {
        let index = STEPS.iter().position(|known| *known == step);
        self.begun.store(false, Ordering::SeqCst);
        let wanted = index.map_or(0, |index| index as u32 + 1);
        self.wanted.store(wanted, Ordering::SeqCst);
        let start = Instant::now();
        while !self.begun.load(Ordering::SeqCst) && start.elapsed() < Duration::from_millis(10) {
            std::thread::yield_now();
        }
        if self.begun.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_micros(300));
        }
        self.wanted.store(0, Ordering::SeqCst);
    }
}

/// The thread that forks: what it met.
#[derive(Default)]
struct Forker {
    elsewhere: u64,
    in_window: u64,
    children: Vec<i32>,
    count: u64,
}

impl Forker {
    fn reap(&mut self, most: usize, verdict: &Verdict) {
        while self.children.len() > most {
            let child = self.children.remove(0);
            let mut status = 0;
            // SAFETY: a child of this process, and a valid place for its status.
            let waited = unsafe { libc::waitpid(child, &raw mut status, 0) };
            verdict.assert_good("a child");
            if waited != child || status != 0 {
                common::fail(&format!("child {child} ended with status {status:#x}"));
            }
        }
    }

    fn run(
        &mut self,
        options: &Options,
        field: &Field,
        meeting: &Meeting,
        traffic: &Traffic,
        verdict: &Verdict,
    ) {
        let mut random = Random::new(options.seed ^ 0xF0);
        let mut least = Vec::new();
        while !traffic.stopped() {
            let step = meeting.wanted.load(Ordering::SeqCst);
            // Without the kernel's events only forks of the C library are kept out of windows.
            let raw = !options.unprivileged && !random.one_in(4);
            let long = random.one_in(8);
            // At times a fork at any moment, as long as some are still wanted at all steps.
            if step == 0 && !random.one_in(50) {
                std::thread::yield_now();
                continue;
            }
            field.counts(&mut least);
            let window = traffic.window();
            let short = meeting.short.load(Ordering::SeqCst);
            meeting.begun.store(true, Ordering::SeqCst);
            let child = make_child(raw);
            if child == 0 {
                let good = verdict.look(field, &least) && (!long || live_on(field, 20_000));
                exit(i32::from(!good));
            }
            self.in_window += u64::from(window % 2 == 1);
            let was_short = short && meeting.short.load(Ordering::SeqCst);
            let count = u64::from(was_short);
            meeting.by_shortage.fetch_add(count, Ordering::Relaxed);
            self.count += 1;
            if step == 0 {
                self.elsewhere += 1;
            } else {
                meeting.by_step[step as usize - 1].fetch_add(1, Ordering::Relaxed);
            }
            self.children.push(child);
            self.reap(MOST_CHILDREN, verdict);
            // One child for each time that one is wanted.
            while step != 0 && meeting.wanted.load(Ordering::SeqCst) == step && !traffic.stopped() {
                std::thread::yield_now();
            }
        }
        self.reap(0, verdict);
    }
}

pub fn run(options: &Options) -> Report {
    let mut report = Report::new("forks");
    let threads = options.threads.min(3);
    let bytes = if options.huge { 4 << 20 } else { 1 << 20 };
    let field = Field::new(bytes, options.huge, threads);
    let verdict = Verdict::new();
    let meeting = Arc::new(Meeting::default());
    let seldom = AtomicU64::new(0);
    let inside = Arc::clone(&meeting);
    let shortage = Mutex::new(Shortage {
        taken: Vec::with_capacity(MOST_DESCRIPTORS as usize),
    });
    let descriptors = limit_descriptors(MOST_DESCRIPTORS);
    let mut mover = Mover::new(
        options,
        2,
        Some(Arc::new(move |step| {
            // For a whole window now and then.
            if step == Step::Away && common::mix(!seldom.load(Ordering::Relaxed)).is_multiple_of(8)
            {
                shortage.lock().unwrap().begin();
                inside.short.store(true, Ordering::SeqCst);
                inside.hold(Step::Away);
            }
            if step == Step::Closed && inside.short.swap(false, Ordering::SeqCst) {
                shortage.lock().unwrap().taken.clear();
            }
            // Every step once, then seldom: most of the time the mover is to move.
            let turn = seldom.fetch_add(1, Ordering::Relaxed);
            let often = if inside.is_new(step) { 4 } else { 48 };
            if common::mix(turn).is_multiple_of(often) {
                inside.hold(step);
            }
        })),
    );
    let traffic = Arc::clone(&mover.traffic);
    let met = Met::default();
    let wanted = options.rounds * STEPS.len() as u64;
    let mut forker = Forker::default();
    std::thread::scope(|scope| {
        for lane in 0..field.lanes {
            let (field, traffic, met) = (&field, &traffic, &met);
            scope.spawn(move || write(field, lane, traffic, met, options.seed));
        }
        let (field, traffic, meeting, forker) = (&field, &traffic, &meeting, &mut forker);
        scope.spawn(move || forker.run(options, field, meeting, traffic, verdict));
        let mut forks = 0;
        // However slow the machine: every step shall be met. Without privilege forks wait elsewhere.
        let patience = Instant::now() + Duration::from_secs(120);
        while verdict.checked() < wanted
            || (!options.unprivileged && !meeting.has_met_all() && Instant::now() < patience)
        {
            // Pages shared with children stay where they are: make them this process's own again.
            if forks != verdict.checked() {
                forks = verdict.checked();
                field.touch();
                if options.huge {
                    let _ = advise(&field.region.range(), MADV_COLLAPSE);
                }
            }
            mover.once(&field.region.range());
        }
        traffic.stop();
    });
    field.verify();
    let tally = mover.finish();
    limit_descriptors(descriptors);
    field.verify();
    for (count, step) in meeting.by_step.iter().zip(STEPS) {
        let count = count.load(Ordering::Relaxed);
        let name = format!("forks at {step:?}");
        // Whoever forks waits for the end of the window there.
        if options.unprivileged {
            report.count(&name, count);
        } else {
            report.met(&name, count);
        }
    }
    report.count("forks at other moments", forker.elsewhere);
    report.met("forks", forker.count);
    report.met("forks begun in windows", forker.in_window);
    if !options.unprivileged {
        report.met("forks that fell into windows", tally.forks);
        let count = meeting.by_shortage.load(Ordering::Relaxed);
        report.met("forks without a descriptor to be had", count);
    }
    report.met("children with all they should have", verdict.checked());
    report.met("stores in flight", met.in_flight.into_inner());
    tally.report(&mut report);
    report
}
