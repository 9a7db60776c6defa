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
            "process {} is not yours; run hither as its owner or as root",
            stat.name.shown()
        );
    }
    if stat.has_ended() {
        bail!("the process has ended; give the number of a running one");
    }
    Ok(())
}
