//! Watches a program whose use of memory is known through a tracker, and says how well its hot pages
//! were found, by the exact counts of the lab's device, and what that cost.
//!
//!     hot_pages watch [NAME=VALUE...]   watch the load; needs root and the lab
//!     hot_pages load [NAME=VALUE...]    the load alone; see `load`
//!     hot_pages dump                    DAMON's settings
//!
//! The load: `mb=256` size of the mapping, `pattern=area`, moving, two-phase, zipf or stride,
//! `hot=25` MB of the hot area, `top=1,10` per cent of the pages that count as hot by Zipf's law,
//! `touch=1` whether each page is written once first, `threads=1`, `rest=0` ms of sleep of a thread
//! after 20,000 updates (the lab is quicker, and memory less busy), `flush=1` whether each thread
//! flushes its TLB then (the emulator's is too large).
//!
//! The watch: `tracker=damon` or `opium`, `setting=adaptive` or `thesis`, `before=3` seconds of another
//! phase before the first, `phases=1`, `at=1,5` seconds into each when it is judged, `until=101` per cent of
//! precision and recall at which a phase is over, as more is not asked for, `budget=1` per cent
//! of the machine's CPU time, `physical=1` DAMON by physical addresses, `observe=100` ms between two
//! looks at the tracker, `regions=1` prints the regions, `quiet=1` the last lines only.

mod cpu;
mod judge;
mod load;
mod options;
mod scratch;

use cpu::OwnCpu;
use hither_core::observation::Observations;
use hither_core::plan::Sampling;
use hither_linux::proc::tree::Tree;
use hither_linux::root::Root;
use hither_linux::sys;
use hither_linux::topology::Topology;
use hither_linux::tracker::Tracker;
use hither_linux::tracker::damon::{Addresses, DamonTracker, Pace, Setting};
use hither_linux::tracker::opium::{FrameCounts, OpiumTracker};
use hither_linux::watch::empty_snapshot;
use judge::{Aggregations, Exact, Judgement, ideal, judge};
use load::{Load, Pattern, load};
use options::Options;
use std::process::ExitCode;
use std::time::Duration;

const MB: u64 = 1 << 20;
const PAGE: u64 = 4096;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let result = match words.split_first() {
        Some((mode, rest)) if mode == "load" => Options::parse(rest).and_then(|o| load(&o)),
        Some((mode, rest)) if mode == "watch" => Options::parse(rest).and_then(|o| watch(&o, rest)),
        Some((mode, [])) if mode == "dump" => dump("/sys/kernel/mm/damon/admin".as_ref()),
        _ => Err("usage: hot_pages watch|load|dump [NAME=VALUE...]".to_owned()),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("hot_pages: {why}");
            ExitCode::from(2)
        }
    }
}

fn text(error: hither_linux::Error) -> String {
    error.to_string()
}

/// The tracker that watches.
#[expect(clippy::large_enum_variant, reason = "there is one for a whole run")]
enum Watching {
    Damon(DamonTracker),
    Opium(OpiumTracker),
}

impl Watching {
    fn open(options: &Options, root: &Root, topology: &Topology) -> Result<Self, String> {
        let budget = options.number("budget", 1.0)? / 100.0;
        let setting = match options.word("setting", "adaptive") {
            "adaptive" => Setting::ADAPTIVE,
            "thesis" => Setting::THESIS,
            other => return Err(format!("setting: `{other}` is neither adaptive nor thesis")),
        };
        let addresses = match options.number("physical", 0.0)? != 0.0 {
            true => Addresses::Physical,
            false => Addresses::Virtual,
        };
        Ok(match options.word("tracker", "damon") {
            "damon" => {
                let opened = DamonTracker::open(root, addresses, setting, budget);
                let mut tracker = opened.map_err(text)?;
                tracker.keep_observations(true);
                Self::Damon(tracker)
            }
            "opium" => {
                let mut tracker = OpiumTracker::open(root, topology, None).map_err(text)?;
                tracker.set_budget(budget * topology.online.iter().count() as f64);
                tracker.count_frames();
                tracker.set_sampling(Sampling::Full);
                Self::Opium(tracker)
            }
            other => return Err(format!("tracker: `{other}` is neither damon nor opium")),
        })
    }

    fn tracker(&mut self) -> &mut dyn Tracker {
        match self {
            Self::Damon(tracker) => tracker,
            Self::Opium(tracker) => tracker,
        }
    }

    fn counts(&self) -> Option<&FrameCounts> {
        match self {
            Self::Damon(_) => None,
            Self::Opium(tracker) => tracker.frame_counts(),
        }
    }

    fn pace(&self) -> Option<Pace> {
        match self {
            Self::Damon(tracker) => Some(tracker.pace()),
            Self::Opium(_) => None,
        }
    }
}

/// One look at what was found.
struct Look {
    /// When into its phase it was to be judged, in seconds.
    at_s: f64,
    counts: Vec<u64>,
    scores: Vec<f64>,
    /// Samples that the scores are of.
    samples: Option<u64>,
}

/// What all phases together came to.
#[derive(Default)]
struct Sum {
    looks: Vec<Look>,
    samples: u64,
    own_ns: u64,
    observed_ns: u64,
}

fn watch(options: &Options, words: &[String]) -> Result<(), String> {
    let quiet = options.number("quiet", 0.0)? != 0.0;
    let at = options.numbers("at", &[1.0, 5.0])?;
    let before_s = options.number("before", 3.0)?;
    let until = options.number("until", 101.0)?;
    let step = Duration::from_secs_f64(options.number("observe", 100.0)?.max(1.0) / 1e3);
    let hot = Pattern::of(options)?.hot_pages(options)?;
    let print_regions = options.number("regions", 0.0)? != 0.0;
    let root = Root::host();
    let topology = Topology::read(&root).map_err(text)?;
    let mut watching = Watching::open(options, &root, &topology)?;
    let mut load = Load::start(words)?;
    let mut tree = Tree::new(root.clone(), std::process::id() as i32);
    let mut snapshot = empty_snapshot(&topology);
    let mut seen = Observations::default();
    let mut told = Aggregations::new(load.pid());
    let mut sum = Sum::default();
    let mut own = OwnCpu::new()?;
    let mut pace = None;
    let phases = options.number("phases", 1.0)? as usize;
    let begun_ns = sys::monotonic_ns();
    for phase in usize::from(before_s <= 0.0)..=phases {
        let mapping = load.pause()?;
        let exact = Exact::begin(&root, load.pid(), &mapping)?;
        let since_ns = sys::monotonic_ns();
        load.go_on()?;
        if !quiet {
            println!("phase {phase}: {:#x}-{:#x}", mapping.start, mapping.end);
        }
        let at = if phase == 0 { &[before_s] } else { &at[..] };
        let mut ahead = at.iter().peekable();
        while let Some(&&at_s) = ahead.peek() {
            std::thread::sleep(step);
            let now_ns = sys::monotonic_ns();
            let into_s = now_ns.saturating_sub(since_ns) as f64 / 1e9;
            let is_time = into_s >= at_s;
            own.take();
            tree.refresh(now_ns / 1000).map_err(text)?;
            let tracker = watching.tracker();
            tracker.observe(&mut tree, &mut snapshot).map_err(text)?;
            tracker.take_observations(&mut seen);
            sum.samples += snapshot.sample_count.value().copied().unwrap_or(0);
            let is_new = told.take(&mut seen);
            // Whose the frames are is a part of what a list of hot pages costs.
            let counted = match watching.counts().filter(|_| is_time) {
                Some(counts) => {
                    let frames = judge::frames(&root, load.pid(), &mapping)?;
                    let count = |frame: &Option<u64>| frame.map_or(0, |f| counts.of(f));
                    Some(
                        frames
                            .iter()
                            .map(|f| f64::from(count(f)))
                            .collect::<Vec<f64>>(),
                    )
                }
                None => None,
            };
            sum.own_ns += own.take();
            let notes = watching.tracker().take_notes();
            if !quiet {
                notes.iter().for_each(|note| println!("note: {note}"));
                if pace != watching.pace() {
                    pace = watching.pace();
                    println!("{into_s:6.2} s: {pace:?}");
                }
            }
            if print_regions && is_new {
                print_regions_of(&told);
            }
            if !is_time && (quiet || !is_new) {
                continue;
            }
            let samples = counted
                .as_ref()
                .map(|scores| scores.iter().sum::<f64>() as u64);
            let scores = counted.unwrap_or_else(|| told.scores(&mapping, &exact.frames));
            let look = Look {
                at_s,
                counts: exact.counts(),
                scores,
                samples,
            };
            if !quiet {
                print_look(
                    &look,
                    &hot,
                    into_s,
                    watching.counts().map_or(0, FrameCounts::changes),
                );
            }
            let is_enough = hot.iter().all(|&hot| {
                judge(&look.counts, &look.scores, hot)
                    .is_some_and(|judged| judged.precision.min(judged.recall) >= until)
            });
            if is_time || is_enough {
                ahead.next();
                sum.looks.extend((phase > 0).then_some(look));
            }
            if is_enough {
                break;
            }
        }
    }
    sum.observed_ns = sys::monotonic_ns().saturating_sub(begun_ns);
    finish(options, &mut watching, &sum, &hot)
}

fn print_regions_of(told: &Aggregations) {
    for region in &told.regions {
        let (start, end) = (region.addresses.start, region.addresses.end);
        let (count, age) = (region.access_count, region.age_count.unwrap_or(0));
        let kib = (end - start) >> 10;
        println!("  {start:#x} {kib:9} KiB {count:3} age {age}");
    }
}

fn print_look(look: &Look, hot: &[usize], into_s: f64, changes: u64) {
    let scored = look.scores.iter().filter(|&&score| score > 0.0).count();
    for &hot in hot {
        let what = format!("{into_s:6.2} s: {scored} pages scored, the {hot} hottest");
        match judge(&look.counts, &look.scores, hot) {
            Some(judged) => println!(
                "{what}: precision {:5.1} %, recall {:5.1} % of {}; {} pages left out; {:?} samples, \
                 {changes} changes",
                judged.precision, judged.recall, judged.there, judged.left_out, look.samples
            ),
            None => println!("{what}: {NOT_JUDGED}"),
        }
    }
}

/// Where caches hold the hottest pages, memory serves them no more often than the next.
const NOT_JUDGED: &str = "not judged, as memory serves none of them twice as often as the last";

fn finish(
    options: &Options,
    watching: &mut Watching,
    sum: &Sum,
    hot: &[usize],
) -> Result<(), String> {
    let kernel_ns = watching.tracker().cost().map_or(0, |cost| cost.kernel_ns);
    watching.tracker().stop();
    if let (Watching::Damon(tracker), 0.0) = (&watching, options.number("quiet", 0.0)?) {
        println!(
            "{:?}; {} aggregations dropped",
            tracker.pace(),
            tracker.dropped()
        );
        let notes = watching.tracker().take_notes();
        notes.iter().for_each(|note| println!("note: {note}"));
    }
    for &at_s in &options.numbers("at", &[1.0, 5.0])? {
        for &hot in hot {
            let looks = || sum.looks.iter().filter(|look| look.at_s == at_s);
            let judged = |scores: fn(&Look) -> Option<Vec<f64>>| {
                looks()
                    .filter_map(|look| judge(&look.counts, &scores(look)?, hot))
                    .collect()
            };
            let found: Vec<Judgement> = judged(|look| Some(look.scores.clone()));
            let Some((precision, recall)) = worst(&found) else {
                println!("the {hot} hottest pages at {at_s} s: {NOT_JUDGED}");
                continue;
            };
            println!(
                "found at {at_s} s: precision {precision:.1} recall {recall:.1}, of the {hot} \
                 hottest pages ({} judged at least), the worst of {} phases",
                found.iter().map(|j| j.there).min().unwrap_or(0),
                found.len(),
            );
            let best = judged(|look| Some(ideal(&look.counts, look.samples?)));
            if let Some((precision, recall)) = worst(&best) {
                println!(
                    "an ideal ranking of as many samples ({} at least): precision {precision:.1} \
                     recall {recall:.1}",
                    looks().filter_map(|look| look.samples).min().unwrap_or(0),
                );
            }
        }
    }
    let percent = |ns: u64| 100.0 * ns as f64 / sum.observed_ns.max(1) as f64;
    println!(
        "cost: {:.2} % of one CPU, of it {:.2} % in the kernel's threads; {:.0} samples/s",
        percent(sum.own_ns + kernel_ns),
        percent(kernel_ns),
        sum.samples as f64 * 1e9 / sum.observed_ns.max(1) as f64,
    );
    Ok(())
}

/// Least precision and recall.
fn worst(judged: &[Judgement]) -> Option<(f64, f64)> {
    let least = |of: fn(&Judgement) -> f64| judged.iter().map(of).reduce(f64::min);
    least(|judged| judged.precision).zip(least(|judged| judged.recall))
}

/// Every file below a folder with its text, then whether `damon_stat` is on.
fn dump(folder: &std::path::Path) -> Result<(), String> {
    fn list(folder: &std::path::Path, lines: &mut Vec<String>) -> std::io::Result<()> {
        for entry in std::fs::read_dir(folder)? {
            let path = entry?.path();
            if path.is_dir() {
                list(&path, lines)?;
            } else if let Ok(text) = std::fs::read_to_string(&path) {
                lines.push(format!("{} {text:?}", path.display()));
            }
        }
        Ok(())
    }
    let mut lines = Vec::new();
    list(folder, &mut lines).map_err(|error| format!("{}: {error}", folder.display()))?;
    let stat = "/sys/module/damon_stat/parameters/enabled";
    lines.push(format!("{stat} {:?}", std::fs::read_to_string(stat).ok()));
    lines.sort_unstable();
    lines.iter().for_each(|line| println!("{line}"));
    Ok(())
}
