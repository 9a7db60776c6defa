//! What was found, judged by the device's exact counts: the pages with the most, and those that a
//! tracker takes for them.

use crate::PAGE;
use hither_core::ids::Pid;
use hither_core::observation::{Observations, RegionAccess};
use hither_core::refine::{HISTORY, history, sharpen};
use hither_linux::counting::{Counting, PAGE_SHIFT};
use hither_linux::proc::pagemap::{self, Pagemap};
use hither_linux::root::Root;
use hither_workloads::random::FastRandom;
use std::collections::HashMap;
use std::ops::Range;

/// The frame of each page of a mapping; `None` where nothing lies there.
pub fn frames(root: &Root, pid: i32, mapping: &Range<u64>) -> Result<Vec<Option<u64>>, String> {
    let map = Pagemap::open(root, pid).map_err(|error| error.to_string())?;
    let mut entries = vec![0; ((mapping.end - mapping.start) / PAGE) as usize];
    map.read(mapping.start / PAGE, &mut entries, &mut Vec::new())
        .map_err(|error| error.to_string())?;
    Ok(entries.into_iter().map(pagemap::frame).collect())
}

/// Memory fills of each page of a mapping, counted by the device since it was begun.
pub struct Exact {
    counting: Counting,
    /// Of each page; `None` where nothing lies there.
    pub frames: Vec<Option<u64>>,
}

impl Exact {
    pub fn begin(root: &Root, pid: i32, mapping: &Range<u64>) -> Result<Self, String> {
        let frames = frames(root, pid, mapping)?;
        let mut ascending: Vec<u64> = frames.iter().copied().flatten().collect();
        ascending.sort_unstable();
        let counting = Counting::begin(root, &ascending, PAGE_SHIFT, 0);
        Ok(Self {
            counting: counting.map_err(|error| error.to_string())?,
            frames,
        })
    }

    pub fn counts(&self) -> Vec<u64> {
        let count = |frame: u64| {
            let counts = self.counting.at(frame << PAGE_SHIFT).unwrap_or_default();
            counts.fills.iter().map(|&fills| u64::from(fills)).sum()
        };
        self.frames.iter().map(|f| f.map_or(0, count)).collect()
    }
}

/// What DAMON has told lately.
pub struct Aggregations {
    pid: Pid,
    /// The last aggregations, oldest first, with sharper boundaries.
    aggregations: Vec<Vec<RegionAccess>>,
    /// The last as it was told.
    pub regions: Vec<RegionAccess>,
    /// What the aggregations say together.
    history: Vec<RegionAccess>,
}

impl Aggregations {
    pub fn new(pid: i32) -> Self {
        Self {
            pid: Pid(pid),
            aggregations: Vec::new(),
            regions: Vec::new(),
            history: Vec::new(),
        }
    }

    /// Takes what was seen; whether there is something new.
    pub fn take(&mut self, seen: &mut Observations) -> bool {
        let pid = self.pid;
        seen.regions.retain(|r| r.pid.is_none_or(|of| of == pid));
        let is_new = !seen.regions.is_empty();
        for regions in seen.regions.chunk_by(|a, b| a.time_ns == b.time_ns) {
            self.regions = regions.to_vec();
            self.aggregations.push(sharpen(regions));
        }
        if is_new {
            let old = self.aggregations.len().saturating_sub(HISTORY);
            self.aggregations.drain(..old);
            self.history = history(&self.aggregations);
        }
        seen.clear();
        is_new
    }

    /// How hot each page is, by the share of checks that found it accessed; by the rule of succession,
    /// so that 39 of 40 are more than 10 of 10.
    pub fn scores(&self, mapping: &Range<u64>, frames: &[Option<u64>]) -> Vec<f64> {
        let mut scores = vec![0.0; frames.len()];
        let rate = |r: &RegionAccess| match r.access_count {
            0 => 0.0,
            count => f64::from(count + 1) / f64::from(r.check_count + 2),
        };
        if self.history.iter().any(|region| region.pid.is_none()) {
            let frames = frames.iter().enumerate();
            let page_of: HashMap<u64, usize> =
                frames.filter_map(|(i, f)| Some(((*f)?, i))).collect();
            for region in &self.history {
                let held = region.addresses.start / PAGE..region.addresses.end / PAGE;
                for &page in held.filter_map(|frame| page_of.get(&frame)) {
                    scores[page] = rate(region);
                }
            }
        } else {
            for region in &self.history {
                let page = |address: u64| {
                    (address.clamp(mapping.start, mapping.end) - mapping.start) / PAGE
                };
                let pages = page(region.addresses.start)..page(region.addresses.end);
                scores[pages.start as usize..pages.end as usize].fill(rate(region));
            }
        }
        scores
    }
}

/// How well the `hot` pages with the highest counts were found.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Judgement {
    /// Of the pages found and judged, those that are among the hot, in per cent.
    pub precision: f64,
    /// Of the hot pages that are judged, those found, in per cent.
    pub recall: f64,
    /// Of the hot pages those that are judged.
    pub there: usize,
    /// Pages too near to the boundary to be judged.
    pub left_out: usize,
}

/// The pages of the `hot` highest scores are those found. Pages whose counts lie within twice and
/// half the boundary, which is the geometric mean of the counts at either side of it, are left out;
/// `None` where no page has twice the boundary's count.
pub fn judge(counts: &[u64], scores: &[f64], hot: usize) -> Option<Judgement> {
    let mut ranked = counts.to_vec();
    ranked.sort_unstable_by(|a, b| b.cmp(a));
    let at = |rank: usize| ranked.get(rank).copied().unwrap_or(0).max(1) as f64;
    let boundary = (at(hot.max(1) - 1) * at(hot)).sqrt();
    let is_hot = |page: usize| counts[page] as f64 > 2.0 * boundary;
    let is_cold = |page: usize| (counts[page] as f64) < boundary / 2.0;
    let mut found: Vec<usize> = (0..scores.len()).filter(|&p| scores[p] > 0.0).collect();
    found.sort_by(|&a, &b| scores[b].total_cmp(&scores[a]));
    found.truncate(hot);
    let right = found.iter().filter(|&&page| is_hot(page)).count();
    let wrong = found.iter().filter(|&&page| is_cold(page)).count();
    let there = (0..counts.len()).filter(|&page| is_hot(page)).count();
    let cold = (0..counts.len()).filter(|&page| is_cold(page)).count();
    let percent = |part: usize, of: usize| 100.0 * part as f64 / of.max(1) as f64;
    (there > 0).then(|| Judgement {
        precision: percent(right, right + wrong),
        recall: percent(right, there),
        there,
        left_out: counts.len() - there - cold,
    })
}

/// As many samples of each page as so many independent ones of all fills would have brought: what
/// nobody ranks better by samples.
pub fn ideal(counts: &[u64], samples: u64) -> Vec<f64> {
    let mut random = FastRandom::new(1);
    let mut until: Vec<u64> = counts.to_vec();
    let mut sum = 0;
    for count in &mut until {
        sum += *count;
        *count = sum;
    }
    let mut scores = vec![0.0; counts.len()];
    for _ in 0..samples {
        let fill = random.below(sum.max(1));
        if let Some(score) = scores.get_mut(until.partition_point(|&until| until <= fill)) {
            *score += 1.0;
        }
    }
    scores
}
