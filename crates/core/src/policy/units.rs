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
    /// Of them writes.
    pub writes: u64,
}

/// Calls `visit` for every moving unit of the interval, in order of process and page.
pub(super) fn for_each_unit(
    snapshot: &Snapshot,
    context: &Context<'_>,
    mut visit: impl FnMut(Unit<'_>),
) {
    let since_us = context.now_us.saturating_sub(snapshot.interval_us);
    // Keys are copied out: sorting references would fetch every page's statistics many times.
    let mut order: Vec<(Pid, u64, u32)> = (0..)
        .zip(snapshot.places())
        .map(|(index, page)| (page.pid, moving_unit(page.page, page.huge), index))
        .collect();
    order.sort_unstable();
    let count = snapshot.pages.len();
    let mut samples: Vec<(usize, u32)> = Vec::new();
    for group in order.chunk_by(|a, b| (a.0, a.1) == (b.0, b.1)) {
        let (pid, page, first) = group[0];
        // Who lists a page does so after it was seen.
        let last = group[group.len() - 1].2 as usize;
        let (home, huge) = match last.checked_sub(count) {
            Some(at) => (snapshot.present[at].home, snapshot.present[at].huge),
            None => {
                let first = &snapshot.pages[first as usize];
                (first.home, first.huge)
            }
        };
        let home = context.ledger.home_given(pid, page, home, since_us);
        let Some(home) = snapshot.node_position(home) else {
            continue;
        };
        samples.clear();
        let mut writes = 0;
        let indices = group.iter().map(|&(.., index)| index as usize);
        for stats in indices.filter_map(|index| snapshot.pages.get(index)) {
            writes += stats.writes.total();
            add_samples(&mut samples, stats, snapshot.nodes.len());
        }
        visit(Unit {
            pid,
            page,
            huge,
            home,
            samples: &samples,
            writes,
        });
    }
}

fn add_samples(samples: &mut Vec<(usize, u32)>, stats: &PageStats, nodes: usize) {
    let mut add = |position, count| {
        if position >= nodes {
            return;
        }
        match samples.iter_mut().find(|(node, _)| *node == position) {
            Some((_, sum)) => *sum = sum.saturating_add(count),
            None => samples.push((position, count)),
        }
    };
    stats.reads.each(&mut add);
    stats.writes.each(&mut add);
}
