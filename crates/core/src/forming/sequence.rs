//! The history as the threads lived it: for each thread its touches one after the other, and for each
//! page the places where it was touched.
//!
//! A *run* is a stretch of one thread's touches in which no gap is longer than `near_ns` (the thesis's
//! threshold q of idle time, 2.3.2): touches of different runs say nothing about one another. A *lag*
//! is a distance in touches within a run. Two touches at lag 1 are nearest in time; how far touches
//! still belong to the same visit is the *reach*, which is found without knowing any region: at lags
//! below the length of a visit the same page (or, once there are regions, the same region) comes
//! back more often than by chance.

use super::label::{Label, is_region};
use std::ops::Range;

/// Lags that are looked at, by two.
const LAGS: [usize; 14] = [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128];
/// Lags that are used at most: each costs two look-ups for each touch.
const MOST_LAGS: usize = 4;
/// A lag is within reach where what comes back beyond chance is at least this part of what it is at
/// lags 1 and 2.
const LEAST_EXCESS: f64 = 0.5;
/// Touches that the reach is measured on at most, by pages and by regions, which come back sooner.
const MOST_BY_PAGE: usize = 1 << 14;
const MOST_BY_REGION: usize = 1 << 12;

/// Touches in a row that are taken or left out together where not all are: more than any lag twice.
const BLOCK: usize = 256;

/// One touch of the history.
#[derive(Clone, Copy, Debug, Default)]
pub struct Entry {
    /// When.
    pub time_ns: u64,
    /// Index of the page.
    pub page: u32,
    /// Index of the thread.
    pub thread: u32,
}

/// What of the history is taken, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Taken {
    /// The longest gap within a run.
    pub near_ns: u64,
    /// Touches from then on are new.
    pub new_ns: u64,
    /// Into how many parts the history is cut, block by block, and which of them is taken.
    pub parts: usize,
    pub part: usize,
}

impl Taken {
    fn has(&self, at: usize) -> bool {
        self.parts == 1 || at / BLOCK % self.parts == self.part
    }
}

/// Touches by thread, and their places by page.
#[derive(Debug, Default)]
pub struct Sequence {
    /// Indexes of pages.
    pub pages: Vec<u32>,
    /// The run of each touch.
    runs: Vec<u32>,
    /// Did each come after the last forming?
    is_new: Vec<bool>,
    /// Places of a page are `places[starts[page]..starts[page + 1]]`.
    starts: Vec<u32>,
    places: Vec<u32>,
    /// Entries by thread; kept for its memory alone.
    ordered: Vec<Entry>,
}

/// How far touches belong together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reach {
    /// Lags to look at, ascending, the first is 1.
    pub lags: Vec<usize>,
    /// The largest lag at which touches are mostly of one visit.
    pub far: usize,
}

impl Reach {
    /// Lags up to a part of the reach, the first in any case.
    pub fn up_to(&self, part: usize) -> &[usize] {
        let most = self.far / part;
        let count = self.lags.iter().filter(|&&lag| lag <= most).count();
        &self.lags[..count.max(1)]
    }
}

impl Sequence {
    /// Becomes that of these entries, in order of time; those that `counts` refuses are left out as if they
    /// had not been.
    pub fn fill<'a>(
        &mut self,
        entries: impl Iterator<Item = &'a Entry> + Clone,
        thread_count: usize,
        page_count: usize,
        taken: &Taken,
        counts: impl Fn(&Entry) -> bool,
    ) {
        self.by_thread(entries, thread_count);
        self.pages.clear();
        self.runs.clear();
        self.is_new.clear();
        let (mut run, mut before) = (0, (u32::MAX, 0));
        for (at, entry) in self.ordered.iter().enumerate() {
            let (thread, time_ns) = before;
            let is_near =
                entry.thread == thread && entry.time_ns.saturating_sub(time_ns) <= taken.near_ns;
            run += u32::from(!is_near || (taken.parts > 1 && at.is_multiple_of(BLOCK)));
            before = (entry.thread, entry.time_ns);
            if taken.has(at) && counts(entry) {
                self.pages.push(entry.page);
                self.runs.push(run);
                self.is_new.push(entry.time_ns >= taken.new_ns);
            }
        }
        self.place(page_count);
    }

    /// Sorts entries by thread.
    fn by_thread<'a>(
        &mut self,
        entries: impl Iterator<Item = &'a Entry> + Clone,
        thread_count: usize,
    ) {
        let mut next = vec![0_usize; thread_count];
        for entry in entries.clone() {
            next[entry.thread as usize] += 1;
        }
        let mut total = 0;
        for next in &mut next {
            total += *next;
            *next = total - *next;
        }
        self.ordered.clear();
        self.ordered.resize(total, Entry::default());
        for entry in entries {
            let at = &mut next[entry.thread as usize];
            self.ordered[*at] = *entry;
            *at += 1;
        }
    }

    /// Sorts places by page.
    fn place(&mut self, page_count: usize) {
        self.starts.clear();
        self.starts.resize(page_count + 1, 0);
        for &page in &self.pages {
            self.starts[page as usize + 1] += 1;
        }
        for page in 1..self.starts.len() {
            self.starts[page] += self.starts[page - 1];
        }
        let mut next = self.starts.clone();
        self.places.clear();
        self.places.resize(self.pages.len(), 0);
        for (place, &page) in self.pages.iter().enumerate() {
            let at = &mut next[page as usize];
            self.places[*at as usize] = place as u32;
            *at += 1;
        }
    }

    /// Touches.
    pub fn len(&self) -> usize {
        self.pages.len()
    }

    /// Places at which a page was touched.
    pub fn of_page(&self, page: usize) -> &[u32] {
        &self.places[self.starts[page] as usize..self.starts[page + 1] as usize]
    }

    /// Was it touched since the last forming?
    pub fn is_new(&self, place: usize) -> bool {
        self.is_new[place]
    }

    /// The place that follows by a lag in the same run.
    #[inline]
    pub fn after(&self, place: usize, lag: usize) -> Option<usize> {
        let other = place + lag;
        (other < self.runs.len() && self.runs[other] == self.runs[place]).then_some(other)
    }

    /// The place that comes before by a lag in the same run.
    #[inline]
    pub fn before(&self, place: usize, lag: usize) -> Option<usize> {
        let other = place.checked_sub(lag)?;
        (self.runs[other] == self.runs[place]).then_some(other)
    }

    /// How far touches belong together: by what comes back, which is regions where `label` knows them
    /// of most touches, else pages.
    pub fn reach(&self, label: impl Fn(u32) -> Label, region_count: usize) -> Reach {
        let labelled = self.pages.iter().filter(|&&page| is_region(label(page)));
        let by_region = region_count > 1 && labelled.count() * 2 > self.len();
        let ids: Vec<u32> = match by_region {
            true => self.pages.iter().map(|&page| label(page)).collect(),
            false => self.pages.clone(),
        };
        let chance = same_by_chance(&ids);
        let most = if by_region {
            MOST_BY_REGION
        } else {
            MOST_BY_PAGE
        };
        let measured = 0..self.len().min(most);
        let excess = |pair: usize| {
            let [near, far] = [LAGS[2 * pair], LAGS[2 * pair + 1]];
            let (same, all) = self.same(&ids, measured.clone(), near);
            let (same_far, all_far) = self.same(&ids, measured.clone(), far);
            let (same, by_chance) = (same + same_far, (all + all_far) * chance);
            (
                same,
                by_chance,
                same / by_chance.max(f64::MIN_POSITIVE) - 1.0,
            )
        };
        let (same, by_chance, nearest) = excess(0);
        let mut far = LAGS[1];
        if same - by_chance > 3.0 * (by_chance + 1.0).sqrt() {
            for pair in 1..LAGS.len() / 2 {
                let (same, _, this) = excess(pair);
                // A handful that came back says nothing.
                if same < 5.0 || this < LEAST_EXCESS * nearest {
                    break;
                }
                far = LAGS[2 * pair + 1];
            }
        }
        let within: Vec<usize> = LAGS.iter().copied().filter(|&lag| lag <= far).collect();
        let step = within.len().div_ceil(MOST_LAGS);
        Reach {
            lags: within.into_iter().step_by(step).collect(),
            far,
        }
    }

    /// Pairs at a lag that are the same, and all.
    fn same(&self, ids: &[u32], measured: Range<usize>, lag: usize) -> (f64, f64) {
        let (mut same, mut all) = (0_u32, 0_u32);
        let end = measured.end.saturating_sub(lag);
        for (place, id) in ids[..end].iter().enumerate() {
            let is_one_run = self.runs[place] == self.runs[place + lag];
            all += u32::from(is_one_run);
            same += u32::from(is_one_run && *id == ids[place + lag]);
        }
        (f64::from(same), f64::from(all))
    }
}

/// Share of pairs, drawn from all of them, that are the same.
fn same_by_chance(ids: &[u32]) -> f64 {
    let mut sorted = ids.to_vec();
    sorted.sort_unstable();
    let squares = sorted.chunk_by(|one, other| one == other).map(|same| {
        let count = same.len() as f64;
        count * (count - 1.0)
    });
    let all = ids.len() as f64;
    squares.sum::<f64>() / (all * (all - 1.0)).max(1.0)
}
