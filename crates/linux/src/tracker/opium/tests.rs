//! The reader against a fake device: a sysfs folder and a plain 32 MiB file.

use super::*;
use crate::opium::{Filter, Secondary, Source};
use crate::watch::empty_snapshot;
use hither_core::opium::{
    self as layout, control, filter, header, link, node, notice, secondary, space, transaction,
    vcpu,
};
use hither_core::snapshot::PageStats;
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// The plugin's side of a fake device.
struct Fake {
    folder: tempfile::TempDir,
    file: File,
}

const PCI: &str = "sys/bus/pci/devices/0000:00:04.0";

impl Fake {
    /// Two vCPUs on two nodes of numbers 0 and 3, one link each way.
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let pci = folder.path().join(PCI);
        fs::create_dir_all(&pci).unwrap();
        fs::create_dir_all(folder.path().join("sys/bus/pci/devices/0000:00:01.0")).unwrap();
        fs::write(
            folder
                .path()
                .join("sys/bus/pci/devices/0000:00:01.0/modalias"),
            "pci:v00008086d00007020sv00001AF4sd00001100bc01sc01i80\n",
        )
        .unwrap();
        fs::write(
            pci.join("modalias"),
            "pci:v00001AF4d00001110sv00001AF4sd00001100bc05sc00i00\n",
        )
        .unwrap();
        fs::write(pci.join("enable"), "0\n").unwrap();
        let path = pci.join("resource2");
        let options = || {
            OpenOptions::new()
                .read(true)
                .write(true)
                .create(true)
                .clone()
        };
        let file = options().open(path).unwrap();
        file.set_len(layout::SIZE as u64).unwrap();
        let fake = Self { folder, file };
        fake.put(header::MAGIC, layout::MAGIC);
        fake.put32(header::VERSION, layout::VERSION);
        fake.put32(header::VCPU_COUNT, 2);
        fake.put32(header::NODE_COUNT, 2);
        fake.put32(header::LINK_COUNT, 2);
        fake.put32(header::LINE_BYTES, 64);
        fake.put32(header::NODE_IDS, 0);
        fake.put32(header::NODE_IDS + 4, 3);
        fake.file
            .write_all_at(&[0, 1], header::VCPU_NODES as u64)
            .unwrap();
        fake
    }

    fn put(&self, offset: usize, value: u64) {
        self.file
            .write_all_at(&value.to_le_bytes(), offset as u64)
            .unwrap();
    }

    fn put32(&self, offset: usize, value: u32) {
        self.file
            .write_all_at(&value.to_le_bytes(), offset as u64)
            .unwrap();
    }

    fn get(&self, offset: usize) -> u64 {
        let mut bytes = [0; 8];
        self.file.read_exact_at(&mut bytes, offset as u64).unwrap();
        u64::from_le_bytes(bytes)
    }

    fn get32(&self, offset: usize) -> u32 {
        self.get(offset) as u32
    }

    fn put_vcpu(&self, index: usize, offset: usize, value: u64) {
        self.put(vcpu::BASE + index * vcpu::STRIDE + offset, value);
    }

    /// Writes one sample where position `number` of the ring goes.
    fn put_sample(&self, index: usize, number: u64, page: u64, frame: u64, node: u8, flags: u8) {
        let slot = number as usize % ring::CAPACITY;
        let base = ring::BASE + index * ring::STRIDE + slot * ring::SAMPLE_BYTES;
        self.put(base + ring::VADDR, page << 12 | 0x40);
        self.put(base + ring::PADDR, frame << 12 | 0x40);
        self.put(base + ring::TIME_NS, number);
        self.put32(base + ring::LATENCY_NS, 123);
        self.file
            .write_all_at(&[node, flags], (base + ring::NODE) as u64)
            .unwrap();
    }

    fn root(&self) -> Root {
        Root::new(self.folder.path())
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join(PCI)
    }

    fn open(&self) -> Result<OpiumDevice> {
        OpiumDevice::open(&self.root())
    }
}

fn refused(fake: &Fake, wanted: &str) {
    let error = fake.open().unwrap_err().to_string();
    assert!(
        error.contains("resource2") && error.contains(wanted) && error.contains("; "),
        "{error}"
    );
}

#[test]
fn the_device_is_found_enabled_and_described() {
    let fake = Fake::new();
    let device = fake.open().unwrap();
    assert_eq!(device.node_ids(), [NodeId(0), NodeId(3)]);
    assert_eq!(device.vcpu_nodes(), [0, 1]);
    assert_eq!(
        (
            device.vcpu_count(),
            device.link_count(),
            device.line_bytes()
        ),
        (2, 2, 64)
    );
    assert_eq!(fs::read_to_string(fake.path().join("enable")).unwrap(), "1");
}

#[test]
fn the_kernels_list_saves_a_look_at_each_device() {
    let fake = Fake::new();
    let folder = fake.folder.path().join("proc/bus/pci");
    fs::create_dir_all(&folder).unwrap();
    let list = |numbers: &str| {
        let text = format!("0008\t80867020\t0\t0\t\n0020\t{numbers}\ta\t0\tvirtio-pci\n");
        fs::write(folder.join("devices"), text).unwrap();
        OpiumDevice::find(&Root::new(fake.folder.path())).unwrap()
    };
    assert_eq!(list("1af41110"), Some(fake.path()));
    assert_eq!(list("1af41112"), None);
}

#[test]
fn a_machine_without_the_device_is_told_how_to_get_one() {
    let folder = tempfile::tempdir().unwrap();
    let error = OpiumDevice::open(&Root::new(folder.path()))
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("1af4:1110") && error.contains("hither lab run"),
        "{error}"
    );
}

#[test]
fn wrong_magic_version_size_and_numbers_are_refused() {
    let fake = Fake::new();
    fake.put(header::MAGIC, 0);
    refused(&fake, "mark");
    fake.put(header::MAGIC, layout::MAGIC);
    fake.put32(header::VERSION, layout::VERSION + 1);
    refused(&fake, &format!("layout version {}", layout::VERSION + 1));
    fake.put32(header::VERSION, layout::VERSION);
    for (offset, value, words) in [
        (header::VCPU_COUNT, 0, "0 vCPUs"),
        (header::VCPU_COUNT, 17, "17 vCPUs"),
        (header::NODE_COUNT, 9, "9 nodes"),
        (header::LINK_COUNT, 65, "65 links"),
        (header::LINE_BYTES, 3, "3 bytes"),
        (header::NODE_IDS + 4, 0, "node0 twice"),
        (header::VCPU_NODES, 2, "node position 2 of 2"),
    ] {
        let before = fake.get32(offset);
        fake.put32(offset, value);
        refused(&fake, words);
        fake.put32(offset, before);
    }
    fake.open().unwrap();
    fake.file.set_len(layout::SIZE as u64 - 1).unwrap();
    refused(&fake, "33554431 bytes");
    fs::remove_file(fake.path().join("resource2")).unwrap();
    refused(&fake, "cannot be opened");
}

#[test]
fn a_full_ring_is_read_once_and_in_order() {
    let fake = Fake::new();
    let mut device = fake.open().unwrap();
    // The head wraps: positions 100 to 100 + capacity, of which the first 100 were read before.
    device.drain(0, |_| ());
    let capacity = ring::CAPACITY as u64;
    fake.put_vcpu(0, vcpu::RING_HEAD, 100);
    assert_eq!(device.drain(0, |_| ()), 100);
    for number in 100..100 + capacity {
        fake.put_sample(0, number, number, number + 7, 1, ring::WRITE);
    }
    fake.put_vcpu(0, vcpu::RING_HEAD, 100 + capacity);
    let mut next = 100;
    let count = device.drain(0, |sample| {
        assert_eq!((sample.vaddr >> 12, sample.paddr >> 12), (next, next + 7));
        assert_eq!((sample.time_ns, sample.latency_ns), (next, 123));
        assert_eq!((sample.node, sample.flags), (1, ring::WRITE));
        next += 1;
    });
    assert_eq!(count, capacity);
    assert_eq!(fake.get(control::RING_TAIL), 100 + capacity);
    assert_eq!(device.drain(0, |_| panic!("read twice")), 0);
    // A plugin that started anew has a small head again.
    fake.put_vcpu(0, vcpu::RING_HEAD, 5);
    assert_eq!(device.drain(0, |_| ()), 5);
}

#[test]
fn filters_are_checked_before_they_are_set() {
    let fake = Fake::new();
    let device = fake.open().unwrap();
    let good = Filter {
        start: 0x10_0000,
        end: 0x20_0000,
        shift: 12,
        types: transaction::READ,
        node: None,
        directions: filter::REMOTE,
        user_only: false,
        base_counter: 16,
        threshold: 9,
    };
    device.set_filter(31, Some(good)).unwrap();
    let base = control::FILTERS + 64 * 31;
    assert_eq!(
        (fake.get(base + filter::START), fake.get(base + filter::END)),
        (good.start, good.end)
    );
    for (field, value) in [
        (filter::FLAGS, filter::ENABLED),
        (filter::SHIFT, 12),
        (filter::BASE_COUNTER, 16),
        (filter::THRESHOLD, 9),
        (filter::TYPES, transaction::READ),
        (filter::NODE, filter::ANY_NODE),
        (filter::DIRECTIONS, filter::REMOTE),
        (filter::EPOCH, 1),
    ] {
        assert_eq!(fake.get32(base + field), value, "field {field}");
    }
    assert_eq!(fake.get32(control::FILTER_SEQ), 1);
    for (bad, words) in [
        (Filter { shift: 5, ..good }, "granularity"),
        (Filter { shift: 22, ..good }, "granularity"),
        (
            Filter {
                end: good.start,
                ..good
            },
            "empty",
        ),
        (
            Filter {
                base_counter: layout::COUNTERS as u32 - 255,
                ..good
            },
            "exceed",
        ),
    ] {
        let error = device.set_filter(2, Some(bad)).unwrap_err();
        assert!(error.contains(words), "{error}");
    }
    device.set_filter(31, None).unwrap();
    assert_eq!(fake.get32(base + filter::FLAGS), 0);
    fake.put32(layout::COUNTER_BASE + (16 * MAX_NODES + 1) * 4, 77);
    fake.put(layout::FIRED, 1 << 16);
    let mut words = [0; 4];
    device.read_counters(16, &mut words);
    assert_eq!(words[0] >> 32, 77);
    assert!(device.fired(16) && !device.fired(17));
}

#[test]
fn filters_are_one_programs_at_a_time() {
    let fake = Fake::new();
    let (first, second) = (fake.open().unwrap(), fake.open().unwrap());
    // What somebody left behind is switched off.
    fake.put32(control::FILTERS + filter::FLAGS, filter::ENABLED);
    first.claim_filters().unwrap();
    assert_eq!(fake.get32(control::FILTERS + filter::FLAGS), 0);
    let error = second.claim_filters().unwrap_err();
    assert!(error.contains("in use by another program"), "{error}");
    drop(first);
    second.claim_filters().unwrap();
}

#[test]
fn secondary_counters_and_notices_are_read() {
    let fake = Fake::new();
    let device = fake.open().unwrap();
    let wanted = Secondary {
        filters: 0b101,
        types: transaction::WRITES,
        threshold: 1 << 40,
    };
    device.set_secondary(15, Some(wanted));
    let base = control::SECONDARIES + 32 * 15;
    assert_eq!(fake.get32(base + secondary::FLAGS), filter::ENABLED);
    assert_eq!(fake.get32(base + secondary::FILTERS), 5);
    assert_eq!(fake.get(base + secondary::THRESHOLD), 1 << 40);
    fake.put(secondary::COUNTS + secondary::COUNTS_STRIDE * 15 + 8, 12);
    assert_eq!(device.secondary(15)[..3], [0, 12, 0]);
    // Two notices; a third has its number, and no word yet.
    let put = |number: u64, rest: u64| {
        let slot = (number - 1) % notice::CAPACITY as u64;
        fake.put(notice::WORDS + 8 * slot as usize, number << 32 | rest);
    };
    put(1, 3 << 26 | 31 << 20 | 0x7_ffff);
    put(2, 1 << 26 | notice::SECONDARY | 15 << 20);
    fake.put(notice::SEQUENCE, 3);
    let (found, seen) = device.notices(0);
    let counter = Source::Counter {
        filter: 31,
        counter: 0x7_ffff,
    };
    assert_eq!(
        found
            .iter()
            .map(|n| (n.source, n.requester))
            .collect::<Vec<_>>(),
        [(counter, 3), (Source::Secondary(15), 1)]
    );
    assert_eq!(seen, 2);
    put(3, 0);
    assert_eq!(device.notices(seen).1, 3);
    // So many that the first are written over.
    let all = 3 + notice::CAPACITY as u64;
    (4..=all).for_each(|number| put(number, 0));
    fake.put(notice::SEQUENCE, all);
    let (found, seen) = device.notices(0);
    assert_eq!((found.len(), seen), (notice::CAPACITY, all));
}

#[test]
fn windows_are_read_whole() {
    let fake = Fake::new();
    let device = fake.open().unwrap();
    let base = layout::window::BASE + 3 * layout::window::STRIDE;
    fake.put(base + layout::window::OPENED, 2);
    fake.put(base + layout::window::USER_LOCAL_FILLS + 8, 55);
    let window = device.window(3);
    assert_eq!(window.at(layout::window::OPENED), 2);
    assert_eq!(window.by_node(layout::window::USER_LOCAL_FILLS, 1), 55);
}

/// Topology of the fake: nodes 0 and 3, and node 1 without memory between them, so that device
/// positions and snapshot positions differ.
fn topology(folder: &Path) -> Topology {
    let put = |below: &str, text: &str| {
        let path = folder.join(below);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    };
    put("sys/devices/system/cpu/online", "0-2\n");
    put("sys/devices/system/node/online", "0-1,3\n");
    for (id, cpu, memory, distance) in [
        (0, "0", 4096, "10 15 20"),
        (1, "2", 0, "15 10 15"),
        (3, "1", 4096, "20 15 10"),
    ] {
        let node = format!("sys/devices/system/node/node{id}");
        put(&format!("{node}/cpulist"), cpu);
        put(&format!("{node}/distance"), distance);
        let text = format!(
            "Node {id} MemTotal: {memory} kB\nNode {id} MemFree: {} kB\n",
            memory / 2
        );
        put(&format!("{node}/meminfo"), &text);
    }
    Topology::read(&Root::new(folder)).unwrap()
}

fn fake_process(folder: &Path, pid: i32, pages: u64) {
    for (parent, children) in [(1, pid.to_string()), (pid, String::new())] {
        let task = folder.join(format!("proc/{parent}/task/{parent}"));
        fs::create_dir_all(&task).unwrap();
        fs::write(task.join("children"), children).unwrap();
    }
    let fields = "S 1 1 1 0 -1 0 0 0 0 0 5 6 0 0 20 0 1 0 777 4096 99 0";
    fs::write(
        folder.join(format!("proc/{pid}/stat")),
        format!("{pid} (app) {fields}\n"),
    )
    .unwrap();
    let mut map = vec![0u8; 8 * pages as usize];
    for page in 0..pages as usize {
        map[page * 8..][..8].copy_from_slice(&(1u64 << 63 | (page as u64 + 1000)).to_ne_bytes());
    }
    fs::write(folder.join(format!("proc/{pid}/pagemap")), map).unwrap();
}

#[test]
fn an_interval_gives_metrics_traffic_and_pages() {
    let fake = Fake::new();
    let topology = topology(fake.folder.path());
    fake_process(fake.folder.path(), 50, 64);
    fake.put(header::TIME_NS, 1_000_000);
    let root = fake.root();
    let device = fake.open().unwrap();
    let mut tracker = OpiumTracker::with_device(device, &root, &topology, Some(2.0)).unwrap();
    assert_eq!(fake.get32(control::SAMPLE_PERIOD), FIRST_PERIOD);
    assert_eq!(fake.get32(control::SAMPLE_SKIP), 0);
    // 10 ms: vCPU 0 (node0) reads 300 local and 100 remote lines, vCPU 1 writes 100 to node0.
    fake.put(header::TIME_NS, 11_000_000);
    fake.put_vcpu(0, vcpu::fills(0, 0), 300);
    fake.put_vcpu(0, vcpu::fills(0, 1), 100);
    fake.put_vcpu(1, vcpu::fills(1, 0), 100);
    fake.put_vcpu(0, vcpu::fills(2, 0), 500);
    fake.put_vcpu(0, vcpu::LATENCY_SUM_NS, 50_000);
    fake.put_vcpu(0, vcpu::DEMAND_MISSES, 500);
    fake.put_vcpu(0, vcpu::INSTRUCTIONS_USER, 100_000);
    fake.put_vcpu(0, vcpu::TIME_NS, 60_000);
    fake.put_vcpu(0, vcpu::IDLE_NS, 10_000);
    fake.put_vcpu(1, vcpu::RING_LOST, 4);
    fake.put(node::BASE + node::READ_BYTES, 6000);
    fake.put(node::BASE + node::WRITE_BYTES, 2000);
    // 10,000 us at 25 %.
    fake.put(node::BASE + node::UTILISATION_INTEGRAL, 10_000 * 250_000);
    fake.put(link::BASE + link::UTILISATION_INTEGRAL, 10_000 * 100_000);
    for number in 0..6 {
        let flags = [0, ring::WRITE, ring::STREAM, ring::KERNEL, 0, 0][number as usize];
        fake.put_sample(1, number, 5 + number / 5, 1005 + number / 5, 0, flags);
    }
    fake.put_vcpu(1, vcpu::RING_HEAD, 6);
    let mut tree = Tree::new(root, 1);
    tree.refresh(0).unwrap();
    let mut snapshot = empty_snapshot(&topology);
    tracker.observe(&mut tree, &mut snapshot).unwrap();
    let metrics = &snapshot.metrics;
    // 400 + 100 user fills, 300 of them local; 500 kernel fills.
    assert_eq!(metrics.local_access_ratio.get(), Some(0.6));
    assert_eq!(metrics.memory_accesses_per_us.get(), Some(0.1));
    assert_eq!(metrics.read_share.get(), Some(0.8));
    assert_eq!(metrics.latency_ns.get(), Some(100.0));
    assert_eq!(metrics.l3_mpki.get(), Some(5.0));
    // 100,000 instructions in 50,000 ns at 2 GHz.
    assert_eq!(metrics.ipc.get(), Some(1.0));
    assert_eq!(metrics.link_use.get(), Some(0.05));
    // All traffic on one of two nodes.
    assert!((metrics.controller_imbalance.get().unwrap() - 1.0).abs() < 1e-12);
    assert_eq!(snapshot.nodes[0].utilisation.get(), Some(0.25));
    assert_eq!(snapshot.nodes[0].traffic_bytes(), Some(8000));
    assert_eq!(
        snapshot.nodes[1].traffic_bytes(),
        None,
        "the device does not know node1"
    );
    assert_eq!(snapshot.nodes[2].traffic_bytes(), Some(0));
    assert_eq!(
        (snapshot.sample_count.get(), snapshot.samples_lost),
        (Some(5), 4)
    );
    let view = tracker.view().unwrap();
    // From node3 to node0 all; the store counts twice. The kernel's is traffic only.
    assert_eq!((view.sample_count, view.local_ratio()), (5, Some(0.0)));
    assert_eq!(view.node_lines, [7.0 * f64::from(FIRST_PERIOD), 0.0, 0.0]);
    snapshot.pages.sort_by_key(|page| page.page);
    assert_eq!(snapshot.pages.len(), 2);
    // vCPU 1 is on node3: snapshot position 2.
    assert_eq!(
        (
            snapshot.pages[0].reads.get(2),
            snapshot.pages[0].writes.get(2)
        ),
        (3, 1)
    );
    assert_eq!(
        (snapshot.pages[0].home, snapshot.pages[1].page),
        (NodeId(0), 6)
    );
    drop(tracker);
    assert_eq!(
        fake.get32(control::SAMPLE_PERIOD),
        0,
        "sampling is switched off again"
    );
}

#[test]
fn restricted_to_a_pmu_it_samples_loads() {
    let fake = Fake::new();
    let topology = topology(fake.folder.path());
    fake_process(fake.folder.path(), 50, 64);
    fake.put32(control::EVIDENCE, control::EVIDENCE_PMU);
    fake.put(header::TIME_NS, 1_000_000);
    let root = fake.root();
    let device = fake.open().unwrap();
    let mut tracker = OpiumTracker::with_device(device, &root, &topology, None).unwrap();
    assert_eq!(fake.get32(control::SAMPLE_SKIP), control::SKIP_KERNEL);
    fake.put(header::TIME_NS, 11_000_000);
    fake.put_vcpu(0, vcpu::fills(0, 0), 225);
    fake.put_vcpu(0, vcpu::fills(0, 1), 225);
    fake.put(node::BASE + node::READ_BYTES, 450 * 64);
    fake.put(link::BASE + link::UTILISATION_INTEGRAL, 10_000 * 100_000);
    // 45 loads, from which a latency is told, among streams' and stores; 15 of them by instructions that store, too.
    for number in 0..75 {
        let page = number % 5;
        let update = ring::WRITE | ring::UPDATE;
        let flags = [0, ring::WRITE, ring::STREAM, update, 0][page as usize];
        fake.put_sample(1, number, 5 + page, 1005 + page, 0, flags);
    }
    fake.put_vcpu(1, vcpu::RING_HEAD, 75);
    let mut tree = Tree::new(root, 1);
    tree.refresh(0).unwrap();
    let mut snapshot = empty_snapshot(&topology);
    tracker.observe(&mut tree, &mut snapshot).unwrap();
    let metrics = &snapshot.metrics;
    assert_eq!(metrics.local_access_ratio.get(), Some(0.5));
    assert_eq!(metrics.memory_accesses_per_us.get(), Some(0.045));
    assert_eq!(metrics.latency_ns.get(), Some(123.0));
    assert!(!metrics.link_use.is_known() && !snapshot.nodes[0].utilisation.is_known());
    assert_eq!(snapshot.sample_count.get(), Some(60));
    let loads = |page: &PageStats| (page.reads.get(2), page.writes.get(2));
    assert_eq!(snapshot.pages.len(), 4);
    for page in &snapshot.pages {
        let told = if page.page == 5 + 3 { (0, 15) } else { (15, 0) };
        assert_eq!(loads(page), told);
    }
    drop(tracker);
    assert_eq!(fake.get32(control::SAMPLE_SKIP), 0);
}

#[test]
fn references_to_caches_are_no_samples_of_memory() {
    let fake = Fake::new();
    let topology = topology(fake.folder.path());
    fake_process(fake.folder.path(), 50, 64);
    let root = fake.root();
    let mut tree = Tree::new(root.clone(), 1);
    tree.refresh(0).unwrap();
    let mut snapshot = empty_snapshot(&topology);
    // A fill of page 5; references to the same page and another one, one by a stream.
    for (number, page, flags) in [
        (0, 5, 0),
        (1, 5, ring::REFERENCE),
        (2, 6, ring::REFERENCE | ring::STREAM),
        (3, 6, ring::REFERENCE | ring::WRITE),
    ] {
        fake.put_sample(0, number, page, 1000 + page, 0, flags);
    }
    let open = || {
        fake.put_vcpu(0, vcpu::RING_HEAD, 0);
        let device = fake.open().unwrap();
        let tracker = OpiumTracker::with_device(device, &root, &topology, None).unwrap();
        fake.put_vcpu(0, vcpu::RING_HEAD, 4);
        tracker
    };
    let mut tracker = open();
    tracker.keep_observations(true);
    tracker.observe(&mut tree, &mut snapshot).unwrap();
    assert_eq!(snapshot.sample_count.get(), Some(1));
    let pages: Vec<u64> = snapshot.pages.iter().map(|page| page.page).collect();
    assert_eq!(pages, [5]);
    let mut kept = Observations::default();
    tracker.take_observations(&mut kept);
    assert_eq!(kept.samples.len(), 1);
    drop(tracker);
    let mut tracker = open();
    tracker.keep_observations(true);
    tracker.fill_in_pages(false);
    tracker.observe(&mut tree, &mut snapshot).unwrap();
    tracker.take_observations(&mut kept);
    assert_eq!(
        kept.samples.len(),
        2,
        "kept without being summed up by page"
    );
    drop(tracker);
    let mut tracker = open();
    tracker.count_frames();
    tracker.observe(&mut tree, &mut snapshot).unwrap();
    let counts = tracker.frame_counts().unwrap();
    assert_eq!((counts.total(), counts.of(1005)), (1, 1));
}

#[test]
fn references_and_ways_are_set_for_vcpus_that_are_there() {
    let fake = Fake::new();
    let device = fake.open().unwrap();
    device.set_reference_sampling(4000, 50);
    assert_eq!(fake.get32(control::REFERENCE_NS), 50);
    assert_eq!(fake.get32(control::REFERENCE_PERIOD), 4000);
    device.set_way_mask(1, 0xff0);
    assert_eq!(fake.get32(control::WAY_MASKS + 4), 0xff0);
    assert_eq!((device.way_mask(0), device.way_mask(1)), (0, 0xff0));
    let beyond = std::panic::AssertUnwindSafe(|| device.set_way_mask(2, 1));
    assert!(std::panic::catch_unwind(beyond).is_err());
    assert_eq!(fake.get32(control::WAY_MASKS + 8), 0);
    fake.put(header::SPACE_COUNT, 1);
    fake.put(space::BASE + space::PRIVATE_MISSES, 321);
    let counts: Vec<_> = device.spaces().unwrap().collect();
    assert_eq!(counts[0].cache_references, 321);
}

#[test]
fn sampling_follows_the_plan() {
    let fake = Fake::new();
    let topology = topology(fake.folder.path());
    let device = fake.open().unwrap();
    let mut tracker = OpiumTracker::with_device(device, &fake.root(), &topology, None).unwrap();
    assert_eq!(fake.get32(control::SAMPLE_PERIOD), FIRST_PERIOD);
    tracker.set_sampling(Sampling::Off);
    assert_eq!(fake.get32(control::SAMPLE_PERIOD), 0);
    let mut snapshot = empty_snapshot(&topology);
    let mut tree = Tree::new(fake.root(), 1);
    // A vCPU had not noticed yet.
    fake.put_sample(0, 0, 5, 1005, 0, 0);
    fake.put_vcpu(0, vcpu::RING_HEAD, 1);
    tracker.observe(&mut tree, &mut snapshot).unwrap();
    assert!(!snapshot.sample_count.is_known() && snapshot.pages.is_empty());
    assert_eq!(tracker.foreign_samples(), 0, "it was thrown away unread");
    assert!(snapshot.metrics.ipc.basis().contains("--machine"));
    tracker.set_sampling(Sampling::Full);
    assert_eq!(fake.get32(control::SAMPLE_PERIOD), 512);
}

#[test]
fn samples_keep_to_a_share_of_the_instructions() {
    let fake = Fake::new();
    let topology = topology(fake.folder.path());
    let device = fake.open().unwrap();
    let mut tracker = OpiumTracker::with_device(device, &fake.root(), &topology, None).unwrap();
    let mut snapshot = empty_snapshot(&topology);
    let mut tree = Tree::new(fake.root(), 1);
    tracker.set_instruction_budget(0.005);
    tracker.set_sampling(Sampling::Full);
    assert_eq!(fake.get32(control::SAMPLE_PERIOD), 81_920);
    // 10 million fills and 28 million instructions in 100 ms: half a percent of 280 million a second
    // pays for 1647 samples.
    fake.put(header::TIME_NS, 100_000_000);
    fake.put_vcpu(0, vcpu::fills(0, 1), 10_000_000);
    fake.put_vcpu(0, vcpu::INSTRUCTIONS_USER, 28_000_000);
    tracker.observe(&mut tree, &mut snapshot).unwrap();
    assert_eq!(fake.get32(control::SAMPLE_PERIOD), 60_714);
    // As many fills, but no instructions: few samples, but not none.
    fake.put(header::TIME_NS, 200_000_000);
    fake.put_vcpu(0, vcpu::fills(0, 1), 20_000_000);
    tracker.observe(&mut tree, &mut snapshot).unwrap();
    assert_eq!(fake.get32(control::SAMPLE_PERIOD), 1_000_000);
    // Transfers get half of what there is, where they are kept.
    tracker.keep_observations(true);
    fake.put(header::TIME_NS, 300_000_000);
    fake.put_vcpu(0, vcpu::fills(0, 1), 30_000_000);
    fake.put_vcpu(0, vcpu::INSTRUCTIONS_USER, 56_000_000);
    fake.put_vcpu(0, vcpu::TRANSFERS, 20_000_000);
    tracker.observe(&mut tree, &mut snapshot).unwrap();
    assert_eq!(fake.get32(control::TRANSFER_PERIOD), 242_857);
    // A quarter of what it was, and not 121,428 at once.
    assert_eq!(fake.get32(control::SAMPLE_PERIOD), 250_000);
    fake.put(header::TIME_NS, 400_000_000);
    fake.put_vcpu(0, vcpu::fills(0, 1), 40_000_000);
    fake.put_vcpu(0, vcpu::INSTRUCTIONS_USER, 84_000_000);
    fake.put_vcpu(0, vcpu::TRANSFERS, 40_000_000);
    tracker.observe(&mut tree, &mut snapshot).unwrap();
    assert_eq!(fake.get32(control::SAMPLE_PERIOD), 121_428);
}

#[test]
fn a_device_of_another_machine_is_refused() {
    let fake = Fake::new();
    fake.put32(header::NODE_IDS + 4, 7);
    let topology = topology(fake.folder.path());
    let error = OpiumTracker::with_device(fake.open().unwrap(), &fake.root(), &topology, None);
    assert!(error.unwrap_err().to_string().contains("node7"));
}

#[test]
fn the_period_follows_the_traffic_and_survives_a_rest() {
    let fake = Fake::new();
    let topology = topology(fake.folder.path());
    let device = fake.open().unwrap();
    let mut tracker = OpiumTracker::with_device(device, &fake.root(), &topology, None).unwrap();
    let mut snapshot = empty_snapshot(&topology);
    let mut tree = Tree::new(fake.root(), 1);
    tracker.set_sampling(Sampling::Full);
    // 40 million fills in 100 ms: 400 million a second, of which 50,000 are sampled.
    fake.put(header::TIME_NS, 100_000_000);
    fake.put_vcpu(0, vcpu::fills(0, 1), 40_000_000);
    tracker.observe(&mut tree, &mut snapshot).unwrap();
    assert_eq!(
        snapshot.sample_period, 512,
        "it was in force in that interval"
    );
    assert_eq!(fake.get32(control::SAMPLE_PERIOD), 8000);
    // 3 % more traffic changes nothing.
    fake.put(header::TIME_NS, 200_000_000);
    fake.put_vcpu(0, vcpu::fills(0, 1), 81_200_000);
    tracker.observe(&mut tree, &mut snapshot).unwrap();
    assert_eq!(
        (snapshot.sample_period, fake.get32(control::SAMPLE_PERIOD)),
        (8000, 8000)
    );
    tracker.set_sampling(Sampling::Off);
    tracker.set_sampling(Sampling::Cheap);
    // 412 million / 2,000.
    assert_eq!(fake.get32(control::SAMPLE_PERIOD), 206_000);
}

#[test]
fn each_process_is_told_what_its_address_space_executed() {
    let fake = Fake::new();
    let topology = topology(fake.folder.path());
    fake_process(fake.folder.path(), 50, 64);
    // Alone in its frames.
    let map = (0..64u64).flat_map(|page| (1u64 << 63 | 1 << 56 | (page + 1000)).to_ne_bytes());
    let map: Vec<u8> = map.collect();
    fs::write(fake.folder.path().join("proc/50/pagemap"), map).unwrap();
    let put = |number: usize, field: usize, value: u64| {
        fake.put(space::BASE + number * space::STRIDE + field, value);
    };
    // What was counted before is left out, and what nobody has that is watched.
    for (number, paddr) in [(0, 1005 << 12), (1, 77 << 12)] {
        put(number, space::PAGE_TABLE, 0x1000 * (number as u64 + 1));
        put(number, space::FLOPS, 500);
        put(number, space::VADDR, 5 << 12);
        put(number, space::PADDR, paddr);
    }
    fake.put(header::SPACE_COUNT, 2);
    let root = fake.root();
    let device = fake.open().unwrap();
    let mut tracker = OpiumTracker::with_device(device, &root, &topology, None).unwrap();
    let mut tree = Tree::new(root, 1);
    tree.refresh(0).unwrap();
    let process = &tree.processes()[0];
    let mut snapshot = empty_snapshot(&topology);
    snapshot.processes = vec![hither_core::snapshot::ProcessState {
        parent: hither_core::ids::Pid(1),
        ..hither_core::snapshot::ProcessState::unknown(
            hither_core::ids::Pid(50),
            hither_core::ids::SpaceId(process.incarnation),
            "test",
        )
    }];
    // Nobody asked.
    tracker.fill_in_work(&tree, &mut snapshot);
    assert!(!snapshot.processes[0].work.is_known());
    tracker.count_work();
    for number in [0, 1] {
        put(number, space::FLOPS, 2500);
        put(number, space::INSTRUCTIONS, 9000);
        put(number, space::STALL_NS, 70);
        put(number, space::READ_FILLS, 10);
        put(number, space::WRITE_FILLS + 8, 5);
        put(number, space::WRITE_BACKS + 8, 3);
    }
    tracker.fill_in_work(&tree, &mut snapshot);
    let work = snapshot.processes[0].work.get().unwrap();
    let expected = hither_core::snapshot::Work {
        instructions: 9000,
        flops: 2000,
        read_bytes: 15 * 64,
        written_bytes: Some(3 * 64),
        stall_ns: Some(70),
    };
    assert_eq!(work, expected);
    assert_eq!(work.intensity(), Some(2000.0 / (18.0 * 64.0)));
    // The page table goes on with another process: nothing of it is this one's.
    put(0, space::PADDR, 88 << 12);
    put(0, space::FLOPS, 9999);
    let mut told = 0;
    for round in 0..20 {
        put(0, space::INSTRUCTIONS, 9001 + round);
        tracker.fill_in_work(&tree, &mut snapshot);
        told += u32::from(snapshot.processes[0].work.get().unwrap().instructions > 0);
    }
    assert_eq!(told, 16, "until its owner is asked for again");
}
