//! `opteron8385` against Carrefour's table 1: Streamcluster and PCA, interleaved and first-touch.
//!
//! Method: a closed fluid model of one round. All threads read as many lines; each goes at the
//! pace that the latency of its own node's misses allows, `1 / (compute + latency / mlp)` lines
//! per ns, and waits at the barrier at the end of the round until the last arrives. Traffic makes
//! latency and latency makes traffic, so between two arrivals the rates are a fixed point.
//!
//! Terms: `place[requester][memory]` is the share of a requester's misses that a memory node
//! serves; `latency` is the mean over all misses; link use is the mean over links and time, with
//! the time at the barrier.
//!
//! What it cannot give: link imbalance. See the head of `machines/opteron8385.toml`.

use hither_core::machine::Machine;
use hither_core::machine::parse::parse;
use hither_core::machine::scale::scale;

/// Reaches the fixed point though a controller near saturation answers a change of the rate up to
/// 65-fold (its cap): the step times one more than that must stay below 2.
const STEP: f64 = 0.02;
const STEPS: usize = 5000;
/// Waiting per step before a controller or link, in ns per unit of use beyond its capacity: slow
/// beside `STEP`, so that the two do not swing against each other.
const BACKLOG_NS: f64 = 20.0;

/// All memory on the node of the thread that touched it first.
const FIRST_TOUCH: [f64; 4] = [1.0, 0.0, 0.0, 0.0];

struct Program {
    misses_per_instruction: f64,
    cpi: f64,
    place: Vec<Vec<f64>>,
}

/// What the traffic of one moment causes.
struct Load {
    /// Mean latency of a miss, by requesting node.
    latency_ns: Vec<f64>,
    controller_use: Vec<f64>,
    link_use: Vec<f64>,
}

/// Time that a line waits beyond the curves, which end at their cap: as much as keeps a saturated
/// controller or link at its capacity, none elsewhere.
struct Backlog {
    controller_ns: Vec<f64>,
    link_ns: Vec<f64>,
}

impl Backlog {
    fn none(machine: &Machine) -> Self {
        Self {
            controller_ns: vec![0.0; machine.nodes.len()],
            link_ns: vec![0.0; machine.links.len()],
        }
    }

    fn follow(&mut self, load: &Load) {
        let controllers = self.controller_ns.iter_mut().zip(&load.controller_use);
        let links = self.link_ns.iter_mut().zip(&load.link_use);
        for (waiting_ns, used) in controllers.chain(links) {
            *waiting_ns = (*waiting_ns + BACKLOG_NS * (used - 1.0)).max(0.0);
        }
    }
}

/// A round, from the barrier at its start to the one at its end.
struct Outcome {
    latency_cycles: f64,
    /// Instructions of the computation alone, none for the waiting at the barrier.
    ipc: f64,
    local_share: f64,
    controller_use: Vec<f64>,
    link_use: Vec<f64>,
}

/// `rates[node]`: lines per ns that each of the node's threads reads.
fn load(machine: &Machine, program: &Program, rates: &[f64], backlog: &Backlog) -> Load {
    let mut controller_gbs = vec![0.0; machine.nodes.len()];
    let mut link_gbs = vec![0.0; machine.links.len()];
    for (requester, node) in machine.nodes.iter().enumerate() {
        let drawn_gbs = node.cpus.len() as f64 * rates[requester] * f64::from(machine.line_bytes);
        for (memory, share) in program.place[requester].iter().enumerate() {
            controller_gbs[memory] += drawn_gbs * share;
            for route in &machine.routes[memory][requester] {
                for &link in &route.links {
                    let wire = route.share * machine.links[link].overhead;
                    link_gbs[link] += drawn_gbs * share * wire;
                }
            }
        }
    }
    let controllers = controller_gbs.iter().zip(&machine.nodes);
    let controller_use: Vec<f64> = controllers
        .map(|(gbs, node)| gbs / node.capacity.at(1.0))
        .collect();
    let links = link_gbs.iter().zip(&machine.links);
    let link_use: Vec<f64> = links.map(|(gbs, link)| gbs / link.gbs).collect();
    let cross_ns = |link: usize| {
        let queueing_ns = machine.links[link].curve.queueing_ns(link_use[link]);
        machine.links[link].hop_ns + queueing_ns + backlog.link_ns[link]
    };
    let miss_ns = |memory: usize, requester: usize| -> f64 {
        let node = &machine.nodes[memory];
        let routes = machine.routes[memory][requester].iter();
        let way_ns: f64 = routes
            .map(|route| route.share * route.links.iter().map(|&l| cross_ns(l)).sum::<f64>())
            .sum();
        let queueing_ns = node.curve.queueing_ns(controller_use[memory]);
        node.idle_ns + queueing_ns + backlog.controller_ns[memory] + way_ns
    };
    let mean_ns = |(requester, place): (usize, &Vec<f64>)| -> f64 {
        let shares = place.iter().enumerate();
        shares
            .map(|(memory, share)| share * miss_ns(memory, requester))
            .sum()
    };
    Load {
        latency_ns: program.place.iter().enumerate().map(mean_ns).collect(),
        controller_use,
        link_use,
    }
}

/// The rates at which the active nodes' threads and the latencies that they cause agree.
fn settle(machine: &Machine, program: &Program, active: &[bool]) -> (Vec<f64>, Load) {
    let cpu = &machine.cpu;
    let compute_ns = program.cpi / program.misses_per_instruction / cpu.ghz;
    let allowed = |load: &Load| -> Vec<f64> {
        let pace = |(latency_ns, &active): (&f64, &bool)| {
            let rate = 1.0 / (compute_ns + latency_ns / cpu.mlp);
            if active { rate } else { 0.0 }
        };
        load.latency_ns.iter().zip(active).map(pace).collect()
    };
    let mut rates = vec![0.0; machine.nodes.len()];
    let mut backlog = Backlog::none(machine);
    for _ in 0..STEPS {
        let load = load(machine, program, &rates, &backlog);
        backlog.follow(&load);
        for (rate, towards) in rates.iter_mut().zip(allowed(&load)) {
            *rate += STEP * (towards - *rate);
        }
    }
    let load = load(machine, program, &rates, &backlog);
    for (rate, allowed) in rates.iter().zip(allowed(&load)) {
        assert!(
            (rate - allowed).abs() <= 1e-9,
            "no fixed point: {rate} against {allowed} lines per ns"
        );
    }
    for used in load.controller_use.iter().chain(&load.link_use) {
        assert!(*used <= 1.0 + 1e-6, "{used} of a capacity is used");
    }
    (rates, load)
}

/// One round in which every thread reads one (infinitely divisible) line.
fn round(machine: &Machine, program: &Program) -> Outcome {
    let nodes = machine.nodes.len();
    let threads: Vec<f64> = machine.nodes.iter().map(|n| n.cpus.len() as f64).collect();
    let lines: f64 = threads.iter().sum();
    let mut left = vec![1.0; nodes];
    let mut outcome = Outcome {
        latency_cycles: 0.0,
        ipc: 0.0,
        local_share: 0.0,
        controller_use: vec![0.0; nodes],
        link_use: vec![0.0; machine.links.len()],
    };
    let mut round_ns = 0.0;
    loop {
        let active: Vec<bool> = left.iter().map(|&left| left > 1e-9).collect();
        if !active.contains(&true) {
            break;
        }
        let (rates, load) = settle(machine, program, &active);
        let arrivals = (0..nodes).filter(|&node| active[node]);
        let span_ns = arrivals
            .map(|node| left[node] / rates[node])
            .fold(f64::INFINITY, f64::min);
        for node in 0..nodes {
            let read = rates[node] * span_ns;
            left[node] -= read;
            let share = read * threads[node] / lines;
            outcome.latency_cycles += share * load.latency_ns[node] * machine.cpu.ghz;
            outcome.local_share += share * program.place[node][node];
        }
        let add = |sums: &mut [f64], uses: &[f64]| {
            for (sum, used) in sums.iter_mut().zip(uses) {
                *sum += used * span_ns;
            }
        };
        add(&mut outcome.controller_use, &load.controller_use);
        add(&mut outcome.link_use, &load.link_use);
        round_ns += span_ns;
    }
    let uses = outcome.controller_use.iter_mut();
    for used in uses.chain(&mut outcome.link_use) {
        *used /= round_ns;
    }
    outcome.ipc = 1.0 / program.misses_per_instruction / (round_ns * machine.cpu.ghz);
    outcome
}

fn opteron() -> Machine {
    parse(include_str!("../../../machines/opteron8385.toml")).unwrap()
}

/// All threads read one array; `shares[node]` of it lie on each node. The machine's `cpi` is
/// Streamcluster's.
fn streamcluster(machine: &Machine, shares: [f64; 4]) -> Program {
    Program {
        misses_per_instruction: 16.85 / 1000.0,
        cpi: machine.cpu.cpi,
        place: vec![shares.to_vec(); 4],
    }
}

/// PCA's own `cpi` follows from its interleaved run: 1/0.52 - 0.00735 * 465 / 3.77 = 1.02.
fn pca(place: Vec<Vec<f64>>) -> Program {
    Program {
        misses_per_instruction: 7.4 / 1000.0,
        cpi: 1.02,
        place,
    }
}

/// A tenth of a node's misses are its own threads' data, the rest go to what all share, nine tenths
/// of it on node 0: the local-access ratio of 33 % and controller imbalance of 130 % of table 1.
fn pca_first_touch() -> Vec<Vec<f64>> {
    const OWN: f64 = 0.107;
    const SHARED: [f64; 4] = [0.88, 0.04, 0.04, 0.04];
    let share = |requester: usize, memory: usize| {
        let own = if requester == memory { OWN } else { 0.0 };
        own + (1.0 - OWN) * SHARED[memory]
    };
    let row = |requester| (0..4).map(|memory| share(requester, memory)).collect();
    (0..4).map(row).collect()
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

/// Deviation over all values as a share of their mean. The paper's 170 % of controller imbalance
/// for one node of four can only be this one (173 %), not the sample's (200 %).
fn imbalance(values: &[f64]) -> f64 {
    let mean_use = mean(values);
    let squares: Vec<f64> = values.iter().map(|v| (v - mean_use).powi(2)).collect();
    mean(&squares).sqrt() / mean_use
}

fn within(what: &str, value: f64, paper: f64, tolerance: f64) {
    assert!(
        (value - paper).abs() <= tolerance,
        "{what}: {value:.3}, wanted {paper} (+-{tolerance:.3})"
    );
}

#[test]
fn streamcluster_comes_out_of_the_machine_file() {
    let machine = opteron();
    let interleave = round(&machine, &streamcluster(&machine, [0.25; 4]));
    let first_touch = round(&machine, &streamcluster(&machine, FIRST_TOUCH));
    let latency_cycles = interleave.latency_cycles;
    within("interleave, latency", latency_cycles, 476.0, 0.03 * 476.0);
    within("interleave, IPC", interleave.ipc, 0.29, 0.03 * 0.29);
    within("interleave, links", mean(&interleave.link_use), 0.59, 0.05);
    let latency_cycles = first_touch.latency_cycles;
    within(
        "first-touch, latency",
        latency_cycles,
        1197.0,
        0.03 * 1197.0,
    );
    // The paper's count holds what threads execute while they wait, this one does not.
    within("first-touch, IPC", first_touch.ipc, 0.15, 0.09 * 0.15);
    within(
        "first-touch, links",
        mean(&first_touch.link_use),
        0.33,
        0.05,
    );
    // Interleaving makes it 100 % faster, give or take 15 points.
    within("speed-up", interleave.ipc / first_touch.ipc, 2.0, 0.15);
}

#[test]
fn pca_which_was_not_fitted_is_near() {
    let machine = opteron();
    let interleave = round(&machine, &pca(vec![vec![0.25; 4]; 4]));
    let first_touch = round(&machine, &pca(pca_first_touch()));
    within("place, LAR", first_touch.local_share, 0.33, 0.005);
    let controllers = imbalance(&first_touch.controller_use);
    within("place, imbalance", controllers, 1.3, 0.02);
    let latency_cycles = interleave.latency_cycles;
    within("interleave, latency", latency_cycles, 465.0, 0.08 * 465.0);
    within("interleave, IPC", interleave.ipc, 0.52, 0.04 * 0.52);
    within("interleave, links", mean(&interleave.link_use), 0.48, 0.03);
    let latency_cycles = first_touch.latency_cycles;
    within("first-touch, latency", latency_cycles, 660.0, 0.13 * 660.0);
    within("first-touch, IPC", first_touch.ipc, 0.36, 0.04 * 0.36);
    within(
        "first-touch, links",
        mean(&first_touch.link_use),
        0.31,
        0.03,
    );
}

/// The gap that the machine file's head owns up to, so that it stays true: the paper has 0.22 and
/// 0.85.
#[test]
fn link_imbalance_is_as_far_off_as_the_machine_file_says() {
    let machine = opteron();
    let interleave = round(&machine, &streamcluster(&machine, [0.25; 4]));
    let first_touch = round(&machine, &streamcluster(&machine, FIRST_TOUCH));
    within("interleave", imbalance(&interleave.link_use), 0.01, 0.01);
    within("first-touch", imbalance(&first_touch.link_use), 1.23, 0.02);
}

#[test]
fn scaling_to_eight_cpus_changes_none_of_it() {
    let whole = opteron();
    let scaled = scale(&whole, 8).unwrap();
    for shares in [[0.25; 4], FIRST_TOUCH] {
        let before = round(&whole, &streamcluster(&whole, shares));
        let after = round(&scaled, &streamcluster(&scaled, shares));
        within("latency", after.latency_cycles, before.latency_cycles, 1e-6);
        within("IPC", after.ipc, before.ipc, 1e-9);
        let (links, links_before) = (mean(&after.link_use), mean(&before.link_use));
        within("link use", links, links_before, 1e-9);
    }
}
