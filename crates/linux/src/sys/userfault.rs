//! `userfaultfd(2)`: the calls that exchange pages from user space, and the events they bring.
//!
//! Source: `linux/userfaultfd.h`, ioctl_userfaultfd(2); `UFFDIO_MOVE` is Linux 6.8.

use super::check;
use std::fs::OpenOptions;
use std::io;
use std::mem::size_of;
use std::ops::Range;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

const USER_MODE_ONLY: libc::c_int = 1;
/// `_IO(0xAA, 0x00)` on `/dev/userfaultfd`.
const IOC_NEW: libc::c_ulong = 0xAA00;
/// `_IOWR(0xAA, 0x3F, struct uffdio_api)` and the others of the same header.
const API: libc::c_ulong = 0xC018_AA3F;
const REGISTER: libc::c_ulong = 0xC020_AA00;
const UNREGISTER: libc::c_ulong = 0x8010_AA01;
const WAKE: libc::c_ulong = 0x8010_AA02;
const COPY: libc::c_ulong = 0xC028_AA03;
const ZEROPAGE: libc::c_ulong = 0xC020_AA04;
const MOVE: libc::c_ulong = 0xC028_AA05;

const API_VERSION: u64 = 0xAA;
/// The write-protect mode: registered so, a mapping may receive pages and traps nothing by itself.
const MODE_WRITE_PROTECT: u64 = 1 << 1;
const MODE_MISSING: u64 = 1;

/// What a context can be asked to tell or do.
pub mod feature {
    /// Write protection (needed to register a mapping that traps nothing).
    pub const WRITE_PROTECT: u64 = 1;
    /// Forks wait until they are read, and bring the child's own context. `CAP_SYS_PTRACE`.
    pub const EVENT_FORK: u64 = 1 << 1;
    /// `mremap` waits until it is read.
    pub const EVENT_REMAP: u64 = 1 << 2;
    /// `madvise(MADV_DONTNEED)` and the like wait until they are read.
    pub const EVENT_REMOVE: u64 = 1 << 3;
    /// `munmap`, and whatever else takes a mapping away, waits until it is read.
    pub const EVENT_UNMAP: u64 = 1 << 6;
    /// Faults name their thread.
    pub const THREAD_ID: u64 = 1 << 8;
    /// Faults name the byte, not only the page.
    pub const EXACT_ADDRESS: u64 = 1 << 11;
    /// `UFFDIO_MOVE`.
    pub const MOVE: u64 = 1 << 16;
}

/// What happened to registered memory.
#[derive(Debug)]
pub enum FaultEvent {
    /// A thread touched a missing page and waits.
    Missing {
        /// The byte touched.
        address: u64,
        /// The kernel's thread number, 0 where the context does not tell.
        thread: i32,
    },
    /// The process forked; the child has a context of its own, and waits as long as this process
    /// does not read on.
    Fork(Userfault),
    /// `length` bytes moved from one address to another.
    Remap {
        /// Old address.
        from: u64,
        /// New address.
        to: u64,
        /// Bytes.
        length: u64,
    },
    /// The content of these addresses is about to be thrown away, or they were unmapped.
    Remove(Range<u64>),
}

/// How far a call came: bytes done from the start of its range, and why it stopped short.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Bytes done.
    pub done: u64,
    /// The error number behind the last byte done; `None`: all done.
    pub errno: Option<i32>,
}

/// A userfaultfd context.
#[derive(Debug)]
pub struct Userfault(OwnedFd);

#[repr(C)]
struct ApiArgument {
    api: u64,
    features: u64,
    ioctls: u64,
}

#[repr(C)]
struct RangeArgument {
    start: u64,
    length: u64,
}

#[repr(C)]
struct ModeArgument {
    start: u64,
    length: u64,
    mode: u64,
    result: i64,
}

#[repr(C)]
struct TransferArgument {
    to: u64,
    from: u64,
    length: u64,
    mode: u64,
    result: i64,
}

/// `struct uffd_msg`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Message {
    event: u8,
    reserved: [u8; 7],
    argument: [u64; 3],
}

const _: () = assert!(
    size_of::<ApiArgument>() == 24
        && size_of::<RangeArgument>() == 16
        && size_of::<ModeArgument>() == 32
        && size_of::<TransferArgument>() == 40
        && size_of::<Message>() == 32
);

impl Userfault {
    /// A context with these features, not blocking. `user_mode_only`: faults of the kernel fail
    /// instead of waiting; any user may have such a context.
    pub fn new(features: u64, user_mode_only: bool) -> io::Result<Self> {
        let mode = match user_mode_only {
            true => USER_MODE_ONLY,
            false => 0,
        };
        let flags = libc::O_CLOEXEC | libc::O_NONBLOCK | mode;
        let context = match Self::create(flags) {
            // Refused, by a sysctl or a filter of system calls; a kernel without the call has no device.
            Err(error) if error.raw_os_error() == Some(libc::EPERM) => {
                Self::by_device(flags).map_err(|_| error)
            }
            context => context,
        }?;
        let mut argument = ApiArgument {
            api: API_VERSION,
            features,
            ioctls: 0,
        };
        context.request(API, &raw mut argument)?;
        Ok(context)
    }

    fn create(flags: libc::c_int) -> io::Result<Self> {
        // SAFETY: one integer.
        let fd = check(unsafe { libc::syscall(libc::SYS_userfaultfd, flags) })?;
        // SAFETY: a new descriptor that nobody else owns.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd as i32) }))
    }

    /// By the device, which an administrator can open to a group.
    fn by_device(flags: libc::c_int) -> io::Result<Self> {
        let device = OpenOptions::new()
            .read(true)
            .write(true)
            .open("/dev/userfaultfd")?;
        // SAFETY: an open descriptor and an integer.
        let fd = check(unsafe { libc::ioctl(device.as_raw_fd(), IOC_NEW, flags) }.into())?;
        // SAFETY: a new descriptor that nobody else owns.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd as i32) }))
    }

    fn request<T>(&self, request: libc::c_ulong, argument: *mut T) -> io::Result<()> {
        // SAFETY: every caller passes the structure that belongs to the request (sizes checked
        // above), valid and exclusively borrowed during the call.
        check(unsafe { libc::ioctl(self.0.as_raw_fd(), request, argument) }.into()).map(drop)
    }

    /// From now on an access to a missing page of these addresses waits for this context.
    pub fn trap_missing(&self, range: &Range<u64>) -> io::Result<()> {
        self.register(range, MODE_MISSING)
    }

    /// Lets these addresses receive pages by [`Self::exchange`], and traps nothing.
    pub fn accept(&self, range: &Range<u64>) -> io::Result<()> {
        self.register(range, MODE_WRITE_PROTECT)
    }

    fn register(&self, range: &Range<u64>, mode: u64) -> io::Result<()> {
        let mut argument = ModeArgument {
            start: range.start,
            length: range.end - range.start,
            mode,
            result: 0,
        };
        self.request(REGISTER, &raw mut argument)
    }

    /// Ends what [`Self::trap_missing`] began; whoever waits goes on. Since Linux 6.17 the kernel
    /// refuses, with `EINVAL`, a range that has mappings of another context; before, those are let
    /// go of as well.
    pub fn unregister(&self, range: &Range<u64>) -> io::Result<()> {
        let mut argument = RangeArgument {
            start: range.start,
            length: range.end - range.start,
        };
        self.request(UNREGISTER, &raw mut argument)
    }

    /// Whoever waits for these addresses tries again.
    pub fn wake(&self, range: &Range<u64>) -> io::Result<()> {
        let mut argument = RangeArgument {
            start: range.start,
            length: range.end - range.start,
        };
        self.request(WAKE, &raw mut argument)
    }

    /// Moves pages (`UFFDIO_MOVE`): they leave `from`, which is empty then, and appear at `to`,
    /// which must have been empty; whoever waits there goes on.
    ///
    /// # Safety
    /// The program must not rely on what it can reach at these addresses by other references:
    /// the content of `from` becomes that of `to`.
    pub unsafe fn exchange(&self, to: u64, from: u64, length: u64) -> Progress {
        self.transfer(MOVE, to, from, length)
    }

    /// Puts a copy of what this process has at `from` into fresh pages at `to` of this context's
    /// process (`UFFDIO_COPY`), where there must be none; whoever waits there goes on.
    ///
    /// # Safety
    /// As a store to `to` on behalf of that process.
    pub unsafe fn copy(&self, to: u64, from: u64, length: u64) -> Progress {
        self.transfer(COPY, to, from, length)
    }

    fn transfer(&self, request: libc::c_ulong, to: u64, from: u64, length: u64) -> Progress {
        let mut argument = TransferArgument {
            to,
            from,
            length,
            mode: 0,
            result: 0,
        };
        match self.request(request, &raw mut argument) {
            Ok(()) => Progress {
                done: length,
                errno: None,
            },
            Err(error) => Progress {
                done: argument.result.max(0) as u64,
                errno: Some(error.raw_os_error().unwrap_or(libc::EIO)),
            },
        }
    }

    /// Does a fork, an `mremap` or the like wait for its event to be read?
    #[must_use]
    pub fn is_changing(&self) -> bool {
        // Asked before the arguments are looked at, which are refused.
        self.transfer(COPY, 0, 0, 0).errno == Some(libc::EAGAIN)
    }

    /// Maps zeros into the missing pages of these addresses; whoever waits there goes on.
    pub fn zero(&self, range: &Range<u64>) -> io::Result<()> {
        let mut argument = ModeArgument {
            start: range.start,
            length: range.end - range.start,
            mode: 0,
            result: 0,
        };
        self.request(ZEROPAGE, &raw mut argument)
    }

    /// The next event, if one is there.
    pub fn next_event(&self) -> io::Result<Option<FaultEvent>> {
        let mut message = Message::default();
        let size = size_of::<Message>();
        // SAFETY: `size` bytes are valid for the read; the descriptor does not block.
        let read = check(unsafe {
            libc::read(self.0.as_raw_fd(), (&raw mut message).cast(), size) as libc::c_long
        });
        match read {
            Ok(_) => Ok(Self::decode(&message)),
            Err(error) if error.raw_os_error() == Some(libc::EAGAIN) => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn decode(message: &Message) -> Option<FaultEvent> {
        let [one, two, three] = message.argument;
        match message.event {
            0x12 => Some(FaultEvent::Missing {
                address: two,
                thread: three as u32 as i32,
            }),
            // SAFETY: reading the event made this descriptor for this process.
            0x13 => Some(FaultEvent::Fork(Self(unsafe {
                OwnedFd::from_raw_fd(one as u32 as i32)
            }))),
            0x14 => Some(FaultEvent::Remap {
                from: one,
                to: two,
                length: three,
            }),
            0x15 | 0x16 => Some(FaultEvent::Remove(one..two)),
            _ => None,
        }
    }

    /// Closes the context; `other`, once more, takes its descriptor in the same moment, so that no
    /// other thread can get it.
    pub fn give_way(self, other: BorrowedFd<'_>) -> io::Result<OwnedFd> {
        // SAFETY: two open descriptors; the second is this context's own.
        let result = unsafe { libc::dup3(other.as_raw_fd(), self.0.as_raw_fd(), libc::O_CLOEXEC) };
        check(result.into()).map(|_| self.0)
    }

    /// For polling: readable when there is an event.
    #[must_use]
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        use std::os::fd::AsFd;
        self.0.as_fd()
    }
}
