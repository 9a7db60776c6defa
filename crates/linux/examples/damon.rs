//! Watches a program with a known hot area through the tracker `damon`, and says how well the
//! area was found and what that cost.
//!
//!     damon watch [NAME=VALUE...]   watch the load; needs root and DAMON
//!     damon load [NAME=VALUE...]    the load alone
//!     damon dump                    DAMON's settings
//!
//! `mb=256` size of the mapping, `hot=25` MB of it that are used, `every=0` seconds after which the
//! hot area moves (0: never), `touch=1` whether the cold part is written once, `rest=0` ms of sleep
//! after 20,000 updates (the lab is quicker, and memory less busy); `setting=adaptive`
//! or `thesis`, `seconds=5` of watching, `budget=1` per cent of the machine's CPU time,
//! `physical=1` for physical addresses, `observe=100` ms between two looks at the tracker,
//! `regions=1` prints the regions.

use hither_core::observation::{Observations, RegionAccess};
use hither_core::refine::sharpen;
use hither_linux::proc::pagemap;
use hither_linux::proc::tree::Tree;
use hither_linux::root::Root;
use hither_linux::sys::monotonic_ns;
use hither_linux::topology::Topology;
use hither_linux::tracker::Tracker;
use hither_linux::tracker::damon::{Addresses, DamonTracker, Setting};
use hither_linux::watch::empty_snapshot;
use std::collections::{HashMap, HashSet};
use std::io::{BufRead, BufReader, Write};
use std::ops::Range;
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

const MB: usize = 1 << 20;
const PAGE: u64 = 4096;

/// `NAME=VALUE` words.
struct Options(HashMap<String, String>);

impl Options {
    fn parse(words: &[String]) -> Result<Self, String> {
        let split = |word: &String| {
            let (name, value) = word.split_once('=')?;
            Some((name.to_owned(), value.to_owned()))
        };
        let pair = |word| split(word).ok_or_else(|| format!("`{word}` is not NAME=VALUE"));
        words.iter().map(pair).collect::<Result<_, _>>().map(Self)
    }

    fn number(&self, name: &str, default: f64) -> Result<f64, String> {
        let Some(text) = self.0.get(name) else {
            return Ok(default);
        };
        let number = text.parse().ok().filter(|number: &f64| number.is_finite());
        number.ok_or_else(|| format!("{name}: `{text}` is no number"))
    }
}

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let result = match words.split_first() {
        Some((mode, rest)) if mode == "load" => Options::parse(rest).and_then(|o| load(&o)),
        Some((mode, rest)) if mode == "watch" => Options::parse(rest).and_then(|o| watch(&o, rest)),
        Some((mode, [])) if mode == "dump" => dump("/sys/kernel/mm/damon/admin".as_ref()),
        _ => Err("usage: damon watch|load|dump [NAME=VALUE...]".to_owned()),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("damon: {why}");
            ExitCode::from(2)
        }
    }
}

/// Updates random words of the hot area until the parent ends, and says where it is.
fn load(options: &Options) -> Result<(), String> {
    let bytes = options.number("mb", 256.0)? as usize * MB;
    let hot = options.number("hot", 25.0)? as usize * MB / 8;
    let every = options.number("every", 0.0)?;
    let rest = Duration::from_secs_f64(options.number("rest", 0.0)?.max(0.0) / 1e3);
    let parent = std::os::unix::process::parent_id();
    let mut words = vec![0u64; bytes / 8];
    if hot == 0 || hot > words.len() {
        return Err("hot must be at least 1 and at most mb".to_owned());
    }
    if options.number("touch", 1.0)? != 0.0 {
        words.iter_mut().step_by(512).for_each(|word| *word = 1);
    }
    let mut random = 1u64;
    let mut out = std::io::stdout();
    for phase in 0usize.. {
        // Not at a round place: 0.37, then elsewhere.
        let at = (words.len() - hot) * (37 + 31 * phase % 100) / 100 / 512 * 512 % words.len();
        let area = &mut words[at..at + hot];
        let start = area.as_ptr() as u64;
        let line = format!("{start} {} {}\n", start + hot as u64 * 8, monotonic_ns());
        let told = out.write_all(line.as_bytes()).and_then(|()| out.flush());
        told.map_err(|error| error.to_string())?;
        let begun = Instant::now();
        while every == 0.0 || begun.elapsed().as_secs_f64() < every {
            for _ in 0..20_000 {
                random = random
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1);
                let index = ((u128::from(random) * area.len() as u128) >> 64) as usize;
                area[index] = area[index].wrapping_add(random);
            }
            if std::os::unix::process::parent_id() != parent {
                return Ok(());
            }
            if !rest.is_zero() {
                std::thread::sleep(rest);
            }
        }
    }
    Ok(())
}

/// A phase of the load: the hot addresses, and since when.
struct Phase {
    hot: Range<u64>,
    since_ns: u64,
}

struct Load {
    child: Child,
    lines: mpsc::Receiver<String>,
    phases: Vec<Phase>,
}

impl Load {
    fn start(words: &[String]) -> Result<Self, String> {
        let own = std::env::current_exe().map_err(|error| error.to_string())?;
        let mut child = Command::new(own)
            .arg("load")
            .args(words)
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| error.to_string())?;
        let (sender, lines) = mpsc::channel();
        let output = BufReader::new(child.stdout.take().ok_or("no output")?);
        std::thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                let _ = sender.send(line);
            }
        });
        let mut load = Self {
            child,
            lines,
            phases: Vec::new(),
        };
        let first = load.lines.recv().map_err(|_| "the load did not start")?;
        load.add(&first);
        Ok(load)
    }

    fn add(&mut self, line: &str) {
        let numbers: Vec<u64> = line
            .split(' ')
            .filter_map(|word| word.parse().ok())
            .collect();
        if let [start, end, since_ns] = numbers[..] {
            self.phases.push(Phase {
                hot: start..end,
                since_ns,
            });
        }
    }

    /// The phase in which the whole of an aggregation lies.
    fn phase(&mut self, region: &RegionAccess) -> Option<&Phase> {
        while let Ok(line) = self.lines.try_recv() {
            self.add(&line);
        }
        let begun = region.time_ns.saturating_sub(region.length_ns);
        let last = self
            .phases
            .iter()
            .rfind(|phase| phase.since_ns <= region.time_ns)?;
        (last.since_ns <= begun).then_some(last)
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Bytes found hot, bytes that are, and what is in both.
#[derive(Clone, Copy, Default)]
struct Judgement {
    found: u64,
    hot: u64,
    both: u64,
}

impl Judgement {
    fn precision(self) -> f64 {
        100.0 * self.both as f64 / self.found.max(1) as f64
    }

    fn recall(self) -> f64 {
        100.0 * self.both as f64 / self.hot.max(1) as f64
    }
}

fn overlap(a: &Range<u64>, b: &Range<u64>) -> u64 {
    a.end.min(b.end).saturating_sub(a.start.max(b.start))
}

fn is_hot(region: &&RegionAccess) -> bool {
    2 * region.access_count >= region.check_count
}

/// Judged inside the mapping: the program's stack and code are used as well.
fn judge(regions: &[RegionAccess], mapping: &Range<u64>, hot: &Range<u64>) -> Judgement {
    let mut judgement = Judgement {
        hot: hot.end - hot.start,
        ..Judgement::default()
    };
    for region in regions.iter().filter(is_hot) {
        judgement.found += overlap(&region.addresses, mapping);
        judgement.both += overlap(&region.addresses, hot);
    }
    judgement
}

/// The same by frames: of those that hold the mapping.
fn judge_frames(regions: &[RegionAccess], all: &HashSet<u64>, hot: &HashSet<u64>) -> Judgement {
    let mut judgement = Judgement {
        hot: hot.len() as u64,
        ..Judgement::default()
    };
    for region in regions.iter().filter(is_hot) {
        let frames = region.addresses.start / PAGE..region.addresses.end / PAGE;
        judgement.found += frames.clone().filter(|frame| all.contains(frame)).count() as u64;
        judgement.both += frames.filter(|frame| hot.contains(frame)).count() as u64;
    }
    judgement
}

/// Frames of a range of a watched process's addresses.
fn frames(tree: &Tree, pid: i32, addresses: &Range<u64>) -> HashSet<u64> {
    let process = tree.processes().iter().find(|process| process.pid == pid);
    let Some(map) = process.and_then(|process| process.pagemap.as_ref()) else {
        return HashSet::new();
    };
    let mut entries = vec![0; ((addresses.end - addresses.start) / PAGE) as usize];
    let got = map.read(addresses.start / PAGE, &mut entries, &mut Vec::new());
    entries.truncate(got.unwrap_or(0));
    entries.into_iter().filter_map(pagemap::frame).collect()
}

fn watch(options: &Options, words: &[String]) -> Result<(), String> {
    let setting = match options.0.get("setting").map_or("adaptive", String::as_str) {
        "adaptive" => Setting::ADAPTIVE,
        "thesis" => Setting::THESIS,
        other => return Err(format!("setting: `{other}` is neither adaptive nor thesis")),
    };
    let seconds = options.number("seconds", 5.0)?;
    let budget = options.number("budget", 1.0)? / 100.0;
    let step = Duration::from_secs_f64(options.number("observe", 100.0)?.max(1.0) / 1e3);
    let physical = options.number("physical", 0.0)? != 0.0;
    let addresses = match physical {
        true => Addresses::Physical,
        false => Addresses::Virtual,
    };
    let text = |error: hither_linux::Error| error.to_string();
    let root = Root::host();
    let topology = Topology::read(&root).map_err(text)?;
    let mut tracker = DamonTracker::open(&root, addresses, setting, budget).map_err(text)?;
    tracker.keep_observations(true);
    let mut load = Load::start(words)?;
    let pid = load.child.id() as i32;
    let bytes = options.number("mb", 256.0)? as u64 * MB as u64;
    let mut tree = Tree::new(root, std::process::id() as i32);
    let mut snapshot = empty_snapshot(&topology);
    let mut observations = Observations::default();
    let mut last = Judgement::default();
    let mut pace = None;
    let begun = Instant::now();
    while begun.elapsed().as_secs_f64() < seconds {
        tree.refresh(begun.elapsed().as_micros() as u64)
            .map_err(text)?;
        tracker.observe(&mut tree, &mut snapshot).map_err(text)?;
        tracker
            .take_notes()
            .iter()
            .for_each(|note| println!("note: {note}"));
        if pace.replace(tracker.pace()) != Some(tracker.pace()) {
            println!(
                "{:6.2} s: {:?}",
                begun.elapsed().as_secs_f64(),
                tracker.pace()
            );
        }
        observations.clear();
        tracker.take_observations(&mut observations);
        for regions in observations
            .regions
            .chunk_by(|a, b| (a.time_ns, a.pid) == (b.time_ns, b.pid))
        {
            if options.number("regions", 0.0)? != 0.0 {
                for region in regions {
                    let [start, end] = [region.addresses.start, region.addresses.end];
                    let [count, age] = [region.access_count, region.age_count];
                    println!(
                        "  {start:#x} {:9} KiB {count:3} age {age}",
                        (end - start) >> 10
                    );
                }
            }
            let Some(phase) = load.phase(&regions[0]) else {
                println!("{} regions, of two phases", regions.len());
                continue;
            };
            let (hot, since_ns) = (phase.hot.clone(), phase.since_ns);
            // The mapping that holds the hot part: as large as it was asked for, around it.
            let mapping = hot.end.saturating_sub(bytes)..hot.start + bytes;
            let sharp = sharpen(regions);
            let [raw, sharp] = if physical {
                let (all, hot) = (frames(&tree, pid, &mapping), frames(&tree, pid, &hot));
                [regions, &sharp[..]].map(|regions| judge_frames(regions, &all, &hot))
            } else {
                [regions, &sharp[..]].map(|regions| judge(regions, &mapping, &hot))
            };
            println!(
                "{:6.2} s into the phase: {:4} regions of {:5.0} ms, precision {:5.1} %, recall \
                 {:5.1} %; sharpened {:5.1} % and {:5.1} %",
                regions[0].time_ns.saturating_sub(since_ns) as f64 / 1e9,
                regions.len(),
                regions[0].length_ns as f64 / 1e6,
                raw.precision(),
                raw.recall(),
                sharp.precision(),
                sharp.recall(),
            );
            last = sharp;
        }
        std::thread::sleep(step);
    }
    let (pace, dropped) = (tracker.pace(), tracker.dropped());
    let cost = tracker.cost().unwrap_or_default();
    tracker.stop();
    tracker
        .take_notes()
        .iter()
        .for_each(|note| println!("note: {note}"));
    let percent = |ns: u64| 100.0 * ns as f64 / cost.wall_ns.max(1) as f64;
    println!(
        "pace: {} ms, {} ms, {} to {} regions; {dropped} aggregations dropped",
        pace.sample_us as f64 / 1e3,
        pace.aggregation_us as f64 / 1e3,
        pace.min_regions,
        pace.max_regions(),
    );
    println!(
        "cost: kdamond {:.3} %, own {:.3} % of one CPU over {:.1} s",
        percent(cost.kernel_ns),
        percent(cost.own_ns),
        cost.wall_ns as f64 / 1e9,
    );
    println!(
        "found: precision {:.1} recall {:.1}",
        last.precision(),
        last.recall()
    );
    Ok(())
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
