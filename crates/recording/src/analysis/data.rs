//! The rows of a recording in memory: compact, as there may be millions of samples.

use crate::meta::Meta;
use crate::read::Recording;
use crate::rows::{Allocation, Frame, Interval, Mapping, Node, Process, Region, Residency, Sample};

/// No such number.
const NONE: u16 = u16::MAX;
/// Bit of a store.
const WRITE: u8 = 1;
/// Bit of a sample of which it is known whether it was a store.
const KIND_KNOWN: u8 = 2;
/// Bit of a sample that another CPU's cache served.
const TRANSFER: u8 = 4;
/// Bit of a sample of which it is known whether one did.
const TRANSFER_KNOWN: u8 = 8;

/// A sampled access in 48 bytes. Nodes are by position in [`Data::nodes`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// ns since the recording began.
    pub time_ns: u64,
    /// Virtual address.
    pub address: u64,
    /// Address of the instruction; 0 where unknown.
    pub code: u64,
    /// Whose.
    pub pid: i32,
    tid: i32,
    /// Accesses that it stands for.
    pub weight: u32,
    latency_ns: u32,
    cpu: u16,
    from: u16,
    home: u16,
    flags: u8,
}

impl Access {
    /// The thread, where known.
    #[must_use]
    pub fn tid(&self) -> Option<i32> {
        (self.tid != 0).then_some(self.tid)
    }

    /// The CPU, where known.
    #[must_use]
    pub fn cpu(&self) -> Option<u16> {
        (self.cpu != NONE).then_some(self.cpu)
    }

    /// Position of the node that accessed, where known.
    #[must_use]
    pub fn from(&self) -> Option<usize> {
        (self.from != NONE).then_some(usize::from(self.from))
    }

    /// Position of the node that served, where known.
    #[must_use]
    pub fn home(&self) -> Option<usize> {
        (self.home != NONE).then_some(usize::from(self.home))
    }

    /// A store? Loads and what is not known are none.
    #[must_use]
    pub fn is_write(&self) -> bool {
        self.flags & WRITE != 0
    }

    /// Is it known whether it was a load or a store?
    #[must_use]
    pub fn kind_is_known(&self) -> bool {
        self.flags & KIND_KNOWN != 0
    }

    /// Did another CPU's cache serve it, that had modified the line? Memory fills and what is not
    /// known are no transfers.
    #[must_use]
    pub fn is_transfer(&self) -> bool {
        self.flags & TRANSFER != 0
    }

    /// Is it known whether another CPU's cache served it?
    #[must_use]
    pub fn tells_transfer(&self) -> bool {
        self.flags & TRANSFER_KNOWN != 0
    }

    /// What it took, where known.
    #[must_use]
    pub fn latency_ns(&self) -> Option<u32> {
        (self.latency_ns != u32::MAX).then_some(self.latency_ns)
    }
}

/// A recording in memory.
#[derive(Clone, Debug)]
pub struct Data {
    /// What was recorded where.
    pub meta: Meta,
    /// The kernel's numbers of the nodes; a node's position is its place here.
    pub nodes: Vec<u32>,
    /// Samples by time.
    pub accesses: Vec<Access>,
    /// Regions by time.
    pub regions: Vec<Region>,
    /// Intervals by time.
    pub intervals: Vec<Interval>,
    /// Traffic of nodes by time.
    pub traffic: Vec<Node>,
    /// Where pages were, by time.
    pub residency: Vec<Residency>,
    /// Processes.
    pub processes: Vec<Process>,
    /// Mappings by time.
    pub mappings: Vec<Mapping>,
    /// Allocations by time.
    pub allocations: Vec<Allocation>,
    /// Frames of allocation sites.
    pub frames: Vec<Frame>,
    /// What could not be read, and what the trackers had to say.
    pub notes: Vec<String>,
}

impl Data {
    /// Reads all that is whole of a recording.
    #[must_use]
    pub fn read(recording: &Recording) -> Self {
        let meta = recording.meta().clone();
        let mut data = Self {
            nodes: meta.nodes.iter().map(|node| node.id).collect(),
            accesses: Vec::new(),
            regions: recording.rows(),
            intervals: recording.rows(),
            traffic: recording.rows(),
            residency: recording.rows(),
            processes: recording.rows(),
            mappings: recording.rows(),
            allocations: recording.rows(),
            frames: recording.rows(),
            notes: Vec::new(),
            meta,
        };
        recording.segments(|samples: &mut Vec<Sample>| {
            let accesses = samples.drain(..).map(|sample| data.access(&sample));
            let accesses: Vec<Access> = accesses.collect();
            data.accesses.extend(accesses);
        });
        data.accesses.sort_unstable_by_key(|access| access.time_ns);
        data.regions.sort_by_key(|region| region.time_ns);
        data.residency.sort_by_key(|row| row.time_ns);
        data.mappings.sort_by_key(|mapping| mapping.time_ns);
        data.allocations
            .sort_by_key(|allocation| allocation.start_ns);
        // Those that ended come first in the files.
        data.processes
            .sort_by_key(|process| (process.start_ns, process.pid));
        data.notes = recording.notes();
        match &data.meta.ended {
            Some(ended) => data.notes.extend(ended.notes.iter().cloned()),
            None => data.notes.push(
                "the recorder did not come to its end: up to ten seconds are missing, and names and \
                 ends of processes"
                    .to_owned(),
            ),
        }
        data
    }

    /// What says whose memory an address is, without anything that was observed of its use.
    #[must_use]
    pub fn without_observations(&self) -> Self {
        Self {
            meta: self.meta.clone(),
            nodes: self.nodes.clone(),
            accesses: Vec::new(),
            regions: Vec::new(),
            intervals: Vec::new(),
            traffic: Vec::new(),
            residency: Vec::new(),
            processes: self.processes.clone(),
            mappings: self.mappings.clone(),
            allocations: self.allocations.clone(),
            frames: self.frames.clone(),
            notes: Vec::new(),
        }
    }

    /// Do regions tell what was written, not what was accessed? Their rows are alike; the tracker's
    /// name tells them apart.
    #[must_use]
    pub fn is_of_writes(&self) -> bool {
        self.meta
            .trackers
            .iter()
            .any(|tracker| tracker.name == "written")
    }

    /// Position of a node by the kernel's number.
    #[must_use]
    pub fn position(&self, node: u32) -> Option<usize> {
        self.nodes.iter().position(|&id| id == node)
    }

    /// Length of the recording in ns: as it ended, or the last that was seen.
    #[must_use]
    pub fn length_ns(&self) -> u64 {
        let last = [
            self.accesses.last().map(|access| access.time_ns),
            self.intervals.last().map(|interval| interval.time_ns),
            self.regions.last().map(|region| region.time_ns),
        ];
        match &self.meta.ended {
            Some(ended) => ended.length_ns,
            None => last.into_iter().flatten().max().unwrap_or(0),
        }
    }

    /// CPU time that the recording cost, in us: all of it, or the intervals that there are where it did
    /// not come to its end.
    #[must_use]
    pub fn own_cpu_us(&self) -> Option<u64> {
        match &self.meta.ended {
            Some(ended) => ended.own_cpu_us(),
            None => self
                .intervals
                .iter()
                .filter_map(|i| i.own_cpu_us)
                .reduce(u64::saturating_add),
        }
    }

    /// Name of a process, or its number.
    #[must_use]
    pub fn process_name(&self, pid: i32) -> String {
        match self.processes.iter().find(|process| process.pid == pid) {
            Some(process) => process.name.clone(),
            None => format!("pid {pid}"),
        }
    }

    fn access(&self, sample: &Sample) -> Access {
        let node = |node: Option<u32>| {
            node.and_then(|node| self.position(node))
                .map_or(NONE, |position| position as u16)
        };
        let cpu = sample.cpu.and_then(|cpu| u16::try_from(cpu).ok());
        let flags = match sample.is_write {
            Some(true) => WRITE | KIND_KNOWN,
            Some(false) => KIND_KNOWN,
            None => 0,
        };
        let transfer = match sample.from_cache {
            Some(true) => TRANSFER | TRANSFER_KNOWN,
            Some(false) => TRANSFER_KNOWN,
            None => 0,
        };
        Access {
            time_ns: sample.time_ns,
            address: sample.address,
            code: sample.code.unwrap_or(0),
            pid: sample.pid,
            tid: sample.tid.unwrap_or(0),
            weight: sample.weight.max(1),
            latency_ns: sample.latency_ns.unwrap_or(u32::MAX),
            cpu: cpu.unwrap_or(NONE),
            from: node(sample.from_node),
            home: node(sample.home_node),
            flags: flags | transfer,
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::meta::{MetaNode, MetaTracker, SCHEMA};

    /// A recording of two nodes with one CPU each that holds nothing yet.
    pub fn empty() -> Data {
        let node = |id| MetaNode {
            id,
            cpus: id.to_string(),
            total_bytes: 1 << 30,
            spans: Vec::new(),
        };
        let meta = Meta {
            schema: SCHEMA.into(),
            hither: "test".into(),
            began_unix_ms: None,
            kernel: "test".into(),
            nodes: vec![node(0), node(2)],
            distances: Vec::new(),
            line_bytes: Some(64),
            command: vec!["./app".into()],
            watched: "the command".into(),
            trackers: vec![MetaTracker {
                name: "opium".into(),
                about: String::new(),
            }],
            interval_us: 100_000,
            ended: None,
        };
        Data {
            nodes: vec![0, 2],
            accesses: Vec::new(),
            regions: Vec::new(),
            intervals: Vec::new(),
            traffic: Vec::new(),
            residency: Vec::new(),
            processes: Vec::new(),
            mappings: Vec::new(),
            allocations: Vec::new(),
            frames: Vec::new(),
            notes: Vec::new(),
            meta,
        }
    }

    /// A read of node position `from` (also its CPU) of an address on position `home`.
    pub fn access(time_ns: u64, address: u64, from: u16, home: u16) -> Access {
        Access {
            time_ns,
            address,
            code: 0,
            pid: 7,
            tid: 0,
            weight: 10,
            latency_ns: 100,
            cpu: from,
            from,
            home,
            flags: KIND_KNOWN,
        }
    }

    /// The same as a write.
    pub fn write(time_ns: u64, address: u64, from: u16, home: u16) -> Access {
        Access {
            flags: KIND_KNOWN | WRITE,
            ..access(time_ns, address, from, home)
        }
    }

    impl Access {
        /// Makes its latency unknown.
        pub fn forget_latency(&mut self) {
            self.latency_ns = u32::MAX;
        }

        /// Makes it a load.
        pub fn set_read(&mut self) {
            self.flags &= !WRITE;
        }
    }

    /// A write that another CPU's cache served.
    pub fn transfer(time_ns: u64, address: u64, from: u16, home: u16) -> Access {
        let access = write(time_ns, address, from, home);
        Access {
            flags: access.flags | TRANSFER | TRANSFER_KNOWN,
            ..access
        }
    }

    #[test]
    fn what_is_not_known_stays_unknown() {
        let data = empty();
        let sample = Sample {
            time_ns: 1,
            pid: 7,
            tid: None,
            cpu: None,
            from_node: Some(1),
            home_node: Some(2),
            address: 5,
            code: None,
            is_write: None,
            latency_ns: None,
            from_cache: None,
            weight: 0,
        };
        let access = data.access(&sample);
        assert_eq!(
            (access.tid(), access.cpu(), access.latency_ns()),
            (None, None, None)
        );
        // There is no node1.
        assert_eq!((access.from(), access.home()), (None, Some(1)));
        assert!(!access.is_write() && !access.kind_is_known());
        assert_eq!(access.weight, 1);
        assert!(size_of::<Access>() <= 48);
    }
}
