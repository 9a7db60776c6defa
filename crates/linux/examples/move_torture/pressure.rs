//! No memory where pages shall go: on the target node, or, on one node, in a memory cgroup.

use crate::common::{self, Options, Random, Report, tick};
use crate::memory::{Field, HUGE, PAGE, Region, advise};
use crate::mover::{Mover, Tally, backend};
use crate::writers::{Met, write};
use hither_core::ids::{NodeId, Pid};
use hither_core::plan::Refusal;
use hither_linux::sys;
use hither_mover::{Action, Backend, Job, Pages, Race};
use std::sync::atomic::Ordering;

/// Memory that is left to the kernel when the node is filled, in bytes.
const SPARE: u64 = 4 << 20;

/// Free bytes of a node.
fn free(node: u32) -> u64 {
    let path = format!("/sys/devices/system/node/node{node}/meminfo");
    let text = std::fs::read_to_string(path).unwrap_or_default();
    // Node 0 MemFree:        22482144 kB
    let line = text.lines().find(|line| line.contains("MemFree:"));
    let kilobytes = line.and_then(|line| line.split_whitespace().nth(3)?.parse::<u64>().ok());
    kilobytes.unwrap_or(0) << 10
}

/// Fills a node until pages for it come from elsewhere, by preference: strict binding would wake
/// the out-of-memory killer.
fn fill_node(node: u32) -> (Vec<Region>, u64) {
    let mut regions = Vec::new();
    let mut filled = 0;
    let mut strays = 0;
    while strays < 8 && free(node) > SPARE / 4 {
        let region = Region::new(SPARE, false);
        let range = region.range();
        if sys::with_preferred_node(node, || sys::fill(&range)).is_err() {
            break;
        }
        let pages: Vec<u64> = range.clone().step_by(PAGE as usize).collect();
        let mut nodes = vec![-1; pages.len()];
        let _ = sys::query_pages(0, &pages, &mut nodes);
        let there = nodes.iter().filter(|&&at| at == node as i32).count() as u64;
        filled += there * PAGE;
        strays += u64::from(there < pages.len() as u64 / 2);
        regions.push(region);
        tick();
    }
    (regions, filled)
}

fn by_node(options: &Options, report: &mut Report) {
    let bytes = 8 * HUGE;
    let field = Field::new(bytes, options.huge, options.threads.min(4));
    let range = field.region.range();
    let mut random = Random::new(options.seed ^ 0xC1);
    let (mut no_memory, mut moved, mut filled) = (0, 0, 0);
    let target = options.nodes - 1;
    for _ in 0..options.rounds.min(5) {
        // All on the first node, then the last is filled and asked to take them.
        let mut backend = backend(options, &mut random, &None);
        let job = |to: u32, race| Job {
            pid: Pid(0),
            action: Action::Migrate {
                pages: Pages::Run(range.start / PAGE..range.end / PAGE),
                to: NodeId(to),
            },
            race,
        };
        backend.execute(&[job(0, Race::Block)]);
        let (regions, bytes) = fill_node(target);
        filled += bytes;
        let race = random.pick(&[Race::Recover, Race::Block]);
        let outcome = backend.execute(&[job(target, race)]).remove(0);
        tick();
        field.verify();
        moved += outcome.moved.len() as u64;
        let refused = outcome
            .refused
            .iter()
            .filter(|(reason, _)| *reason == Refusal::NoMemory);
        no_memory += refused.map(|(_, count)| count).sum::<u64>();
        let stayed = outcome.page_count() - outcome.moved.len() as u64;
        report.count("pages that did not arrive", stayed);
        drop(regions);
        backend.execute(&[job(0, Race::Recover)]);
        field.verify();
    }
    report.met("bytes filled up", filled);
    report.count("pages refused (no memory)", no_memory);
    report.count("pages moved", moved);
    let stayed = report
        .counts
        .get("pages that did not arrive")
        .copied()
        .unwrap_or(0);
    if stayed == 0 {
        report.unmet.push("a target without memory".to_owned());
    }
}

/// A memory cgroup of version 2 or 1 for this process, with a limit; left again when dropped.
struct Cgroup {
    folder: String,
    home: String,
}

impl Cgroup {
    fn new(limit: u64) -> Result<Self, String> {
        let name = format!("move_torture.{}", std::process::id());
        let mut why = "no memory cgroup is mounted".to_owned();
        for (home, file) in [
            ("/sys/fs/cgroup", "memory.high"),
            ("/sys/fs/cgroup/unified", "memory.high"),
            ("/sys/fs/cgroup/memory", "memory.limit_in_bytes"),
        ] {
            let folder = format!("{home}/{name}");
            if let Err(error) = std::fs::create_dir(&folder) {
                why = format!("{folder}: {error}");
                continue;
            }
            let cgroup = Self {
                folder,
                home: home.to_owned(),
            };
            if !std::path::Path::new(&format!("{}/{file}", cgroup.folder)).exists() {
                why = format!("{home} has no control of memory");
                continue;
            }
            let written = std::fs::write(format!("{}/{file}", cgroup.folder), limit.to_string())
                .and_then(|()| std::fs::write(format!("{}/cgroup.procs", cgroup.folder), "0"));
            match written {
                Ok(()) => return Ok(cgroup),
                Err(error) => why = format!("{}/{file}: {error}", cgroup.folder),
            }
        }
        Err(why)
    }

    /// How often the limit was hit.
    fn hits(&self) -> u64 {
        let read = |name: &str| std::fs::read_to_string(format!("{}/{name}", self.folder));
        if let Ok(text) = read("memory.failcnt") {
            return text.trim().parse().unwrap_or(0);
        }
        let text = read("memory.events").unwrap_or_default();
        let line = text.lines().find_map(|line| line.strip_prefix("high "));
        line.and_then(|count| count.trim().parse().ok())
            .unwrap_or(0)
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        let _ = std::fs::write(format!("{}/cgroup.procs", self.home), "0");
        let _ = std::fs::remove_dir(&self.folder);
    }
}

fn by_cgroup(options: &Options, report: &mut Report) -> Result<Tally, String> {
    // A file's pages fill the rest, which the kernel drops again and again.
    let limit = 96 << 20;
    let cgroup = Cgroup::new(limit)?;
    let field = Field::new(8 * HUGE, options.huge, options.threads.min(4));
    let made = tempfile::NamedTempFile::new();
    let path = made.map_err(|error| error.to_string())?.into_temp_path();
    let mut mover = Mover::new(options, 10, None);
    mover.small_stock = true;
    // What is in stock goes soon; only new backends begin with huge pages.
    mover.requests_per_backend = 16;
    let traffic = std::sync::Arc::clone(&mover.traffic);
    let met = Met::default();
    std::thread::scope(|scope| {
        for lane in 0..field.lanes {
            let (field, traffic, met) = (&field, &traffic, &met);
            scope.spawn(move || write(field, lane, traffic, met, options.seed));
        }
        let text = vec![1u8; limit as usize / 2];
        for _ in 0..options.rounds.min(50) {
            if let Err(error) = std::fs::write(&path, &text) {
                common::fail(&format!("{}: {error}", path.display()));
            }
            for _ in 0..64 {
                mover.once(&field.region.range());
            }
        }
        traffic.stop();
    });
    let _ = advise(&field.region.range(), libc::MADV_PAGEOUT);
    field.verify();
    report.met("times at the limit", cgroup.hits());
    report.met("stores in flight", met.in_flight.load(Ordering::Relaxed));
    Ok(mover.finish())
}

pub fn run(options: &Options) -> Report {
    let mut report = Report::new("pressure");
    if options.nodes > 1 {
        by_node(options, &mut report);
        return report;
    }
    report.not_run("a full target node: there is one node");
    match by_cgroup(options, &mut report) {
        Ok(tally) => tally.report(&mut report),
        Err(why) => report.not_run(format!("a limit in a cgroup: {why}")),
    }
    report
}
