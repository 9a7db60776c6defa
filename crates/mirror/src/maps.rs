//! `/proc/self/maps`: what the kernel has mapped where. What is about to be replaced is looked up there, as a
//! program may map and unmap by system calls that this library does not see.

use std::fs;

/// What is mapped at an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapped {
    /// First address.
    pub start: usize,
    /// Address behind.
    pub end: usize,
    /// As the kernel writes them: `r-xp`.
    pub permissions: String,
    /// Offset in the file.
    pub offset: u64,
    /// Device and inode as the kernel writes them here, which is not always what stat(2) tells.
    pub file: String,
    /// The file's path, as it is now.
    pub path: String,
}

/// All mappings.
pub fn read() -> Vec<Mapped> {
    parse(&fs::read("/proc/self/maps").unwrap_or_default())
}

/// `7f88-7f98 r--p 00400000 fe:00 9978141                    /tmp/fr/data`
fn parse(text: &[u8]) -> Vec<Mapped> {
    let text = String::from_utf8_lossy(text);
    let line = |line: &str| {
        let mut words = line.splitn(6, ' ');
        let (start, end) = words.next()?.split_once('-')?;
        let permissions = words.next()?.to_owned();
        let offset = words.next()?;
        let (device, inode) = (words.next()?, words.next()?);
        Some(Mapped {
            start: usize::from_str_radix(start, 16).ok()?,
            end: usize::from_str_radix(end, 16).ok()?,
            permissions,
            offset: u64::from_str_radix(offset, 16).ok()?,
            file: format!("{device} {inode}"),
            path: words.next().unwrap_or("").trim_start().to_owned(),
        })
    };
    text.lines().filter_map(line).collect()
}

/// Is a range mapped by these files alone, without a gap, each page of one at its own offset?
/// `offset` is that of the range's start.
pub fn holds(maps: &[Mapped], start: usize, end: usize, offset: u64, files: &[&str]) -> bool {
    let mut at = start;
    for map in maps.iter().filter(|map| map.end > start && map.start < end) {
        // Compared modulo 2^64: the mapping may begin before the range.
        let expected = offset.wrapping_add((map.start as u64).wrapping_sub(start as u64));
        if map.start > at || map.offset != expected || !files.contains(&map.file.as_str()) {
            return false;
        }
        at = map.end;
    }
    at >= end
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &[u8] = b"1000-3000 r--p 00000000 fe:00 7                          /tmp/a b\n\
        3000-4000 r--s 00002000 00:1b 5     /dev/shm/x\n4000-6000 r--p 00003000 fe:00 7  /tmp/a b\n\
        8000-9000 rw-p 00000000 00:00 0\n";

    #[test]
    fn lines_are_read() {
        let maps = parse(TEXT);
        assert_eq!(maps.len(), 4);
        assert_eq!(
            (maps[0].path.as_str(), maps[0].file.as_str()),
            ("/tmp/a b", "fe:00 7")
        );
        assert_eq!(
            (maps[1].offset, maps[1].start, maps[3].path.as_str()),
            (0x2000, 0x3000, "")
        );
        assert!(read().iter().any(|map| map.path == "[stack]"));
    }

    #[test]
    fn a_range_is_what_it_is_believed_to_be_or_not() {
        let maps = parse(TEXT);
        let both = ["fe:00 7", "00:1b 5"];
        assert!(holds(&maps, 0x1000, 0x6000, 0, &both));
        assert!(holds(&maps, 0x2000, 0x5000, 0x1000, &both));
        assert!(!holds(&maps, 0x1000, 0x6000, 0, &both[..1]));
        assert!(!holds(&maps, 0x1000, 0x6000, 0x1000, &both));
        assert!(!holds(&maps, 0x1000, 0x7000, 0, &both));
        assert!(!holds(&maps, 0x6000, 0x7000, 0, &both));
    }
}
