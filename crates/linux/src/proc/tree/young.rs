//! Processes that were made a moment ago: which of them does a scope take?
//!
//! Problem: who looks after programs at rest looks for new ones once a second, and a search of all processes
//! costs with their number. A program that starts shall be met within a tenth of a second, and most that
//! start are of nobody who is looked after. Mechanism: the kernel tells the number that it gave out last.
//! The numbers given out since are looked at one by one, and again for a while: most programs are executed
//! by a process that was another before.

use super::{Scope, Tree, read_stat};
use crate::parse::Parsed;
use crate::proc::pressure;
use crate::proc::stat::Stat;
use crate::proc::wish::Wish;
use crate::root::Root;
use hither_core::scope::fits;
use std::fs::File;
use std::os::unix::fs::MetadataExt;

/// Numbers given out between two looks that are looked at; of more, none.
const MOST_NEW: u64 = 64;
/// Numbers that are waited for at once.
const MOST_WAITING: usize = 256;
/// Looks after which a number is given up.
const LOOKS: u8 = 128;

/// What [`Tree::notice`] has found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Noticed {
    /// Nobody that is to be watched.
    Nobody,
    /// Processes that are to be watched: the next refresh has them.
    Wanted,
    /// Too many were made to be looked at one by one.
    TooMany,
}

/// Numbers of processes or threads that were made a moment ago.
#[derive(Debug, Default)]
pub(super) struct Young {
    /// With how often each was looked at.
    waiting: Vec<(i32, u8)>,
    /// The number given out last, at the last look.
    newest: Option<u64>,
    /// Those that are to be watched.
    pub wanted: Vec<i32>,
}

impl Young {
    /// Takes in the number given out last. Says whether the numbers since are all known.
    fn take(&mut self, newest: u64) -> bool {
        let Some(before) = self.newest.replace(newest) else {
            return false;
        };
        // Numbers begin anew at the end of their range.
        let is_known = before <= newest && newest - before <= MOST_NEW;
        if is_known {
            let new = before + 1..=newest;
            self.waiting
                .extend(new.filter_map(|number| Some((i32::try_from(number).ok()?, 0))));
            let too_many = self.waiting.len().saturating_sub(MOST_WAITING);
            self.waiting.drain(..too_many);
        }
        is_known
    }

    /// Goes over the numbers whose turn it is: `look` says whether one is settled, and hears which are to be
    /// watched already.
    fn each(&mut self, mut look: impl FnMut(i32, &[i32]) -> Settled) {
        let wanted = &mut self.wanted;
        self.waiting.retain_mut(|(pid, looks)| {
            *looks += 1;
            if !looks.is_power_of_two() {
                return true;
            }
            match look(*pid, wanted) {
                Settled::Wanted => wanted.push(*pid),
                Settled::Gone => {}
                Settled::No => return *looks < LOOKS,
            }
            false
        });
    }
}

/// What became of a number.
enum Settled {
    /// A process that is to be watched.
    Wanted,
    /// Nobody's, or not a process.
    Gone,
    /// Not now.
    No,
}

impl Tree {
    /// Looks whether processes were made that are to be watched: cheap enough for many times a second. Who
    /// calls it needs no search whenever any process was made.
    pub fn notice(&mut self) -> Noticed {
        let Some(newest) = self.newest_process() else {
            return Noticed::Nobody;
        };
        let mut young = std::mem::take(&mut self.young);
        let is_known = young.newest == Some(newest) || young.take(newest);
        let before = young.wanted.len();
        young.each(|pid, wanted| self.settle(pid, wanted));
        let has_wanted = young.wanted.len() > before;
        self.young = young;
        if is_known {
            self.last_new = newest;
        }
        match (has_wanted, is_known) {
            (true, _) => Noticed::Wanted,
            (false, true) => Noticed::Nobody,
            (false, false) => Noticed::TooMany,
        }
    }

    /// Does the next refresh have processes that were noticed?
    #[must_use]
    pub fn has_noticed(&self) -> bool {
        !self.young.wanted.is_empty()
    }

    /// Those that were noticed are watched from now on.
    pub(super) fn meet_noticed(&mut self) {
        for pid in std::mem::take(&mut self.young.wanted) {
            self.others.forget(pid);
            if self.has_room() {
                self.add(pid);
            }
        }
    }

    fn settle(&mut self, pid: i32, wanted: &[i32]) -> Settled {
        let file = File::open(self.root.path(&format!("proc/{pid}/stat")));
        let stat = file.ok().and_then(|file| read_stat(&file, &mut self.text));
        let Some(stat) = stat.filter(|stat| !stat.is_kernel() && !stat.has_ended()) else {
            return Settled::Gone;
        };
        let is_watched = |pid: i32| self.processes.iter().any(|process| process.pid == pid);
        // Where all processes are searched, children of the watched are watched.
        let is_child =
            self.scope.is_searched() && (wanted.contains(&stat.parent) || is_watched(stat.parent));
        let scope = std::mem::replace(&mut self.scope, Scope::Any(Vec::new()));
        let is_wanted = is_child || self.is_taken(&scope, pid, &stat);
        self.scope = scope;
        let is_watched = |pid: i32| self.processes.iter().any(|process| process.pid == pid);
        match is_wanted {
            true if !is_watched(pid) && is_process(&self.root, pid) => Settled::Wanted,
            true => Settled::Gone,
            false => Settled::No,
        }
    }

    /// Does a scope take it, whatever its parents are? Not asked of scopes by number.
    fn is_taken(&mut self, scope: &Scope, pid: i32, stat: &Stat) -> bool {
        let root = &self.root;
        match scope {
            Scope::Named(pattern) => fits(pattern, &stat.name),
            Scope::OfUser(user) => {
                let about = std::fs::metadata(root.path(&format!("proc/{pid}")));
                about.is_ok_and(|about| about.uid() == *user)
            }
            Scope::Cgroup(folder) => pressure::group_of(root, pid).is_some_and(|group| {
                let inner = format!("sys/fs/cgroup{group}");
                let rest = inner.strip_prefix(folder.trim_end_matches('/'));
                rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
            }),
            Scope::OptedIn => self.wishes.as_mut().is_some_and(|wishes| {
                let group = pressure::group_of(root, pid);
                wishes.of(root, pid, group.as_deref()) == Wish::In
            }),
            Scope::Any(scopes) => scopes.iter().any(|scope| self.is_taken(scope, pid, stat)),
            Scope::Descendants(_) | Scope::Processes(_) => false,
        }
    }
}

/// Is it a process, and not one of the threads of another?
fn is_process(root: &Root, pid: i32) -> bool {
    let line = |text: &str| -> Parsed<bool> {
        let group = text.lines().find_map(|line| line.strip_prefix("Tgid:"));
        Ok(group.is_some_and(|group| group.trim() == pid.to_string()))
    };
    crate::proc::read(root, pid, "status", line).unwrap_or(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_taken_up_ever_more_seldom_and_then_dropped() {
        let mut young = Young::default();
        assert!(!young.take(1000), "what was before is not known");
        assert!(young.take(1002));
        let mut looks = 0;
        for _ in 0..u32::from(LOOKS) + 10 {
            young.each(|pid, _| {
                looks += i32::from(pid == 1001);
                match pid {
                    1001 => Settled::No,
                    _ => Settled::Wanted,
                }
            });
        }
        assert_eq!(young.wanted, [1002]);
        assert_eq!(looks, 8);
        assert!(young.waiting.is_empty());
    }

    #[test]
    fn of_too_many_none_are_looked_at_and_what_waits_is_bounded() {
        let mut young = Young::default();
        young.take(1000);
        assert!(!young.take(1000 + MOST_NEW + 1) && young.waiting.is_empty());
        assert!(!young.take(400), "numbers began anew");
        for step in 1..=10 {
            assert!(young.take(400 + step * MOST_NEW));
        }
        assert_eq!(young.waiting.len(), MOST_WAITING);
        assert_eq!(
            young.waiting.last(),
            Some(&((400 + 10 * MOST_NEW) as i32, 0))
        );
    }
}
