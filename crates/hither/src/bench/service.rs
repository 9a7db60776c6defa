//! `hither bench service`: streams of requests through the asynchronous service, beside calls of
//! `move_pages(2)` one by one.
//!
//! A *group* of requests that follow each other goes to the other node. Traffic *both* ways: the
//! group comes back by requests too, so that pages are used again. Traffic *one* way: it is brought
//! back outside of the timing. Wall and CPU time run from the first submission to the last
//! completion, and CPU time is that of all threads of the process.

use super::methods::{HUGE_BYTES, PageKind};
use crate::print;
use crate::units::{short_bytes, time};
use hither_core::ids::NodeId;
use hither_linux::backend::copy::Copier;
use hither_linux::backend::own::{self, Chosen, Settings};
use hither_linux::sys::{self, PrivateMemory, Stores};
use hither_mover::{Close, Config, Mover, Race, Request, Status};
use serde_json::{Value, json};
use std::time::Duration;

/// Bytes of a group of small requests; a larger request is a group of its own.
const GROUP_BYTES: usize = 4 << 20;
/// Requests of the latency measurement, and pages of each (memif figure 7).
const LATENCY_REQUESTS: usize = 8;
const LATENCY_BYTES: usize = 16 * 4096;
/// Nobody waits longer for a move.
const PATIENCE: Duration = Duration::from_secs(60);

/// Which way pages go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Traffic {
    Both,
    One,
}

/// Who moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// The service, with as many requests in flight as it has.
    Service,
    /// One call of `move_pages` per request, one address per page of 4 KiB.
    Calls,
    /// The same with one address per huge page.
    CallsHuge,
}

impl Way {
    fn name(self) -> &'static str {
        match self {
            Self::Service => "service",
            Self::Calls => "move_pages",
            Self::CallsHuge => "move_pages, by huge page",
        }
    }
}

/// What a stream took.
#[derive(Clone, Copy, Debug, Default)]
struct Took {
    wall_ns: u64,
    cpu_ns: u64,
    requests: u64,
    bytes: u64,
    /// Pages that did not arrive.
    refused: u64,
}

impl Took {
    /// A round of requests of so many bytes each, that began at this CPU and wall time.
    fn add(&mut self, requests: usize, bytes: usize, refused: u64, (cpu, wall): (u64, u64)) {
        self.wall_ns += sys::monotonic_ns() - wall;
        self.cpu_ns += sys::own_cpu_ns() - cpu;
        self.requests += requests as u64;
        self.bytes += (requests * bytes) as u64;
        self.refused += refused;
    }
}

struct Row {
    kind: PageKind,
    bytes: usize,
    traffic: Traffic,
    way: Way,
    took: Took,
    /// Time of a bare non-temporal copy of as many bytes in ns, by one thread and by as many as
    /// the service copies with.
    copy_ns: [f64; 2],
}

/// Mean time to completion of [`LATENCY_REQUESTS`], and CPU time of the submitting thread.
#[derive(Clone, Copy, Debug, Default)]
struct Latency {
    mean_ns: f64,
    submitter_cpu_ns: f64,
    repetitions: u64,
}

/// What to measure.
pub struct Plan {
    /// Where pages are.
    pub from: NodeId,
    /// Where they go.
    pub to: NodeId,
    /// Page kinds with sizes of requests.
    pub sizes: Vec<(PageKind, Vec<usize>)>,
    /// Requests per stream, at least.
    pub repeat: usize,
    /// Threads that share large copies.
    pub copiers: usize,
}

/// What was measured.
pub struct Report {
    plan: Plan,
    chosen: Chosen,
    rows: Vec<Row>,
    latency: Option<[Latency; 2]>,
}

/// The memory that goes to and fro.
struct Arena {
    memory: PrivateMemory,
    kind: PageKind,
    addresses: Vec<u64>,
    nodes: Vec<i32>,
    status: Vec<i32>,
}

impl Arena {
    fn new(kind: PageKind, bytes: usize, node: NodeId) -> anyhow::Result<Self> {
        let mut memory = PrivateMemory::new(bytes, kind == PageKind::Huge)?;
        sys::bind_memory(memory.address(), memory.len() as u64, node.0, false)?;
        memory.fill_pages(1);
        Ok(Self {
            memory,
            kind,
            addresses: Vec::new(),
            nodes: Vec::new(),
            status: Vec::new(),
        })
    }

    fn call(
        &mut self,
        offset: usize,
        bytes: usize,
        step: usize,
        to: NodeId,
    ) -> anyhow::Result<u64> {
        let start = self.memory.address() + offset as u64;
        self.addresses.clear();
        self.addresses
            .extend((start..start + bytes as u64).step_by(step));
        self.nodes.clear();
        self.nodes.resize(self.addresses.len(), to.0 as i32);
        self.status.clear();
        self.status.resize(self.addresses.len(), i32::MIN);
        sys::move_pages(0, &self.addresses, &self.nodes, &mut self.status)?;
        // Named by its parts, a huge page moves with the first: the others answer that it is busy.
        let counted = |status: &&i32| **status != to.0 as i32 && **status != -sys::EBUSY;
        Ok(self.status.iter().filter(counted).count() as u64)
    }

    /// Brings it all to a node, outside of any timing.
    fn settle(&mut self, to: NodeId) -> anyhow::Result<()> {
        let bytes = self.memory.len();
        self.call(0, bytes, self.kind.bytes(), to).map(drop)
    }
}

/// Measures everything.
///
/// # Errors
/// No memory on a node, or no service.
pub fn measure(plan: Plan) -> anyhow::Result<Report> {
    let mut settings = Settings::default();
    settings.swap.in_place = plan.from == plan.to;
    settings.swap.copiers = plan.copiers;
    settings.copiers = plan.copiers;
    let mut rows = Vec::new();
    let mut chosen = Chosen::new();
    let mut latency = None;
    for (kind, sizes) in &plan.sizes {
        for &bytes in sizes {
            let group = bytes.max(GROUP_BYTES.max(kind.bytes()));
            let mut arena = Arena::new(*kind, (2 * group).max(32 << 20), plan.from)?;
            let copy_ns = copy_ns_per_byte(&plan, *kind, group)?;
            for traffic in [Traffic::Both, Traffic::One] {
                for way in ways(*kind, &plan) {
                    arena.settle(plan.from)?;
                    let took = match way {
                        Way::Service => {
                            let (mover, serving) = own::open(Config::default(), settings.clone())?;
                            chosen = serving;
                            let took = stream(&mover, &mut arena, &plan, bytes, group, traffic)?;
                            drop(mover.close(Close::Drain));
                            took
                        }
                        Way::Calls | Way::CallsHuge => {
                            calls(&mut arena, &plan, bytes, group, traffic, way)?
                        }
                    };
                    rows.push(Row {
                        kind: *kind,
                        bytes,
                        traffic,
                        way,
                        took,
                        copy_ns: copy_ns.map(|ns| ns * took.bytes as f64),
                    });
                }
            }
        }
        if *kind == PageKind::Small {
            latency = Some(latencies(&plan, &settings)?);
        }
    }
    Ok(Report {
        plan,
        chosen,
        rows,
        latency,
    })
}

fn ways(kind: PageKind, plan: &Plan) -> Vec<Way> {
    match (plan.from == plan.to, kind) {
        (true, _) => vec![Way::Service],
        (false, PageKind::Small) => vec![Way::Service, Way::Calls],
        (false, PageKind::Huge) => vec![Way::Service, Way::Calls, Way::CallsHuge],
    }
}

/// The parts of a stream: offset of each request and where it goes.
fn requests(
    arena: &Arena,
    plan: &Plan,
    bytes: usize,
    group: usize,
    traffic: Traffic,
) -> Vec<Vec<(usize, NodeId)>> {
    let groups = arena.memory.len() / group;
    let mut round = Vec::new();
    for index in 0..groups {
        let part = |to| (0..group / bytes).map(move |n| (index * group + n * bytes, to));
        let mut requests: Vec<_> = part(plan.to).collect();
        if traffic == Traffic::Both {
            requests.extend(part(plan.from));
        }
        round.push(requests);
    }
    round
}

fn calls(
    arena: &mut Arena,
    plan: &Plan,
    bytes: usize,
    group: usize,
    traffic: Traffic,
    way: Way,
) -> anyhow::Result<Took> {
    let round: Vec<_> = requests(arena, plan, bytes, group, traffic).concat();
    let step = match way {
        Way::CallsHuge => HUGE_BYTES,
        _ => 4096,
    };
    let mut took = Took::default();
    let mut rounds = 0;
    while took.requests < plan.repeat as u64 {
        if traffic == Traffic::One {
            arena.settle(plan.from)?;
        }
        let (cpu, wall) = (sys::own_cpu_ns(), sys::monotonic_ns());
        let mut refused = 0;
        for &(offset, to) in &round {
            refused += arena.call(offset, bytes, step, to)?;
        }
        // The first round warms up.
        if rounds > 0 {
            took.add(round.len(), bytes, refused, (cpu, wall));
        }
        rounds += 1;
    }
    Ok(took)
}

/// A request, once one is free. Sleeps until half of all are, rather than for each.
fn next<'m>(mover: &'m Mover, done: &mut Done) -> anyhow::Result<Request<'m>> {
    loop {
        if let Some(request) = mover.request() {
            return Ok(request);
        }
        retrieve(mover, Config::default().capacity / 2, done)?;
    }
}

/// Retrieves what is complete once so many requests are.
fn retrieve(mover: &Mover, count: u16, done: &mut Done) -> anyhow::Result<()> {
    anyhow::ensure!(mover.wait_for(count, Some(PATIENCE)), stuck());
    while let Some(completion) = mover.retrieve() {
        done.requests += 1;
        done.refused += completion.refused_pages();
    }
    Ok(())
}

/// What completed in a round: requests, and pages refused.
#[derive(Default)]
struct Done {
    requests: usize,
    refused: u64,
}

fn stuck() -> anyhow::Error {
    anyhow::anyhow!("the service did not complete a request within a minute: please report this")
}

fn stream(
    mover: &Mover,
    arena: &mut Arena,
    plan: &Plan,
    bytes: usize,
    group: usize,
    traffic: Traffic,
) -> anyhow::Result<Took> {
    let round: Vec<_> = requests(arena, plan, bytes, group, traffic).concat();
    let start = arena.memory.address() as usize;
    let mut took = Took::default();
    let mut rounds = 0;
    while took.requests < plan.repeat as u64 {
        if traffic == Traffic::One {
            arena.settle(plan.from)?;
        }
        // The first round finds nothing in stock; in the pause behind it the pool fills up.
        if rounds == 1 {
            std::thread::sleep(Duration::from_millis(200));
        }
        let (cpu, wall) = (sys::own_cpu_ns(), sys::monotonic_ns());
        let mut done = Done::default();
        for &(offset, to) in &round {
            let request = next(mover, &mut done)?;
            let range = start + offset..start + offset + bytes;
            let request = request.migrate(range, to).race(Race::Block);
            mover
                .submit(request)
                .map_err(|rejected| anyhow::anyhow!("{rejected}"))?;
        }
        let open = round.len() - done.requests;
        retrieve(mover, open as u16, &mut done)?;
        if rounds > 0 {
            took.add(round.len(), bytes, done.refused, (cpu, wall));
        }
        rounds += 1;
    }
    Ok(took)
}

/// What a bare non-temporal copy of a byte takes, by one thread and by as many as the service copies
/// with, in ns: best of ten. Through as much memory as the streams, in pieces like their groups.
fn copy_ns_per_byte(plan: &Plan, kind: PageKind, group: usize) -> anyhow::Result<[f64; 2]> {
    let bytes = (2 * group).max(32 << 20);
    let from = Arena::new(kind, bytes, plan.from)?.memory;
    let mut to = Arena::new(kind, bytes, plan.to)?.memory;
    let mut copier = Copier::new(plan.copiers, &[])?;
    let mut best = [u64::MAX; 2];
    for _ in 0..10 {
        let start = sys::monotonic_ns();
        for offset in (0..bytes).step_by(group) {
            to.copy_from(&from, offset, group, Stores::NonTemporal);
        }
        best[0] = best[0].min(sys::monotonic_ns() - start);
        let start = sys::monotonic_ns();
        to.copy_shared(&from, bytes, &mut copier);
        best[1] = best[1].min(sys::monotonic_ns() - start);
    }
    Ok(best.map(|ns| ns as f64 / bytes as f64))
}

/// Eight requests of sixteen pages by the service, and the same pages by one call.
fn latencies(plan: &Plan, settings: &Settings) -> anyhow::Result<[Latency; 2]> {
    let bytes = LATENCY_REQUESTS * LATENCY_BYTES;
    let mut arena = Arena::new(PageKind::Small, bytes, plan.from)?;
    let start = arena.memory.address() as usize;
    let (mover, _) = own::open(Config::default(), settings.clone())?;
    let mut service = Latency::default();
    let mut call = Latency::default();
    let repetitions = plan.repeat as u64 + 2;
    for repetition in 0..repetitions {
        let to = [plan.to, plan.from][repetition as usize % 2];
        let cpu = sys::thread_cpu_ns();
        let begin = sys::monotonic_ns();
        for part in 0..LATENCY_REQUESTS {
            let request = mover.request().ok_or_else(stuck)?;
            let from = start + part * LATENCY_BYTES;
            let request = request
                .migrate(from..from + LATENCY_BYTES, to)
                .race(Race::Block);
            mover
                .submit(request)
                .map_err(|rejected| anyhow::anyhow!("{rejected}"))?;
        }
        let mut sum = 0;
        for _ in 0..LATENCY_REQUESTS {
            let done = mover.wait(Some(PATIENCE)).ok_or_else(stuck)?;
            anyhow::ensure!(done.status == Status::Done, "a move failed: {done:?}");
            sum += sys::monotonic_ns() - begin;
        }
        if repetition >= 2 {
            service.submitter_cpu_ns += (sys::thread_cpu_ns() - cpu) as f64;
            service.mean_ns += sum as f64 / LATENCY_REQUESTS as f64;
            service.repetitions += 1;
        } else {
            std::thread::sleep(Duration::from_millis(100));
        }
    }
    drop(mover.close(Close::Drain));
    arena.settle(plan.from)?;
    for repetition in 0..if plan.from == plan.to { 0 } else { repetitions } {
        let to = [plan.to, plan.from][repetition as usize % 2];
        let cpu = sys::thread_cpu_ns();
        let begin = sys::monotonic_ns();
        arena.call(0, bytes, 4096, to)?;
        if repetition >= 2 {
            // All of its requests complete when it returns.
            call.mean_ns += (sys::monotonic_ns() - begin) as f64;
            call.submitter_cpu_ns += (sys::thread_cpu_ns() - cpu) as f64;
            call.repetitions += 1;
        }
    }
    Ok([service, call].map(|sum| Latency {
        mean_ns: sum.mean_ns / sum.repetitions as f64,
        submitter_cpu_ns: sum.submitter_cpu_ns / sum.repetitions as f64,
        ..sum
    }))
}

impl Traffic {
    fn name(self) -> &'static str {
        match self {
            Self::Both => "both ways",
            Self::One => "one way",
        }
    }
}

impl Report {
    /// The calls that a row of the service is compared with: the cheapest.
    fn rival(&self, row: &Row) -> Option<&Took> {
        let same = |other: &&Row| {
            other.way != Way::Service
                && (other.kind, other.bytes) == (row.kind, row.bytes)
                && other.traffic == row.traffic
        };
        let rivals = self.rows.iter().filter(same).map(|other| &other.took);
        rivals.min_by_key(|took| took.wall_ns / took.requests.max(1))
    }

    /// For a person.
    #[must_use]
    pub fn text(&self) -> String {
        let direction = match self.plan.from == self.plan.to {
            true => format!("in place on {}", self.plan.from),
            false => format!("between {} and {}", self.plan.from, self.plan.to),
        };
        let mut text = format!("streams of requests, {direction}\n\n");
        for (name, works) in &self.chosen {
            let line = match works {
                Ok(()) => format!("backend {name}: serves\n"),
                Err(why) => format!("backend {name}: does not serve: {why}\n"),
            };
            text.push_str(&line);
        }
        let head = [
            "pages",
            "size",
            "traffic",
            "by",
            "requests",
            "per request",
            "GB/s",
            "CPU per request",
            "of a copy",
            "by as many",
            "speed-up",
            "CPU saved",
        ];
        let mut rows = Vec::new();
        for row in &self.rows {
            let took = &row.took;
            let each = |ns: u64| time(ns as f64 / took.requests.max(1) as f64);
            let mut cells = vec![
                row.kind.name().to_owned(),
                short_bytes(row.bytes as u64),
                row.traffic.name().to_owned(),
                row.way.name().to_owned(),
                match took.refused {
                    0 => took.requests.to_string(),
                    refused => format!("{} ({refused} pages refused)", took.requests),
                },
                each(took.wall_ns),
                format!("{:.2}", took.bytes as f64 / took.wall_ns as f64),
                each(took.cpu_ns),
                format!("{:.2}", row.copy_ns[0] / took.wall_ns as f64),
                format!("{:.2}", row.copy_ns[1] / took.wall_ns as f64),
            ];
            let rival = self.rival(row).filter(|_| row.way == Way::Service);
            cells.extend(rival.map_or([String::new(), String::new()], |rival| {
                [
                    format!("{:.2}", gain(rival.wall_ns, rival, took.wall_ns, took)),
                    format!("{:.2}", gain(rival.cpu_ns, rival, took.cpu_ns, took)),
                ]
            }));
            rows.push(cells);
        }
        text.push('\n');
        text.push_str(&print::columns(&head, &rows));
        if let Some([service, call]) = self.latency {
            text.push_str(&format!(
                "\n{LATENCY_REQUESTS} requests of 16 pages: mean latency {} and {} of CPU for the \
                 submitting thread ({} repetitions)\n",
                time(service.mean_ns),
                time(service.submitter_cpu_ns),
                service.repetitions
            ));
            if call.repetitions > 0 {
                text.push_str(&format!(
                    "the same pages by one call: {} and {}; {:.0} % less latency, {:.1} times less \
                     CPU\n",
                    time(call.mean_ns),
                    time(call.submitter_cpu_ns),
                    100.0 * (1.0 - service.mean_ns / call.mean_ns),
                    call.submitter_cpu_ns / service.submitter_cpu_ns
                ));
            }
        }
        text
    }

    /// `hither.bench-service/1` (`docs/cli.md`).
    #[must_use]
    pub fn json(&self) -> String {
        let rows: Vec<Value> = self
            .rows
            .iter()
            .map(|row| {
                json!({
                    "pages": row.kind.name(),
                    "bytes": row.bytes,
                    "traffic": row.traffic.name(),
                    "by": row.way.name(),
                    "requests": row.took.requests,
                    "wall_ns": row.took.wall_ns,
                    "cpu_ns": row.took.cpu_ns,
                    "moved_bytes": row.took.bytes,
                    "refused_pages": row.took.refused,
                    "copy_ns": row.copy_ns[0],
                    "shared_copy_ns": row.copy_ns[1],
                })
            })
            .collect();
        let latency = self.latency.map(|[service, call]| {
            let one = |latency: Latency| {
                (latency.repetitions > 0).then(|| {
                    json!({
                        "mean_ns": latency.mean_ns,
                        "submitter_cpu_ns": latency.submitter_cpu_ns,
                        "repetitions": latency.repetitions,
                    })
                })
            };
            json!({ "service": one(service), "move_pages": one(call) })
        });
        let backends: Vec<Value> = self
            .chosen
            .iter()
            .map(|(name, works)| {
                json!({ "name": name, "unavailable": works.as_ref().err().map(ToString::to_string) })
            })
            .collect();
        let document = json!({
            "schema": "hither.bench-service/1",
            "from": self.plan.from,
            "to": self.plan.to,
            "in_place": self.plan.from == self.plan.to,
            "copiers": self.plan.copiers,
            "backends": backends,
            "streams": rows,
            "latency": latency,
        });
        format!("{document:#}\n")
    }
}

/// How many times less per request.
fn gain(rival_ns: u64, rival: &Took, own_ns: u64, own: &Took) -> f64 {
    let each = |ns: u64, took: &Took| ns as f64 / took.requests.max(1) as f64;
    each(rival_ns, rival) / each(own_ns, own)
}
