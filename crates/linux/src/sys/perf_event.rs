//! `perf_event_open(2)`: one event, its attribute, and the switch of the event.

use super::check;
use hither_core::perf::count::Count;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsRawFd, FromRawFd};

/// Sizes of `struct perf_event_attr` as it grew: first version, `config2`, `clockid`.
const FIRST_BYTES: u32 = 64;
const WITH_CONFIG2: u32 = 72;
const WITH_CLOCK: u32 = 96;
/// `PERF_FLAG_FD_CLOEXEC`.
const CLOSE_ON_EXEC: libc::c_ulong = 1 << 3;

/// Bits of [`EventAttribute::flags`] (`linux/perf_event.h`).
pub mod event_flag {
    /// Begins switched off.
    pub const DISABLED: u64 = 1;
    /// Threads that its thread starts from now on are counted with it.
    pub const INHERIT: u64 = 1 << 1;
    /// The kernel alone: not user mode.
    pub const EXCLUDE_USER: u64 = 1 << 4;
    /// User mode alone: not the kernel.
    pub const EXCLUDE_KERNEL: u64 = 1 << 5;
    /// Not the hypervisor.
    pub const EXCLUDE_HYPERVISOR: u64 = 1 << 6;
    /// `sample_period` is a frequency in Hz, and the kernel finds the period.
    pub const FREQUENCY: u64 = 1 << 10;
    /// The address is that of the very instruction (2 of 3: asked for, and without skid).
    pub const PRECISE: u64 = 2 << 15;
    /// Other records than samples end with time, thread and so on, as `sample_type` says.
    pub const SAMPLE_ID_ALL: u64 = 1 << 18;
    /// Times are of `clock`.
    pub const CLOCK: u64 = 1 << 25;
    /// Records of switches to the thread and from it.
    pub const CONTEXT_SWITCH: u64 = 1 << 26;
}

/// `struct perf_event_attr` up to `clockid`; what lies behind is zero, which is all that a kernel
/// of any age wants to see of fields that it may not know.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EventAttribute {
    /// The event source: `type` of its folder in sysfs, or 0 hardware, 1 software.
    pub kind: u32,
    size: u32,
    /// Which event, in the source's own format.
    pub config: u64,
    /// Events per sample, or samples per second.
    pub sample_period: u64,
    /// What a sample holds: bits of [`crate::perf::record::field`].
    pub sample_type: u64,
    read_format: u64,
    /// Bits of [`event_flag`].
    pub flags: u64,
    wakeup: u32,
    breakpoint_type: u32,
    /// More of the event.
    pub config1: u64,
    /// Still more.
    pub config2: u64,
    branch_sample_type: u64,
    registers_user: u64,
    stack_user: u32,
    clock: i32,
}

const _: () = assert!(size_of::<EventAttribute>() == WITH_CLOCK as usize);

impl EventAttribute {
    /// An event in user mode, switched off at first; times are of `CLOCK_MONOTONIC`, as
    /// everything else here. `words` are `config`, `config1` and `config2`.
    #[must_use]
    pub fn of_user_mode(kind: u32, words: [u64; 3]) -> Self {
        Self {
            kind,
            config: words[0],
            config1: words[1],
            config2: words[2],
            flags: event_flag::DISABLED
                | event_flag::EXCLUDE_KERNEL
                | event_flag::EXCLUDE_HYPERVISOR,
            ..Self::default()
        }
        .with_monotonic_clock()
    }

    /// An event that is counted and not sampled, switched off at first; read it by [`read_count`].
    /// `flags`: more bits of [`event_flag`]. Sources outside the cores refuse all that exclude.
    #[must_use]
    pub fn counted(kind: u32, words: [u64; 3], flags: u64) -> Self {
        /// `PERF_FORMAT_TOTAL_TIME_ENABLED` and `PERF_FORMAT_TOTAL_TIME_RUNNING`.
        const TIMES: u64 = 1 | 2;
        Self {
            kind,
            config: words[0],
            config1: words[1],
            config2: words[2],
            read_format: TIMES,
            flags: event_flag::DISABLED | flags,
            ..Self::default()
        }
    }

    /// Times by `CLOCK_MONOTONIC`, as everything else here.
    #[must_use]
    pub fn with_monotonic_clock(mut self) -> Self {
        self.flags |= event_flag::CLOCK;
        self.clock = libc::CLOCK_MONOTONIC;
        self
    }

    /// The smallest published size that holds all that is set: older kernels refuse (`E2BIG`) a
    /// longer structure whose tail is not zero, and know shorter ones all the same.
    fn bytes(&self) -> u32 {
        if self.flags & event_flag::CLOCK != 0 {
            WITH_CLOCK
        } else if self.config2 != 0 {
            WITH_CONFIG2
        } else {
            FIRST_BYTES
        }
    }
}

/// Which threads an event counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventScope {
    /// Whatever runs on this CPU.
    Cpu(u32),
    /// The calling thread.
    Thread,
    /// This thread, on whatever CPU.
    Task(i32),
}

/// Opens an event; `leader`: the first event of its group.
///
/// `EACCES`, `EPERM`: not allowed (`kernel.perf_event_paranoid`); `ENOENT`, `ENODEV`,
/// `EOPNOTSUPP`: there is no such event here; `EINVAL`: something in the attribute that this
/// kernel or event source does not know; `E2BIG`: a field that this kernel does not have.
pub fn open_event(
    attribute: &EventAttribute,
    scope: EventScope,
    leader: Option<&File>,
) -> io::Result<File> {
    let attribute = EventAttribute {
        size: attribute.bytes(),
        ..*attribute
    };
    let (pid, cpu) = match scope {
        EventScope::Cpu(cpu) => (-1, libc::c_long::from(cpu)),
        EventScope::Thread => (0, -1),
        EventScope::Task(tid) => (libc::c_long::from(tid), -1),
    };
    let group = leader.map_or(-1, |leader| libc::c_long::from(leader.as_raw_fd()));
    // SAFETY: the attribute is at least as long as the size that it tells; the other arguments
    // are integers.
    let fd = check(unsafe {
        libc::syscall(
            libc::SYS_perf_event_open,
            &raw const attribute,
            pid,
            cpu,
            group,
            CLOSE_ON_EXEC,
        )
    })?;
    // SAFETY: a new descriptor that nobody else owns.
    Ok(unsafe { File::from_raw_fd(fd as i32) })
}

/// Switches an event and the others of its group on or off.
pub fn switch_event(event: &File, on: bool) -> io::Result<()> {
    /// `_IO('$', 0)` and `_IO('$', 1)`.
    const ENABLE: libc::c_ulong = 0x2400;
    const DISABLE: libc::c_ulong = 0x2401;
    const GROUP: libc::c_ulong = 1;
    let request = if on { ENABLE } else { DISABLE };
    // SAFETY: an open event and integers.
    check(unsafe { libc::ioctl(event.as_raw_fd(), request as _, GROUP) }.into()).map(drop)
}

/// What an event of [`EventAttribute::counted`] shows since it was opened, with threads that inherited
/// it. An event of a CPU that went offline ends: an error.
pub fn read_count(event: &File) -> io::Result<Count> {
    let mut bytes = [0; 24];
    let mut event = event;
    event.read_exact(&mut bytes)?;
    let word = |index: usize| {
        let word = bytes[8 * index..].first_chunk().copied();
        word.map_or(0, u64::from_ne_bytes)
    };
    Ok(Count {
        value: word(0),
        enabled_ns: word(1),
        running_ns: word(2),
    })
}

/// Changes an event's period, or its frequency where it has one; never 0.
pub fn set_event_period(event: &File, period: u64) -> io::Result<()> {
    /// `_IOW('$', 4, __u64)`.
    const PERIOD: libc::c_ulong = 0x4008_2404;
    // SAFETY: an open event; the kernel reads 8 bytes that outlive the call.
    check(unsafe { libc::ioctl(event.as_raw_fd(), PERIOD as _, &raw const period) }.into())
        .map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_size_is_that_of_what_is_set() {
        let plain = EventAttribute::default();
        let second = EventAttribute {
            config2: 1,
            ..plain
        };
        assert_eq!(plain.bytes(), 64);
        assert_eq!(second.bytes(), 72);
        assert_eq!(EventAttribute::of_user_mode(1, [2, 0, 0]).bytes(), 96);
        assert_eq!(EventAttribute::counted(1, [2, 0, 0], 0).bytes(), 64);
    }

    #[test]
    fn an_event_that_no_kernel_has_is_refused() {
        let nonsense = EventAttribute {
            kind: 0x7fff_fff0,
            ..EventAttribute::default()
        };
        let error = open_event(&nonsense, EventScope::Thread, None).unwrap_err();
        assert!(error.raw_os_error().is_some(), "{error}");
    }
}
