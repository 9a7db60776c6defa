//! What a scope sees: the snapshot, restricted to its own processes and pages.
//!
//! A scope of all watched processes sees the snapshot itself. Any other has the machine's nodes with
//! their memory, and figures of its own: rates and ratios of its samples. What counters tell of the
//! whole machine is not known of a part.

use crate::ids::Pid;
use crate::metrics;
use crate::snapshot::{Evidence, GlobalMetrics, PageStats, Snapshot};
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

/// Samples from which a ratio of a part is told: its error is then below 7 points.
const MIN_SAMPLES: u64 = 50;

/// The view of each scope, by its members.
pub(super) fn restrict<'a>(
    snapshot: &'a Snapshot,
    members: &[BTreeSet<Pid>],
) -> Vec<Cow<'a, Snapshot>> {
    let is_whole = |members: &BTreeSet<Pid>| members.len() == snapshot.processes.len();
    let owners: BTreeMap<Pid, usize> = members
        .iter()
        .enumerate()
        .filter(|(_, members)| !is_whole(members))
        .flat_map(|(at, members)| members.iter().map(move |&pid| (pid, at)))
        .collect();
    let mut pages: Vec<Vec<PageStats>> = vec![Vec::new(); members.len()];
    if !owners.is_empty() {
        for page in &snapshot.pages {
            if let Some(&at) = owners.get(&page.pid) {
                pages[at].push(page.clone());
            }
        }
    }
    members
        .iter()
        .zip(pages)
        .map(|(members, pages)| match is_whole(members) {
            true => Cow::Borrowed(snapshot),
            false => Cow::Owned(part(snapshot, members, pages)),
        })
        .collect()
}

fn part(snapshot: &Snapshot, members: &BTreeSet<Pid>, pages: Vec<PageStats>) -> Snapshot {
    let total: u64 = pages.iter().map(PageStats::total).sum();
    let processes = snapshot.processes.iter();
    let mut part = Snapshot {
        now_us: snapshot.now_us,
        interval_us: snapshot.interval_us,
        nodes: snapshot.nodes.clone(),
        distances: snapshot.distances.clone(),
        metrics: GlobalMetrics::unknown(
            "what is counted for the whole machine is not known of a part",
        ),
        sample_count: snapshot.sample_count.clone().map(|_| total),
        sample_period: snapshot.sample_period,
        samples_lost: snapshot.samples_lost,
        processes: processes
            .filter(|process| members.contains(&process.pid))
            .cloned()
            .collect(),
        own_cpu_us: snapshot.own_cpu_us.clone(),
        pages,
    };
    part.metrics = metrics_of(&part, total);
    part
}

/// What the samples of a part say of it.
fn metrics_of(part: &Snapshot, total: u64) -> GlobalMetrics {
    let basis = || format!("{total} samples of these processes");
    let ratio = |value: Option<f64>| match value {
        Some(value) if total >= MIN_SAMPLES => Evidence::estimated(value, basis()),
        _ => Evidence::unknown(format!(
            "{total} samples of these processes are too few, {MIN_SAMPLES} are needed"
        )),
    };
    let rate = match (
        part.sample_count.is_known(),
        part.sample_period,
        part.interval_us,
    ) {
        (false, ..) => Evidence::unknown(part.sample_count.basis().to_owned()),
        (_, 0, _) => Evidence::unknown("how many accesses a sample stands for is unknown"),
        (_, _, 0) => Evidence::unknown("no time has passed"),
        (_, period, interval_us) => Evidence::estimated(
            total as f64 * f64::from(period) / interval_us as f64,
            basis(),
        ),
    };
    let reads = || {
        part.pages
            .iter()
            .map(|page| page.reads.total())
            .sum::<u64>()
    };
    GlobalMetrics {
        memory_accesses_per_us: rate,
        local_access_ratio: ratio(part.sampled_local_access_ratio()),
        controller_imbalance: ratio(part.sampled_imbalance()),
        read_share: ratio(metrics::local_access_ratio(reads(), total)),
        ..GlobalMetrics::unknown("what is counted for the whole machine is not known of a part")
    }
}
