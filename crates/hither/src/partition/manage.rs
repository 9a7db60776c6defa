//! `hither partition manage`: the global resource manager.

use super::{open, shift};
use crate::units::parse_rate;
use crate::{print, signal_status};
use anyhow::{Context, bail};
use hither_core::foreign::Foreign;
use hither_core::partition::manager::{Manager, PartitionReading, Proposal, Use};
use hither_core::partition::{Layout, REST};
use hither_core::rset::Resources;
use hither_linux::partition::kept::{self, Phase};
use hither_linux::partition::transfer::Order;
use hither_linux::partition::{self as machine, evacuate};
use hither_linux::proc::cpu_times::{self, Times};
use hither_linux::proc::pressure::{self, Pressure};
use hither_linux::root::Root;
use hither_linux::sys::{self, Signals};
use serde_json::json;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

/// Move nodes between partitions by goals
///
/// Looks every few seconds how much each owner uses of its CPUs and memory and how long it waits for
/// memory, and moves a node where one wants it and another can spare it, as the goals of the file
/// say. Every decision is told with its reason. Owners without a goal neither want nor give.
#[derive(Debug, clap::Args)]
pub struct Command {
    /// The file with the goals
    file: PathBuf,
    /// Tell what would be moved and move nothing
    #[arg(long)]
    dry_run: bool,
    /// Look so many times and end
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    looks: Option<u64>,
    /// Move at most so many bytes per second: 500M, 2G
    #[arg(long, value_name = "BYTES", value_parser = parse_rate)]
    rate: Option<u64>,
    /// Print one line of JSON (hither.partition-look/1) per look
    #[arg(long)]
    json: bool,
}

impl Command {
    /// Runs it until Ctrl-C (exit status 130), or as many looks as asked for.
    ///
    /// # Errors
    /// Bad input, missing rights, partitions that go away.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let root = Root::host();
        let text = super::text(&self.file)?;
        // What a dead one left is mended before the machine is read.
        drop(open()?);
        let resources = machine::machine(&root).context("reading the machine")?;
        let wish = super::read(&self.file, &text, &resources)?;
        if wish.goals.len() < 2 {
            bail!(
                "{}: fewer than two owners have a goal: give [partition.goal] to who may want a \
                 node, and to who may give one",
                self.file.shown()
            );
        }
        let signals =
            Signals::new(&[sys::SIGINT, sys::SIGTERM]).context("reading signals as data")?;
        let mut manager = Manager::new(&wish.goals, wish.pace.clone());
        let mut eyes = Eyes::new(root);
        let mut told = Vec::new();
        let mut looks = 0;
        loop {
            let interval_ns = wish.pace.interval_s.max(1).saturating_mul(1_000_000_000);
            let until = sys::monotonic_ns().saturating_add(interval_ns);
            while sys::monotonic_ns() < until {
                if let Some(arrived) = signals.take() {
                    return Ok(ExitCode::from(signal_status(arrived.signal)));
                }
                std::thread::sleep(Duration::from_millis(50));
            }
            let Some(kept) = kept::read(&machine::folder())? else {
                bail!("the partitions are gone: apply a file first");
            };
            if kept.phase != Phase::Running || kept.state.moving.is_some() {
                // Somebody else is at work.
                continue;
            }
            let resources = machine::machine(&eyes.root)?;
            let look = eyes.look(&kept.state.layout, &resources)?;
            let (proposal, lines) = manager.step(&kept.state.layout, &resources, &look);
            self.tell(&look, &lines, &proposal, &mut told)?;
            if let Some(proposal) = proposal {
                manager.moved(look.now_s);
                if !self.dry_run
                    && let Some(signal) = self.act(proposal, &signals)
                {
                    return Ok(ExitCode::from(signal_status(signal)));
                }
            }
            looks += 1;
            if self.looks.is_some_and(|most| looks >= most) {
                return Ok(ExitCode::SUCCESS);
            }
        }
    }

    fn tell(
        &self,
        look: &PartitionReading,
        lines: &[String],
        proposal: &Option<Proposal>,
        told: &mut Vec<String>,
    ) -> anyhow::Result<()> {
        if self.json {
            let uses: serde_json::Map<_, _> = look
                .uses
                .iter()
                .map(|(name, used)| {
                    let used = json!({"cpu": used.cpu, "stall": used.stall, "memory": used.memory});
                    (name.clone(), used)
                })
                .collect();
            let proposal = proposal.as_ref().map(|proposal| {
                json!({
                    "node": proposal.node.0,
                    "from": proposal.from,
                    "to": proposal.to,
                    "why": proposal.why,
                })
            });
            let line = json!({
                "schema": "hither.partition-look/1",
                "time_s": look.now_s,
                "uses": uses,
                "said": lines,
                "proposal": proposal,
                "dry_run": self.dry_run,
            });
            return Ok(print::out(&format!("{line}\n"))?);
        }
        // What was said at the last look is not said again.
        if *told != lines {
            print::report(&format!("{}\n", lines.join("\n")))?;
            *told = lines.to_vec();
        }
        if let Some(Proposal {
            node,
            from,
            to,
            why,
        }) = proposal
        {
            let verb = if self.dry_run { "would go" } else { "goes" };
            print::report(&format!("{node} {verb} from {from} to {to}: {why}\n"))?;
        }
        Ok(())
    }

    /// Moves a node; a signal that asked to end is told. What fails is tried again in time.
    fn act(&self, proposal: Proposal, signals: &Signals) -> Option<i32> {
        let order = Order {
            node: proposal.node,
            from: proposal.from,
            to: proposal.to,
            rate: self.rate,
        };
        let mut partitions = match open() {
            Ok(partitions) => partitions,
            Err(error) => {
                print::error(&error);
                return None;
            }
        };
        let (done, signal) = shift::carry_out(&mut partitions, &order, signals);
        print::err_lines(&match done {
            Ok(done) => format!(
                "{} is {}'s now: {} moved",
                order.node,
                order.to,
                print::size(done.tally.moved * 4)
            ),
            Err(failed) => shift::failure(order.node.0, &order.from, &failed),
        });
        signal
    }
}

/// What was seen at the last look.
struct Eyes {
    root: Root,
    cpus: BTreeMap<hither_core::ids::CpuId, Times>,
    stalls: BTreeMap<String, Pressure>,
    seen_ns: u64,
}

impl Eyes {
    fn new(root: Root) -> Self {
        let mut eyes = Self {
            root,
            cpus: BTreeMap::new(),
            stalls: BTreeMap::new(),
            seen_ns: sys::monotonic_ns(),
        };
        eyes.cpus = eyes.times().unwrap_or_default();
        eyes
    }

    fn times(&self) -> anyhow::Result<BTreeMap<hither_core::ids::CpuId, Times>> {
        Ok(self.root.parse("proc/stat", cpu_times::parse)?)
    }

    fn look(&mut self, layout: &Layout, machine: &Resources) -> anyhow::Result<PartitionReading> {
        let now_ns = sys::monotonic_ns();
        let elapsed_us = now_ns.saturating_sub(self.seen_ns) / 1000;
        self.seen_ns = now_ns;
        let times = self.times()?;
        let mut look = PartitionReading {
            now_s: now_ns as f64 / 1e9,
            minute: sys::local_minute(),
            ..PartitionReading::default()
        };
        for node in &machine.nodes {
            look.node_bytes
                .insert(node.id, node.total_bytes.saturating_sub(node.free_bytes));
        }
        for (name, set) in layout.owners() {
            let busy: f64 = set
                .cpus
                .iter()
                .filter_map(|cpu| {
                    let (before, after) = (self.cpus.get(&cpu)?, times.get(&cpu)?);
                    Some(1.0 - cpu_times::idle_share(*before, *after))
                })
                .sum();
            let (total, _) = machine.memory_bytes(&set.nodes);
            // Neither free nor of files, which could be dropped.
            let used = |node| {
                let memory = evacuate::memory(&self.root, node);
                let idle_kb = memory.free_kb.saturating_add(memory.file_kb);
                memory.total_kb.saturating_sub(idle_kb) * 1024
            };
            let used: u64 = set.nodes.iter().map(used).sum();
            look.uses.insert(
                name.to_owned(),
                Use {
                    cpu: busy / set.cpus.len().max(1) as f64,
                    stall: self.stall(name, elapsed_us)?,
                    memory: used as f64 / total.max(1) as f64,
                },
            );
        }
        self.cpus = times;
        Ok(look)
    }

    /// The share of the time in which some task of an owner waited for memory; not known of the
    /// rest, whose programs are in many groups.
    fn stall(&mut self, name: &str, elapsed_us: u64) -> anyhow::Result<Option<f64>> {
        if name == REST {
            return Ok(None);
        }
        let Some(now) = pressure::group(&self.root, &format!("hither.{name}"))? else {
            return Ok(None);
        };
        let before = self.stalls.insert(name.to_owned(), now);
        Ok(before.and_then(|before| now.some.share_since(&before.some, elapsed_us)))
    }
}
