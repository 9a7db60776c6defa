//! One process as the model keeps it: rates, where it runs, where its pages are.

use super::reading::Accesses;
use hither_core::snapshot::Evidence;
use hither_linux::bind::astray::AstrayFigures;
use hither_linux::counters::task::TaskTimes;
use hither_linux::proc::stat::TICKS_PER_SECOND;
use std::collections::BTreeMap;

/// Where CPU time of five seconds ago counts half.
const HALF_LIFE_US: f64 = 5e6;
/// Samples that a ratio needs: below, one sample more would change it by over three points.
pub const LEAST_SAMPLES: u64 = 30;
/// Bytes of a base page in KiB.
const PAGE_KB: u64 = 4;

/// CPU time by node, older time counting less.
#[derive(Clone, Debug, Default)]
pub struct Running {
    weights: Vec<f64>,
    added_us: u64,
}

impl Running {
    /// Begins with where it ran last: a trace that the first real CPU time outweighs.
    pub fn start(nodes: usize, last: Option<usize>, at_us: u64) -> Self {
        let mut running = Self {
            weights: vec![0.0; nodes],
            added_us: at_us,
        };
        if let Some(weight) = last.and_then(|node| running.weights.get_mut(node)) {
            *weight = 1e-3;
        }
        running
    }

    /// Adds CPU time on a node. Without any, nothing ages: an idle process stays where it ran.
    pub fn add(&mut self, node: Option<usize>, ticks: u64, at_us: u64) {
        if ticks == 0 {
            return;
        }
        let age_us = at_us.saturating_sub(self.added_us) as f64;
        let left = 0.5f64.powf(age_us / HALF_LIFE_US);
        self.weights.iter_mut().for_each(|weight| *weight *= left);
        self.added_us = at_us;
        if let Some(weight) = node.and_then(|node| self.weights.get_mut(node)) {
            *weight += ticks as f64;
        }
    }

    /// Share of each node, summing to 1; `None` where no node is known.
    #[must_use]
    pub fn shares(&self) -> Option<Vec<f64>> {
        shares(&self.weights)
    }
}

fn shares(weights: &[f64]) -> Option<Vec<f64>> {
    let sum: f64 = weights.iter().sum();
    (sum > 0.0).then(|| weights.iter().map(|weight| weight / sum).collect())
}

/// Share of pages that would have to move for memory to lie as the CPU time does:
/// `1 - sum(min(pages, time))` over the nodes. 0 where all is local or spread alike, 1 where
/// nothing is where the threads run.
#[must_use]
pub fn misplacement(pages: &[u64], running: &[f64]) -> Option<f64> {
    let pages: Vec<f64> = pages.iter().map(|&count| count as f64).collect();
    let pages = shares(&pages)?;
    let there: f64 = pages.iter().zip(running).map(|(p, r)| p.min(*r)).sum();
    Some((1.0 - there).clamp(0.0, 1.0))
}

/// One thread.
#[derive(Clone, Debug)]
pub struct Thread {
    /// Command name of the thread.
    pub name: String,
    /// CPUs that it used: 1 is one whole CPU.
    pub cpu: Evidence<f64>,
    /// The CPU on which it ran last.
    pub last_cpu: u32,
    /// Where it ran.
    pub running: Running,
    ticks: u64,
    start_ticks: u64,
}

/// One process.
#[derive(Clone, Debug)]
pub struct Process {
    /// Its number.
    pub pid: i32,
    /// The last reading.
    pub task: TaskTimes,
    /// CPUs that it used: 1 is one whole CPU.
    pub cpu: Evidence<f64>,
    /// Faults per second, without and with reading from a disk.
    pub faults: Evidence<(f64, f64)>,
    /// Base pages by node position.
    pub residency: Evidence<Vec<u64>>,
    /// What of its memory is not where it is bound to.
    pub astray: Evidence<AstrayFigures>,
    /// Base pages that the kernel does not count as resident, when the residency was looked at.
    pub hugetlb_pages: u64,
    /// Share of sampled accesses served by the requesting CPU's own node.
    pub local: Evidence<f64>,
    /// Mean latency of its samples.
    pub latency_ns: Evidence<f64>,
    /// Where it ran.
    pub running: Running,
    /// Its threads, as far as they were looked at.
    pub threads: BTreeMap<i32, Thread>,
    /// When it was read last.
    pub read_us: u64,
    /// When its residency was; `None`: never, or it has executed another program since.
    pub residency_us: Option<u64>,
    /// When its threads were.
    pub threads_us: Option<u64>,
}

impl Process {
    /// One that was seen for the first time.
    pub fn new(pid: i32, task: TaskTimes, node: Option<usize>, nodes: usize, at_us: u64) -> Self {
        const ONCE: &str = "it was read once so far";
        Self {
            pid,
            cpu: Evidence::unknown(ONCE),
            faults: Evidence::unknown(ONCE),
            residency: Evidence::unknown("its pages were not looked for yet"),
            astray: Evidence::unknown("its pages were not looked for yet"),
            hugetlb_pages: 0,
            local: Evidence::unknown(ONCE),
            latency_ns: Evidence::unknown(ONCE),
            running: Running::start(nodes, node, at_us),
            threads: BTreeMap::new(),
            read_us: at_us,
            residency_us: None,
            threads_us: None,
            task,
        }
    }

    /// Is this reading one of the same process, and not of another with its number?
    #[must_use]
    pub fn is_same(&self, task: &TaskTimes) -> bool {
        self.task.stat.start_ticks == task.stat.start_ticks
    }

    /// Takes a later reading of the same process. `node`: where its first thread ran last.
    pub fn update(&mut self, task: TaskTimes, node: Option<usize>, at_us: u64) {
        let elapsed_us = at_us.saturating_sub(self.read_us);
        if elapsed_us == 0 {
            return;
        }
        let ticks = task.stat.cpu_ticks.saturating_sub(self.task.stat.cpu_ticks);
        let per_second =
            |now: u64, before: u64| now.saturating_sub(before) as f64 * 1e6 / elapsed_us as f64;
        self.cpu = Evidence::measured(cpus(ticks, elapsed_us), "/proc/PID/stat");
        self.faults = Evidence::measured(
            (
                per_second(task.minor_faults, self.task.minor_faults),
                per_second(task.major_faults, self.task.major_faults),
            ),
            "/proc/PID/stat",
        );
        // With several threads, each is asked where it ran.
        if task.thread_count == 1 {
            self.running.add(node, ticks, at_us);
        }
        if task.stat.name != self.task.stat.name {
            self.residency_us = None;
        }
        self.task = task;
        self.read_us = at_us;
    }

    /// Takes a reading of all its threads.
    pub fn update_threads(
        &mut self,
        read: Vec<(i32, TaskTimes)>,
        node_of: impl Fn(u32) -> Option<usize>,
        nodes: usize,
        at_us: u64,
    ) {
        let elapsed_us = at_us.saturating_sub(self.threads_us.unwrap_or(at_us));
        let mut before = std::mem::take(&mut self.threads);
        for (tid, task) in read {
            let node = node_of(task.last_cpu);
            let ticks = task.stat.cpu_ticks;
            let known = before.remove(&tid);
            let known = known.filter(|thread| thread.start_ticks == task.stat.start_ticks);
            let mut thread = known.unwrap_or_else(|| Thread {
                name: String::new(),
                cpu: Evidence::unknown("it was read once so far"),
                last_cpu: task.last_cpu,
                running: Running::start(nodes, node, at_us),
                ticks,
                start_ticks: task.stat.start_ticks,
            });
            let used = ticks.saturating_sub(thread.ticks);
            if elapsed_us > 0 {
                let cpu = cpus(used, elapsed_us);
                thread.cpu = Evidence::measured(cpu, "/proc/PID/task/TID/stat");
            }
            thread.running.add(node, used, at_us);
            self.running.add(node, used, at_us);
            thread.name = task.stat.name;
            thread.last_cpu = task.last_cpu;
            thread.ticks = ticks;
            self.threads.insert(tid, thread);
        }
        self.threads_us = Some(at_us);
    }

    /// Takes what a tracker sampled of it in the interval.
    pub fn update_samples(&mut self, accesses: &Accesses, tracker: &'static str) {
        const FEW: &str = "fewer than 30 of its accesses were sampled in the interval";
        let ratio = |part: u64, all: u64, why: &'static str| match all {
            all if all < LEAST_SAMPLES => Evidence::unknown(why),
            all => Evidence::estimated(part as f64 / all as f64, tracker),
        };
        self.local = ratio(accesses.local_count, accesses.count, FEW);
        let timed = match accesses.timed_count {
            0 if accesses.count >= LEAST_SAMPLES => "the tracker tells no latency by process",
            _ => FEW,
        };
        self.latency_ns = ratio(accesses.latency_ns, accesses.timed_count, timed);
    }

    /// Memory in KiB, that in the huge-page file system included.
    #[must_use]
    pub fn resident_kb(&self) -> u64 {
        let pages = self.task.stat.resident_pages;
        pages
            .saturating_add(self.hugetlb_pages)
            .saturating_mul(PAGE_KB)
    }

    /// Share of its pages that are not where its threads run, see [`misplacement`].
    #[must_use]
    pub fn misplaced(&self) -> Evidence<f64> {
        let pages = match &self.residency {
            Evidence::Unknown { why } => return Evidence::unknown(why.clone()),
            known => known.value(),
        };
        let running = self.running.shares();
        match pages.zip(running).and_then(|(p, r)| misplacement(p, &r)) {
            Some(share) => Evidence::estimated(
                share,
                format!(
                    "{} and the CPUs that its threads ran on last",
                    self.residency.basis()
                ),
            ),
            None => Evidence::unknown("it has no page on any node"),
        }
    }
}

/// CPUs used: 1 is one whole CPU.
fn cpus(ticks: u64, elapsed_us: u64) -> f64 {
    ticks as f64 * 1e6 / TICKS_PER_SECOND as f64 / elapsed_us as f64
}

#[cfg(test)]
mod tests {
    use super::super::examples::task;
    use super::*;

    const SECOND: u64 = 1_000_000;

    #[test]
    fn misplacement_is_what_would_have_to_move() {
        let of = |pages: &[u64], running: &[f64]| misplacement(pages, running);
        assert_eq!(of(&[100, 0], &[1.0, 0.0]), Some(0.0));
        assert_eq!(of(&[0, 100], &[1.0, 0.0]), Some(1.0));
        assert_eq!(of(&[100, 0, 0, 0], &[0.25; 4]), Some(0.75));
        assert_eq!(of(&[7, 7, 7, 7], &[0.25; 4]), Some(0.0));
        assert_eq!(of(&[75, 25], &[0.5, 0.5]), Some(0.25));
        assert_eq!(of(&[0, 0], &[0.5, 0.5]), None);
    }

    #[test]
    fn rates_are_over_the_time_since_its_own_last_reading() {
        let mut process = Process::new(7, task("a", 100, 1, 0), Some(0), 2, SECOND);
        assert_eq!(process.cpu.get(), None);
        process.update(task("a", 150, 1, 0), Some(0), 2 * SECOND);
        assert_eq!(process.cpu.get(), Some(0.5));
        // Rotation left it out once.
        process.update(task("a", 350, 1, 0), Some(0), 4 * SECOND);
        assert_eq!(process.cpu.get(), Some(1.0));
        // The same moment twice says nothing new.
        process.update(task("a", 350, 1, 0), Some(0), 4 * SECOND);
        assert_eq!(process.cpu.get(), Some(1.0));
    }

    #[test]
    fn a_program_that_runs_elsewhere_is_there_after_a_while() {
        let mut process = Process::new(7, task("a", 0, 1, 0), Some(0), 2, 0);
        process.residency = Evidence::measured(vec![100, 0], "numa_maps");
        assert_eq!(process.misplaced().get(), Some(0.0));
        for second in 1..=60 {
            process.update(task("a", 100 * second, 1, 1), Some(1), second * SECOND);
        }
        assert!(process.misplaced().get().unwrap() > 0.99);
        // Idle, it stays where it ran, for hours.
        process.update(task("a", 6000, 1, 1), Some(0), 90_000 * SECOND);
        assert!(process.misplaced().get().unwrap() > 0.99);
    }

    #[test]
    fn threads_weigh_by_their_cpu_time() {
        let node_of = |cpu: u32| Some(cpu as usize / 4);
        let mut process = Process::new(7, task("a", 0, 2, 0), Some(0), 2, 0);
        process.update_threads(
            vec![(7, task("a", 0, 2, 0)), (8, task("b", 0, 2, 4))],
            node_of,
            2,
            0,
        );
        process.update_threads(
            vec![(7, task("a", 25, 2, 0)), (8, task("b", 75, 2, 4))],
            node_of,
            2,
            SECOND,
        );
        let shares = process.running.shares().unwrap();
        assert!((shares[1] - 0.75).abs() < 0.01, "{shares:?}");
        assert_eq!(process.threads[&8].cpu.get(), Some(0.75));
        assert_eq!(process.threads[&8].last_cpu, 4);
        // A thread that has ended is gone.
        process.update_threads(vec![(7, task("a", 30, 1, 0))], node_of, 2, 2 * SECOND);
        assert_eq!(process.threads.len(), 1);
    }

    #[test]
    fn few_samples_give_no_ratio() {
        let mut process = Process::new(7, task("a", 0, 1, 0), Some(0), 2, 0);
        let few = Accesses {
            count: 29,
            local_count: 29,
            ..Accesses::default()
        };
        process.update_samples(&few, "opium");
        assert!(process.local.basis().contains("fewer than 30"));
        let enough = Accesses {
            count: 40,
            local_count: 10,
            ..Accesses::default()
        };
        process.update_samples(&enough, "opium");
        assert_eq!(process.local.get(), Some(0.25));
        assert!(process.latency_ns.basis().contains("no latency"));
        let timed = Accesses {
            timed_count: 40,
            latency_ns: 8000,
            ..enough
        };
        process.update_samples(&timed, "opium");
        assert_eq!(process.latency_ns.get(), Some(200.0));
    }
}
