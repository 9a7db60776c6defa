//! What is no region: memory that something touches whose touches cannot be caught. The rest of what cannot be caught
//! is in `docs/micro-scheduling.md`, as nobody can tell it beforehand.

use super::rule::{Form, overlap};
use crate::error::Error;
use hither_linux::Root;
use hither_linux::proc::{self, maps::Maps};
use hither_linux::sys::{OwnMapping, thread_descriptor_address};
use std::fs;
use std::ops::Range;

const PAGE: u64 = 4096;
/// Of `/proc/PID/fd`: files whose users' accesses are made by threads of the kernel, or by a processor in a guest.
const UNCAUGHT: [(&str, &str); 2] = [
    (
        "anon_inode:[io_uring]",
        "an io_uring is open, whose workers have key registers of their own: close it, or keep this memory out of regions",
    ),
    (
        "anon_inode:kvm-vm",
        "a virtual machine of KVM is open, whose memory the kernel opens at any time: make regions in another process",
    ),
];

/// `own` is the thread of this library, which touches no region.
/// Errors name what is in the way, and what to do about it.
pub(super) fn check(range: &Range<u64>, form: Form, own: i32) -> Result<(), Error> {
    let name = format!("region {:#x}-{:#x}", range.start, range.end);
    let refused = |text: String| Err(Error::Invalid(format!("{name}: {text}")));
    if let Some(text) = misplaced(range) {
        return refused(text);
    }
    let root = Root::host();
    let pid = std::process::id() as i32;
    let found = Maps::open(&root, pid)
        .and_then(|mut maps| maps.in_range(range.clone()))
        .map_err(Error::system("region: /proc/self/maps"))?;
    if let Some(text) = unfit(range, &found) {
        return refused(text);
    }
    let here = 0u8;
    let here = (&raw const here) as u64;
    if range.contains(&here)
        || alternate_stack().is_some_and(|stack| {
            overlap(
                stack.start,
                stack.end - stack.start,
                (range.start, range.end),
            )
        })
    {
        return refused("it has the stack of this thread: use memory of its own".to_owned());
    }
    let threads = proc::threads(&root, pid)?;
    let mut others = 0;
    for &thread in &threads {
        let file = |file| {
            let path = format!("/proc/self/task/{thread}/{file}");
            fs::read_to_string(path).unwrap_or_default()
        };
        if thread_descriptor_address(thread).is_some_and(|address| range.contains(&address)) {
            return refused(format!(
                "it has the descriptor of thread {thread}, which the kernel writes to: use memory of its own"
            ));
        }
        if stack_pointer(&file("syscall")).is_some_and(|stack| range.contains(&stack)) {
            return refused(format!(
                "it has the stack of thread {thread}, which the kernel writes to: use memory of its own"
            ));
        }
        let is_ours = thread == own;
        if !is_ours && blocks_faults(&file("status")) {
            return refused(format!(
                "thread {thread} holds SIGSEGV back and would be killed by a touch: leave it out of its signal mask"
            ));
        }
        others += u32::from(!is_ours);
    }
    if form == Form::Protection && others > 1 {
        return refused(format!(
            "the program has {others} threads, and the processor no protection keys, by which each could have its own \
             domain open: make regions before threads are started and touch them by one, or visit them explicitly"
        ));
    }
    open_files().map_or(Ok(()), |text| refused(text.to_owned()))
}

fn misplaced(range: &Range<u64>) -> Option<String> {
    if range.is_empty() {
        return Some("it has no bytes".to_owned());
    }
    (!range.start.is_multiple_of(PAGE) || !range.end.is_multiple_of(PAGE)).then(|| {
        format!("it is not of whole pages: begin and end at a multiple of {PAGE}, as mmap(2) does")
    })
}

/// Why mappings are no region.
fn unfit(range: &Range<u64>, mappings: &[OwnMapping]) -> Option<String> {
    let mut above = range.start;
    for mapping in mappings {
        if mapping.range.start > above {
            break;
        }
        above = mapping.range.end;
        let OwnMapping {
            range: Range { start, end },
            name,
            ..
        } = mapping;
        let part = format!("{start:#x}-{end:#x} {name}");
        if !(mapping.readable && mapping.writable) || mapping.executable {
            return Some(format!(
                "{part} has access `{}`: a region is memory that is read and written, `rw-`",
                mapping.permissions()
            ));
        }
        let is_kernels = ["[stack", "[v", "[heap]", "[uprobes]"]
            .iter()
            .any(|word| name.starts_with(word));
        let is_device = ["/dev/", "anon_inode:", "/[aio]"]
            .iter()
            .any(|word| name.starts_with(word))
            && !name.starts_with("/dev/shm/")
            && !name.starts_with("/dev/zero");
        if is_kernels || is_device {
            return Some(format!(
                "{part} is touched by the kernel or the C library in ways that cannot be caught: use memory of its own, as \
                 by mmap(2)"
            ));
        }
    }
    (above < range.end).then(|| format!("nothing is mapped at {above:#x}: map it first"))
}

/// Where the kernel would run handlers of this thread.
fn alternate_stack() -> Option<Range<u64>> {
    // SAFETY: only asks; all zero is a valid structure.
    let stack = unsafe {
        let mut stack: libc::stack_t = std::mem::zeroed();
        libc::sigaltstack(std::ptr::null(), &raw mut stack);
        stack
    };
    let start = stack.ss_sp as u64;
    (stack.ss_flags & libc::SS_DISABLE == 0).then(|| start..start + stack.ss_size as u64)
}

/// Of `/proc/PID/task/TID/syscall`, for a thread that sleeps: number and six arguments, stack pointer, program counter.
/// ```text
/// 202 0x7f0c2f9 0x89 0x0 0x0 0x0 0xffffffff 0x7ffd3b1f3a10 0x7f0c2f53e117
/// ```
/// `running` stands there for one that runs.
fn stack_pointer(text: &str) -> Option<u64> {
    let word = text.split_whitespace().rev().nth(1)?;
    u64::from_str_radix(word.strip_prefix("0x")?, 16).ok()
}

/// Of `/proc/PID/task/TID/status`:
/// ```text
/// SigBlk: 0000000000000400
/// ```
/// Bit 10 is signal 11.
fn blocks_faults(text: &str) -> bool {
    let line = text.lines().find_map(|line| line.strip_prefix("SigBlk:"));
    let mask = line.and_then(|word| u64::from_str_radix(word.trim(), 16).ok());
    mask.is_some_and(|mask| mask & 1 << (libc::SIGSEGV - 1) != 0)
}

fn open_files() -> Option<&'static str> {
    let files = fs::read_dir("/proc/self/fd").ok()?;
    let mut targets = files
        .flatten()
        .filter_map(|file| fs::read_link(file.path()).ok());
    targets.find_map(|target| {
        let name = target.to_str()?;
        UNCAUGHT
            .iter()
            .find(|(uncaught, _)| *uncaught == name)
            .map(|(_, text)| *text)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mapping(range: Range<u64>, access: &str, name: &str) -> OwnMapping {
        OwnMapping {
            range,
            readable: access.contains('r'),
            writable: access.contains('w'),
            executable: access.contains('x'),
            name: name.to_owned(),
            ..OwnMapping::default()
        }
    }

    #[test]
    fn a_region_is_whole_pages_of_plain_memory() {
        let range = 0x1000..0x4000;
        let whole = [
            mapping(0..0x2000, "rw", ""),
            mapping(0x2000..0x9000, "rw", "/dev/shm/x"),
        ];
        assert_eq!(unfit(&range, &whole), None);
        let said = |mappings: &[OwnMapping]| unfit(&range, mappings).unwrap_or_default();
        assert!(said(&whole[..1]).contains("nothing is mapped at 0x2000"));
        assert!(said(&[]).contains("nothing is mapped at 0x1000"));
        let hole = [
            mapping(0..0x2000, "rw", ""),
            mapping(0x3000..0x9000, "rw", ""),
        ];
        assert!(said(&hole).contains("at 0x2000"));
        for (access, name, word) in [
            ("r", "", "access `r--p`"),
            ("rwx", "", "access `rwxp`"),
            ("rw", "[heap]", "cannot be caught"),
            ("rw", "[stack]", "cannot be caught"),
            ("rw", "/dev/dri/card0", "cannot be caught"),
            ("rw", "anon_inode:[io_uring]", "cannot be caught"),
        ] {
            let text = said(&[mapping(0..0x9000, access, name)]);
            assert!(text.contains(word), "{text}");
        }
        assert_eq!(misplaced(&range), None);
        assert!(misplaced(&(0x1000..0x1000)).is_some());
        assert!(misplaced(&(0x1001..0x4000)).is_some_and(|text| text.contains("4096")));
    }

    #[test]
    fn files_of_threads_are_read() {
        let line = "202 0x7f0c2f9 0x89 0x0 0x0 0x0 0xffffffff 0x7ffd3b1f3a10 0x7f0c2f53e117\n";
        assert_eq!(stack_pointer(line), Some(0x7ffd_3b1f_3a10));
        assert_eq!(stack_pointer("running\n"), None);
        assert!(blocks_faults(
            "Name:\tx\nSigBlk:\t0000000000000400\nSigIgn:\t0\n"
        ));
        assert!(!blocks_faults("SigBlk:\t0000000000000800\n"));
        assert!(!blocks_faults(""));
    }
}
