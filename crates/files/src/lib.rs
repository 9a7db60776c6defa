//! hither-files: opening and reading what others wrote.
//!
//! A name that somebody else chose may stand for anything: a pipe that nobody writes to, at which
//! open(2) waits for ever; a device that never ends; a file that is larger than memory. So every
//! reader of foreign files opens them here. What is no regular file is refused without waiting for it,
//! and no more bytes are read than the reader has a use for. Files of the kernel (`/proc`, `/sys`) are
//! not foreign, and have readers of their own.

#![forbid(unsafe_code)]

use std::cell::Cell;
use std::fs::{self, File, FileType, OpenOptions};
use std::io::{Error, ErrorKind, Read, Result};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Once;

/// Opens a regular file to be read. Never waits.
///
/// # Errors
/// What the kernel said; the file is of another kind.
pub fn open(path: &Path) -> Result<File> {
    opened(path, false)
}

/// A regular file's bytes.
///
/// # Errors
/// As [`open`]; it has more than `most_bytes`.
pub fn read(path: &Path, most_bytes: u64) -> Result<Vec<u8>> {
    bytes(open(path)?, most_bytes)
}

/// The bytes of a regular file of the user `uid` that nobody else may write, and that no link stands for: what
/// somebody else could have put there is not believed.
///
/// # Errors
/// As [`read`]; it is a link, somebody else's, or others may write it.
pub fn read_own(path: &Path, uid: u32, most_bytes: u64) -> Result<Vec<u8>> {
    let refused = |text: &str| Err(Error::new(ErrorKind::PermissionDenied, text));
    let kind = fs::symlink_metadata(path)?.file_type();
    if kind.is_symlink() {
        return refused("it is a link, not a file of this user");
    }
    check(kind, false)?;
    let flags = libc::O_NOCTTY | libc::O_NONBLOCK | libc::O_NOFOLLOW;
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(flags)
        .open(path)?;
    let seen = file.metadata()?;
    check(seen.file_type(), false)?;
    if seen.uid() != uid {
        return refused("it is not this user's");
    }
    if seen.mode() & 0o022 != 0 {
        return refused("others may write it");
    }
    bytes(file, most_bytes)
}

/// The bytes of what a person named, which may be a pipe: `/dev/stdin`, or `<(command)` of a shell.
/// Waits for the pipe's writer, as the person meant it to; signals end that.
///
/// # Errors
/// As [`read`].
pub fn read_named(path: &Path, most_bytes: u64) -> Result<Vec<u8>> {
    bytes(opened(path, true)?, most_bytes)
}

/// The same of a text.
///
/// # Errors
/// As [`read`]; it is not text in UTF-8.
pub fn read_named_text(path: &Path, most_bytes: u64) -> Result<String> {
    String::from_utf8(read_named(path, most_bytes)?)
        .map_err(|_| Error::new(ErrorKind::InvalidData, "it is not text in UTF-8"))
}

fn opened(path: &Path, takes_pipes: bool) -> Result<File> {
    // Before it is opened: opening alone has effects at some devices.
    let kind = fs::metadata(path)?.file_type();
    let is_pipe = takes_pipes && kind.is_fifo();
    check(kind, is_pipe)?;
    // Another file may have its name by now, and nobody waits for that.
    let flags = libc::O_NOCTTY | if is_pipe { 0 } else { libc::O_NONBLOCK };
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(flags)
        .open(path)?;
    check(file.metadata()?.file_type(), is_pipe)?;
    Ok(file)
}

fn check(kind: FileType, takes_pipes: bool) -> Result<()> {
    let what = match kind {
        _ if kind.is_file() => return Ok(()),
        _ if kind.is_fifo() && takes_pipes => return Ok(()),
        _ if kind.is_dir() => return Err(ErrorKind::IsADirectory.into()),
        _ if kind.is_fifo() => "a pipe",
        _ if kind.is_socket() => "a socket",
        _ => "a device",
    };
    let text = format!("it is {what}, not a regular file");
    Err(Error::new(ErrorKind::InvalidInput, text))
}

fn bytes(file: File, most_bytes: u64) -> Result<Vec<u8>> {
    let too_large = || {
        let text = format!("it has more than {most_bytes} bytes, which are the most that are read");
        Error::new(ErrorKind::FileTooLarge, text)
    };
    // Before memory is taken for it.
    if file.metadata()?.len() > most_bytes {
        return Err(too_large());
    }
    let mut bytes = Vec::new();
    file.take(most_bytes.saturating_add(1))
        .read_to_end(&mut bytes)?;
    match bytes.len() as u64 > most_bytes {
        true => Err(too_large()),
        false => Ok(bytes),
    }
}

thread_local! {
    /// Is a panic of this thread caught, so that nobody need read of it?
    static CAUGHT: Cell<bool> = const { Cell::new(false) };
}

/// Runs a decoder that is not ours; `None` where it panics at what it is given, without a word on standard
/// error. The last line: what can be told before is to be refused with a reason. What the decoder
/// was at is as the panic left it.
pub fn contained<T>(decode: impl FnOnce() -> T) -> Option<T> {
    static SILENCED: Once = Once::new();
    SILENCED.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            if !CAUGHT.get() {
                before(panic);
            }
        }));
    });
    let outer = CAUGHT.replace(true);
    let decoded = catch_unwind(AssertUnwindSafe(decode));
    CAUGHT.set(outer);
    decoded.ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    fn fifo(folder: &Path) -> std::path::PathBuf {
        let path = folder.join("pipe");
        let made = Command::new("mkfifo").arg(&path).status().unwrap();
        assert!(made.success());
        path
    }

    #[test]
    fn what_is_no_file_is_refused_without_waiting() {
        let folder = tempfile::tempdir().unwrap();
        let pipe = fifo(folder.path());
        let said = |path: &Path| read(path, 10).unwrap_err().to_string();
        assert_eq!(said(&pipe), "it is a pipe, not a regular file");
        assert_eq!(
            said(Path::new("/dev/zero")),
            "it is a device, not a regular file"
        );
        assert_eq!(said(folder.path()), "is a directory");
        let named = read_named(Path::new("/dev/zero"), 10).unwrap_err();
        assert_eq!(named.to_string(), "it is a device, not a regular file");
        assert_eq!(
            open(&folder.path().join("none")).unwrap_err().kind(),
            ErrorKind::NotFound
        );
    }

    #[test]
    fn what_others_could_have_written_is_not_read_as_own() {
        use std::os::unix::fs::{PermissionsExt, symlink};
        let folder = tempfile::tempdir().unwrap();
        let (path, link) = (folder.path().join("file"), folder.path().join("link"));
        fs::write(&path, "text").unwrap();
        symlink(&path, &link).unwrap();
        let mode = |mode| fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        mode(0o600);
        let uid = fs::metadata(&path).unwrap().uid();
        assert_eq!(read_own(&path, uid, 10).unwrap(), b"text");
        let said = |path: &Path, uid| read_own(path, uid, 10).unwrap_err().to_string();
        assert_eq!(said(&link, uid), "it is a link, not a file of this user");
        assert_eq!(said(&path, uid + 1), "it is not this user's");
        let pipe = fifo(folder.path());
        assert_eq!(said(&pipe, uid), "it is a pipe, not a regular file");
        mode(0o620);
        assert_eq!(said(&path, uid), "others may write it");
        mode(0o600);
        assert!(read_own(&path, uid, 3).is_err());
    }

    #[test]
    fn no_more_is_read_than_is_allowed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        fs::write(&path, "0123456789").unwrap();
        assert_eq!(read(&path, 10).unwrap(), b"0123456789");
        let error = read(&path, 9).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::FileTooLarge);
        assert!(error.to_string().contains("more than 9 bytes"), "{error}");
        // A file of the kernel tells no length: what counts is what comes.
        assert_eq!(
            read(Path::new("/proc/self/maps"), 10).unwrap_err().kind(),
            ErrorKind::FileTooLarge
        );
    }

    #[test]
    fn a_panic_of_a_decoder_is_nothing() {
        let nested = contained(|| contained(|| -> u8 { panic!("not to be seen") }));
        assert_eq!(nested, Some(None));
        assert_eq!(contained(|| 3), Some(3));
        assert!(!CAUGHT.get());
    }

    #[test]
    fn a_named_pipe_is_read_to_its_end() {
        let folder = tempfile::tempdir().unwrap();
        let pipe = fifo(folder.path());
        let writer = std::thread::spawn({
            let pipe = pipe.clone();
            move || fs::write(pipe, "text").unwrap()
        });
        assert_eq!(read_named_text(&pipe, 10).unwrap(), "text");
        writer.join().unwrap();
    }
}
