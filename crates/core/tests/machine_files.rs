//! The machine files of the repository: every number has a source, every file parses, scales to
//! eight CPUs or fewer, shrinks to a small host's memory and survives being written down.

use hither_core::machine::Machine;
use hither_core::machine::parse::parse;
use hither_core::machine::scale::{scale, with_total_memory_mb};
use hither_core::machine::write::to_toml;
use std::path::Path;

fn machine_files() -> Vec<(String, String)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../machines");
    let mut files: Vec<(String, String)> = std::fs::read_dir(&folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| {
            path.extension()
                .is_some_and(|extension| extension == "toml")
        })
        .map(|path| {
            let name = path.file_stem().unwrap().to_string_lossy().into_owned();
            (name, std::fs::read_to_string(path).unwrap())
        })
        .collect();
    files.sort();
    assert!(
        files.len() >= 7,
        "only {} machine files were found",
        files.len()
    );
    files
}

fn machine(name: &str) -> Machine {
    let (_, text) = machine_files()
        .into_iter()
        .find(|(file, _)| file == name)
        .unwrap();
    parse(&text).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// The value's text and the comment of a `key = value` line whose value holds a number.
///
/// ```text
/// idle_ns = 87                    # D 200 cycles, fitted to table 1
/// ```
fn number_line(line: &str) -> Option<(&str, &str)> {
    let (_, rest) = line.split_once('=').filter(|(key, _)| !key.contains('#'))?;
    let value = rest.trim_start();
    if value.starts_with('"') {
        return None;
    }
    Some(value.split_once('#').unwrap_or((value, "")))
}

#[test]
fn every_number_carries_its_source() {
    let mut lines = 0;
    for (name, text) in machine_files() {
        for (number, line) in text.lines().enumerate() {
            let Some((_, comment)) = number_line(line) else {
                continue;
            };
            let source = ["R ", "D ", "E "]
                .iter()
                .find_map(|mark| comment.trim().strip_prefix(mark));
            assert!(
                source.is_some_and(|source| !source.trim().is_empty()),
                "{name}.toml:{}: no `# R`, `# D` or `# E` with a source: {line}",
                number + 1
            );
            lines += 1;
        }
    }
    assert!(lines > 200, "only {lines} lines with numbers were seen");
}

#[test]
fn every_file_parses_and_is_named_as_its_machine() {
    for (name, text) in machine_files() {
        let machine = parse(&text).unwrap_or_else(|error| panic!("{name}.toml: {error}"));
        assert_eq!(machine.name, name);
        assert_eq!(machine.scaling, "");
    }
}

#[test]
fn every_machine_scales_to_a_small_host_and_survives_being_written() {
    for (name, text) in machine_files() {
        let machine = parse(&text).unwrap();
        let nodes_with_cpus = machine
            .nodes
            .iter()
            .filter(|node| !node.cpus.is_empty())
            .count();
        assert_eq!(parse(&to_toml(&machine)).unwrap(), machine, "{name}");
        for cpus in nodes_with_cpus..=machine.cpu_count().min(16) {
            let scaled = scale(&machine, cpus).unwrap();
            let scaled = with_total_memory_mb(&scaled, 8192).unwrap();
            assert_eq!(scaled.cpu_count(), cpus, "{name}");
            assert!(
                scaled.nodes.iter().map(|node| node.memory_mb).sum::<u64>() <= 8192,
                "{name}"
            );
            let again = parse(&to_toml(&scaled)).unwrap_or_else(|error| panic!("{name}: {error}"));
            assert_eq!(again, scaled, "{name} at {cpus} CPUs");
        }
    }
}

/// Loops that spin on `pause` run at the host's speed in the emulator: a shorter one would take the
/// host long to get over a little guest time.
#[test]
fn no_pause_is_too_short_to_spin_on() {
    for (name, _) in machine_files() {
        let pause_cycles = machine(&name).cpu.pause_cycles;
        assert!(
            pause_cycles >= 20.0,
            "{name}.toml: cpu.pause_cycles is {pause_cycles}"
        );
    }
}

#[test]
fn the_opteron_is_a_square() {
    let machine = machine("opteron8385");
    assert_eq!(machine.cpu_count(), 16);
    assert_eq!(machine.links.len(), 8);
    // From node 0 across to node 3: 0.52 of the traffic by node 1, the rest by node 2.
    let across: Vec<(f64, Vec<usize>)> = machine.routes[0][3]
        .iter()
        .map(|route| {
            (
                route.share,
                route
                    .links
                    .iter()
                    .map(|&link| machine.links[link].to)
                    .collect(),
            )
        })
        .collect();
    assert_eq!(across, [(0.52, vec![1, 3]), (0.48, vec![2, 3])]);
    // 87 ns; one hop 87 + 26.1 = 113 ns; two hops 139 ns: the three latencies of the fit.
    let latency_ns = |to| machine.idle_latency_ns(0, to).round();
    assert_eq!([0, 1, 2, 3].map(latency_ns), [87.0, 113.0, 113.0, 139.0]);
    // 10 * 113.1 / 87 = 13, 10 * 139.2 / 87 = 16.
    assert_eq!(machine.distances[0], [10, 13, 13, 16]);
}

#[test]
fn the_opteron_at_eight_cpus_has_half_of_what_is_shared() {
    let machine = machine("opteron8385");
    let scaled = scale(&machine, 8).unwrap();
    assert!(
        scaled.scaling.contains("from 16 to 8 CPUs"),
        "{}",
        scaled.scaling
    );
    let cpus: Vec<String> = scaled
        .nodes
        .iter()
        .map(|node| node.cpus.to_string())
        .collect();
    assert_eq!(cpus, ["0-1", "2-3", "4-5", "6-7"]);
    for (node, before) in scaled.nodes.iter().zip(&machine.nodes) {
        assert_eq!(node.capacity.points, [(1.0, 6.15 / 2.0)]);
        assert_eq!((node.idle_ns, node.curve), (before.idle_ns, before.curve));
    }
    for (link, before) in scaled.links.iter().zip(&machine.links) {
        assert_eq!((link.gbs, link.hop_ns), (before.gbs / 2.0, before.hop_ns));
    }
    for domain in &scaled.domains {
        assert_eq!(
            (domain.cpus.len(), domain.cache.size_kb, domain.cache.ways),
            (2, 3072, 48)
        );
    }
    assert_eq!(scaled.cpu, machine.cpu);
    assert_eq!(scaled.private_cache, machine.private_cache);
    assert_eq!(scaled.routes, machine.routes);
}

#[test]
fn knights_landing_keeps_its_tiles_and_its_bare_node() {
    let machine = machine("knl7250");
    assert_eq!(machine.domains.len(), 34);
    let scaled = scale(&machine, 8).unwrap();
    // Four tiles of two, each with the whole 1 MB: 34 MB * 8 / 68 = 4 MB.
    let domains: Vec<(String, u64)> = scaled
        .domains
        .iter()
        .map(|domain| (domain.cpus.to_string(), domain.cache.size_kb))
        .collect();
    let expected = [("0-1", 1024), ("2-3", 1024), ("4-5", 1024), ("6-7", 1024)];
    assert_eq!(domains, expected.map(|(cpus, kb)| (cpus.to_owned(), kb)));
    assert!(scaled.nodes[1].cpus.is_empty());
    assert_eq!(scaled.idle_latency_ns(0, 1), 176.0);
    // 96 GB and 16 GB in 7 GB = 112 steps of 64 MiB: 1 + 110 * 6 / 7 = 95 and 1 + 110 / 7 = 16.
    let small = with_total_memory_mb(&scaled, 7168).unwrap();
    assert_eq!(
        small
            .nodes
            .iter()
            .map(|node| node.memory_mb)
            .collect::<Vec<_>>(),
        [6080, 1024]
    );
}

#[test]
fn the_expander_is_behind_the_first_socket() {
    let machine = machine("spr-2s-cxl");
    // 130 ns in the device and 130 ns to it; 76 ns more from the second socket.
    assert_eq!(machine.idle_latency_ns(0, 2), 260.0);
    assert_eq!(machine.idle_latency_ns(1, 2), 336.0);
}

#[test]
fn the_switch_is_at_most_six_times_and_the_direct_way_two_to_three_times_slower() {
    let ratio = |name: &str| {
        let machine = machine(name);
        machine.idle_latency_ns(0, 1) / machine.idle_latency_ns(0, 0)
    };
    assert!(
        (2.0..=3.0).contains(&ratio("ibm-two-node")),
        "{}",
        ratio("ibm-two-node")
    );
    assert!(
        (4.0..=6.0).contains(&ratio("ibm-ccnuma")),
        "{}",
        ratio("ibm-ccnuma")
    );
}

#[test]
fn the_example_of_the_documentation_parses() {
    let page = include_str!("../../../docs/machine-files.md");
    let (_, example) = page.rsplit_once("```toml\n").unwrap();
    let machine = parse(example.split("```").next().unwrap()).unwrap();
    assert_eq!(machine.name, "two-sockets");
    // 10 * (90 + 50) / 90 = 15.6, rounded to 16.
    assert_eq!(machine.distances, [[10, 16], [16, 10]]);
}
