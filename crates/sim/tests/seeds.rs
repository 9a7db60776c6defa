//! Many seeds: whatever happens, the checkers find nothing.

use hither_core::engine::{Summary, Verdict};
use hither_core::plan::Refusal;
use hither_sim::check::{Invariant, Violation};
use hither_sim::scenario::Scenario;
use std::collections::{BTreeMap, BTreeSet};
use std::panic::catch_unwind;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// Seeds that are played; with `HITHER_SIM_SEED=N` that one alone.
const SEEDS: u64 = 1_000;

fn told(seed: u64, violations: &[Violation]) -> String {
    let lines = violations.iter().map(|found| format!("  {found}"));
    format!(
        "seed {seed} finds {} ({})\n{}",
        violations.len(),
        again(seed),
        lines.collect::<Vec<_>>().join("\n")
    )
}

fn again(seed: u64) -> String {
    format!("again: HITHER_SIM_SEED={seed} cargo test -p hither-sim seeds")
}

fn panics(seed: u64) -> String {
    format!("seed {seed} panics ({})", again(seed))
}

/// What happened over all seeds: that nothing was found means something only where much was tried.
#[derive(Debug, Default)]
struct Seen {
    verdicts: BTreeMap<Verdict, u64>,
    refused: BTreeMap<Refusal, u64>,
    moved_pages: u64,
    reverted_pages: u64,
}

impl Seen {
    fn add(&mut self, summaries: &[Summary]) {
        for summary in summaries {
            self.moved_pages += summary.moved_pages;
            self.reverted_pages += summary.reverted_pages;
            for row in &summary.campaigns {
                *self.verdicts.entry(row.verdict).or_default() += 1;
            }
            for &(why, count) in &summary.refused {
                *self.refused.entry(why).or_default() += count;
            }
        }
    }

    fn assert_enough(&self) {
        let all = [
            Verdict::Success,
            Verdict::NoEffect,
            Verdict::TooSmall,
            Verdict::Harmful,
            Verdict::Inconclusive,
        ];
        let missing = |verdict: &&Verdict| self.verdicts.get(verdict).is_none_or(|&n| n < 20);
        assert_eq!(all.iter().find(missing), None, "{self:?}");
        let whys = [
            Refusal::Busy,
            Refusal::Pinned,
            Refusal::ProcessGone,
            Refusal::Dropped,
        ];
        let missing = |why: &&Refusal| self.refused.get(why).is_none_or(|&n| n < 20);
        assert_eq!(whys.iter().find(missing), None, "{self:?}");
        assert!(self.moved_pages > 100_000, "{self:?}");
        assert!(self.reverted_pages > 10_000, "{self:?}");
    }
}

#[test]
fn no_seed_finds_a_violation() {
    if let Ok(text) = std::env::var("HITHER_SIM_SEED") {
        let seed = text.parse().expect("HITHER_SIM_SEED is a number");
        let violations = Scenario::new(seed).play();
        assert!(violations.is_empty(), "{}", told(seed, &violations));
        return;
    }
    let next = AtomicU64::new(1);
    let failures = Mutex::new(Vec::new());
    let seen = Mutex::new(Seen::default());
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed > SEEDS {
                        return;
                    }
                    let played = catch_unwind(|| Scenario::new(seed).play_and_tell());
                    let (violations, summaries) =
                        played.unwrap_or_else(|_| panic!("{}", panics(seed)));
                    seen.lock().unwrap().add(&summaries);
                    if !violations.is_empty() {
                        failures.lock().unwrap().push((seed, violations));
                    }
                }
            });
        }
    });
    let mut failures = failures.into_inner().unwrap();
    failures.sort_by_key(|(seed, _)| *seed);
    let mut first: BTreeMap<Invariant, (u64, usize)> = BTreeMap::new();
    for (seed, violations) in &failures {
        let rules: BTreeSet<Invariant> = violations.iter().map(|found| found.rule).collect();
        for rule in rules {
            first.entry(rule).or_insert((*seed, 0)).1 += 1;
        }
    }
    if let Some((seed, violations)) = failures.first() {
        panic!(
            "{} of {SEEDS} seeds fail; by rule, with the first seed and how many: {first:?}; {}",
            failures.len(),
            told(*seed, violations)
        );
    }
    seen.into_inner().unwrap().assert_enough();
}
