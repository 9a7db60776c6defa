//! io_uring: a region is refused while a ring is open. What a ring made later does with a closed buffer is told as an error of the
//! request, and no byte is wrong.

use crate::begin;
use crate::memory::{PAGE, Pages};
use hither_regions::{Form, leave, open_for};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU32, Ordering};

/// `struct io_uring_params`, in words: sizes and flags in the first ten, offsets of the submission ring from 10 on (head, tail,
/// mask, entries, flags, dropped, array), of the completion ring from 20 on (head, tail, mask, entries, overflow, cqes).
type Params = [u32; 30];
const ENTRIES: u32 = 4;
const OP_READ: u8 = 22;
const OP_WRITE: u8 = 23;

struct Ring {
    file: i32,
    params: Params,
    submission: *mut u8,
    completion: *mut u8,
    entries: *mut u8,
}

impl Ring {
    /// `None` where the kernel has none, or does not let us.
    fn new() -> Option<Self> {
        let mut params: Params = [0; 30];
        // SAFETY: the kernel fills so many bytes.
        let file = unsafe { libc::syscall(libc::SYS_io_uring_setup, ENTRIES, params.as_mut_ptr()) };
        let file = i32::try_from(file).ok().filter(|file| *file >= 0)?;
        let map = |at: i64| {
            let access = libc::PROT_READ | libc::PROT_WRITE;
            // SAFETY: a new mapping of the ring's own.
            let start = unsafe {
                libc::mmap(
                    std::ptr::null_mut(),
                    PAGE,
                    access,
                    libc::MAP_SHARED,
                    file,
                    at,
                )
            };
            assert_ne!(start, libc::MAP_FAILED);
            start.cast::<u8>()
        };
        Some(Self {
            file,
            params,
            submission: map(0),
            completion: map(0x800_0000),
            entries: map(0x1000_0000),
        })
    }

    fn word(&self, base: *mut u8, offset: usize) -> &AtomicU32 {
        // SAFETY: an aligned word of a ring of a page.
        unsafe { &*base.add(self.params[offset] as usize).cast::<AtomicU32>() }
    }

    /// One request, waited for: its result.
    fn request(&self, operation: u8, file: i32, start: *mut u8, bytes: u32) -> i32 {
        let tail = self.word(self.submission, 11).load(Ordering::Acquire);
        let index = tail & (ENTRIES - 1);
        // SAFETY: `struct io_uring_sqe` has 64 bytes: opcode at 0, file at 4, offset at 8, address at 16, length at 24.
        unsafe {
            let entry = self.entries.add(64 * index as usize);
            entry.write_bytes(0, 64);
            entry.write(operation);
            entry.add(4).cast::<i32>().write(file);
            entry.add(8).cast::<u64>().write(u64::MAX);
            entry.add(16).cast::<u64>().write(start as u64);
            entry.add(24).cast::<u32>().write(bytes);
            let array = self.submission.add(self.params[16] as usize).cast::<u32>();
            array.add(index as usize).write(index);
        }
        self.word(self.submission, 11)
            .store(tail + 1, Ordering::Release);
        // SAFETY: integers; `IORING_ENTER_GETEVENTS` waits for one.
        let entered = unsafe { libc::syscall(libc::SYS_io_uring_enter, self.file, 1, 1, 1, 0, 0) };
        assert_eq!(entered, 1);
        let head = self.word(self.completion, 20);
        let at = head.load(Ordering::Acquire);
        assert_ne!(at, self.word(self.completion, 21).load(Ordering::Acquire));
        let mask = self.word(self.completion, 22).load(Relaxed);
        // SAFETY: `struct io_uring_cqe` has 16 bytes: user data, result, flags.
        let result = unsafe {
            let first = self.completion.add(self.params[25] as usize);
            first
                .add(16 * (at & mask) as usize + 8)
                .cast::<i32>()
                .read()
        };
        head.store(at + 1, Ordering::Release);
        result
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // SAFETY: what `new` made.
        unsafe {
            for start in [self.submission, self.completion, self.entries] {
                libc::munmap(start.cast(), PAGE);
            }
            libc::close(self.file);
        }
    }
}

pub fn io_uring(form: Form) {
    let regions = begin(form).unwrap();
    let pages = [Pages::new(1), Pages::new(1)];
    let Some(ring) = Ring::new() else {
        println!("no io_uring here: not tried");
        return;
    };
    // SAFETY: refused.
    let outcome = unsafe { regions.register(0, pages[0].start, PAGE) };
    let text = outcome.unwrap_err().to_string();
    assert!(text.contains("an io_uring is open"), "{text}");
    drop(ring);
    let _registered = [0, 1].map(|index| pages[index].register(&regions, index));
    let ring = Ring::new().unwrap();
    let mut ends = [0; 2];
    // SAFETY: room for two numbers.
    assert_eq!(unsafe { libc::pipe(ends.as_mut_ptr()) }, 0);
    for turn in 0..20 {
        let [one, other] = [&pages[turn % 2], &pages[1 - turn % 2]];
        one.word(0).store(turn as u64 + 1, Relaxed);
        other.word(0).store(100, Relaxed);
        // The first is closed now: neither read nor written.
        assert_eq!(ring.request(OP_WRITE, ends[1], one.start, 8), -libc::EFAULT);
        let open = open_for(one.start, 8);
        assert_eq!(ring.request(OP_WRITE, ends[1], one.start, 8), 8);
        drop(open);
        let open = open_for(other.start, 8);
        assert_eq!(ring.request(OP_READ, ends[0], other.start, 8), 8);
        drop(open);
        assert_eq!(other.word(0).load(Relaxed), turn as u64 + 1);
        leave();
    }
    // SAFETY: the ends of the pipe.
    unsafe {
        libc::close(ends[0]);
        libc::close(ends[1]);
    }
}
