//! What a policy may need to know, and the sentence for when it is unknown.

use super::Policy;
use crate::snapshot::{ProcessState, Snapshot};
use serde::{Deserialize, Serialize};

/// Where evidence comes from, the best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Rung {
    /// Exact counters and samples of the lab's device.
    Device,
    /// Samples and counting events of processors.
    Pmu,
    /// What every kernel tells: hint faults, access bits, CPU time.
    Software,
}

impl Rung {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Device, Self::Pmu, Self::Software];

    /// From its word.
    #[must_use]
    pub fn of(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|rung| rung.name() == name)
    }

    /// The word for a person.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Device => "device",
            Self::Pmu => "pmu",
            Self::Software => "software",
        }
    }
}

/// A kind of evidence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EvidenceKind {
    /// Memory fills per us.
    MemoryAccesses,
    /// Local-access ratio.
    LocalAccessRatio,
    /// Controller imbalance.
    ControllerImbalance,
    /// Samples of pages with the node that accessed them.
    PageAccesses,
    /// Samples of the use of pages, whoever uses them.
    PageUse,
    /// Accesses of every page, none left out.
    EveryPage,
    /// What each process executes, and how much memory it asks for.
    ProgramWork,
    /// What each process asks of the last-level caches, its working set, and where it runs.
    CacheUse,
    /// Distances between nodes.
    Distances,
}

/// What policies need together, each once: who tells the users of pages tells of their use, too.
#[must_use]
pub fn needs_of<'a>(policies: impl IntoIterator<Item = &'a dyn Policy>) -> Vec<EvidenceKind> {
    let mut needs: Vec<EvidenceKind> = Vec::new();
    for &kind in policies.into_iter().flat_map(Policy::needs) {
        if !needs.contains(&kind) {
            needs.push(kind);
        }
    }
    if needs.contains(&EvidenceKind::PageAccesses) {
        needs.retain(|&kind| kind != EvidenceKind::PageUse);
    }
    needs
}

impl EvidenceKind {
    /// Does it come by samples of pages?
    #[must_use]
    pub fn is_sampled(self) -> bool {
        matches!(self, Self::PageAccesses | Self::PageUse)
    }

    /// Words for a sentence.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::MemoryAccesses => "the rate of memory accesses",
            Self::LocalAccessRatio => "the local-access ratio",
            Self::ControllerImbalance => "the controller imbalance",
            Self::PageAccesses => "samples of pages with the node that used them",
            Self::PageUse => "samples of the use of pages",
            Self::EveryPage => "the accesses of every page",
            Self::ProgramWork => {
                "the floating-point operations and memory references of each process"
            }
            Self::CacheUse => {
                "the references to last-level caches of each process, and its working set"
            }
            Self::Distances => "the distances between nodes",
        }
    }

    /// How to get it.
    #[must_use]
    pub fn remedy(self) -> &'static str {
        match self {
            Self::MemoryAccesses | Self::LocalAccessRatio | Self::ControllerImbalance => {
                "run in the lab (`hither lab run`), or on a machine whose memory counters are readable"
            }
            Self::PageAccesses | Self::PageUse => {
                "run in the lab (`hither lab run`), or with a tracker that samples accesses; \
                 `hither topo --doctor` lists them"
            }
            Self::EveryPage => {
                "run in the lab (`hither lab run`) with all that its device tells, on a machine of at most 2 GiB"
            }
            Self::ProgramWork => {
                "run in the lab (`hither lab run`), or on a processor whose events for floating-point operations \
                 and memory are known; `hither topo --doctor` tells"
            }
            Self::CacheUse => {
                "run in the lab (`hither lab run`), or on a processor that counts and samples references to the \
                 last-level cache; `hither topo --doctor` tells"
            }
            Self::Distances => "check that /sys/devices/system/node/node*/distance is readable",
        }
    }

    /// Why a snapshot lacks it; `None` where it is there.
    #[must_use]
    pub fn missing(self, snapshot: &Snapshot) -> Option<String> {
        let metrics = &snapshot.metrics;
        let figure = match self {
            Self::MemoryAccesses => &metrics.memory_accesses_per_us,
            Self::LocalAccessRatio => &metrics.local_access_ratio,
            Self::ControllerImbalance => &metrics.controller_imbalance,
            Self::PageAccesses | Self::PageUse => {
                let samples = &snapshot.sample_count;
                let tells_users = self == Self::PageUse || !snapshot.by_use;
                return (!samples.is_known() || !tells_users).then(|| samples.basis().to_owned());
            }
            Self::EveryPage => {
                let is_whole = snapshot.sample_count.is_known() && snapshot.sample_period == 1;
                return (!is_whole).then(|| "accesses are sampled".to_owned());
            }
            Self::ProgramWork => {
                let lacks = (snapshot.processes.iter()).find(|process| !process.work.is_known());
                return lacks.map(|process| process.work.basis().to_owned());
            }
            Self::CacheUse => {
                let basis = |process: &ProcessState| {
                    let untold = [
                        (!process.cache.is_known()).then(|| process.cache.basis()),
                        (!process.threads.is_known()).then(|| process.threads.basis()),
                    ];
                    untold.into_iter().flatten().next().map(str::to_owned)
                };
                return snapshot.processes.iter().find_map(basis);
            }
            Self::Distances => {
                let complete = snapshot.distances.len() == snapshot.nodes.len()
                    && snapshot
                        .distances
                        .iter()
                        .all(|row| row.len() == snapshot.nodes.len());
                return (!complete).then(|| "the table is missing or incomplete".to_owned());
            }
        };
        match figure.get() {
            Some(value) if value.is_finite() => None,
            Some(value) => Some(format!("its value is {value}")),
            None => Some(figure.basis().to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::by_name;
    use crate::snapshot::Evidence;

    #[test]
    fn one_tracker_is_to_tell_what_several_policies_need() {
        let of = |names: &[&str]| {
            let policies: Vec<Box<dyn Policy>> =
                names.iter().map(|name| by_name(name).unwrap()).collect();
            needs_of(policies.iter().map(|policy| &**policy))
        };
        assert_eq!(of(&[]), []);
        assert_eq!(of(&["tiers", "tiers"]), [EvidenceKind::PageUse]);
        assert_eq!(of(&["tiers", "carrefour"]), [EvidenceKind::PageAccesses]);
        let all = of(&["hydm", "tiers", "none"]);
        assert_eq!(all, [EvidenceKind::ProgramWork, EvidenceKind::PageUse]);
    }

    #[test]
    fn users_are_not_known_by_use() {
        let mut snapshot = Snapshot::of_nodes(Vec::new(), "not looked yet");
        for kind in [EvidenceKind::PageAccesses, EvidenceKind::PageUse] {
            assert_eq!(kind.missing(&snapshot).as_deref(), Some("not looked yet"));
        }
        snapshot.sample_count = Evidence::estimated(5, "access bits");
        snapshot.by_use = true;
        let users = EvidenceKind::PageAccesses.missing(&snapshot);
        assert_eq!(users.as_deref(), Some("access bits"));
        assert_eq!(EvidenceKind::PageUse.missing(&snapshot), None);
    }
}
