//! Pages that the kernel has pinned for io_uring: they stay where they are, and what the kernel
//! writes there later is what the program sees.

use crate::common::{self, Options, Random, Report, mix, tick};
use crate::memory::{HUGE, PAGE, Region, word_at};
use crate::mover::backend;
use hither_core::ids::{NodeId, Pid};
use hither_core::plan::Refusal;
use hither_linux::backend::swap::SwapBackend;
use hither_mover::{Action, Backend, Job, Outcome, Pages, Race};
use std::fs::File;
use std::io::Write;
use std::ops::Range;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};

const PAGES: u64 = 64;
/// `linux/io_uring.h`.
const REGISTER_BUFFERS: libc::c_uint = 0;
const UNREGISTER_BUFFERS: libc::c_uint = 1;
const READ_FIXED: u8 = 4;
const ENTER_GETEVENTS: libc::c_uint = 1;
const OFFSET_SUBMISSION_RING: i64 = 0;
const OFFSET_COMPLETION_RING: i64 = 0x800_0000;
const OFFSET_ENTRIES: i64 = 0x1000_0000;
const RING_BYTES: usize = 4096;

/// `struct io_uring_params`, in words: what is read of it is named below.
#[repr(C)]
#[derive(Default)]
struct Parameters {
    entries: [u32; 2],
    flags: u32,
    thread: [u32; 2],
    features: u32,
    worker: u32,
    reserved: [u32; 3],
    /// Head, tail, mask, count, flags, dropped, array, reserved; address.
    submission: [u32; 10],
    /// Head, tail, mask, count, overflow, entries, flags, reserved; address.
    completion: [u32; 10],
}

/// `struct io_uring_sqe`.
#[repr(C)]
struct Entry {
    operation: u8,
    flags: u8,
    priority: u16,
    descriptor: i32,
    offset: u64,
    address: u64,
    length: u32,
    call_flags: u32,
    user: u64,
    buffer_index: u16,
    personality: u16,
    splice: i32,
    pad: [u64; 2],
}

const _: () = assert!(size_of::<Parameters>() == 120 && size_of::<Entry>() == 64);

/// A ring with one request at a time.
struct Ring {
    descriptor: OwnedFd,
    parameters: Parameters,
    submission: u64,
    completion: u64,
    entries: u64,
}

impl Ring {
    fn new() -> Result<Self, std::io::Error> {
        let mut parameters = Parameters::default();
        // SAFETY: the parameters have the kernel's layout (size checked above).
        let opened = unsafe { libc::syscall(libc::SYS_io_uring_setup, 4, &raw mut parameters) };
        if opened < 0 {
            return Err(std::io::Error::last_os_error());
        }
        // SAFETY: a new descriptor that nobody else owns.
        let descriptor = unsafe { OwnedFd::from_raw_fd(opened as i32) };
        let map = |offset| {
            // SAFETY: a fresh mapping of the ring, which stays mapped to the end.
            let start = unsafe {
                libc::mmap(
                    std::ptr::null_mut(),
                    RING_BYTES,
                    libc::PROT_READ | libc::PROT_WRITE,
                    libc::MAP_SHARED | libc::MAP_POPULATE,
                    descriptor.as_raw_fd(),
                    offset,
                )
            };
            if start == libc::MAP_FAILED {
                Err(std::io::Error::last_os_error())
            } else {
                Ok(start as u64)
            }
        };
        Ok(Self {
            submission: map(OFFSET_SUBMISSION_RING)?,
            completion: map(OFFSET_COMPLETION_RING)?,
            entries: map(OFFSET_ENTRIES)?,
            descriptor,
            parameters,
        })
    }

    fn field(ring: u64, offset: u32) -> &'static AtomicU32 {
        // SAFETY: a word of a ring, which is mapped to the end.
        unsafe { &*((ring + u64::from(offset)) as *const AtomicU32) }
    }

    fn register(&self, range: Option<&Range<u64>>) -> Result<(), std::io::Error> {
        let vector = range.map(|range| libc::iovec {
            iov_base: range.start as *mut _,
            iov_len: (range.end - range.start) as usize,
        });
        let (call, pointer, count) = match &vector {
            Some(vector) => (REGISTER_BUFFERS, std::ptr::from_ref(vector), 1),
            None => (UNREGISTER_BUFFERS, std::ptr::null(), 0),
        };
        let ring = self.descriptor.as_raw_fd();
        // SAFETY: one buffer that is mapped as long as it is registered, or none.
        match unsafe { libc::syscall(libc::SYS_io_uring_register, ring, call, pointer, count) } {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        }
    }

    /// Reads the beginning of a file into a part of the registered buffer.
    fn read_fixed(&self, file: &File, range: &Range<u64>) {
        let [tail, mask, array] = [1, 2, 6].map(|index| self.parameters.submission[index]);
        let next = Self::field(self.submission, tail).load(Ordering::Acquire);
        let slot = next & Self::field(self.submission, mask).load(Ordering::Relaxed);
        let entry = Entry {
            operation: READ_FIXED,
            flags: 0,
            priority: 0,
            descriptor: file.as_raw_fd(),
            offset: 0,
            address: range.start,
            length: (range.end - range.start) as u32,
            call_flags: 0,
            user: 0,
            buffer_index: 0,
            personality: 0,
            splice: 0,
            pad: [0; 2],
        };
        // SAFETY: a slot of the mapped entries that the kernel does not use now.
        unsafe { (self.entries as *mut Entry).add(slot as usize).write(entry) };
        Self::field(self.submission, array + slot * 4).store(slot, Ordering::Relaxed);
        Self::field(self.submission, tail).store(next + 1, Ordering::Release);
        let ring = self.descriptor.as_raw_fd();
        // SAFETY: one request is submitted and waited for; no signal mask.
        let done = unsafe {
            libc::syscall(
                libc::SYS_io_uring_enter,
                ring,
                1,
                1,
                ENTER_GETEVENTS,
                0usize,
                0usize,
            )
        };
        let [head, mask, entries] = [0, 2, 5].map(|index| self.parameters.completion[index]);
        let at = Self::field(self.completion, head).load(Ordering::Acquire);
        let slot = at & Self::field(self.completion, mask).load(Ordering::Relaxed);
        // A completion has 16 bytes; the result comes behind 8 of them.
        let result = Self::field(self.completion, entries + slot * 16 + 8).load(Ordering::Acquire);
        Self::field(self.completion, head).store(at + 1, Ordering::Release);
        if done != 1 || u64::from(result) != range.end - range.start {
            common::fail(&format!("READ_FIXED answers {done}, {}", result as i32));
        }
    }
}

fn move_all(backend: &mut SwapBackend, range: &Range<u64>, race: Race, to: NodeId) -> Outcome {
    let pages = Pages::Run(range.start / PAGE..range.end / PAGE);
    let job = Job {
        pid: Pid(0),
        action: Action::Migrate { pages, to },
        race,
    };
    tick();
    backend.execute(&[job]).remove(0)
}

fn refused(outcome: &Outcome, reason: Refusal) -> u64 {
    let found = outcome
        .refused
        .iter()
        .find(|(refusal, _)| *refusal == reason);
    found.map_or(0, |(_, count)| *count)
}

pub fn run(options: &Options) -> Report {
    let mut report = Report::new("pinned");
    let ring = match Ring::new() {
        Ok(ring) => ring,
        Err(error) => {
            report.not_run(format!("io_uring is not to be had ({error})"));
            return report;
        }
    };
    // Huge pages are pinned whole, by any part; others are left to be moved.
    let bytes = if options.huge { 3 * HUGE } else { PAGES * PAGE };
    let pages = bytes / PAGE;
    let region = Region::new(bytes, options.huge);
    let whole = region.range();
    let folder = std::env::temp_dir();
    let Ok(mut file) = tempfile::tempfile_in(&folder) else {
        common::fail(&format!("{} cannot be written", folder.display()));
    };
    let text: Vec<u8> = (0..bytes)
        .step_by(8)
        .flat_map(|at| mix(at).to_ne_bytes())
        .collect();
    if let Err(error) = file.write_all(&text) {
        common::fail(&format!("{}: {error}", folder.display()));
    }
    let mut random = Random::new(options.seed ^ 0xB1);
    let (mut pinned, mut counted, mut moved, mut moved_after) = (0, 0, 0, 0);
    let mut already_there = 0;
    let target = |round: u64| NodeId((round % u64::from(options.nodes)) as u32);
    for round in 0..options.rounds {
        let mut backend = backend(options, &mut random, &None);
        let _ = backend.warm(target(round), bytes, if options.huge { bytes } else { 0 });
        for at in whole.clone().step_by(8) {
            word_at(at).store(at ^ round, Ordering::Relaxed);
        }
        let count = 1 + random.below(PAGES / 2);
        let start = whole.start + random.below(pages - count) * PAGE;
        let buffer = start..start + count * PAGE;
        if let Err(error) = ring.register(Some(&buffer)) {
            report.not_run(format!("a buffer cannot be registered ({error})"));
            return report;
        }
        let race = random.pick(&[Race::Recover, Race::Fail, Race::Block]);
        let outcome = move_all(&mut backend, &whole, race, target(round));
        moved += outcome.moved.len() as u64;
        already_there += outcome.already_there;
        counted += count;
        pinned += refused(&outcome, Refusal::Pinned);
        if outcome
            .moved
            .iter()
            .any(|page| buffer.contains(&(page * PAGE)))
        {
            common::fail(&format!(
                "a pinned page of {buffer:x?} was moved: {outcome:?}"
            ));
        }
        let length = 8 * (1 + random.below((buffer.end - buffer.start) / 8));
        let part = buffer.start..buffer.start + length;
        ring.read_fixed(&file, &part);
        for at in whole.clone().step_by(8) {
            let expected = if part.contains(&at) {
                mix(at - part.start)
            } else {
                at ^ round
            };
            let found = word_at(at).load(Ordering::Relaxed);
            if found != expected {
                common::wrong(at, expected, found);
            }
        }
        if let Err(error) = ring.register(None) {
            common::fail(&format!("the buffer cannot be unregistered: {error}"));
        }
        let after = if options.huge { &whole } else { &buffer };
        let outcome = move_all(&mut backend, after, Race::Recover, target(round + 1));
        moved_after += outcome.moved.len() as u64;
    }
    report.met("pages moved", moved);
    report.count("pages registered", counted);
    // On one node the kernel's own backend, asked next, calls them there already.
    report.count("pages already there", already_there);
    if options.nodes > 1 {
        report.met("pages refused (pinned)", pinned);
    } else {
        report.count("pages refused (pinned)", pinned);
        report.met("pages pinned and left", already_there);
    }
    report.met("pages moved after they were let go of", moved_after);
    report
}
