//! Tables of a recording.

use super::document::Part;
use super::figures::Figures;
use super::pictures::names_of_sets;
use crate::print::{DASH, or_none};
use crate::{print, record, units};
use hither_recording::analysis::sharing::SharedLine;
use hither_recording::rows::Node;

pub fn percent(share: f64) -> String {
    format!("{:.1} %", 100.0 * share)
}

/// Accesses, in the unit that fits.
pub fn count(accesses: f64) -> String {
    match accesses {
        n if n >= 1e9 => format!("{:.2} G", n / 1e9),
        n if n >= 1e6 => format!("{:.2} M", n / 1e6),
        n if n >= 1e3 => format!("{:.1} k", n / 1e3),
        n => format!("{n:.0}"),
    }
}

pub fn strings(words: &[&str]) -> Vec<String> {
    words.iter().map(|&word| word.to_owned()).collect()
}

/// The verdict, and the whole.
pub fn summary(figures: &Figures) -> Vec<Part> {
    let (data, overall) = (&figures.data, &figures.overall);
    let meta = &data.meta;
    let mut parts = vec![Part::Text(figures.verdict.sentence.clone())];
    if !figures.verdict.next.is_empty() {
        parts.push(Part::Command(figures.verdict.next.clone()));
    }
    let watched = match meta.command.is_empty() {
        true => meta.watched.clone(),
        false => meta.command.join(" "),
    };
    let trackers: Vec<&str> = meta.trackers.iter().map(|t| t.name.as_str()).collect();
    let mut rows = [
        ["watched", &watched],
        ["length", &units::time(data.length_ns() as f64)],
        ["tracker", &trackers.join(", ")],
        ["samples", &data.accesses.len().to_string()],
        [
            "lost samples",
            &or_none(overall.lost_count.map(|n| n.to_string())),
        ],
        [
            "local accesses",
            &or_none(overall.local_access_ratio.map(percent)),
        ],
        [
            "remote accesses",
            &or_none(overall.local_access_ratio.map(|local| percent(1.0 - local))),
        ],
        [
            "mean latency",
            &or_none(overall.latency_ns.map(units::time)),
        ],
        [
            "controller imbalance",
            &or_none(overall.controller_imbalance.map(percent)),
        ],
        ["interconnect use", &or_none(overall.link_use.map(percent))],
        [
            "memory fills",
            &or_none(
                overall
                    .accesses_per_us
                    .map(|fills| format!("{fills:.1} /us")),
            ),
        ],
        [
            "recording cost",
            &or_none(record::cost(overall.own_cpu_us, overall.watched_cpu_us)),
        ],
    ]
    .map(|row| strings(&row))
    .to_vec();
    if let Some(flops) = overall.flops_per_us {
        let intensity = overall.flops_per_byte().filter(|_| flops > 0.0);
        let intensity = intensity.map(|of| format!(", {of:.3} FLOP a byte of memory traffic"));
        let figure = format!(
            "{:.3} GFLOP/s{}",
            flops / 1e3,
            intensity.unwrap_or_default()
        );
        rows.push(strings(&["floating point", &figure]));
    }
    if !data.regions.is_empty() {
        rows.push(strings(&["regions", &data.regions.len().to_string()]));
    }
    parts.push(Part::Table(strings(&["what", "figure"]), rows));
    parts
}

/// Lines that several CPUs share.
pub fn lines(figures: &Figures) -> Vec<Part> {
    if figures.lines.is_empty() {
        return Vec::new();
    }
    let head = [
        "line",
        "area",
        "accesses",
        "latency",
        "words apart",
        "kind",
        "users: offsets",
    ];
    let row = |line: &SharedLine| {
        let area = figures.areas.list.get(line.area as usize);
        let users = line.users.iter().take(4).map(|user| {
            let offsets: Vec<String> = user.offsets.iter().map(|o| format!("+{o}")).collect();
            let who = if line.by_thread { "thread" } else { "cpu" };
            format!("{who} {}: {}", user.id, offsets.join(" "))
        });
        let more = line.users.len().saturating_sub(4);
        let more = (more > 0).then(|| format!("{more} more"));
        vec![
            format!("{:x}", line.address),
            area.map_or(DASH.to_owned(), |area| area.name.clone()),
            count(line.accesses),
            or_none(line.latency_ns.map(units::time)),
            percent(line.apart),
            line.kind().unwrap_or(DASH).to_owned(),
            users.chain(more).collect::<Vec<_>>().join("; "),
        ]
    };
    let rows = figures.lines.iter().map(row).collect();
    vec![Part::Table(strings(&head), rows)]
}

/// Percentiles of the working set.
pub fn working_set(figures: &Figures) -> Vec<Part> {
    let set = &figures.working_set;
    let (touched, weighted) = names_of_sets(set.of_samples);
    let mib =
        |bytes: Option<f64>| or_none(bytes.map(|b| format!("{:.1} MiB", b / f64::from(1 << 20))));
    let rows: Vec<Vec<String>> = [0, 25, 50, 75, 95, 100]
        .iter()
        .map(|&p| {
            let name = match p {
                0 => "min".to_owned(),
                100 => "max".to_owned(),
                p => format!("p{p}"),
            };
            vec![
                name,
                mib(set.percentile(p, |window| window.touched_bytes)),
                mib(set.percentile(p, |window| window.weighted_bytes)),
            ]
        })
        .collect();
    if set.windows.is_empty() {
        return Vec::new();
    }
    let mut parts = vec![Part::Table(strings(&["", touched, weighted]), rows)];
    if let Some(error) = set.most_error() {
        let text = format!(
            "Standard error of the estimates: at most {}.",
            percent(error)
        );
        parts.push(Part::Text(text));
    }
    parts
}

/// Phases, where there are several.
pub fn phases(figures: &Figures) -> Vec<Part> {
    let phases = &figures.phases;
    if phases.list.len() < 2 {
        return Vec::new();
    }
    let rows = phases.list.iter().take(figures.top.max(2)).map(|phase| {
        vec![
            format!("phase {}", phase.kind),
            units::time(phase.from_ns as f64),
            units::time(phase.until_ns.saturating_sub(phase.from_ns) as f64),
            print::bytes(phase.hot_bytes),
            or_none(phase.local_ratio.map(percent)),
        ]
    });
    let head = ["", "from", "length", "hot", "local"];
    let mut parts = vec![Part::Table(strings(&head), rows.collect())];
    let rest = phases.list.len().saturating_sub(figures.top.max(2));
    if rest > 0 {
        parts.push(Part::Text(format!("And {rest} more.")));
    }
    parts
}

/// What each node's memory read and wrote, over the whole recording.
pub fn traffic(figures: &Figures) -> Vec<Part> {
    let data = &figures.data;
    if data.traffic.is_empty() {
        return Vec::new();
    }
    let rows = data.nodes.iter().map(|&node| {
        // Over the intervals that tell.
        let mean = |of: fn(&Node) -> Option<f64>| {
            let rows = data.traffic.iter().filter(|row| row.node == node);
            let told = rows.filter_map(|row| Some((of(row)?, row.length_ns as f64)));
            let (sum, length) = told.fold((0.0, 0.0), |all, row| (all.0 + row.0, all.1 + row.1));
            (length > 0.0).then(|| sum / length)
        };
        let gbs = |of| or_none(mean(of).map(|gbs| format!("{gbs:.2} GB/s")));
        vec![
            format!("node{node}"),
            gbs(|row| row.read_bytes.map(|bytes| bytes as f64)),
            gbs(|row| row.write_bytes.map(|bytes| bytes as f64)),
            or_none(mean(|row| Some(row.utilisation? * row.length_ns as f64)).map(percent)),
        ]
    });
    let head = strings(&["node", "read", "written", "controller use"]);
    vec![Part::Table(head, rows.collect())]
}

/// Process by node, and from node to node.
pub fn residents(figures: &Figures) -> Vec<Part> {
    let nodes: Vec<String> = (0..figures.data.nodes.len())
        .map(|n| figures.node(n))
        .collect();
    let mut parts = Vec::new();
    if !figures.residents.is_empty() {
        let mut head = strings(&["process", "pid"]);
        head.extend(nodes.iter().cloned());
        head.push("total".to_owned());
        let row = |resident: &hither_recording::analysis::homes::Resident| {
            let mut row = vec![
                figures.data.process_name(resident.pid),
                resident.pid.to_string(),
            ];
            row.extend(resident.nodes.iter().map(|&bytes| print::bytes(bytes)));
            row.push(match resident.is_estimated {
                true => format!("about {}", print::bytes(resident.most_bytes)),
                false => print::bytes(resident.most_bytes),
            });
            row
        };
        let rows = figures
            .residents
            .iter()
            .take(figures.top)
            .map(row)
            .collect();
        parts.push(Part::Table(head, rows));
        if figures.residents.iter().any(|r| r.is_estimated) {
            parts.push(Part::Text(
                "\"about\": estimated from some of the pages; the others were counted.".to_owned(),
            ));
        }
    }
    if figures.moves.iter().flatten().any(|&pages| pages > 0) {
        let mut head = strings(&["from \\ to"]);
        head.extend(nodes.iter().cloned());
        let rows = figures.moves.iter().zip(&nodes).map(|(to, name)| {
            let mut row = vec![name.clone()];
            row.extend(to.iter().map(u64::to_string));
            row
        });
        parts.push(Part::Text(
            "Migrated pages (4 KiB): those that samples saw on one node and later on another."
                .to_owned(),
        ));
        parts.push(Part::Table(head, rows.collect()));
    }
    parts
}

/// What could not be read or told.
pub fn notes(figures: &Figures) -> Vec<Part> {
    figures.data.notes.iter().cloned().map(Part::Text).collect()
}
