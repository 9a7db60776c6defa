//! Pages whose programs say where they belong.

use super::places::Ladder;
use super::{Context, Heat, Judged, Mechanism};
use crate::declared::Hint;
use crate::ids::Pid;
use std::ops::Range;

/// Heat of pages that a program expects to use, and of those that it pinned: above all that is seen, in samples.
const EXPECTED_HEAT: f64 = 1e9;
const PINNED_HEAT: f64 = 2e9;

/// Why pages of these mechanisms move.
pub(super) const REASONS: [(Mechanism, &str); 2] = [
    (Mechanism::Advise, "its program expects to use it often"),
    (Mechanism::Pin, "its program pinned it to this tier"),
];

/// What counts now: ranges of pages that do not overlap, ascending.
#[derive(Debug, Default)]
pub(super) struct Hinted {
    ranges: Vec<(Pid, Range<u64>, Hint)>,
}

impl Hinted {
    /// For the border below a tier; hints are about the fastest.
    pub fn of(context: &Context<'_>, rank: u32) -> Self {
        let counting = context.declared.counting(context.now_us);
        let is_allowed = |hint: Hint| hint != Hint::Hot || context.allows(Mechanism::Advise);
        Self {
            ranges: match rank {
                0 => counting.filter(|&(.., hint)| is_allowed(hint)).collect(),
                _ => Vec::new(),
            },
        }
    }

    fn hint(&self, page: &Judged) -> Option<Hint> {
        let key = (page.pid, page.page);
        let after = self
            .ranges
            .partition_point(|(pid, range, _)| (*pid, range.start) <= key);
        let (pid, range, hint) = &self.ranges[..after].last()?;
        (*pid == page.pid && range.contains(&page.page)).then_some(*hint)
    }

    /// Is anything said of it?
    pub fn has(&self, page: &Judged) -> bool {
        self.hint(page).is_some()
    }

    /// Is it pinned to a tier?
    pub fn is_pinned(&self, page: &Judged) -> bool {
        self.hint(page).is_some_and(Hint::is_pin)
    }

    /// By which mechanism it goes up.
    pub fn mechanism(&self, page: &Judged) -> Mechanism {
        match self.hint(page) {
            Some(Hint::PinFast) => Mechanism::Pin,
            Some(Hint::Hot) => Mechanism::Advise,
            _ => Mechanism::Promote,
        }
    }

    /// Pages that are to go up into the tier, and those that are to leave it, of the places that are known.
    pub fn pages(
        &self,
        heat: &Heat,
        ladder: &Ladder<'_>,
        rank: u32,
        free: impl Fn(&Judged) -> bool,
    ) -> (Vec<Judged>, Vec<Judged>) {
        let (mut up, mut down) = (Vec::new(), Vec::new());
        for (pid, range, hint) in &self.ranges {
            heat.visit_range(*pid, range, |page| {
                let is_up = ladder.rank(page.home) <= rank;
                if is_up == hint.is_up() || !free(&page) {
                    return;
                }
                match hint {
                    Hint::PinFast => up.push(Judged {
                        heat: PINNED_HEAT,
                        ..page
                    }),
                    Hint::Hot => up.push(Judged {
                        heat: EXPECTED_HEAT,
                        ..page
                    }),
                    Hint::Cold | Hint::PinSlow => down.push(page),
                }
            });
        }
        (up, down)
    }
}
