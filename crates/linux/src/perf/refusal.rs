//! Why the kernel does not open an event, in words, and what would help.
//!
//! `kernel.perf_event_paranoid`: up to 2 a user counts user mode of their own processes, up to 0 whole
//! CPUs and what lies outside the cores; 3 and 4 are of distributions and forbid all of it.
//! CAP_PERFMON does without (`Documentation/admin-guide/perf-security.rst`).

use crate::error::Error;
use crate::root::Root;
use crate::sys::{self, no_descriptor};
use std::io;

/// Where errors of events happen.
pub const PLACE: &str = "perf_event_open";
/// The sysctl.
pub const PARANOID: &str = "proc/sys/kernel/perf_event_paranoid";

/// What an event was to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asked {
    /// To be sampled on all CPUs.
    Samples,
    /// To be counted for a process.
    ProcessCounts,
    /// To be counted for CPUs, whoever runs.
    CpuCounts,
    /// To be counted outside the cores.
    UncoreCounts,
}

impl Asked {
    fn verb(self) -> &'static str {
        match self {
            Self::Samples => "sampled on all CPUs",
            Self::ProcessCounts => "counted for this process",
            Self::CpuCounts => "counted on all CPUs",
            Self::UncoreCounts => "counted outside the cores",
        }
    }

    /// The largest `kernel.perf_event_paranoid` at which any user may.
    fn most_paranoid(self) -> i32 {
        match self {
            Self::ProcessCounts => 2,
            Self::Samples | Self::CpuCounts | Self::UncoreCounts => 0,
        }
    }
}

/// The setting as a number; `None` where it cannot be read.
#[must_use]
pub fn paranoid(root: &Root) -> Option<i32> {
    let text = root.text_if_any(PARANOID).ok().flatten()?;
    text.trim().parse().ok()
}

/// Would a user without privileges be refused by the setting alone? The reason and the remedy.
#[must_use]
pub fn forbidden(root: &Root, asked: Asked) -> Option<(String, String)> {
    let setting = paranoid(root)?;
    let most = asked.most_paranoid();
    (setting > most).then(|| {
        (
            format!("kernel.perf_event_paranoid is {setting}"),
            format!(
                "run hither as root, give it CAP_PERFMON, or set kernel.perf_event_paranoid to {most}"
            ),
        )
    })
}

/// Why the kernel does not open an event.
#[must_use]
pub fn refusal(root: &Root, what: &str, asked: Asked, error: io::Error) -> Error {
    let setting = paranoid(root);
    let shown = setting.map_or_else(|| "?".to_owned(), |setting| setting.to_string());
    let verb = asked.verb();
    let (reason, remedy) = match error.raw_os_error() {
        Some(libc::EACCES | libc::EPERM) if sys::effective_uid() == 0 => (
            format!("{what} may not be {verb}, even by this root user"),
            "give hither CAP_PERFMON: in a container `--cap-add PERFMON` (with Podman SYS_ADMIN), which \
             its filter of system calls goes by"
                .to_owned(),
        ),
        Some(libc::EACCES | libc::EPERM)
            if asked == Asked::ProcessCounts && setting.is_some_and(|setting| setting <= 2) =>
        {
            (
                format!("{what} may not be {verb}: it is another user's, or protected"),
                "run hither as root, or as the process's user".to_owned(),
            )
        }
        Some(libc::EACCES | libc::EPERM) => (
            format!("{what} may not be {verb} by this user (kernel.perf_event_paranoid is {shown})"),
            format!(
                "run hither as root, give it CAP_PERFMON, or set kernel.perf_event_paranoid to {}",
                asked.most_paranoid()
            ),
        ),
        Some(libc::ENOSYS) => (
            "this kernel has no perf events".to_owned(),
            "use a kernel with CONFIG_PERF_EVENTS".to_owned(),
        ),
        Some(libc::ENOENT | libc::ENODEV | libc::EOPNOTSUPP | libc::ENXIO) => match asked {
            Asked::Samples => (
                format!("the hardware does not sample {what} ({error})"),
                "use a machine whose PMU samples memory accesses, or a hypervisor that passes it \
                 through"
                    .to_owned(),
            ),
            _ => (
                format!("the hardware does not count {what} ({error})"),
                "use real hardware, or a hypervisor that passes the PMU through".to_owned(),
            ),
        },
        Some(libc::EINVAL | libc::E2BIG) => (
            format!("this kernel does not know how {what} are asked for ({error})"),
            "use a newer kernel".to_owned(),
        ),
        Some(libc::EBUSY) => (
            format!("somebody else has the counters for {what} ({error})"),
            "stop the other profiler".to_owned(),
        ),
        _ if no_descriptor(&error) => (
            format!("{what} need more descriptors than there are ({error})"),
            "raise the limit (ulimit -n)".to_owned(),
        ),
        _ => (
            format!("{what} cannot be {verb} ({error})"),
            "see `hither topo --doctor`".to_owned(),
        ),
    };
    Error::io(PLACE, reason, remedy, error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_refusal_says_what_helps() {
        let root = Root::host();
        for errno in [
            libc::EACCES,
            libc::EPERM,
            libc::ENOSYS,
            libc::ENOENT,
            libc::EINVAL,
            libc::E2BIG,
            libc::EBUSY,
            libc::EMFILE,
            libc::EIO,
        ] {
            for asked in [
                Asked::Samples,
                Asked::ProcessCounts,
                Asked::CpuCounts,
                Asked::UncoreCounts,
            ] {
                let error = refusal(&root, "loads", asked, io::Error::from_raw_os_error(errno));
                assert_eq!(error.errno(), Some(errno));
                assert!(error.to_string().starts_with("perf_event_open: "));
                assert!(!error.remedy.is_empty(), "{error}");
            }
        }
    }

    #[test]
    fn the_setting_forbids_by_what_is_asked() {
        let folder = tempfile::tempdir().unwrap();
        let root = Root::new(folder.path());
        assert_eq!(forbidden(&root, Asked::CpuCounts), None, "not told");
        let path = folder.path().join(PARANOID);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        let set = |text: &str| {
            std::fs::write(&path, text).unwrap();
            [Asked::ProcessCounts, Asked::CpuCounts, Asked::UncoreCounts]
                .map(|asked| forbidden(&root, asked).is_some())
        };
        assert_eq!(set("-1\n"), [false; 3]);
        assert_eq!(set("1\n"), [false, true, true]);
        assert_eq!(set("2\n"), [false, true, true]);
        assert_eq!(set("4\n"), [true; 3]);
        assert_eq!(set("many\n"), [false; 3]);
    }
}
