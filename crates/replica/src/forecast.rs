//! What replication costs and what it gains once everything is warm, before it is done. Pure.
//!
//! Problem: a gain that is measured against a run whose pages are not placed yet is none. In llama.cpp's issue
//! 27986 mirrored weights won until plain first touch had run as long. So the gain is that of the *steady state*:
//! copies are there, and the run without them has its pages where first touch leaves them.
//!
//! Mechanism: the time that one pass of all CPUs over the array takes under four placements. A CPU draws what its
//! bytes in flight allow at the latency it sees (Little's law: `stream * local latency / latency`); all draw
//! together until a controller or a link is full, whatever is fullest; the slowest CPU ends the pass. Computing
//! time is added. A pass with copies pays for copying what was written meanwhile.
//!
//! Declined, with a sentence: one node with CPUs; data that each node reads a part of its own (first touch, once
//! warm, has that already); writes that cost more than reads save; a gain below [`LEAST_GAIN`]; more memory than
//! there is.
//!
//! What it leaves out: queueing below full load, caches that hold the array, other programs. It is an estimate;
//! the report tells what came of it.

use crate::rule::{ByteCosts, megabytes};
use hither_core::machine::Machine;
use hither_core::size::decimals;

/// A gain below this is within what the estimate leaves out.
pub const LEAST_GAIN: f64 = 0.04;

/// What of a machine matters here.
#[derive(Clone, Debug, PartialEq)]
pub struct Figures {
    /// CPUs of each node, by position.
    pub cpus: Vec<usize>,
    /// `latencies_ns[cpu's node][memory's node]`.
    pub latencies_ns: Vec<Vec<f64>>,
    /// What a CPU reads of its own node's memory, GB/s.
    pub stream_gbs: f64,
    /// What each node's controller delivers, GB/s; infinite where unknown.
    pub controllers_gbs: Vec<f64>,
    /// What links deliver: `(from memory node, to CPU node, GB/s)` for each directed pair that shares nothing
    /// with others; links that pairs share are in `links`.
    pub links: Vec<f64>,
    /// `routes[memory's node][cpu's node]`: shares of the traffic on links, by position in `links`.
    pub routes: Vec<Vec<Vec<(usize, f64)>>>,
    /// Bytes of memory that each node has for copies; empty where unknown.
    pub free_bytes: Vec<u64>,
}

impl Figures {
    /// Of a machine description.
    #[must_use]
    pub fn of_machine(machine: &Machine) -> Self {
        let count = machine.nodes.len();
        let route = |memory: usize, cpu: usize| -> Vec<(usize, f64)> {
            let routes = machine.routes[memory][cpu].iter();
            routes
                .flat_map(|route| route.links.iter().map(|&link| (link, route.share)))
                .collect()
        };
        Self {
            cpus: machine.nodes.iter().map(|node| node.cpus.len()).collect(),
            latencies_ns: (0..count)
                .map(|cpu| {
                    (0..count)
                        .map(|at| machine.idle_latency_ns(cpu, at))
                        .collect()
                })
                .collect(),
            stream_gbs: machine.cpu.stream_gbs,
            controllers_gbs: machine
                .nodes
                .iter()
                .map(|node| node.capacity.at(1.0))
                .collect(),
            links: machine
                .links
                .iter()
                .map(|link| link.gbs / link.overhead)
                .collect(),
            routes: (0..count)
                .map(|memory| (0..count).map(|cpu| route(memory, cpu)).collect())
                .collect(),
            free_bytes: machine
                .nodes
                .iter()
                .map(|node| node.memory_mb << 20)
                .collect(),
        }
    }

    /// Of distances alone (SLIT; 10 is local and stands for 100 ns): controllers and links are unknown, so that
    /// only latency counts. A lower bound of the gain.
    #[must_use]
    pub fn of_distances(cpus: Vec<usize>, distances: &[Vec<u32>]) -> Self {
        let count = cpus.len();
        Self {
            latencies_ns: distances
                .iter()
                .map(|row| row.iter().map(|&one| f64::from(one) * 10.0).collect())
                .collect(),
            stream_gbs: 10.0,
            controllers_gbs: vec![f64::INFINITY; count],
            links: Vec::new(),
            routes: vec![vec![Vec::new(); count]; count],
            free_bytes: Vec::new(),
            cpus,
        }
    }

    /// Costs of bytes for [`crate::rule`]: of one CPU, means over pairs of nodes.
    #[must_use]
    pub fn byte_costs(&self) -> ByteCosts {
        let readers = self.readers();
        let (mut local, mut remote, mut pairs) = (0.0, 0.0, 0.0f64);
        for &cpu in &readers {
            local += 1.0 / self.stream_gbs;
            for &at in readers.iter().filter(|at| **at != cpu) {
                remote += self.latency(cpu, at) / self.latency(cpu, cpu) / self.stream_gbs;
                pairs += 1.0;
            }
        }
        let local_ns = local / readers.len().max(1) as f64;
        let remote_ns = if pairs > 0.0 {
            remote / pairs
        } else {
            local_ns
        };
        ByteCosts {
            local_ns,
            remote_ns,
            copy_ns: remote_ns + local_ns,
        }
    }

    /// Nodes with CPUs.
    fn readers(&self) -> Vec<usize> {
        (0..self.cpus.len())
            .filter(|&node| self.cpus[node] > 0)
            .collect()
    }

    fn latency(&self, cpu: usize, memory: usize) -> f64 {
        self.latencies_ns[cpu][memory].max(1.0)
    }

    /// Seconds that one pass takes where `share(cpu's node, memory's node)` of the bytes that a CPU reads come
    /// from there.
    fn pass_seconds(&self, demand: &CopyDemand, share: impl Fn(usize, usize) -> f64) -> f64 {
        let readers = self.readers();
        let mut controllers = vec![0.0; self.cpus.len()];
        let mut links = vec![0.0; self.links.len()];
        let mut slowest = f64::INFINITY;
        for &cpu in &readers {
            let all = 0..self.cpus.len();
            let latency: f64 = all
                .clone()
                .map(|at| share(cpu, at) * self.latency(cpu, at))
                .sum();
            let memory_ns = latency / self.latency(cpu, cpu) / self.stream_gbs;
            let gbs = 1.0 / (memory_ns + demand.compute_ns_per_byte);
            slowest = slowest.min(gbs);
            for at in all {
                let drawn = gbs * self.cpus[cpu] as f64 * share(cpu, at);
                controllers[at] += drawn;
                for &(link, part) in &self.routes[at][cpu] {
                    links[link] += drawn * part;
                }
            }
        }
        let full = controllers.iter().zip(&self.controllers_gbs);
        let full = full.chain(links.iter().zip(&self.links));
        let fullest = full.map(|(drawn, most)| drawn / most).fold(1.0, f64::max);
        demand.bytes as f64 * fullest / slowest / 1e9
    }
}

/// Who reads what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopySharing {
    /// Every node reads everything.
    Shared,
    /// Each node reads a part that no other reads.
    Partitioned,
}

/// How the program uses the array.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CopyDemand {
    /// Its length.
    pub bytes: u64,
    /// Of it, what is read from two nodes or more: partial copies need no more.
    pub shared_bytes: u64,
    /// Who reads what.
    pub sharing: CopySharing,
    /// Bytes written per byte that one CPU reads.
    pub written_per_read: f64,
    /// What a CPU computes for a byte, in ns.
    pub compute_ns_per_byte: f64,
    /// Position of the node where first touch leaves the array: that of the thread that fills it.
    pub home: usize,
}

/// What is to be expected.
#[derive(Clone, Debug, PartialEq)]
pub struct Forecast {
    /// Memory for copies; a second master as large as the array where it is written.
    pub copy_bytes: u64,
    /// See above.
    pub second_master_bytes: u64,
    /// How long building takes.
    pub build_seconds: f64,
    /// How much faster a pass is with copies than with warmed first touch: 0.5 is half as fast again.
    pub gain: f64,
    /// The same against pages spread over all nodes.
    pub gain_over_interleave: f64,
    /// Passes over the array after which building has paid; `None` where it never does.
    pub pays_after_passes: Option<f64>,
    /// Is it declined?
    pub is_declined: bool,
    /// Why, or what is to be expected, in one sentence.
    pub sentence: String,
}

/// Forecasts; `figures` of as many nodes as the program uses.
#[must_use]
pub fn forecast(figures: &Figures, demand: &CopyDemand) -> Forecast {
    let readers = figures.readers();
    let count = readers.len().max(1);
    let home = demand.home.min(figures.cpus.len().saturating_sub(1));
    let is_partitioned = demand.sharing == CopySharing::Partitioned;
    let local = |cpu: usize, at: usize| f64::from(u8::from(cpu == at));
    let at_home = |_: usize, at: usize| f64::from(u8::from(at == home));
    let spread = |_: usize, at: usize| f64::from(u8::from(readers.contains(&at))) / count as f64;
    // What is read by one node alone is there once first touch is warm.
    let plain = match is_partitioned {
        true => figures.pass_seconds(demand, local),
        false => figures.pass_seconds(demand, at_home),
    };
    let interleaved = figures.pass_seconds(demand, spread);
    let costs = figures.byte_costs();
    let copies = readers.iter().filter(|&&node| node != home).count() as u64;
    let copy_bytes = demand.shared_bytes.min(demand.bytes) * copies;
    let build_seconds = build_seconds(figures, home, copy_bytes / copies.max(1));
    // Places copy at the same time, each what was written.
    let recopy_seconds = demand.written_per_read * demand.bytes as f64 * costs.copy_ns / 1e9;
    let replicated = figures.pass_seconds(demand, local) + recopy_seconds;
    let gain = plain / replicated - 1.0;
    let has_room = |node: &usize| {
        let free = figures.free_bytes.get(*node);
        free.is_none_or(|&free| free >= copy_bytes / copies.max(1))
    };
    let full = readers
        .iter()
        .find(|node| **node != home && !has_room(node));
    let reason = if copies == 0 {
        Some("one node has all CPUs and the array: nothing is remote".to_owned())
    } else if is_partitioned {
        Some(
            "each node reads a part of its own: first touch, once warm, has it there already"
                .to_owned(),
        )
    } else if let Some(node) = full {
        Some(format!(
            "node at position {node} has no room for {}",
            megabytes(copy_bytes / copies)
        ))
    } else if gain < LEAST_GAIN
        && recopy_seconds * (1.0 + LEAST_GAIN) >= plain - replicated + recopy_seconds
    {
        Some("copying what is written costs what local reads save".to_owned())
    } else if gain < LEAST_GAIN {
        Some(format!(
            "a warmed first-touch run is as fast within {} %",
            decimals(LEAST_GAIN * 100.0, 0)
        ))
    } else {
        None
    };
    let sentence = match &reason {
        Some(reason) => format!("replication is declined: {reason}"),
        None => format!(
            "replication takes {} more memory and {} s to build, and makes passes {} % faster than warmed first \
             touch, {} % faster than interleaving",
            megabytes(copy_bytes),
            decimals(build_seconds, 2),
            decimals(gain * 100.0, 0),
            decimals((interleaved / replicated - 1.0) * 100.0, 0)
        ),
    };
    Forecast {
        copy_bytes,
        second_master_bytes: if demand.written_per_read > 0.0 {
            demand.bytes
        } else {
            0
        },
        build_seconds,
        gain,
        gain_over_interleave: interleaved / replicated - 1.0,
        pays_after_passes: (plain > replicated).then(|| build_seconds / (plain - replicated)),
        is_declined: reason.is_some(),
        sentence,
    }
}

/// All places at once copy so many bytes each: until the home's controller, a link or the copying CPUs are full.
fn build_seconds(figures: &Figures, home: usize, bytes: u64) -> f64 {
    /// As many CPUs of a place copy.
    const COPIERS: usize = 4;
    let readers = figures.readers();
    let (mut drawn_home, mut slowest) = (0.0, f64::INFINITY);
    let mut links = vec![0.0; figures.links.len()];
    for &node in readers.iter().filter(|node| **node != home) {
        let one = figures.stream_gbs * figures.latency(node, node) / figures.latency(node, home);
        // Half of the time goes into writing.
        let gbs = one / 2.0 * figures.cpus[node].min(COPIERS) as f64;
        drawn_home += gbs;
        slowest = slowest.min(gbs);
        for &(link, part) in &figures.routes[home][node] {
            links[link] += gbs * part;
        }
    }
    if !slowest.is_finite() {
        return 0.0;
    }
    let links = links.iter().zip(&figures.links);
    let links = links.map(|(drawn, most)| drawn / most).fold(1.0, f64::max);
    let fullest = links.max(drawn_home / figures.controllers_gbs[home]);
    bytes as f64 * fullest / slowest / 1e9
}

#[cfg(test)]
mod tests;
