//! `/proc/PID/maps`: the mappings of a process.

use crate::error::{Error, Fault, Result};
use crate::parse::{Parsed, clip};
use crate::root::Root;
use std::io::ErrorKind;
use std::ops::Range;

/// What mends a list of mappings that cannot be read as one.
const TEXT_REMEDY: &str = "report it with the file: hither does not know this kernel's format";

/// One mapping.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// Virtual page numbers (address >> 12).
    pub pages: Range<u64>,
    /// `rwxp` or `rwxs`, `-` for what is not allowed.
    pub permissions: String,
    /// A path, a word in brackets such as `[heap]` or `[anon:NAME]`, or empty.
    pub name: String,
}

/// Parses the whole file. Names may hold spaces.
///
/// ```text
/// 55d0c0000000-55d0c0021000 rw-p 00000000 00:00 0                          [heap]
/// 7f6a1c000000-7f6a1c021000 rw-p 00000000 00:00 0
/// 7f6a20000000-7f6a20028000 r--p 00000000 08:01 131342     /usr/lib/libc.so.6 (deleted)
/// ```
pub fn parse(text: &str) -> Parsed<Vec<Mapping>> {
    let mut mappings = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let fail = || Fault::new(index + 1, format!("`{}` is no mapping", clip(line)));
        let (range, rest) = split_word(line).ok_or_else(fail)?;
        let (start, end) = range.split_once('-').ok_or_else(fail)?;
        let page = |text| u64::from_str_radix(text, 16).map(|address| address >> 12);
        let pages = page(start).map_err(|_| fail())?..page(end).map_err(|_| fail())?;
        if pages.end < pages.start {
            return Err(fail());
        }
        let (permissions, mut rest) = split_word(rest).ok_or_else(fail)?;
        for _ in ["offset", "device", "inode"] {
            rest = split_word(rest).ok_or_else(fail)?.1;
        }
        mappings.push(Mapping {
            pages,
            permissions: permissions.to_owned(),
            name: rest.trim().to_owned(),
        });
    }
    Ok(mappings)
}

/// The first word of a text and what follows it.
fn split_word(text: &str) -> Option<(&str, &str)> {
    let text = text.trim_start();
    let end = text.find(char::is_whitespace).unwrap_or(text.len());
    (end > 0).then(|| text.split_at(end))
}

/// The mappings of a process; none for a kernel thread or a process that has just ended.
///
/// # Errors
/// No such process, or it is somebody else's: `errno` of the error tells them apart.
pub fn read(root: &Root, pid: i32) -> Result<Vec<Mapping>> {
    let path = root.path(&format!("proc/{pid}/maps"));
    // Not by `Root::text`: a process may have more mappings than fit in its limit, and names may
    // be in any encoding.
    let bytes = std::fs::read(&path).map_err(|error| {
        let (reason, remedy) = match error.kind() {
            ErrorKind::NotFound => (
                "there is no such process",
                "give the number of a running one",
            ),
            ErrorKind::PermissionDenied => (
                "the process is not yours",
                "run hither as its owner or as root",
            ),
            _ if error.raw_os_error() == Some(libc::ESRCH) => {
                ("the process has ended", "give the number of a running one")
            }
            _ => ("cannot be read", "try again as root"),
        };
        Error::io(&path, reason, remedy, error)
    })?;
    parse(&String::from_utf8_lossy(&bytes)).map_err(|fault| fault.at(&path, TEXT_REMEDY))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
55d0c0000000-55d0c0021000 rw-p 00000000 00:00 0                          [heap]
7f6a1c000000-7f6a1c021000 rw-p 00000000 00:00 0 
7f6a20000000-7f6a20028000 r--s 00000000 08:01 131342     /tmp/a file (deleted)
ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0                  [vsyscall]
";

    #[test]
    fn names_and_pages_are_told() {
        let mappings = parse(TEXT).unwrap();
        let names: Vec<&str> = mappings.iter().map(|m| m.name.as_str()).collect();
        assert_eq!(names, ["[heap]", "", "/tmp/a file (deleted)", "[vsyscall]"]);
        assert_eq!(mappings[0].pages, 0x5_5d0c_0000..0x5_5d0c_0021);
        assert_eq!(mappings[2].permissions, "r--s");
        assert_eq!(parse("").unwrap(), []);
    }

    #[test]
    fn faults_name_their_line() {
        let good = "400000-402000 r-xp 0 0:0 0 /bin/x\n";
        for bad in [
            "zz-4 r 0 0:0 0",
            "5000 r 0 0:0 0",
            "5000-4000 r 0 0:0 0",
            "4000-5000",
            "4000-5000 rw-p 0 0:0",
            "-",
            "\u{1}",
            "4000-99999999999999999999 rw-p 0 0:0 0",
        ] {
            assert_eq!(
                parse(&format!("{good}{bad}\n")).unwrap_err().line,
                2,
                "{bad}"
            );
        }
    }

    #[test]
    fn the_kernels_own_file_is_read() {
        let mappings = read(&Root::host(), std::process::id() as i32).unwrap();
        let here = std::ptr::from_ref(TEXT).cast::<u8>() as u64 >> 12;
        let own = mappings.iter().find(|m| m.pages.contains(&here)).unwrap();
        assert!(own.name.starts_with('/'), "{own:?}");
        assert!(mappings.iter().any(|m| m.name == "[stack]"));
    }

    #[test]
    fn a_process_that_is_not_there_is_named() {
        let error = read(&Root::host(), i32::MAX).unwrap_err();
        assert!(error.to_string().contains("no such process"), "{error}");
        assert_eq!(error.errno(), Some(libc::ENOENT));
    }
}
