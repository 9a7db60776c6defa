//! The tracker `opium`: exact counters and sampled accesses from the lab's device.
//!
//! Counters are read as differences once an interval and give the global metrics (`Measured`).
//! Rings are drained in bulk and give the page statistics; see [`super::aggregate`].
//!
//! The sampling period follows the traffic, so that a second brings a set number of samples
//! whatever the program does, and less where samples turn out dear: the tracker runs inside
//! the machine that it measures.

mod cached;
mod counted;
mod figures;
mod kept;
mod own;
mod pages;
mod pmu;
mod rate;
mod spaces;
mod works;

pub use counted::FrameCounts;

use super::Tracker;
use super::aggregate::{Access, Aggregator};
use super::table::{OPIUM, OPIUM_PAGES};
use super::view::{PeriodInTime, SampleView};
use crate::error::{Error, Result};
use crate::filter;
use crate::opium::{Fills, LinkTraffic, NodeTraffic, OpiumDevice, OpiumSample, VcpuCounters};
use crate::proc::frames::FrameNodes;
use crate::proc::pagemap;
use crate::proc::tree::Tree;
use crate::root::Root;
use crate::sys;
use crate::topology::Topology;
use cached::Cached;
use figures::{COUNTERS, Loads, Sums, known, mean_share};
use hither_core::ids::{CpuId, NodeId};
use hither_core::metrics;
use hither_core::observation::Observations;
use hither_core::opium::{MAX_NODES, ring};
use hither_core::plan::Sampling;
use hither_core::policy::Rung;
use hither_core::snapshot::{Evidence, Snapshot};
use kept::Kept;
use own::Own;
pub use own::OwnTime;
use pages::EveryPage;
use pmu::{MOST_PER_CPU, Pmu, restrict};
use rate::{
    Allowance, FIRST_CHEAP_PERIOD, FIRST_PERIOD, LEAST_PERIOD, PRICE_WINDOW, affordable_in_time,
    is_worth_a_change, not_too_soon, period_for,
};
use works::Works;

/// What a sample that is kept costs after it was read, in ns: its owner, its row, its part of the
/// file. Measured in the lab: some 400 instructions.
const KEPT_NS: u64 = 400;
/// User addresses end here (57 bits with five-level page tables).
const USER_END: u64 = 1 << 56;

/// Reads the device.
#[derive(Debug)]
pub struct OpiumTracker {
    device: OpiumDevice,
    /// Snapshot position of each device node position.
    positions: Vec<usize>,
    node_ids: Vec<NodeId>,
    before: Before,
    aggregator: Aggregator,
    sampling: Sampling,
    budget: Option<f64>,
    /// What samples may cost in instructions, where somebody says so.
    allowance: Option<Allowance>,
    period: u32,
    periods: PeriodInTime,
    view: SampleView,
    ghz: Option<f64>,
    prices_ns: [f64; PRICE_WINDOW],
    price_next: usize,
    fills_per_s: f64,
    /// Samples of transfers to expect.
    transfer_samples_per_s: f64,
    notes: Vec<String>,
    foreign_samples: u64,
    scan_told: bool,
    /// For recordings.
    kept: Option<Kept>,
    /// For lists of hot pages.
    counted: Option<FrameCounts>,
    /// Every page is counted, and nothing is sampled.
    every_page: Option<EveryPage>,
    /// Are the snapshot's pages filled in?
    wants_pages: bool,
    /// Where the nodes of frames are read, once pages are filled in.
    frames_at: Option<Root>,
    /// Where only that may be told which a PMU tells.
    pmu: Option<Pmu>,
    /// What each process executes, where that is asked for.
    works: Option<Works>,
    own: Own,
}

/// Last readings.
#[derive(Debug, Default)]
struct Before {
    vcpus: Vec<VcpuCounters>,
    nodes: Vec<NodeTraffic>,
    links: Vec<LinkTraffic>,
    time_ns: u64,
}

impl OpiumTracker {
    /// Opens the device and checks that frames can be told apart. `ghz`: the clock of the
    /// modelled CPUs, where a machine file tells it.
    pub fn open(root: &Root, topology: &Topology, ghz: Option<f64>) -> Result<Self> {
        let device = OpiumDevice::open(root)?;
        let told = pagemap::frames_are_told(root).unwrap_or(false);
        if !told {
            return Err(Error::new(
                root.path("proc/self/pagemap"),
                "frame numbers are hidden, so samples cannot be tied to processes",
                filter::as_root("SYS_ADMIN"),
            ));
        }
        Self::with_device(device, root, topology, ghz)
    }

    /// On a device that is open already.
    pub fn with_device(
        device: OpiumDevice,
        root: &Root,
        topology: &Topology,
        ghz: Option<f64>,
    ) -> Result<Self> {
        let mut positions = Vec::new();
        for &id in device.node_ids() {
            positions.push(topology.position(id).ok_or_else(|| {
                Error::new(
                    root.path("sys/devices/system/node"),
                    format!("the Opium device speaks of {id}, which is not online"),
                    "boot the lab with one machine file for plugin and guest",
                )
            })?);
        }
        let huge_possible = topology.transparent_huge_pages.as_deref() != Some("never");
        let mut tracker = Self {
            node_ids: device.node_ids().to_vec(),
            positions,
            before: Before::default(),
            aggregator: Aggregator::new(huge_possible),
            sampling: Sampling::Cheap,
            budget: None,
            allowance: None,
            period: FIRST_PERIOD,
            periods: PeriodInTime::default(),
            view: SampleView::default(),
            ghz,
            prices_ns: [f64::INFINITY; PRICE_WINDOW],
            price_next: 0,
            fills_per_s: 0.0,
            transfer_samples_per_s: 0.0,
            notes: Vec::new(),
            foreign_samples: 0,
            scan_told: false,
            kept: None,
            counted: None,
            every_page: None,
            wants_pages: true,
            frames_at: Some(root.clone()),
            pmu: (device.is_pmu_only()).then(|| Pmu::new(topology, device.node_ids())),
            works: None,
            own: Own::new(root),
            device,
        };
        tracker.start();
        Ok(tracker)
    }

    /// The device itself, for windows and filters.
    #[must_use]
    pub fn device(&self) -> &OpiumDevice {
        &self.device
    }

    /// Samples so far that belonged to nobody watched.
    #[must_use]
    pub fn foreign_samples(&self) -> u64 {
        self.foreign_samples
    }

    /// References to last-level caches, where they are asked for.
    fn cached(&self) -> Option<&Cached> {
        self.works.as_ref()?.cached.as_ref()
    }

    /// Takes the first readings and throws away what somebody else left in the rings.
    fn start(&mut self) {
        let device = &mut self.device;
        self.before.vcpus = vec![VcpuCounters::default(); device.vcpu_count()];
        for (index, counters) in self.before.vcpus.iter_mut().enumerate() {
            device.drain(index, |_| ());
            device.read_vcpu(index, counters);
        }
        self.before.nodes = (0..self.positions.len())
            .map(|n| device.node_traffic(n))
            .collect();
        self.before.links = (0..device.link_count())
            .map(|l| device.link_traffic(l))
            .collect();
        self.before.time_ns = device.time_ns();
        self.aggregator.set_full(false);
        self.set_period(FIRST_PERIOD);
    }

    fn set_period(&mut self, period: u32) {
        self.period = period;
        self.periods.change(period, self.device.time_ns());
        let what = match self.pmu {
            None => Fills::All,
            Some(_) => Fills::User,
        };
        self.device.set_sampling(period, what);
    }

    /// Reads the vCPUs' counters and sums the differences.
    fn read_vcpus(&mut self) -> Sums {
        let time_ns = self.device.time_ns();
        let mut sums = Sums {
            time_ns: time_ns.saturating_sub(self.before.time_ns),
            ..Sums::default()
        };
        self.before.time_ns = time_ns;
        let mut now = VcpuCounters::default();
        for index in 0..self.device.vcpu_count() {
            self.device.read_vcpu(index, &mut now);
            let change = now.since(&self.before.vcpus[index]);
            let own = self.device.vcpu_nodes()[index];
            sums.add(&change, own, self.positions.len());
            std::mem::swap(&mut self.before.vcpus[index], &mut now);
        }
        sums
    }

    /// Fills in traffic and utilisation of nodes; returns their traffic by device position, and the
    /// bytes read of all, each in bytes.
    fn read_nodes(&mut self, interval_us: u64, snapshot: &mut Snapshot) -> ([f64; MAX_NODES], u64) {
        let mut traffic = [0.0; MAX_NODES];
        let mut all_read = 0;
        for (position, sum) in traffic.iter_mut().enumerate().take(self.positions.len()) {
            let now = self.device.node_traffic(position);
            let before = std::mem::replace(&mut self.before.nodes[position], now);
            let read = now.read_bytes.wrapping_sub(before.read_bytes);
            let written = now.write_bytes.wrapping_sub(before.write_bytes);
            let integral = now
                .utilisation_integral
                .wrapping_sub(before.utilisation_integral);
            *sum = (read + written) as f64;
            all_read += read;
            let state = &mut snapshot.nodes[self.positions[position]];
            state.read_bytes = Evidence::measured(read, COUNTERS);
            state.write_bytes = Evidence::measured(written, COUNTERS);
            state.utilisation = match &self.pmu {
                None => Evidence::measured(mean_share(integral, interval_us), COUNTERS),
                Some(pmu) => pmu
                    .ratings
                    .utilisation(position, read + written, interval_us),
            };
        }
        (traffic, all_read)
    }

    /// Mean utilisation of the links and its imbalance.
    fn read_links(&mut self, interval_us: u64) -> (Evidence<f64>, Evidence<f64>) {
        let mut uses = Vec::with_capacity(self.before.links.len());
        for position in 0..self.before.links.len() {
            let now = self.device.link_traffic(position);
            let before = std::mem::replace(&mut self.before.links[position], now);
            let integral = now
                .utilisation_integral
                .wrapping_sub(before.utilisation_integral);
            uses.push(mean_share(integral, interval_us));
        }
        let mean = uses.iter().sum::<f64>() / uses.len() as f64;
        let some = (!uses.is_empty()).then_some(mean);
        (
            known(some, "this machine has no links"),
            known(metrics::imbalance(&uses), "no traffic on the links"),
        )
    }

    /// Drains the rings into the snapshot's pages; returns how many samples there were and what
    /// draining took in ns. Looking up new pages is left out of that: it is paid once per page
    /// and move, so that as a part of the price it would starve the intervals that matter most.
    fn read_samples(&mut self, tree: &mut Tree, snapshot: &mut Snapshot) -> (u64, u64) {
        if let Some(root) = self.frames_at.take() {
            self.aggregator.set_frames(FrameNodes::read(&root));
        }
        let start_ns = sys::monotonic_ns();
        let mut drained = 0;
        self.view.begin(snapshot.nodes.len());
        let mut answers = vec![Loads::default(); snapshot.nodes.len()];
        let aggregator = &mut self.aggregator;
        aggregator.begin(&mut snapshot.pages);
        for index in 0..self.device.vcpu_count() {
            let node = self.device.vcpu_nodes()[index];
            let from = self.positions[node];
            let node_ids = &self.node_ids;
            let (positions, periods, view) = (&self.positions, &self.periods, &mut self.view);
            let kept = &mut self.kept;
            let cpu = Some(CpuId(index as u32));
            let pages = &mut snapshot.pages;
            let is_sampled = self.period > 0;
            let mut cached = self.works.as_mut().and_then(|works| works.cached.as_mut());
            drained += self.device.drain(index, |sample| {
                if sample.flags & ring::REFERENCE != 0 {
                    if let Some(cached) = &mut cached {
                        cached.take(&sample);
                    }
                    return;
                }
                // What vCPUs wrote until they noticed the switch is no picture of the interval.
                if !is_sampled || is_untold(&mut self.pmu, &sample) {
                    return;
                }
                let Some(&home) = positions.get(usize::from(sample.node)) else {
                    return;
                };
                let is_transfer = sample.flags & ring::TRANSFER != 0;
                if is_transfer && kept.is_none() {
                    return;
                }
                let fills = f64::from(periods.at(sample.time_ns));
                let write = sample.flags & ring::WRITE != 0;
                match access(&sample, from, node_ids) {
                    Some(access) => {
                        if !is_transfer {
                            view.add(fills, from, home, write);
                        }
                        if ring::tells_latency(sample.flags) {
                            answers[home].add(sample.latency_ns);
                        }
                        let page = aggregator.add(&access, pages);
                        if let Some(kept) = kept {
                            let from = node_ids.get(node).copied();
                            kept.keep(page, &sample, &access, cpu, from, fills as u32);
                        }
                    }
                    None if is_transfer => {}
                    None => view.add_traffic(fills, home, write),
                }
            });
        }
        for (node, answers) in snapshot.nodes.iter_mut().zip(&answers) {
            node.latency_ns = answers.mean_ns();
        }
        let cost_ns = sys::monotonic_ns().saturating_sub(start_ns);
        let found = aggregator.finish(tree, &mut snapshot.pages, &mut snapshot.present);
        if let Some(kept) = &mut self.kept {
            kept.attribute(aggregator);
        }
        self.foreign_samples += found.foreign;
        snapshot.sample_count = self.told_count(found.attributed);
        (drained, cost_ns)
    }

    /// Drains the rings where nobody wants pages, but only the samples of watched processes.
    /// Returns as [`OpiumTracker::read_samples`].
    fn read_kept(&mut self, tree: &mut Tree, snapshot: &mut Snapshot) -> (u64, u64) {
        let start_ns = sys::monotonic_ns();
        snapshot.pages.clear();
        let mut drained = 0;
        let is_sampled = self.period > 0;
        let Some(kept) = &mut self.kept else {
            for index in 0..self.device.vcpu_count() {
                drained += self.device.drain(index, |_| ());
            }
            snapshot.sample_count = Evidence::unknown("samples are neither summed up nor kept");
            return (drained, 0);
        };
        kept.begin(tree);
        for index in 0..self.device.vcpu_count() {
            let node = self.device.vcpu_nodes()[index];
            let (from, node_ids) = (self.positions[node], &self.node_ids);
            let from_node = node_ids.get(node).copied();
            let cpu = Some(CpuId(index as u32));
            let periods = &self.periods;
            drained += self.device.drain(index, |sample| {
                if is_untold(&mut self.pmu, &sample) {
                    return;
                }
                if let Some(access) = access(&sample, from, node_ids).filter(|_| is_sampled) {
                    let fills = periods.at(sample.time_ns);
                    kept.keep_owned(&sample, &access, cpu, from_node, fills);
                }
            });
        }
        let cost_ns = sys::monotonic_ns().saturating_sub(start_ns) + drained * KEPT_NS;
        let (attributed, foreign) = kept.finish(tree);
        self.foreign_samples += foreign;
        snapshot.sample_count = self.told_count(attributed);
        (drained, cost_ns)
    }

    fn told_count(&self, attributed: u64) -> Evidence<u64> {
        match self.sampling {
            Sampling::Off => Evidence::unknown("sampling is switched off"),
            _ => Evidence::measured(attributed, "opium sample rings"),
        }
    }

    /// The period for the traffic and the price seen last; `None` before any was.
    fn wanted_period(&self, sampling: Sampling) -> Option<u32> {
        let all = self.affordable(sampling);
        let left = (all - self.transfer_samples_per_s).max(all / 4.0);
        period_for(sampling, left, self.fills_per_s)
    }

    /// Samples per second, of fills and transfers together, whose cost keeps to the budgets as far as
    /// their price is known.
    fn affordable(&self, sampling: Sampling) -> f64 {
        let price_ns = self.prices_ns.iter().copied().fold(f64::INFINITY, f64::min);
        let in_time = affordable_in_time(sampling, self.budget, price_ns);
        let in_instructions = self.allowance.as_ref().map(Allowance::rate);
        let of_a_pmu = self
            .pmu
            .as_ref()
            .map(|_| MOST_PER_CPU * self.device.vcpu_count() as f64);
        let limits = [in_instructions, of_a_pmu].into_iter().flatten();
        limits.fold(in_time, f64::min)
    }

    /// Sets the period for the next interval from the traffic of this one and the price of a
    /// sample.
    fn adapt(&mut self, sums: &Sums, drained: u64, cost_ns: u64) {
        if drained >= 64 {
            self.prices_ns[self.price_next] = cost_ns as f64 / drained as f64;
            self.price_next = (self.price_next + 1) % PRICE_WINDOW;
        }
        let seconds = sums.time_ns as f64 / 1e9;
        if seconds > 0.0 {
            self.fills_per_s = (sums.user_reads + sums.user_writes) as f64 / seconds;
        }
        if let Some(allowance) = &mut self.allowance {
            let owners = self.kept.as_mut().map_or(0, Kept::take_instructions);
            allowance.add(seconds, sums.instructions, drained, owners);
        }
        let is_counted = self.allowance.is_some();
        let next = |period, wanted| {
            let wanted = match is_counted {
                true => not_too_soon(period, wanted),
                false => wanted,
            };
            // Small changes are not worth a write that the plugin must notice.
            is_worth_a_change(period, wanted).then_some(wanted)
        };
        // Transfers get half at the most, fills what is left.
        let half = self.affordable(self.sampling) / 2.0;
        if let Some(kept) = &mut self.kept
            && seconds > 0.0
        {
            let per_s = sums.transfers as f64 / seconds;
            let wanted = period_for(self.sampling, half, per_s);
            let wanted = wanted.unwrap_or(LEAST_PERIOD as u32);
            if let Some(period) = next(kept.transfer_period(), wanted) {
                kept.set_transfer_period(&self.device, period);
            }
            self.transfer_samples_per_s = match kept.transfer_period() {
                0 => 0.0,
                period => per_s / f64::from(period),
            };
        }
        let wanted = self.wanted_period(self.sampling).unwrap_or(self.period);
        if let Some(period) = next(self.period, wanted) {
            self.set_period(period);
        }
    }
}

/// Is it a sample of something else than memory, or one that a PMU would not take? Otherwise its latency is
/// summed up, where that is asked.
fn is_untold(pmu: &mut Option<Pmu>, sample: &OpiumSample) -> bool {
    if sample.flags & ring::REFERENCE != 0 {
        return true;
    }
    let Some(pmu) = pmu else {
        return false;
    };
    if ring::tells_latency(sample.flags) {
        pmu.sampled.add(sample.latency_ns);
    }
    !ring::is_load(sample.flags)
}

/// The access that a sample tells of; `None` for kernel accesses and nonsense.
fn access(sample: &OpiumSample, from: usize, node_ids: &[NodeId]) -> Option<Access> {
    let home = *node_ids.get(usize::from(sample.node))?;
    let user = sample.flags & ring::KERNEL == 0 && sample.vaddr < USER_END;
    user.then_some(Access {
        page: sample.vaddr >> 12,
        frame: sample.paddr >> 12,
        from,
        home,
        write: sample.flags & ring::WRITE != 0,
        time_ns: sample.time_ns,
    })
}

impl Tracker for OpiumTracker {
    fn name(&self) -> &'static str {
        match self.every_page {
            None => OPIUM.name,
            Some(_) => OPIUM_PAGES.name,
        }
    }

    fn rung(&self) -> Option<Rung> {
        Some(match self.pmu {
            Some(_) => Rung::Pmu,
            None => Rung::Device,
        })
    }

    fn set_sampling(&mut self, sampling: Sampling) {
        if self.sampling == sampling || self.every_page.is_some() {
            return;
        }
        let unknown_yet = match sampling {
            _ if self.allowance.is_some() => FIRST_CHEAP_PERIOD,
            Sampling::Full if self.wants_pages => LEAST_PERIOD as u32,
            _ => FIRST_PERIOD,
        };
        self.sampling = sampling;
        self.set_period(self.wanted_period(sampling).unwrap_or(unknown_yet));
        self.aggregator.set_full(sampling == Sampling::Full);
    }

    fn observe(&mut self, tree: &mut Tree, snapshot: &mut Snapshot) -> Result<()> {
        let begun_ns = sys::thread_cpu_ns();
        let sums = self.read_vcpus();
        // The device's own clock fits its integrals best; the caller's serves where it stands.
        let interval_us = match sums.time_ns / 1000 {
            0 => snapshot.interval_us,
            interval_us => interval_us,
        };
        let (traffic, read_bytes) = self.read_nodes(interval_us, snapshot);
        let traffic = &traffic[..self.positions.len()];
        snapshot.metrics = sums.figures(traffic, interval_us, self.ghz);
        (snapshot.metrics.link_use, snapshot.metrics.link_imbalance) = self.read_links(interval_us);
        snapshot.sample_period = self.period;
        snapshot.samples_lost = sums.lost;
        if self.every_page.is_some() {
            self.read_every_page(tree, snapshot);
            return Ok(());
        }
        if self.counted.is_some() {
            let (drained, cost_ns) = self.read_counted(snapshot);
            let other_ns = sys::thread_cpu_ns().saturating_sub(begun_ns + cost_ns);
            self.adapt_counting(&sums, drained, cost_ns, other_ns);
            return Ok(());
        }
        let (drained, cost_ns) = match self.wants_pages {
            true => self.read_samples(tree, snapshot),
            false => self.read_kept(tree, snapshot),
        };
        if let Some(pmu) = &mut self.pmu {
            let sampled = std::mem::take(&mut pmu.sampled);
            let lines = read_bytes / u64::from(self.device.line_bytes());
            restrict(&mut snapshot.metrics, sampled, lines, interval_us);
        }
        self.adapt(&sums, drained, cost_ns);
        if self.aggregator.scan_refused() && !self.scan_told {
            self.scan_told = true;
            self.notes.push(
                "this kernel does not tell huge pages apart (PAGEMAP_SCAN, Linux 6.7): they are \
                 planned as small pages, and still move whole"
                    .to_owned(),
            );
        }
        Ok(())
    }

    fn own_cpu_ns(&mut self) -> Option<u64> {
        self.own.cpu_ns(&self.device)
    }

    fn count_work(&mut self) {
        self.works.get_or_insert_with(|| Works::new(&self.device));
    }

    fn count_references(&mut self) {
        let works = self.works.get_or_insert_with(|| Works::new(&self.device));
        works.count_references(&self.device);
    }

    fn counts_references(&self) -> bool {
        self.cached().is_some()
    }

    fn fill_in_work(&mut self, tree: &Tree, snapshot: &mut Snapshot) {
        if let Some(works) = &mut self.works {
            let is_pmu = self.pmu.is_some();
            works.fill_in(&self.device, is_pmu, self.sampling, tree, snapshot);
        }
    }

    fn view(&self) -> Option<&SampleView> {
        Some(&self.view)
    }

    fn set_budget(&mut self, cpu_share: f64) {
        self.budget = Some(cpu_share);
    }

    fn set_instruction_budget(&mut self, share: f64) {
        match &mut self.allowance {
            Some(allowance) => allowance.set_share(share),
            None => self.allowance = Some(Allowance::new(share)),
        }
    }

    fn keep_observations(&mut self, keep: bool) {
        self.aggregator.keep_owners(keep);
        self.kept = keep.then(|| Kept::new(&self.device));
        match &mut self.kept {
            Some(kept) => {
                let unknown_yet = match self.allowance {
                    Some(_) => FIRST_CHEAP_PERIOD,
                    None => FIRST_PERIOD,
                };
                kept.set_transfer_period(&self.device, unknown_yet);
            }
            None => self.device.set_transfer_sampling(0),
        }
    }

    fn fill_in_pages(&mut self, fill_in: bool) {
        self.wants_pages = fill_in;
    }

    fn take_observations(&mut self, into: &mut Observations) {
        if let Some(kept) = &mut self.kept {
            kept.take(&mut into.samples);
        }
    }

    fn stop(&mut self) {
        self.device.set_sampling(0, Fills::All);
        self.device.set_transfer_sampling(0);
        if self.cached().is_some() {
            self.device.set_reference_sampling(0, 0);
        }
        self.stop_counting();
    }

    fn take_notes(&mut self) -> Vec<String> {
        std::mem::take(&mut self.notes)
    }
}

impl Drop for OpiumTracker {
    fn drop(&mut self) {
        self.stop();
    }
}

#[cfg(test)]
mod tests;
