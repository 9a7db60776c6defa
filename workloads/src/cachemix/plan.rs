//! Which programs there are, and where each starts.

use super::child::{Job, Service, Task};
use crate::cli::{Args, Failure, SEED, usage};
use crate::random::{FastRandom, mix};
use crate::ring::{UNROLL, Work};
use crate::team::check_cpu;
use hither_core::size::parse_bytes;

/// Working sets where none are given: the thesis's on Clovertown.
pub const SETS: &str = "4M,4M,16K,16K";
/// For a server alone.
pub const NO_SETS: &str = "none";
/// The smallest one that is drawn.
pub const LEAST: &str = "16K";
/// The largest one that is drawn.
pub const MOST: &str = "8M";

/// Bytes that a working set may have. The least is a turn of the walk.
const BYTES: std::ops::RangeInclusive<u64> = 1 << 10..=1 << 40;
/// A drawn one is so many bytes or a multiple.
const PAGE: u64 = 4096;

/// What the command line asks for.
pub struct Plan {
    /// The programs in order, the server last.
    pub tasks: Vec<Task>,
    /// How long they run.
    pub seconds: u64,
    /// What drew the working sets.
    pub seed: Option<u64>,
}

/// Reads the command line. `allowed` are the CPUs that this process may use.
pub fn from_args(args: &Args, allowed: &[usize]) -> Result<Plan, Failure> {
    let seconds = args.number("seconds", 1..=1 << 16)?;
    let seed = args.number(SEED.name, 0..=u64::MAX)?;
    let work = Work {
        // A round has two instructions.
        rounds: args.number("compute", 0..=1 << 20)?.div_ceil(2),
        divisions: args.number("divisions", 0..=1 << 20)?,
    };
    let programs = args.optional("programs", 1..=1024)?;
    let mut random = FastRandom::new(mix(seed));
    let sets = match programs {
        Some(_) if args.has("ws") => {
            return Err(usage(
                "--ws and --programs exclude each other: give one".to_owned(),
            ));
        }
        Some(count) => {
            let least = size("least", args.text("least").unwrap_or(LEAST))?;
            let most = size("most", args.text("most").unwrap_or(MOST))?;
            if least > most {
                return Err(usage("--least is more than --most".to_owned()));
            }
            let drawn = (0..count).map(|_| draw(least, most, &mut random));
            drawn.collect()
        }
        None => {
            let text = args.text("ws").unwrap_or(SETS);
            let parts = text.split(',').filter(|_| text != NO_SETS);
            let sets = parts.map(|part| size("ws", part));
            sets.collect::<Result<Vec<u64>, _>>()?
        }
    };
    let mut cpus = start_cpus(args)?;
    if cpus.is_empty() {
        cpus = allowed.to_vec();
        if programs.is_some() {
            random.shuffle(&mut cpus);
        }
    }
    let service = service(args)?;
    let task = |(index, (bytes, job)): (usize, (u64, Job))| Task {
        name: match &job {
            Job::Walk(_) => format!("cachemix-{index}"),
            Job::Serve(_) => "cachemix-server".to_owned(),
        },
        bytes: bytes as usize,
        cpu: cpus[index % cpus.len()],
        home: allowed.to_vec(),
        seed: index as u64,
        seconds,
        job,
    };
    let walkers = sets.into_iter().map(|bytes| (bytes, Job::Walk(work)));
    let server = service.map(|(bytes, service)| (bytes, Job::Serve(service)));
    let tasks = walkers.chain(server).enumerate().map(task);
    Ok(Plan {
        tasks: tasks.collect(),
        seconds,
        seed: programs.map(|_| seed),
    })
}

fn size(option: &str, text: &str) -> Result<u64, Failure> {
    let fault = |what: &str| usage(format!("--{option}: `{text}`: {what}"));
    let bytes = parse_bytes(text).map_err(|remedy| fault(&remedy))?;
    if !BYTES.contains(&bytes) {
        return Err(fault("a working set has 1K to 1T"));
    }
    Ok(bytes)
}

/// A size between these whose logarithm may be anywhere between theirs.
fn draw(least: u64, most: u64, random: &mut FastRandom) -> u64 {
    let share = random.next_u64() as f64 / u64::MAX as f64;
    let bytes = least as f64 * (most as f64 / least as f64).powf(share);
    let pages = (bytes / PAGE as f64).round().max(1.0) as u64;
    (pages * PAGE).clamp(least, most)
}

fn start_cpus(args: &Args) -> Result<Vec<usize>, Failure> {
    let given = args.list("start-cpus", &(0..=u64::from(u16::MAX)))?;
    for &cpu in &given {
        check_cpu("start-cpus", cpu as usize)?;
    }
    Ok(given.into_iter().map(|cpu| cpu as usize).collect())
}

fn service(args: &Args) -> Result<Option<(u64, Service)>, Failure> {
    let kb = args.number("server-kb", 0..=1 << 30)?;
    let loads = args.number("request-loads", 1..=1 << 30)?;
    let every_us = args.number("every-us", 1..=1 << 30)?;
    let service = Service {
        turns: loads.div_ceil(UNROLL),
        every_ns: every_us * 1000,
    };
    Ok((kb > 0).then_some((kb << 10, service)))
}

#[cfg(test)]
mod tests {
    use super::super::PROGRAM;
    use super::*;

    fn plan(words: &[&str]) -> Result<Plan, Failure> {
        let words: Vec<String> = words.iter().map(|&word| word.to_owned()).collect();
        let args = PROGRAM.parse(&words)?.unwrap();
        from_args(&args, &[4, 5, 6, 7])
    }

    fn bytes(plan: &Plan) -> Vec<usize> {
        plan.tasks.iter().map(|task| task.bytes).collect()
    }

    fn cpus(plan: &Plan) -> Vec<usize> {
        plan.tasks.iter().map(|task| task.cpu).collect()
    }

    #[test]
    fn given_sets_start_in_turns_and_the_server_last() {
        let thesis = plan(&[]).unwrap();
        assert_eq!(bytes(&thesis), [4 << 20, 4 << 20, 16 << 10, 16 << 10]);
        assert_eq!(cpus(&thesis), [4, 5, 6, 7]);
        let words = ["--ws=1M,2M,4K,4K", "--server-kb", "64", "--compute", "5"];
        let served = plan(&words).unwrap();
        let names: Vec<&str> = served.tasks.iter().map(|task| task.name.as_str()).collect();
        assert_eq!(names[..2], ["cachemix-0", "cachemix-1"]);
        assert_eq!(names[4], "cachemix-server");
        // The kernel keeps 15 letters of a name.
        assert!(names.iter().all(|name| name.len() <= 15));
        assert_eq!((bytes(&served)[4], cpus(&served)[4]), (64 << 10, 4));
        let work = Work {
            rounds: 3,
            divisions: 0,
        };
        assert_eq!(served.tasks[0].job, Job::Walk(work));
        let service = Service {
            turns: 125,
            every_ns: 1_000_000,
        };
        assert_eq!(served.tasks[4].job, Job::Serve(service));
    }

    #[test]
    fn a_seed_draws_sets_over_the_whole_range_and_shuffles_cpus() {
        let words = |seed: &'static str| ["--programs", "400", "--seed", seed];
        let (one, again, other) = (
            plan(&words("1")).unwrap(),
            plan(&words("1")).unwrap(),
            plan(&words("2")).unwrap(),
        );
        assert_eq!((bytes(&one), cpus(&one)), (bytes(&again), cpus(&again)));
        assert_ne!(bytes(&one), bytes(&other));
        assert_eq!(one.seed, Some(1));
        // Each of nine doublings from 16K to 8M has its share.
        for power in 14..23 {
            let within = |&bytes: &usize| bytes.ilog2() == power;
            let count = bytes(&one).into_iter().filter(within).count();
            assert!((20..80).contains(&count), "{power}: {count}");
        }
        let shuffled = (0..20).map(|seed: u64| {
            let seed = seed.to_string();
            cpus(&plan(&["--programs", "4", "--seed", &seed]).unwrap())
        });
        assert!(shuffled.clone().any(|cpus| cpus != [4, 5, 6, 7]));
        for mut cpus in shuffled {
            cpus.sort_unstable();
            assert_eq!(cpus, [4, 5, 6, 7]);
        }
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        for (words, part) in [
            (&["--ws", "4M,x"][..], "`x`"),
            (&["--ws", "64"], "1K to 1T"),
            (&["--ws", "1M", "--programs", "2"], "exclude each other"),
            (
                &["--programs", "2", "--least", "2M", "--most", "1M"],
                "--least is more",
            ),
            (&["--start-cpus", "60000"], "it may use"),
        ] {
            match plan(words) {
                Err(Failure::Usage(message)) => assert!(message.contains(part), "{message}"),
                Err(other) => panic!("{words:?}: {other:?}"),
                Ok(_) => panic!("{words:?} is taken"),
            }
        }
    }
}
