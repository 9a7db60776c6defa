//! Measures the memory of this machine: latency and bandwidth from every node with CPUs to every
//! node with memory, how both change under load and with size, and from core to core; and the peak
//! floating point that a roofline puts above them.
//!
//! Problem: what firmware says of a machine (SLIT, HMAT) is coarse, missing or wrong, and placement
//! needs numbers.
//!
//! Mechanism: latency by loads of which each needs the one before ([`chain`]), bandwidth by threads
//! that do nothing else while a clock runs ([`team`]), that of caches by threads whose memory stays in
//! them ([`cached`]), peak floating point likewise ([`flops`]);
//! every figure is the median of several rounds, with their spread beside it. All memory is in huge
//! pages where the kernel has them, bound to its node, and several times as large as the last-level
//! cache.
//!
//! Source: lmbench (McVoy and Staelin, 1996) for the loads; BwMemRd, BwMemWr and BwMemCp of the
//! ccNUMA papers for the bandwidths.

pub mod alone;
pub mod cached;
pub mod chain;
mod crew;
pub mod flops;
mod results;
pub mod team;
pub mod under;

use crate::filter;
use crate::sys::NodeMemory;
use crate::topology::Topology;
use crate::topology::sysfs_cache::Cache;
use cached::Level;
use chain::Chain;
use flops::Kernel;
use hither_core::bind::KernelPolicy;
use hither_core::ids::{CpuId, NodeId};
use hither_core::set::CpuSet;
pub use results::{Bandwidth, Cached, Flops, Loaded, Pair, ProbeSample, Report};
use std::io;
use std::time::{Duration, Instant};
pub use team::ProbeWork;
use team::{ProbeTask, Team};

/// Memory that is measured is so many times the last-level cache, and this large at least.
const CACHES: u64 = 4;
const LEAST_BYTES: u64 = 64 << 20;
/// It is no larger than this: to link a GiB takes seconds.
const MOST_BYTES: u64 = 1 << 30;
/// One thread's part of that is no smaller than this.
const LEAST_SHARE: u64 = 8 << 20;
/// Of a node's available memory at most this share is used.
const MOST_SHARE: u64 = 3;
/// One round of a measurement takes at least and at most so long.
const SLICE: [Duration; 2] = [Duration::from_millis(2), Duration::from_millis(100)];
/// Floating point takes so small a part of that: units that nothing disturbs show their peak at once,
/// and emulators may take a hundred times as long for it as for other work.
const PEAK_PART: u32 = 8;
/// Turns of an empty loop after each line, for less and less load.
const PAUSES: [u32; 7] = [0, 1, 2, 4, 8, 20, 100];
/// Smallest working set of the curve over sizes.
const SMALLEST_SET: u64 = 8 << 10;

/// What to measure, and how long that may take.
#[derive(Clone, Debug)]
pub struct Settings {
    /// All measurements together, without getting the memory for them.
    pub budget: Duration,
    /// Rounds of each.
    pub rounds: usize,
    /// CPUs that may be used.
    pub cpus: CpuSet,
    /// Caches of this machine; of those left out the bandwidth is not measured.
    pub caches: Vec<Cache>,
}

/// A node with CPUs.
#[derive(Clone)]
struct Place {
    node: NodeId,
    cpus: Vec<CpuId>,
    /// Position of the memory that is nearest.
    near: usize,
}

/// How often a figure is measured, and how long each time.
#[derive(Clone, Copy)]
struct Rounds {
    count: usize,
    slice: Duration,
}

impl Rounds {
    fn of(self, mut one: impl FnMut(Duration) -> f64) -> ProbeSample {
        ProbeSample::of((0..self.count).map(|_| one(self.slice)).collect())
    }

    /// Of what may fail: of the rounds that did not; `None` without any.
    fn of_some(self, mut one: impl FnMut(Duration) -> Option<f64>) -> Option<ProbeSample> {
        let figures: Vec<f64> = (0..self.count).map_while(|_| one(self.slice)).collect();
        (!figures.is_empty()).then(|| ProbeSample::of(figures))
    }
}

struct Probe<'a> {
    settings: &'a Settings,
    places: Vec<Place>,
    memory: Vec<NodeId>,
    /// Available bytes of each node with memory.
    available: Vec<u64>,
    cache_bytes: u64,
    levels: Vec<Level>,
    rounds: Rounds,
    progress: &'a mut dyn FnMut(usize, usize, &str),
    done: usize,
    total: usize,
    /// What is being measured, and what could not be.
    current: String,
    left_out: Vec<String>,
    huge: bool,
}

/// Measures. `progress` is told how many of how many measurements are done, and which is next.
///
/// # Errors
/// No CPU or no memory to measure, too little available memory, or what the kernel said.
pub fn measure(
    topology: &Topology,
    settings: &Settings,
    progress: &mut dyn FnMut(usize, usize, &str),
) -> io::Result<Report> {
    let mut probe = Probe::new(topology, settings, progress)?;
    let places = probe.places.clone();
    let latency = probe.latency()?;
    let bandwidth = probe.bandwidth()?;
    let scaling = (0..).zip(&places);
    let scaling = scaling.map(|(index, place)| probe.scaling(index, place, &bandwidth));
    let scaling = scaling.collect::<io::Result<_>>()?;
    let loaded = places.iter().map(|place| probe.loaded(place));
    let loaded = loaded.collect::<io::Result<_>>()?;
    let (caches, sets) = (probe.caches()?, probe.sets()?);
    let (pairs, flops) = (probe.pairs(topology)?, probe.flops()?);
    Ok(Report {
        cpu_nodes: places.iter().map(|place| place.node).collect(),
        memory_nodes: probe.memory.clone(),
        latency,
        scaling,
        bandwidth,
        loaded,
        caches,
        sets,
        pairs,
        flops,
        left_out: std::mem::take(&mut probe.left_out),
        huge: probe.huge,
        bytes: probe.bytes(0),
    })
}

impl<'a> Probe<'a> {
    fn new(
        topology: &Topology,
        settings: &'a Settings,
        progress: &'a mut dyn FnMut(usize, usize, &str),
    ) -> io::Result<Self> {
        let has_memory = |node: &&crate::topology::NodeInfo| node.memory.total_kb > 0;
        let nodes: Vec<_> = topology.nodes.iter().filter(has_memory).collect();
        let memory: Vec<NodeId> = nodes.iter().map(|node| node.id).collect();
        let available = nodes
            .iter()
            .map(|node| node.memory.available_kb() << 10)
            .collect();
        let mut places = Vec::new();
        for (position, node) in topology.nodes.iter().enumerate() {
            let usable = node.cpus.iter().filter(|cpu| settings.cpus.contains(*cpu));
            let cpus: Vec<CpuId> = usable.collect();
            let distance = |to: &NodeId| {
                let to = topology.nodes.iter().position(|node| node.id == *to);
                to.map_or(u32::MAX, |to| topology.distances[position][to])
            };
            let near = (0..memory.len()).min_by_key(|&index| distance(&memory[index]));
            if let (Some(near), false) = (near, cpus.is_empty()) {
                places.push(Place {
                    node: node.id,
                    cpus,
                    near,
                });
            }
        }
        if places.is_empty() {
            let text = "no CPU that may be used is near any memory";
            return Err(io::Error::new(io::ErrorKind::NotFound, text));
        }
        let caches = topology.domains.iter().filter_map(|domain| domain.size_kb);
        let cells = places.len() * memory.len();
        let threads = places.iter().map(|place| between(place.cpus.len()).count());
        let sets = 2 * (MOST_BYTES / SMALLEST_SET).ilog2() as usize;
        let peaks = Kernel::available().len() * (2 * places.len() + 1);
        let levels = cached::levels(&settings.caches);
        let total = cells * (1 + 2 * ProbeWork::ALL.len())
            + 2 * places.len() * levels.len()
            + peaks
            + threads.sum::<usize>()
            + places.len() * PAUSES.len()
            + sets
            + 4;
        let mut probe = Self {
            settings,
            places,
            memory,
            available,
            levels,
            cache_bytes: caches.max().unwrap_or(0) << 10,
            rounds: Rounds {
                count: settings.rounds,
                slice: SLICE[0],
            },
            progress,
            done: 0,
            total,
            current: String::new(),
            left_out: Vec::new(),
            huge: (topology.transparent_huge_pages.as_deref()).is_some_and(|mode| mode != "never"),
        };
        probe.share_among(total);
        Ok(probe)
    }

    /// The time for so many measurements, so many rounds each.
    fn share_among(&mut self, total: usize) {
        let slice = self.settings.budget / (total * self.rounds.count).max(1) as u32;
        self.rounds.slice = slice.clamp(SLICE[0], SLICE[1]);
        self.total = total;
    }

    fn begin(&mut self, what: &str) {
        (self.progress)(self.done.min(self.total), self.total, what);
        what.clone_into(&mut self.current);
        self.done += 1;
    }

    /// Notes what could not be measured.
    fn kept<T>(&mut self, figure: Option<T>) -> Option<T> {
        if figure.is_none() {
            self.left_out.push(self.current.clone());
        }
        figure
    }

    /// Bytes that are measured of a memory node at once.
    fn bytes(&self, memory: usize) -> u64 {
        let wanted = (CACHES * self.cache_bytes).clamp(LEAST_BYTES, MOST_BYTES);
        wanted.min(self.available[memory] / MOST_SHARE)
    }

    /// What is read to have nothing else in the caches.
    fn other_bytes(&self) -> u64 {
        (2 * self.cache_bytes).clamp(4 << 20, MOST_BYTES)
    }

    fn get(&self, memory: usize, bytes: u64) -> io::Result<NodeMemory> {
        let node = self.memory[memory].0;
        let policy = KernelPolicy::bound_to(NodeId(node));
        memory_under(bytes as usize, &policy, self.huge).map_err(|error| {
            let text = format!("{} MiB on node{node}: {error}", bytes >> 20);
            io::Error::new(error.kind(), text)
        })
    }

    fn latency(&mut self) -> io::Result<Vec<Vec<ProbeSample>>> {
        let rounds = self.rounds;
        let mut latency = vec![Vec::new(); self.places.len()];
        let mut other = self.get(self.places[0].near, self.other_bytes())?;
        let other = other.values_mut(1u64);
        for memory in 0..self.memory.len() {
            let mut bytes = self.get(memory, self.bytes(memory))?;
            let words = bytes.values_mut(0);
            // Where the first measurement empties the caches of it.
            let mut chain = on(self.places[0].cpus[0], || Chain::new(words))?;
            for (place, row) in latency.iter_mut().enumerate() {
                let Place { node, .. } = self.places[place];
                let cpu = self.places[place].cpus[0];
                self.begin(&format!("latency, {node} to {}", self.memory[memory]));
                // Neither what was here before nor what stays behind is to be found in a cache.
                row.push(on(cpu, || {
                    team::read(other);
                    let sample = rounds.of(|slice| chain.follow(slice));
                    team::read(other);
                    sample
                })?);
            }
        }
        Ok(latency)
    }

    fn bandwidth(&mut self) -> io::Result<Vec<Bandwidth>> {
        let rounds = self.rounds;
        let empty = || vec![Vec::new(); self.places.len()];
        let mut all = ProbeWork::ALL.map(|work| Bandwidth {
            work,
            one: empty(),
            all: empty(),
        });
        for place in 0..self.places.len() {
            for memory in 0..self.memory.len() {
                for is_all in [false, true] {
                    let Place { node, cpus, .. } = &self.places[place];
                    let count = if is_all { cpus.len() } else { 1 };
                    let to = self.memory[memory];
                    let text = format!("{count} on {node}, memory of {to}");
                    let team = Team::start(cpus[..count].to_vec(), &self.task(memory, count))?;
                    for bandwidth in &mut all {
                        self.begin(&format!("{}, {text}", bandwidth.work.name()));
                        team.turn_to(bandwidth.work);
                        let matrix = match is_all {
                            true => &mut bandwidth.all,
                            false => &mut bandwidth.one,
                        };
                        let gbs = rounds.of_some(|slice| team.gbs(slice));
                        matrix[place].push(self.kept(gbs));
                    }
                }
            }
        }
        Ok(all.into())
    }

    fn task(&self, memory: usize, threads: usize) -> ProbeTask {
        let share = (self.bytes(memory) / threads as u64).max(LEAST_SHARE);
        let most = self.available[memory] / MOST_SHARE / threads as u64;
        ProbeTask {
            policy: KernelPolicy::bound_to(self.memory[memory]),
            bytes: (share.min(most) as usize).max(team::CHUNK_BYTES),
            huge: self.huge,
        }
    }

    /// One thread and all of them are among the bandwidths already.
    fn scaling(
        &mut self,
        index: usize,
        place: &Place,
        bandwidth: &[Bandwidth],
    ) -> io::Result<Vec<(usize, ProbeSample)>> {
        let Place { node, cpus, near } = place;
        let rounds = self.rounds;
        let mut row = Vec::new();
        for count in between(cpus.len()) {
            let team = Team::start(cpus[..count].to_vec(), &self.task(*near, count))?;
            self.begin(&format!("read, {count} on {node}"));
            let gbs = rounds.of_some(|slice| team.gbs(slice));
            row.push((count, self.kept(gbs)));
        }
        if let Some(read) = bandwidth.iter().find(|one| one.work == ProbeWork::Read) {
            row.insert(0, (1, read.one[index][*near]));
            if cpus.len() > 1 {
                row.push((cpus.len(), read.all[index][*near]));
            }
        }
        let told = row
            .into_iter()
            .filter_map(|(count, gbs)| Some((count, gbs?)));
        Ok(told.collect())
    }

    fn loaded(&mut self, place: &Place) -> io::Result<Vec<Loaded>> {
        let &Place { node, near, .. } = place;
        let [first, others @ ..] = &place.cpus[..] else {
            return Ok(Vec::new());
        };
        if others.is_empty() {
            return Ok(Vec::new());
        }
        let rounds = self.rounds;
        let mut bytes = self.get(near, self.bytes(near))?;
        let words = bytes.values_mut(0);
        let mut chain = on(*first, || Chain::new(words))?;
        let mut other = self.get(near, self.other_bytes())?;
        let other = other.values_mut(1u64);
        let team = Team::start(others.to_vec(), &self.task(near, others.len()))?;
        let mut row = Vec::new();
        for pause in PAUSES {
            self.begin(&format!("latency under load, {node}"));
            team.pause(pause);
            let point = on(*first, || {
                if row.is_empty() {
                    team::read(other);
                }
                let mut gbs = Vec::new();
                let ns = rounds.of(|slice| {
                    let mut ns = 0.0;
                    gbs.push(team.during(|| ns = chain.follow(slice)));
                    ns
                });
                // Load that nobody made is none.
                let gbs = ProbeSample::of(gbs);
                (gbs.median > 0.0).then_some(Loaded { gbs, ns })
            })?;
            row.extend(self.kept(point));
        }
        Ok(row)
    }

    fn sets(&mut self) -> io::Result<Vec<(u64, ProbeSample)>> {
        let rounds = self.rounds;
        let Place { near, .. } = self.places[0];
        let cpu = self.places[0].cpus[0];
        let most = self.bytes(near);
        let mut bytes = self.get(near, most)?;
        let words = bytes.values_mut(0u64);
        let mut all = Vec::new();
        let mut size = SMALLEST_SET;
        while size <= most {
            for set in [size, size + size / 2] {
                if set > most {
                    continue;
                }
                self.begin(&format!("latency of {} KiB", set >> 10));
                let mut chain = Chain::new(&mut words[..set as usize / 8]);
                let sample = on(cpu, || {
                    chain.warm();
                    rounds.of(|slice| chain.follow(slice))
                })?;
                all.push((set, sample));
            }
            size *= 2;
        }
        Ok(all)
    }

    /// Each level by the first CPU of each node, and by all CPUs of the node.
    fn caches(&mut self) -> io::Result<Vec<Cached>> {
        let (levels, places) = (self.levels.clone(), self.places.clone());
        let mut all = Vec::new();
        for (index, level) in levels.iter().enumerate() {
            let mut cached = Cached {
                level: level.level,
                bytes: level.bytes,
                one: Vec::new(),
                all: Vec::new(),
            };
            for place in &places {
                let one = self.cache(&levels, index, place, 1)?;
                cached.one.push(one);
                cached.all.push(match place.cpus.len() {
                    1 => one,
                    count => self.cache(&levels, index, place, count)?,
                });
            }
            all.push(cached);
        }
        Ok(all)
    }

    fn cache(
        &mut self,
        levels: &[Level],
        index: usize,
        place: &Place,
        count: usize,
    ) -> io::Result<Option<ProbeSample>> {
        let cpus = &place.cpus[..count];
        let (level, node) = (levels[index].level, place.node);
        self.begin(&format!(
            "reading caches of level {level}, {count} on {node}"
        ));
        let Some(bytes) = cached::set_bytes(levels, index, cpus) else {
            return Ok(None);
        };
        let policy = KernelPolicy::bound_to(self.memory[place.near]);
        let team = cached::Team::start(cpus.to_vec(), &policy, bytes, self.huge)?;
        let gbs = self.rounds.of_some(|slice| team.gbs(slice));
        Ok(self.kept(gbs))
    }

    fn flops(&mut self) -> io::Result<Vec<Flops>> {
        let places = self.places.clone();
        let everywhere: Vec<CpuId> = places.iter().flat_map(|place| place.cpus.clone()).collect();
        let mut all = Vec::new();
        for kernel in Kernel::available() {
            let (mut one, mut node) = (Vec::new(), Vec::new());
            for place in &places {
                let first = self.peak(kernel, &place.cpus[..1])?;
                one.push(first);
                node.push(match place.cpus.len() {
                    1 => first,
                    _ => self.peak(kernel, &place.cpus)?,
                });
            }
            all.push(Flops {
                instructions: kernel.instructions(),
                precision: kernel.precision(),
                all: match node[..] {
                    [only] => only,
                    _ => self.peak(kernel, &everywhere)?,
                },
                one,
                node,
            });
        }
        Ok(all)
    }

    fn peak(&mut self, kernel: Kernel, cpus: &[CpuId]) -> io::Result<Option<ProbeSample>> {
        let (precision, instructions) = (kernel.precision(), kernel.instructions());
        self.begin(&format!(
            "{} precision by {}, {} from {} on",
            precision.name(),
            instructions.name(),
            cpus.len(),
            cpus[0]
        ));
        let team = flops::Team::start(cpus.to_vec(), kernel)?;
        let gflops = self.rounds.of_some(|slice| team.gflops(slice / PEAK_PART));
        Ok(self.kept(gflops))
    }

    /// The first CPU with one that shares its cache, and one of every other cache.
    fn pairs(&mut self, topology: &Topology) -> io::Result<Vec<Pair>> {
        let first = self.places[0].cpus[0];
        let mut all = Vec::new();
        for domain in &topology.domains {
            let usable = |cpu: &CpuId| self.settings.cpus.contains(*cpu) && *cpu != first;
            let Some(other) = domain.cpus.iter().find(usable) else {
                continue;
            };
            self.begin(&format!("{first} to {other}"));
            let Rounds { count, slice } = self.rounds;
            let figures: io::Result<Vec<f64>> = (0..count)
                .map(|_| team::hand_over([first, other], slice))
                .collect();
            all.push(Pair {
                cpus: [first, other],
                shares_cache: domain.cpus.contains(first),
                ns: ProbeSample::of(figures?),
            });
        }
        Ok(all)
    }
}

/// Runs something on a CPU, on a thread of its own: the caller stays where it is.
fn on<T: Send>(cpu: CpuId, work: impl FnOnce() -> T + Send) -> io::Result<T> {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| crew::stay_on(cpu).map(|()| work()));
        let done = thread.join();
        done.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// 2, 4, 8 and so on, fewer than `most`.
fn between(most: usize) -> impl Iterator<Item = usize> {
    let powers = (1..usize::BITS).map(|shift| 1 << shift);
    powers.take_while(move |count| *count < most)
}

/// Time enough for a call of `work` many times, in ns per call.
fn per_call(slice: Duration, calls: u64, mut work: impl FnMut()) -> f64 {
    let begin = Instant::now();
    let mut count = 0;
    while count == 0 || begin.elapsed() < slice {
        work();
        count += calls;
    }
    begin.elapsed().as_nanos() as f64 / count as f64
}

/// Memory under a policy; without one where the kernel takes none and there is one node only.
fn memory_under(bytes: usize, policy: &KernelPolicy, huge: bool) -> io::Result<NodeMemory> {
    NodeMemory::under(bytes, Some(policy), huge).or_else(|error| {
        match filter::needs_no_policy(&error) {
            true => NodeMemory::under(bytes, None, huge),
            false => Err(error),
        }
    })
}
