//! Load on controllers and links: who delays whom.
//!
//! Two mechanisms, on purpose. *Latency* follows the loaded-latency curve at the utilisation of
//! the last tens of microseconds. *Capacity* is enforced by booking: time is cut into windows of
//! 1 us, each resource gives each window so many bytes, and traffic that finds its windows full
//! takes later ones; the vCPU's time then moves to where its traffic ended. Booking by window
//! instead of a single "free at" time makes the order in which threads run on the host
//! irrelevant, as vCPUs may be microseconds apart.
//!
//! vCPUs post their traffic at each synchronisation, so the path of a single miss touches no
//! shared word. Bytes in flight on links include the configured overhead.

use crate::device::Device;
use hither_core::machine::Machine;
use hither_core::opium;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

const WINDOW_PS: u64 = 1_000_000;
const WINDOWS: usize = 4096;
/// Backlog that queueing (the curve) accounts for already; only more is a matter of capacity.
const SLACK_WINDOWS: u64 = 4;
const EPOCH_PS: u64 = 10_000_000;
/// Utilisation is an exponential mean over about this long. Latency feeds back on traffic: near
/// saturation by a factor of ten and more (at 95 % of an M/M/1 queue), with a dead time of an epoch
/// and the skew, about 25 us. The loop swings unless the mean is longer than gain times dead time.
const SMOOTHING_PS: f64 = 500_000_000.0;
/// Window number and bytes in one word, so that a stale window is recognised and reset.
const BYTES_BITS: u32 = 24;

/// A ring of windows of one controller or link.
struct Booking {
    windows: Vec<AtomicU64>,
}

impl Booking {
    fn new() -> Self {
        Self {
            windows: (0..WINDOWS).map(|_| AtomicU64::new(0)).collect(),
        }
    }

    /// Books `bytes` for a vCPU whose interval was `from..to` (ps); returns its delay in ps.
    fn book(&self, from: u64, to: u64, mut bytes: u64, gbs: f64) -> u64 {
        let size = ((gbs * (WINDOW_PS / 1000) as f64) as u64).clamp(1, (1 << BYTES_BITS) - 1);
        let last = to / WINDOW_PS;
        let mut window = (from / WINDOW_PS).max(last.saturating_sub(WINDOWS as u64 / 2));
        let limit = window + WINDOWS as u64 / 2;
        loop {
            let used = self.take(window, bytes.min(size), size);
            bytes -= used.1;
            if bytes == 0 {
                if window <= last + SLACK_WINDOWS {
                    return 0;
                }
                let within = (used.0 + used.1) * WINDOW_PS / size;
                return (window - SLACK_WINDOWS) * WINDOW_PS + within - to;
            }
            window += 1;
            if window == limit {
                return ((window - SLACK_WINDOWS) * WINDOW_PS).saturating_sub(to);
            }
        }
    }

    /// Takes up to `wanted` bytes of a window: (bytes used before, bytes taken).
    fn take(&self, window: u64, wanted: u64, size: u64) -> (u64, u64) {
        let word = &self.windows[window as usize % WINDOWS];
        let mask = (1 << BYTES_BITS) - 1;
        let mut seen = word.load(Relaxed);
        loop {
            let used = if seen >> BYTES_BITS == window {
                seen & mask
            } else {
                0
            };
            let taken = wanted.min(size.saturating_sub(used));
            if taken == 0 {
                return (used, 0);
            }
            let next = window << BYTES_BITS | (used + taken);
            match word.compare_exchange_weak(seen, next, Relaxed, Relaxed) {
                Ok(_) => return (used, taken),
                Err(now) => seen = now,
            }
        }
    }
}

/// Bytes of one resource and its state.
struct Resource {
    read: AtomicU64,
    written: AtomicU64,
    /// Of a node: packets to and from other nodes, without a line and with one.
    packets: [AtomicU64; 2],
    booking: Booking,
    /// f64 bits: capacity at the recent read share. Written at epochs.
    gbs: AtomicU64,
}

impl Resource {
    fn new(gbs: f64) -> Self {
        Self {
            read: AtomicU64::new(0),
            written: AtomicU64::new(0),
            packets: [const { AtomicU64::new(0) }; 2],
            booking: Booking::new(),
            gbs: AtomicU64::new(gbs.to_bits()),
        }
    }

    fn gbs(&self) -> f64 {
        f64::from_bits(self.gbs.load(Relaxed))
    }
}

/// What the epoch's thread keeps.
#[derive(Clone)]
struct Epoch {
    start_ps: u64,
    seen: Vec<(u64, u64)>,
    mean: Vec<f64>,
    read_share: Vec<f64>,
}

/// Lines that a vCPU moved since it last synchronised, by node position.
#[derive(Clone, Copy, Default)]
pub struct Traffic {
    /// Lines read.
    pub read: [u32; opium::MAX_NODES],
    /// Lines written.
    pub written: [u32; opium::MAX_NODES],
    /// Lines that were held and became the CPU's own: a request and an answer without data.
    pub asked: [u32; opium::MAX_NODES],
}

/// Latency and stream cost of one initiator, by target position, in ps.
#[derive(Clone, Copy, Default)]
pub struct Prices {
    /// End of the epoch that they are of.
    epoch_end_ps: u64,
    /// A demand miss.
    pub latency_ps: [u64; opium::MAX_NODES],
    /// A line of a stream.
    pub stream_ps: [u64; opium::MAX_NODES],
}

/// Load of the whole machine.
pub struct Load {
    nodes: Vec<Resource>,
    links: Vec<Resource>,
    /// Coherence units by node; used where the machine says what they handle.
    units: Vec<Booking>,
    /// `(node, requester) -> [(link, share)]` for lines read; writes use the way back.
    ways: Vec<Vec<Vec<(usize, f64)>>>,
    epoch: Mutex<Epoch>,
    /// End of the running epoch in ps, so that most synchronisations need no lock.
    epoch_end_ps: AtomicU64,
    /// Latency in ps, `[initiator][target]`. Written at epochs.
    latency_ps: Vec<Vec<AtomicU64>>,
    line_bytes: u64,
}

impl Load {
    /// An idle machine.
    pub fn new(machine: &Machine) -> Self {
        let ways = (machine.routes.iter())
            .map(|to| {
                to.iter()
                    .map(|routes| {
                        let mut ways: Vec<(usize, f64)> = Vec::new();
                        for route in routes {
                            for &link in &route.links {
                                match ways.iter_mut().find(|(known, _)| *known == link) {
                                    Some((_, share)) => *share += route.share,
                                    None => ways.push((link, route.share)),
                                }
                            }
                        }
                        ways
                    })
                    .collect()
            })
            .collect();
        let count = machine.nodes.len();
        let resources = count + machine.links.len();
        let latency_ps = (0..count)
            .map(|initiator| {
                (0..count)
                    .map(|target| {
                        AtomicU64::new((machine.idle_latency_ns(initiator, target) * 1000.0) as u64)
                    })
                    .collect()
            })
            .collect();
        Self {
            nodes: machine
                .nodes
                .iter()
                .map(|node| Resource::new(node.capacity.at(1.0)))
                .collect(),
            links: machine
                .links
                .iter()
                .map(|link| Resource::new(link.gbs))
                .collect(),
            units: (0..count).map(|_| Booking::new()).collect(),
            ways,
            epoch: Mutex::new(Epoch {
                start_ps: 0,
                seen: vec![(0, 0); resources],
                mean: vec![0.0; resources],
                read_share: vec![1.0; resources],
            }),
            epoch_end_ps: AtomicU64::new(EPOCH_PS),
            latency_ps,
            line_bytes: u64::from(machine.line_bytes),
        }
    }

    /// Books what a vCPU of `requester` moved during `from..to` ps; returns its delay in ps.
    pub fn post(
        &self,
        machine: &Machine,
        requester: usize,
        traffic: &Traffic,
        from: u64,
        to: u64,
    ) -> u64 {
        let mut delay = 0;
        let mut link_bytes = [0f64; opium::MAX_LINKS];
        for node in 0..self.nodes.len() {
            let read = u64::from(traffic.read[node]) * self.line_bytes;
            let written = u64::from(traffic.written[node]) * self.line_bytes;
            let asked = u64::from(traffic.asked[node]) * self.line_bytes;
            if read + written + asked == 0 {
                continue;
            }
            if let Some(gbs) = machine.coherence.unit_gbs.filter(|_| node != requester) {
                // A unit works for packets: two for a line, whether it moves or changes hands.
                let bytes = read + written + asked;
                for unit in [node, requester] {
                    delay = delay.max(self.units[unit].book(from, to, bytes, gbs));
                }
            }
            let resource = &self.nodes[node];
            if node != requester {
                // Asking for a line to own is answered without the line.
                let short = u64::from(traffic.read[node]) + 2 * u64::from(traffic.asked[node]);
                let lines = u64::from(traffic.read[node]) + u64::from(traffic.written[node]);
                resource.packets[0].fetch_add(short, Relaxed);
                resource.packets[1].fetch_add(lines, Relaxed);
            }
            resource.read.fetch_add(read, Relaxed);
            if written > 0 {
                resource.written.fetch_add(written, Relaxed);
            }
            delay = delay.max(
                resource
                    .booking
                    .book(from, to, read + written, resource.gbs()),
            );
            for &(link, share) in &self.ways[node][requester] {
                link_bytes[link] += read as f64 * share;
            }
            for &(link, share) in &self.ways[requester][node] {
                link_bytes[link] += written as f64 * share;
            }
        }
        for (link, resource) in self.links.iter().enumerate() {
            if link_bytes[link] > 0.0 {
                let bytes = (link_bytes[link] * machine.links[link].overhead) as u64;
                resource.read.fetch_add(bytes, Relaxed);
                delay = delay.max(resource.booking.book(from, to, bytes, resource.gbs()));
            }
        }
        delay
    }

    /// Closes the epoch where `now_ps` is beyond it: utilisations, latencies, device words.
    pub fn advance(&self, machine: &Machine, device: &Device, now_ps: u64) {
        if now_ps < self.epoch_end_ps.load(Relaxed) {
            return;
        }
        let Ok(mut epoch) = self.epoch.try_lock() else {
            return;
        };
        if now_ps < epoch.start_ps + EPOCH_PS {
            return;
        }
        let span_ps = (now_ps - epoch.start_ps) as f64;
        let weight = 1.0 - (-span_ps / SMOOTHING_PS).exp();
        for index in 0..self.nodes.len() + self.links.len() {
            self.close(machine, device, &mut epoch, index, span_ps, weight);
        }
        self.reprice(machine, &epoch.mean);
        epoch.start_ps = now_ps;
        self.epoch_end_ps.store(now_ps + EPOCH_PS, Relaxed);
    }

    fn close(
        &self,
        machine: &Machine,
        device: &Device,
        epoch: &mut Epoch,
        index: usize,
        span_ps: f64,
        weight: f64,
    ) {
        let is_node = index < self.nodes.len();
        let resource = if is_node {
            &self.nodes[index]
        } else {
            &self.links[index - self.nodes.len()]
        };
        let total = (resource.read.load(Relaxed), resource.written.load(Relaxed));
        let (read, written) = (total.0 - epoch.seen[index].0, total.1 - epoch.seen[index].1);
        epoch.seen[index] = total;
        let bytes = (read + written) as f64;
        if is_node && bytes > 0.0 {
            let share = &mut epoch.read_share[index];
            *share += weight * (read as f64 / bytes - *share);
            resource
                .gbs
                .store(machine.nodes[index].capacity.at(*share).to_bits(), Relaxed);
        }
        let used = bytes * 1000.0 / span_ps / resource.gbs();
        epoch.mean[index] += weight * (used - epoch.mean[index]);
        let base = if is_node {
            let base = opium::node::BASE + 64 * index;
            device.set(base + opium::node::READ_BYTES, total.0);
            device.set(base + opium::node::WRITE_BYTES, total.1);
            for (word, count) in [opium::node::SHORT_PACKETS, opium::node::LINE_PACKETS]
                .into_iter()
                .zip(&resource.packets)
            {
                device.set(base + word, count.load(Relaxed));
            }
            base
        } else {
            let base = opium::link::BASE + 64 * (index - self.nodes.len());
            device.set(base + opium::link::BYTES, total.0);
            base
        };
        let ppm = (epoch.mean[index] * 1e6) as u32;
        device
            .u32(base + opium::node::UTILISATION_PPM)
            .store(ppm, Relaxed);
        device
            .u32(base + opium::node::CAPACITY_MBS)
            .store((resource.gbs() * 1000.0) as u32, Relaxed);
        device.add(
            base + opium::node::UTILISATION_INTEGRAL,
            (used * span_ps) as u64,
        );
    }

    fn reprice(&self, machine: &Machine, mean: &[f64]) {
        let (nodes, links) = (machine.nodes.iter(), machine.links.iter());
        let curves = (nodes.map(|node| &node.curve)).chain(links.map(|link| &link.curve));
        let queueing: Vec<f64> = (curves.zip(mean))
            .map(|(curve, &used)| curve.queueing_ns(used))
            .collect();
        let (nodes, links) = queueing.split_at(machine.nodes.len());
        for (initiator, row) in self.latency_ps.iter().enumerate() {
            for (target, cell) in row.iter().enumerate() {
                let ways = self.ways[target][initiator].iter();
                let ns = machine.idle_latency_ns(initiator, target)
                    + nodes[target]
                    + ways.map(|&(link, share)| share * links[link]).sum::<f64>();
                cell.store((ns * 1000.0) as u64, Relaxed);
            }
        }
    }

    /// Brings the prices of a vCPU of this node up to the present epoch's.
    pub fn refresh(&self, machine: &Machine, initiator: usize, prices: &mut Prices) {
        let epoch_end_ps = self.epoch_end_ps.load(Relaxed);
        if prices.epoch_end_ps == epoch_end_ps {
            return;
        }
        prices.epoch_end_ps = epoch_end_ps;
        // Little's law: the bytes in flight that give `stream_gbs` at the idle local latency.
        let per_ps =
            self.line_bytes as f64 / (machine.cpu.stream_gbs * machine.nodes[initiator].idle_ns);
        for (target, cell) in self.latency_ps[initiator].iter().enumerate() {
            let latency = cell.load(Relaxed);
            prices.latency_ps[target] = latency;
            prices.stream_ps[target] = (latency as f64 * per_ps) as u64;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Books `bytes` per 2 us for `vcpus` in turn and returns total bytes over final time, GB/s.
    fn closed_loop(vcpus: usize, bytes: u64, gbs: f64, rounds: usize) -> f64 {
        let booking = Booking::new();
        let mut time = vec![0u64; vcpus];
        let mut booked = 0;
        while booked < rounds as u64 {
            let slowest = (0..vcpus).min_by_key(|&vcpu| time[vcpu]).unwrap();
            let (from, to) = (time[slowest], time[slowest] + 2_000_000);
            time[slowest] = to + booking.book(from, to, bytes, gbs);
            booked += 1;
        }
        (booked * bytes) as f64 * 1000.0 / time.iter().copied().max().unwrap() as f64
    }

    #[test]
    fn below_capacity_nobody_waits() {
        // 4 vCPUs x 2 KB / 2 us = 4 GB/s of 6: time stays 2 us a round.
        let achieved = closed_loop(4, 2000, 6.0, 4000);
        assert!((achieved - 4.0).abs() < 0.05, "{achieved}");
    }

    #[test]
    fn beyond_capacity_the_resource_gives_its_capacity() {
        // 8 vCPUs x 4 KB / 2 us = 16 GB/s wanted of 6.
        let achieved = closed_loop(8, 4000, 6.0, 40_000);
        assert!((achieved / 6.0 - 1.0).abs() < 0.03, "{achieved}");
    }

    #[test]
    fn a_vcpu_behind_in_time_uses_its_own_windows() {
        let booking = Booking::new();
        assert_eq!(booking.book(10_000_000, 12_000_000, 8000, 6.0), 0);
        assert_eq!(booking.book(2_000_000, 4_000_000, 8000, 6.0), 0);
    }
}
