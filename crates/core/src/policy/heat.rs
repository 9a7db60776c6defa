//! How hot pages are: samples that fade, kept per page, judged with their neighbours.
//!
//! Problem: with one sample for hundreds of accesses, most pages of a hot region have none or one, and a
//! page that was sampled once is lucky more often than hot. Idea: the pages of one 2 MiB block are judged
//! together. Where their counts differ by no more than chance explains, each is as hot as their mean;
//! where they differ by more, each page's own count counts for more (empirical Bayes: a gamma prior fitted
//! to the block's mean and variance, a Poisson count, the posterior's mean). So a region is told hot from
//! few samples, and a hot page within a cold block is found as well.
//!
//! Shape: 1.5 KiB for each block of 512 pages that was seen, 0.08 % of the memory looked after: a count of
//! sixteenths of samples and the position of its node for each page. Counts fade by half in
//! [`HALF_LIFE_US`]. They are those of one moment of their block: what comes later counts for more by as much as
//! they have faded, and all are written anew once in a half-life. Faded in each interval, pages with a sample or two
//! would lose half a sixteenth each time, and be forgotten twice as soon as they should.

use crate::ids::{Pid, SpaceId};
use crate::snapshot::{HUGE_PAGES, Snapshot, base_pages};
use std::cmp::Ordering;
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BinaryHeap};
use std::ops::Range;

/// Time in which what was seen fades by half, in us. 2 s: the thesis's history is 3.2 s long, of which a
/// page needs 2.2 s to become hot (4.2.1).
pub(super) const HALF_LIFE_US: u64 = 2_000_000;
/// What is left after so long, in us, of what fades.
pub(super) fn left_after(us: u64) -> f64 {
    0.5f64.powf(us as f64 / HALF_LIFE_US as f64)
}

/// Steps of fading in a half-life.
const STEPS: u64 = 16;
/// Parts of a sample that are counted.
const PARTS: f64 = 16.0;
/// Position of a page of which nobody told where it is.
const NOWHERE: u8 = u8::MAX;
/// Pages of a block.
const PAGES: usize = HUGE_PAGES as usize;
/// Share of the readings of a block that must differ from its mean before pages are told apart, in
/// units of what chance explains: a tenth, as the estimate of the variance itself scatters.
const NOISE: f64 = 0.1;

/// What is remembered of 512 pages.
#[derive(Clone, Debug)]
struct Block {
    /// Step of fading whose counts these are.
    step: u64,
    /// Step in which it was met.
    met: u64,
    /// Bits of the last intervals in which the block was sampled, the newest lowest.
    seen: u32,
    /// Interval of the lowest bit.
    interval: u32,
    huge: bool,
    /// Sum of the counts, and of their squares.
    sum: u64,
    squares: u64,
    /// Units whose place is known, by position of their node; the last has moved to its place.
    held: Vec<(u8, u16)>,
    counts: Box<[u16; PAGES]>,
    homes: Box<[u8; PAGES]>,
}

impl Block {
    fn new(step: u64, interval: u32, huge: bool) -> Self {
        Self {
            step,
            met: step,
            seen: 0,
            interval,
            huge,
            sum: 0,
            squares: 0,
            held: Vec::new(),
            counts: Box::new([0; PAGES]),
            homes: Box::new([NOWHERE; PAGES]),
        }
    }

    fn known(&self) -> u32 {
        self.held.iter().map(|&(_, count)| u32::from(count)).sum()
    }

    fn put(&mut self, at: usize, home: usize) {
        let home = u8::try_from(home).unwrap_or(NOWHERE);
        let was = std::mem::replace(&mut self.homes[at], home);
        if was == home {
            return;
        }
        for (home, is_more) in [(was, false), (home, true)] {
            if home == NOWHERE {
                continue;
            }
            match self.held.iter_mut().find(|(of, _)| *of == home) {
                Some((_, count)) if is_more => *count += 1,
                Some((_, count)) => *count -= 1,
                None => self.held.push((home, 1)),
            }
        }
        self.held.retain(|&(_, count)| count > 0);
    }

    fn fade(&mut self, factor: f32, step: u64) {
        (self.sum, self.squares) = (0, 0);
        if factor > 0.0 {
            for count in self.counts.iter_mut().filter(|count| **count > 0) {
                *count = (f32::from(*count) * factor) as u16;
                self.sum += u64::from(*count);
                self.squares += u64::from(*count) * u64::from(*count);
            }
        } else {
            self.counts.fill(0);
        }
        self.step = step;
    }

    /// Samples of `step`; `factors` are those of fading.
    fn add(&mut self, at: usize, samples: f64, step: u64, factors: &[f32]) {
        let since = step.saturating_sub(self.step);
        let factor = fade(factors, since);
        let mut parts = samples * PARTS / f64::from(factor);
        if since >= STEPS || f64::from(self.counts[at]) + parts > f64::from(u16::MAX) {
            self.fade(factor, step);
            parts = samples * PARTS;
        }
        let before = u64::from(self.counts[at]);
        let after = (before as f64 + parts.round()).min(f64::from(u16::MAX)) as u16;
        self.counts[at] = after;
        let after = u64::from(after);
        self.sum += after - before;
        self.squares += after * after - before * before;
    }
}

/// A block as it is judged, before its pages are looked at.
#[derive(Clone, Copy, Debug)]
pub(super) struct View<'a> {
    /// Heat of each of its pages, where they do not differ.
    pub heat: Option<f64>,
    /// Intervals of the last 32 in which it was sampled.
    pub seen: u32,
    /// How long ago it was met, in us.
    pub met_us: u64,
    /// Base pages of a unit.
    pub unit_pages: u64,
    /// Units by position of their node.
    pub held: &'a [(u8, u16)],
}

/// A page as it is judged.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Judged {
    /// Whose.
    pub pid: Pid,
    /// Its number; of a huge page the first.
    pub page: u64,
    /// Does it move as a huge page?
    pub huge: bool,
    /// Position of its node.
    pub home: usize,
    /// Faded samples for each base page.
    pub heat: f64,
    /// Intervals of the last 32 in which its block was sampled.
    pub seen: u32,
}

/// What is remembered of all pages.
#[derive(Debug, Default)]
pub(super) struct Heat {
    blocks: BTreeMap<(Pid, u64), Block>,
    /// Which life of its memory each process has.
    spaces: BTreeMap<Pid, SpaceId>,
    step: u64,
    interval: u32,
    /// The factor of so many steps.
    factors: Vec<f32>,
    /// What samples counted, and the sum of its squares; both fade.
    weights: (f64, f64),
}

impl Heat {
    /// Another interval begins; counts fade by the time that passed, and lives that are over are forgotten.
    pub fn begin(&mut self, snapshot: &Snapshot, now_us: u64) {
        let processes = snapshot.processes.iter();
        let spaces: BTreeMap<Pid, SpaceId> = processes
            .map(|process| (process.pid, process.space))
            .collect();
        if spaces != self.spaces {
            let lives =
                |pid: &Pid| spaces.contains_key(pid) && spaces.get(pid) == self.spaces.get(pid);
            self.blocks.retain(|(pid, _), _| lives(pid));
            self.spaces = spaces;
        }
        self.fade_to(now_us);
    }

    fn fade_to(&mut self, now_us: u64) {
        self.step = now_us / (HALF_LIFE_US / STEPS);
        self.interval = self.interval.wrapping_add(1);
        if self.factors.is_empty() {
            let steps = 0..STEPS * 12;
            self.factors = steps
                .map(|step| 0.5f32.powf(step as f32 / STEPS as f32))
                .collect();
        }
    }

    /// Samples of an interval that counted so much together, and so much the sum of the squares of each: where they
    /// stand for more or fewer accesses than at first, they count for more or less than one.
    pub fn weigh(&mut self, interval_us: u64, sum: f64, squares: f64) {
        let faded = left_after(interval_us);
        self.weights.0 = self.weights.0 * faded + sum;
        self.weights.1 = self.weights.1 * faded + squares;
    }

    /// Faded samples of all pages; `None` where there are none.
    pub fn all(&self) -> Option<f64> {
        (self.weights.0 > 0.0).then_some(self.weights.0)
    }

    /// What one sample counts: the variance of a count that chance explains, over its mean.
    pub fn sample(&self) -> f64 {
        let (sum, squares) = self.weights;
        if sum > 0.0 { squares / sum } else { 1.0 }
    }

    /// Blocks that are remembered.
    #[cfg(test)]
    pub fn block_count(&self) -> usize {
        self.blocks.len()
    }

    /// Bytes that they take.
    #[cfg(test)]
    pub fn bytes(&self) -> usize {
        self.blocks.len() * (size_of::<((Pid, u64), Block)>() + PAGES * (size_of::<u16>() + 1))
    }

    /// A page was seen at a node position, with so many samples (none: it is just there). `most` blocks
    /// are remembered; pages of further ones are not.
    pub fn take(
        &mut self,
        pid: Pid,
        page: u64,
        huge: bool,
        home: usize,
        samples: f64,
        most: usize,
    ) {
        let key = (pid, page / HUGE_PAGES);
        let (step, interval) = (self.step, self.interval);
        let is_full = self.blocks.len() >= most;
        let block = match self.blocks.entry(key) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(_) if is_full => return,
            Entry::Vacant(entry) => entry.insert(Block::new(step, interval, huge)),
        };
        if block.huge != huge {
            // It was split or put together: another kind of unit, of which nothing is known.
            *block = Block::new(step, interval, huge);
        }
        let at = if huge {
            0
        } else {
            (page % HUGE_PAGES) as usize
        };
        block.put(at, home);
        if samples <= 0.0 {
            return;
        }
        let gone = interval.wrapping_sub(block.interval);
        block.seen = block.seen.checked_shl(gone).unwrap_or(0) | 1;
        block.interval = interval;
        block.add(at, samples, step, &self.factors);
    }

    /// A page went to another node.
    pub fn moved(&mut self, pid: Pid, page: u64, home: usize) {
        if let Some(block) = self.blocks.get_mut(&(pid, page / HUGE_PAGES)) {
            let at = if block.huge {
                0
            } else {
                (page % HUGE_PAGES) as usize
            };
            block.put(at, home);
        }
    }

    /// Base pages of each process by position of their node.
    pub fn held(&self) -> BTreeMap<Pid, Vec<(usize, u64)>> {
        let mut all: BTreeMap<Pid, Vec<(usize, u64)>> = BTreeMap::new();
        for (&(pid, _), block) in &self.blocks {
            let held = all.entry(pid).or_default();
            for &(home, units) in &block.held {
                let (home, pages) = (usize::from(home), u64::from(units) * base_pages(block.huge));
                match held.iter_mut().find(|(of, _)| *of == home) {
                    Some((_, sum)) => *sum += pages,
                    None => held.push((home, pages)),
                }
            }
        }
        all
    }

    /// Judges every block; pages of those that `wants` says yes to, whose place is known, are visited.
    pub fn visit(&self, mut wants: impl FnMut(&View<'_>) -> bool, mut visit: impl FnMut(Judged)) {
        let sample = self.sample();
        for (&(pid, number), block) in &self.blocks {
            let factor =
                f64::from(fade(&self.factors, self.step.saturating_sub(block.step))) / PARTS;
            let gone = self.interval.wrapping_sub(block.interval);
            let seen = block.seen.checked_shl(gone).unwrap_or(0).count_ones();
            let first = number * HUGE_PAGES;
            let prior = Prior::of(block, factor, sample);
            let view = View {
                heat: (prior.own == 0.0).then_some(prior.mean),
                seen,
                met_us: self.step.saturating_sub(block.met) * (HALF_LIFE_US / STEPS),
                unit_pages: base_pages(block.huge),
                held: &block.held,
            };
            if !wants(&view) {
                continue;
            }
            let units = if block.huge { 1 } else { PAGES };
            for (at, (&count, &home)) in block.counts[..units]
                .iter()
                .zip(&block.homes[..units])
                .enumerate()
            {
                if home != NOWHERE {
                    visit(Judged {
                        pid,
                        page: first + at as u64,
                        huge: block.huge,
                        home: usize::from(home),
                        heat: prior.posterior(f64::from(count) * factor),
                        seen,
                    });
                }
            }
        }
    }

    /// Visits the pages of a range whose place is known, whatever their heat; of a huge page the first counts.
    pub fn visit_range(&self, pid: Pid, pages: &Range<u64>, mut visit: impl FnMut(Judged)) {
        let (first, last) = (pages.start / HUGE_PAGES, pages.end.div_ceil(HUGE_PAGES));
        for (&(_, number), block) in self.blocks.range((pid, first)..(pid, last)) {
            let units = if block.huge { 1 } else { PAGES };
            let homes = block.homes[..units].iter().enumerate();
            for (at, &home) in homes.filter(|&(_, &home)| home != NOWHERE) {
                let page = number * HUGE_PAGES + at as u64;
                if pages.contains(&page) {
                    visit(Judged {
                        pid,
                        page,
                        huge: block.huge,
                        home: usize::from(home),
                        heat: 0.0,
                        seen: 0,
                    });
                }
            }
        }
    }

    /// The coldest pages that are somewhere, of a heat that may leave: so many at most. Those that were never seen come
    /// first, and are mostly enough. What was met less than `met_us` ago is left out: nobody can say yet that it is not
    /// used.
    pub fn coldest(
        &self,
        wanted: u64,
        met_us: u64,
        is_in: impl Fn(usize) -> bool,
        may_leave: impl Fn(f64) -> bool,
        free: impl Fn(&Judged) -> bool,
    ) -> Vec<Judged> {
        if wanted == 0 {
            return Vec::new();
        }
        let mut cold = First::of(wanted);
        let holds = |block: &View<'_>| {
            block.met_us >= met_us && block.held.iter().any(|&(home, _)| is_in(usize::from(home)))
        };
        let mut found = 0;
        let unused = |block: &View<'_>| block.heat == Some(0.0) && holds(block);
        self.visit(unused, |page| {
            if found < wanted && is_in(page.home) && free(&page) {
                found += base_pages(page.huge);
                cold.offer(page.heat, page, |_| true);
            }
        });
        if found < wanted {
            let used = |block: &View<'_>| {
                block.heat.is_none_or(|heat| heat > 0.0 && may_leave(heat)) && holds(block)
            };
            self.visit(used, |page| {
                if is_in(page.home) && may_leave(page.heat) {
                    cold.offer(page.heat, page, &free);
                }
            });
        }
        cold.sorted()
    }
}

/// The first pages in the order of a key: most candidates are not among them, and cost one comparison.
pub(super) struct First {
    most: usize,
    /// The last of them on top.
    kept: BinaryHeap<Keyed>,
}

impl First {
    /// So many at most.
    pub fn of(most: u64) -> Self {
        Self {
            most: usize::try_from(most).unwrap_or(usize::MAX),
            kept: BinaryHeap::new(),
        }
    }

    /// Is it among them? `free` is asked only then.
    pub fn offer(&mut self, key: f64, page: Judged, free: impl Fn(&Judged) -> bool) {
        let keyed = Keyed(key, page);
        if self.kept.len() < self.most {
            if free(&keyed.1) {
                self.kept.push(keyed);
            }
        } else if let Some(mut last) = self.kept.peek_mut()
            && keyed < *last
            && free(&keyed.1)
        {
            *last = keyed;
        }
    }

    /// In their order.
    pub fn sorted(self) -> Vec<Judged> {
        // Faster than taking them off the heap.
        let mut kept = self.kept.into_vec();
        kept.sort_unstable();
        kept.into_iter().map(|Keyed(_, page)| page).collect()
    }
}

/// Of equal keys by process and number.
struct Keyed(f64, Judged);

impl Ord for Keyed {
    fn cmp(&self, other: &Self) -> Ordering {
        let by_key = self.0.total_cmp(&other.0);
        by_key.then((self.1.pid, self.1.page).cmp(&(other.1.pid, other.1.page)))
    }
}

impl PartialOrd for Keyed {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Keyed {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Keyed {}

fn fade(factors: &[f32], steps: u64) -> f32 {
    let factor = usize::try_from(steps)
        .ok()
        .and_then(|steps| factors.get(steps));
    factor.copied().unwrap_or(0.0)
}

/// What a page of a block is expected to have before it is looked at: a gamma distribution.
#[derive(Clone, Copy, Debug)]
struct Prior {
    mean: f64,
    /// What a page's own count is worth beside the block's mean: 0 where all are alike.
    own: f64,
}

impl Prior {
    fn of(block: &Block, factor: f64, sample: f64) -> Self {
        if block.huge {
            let mean = block.sum as f64 * factor / HUGE_PAGES as f64;
            return Self { mean, own: 0.0 };
        }
        let known = f64::from(block.known().max(1));
        let mean = block.sum as f64 * factor / known;
        let variance = block.squares as f64 * factor * factor / known - mean * mean;
        // Of a Poisson count the variance is the mean; what exceeds it are pages that differ.
        let chance = mean * sample;
        let excess = variance - chance * (1.0 + NOISE);
        // The mean is worth mean / excess samples, a page's own count one.
        let own = match excess > 0.0 && known > 1.0 {
            true => excess / (excess + chance),
            false => 0.0,
        };
        Self { mean, own }
    }

    fn posterior(&self, count: f64) -> f64 {
        self.mean + self.own * (count - self.mean)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::random::Random;

    const PID: Pid = Pid(7);
    const MOST: usize = 1 << 20;

    fn heats(heat: &Heat) -> Vec<f64> {
        let mut all = Vec::new();
        heat.visit(|_| true, |page| all.push(page.heat));
        all
    }

    #[test]
    fn a_hot_region_is_told_from_few_samples() {
        let (mut heat, mut random) = (Heat::default(), Random::new(3));
        heat.fade_to(0);
        for page in 0..1024 {
            heat.take(PID, page, false, 1, 0.0, MOST);
        }
        // 200 samples over 512 pages: most pages have none, all are as hot.
        for _ in 0..200 {
            heat.take(PID, random.next_u64() % 512, false, 1, 1.0, MOST);
        }
        let all = heats(&heat);
        assert!(
            all[..512]
                .iter()
                .all(|&page| (page - 200.0 / 512.0).abs() < 0.2),
            "{all:?}"
        );
        assert!(all[512..].iter().all(|&page| page == 0.0));
    }

    #[test]
    fn a_hot_page_in_a_cold_block_is_found() {
        let (mut heat, mut random) = (Heat::default(), Random::new(4));
        heat.fade_to(0);
        for page in 0..512 {
            heat.take(PID, page, false, 1, 0.0, MOST);
        }
        heat.take(PID, 77, false, 1, 40.0, MOST);
        for _ in 0..50 {
            heat.take(PID, random.next_u64() % 512, false, 1, 1.0, MOST);
        }
        let all = heats(&heat);
        assert!(all[77] > 30.0, "{}", all[77]);
        let rest = all.iter().enumerate().filter(|&(at, _)| at != 77);
        assert!(rest.clone().all(|(_, &page)| page < 3.5), "{all:?}");
    }

    #[test]
    fn samples_that_count_for_several_are_no_difference() {
        // By chance a third of the pages has one sample, and a tenth has more.
        for weighed in [true, false] {
            let (mut heat, mut random) = (Heat::default(), Random::new(6));
            heat.fade_to(0);
            for page in 0..512 {
                heat.take(PID, page, false, 1, 0.0, MOST);
            }
            for _ in 0..300 {
                heat.take(PID, random.next_u64() % 512, false, 1, 10.0, MOST);
            }
            if weighed {
                heat.weigh(100_000, 3000.0, 30_000.0);
            }
            let hot = heats(&heat).iter().filter(|&&page| page > 9.0).count();
            assert_eq!(hot > 0, !weighed, "{hot}");
        }
    }

    #[test]
    fn what_was_seen_fades_by_half_in_a_half_life() {
        let mut heat = Heat::default();
        heat.fade_to(10_000_000);
        heat.take(PID, 5, true, 0, 512.0, MOST);
        assert_eq!(heats(&heat), [1.0]);
        heat.fade_to(10_000_000 + HALF_LIFE_US);
        assert_eq!(heats(&heat), [0.5]);
        heat.take(PID, 5, true, 0, 512.0, MOST);
        assert_eq!(heats(&heat), [1.5]);
        heat.fade_to(10_000_000 + 100 * HALF_LIFE_US);
        assert_eq!(heats(&heat), [0.0]);
    }

    #[test]
    fn rare_samples_fade_no_faster_than_frequent_ones() {
        let (mut heat, mut random) = (Heat::default(), Random::new(5));
        // 100 samples in each tenth of a second over 512 pages, until as many fade as come.
        for interval in 0..200 {
            heat.fade_to(interval * 100_000);
            for _ in 0..100 {
                heat.take(PID, random.next_u64() % 512, false, 0, 1.0, MOST);
            }
        }
        // A second has 1000, and a half-life of 2 s keeps those of 2/ln 2 s.
        let expected = 1000.0 * 2.0 / std::f64::consts::LN_2;
        let all: f64 = heats(&heat).iter().sum();
        assert!((all / expected - 1.0).abs() < 0.05, "{all} of {expected}");
    }

    #[test]
    fn intervals_are_counted_and_split_pages_begin_anew() {
        let mut heat = Heat::default();
        for interval in 0..40u64 {
            heat.fade_to(interval * 100_000);
            let samples = f64::from(interval % 2 == 0);
            heat.take(PID, 512, true, 0, samples, MOST);
        }
        heat.visit(
            |_| true,
            |page| assert_eq!((page.seen, page.huge, page.page), (16, true, 512)),
        );
        heat.take(PID, 513, false, 1, 0.0, MOST);
        let mut seen = Vec::new();
        heat.visit(
            |_| true,
            |page| seen.push((page.page, page.home, page.heat)),
        );
        assert_eq!(seen, [(513, 1, 0.0)]);
    }

    #[test]
    fn memory_is_bounded_and_a_small_part_of_what_it_tells_of() {
        let mut heat = Heat::default();
        heat.fade_to(0);
        for block in 0..100 {
            heat.take(PID, block * 512, false, 0, 1.0, 64);
        }
        assert_eq!(heat.block_count(), 64);
        let managed = 64 * 512 * 4096;
        assert!(
            heat.bytes() * 1000 < managed,
            "{} of {managed}",
            heat.bytes()
        );
    }
}
