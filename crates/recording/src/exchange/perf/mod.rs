//! Memory samples of perf.data: `perf mem record`, `perf c2c record`, and any event that was
//! recorded with data addresses (`perf record -d`).
//!
//! All samples with an address of a process are taken. The node that served one is told where the
//! file tells it: by the physical address (`--phys-data`) and perf's list of memory blocks, else
//! by what the hardware says of local and remote, where there are two nodes.

mod bytes;
mod header;
mod record;

use super::{Imported, Malformed};
use crate::meta::MetaNode;
use crate::rows::{Interval, Mapping, Process, Sample};
use header::{Event, Header, MAGIC, MOST_NODES, REMEDY};
use hither_core::perf::source::{DataSource, Level, Operation};
use hither_core::set::CpuSet;
use record::{Access, HEAD_BYTES, Head, Layout, Record, SAMPLE};
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// Addresses of the kernel have this bit, in all architectures with 64 bits that perf knows.
const KERNEL: u64 = 1 << 63;
/// Mappings that children have from their parents are written out up to so many, so that many
/// forks of a process with many mappings do not take memory without limit.
const INHERITED: usize = 1 << 20;

/// Does it begin as files of perf do, whatever their version and byte order?
pub(super) fn is_perf(bytes: &[u8]) -> bool {
    let magics: [&[u8]; 3] = [MAGIC, b"2ELIFREP", b"PERFFILE"];
    magics.iter().any(|magic| bytes.starts_with(magic))
}

pub(super) fn import(file: &[u8]) -> Result<Imported, Malformed> {
    let header = Header::read(file)?;
    can_import(&header)?;
    let read = Read::records(&header)?;
    Ok(assemble(header, read))
}

/// Does any event tell of accesses?
fn can_import(header: &Header<'_>) -> Result<(), Malformed> {
    if header.events.iter().any(|e| e.layout.tells_accesses()) {
        return Ok(());
    }
    let has_trace = header.events.iter().any(|e| e.layout.is_tracepoint);
    let is_damon = header.features.events.iter().any(|e| e.contains("damon"));
    Err(match has_trace && is_damon {
        true => Malformed::new(
            24,
            "the file holds trace events of DAMON",
            "print them by `perf script -i FILE > FILE.txt`, and import that",
        ),
        false => Malformed::new(
            24,
            format!(
                "no event of the file has data addresses, times and threads ({})",
                header.features.events.join(", ")
            ),
            "record with `perf mem record`, `perf c2c record` or `perf record -d`",
        ),
    })
}

/// What the records hold, in the order of the file.
#[derive(Default)]
struct Read {
    accesses: Vec<Access>,
    /// Mappings, names, forks and ends, with their times.
    others: Vec<(u64, Record)>,
    lost_count: u64,
    foreign_count: u64,
    unaddressed_count: u64,
    unknown_count: u64,
    throttled_count: u64,
    traced_count: u64,
    notes: Vec<String>,
}

impl Read {
    fn records(header: &Header<'_>) -> Result<Self, Malformed> {
        let mut read = Self::default();
        let by_id: HashMap<u64, usize> = header
            .events
            .iter()
            .enumerate()
            .flat_map(|(index, event)| event.ids.iter().map(move |&id| (id, index)))
            .collect();
        let mut rest = header.data;
        while !rest.is_empty() {
            let at = header.data_at + (header.data.len() - rest.len());
            let Some((head, body)) = split(rest) else {
                read.notes.push(format!(
                    "byte {at}: here the records are cut off or damaged; {} bytes were left out",
                    rest.len()
                ));
                break;
            };
            rest = &rest[usize::from(head.size)..];
            let Some(layout) = layout_of(&header.events, &by_id, head, body) else {
                read.unknown_count += 1;
                continue;
            };
            let Some(record) = record::decode(head, body, layout) else {
                return Err(Malformed::new(
                    at,
                    format!(
                        "a record of type {} ends after {} bytes, before its last field",
                        head.kind, head.size
                    ),
                    REMEDY,
                ));
            };
            match record {
                Record::Sample(access) => read.sample(head, layout, access),
                Record::Lost(count) => read.lost_count = read.lost_count.saturating_add(count),
                Record::Throttled => read.throttled_count += 1,
                Record::Traced => read.traced_count += 1,
                Record::Followed(bytes) => {
                    read.traced_count += 1;
                    let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
                    rest = rest.get(bytes..).unwrap_or(&[]);
                }
                Record::Compressed => {
                    return Err(Malformed::new(
                        at,
                        "the records are compressed",
                        "record without -z (`perf inject` leaves them as they are)",
                    ));
                }
                Record::Other => {}
                Record::Mapping { time_ns, .. }
                | Record::Name { time_ns, .. }
                | Record::Fork { time_ns, .. }
                | Record::Exit { time_ns, .. } => read.others.push((time_ns, record)),
            }
        }
        // The buffers of the CPUs were written one after the other.
        read.others.sort_by_key(|&(time_ns, _)| time_ns);
        read.accesses.sort_by_key(|access| access.time_ns);
        Ok(read)
    }

    fn sample(&mut self, head: Head, layout: &Layout, access: Access) {
        if !layout.tells_accesses() || access.address == 0 {
            self.unaddressed_count += 1;
        } else if access.pid <= 0 || access.address & KERNEL != 0 || !record::is_of_host(head) {
            self.foreign_count += 1;
        } else {
            self.accesses.push(access);
        }
    }
}

/// The first record.
fn split(bytes: &[u8]) -> Option<(Head, &[u8])> {
    let head = Head::read(bytes)?;
    Some((head, bytes.get(HEAD_BYTES..usize::from(head.size))?))
}

/// The layout of the record's event; `None`: the record is of an event that the file does not
/// describe.
fn layout_of<'h>(
    events: &'h [Event],
    by_id: &HashMap<u64, usize>,
    head: Head,
    body: &[u8],
) -> Option<&'h Layout> {
    let first = &events.first()?.layout;
    if head.kind != SAMPLE || events.len() == 1 {
        return Some(first);
    }
    // perf gives all events of a file the same place for their ids.
    let at = first.id_at();
    let id = at.and_then(|at| body.get(at..)?.first_chunk());
    let event = id.and_then(|id| by_id.get(&u64::from_le_bytes(*id)));
    match event {
        Some(&event) => Some(&events[event].layout),
        None if events.iter().all(|e| e.layout == *first) => Some(first),
        None => None,
    }
}

fn assemble(header: Header<'_>, read: Read) -> Imported {
    let features = header.features;
    let mut imported = Imported::default();
    let start_ns = read.accesses.first().map_or(0, |access| access.time_ns);
    let end_ns = read.accesses.last().map_or(0, |access| access.time_ns);
    let mut nodes: Vec<MetaNode> = features
        .nodes
        .iter()
        .take(MOST_NODES as usize)
        .map(|node| MetaNode {
            id: node.id,
            cpus: node.cpus.clone(),
            total_bytes: node.total_bytes,
            spans: Vec::new(),
        })
        .collect();
    nodes.sort_by_key(|node| node.id);
    nodes.dedup_by_key(|node| node.id);
    let places = Places::new(&nodes, features.memory, &features.cpu);
    imported.samples = read
        .accesses
        .iter()
        .map(|access| places.sample(access, start_ns))
        .collect();
    imported.intervals.push(Interval {
        time_ns: end_ns - start_ns,
        length_ns: end_ns - start_ns,
        local_access_ratio: None,
        latency_ns: None,
        controller_imbalance: None,
        link_use: None,
        accesses_per_us: None,
        instructions_per_us: None,
        flops_per_us: None,
        stall_share: None,
        l3_mpki: None,
        sample_count: imported.samples.len() as u64,
        lost_count: read.lost_count,
        own_cpu_us: None,
    });
    let inherited_all = add_processes(&mut imported, &read, start_ns, end_ns);
    let mut notes = header.notes;
    notes.extend(read.notes);
    let layouts = || header.events.iter().map(|event| &event.layout);
    let fields: BTreeSet<&str> = layouts().flat_map(Layout::left_out).collect();
    if !fields.is_empty() {
        let fields: Vec<&str> = fields.into_iter().collect();
        notes.push(format!(
            "left out: fields of samples ({})",
            fields.join(", ")
        ));
    }
    if read.accesses.iter().any(|access| access.period.is_none()) {
        notes.push("the file does not tell what samples stand for: each counts as one".to_owned());
    }
    if read.throttled_count > 0 {
        notes.push(format!(
            "the kernel held samples back {} times, as there were too many",
            read.throttled_count
        ));
    }
    if read.traced_count > 0 {
        notes.push(format!(
            "{} records of what hardware traced by itself (Intel PT, Arm SPE) are not decoded, and \
             were left out",
            read.traced_count
        ));
    }
    for (count, what) in [
        (
            read.foreign_count,
            "are of the kernel's memory or of guests",
        ),
        (read.unaddressed_count, "have no address"),
        (
            read.unknown_count,
            "are of events that the file does not describe",
        ),
    ] {
        if count > 0 {
            notes.push(format!("{count} samples {what}, and were left out"));
        }
    }
    if !inherited_all {
        notes.push("not all mappings that children have from their parents are told".to_owned());
    }
    let has_weights = read
        .accesses
        .iter()
        .any(|a| a.weight.is_some_and(|w| w > 0));
    match places.ghz {
        _ if !has_weights => {}
        Some(ghz) => notes.push(format!(
            "latencies were sampled in cycles, and are told in ns at the {ghz} GHz of the CPU's \
             name"
        )),
        None => notes.push(
            "latencies were sampled in cycles, and the file does not tell the CPU's clock: they \
             are left out"
                .to_owned(),
        ),
    }
    let about = &mut imported.about;
    about.began_unix_ms = match features.clocks {
        Some((wall_ns, clock_ns)) if wall_ns > 0 => {
            Some(wall_ns.saturating_sub(clock_ns).saturating_add(start_ns) / 1_000_000)
        }
        _ => {
            notes.push("the file does not tell at what time of day it was recorded".to_owned());
            None
        }
    };
    about.length_ns = end_ns - start_ns;
    about.interval_us = about.length_ns / 1000;
    about.kernel = features.kernel;
    about.nodes = nodes;
    about.line_bytes = features.line_bytes;
    let command = features.command_line.iter().position(|word| word == "--");
    about.command = command.map_or(Vec::new(), |at| features.command_line[at + 1..].to_vec());
    about.watched = match features.host.as_str() {
        "" => "what perf recorded".to_owned(),
        host => format!("what perf recorded on {host}"),
    };
    about.tracker = (
        "perf",
        format!(
            "samples of {} recorded by perf {}; each stands for the events of its period",
            match &features.events[..] {
                [] => "events without a name".to_owned(),
                events => events.join(", "),
            },
            features.version
        ),
    );
    about.notes = notes;
    imported
}

/// Where CPUs and memory are.
struct Places {
    node_of_cpu: HashMap<u32, u32>,
    /// The nodes.
    nodes: Vec<u32>,
    memory: Option<header::Memory>,
    ghz: Option<f64>,
}

impl Places {
    fn new(nodes: &[MetaNode], memory: Option<header::Memory>, cpu: &str) -> Self {
        let mut node_of_cpu = HashMap::new();
        for node in nodes {
            // A damaged list leaves its CPUs without a node.
            if let Ok(cpus) = node.cpus.parse::<CpuSet>() {
                node_of_cpu.extend(cpus.iter().map(|cpu| (cpu.0, node.id)));
            }
        }
        // As in "Intel(R) Xeon(R) Gold 6126 CPU @ 2.60GHz".
        let ghz = cpu.split_once("@ ").map(|(_, clock)| clock.trim());
        let ghz = ghz.and_then(|clock| clock.strip_suffix("GHz")?.parse::<f64>().ok());
        Self {
            node_of_cpu,
            nodes: nodes.iter().map(|node| node.id).collect(),
            memory,
            ghz: ghz.filter(|ghz| (0.1..10.0).contains(ghz)),
        }
    }

    fn sample(&self, access: &Access, start_ns: u64) -> Sample {
        let source = DataSource::decode(access.data_source.unwrap_or(0));
        let from_node = access
            .cpu
            .and_then(|cpu| self.node_of_cpu.get(&cpu).copied());
        let cycles = access.weight.filter(|&cycles| cycles > 0);
        let latency_ns = self
            .ghz
            .zip(cycles)
            .map(|(ghz, cycles)| cycles as f64 / ghz);
        Sample {
            time_ns: access.time_ns - start_ns,
            pid: access.pid,
            tid: (access.tid > 0).then_some(access.tid),
            cpu: access.cpu,
            from_node,
            home_node: self.home(access, &source, from_node),
            address: access.address,
            code: access.code,
            is_write: match source.operation {
                Operation::Load => Some(false),
                Operation::Store => Some(true),
                _ => None,
            },
            latency_ns: latency_ns.map(|ns| ns.round() as u32),
            // Events without a place of their own have one that says nothing.
            from_cache: (source.level != Level::Unknown).then(|| source.is_modified_elsewhere()),
            weight: u32::try_from(access.period.unwrap_or(1).max(1)).unwrap_or(u32::MAX),
        }
    }

    /// The node whose memory served; of what a cache served, none.
    fn home(&self, access: &Access, source: &DataSource, from: Option<u32>) -> Option<u32> {
        if !source.is_memory() && source.level != Level::Unknown {
            return None;
        }
        let physical = access.physical.filter(|&address| address != 0);
        let told = self.memory.as_ref().zip(physical);
        if let Some(node) = told.and_then(|(memory, address)| memory.node(address)) {
            return Some(node);
        }
        match (source.is_memory(), source.is_remote(), &self.nodes[..]) {
            (true, false, _) => from,
            (true, true, &[a, b]) => from.map(|from| if from == a { b } else { a }),
            _ => None,
        }
    }
}

/// Adds the processes that were sampled, and their mappings; false where some were too many.
fn add_processes(into: &mut Imported, read: &Read, start_ns: u64, end_ns: u64) -> bool {
    let since = |time_ns: u64| time_ns.clamp(start_ns, end_ns) - start_ns;
    let mut processes: BTreeMap<i32, Process> = BTreeMap::new();
    for sample in &into.samples {
        processes.entry(sample.pid).or_insert_with(|| Process {
            pid: sample.pid,
            name: String::new(),
            start_ns: sample.time_ns,
            end_ns: None,
            peak_bytes: None,
        });
    }
    let mut mappings: HashMap<i32, Vec<Mapping>> = HashMap::new();
    let mut names: HashMap<i32, &str> = HashMap::new();
    let mut inherited = 0_usize;
    let mut inherited_all = true;
    for (_, record) in &read.others {
        match record {
            Record::Mapping {
                pid,
                start,
                bytes,
                permissions,
                name,
                time_ns,
            } if *pid > 0 => mappings.entry(*pid).or_default().push(Mapping {
                time_ns: since(*time_ns),
                pid: *pid,
                start: *start,
                end: start.saturating_add(*bytes),
                permissions: permissions.clone(),
                name: name.clone(),
            }),
            Record::Name {
                pid,
                tid,
                name,
                by_exec,
                ..
            } => {
                if *by_exec {
                    let gone = mappings.remove(pid).map_or(0, |gone| gone.len());
                    inherited = inherited.saturating_sub(gone);
                }
                // Threads may have names of their own.
                if pid == tid || !names.contains_key(pid) {
                    names.insert(*pid, name);
                }
            }
            Record::Fork {
                pid,
                parent,
                time_ns,
            } if pid != parent => {
                if let Some(name) = names.get(parent).copied() {
                    names.insert(*pid, name);
                }
                let of_parent = mappings.get(parent).map_or(&[][..], Vec::as_slice);
                inherited += of_parent.len();
                if inherited > INHERITED {
                    inherited_all = false;
                    continue;
                }
                let child = of_parent.iter().map(|mapping| Mapping {
                    pid: *pid,
                    time_ns: since(*time_ns),
                    ..mapping.clone()
                });
                let child = child.collect();
                mappings.insert(*pid, child);
            }
            Record::Exit { pid, tid, time_ns } if pid == tid => {
                match processes.get_mut(pid) {
                    Some(process) => process.end_ns = Some(since(*time_ns)),
                    // Nothing is wanted of it any more.
                    None => {
                        let gone = mappings.remove(pid).map_or(0, |gone| gone.len());
                        inherited = inherited.saturating_sub(gone);
                    }
                }
            }
            _ => {}
        }
    }
    for process in processes.values_mut() {
        process.name = match names.get(&process.pid) {
            Some(name) => (*name).to_owned(),
            None => format!("pid {}", process.pid),
        };
        let mappings = mappings.remove(&process.pid).unwrap_or_default();
        into.mappings.extend(mappings);
    }
    into.processes = processes.into_values().collect();
    inherited_all
}
