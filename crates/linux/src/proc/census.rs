//! All processes of the machine by name, user and parent, for who chooses among them.
//!
//! Problem: on a machine of many processes, reading each of them again and again costs more than what is
//! looked for. Mechanism: what was read of a number is kept and read again after a while, as a process may
//! have executed another program, or its number be somebody else's.

use super::stat;
use super::wish::{Wish, Wishes};
use crate::proc::pressure;
use crate::root::Root;
use hither_core::scope::fits;
use std::collections::HashMap;
use std::os::unix::fs::MetadataExt;

/// Searches after which a process is read again.
const FRESH_SEARCHES: u32 = 8;

/// What was read of one process.
#[derive(Debug)]
struct Known {
    name: String,
    user: u32,
    parent: i32,
    /// What it wants, where that was asked.
    wish: Wish,
    /// Search at which it was read.
    read_at: u32,
    /// Last search that found it.
    seen_at: u32,
}

/// The processes at the last search, threads of the kernel left out.
#[derive(Debug, Default)]
pub(super) struct Census {
    known: HashMap<i32, Known>,
    children: HashMap<i32, Vec<i32>>,
    search: u32,
}

impl Census {
    /// Looks who is there; with `wishes` also what they want.
    pub fn search(&mut self, root: &Root, mut wishes: Option<&mut Wishes>) {
        self.search = self.search.wrapping_add(1);
        let search = self.search;
        for pid in root.numbered("proc", "").unwrap_or_default() {
            let pid = pid as i32;
            if let Some(known) = self.known.get_mut(&pid)
                && search.wrapping_sub(known.read_at) < FRESH_SEARCHES
            {
                known.seen_at = search;
                continue;
            }
            let Some(stat) = stat::read(root, pid).filter(|stat| !stat.is_kernel()) else {
                self.known.remove(&pid);
                continue;
            };
            let about = std::fs::metadata(root.path(&format!("proc/{pid}")));
            let known = Known {
                name: stat.name,
                user: about.map_or(u32::MAX, |about| about.uid()),
                parent: stat.parent,
                wish: wishes.as_deref_mut().map_or(Wish::Unsaid, |wishes| {
                    wishes.of(root, pid, pressure::group_of(root, pid).as_deref())
                }),
                // Not all in one search.
                read_at: search.wrapping_sub(pid as u32 % FRESH_SEARCHES),
                seen_at: search,
            };
            self.known.insert(pid, known);
        }
        self.known.retain(|_, known| known.seen_at == search);
        self.children.clear();
        for (&pid, known) in &self.known {
            self.children.entry(known.parent).or_default().push(pid);
        }
    }

    /// A process is read anew at the next search.
    pub fn forget(&mut self, pid: i32) {
        self.known.remove(&pid);
    }

    /// Those whose name fits.
    pub fn named(&self, pattern: &str) -> Vec<i32> {
        self.those(|known| fits(pattern, &known.name))
    }

    /// Those of a user.
    pub fn of_user(&self, user: u32) -> Vec<i32> {
        self.those(|known| known.user == user)
    }

    /// Those that ask to be looked after.
    pub fn opted_in(&self) -> Vec<i32> {
        self.those(|known| known.wish == Wish::In)
    }

    /// Children of a process.
    pub fn children(&self, pid: i32) -> impl Iterator<Item = i32> + '_ {
        self.children.get(&pid).into_iter().flatten().copied()
    }

    fn those(&self, is_meant: impl Fn(&Known) -> bool) -> Vec<i32> {
        let meant = self.known.iter().filter(|(_, known)| is_meant(known));
        meant.map(|(&pid, _)| pid).collect()
    }
}
