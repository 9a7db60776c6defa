//! For tests: a machine of a few files.

use super::Root;
use std::path::PathBuf;

/// Files below a root folder, with room for others beside it.
pub struct Captured {
    folder: tempfile::TempDir,
    /// Its root.
    pub root: Root,
}

impl Captured {
    /// A machine of which nothing is known yet.
    pub fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let root = Root::new(folder.path().join("machine"));
        std::fs::create_dir(folder.path().join("machine")).unwrap();
        Self { folder, root }
    }

    /// Writes a file.
    pub fn put(&self, below: &str, text: &str) {
        let path = self.root.path(below);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    /// What a file says, without space around it.
    pub fn get(&self, below: &str) -> String {
        self.root.text(below).unwrap().trim().to_owned()
    }

    /// A folder beside the machine's files.
    pub fn beside(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }
}
