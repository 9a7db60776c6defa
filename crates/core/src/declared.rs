//! What programs declare of their own memory: regions with an expected heat, or pinned to a tier (the
//! guest-defined regions of the memory-region thesis, 4.2.2).
//!
//! A region is a set of page ranges of one address space under one [`Hint`]; pages are added and taken out by
//! declaring ranges. An expectation is advice: for [`TRUST_US`] it counts as if it had been seen, then what is
//! seen counts alone. A pin holds until it is taken back, within the quota. All ends with the address space.

use crate::ids::{Pid, SpaceId};
use crate::snapshot::ProcessState;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::ops::Range;

/// Time for which an expectation counts without evidence, in us. 10 s: five half-lives of the heat that is
/// seen, so that a region that is used as declared is hot by then.
pub const TRUST_US: u64 = 10_000_000;
/// Time within which a process that has declared something must have been met, in us.
const MEET_US: u64 = 10_000_000;
/// Ranges of one process at most: 100 KiB.
pub const MOST_RANGES: usize = 4096;
/// Processes at most.
const MOST_PROCESSES: usize = 4096;

/// What a program says of a range of its pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Hint {
    /// It will be used often.
    Hot,
    /// It will hardly be used.
    Cold,
    /// It belongs into the fastest tier, as far as the quota goes.
    PinFast,
    /// It belongs below the fastest tier.
    PinSlow,
}

impl Hint {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Hot, Self::Cold, Self::PinFast, Self::PinSlow];

    /// Its word, as in the daemon's protocol.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Hot => "hot",
            Self::Cold => "cold",
            Self::PinFast => "pin_fast",
            Self::PinSlow => "pin_slow",
        }
    }

    /// Does it hold whatever is seen?
    #[must_use]
    pub fn is_pin(self) -> bool {
        matches!(self, Self::PinFast | Self::PinSlow)
    }

    /// Does it ask for the fastest tier?
    #[must_use]
    pub fn is_up(self) -> bool {
        matches!(self, Self::Hot | Self::PinFast)
    }
}

/// More was declared than is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "a process declares {MOST_RANGES} ranges at most, and {MOST_PROCESSES} processes do; take some back"
)]
pub struct TooMany;

#[derive(Clone, Copy, Debug)]
struct Stretch {
    end: u64,
    hint: Hint,
    since_us: u64,
}

/// Of one process.
#[derive(Clone, Debug)]
struct Own {
    /// Which life of its memory; `None` until it is met.
    space: Option<SpaceId>,
    since_us: u64,
    /// By first page; they do not overlap.
    stretches: BTreeMap<u64, Stretch>,
}

/// What all programs have declared.
#[derive(Clone, Debug, Default)]
pub struct Declared {
    by_process: BTreeMap<Pid, Own>,
}

impl Declared {
    /// Declares pages of a process; without a hint, takes back what was declared of them.
    ///
    /// # Errors
    /// More was declared than is kept; nothing is changed then.
    pub fn declare(
        &mut self,
        pid: Pid,
        pages: Range<u64>,
        hint: Option<Hint>,
        now_us: u64,
    ) -> Result<(), TooMany> {
        if pages.is_empty() {
            return Ok(());
        }
        let count = self.by_process.len();
        let own = match self.by_process.get_mut(&pid) {
            Some(own) => own,
            None if hint.is_none() => return Ok(()),
            None if count >= MOST_PROCESSES => return Err(TooMany),
            None => self.by_process.entry(pid).or_insert(Own {
                space: None,
                since_us: now_us,
                stretches: BTreeMap::new(),
            }),
        };
        // A range within another splits it in two.
        let grows = hint.is_some() || own.is_split_by(&pages);
        if own.stretches.len() + 2 > MOST_RANGES && grows {
            return Err(TooMany);
        }
        own.cut(&pages);
        if let Some(hint) = hint {
            let (end, since_us) = (pages.end, now_us);
            own.stretches.insert(
                pages.start,
                Stretch {
                    end,
                    hint,
                    since_us,
                },
            );
        }
        if own.stretches.is_empty() {
            self.by_process.remove(&pid);
        }
        Ok(())
    }

    /// Forgets what was declared of address spaces that are over.
    pub fn keep(&mut self, processes: &[ProcessState], now_us: u64) {
        if self.by_process.is_empty() {
            return;
        }
        self.by_process.retain(|pid, own| {
            let met = processes.iter().find(|process| process.pid == *pid);
            match (own.space, met) {
                (None, Some(process)) => {
                    own.space = Some(process.space);
                    true
                }
                (None, None) => now_us.saturating_sub(own.since_us) < MEET_US,
                (Some(space), met) => met.is_some_and(|process| process.space == space),
            }
        });
    }

    /// Has this process declared anything?
    #[cfg(test)]
    fn has(&self, pid: Pid) -> bool {
        self.by_process.contains_key(&pid)
    }

    /// What counts now: ranges with their hints, by process, ascending.
    pub fn counting(&self, now_us: u64) -> impl Iterator<Item = (Pid, Range<u64>, Hint)> + '_ {
        let counts = move |stretch: &Stretch| {
            stretch.hint.is_pin() || now_us.saturating_sub(stretch.since_us) < TRUST_US
        };
        self.by_process.iter().flat_map(move |(&pid, own)| {
            let stretches = own
                .stretches
                .iter()
                .filter(move |(_, stretch)| counts(stretch));
            stretches.map(move |(&start, stretch)| (pid, start..stretch.end, stretch.hint))
        })
    }
}

impl Own {
    /// Do the pages lie within one stretch, apart from its ends?
    fn is_split_by(&self, pages: &Range<u64>) -> bool {
        let before = self.stretches.range(..pages.start).next_back();
        before.is_some_and(|(_, stretch)| stretch.end > pages.end)
    }

    /// Takes pages out.
    fn cut(&mut self, pages: &Range<u64>) {
        let before = self.stretches.range(..pages.start).next_back();
        let before = before.map(|(&start, &stretch)| (start, stretch));
        if let Some((start, stretch)) = before
            && stretch.end > pages.start
        {
            let end = pages.start;
            self.stretches.insert(start, Stretch { end, ..stretch });
            if stretch.end > pages.end {
                self.stretches.insert(pages.end, stretch);
            }
        }
        let within: Vec<u64> = self
            .stretches
            .range(pages.clone())
            .map(|(&start, _)| start)
            .collect();
        for start in within {
            if let Some(stretch) = self.stretches.remove(&start)
                && stretch.end > pages.end
            {
                self.stretches.insert(pages.end, stretch);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const PID: Pid = Pid(7);

    fn process(space: u32) -> ProcessState {
        ProcessState::of_test(PID, SpaceId(space))
    }

    proptest! {
        #[test]
        fn ranges_are_what_was_said_of_each_page_last(
            said in prop::collection::vec((0u64..60, 1u64..20, 0usize..5), 0..40)
        ) {
            let mut declared = Declared::default();
            let mut expected = [None; 80];
            for (start, count, hint) in said {
                let hint = Hint::ALL.get(hint).copied();
                declared.declare(PID, start..start + count, hint, 0).unwrap();
                expected[start as usize..(start + count) as usize].fill(hint);
            }
            let mut told = [None; 80];
            for (_, range, hint) in declared.counting(0) {
                for page in range {
                    prop_assert_eq!(told[page as usize].replace(hint), None);
                }
            }
            prop_assert_eq!(told, expected);
            prop_assert_eq!(declared.has(PID), expected.iter().any(Option::is_some));
        }
    }

    #[test]
    fn expectations_fade_and_pins_stay() {
        let mut declared = Declared::default();
        declared.declare(PID, 0..10, Some(Hint::Hot), 0).unwrap();
        declared
            .declare(PID, 10..20, Some(Hint::PinSlow), 0)
            .unwrap();
        assert_eq!(declared.counting(TRUST_US - 1).count(), 2);
        let left: Vec<_> = declared.counting(TRUST_US).collect();
        assert_eq!(left, [(PID, 10..20, Hint::PinSlow)]);
    }

    #[test]
    fn all_ends_with_the_address_space() {
        for (processes, is_kept) in [
            (vec![process(1)], true),
            (vec![process(2)], false),
            (vec![], false),
        ] {
            let mut declared = Declared::default();
            declared
                .declare(PID, 0..10, Some(Hint::PinFast), 0)
                .unwrap();
            declared.keep(&[], 1);
            assert!(declared.has(PID), "it may be met yet");
            declared.keep(&[process(1)], 2);
            declared.keep(&processes, 3);
            assert_eq!(declared.has(PID), is_kept);
        }
        let mut never_met = Declared::default();
        never_met
            .declare(PID, 0..10, Some(Hint::PinFast), 0)
            .unwrap();
        never_met.keep(&[], MEET_US);
        assert!(!never_met.has(PID));
    }

    #[test]
    fn what_is_kept_is_bounded() {
        let mut declared = Declared::default();
        for at in 0..MOST_RANGES as u64 - 1 {
            declared
                .declare(PID, 2 * at..2 * at + 1, Some(Hint::Hot), 0)
                .unwrap();
        }
        let more = declared.declare(PID, 1 << 40..1 << 41, Some(Hint::Hot), 0);
        assert_eq!(more, Err(TooMany));
        declared.declare(PID, 0..1 << 40, None, 0).unwrap();
        assert!(!declared.has(PID));
        // Holes make ranges, too.
        declared
            .declare(PID, 0..1 << 40, Some(Hint::Hot), 0)
            .unwrap();
        let holes = (1..=MOST_RANGES as u64).map(|at| 2 * at..2 * at + 1);
        let refused = holes.filter(|hole| declared.declare(PID, hole.clone(), None, 0).is_err());
        assert_eq!(refused.count(), 2);
        assert_eq!(declared.counting(0).count(), MOST_RANGES - 1);
    }
}
