//! The tracker `none`: sees no accesses, and says so.

use super::Tracker;
use crate::error::Result;
use crate::proc::tree::Tree;
use hither_core::plan::Sampling;
use hither_core::snapshot::{Evidence, GlobalMetrics, Snapshot};

/// For recordings of processes, mappings and places alone.
#[derive(Clone, Copy, Debug)]
pub struct NoAccesses;

impl Tracker for NoAccesses {
    fn name(&self) -> &'static str {
        "none"
    }

    fn set_sampling(&mut self, _: Sampling) {}

    fn observe(&mut self, _: &mut Tree, snapshot: &mut Snapshot) -> Result<()> {
        const WHY: &str = "no tracker of accesses works here";
        snapshot.metrics = GlobalMetrics::unknown(WHY);
        snapshot.sample_count = Evidence::unknown(WHY);
        snapshot.pages.clear();
        Ok(())
    }

    fn stop(&mut self) {}

    fn take_notes(&mut self) -> Vec<String> {
        Vec::new()
    }
}
