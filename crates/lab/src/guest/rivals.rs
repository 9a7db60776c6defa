//! What a policy of Linux needs of the guest's kernel for the length of a run: settings, weights of nodes,
//! DAMON's schemes. Everything is put back after the run, so that the next one finds the same kernel.

use super::damon::Schemes;
use super::{Result, doing};
use crate::policies::{self, BALANCING, BASE, Launch};
use crate::protocol::Job;
use hither_core::bind::Weights;
use hither_core::foreign::Foreign;
use hither_core::ids::NodeId;
use hither_core::set::NodeSet;
use hither_core::tiers::Tiers;
use hither_linux::bind::weights::Table;
use hither_linux::restore::{self, Setting};
use hither_linux::root::Root;
use hither_linux::topology::Topology;
use hither_linux::watch::empty_snapshot;
use std::collections::BTreeMap;

/// The kernel's weights of nodes.
const WEIGHTS: &str = "sys/kernel/mm/mempolicy/weighted_interleave";

/// What holds while it lives; [`Held::put_back`] ends it.
#[derive(Debug, Default)]
pub struct Held {
    before: Vec<Setting>,
    weights: Option<Table>,
    schemes: Option<Schemes>,
}

/// Refuses policies that this kernel or machine cannot have, before anything runs.
pub fn check(job: &Job, root: &Root) -> Result<()> {
    let mut names: Vec<&str> = job.runs.iter().map(|run| run.policy.as_str()).collect();
    names.sort_unstable();
    names.dedup();
    for policy in names.into_iter().filter_map(policies::of_linux) {
        if matches!(policy.launch, Launch::FastFirst | Launch::Oracle) {
            fast_nodes(root)?;
        }
        let weights = (policy.launch == Launch::Weighted).then_some(WEIGHTS);
        let schemes = (policy.launch == Launch::Damon).then_some(super::damon::FOLDER);
        let files = policy.settings.iter().map(|(path, _)| *path);
        for path in files.chain(weights).chain(schemes) {
            if !root.path(path).exists() && !is_needless(path, root) {
                return Err(lacking(policy.name, path, root));
            }
        }
        if policy.launch == Launch::Damon {
            Schemes::check(root).map_err(|reason| format!("policy {}: {reason}", policy.name))?;
        }
    }
    Ok(())
}

fn lacking(policy: &str, path: &str, root: &Root) -> String {
    format!(
        "policy {policy}: this kernel has no {}; leave the policy out, or choose another --kernel",
        root.path(path).shown()
    )
}

/// A machine of one node has no balancing, and nothing to balance.
fn is_needless(path: &str, root: &Root) -> bool {
    path == BALANCING && memory_nodes(root).is_ok_and(|nodes| nodes.len() < 2)
}

/// Nodes with memory.
pub fn memory_nodes(root: &Root) -> Result<NodeSet> {
    // A line such as `0-3`.
    let path = "sys/devices/system/node/has_memory";
    let text = root.text(path).map_err(|error| error.to_string())?;
    text.trim()
        .parse()
        .map_err(doing(format!("reading {path}")))
}

/// Nodes of the fastest memory tier, where there is a slower one.
pub fn fast_nodes(root: &Root) -> Result<NodeSet> {
    let topology = Topology::read(root).map_err(|error| error.to_string())?;
    let nodes = empty_snapshot(&topology).nodes;
    let tiers = Tiers::of(&nodes);
    if !tiers.are_several() {
        return Err("this machine has one memory tier; use a machine file with two".to_owned());
    }
    Ok(tiers.nodes(0).map(|node| nodes[node].id).collect())
}

/// Sets everything up for a run under a policy.
pub fn hold(name: &str, root: &Root) -> Result<Held> {
    let policy = policies::of_linux(name);
    let own = policy.map_or(&[][..], |policy| policy.settings);
    let base = BASE
        .iter()
        .filter(|(path, _)| own.iter().all(|(other, _)| other != path));
    let mut held = Held::default();
    for (path, value) in base.chain(own) {
        if is_needless(path, root) {
            continue;
        }
        let setting = Setting::of(root, path).map_err(|error| error.to_string())?;
        held.before
            .push(setting.ok_or_else(|| lacking(name, path, root))?);
        restore::write(root, path, value).map_err(|error| error.to_string())?;
    }
    match policy.map(|policy| policy.launch) {
        Some(Launch::Weighted) => held.weights = Some(weigh(root)?),
        Some(Launch::Damon) => held.schemes = Some(Schemes::start(root)?),
        _ => {}
    }
    Ok(held)
}

impl Held {
    /// Puts back what was there.
    pub fn put_back(self, root: &Root) -> Result<()> {
        if let Some(schemes) = self.schemes {
            schemes.stop(root)?;
        }
        if let Some(weights) = self.weights {
            weights.put_back().map_err(|error| error.to_string())?;
        }
        for setting in self.before.iter().rev() {
            setting.put_back(root).map_err(|error| error.to_string())?;
        }
        Ok(())
    }
}

/// Gives each node a weight in proportion to the read bandwidth that firmware tells of it.
fn weigh(root: &Root) -> Result<Table> {
    let nodes = memory_nodes(root)?;
    let topology = Topology::read(root).map_err(|error| error.to_string())?;
    let meant = topology.nodes.iter().filter(|node| nodes.contains(node.id));
    let bandwidths = meant.map(|node| {
        let gbs = node.rated().read_gbs;
        let why = || format!("firmware tells no bandwidth of {} (HMAT)", node.id);
        Ok((node.id, gbs.ok_or_else(why)?))
    });
    let bandwidths: BTreeMap<NodeId, f64> = bandwidths.collect::<Result<_>>()?;
    let folder = restore::runtime_folder().map_err(|error| error.to_string())?;
    let (table, _) = Table::take(root, &folder, &nodes).map_err(|error| error.to_string())?;
    table
        .set(&Weights::of_bandwidths(&bandwidths))
        .map_err(|error| error.to_string())?;
    Ok(table)
}
