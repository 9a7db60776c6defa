//! How surely regions are formed, how soon, and what it costs: `cargo bench --package hither-core`.
//!
//! Programs are those of the tests, drawn from other seeds. `COUNT=3000` tries so many of each kind in
//! place of 300. A program counts as found where each planted region has 95 % of its sampled pages in one
//! formed region, and each formed region 95 % of its pages of one planted region. Costs are CPU time of
//! this thread.

use hither_core::forming::{Config, Forming, Hint, Kind, Program, TURN_NS, Touch};
use hither_core::ids::SpaceId;
use planted::{Least, Plan, Random, Run, laid_out};

// The tests use what is not used here.
#[allow(dead_code)]
#[path = "../src/forming/tests/planted.rs"]
mod planted;

/// Turns before a phase ends, and looks after it.
const TURNS: u64 = 12;

fn main() {
    let count = std::env::var("COUNT")
        .ok()
        .and_then(|count| count.parse().ok());
    let count: u64 = count.unwrap_or(300);
    println!("recovery of {count} programs each; share found");
    println!(
        "| visit | page in 2 s | visits in 2 s | at 1 s | at 2 s | at 3 s | 1 s after a change | 2 s after |"
    );
    println!("|--:|--:|--:|--:|--:|--:|--:|--:|");
    for (visit_samples, page_samples, visits) in [
        (2.0, 8.0, 10.0),
        (3.0, 8.0, 10.0),
        (4.0, 4.0, 10.0),
        (4.0, 8.0, 10.0),
        (4.0, 16.0, 20.0),
        (10.0, 16.0, 20.0),
    ] {
        recovery(
            count,
            Least {
                visit_samples,
                page_samples,
                visits,
            },
        );
    }
    println!(
        "\nlarge regions, one after the other, visits of 5 ms, 20,000 samples a second; after 3 s"
    );
    println!(
        "| regions | pages each | samples a page in 2.5 s | found | regions formed | pages in them |"
    );
    println!("|--:|--:|--:|---|--:|--:|");
    for (regions, pages) in [(2, 4096), (4, 4096), (8, 4096), (16, 4096)] {
        large(regions, pages);
    }
    println!(
        "\ncost, 8 regions of the same size, visits of 5 ms, over 10 s; a turn is every 250 ms"
    );
    println!(
        "| samples a second | pages | ns a sample | share of one CPU | longest turn | with the limit | samples kept |"
    );
    println!("|--:|--:|--:|--:|--:|--:|--:|");
    for rate in [1_000, 5_000, 20_000] {
        for pages in [32, 256, 2048] {
            cost(rate, pages);
        }
    }
}

fn start(plan: Plan, seed: u64) -> Run {
    Run::new(plan, Forming::new(Config::default()), seed)
}

/// Share of programs that are found by the time.
fn recovery(count: u64, least: Least) {
    let mut found = [0_u64; 5];
    for seed in 10_000..10_000 + count {
        let mut run = start(Plan::drawn(&mut Random(seed), least), seed);
        for found in &mut found[..3] {
            run.turns(TURNS / 3);
            *found += u64::from(run.score().is_good());
        }
        run.part_of_a_turn(0.6);
        run.plan = run.plan.shuffled(&mut Random(seed));
        run.forget_counts();
        for found in &mut found[3..] {
            run.turns(4);
            *found += u64::from(run.score().is_good());
        }
    }
    let shares = found.map(|found| format!("{:.1} %", 100.0 * found as f64 / count as f64));
    println!(
        "| {} | {} | {} | {} |",
        least.visit_samples,
        least.page_samples,
        least.visits,
        shares.join(" | ")
    );
}

/// A plan with few figures.
fn plain(regions: usize, pages: usize, rate: usize) -> Plan {
    let mut plan = Plan::drawn(
        &mut Random(1),
        Least {
            visit_samples: 1.0,
            page_samples: 1.0,
            visits: 1.0,
        },
    );
    plan.regions = laid_out(&vec![pages; regions], 0);
    (plan.globals, plan.global_share, plan.threads) = (Vec::new(), 0.0, 1);
    (plan.visit_ns, plan.gap_ns) = ([5e6, 5e6], 1e9 / rate as f64);
    plan
}

fn large(regions: usize, pages: usize) {
    let mut run = start(plain(regions, pages, 20_000), 1);
    run.turns(TURNS);
    let program = run.program();
    let formed = program
        .regions
        .iter()
        .filter(|region| region.name.is_some());
    let formed_pages: u64 = formed.map(|region| region.page_count()).sum();
    println!(
        "| {regions} | {pages} | {:.1} | {} | {} | {:.1} % |",
        2.5 * 20_000.0 / (regions * pages) as f64,
        if run.score().is_good() { "yes" } else { "no" },
        run.formed(),
        100.0 * formed_pages as f64 / (regions * pages) as f64
    );
}

/// What a run of 10 s takes.
struct Cost {
    all_ns: u64,
    longest_ns: u64,
    sample_count: u64,
    kept_share: f64,
}

fn cost(rate: usize, pages: usize) {
    let [free, limited] = [false, true].map(|is_limited| measured(rate, pages, is_limited));
    let share = |cost: &Cost| cost.all_ns as f64 / 1e10 * 100.0;
    println!(
        "| {rate} | {} | {} | {:.2} % | {:.1} ms | {:.2} % | {:.0} % |",
        8 * pages,
        free.all_ns / free.sample_count,
        share(&free),
        free.longest_ns as f64 / 1e6,
        share(&limited),
        100.0 * limited.kept_share
    );
}

/// Where it is limited, each turn is told what was spent since the one before.
fn measured(rate: usize, pages: usize, is_limited: bool) -> Cost {
    let mut run = start(plain(8, pages, rate), 1);
    let (mut all_ns, mut longest_ns, mut turn_ns) = (0, 0, 0);
    for turn in 1..=40 {
        let touches = run.samples(turn * TURN_NS);
        let began_ns = cpu_ns();
        for touch in &touches {
            run.forming.touch(touch);
        }
        let touched_ns = cpu_ns();
        let spent_ns = turn_ns + touched_ns - began_ns;
        let told_ns = if is_limited { spent_ns } else { 0 };
        run.forming.turn(turn * TURN_NS, told_ns);
        turn_ns = cpu_ns() - touched_ns;
        all_ns += touched_ns - began_ns + turn_ns;
        longest_ns = longest_ns.max(turn_ns);
    }
    Cost {
        all_ns,
        longest_ns,
        sample_count: run.sample_count,
        kept_share: run.forming.kept_share(),
    }
}

/// CPU time of this thread.
fn cpu_ns() -> u64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").expect("Linux tells it");
    let first = text.split(' ').next().and_then(|ns| ns.parse().ok());
    first.expect("its first number is the time on a CPU")
}
