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
    /// How much traffic there is, nobody knows: a mechanism moves a part of the pages first, and goes on
    /// where that is found to have helped.
    pub is_trial: bool,
    /// Do the figures say which gates are open? They say nothing before the first samples.
    pub is_known: bool,
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
    /// The local-access ratio was known once.
    has_read: bool,
    told: Option<Gates>,
}

impl GateKeeper {
    /// Reads the gates off the metrics. Where the rate of accesses is unknown, programs that compute count
    /// as enough traffic, and a trial decides ([`Gates::is_trial`]). An interval that tells nothing of
    /// local accesses, or of the balance, leaves that gate as it was.
    pub fn read(&mut self, config: &Config, snapshot: &Snapshot, context: &Context<'_>) -> Gates {
        let metrics = &snapshot.metrics;
        let rate = metrics.memory_accesses_per_us.get();
        let enough_traffic = match rate {
            Some(rate) => rate >= min_rate(config, snapshot),
            None => snapshot.busy_cpus() >= config.min_busy_cpus,
        };
        let limit = if self.is_interleaving {
            config.interleave_until_imbalance
        } else {
            config.interleave_above_imbalance
        };
        self.has_read |= metrics.local_access_ratio.is_known();
        let is_uneven = controller_imbalance(snapshot).map(|imbalance| imbalance > limit);
        self.is_interleaving = enough_traffic && is_uneven.unwrap_or(self.is_interleaving);
        let limit = if self.is_collocating {
            config.collocate_until_local_ratio
        } else {
            config.collocate_below_local_ratio
        };
        let is_remote = metrics.local_access_ratio.get().map(|local| local < limit);
        self.is_collocating = enough_traffic && is_remote.unwrap_or(self.is_collocating);
        Gates {
            enough_traffic,
            is_trial: rate.is_none(),
            is_known: !enough_traffic || self.has_read,
            interleave: self.is_interleaving && context.allows(Mechanism::Interleave),
            collocate: self.is_collocating && context.allows(Mechanism::Collocate),
        }
    }

    /// A sentence when the gates have changed.
    pub fn note(&mut self, config: &Config, gates: Gates, snapshot: &Snapshot) -> Option<String> {
        if !gates.is_known || self.told.replace(gates) == Some(gates) {
            return None;
        }
        let rate = snapshot.metrics.memory_accesses_per_us.get();
        if !gates.enough_traffic {
            return Some(match rate {
                Some(rate) => format!(
                    "carrefour: off, {rate:.1} memory accesses per us are below {:.1}; placement cannot pay",
                    min_rate(config, snapshot)
                ),
                None => format!(
                    "carrefour: off, the programs use {:.2} CPUs; placement cannot pay",
                    snapshot.busy_cpus()
                ),
            });
        }
        let traffic = match rate {
            Some(rate) => format!("{rate:.1} memory accesses per us"),
            None => "how many accesses there are is unknown, so a part of the pages is tried first"
                .to_owned(),
        };
        let imbalance = percent(controller_imbalance(snapshot));
        let local = percent(snapshot.metrics.local_access_ratio.get());
        let word = |on| if on { "on" } else { "off" };
        Some(format!(
            "carrefour: interleaving {} (controller imbalance {imbalance}), collocation {} \
             (local accesses {local}), {traffic}",
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
