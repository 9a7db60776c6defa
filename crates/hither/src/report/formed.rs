//! Regions that are used together, as tables and JSON; `docs/forming.md` says how they are formed.

use super::document::Part;
use super::figures::Figures;
use crate::print::{self, or_none};
use crate::units;
use anyhow::Context;
use hither_core::forming::Config;
use hither_linux::sys;
use hither_recording::analysis::Data;
use hither_recording::analysis::forming::{self, Formed, Life, Lives};
use serde_json::{Value, json};

/// Regions of a recording, and what it took to form them.
pub struct FormedRegions {
    formed: Formed,
    cpu_ns: u64,
    length_ns: u64,
}

impl FormedRegions {
    /// Forms them.
    ///
    /// # Errors
    /// There is nothing to form them of.
    pub fn of(data: &Data) -> anyhow::Result<Self> {
        let began_ns = sys::thread_cpu_ns();
        let formed = forming::formed(data).context(
            "--regions: this recording has neither samples of accesses nor access bits of processes; \
             record with a tracker that samples (hither topo --doctor), or leave --regions out",
        )?;
        Ok(Self {
            formed,
            cpu_ns: sys::thread_cpu_ns().saturating_sub(began_ns),
            length_ns: data.length_ns(),
        })
    }

    /// Share of the recording's length that forming took.
    fn cost(&self) -> f64 {
        self.cpu_ns as f64 / self.length_ns.max(1) as f64
    }

    /// A sentence with the cost, and a table.
    pub fn parts(&self, figures: &Figures) -> Vec<Part> {
        let formed = &self.formed;
        let what = match formed.of_samples {
            true => "samples".to_owned(),
            false => format!(
                "blocks of {} of access bits",
                print::bytes(formed.unit_bytes)
            ),
        };
        let mut parts = vec![Part::Text(format!(
            "Formed from {} {what}, in {} of CPU time: {:.0} ns each, {:.3} % of the recording's length (limit: \
             {:.0} %).",
            formed.touch_count,
            units::time(self.cpu_ns as f64),
            self.cpu_ns as f64 / formed.touch_count.max(1) as f64,
            100.0 * self.cost(),
            100.0 * Config::default().most_cost,
        ))];
        if formed.left_out_count > 0 {
            parts.push(Part::Text(format!(
                "{} of them were left out, as there were too many pages, threads or processes.",
                formed.left_out_count
            )));
        }
        let mut regions = formed.programs.iter().flat_map(|program| &program.regions);
        if !regions.any(|life| life.name.is_some()) {
            parts.push(Part::Text(
                "No region was formed: that takes half a second or more, some ten visits to each region, \
                 and three samples of a visit (docs/forming.md)."
                    .to_owned(),
            ));
        }
        let lives = formed
            .programs
            .iter()
            .flat_map(|program| program.regions.iter().map(move |life| (program, life)));
        let rows: Vec<Vec<String>> = lives
            .clone()
            .take(figures.top)
            .map(|(program, life)| row(&figures.data, program, life))
            .collect();
        let rest = lives.count() - rows.len();
        let head = [
            "region", "kind", "size", "in use", "weighted", "entries", "visit", "idle", "threads",
            "from", "until", "memory",
        ];
        parts.push(Part::Table(head.map(str::to_owned).into(), rows));
        if rest > 0 {
            parts.push(Part::Text(format!("And {rest} more.")));
        }
        parts
    }

    /// As in hither.report/1.
    pub fn json(&self, data: &Data) -> Value {
        let formed = &self.formed;
        let programs = formed.programs.iter().map(|program| {
            json!({
                "pid": program.pid,
                "process": data.process_name(program.pid),
                "touched_bytes": program.touched_bytes,
                "weighted_bytes": program.weighted_bytes,
                "regions": program.regions.iter().map(one).collect::<Vec<_>>(),
            })
        });
        json!({
            "of": if formed.of_samples { "samples" } else { "access bits" },
            "unit_bytes": formed.unit_bytes,
            "touch_count": formed.touch_count,
            "left_out_count": formed.left_out_count,
            "cpu_ns": self.cpu_ns,
            "cost": self.cost(),
            "programs": programs.collect::<Vec<_>>(),
        })
    }
}

fn one(life: &Life) -> Value {
    let ranges = life.ranges.iter().map(|range| [range.start, range.end]);
    json!({
        "name": life.name,
        "kind": life.kind.name(),
        "ranges": ranges.collect::<Vec<_>>(),
        "bytes": life.bytes,
        "seen_bytes": life.seen_bytes,
        "touched_bytes": life.touched_bytes,
        "weighted_bytes": life.weighted_bytes,
        "from_ns": life.from_ns,
        "until_ns": life.until_ns,
        "is_last": life.is_last,
        "entry_count": life.entry_count,
        "access_ns": life.access_ns,
        "idle_ns": life.idle_ns,
        "threads": life.threads,
    })
}

fn row(data: &Data, program: &Lives, life: &Life) -> Vec<String> {
    let time = |ns: Option<f64>| or_none(ns.map(units::time));
    // Of seeds and of what is global only the sizes are known.
    let is_named = life.name.is_some();
    let named = |text: String| or_none(is_named.then_some(text));
    let threads = match life.threads.len() {
        0 => None,
        1 => Some(life.threads[0].to_string()),
        count => Some(count.to_string() + " threads"),
    };
    let name = or_none(life.name.map(|name| name.to_string()));
    vec![
        format!("{} {name}", data.process_name(program.pid)),
        life.kind.name().to_owned(),
        print::bytes(life.bytes),
        print::bytes(life.touched_bytes),
        print::bytes(life.weighted_bytes as u64),
        named(life.entry_count.to_string()),
        time(life.access_ns),
        time(life.idle_ns),
        or_none(threads),
        named(units::time(life.from_ns as f64)),
        match life.is_last {
            true => "the end".to_owned(),
            false => units::time(life.until_ns as f64),
        },
        memory(data, program.pid, life),
    ]
}

/// Where a region is: its first addresses, the mapping that has them, and how many ranges more.
fn memory(data: &Data, pid: i32, life: &Life) -> String {
    let Some(first) = life.ranges.first() else {
        return print::DASH.to_owned();
    };
    let holds = |start: u64, end: u64| (start..end).contains(&first.start);
    let mut mappings = data.mappings.iter().rev();
    let mapping = mappings.find(|mapping| mapping.pid == pid && holds(mapping.start, mapping.end));
    let name = mapping.map_or("", |mapping| mapping.name.as_str());
    let more = match life.ranges.len() - 1 {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let space = if name.is_empty() { "" } else { " " };
    format!("{:x}-{:x}{more}{space}{name}", first.start, first.end)
}

#[cfg(test)]
mod tests {
    use super::super::document::document;
    use super::*;
    use hither_recording::meta::{Meta, MetaNode, SCHEMA};
    use hither_recording::rows::{Mapping, Process, Sample};
    use hither_recording::{Folder, Recording, Writer};

    fn meta() -> Meta {
        Meta {
            schema: SCHEMA.into(),
            hither: "test".into(),
            began_unix_ms: None,
            kernel: "test".into(),
            nodes: vec![MetaNode {
                id: 0,
                cpus: "0".into(),
                total_bytes: 1 << 30,
                spans: Vec::new(),
            }],
            distances: Vec::new(),
            line_bytes: Some(64),
            command: vec!["./app".into()],
            watched: "the command".into(),
            trackers: Vec::new(),
            interval_us: 100_000,
            ended: None,
        }
    }

    /// A recording of 5 s with 10,000 samples a second of a program that is in one of `count` regions of 32
    /// pages for 5 ms, then in the next.
    fn recorded(count: u64) -> Data {
        let above = tempfile::tempdir().unwrap();
        let folder = above.path().join("recording");
        let mut writer = Writer::create(Folder::make(&folder).unwrap(), meta()).unwrap();
        let sample = |number: u64| {
            // Mixed as by SplitMix64: a walk with any rule would be regions of its own.
            let mixed = (number + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            let mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            let page = number / 50 % count * 32 + (mixed ^ mixed >> 27) % 32;
            Sample {
                time_ns: number * 100_000,
                pid: 7,
                tid: Some(8),
                cpu: None,
                from_node: Some(0),
                home_node: Some(0),
                address: (0x1000 + page) << 12,
                code: None,
                is_write: None,
                latency_ns: None,
                from_cache: None,
                weight: 1,
            }
        };
        let samples = if count == 0 { 0 } else { 50_000 };
        writer.add((0..samples).map(sample)).unwrap();
        let mapping = Mapping {
            time_ns: 0,
            pid: 7,
            start: 0x100_0000,
            end: 0x200_0000,
            permissions: "rw-p".into(),
            name: "[heap]".into(),
        };
        let process = Process {
            pid: 7,
            name: "app".into(),
            start_ns: 0,
            end_ns: None,
            peak_bytes: None,
        };
        writer.add([mapping]).unwrap();
        writer.add([process]).unwrap();
        writer.finish().unwrap();
        Data::read(&Recording::open(&folder).unwrap())
    }

    #[test]
    fn regions_are_shown_with_what_they_cost() {
        let mut figures = Figures::new(recorded(3), None, 2);
        figures.formed = Some(FormedRegions::of(&figures.data).unwrap());
        let text = document(&figures).text(crate::terminal::Terminal::PIPE);
        let section = text
            .split("regions that are used together\n")
            .nth(1)
            .unwrap();
        assert!(
            section.contains("Formed from 50000 samples, in "),
            "{section}"
        );
        assert!(section.contains("of the recording's length (limit: 1 %)."));
        assert!(!section.contains("No region was formed"));
        let rows: Vec<&str> = section
            .lines()
            .filter(|line| line.contains("app"))
            .collect();
        assert_eq!(rows.len(), 2, "{section}");
        for row in rows {
            for word in ["local", "128 KiB", "the end", "[heap]", " 8 "] {
                assert!(row.contains(word), "{word}: {row}");
            }
        }
        assert!(section.contains("And 1 more."));

        let json = figures.formed.as_ref().unwrap().json(&figures.data);
        assert_eq!(
            (&json["of"], &json["touch_count"]),
            (&json!("samples"), &json!(50_000))
        );
        let program = &json["programs"][0];
        assert_eq!(
            (&program["process"], &program["pid"]),
            (&json!("app"), &json!(7))
        );
        let regions = program["regions"].as_array().unwrap();
        assert_eq!(regions.len(), 3);
        let mut starts = Vec::new();
        for region in regions {
            assert_eq!(
                (&region["kind"], &region["threads"]),
                (&json!("local"), &json!([8]))
            );
            assert_eq!(
                (&region["bytes"], &region["is_last"]),
                (&json!(32 << 12), &json!(true))
            );
            let access_ns = region["access_ns"].as_f64().unwrap();
            assert!((4.5e6..5.5e6).contains(&access_ns), "{access_ns}");
            starts.push(region["ranges"][0][0].as_u64().unwrap());
        }
        starts.sort_unstable();
        assert_eq!(starts, [0x100_0000, 0x102_0000, 0x104_0000]);
        let cost = json["cost"].as_f64().unwrap();
        assert!(cost > 0.0 && cost < 1.0, "{cost}");
    }

    #[test]
    fn where_nothing_was_sampled_there_is_a_sentence() {
        let error = FormedRegions::of(&recorded(0)).err().unwrap();
        assert!(
            error
                .to_string()
                .starts_with("--regions: this recording has neither")
        );
    }
}
