//! The name of a mirror: which content of which file, on which node.
//!
//! Content is known by inode, size and both times, so that a file that was written or replaced has a mirror
//! of another name. A name cannot outlive its content unnoticed as long as files rest before they are copied
//! ([`SETTLED_MS`](super::SETTLED_MS)) and the system's clock is not turned back.

use std::fmt;
use std::str::FromStr;

/// Folder of a user's mirrors, by the number of the user.
#[must_use]
pub fn folder(user: u32) -> String {
    format!("/dev/shm/hither-{user}")
}

/// A content of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Content {
    /// Number of the file system.
    pub device: u64,
    /// Number of the file there.
    pub inode: u64,
    /// Bytes.
    pub bytes: u64,
    /// When it was last written, in ns since 1970.
    pub written_ns: i64,
    /// When anything of it last changed, in ns since 1970.
    pub changed_ns: i64,
}

/// A mirror's file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Name {
    /// Of what.
    pub content: Content,
    /// The kernel's number of the node.
    pub node: u32,
}

/// `fe00-98413b-4000000-187c5a3b0fd54c00-187c5a3b0fd54c00.n2`, all but the node in hexadecimal.
impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Content {
            device,
            inode,
            bytes,
            written_ns,
            changed_ns,
        } = self.content;
        write!(
            f,
            "{device:x}-{inode:x}-{bytes:x}-{written_ns:x}-{changed_ns:x}.n{}",
            self.node
        )
    }
}

impl FromStr for Name {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let (content, node) = text.split_once(".n").ok_or(())?;
        let mut parts = content.split('-').map(|part| u64::from_str_radix(part, 16));
        let mut next = || parts.next().ok_or(())?.map_err(|_| ());
        let content = Content {
            device: next()?,
            inode: next()?,
            bytes: next()?,
            written_ns: next()? as i64,
            changed_ns: next()? as i64,
        };
        let name = Self {
            content,
            node: node.parse().map_err(|_| ())?,
        };
        // One text for each name.
        if name.to_string() == text {
            Ok(name)
        } else {
            Err(())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_they_are_written() {
        let name = Name {
            content: Content {
                device: 0xfe00,
                inode: 9_978_171,
                bytes: 64 << 20,
                written_ns: 1_764_325_000_000_000_000,
                changed_ns: -1,
            },
            node: 12,
        };
        let text = "fe00-98413b-4000000-187c1f58f7ecd000-ffffffffffffffff.n12";
        assert_eq!(name.to_string().len(), text.len());
        assert_eq!(name.to_string().parse(), Ok(name));
        for bad in [
            "",
            "x.n0",
            "1-2-3-4.n0",
            "1-2-3-4-5",
            "01-2-3-4-5.n0",
            "1-2-3-4-5.n-1",
            "1-2-3-4-5-6.n0",
        ] {
            assert!(bad.parse::<Name>().is_err(), "{bad}");
        }
    }

    #[test]
    fn whatever_changes_of_a_file_changes_the_name() {
        let name = Name {
            content: Content {
                device: 1,
                inode: 2,
                bytes: 3,
                written_ns: 4,
                changed_ns: 5,
            },
            node: 0,
        };
        let mut others = [name; 6];
        others[0].content.device += 1;
        others[1].content.inode += 1;
        others[2].content.bytes += 1;
        others[3].content.written_ns += 1;
        others[4].content.changed_ns += 1;
        others[5].node += 1;
        for other in others {
            assert_ne!(name.to_string(), other.to_string());
        }
    }
}
