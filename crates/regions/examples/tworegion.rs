//! One thread that goes from region to region, in place and over two caches: the memory-regions thesis's map of cache
//! unification (section 2.3.1, figure 18), point by point.
//!
//! `tworegion --kb 1024,3072 --visits 256,4096` has two regions of each size, each a random cycle of lines, and
//! makes so many loads in one before it goes to the other. Three ways, each with warm caches:
//! - *confined*: the thread stays on the CPUs of the first cache and does all itself;
//! - *unified*: it hands visits to the second region over to a worker at the second cache;
//! - *auto*: [`Unified`] decides; what it takes until it has decided is told apart.
//!
//! With `--form keys` or `--form mprotect` nothing is handed over: the thread follows its regions by itself, as soon as it touches
//! one ([`Transparent`]); *unified* is always, *auto* as it pays.
//!
//! It prints a line of JSON for the setting and one for each point; `cargo xtask unification-map` draws them.

use hither_core::machine::{Machine, parse};
use hither_core::set::CpuSet;
use hither_linux::sys;
use hither_regions::{Closing, Domain, Form, Region, RegionUse, Transparent, Unified, UnifyState};
use hither_workloads::cli::{self, Args, Failure, Opt, Workload, WorkloadReport, usage};
use hither_workloads::memory::FirstNode;
use hither_workloads::ring::{PointerRing, UNROLL};
use std::process::ExitCode;
use std::time::{Duration, Instant};

const PROGRAM: Workload = Workload {
    name: "tworegion",
    about: "One thread in two regions by turns, confined to one cache, unified over two, and as it pays.",
    operand: None,
    options: &[
        Opt {
            name: "kb",
            value: Some("LIST"),
            default: "512,1024,2048,3072,4096,6144",
            help: "sizes of each region, in KiB",
        },
        Opt {
            name: "visits",
            value: Some("LIST"),
            default: "64,1024,4096,16384,65536",
            help: "loads of a visit, rounded up to a multiple of 16",
        },
        Opt {
            name: "ms",
            value: Some("MS"),
            default: "200",
            help: "measured time of each way at each point",
        },
        Opt {
            name: "cache-kb",
            value: Some("KB"),
            default: "by the lab's machine file, or the kernel",
            help: "size of a cache",
        },
        Opt {
            name: "form",
            value: Some("FORM"),
            default: "explicit",
            help: "how the thread gets to the other cache: explicit, keys or mprotect",
        },
        Opt {
            name: "single-cpus",
            value: None,
            default: "",
            help: "the first two CPUs' own caches stand for two that CPUs share; needs --cache-kb",
        },
    ],
    run,
};

/// Until [`Unified`] has decided; it is told where it has not by then.
const LONGEST_TRIAL: Duration = Duration::from_secs(5);

/// At least so many loads are made between two looks at the clock.
const LOADS_BETWEEN_LOOKS: u64 = 1 << 12;

/// Where and how long.
struct Setting {
    caches: Vec<Domain>,
    /// `None`: by visits that the program hands over.
    form: Option<Form>,
    ms: u64,
}

/// Two regions, and loads of a visit.
struct Walk {
    rings: [PointerRing; 2],
    turns: u64,
}

/// ns of a load in each way, and what was decided.
struct Point {
    confined: f64,
    unified: f64,
    auto: f64,
    settled: Duration,
    state: UnifyState,
}

impl Walk {
    /// A visit to each region.
    fn round(&mut self, visit: impl Fn(usize, &mut (dyn FnMut() + Send))) {
        let turns = self.turns;
        for (region, ring) in self.rings.iter_mut().enumerate() {
            visit(region, &mut || ring.walk(turns));
        }
    }

    /// Rounds in which each line is loaded once, and a quarter of them again.
    fn rounds_of_a_pass(&self) -> u64 {
        let turns = self.rings[0].lines() * 5 / 4 / UNROLL;
        turns.div_ceil(self.turns).max(1)
    }

    /// ns of a load over this time, with warm caches.
    fn measure(&mut self, ms: u64, visit: impl Fn(usize, &mut (dyn FnMut() + Send))) -> f64 {
        for _ in 0..self.rounds_of_a_pass() {
            self.round(&visit);
        }
        let limit = Duration::from_millis(ms);
        // The clock takes the lab's guest as long as some loads from memory.
        let between = (LOADS_BETWEEN_LOOKS / (2 * self.turns * UNROLL)).max(1);
        let (start, mut rounds, mut took) = (Instant::now(), 0, Duration::ZERO);
        while took < limit {
            (0..between).for_each(|_| self.round(&visit));
            rounds += between;
            took = start.elapsed();
        }
        let loads = rounds * 2 * self.turns * UNROLL;
        took.as_nanos() as f64 / loads as f64
    }
}

fn run(args: &Args) -> Result<WorkloadReport, Failure> {
    let kbs = sizes(args, "kb", 4..=1 << 24)?;
    let visits = sizes(args, "visits", 1..=1 << 30)?;
    let setting = setting(args)?;
    let failed = |error: hither_regions::Error| Failure::Machine(error.to_string());
    let own = &setting.caches[0];
    sys::stay_on(own.cpus())
        .map_err(|error| Failure::Machine(format!("cannot stay on {own}: {error}")))?;
    cli::tell(&describe(&setting).map_err(failed)?);
    let started = Instant::now();
    for &kb in &kbs {
        let ring = |seed| PointerRing::new((kb << 10) as usize, FirstNode::default(), seed);
        let mut walk = Walk {
            rings: [ring(1)?, ring(2)?],
            turns: 1,
        };
        for &visit in &visits {
            walk.turns = visit.div_ceil(UNROLL);
            let point = match setting.form {
                None => measure(&setting, kb << 10, &mut walk),
                Some(form) => follow(&setting, form, &mut walk),
            };
            let point = point.map_err(failed)?;
            cli::tell(&line(kb, walk.turns * UNROLL, &point));
        }
    }
    let title = format!("tworegion: {} points", kbs.len() * visits.len());
    let seconds = started.elapsed().as_secs_f64();
    Ok(WorkloadReport::new(title).line("seconds", format!("{seconds:.3}")))
}

fn sizes(
    args: &Args,
    name: &'static str,
    range: std::ops::RangeInclusive<u64>,
) -> Result<Vec<u64>, Failure> {
    let given = args.list(name, &range)?;
    if !given.is_empty() {
        return Ok(given);
    }
    let opt = PROGRAM.options.iter().find(|opt| opt.name == name);
    let default = opt.map_or("", |opt| opt.default).split(',');
    Ok(default.filter_map(|part| part.parse().ok()).collect())
}

fn setting(args: &Args) -> Result<Setting, Failure> {
    let failed = |error: hither_regions::Error| Failure::Machine(error.to_string());
    let bytes = args.optional("cache-kb", 1..=1 << 24)?.map(|kb| kb << 10);
    let mut caches = if args.has("single-cpus") {
        if bytes.is_none() {
            return Err(usage("--single-cpus needs --cache-kb".to_owned()));
        }
        let cpus = sys::allowed_cpus().map_err(|error| Failure::Machine(error.to_string()))?;
        let domains = cpus.iter().map(|cpu| Domain::of_cpus([cpu]));
        domains.collect::<Result<Vec<_>, _>>().map_err(failed)?
    } else {
        Domain::caches().map_err(failed)?
    };
    caches.truncate(2);
    if caches.len() < 2 {
        return Err(usage(
            "there is one cache that CPUs share: try --single-cpus --cache-kb 2048".to_owned(),
        ));
    }
    // The lab's guest shows another size: the emulated processor's.
    let told = lab_machine().and_then(|machine| Some(machine.domains.first()?.cache.size_kb << 10));
    if let Some(bytes) = bytes.or(told) {
        let with_bytes = caches
            .into_iter()
            .map(|cache| cache.with_cache_bytes(bytes));
        caches = with_bytes.collect();
    }
    let form = match args.text("form") {
        None | Some("explicit") => None,
        Some("keys") => Some(Form::Keys),
        Some("mprotect") => Some(Form::Protection),
        Some(other) => {
            let text = format!("--form {other}: it is explicit, keys or mprotect");
            return Err(usage(text));
        }
    };
    Ok(Setting {
        caches,
        form,
        ms: args.number("ms", 1..=1 << 20)?,
    })
}

/// The machine that the lab emulates, where this is its guest.
fn lab_machine() -> Option<Machine> {
    let file = std::env::var_os("HITHER_MACHINE")?;
    parse::parse(&std::fs::read_to_string(file).ok()?).ok()
}

/// The setting as a line, with what hand-overs of nothing cost.
fn describe(setting: &Setting) -> Result<String, hither_regions::Error> {
    let (form, awake, asleep) = match setting.form {
        None => {
            let [awake, asleep] = hand_overs(setting)?;
            ("explicit", awake, asleep)
        }
        Some(form) => {
            let moves = begin(setting, form)?.moves();
            let cost = moves.fault_ns + moves.move_ns;
            let word = if form == Form::Keys {
                "keys"
            } else {
                "mprotect"
            };
            (word, cost, cost)
        }
    };
    let machine = lab_machine().map_or("this machine".to_owned(), |machine| machine.name);
    let kb = setting.caches[0]
        .cache_bytes()
        .map_or(0, |bytes| bytes >> 10);
    Ok(format!(
        "{{\"tworegion\":\"setting\",\"machine\":\"{machine}\",\"form\":\"{form}\",\"caches\":{},\"cache_kb\":{kb},\"ms\":{},\
         \"awake_ns\":{awake},\"asleep_ns\":{asleep}}}\n",
        setting.caches.len(),
        setting.ms
    ))
}

/// What hand-overs of nothing cost, in ns: to a worker that is awake, and to one that sleeps.
fn hand_overs(setting: &Setting) -> Result<[u64; 2], hither_regions::Error> {
    let region = Region::new(setting.caches[1].clone())?;
    let cost = |pause: Duration| {
        let mut took: Vec<u64> = (0..101)
            .map(|_| {
                let from = Instant::now();
                while from.elapsed() < pause {
                    std::hint::spin_loop();
                }
                let start = Instant::now();
                region.run(|| ());
                start.elapsed().as_nanos() as u64
            })
            .collect();
        took.sort_unstable();
        took[50]
    };
    Ok([cost(Duration::ZERO), cost(Duration::from_micros(200))])
}

fn measure(setting: &Setting, bytes: u64, walk: &mut Walk) -> Result<Point, hither_regions::Error> {
    let unified = Unified::new(setting.caches.clone(), &[bytes; 2])?;
    let in_place = |_: usize, work: &mut (dyn FnMut() + Send)| work();
    let visit = |region: usize, work: &mut (dyn FnMut() + Send)| unified.run(region, work);
    let confined = walk.measure(setting.ms, in_place);
    unified.set_use(RegionUse::Always);
    let by_visits = walk.measure(setting.ms, visit);
    unified.set_use(RegionUse::Auto);
    let start = Instant::now();
    while !unified.state().is_settled && start.elapsed() < LONGEST_TRIAL {
        walk.round(visit);
    }
    let (settled, state) = (start.elapsed(), unified.state());
    Ok(Point {
        confined,
        unified: by_visits,
        auto: walk.measure(setting.ms, visit),
        settled,
        state,
    })
}

/// The thread may use both caches from here on.
fn begin(setting: &Setting, form: Form) -> Result<Transparent, hither_regions::Error> {
    let all = setting.caches.iter();
    let all = all.fold(CpuSet::new(), |all, cache| all.union(cache.cpus()));
    // It was on part of them, so that it may use these.
    let _ = sys::stay_on(&all);
    Transparent::begin(setting.caches.clone(), Closing::By(form))
}

/// As [`measure`], by touches.
fn follow(setting: &Setting, form: Form, walk: &mut Walk) -> Result<Point, hither_regions::Error> {
    let in_place = |_: usize, work: &mut (dyn FnMut() + Send)| work();
    let _ = sys::stay_on(setting.caches[0].cpus());
    let confined = walk.measure(setting.ms, in_place);
    let regions = begin(setting, form)?;
    for (index, ring) in walk.rings.iter().enumerate() {
        let words = ring.memory().words();
        // The mapping is of whole pages.
        let bytes = size_of_val(words).next_multiple_of(4096);
        let start = words.as_ptr().cast_mut().cast();
        // SAFETY: rings outlive `regions`, and no system call gets their memory.
        unsafe { regions.register(index, start, bytes)? };
    }
    regions.set_use(RegionUse::Always)?;
    let unified = walk.measure(setting.ms, in_place);
    regions.set_use(RegionUse::Auto)?;
    let start = Instant::now();
    while !regions.state()?.is_settled && start.elapsed() < LONGEST_TRIAL {
        walk.round(in_place);
    }
    let (settled, state) = (start.elapsed(), regions.state()?);
    Ok(Point {
        confined,
        unified,
        auto: walk.measure(setting.ms, in_place),
        settled,
        state,
    })
}

fn line(kb: u64, visit: u64, point: &Point) -> String {
    let Point {
        confined,
        unified,
        auto,
        settled,
        state,
    } = point;
    let known = |value: Option<f64>| value.map_or("null".to_owned(), |value| format!("{value:.0}"));
    format!(
        "{{\"tworegion\":\"point\",\"kb\":{kb},\"visit\":{visit},\"confined_ns\":{confined:.2},\
         \"unified_ns\":{unified:.2},\"auto_ns\":{auto:.2},\"is_on\":{},\"reason\":\"{}\",\"why\":\"{}\",\
         \"visit_ns\":{},\"cost_ns\":{},\"settled_ms\":{:.1}}}\n",
        state.is_on,
        state.reason.word(),
        state.reason,
        known(state.visit_ns),
        known(state.cost_ns),
        settled.as_secs_f64() * 1e3
    )
}

fn main() -> ExitCode {
    cli::main(&PROGRAM)
}
