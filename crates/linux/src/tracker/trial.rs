//! The tracker `trial`: as `none`, to count the places that a tracker takes.

use super::Tracker;
use crate::error::Result;
use crate::proc::tree::Tree;
use hither_core::plan::Sampling;
use hither_core::snapshot::{Evidence, GlobalMetrics, Snapshot};

/// For recordings of processes, mappings and places alone.
#[derive(Clone, Copy, Debug)]
pub struct Trial;

impl Tracker for Trial {
    fn name(&self) -> &'static str {
        "trial"
    }

    fn set_sampling(&mut self, _: Sampling) {}

    fn observe(&mut self, _: &mut Tree, snapshot: &mut Snapshot) -> Result<()> {
        const WHY: &str = "a trial";
        snapshot.metrics = GlobalMetrics::unknown(WHY);
        snapshot.sample_count = Evidence::unknown(WHY);
        Ok(())
    }

    fn stop(&mut self) {}

    fn take_notes(&mut self) -> Vec<String> {
        Vec::new()
    }
}
