//! `hither topo --set`: what resource sets come to on this machine.

use crate::print::{self, Table, size};
use crate::terminal::Terminal;
use anyhow::anyhow;
use hither_core::rset::{Expression, ExpressionFault, Resolved, ResourceSet, Resources};
use serde_json::{Value, json};

/// An expression and what it comes to.
pub struct Shown {
    expression: Expression,
    resolved: Resolved,
    /// Memory of its nodes in KiB, and how much of it is free.
    memory_kb: (u64, u64),
}

/// Works out every expression.
///
/// # Errors
/// The first that cannot be read or comes to nothing here, marked where it is wrong.
pub fn resolve(texts: &[String], resources: &Resources) -> anyhow::Result<Vec<Shown>> {
    let shown = |text: &String| {
        let expression: Expression = text.parse()?;
        let resolved = expression.resolve(resources)?;
        let (total, free) = resources.memory_bytes(&resolved.set.nodes);
        Ok(Shown {
            expression,
            resolved,
            memory_kb: (total >> 10, free >> 10),
        })
    };
    let pointed = |text: &String| {
        shown(text).map_err(|fault: ExpressionFault| anyhow!("--set: {}", fault.pointed(text)))
    };
    texts.iter().map(pointed).collect()
}

/// A row for each, and below them what was left out.
pub fn table(shown: &[Shown], terminal: Terminal) -> String {
    let head = ["set", "CPUs", "nodes", "memory", "free", "left out"];
    let or_none = |list: String| match list.is_empty() {
        true => "none".to_owned(),
        false => list,
    };
    let row = |shown: &Shown| {
        let set = &shown.resolved.set;
        let out = shown.resolved.left_out();
        let out = [
            ("CPUs", out.cpus.to_string()),
            ("nodes", out.nodes.to_string()),
        ];
        let out = out.iter().filter(|(_, list)| !list.is_empty());
        let out: Vec<String> = out.map(|(what, list)| format!("{what} {list}")).collect();
        vec![
            shown.expression.to_string(),
            or_none(set.cpus.to_string()),
            or_none(set.nodes.to_string()),
            size(shown.memory_kb.0),
            size(shown.memory_kb.1),
            out.join(", "),
        ]
    };
    let rows: Vec<Vec<String>> = shown.iter().map(row).collect();
    let mut text = Table::new(&head, &rows).text(terminal);
    let warnings = shown.iter().flat_map(|shown| {
        let warnings = shown.resolved.warnings.iter();
        warnings.map(|warning| format!("{}: {warning}\n", shown.expression))
    });
    let warnings: String = warnings.collect();
    if !warnings.is_empty() {
        text.push_str(&format!("\n{warnings}"));
    }
    text
}

/// `hither.topo-set/1`, documented in `docs/cli.md`.
pub fn document(shown: &[Shown]) -> String {
    let set = |shown: &Shown| -> Value {
        let (asked, set) = (&shown.resolved.asked, &shown.resolved.set);
        let out = shown.resolved.left_out();
        let lists = |set: &ResourceSet| {
            let (cpus, nodes) = (set.cpus.to_string(), set.nodes.to_string());
            json!({ "cpus": cpus, "nodes": nodes })
        };
        json!({
            "expression": shown.expression.to_string(),
            "cpus": set.cpus.to_string(),
            "nodes": set.nodes.to_string(),
            "memory_kb": shown.memory_kb.0,
            "free_kb": shown.memory_kb.1,
            "asked": lists(asked),
            "left_out": lists(&out),
            "warnings": shown.resolved.warnings,
        })
    };
    let document = json!({
        "schema": "hither.topo-set/1",
        "sets": shown.iter().map(set).collect::<Vec<_>>(),
    });
    print::json(document)
}
