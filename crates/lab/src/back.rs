//! Files that come back from the guest: where they go, and that nothing is overwritten.

use crate::error::{Error, Result};
use crate::protocol::FileBegin;
use hither_core::foreign::Foreign;
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Component, Path, PathBuf};

/// One `--back GUEST[:HOST]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Back {
    /// Path in the guest, relative ones below the program's working directory.
    pub guest: String,
    /// Where it goes on the host.
    pub host: PathBuf,
}

impl Back {
    /// Reads the argument. Without `:HOST` the file goes into the current folder.
    ///
    /// # Errors
    /// Where there is no name, or something is there already.
    pub fn parse(text: &str) -> Result<Self> {
        let (guest, host) = match text.split_once(':') {
            Some((guest, host)) => (guest, PathBuf::from(host)),
            None => (
                text,
                Path::new(text)
                    .file_name()
                    .map(PathBuf::from)
                    .unwrap_or_default(),
            ),
        };
        if guest.is_empty() || host.as_os_str().is_empty() {
            return Err(Error::bad(
                format!("--back {text}: no file name"),
                "write --back GUEST or --back GUEST:HOST",
            ));
        }
        if fs::symlink_metadata(&host).is_ok() {
            return Err(Error::bad(
                format!(
                    "--back {text}: {} exists and is not overwritten",
                    host.shown()
                ),
                format!("remove it, or name another place with --back {guest}:HOST"),
            ));
        }
        let host =
            std::path::absolute(&host).map_err(Error::io(format!("resolving {}", host.shown())))?;
        Ok(Self {
            guest: guest.to_owned(),
            host,
        })
    }
}

/// Writes what arrives.
#[derive(Debug, Default)]
pub struct Receiver {
    asked: Vec<Back>,
    open: Option<(PathBuf, File)>,
    /// Files that arrived whole.
    pub received: Vec<PathBuf>,
}

impl Receiver {
    /// For these places.
    #[must_use]
    pub fn new(asked: Vec<Back>) -> Self {
        Self {
            asked,
            open: None,
            received: Vec::new(),
        }
    }

    /// A file begins.
    ///
    /// # Errors
    /// Where its name leads elsewhere, or it cannot be made.
    pub fn begin(&mut self, begin: &FileBegin) -> Result<()> {
        let Some(back) = self.asked.get(begin.asked) else {
            return Err(Error::guest_sent(format!(
                "a file for request {} of {}",
                begin.asked,
                self.asked.len()
            )));
        };
        let below = Path::new(&begin.below);
        if !below
            .components()
            .all(|part| matches!(part, Component::Normal(_)))
        {
            return Err(Error::guest_sent(format!("a file named `{}`", begin.below)));
        }
        let path = if begin.below.is_empty() {
            back.host.clone()
        } else {
            back.host.join(below)
        };
        let doing = || format!("writing {}", path.shown());
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder).map_err(Error::io(doing()))?;
        }
        let file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&path);
        let file = file.map_err(Error::io(doing()))?;
        let mode = fs::Permissions::from_mode(begin.mode & 0o777 | 0o200);
        let allowed = file.set_permissions(mode).map_err(Error::io(doing()));
        self.open = Some((path, file));
        allowed
    }

    /// Its next bytes.
    ///
    /// # Errors
    /// Where the disk is full, or no file has begun.
    pub fn data(&mut self, bytes: &[u8]) -> Result<()> {
        let Some((path, file)) = &mut self.open else {
            return Err(Error::guest_sent("file data without a file"));
        };
        file.write_all(bytes)
            .map_err(Error::io(format!("writing {}", path.shown())))
    }

    /// It is whole.
    ///
    /// # Errors
    /// Where no file has begun.
    pub fn end(&mut self) -> Result<()> {
        let Some((path, _)) = self.open.take() else {
            return Err(Error::guest_sent("the end of no file"));
        };
        self.received.push(path);
        Ok(())
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        // Half a file looks like a whole one: better none.
        if let Some((path, _)) = self.open.take() {
            let _ = fs::remove_file(path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn begin(below: &str) -> FileBegin {
        FileBegin {
            asked: 0,
            below: below.into(),
            mode: 0o755,
        }
    }

    #[test]
    fn files_arrive_under_the_asked_place() {
        let folder = tempfile::tempdir().unwrap();
        let host = folder.path().join("out");
        let mut receiver = Receiver::new(vec![Back {
            guest: "/tmp/out".into(),
            host: host.clone(),
        }]);
        receiver.begin(&begin("a/b")).unwrap();
        receiver.data(b"hel").unwrap();
        receiver.data(b"lo").unwrap();
        receiver.end().unwrap();
        assert_eq!(fs::read_to_string(host.join("a/b")).unwrap(), "hello");
        assert_eq!(
            fs::metadata(host.join("a/b")).unwrap().permissions().mode() & 0o777,
            0o755
        );
        assert_eq!(receiver.received, [host.join("a/b")]);
    }

    #[test]
    fn half_a_file_is_removed_and_existing_ones_stay() {
        let folder = tempfile::tempdir().unwrap();
        let host = folder.path().join("x");
        let mut receiver = Receiver::new(vec![Back {
            guest: "x".into(),
            host: host.clone(),
        }]);
        receiver.begin(&begin("")).unwrap();
        receiver.data(b"half").unwrap();
        drop(receiver);
        assert!(!host.exists());
        fs::write(&host, "mine").unwrap();
        let mut receiver = Receiver::new(vec![Back {
            guest: "x".into(),
            host: host.clone(),
        }]);
        assert!(receiver.begin(&begin("")).is_err());
        drop(receiver);
        assert_eq!(fs::read_to_string(&host).unwrap(), "mine");
        let refused = Back::parse(&format!("/tmp/x:{}", host.display())).unwrap_err();
        assert!(refused.to_string().contains("not overwritten"), "{refused}");
    }

    #[test]
    fn names_that_lead_elsewhere_and_frames_out_of_order_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let mut receiver = Receiver::new(vec![Back {
            guest: "x".into(),
            host: folder.path().join("x"),
        }]);
        for name in ["../x", "/etc/passwd", "a/../../b", "./a"] {
            assert!(receiver.begin(&begin(name)).is_err(), "{name}");
        }
        assert!(
            receiver
                .begin(&FileBegin {
                    asked: 1,
                    below: String::new(),
                    mode: 0
                })
                .is_err()
        );
        assert!(receiver.data(b"x").is_err());
        assert!(receiver.end().is_err());
    }

    #[test]
    fn arguments_are_guest_and_host() {
        let got = Back::parse("/tmp/some-result-file").unwrap();
        assert_eq!(got.guest, "/tmp/some-result-file");
        assert!(got.host.is_absolute() && got.host.ends_with("some-result-file"));
        let got = Back::parse("out:/no/such/place").unwrap();
        assert_eq!(
            (got.guest.as_str(), got.host.as_path()),
            ("out", Path::new("/no/such/place"))
        );
        for bad in ["", ":", "a:", ":b", "/"] {
            assert_eq!(Back::parse(bad).unwrap_err().exit_status(), 2, "{bad}");
        }
    }
}
