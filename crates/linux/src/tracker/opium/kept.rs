//! Samples for recordings: as they are, with the process that each is of.

use super::super::aggregate::{Access, Aggregator};
use super::super::view::PeriodInTime;
use super::spaces::Spaces;
use crate::opium::{OpiumDevice, OpiumSample};
use crate::proc::tree::Tree;
use crate::sys;
use hither_core::ids::{CpuId, NodeId, Pid};
use hither_core::observation::{AccessKind, SampledAccess};
use hither_core::opium::ring;

/// The samples, and how their owners are found: by the pages that the aggregator sums up, or where
/// nobody wants those, by [`Spaces`].
#[derive(Debug)]
pub(super) struct Kept {
    /// From the device's clock to CLOCK_MONOTONIC.
    offset_ns: i64,
    /// Each with the number of its page, until the aggregator knows the owners.
    pending: Vec<(u32, SampledAccess)>,
    spaces: Spaces,
    /// Each with its page table, until the page maps have been asked.
    asked: Vec<(u64, SampledAccess)>,
    foreign: u64,
    /// Samples that were there when the interval began.
    before: usize,
    samples: Vec<SampledAccess>,
    /// Of the sampling of transfers, which only recordings have a use for.
    transfer_period: u32,
    transfer_periods: PeriodInTime,
}

impl Kept {
    pub fn new(device: &OpiumDevice) -> Self {
        Self {
            offset_ns: sys::monotonic_ns()
                .wrapping_sub(device.time_ns())
                .cast_signed(),
            pending: Vec::new(),
            spaces: Spaces::default(),
            asked: Vec::new(),
            foreign: 0,
            before: 0,
            samples: Vec::new(),
            transfer_period: 0,
            transfer_periods: PeriodInTime::default(),
        }
    }

    pub fn transfer_period(&self) -> u32 {
        self.transfer_period
    }

    pub fn set_transfer_period(&mut self, device: &OpiumDevice, period: u32) {
        self.transfer_period = period;
        self.transfer_periods.change(period, device.time_ns());
        device.set_transfer_sampling(period);
    }

    /// Keeps a sample of the aggregator's page of this number.
    pub fn keep(
        &mut self,
        page: u32,
        sample: &OpiumSample,
        access: &Access,
        cpu: Option<CpuId>,
        from: Option<NodeId>,
        fills: u32,
    ) {
        let sampled = self.sampled(sample, access, cpu, from, fills);
        self.pending.push((page, sampled));
    }

    /// Keeps those of watched processes, as the aggregator knows them now.
    pub fn attribute(&mut self, aggregator: &Aggregator) {
        let owned = self.pending.drain(..).filter_map(|(page, sample)| {
            let pid = aggregator.owner(page)?;
            Some(SampledAccess { pid, ..sample })
        });
        self.samples.extend(owned);
    }

    /// Begins an interval without an aggregator.
    pub fn begin(&mut self, tree: &Tree) {
        self.spaces.begin(tree);
        self.before = self.samples.len();
    }

    /// Keeps a sample of an interval without an aggregator.
    pub fn keep_owned(
        &mut self,
        sample: &OpiumSample,
        access: &Access,
        cpu: Option<CpuId>,
        from: Option<NodeId>,
        fills: u32,
    ) {
        let table = sample.page_table;
        if self.spaces.add(table, access.page, access.frame) {
            let sampled = self.sampled(sample, access, cpu, from, fills);
            self.asked.push((table, sampled));
        } else {
            self.foreign += 1;
        }
    }

    /// Ends an interval without an aggregator; returns how many samples were of watched processes,
    /// and how many were not.
    pub fn finish(&mut self, tree: &mut Tree) -> (u64, u64) {
        self.spaces.look_up(tree);
        for (table, mut sampled) in self.asked.drain(..) {
            match self.spaces.owner(table) {
                Some(pid) => {
                    sampled.pid = Pid(pid);
                    self.samples.push(sampled);
                }
                None => self.foreign += 1,
            }
        }
        let attributed = self.samples.len() - self.before;
        (attributed as u64, std::mem::take(&mut self.foreign))
    }

    /// What finding owners took since the last call, in instructions.
    pub fn take_instructions(&mut self) -> u64 {
        self.spaces.take_instructions()
    }

    /// Appends what was kept since the last call.
    pub fn take(&mut self, into: &mut Vec<SampledAccess>) {
        into.append(&mut self.samples);
    }

    fn sampled(
        &self,
        sample: &OpiumSample,
        access: &Access,
        cpu: Option<CpuId>,
        from: Option<NodeId>,
        fills: u32,
    ) -> SampledAccess {
        let is_transfer = sample.flags & ring::TRANSFER != 0;
        let weight = match is_transfer {
            true => self.transfer_periods.at(sample.time_ns),
            false => fills,
        };
        SampledAccess {
            time_ns: sample.time_ns.saturating_add_signed(self.offset_ns),
            pid: Pid(0),
            tid: None,
            cpu,
            from,
            home: Some(access.home),
            address: sample.vaddr,
            code: (sample.code != 0).then_some(sample.code),
            kind: match access.write {
                true => AccessKind::Write,
                false => AccessKind::Read,
            },
            latency_ns: Some(sample.latency_ns),
            from_cache: Some(is_transfer),
            weight: weight.max(1),
        }
    }
}
