//! The kernel reads and writes pages that are on their way, on behalf of the program itself and of
//! another process.

use crate::common::{self, Options, Random, Report, mix};
use crate::forks::{Verdict, exit, make_child};
use crate::memory::{Field, LANES, PAGE, Region, errno, word_at};
use crate::mover::{Mover, Traffic};
use std::fs::{File, OpenOptions};
use std::ops::Range;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::sync::atomic::{AtomicU64, Ordering};

/// Pages that belong to each of the parts below.
const PART: u64 = 128;
/// Most bytes at once through a pipe, which holds 64 KiB.
pub const MOST: u64 = 8 * PAGE;

/// What went through the kernel.
#[derive(Default)]
struct Met {
    reads: AtomicU64,
    writes: AtomicU64,
    direct: AtomicU64,
    remote: AtomicU64,
    in_window: AtomicU64,
}

pub fn pipe() -> [OwnedFd; 2] {
    let mut ends = [0; 2];
    // SAFETY: two places for two descriptors.
    if unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) } != 0 {
        common::fail(&format!("pipe: {}", std::io::Error::last_os_error()));
    }
    // SAFETY: new descriptors that nobody else owns.
    ends.map(|end| unsafe { OwnedFd::from_raw_fd(end) })
}

pub fn assert_whole(call: &str, done: isize, wanted: u64) {
    if done != wanted as isize {
        common::fail(&format!(
            "{call} answers {done} of {wanted}, error {}",
            errno()
        ));
    }
}

/// A random piece of a range, in whole words, at most [`MOST`] bytes.
pub fn piece(range: &Range<u64>, random: &mut Random) -> Range<u64> {
    let words = 1 + random.below(MOST / 8);
    let start = range.start + random.below((range.end - range.start) / 8 - words) * 8;
    start..start + words * 8
}

pub fn fill(range: &Range<u64>, tag: u64) {
    for at in range.clone().step_by(8) {
        word_at(at).store(mix(at ^ tag), Ordering::Relaxed);
    }
}

pub fn check(range: &Range<u64>, tag: u64) {
    for at in range.clone().step_by(8) {
        let (expected, found) = (mix(at ^ tag), word_at(at).load(Ordering::Relaxed));
        if found != expected {
            common::wrong(at, expected, found);
        }
    }
}

/// `write` from the range into a pipe, and `read` from there into the range.
fn through_pipe(range: &Range<u64>, traffic: &Traffic, met: &Met, seed: u64) {
    let mut random = Random::new(seed ^ 0xA1);
    let [out, into] = pipe();
    let mut buffer = vec![0u64; (MOST / 8) as usize];
    while !traffic.stopped() {
        let part = piece(range, &mut random);
        let bytes = part.end - part.start;
        let tag = random.next();
        fill(&part, tag);
        let window = traffic.window();
        // SAFETY: the part is mapped and this thread's own.
        let sent = unsafe { libc::write(into.as_raw_fd(), part.start as *const _, bytes as usize) };
        assert_whole("write from pages on their way", sent, bytes);
        // SAFETY: the buffer has room for so many.
        let came =
            unsafe { libc::read(out.as_raw_fd(), buffer.as_mut_ptr().cast(), bytes as usize) };
        assert_whole("read", came, bytes);
        for (at, &found) in part.clone().step_by(8).zip(&buffer) {
            if found != mix(at ^ tag) {
                common::fail(&format!(
                    "write sent {found:#x} from {at:#x}, not {:#x}",
                    mix(at ^ tag)
                ));
            }
        }
        met.writes.fetch_add(1, Ordering::Relaxed);
        let tag = random.next();
        for (at, word) in part.clone().step_by(8).zip(&mut buffer) {
            *word = mix(at ^ tag);
        }
        // SAFETY: as above, the other way.
        let sent = unsafe { libc::write(into.as_raw_fd(), buffer.as_ptr().cast(), bytes as usize) };
        assert_whole("write", sent, bytes);
        // SAFETY: as above.
        let came = unsafe { libc::read(out.as_raw_fd(), part.start as *mut _, bytes as usize) };
        assert_whole("read into pages on their way", came, bytes);
        let open = window % 2 == 1 || window != traffic.window();
        met.in_window.fetch_add(u64::from(open), Ordering::Relaxed);
        check(&part, tag);
        met.reads.fetch_add(1, Ordering::Relaxed);
    }
}

/// `O_DIRECT`: the device writes into the pages.
fn direct(file: &File, range: &Range<u64>, traffic: &Traffic, met: &Met, seed: u64) {
    let mut random = Random::new(seed ^ 0xA3);
    let pages = (range.end - range.start) / PAGE;
    while !traffic.stopped() {
        let count = 1 + random.below(8);
        let start = range.start + random.below(pages - count) * PAGE;
        fill(&(start..start + count * PAGE), random.next());
        // SAFETY: the pages are mapped and this thread's own.
        let came = unsafe {
            libc::pread(
                file.as_raw_fd(),
                start as *mut _,
                (count * PAGE) as usize,
                0,
            )
        };
        assert_whole("direct read", came, count * PAGE);
        for offset in (0..count * PAGE).step_by(8) {
            let found = word_at(start + offset).load(Ordering::Relaxed);
            if found != mix(offset) {
                common::wrong(start + offset, mix(offset), found);
            }
        }
        met.direct.fetch_add(1, Ordering::Relaxed);
    }
}

/// A file for direct reads, where the file system has them: its words are known.
fn direct_file() -> Result<File, String> {
    let made = tempfile::NamedTempFile::new();
    let path = made.map_err(|error| error.to_string())?.into_temp_path();
    let text: Vec<u8> = (0..8 * PAGE)
        .step_by(8)
        .flat_map(|at| mix(at).to_ne_bytes())
        .collect();
    let opened = std::fs::write(&path, text).and_then(|()| {
        OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_DIRECT)
            .open(&path)
    });
    let file = opened.map_err(|error| format!("direct reads in {}: {error}", path.display()))?;
    let region = Region::new(PAGE, false);
    // SAFETY: a page of this thread's own.
    let page =
        unsafe { std::slice::from_raw_parts_mut(region.range().start as *mut u8, PAGE as usize) };
    file.read_at(page, 0)
        .map_err(|error| format!("direct reads: {error}"))?;
    Ok(file)
}

/// In a child: reads its parent's memory over and over.
fn spy(parent: i32, range: &Range<u64>, verdict: &Verdict, stop: &AtomicU64) -> ! {
    let mut random = Random::new(parent as u64);
    let mut buffer = [0u64; 512];
    while stop.load(Ordering::Relaxed) == 0 {
        let pages = (range.end - range.start) / PAGE;
        let at = range.start + random.below(pages) * PAGE;
        let local = libc::iovec {
            iov_base: buffer.as_mut_ptr().cast(),
            iov_len: PAGE as usize,
        };
        let remote = libc::iovec {
            iov_base: at as *mut _,
            iov_len: PAGE as usize,
        };
        // SAFETY: the buffer is a page long.
        let came = unsafe { libc::process_vm_readv(parent, &local, 1, &remote, 1, 0) };
        if came != PAGE as isize {
            verdict.note(at, PAGE, came as u64);
            exit(1);
        }
        for word in (LANES - 1..512).step_by(LANES as usize) {
            let (expected, found) = (
                crate::common::value(at + word * 8, 0),
                buffer[word as usize],
            );
            if found != expected {
                verdict.note(at + word * 8, expected, found);
                exit(1);
            }
        }
        verdict.look_done();
    }
    exit(0)
}

pub fn run(options: &Options) -> Report {
    let mut report = Report::new("kernel");
    // Parts of their own for pipe and direct reads, and memory that another process reads.
    let region = Region::new(2 * PART * PAGE, options.huge);
    fill(&region.range(), 0);
    let start = region.range().start;
    let part = |index: u64| start + index * PART * PAGE..start + (index + 1) * PART * PAGE;
    let field = Field::new(PART * PAGE, options.huge, 1);
    let verdict = Verdict::new();
    let stop = Verdict::new().flag();
    let own = std::process::id() as i32;
    let child = make_child(true);
    if child == 0 {
        spy(own, &field.region.range(), verdict, stop);
    }
    let file = direct_file();
    if let Err(why) = &file {
        report.not_run(why.clone());
    }
    let mut mover = Mover::new(options, 4, None);
    let traffic = std::sync::Arc::clone(&mover.traffic);
    let met = Met::default();
    std::thread::scope(|scope| {
        let (traffic, met, file) = (&traffic, &met, &file);
        let seed = options.seed;
        scope.spawn(move || through_pipe(&part(0), traffic, met, seed));
        if let Ok(file) = file {
            scope.spawn(move || direct(file, &part(1), traffic, met, seed));
        }
        let enough = || {
            let least = options.rounds;
            let at_least = |count: &AtomicU64| count.load(Ordering::Relaxed) >= least;
            at_least(&met.reads)
                && (file.is_err() || at_least(&met.direct))
                && verdict.checked() >= least
                && at_least(&met.in_window)
        };
        while !enough() {
            verdict.assert_good("a process that reads this one's memory");
            mover.once(&region.range());
            mover.once(&field.region.range());
        }
        traffic.stop();
    });
    stop.store(1, Ordering::Relaxed);
    let mut status = 0;
    // SAFETY: a child of this process, and a place for its status.
    unsafe { libc::waitpid(child, &raw mut status, 0) };
    verdict.assert_good("a process that reads this one's memory");
    field.verify();
    let tally = mover.finish();
    met.remote.store(verdict.checked(), Ordering::Relaxed);
    for (name, count) in [
        ("read(2) into the range", met.reads),
        ("write(2) from the range", met.writes),
        ("process_vm_readv", met.remote),
        ("reads and writes with a window open", met.in_window),
    ] {
        report.met(name, count.into_inner());
    }
    if file.is_ok() {
        report.met("direct reads", met.direct.into_inner());
    }
    tally.report(&mut report);
    report
}
