//! `hither topo`: the machine as its kernel describes it, what works on it, and what resource sets
//! come to on it.

mod json;
mod set;
mod text;

use crate::print;
use anyhow::Context;
use hither_linux::doctor::{self, Check};
use hither_linux::resources;
use hither_linux::root::Root;
use hither_linux::topology::Topology;
use std::path::PathBuf;
use std::process::ExitCode;

/// Show nodes, CPUs, caches, tiers and distances
#[derive(Debug, clap::Args)]
pub struct Command {
    /// Print JSON (hither.topo/1; with --set hither.topo-set/1)
    #[arg(long)]
    json: bool,
    /// Show which trackers and backends work here, and what would enable the others
    #[arg(long)]
    doctor: bool,
    /// Show what a resource set comes to, as in 'node:0 + near:gpu0 - cpus:0' (docs/resource-sets.md);
    /// repeatable
    #[arg(long, value_name = "EXPR", conflicts_with = "doctor")]
    set: Vec<String>,
    /// Read a captured machine: the folder that holds its sys and proc
    #[arg(long, value_name = "DIR", default_value = "/")]
    root: PathBuf,
}

impl Command {
    /// Runs it.
    ///
    /// # Errors
    /// A tree that cannot be read or contradicts itself, with place and remedy; a set that cannot
    /// be read or comes to nothing here.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let root = Root::new(&self.root);
        if !self.root.is_dir() {
            anyhow::bail!(
                "{}: is no folder; give --root the folder that holds a machine's sys",
                self.root.display()
            );
        }
        let topology = Topology::read(&root).context("reading the machine")?;
        if !self.set.is_empty() {
            let resources = resources::read(&root, &topology).context("reading the machine")?;
            let shown = set::resolve(&self.set, &resources)?;
            print::out(&match self.json {
                true => set::document(&shown),
                false => set::table(&shown),
            })?;
            return Ok(ExitCode::SUCCESS);
        }
        let checks: Option<Vec<Check>> = self.doctor.then(|| doctor::examine(&root));
        let printed = match (self.json, checks) {
            (true, checks) => json::document(&topology, checks.as_deref()),
            (false, Some(checks)) => text::doctor(&checks),
            (false, None) => text::topology(&topology),
        };
        print::out(&printed)?;
        Ok(ExitCode::SUCCESS)
    }
}
