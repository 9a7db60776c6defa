//! The few system calls that the lab needs beyond the standard library: host and guest side.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Duration;

/// Turns a system call's -1 into the error it left behind.
pub(crate) fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(result)
    }
}

/// An unnamed file in memory; it disappears with its last descriptor. Not inherited until
/// [`inherit`].
///
/// # Errors
/// Where the system has no memory or descriptors left.
pub fn memory_file(name: &std::ffi::CStr) -> io::Result<File> {
    // SAFETY: `name` is a terminated string; the descriptor is fresh and owned by nobody else.
    unsafe {
        Ok(File::from_raw_fd(check(libc::memfd_create(
            name.as_ptr(),
            libc::MFD_CLOEXEC,
        ))?))
    }
}

/// A connected pair of stream sockets, not inherited until [`inherit`].
///
/// # Errors
/// Where the system has no descriptors left.
pub fn socket_pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let mut pair = [0; 2];
    let kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC;
    // SAFETY: `pair` has room for two descriptors, which are fresh and owned by nobody else.
    unsafe {
        check(libc::socketpair(libc::AF_UNIX, kind, 0, pair.as_mut_ptr()))?;
        Ok((OwnedFd::from_raw_fd(pair[0]), OwnedFd::from_raw_fd(pair[1])))
    }
}

/// Lets a descriptor survive exec. For a forked child before its exec.
///
/// # Errors
/// Where it is no descriptor.
pub fn inherit(fd: RawFd) -> io::Result<()> {
    // SAFETY: changes a flag of a descriptor; allowed between fork and exec.
    unsafe { check(libc::fcntl(fd, libc::F_SETFD, 0)).map(drop) }
}

/// Makes reads and writes return at once.
///
/// # Errors
/// Where it is no descriptor.
pub fn set_nonblocking(fd: RawFd) -> io::Result<()> {
    // SAFETY: reads and sets flags of a descriptor.
    unsafe {
        let flags = check(libc::fcntl(fd, libc::F_GETFL))?;
        check(libc::fcntl(fd, libc::F_SETFL, flags | libc::O_NONBLOCK)).map(drop)
    }
}

/// In a forked child: die with the parent, whatever ends it, leave its process group so that the
/// terminal's Ctrl-C reaches the parent alone, and take the signals that the parent keeps as data.
///
/// # Errors
/// Where the parent is gone already.
pub fn follow_parent(parent: u32) -> io::Result<()> {
    // SAFETY: plain system calls on the calling process, the set initialised before use; allowed
    // between fork and exec.
    unsafe {
        check(libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL))?;
        check(libc::setpgid(0, 0))?;
        let mut none = std::mem::zeroed::<libc::sigset_t>();
        libc::sigemptyset(&raw mut none);
        libc::sigprocmask(libc::SIG_SETMASK, &raw const none, std::ptr::null_mut());
        // The parent may have died before the request above took hold.
        if libc::getppid() != parent as libc::pid_t {
            return Err(io::Error::other("the parent is gone"));
        }
    }
    Ok(())
}

/// Signals that end the lab, taken as data while this lives.
#[derive(Debug)]
pub struct Signals {
    fd: OwnedFd,
    before: libc::sigset_t,
}

impl Signals {
    /// Takes SIGINT, SIGTERM and SIGHUP, and SIGWINCH for shells.
    ///
    /// # Errors
    /// Where the system has no descriptors left.
    pub fn take() -> io::Result<Self> {
        // SAFETY: the sets are initialised by sigemptyset before use; the descriptor is fresh.
        unsafe {
            let mut set = std::mem::zeroed::<libc::sigset_t>();
            let mut before = std::mem::zeroed::<libc::sigset_t>();
            libc::sigemptyset(&raw mut set);
            for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGWINCH] {
                libc::sigaddset(&raw mut set, signal);
            }
            let fd = check(libc::signalfd(
                -1,
                &raw const set,
                libc::SFD_CLOEXEC | libc::SFD_NONBLOCK,
            ))?;
            let fd = OwnedFd::from_raw_fd(fd);
            libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, &raw mut before);
            Ok(Self { fd, before })
        }
    }

    /// The next signal that came, if any.
    #[must_use]
    pub fn next(&self) -> Option<i32> {
        // SAFETY: signalfd_siginfo is plain data; the read is bounded by its size.
        unsafe {
            let mut info = std::mem::zeroed::<libc::signalfd_siginfo>();
            let size = size_of::<libc::signalfd_siginfo>();
            let got = libc::read(self.fd.as_raw_fd(), (&raw mut info).cast(), size);
            (got == size as isize).then_some(info.ssi_signo as i32)
        }
    }
}

impl AsRawFd for Signals {
    fn as_raw_fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }
}

impl Drop for Signals {
    fn drop(&mut self) {
        // SAFETY: restores the mask that `take` saved.
        unsafe {
            libc::pthread_sigmask(
                libc::SIG_SETMASK,
                &raw const self.before,
                std::ptr::null_mut(),
            );
        }
    }
}

/// Tells that something has changed in folders, by a descriptor that can then be read (inotify).
#[derive(Debug)]
pub struct Changes(OwnedFd);

impl Changes {
    /// Of no folder yet.
    ///
    /// # Errors
    /// Where the system has no descriptors left, or the kernel no inotify.
    pub fn new() -> io::Result<Self> {
        // SAFETY: the descriptor is fresh and owned by nobody else.
        unsafe {
            let fd = check(libc::inotify_init1(libc::IN_CLOEXEC | libc::IN_NONBLOCK))?;
            Ok(Self(OwnedFd::from_raw_fd(fd)))
        }
    }

    /// Of this folder too: what is made, removed, renamed in it or written to a file of it. Nothing is
    /// told twice of a folder that is watched already.
    ///
    /// # Errors
    /// Where there is no such folder.
    pub fn watch(&self, folder: &Path) -> io::Result<()> {
        let path = std::ffi::CString::new(folder.as_os_str().as_bytes())?;
        let told = libc::IN_CREATE | libc::IN_DELETE | libc::IN_MOVE | libc::IN_CLOSE_WRITE;
        // SAFETY: a terminated string that lives through the call.
        unsafe {
            check(libc::inotify_add_watch(
                self.as_raw_fd(),
                path.as_ptr(),
                told,
            ))
            .map(drop)
        }
    }

    /// Forgets what was told: the descriptor can be read again after the next change.
    pub fn forget(&self) {
        let mut buffer = [0; 4096];
        while read(self.as_raw_fd(), &mut buffer).is_ok_and(|count| count > 0) {}
    }
}

impl AsRawFd for Changes {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

/// What to wait for on one descriptor.
#[derive(Clone, Copy, Debug)]
pub struct Interest {
    /// The descriptor; a negative one is skipped.
    pub fd: RawFd,
    /// Wait until it can be written, too.
    pub write: bool,
}

/// What poll said of one descriptor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ready {
    /// Bytes, end of file or an error wait for a read.
    pub read: bool,
    /// A write will not wait.
    pub write: bool,
}

/// Waits until one of the descriptors is ready or the time has passed.
///
/// # Errors
/// As poll(2); an interruption counts as nothing ready.
pub fn wait(interests: &[Interest], timeout: Option<Duration>) -> io::Result<Vec<Ready>> {
    let mut fds: Vec<libc::pollfd> = interests
        .iter()
        .map(|interest| libc::pollfd {
            fd: interest.fd,
            events: libc::POLLIN | if interest.write { libc::POLLOUT } else { 0 },
            revents: 0,
        })
        .collect();
    // Rounded up: a remainder below 1 ms must not become a busy loop.
    let millis = timeout.map_or(-1, |t| {
        i32::try_from(t.as_micros().div_ceil(1000)).unwrap_or(i32::MAX)
    });
    // SAFETY: `fds` is an array of its own length.
    let result = unsafe { libc::poll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, millis) };
    match check(result) {
        Err(error) if error.kind() == io::ErrorKind::Interrupted => {
            Ok(vec![Ready::default(); fds.len()])
        }
        Err(error) => Err(error),
        Ok(_) => Ok(fds
            .iter()
            .map(|fd| Ready {
                read: fd.revents & (libc::POLLIN | libc::POLLHUP | libc::POLLERR) != 0,
                write: fd.revents & libc::POLLOUT != 0,
            })
            .collect()),
    }
}

/// Reads what is there; `Ok(0)` is the end, `WouldBlock` means nothing yet.
///
/// # Errors
/// As read(2), interruptions retried.
pub fn read(fd: RawFd, buffer: &mut [u8]) -> io::Result<usize> {
    loop {
        // SAFETY: the buffer is valid for its own length.
        let got = unsafe { libc::read(fd, buffer.as_mut_ptr().cast(), buffer.len()) };
        if got >= 0 {
            return Ok(got as usize);
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

/// Writes what fits; `WouldBlock` means nothing does.
///
/// # Errors
/// As write(2), interruptions retried.
pub fn write(fd: RawFd, bytes: &[u8]) -> io::Result<usize> {
    loop {
        // SAFETY: the buffer is valid for its own length.
        let put = unsafe { libc::write(fd, bytes.as_ptr().cast(), bytes.len()) };
        if put >= 0 {
            return Ok(put as usize);
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

/// `CLOCK_MONOTONIC` in ns.
#[must_use]
pub fn monotonic_ns() -> u64 {
    // SAFETY: fills a plain structure; allowed between fork and exec.
    unsafe {
        let mut time = std::mem::zeroed::<libc::timespec>();
        libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time);
        time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
    }
}

/// Memory of this machine in MiB; 0 where the system does not tell.
#[must_use]
pub fn physical_memory_mb() -> u64 {
    // SAFETY: asks for two constants of the system.
    let (pages, page_bytes) = unsafe {
        (
            libc::sysconf(libc::_SC_PHYS_PAGES),
            libc::sysconf(libc::_SC_PAGESIZE),
        )
    };
    let bytes = u64::try_from(pages).unwrap_or(0) * u64::try_from(page_bytes).unwrap_or(0);
    bytes >> 20
}

/// Is this descriptor a terminal?
#[must_use]
pub fn is_terminal(fd: RawFd) -> bool {
    // SAFETY: asks about a descriptor.
    unsafe { libc::isatty(fd) == 1 }
}

/// A terminal in raw mode while this lives.
#[derive(Debug)]
pub struct RawTerminal {
    fd: RawFd,
    before: libc::termios,
}

impl RawTerminal {
    /// Switches it to raw mode.
    ///
    /// # Errors
    /// Where it is no terminal.
    pub fn enter(fd: RawFd) -> io::Result<Self> {
        // SAFETY: termios is plain data that tcgetattr fills.
        unsafe {
            let mut before = std::mem::zeroed::<libc::termios>();
            check(libc::tcgetattr(fd, &raw mut before))?;
            let mut raw = before;
            libc::cfmakeraw(&raw mut raw);
            check(libc::tcsetattr(fd, libc::TCSANOW, &raw const raw))?;
            Ok(Self { fd, before })
        }
    }
}

impl Drop for RawTerminal {
    fn drop(&mut self) {
        // SAFETY: restores what `enter` saved.
        unsafe {
            libc::tcsetattr(self.fd, libc::TCSANOW, &raw const self.before);
        }
    }
}

/// Rows and columns of a terminal.
#[must_use]
pub fn window_size(fd: RawFd) -> Option<(u16, u16)> {
    // SAFETY: winsize is plain data that the request fills.
    unsafe {
        let mut size = std::mem::zeroed::<libc::winsize>();
        (libc::ioctl(fd, libc::TIOCGWINSZ, &raw mut size) == 0)
            .then_some((size.ws_row, size.ws_col))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Seek, Write};

    #[test]
    fn changes_of_a_folder_are_told_until_they_are_forgotten() {
        let folder = tempfile::tempdir().unwrap();
        let changes = Changes::new().unwrap();
        changes.watch(folder.path()).unwrap();
        changes.watch(folder.path()).unwrap();
        assert!(changes.watch(&folder.path().join("none")).is_err());
        let is_told_within = |limit| {
            let fd = changes.as_raw_fd();
            let ready = wait(&[Interest { fd, write: false }], Some(limit));
            ready.unwrap()[0].read
        };
        let is_told = || is_told_within(Duration::ZERO);
        assert!(!is_told());
        let [below, file] = ["below", "file"].map(|name| folder.path().join(name));
        std::fs::create_dir(&below).unwrap();
        assert!(is_told());
        changes.forget();
        assert!(!is_told());
        std::fs::remove_dir(&below).unwrap();
        assert!(is_told());
        changes.forget();
        let mut written = File::create(&file).unwrap();
        assert!(is_told());
        changes.forget();
        written.write_all(b"1").unwrap();
        drop(written);
        // A child that another test forks holds the file open until its exec.
        assert!(is_told_within(Duration::from_secs(10)));
        changes.forget();
        std::fs::read(&file).unwrap();
        assert!(!is_told(), "reading changes nothing");
        std::fs::remove_file(&file).unwrap();
        assert!(is_told());
    }

    #[test]
    fn memory_files_hold_bytes_and_have_a_path() {
        let mut file = memory_file(c"test").unwrap();
        file.write_all(b"hello").unwrap();
        file.rewind().unwrap();
        let mut text = String::new();
        file.read_to_string(&mut text).unwrap();
        assert_eq!(text, "hello");
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        assert_eq!(std::fs::read_to_string(path).unwrap(), "hello");
    }

    #[test]
    fn waiting_sees_bytes_ends_and_time() {
        let (a, b) = socket_pair().unwrap();
        let interest = [Interest {
            fd: a.as_raw_fd(),
            write: false,
        }];
        let nothing = wait(&interest, Some(Duration::from_millis(1))).unwrap();
        assert_eq!(nothing, [Ready::default()]);
        assert_eq!(write(b.as_raw_fd(), b"xy").unwrap(), 2);
        assert!(wait(&interest, None).unwrap()[0].read);
        let mut buffer = [0; 8];
        assert_eq!(read(a.as_raw_fd(), &mut buffer).unwrap(), 2);
        set_nonblocking(a.as_raw_fd()).unwrap();
        let blocked = read(a.as_raw_fd(), &mut buffer).unwrap_err();
        assert_eq!(blocked.kind(), io::ErrorKind::WouldBlock);
        drop(b);
        assert!(wait(&interest, None).unwrap()[0].read);
        assert_eq!(read(a.as_raw_fd(), &mut buffer).unwrap(), 0);
    }
}
