//! Partitions of a running machine, and a node on its way from one owner to another.
//!
//! A move goes through two stages. *Leaving*: the node's CPUs have left their owner, whose threads
//! go on elsewhere; its memory has not, and its pages are being moved off. *Closed*: the owner may
//! no longer allocate there, and what still came in between is moved. Then the new owner has it.
//! Whoever finds a move without its mover takes back one that was leaving, as nothing had been
//! given up yet, and finishes one that was closed.

use super::{Kind, Layout, REST};
use crate::ids::NodeId;
use crate::rset::{ResourceSet, Resources};
use serde::{Deserialize, Serialize};

/// Who has what, and what is on its way.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct State {
    /// Who has what; a node on its way is still its old owner's.
    pub layout: Layout,
    /// The node on its way.
    pub moving: Option<Moving>,
}

/// A node on its way.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Moving {
    /// Which.
    pub node: NodeId,
    /// Its owner.
    pub from: String,
    /// Who gets it.
    pub to: String,
    /// How far it is.
    pub stage: Stage,
    /// Its CPUs and memory.
    pub set: ResourceSet,
}

/// How far a node on its way is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Stage {
    /// Its CPUs are free of the owner's threads; its memory is still the owner's.
    Leaving,
    /// The owner may not allocate there any more.
    Closed,
}

impl State {
    /// The node begins to leave its owner.
    ///
    /// # Errors
    /// It cannot: half a sentence that says why and what can.
    pub fn begin(
        &self,
        node: NodeId,
        from: &str,
        to: &str,
        machine: &Resources,
    ) -> Result<Self, String> {
        if let Some(moving) = &self.moving {
            return Err(format!("{} is on its way already", moving.node));
        }
        if from == to {
            return Err(format!("`{from}` has {node} already"));
        }
        let set = self.layout.whole_node(node, from, machine)?;
        let mut state = self.clone();
        state.moving = Some(Moving {
            node,
            from: from.to_owned(),
            to: to.to_owned(),
            stage: Stage::Leaving,
            set,
        });
        let after = state.handed_over()?;
        after
            .layout
            .check(machine)
            .map_err(|broken| format!("then `{}` {}", broken.owner, broken.reason))?;
        Ok(state)
    }

    /// The owner may not allocate on the node any more.
    #[must_use]
    pub fn closed(&self) -> Self {
        let mut state = self.clone();
        if let Some(moving) = &mut state.moving {
            moving.stage = Stage::Closed;
        }
        state
    }

    /// The new owner has it.
    ///
    /// # Errors
    /// Nothing is on its way, or one of the owners is no more.
    pub fn handed_over(&self) -> Result<Self, String> {
        let mut state = self.clone();
        let moving = state.moving.take().ok_or("no node is on its way")?;
        let missing = |name: &str| {
            format!(
                "there is no partition `{name}`; there are {}",
                self.layout.names()
            )
        };
        let from = state.layout.of_mut(&moving.from);
        let from = from.ok_or_else(|| missing(&moving.from))?;
        *from = from.difference(&moving.set);
        let to = state.layout.of_mut(&moving.to);
        let to = to.ok_or_else(|| missing(&moving.to))?;
        *to = to.union(&moving.set);
        Ok(state)
    }

    /// The old owner has it again, all of it.
    #[must_use]
    pub fn taken_back(&self) -> Self {
        Self {
            moving: None,
            ..self.clone()
        }
    }

    /// What an owner may use at this moment.
    fn usable(&self, name: &str, set: &ResourceSet) -> ResourceSet {
        let Some(moving) = self.moving.as_ref().filter(|moving| moving.from == name) else {
            return set.clone();
        };
        ResourceSet {
            cpus: set.cpus.difference(&moving.set.cpus),
            nodes: match moving.stage {
                Stage::Leaving => set.nodes.clone(),
                Stage::Closed => set.nodes.difference(&moving.set.nodes),
            },
        }
    }

    /// The control groups that this asks for. CPUs on their way are in a group without processes, so
    /// that nobody runs there.
    #[must_use]
    pub fn groups(&self) -> Vec<super::Group> {
        let kind_of = |name: &str| {
            let parts = &self.layout.partitions;
            parts.iter().find(|part| part.name == name).map(|p| p.kind)
        };
        let owners = self.layout.owners();
        let mut groups: Vec<_> = owners
            .map(|(name, set)| super::Group {
                name: name.to_owned(),
                kind: kind_of(name),
                set: match name {
                    // What no partition holds is the rest's by itself.
                    REST => ResourceSet::of_memory(self.usable(name, set).nodes),
                    _ => self.usable(name, set),
                },
            })
            .collect();
        if let Some(moving) = &self.moving
            && !moving.set.cpus.is_empty()
        {
            groups.push(super::Group {
                name: super::writes::MOVING.to_owned(),
                kind: Some(Kind::Isolated),
                set: moving.set.clone(),
            });
        }
        groups
    }
}
