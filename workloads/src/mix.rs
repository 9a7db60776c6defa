//! `mix`: several programs `npb` at once, each on a CPU drawn at random, and how long each takes.
//!
//! The HyDM paper runs 16 or 32 NPB programs together, "randomly assigned [...] to the cores", and
//! averages their times over runs. The seed decides the CPUs, so that policies can be compared
//! under the same assignments: `cargo xtask mix-report` does so.

use crate::cli::{Args, Failure, Opt, Workload, WorkloadReport, usage};
use crate::memory;
use crate::npb::{self, table::TABLE};
use crate::random::{FastRandom, mix};
use crate::team::{allowed_cpus, check_cpu, end_with, pin};
use std::io::Error;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Instant;

/// The program.
pub const PROGRAM: Workload = Workload {
    name: "mix",
    about: "Programs `npb` at once, each with one thread on a CPU drawn at random: the eight kernels in turns.",
    operand: None,
    options: &[
        Opt {
            name: "programs",
            value: Some("N"),
            default: "16",
            help: "programs; each eight are one copy of all kernels",
        },
        Opt {
            name: "seed",
            value: Some("S"),
            default: "1",
            help: "what the CPUs are drawn by",
        },
        Opt {
            name: "cpus",
            value: Some("LIST"),
            default: "all that the process may use",
            help: "CPUs to draw from",
        },
        Opt {
            name: "even",
            value: None,
            default: "",
            help: "as many programs on each CPU as can be, one more or less at most",
        },
        Opt {
            name: "policy",
            value: Some("LABEL"),
            default: "",
            help: "a line `policy: LABEL` in the output, for cargo xtask mix-report",
        },
        Opt {
            name: "npb",
            value: Some("PATH"),
            default: "beside this program",
            help: "the program to start",
        },
        npb::SCALE_MB,
        npb::ROUNDS,
        npb::DIVIDE,
        memory::NODE,
        memory::FIRST_NODE,
        memory::HUGE,
    ],
    run,
};

/// Options that `npb` gets as they are.
const HANDED_ON: [&str; 5] = ["scale-mb", "rounds", "divide", "node", "first-node"];

/// What a program is called, and where it runs.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Place {
    kernel: &'static str,
    copy: usize,
    cpu: usize,
}

/// What a program has printed.
#[derive(Clone, Debug, PartialEq)]
struct Outcome {
    seconds: f64,
    mflops: f64,
    checksum: u64,
}

/// Started programs. Those that were not waited for are ended.
#[derive(Default)]
struct Started(Vec<Child>);

impl Drop for Started {
    fn drop(&mut self) {
        for child in &mut self.0 {
            // One that has ended already is none the worse.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn run(args: &Args) -> Result<WorkloadReport, Failure> {
    let programs = args.number("programs", 1..=1024)? as usize;
    let seed = args.number("seed", 0..=u64::MAX)?;
    let cpus = cpus(args)?;
    npb::scale_mb(args)?;
    npb::rounds(args)?;
    memory::FirstNode::from_args(args)?;
    let label = args.text("policy").unwrap_or("");
    if label.chars().any(char::is_control) {
        return Err(usage("--policy: a label has one line".to_owned()));
    }
    let npb = match args.text("npb") {
        Some(path) => given(path)?,
        None => beside_this_program()?,
    };
    let places = assign(programs, &cpus, seed, args.has("even"));
    let words = handed_on(args);
    let started = Instant::now();
    let mut children = Started::default();
    for place in &places {
        let child = start(&npb, place, &words).map_err(|error| {
            Failure::Machine(format!("cannot start {}: {error}", npb.display()))
        })?;
        children.0.push(child);
    }
    let outcomes = wait(children, &places)?;
    let seconds = started.elapsed().as_secs_f64();
    let title = format!("mix: {programs} programs on {} CPUs", cpus.len());
    let mut report = WorkloadReport::new(title);
    if !label.is_empty() {
        report = report.line("policy", label);
    }
    report = report.line("seed", seed);
    Ok(summarise(report, &places, &outcomes).finish(seconds, checksum(&outcomes)))
}

fn cpus(args: &Args) -> Result<Vec<usize>, Failure> {
    let given = args.list("cpus", &(0..=u64::from(u16::MAX)))?;
    if given.is_empty() {
        return allowed_cpus();
    }
    let cpus: Vec<usize> = given.iter().map(|&cpu| cpu as usize).collect();
    for (at, &cpu) in cpus.iter().enumerate() {
        check_cpu("cpus", cpu)?;
        if cpus[..at].contains(&cpu) {
            return Err(usage(format!("--cpus: {cpu} is given twice: give it once")));
        }
    }
    Ok(cpus)
}

fn given(path: &str) -> Result<PathBuf, Failure> {
    match Path::new(path).is_file() {
        true => Ok(PathBuf::from(path)),
        false => Err(usage(format!("--npb {path}: there is no such file"))),
    }
}

fn beside_this_program() -> Result<PathBuf, Failure> {
    let own = std::env::current_exe()
        .map_err(|error| Failure::Machine(format!("cannot tell where this program is: {error}")))?;
    let path = own.with_file_name(npb::PROGRAM.name);
    match path.is_file() {
        true => Ok(path),
        false => Err(usage(format!(
            "there is no {}: build it, or name it by --npb PATH",
            path.display()
        ))),
    }
}

fn handed_on(args: &Args) -> Vec<String> {
    let options = HANDED_ON.iter().filter_map(|name| {
        let value = args.text(name)?;
        Some(format!("--{name}={value}"))
    });
    let huge = args.has("huge").then(|| "--huge".to_owned());
    options.chain(huge).collect()
}

/// Draws a CPU for each program.
fn assign(programs: usize, cpus: &[usize], seed: u64, is_even: bool) -> Vec<Place> {
    let mut random = FastRandom::new(mix(seed));
    let drawn: Vec<usize> = if is_even {
        // Each CPU in turns, in another order each time; then programs draw from these.
        let mut drawn = Vec::new();
        while drawn.len() < programs {
            let mut turn = cpus.to_vec();
            random.shuffle(&mut turn);
            turn.truncate(programs - drawn.len());
            drawn.extend(turn);
        }
        random.shuffle(&mut drawn);
        drawn
    } else {
        let draw = |_| cpus[random.below(cpus.len() as u64) as usize];
        (0..programs).map(draw).collect()
    };
    let place = |(number, cpu): (usize, usize)| Place {
        kernel: TABLE[number % TABLE.len()].name,
        copy: number / TABLE.len(),
        cpu,
    };
    drawn.into_iter().enumerate().map(place).collect()
}

fn start(npb: &Path, place: &Place, words: &[String]) -> Result<Child, Error> {
    let (cpu, parent) = (place.cpu, std::process::id());
    let mut command = Command::new(npb);
    command.arg(place.kernel).args(words);
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let prepare = move || {
        end_with(parent)?;
        pin(cpu)
    };
    // SAFETY: between fork and exec the closure makes system calls alone: it takes no lock and no memory.
    unsafe { command.pre_exec(prepare) };
    command.spawn()
}

/// Waits for all, those too that come after one that failed.
fn wait(mut children: Started, places: &[Place]) -> Result<Vec<Outcome>, Failure> {
    let (mut outcomes, mut failures) = (Vec::new(), Vec::new());
    let mut rest = std::mem::take(&mut children.0).into_iter().zip(places);
    for (child, place) in rest.by_ref() {
        match child
            .wait_with_output()
            .map_err(|error| error.to_string())
            .and_then(|output| outcome(&output))
        {
            Ok(outcome) => outcomes.push(outcome),
            Err(message) => failures.push(format!("{}.{}: {message}", place.kernel, place.copy)),
        }
    }
    match failures.is_empty() {
        true => Ok(outcomes),
        false => Err(Failure::Machine(failures.join("\n"))),
    }
}

/// What a program's report says, or why there is none.
fn outcome(output: &Output) -> Result<Outcome, String> {
    if !output.status.success() {
        let message = String::from_utf8_lossy(&output.stderr);
        let message = message
            .lines()
            .next()
            .unwrap_or("it said nothing")
            .to_owned();
        return Err(format!("{}: {message}", output.status));
    }
    let text = String::from_utf8_lossy(&output.stdout);
    let value = |key: &str| {
        let mut lines = text.lines();
        let value = lines.find_map(|line| line.strip_prefix(key)?.strip_prefix(": "));
        value.ok_or_else(|| format!("its output has no line `{key}`: is it npb?"))
    };
    let number = |key: &str| {
        let value = value(key)?;
        let number = value
            .parse::<f64>()
            .ok()
            .filter(|number| number.is_finite());
        number.ok_or_else(|| format!("its line `{key}` has no number but `{value}`"))
    };
    let checksum = value("checksum")?;
    let bits = checksum
        .strip_prefix("0x")
        .and_then(|digits| u64::from_str_radix(digits, 16).ok());
    Ok(Outcome {
        seconds: number("seconds")?,
        mflops: number("mflops")?,
        checksum: bits.ok_or_else(|| format!("`{checksum}` is no checksum"))?,
    })
}

fn summarise(mut report: WorkloadReport, places: &[Place], outcomes: &[Outcome]) -> WorkloadReport {
    for (place, outcome) in places.iter().zip(outcomes) {
        let Place { kernel, copy, cpu } = place;
        let Outcome {
            seconds,
            mflops,
            checksum,
        } = outcome;
        let line = format!(
            "{kernel}.{copy} cpu {cpu} seconds {seconds:.6} mflops {mflops:.3} checksum {checksum:#018x}"
        );
        report = report.line("program", line);
    }
    for row in TABLE {
        let all = places.iter().zip(outcomes);
        let of_kernel = all.filter(|(place, _)| place.kernel == row.name);
        let of_kernel: Vec<&Outcome> = of_kernel.map(|(_, outcome)| outcome).collect();
        if let (Some(seconds), Some(mflops)) = (
            mean(of_kernel.iter().map(|outcome| outcome.seconds)),
            mean(of_kernel.iter().map(|outcome| outcome.mflops)),
        ) {
            let line = format!(
                "{} mean_seconds {seconds:.6} mean_mflops {mflops:.3}",
                row.name
            );
            report = report.line("kernel", line);
        }
    }
    let seconds = mean(outcomes.iter().map(|outcome| outcome.seconds)).unwrap_or(0.0);
    report.line("mean_seconds", format!("{seconds:.6}"))
}

fn mean(values: impl Iterator<Item = f64>) -> Option<f64> {
    let (count, sum) = values.fold((0, 0.0), |(count, sum), value| (count + 1, sum + value));
    (count > 0).then(|| sum / f64::from(count))
}

/// Of the programs' checksums in order.
fn checksum(outcomes: &[Outcome]) -> u64 {
    outcomes
        .iter()
        .fold(0, |sum, outcome| mix(sum) ^ outcome.checksum)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(places: &[Place], cpu: usize) -> usize {
        places.iter().filter(|place| place.cpu == cpu).count()
    }

    #[test]
    fn a_seed_decides_and_two_copies_are_all_kernels_twice() {
        let cpus = [2, 3, 5, 7];
        let places = assign(16, &cpus, 1, false);
        assert_eq!(places, assign(16, &cpus, 1, false));
        assert_ne!(places, assign(16, &cpus, 2, false));
        for row in TABLE {
            let copies: Vec<usize> = (places.iter())
                .filter(|place| place.kernel == row.name)
                .map(|place| place.copy)
                .collect();
            assert_eq!(copies, [0, 1]);
        }
        assert_eq!(
            cpus.iter().map(|&cpu| load(&places, cpu)).sum::<usize>(),
            16
        );
    }

    #[test]
    fn even_loads_differ_by_one_at_most_and_by_seed() {
        let cpus = [0, 1, 4, 6, 9, 11];
        let mut seen = Vec::new();
        for seed in 0..50 {
            let places = assign(16, &cpus, seed, true);
            assert!(
                cpus.iter().all(|&cpu| matches!(load(&places, cpu), 2 | 3)),
                "{places:?}"
            );
            seen.push(places[0].cpu);
        }
        assert!(cpus.iter().all(|cpu| seen.contains(cpu)), "{seen:?}");
        let random = (0..50).map(|seed| assign(16, &cpus, seed, false));
        let uneven = random.filter(|places| cpus.iter().any(|&cpu| load(places, cpu) > 3));
        assert!(uneven.count() > 25);
    }

    #[test]
    fn means_are_by_kernel_and_over_all() {
        let places = assign(9, &[0], 1, false);
        let outcomes: Vec<Outcome> = (1..10)
            .map(|number| Outcome {
                seconds: f64::from(number),
                mflops: 2.0,
                checksum: 1,
            })
            .collect();
        let text = summarise(WorkloadReport::default(), &places, &outcomes).text();
        for line in [
            "program: is.0 cpu 0 seconds 1.000000 mflops 2.000 checksum 0x0000000000000001",
            "kernel: is mean_seconds 5.000000 mean_mflops 2.000",
            "kernel: lu mean_seconds 8.000000 mean_mflops 2.000",
            "mean_seconds: 5.000000",
        ] {
            assert!(
                text.lines().any(|found| found == line),
                "{line} is not in\n{text}"
            );
        }
    }

    #[test]
    fn what_is_no_report_is_refused() {
        let output = |text: &str| {
            let output = Command::new("printf").arg(text).output().unwrap();
            outcome(&output)
        };
        assert!(output("seconds: 1\nmflops: 2\nchecksum: 0x3\n").is_ok());
        assert!(output("seconds: 1\nchecksum: 0x3\n").is_err());
        assert!(output("seconds: x\nmflops: 2\nchecksum: 0x3\n").is_err());
        let failed = Command::new("false").output().unwrap();
        assert!(outcome(&failed).unwrap_err().contains("it said nothing"));
    }
}
