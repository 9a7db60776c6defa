//! Separate debug files: by build id, by `.gnu_debuglink`; and what they share (`.gnu_debugaltlink`).

use crate::Build;
use crate::table::Mapped;
use object::{Object, ObjectSection};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// The build id in a file; empty where it has none.
pub fn build_id(file: &object::File<'_>) -> Vec<u8> {
    let id = file.build_id().ok().flatten();
    id.map(<[u8]>::to_vec).unwrap_or_default()
}

/// Is there DWARF data to name lines with?
pub fn has_lines(file: &object::File<'_>) -> bool {
    let has = |name| {
        file.section_by_name(name)
            .is_some_and(|section| section.size() > 0)
    };
    has(".debug_info") && has(".debug_line")
}

/// Where the debug file of a build is by its id.
pub fn path_by_id(folder: &Path, id: &[u8]) -> Option<PathBuf> {
    let (first, rest) = id.split_first().filter(|(_, rest)| !rest.is_empty())?;
    let hex: String = rest.iter().map(|byte| format!("{byte:02x}")).collect();
    Some(folder.join(format!(".build-id/{first:02x}/{hex}.debug")))
}

/// The debug file of a build, found by its id.
pub fn by_id(folder: &Path, id: &[u8]) -> Option<(PathBuf, Mapped)> {
    let path = path_by_id(folder, id)?;
    let mapped = Mapped::open(&path).ok()?;
    let is_it = build_id(&mapped.parse()?) == id;
    is_it.then_some((path, mapped))
}

/// The debug file that a file names: beside it, in `.debug` beside it, or in the folder of all. It
/// must be of the same build.
pub fn by_link(folder: &Path, build: &Build, file: &object::File<'_>) -> Option<(PathBuf, Mapped)> {
    let (name, checksum) = file.gnu_debuglink().ok()??;
    let name = Path::new(OsStr::from_bytes(name));
    // A name, not a way to somewhere else.
    if name.file_name() != Some(name.as_os_str()) {
        return None;
    }
    let own = build.path.parent()?;
    let beneath = folder.join(own.strip_prefix("/").unwrap_or(own));
    let id = build_id(file);
    [
        own.join(name),
        own.join(".debug").join(name),
        beneath.join(name),
    ]
    .into_iter()
    .filter(|path| *path != build.path)
    .find_map(|path| {
        let mapped = Mapped::open(&path).ok()?;
        let found = build_id(&mapped.parse()?);
        let is_it = if id.is_empty() || found.is_empty() {
            crc32fast::hash(mapped.bytes()) == checksum
        } else {
            found == id
        };
        is_it.then_some((path, mapped))
    })
}

/// The file that a debug file shares data with, as `dwz` leaves it.
pub fn shared(folder: &Path, path: &Path, file: &object::File<'_>) -> Option<PathBuf> {
    let (name, id) = file.gnu_debugaltlink().ok()??;
    let named = path.parent()?.join(OsStr::from_bytes(name));
    [Some(named), path_by_id(folder, id)]
        .into_iter()
        .flatten()
        .find(|path| {
            let mapped = Mapped::open(path).ok();
            mapped.is_some_and(|mapped| mapped.parse().is_some_and(|file| build_id(&file) == id))
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_build_id_is_a_path() {
        let path = path_by_id(Path::new("/d"), &[0xab, 0xcd, 0x01]).unwrap();
        assert_eq!(path, Path::new("/d/.build-id/ab/cd01.debug"));
        assert_eq!(path_by_id(Path::new("/d"), &[0xab]), None);
        assert_eq!(path_by_id(Path::new("/d"), &[]), None);
    }
}
