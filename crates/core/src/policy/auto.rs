//! The default: Carrefour's mechanisms, behind a forecast.
//!
//! Before the first page of a campaign moves, the gain of the best placement is forecast
//! ([`crate::forecast`]). Where it lies within its error nothing moves. Where no forecast can be made,
//! since a figure is unknown, Carrefour's own gates decide, and trials of a part of the pages. The
//! mechanisms are interleaving and collocation.
//!
//! A node that runs out of memory comes first ([`super::guard`]). On a machine with several memory tiers, hot memory is brought into the fast tier first ([`super::tiers`]),
//! and the rest is decided as elsewhere while nothing of that is to be done. What one of the two has begun is
//! judged before the other moves anything.

use super::carrefour::{Carrefour, Config};
use super::guard::Guard;
use super::tiers::Hot;
use super::{Context, EvidenceKind, Policy, PolicyActivity, Proposal};
use crate::forecast::{Forecast, Forecaster, Missing};
use crate::plan::Listing;
use crate::snapshot::Snapshot;
use crate::tiers::Tiers;

/// Its name.
pub const NAME: &str = "auto";

/// A forecast is told again where its speed-up changed by so much.
const NEWS: f64 = 0.1;

/// The policy with what it remembers.
#[derive(Debug)]
pub struct Auto {
    carrefour: Carrefour,
    tiers: Hot,
    guard: Guard,
    /// Who moved pages last.
    is_by_tiers: bool,
    forecaster: Forecaster,
    /// What was said last.
    told: Option<Result<Forecast, Missing>>,
}

impl Auto {
    /// Without memories.
    #[must_use]
    pub fn new() -> Self {
        Self {
            carrefour: Carrefour::new(Config::default()),
            tiers: Hot::default(),
            guard: Guard::default(),
            is_by_tiers: false,
            forecaster: Forecaster::default(),
            told: None,
        }
    }

    /// Says what is expected, where that is news.
    fn note(&mut self, expected: Result<Forecast, Missing>) -> Option<String> {
        let is_news = match (&self.told, &expected) {
            (_, Err(Missing::Samples(_))) => false,
            (Some(Ok(told)), Ok(now)) => {
                (told.speed_up - now.speed_up).abs() > NEWS || told.is_gain() != now.is_gain()
            }
            (Some(Err(told)), Err(now)) => told != now,
            _ => true,
        };
        let text = match &expected {
            Ok(forecast) if forecast.is_gain() => format!("auto: expects {forecast}"),
            Ok(forecast) => format!("auto: declines, it expects {forecast}"),
            Err(Missing::Samples(_)) => return None,
            Err(Missing::Figure(what)) => {
                format!("auto: no forecast, {what}; the gates decide, and a part is tried first")
            }
        };
        is_news.then(|| {
            self.told = Some(expected);
            text
        })
    }
}

impl Default for Auto {
    fn default() -> Self {
        Self::new()
    }
}

impl Policy for Auto {
    fn name(&self) -> &'static str {
        NAME
    }

    fn needs(&self) -> &[EvidenceKind] {
        self.carrefour.needs()
    }

    fn listing(&self) -> Listing {
        match self.tiers.is_in_use() {
            true => self.tiers.listing(),
            false => self.guard.listing(),
        }
    }

    fn decide(&mut self, snapshot: &Snapshot, context: &mut Context<'_>) -> Proposal {
        if !Tiers::of(&snapshot.nodes).are_several() {
            let relief = self.guard.decide(snapshot, context);
            if relief.moves.is_empty() {
                let mut proposal = self.decide_by_nodes(snapshot, context);
                if relief.outlook == PolicyActivity::Pressed {
                    proposal.outlook = relief.outlook;
                }
                return proposal;
            }
            return relief;
        }
        let budget = context.page_budget;
        let is_open = |is_mine: bool| context.unjudged_pages == 0 || is_mine;
        let grants =
            [is_open(self.is_by_tiers), is_open(!self.is_by_tiers)].map(|is_open| match is_open {
                true => budget,
                false => 0,
            });
        context.page_budget = grants[0];
        let hot = self.tiers.decide(snapshot, context);
        context.page_budget = match hot.outlook {
            PolicyActivity::Working => 0,
            _ => grants[1],
        };
        let near = self.decide_by_nodes(snapshot, context);
        self.is_by_tiers = match (hot.moves.is_empty(), near.moves.is_empty()) {
            (true, true) => self.is_by_tiers,
            (is_idle, _) => !is_idle,
        };
        let (mut first, second) = match hot.outlook {
            PolicyActivity::Working => (hot, near),
            _ => (near, hot),
        };
        first.fast_use = first.fast_use.or(second.fast_use);
        first.notes.extend(second.notes);
        first
    }
}

impl Auto {
    /// By Carrefour's mechanisms, behind a forecast.
    fn decide_by_nodes(&mut self, snapshot: &Snapshot, context: &mut Context<'_>) -> Proposal {
        if context.page_budget == 0 || context.unjudged_pages > 0 {
            // Pages are on their way, or are judged: figures are of neither placement.
            self.forecaster.forget();
            return self.carrefour.decide(snapshot, context);
        }
        self.forecaster.take(snapshot);
        let expected = self.forecaster.forecast(snapshot);
        let waits = match &expected {
            Ok(forecast) if forecast.is_gain() => None,
            Ok(_) => Some(PolicyActivity::Done),
            Err(Missing::Samples(_)) => Some(PolicyActivity::Learning),
            Err(Missing::Figure(_)) => None,
        };
        if waits.is_some() {
            context.page_budget = 0;
        }
        let mut proposal = self.carrefour.decide(snapshot, context);
        proposal.forecast = expected.as_ref().ok().copied();
        if proposal.outlook != PolicyActivity::Shut {
            proposal.outlook = waits.unwrap_or(proposal.outlook);
            proposal.notes.extend(self.note(expected));
        }
        proposal
    }
}
