//! What Carrefour believes about each page: one node's, or shared?
//!
//! Problem: Carrefour looks once a second; at 100 ms a page has often one sample or none, and a
//! page that every node reads looks like one node's. Collocating it would be wrong.
//!
//! Mechanism: a page's observations are kept over several intervals, as (node, interval). Whether
//! pages are private or shared is asked of all pages of a 2 MiB block together: of two
//! observations of *one page*, how often did they come from one node? Private pages agree always,
//! whatever the layout of the owners; pages that all nodes use agree as often as two random
//! samples of the process do. Two observations of one node in one interval count as one: a
//! thread that walks through a page is sampled twice without saying anything about the others.
//! From the block's agreement follows the probability that a page with few samples is private.
//!
//! Terms: *agree / differ*: decayed sums of pair observations. *chance*: agreement that would be
//! seen if every page were shared, the sum of squared shares of the process's samples per node.
//! *phase*: a stretch with the same users; its first interval is not used, it may hold two phases.
//!
//! Properties: needs no parameter for the sampling rate; without evidence every page is
//! undecided; one pass of an initialising thread is forgotten with its phase.

use crate::metrics;
use crate::snapshot::HUGE_PAGES;
use std::collections::BTreeMap;

/// Observations kept per page.
const SEEN: usize = 6;
/// Decay of pair observations per interval: half-life of three intervals.
const PAIR_DECAY: f64 = 0.8;
/// Decay of a page's sample weight per interval.
const WEIGHT_DECAY: f32 = 0.7;
/// Pairs by which a block leans on "undecided". It does not lean on its process: a program may use
/// one array from everywhere and others from one node each.
const PRIOR_PAIRS: f64 = 4.0;
/// The prior probability never leaves this range: blocks may be mixed.
const PRIOR_LIMIT: f64 = 0.001;
/// Samples of one node in one interval count for at most this many.
const MAX_COUNT: u16 = 3;
/// Where one node has this share of at least [`DOMINANT_COUNT`] counted samples, strays are ignored.
const DOMINANT_SHARE: f64 = 0.9;
/// See [`DOMINANT_SHARE`].
const DOMINANT_COUNT: u32 = 10;
/// Pages of a block that must be seen before the block speaks for its unseen pages.
const BLOCK_SPEAKS: u32 = 16;

/// Decay of the count of phase changes per interval: ten intervals.
const CHANGE_DECAY: f64 = 0.9;
/// With so many recent changes the users take turns: that is the program's way, not a new phase.
const TAKING_TURNS: f64 = 2.5;

/// `slots` value of a page without a record.
const NO_RECORD: u16 = u16::MAX;

/// One observation: this node used the page in this interval.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    interval: u32,
    node: u16,
    count: u16,
}

/// Belief about one moving unit (a base page, or a huge page as a whole).
#[derive(Clone, Debug)]
pub(super) struct Record {
    /// Page number within the block.
    pub index: u16,
    /// Position of the node that holds it, or that it was given.
    pub home: u16,
    /// Position of the node that held it when it was last seen.
    pub seen_on: u16,
    /// A 2 MiB huge page.
    pub huge: bool,
    /// Interval in which its place was last decided, 0 never.
    pub decided: u32,
    /// Samples in the latest interval.
    pub samples: u32,
    /// Decayed samples.
    weight: f32,
    /// Interval of `samples` and `weight`.
    at: u32,
    seen: [Seen; SEEN],
    seen_count: u8,
    /// Latest interval that added a second user; 0 never. Outlasts `seen`: of many pages that all
    /// nodes use, some are seen from one node six times in a row.
    mixed_at: u32,
}

/// What is believed of a page.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Class {
    /// Used by this node position only, on so many counted samples.
    Private { node: usize, samples: u32 },
    /// Used by several nodes.
    Shared,
    /// Not enough is known.
    Undecided,
}

/// Decayed pair observations.
#[derive(Clone, Debug, Default)]
struct Pairs {
    agree: f64,
    differ: f64,
    at: u32,
}

impl Pairs {
    fn age(&mut self, now: u32) {
        if self.at == now {
            return;
        }
        let factor = PAIR_DECAY.powi(i32::try_from(now - self.at).unwrap_or(i32::MAX));
        self.agree *= factor;
        self.differ *= factor;
        self.at = now;
    }

    fn add(&mut self, now: u32, agree: f64, differ: f64) {
        self.age(now);
        self.agree += agree;
        self.differ += differ;
    }
}

/// 512 neighbouring pages of one process.
#[derive(Clone, Debug)]
pub(super) struct Block {
    slots: Box<[u16; HUGE_PAGES as usize]>,
    records: Vec<Record>,
    pairs: Pairs,
    /// Last interval with a sample.
    pub touched: u32,
    /// Positions in `records` of the pages sampled in that interval.
    sampled: Vec<u16>,
    /// Pages seen since the phase `seen_phase` began.
    seen_pages: u32,
    seen_phase: u32,
    /// The circumstances under which nothing was left to do but for sampled pages.
    quiet_in: Option<Circumstances>,
}

/// What decides over all pages of a block at once. While it stays the same, a block in which every
/// page has its place is asked about its sampled pages only: a policy at rest must cost next to
/// nothing, however much memory it has looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Circumstances {
    /// First interval of the phase.
    phase_start: u32,
    /// Does the block lean on private (1), shared (-1) or neither?
    lean: i8,
    /// Were enough of its pages seen for it to speak for the others?
    speaks: bool,
    /// What may be done with pages: (interleave, collocate).
    allowed: (bool, bool),
}

/// What was seen of a page in an interval.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sighting<'a> {
    /// The interval.
    pub now: u32,
    /// First interval whose observations count.
    pub first: u32,
    /// Samples by position of the node.
    pub samples: &'a [(usize, u32)],
}

/// Belief about one process.
#[derive(Clone, Debug, Default)]
pub(super) struct ProcessBelief {
    /// Blocks by page number / 512.
    pub blocks: BTreeMap<u64, Block>,
    /// Decayed samples per node position.
    users: Vec<f64>,
    /// First interval whose observations count; 0 before the first sample.
    pub phase_start: u32,
    /// Recent changes of phase, decayed.
    changes: f64,
}

impl Record {
    fn new(index: u16) -> Self {
        Self {
            index,
            home: 0,
            seen_on: 0,
            huge: false,
            decided: 0,
            samples: 0,
            weight: 0.0,
            at: 0,
            seen: [Seen::default(); SEEN],
            seen_count: 0,
            mixed_at: 0,
        }
    }

    /// Decayed samples as of `now`.
    pub fn weight(&self, now: u32) -> f64 {
        if self.weight == 0.0 {
            return 0.0;
        }
        f64::from(self.weight)
            * f64::from(WEIGHT_DECAY).powi((now - self.at).try_into().unwrap_or(i32::MAX))
    }

    /// Samples in interval `now`.
    pub fn samples_in(&self, now: u32) -> u32 {
        if self.at == now { self.samples } else { 0 }
    }

    fn seen_since(&self, first: u32) -> impl DoubleEndedIterator<Item = &Seen> {
        self.seen[..usize::from(self.seen_count)]
            .iter()
            .filter(move |seen| seen.interval >= first)
    }

    fn push(&mut self, seen: Seen) {
        if usize::from(self.seen_count) == SEEN {
            self.seen.rotate_left(1);
            self.seen[SEEN - 1] = seen;
        } else {
            self.seen[usize::from(self.seen_count)] = seen;
            self.seen_count += 1;
        }
    }

    /// Adds an interval's samples; returns the pair observations `(agree, differ)` that they make
    /// with each other and with the interval before in which the page was seen since `first`.
    fn observe(&mut self, now: u32, first: u32, samples: &[(usize, u32)]) -> (f64, f64) {
        let total = saturating_total(samples);
        self.weight = self.weight(now) as f32 + total as f32;
        self.samples = total;
        self.at = now;
        let last = self.seen_since(first).next_back().map(|seen| seen.interval);
        let before = || {
            self.seen_since(first)
                .filter(|seen| Some(seen.interval) == last)
        };
        let (mut agree, mut differ) = (0.0, 0.0);
        if last.is_some() && !samples.is_empty() {
            let common = samples
                .iter()
                .filter(|(node, _)| before().any(|seen| seen.node == *node as u16))
                .count();
            let matching = common as f64 / (before().count() * samples.len()) as f64;
            agree += matching;
            differ += 1.0 - matching;
        }
        differ += samples.len().saturating_sub(1) as f64;
        if differ > 0.0 {
            self.mixed_at = now;
        }
        for &(node, count) in samples {
            let count = u16::try_from(count).unwrap_or(MAX_COUNT).min(MAX_COUNT);
            self.push(Seen {
                interval: now,
                node: node as u16,
                count,
            });
        }
        (agree, differ)
    }

    /// Classifies a page by its own observations since `first`, given the block's prior
    /// probability of being private and the chance that two random samples agree.
    fn classify(&self, first: u32, prior: f64, chance: f64, certainty: f64) -> Class {
        let mut counts: [(u16, u32); SEEN] = [(0, 0); SEEN];
        let (mut nodes, mut intervals, mut last_interval) = (0, 0, 0);
        for seen in self.seen_since(first) {
            if seen.interval != last_interval {
                intervals += 1;
                last_interval = seen.interval;
            }
            match counts[..nodes]
                .iter_mut()
                .find(|(node, _)| *node == seen.node)
            {
                Some((_, count)) => *count += u32::from(seen.count),
                None => {
                    counts[nodes] = (seen.node, u32::from(seen.count));
                    nodes += 1;
                }
            }
        }
        let total = saturating_total(&counts[..nodes]);
        let Some(&(top, top_count)) = counts[..nodes]
            .iter()
            .max_by_key(|&&(node, count)| (count, u16::MAX - node))
        else {
            return Class::Undecided;
        };
        let private = |node: u16, samples| Class::Private {
            node: usize::from(node),
            samples,
        };
        if nodes > 1 || self.mixed_at >= first {
            if total >= DOMINANT_COUNT && f64::from(top_count) >= DOMINANT_SHARE * f64::from(total)
            {
                return private(top, top_count);
            }
            return match self.taken_over(first) {
                Some((node, samples)) if prior >= certainty => private(node, samples),
                Some(_) if prior > 1.0 - certainty => Class::Undecided,
                _ => Class::Shared,
            };
        }
        let by_chance = (1.0 - prior) * chance.powi(intervals - 1);
        let probability = prior / (prior + by_chance);
        if probability >= certainty {
            private(top, total)
        } else if probability <= 1.0 - certainty {
            Class::Shared
        } else {
            Class::Undecided
        }
    }

    /// The node of the last two intervals in which the page was seen, where it alone was seen in
    /// both: pages are handed from one user to another.
    fn taken_over(&self, first: u32) -> Option<(u16, u32)> {
        let (mut node, mut samples, mut intervals, mut interval) = (None, 0, 0, u32::MAX);
        for seen in self.seen_since(first).rev() {
            if seen.interval != interval {
                if intervals == 2 {
                    break;
                }
                intervals += 1;
                interval = seen.interval;
            }
            if *node.get_or_insert(seen.node) != seen.node {
                return None;
            }
            samples += u32::from(seen.count);
        }
        (intervals == 2).then_some(())?;
        Some((node?, samples))
    }
}

impl Block {
    fn new() -> Self {
        Self {
            slots: Box::new([NO_RECORD; HUGE_PAGES as usize]),
            records: Vec::new(),
            pairs: Pairs::default(),
            touched: 0,
            sampled: Vec::new(),
            seen_pages: 0,
            seen_phase: 0,
            quiet_in: None,
        }
    }

    fn record(&mut self, index: u16) -> &mut Record {
        let slot = &mut self.slots[usize::from(index)];
        if *slot == NO_RECORD {
            *slot = self.records.len() as u16;
            self.records.push(Record::new(index));
            self.quiet_in = None;
        }
        &mut self.records[usize::from(*slot)]
    }

    /// The pages sampled in the interval in which the block was touched last, ascending.
    fn sampled_in_order(&self) -> impl Iterator<Item = &Record> {
        let sampled = self.sampled.iter();
        sampled.map(|&position| &self.records[usize::from(position)])
    }

    /// Notes that nothing is left to do under these circumstances, but for sampled pages.
    pub fn rest(&mut self, circumstances: Circumstances) {
        self.quiet_in = Some(circumstances);
    }

    /// Counts an observation of the page at `position`, of which `unseen` says whether it is the
    /// first of the phase.
    fn touch(&mut self, now: u32, phase: u32, position: u16, unseen: bool) {
        if self.touched != now {
            self.touched = now;
            self.sampled.clear();
        }
        self.sampled.push(position);
        if self.seen_phase != phase {
            (self.seen_phase, self.seen_pages) = (phase, 0);
        }
        self.seen_pages += u32::from(unseen);
    }

    /// Positions in `records`, ascending by page.
    pub fn in_order(&self) -> impl Iterator<Item = &Record> {
        let present = self.slots.iter().filter(|&&slot| slot != NO_RECORD);
        present.map(|&slot| &self.records[usize::from(slot)])
    }

    /// The record of a page, for changes.
    pub fn get_mut(&mut self, index: u16) -> Option<&mut Record> {
        let slot = self.slots[usize::from(index)];
        self.records.get_mut(usize::from(slot))
    }
}

impl ProcessBelief {
    /// Tests for a new phase and folds the interval's samples per node into the users. False
    /// where the interval must not be used: it is the first of a phase.
    pub fn begin_interval(
        &mut self,
        now: u32,
        users: &[f64],
        change: f64,
        min_samples: f64,
    ) -> bool {
        let total: f64 = users.iter().sum();
        self.users.resize(users.len().max(self.users.len()), 0.0);
        if total <= 0.0 {
            return self.phase_start > 0;
        }
        let known: f64 = self.users.iter().sum();
        let distance = metrics::total_variation(&self.users, users);
        let first = self.phase_start == 0;
        self.changes *= CHANGE_DECAY;
        let changed = total >= min_samples && known >= min_samples && distance > change;
        let takes_turns = self.changes >= TAKING_TURNS;
        self.changes += f64::from(u8::from(changed));
        if first || (changed && !takes_turns) {
            self.users.copy_from_slice(users);
            for block in self.blocks.values_mut() {
                block.pairs = Pairs::default();
                block.quiet_in = None;
            }
            self.phase_start = now + 1;
            return false;
        }
        for (sum, new) in self.users.iter_mut().zip(users) {
            *sum = *sum * 0.5 + new;
        }
        true
    }

    /// Takes in where a page is (huge or not, position of its node), and what was seen of it where that counts. A
    /// page that would exceed `room` is left out. A block that turns from small pages to a huge page, or back, is
    /// forgotten first.
    pub fn take(
        &mut self,
        block: u64,
        index: u16,
        (huge, home): (bool, u16),
        seen: Option<Sighting<'_>>,
        room: &mut usize,
    ) {
        let block = self.blocks.entry(block).or_insert_with(Block::new);
        let is_other = |record: &Record| record.huge != huge;
        if block.records.first().is_some_and(is_other) {
            *room += block.records.len();
            *block = Block::new();
        }
        if block.slots[usize::from(index)] == NO_RECORD {
            let Some(left) = room.checked_sub(1) else {
                return;
            };
            *room = left;
        }
        let record = block.record(index);
        (record.huge, record.home, record.seen_on) = (huge, home, home);
        let Some(Sighting {
            now,
            first,
            samples,
        }) = seen
        else {
            return;
        };
        let unseen = record.at < self.phase_start;
        let (agree, differ) = record.observe(now, first, samples);
        let position = block.slots[usize::from(index)];
        block.touch(now, self.phase_start, position, unseen);
        block.pairs.add(now, agree, differ);
    }

    /// Records held.
    pub fn len(&self) -> usize {
        self.blocks.values().map(|block| block.records.len()).sum()
    }

    /// Agreement of two random samples of the process, whatever their pages.
    pub fn chance(&self) -> f64 {
        let total: f64 = self.users.iter().sum();
        if total <= 0.0 {
            return 1.0;
        }
        self.users.iter().map(|user| (user / total).powi(2)).sum()
    }

    /// Probability that a page of the block is private, before its own samples.
    pub fn prior(&self, now: u32, block: &Block) -> f64 {
        let chance = self.chance();
        if chance > 0.97 {
            // One node uses everything: there is nobody to share with.
            return 1.0 - PRIOR_LIMIT;
        }
        let mut pairs = block.pairs.clone();
        pairs.age(now);
        let undecided = f64::midpoint(1.0, chance);
        let agreement =
            (pairs.agree + PRIOR_PAIRS * undecided) / (pairs.agree + pairs.differ + PRIOR_PAIRS);
        ((agreement - chance) / (1.0 - chance)).clamp(PRIOR_LIMIT, 1.0 - PRIOR_LIMIT)
    }

    /// What decides over all pages of a block at once; `allowed`: interleave, collocate.
    pub fn circumstances(
        &self,
        now: u32,
        certainty: f64,
        allowed: (bool, bool),
        block: &Block,
    ) -> Circumstances {
        let prior = self.prior(now, block);
        Circumstances {
            phase_start: self.phase_start,
            lean: i8::from(prior >= certainty) - i8::from(prior <= 1.0 - certainty),
            speaks: block.seen_phase == self.phase_start && block.seen_pages >= BLOCK_SPEAKS,
            allowed,
        }
    }

    /// Calls `visit` with pages of a block and their classes, in order: all pages, or the sampled
    /// ones only where the block rests under these circumstances. `first` is the first interval
    /// whose observations count. Returns whether all pages were visited.
    pub fn classes<'a>(
        &self,
        now: u32,
        first: u32,
        certainty: f64,
        circumstances: Circumstances,
        block: &'a Block,
        mut visit: impl FnMut(&'a Record, Class),
    ) -> bool {
        let (prior, chance) = (self.prior(now, block), self.chance());
        if block.quiet_in == Some(circumstances) {
            for record in block.sampled_in_order() {
                visit(record, record.classify(first, prior, chance, certainty));
            }
            return false;
        }
        let unseen = block_speaks(block, first, prior, certainty);
        for record in block.in_order() {
            let class = if record.seen_since(first).next().is_some() {
                record.classify(first, prior, chance, certainty)
            } else {
                unseen
            };
            visit(record, class);
        }
        true
    }
}

/// What a block says of its pages that were not seen: nothing, unless enough others were.
fn block_speaks(block: &Block, first: u32, prior: f64, certainty: f64) -> Class {
    let mut users: Vec<(u16, u32)> = Vec::new();
    let mut seen_pages = 0;
    for record in &block.records {
        let mut any = false;
        for seen in record.seen_since(first) {
            any = true;
            match users.iter_mut().find(|(node, _)| *node == seen.node) {
                Some((_, count)) => *count += 1,
                None => users.push((seen.node, 1)),
            }
        }
        seen_pages += u32::from(any);
    }
    if seen_pages < BLOCK_SPEAKS {
        return Class::Undecided;
    }
    let total = saturating_total(&users);
    let top = users
        .iter()
        .max_by_key(|&&(node, count)| (count, u16::MAX - node));
    match top {
        _ if prior <= 1.0 - certainty => Class::Shared,
        Some(&(node, count))
            if prior >= certainty && f64::from(count) >= 0.95 * f64::from(total) =>
        {
            Class::Private {
                node: usize::from(node),
                samples: 1,
            }
        }
        _ => Class::Undecided,
    }
}
/// Counts come from a tracker, which may be broken: a sum that does not fit stays at the limit.
fn saturating_total<T>(counts: &[(T, u32)]) -> u32 {
    counts
        .iter()
        .fold(0, |total, (_, count)| total.saturating_add(*count))
}
