//! Which files a process uses: those that it maps, and those that it has open for reading.

use crate::error::Result;
use crate::fixed::device;
use crate::proc::{maps, numa_maps};
use crate::root::Root;
use crate::sys::OwnMapping;
use std::collections::BTreeSet;
use std::path::PathBuf;

/// Files of a process at most.
const MOST_FILES: usize = 256;
/// Descriptors that are looked at.
const MOST_DESCRIPTORS: usize = 1 << 14;

/// How a process uses a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HowUsed {
    /// It has mapped it.
    Mapped,
    /// It has it open for reading.
    Open,
}

impl HowUsed {
    /// For a table.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Mapped => "mapped",
            Self::Open => "open",
        }
    }
}

/// What tells a file from another with its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Identity {
    /// As the address map has it.
    Mapped { device: (u32, u32), inode: u64 },
    /// What a descriptor leads to.
    Open { fd: u32 },
}

/// A file that a process uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Used {
    /// Its name, as the process sees it.
    pub path: PathBuf,
    /// How.
    pub how: HowUsed,
    pub(super) identity: Identity,
}

/// The files of a process, those that it maps first, each once; and how many more there are. Programs
/// and libraries (what is mapped to be executed) are none of them: each process of the machine has those
/// in common.
///
/// # Errors
/// No such process, or it is somebody else's.
pub fn used(root: &Root, pid: i32) -> Result<(Vec<Used>, usize)> {
    let mappings = maps::read(root, pid)?;
    let mut all = mapped(&mappings);
    let mut known: BTreeSet<PathBuf> = all.iter().map(|used| used.path.clone()).collect();
    known.extend(programs(&mappings).map(PathBuf::from));
    let descriptors = root.numbered(&format!("proc/{pid}/fd"), "")?;
    for fd in descriptors.into_iter().take(MOST_DESCRIPTORS) {
        let Ok(path) = std::fs::read_link(root.path(&format!("proc/{pid}/fd/{fd}"))) else {
            continue;
        };
        let is_file = path.to_str().is_some_and(is_file);
        if !is_file || known.contains(&path) {
            continue;
        }
        let about = root.text_if_any(&format!("proc/{pid}/fdinfo/{fd}"))?;
        if about.is_some_and(|about| is_readable(&about)) {
            known.insert(path.clone());
            all.push(Used {
                path,
                how: HowUsed::Open,
                identity: Identity::Open { fd },
            });
        }
    }
    let more = all.len().saturating_sub(MOST_FILES);
    all.truncate(MOST_FILES);
    Ok((all, more))
}

/// The files among mappings.
fn mapped(mappings: &[OwnMapping]) -> Vec<Used> {
    let programs: BTreeSet<&str> = programs(mappings).collect();
    let mut known = BTreeSet::new();
    let mut all = Vec::new();
    for mapping in mappings {
        let (device, inode) = (mapping.device, mapping.inode);
        let is_one = inode != 0 && is_file(&mapping.name) && !programs.contains(&*mapping.name);
        if is_one && known.insert((device, inode)) {
            all.push(Used {
                // The kernel escapes line breaks alone.
                path: mapping.name.replace("\\012", "\n").into(),
                how: HowUsed::Mapped,
                identity: Identity::Mapped { device, inode },
            });
        }
    }
    all
}

fn programs(mappings: &[OwnMapping]) -> impl Iterator<Item = &str> {
    let executed = mappings.iter().filter(|mapping| mapping.executable);
    executed.map(|mapping| mapping.name.as_str())
}

/// Can a name be that of a regular file?
fn is_file(name: &str) -> bool {
    name.starts_with('/')
        && !name.ends_with(" (deleted)")
        && !numa_maps::is_memory(name)
        && device::of_name(name).is_none()
        && !["/dev/", "/proc/", "/sys/"]
            .iter()
            .any(|tree| name.starts_with(tree))
}

/// Is a descriptor open for reading? The last octal digit of its flags is the access mode.
///
/// ```text
/// flags:    0100002
/// ```
fn is_readable(fdinfo: &str) -> bool {
    const O_ACCMODE: u32 = 3;
    const O_WRONLY: u32 = 1;
    const O_PATH: u32 = 0o10_000_000;
    let flags = fdinfo.lines().find_map(|line| line.strip_prefix("flags:"));
    let flags = flags.and_then(|flags| u32::from_str_radix(flags.trim(), 8).ok());
    flags.is_some_and(|flags| flags & O_ACCMODE != O_WRONLY && flags & O_PATH == 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;

    const MAPS: &str = "\
1000-2000 r-xp 00000000 08:01 10                       /usr/bin/db
2000-3000 r--p 00001000 08:01 10                       /usr/bin/db
3000-5000 r--s 00000000 08:01 20                       /srv/a b
5000-6000 rw-s 00002000 08:01 20                       /srv/a b
6000-7000 rw-s 00000000 00:01 21                       /memfd:x (deleted)
7000-8000 rw-s 00000000 00:05 22                       /dev/nvidia0
8000-9000 r--s 00000000 08:01 23                       /srv/old (deleted)
9000-a000 rw-p 00000000 00:00 0                        [heap]
";

    #[test]
    fn files_that_are_mapped_or_open_for_reading_are_found_once() {
        let folder = tempfile::tempdir().unwrap();
        let root = Root::new(folder.path());
        for below in ["fd", "fdinfo"] {
            fs::create_dir_all(root.path(&format!("proc/7/{below}"))).unwrap();
        }
        fs::write(root.path("proc/7/maps"), MAPS).unwrap();
        for (fd, target, flags) in [
            (3, "/srv/a b", "0100000"),
            (4, "/srv/log", "0102001"),
            (5, "/srv/data", "0100002"),
            (6, "/srv/data", "0100000"),
            (7, "socket:[99]", "02"),
            (8, "/usr/bin/db", "0100000"),
            (9, "/srv/place", "012000000"),
            (10, "/dev/vfio/1", "02"),
        ] {
            symlink(target, root.path(&format!("proc/7/fd/{fd}"))).unwrap();
            let about = format!("pos:\t0\nflags:\t{flags}\nmnt_id:\t1\n");
            fs::write(root.path(&format!("proc/7/fdinfo/{fd}")), about).unwrap();
        }
        let (all, more) = used(&root, 7).unwrap();
        let told: Vec<(&str, HowUsed)> = all
            .iter()
            .map(|used| (used.path.to_str().unwrap(), used.how))
            .collect();
        assert_eq!(
            told,
            [("/srv/a b", HowUsed::Mapped), ("/srv/data", HowUsed::Open)]
        );
        assert_eq!(more, 0);
        assert!(used(&root, 8).is_err());
    }
}
