//! Where memory traffic settles: threads slow down as far as the queues that they cause make them.
//!
//! Problem: how fast a thread runs depends on latency, latency on the load of the controllers, and
//! that on how fast all threads run. Mechanism: rounds of rates from latencies and queues from rates,
//! damped, until they agree. A controller beyond its capacity gets a longer queue each round until
//! the demand fits. Shared by the simulator and the engine's own test world.

use crate::machine::Curve;

/// Bytes of a cache line.
pub const LINE_BYTES: f64 = 64.0;
/// Part of a queue that a round replaces. Smaller is slower, larger swings about the solution.
const STEP: f64 = 0.2;

/// The memory of a machine, by node position.
#[derive(Clone, Debug, PartialEq)]
pub struct FlowMemory {
    /// Latency without load in ns, from each node (outer) to each home.
    pub idle_ns: Vec<Vec<f64>>,
    /// What each node's controller delivers, in GB/s (bytes per ns).
    pub capacity_gbs: Vec<f64>,
    /// What load adds to the latency of each node.
    pub curves: Vec<Curve>,
}

/// CPUs of one node that use memory alike.
#[derive(Clone, Debug, PartialEq)]
pub struct Demand {
    /// Position of their node.
    pub from: usize,
    /// How many; of a CPU that runs now and then a part.
    pub cpus: f64,
    /// Share of their fills that each home serves. All zero: they use none.
    pub shares: Vec<f64>,
    /// Time between misses of a CPU when memory takes none, in ns.
    pub compute_ns: f64,
    /// Misses of a CPU that overlap.
    pub overlap: f64,
}

/// What the demands come to.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Flow {
    /// Fills per ns of each demand.
    pub rates: Vec<f64>,
    /// Mean latency of each demand in ns.
    pub latencies_ns: Vec<f64>,
    /// Bytes per ns from each home.
    pub traffic: Vec<f64>,
    /// Utilisation of each controller, 0..=1.
    pub utilisation: Vec<f64>,
}

impl Flow {
    /// Mean latency over all fills, in ns; `None` where there are none.
    #[must_use]
    pub fn latency_ns(&self) -> Option<f64> {
        let fills: f64 = self.rates.iter().sum();
        let waits = self.rates.iter().zip(&self.latencies_ns);
        let waited: f64 = waits.map(|(rate, latency)| rate * latency).sum();
        (fills > 0.0).then(|| waited / fills)
    }
}

/// Where the traffic settles after so many rounds. `queues_ns` is where it begins, of zeros at first, and
/// where it ends: from a solution nearby few rounds are enough.
#[must_use]
pub fn settle(memory: &FlowMemory, demands: &[Demand], queues_ns: &mut [f64], rounds: u32) -> Flow {
    let nodes = memory.capacity_gbs.len();
    let mut flow = Flow {
        rates: vec![0.0; demands.len()],
        latencies_ns: vec![0.0; demands.len()],
        traffic: vec![0.0; nodes],
        utilisation: vec![0.0; nodes],
    };
    for _ in 0..rounds {
        flow.traffic.fill(0.0);
        for (at, demand) in demands.iter().enumerate() {
            let idle_ns = &memory.idle_ns[demand.from];
            let costs =
                (0..nodes).map(|home| demand.shares[home] * (idle_ns[home] + queues_ns[home]));
            let latency_ns: f64 = costs.sum();
            flow.latencies_ns[at] = latency_ns;
            flow.rates[at] = match latency_ns > 0.0 {
                true => demand.cpus / (demand.compute_ns + latency_ns / demand.overlap),
                false => 0.0,
            };
            for home in 0..nodes {
                flow.traffic[home] += flow.rates[at] * demand.shares[home] * LINE_BYTES;
            }
        }
        for (home, waiting_ns) in queues_ns.iter_mut().enumerate() {
            let load = flow.traffic[home] / memory.capacity_gbs[home];
            flow.utilisation[home] = load.min(1.0);
            let queue_ns = *waiting_ns;
            let target = match load > 1.0 {
                true => queue_ns * load + 10.0,
                false => memory.curves[home].queueing_ns(load).max(queue_ns * 0.9),
            };
            *waiting_ns = (1.0 - STEP) * queue_ns + STEP * target;
        }
    }
    flow
}

#[cfg(test)]
mod tests {
    use super::*;

    fn memory() -> FlowMemory {
        FlowMemory {
            idle_ns: vec![vec![100.0, 150.0], vec![150.0, 100.0]],
            capacity_gbs: vec![4.0, 4.0],
            curves: vec![
                Curve {
                    a_ns: 0.0,
                    b_ns: 0.0,
                    n: 2.0,
                };
                2
            ],
        }
    }

    fn demand(cpus: f64, shares: [f64; 2]) -> Demand {
        Demand {
            from: 0,
            cpus,
            shares: shares.to_vec(),
            compute_ns: 50.0,
            overlap: 2.0,
        }
    }

    #[test]
    fn without_load_latency_is_idle_latency() {
        // 100 ns, two at once: 50 + 50 ns a fill. Half remote: 125 ns, 50 + 62.5.
        let demands = [
            demand(1.0, [1.0, 0.0]),
            demand(1.0, [0.5, 0.5]),
            demand(1.0, [0.0, 0.0]),
        ];
        let flow = settle(&memory(), &demands, &mut [0.0; 2], 10);
        assert_eq!(flow.latencies_ns, [100.0, 125.0, 0.0]);
        assert_eq!(flow.rates, [0.01, 1.0 / 112.5, 0.0]);
        assert_eq!(settle(&memory(), &[], &mut [0.0; 2], 10).latency_ns(), None);
    }

    #[test]
    fn a_controller_gives_what_it_has_and_no_more() {
        // 20 CPUs would take 12.8 bytes per ns of 4.
        let flow = settle(&memory(), &[demand(20.0, [1.0, 0.0])], &mut [0.0; 2], 2000);
        assert!((flow.traffic[0] / 4.0 - 1.0).abs() < 0.1, "{flow:?}");
        // 4 bytes per ns are a fill each 16 ns: 320 ns a fill and CPU, of which 270 wait for memory.
        let latency_ns = flow.latency_ns().unwrap();
        assert!((latency_ns / 540.0 - 1.0).abs() < 0.15, "{latency_ns}");
    }
}
