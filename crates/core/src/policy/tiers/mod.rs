//! Hot memory in the fast tier.
//!
//! Problem: a machine has a little fast memory and much slow memory. First touch fills the fast one with
//! whatever came first. Rule: the hottest pages that fit belong into the fastest tier, the next hottest
//! into the next (thesis, chapter IV). No threshold is set by hand:
//!
//! - The *border* is the heat at which the fast tier is full, read off a histogram of all pages.
//! - A page goes up into free room where the time that it is expected to save in [`Config::horizon_us`]
//!   exceeds what its move takes. The saving is its accesses times the difference of the latencies of
//!   both tiers: as measured under load where samples tell them, so that a fast tier that is overloaded is
//!   no longer fast (Colloid, SOSP 2024, balances the latencies of tiers the same way).
//! - Where there is no room, it must find a colder page to change places with, which is colder by a factor
//!   ([`Config::swap_factor`]) and whose loss, and both moves, the gain exceeds. So equals do not change places
//!   for ever. Both are tried before ([`trial`]): of many pages with few samples the hottest were lucky, and the
//!   coldest unlucky. The colder page goes first; pages are demoted for no other reason, except for a quota.
//! - Access bits tell which pages are used more, and not how many accesses there are ([`Snapshot::by_use`]): these are
//!   taken to be as many as fit into the CPU time of the programs, each of them waited for. So a move is left that
//!   could not pay even then.
//! - What all moves of a step save must exceed what looking closely costs hither until they have their verdict: else
//!   a few pages now and then would keep it looking for good.
//! - Where the kernel's balancing is seen to move pages, no more leave the fast tier at once than it does not fill
//!   with others: it takes what is free beyond its high watermark.
//! - A page counts only once its block was seen in several intervals: what a scan passes over once is not
//!   promoted.
//! - What a program has declared of its memory counts before what is seen ([`crate::declared`]): pinned pages
//!   go first, into the fast tier against the coldest others, within the quota; pages that it expects to use
//!   next, pages that it does not are the first to leave.
//! - Where memory of the fast tier answers later than that of the slow one, traffic is the problem: hot
//!   pages are spread until both answer alike.
//!
//! `policy::heat` says how hot a page is. Huge pages move whole. The efficacy loop is the engine's.

mod hinted;
pub mod paper;
mod places;
#[cfg(test)]
mod tests;
mod trial;

use super::heat::{First, HALF_LIFE_US, Heat, Judged, View, left_after};
use super::units::for_each_unit;
use super::{Context, EvidenceKind, Policy, PolicyActivity, Proposal, ProposedMove};
use crate::plan::{Listing, Mechanism, Sampling};
use crate::quota::Quota;
use crate::snapshot::{Snapshot, base_pages};
use crate::tiers::Tiers;
use hinted::Hinted;
pub(super) use places::nearest_with_room;
use places::{Border, Ladder};
use std::borrow::Cow;
use std::collections::BTreeMap;
use trial::{Side, Trial};

/// Its name.
pub const NAME: &str = "tiers";

/// Is a quota of fast memory kept where this policy decides?
#[must_use]
pub fn keeps(policy: &str, quota: Quota) -> bool {
    quota == Quota::Unlimited || policy == NAME
}

/// From the start on it learns for so long, whatever it sees, in us: a program loads its data first, and what it
/// then uses must have had time to show. Twice the time in which heat fades by half.
const FIRST_US: u64 = 2 * HALF_LIFE_US;

/// Where moves would not pay, heat is judged again after so long, in us: until then a sixth of it has faded.
const REST_US: u64 = HALF_LIFE_US / 4;

/// Close looks that moves bring about: one for their outcome, one for quiet, two that are measured.
const LOOKS: f64 = 4.0;

/// Time that an access saves in faster memory where no latency is known, in ns. 100 ns: memory on CXL
/// answers 100 to 280 ns later than the socket's own (Tigon's summary of measured devices).
const UNRATED_NS: f64 = 100.0;

/// The thresholds.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// A move must pay within this time, in us. 5 s: what a page was seen to do in the last seconds
    /// tells of about as many to come.
    pub horizon_us: u64,
    /// Factor by which a page must be hotter than the one whose place it takes. 1.5: the heat of pages that
    /// are alike differs by less once some ten samples tell of their block.
    pub swap_factor: f64,
    /// The same where evidence goes over memory part after part, and sees a page once in a round, however often it is
    /// used: of pages that are in use all have the same heat, but for the rounds in which they were not. 4.
    pub swap_factor_by_rounds: f64,
    /// Intervals in which a block must have been seen. 3: a scan passes a block within one or two.
    pub min_seen: u32,
    /// The same where evidence goes over memory part after part, and sees a page once in a round.
    pub min_seen_by_rounds: u32,
    /// Latency of the fast tier over the slow one's from which traffic is spread. 1.05, beyond what
    /// the mean of an interval's samples scatters.
    pub overloaded: f64,
    /// Share of the fast tier's accesses that is spread in one step. 10 %.
    pub spread_share: f64,
    /// Blocks of 2 MiB that are remembered. 1 M: 2 TiB, in 1.6 GiB of hither's own.
    pub max_blocks: usize,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            horizon_us: 5_000_000,
            swap_factor: 1.5,
            swap_factor_by_rounds: 4.0,
            min_seen: 3,
            min_seen_by_rounds: 2,
            overloaded: 1.05,
            spread_share: 0.1,
            max_blocks: 1 << 20,
        }
    }
}

/// The policy with what it remembers.
#[derive(Debug, Default)]
pub struct Hot {
    config: Config,
    heat: Heat,
    trial: Trial,
    /// Accesses that a full sample stands for; 0 where nobody tells.
    period: f64,
    /// Does evidence go over memory part after part?
    by_rounds: bool,
    began_us: Option<u64>,
    /// For how long samples were full, in us.
    looked_us: u64,
    /// Nothing is judged before this time.
    rests_until_us: u64,
    left: Left,
    /// Has the kernel's own balancing moved pages that were watched?
    kernel_moves: bool,
    has_told: bool,
}

/// Places of the fastest tier that demotions have left and promotions have not taken. The kernel keeps freed pages in
/// lists of each CPU, a thousand or two, for some seconds before it counts them as free: for the pages that are to
/// have them, no further ones need to leave.
#[derive(Clone, Copy, Debug, Default)]
struct Left {
    /// Base pages.
    pages: u64,
    /// Who has not taken them by then gets none: others have.
    until_us: u64,
}

impl Left {
    fn at(self, now_us: u64) -> u64 {
        if now_us < self.until_us {
            self.pages
        } else {
            0
        }
    }

    /// So many left, and so many were taken.
    fn change(&mut self, now_us: u64, left: u64, taken: u64) {
        self.pages = (self.at(now_us) + left).saturating_sub(taken);
        if left > 0 {
            self.until_us = now_us.saturating_add(HALF_LIFE_US);
        }
    }
}

/// What an access to each tier takes, and what that makes of heat.
#[derive(Clone, Copy, Debug)]
struct Worth {
    /// Time saved by one access in the faster of two tiers, in ns.
    saved_ns: f64,
    /// Accesses in the horizon for each faded sample; `None` where nobody tells what a sample stands for.
    accesses: Option<f64>,
    move_ns: f64,
}

impl Worth {
    /// Time that a base page of this heat saves within the horizon, less `moves` moves, in ns. Where the
    /// number of accesses is unknown, a page that was seen is taken to be worth its move.
    fn gain_ns(&self, heat: f64, moves: f64) -> f64 {
        match self.accesses {
            Some(accesses) => heat * accesses * self.saved_ns - moves * self.move_ns,
            None => heat * self.saved_ns,
        }
    }
}

impl Hot {
    /// Has it found several tiers?
    pub(super) fn is_in_use(&self) -> bool {
        self.began_us.is_some()
    }

    /// Takes in an interval.
    fn learn(&mut self, snapshot: &Snapshot, context: &Context<'_>, tiers: &Tiers) {
        self.began_us
            .get_or_insert(snapshot.now_us.saturating_sub(snapshot.interval_us));
        self.looked_us = match context.sampling {
            Sampling::Full => self.looked_us.saturating_add(snapshot.interval_us),
            Sampling::Cheap | Sampling::Off => 0,
        };
        self.heat.begin(snapshot, context.now_us);
        self.kernel_moves |= snapshot.pages.iter().any(|page| page.was.is_some());
        let period = f64::from(snapshot.sample_period);
        if self.period == 0.0 {
            self.period = period;
        }
        // An interval without samples, whose period is not known, makes no rounds of those before.
        self.by_rounds = self.period == 0.0 && !snapshot.by_use;
        let weight = match self.period > 0.0 && period > 0.0 {
            true => period / self.period,
            false => 1.0,
        };
        let is_sampled = snapshot.sample_count.get().is_some_and(|count| count > 0);
        if is_sampled {
            self.trial.begin(snapshot.interval_us);
        }
        let write_weight = tiers.write_weight(snapshot, 0, 1);
        let most = self.config.max_blocks;
        let (mut sum, mut squares) = (0.0, 0.0);
        for_each_unit(snapshot, context, |unit| {
            let all: u64 = unit
                .samples
                .iter()
                .map(|&(_, count)| u64::from(count))
                .sum();
            let reads = all.saturating_sub(unit.writes) as f64;
            let writes = unit.writes as f64 * write_weight;
            let samples = (reads + writes) * weight;
            sum += samples;
            squares += (reads + writes * write_weight) * weight * weight;
            self.heat
                .take(unit.pid, unit.page, unit.huge, unit.home, samples, most);
            if is_sampled && samples > 0.0 {
                self.trial.take(unit.pid, unit.page, samples);
            }
        });
        if is_sampled {
            self.heat.weigh(snapshot.interval_us, sum, squares);
        }
        for arrived in context.arrived {
            if let Some(home) = snapshot.node_position(arrived.at) {
                self.heat.moved(arrived.pid, arrived.page, home);
            }
        }
    }

    /// Where nothing is to be moved. Is it too early to say so for good? Whoever was woken has looked for a moment
    /// only.
    fn outlook(&self, context: &Context<'_>) -> PolicyActivity {
        let began_us = self.began_us.unwrap_or(context.now_us);
        let is_close = context.sampling == Sampling::Full && self.looked_us < HALF_LIFE_US;
        match is_close || context.now_us.saturating_sub(began_us) < FIRST_US {
            true => PolicyActivity::Learning,
            false => PolicyActivity::Done,
        }
    }

    /// Heat is as many samples as came in so many seconds.
    fn window_s(&self, snapshot: &Snapshot) -> f64 {
        let age_us = snapshot.now_us.saturating_sub(self.began_us.unwrap_or(0));
        let lasting_us = HALF_LIFE_US as f64 / std::f64::consts::LN_2;
        let window_us = lasting_us * (1.0 - left_after(age_us));
        window_us.max(1.0) / 1e6
    }

    /// What heat is worth between a tier and the next slower one.
    fn worth(
        &self,
        snapshot: &Snapshot,
        context: &Context<'_>,
        tiers: &Tiers,
        rank: u32,
        window_s: f64,
    ) -> Worth {
        let (fast, slow) = (
            tiers.read_ns(snapshot, rank),
            tiers.read_ns(snapshot, rank + 1),
        );
        let mut saved_ns = match (fast, slow) {
            (Some(fast), Some(slow)) => slow - fast,
            _ => UNRATED_NS,
        };
        // Latencies of accesses that overlap add up to more time than there is.
        let accesses = snapshot.metrics.memory_accesses_per_us.get();
        if let Some((per_us, slow)) = accesses.zip(slow) {
            let waited = per_us * slow / 1000.0;
            saved_ns /= (waited / snapshot.busy_cpus()).max(1.0);
        }
        let horizon_s = self.config.horizon_us as f64 / 1e6;
        let accesses = match (snapshot.by_use, slow) {
            (true, Some(slow)) => {
                // At most as many as the CPU time has room for, if all of them went to slow memory.
                let most = snapshot.busy_cpus() * horizon_s * 1e9 / slow;
                self.heat.all().map(|all| most / all)
            }
            _ => (self.period > 0.0).then_some(self.period * horizon_s / window_s),
        };
        Worth {
            saved_ns,
            accesses,
            move_ns: context.page_move_ns(),
        }
    }

    fn min_seen(&self) -> u32 {
        match self.by_rounds {
            false => self.config.min_seen,
            true => self.config.min_seen_by_rounds,
        }
    }

    fn swap_factor(&self) -> f64 {
        match self.by_rounds {
            false => self.config.swap_factor,
            true => self.config.swap_factor_by_rounds,
        }
    }

    fn propose(&mut self, snapshot: &Snapshot, context: &Context<'_>, tiers: &Tiers) -> Proposal {
        let mut ladder = Ladder::new(snapshot, context, tiers);
        ladder.count(&self.heat);
        let borders = ladder.borders();
        let fast_use = Some(ladder.fast_use());
        let mut draft = Draft::new(ladder, context.page_budget);
        draft.left = self.left.at(context.now_us);
        if self.kernel_moves {
            draft.most_leaving = draft.ladder.unseen_room(0);
        }
        let window_s = self.window_s(snapshot);
        // The looks of a campaign under way come anyway, and places that were left for others are to be taken.
        let mut is_weighed = context.unjudged_pages == 0;
        for (rank, border) in (0..).zip(&borders) {
            let worth = self.worth(snapshot, context, tiers, rank, window_s);
            is_weighed &= worth.accesses.is_some();
            let fast_ns = tiers.read_ns(snapshot, rank);
            let slow_ns = tiers.read_ns(snapshot, rank + 1);
            let overload = fast_ns.zip(slow_ns).map_or(0.0, |(fast, slow)| fast / slow);
            if overload > self.config.overloaded && context.allows(Mechanism::Interleave) {
                self.spread(context, rank, &mut draft);
                let because = format!(
                    "memory of the fast tier answers in {:.0} ns under its load, that of the slow one in {:.0}",
                    fast_ns.unwrap_or(0.0),
                    slow_ns.unwrap_or(0.0)
                );
                draft.because(Mechanism::Interleave, because);
                continue;
            }
            self.change_places(context, border, &worth, window_s, &mut draft);
        }
        if !self.by_rounds {
            self.trial.set(&draft.tried, window_s, self.heat.sample());
        }
        if is_weighed && !draft.moves.is_empty() && !draft.pays(context.look_us) {
            draft.moves.clear();
            (draft.leaving, draft.coming) = (0, 0);
            self.rests_until_us = context.now_us.saturating_add(REST_US);
        }
        self.left
            .change(context.now_us, draft.leaving, draft.coming);
        Proposal {
            outlook: match draft.is_short || draft.is_waiting || !draft.moves.is_empty() {
                true => PolicyActivity::Working,
                false => self.outlook(context),
            },
            moves: draft.moves,
            reasons: draft.reasons,
            fast_use,
            ..Proposal::default()
        }
    }

    /// Hot pages up into room, or against colder ones.
    fn change_places(
        &self,
        context: &Context<'_>,
        border: &Border,
        worth: &Worth,
        window_s: f64,
        draft: &mut Draft<'_>,
    ) {
        let may = |mechanism| context.allows(mechanism);
        let swap_factor = self.swap_factor();
        let rank = border.rank;
        let min_seen = self.min_seen();
        let free = |page: &Judged| context.may_move(page.pid, page.page);
        let hinted = Hinted::of(context, rank);
        let (asked_up, asked_down) = hinted.pages(&self.heat, &draft.ladder, rank, free);
        for page in asked_down.iter().filter(|page| hinted.is_pinned(page)) {
            draft.order(page, rank + 1, Mechanism::Pin);
        }
        let most = draft.ladder.room(rank) + draft.ladder.exchanged(rank);
        let mut hot = First::of(most.min(draft.budget));
        let ladder = &draft.ladder;
        let is_above = |position: u8| ladder.rank(usize::from(position)) > rank;
        let is_hot = |heat| border.is_above(heat) && worth.gain_ns(heat, 1.0) > 0.0;
        let wants = |block: &View<'_>| {
            block.seen >= min_seen
                && block.heat.is_none_or(is_hot)
                && block.held.iter().any(|&(home, _)| is_above(home))
        };
        let is_free = |page: &Judged| free(page) && !hinted.has(page);
        self.heat.visit(wants, |page| {
            if ladder.rank(page.home) > rank && is_hot(page.heat) {
                hot.offer(-page.heat, page, is_free);
            }
        });
        for page in asked_up {
            hot.offer(-page.heat, page, |_| true);
        }
        let hot = hot.sorted();
        let mut cold: Vec<Judged> = asked_down;
        cold.retain(|page| !hinted.is_pinned(page));
        cold.extend(self.cold(ladder, border, &hot, is_free));
        let mut victims = cold.iter().peekable();
        // A quota that is exceeded: the coldest go, whatever is to come.
        let mut excess = border.excess_pages;
        while excess > 0 && may(Mechanism::Yield) {
            let Some(page) = victims.next() else { break };
            if !draft.order(page, rank + 1, Mechanism::Yield) {
                break;
            }
            excess = excess.saturating_sub(base_pages(page.huge));
        }
        let mut is_promoting = false;
        let mut hot = hot.iter().peekable();
        while let Some(&page) = hot.peek() {
            let mechanism = hinted.mechanism(page);
            if !may(mechanism) || !draft.order(page, rank, mechanism) {
                break;
            }
            is_promoting = true;
            // For room nobody has to leave: what was not tried yet is taken to be as hot as it seems.
            let tried = self.trial.believed(page.heat, Side::Room, window_s);
            let heat = tried.unwrap_or(page.heat);
            draft.gain_ns += worth.gain_ns(heat, 1.0) * base_pages(page.huge) as f64;
            draft.tried.push((*page, Side::Room));
            hot.next();
        }
        // The rest needs places that colder pages leave; it takes them in a later step.
        for page in hot {
            let mut needed = base_pages(page.huge);
            if rank == 0 && draft.left >= needed {
                draft.left -= needed;
                draft.is_waiting = true;
                continue;
            }
            if rank == 0 && draft.leaving >= draft.most_leaving {
                break;
            }
            let Some(&victim) = victims.peek() else { break };
            let mechanism = hinted.mechanism(page);
            let gain = |hot: f64, cold: f64| match hot >= swap_factor * cold {
                true => worth.gain_ns(hot - cold, 2.0),
                false => 0.0,
            };
            let is_worth_it = gain(page.heat, victim.heat) > 0.0;
            if !is_worth_it || !may(Mechanism::Demote) || !may(mechanism) {
                break;
            }
            // What its program says of a page needs no trial, nor does a round, in which all pages come once.
            let gain_ns = match self.by_rounds || mechanism != Mechanism::Promote {
                true => gain(page.heat, victim.heat),
                false => {
                    draft.tried.push((*page, Side::Hot));
                    let hot = self.trial.believed(page.heat, Side::Hot, window_s);
                    let cold = self.trial.believed(victim.heat, Side::Cold, window_s);
                    hot.zip(cold).map_or(0.0, |(hot, cold)| gain(hot, cold))
                }
            };
            while needed > 0
                && let Some(victim) =
                    victims.next_if(|victim| page.heat >= swap_factor * victim.heat)
            {
                draft.tried.push((*victim, Side::Cold));
                if gain_ns > 0.0 && !draft.order(victim, rank + 1, Mechanism::Demote) {
                    break;
                }
                needed = needed.saturating_sub(base_pages(victim.huge));
            }
            if needed > 0 {
                break;
            }
            draft.gain_ns += gain_ns * base_pages(page.huge) as f64;
        }
        let because = format!(
            "hot memory into the fast tier, which is full at a heat of {:.2} samples a page: each access saves \
             {:.0} ns",
            border.heat, worth.saved_ns
        );
        if is_promoting {
            draft.because(Mechanism::Promote, because);
        }
        for (mechanism, because) in hinted::REASONS {
            draft.because(mechanism, because);
        }
        let because = "colder than what waits for its place in the fast tier";
        draft.because(Mechanism::Demote, because);
        let because = format!(
            "{} pages above the quota of fast memory",
            border.excess_pages
        );
        draft.because(Mechanism::Yield, because);
    }

    /// The coldest pages of a tier, as many as may have to leave it.
    fn cold(
        &self,
        ladder: &Ladder<'_>,
        border: &Border,
        hot: &[Judged],
        free: impl Fn(&Judged) -> bool,
    ) -> Vec<Judged> {
        let room = ladder.room(border.rank);
        let wanted: u64 = hot.iter().map(|page| base_pages(page.huge)).sum();
        let wanted = wanted.saturating_sub(room) + border.excess_pages;
        let is_in = |home: usize| ladder.rank(home) == border.rank;
        let may_leave = |heat| border.excess_pages > 0 || border.is_below(heat);
        // Memory that no round has come to yet is not unused.
        let is_waiting = self.by_rounds && border.excess_pages == 0;
        let met_us = if is_waiting { FIRST_US } else { 0 };
        self.heat.coldest(wanted, met_us, is_in, may_leave, free)
    }

    /// Hot pages of an overloaded tier to the next one, until a share of its accesses has gone.
    fn spread(&self, context: &Context<'_>, rank: u32, draft: &mut Draft<'_>) {
        let (mut pages, mut all) = (First::of(draft.budget), 0.0);
        let free = |page: &Judged| context.may_move(page.pid, page.page);
        let ladder = &draft.ladder;
        self.heat.visit(
            |block| block.heat != Some(0.0),
            |page| {
                if ladder.rank(page.home) == rank {
                    all += page.heat * base_pages(page.huge) as f64;
                    if page.heat > 0.0 {
                        pages.offer(-page.heat, page, free);
                    }
                }
            },
        );
        let mut left = all * self.config.spread_share;
        for page in pages.sorted() {
            let is_over = left <= 0.0 || draft.budget < base_pages(page.huge);
            if is_over || !draft.order(&page, rank + 1, Mechanism::Interleave) {
                break;
            }
            left -= page.heat * base_pages(page.huge) as f64;
        }
    }
}

/// A proposal in the making, with what it may still use.
struct Draft<'a> {
    ladder: Ladder<'a>,
    /// Base pages.
    budget: u64,
    /// More could be done than the budget lets.
    is_short: bool,
    /// Pages wait for places that were left for them.
    is_waiting: bool,
    /// Places of the fastest tier that earlier drafts left, base pages.
    left: u64,
    /// Base pages that this one sends out of it, and into it.
    leaving: u64,
    coming: u64,
    /// So many may leave for others.
    most_leaving: u64,
    /// What promotions, and exchanges, are expected to save within the horizon, less the moves.
    gain_ns: f64,
    /// Pages that might change places: the next interval tells how hot they are.
    tried: Vec<(Judged, Side)>,
    moves: Vec<ProposedMove>,
    reasons: BTreeMap<Mechanism, Cow<'static, str>>,
}

impl<'a> Draft<'a> {
    /// Nothing is ordered yet.
    fn new(ladder: Ladder<'a>, budget: u64) -> Self {
        Self {
            ladder,
            budget,
            is_short: false,
            is_waiting: false,
            left: 0,
            leaving: 0,
            coming: 0,
            most_leaving: u64::MAX,
            gain_ns: 0.0,
            tried: Vec::new(),
            moves: Vec::new(),
            reasons: BTreeMap::new(),
        }
    }

    /// Moves a page to a tier; false where budget or room do not suffice.
    fn order(&mut self, page: &Judged, rank: u32, mechanism: Mechanism) -> bool {
        let pages = base_pages(page.huge);
        if self.budget < pages {
            self.is_short = true;
            return false;
        }
        let Some((from, to)) = self.ladder.place(page, rank) else {
            return false;
        };
        self.budget -= pages;
        if mechanism == Mechanism::Demote && rank == 1 {
            self.leaving += pages;
        } else if rank == 0 {
            self.coming += pages;
        }
        self.moves.push(ProposedMove {
            pid: page.pid,
            page: page.page,
            huge: page.huge,
            from,
            to,
            mechanism,
        });
        true
    }

    /// Is it worth the looks that cost so much CPU time each? What a quota, a pin or an overloaded tier asks for is
    /// not weighed.
    fn pays(&self, look_us: Option<u64>) -> bool {
        let look_ns = look_us.unwrap_or(0) as f64 * 1000.0;
        let mut mechanisms = self.moves.iter().map(|order| order.mechanism);
        mechanisms.any(|one| !matches!(one, Mechanism::Promote | Mechanism::Demote))
            || self.is_short
            || self.gain_ns > LOOKS * look_ns
    }

    fn because(&mut self, mechanism: Mechanism, text: impl Into<Cow<'static, str>>) {
        self.reasons.insert(mechanism, text.into());
    }
}

impl Policy for Hot {
    fn name(&self) -> &'static str {
        NAME
    }

    fn needs(&self) -> &[EvidenceKind] {
        &[EvidenceKind::PageUse]
    }

    fn listing(&self) -> Listing {
        // Memory that is never used is not seen by samples, and is the first to be demoted.
        Listing::Slow
    }

    fn decide(&mut self, snapshot: &Snapshot, context: &mut Context<'_>) -> Proposal {
        let tiers = Tiers::of(&snapshot.nodes);
        if !tiers.are_several() {
            let note = "tiers: all memory of this machine is of one tier, as far as the kernel and its firmware \
                        tell (`hither topo`): there is nothing to decide";
            let is_new = !std::mem::replace(&mut self.has_told, true);
            return Proposal {
                outlook: PolicyActivity::Shut,
                notes: is_new.then(|| note.to_owned()).into_iter().collect(),
                ..Proposal::default()
            };
        }
        self.learn(snapshot, context, &tiers);
        if context.page_budget == 0 {
            return Proposal {
                outlook: PolicyActivity::Learning,
                ..Proposal::default()
            };
        }
        if context.now_us < self.rests_until_us {
            return Proposal {
                outlook: self.outlook(context),
                ..Proposal::default()
            };
        }
        self.propose(snapshot, context, &tiers)
    }
}
