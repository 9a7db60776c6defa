//! Outputs of the program `mix` under several policies, compared: `cargo xtask mix-report FILE...`.
//!
//! Each output has a `seed:` line and, by `mix --policy`, a `policy:` line; without one the policy is the
//! file's name up to its last `-`. A file may hold several outputs one after the other; several outputs of one policy
//! and seed are repetitions, whose times are averaged. The first policy is what others are
//! compared with, seed by seed: under one seed every program has the same CPU.
//!
//! A program's relative time under a seed is its time by its time under the first policy. Groups
//! (all programs, the copies of a kernel) average these; the interval is over seeds, by Student's t.

use crate::files;
use anyhow::{Context, Result, bail, ensure};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

/// One output.
#[derive(Clone, Debug, PartialEq)]
struct Run {
    policy: String,
    seed: u64,
    programs: Vec<Timed>,
}

/// A program of an output.
#[derive(Clone, Debug, PartialEq)]
struct Timed {
    /// Kernel and copy, as `cg.1`.
    name: String,
    cpu: String,
    seconds: f64,
    checksum: String,
}

/// Mean relative time and, with two seeds or more, half the width of its interval of 95 %.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Estimate {
    mean: f64,
    half: Option<f64>,
}

/// Prints the comparison of some files.
pub fn print(paths: &[&str]) -> Result<()> {
    let mut runs = Vec::new();
    for path in paths {
        let path = Path::new(path);
        let stem = path.file_stem().unwrap_or_default().to_string_lossy();
        let policy = stem.rsplit_once('-').map_or(&*stem, |(policy, _)| policy);
        let found = parse(&files::read(path)?, policy);
        runs.extend(found.with_context(|| path.display().to_string())?);
    }
    print!("{}", report(&runs)?);
    Ok(())
}

/// The outputs in a text.
fn parse(text: &str, policy: &str) -> Result<Vec<Run>> {
    let mut runs: Vec<(Option<u64>, Run)> = Vec::new();
    for (number, line) in text.lines().enumerate() {
        if line.starts_with("mix: ") {
            let run = Run {
                policy: policy.to_owned(),
                seed: 0,
                programs: Vec::new(),
            };
            runs.push((None, run));
        }
        let Some((seed, run)) = runs.last_mut() else {
            continue;
        };
        let fault = || format!("line {}: `{line}`", number + 1);
        match line.split_once(": ") {
            Some(("policy", label)) => label.clone_into(&mut run.policy),
            Some(("seed", value)) => *seed = Some(value.parse().with_context(fault)?),
            Some(("program", value)) => run.programs.push(timed(value).with_context(fault)?),
            _ => {}
        }
    }
    ensure!(!runs.is_empty(), "no output of `mix` is in it");
    let finished = runs.into_iter().map(|(seed, run)| {
        ensure!(!run.programs.is_empty(), "an output has no `program:` line");
        let seed = seed.context("an output has no `seed:` line")?;
        Ok(Run { seed, ..run })
    });
    finished.collect()
}

/// `cg.1 cpu 3 seconds 1.25 mflops 3 checksum 0x1`.
fn timed(line: &str) -> Result<Timed> {
    let words: Vec<&str> = line.split(' ').collect();
    let [
        name,
        "cpu",
        cpu,
        "seconds",
        seconds,
        "mflops",
        _,
        "checksum",
        checksum,
    ] = words[..]
    else {
        bail!("not as `mix` prints a program");
    };
    let seconds: f64 = seconds.parse().context("no number of seconds")?;
    ensure!(
        seconds.is_finite() && seconds > 0.0,
        "seconds must be positive"
    );
    Ok(Timed {
        name: name.to_owned(),
        cpu: cpu.to_owned(),
        seconds,
        checksum: checksum.to_owned(),
    })
}

/// Mean times of the programs by seed, for each policy in the order in which they appear.
type Times = Vec<(String, BTreeMap<u64, Vec<f64>>)>;

/// How often each seed was run, and sums of the programs' times.
type Sums = BTreeMap<u64, (u32, Vec<f64>)>;

/// Averages repetitions, and refuses outputs that are not of the same experiment.
fn times(runs: &[Run]) -> Result<(Vec<String>, Times)> {
    let first = runs.first().context("no outputs")?;
    let names: Vec<String> = first
        .programs
        .iter()
        .map(|timed| timed.name.clone())
        .collect();
    let mut sums: Vec<(String, Sums)> = Vec::new();
    for run in runs {
        let which = format!("policy {}, seed {}", run.policy, run.seed);
        let own: Vec<&String> = run.programs.iter().map(|timed| &timed.name).collect();
        ensure!(
            own.iter().copied().eq(&names),
            "{which}: other programs than in the first output"
        );
        let same_seed = runs
            .iter()
            .find(|other| other.seed == run.seed)
            .unwrap_or(run);
        for ((own, other), first) in run
            .programs
            .iter()
            .zip(&same_seed.programs)
            .zip(&first.programs)
        {
            ensure!(
                own.cpu == other.cpu,
                "{which}: {} ran on CPU {}, under policy {} on CPU {}: outputs of a seed must \
                 have the same CPUs",
                own.name,
                own.cpu,
                same_seed.policy,
                other.cpu
            );
            ensure!(
                own.checksum == first.checksum,
                "{which}: {} has another checksum than in the first output: other sizes or rounds, or \
                 memory that was damaged",
                own.name
            );
        }
        let at = sums.iter().position(|(policy, _)| *policy == run.policy);
        let at = at.unwrap_or_else(|| {
            sums.push((run.policy.clone(), BTreeMap::new()));
            sums.len() - 1
        });
        let (count, seconds) = (sums[at].1)
            .entry(run.seed)
            .or_insert_with(|| (0, vec![0.0; names.len()]));
        *count += 1;
        for (sum, timed) in seconds.iter_mut().zip(&run.programs) {
            *sum += timed.seconds;
        }
    }
    let mean = |(seed, (count, sums)): (u64, (u32, Vec<f64>))| {
        (
            seed,
            sums.iter().map(|sum| sum / f64::from(count)).collect(),
        )
    };
    let times = sums
        .into_iter()
        .map(|(policy, seeds)| (policy, seeds.into_iter().map(mean).collect()));
    Ok((names, times.collect()))
}

/// The comparison, as Markdown.
fn report(runs: &[Run]) -> Result<String> {
    let (names, times) = times(runs)?;
    let Some(((base, base_times), others)) = times.split_first() else {
        bail!("no outputs");
    };
    ensure!(
        !others.is_empty(),
        "all outputs are of policy {base}: another one is needed"
    );
    let mut text = String::new();
    for (policy, policy_times) in others {
        // For each seed that both have: the relative time of each program.
        let pairs = policy_times
            .iter()
            .filter_map(|(seed, times)| Some((times, base_times.get(seed)?)));
        let ratios: Vec<Vec<f64>> = pairs
            .map(|(times, base)| {
                times
                    .iter()
                    .zip(base)
                    .map(|(one, base)| one / base)
                    .collect()
            })
            .collect();
        ensure!(
            !ratios.is_empty(),
            "policies {policy} and {base} have no seed in common"
        );
        let group = |wanted: &dyn Fn(&str) -> bool| {
            let chosen: Vec<usize> = (0..names.len()).filter(|&at| wanted(&names[at])).collect();
            let mean = |ratios: &Vec<f64>| {
                chosen.iter().map(|&at| ratios[at]).sum::<f64>() / chosen.len() as f64
            };
            estimate(&ratios.iter().map(mean).collect::<Vec<f64>>())
        };
        let _ = writeln!(
            text,
            "Time under {policy} relative to {base}, {} seeds, {} programs\n\n| programs | relative time | 95 % |\n|---|---|---|",
            ratios.len(),
            names.len()
        );
        row(&mut text, "all", group(&|_| true));
        let mut kernels: Vec<&str> = names.iter().map(|name| kernel(name)).collect();
        kernels.dedup();
        for (at, name) in kernels.iter().enumerate() {
            if !kernels[..at].contains(name) {
                row(&mut text, name, group(&|program| kernel(program) == *name));
            }
        }
        let each = names
            .iter()
            .map(|name| (name, group(&|program| program == name)));
        let mut each: Vec<(&String, Estimate)> = each.collect();
        each.sort_by(|one, other| one.1.mean.total_cmp(&other.1.mean));
        for (title, found) in [("best", each.first()), ("worst", each.last())] {
            if let Some((name, estimate)) = found {
                row(&mut text, &format!("{title}: {name}"), *estimate);
            }
        }
        text.push('\n');
    }
    Ok(text)
}

fn kernel(program: &str) -> &str {
    program
        .split_once('.')
        .map_or(program, |(kernel, _)| kernel)
}

fn row(text: &mut String, name: &str, Estimate { mean, half }: Estimate) {
    let interval = half.map_or("one seed".to_owned(), |half| {
        format!("{:.3} to {:.3}", mean - half, mean + half)
    });
    let _ = writeln!(text, "| {name} | {mean:.3} | {interval} |");
}

/// Mean of values, one per seed, and half of its 95 % interval.
fn estimate(values: &[f64]) -> Estimate {
    let count = values.len() as f64;
    let mean = values.iter().sum::<f64>() / count;
    let half = (values.len() > 1).then(|| {
        let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
        student(values.len() - 1) * (squares / (count - 1.0) / count).sqrt()
    });
    Estimate { mean, half }
}

/// The 97.5 % point of Student's t: of tabulated degrees of freedom the next below, whose interval is
/// the wider one.
fn student(freedom: usize) -> f64 {
    const TABLE: [(usize, f64); 35] = [
        (1, 12.706),
        (2, 4.303),
        (3, 3.182),
        (4, 2.776),
        (5, 2.571),
        (6, 2.447),
        (7, 2.365),
        (8, 2.306),
        (9, 2.262),
        (10, 2.228),
        (11, 2.201),
        (12, 2.179),
        (13, 2.160),
        (14, 2.145),
        (15, 2.131),
        (16, 2.120),
        (17, 2.110),
        (18, 2.101),
        (19, 2.093),
        (20, 2.086),
        (21, 2.080),
        (22, 2.074),
        (23, 2.069),
        (24, 2.064),
        (25, 2.060),
        (26, 2.056),
        (27, 2.052),
        (28, 2.048),
        (29, 2.045),
        (30, 2.042),
        (40, 2.021),
        (60, 2.000),
        (80, 1.990),
        (100, 1.984),
        (120, 1.980),
    ];
    let found = TABLE
        .iter()
        .rev()
        .find(|(tabulated, _)| *tabulated <= freedom);
    found.map_or(f64::INFINITY, |(_, point)| *point)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn output(policy: &str, seed: u64, seconds: [f64; 3]) -> String {
        let mut text = format!("mix: 3 programs on 2 CPUs\npolicy: {policy}\nseed: {seed}\n");
        for (name, seconds) in ["is.0", "cg.0", "cg.1"].iter().zip(seconds) {
            let _ = writeln!(
                text,
                "program: {name} cpu {seed} seconds {seconds} mflops 1.0 checksum 0x1"
            );
        }
        text + "kernel: is mean_seconds 1 mean_mflops 1\nmean_seconds: 2\nseconds: 3\nchecksum: 0x1\n"
    }

    fn runs(texts: &[String]) -> Vec<Run> {
        texts
            .iter()
            .flat_map(|text| parse(text, "unnamed").unwrap())
            .collect()
    }

    #[test]
    fn times_are_paired_by_seed_and_averaged_by_kernel() {
        // Seeds differ much, what the policy gains little: 0.9 and 0.8 for cg.1, 1 for the others.
        let text = report(&runs(&[
            output("none", 1, [1.0, 2.0, 4.0]),
            output("none", 2, [10.0, 20.0, 40.0]),
            output("hydm", 2, [10.0, 20.0, 32.0]),
            output("hydm", 1, [1.0, 2.0, 3.6]),
        ]))
        .unwrap();
        // All: 2.9 / 3 and 2.8 / 3, hence 0.95 and half a distance of 1/60 times 12.706.
        for line in [
            "Time under hydm relative to none, 2 seeds, 3 programs",
            "| all | 0.950 | 0.738 to 1.162 |",
            "| is | 1.000 | 1.000 to 1.000 |",
            "| cg | 0.925 | 0.607 to 1.243 |",
            "| best: cg.1 | 0.850 | 0.215 to 1.485 |",
        ] {
            assert!(
                text.lines().any(|found| found == line),
                "{line} is not in\n{text}"
            );
        }
        assert!(text.contains("| worst: cg.0 | 1.000") || text.contains("| worst: is.0 | 1.000"));
    }

    #[test]
    fn repetitions_are_averaged_and_one_seed_has_no_interval() {
        let text = report(&runs(&[
            output("none", 5, [1.0, 1.0, 1.0]) + &output("none", 5, [3.0, 3.0, 3.0]),
            output("hydm", 5, [1.0, 1.0, 1.0]),
        ]));
        assert!(text.unwrap().contains("| all | 0.500 | one seed |"));
    }

    #[test]
    fn other_experiments_are_refused() {
        let base = output("none", 1, [1.0; 3]);
        for (other, part) in [
            (output("hydm", 2, [1.0; 3]), "no seed in common"),
            (output("none", 2, [1.0; 3]), "another one is needed"),
            (
                output("hydm", 1, [1.0; 3]).replace("cpu 1", "cpu 7"),
                "same CPUs",
            ),
            (
                output("hydm", 1, [1.0; 3]).replace("m 0x1", "m 0x2"),
                "another checksum",
            ),
            (
                output("hydm", 1, [1.0; 3]).replace("cg.1", "lu.0"),
                "other programs",
            ),
        ] {
            let error = report(&runs(&[base.clone(), other]))
                .unwrap_err()
                .to_string();
            assert!(error.contains(part), "{error}");
        }
        for text in [
            "",
            "mix: 1 programs\nseed: 1\n",
            "mix: 1 programs\nseed: x\n",
            "mix: 1 programs\nseed: 1\nprogram: cg.0 cpu 1 seconds 0 mflops 1 checksum 0x1\n",
            "mix: 1 programs\nseed: 1\nprogram: cg.0 seconds 1\n",
            "mix: 1 programs\nprogram: cg.0 cpu 1 seconds 1 mflops 1 checksum 0x1\n",
        ] {
            assert!(parse(text, "x").is_err(), "{text}");
        }
    }

    #[test]
    fn the_interval_is_students() {
        // Mean 3, standard deviation sqrt(2.5): 2.776 sqrt(2.5 / 5).
        let Estimate { mean, half } = estimate(&[1.0, 2.0, 3.0, 4.0, 5.0]);
        assert_eq!(mean, 3.0);
        assert!((half.unwrap() - 1.963).abs() < 1e-3);
        assert_eq!(student(35), 2.042);
        assert_eq!(student(10_000), 1.980);
    }
}
