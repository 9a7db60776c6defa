//! Moves a node from one owner to another while programs run.
//!
//! Problem: what a control group loses of its memory the kernel moves by itself, at once and as
//! fast as it can, at the moment in which allocation there is forbidden (cgroup-v2.rst,
//! cpuset.mems). A program of some gigabytes stalls for seconds.
//!
//! Mechanism:
//! 1. *Leave*: the node's CPUs go; threads go on elsewhere, and with them goes what allocates there.
//! 2. *Empty*: passes move pages off under the rate limit, until little is left.
//! 3. *Close*: allocation there is forbidden; the kernel moves the little that is left.
//! 4. *Verify*: no anonymous page of the owner's processes is there any more.
//! 5. *Hand over*: memory, then CPUs.
//!
//! Whatever fails before the last step takes all of it back, pages too. After `kill -9` the next
//! call takes back what had not been closed and finishes what had.

use super::Partitions;
use super::evacuate::{self, Evacuation, Found, Tally};
use crate::error::{Error, Result};
use crate::proc::cgroup;
use crate::proc::pressure;
use crate::root::Root;
use hither_core::ids::NodeId;
use hither_core::partition::{Moving, State};
use hither_core::plan::Refusal;
use hither_core::rset::Resources;
use std::fmt;
use std::time::Duration;

/// Pages that are left to the kernel when a node is closed: 4 MiB, some milliseconds.
const FEW_PAGES: u64 = 1024;
/// Passes at most before a node is closed: a program that goes on allocating there is not waited for.
const MOST_PASSES: u64 = 8;
/// Looks at most after a node was closed. A page may be under I/O, or on its way elsewhere.
const MOST_LOOKS: u32 = 200;
/// Time between two such looks.
const LOOK_PAUSE: Duration = Duration::from_millis(10);

/// What is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Order {
    /// Which node.
    pub node: NodeId,
    /// Its owner.
    pub from: String,
    /// Who gets it.
    pub to: String,
    /// Bytes per second at most.
    pub rate: Option<u64>,
}

/// What a move would do, or is about to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TransferForecast {
    /// Pages of the owner's processes on the node.
    pub pages: u64,
    /// Processes that have some.
    pub processes: usize,
    /// Nodes that are left to the owner, the nearest first.
    pub targets: Vec<NodeId>,
    /// Free pages there, and pages of files that could be dropped for them.
    pub room: u64,
}

/// Where a move is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Pages are being moved off.
    Empty,
    /// What came in between is being moved off.
    Verify,
    /// It failed and is being taken back.
    Back,
}

/// What was done.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Done {
    /// Pages that the mover moved; the kernel moved what was left when the node was closed.
    pub tally: Tally,
    /// Pages that were left to the kernel.
    pub left_to_kernel: u64,
    /// Pages of files that stay on the node until they are dropped.
    pub file_pages: u64,
}

/// Why a move did not come about; everything is as it was before, but where it says otherwise.
#[derive(Debug)]
pub enum Failed {
    /// It cannot be: nothing was tried.
    Refused(String),
    /// There is no room for the pages.
    NoRoom(String),
    /// Pages that cannot move: pinned by a device, or by a program.
    Stuck(String),
    /// Somebody asked to stop.
    Stopped,
    /// The kernel.
    Kernel(Error),
    /// It failed, and could not be taken back either: the next call tries that again.
    NotTakenBack(Error),
}

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(why) | Self::NoRoom(why) | Self::Stuck(why) => f.write_str(why),
            Self::Stopped => f.write_str("it was asked to stop"),
            Self::Kernel(error) => error.fmt(f),
            Self::NotTakenBack(error) => {
                write!(
                    f,
                    "it cannot be taken back now, the next call tries again: {error}"
                )
            }
        }
    }
}

impl std::error::Error for Failed {}

impl From<Error> for Failed {
    fn from(error: Error) -> Self {
        Self::Kernel(error)
    }
}

/// Asked between batches with what was done; sleeps the time that is named, in ns; says whether to
/// go on.
pub type GoOn<'a> = &'a mut dyn FnMut(Step, &Tally, u64) -> bool;

impl Partitions {
    /// What a move would do.
    ///
    /// # Errors
    /// It cannot be; there is no room.
    pub fn outlook(&self, order: &Order) -> std::result::Result<TransferForecast, Failed> {
        let machine = super::machine(&self.root)?;
        let begun = self.begun(order, &machine)?;
        self.look_out(&begun, &machine)
    }

    fn begun(&self, order: &Order, machine: &Resources) -> std::result::Result<State, Failed> {
        let kept = self.need(&order.from);
        let kept = kept.map_err(|error| Failed::Refused(error.to_string()))?;
        let begun = kept
            .state
            .begin(order.node, &order.from, &order.to, machine);
        begun.map_err(Failed::Refused)
    }

    fn look_out(
        &self,
        begun: &State,
        machine: &Resources,
    ) -> std::result::Result<TransferForecast, Failed> {
        let moving = on_its_way(begun)?;
        let found = evacuate::find(&self.root, &self.folders(&moving.from), moving.node)?;
        let targets = targets(begun, moving, machine);
        let memory = |&node: &NodeId| evacuate::memory(&self.root, node);
        let rooms = targets.iter().map(memory);
        let room: u64 = rooms
            .map(|memory| (memory.free_kb + memory.file_kb) / 4)
            .sum();
        let on_node = memory(&moving.node);
        // What several processes map is found in each of them.
        let most = on_node.total_kb.saturating_sub(on_node.free_kb) / 4;
        let pages: u64 = found.iter().map(Found::count).sum::<u64>().min(most);
        if pages > room {
            return Err(Failed::NoRoom(format!(
                "`{}` has {} on {}, and the nodes that it keeps have room for {}: end a program, \
                 or give it another node first",
                moving.from,
                mib(pages),
                moving.node,
                mib(room)
            )));
        }
        Ok(TransferForecast {
            pages,
            processes: found.len(),
            targets,
            room,
        })
    }

    /// Moves a node.
    ///
    /// # Errors
    /// It did not come about: everything is as it was before.
    pub fn transfer(
        &mut self,
        order: &Order,
        go_on: GoOn<'_>,
    ) -> std::result::Result<Done, Failed> {
        let machine = super::machine(&self.root)?;
        let begun = self.begun(order, &machine)?;
        let outlook = self.look_out(&begun, &machine)?;
        let before = self.need(&order.from)?.state.clone();
        let _everywhere = Everywhere::enter(&self.root)?;
        let mut evacuation = Evacuation::new(&self.root, order.rate);
        match self.steps(&begun, &outlook, &mut evacuation, go_on) {
            Ok(done) => Ok(done),
            Err(failed) => {
                let _ = go_on(Step::Back, &evacuation.tally, 0);
                self.set(before).map_err(Failed::NotTakenBack)?;
                evacuation.back(order.node);
                Err(failed)
            }
        }
    }

    fn steps(
        &mut self,
        begun: &State,
        outlook: &TransferForecast,
        evacuation: &mut Evacuation,
        go_on: GoOn<'_>,
    ) -> std::result::Result<Done, Failed> {
        let moving = on_its_way(begun)?.clone();
        self.set(begun.clone())?;
        let folders = self.folders(&moving.from);
        let mut left = u64::MAX;
        while evacuation.tally.passes < MOST_PASSES {
            let found = evacuate::find(&self.root, &folders, moving.node)?;
            let now: u64 = found.iter().map(Found::count).sum();
            // Little, or no less than before: what is left cannot move, or comes back.
            if now <= FEW_PAGES || now >= left {
                left = now;
                break;
            }
            left = now;
            let before = evacuation.tally.moved;
            let is_whole = evacuation.pass(&found, &outlook.targets, &mut |tally, wait_ns| {
                go_on(Step::Empty, tally, wait_ns)
            });
            if !is_whole {
                return Err(Failed::Stopped);
            }
            let full = evacuation.tally.refused.get(&Refusal::NoMemory);
            if full.is_some() && evacuation.tally.moved == before {
                return Err(self.no_room(&moving));
            }
        }
        if !go_on(Step::Empty, &evacuation.tally, 0) {
            return Err(Failed::Stopped);
        }
        self.set(begun.closed())?;
        let file_pages = self.verify(&moving, &outlook.targets, evacuation, go_on)?;
        self.set(begun.handed_over().map_err(Failed::Refused)?)?;
        Ok(Done {
            tally: evacuation.tally.clone(),
            left_to_kernel: if left == u64::MAX { 0 } else { left },
            file_pages,
        })
    }

    /// Moves on until no anonymous page is there; returns how many of files are.
    fn verify(
        &self,
        moving: &Moving,
        targets: &[NodeId],
        evacuation: &mut Evacuation,
        go_on: GoOn<'_>,
    ) -> std::result::Result<u64, Failed> {
        let folders = self.folders(&moving.from);
        let mut anonymous = 0;
        for look in 0..MOST_LOOKS {
            let mut found = evacuate::find(&self.root, &folders, moving.node)?;
            anonymous = found.iter().map(|found| found.anonymous.len()).sum();
            if anonymous == 0 {
                return Ok(found.iter().map(Found::count).sum());
            }
            // Files are tried once more only.
            found
                .iter_mut()
                .filter(|_| look > 0)
                .for_each(|found| found.others.clear());
            let is_whole = evacuation.pass(&found, targets, &mut |tally, wait_ns| {
                go_on(Step::Verify, tally, wait_ns)
            });
            if !is_whole {
                return Err(Failed::Stopped);
            }
            if evacuation.tally.refused.contains_key(&Refusal::NoMemory) && look > MOST_LOOKS / 4 {
                return Err(self.no_room(moving));
            }
            std::thread::sleep(LOOK_PAUSE);
        }
        Err(Failed::Stuck(format!(
            "{anonymous} anonymous pages of `{}` do not leave {}: a device or a program has pinned \
             them (RDMA, VFIO, io_uring's fixed buffers); end what holds them",
            moving.from, moving.node
        )))
    }

    fn no_room(&self, moving: &Moving) -> Failed {
        Failed::NoRoom(format!(
            "the nodes that `{}` keeps are full: end a program, or give it another node first",
            moving.from
        ))
    }

    /// A move whose mover was killed after the node was closed.
    pub(super) fn finish_closed(&mut self) -> Result<String> {
        let state = self.state().cloned().unwrap_or_default();
        let fail = |failed: Failed| match failed {
            Failed::Kernel(error) => error,
            other => Error::new("partitions", other.to_string(), ""),
        };
        let moving = on_its_way(&state).map_err(fail)?.clone();
        // Perhaps it was kept, and not written.
        self.set(state.clone())?;
        let machine = super::machine(&self.root)?;
        let targets = targets(&state, &moving, &machine);
        let _everywhere = Everywhere::enter(&self.root)?;
        let mut evacuation = Evacuation::new(&self.root, None);
        let done = self.verify(&moving, &targets, &mut evacuation, &mut |_, _, wait_ns| {
            std::thread::sleep(Duration::from_nanos(wait_ns));
            true
        });
        let Moving { node, from, to, .. } = &moving;
        let begin = format!("{node} was on its way from {from} to {to} when hither ended");
        match done {
            Ok(_) => {
                let after = state.handed_over().map_err(Failed::Refused).map_err(fail)?;
                self.set(after)?;
                Ok(format!("{begin}: {to} has it now"))
            }
            Err(Failed::Kernel(error)) => Err(error),
            Err(why) => {
                self.set(state.taken_back())?;
                Ok(format!("{begin}: {from} has it again, as {why}"))
            }
        }
    }
}

/// This process in the root of the tree, until it is dropped. The kernel takes new pages for those it
/// moves in the name of who asks, so that a mover needs memory of both sides.
struct Everywhere {
    root: Root,
    /// The group that it was in.
    home: String,
}

impl Everywhere {
    fn enter(root: &Root) -> Result<Self> {
        let own = std::process::id() as i32;
        let home = pressure::group_of(root, own).unwrap_or_default();
        cgroup::put(root, own, cgroup::TREE)?;
        Ok(Self {
            root: root.clone(),
            home: format!("{}{}", cgroup::TREE, home.trim_end_matches('/')),
        })
    }
}

impl Drop for Everywhere {
    fn drop(&mut self) {
        // Where it cannot go back it ends soon, and its children are none.
        let _ = cgroup::put(&self.root, std::process::id() as i32, &self.home);
    }
}

fn on_its_way(state: &State) -> std::result::Result<&Moving, Failed> {
    let moving = state.moving.as_ref();
    moving.ok_or_else(|| Failed::Refused("no node is on its way".to_owned()))
}

/// The nodes that are left to the owner, the nearest first.
fn targets(state: &State, moving: &Moving, machine: &Resources) -> Vec<NodeId> {
    let held = state.layout.of(&moving.from).map(|set| &set.nodes);
    let mut left: Vec<NodeId> = held
        .into_iter()
        .flat_map(|nodes| nodes.iter())
        .filter(|&node| !moving.set.nodes.contains(node))
        .collect();
    let distance = |node: NodeId| {
        let (from, to) = (machine.position(moving.node)?, machine.position(node)?);
        machine.distances.get(from)?.get(to).copied()
    };
    left.sort_by_key(|&node| (distance(node), node));
    left
}

fn mib(pages: u64) -> String {
    format!("{:.1} MiB", pages as f64 / 256.0)
}
