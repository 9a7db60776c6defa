//! `hither bench service`: streams of requests through the asynchronous service, beside calls of
//! `move_pages(2)` one by one.
//!
//! A *group* of requests that follow each other goes to the other node. Traffic *both* ways: the
//! group comes back by requests too, so that pages are used again. Traffic *one* way: it is brought
//! back outside of the timing. Wall and CPU time run from the first submission to the last
//! completion, and CPU time is that of all threads of the process.

mod latency;
mod report;

use super::methods::{HUGE_BYTES, PageKind};
use anyhow::Context;
use hither_core::ids::NodeId;
use hither_linux::backend::copy::{Copier, CopyStores};
use hither_linux::backend::kernel::KernelBackend;
use hither_linux::backend::own::{self, Chosen, Settings};
use hither_linux::bind;
use hither_linux::proc::schedstat;
use hither_linux::sys::{self, Present, PrivateMemory};
use hither_mover::{Backend, Close, Config, Mover, Race, Request};
use latency::{Latency, latencies};
use std::sync::Barrier;
use std::time::Duration;

/// Bytes of a group of small requests; a larger request is a group of its own.
const GROUP_BYTES: usize = 4 << 20;
/// A thread that has ended its work is off its CPU after that, so that its time is in the
/// machine's account.
const SETTLE: Duration = Duration::from_millis(2);
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
    /// The same, with pages that moves leave behind used again.
    Recycling,
    /// One call of `move_pages` per request, one address per page of 4 KiB.
    Calls,
    /// The same with one address per huge page.
    CallsHuge,
}

impl Way {
    fn is_service(self) -> bool {
        matches!(self, Self::Service | Self::Recycling)
    }

    fn name(self) -> &'static str {
        match self {
            Self::Service => "service",
            Self::Recycling => "service, recycling",
            Self::Calls => "move_pages",
            Self::CallsHuge => "move_pages, by huge page",
        }
    }
}

/// What a stream took.
#[derive(Clone, Copy, Debug)]
struct Took {
    wall_ns: u64,
    cpu_ns: u64,
    /// CPU time of everything on the machine, kernel threads included; `None`: the kernel does not
    /// tell.
    machine_ns: Option<u64>,
    requests: u64,
    bytes: u64,
    /// Pages that did not arrive.
    refused: u64,
    /// Bare copies beside the rounds: by one thread, and by as many as the service copies with.
    copy_ns: [u64; 2],
    copied: u64,
}

impl Took {
    fn new() -> Self {
        Self {
            wall_ns: 0,
            cpu_ns: 0,
            machine_ns: Some(0),
            requests: 0,
            bytes: 0,
            refused: 0,
            copy_ns: [0; 2],
            copied: 0,
        }
    }

    /// What bare copies of as many bytes would have taken, in ns.
    fn bare_ns(&self) -> [f64; 2] {
        let share = self.bytes as f64 / self.copied as f64;
        self.copy_ns.map(|ns| ns as f64 * share)
    }

    /// Runs one round and adds it.
    fn round(
        &mut self,
        requests: usize,
        bytes: usize,
        run: impl FnOnce() -> anyhow::Result<u64>,
    ) -> anyhow::Result<()> {
        std::thread::sleep(SETTLE);
        let machine = schedstat::busy_ns();
        let (cpu, wall) = (sys::own_cpu_ns(), sys::monotonic_ns());
        self.refused += run()?;
        self.wall_ns += sys::monotonic_ns() - wall;
        self.cpu_ns += sys::own_cpu_ns() - cpu;
        std::thread::sleep(SETTLE);
        let busy = |end, begin| self.machine_ns.map(|sum| sum + (end - begin));
        self.machine_ns = match (schedstat::busy_ns(), machine) {
            (Some(end), Some(begin)) => busy(end, begin),
            _ => None,
        };
        self.requests += requests as u64;
        self.bytes += (requests * bytes) as u64;
        Ok(())
    }
}

struct Row {
    kind: PageKind,
    bytes: usize,
    traffic: Traffic,
    way: Way,
    took: Took,
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
    /// Workers of the service, and threads that make the calls that it is compared with.
    pub workers: usize,
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
}

/// One thread's calls of `move_pages`.
#[derive(Default)]
struct Caller {
    addresses: Vec<u64>,
    nodes: Vec<i32>,
    status: Vec<i32>,
}

impl Caller {
    /// Moves a range; returns how many of the addresses did not arrive.
    fn call(&mut self, start: u64, bytes: usize, step: usize, to: NodeId) -> anyhow::Result<u64> {
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
}

impl Arena {
    fn new(kind: PageKind, bytes: usize, node: NodeId) -> anyhow::Result<Self> {
        let mut memory = PrivateMemory::new(bytes, kind == PageKind::Huge)?;
        sys::bind_memory(memory.address(), memory.len() as u64, node.0, Present::Stay)?;
        memory.fill_pages(1);
        Ok(Self { memory, kind })
    }

    /// Brings it all to a node, outside of any timing.
    fn settle(&self, to: NodeId) -> anyhow::Result<()> {
        let (start, bytes) = (self.memory.address(), self.memory.len());
        let moved = Caller::default().call(start, bytes, self.kind.bytes(), to);
        moved.map(drop)
    }
}

/// Measures everything.
///
/// # Errors
/// No memory on a node, or no service.
pub fn measure(plan: Plan) -> anyhow::Result<Report> {
    // Calls of move_pages(2) are what it is measured beside.
    KernelBackend::new().probe().context("backend kernel")?;
    bind::can_choose_node(plan.from)?;
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
            let arena = Arena::new(
                *kind,
                (plan.workers.max(2) * group).max(32 << 20),
                plan.from,
            )?;
            let mut yardstick = Yardstick::new(&plan, *kind, arena.memory.len(), group)?;
            for traffic in [Traffic::Both, Traffic::One] {
                for way in ways(*kind, &plan, traffic) {
                    arena.settle(plan.from)?;
                    let took = if way.is_service() {
                        settings.swap.limits.recycle = way == Way::Recycling;
                        let (mover, serving) = own::open(config(&plan), settings.clone())?;
                        chosen = serving;
                        let took =
                            stream(&mover, &arena, &mut yardstick, &plan, bytes, group, traffic)?;
                        drop(mover.close(Close::Drain));
                        took
                    } else {
                        calls(&arena, &mut yardstick, &plan, bytes, group, traffic, way)?
                    };
                    rows.push(Row {
                        kind: *kind,
                        bytes,
                        traffic,
                        way,
                        took,
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

fn config(plan: &Plan) -> Config {
    Config {
        workers: plan.workers,
        ..Config::default()
    }
}

/// Pages can be used again where traffic goes both ways. In place the kernel moves nothing, and gets
/// all huge pages but those in stock.
fn ways(kind: PageKind, plan: &Plan, traffic: Traffic) -> Vec<Way> {
    let in_place = plan.from == plan.to;
    let mut ways = Vec::new();
    if !(in_place && kind == PageKind::Huge) {
        ways.push(Way::Service);
    }
    if traffic == Traffic::Both {
        ways.push(Way::Recycling);
    }
    if !in_place {
        ways.push(Way::Calls);
        if kind == PageKind::Huge {
            ways.push(Way::CallsHuge);
        }
    }
    ways
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

/// Each thread has groups of its own.
fn calls(
    arena: &Arena,
    yardstick: &mut Yardstick,
    plan: &Plan,
    bytes: usize,
    group: usize,
    traffic: Traffic,
    way: Way,
) -> anyhow::Result<Took> {
    let groups = requests(arena, plan, bytes, group, traffic);
    let count = groups.iter().map(Vec::len).sum();
    let step = match way {
        Way::CallsHuge => HUGE_BYTES,
        _ => 4096,
    };
    let start = arena.memory.address();
    let mut callers: Vec<Caller> = (0..plan.workers).map(|_| Caller::default()).collect();
    let mut run = |took: &mut Took| {
        let ready = Barrier::new(plan.workers + 1);
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..)
                .zip(&mut callers)
                .map(|(number, caller)| {
                    let own = groups.iter().skip(number).step_by(plan.workers);
                    let ready = &ready;
                    scope.spawn(move || {
                        ready.wait();
                        own.flatten().try_fold(0, |refused, &(offset, to)| {
                            let start = start + offset as u64;
                            Ok(refused + caller.call(start, bytes, step, to)?)
                        })
                    })
                })
                .collect();
            took.round(count, bytes, || {
                ready.wait();
                let ends = threads.into_iter().map(|thread| thread.join());
                ends.map(|end| end.unwrap_or_else(|_| Err(anyhow::anyhow!("a caller panicked"))))
                    .sum()
            })
        })
    };
    // The first round warms up.
    run(&mut Took::new())?;
    let mut took = Took::new();
    while took.requests < plan.repeat as u64 {
        if traffic == Traffic::One {
            arena.settle(plan.from)?;
        }
        run(&mut took)?;
        yardstick.measure(&mut took);
    }
    Ok(took)
}

/// Requests that may be under way together. One worker takes them in turn. Several take them at once,
/// so that none may ask for memory that another has not brought yet: each has a group, and the way
/// back begins when all have arrived.
fn waves(
    groups: Vec<Vec<(usize, NodeId)>>,
    plan: &Plan,
    traffic: Traffic,
) -> Vec<Vec<(usize, NodeId)>> {
    if plan.workers == 1 || traffic == Traffic::One {
        return vec![groups.concat()];
    }
    let there_and_back = |wave: &[Vec<(usize, NodeId)>]| {
        let half = |back: bool| {
            let part = |group: &Vec<(usize, NodeId)>| {
                let (there, returning) = group.split_at(group.len() / 2);
                if back { returning } else { there }.to_vec()
            };
            wave.iter().flat_map(part).collect()
        };
        [half(false), half(true)]
    };
    groups
        .chunks(plan.workers)
        .flat_map(there_and_back)
        .collect()
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
    arena: &Arena,
    yardstick: &mut Yardstick,
    plan: &Plan,
    bytes: usize,
    group: usize,
    traffic: Traffic,
) -> anyhow::Result<Took> {
    let round = waves(requests(arena, plan, bytes, group, traffic), plan, traffic);
    let count = round.iter().map(Vec::len).sum();
    let start = arena.memory.address() as usize;
    let run = || {
        let mut refused = 0;
        for wave in &round {
            let mut done = Done::default();
            for &(offset, to) in wave {
                let request = next(mover, &mut done)?;
                let range = start + offset..start + offset + bytes;
                let request = request.migrate(range, to).race(Race::Block);
                mover
                    .submit(request)
                    .map_err(|rejected| anyhow::anyhow!("{rejected}"))?;
            }
            let open = wave.len() - done.requests;
            retrieve(mover, open as u16, &mut done)?;
            refused += done.refused;
        }
        Ok(refused)
    };
    // The first round finds nothing in stock; in the pause behind it the pool fills up.
    run()?;
    std::thread::sleep(Duration::from_millis(200));
    let mut took = Took::new();
    while took.requests < plan.repeat as u64 {
        if traffic == Traffic::One {
            arena.settle(plan.from)?;
        }
        took.round(count, bytes, run)?;
        yardstick.measure(&mut took);
    }
    Ok(took)
}

/// Bare non-temporal copies between the nodes, by one thread and by as many as the service copies
/// with, through as much memory as the streams. Timed beside each round of them: these machines are
/// not equally fast at all times.
struct Yardstick {
    from: PrivateMemory,
    to: PrivateMemory,
    copier: Copier,
    /// Where the next copy begins, and its length.
    next: usize,
    step: usize,
}

impl Yardstick {
    fn new(plan: &Plan, kind: PageKind, bytes: usize, group: usize) -> anyhow::Result<Self> {
        Ok(Self {
            from: Arena::new(kind, bytes, plan.from)?.memory,
            to: Arena::new(kind, bytes, plan.to)?.memory,
            copier: Copier::new(plan.copiers, &[])?,
            next: 0,
            step: group,
        })
    }

    /// Adds the times of one copy each way.
    fn measure(&mut self, took: &mut Took) {
        let start = sys::monotonic_ns();
        self.to
            .copy_from(&self.from, self.next, self.step, CopyStores::NonTemporal);
        took.copy_ns[0] += sys::monotonic_ns() - start;
        let start = sys::monotonic_ns();
        let part = self.next..self.next + self.step;
        self.to.copy_shared(&self.from, part, &mut self.copier);
        took.copy_ns[1] += sys::monotonic_ns() - start;
        took.copied += self.step as u64;
        self.next = (self.next + self.step) % self.from.len();
    }
}
