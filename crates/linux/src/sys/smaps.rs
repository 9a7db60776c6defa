//! Which mappings the children of this process find empty: `madvise(MADV_WIPEONFORK)`.
//!
//! Nothing but `/proc/PID/smaps` tells. It is read without allocating, for callers whose own heap
//! may be out of reach, and costs a walk through the page tables up to the last address asked for.

use std::fs::File;
use std::io::{self, Read, Seek};
use std::ops::Range;

/// Bytes read at once.
const CHUNK: usize = 4096;
/// Of a line no more is looked at: longer than any line of flags.
const MOST_LINE: usize = 256;

/// Calls `found` for every wiped mapping that begins below `end`. `smaps` is an open
/// `/proc/self/smaps`, whose position changes.
pub fn wiped_mappings(
    mut smaps: &File,
    end: u64,
    mut found: impl FnMut(Range<u64>),
) -> io::Result<()> {
    smaps.rewind()?;
    let mut lines = Lines::default();
    let mut chunk = [0; CHUNK];
    loop {
        let count = smaps.read(&mut chunk)?;
        for &byte in &chunk[..count] {
            if let Some(range) = lines.push(byte) {
                found(range);
            }
        }
        if count == 0 || lines.mapping.start >= end {
            return Ok(());
        }
    }
}

/// The text, line by line.
struct Lines {
    line: [u8; MOST_LINE],
    length: usize,
    /// What the lines are about.
    mapping: Range<u64>,
}

impl Default for Lines {
    fn default() -> Self {
        Self {
            line: [0; MOST_LINE],
            length: 0,
            mapping: 0..0,
        }
    }
}

impl Lines {
    /// The mapping, when a line ends that says it is wiped.
    fn push(&mut self, byte: u8) -> Option<Range<u64>> {
        if byte != b'\n' {
            if let Some(place) = self.line.get_mut(self.length) {
                *place = byte;
                self.length += 1;
            }
            return None;
        }
        let line = &self.line[..std::mem::take(&mut self.length)];
        // VmFlags: rd wr mr mw me wf ac
        if let Some(flags) = line.strip_prefix(b"VmFlags:") {
            let mut flags = flags.split(|&byte| byte == b' ');
            return flags
                .any(|flag| flag == b"wf")
                .then(|| self.mapping.clone());
        }
        // 7f3a1c000000-7f3a1c021000 rw-p 00000000 00:00 0
        let mut ends = line
            .split(|&byte| byte == b' ')
            .next()?
            .split(|&byte| byte == b'-');
        let mut number = || {
            let digits = std::str::from_utf8(ends.next()?).ok()?;
            u64::from_str_radix(digits, 16).ok()
        };
        if let (Some(start), Some(end)) = (number(), number()) {
            self.mapping = start..end;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wiped(text: &str) -> Vec<Range<u64>> {
        let mut lines = Lines::default();
        text.bytes().filter_map(|byte| lines.push(byte)).collect()
    }

    #[test]
    fn flags_belong_to_the_mapping_above() {
        let long = "x".repeat(5000);
        let text = format!(
            "1000-3000 rw-p 00000000 00:00 0   /a file-name {long}\n\
             Size:                  8 kB\nVmFlags: rd wr mr mw me ac\n\
             3000-4000 rw-p 00000000 00:00 0\nAnonymous: 4 kB\nVmFlags: rd wr wf ac \n\
             7fff0000-7fff1000 rw-p 00000000 00:00 0 [wf]\nVmFlags: rd wf"
        );
        let one = std::iter::once(0x3000..0x4000);
        assert!(
            wiped(&text).into_iter().eq(one),
            "an unended line says nothing"
        );
        assert_eq!(wiped(&(text + "\n")).len(), 2);
    }

    #[test]
    fn a_mapping_of_this_process_is_found_while_it_is_wiped() {
        let area = crate::sys::MemoryArea::new(2 << 20, false).unwrap();
        let smaps = File::open("/proc/self/smaps").unwrap();
        let range = area.range();
        let is_found = || {
            let mut met = false;
            wiped_mappings(&smaps, range.end, |wiped| {
                met |= wiped.start <= range.start && wiped.end >= range.end;
            })
            .unwrap();
            met
        };
        for (advice, expected) in [
            (libc::MADV_KEEPONFORK, false),
            (libc::MADV_WIPEONFORK, true),
            (libc::MADV_KEEPONFORK, false),
        ] {
            // SAFETY: the area is this test's own; the advice is about children.
            let answer = unsafe { libc::madvise(range.start as *mut _, 2 << 20, advice) };
            assert_eq!(answer, 0);
            assert_eq!(is_found(), expected);
        }
    }
}
