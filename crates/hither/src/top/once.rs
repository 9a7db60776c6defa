//! The same for who looks once: a table on standard output, or its twin in JSON (`hither.top/1`,
//! docs/cli.md).

use super::ages;
use super::figures::{self, percent_sign};
use super::machine::{CacheFigures, LinkFigures, MachineFigures, NO_PAIRS, NodeFigures};
use super::model::{Mapping, Model};
use super::process::{Process, Thread};
use super::{render, text};
use crate::print::{self, Table};
use crate::terminal::Terminal;
use hither_core::snapshot::Evidence;
use hither_linux::bind::astray::AstrayFigures;
use serde_json::{Value, json};

/// The table. `left_out`: processes whose pages were not looked for.
pub fn table(model: &Model, left_out: usize, terminal: Terminal) -> String {
    let mut out = format!(
        "{}, {}, over {}; own CPU {}\n",
        print::count(model.about.nodes.len(), "node"),
        text::processes(model.count()),
        text::interval(model.about.interval_us),
        percent_sign(&model.own_cpu),
    );
    if let Some(machine) = &model.machine {
        out.push_str(&format!("{}\n\n", text::machine(machine)));
        out.push_str(&nodes(model, machine, terminal));
        if let Some(links) = machine.links.value().filter(|links| !links.is_empty()) {
            out.push('\n');
            out.push_str(&link_table(links, terminal));
        }
        if let Some(caches) = text::caches(machine) {
            out.push_str(&format!("\n{caches}\n"));
        }
        out.push_str(&format!("\n{}\n", text::moves(&machine.moves)));
        out.push_str(&age_table(model, machine, terminal));
    }
    let names = model.about.node_numbers();
    let row = |process: &&Process| figures::process(process, &names);
    let rows: Vec<Vec<String>> = model.sorted().iter().map(row).collect();
    let heads = figures::PROCESSES.map(|(head, ..)| head);
    out.push_str(&format!("\n{}", columns(&heads, &rows, terminal)));
    for sentence in text::badly_placed(model) {
        out.push_str(&format!("{sentence}\n"));
    }
    out.push_str(&focus_tables(model, &names, terminal));
    out.push_str(&format!("\n{}", remarks(model, left_out)));
    out
}

/// A table in which misplacement stands out.
fn columns(heads: &[&str], rows: &[Vec<String>], terminal: Terminal) -> String {
    let paint = |row: usize, column: usize| figures::colour(heads[column], rows[row].get(column)?);
    Table::new(heads, rows).paint(&paint).text(terminal)
}

fn remarks(model: &Model, left_out: usize) -> String {
    let mut remarks = format!("{} not told here:\n", print::DASH);
    for sentence in text::unknowns(model) {
        remarks.push_str(&format!("  {sentence}\n"));
    }
    if left_out > 0 {
        remarks.push_str(&format!(
            "  pages of {left_out} processes: looking for all would take too long; see --pid\n"
        ));
    }
    remarks
}

fn nodes(model: &Model, machine: &MachineFigures, terminal: Terminal) -> String {
    let heads = [
        "node",
        "CPUs",
        "memory",
        "free",
        "read GB/s",
        "write GB/s",
        "use %",
        "local %",
        "latency ns",
        "promoted in/s",
        "demoted out/s",
        "other's pages/s",
    ];
    let row = |(name, node): (&super::machine::NodeName, &NodeFigures)| {
        vec![
            name.id.to_string(),
            name.cpus.clone(),
            figures::memory(name.total_kb),
            print::or_dash(node.free_kb.get(), figures::memory),
            figures::gbs(&node.read_gbs),
            figures::gbs(&node.write_gbs),
            figures::percent(&node.utilisation),
            figures::percent(&node.local),
            figures::whole(&node.latency_ns),
            figures::whole(&node.promoted_in),
            figures::whole(&node.demoted_out),
            figures::whole(&node.missed_in),
        ]
    };
    let all = model.about.nodes.iter().zip(&machine.nodes);
    columns(&heads, &all.map(row).collect::<Vec<_>>(), terminal)
}

/// How lately memory was used, by node; nothing where nobody asked.
fn age_table(model: &Model, machine: &MachineFigures, terminal: Terminal) -> String {
    let Some(nodes) = machine.ages.as_ref().and_then(Evidence::value) else {
        return String::new();
    };
    let mut heads = vec!["used within".to_owned()];
    heads.extend(ages::heads());
    let heads: Vec<&str> = heads.iter().map(String::as_str).collect();
    let row = |(name, ages): (&super::machine::NodeName, _)| {
        let mut row = vec![name.id.to_string()];
        row.extend(ages::cells(ages));
        row
    };
    let all = model.about.nodes.iter().zip(nodes);
    let rows: Vec<Vec<String>> = all.map(row).collect();
    format!("\n{}", columns(&heads, &rows, terminal))
}

fn link_table(links: &[LinkFigures], terminal: Terminal) -> String {
    let row = |link: &LinkFigures| {
        vec![
            link.name.clone(),
            format!("{:.2}", link.gbs),
            format!("{:.1}", link.utilisation * 100.0),
        ]
    };
    let rows: Vec<Vec<String>> = links.iter().map(row).collect();
    columns(&["link", "GB/s", "use %"], &rows, terminal)
}

/// Threads and mappings of the process that was asked for.
fn focus_tables(model: &Model, names: &[u32], terminal: Terminal) -> String {
    let focus = model.focus.as_ref();
    let Some((focus, process)) = focus.and_then(|f| Some((f, model.process(f.pid)?))) else {
        return String::new();
    };
    let mut out = "\n".to_owned();
    for line in text::process(model, process, focus) {
        out.push_str(&format!("{line}\n"));
    }
    let threads: Vec<Vec<String>> = text::by_cpu(process.threads.iter())
        .into_iter()
        .map(|(tid, thread)| render::thread(tid, thread, names))
        .collect();
    let heads = ["TID", "NAME", "CPU%", "LAST CPU", "TIME% BY NODE"];
    out.push_str(&format!("\n{}", columns(&heads, &threads, terminal)));
    match focus.mappings.value() {
        Some(mappings) => {
            let row = |mapping: &Mapping| render::mapping_cells(mapping, names);
            let rows: Vec<Vec<String>> = mappings.iter().map(row).collect();
            let heads = ["START", "MEM", "LOC%", "POLICY", "PAGES% BY NODE", "NAME"];
            out.push_str(&format!("\n{}", columns(&heads, &rows, terminal)));
        }
        None => out.push_str(&format!("\nmappings: {}\n", focus.mappings.basis())),
    }
    out
}

/// The document, indented, with a final newline.
pub fn document(model: &Model, left_out: usize) -> String {
    let machine = model.machine.as_ref();
    let document = json!({
        "schema": "hither.top/1",
        "interval_us": model.about.interval_us,
        "sorted_by": model.sort.word(),
        "own": { "cpu": model.own_cpu.get(), "own_processes_only": model.about.own_only },
        "tracker": model.about.tracker.get(),
        "machine": machine.map(|machine| json!({
            "local_access_ratio": machine.local.get(),
            "latency_ns": machine.latency_ns.get(),
            "memory_pressure": machine.pressure.get(),
        })),
        "nodes": machine.map(|machine| node_values(model, machine)),
        "links": machine.and_then(|machine| machine.links.value()).map(|links| {
            links.iter().map(|link| json!({
                "name": link.name,
                "gbs": link.gbs,
                "utilisation": link.utilisation,
            })).collect::<Vec<_>>()
        }),
        "caches": machine.and_then(|machine| machine.caches.value()).map(|caches| {
            caches.iter().map(|cache: &CacheFigures| json!({
                "id": cache.id,
                "total_gbs": cache.total_gbs,
                "local_gbs": cache.local_gbs,
            })).collect::<Vec<_>>()
        }),
        "moves": machine.map(|machine| json!({
            "migrated_per_s": machine.moves.migrated.get(),
            "failed_per_s": machine.moves.failed.get(),
            "promoted_per_s": machine.moves.promoted.get(),
            "demoted_per_s": machine.moves.demoted.get(),
            "hint_faults_per_s": machine.moves.hint_faults.get(),
            "hint_local_ratio": machine.moves.hint_local.get(),
            "pairs": Value::Null,
            "pairs_why": NO_PAIRS,
        })),
        "processes": model.sorted().iter().map(|process| process_value(model, process))
            .collect::<Vec<_>>(),
        "focus": focus_value(model),
        "unlooked_count": left_out,
        "unknown": text::unknowns(model),
    });
    print::json(document)
}

fn node_values(model: &Model, machine: &MachineFigures) -> Vec<Value> {
    let all = model.about.nodes.iter().zip(&machine.nodes);
    let told = machine.ages.as_ref().and_then(Evidence::value);
    let value = |(position, (name, node)): (usize, (&super::machine::NodeName, &NodeFigures))| {
        json!({
            "id": name.id,
            "cpus": name.cpus,
            "memory_kb": name.total_kb,
            "free_kb": node.free_kb.get(),
            "read_gbs": node.read_gbs.get(),
            "write_gbs": node.write_gbs.get(),
            "utilisation": node.utilisation.get(),
            "local_access_ratio": node.local.get(),
            "latency_ns": node.latency_ns.get(),
            "promoted_in_per_s": node.promoted_in.get(),
            "demoted_out_per_s": node.demoted_out.get(),
            "missed_in_per_s": node.missed_in.get(),
            "ages": told.and_then(|nodes| nodes.get(position)).map(ages::value),
        })
    };
    all.enumerate().map(value).collect()
}

fn process_value(model: &Model, process: &Process) -> Value {
    json!({
        "pid": process.pid,
        "name": process.task.stat.name,
        "cpu": process.cpu.get(),
        "thread_count": process.task.thread_count,
        "memory_kb": process.resident_kb(),
        "local_access_ratio": process.local.get(),
        "latency_ns": process.latency_ns.get(),
        "misplaced": process.misplaced().get(),
        "misplaced_basis": process.misplaced().basis(),
        "pages": process.residency.value().map(|pages| by_node(model, pages)),
        "pages_basis": process.residency.basis(),
        "astray": process.astray.value().and_then(AstrayFigures::share),
        "astray_pages": process.astray.value().map(|figures| figures.astray_pages),
        "files_elsewhere_pages": process.astray.value()
            .map(|figures| figures.files_elsewhere_pages),
        "astray_basis": process.astray.basis(),
    })
}

/// Pairs of node and pages, of nodes that have some.
fn by_node(model: &Model, pages: &[u64]) -> Vec<Value> {
    let all = model.about.nodes.iter().zip(pages);
    let some = all.filter(|(_, count)| **count > 0);
    some.map(|(name, count)| json!({ "node": name.id, "count": count }))
        .collect()
}

fn focus_value(model: &Model) -> Option<Value> {
    let focus = model.focus.as_ref()?;
    let process = model.process(focus.pid)?;
    let thread = |(tid, thread): (i32, &Thread)| {
        json!({
            "tid": tid,
            "name": thread.name,
            "cpu": thread.cpu.get(),
            "last_cpu": thread.last_cpu,
            "running": running(model, thread.running.shares()),
        })
    };
    let mapping = |mapping: &Mapping| {
        json!({
            "start": mapping.read.start,
            "end": mapping.read.end,
            "name": mapping.read.name,
            "policy": mapping.read.policy,
            "pages": by_node(model, &mapping.read.pages),
            "sample_count": mapping.accesses.count,
            "local_access_ratio": mapping.local(),
        })
    };
    let faults = |pick: fn(&(f64, f64)) -> f64| process.faults.value().map(pick);
    let mappings = |read: &Evidence<Vec<Mapping>>| {
        let all = read.value()?;
        Some(all.iter().map(mapping).collect::<Vec<_>>())
    };
    Some(json!({
        "pid": focus.pid,
        "minor_faults_per_s": faults(|faults| faults.0),
        "major_faults_per_s": faults(|faults| faults.1),
        "group_pressure": focus.group_pressure.get(),
        "group_ages": focus.group_ages.as_ref().and_then(Evidence::value).map(ages::value),
        "running": running(model, process.running.shares()),
        "threads": text::by_cpu(process.threads.iter()).into_iter().map(thread)
            .collect::<Vec<_>>(),
        "mappings": mappings(&focus.mappings),
        "mappings_basis": focus.mappings.basis(),
    }))
}

/// Pairs of node and share of CPU time.
fn running(model: &Model, shares: Option<Vec<f64>>) -> Option<Vec<Value>> {
    let shares = shares?;
    let all = model.about.nodes.iter().zip(shares);
    let some = all.filter(|(_, share)| *share > 0.0);
    Some(
        some.map(|(name, share)| json!({ "node": name.id, "share": share }))
            .collect(),
    )
}
