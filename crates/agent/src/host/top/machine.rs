//! The machine between two readings: traffic, latency, moves, pressure. Pure.

use super::reading::{MachineReading, OpiumReading, Requests};
use hither_core::ids::NodeId;
use hither_core::metrics;
use hither_core::snapshot::Evidence;
use hither_linux::counters::lru_gen::Ages;
use hither_linux::counters::resctrl;
use hither_linux::counters::vmstat::{Events, VmEvent};

/// Why no figure tells from where to where pages moved.
pub const NO_PAIRS: &str = "Linux counts moves for the whole machine, promotions at the node \
     they go to and demotions at the node they come from, and nothing by pair of nodes";
const ONCE: &str = "it was read once so far";
const NOT_COUNTED: &str = "this kernel does not count it";
const DEVICE: &str = "opium counters";

/// What stays the same of a node.
#[derive(Clone, Debug)]
pub struct NodeName {
    /// The kernel's number.
    pub id: NodeId,
    /// Its CPUs in the kernel's list format; may be empty.
    pub cpus: String,
    /// All of its memory in KiB.
    pub total_kb: u64,
}

/// A node in an interval.
#[derive(Clone, Debug)]
pub struct NodeFigures {
    /// Free memory in KiB.
    pub free_kb: Evidence<u64>,
    /// Bytes read from its memory, in 10^9 per second.
    pub read_gbs: Evidence<f64>,
    /// Bytes written to it.
    pub write_gbs: Evidence<f64>,
    /// Mean utilisation of its controller.
    pub utilisation: Evidence<f64>,
    /// Share of its CPUs' accesses that its own memory served.
    pub local: Evidence<f64>,
    /// Mean latency of its CPUs' demand misses.
    pub latency_ns: Evidence<f64>,
    /// Pages promoted to it per second.
    pub promoted_in: Evidence<f64>,
    /// Pages demoted from it per second.
    pub demoted_out: Evidence<f64>,
    /// Pages allocated on it although another node was wanted, per second.
    pub missed_in: Evidence<f64>,
}

/// A directed link in an interval.
#[derive(Clone, Debug)]
pub struct LinkFigures {
    /// From and to, or its number.
    pub name: String,
    /// Bytes on the wire, in 10^9 per second.
    pub gbs: f64,
    /// Mean utilisation.
    pub utilisation: f64,
}

/// A last-level cache in an interval.
#[derive(Clone, Debug)]
pub struct CacheFigures {
    /// The kernel's number.
    pub id: u32,
    /// Bytes fetched from all memory, in 10^9 per second.
    pub total_gbs: Option<f64>,
    /// Bytes fetched from memory of its own node.
    pub local_gbs: Option<f64>,
}

/// Moves per second, in pages.
#[derive(Clone, Debug)]
pub struct Moves {
    /// Moved.
    pub migrated: Evidence<f64>,
    /// Refused.
    pub failed: Evidence<f64>,
    /// Moved to a faster tier.
    pub promoted: Evidence<f64>,
    /// Moved to a slower tier.
    pub demoted: Evidence<f64>,
    /// NUMA hint faults.
    pub hint_faults: Evidence<f64>,
    /// Share of the hint faults that met a page of their own node.
    pub hint_local: Evidence<f64>,
}

/// The machine in an interval.
#[derive(Clone, Debug)]
pub struct MachineFigures {
    /// By position.
    pub nodes: Vec<NodeFigures>,
    /// Links, in the order of the device.
    pub links: Evidence<Vec<LinkFigures>>,
    /// Last-level caches.
    pub caches: Evidence<Vec<CacheFigures>>,
    /// Moves.
    pub moves: Moves,
    /// Share of the interval in which some task waited for memory.
    pub pressure: Evidence<f64>,
    /// How lately memory of each node was used, by position; `None` where nobody asked.
    pub ages: Option<Evidence<Vec<Ages>>>,
    /// Share of user-mode fills that the requesting CPU's node served.
    pub local: Evidence<f64>,
    /// Mean latency of demand misses.
    pub latency_ns: Evidence<f64>,
}

/// What happened between two readings, `elapsed_us` apart. `link_names` may be shorter than the
/// links.
#[must_use]
pub fn figures(
    before: Option<&MachineReading>,
    now: &MachineReading,
    elapsed_us: u64,
    link_names: &[String],
) -> MachineFigures {
    let before = before.filter(|_| elapsed_us > 0);
    let change = before.map(|before| now.events.since(&before.events));
    let device = device(before.map(|before| &before.opium), &now.opium);
    let node = |position: usize| {
        let events = before.map(|before| {
            let (now, then) = (
                now.node_events.get(position),
                before.node_events.get(position),
            );
            now.zip(then)
                .map_or_else(Events::default, |(now, then)| now.since(then))
        });
        let free_kb = now.free_kb.get(position).copied().flatten();
        let traffic = |pick: fn(&Traffic) -> f64| {
            let of = |device: &Device| device.traffic.get(position).map(pick);
            known(&device, of, "the device does not know this node")
        };
        let asked = |pick: fn(&Requests) -> Option<f64>| {
            let of = |device: &Device| device.requests.get(position).and_then(pick);
            known(&device, of, "its CPUs accessed no memory in the interval")
        };
        NodeFigures {
            free_kb: match free_kb {
                Some(free_kb) => Evidence::measured(free_kb, "nodeN/meminfo"),
                None => Evidence::unknown("its meminfo cannot be read"),
            },
            read_gbs: traffic(|traffic| traffic.read_gbs),
            write_gbs: traffic(|traffic| traffic.write_gbs),
            utilisation: traffic(|traffic| traffic.utilisation),
            local: asked(local),
            latency_ns: asked(latency_ns),
            promoted_in: rate(events.as_ref(), |e| e.get(VmEvent::Promoted), elapsed_us),
            demoted_out: rate(events.as_ref(), Events::demoted, elapsed_us),
            missed_in: rate(events.as_ref(), |e| e.get(VmEvent::NumaMiss), elapsed_us),
        }
    };
    let all = |device: &Device| {
        let sum = |sum: Requests, next: &Requests| sum.plus(next);
        device.requests.iter().fold(Requests::default(), sum)
    };
    const QUIET: &str = "no memory was accessed in the interval";
    MachineFigures {
        nodes: (0..now.node_events.len()).map(node).collect(),
        links: device.clone().map(|device| links(&device, link_names)),
        caches: caches(before, now, elapsed_us),
        moves: moves(change.as_ref(), elapsed_us),
        pressure: pressure(before, now, elapsed_us),
        ages: now.ages.clone(),
        local: known(&device, |device| local(&all(device)), QUIET),
        latency_ns: known(&device, |device| latency_ns(&all(device)), QUIET),
    }
}

/// The device between two readings.
#[derive(Clone, Debug)]
struct Device {
    traffic: Vec<Traffic>,
    requests: Vec<Requests>,
    links: Vec<(f64, f64)>,
}

#[derive(Clone, Copy, Debug)]
struct Traffic {
    read_gbs: f64,
    write_gbs: f64,
    utilisation: f64,
}

fn device(
    before: Option<&Evidence<OpiumReading>>,
    now: &Evidence<OpiumReading>,
) -> Evidence<Device> {
    let Some(reading) = now.value() else {
        return Evidence::unknown(now.basis().to_owned());
    };
    let Some(before) = before.and_then(Evidence::value) else {
        return Evidence::unknown(ONCE);
    };
    // Its own clock fits its integrals best.
    let elapsed_ns = reading.time_ns.saturating_sub(before.time_ns);
    if elapsed_ns == 0 {
        return Evidence::unknown("the device's clock stands still");
    }
    let per_second = |now: u64, before: u64| now.wrapping_sub(before) as f64 / elapsed_ns as f64;
    // In ppm * us.
    let share = |now: u64, before: u64| (per_second(now, before) / 1e3).min(1.0);
    let traffic = reading.traffic.iter().zip(&before.traffic);
    let links = reading.links.iter().zip(&before.links);
    let requests = reading.requests.iter().zip(&before.requests);
    let device = Device {
        traffic: traffic
            .map(|(now, before)| Traffic {
                read_gbs: per_second(now.read_bytes, before.read_bytes),
                write_gbs: per_second(now.write_bytes, before.write_bytes),
                utilisation: share(now.utilisation_integral, before.utilisation_integral),
            })
            .collect(),
        requests: requests.map(|(now, before)| now.since(before)).collect(),
        links: links
            .map(|(now, before)| {
                (
                    per_second(now.bytes, before.bytes),
                    share(now.utilisation_integral, before.utilisation_integral),
                )
            })
            .collect(),
    };
    Evidence::measured(device, DEVICE)
}

/// A figure of the device; unknown for the device's reason, or for `why` where it has none.
fn known(
    device: &Evidence<Device>,
    figure: impl Fn(&Device) -> Option<f64>,
    why: &'static str,
) -> Evidence<f64> {
    match device.value() {
        None => Evidence::unknown(device.basis().to_owned()),
        Some(found) => match figure(found) {
            Some(figure) => Evidence::measured(figure, DEVICE),
            None => Evidence::unknown(why),
        },
    }
}

fn local(requests: &Requests) -> Option<f64> {
    metrics::local_access_ratio(requests.local_fills, requests.fills)
}

fn latency_ns(requests: &Requests) -> Option<f64> {
    metrics::mean_latency_ns(requests.latency_ns, requests.misses)
}

fn links(device: &Device, names: &[String]) -> Vec<LinkFigures> {
    let link = |(number, &(gbs, utilisation)): (usize, &(f64, f64))| LinkFigures {
        name: match names.get(number) {
            Some(name) => name.clone(),
            None => format!("link {number}"),
        },
        gbs,
        utilisation,
    };
    device.links.iter().enumerate().map(link).collect()
}

fn caches(
    before: Option<&MachineReading>,
    now: &MachineReading,
    elapsed_us: u64,
) -> Evidence<Vec<CacheFigures>> {
    let Some(bandwidth) = now.bandwidth.value() else {
        return Evidence::unknown(now.bandwidth.basis().to_owned());
    };
    let Some(before) = before.and_then(|before| before.bandwidth.value()) else {
        return Evidence::unknown(ONCE);
    };
    let gbs = |bytes: Option<u64>| Some(bytes? as f64 / 1e3 / elapsed_us as f64);
    let change = resctrl::since(bandwidth, before);
    let caches = change.into_iter().map(|(id, bytes)| CacheFigures {
        id,
        total_gbs: gbs(bytes.total),
        local_gbs: gbs(bytes.local),
    });
    Evidence::measured(caches.collect(), "resctrl")
}

fn moves(change: Option<&Events>, elapsed_us: u64) -> Moves {
    let of = |event: VmEvent| rate(change, |events| events.get(event), elapsed_us);
    let faults = change.map(|events| {
        let all = events.get(VmEvent::HintFaults)?;
        Some((events.get(VmEvent::HintFaultsLocal)?, all))
    });
    Moves {
        migrated: of(VmEvent::Migrated),
        failed: of(VmEvent::MigrateFailed),
        promoted: of(VmEvent::Promoted),
        demoted: rate(change, Events::demoted, elapsed_us),
        hint_faults: of(VmEvent::HintFaults),
        hint_local: match faults {
            None => Evidence::unknown(ONCE),
            Some(None) => Evidence::unknown(NOT_COUNTED),
            Some(Some((_, 0))) => Evidence::unknown("there was no hint fault in the interval"),
            Some(Some((local, all))) => Evidence::measured(local as f64 / all as f64, "vmstat"),
        },
    }
}

fn rate(
    change: Option<&Events>,
    count: impl Fn(&Events) -> Option<u64>,
    elapsed_us: u64,
) -> Evidence<f64> {
    match change.map(count) {
        None => Evidence::unknown(ONCE),
        Some(None) => Evidence::unknown(NOT_COUNTED),
        Some(Some(count)) => Evidence::measured(count as f64 * 1e6 / elapsed_us as f64, "vmstat"),
    }
}

fn pressure(
    before: Option<&MachineReading>,
    now: &MachineReading,
    elapsed_us: u64,
) -> Evidence<f64> {
    let Some(pressure) = now.pressure.value() else {
        return Evidence::unknown(now.pressure.basis().to_owned());
    };
    let before = before.and_then(|before| before.pressure.value());
    match before.and_then(|before| pressure.some.share_since(&before.some, elapsed_us)) {
        Some(share) => Evidence::measured(share, "pressure stall information"),
        None => Evidence::unknown(ONCE),
    }
}

#[cfg(test)]
mod tests {
    use super::super::examples::machine_reading as reading;
    use super::*;

    #[test]
    fn nothing_is_known_of_the_first_reading_but_free_memory() {
        let figures = figures(None, &reading(0), 0, &[]);
        assert_eq!(figures.nodes[1].free_kb.get(), Some(2 << 20));
        assert_eq!(figures.nodes[0].read_gbs.basis(), ONCE);
        assert_eq!(figures.moves.migrated.basis(), ONCE);
        assert_eq!(figures.local.basis(), ONCE);
        assert!(figures.links.value().is_none());
    }

    #[test]
    fn figures_are_differences_over_their_time() {
        let names = ["node0>node1".to_owned()];
        let figures = figures(Some(&reading(0)), &reading(2), 2_000_000, &names);
        let node = &figures.nodes[0];
        // A reading's counters grow by 3e9 bytes read and 1e9 written a second.
        assert_eq!(node.read_gbs.get(), Some(3.0));
        assert_eq!(node.write_gbs.get(), Some(1.0));
        assert_eq!(node.utilisation.get(), Some(0.5));
        assert_eq!(node.local.get(), Some(0.75));
        assert_eq!(figures.nodes[1].local.get(), None, "its CPUs were idle");
        assert_eq!(figures.latency_ns.get(), Some(150.0));
        let links = figures.links.value().unwrap();
        assert_eq!(links[0].name, "node0>node1");
        assert_eq!(links[1].name, "link 1");
        assert!((links[0].gbs - 0.5).abs() < 1e-9 && (links[0].utilisation - 0.125).abs() < 1e-9);
        assert_eq!(figures.moves.migrated.get(), Some(100.0));
        assert_eq!(figures.moves.hint_local.get(), Some(0.25));
        assert_eq!(figures.moves.promoted.basis(), NOT_COUNTED);
        assert_eq!(figures.pressure.get(), Some(0.0));
        assert_eq!(figures.caches.basis(), "resctrl is not mounted");
    }

    #[test]
    fn bandwidth_by_cache_keeps_what_the_hardware_does_not_tell_apart() {
        let with = |total: u64| {
            let mut reading = reading(total);
            let bytes = resctrl::DomainBytes {
                local: None,
                total: Some(total * 4_000_000_000),
            };
            reading.bandwidth = Evidence::measured([(0, bytes)].into(), "resctrl");
            reading
        };
        let figures = figures(Some(&with(0)), &with(1), 1_000_000, &[]);
        let cache = &figures.caches.value().unwrap()[0];
        assert_eq!((cache.total_gbs, cache.local_gbs), (Some(4.0), None));
    }
}
