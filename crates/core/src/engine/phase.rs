//! Phases of a scope: which readings may be compared.
//!
//! Problem: a reading that was taken while a program still set up its data says nothing of what it does
//! with them afterwards. Mechanism: as long as the memory has about the same users (shares of the samples
//! per node) it is one phase, with a number; a phase in which the access rate keeps within a factor of
//! [`OTHER_RATE`](super::verdict::OTHER_RATE) is one *stretch*. The first interval of a stretch may hold
//! the end of the one before, and is left out. What a campaign began with is the mean of the last readings
//! of the stretch that are alike.
//!
//! Properties: what moves change (homes, and with them ratios and latency) is no new phase; a program whose
//! stretches never last becomes comparable all the same, after [`PATIENCE`] intervals.

use super::verdict::{OTHER_RATE, Reading};
use crate::ids::Pid;
use crate::metrics;
use crate::snapshot::{HUGE_PAGES, Snapshot};
use crate::tiers::Tiers;
use std::collections::VecDeque;

/// Readings that are kept of a stretch, and that its mean is taken over.
const KEPT: usize = 3;
/// Share by which the access rates of readings that are averaged may differ from the last: a program that
/// is getting going has not yet the latency that it will have.
const ALIKE: f64 = 0.25;
/// Intervals without a comparable reading after which any is taken.
const PATIENCE: u32 = 5;
/// Change of the users (total variation, 0..=1) that begins a phase. One thread that fills all data and
/// then four nodes that use them are a change of 0.75; the noise of 50 samples over four nodes stays
/// below 0.2.
pub const OTHER_USERS: f64 = 0.4;
/// Samples from which an interval tells of its users.
pub const MIN_SAMPLES: f64 = 50.0;

/// Parts that memory is told apart by, where tiers are to hold what is hot.
const PLACES: usize = 32;
/// Samples from which an interval tells which memory is hot: of so many over as many parts, chance alone
/// changes a fifth.
const MIN_PLACED: f64 = 400.0;

/// What readings are of: those of two may not be compared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Phase {
    /// Changes when the memory gets other users, and, with several memory tiers, when other memory is hot.
    pub number: u32,
    /// Others run besides: figures are those of the scope's samples, not the machine's counters.
    pub is_part: bool,
}

/// The state.
#[derive(Clone, Debug, Default)]
pub(super) struct Phases {
    phase: Phase,
    /// Decayed samples per node position of those who accessed.
    users: Vec<f64>,
    /// Decayed samples by part of the memory; empty where there is one tier.
    places: Vec<f64>,
    /// Of the stretch, without its first; oldest first.
    readings: VecDeque<Reading>,
    /// The last reading, whatever it is of.
    last: Option<Reading>,
    /// Intervals since the last that was comparable.
    waited: u32,
}

impl Phases {
    /// Takes in an interval.
    pub fn take(&mut self, snapshot: &Snapshot, reading: Reading, is_part: bool) {
        let has_moved_on = self.take_places(snapshot);
        self.take_users(users_of(snapshot), reading, is_part, false, has_moved_on);
    }

    /// Is other memory hot than before? Only asked where there are several tiers: elsewhere it is of no
    /// account which pages are used, but by whom.
    fn take_places(&mut self, snapshot: &Snapshot) -> bool {
        if !Tiers::of(&snapshot.nodes).are_several() {
            return false;
        }
        let mut places = vec![0.0; PLACES];
        for page in &snapshot.pages {
            places[place_of(page.pid, page.page)] += page.total() as f64;
        }
        let (total, known): (f64, f64) = (places.iter().sum(), self.places.iter().sum());
        if total < MIN_PLACED {
            return false;
        }
        if known >= MIN_PLACED && metrics::total_variation(&self.places, &places) > OTHER_USERS {
            self.places = places;
            return true;
        }
        self.places.resize(PLACES, 0.0);
        for (sum, new) in self.places.iter_mut().zip(places) {
            *sum = *sum * 0.5 + new;
        }
        false
    }

    /// Takes in a round: it is long, so that the first of a stretch is as good as any.
    pub fn take_round(&mut self, users: Vec<f64>, reading: Reading, is_part: bool) {
        self.take_users(users, reading, is_part, true, false);
    }

    fn take_users(
        &mut self,
        users: Vec<f64>,
        reading: Reading,
        is_part: bool,
        is_round: bool,
        has_moved_on: bool,
    ) {
        if std::mem::replace(&mut self.phase.is_part, is_part) != is_part {
            self.last = None;
        }
        let total: f64 = users.iter().sum();
        let known: f64 = self.users.iter().sum();
        let tells = total >= MIN_SAMPLES;
        let has_other_users = tells
            && known >= MIN_SAMPLES
            && metrics::total_variation(&self.users, &users) > OTHER_USERS
            || has_moved_on;
        let last_rate = self.last.and_then(|last| last.accesses_per_us);
        let rates = last_rate.zip(reading.accesses_per_us);
        let has_other_rate = rates.is_some_and(|(old, new)| {
            old <= 0.0 || !(1.0 / OTHER_RATE..=OTHER_RATE).contains(&(new / old))
        });
        let is_first = self.last.replace(reading).is_none() && !is_round;
        if has_other_users || known == 0.0 && tells {
            self.phase.number += u32::from(has_other_users);
            self.users = users;
        } else {
            self.users.resize(users.len(), 0.0);
            for (sum, new) in self.users.iter_mut().zip(&users) {
                *sum = *sum * 0.5 + new;
            }
        }
        if has_other_users || has_other_rate || is_first {
            self.readings.clear();
            self.waited += 1;
            return;
        }
        self.waited = 0;
        if self.readings.len() == KEPT {
            self.readings.pop_front();
        }
        self.readings.push_back(reading);
    }

    /// What the last reading was of.
    pub fn phase(&self) -> Phase {
        self.phase
    }

    /// Is there a reading that a campaign can begin with?
    pub fn is_comparable(&self) -> bool {
        !self.readings.is_empty() || self.waited >= PATIENCE
    }

    /// What a campaign that starts now begins with.
    pub fn before(&self) -> Reading {
        match self.readings.is_empty() {
            true => self.last.unwrap_or_default(),
            false => {
                let last = self.readings.back().and_then(|last| last.accesses_per_us);
                let is_alike = |reading: &&Reading| match (last, reading.accesses_per_us) {
                    (Some(last), Some(rate)) => (rate - last).abs() <= ALIKE * last,
                    _ => true,
                };
                let alike = self.readings.iter().rev().take_while(is_alike);
                Reading::mean(alike)
            }
        }
    }

    /// Pages are on their way: what comes is not like what was.
    pub fn disturb(&mut self) {
        self.readings.clear();
    }
}

/// Part of the memory that a page counts to: neighbours of a 2 MiB block to the same, blocks dealt out.
fn place_of(pid: Pid, page: u64) -> usize {
    let block = (page / HUGE_PAGES) ^ (u64::from(pid.0.unsigned_abs()) << 40);
    (block.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 59) as usize
}

fn users_of(snapshot: &Snapshot) -> Vec<f64> {
    let mut users = vec![0.0; snapshot.nodes.len()];
    for page in &snapshot.pages {
        page.add_users(&mut users, 1.0);
    }
    users
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::world::{Pattern, World};
    use crate::plan::Sampling;

    fn reading(rate: f64) -> Reading {
        Reading {
            local_ratio: Some(0.5),
            accesses_per_us: Some(rate),
            ..Reading::default()
        }
    }

    #[test]
    fn the_first_interval_of_a_stretch_is_no_reading_to_begin_with() {
        let mut world = World::new(Pattern::Partitioned, 4096);
        let mut phases = Phases::default();
        let mut take = |world: &mut World, rate| {
            let snapshot = world.snapshot(100_000, Sampling::Full);
            phases.take(&snapshot, reading(rate), false);
            (
                phases.phase().number,
                phases.is_comparable(),
                phases.before(),
            )
        };
        // One thread fills its data, alone.
        world.alone = Some(0);
        assert!(!take(&mut world, 10.0).1);
        assert_eq!(take(&mut world, 10.0), (0, true, reading(10.0)));
        // All four nodes go to work: a phase, whose first interval does not count.
        world.alone = None;
        let (number, is_comparable, _) = take(&mut world, 20.0);
        assert_eq!((number, is_comparable), (1, false));
        assert_eq!(take(&mut world, 40.0), (1, true, reading(40.0)));
        assert_eq!(take(&mut world, 48.0), (1, true, reading(44.0)));
        // It is still getting going: what it does now counts.
        assert_eq!(take(&mut world, 96.0), (1, true, reading(96.0)));
        // The same users at another rate: the stretch begins anew, the phase goes on.
        let (number, is_comparable, _) = take(&mut world, 9.0);
        assert_eq!((number, is_comparable), (1, false));
    }

    #[test]
    fn counters_and_samples_are_not_compared() {
        let mut world = World::new(Pattern::Shared, 64);
        let mut phases = Phases::default();
        let mut told = Vec::new();
        for is_part in [false, false, true, true] {
            let snapshot = world.snapshot(100_000, Sampling::Full);
            phases.take(&snapshot, reading(50.0), is_part);
            told.push((phases.phase().is_part, phases.is_comparable()));
        }
        let expected = [(false, false), (false, true), (true, false), (true, true)];
        assert_eq!(told, expected);
    }

    #[test]
    fn what_never_lasts_is_taken_all_the_same() {
        let mut world = World::new(Pattern::Shared, 64);
        let mut phases = Phases::default();
        let mut comparable = Vec::new();
        for round in 0..8 {
            let rate = if round % 2 == 0 { 1.0 } else { 100.0 };
            let snapshot = world.snapshot(100_000, Sampling::Full);
            phases.take(&snapshot, reading(rate), false);
            comparable.push(phases.is_comparable());
        }
        assert_eq!(comparable[..4], [false; 4]);
        assert_eq!(comparable[4..], [true; 4]);
    }
}
