//! The watched processes, followed through fork, exec and exit: the descendants of one process,
//! running processes with theirs, or those of a control group.
//!
//! Descendants are found by `task/TID/children`. Looking costs several system calls, so it is
//! done only when `/proc/loadavg` shows that a process or thread was made since, or every second.
//! Orphans stay in the tree where the base process adopts them (`sys::adopt_orphans`).
//!
//! A process that executes another program gets a new *incarnation*: what was known about its
//! addresses is void. So does a number that the kernel used again.

mod young;

pub use young::Noticed;

use super::allowed;
use super::census::Census;
use super::pagemap::Pagemap;
use super::stat::{self, TICKS_PER_SECOND};
use super::wish::{Wish, Wishes};
use crate::error::Result;
use crate::filter;
use crate::parse;
use crate::proc::cgroup;
use crate::proc::pressure;
use crate::root::Root;
use hither_core::set::NodeSet;
use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt};
use young::Young;

/// Processes watched at most; beyond it the newest are left alone, with a note.
pub const MAX_PROCESSES: usize = 1024;
/// Lower numbers are free for other meanings of whoever stores incarnations.
pub const FIRST_INCARNATION: u32 = 16;
/// Processes that may not be examined are named up to this number: a control group may have many.
const MAX_REFUSED: usize = 3;
/// Longest time between two looks without a sign of change, in us.
const LOOK_US: u64 = 1_000_000;
/// Shortest time between two searches of all processes, in us.
const SEARCH_US: u64 = 300_000;

/// To whom a process belongs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Belonging {
    /// Nodes of its cpuset, where the kernel tells.
    pub allowed_nodes: Option<NodeSet>,
    /// Its effective user; [`u32::MAX`] where it is gone.
    pub user: u32,
    /// Its control group, as in `/proc/PID/cgroup`, where there is one tree of them.
    pub group: Option<String>,
    /// What it wants, where that is asked ([`Tree::ask_wishes`]).
    pub wish: Wish,
}

impl Belonging {
    fn read(root: &Root, pid: i32, wishes: Option<&mut Wishes>) -> Self {
        let group = pressure::group_of(root, pid);
        let status = super::read(root, pid, "status", allowed::parse);
        let about = std::fs::metadata(root.path(&format!("proc/{pid}")));
        Self {
            allowed_nodes: status.ok().and_then(|allowed| allowed.nodes),
            user: about.map_or(u32::MAX, |about| about.uid()),
            wish: wishes.map_or(Wish::Unsaid, |wishes| {
                wishes.of(root, pid, group.as_deref())
            }),
            group,
        }
    }
}

/// By what a life of a process's memory is known again by another process than the one that watches it
/// now: its number, when it started (in clock ticks since boot), and where its stack begins, which changes
/// with exec.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Birth {
    /// Number of the process.
    pub pid: i32,
    /// In clock ticks since boot.
    pub start_ticks: u64,
    /// Address.
    pub stack_start: u64,
}

impl Birth {
    /// Does it go on?
    #[must_use]
    pub fn lives(&self, root: &Root) -> bool {
        stat::read(root, self.pid).is_some_and(|stat| {
            stat.start_ticks == self.start_ticks && stat.stack_start == self.stack_start
        })
    }
}

/// A watched process.
#[derive(Debug)]
pub struct LiveProcess {
    /// Its number.
    pub pid: i32,
    /// Command name.
    pub name: String,
    /// Unique per address space: changes at exec.
    pub incarnation: u32,
    /// Addresses that are mapped, in bytes.
    pub mapped_bytes: u64,
    /// Base pages resident.
    pub resident_pages: u64,
    /// CPU time used since the last refresh, in us; of one that is new, since it started.
    pub cpu_us: u64,
    /// Page faults since the last refresh; none of one that is new.
    pub faults: u64,
    /// To whom it belongs and where it may have memory, as of its start or last exec.
    pub belonging: Belonging,
    /// Its page map; `None` where it is not ours to read.
    pub pagemap: Option<Pagemap>,
    start_ticks: u64,
    cpu_ticks: u64,
    all_faults: u64,
    /// Its parent's number.
    pub parent: i32,
    /// Another one after each exec.
    stack_start: u64,
    /// Of the children that it has waited for.
    children_ticks: u64,
    /// What watched children had used that have ended: it is among `children_ticks` once they are waited
    /// for, and was counted before.
    counted_ticks: u64,
    stat: File,
}

impl LiveProcess {
    /// By what this life of its memory is known again.
    #[must_use]
    pub fn birth(&self) -> Birth {
        Birth {
            pid: self.pid,
            start_ticks: self.start_ticks,
            stack_start: self.stack_start,
        }
    }

    /// Takes over what its children used that it has waited for since; returns what of that was not seen
    /// while they lived.
    fn take_children(&mut self, children_ticks: u64) -> u64 {
        let more = children_ticks.saturating_sub(self.children_ticks);
        self.children_ticks = children_ticks;
        let counted = more.min(self.counted_ticks);
        self.counted_ticks -= counted;
        more - counted
    }
}

/// Which processes are watched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Scope {
    /// The descendants of a process, itself not included.
    Descendants(i32),
    /// These processes and their descendants.
    Processes(Vec<i32>),
    /// The processes of a control group and of those below it: its folder from the root on, such
    /// as `sys/fs/cgroup/system.slice`.
    Cgroup(String),
    /// Processes whose command name fits a pattern of `*` and `?`, and their descendants.
    Named(String),
    /// The processes of a user.
    OfUser(u32),
    /// Processes that ask to be looked after, and their descendants ([`Tree::ask_wishes`]).
    OptedIn,
    /// Whoever one of these takes.
    Any(Vec<Scope>),
}

impl Scope {
    /// Must all processes of the machine be looked at to find who belongs to it?
    fn is_searched(&self) -> bool {
        match self {
            Self::Named(_) | Self::OfUser(_) | Self::OptedIn => true,
            Self::Any(scopes) => scopes.iter().any(Self::is_searched),
            Self::Descendants(_) | Self::Processes(_) | Self::Cgroup(_) => false,
        }
    }

    /// Does it choose by what processes want?
    fn asks_wishes(&self) -> bool {
        match self {
            Self::OptedIn => true,
            Self::Any(scopes) => scopes.iter().any(Self::asks_wishes),
            _ => false,
        }
    }

    /// Are these all that can ever belong to it, and have they ended?
    fn has_ended(&self) -> bool {
        match self {
            Self::Processes(pids) => pids.is_empty(),
            Self::Any(scopes) => scopes.iter().all(Self::has_ended),
            _ => false,
        }
    }

    /// Is this process chosen by its number?
    fn has_number(&self, pid: i32) -> bool {
        match self {
            Self::Processes(pids) => pids.contains(&pid),
            Self::Any(scopes) => scopes.iter().any(|scope| scope.has_number(pid)),
            _ => false,
        }
    }

    /// Forgets numbers that were chosen and for which `keep` is false.
    fn retain(&mut self, keep: &impl Fn(i32) -> bool) {
        match self {
            Self::Processes(pids) => pids.retain(|&pid| keep(pid)),
            Self::Any(scopes) => scopes.iter_mut().for_each(|scope| scope.retain(keep)),
            _ => {}
        }
    }
}

/// Most often hither watches what it started itself.
impl From<i32> for Scope {
    fn from(base: i32) -> Self {
        Self::Descendants(base)
    }
}

/// The watched processes, ascending by incarnation.
#[derive(Debug)]
pub struct Tree {
    root: Root,
    scope: Scope,
    processes: Vec<LiveProcess>,
    loadavg: Option<File>,
    last_new: u64,
    looked_us: u64,
    next_incarnation: u32,
    /// CPU time that those used since the last refresh which have ended, in us.
    ended_us: u64,
    /// What started before was not watched from its start on, in clock ticks since boot.
    began_ticks: u64,
    /// Processes that may not be examined.
    refused: usize,
    /// Processes of the machine, where they must be searched.
    others: Census,
    /// Were there more than are watched? Told once.
    is_full: bool,
    notes: Vec<String>,
    text: Vec<u8>,
    /// Asked where processes may say that they are to be left alone.
    wishes: Option<Wishes>,
    /// Those that are, by number and start, and whether that is so until they end.
    left_alone: HashMap<(i32, u64), bool>,
    /// Other processes are to be watched than at the last look.
    is_changed: bool,
    /// Processes that were made a moment ago, where somebody asks ([`Tree::notice`]).
    young: Young,
}

impl Tree {
    /// Watches these.
    #[must_use]
    pub fn new(root: Root, scope: impl Into<Scope>) -> Self {
        let loadavg = File::open(root.path("proc/loadavg")).ok();
        let scope = scope.into();
        let began_ticks = match scope {
            // Started for being watched, just before.
            Scope::Descendants(_) => 0,
            _ => stat::ticks_now(),
        };
        Self {
            root,
            scope,
            processes: Vec::new(),
            loadavg,
            last_new: u64::MAX,
            looked_us: 0,
            next_incarnation: FIRST_INCARNATION,
            ended_us: 0,
            began_ticks,
            refused: 0,
            others: Census::default(),
            is_full: false,
            notes: Vec::new(),
            text: Vec::new(),
            wishes: None,
            left_alone: HashMap::new(),
            is_changed: false,
            young: Young::default(),
        }
    }

    /// From now on processes are heard that want to be left alone, or looked after.
    pub fn ask_wishes(&mut self) {
        self.wishes = Some(Wishes::default());
    }

    /// Asks again what was asked before: control groups may say something else by now. Returns the
    /// processes that are left alone from now on.
    pub fn renew_wishes(&mut self) -> Vec<i32> {
        let Some(wishes) = &mut self.wishes else {
            return Vec::new();
        };
        wishes.forget(&self.root);
        self.left_alone.retain(|&(pid, ticks), is_forever| {
            *is_forever && stat::read(&self.root, pid).is_some_and(|stat| stat.start_ticks == ticks)
        });
        let out: Vec<i32> = self
            .processes
            .iter_mut()
            .filter_map(|process| {
                let group = process.belonging.group.as_deref()?;
                let wish = wishes.of_group(&self.root, group);
                (wish == Wish::Out).then_some(process.pid)
            })
            .collect();
        out.iter().for_each(|&pid| self.drop_process(pid, false));
        out
    }

    /// Leaves a process alone until it ends.
    pub fn leave_alone(&mut self, pid: i32) {
        if let Some(stat) = stat::read(&self.root, pid) {
            let process = (pid, stat.start_ticks);
            if let Some(wishes) = &mut self.wishes {
                wishes.tell_in(process, false);
            }
            self.left_alone.insert(process, true);
            self.drop_process(pid, true);
        }
    }

    /// Takes back [`Tree::leave_alone`], and lets those targets take a process that want to be asked. False:
    /// its environment or control group says that it is to be left alone, and nothing changes.
    pub fn look_after(&mut self, pid: i32) -> bool {
        let (Some(wishes), Some(stat)) = (&mut self.wishes, stat::read(&self.root, pid)) else {
            return false;
        };
        let process = (pid, stat.start_ticks);
        let belonging = Belonging::read(&self.root, pid, Some(wishes));
        if belonging.wish == Wish::Out {
            return false;
        }
        wishes.tell_in(process, true);
        self.left_alone.remove(&process);
        if let Some(known) = self.processes.iter_mut().find(|known| known.pid == pid) {
            known.belonging.wish = Wish::In;
        }
        self.others.forget(pid);
        self.look_soon();
        true
    }

    /// Other processes are watched from now on; those that belong to both are watched on.
    pub fn set_scope(&mut self, scope: Scope) {
        self.scope = scope;
        self.is_changed = true;
        self.look_soon();
    }

    fn look_soon(&mut self) {
        self.last_new = u64::MAX;
        self.looked_us = 0;
    }

    fn drop_process(&mut self, pid: i32, is_forever: bool) {
        if let Some(at) = self.processes.iter().position(|process| process.pid == pid) {
            let process = self.processes.remove(at);
            let key = (pid, process.start_ticks);
            let known = self.left_alone.entry(key).or_default();
            *known |= is_forever;
        }
    }

    /// Which processes are watched; of [`Scope::Processes`] those that have not ended.
    #[must_use]
    pub fn scope(&self) -> &Scope {
        &self.scope
    }

    /// Have all processes ended that were to be watched? Not asked of descendants, whose base is
    /// waited for, and of a group, which may get new ones.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.scope.has_ended() && self.processes.is_empty()
    }

    /// The processes alive at the last refresh.
    #[must_use]
    pub fn processes(&self) -> &[LiveProcess] {
        &self.processes
    }

    /// CPU time that the watched used since the last refresh, in us, with those that ended in between:
    /// those that were never seen, too, once a parent that is watched has waited for them.
    #[must_use]
    pub fn cpu_us(&self) -> u64 {
        let living: u64 = self.processes.iter().map(|process| process.cpu_us).sum();
        living + self.ended_us
    }

    /// The process of an incarnation, while it lives.
    #[must_use]
    pub fn by_incarnation(&self, incarnation: u32) -> Option<&LiveProcess> {
        let found = self
            .processes
            .binary_search_by_key(&incarnation, |p| p.incarnation);
        found.ok().map(|index| &self.processes[index])
    }

    /// Changes whenever a process was added or executed another program.
    #[must_use]
    pub fn generation(&self) -> u32 {
        self.next_incarnation
    }

    /// Sentences for a person that came up since the last call.
    pub fn take_notes(&mut self) -> Vec<String> {
        std::mem::take(&mut self.notes)
    }

    /// Brings the list up to date.
    pub fn refresh(&mut self, now_us: u64) -> Result<()> {
        self.refresh_known();
        self.meet_noticed();
        let newest = self.newest_process();
        let waited_us = now_us.saturating_sub(self.looked_us);
        let is_new = newest != Some(self.last_new);
        let may_search = !self.scope.is_searched() || waited_us >= SEARCH_US || now_us < SEARCH_US;
        if waited_us >= LOOK_US || is_new && may_search {
            self.last_new = newest.unwrap_or(u64::MAX);
            self.looked_us = now_us;
            self.look()?;
        }
        Ok(())
    }

    /// The program executed another one, or its page map turned out to be void.
    pub fn renew(&mut self, pid: i32) {
        let Some(index) = self.processes.iter().position(|p| p.pid == pid) else {
            return;
        };
        let mut process = self.processes.remove(index);
        process.pagemap = Pagemap::open(&self.root, pid).ok();
        // A program may run as another user than who executed it; who starts services moves itself into
        // the group of what it executes next.
        process.belonging = Belonging::read(&self.root, pid, self.wishes.as_mut());
        if process.belonging.wish == Wish::Out {
            self.left_alone.insert((pid, process.start_ticks), false);
            return;
        }
        process.incarnation = self.take_incarnation();
        self.processes.push(process);
    }

    /// Last number in `/proc/loadavg`: the process or thread made last.
    ///
    /// ```text
    /// 0.20 0.18 0.12 1/80 11206
    /// ```
    fn newest_process(&mut self) -> Option<u64> {
        let mut bytes = [0u8; 128];
        let got = self.loadavg.as_ref()?.read_at(&mut bytes, 0).ok()?;
        std::str::from_utf8(&bytes[..got])
            .ok()?
            .split_whitespace()
            .next_back()?
            .parse()
            .ok()
    }

    /// Reads `stat` of the known ones and drops those that have ended. One whose name changed has
    /// most likely executed another program.
    fn refresh_known(&mut self) {
        let text = &mut self.text;
        let (mut renamed, mut ended) = (Vec::new(), Vec::new());
        let (mut left, mut waited) = (Vec::new(), Vec::new());
        let ended_us = &mut self.ended_us;
        *ended_us = 0;
        self.processes.retain_mut(|process| {
            let stat = read_stat(&process.stat, text);
            let now = stat.as_ref().map_or(0, |stat| stat.cpu_ticks);
            let used_us = us(now.saturating_sub(process.cpu_ticks));
            let Some(stat) = stat.filter(|stat| !stat.has_ended()) else {
                *ended_us += used_us;
                ended.push(process.pid);
                let own = now.max(process.cpu_ticks);
                left.push((process.parent, own.saturating_add(process.children_ticks)));
                return false;
            };
            process.cpu_us = used_us;
            process.cpu_ticks = stat.cpu_ticks;
            process.faults = stat.faults.saturating_sub(process.all_faults);
            process.all_faults = stat.faults;
            process.parent = stat.parent;
            process.mapped_bytes = stat.mapped_bytes;
            process.resident_pages = stat.resident_pages;
            waited.push(stat.children_ticks);
            if process.name != stat.name || process.stack_start != stat.stack_start {
                process.name = stat.name;
                process.stack_start = stat.stack_start;
                renamed.push(process.pid);
            }
            true
        });
        for (parent, ticks) in left {
            if let Some(parent) = self.processes.iter_mut().find(|p| p.pid == parent) {
                parent.counted_ticks = parent.counted_ticks.saturating_add(ticks);
            }
        }
        for (process, children_ticks) in self.processes.iter_mut().zip(waited) {
            self.ended_us += us(process.take_children(children_ticks));
        }
        // Its number may soon be somebody else's.
        self.scope.retain(&|pid| !ended.contains(&pid));
        for pid in renamed {
            self.renew(pid);
        }
    }

    /// Walks the tree and adds what is new.
    fn look(&mut self) -> Result<()> {
        let is_searched = self.scope.is_searched();
        if is_searched {
            let wishes = self.wishes.as_mut().filter(|_| self.scope.asks_wishes());
            self.others.search(&self.root, wishes);
        }
        let scope = self.scope.clone();
        let (mut seen, mut waiting) = (HashSet::new(), Vec::new());
        // Who watches others and counted itself would never see them idle.
        let own = std::process::id() as i32;
        if !scope.has_number(own) {
            seen.insert(own);
        }
        self.begin_look(&scope, &mut seen, &mut waiting)?;
        while let Some((pid, is_walked)) = waiting.pop() {
            if !seen.insert(pid) {
                continue;
            }
            // Of whom children are looked for one by one: what was searched, or lists all, has them.
            if is_searched {
                let children = self.others.children(pid);
                waiting.extend(children.map(|child| (child, false)));
            } else if is_walked {
                let children = self.children(pid)?.into_iter();
                waiting.extend(children.map(|child| (child, true)));
            }
            if !self.has_room() {
                break;
            }
            self.add(pid);
        }
        if std::mem::take(&mut self.is_changed) {
            self.processes.retain(|process| seen.contains(&process.pid));
        }
        // Those that had ended before they were first looked at.
        let known = &self.processes;
        self.scope
            .retain(&|pid| known.iter().any(|process| process.pid == pid));
        Ok(())
    }

    /// Whom the scope names, and whether their children must be looked for.
    fn begin_look(
        &self,
        scope: &Scope,
        seen: &mut HashSet<i32>,
        waiting: &mut Vec<(i32, bool)>,
    ) -> Result<()> {
        let walked = |pid: i32| (pid, true);
        let listed = |pid: i32| (pid, false);
        match scope {
            Scope::Descendants(base) => {
                seen.insert(*base);
                waiting.extend(self.children(*base)?.into_iter().map(walked));
            }
            Scope::Processes(pids) => waiting.extend(pids.iter().copied().map(walked)),
            Scope::Cgroup(folder) => {
                let members = cgroup::processes(&self.root, folder);
                waiting.extend(members.into_iter().map(listed));
            }
            Scope::Named(pattern) => {
                waiting.extend(self.others.named(pattern).into_iter().map(listed));
            }
            Scope::OfUser(user) => {
                waiting.extend(self.others.of_user(*user).into_iter().map(listed));
            }
            Scope::OptedIn => waiting.extend(self.others.opted_in().into_iter().map(listed)),
            Scope::Any(scopes) => {
                for scope in scopes {
                    self.begin_look(scope, seen, waiting)?;
                }
            }
        }
        Ok(())
    }

    /// Children of all threads of a process; none where it is gone.
    fn children(&self, pid: i32) -> Result<Vec<i32>> {
        let mut children = Vec::new();
        let mut told = false;
        for thread in super::threads(&self.root, pid)? {
            let path = self
                .root
                .path(&format!("proc/{pid}/task/{thread}/children"));
            if let Ok(text) = std::fs::read_to_string(path) {
                told = true;
                children.extend(
                    text.split_whitespace()
                        .filter_map(|word| word.parse::<i32>().ok()),
                );
            }
        }
        if told {
            Ok(children)
        } else {
            self.children_by_parent(pid)
        }
    }

    /// For kernels without CONFIG_PROC_CHILDREN: every process whose parent this is.
    fn children_by_parent(&self, pid: i32) -> Result<Vec<i32>> {
        let mut children = Vec::new();
        for candidate in self.root.numbered("proc", "")? {
            let candidate = candidate as i32;
            if stat::read(&self.root, candidate).is_some_and(|stat| stat.parent == pid) {
                children.push(candidate);
            }
        }
        Ok(children)
    }

    /// May one more be watched? Where not, that is told once.
    fn has_room(&mut self) -> bool {
        let has_room = self.processes.len() < MAX_PROCESSES;
        if !has_room && !std::mem::replace(&mut self.is_full, true) {
            self.notes.push(format!(
                "more than {MAX_PROCESSES} processes: the others are left alone"
            ));
        }
        has_room
    }

    fn add(&mut self, pid: i32) {
        let Ok(file) = File::open(self.root.path(&format!("proc/{pid}/stat"))) else {
            return;
        };
        let Some(stat) = read_stat(&file, &mut self.text) else {
            return;
        };
        if stat.has_ended() || stat.is_kernel() {
            return;
        }
        if let Some(known) = self.processes.iter().position(|p| p.pid == pid) {
            if self.processes[known].start_ticks == stat.start_ticks {
                return;
            }
            self.processes.remove(known);
        }
        let is_left_alone = |pid: i32| self.left_alone.keys().any(|&(known, _)| known == pid);
        if self.left_alone.contains_key(&(pid, stat.start_ticks)) {
            return;
        }
        // A process may write over its environment, as postgres does to show what it is at.
        let wishes = self.wishes.as_ref();
        let has_told = wishes.is_some_and(|wishes| wishes.has_told_in((pid, stat.start_ticks)));
        if is_left_alone(stat.parent) && !has_told {
            self.left_alone.insert((pid, stat.start_ticks), true);
            return;
        }
        let belonging = Belonging::read(&self.root, pid, self.wishes.as_mut());
        if belonging.wish == Wish::Out {
            self.left_alone.insert((pid, stat.start_ticks), false);
            return;
        }
        let pagemap = match Pagemap::open(&self.root, pid) {
            Ok(pagemap) => Some(pagemap),
            Err(error) if error.raw_os_error() == Some(libc::ESRCH) => return,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return,
            Err(error) => {
                self.refused += 1;
                if self.refused <= MAX_REFUSED {
                    self.notes.push(format!(
                        "process {pid} ({}) may not be examined ({error}): its pages are left alone; \
                         {}",
                        stat.name,
                        filter::to_see_others()
                    ));
                } else if self.refused == MAX_REFUSED + 1 {
                    self.notes
                        .push("nor may others, which are not named".to_owned());
                }
                None
            }
        };
        let cpu_us = match stat.start_ticks >= self.began_ticks {
            true => us(stat.cpu_ticks.saturating_add(stat.children_ticks)),
            false => 0,
        };
        let incarnation = self.take_incarnation();
        self.processes.push(LiveProcess {
            pid,
            belonging,
            name: stat.name,
            incarnation,
            mapped_bytes: stat.mapped_bytes,
            resident_pages: stat.resident_pages,
            cpu_us,
            faults: 0,
            all_faults: stat.faults,
            pagemap,
            start_ticks: stat.start_ticks,
            cpu_ticks: stat.cpu_ticks,
            parent: stat.parent,
            stack_start: stat.stack_start,
            children_ticks: stat.children_ticks,
            counted_ticks: 0,
            stat: file,
        });
    }

    fn take_incarnation(&mut self) -> u32 {
        let taken = self.next_incarnation;
        self.next_incarnation = taken.checked_add(1).unwrap_or(FIRST_INCARNATION);
        taken
    }
}

fn us(ticks: u64) -> u64 {
    ticks * (1_000_000 / TICKS_PER_SECOND)
}

fn read_stat(file: &File, text: &mut Vec<u8>) -> Option<stat::Stat> {
    text.resize(1024, 0);
    let got = file.read_at(text, 0).ok()?;
    stat::parse(&parse::text(&text[..got])).ok()
}

#[cfg(test)]
mod tests;
