//! The comparison as a table, as `hither.bench-move/1` (`docs/cli.md`) and as a chart.

use super::measure::{Cell, Figures};
use super::methods::{METHODS, PageKind, Role};
use crate::draw::{Axis, LineChart, Scale, Series, Shape};
use crate::print::{self, Table};
use crate::terminal::Terminal;
use crate::units::{short_bytes, time};
use hither_core::ids::NodeId;
use serde_json::{Value, json};

/// Everything that is reported.
#[derive(Debug)]
pub struct Report {
    /// Where pages were.
    pub from: NodeId,
    /// Where they went; `from` itself on a machine with one node.
    pub to: NodeId,
    /// CPUs that the measuring thread kept to, in the kernel's format; `None` where it did not.
    pub cpus: Option<String>,
    /// Release of the kernel.
    pub kernel: String,
    /// Repetitions that were wanted.
    pub repeat: usize,
    /// Seconds that were allowed.
    pub seconds: f64,
    /// Bytes on each node that requests went through.
    pub arena_bytes: usize,
    /// What an empty measurement took, in ns, wall and CPU time: taken off every sample.
    pub overhead_ns: (u64, u64),
    /// By page kind and size.
    pub cells: Vec<Cell>,
    /// Page kinds of which memory did not hold afterwards what was written to it before.
    pub lost: Vec<&'static str>,
    /// Sentences for a person.
    pub notes: Vec<String>,
}

impl Report {
    fn is_in_place(&self) -> bool {
        self.from == self.to
    }

    fn direction(&self) -> String {
        match self.is_in_place() {
            true => format!("in place on {}", self.from),
            false => format!("{} to {}", self.from, self.to),
        }
    }

    /// For a person.
    #[must_use]
    pub fn text(&self, terminal: Terminal) -> String {
        let mut text = format!(
            "memory of this process, {}, Linux {}\n\n",
            self.direction(),
            self.kernel
        );
        let head = [
            "pages",
            "size",
            "method",
            "repetitions",
            "median",
            "GB/s",
            "CPU ns/byte",
            "to copy",
            "min",
            "max",
        ];
        let mut rows = Vec::new();
        for cell in &self.cells {
            for (method, result) in METHODS.iter().zip(&cell.results) {
                let mut row = vec![
                    cell.kind.name().to_owned(),
                    short_bytes(cell.bytes as u64),
                    method.name.to_owned(),
                ];
                match result {
                    Err(_) => row.extend([String::new(), "not measured".to_owned()]),
                    Ok(figures) => row.extend(cells(cell, figures)),
                }
                rows.push(row);
            }
        }
        text.push_str(&Table::new(&head, &rows).keys(3).text(terminal));
        text.push_str(
            "\nGB/s are 10^9 bytes per second at the median; CPU is that of all threads of this \
             process; to copy is the distance to the faster bare copy of the same bytes.\n",
        );
        for kind in &self.lost {
            text.push_str(&format!(
                "CONTENT LOST in {kind} pages: do not use this machine\n"
            ));
        }
        for note in self.reasons().iter().chain(&self.notes) {
            text.push_str(&format!("note: {note}\n"));
        }
        text
    }

    /// Why methods were not measured, one sentence per reason.
    fn reasons(&self) -> Vec<String> {
        let mut reasons: Vec<(String, Vec<&str>)> = Vec::new();
        for cell in &self.cells {
            for (method, result) in METHODS.iter().zip(&cell.results) {
                let Err(why) = result else { continue };
                let known = reasons.iter_mut().find(|(reason, _)| reason == why);
                match known {
                    Some((_, names)) if names.contains(&method.name) => {}
                    Some((_, names)) => names.push(method.name),
                    None => reasons.push((why.clone(), vec![method.name])),
                }
            }
        }
        reasons
            .into_iter()
            .map(|(why, names)| format!("{} not measured: {why}", names.join(", ")))
            .collect()
    }

    /// The same as a document, indented, with a final newline.
    #[must_use]
    pub fn json(&self) -> String {
        let results = self.cells.iter().flat_map(|cell| {
            let methods = METHODS.iter().zip(&cell.results);
            methods.map(|(method, result)| result_json(cell, method.name, result))
        });
        let methods = METHODS.iter().map(|method| {
            json!({
                "name": method.name,
                "about": method.about,
                "is_copy": method.role == Role::Copy,
            })
        });
        let document = json!({
            "schema": "hither.bench-move/1",
            "from": self.from,
            "to": self.to,
            "in_place": self.is_in_place(),
            "cpus": self.cpus,
            "kernel": self.kernel,
            "repeat": self.repeat,
            "seconds": self.seconds,
            "arena_bytes": self.arena_bytes,
            "overhead_ns": { "wall": self.overhead_ns.0, "cpu": self.overhead_ns.1 },
            "methods": methods.collect::<Vec<_>>(),
            "results": results.collect::<Vec<_>>(),
            "content_lost": self.lost,
            "notes": self.notes,
        });
        print::json(document)
    }

    /// The same as a chart: throughput over the size of a request.
    #[must_use]
    pub fn svg(&self) -> String {
        let mut series = Vec::new();
        let mut sizes: Vec<usize> = self.cells.iter().map(|cell| cell.bytes).collect();
        sizes.sort_unstable();
        sizes.dedup();
        for (index, method) in METHODS.iter().enumerate() {
            for kind in [PageKind::Small, PageKind::Huge] {
                let cells = self.cells.iter().filter(|cell| cell.kind == kind);
                let mut points: Vec<(f64, f64)> = cells
                    .filter_map(|cell| {
                        let figures = cell.results[index].as_ref().ok()?;
                        Some((cell.bytes as f64, figures.throughput_gbs(cell.bytes)))
                    })
                    .collect();
                points.sort_by(|one, other| one.0.total_cmp(&other.0));
                if !points.is_empty() {
                    series.push(Series {
                        name: format!("{}, {} pages", method.name, kind.name()),
                        colour: index,
                        shape: match kind {
                            PageKind::Small => Shape::Line,
                            PageKind::Huge => Shape::Dashed,
                        },
                        points,
                    });
                }
            }
        }
        LineChart {
            title: match self.is_in_place() {
                true => "Copying memory in place".to_owned(),
                false => "Moving memory between two nodes".to_owned(),
            },
            subtitle: format!(
                "{}, Linux {}, medians of {} repetitions or more",
                self.direction(),
                self.kernel,
                self.fewest()
            ),
            x: Axis {
                ticks: sizes
                    .iter()
                    .map(|&bytes| (bytes as f64, short_bytes(bytes as u64)))
                    .collect(),
                ..Axis::new("size of a request (bytes, logarithmic)", Scale::Logarithmic)
            },
            y: Axis::new("throughput (GB/s)", Scale::Linear),
            series,
        }
        .svg()
    }

    /// Fewest repetitions that a figure rests on.
    fn fewest(&self) -> usize {
        let results = self.cells.iter().flat_map(|cell| &cell.results);
        let counts = results.filter_map(|result| Some(result.as_ref().ok()?.count));
        counts.min().unwrap_or(0)
    }
}

fn cells(cell: &Cell, figures: &Figures) -> [String; 7] {
    let incomplete = match figures.incomplete_count {
        0 => String::new(),
        count => format!(" ({count} incomplete)"),
    };
    [
        format!("{}{incomplete}", figures.count),
        time(figures.median_ns),
        format!("{:.2}", figures.throughput_gbs(cell.bytes)),
        print::or_dash(figures.cpu_ns_per_byte, |ns| format!("{ns:.3}")),
        print::or_dash(
            cell.copy_distance_percent(figures),
            |percent| match print::decimals(percent, 1) {
                number if percent > 0.0 || number.starts_with('-') => format!("{percent:+.1} %"),
                zero => format!("{zero} %"),
            },
        ),
        time(figures.min_ns),
        time(figures.max_ns),
    ]
}

fn result_json(cell: &Cell, method: &str, result: &Result<Figures, String>) -> Value {
    let mut row = json!({
        "pages": cell.kind.name(),
        "size_bytes": cell.bytes,
        "method": method,
        "not_measured": result.as_ref().err(),
    });
    if let Ok(figures) = result {
        row["repetition_count"] = figures.count.into();
        row["incomplete_count"] = figures.incomplete_count.into();
        row["median_ns"] = figures.median_ns.into();
        row["min_ns"] = figures.min_ns.into();
        row["max_ns"] = figures.max_ns.into();
        row["throughput_gbs"] = figures.throughput_gbs(cell.bytes).into();
        row["cpu_ns_per_byte"] = figures.cpu_ns_per_byte.into();
        row["copy_distance_percent"] = cell.copy_distance_percent(figures).into();
    }
    row
}

#[cfg(test)]
mod tests {
    use super::super::methods::Sample;
    use super::*;
    use crate::print;

    fn report() -> Report {
        let figures = |ns| {
            let sample = Sample {
                wall_ns: ns,
                cpu_ns: Some(ns),
            };
            Figures::of(&[sample; 30], 65_536, 0).ok_or_else(String::new)
        };
        let cell = |kind, bytes, first: Result<Figures, String>| Cell {
            kind,
            bytes,
            results: vec![
                first,
                Err("it broke".into()),
                Err("it broke".into()),
                figures(8192),
                figures(16_384),
                Err("no engine".into()),
            ],
        };
        Report {
            from: NodeId(0),
            to: NodeId(1),
            cpus: Some("0-1".into()),
            kernel: "6.18".into(),
            repeat: 30,
            seconds: 1.0,
            arena_bytes: 64 << 20,
            overhead_ns: (20, 400),
            cells: vec![
                cell(PageKind::Small, 65_536, figures(32_768)),
                cell(PageKind::Huge, 2 << 20, Err("no huge page".into())),
            ],
            lost: Vec::new(),
            notes: vec!["a note".into()],
        }
    }

    #[test]
    fn the_table_has_every_method_and_every_reason() {
        let text = report().text(Terminal::PIPE);
        let line = |start: &str| text.lines().find(|line| line.starts_with(start)).unwrap();
        assert!(text.starts_with("memory of this process, node0 to node1, Linux 6.18\n"));
        // 65536 bytes in 32768 ns, a quarter of the faster copy.
        let words: Vec<&str> = line("small  64K   move_pages").split_whitespace().collect();
        assert_eq!(
            words[3..],
            [
                "30", "32.77", "us", "2.00", "0.500", "-75.0", "%", "32.77", "us", "32.77", "us"
            ]
        );
        assert!(line("small  64K   mbind").ends_with("not measured"));
        assert!(line("huge   2M    move_pages").ends_with("not measured"));
        assert!(!text.contains("LOST"));
        let lost = Report {
            lost: vec!["huge"],
            ..report()
        };
        assert!(
            lost.text(Terminal::PIPE)
                .contains("CONTENT LOST in huge pages")
        );
        assert!(text.contains("note: mbind, migspeed not measured: it broke\n"));
        assert!(text.contains("note: move_pages not measured: no huge page\nnote: a note\n"));
    }

    #[test]
    fn the_table_fits() {
        print::assert_fits(|terminal| report().text(terminal));
    }

    #[test]
    fn the_document_says_the_same() {
        let document: Value = serde_json::from_str(&report().json()).unwrap();
        assert_eq!(document["schema"], "hither.bench-move/1");
        assert_eq!(
            document["results"].as_array().unwrap().len(),
            2 * METHODS.len()
        );
        let first = &document["results"][0];
        assert_eq!(first["throughput_gbs"], 2.0);
        assert_eq!(first["copy_distance_percent"], -75.0);
        assert!(first["not_measured"].is_null());
        assert_eq!(document["results"][1]["not_measured"], "it broke");
        assert_eq!(document["in_place"], false);
    }

    #[test]
    fn the_chart_has_a_line_per_method_and_kind() {
        let svg = report().svg();
        assert_eq!(
            svg.matches("<circle").count(),
            5,
            "one and two times two copies"
        );
        assert!(svg.contains("memcpy-nt, huge pages") && !svg.contains("mbind"));
        assert!(svg.contains(">64K</text>") && svg.contains(">2M</text>"));
    }
}
