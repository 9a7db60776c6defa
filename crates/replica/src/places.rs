//! Places that may have a copy, and which of them is nearest to a CPU.

use crate::error::Error;
use crate::forecast::Figures;
use hither_core::ids::{CpuId, NodeId};
use hither_core::set::{CpuSet, NodeSet};
use hither_linux::topology::{NodeInfo, Topology};
use hither_linux::{Root, bind, sys};

/// Most places: a distance is 8 bits in firmware's table, and nodes beyond this were never seen.
const MOST: usize = 64;

/// A node that may have a copy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// Where its memory is.
    pub node: NodeId,
    /// Threads that copy for it run there; empty: anywhere.
    pub cpus: CpuSet,
}

/// All places of an array, in order.
#[derive(Clone, Debug)]
pub struct Places {
    list: Vec<Place>,
    /// The nearest place of each CPU by number; place 0 for those not listed.
    nearest: Vec<u16>,
    /// Mean distance between places (SLIT; 10 is local).
    distance: f64,
    is_emulated: bool,
}

impl Places {
    /// Nodes of this machine that have memory and CPUs, as far as this process may use them. Threads of a
    /// node without memory, or without leave to use it, read the place that is nearest by SLIT distance.
    ///
    /// # Errors
    /// The kernel does not tell, or leaves no node.
    pub fn here() -> Result<Self, Error> {
        let here = bind::here()?;
        let topology = Topology::read_layout(&Root::host())?;
        Self::of_topology(&topology, &here.allowed.nodes)
    }

    /// The same of a topology, of which `allowed` nodes may be used.
    ///
    /// # Errors
    /// No node is left.
    pub fn of_topology(topology: &Topology, allowed: &NodeSet) -> Result<Self, Error> {
        let may = |node: &&NodeInfo| {
            node.memory.total_kb > 0 && !node.cpus.is_empty() && allowed.contains(node.id)
        };
        let nodes: Vec<&NodeInfo> = topology.nodes.iter().filter(may).collect();
        let list: Vec<Place> = nodes
            .iter()
            .map(|node| Place {
                node: node.id,
                cpus: node.cpus.clone(),
            })
            .collect();
        let distance = |from: NodeId, to: NodeId| {
            let (from, to) = (topology.position(from)?, topology.position(to)?);
            topology.distances.get(from)?.get(to).copied()
        };
        let mut nearest = Vec::new();
        for node in &topology.nodes {
            let near = (0..list.len())
                .min_by_key(|&place| distance(node.id, list[place].node).unwrap_or(u32::MAX));
            for cpu in node.cpus.iter() {
                nearest.resize(nearest.len().max(cpu.0 as usize + 1), 0);
                nearest[cpu.0 as usize] = near.unwrap_or(0) as u16;
            }
        }
        let pairs = list
            .iter()
            .flat_map(|one| list.iter().map(move |other| (one, other)))
            .filter(|(one, other)| one.node != other.node)
            .filter_map(|(one, other)| distance(one.node, other.node));
        let all: Vec<f64> = pairs.map(f64::from).collect();
        let mean = all.iter().sum::<f64>() / all.len().max(1) as f64;
        Self::checked(list, nearest, mean, false)
    }

    /// Figures of this machine for [`crate::forecast`], by position of node. The kernel tells distances but
    /// neither latencies nor bandwidths: a machine description knows more
    /// ([`Figures::of_machine`](crate::forecast::Figures::of_machine)).
    ///
    /// # Errors
    /// The kernel does not tell.
    pub fn figures_here() -> Result<Figures, Error> {
        let topology = Topology::read_layout(&Root::host())?;
        let cpus = topology.nodes.iter().map(|node| node.cpus.len()).collect();
        let available = |node: &NodeInfo| node.memory.available_kb() << 10;
        Ok(Figures {
            free_bytes: topology.nodes.iter().map(available).collect(),
            ..Figures::of_distances(cpus, &topology.distances)
        })
    }

    /// Places that the caller chooses, several of them on one node if wanted: so that a machine with one node
    /// runs the protocol with several copies. Threads whose CPU no place names read place 0; with `distance`
    /// between any two (SLIT; 10 is local).
    ///
    /// # Errors
    /// There is none, or more than 64.
    pub fn chosen(list: Vec<Place>, distance: u32) -> Result<Self, Error> {
        let mut nearest = Vec::new();
        for (place, one) in list.iter().enumerate() {
            for CpuId(cpu) in one.cpus.iter() {
                if cpu as usize >= nearest.len() {
                    nearest.resize(cpu as usize + 1, 0);
                }
                nearest[cpu as usize] = place as u16;
            }
        }
        Self::checked(list, nearest, f64::from(distance), true)
    }

    fn checked(
        list: Vec<Place>,
        nearest: Vec<u16>,
        distance: f64,
        is_emulated: bool,
    ) -> Result<Self, Error> {
        match list.len() {
            0 => Err(Error::Invalid(
                "there is no place for a copy: name nodes with memory and CPUs that the cpuset allows"
                    .to_owned(),
            )),
            count if count > MOST => Err(Error::Invalid(format!(
                "{count} places are more than {MOST}: name fewer"
            ))),
            _ => Ok(Self {
                list,
                nearest,
                distance,
                is_emulated,
            }),
        }
    }

    /// In order.
    #[must_use]
    pub fn list(&self) -> &[Place] {
        &self.list
    }

    /// The place nearest to the CPU that the calling thread runs on now.
    #[must_use]
    pub fn near_here(&self) -> usize {
        sys::current_cpu().map_or(0, |cpu| self.near(cpu))
    }

    /// The place nearest to a CPU.
    #[must_use]
    pub fn near(&self, cpu: CpuId) -> usize {
        self.nearest
            .get(cpu.0 as usize)
            .map_or(0, |&place| usize::from(place))
    }

    /// Mean distance between places.
    #[must_use]
    pub fn distance(&self) -> f64 {
        self.distance
    }

    /// Were they chosen by the caller?
    #[must_use]
    pub fn is_emulated(&self) -> bool {
        self.is_emulated
    }

    pub(crate) fn name(&self, place: usize) -> String {
        match self.is_emulated {
            true => format!("place {place} (node {})", self.list[place].node.0),
            false => format!("node {}", self.list[place].node.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn threads_of_a_node_without_a_place_read_the_nearest() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/machines");
        let mut with_several = 0;
        for entry in std::fs::read_dir(folder).unwrap() {
            let topology = Topology::read(&Root::new(entry.unwrap().path())).unwrap();
            let all = topology.memory_nodes();
            let Ok(places) = Places::of_topology(&topology, &all) else {
                continue;
            };
            for place in places.list() {
                let cpu = place.cpus.iter().next().unwrap();
                assert_eq!(places.list()[places.near(cpu)], *place);
            }
            if places.list().len() < 2 {
                continue;
            }
            with_several += 1;
            assert!(places.distance() > 10.0, "{}", places.distance());
            // Without the first node its CPUs go to the nearest of the others.
            let first = &places.list()[0];
            let rest: NodeSet = all.iter().filter(|node| *node != first.node).collect();
            let fewer = Places::of_topology(&topology, &rest).unwrap();
            let near = fewer.near(first.cpus.iter().next().unwrap());
            let at = |node: NodeId| topology.position(node).unwrap();
            let row = &topology.distances[at(first.node)];
            let least = fewer.list().iter().map(|place| row[at(place.node)]).min();
            assert_eq!(Some(row[at(fewer.list()[near].node)]), least);
        }
        assert!(with_several >= 2, "{with_several} machines");
    }

    #[test]
    fn this_machine_has_a_forecast() {
        use crate::forecast::{CopyDemand, CopySharing, forecast};
        let figures = Places::figures_here().unwrap();
        let with_cpus = figures.cpus.iter().filter(|count| **count > 0).count();
        let demand = CopyDemand {
            bytes: 1 << 20,
            shared_bytes: 1 << 20,
            sharing: CopySharing::Shared,
            written_per_read: 0.0,
            compute_ns_per_byte: 0.0,
            home: 0,
        };
        let found = forecast(&figures, &demand);
        assert_eq!(found.copy_bytes, (with_cpus as u64 - 1) << 20);
        if with_cpus == 1 {
            assert!(found.sentence.contains("nothing is remote"));
        }
    }

    #[test]
    fn no_place_and_too_many_are_refused() {
        let place = Place {
            node: NodeId(0),
            cpus: CpuSet::new(),
        };
        assert!(matches!(Places::chosen(vec![], 20), Err(Error::Invalid(_))));
        assert!(Places::chosen(vec![place.clone(); MOST + 1], 20).is_err());
        let places = Places::chosen(vec![place; 4], 20).unwrap();
        assert_eq!(places.near(CpuId(9999)), 0);
        assert_eq!(places.name(3), "place 3 (node 0)");
    }
}
