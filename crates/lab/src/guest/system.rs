//! The guest as a system: mounts, network, settings, power.

use super::{Result, doing};
use crate::os::check;
use hither_core::opium;
use hither_linux::opium::OpiumDevice;
use hither_linux::root::Root;
use std::ffi::CString;
use std::fs;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::{Path, PathBuf};

/// What is mounted: source, target, type, options.
const MOUNTS: &[(&str, &str, &str, &str)] = &[
    ("proc", "/proc", "proc", ""),
    ("sysfs", "/sys", "sysfs", ""),
    ("devtmpfs", "/dev", "devtmpfs", ""),
    ("devpts", "/dev/pts", "devpts", "ptmxmode=666"),
    ("tmpfs", "/dev/shm", "tmpfs", "mode=1777"),
    ("tmpfs", "/run", "tmpfs", "mode=755"),
    ("debugfs", "/sys/kernel/debug", "debugfs", ""),
    ("cgroup2", "/sys/fs/cgroup", "cgroup2", ""),
];

/// Kernels may lack these.
const OPTIONAL: &[&str] = &["debugfs", "cgroup2"];

/// Directories whose content belongs to one run alone. Emptied between runs rather than mounted
/// over: a packed program may live in them.
const PER_RUN: &[&str] = &["/dev/shm"];

/// Mounts everything of [`MOUNTS`].
pub fn mount_all() -> Result<()> {
    for &(source, target, kind, options) in MOUNTS {
        let mounted =
            fs::create_dir_all(target).and_then(|()| mount(source, target, kind, options));
        match mounted {
            Err(_) if OPTIONAL.contains(&kind) => {}
            other => other.map_err(doing(format!("mounting {target}")))?,
        }
    }
    Ok(())
}

/// Has the plugin model accesses from here on, where there is one: to the CPU it is a no-operation.
pub fn tell_started() {
    // SAFETY: `nop dword ptr [rax + imm32]` reads and writes nothing.
    unsafe {
        std::arch::asm!(
            ".byte 0x0f, 0x1f, 0x80",
            ".long {marker}",
            marker = const opium::MARKER_MAGIC | opium::MARKER_STARTED,
            options(nomem, nostack, preserves_flags),
        );
    }
}

/// Mounts a file system.
pub fn mount(source: &str, target: &str, kind: &str, options: &str) -> io::Result<()> {
    mount_with(0, source, target, kind, options)
}

/// Makes a file seen at another place, too.
pub fn bind_mount(source: &str, target: &str) -> io::Result<()> {
    mount_with(libc::MS_BIND, source, target, "", "")
}

fn mount_with(
    flags: libc::c_ulong,
    source: &str,
    target: &str,
    kind: &str,
    options: &str,
) -> io::Result<()> {
    let text = |text: &str| CString::new(text).map_err(io::Error::other);
    let (source, target, kind, options) =
        (text(source)?, text(target)?, text(kind)?, text(options)?);
    // SAFETY: four terminated strings that live through the call.
    let result = unsafe {
        libc::mount(
            source.as_ptr(),
            target.as_ptr(),
            kind.as_ptr(),
            flags,
            options.as_ptr().cast(),
        )
    };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// The lab's device, hidden from the programs that start now: an empty folder lies over its own. Who has
/// it open, as the agent has, keeps it.
#[derive(Debug, Default)]
pub struct Hidden(Option<PathBuf>);

impl Hidden {
    /// Hides or shows it.
    pub fn set(&mut self, hide: bool) -> Result<()> {
        match (hide, self.0.take()) {
            (true, None) => {
                let found = OpiumDevice::find(&Root::host()).map_err(|error| error.to_string())?;
                let folder = found.ok_or("the device to hide is not there")?;
                let folder = fs::canonicalize(&folder).map_err(doing("finding the device"))?;
                let text = folder.to_str().ok_or("the device has no name")?;
                mount("tmpfs", text, "tmpfs", "mode=755").map_err(doing("hiding the device"))?;
                self.0 = Some(folder);
            }
            (false, Some(folder)) => {
                let path = CString::new(folder.into_os_string().into_encoded_bytes());
                let path = path.map_err(doing("showing the device"))?;
                // SAFETY: a terminated string that lives through the call.
                if unsafe { libc::umount(path.as_ptr()) } != 0 {
                    return Err(doing("showing the device")(io::Error::last_os_error()));
                }
            }
            (_, unchanged) => self.0 = unchanged,
        }
        Ok(())
    }
}

/// Ends the emulated machine.
pub fn power_off() -> ! {
    // SAFETY: plain system calls; the first returns nothing, the second only on failure.
    unsafe {
        libc::sync();
        libc::reboot(libc::RB_POWER_OFF);
        libc::_exit(1)
    }
}

/// Brings the loopback interface up: servers and their clients talk over it.
pub fn loopback_up() -> io::Result<()> {
    with_socket(libc::AF_INET, libc::SOCK_DGRAM, 0, |socket| {
        interface_up(socket, "lo")
    })
}

/// Does something with a socket that is closed afterwards.
pub fn with_socket<T>(
    family: libc::c_int,
    kind: libc::c_int,
    protocol: libc::c_int,
    work: impl FnOnce(libc::c_int) -> io::Result<T>,
) -> io::Result<T> {
    // SAFETY: the descriptor is fresh and owned by nobody else.
    let socket = unsafe {
        OwnedFd::from_raw_fd(check(libc::socket(
            family,
            kind | libc::SOCK_CLOEXEC,
            protocol,
        ))?)
    };
    work(socket.as_raw_fd())
}

/// A request about the interface of this name.
pub fn named_request(name: &str) -> libc::ifreq {
    // SAFETY: plain data, for which zeroes are valid.
    let mut request = unsafe { std::mem::zeroed::<libc::ifreq>() };
    for (to, from) in request
        .ifr_name
        .iter_mut()
        .take(libc::IFNAMSIZ - 1)
        .zip(name.bytes())
    {
        *to = from as libc::c_char;
    }
    request
}

/// Brings the interface of this name up.
pub fn interface_up(socket: libc::c_int, name: &str) -> io::Result<()> {
    let mut request = named_request(name);
    // SAFETY: the requests read and write the structure; of its union they use the flags alone.
    unsafe {
        check(libc::ioctl(
            socket,
            libc::SIOCGIFFLAGS as _,
            &raw mut request,
        ))?;
        request.ifr_ifru.ifru_flags |= libc::IFF_UP as libc::c_short;
        check(libc::ioctl(
            socket,
            libc::SIOCSIFFLAGS as _,
            &raw mut request,
        ))
        .map(drop)
    }
}

/// Do Linux's nodes have the CPUs that the machine file gives them, and are those offline that
/// shall be?
pub fn check_nodes(expected: &[Option<String>]) -> Result<()> {
    for (node, wanted) in expected.iter().enumerate() {
        let path = format!("/sys/devices/system/node/node{node}/cpulist");
        let Some(wanted) = wanted else {
            if Path::new(&path).exists() {
                return Err(format!(
                    "Linux has put node{node} online in spite of --offline"
                ));
            }
            continue;
        };
        let seen = fs::read_to_string(&path).map_err(doing(format!("reading {path}")))?;
        if seen.trim() != wanted {
            return Err(format!(
                "Linux gives node{node} the CPUs `{}`, the machine file `{wanted}`",
                seen.trim()
            ));
        }
    }
    Ok(())
}

/// Puts the system into the state in which every run starts: no process but this one, no cached
/// files, no fragments, empty scratch directories.
pub fn reset() -> Result<()> {
    end_everything();
    for directory in PER_RUN {
        empty(Path::new(directory));
    }
    // SAFETY: a plain system call.
    unsafe { libc::sync() };
    for (path, value) in [
        ("/proc/sys/vm/drop_caches", "3"),
        ("/proc/sys/vm/compact_memory", "1"),
    ] {
        fs::write(path, value).map_err(doing(format!("writing {path}")))?;
    }
    Ok(())
}

/// Ends all other processes and collects them.
pub fn end_everything() {
    // SAFETY: from process 1, -1 means every process but itself and the kernel's threads.
    unsafe {
        libc::kill(-1, libc::SIGKILL);
        while libc::waitpid(-1, std::ptr::null_mut(), 0) > 0 {}
    }
}

fn empty(directory: &Path) {
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let path = entry.path();
        let is_directory = entry.file_type().is_ok_and(|kind| kind.is_dir());
        // What cannot be removed is a later run's finding, not a reason to stop.
        let _ = if is_directory {
            fs::remove_dir_all(path)
        } else {
            fs::remove_file(path)
        };
    }
}
