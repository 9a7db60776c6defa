//! Regions bottom up, out of pages that have none (thesis, 2.3.2).
//!
//! The thesis begins with regions of one page and merges those that follow each other within a short
//! idle time. It sees every entry, so that a pair of pages tells. Of samples a pair tells little: a page
//! is seen a few times in seconds, and half of its neighbours may be of another visit. So it is done in
//! three steps, each with touches that have decided nothing so far, as what was chosen for following
//! itself by chance would look like a region to the same touches:
//!
//! 1. *Pieces*, from every other chunk of the history: each unit joins the piece that it is touched with
//!    most, beyond what the piece's size explains, until nothing moves. Pieces stay small: [`SIZE`]
//!    charges for size, so that they are parts of regions and not mixtures.
//! 2. *Merging* of pieces, from pairs in the other chunks: best pairs first, by the rule of
//!    [`Follows::joined`], with what a piece has of itself taken low, as it was selected.
//! 3. *Confirming*, from further pairs in these chunks: the same rule on what is left. Then a region has to
//!    follow itself more than chance explains, or to be most of what there is.
//!
//! A unit is a page, or a block of pages where there are too few touches for pages.

use super::follows::Follows;
use super::sequence::{Reach, Sequence};

/// No unit, no region.
pub const NONE: u32 = u32::MAX;
/// Touches of a chunk at least. Pairs are within one, so that what forms and what measures never meet.
const CHUNK: usize = 64;
/// Charge for size, beside 1 for what chance explains.
const SIZE: f64 = 16.0;
/// Rounds over all units at most, and the share that still moves at which it ends before.
const ROUNDS: usize = 5;
const FEW: f64 = 0.02;
/// Touches of a unit that are looked at most, spread over all it has.
const MOST_PLACES: usize = 24;
/// Regions that one forming finds at most: the larger ones.
const MOST: usize = 64;
/// Standard deviations by which a region has to follow itself more than by chance.
const SURE: f64 = 3.0;
/// Share of its pairs that a region has within itself at least: what is mostly touched with another is a part of
/// that.
const LEAST_STAY: f64 = 0.25;

/// The pages of which regions are formed, and those of regions that there are.
pub struct Pages<'a> {
    /// Unit of each page that takes part, else [`NONE`].
    pub unit_of: &'a [u32],
    /// Units.
    pub unit_count: usize,
    /// Region of each page that has one, else [`NONE`].
    pub region_of: &'a [u32],
    /// Regions that there are.
    pub region_count: usize,
}

/// What was found.
#[derive(Debug)]
pub struct Formed {
    /// Region of each unit, or [`NONE`]. Those that are new have numbers after those that there are.
    pub of_unit: Vec<u32>,
    /// New regions.
    pub count: usize,
    /// Share of measured pairs within one region, beyond chance: how much of the program's order all regions
    /// explain.
    pub explained: f64,
}

/// Forms regions of units, or adds units to regions that there are.
pub fn form(sequence: &Sequence, pages: &Pages<'_>, reach: &Reach, threshold: f64) -> Formed {
    let lags = reach.up_to(2);
    let chunk = CHUNK.max(4 * lags[lags.len() - 1]);
    let units = Units {
        sequence,
        unit_of: pages.unit_of,
        chunk_bits: chunk.next_power_of_two().ilog2(),
    };
    let (piece_of, piece_count) = units.pieces(pages.unit_count, lags);
    let near = reach.up_to(4);
    let near = &near[near.len().saturating_sub(3)..];
    let mut graph = Graph::new(piece_count);
    units.pairs(near, 0, |page, other| {
        let [unit, next] = [page, other].map(|page| pages.unit_of[page]);
        if unit != NONE && next != NONE && unit != next {
            graph.add(piece_of[unit as usize], piece_of[next as usize]);
        }
    });
    units.measured(|unit| graph.size[piece_of[unit] as usize] += 1.0);
    graph.merge(threshold);
    let (cluster_of, count) = graph.largest(MOST);
    let first = pages.region_count as u32;
    let number = |piece: &u32| match cluster_of[*piece as usize] {
        NONE => NONE,
        cluster => first + cluster,
    };
    let of_unit: Vec<u32> = piece_of.iter().map(number).collect();
    let region = |page: usize| match pages.unit_of[page] {
        NONE => pages.region_of[page],
        unit => of_unit[unit as usize],
    };
    let mut seen = Follows::new(pages.region_count + count);
    units.pairs(near, 1, |page, other| {
        let (one, next) = (region(page), region(other));
        let is_one_unit =
            pages.unit_of[page] != NONE && pages.unit_of[page] == pages.unit_of[other];
        if one != NONE && next != NONE && !is_one_unit {
            seen.add(one as usize, next as usize);
        }
    });
    confirm(of_unit, seen, pages.region_count, threshold)
}

/// Joins what later pairs show to be one, and drops what is none.
fn confirm(mut of_unit: Vec<u32>, mut seen: Follows, held: usize, threshold: f64) -> Formed {
    let count = seen.len();
    // What is new may become part of a region that there is; these stay what they are.
    let part_of = seen.joined(threshold, |_, other| other >= held);
    for region in (held..count).filter(|&region| part_of[region] != region) {
        seen.join(region, part_of[region]);
    }
    let total = seen.total().max(1.0);
    let mut number: Vec<u32> = (0..count as u32).collect();
    let (mut found, mut explained) = (0, 0.0);
    for region in (0..count).filter(|&region| part_of[region] == region) {
        let (own, size) = (seen.get(region, region), seen.from(region));
        let by_chance = size * size / total;
        if region >= held {
            let is_sure = own - by_chance > SURE * (by_chance + 1.0).sqrt();
            if !(is_sure && own >= LEAST_STAY * size || 2.0 * size > total) {
                number[region] = NONE;
                continue;
            }
            number[region] = (held + found) as u32;
            found += 1;
        }
        explained += (own - by_chance) / total;
    }
    for region in of_unit.iter_mut().filter(|region| **region != NONE) {
        *region = number[part_of[*region as usize]];
    }
    Formed {
        of_unit,
        count: found,
        explained,
    }
}

/// The history by units, in chunks that form and chunks that measure by turns.
struct Units<'a> {
    sequence: &'a Sequence,
    unit_of: &'a [u32],
    chunk_bits: u32,
}

impl Units<'_> {
    fn unit(&self, place: usize) -> u32 {
        self.unit_of[self.sequence.pages[place] as usize]
    }

    fn chunk(&self, place: usize) -> usize {
        place >> self.chunk_bits
    }

    fn forms(&self, place: usize) -> bool {
        self.chunk(place).is_multiple_of(2)
    }

    /// Places in chunks that form, by unit, at most [`MOST_PLACES`] of each; and how many there are.
    fn places(&self, unit_count: usize) -> (Vec<u32>, Vec<u32>, Vec<u32>) {
        let mut counts = vec![0_u32; unit_count];
        let forming = || (0..self.sequence.len()).filter(|&place| self.forms(place));
        let of = |place: usize| match self.unit(place) {
            NONE => None,
            unit => Some(unit as usize),
        };
        for unit in forming().filter_map(of) {
            counts[unit] += 1;
        }
        let most = MOST_PLACES as u32;
        let mut starts = vec![0_u32; unit_count + 1];
        for unit in 0..unit_count {
            starts[unit + 1] = starts[unit] + counts[unit].min(most);
        }
        let mut places = vec![0_u32; starts[unit_count] as usize];
        let (mut seen, mut next) = (vec![0_u32; unit_count], starts.clone());
        for place in forming() {
            let Some(unit) = of(place) else { continue };
            let (turn, all) = (seen[unit], counts[unit]);
            seen[unit] += 1;
            // As many of all as fit, evenly.
            let takes = all <= most || turn * most / all != (turn + 1) * most / all;
            if takes && next[unit] < starts[unit + 1] {
                places[next[unit] as usize] = place as u32;
                next[unit] += 1;
            }
        }
        (places, starts, counts)
    }

    /// The piece of each unit, and how many there are. A unit that no chunk that forms has is one.
    fn pieces(&self, unit_count: usize, lags: &[usize]) -> (Vec<u32>, usize) {
        let (places, starts, counts) = self.places(unit_count);
        let total = f64::from(counts.iter().sum::<u32>()).max(1.0);
        let mut piece: Vec<u32> = (0..unit_count as u32).collect();
        let mut sizes: Vec<f64> = counts.iter().map(|&count| f64::from(count)).collect();
        let mut votes = Votes::new(unit_count);
        for _ in 0..ROUNDS {
            let mut moved = 0;
            for unit in 0..unit_count {
                for &place in &places[starts[unit] as usize..starts[unit + 1] as usize] {
                    self.vote(place as usize, lags, &piece, &mut votes);
                }
                let (was, own) = (piece[unit], f64::from(counts[unit]));
                sizes[was as usize] -= own;
                let charge = SIZE * votes.total() / total;
                let gain = |piece: u32, votes: f64| votes - charge * sizes[piece as usize];
                let mut best = (gain(was, votes.of(was)), was);
                for (other, votes) in votes.iter() {
                    let gain = gain(other, votes);
                    if gain > best.0 + 1e-9 {
                        best = (gain, other);
                    }
                }
                piece[unit] = best.1;
                sizes[best.1 as usize] += own;
                moved += usize::from(best.1 != was);
                votes.clear();
            }
            if (moved as f64) < FEW * unit_count as f64 {
                break;
            }
        }
        renumber(piece)
    }

    /// Counts the pieces that a unit is touched with.
    fn vote(&self, place: usize, lags: &[usize], piece: &[u32], votes: &mut Votes) {
        let own = self.unit(place);
        let chunk = self.chunk(place);
        for &lag in lags {
            let both = [
                self.sequence.before(place, lag),
                self.sequence.after(place, lag),
            ];
            for other in both.into_iter().flatten() {
                let unit = self.unit(other);
                if unit != NONE && unit != own && self.chunk(other) == chunk {
                    votes.add(piece[unit as usize]);
                }
            }
        }
    }

    /// Tells of the unit of every touch that measures.
    fn measured(&self, mut tell: impl FnMut(usize)) {
        for place in (0..self.sequence.len()).filter(|&place| !self.forms(place)) {
            if self.unit(place) != NONE {
                tell(self.unit(place) as usize);
            }
        }
    }

    /// Tells of pairs of pages that were touched at these lags in chunks that measure: of turn 0 those that
    /// begin at even places, of turn 1 the others.
    fn pairs(&self, lags: &[usize], turn: usize, mut tell: impl FnMut(usize, usize)) {
        let pages = &self.sequence.pages;
        for place in (turn..self.sequence.len()).step_by(2) {
            if self.forms(place) {
                continue;
            }
            for other in lags
                .iter()
                .filter_map(|&lag| self.sequence.after(place, lag))
            {
                if pages[other] != pages[place] && self.chunk(other) == self.chunk(place) {
                    tell(pages[place] as usize, pages[other] as usize);
                }
            }
        }
    }
}

/// Small numbers for the pieces in use, and how many there are.
fn renumber(mut piece: Vec<u32>) -> (Vec<u32>, usize) {
    let mut number = vec![NONE; piece.len()];
    let mut count = 0;
    for piece in &mut piece {
        let number = &mut number[*piece as usize];
        if *number == NONE {
            *number = count;
            count += 1;
        }
        *piece = *number;
    }
    (piece, count as usize)
}

/// Counts by a number, of which few are used at a time.
struct Votes {
    counts: Vec<u32>,
    used: Vec<u32>,
    total: u32,
}

impl Votes {
    fn new(count: usize) -> Self {
        Self {
            counts: vec![0; count],
            used: Vec::new(),
            total: 0,
        }
    }

    fn add(&mut self, number: u32) {
        let count = &mut self.counts[number as usize];
        if *count == 0 {
            self.used.push(number);
        }
        *count += 1;
        self.total += 1;
    }

    fn of(&self, number: u32) -> f64 {
        f64::from(self.counts[number as usize])
    }

    fn total(&self) -> f64 {
        f64::from(self.total)
    }

    fn iter(&self) -> impl Iterator<Item = (u32, f64)> + '_ {
        self.used.iter().map(|&number| (number, self.of(number)))
    }

    fn clear(&mut self) {
        for number in self.used.drain(..) {
            self.counts[number as usize] = 0;
        }
        self.total = 0;
    }
}

/// Pieces and how often two of them were touched next to each other.
struct Graph {
    /// Touches of each.
    size: Vec<f64>,
    /// Pairs within each.
    own: Vec<f64>,
    /// Pairs between two, the lower number first.
    edges: Vec<(u32, u32, f64)>,
    /// What each became part of.
    root: Vec<u32>,
}

impl Graph {
    fn new(count: usize) -> Self {
        Self {
            size: vec![0.0; count],
            own: vec![0.0; count],
            edges: Vec::new(),
            root: (0..count as u32).collect(),
        }
    }

    fn add(&mut self, one: u32, other: u32) {
        match one == other {
            true => self.own[one as usize] += 1.0,
            false => self.edges.push((one.min(other), one.max(other), 1.0)),
        }
    }

    /// Merges the best pairs until none is left that belongs together.
    fn merge(&mut self, threshold: f64) {
        self.combine();
        let total =
            self.own.iter().sum::<f64>() + self.edges.iter().map(|edge| edge.2).sum::<f64>();
        let touches = self.size.iter().sum::<f64>().max(1.0);
        let by_chance = 2.0 * total / (touches * touches);
        while self.merge_once(threshold, by_chance) {
            self.combine();
        }
    }

    /// One round: the better half of all pairs that belong together. A piece that another became part of
    /// may take in more, but goes nowhere in this round, as it is not what was looked at any more.
    fn merge_once(&mut self, threshold: f64, by_chance: f64) -> bool {
        let mut best: Vec<Option<(f64, u32)>> = vec![None; self.size.len()];
        for &(one, other, pairs) in &self.edges {
            let (a, b) = (one as usize, other as usize);
            let own = (selected(self.own[a]) * selected(self.own[b])).sqrt();
            let needed = threshold * (2.0 * own).max(by_chance * self.size[a] * self.size[b]);
            if pairs <= needed {
                continue;
            }
            // How surely it is more, as the logarithm of a likelihood of counts.
            let rank = match needed > 0.0 {
                true => pairs * (pairs / needed).ln() - (pairs - needed),
                false => pairs,
            };
            for (at, partner) in [(a, other), (b, one)] {
                if best[at].is_none_or(|(most, _)| rank > most) {
                    best[at] = Some((rank, partner));
                }
            }
        }
        let mut order: Vec<(f64, u32, u32)> = Vec::new();
        for (piece, best) in best.into_iter().enumerate() {
            order.extend(best.map(|(rank, partner)| (rank, piece as u32, partner)));
        }
        order.sort_by(|one, other| other.0.total_cmp(&one.0).then(one.1.cmp(&other.1)));
        order.truncate(order.len().div_ceil(2));
        let (mut gone, mut grown) = (vec![false; self.size.len()], vec![false; self.size.len()]);
        for &(_, one, other) in &order {
            let is_larger = self.size[one as usize] > self.size[other as usize];
            let (larger, smaller) = if is_larger {
                (one, other)
            } else {
                (other, one)
            };
            let (into, from) = (larger as usize, smaller as usize);
            if gone[into] || gone[from] || grown[from] {
                continue;
            }
            self.root[from] = larger;
            self.size[into] += self.size[from];
            self.own[into] += self.own[from];
            (gone[from], grown[into]) = (true, true);
        }
        !order.is_empty()
    }

    /// What a piece became part of.
    fn root(&self, mut piece: u32) -> u32 {
        while self.root[piece as usize] != piece {
            piece = self.root[piece as usize];
        }
        piece
    }

    /// Edges between what pieces became part of, one for each pair.
    fn combine(&mut self) {
        let mut edges = std::mem::take(&mut self.edges);
        for edge in &mut edges {
            let (one, other) = (self.root(edge.0), self.root(edge.1));
            (edge.0, edge.1) = (one.min(other), one.max(other));
        }
        edges.sort_unstable_by_key(|edge| u64::from(edge.0) << 32 | u64::from(edge.1));
        for same in edges.chunk_by(|one, other| (one.0, one.1) == (other.0, other.1)) {
            let (one, other, _) = same[0];
            let pairs: f64 = same.iter().map(|edge| edge.2).sum();
            match one == other {
                true => self.own[one as usize] += pairs,
                false => self.edges.push((one, other, pairs)),
            }
        }
    }

    /// A number for each piece that is part of one of the largest, and how many these are.
    fn largest(&self, most: usize) -> (Vec<u32>, usize) {
        let is_whole = |piece: &u32| self.root[*piece as usize] == *piece;
        let mut whole: Vec<u32> = (0..self.size.len() as u32).filter(is_whole).collect();
        whole.sort_by(|&one, &other| self.size[other as usize].total_cmp(&self.size[one as usize]));
        whole.truncate(most);
        let mut number = vec![NONE; self.size.len()];
        for (at, &piece) in whole.iter().enumerate() {
            number[piece as usize] = at as u32;
        }
        let of = (0..self.size.len() as u32).map(|piece| number[self.root(piece) as usize]);
        (of.collect(), whole.len())
    }
}

/// Pairs within a piece that was selected for having many: two standard deviations less, where counts of
/// overlapping lags scatter twice as much.
fn selected(own: f64) -> f64 {
    (own - 2.0 * (2.0 * own).sqrt()).max(0.0)
}
