//! Policies that only a simulation wants.

use hither_core::ids::NodeId;
use hither_core::plan::Mechanism;
use hither_core::policy::{Context, EvidenceKind, Policy, PolicyActivity, Proposal, ProposedMove};
use hither_core::snapshot::{PageStats, Snapshot};

/// Asks for moves of whatever it sees to anywhere, all the time and more than it may: what keeps it
/// within bounds is the engine alone.
#[derive(Clone, Copy, Debug, Default)]
pub struct Restless;

impl Policy for Restless {
    fn name(&self) -> &'static str {
        "restless"
    }

    fn needs(&self) -> &[EvidenceKind] {
        &[]
    }

    fn decide(&mut self, snapshot: &Snapshot, context: &mut Context<'_>) -> Proposal {
        let nodes = snapshot.nodes.len();
        let mut random = || (context.random.unit() * nodes as f64) as usize % nodes;
        let order = |page: &PageStats| ProposedMove {
            to: snapshot.nodes[random()].id,
            ..proposed(page, Mechanism::Interleave)
        };
        Proposal {
            moves: snapshot.pages.iter().map(order).collect(),
            outlook: PolicyActivity::Working,
            ..Proposal::default()
        }
    }
}

/// Gathers all pages on one node, which is good for those who run there and bad for others.
#[derive(Clone, Copy, Debug)]
pub struct Gather {
    to: NodeId,
}

impl Gather {
    /// On this one.
    #[must_use]
    pub fn new(to: NodeId) -> Self {
        Self { to }
    }
}

impl Policy for Gather {
    fn name(&self) -> &'static str {
        "gather"
    }

    fn needs(&self) -> &[EvidenceKind] {
        &[EvidenceKind::PageAccesses]
    }

    fn decide(&mut self, snapshot: &Snapshot, context: &mut Context<'_>) -> Proposal {
        if !context.allows(Mechanism::Collocate) {
            return Proposal::default();
        }
        let orders = snapshot.pages.iter().filter(|page| page.home != self.to);
        let moves: Vec<ProposedMove> = orders
            .map(|page| ProposedMove {
                to: self.to,
                ..proposed(page, Mechanism::Collocate)
            })
            .collect();
        Proposal {
            outlook: match moves.is_empty() {
                true => PolicyActivity::Done,
                false => PolicyActivity::Working,
            },
            moves,
            ..Proposal::default()
        }
    }
}

fn proposed(page: &PageStats, mechanism: Mechanism) -> ProposedMove {
    ProposedMove {
        pid: page.pid,
        page: page.page,
        huge: page.huge,
        from: page.home,
        to: page.home,
        mechanism,
    }
}
