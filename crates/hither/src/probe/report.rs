//! What was measured as tables, as `hither.probe/1` (`docs/cli.md`) and as a chart.

use super::roofline;
use crate::draw::{Axis, LineChart, Scale, Series, Shape, stacked};
use crate::print::{self, Table};
use crate::terminal::Terminal;
use crate::units::short_bytes;
use hither_core::ids::NodeId;
use hither_linux::probe::{self, ProbeSample};
use serde_json::{Value, json};
use std::collections::BTreeSet;

/// Rounds that differ by more than this are said.
const NOISY: f64 = 0.1;

/// A measurement and how it was made.
pub struct Report {
    /// The figures.
    pub measured: probe::Report,
    /// Rounds behind each of them.
    pub rounds: usize,
}

fn node_names(nodes: &[NodeId]) -> Vec<String> {
    nodes.iter().map(NodeId::to_string).collect()
}

/// The median; two digits of what is small, so that it is not taken for nothing.
pub(super) fn rounded(sample: &ProbeSample) -> String {
    match sample.median {
        median if median < 1.0 => format!("{median:.*}", digits(median)),
        median if median < 100.0 => format!("{median:.1}"),
        median => format!("{median:.0}"),
    }
}

/// Decimals that show two digits of a figure below 1.
pub(super) fn digits(figure: f64) -> usize {
    let zeros = -figure.abs().max(1e-12).log10().floor();
    1 + (zeros.max(1.0) as usize)
}

/// The same; a dash for what was not measured.
pub(super) fn or_dash(sample: Option<&ProbeSample>) -> String {
    print::or_dash(sample, rounded)
}

pub(super) fn sample(sample: &ProbeSample) -> Value {
    json!({"median": sample.median, "spread": sample.spread})
}

/// `null` for what was not measured.
pub(super) fn or_null(of: Option<&ProbeSample>) -> Value {
    of.map_or(Value::Null, sample)
}

fn matrix<'a, R>(rows: impl IntoIterator<Item = R>) -> Value
where
    R: IntoIterator<Item = Option<&'a ProbeSample>>,
{
    let row = |row: R| row.into_iter().map(or_null).collect::<Value>();
    rows.into_iter().map(row).collect()
}

fn known(rows: &[Vec<Option<ProbeSample>>]) -> Value {
    matrix(rows.iter().map(|row| row.iter().map(Option::as_ref)))
}

impl Report {
    /// For people.
    #[must_use]
    pub fn text(&self, terminal: Terminal) -> String {
        let measured = &self.measured;
        let memory = node_names(&measured.memory_nodes);
        let cpus = node_names(&measured.cpu_nodes);
        let mut text = String::new();
        let head = |first: &[&str]| -> Vec<String> {
            let first = first.iter().map(|name| (*name).to_owned());
            first.chain(memory.iter().cloned()).collect()
        };
        text.push_str("latency of a dependent load, ns\n\n");
        let rows = cpus.iter().zip(&measured.latency).map(|(node, row)| {
            let cells = row.iter().map(rounded);
            std::iter::once(node.clone()).chain(cells).collect()
        });
        table(&mut text, &head(&["from"]), rows.collect(), terminal);
        text.push_str("\nbandwidth, GB/s\n\n");
        let mut rows = Vec::new();
        for work in &measured.bandwidth {
            for (threads, matrix) in [("one", &work.one), ("all", &work.all)] {
                for (node, row) in cpus.iter().zip(matrix) {
                    let first = [work.work.name(), threads, node].map(str::to_owned);
                    let cells = row.iter().map(|cell| or_dash(cell.as_ref()));
                    rows.push(first.into_iter().chain(cells).collect());
                }
            }
        }
        let head = head(&["work", "threads", "from"]);
        let head: Vec<&str> = head.iter().map(String::as_str).collect();
        text.push_str(&Table::new(&head, &rows).keys(3).text(terminal));
        text.push_str("\nreading the nearest memory\n\n");
        let mut rows = Vec::new();
        for (node, row) in cpus.iter().zip(&measured.scaling) {
            for (threads, gbs) in row {
                rows.push(vec![node.clone(), threads.to_string(), rounded(gbs)]);
            }
        }
        let head = ["from", "threads", "GB/s"].map(str::to_owned);
        table(&mut text, &head, rows, terminal);
        text.push_str(&self.caches(terminal));
        text.push_str(&self.curves(terminal));
        text.push_str(&roofline::text(measured, terminal));
        // Last, so that it is what is seen when the tables have run through.
        text.push_str("\nsummary\n\n");
        text.push_str(&self.summary());
        text
    }

    fn caches(&self, terminal: Terminal) -> String {
        let measured = &self.measured;
        let mut rows = Vec::new();
        for cache in &measured.caches {
            for (threads, row) in [("one", &cache.one), ("all", &cache.all)] {
                for (node, gbs) in measured.cpu_nodes.iter().zip(row) {
                    let gbs = or_dash(gbs.as_ref());
                    let size = short_bytes(cache.bytes);
                    let level = format!("L{}", cache.level);
                    rows.push(vec![level, size, threads.to_owned(), node.to_string(), gbs]);
                }
            }
        }
        let mut text = String::new();
        if !rows.is_empty() {
            text.push_str("\nreading caches\n\n");
            let head = ["cache", "size", "threads", "from", "GB/s"].map(str::to_owned);
            table(&mut text, &head, rows, terminal);
        }
        text
    }

    fn curves(&self, terminal: Terminal) -> String {
        let measured = &self.measured;
        let mut text = String::new();
        let owned = |names: &[&str]| {
            names
                .iter()
                .map(|name| (*name).to_owned())
                .collect::<Vec<_>>()
        };
        let mut rows = Vec::new();
        for (node, points) in measured.cpu_nodes.iter().zip(&measured.loaded) {
            for point in points {
                rows.push(vec![
                    node.to_string(),
                    rounded(&point.gbs),
                    rounded(&point.ns),
                ]);
            }
        }
        if !rows.is_empty() {
            text.push_str(
                "\nlatency of the nearest memory while the node's other CPUs read it\n\n",
            );
            table(&mut text, &owned(&["from", "GB/s", "ns"]), rows, terminal);
        }
        text.push_str("\nlatency by size of the working set\n\n");
        let sets = measured.sets.iter();
        let rows = sets.map(|(bytes, ns)| vec![short_bytes(*bytes), rounded(ns)]);
        table(&mut text, &owned(&["size", "ns"]), rows.collect(), terminal);
        if !measured.pairs.is_empty() {
            text.push_str("\na line from one core to another, ns\n\n");
            let rows = measured.pairs.iter().map(|pair| {
                let [one, other] = pair.cpus.map(|cpu| cpu.to_string());
                let shares = if pair.shares_cache { "yes" } else { "no" };
                vec![one, other, shares.to_owned(), rounded(&pair.ns)]
            });
            let head = owned(&["from", "to", "one cache", "ns"]);
            table(&mut text, &head, rows.collect(), terminal);
        }
        text
    }

    /// What follows from it, and how far it can be trusted.
    fn summary(&self) -> String {
        let measured = &self.measured;
        let mut text = String::new();
        let cells = || {
            measured
                .latency
                .iter()
                .flatten()
                .map(|sample| sample.median)
        };
        let (least, most) = (
            cells().fold(f64::MAX, f64::min),
            cells().fold(0.0, f64::max),
        );
        let factor = most / least;
        text.push_str(&match measured.memory_nodes.len() {
            1 => format!("one node with memory: {least:.0} ns, placement cannot matter here\n"),
            _ => format!(
                "the farthest memory is {factor:.2} times as far as the nearest: {most:.0} and \
                 {least:.0} ns\n"
            ),
        });
        let noise = measured.noise();
        text.push_str(&format!(
            "{} rounds, which differ by {:.1} % (median){}; latency in {}{}\n",
            self.rounds,
            noise * 100.0,
            if noise > NOISY {
                ": noisy, other programs run or the host is shared"
            } else {
                ""
            },
            short_bytes(measured.bytes >> 20 << 20),
            if measured.huge {
                " of huge pages"
            } else {
                " of small pages: TLB misses are part of it"
            },
        ));
        if !measured.left_out.is_empty() {
            text.push_str(&format!(
                "not measured, as threads were given no time on their CPUs (stop what else runs there): \
                 {}\n",
                measured.left_out.join("; ")
            ));
        }
        text
    }

    /// For programs.
    #[must_use]
    pub fn json(&self) -> String {
        let measured = &self.measured;
        let bandwidth: Value = (measured.bandwidth.iter())
            .map(|work| {
                json!({
                    "work": work.work.name(),
                    "one_gbs": known(&work.one),
                    "all_gbs": known(&work.all),
                })
            })
            .collect();
        let scaling: Value = (measured.scaling.iter())
            .map(|row| {
                let points = row.iter();
                let point = |(threads, gbs): &(usize, ProbeSample)| {
                    json!({"threads": threads, "gbs": sample(gbs)})
                };
                points.map(point).collect::<Value>()
            })
            .collect();
        let loaded: Value = (measured.loaded.iter())
            .map(|row| {
                let points = row.iter();
                let point = |point: &probe::Loaded| {
                    json!({"gbs": sample(&point.gbs), "ns": sample(&point.ns)})
                };
                points.map(point).collect::<Value>()
            })
            .collect();
        let sets: Value = (measured.sets.iter())
            .map(|(bytes, ns)| json!({"bytes": bytes, "ns": sample(ns)}))
            .collect();
        let pairs: Value = (measured.pairs.iter())
            .map(|pair| {
                json!({
                    "cpus": pair.cpus.map(|cpu| cpu.0),
                    "shares_cache": pair.shares_cache,
                    "ns": sample(&pair.ns),
                })
            })
            .collect();
        let ids = |nodes: &[NodeId]| nodes.iter().map(|node| node.0).collect::<Vec<_>>();
        let [flops, roofs, caches] = roofline::json(measured);
        let document = json!({
            "schema": "hither.probe/1",
            "rounds": self.rounds,
            "noise": measured.noise(),
            "huge_pages": measured.huge,
            "bytes": measured.bytes,
            "left_out": measured.left_out,
            "cpu_nodes": ids(&measured.cpu_nodes),
            "memory_nodes": ids(&measured.memory_nodes),
            "latency_ns": matrix(measured.latency.iter().map(|row| row.iter().map(Some))),
            "bandwidth": bandwidth,
            "scaling": scaling,
            "loaded": loaded,
            "sets": sets,
            "pairs": pairs,
            "caches": caches,
            "flops": flops,
            "roofline": roofs,
        });
        print::json(document)
    }

    /// As charts, those of curves with a point at least.
    #[must_use]
    pub fn svg(&self) -> String {
        let measured = &self.measured;
        let by_node = |rows: &[Vec<(f64, f64)>]| -> Vec<Series> {
            let rows = measured.cpu_nodes.iter().zip(rows).enumerate();
            let rows = rows.filter(|(_, (_, points))| !points.is_empty());
            rows.map(|(colour, (node, points))| Series {
                name: node.to_string(),
                colour,
                shape: Shape::Line,
                points: points.clone(),
            })
            .collect()
        };
        let sets: Vec<(f64, f64)> = (measured.sets.iter())
            .map(|(bytes, ns)| (*bytes as f64, ns.median))
            .collect();
        let scaling: Vec<Vec<(f64, f64)>> = (measured.scaling.iter())
            .map(|row| {
                let points = row.iter();
                points
                    .map(|(threads, gbs)| (*threads as f64, gbs.median))
                    .collect()
            })
            .collect();
        let loaded: Vec<Vec<(f64, f64)>> = (measured.loaded.iter())
            .map(|row| {
                let points = row.iter().map(|point| (point.gbs.median, point.ns.median));
                let mut points: Vec<(f64, f64)> = points.collect();
                points.sort_by(|one, other| one.0.total_cmp(&other.0));
                points
            })
            .collect();
        let ticks = measured.sets.iter().map(|(bytes, _)| *bytes);
        let counts = measured
            .scaling
            .iter()
            .flatten()
            .map(|(threads, _)| *threads);
        let counts = std::iter::once(0).chain(BTreeSet::from_iter(counts));
        let charts = [
            LineChart {
                title: "Latency by size of the working set".to_owned(),
                subtitle: "dependent loads in random order, nearest memory".to_owned(),
                x: Axis {
                    ticks: ticks
                        .filter(|bytes| bytes.is_power_of_two() && bytes.trailing_zeros() % 2 == 1)
                        .map(|bytes| (bytes as f64, short_bytes(bytes)))
                        .collect(),
                    ..Axis::new("working set (bytes, logarithmic)", Scale::Logarithmic)
                },
                y: Axis::new("time of a load (ns)", Scale::Linear),
                series: by_node(&[sets]),
            },
            LineChart {
                title: "Latency under load".to_owned(),
                subtitle: "dependent loads while the node's other CPUs read the nearest memory"
                    .to_owned(),
                x: Axis::new("read by the others (GB/s)", Scale::Linear),
                y: Axis::new("time of a load (ns)", Scale::Linear),
                series: by_node(&loaded),
            },
            LineChart {
                title: "Bandwidth by threads".to_owned(),
                subtitle: "reading the nearest memory".to_owned(),
                x: Axis {
                    ticks: counts
                        .map(|count| (count as f64, count.to_string()))
                        .collect(),
                    ..Axis::new("threads (count)", Scale::Linear)
                },
                y: Axis::new("bandwidth (GB/s)", Scale::Linear),
                series: by_node(&scaling),
            },
        ];
        stacked(
            &charts
                .into_iter()
                .chain(roofline::charts(measured))
                .filter(|chart| !chart.series.is_empty())
                .collect::<Vec<_>>(),
        )
    }
}

pub(super) fn table(
    text: &mut String,
    head: &[String],
    rows: Vec<Vec<String>>,
    terminal: Terminal,
) {
    let head: Vec<&str> = head.iter().map(String::as_str).collect();
    text.push_str(&Table::new(&head, &rows).text(terminal));
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use hither_core::ids::CpuId;
    use hither_linux::probe::flops::{Instructions, Precision};
    use hither_linux::probe::{Bandwidth, Flops, Loaded, Pair, ProbeWork};

    pub fn at(median: f64) -> ProbeSample {
        ProbeSample {
            median,
            spread: 0.02,
        }
    }

    /// Of a machine with two such nodes.
    pub fn measured(nodes: &[u32; 2]) -> probe::Report {
        let latency = vec![vec![at(80.0), at(134.0)], vec![at(135.0), at(81.0)]];
        let some = |row: &Vec<ProbeSample>| row.iter().copied().map(Some).collect();
        let matrix = || {
            latency
                .iter()
                .map(some)
                .collect::<Vec<Vec<Option<ProbeSample>>>>()
        };
        let nodes: Vec<NodeId> = nodes.iter().copied().map(NodeId).collect();
        probe::Report {
            cpu_nodes: nodes.clone(),
            memory_nodes: nodes,
            latency: latency.clone(),
            bandwidth: vec![
                Bandwidth {
                    work: ProbeWork::Read,
                    one: matrix(),
                    all: matrix(),
                },
                Bandwidth {
                    work: ProbeWork::Write,
                    one: matrix(),
                    all: matrix(),
                },
            ],
            scaling: vec![vec![(1, at(8.25)), (2, at(16.5))], vec![(1, at(8.5))]],
            loaded: vec![
                vec![Loaded {
                    gbs: at(7.5),
                    ns: at(99.0),
                }],
                Vec::new(),
            ],
            caches: Vec::new(),
            sets: vec![(8 << 10, at(1.5)), (12 << 10, at(2.5)), (1 << 30, at(80.0))],
            pairs: vec![Pair {
                cpus: [CpuId(0), CpuId(8)],
                shares_cache: false,
                ns: at(120.0),
            }],
            flops: vec![
                flops(Precision::Double, Instructions::Fma),
                flops(Precision::Double, Instructions::Sse2),
                flops(Precision::Single, Instructions::Fma),
            ],
            left_out: Vec::new(),
            huge: true,
            bytes: 1 << 30,
        }
    }

    /// By one thread 67 GFLOP/s, four times as much by a node's: of the widest, half by others.
    fn flops(precision: Precision, instructions: Instructions) -> Flops {
        let times = match (precision, instructions) {
            (Precision::Single, _) => 2.0,
            (_, Instructions::Sse2) => 0.5,
            _ => 1.0,
        };
        Flops {
            instructions,
            precision,
            one: vec![Some(at(67.0 * times)); 2],
            node: vec![Some(at(268.0 * times)); 2],
            all: Some(at(536.0 * times)),
        }
    }

    fn report() -> Report {
        Report {
            measured: measured(&[0, 4]),
            rounds: 5,
        }
    }

    #[test]
    fn the_tables_fit_and_the_summary_is_last() {
        print::assert_fits(|terminal| report().text(terminal));
        let text = report().text(Terminal::PIPE);
        assert!(
            text.starts_with("latency of a dependent load, ns\n"),
            "{text}"
        );
        let end = format!("\nsummary\n\n{}", report().summary());
        assert!(text.ends_with(&end) && end.lines().count() == 5, "{text}");
    }

    #[test]
    fn tables_say_what_follows_and_name_nodes() {
        let text = report().text(Terminal::PIPE);
        for part in [
            "1.69 times as far as the nearest: 135 and 80 ns",
            "differ by 2.0 % (median); latency in 1G of huge pages",
            "from   node0  node4\nnode0  80.0   134\nnode4  135    81.0\n",
            "read   one      node4  135    81.0",
            "node0  2        16.5",
            "node0  7.5   99.0",
            "12K   2.5",
            "cpu0  cpu8  no         120",
        ] {
            assert!(text.contains(part), "{part} is not in {text}");
        }
        let mut noisy = report();
        noisy.measured.flops.clear();
        noisy.measured.latency.clear();
        noisy.measured.bandwidth.clear();
        noisy.measured.scaling = vec![vec![(
            1,
            ProbeSample {
                median: 1.0,
                spread: 0.3,
            },
        )]];
        noisy.measured.latency.push(vec![ProbeSample {
            median: 9.0,
            spread: 0.3,
        }]);
        assert!(
            noisy
                .text(Terminal::PIPE)
                .contains("30.0 % (median): noisy"),
            "{}",
            noisy.text(Terminal::PIPE)
        );
    }

    #[test]
    fn the_document_has_every_figure() {
        let document: Value = serde_json::from_str(&report().json()).unwrap();
        assert_eq!(document["schema"], "hither.probe/1");
        assert_eq!(document["memory_nodes"], json!([0, 4]));
        assert_eq!(document["latency_ns"][1][0]["median"], 135.0);
        assert_eq!(document["bandwidth"][0]["all_gbs"][0][1]["spread"], 0.02);
        assert_eq!(document["scaling"][0][1]["threads"], 2);
        assert_eq!(document["loaded"][1], json!([]));
        assert_eq!(document["sets"][2]["bytes"], 1 << 30);
        assert_eq!(document["pairs"][0]["cpus"], json!([0, 8]));
    }

    #[test]
    fn what_was_not_measured_is_a_dash_and_null_and_said() {
        let mut report = report();
        let measured = &mut report.measured;
        measured.bandwidth[0].all[1][0] = None;
        measured.flops[0].one[0] = None;
        measured.left_out = vec!["read, 4 on node4, memory of node0".to_owned()];
        let text = report.text(Terminal::PIPE);
        for part in [
            "read   all      node4  –      81.0",
            "threads were given no time on their CPUs (stop what else runs there): read, 4 on node4",
        ] {
            assert!(text.contains(part), "{part} is not in {text}");
        }
        let peak = text.lines().find(|line| line.starts_with("double"));
        let words: Vec<&str> = peak.unwrap().split_whitespace().collect();
        assert_eq!(words[words.len() - 3..], ["one", "node0", "–"]);
        let document: Value = serde_json::from_str(&report.json()).unwrap();
        assert_eq!(document["bandwidth"][0]["all_gbs"][1][0], Value::Null);
        assert_eq!(document["flops"][0]["one_gflops"][0], Value::Null);
        assert_eq!(document["left_out"].as_array().unwrap().len(), 1);
        // One thread's roofs of node0 and all threads' of node4 with node0 are missing.
        assert_eq!(document["roofline"].as_array().unwrap().len(), 8 - 3);
        assert!(report.svg().contains("by all CPUs and – by one"));
    }

    #[test]
    fn what_is_small_is_not_taken_for_nothing() {
        let told = [0.0044, 0.044, 0.94, 9.94, 99.4, 994.0].map(|figure| rounded(&at(figure)));
        assert_eq!(told, ["0.0044", "0.044", "0.94", "9.9", "99.4", "994"]);
    }

    #[test]
    fn each_curve_has_a_chart_with_a_line_per_node() {
        let svg = report().svg();
        for part in [
            "working set (bytes, logarithmic)",
            "time of a load (ns)",
            ">8K</text>",
            "Latency under load",
            "read by the others (GB/s)",
            "Bandwidth by threads",
            "<title>node4: 1, 8.50</title>",
        ] {
            assert!(svg.contains(part), "{part} is not in {svg}");
        }
        let mut report = report();
        report.measured.loaded = vec![Vec::new(); 2];
        let svg = report.svg();
        assert!(!svg.contains("under load"), "no point, no chart: {svg}");
        assert_eq!(
            svg.matches("role=\"img\"").count(),
            4,
            "two of them are rooflines"
        );
    }
}
