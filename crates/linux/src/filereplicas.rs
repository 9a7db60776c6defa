//! What the shim `libhither_mirror.so` leaves: reports of processes, and copies of those that were killed.

use hither_core::mirror::name::Name;
use hither_core::mirror::report::ProcessReport;
use rustix::fs::{FlockOperation, flock};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Most bytes of a report.
const MOST_BYTES: u64 = 1 << 20;

/// Reports in a folder, by the number of the process.
#[must_use]
pub fn reports(folder: &Path) -> Vec<ProcessReport> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let named = entries.filter(|entry| {
        let name = entry.file_name();
        name.to_str()
            .is_some_and(|name| name.parse::<u32>().is_ok())
    });
    let texts = named.filter_map(|entry| hither_files::read(&entry.path(), MOST_BYTES).ok());
    let texts = texts.filter_map(|bytes| String::from_utf8(bytes).ok());
    let mut reports: Vec<ProcessReport> = texts.filter_map(|text| text.parse().ok()).collect();
    reports.sort_by_key(|report| report.pid);
    reports
}

/// Removes copies of this user's, in their folder, that nobody uses: whoever does has them locked. Returns
/// how many were removed.
pub fn reap(folder: &Path) -> usize {
    let own = rustix::process::geteuid().as_raw();
    let is_own = |path: &Path| {
        fs::symlink_metadata(path).is_ok_and(|status| status.uid() == own && !status.is_symlink())
    };
    if !is_own(folder) {
        return 0;
    }
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mirrors = entries.filter(|entry| {
        let name = entry.file_name();
        let is_named = name
            .to_str()
            .is_some_and(|name| name.parse::<Name>().is_ok());
        is_named && is_own(&entry.path())
    });
    let unused = mirrors.filter(|entry| {
        let file = hither_files::open(&entry.path());
        file.is_ok_and(|file| {
            let alone = FlockOperation::NonBlockingLockExclusive;
            // Removed while it is locked: who joins it meanwhile finds its name gone.
            flock(&file, alone).is_ok() && fs::remove_file(entry.path()).is_ok()
        })
    });
    unused.count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unused_copies_go_and_used_ones_stay() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        for name in ["1-2-3-4-5.n0", "1-2-3-4-6.n0", "other"] {
            fs::write(path(name), "x").unwrap();
        }
        let used = fs::File::open(path("1-2-3-4-6.n0")).unwrap();
        flock(&used, FlockOperation::NonBlockingLockShared).unwrap();
        assert_eq!(reap(folder.path()), 1);
        assert!(!path("1-2-3-4-5.n0").exists());
        assert!(path("1-2-3-4-6.n0").exists() && path("other").exists());
        drop(used);
        assert_eq!(reap(folder.path()), 1);
        assert_eq!(reap(Path::new("/no/such/folder")), 0);
    }

    #[test]
    fn reports_are_those_of_processes() {
        let folder = tempfile::tempdir().unwrap();
        for (name, text) in [
            ("12", "process\t12\t3\n"),
            ("9", "process\t9\t3\n"),
            (".13", "process\t13\t3\n"),
            ("14", "nonsense"),
        ] {
            fs::write(folder.path().join(name), text).unwrap();
        }
        let pids: Vec<u32> = reports(folder.path())
            .iter()
            .map(|report| report.pid)
            .collect();
        assert_eq!(pids, [9, 12]);
    }
}
