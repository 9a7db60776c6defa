//! `/proc/PID/fdinfo/FD` of an io_uring: the buffers that are registered with it.

use crate::error::Fault;
use crate::parse::{Parsed, clip};
use std::ops::Range;

/// What the link of its descriptor says.
pub const LINK: &str = "anon_inode:[io_uring]";

/// Registered buffers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Buffers {
    /// Pages that they lie in, in the order of the ring's table.
    pub pages: Vec<Range<u64>>,
    /// Did the kernel tell all of them? It tells none of a ring whose lock is held just then.
    pub is_whole: bool,
}

/// Reads the table of buffers. An empty place of it is `<none>`, or 0x0/0 on older kernels.
///
/// ```text
/// UserBufs:    3
///     0: 0x7f657324c000/8192
///     1: 0x7f6573250000/4096
///     2: <none>
/// PollList:
/// ```
pub fn parse(text: &str) -> Parsed<Buffers> {
    let mut lines = text.lines().enumerate();
    let mut found = Buffers::default();
    let head = lines.find_map(|(index, line)| Some((index, line.strip_prefix("UserBufs:")?)));
    let Some((index, count)) = head else {
        return Ok(found);
    };
    let count: usize = count.trim().parse().map_err(|_| {
        Fault::new(
            index + 1,
            format!("`{}` is no number of buffers", clip(count)),
        )
    })?;
    let mut told = 0;
    for (index, line) in lines {
        // The next table begins where a line is not indented.
        let Some((_, buffer)) = line
            .strip_prefix(' ')
            .and_then(|line| line.split_once(": "))
        else {
            break;
        };
        told += 1;
        if buffer == "<none>" {
            continue;
        }
        let pages = pages(buffer).ok_or_else(|| {
            let what = format!("`{}` is no buffer like 0x7f0000000000/4096", clip(line));
            Fault::new(index + 1, what)
        })?;
        if !pages.is_empty() {
            found.pages.push(pages);
        }
    }
    found.is_whole = told == count;
    Ok(found)
}

/// The pages that a buffer lies in.
fn pages(buffer: &str) -> Option<Range<u64>> {
    let (address, bytes) = buffer.trim_end().split_once('/')?;
    let start = u64::from_str_radix(address.strip_prefix("0x")?, 16).ok()?;
    let end = start.checked_add(bytes.parse().ok()?)?;
    Some(match start == end {
        true => 0..0,
        false => start >> 12..end.div_ceil(4096),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = "pos:\t0\nSqMask:\t0x7\nUserFiles:\t1\n    0: passwd\n";

    #[test]
    fn buffers_are_read_as_pages() {
        let read = |rest: &str| parse(&format!("{HEAD}{rest}"));
        let told = "UserBufs:\t4\n    0: 0x7f657324c000/8192\n    1: 0x7f6573250800/4096\n    \
                    2: <none>\n    3: 0x0/0\nPollList:\n  op=6, task_works=0\n";
        let buffers = read(told).unwrap();
        let first = 0x7f657324c;
        assert_eq!(buffers.pages, [first..first + 2, first + 4..first + 6]);
        assert!(buffers.is_whole);
        assert_eq!(read("UserBufs:\t0\nPollList:\n").unwrap(), whole());
        // The ring was busy: the count alone, or nothing at all of it (Linux 6.14).
        assert!(!read("UserBufs:\t2\nPollList:\n").unwrap().is_whole);
        assert!(!parse("pos:\t0\n").unwrap().is_whole);
    }

    fn whole() -> Buffers {
        Buffers {
            is_whole: true,
            ..Buffers::default()
        }
    }

    #[test]
    fn faults_name_their_line() {
        for (text, line) in [
            ("UserBufs:\tx\n", 1),
            ("UserBufs:\t1\n    0: 7f00/12\n", 2),
            ("UserBufs:\t1\n    0: 0xffffffffffffffff/4096\n", 2),
            ("UserBufs:\t1\n    0: 0x1000\n", 2),
        ] {
            assert_eq!(parse(text).unwrap_err().line, line, "{text}");
        }
    }
}
