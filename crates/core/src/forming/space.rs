//! One address space: its touches of the last seconds, its pages, and its regions as they are now.

use super::assign::{Which, assign};
use super::follows::Follows;
use super::history::{History, TICK_NS};
use super::label::{GLOBAL, Label, SEED, is_region};
use super::pieces::{self, NONE};
use super::sequence::{Entry, Reach, Sequence};
use super::visits::Visits;
use super::{Config, Hint, Touch};
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};

/// What is left of older pairs and visits at each turn: a second's half-life at four turns a second.
const FADE: f64 = 0.84;
/// Turns from one forming to the next, and from one tear-down to the next: half a second and a second.
const FORM_TURNS: u64 = 2;
const TEAR_TURNS: u64 = 4;
/// All is formed anew where the history grew by this factor: the first seconds tell much more than the
/// first tenths.
const GREW: f64 = 1.5;
/// Touches from which regions are formed.
const LEAST_TOUCHES: usize = 128;
/// Touches of a region in a turn from which it is judged whether it still holds.
const LEAST_JUDGED: f64 = 8.0;
/// A region does not hold any more where touches stay in it by less than this part of what they did.
const LEAST_STAY: f64 = 0.5;
/// Where regions with this share of the touches do not hold, it is another phase.
const NEW_PHASE: f64 = 0.5;
/// Touches for each unit, below which blocks of pages are tried in place of pages, up to 2 MiB.
const LEAST_OF_UNIT: usize = 4;
const MOST_SHIFT: u32 = 9;
/// Passes that give pages to regions at most, and the share of pages at which they end before.
const PASSES: usize = 3;
const FEW: f64 = 0.01;

/// A page that was touched lately.
#[derive(Clone, Debug)]
pub struct Page {
    /// Its number.
    pub number: u64,
    /// Its region.
    pub label: Label,
    /// Its access bits.
    pub history: History,
    /// Touches before this are of another phase.
    since_ns: u64,
    last_ns: u64,
    /// Code or stack: global whatever it is touched with.
    is_fixed: bool,
}

/// A region as it stands.
#[derive(Clone, Debug)]
pub struct Held {
    /// Its number, for life.
    pub name: u64,
    /// When it was formed.
    pub formed_ns: u64,
    /// Access and idle times, and its threads.
    pub visits: Visits,
    /// Share of touches that are followed by one in the same region, and of how many touches that is known.
    stay: f64,
    known: f64,
    /// The turn in which it was torn down last; 0 for never.
    torn_turn: u64,
}

impl Held {
    /// Did it hold for touches that came after it was formed?
    pub fn is_confirmed(&self) -> bool {
        self.known >= LEAST_JUDGED
    }
}

/// A thread, as it was last seen.
#[derive(Clone, Copy, Debug)]
struct Thread {
    page: u32,
    time_ns: u64,
}

/// One address space.
#[derive(Debug, Default)]
pub struct Space {
    entries: VecDeque<Entry>,
    pages: Vec<Page>,
    page_at: HashMap<u64, u32>,
    threads: Vec<Thread>,
    thread_at: HashMap<Option<i32>, u32>,
    held: Vec<Held>,
    /// Pairs since the last turn, and older ones, faded.
    fresh: Follows,
    before: Follows,
    follows: Follows,
    next_name: u64,
    turns: u64,
    last_turn_ns: u64,
    turn_before_ns: u64,
    /// Touches of the history when all was formed last.
    formed_touches: usize,
    /// Ticks in which the space ran, and the last of them by the clock.
    tick: u32,
    clock_tick: u64,
    touch_count: u64,
    left_out_count: u64,
}

impl Space {
    /// Takes a touch; those of one thread come in order of time.
    pub fn touch(&mut self, touch: &Touch, config: &Config) {
        let clock_tick = touch.time_ns / TICK_NS;
        if clock_tick > self.clock_tick || self.touch_count == 0 {
            self.tick += 1;
            self.clock_tick = clock_tick;
        }
        self.touch_count += 1;
        let Some(at) = self.page(touch, config) else {
            self.left_out_count += 1;
            return;
        };
        let page = &mut self.pages[at as usize];
        page.history.touch(self.tick);
        page.last_ns = touch.time_ns;
        let label = page.label;
        let Some(thread) = self.thread(touch.thread, config) else {
            self.left_out_count += 1;
            return;
        };
        if self.pages[at as usize].is_fixed {
            return;
        }
        if self.entries.len() >= config.most_touches {
            self.entries.pop_front();
        }
        self.entries.push_back(Entry {
            time_ns: touch.time_ns,
            page: at,
            thread,
        });
        // Global pages do not part what is before them from what comes after.
        if label != GLOBAL {
            let now = Thread {
                page: at,
                time_ns: touch.time_ns,
            };
            let before = std::mem::replace(&mut self.threads[thread as usize], now);
            self.follow(before, touch, label, config);
        }
    }

    /// Its page, which is new where it was not touched lately; none where there are too many.
    fn page(&mut self, touch: &Touch, config: &Config) -> Option<u32> {
        if let Some(&at) = self.page_at.get(&touch.page) {
            return Some(at);
        }
        if self.pages.len() >= config.most_pages {
            return None;
        }
        let is_fixed = touch.hint != Hint::None;
        let at = self.pages.len() as u32;
        self.page_at.insert(touch.page, at);
        self.pages.push(Page {
            number: touch.page,
            label: if is_fixed { GLOBAL } else { SEED },
            history: History::default(),
            since_ns: 0,
            last_ns: touch.time_ns,
            is_fixed,
        });
        Some(at)
    }

    fn thread(&mut self, id: Option<i32>, config: &Config) -> Option<u32> {
        if let Some(&at) = self.thread_at.get(&id) {
            return Some(at);
        }
        if self.threads.len() >= config.most_threads {
            return None;
        }
        let at = self.threads.len() as u32;
        self.thread_at.insert(id, at);
        self.threads.push(Thread {
            page: u32::MAX,
            time_ns: 0,
        });
        Some(at)
    }

    /// Counts what a touch says of the region that its thread was in before, and of its own.
    fn follow(&mut self, before: Thread, touch: &Touch, label: Label, config: &Config) {
        let was = self.pages.get(before.page as usize).map_or(SEED, |page| page.label);
        let gap_ns = touch.time_ns.saturating_sub(before.time_ns);
        let is_near = gap_ns <= config.near_ns;
        if is_near && is_region(was) {
            let stayed_ns = if was == label { gap_ns } else { gap_ns / 2 };
            self.held[was as usize].visits.stay(stayed_ns);
        }
        if !is_region(label) {
            return;
        }
        let visits = &mut self.held[label as usize].visits;
        if was != label || !is_near {
            visits.enter(touch.time_ns);
            visits.stay(if is_near { gap_ns / 2 } else { 0 });
        }
        visits.touch(touch.time_ns, touch.thread);
        if is_near && is_region(was) {
            self.fresh.add(was as usize, label as usize);
        }
    }

    /// Judges regions by the touches since the last turn, and forms them anew where it is time.
    pub fn turn(&mut self, now_ns: u64, config: &Config) {
        self.turns += 1;
        self.forget(now_ns, config);
        let changed = self.judge(config);
        if changed || self.turns.is_multiple_of(FORM_TURNS) {
            self.form(now_ns, config);
        }
        for held in &mut self.held {
            held.visits.fade(FADE);
        }
        self.turn_before_ns = self.last_turn_ns;
        self.last_turn_ns = now_ns;
    }

    /// Pages and regions of this space, for reports.
    pub fn pages(&self) -> &[Page] {
        &self.pages
    }

    /// Its regions; a page's label is the position in it.
    pub fn held(&self) -> &[Held] {
        &self.held
    }

    /// Ticks in which it ran.
    pub fn tick(&self) -> u32 {
        self.tick
    }

    /// Touches that were taken in.
    pub fn touch_count(&self) -> u64 {
        self.touch_count - self.left_out_count
    }

    /// Touches that could not be kept.
    pub fn left_out_count(&self) -> u64 {
        self.left_out_count
    }

    /// Was nothing touched lately?
    pub fn is_empty(&self) -> bool {
        self.pages.is_empty()
    }

    /// Drops touches and pages that are too old.
    fn forget(&mut self, now_ns: u64, config: &Config) {
        let oldest_ns = now_ns.saturating_sub(config.history_ns);
        while self.entries.front().is_some_and(|entry| entry.time_ns < oldest_ns) {
            self.entries.pop_front();
        }
        let forgotten_ns = now_ns.saturating_sub(config.forget_ns);
        let is_old = |page: &Page| page.last_ns < forgotten_ns;
        if self.pages.iter().filter(|page| is_old(page)).count() * 8 <= self.pages.len() {
            return;
        }
        let mut moved = vec![u32::MAX; self.pages.len()];
        let mut next = 0;
        for (was, page) in self.pages.iter().enumerate().filter(|(_, page)| !is_old(page)) {
            moved[was] = next;
            next += 1;
            self.page_at.insert(page.number, moved[was]);
        }
        self.pages.retain(|page| !is_old(page));
        self.page_at.retain(|number, at| {
            self.pages.get(*at as usize).is_some_and(|page| page.number == *number)
        });
        self.entries.retain_mut(|entry| {
            entry.page = moved[entry.page as usize];
            entry.page != u32::MAX
        });
        for thread in &mut self.threads {
            thread.page = moved.get(thread.page as usize).copied().unwrap_or(u32::MAX);
        }
    }

    /// Do regions hold for touches that came after they were formed? Those that do not are given up, with
    /// all that was before; those that turn out to be one are joined. Was one given up?
    fn judge(&mut self, config: &Config) -> bool {
        let fresh = std::mem::replace(&mut self.fresh, Follows::new(self.held.len()));
        self.follows.fade(FADE);
        self.follows.add_all(&fresh);
        let mut both = fresh.clone();
        both.add_all(&self.before);
        let (mut since_ns, mut fails) = (self.last_turn_ns, self.fails(&fresh));
        if !fails.contains(&true) {
            (since_ns, fails) = (self.turn_before_ns, self.fails(&both));
        }
        let all = fresh.total();
        let mut failed = 0.0;
        for (region, held) in self.held.iter_mut().enumerate() {
            let (touches, stayed) = (fresh.from(region), fresh.get(region, region));
            if fails[region] {
                failed += touches;
            } else if touches > 0.0 {
                let known = held.known + touches;
                held.stay = (held.stay * held.known + stayed) / known;
                held.known = FADE * known;
            }
        }
        self.before = fresh;
        let part_of = self.follows.joined(config.threshold, &fails);
        let is_new_phase = failed > NEW_PHASE * all && failed > 0.0;
        if is_new_phase {
            self.formed_touches = 0;
        }
        for page in &mut self.pages {
            match page.label {
                GLOBAL => {}
                label if is_new_phase || (is_region(label) && fails[label as usize]) => {
                    page.label = SEED;
                    page.since_ns = since_ns;
                }
                SEED => {}
                label => page.label = part_of[label as usize] as Label,
            }
        }
        for region in (0..part_of.len()).filter(|&region| part_of[region] != region) {
            self.follows.join(region, part_of[region]);
            self.before.join(region, part_of[region]);
        }
        failed > 0.0
    }

    /// Which regions do not hold for these pairs: far fewer touches stay than did?
    fn fails(&self, pairs: &Follows) -> Vec<bool> {
        let all = pairs.total();
        let fails = |(region, held): (usize, &Held)| {
            let (touches, stayed) = (pairs.from(region), pairs.get(region, region));
            let chance = touches / all.max(1.0);
            let expected = touches * (chance + LEAST_STAY * (held.stay - chance));
            let is_judged = touches >= LEAST_JUDGED && held.is_confirmed() && held.stay > chance;
            is_judged && stayed + 2.0 * expected.sqrt() < expected
        };
        self.held.iter().enumerate().map(fails).collect()
    }

    /// Forms regions out of the history.
    fn form(&mut self, now_ns: u64, config: &Config) {
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
            labels.iter_mut().filter(|label| **label != GLOBAL).for_each(|label| *label = SEED);
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
        Sequence::new(self.entries.iter(), self.threads.len(), self.pages.len(), config.near_ns, counts)
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
        let torn_last = self.held.iter().map(|held| held.torn_turn).max().unwrap_or(0);
        let is_new = |region: &usize| torn_last == 0 || self.held[*region].torn_turn < torn_last;
        let mut order: Vec<usize> = (0..sizes.len()).filter(is_new).collect();
        if order.is_empty() {
            order.extend(0..sizes.len());
        }
        order.sort_by_key(|&region| (self.held[region].torn_turn, std::cmp::Reverse(sizes[region])));
        let largest = order.iter().copied().max_by_key(|&region| (sizes[region], std::cmp::Reverse(region)));
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
        for label in labels.iter_mut().filter(|label| is_region(**label) && torn[**label as usize]) {
            *label = SEED;
        }
        torn
    }

    /// Forms regions of the pages that have none; labels go on after those of the regions that there are.
    /// Where touches are few for so many pages, blocks of them are tried too, and what explains more of the
    /// order is taken.
    fn form_seeds(&self, sequence: &Sequence, labels: &mut [Label], reach: &Reach, config: &Config) -> usize {
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
            shift += 3;
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
        for (page, unit) in unit_of.iter_mut().enumerate().filter(|(page, _)| takes_part(*page)) {
            let next = known.len() as u32;
            *unit = *known.entry(self.pages[page].number >> shift).or_insert(next);
        }
        (unit_of, known.len())
    }

    /// Makes labels the truth: regions without pages go, and new ones take over from those whose pages they
    /// have most of.
    fn settle(&mut self, was: &[Label], labels: Vec<Label>, count: usize, now_ns: u64) {
        let mut sizes = vec![0_u64; count];
        let mut common: BTreeMap<(Label, Label), u64> = BTreeMap::new();
        for (&label, &was) in labels.iter().zip(was).filter(|&(&label, _)| is_region(label)) {
            sizes[label as usize] += 1;
            if is_region(was) {
                *common.entry((label, was)).or_default() += 1;
            }
        }
        // One page alone is no region.
        let stays = |region: usize| sizes[region] > 1;
        let mut by_size: Vec<_> = common.into_iter().filter(|&((label, _), _)| stays(label as usize)).collect();
        by_size.sort_by_key(|&(pair, pages)| (std::cmp::Reverse(pages), pair));
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
    by_size.sort_by_key(|&(pair, pages)| (std::cmp::Reverse(pages), pair));
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
