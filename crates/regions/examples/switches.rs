//! What it costs to go to another domain: by protection keys, by page protection with few and many pages, and by an explicit
//! visit, beside the memory-regions thesis's micro-scheduling.
//!
//! One thread touches a word of two regions in turns, each of a domain with one CPU; a switch is one way. *Stays* rows have both
//! domains on one CPU, so that nobody moves: what is left is the fault. Times are of single switches, less what the clock takes.
//! Instructions are counted in the lab, where its device counts them on all CPUs, the kernel's included.

use hither_core::ids::CpuId;
use hither_core::opium::vcpu;
use hither_linux::Root;
use hither_linux::opium::{OpiumDevice, VcpuCounters};
use hither_linux::sys::{self, fault};
use hither_regions::{Closing, Config, Domain, Error, Form, Region, RegionUse, Transparent};
use hither_workloads::cli::{self, Args, Failure, Opt, Workload, WorkloadReport, usage};
use hither_workloads::memory::{Placement, RegionMemory as Memory};
use std::process::ExitCode;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

const PROGRAM: Workload = Workload {
    name: "switches",
    about: "What it costs to go from one domain to another, transparently and by visits.",
    operand: None,
    options: &[
        Opt {
            name: "count",
            value: Some("N"),
            default: "2000",
            help: "switches of each row",
        },
        Opt {
            name: "pages",
            value: Some("LIST"),
            default: "1,1000,10000",
            help: "mapped pages of each region",
        },
    ],
    run,
};

/// One micro-scheduling action (thesis, section 2.5.1), in ns.
const THESIS: [(&str, f64); 2] = [("Clovertown", 15_860.0), ("Westmere", 6_357.0)];
const PAGE_WORDS: usize = 4096 / 8;

struct Bench {
    count: usize,
    cpus: [CpuId; 2],
    device: Option<OpiumDevice>,
}

/// A switch, in ns and instructions.
struct Row {
    tenth: f64,
    half: f64,
    mean: f64,
    instructions: Option<f64>,
}

impl Bench {
    fn instructions(&self) -> Option<u64> {
        let device = self.device.as_ref()?;
        let mut counters = VcpuCounters::default();
        let all = (0..device.vcpu_count()).map(|index| {
            device.read_vcpu(index, &mut counters);
            counters.at(vcpu::INSTRUCTIONS_USER) + counters.at(vcpu::INSTRUCTIONS_KERNEL)
        });
        Some(all.sum())
    }

    /// `run` makes `ways` switches.
    fn row(&self, ways: f64, mut run: impl FnMut(usize)) -> Row {
        let clock = (0..1000).map(|_| {
            let start = Instant::now();
            start.elapsed()
        });
        let clock = clock.min().unwrap_or_default().as_nanos() as f64;
        (0..20).for_each(&mut run);
        let mut times: Vec<f64> = (0..self.count)
            .map(|turn| {
                let start = Instant::now();
                run(turn);
                (start.elapsed().as_nanos() as f64 - clock).max(0.0) / ways
            })
            .collect();
        // Apart from the clock's own.
        let before = self.instructions();
        (0..self.count).for_each(&mut run);
        let after = self.instructions();
        let counted = before.zip(after).map(|(before, after)| after - before);
        times.sort_by(f64::total_cmp);
        Row {
            tenth: times[self.count / 10],
            half: times[self.count / 2],
            mean: times.iter().sum::<f64>() / self.count as f64,
            instructions: counted.map(|counted| counted as f64 / (self.count as f64 * ways)),
        }
    }

    fn transparent(&self, form: Form, cpus: [CpuId; 2], pages: usize) -> Result<Row, Failure> {
        let failed = |error: Error| Failure::Machine(error.to_string());
        let domain = |cpu| Domain::of_cpus([cpu]).map(|domain| domain.with_cache_bytes(1 << 20));
        let domains = cpus.map(domain).into_iter().collect::<Result<Vec<_>, _>>();
        let made = Transparent::begin(domains.map_err(failed)?, Closing::By(form));
        let made = made.map_err(failed)?;
        made.set_use(RegionUse::Always).map_err(failed)?;
        let memories = [0, 1].map(|_| Memory::new(pages * 4096, Placement::default()));
        let memories = memories.into_iter().collect::<Result<Vec<_>, _>>()?;
        let mut regions = Vec::new();
        for (index, memory) in memories.iter().enumerate() {
            for page in 0..pages {
                memory.words()[page * PAGE_WORDS].store(1, Relaxed);
            }
            let start = memory.words().as_ptr().cast_mut().cast();
            // SAFETY: mapped until `made` is gone; no system call gets it.
            let region = unsafe { made.register(index, start, pages * 4096) };
            regions.push(region.map_err(failed)?);
        }
        let row = self.row(1.0, |turn| {
            memories[turn % 2].words()[0].fetch_add(1, Relaxed);
        });
        let sum: u64 = memories
            .iter()
            .map(|memory| memory.words()[0].load(Relaxed))
            .sum();
        assert_eq!(
            sum as usize,
            2 + 20 + 2 * self.count,
            "an addition was lost"
        );
        let entries: u64 = regions.iter().map(|region| made.entries(region)).sum();
        assert!(entries as usize >= 2 * self.count, "{entries} entries");
        drop(made);
        Ok(row)
    }

    fn visit(&self) -> Result<Row, Error> {
        let patient = Config {
            spin: Duration::from_millis(2),
            ..Config::default()
        };
        let region = Region::with(Domain::of_cpus([self.cpus[1]])?, &patient)?;
        let mut sum = 0;
        Ok(self.row(2.0, |_| region.run(|| sum += 1)))
    }

    fn affinity(&self) -> Row {
        let mut masks = [[0; fault::MASK_WORDS]; 2];
        for (mask, cpu) in masks.iter_mut().zip(self.cpus) {
            mask[cpu.0 as usize / 64] |= 1 << (cpu.0 % 64);
        }
        self.row(1.0, |turn| {
            fault::set_affinity(0, &masks[turn % 2]).expect("a CPU that it may use");
        })
    }
}

fn run(args: &Args) -> Result<WorkloadReport, Failure> {
    let cpus = sys::allowed_cpus().map_err(|error| Failure::Machine(error.to_string()))?;
    let [first, second] = cpus.iter().take(2).collect::<Vec<_>>()[..] else {
        return Err(usage("there is one CPU: nothing to go to".to_owned()));
    };
    let bench = Bench {
        count: args.number("count", 100..=1 << 24)? as usize,
        cpus: [first, second],
        device: OpiumDevice::open(&Root::host()).ok(),
    };
    let given = args.list("pages", &(1..=1 << 20))?;
    let pages = if given.is_empty() {
        vec![1, 1000, 10_000]
    } else {
        given
    };
    cli::tell(&format!(
        "{:<44}{:>9}{:>9}{:>9}{:>14}\n",
        "ns, one way", "a tenth", "half", "mean", "instructions"
    ));
    let tell = |name: &str, row: &Row| {
        let counted = row.instructions;
        let counted = counted.map_or("not measured".to_owned(), |count| format!("{count:.0}"));
        cli::tell(&format!(
            "{name:<44}{:>9.0}{:>9.0}{:>9.0}{counted:>14}\n",
            row.tenth, row.half, row.mean
        ));
    };
    let there = |stays: bool| if stays { [first; 2] } else { bench.cpus };
    for (form, word) in [(Form::Keys, "keys"), (Form::Protection, "mprotect")] {
        if let Err(Failure::Machine(text)) = bench.transparent(form, bench.cpus, 1) {
            cli::tell(&format!("{word}: {text}\n"));
            continue;
        }
        for &count in &pages {
            for stays in [true, false] {
                let name = format!(
                    "{word}, {count} pages, {}",
                    if stays { "stays" } else { "moves" }
                );
                let row = bench.transparent(form, there(stays), count as usize)?;
                tell(&name, &row);
            }
        }
    }
    tell("sched_setaffinity alone", &bench.affinity());
    // Its caller stays.
    sys::stay_on(&[first].into_iter().collect())
        .map_err(|error| Failure::Machine(error.to_string()))?;
    let visit = bench
        .visit()
        .map_err(|error| Failure::Machine(error.to_string()))?;
    tell("explicit visit, both awake", &visit);
    for (machine, ns) in THESIS {
        cli::tell(&format!(
            "{:<44}{:>9}{ns:>9.0}\n",
            format!("thesis, {machine}"),
            ""
        ));
    }
    Ok(WorkloadReport::new("switches".to_owned()))
}

fn main() -> ExitCode {
    cli::main(&PROGRAM)
}
