//! Watches a program that writes a known part of its memory and reads all of it, through the tracker
//! `written`, and says how well the part was found and what that cost.
//!
//!     written watch [NAME=VALUE...]   watch the load; needs CONFIG_MEM_SOFT_DIRTY
//!     written load [NAME=VALUE...]    the load alone
//!
//! `mb=64` size of the mapping, `hot=8` MB of it that are written, `rest=5` ms of sleep after each
//! pass and flush of the TLB, `seconds=4` of watching, `budget=5` per cent of one CPU, the faults of
//! the program included.

#[path = "hot_pages/scratch.rs"]
mod scratch;

use hither_core::observation::{Observations, RegionAccess};
use hither_linux::counters::task;
use hither_linux::proc::tree::{Scope, Tree};
use hither_linux::root::Root;
use hither_linux::topology::Topology;
use hither_linux::tracker::Tracker;
use hither_linux::tracker::written::WrittenTracker;
use hither_linux::watch::empty_snapshot;
use scratch::Scratch;
use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::ops::Range;
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

const MB: u64 = 1 << 20;
/// Words of a page.
const PAGE_WORDS: usize = 512;
/// Time between two looks at the tracker.
const STEP: Duration = Duration::from_millis(50);

/// What was asked for.
struct Options {
    bytes: u64,
    hot_bytes: u64,
    rest: Duration,
    seconds: f64,
    budget: f64,
}

impl Options {
    fn parse(words: &[String]) -> Result<Self, String> {
        let mut given = HashMap::new();
        for word in words {
            let pair = word.split_once('=');
            let (name, value) = pair.ok_or_else(|| format!("`{word}` is not NAME=VALUE"))?;
            let number = value.parse().ok().filter(|n: &f64| (0.0..1e6).contains(n));
            let number = number.ok_or_else(|| format!("{name}: `{value}` is no such number"))?;
            given.insert(name, number);
        }
        let mut take = |name: &str, default| given.remove(name).unwrap_or(default);
        let options = Self {
            bytes: take("mb", 64.0) as u64 * MB,
            hot_bytes: take("hot", 8.0) as u64 * MB,
            rest: Duration::from_secs_f64(take("rest", 5.0) / 1e3),
            seconds: take("seconds", 4.0),
            budget: take("budget", 5.0) / 100.0,
        };
        match given.keys().next() {
            Some(name) => Err(format!("`{name}` is not known; see the head of its source")),
            None if !(1..=options.bytes).contains(&options.hot_bytes) => {
                Err("hot must be at least 1 and at most mb".to_owned())
            }
            None => Ok(options),
        }
    }
}

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let result = match words.split_first() {
        Some((mode, rest)) if mode == "load" => Options::parse(rest).and_then(|o| load(&o)),
        Some((mode, rest)) if mode == "watch" => Options::parse(rest).and_then(|o| watch(&o, rest)),
        _ => Err("usage: written watch|load [NAME=VALUE...]".to_owned()),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("written: {why}");
            ExitCode::from(2)
        }
    }
}

/// Touches everything once, says where what is, then writes to each page of the hot part and reads
/// from each page of all, until the parent ends.
fn load(options: &Options) -> Result<(), String> {
    let parent = std::os::unix::process::parent_id();
    let mut words = vec![0u64; options.bytes as usize / 8];
    words
        .iter_mut()
        .step_by(PAGE_WORDS)
        .for_each(|word| *word = 1);
    let hot = options.hot_bytes as usize / 8;
    // Not at a round place.
    let at = (words.len() - hot) * 37 / 100 / PAGE_WORDS * PAGE_WORDS;
    let start = words.as_ptr() as u64;
    let hot_start = start + at as u64 * 8;
    let mut out = std::io::stdout();
    writeln!(out, "{start} {hot_start}")
        .and_then(|()| out.flush())
        .map_err(|error| error.to_string())?;
    let scratch = Scratch::new();
    let mut sum = 0u64;
    while std::os::unix::process::parent_id() == parent {
        let area = &mut words[at..at + hot];
        for word in area.iter_mut().step_by(PAGE_WORDS) {
            *word = word.wrapping_add(1);
        }
        let read = words.iter().step_by(PAGE_WORDS);
        sum = read.fold(sum, |sum, &word| sum.wrapping_add(word));
        std::hint::black_box(sum);
        scratch.flush();
        std::thread::sleep(options.rest);
    }
    Ok(())
}

/// The load, with where it writes.
struct Load {
    child: Child,
    memory: Range<u64>,
    hot: Range<u64>,
}

impl Load {
    fn start(options: &Options, words: &[String]) -> Result<Self, String> {
        let own = std::env::current_exe().map_err(|error| error.to_string())?;
        let mut child = Command::new(own)
            .arg("load")
            .args(words)
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| error.to_string())?;
        let mut line = String::new();
        let output = child.stdout.take().ok_or("no output")?;
        BufReader::new(output)
            .read_line(&mut line)
            .map_err(|error| error.to_string())?;
        let told: Vec<u64> = line
            .split_whitespace()
            .filter_map(|word| word.parse().ok())
            .collect();
        let [start, hot] = told[..] else {
            return Err("the load did not start".to_owned());
        };
        Ok(Self {
            child,
            memory: start..start + options.bytes,
            hot: hot..hot + options.hot_bytes,
        })
    }

    fn faults(&self) -> u64 {
        let task = task::process(&Root::host(), self.child.id() as i32);
        task.map_or(0, |task| task.minor_faults)
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn overlap(a: &Range<u64>, b: &Range<u64>) -> u64 {
    a.end.min(b.end).saturating_sub(a.start.max(b.start))
}

/// Precision and recall in per cent, of the bytes of the mapping.
fn judge(regions: &[RegionAccess], load: &Load) -> (f64, f64) {
    let (mut found, mut both) = (0, 0);
    for region in regions.iter().filter(|region| region.access_count > 0) {
        found += overlap(&region.addresses, &load.memory);
        both += overlap(&region.addresses, &load.hot);
    }
    let hot = load.hot.end - load.hot.start;
    let percent = |of: u64| 100.0 * both as f64 / of.max(1) as f64;
    (percent(found), percent(hot))
}

fn watch(options: &Options, words: &[String]) -> Result<(), String> {
    let text = |error: hither_linux::Error| error.to_string();
    let root = Root::host();
    let topology = Topology::read(&root).map_err(text)?;
    let mut tracker = WrittenTracker::open(&root, options.budget).map_err(text)?;
    tracker.keep_observations(true);
    let load = Load::start(options, words)?;
    let pid = load.child.id() as i32;
    let mut tree = Tree::new(root, Scope::Processes(vec![pid]));
    let mut snapshot = empty_snapshot(&topology);
    let mut observations = Observations::default();
    let (mut last, faults) = ((0.0, 0.0), load.faults());
    let begun = Instant::now();
    while begun.elapsed().as_secs_f64() < options.seconds {
        tree.refresh(begun.elapsed().as_micros() as u64)
            .map_err(text)?;
        tracker.observe(&mut tree, &mut snapshot).map_err(text)?;
        observations.clear();
        tracker.take_observations(&mut observations);
        if let Some(first) = observations.regions.first() {
            last = judge(&observations.regions, &load);
            println!(
                "{:6.2} s: {:4} ranges of {:5.0} ms, precision {:5.1} %, recall {:5.1} %",
                begun.elapsed().as_secs_f64(),
                observations.regions.len(),
                first.length_ns as f64 / 1e6,
                last.0,
                last.1,
            );
        }
        std::thread::sleep(STEP);
    }
    println!(
        "faults: {} by the kernel's count, {} by the tracker's up to its last round",
        load.faults().saturating_sub(faults),
        tracker.fault_count(),
    );
    let cost = tracker.cost().unwrap_or_default();
    println!(
        "cost: own {:.3} % of one CPU over {:.1} s",
        100.0 * cost.share(),
        cost.wall_ns as f64 / 1e9,
    );
    tracker.stop();
    tracker
        .take_notes()
        .iter()
        .for_each(|note| println!("note: {note}"));
    println!("found: precision {:.1} recall {:.1}", last.0, last.1);
    Ok(())
}
