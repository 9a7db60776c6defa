//! `planted`: three mistakes of memory use, each with its remedy, so that tools can be tried on
//! what is known.
//!
//! | mode | the mistake | `--remedy` |
//! |---|---|---|
//! | `false-sharing` | each thread counts in a word of its own, eight to a line | a line to each |
//! | `master-init` | the main thread writes what each thread then uses a part of | each writes its part |
//! | `all-to-one` | all threads use all of an array that lies on the main thread's node | interleaved |
//!
//! Nothing is lost and nothing needs a lock: every word has one writer, and what is read of others'
//! words never changes. The checksum is the same with and without the remedy.

use crate::cli::{self, Args, Failure, Operand, Opt, Workload, WorkloadReport};
use crate::memory::{LINE_WORDS, Placement, RegionMemory};
use crate::random::mix;
use crate::team::{Member, ThreadTeam};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Instant;

const FALSE_SHARING: &str = "false-sharing";
const MASTER_INIT: &str = "master-init";
const ALL_TO_ONE: &str = "all-to-one";
/// `all-to-one`: one access in so many is an update of a line of the thread's own.
const UPDATE_EVERY: u64 = 8;

/// The program.
pub const PROGRAM: Workload = Workload {
    name: "planted",
    about: "Three mistakes of memory use, each with its remedy.",
    operand: Some(Operand {
        name: "MODE",
        choices: &[
            (FALSE_SHARING, "threads count in words of one line"),
            (
                MASTER_INIT,
                "the main thread writes what each thread then uses a part of",
            ),
            (
                ALL_TO_ONE,
                "all threads use all of an array on the main thread's node",
            ),
        ],
        default: None,
    }),
    options: &[
        cli::THREADS,
        Opt {
            name: "mb",
            value: Some("MB"),
            default: "64",
            help: "size of the array",
        },
        Opt {
            name: "rounds",
            value: Some("N"),
            default: "100",
            help: "rounds; in each all threads together make an access per line",
        },
        Opt {
            name: "remedy",
            value: None,
            default: "",
            help: "pad, let each thread write its part first, or interleave",
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

/// Eight counters.
#[repr(align(64))]
#[derive(Default)]
struct Line([AtomicU64; LINE_WORDS]);

fn run(args: &Args) -> Result<WorkloadReport, Failure> {
    let team = ThreadTeam::from_args(args)?;
    let mb = args.number("mb", 1..=1 << 20)? as usize;
    let rounds = args.number("rounds", 1..=1 << 32)?;
    let remedy = args.has("remedy");
    let title = format!(
        "planted {}{}: {} threads, {mb} MB, {rounds} rounds",
        args.operand(),
        if remedy { " --remedy" } else { "" },
        team.threads()
    );
    let started = Instant::now();
    let placement = Placement {
        node: None,
        huge: args.has("huge"),
    };
    let (setup, results) = match args.operand() {
        FALSE_SHARING => {
            let lines: Vec<Line> = (0..team.threads()).map(|_| Line::default()).collect();
            let steps = rounds * (mb << 20) as u64 / 64 / team.threads() as u64;
            let setup = started.elapsed();
            let results = team.run(|member| {
                let counter = counter(&lines, member.id, remedy);
                member.measure(|| count(counter, member.id, steps))
            })?;
            (setup, results)
        }
        MASTER_INIT => {
            let region = RegionMemory::new(mb << 20, placement)?;
            if !remedy {
                write_first(region.words(), 0);
            }
            let setup = started.elapsed();
            let results = team.run(|member| {
                let all = region.words();
                let lines = member.part(all.len() / LINE_WORDS);
                let own = &all[lines.start * LINE_WORDS..lines.end * LINE_WORDS];
                if remedy {
                    write_first(own, lines.start as u64);
                }
                member.measure(|| sweep(own, rounds))
            })?;
            (setup, results)
        }
        _ => {
            let region = RegionMemory::new(mb << 20, placement)?;
            if remedy {
                region.interleave()?;
            }
            write_first(region.words(), 0);
            let setup = started.elapsed();
            let results = team.run(|member| member.measure(|| roam(member, &region, rounds)))?;
            (setup, results)
        }
    };
    let checksum = results.iter().fold(0, |sum, result| mix(sum) ^ result.0);
    Ok(WorkloadReport::new(title)
        .line("setup_seconds", format!("{:.6}", setup.as_secs_f64()))
        .finish(results[0].1, checksum))
}

/// The counter of a thread: words in a row, or the first word of a line each.
fn counter(lines: &[Line], id: usize, padded: bool) -> &AtomicU64 {
    match padded {
        true => &lines[id].0[0],
        false => &lines[id / LINE_WORDS].0[id % LINE_WORDS],
    }
}

/// Writes the first word of each line; `number` is that of the first line.
fn write_first(words: &[AtomicU64], number: u64) {
    for (line, number) in words.chunks_exact(LINE_WORDS).zip(number..) {
        line[0].store(mix(number), Relaxed);
    }
}

/// Counts: a load and a store of one word, as often as it gets.
#[inline(never)]
fn count(counter: &AtomicU64, id: usize, steps: u64) -> u64 {
    for step in 0..steps {
        let value = counter.load(Relaxed);
        counter.store(value.wrapping_add(step ^ id as u64), Relaxed);
    }
    counter.load(Relaxed)
}

/// Reads a line after the other, and writes to each that it was read.
#[inline(never)]
fn sweep(own: &[AtomicU64], rounds: u64) -> u64 {
    let mut sum = 0u64;
    for _ in 0..rounds {
        for line in own.chunks_exact(LINE_WORDS) {
            let value = line[0].load(Relaxed);
            sum = sum.wrapping_add(value);
            line[0].store(value.rotate_left(1), Relaxed);
        }
    }
    sum
}

/// Reads lines anywhere, and now and then updates one of its own: those whose number is the
/// thread's modulo the number of threads. Updates leave the first word, which others read.
#[inline(never)]
fn roam(member: &Member<'_>, region: &RegionMemory, rounds: u64) -> u64 {
    let words = region.words();
    let lines = (words.len() / LINE_WORDS) as u64;
    let threads = member.threads as u64;
    let mut sum = 0u64;
    let mut state = mix(member.id as u64 + 1);
    for step in 0..rounds * lines / threads {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        // 32 bits times fewer than 2^32 lines: the product's upper half is a line's number.
        let line = ((state >> 32) * lines) >> 32;
        if step % UPDATE_EVERY == 0 {
            let own = (line - line % threads + member.id as u64).min(lines - 1);
            if own % threads == member.id as u64 {
                let word = &words[own as usize * LINE_WORDS + 1];
                word.store(word.load(Relaxed) ^ state, Relaxed);
                sum ^= word.load(Relaxed);
            }
        } else {
            sum = sum.wrapping_add(words[line as usize * LINE_WORDS].load(Relaxed));
        }
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checksum(words: &str) -> String {
        let words: Vec<String> = words.split(' ').map(str::to_owned).collect();
        let args = PROGRAM.parse(&words).unwrap().unwrap();
        let report = run(&args).unwrap();
        report.value("checksum").unwrap().to_owned()
    }

    #[test]
    fn the_remedy_changes_no_result() {
        for mode in [FALSE_SHARING, MASTER_INIT, ALL_TO_ONE] {
            let words = format!("{mode} --threads 3 --mb 1 --rounds 2 --no-pin");
            let plain = checksum(&words);
            let mended = checksum(&format!("{words} --remedy"));
            assert_eq!(plain, mended, "{mode}");
            assert_eq!(plain, checksum(&words), "{mode}");
        }
    }

    #[test]
    fn counters_share_a_line_until_they_are_padded() {
        let lines: Vec<Line> = (0..9).map(|_| Line::default()).collect();
        let line = |id, padded| std::ptr::from_ref(counter(&lines, id, padded)).addr() / 64;
        assert_eq!(line(0, false), line(7, false));
        assert_ne!(line(7, false), line(8, false));
        assert_ne!(line(0, true), line(1, true));
    }
}
