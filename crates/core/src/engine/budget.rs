//! How much may be moved: available memory on the targets, and bytes per second.

use super::config::EngineConfig;
use crate::snapshot::{PAGE_BYTES, Snapshot};

/// Base pages for which each node, by position, has room beyond its reserve and beyond the moves
/// that are under way (`pending_pages`, by position). Departing pages are not counted as room
/// before they have left.
pub(super) fn room_pages(
    config: &EngineConfig,
    snapshot: &Snapshot,
    pending_pages: &[u64],
) -> Vec<u64> {
    let nodes = snapshot.nodes.iter().enumerate();
    nodes
        .map(|(position, node)| {
            let share = (node.total_bytes as f64 * config.reserve_share) as u64;
            let reserve = share.max(config.reserve_bytes).max(node.rated.kept_bytes);
            let available = node.available_bytes().saturating_sub(reserve);
            let pending = pending_pages.get(position).copied().unwrap_or(0);
            (available / PAGE_BYTES).saturating_sub(pending)
        })
        .collect()
}

/// A bucket of pages that fills with time.
#[derive(Clone, Debug)]
pub(super) struct RateBudget {
    pages: f64,
    filled_at_us: Option<u64>,
}

impl RateBudget {
    /// A full bucket.
    pub fn new(config: &EngineConfig) -> Self {
        Self {
            pages: (config.burst_bytes / PAGE_BYTES) as f64,
            filled_at_us: None,
        }
    }

    /// Fills up to now; returns the pages that flowed in.
    pub fn fill(&mut self, config: &EngineConfig, now_us: u64) -> f64 {
        let since_us = now_us.saturating_sub(self.filled_at_us.unwrap_or(now_us));
        self.filled_at_us = Some(now_us.max(self.filled_at_us.unwrap_or(0)));
        let pages_per_us = config.rate_bytes_per_s as f64 / 1e6 / PAGE_BYTES as f64;
        let full = (config.burst_bytes / PAGE_BYTES) as f64;
        let before = self.pages;
        self.pages = (self.pages + since_us as f64 * pages_per_us).min(full);
        self.pages - before
    }

    /// Pages that may move.
    pub fn level(&self) -> f64 {
        self.pages
    }

    /// Takes pages out.
    pub fn spend(&mut self, pages: u64) {
        self.pages = (self.pages - pages as f64).max(0.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bucket_fills_at_its_rate_and_not_beyond() {
        // 4096 bytes per ms, 10 pages at most.
        let config = EngineConfig {
            rate_bytes_per_s: 4_096_000,
            burst_bytes: 40_960,
            ..EngineConfig::default()
        };
        let mut budget = RateBudget::new(&config);
        let mut level_at = |now_us| {
            budget.fill(&config, now_us);
            budget.level()
        };
        assert_eq!(level_at(5_000), 10.0);
        budget.spend(10);
        let mut level_at = |now_us| {
            budget.fill(&config, now_us);
            budget.level()
        };
        assert_eq!(level_at(5_000), 0.0);
        assert_eq!(level_at(8_500), 3.5);
        assert_eq!(
            level_at(4_000),
            3.5,
            "time that runs backwards fills nothing"
        );
        assert_eq!(level_at(9_000), 4.0);
        assert_eq!(level_at(90_000_000), 10.0);
    }
}
