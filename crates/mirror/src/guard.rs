//! How it is known that a file stays what was copied.
//!
//! A *lease* on reading (fcntl(2)) is exact: who opens the file for writing or truncates it waits, by the
//! kernel, until every process that has copies has mapped the original back and given its lease. No reader
//! sees old bytes after a write began. Only the file's owner (or `CAP_LEASE`) may have one, and nobody while
//! the file is open for writing.
//!
//! Without the right to a lease, a private mapping may still have copies: what it shows of later writes is
//! unspecified (mmap(2)). Its file is *watched*: size and times are asked for at each turn (some ten a second),
//! and copies are given up soon after a write. Asking sees stores to shared mappings as well, of which inotify
//! tells nothing. A shared mapping without a lease gets no copies, nor does a file on a file system that knows
//! none: those of other machines tell times late.
//!
//! The kernel ends leases that are not given back within `fs.lease-break-time` (45 s): a process that is stopped
//! or gets no time at all for so long may read old bytes when it goes on.
//!
//! Renaming, unlinking and replacing a file changes no content: mappings keep the inode that they have.

use crate::sys;
use hither_core::mirror::SETTLED_MS;
use hither_core::mirror::name::Content;
use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::time::{SystemTime, UNIX_EPOCH};

/// Of one file.
#[derive(Debug)]
pub struct Guard {
    file: File,
    is_lease: bool,
    /// What is guarded.
    pub content: Content,
}

/// Why there is none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// Try again later.
    NotNow(&'static str),
    /// Not while it is this file.
    Never(String),
}

fn content_of(file: &File) -> io::Result<Content> {
    let status = file.metadata()?;
    let ns = |seconds: i64, ns: i64| seconds.wrapping_mul(1_000_000_000).wrapping_add(ns);
    Ok(Content {
        device: status.dev(),
        inode: status.ino(),
        bytes: status.size(),
        written_ns: ns(status.mtime(), status.mtime_nsec()),
        changed_ns: ns(status.ctime(), status.ctime_nsec()),
    })
}

/// Did it rest long enough, by its times, for its times to tell its content?
fn is_settled(content: &Content, now_ns: i64) -> bool {
    let newest = content.written_ns.max(content.changed_ns);
    now_ns.saturating_sub(newest) >= SETTLED_MS as i64 * 1_000_000
}

impl Guard {
    /// Guards the file at a path, which must be the one that is mapped.
    pub fn of(path: &str, device: u64, inode: u64, is_shared: bool) -> Result<Self, Refusal> {
        let never = |error: io::Error| Refusal::Never(format!("it cannot be opened: {error}"));
        let file = sys::open(path, libc::O_RDONLY, 0).map_err(never)?;
        let is_same = |content: &Content| (content.device, content.inode) == (device, inode);
        if !is_same(&content_of(&file).map_err(never)?) {
            let why = "another file has its name now";
            return Err(Refusal::Never(why.to_owned()));
        }
        let is_lease = match sys::lease(&file) {
            Ok(()) => true,
            Err(error) if error.raw_os_error() == Some(libc::EAGAIN) => {
                return Err(Refusal::NotNow("it is open for writing"));
            }
            Err(error) if !matches!(error.raw_os_error(), Some(libc::EACCES | libc::EPERM)) => {
                // Of what lies on other machines times are told late, too.
                return Err(Refusal::Never(format!(
                    "its file system has no leases: {error}"
                )));
            }
            Err(error) if is_shared => {
                return Err(Refusal::Never(format!(
                    "it is mapped shared, and only its owner or CAP_LEASE can be told before it is \
                     written: {error}"
                )));
            }
            Err(_) => false,
        };
        // After the lease, which may have waited for nobody: nothing changes from here on.
        let content = content_of(&file).map_err(never)?;
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let now_ns = now.map_or(0, |now| now.as_nanos() as i64);
        if !is_settled(&content, now_ns) {
            return Err(Refusal::NotNow("it was changed a moment ago"));
        }
        Ok(Self {
            file,
            is_lease,
            content,
        })
    }

    /// Is all as it was? Else copies are to be given up, and the guard dropped after that.
    pub fn is_good(&self) -> bool {
        match self.is_lease {
            true => sys::is_leased(&self.file),
            false => content_of(&self.file).is_ok_and(|content| content == self.content),
        }
    }

    /// Will the kernel hold writers back?
    pub fn is_lease(&self) -> bool {
        self.is_lease
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if self.is_lease {
            sys::unlease(&self.file);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn age(path: &std::path::Path) {
        // Only a wait makes ctime old.
        let _ = path;
        std::thread::sleep(std::time::Duration::from_millis(SETTLED_MS + 50));
    }

    #[test]
    fn a_file_rests_before_its_times_are_believed() {
        let content = Content {
            device: 1,
            inode: 1,
            bytes: 1,
            written_ns: 5_000_000_000,
            changed_ns: 6_000_000_000,
        };
        assert!(!is_settled(&content, 6_999_999_999) && is_settled(&content, 7_000_000_000));
        assert!(!is_settled(&content, 0));
    }

    #[test]
    fn leases_are_refused_where_somebody_writes_and_broken_by_who_opens() {
        let _signals = sys::Blocked::all();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("data");
        let writer = File::create(&path).unwrap();
        let status = writer.metadata().unwrap();
        let text = path.to_str().unwrap();
        let guard = || Guard::of(text, status.dev(), status.ino(), true);
        assert_eq!(
            guard().unwrap_err(),
            Refusal::NotNow("it is open for writing")
        );
        drop(writer);
        assert_eq!(
            guard().unwrap_err(),
            Refusal::NotNow("it was changed a moment ago")
        );
        age(&path);
        let held = guard().unwrap();
        assert!(held.is_lease() && held.is_good());
        let waits = {
            let path = path.clone();
            std::thread::spawn(move || File::options().append(true).open(path).unwrap())
        };
        while held.is_good() {
            std::thread::yield_now();
        }
        assert!(!waits.is_finished());
        drop(held);
        drop(waits.join().unwrap());
        // The signal came to this thread.
        assert!(sys::wait(std::time::Duration::ZERO));
        let why = Guard::of(text, status.dev(), status.ino() + 1, true).unwrap_err();
        assert_eq!(
            why,
            Refusal::Never("another file has its name now".to_owned())
        );
    }
}
