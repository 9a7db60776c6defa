//! A recording as trace events for ui.perfetto.dev and chrome://tracing: the JSON form that both
//! read ("Trace Event Format"), documented in docs/cli.md.
//!
//! Figures of the machine are counters of a process of its own, named `machine`; watched processes
//! are slices, and pages that changed their node instants in the process they are of. Phases are slices
//! on a track of the machine's.

use crate::analysis::data::Data;
use crate::analysis::homes;
use crate::analysis::phases::Phases;
use crate::analysis::working_set::WorkingSet;
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// Version of what is in the trace.
pub const SCHEMA: &str = "hither.trace/1";
/// Number of the process that holds the machine's counters: Linux has none from 2^22 on.
pub const MACHINE: i32 = 1 << 22;
/// Number of the machine's track of phases.
const PHASES: i32 = 1;
/// Moves are told together for each stretch of this length, in ns.
const TOGETHER_NS: u64 = 100_000_000;

/// The trace.
#[must_use]
pub fn trace(data: &Data, working_set: &WorkingSet, phases: &Phases) -> Value {
    let mut events = vec![name(MACHINE, "machine")];
    counters(data, &mut events);
    sets(working_set, &mut events);
    slices(phases, &mut events);
    processes(data, &mut events);
    moves(data, &mut events);
    let meta = &data.meta;
    json!({
        "traceEvents": events,
        "displayTimeUnit": "ns",
        "otherData": {
            "schema": SCHEMA,
            "hither": meta.hither,
            "began_unix_ms": meta.began_unix_ms,
            "kernel": meta.kernel,
            "watched": meta.watched,
            "command": meta.command.join(" "),
            "notes": data.notes,
        },
    })
}

/// Trace events count in us.
fn us(ns: u64) -> f64 {
    ns as f64 / 1000.0
}

fn name(pid: i32, name: &str) -> Value {
    json!({"ph": "M", "name": "process_name", "pid": pid, "args": {"name": name}})
}

/// A figure that holds from `from_ns` on.
fn counter(track: &str, from_ns: u64, series: &str, figure: f64) -> Value {
    json!({
        "ph": "C", "name": track, "pid": MACHINE, "ts": us(from_ns), "args": {series: figure},
    })
}

/// Of intervals and nodes. A figure is of the time before its row, and counters hold until their
/// next event: they are put at the interval's beginning.
fn counters(data: &Data, events: &mut Vec<Value>) {
    for row in &data.intervals {
        let from = row.time_ns.saturating_sub(row.length_ns);
        let figures = [
            (
                "local accesses",
                "%",
                row.local_access_ratio.map(|r| 100.0 * r),
            ),
            ("latency", "ns", row.latency_ns),
            (
                "controller imbalance",
                "%",
                row.controller_imbalance.map(|i| 100.0 * i),
            ),
            ("link use", "%", row.link_use.map(|u| 100.0 * u)),
            ("memory fills", "1/us", row.accesses_per_us),
        ];
        for (track, unit, figure) in figures {
            events.extend(figure.map(|figure| counter(track, from, unit, figure)));
        }
    }
    for row in &data.traffic {
        let from = row.time_ns.saturating_sub(row.length_ns);
        let track = format!("node{}", row.node);
        // Bytes per ns are GB/s.
        let gbs = |bytes: u64| bytes as f64 / row.length_ns.max(1) as f64;
        let figures = [
            ("read GB/s", row.read_bytes.map(gbs)),
            ("written GB/s", row.write_bytes.map(gbs)),
            (
                "controller used %",
                row.utilisation.map(|used| 100.0 * used),
            ),
        ];
        for (series, figure) in figures {
            events.extend(figure.map(|figure| counter(&track, from, series, figure)));
        }
    }
}

fn sets(set: &WorkingSet, events: &mut Vec<Value>) {
    let (touched, weighted) = match set.of_samples {
        true => ("sampled pages MiB", "estimated MiB"),
        false => ("touched MiB", "weighted MiB"),
    };
    let mut from = 0;
    for window in &set.windows {
        for (series, bytes) in [
            (touched, window.touched_bytes),
            (weighted, window.weighted_bytes),
        ] {
            let mib = bytes / f64::from(1 << 20);
            events.push(counter("working set", from, series, mib));
        }
        from = window.time_ns;
    }
}

fn slices(phases: &Phases, events: &mut Vec<Value>) {
    if phases.list.is_empty() {
        return;
    }
    events.push(json!({
        "ph": "M", "name": "thread_name", "pid": MACHINE, "tid": PHASES,
        "args": {"name": "phases"},
    }));
    for phase in &phases.list {
        events.push(json!({
            "ph": "X",
            "name": format!("phase {}", phase.kind),
            "cat": "phase",
            "pid": MACHINE,
            "tid": PHASES,
            "ts": us(phase.from_ns),
            "dur": us(phase.until_ns.saturating_sub(phase.from_ns)),
            "args": {
                "hot MiB": phase.hot_bytes as f64 / f64::from(1 << 20),
                "unit KiB": phases.unit_bytes >> 10,
                "local accesses %": phase.local_ratio.map(|ratio| 100.0 * ratio),
            },
        }));
    }
}

fn processes(data: &Data, events: &mut Vec<Value>) {
    for process in &data.processes {
        let end_ns = process.end_ns.unwrap_or(data.length_ns());
        events.push(name(process.pid, &process.name));
        events.push(json!({
            "ph": "X",
            "name": process.name,
            "cat": "process",
            "pid": process.pid,
            "tid": process.pid,
            "ts": us(process.start_ns),
            "dur": us(end_ns.saturating_sub(process.start_ns)),
        }));
    }
}

/// Pages that samples saw on one node and later on another, for each stretch, process, and pair of
/// nodes; at the end of the stretch, when the last of them had been seen.
fn moves(data: &Data, events: &mut Vec<Value>) {
    let mut together: BTreeMap<(u64, i32, usize, usize), u64> = BTreeMap::new();
    homes::changes(data, |change| {
        let stretch = change.time_ns / TOGETHER_NS;
        let key = (stretch, change.pid, change.from, change.to);
        *together.entry(key).or_default() += 1;
    });
    for ((stretch, pid, from, to), pages) in together {
        let node = |position: usize| format!("node{}", data.nodes[position]);
        let (from, to) = (node(from), node(to));
        events.push(json!({
            "ph": "i",
            "name": format!("pages moved, {from} to {to}"),
            "cat": "move",
            "s": "p",
            "pid": pid,
            "tid": pid,
            "ts": us(((stretch + 1) * TOGETHER_NS).min(data.length_ns())),
            "args": {"pages": pages, "from": from, "to": to},
        }));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analysis::data::tests::{access, empty};
    use crate::analysis::phases::{Phase, phases};
    use crate::analysis::working_set::{Window, working_set};
    use crate::rows::{Interval, Node, Process};

    fn events<'a>(trace: &'a Value, phase: &str) -> Vec<&'a Value> {
        let all = trace["traceEvents"].as_array().unwrap();
        all.iter().filter(|event| event["ph"] == phase).collect()
    }

    #[test]
    fn what_was_measured_becomes_counters_and_what_was_not_is_left_out() {
        let mut data = empty();
        data.intervals.push(Interval {
            time_ns: 300_000,
            length_ns: 100_000,
            local_access_ratio: Some(0.25),
            latency_ns: None,
            controller_imbalance: None,
            link_use: None,
            accesses_per_us: None,
            instructions_per_us: None,
            flops_per_us: None,
            stall_share: None,
            l3_mpki: None,
            sample_count: 0,
            lost_count: 0,
            own_cpu_us: None,
        });
        data.traffic.push(Node {
            time_ns: 300_000,
            length_ns: 100_000,
            node: 2,
            read_bytes: Some(150_000),
            write_bytes: None,
            utilisation: None,
        });
        let set = WorkingSet {
            windows: vec![Window {
                time_ns: 300_000,
                touched_bytes: f64::from(3 << 20),
                weighted_bytes: f64::from(1 << 20),
                error_bytes: None,
            }],
            of_samples: false,
        };
        let trace = trace(&data, &set, &Phases::default());
        let counters: Vec<_> = events(&trace, "C")
            .iter()
            .map(|event| {
                (
                    event["name"].clone(),
                    event["ts"].clone(),
                    event["args"].clone(),
                )
            })
            .collect();
        let expected = [
            (json!("local accesses"), json!(200.0), json!({"%": 25.0})),
            (json!("node2"), json!(200.0), json!({"read GB/s": 1.5})),
            (
                json!("working set"),
                json!(0.0),
                json!({"touched MiB": 3.0}),
            ),
            (
                json!("working set"),
                json!(0.0),
                json!({"weighted MiB": 1.0}),
            ),
        ];
        assert_eq!(counters, expected);
        assert_eq!(trace["otherData"]["schema"], SCHEMA);
    }

    #[test]
    fn processes_are_slices_and_moves_instants_in_them() {
        let mut data = empty();
        data.processes.push(Process {
            pid: 7,
            name: "app".into(),
            start_ns: 1000,
            end_ns: Some(5000),
            peak_bytes: None,
        });
        data.accesses = vec![
            access(1, 0x1000, 0, 0),
            access(2, 0x2000, 0, 0),
            access(3, 0x1000, 0, 1),
            access(200_000_000, 0x2000, 0, 1),
        ];
        let set = working_set(&data, 1_000_000_000);
        let trace = trace(&data, &set, &phases(&data));
        let mut slices = events(&trace, "X");
        slices.retain(|slice| slice["cat"] == "process");
        assert_eq!(slices.len(), 1);
        assert_eq!(
            (&slices[0]["name"], &slices[0]["ts"], &slices[0]["dur"]),
            (&json!("app"), &json!(1.0), &json!(4.0))
        );
        let moves = events(&trace, "i");
        let told: Vec<_> = moves
            .iter()
            .map(|e| (&e["ts"], &e["args"]["pages"]))
            .collect();
        let (first, last) = (json!(100_000.0), json!(200_000.0));
        assert_eq!(told, [(&first, &json!(1)), (&last, &json!(1))]);
        assert_eq!(moves[0]["args"]["to"], "node2");
        assert_eq!(moves[0]["pid"], 7);
    }

    #[test]
    fn phases_are_slices_on_a_named_track_of_the_machine() {
        let phase = |from_ns, until_ns, kind, local_ratio| Phase {
            from_ns,
            until_ns,
            kind,
            hot_bytes: 6 << 20,
            local_ratio,
        };
        let phases = Phases {
            list: vec![
                phase(0, 2_000_000, 1, Some(0.25)),
                phase(2_000_000, 5_000_000, 2, None),
            ],
            unit_bytes: 1 << 14,
        };
        let trace = trace(&empty(), &WorkingSet::default(), &phases);
        let slices = events(&trace, "X");
        let expected = json!({
            "ph": "X", "name": "phase 2", "cat": "phase", "pid": MACHINE, "tid": PHASES,
            "ts": 2000.0, "dur": 3000.0,
            "args": {"hot MiB": 6.0, "unit KiB": 16, "local accesses %": null},
        });
        assert_eq!((slices.len(), slices[1]), (2, &expected));
        assert_eq!(slices[0]["args"]["local accesses %"], 25.0);
        let names = events(&trace, "M");
        let track = names.iter().find(|name| name["name"] == "thread_name");
        assert_eq!(track.unwrap()["args"]["name"], "phases");
        assert_eq!(
            (&track.unwrap()["pid"], &track.unwrap()["tid"]),
            (&json!(MACHINE), &json!(PHASES))
        );
    }
}
