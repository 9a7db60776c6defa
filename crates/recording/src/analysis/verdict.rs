//! What a recording comes to: one sentence, and the one command to try next.

use super::areas::{Area, Areas};
use super::data::Data;
use super::sharing::Line;
use super::use_of::{Judged, Remedy};

/// Memory fills per us and CPU below which placement hardly matters: at 200 ns each, a tenth of
/// the CPU's time.
const QUIET: f64 = 0.5;
/// Share of all accesses that lines with false sharing must have.
const SHARING_WORTH: f64 = 0.03;
/// Local-access ratio from which on placement is fine (Carrefour's gate).
const FINE: f64 = 0.8;
/// Imbalance of controllers above which accesses wait for one of them (Carrefour's gate).
const IMBALANCED: f64 = 0.35;

/// What was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finding {
    /// No access was seen.
    NotSeen,
    /// Memory is hardly used.
    Quiet,
    /// CPUs share lines for nothing.
    FalseSharing,
    /// Memory is where it is not used, or all on one node.
    Misplaced,
    /// Accesses are remote, and no area stands out that could be placed better.
    Spread,
    /// Memory is where it is used.
    Fine,
}

impl Finding {
    /// In JSON.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::NotSeen => "not seen",
            Self::Quiet => "quiet",
            Self::FalseSharing => "false sharing",
            Self::Misplaced => "misplaced",
            Self::Spread => "spread",
            Self::Fine => "fine",
        }
    }
}

/// The machine over the whole recording, each where it is known.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Overall {
    /// Share of accesses served by the own node: of counters, else of samples.
    pub local_access_ratio: Option<f64>,
    /// Mean latency of misses in ns.
    pub latency_ns: Option<f64>,
    /// Of the nodes' traffic over the recording: standard deviation over mean.
    pub controller_imbalance: Option<f64>,
    /// Mean utilisation of links.
    pub link_use: Option<f64>,
    /// Memory fills per us.
    pub accesses_per_us: Option<f64>,
    /// User-mode instructions per us.
    pub instructions_per_us: Option<f64>,
    /// Floating-point operations of user mode per us.
    pub flops_per_us: Option<f64>,
    /// Bytes that the nodes' memory read and wrote per us.
    pub bytes_per_us: Option<f64>,
    /// CPU time of hither itself, in us.
    pub own_cpu_us: Option<u64>,
    /// Samples that were lost.
    pub lost_count: Option<u64>,
}

impl Overall {
    /// Floating-point operations per byte of memory traffic (the roofline model's operational
    /// intensity: Williams, Waterman, Patterson 2009).
    #[must_use]
    pub fn flops_per_byte(&self) -> Option<f64> {
        let (flops, bytes) = self.flops_per_us.zip(self.bytes_per_us)?;
        (bytes > 0.0).then(|| flops / bytes)
    }
}

/// The verdict.
#[derive(Clone, Debug, PartialEq)]
pub struct Verdict {
    /// What was found.
    pub finding: Finding,
    /// For people.
    pub sentence: String,
    /// The command to try next; empty where there is nothing to do.
    pub next: String,
}

/// Sums up the intervals, each by its length; ratios by the accesses that they are of.
#[must_use]
pub fn overall(data: &Data, areas: &Areas) -> Overall {
    let all = &data.intervals;
    let mean = |of: fn(&crate::rows::Interval) -> Option<f64>, by_accesses: bool| {
        let (mut sum, mut weight) = (0.0, 0.0);
        for interval in all {
            let accesses = interval.accesses_per_us.unwrap_or(0.0);
            let factor = if by_accesses { accesses } else { 1.0 } * interval.length_ns as f64;
            if let Some(value) = of(interval) {
                sum += factor * value;
                weight += factor;
            }
        }
        (weight > 0.0).then(|| sum / weight)
    };
    let sampled = || {
        let local: f64 = areas.list.iter().map(|area| area.local).sum();
        let placed: f64 = areas.list.iter().map(|area| area.placed).sum();
        (placed > 0.0).then(|| local / placed)
    };
    let bytes = node_bytes(data);
    let length_ns = all.iter().map(|i| i.length_ns).sum::<u64>().max(1) as f64;
    Overall {
        local_access_ratio: mean(|i| i.local_access_ratio, true).or_else(sampled),
        latency_ns: mean(|i| i.latency_ns, true),
        controller_imbalance: bytes.as_deref().and_then(hither_core::metrics::imbalance),
        link_use: mean(|i| i.link_use, false),
        accesses_per_us: mean(|i| i.accesses_per_us, false),
        instructions_per_us: mean(|i| i.instructions_per_us, false),
        flops_per_us: mean(|i| i.flops_per_us, false),
        bytes_per_us: bytes
            .as_ref()
            .map(|bytes| bytes.iter().sum::<f64>() * 1e3 / length_ns),
        own_cpu_us: all
            .iter()
            .filter_map(|interval| interval.own_cpu_us)
            .reduce(u64::saturating_add),
        lost_count: all
            .iter()
            .map(|interval| interval.lost_count)
            .reduce(u64::saturating_add),
    }
}

/// What each node's memory read and wrote over the recording.
fn node_bytes(data: &Data) -> Option<Vec<f64>> {
    let mut bytes = vec![None; data.nodes.len()];
    for row in &data.traffic {
        let sum = row.read_bytes? as f64 + row.write_bytes? as f64;
        *bytes.get_mut(data.position(row.node)?)?.get_or_insert(0.0) += sum;
    }
    let all: Option<Vec<f64>> = bytes.into_iter().collect();
    all.filter(|all| !all.is_empty())
}

/// Judges the recording.
#[must_use]
pub fn verdict(
    data: &Data,
    overall: &Overall,
    areas: &Areas,
    judged: &[Judged],
    lines: &[Line],
) -> Verdict {
    let verdict = |finding, sentence: String, next: String| Verdict {
        finding,
        sentence,
        next,
    };
    if data.accesses.is_empty() {
        let told = match data.regions.is_empty() {
            true => "No access was seen, so nothing can be said of placement.",
            false if data.is_of_writes() => {
                "Soft-dirty bits tell what is written, not what is read, nor who uses it from where."
            }
            false => "Access bits tell what is hot, not who uses it from where.",
        };
        let next = "hither topo --doctor".to_owned();
        return verdict(Finding::NotSeen, told.to_owned(), next);
    }
    if let Some(sharing) = false_sharing(areas, lines) {
        return verdict(
            Finding::FalseSharing,
            sharing,
            "hither report --json -".to_owned(),
        );
    }
    let cpus = cpu_count(data).max(1) as f64;
    if let Some(fills) = overall.accesses_per_us.filter(|fills| fills / cpus < QUIET) {
        let told = format!(
            "Memory is hardly used ({fills:.1} lines a microsecond by {cpus} CPUs): its placement \
             hardly matters."
        );
        return verdict(Finding::Quiet, told, String::new());
    }
    let remote: f64 = areas.list.iter().map(Area::remote).sum();
    let worst = areas
        .list
        .iter()
        .zip(judged)
        .filter(|(_, judged)| !matches!(judged.remedy, Remedy::Nothing | Remedy::Unknown))
        .max_by(|a, b| a.0.remote().total_cmp(&b.0.remote()));
    let local = overall.local_access_ratio;
    let is_imbalanced = overall
        .controller_imbalance
        .is_some_and(|is| is > IMBALANCED);
    let is_remote = local.is_some_and(|local| local < FINE);
    let percent = |share: f64| format!("{:.0} %", 100.0 * share);
    match worst.filter(|_| is_remote || is_imbalanced) {
        Some((area, judged)) => {
            let sentence = format!(
                "{} of accesses are remote, {} of those to {}, {}: {}.",
                local.map_or("Some".to_owned(), |local| percent(1.0 - local)),
                percent(area.remote() / remote.max(1.0)),
                area.name,
                describe(data, area, judged),
                advice(data, judged.remedy),
            );
            verdict(
                Finding::Misplaced,
                sentence,
                command(data, area, judged.remedy),
            )
        }
        None if is_remote => verdict(
            Finding::Spread,
            format!(
                "{} of accesses are remote, and no area stands out: all nodes use all of them, and \
                 they are spread already.",
                local.map_or("Some".to_owned(), |local| percent(1.0 - local)),
            ),
            String::new(),
        ),
        None => verdict(
            Finding::Fine,
            match local {
                Some(local) => format!("{} of accesses are local: leave it.", percent(local)),
                None => "Nothing tells of misplaced memory.".to_owned(),
            },
            String::new(),
        ),
    }
}

fn false_sharing(areas: &Areas, lines: &[Line]) -> Option<String> {
    let all = areas.list.iter().map(|area| area.accesses + area.transfers);
    let all: f64 = all.sum();
    let lines: Vec<&Line> = lines.iter().filter(|line| line.is_false()).collect();
    let shared: f64 = lines.iter().map(|line| line.accesses).sum();
    let first = lines.first()?;
    if shared < SHARING_WORTH * all {
        return None;
    }
    let name = areas
        .list
        .get(first.area as usize)
        .map_or("", |area| area.name.as_str());
    Some(format!(
        "{:.0} % of accesses are to {} cache lines that CPUs write in turn, each other words of \
         them: the first is {:x} of {name}. Pad what belongs to one thread to a line of its own.",
        100.0 * shared / all,
        lines.len(),
        first.address,
    ))
}

/// CPUs of the machine, by the kernel's lists.
fn cpu_count(data: &Data) -> usize {
    let count = |list: &str| {
        list.parse::<hither_core::set::CpuSet>()
            .map_or(0, |set| set.len())
    };
    data.meta.nodes.iter().map(|node| count(&node.cpus)).sum()
}

/// Who uses it and who holds it.
#[must_use]
pub fn describe(data: &Data, area: &Area, judged: &Judged) -> String {
    use super::use_of::Use;
    let node = |position: usize| format!("node{}", data.nodes[position]);
    let all: f64 = area.homes.iter().sum();
    let first = (0..area.homes.len()).max_by(|&a, &b| area.homes[a].total_cmp(&area.homes[b]));
    let held = match first {
        Some(home) if area.homes[home] >= 0.9 * all => format!("{} holds", node(home)),
        _ => "several nodes hold".to_owned(),
    };
    match judged.by {
        Use::One(user) => format!("which {} uses and {held}", node(user)),
        Use::Divided => format!("of which each node uses its own part and {held} all"),
        Use::Shared => format!("which several nodes use throughout and {held}"),
        Use::Unknown => "of whose users too little was seen".to_owned(),
    }
}

/// What would help, in words.
#[must_use]
pub fn advice(data: &Data, remedy: Remedy) -> String {
    match remedy {
        Remedy::Nothing => "leave it".to_owned(),
        Remedy::MoveTo(node) => format!(
            "move it to node{}, or its threads to where it is",
            data.nodes[node]
        ),
        Remedy::MakeLocal => "move each part to its user; in the program, let each thread write \
                              its part first"
            .to_owned(),
        Remedy::Interleave => "spread it over the nodes".to_owned(),
        Remedy::Replicate => "it is only read: a copy per node would do best, spreading it over \
                              the nodes is next"
            .to_owned(),
        Remedy::Unknown => "record longer".to_owned(),
    }
}

/// The command that carries the advice out.
fn command(data: &Data, area: &Area, remedy: Remedy) -> String {
    let words = data.meta.command.iter().map(|word| quoted(word));
    let program = words.collect::<Vec<_>>().join(" ");
    match (remedy, program.is_empty()) {
        (Remedy::Nothing | Remedy::Unknown, _) => String::new(),
        (Remedy::MoveTo(node), true) => {
            let range = match area.kind {
                super::areas::Kind::Mapping(start) => {
                    format!(" --range {start:x}-{:x}", start + area.bytes)
                }
                _ => String::new(),
            };
            format!(
                "hither move --pid {} --to node{}{range}",
                area.pid, data.nodes[node]
            )
        }
        (_, false) => format!("hither run --policy carrefour -- {program}"),
        (_, true) => "hither run --policy carrefour -- CMD".to_owned(),
    }
}

/// As a shell takes it.
fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./=:,+@%".contains(c);
    match !word.is_empty() && word.chars().all(plain) {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', "'\\''")),
    }
}

#[cfg(test)]
mod tests {
    use super::super::areas::areas;
    use super::super::data::tests::{access, empty, write};
    use super::super::sharing::lines;
    use super::super::use_of::judge;
    use super::*;

    fn judged(data: &Data) -> Verdict {
        let areas = areas(data);
        let lines = lines(data, &areas.of_access, 10);
        let overall = overall(data, &areas);
        verdict(data, &overall, &areas, &judge(data, &areas), &lines)
    }

    #[test]
    fn nothing_seen_says_so() {
        let verdict = judged(&empty());
        assert_eq!(
            (verdict.finding, verdict.next.as_str()),
            (Finding::NotSeen, "hither topo --doctor")
        );
        let mut data = empty();
        data.regions.push(crate::rows::Region {
            time_ns: 1,
            length_ns: 1,
            pid: Some(7),
            start: 0,
            end: 4096,
            access_count: 1,
            check_count: 1,
            age_count: None,
        });
        assert!(judged(&data).sentence.starts_with("Access bits"));
        // The same rows, of another tracker.
        data.meta.trackers[0].name = "written".into();
        let verdict = judged(&data);
        assert!(
            verdict
                .sentence
                .contains("what is written, not what is read"),
            "{}",
            verdict.sentence
        );
        assert_eq!(verdict.finding, Finding::NotSeen);
    }

    #[test]
    fn each_finding_names_its_area_and_command() {
        let mut data = empty();
        data.meta.command = vec!["./app".into(), "a b".into()];
        let mut shared = data.clone();
        shared.accesses = (0..4096_u64)
            .map(|turn| write(turn, 64 * (turn / 2 % 1024), (turn % 2) as u16, 0))
            .collect();
        // Both CPUs write the same words: that is meant.
        let verdict = judged(&shared);
        assert_eq!(verdict.finding, Finding::Misplaced, "{}", verdict.sentence);
        assert!(
            verdict
                .sentence
                .starts_with("50 % of accesses are remote, 100 % of those")
        );
        assert_eq!(verdict.next, "hither run --policy carrefour -- ./app 'a b'");
        let mut falsely = data.clone();
        falsely.accesses = (0..64)
            .map(|turn| write(turn, 8 * (turn % 2), (turn % 2) as u16, 0))
            .collect();
        assert_eq!(judged(&falsely).finding, Finding::FalseSharing);
        let mut fine = data.clone();
        fine.accesses = (0..64)
            .map(|turn| access(turn, 4096 * (turn % 2), 1, 1))
            .collect();
        assert_eq!(judged(&fine).finding, Finding::Fine);
        let mut far = data;
        far.meta.command.clear();
        far.accesses = (0..64)
            .map(|turn| access(turn, 4096 * (turn % 2), 1, 0))
            .collect();
        let verdict = judged(&far);
        assert_eq!(verdict.next, "hither move --pid 7 --to node2");
        assert!(
            verdict
                .sentence
                .contains("which node2 uses and node0 holds: move it to node2")
        );
    }
}
