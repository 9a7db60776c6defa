//! On which evidence each policy would stand here, and what would raise it.

use super::Check;
use crate::perf::catalogue::Catalogue;
use crate::root::Root;
use crate::tracker::table;
use hither_core::perf::events::Role;
use hither_core::policy::{self, EvidenceKind, Rung};

/// What a policy would stand on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyStanding {
    /// The policy.
    pub policy: &'static str,
    /// Where its evidence would come from; `None` where there is none, or it needs none.
    pub rung: Option<Rung>,
    /// The tracker that would be taken.
    pub tracker: Option<&'static str>,
    /// Could it work: is there the evidence that it needs, and something that moves pages?
    pub works: bool,
    /// What it could do here: half a sentence.
    pub found: String,
    /// What would give it better evidence, the best first: sentences.
    pub raise: Vec<String>,
}

/// Of all policies, from what the checks of this machine said.
#[must_use]
pub fn standings(root: &Root, checks: &[Check]) -> Vec<PolicyStanding> {
    let stalls = Catalogue::read(root).ok();
    let stalls = stalls.is_some_and(|catalogue| catalogue.of(Role::MemoryStalls).is_some());
    let entries = policy::TABLE.iter();
    entries
        .map(|entry| {
            let needs = (entry.build)();
            standing(entry.name, needs.needs(), stalls, checks)
        })
        .collect()
}

/// `stalls`: do the cores count stalls on memory, by what is known of the processor?
fn standing(
    policy: &'static str,
    needs: &[EvidenceKind],
    stalls: bool,
    checks: &[Check],
) -> PolicyStanding {
    let check = |name: &str| checks.iter().find(|check| check.name == name);
    let works = |name: &str| check(name).is_some_and(|check| check.works);
    let mut standing = PolicyStanding {
        policy,
        rung: None,
        tracker: None,
        works: true,
        found: "needs no evidence of accesses".to_owned(),
        raise: Vec::new(),
    };
    let of_trackers = [
        EvidenceKind::PageAccesses,
        EvidenceKind::PageUse,
        EvidenceKind::EveryPage,
        EvidenceKind::ProgramWork,
        EvidenceKind::CacheUse,
    ];
    if !needs.iter().any(|kind| of_trackers.contains(kind)) {
        return standing;
    }
    let mut serving = table::deciding().filter(|entry| table::serves(entry, needs));
    // Whose device works, its counters of all pages do.
    let name_of = |entry: &table::Entry| match entry.name == table::OPIUM_PAGES.name {
        true => table::OPIUM.name,
        false => entry.name,
    };
    let best = serving.find(|entry| works(name_of(entry)));
    standing.rung = best.and_then(|entry| entry.rung);
    standing.tracker = best.map(|entry| entry.name);
    standing.works = best.is_some() && works("kernel");
    standing.found = match (standing.rung, !works("kernel")) {
        (None, _) => "no evidence: it is refused, and --dry-run tells where pages are".to_owned(),
        (_, true) => "nothing moves pages here: --dry-run alone".to_owned(),
        (Some(Rung::Device), _) => "the lab's device counts and samples".to_owned(),
        (Some(Rung::Pmu), _) => "the processor samples accesses".to_owned(),
        (Some(Rung::Software), _) if standing.tracker == Some(table::DAMON.name) => {
            "access bits tell which memory is in use".to_owned()
        }
        (Some(Rung::Software), _) => "gates are estimated, and a part is tried first".to_owned(),
    };
    if policy == policy::auto::NAME && standing.works {
        standing.found += match standing.rung {
            Some(Rung::Device) => "; it forecasts",
            _ if works("counts") && stalls => "; it forecasts, as stalls are counted",
            _ => "; no forecast, as no counter tells stalls on memory",
        };
    }
    // Who has no lab has no use for the advice to be in it.
    let is_better =
        |rung: Rung| rung != Rung::Device && standing.rung.is_none_or(|present| rung < present);
    let better = table::deciding().filter(|entry| table::serves(entry, needs));
    let better = better.filter_map(|entry| {
        let rung = entry.rung.filter(|&rung| is_better(rung))?;
        let check = check(entry.name)?;
        Some(format!(
            "{}: {}; {}",
            rung.name(),
            check.found,
            check.remedy
        ))
    });
    standing.raise = better.collect();
    let by_device = [
        EvidenceKind::EveryPage,
        EvidenceKind::ProgramWork,
        EvidenceKind::CacheUse,
    ];
    let lacking = by_device.into_iter().find(|kind| needs.contains(kind));
    if let (None, Some(lacking)) = (best, lacking) {
        let remedy = lacking.remedy();
        standing.raise.push(format!("device: {remedy}"));
    }
    if let Some(kernel) = check("kernel").filter(|check| !check.works) {
        standing
            .raise
            .push(format!("moving: {}; {}", kernel.found, kernel.remedy));
    }
    standing
}

#[cfg(test)]
mod tests {
    use super::super::Role as About;
    use super::*;

    fn checks(working: &[&str]) -> Vec<Check> {
        let names = ["opium", "perf", "damon", "hintfault", "counts", "kernel"];
        let check = |&name| Check {
            role: About::Tracker,
            name,
            works: working.contains(&name),
            found: format!("{name} was looked at"),
            remedy: format!("mend {name}"),
        };
        names.iter().map(check).collect()
    }

    fn of(policy: &'static str, working: &[&str]) -> PolicyStanding {
        standing(
            policy,
            &[EvidenceKind::PageAccesses],
            true,
            &checks(working),
        )
    }

    #[test]
    fn the_best_evidence_is_taken_and_better_one_is_named() {
        let all = of("auto", &["opium", "perf", "hintfault", "kernel"]);
        assert_eq!(all.rung, Some(Rung::Device));
        assert_eq!(all.raise, Vec::<String>::new());
        let pmu = of("auto", &["perf", "hintfault", "counts", "kernel"]);
        assert_eq!((pmu.rung, pmu.tracker), (Some(Rung::Pmu), Some("perf")));
        assert!(pmu.found.contains("it forecasts"), "{}", pmu.found);
        assert_eq!(pmu.raise, Vec::<String>::new());
        let software = of("auto", &["hintfault", "kernel"]);
        assert_eq!(software.rung, Some(Rung::Software));
        assert!(software.found.contains("no forecast"));
        assert_eq!(software.raise, ["pmu: perf was looked at; mend perf"]);
    }

    #[test]
    fn access_bits_do_where_nobody_asks_for_users() {
        let of =
            |working: &[&str]| standing("tiers", &[EvidenceKind::PageUse], true, &checks(working));
        let bits = of(&["damon", "hintfault", "kernel"]);
        assert_eq!((bits.works, bits.tracker), (true, Some("damon")));
        assert!(bits.found.contains("access bits"), "{}", bits.found);
        let faults = of(&["hintfault", "kernel"]);
        assert_eq!((faults.works, faults.tracker), (true, Some("hintfault")));
    }

    #[test]
    fn who_needs_every_page_has_the_device_alone() {
        let of = |working: &[&str]| {
            standing(
                "tiers-paper",
                &[EvidenceKind::EveryPage],
                true,
                &checks(working),
            )
        };
        let lab = of(&["opium", "hintfault", "kernel"]);
        assert_eq!((lab.works, lab.tracker), (true, Some("opium-pages")));
        let elsewhere = of(&["perf", "hintfault", "kernel"]);
        assert_eq!((elsewhere.works, elsewhere.tracker), (false, None));
        assert!(elsewhere.raise[0].contains("hither lab run"));
    }

    #[test]
    fn without_evidence_or_without_moves_it_does_not_work() {
        let none = of("carrefour", &["kernel"]);
        assert!(!none.works && none.rung.is_none());
        assert_eq!(
            none.raise,
            [
                "pmu: perf was looked at; mend perf",
                "software: hintfault was looked at; mend hintfault"
            ]
        );
        let still = of("carrefour", &["hintfault"]);
        assert!(!still.works && still.found.contains("--dry-run"));
        assert!(
            still
                .raise
                .contains(&"moving: kernel was looked at; mend kernel".to_owned())
        );
        let idle = standing("none", &[], false, &checks(&[]));
        assert!(idle.works && idle.raise.is_empty());
    }
}
