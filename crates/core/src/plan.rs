//! What to do next: ordered, plain, printable data.
//!
//! A [`Plan`] is asked, a [`MoveOutcome`] happened. Pages are virtual page numbers of 4 KiB
//! (address >> 12) in the named process. Ratios are fractions of 1, times in ns or us as named.

use crate::ids::{NodeId, Pid, ScopeId, SpaceId};
use crate::set::CpuSet;
use crate::snapshot::Evidence;
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::fmt;

/// How a move is meant to help.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mechanism {
    /// A copy for every node that reads it.
    Replicate,
    /// Spread over the nodes to relieve a controller.
    Interleave,
    /// To the only node that uses it.
    Collocate,
    /// Into faster memory, as it is hot.
    Promote,
    /// Into slower memory, as what is hotter needs its place.
    Demote,
    /// Into slower memory, as a quota takes its place.
    Yield,
    /// Into the fast tier, as its program expects to use it.
    Advise,
    /// Into the tier that its program pinned it to.
    Pin,
    /// To a node with free memory, as its own runs out.
    Relieve,
    /// Away from its users: the canary that must be found harmful.
    Misplace,
    /// Back to where it was before hither moved it.
    Revert,
}

impl Mechanism {
    /// The word for a report.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Replicate => "replicate",
            Self::Interleave => "interleave",
            Self::Collocate => "collocate",
            Self::Promote => "promote",
            Self::Demote => "demote",
            Self::Yield => "yield",
            Self::Advise => "advise",
            Self::Pin => "pin",
            Self::Relieve => "relieve",
            Self::Misplace => "misplace",
            Self::Revert => "revert",
        }
    }
}

/// A figure of a scope that a mechanism is to improve.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Objective {
    /// The local-access ratio rises.
    LocalAccesses,
    /// Controllers carry more even loads.
    Balance,
    /// The fastest memory tier serves a larger share of the accesses.
    FastAccesses,
}

impl Mechanism {
    /// Does it move pages between memory tiers?
    #[must_use]
    pub fn is_between_tiers(self) -> bool {
        matches!(
            self,
            Self::Promote | Self::Demote | Self::Yield | Self::Advise | Self::Pin
        )
    }

    /// Must it be, whatever it costs the program? Then it is not given back for that.
    #[must_use]
    pub fn is_required(self) -> bool {
        matches!(self, Self::Yield | Self::Pin | Self::Relieve)
    }

    /// What it is to improve: it succeeds by one of these, or by what the program gets done.
    #[must_use]
    pub fn objectives(self) -> &'static [Objective] {
        match self {
            // Pages that leave an overloaded node for their users relieve it.
            Self::Replicate | Self::Collocate => &[Objective::LocalAccesses, Objective::Balance],
            Self::Interleave => &[Objective::Balance],
            Self::Promote | Self::Demote | Self::Advise => &[Objective::FastAccesses],
            Self::Yield | Self::Pin | Self::Relieve | Self::Misplace | Self::Revert => &[],
        }
    }
}

impl fmt::Display for Mechanism {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// How it is told of pages of which no access was sampled: listed part after part, or merely counted. The denser is
/// the greater.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Listing {
    /// Not at all.
    #[default]
    Off,
    /// None is listed, and those of each process are counted by node.
    Counted,
    /// Listed for a small part of a CPU.
    Slow,
    /// As fast as a node that runs out of memory needs it.
    Fast,
}

/// Why a move is asked for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Reason {
    /// How it is meant to help.
    pub mechanism: Mechanism,
    /// The rule that asked, with its figures: half a sentence for a person.
    pub because: Cow<'static, str>,
}

/// One request: pages of one process, to one node, for one reason.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MoveRequest {
    /// Unique within one engine's life.
    pub id: u64,
    /// The scope that asked.
    pub scope: ScopeId,
    /// Whose pages.
    pub pid: Pid,
    /// Which life of that process's memory: once it has another, the pages are gone.
    pub space: SpaceId,
    /// Virtual page numbers, ascending, each once.
    pub pages: Vec<u64>,
    /// The node to move them to.
    pub to: NodeId,
    /// Why.
    pub reason: Reason,
    /// Stall time that the moved pages are predicted to save per interval, over all CPUs, in ns,
    /// and what the prediction rests on. Never negative infinity or NaN.
    pub predicted_gain_ns: Evidence<f64>,
}

/// One request: where the threads of a process shall run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PlaceRequest {
    /// The scope that asked.
    pub scope: ScopeId,
    /// Whose threads.
    pub pid: Pid,
    /// Which life of its memory.
    pub space: SpaceId,
    /// CPUs to run on, as far as each thread might run there before; none: wherever it might before.
    pub cpus: CpuSet,
    /// Why: half a sentence.
    pub because: Cow<'static, str>,
}

/// Why a page was not moved. Outcomes, not errors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Refusal {
    /// Under I/O, locked, or otherwise in use just now (`EBUSY`, `EAGAIN`).
    Busy,
    /// Pinned by a device or by long-term reference.
    Pinned,
    /// The target had no memory (`ENOMEM`).
    NoMemory,
    /// Nothing is mapped there any more (`ENOENT`, `EFAULT`).
    Unmapped,
    /// It belongs to a file or to somebody else and may not be moved (`EACCES`, `EPERM`).
    NotOurs,
    /// Mapped by several processes and so left alone.
    Shared,
    /// The process has ended (`ESRCH`).
    ProcessGone,
    /// The target node may not be used by this process (cpuset, offline).
    TargetForbidden,
    /// Not tried: the request was dropped before its turn (queue full, shutdown).
    Dropped,
    /// This backend cannot do this kind of move.
    NotSupported,
}

impl Refusal {
    /// Each of them, in the order of the numbers that they have for C.
    pub const ALL: [Self; 10] = [
        Self::Busy,
        Self::Pinned,
        Self::NoMemory,
        Self::Unmapped,
        Self::NotOurs,
        Self::Shared,
        Self::ProcessGone,
        Self::TargetForbidden,
        Self::Dropped,
        Self::NotSupported,
    ];

    /// May the same request succeed later?
    #[must_use]
    pub fn is_temporary(self) -> bool {
        matches!(self, Self::Busy | Self::NoMemory | Self::Dropped)
    }

    /// The words for a report.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Busy => "busy",
            Self::Pinned => "pinned",
            Self::NoMemory => "no memory on the target",
            Self::Unmapped => "unmapped",
            Self::NotOurs => "not ours",
            Self::Shared => "shared with another process",
            Self::ProcessGone => "process gone",
            Self::TargetForbidden => "target forbidden",
            Self::Dropped => "not tried",
            Self::NotSupported => "not supported",
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// What became of one request. Each request gets exactly one outcome, in any later step.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MoveOutcome {
    /// [`MoveRequest::id`].
    pub request: u64,
    /// Pages now on the target that were elsewhere.
    pub moved: Vec<u64>,
    /// Pages that were on the target already.
    pub already_there: u64,
    /// Pages left where they were, by reason. A page of a huge page that moved whole counts as
    /// moved.
    pub refused: Vec<(Refusal, u64)>,
    /// Time the move took, in ns of the caller's clock.
    pub duration_ns: u64,
}

/// How densely the trackers shall sample until the next step; the densest first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Sampling {
    /// As densely as the tracker's own cost limit allows.
    #[default]
    Full,
    /// Rarely (a tenth of full or less): little is left to do.
    Cheap,
    /// No samples; counters only. The engine watches the global metrics and wakes up by itself.
    Off,
}

/// What to do until the next step.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// Moves, most valuable first. The executor keeps this order.
    pub requests: Vec<MoveRequest>,
    /// Where programs shall run from now on.
    #[serde(default)]
    pub places: Vec<PlaceRequest>,
    /// Sentences for a person: gates that are shut, refusals, verdicts.
    pub notes: Vec<String>,
    /// How densely to sample from now on.
    pub sampling: Sampling,
    /// How pages that were not sampled are to be listed.
    #[serde(default)]
    pub listing: Listing,
    /// When the next step shall happen, in us from now. At least the engine's own interval.
    pub next_interval_us: u64,
}

impl Plan {
    /// Pages over all requests.
    #[must_use]
    pub fn page_count(&self) -> usize {
        self.requests
            .iter()
            .map(|request| request.pages.len())
            .sum()
    }
}
