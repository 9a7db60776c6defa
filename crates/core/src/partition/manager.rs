//! The global resource manager: which node should go from whom to whom, by goals.
//!
//! A partition *wants* a node where it uses its CPUs, waits for memory, or fills its memory beyond
//! what its goal says, or where a schedule gives it more nodes at this time of day. It can *spare*
//! one where it would stay below those marks without it, or has more than its schedule or its most.
//! A want counts only when it lasted (`hold` looks in a row), and after each move everybody waits
//! (`cooldown_s`), so that what a move changed is seen before the next: nodes do not swing to and fro.
//!
//! Source: the global resource manager of IBM's ccNUMA work. Time and figures are arguments.

use super::{Layout, State};
use crate::ids::NodeId;
use crate::rset::Resources;
use serde::Deserialize;
use std::collections::BTreeMap;

/// How eagerly the manager acts.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(
    deny_unknown_fields,
    default,
    expecting = "a table such as { hold = 3, cooldown_s = 60 }"
)]
pub struct Pace {
    /// Looks in a row that a want must last.
    pub hold: u32,
    /// Time between two moves, in s.
    pub cooldown_s: u64,
    /// Time between two looks, in s.
    pub interval_s: u64,
}

impl Default for Pace {
    fn default() -> Self {
        Self {
            hold: 3,
            cooldown_s: 60,
            interval_s: 5,
        }
    }
}

/// What an owner wants. Shares are 0 to 1.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(
    deny_unknown_fields,
    default,
    expecting = "a table such as { min_nodes = 1, max_nodes = 4 }"
)]
pub struct Goal {
    /// Nodes that it always keeps.
    pub min_nodes: usize,
    /// Nodes that it has at most.
    pub max_nodes: usize,
    /// Who is served first: the highest; and nobody gives to a lower one but what it can spare.
    pub priority: i32,
    /// It wants a node where more of its CPU time than this is used.
    pub cpu_above: f64,
    /// It can spare one where the rest of its CPUs would be used no more than this.
    pub cpu_below: f64,
    /// It wants a node where tasks waited for memory for more than this share of the time.
    pub stall_above: f64,
    /// It wants a node where more of its memory than this is in use.
    pub memory_above: f64,
    /// Times of day with a number of nodes of their own.
    pub schedule: Vec<Slot>,
}

/// A time of day with a number of nodes.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(
    deny_unknown_fields,
    expecting = "a table such as { from = \"08:00\", to = \"18:00\", nodes = 2 }"
)]
pub struct Slot {
    /// When it begins: `08:00`.
    pub from: String,
    /// When it ends; before `from`: on the next day.
    pub to: String,
    /// Nodes meanwhile.
    pub nodes: usize,
}

impl Default for Goal {
    fn default() -> Self {
        Self {
            min_nodes: 1,
            max_nodes: usize::MAX,
            priority: 0,
            cpu_above: 0.9,
            cpu_below: 0.6,
            stall_above: 0.1,
            memory_above: 0.9,
            schedule: Vec::new(),
        }
    }
}

impl Goal {
    /// # Errors
    /// A figure that makes no sense, and what would.
    pub fn check(&self) -> Result<(), String> {
        for (name, share) in [
            ("cpu_above", self.cpu_above),
            ("cpu_below", self.cpu_below),
            ("stall_above", self.stall_above),
            ("memory_above", self.memory_above),
        ] {
            if !(0.0..=1.0).contains(&share) {
                return Err(format!("{name} is a share from 0 to 1, not {share}"));
            }
        }
        if self.cpu_below >= self.cpu_above {
            return Err(format!(
                "cpu_below ({}) must be less than cpu_above ({}), or nodes would swing to and fro",
                self.cpu_below, self.cpu_above
            ));
        }
        if self.min_nodes == 0 || self.max_nodes < self.min_nodes {
            return Err("min_nodes is at least 1, max_nodes at least min_nodes".to_owned());
        }
        for slot in &self.schedule {
            minutes(&slot.from)?;
            minutes(&slot.to)?;
            if !(self.min_nodes..=self.max_nodes).contains(&slot.nodes) {
                return Err(format!(
                    "a schedule's {} nodes are not from min_nodes to max_nodes",
                    slot.nodes
                ));
            }
        }
        Ok(())
    }

    /// What the schedule says at a minute of the day.
    fn scheduled(&self, minute: u32) -> Option<&Slot> {
        self.schedule.iter().find(|slot| {
            let (Ok(from), Ok(to)) = (minutes(&slot.from), minutes(&slot.to)) else {
                return false;
            };
            match from <= to {
                true => (from..to).contains(&minute),
                false => minute >= from || minute < to,
            }
        })
    }
}

/// Minutes since midnight of `08:30`.
fn minutes(text: &str) -> Result<u32, String> {
    let parsed = text.split_once(':').and_then(|(hours, minutes)| {
        let (hours, minutes): (u32, u32) = (hours.parse().ok()?, minutes.parse().ok()?);
        (hours < 24 && minutes < 60).then_some(hours * 60 + minutes)
    });
    parsed.ok_or_else(|| format!("`{text}` is no time of day, as in 08:30"))
}

/// What an owner did since the last look. Shares are 0 to 1.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Use {
    /// Of the time of its CPUs.
    pub cpu: f64,
    /// Of the time in which some task waited for memory; `None`: not measured.
    pub stall: Option<f64>,
    /// Of its memory that is in use.
    pub memory: f64,
}

/// One look at the machine.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PartitionReading {
    /// Seconds on any clock that does not go back.
    pub now_s: f64,
    /// Minute of the day, 0 to 1439.
    pub minute: u32,
    /// By owner.
    pub uses: BTreeMap<String, Use>,
    /// Bytes in use per node: what a move of it has to carry at most.
    pub node_bytes: BTreeMap<NodeId, u64>,
}

/// A node that should go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Proposal {
    /// Which.
    pub node: NodeId,
    /// Whose it is.
    pub from: String,
    /// Who should have it.
    pub to: String,
    /// Why the one wants and the other can give.
    pub why: String,
}

/// The manager's memory between looks.
#[derive(Clone, Debug)]
pub struct Manager {
    goals: BTreeMap<String, Goal>,
    pace: Pace,
    /// Looks in a row that an owner has wanted a node.
    wants: BTreeMap<String, u32>,
    moved_s: Option<f64>,
}

impl Manager {
    /// Owners without a goal neither want nor give.
    #[must_use]
    pub fn new(goals: &[(String, Goal)], pace: Pace) -> Self {
        Self {
            goals: goals.iter().cloned().collect(),
            pace,
            wants: BTreeMap::new(),
            moved_s: None,
        }
    }

    /// A move was made, or failed: either way not again at once.
    pub fn moved(&mut self, now_s: f64) {
        self.moved_s = Some(now_s);
        self.wants.clear();
    }

    /// What should move, if anything; and a sentence for each owner with a goal.
    pub fn step(
        &mut self,
        layout: &Layout,
        machine: &Resources,
        look: &PartitionReading,
    ) -> (Option<Proposal>, Vec<String>) {
        let mut lines = Vec::new();
        let mut asking = Vec::new();
        for (name, goal) in &self.goals {
            let nodes = own_nodes(layout, name, machine);
            let want = wants(goal, nodes.len(), look.uses.get(name), look.minute);
            let held = self.wants.entry(name.clone()).or_default();
            *held = if want.is_some() { *held + 1 } else { 0 };
            match want {
                None => lines.push(format!("{name}: content with {}", count(nodes.len()))),
                Some((why, _)) if *held < self.pace.hold => lines.push(format!(
                    "{name}: wants a node, look {held} of {}: {why}",
                    self.pace.hold
                )),
                Some((why, need)) => {
                    lines.push(format!("{name}: wants a node: {why}"));
                    asking.push((goal.priority, name.clone(), why, need));
                }
            }
        }
        if let Some(moved_s) = self.moved_s
            && look.now_s - moved_s < self.pace.cooldown_s as f64
        {
            if !asking.is_empty() {
                let left_s = self.pace.cooldown_s as f64 - (look.now_s - moved_s);
                lines.push(format!("a node moved just now: nothing for {left_s:.0} s"));
            }
            return (None, lines);
        }
        // The highest priority first; of the same one by name, so that a run can be repeated.
        asking.sort_by(|a, b| b.0.cmp(&a.0).then_with(|| a.1.cmp(&b.1)));
        for (_, to, why, need) in asking {
            match self.giver(&to, need, layout, machine, look) {
                Some((node, from, spare)) => {
                    let why = format!("{to}: {why}; {from}: {spare}");
                    let proposal = Proposal {
                        node,
                        from,
                        to,
                        why,
                    };
                    return (Some(proposal), lines);
                }
                None => lines.push(format!("{to}: nobody can spare a node")),
            }
        }
        (None, lines)
    }

    /// Who can spare which node: the nearest to the one who wants, then the emptiest.
    fn giver(
        &self,
        to: &str,
        need: Need,
        layout: &Layout,
        machine: &Resources,
        look: &PartitionReading,
    ) -> Option<(NodeId, String, String)> {
        let at_home = own_nodes(layout, to, machine);
        let distance = |node: NodeId| {
            let home = at_home.iter().filter_map(|&home| {
                let (a, b) = (machine.position(home)?, machine.position(node)?);
                machine.distances.get(a)?.get(b).copied()
            });
            home.min().unwrap_or(u32::MAX)
        };
        let mut offers = Vec::new();
        for (name, goal) in self.goals.iter().filter(|(name, _)| *name != to) {
            let nodes = own_nodes(layout, name, machine);
            // Nobody is left without any.
            let least = goal.min_nodes.max(1);
            if nodes.len() <= least {
                continue;
            }
            let Some(spare) = spares(goal, nodes.len(), look.uses.get(name), look.minute) else {
                continue;
            };
            for node in nodes {
                let has_cpus = machine
                    .position(node)
                    .is_some_and(|at| !machine.nodes[at].cpus.is_empty());
                // It must help, and must not leave the giver without CPUs or memory.
                let state = State {
                    layout: layout.clone(),
                    moving: None,
                };
                if need == Need::Cpus && !has_cpus || state.begin(node, name, to, machine).is_err()
                {
                    continue;
                }
                let bytes = look.node_bytes.get(&node).copied().unwrap_or(0);
                // Whoever cares least gives first.
                let rank = (goal.priority, distance(node), bytes, node);
                offers.push((rank, name.clone(), spare.clone()));
            }
        }
        let best = offers.into_iter().min_by(|a, b| a.0.cmp(&b.0))?;
        Some((best.0.3, best.1, best.2))
    }
}

/// The nodes that an owner has alone.
fn own_nodes(layout: &Layout, owner: &str, machine: &Resources) -> Vec<NodeId> {
    let ids = machine.nodes.iter().map(|node| node.id);
    ids.filter(|&id| layout.whole_node(id, owner, machine).is_ok())
        .collect()
}

fn count(nodes: usize) -> String {
    format!("{nodes} node{}", if nodes == 1 { "" } else { "s" })
}

fn percent(share: f64) -> String {
    format!("{:.0} %", share * 100.0)
}

/// What a node is wanted for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Need {
    Any,
    Cpus,
}

/// Why an owner wants one more node, and for what; `None`: it does not.
fn wants(goal: &Goal, nodes: usize, used: Option<&Use>, minute: u32) -> Option<(String, Need)> {
    let any = |why: String| (why, Need::Any);
    if let Some(slot) = goal.scheduled(minute) {
        return (nodes < slot.nodes).then(|| {
            any(format!(
                "has {} of {} from {} to {}",
                nodes, slot.nodes, slot.from, slot.to
            ))
        });
    }
    if nodes < goal.min_nodes {
        return Some(any(format!("has {} of at least {}", nodes, goal.min_nodes)));
    }
    let used = used?;
    if nodes >= goal.max_nodes {
        return None;
    }
    if used.cpu > goal.cpu_above {
        return Some((
            format!("uses {} of its CPUs", percent(used.cpu)),
            Need::Cpus,
        ));
    }
    if let Some(stall) = used.stall.filter(|&stall| stall > goal.stall_above) {
        return Some(any(format!(
            "waits for memory {} of the time",
            percent(stall)
        )));
    }
    (used.memory > goal.memory_above)
        .then(|| any(format!("uses {} of its memory", percent(used.memory))))
}

/// Why an owner can do with one node less; `None`: it cannot.
fn spares(goal: &Goal, nodes: usize, used: Option<&Use>, minute: u32) -> Option<String> {
    if let Some(slot) = goal.scheduled(minute) {
        return (nodes > slot.nodes)
            .then(|| format!("has {} and needs {} until {}", nodes, slot.nodes, slot.to));
    }
    if nodes > goal.max_nodes {
        return Some(format!("has {} of at most {}", nodes, goal.max_nodes));
    }
    let used = used?;
    let share = nodes as f64 / (nodes as f64 - 1.0);
    let (cpu, memory) = (used.cpu * share, used.memory * share);
    let waits = used.stall.is_some_and(|stall| stall > goal.stall_above);
    (cpu <= goal.cpu_below && memory <= goal.memory_above && !waits).then(|| {
        format!(
            "would use {} of its CPUs and {} of its memory without it",
            percent(cpu),
            percent(memory)
        )
    })
}
