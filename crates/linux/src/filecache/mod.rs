//! Pages of files that the machine has in memory (the page cache): which files a process uses, on which
//! nodes their pages are, and to other nodes with them.
//!
//! Problem: a file's page stays on the node of the CPU that first read or wrote it, often one of an
//! earlier run, a copy or a backup. Memory policies and NUMA balancing do not move it, and no
//! page table need name it: who reads by read(2) maps nothing.
//!
//! Mechanism: [`used`] finds the files, [`Cached`] opens one and goes over it window by window:
//! 1. *Ask* which pages are cached (`mincore(2)`). A page that is not is left alone: nothing is read
//!    from a disk.
//! 2. *Enter* those into this process's page tables, through a mapping of its own that may only read.
//! 3. *Query* and *move* them there, as any other pages, by the backend `kernel`.
//!
//! Pages that other processes map, too, move where this process may move for all (CAP_SYS_NICE);
//! else they are refused as shared.
//!
//! Rights: files are opened by this user's own, below the process's root folder and by its name, and
//! must be what the process has (device and inode). Where the kernel does not tell this user which
//! pages are cached, nothing is done.

#[cfg(test)]
mod tests;
mod used;

pub use used::{HowUsed, Used, used};

use crate::error::{Error, Result};
use crate::filter;
use crate::proc::maps::Maps;
use crate::root::Root;
use crate::sys::{self, FileWindow};
use hither_core::bind::astray::Bound;
use hither_core::ids::{NodeId, Pid};
use hither_mover::{Action, Backend, Job, Outcome, Pages, Race};
use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use used::Identity;

/// Pages of a window: 256 MiB.
const WINDOW_PAGES: u64 = 1 << 16;
/// Most pages of a file that are gone over: 4 TiB.
const MOST_PAGES: u64 = 1 << 30;

/// A file that is used, open.
#[derive(Debug)]
pub struct Cached {
    path: PathBuf,
    file: File,
    page_count: u64,
}

/// Pages of a window that are in memory on a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// Pages by node.
    pub nodes: BTreeMap<NodeId, u64>,
    /// Pages that were dropped, or cut off, between two questions.
    pub gone: u64,
    /// Pages that are on the wrong node.
    pub elsewhere: u64,
}

impl Seen {
    /// Cached pages.
    #[must_use]
    pub fn pages(&self) -> u64 {
        self.nodes.values().sum()
    }

    /// Another window's as well.
    pub fn add(&mut self, other: &Self) {
        for (&node, count) in &other.nodes {
            *self.nodes.entry(node).or_default() += count;
        }
        self.gone += other.gone;
        self.elsewhere += other.elsewhere;
    }
}

impl Cached {
    /// Opens a file that a process uses.
    ///
    /// # Errors
    /// This user may not, or the name is another file's by now; the kernel does not tell which pages
    /// are cached.
    pub fn open(root: &Root, pid: i32, used: &Used) -> Result<Self> {
        // As the process sees it: in a container the name is below another folder.
        let below = used.path.strip_prefix("/").unwrap_or(&used.path);
        let seen = root.path(&format!("proc/{pid}/root")).join(below);
        let path = if seen.exists() {
            seen
        } else {
            used.path.clone()
        };
        let file = hither_files::open(&path).map_err(|error| {
            let remedy = "run hither as a user who may read it";
            Error::new(&used.path, format!("cannot be opened ({error})"), remedy)
        })?;
        let opened = Self {
            page_count: file
                .metadata()
                .map_or(0, |about| about.len().div_ceil(4096)),
            file,
            path: used.path.clone(),
        };
        if !opened.is(root, pid, &used.identity) {
            return Err(opened.fault(
                "another file has this name by now",
                "nothing: the process has the older one",
            ));
        }
        if !sys::may_tell_cached(&opened.file) {
            return Err(opened.fault(
                "the kernel tells only its owner which of its pages are cached",
                filter::to_see_others(),
            ));
        }
        Ok(opened)
    }

    /// Its name.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Where its cached pages are, and which of them are elsewhere than they should be.
    ///
    /// # Errors
    /// What the kernel said.
    pub fn look(&self, bound: &Bound) -> Result<Seen> {
        let mut all = Seen::default();
        self.each_window(&mut |window, pages| {
            let (seen, _) = place(window, pages, bound).map_err(|error| self.failed(error))?;
            all.add(&seen);
            Ok(())
        })?;
        Ok(all)
    }

    /// Moves cached pages that are elsewhere; `each` gets what became of those of a window, and says
    /// whether to go on.
    ///
    /// # Errors
    /// What the kernel said.
    pub fn move_pages(
        &self,
        bound: &Bound,
        backend: &mut dyn Backend,
        each: &mut dyn FnMut(&Outcome) -> bool,
    ) -> Result<bool> {
        let mut goes_on = true;
        self.each_window(&mut |window, pages| {
            if !goes_on {
                return Ok(());
            }
            let (_, wrong) = place(window, pages, bound).map_err(|error| self.failed(error))?;
            for (node, pages) in wrong {
                let job = Job {
                    pid: Pid(std::process::id() as i32),
                    action: Action::Migrate {
                        pages: Pages::Listed(&pages),
                        to: node,
                    },
                    race: Race::Block,
                };
                let outcomes = backend.execute(&[job]);
                goes_on &= outcomes.iter().all(&mut *each);
            }
            Ok(())
        })?;
        Ok(goes_on)
    }

    /// Windows with the places of their cached pages, as runs.
    fn each_window(&self, each: EachWindow<'_>) -> Result<()> {
        let end = self.page_count.min(MOST_PAGES);
        for first in (0..end).step_by(WINDOW_PAGES as usize) {
            let count = WINDOW_PAGES.min(end - first);
            let window = FileWindow::map(&self.file, first * 4096, count * 4096);
            let window = window.map_err(|error| self.failed(error))?;
            let cached = window.cached().map_err(|error| self.failed(error))?;
            let mut runs: Vec<std::ops::Range<u64>> = Vec::new();
            for (page, _) in (0..).zip(cached).filter(|(_, is)| *is) {
                match runs.last_mut() {
                    Some(last) if last.end == page => last.end += 1,
                    _ => runs.push(page..page + 1),
                }
            }
            if !runs.is_empty() {
                each(&window, &runs)?;
            }
        }
        Ok(())
    }

    /// Is it the file that the process has?
    fn is(&self, root: &Root, pid: i32, identity: &Identity) -> bool {
        match *identity {
            // Of some file systems the address map and fstat(2) name different devices: both sides are
            // asked the same way.
            Identity::Mapped { device, inode } => {
                if self.page_count == 0 {
                    return false;
                }
                let window = FileWindow::map(&self.file, 0, 4096);
                let own = window.and_then(|window| {
                    Maps::open(&Root::host(), std::process::id() as i32)?.at(window.address())
                });
                own.is_ok_and(|own| {
                    own.is_some_and(|own| (own.device, own.inode) == (device, inode))
                })
            }
            Identity::Open { fd } => {
                let theirs = std::fs::metadata(root.path(&format!("proc/{pid}/fd/{fd}")));
                let ours = self.file.metadata();
                let both = theirs.ok().zip(ours.ok());
                both.is_some_and(|(a, b)| (a.dev(), a.ino()) == (b.dev(), b.ino()))
            }
        }
    }

    fn fault(&self, reason: &str, remedy: &str) -> Error {
        Error::new(&self.path, reason, remedy)
    }

    fn failed(&self, error: std::io::Error) -> Error {
        let reason = format!("its pages cannot be looked at ({error})");
        Error::io(
            &self.path,
            reason,
            "see whether it is being cut short",
            error,
        )
    }
}

/// Gets a window with the places of its cached pages.
type EachWindow<'a> = &'a mut dyn FnMut(&FileWindow, &[std::ops::Range<u64>]) -> Result<()>;

/// Pages to be moved, by the node that they belong on.
type Wrong = BTreeMap<NodeId, Vec<u64>>;

/// Looks where cached pages of a window are.
fn place(
    window: &FileWindow,
    runs: &[std::ops::Range<u64>],
    bound: &Bound,
) -> std::io::Result<(Seen, Wrong)> {
    let first = window.address() >> 12;
    let mut pages = Vec::new();
    let mut seen = Seen::default();
    for run in runs {
        match window.enter(run.clone()) {
            Ok(()) => pages.extend(run.clone()),
            // Cut short: what is left of the run is not needed.
            Err(error) if error.raw_os_error() == Some(libc::EFAULT) => {
                seen.gone += run.end - run.start;
            }
            Err(error) => return Err(error),
        }
    }
    let addresses: Vec<u64> = pages.iter().map(|page| (first + page) << 12).collect();
    let mut status = vec![0; pages.len()];
    sys::query_pages(0, &addresses, &mut status)?;
    let mut wrong = Wrong::new();
    for (page, status) in pages.into_iter().zip(status) {
        let Ok(node) = u32::try_from(status).map(NodeId) else {
            seen.gone += 1;
            continue;
        };
        *seen.nodes.entry(node).or_default() += 1;
        if !bound.right.contains(node) {
            seen.elsewhere += 1;
            let turn = page as usize % bound.targets.len();
            wrong
                .entry(bound.targets[turn])
                .or_default()
                .push(first + page);
        }
    }
    Ok((seen, wrong))
}
