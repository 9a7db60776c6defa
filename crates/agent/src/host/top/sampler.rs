//! Reads what the model asks for: the thin edge to `/proc`, `/sys` and the lab's device. A process
//! that ends while it is read is gone, and no failure.

use super::ageing::Ageing;
use super::device::{Counters, Opened, Sampling, told};
use super::model::About;
use super::reading::{MachineReading, MappingReading, Samples};
use super::residency;
use hither_core::bind::astray::AstrayPlace;
use hither_core::ids::NodeId;
use hither_core::snapshot::Evidence;
use hither_linux::bind::astray::{self, AstrayFigures};
use hither_linux::counters::lru_gen::Ages;
use hither_linux::counters::task::{self, TaskTimes};
use hither_linux::counters::{resctrl, vmstat};
use hither_linux::parse;
use hither_linux::proc::pressure;
use hither_linux::proc::{maps, numa_maps};
use hither_linux::root::Root;
use hither_linux::sys;
use hither_linux::topology::Topology;
use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;

/// Longest time between two looks at the list of processes without a sign of change, in us.
const LOOK_US: u64 = 5_000_000;

/// The edge.
pub struct Sampler {
    root: Root,
    nodes: Vec<NodeId>,
    /// The same with their CPUs.
    places: Vec<AstrayPlace>,
    counters: Result<Counters, String>,
    sampling: Option<Sampling>,
    /// Where they are asked for.
    ages: Option<Ageing>,
    /// See only processes of this user; `None`: all.
    only_of: Option<u32>,
    /// See only this process.
    only: Option<i32>,
    /// Processes that are not shown: somebody else's, and the kernel's own.
    hidden: BTreeSet<i32>,
    newest: Option<u64>,
    looked_us: u64,
    turn: u64,
}

impl Sampler {
    /// Opens what there is, and tells the model of it.
    pub fn open(
        root: &Root,
        topology: &Topology,
        only: Option<i32>,
        ages: Option<Ageing>,
        open: impl FnOnce() -> Opened,
        about: &mut About,
    ) -> Self {
        let counters = Counters::open(root, topology);
        let user = sys::effective_uid();
        about.own_only = user != 0;
        let opened = counters.as_ref().ok();
        about.link_names = opened.map_or_else(Vec::new, Counters::link_names);
        let (tracker, sampling) = match Sampling::begin(root, topology, opened, open, now_us()) {
            Ok((name, sampling)) => (Evidence::measured(name, name), Some(sampling)),
            Err(why) => (Evidence::unknown(why), None),
        };
        about.tracker = tracker;
        Self {
            root: root.clone(),
            nodes: topology.nodes.iter().map(|node| node.id).collect(),
            places: astray::places(topology),
            counters,
            sampling,
            ages,
            only_of: (user != 0).then_some(user),
            only,
            hidden: BTreeSet::new(),
            newest: None,
            looked_us: 0,
            turn: 0,
        }
    }

    /// The processes there are, ascending; `None` where nothing says that one was made since.
    pub fn processes(&mut self, at_us: u64) -> Option<Vec<i32>> {
        if let Some(pid) = self.only {
            return Some(vec![pid]);
        }
        let newest = self.newest();
        let waited = at_us.saturating_sub(self.looked_us) >= LOOK_US;
        if newest.is_some() && newest == self.newest && !waited {
            return None;
        }
        (self.newest, self.looked_us) = (newest, at_us);
        let all = self.root.numbered("proc", "").unwrap_or_default();
        let all: Vec<i32> = all.into_iter().map(|pid| pid as i32).collect();
        self.hidden.retain(|pid| all.binary_search(pid).is_ok());
        Some(all.into_iter().filter(|pid| self.is_shown(*pid)).collect())
    }

    /// A process; `None` where it has ended, or is not to be shown.
    pub fn task(&mut self, pid: i32) -> Option<TaskTimes> {
        let task = task::process(&self.root, pid)?;
        if task.stat.is_kernel() {
            self.hidden.insert(pid);
            return None;
        }
        (!task.stat.has_ended()).then_some(task)
    }

    /// Its threads.
    pub fn threads(&self, pid: i32) -> Vec<(i32, TaskTimes)> {
        task::threads(&self.root, pid)
    }

    /// Where its pages are, and what of them is astray.
    pub fn residency(
        &mut self,
        pid: i32,
        resident_pages: u64,
    ) -> (Evidence<Vec<u64>>, Evidence<AstrayFigures>) {
        self.turn += 1;
        let read = residency::read(&self.root, &self.nodes, pid, resident_pages, self.turn);
        let (pages, mappings) = read;
        let Some(mappings) = mappings.value() else {
            return (pages, Evidence::unknown(mappings.basis().to_owned()));
        };
        let figures = match astray::binding(&self.root, &self.places, pid) {
            Ok(binding) => {
                let figures = astray::figures(mappings, &binding, &self.places);
                Evidence::measured(figures, "numa_maps")
            }
            Err(error) => Evidence::unknown(residency::why(&self.root, pid, &error)),
        };
        (pages, figures)
    }

    /// What of a process that is looked at closely is astray, however large it is.
    pub fn astray(&self, pid: i32) -> Evidence<AstrayFigures> {
        if self.nodes.len() == 1 {
            return Evidence::unknown("there is one node");
        }
        match astray::look(&self.root, &self.places, pid) {
            Ok(figures) => Evidence::measured(figures, "numa_maps"),
            Err(error) => Evidence::unknown(residency::why(&self.root, pid, &error)),
        }
    }

    /// Its base pages of the huge-page file system.
    pub fn hugetlb(&self, pid: i32) -> u64 {
        residency::hugetlb_pages(&self.root, pid)
    }

    /// Its mappings with their pages.
    pub fn mappings(&self, pid: i32) -> Evidence<Vec<MappingReading>> {
        let numa = match numa_maps::read(&self.root, pid) {
            Ok(numa) => numa,
            Err(error) => return Evidence::unknown(residency::why(&self.root, pid, &error)),
        };
        let known = maps::read(&self.root, pid).unwrap_or_default();
        let mapping = |numa: &numa_maps::NumaMapping| {
            let found = known.binary_search_by_key(&numa.start, |mapping| mapping.range.start);
            let found = found.ok().map(|index| &known[index]);
            MappingReading {
                start: numa.start,
                end: found.map_or(numa.start, |mapping| mapping.range.end),
                name: found.map_or_else(String::new, |mapping| mapping.name.clone()),
                policy: numa.policy.clone(),
                pages: residency::by_position(&self.nodes, std::slice::from_ref(numa)),
            }
        };
        Evidence::measured(numa.iter().map(mapping).collect(), "numa_maps")
    }

    /// Time lost for want of memory in the control group of a process.
    pub fn group_pressure(&self, pid: i32) -> Evidence<f64> {
        let Some(group) = pressure::group_of(&self.root, pid) else {
            return Evidence::unknown("it is in no control group of the unified tree");
        };
        match pressure::group(&self.root, &group) {
            Ok(Some(pressure)) => Evidence::measured(pressure.some.share_10s, group),
            Ok(None) => Evidence::unknown(format!("{group} has no memory.pressure")),
            Err(error) => Evidence::unknown(error.to_string()),
        }
    }

    /// How lately memory of the control group of a process was used; `None` where nobody asked.
    pub fn group_ages(&self, pid: i32) -> Option<Evidence<Ages>> {
        let ages = self.ages.as_ref()?;
        Some(match pressure::group_of(&self.root, pid) {
            Some(group) => ages.of_group(&group),
            None => Evidence::unknown("it is in no control group of the unified tree"),
        })
    }

    /// The machine's counters. What cannot be read is told as unknown, with the reason.
    pub fn machine(&mut self, at_us: u64) -> MachineReading {
        if let Some(ages) = &mut self.ages {
            ages.read(at_us);
        }
        let root = &self.root;
        let free_kb = |id: &NodeId| {
            let below = format!("sys/devices/system/node/{id}/meminfo");
            let read = root.parse(&below, |text| parse::node_meminfo(text, id.0));
            read.ok().map(|memory| memory.free_kb)
        };
        let node_events = |&id: &NodeId| vmstat::node(root, id).unwrap_or_default();
        MachineReading {
            events: vmstat::machine(root).unwrap_or_default(),
            node_events: self.nodes.iter().map(node_events).collect(),
            free_kb: self.nodes.iter().map(free_kb).collect(),
            pressure: match pressure::machine(root) {
                Ok(Some(pressure)) => Evidence::measured(pressure, "/proc/pressure/memory"),
                Ok(None) => Evidence::unknown("this kernel keeps no pressure stall information"),
                Err(error) => Evidence::unknown(error.to_string()),
            },
            bandwidth: match (resctrl::available(root), resctrl::read(root)) {
                (Err((why, _)), _) => Evidence::unknown(why),
                (_, Ok(Some(bandwidth))) => Evidence::measured(bandwidth, "resctrl"),
                (_, Ok(None)) => Evidence::unknown("resctrl was unmounted just now"),
                (_, Err(error)) => Evidence::unknown(error.to_string()),
            },
            ages: self.ages.as_ref().map(|ages| ages.by_node(&self.nodes)),
            opium: told(
                self.counters
                    .as_ref()
                    .map(Counters::read)
                    .map_err(Clone::clone),
            ),
        }
    }

    /// What was sampled since the last call; nothing without a tracker.
    pub fn samples(&mut self, at_us: u64, focus: Option<i32>) -> Samples {
        let sampling = self.sampling.as_mut();
        // A tracker that fails for once costs an interval.
        sampling
            .and_then(|sampling| sampling.read(at_us, focus).ok())
            .unwrap_or_default()
    }

    /// The process or thread made last, which `/proc/loadavg` ends with.
    fn newest(&self) -> Option<u64> {
        let text = self.root.text_if_any("proc/loadavg").ok()??;
        text.split_whitespace().next_back()?.parse().ok()
    }

    fn is_shown(&mut self, pid: i32) -> bool {
        if self.hidden.contains(&pid) {
            return false;
        }
        let Some(user) = self.only_of else {
            return true;
        };
        let owner = std::fs::metadata(self.root.path(&format!("proc/{pid}")));
        match owner {
            Ok(owner) if owner.uid() == user => true,
            Ok(_) => {
                self.hidden.insert(pid);
                false
            }
            Err(error) => error.kind() != ErrorKind::NotFound,
        }
    }
}

/// This moment on CLOCK_MONOTONIC, in us.
#[must_use]
pub fn now_us() -> u64 {
    sys::monotonic_ns() / 1000
}
