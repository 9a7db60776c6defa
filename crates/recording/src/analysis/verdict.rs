//! What a recording comes to: one sentence, and the one command to try next.

use super::areas::{Area, Areas};
use super::data::Data;
use super::sharing::SharedLine;
use super::use_of::{self, AreaUse, Judged, Remedy};
use hither_core::foreign::shell_word;
use hither_core::snapshot::Evidence;

/// Memory fills per us and busy CPU below which placement hardly matters: at 200 ns each, a tenth of
/// the CPU's time.
const QUIET: f64 = 0.5;
/// Share of all accesses that lines with false sharing must have.
const SHARING_WORTH: f64 = 0.03;
/// Local-access ratio from which on placement is fine (Carrefour's gate).
const FINE: f64 = 0.8;
/// Share of the remote accesses of which something must be known before it is said of all.
const MOST: f64 = 0.5;
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
    /// Accesses are remote, and the memory that has them is spread already.
    Spread,
    /// What was seen does not tell whether placement could be better.
    Unknown,
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
            Self::Unknown => "not known",
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
    /// CPU time of what was watched, in us.
    pub watched_cpu_us: Option<u64>,
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
pub struct ReportVerdict {
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
        own_cpu_us: data.own_cpu_us(),
        watched_cpu_us: data
            .meta
            .ended
            .as_ref()
            .and_then(|ended| ended.watched_cpu_us),
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
    lines: &[SharedLine],
) -> ReportVerdict {
    let verdict = |finding, sentence: String, next: String| ReportVerdict {
        finding,
        sentence,
        next,
    };
    let counted = overall.accesses_per_us.filter(|&fills| fills > 0.0);
    if let (true, true, Some(fills)) = (data.accesses.is_empty(), data.regions.is_empty(), counted)
    {
        let told = format!(
            "{fills:.1} memory fills a microsecond were counted and none was sampled, so nothing can \
             be said of placement: record longer, or let recording cost more."
        );
        let next = format!("hither record --overhead 5 {}", again(data));
        return verdict(Finding::NotSeen, told, next);
    }
    if data.accesses.is_empty() {
        let told = match data.regions.is_empty() {
            true => "No access was sampled, so nothing can be said of placement.",
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
    let cpus = busy_cpus(data, overall);
    if let Some(fills) = overall.accesses_per_us.filter(|fills| fills / cpus < QUIET) {
        let told = format!(
            "Memory is hardly used ({fills:.1} memory fills a microsecond by {cpus:.1} CPUs): its placement \
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
                advice(data, judged.remedy, &judged.written),
            );
            verdict(
                Finding::Misplaced,
                sentence,
                command(data, area, judged.remedy),
            )
        }
        None => {
            let (finding, sentence) = match local {
                Some(local) if local >= FINE => (
                    Finding::Fine,
                    format!("{} of accesses are local: leave it.", percent(local)),
                ),
                Some(local) if spread(areas, judged) >= MOST * remote.max(1.0) => (
                    Finding::Spread,
                    format!(
                        "{} of accesses are remote: the nodes use the same memory, which is \
                         interleaved over them already.",
                        percent(1.0 - local)
                    ),
                ),
                Some(local) => (
                    Finding::Unknown,
                    format!(
                        "{} of accesses are remote, and {} samples do not tell which memory should \
                         be elsewhere: record longer.",
                        percent(1.0 - local),
                        data.accesses.len(),
                    ),
                ),
                None => (
                    Finding::Unknown,
                    "Samples do not tell which node's memory serves which CPU, so nothing can be \
                     said of placement."
                        .to_owned(),
                ),
            };
            verdict(finding, sentence, String::new())
        }
    }
}

/// Remote accesses to memory that several nodes share and that is spread over them.
fn spread(areas: &Areas, judged: &[Judged]) -> f64 {
    let all = areas.list.iter().zip(judged);
    let spread =
        all.filter(|(area, judged)| judged.by == AreaUse::Shared && use_of::is_spread(area));
    spread.map(|(area, _)| area.remote()).sum()
}

fn false_sharing(areas: &Areas, lines: &[SharedLine]) -> Option<String> {
    let all = areas.list.iter().map(|area| area.accesses + area.transfers);
    let all: f64 = all.sum();
    let lines: Vec<&SharedLine> = lines
        .iter()
        .filter(|line| line.is_false() == Some(true))
        .collect();
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
        "{:.0} % of accesses are to {} cache lines with false sharing: several CPUs use each, each \
         CPU other words of it, and one at least writes. The first is {:x} of {name}. Pad what \
         belongs to one thread to a line of its own.",
        100.0 * shared / all,
        lines.len(),
        first.address,
    ))
}

/// CPUs that what was watched kept busy, one at least. Idle ones must not make a busy one quiet: where
/// nobody told the CPU time, those that were seen to access memory count.
fn busy_cpus(data: &Data, overall: &Overall) -> f64 {
    let most = cpu_count(data).max(1) as f64;
    let length_us = data.length_ns() as f64 / 1e3;
    let busy = match overall.watched_cpu_us {
        Some(used_us) if length_us > 0.0 => used_us as f64 / length_us,
        _ => {
            let seen = data.accesses.iter().filter_map(|access| access.cpu());
            seen.collect::<std::collections::BTreeSet<u16>>().len() as f64
        }
    };
    busy.clamp(1.0, most)
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
    let node = |position: usize| format!("node{}", data.nodes[position]);
    let all: f64 = area.homes.iter().sum();
    let first = (0..area.homes.len()).max_by(|&a, &b| area.homes[a].total_cmp(&area.homes[b]));
    let held = match first {
        _ if all <= 0.0 => "a node that is not told holds".to_owned(),
        Some(home) if area.homes[home] >= 0.9 * all => format!("{} holds", node(home)),
        _ => "several nodes hold".to_owned(),
    };
    match judged.by {
        AreaUse::One(user) => format!("which {} uses and {held}", node(user)),
        AreaUse::Divided => format!("of which each node uses its own part and {held} most"),
        AreaUse::Shared => format!("which several nodes use throughout and {held}"),
        AreaUse::Unknown => "of whose users too little was seen".to_owned(),
    }
}

/// What would help, in words. Copies are an option only for what is known not to be written; the
/// program must make them.
#[must_use]
pub fn advice(data: &Data, remedy: Remedy, written: &Evidence<bool>) -> String {
    match remedy {
        Remedy::Nothing => "leave it".to_owned(),
        Remedy::MoveTo(node) => format!(
            "move it to node{}, or its threads to where it is",
            data.nodes[node]
        ),
        Remedy::MakeLocal => "move each part to the node that uses it; in the program, let each \
                              thread initialise its own part (first-touch)"
            .to_owned(),
        Remedy::Interleave if written.get() == Some(false) => format!(
            "interleave it over the nodes; it was not written ({}), so the program itself could \
             also keep a copy on each node",
            written.basis()
        ),
        Remedy::Interleave => "interleave it over the nodes".to_owned(),
        Remedy::Unknown => "record longer".to_owned(),
    }
}

/// The command that was recorded, as a shell takes it; empty where running processes were.
fn program(data: &Data) -> String {
    let words = data.meta.command.iter().map(|word| shell_word(word));
    words.collect::<Vec<_>>().join(" ")
}

/// What to record once more, as arguments.
fn again(data: &Data) -> String {
    match (program(data), data.processes.first()) {
        (program, Some(process)) if program.is_empty() => format!("--pid {}", process.pid),
        (program, None) if program.is_empty() => "-- CMD".to_owned(),
        (program, _) => format!("-- {program}"),
    }
}

/// The command that carries the advice out.
fn command(data: &Data, area: &Area, remedy: Remedy) -> String {
    let program = program(data);
    match (remedy, program.is_empty()) {
        (Remedy::Nothing | Remedy::Unknown, _) => String::new(),
        (Remedy::MoveTo(_) | Remedy::Interleave, true) => {
            let range = match area.kind {
                super::areas::AreaKind::Mapping(start) => {
                    format!(" --range {start:x}-{:x}", start + area.bytes)
                }
                _ => String::new(),
            };
            let to = match remedy {
                Remedy::MoveTo(node) => format!("node{}", data.nodes[node]),
                _ => "all".to_owned(),
            };
            format!("hither move --pid {} --to {to}{range}", area.pid)
        }
        (_, false) => format!("hither run -- {program}"),
        (_, true) => format!("hither attach --pid {}", area.pid),
    }
}

#[cfg(test)]
mod tests {
    use super::super::areas::areas;
    use super::super::data::Access;
    use super::super::data::tests::{access, empty, write};
    use super::super::sharing::lines;
    use super::super::use_of::judge;
    use super::*;
    use crate::meta::RecordingEnd;
    use crate::rows::{Interval, Mapping};

    fn judged(data: &Data) -> ReportVerdict {
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
    fn accesses_that_were_counted_and_not_sampled_ask_for_more_samples() {
        let mut data = empty();
        data.intervals = vec![interval(7.0)];
        let told = judged(&data);
        assert_eq!(told.finding, Finding::NotSeen);
        assert!(
            told.sentence.starts_with("7.0 memory fills a microsecond"),
            "{}",
            told.sentence
        );
        assert_eq!(told.next, "hither record --overhead 5 -- ./app");
    }

    #[test]
    fn idle_cpus_do_not_make_a_busy_one_quiet() {
        // Eight CPUs; one, of position 1, has 3 remote fills a us: six tenths of its time at 200 ns.
        let mut data = empty();
        data.meta.nodes[0].cpus = "0,2-8".into();
        data.accesses = (0..64).map(|t| access(t, 4096 * (t % 2), 1, 0)).collect();
        data.intervals = vec![interval(3.0)];
        assert_eq!(judged(&data).finding, Finding::Misplaced);
        // Of as many as eight busy CPUs it is little: 0.375 each.
        data.meta.ended = Some(ended(1_000_000, Some(8_000)));
        let verdict = judged(&data);
        assert_eq!(verdict.finding, Finding::Quiet);
        assert!(
            verdict
                .sentence
                .contains("3.0 memory fills a microsecond by 8.0 CPUs"),
            "{}",
            verdict.sentence
        );
    }

    fn ended(length_ns: u64, watched_cpu_us: Option<u64>) -> RecordingEnd {
        RecordingEnd {
            length_ns,
            status: Some(0),
            signal: None,
            own_user_us: Some(3_000),
            own_system_us: Some(2_730),
            watched_cpu_us,
            own_peak_kb: Some(1),
            notes: Vec::new(),
        }
    }

    #[test]
    fn a_recording_has_one_cost() {
        let mut data = empty();
        data.intervals = vec![interval(7.0), interval(7.0)];
        // Cut off: what its intervals say. Whole: what hither used from its start to its end.
        let cost = |data: &Data| overall(data, &areas(data)).own_cpu_us;
        assert_eq!(cost(&data), Some(2 * 123));
        data.meta.ended = Some(ended(2_000_000, Some(473_000)));
        assert_eq!(cost(&data), Some(5_730));
    }

    fn interval(accesses_per_us: f64) -> Interval {
        Interval {
            time_ns: 1_000_000,
            length_ns: 1_000_000,
            local_access_ratio: None,
            latency_ns: None,
            controller_imbalance: None,
            link_use: None,
            accesses_per_us: Some(accesses_per_us),
            instructions_per_us: None,
            flops_per_us: None,
            stall_share: None,
            l3_mpki: None,
            sample_count: 0,
            lost_count: 0,
            own_cpu_us: Some(123),
        }
    }

    /// 4096 accesses, in turn of both nodes, to the same 64 pages on position 0.
    fn shared(make: fn(u64, u64, u16, u16) -> Access) -> Data {
        let mut data = empty();
        data.mappings = vec![Mapping {
            time_ns: 0,
            pid: 7,
            start: 0x10_0000,
            end: 0x14_0000,
            permissions: "rw-p".into(),
            name: "a".into(),
        }];
        data.accesses = (0..4096_u64)
            .map(|turn| make(turn, 0x10_0000 + 64 * (turn / 2), (turn % 2) as u16, 0))
            .collect();
        data
    }

    #[test]
    fn memory_of_which_reads_alone_were_sampled_is_not_said_to_be_only_read() {
        for make in [access, write] {
            let verdict = judged(&shared(make));
            assert_eq!(verdict.finding, Finding::Misplaced);
            assert!(
                verdict
                    .sentence
                    .ends_with(": interleave it over the nodes."),
                "{}",
                verdict.sentence
            );
        }
        // Where it cannot be written, that is said, and why.
        let mut data = shared(access);
        data.mappings[0].permissions = "r--p".into();
        let verdict = judged(&data);
        assert!(
            verdict.sentence.ends_with(
                ": interleave it over the nodes; it was not written (its mapping does not allow \
                 writing), so the program itself could also keep a copy on each node."
            ),
            "{}",
            verdict.sentence
        );
    }

    #[test]
    fn what_was_not_seen_is_neither_fine_nor_spread() {
        // Samples without homes: 1024 of one node, which was called fine.
        let mut data = empty();
        data.accesses = (0..1024).map(|t| access(t, 64 * t, 1, u16::MAX)).collect();
        let verdict = judged(&data);
        assert_eq!(verdict.finding, Finding::Unknown, "{}", verdict.sentence);
        assert!(verdict.sentence.contains("do not tell which node's memory"));
        // Eight remote samples to each of 40 areas: too few of any, which was called spread.
        let mut data = empty();
        for area in 0..40_u64 {
            let start = (1 + area) << 24;
            data.mappings.push(Mapping {
                time_ns: 0,
                pid: 7,
                start,
                end: start + 4096,
                permissions: "rw-p".into(),
                name: format!("area {area}"),
            });
            data.accesses
                .extend((0..8).map(|t| access(t, start + 64 * t, 1, 0)));
        }
        data.accesses.sort_by_key(|access| access.time_ns);
        let verdict = judged(&data);
        assert_eq!(verdict.finding, Finding::Unknown, "{}", verdict.sentence);
        assert!(
            verdict
                .sentence
                .starts_with("100 % of accesses are remote, and 320 samples do not tell"),
            "{}",
            verdict.sentence
        );
        // Shared and interleaved by turns: half remote, and nothing to gain.
        let mut data = shared(access);
        for (turn, access) in data.accesses.iter_mut().enumerate() {
            *access = super::tests::access(
                turn as u64,
                access.address,
                (turn % 2) as u16,
                (turn / 2 % 2) as u16,
            );
        }
        let verdict = judged(&data);
        assert_eq!(verdict.finding, Finding::Spread, "{}", verdict.sentence);
        assert!(
            verdict
                .sentence
                .starts_with("50 % of accesses are remote: the nodes use the same")
        );
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
        assert_eq!(verdict.next, "hither run -- ./app 'a b'");
        // Of a process that was there already.
        shared.meta.command.clear();
        assert_eq!(judged(&shared).next, "hither move --pid 7 --to all");
        // No one node is right for all of it.
        let mut divided = data.clone();
        divided.meta.command.clear();
        divided.accesses = (0..8192_u64)
            .map(|turn| write(turn, 4096 * (turn % 64), u16::from(turn % 64 >= 32), 0))
            .collect();
        assert_eq!(judged(&divided).next, "hither attach --pid 7");
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
