//! The same as metrics, in the OpenMetrics text format.

use crate::publish::{Published, ScopeRow};
use hither_core::engine::{Standing, Verdict};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, NoLabelSet, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;
use std::fmt;
use std::sync::Arc;

/// Labels and a value, of all that has a metric.
type Rows = Vec<(Vec<(&'static str, String)>, f64)>;

/// The text, ended by `# EOF`.
///
/// # Errors
/// Never, as text takes what is written.
pub fn encode(published: &Arc<Published>) -> Result<String, fmt::Error> {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Told(Arc::clone(published))));
    let mut out = String::new();
    text::encode(&mut out, &registry)?;
    Ok(out)
}

#[derive(Debug)]
struct Told(Arc<Published>);

impl Collector for Told {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), fmt::Error> {
        let published = &self.0;
        let mut gauge = |name: &str, help: &str, rows: Rows| {
            family(&mut encoder, name, help, MetricType::Gauge, &rows)
        };
        let one = |value: f64| vec![(Vec::new(), value)];
        gauge(
            "hither_build_info",
            "Version of the daemon",
            vec![(vec![("version", published.version.to_owned())], 1.0)],
        )?;
        gauge(
            "hither_processes",
            "Processes that are looked after",
            one(published
                .scopes
                .iter()
                .map(|scope| scope.processes.len())
                .sum::<usize>() as f64),
        )?;
        gauge(
            "hither_own_memory_bytes",
            "Resident memory of the daemon at most",
            one(published.own.peak_memory_bytes as f64),
        )?;
        let reasons = published
            .holding_back
            .iter()
            .map(|reason| (vec![("reason", reason.clone())], 1.0));
        gauge(
            "hither_holding_back",
            "1 for each reason for which nothing new is moved",
            reasons.collect(),
        )?;
        let scopes = |figure: fn(&ScopeRow) -> Option<f64>| -> Rows {
            let rows = published
                .scopes
                .iter()
                .filter_map(|scope| Some((labels(scope), figure(scope)?)));
            rows.collect()
        };
        let flag = |is: bool| Some(f64::from(u8::from(is)));
        gauge(
            "hither_scope_processes",
            "Processes of a scope",
            scopes(|scope| Some(scope.processes.len() as f64)),
        )?;
        gauge(
            "hither_scope_local_access_ratio",
            "Share of memory accesses that the requesting CPU's own node served",
            scopes(|scope| scope.local_access_ratio),
        )?;
        gauge(
            "hither_scope_displaced_pages",
            "Base pages that are not where hither found them",
            scopes(|scope| Some(scope.summary.displaced_pages as f64)),
        )?;
        let paused: Rows = published
            .scopes
            .iter()
            .filter_map(|scope| Some((labels(scope), flag(scope.standing != Standing::Working)?)))
            .collect();
        gauge(
            "hither_scope_paused",
            "1 where nothing new is moved",
            paused,
        )?;
        let dry: Rows = published
            .scopes
            .iter()
            .filter_map(|scope| Some((labels(scope), flag(scope.dry_run)?)))
            .collect();
        gauge(
            "hither_scope_dry_run",
            "1 where decisions are not carried out",
            dry,
        )?;
        gauge(
            "hither_scope_forecast_speedup_ratio",
            "How many times as fast the scope is expected to run with the best placement",
            scopes(|scope| Some(scope.forecast?.speed_up)),
        )?;
        gauge(
            "hither_scope_forecast_error_ratio",
            "Half of the width of the interval in which the speed-up is expected",
            scopes(|scope| Some(scope.forecast?.error)),
        )?;
        gauge(
            "hither_scope_measured_speedup_ratio",
            "Accesses per time after the last campaign over those before it",
            scopes(|scope| scope.summary.campaigns.last()?.speed_up()),
        )?;
        let groups = |figure: fn(&crate::publish::GroupRow) -> u64| -> Rows {
            let scopes = published.scopes.iter();
            let rows = scopes.flat_map(|scope| {
                scope.groups().into_iter().map(|(cgroup, container, row)| {
                    let mut all = labels(scope);
                    all.extend([
                        ("cgroup", cgroup),
                        ("pod_uid", container.pod_uid),
                        ("container_id", container.container_id),
                        ("runtime", container.runtime),
                    ]);
                    (all, figure(&row) as f64)
                })
            });
            rows.collect()
        };
        gauge(
            "hither_group_processes",
            "Processes of a scope by control group",
            groups(|row| row.processes),
        )?;
        gauge(
            "hither_group_resident_bytes",
            "Resident memory of a scope by control group",
            groups(|row| row.resident_bytes),
        )?;
        let nodes = |figure: fn(&crate::publish::NodeRow) -> Option<f64>| -> Rows {
            let rows = published.nodes.iter();
            let rows =
                rows.filter_map(|row| Some((vec![("node", row.node.0.to_string())], figure(row)?)));
            rows.collect()
        };
        gauge(
            "hither_node_free_bytes",
            "Free memory of a node",
            nodes(|row| Some(row.free_bytes as f64)),
        )?;
        gauge(
            "hither_node_memory_bytes",
            "Memory of a node",
            nodes(|row| Some(row.memory_bytes as f64)),
        )?;
        gauge(
            "hither_node_utilisation_ratio",
            "Use of a node's memory controller",
            nodes(|row| row.utilisation),
        )?;
        counters(&mut encoder, published)
    }
}

fn counters(encoder: &mut DescriptorEncoder, published: &Published) -> Result<(), fmt::Error> {
    let mut counter = |name: &str, help: &str, rows: Rows| {
        family(encoder, name, help, MetricType::Counter, &rows)
    };
    let one = |value: f64| vec![(Vec::new(), value)];
    counter(
        "hither_turns",
        "Turns of the loop",
        one(published.turns as f64),
    )?;
    counter(
        "hither_failed_observations",
        "Intervals that could not be observed",
        one(published.failed_observations as f64),
    )?;
    counter(
        "hither_moved_bytes",
        "Bytes moved",
        one(published.own.moved_bytes as f64),
    )?;
    counter(
        "hither_own_cpu_seconds",
        "CPU time of the daemon",
        one(published.own.cpu_seconds),
    )?;
    let mut moved = Rows::new();
    let mut refused = Rows::new();
    let mut judged = Rows::new();
    let mut reverted = Rows::new();
    let mut by_kernel = Rows::new();
    for scope in &published.scopes {
        for row in &scope.summary.directions {
            let mut all = labels(scope);
            all.extend([
                ("mechanism", row.mechanism.name().to_owned()),
                ("from", row.from.0.to_string()),
                ("to", row.to.0.to_string()),
            ]);
            moved.push((all, row.page_count as f64));
        }
        for (reason, count) in &scope.summary.refused {
            let mut all = labels(scope);
            all.push(("reason", reason.name().to_owned()));
            refused.push((all, *count as f64));
        }
        for verdict in Verdict::ALL {
            let mut counts = scope.summary.verdicts.iter();
            let count = counts
                .find(|(known, _)| *known == verdict)
                .map_or(0, |&(_, count)| count);
            let mut all = labels(scope);
            all.push(("verdict", verdict.name().replace(' ', "_")));
            judged.push((all, count as f64));
        }
        reverted.push((labels(scope), scope.summary.reverted_pages as f64));
        by_kernel.push((labels(scope), scope.summary.kernel_pages as f64));
    }
    counter(
        "hither_scope_moved_pages",
        "Base pages moved, those put back included",
        moved,
    )?;
    counter(
        "hither_scope_refused_pages",
        "Base pages that were not moved",
        refused,
    )?;
    counter(
        "hither_scope_campaigns",
        "Campaigns that were judged",
        judged,
    )?;
    counter(
        "hither_scope_kernel_pages",
        "Base pages that the kernel moved in the faults that hither watches by",
        by_kernel,
    )?;
    counter(
        "hither_scope_reverted_pages",
        "Base pages put back: as they did harm, by an undo, or as the kernel had moved them in vain",
        reverted,
    )
}

fn labels(scope: &ScopeRow) -> Vec<(&'static str, String)> {
    vec![
        ("target", scope.target.clone()),
        ("user", scope.user_name.clone()),
    ]
}

fn family(
    encoder: &mut DescriptorEncoder,
    name: &str,
    help: &str,
    kind: MetricType,
    rows: &Rows,
) -> Result<(), fmt::Error> {
    let mut metric = encoder.encode_descriptor(name, help, None, kind)?;
    for (labels, value) in rows {
        let is_counter = matches!(kind, MetricType::Counter);
        match (labels.is_empty(), is_counter) {
            (true, true) => metric.encode_counter::<NoLabelSet, _, u64>(value, None)?,
            (true, false) => metric.encode_gauge(value)?,
            (false, true) => {
                metric
                    .encode_family(labels)?
                    .encode_counter::<NoLabelSet, _, u64>(value, None)?;
            }
            (false, false) => metric.encode_family(labels)?.encode_gauge(value)?,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
