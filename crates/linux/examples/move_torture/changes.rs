//! A thread changes its mapping while it is moved: it must see what it would see without a mover.

use crate::common::{self, Options, Random, Report, mix};
use crate::memory::{HUGE, MADV_COLLAPSE, PAGE, advise, errno, map, map_if_free, unmap, word_at};
use crate::mover::{Mover, Traffic};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

const PAGES: u64 = 768;
const BYTES: u64 = PAGES * PAGE;
/// Words that are looked at in every page, after every change; all are now and then.
const PROBES: [u64; 4] = [0, 100, 317, 511];

/// The changes, each with what it leaves.
const CHANGES: [&str; 14] = [
    "munmap and mmap",
    "mmap over",
    "mremap",
    "mremap, page by page",
    "mremap there and back",
    "mprotect",
    "MADV_DONTNEED",
    "MADV_FREE",
    "mlock",
    "MADV_NOHUGEPAGE",
    "MADV_HUGEPAGE",
    "MADV_COLLAPSE",
    "MADV_PAGEOUT",
    "stores",
];

/// A mapping whose content is known page by page.
struct Mapping {
    start: u64,
    /// What each page holds: 0 stands for zeros.
    tags: Vec<u64>,
    random: Random,
    next_tag: u64,
}

/// What a word of a page with this tag holds.
fn content(tag: u64, word: u64) -> u64 {
    if tag == 0 { 0 } else { mix(tag << 16 ^ word) }
}

impl Mapping {
    fn new(options: &Options, stream: u64) -> Self {
        let mut mapping = Self {
            start: place(),
            tags: vec![0; PAGES as usize],
            random: Random::new(options.seed ^ stream << 24),
            next_tag: stream << 40,
        };
        mapping.advise_size(options);
        mapping.store(0..PAGES);
        mapping
    }

    fn advise_size(&self, options: &Options) {
        let size = if options.huge {
            libc::MADV_HUGEPAGE
        } else {
            libc::MADV_NOHUGEPAGE
        };
        let _ = advise(&(self.start..self.start + BYTES), size);
    }

    fn word(&self, page: u64, word: u64) -> &'static AtomicU64 {
        word_at(self.start + page * PAGE + word * 8)
    }

    fn range(&self, pages: &Range<u64>) -> Range<u64> {
        self.start + pages.start * PAGE..self.start + pages.end * PAGE
    }

    /// New content.
    fn store(&mut self, pages: Range<u64>) {
        for page in pages {
            self.next_tag += 1;
            self.tags[page as usize] = self.next_tag;
            for word in 0..PAGE / 8 {
                self.word(page, word)
                    .store(content(self.next_tag, word), Ordering::Relaxed);
            }
        }
    }

    fn check(&mut self, change: &str) {
        let whole = self.random.one_in(8);
        for page in 0..PAGES {
            let all = 0..if whole { PAGE / 8 } else { 0 };
            for word in PROBES.into_iter().chain(all) {
                let expected = content(self.tags[page as usize], word);
                let found = self.word(page, word).load(Ordering::Relaxed);
                if found != expected {
                    common::phase(&format!("changes: after {change}"));
                    common::wrong(
                        self.start + page * PAGE + word * 8,
                        expected,
                        self.word(page, word).load(Ordering::Relaxed),
                    );
                }
            }
        }
    }

    fn some_pages(&mut self) -> Range<u64> {
        let most = 1 << self.random.below(9);
        let count = 1 + self.random.below(most);
        let start = self.random.below(PAGES - count + 1);
        start..start + count
    }

    /// Makes a change; `false`: the kernel did not let it.
    fn change(&mut self, options: &Options, change: &str, published: &AtomicU64) -> bool {
        let pages = self.some_pages();
        let range = self.range(&pages);
        let bytes = (range.end - range.start) as usize;
        let tags = pages.start as usize..pages.end as usize;
        let start = range.start as *mut libc::c_void;
        match change {
            "munmap and mmap" => {
                unmap(&range);
                if map_if_free(&range) {
                    self.tags[tags].fill(0);
                } else {
                    // Another thread of this process has mapped something there meanwhile.
                    unmap(&(self.start..range.start));
                    unmap(&(range.end..self.start + BYTES));
                    self.start = place();
                    self.tags.fill(0);
                    published.store(self.start, Ordering::SeqCst);
                }
                self.advise_size(options);
            }
            "mmap over" => {
                map(Some(range.start), bytes as u64);
                self.advise_size(options);
                self.tags[tags].fill(0);
            }
            "mremap" => {
                // SAFETY: this thread's mapping, which it uses at its new place from now on.
                let moved = unsafe {
                    let old = self.start as *mut libc::c_void;
                    libc::mremap(old, BYTES as usize, BYTES as usize, libc::MREMAP_MAYMOVE)
                };
                if moved == libc::MAP_FAILED {
                    return false;
                }
                self.start = moved as u64;
                published.store(self.start, Ordering::SeqCst);
            }
            "mremap, page by page" => {
                let to = place();
                (0..PAGES).for_each(|page| remap(self.start + page * PAGE, to + page * PAGE));
                unmap(&(self.start..self.start + BYTES));
                self.start = to;
                published.store(to, Ordering::SeqCst);
            }
            "mremap there and back" => {
                let other = map(None, bytes as u64);
                let offsets = || (0..bytes as u64).step_by(PAGE as usize);
                offsets().for_each(|at| remap(range.start + at, other + at));
                offsets().for_each(|at| remap(other + at, range.start + at));
                unmap(&(other..other + bytes as u64));
            }
            "mprotect" => {
                // SAFETY: this thread alone writes to its mapping, and not while it may not.
                let protect = |access| unsafe { libc::mprotect(start, bytes, access) };
                let done = protect(libc::PROT_READ);
                self.check("mprotect to read only");
                let undone = protect(libc::PROT_READ | libc::PROT_WRITE);
                return (done, undone) == (0, 0);
            }
            "MADV_DONTNEED" => {
                if advise(&range, libc::MADV_DONTNEED).is_err() {
                    return false;
                }
                self.tags[tags].fill(0);
            }
            "MADV_FREE" => {
                if advise(&range, libc::MADV_FREE).is_err() {
                    return false;
                }
                // Old content or zeros; what is stored after it must stay.
                self.store(pages);
            }
            "mlock" => {
                // SAFETY: a mapping of this thread; contents do not change.
                let done = unsafe { libc::mlock(start, bytes) };
                self.check("mlock");
                // SAFETY: as above.
                let undone = unsafe { libc::munlock(start, bytes) };
                return (done, undone) == (0, 0);
            }
            "MADV_NOHUGEPAGE" => return advise(&range, libc::MADV_NOHUGEPAGE).is_ok(),
            "MADV_HUGEPAGE" => return advise(&range, libc::MADV_HUGEPAGE).is_ok(),
            "MADV_COLLAPSE" => return advise(&range, MADV_COLLAPSE).is_ok(),
            "MADV_PAGEOUT" => return advise(&range, libc::MADV_PAGEOUT).is_ok(),
            _ => self.store(pages),
        }
        true
    }
}

/// Addresses for a mapping.
fn place() -> u64 {
    map(None, BYTES + HUGE).next_multiple_of(HUGE)
}

/// A page to another place, in place of what is there. A single page never has parts of several
/// mappings, which the kernel refuses to move together while one of them is registered. The old
/// place stays mapped, and empty, so that nothing else comes there.
fn remap(from: u64, to: u64) {
    let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED | libc::MREMAP_DONTUNMAP;
    let bytes = PAGE as usize;
    // SAFETY: both ranges are mappings of the calling thread, which uses the new one from now on.
    let moved =
        unsafe { libc::mremap(from as *mut _, bytes, bytes, flags, to as *mut libc::c_void) };
    if moved == libc::MAP_FAILED {
        common::fail(&format!("mremap of a page fails with {}", errno()));
    }
}

/// How the changes fared.
#[derive(Default)]
struct Met {
    done: BTreeMap<&'static str, u64>,
    in_window: BTreeMap<&'static str, u64>,
    refused: BTreeMap<&'static str, u64>,
}

fn work(options: &Options, published: &AtomicU64, mapping: &mut Mapping, traffic: &Traffic) -> Met {
    let mut met = Met::default();
    // However slow the machine: some change shall meet a window.
    let patience = Instant::now() + Duration::from_secs(60);
    let mut rounds = 0;
    // The changes of this round still to be made: each round has all, in an order of its own.
    let mut ahead = Vec::new();
    loop {
        if ahead.is_empty() {
            let unmet = met.in_window.values().all(|&count| count == 0);
            if rounds >= options.rounds && !(unmet && Instant::now() < patience) {
                break;
            }
            ahead.extend(CHANGES);
            rounds += 1;
        }
        let change = ahead.swap_remove(mapping.random.below(ahead.len() as u64) as usize);
        // Slow beginnings of a discard that is told already: the mover must not bring back pages.
        let lazy = options.threads > 1 && mapping.random.one_in(4);
        if lazy {
            be_nice(19);
        }
        // At a random moment of a request, often of its window.
        for _ in 0..mapping.random.below(200) {
            if traffic.window() % 2 == 1 && mapping.random.one_in(2) {
                break;
            }
            std::thread::yield_now();
        }
        let window = traffic.window();
        let done = mapping.change(options, change, published);
        let overlapped = window % 2 == 1 || window != traffic.window();
        mapping.check(change);
        if lazy {
            be_nice(0);
        }
        if done {
            *met.done.entry(change).or_default() += 1;
            *met.in_window.entry(change).or_default() += u64::from(overlapped);
        } else {
            *met.refused.entry(change).or_default() += 1;
        }
        if mapping.random.one_in(4) {
            mapping.store(0..PAGES);
        }
        common::tick();
    }
    met
}

/// This thread's share of its CPU; going back needs privilege, without which it stays low.
fn be_nice(nice: i32) {
    // SAFETY: integers; 0 stands for the calling thread.
    unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, nice) };
}

pub fn run(options: &Options) -> Report {
    let mut report = Report::new("changes");
    let mut mapping = Mapping::new(options, 1);
    let mut mover = Mover::new(options, 3, None);
    // A backend leaves alone for a while what was thrown away near it.
    mover.requests_per_backend = 8;
    let traffic = std::sync::Arc::clone(&mover.traffic);
    let published = AtomicU64::new(mapping.start);
    let mut met = Met::default();
    std::thread::scope(|scope| {
        let (traffic, published, mapping, met) = (&traffic, &published, &mut mapping, &mut met);
        scope.spawn(move || {
            *met = work(options, published, mapping, traffic);
            traffic.stop();
        });
        // Threads that only take the CPU, so that others lose it at bad moments.
        for _ in 0..options.threads.min(3) - 1 {
            scope.spawn(|| {
                while !traffic.stopped() {
                    std::hint::spin_loop();
                }
            });
        }
        while !traffic.stopped() {
            let start = published.load(Ordering::SeqCst);
            mover.once(&(start..start + BYTES));
        }
    });
    mapping.check("all");
    let tally = mover.finish();
    mapping.check("the end of the mover");
    for change in CHANGES {
        let count = |of: &BTreeMap<&str, u64>| of.get(change).copied().unwrap_or(0);
        // No kernel need have these.
        if matches!(change, "MADV_COLLAPSE" | "MADV_PAGEOUT" | "MADV_FREE") && count(&met.done) == 0
        {
            report.not_run(format!("{change}: this kernel refused it always"));
            continue;
        }
        report.met(change, count(&met.done));
        report.count(
            &format!("{change} with a window open"),
            count(&met.in_window),
        );
        if count(&met.refused) > 0 {
            report.count(&format!("{change}: refused"), count(&met.refused));
        }
    }
    report.met("changes with a window open", met.in_window.values().sum());
    tally.report(&mut report);
    report
}
