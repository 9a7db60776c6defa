//! hither-mover: how moves are carried out, whatever carries them out.
//!
//! A [`Backend`] executes move requests and nothing else; what to move is decided in
//! `hither_core`, and what only tells of the machine is a tracker. A new backend is one file
//! plus one line in the table of whoever offers backends.
#![forbid(unsafe_code)]

use hither_core::plan::{MoveOutcome, MoveRequest, Refusal};
use std::fmt;

/// Why a backend cannot work here, and what would let it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unavailable {
    /// What is missing: half a sentence for a person.
    pub why: String,
    /// What would enable it: half a sentence for a person.
    pub remedy: String,
}

impl Unavailable {
    /// Both halves.
    pub fn new(why: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self {
            why: why.into(),
            remedy: remedy.into(),
        }
    }
}

impl fmt::Display for Unavailable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; {}", self.why, self.remedy)
    }
}

impl std::error::Error for Unavailable {}

/// Moves pages. Object-safe: the engine's driver holds a `Box<dyn Backend>`.
///
/// What always holds: no byte of a program's data is lost, whatever fails; every request gets
/// exactly one outcome; every page of a request is counted once in it, as moved, as already
/// there or as refused.
pub trait Backend {
    /// The word that names it in reports: `kernel`, `swap`, `copy`, `cuda`.
    fn name(&self) -> &'static str;

    /// Can it work here and now? Changes nothing.
    fn probe(&self) -> Result<(), Unavailable>;

    /// Carries out the requests in their order and returns their outcomes in the same order.
    /// What happens to pages and processes meanwhile is an outcome, never an error.
    fn execute(&mut self, requests: &[MoveRequest]) -> Vec<MoveOutcome>;
}

/// Builds one outcome page by page, so that no backend counts a page twice or forgets one.
#[derive(Clone, Debug)]
pub struct OutcomeBuilder {
    outcome: MoveOutcome,
    expected_count: u64,
}

impl OutcomeBuilder {
    /// For a request.
    #[must_use]
    pub fn new(request: &MoveRequest) -> Self {
        let outcome = MoveOutcome {
            request: request.id,
            moved: Vec::new(),
            already_there: 0,
            refused: Vec::new(),
            duration_ns: 0,
        };
        Self {
            outcome,
            expected_count: request.pages.len() as u64,
        }
    }

    /// The page was elsewhere and is on the target now.
    pub fn moved(&mut self, page: u64) {
        self.outcome.moved.push(page);
    }

    /// The page was on the target already.
    pub fn already_there(&mut self) {
        self.outcome.already_there += 1;
    }

    /// The page stays where it is.
    pub fn refused(&mut self, refusal: Refusal) {
        self.refused_many(refusal, 1);
    }

    /// Several pages stay where they are.
    pub fn refused_many(&mut self, refusal: Refusal, count: u64) {
        if count == 0 {
            return;
        }
        match self
            .outcome
            .refused
            .iter_mut()
            .find(|(known, _)| *known == refusal)
        {
            Some((_, sum)) => *sum += count,
            None => self.outcome.refused.push((refusal, count)),
        }
    }

    /// Adds to the time that the move took, in ns.
    pub fn took(&mut self, duration_ns: u64) {
        self.outcome.duration_ns += duration_ns;
    }

    /// Pages accounted for so far.
    #[must_use]
    pub fn counted(&self) -> u64 {
        let refused: u64 = self.outcome.refused.iter().map(|&(_, count)| count).sum();
        self.outcome.moved.len() as u64 + self.outcome.already_there + refused
    }

    /// The outcome, pages ascending and reasons in a fixed order.
    ///
    /// # Panics
    /// Where a backend lost count of its pages: a programmer's error.
    #[must_use]
    pub fn finish(mut self) -> MoveOutcome {
        assert_eq!(
            self.counted(),
            self.expected_count,
            "a backend lost count of its pages"
        );
        self.outcome.moved.sort_unstable();
        self.outcome
            .refused
            .sort_unstable_by_key(|&(refusal, _)| refusal);
        self.outcome
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hither_core::ids::{NodeId, Pid};
    use hither_core::plan::{Mechanism, Reason};
    use hither_core::snapshot::Evidence;

    fn request(pages: Vec<u64>) -> MoveRequest {
        MoveRequest {
            id: 7,
            pid: Pid(1),
            pages,
            to: NodeId(0),
            reason: Reason {
                mechanism: Mechanism::Collocate,
                because: "test".into(),
            },
            predicted_gain_ns: Evidence::unknown("test"),
        }
    }

    #[test]
    fn every_page_is_counted_once() {
        let mut builder = OutcomeBuilder::new(&request(vec![1, 2, 3, 4]));
        builder.moved(4);
        builder.moved(1);
        builder.already_there();
        builder.refused(Refusal::Busy);
        builder.took(9);
        let outcome = builder.finish();
        assert_eq!(outcome.request, 7);
        assert_eq!(outcome.moved, [1, 4]);
        assert_eq!(outcome.already_there, 1);
        assert_eq!(outcome.refused, [(Refusal::Busy, 1)]);
        assert_eq!(outcome.duration_ns, 9);
    }

    #[test]
    #[should_panic(expected = "lost count")]
    fn a_forgotten_page_is_found() {
        let mut builder = OutcomeBuilder::new(&request(vec![1, 2]));
        builder.refused_many(Refusal::Busy, 1);
        let _ = builder.finish();
    }

    #[test]
    fn backends_are_object_safe() {
        struct Nothing;
        impl Backend for Nothing {
            fn name(&self) -> &'static str {
                "nothing"
            }
            fn probe(&self) -> Result<(), Unavailable> {
                Err(Unavailable::new("it moves nothing", "choose another"))
            }
            fn execute(&mut self, _: &[MoveRequest]) -> Vec<MoveOutcome> {
                Vec::new()
            }
        }
        let backend: Box<dyn Backend> = Box::new(Nothing);
        assert_eq!(
            backend.probe().unwrap_err().to_string(),
            "it moves nothing; choose another"
        );
    }
}
