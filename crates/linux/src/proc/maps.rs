//! `/proc/PID/maps`: the mappings of a process, their permissions and their files.
//!
//! One mapping is asked for by address where the kernel can (Linux 6.11); else the whole text is
//! read and parsed.

use crate::error::{Fault, Result};
use crate::parse::{Parsed, clip, text};
use crate::root::Root;
use crate::sys::{self, OwnMapping};
use std::fs::File;
use std::io::{self, Read, Seek};
use std::ops::Range;

/// Most bytes of text that are read: 65,530 mappings (the usual limit) with long names.
const MAX_TEXT_BYTES: u64 = 64 << 20;

/// The address map of one process, open.
#[derive(Debug)]
pub struct Maps {
    file: File,
    /// Does the kernel answer single queries?
    answers: bool,
}

impl Maps {
    /// Opens it. The descriptor stays with the address map that the process has now: after its
    /// `exec`, or in a forked child, it still tells of the old one.
    pub fn open(root: &Root, pid: i32) -> io::Result<Self> {
        let file = File::open(root.path(&format!("proc/{pid}/maps")))?;
        let answers = sys::query_mapping(&file, 0).is_ok();
        Ok(Self { file, answers })
    }

    /// The mapping that covers an address.
    pub fn at(&mut self, address: u64) -> io::Result<Option<OwnMapping>> {
        let above = address.saturating_add(1);
        Ok(self.in_range(address..above)?.pop())
    }

    /// All mappings that share an address with the range, ascending. They are told one after the
    /// other, so that a process which maps meanwhile may be seen half before, half after.
    pub fn in_range(&mut self, range: Range<u64>) -> io::Result<Vec<OwnMapping>> {
        let mut found = Vec::new();
        if !self.answers {
            found = self.listed()?;
            found.retain(|mapping| {
                mapping.range.start < range.end && mapping.range.end > range.start
            });
            return Ok(found);
        }
        let mut address = range.start;
        while address < range.end {
            let Some(mapping) = sys::query_mapping(&self.file, address)? else {
                break;
            };
            // The second is a kernel's slip that would let this loop run for ever.
            if mapping.range.start >= range.end || mapping.range.end <= address {
                break;
            }
            address = mapping.range.end;
            found.push(mapping);
        }
        Ok(found)
    }

    fn listed(&mut self) -> io::Result<Vec<OwnMapping>> {
        self.file.rewind()?;
        let mut bytes = Vec::new();
        (&self.file).take(MAX_TEXT_BYTES).read_to_end(&mut bytes)?;
        parse(&text(&bytes)).map_err(|fault| {
            let text = format!("line {}: {}", fault.line, fault.reason);
            io::Error::new(io::ErrorKind::InvalidData, text)
        })
    }
}

/// Parses the whole file. Names keep the kernel's escapes (`\012` for a line break).
///
/// ```text
/// 55d0c6a05000-55d0c6a07000 r--p 00000000 08:01 1835130                    /usr/bin/cat
/// 55d0e7a3c000-55d0e7a5d000 rw-p 00000000 00:00 0                          [heap]
/// 7f2c8c000000-7f2c8c021000 rw-p 00000000 00:00 0
/// ```
pub fn parse(text: &str) -> Parsed<Vec<OwnMapping>> {
    let mut mappings = Vec::<OwnMapping>::new();
    for (index, line) in text.lines().enumerate() {
        let fail = |what: &str| Fault::new(index + 1, format!("`{}` {what}", clip(line)));
        let mapping = parse_line(line).map_err(fail)?;
        let above = mappings.last().map_or(0, |last| last.range.end);
        if mapping.range.start < above {
            return Err(fail("is not above the line before it"));
        }
        mappings.push(mapping);
    }
    Ok(mappings)
}

/// The mappings of a process; none for a kernel thread or a process that has just ended.
///
/// # Errors
/// No such process, or it is somebody else's: `errno` of the error tells them apart.
pub fn read(root: &Root, pid: i32) -> Result<Vec<OwnMapping>> {
    super::read(root, pid, "maps", parse)
}

fn parse_line(line: &str) -> std::result::Result<OwnMapping, &'static str> {
    let hex = |word: &str| u64::from_str_radix(word, 16).ok();
    // Five words, then spaces, then the name, which may hold spaces itself.
    let mut rest = line;
    let mut word = || {
        let (word, after) = rest.split_once(' ').unwrap_or((rest, ""));
        rest = after;
        word
    };
    let (start, end) = word()
        .split_once('-')
        .and_then(|(start, end)| Some((hex(start)?, hex(end)?)))
        .filter(|(start, end)| start < end)
        .ok_or("begins with no range of addresses")?;
    let letters = word().as_bytes();
    let &[
        read @ (b'r' | b'-'),
        write @ (b'w' | b'-'),
        execute @ (b'x' | b'-'),
        shared @ (b's' | b'p'),
    ] = letters
    else {
        return Err("has no permissions like `rw-p`");
    };
    let offset = hex(word()).ok_or("has no offset")?;
    let device = word()
        .split_once(':')
        .and_then(|(major, minor)| {
            let number = |word| u32::from_str_radix(word, 16).ok();
            Some((number(major)?, number(minor)?))
        })
        .ok_or("has no device")?;
    let inode = word().parse().map_err(|_| "has no inode")?;
    Ok(OwnMapping {
        range: start..end,
        readable: read == b'r',
        writable: write == b'w',
        executable: execute == b'x',
        shared: shared == b's',
        offset,
        device,
        inode,
        name: rest.trim_start_matches(' ').to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
55d0c6a05000-55d0c6a07000 r--p 00002000 08:1f 1835130                    /usr/bin/a file (deleted)
55d0e7a3c000-55d0e7a5d000 rw-p 00000000 00:00 0                          [heap]
7f2c8c000000-7f2c8c021000 rwxs 00000000 00:00 0 
ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0                  [vsyscall]
";

    #[test]
    fn reads_the_kernels_lines() {
        let mappings = parse(TEXT).unwrap();
        assert_eq!(mappings.len(), 4);
        let file = &mappings[0];
        assert_eq!(file.range, 0x55d0_c6a0_5000..0x55d0_c6a0_7000);
        assert_eq!(
            (file.offset, file.device, file.inode),
            (0x2000, (8, 0x1f), 1_835_130)
        );
        assert_eq!(file.name, "/usr/bin/a file (deleted)");
        assert!(file.readable && !file.writable && !file.executable && !file.shared);
        assert!(mappings[1].is_private_anonymous());
        assert_eq!(mappings[2].name, "");
        assert!(mappings[2].executable && mappings[2].shared);
        assert!(!mappings[2].is_private_anonymous());
        assert!(!mappings[3].readable && !mappings[3].is_private_anonymous());
    }

    #[test]
    fn malformed_lines_are_named() {
        let good = TEXT.lines().next().unwrap();
        for (bad, what) in [
            ("", "range"),
            ("1000 r--p 0 0:0 0", "range"),
            ("2000-1000 r--p 0 0:0 0", "range"),
            ("1000-1000 r--p 0 0:0 0", "range"),
            ("1000-11111111111111111 r--p 0 0:0 0", "range"),
            ("1000-2000", "permissions"),
            ("1000-2000 r--", "permissions"),
            ("1000-2000 rwzp 0 0:0 0", "permissions"),
            ("1000-2000 r--p x 0:0 0", "offset"),
            ("1000-2000 r--p 0 00 0", "device"),
            ("1000-2000 r--p 0 0:0 -1", "inode"),
            ("1000-2000 r--p 0 0:0 0", "above"),
        ] {
            let fault = parse(&format!("{good}\n{bad}\n")).unwrap_err();
            assert_eq!(fault.line, 2, "{bad}");
            assert!(fault.reason.contains(what), "{bad}: {}", fault.reason);
        }
        // Any cut of a good text is an answer, never a panic.
        for cut in 0..TEXT.len() {
            let _ = parse(&TEXT[..cut]);
        }
    }

    #[test]
    fn both_ways_tell_the_same_of_this_process() {
        let mut memory = vec![1u8; 4096];
        let address = memory.as_mut_ptr() as u64;
        let mut maps = Maps::open(&Root::host(), std::process::id() as i32).unwrap();
        let asked = maps.at(address).unwrap().unwrap();
        assert!(asked.readable && asked.writable && asked.range.contains(&address));
        maps.answers = false;
        let listed = maps.at(address).unwrap().unwrap();
        // Other tests map meanwhile: a neighbour may have grown it, its nature stays.
        assert!(listed.readable && listed.writable && listed.range.contains(&address));
        let code = both_ways_tell_the_same_of_this_process as fn() as usize as u64;
        let of_code = maps.at(code).unwrap();
        maps.answers = sys::query_mapping(&maps.file, 0).is_ok();
        assert_eq!(maps.at(code).unwrap(), of_code);
        assert!(of_code.unwrap().executable);
        assert_eq!(maps.at(0).unwrap(), None);
        assert_eq!(maps.at(u64::MAX).unwrap(), None);
    }

    #[test]
    fn a_captured_process_is_parsed() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(folder.path().join("proc/7")).unwrap();
        std::fs::write(folder.path().join("proc/7/maps"), TEXT).unwrap();
        let mut maps = Maps::open(&Root::new(folder.path()), 7).unwrap();
        let names: Vec<String> = maps
            .in_range(0x55d0_c6a0_6fff..0x7f2c_8c00_0000)
            .unwrap()
            .into_iter()
            .map(|mapping| mapping.name)
            .collect();
        assert_eq!(names, ["/usr/bin/a file (deleted)", "[heap]"]);
    }

    #[test]
    fn the_kernels_own_file_is_read() {
        let mappings = read(&Root::host(), std::process::id() as i32).unwrap();
        let here = std::ptr::from_ref(TEXT).cast::<u8>() as u64 >> 12;
        let own = mappings.iter().find(|m| m.pages().contains(&here)).unwrap();
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
