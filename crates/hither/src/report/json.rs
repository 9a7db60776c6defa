//! The report as hither.report/1; documented in docs/cli.md.

use super::areas;
use super::figures::Figures;
use super::roofline::Roofline;
use crate::print;
use hither_recording::analysis::heat::Heat;
use hither_recording::analysis::sharing::SharedLine;
use serde_json::{Value, json};

/// The document.
pub fn json(figures: &Figures) -> String {
    let (data, overall) = (&figures.data, &figures.overall);
    let windows = figures.working_set.windows.iter().map(|window| {
        json!({
            "time_ns": window.time_ns,
            "touched_bytes": window.touched_bytes,
            "weighted_bytes": window.weighted_bytes,
            "error_bytes": window.error_bytes,
        })
    });
    let residents = figures.residents.iter().map(|resident| {
        json!({
            "pid": resident.pid,
            "process": data.process_name(resident.pid),
            "node_bytes": resident.nodes,
            "most_bytes": resident.most_bytes,
            "is_estimated": resident.is_estimated,
        })
    });
    let phases = figures.phases.list.iter().map(|phase| {
        json!({
            "from_ns": phase.from_ns, "until_ns": phase.until_ns, "kind": phase.kind,
            "hot_bytes": phase.hot_bytes, "local_access_ratio": phase.local_ratio,
        })
    });
    let document = json!({
        "schema": "hither.report/1",
        "recording": data.meta,
        "length_ns": data.length_ns(),
        "nodes": data.nodes,
        "verdict": {
            "finding": figures.verdict.finding.name(),
            "sentence": figures.verdict.sentence,
            "next": figures.verdict.next,
        },
        "overall": {
            "sample_count": data.accesses.len(),
            "region_count": data.regions.len(),
            "lost_count": overall.lost_count,
            "local_access_ratio": overall.local_access_ratio,
            "latency_ns": overall.latency_ns,
            "controller_imbalance": overall.controller_imbalance,
            "link_use": overall.link_use,
            "accesses_per_us": overall.accesses_per_us,
            "instructions_per_us": overall.instructions_per_us,
            "flops_per_us": overall.flops_per_us,
            "bytes_per_us": overall.bytes_per_us,
            "flops_per_byte": overall.flops_per_byte(),
            "own_cpu_us": overall.own_cpu_us,
            "watched_cpu_us": overall.watched_cpu_us,
        },
        "areas": areas::json(figures),
        "lines": figures.lines.iter().map(|line| one_line(figures, line)).collect::<Vec<_>>(),
        "heat": figures.heat.as_ref().map(|heat| heat_of(figures, heat)),
        "working_set": {
            "of": if figures.working_set.of_samples { "samples" } else { "regions" },
            "windows": windows.collect::<Vec<_>>(),
        },
        "phases": phases.collect::<Vec<_>>(),
        "roofline": figures.roofline.as_ref().map(Roofline::json),
        "formed": figures.formed.as_ref().map(|formed| formed.json(data)),
        "residents": residents.collect::<Vec<_>>(),
        "moved_pages": figures.moves,
        "notes": data.notes,
    });
    print::json(document)
}

fn one_line(figures: &Figures, line: &SharedLine) -> Value {
    let users = line.users.iter().map(|user| {
        json!({
            "id": user.id,
            "accesses": user.accesses,
            "writes": user.writes,
            "offsets": user.offsets,
        })
    });
    json!({
        "address": line.address,
        "pid": line.pid,
        "area": figures.areas.list.get(line.area as usize).map(|area| &area.name),
        "accesses": line.accesses,
        "latency_ns": line.latency_ns,
        "apart_share": line.apart,
        "is_false_sharing": line.is_false(),
        "users_are": if line.by_thread { "threads" } else { "cpus" },
        "users": users.collect::<Vec<_>>(),
    })
}

fn heat_of(figures: &Figures, heat: &Heat) -> Value {
    let columns = heat.columns().max(1);
    let rows = heat.cells.chunks(columns).enumerate().map(|(row, cells)| {
        let addresses = heat.addresses(row);
        let node = heat.node(&figures.data.meta, row);
        json!({"start": addresses.start, "end": addresses.end, "node": node, "cells": cells})
    });
    json!({
        "pid": heat.pid,
        "of": if heat.of_samples { "samples" } else { "regions" },
        "times_ns": heat.times_ns,
        "rows": rows.collect::<Vec<_>>(),
    })
}
