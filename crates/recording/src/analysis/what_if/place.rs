//! A machine as two tiers of memory, and how fast a window runs on it.
//!
//! The solver is [`hither_core::flow`]: rates from latencies, queues from rates. A window gives what it needs:
//! of the time between two fills of a CPU a part computes and a part waits, and how many fills overlap is what
//! makes the recorded latency that wait.
//!
//! Simplifications. Threads are spread over the nodes with CPUs, and the memory of a tier over its nodes by
//! their sizes. A node without CPUs carries no more than the links to it do; links add no other queue.

use super::windows::Window;
use hither_core::flow::{self, Demand, FlowMemory, LINE_BYTES};
use hither_core::machine::Machine;

/// Rounds in which the traffic settles, and those after them of which the mean is taken: near saturation
/// it swings a little.
const ROUNDS: u32 = 400;
const MEAN_ROUNDS: u32 = 40;

/// A machine with its nodes in two tiers.
#[derive(Clone, Debug)]
pub struct Tiers<'a> {
    machine: &'a Machine,
    is_fast: Vec<bool>,
    links_gbs: Vec<f64>,
}

/// From which nodes which memory is used, shares that sum to 1: `[from][home]`.
pub type Places = Vec<Vec<f64>>;

/// How a window runs elsewhere than it did.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Core {
    /// CPUs that were busy, and that are then; `None`: as many as there were.
    pub cpus: Option<[f64; 2]>,
    /// Computing time there over that as recorded.
    pub compute: f64,
    /// Misses that overlap there over those as recorded.
    pub overlap: f64,
}

impl Core {
    /// The cores of the recording.
    pub const SAME: Self = Self {
        cpus: None,
        compute: 1.0,
        overlap: 1.0,
    };
}

impl<'a> Tiers<'a> {
    /// The nodes of the best rank are fast, all others slow.
    #[must_use]
    pub fn new(machine: &'a Machine) -> Self {
        let best = machine.nodes.iter().map(|node| node.tier).min();
        let nodes = 0..machine.nodes.len();
        Self {
            machine,
            is_fast: machine
                .nodes
                .iter()
                .map(|node| Some(node.tier) == best)
                .collect(),
            links_gbs: nodes.map(|home| links_gbs(machine, home)).collect(),
        }
    }

    /// Bytes of the fast nodes, and of the others.
    #[must_use]
    pub fn bytes(&self) -> [u64; 2] {
        let nodes = self.machine.nodes.iter().zip(&self.is_fast);
        nodes.fold([0, 0], |mut bytes, (node, &is_fast)| {
            bytes[usize::from(!is_fast)] += node.memory_mb << 20;
            bytes
        })
    }

    /// Places with this share of the accesses in the fast tier.
    #[must_use]
    pub fn places(&self, fast: f64) -> Places {
        let machine = self.machine;
        let [fast_bytes, slow_bytes] = self.bytes().map(|bytes| bytes as f64);
        // Where there is one tier, everything is in it.
        let fast = if slow_bytes > 0.0 { fast } else { 1.0 };
        let homes = machine.nodes.iter().zip(&self.is_fast);
        let homes: Vec<f64> = homes
            .map(|(node, &is_fast)| {
                let bytes = (node.memory_mb << 20) as f64;
                match is_fast {
                    true => fast * bytes / fast_bytes,
                    false => (1.0 - fast) * bytes / slow_bytes,
                }
            })
            .collect();
        let cpus = machine.cpu_count() as f64;
        let row = |node: &hither_core::machine::Node| {
            let share = node.cpus.len() as f64 / cpus;
            homes.iter().map(|home| share * home).collect()
        };
        machine.nodes.iter().map(row).collect()
    }

    /// Times as fast as recorded that a window runs with its accesses so placed, where it waits for
    /// `stalled` of its time and its misses take `latency_ns` as recorded.
    #[must_use]
    pub fn speed(
        &self,
        window: &Window,
        (stalled, latency_ns): (f64, f64),
        core: &Core,
        places: &Places,
    ) -> f64 {
        let [before, after] = core.cpus.unwrap_or([1.0, 1.0]);
        if window.rate <= 0.0 || before <= 0.0 {
            return after / before.max(f64::MIN_POSITIVE) / core.compute;
        }
        // Of a CPU, from one fill to the next.
        let fill_ns = before / window.rate;
        let compute_ns = (1.0 - stalled) * fill_ns * core.compute;
        let overlap = core.overlap * latency_ns / (stalled * fill_ns);
        let demands: Vec<Demand> = places
            .iter()
            .enumerate()
            .filter_map(|(from, homes)| {
                let sum: f64 = homes.iter().sum();
                (sum > 0.0).then(|| Demand {
                    from,
                    cpus: after * sum,
                    shares: homes.iter().map(|home| home / sum).collect(),
                    compute_ns,
                    overlap,
                })
            })
            .collect();
        let memory = self.memory(window);
        let mut queues_ns = vec![0.0; self.machine.nodes.len()];
        let mut rate = 0.0;
        for round in 0..MEAN_ROUNDS {
            let rounds = if round == 0 { ROUNDS } else { 1 };
            let flow = flow::settle(&memory, &demands, &mut queues_ns, rounds);
            rate += flow.rates.iter().sum::<f64>() / f64::from(MEAN_ROUNDS);
        }
        rate / window.rate
    }

    /// What the machine's memory does for fills that carry as many bytes as this window's.
    fn memory(&self, window: &Window) -> FlowMemory {
        let nodes = 0..self.machine.nodes.len();
        let read_share = window.read_share.unwrap_or(1.0);
        let line = f64::from(self.machine.line_bytes);
        // The solver counts a fill as [`LINE_BYTES`].
        let lines = window.bytes_per_fill.unwrap_or(line) / LINE_BYTES;
        let row = |from| {
            nodes
                .clone()
                .map(move |home| self.machine.idle_latency_ns(from, home))
        };
        let capacity = nodes.clone().map(|home| {
            let controller = self.machine.nodes[home].capacity.at(read_share);
            // Each direction of a link has its own capacity.
            let link = self.links_gbs[home] / read_share.max(1.0 - read_share);
            controller.min(link) / lines
        });
        FlowMemory {
            idle_ns: nodes.clone().map(|from| row(from).collect()).collect(),
            capacity_gbs: capacity.collect(),
            curves: self.machine.nodes.iter().map(|node| node.curve).collect(),
        }
    }
}

/// What all links from a node without CPUs carry of its lines; of one with CPUs no link is in the way.
fn links_gbs(machine: &Machine, home: usize) -> f64 {
    if !machine.nodes[home].cpus.is_empty() {
        return f64::INFINITY;
    }
    let from_home = machine.links.iter().filter(|link| link.from == home);
    let carried: f64 = from_home.map(|link| link.gbs / link.overhead).sum();
    if carried > 0.0 {
        carried
    } else {
        f64::INFINITY
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use hither_core::machine::parse::parse;

    /// A machine that comes with hither.
    pub fn machine(name: &str) -> Machine {
        let path = format!("{}/../../machines/{name}.toml", env!("CARGO_MANIFEST_DIR"));
        parse(&std::fs::read_to_string(path).unwrap()).unwrap()
    }

    /// So many fills per ns over 100 ms.
    pub fn window(rate: f64) -> Window {
        Window {
            from_ns: 0,
            until_ns: 100_000_000,
            length_ns: 1e8,
            rate,
            latency_ns: None,
            stall_share: None,
            bytes_per_fill: Some(64.0),
            read_share: Some(1.0),
        }
    }

    fn speed(machine: &Machine, window: &Window, figures: (f64, f64), fast: f64) -> f64 {
        let tiers = Tiers::new(machine);
        tiers.speed(window, figures, &Core::SAME, &tiers.places(fast))
    }

    #[test]
    fn without_load_the_stall_part_follows_the_idle_latencies() {
        // A fill in 10 us: no queue. Slow memory takes 244 + 38 = 282 ns, fast memory 82 ns.
        let (machine, window) = (machine("westmere-m2"), window(1e-4));
        let near = |fast: f64, expected: f64| {
            let found = speed(&machine, &window, (0.6, 282.0), fast);
            assert!(
                (found / expected - 1.0).abs() < 2e-3,
                "{fast}: {found}, not {expected}"
            );
        };
        near(0.0, 1.0);
        near(1.0, 1.0 / (0.4 + 0.6 * 82.0 / 282.0));
        near(0.75, 1.0 / (0.4 + 0.6 * 132.0 / 282.0));
    }

    #[test]
    fn no_memory_carries_more_than_it_can() {
        // 10.65 GB/s as recorded from fast memory; the slow one has 2.13.
        let (machine, window) = (machine("westmere-m2"), window(10.65 / 64.0));
        let found = speed(&machine, &window, (0.6, 90.0), 0.0);
        assert!((0.18..0.205).contains(&found), "{found}");
        // KNL's MCDRAM answers later and carries 350 GB/s; DDR4 carries 78.
        let machine = self::machine("knl7250");
        let window = self::window(156.0 / 64.0);
        let found = speed(&machine, &window, (0.8, 190.0), 0.0);
        assert!((0.45..0.51).contains(&found), "{found}");
    }

    #[test]
    fn cores_that_compute_otherwise_change_the_other_part() {
        let machine = machine("westmere-m2");
        let tiers = Tiers::new(&machine);
        let core = Core {
            cpus: Some([2.0, 1.0]),
            compute: 2.0,
            overlap: 1.0,
        };
        // Half of the CPUs, each with twice the computing time and the same stall time.
        let found = tiers.speed(&window(1e-4), (0.5, 282.0), &core, &tiers.places(0.0));
        assert!((found - 0.5 / 1.5).abs() < 1e-3, "{found}");
        let idle = tiers.speed(&window(0.0), (0.5, 282.0), &core, &tiers.places(0.0));
        assert_eq!(idle, 0.25);
    }

    #[test]
    fn links_limit_memory_behind_them() {
        // The expander has 26 GB/s and its link 32 / 1.1; of one link in two remain 14.5.
        let mut machine = machine("spr-2s-cxl");
        assert!((links_gbs(&machine, 2) - 32.0 / 1.1).abs() < 1e-9);
        assert!(links_gbs(&machine, 0).is_infinite());
        for link in &mut machine.links {
            link.gbs /= 2.0;
        }
        let found = speed(&machine, &window(29.0 / 64.0), (0.9, 260.0), 0.0);
        assert!((0.46..0.51).contains(&found), "{found}");
    }
}
