//! What tests, the benchmark and the example need.

use hither_mover::{Backend, Job, Outcome, Unavailable};

/// Moves nothing, at once.
pub struct Nothing;

impl Backend for Nothing {
    fn name(&self) -> &'static str {
        "nothing"
    }

    fn probe(&self) -> Result<(), Unavailable> {
        Ok(())
    }

    fn execute(&mut self, jobs: &[Job<'_>]) -> Vec<Outcome> {
        jobs.iter().map(|_| Outcome::default()).collect()
    }
}
