//! A machine as hwloc's tree of objects.
//!
//! Problem: hither has sets of CPUs side by side; hwloc wants them in one another, each within the
//! one above or apart from it. Objects are placed from the largest to the smallest, and a set that
//! crosses one that is placed already is left out and said. Memory hangs on the highest object
//! whose CPUs are those near it, and on a group of its own where there is none, as hwloc does it.

use super::performance::{access_to_write, near};
use super::{
    HwlocMachine, INFO_CACHE, INFO_CPUS, INFO_FREE, INFO_TIER, INFO_WEIGHT, OWN_BACKEND, Written,
    bitmap,
};
use crate::topology::sysfs_cache::{Cache, CacheKind};
use crate::topology::{AccessClass, NodeInfo, Topology};
use hither_core::set::{CpuSet, NodeSet};
use std::collections::{BTreeMap, BTreeSet};

/// `HWLOC_GROUP_KIND_MEMORY`.
const GROUP_OF_MEMORY: &str = "1001";
/// `HWLOC_DISTANCES_KIND_FROM_OS` and `_MEANS_LATENCY`.
const DISTANCES_OF_KERNEL: &str = "5";
/// `HWLOC_MEMATTR_FLAG_NEED_INITIATOR` with `_HIGHER_FIRST` (1) or `_LOWER_FIRST` (2).
const HIGHER_FIRST: &str = "5";
const LOWER_FIRST: &str = "6";
/// Numbers in one element, as in hwloc's own files.
const NUMBERS_IN_ELEMENT: usize = 10;

/// A name, its flags, and its value for a node.
type Attribute = (&'static str, &'static str, fn(&AccessClass) -> Option<u64>);

/// By the names of hwloc 2.9; the mean over reads and writes is what older programs ask for.
const ATTRIBUTES: [Attribute; 6] = [
    ("Bandwidth", HIGHER_FIRST, |access| {
        mean(access.read_bandwidth_mbs, access.write_bandwidth_mbs)
    }),
    ("Latency", LOWER_FIRST, |access| {
        mean(access.read_latency_ns, access.write_latency_ns)
    }),
    ("ReadBandwidth", HIGHER_FIRST, |access| {
        access.read_bandwidth_mbs
    }),
    ("WriteBandwidth", HIGHER_FIRST, |access| {
        access.write_bandwidth_mbs
    }),
    ("ReadLatency", LOWER_FIRST, |access| access.read_latency_ns),
    ("WriteLatency", LOWER_FIRST, |access| {
        access.write_latency_ns
    }),
];

/// An object with CPUs.
struct Object {
    kind: String,
    /// Among objects with the same CPUs the lower is the outer one, in hwloc's order of types.
    rank: u32,
    cpus: CpuSet,
    os_index: Option<u32>,
    cache: Option<Cache>,
    children: Vec<usize>,
    /// Positions of nodes.
    memory: Vec<usize>,
}

impl Object {
    fn new(kind: &str, rank: u32, cpus: &CpuSet) -> Self {
        Self {
            kind: kind.to_owned(),
            rank,
            cpus: cpus.clone(),
            os_index: None,
            cache: None,
            children: Vec::new(),
            memory: Vec::new(),
        }
    }

    fn with_index(self, os_index: Option<u32>) -> Self {
        Self { os_index, ..self }
    }

    /// None for what hwloc has no type for.
    fn of_cache(cache: &Cache) -> Option<Self> {
        let is_of_instructions = cache.kind == CacheKind::Instruction;
        let most = if is_of_instructions { 3 } else { 5 };
        if !(1..=most).contains(&cache.level) {
            return None;
        }
        let letter = if is_of_instructions { "i" } else { "" };
        let kind = format!("L{}{letter}Cache", cache.level);
        let rank = 20 - 2 * cache.level + u32::from(is_of_instructions);
        let object = Self::new(&kind, rank, &cache.cpus);
        Some(Self {
            cache: Some(cache.clone()),
            ..object
        })
    }
}

/// The whole document.
pub(super) fn document(machine: &HwlocMachine) -> Written {
    let mut tree = Tree::new(machine);
    let mut writer = Writer {
        text: "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n\
               <!DOCTYPE topology SYSTEM \"hwloc2.dtd\">\n"
            .to_owned(),
        machine,
        near: std::mem::take(&mut tree.near),
        nodes_of_cpu: BTreeMap::new(),
    };
    let ids = machine.topology.nodes.iter().map(|node| node.id);
    for (id, cpus) in ids.zip(&writer.near) {
        for cpu in cpus.iter() {
            writer.nodes_of_cpu.entry(cpu).or_default().insert(id);
        }
    }
    writer.open(0, "topology", &[("version", "2.0".to_owned())]);
    writer.object(1, &tree.objects, 0);
    writer.distances(&machine.topology);
    for attribute in &ATTRIBUTES {
        writer.attribute(attribute, tree.objects.len());
    }
    writer.close(0, "topology");
    Written {
        text: writer.text,
        left_out: tree.left_out,
    }
}

/// Objects; the first is the machine.
struct Tree {
    objects: Vec<Object>,
    /// CPUs near each node, by position.
    near: Vec<CpuSet>,
    left_out: Vec<String>,
}

impl Tree {
    fn new(machine: &HwlocMachine) -> Self {
        let topology = &machine.topology;
        let positions = 0..topology.nodes.len();
        let near: Vec<CpuSet> = positions
            .map(|position| near(position, &topology.nodes, &topology.distances))
            .collect();
        let mut left_out = Vec::new();
        if !machine.resources.devices.is_empty() {
            left_out.push("devices are not written".to_owned());
        }
        let mut objects = objects(machine, &mut left_out);
        for cpus in &near {
            if !cpus.is_empty() && !objects.iter().any(|object| object.cpus == *cpus) {
                objects.push(Object::new("Group", 1, cpus));
            }
        }
        objects.sort_by_key(|object| (usize::MAX - object.cpus.len(), object.rank));
        let mut tree = Self {
            objects: Vec::with_capacity(objects.len()),
            near,
            left_out,
        };
        tree.place(objects);
        tree.hang_memory();
        tree
    }

    /// A set lies within what is placed, or apart from it, exactly where all its CPUs have the
    /// same innermost object: none that is placed is smaller.
    fn place(&mut self, objects: Vec<Object>) {
        let mut innermost: BTreeMap<_, usize> = BTreeMap::new();
        for object in objects {
            let index = self.objects.len();
            let parents: BTreeSet<Option<usize>> = object
                .cpus
                .iter()
                .map(|cpu| innermost.get(&cpu).copied())
                .collect();
            let parent = parents.first().copied().flatten();
            if index > 0 && (parent.is_none() || parents.len() > 1) {
                let what = format!("{} of CPUs {}", object.kind, object.cpus);
                self.left_out
                    .push(format!("{what} crosses other objects and is not written"));
                continue;
            }
            if let Some(parent) = parent {
                self.objects[parent].children.push(index);
            }
            innermost.extend(object.cpus.iter().map(|cpu| (cpu, index)));
            self.objects.push(object);
        }
        let firsts: Vec<_> = self.objects.iter().map(|o| o.cpus.first()).collect();
        for object in &mut self.objects {
            object.children.sort_by_key(|child| firsts[*child]);
        }
    }

    /// Objects are placed from the outside, so the first that fits is the highest; the machine
    /// itself only where nothing else fits. hwloc wants memory in the order of its numbers.
    fn hang_memory(&mut self) {
        for position in 0..self.near.len() {
            let cpus = &self.near[position];
            let mut objects = self.objects.iter().enumerate().skip(1);
            let place = objects.find(|(_, object)| object.cpus == *cpus && object.kind != "PU");
            // A group that crosses others was left out: the smallest that holds its CPUs.
            let place = place.map(|(index, _)| index).or_else(|| {
                let mut objects = self.objects.iter().enumerate().rev();
                let holds = |object: &Object| cpus.is_subset(&object.cpus) && object.kind != "PU";
                objects
                    .find(|(_, object)| holds(object))
                    .map(|(index, _)| index)
            });
            self.objects[place.unwrap_or(0)].memory.push(position);
        }
    }
}

/// All but groups, in no order.
fn objects(machine: &HwlocMachine, left_out: &mut Vec<String>) -> Vec<Object> {
    let topology = &machine.topology;
    let mut objects = vec![Object::new("Machine", 0, &topology.online).with_index(Some(0))];
    // Package -1 is CPUs of which firmware names none: no object.
    for package in &topology.packages {
        if let Ok(index) = u32::try_from(package.id) {
            objects.push(Object::new("Package", 4, &package.cpus).with_index(Some(index)));
        }
    }
    for cache in &machine.caches {
        match Object::of_cache(cache) {
            Some(object) => objects.push(object),
            None => left_out.push(format!(
                "hwloc has no type for a cache of level {} that holds {:?}",
                cache.level, cache.kind
            )),
        }
    }
    for cpus in &machine.resources.cores {
        objects.push(Object::new("Core", 24, cpus));
    }
    for cpu in topology.online.iter() {
        let set = CpuSet::from_iter([cpu]);
        objects.push(Object::new("PU", 28, &set).with_index(Some(cpu.0)));
    }
    objects
}

struct Writer<'a> {
    text: String,
    machine: &'a HwlocMachine,
    near: Vec<CpuSet>,
    /// Nodes that a CPU is near to.
    nodes_of_cpu: BTreeMap<hither_core::ids::CpuId, NodeSet>,
}

impl Writer<'_> {
    fn open(&mut self, depth: usize, name: &str, attributes: &[(&str, String)]) {
        self.tag(depth, name, attributes);
        self.text.push_str(">\n");
    }

    fn empty(&mut self, depth: usize, name: &str, attributes: &[(&str, String)]) {
        self.tag(depth, name, attributes);
        self.text.push_str("/>\n");
    }

    fn tag(&mut self, depth: usize, name: &str, attributes: &[(&str, String)]) {
        self.text.push_str(&format!("{:1$}<{name}", "", 2 * depth));
        for (key, value) in attributes {
            let value = quick_xml::escape::escape(value.as_str());
            self.text.push_str(&format!(" {key}=\"{value}\""));
        }
    }

    fn close(&mut self, depth: usize, name: &str) {
        self.text
            .push_str(&format!("{:1$}</{name}>\n", "", 2 * depth));
    }

    fn object(&mut self, depth: usize, objects: &[Object], index: usize) {
        let object = &objects[index];
        let mut attributes = vec![("type", object.kind.clone())];
        if let Some(os_index) = object.os_index {
            attributes.push(("os_index", os_index.to_string()));
        }
        let mut nodes = NodeSet::new();
        for cpu in object.cpus.iter() {
            let near = self.nodes_of_cpu.get(&cpu).cloned();
            nodes = nodes.union(&near.unwrap_or_default());
        }
        let topology = &self.machine.topology;
        let is_machine = index == 0;
        if is_machine {
            nodes = topology.nodes.iter().map(|node| node.id).collect();
        }
        let complete = match is_machine {
            true => object.cpus.union(&topology.offline),
            false => object.cpus.clone(),
        };
        let nodeset = bitmap::format(&nodes);
        attributes.push(("cpuset", bitmap::format(&object.cpus)));
        attributes.push(("complete_cpuset", bitmap::format(&complete)));
        if is_machine {
            let allowed = &self.machine.resources.allowed;
            let cpus = object.cpus.intersection(&allowed.cpus);
            attributes.push(("allowed_cpuset", bitmap::format(&cpus)));
        }
        attributes.push(("nodeset", nodeset.clone()));
        attributes.push(("complete_nodeset", nodeset));
        if is_machine {
            // Nodes without memory are nobody's to forbid.
            let forbidden = topology
                .memory_nodes()
                .difference(&self.machine.resources.allowed.nodes);
            let allowed = nodes.difference(&forbidden);
            attributes.push(("allowed_nodeset", bitmap::format(&allowed)));
        }
        attributes.push(("gp_index", (index + 1).to_string()));
        match (&object.cache, object.kind.as_str()) {
            (Some(cache), _) => attributes.extend(cache_attributes(cache)),
            (None, "Group") => {
                attributes.push(("kind", GROUP_OF_MEMORY.to_owned()));
                attributes.push(("subkind", "0".to_owned()));
            }
            _ => {}
        }
        if object.children.is_empty() && object.memory.is_empty() {
            return self.empty(depth, "object", &attributes);
        }
        self.open(depth, "object", &attributes);
        if is_machine {
            self.info(depth + 1, "Backend", OWN_BACKEND);
        }
        for position in &object.memory {
            self.node(depth + 1, *position, objects.len());
        }
        for child in &object.children {
            self.object(depth + 1, objects, *child);
        }
        self.close(depth, "object");
    }

    fn node(&mut self, depth: usize, position: usize, object_count: usize) {
        let topology = &self.machine.topology;
        let node = &topology.nodes[position];
        let near = &self.near[position];
        let (cpuset, nodeset) = (
            bitmap::format(near),
            bitmap::format(&NodeSet::from_iter([node.id])),
        );
        let mut attributes = vec![
            ("type", "NUMANode".to_owned()),
            ("os_index", node.id.0.to_string()),
            ("cpuset", cpuset.clone()),
            ("complete_cpuset", cpuset),
            ("nodeset", nodeset.clone()),
            ("complete_nodeset", nodeset),
            ("gp_index", gp_index(object_count, position)),
        ];
        let bytes = node.memory.total_kb.saturating_mul(1024);
        if bytes > 0 {
            attributes.push(("local_memory", bytes.to_string()));
        }
        let mut infos = Vec::new();
        if node.cpus != *near {
            infos.push((INFO_CPUS, node.cpus.to_string()));
        }
        if bytes > 0 {
            infos.push((INFO_FREE, node.memory.free_kb.to_string()));
        }
        if node.memory.cache_kb > 0 {
            infos.push((INFO_CACHE, node.memory.cache_kb.to_string()));
        }
        let tier = node.tier.map(|tier| (INFO_TIER, tier.number.to_string()));
        let weight = node.weight.map(|weight| (INFO_WEIGHT, weight.to_string()));
        infos.extend(tier.into_iter().chain(weight));
        let pages = match topology.is_told.huge_pages {
            true => pages(node, topology.transparent_huge_kb),
            false => Vec::new(),
        };
        self.open(depth, "object", &attributes);
        for (size, count) in pages {
            let attributes = [("size", size.to_string()), ("count", count.to_string())];
            self.empty(depth + 1, "page_type", &attributes);
        }
        for (name, value) in infos {
            self.info(depth + 1, name, &value);
        }
        self.close(depth, "object");
    }

    fn info(&mut self, depth: usize, name: &str, value: &str) {
        let attributes = [("name", name.to_owned()), ("value", value.to_owned())];
        self.empty(depth, "info", &attributes);
    }

    /// One node has no distances, as in hwloc.
    fn distances(&mut self, topology: &Topology) {
        let count = topology.nodes.len();
        if count < 2 {
            return;
        }
        let attributes = [
            ("type", "NUMANode".to_owned()),
            ("nbobjs", count.to_string()),
            ("kind", DISTANCES_OF_KERNEL.to_owned()),
            ("name", "NUMALatency".to_owned()),
            ("indexing", "os".to_owned()),
        ];
        self.open(1, "distances2", &attributes);
        let ids: Vec<u32> = topology.nodes.iter().map(|node| node.id.0).collect();
        self.numbers("indexes", &ids);
        self.numbers("u64values", &topology.distances.concat());
        self.close(1, "distances2");
    }

    fn numbers(&mut self, name: &str, numbers: &[u32]) {
        for some in numbers.chunks(NUMBERS_IN_ELEMENT) {
            let text: String = some.iter().map(|number| format!("{number} ")).collect();
            self.tag(2, name, &[("length", text.len().to_string())]);
            self.text.push_str(&format!(">{text}</{name}>\n"));
        }
    }

    fn attribute(&mut self, (name, flags, value): &Attribute, object_count: usize) {
        let nodes = &self.machine.topology.nodes;
        let mut values = Vec::new();
        for (position, node) in nodes.iter().enumerate() {
            let access = access_to_write(node, nodes).filter(|(_, cpus)| !cpus.is_empty());
            let Some((value, cpus)) =
                access.and_then(|(access, cpus)| Some((value(&access)?, cpus)))
            else {
                continue;
            };
            values.push([
                ("target_obj_type", "NUMANode".to_owned()),
                ("target_obj_gp_index", gp_index(object_count, position)),
                ("value", value.to_string()),
                ("initiator_cpuset", bitmap::format(&cpus)),
            ]);
        }
        if values.is_empty() {
            return;
        }
        let attributes = [("name", (*name).to_owned()), ("flags", (*flags).to_owned())];
        self.open(1, "memattr", &attributes);
        for value in &values {
            self.empty(2, "memattr_value", value);
        }
        self.close(1, "memattr");
    }
}

/// Numbers of nodes follow those of the other objects, which begin at 1.
fn gp_index(object_count: usize, position: usize) -> String {
    (object_count + position + 1).to_string()
}

fn cache_attributes(cache: &Cache) -> Vec<(&'static str, String)> {
    let kind = match cache.kind {
        CacheKind::Unified => 0,
        CacheKind::Data => 1,
        CacheKind::Instruction => 2,
    };
    let bytes = cache.size_kb.unwrap_or(0).saturating_mul(1024);
    vec![
        ("cache_size", bytes.to_string()),
        ("depth", cache.level.to_string()),
        ("cache_linesize", cache.line_bytes.unwrap_or(0).to_string()),
        // Unknown.
        ("cache_associativity", "0".to_owned()),
        ("cache_type", kind.to_string()),
    ]
}

/// Bytes of a page and how many of them the node has, base pages first.
fn pages(node: &NodeInfo, transparent_huge_kb: Option<u64>) -> Vec<(u64, u64)> {
    let base = base_page_bytes(transparent_huge_kb);
    let huge = node.huge_pages.iter();
    let mut pages: Vec<(u64, u64)> = huge
        .map(|pages| (pages.size_kb.saturating_mul(1024), pages.total))
        .collect();
    let reserved = pages.iter().fold(0u64, |sum, (size, count)| {
        sum.saturating_add(size.saturating_mul(*count))
    });
    let bytes = node.memory.total_kb.saturating_mul(1024);
    pages.insert(0, (base, bytes.saturating_sub(reserved) / base));
    pages
}

/// A transparent huge page is what one page of page-table entries of 8 bytes maps: 2 MiB tell of
/// pages of 4 KiB, 512 MiB of 64 KiB. Without transparent huge pages 4 KiB are taken.
fn base_page_bytes(transparent_huge_kb: Option<u64>) -> u64 {
    let tells = |base: &u64| transparent_huge_kb == Some(base * base / 8 / 1024);
    [4 << 10, 16 << 10, 64 << 10]
        .into_iter()
        .find(tells)
        .unwrap_or(4 << 10)
}

fn mean(one: Option<u64>, other: Option<u64>) -> Option<u64> {
    Some(one?.midpoint(other?))
}
