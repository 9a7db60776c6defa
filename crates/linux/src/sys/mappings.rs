//! Asking the kernel for one mapping by address: the `PROCMAP_QUERY` request (Linux 6.11).
//!
//! It costs a fraction of a microsecond however many mappings a process has, where printing and
//! parsing `/proc/PID/maps` costs about one per mapping.

use super::check;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;

/// `_IOWR('f', 17, struct procmap_query)` (`linux/fs.h`).
const PROCMAP_QUERY: libc::c_ulong = 0xC068_6611;
/// The mapping that covers the address, or else the next one above it.
const COVERING_OR_NEXT: u64 = 0x10;
const READABLE: u64 = 0x01;
const WRITABLE: u64 = 0x02;
const EXECUTABLE: u64 = 0x04;
const SHARED: u64 = 0x08;
/// Longest name that is asked for, its terminating zero included (`PATH_MAX`).
const NAME_BYTES: usize = 4096;

/// `struct procmap_query`.
#[repr(C)]
#[derive(Default)]
struct Query {
    size: u64,
    query_flags: u64,
    query_addr: u64,
    start: u64,
    end: u64,
    flags: u64,
    page_size: u64,
    offset: u64,
    inode: u64,
    dev_major: u32,
    dev_minor: u32,
    name_size: u32,
    build_id_size: u32,
    name_addr: u64,
    build_id_addr: u64,
}

const _: () = assert!(size_of::<Query>() == 104);

/// One mapping of a process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OwnMapping {
    /// Its addresses.
    pub range: Range<u64>,
    /// May it be read?
    pub readable: bool,
    /// May it be written to?
    pub writable: bool,
    /// May it be executed?
    pub executable: bool,
    /// Are stores seen by others that map the same file or memory?
    pub shared: bool,
    /// Offset of its first byte in the file.
    pub offset: u64,
    /// Device of the file, major and minor; zero where there is none.
    pub device: (u32, u32),
    /// Inode of the file; zero where there is none.
    pub inode: u64,
    /// The file, or what the kernel or the program calls it (`[heap]`, `[anon:pool]`); may be empty.
    pub name: String,
}

impl OwnMapping {
    /// Its virtual page numbers (address >> 12).
    #[must_use]
    pub fn pages(&self) -> Range<u64> {
        self.range.start >> 12..self.range.end >> 12
    }

    /// As `/proc/PID/maps` has it: `rwxp` or `rwxs`, `-` for what is not allowed.
    #[must_use]
    pub fn permissions(&self) -> String {
        let letter = |allowed, letter| if allowed { letter } else { '-' };
        let last = if self.shared { 's' } else { 'p' };
        [
            letter(self.readable, 'r'),
            letter(self.writable, 'w'),
            letter(self.executable, 'x'),
            last,
        ]
        .iter()
        .collect()
    }

    /// Private memory that belongs to no file and not to the kernel (`[vdso]`, `[vvar]`): heap,
    /// stacks, `mmap(MAP_PRIVATE | MAP_ANONYMOUS)`.
    #[must_use]
    pub fn is_private_anonymous(&self) -> bool {
        let is_kernels = self.name.starts_with("[v") || self.name == "[uprobes]";
        !self.shared && self.inode == 0 && self.device == (0, 0) && !is_kernels
    }
}

/// The mapping that covers the address, or else the next one above it; `None` above the last.
/// `maps` is an open `/proc/PID/maps`. Older kernels answer `ENOTTY`.
pub fn query_mapping(maps: &File, address: u64) -> io::Result<Option<OwnMapping>> {
    let mut name = [0u8; NAME_BYTES];
    let mut query = Query {
        size: size_of::<Query>() as u64,
        query_flags: COVERING_OR_NEXT,
        query_addr: address,
        name_size: NAME_BYTES as u32,
        name_addr: name.as_mut_ptr() as u64,
        ..Query::default()
    };
    // SAFETY: the argument has the kernel's layout (size checked above); `name_addr` points to
    // `name_size` bytes that outlive the call; no build id is asked for.
    let answer =
        check(unsafe { libc::ioctl(maps.as_raw_fd(), PROCMAP_QUERY, &raw mut query) }.into());
    match answer {
        Ok(_) => {}
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => return Ok(None),
        Err(error) => return Err(error),
    }
    let length = (query.name_size as usize).saturating_sub(1).min(NAME_BYTES);
    Ok(Some(OwnMapping {
        range: query.start..query.end,
        readable: query.flags & READABLE != 0,
        writable: query.flags & WRITABLE != 0,
        executable: query.flags & EXECUTABLE != 0,
        shared: query.flags & SHARED != 0,
        offset: query.offset,
        device: (query.dev_major, query.dev_minor),
        inode: query.inode,
        name: String::from_utf8_lossy(&name[..length]).into_owned(),
    }))
}
