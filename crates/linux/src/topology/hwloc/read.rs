//! From hwloc's tree of objects to lists of nodes, CPUs, caches and packages.
//!
//! What counts is what an object is and which CPUs it has; how objects lie in one another does
//! not, but for devices, which are near the object that they lie in. Types that are not known
//! (groups, dies, bridges, those of later releases) are walked through.

use super::nodes::Found as FoundNode;
use super::xml::{self, Element};
use super::{HwlocMachine, OWN_BACKEND, bitmap, nodes, performance};
use crate::error::Fault;
use crate::parse::{Parsed, clip};
use crate::proc::allowed::Allowed;
use crate::resources;
use crate::topology::sysfs_cache::{Cache, CacheKind};
use crate::topology::sysfs_device::is_gpu_class;
use crate::topology::{CacheDomain, KnownOfNodes, NodeInfo, Package, Topology};
use hither_core::ids::{CpuId, NodeId};
use hither_core::rset::Device;
use hither_core::rset::parse::is_device_letter;
use hither_core::set::{CpuSet, IdSet, NodeSet, Numbered};
use std::collections::{BTreeMap, BTreeSet};

/// Members of all sets of a file together. 8192 CPUs that are each in ten objects make 500,000.
const MAX_MEMBERS: usize = 1 << 24;

/// An object with CPUs.
struct Part<'a> {
    element: &'a Element,
    cpus: CpuSet,
}

/// A device; they sort by name.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct FoundDevice {
    name: String,
    /// Nodes near the object that it lies in.
    near: NodeSet,
    /// PCI's base class and vendor.
    kind: Option<(u64, u64)>,
}

/// Objects by kind, in the order of the file.
#[derive(Default)]
struct Found<'a> {
    member_count: usize,
    online: CpuSet,
    nodes: Vec<FoundNode<'a>>,
    packages: Vec<(i64, Part<'a>)>,
    cores: Vec<Part<'a>>,
    caches: Vec<(Cache, &'a Element)>,
    devices: Vec<FoundDevice>,
    /// CPUs by `gp_index`.
    sets: BTreeMap<u64, CpuSet>,
}

/// The machine of a document.
pub(super) fn machine(text: &str) -> Parsed<HwlocMachine> {
    let root = xml::parse(text)?;
    check_version(&root)?;
    let mut objects = root.children_named("object");
    let whole = objects
        .next()
        .ok_or_else(|| root.fault("holds no object"))?;
    let kind = whole.required("type")?;
    if kind != "Machine" {
        let reason = format!("the first object is a {}, not a Machine", clip(kind));
        return Err(whole.fault(reason));
    }
    if let Some(second) = objects.next() {
        return Err(second.fault("is a second machine"));
    }
    let mut found = Found::default();
    found.gather(whole, &NodeSet::new())?;
    let online: CpuSet = found.set(whole, "cpuset")?;
    found.check(whole, &online)?;
    let complete: Option<CpuSet> = found.set_if_any(whole, "complete_cpuset")?;
    let allowed = Allowed {
        cpus: found.set_if_any(whole, "allowed_cpuset")?,
        nodes: found.set_if_any(whole, "allowed_nodeset")?,
    };
    let mut notes =
        vec!["read from a file of hwloc, which does not tell the kernel's settings".to_owned()];
    let offline = complete.unwrap_or_default().difference(&online);
    // hwloc 3 has moved what is told of the file itself from the machine to the topology.
    let backend = whole.info("Backend").or_else(|| root.info("Backend"));
    if !offline.is_empty() && backend.and_then(value) != Some(OWN_BACKEND) {
        notes.push(format!(
            "CPUs {offline} are offline, or were forbidden to the program that wrote the file"
        ));
    }
    let is_told = KnownOfNodes {
        memory: found
            .nodes
            .iter()
            .any(|node| node.element.attribute("local_memory").is_some()),
        huge_pages: found.nodes.iter().any(FoundNode::tells_pages),
    };
    if !is_told.huge_pages {
        // hwloc 3 does not.
        notes.push("the file does not tell how many huge pages nodes have".to_owned());
    }
    if found.take_tiers(&root)? {
        notes.push(
            "memory tiers are those that hwloc made of bandwidths and kinds of memory, in its order: \
             the kernel's may differ"
                .to_owned(),
        );
    }
    let mut nodes = nodes::assign(&found.nodes, whole, &online, &mut notes)?;
    let by_gp_index = found.nodes.iter().filter_map(|node| {
        let position = nodes.iter().position(|known| known.id == node.id)?;
        Some((node.gp_index?, position))
    });
    let targets: BTreeMap<u64, usize> = by_gp_index.collect();
    performance::read_access(&root, &mut nodes, &targets, &found.sets)?;
    if nodes.iter().all(|node| node.access.is_empty()) && nodes.len() > 1 {
        notes.push(
            "the file has no latency or bandwidth of the nodes (memattr): only distances are known"
                .to_owned(),
        );
    }
    let distances = performance::read_distances(&root, &nodes, &mut notes)?;
    let packages = found.packages(&online)?;
    let topology = Topology {
        domains: found.domains(&online, &packages, &mut notes)?,
        offline,
        packages,
        nodes,
        online,
        distances,
        transparent_huge_pages: None,
        transparent_huge_kb: None,
        weights_automatic: None,
        numa_balancing: None,
        demotion: None,
        is_told,
        notes,
    };
    let cores = found.cores(&topology.online)?;
    let devices = found.devices(&topology.nodes);
    Ok(HwlocMachine {
        resources: resources::gather(&topology, cores, devices, allowed),
        caches: found.caches.into_iter().map(|(cache, _)| cache).collect(),
        topology,
    })
}

fn value(info: &Element) -> Option<&str> {
    info.attribute("value")
}

/// hwloc 2 and 3 write `<topology version="2.0">` and `3.0`; 1.x had no version, 0.9 another element.
fn check_version(root: &Element) -> Parsed<()> {
    let old = "is of hwloc 1; load it with lstopo of hwloc 2 and write it again";
    let is = |version: &str, major: &str| {
        let rest = version.strip_prefix(major);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    };
    match (&*root.name, root.attribute("version")) {
        ("topology", Some(version)) if is(version, "2") || is(version, "3") => Ok(()),
        ("topology", None) | ("root", _) => Err(root.fault(old)),
        ("topology", Some(version)) if version.starts_with("1.") => Err(root.fault(old)),
        ("topology", Some(version)) => {
            let version = clip(version);
            Err(root.fault(format!(
                "is of version {version}, and hither reads 2 and 3; newer releases of lstopo write \
                 those too (lstopo --of v2xml FILE.xml, as hwloc 3 has it)"
            )))
        }
        (name, _) => {
            let name = clip(name);
            Err(root.fault(format!("is no file of hwloc: it begins with <{name}>")))
        }
    }
}

impl<'a> Found<'a> {
    /// An object and all in it; `place` is the nodes near the object that it lies in.
    fn gather(&mut self, element: &'a Element, place: &NodeSet) -> Parsed<()> {
        let kind = element.required("type")?;
        let mut here = None;
        match (kind, cache_kind(kind)) {
            ("PU", _) => self.gather_cpu(element)?,
            ("NUMANode", _) => {
                let near = self.set(element, "cpuset")?;
                self.nodes.push(FoundNode::read(element, near)?);
            }
            ("Package", _) => {
                let id = element.number::<u32>("os_index")?;
                // hwloc's word for an unknown index is the highest number.
                let id = id.filter(|id| *id != u32::MAX).map_or(-1, i64::from);
                let part = self.part(element)?;
                self.packages.push((id, part));
            }
            ("Core", _) => {
                let part = self.part(element)?;
                self.cores.push(part);
            }
            (_, Some((level, kind))) => {
                let cpus = self.set(element, "cpuset")?;
                let kind = match element.attribute("cache_type") {
                    Some("1") => CacheKind::Data,
                    _ => kind,
                };
                let bytes = element.number::<u64>("cache_size")?;
                let line_bytes = element.number::<u64>("cache_linesize")?;
                let cache = Cache {
                    level,
                    kind,
                    cpus,
                    size_kb: bytes.map(|bytes| bytes / 1024).filter(|size| *size > 0),
                    line_bytes: line_bytes.filter(|bytes| *bytes > 0),
                };
                self.caches.push((cache, element));
            }
            ("PCIDev" | "OSDev", _) => self.gather_device(element, place),
            _ => {}
        }
        if let Some(nodes) = self.set_if_any(element, "nodeset")? {
            here = Some(nodes);
        }
        if let (Some(index), Some(cpus)) = (
            element.number("gp_index")?,
            self.set_if_any(element, "cpuset")?,
        ) {
            self.sets.insert(index, cpus);
        }
        let place = here.as_ref().unwrap_or(place);
        for child in element.children_named("object") {
            self.gather(child, place)?;
        }
        Ok(())
    }

    /// hwloc's own tiers, the fastest first, for nodes that say none themselves: `memtier` of hwloc 3,
    /// and infos of hwloc 2. Are there any?
    ///
    /// ```text
    /// <memtier kinds="2" nodeset="0x0000000f"/>
    /// ```
    fn take_tiers(&mut self, root: &Element) -> Parsed<bool> {
        let mut tiers: BTreeMap<NodeId, u32> = BTreeMap::new();
        for (rank, element) in (0..).zip(root.children_named("memtier")) {
            let nodes: NodeSet = self.set(element, "nodeset")?;
            tiers.extend(nodes.iter().map(|node| (node, rank)));
        }
        let mut has_any = false;
        for node in &mut self.nodes {
            let info = node.element.info("MemoryTier").and_then(value);
            let told = info.and_then(|tier| tier.parse().ok());
            let tier = tiers.get(&node.id).copied().or(told);
            if let (None, Some(tier)) = (node.tier, tier) {
                node.tier = Some(tier);
                has_any = true;
            }
        }
        Ok(has_any)
    }

    fn gather_cpu(&mut self, element: &Element) -> Parsed<()> {
        let cpu = CpuId(element.required_number("os_index")?);
        let set: CpuSet = self.set(element, "cpuset")?;
        if set.len() != 1 || !set.contains(cpu) {
            let reason = format!("{cpu} has the cpuset of CPUs {}", clip(&set.to_string()));
            return Err(element.fault(reason));
        }
        if !self.online.insert(cpu) {
            return Err(element.fault(format!("{cpu} is there already")));
        }
        Ok(())
    }

    /// `eth0` by its name, a card of the PCI bus by its address.
    fn gather_device(&mut self, element: &Element, place: &NodeSet) {
        let name = element.attribute("pci_busid");
        let Some(name) = name.or_else(|| element.attribute("name")) else {
            return;
        };
        if name.is_empty() || !name.chars().all(is_device_letter) {
            return;
        }
        let kind = element.attribute("pci_type").and_then(pci_type);
        self.devices.push(FoundDevice {
            name: name.to_owned(),
            near: place.clone(),
            kind,
        });
    }

    fn part(&mut self, element: &'a Element) -> Parsed<Part<'a>> {
        let cpus = self.set(element, "cpuset")?;
        Ok(Part { element, cpus })
    }

    fn set<T: Numbered>(&mut self, element: &Element, name: &str) -> Parsed<IdSet<T>> {
        element.required(name)?;
        Ok(self.set_if_any(element, name)?.unwrap_or_default())
    }

    fn set_if_any<T: Numbered>(
        &mut self,
        element: &Element,
        name: &str,
    ) -> Parsed<Option<IdSet<T>>> {
        let Some(text) = element.attribute(name) else {
            return Ok(None);
        };
        let set = bitmap::parse(text)
            .map_err(|wrong| element.fault(format!("{name} `{}` {wrong}", clip(text))))?;
        self.member_count += set.len();
        if self.member_count > MAX_MEMBERS {
            let reason = "the sets of the file have more than 16 million members together";
            return Err(element.fault(reason));
        }
        Ok(Some(set))
    }

    /// Every object has CPUs that are there.
    fn check(&self, whole: &Element, online: &CpuSet) -> Parsed<()> {
        if self.online.is_empty() {
            return Err(whole.fault("the machine has no PU"));
        }
        if self.online != *online {
            let lists = [online, &self.online].map(|set| clip(&set.to_string()));
            let [set, found] = lists;
            let reason = format!("the machine's cpuset is CPUs {set}, its PUs are {found}");
            return Err(whole.fault(reason));
        }
        let packages = self.packages.iter().map(|(_, part)| part);
        let parts = packages.chain(&self.cores);
        let parts = parts.map(|part| (part.element, &part.cpus));
        let caches = self.caches.iter();
        let caches = caches.map(|(cache, element)| (*element, &cache.cpus));
        let nodes = self.nodes.iter().map(|node| (node.element, &node.near));
        for (element, cpus) in parts.chain(caches).chain(nodes) {
            if let Some(cpu) = cpus.difference(online).first() {
                return Err(element.fault(format!("has {cpu}, which the machine has not")));
            }
        }
        Ok(())
    }

    /// CPUs of objects without a number, and of none, are package -1, as in sysfs.
    fn packages(&self, online: &CpuSet) -> Parsed<Vec<Package>> {
        let mut packages: BTreeMap<i64, CpuSet> = BTreeMap::new();
        let parts = self.packages.iter().map(|(_, part)| part);
        let seen = disjoint(parts, "packages")?;
        for (id, part) in &self.packages {
            let cpus = packages.entry(*id).or_default();
            *cpus = cpus.union(&part.cpus);
        }
        let rest = online.difference(&seen);
        if !rest.is_empty() {
            let cpus = packages.entry(-1).or_default();
            *cpus = cpus.union(&rest);
        }
        let packages = packages.into_iter();
        let packages = packages.filter(|(_, cpus)| !cpus.is_empty());
        Ok(packages.map(|(id, cpus)| Package { id, cpus }).collect())
    }

    /// None where some CPU is in no core, as in sysfs.
    fn cores(&self, online: &CpuSet) -> Parsed<Vec<CpuSet>> {
        let seen = disjoint(self.cores.iter(), "cores")?;
        let mut cores: Vec<CpuSet> = self.cores.iter().map(|part| part.cpus.clone()).collect();
        cores.retain(|cpus| !cpus.is_empty());
        cores.sort_by_key(CpuSet::first);
        Ok(if seen == *online { cores } else { Vec::new() })
    }

    /// By the cache of the highest level that holds data.
    fn domains(
        &self,
        online: &CpuSet,
        packages: &[Package],
        notes: &mut Vec<String>,
    ) -> Parsed<Vec<CacheDomain>> {
        let mut seen: BTreeSet<(u32, bool, CpuId)> = BTreeSet::new();
        let mut of_cpu: BTreeMap<CpuId, usize> = BTreeMap::new();
        for (index, (cache, element)) in self.caches.iter().enumerate() {
            let level = cache.level;
            let holds_data = cache.kind != CacheKind::Instruction;
            for cpu in cache.cpus.iter() {
                if !seen.insert((level, holds_data, cpu)) {
                    let reason = format!("{cpu} is in another cache of level {level} already");
                    return Err(element.fault(reason));
                }
                if !holds_data {
                    continue;
                }
                let highest = of_cpu.entry(cpu).or_insert(index);
                if self.caches[*highest].0.level < level {
                    *highest = index;
                }
            }
        }
        let mut members: BTreeMap<usize, CpuSet> = BTreeMap::new();
        for (cpu, index) in &of_cpu {
            members.entry(*index).or_default().insert(*cpu);
        }
        let members = members.into_iter();
        let mut domains: Vec<CacheDomain> = members
            .map(|(index, cpus)| {
                let cache = &self.caches[index].0;
                CacheDomain {
                    cpus,
                    level: cache.level,
                    size_kb: cache.size_kb,
                    line_bytes: cache.line_bytes,
                }
            })
            .collect();
        let known: CpuSet = of_cpu.into_keys().collect();
        let lone = online.difference(&known);
        if !lone.is_empty() {
            notes.push(format!(
                "the file tells no cache of CPUs {lone}; each package counts as one cache domain"
            ));
            let cpus = packages.iter().map(|found| found.cpus.intersection(&lone));
            let cpus = cpus.filter(|cpus| !cpus.is_empty());
            domains.extend(cpus.map(|cpus| CacheDomain {
                cpus,
                level: 0,
                size_kb: None,
                line_bytes: None,
            }));
        }
        domains.sort_by_key(|domain| domain.cpus.first());
        Ok(domains)
    }

    /// Their node is the one near them that has CPUs; `gpuN` besides, counted by PCI address.
    fn devices(&mut self, nodes: &[NodeInfo]) -> Vec<Device> {
        let node_of = |near: &NodeSet| -> Option<NodeId> {
            let mut nodes = nodes.iter();
            let has_cpus = |node: &&NodeInfo| !node.cpus.is_empty() && near.contains(node.id);
            let node = nodes.by_ref().find(has_cpus)?;
            nodes.find(has_cpus).is_none().then_some(node.id)
        };
        let mut devices: BTreeMap<String, Option<NodeId>> = BTreeMap::new();
        let mut gpu_count = 0;
        self.devices.sort();
        for FoundDevice { name, near, kind } in &self.devices {
            let node = node_of(near);
            if kind.is_some_and(|(class, vendor)| is_gpu_class(class, vendor)) {
                devices.entry(format!("gpu{gpu_count}")).or_insert(node);
                gpu_count += 1;
            }
            devices.entry(name.clone()).or_insert(node);
        }
        let devices = devices.into_iter();
        devices.map(|(name, node)| Device { name, node }).collect()
    }
}

/// The union of parts of which no two share a CPU.
fn disjoint<'a>(parts: impl Iterator<Item = &'a Part<'a>>, what: &str) -> Result<CpuSet, Fault> {
    let mut seen = CpuSet::new();
    for part in parts {
        for cpu in part.cpus.iter() {
            if !seen.insert(cpu) {
                return Err(part.element.fault(format!("{cpu} is in two {what}")));
            }
        }
    }
    Ok(seen)
}

/// `L3Cache` and `L1iCache`; data caches have names without a letter of their own.
fn cache_kind(kind: &str) -> Option<(u32, CacheKind)> {
    let level = kind.strip_prefix('L')?.strip_suffix("Cache")?;
    let (level, kind) = match level.strip_suffix('i') {
        Some(level) => (level, CacheKind::Instruction),
        None => (level, CacheKind::Unified),
    };
    let level = level.parse().ok()?;
    (1..=5).contains(&level).then_some((level, kind))
}

/// Class and vendor.
///
/// ```text
/// 0302 [10de:2330] [10de:16c1] a1
/// ```
fn pci_type(text: &str) -> Option<(u64, u64)> {
    let (class, rest) = text.split_once(" [")?;
    let (vendor, _) = rest.split_once(':')?;
    let hex = |word: &str| u64::from_str_radix(word, 16).ok();
    Some((hex(class)? >> 8, hex(vendor)?))
}
