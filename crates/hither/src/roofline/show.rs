//! Programs as points: what was seen of each, as lines, table, drawing and JSON (`hither.roofline/1`).

use super::roofs::Roofs;
use crate::draw::{Alignment, Block, LineChart, Page, Section, Series, Shape, around, roofline};
use crate::print::{Table, or_dash};
use crate::terminal::Terminal;
use hither_core::snapshot::{Snapshot, Work};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// Points of a trail that are kept: ten minutes of seconds.
const TRAIL: usize = 600;
/// Programs that are drawn and told in a line: those with most traffic.
const MOST_SHOWN: usize = 16;
/// Operations, and bytes, from which on an interval has a point of its own.
const LEAST: u64 = 1000;

/// Sums over some time.
#[derive(Clone, Copy, Debug, Default)]
struct Sums {
    flops: u64,
    bytes: u64,
    stall_ns: Option<u64>,
    cpu_us: u64,
    time_us: u64,
}

impl Sums {
    fn add(&mut self, work: &Work, cpu_us: u64, time_us: u64) {
        self.flops += work.flops;
        self.bytes += work.bytes();
        if let Some(stall_ns) = work.stall_ns {
            *self.stall_ns.get_or_insert(0) += stall_ns;
        }
        self.cpu_us += cpu_us;
        self.time_us += time_us;
    }

    fn gflops(&self) -> f64 {
        self.flops as f64 / self.time_us.max(1) as f64 / 1e3
    }

    fn gbs(&self) -> f64 {
        self.bytes as f64 / self.time_us.max(1) as f64 / 1e3
    }

    fn intensity(&self) -> Option<f64> {
        (self.bytes > 0).then(|| self.flops as f64 / self.bytes as f64)
    }

    fn stall_share(&self) -> Option<f64> {
        let stalled = self.stall_ns? as f64 / 1e3;
        (self.cpu_us > 0).then(|| (stalled / self.cpu_us as f64).min(1.0))
    }
}

/// A program.
#[derive(Clone, Debug)]
struct Program {
    name: String,
    last: Sums,
    all: Sums,
    /// Intensity and GFLOP/s of each interval that had both.
    trail: Vec<(f64, f64)>,
    resident_pages: Option<u64>,
    is_alive: bool,
}

/// All that was seen.
#[derive(Debug, Default)]
pub struct Seen {
    /// By process and the life of its memory.
    programs: BTreeMap<(i32, u32), Program>,
    now_us: u64,
}

impl Seen {
    /// Takes in an interval.
    pub fn take(&mut self, snapshot: &Snapshot) {
        self.now_us = snapshot.now_us;
        for program in self.programs.values_mut() {
            program.is_alive = false;
            program.last = Sums::default();
        }
        for process in &snapshot.processes {
            let Some(work) = process.work.get() else {
                continue;
            };
            let key = (process.pid.0, process.space.0);
            let program = self.programs.entry(key).or_insert_with(|| Program {
                name: process.name.clone(),
                last: Sums::default(),
                all: Sums::default(),
                trail: Vec::new(),
                resident_pages: None,
                is_alive: true,
            });
            program.name.clone_from(&process.name);
            program.is_alive = true;
            program.resident_pages = process.resident_pages.get();
            let cpu_us = process.cpu_us.get().unwrap_or(0);
            program.last.add(&work, cpu_us, snapshot.interval_us);
            program.all.add(&work, cpu_us, snapshot.interval_us);
            if let Some(intensity) = program.last.intensity()
                && program.last.flops >= LEAST
                && program.last.bytes >= LEAST
            {
                if program.trail.len() == TRAIL {
                    program.trail.remove(0);
                }
                program.trail.push((intensity, program.last.gflops()));
            }
        }
    }

    /// Was nobody seen?
    pub fn is_empty(&self) -> bool {
        self.programs.is_empty()
    }

    /// Those with most traffic first.
    fn ordered(&self, of: fn(&Program) -> Sums) -> Vec<(i32, &Program)> {
        let programs = self.programs.iter();
        let mut all: Vec<_> = programs
            .map(|(&(pid, _), program)| (pid, program))
            .collect();
        all.sort_by_key(|(pid, program)| (std::cmp::Reverse(of(program).bytes), *pid));
        all
    }

    /// Trails to draw: a name, and points, the latest last.
    pub fn trails(&self) -> Vec<(String, &[(f64, f64)])> {
        let shown = self.ordered(|program| program.all).into_iter();
        let shown = shown.filter(|(_, program)| !program.trail.is_empty());
        shown
            .take(MOST_SHOWN)
            .map(|(pid, program)| (format!("{pid} {}", program.name), program.trail.as_slice()))
            .collect()
    }

    /// A line for each program of the last interval.
    pub fn second(&self, roofs: &Roofs) -> String {
        let mut text = format!("{:.1} s:", self.now_us as f64 / 1e6);
        let alive = self.ordered(|program| program.last).into_iter();
        let mut alive = alive.filter(|(_, program)| program.is_alive).peekable();
        if alive.peek().is_none() {
            text += " no process yet; those that come are taken\n";
            return text;
        }
        for (pid, program) in alive.take(MOST_SHOWN) {
            let last = &program.last;
            text += &format!(
                " {pid} {} {:.3} GFLOP/s at {} FLOP/byte{};",
                program.name,
                last.gflops(),
                or_dash(last.intensity(), |value| format!("{value:.3}")),
                match last
                    .intensity()
                    .and_then(|value| roofs.is_memory_bound(value))
                {
                    Some(true) => " (memory bound)",
                    Some(false) => " (compute bound)",
                    None => "",
                }
            );
        }
        text.pop();
        text.push('\n');
        text
    }

    /// What each did in all, and what each memory allows it.
    fn rows(&self, roofs: &Roofs) -> Vec<Vec<String>> {
        let row = |(pid, program): (i32, &Program)| {
            let all = &program.all;
            let intensity = all.intensity();
            let mut row = vec![
                pid.to_string(),
                program.name.clone(),
                format!("{:.3}", all.gflops()),
                or_dash(intensity, |value| format!("{value:.4}")),
                format!("{:.3}", all.gbs()),
                or_dash(all.stall_share(), |share| format!("{:.0} %", share * 100.0)),
                or_dash(program.resident_pages, |pages| {
                    format!("{:.1}", pages as f64 / 256.0)
                }),
            ];
            row.extend(roofs.memories.iter().map(|(node, _)| {
                let allowed = intensity.and_then(|value| roofs.at(*node, value));
                or_dash(allowed, |gflops| format!("{gflops:.3}"))
            }));
            row
        };
        self.ordered(|program| program.all)
            .into_iter()
            .map(row)
            .collect()
    }

    fn head(roofs: &Roofs) -> Vec<String> {
        let head = [
            "process",
            "name",
            "GFLOP/s",
            "FLOP/byte",
            "GB/s",
            "waits",
            "MiB",
        ];
        let mut head: Vec<String> = head.map(str::to_owned).into();
        let memories = roofs.memories.iter();
        head.extend(memories.map(|(node, _)| format!("GFLOP/s if alone in node{node}")));
        head
    }

    /// As a table for a person.
    pub fn table(&self, roofs: &Roofs) -> String {
        if self.programs.is_empty() {
            return "no process was seen\n".to_owned();
        }
        let head = Self::head(roofs);
        let head: Vec<&str> = head.iter().map(String::as_str).collect();
        let mut text = Table::new(&head, &self.rows(roofs))
            .keys(2)
            .text(Terminal::of_output());
        text += "\nmeans over the time that each was seen; waits: share of its CPU time that waited for memory\n";
        if roofs.memories.is_empty() {
            text +=
                "no roofs: measure them with `hither probe --json FILE` and give --probe FILE\n";
        }
        text
    }

    /// Points with their trails below the roofs.
    pub fn chart(&self, roofs: &Roofs) -> LineChart {
        let trails = self.trails();
        let ridges = roofs.memories.iter().map(|(_, roof)| roof.ridge());
        let points = trails.iter().flat_map(|(_, trail)| trail.iter());
        let all: Vec<f64> = ridges.chain(points.map(|point| point.0)).collect();
        let around = around(all.into_iter());
        let roof_lines = roofs
            .memories
            .iter()
            .enumerate()
            .map(|(colour, (node, roof))| Series {
                name: format!("node{node}, {:.1} GB/s", roof.gbs),
                colour,
                shape: Shape::Line,
                points: roof.points(around),
            });
        let first = roofs.memories.len();
        let point_sets = trails
            .iter()
            .enumerate()
            .map(|(index, (name, trail))| Series {
                name: name.clone(),
                colour: first + index,
                shape: Shape::Points,
                points: trail.to_vec(),
            });
        roofline(
            "Programs below the roofline".to_owned(),
            "a point for each interval; roofs measured by hither probe, all CPUs".to_owned(),
            roof_lines.chain(point_sets).collect(),
        )
    }

    /// Table and chart.
    pub fn page(&self, roofs: &Roofs) -> Page {
        let head = Self::head(roofs);
        let columns = head.len();
        Page {
            title: "Programs below the roofline".to_owned(),
            sections: vec![Section {
                heading: "Programs".to_owned(),
                body: vec![
                    Block::Svg(self.chart(roofs).svg()),
                    Block::Table {
                        head,
                        alignment: (0..columns)
                            .map(|at| match at {
                                1 => Alignment::Left,
                                _ => Alignment::Right,
                            })
                            .collect(),
                        rows: self.rows(roofs),
                    },
                ],
            }],
        }
    }

    /// `hither.roofline/1`.
    pub fn json(&self, roofs: &Roofs) -> Value {
        let programs = self.ordered(|program| program.all).into_iter();
        json!({
            "schema": "hither.roofline/1",
            "watched_us": self.now_us,
            "roofs": roofs.memories.iter().map(|(node, roof)| json!({
                "node": node, "gflops": roof.gflops, "gbs": roof.gbs,
            })).collect::<Vec<_>>(),
            "programs": programs.map(|(pid, program)| {
                let all = &program.all;
                json!({
                    "pid": pid,
                    "name": program.name,
                    "flops": all.flops,
                    "bytes": all.bytes,
                    "time_us": all.time_us,
                    "cpu_us": all.cpu_us,
                    "stall_share": all.stall_share(),
                    "gflops": all.gflops(),
                    "flops_per_byte": all.intensity(),
                    "resident_bytes": program.resident_pages.map(|pages| pages << 12),
                    "allowed_gflops": roofs.memories.iter().map(|(node, _)| json!({
                        "node": node,
                        "gflops": all.intensity().and_then(|value| roofs.at(*node, value)),
                    })).collect::<Vec<_>>(),
                    "trail": program.trail.iter().map(|(intensity, gflops)| json!({
                        "flops_per_byte": intensity, "gflops": gflops,
                    })).collect::<Vec<_>>(),
                })
            }).collect::<Vec<_>>(),
        })
    }
}

#[cfg(test)]
pub mod tests {
    use super::super::roofs::tests::roofs;
    use super::*;
    use hither_core::ids::{Pid, SpaceId};
    use hither_core::snapshot::{Evidence, ProcessState};

    /// Two programs of one second: one of 0.25 operations a byte, one of 8, and one that did nothing.
    pub fn seen() -> Seen {
        let process = |pid: i32, name: &str, work: Work| ProcessState {
            parent: Pid(1),
            name: name.to_owned(),
            resident_pages: Evidence::measured(512, "test"),
            cpu_us: Evidence::measured(1_000_000, "test"),
            work: Evidence::measured(work, "test"),
            ..ProcessState::unknown(Pid(pid), SpaceId(1), "test")
        };
        let work = |flops: u64, bytes: u64| Work {
            instructions: 1,
            flops,
            read_bytes: bytes,
            written_bytes: Some(0),
            stall_ns: Some(500_000_000),
        };
        let mut snapshot = Snapshot::of_nodes(Vec::new(), "test");
        snapshot.interval_us = 1_000_000;
        snapshot.now_us = 1_000_000;
        snapshot.processes = vec![
            process(10, "mg", work(2_000_000_000, 8_000_000_000)),
            process(11, "bt", work(8_000_000_000, 1_000_000_000)),
            process(12, "idle", Work::default()),
        ];
        let mut seen = Seen::default();
        seen.take(&snapshot);
        seen
    }

    #[test]
    fn positions_are_those_worked_by_hand() {
        let rows = seen().rows(&roofs());
        // 2 GFLOP in 1 s over 8 GB: 0.25, and 80 and 320 GB/s allow 20 and 80 GFLOP/s.
        assert_eq!(
            rows[0],
            [
                "10", "mg", "2.000", "0.2500", "8.000", "50 %", "2.0", "20.000", "80.000"
            ]
        );
        assert_eq!(
            rows[1],
            [
                "11", "bt", "8.000", "8.0000", "1.000", "50 %", "2.0", "400.000", "400.000"
            ]
        );
        assert_eq!(rows[2][2..5], ["0.000", "–", "0.000"]);
    }

    #[test]
    fn json_has_the_same_figures_and_who_did_nothing_has_no_point() {
        let json = seen().json(&roofs());
        assert_eq!(json["programs"][0]["flops_per_byte"], 0.25);
        assert_eq!(json["programs"][0]["allowed_gflops"][1]["gflops"], 80.0);
        assert_eq!(json["programs"][2]["flops_per_byte"], Value::Null);
        assert_eq!(json["programs"][2]["trail"], json!([]));
        let svg = seen().chart(&roofs()).svg();
        assert!(svg.contains("10 mg") && svg.contains("node1") && !svg.contains("12 idle"));
        assert!(
            seen()
                .second(&roofs())
                .contains("10 mg 2.000 GFLOP/s at 0.250 FLOP/byte (memory bound)")
        );
    }
}
