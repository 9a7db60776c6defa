//! `/proc/PID/stat`: name, parent, CPU time and resident pages in one line.

use crate::error::Fault;
use crate::parse::{Parsed, clip};
use crate::root::Root;
use crate::sys;

/// One reading.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stat {
    /// Command name, at most 15 bytes, may hold anything.
    pub name: String,
    /// State letter: `Z` has ended and waits for its parent.
    pub state: char,
    /// Number of its parent.
    pub parent: i32,
    /// The kernel's flags (`PF_`, include/linux/sched.h).
    pub flags: u64,
    /// CPU time in user and kernel mode, all threads, in clock ticks (100 a second).
    pub cpu_ticks: u64,
    /// The same of the children that it has waited for, with those that these had waited for.
    pub children_ticks: u64,
    /// Page faults, minor and major.
    pub faults: u64,
    /// Start, in clock ticks since boot: tells two processes of one number apart.
    pub start_ticks: u64,
    /// Addresses that are mapped, in bytes.
    pub mapped_bytes: u64,
    /// Base pages resident.
    pub resident_pages: u64,
    /// Where its stack begins: another place after each exec, as addresses are drawn anew. 0 where the
    /// kernel does not tell this process.
    pub stack_start: u64,
}

/// It is a thread of the kernel.
const PF_KTHREAD: u64 = 0x0020_0000;
/// It is a thread of a program that the kernel made for io_uring.
const PF_IO_WORKER: u64 = 0x10;
/// Nobody may say where it runs.
const PF_NO_SETAFFINITY: u64 = 0x0400_0000;
/// It is on its way out: it has no memory, or soon none, while its state letter may tell nothing of it.
const PF_EXITING: u64 = 4;

impl Stat {
    /// Is it a thread of the kernel, which has no memory of its own?
    #[must_use]
    pub fn is_kernel(&self) -> bool {
        self.flags & PF_KTHREAD != 0
    }

    /// Did the kernel make it for a program's io_uring?
    #[must_use]
    pub fn is_io_worker(&self) -> bool {
        self.flags & PF_IO_WORKER != 0
    }

    /// Does the kernel alone say where it runs?
    #[must_use]
    pub fn is_tied(&self) -> bool {
        self.flags & PF_NO_SETAFFINITY != 0
    }

    /// Has it ended, or begun to?
    #[must_use]
    pub fn has_ended(&self) -> bool {
        matches!(self.state, 'Z' | 'X') || self.flags & PF_EXITING != 0
    }
}

/// Clock ticks per second: fixed at 100 for user space (`USER_HZ`) on every architecture in use.
pub const TICKS_PER_SECOND: u64 = 100;

/// Now, in clock ticks since boot, as [`Stat::start_ticks`] are.
pub(crate) fn ticks_now() -> u64 {
    sys::boottime_ns() / (1_000_000_000 / TICKS_PER_SECOND)
}

/// Parses the line. The name stands in brackets and may hold brackets and spaces itself.
///
/// ```text
/// 1234 (my (app) x) S 1 1234 1234 0 -1 4194304 99 0 0 0 12 3 0 0 20 0 1 0 8342 2457600 225 18446744073709551615 ...
/// ```
pub fn parse(text: &str) -> Parsed<Stat> {
    let fail = |what: &str| Fault::new(1, format!("`{}` {what}", clip(text.trim())));
    let (before, rest) = text
        .rsplit_once(')')
        .ok_or_else(|| fail("has no name in brackets"))?;
    let (_, name) = before
        .split_once('(')
        .ok_or_else(|| fail("has no name in brackets"))?;
    // Field numbers of proc(5); the state is field 3.
    let fields: Vec<&str> = rest.split_whitespace().take(26).collect();
    let number = |field: usize| -> Parsed<i64> {
        let text = fields.get(field - 3).copied().unwrap_or("");
        text.parse()
            .map_err(|_| fail(&format!("has no number as field {field}")))
    };
    let unsigned = |field: usize| number(field).map(|value| value.max(0) as u64);
    Ok(Stat {
        name: name.to_owned(),
        state: fields
            .first()
            .and_then(|word| word.chars().next())
            .unwrap_or('?'),
        parent: number(4)? as i32,
        flags: unsigned(9)?,
        cpu_ticks: unsigned(14)?.saturating_add(unsigned(15)?),
        children_ticks: unsigned(16)?.saturating_add(unsigned(17)?),
        faults: unsigned(10)?.saturating_add(unsigned(12)?),
        start_ticks: unsigned(22)?,
        mapped_bytes: unsigned(23)?,
        resident_pages: unsigned(24)?,
        stack_start: unsigned(28).unwrap_or(0),
    })
}

/// That of a process; `None` where it is gone.
#[must_use]
pub fn read(root: &Root, pid: i32) -> Option<Stat> {
    super::read(root, pid, "stat", parse).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: &str = "1234 (my (app) x) S 77 1234 1234 0 -1 4194304 99 0 0 0 12 3 40 2 20 0 1 0 8342 2457600 225 18446744073709551615 1 1\n";

    #[test]
    fn names_with_brackets_do_not_shift_the_fields() {
        let stat = parse(LINE).unwrap();
        assert_eq!(stat.name, "my (app) x");
        assert_eq!((stat.state, stat.parent, stat.cpu_ticks), ('S', 77, 15));
        assert_eq!((stat.children_ticks, stat.faults), (42, 99));
        assert_eq!((stat.start_ticks, stat.resident_pages), (8342, 225));
        assert_eq!(stat.flags, 4_194_304);
    }

    #[test]
    fn threads_of_the_kernel_are_told_apart() {
        assert!(!parse(LINE).unwrap().is_kernel());
        let flags = (4_194_304 | PF_KTHREAD).to_string();
        assert!(parse(&LINE.replace("4194304", &flags)).unwrap().is_kernel());
    }

    #[test]
    fn who_is_on_the_way_out_has_ended() {
        let ended = |text: &str| parse(text).unwrap().has_ended();
        assert!(!ended(LINE));
        assert!(ended(&LINE.replace(") S ", ") Z ")));
        assert!(ended(&LINE.replace("4194304", "4194308")));
    }

    #[test]
    fn short_lines_are_faults() {
        for bad in ["", "1 a S 1", "1 (a) S", &LINE[..40]] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn the_kernels_own_line_is_read() {
        let stat = parse(&std::fs::read_to_string("/proc/self/stat").unwrap()).unwrap();
        assert!(stat.resident_pages > 10 && stat.start_ticks > 0, "{stat:?}");
    }
}
