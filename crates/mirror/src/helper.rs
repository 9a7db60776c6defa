//! The helper: a thread of the shim's in each process that has mapped a file which may get copies.
//!
//! It sleeps most of the time. A broken lease and a new mapping wake it by a signal. Else it looks, in
//! *windows* of [`WINDOW`]: quickly while a file is new, then ever more seldom, and never for more than
//! one part in [`COST_SHARE`] of the time. It gives up copies before it does anything else.

use crate::copy;
use crate::maps;
use crate::nodes::{FileResidency, Nodes};
use crate::start::{plan, reports};
use crate::sys::{self, Blocked};
use crate::table::{self, HELPER, MOST_RANGES, Range};
use crate::watched::Watched;
use hither_core::mirror::chunks::HOT_OF;
use hither_core::mirror::report::{FileReport, ProcessReport};
use hither_core::mirror::{Plan, is_short};
use std::fs;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// A program that has just mapped a file first does something with it.
const SETTLE: Duration = Duration::from_millis(20);
/// In which what is used is noted.
const WINDOW: Duration = Duration::from_millis(20);
/// Between the first windows.
const QUICK: Duration = Duration::from_millis(5);
/// Between later ones, at first and at last.
const SLOW: Duration = Duration::from_millis(500);
const SLOWEST: Duration = Duration::from_secs(8);
/// Of the time one part in so many at most is spent on looking.
const COST_SHARE: u32 = 50;
/// Between questions whether a file without a lease was written.
const POLL: Duration = Duration::from_millis(100);
/// Looks at another node before copies follow.
const MOVED_LOOKS: u32 = 3;
/// How long the end of the program waits for the helper to remove its mirrors.
const LEAVE_WAIT: Duration = Duration::from_millis(200);

/// 0: none; 1: there is one, or it starts; 2: it shall leave; 3: it has left. By exchanges: who finds 0
/// starts it, the program's end asks, the helper answers.
static STATE: AtomicU32 = AtomicU32::new(NONE);
const NONE: u32 = 0;
const HERE: u32 = 1;
const LEAVE: u32 = 2;
const LEFT: u32 = 3;

/// Starts it, unless there is one.
pub fn spawn() {
    if (STATE.compare_exchange(NONE, HERE, Ordering::AcqRel, Ordering::Acquire)).is_err() {
        return;
    }
    // The thread inherits that all signals are blocked.
    let _signals = Blocked::all();
    let thread = std::thread::Builder::new().name("hither-mirror".to_owned());
    if thread.stack_size(256 << 10).spawn(run).is_err() {
        STATE.store(NONE, Ordering::Release);
    }
}

/// In a forked child: there is none.
pub fn forget() {
    STATE.store(NONE, Ordering::Release);
}

/// At the program's end: mirrors that nobody else uses are removed.
pub fn leave() {
    if (STATE.compare_exchange(HERE, LEAVE, Ordering::AcqRel, Ordering::Acquire)).is_err() {
        return;
    }
    let start = Instant::now();
    while STATE.load(Ordering::Acquire) == LEAVE && start.elapsed() < LEAVE_WAIT {
        match HELPER.load(Ordering::Acquire) {
            0 => {}
            thread => sys::wake(thread),
        }
        std::thread::sleep(Duration::from_micros(200));
    }
}

/// Everything the helper knows.
struct Helper {
    plan: &'static Plan,
    nodes: Nodes,
    files: Vec<Watched>,
    /// Of files that are mapped no more.
    past: Vec<FileReport>,
    times: Vec<(i32, u64)>,
    /// Where the process runs, as far as acted upon.
    node: Option<u32>,
    other_looks: u32,
    look_us: u64,
    is_open: bool,
    /// What the beginning of the window took.
    open_cost: Duration,
    look_count: u32,
    pause: Duration,
    next: Instant,
    told: String,
}

fn run() {
    let Some(plan) = plan() else { return };
    // What it opens is nobody else's, or nothing is opened.
    if sys::own_descriptors().is_ok() {
        HELPER.store(sys::thread(), Ordering::Release);
        // Most children of a fork become another program, and short programs end, before this is over.
        sys::wait(SETTLE);
    }
    if HELPER.load(Ordering::Acquire) != 0 && STATE.load(Ordering::Acquire) == HERE {
        let mut helper = Helper::new(plan);
        if helper.nodes.count() > 1 || plan.always {
            copy::reap(0);
            helper.work();
        } else {
            helper.stand_aside("this machine has one node");
        }
    }
    HELPER.store(0, Ordering::Release);
    STATE.store(LEFT, Ordering::Release);
}

impl Helper {
    fn new(plan: &'static Plan) -> Self {
        Self {
            plan,
            nodes: Nodes::read(),
            files: Vec::new(),
            past: Vec::new(),
            times: Vec::new(),
            node: None,
            other_looks: 0,
            look_us: 0,
            is_open: false,
            open_cost: Duration::ZERO,
            look_count: 0,
            pause: SLOW,
            next: Instant::now(),
            told: String::new(),
        }
    }

    fn work(&mut self) {
        loop {
            self.follow();
            self.files.iter_mut().for_each(Watched::check);
            if STATE.load(Ordering::Acquire) == LEAVE {
                self.tell();
                // Other threads may still read. What children have left by _exit goes, too.
                self.files.iter_mut().for_each(Watched::end);
                copy::reap(0);
                return;
            }
            if let Some(node) = self.node {
                // What was too much for one turn.
                for file in self.files.iter_mut().filter(|file| file.is_pending()) {
                    file.act(self.plan, node);
                }
            }
            if Instant::now() >= self.next {
                self.look();
            }
            self.tell();
            if self.files.iter().any(Watched::is_pending) {
                continue;
            }
            let mut limit = self.next.saturating_duration_since(Instant::now());
            if self.files.iter().any(Watched::is_polled) {
                limit = limit.min(POLL);
            }
            if self.files.iter().any(Watched::is_stuck) {
                limit = limit.min(WINDOW);
            }
            sys::wait(limit);
        }
    }

    /// Takes and forgets mappings as the program makes and ends them.
    fn follow(&mut self) {
        let mut ranges: Vec<Range> = Vec::with_capacity(MOST_RANGES);
        table::with(|table| ranges.extend(table.ranges()));
        for range in &ranges {
            if !self.files.iter().any(|file| file.is_of(range)) {
                self.files.push(Watched::new(range));
            }
        }
        let mut has_new = false;
        for file in &mut self.files {
            has_new |= file.follow(&ranges);
        }
        let gone = self.files.extract_if(.., |file| !file.is_mapped());
        self.past.extend(gone.map(|file| file.report.clone()));
        if has_new {
            self.look_count = 0;
            self.pause = SLOW;
            if !self.is_open {
                self.next = self.next.min(Instant::now() + SETTLE);
            }
        }
    }

    /// Begins a window, or ends it and acts.
    fn look(&mut self) {
        let start = Instant::now();
        if self.files.iter().all(Watched::is_hopeless) {
            self.next = start + SLOWEST;
            return;
        }
        if !self.is_open {
            if self.settle_node().is_none() {
                self.next = start + self.slower();
                return;
            }
            let maps = maps::read();
            self.files
                .iter_mut()
                .for_each(|file| file.open_window(&maps));
            self.is_open = true;
            self.open_cost = start.elapsed();
            self.next = start + WINDOW;
            return;
        }
        self.is_open = false;
        let Some(node) = self.node else { return };
        for file in &mut self.files {
            file.close_window(node);
        }
        let cost = self.open_cost + start.elapsed();
        self.look_us += cost.as_micros() as u64;
        if self.files.iter().any(Watched::is_guarded)
            && Nodes::memory(node).is_some_and(|(available, total)| is_short(available, total))
        {
            let why = format!("node {node} runs out of memory");
            for file in &mut self.files {
                file.collapse(&why);
                file.rest();
            }
        }
        let mut has_more = false;
        for file in &mut self.files {
            has_more |= file.act(self.plan, node);
        }
        self.look_count = self.look_count.saturating_add(1);
        let pause = match self.look_count <= HOT_OF {
            true => QUICK,
            false => self.slower(),
        };
        if has_more {
            self.pause = SLOW;
        }
        self.next = Instant::now() + pause.max(cost * COST_SHARE);
    }

    /// The next pause, longer than the last.
    fn slower(&mut self) -> Duration {
        let pause = self.pause;
        self.pause = (pause * 2).min(SLOWEST);
        pause
    }

    /// The node to act for. Copies of another are given up where the process has left it.
    fn settle_node(&mut self) -> Option<u32> {
        let helper = sys::thread();
        let (node, why) = match self.nodes.whereabouts(helper, &mut self.times) {
            FileResidency::On(node) if self.node.is_none_or(|old| old == node) => {
                self.other_looks = 0;
                self.node = Some(node);
                return Some(node);
            }
            FileResidency::On(node) => (Some(node), format!("the process runs on node {node} now")),
            FileResidency::Nowhere(why) => (None, why.to_owned()),
        };
        self.other_looks += 1;
        if self.node.is_some() && self.other_looks < MOVED_LOOKS {
            return self.node;
        }
        for file in &mut self.files {
            file.collapse(&why);
        }
        self.other_looks = 0;
        self.node = node;
        node
    }

    fn stand_aside(&mut self, why: &str) {
        table::with(table::Inner::close);
        self.past.push(FileReport {
            reason: why.to_owned(),
            ..FileReport::default()
        });
        self.tell();
    }

    /// Writes the report, if it is another than before.
    fn tell(&mut self) {
        let Some(folder) = reports() else { return };
        let report = ProcessReport {
            pid: std::process::id(),
            look_us: self.look_us,
            files: (self.past.iter().cloned())
                .chain(self.files.iter().map(|file| file.report.clone()))
                .collect(),
        };
        let text = report.to_string();
        if text != self.told {
            // Whole or not at all.
            let (new, path) = (
                folder.join(format!(".{}", report.pid)),
                folder.join(report.pid.to_string()),
            );
            let _ = fs::write(&new, &text).and_then(|()| fs::rename(&new, &path));
            self.told = text;
        }
    }
}
