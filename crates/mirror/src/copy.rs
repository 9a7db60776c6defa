//! A mirror: a file in shared memory whose pages lie on one node, that all processes of the user there share.
//!
//! **Layout.** The data at its offsets in the file, then a word for each chunk: nothing yet, the number of the
//! process that copies it, or done. Two processes that copy one chunk at the same time (a number may mean
//! another process elsewhere) do no harm: each has a guard on the file, so that they write the same bytes.
//!
//! **Life.** Who uses a mirror holds a shared lock on it, that ends with the process however it ends. Who leaves
//! and can have the lock alone unlinks it; who comes looks whether what he has locked still has its name.
//! What killed processes left is unlinked by the next that comes ([`reap`]).

use crate::nodes::{self, Nodes};
use crate::sys::{self, Mapping, PAGE};
use hither_core::mirror::name::{self, Name};
use hither_core::mirror::{Plan, room_bytes};
use std::ffi::c_int;
use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::sync::atomic::{AtomicU32, Ordering};

const NOTHING: u32 = 0;
const DONE: u32 = u32::MAX;
/// Pages looked at in a new chunk.
const SAMPLES: usize = 8;

/// Of one content on one node.
#[derive(Debug)]
pub struct Mirror {
    name: Name,
    path: String,
    /// Locked, shared.
    file: File,
    chunk_bytes: u64,
    /// Data, to be written.
    data: Mapping,
    words: Mapping,
    chunk_count: usize,
    /// Data, to be mapped again, by protection.
    sources: Vec<(c_int, Mapping)>,
    /// As `/proc/self/maps` has it; empty until something of it is mapped.
    pub mapped_as: String,
}

/// What became of the building of a chunk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Built {
    /// It is there, and this process has copied so many bytes for it.
    Done(u64),
    /// Another process is at it.
    Busy,
    /// It is refused.
    Refused(String),
}

fn user() -> u32 {
    // SAFETY: asks only.
    unsafe { libc::geteuid() }
}

/// The folder of this user's mirrors, which nobody else may enter.
fn folder() -> Result<String, String> {
    let path = name::folder(user());
    let made = DirBuilder::new().mode(0o700).create(&path);
    if let Err(error) = made
        && error.kind() != io::ErrorKind::AlreadyExists
    {
        return Err(format!("{path} cannot be made: {error}"));
    }
    let status = fs::symlink_metadata(&path).map_err(|error| format!("{path}: {error}"))?;
    let is_own = status.is_dir() && status.uid() == user() && status.mode() & 0o077 == 0;
    match is_own {
        true => Ok(path),
        false => Err(format!("{path} is not a folder of this user's alone")),
    }
}

/// Unlinks mirrors that nobody uses. Returns bytes on a node of those that stay.
pub fn reap(node: u32) -> u64 {
    let Ok(folder) = folder() else { return 0 };
    let mut bytes = 0;
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let name = entry
            .file_name()
            .to_str()
            .and_then(|text| text.parse::<Name>().ok());
        let path = entry.path();
        let (Some(name), Some(text)) = (name, path.to_str()) else {
            continue;
        };
        let Ok(file) = sys::open(text, libc::O_RDWR | libc::O_NOFOLLOW, 0) else {
            continue;
        };
        if sys::lock(&file, libc::LOCK_EX).is_ok() {
            let _ = fs::remove_file(&path);
        } else if name.node == node {
            bytes += file.metadata().map_or(0, |status| status.blocks() * 512);
        }
    }
    bytes
}

impl Mirror {
    /// Joins a mirror, or makes it.
    pub fn join(name: Name, chunk_bytes: u64) -> Result<Self, String> {
        let path = format!("{}/{name}", folder()?);
        let data_bytes = name.content.bytes.next_multiple_of(PAGE as u64);
        let chunk_count = data_bytes.div_ceil(chunk_bytes) as usize;
        let word_bytes = (chunk_count * size_of::<u32>()).next_multiple_of(PAGE);
        let whole = data_bytes + word_bytes as u64;
        let file = Self::locked(&path)?;
        let told = |what: &str, error: io::Error| format!("{what} {path}: {error}");
        let status = file.metadata().map_err(|error| told("asking for", error))?;
        if status.len() != whole {
            // Also by somebody who makes it at the same time: to the same size.
            file.set_len(whole).map_err(|error| told("sizing", error))?;
        }
        sys::reserve(&file, data_bytes, word_bytes as u64)
            .map_err(|error| format!("there is no room in /dev/shm: {error}"))?;
        let both = libc::PROT_READ | libc::PROT_WRITE;
        let data = Mapping::of(&file, 0, data_bytes as usize, both, true);
        let data = data.map_err(|error| told("mapping", error))?;
        let words = Mapping::of(&file, data_bytes, word_bytes, both, true);
        let words = words.map_err(|error| told("mapping", error))?;
        sys::prefer(data.address(), data_bytes as usize, name.node)
            .map_err(|error| told("placing", error))?;
        Ok(Self {
            name,
            path,
            file,
            chunk_bytes,
            data,
            words,
            chunk_count,
            sources: Vec::new(),
            mapped_as: String::new(),
        })
    }

    /// The file of that name, with a shared lock.
    fn locked(path: &str) -> Result<File, String> {
        for _ in 0..100 {
            let flags = libc::O_RDWR | libc::O_CREAT | libc::O_NOFOLLOW;
            let file =
                sys::open(path, flags, 0o600).map_err(|error| match error.raw_os_error() {
                    Some(libc::ENOSPC) => format!("there is no room in /dev/shm: {error}"),
                    _ => format!("{path} cannot be made: {error}"),
                })?;
            let status = file
                .metadata()
                .map_err(|error| format!("{path}: {error}"))?;
            if !status.is_file() || status.uid() != user() || status.mode() & 0o077 != 0 {
                return Err(format!("{path} is not this user's alone"));
            }
            // Somebody unlinks it where the lock is refused, or has where the name means another.
            let is_named = || {
                let named = fs::symlink_metadata(path);
                named.is_ok_and(|named| (named.dev(), named.ino()) == (status.dev(), status.ino()))
            };
            if sys::lock(&file, libc::LOCK_SH).is_ok() && is_named() {
                return Ok(file);
            }
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        Err(format!("{path} is being removed"))
    }

    fn word(&self, chunk: usize) -> Option<&AtomicU32> {
        let address = self.words.address() + chunk * size_of::<u32>();
        // SAFETY: a word of the mapping, which all processes use as an atomic.
        (chunk < self.chunk_count).then(|| unsafe { &*(address as *const AtomicU32) })
    }

    /// Bytes that a copy of a chunk would still take.
    pub fn missing_bytes(&self, chunk: usize) -> u64 {
        match self.word(chunk).map(|word| word.load(Ordering::Acquire)) {
            Some(DONE) => 0,
            _ => self.chunk_bytes,
        }
    }

    /// Bytes of a chunk that the file has, in whole pages; the file's last chunk is shorter.
    pub fn bytes_of(&self, chunk: usize) -> u64 {
        let start = chunk as u64 * self.chunk_bytes;
        let end = self.name.content.bytes.next_multiple_of(PAGE as u64);
        end.saturating_sub(start).min(self.chunk_bytes)
    }

    /// Copies a chunk from where the file is mapped, at the address of the chunk's first byte. Who copies has
    /// a guard on the file. `is_sound`, asked after the bytes were read: were they the file's as guarded?
    pub fn build(&self, chunk: usize, source: usize, is_sound: impl Fn() -> bool) -> Built {
        let Some(word) = self.word(chunk) else {
            return Built::Refused("the file has become shorter".to_owned());
        };
        let own = std::process::id();
        // Acquire: with `DONE` comes what was copied.
        let mut seen = word.load(Ordering::Acquire);
        loop {
            match seen {
                DONE => return Built::Done(0),
                other if other != NOTHING && other != own && sys::lives(other) => {
                    return Built::Busy;
                }
                _ => {}
            }
            match word.compare_exchange(seen, own, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => break,
                Err(now) => seen = now,
            }
        }
        let built = match self.fill(chunk, source) {
            Built::Done(_) if !is_sound() => {
                Built::Refused("it was written or unmapped meanwhile".to_owned())
            }
            built => built,
        };
        let after = match built {
            Built::Done(_) => DONE,
            _ => NOTHING,
        };
        // Release: who finds `DONE` finds the bytes.
        word.store(after, Ordering::Release);
        built
    }

    fn fill(&self, chunk: usize, source: usize) -> Built {
        let (offset, bytes) = (
            chunk as u64 * self.chunk_bytes,
            self.bytes_of(chunk) as usize,
        );
        if let Err(error) = sys::reserve(&self.file, offset, bytes as u64) {
            return Built::Refused(format!("there is no room in /dev/shm: {error}"));
        }
        let target = self.data.address() + offset as usize;
        let give_up = |why: String| {
            let _ = sys::advise(target, bytes, libc::MADV_REMOVE);
            Built::Refused(why)
        };
        let mut done = 0;
        while done < bytes {
            // SAFETY: the chunk of an own mapping, in which nobody else but for the same bytes writes.
            match unsafe { sys::copy_within(source + done, target + done, bytes - done) } {
                Ok(0) => return give_up("it cannot be read to its end".to_owned()),
                Ok(copied) => done += copied,
                Err(error) => return give_up(format!("it cannot be read: {error}")),
            }
        }
        let step = (bytes / PAGE).div_ceil(SAMPLES) * PAGE;
        let pages: Vec<usize> = (0..bytes).step_by(step).map(|at| target + at).collect();
        let node = self.name.node as c_int;
        let nodes = sys::nodes_of(&pages).unwrap_or_default();
        let astray = nodes.iter().filter(|home| **home >= 0 && **home != node);
        if astray.count() * 2 > pages.len() {
            return give_up(format!("node {node} is full"));
        }
        // Page tables that nobody needs any more.
        let _ = sys::advise(target, bytes, libc::MADV_DONTNEED);
        Built::Done(bytes as u64)
    }

    /// Address from which a part of it can be mapped a second time, with that protection.
    pub fn source(&mut self, offset: u64, protection: c_int) -> Result<usize, String> {
        let known = |(other, _): &&(c_int, Mapping)| *other == protection;
        if self.sources.iter().find(known).is_none() {
            let file = sys::open(&self.path, libc::O_RDONLY | libc::O_NOFOLLOW, 0);
            let bytes = self.name.content.bytes as usize;
            let mapping = file.and_then(|file| {
                let same = |status: fs::Metadata| (status.dev(), status.ino());
                match same(file.metadata()?) == same(self.file.metadata()?) {
                    true => Mapping::of(&file, 0, bytes, protection, true),
                    false => Err(io::ErrorKind::NotFound.into()),
                }
            });
            let mapping = mapping.map_err(|error| match protection & libc::PROT_EXEC {
                0 => format!("its copy cannot be mapped: {error}"),
                _ => format!(
                    "its copy cannot be mapped for execution (/dev/shm is noexec?): {error}"
                ),
            })?;
            self.sources.push((protection, mapping));
        }
        let found = self.sources.iter().find(known);
        let found = found.map(|(_, mapping)| mapping.address() + offset as usize);
        found.ok_or_else(|| "its copy cannot be mapped".to_owned())
    }

    /// Whether children have the sources, and what is mapped from them. They have it while copies are mapped: a
    /// child that a bare `clone` makes in the middle would have holes there.
    pub fn inherit_sources(&self, is_inherited: bool) -> io::Result<()> {
        let mut mappings = self.sources.iter().map(|(_, mapping)| mapping);
        mappings.try_for_each(|mapping| mapping.inherit(is_inherited))
    }

    /// Address of any source mapping, to find it among the kernel's.
    pub fn any_source(&self) -> Option<usize> {
        self.sources.first().map(|(_, mapping)| mapping.address())
    }

    /// Its content is no longer the file's: nobody shall join it.
    pub fn outdate(&self) {
        let _ = fs::remove_file(&self.path);
    }

    /// Most bytes that may be copied to its node now.
    pub fn room_bytes(&self, plan: &Plan) -> Result<u64, String> {
        let node = self.name.node;
        let memory = Nodes::memory(node);
        let (available, total) =
            memory.ok_or_else(|| format!("node {node} does not tell its memory"))?;
        let room = room_bytes(plan, reap(node), available, total);
        Ok(room.min(nodes::group_room().unwrap_or(u64::MAX)))
    }
}

impl Drop for Mirror {
    fn drop(&mut self) {
        // Alone: nobody else uses it, and who opened it a moment ago will find its name gone.
        if sys::lock(&self.file, libc::LOCK_EX).is_ok() {
            let named = fs::symlink_metadata(&self.path);
            let own = self.file.metadata();
            if let (Ok(named), Ok(own)) = (named, own)
                && (named.dev(), named.ino()) == (own.dev(), own.ino())
            {
                self.outdate();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hither_core::mirror::name::Content;
    use std::path::Path;

    /// Of no file that is there.
    fn name(inode: u64, bytes: u64) -> Name {
        let content = Content {
            device: u64::from(std::process::id()) << 32,
            inode,
            bytes,
            written_ns: 1,
            changed_ns: 1,
        };
        Name { content, node: 0 }
    }

    #[test]
    fn a_mirror_is_shared_and_gone_with_its_last_user() {
        let bytes = vec![7u8; 300_000];
        let name = name(1, bytes.len() as u64);
        let one = Mirror::join(name, 64 << 10).unwrap();
        let mut two = Mirror::join(name, 64 << 10).unwrap();
        let path = one.path.clone();
        assert_eq!(one.chunk_count, 5);
        assert_eq!(one.missing_bytes(1), 64 << 10);
        let source = bytes.as_ptr() as usize;
        assert_eq!(one.build(1, source, || true), Built::Done(64 << 10));
        assert_eq!(
            (two.missing_bytes(1), two.build(1, 0, || true)),
            (0, Built::Done(0))
        );
        // The last chunk ends with the page.
        assert_eq!(
            one.bytes_of(4),
            300_000u64.next_multiple_of(4096) - (256 << 10)
        );
        let at = two.source(64 << 10, libc::PROT_READ).unwrap();
        // SAFETY: a mapped byte.
        assert_eq!(unsafe { (at as *const u8).read() }, 7);
        assert!(matches!(two.build(2, 4096, || true), Built::Refused(_)));
        assert_eq!(two.missing_bytes(2), 64 << 10);
        drop(one);
        reap(0);
        assert!(Path::new(&path).exists());
        drop(two);
        assert!(!Path::new(&path).exists());
    }

    #[test]
    fn what_a_dead_process_was_at_is_taken_over() {
        let bytes = vec![3u8; 64 << 10];
        let mirror = Mirror::join(name(2, 64 << 10), 64 << 10).unwrap();
        let mut child = std::process::Command::new("true").spawn().unwrap();
        mirror.word(0).unwrap().store(1, Ordering::Relaxed);
        assert_eq!(
            mirror.build(0, bytes.as_ptr() as usize, || true),
            Built::Busy
        );
        mirror.word(0).unwrap().store(child.id(), Ordering::Relaxed);
        child.wait().unwrap();
        assert_eq!(
            mirror.build(0, bytes.as_ptr() as usize, || true),
            Built::Done(64 << 10)
        );
    }

    #[test]
    fn what_nobody_uses_is_removed_and_nobody_joins_what_goes() {
        let name = name(3, 4096);
        let path = format!("{}/{name}", folder().unwrap());
        std::fs::write(&path, "left").unwrap();
        let gone = File::open(&path).unwrap();
        reap(0);
        assert!(!Path::new(&path).exists());
        assert_eq!(gone.metadata().unwrap().nlink(), 0);
        let mirror = Mirror::join(name, 64 << 10).unwrap();
        mirror.outdate();
        // One of that name is another.
        let other = Mirror::join(name, 64 << 10).unwrap();
        drop(mirror);
        assert!(Path::new(&other.path).exists());
    }
}
