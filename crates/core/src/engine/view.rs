//! What a scope sees: the snapshot, restricted to its own processes and pages.
//!
//! The only scope, of all watched processes, sees the snapshot itself, as long as nobody else does much on
//! the machine; otherwise what was counted for the whole machine is left out. One scope of several sees the machine's nodes with
//! their free memory and how busy they are, and figures of its own: rates, ratios and traffic of its
//! samples. What counters tell of the whole machine is not known of a part.

use crate::ids::Pid;
use crate::metrics;
use crate::snapshot::{Evidence, GlobalMetrics, LINE_BYTES, PageStats, PresentPage, Snapshot};
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

/// Samples from which a ratio of a part is told: its standard error is then 11 points at most.
pub(super) const MIN_SAMPLES: u64 = 20;

/// Share of the CPU time used by others above which counters of the machine are not the watched
/// processes' own: they would differ by as much.
const OTHERS_COME: f64 = 0.25;
/// The same for counting again: below the 10 % that harm is.
const OTHERS_GO: f64 = 0.08;

/// Are the watched processes all that runs?
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Company {
    has_others: bool,
}

impl Company {
    /// Takes in an interval; where nobody tells, it stays as it was.
    pub fn take(&mut self, snapshot: &Snapshot) {
        let limit = if self.has_others {
            OTHERS_GO
        } else {
            OTHERS_COME
        };
        if let Some(share) = snapshot.metrics.others_share.get() {
            self.has_others = share > limit;
        }
    }
}

/// The view of each scope, by its members.
pub(super) fn restrict<'a>(
    snapshot: &'a Snapshot,
    members: &[BTreeSet<Pid>],
    company: Company,
) -> Vec<Cow<'a, Snapshot>> {
    // Of several scopes each is a part even while the others have no members: what is known of it must
    // not change in kind whenever one comes.
    let is_whole =
        |scope: &BTreeSet<Pid>| members.len() == 1 && scope.len() == snapshot.processes.len();
    let owners: BTreeMap<Pid, usize> = members
        .iter()
        .enumerate()
        .filter(|(_, members)| !is_whole(members))
        .flat_map(|(at, members)| members.iter().map(move |&pid| (pid, at)))
        .collect();
    let mut pages: Vec<(Vec<PageStats>, Vec<PresentPage>)> =
        vec![Default::default(); members.len()];
    if !owners.is_empty() {
        for page in &snapshot.pages {
            if let Some(&at) = owners.get(&page.pid) {
                pages[at].0.push(page.clone());
            }
        }
        for page in &snapshot.present {
            if let Some(&at) = owners.get(&page.pid) {
                pages[at].1.push(*page);
            }
        }
    }
    members
        .iter()
        .zip(pages)
        .map(
            |(members, (pages, present))| match (is_whole(members), company.has_others) {
                (true, false) => Cow::Borrowed(snapshot),
                (true, true) => Cow::Owned(without_others(snapshot, members)),
                (false, _) => Cow::Owned(part(snapshot, members, pages, present)),
            },
        )
        .collect()
}

fn part(
    snapshot: &Snapshot,
    members: &BTreeSet<Pid>,
    pages: Vec<PageStats>,
    present: Vec<PresentPage>,
) -> Snapshot {
    let total: u64 = pages.iter().map(PageStats::total).sum();
    let processes = snapshot.processes.iter();
    let mut part = Snapshot {
        now_us: snapshot.now_us,
        interval_us: snapshot.interval_us,
        nodes: snapshot.nodes.clone(),
        distances: snapshot.distances.clone(),
        caches: snapshot.caches.clone(),
        metrics: GlobalMetrics::unknown(
            "what is counted for the whole machine is not known of a part",
        ),
        sample_count: snapshot.sample_count.clone().map(|_| total),
        sample_period: snapshot.sample_period,
        samples_lost: snapshot.samples_lost,
        by_use: snapshot.by_use,
        processes: processes
            .filter(|process| members.contains(&process.pid))
            .cloned()
            .collect(),
        own_cpu_us: snapshot.own_cpu_us.clone(),
        pages,
        present,
    };
    part.metrics = metrics_of(&part, total);
    tell_traffic(&mut part, total);
    part
}

/// All watched processes, on a machine on which others run: estimates that trackers made of their
/// samples stand, counts of the whole machine do not.
fn without_others(snapshot: &Snapshot, members: &BTreeSet<Pid>) -> Snapshot {
    let (pages, present) = (snapshot.pages.clone(), snapshot.present.clone());
    let mut own = part(snapshot, members, pages, present);
    let told = &snapshot.metrics;
    let keep = |own: &mut Evidence<f64>, told: &Evidence<f64>| {
        if told.is_known() && !told.is_measured() {
            own.clone_from(told);
        }
    };
    let metrics = &mut own.metrics;
    keep(
        &mut metrics.memory_accesses_per_us,
        &told.memory_accesses_per_us,
    );
    keep(&mut metrics.local_access_ratio, &told.local_access_ratio);
    keep(&mut metrics.latency_ns, &told.latency_ns);
    keep(
        &mut metrics.controller_imbalance,
        &told.controller_imbalance,
    );
    keep(&mut metrics.read_share, &told.read_share);
    own
}

/// Traffic of each node as far as the part caused it; write-backs are not seen.
fn tell_traffic(part: &mut Snapshot, total: u64) {
    let mut traffic = vec![(0, 0); part.nodes.len()];
    for page in &part.pages {
        if let Some(home) = part.node_position(page.home) {
            traffic[home].0 += page.reads.total();
            traffic[home].1 += page.writes.total();
        }
    }
    let period = f64::from(part.sample_period);
    let bytes = |samples: u64| match period > 0.0 {
        true => Evidence::estimated(
            (samples as f64 * period * LINE_BYTES as f64) as u64,
            format!("{total} samples of these processes"),
        ),
        false => Evidence::unknown("how many accesses a sample stands for is unknown"),
    };
    for (node, (reads, writes)) in part.nodes.iter_mut().zip(traffic) {
        node.read_bytes = bytes(reads);
        node.write_bytes = bytes(writes);
    }
}

/// What the samples of a part say of it.
fn metrics_of(part: &Snapshot, total: u64) -> GlobalMetrics {
    let basis = || format!("{total} samples of these processes");
    let ratio = |value: Option<f64>| match value {
        _ if part.by_use => Evidence::unknown("access bits tell of no user"),
        _ if part.sample_period == 0 => {
            Evidence::unknown("samples go over memory part after part: told at the end of a round")
        }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{NodeId, SpaceId};
    use crate::snapshot::{NodeCounts, NodeState, ProcessState};

    fn snapshot() -> Snapshot {
        let node = |id| NodeState {
            id: NodeId(id),
            cpu_count: 4,
            free_bytes: 1 << 30,
            total_bytes: 1 << 30,
            cache_bytes: 0,
            idle_ns: None,
            rated: crate::snapshot::Rated::default(),
            latency_ns: None,
            read_bytes: Evidence::measured(1 << 40, "test"),
            write_bytes: Evidence::measured(1 << 40, "test"),
            utilisation: Evidence::measured(0.5, "test"),
        };
        let process = |pid: i32, cpu_us: u64| ProcessState {
            name: "test".to_owned(),
            cpu_us: Evidence::measured(cpu_us, "test"),
            ..ProcessState::of_test(Pid(pid), SpaceId(pid as u32))
        };
        // Process 1 is local with 30 samples; process 2 has 10 of 40 samples local.
        let page = |pid: i32, page: u64, home: u32, counts: &[u32]| PageStats {
            pid: Pid(pid),
            page,
            home: NodeId(home),
            was: None,
            reads: NodeCounts::from_slice(counts),
            writes: NodeCounts::new(),
            huge: false,
        };
        let mut metrics = GlobalMetrics::unknown("test");
        metrics.local_access_ratio = Evidence::measured(0.9, "counters");
        metrics.latency_ns = Evidence::measured(100.0, "counters");
        Snapshot {
            now_us: 100_000,
            interval_us: 100_000,
            nodes: vec![node(0), node(4)],
            caches: Vec::new(),
            distances: vec![vec![10, 20], vec![20, 10]],
            metrics,
            pages: vec![
                page(1, 7, 0, &[30]),
                page(2, 7, 4, &[20, 5]),
                page(2, 8, 0, &[5, 10]),
            ],
            present: Vec::new(),
            sample_count: Evidence::measured(70, "test"),
            sample_period: 1000,
            samples_lost: 0,
            by_use: false,
            processes: vec![process(1, 150_000), process(2, 20_000)],
            own_cpu_us: Evidence::unknown("test"),
        }
    }

    #[test]
    fn a_part_is_told_by_its_own_samples_alone() {
        let snapshot = snapshot();
        let scopes = [[Pid(1)].into(), [Pid(2)].into(), BTreeSet::new()];
        let views = restrict(&snapshot, &scopes, Company::default());
        let local = |at: usize| views[at].metrics.local_access_ratio.get();
        let traffic = |at: usize| views[at].node_traffic();
        assert_eq!(
            (local(0), local(1), local(2)),
            (Some(1.0), Some(0.25), None)
        );
        // 40 samples of 1000 fills in 100,000 us.
        assert_eq!(views[1].metrics.memory_accesses_per_us.get(), Some(0.4));
        assert_eq!(traffic(1), Some(vec![15 * 64_000, 25 * 64_000]));
        assert_eq!(traffic(2), Some(vec![0, 0]));
        // (15, 25): mean 20, deviation 5.
        assert_eq!(views[1].metrics.controller_imbalance.get(), Some(0.25));
        // The machine's latency is no figure of a part.
        assert_eq!(views[0].metrics.latency_ns.get(), None);
        assert_eq!(views[1].sample_count.get(), Some(40));
        assert_eq!((views[0].busy_cpus(), views[1].busy_cpus()), (1.5, 1.0));
        assert!(views[1].pages.iter().all(|page| page.pid == Pid(2)));
    }

    #[test]
    fn all_of_them_see_the_snapshot_itself() {
        let mut snapshot = snapshot();
        let scopes = [[Pid(1), Pid(2)].into()];
        let mut company = Company::default();
        let mut local = |snapshot: &Snapshot| {
            company.take(snapshot);
            let views = restrict(snapshot, &scopes, company);
            let metrics = &views[0].metrics;
            (metrics.local_access_ratio.get(), metrics.latency_ns.get())
        };
        assert_eq!(local(&snapshot), (Some(0.9), Some(100.0)));
        // A neighbour that nobody watches comes: its accesses are in the counters.
        for (others, expected) in [
            (0.2, (Some(0.9), Some(100.0))),
            (0.3, (Some(40.0 / 70.0), None)),
            (0.2, (Some(40.0 / 70.0), None)),
            (0.05, (Some(0.9), Some(100.0))),
        ] {
            snapshot.metrics.others_share = Evidence::measured(others, "test");
            assert_eq!(local(&snapshot), expected, "{others}");
        }
        // What was estimated of samples has no others in it.
        snapshot.metrics.latency_ns = Evidence::estimated(120.0, "samples");
        snapshot.metrics.others_share = Evidence::measured(0.5, "test");
        assert_eq!(local(&snapshot), (Some(40.0 / 70.0), Some(120.0)));
    }
}
