//! The root folder below which a reader finds `sys` and `proc`: `/`, or a captured machine.

#[cfg(test)]
pub(crate) mod captured;

use crate::error::{Error, Fault, Result};
use std::fs::OpenOptions;
use std::io::{ErrorKind, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// No file below `/sys` that is read here has more than a page; the limit keeps a wrong root
/// folder from filling memory.
const MAX_FILE_BYTES: u64 = 1 << 20;

/// Most files have less: they are read in one call.
const PAGE_BYTES: usize = 4096;

/// What mends a copy that cannot be read, and the machine's own files.
const COPY_REMEDY: &str =
    "check the root folder (--root DIR must hold a complete copy of the machine's /sys)";
const OWN_REMEDY: &str = "see that /sys and /proc are mounted, and whole (a container may hide parts); \
                          else report it with the file";

/// A root folder.
#[derive(Clone, Debug)]
pub struct Root {
    base: PathBuf,
}

impl Root {
    /// The machine itself.
    #[must_use]
    pub fn host() -> Self {
        Self::new("/")
    }

    /// A captured machine: the folder that holds its `sys` and `proc`.
    pub fn new(base: impl Into<PathBuf>) -> Self {
        Self { base: base.into() }
    }

    /// Is this the running machine?
    #[must_use]
    pub fn is_host(&self) -> bool {
        self.base == Path::new("/")
    }

    /// What mends a tree that cannot be read.
    #[must_use]
    pub fn tree_remedy(&self) -> &'static str {
        match self.is_host() {
            true => OWN_REMEDY,
            false => COPY_REMEDY,
        }
    }

    /// The full path of a file given below the root.
    #[must_use]
    pub fn path(&self, below: &str) -> PathBuf {
        self.base.join(below)
    }

    /// Does it exist?
    #[must_use]
    pub fn has(&self, below: &str) -> bool {
        self.path(below).exists()
    }

    /// A file's text. Errors name the path.
    pub fn text(&self, below: &str) -> Result<String> {
        self.text_if_any(below)?.ok_or_else(|| {
            Error::new(
                self.path(below),
                "there is no such file",
                self.tree_remedy(),
            )
        })
    }

    /// A file's text, or nothing where the kernel has no such file.
    pub fn text_if_any(&self, below: &str) -> Result<Option<String>> {
        let path = self.path(below);
        let fail = |reason: &str, source| Error::io(&path, reason, self.tree_remedy(), source);
        // A captured tree is somebody's: a pipe in it must not be waited for.
        let opened = OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_NONBLOCK)
            .open(&path);
        let file = match opened {
            Ok(file) => file,
            Err(error) if missing(error.kind()) => return Ok(None),
            Err(error) => return Err(fail("cannot be opened", error)),
        };
        let mut bytes = Vec::with_capacity(PAGE_BYTES);
        file.take(MAX_FILE_BYTES + 1)
            .read_to_end(&mut bytes)
            .map_err(|error| fail("cannot be read", error))?;
        if bytes.len() as u64 > MAX_FILE_BYTES {
            return Err(Error::new(
                &path,
                "is larger than 1 MiB, no kernel prints that",
                self.tree_remedy(),
            ));
        }
        String::from_utf8(bytes)
            .map(Some)
            .map_err(|_| Error::new(&path, "is not text", self.tree_remedy()))
    }

    /// A file's text through a parser, which the path is added to where it fails.
    pub fn parse<T>(
        &self,
        below: &str,
        parser: impl FnOnce(&str) -> std::result::Result<T, Fault>,
    ) -> Result<T> {
        parser(&self.text(below)?).map_err(|fault| fault.at(&self.path(below), self.tree_remedy()))
    }

    /// The same where the file may be missing.
    pub fn parse_if_any<T>(
        &self,
        below: &str,
        parser: impl FnOnce(&str) -> std::result::Result<T, Fault>,
    ) -> Result<Option<T>> {
        self.text_if_any(below)?
            .map(|text| {
                parser(&text).map_err(|fault| fault.at(&self.path(below), self.tree_remedy()))
            })
            .transpose()
    }

    /// Names in a folder, sorted; empty where there is no such folder.
    pub fn names(&self, below: &str) -> Result<Vec<String>> {
        let path = self.path(below);
        let fail = |source| Error::io(&path, "cannot be listed", self.tree_remedy(), source);
        let entries = match std::fs::read_dir(&path) {
            Ok(entries) => entries,
            Err(error) if missing(error.kind()) => return Ok(Vec::new()),
            Err(error) => return Err(fail(error)),
        };
        let mut names = Vec::new();
        for entry in entries {
            if let Ok(name) = entry.map_err(fail)?.file_name().into_string() {
                names.push(name);
            }
        }
        names.sort_unstable();
        Ok(names)
    }

    /// The numbers N of the entries `prefixN` of a folder, ascending.
    pub fn numbered(&self, below: &str, prefix: &str) -> Result<Vec<u32>> {
        let mut numbers: Vec<u32> = self
            .names(below)?
            .iter()
            .filter_map(|name| name.strip_prefix(prefix)?.parse().ok())
            .collect();
        numbers.sort_unstable();
        Ok(numbers)
    }
}

fn missing(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::NotFound | ErrorKind::NotADirectory)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_files_are_nothing_and_folders_are_errors() {
        let root = Root::host();
        assert!(root.text_if_any("proc/no/such/file").unwrap().is_none());
        let error = root.text_if_any("proc").unwrap_err();
        assert!(
            error.to_string().starts_with("/proc: cannot be read"),
            "{error}"
        );
        let why = |root: &Root| root.text("proc/nothing").unwrap_err().to_string();
        assert!(why(&root).contains("are mounted") && !why(&root).contains("--root"));
        assert!(why(&Root::new("/tmp")).contains("--root"));
    }

    #[test]
    fn numbered_entries_are_numbers_only() {
        assert!(
            Root::host()
                .numbered("proc", "")
                .unwrap()
                .contains(&std::process::id())
        );
    }
}
