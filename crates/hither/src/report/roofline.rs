//! A run's place below the machine's roofline (Williams, Waterman and Patterson, 2009): the ceilings
//! are measured by `hither probe`, the place by the counters of the recording.

use super::document::Part;
use crate::draw::{Ceiling, LineChart, Series, Shape, around, roofline};
use crate::probe;
use anyhow::bail;
use hither_recording::analysis::verdict::Overall;
use serde_json::{Value, json};
use std::path::Path;

/// What the run is compared with.
const MEMORY: &str = "local memory";

/// What all CPUs can do, each with the memory that is fastest for it, and what the run did.
#[derive(Clone, Debug, PartialEq)]
pub struct Roofline {
    /// Peak of double precision, and what memory delivers.
    pub ceiling: Ceiling,
    /// The same with levels of caches, the nearest first, and with the memory that is slowest for each
    /// CPU, with their names; what was not measured is left out.
    pub others: Vec<(String, Ceiling)>,
    /// What the run did, as a mean.
    pub gflops: f64,
    /// Its operations per byte of memory traffic.
    pub flops_per_byte: f64,
}

impl Roofline {
    /// Ceilings of a `hither.probe/1`, and the place of a run.
    ///
    /// # Errors
    /// The file cannot be read, is no such document or has no roofline; the recording has no
    /// floating-point operations.
    pub fn read(path: &Path, overall: &Overall) -> anyhow::Result<Self> {
        let probe = probe::read("--roofline", path)?;
        let ceiling = ceiling(&probe).ok_or_else(|| probe::without_roofline("--roofline", path))?;
        let place = overall.flops_per_us.zip(overall.flops_per_byte());
        let Some((flops_per_us, flops_per_byte)) = place.filter(|&(flops, _)| flops > 0.0) else {
            bail!(
                "--roofline: this recording has no floating-point operations; the tracker opium \
                 counts them, in the lab; leave --roofline out"
            );
        };
        Ok(Self {
            others: others(&probe, ceiling),
            ceiling,
            gflops: flops_per_us / 1e3,
            flops_per_byte,
        })
    }

    /// A sentence and a chart.
    pub fn parts(&self) -> Vec<Part> {
        let reachable = self.ceiling.at(self.flops_per_byte);
        let limit = match self.flops_per_byte < self.ceiling.ridge() {
            true => "memory",
            false => "the peak of floating point",
        };
        let sentence = format!(
            "The run did {:.3} GFLOP/s at {:.3} FLOP a byte of memory traffic. There {limit} allows \
             {reachable:.3} GFLOP/s, of which that is {:.1} %. (Ridge: {:.2} FLOP a byte; ceilings: \
             all CPUs, {:.1} GFLOP/s and {:.1} GB/s, measured by hither probe.)",
            self.gflops,
            self.flops_per_byte,
            100.0 * self.gflops / reachable,
            self.ceiling.ridge(),
            self.ceiling.gflops,
            self.ceiling.gbs,
        );
        let mut parts = vec![Part::Text(sentence)];
        if !self.others.is_empty() {
            let rows = self.ceilings().map(|(name, ceiling)| {
                vec![
                    name.to_owned(),
                    format!("{:.1}", ceiling.gbs),
                    format!("{:.3}", ceiling.at(self.flops_per_byte)),
                    format!("{:.2}", ceiling.ridge()),
                ]
            });
            let head = ["all CPUs read", "GB/s", "GFLOP/s there", "ridge, FLOP/byte"];
            parts.push(Part::Table(head.map(str::to_owned).into(), rows.collect()));
        }
        parts.push(Part::Chart(self.chart()));
        parts
    }

    /// All of them with their names, the highest first.
    fn ceilings(&self) -> impl Iterator<Item = (&str, &Ceiling)> {
        let others = self.others.iter();
        let mut all: Vec<(&str, &Ceiling)> = others.map(|one| (one.0.as_str(), &one.1)).collect();
        all.push((MEMORY, &self.ceiling));
        all.sort_by(|one, other| other.1.gbs.total_cmp(&one.1.gbs));
        all.into_iter()
    }

    fn chart(&self) -> LineChart {
        let ridges: Vec<f64> = self.ceilings().map(|one| one.1.ridge()).collect();
        let around = around(ridges.into_iter().chain([self.flops_per_byte]));
        let mut series = vec![
            Series {
                name: format!("{MEMORY}, {:.1} GB/s", self.ceiling.gbs),
                colour: 0,
                shape: Shape::Line,
                points: self.ceiling.points(around),
            },
            Series {
                name: "this run".to_owned(),
                colour: 1,
                shape: Shape::Points,
                points: vec![(self.flops_per_byte, self.gflops)],
            },
        ];
        // What the traffic of memory is counted against is solid.
        series.extend(
            self.others
                .iter()
                .enumerate()
                .map(|(index, (name, ceiling))| Series {
                    name: format!("{name}, {:.1} GB/s", ceiling.gbs),
                    colour: 2 + index,
                    shape: Shape::Dashed,
                    points: ceiling.points(around),
                }),
        );
        roofline(
            "Roofline of the run".to_owned(),
            "ceilings measured by hither probe, double precision, all CPUs".to_owned(),
            series,
        )
    }

    /// The field `roofline` of `hither.report/1`.
    pub fn json(&self) -> Value {
        json!({
            "gflops": self.gflops,
            "flops_per_byte": self.flops_per_byte,
            "peak_gflops": self.ceiling.gflops,
            "memory_gbs": self.ceiling.gbs,
            "reachable_gflops": self.ceiling.at(self.flops_per_byte),
            "ceilings": self.ceilings().map(|(name, ceiling)| json!({
                "name": name, "gbs": ceiling.gbs,
                "reachable_gflops": ceiling.at(self.flops_per_byte),
            })).collect::<Vec<_>>(),
        })
    }
}

/// Sums over nodes with CPUs: GFLOP/s, and GB/s from the memory that delivers most to each.
fn ceiling(probe: &Value) -> Option<Ceiling> {
    let mut nodes = std::collections::BTreeMap::<u64, (f64, f64)>::new();
    for roof in probe["roofline"].as_array()? {
        if roof["threads"] == "all" {
            let median = |field: &str| roof[field]["median"].as_f64();
            let (gflops, gbs) = (median("gflops")?, median("gbs")?);
            let best = nodes.entry(roof["from"].as_u64()?).or_default();
            *best = (gflops, best.1.max(gbs));
        }
    }
    let sum = nodes
        .values()
        .fold((0.0, 0.0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
    (sum.0 > 0.0 && sum.1 > 0.0).then_some(Ceiling {
        gflops: sum.0,
        gbs: sum.1,
    })
}

/// Of levels of caches, as far as they were measured on all nodes, and of the slowest memory of each
/// node, where that is another.
fn others(probe: &Value, memory: Ceiling) -> Vec<(String, Ceiling)> {
    let mut found = Vec::new();
    for cache in probe["caches"].as_array().into_iter().flatten() {
        let nodes = cache["all_gbs"].as_array();
        let gbs = nodes.and_then(|nodes| {
            let medians = nodes.iter().map(|node| node["median"].as_f64());
            medians.sum::<Option<f64>>()
        });
        if let (Some(level), Some(gbs)) = (cache["level"].as_u64(), gbs.filter(|gbs| *gbs > 0.0)) {
            found.push((format!("L{level}"), Ceiling { gbs, ..memory }));
        }
    }
    let mut slowest = std::collections::BTreeMap::<u64, f64>::new();
    let roofs = probe["roofline"].as_array().into_iter().flatten();
    for roof in roofs.filter(|roof| roof["threads"] == "all") {
        if let (Some(from), Some(gbs)) = (roof["from"].as_u64(), roof["gbs"]["median"].as_f64()) {
            let least = slowest.entry(from).or_insert(gbs);
            *least = least.min(gbs);
        }
    }
    let gbs: f64 = slowest.values().sum();
    if gbs > 0.0 && gbs < memory.gbs {
        found.push(("remote memory".to_owned(), Ceiling { gbs, ..memory }));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn probe() -> Value {
        let roof = |from: u64, to: u64, threads: &str, gbs: f64| {
            json!({"from": from, "to": to, "threads": threads,
                   "gflops": {"median": 100.0}, "gbs": {"median": gbs}})
        };
        json!({"schema": "hither.probe/1", "roofline": [
            roof(0, 0, "one", 9.0), roof(0, 0, "all", 40.0), roof(0, 1, "all", 10.0),
            roof(1, 0, "all", 10.0), roof(1, 1, "all", 60.0),
        ]})
    }

    fn overall(flops_per_us: f64) -> Overall {
        Overall {
            flops_per_us: Some(flops_per_us),
            bytes_per_us: Some(20_000.0),
            ..Overall::default()
        }
    }

    fn read(probe: &Value, flops_per_us: f64) -> Result<Roofline, String> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), probe.to_string()).unwrap();
        Roofline::read(file.path(), &overall(flops_per_us)).map_err(|error| format!("{error:#}"))
    }

    #[test]
    fn a_run_is_placed_below_what_all_nodes_can_do() {
        let found = read(&probe(), 5_000.0).unwrap();
        assert_eq!((found.ceiling.gflops, found.ceiling.gbs), (200.0, 100.0));
        assert_eq!((found.gflops, found.flops_per_byte), (5.0, 0.25));
        // Memory allows 25 GFLOP/s there; above the ridge at 2 it is the peak.
        assert_eq!(found.json()["reachable_gflops"], 25.0);
        assert_eq!([2.0, 50.0].map(|x| found.ceiling.at(x)), [200.0, 200.0]);
        let Part::Text(sentence) = &found.parts()[0] else {
            panic!("no sentence");
        };
        assert!(sentence.contains("There memory allows 25.000 GFLOP/s, of which that is 20.0 %"));
    }

    #[test]
    fn caches_and_remote_memory_are_ceilings_beside_it() {
        let mut with = probe();
        let all = |gbs: [f64; 2]| json!(gbs.map(|gbs| json!({"median": gbs})));
        with["caches"] = json!([
            {"level": 1, "all_gbs": all([400.0, 600.0])},
            // Not told on one of the nodes.
            {"level": 2, "all_gbs": [{"median": 100.0}, null]},
            {"level": 3, "all_gbs": all([150.0, 250.0])},
        ]);
        let found = read(&with, 5_000.0).unwrap();
        let told: Vec<_> = found.ceilings().map(|one| (one.0, one.1.gbs)).collect();
        let expected = [
            ("L1", 1000.0),
            ("L3", 400.0),
            ("local memory", 100.0),
            ("remote memory", 20.0),
        ];
        assert_eq!(told, expected);
        let document = found.json();
        // At 0.25 FLOP a byte the first level allows the peak.
        assert_eq!(document["ceilings"][0]["reachable_gflops"], 200.0);
        assert_eq!(document["ceilings"][3]["reachable_gflops"], 5.0);
        assert_eq!(document["memory_gbs"], 100.0);
        let parts = found.parts();
        let Part::Table(_, rows) = &parts[1] else {
            panic!("no table");
        };
        assert_eq!(rows[1], ["L3", "400.0", "100.000", "0.50"]);
        let Part::Chart(chart) = &parts[2] else {
            panic!("no chart");
        };
        let svg = chart.svg();
        for name in [
            "L1, 1000.0 GB/s",
            "local memory, 100.0 GB/s",
            "remote memory, 20.0 GB/s",
        ] {
            assert!(svg.contains(name), "{name} is not in {svg}");
        }
        // A file of before has the memories alone, and one memory needs no table.
        let names: Vec<_> = read(&probe(), 1.0).unwrap().others;
        assert_eq!(names.len(), 1);
        let mut one = probe();
        one["roofline"].as_array_mut().unwrap().truncate(2);
        let one = read(&one, 1.0).unwrap();
        assert!(one.others.is_empty());
        assert_eq!(one.parts().len(), 2);
    }

    #[test]
    fn what_is_missing_is_said() {
        for (probe, flops_per_us, expected) in [
            (
                json!({"schema": "hither.topo/1"}),
                1.0,
                "it is no hither.probe/1",
            ),
            (
                json!({"schema": "hither.probe/1"}),
                1.0,
                "it has no roofline",
            ),
            (probe(), 0.0, "has no floating-point operations"),
        ] {
            let error = read(&probe, flops_per_us).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
    }
}
