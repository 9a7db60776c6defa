//! Policies: rules that turn a belief into proposed moves.
//!
//! A policy holds only its own rule. Budgets, cool-down, the efficacy loop and the log belong to
//! the [engine](crate::engine). A policy reads no clock, file, environment or random source that
//! it was not handed: the same snapshots and the same seed give the same proposals.
//!
//! To add one: write its file, add a line to [`TABLE`].

pub mod auto;
pub mod caches;
pub mod carrefour;
pub mod evidence;
pub mod guard;
mod heat;
pub mod none;
pub mod programs;
pub mod random;
pub mod tiers;
mod units;
pub mod wrong_node;

pub use evidence::{EvidenceKind, Rung, needs_of};

use crate::declared::Declared;
use crate::engine::ledger::Ledger;
use crate::forecast::Forecast;
use crate::ids::{NodeId, Pid};
use crate::learned::Start;
use crate::plan::{Listing, Mechanism, Sampling};
use crate::quota::Use;
use crate::rset::Resources;
use crate::snapshot::{HUGE_PAGES, Snapshot, base_pages};
use random::Random;
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

/// A rule that proposes moves.
pub trait Policy {
    /// Its name on the command line.
    fn name(&self) -> &'static str;
    /// What it must know. Where one of these is unknown the engine does not ask it, and says what
    /// is missing and how to get it.
    fn needs(&self) -> &[EvidenceKind];
    /// How it is to be told of pages that were not sampled.
    fn listing(&self) -> Listing {
        Listing::Off
    }
    /// Does it follow a paper's rules to the letter, to be compared with? Then its campaigns do not end for a
    /// verdict, and it is not held back for what watching costs.
    fn follows_paper(&self) -> bool {
        false
    }
    /// Looks at one interval and proposes moves. It is called for every interval whose evidence
    /// suffices, also while [`Context::page_budget`] is zero, so that it can learn.
    fn decide(&mut self, snapshot: &Snapshot, context: &mut Context<'_>) -> Proposal;
}

/// What the engine grants a policy for one decision.
#[derive(Debug)]
pub struct Context<'a> {
    /// Now, on the caller's clock, in us.
    pub now_us: u64,
    /// The only source of chance.
    pub random: &'a mut Random,
    /// Base pages that may be proposed now. The engine drops what goes beyond.
    pub page_budget: u64,
    /// Base pages for which each node, by position, has room.
    pub room_pages: &'a [u64],
    /// What became of earlier moves.
    pub ledger: &'a Ledger,
    /// What has come to a node since the policy was asked last, also what went back there.
    pub arrived: &'a [Arrived],
    /// How densely this interval was sampled.
    pub sampling: Sampling,
    /// Mechanisms that the efficacy loop has switched off for now.
    pub switched_off: &'a [Mechanism],
    /// Mechanisms whose last verdict was a success.
    pub proven: &'a BTreeSet<Mechanism>,
    /// Base pages that the campaign under way has moved.
    pub unjudged_pages: u64,
    /// Base pages of the fastest memory tier that the scope may have, where it has a quota.
    pub fast_pages: Option<u64>,
    /// What processes have declared of their memory.
    pub declared: &'a Declared,
    /// Time that a move takes for each base page, in ns, as those of the scope took; `None` before any.
    pub move_ns: Option<f64>,
    /// CPU time that looking took hither in this interval, moves not counted, in us; `None` where it is not known.
    pub look_us: Option<u64>,
    /// Names of programs whose speed counts more than others'.
    pub preferred: &'a [String],
}

/// Time that a move takes for each base page before any was measured, in ns. 5 us: `move_pages` in batches
/// takes 1 to 5 us.
const UNMEASURED_MOVE_NS: f64 = 5000.0;

impl Context<'_> {
    /// Time that a move takes for each base page in ns, as those of the scope took; a guess before any.
    #[must_use]
    pub fn page_move_ns(&self) -> f64 {
        self.move_ns.unwrap_or(UNMEASURED_MOVE_NS)
    }

    /// May this mechanism be used now?
    #[must_use]
    pub fn allows(&self, mechanism: Mechanism) -> bool {
        !self.switched_off.contains(&mechanism)
    }

    /// May this page be proposed now? Not while a move of it is under way or it cools down.
    #[must_use]
    pub fn may_move(&self, pid: Pid, page: u64) -> bool {
        self.ledger.may_move(pid, page, self.now_us)
    }
}

/// A page that a move has brought to a node, or found there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrived {
    /// Whose page.
    pub pid: Pid,
    /// Virtual page number; of a huge page its first.
    pub page: u64,
    /// Where it is now.
    pub at: NodeId,
}

/// One proposed move of one page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProposedMove {
    /// Whose page.
    pub pid: Pid,
    /// Virtual page number; of a huge page its first.
    pub page: u64,
    /// Is it a 2 MiB huge page?
    pub huge: bool,
    /// Where it is.
    pub from: NodeId,
    /// Where it shall be.
    pub to: NodeId,
    /// How that is meant to help.
    pub mechanism: Mechanism,
}

impl ProposedMove {
    /// Base pages that it moves.
    #[must_use]
    pub fn base_pages(&self) -> u64 {
        base_pages(self.huge)
    }
}

/// One proposed place of a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProposedPlace {
    /// Which program.
    pub pid: Pid,
    /// Position of the last-level cache on whose CPUs it shall run; `None`: wherever it might before.
    pub cache: Option<usize>,
    /// Why: half a sentence.
    pub because: Cow<'static, str>,
}

/// How much a policy still sees to do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PolicyActivity {
    /// Its gates are shut by global metrics: samples would be of no use.
    Shut,
    /// It needs more samples to decide.
    Learning,
    /// It moves pages and expects to move more.
    Working,
    /// A node runs out of memory: it must be asked at each short interval.
    Pressed,
    /// Little or nothing is left to do.
    #[default]
    Done,
}

/// What a policy proposes for one step.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Proposal {
    /// Moves, most valuable first, each page at most once.
    pub moves: Vec<ProposedMove>,
    /// Places of programs.
    pub places: Vec<ProposedPlace>,
    /// Half a sentence per mechanism used: the rule with its figures.
    pub reasons: BTreeMap<Mechanism, Cow<'static, str>>,
    /// Sentences for a person; the engine prints one only when it changes.
    pub notes: Vec<String>,
    /// How much is left to do.
    pub outlook: PolicyActivity,
    /// What the best placement is expected to bring, where that was forecast in this step.
    pub forecast: Option<Forecast>,
    /// What the scope has and uses of fast memory, where the policy tells tiers apart.
    pub fast_use: Option<Use>,
}

/// One line of the table of policies.
#[derive(Clone, Copy, Debug)]
pub struct PolicyEntry {
    /// Name on the command line.
    pub name: &'static str,
    /// One line for `--help`.
    pub summary: &'static str,
    /// What a program begins with that hither starts, on these resources, where nobody says otherwise; `None` where that
    /// is as the kernel has it on every machine.
    pub start: Option<fn(&Resources) -> Start>,
    /// Builds it with its default configuration.
    pub build: fn() -> Box<dyn Policy>,
}

/// All policies.
pub const TABLE: &[PolicyEntry] = &[
    PolicyEntry {
        name: "none",
        summary: "watches and moves nothing",
        start: None,
        build: || Box::new(none::None),
    },
    PolicyEntry {
        name: auto::NAME,
        summary: "carrefour's mechanisms, where the gain that is forecast exceeds its error",
        start: None,
        build: || Box::new(auto::Auto::new()),
    },
    PolicyEntry {
        name: "carrefour",
        summary: "collocates pages of one node, interleaves shared ones when a controller is overloaded",
        start: None,
        build: || Box::new(carrefour::Carrefour::new(carrefour::Config::default())),
    },
    PolicyEntry {
        name: tiers::NAME,
        summary: "keeps what is hot in the fast memory tier, where the gain exceeds what moving costs",
        start: None,
        build: || Box::new(tiers::Hot::default()),
    },
    PolicyEntry {
        name: tiers::paper::NAME,
        summary: "the same by the memory-region thesis's rules, unjudged: in the laboratory, for comparisons",
        start: None,
        build: || Box::new(tiers::paper::Paper::default()),
    },
    PolicyEntry {
        name: programs::hydm::NAME,
        summary: "moves whole programs into fast memory, the lowest arithmetic intensity first, by the HyDM paper's rules, unjudged",
        start: None,
        build: || Box::new(programs::hydm::Hydm::default()),
    },
    PolicyEntry {
        name: programs::value::NAME,
        summary: "moves the programs, and parts of programs, into fast memory that gain most for each byte of it",
        start: Some(programs::value::start),
        build: || Box::new(programs::value::Value::default()),
    },
    PolicyEntry {
        name: programs::value::FAIR_NAME,
        summary: "the same, for the product of the programs' speeds instead of their sum",
        start: Some(programs::value::start),
        build: || Box::new(programs::value::Value::fair()),
    },
    PolicyEntry {
        name: caches::NAME,
        summary: "places programs so that those that need a last-level cache have one",
        start: None,
        build: || Box::new(caches::Caches::default()),
    },
    PolicyEntry {
        name: guard::NAME,
        summary: "moves cold pages off a node that runs out of memory while others have some",
        start: None,
        build: || Box::new(guard::Guard::default()),
    },
    PolicyEntry {
        name: "wrong-node",
        summary: "canary: moves every page away from its users; the efficacy loop must undo it",
        start: None,
        build: || Box::new(wrong_node::WrongNode),
    },
];

/// What decides unless somebody says otherwise.
pub const DEFAULT: &str = auto::NAME;

/// A name that is in no line of [`TABLE`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no policy `{name}`; the policies are {known}")]
pub struct UnknownPolicy {
    /// The name asked for.
    pub name: String,
    /// The names that exist, separated by commas.
    pub known: String,
}

/// Builds a policy by name, with its default configuration.
///
/// # Errors
/// Where no policy has that name; the error lists those that exist.
pub fn by_name(name: &str) -> Result<Box<dyn Policy>, UnknownPolicy> {
    entry(name).map(|entry| (entry.build)())
}

/// Its line of the table.
///
/// # Errors
/// As [`by_name`].
pub fn entry(name: &str) -> Result<&'static PolicyEntry, UnknownPolicy> {
    let found = TABLE.iter().find(|entry| entry.name == name);
    found.ok_or_else(|| UnknownPolicy {
        name: name.to_owned(),
        known: TABLE
            .iter()
            .map(|entry| entry.name)
            .collect::<Vec<_>>()
            .join(", "),
    })
}

/// The page that moves when this one does: the first of its huge page, or itself.
#[must_use]
pub fn moving_unit(page: u64, huge: bool) -> u64 {
    if huge { page & !(HUGE_PAGES - 1) } else { page }
}

/// What a policy of a test says of a snapshot: with room for so many pages on each node, and nothing else in its
/// way but what `change` puts there.
#[cfg(test)]
pub(crate) fn asked(
    policy: &mut dyn Policy,
    snapshot: &Snapshot,
    room_pages: &[u64],
    change: impl FnOnce(&mut Context<'_>),
) -> Proposal {
    let mut context = Context {
        now_us: snapshot.now_us,
        random: &mut Random::new(1),
        page_budget: 1 << 20,
        room_pages,
        ledger: &Ledger::new(),
        arrived: &[],
        sampling: Sampling::Off,
        switched_off: &[],
        proven: &BTreeSet::new(),
        unjudged_pages: 0,
        fast_pages: None,
        declared: &Declared::default(),
        move_ns: None,
        look_us: None,
        preferred: &[],
    };
    change(&mut context);
    policy.decide(snapshot, &mut context)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_of_the_table_builds_the_policy_of_its_name() {
        for entry in TABLE {
            assert_eq!(by_name(entry.name).unwrap().name(), entry.name);
        }
    }

    #[test]
    fn an_unknown_name_gets_the_list() {
        let error = by_name("carefour").err().unwrap().to_string();
        assert_eq!(
            error,
            "there is no policy `carefour`; the policies are none, auto, carrefour, tiers, tiers-paper, hydm, value, value-fair, caches, guard, wrong-node"
        );
    }
}
