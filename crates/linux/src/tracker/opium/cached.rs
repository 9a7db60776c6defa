//! What each address space asks of the last-level caches: its working set, from samples of the references.

use super::works::Works;
use crate::opium::{Device, Sample};
use hither_core::plan::Sampling;
use hither_core::working_set::WorkingSets;

/// Period before it is known how many references there are.
const FIRST_PERIOD: u32 = 1024;
/// The shortest.
const LEAST_PERIOD: f64 = 32.0;

/// Samples in a second over all CPUs: working sets of some MiB are told by half a second of them. Each takes about 1 us.
fn wanted_per_s(sampling: Sampling) -> f64 {
    match sampling {
        Sampling::Full => 30_000.0,
        Sampling::Cheap => 10_000.0,
        Sampling::Off => 1000.0,
    }
}

/// Samples of references, by page table.
#[derive(Debug)]
pub(super) struct Cached {
    sets: WorkingSets<u64>,
    line_shift: u32,
    period: u32,
}

impl Cached {
    /// References are sampled from now on.
    pub fn new(device: &Device) -> Self {
        device.set_reference_sampling(FIRST_PERIOD);
        Self {
            sets: WorkingSets::default(),
            line_shift: device.line_bytes().trailing_zeros(),
            period: FIRST_PERIOD,
        }
    }

    /// Takes in a sample of a reference.
    pub fn take(&mut self, sample: &Sample) {
        self.sets
            .take(sample.page_table, sample.vaddr >> self.line_shift);
    }

    /// Bytes of the working set of an address space, where they are known.
    pub fn bytes(&self, page_table: u64) -> Option<u64> {
        Some(self.sets.lines(&page_table)? << self.line_shift)
    }

    /// Goes on in time, and sets the period by the references that there were in the interval.
    pub fn turn(&mut self, device: &Device, sampling: Sampling, now_us: u64, per_s: f64) {
        self.sets.turn(now_us);
        let wanted = (per_s / wanted_per_s(sampling)).max(LEAST_PERIOD) as u32;
        // Small changes are not worth a write that the plugin must notice.
        if wanted > self.period + self.period / 2 || wanted < self.period - self.period / 3 {
            self.period = wanted;
            device.set_reference_sampling(wanted);
        }
    }
}

impl Works {
    /// Samples of references to last-level caches are taken in from now on.
    pub fn count_references(&mut self, device: &Device) {
        self.cached.get_or_insert_with(|| Cached::new(device));
    }
}
