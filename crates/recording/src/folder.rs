//! Folders that recordings are written into.
//!
//! Recordings hold addresses, and root makes them in folders where others may write, too. So a folder
//! is made with mode 700 under a name that was free, or it is this user's own, empty and nobody else's
//! to write. From then on its descriptor stands for it, and not its name: files are made in it that
//! were not there, links are not followed, and what was made is taken away again and nothing else.

use crate::error::{Error, Result};
use rustix::fs::{self, AtFlags, CWD, Dir, Mode, OFlags};
use rustix::io::Errno;
use rustix::rand::{GetRandomFlags, getrandom};
use std::ffi::CString;
use std::fs::File;
use std::io::Write as _;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

const REMEDY: &str = "give a folder of yours on a disk with room";
/// A file that is being written; it gets its name when it is whole.
const PART: &str = "next.part";
/// Names that are tried in the folder for temporary files.
const MOST_NAMES: usize = 100;
/// What others may not do with a folder: write.
const OTHERS_WRITE: u32 = 0o022;
const PRIVATE_FOLDER: Mode = Mode::RWXU;
const PRIVATE_FILE: Mode = Mode::RUSR.union(Mode::WUSR);

/// A folder that this process alone fills. Clones are the same folder.
#[derive(Clone, Debug)]
pub struct Folder {
    path: PathBuf,
    own: Arc<OwnedFd>,
    /// Or it was there, empty.
    is_made: bool,
}

impl Folder {
    /// Makes it, and the folders above it where they are not there; one that is there already must be
    /// this user's, empty, and nobody else's to write.
    ///
    /// # Errors
    /// It holds something, is somebody else's, or cannot be made.
    pub fn make_or_take(path: &Path) -> Result<Self> {
        match Self::make(path) {
            Err(error) if error.is_taken() => Self::open(path, false),
            Err(error) if error.is_missing() => {
                // Also of names without a folder before them, which then exists.
                let above = path.parent().unwrap_or(Path::new(""));
                std::fs::create_dir_all(above).map_err(|error| cannot_be_made(path, error))?;
                Self::make(path)
            }
            made => made,
        }
    }

    /// Makes it; nothing may have its name.
    ///
    /// # Errors
    /// [`Error::is_taken`], or it cannot be made.
    pub fn make(path: &Path) -> Result<Self> {
        fs::mkdir(path, PRIVATE_FOLDER).map_err(|error| cannot_be_made(path, error.into()))?;
        let opened = Self::open(path, true);
        if opened.is_err() {
            // Empty, or it is not the one just made.
            let _ = fs::rmdir(path);
        }
        opened
    }

    /// Makes one in a folder where everybody may write, such as that for temporary files, under a name
    /// that nobody can foresee.
    ///
    /// # Errors
    /// It cannot be made.
    pub fn make_temporary(within: &Path, prefix: &str) -> Result<Self> {
        for _ in 0..MOST_NAMES {
            let mut random = [0; 8];
            getrandom(&mut random, GetRandomFlags::empty())
                .map_err(|error| cannot_be_made(within, error.into()))?;
            let path = within.join(format!("{prefix}{:016x}", u64::from_ne_bytes(random)));
            match Self::make(&path) {
                Err(error) if error.is_taken() => {}
                made => return made,
            }
        }
        Err(Error::new(within, "has no name left", REMEDY))
    }

    fn open(path: &Path, is_made: bool) -> Result<Self> {
        let fail = |error: Errno| Error::io(path, "cannot be opened", REMEDY, error.into());
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let own = match fs::open(path, flags, Mode::empty()) {
            Err(Errno::NOTDIR | Errno::LOOP) => {
                let reason = "is no folder, or only a link to one";
                return Err(Error::new(path, reason, "give the folder itself"));
            }
            opened => opened.map_err(fail)?,
        };
        let folder = Self {
            path: path.to_owned(),
            own: Arc::new(own),
            is_made,
        };
        if !entries(folder.own.as_fd()).map_err(fail)?.is_empty() {
            return Err(Error::new(
                path,
                "is not empty",
                "give a folder that does not exist yet; recordings are never written over",
            ));
        }
        let about = fs::fstat(&folder.own).map_err(fail)?;
        if about.st_mode & OTHERS_WRITE != 0 {
            return Err(Error::new(
                path,
                format!(
                    "can be written by others (mode {:o})",
                    about.st_mode & 0o7777
                ),
                "give a folder that does not exist yet, or one that is yours alone (chmod go-w)",
            ));
        }
        if !folder.is_own(about.st_uid)? {
            return Err(Error::new(
                path,
                "is somebody else's",
                "give a folder that does not exist yet, or an empty one of yours",
            ));
        }
        Ok(folder)
    }

    /// Does what this process makes in it belong to the folder's owner? Some file systems know owners
    /// of their own, so that a file has to be made.
    fn is_own(&self, owner: u32) -> Result<bool> {
        if owner == rustix::process::geteuid().as_raw() {
            return Ok(true);
        }
        // In what is somebody else's nothing is made.
        if !self.is_made {
            return Ok(false);
        }
        let fail = |error: Errno| Error::io(&self.path, "cannot be used", REMEDY, error.into());
        let file = self.create(PART).map_err(fail)?;
        let about = fs::fstat(file);
        self.remove(PART).map_err(fail)?;
        Ok(about.map_err(fail)?.st_uid == owner)
    }

    /// The name under which it was made.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A name that stays its own while this process lives, whatever becomes of the folders above it.
    #[must_use]
    pub fn lasting_path(&self) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}", self.own.as_raw_fd()))
    }

    /// Makes a folder in it, and returns its path.
    ///
    /// # Errors
    /// It is there already, or cannot be made.
    pub fn make_inner(&self, name: &str) -> Result<PathBuf> {
        let path = self.path.join(name);
        let made = fs::mkdirat(&self.own, name, PRIVATE_FOLDER);
        made.map_err(|error| cannot_be_made(&path, error.into()))?;
        Ok(path)
    }

    /// A new file.
    ///
    /// # Errors
    /// It is there already, or cannot be made.
    pub(crate) fn file(&self, name: &str) -> Result<File> {
        self.create(name)
            .map_err(|error| self.cannot_be_written(name, error.into()))
    }

    /// The file is the old one or the new one, whole, at any moment.
    ///
    /// # Errors
    /// It cannot be written.
    pub(crate) fn replace(&self, name: &str, bytes: &[u8]) -> Result<()> {
        let fail = |error| self.cannot_be_written(name, error);
        let mut part = self.create(PART).map_err(|error| fail(error.into()))?;
        let written = part.write_all(bytes).and_then(|()| {
            fs::renameat(&self.own, PART, &self.own, name).map_err(std::io::Error::from)
        });
        written.map_err(|error| {
            // Else it would be in the way of the next.
            let _ = self.remove(PART);
            fail(error)
        })
    }

    /// Takes files away, and the folder itself if it was made here; where others have put something
    /// into it, it stays. What is left is no harm.
    pub(crate) fn undo(&self, files: &[&str]) {
        for file in files {
            let _ = self.remove(file);
        }
        self.remove_itself();
    }

    /// Takes an inner folder away with what it holds.
    pub fn remove_inner(&self, name: &str) {
        remove(self.own.as_fd(), name);
    }

    /// Takes away what it holds, and itself if it was made here. What is left is no harm.
    pub fn remove_all(&self) {
        remove_all(self.own.as_fd());
        self.remove_itself();
    }

    fn remove_itself(&self) {
        let same = || -> rustix::io::Result<bool> {
            let named = fs::statat(CWD, &self.path, AtFlags::SYMLINK_NOFOLLOW)?;
            let own = fs::fstat(&self.own)?;
            Ok((named.st_dev, named.st_ino) == (own.st_dev, own.st_ino))
        };
        if self.is_made && same() == Ok(true) {
            let _ = fs::rmdir(&self.path);
        }
    }

    fn create(&self, name: &str) -> rustix::io::Result<File> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
        let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        fs::openat(&self.own, name, flags, PRIVATE_FILE).map(File::from)
    }

    fn remove(&self, name: &str) -> rustix::io::Result<()> {
        fs::unlinkat(&self.own, name, AtFlags::empty())
    }

    pub(crate) fn cannot_be_written(&self, name: &str, error: std::io::Error) -> Error {
        Error::io(&self.path.join(name), "cannot be written", REMEDY, error)
    }
}

fn cannot_be_made(path: &Path, error: std::io::Error) -> Error {
    Error::io(path, "cannot be made", REMEDY, error)
}

/// Names in a folder.
fn entries(folder: BorrowedFd<'_>) -> rustix::io::Result<Vec<CString>> {
    let mut names = Vec::new();
    for entry in Dir::read_from(folder)? {
        let name = entry?.file_name().to_owned();
        if ![c".", c".."].contains(&name.as_c_str()) {
            names.push(name);
        }
    }
    Ok(names)
}

fn remove_all(folder: BorrowedFd<'_>) {
    for name in entries(folder).unwrap_or_default() {
        remove(folder, name.as_c_str());
    }
}

/// Links are taken away and not followed.
fn remove(folder: BorrowedFd<'_>, name: impl rustix::path::Arg + Copy) {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let flags = match fs::openat(folder, name, flags, Mode::empty()) {
        Ok(inner) => {
            remove_all(inner.as_fd());
            AtFlags::REMOVEDIR
        }
        Err(_) => AtFlags::empty(),
    };
    let _ = fs::unlinkat(folder, name, flags);
}
