//! The interval's pages as moving units: a base page, or a huge page as a whole.

use crate::ids::Pid;
use crate::policy::{Context, moving_unit};
use crate::snapshot::{PageStats, Snapshot};

/// One moving unit in one interval.
pub(super) struct Unit<'a> {
    /// Whose.
    pub pid: Pid,
    /// Its first page.
    pub page: u64,
    /// A 2 MiB huge page.
    pub huge: bool,
    /// Position of the node that holds it.
    pub home: usize,
    /// Samples per node position; nodes without any are left out.
    pub samples: &'a [(usize, u32)],
}

/// Calls `visit` for every moving unit of the interval, in order of process and page.
pub(super) fn for_each_unit(
    snapshot: &Snapshot,
    context: &Context<'_>,
    mut visit: impl FnMut(Unit<'_>),
) {
    let since_us = context.now_us.saturating_sub(snapshot.interval_us);
    let key = |stats: &PageStats| (stats.pid, moving_unit(stats.page, stats.huge));
    let mut order: Vec<&PageStats> = snapshot.pages.iter().collect();
    order.sort_by_key(|stats| key(stats));
    let mut samples: Vec<(usize, u32)> = Vec::new();
    for group in order.chunk_by(|a, b| key(a) == key(b)) {
        let (first, (pid, page)) = (group[0], key(group[0]));
        let home = context.ledger.home_given(pid, page, first.home, since_us);
        let Some(home) = snapshot.node_position(home) else {
            continue;
        };
        samples.clear();
        for stats in group {
            add_samples(&mut samples, stats, snapshot.nodes.len());
        }
        visit(Unit {
            pid,
            page,
            huge: first.huge,
            home,
            samples: &samples,
        });
    }
}

fn add_samples(samples: &mut Vec<(usize, u32)>, stats: &PageStats, nodes: usize) {
    for (position, count) in stats
        .reads
        .iter()
        .chain(stats.writes.iter())
        .filter(|&(position, _)| position < nodes)
    {
        match samples.iter_mut().find(|(node, _)| *node == position) {
            Some((_, sum)) => *sum = sum.saturating_add(count),
            None => samples.push((position, count)),
        }
    }
}
