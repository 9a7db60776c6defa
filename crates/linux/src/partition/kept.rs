//! What is known of a machine's partitions beyond what the kernel holds: kept in a file, so that
//! whoever comes next can finish or take back what was begun.
//!
//! The file is replaced as a whole, before the change that it tells of. A lock beside it, which the
//! kernel drops when its holder ends, keeps two from changing partitions at once.

use crate::error::{Error, Result};
use crate::restore::{self, Setting};
use hither_core::partition::State;
use serde::{Deserialize, Serialize};
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// The format of the file.
const FORMAT: &str = "hither.partitions-kept/1";
/// Bytes that it has at most.
const MAX_BYTES: u64 = 16 << 20;

/// How far the split as a whole is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    /// It is being made. Whoever finds it so takes it back.
    #[default]
    Starting,
    /// It is made.
    Running,
    /// It is being taken back. Whoever finds it so goes on with that.
    Stopping,
}

/// A process that was put into a partition, and the control group that it was in before.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Home {
    /// Its number.
    pub pid: i32,
    /// When it began, in ticks since boot: numbers are used again.
    pub start_ticks: u64,
    /// Its group, below the unified tree.
    pub group: String,
}

/// What is kept.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct KeptPartitions {
    /// [`FORMAT`].
    pub format: String,
    /// How far it is.
    pub phase: Phase,
    /// Who has what, and what is on its way.
    pub state: State,
    /// Settings as they were before.
    #[serde(default)]
    pub settings: Vec<Setting>,
    /// Where processes go when there are no partitions any more.
    #[serde(default)]
    pub homes: Vec<Home>,
}

impl KeptPartitions {
    /// Of a split that is about to be made.
    #[must_use]
    pub fn new(state: State, settings: Vec<Setting>) -> Self {
        Self {
            format: FORMAT.to_owned(),
            state,
            settings,
            ..Self::default()
        }
    }
}

/// The file, without the right to change it.
///
/// # Errors
/// It cannot be read, is not root's own, or no hither writes such.
pub fn read(folder: &Path) -> Result<Option<KeptPartitions>> {
    let path = path(folder);
    let fail = |error| Error::io(&path, "cannot be read", "run hither as root", error);
    let opened = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NOFOLLOW)
        .open(&path);
    let file = match opened {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        opened => opened.map_err(fail)?,
    };
    let seen = file.metadata().map_err(fail)?;
    let trusted = [0, crate::sys::effective_uid()].contains(&seen.uid());
    if !seen.is_file() || !trusted || seen.mode() & 0o022 != 0 {
        return Err(Error::new(
            &path,
            "can be written by others, so that what it says is not believed",
            "look at it and delete it",
        ));
    }
    let mut text = String::new();
    let read = file.take(MAX_BYTES).read_to_string(&mut text);
    read.map_err(fail)?;
    let refuse = |reason: String| {
        let remedy = "`hither partition stop --force` takes back what it can without it";
        Err(Error::new(&path, reason, remedy))
    };
    let kept: KeptPartitions = match toml::from_str(&text) {
        Ok(kept) => kept,
        Err(error) => return refuse(format!("is not understood: {}", error.message())),
    };
    if kept.format != FORMAT {
        return refuse(format!("is not of this release ({FORMAT})"));
    }
    if let Some(bad) = kept.settings.iter().find(|s| !restore::is_setting(&s.path)) {
        return refuse(format!("names `{}`, which is no setting", bad.path));
    }
    Ok(Some(kept))
}

fn path(folder: &Path) -> PathBuf {
    folder.join("partitions.toml")
}

/// The right to change partitions, until it is dropped.
#[derive(Debug)]
pub struct Keeper {
    folder: PathBuf,
    _lock: File,
}

impl Keeper {
    /// Waits up to a second for somebody else to finish.
    ///
    /// # Errors
    /// Somebody else is at it; the folder is not root's alone.
    pub fn new(folder: &Path) -> Result<Self> {
        restore::private_folder(folder)?;
        let path = folder.join("partitions.lock");
        let fail = |error| {
            Error::io(
                &path,
                "cannot be opened",
                "see that the folder may be written to",
                error,
            )
        };
        let lock = restore::open_private(&path).map_err(fail)?;
        match restore::lock(&lock) {
            Ok(()) => Ok(Self {
                folder: folder.to_owned(),
                _lock: lock,
            }),
            Err(TryLockError::WouldBlock) => Err(Error::new(
                path,
                "is held: another hither changes the partitions of this machine",
                "wait until it is done",
            )),
            Err(TryLockError::Error(error)) => Err(fail(error)),
        }
    }

    /// What is kept.
    ///
    /// # Errors
    /// As [`read`].
    pub fn read(&self) -> Result<Option<KeptPartitions>> {
        read(&self.folder)
    }

    /// Keeps this instead.
    ///
    /// # Errors
    /// It cannot be written: then nothing may be changed.
    pub fn write(&self, kept: &KeptPartitions) -> Result<()> {
        let (path, new) = (path(&self.folder), self.folder.join("partitions.new"));
        let fail = |error| Error::io(&new, "cannot be written", "make room in it", error);
        let text = toml::to_string(kept)
            .map_err(|error| Error::new(&new, format!("cannot be written: {error}"), ""))?;
        // What a dead one left half written is in the way of `create_new`.
        let _ = std::fs::remove_file(&new);
        let opened = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o644)
            .open(&new);
        let mut file = opened.map_err(fail)?;
        file.write_all(text.as_bytes()).map_err(fail)?;
        std::fs::rename(&new, &path).map_err(fail)
    }

    /// Nothing is kept any more.
    ///
    /// # Errors
    /// It cannot be removed.
    pub fn forget(&self) -> Result<()> {
        let path = path(&self.folder);
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                Err(Error::io(path, "cannot be removed", "remove it", error))
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder() -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        restore::private_folder(folder.path()).unwrap();
        folder
    }

    #[test]
    fn what_is_kept_is_read_again() {
        let folder = folder();
        let keeper = Keeper::new(folder.path()).unwrap();
        assert_eq!(keeper.read().unwrap(), None);
        let mut kept = KeptPartitions::new(
            State::default(),
            vec![Setting::new("sys/fs/cgroup/a/cpuset.mems", "")],
        );
        kept.homes.push(Home {
            pid: 7,
            start_ticks: 9,
            group: "/user.slice".to_owned(),
        });
        for phase in [Phase::Starting, Phase::Running, Phase::Stopping] {
            kept.phase = phase;
            keeper.write(&kept).unwrap();
            assert_eq!(read(folder.path()).unwrap(), Some(kept.clone()));
        }
        let refusal = Keeper::new(folder.path()).unwrap_err().to_string();
        assert!(refusal.contains("another hither"), "{refusal}");
        keeper.forget().unwrap();
        keeper.forget().unwrap();
        assert_eq!(keeper.read().unwrap(), None);
    }

    #[test]
    fn what_no_hither_wrote_is_not_believed() {
        let folder = folder();
        let keeper = Keeper::new(folder.path()).unwrap();
        let kept = KeptPartitions::new(State::default(), vec![Setting::new("sys/x", "1")]);
        keeper.write(&kept).unwrap();
        let path = folder.path().join("partitions.toml");
        let text = std::fs::read_to_string(&path).unwrap();
        for (bad, part) in [
            (text.replace("sys/x", "etc/passwd"), "which is no setting"),
            (
                text.replace("sys/x", "sys/../etc/passwd"),
                "which is no setting",
            ),
            (text.replace("kept/1", "kept/9"), "not of this release"),
            (text.replace("phase", "phrase"), "is not understood"),
        ] {
            std::fs::write(&path, bad).unwrap();
            let refusal = keeper.read().unwrap_err().to_string();
            assert!(refusal.contains(part), "{refusal}");
        }
        std::fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink("/etc/passwd", &path).unwrap();
        assert!(keeper.read().is_err());
    }
}
