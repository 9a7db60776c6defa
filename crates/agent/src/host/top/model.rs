//! The state behind the view: processes and machine as last read, in order, and what to read next.
//! Pure: readings and times are arguments.

use super::machine::{self, MachineFigures, NodeName};
use super::process::{LEAST_SAMPLES, Process};
use super::reading::{Accesses, MachineReading, MappingReading, Samples};
use super::rotation::Due;
use hither_core::foreign::Foreign;
use hither_core::snapshot::Evidence;
use hither_linux::bind::astray::AstrayFigures;
use hither_linux::counters::lru_gen::Ages;
use hither_linux::counters::task::TaskTimes;
use hither_linux::topology::Topology;
use std::cmp::Ordering;
use std::collections::BTreeMap;

/// By what processes are sorted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SortKey {
    /// Most CPU time first.
    Cpu,
    /// Lowest local-access ratio first.
    Local,
    /// Highest latency first.
    Latency,
    /// Largest misplaced share first.
    Misplaced,
    /// Most memory first.
    Memory,
    /// Lowest number first.
    Pid,
}

impl SortKey {
    /// All of them with their words, in the order in which the key `s` goes through them.
    pub const ALL: [(Self, &'static str); 6] = [
        (Self::Cpu, "cpu"),
        (Self::Local, "local"),
        (Self::Latency, "latency"),
        (Self::Misplaced, "misplaced"),
        (Self::Memory, "memory"),
        (Self::Pid, "pid"),
    ];

    /// The word for a person.
    #[must_use]
    pub fn word(self) -> &'static str {
        let found = Self::ALL.iter().find(|(key, _)| *key == self);
        found.map_or("", |(_, word)| word)
    }

    /// The next one.
    #[must_use]
    pub fn next(self) -> Self {
        let at = Self::ALL.iter().position(|(key, _)| *key == self);
        Self::ALL[at.map_or(0, |at| (at + 1) % Self::ALL.len())].0
    }
}

/// A mapping of the process that is looked at closely.
#[derive(Clone, Debug)]
pub struct Mapping {
    /// What was read of it.
    pub read: MappingReading,
    /// What was sampled in it in the interval.
    pub accesses: Accesses,
}

impl Mapping {
    /// Share of its samples that the requesting CPU's own node served; `None` for few samples.
    #[must_use]
    pub fn local(&self) -> Option<f64> {
        let seen = &self.accesses;
        (seen.count >= LEAST_SAMPLES).then(|| seen.local_count as f64 / seen.count as f64)
    }
}

/// What is known of the process that is looked at closely.
#[derive(Clone, Debug)]
pub struct Focus {
    /// Its number.
    pub pid: i32,
    /// Its mappings that have pages, the largest first.
    pub mappings: Evidence<Vec<Mapping>>,
    /// When they were read.
    pub mappings_us: Option<u64>,
    /// Share of time that tasks of its control group waited for memory, in the last 10 s.
    pub group_pressure: Evidence<f64>,
    /// How lately memory of its control group was used; `None` where nobody asked.
    pub group_ages: Option<Evidence<Ages>>,
}

/// What the sampler tells once.
#[derive(Clone, Debug)]
pub struct About {
    /// Nodes by position.
    pub nodes: Vec<NodeName>,
    /// Node position of each CPU, by the kernel's number.
    pub cpu_nodes: Vec<Option<usize>>,
    /// Names of the device's links.
    pub link_names: Vec<String>,
    /// Which tracker samples accesses, or why none does.
    pub tracker: Evidence<&'static str>,
    /// Are only the user's own processes to be seen?
    pub own_only: bool,
    /// Time between two readings in us.
    pub interval_us: u64,
}

impl About {
    /// What the topology tells of it; nothing else is known yet.
    pub fn new(topology: &Topology, interval_us: u64) -> Self {
        let highest = topology.online.iter().next_back().map_or(0, |cpu| cpu.0);
        let mut cpu_nodes = vec![None; highest as usize + 1];
        for (position, node) in topology.nodes.iter().enumerate() {
            for cpu in node.cpus.iter() {
                if let Some(slot) = cpu_nodes.get_mut(cpu.0 as usize) {
                    *slot = Some(position);
                }
            }
        }
        let name = |node: &hither_linux::topology::NodeInfo| NodeName {
            id: node.id,
            cpus: node.cpus.to_string(),
            total_kb: node.memory.total_kb,
        };
        Self {
            nodes: topology.nodes.iter().map(name).collect(),
            cpu_nodes,
            link_names: Vec::new(),
            tracker: Evidence::unknown("no tracker was looked for"),
            own_only: false,
            interval_us,
        }
    }
}

impl About {
    /// The kernel's numbers of the nodes.
    #[must_use]
    pub fn node_numbers(&self) -> Vec<u32> {
        self.nodes.iter().map(|node| node.id.0).collect()
    }
}

/// The model.
#[derive(Clone, Debug)]
pub struct Model {
    /// What does not change.
    pub about: About,
    /// The machine in the last interval.
    pub machine: Option<MachineFigures>,
    /// The process that is looked at closely.
    pub focus: Option<Focus>,
    /// Share of one CPU that hither used lately.
    pub own_cpu: Evidence<f64>,
    /// The last thing that happened, for the status line.
    pub notice: Option<String>,
    /// Order of the processes.
    pub sort: SortKey,
    processes: BTreeMap<i32, Process>,
    reading: Option<(u64, MachineReading)>,
    at_us: u64,
}

impl Model {
    /// Nothing read yet.
    pub fn new(about: About, sort: SortKey) -> Self {
        Self {
            about,
            machine: None,
            focus: None,
            own_cpu: Evidence::unknown("nothing was measured yet"),
            notice: None,
            sort,
            processes: BTreeMap::new(),
            reading: None,
            at_us: 0,
        }
    }

    /// Readings from now on are of this time.
    pub fn begin(&mut self, at_us: u64) {
        self.at_us = at_us;
    }

    /// The processes there are now.
    pub fn list(&mut self, alive: &[i32]) -> Vec<i32> {
        let gone: Vec<i32> = self
            .processes
            .keys()
            .filter(|pid| alive.binary_search(pid).is_err())
            .copied()
            .collect();
        gone.iter().for_each(|&pid| self.remove(pid));
        let new = alive.iter().copied();
        new.filter(|pid| !self.processes.contains_key(pid))
            .collect()
    }

    /// A reading of a process; `None` where it has ended.
    pub fn task(&mut self, pid: i32, task: Option<TaskTimes>) {
        let Some(task) = task else {
            return self.remove(pid);
        };
        let node = self.node_of(task.last_cpu);
        match self.processes.get_mut(&pid) {
            Some(process) if process.is_same(&task) => process.update(task, node, self.at_us),
            known => {
                if known.is_some() {
                    self.remove(pid);
                }
                let nodes = self.about.nodes.len();
                let process = Process::new(pid, task, node, nodes, self.at_us);
                self.processes.insert(pid, process);
            }
        }
    }

    /// A reading of the threads of a process.
    pub fn threads(&mut self, pid: i32, read: Vec<(i32, TaskTimes)>) {
        let (cpu_nodes, nodes) = (&self.about.cpu_nodes, self.about.nodes.len());
        if let Some(process) = self.processes.get_mut(&pid) {
            let node_of = |cpu: u32| cpu_nodes.get(cpu as usize).copied().flatten();
            process.update_threads(read, node_of, nodes, self.at_us);
        }
    }

    /// Where the pages of a process are.
    pub fn residency(&mut self, pid: i32, pages: Evidence<Vec<u64>>) {
        if let Some(process) = self.processes.get_mut(&pid) {
            process.residency = pages;
            process.residency_us = Some(self.at_us);
        }
    }

    /// What of a process is astray. What was told by a close look stays where a passing one cannot tell.
    pub fn astray(&mut self, pid: i32, figures: Evidence<AstrayFigures>) {
        if let Some(process) = self.processes.get_mut(&pid)
            && (figures.is_known() || !process.astray.is_known())
        {
            process.astray = figures;
        }
    }

    /// Its base pages that the kernel does not count as resident.
    pub fn hugetlb(&mut self, pid: i32, pages: u64) {
        if let Some(process) = self.processes.get_mut(&pid) {
            process.hugetlb_pages = pages;
        }
    }

    /// A reading of the machine.
    pub fn machine(&mut self, reading: MachineReading) {
        let (before_us, before) = match &self.reading {
            Some((at_us, before)) => (*at_us, Some(before)),
            None => (self.at_us, None),
        };
        let elapsed_us = self.at_us.saturating_sub(before_us);
        let names = &self.about.link_names;
        self.machine = Some(machine::figures(before, &reading, elapsed_us, names));
        self.reading = Some((self.at_us, reading));
    }

    /// What a tracker sampled in the interval.
    pub fn samples(&mut self, samples: &Samples) {
        let tracker = self.about.tracker.get();
        for (pid, process) in &mut self.processes {
            match tracker {
                Some(name) => {
                    let none = Accesses::default();
                    let accesses = samples.processes.get(pid).unwrap_or(&none);
                    process.update_samples(accesses, name);
                }
                None => {
                    let why = self.about.tracker.basis();
                    process.local = Evidence::unknown(why.to_owned());
                    process.latency_ns = Evidence::unknown(why.to_owned());
                }
            }
        }
        let Some(Evidence::Measured { value, .. }) =
            self.focus.as_mut().map(|focus| &mut focus.mappings)
        else {
            return;
        };
        for mapping in value {
            mapping.accesses = Accesses::default();
            let range = mapping.read.start >> 12..mapping.read.end >> 12;
            let first = samples
                .pages
                .partition_point(|(page, _)| *page < range.start);
            let inside = samples.pages[first..].iter();
            for (_, seen) in inside.take_while(|(page, _)| *page < range.end) {
                mapping.accesses.count += seen.count;
                mapping.accesses.local_count += seen.local_count;
            }
        }
    }

    /// Looks at a process closely, or at none.
    pub fn set_focus(&mut self, pid: Option<i32>) {
        let known = pid.filter(|pid| self.processes.contains_key(pid));
        if self.focus.as_ref().map(|focus| focus.pid) == known && pid == known {
            return;
        }
        self.focus = known.map(|pid| Focus {
            pid,
            mappings: Evidence::unknown("they were not read yet"),
            mappings_us: None,
            group_pressure: Evidence::unknown("it was not read yet"),
            group_ages: None,
        });
    }

    /// The mappings of the process that is looked at closely.
    pub fn mappings(&mut self, pid: i32, read: Evidence<Vec<MappingReading>>) {
        let at_us = self.at_us;
        let Some(focus) = self.focus.as_mut().filter(|focus| focus.pid == pid) else {
            return;
        };
        let size = |mapping: &Mapping| mapping.read.pages.iter().sum::<u64>();
        focus.mappings = read.map(|read| {
            let mapping = |read| Mapping {
                read,
                accesses: Accesses::default(),
            };
            let mut all: Vec<Mapping> = read.into_iter().map(mapping).collect();
            all.retain(|mapping| size(mapping) > 0);
            all.sort_by_key(|mapping| (std::cmp::Reverse(size(mapping)), mapping.read.start));
            all
        });
        focus.mappings_us = Some(at_us);
    }

    /// The processes in order.
    #[must_use]
    pub fn sorted(&self) -> Vec<&Process> {
        let mut all: Vec<&Process> = self.processes.values().collect();
        let figure = |process: &Process| match self.sort {
            SortKey::Cpu => process.cpu.get(),
            SortKey::Local => process.local.get().map(|ratio| -ratio),
            SortKey::Latency => process.latency_ns.get(),
            SortKey::Misplaced => process.misplaced().get(),
            SortKey::Memory => Some(process.resident_kb() as f64),
            SortKey::Pid => Some(-f64::from(process.pid)),
        };
        // What is unknown comes last; among equals the busier, then the larger.
        let rank = |process: &Process| figure(process).unwrap_or(f64::NEG_INFINITY);
        let busy = |process: &Process| process.cpu.get().unwrap_or(0.0);
        all.sort_by_cached_key(|process| {
            let resident = process.resident_kb();
            Descending([rank(process), busy(process), resident as f64])
        });
        all
    }

    /// One of them.
    #[must_use]
    pub fn process(&self, pid: i32) -> Option<&Process> {
        self.processes.get(&pid)
    }

    /// How many there are.
    #[must_use]
    pub fn count(&self) -> usize {
        self.processes.len()
    }

    /// Processes by when they were read.
    pub fn due_tasks(&self, shown: &[i32]) -> Vec<Due> {
        self.due(shown, |process| Some(Some(process.read_us)))
    }

    /// Processes whose pages are to be looked for; none that has no memory.
    pub fn due_residency(&self, shown: &[i32]) -> Vec<Due> {
        self.due(shown, |process| {
            (process.task.stat.resident_pages > 0).then_some(process.residency_us)
        })
    }

    /// Processes whose threads are to be asked where they ran: those that have several, and ran.
    pub fn due_threads(&self, shown: &[i32]) -> Vec<Due> {
        self.due(shown, |process| {
            let ran = process.cpu.get().is_none_or(|cpu| cpu > 0.0);
            (process.task.thread_count > 1 && (ran || process.threads_us.is_none()))
                .then_some(process.threads_us)
        })
    }

    fn due(&self, shown: &[i32], read: impl Fn(&Process) -> Option<Option<u64>>) -> Vec<Due> {
        let due = |process: &Process| {
            Some(Due {
                pid: process.pid,
                read_us: read(process)?,
                is_shown: shown.contains(&process.pid),
            })
        };
        let all = self.processes.values().filter_map(due);
        // What was read in this very interval is not due.
        all.filter(|due| due.read_us != Some(self.at_us)).collect()
    }

    fn node_of(&self, cpu: u32) -> Option<usize> {
        self.about.cpu_nodes.get(cpu as usize).copied().flatten()
    }

    fn remove(&mut self, pid: i32) {
        let Some(gone) = self.processes.remove(&pid) else {
            return;
        };
        if self.focus.as_ref().is_some_and(|focus| focus.pid == pid) {
            self.focus = None;
            let name = &gone.task.stat.name;
            self.notice = Some(format!("process {pid} ({}) has ended", name.shown()));
        }
    }
}

/// Figures to sort by, the largest first.
#[derive(PartialEq)]
struct Descending([f64; 3]);

impl Eq for Descending {}

impl PartialOrd for Descending {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Descending {
    fn cmp(&self, other: &Self) -> Ordering {
        let pairs = other.0.iter().zip(&self.0);
        pairs.fold(Ordering::Equal, |so_far, (other, own)| {
            so_far.then(other.total_cmp(own))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::examples::{about, model_of, task};
    use super::*;

    const SECOND: u64 = 1_000_000;

    fn names(model: &Model) -> Vec<&str> {
        let sorted = model.sorted();
        sorted
            .iter()
            .map(|process| process.task.stat.name.as_str())
            .collect()
    }

    #[test]
    fn what_is_unknown_comes_last_in_any_order() {
        let mut model = Model::new(about(), SortKey::Cpu);
        for second in 0..=1 {
            model.begin(second * SECOND);
            for (pid, name, ticks) in [(1, "calm", 1), (2, "busy", 90), (3, "mute", 5)] {
                model.task(pid, Some(task(name, ticks * second, 1, 0)));
            }
        }
        model.task(4, Some(task("new", 900, 1, 0)));
        assert_eq!(names(&model), ["busy", "mute", "calm", "new"]);
        let seen = |count, local_count, each_ns| Accesses {
            count,
            local_count,
            timed_count: count,
            latency_ns: count * each_ns,
        };
        model.samples(&Samples {
            processes: [(1, seen(100, 20, 90)), (2, seen(100, 80, 300))].into(),
            pages: Vec::new(),
        });
        model.residency(1, Evidence::measured(vec![0, 9], "test"));
        model.residency(3, Evidence::measured(vec![9, 0], "test"));
        for (key, order) in [
            (SortKey::Local, ["calm", "busy", "mute", "new"]),
            (SortKey::Latency, ["busy", "calm", "mute", "new"]),
            (SortKey::Misplaced, ["calm", "mute", "busy", "new"]),
            (SortKey::Pid, ["calm", "busy", "mute", "new"]),
        ] {
            model.sort = key;
            assert_eq!(names(&model), order, "{key:?}");
        }
        let mut key = SortKey::Cpu;
        for _ in SortKey::ALL {
            key = key.next();
        }
        assert_eq!(key, SortKey::Cpu, "the key s goes round");
    }

    #[test]
    fn a_number_that_is_used_again_is_another_process() {
        let mut model = model_of(1);
        model.residency(100, Evidence::measured(vec![5, 5], "test"));
        let before = model.process(100).unwrap().resident_kb();
        model.hugetlb(100, 512);
        assert_eq!(model.process(100).unwrap().resident_kb(), before + 2048);
        model.set_focus(Some(100));
        let mut other = task("other", 3, 1, 0);
        other.stat.start_ticks += 1;
        model.begin(2 * SECOND);
        model.task(100, Some(other));
        let process = model.process(100).unwrap();
        assert_eq!(process.task.stat.name, "other");
        assert!(process.cpu.get().is_none() && !process.residency.is_known());
        assert!(model.focus.is_none() && model.notice.is_some());
    }

    #[test]
    fn lists_tell_who_is_new_and_who_is_gone() {
        let mut model = model_of(3);
        assert_eq!(model.list(&[101, 102, 200]), [200]);
        assert_eq!(model.count(), 2);
        // Of what is known, nothing is due that was read in this interval.
        assert!(model.due_tasks(&[]).is_empty());
        model.begin(2 * SECOND);
        let due = model.due_tasks(&[102]);
        let shown: Vec<(i32, bool)> = due.iter().map(|due| (due.pid, due.is_shown)).collect();
        assert_eq!(shown, [(101, false), (102, true)]);
        // One thread needs no asking where it ran.
        assert!(model.due_threads(&[]).is_empty());
        model.task(101, Some(task("p1", 50, 3, 0)));
        assert_eq!(model.due_threads(&[])[0].pid, 101);
        assert_eq!(model.due_residency(&[]).len(), 2);
    }

    #[test]
    fn samples_fall_into_their_mappings() {
        let mut model = model_of(1);
        model.set_focus(Some(100));
        let mapping = |start: u64, pages: u64| MappingReading {
            start,
            end: start + (pages << 12),
            name: String::new(),
            policy: "default".to_owned(),
            pages: vec![pages, 0],
        };
        let read = vec![mapping(0x10_000, 4), mapping(0x20_000, 8)];
        model.mappings(100, Evidence::measured(read, "test"));
        let seen = |page, count, local_count| {
            let accesses = Accesses {
                count,
                local_count,
                ..Accesses::default()
            };
            (page, accesses)
        };
        let samples = Samples {
            pages: vec![
                seen(0xf, 7, 7),
                seen(0x10, 20, 5),
                seen(0x13, 20, 5),
                seen(0x14, 9, 9),
                seen(0x27, 3, 3),
            ],
            ..Samples::default()
        };
        // Twice: each interval counts anew.
        model.samples(&samples);
        model.samples(&samples);
        let focus = model.focus.as_ref().unwrap();
        let mappings = focus.mappings.value().unwrap();
        assert_eq!(mappings[0].read.start, 0x20_000, "the largest first");
        assert_eq!((mappings[0].accesses.count, mappings[0].local()), (3, None));
        assert_eq!(
            (mappings[1].accesses.count, mappings[1].local()),
            (40, Some(0.25))
        );
    }
}
