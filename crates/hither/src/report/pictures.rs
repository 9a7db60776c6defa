//! Pictures of a recording.

use super::figures::Figures;
use crate::draw::{Axis, Heatmap, LineChart, Row, Scale, Series, Shape};
use crate::print;
use std::collections::BTreeMap;

/// ns in a second.
const SECOND: f64 = 1e9;

/// Heat by address and time.
pub fn heat(figures: &Figures) -> Option<Heatmap> {
    let heat = figures.heat.as_ref()?;
    // What lies between was not seen, which of samples does not say that nobody used it.
    let seen = match (heat.of_samples, figures.data.is_of_writes()) {
        (true, _) => "sampled",
        (false, true) => "seen written",
        (false, false) => "seen accessed",
    };
    let rows = (0..heat.rows()).map(|row| {
        let start = heat.addresses(row).start;
        let below = row.checked_sub(1).map(|row| heat.addresses(row).end);
        let gap = below
            .filter(|&end| end < start)
            .map(|end| format!("{} not {seen}", print::size((start - end) >> 10)));
        Row {
            label: match heat.node(&figures.data.meta, row) {
                Some(node) => format!("node{node} {start:x}"),
                None => format!("{start:x}"),
            },
            gap,
        }
    });
    let of = match heat.pid {
        Some(pid) => format!("{} (pid {pid})", figures.data.process_name(pid)),
        None => "physical memory".to_owned(),
    };
    let (value_title, about) = match (heat.of_samples, figures.data.is_of_writes()) {
        (true, _) => ("accesses (1/s per MiB)", "sampled accesses, scaled to all"),
        (false, false) => ("accessed (share of checks)", "access bits of regions"),
        (false, true) => (
            "written (share of pages)",
            "soft-dirty bits: writes, no reads",
        ),
    };
    Some(Heatmap {
        title: format!("Heat of {of}"),
        subtitle: about.to_owned(),
        x_title: "time (s)".to_owned(),
        y_title: "address (hexadecimal)".to_owned(),
        value_title: value_title.to_owned(),
        value_scale: match heat.of_samples {
            true => Scale::Logarithmic,
            false => Scale::Linear,
        },
        x: heat.times_ns.iter().map(|&ns| ns as f64 / SECOND).collect(),
        rows: rows.collect(),
        cells: heat.cells.clone(),
    })
}

/// The working set over time.
pub fn working_set(figures: &Figures) -> Option<LineChart> {
    let set = &figures.working_set;
    if set.windows.len() < 2 {
        return None;
    }
    let series =
        |name: &str, colour, of: fn(&hither_recording::analysis::working_set::Window) -> f64| {
            let points = set.windows.iter().map(|window| {
                (
                    window.time_ns as f64 / SECOND,
                    of(window) / f64::from(1 << 20),
                )
            });
            Series {
                name: name.to_owned(),
                colour,
                shape: Shape::Line,
                points: points.collect(),
            }
        };
    let (touched, weighted) = names_of_sets(set.of_samples);
    Some(LineChart {
        title: "Working set over time".to_owned(),
        subtitle: "all watched processes".to_owned(),
        x: Axis::new("time (s)", Scale::Linear),
        y: Axis::new("working set (MiB)", Scale::Linear),
        series: vec![
            series(touched, 0, |window| window.touched_bytes),
            series(weighted, 1, |window| window.weighted_bytes),
        ],
    })
}

/// What the two figures of a working set are called.
pub fn names_of_sets(of_samples: bool) -> (&'static str, &'static str) {
    match of_samples {
        true => ("sampled pages", "estimated"),
        false => ("touched", "weighted"),
    }
}

/// What each node's memory read and wrote, over time.
pub fn traffic(figures: &Figures) -> Option<LineChart> {
    let mut nodes: BTreeMap<u32, Vec<(f64, f64)>> = BTreeMap::new();
    for row in &figures.data.traffic {
        if let (Some(read), Some(written)) = (row.read_bytes, row.write_bytes) {
            // Bytes per ns are GB/s.
            let gbs = (read as f64 + written as f64) / row.length_ns.max(1) as f64;
            let points = nodes.entry(row.node).or_default();
            points.push((row.time_ns as f64 / SECOND, gbs));
        }
    }
    let series: Vec<Series> = nodes
        .into_iter()
        .enumerate()
        .map(|(colour, (node, points))| Series {
            name: format!("node{node}"),
            colour,
            shape: Shape::Line,
            points,
        })
        .collect();
    (!series.is_empty()).then(|| LineChart {
        title: "Memory traffic by NUMA node over time".to_owned(),
        subtitle: "bytes that each node's memory read and wrote".to_owned(),
        x: Axis::new("time (s)", Scale::Linear),
        y: Axis::new("traffic (GB/s)", Scale::Linear),
        series,
    })
}
