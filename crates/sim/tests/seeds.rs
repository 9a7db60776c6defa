//! Many seeds: whatever happens, the checkers find nothing.

use hither_sim::check::{Rule, Violation};
use hither_sim::scenario::Scenario;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// Seeds that are played; with `HITHER_SIM_SEED=N` that one alone.
const SEEDS: u64 = 1_000;

fn told(seed: u64, violations: &[Violation]) -> String {
    let lines = violations.iter().map(|found| format!("  {found}"));
    format!(
        "seed {seed} finds {} (again: HITHER_SIM_SEED={seed} cargo test -p hither-sim seeds)\n{}",
        violations.len(),
        lines.collect::<Vec<_>>().join("\n")
    )
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
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed > SEEDS {
                        return;
                    }
                    let violations = Scenario::new(seed).play();
                    if !violations.is_empty() {
                        failures.lock().unwrap().push((seed, violations));
                    }
                }
            });
        }
    });
    let mut failures = failures.into_inner().unwrap();
    failures.sort_by_key(|(seed, _)| *seed);
    let mut first: BTreeMap<Rule, (u64, usize)> = BTreeMap::new();
    for (seed, violations) in &failures {
        let rules: BTreeSet<Rule> = violations.iter().map(|found| found.rule).collect();
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
}
