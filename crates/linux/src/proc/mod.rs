//! What `/proc` tells of processes and CPUs.

pub mod allowed;
mod census;
pub mod cgroup;
pub mod cpu_times;
pub mod cpuinfo;
pub mod frames;
pub mod kept;
pub mod maps;
pub mod numa_maps;
pub mod others;
pub mod pagemap;
pub mod pressure;
pub mod schedstat;
pub mod soft_dirty;
pub mod stat;
pub mod tree;
pub mod users;
pub mod watermarks;
pub mod wish;

use crate::error::{Error, Result};
use crate::filter;
use crate::parse::{self, Parsed};
use crate::root::Root;
use std::fs::File;
use std::io::{ErrorKind, Read};

/// Room for most files of a process: the kernel does not tell their size, and `std::fs::read` would begin
/// with 32 bytes.
const ROOM_BYTES: usize = 16 << 10;

/// The threads of a process, by number, ascending; none where it has just ended.
///
/// # Errors
/// The folder cannot be read.
pub fn threads(root: &Root, pid: i32) -> Result<Vec<i32>> {
    let numbers = root.numbered(&format!("proc/{pid}/task"), "")?;
    Ok(numbers.into_iter().map(|tid| tid as i32).collect())
}

/// A file of a process, whole, through its parser. A process may have more mappings than fit in a page, and
/// names may be in any encoding: what is not UTF-8 is replaced.
///
/// # Errors
/// No such process, or it is somebody else's: `errno` of the error tells them apart.
pub(crate) fn read<T>(
    root: &Root,
    pid: i32,
    file: &str,
    parser: impl FnOnce(&str) -> Parsed<T>,
) -> Result<T> {
    let path = root.path(&format!("proc/{pid}/{file}"));
    let mut bytes = Vec::with_capacity(ROOM_BYTES);
    let got = File::open(&path).and_then(|mut file| file.read_to_end(&mut bytes));
    got.map_err(|error| {
        let (reason, remedy) = match error.kind() {
            ErrorKind::NotFound if root.has(&format!("proc/{pid}")) => (
                "this kernel does not have it",
                "see what it lacks with `hither topo --doctor`",
            ),
            ErrorKind::NotFound => (
                "there is no such process",
                "give the number of a running one",
            ),
            ErrorKind::PermissionDenied => ("the process is not yours", filter::to_see_others()),
            _ if error.raw_os_error() == Some(libc::ESRCH) => {
                ("the process has ended", "give the number of a running one")
            }
            _ => ("cannot be read", "see whether it still runs"),
        };
        Error::io(&path, reason, remedy, error)
    })?;
    parser(&parse::text(&bytes)).map_err(|fault| {
        let remedy = "report it with the file: hither does not know this kernel's format";
        fault.at(&path, remedy)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::OsStr;
    use std::io::{Read, Write};
    use std::os::unix::ffi::OsStrExt;
    use std::process::{Command, Stdio};

    #[test]
    fn names_may_be_in_any_encoding() {
        let folder = tempfile::tempdir().unwrap();
        // Both its own name and that of a file that it maps.
        let program = folder.path().join(OsStr::from_bytes(b"caf\xe9"));
        // Not by this process: a file that one of its children holds open cannot be executed.
        let copied = Command::new("cp").arg("/bin/cat").arg(&program).status();
        assert!(copied.unwrap().success());
        let mut child = Command::new(&program)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        // Whoever hands a byte back has its name and its mappings.
        child.stdin.as_mut().unwrap().write_all(b".").unwrap();
        let output = child.stdout.as_mut().unwrap();
        output.read_exact(&mut [0]).unwrap();
        let (root, pid) = (Root::host(), child.id() as i32);
        let stat = stat::read(&root, pid);
        let mappings = (maps::read(&root, pid), numa_maps::read(&root, pid));
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(stat.unwrap().name, "caf\u{fffd}");
        let mapped = mappings.0.unwrap();
        assert!(mapped.iter().any(|m| m.name.ends_with("caf\u{fffd}")));
        assert!(mappings.1.unwrap().iter().any(|m| m.file.is_some()));
        assert_eq!(stat::read(&root, pid), None);
    }
}
