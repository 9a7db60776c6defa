//! What was measured as a machine file (`docs/machine-files.md`), every number with its mark.
//!
//! Marks: M measured here, K said by the kernel, D derived from those, E estimate of an ordinary
//! server core, not measured.

use crate::print;
use hither_core::ids::{CpuId, NodeId};
use hither_core::machine::EventCosts;
use hither_core::machine::parse::{self, limits};
use hither_core::set::CpuSet;
use hither_linux::probe::{ProbeSample, ProbeWork, Report};
use hither_linux::topology::Topology;
use std::fmt::{Display, Write};

/// Column of the marks.
const MARK_AT: usize = 39;

/// What the kernel says beside the topology.
#[derive(Clone, Copy, Debug)]
pub struct Core {
    /// Clock.
    pub ghz: Option<f64>,
    /// Bytes of the largest cache of one CPU.
    pub private_bytes: Option<u64>,
}

impl Core {
    /// Of the first CPU: `/proc/cpuinfo` and its caches in sysfs.
    pub fn read() -> Self {
        let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let mhz = info.lines().find_map(|line| {
            let (name, value) = line.split_once(':')?;
            (name.trim() == "cpu MHz").then(|| value.trim().parse::<f64>().ok())?
        });
        let folder = "/sys/devices/system/cpu/cpu0/cache/index2";
        let read = |name: &str| std::fs::read_to_string(format!("{folder}/{name}")).ok();
        let is_private = read("level").is_some_and(|level| level.trim() == "2");
        let kb = read("size").and_then(|size| size.trim().strip_suffix('K')?.parse::<u64>().ok());
        Self {
            ghz: mhz.map(|mhz| mhz / 1000.0),
            private_bytes: kb.filter(|_| is_private).map(|kb| kb << 10),
        }
    }
}

/// The file's text, which is a machine file.
///
/// # Errors
/// Why no file can say it.
pub fn file(
    name: &str,
    topology: &Topology,
    measured: &Report,
    core: Core,
) -> anyhow::Result<String> {
    let links = measured.memory_nodes.len() * (measured.memory_nodes.len() - 1);
    anyhow::ensure!(
        links <= limits::LINKS,
        "a machine file has at most {} links, and {links} were measured; leave --machine-file out",
        limits::LINKS
    );
    let no_memory = |node: &&hither_linux::topology::NodeInfo| {
        !node.cpus.is_empty() && node.memory.total_kb == 0
    };
    if let Some(node) = topology.nodes.iter().find(no_memory) {
        anyhow::bail!(
            "{} has CPUs and no memory, which a machine file cannot say; leave --machine-file out",
            node.id
        );
    }
    if let Some(what) = missing(measured) {
        anyhow::bail!(
            "{what} could not be measured, as threads were given no time on their CPUs, and a machine \
             file needs it; stop what else runs there, or give more --seconds"
        );
    }
    let text = Writer {
        text: String::new(),
        topology,
        measured,
        core,
    }
    .file(name);
    parse::parse(&text).map_err(|error| {
        anyhow::anyhow!("the measured machine is none ({error}); please report this")
    })?;
    Ok(text)
}

/// A figure that a machine file cannot do without and that was not measured.
fn missing(measured: &Report) -> Option<String> {
    let read = measured
        .bandwidth
        .iter()
        .find(|one| one.work == ProbeWork::Read);
    let first = read.and_then(|read| read.one.first()?.first());
    if matches!(first, Some(None)) {
        return Some("reading by one thread".to_owned());
    }
    let needed = measured
        .bandwidth
        .iter()
        .filter(|one| matches!(one.work, ProbeWork::Read | ProbeWork::Write));
    for bandwidth in needed {
        for (node, row) in measured.cpu_nodes.iter().zip(&bandwidth.all) {
            for (memory, gbs) in measured.memory_nodes.iter().zip(row) {
                if gbs.is_none() {
                    let work = bandwidth.work.name();
                    return Some(format!("{work} by all CPUs of {node}, memory of {memory},"));
                }
            }
        }
    }
    None
}

struct Writer<'a> {
    text: String,
    topology: &'a Topology,
    measured: &'a Report,
    core: Core,
}

impl Writer<'_> {
    fn field(&mut self, name: &str, value: impl Display, mark: &str) {
        let line = format!("{name} = {value}");
        let _ = writeln!(self.text, "{line:MARK_AT$} # {mark}");
    }

    fn number(&mut self, name: &str, value: f64, mark: &str) {
        self.field(name, rounded(value), mark);
    }

    fn sample(&mut self, name: &str, sample: &ProbeSample, what: &str) {
        self.number(name, sample.median, &measured(sample, what));
    }

    fn header(&mut self, name: &str) {
        let _ = writeln!(self.text, "\n{name}");
    }

    /// CPUs of a machine file are numbered without holes.
    fn cpus(&self, cpus: &CpuSet) -> String {
        let position = |cpu: CpuId| self.topology.online.iter().position(|known| known == cpu);
        let numbers = cpus.iter().filter_map(position);
        let renumbered: CpuSet = numbers.map(|number| CpuId(number as u32)).collect();
        format!("\"{renumbered}\"")
    }

    fn file(mut self, name: &str) -> String {
        self.text.push_str(
            "# Measured by `hither probe`.\n#\n\
             # Marks: M measured here, K said by the kernel, D derived from those, E estimate of an\n\
             # ordinary server core, not measured.\n\n",
        );
        self.text.push_str("format = \"hither.machine/1\"\n");
        let _ = writeln!(self.text, "name = \"{name}\"");
        let _ = writeln!(
            self.text,
            "description = \"{} and {} with memory, measured\"",
            print::count(self.topology.online.len(), "CPU"),
            print::count(self.measured.memory_nodes.len(), "node")
        );
        let line = self
            .topology
            .domains
            .iter()
            .find_map(|domain| domain.line_bytes);
        let mark = if line.is_some() { "K" } else { "E" };
        self.field("line_bytes", line.unwrap_or(64), mark);
        self.core_side();
        self.caches();
        self.nodes();
        self.links();
        self.text
    }

    fn core_side(&mut self) {
        self.header("[cpu]");
        match self.core.ghz {
            Some(ghz) => self.number("ghz", ghz, "K /proc/cpuinfo, at that moment"),
            None => self.number("ghz", 2.5, "E"),
        }
        for (name, value) in [
            ("cpi", 0.6),
            ("divide_cycles", 20.0),
            ("pause_cycles", 44.0),
            ("mlp", 8.0),
        ] {
            self.number(name, value, "E");
        }
        let read = self.work(ProbeWork::Read);
        if let Some(one) = read.and_then(|work| work.one.first()?.first().copied().flatten()) {
            self.sample("stream_gbs", &one, "reading by one thread");
        }
        self.number("stream_overlap", 0.7, "E");
        self.header("[costs]");
        for price in EventCosts::PRICES
            .iter()
            .filter(|price| price.absent_ns.is_none())
        {
            self.number(price.name, price.typical_ns, "E");
        }
        self.header("[tlb]");
        self.field("small_entries", 1024, "E");
        self.field("huge_entries", 1024, "E");
        self.number("miss_ns", 12.0, "E");
        self.header("[coherence]");
        let pair = |shares| {
            self.measured
                .pairs
                .iter()
                .find(|pair| pair.shares_cache == shares)
        };
        let (same, cross) = (pair(true).copied(), pair(false).copied());
        for (name, pair, otherwise) in [
            ("same_domain_ns", same, 50.0),
            ("cross_domain_ns", cross, 90.0),
        ] {
            match pair {
                Some(pair) => self.sample(name, &pair.ns, "half a round trip of a line"),
                None => self.number(name, otherwise, "E"),
            }
        }
        self.number("invalidate_ns", 60.0, "E");
    }

    fn work(&self, work: ProbeWork) -> Option<&hither_linux::probe::Bandwidth> {
        self.measured.bandwidth.iter().find(|one| one.work == work)
    }

    /// A load from a working set of about this size.
    fn set(&self, bytes: u64) -> Option<(u64, ProbeSample)> {
        let off = |set: &(u64, ProbeSample)| (set.0 as f64 / bytes as f64).ln().abs();
        let sets = self.measured.sets.iter().copied();
        sets.min_by(|one, other| off(one).total_cmp(&off(other)))
    }

    fn cache(&mut self, kb: u64, told: &str, at: u64) {
        self.field("size_kb", kb, told);
        self.field("ways", 16, "E");
        match self.set(at) {
            Some((bytes, ns)) => {
                let what = format!("a working set of {} KiB", bytes >> 10);
                self.sample("latency_ns", &ns, &what);
            }
            None => self.number("latency_ns", 20.0, "E"),
        }
    }

    fn caches(&mut self) {
        let (private, told) = match self.core.private_bytes {
            Some(bytes) => (bytes, "K"),
            None => (1 << 20, "E"),
        };
        self.header("[private_cache]");
        self.cache(private >> 10, told, private / 2);
        self.cache_bandwidths();
        for domain in &self.topology.domains {
            self.header("[[domain]]");
            let cpus = self.cpus(&domain.cpus);
            self.field("cpus", cpus, "K");
            let (kb, told) = match domain.size_kb {
                Some(kb) => (kb, "K"),
                None => (16 << 10, "E"),
            };
            // Beyond what is private, and far from what does not fit.
            let at = (private as f64 * (kb << 10) as f64).sqrt() as u64;
            self.cache(kb, told, at);
        }
    }

    /// Of the first node with CPUs; a machine file has none of a level that one CPU cannot tell.
    fn cache_bandwidths(&mut self) {
        let measured = self.measured;
        for cache in &measured.caches {
            let (Some(Some(one)), all) = (cache.one.first(), cache.all.first()) else {
                continue;
            };
            self.header("[[cache_bandwidth]]");
            self.field("level", cache.level, "K");
            self.field("size_kb", cache.bytes >> 10, "K");
            self.sample("one_gbs", one, "reading by one CPU");
            if let Some(Some(all)) = all {
                self.sample("all_gbs", all, "reading by all CPUs of a node");
            }
        }
    }

    fn position(&self, node: NodeId) -> Option<usize> {
        self.measured
            .cpu_nodes
            .iter()
            .position(|known| *known == node)
    }

    fn nodes(&mut self) {
        for (index, &id) in self.measured.memory_nodes.iter().enumerate() {
            let Some(node) = self.topology.nodes.iter().find(|node| node.id == id) else {
                continue;
            };
            self.header("[[node]]");
            self.field("id", id.0, "K");
            if !node.cpus.is_empty() {
                let cpus = self.cpus(&node.cpus);
                self.field("cpus", cpus, "K");
            }
            self.field("memory_mb", (node.memory.total_kb >> 10).max(64), "K");
            if let Some(tier) = node.tier {
                self.field("tier", tier.rank, "K");
            }
            // A node without CPUs is a link away from its nearest, whose own memory is as far as
            // what is behind the link.
            let from = self.position(id).or_else(|| self.nearest(index));
            let Some(from) = from else { continue };
            let row = &self.measured.latency[from];
            let idle = match self.position(id) {
                Some(_) => row[index],
                None => *least(row),
            };
            match self.position(id) {
                Some(_) => self.sample("idle_ns", &idle, "a dependent load"),
                None => self.number("idle_ns", idle.median, "D as the nearest CPUs' own memory"),
            }
            let all = |work| self.work(work)?.all[from][index];
            if let (Some(read), Some(write)) = (all(ProbeWork::Read), all(ProbeWork::Write)) {
                // A line that is overwritten by ordinary stores is read and written.
                let points = [[0.5, 2.0 * write.median], [1.0, read.median]];
                let points = points.map(|[share, gbs]| format!("[{share:.1}, {}]", rounded(gbs)));
                let mark = measured(&read, "ordinary stores and reading, all threads");
                self.field("capacity_gbs", format!("[{}]", points.join(", ")), &mark);
            }
            self.number(
                "curve.a_ns",
                0.4 * idle.median,
                "E 0.40 of idle, as Skylake's DDR4",
            );
            self.number(
                "curve.b_ns",
                0.0085 * idle.median,
                "E 0.0085 of idle, as above",
            );
            self.field("curve.n", 2, "E as above");
        }
    }

    /// The node with CPUs that is nearest to a memory.
    fn nearest(&self, memory: usize) -> Option<usize> {
        let ns = |from: &usize| self.measured.latency[*from][memory].median;
        (0..self.measured.cpu_nodes.len()).min_by(|one, other| ns(one).total_cmp(&ns(other)))
    }

    fn links(&mut self) {
        let nodes = &self.measured.memory_nodes;
        for (one, &one_id) in nodes.iter().enumerate() {
            for (other, &other_id) in nodes.iter().enumerate().skip(one + 1) {
                // From either side that has CPUs.
                let ways = [(one_id, other), (other_id, one)];
                let seen: Vec<(f64, ProbeSample)> = ways
                    .iter()
                    .filter_map(|&(id, far)| {
                        let from = self.position(id)?;
                        let latency = &self.measured.latency;
                        // The far memory's own latency, where somebody is near it.
                        let its_own = match self.position(nodes[far]) {
                            Some(near) => latency[near][far],
                            None => *least(&latency[from]),
                        };
                        let hop = latency[from][far].median - its_own.median;
                        Some((hop, self.work(ProbeWork::Read)?.all[from][far]?))
                    })
                    .collect();
                let Some(&(_, gbs)) = seen.first() else {
                    continue;
                };
                let hops = seen.iter().map(|(hop, _)| *hop);
                let hop = hops.sum::<f64>() / seen.len() as f64;
                self.header("[[link]]");
                self.field("between", format!("[{}, {}]", one_id.0, other_id.0), "K");
                self.sample("gbs", &gbs, "reading by all threads of a node");
                self.number("hop_ns", hop.max(1.0), "D latency there less its own");
                self.field("overhead", 1, "E the bandwidth was measured in payload");
                self.number("curve.a_ns", 0.4 * hop.max(1.0), "E as the nodes'");
                self.number("curve.b_ns", 0.0085 * hop.max(1.0), "E as the nodes'");
                self.field("curve.n", 2, "E as the nodes'");
            }
        }
    }
}

/// The smallest of a row, which has one at least.
fn least(row: &[ProbeSample]) -> &ProbeSample {
    let mut least = &row[0];
    for sample in row {
        if sample.median < least.median {
            least = sample;
        }
    }
    least
}

fn rounded(value: f64) -> String {
    let places = match value.abs() {
        value if value >= 100.0 => 0,
        value if value >= 10.0 => 1,
        value if value >= 1.0 || value == 0.0 => 2,
        // So that what is small is not taken for nothing.
        value => super::report::digits(value),
    };
    format!("{value:.places$}")
}

fn measured(sample: &ProbeSample, what: &str) -> String {
    format!("M {what}; rounds differ by {:.1} %", sample.spread * 100.0)
}

#[cfg(test)]
mod tests {
    use super::super::report::tests::{at, measured as figures};
    use super::*;
    use hither_linux::root::Root;
    use std::path::Path;

    fn captured(name: &str) -> Topology {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/machines");
        Topology::read(&Root::new(folder.join(name))).unwrap()
    }

    const CORE: Core = Core {
        ghz: Some(2.25),
        private_bytes: Some(1 << 20),
    };

    #[test]
    fn a_measured_machine_is_a_machine_file_with_marks() {
        let topology = captured("two-socket");
        let mut measured = figures(&[0, 1]);
        measured.bandwidth[0].work = ProbeWork::Read;
        let text = file("mine", &topology, &measured, CORE).unwrap();
        let machine = parse::parse(&text).unwrap();
        assert_eq!(machine.name, "mine");
        assert_eq!(machine.cpu_count(), topology.online.len());
        // Latencies both ways are 134 and 135, the memories' own 81 and 80.
        assert!((machine.nodes[0].idle_ns - 80.0).abs() < 0.1, "{text}");
        assert!((machine.links[0].hop_ns - 54.0).abs() < 0.1, "{text}");
        assert!(
            (machine.idle_latency_ns(0, 1) - 134.5).abs() < 1.0,
            "{text}"
        );
        for part in [
            "ghz = 2.25                              # K /proc/cpuinfo",
            "idle_ns = 80.0                          # M a dependent load; rounds differ by 2.0 %",
            "ways = 16                               # E",
        ] {
            assert!(text.contains(part), "{part} is not in {text}");
        }
        let numbers = text
            .lines()
            .filter(|line| line.contains(" = ") && !line.starts_with('#'));
        for line in numbers.skip(3) {
            let mark = line.split_once("# ").map_or("", |(_, mark)| mark);
            assert!(mark.starts_with(['M', 'K', 'D', 'E']), "no mark: {line}");
        }
    }

    #[test]
    fn bandwidths_of_caches_are_written_as_measured() {
        let mut measured = figures(&[0, 1]);
        let level = |level, one: Option<f64>, all: Option<f64>| hither_linux::probe::Cached {
            level,
            bytes: 32 << 10,
            one: vec![one.map(at); 2],
            all: vec![all.map(at); 2],
        };
        measured.caches = vec![
            level(1, Some(201.0), Some(1608.0)),
            level(2, Some(90.5), None),
            level(3, None, None),
        ];
        let text = file("mine", &captured("two-socket"), &measured, CORE).unwrap();
        let machine = parse::parse(&text).unwrap();
        let levels = machine.cache_bandwidths.iter();
        let told: Vec<_> = levels
            .map(|l| (l.level, l.size_kb, l.one_gbs, l.all_gbs))
            .collect();
        assert_eq!(told, [(1, 32, 201.0, Some(1608.0)), (2, 32, 90.5, None)]);
        let line =
            "all_gbs = 1608                          # M reading by all CPUs of a node; rounds";
        assert!(text.contains(line), "{text}");
    }

    #[test]
    fn a_machine_file_of_an_emulator_is_one() {
        // Thousands of times slower than hardware.
        let mut measured = figures(&[0, 1]);
        for work in &mut measured.bandwidth {
            for gbs in work.one.iter_mut().chain(&mut work.all).flatten().flatten() {
                gbs.median /= 30_000.0;
            }
        }
        let text = file("mine", &captured("two-socket"), &measured, CORE).unwrap();
        let machine = parse::parse(&text).unwrap();
        assert!((machine.links[0].gbs - 0.0045).abs() < 0.0001, "{text}");
    }

    #[test]
    fn a_machine_file_without_a_figure_that_it_needs_is_refused_with_the_reason() {
        let mut measured = figures(&[0, 1]);
        measured.bandwidth[1].all[0][1] = None;
        let error = file("mine", &captured("two-socket"), &measured, CORE).unwrap_err();
        let error = error.to_string();
        assert!(
            error.contains("write by all CPUs of node0, memory of node1, could not be"),
            "{error}"
        );
        assert!(!error.contains("report this"), "{error}");
        let mut measured = figures(&[0, 1]);
        measured.bandwidth[0].one[0][0] = None;
        let error = file("mine", &captured("two-socket"), &measured, CORE).unwrap_err();
        let error = error.to_string();
        assert!(error.contains("reading by one thread could not"), "{error}");
        // What a machine file can do without is left out.
        let mut measured = figures(&[0, 1]);
        measured.bandwidth[0].one[1][0] = None;
        measured.flops.clear();
        file("mine", &captured("two-socket"), &measured, CORE).unwrap();
    }

    #[test]
    fn what_a_machine_file_cannot_say_is_refused() {
        let mut topology = captured("two-socket");
        topology.nodes[1].memory.total_kb = 0;
        let error = file("mine", &topology, &figures(&[0, 1]), CORE).unwrap_err();
        assert!(
            error.to_string().contains("has CPUs and no memory"),
            "{error}"
        );
        let mut measured = figures(&[0, 1]);
        measured.memory_nodes = (0..17).map(NodeId).collect();
        let error = file("mine", &captured("two-socket"), &measured, CORE).unwrap_err();
        assert!(error.to_string().contains("272 were measured"), "{error}");
    }

    #[test]
    fn a_memory_without_cpus_is_a_link_away() {
        let row = [at(114.0), at(260.0)];
        assert!((least(&row).median - 114.0).abs() < 1e-9);
    }
}
