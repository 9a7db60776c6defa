//! The Opium device as a guest sees it: found through sysfs, mapped through `resource2`.
//!
//! Layout: `hither_core::opium`. One side writes each field; this side writes the control page
//! only. Counters only grow, so readers keep the last values and take differences. Every array
//! here goes by the *device's* node position; [`OpiumDevice::node_ids`] gives the kernel's numbers.
//!
//! The kernel enters each page of the device in this process's page tables when it is mapped, and
//! takes it out again: 450 instructions a page, 4 million for all. So what is unused before the rings,
//! and rings of vCPUs that are not there, are left out, base counters are mapped when a filter is
//! set up first, and counters of address spaces when they are asked for.

mod filters;

pub use filters::{Filter, Notice, Secondary, Source, Totals};

use crate::error::{Error, Result};
use crate::root::Root;
use crate::sys::SharedMap;
use hither_core::ids::NodeId;
use hither_core::opium::{
    self as layout, MAX_NODES, control, header, link, node, ring, space, vcpu, window,
};
use std::fs::{File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// Words of a vCPU's block that hold counters.
pub const VCPU_WORDS: usize = vcpu::write_backs(MAX_NODES) / 8;
/// What lies before the rings, up to the last that is used of it.
const HEAD_BYTES: usize = layout::notice::WORDS + layout::notice::CAPACITY * 8;
/// Words of a window that hold totals.
const WINDOW_WORDS: usize = (window::USER_LOCAL_FILLS + MAX_NODES * 8) / 8;
const PCI: &str = "sys/bus/pci/devices";
/// A line for each: bus, device and function in four digits, vendor and device in eight.
const PCI_LIST: &str = "proc/bus/pci/devices";
const NOT_THE_LAB: &str = "start the program in the lab (`hither lab run --machine FILE -- CMD`)";

/// Counters of one vCPU since boot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VcpuCounters(pub [u64; VCPU_WORDS]);

impl Default for VcpuCounters {
    fn default() -> Self {
        Self([0; VCPU_WORDS])
    }
}

impl VcpuCounters {
    /// The counter at an offset of `hither_core::opium::vcpu`.
    #[must_use]
    pub fn at(&self, offset: usize) -> u64 {
        self.0[offset / 8]
    }

    /// Memory fills of a kind (0 user read, 1 user write, 2 kernel read, 3 kernel write) that
    /// the memory of a node position served.
    #[must_use]
    pub fn fills(&self, kind: usize, node: usize) -> u64 {
        self.at(vcpu::fills(kind, node))
    }

    /// What happened since `before`, counter by counter.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        let mut words = [0; VCPU_WORDS];
        for (index, word) in words.iter_mut().enumerate() {
            *word = self.0[index].wrapping_sub(before.0[index]);
        }
        Self(words)
    }
}

/// What was executed in one address space since boot; see `hither_core::opium::space`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SpaceCounts {
    /// Physical address of its page table.
    pub page_table: u64,
    /// Instructions in user mode.
    pub instructions: u64,
    /// Floating-point operations.
    pub flops: u64,
    /// Time in which it was in force, in ns.
    pub time_ns: u64,
    /// Time of that lost to memory, in ns.
    pub stall_ns: u64,
    /// A page that was accessed in it, and where that was.
    pub vaddr: u64,
    /// Physical address of the same.
    pub paddr: u64,
    /// Private-cache misses in user mode: references to the last-level cache.
    pub cache_references: u64,
    /// Lines that loads brought, by node position.
    pub read_fills: [u64; MAX_NODES],
    /// Lines that stores brought.
    pub write_fills: [u64; MAX_NODES],
    /// Lines written back meanwhile.
    pub write_backs: [u64; MAX_NODES],
}

impl SpaceCounts {
    fn read(map: &SharedMap, number: usize) -> Self {
        let mut words = [0; space::STRIDE / 8];
        map.read_block(space::STRIDE * number, &mut words);
        let at = |offset: usize| words[offset / 8];
        let by_node = |offset: usize| std::array::from_fn(|node| at(offset + 8 * node));
        Self {
            page_table: at(space::PAGE_TABLE),
            instructions: at(space::INSTRUCTIONS),
            flops: at(space::FLOPS),
            time_ns: at(space::TIME_NS),
            stall_ns: at(space::STALL_NS),
            vaddr: at(space::VADDR),
            paddr: at(space::PADDR),
            cache_references: at(space::PRIVATE_MISSES),
            read_fills: by_node(space::READ_FILLS),
            write_fills: by_node(space::WRITE_FILLS),
            write_backs: by_node(space::WRITE_BACKS),
        }
    }
}

/// Traffic of a node since boot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NodeTraffic {
    /// Bytes read from its memory.
    pub read_bytes: u64,
    /// Bytes written to it.
    pub write_bytes: u64,
    /// Utilisation summed over time, in ppm * us.
    pub utilisation_integral: u64,
    /// Present capacity in MB/s.
    pub capacity_mbs: u32,
}

/// Traffic of a link since boot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkTraffic {
    /// Bytes on the wire, headers included.
    pub bytes: u64,
    /// Utilisation summed over time, in ppm * us.
    pub utilisation_integral: u64,
    /// Capacity in MB/s.
    pub capacity_mbs: u32,
}

/// One sampled memory fill, transfer or reference to a last-level cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpiumSample {
    /// Virtual address.
    pub vaddr: u64,
    /// Physical address.
    pub paddr: u64,
    /// Modelled time in ns.
    pub time_ns: u64,
    /// Latency in ns.
    pub latency_ns: u32,
    /// Device position of the memory node.
    pub node: u8,
    /// Bits of `hither_core::opium::ring`: `WRITE`, `KERNEL`, `STREAM`, `TRANSFER`, `REFERENCE`.
    pub flags: u8,
    /// Virtual address of the instruction.
    pub code: u64,
    /// Physical address of the page table in force: the address space.
    pub page_table: u64,
}

/// Kinds of memory fills that are sampled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fills {
    /// All.
    All,
    /// Those of user mode.
    User,
}

/// Totals of a measuring window.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Window([u64; WINDOW_WORDS]);

impl Window {
    /// The total at an offset of `hither_core::opium::window`.
    #[must_use]
    pub fn at(&self, offset: usize) -> u64 {
        self.0[offset / 8]
    }

    /// The total of a node position in a table such as `window::USER_READ_FILLS`.
    #[must_use]
    pub fn by_node(&self, table: usize, node: usize) -> u64 {
        assert!(node < MAX_NODES, "node position {node}");
        self.at(table + node * 8)
    }
}

/// The mapped device.
#[derive(Debug)]
pub struct OpiumDevice {
    /// All before the rings.
    map: SharedMap,
    /// The rings of the vCPUs that are there.
    rings: SharedMap,
    /// The base counters, from the first filter on.
    counters: OnceLock<SharedMap>,
    /// The counters of address spaces, once they were asked for.
    spaces: OnceLock<SharedMap>,
    file: File,
    vcpu_count: usize,
    link_count: usize,
    line_bytes: u32,
    node_ids: Vec<NodeId>,
    vcpu_nodes: Vec<usize>,
    /// Samples consumed, per vCPU; the device's copy is written after each drain.
    tails: Vec<u64>,
}

impl OpiumDevice {
    /// The folder of the device below `/sys/bus/pci/devices`, if this machine has one.
    pub fn find(root: &Root) -> Result<Option<PathBuf>> {
        let (vendor, device) = (layout::PCI_VENDOR, layout::PCI_DEVICE);
        // One file names all devices, of which a server has hundreds, but not the domains of their
        // buses: a folder is looked for where one of these numbers is among them.
        if let Some(list) = root.text_if_any(PCI_LIST)? {
            let numbers = format!("{vendor:04x}{device:04x}");
            if !list
                .lines()
                .any(|line| line.split_whitespace().nth(1) == Some(&numbers))
            {
                return Ok(None);
            }
        }
        let alias = format!("pci:v{vendor:08X}d{device:08X}");
        for name in root.names(PCI)? {
            let own = root.text_if_any(&format!("{PCI}/{name}/modalias"))?;
            if own.is_some_and(|own| own.starts_with(&alias)) {
                return Ok(Some(root.path(&format!("{PCI}/{name}"))));
            }
        }
        Ok(None)
    }

    /// Finds and opens it.
    pub fn open(root: &Root) -> Result<Self> {
        match Self::find(root)? {
            Some(folder) => Self::open_at(&folder),
            None => Err(Error::new(
                root.path(PCI),
                "this machine has no Opium device (PCI 1af4:1110)",
                NOT_THE_LAB,
            )),
        }
    }

    /// Opens the device in its sysfs folder; checks identity, version and sizes.
    pub fn open_at(folder: &Path) -> Result<Self> {
        enable(folder)?;
        let path = folder.join("resource2");
        let refuse = |reason: String, remedy: &str| Error::new(&path, reason, remedy);
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .open(&path)
            .map_err(|error| {
                Error::io(
                    &path,
                    "cannot be opened",
                    "run hither as root: the device is root's",
                    error,
                )
            })?;
        let bytes = file
            .metadata()
            .map_err(|error| Error::io(&path, "cannot be examined", NOT_THE_LAB, error))?
            .len();
        if bytes < layout::SIZE as u64 {
            return Err(refuse(
                format!("has {bytes} bytes, the Opium device has {}", layout::SIZE),
                "give QEMU's ivshmem-plain device a memory backend of 32 MiB",
            ));
        }
        let mapped = |start, bytes| {
            SharedMap::at(&file, start, bytes)
                .map_err(|error| Error::io(&path, "cannot be mapped", NOT_THE_LAB, error))
        };
        let map = mapped(0, HEAD_BYTES)?;
        let magic = map.read64_acquire(header::MAGIC);
        if magic != layout::MAGIC {
            return Err(refuse(
                format!("begins with {magic:#018x}, not with the Opium device's mark"),
                "load hither's plugin into QEMU, as `hither lab run` does",
            ));
        }
        let version = map.read32(header::VERSION);
        if version != layout::VERSION {
            return Err(refuse(
                format!(
                    "has layout version {version}, this hither reads {}",
                    layout::VERSION
                ),
                "use plugin and guest tools of one hither release",
            ));
        }
        let bad = |reason| refuse(reason, "rebuild plugin and guest tools together");
        let vcpu_count =
            size(&map, header::VCPU_COUNT, "vCPUs", 1, layout::MAX_VCPUS).map_err(bad)?;
        let rings = mapped(ring::BASE, vcpu_count * ring::STRIDE)?;
        Self::from_maps(map, rings, vcpu_count, file).map_err(bad)
    }

    fn from_maps(
        map: SharedMap,
        rings: SharedMap,
        vcpu_count: usize,
        file: File,
    ) -> std::result::Result<Self, String> {
        let size = |offset, what, low, high| size(&map, offset, what, low, high);
        let node_count = size(header::NODE_COUNT, "nodes", 1, MAX_NODES)?;
        let link_count = size(header::LINK_COUNT, "links", 0, layout::MAX_LINKS)?;
        let line_bytes = size(header::LINE_BYTES, "bytes per line", 16, 4096)? as u32;
        let node_ids: Vec<NodeId> = (0..node_count)
            .map(|n| NodeId(map.read32(header::NODE_IDS + 4 * n)))
            .collect();
        for (position, id) in node_ids.iter().enumerate() {
            if node_ids[..position].contains(id) {
                return Err(format!("names {id} twice"));
            }
        }
        let mut vcpu_nodes = Vec::with_capacity(vcpu_count);
        for index in 0..vcpu_count {
            let word = map.read64((header::VCPU_NODES + index) & !7);
            let position = usize::from(word.to_le_bytes()[(header::VCPU_NODES + index) & 7]);
            if position >= node_count {
                return Err(format!(
                    "puts vCPU {index} on node position {position} of {node_count}"
                ));
            }
            vcpu_nodes.push(position);
        }
        let tails = (0..vcpu_count)
            .map(|v| map.read64(control::RING_TAIL + 8 * v))
            .collect();
        Ok(Self {
            map,
            rings,
            counters: OnceLock::new(),
            spaces: OnceLock::new(),
            file,
            vcpu_count,
            link_count,
            line_bytes,
            node_ids,
            vcpu_nodes,
            tails,
        })
    }

    /// vCPUs.
    #[must_use]
    pub fn vcpu_count(&self) -> usize {
        self.vcpu_count
    }

    /// The kernel's number of each node position.
    #[must_use]
    pub fn node_ids(&self) -> &[NodeId] {
        &self.node_ids
    }

    /// Node position of each vCPU.
    #[must_use]
    pub fn vcpu_nodes(&self) -> &[usize] {
        &self.vcpu_nodes
    }

    /// Directed links.
    #[must_use]
    pub fn link_count(&self) -> usize {
        self.link_count
    }

    /// Bytes per cache line.
    #[must_use]
    pub fn line_bytes(&self) -> u32 {
        self.line_bytes
    }

    /// Modelled time in ns.
    #[must_use]
    pub fn time_ns(&self) -> u64 {
        self.map.read64(header::TIME_NS)
    }

    /// Largest skew between vCPUs that was seen, in ns, and how often the limit was broken so as
    /// not to deadlock.
    #[must_use]
    pub fn skew(&self) -> (u64, u64) {
        (
            self.map.read64(header::MAX_SKEW_NS),
            self.map.read64(header::SKEW_BREAKS),
        )
    }

    /// Counters of a vCPU since boot.
    pub fn read_vcpu(&self, index: usize, counters: &mut VcpuCounters) {
        assert!(index < self.vcpu_count, "vCPU {index}");
        self.map
            .read_block(vcpu::BASE + index * vcpu::STRIDE, &mut counters.0);
    }

    /// Traffic of a node position since boot.
    #[must_use]
    pub fn node_traffic(&self, position: usize) -> NodeTraffic {
        assert!(position < self.node_ids.len(), "node position {position}");
        let base = node::BASE + 64 * position;
        NodeTraffic {
            read_bytes: self.map.read64(base + node::READ_BYTES),
            write_bytes: self.map.read64(base + node::WRITE_BYTES),
            utilisation_integral: self.map.read64(base + node::UTILISATION_INTEGRAL),
            capacity_mbs: self.map.read32(base + node::CAPACITY_MBS),
        }
    }

    /// Traffic of a link since boot.
    #[must_use]
    pub fn link_traffic(&self, position: usize) -> LinkTraffic {
        assert!(position < self.link_count, "link {position}");
        let base = link::BASE + 64 * position;
        LinkTraffic {
            bytes: self.map.read64(base + link::BYTES),
            utilisation_integral: self.map.read64(base + link::UTILISATION_INTEGRAL),
            capacity_mbs: self.map.read32(base + link::CAPACITY_MBS),
        }
    }

    /// Counters of each address space since boot, in an order that stays.
    ///
    /// # Errors
    /// They cannot be mapped.
    pub fn spaces(&self) -> io::Result<impl Iterator<Item = SpaceCounts> + '_> {
        let map = match self.spaces.get() {
            Some(map) => map,
            None => {
                let bytes = layout::SPACES * space::STRIDE;
                let map = SharedMap::at(&self.file, space::BASE, bytes)?;
                self.spaces.get_or_init(|| map)
            }
        };
        let count = self.map.read64(header::SPACE_COUNT) as usize;
        Ok((0..count.min(layout::SPACES)).map(|number| SpaceCounts::read(map, number)))
    }

    /// Those of one that [`OpiumDevice::spaces`] has told, by its place there.
    #[must_use]
    pub fn space(&self, number: usize) -> Option<SpaceCounts> {
        let map = self.spaces.get().filter(|_| number < layout::SPACES)?;
        Some(SpaceCounts::read(map, number))
    }

    /// Totals of a measuring window.
    #[must_use]
    pub fn window(&self, index: usize) -> Window {
        assert!(index < layout::WINDOWS, "window {index}");
        let mut words = [0; WINDOW_WORDS];
        self.map
            .read_block(window::BASE + index * window::STRIDE, &mut words);
        Window(words)
    }

    /// Sets the sampling: one sample per `period` memory fills of a vCPU (0 off), of these kinds.
    pub fn set_sampling(&self, period: u32, fills: Fills) {
        let skip = match fills {
            Fills::All => 0,
            Fills::User => control::SKIP_KERNEL,
        };
        self.map.write32_release(control::SAMPLE_SKIP, skip);
        self.map.write32_release(control::SAMPLE_PERIOD, period);
    }

    /// Sets the sampling of transfers between caches: one sample per `period` of a vCPU (0 off).
    pub fn set_transfer_sampling(&self, period: u32) {
        self.map.write32_release(control::TRANSFER_PERIOD, period);
    }

    /// Sets the sampling of references to last-level caches, misses of private caches in user mode: one sample
    /// per `period` of a vCPU (0 off). They come into the rings with the flag `REFERENCE`.
    /// Two of a vCPU are `least_ns` of its time apart, at the least.
    pub fn set_reference_sampling(&self, period: u32, least_ns: u32) {
        self.map.write32_release(control::REFERENCE_NS, least_ns);
        self.map.write32_release(control::REFERENCE_PERIOD, period);
    }

    /// Sets the ways of its last-level cache that a vCPU may fill, bit w for way w; 0 all. Lines are found in
    /// every way. The plugin sees it within microseconds of the vCPU's time.
    ///
    /// # Panics
    /// There is no such vCPU.
    pub fn set_way_mask(&self, index: usize, mask: u32) {
        assert!(index < self.vcpu_count, "vCPU {index}");
        let offset = control::WAY_MASKS + 4 * index;
        self.map.write32_release(offset, mask);
    }

    /// The ways that a vCPU may fill, as they were set; 0 all.
    ///
    /// # Panics
    /// There is no such vCPU.
    #[must_use]
    pub fn way_mask(&self, index: usize) -> u32 {
        assert!(index < self.vcpu_count, "vCPU {index}");
        self.map.read32(control::WAY_MASKS + 4 * index)
    }

    /// From now on those who open the device tell only what a PMU tells, or all.
    pub fn set_pmu_only(&self, is_pmu_only: bool) {
        let evidence = u32::from(is_pmu_only);
        self.map.write32_release(control::EVIDENCE, evidence);
    }

    /// May only that be told of the device which a PMU tells?
    #[must_use]
    pub fn is_pmu_only(&self) -> bool {
        self.map.read32(control::EVIDENCE) == control::EVIDENCE_PMU
    }

    /// The sampling period in force.
    #[must_use]
    pub fn sampling_period(&self) -> u32 {
        self.map.read32(control::SAMPLE_PERIOD)
    }

    /// Hands the unread samples of a vCPU, oldest first, to `each` and frees their slots.
    /// Returns how many there were.
    pub fn drain(&mut self, index: usize, mut each: impl FnMut(OpiumSample)) -> u64 {
        assert!(index < self.vcpu_count, "vCPU {index}");
        // Pairs with the plugin's store of the head after the sample's words.
        let head = self
            .map
            .read64_acquire(vcpu::BASE + index * vcpu::STRIDE + vcpu::RING_HEAD);
        let capacity = ring::CAPACITY as u64;
        // A head further ahead than the ring is long, or behind the tail, can only come from a
        // plugin that started anew: the newest samples are then the whole ring.
        let waiting = head.wrapping_sub(self.tails[index]).min(capacity.min(head));
        let base = index * ring::STRIDE;
        let mut words = [0u64; ring::SAMPLE_BYTES / 8];
        for position in head - waiting..head {
            let slot = (position % capacity) as usize;
            self.rings
                .read_block(base + slot * ring::SAMPLE_BYTES, &mut words);
            each(decode(&words));
        }
        self.tails[index] = head;
        // Release: the plugin may overwrite the slots once it sees the new tail.
        self.map
            .write64_release(control::RING_TAIL + 8 * index, head);
        waiting
    }
}

/// A number of things that the device's header tells, where it is possible.
fn size(
    map: &SharedMap,
    offset: usize,
    what: &str,
    low: u32,
    high: usize,
) -> std::result::Result<usize, String> {
    let value = map.read32(offset);
    if value < low || value as usize > high {
        return Err(format!(
            "names {value} {what}, possible are {low} to {high}"
        ));
    }
    Ok(value as usize)
}

/// ```text
/// word 0 vaddr, word 1 paddr, word 2 time, word 3 latency | node << 32 | flags << 40, word 4 code,
/// word 5 page table
/// ```
fn decode(words: &[u64; ring::SAMPLE_BYTES / 8]) -> OpiumSample {
    let byte = |offset: usize| words[offset / 8].to_le_bytes()[offset % 8];
    OpiumSample {
        vaddr: words[ring::VADDR / 8],
        paddr: words[ring::PADDR / 8],
        time_ns: words[ring::TIME_NS / 8],
        latency_ns: (words[ring::LATENCY_NS / 8] & 0xffff_ffff) as u32,
        node: byte(ring::NODE),
        flags: byte(ring::FLAGS),
        code: words[ring::CODE / 8],
        page_table: words[ring::PAGE_TABLE / 8],
    }
}

/// Firmware may leave a device without a driver disabled; its memory then reads as all ones.
fn enable(folder: &Path) -> Result<()> {
    let path = folder.join("enable");
    let Ok(text) = std::fs::read_to_string(&path) else {
        return Ok(());
    };
    if text.trim() != "0" {
        return Ok(());
    }
    std::fs::write(&path, "1").map_err(|error| {
        Error::io(
            &path,
            "the device is disabled and cannot be enabled",
            "run hither as root",
            error,
        )
    })
}
