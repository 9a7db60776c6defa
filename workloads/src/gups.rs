//! `gups`: independent random updates of a table, giga-updates per second.
//!
//! After HPC Challenge's RandomAccess. Updates do not depend on each other, so that a core keeps
//! several misses in flight. Thread t of T updates the lines whose number is t modulo T: every
//! page is used by every thread, no line by two, so that no update is lost, none needs a lock, and
//! the checksum depends on the arguments alone.

use crate::cli::{self, Args, Failure, Opt, Workload, WorkloadReport};
use crate::hotspot::{HOT, HOT_ACCESSES};
use crate::memory::{LINE_WORDS, MAX_NODES, Placement, RegionMemory};
use crate::random::mix;
use crate::team::{Member, ThreadTeam};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Instant;

/// Multiplier and increment of the 64-bit congruential generator of Knuth's MMIX; its upper bits
/// are used.
const MULTIPLIER: u64 = 6_364_136_223_846_793_005;
const INCREMENT: u64 = 1_442_695_040_888_963_407;

/// The program.
pub const PROGRAM: Workload = Workload {
    name: "gups",
    about: "Independent random updates of a table that the main thread wrote first.",
    operand: None,
    options: &[
        cli::THREADS,
        Opt {
            name: "mb",
            value: Some("MB"),
            default: "64",
            help: "size of the table",
        },
        Opt {
            name: "updates",
            value: Some("N"),
            default: "4000000",
            help: "updates of each thread",
        },
        Opt {
            default: "100",
            help: "share of the table, from its start, that is hot; 100 for updates all over it",
            ..HOT
        },
        HOT_ACCESSES,
        Opt {
            name: "node",
            value: Some("N"),
            default: "",
            help: "bind the table to this node",
        },
        Opt {
            name: "huge",
            value: None,
            default: "",
            help: "ask for huge pages",
        },
        cli::PIN,
        cli::NO_PIN,
    ],
    run,
};

fn run(args: &Args) -> Result<WorkloadReport, Failure> {
    let team = ThreadTeam::from_args(args)?;
    let mb = args.number("mb", 1..=1 << 20)? as usize;
    let updates = args.number("updates", 1..=1 << 40)?;
    let hot = args.number(HOT.name, 1..=100)?;
    let share = args.number(HOT_ACCESSES.name, 0..=100)?;
    if hot == 100 && args.has(HOT_ACCESSES.name) {
        return Err(cli::usage(
            "--hot-accesses says nothing without a hot part: give --hot, too".to_owned(),
        ));
    }
    let node = args.optional("node", 0..=MAX_NODES as u64 - 1)?;
    let started = Instant::now();
    let region = RegionMemory::new(
        mb << 20,
        Placement {
            node,
            huge: args.has("huge"),
        },
    )?;
    for (word, value) in region.words().iter().zip(0u64..) {
        word.store(value, Relaxed);
    }
    let setup = started.elapsed().as_secs_f64();
    let table = region.words();
    let results = team.run(|member| {
        member.measure(|| match hot {
            100 => update(member, table, updates),
            _ => update_hot(member, table, updates, (hot, share)),
        })
    })?;
    let seconds = results[0].1;
    let checksum = table
        .iter()
        .fold(0u64, |sum, word| mix(sum) ^ word.load(Relaxed));
    let gups = updates as f64 * team.threads() as f64 / seconds / 1e9;
    let hot = match hot {
        100 => String::new(),
        _ => format!(", {hot} % hot with {share} % of accesses"),
    };
    let title = format!(
        "gups: {} threads, {mb} MB, {updates} updates each{hot}",
        team.threads()
    );
    Ok(WorkloadReport::new(title)
        .line("setup_seconds", format!("{setup:.6}"))
        .line("gups", format!("{gups:.6}"))
        .finish(seconds, checksum))
}

/// One thread's updates. The line is drawn by multiplying, which needs no power of two.
#[inline(never)]
fn update(member: &Member<'_>, table: &[AtomicU64], updates: u64) {
    let (lines, _) = table.as_chunks::<LINE_WORDS>();
    let own = member_lines(lines.len(), member.threads, member.id);
    let mut state = mix(member.id as u64 + 1);
    for _ in 0..updates {
        state = state.wrapping_mul(MULTIPLIER).wrapping_add(INCREMENT);
        // 32 bits times fewer than 2^32 lines: the product's upper half is below `own`.
        let index = ((state >> 32) * own) >> 32;
        let word = &lines[index as usize * member.threads + member.id][state as usize >> 29 & 7];
        word.store(word.load(Relaxed) ^ state, Relaxed);
    }
}

/// As [`update`], with a hot part: `percents` are its share of the table and of the updates.
#[inline(never)]
fn update_hot(
    member: &Member<'_>,
    table: &[AtomicU64],
    updates: u64,
    (hot_percent, share_percent): (u64, u64),
) {
    let (lines, _) = table.as_chunks::<LINE_WORDS>();
    let own = member_lines(lines.len(), member.threads, member.id);
    let hot = (own * hot_percent / 100).max(1);
    let share = (share_percent << 32) / 100;
    let mut state = mix(member.id as u64 + 1);
    for _ in 0..updates {
        state = state.wrapping_mul(MULTIPLIER).wrapping_add(INCREMENT);
        // The generator's lower bits have short periods; mixed, they decide.
        let within = match mix(state) & 0xffff_ffff < share {
            true => hot,
            false => own,
        };
        let index = ((state >> 32) * within) >> 32;
        let word = &lines[index as usize * member.threads + member.id][state as usize >> 29 & 7];
        word.store(word.load(Relaxed) ^ state, Relaxed);
    }
}

/// How many lines have number `id` modulo `threads`: at least one, there being more lines than
/// threads in the smallest table.
fn member_lines(lines: usize, threads: usize, id: usize) -> u64 {
    (lines - id).div_ceil(threads) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_all_members_add_up() {
        for (lines, threads) in [(16_384, 3), (100, 7), (8, 8)] {
            let sum: u64 = (0..threads)
                .map(|id| member_lines(lines, threads, id))
                .sum();
            assert_eq!(sum, lines as u64);
            for id in 0..threads {
                let last = (member_lines(lines, threads, id) as usize - 1) * threads + id;
                assert!(last < lines);
            }
        }
    }
}
