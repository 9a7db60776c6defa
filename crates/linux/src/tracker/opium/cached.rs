//! What each address space asks of the last-level caches: its working set, from samples of the references.

use super::works::Works;
use crate::opium::{OpiumDevice, OpiumSample};
use hither_core::plan::Sampling;
use hither_core::working_set::WorkingSets;

/// References of which one may be a sample.
const PERIOD: u32 = 32;

/// Samples in a second over all CPUs: working sets of some MiB are told by half a second of them. Each takes about 1 us.
fn wanted_per_s(sampling: Sampling) -> u32 {
    match sampling {
        Sampling::Full => 30_000,
        Sampling::Cheap => 10_000,
        Sampling::Off => 1000,
    }
}

/// Samples of references, by page table.
#[derive(Debug)]
pub(super) struct Cached {
    sets: WorkingSets<u64>,
    line_shift: u32,
    least_ns: u32,
}

impl Cached {
    /// References are sampled from now on.
    pub fn new(device: &OpiumDevice) -> Self {
        let mut cached = Self {
            sets: WorkingSets::default(),
            line_shift: device.line_bytes().trailing_zeros(),
            least_ns: 0,
        };
        cached.turn(device, Sampling::Full, 0);
        cached
    }

    /// Takes in a sample of a reference.
    pub fn take(&mut self, sample: &OpiumSample) {
        self.sets
            .take(sample.page_table, sample.vaddr >> self.line_shift);
    }

    /// Bytes of the working set of an address space, where they are known.
    pub fn bytes(&self, page_table: u64) -> Option<u64> {
        Some(self.sets.lines(&page_table)? << self.line_shift)
    }

    /// Goes on in time.
    pub fn turn(&mut self, device: &OpiumDevice, sampling: Sampling, now_us: u64) {
        self.sets.turn(now_us);
        let least_ns = 1_000_000_000 / wanted_per_s(sampling) * device.vcpu_count() as u32;
        if std::mem::replace(&mut self.least_ns, least_ns) != least_ns {
            device.set_reference_sampling(PERIOD, least_ns);
        }
    }
}

impl Works {
    /// Samples of references to last-level caches are taken in from now on.
    pub fn count_references(&mut self, device: &OpiumDevice) {
        self.cached.get_or_insert_with(|| Cached::new(device));
    }
}
