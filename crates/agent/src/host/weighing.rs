//! Weights of weighted interleave while a program runs: worked out, set, guarded, and put back.
//!
//! Measured weights are taken back where they do not pay: before the program starts, if all nodes
//! together give no more than the near ones; while it runs, as [`Guard`] finds.

use super::weights::{Guard, Guarded, Guarding};
use super::{Error, Result};
use hither_core::bind::{KernelPolicy, Mode, Weights};
use hither_core::ids::NodeId;
use hither_core::rset::Resources;
use hither_core::set::{CpuSet, NodeSet};
use hither_linux::backend::kernel::KernelBackend;
use hither_linux::bind::weights::{Measured, Table};
use hither_linux::restore;
use hither_linux::root::Root;
use hither_linux::topology::Topology;
use hither_linux::tracker::table::{self, TrackerInputs};
use hither_linux::watch::Watch;
use hither_mover::Backend;
use std::collections::BTreeMap;
use std::fmt;
use std::process;

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

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Kernel => "kernel",
            Self::Hmat => "hmat",
            Self::Measured => "measured",
            Self::Given(text) => text,
        })
    }
}

/// Weights in force.
#[derive(Debug)]
pub struct Weighing {
    table: Option<Table>,
    policy: KernelPolicy,
    weights: Option<Weights>,
    measured: Option<Measured>,
    guard: Option<Guard>,
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
    ) -> Result<Option<Self>> {
        let nodes = wanted.policy.nodes.intersection(&resources.usable().nodes);
        let mut weighing = Self {
            table: None,
            policy: wanted.policy.clone(),
            weights: None,
            measured: None,
            guard: None,
            told: Vec::new(),
            notes: Vec::new(),
        };
        let weights = match wanted.source {
            Source::Kernel => return Ok(None),
            Source::Given(text) => Some(Weights::parse(text, &nodes)),
            Source::Hmat => Some(of_firmware(resources, &nodes)),
            Source::Measured => None,
        };
        let weights = weights.transpose().map_err(Error::Refused)?;
        let folder = restore::runtime_folder()?;
        let (table, note) = Table::take(root, &folder, &nodes)?;
        weighing.told.extend(note);
        match weights {
            Some(weights) => {
                table.set(&weights)?;
                weighing.told.push(format!("weights: {weights}"));
                weighing.weights = Some(weights);
            }
            None => {
                let measured = Measured::take(topology, &wanted.cpus, &nodes, &table);
                let measured =
                    measured.map_err(Error::system("measuring the bandwidth of nodes"))?;
                weighing.told.push(sentence(&measured));
                if !measured.pays() {
                    weighing.refuse(table, measured)?;
                    return Ok(Some(weighing));
                }
                if measured.near_gbs > 0.0 && wanted.may_move {
                    weighing.guard = guard(root, topology, wanted.policy, &measured)
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
    fn refuse(&mut self, table: Table, measured: Measured) -> Result<()> {
        table.put_back()?;
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
        let (guard, table) = (self.guard.as_mut()?, self.table.as_ref()?);
        guard.turn(root, table)
    }

    /// Puts the system's weights back, and says what came of them.
    #[must_use]
    pub fn finish(mut self) -> Weighed {
        let guarded = self.guard.take().map(Guard::finish);
        let told = guarded.iter().flat_map(|guarded| guarded.notes.clone());
        self.notes.extend(told);
        if let Some(Err(error)) = self.table.take().map(Table::put_back) {
            let text = format!("weights: the system's are not put back: {error}");
            self.notes.push(text);
        }
        Weighed {
            notes: self.notes,
            weights: self.weights,
            measured: self.measured,
            guarded,
        }
    }
}

/// What became of weights.
#[derive(Debug)]
pub struct Weighed {
    /// Sentences for a person.
    pub notes: Vec<String>,
    /// Those that were set.
    pub weights: Option<Weights>,
    /// By what they were worked out.
    pub measured: Option<Measured>,
    /// What guarding them came to.
    pub guarded: Option<Guarded>,
}

/// Looks after the weights; where it cannot, says why.
fn guard(
    root: &Root,
    topology: &Topology,
    policy: &KernelPolicy,
    measured: &Measured,
) -> std::result::Result<Guard, String> {
    let here = TrackerInputs {
        root,
        topology,
        ghz: None,
    };
    // The only one yet that counts the traffic of nodes.
    let tracker = (table::OPIUM.open)(&here)?;
    let backend = KernelBackend::new();
    backend.probe().map_err(|why| why.to_string())?;
    let watch = Watch::new(root, topology, process::id() as i32, tracker);
    let guarding = Guarding {
        near: measured.near.clone(),
        near_gbs: measured.near_gbs,
        weights: measured.weights.clone(),
        policy: policy.clone(),
    };
    Ok(Guard::new(watch, Box::new(backend), guarding))
}

fn of_firmware(resources: &Resources, nodes: &NodeSet) -> std::result::Result<Weights, String> {
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
    let bandwidths: std::result::Result<BTreeMap<NodeId, f64>, String> = bandwidths.collect();
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
