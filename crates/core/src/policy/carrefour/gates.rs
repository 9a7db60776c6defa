//! The gates: which mechanisms the global metrics allow.

use super::config::Config;
use crate::metrics;
use crate::plan::Mechanism;
use crate::policy::Context;
use crate::snapshot::Snapshot;
use std::borrow::Cow;
use std::collections::BTreeMap;

/// Which mechanisms are allowed in an interval.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Gates {
    /// There is enough traffic for placement to matter.
    pub enough_traffic: bool,
    /// Shared pages may be spread.
    pub interleave: bool,
    /// Private pages may move to their user.
    pub collocate: bool,
}

/// The gates with the state that keeps an opened one open until its work is done.
#[derive(Clone, Debug, Default)]
pub(super) struct GateKeeper {
    is_interleaving: bool,
    is_collocating: bool,
    told: Option<Gates>,
}

impl GateKeeper {
    /// Reads the gates off the global metrics. Called only where those are known.
    pub fn read(&mut self, config: &Config, snapshot: &Snapshot, context: &Context<'_>) -> Gates {
        let metrics = &snapshot.metrics;
        let rate = metrics.memory_accesses_per_us.get().unwrap_or(0.0);
        let enough_traffic = rate >= min_rate(config, snapshot);
        let imbalance = controller_imbalance(snapshot).unwrap_or(0.0);
        let limit = if self.is_interleaving {
            config.interleave_until_imbalance
        } else {
            config.interleave_above_imbalance
        };
        self.is_interleaving = enough_traffic && imbalance > limit;
        let local = metrics.local_access_ratio.get().unwrap_or(1.0);
        let limit = if self.is_collocating {
            config.collocate_until_local_ratio
        } else {
            config.collocate_below_local_ratio
        };
        self.is_collocating = enough_traffic && local < limit;
        Gates {
            enough_traffic,
            interleave: self.is_interleaving && context.allows(Mechanism::Interleave),
            collocate: self.is_collocating && context.allows(Mechanism::Collocate),
        }
    }

    /// A sentence when the gates have changed.
    pub fn note(&mut self, config: &Config, gates: Gates, snapshot: &Snapshot) -> Option<String> {
        if self.told.replace(gates) == Some(gates) {
            return None;
        }
        let rate = snapshot.metrics.memory_accesses_per_us.get().unwrap_or(0.0);
        let needed = min_rate(config, snapshot);
        if !gates.enough_traffic {
            return Some(format!(
                "carrefour: off, {rate:.1} memory accesses per us are below {needed:.1}; placement cannot pay"
            ));
        }
        let imbalance = percent(controller_imbalance(snapshot));
        let local = percent(snapshot.metrics.local_access_ratio.get());
        let word = |on| if on { "on" } else { "off" };
        Some(format!(
            "carrefour: interleaving {} (controller imbalance {imbalance}), collocation {} \
             (local accesses {local}), {rate:.1} memory accesses per us",
            word(gates.interleave),
            word(gates.collocate),
        ))
    }
}

/// Memory fills per us below which everything is off.
fn min_rate(config: &Config, snapshot: &Snapshot) -> f64 {
    config.min_accesses_per_us_per_cpu * snapshot.busy_cpus()
}

/// Imbalance over the nodes with CPUs where the traffic of each is known, else over all.
fn controller_imbalance(snapshot: &Snapshot) -> Option<f64> {
    let all_have_cpus = snapshot.nodes.iter().all(|node| node.has_cpus());
    let with_cpus = snapshot.nodes.iter().filter(|node| node.has_cpus());
    let traffic: Option<Vec<f64>> = with_cpus
        .map(|node| node.traffic_bytes().map(|bytes| bytes as f64))
        .collect();
    match traffic {
        Some(traffic) if !all_have_cpus => metrics::imbalance(&traffic),
        _ => snapshot.metrics.controller_imbalance.get(),
    }
}

fn percent(figure: Option<f64>) -> String {
    figure.map_or_else(
        || "unknown".to_owned(),
        |figure| format!("{:.0} %", 100.0 * figure),
    )
}

/// Half a sentence per mechanism, with the figures that opened its gate.
pub(super) fn reasons(snapshot: &Snapshot) -> BTreeMap<Mechanism, Cow<'static, str>> {
    let imbalance = percent(controller_imbalance(snapshot));
    let local = percent(snapshot.metrics.local_access_ratio.get());
    [
        (
            Mechanism::Interleave,
            format!("used by several nodes while the controllers are unevenly loaded (imbalance {imbalance})").into(),
        ),
        (
            Mechanism::Collocate,
            format!("used by one other node, as far as samples tell, with local accesses at {local}").into(),
        ),
    ]
    .into()
}
