//! Processes that somebody names by their number.

use anyhow::bail;
use hither_core::foreign::Foreign;
use hither_linux::proc::stat;
use hither_linux::root::Root;
use std::io::ErrorKind;

/// Can it be looked at? The answer is half a sentence, for who knows where the number came from.
///
/// # Errors
/// There is no such process, it has ended, is none with memory of its own, or is somebody else's.
pub fn check(root: &Root, pid: i32) -> anyhow::Result<()> {
    let Some(stat) = stat::read(root, pid) else {
        bail!("there is no such process; give the number of a running one");
    };
    if stat.is_kernel() {
        bail!("this is a thread of the kernel and has no memory of its own");
    }
    let status = root.text_if_any(&format!("proc/{pid}/status"))?;
    let group = status.as_deref().and_then(|text| {
        let line = text.lines().find_map(|line| line.strip_prefix("Tgid:"));
        line?.trim().parse::<i32>().ok()
    });
    if let Some(group) = group.filter(|&group| group != pid) {
        bail!("this is a thread of process {group}; give that number");
    }
    let opened = std::fs::File::open(root.path(&format!("proc/{pid}/maps")));
    if opened.is_err_and(|error| error.kind() == ErrorKind::PermissionDenied) {
        bail!(
            "process {} is not yours; {}",
            stat.name.shown(),
            hither_linux::filter::to_see_others()
        );
    }
    if stat.has_ended() {
        bail!("the process has ended; give the number of a running one");
    }
    Ok(())
}

/// Where control groups are, from the root on.
pub const CGROUPS: &str = "sys/fs/cgroup";

/// The folder of a control group that somebody names by its path below `/sys/fs/cgroup`, from the root on.
///
/// # Errors
/// There is none.
pub fn cgroup(root: &Root, group: &str) -> anyhow::Result<String> {
    let inner = group.trim_start_matches("/sys/fs/cgroup").trim_matches('/');
    let folder = match inner {
        "" => CGROUPS.to_owned(),
        inner => format!("{CGROUPS}/{inner}"),
    };
    if inner.split('/').any(|part| part == "..") || !root.has(&format!("{folder}/cgroup.procs")) {
        bail!(
            "there is no such control group; give its path below {}, as `systemd-cgls` shows it",
            root.path(CGROUPS).shown()
        );
    }
    Ok(folder)
}
