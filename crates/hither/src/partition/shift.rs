//! `hither partition move`: a node from one owner to another.

use super::open;
use crate::output::Progress;
use crate::units::{parse_node, parse_rate, time};
use crate::{STATUS_BAD_INPUT, STATUS_FAILED, print, signal_status};
use anyhow::Context;
use hither_core::ids::NodeId;
use hither_linux::partition::Partitions;
use hither_linux::partition::evacuate::Tally;
use hither_linux::partition::transfer::{Done, Failed, Order, Step, TransferForecast};
use hither_linux::sys::{self, Signals};
use serde_json::json;
use std::process::ExitCode;
use std::time::Duration;

const SCHEMA: &str = "hither.partition-move/1";
/// A move that takes longer than this shows its progress, in ns.
const PROGRESS_AFTER_NS: u64 = 500_000_000;
/// Longest sleep between two looks at signals.
const MOST_SLEEP_NS: u64 = 50_000_000;

/// Move a node from one partition to another while programs run
///
/// Its CPUs leave first; then its pages are moved to the nodes that the old owner keeps, allocation
/// there is forbidden, what came in between is moved, and the new owner gets memory and CPUs. What
/// fails on the way is taken back, pages too. `rest` stands for what no partition has.
#[derive(Debug, clap::Args)]
pub struct Command {
    /// The node: 2 or node2
    #[arg(value_parser = parse_node)]
    node: u32,
    /// Its owner
    #[arg(long)]
    from: String,
    /// Who gets it
    #[arg(long)]
    to: String,
    /// Move at most so many bytes per second: 500M, 2G
    #[arg(long, value_name = "BYTES", value_parser = parse_rate)]
    rate: Option<u64>,
    /// Print what would be moved and change nothing
    #[arg(long)]
    dry_run: bool,
    /// Print JSON (hither.partition-move/1) instead of a sentence
    #[arg(long)]
    json: bool,
}

impl Command {
    /// Runs it.
    ///
    /// # Errors
    /// Bad input, missing rights.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let mut partitions = open()?;
        let order = Order {
            node: NodeId(self.node),
            from: self.from.clone(),
            to: self.to.clone(),
            rate: self.rate,
        };
        if self.dry_run {
            return self.tell_outlook(partitions.outlook(&order));
        }
        let start_ns = sys::monotonic_ns();
        let signals =
            Signals::new(&[sys::SIGINT, sys::SIGTERM]).context("reading signals as data")?;
        let (done, signal) = carry_out(&mut partitions, &order, &signals);
        let took_ns = sys::monotonic_ns().saturating_sub(start_ns);
        match &done {
            Ok(done) => self.tell_done(done, took_ns)?,
            Err(failed) => self.tell_failure(failed)?,
        }
        Ok(ExitCode::from(match (done, signal) {
            (Ok(_), _) => 0,
            (Err(Failed::Stopped), Some(signal)) => signal_status(signal),
            (Err(failed), _) => status(&failed),
        }))
    }

    fn tell_outlook(&self, outlook: Result<TransferForecast, Failed>) -> anyhow::Result<ExitCode> {
        let outlook = match outlook {
            Ok(outlook) => outlook,
            Err(failed) => {
                self.tell_failure(&failed)?;
                return Ok(ExitCode::from(status(&failed)));
            }
        };
        let targets: Vec<u32> = outlook.targets.iter().map(|node| node.0).collect();
        if self.json {
            let document = json!({
                "schema": SCHEMA,
                "dry_run": true,
                "node": self.node,
                "from": self.from,
                "to": self.to,
                "pages": outlook.pages,
                "processes": outlook.processes,
                "targets": targets,
                "room_pages": outlook.room,
            });
            print::out(&print::json(document))?;
        } else {
            let targets: Vec<String> = outlook.targets.iter().map(ToString::to_string).collect();
            print::report(&format!(
                "dry run, nothing was changed: {} of {} would leave node{} for {}, where there is \
                 room for {}\n",
                print::size(outlook.pages * 4),
                match outlook.processes {
                    1 => "1 process".to_owned(),
                    many => format!("{many} processes"),
                },
                self.node,
                targets.join(", "),
                print::size(outlook.room * 4),
            ))?;
        }
        Ok(ExitCode::SUCCESS)
    }

    fn tell_done(&self, done: &Done, took_ns: u64) -> anyhow::Result<()> {
        if self.json {
            let document = json!({
                "schema": SCHEMA,
                "dry_run": false,
                "node": self.node,
                "from": self.from,
                "to": self.to,
                "moved_pages": done.tally.moved,
                "passes": done.tally.passes,
                "left_to_kernel_pages": done.left_to_kernel,
                "file_pages_left": done.file_pages,
                "mover_ns": done.tally.duration_ns,
                "took_ns": took_ns,
            });
            return Ok(print::out(&print::json(document))?);
        }
        let mut text = format!(
            "node{} is {}'s now: {} moved in {}",
            self.node,
            self.to,
            print::size(done.tally.moved * 4),
            time(took_ns as f64),
        );
        if done.file_pages > 0 {
            text += &format!(
                "; {} of files stay on it until they are dropped",
                print::size(done.file_pages * 4)
            );
        }
        Ok(print::report(&(text + "\n"))?)
    }

    fn tell_failure(&self, failed: &Failed) -> anyhow::Result<()> {
        if self.json {
            let document = json!({
                "schema": SCHEMA,
                "node": self.node,
                "from": self.from,
                "to": self.to,
                "failed": failed.to_string(),
            });
            print::out(&print::json(document))?;
        }
        print::err_lines(&failure(self.node, &self.from, failed));
        Ok(())
    }
}

fn status(failed: &Failed) -> u8 {
    match failed {
        Failed::Refused(_) => STATUS_BAD_INPUT,
        _ => STATUS_FAILED,
    }
}

/// What became of a node that did not move, for a person.
pub fn failure(node: u32, from: &str, failed: &Failed) -> String {
    match failed {
        Failed::NotTakenBack(_) => format!("node{node} is neither here nor there: {failed}"),
        _ => format!("node{node} stays with {from}: {failed}"),
    }
}

/// Moves the node; a signal takes the move back and is told.
pub fn carry_out(
    partitions: &mut Partitions,
    order: &Order,
    signals: &Signals,
) -> (Result<Done, Failed>, Option<i32>) {
    let mut signal = None;
    let mut progress = Progress::after(PROGRESS_AFTER_NS);
    let done = partitions.transfer(order, &mut |step: Step, tally: &Tally, wait_ns| {
        if let Some(arrived) = signals.take() {
            signal = Some(arrived.signal);
        }
        let doing = match step {
            Step::Empty => "emptying",
            Step::Verify => "emptying what came in between",
            Step::Back => "taking it back",
        };
        progress.tell(format_args!(
            "{}: {doing}, pass {}, {} moved",
            order.node,
            tally.passes,
            print::size(tally.moved * 4)
        ));
        if signal.is_none() && wait_ns > 0 {
            std::thread::sleep(Duration::from_nanos(wait_ns.min(MOST_SLEEP_NS)));
        }
        signal.is_none()
    });
    progress.clear();
    (done, signal)
}
