//! `--weights`: what each node gets in turn, and whether that pays.
//!
//! Measured weights are taken back where they do not pay: before the program starts, if all nodes
//! together give no more than the near ones; while it runs, if it uses so little bandwidth that the
//! near nodes' shorter latency is worth more. Then its pages move near, and to all nodes again if
//! it comes to need them.

use crate::trackers::{self, Here};
use anyhow::{Context, anyhow};
use hither_core::bind::demand::{Demand, Reach};
use hither_core::bind::{KernelPolicy, Mode, Weights};
use hither_core::ids::NodeId;
use hither_core::plan::Sampling;
use hither_core::rset::Resources;
use hither_core::set::{CpuSet, NodeSet};
use hither_linux::backend::kernel::KernelBackend;
use hither_linux::bind::spread::Spread;
use hither_linux::bind::weights::{Measured, Table};
use hither_linux::restore;
use hither_linux::root::Root;
use hither_linux::sys;
use hither_linux::topology::Topology;
use hither_linux::watch::Watch;
use hither_mover::Backend;
use serde_json::json;
use std::collections::BTreeMap;
use std::process;

/// Time between two looks at what the program uses, in us.
const LOOK_US: u64 = 50_000;

/// Where weights come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// As the kernel has them.
    Kernel,
    /// Bandwidths that firmware tells.
    Hmat,
    /// Bandwidths measured now.
    Measured,
    /// What the user says.
    Given(String),
}

/// `kernel`, `hmat`, `measured`, `3:1`.
pub fn parse(text: &str) -> Result<Source, String> {
    match text {
        "kernel" => Ok(Source::Kernel),
        "hmat" => Ok(Source::Hmat),
        "measured" => Ok(Source::Measured),
        _ if text.starts_with(|first: char| first.is_ascii_digit()) => {
            Ok(Source::Given(text.to_owned()))
        }
        _ => Err(format!(
            "`{text}` is neither kernel, hmat, measured, nor a weight for each node as in 3:1"
        )),
    }
}

/// Weights in force.
#[derive(Debug)]
pub struct Weighing {
    table: Option<Table>,
    policy: KernelPolicy,
    weights: Option<Weights>,
    measured: Option<Measured>,
    vigil: Option<Vigil>,
    /// Sentences for a person, before the program starts.
    pub told: Vec<String>,
    notes: Vec<String>,
}

/// What weights are worked out for.
pub struct Wanted<'a> {
    /// Where they come from.
    pub source: &'a Source,
    /// What the program runs on.
    pub cpus: CpuSet,
    /// Weighted interleave over some nodes.
    pub policy: &'a KernelPolicy,
    /// Is nobody else to move the program's pages?
    pub may_move: bool,
}

impl Weighing {
    /// Sets the system's weights, unless the kernel's own are meant. Where measuring says that they
    /// do not pay, nothing is set, and [`Self::policy`] is another than was asked for.
    ///
    /// # Errors
    /// Weights that do not fit the nodes, bandwidths that nobody knows, no right to set weights.
    pub fn begin(
        wanted: &Wanted<'_>,
        root: &Root,
        topology: &Topology,
        resources: &Resources,
    ) -> anyhow::Result<Option<Self>> {
        let nodes = wanted.policy.nodes.intersection(&resources.usable().nodes);
        let mut weighing = Self {
            table: None,
            policy: wanted.policy.clone(),
            weights: None,
            measured: None,
            vigil: None,
            told: Vec::new(),
            notes: Vec::new(),
        };
        let weights = match wanted.source {
            Source::Kernel => return Ok(None),
            Source::Given(text) => Some(Weights::parse(text, &nodes)),
            Source::Hmat => Some(of_firmware(resources, &nodes)),
            Source::Measured => None,
        };
        let weights = weights
            .transpose()
            .map_err(|why| anyhow!("--weights: {why}"))?;
        let folder = restore::runtime_folder()?;
        let (table, note) = Table::take(root, &folder, &nodes).context("--weights")?;
        weighing.told.extend(note);
        match weights {
            Some(weights) => {
                table.set(&weights).context("--weights")?;
                weighing.told.push(format!("weights: {weights}"));
                weighing.weights = Some(weights);
            }
            None => {
                let measured = Measured::take(topology, &wanted.cpus, &nodes, &table);
                let measured = measured.context("--weights measured")?;
                weighing.told.push(sentence(&measured));
                if !measured.pays() {
                    weighing.refuse(table, measured)?;
                    return Ok(Some(weighing));
                }
                if measured.near_gbs > 0.0 && wanted.may_move {
                    let opened = Vigil::open(root, topology, measured.near_gbs);
                    weighing.vigil = opened
                        .map_err(|why| {
                            weighing.told.push(format!(
                                "weights: whether the program needs them is not watched: {why}"
                            ));
                        })
                        .ok();
                }
                weighing.weights = Some(measured.weights.clone());
                weighing.measured = Some(measured);
            }
        }
        weighing.table = Some(table);
        Ok(Some(weighing))
    }

    /// The near nodes are better: they are preferred, and the others take what has no room there.
    fn refuse(&mut self, table: Table, measured: Measured) -> anyhow::Result<()> {
        table.put_back().context("--weights")?;
        let mode = match measured.near.len() {
            1 => Mode::Preferred,
            _ => Mode::PreferredMany,
        };
        self.policy = KernelPolicy::new(mode, measured.near.clone());
        self.told.push(format!(
            "weights: refused, as they would win nothing; memory {} instead",
            self.policy
        ));
        self.measured = Some(measured);
        Ok(())
    }

    /// The policy for the program.
    #[must_use]
    pub fn policy(&self) -> &KernelPolicy {
        &self.policy
    }

    /// Looks whether the weights pay, and moves pages if not. Returns the time to sleep in us;
    /// `None` where there is nothing to look at.
    pub fn turn(&mut self, root: &Root) -> Option<u64> {
        let (vigil, table) = (self.vigil.as_mut()?, self.table.as_ref()?);
        let (measured, weights) = (self.measured.as_ref()?, self.weights.as_ref()?);
        if let Some(sleep_us) = vigil.go_on() {
            return Some(sleep_us);
        }
        match vigil.look() {
            Err(error) => {
                self.notes
                    .push(format!("weights: not watched any more: {error}"));
                self.vigil = None;
                return None;
            }
            Ok(None) => {}
            Ok(Some(used_gbs)) => {
                let near = list(&measured.near);
                let (wanted, pattern, reach) = match vigil.demand.reach() {
                    Reach::Near => (
                        weights.leaning_on(&measured.near),
                        weights.only(&measured.near),
                        format!("{near} alone"),
                    ),
                    Reach::All => (weights.clone(), weights.clone(), "all nodes".to_owned()),
                };
                if let Err(error) = table.set(&wanted) {
                    self.notes
                        .push(format!("weights: cannot be changed: {error}"));
                }
                self.notes.push(format!(
                    "weights: pages go to {reach}, as the program uses {used_gbs:.1} GB/s where \
                     {near} gives {:.1}",
                    measured.near_gbs
                ));
                let pids = vigil
                    .watch
                    .tree()
                    .processes()
                    .iter()
                    .map(|process| process.pid);
                vigil.spread = Some(Spread::new(root, pids, &self.policy, pattern));
                vigil.changes += 1;
            }
        }
        Some(LOOK_US)
    }

    /// Puts the system's weights back, and says what came of them.
    #[must_use]
    pub fn finish(mut self) -> Weighed {
        if let Some(vigil) = &mut self.vigil {
            vigil.watch.tracker().stop();
            vigil.count();
            if vigil.changes > 0 {
                self.notes.push(format!(
                    "weights: {} pages of 4 KiB moved, {} could not be",
                    vigil.moved, vigil.refused
                ));
            }
        }
        let json = self.json();
        if let Some(Err(error)) = self.table.take().map(Table::put_back) {
            let text = format!("weights: the system's are not put back: {error}");
            self.notes.push(text);
        }
        Weighed {
            notes: self.notes,
            json,
        }
    }

    fn json(&self) -> serde_json::Value {
        let weights = self.weights.iter().flat_map(Weights::iter);
        let weights = weights.map(|(node, weight)| json!({"node": node, "weight": weight}));
        let measured = self.measured.as_ref().map(|measured| {
            let alone = measured.alone.iter();
            let alone = alone.map(|(node, gbs)| json!({"node": node, "read_gbs": gbs}));
            json!({
                "alone": alone.collect::<Vec<_>>(),
                "together_gbs": measured.together,
                "near": measured.near.to_string(),
                "near_gbs": measured.near_gbs,
                "refused": !measured.pays(),
            })
        });
        let watched = self.vigil.as_ref().map(|vigil| {
            json!({
                "reach": vigil.demand.reach().to_string(),
                "changes": vigil.changes,
                "moved_pages": vigil.moved,
                "refused_pages": vigil.refused,
            })
        });
        json!({
            "set": weights.collect::<Vec<_>>(),
            "measured": measured,
            "watched": watched,
        })
    }
}

/// What became of weights.
#[derive(Debug)]
pub struct Weighed {
    /// Sentences for a person.
    pub notes: Vec<String>,
    /// `placed.weights` of hither.run/1.
    pub json: serde_json::Value,
}

/// A look at a running program, again and again.
struct Vigil {
    watch: Watch,
    demand: Demand,
    backend: KernelBackend,
    spread: Option<Spread>,
    start_ns: u64,
    moved: u64,
    refused: u64,
    changes: u32,
}

impl Vigil {
    fn open(root: &Root, topology: &Topology, near_gbs: f64) -> Result<Self, String> {
        let here = Here {
            root,
            topology,
            ghz: None,
        };
        // The only one yet that counts the traffic of nodes.
        let mut tracker = (trackers::OPIUM.open)(&here)?;
        tracker.set_sampling(Sampling::Off);
        let backend = KernelBackend::new();
        backend.probe().map_err(|why| why.to_string())?;
        Ok(Self {
            watch: Watch::new(root, topology, process::id() as i32, tracker),
            demand: Demand::new(near_gbs),
            backend,
            spread: None,
            start_ns: sys::monotonic_ns(),
            moved: 0,
            refused: 0,
            changes: 0,
        })
    }

    fn now_us(&self) -> u64 {
        (sys::monotonic_ns() - self.start_ns) / 1000
    }

    /// A step of the move in hand, if there is one: half of the time is left to the program.
    fn go_on(&mut self) -> Option<u64> {
        let spread = self.spread.as_mut()?;
        let begun_ns = sys::monotonic_ns();
        let is_more = spread.step(&mut self.backend);
        if !is_more {
            self.count();
            // What was used while pages moved says nothing.
            let _ = self.watch.observe(self.now_us());
            return Some(LOOK_US);
        }
        Some(((sys::monotonic_ns() - begun_ns) / 1000).max(1000))
    }

    /// Takes the counts of the move in hand over.
    fn count(&mut self) {
        if let Some(spread) = self.spread.take() {
            let (moved, refused) = spread.counts();
            self.moved += moved;
            self.refused += refused;
        }
    }

    /// What is used, in GB/s, if pages should be elsewhere from now on.
    fn look(&mut self) -> hither_linux::error::Result<Option<f64>> {
        let snapshot = self.watch.observe(self.now_us())?;
        let Some(traffic) = snapshot.node_traffic() else {
            return Ok(None);
        };
        let us = snapshot.interval_us.max(1) as f64;
        let used_gbs = traffic.iter().sum::<u64>() as f64 / us / 1000.0;
        let cpu_us = snapshot.processes.iter();
        let cpu_us: u64 = cpu_us.filter_map(|process| process.cpu_us.get()).sum();
        let is_time = self.demand.look(used_gbs, cpu_us as f64 / us);
        Ok(is_time.then_some(used_gbs))
    }
}

impl std::fmt::Debug for Vigil {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Vigil")
            .field("demand", &self.demand)
            .finish_non_exhaustive()
    }
}

fn of_firmware(resources: &Resources, nodes: &NodeSet) -> Result<Weights, String> {
    let meant = resources
        .nodes
        .iter()
        .filter(|node| nodes.contains(node.id));
    let bandwidths = meant.map(|node| {
        let mbs = node
            .read_bandwidth_mbs
            .filter(|mbs| *mbs > 0)
            .ok_or_else(|| {
                format!(
                    "firmware tells no bandwidth of {} (HMAT); take measured, or say them",
                    node.id
                )
            })?;
        Ok((node.id, mbs as f64))
    });
    let bandwidths: Result<BTreeMap<NodeId, f64>, String> = bandwidths.collect();
    Ok(Weights::of_bandwidths(&bandwidths?))
}

fn sentence(measured: &Measured) -> String {
    let alone = measured.alone.iter();
    let alone: Vec<String> = alone
        .map(|(node, gbs)| format!("{node} {gbs:.1}"))
        .collect();
    format!(
        "weights: {}, as these CPUs read {} GB/s alone and {:.1} GB/s together",
        measured.weights,
        alone.join(", "),
        measured.together
    )
}

fn list(nodes: &NodeSet) -> String {
    let names: Vec<String> = nodes.iter().map(|node| node.to_string()).collect();
    names.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_come_from_somewhere_or_are_said() {
        assert_eq!(parse("kernel"), Ok(Source::Kernel));
        assert_eq!(parse("hmat"), Ok(Source::Hmat));
        assert_eq!(parse("measured"), Ok(Source::Measured));
        assert_eq!(parse("3:1"), Ok(Source::Given("3:1".to_owned())));
        for bad in ["", "auto", ":1", "-1:2"] {
            assert!(parse(bad).unwrap_err().contains("as in 3:1"), "{bad}");
        }
    }
}
