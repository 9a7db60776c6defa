//! The lab's device as `top` reads it: counters of all CPUs, nodes and links, and a tracker for
//! samples where nobody else samples.

use super::reading::{Accesses, OpiumReading, Requests, Samples};
use hither_core::machine::parse;
use hither_core::observation::Observations;
use hither_core::snapshot::Evidence;
use hither_linux::opium::{OpiumDevice, VcpuCounters};
use hither_linux::root::Root;
use hither_linux::topology::Topology;
use hither_linux::tracker::Tracker;
use hither_linux::watch::Watch;
use std::collections::BTreeMap;

/// All processes descend from it, but those of the kernel.
const FIRST_PROCESS: i32 = 1;

/// The device, for its counters.
pub struct Counters {
    device: OpiumDevice,
    /// Topology position of each device node position.
    positions: Vec<usize>,
    nodes: usize,
}

impl Counters {
    /// Opens the device.
    ///
    /// # Errors
    /// Why there is none, in a sentence.
    pub fn open(root: &Root, topology: &Topology) -> Result<Self, String> {
        let device = OpiumDevice::open(root)
            .map_err(|error| format!("{}; {}", error.reason, error.remedy))?;
        let positions = device.node_ids().iter().map(|&id| topology.position(id));
        match positions.collect::<Option<Vec<usize>>>() {
            Some(positions) => Ok(Self {
                device,
                positions,
                nodes: topology.nodes.len(),
            }),
            None => Err("the Opium device speaks of a node that is not online".to_owned()),
        }
    }

    /// Does somebody sample?
    pub fn is_sampling(&self) -> bool {
        self.device.sampling_period() > 0
    }

    /// From and to of each link, by the machine file that the lab puts into the guest.
    pub fn link_names(&self) -> Vec<String> {
        let file = std::env::var_os("HITHER_MACHINE");
        let text = file.and_then(|file| std::fs::read_to_string(file).ok());
        let Some(Ok(machine)) = text.map(|text| parse::parse(&text)) else {
            return Vec::new();
        };
        let id = |position: usize| machine.nodes.get(position).map(|node| node.id);
        let name = |link: &hither_core::machine::Link| {
            Some(format!("{}>{}", id(link.from)?, id(link.to)?))
        };
        let names: Option<Vec<String>> = machine.links.iter().map(name).collect();
        names
            .filter(|names| names.len() == self.device.link_count())
            .unwrap_or_default()
    }

    /// Reads everything.
    pub fn read(&self) -> OpiumReading {
        let device = &self.device;
        let mut reading = OpiumReading {
            time_ns: device.time_ns(),
            traffic: vec![Default::default(); self.nodes],
            requests: vec![Requests::default(); self.nodes],
            links: (0..device.link_count())
                .map(|link| device.link_traffic(link))
                .collect(),
        };
        for (node, &position) in self.positions.iter().enumerate() {
            reading.traffic[position] = device.node_traffic(node);
        }
        let mut counters = VcpuCounters::default();
        for vcpu in 0..device.vcpu_count() {
            device.read_vcpu(vcpu, &mut counters);
            let own = device.vcpu_nodes()[vcpu];
            let sum = &mut reading.requests[self.positions[own]];
            *sum = sum.plus(&requests(&counters, own, self.positions.len()));
        }
        reading
    }
}

fn requests(counters: &VcpuCounters, own: usize, nodes: usize) -> Requests {
    use hither_core::opium::vcpu;
    let user = |node: usize| counters.fills(0, node) + counters.fills(1, node);
    Requests {
        fills: (0..nodes).map(user).sum(),
        local_fills: user(own),
        misses: counters.at(vcpu::DEMAND_MISSES),
        latency_ns: counters.at(vcpu::LATENCY_SUM_NS),
    }
}

/// A tracker that samples accesses and changes nothing of what it watches, or why there is none.
pub type Opened = Result<Box<dyn Tracker>, String>;

/// Sampled accesses by process.
pub struct Sampling {
    watch: Watch,
    seen: Observations,
}

impl Sampling {
    /// Begins to sample, where a tracker can and nobody else does.
    ///
    /// # Errors
    /// Why not, in a sentence.
    pub fn begin(
        root: &Root,
        topology: &Topology,
        counters: Option<&Counters>,
        open: impl FnOnce() -> Opened,
        at_us: u64,
    ) -> Result<(&'static str, Self), String> {
        if counters.is_some_and(Counters::is_sampling) {
            return Err(
                "somebody reads the Opium samples already, and top would take them away; end \
                 that program, or run `hither run -- true` where one was killed"
                    .to_owned(),
            );
        }
        let mut tracker = open()?;
        tracker.keep_observations(true);
        let name = tracker.name();
        let mut watch = Watch::new(root, topology, FIRST_PROCESS, tracker);
        watch.begin(at_us);
        let seen = Observations::default();
        Ok((name, Self { watch, seen }))
    }

    /// What was sampled since the last call; pages of one process as well.
    ///
    /// # Errors
    /// What the tracker says.
    pub fn read(&mut self, at_us: u64, focus: Option<i32>) -> hither_linux::Result<Samples> {
        self.watch.observe(at_us)?;
        self.watch.take_notes();
        self.seen.clear();
        self.watch.tracker().take_observations(&mut self.seen);
        let snapshot = self.watch.snapshot();
        let mut samples = Samples::default();
        let mut pages = BTreeMap::<u64, Accesses>::new();
        for page in &snapshot.pages {
            let count = page.total();
            let Some(home) = snapshot.node_position(page.home).filter(|_| count > 0) else {
                continue;
            };
            let local_count = page.accesses(home);
            let add = |sum: &mut Accesses| {
                sum.count += count;
                sum.local_count += local_count;
            };
            add(samples.processes.entry(page.pid.0).or_default());
            if focus == Some(page.pid.0) {
                add(pages.entry(page.page).or_default());
            }
        }
        for sample in &self.seen.samples {
            if let Some(latency_ns) = sample.latency_ns {
                let sum = samples.processes.entry(sample.pid.0).or_default();
                sum.timed_count += 1;
                sum.latency_ns += u64::from(latency_ns);
            }
        }
        samples.pages = pages.into_iter().collect();
        Ok(samples)
    }
}

/// What the model is told of a source that may not be there.
pub fn told<T>(opened: Result<T, String>) -> Evidence<T> {
    match opened {
        Ok(value) => Evidence::measured(value, "opium counters"),
        Err(why) => Evidence::unknown(why),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hither_core::opium::{self as layout, header, link, node, vcpu};
    use std::fs;
    use std::os::unix::fs::FileExt;
    use std::path::Path;

    /// A machine with two nodes whose device has two vCPUs, one per node, in the opposite order.
    fn machine() -> (tempfile::TempDir, Root, Topology, fs::File) {
        let captured = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/machines");
        let topology = Topology::read(&Root::new(captured.join("two-socket"))).unwrap();
        let ids: Vec<u32> = topology.nodes.iter().map(|node| node.id.0).collect();
        assert_eq!(ids.len(), 2);
        let folder = tempfile::tempdir().unwrap();
        let device = folder.path().join("sys/bus/pci/devices/0000:00:05.0");
        fs::create_dir_all(&device).unwrap();
        let alias = "pci:v00001AF4d00001110sv00001AF4sd00001100bc05sc00i00\n";
        fs::write(device.join("modalias"), alias).unwrap();
        let memory = fs::File::create(device.join("resource2")).unwrap();
        memory.set_len(layout::SIZE as u64).unwrap();
        put(&memory, header::MAGIC, layout::MAGIC);
        for (offset, value) in [
            (header::VERSION, layout::VERSION),
            (header::VCPU_COUNT, 2),
            (header::NODE_COUNT, 2),
            (header::LINK_COUNT, 1),
            (header::LINE_BYTES, 64),
            (header::NODE_IDS, ids[1]),
            (header::NODE_IDS + 4, ids[0]),
        ] {
            memory
                .write_all_at(&value.to_le_bytes(), offset as u64)
                .unwrap();
        }
        memory
            .write_all_at(&[0, 1], header::VCPU_NODES as u64)
            .unwrap();
        let root = Root::new(folder.path());
        (folder, root, topology, memory)
    }

    fn put(memory: &fs::File, offset: usize, value: u64) {
        memory
            .write_all_at(&value.to_le_bytes(), offset as u64)
            .unwrap();
    }

    #[test]
    fn counters_go_by_the_position_of_the_topology() {
        let (_folder, root, topology, memory) = machine();
        let counters = Counters::open(&root, &topology).unwrap();
        assert!(!counters.is_sampling());
        put(&memory, header::TIME_NS, 5_000);
        put(&memory, node::BASE + node::READ_BYTES, 640);
        put(&memory, link::BASE + link::BYTES, 99);
        // vCPU 0 is on the device's node 0: the second of the topology.
        put(&memory, vcpu::BASE + vcpu::fills(0, 0), 30);
        put(&memory, vcpu::BASE + vcpu::fills(1, 0), 5);
        put(&memory, vcpu::BASE + vcpu::fills(0, 1), 65);
        put(&memory, vcpu::BASE + vcpu::fills(2, 1), 1000);
        put(&memory, vcpu::BASE + vcpu::DEMAND_MISSES, 7);
        put(&memory, vcpu::BASE + vcpu::LATENCY_SUM_NS, 700);
        let reading = counters.read();
        assert_eq!(reading.time_ns, 5_000);
        assert_eq!(reading.traffic[1].read_bytes, 640);
        assert_eq!(reading.links[0].bytes, 99);
        let asked = Requests {
            fills: 100,
            local_fills: 35,
            misses: 7,
            latency_ns: 700,
        };
        assert_eq!(reading.requests, [Requests::default(), asked]);
        // The kernel's accesses are not in it.
    }

    #[test]
    fn samples_that_somebody_else_reads_are_left_to_them() {
        let (_folder, root, topology, memory) = machine();
        put(&memory, layout::control::SAMPLE_PERIOD, 500);
        let counters = Counters::open(&root, &topology).unwrap();
        let refused = Sampling::begin(
            &root,
            &topology,
            Some(&counters),
            || Err("none".to_owned()),
            0,
        );
        let why = refused.err().unwrap();
        assert!(why.contains("somebody reads the Opium samples"), "{why}");
        let device = OpiumDevice::open(&root).unwrap();
        assert_eq!(device.sampling_period(), 500, "it is as it was");
    }

    #[test]
    fn a_machine_without_the_device_says_so() {
        let (folder, _, topology, _) = machine();
        let empty = Root::new(folder.path().join("none"));
        let why = Counters::open(&empty, &topology).err().unwrap();
        assert!(why.contains("no Opium device"), "{why}");
    }
}
