//! `hither topo`: the machine as its kernel describes it, what works on it, and what resource sets
//! come to on it.

mod json;
mod set;
mod text;

use crate::terminal::Terminal;
use crate::{output, print};
use anyhow::Context;
use hither_core::foreign::Foreign;
use hither_core::rset::Resources;
use hither_linux::doctor::{self, Check, PolicyStanding};
use hither_linux::resources;
use hither_linux::root::Root;
use hither_linux::topology::Topology;
use hither_linux::topology::hwloc::HwlocMachine;
use std::path::PathBuf;
use std::process::ExitCode;

/// Show nodes, CPUs, caches, tiers and distances
#[derive(Debug, clap::Args)]
pub struct Command {
    /// Print JSON (hither.topo/1; with --set hither.topo-set/1)
    #[arg(long)]
    json: bool,
    /// Show which trackers and backends work here, what would enable the others, and on which
    /// evidence each policy would stand
    #[arg(long)]
    doctor: bool,
    /// Show what a resource set comes to, as in 'node:0 + near:gpu0 - cpus:0' (docs/resource-sets.md);
    /// repeatable
    #[arg(
        long,
        value_name = "EXPR",
        conflicts_with = "doctor",
        allow_negative_numbers = true
    )]
    set: Vec<String>,
    /// Read a captured machine: the folder that holds its sys and proc
    #[arg(long, value_name = "DIR", default_value = "/")]
    root: PathBuf,
    /// Read a machine from a file of hwloc 2 or 3 (lstopo FILE.xml; docs/hwloc.md)
    #[arg(long, value_name = "FILE.xml", conflicts_with_all = ["root", "doctor"])]
    from: Option<PathBuf>,
    /// Write the machine as a file of hwloc 2, for lstopo and others; - is standard output
    #[arg(long, value_name = "FILE.xml", conflicts_with_all = ["json", "doctor", "set"])]
    hwloc: Option<PathBuf>,
}

impl Command {
    /// Runs it.
    ///
    /// # Errors
    /// A tree or file that cannot be read or contradicts itself, with place and remedy; a set that
    /// cannot be read or comes to nothing here.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        if let Some(path) = &self.hwloc {
            let machine = self.machine()?;
            let written = machine.to_hwloc();
            match output::is_standard_output(path) {
                true => print::out(&written.text)?,
                false => output::write("--hwloc", path, &written.text)?,
            }
            // What the machine's source did not tell is missing in the file too.
            let notes = [&machine.topology.notes[..], &written.left_out[..]].concat();
            print::err_lines(&notes.join("\n"));
        } else if !self.set.is_empty() {
            let shown = set::resolve(&self.set, &self.resources()?)?;
            match self.json {
                true => print::out(&set::document(&shown))?,
                false => print::report(&set::table(&shown, Terminal::of_output()))?,
            }
        } else {
            let topology = self.topology()?;
            let root = Root::new(&self.root);
            let checks: Option<(Vec<Check>, Vec<PolicyStanding>)> = self.doctor.then(|| {
                let checks = doctor::examine(&root);
                let standings = doctor::standings(&root, &checks);
                (checks, standings)
            });
            let terminal = Terminal::of_output();
            match (self.json, checks) {
                (true, checks) => print::out(&json::document(&topology, checks.as_ref()))?,
                (false, Some((checks, standings))) => {
                    print::report(&text::doctor(&checks, &standings, terminal))?;
                }
                (false, None) => print::report(&text::topology(&topology, terminal))?,
            }
        }
        Ok(ExitCode::SUCCESS)
    }

    /// Of a tree no more is read than is shown.
    fn topology(&self) -> anyhow::Result<Topology> {
        match &self.from {
            Some(_) => Ok(self.machine()?.topology),
            None => Topology::read(&self.root()?).context("reading the machine"),
        }
    }

    fn resources(&self) -> anyhow::Result<Resources> {
        match &self.from {
            Some(_) => Ok(self.machine()?.resources),
            None => {
                resources::read(&self.root()?, &self.topology()?).context("reading the machine")
            }
        }
    }

    fn machine(&self) -> anyhow::Result<HwlocMachine> {
        match &self.from {
            Some(path) => HwlocMachine::read_hwloc(path),
            None => HwlocMachine::read(&self.root()?),
        }
        .context("reading the machine")
    }

    fn root(&self) -> anyhow::Result<Root> {
        if !self.root.is_dir() {
            anyhow::bail!(
                "{}: is no folder; give --root the folder that holds a machine's sys",
                self.root.shown()
            );
        }
        Ok(Root::new(&self.root))
    }
}
