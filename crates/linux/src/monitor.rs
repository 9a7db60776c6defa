//! A program's look at its own memory: who asks for which part of it, and a wait until that is much. After the interface
//! of the ccNUMA paper's monitor, Opium (Brock et al. 2001, section 2): areas with a granularity and types of
//! transactions, counters over sets of areas, thresholds.
//!
//! Two rungs give the same calls. The laboratory's *device* counts every transaction; it belongs to root, as it counts
//! the whole machine's memory by physical address, and what a program gets of it are its own addresses alone. Else the
//! processor's *samples* (a PMU, or the device where it may tell no more than one) are scaled by what each stands for:
//! [`Monitor::limits`] says in words what that leaves out.
//!
//! One thread uses a monitor at a time; whoever waits polls. The device has no interrupt (`ivshmem-plain`), so that a
//! wait is a look every [`LOOK`], of some ten instructions.

mod counted;
mod layout;
mod sampled;

use crate::error::{Error, Result};
use crate::opium::Totals;
use crate::root::Root;
use crate::topology::Topology;
use counted::Counted;
use hither_core::ids::NodeId;
use hither_core::opium::{MAX_NODES, SECONDARIES, filter, transaction};
use sampled::Sampled;
use std::collections::VecDeque;
use std::ops::Range;
use std::time::{Duration, Instant};

/// Time between two looks of who waits.
pub const LOOK: Duration = Duration::from_micros(500);
/// Areas at most: each takes one filter at least.
const MOST_AREAS: usize = hither_core::opium::FILTERS;
/// Largest granularity.
pub const MOST_GRAIN: u64 = 1 << filter::MAX_SHIFT;
/// Least granularity of the interface; the machine's line is the least where it is longer.
pub const LEAST_GRAIN: u64 = 32;
const PLACE: &str = "monitor";

/// Memory that is watched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WatchedArea {
    /// Its addresses.
    pub addresses: Range<u64>,
    /// Bytes that are counted together, a power of two of 32 (or the line, where that is longer) to 2 MiB.
    pub grain_bytes: u64,
    /// Bits of `hither_core::opium::transaction`.
    pub types: u32,
    /// Bits of `hither_core::opium::filter`: directions as seen from `node`; 0 is all.
    pub directions: u32,
    /// The node that directions are seen from; `None` is any.
    pub node: Option<NodeId>,
    /// Count of one grain and one requesting node that is told of; 0 is none.
    pub threshold: u32,
}

/// A counter over a set of areas.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sum {
    /// The areas, by their numbers.
    pub areas: Vec<usize>,
    /// Of what these count, what it counts.
    pub types: u32,
    /// Count of all nodes together that is told of; 0 is none.
    pub threshold: u64,
}

/// A threshold that was reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reached {
    /// By which.
    pub what: What,
    /// Node of whoever asked last.
    pub node: NodeId,
}

/// What reached a threshold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// A grain of an area.
    Grain {
        /// The area.
        area: usize,
        /// The grain, from 0 on.
        grain: usize,
    },
    /// A sum.
    Sum(usize),
}

/// Counts of an area.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// By grain, and within it by node as [`Monitor::nodes`] lists them.
    pub counts: Vec<u64>,
    /// Pages that were not in memory when counting started, or have moved since: what was asked of them there is not
    /// told.
    pub missed_pages: u64,
}

/// Where counts come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// The device, else samples.
    Best,
    /// The device alone.
    Device,
    /// Samples alone.
    Samples,
}

enum Source {
    Device(Box<Counted>),
    Samples(Box<Sampled>),
}

/// Areas, sums, and what counts them.
pub struct Monitor {
    source: Source,
    areas: Vec<WatchedArea>,
    sums: Vec<Sum>,
    nodes: Vec<NodeId>,
    is_running: bool,
    was_started: bool,
    reached: VecDeque<Reached>,
}

fn refuse(reason: impl Into<String>, remedy: &str) -> Error {
    Error::new(PLACE, reason, remedy)
}

impl Monitor {
    /// Makes one that watches nothing yet.
    ///
    /// # Errors
    /// Nothing here counts: each source with its reason.
    pub fn open(root: &Root, wanted: Wanted) -> Result<Self> {
        let device = match wanted {
            Wanted::Samples => Err(refuse("was not asked for", "ask for the device")),
            _ => Counted::open(root),
        };
        let (source, nodes) = match device {
            Ok(counted) => {
                let nodes = counted.nodes().to_vec();
                (Source::Device(Box::new(counted)), nodes)
            }
            Err(error) if wanted == Wanted::Device => return Err(error),
            Err(error) => {
                let topology = Topology::read(root)?;
                let nodes = topology.nodes.iter().map(|node| node.id).collect();
                let sampled = Sampled::open(root, &topology).map_err(|none| {
                    let text = format!(
                        "nothing counts here: no device ({}; {}), {none}",
                        error.reason, error.remedy
                    );
                    refuse(
                        text,
                        "`hither topo --doctor` says what would enable a source of samples",
                    )
                })?;
                (Source::Samples(Box::new(sampled)), nodes)
            }
        };
        Ok(Self {
            source,
            areas: Vec::new(),
            sums: Vec::new(),
            nodes,
            is_running: false,
            was_started: false,
            reached: VecDeque::new(),
        })
    }

    /// The kernel's numbers of the nodes that counts are told of, in their order.
    #[must_use]
    pub fn nodes(&self) -> &[NodeId] {
        &self.nodes
    }

    /// What counts, and what it leaves out: a sentence.
    #[must_use]
    pub fn limits(&self) -> String {
        match &self.source {
            Source::Device(counted) => format!(
                "device: every transaction is counted, from {} bytes on",
                counted.line_bytes()
            ),
            Source::Samples(sampled) => sampled.limits(),
        }
    }

    /// Is every transaction counted? Else samples are scaled.
    #[must_use]
    pub fn is_exact(&self) -> bool {
        matches!(self.source, Source::Device(_))
    }

    /// Adds an area; its number.
    ///
    /// # Errors
    /// What is wrong with it, what the source cannot tell, or counting runs.
    pub fn add_area(&mut self, area: WatchedArea) -> Result<usize> {
        self.check_stopped()?;
        if self.areas.len() == MOST_AREAS {
            return Err(refuse(
                format!("there are {MOST_AREAS} areas"),
                "make one of several that lie side by side",
            ));
        }
        let line = match &self.source {
            Source::Device(counted) => u64::from(counted.line_bytes()),
            Source::Samples(_) => LEAST_GRAIN,
        };
        check_area(&area, line, &self.nodes)?;
        if let Source::Samples(_) = &self.source {
            sampled::check(&area)?;
        }
        self.areas.push(area);
        Ok(self.areas.len() - 1)
    }

    /// Adds a counter over areas; its number.
    ///
    /// # Errors
    /// There is no such area or type, there are 16, or counting runs.
    pub fn add_sum(&mut self, sum: Sum) -> Result<usize> {
        self.check_stopped()?;
        if self.sums.len() == SECONDARIES {
            return Err(refuse(
                format!("there are {SECONDARIES} sums"),
                "add up what areas count",
            ));
        }
        check_types(sum.types)?;
        if let Some(area) = sum.areas.iter().find(|&&area| area >= self.areas.len()) {
            return Err(refuse(
                format!(
                    "area {area} of a sum is not there: there are {}",
                    self.areas.len()
                ),
                "add the area first",
            ));
        }
        if sum.areas.is_empty() {
            return Err(refuse("a sum has no areas", "name one at least"));
        }
        self.sums.push(sum);
        Ok(self.sums.len() - 1)
    }

    fn check_stopped(&self) -> Result<()> {
        match self.is_running {
            true => Err(refuse("it counts", "stop it first")),
            false => Ok(()),
        }
    }

    /// Begins to count, all from 0 on. Pages count where they are now: a page that moves or comes into memory later is
    /// counted from the next start on.
    ///
    /// # Errors
    /// There is nothing to count, it counts already, or the areas are in too many pieces for the device.
    pub fn start(&mut self) -> Result<()> {
        self.check_stopped()?;
        if self.areas.is_empty() {
            return Err(refuse("it watches nothing", "add an area first"));
        }
        self.reached.clear();
        match &mut self.source {
            Source::Device(counted) => counted.start(&self.areas, &self.sums)?,
            Source::Samples(sampled) => sampled.start(&self.areas, &self.sums)?,
        }
        self.is_running = true;
        self.was_started = true;
        Ok(())
    }

    /// Ends counting. What was counted can be read until the next start.
    ///
    /// # Errors
    /// Samples could not be read.
    pub fn stop(&mut self) -> Result<()> {
        if std::mem::take(&mut self.is_running) {
            match &mut self.source {
                Source::Device(counted) => counted.stop(),
                Source::Samples(sampled) => sampled.stop(&self.areas, &self.sums)?,
            }
        }
        Ok(())
    }

    /// What was counted of an area since the last start.
    ///
    /// # Errors
    /// There is no such area, or counting never started.
    pub fn read_area(&mut self, area: usize) -> Result<Counts> {
        self.check_read(area, self.areas.len(), "area")?;
        match &mut self.source {
            Source::Device(counted) => Ok(counted.read_area(&self.areas, area)),
            Source::Samples(sampled) => {
                if self.is_running {
                    sampled.look(&self.areas, &self.sums)?;
                }
                Ok(sampled.read_area(area))
            }
        }
    }

    /// What a sum came to since the last start, by node as [`Monitor::nodes`] lists them.
    ///
    /// # Errors
    /// There is no such sum, or counting never started.
    pub fn read_sum(&mut self, sum: usize) -> Result<Vec<u64>> {
        self.check_read(sum, self.sums.len(), "sum")?;
        match &mut self.source {
            Source::Device(counted) => Ok(counted.read_sum(sum)),
            Source::Samples(sampled) => {
                if self.is_running {
                    sampled.look(&self.areas, &self.sums)?;
                }
                Ok(sampled.read_sum(sum))
            }
        }
    }

    fn check_read(&self, number: usize, count: usize, what: &str) -> Result<()> {
        if number >= count {
            return Err(refuse(
                format!("{what} {number} is not there: there are {count}"),
                "pass a number that adding one returned",
            ));
        }
        match self.was_started {
            true => Ok(()),
            false => Err(refuse("it has not counted yet", "start it first")),
        }
    }

    /// The next threshold that was reached, if one was. Never waits.
    ///
    /// # Errors
    /// Samples could not be read.
    pub fn poll(&mut self) -> Result<Option<Reached>> {
        if self.is_running {
            match &mut self.source {
                Source::Device(counted) => counted.look(&mut self.reached),
                Source::Samples(sampled) => {
                    let found = sampled.look(&self.areas, &self.sums)?;
                    self.reached.extend(found);
                }
            }
        }
        Ok(self.reached.pop_front())
    }

    /// How long who waits sleeps between two looks: samples come less often than counts.
    #[must_use]
    pub fn pause(&self) -> Duration {
        match &self.source {
            Source::Device(_) => LOOK,
            Source::Samples(_) => sampled::LOOK,
        }
    }

    /// Waits until a threshold is reached, at most so long; `None` after that time.
    ///
    /// # Errors
    /// Samples could not be read, or it does not count, so that none would ever be.
    pub fn wait(&mut self, timeout: Duration) -> Result<Option<Reached>> {
        let end = Instant::now().checked_add(timeout);
        loop {
            if let Some(reached) = self.poll()? {
                return Ok(Some(reached));
            }
            if !self.is_running {
                return Err(refuse("it does not count", "start it before waiting"));
            }
            let left = end.map(|end| end.saturating_duration_since(Instant::now()));
            match left {
                Some(Duration::ZERO) => return Ok(None),
                left => std::thread::sleep(self.pause().min(left.unwrap_or(Duration::MAX))),
            }
        }
    }

    /// Does it count?
    #[must_use]
    pub fn is_running(&self) -> bool {
        self.is_running
    }

    /// What the whole machine did since the last start: packets between nodes, floating-point operations. `None` where
    /// only samples tell.
    #[must_use]
    pub fn totals(&self) -> Option<Totals> {
        match &self.source {
            Source::Device(counted) => Some(counted.totals()),
            Source::Samples(_) => None,
        }
    }
}

impl Drop for Monitor {
    fn drop(&mut self) {
        let _ = self.stop();
    }
}

fn check_types(types: u32) -> Result<()> {
    if types == 0 || types & !transaction::ALL != 0 {
        return Err(refuse(
            format!("types are {types:#x}"),
            "give at least one of the known ones, and no other bits",
        ));
    }
    Ok(())
}

fn check_area(area: &WatchedArea, line_bytes: u64, nodes: &[NodeId]) -> Result<()> {
    let least = line_bytes.max(LEAST_GRAIN);
    let grain = area.grain_bytes;
    if !grain.is_power_of_two() || !(least..=MOST_GRAIN).contains(&grain) {
        return Err(refuse(
            format!("granularity is {grain} bytes"),
            &format!("give a power of two of {least} to {MOST_GRAIN}"),
        ));
    }
    let Range { start, end } = area.addresses;
    if start >= end || !start.is_multiple_of(least) || !end.is_multiple_of(least) || end > 1 << 47 {
        return Err(refuse(
            format!("the area {start:#x}-{end:#x} is empty, no program's, or not of whole lines"),
            &format!("give multiples of {least}"),
        ));
    }
    check_types(area.types)?;
    if area.directions & !(filter::REMOTE | filter::LOCAL) != 0 {
        return Err(refuse(
            format!("directions are {:#x}", area.directions),
            "give inbound, outbound and local alone",
        ));
    }
    if let Some(node) = area.node.filter(|node| !nodes.contains(node)) {
        return Err(refuse(
            format!("there is no {node}"),
            "name a node of this machine",
        ));
    }
    Ok(())
}

/// The device's nodes are at most so many.
const _: () = assert!(MAX_NODES <= 8);

#[cfg(test)]
mod tests;
