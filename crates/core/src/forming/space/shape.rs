//! How a space's regions come to be: formed, torn down, given pages, and given names that last.

use super::super::Config;
use super::super::assign::{Which, assign};
use super::super::follows::Follows;
use super::super::label::{GLOBAL, Label, SEED, is_region};
use super::super::pieces::{self, NONE};
use super::super::sequence::{Entry, Reach, Sequence};
use super::{Held, Space};
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
/// Touches for each unit, below which blocks of pages are tried in place of pages: of 8, 64 and 512
/// pages (2 MiB).
const LEAST_OF_UNIT: usize = 4;
const SHIFT_STEP: u32 = 3;
const MOST_SHIFT: u32 = 9;
/// Passes that give pages to regions at most, and the share of pages at which they end before.
const PASSES: usize = 3;
const FEW: f64 = 0.01;

impl Space {
    /// Forms regions out of the history.
    pub(super) fn form(&mut self, now_ns: u64, config: &Config) {
        let was: Vec<Label> = self.pages.iter().map(|page| page.label).collect();
        let mut labels = was.clone();
        let mut sequence = self.sequence(&labels, config);
        if sequence.len() < LEAST_TOUCHES {
            return;
        }
        let count = self.held.len();
        let forms_all = sequence.len() as f64 >= GREW * self.formed_touches as f64;
        let tears = self.turns.is_multiple_of(TEAR_TURNS);
        if forms_all {
            self.formed_touches = sequence.len();
            labels
                .iter_mut()
                .filter(|label| **label != GLOBAL)
                .for_each(|label| *label = SEED);
        } else if tears {
            self.free(&mut labels);
            sequence = self.sequence(&labels, config);
        }
        let reach = sequence.reach(|page| labels[page as usize], count);
        let mut torn = Vec::new();
        if !forms_all {
            assign(&sequence, &mut labels, count, &reach, Which::Seeds);
            if tears {
                torn = self.tear_down(&mut labels);
                sequence = self.sequence(&labels, config);
            }
        }
        let found = self.form_seeds(&sequence, &mut labels, &reach, config);
        if torn.contains(&true) {
            restore(&mut labels, &was, &torn);
        }
        let count = count + found;
        for _ in 0..PASSES {
            let moved = assign(&sequence, &mut labels, count, &reach, Which::All);
            if (moved as f64) < FEW * self.pages.len() as f64 {
                break;
            }
        }
        self.settle(&was, labels, count, now_ns);
    }

    /// Touches that count, by thread.
    fn sequence(&self, labels: &[Label], config: &Config) -> Sequence {
        let counts = |entry: &Entry| {
            let page = entry.page as usize;
            labels[page] != GLOBAL && entry.time_ns >= self.pages[page].since_ns
        };
        Sequence::new(
            self.entries.iter(),
            self.threads.len(),
            self.pages.len(),
            config.near_ns,
            counts,
        )
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

    /// Forms regions of the pages that have none; labels go on after those of the regions that there are.
    /// Where touches are few for so many pages, blocks of them are tried too, and what explains more of the
    /// order is taken.
    fn form_seeds(
        &self,
        sequence: &Sequence,
        labels: &mut [Label],
        reach: &Reach,
        config: &Config,
    ) -> usize {
        let seeds = |page: usize| labels[page] == SEED && !sequence.of_page(page).is_empty();
        let (mut touches, mut pages) = (0, 0);
        for page in (0..labels.len()).filter(|&page| seeds(page)) {
            touches += sequence.of_page(page).len();
            pages += 1;
        }
        if pages < 2 {
            return 0;
        }
        let form = |shift: u32| {
            let (unit_of, unit_count) = self.units(shift, &seeds);
            let formed = pieces::form(sequence, &unit_of, unit_count, reach, config.threshold);
            (unit_of, unit_count, formed)
        };
        let mut best = form(0);
        let mut shift = 0;
        while touches < LEAST_OF_UNIT * best.1 && shift < MOST_SHIFT {
            shift += SHIFT_STEP;
            let blocks = form(shift);
            let is_better = blocks.2.explained > best.2.explained;
            let unit_count = blocks.1;
            if is_better {
                best = blocks;
            }
            if touches >= LEAST_OF_UNIT * unit_count {
                break;
            }
        }
        let (unit_of, _, formed) = best;
        let first = self.held.len() as u32;
        for (label, &unit) in labels.iter_mut().zip(&unit_of) {
            if unit != NONE && formed.of_unit[unit as usize] != NONE {
                *label = first + formed.of_unit[unit as usize];
            }
        }
        formed.count
    }

    /// Units of the pages that take part: blocks of 2^shift pages.
    fn units(&self, shift: u32, takes_part: &impl Fn(usize) -> bool) -> (Vec<u32>, usize) {
        let mut unit_of = vec![NONE; self.pages.len()];
        let mut known: HashMap<u64, u32> = HashMap::new();
        for (page, unit) in unit_of
            .iter_mut()
            .enumerate()
            .filter(|(page, _)| takes_part(*page))
        {
            let next = known.len() as u32;
            *unit = *known
                .entry(self.pages[page].number >> shift)
                .or_insert(next);
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
        let mut heir_of: Vec<Option<usize>> = vec![None; count];
        let mut has_heir = vec![false; self.held.len()];
        for ((label, was), _) in by_size {
            let (label, was) = (label as usize, was as usize);
            if heir_of[label].is_none() && !has_heir[was] {
                heir_of[label] = Some(was);
                has_heir[was] = true;
            }
        }
        let (mut place, mut held, mut were) = (vec![SEED; count], Vec::new(), Vec::new());
        for region in (0..count).filter(|&region| stays(region)) {
            place[region] = held.len() as Label;
            were.push(heir_of[region]);
            held.push(match heir_of[region] {
                Some(was) => self.held[was].clone(),
                None => self.new_region(now_ns),
            });
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
        if is_region(label) && label as usize >= torn.len() {
            *parts.entry((was, label)).or_default() += 1;
        }
    }
    let mut by_size: Vec<_> = parts.into_iter().collect();
    by_size.sort_by_key(|&(pair, pages)| (Reverse(pages), pair));
    // For each that was torn, and each new one, the other that it is now.
    let mut heir_of: BTreeMap<Label, Label> = BTreeMap::new();
    let mut heirs = BTreeSet::new();
    let mut back = BTreeSet::new();
    for ((was, label), _) in by_size {
        if heir_of.contains_key(&was) {
            continue;
        }
        match heirs.insert(label) {
            true => heir_of.insert(was, label),
            false => {
                back.insert((was, label));
                heir_of.insert(was, was)
            }
        };
    }
    for (label, &was) in labels.iter_mut().zip(was).filter(|&(_, &was)| is_torn(was)) {
        if *label == SEED || back.contains(&(was, *label)) {
            *label = heir_of.get(&was).copied().unwrap_or(was);
        }
    }
}
