//! Watches a program by NUMA hint faults, and prints what was seen.
//!
//!     hintfault [--bind N] [--seconds S] [--full] -- CMD [ARGUMENT...]
//!
//! `--bind N` binds the program's memory to a node, in a way in which it is still sampled: then
//! the kernel moves nothing. `--seconds` ends the program after so long. `--full` samples as
//! densely as the tracker does while pages are being moved.

use hither_core::bind::KernelPolicy;
use hither_core::ids::NodeId;
use hither_core::observation::Observations;
use hither_core::plan::Sampling;
use hither_linux::proc::maps;
use hither_linux::proc::tree::Tree;
use hither_linux::root::Root;
use hither_linux::sys;
use hither_linux::topology::Topology;
use hither_linux::tracker::Tracker;
use hither_linux::tracker::hintfault::HintFaultTracker;
use hither_linux::watch::empty_snapshot;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::process::{Command, ExitCode};
use std::time::Duration;

/// Time between two looks.
const INTERVAL: Duration = Duration::from_millis(100);

fn main() -> ExitCode {
    match watch() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("hintfault: {error}");
            ExitCode::from(2)
        }
    }
}

/// What was asked for.
struct Asked {
    node: Option<u32>,
    seconds: f64,
    full: bool,
    words: Vec<String>,
}

fn asked() -> Result<Asked, String> {
    let mut asked = Asked {
        node: None,
        seconds: 10.0,
        full: false,
        words: Vec::new(),
    };
    let mut arguments = std::env::args().skip(1);
    while let Some(word) = arguments.next() {
        let mut number = |what: &str| {
            let value = arguments.next().and_then(|value| value.parse::<f64>().ok());
            value.ok_or_else(|| format!("{word} wants {what}"))
        };
        match word.as_str() {
            "--bind" => asked.node = Some(number("a node")? as u32),
            "--seconds" => asked.seconds = number("a time in seconds")?,
            "--full" => asked.full = true,
            "--" => asked.words = arguments.by_ref().collect(),
            other => {
                return Err(format!(
                    "`{other}` is not known; see the head of its source"
                ));
            }
        }
    }
    match asked.words.is_empty() {
        true => Err("name a program behind `--`".to_owned()),
        false => Ok(asked),
    }
}

fn watch() -> Result<(), Box<dyn std::error::Error>> {
    let asked = asked()?;
    let root = Root::host();
    let topology = Topology::read(&root)?;
    let mut tracker = HintFaultTracker::open(&root, &topology)?;
    let mut snapshot = empty_snapshot(&topology);
    let mut tree = Tree::new(root.clone(), std::process::id() as i32);
    tracker.keep_observations(true);
    if asked.full {
        tracker.set_sampling(Sampling::Full);
    }
    // The first observation begins: before the program starts, so that all its faults are seen.
    tracker.observe(&mut tree, &mut snapshot)?;
    let mut command = Command::new(&asked.words[0]);
    command.args(&asked.words[1..]);
    if let Some(node) = asked.node {
        let policy = KernelPolicy {
            is_balanced: true,
            ..KernelPolicy::bound_to(NodeId(node))
        };
        sys::place_child(&mut command, None, Some(&policy))?;
    }
    let start_ns = sys::monotonic_ns();
    let cpu_start_ns = sys::own_cpu_ns();
    let mut child = command.spawn()?;
    let pid = child.id() as i32;
    let mut seen = Observations::default();
    let mut largest = None;
    let mut pages_listed = 0;
    let mut no_home = 0;
    loop {
        std::thread::sleep(INTERVAL);
        let now_ns = sys::monotonic_ns() - start_ns;
        tree.refresh(now_ns / 1000)?;
        largest = largest
            .into_iter()
            .chain(largest_mapping(&root, pid))
            .max_by_key(length);
        tracker.observe(&mut tree, &mut snapshot)?;
        pages_listed = pages_listed.max(snapshot.pages.len());
        let before = seen.samples.len();
        tracker.take_observations(&mut seen);
        no_home += seen.samples[before..]
            .iter()
            .filter(|s| s.home.is_none())
            .count();
        if child.try_wait()?.is_some() {
            break;
        }
        if now_ns as f64 / 1e9 > asked.seconds {
            child.kill()?;
            child.wait()?;
            break;
        }
    }
    let cpu_ns = sys::own_cpu_ns() - cpu_start_ns;
    let wall_ns = sys::monotonic_ns() - start_ns;
    tracker.stop();
    for note in tracker.take_notes() {
        println!("note: {note}");
    }
    let totals = tracker.totals();
    println!("seconds {:.3}", wall_ns as f64 / 1e9);
    println!("own_cpu_share {:.5}", cpu_ns as f64 / wall_ns as f64);
    println!("hint_faults {}", totals.hint_faults);
    println!("first_touches {}", totals.first_touches);
    println!("foreign {}", totals.foreign);
    println!("lost {}", totals.lost);
    println!("no_home {no_home}");
    println!("most_pages_in_an_interval {pages_listed}");
    println!("scan_period_ms {}", totals.period_ms.unwrap_or(0));
    println!("kernel_entries_taken {}", totals.kernel.updates);
    println!("kernel_hint_faults {}", totals.kernel.hint_faults);
    println!(
        "kernel_local_hint_faults {}",
        totals.kernel.local_hint_faults
    );
    println!("kernel_pages_migrated {}", totals.kernel.pages_migrated);
    let mut by_place = BTreeMap::new();
    for sample in &seen.samples {
        let place = (sample.cpu.map(|cpu| cpu.0), sample.home.map(|node| node.0));
        *by_place.entry(place).or_insert(0u64) += 1;
    }
    for ((cpu, home), count) in by_place {
        let (cpu, home) = (cpu.unwrap_or(u32::MAX), home.map_or(-1, i64::from));
        println!("samples cpu {cpu} home {home} count {count}");
    }
    if let Some(range) = largest {
        let own = seen.samples.iter().filter(|sample| sample.pid.0 == pid);
        let pages: Vec<u64> = own.map(|sample| sample.address >> 12).collect();
        let inside = pages.iter().filter(|page| range.contains(page));
        let distinct: BTreeSet<&u64> = inside.clone().collect();
        println!("largest_mapping_pages {}", length(&range));
        println!("largest_mapping_sampled_pages {}", distinct.len());
        println!("largest_mapping_samples {}", inside.count());
    }
    Ok(())
}

/// Pages of the largest mapping of a process.
fn largest_mapping(root: &Root, pid: i32) -> Option<Range<u64>> {
    let mappings = root.parse(&format!("proc/{pid}/maps"), maps::parse).ok()?;
    mappings
        .iter()
        .map(|mapping| mapping.pages())
        .max_by_key(length)
}

fn length(pages: &Range<u64>) -> u64 {
    pages.end - pages.start
}
