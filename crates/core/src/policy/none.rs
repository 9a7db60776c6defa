//! The policy that watches and moves nothing: the baseline for hither's own cost.

use super::{Context, EvidenceKind, Policy, PolicyActivity, Proposal};
use crate::snapshot::Snapshot;

/// Moves nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct None;

impl Policy for None {
    fn name(&self) -> &'static str {
        "none"
    }

    fn needs(&self) -> &[EvidenceKind] {
        &[]
    }

    fn decide(&mut self, _: &Snapshot, _: &mut Context<'_>) -> Proposal {
        Proposal {
            outlook: PolicyActivity::Shut,
            ..Proposal::default()
        }
    }
}
