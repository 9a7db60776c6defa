//! System calls that are refused whoever asks and whatever is asked for: by a filter (seccomp), as
//! containers and services have one, or by a kernel that is built without them.
//!
//! Mechanism: the calls of [`CALLS`] never answer `EPERM` to what hither asks of them by
//! themselves, and every kernel since Linux 5.3 has them unless it is built without (`ENOSYS`). So
//! such an answer is no question of nodes, CPUs or memory, and the remedy is to allow the call.
//!
//! Source: the default profiles of moby (`profiles/seccomp/default.json`), containerd
//! (`contrib/seccomp/seccomp_default.go`) and Podman (`containers/common`, `pkg/seccomp`): a
//! capability that the container has allows some calls; others are in no default profile.

use crate::error::{Error, Result};
use crate::parse;
use crate::root::Root;
use crate::sys;
use hither_core::set::NodeSet;
use std::io;

/// What allows a call in a container.
#[derive(Clone, Copy)]
enum Allowed {
    /// This capability, where the default profile is used.
    By(&'static str),
    /// Every default profile of today.
    Today,
    /// No default profile, whatever capabilities there are.
    Never,
}
use Allowed::{By, Never, Today};

/// Calls with what allows them, and what a kernel without them lacks.
const CALLS: [(&str, Allowed, &str); 9] = [
    ("get_mempolicy", By("SYS_NICE"), "CONFIG_NUMA"),
    ("set_mempolicy", By("SYS_NICE"), "CONFIG_NUMA"),
    ("mbind", By("SYS_NICE"), "CONFIG_NUMA"),
    ("move_pages", Never, "CONFIG_NUMA and CONFIG_MIGRATION"),
    ("userfaultfd", Never, "CONFIG_USERFAULTFD"),
    ("sched_setaffinity", Today, "CONFIG_SMP"),
    ("pidfd_open", Today, "Linux 5.3"),
    ("memfd_create", Today, "CONFIG_MEMFD_CREATE"),
    ("clone3", Today, "Linux 5.3"),
];

/// Does a filter decide about the system calls of this thread?
#[must_use]
pub fn is_on() -> bool {
    let status = Root::host().text_if_any("proc/thread-self/status");
    status.ok().flatten().is_some_and(|text| is_on_by(&text))
}

/// ```text
/// Seccomp:        2
/// ```
fn is_on_by(status: &str) -> bool {
    let mode = status
        .lines()
        .find_map(|line| line.strip_prefix("Seccomp:"));
    mode.is_some_and(|mode| mode.trim() == "2")
}

/// Does this error say that nobody may make the call here?
#[must_use]
pub fn refuses(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EPERM | libc::ENOSYS))
}

/// Is memory where it should be without a policy, where the kernel refuses every policy? So it is
/// on a machine with one node.
#[must_use]
pub fn needs_no_policy(error: &io::Error) -> bool {
    let root = Root::host();
    let with_memory = || root.parse_if_any("sys/devices/system/node/has_memory", parse::list);
    let is_alone = |nodes: Option<NodeSet>| nodes.is_none_or(|nodes| nodes.len() == 1);
    refuses(error) && with_memory().is_ok_and(is_alone)
}

/// What is to be done where a call is refused to everybody; `None` for calls that are not known
/// here, and for errors that are about what was asked for.
#[must_use]
pub fn remedy(call: &str, error: &io::Error) -> Option<String> {
    remedy_where(call, error, is_on())
}

fn remedy_where(call: &str, error: &io::Error, is_filtered: bool) -> Option<String> {
    let &(_, allowed, built_in) = CALLS.iter().find(|(name, ..)| *name == call)?;
    let profile = format!(
        "with `--security-opt seccomp=FILE`, a copy of the runtime's default profile with {call} in \
         its list"
    );
    let how = match allowed {
        By(capability) => {
            format!("start the container with `--cap-add {capability}`, or {profile}")
        }
        Never => format!("start the container {profile}: no capability does it"),
        Today => format!("use a newer container runtime (Docker 20.10.10), or start it {profile}"),
    };
    let since = match built_in.starts_with("CONFIG_") {
        true => "a kernel with ",
        false => "",
    };
    match (error.raw_os_error()?, is_filtered) {
        (libc::EPERM, true) => Some(format!(
            "the filter of system calls (seccomp) of this container or service forbids it: {how}"
        )),
        (libc::EPERM, false) => Some(
            "a rule of this system forbids it to every program (as a security module)".to_owned(),
        ),
        (libc::ENOSYS, true) => Some(format!(
            "use {since}{built_in}; or, as this process has a filter of system calls (seccomp) that \
             may hide it, {how}"
        )),
        (libc::ENOSYS, false) => Some(format!("use {since}{built_in}")),
        _ => None,
    }
}

/// Can this process make threads? Old containers forbid it to every program.
///
/// # Errors
/// It can make none, with what mends that.
pub fn check_threads() -> Result<()> {
    let started = std::thread::Builder::new().spawn(|| ());
    started.map(drop).map_err(no_thread)
}

/// A thread could not be started.
#[must_use]
pub fn no_thread(error: io::Error) -> Error {
    let remedy =
        "end some, or raise the limit (ulimit -u, ulimit -v, pids.max of the control group)";
    Error::call("clone3", "no thread can be started", remedy, error)
}

/// What lets this process look at those of other users.
#[must_use]
pub fn to_see_others() -> &'static str {
    match sys::effective_uid() {
        0 => "give hither CAP_SYS_PTRACE, as a container's root has it by `--cap-add SYS_PTRACE`",
        _ => "run hither as its owner or as root",
    }
}

/// What root may do that has this capability.
#[must_use]
pub fn as_root(capability: &str) -> String {
    match sys::effective_uid() {
        0 => format!(
            "run hither where root has CAP_{capability}: outside of containers, or in one with \
             `--cap-add {capability}`"
        ),
        _ => format!("run hither as root (CAP_{capability})"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mode_of_the_filter_is_read() {
        assert!(is_on_by("Name:\tcat\nSeccomp:\t2\nSeccomp_filters:\t1\n"));
        for off in [
            "",
            "Seccomp:\t0\nSeccomp_filters:\t2\n",
            "Name:\tSeccomp:\n",
        ] {
            assert!(!is_on_by(off), "{off}");
        }
    }

    #[test]
    fn remedies_fit_who_refuses_and_what_allows_it() {
        let remedy = |call, number, is_filtered| {
            remedy_where(call, &io::Error::from_raw_os_error(number), is_filtered)
        };
        let nice = remedy("mbind", libc::EPERM, true).unwrap();
        assert!(
            nice.contains("(seccomp)") && nice.contains("--cap-add SYS_NICE"),
            "{nice}"
        );
        let moves = remedy("move_pages", libc::EPERM, true).unwrap();
        assert!(
            moves.contains("no capability") && !moves.contains("SYS_NICE"),
            "{moves}"
        );
        let built = remedy("mbind", libc::ENOSYS, false).unwrap();
        assert_eq!(built, "use a kernel with CONFIG_NUMA");
        let either = remedy("mbind", libc::ENOSYS, true).unwrap();
        assert!(
            either.contains("CONFIG_NUMA; or") && either.contains("SYS_NICE"),
            "{either}"
        );
        let old = remedy("clone3", libc::EPERM, true).unwrap();
        assert!(old.contains("20.10.10"), "{old}");
        assert_eq!(remedy("mbind", libc::EINVAL, true), None);
        assert_eq!(remedy("openat", libc::EPERM, true), None);
    }
}
