//! Starting the program under a policy.

use super::rivals::{fast_nodes, memory_nodes};
use super::wants_input;
use crate::image::AGENT_PATH;
use crate::os;
use crate::policies::Launch;
use crate::protocol::{Job, MACHINE_PATH, RunSpec, Stdin};
use hither_core::set::NodeSet;
use hither_linux::root::Root;
use std::ffi::CStr;
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

/// Where `hither run` leaves its report.
pub const REPORT_PATH: &str = "/hither/report.json";
/// Where `hither run --learn` keeps what it learned, until the guest is switched off.
const LEARNED_FOLDER: &str = "/hither/learned";
/// `MPOL_INTERLEAVE` of `linux/mempolicy.h`.
const MPOL_INTERLEAVE: libc::c_long = 3;
/// `MPOL_WEIGHTED_INTERLEAVE`, of Linux 6.9.
const MPOL_WEIGHTED_INTERLEAVE: libc::c_long = 6;
/// `MPOL_PREFERRED_MANY`, of Linux 5.15.
const MPOL_PREFERRED_MANY: libc::c_long = 5;
/// Bits of a node mask: the lab has at most 8 nodes.
const MASK_BITS: usize = 64;

/// A started program with the agent's ends of its streams.
#[derive(Debug)]
pub struct Started {
    /// The process, as something to wait for.
    pub child: std::process::Child,
    /// `CLOCK_MONOTONIC` just before exec.
    pub start_ns: u64,
    /// Its input, while open.
    pub input: Option<OwnedFd>,
    /// Its standard output, or the terminal.
    pub output: Option<OwnedFd>,
    /// Its standard error; none with a terminal.
    pub errors: Option<OwnedFd>,
}

/// Starts one run.
///
/// # Errors
/// As exec(2): not found, not executable.
pub fn start(job: &Job, spec: &RunSpec) -> io::Result<Started> {
    let mut command = command(job, spec);
    let (clock, clock_writer) = pipe()?;
    let clock_fd = clock_writer.as_raw_fd();
    let policy = match spec.launch {
        Launch::Interleave => Some((MPOL_INTERLEAVE, mask(memory_nodes(&Root::host()))?)),
        Launch::Weighted => {
            let nodes = memory_nodes(&Root::host());
            Some((MPOL_WEIGHTED_INTERLEAVE, mask(nodes)?))
        }
        Launch::FastFirst => Some((MPOL_PREFERRED_MANY, mask(fast_nodes(&Root::host()))?)),
        Launch::Plain | Launch::Damon | Launch::Oracle | Launch::Hither => None,
    };
    let is_oracle = spec.launch == Launch::Oracle;
    let terminal = job.stdin == Stdin::Terminal;
    let (leader, ends) = if terminal {
        let (leader, follower) = open_terminal()?;
        command
            .stdin(follower.try_clone()?)
            .stdout(follower.try_clone()?)
            .stderr(follower);
        (Some(leader), None)
    } else {
        command.stdin(if wants_input(job) {
            Stdio::piped()
        } else {
            Stdio::null()
        });
        let (output, output_writer) = pipe()?;
        let (errors, errors_writer) = pipe()?;
        command.stdout(output_writer).stderr(errors_writer);
        (None, Some((output, errors)))
    };
    // SAFETY: the closure makes only system calls that are allowed between fork and exec, and
    // allocates nothing.
    unsafe {
        command.pre_exec(move || {
            libc::setsid();
            if terminal {
                libc::ioctl(0, libc::TIOCSCTTY, 0);
            }
            if let Some((mode, mask)) = policy {
                let result =
                    libc::syscall(libc::SYS_set_mempolicy, mode, &raw const mask, MASK_BITS);
                if result != 0 {
                    return Err(io::Error::last_os_error());
                }
            }
            if is_oracle {
                // The same addresses in each run.
                libc::personality(libc::ADDR_NO_RANDOMIZE as libc::c_ulong);
            }
            os::write(clock_fd, &os::monotonic_ns().to_ne_bytes()).map(drop)
        });
    }
    let mut child = command.spawn()?;
    drop(clock_writer);
    // `Command` keeps copies of the streams it was given; the ends must be seen when all close.
    drop(command);
    let mut stamp = [0; 8];
    let got = os::read(clock.as_raw_fd(), &mut stamp)?;
    let start_ns = if got == stamp.len() {
        u64::from_ne_bytes(stamp)
    } else {
        os::monotonic_ns()
    };
    let input = child.stdin.take().map(OwnedFd::from);
    let (input, output, errors) = match (leader, ends) {
        (Some(leader), _) => (Some(leader.try_clone()?), Some(leader), None),
        (None, Some((output, errors))) => (input, Some(output), Some(errors)),
        (None, None) => (input, None, None),
    };
    Ok(Started {
        child,
        start_ns,
        input,
        output,
        errors,
    })
}

fn command(job: &Job, spec: &RunSpec) -> Command {
    let mut command = if spec.launch == Launch::Hither {
        let mut command = Command::new(AGENT_PATH);
        command
            .arg0("hither")
            .args(["run", "--policy", &spec.policy, "--machine", MACHINE_PATH]);
        if spec.learns {
            command.arg("--learn");
        }
        command
            .args(["--json", REPORT_PATH])
            .args(&job.hither_arguments)
            .arg("--")
            .arg(&spec.program);
        command
    } else {
        let mut command = Command::new(&spec.program);
        command.arg0(&spec.argv[0]);
        command
    };
    command
        .args(&spec.argv[1..])
        .current_dir(&job.cwd)
        .env_clear();
    command.envs(job.env.iter().map(|(name, value)| (name, value)));
    if spec.learns {
        // What one policy taught, or one kind of evidence, is not another's. The program sees the variable, too.
        let folder = format!("{LEARNED_FOLDER}/{}-{}", spec.policy, spec.evidence.name());
        command.env("XDG_STATE_HOME", folder);
    }
    command
}

/// A bit for each of these nodes.
fn mask(nodes: Result<NodeSet, String>) -> io::Result<u64> {
    Ok(nodes
        .map_err(io::Error::other)?
        .iter()
        .filter(|node| (node.0 as usize) < MASK_BITS)
        .fold(0, |mask, node| mask | 1 << node.0))
}

/// A pipe; both ends are closed on exec.
fn pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    let (reader, writer) = io::pipe()?;
    Ok((reader.into(), writer.into()))
}

/// A terminal: the agent's end and the program's end.
fn open_terminal() -> io::Result<(OwnedFd, File)> {
    // SAFETY: plain calls on a fresh descriptor that nobody else owns; the name is terminated by
    // ptsname_r within the buffer.
    unsafe {
        let leader = libc::posix_openpt(libc::O_RDWR | libc::O_NOCTTY | libc::O_CLOEXEC);
        if leader < 0 {
            return Err(io::Error::last_os_error());
        }
        let leader = OwnedFd::from_raw_fd(leader);
        let fd = leader.as_raw_fd();
        let mut name = [0 as libc::c_char; 64];
        if libc::grantpt(fd) != 0
            || libc::unlockpt(fd) != 0
            || libc::ptsname_r(fd, name.as_mut_ptr(), name.len()) != 0
        {
            return Err(io::Error::last_os_error());
        }
        let path = CStr::from_ptr(name.as_ptr()).to_string_lossy().into_owned();
        let follower = fs::OpenOptions::new().read(true).write(true).open(path)?;
        Ok((leader, follower))
    }
}
