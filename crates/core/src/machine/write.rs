//! Writes a machine as a machine file that parses back equal: how the lab hands a scaled machine
//! to the emulator. Everything is spelled out (domains, directed links, routes, distances), so
//! that nothing is derived anew.

use super::parse::FORMAT;
use super::{Cache, Curve, Link, Machine, Node};
use std::fmt::{Display, Write as _};

/// The machine as text in the format `hither.machine/1`; `parse(to_toml(m)) == m`.
#[must_use]
pub fn to_toml(machine: &Machine) -> String {
    let mut out = Lines(String::new());
    out.field("format", quoted(FORMAT));
    out.field("name", quoted(&machine.name));
    out.field("description", quoted(&machine.description));
    if !machine.scaling.is_empty() {
        out.field("scaling", quoted(&machine.scaling));
    }
    out.field("line_bytes", machine.line_bytes);
    out.field("distances", format!("{:?}", machine.distances));
    core_side(&mut out, machine);
    for level in &machine.cache_bandwidths {
        out.header("[[cache_bandwidth]]");
        out.field("level", level.level);
        out.field("size_kb", level.size_kb);
        out.number("one_gbs", level.one_gbs);
        if let Some(gbs) = level.all_gbs {
            out.number("all_gbs", gbs);
        }
    }
    for domain in &machine.domains {
        out.header("[[domain]]");
        out.field("cpus", quoted(&domain.cpus.to_string()));
        cache(&mut out, &domain.cache);
    }
    for entry in &machine.nodes {
        node(&mut out, entry);
    }
    for entry in &machine.links {
        link(&mut out, machine, entry);
    }
    routes(&mut out, machine);
    out.0
}

fn core_side(out: &mut Lines, machine: &Machine) {
    let Machine {
        cpu,
        costs,
        tlb,
        coherence,
        ..
    } = machine;
    out.header("[cpu]");
    out.number("ghz", cpu.ghz);
    out.number("cpi", cpu.cpi);
    out.number("divide_cycles", cpu.divide_cycles);
    out.number("pause_cycles", cpu.pause_cycles);
    out.number("mlp", cpu.mlp);
    if let Some(mlp) = cpu.store_mlp {
        out.number("store_mlp", mlp);
    }
    if let Some(window) = cpu.window {
        out.number("window", window);
    }
    out.number("stream_gbs", cpu.stream_gbs);
    out.number("stream_overlap", cpu.stream_overlap);
    out.header("[costs]");
    for (name, ns) in costs.values() {
        out.number(name, ns);
    }
    out.header("[tlb]");
    out.field("small_entries", tlb.small_entries);
    out.field("huge_entries", tlb.huge_entries);
    out.number("miss_ns", tlb.miss_ns);
    out.header("[private_cache]");
    cache(out, &machine.private_cache);
    out.header("[coherence]");
    out.number("same_domain_ns", coherence.same_domain_ns);
    out.number("cross_domain_ns", coherence.cross_domain_ns);
    out.number("invalidate_ns", coherence.invalidate_ns);
    if let Some(unit_gbs) = coherence.unit_gbs {
        out.number("unit_gbs", unit_gbs);
    }
    if let Some(ownership_ns) = coherence.remote_ownership_ns {
        out.number("remote_ownership_ns", ownership_ns);
    }
}

fn cache(out: &mut Lines, cache: &Cache) {
    out.field("size_kb", cache.size_kb);
    out.field("ways", cache.ways);
    out.number("latency_ns", cache.latency_ns);
}

fn curve(out: &mut Lines, curve: &Curve) {
    out.number("curve.a_ns", curve.a_ns);
    out.number("curve.b_ns", curve.b_ns);
    out.number("curve.n", curve.n);
}

fn node(out: &mut Lines, node: &Node) {
    out.header("[[node]]");
    out.field("id", node.id.0);
    out.field("cpus", quoted(&node.cpus.to_string()));
    out.field("memory_mb", node.memory_mb);
    out.field("tier", node.tier);
    out.field("kind", quoted(node.kind.word()));
    out.number("idle_ns", node.idle_ns);
    curve(out, &node.curve);
    let points: Vec<String> = node
        .capacity
        .points
        .iter()
        .map(|(share, gbs)| format!("[{share:?}, {gbs:?}]"))
        .collect();
    out.field("capacity_gbs", format!("[{}]", points.join(", ")));
}

fn link(out: &mut Lines, machine: &Machine, link: &Link) {
    out.header("[[link]]");
    out.field("from", machine.nodes[link.from].id.0);
    out.field("to", machine.nodes[link.to].id.0);
    out.number("gbs", link.gbs);
    out.number("hop_ns", link.hop_ns);
    curve(out, &link.curve);
    out.number("overhead", link.overhead);
}

fn routes(out: &mut Lines, machine: &Machine) {
    let id = |position: usize| machine.nodes[position].id.0;
    for (from, row) in machine.routes.iter().enumerate() {
        for (to, routes) in row.iter().enumerate().filter(|&(to, _)| to != from) {
            for route in routes {
                let stops = route.links.iter().map(|&link| id(machine.links[link].to));
                let via: Vec<u32> = stops.take(route.links.len().saturating_sub(1)).collect();
                out.header("[[route]]");
                out.field("from", id(from));
                out.field("to", id(to));
                out.field("via", format!("{via:?}"));
                out.number("share", route.share);
            }
        }
    }
}

struct Lines(String);

impl Lines {
    fn header(&mut self, header: &str) {
        self.line(format_args!("\n{header}"));
    }

    fn field(&mut self, name: &str, value: impl Display) {
        self.line(format_args!("{name} = {value}"));
    }

    /// `{:?}` prints the shortest text that reads back as the same number, always with a point
    /// or an exponent.
    fn number(&mut self, name: &str, value: f64) {
        self.line(format_args!("{name} = {value:?}"));
    }

    fn line(&mut self, line: std::fmt::Arguments<'_>) {
        writeln!(self.0, "{line}").expect("a String takes every write");
    }
}

fn quoted(text: &str) -> String {
    toml::Value::String(text.to_owned()).to_string()
}
