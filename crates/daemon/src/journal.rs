//! Which pages were moved, kept where the next daemon finds it: after `kill -9`, `hither undo` puts them
//! back as if nothing had happened.
//!
//! Problem: the ledger is memory of the process. Mechanism: before anything is handed to the movers, one
//! line for each run of pages is appended to a file below `/run`: whose pages, where they came from, where
//! they are to go. A line tells of a move that may not have happened; to put such pages back moves nothing.
//! A process is known again by its number, its start and the place of its stack, which exec changes; what
//! is told of another life is void.
//!
//! ```text
//! hither moved 1
//! p 4711 83421 140725000000000      process, start in ticks since boot, start of its stack
//! m 7f0a1c000 7f0a1c010 2 0 b       base pages from, to; came from node 2, goes to node 0; b base, h huge
//! ```
//!
//! A last line without its end was being written when the daemon was killed: nothing of it was moved yet.
//! The file is written anew when it has grown, from the ledgers; a lock says that its owner lives.

use hither_core::engine::Engine;
use hither_core::ids::{NodeId, Pid, SpaceId};
use hither_core::plan::{Mechanism, MoveRequest};
use hither_core::snapshot::{Snapshot, base_pages};
use hither_linux::proc::tree::{Birth, LiveProcess};
use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, Write as _};
use std::ops::Range;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

const HEADER: &str = "hither moved 1\n";
/// Bytes from which the file is written anew, unless it had as many after the last time.
const REWRITE_BYTES: u64 = 8 << 20;
/// Bytes that are read at most: more than the ledgers' million runs take.
const MOST_BYTES: u64 = 256 << 20;

/// Pages that were moved alike.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Moved {
    /// Base pages.
    pub pages: Range<u64>,
    /// Where they came from.
    pub origin: NodeId,
    /// Where they went.
    pub home: NodeId,
    /// As huge pages.
    pub is_huge: bool,
}

/// What an earlier daemon moved, by life of memory.
pub type Earlier = BTreeMap<Birth, Vec<Moved>>;

/// The file.
#[derive(Debug)]
pub struct Journal {
    path: PathBuf,
    file: File,
    bytes: u64,
    /// Bytes after it was written anew.
    least_bytes: u64,
    /// Whose pages the next lines tell of.
    last: Option<Birth>,
}

/// Why there is no journal.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Another daemon has it.
    #[error("another hither daemon runs (it holds {0}); end that one first")]
    Taken(String),
    /// It cannot be used.
    #[error("the journal {path}: {reason}")]
    Io {
        /// The file.
        path: String,
        /// What is wrong and how to mend it.
        reason: String,
        /// What the system said.
        source: io::Error,
    },
    /// It is not this user's alone.
    #[error(
        "the journal {0} is not a file of this user alone, so that what it says is not believed; look at it and delete it"
    )]
    Foreign(String),
}

impl Journal {
    /// Opens the journal, makes it where there is none, and returns what an earlier daemon left in it.
    /// Lines that are not understood, and all after them, are left out, with a sentence.
    ///
    /// # Errors
    /// Another daemon has it; it is not this user's; it cannot be used.
    pub fn open(path: &Path) -> Result<(Self, Earlier, Option<String>), Error> {
        let shown = || hither_core::foreign::Foreign::shown(path).to_string();
        let fail = |source| Error::Io {
            path: shown(),
            reason:
                "it cannot be used; make its folder one of this user, on a file system with room"
                    .to_owned(),
            source,
        };
        let file = OpenOptions::new()
            .read(true)
            .append(true)
            .create(true)
            .mode(0o600)
            .custom_flags(rustix::fs::OFlags::NOFOLLOW.bits() as i32)
            .open(path);
        let mut file = file.map_err(fail)?;
        let seen = file.metadata().map_err(fail)?;
        let own = rustix::process::geteuid().as_raw();
        if !seen.is_file() || seen.uid() != own || seen.mode() & 0o022 != 0 {
            return Err(Error::Foreign(shown()));
        }
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(Error::Taken(shown())),
            Err(TryLockError::Error(error)) => return Err(fail(error)),
        }
        let mut bytes = Vec::new();
        (&mut file)
            .take(MOST_BYTES)
            .read_to_end(&mut bytes)
            .map_err(fail)?;
        let (earlier, note) = parse(&String::from_utf8_lossy(&bytes));
        let note = note.map(|note| format!("the journal {}: {note}", shown()));
        let mut journal = Self {
            path: path.to_owned(),
            file,
            bytes: 0,
            least_bytes: 0,
            last: None,
        };
        // A torn line would run into the next one.
        journal.write_anew(&earlier).map_err(fail)?;
        Ok((journal, earlier, note))
    }

    /// Takes down what is asked for, and what the kernel moved because hither watches, before it is
    /// handed over. `births` knows the lives of memory.
    ///
    /// # Errors
    /// It cannot be written: then nothing may be moved.
    pub fn note(
        &mut self,
        engine: &Engine,
        snapshot: &Snapshot,
        requests: &[MoveRequest],
        births: &HashMap<SpaceId, Birth>,
    ) -> io::Result<()> {
        let mut text = String::new();
        for request in requests
            .iter()
            .filter(|request| request.reason.mechanism != Mechanism::Revert)
        {
            // One that was seen first in this turn waits for the next.
            let birth = births.get(&request.space).ok_or_else(|| {
                io::Error::other("a process has come just now, and is waited for")
            })?;
            let origins = request.pages.iter().filter_map(|&page| {
                let (origin, is_huge) = engine.origin(request.scope, request.pid, page)?;
                Some((page, origin, request.to, is_huge))
            });
            self.add(&mut text, *birth, origins);
        }
        let mut followed: BTreeMap<Pid, Vec<(u64, NodeId, NodeId, bool)>> = BTreeMap::new();
        for page in snapshot.pages.iter().filter(|page| page.was.is_some()) {
            let Some(scope) = engine.scope_of(page.pid) else {
                continue;
            };
            if let Some((origin, is_huge)) = engine.origin(scope, page.pid, page.page) {
                followed
                    .entry(page.pid)
                    .or_default()
                    .push((page.page, origin, page.home, is_huge));
            }
        }
        for (pid, mut pages) in followed {
            let process = snapshot.process(pid);
            if let Some(birth) = process.and_then(|process| births.get(&process.space)) {
                pages.sort_unstable_by_key(|&(page, ..)| page);
                self.add(&mut text, *birth, pages.into_iter());
            }
        }
        self.append(&text)
    }

    /// Lines of pages, ascending: runs of what is alike.
    fn add(
        &mut self,
        text: &mut String,
        birth: Birth,
        pages: impl Iterator<Item = (u64, NodeId, NodeId, bool)>,
    ) {
        let mut run: Option<Moved> = None;
        for (page, origin, home, is_huge) in pages {
            let size = base_pages(is_huge);
            let page = page / size * size;
            if let Some(run) = &mut run {
                let is_alike = (run.origin, run.home, run.is_huge) == (origin, home, is_huge);
                if is_alike && (run.pages.end == page || run.pages.contains(&page)) {
                    run.pages.end = run.pages.end.max(page + size);
                    continue;
                }
            }
            let next = Moved {
                pages: page..page + size,
                origin,
                home,
                is_huge,
            };
            if let Some(run) = run.replace(next) {
                self.line(text, birth, &run);
            }
        }
        if let Some(run) = run {
            self.line(text, birth, &run);
        }
    }

    fn line(&mut self, text: &mut String, birth: Birth, moved: &Moved) {
        if self.last != Some(birth) {
            self.last = Some(birth);
            let _ = writeln!(
                text,
                "p {} {} {}",
                birth.pid, birth.start_ticks, birth.stack_start
            );
        }
        let Moved {
            pages,
            origin,
            home,
            is_huge,
        } = moved;
        let size = if *is_huge { 'h' } else { 'b' };
        let _ = writeln!(
            text,
            "m {:x} {:x} {} {} {size}",
            pages.start, pages.end, origin.0, home.0
        );
    }

    fn append(&mut self, text: &str) -> io::Result<()> {
        if text.is_empty() {
            return Ok(());
        }
        let written = self.file.write_all(text.as_bytes());
        self.bytes += text.len() as u64;
        if written.is_err() {
            // Half a line may be there: the next ones begin with the whole that is known.
            self.last = None;
            let _ = self.file.write_all(b"\n");
        }
        written
    }

    /// Has it grown so that it should be written anew? Not while moves are under way: of these the ledgers
    /// do not know where the pages will be.
    #[must_use]
    pub fn should_rewrite(&self, engine: &Engine) -> bool {
        self.bytes >= REWRITE_BYTES.max(2 * self.least_bytes) && engine.pending_count() == 0
    }

    /// Writes the file anew: what the ledgers hold of living processes, and what of an earlier daemon was
    /// not taken over yet.
    ///
    /// # Errors
    /// It cannot be written; the old file stays.
    pub fn rewrite(
        &mut self,
        engine: &Engine,
        processes: &[LiveProcess],
        waiting: &Earlier,
    ) -> io::Result<()> {
        let mut all = waiting.clone();
        for scope in engine.scopes() {
            let Some(ledger) = engine.ledger(scope) else {
                continue;
            };
            for (pid, pages, entry) in ledger.iter().filter(|(_, _, entry)| entry.is_displaced()) {
                let process = processes.iter().find(|process| process.pid == pid.0);
                let space = ledger.space(pid);
                let Some(process) =
                    process.filter(|process| space == Some(SpaceId(process.incarnation)))
                else {
                    continue;
                };
                all.entry(process.birth()).or_default().push(Moved {
                    pages,
                    origin: entry.origin,
                    home: entry.home,
                    is_huge: entry.is_huge,
                });
            }
        }
        self.write_anew(&all)
    }

    /// Beside the old file, and then in its place, with the lock.
    fn write_anew(&mut self, all: &Earlier) -> io::Result<()> {
        let mut text = HEADER.to_owned();
        self.last = None;
        for (&birth, moved) in all {
            for moved in moved {
                self.line(&mut text, birth, moved);
            }
        }
        let beside = self.path.with_extension("new");
        let _ = std::fs::remove_file(&beside);
        let mut file = OpenOptions::new()
            .read(true)
            .append(true)
            .create_new(true)
            .mode(0o600)
            .open(&beside)?;
        file.try_lock().map_err(io::Error::from)?;
        file.write_all(text.as_bytes())?;
        file.rewind()?;
        std::fs::rename(&beside, &self.path)?;
        self.file = file;
        self.bytes = text.len() as u64;
        self.least_bytes = self.bytes;
        Ok(())
    }
}

/// Has the engine know what an earlier daemon moved of a member of a scope; returns base pages, counted as
/// often as they were moved.
pub fn adopt(engine: &mut Engine, pid: Pid, space: SpaceId, moved: Vec<Moved>) -> u64 {
    let mut count = 0;
    // The latest line of a page knows where it is, the first where it came from.
    for Moved {
        pages,
        origin,
        home,
        is_huge,
    } in moved.into_iter().rev()
    {
        let length = pages.end - pages.start;
        if engine.adopt(pid, space, pages, origin, home, is_huge) {
            count += length;
        }
    }
    count
}

/// What a journal tells; a sentence where something in it is not understood.
fn parse(text: &str) -> (Earlier, Option<String>) {
    let mut all = Earlier::new();
    let whole = &text[..text.rfind('\n').map_or(0, |end| end + 1)];
    if whole.is_empty() {
        return (all, None);
    }
    let mut birth = None;
    for (index, line) in whole.lines().enumerate() {
        let is_understood = match index {
            0 => format!("{line}\n") == HEADER,
            _ => parse_line(line, &mut birth, &mut all).is_some(),
        };
        if !is_understood {
            let note = format!(
                "line {} is not understood, and what follows is left out",
                index + 1
            );
            return (all, Some(note));
        }
    }
    (all, None)
}

fn parse_line(line: &str, birth: &mut Option<Birth>, all: &mut Earlier) -> Option<()> {
    let words: Vec<&str> = line.split(' ').collect();
    match words[..] {
        // Where half a line could not be written.
        [""] => {}
        ["p", pid, start, stack] => {
            *birth = Some(Birth {
                pid: pid.parse().ok().filter(|&pid| pid > 0)?,
                start_ticks: start.parse().ok()?,
                stack_start: stack.parse().ok()?,
            });
        }
        ["m", first, end, origin, home, size @ ("b" | "h")] => {
            let page = |text| {
                u64::from_str_radix(text, 16)
                    .ok()
                    .filter(|&page| page < 1 << 52)
            };
            let moved = Moved {
                pages: page(first)?..page(end)?,
                origin: NodeId(origin.parse().ok()?),
                home: NodeId(home.parse().ok()?),
                is_huge: size == "h",
            };
            if moved.pages.is_empty() {
                return None;
            }
            all.entry((*birth)?).or_default().push(moved);
        }
        _ => return None,
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const BIRTH: Birth = Birth {
        pid: 7,
        start_ticks: 8,
        stack_start: 9,
    };

    fn moved(pages: Range<u64>, origin: u32, is_huge: bool) -> Moved {
        Moved {
            pages,
            origin: NodeId(origin),
            home: NodeId(3),
            is_huge,
        }
    }

    #[test]
    fn what_was_written_is_found_and_a_torn_line_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("moved");
        let (mut journal, earlier, note) = Journal::open(&path).unwrap();
        assert!(earlier.is_empty() && note.is_none());
        assert!(matches!(Journal::open(&path), Err(Error::Taken(_))));
        let mut text = String::new();
        let page = |page, origin| (page, NodeId(origin), NodeId(3), false);
        let pages = [page(16, 1), page(17, 1), page(18, 2), page(20, 2)];
        journal.add(&mut text, BIRTH, pages.into_iter());
        let huge = [
            (1024, NodeId(1), NodeId(3), true),
            (1024 + 7, NodeId(1), NodeId(3), true),
        ];
        journal.add(&mut text, BIRTH, huge.into_iter());
        journal.append(&text).unwrap();
        journal.append("m 40 4").unwrap();
        drop(journal);
        let (journal, earlier, note) = Journal::open(&path).unwrap();
        let expected = vec![
            moved(16..18, 1, false),
            moved(18..19, 2, false),
            moved(20..21, 2, false),
            moved(1024..1536, 1, true),
        ];
        assert_eq!((earlier, note), ([(BIRTH, expected)].into(), None));
        drop(journal);
        std::fs::write(
            &path,
            "hither moved 1\np 7 8 9\nm 10 12 1 3 b\nm x\nm 10 12 1 3 b\n",
        )
        .unwrap();
        let (_, earlier, note) = Journal::open(&path).unwrap();
        assert_eq!(earlier[&BIRTH], [moved(16..18, 1, false)]);
        assert!(note.unwrap().contains("line 4 is not understood"));
    }

    #[test]
    fn a_file_that_others_may_write_is_not_believed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("moved");
        std::fs::write(&path, HEADER).unwrap();
        std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o666))
            .unwrap();
        assert!(matches!(Journal::open(&path), Err(Error::Foreign(_))));
        let link = folder.path().join("link");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        assert!(matches!(Journal::open(&link), Err(Error::Io { .. })));
    }

    proptest! {
        #[test]
        fn no_text_panics(text in "\\PC{0,300}", lines in prop::collection::vec("[pm0-9a-f bh-]{0,30}", 0..20)) {
            let _ = parse(&text);
            let _ = parse(&format!("{HEADER}{}\n", lines.join("\n")));
        }
    }
}
