//! What is done about a touch of a closed region, and when a region is closed no longer. No clock, no threads.

use crate::unify::long_enough;
use std::fmt;

/// Entries of a region that are looked at together.
const WINDOW: u64 = 32;
/// Touches in a row that find the thread's own domain closed. A signal handler, which the kernel starts with all keys
/// closed, makes one for each domain that it uses; a thread that left a handler by `longjmp` would make them for ever.
const STRAYS: u32 = 3;

/// How regions are closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// By a protection key for each domain: each thread has its own open.
    Keys,
    /// By the protection of their pages, which holds for all threads: for programs with one.
    Protection,
}

/// What touches do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Regions are open to all.
    Off,
    /// Touches open, and are counted; nobody moves.
    Watch,
    /// Touches move the thread and open.
    Move,
}

impl Mode {
    pub(crate) fn from_word(word: u32) -> Self {
        match word {
            1 => Self::Watch,
            2 => Self::Move,
            _ => Self::Off,
        }
    }
}

/// Why a region is open to all threads everywhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Global {
    /// Its domain has no key: all are used.
    NoKey,
    /// It was entered so often that moving there cost more than it can gain.
    TooOften,
    /// It is closed by page protection, and a second thread touched it.
    Threads,
    /// The kernel refused: mappings, or memory for them, are used up.
    Refused,
}

impl Global {
    pub(crate) fn from_word(word: u32) -> Option<Self> {
        match word {
            1 => Some(Self::NoKey),
            2 => Some(Self::TooOften),
            3 => Some(Self::Threads),
            4 => Some(Self::Refused),
            _ => None,
        }
    }

    pub(crate) fn word(self) -> u32 {
        match self {
            Self::NoKey => 1,
            Self::TooOften => 2,
            Self::Threads => 3,
            Self::Refused => 4,
        }
    }
}

impl fmt::Display for Global {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::NoKey => "all protection keys are used: use fewer domains, or give keys back",
            Self::TooOften => {
                "it was entered too often: moving there cost more than two thirds of what visits before took"
            }
            Self::Threads => "a second thread touched it, and the processor has no protection keys",
            Self::Refused => {
                "the kernel refused to protect it: it has too many mappings, or no memory"
            }
        })
    }
}

/// What is done about a touch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// The access is tried again: it is open by now.
    Again,
    /// It is opened, and nothing else happens: for a while, in a signal handler.
    Open,
    /// It is opened and counts as the beginning of a visit.
    Watch,
    /// The same, and the thread moves.
    Move,
    /// It is opened beside what is open: one instruction needs both.
    Also,
}

/// What a touch found.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Touch {
    pub(crate) mode: Mode,
    pub(crate) is_global: bool,
    /// The thread's own domain is closed where it was running.
    pub(crate) is_astray: bool,
    /// Touches in a row that were astray, before this one.
    pub(crate) strays: u32,
    /// It is made by the instruction that made the one before, and nothing has happened in between.
    pub(crate) is_stuck: bool,
}

pub(crate) fn step(touch: Touch) -> Step {
    if touch.is_global {
        return Step::Again;
    }
    if touch.is_stuck {
        return Step::Also;
    }
    if touch.is_astray && touch.strays < STRAYS {
        return Step::Open;
    }
    match touch.mode {
        Mode::Off => Step::Open,
        Mode::Watch => Step::Watch,
        Mode::Move => Step::Move,
    }
}

/// A thread's register with these keys open and all others of `ours` closed; other programs' keys stay as they are. Both masks
/// have two bits for each key.
pub(crate) fn opened(pkru: u32, ours: u32, open: u32) -> u32 {
    (pkru | ours) & !open
}

/// The mean of what touches or moves cost, in ns, after one that took `took`. One counts for twice the mean at most (of 1 us and
/// more): what takes much longer was interrupted, and tells nothing of the next ones.
pub(crate) fn next_mean(mean: u64, took: u64) -> u64 {
    (7 * mean + took.min(2 * mean.max(1_000))) / 8
}

/// Entries to a region, and how long threads were elsewhere before them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Gaps {
    pub(crate) entries: u64,
    pub(crate) ns: u64,
}

/// Is a region entered too often, as visits between entries are too short for what a move costs? `None`: too few were
/// seen. The limit is the one of visits that are handed over ([`long_enough`]).
pub(crate) fn too_often(gaps: Gaps, cost_ns: u64) -> Option<bool> {
    let mean = (gaps.entries >= WINDOW).then(|| gaps.ns as f64 / gaps.entries as f64)?;
    Some(long_enough(mean, cost_ns as f64).is_err())
}

/// Do these bytes touch a range, by a byte at least?
pub(crate) fn overlap(start: u64, bytes: u64, range: (u64, u64)) -> bool {
    bytes > 0 && start < range.1 && start.saturating_add(bytes) > range.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use hither_linux::sys::pkey::closed;

    fn is_closed(pkru: u32, key: u32) -> bool {
        pkru & closed(key) != 0
    }

    const TOUCH: Touch = Touch {
        mode: Mode::Move,
        is_global: false,
        is_astray: false,
        strays: 0,
        is_stuck: false,
    };

    #[test]
    fn a_touch_moves_unless_it_is_open_by_now_or_a_handler_made_it() {
        assert_eq!(step(TOUCH), Step::Move);
        let global = Touch {
            is_global: true,
            ..TOUCH
        };
        assert_eq!(step(global), Step::Again);
        // As `rep movs` from one region to another does.
        let stuck = Touch {
            is_stuck: true,
            ..TOUCH
        };
        assert_eq!(step(stuck), Step::Also);
        let astray = |strays| Touch {
            is_astray: true,
            strays,
            ..TOUCH
        };
        assert_eq!(step(astray(0)), Step::Open);
        assert_eq!(
            step(astray(STRAYS)),
            Step::Move,
            "it left a handler by longjmp"
        );
        for (mode, expected) in [(Mode::Off, Step::Open), (Mode::Watch, Step::Watch)] {
            assert_eq!(step(Touch { mode, ..TOUCH }), expected);
        }
    }

    #[test]
    fn a_register_opens_one_of_ours_and_leaves_those_of_others() {
        // Keys 1 and 2 are ours, 3 is the program's own and open, 4 is nobody's.
        let ours = closed(1) | closed(2);
        let start = 0x5555_5554 & !closed(3);
        let one = opened(start, ours, closed(1));
        assert!(!is_closed(one, 1) && is_closed(one, 2) && !is_closed(one, 3) && is_closed(one, 4));
        let two = opened(one, ours, closed(2));
        assert!(is_closed(two, 1) && !is_closed(two, 2));
        assert_eq!(two & !ours, start & !ours);
        let both = opened(two, ours, ours);
        assert_eq!(both & ours, 0);
    }

    #[test]
    fn short_visits_between_entries_open_a_region_for_all() {
        let gaps = |entries, each| Gaps {
            entries,
            ns: entries * each,
        };
        assert_eq!(too_often(gaps(WINDOW - 1, 1), 1000), None);
        assert_eq!(too_often(gaps(WINDOW, 1499), 1000), Some(true));
        assert_eq!(too_often(gaps(WINDOW, 1500), 1000), Some(false));
    }

    #[test]
    fn one_that_was_interrupted_does_not_change_what_a_move_costs() {
        let mean = next_mean(20_000, 5_000_000);
        assert_eq!(mean, 22_500);
        // Moves that cost more from now on are found in a window.
        let later = (0..WINDOW).fold(20_000, |mean, _| next_mean(mean, 60_000));
        assert!((50_000..=60_000).contains(&later), "{later}");
        assert_eq!(next_mean(0, 5_000_000), 250);
    }

    #[test]
    fn buffers_overlap_regions_by_a_byte() {
        let region = (0x1000, 0x3000);
        assert!(overlap(0x2fff, 1, region) && overlap(0, 0x1001, region));
        assert!(!overlap(0x3000, 10, region) && !overlap(0, 0x1000, region));
        assert!(!overlap(0x2000, 0, region));
        assert!(overlap(0x2000, u64::MAX, region));
    }

    #[test]
    fn reasons_survive_as_words() {
        for reason in [
            Global::NoKey,
            Global::TooOften,
            Global::Threads,
            Global::Refused,
        ] {
            assert_eq!(Global::from_word(reason.word()), Some(reason));
        }
        assert_eq!(Global::from_word(0), None);
    }
}
