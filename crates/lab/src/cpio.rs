//! Writer of cpio archives in the `newc` form, which the kernel unpacks as its first file system
//! (Linux `Documentation/driver-api/early-userspace/buffer-format.rst`).

use std::io::{self, Write};

/// What an entry is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entry<'a> {
    /// A directory.
    Directory,
    /// A regular file with its content.
    File(&'a [u8]),
    /// A symbolic link with its target.
    Link(&'a str),
    /// A character device: major and minor number.
    Device(u32, u32),
}

/// Writes entries one after another; all belong to root.
#[derive(Debug)]
pub struct Writer<W: Write> {
    out: W,
    inode: u32,
    bytes: u64,
}

impl<W: Write> Writer<W> {
    /// An empty archive.
    pub fn new(out: W) -> Self {
        Self {
            out,
            inode: 0,
            bytes: 0,
        }
    }

    /// Adds one entry. `path` has no leading slash; `mode` is permission bits only.
    ///
    /// # Errors
    /// Where the writer fails, or content or number of entries does not fit the form's 32 bits.
    pub fn add(&mut self, path: &str, mode: u32, entry: Entry<'_>) -> io::Result<()> {
        let (kind, data, device) = match entry {
            Entry::Directory => (0o040_000, &b""[..], (0, 0)),
            Entry::File(data) => (0o100_000, data, (0, 0)),
            Entry::Link(target) => (0o120_000, target.as_bytes(), (0, 0)),
            Entry::Device(major, minor) => (0o020_000, &b""[..], (major, minor)),
        };
        self.inode = self
            .inode
            .checked_add(1)
            .ok_or_else(|| io::Error::other("too many files"))?;
        self.record(path, kind | (mode & 0o7777), data, device)
    }

    /// Ends the archive.
    ///
    /// # Errors
    /// Where the writer fails.
    pub fn finish(mut self) -> io::Result<(W, u64)> {
        self.inode = 0;
        self.record("TRAILER!!!", 0, b"", (0, 0))?;
        self.out.flush()?;
        Ok((self.out, self.bytes))
    }

    fn record(&mut self, path: &str, mode: u32, data: &[u8], device: (u32, u32)) -> io::Result<()> {
        let length = u32::try_from(data.len())
            .map_err(|_| io::Error::other(format!("{path}: longer than 4 GiB")))?;
        let links = if mode & 0o040_000 != 0 { 2 } else { 1 };
        // inode, mode, uid, gid, links, mtime, size, dev major, dev minor, rdev major,
        // rdev minor, name length with its NUL, checksum (unused).
        let name_bytes = path.len() as u32 + 1;
        let fields = [
            self.inode, mode, 0, 0, links, 0, length, 0, 0, device.0, device.1, name_bytes, 0,
        ];
        let mut head = String::from("070701");
        for field in fields {
            head.push_str(&format!("{field:08X}"));
        }
        head.push_str(path);
        head.push('\0');
        self.padded(head.as_bytes())?;
        self.padded(data)
    }

    fn padded(&mut self, data: &[u8]) -> io::Result<()> {
        let padding = data.len().wrapping_neg() % 4;
        self.out.write_all(data)?;
        self.out.write_all(&[0; 3][..padding])?;
        self.bytes += (data.len() + padding) as u64;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_file_has_the_documented_bytes() {
        let mut writer = Writer::new(Vec::new());
        writer.add("a", 0o644, Entry::File(b"xyz")).unwrap();
        let (bytes, count) = writer.finish().unwrap();
        let expected = concat!(
            "070701",
            "00000001",
            "000081A4",
            "00000000",
            "00000000",
            "00000001",
            "00000000",
            "00000003",
            "00000000",
            "00000000",
            "00000000",
            "00000000",
            "00000002",
            "00000000",
            "a\0",
            "xyz\0",
            "070701",
            "00000000",
            "00000000",
            "00000000",
            "00000000",
            "00000001",
            "00000000",
            "00000000",
            "00000000",
            "00000000",
            "00000000",
            "00000000",
            "0000000B",
            "00000000",
            "TRAILER!!!\0",
            "\0\0\0",
        );
        assert_eq!(String::from_utf8(bytes.clone()).unwrap(), expected);
        assert_eq!(count, bytes.len() as u64);
        assert_eq!(count % 4, 0);
    }

    #[test]
    fn kinds_carry_their_type_bits() {
        let mut writer = Writer::new(Vec::new());
        writer.add("d", 0o755, Entry::Directory).unwrap();
        writer.add("l", 0o777, Entry::Link("d")).unwrap();
        writer.add("c", 0o600, Entry::Device(5, 1)).unwrap();
        let text = String::from_utf8(writer.finish().unwrap().0).unwrap();
        assert!(text.contains("000041ED"), "directory 040755");
        assert!(text.contains("0000A1FF"), "link 120777");
        assert!(text.contains("00002180"), "device 020600");
        assert!(text.contains("0000000500000001"), "device numbers");
    }
}
