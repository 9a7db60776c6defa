//! Rooflines of the machine: [`Ceiling`]s of each node's CPUs with each memory and each level of
//! caches.
//!
//! Memory and caches are as they are read, in bytes that the program asked for; the peak is that of
//! double precision by the widest instructions. Both are measured; a ridge is the one over the other.

use super::report::{or_dash, or_null, rounded, sample, table};
use crate::draw::{Ceiling, LineChart, Series, Shape, around, roofline};
use crate::terminal::Terminal;
use hither_linux::probe::flops::Precision;
use hither_linux::probe::{Flops, ProbeSample, ProbeWork, Report};
use serde_json::{Value, json};

/// What threads of a node can do with what a memory, or a level of caches, delivers to them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Roof<T> {
    /// Position of the node whose CPUs compute.
    pub from: usize,
    /// What is read.
    pub to: T,
    /// By one thread, or one on each CPU of the node.
    pub is_all: bool,
    /// Peak of these threads.
    pub gflops: ProbeSample,
    /// What they read.
    pub gbs: ProbeSample,
}

/// Position of a node with memory.
pub type Memory = usize;
/// A level of caches; 1 is next to the core.
pub type Level = u32;

impl<T> Roof<T> {
    /// Operations per byte from which on what is read is no limit; `None` where nothing was read.
    #[must_use]
    pub fn ridge(&self) -> Option<f64> {
        (self.gbs.median > 0.0).then(|| self.ceiling().ridge())
    }

    fn ceiling(&self) -> Ceiling {
        Ceiling {
            gflops: self.gflops.median,
            gbs: self.gbs.median,
        }
    }

    fn threads(&self) -> &'static str {
        if self.is_all { "all" } else { "one" }
    }
}

/// The widest instructions' double precision.
fn peak(measured: &Report) -> Option<&Flops> {
    let mut double = measured.flops.iter();
    double.find(|flops| flops.precision == Precision::Double)
}

/// By node with CPUs, then by memory, then by one thread and by all.
#[must_use]
pub fn roofs(measured: &Report) -> Vec<Roof<Memory>> {
    let read = measured
        .bandwidth
        .iter()
        .find(|one| one.work == ProbeWork::Read);
    let (Some(peak), Some(read)) = (peak(measured), read) else {
        return Vec::new();
    };
    let mut roofs = Vec::new();
    for from in 0..measured.cpu_nodes.len() {
        for to in 0..measured.memory_nodes.len() {
            for (is_all, gflops, gbs) in
                [(false, &peak.one, &read.one), (true, &peak.node, &read.all)]
            {
                roofs.extend(gflops[from].zip(gbs[from][to]).map(|(gflops, gbs)| Roof {
                    from,
                    to,
                    is_all,
                    gflops,
                    gbs,
                }));
            }
        }
    }
    roofs
}

/// The same with levels of caches instead of memories, by node with CPUs, the nearest level first; those
/// that were not measured are left out.
#[must_use]
pub fn cache_roofs(measured: &Report) -> Vec<Roof<Level>> {
    let Some(peak) = peak(measured) else {
        return Vec::new();
    };
    let mut roofs = Vec::new();
    for from in 0..measured.cpu_nodes.len() {
        for cache in &measured.caches {
            for (is_all, gflops, gbs) in [
                (false, &peak.one, &cache.one),
                (true, &peak.node, &cache.all),
            ] {
                roofs.extend(gflops[from].zip(gbs[from]).map(|(gflops, gbs)| Roof {
                    from,
                    to: cache.level,
                    is_all,
                    gflops,
                    gbs,
                }));
            }
        }
    }
    roofs
}

/// Peak floating point and ridges as tables.
#[must_use]
pub fn text(measured: &Report, terminal: Terminal) -> String {
    let mut text = "\npeak floating point, measured\n\n".to_owned();
    let mut rows = Vec::new();
    for flops in &measured.flops {
        let mut row = |threads: &str, on: &str, gflops: &Option<ProbeSample>| {
            let first = [
                flops.precision.name(),
                flops.instructions.name(),
                threads,
                on,
            ];
            let cells = first.map(str::to_owned).into_iter();
            rows.push(
                cells
                    .chain([or_dash(gflops.as_ref())])
                    .collect::<Vec<String>>(),
            );
        };
        for (node, (one, all)) in measured
            .cpu_nodes
            .iter()
            .zip(flops.one.iter().zip(&flops.node))
        {
            row("one", &node.to_string(), one);
            row("all", &node.to_string(), all);
        }
        if measured.cpu_nodes.len() > 1 {
            row("all", "every node", &flops.all);
        }
    }
    let head = ["precision", "instructions", "threads", "on", "GFLOP/s"];
    table(&mut text, &head.map(str::to_owned), rows, terminal);
    text.push_str(
        "\nroofline of double precision: peak and reading, measured, and one over the other\n\n",
    );
    let caches = cache_roofs(measured).into_iter();
    let caches = caches.map(|roof| row(measured, &roof, format!("L{}", roof.to)));
    let memories = roofs(measured).into_iter().map(|roof| {
        let to = measured.memory_nodes[roof.to].to_string();
        row(measured, &roof, to)
    });
    let rows = caches.chain(memories);
    let head = [
        "from",
        "to",
        "threads",
        "GFLOP/s",
        "GB/s",
        "ridge, FLOP/byte",
    ];
    table(
        &mut text,
        &head.map(str::to_owned),
        rows.collect(),
        terminal,
    );
    text
}

/// A row of the table of ridges.
fn row<T>(measured: &Report, roof: &Roof<T>, to: String) -> Vec<String> {
    let ridge = roof.ridge();
    vec![
        measured.cpu_nodes[roof.from].to_string(),
        to,
        roof.threads().to_owned(),
        rounded(&roof.gflops),
        rounded(&roof.gbs),
        ridge.map_or_else(String::new, |ridge| format!("{ridge:.2}")),
    ]
}

/// The fields `flops`, `roofline` and `caches` of `hither.probe/1`.
#[must_use]
pub fn json(measured: &Report) -> [Value; 3] {
    let known = |row: &[Option<ProbeSample>]| -> Value {
        row.iter().map(|one| or_null(one.as_ref())).collect()
    };
    let flops = measured.flops.iter().map(|flops| {
        json!({
            "precision": flops.precision.name(),
            "instructions": flops.instructions.name(),
            "one_gflops": known(&flops.one),
            "node_gflops": known(&flops.node),
            "all_gflops": or_null(flops.all.as_ref()),
        })
    });
    let roofs = roofs(measured).into_iter().map(|roof| {
        json!({
            "from": measured.cpu_nodes[roof.from].0,
            "to": measured.memory_nodes[roof.to].0,
            "threads": roof.threads(),
            "gflops": sample(&roof.gflops),
            "gbs": sample(&roof.gbs),
            "ridge_flops_per_byte": roof.ridge(),
        })
    });
    let caches = measured.caches.iter().map(|cache| {
        json!({
            "level": cache.level, "bytes": cache.bytes,
            "one_gbs": known(&cache.one), "all_gbs": known(&cache.all),
        })
    });
    [flops.collect(), roofs.collect(), caches.collect()]
}

/// A chart for each node with CPUs: a roof for each memory and each level of caches, one thread's for
/// its nearest, and what other instructions and single precision reach.
#[must_use]
pub fn charts(measured: &Report) -> Vec<LineChart> {
    let roofs = roofs(measured);
    let Some(peak) = peak(measured) else {
        return Vec::new();
    };
    let nodes = 0..measured.cpu_nodes.len();
    let charts = nodes.filter_map(|from| {
        let own: Vec<Roof<Memory>> = roofs.iter().copied().filter(|roof| roof.from == from).collect();
        let best = own.iter().filter(|roof| roof.is_all);
        let best = best.max_by(|one, other| one.gbs.median.total_cmp(&other.gbs.median))?;
        let mut caches = cache_roofs(measured);
        caches.retain(|roof| roof.from == from && roof.is_all);
        let ridges = own.iter().filter_map(Roof::ridge);
        let around = around(ridges.chain(caches.iter().filter_map(Roof::ridge)));
        Some(roofline(
            format!("Roofline of {}", measured.cpu_nodes[from]),
            format!(
                "measured: {} precision by {}, {} GFLOP/s by all CPUs and {} by one; memory and caches as they are read",
                peak.precision.name(),
                peak.instructions.name(),
                or_dash(peak.node[from].as_ref()),
                or_dash(peak.one[from].as_ref()),
            ),
            series(measured, from, (&own, &caches), best, around),
        ))
    });
    charts.collect()
}

fn series(
    measured: &Report,
    from: usize,
    (own, caches): (&[Roof<Memory>], &[Roof<Level>]),
    best: &Roof<Memory>,
    around: (f64, f64),
) -> Vec<Series> {
    let mut series = Vec::new();
    for roof in own.iter().filter(|roof| roof.is_all || roof.to == best.to) {
        let name = match roof.is_all {
            true => memory_name(measured, from, roof.to),
            false => "one thread".to_owned(),
        };
        series.push(Series {
            name: format!("{name}, {} GB/s", rounded(&roof.gbs)),
            colour: roof.to,
            shape: if roof.is_all {
                Shape::Line
            } else {
                Shape::Dashed
            },
            points: roof.ceiling().points(around),
        });
    }
    let colours = measured.memory_nodes.len();
    for (index, roof) in caches.iter().enumerate() {
        series.push(Series {
            name: format!("L{}, {} GB/s", roof.to, rounded(&roof.gbs)),
            colour: colours + index,
            shape: Shape::Line,
            points: roof.ceiling().points(around),
        });
    }
    // The solid lines come first; ceilings have colours of their own.
    series.sort_by_key(|one| one.shape == Shape::Dashed);
    let peak = peak(measured).map(|peak| (peak.precision, peak.instructions));
    let others = measured.flops.iter();
    let others = others.filter(|flops| Some((flops.precision, flops.instructions)) != peak);
    for (index, flops) in others.enumerate() {
        let Some(gflops) = flops.node[from] else {
            continue;
        };
        let roof = Roof { gflops, ..*best };
        let is_above = gflops.median > best.gflops.median;
        let points = roof.ceiling().points(around);
        // Below the peak the slope is drawn already, above it only beyond the ridge.
        let hidden = if is_above { best.ridge() } else { roof.ridge() };
        let from_there = points.into_iter().filter(|point| Some(point.0) >= hidden);
        let corner = hidden
            .filter(|_| is_above)
            .map(|x| (x, roof.ceiling().at(x)));
        series.push(Series {
            name: format!("{}, {} GFLOP/s", label(flops), rounded(&gflops)),
            colour: colours + caches.len() + index,
            shape: Shape::Dashed,
            points: corner.into_iter().chain(from_there).collect(),
        });
    }
    series
}

/// `node0, local`; without the place where there is one memory only.
fn memory_name(measured: &Report, from: usize, to: usize) -> String {
    let node = measured.memory_nodes[to];
    match (
        measured.memory_nodes.len(),
        node == measured.cpu_nodes[from],
    ) {
        (1, _) => node.to_string(),
        (_, true) => format!("{node}, local"),
        (_, false) => format!("{node}, remote"),
    }
}

/// What tells a ceiling from the peak.
fn label(flops: &Flops) -> &'static str {
    match flops.precision {
        Precision::Double => flops.instructions.name(),
        Precision::Single => "single",
    }
}

#[cfg(test)]
mod tests {
    use super::super::report::tests::{at, measured};
    use super::*;
    use hither_linux::probe::Cached;

    #[test]
    fn below_the_ridge_memory_is_the_limit_and_above_it_the_peak() {
        let roofs = roofs(&measured(&[0, 4]));
        assert_eq!(roofs.len(), 8, "two nodes, two memories, one and all");
        let roof = roofs[3];
        assert_eq!((roof.from, roof.to, roof.is_all), (0, 1, true));
        // 268 GFLOP/s and 134 GB/s meet at 2 FLOP/byte.
        assert_eq!(roof.ridge(), Some(2.0));
        assert_eq!(
            [0.5, 2.0, 100.0].map(|x| roof.ceiling().at(x)),
            [67.0, 268.0, 268.0]
        );
        assert_eq!(
            roof.ceiling().points((0.5, 8.0)),
            [(0.5, 67.0), (2.0, 268.0), (8.0, 268.0)]
        );
        assert_eq!(
            roof.ceiling().points((4.0, 8.0)),
            [(4.0, 268.0), (8.0, 268.0)]
        );
        let unread = Roof {
            gbs: ProbeSample::of(vec![0.0]),
            ..roof
        };
        assert_eq!(unread.ridge(), None);
    }

    #[test]
    fn without_floating_point_or_reading_there_is_no_roof() {
        let mut none = measured(&[0, 4]);
        none.flops.clear();
        assert_eq!((roofs(&none), charts(&none).len()), (Vec::new(), 0));
        let mut none = measured(&[0, 4]);
        none.bandwidth.remove(0);
        assert_eq!((roofs(&none), charts(&none).len()), (Vec::new(), 0));
    }

    #[test]
    fn tables_name_what_was_measured_and_where() {
        let text = text(&measured(&[0, 4]), Terminal::PIPE);
        for part in [
            "double     AVX2, FMA     one      node0       67.0\n",
            "double     AVX2, FMA     all      node4       268\n",
            "double     AVX2, FMA     all      every node  536\n",
            "single     AVX2, FMA     one      node0       134\n",
            "from   to     threads  GFLOP/s  GB/s  ridge, FLOP/byte\n",
            "node0  node4  all      268      134   2.00\n",
        ] {
            assert!(text.contains(part), "{part} is not in {text}");
        }
    }

    #[test]
    fn the_document_has_every_peak_and_ridge() {
        let [flops, roofline, _] = json(&measured(&[0, 4]));
        assert_eq!(flops[0]["instructions"], "AVX2, FMA");
        assert_eq!(flops[0]["all_gflops"]["median"], 536.0);
        assert_eq!(flops[1]["node_gflops"][1]["median"], 134.0);
        assert_eq!(flops[2]["precision"], "single");
        let far = &roofline[3];
        assert_eq!(
            (far["to"].clone(), far["threads"].clone()),
            (4.into(), "all".into())
        );
        assert_eq!(far["ridge_flops_per_byte"], 2.0);
        assert_eq!(far["gbs"]["spread"], 0.02);
    }

    #[test]
    fn a_chart_has_a_roof_for_each_memory_and_ceilings_below_and_above() {
        let charts = charts(&measured(&[0, 4]));
        assert_eq!(charts.len(), 2);
        let chart = &charts[0];
        let names: Vec<&str> = chart.series.iter().map(|one| one.name.as_str()).collect();
        assert_eq!(
            names,
            [
                "node0, local, 80.0 GB/s",
                "node4, remote, 134 GB/s",
                "one thread, 134 GB/s",
                "SSE2, 134 GFLOP/s",
                "single, 536 GFLOP/s",
            ]
        );
        // The least ridge is one thread's at 67 / 134, the greatest that of all at 268 / 80.
        let last = 268.0 / 80.0 * 16.0;
        assert_eq!(chart.series[3].points, [(1.0, 134.0), (last, 134.0)]);
        assert_eq!(
            chart.series[4].points,
            [(2.0, 268.0), (4.0, 536.0), (last, 536.0)]
        );
        let svg = chart.svg();
        for part in [
            "(FLOP/byte)",
            "(GFLOP/s)",
            "Roofline of node0",
            "double precision by AVX2, FMA",
        ] {
            assert!(svg.contains(part), "{part} is not in {svg}");
        }
    }

    /// With a first level that all four threads have, and a second that four cannot tell from it.
    fn with_caches() -> Report {
        let mut with = measured(&[0, 4]);
        let level = |level, bytes, one, all: Option<f64>| Cached {
            level,
            bytes,
            one: vec![Some(at(one)); 2],
            all: vec![all.map(at); 2],
        };
        with.caches = vec![
            level(1, 32 << 10, 268.0, Some(1072.0)),
            level(2, 1 << 20, 134.0, None),
        ];
        with
    }

    #[test]
    fn caches_are_roofs_above_those_of_memory() {
        let with = with_caches();
        let roofs: Vec<_> = cache_roofs(&with)
            .iter()
            .map(|roof| (roof.from, roof.to, roof.is_all, roof.ridge()))
            .collect();
        // 67 GFLOP/s over 268 and 134 GB/s, and 268 over 1072.
        let of = |from| {
            [
                (from, 1, false, Some(0.25)),
                (from, 1, true, Some(0.25)),
                (from, 2, false, Some(0.5)),
            ]
        };
        assert_eq!(roofs, [of(0), of(1)].concat());
        let text = text(&with, Terminal::PIPE);
        for part in [
            "node0  L1     all      268      1072  0.25\n",
            "node4  L2     one      67.0     134   0.50\n",
        ] {
            assert!(text.contains(part), "{part} is not in {text}");
        }
        assert!(!text.contains("L2     all"), "{text}");
        let [_, _, caches] = json(&with);
        assert_eq!(caches[0]["bytes"], 32 << 10);
        assert_eq!(caches[0]["all_gbs"][1]["median"], 1072.0);
        assert_eq!(caches[1]["all_gbs"], json!([null, null]));
        let chart = &charts(&with)[0];
        let names: Vec<&str> = chart.series.iter().map(|one| one.name.as_str()).collect();
        assert_eq!(
            names[..4],
            [
                "node0, local, 80.0 GB/s",
                "node4, remote, 134 GB/s",
                "L1, 1072 GB/s",
                "one thread, 134 GB/s",
            ]
        );
        // From a sixteenth of the least ridge on, which is the cache's now.
        let first = 0.25 / 16.0;
        assert_eq!(
            chart.series[2].points[..2],
            [(first, first * 1072.0), (0.25, 268.0)]
        );
        assert!(chart.svg().contains("L1, 1072 GB/s"));
        // Colours tell all of them apart.
        let colours = chart
            .series
            .iter()
            .filter(|one| one.name != "one thread, 134 GB/s");
        let colours: std::collections::BTreeSet<usize> = colours.map(|one| one.colour).collect();
        assert_eq!(colours.len(), chart.series.len() - 1);
    }
}
