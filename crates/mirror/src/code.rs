//! Code: of the program, and of the libraries that it is linked with, which the dynamic linker mapped by calls
//! of its own before this library began. None of them is ever unloaded. What is loaded later (`dlopen`) may be,
//! by calls that nobody sees, and is left alone.

use crate::maps::{self, Mapped};
use crate::start;
use crate::sys::{self, Mapping};
use crate::table::Range;
use std::os::unix::fs::MetadataExt;

const EXECUTABLE: i32 = libc::PROT_READ | libc::PROT_EXEC;

/// Notes what is mapped for execution, and large enough.
pub fn note() {
    let Some(plan) = start::plan() else { return };
    let is_large = |map: &Mapped| (map.end - map.start) as u64 >= plan.least_bytes;
    let is_code = |map: &Mapped| map.permissions == "r-xp" && map.path.starts_with('/');
    for map in maps::read()
        .iter()
        .filter(|map| is_code(map) && is_large(map))
    {
        if let Some(range) = range_of(map) {
            start::note(range);
        }
    }
}

/// The mapping with an original, from the file that has its path, if it is that file.
fn range_of(map: &Mapped) -> Option<Range> {
    let file = sys::open(&map.path, libc::O_RDONLY, 0).ok()?;
    let status = file.metadata().ok()?;
    let inode = status.ino().to_string();
    if !status.is_file() || map.file.split(' ').next_back() != Some(inode.as_str()) {
        return None;
    }
    let bytes = map.end - map.start;
    let original = Mapping::of(&file, map.offset, bytes, EXECUTABLE, false).ok()?;
    Some(Range {
        start: map.start,
        bytes,
        offset: map.offset,
        protection: EXECUTABLE,
        is_shared: false,
        device: status.dev(),
        inode: status.ino(),
        file_bytes: status.len(),
        // Children have it, too.
        original: original.keep()?,
        is_mirrored: false,
        number: 0,
    })
}
