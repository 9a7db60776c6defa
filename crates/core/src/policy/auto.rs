//! The default: Carrefour's mechanisms, behind a forecast.
//!
//! Before the first page of a campaign moves, the gain of the best placement is forecast
//! ([`crate::forecast`]). Where it lies within its error nothing moves. Where no forecast can be made,
//! since a figure is unknown, Carrefour's own gates decide, and trials of a part of the pages. The
//! mechanisms are interleaving and collocation.

use super::carrefour::{Carrefour, Config};
use super::{Context, EvidenceKind, Outlook, Policy, Proposal};
use crate::forecast::{Forecast, Forecaster, Missing};
use crate::plan::Mechanism;
use crate::snapshot::Snapshot;

/// Its name.
pub const NAME: &str = "auto";

/// Mechanisms that it may use.
pub const MECHANISMS: [Mechanism; 2] = [Mechanism::Collocate, Mechanism::Interleave];

/// A forecast is told again where its speed-up changed by so much.
const NEWS: f64 = 0.1;

/// The policy with what it remembers.
#[derive(Debug)]
pub struct Auto {
    carrefour: Carrefour,
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

    fn decide(&mut self, snapshot: &Snapshot, context: &mut Context<'_>) -> Proposal {
        if context.page_budget == 0 || context.unjudged_pages > 0 {
            // Pages are on their way, or are judged: figures are of neither placement.
            self.forecaster.forget();
            return self.carrefour.decide(snapshot, context);
        }
        self.forecaster.take(snapshot);
        let expected = self.forecaster.forecast(snapshot);
        let waits = match &expected {
            Ok(forecast) if forecast.is_gain() => None,
            Ok(_) => Some(Outlook::Done),
            Err(Missing::Samples(_)) => Some(Outlook::Learning),
            Err(Missing::Figure(_)) => None,
        };
        if waits.is_some() {
            context.page_budget = 0;
        }
        let mut proposal = self.carrefour.decide(snapshot, context);
        proposal.forecast = expected.as_ref().ok().copied();
        if proposal.outlook != Outlook::Shut {
            proposal.outlook = waits.unwrap_or(proposal.outlook);
            proposal.notes.extend(self.note(expected));
        }
        proposal
    }
}
