//! What a run of the lab is placed by: a policy of Linux or of hither, on the evidence that it gets.
//!
//! `carrefour@software` is carrefour without the lab's device: hither then sees what it would see on any
//! machine without a PMU. The lab's own measurements come from the device all the same.
//!
//! `auto+learned@pmu` is auto on that evidence with `--learn`: in a comparison one more run comes first, which
//! teaches and is not compared.

use crate::error::{Error, Result};
use hither_core::policy::{self, Rung};
use serde::{Deserialize, Serialize};

/// How a policy is brought about, beside its settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Launch {
    /// The program alone.
    Plain,
    /// `set_mempolicy(MPOL_INTERLEAVE)` over all nodes before exec.
    Interleave,
    /// `set_mempolicy(MPOL_WEIGHTED_INTERLEAVE)` over all nodes before exec, weights by the bandwidths that
    /// firmware tells.
    Weighted,
    /// `set_mempolicy(MPOL_PREFERRED_MANY)` with the nodes of the fastest tier before exec.
    FastFirst,
    /// DAMON's schemes move pages between two tiers while the program runs.
    Damon,
    /// Pages are placed by what a first run counted of each.
    Oracle,
    /// `hither run --policy NAME -- CMD`.
    Hither,
}

/// A policy that Linux itself brings about.
#[derive(Clone, Copy, Debug)]
pub struct LinuxPolicy {
    /// Its name.
    pub name: &'static str,
    /// What it does: half a sentence.
    pub about: &'static str,
    /// How it is brought about.
    pub launch: Launch,
    /// Files below `/` with what is written to them for the run; what was there comes back after it.
    pub settings: &'static [(&'static str, &'static str)],
}

/// The kernel's own moving of pages: 1 balances nodes, 2 promotes from slower tiers.
pub const BALANCING: &str = "proc/sys/kernel/numa_balancing";
/// Pages that memory pressure would take from a node go to a slower tier instead.
pub const DEMOTION: &str = "sys/kernel/mm/numa/demotion_enabled";

/// What follows the name of a policy whose runs begin with what was learned.
pub const LEARNED: &str = "+learned";

/// What holds under every policy that says nothing else.
pub const BASE: &[(&str, &str)] = &[(BALANCING, "0")];

/// All of them; those of hither are in [`policy::TABLE`].
pub const LINUX: &[LinuxPolicy] = &[
    LinuxPolicy {
        name: "first-touch",
        about: "a page stays on the node that touched it first",
        launch: Launch::Plain,
        settings: &[],
    },
    LinuxPolicy {
        name: "interleave",
        about: "pages go to all nodes in turn",
        launch: Launch::Interleave,
        settings: &[],
    },
    LinuxPolicy {
        name: "weighted",
        about: "pages go to all nodes in turn, to each as its bandwidth is",
        launch: Launch::Weighted,
        settings: &[],
    },
    LinuxPolicy {
        name: "fast-first",
        about: "pages go to the fastest tier while it has room: first come, first served",
        launch: Launch::FastFirst,
        settings: &[],
    },
    LinuxPolicy {
        name: "kernel",
        about: "the kernel's NUMA balancing moves pages",
        launch: Launch::Plain,
        settings: &[(BALANCING, "1")],
    },
    LinuxPolicy {
        name: "kernel-tiering",
        about: "the kernel promotes hot pages and demotes cold ones",
        launch: Launch::Plain,
        settings: &[(BALANCING, "2"), (DEMOTION, "true")],
    },
    LinuxPolicy {
        name: "damon",
        about: "DAMON promotes hot pages and demotes cold ones",
        launch: Launch::Damon,
        settings: &[("sys/module/damon_stat/parameters/enabled", "N")],
    },
    LinuxPolicy {
        name: "oracle",
        about: "the pages that a first run, not compared, has most accesses to are in the fastest tier: a bound, no rival",
        launch: Launch::Oracle,
        settings: &[],
    },
];

/// The policy of Linux of that name.
#[must_use]
pub fn of_linux(name: &str) -> Option<&'static LinuxPolicy> {
    LINUX.iter().find(|entry| entry.name == name)
}

/// Which policy on which evidence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    /// Name of the policy.
    pub policy: String,
    /// How it is brought about.
    pub launch: Launch,
    /// What hither may decide by.
    pub evidence: Rung,
    /// A first run teaches the others.
    pub learns: bool,
}

impl Choice {
    /// Is a policy, written as above, one of hither?
    #[must_use]
    pub fn is_of_hither(text: &str) -> bool {
        text.split('@')
            .next()
            .is_none_or(|name| of_linux(name).is_none())
    }

    /// From `POLICY`, `POLICY@EVIDENCE`, or either with `+learned` after the policy; `evidence` is for who names
    /// none.
    ///
    /// # Errors
    /// There is no such policy, or no such evidence, or nothing to learn from.
    pub fn parse(text: &str, evidence: Rung) -> Result<Self> {
        let (name, own) = match text.split_once('@') {
            Some((name, own)) => (name, Some(own)),
            None => (text, None),
        };
        let (name, learns) = match name.strip_suffix(LEARNED) {
            Some(name) => (name, true),
            None => (name, false),
        };
        let of_linux = of_linux(name);
        if of_linux.is_none() && policy::TABLE.iter().all(|entry| entry.name != name) {
            let linux = LINUX.iter().map(|entry| entry.name);
            let known: Vec<&str> = linux
                .chain(policy::TABLE.iter().map(|entry| entry.name))
                .collect();
            return Err(Error::bad(
                format!("there is no policy `{name}`"),
                format!("use one of {}", known.join(", ")),
            ));
        }
        if learns && (of_linux.is_some() || name == "none") {
            return Err(Error::bad(
                format!("`{name}` judges no moves, so that there is nothing to learn from"),
                format!("use `{name}`, or auto{LEARNED}"),
            ));
        }
        let evidence = match own {
            None => evidence,
            Some(own) => Rung::of(own).ok_or_else(|| {
                let each = Rung::ALL.map(|evidence| format!("{name}@{}", evidence.name()));
                Error::bad(
                    format!("there is no evidence `{own}`"),
                    format!("use one of {}", each.join(", ")),
                )
            })?,
        };
        let launch = of_linux.map_or(Launch::Hither, |entry| entry.launch);
        let is_oracle = launch == Launch::Oracle;
        if is_oracle && own.is_some() {
            return Err(Error::bad(
                format!("`{text}`: the oracle counts by the lab's device, whatever the others see"),
                format!("use `{name}`"),
            ));
        }
        Ok(Self {
            policy: name.to_owned(),
            launch,
            evidence: if is_oracle { Rung::Device } else { evidence },
            learns: learns || is_oracle,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_policy_names_its_evidence_or_gets_that_of_the_run() {
        let parse = |text| Choice::parse(text, Rung::Software).unwrap();
        assert_eq!(parse("carrefour").evidence, Rung::Software);
        assert_eq!(parse("carrefour@device").evidence, Rung::Device);
        assert_eq!(parse("carrefour@device").policy, "carrefour");
        assert_eq!(parse("interleave").launch, Launch::Interleave);
        assert_eq!(parse("wrong-node").launch, Launch::Hither);
        let refused = |text| {
            let error = Choice::parse(text, Rung::Device).unwrap_err();
            error.to_string()
        };
        assert!(refused("carefour").contains(
            "first-touch, interleave, weighted, fast-first, kernel, kernel-tiering, damon, oracle, none, auto"
        ));
        assert_eq!(parse("carrefour@pmu").evidence, Rung::Pmu);
        // Whatever the others may see, it counts, and in a run before.
        let oracle = parse("oracle");
        assert_eq!((oracle.evidence, oracle.learns), (Rung::Device, true));
        assert!(refused("oracle@pmu").contains("use `oracle`"));
        let learned = parse("auto+learned@pmu");
        assert_eq!(
            (learned.policy.as_str(), learned.evidence),
            ("auto", Rung::Pmu)
        );
        assert!(learned.learns && !parse("auto@pmu").learns && parse("auto+learned").learns);
        assert!(Choice::is_of_hither("auto+learned@pmu"));
        for text in ["interleave+learned", "none+learned"] {
            assert!(refused(text).contains("nothing to learn from"));
        }
        let known = "carrefour@device, carrefour@pmu, carrefour@software";
        assert!(refused("carrefour@ibs").contains(known));
    }
}
