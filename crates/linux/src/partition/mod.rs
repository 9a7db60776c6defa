//! Partitions of the running machine: makes them, moves nodes between them, takes them back.
//!
//! The decisions are `hither_core::partition`'s; here they meet the kernel. Everything that is
//! changed is noted first ([`kept`]), so that killing hither at any moment leaves a machine that the
//! next call finishes or takes back: [`Partitions::open`] does that before anything else.
//!
//! What always holds: no process is ended; every process is in some control group; what `stop`
//! leaves is what was there before the split, but for processes that moved their own bindings.

pub mod around;
pub mod evacuate;
pub mod kept;
pub mod transfer;

use crate::error::{Error, Result};
use crate::proc::{cgroup, stat};
use crate::resources;
use crate::restore::Setting;
use crate::root::Root;
use crate::topology::Topology;
use hither_core::partition::file::Wish;
use hither_core::partition::{REST, Stage, State, writes};
use hither_core::rset::Resources;
use kept::{Home, Keeper, KeptPartitions, Phase};
use std::path::{Path, PathBuf};

/// Rounds after which processes that go on starting others are given up on.
const MOST_ROUNDS: usize = 1000;

/// The right to change this machine's partitions, and what they are.
#[derive(Debug)]
pub struct Partitions {
    root: Root,
    keeper: Keeper,
    kept: Option<KeptPartitions>,
}

impl Partitions {
    /// Takes the right, and mends what somebody left who was killed: then there are sentences for
    /// a person.
    ///
    /// # Errors
    /// Somebody else has it; partitions cannot be had here; something cannot be mended.
    pub fn open(root: &Root, folder: &Path) -> Result<(Self, Vec<String>)> {
        cgroup::check(root)?;
        let mut partitions = Self::open_as_is(root, folder)?;
        if partitions.kept.is_none() && !cgroup::present(root)?.is_empty() {
            return Err(Error::new(
                root.path(cgroup::TREE),
                "has groups of partitions, and nothing is kept of what was there before them",
                "`hither partition stop --force` takes them away",
            ));
        }
        let notes = partitions.mend()?;
        Ok((partitions, notes))
    }

    /// Takes the right without mending: for who takes everything back anyway.
    ///
    /// # Errors
    /// Somebody else has it; what is kept cannot be read.
    pub fn open_as_is(root: &Root, folder: &Path) -> Result<Self> {
        let keeper = Keeper::new(folder)?;
        let kept = keeper.read()?;
        Ok(Self {
            root: root.clone(),
            keeper,
            kept,
        })
    }

    /// What there is; `None`: the machine is whole.
    #[must_use]
    pub fn state(&self) -> Option<&State> {
        self.kept.as_ref().map(|kept| &kept.state)
    }

    fn mend(&mut self) -> Result<Vec<String>> {
        let Some(kept) = &self.kept else {
            return Ok(Vec::new());
        };
        let mut notes = Vec::new();
        match (kept.phase, &kept.state.moving) {
            (Phase::Starting, _) => {
                notes.extend(self.stop()?);
                notes.push(
                    "a split was cut short while it was made: what there was of it is taken back"
                        .to_owned(),
                );
            }
            (Phase::Stopping, _) => {
                notes.extend(self.stop()?);
                notes.push("partitions were being taken back: that is done now".to_owned());
            }
            (Phase::Running, Some(moving)) => {
                let (node, from, to) = (moving.node, moving.from.clone(), moving.to.clone());
                match moving.stage {
                    Stage::Leaving => {
                        self.set(kept.state.taken_back())?;
                        notes.push(format!(
                            "{node} was on its way from {from} to {to} when hither ended: {from} \
                             has it again"
                        ));
                    }
                    Stage::Closed => notes.push(self.finish_closed()?),
                }
            }
            // The last word may have been kept and not yet written.
            (Phase::Running, None) => self.set(kept.state.clone())?,
        }
        Ok(notes)
    }

    /// Splits the machine, for which the wish was read.
    ///
    /// # Errors
    /// It is split already; the kernel refuses something: then nothing is changed.
    pub fn apply(&mut self, wish: &Wish, machine: &Resources) -> Result<Vec<String>> {
        if let Some(state) = self.state() {
            return Err(Error::new(
                "partitions",
                format!("are there already: {}", state.layout.names()),
                "`hither partition stop` takes them back",
            ));
        }
        let state = State {
            layout: wish.layout.clone(),
            moving: None,
        };
        self.check_room(wish, machine)?;
        let settings = around::former(&self.root, wish)?;
        self.keep(KeptPartitions::new(state.clone(), settings))?;
        match self.make(state) {
            Ok(notes) => Ok(notes),
            Err(error) => {
                // What cannot be put back now is tried by the next call; why it failed is told.
                let _ = self.stop();
                Err(error)
            }
        }
    }

    /// Programs of the rest have room on what the rest keeps: the kernel moves their pages in the
    /// call that takes memory from them, and ends a program where there is no room.
    fn check_room(&self, wish: &Wish, machine: &Resources) -> Result<()> {
        let layout = &wish.layout;
        let (mut used, mut room) = (0, 0);
        for node in machine.nodes.iter().filter(|node| node.has_memory()) {
            let memory = evacuate::memory(&self.root, node.id);
            match layout.rest.nodes.contains(node.id) {
                true => room += memory.free_kb + memory.file_kb,
                false => used += memory.anonymous_kb,
            }
        }
        if used <= room {
            return Ok(());
        }
        Err(Error::new(
            "partitions",
            format!(
                "cannot be made: programs have {} MiB on memory that goes to them, and the rest \
                 has room for {}",
                used / 1024,
                room / 1024
            ),
            "leave more nodes to the rest, or end programs first",
        ))
    }

    fn make(&mut self, state: State) -> Result<Vec<String>> {
        let settings = self.settings();
        // Before the groups are made: without it they have no CPUs to be given.
        let notes = around::apply(&self.root, settings.iter(), &state.layout)?;
        self.set(state)?;
        self.gather()?;
        let mut kept = self.kept.clone().unwrap_or_default();
        kept.phase = Phase::Running;
        self.keep(kept)?;
        Ok(notes)
    }

    /// Processes that stand in the tree's root use what the rest has from now on. The kernel's own
    /// threads stay.
    fn gather(&self) -> Result<()> {
        let folder = cgroup::folder(REST);
        for _ in 0..MOST_ROUNDS {
            let pids = cgroup::own_processes(&self.root, cgroup::TREE);
            let programs: Vec<i32> = pids
                .into_iter()
                .filter(|&pid| self.is_program(pid))
                .collect();
            if programs.is_empty() {
                return Ok(());
            }
            for pid in programs {
                cgroup::put(&self.root, pid, &folder)?;
            }
        }
        Err(Error::new(
            self.root.path(cgroup::TREE),
            "gets new processes faster than they can be moved",
            "stop what starts them",
        ))
    }

    /// Has it a program? The kernel's threads have none, nor has what has ended.
    fn is_program(&self, pid: i32) -> bool {
        std::fs::read_link(self.root.path(&format!("proc/{pid}/exe"))).is_ok()
    }

    /// Brings the machine to a state, which is kept first.
    fn set(&mut self, state: State) -> Result<()> {
        let mut kept = self.kept.clone().unwrap_or_default();
        kept.state = state.clone();
        self.keep(kept)?;
        // Others may have switched it off; groups have no CPUs to be given without it.
        around::enable(&self.root)?;
        let wanted = state.groups();
        let rest = around::memory(&self.settings());
        for write in writes::writes(&cgroup::present(&self.root)?, &wanted) {
            cgroup::carry_out(&self.root, &write, &rest)?;
        }
        cgroup::verify(&self.root, &wanted)?;
        if self
            .kept
            .as_ref()
            .is_some_and(|kept| kept.phase == Phase::Running)
        {
            let settings = self.settings();
            let follow = settings.iter().filter(|setting| around::follows(setting));
            around::apply(&self.root, follow, &state.layout)?;
        }
        Ok(())
    }

    fn settings(&self) -> Vec<Setting> {
        let kept = self.kept.as_ref();
        kept.map(|kept| kept.settings.clone()).unwrap_or_default()
    }

    fn keep(&mut self, kept: KeptPartitions) -> Result<()> {
        self.keeper.write(&kept)?;
        self.kept = Some(kept);
        Ok(())
    }

    /// The control groups of an owner: those of the rest are all that are not ours.
    fn folders(&self, owner: &str) -> Vec<String> {
        let mut folders = vec![cgroup::folder(owner)];
        if owner == REST {
            let settings = around::memory(&self.settings());
            let others = settings
                .iter()
                .filter_map(|s| s.path.strip_suffix("/cpuset.mems"));
            folders.extend(others.map(str::to_owned));
        }
        folders
    }

    /// Puts a process into a partition, threads and all; its children follow it.
    ///
    /// # Errors
    /// There is no such partition or process.
    pub fn add(&mut self, name: &str, pid: i32) -> Result<()> {
        let mut kept = self.need(name)?.clone();
        let Some(start_ticks) = evacuate::start_ticks(&self.root, pid) else {
            return Err(Error::new(
                format!("process {pid}"),
                "is not there",
                "give the number of a running one",
            ));
        };
        let group = crate::proc::pressure::group_of(&self.root, pid);
        let group = group.unwrap_or_else(|| "/".to_owned());
        // One that is in a partition already keeps the place that it came from.
        if !group.trim_start_matches('/').starts_with(cgroup::PREFIX) {
            kept.homes.retain(|home| {
                evacuate::start_ticks(&self.root, home.pid) == Some(home.start_ticks)
                    && home.pid != pid
            });
            kept.homes.push(Home {
                pid,
                start_ticks,
                group,
            });
            self.keep(kept)?;
        }
        cgroup::put(&self.root, pid, &cgroup::folder(name))?;
        if evacuate::start_ticks(&self.root, pid) != Some(start_ticks) {
            // It ended meanwhile; who has its number now is sent back.
            let homes = self.kept.as_ref().map(|kept| kept.homes.clone());
            self.send_home(pid, &homes.unwrap_or_default())?;
        }
        Ok(())
    }

    fn need(&self, name: &str) -> Result<&KeptPartitions> {
        let fail =
            |reason: &str, remedy: String| Err(Error::new(format!("`{name}`"), reason, remedy));
        match &self.kept {
            None => fail(
                "is not there: this machine has no partitions",
                "make some with `hither partition apply FILE`".to_owned(),
            ),
            Some(kept) if kept.state.layout.of(name).is_none() => fail(
                "is no partition",
                format!("there are {}", kept.state.layout.names()),
            ),
            Some(kept) => Ok(kept),
        }
    }

    /// Takes the split back: processes go where they came from, settings are what they were. A
    /// machine that is whole needs nothing. What the kernel does not take back is told.
    ///
    /// # Errors
    /// A group has processes that cannot be moved: all else is put back, and the next call tries
    /// again.
    pub fn stop(&mut self) -> Result<Vec<String>> {
        let Some(mut kept) = self.kept.clone() else {
            return Ok(Vec::new());
        };
        kept.phase = Phase::Stopping;
        self.keep(kept.clone())?;
        let dissolved = self.dissolve(&kept.homes);
        let settings = kept.settings.iter();
        let notes = settings
            .filter_map(|setting| around::put_back(&self.root, setting).err())
            .map(|error| format!("this stays as it is: {error}"))
            .collect();
        dissolved?;
        self.keeper.forget()?;
        self.kept = None;
        Ok(notes)
    }

    /// Empties and removes our groups.
    fn dissolve(&self, homes: &[Home]) -> Result<()> {
        for group in cgroup::present(&self.root)? {
            let folder = cgroup::folder(&group.name);
            for round in 0.. {
                let pids = cgroup::processes(&self.root, &folder);
                if pids.is_empty() {
                    break;
                }
                if round == MOST_ROUNDS {
                    return Err(Error::new(
                        self.root.path(&folder),
                        "gets new processes faster than they can be moved",
                        "stop what starts them, and try again",
                    ));
                }
                for pid in pids {
                    self.send_home(pid, homes)?;
                }
            }
            cgroup::remove(&self.root, &folder)?;
        }
        Ok(())
    }

    /// To the group that it, or the nearest of its ancestors, was taken from; else to the root.
    fn send_home(&self, pid: i32, homes: &[Home]) -> Result<()> {
        let mut ancestor = pid;
        let mut home = None;
        for _ in 0..64 {
            let Some(stat) = stat::read(&self.root, ancestor) else {
                break;
            };
            let is_it = |home: &&Home| home.pid == ancestor && home.start_ticks == stat.start_ticks;
            home = homes.iter().find(is_it);
            if home.is_some() || ancestor <= 1 {
                break;
            }
            ancestor = stat.parent;
        }
        let folder =
            home.map(|home| format!("{}{}", cgroup::TREE, home.group.trim_end_matches('/')));
        let folder = folder.filter(|folder| {
            folder.split('/').all(|part| part != "..")
                && self.root.has(&format!("{folder}/cgroup.procs"))
        });
        match folder {
            // A group that takes none any more is no reason to keep the partition.
            Some(folder) => cgroup::put(&self.root, pid, &folder)
                .or_else(|_| cgroup::put(&self.root, pid, cgroup::TREE)),
            None => cgroup::put(&self.root, pid, cgroup::TREE),
        }
    }
}

/// Takes our groups away: for who lost what was kept of what was there before.
///
/// # Errors
/// The kernel refused.
pub fn force_stop(root: &Root, folder: &Path) -> Result<Vec<String>> {
    let keeper = Keeper::new(folder)?;
    let (kept, mut notes) = match keeper.read() {
        Ok(kept) => (kept, Vec::new()),
        Err(error) => (None, vec![format!("settings stay as they are: {error}")]),
    };
    let mut partitions = Partitions {
        root: root.clone(),
        keeper,
        kept,
    };
    notes.extend(partitions.stop()?);
    partitions.dissolve(&[])?;
    partitions.keeper.forget()?;
    Ok(notes)
}

/// The machine as partitions see it: all of it, whatever this process may use.
///
/// # Errors
/// A file that cannot be read or contradicts itself.
pub fn machine(root: &Root) -> Result<Resources> {
    let mut machine = resources::read(root, &Topology::read(root)?)?;
    // Who runs in the rest may not use the others, and gives them away all the same.
    machine.allowed = machine.machine();
    Ok(machine)
}

/// The folder in which everything about partitions is kept: one for all, as there is one machine.
#[must_use]
pub fn folder() -> PathBuf {
    PathBuf::from(crate::restore::ROOTS_FOLDER)
}
