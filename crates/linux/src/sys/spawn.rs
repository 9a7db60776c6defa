//! Starting a program with a signal mask of its own.
//!
//! `fork(2)` copies the page tables of the parent, and the child copies the pages that it writes
//! until it executes: half a million instructions more (`hither record -- true` in the lab), of a recorder
//! that is to cost next to nothing.
//! `posix_spawn(3)` copies nothing, and executes at once: what is to happen in the child beforehand
//! (`pre_exec`) it does not.

use super::{Ended, check_returned, signal_child, wait_child};
use std::cell::Cell;
use std::ffi::{CString, OsStr};
use std::io;
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::ptr;

/// A child that was started. Who drops it before its end was told ends it, so that an error never
/// leaves a program running behind it.
#[derive(Debug)]
pub struct Started {
    pid: i32,
    was_reaped: Cell<bool>,
}

impl Started {
    fn new(pid: i32) -> Self {
        Self {
            pid,
            was_reaped: Cell::new(false),
        }
    }

    /// Its number, which is nobody else's until it is reaped.
    #[must_use]
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// Somebody has reaped it: the number means it no more.
    pub fn set_reaped(&self) {
        self.was_reaped.set(true);
    }

    /// Has it been?
    #[must_use]
    pub fn was_reaped(&self) -> bool {
        self.was_reaped.get()
    }

    /// Sends a signal, unless it was reaped.
    pub fn signal(&self, signal: i32) {
        if !self.was_reaped() {
            signal_child(self.pid, signal);
        }
    }

    /// Waits for its end.
    ///
    /// # Errors
    /// It was reaped already.
    pub fn wait(&self) -> io::Result<Ended> {
        let ended = wait_child(self.pid)?;
        self.set_reaped();
        Ok(ended)
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        if !self.was_reaped() {
            self.signal(libc::SIGKILL);
            // Nobody else waits for it.
            let _ = self.wait();
        }
    }
}

/// Starts a program with this signal mask (this process blocks the signals that it reads from a
/// descriptor, the program must not inherit that). `has_work` says that
/// the command has something to do in the child before it executes.
///
/// # Errors
/// As [`Command::spawn`].
pub fn spawn_with_mask(
    mut command: Command,
    mask: libc::sigset_t,
    has_work: bool,
) -> io::Result<Started> {
    if !has_work {
        match spawn_at_once(&command, &mask) {
            // A script that names no interpreter: execvp(3) gives it to a shell.
            Err(error) if error.raw_os_error() == Some(libc::ENOEXEC) => {}
            done => return done.map(Started::new),
        }
    }
    let set = move || {
        // SAFETY: `mask` is a valid set; pthread_sigmask may be called between fork and exec.
        check_returned(unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &mask, ptr::null_mut()) })
    };
    // SAFETY: the closure calls only the async-signal-safe function above and allocates nothing
    // on success.
    unsafe { command.pre_exec(set) };
    Ok(Started::new(command.spawn()?.id() as i32))
}

/// Program, arguments and environment of the command by `posix_spawnp(3)`.
fn spawn_at_once(command: &Command, mask: &libc::sigset_t) -> io::Result<i32> {
    let program = text(command.get_program())?;
    let mut arguments = vec![program.clone()];
    for argument in command.get_args() {
        arguments.push(text(argument)?);
    }
    let changed = |name: &OsStr| command.get_envs().any(|(other, _)| other == name);
    let kept = std::env::vars_os().filter(|(name, _)| !changed(name));
    let added = command
        .get_envs()
        .filter_map(|(name, value)| Some((name.to_owned(), value?.to_owned())));
    let mut environment = Vec::new();
    for (mut name, value) in kept.chain(added) {
        name.push("=");
        name.push(value);
        environment.push(text(&name)?);
    }
    let mut attributes = MaybeUninit::uninit();
    // SAFETY: initialised by the call, as is the set below.
    check_returned(unsafe { libc::posix_spawnattr_init(attributes.as_mut_ptr()) })?;
    let mut ignored = MaybeUninit::uninit();
    let flags = libc::POSIX_SPAWN_SETSIGMASK | libc::POSIX_SPAWN_SETSIGDEF;
    let mut pid = 0;
    // SAFETY: all pointers are to initialised memory that outlives the calls; both lists end with
    // a null pointer; nothing is kept. The standard library has this process ignore SIGPIPE, which
    // a program must not inherit.
    unsafe {
        libc::sigemptyset(ignored.as_mut_ptr());
        libc::sigaddset(ignored.as_mut_ptr(), libc::SIGPIPE);
        let attributes = attributes.as_mut_ptr();
        let spawned = check_returned(libc::posix_spawnattr_setflags(attributes, flags as i16))
            .and_then(|()| check_returned(libc::posix_spawnattr_setsigmask(attributes, mask)))
            .and_then(|()| {
                check_returned(libc::posix_spawnattr_setsigdefault(
                    attributes,
                    ignored.as_ptr(),
                ))
            })
            .and_then(|()| {
                check_returned(libc::posix_spawnp(
                    &mut pid,
                    program.as_ptr(),
                    ptr::null(),
                    attributes,
                    pointers(&arguments).as_ptr(),
                    pointers(&environment).as_ptr(),
                ))
            });
        libc::posix_spawnattr_destroy(attributes);
        spawned?;
    }
    Ok(pid)
}

fn text(word: &OsStr) -> io::Result<CString> {
    CString::new(word.as_bytes()).map_err(|_| {
        let message = "a word of the command or its environment holds a zero byte";
        io::Error::new(io::ErrorKind::InvalidInput, message)
    })
}

/// With a null pointer at the end.
fn pointers(words: &[CString]) -> Vec<*mut libc::c_char> {
    let words = words.iter().map(|word| word.as_ptr().cast_mut());
    words.chain([ptr::null_mut()]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::PermissionsExt;
    use std::path::Path;

    fn empty() -> libc::sigset_t {
        let mut set = MaybeUninit::uninit();
        // SAFETY: initialised by the call.
        unsafe {
            libc::sigemptyset(set.as_mut_ptr());
            set.assume_init()
        }
    }

    /// What a program leaves in a file, started both ways.
    fn left(make: impl Fn(&Path) -> Command, mask: libc::sigset_t) -> [String; 2] {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("left");
        [false, true].map(|has_work| {
            let started = spawn_with_mask(make(&file), mask, has_work).unwrap();
            assert_eq!(started.wait().unwrap(), Ended::Exited(0));
            fs::read_to_string(&file).unwrap()
        })
    }

    #[test]
    fn both_ways_give_words_and_environment() {
        let shell = |file: &Path| {
            let script = r#"echo "$0 $1 $HITHER_TEST ${HOME-none}" > "$HITHER_FILE""#;
            let mut command = Command::new("sh");
            command.args(["-c", script, "name", "a b"]);
            command.env("HITHER_TEST", "x=y").env("HITHER_FILE", file);
            command.env_remove("HOME");
            command
        };
        assert_eq!(left(shell, empty()), ["name a b x=y none\n"; 2]);
    }

    #[test]
    fn both_ways_give_the_mask_and_no_ignored_pipe() {
        let mut mask = empty();
        // SAFETY: an initialised set.
        unsafe { libc::sigaddset(&mut mask, libc::SIGUSR1) };
        let copy = |file: &Path| {
            let mut command = Command::new("cp");
            command.arg("/proc/self/status").arg(file);
            command
        };
        for status in left(copy, mask) {
            let bits = |name: &str| {
                let line = status.lines().find_map(|line| line.strip_prefix(name));
                u64::from_str_radix(line.unwrap().trim(), 16).unwrap()
            };
            assert_eq!(bits("SigBlk:"), 1 << (libc::SIGUSR1 - 1));
            assert_eq!(bits("SigIgn:") >> (libc::SIGPIPE - 1) & 1, 0);
        }
    }

    #[test]
    fn what_cannot_start_says_why() {
        let kind = |program: &str| {
            let command = Command::new(program);
            spawn_with_mask(command, empty(), false).unwrap_err().kind()
        };
        assert_eq!(kind("/no/such/program"), io::ErrorKind::NotFound);
        assert_eq!(kind("/etc/passwd"), io::ErrorKind::PermissionDenied);
    }

    #[test]
    fn a_script_without_interpreter_is_the_shells() {
        let folder = tempfile::tempdir().unwrap();
        let script = folder.path().join("script");
        fs::write(&script, "exit 3\n").unwrap();
        fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
        let started = spawn_with_mask(Command::new(&script), empty(), false).unwrap();
        assert_eq!(started.wait().unwrap(), Ended::Exited(3));
    }

    #[test]
    fn who_is_dropped_is_ended() {
        let mut command = Command::new("sleep");
        command.arg("60");
        let started = spawn_with_mask(command, empty(), false).unwrap();
        let folder = format!("/proc/{}", started.pid());
        assert!(Path::new(&folder).exists());
        drop(started);
        assert!(!Path::new(&folder).exists());
    }
}
