//! How a space's regions come to be: formed, torn down, given pages, and given names that last.

use super::super::Config;
use super::super::assign::{Which, assign};
use super::super::follows::Follows;
use super::super::label::{GLOBAL, Label, SEED, is_region};
use super::super::pieces::{self, NONE, Pages};
use super::super::sequence::{Entry, Reach, Sequence, Taken};
use super::{FORM_TURNS, Held, Space};
use crate::forming::visits::Visits;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// Turns from one tear-down to the next: a second.
const TEAR_TURNS: u64 = 4;
/// All is formed anew where the history grew by this factor: the first seconds tell much more than the
/// first tenths.
const GREW: f64 = 1.5;
/// Touches from which regions are formed.
const LEAST_TOUCHES: usize = 128;
/// Share of pages without a region below which they wait for the next tear-down.
const FEW_SEEDS: f64 = 0.03;
/// Touches of pages without a region from which regions of them are looked for.
const LEAST_OF_SEEDS: usize = 64;
/// Where there are more touches than that, and than so many for each page, a part of the history is enough.
const ENOUGH: usize = 8192;
const ENOUGH_OF_PAGE: usize = 48;
/// Touches for each unit, below which blocks of pages are tried in place of pages: of 8, 64 and 512
/// pages (2 MiB).
const LEAST_OF_UNIT: usize = 4;
const SHIFT_STEP: u32 = 3;
const MOST_SHIFT: u32 = 9;
/// Passes that give pages to regions at most, and the share of pages at which they end before.
const PASSES: usize = 3;
const FEW: f64 = 0.01;
/// A region is the same, and known as it was, where it has this share of its pages in common with what it was.
const SAME: f64 = 0.75;

impl Space {
    /// Forms regions out of the history.
    pub(super) fn form(&mut self, now_ns: u64, config: &Config) {
        let was: Vec<Label> = self.pages.iter().map(|page| page.label).collect();
        let mut labels = was.clone();
        let counted = self
            .entries
            .iter()
            .filter(|entry| self.counts(entry))
            .count();
        if counted < LEAST_TOUCHES {
            return;
        }
        let count = self.held.len();
        let forms_all = counted as f64 >= GREW * self.formed_touches as f64;
        let tears = !forms_all && self.turns.is_multiple_of(TEAR_TURNS);
        let seeds = was.iter().filter(|&&label| label == SEED).count();
        if !forms_all && !tears && (seeds as f64) < FEW_SEEDS * was.len() as f64 {
            return;
        }
        if forms_all {
            self.formed_touches = counted;
            let formed = labels.iter_mut().filter(|label| **label != GLOBAL);
            formed.for_each(|label| *label = SEED);
        }
        if tears {
            self.free(&mut labels);
        }
        let enough = (ENOUGH_OF_PAGE * self.pages.len()).max(ENOUGH);
        let parts = (counted / enough).max(1);
        let taken = Taken {
            near_ns: config.near_ns,
            new_ns: self.formed_ns,
            parts,
            part: (self.turns / FORM_TURNS) as usize % parts,
        };
        // Filled anew, so that it need not get memory each time.
        let mut sequence = std::mem::take(&mut self.sequence);
        self.fill(&mut sequence, &labels, &taken);
        let reach = sequence.reach(|page| labels[page as usize], count);
        let mut torn = Vec::new();
        if !forms_all {
            assign(&sequence, &mut labels, count, &reach, Which::Seeds);
            let is_new_global = |(label, was): (&Label, &Label)| *label == GLOBAL && *was != GLOBAL;
            if tears || labels.iter().zip(&was).any(is_new_global) {
                self.fill(&mut sequence, &labels, &taken);
            }
            if tears {
                torn = self.tear_down(&mut labels);
            }
        }
        let found = self.form_seeds(&sequence, &mut labels, &reach, forms_all, config);
        if tears {
            restore(&mut labels, &was, &torn);
        }
        let count = count + found;
        for _ in 0..PASSES {
            let moved = assign(&sequence, &mut labels, count, &reach, Which::All);
            if (moved as f64) < FEW * self.pages.len() as f64 {
                break;
            }
        }
        self.sequence = sequence;
        self.formed_ns = now_ns;
        self.settle(&was, labels, count, now_ns);
    }

    /// Is a touch of the phase that goes on?
    fn counts(&self, entry: &Entry) -> bool {
        entry.time_ns >= self.pages[entry.page as usize].since_ns
    }

    /// Touches that count, by thread, without those of global pages.
    fn fill(&self, sequence: &mut Sequence, labels: &[Label], taken: &Taken) {
        sequence.fill(
            self.entries.iter(),
            self.threads.len(),
            self.pages.len(),
            taken,
            |entry| labels[entry.page as usize] != GLOBAL && self.counts(entry),
        );
    }

    /// Pages that became global are asked again.
    fn free(&self, labels: &mut [Label]) {
        for (label, page) in labels.iter_mut().zip(&self.pages) {
            if *label == GLOBAL && !page.is_fixed {
                *label = SEED;
            }
        }
    }

    /// Makes regions seeds: the largest, as in the thesis (2.3.3), never the same twice in a row; and of the
    /// others those that were not for longest, as long as they are no more than the largest together. Else
    /// two large ones would take turns, and none of the others its own. Returns which.
    fn tear_down(&mut self, labels: &mut [Label]) -> Vec<bool> {
        let mut sizes = vec![0_u64; self.held.len()];
        for &label in labels.iter().filter(|&&label| is_region(label)) {
            sizes[label as usize] += 1;
        }
        let torn_last = self
            .held
            .iter()
            .map(|held| held.torn_turn)
            .max()
            .unwrap_or(0);
        let is_new = |region: &usize| torn_last == 0 || self.held[*region].torn_turn < torn_last;
        let mut order: Vec<usize> = (0..sizes.len()).filter(is_new).collect();
        if order.is_empty() {
            order.extend(0..sizes.len());
        }
        order.sort_by_key(|&region| (self.held[region].torn_turn, Reverse(sizes[region])));
        let largest = order
            .iter()
            .copied()
            .max_by_key(|&region| (sizes[region], Reverse(region)));
        let mut torn = vec![false; sizes.len()];
        if let Some(largest) = largest {
            let mut left = sizes[largest];
            torn[largest] = true;
            for region in order {
                if region != largest && sizes[region] <= left {
                    left -= sizes[region];
                    torn[region] = true;
                }
            }
        }
        for region in (0..torn.len()).filter(|&region| torn[region]) {
            self.held[region].torn_turn = self.turns;
        }
        for label in labels
            .iter_mut()
            .filter(|label| is_region(**label) && torn[**label as usize])
        {
            *label = SEED;
        }
        torn
    }

    /// Forms regions of the pages that have none, and returns how many: their labels go on after those of the
    /// regions that there are. Where touches are few for so many pages, blocks of them are tried too, and what
    /// explains more of the order is taken. Blocks as they were when all was formed are the smallest that are tried.
    fn form_seeds(
        &mut self,
        sequence: &Sequence,
        labels: &mut [Label],
        reach: &Reach,
        forms_all: bool,
        config: &Config,
    ) -> usize {
        let is_seed = |page: usize| labels[page] == SEED && !sequence.of_page(page).is_empty();
        let seeds: Vec<usize> = (0..labels.len()).filter(|&page| is_seed(page)).collect();
        let touches: usize = seeds.iter().map(|&page| sequence.of_page(page).len()).sum();
        if touches < LEAST_OF_SEEDS {
            return 0;
        }
        let held = |&label: &Label| if is_region(label) { label } else { NONE };
        let region_of: Vec<u32> = labels.iter().map(held).collect();
        let form = |shift: u32| {
            let (unit_of, unit_count) = self.units(shift, &seeds);
            let pages = Pages {
                unit_of: &unit_of,
                unit_count,
                region_of: &region_of,
                region_count: self.held.len(),
            };
            let formed = pieces::form(sequence, &pages, reach, config.threshold);
            (unit_of, unit_count, formed)
        };
        let mut shift = if forms_all { 0 } else { self.shift };
        let (mut unit_of, mut unit_count, mut best) = form(shift);
        let mut taken = shift;
        while touches < LEAST_OF_UNIT * unit_count && shift < MOST_SHIFT {
            shift += SHIFT_STEP;
            let (blocks, count, formed) = form(shift);
            unit_count = count;
            if formed.explained > best.explained {
                (unit_of, best, taken) = (blocks, formed, shift);
            }
        }
        for &page in &seeds {
            let region = best.of_unit[unit_of[page] as usize];
            if region != NONE {
                labels[page] = region;
            }
        }
        if forms_all {
            self.shift = taken;
        }
        best.count
    }

    /// Units of pages that take part: blocks of 2^shift pages.
    fn units(&self, shift: u32, takes_part: &[usize]) -> (Vec<u32>, usize) {
        let mut unit_of = vec![NONE; self.pages.len()];
        let mut known: HashMap<u64, u32> = HashMap::new();
        for &page in takes_part {
            let next = known.len() as u32;
            let block = self.pages[page].number >> shift;
            unit_of[page] = *known.entry(block).or_insert(next);
        }
        (unit_of, known.len())
    }

    /// Makes labels the truth: regions without pages go, and new ones take over from those whose pages they
    /// have most of.
    fn settle(&mut self, was: &[Label], labels: Vec<Label>, count: usize, now_ns: u64) {
        let mut sizes = vec![0_u64; count];
        let mut common: BTreeMap<(Label, Label), u64> = BTreeMap::new();
        for (&label, &was) in labels
            .iter()
            .zip(was)
            .filter(|&(&label, _)| is_region(label))
        {
            sizes[label as usize] += 1;
            if is_region(was) {
                *common.entry((label, was)).or_default() += 1;
            }
        }
        // One page alone is no region.
        let stays = |region: usize| sizes[region] > 1;
        let mut by_size: Vec<_> = common
            .into_iter()
            .filter(|&((label, _), _)| stays(label as usize))
            .collect();
        by_size.sort_by_key(|&(pair, pages)| (Reverse(pages), pair));
        let mut heir_of: Vec<Option<(usize, u64)>> = vec![None; count];
        let mut has_heir = vec![false; self.held.len()];
        for ((label, was), pages) in by_size {
            let (label, was) = (label as usize, was as usize);
            if heir_of[label].is_none() && !has_heir[was] {
                heir_of[label] = Some((was, pages));
                has_heir[was] = true;
            }
        }
        let mut was_sizes = vec![0_u64; self.held.len()];
        for &was in was.iter().filter(|&&was| is_region(was)) {
            was_sizes[was as usize] += 1;
        }
        let (mut place, mut held, mut were) = (vec![SEED; count], Vec::new(), Vec::new());
        for region in (0..count).filter(|&region| stays(region)) {
            place[region] = held.len() as Label;
            let Some((was, pages)) = heir_of[region] else {
                were.push(None);
                held.push(self.new_region(now_ns));
                continue;
            };
            // What was seen of a region says little of one that has other pages.
            let is_same = pages as f64 >= SAME * sizes[region].max(was_sizes[was]) as f64;
            were.push(is_same.then_some(was));
            let mut same = self.held[was].clone();
            if !is_same {
                same.doubt();
            }
            held.push(same);
        }
        self.held = held;
        self.follows = self.follows.of(&were);
        self.before = self.before.of(&were);
        self.fresh = Follows::new(self.held.len());
        for (page, label) in self.pages.iter_mut().zip(labels) {
            page.label = match is_region(label) {
                true => place[label as usize],
                false => label,
            };
        }
    }

    fn new_region(&mut self, now_ns: u64) -> Held {
        self.next_name += 1;
        Held {
            name: self.next_name,
            formed_ns: now_ns,
            visits: Visits::default(),
            stay: 0.0,
            known: 0.0,
            torn_turn: 0,
        }
    }
}

/// Pages of regions that were torn down, and of which nothing new was formed, go with most of the others of
/// theirs, or stay together. Where most of two went into one, the smaller part comes back: tearing down
/// splits, and what is one is judged by touches that came after.
fn restore(labels: &mut [Label], was: &[Label], torn: &[bool]) {
    let is_torn = |was: Label| is_region(was) && torn[was as usize];
    let mut parts: BTreeMap<(Label, Label), u64> = BTreeMap::new();
    for (&label, &was) in labels.iter().zip(was).filter(|&(_, &was)| is_torn(was)) {
        if is_region(label) {
            *parts.entry((was, label)).or_default() += 1;
        }
    }
    let mut by_size: Vec<_> = parts.into_iter().collect();
    by_size.sort_by_key(|&(pair, pages)| (Reverse(pages), pair));
    // For each that was torn what it is now; each region is one of these at most.
    let mut now: BTreeMap<Label, Label> = BTreeMap::new();
    let is_whole = |region: &Label| !torn[*region as usize];
    let mut taken: BTreeSet<Label> = (0..torn.len() as Label).filter(is_whole).collect();
    let mut back = BTreeSet::new();
    for ((was, label), _) in by_size {
        if now.contains_key(&was) {
            continue;
        }
        if taken.insert(label) {
            now.insert(was, label);
        } else {
            back.insert((was, label));
            now.insert(was, was);
        }
    }
    for (label, &was) in labels.iter_mut().zip(was).filter(|&(_, &was)| is_torn(was)) {
        if *label == SEED || back.contains(&(was, *label)) {
            *label = now.get(&was).copied().unwrap_or(was);
        }
    }
}
