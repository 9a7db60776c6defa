//! Scaling and derived topology on small machines, worked by hand.

use hither_core::machine::Machine;
use hither_core::machine::parse::parse;
use hither_core::machine::scale::{ScaleError, scale, with_memory_mb, with_total_memory_mb};

/// What every machine needs and these tests do not look at.
const CORE: &str = r#"
format = "hither.machine/1"
name = "test"
description = "a machine of a test"
line_bytes = 64
cpu = { ghz = 2, cpi = 1, divide_cycles = 20, pause_cycles = 40, mlp = 4, stream_gbs = 3, stream_overlap = 0 }
tlb = { small_entries = 512, huge_entries = 64, miss_ns = 20 }
private_cache = { size_kb = 256, ways = 8, latency_ns = 5 }
coherence = { same_domain_ns = 40, cross_domain_ns = 90, invalidate_ns = 60 }
[costs]
syscall_ns = 1
exception_ns = 1
interrupt_ns = 1
ipi_ns = 1
wakeup_ns = 1
page_table_switch_ns = 1
invlpg_ns = 1
device_access_ns = 1
[node_defaults]
memory_mb = 1024
idle_ns = 100
capacity_gbs = 8
curve = { a_ns = 0, b_ns = 10, n = 1 }
"#;

/// Refused where there is no link to take them.
const LINK_DEFAULTS: &str = r#"
[link_defaults]
gbs = 4
hop_ns = 50
overhead = 1
curve = { a_ns = 0, b_ns = 10, n = 1 }
"#;

/// A machine of nodes with these CPU lists, one cache per `per_domain` CPUs, these links.
fn machine(cpus: &[&str], per_domain: usize, links: &[(usize, usize)]) -> Machine {
    build("", cpus, per_domain, links, "").unwrap()
}

fn build(
    top: &str,
    cpus: &[&str],
    per_domain: usize,
    links: &[(usize, usize)],
    rest: &str,
) -> Result<Machine, hither_core::machine::parse::Error> {
    let mut text = format!(
        "{top}{CORE}\n[llc]\nsize_kb = 4096\nways = 16\nlatency_ns = 20\ncpus_per_domain = {per_domain}\n"
    );
    for cpus in cpus {
        text.push_str(&format!("[[node]]\ncpus = \"{cpus}\"\n"));
    }
    if !links.is_empty() || rest.contains("[[link]]") {
        text.push_str(LINK_DEFAULTS);
    }
    for (a, b) in links {
        text.push_str(&format!("[[link]]\nbetween = [{a}, {b}]\n"));
    }
    parse(&(text + rest))
}

fn cpu_lists(machine: &Machine) -> Vec<String> {
    machine
        .nodes
        .iter()
        .map(|node| node.cpus.to_string())
        .collect()
}

/// CPUs and KiB of each domain.
fn domains(machine: &Machine) -> Vec<(String, u64)> {
    machine
        .domains
        .iter()
        .map(|domain| (domain.cpus.to_string(), domain.cache.size_kb))
        .collect()
}

fn pairs(expected: &[(&str, u64)]) -> Vec<(String, u64)> {
    expected
        .iter()
        .map(|&(cpus, kb)| (cpus.to_owned(), kb))
        .collect()
}

#[test]
fn asking_for_more_or_too_few_cpus_says_what_is_possible() {
    let machine = machine(&["0-3", "4-7"], 4, &[(0, 1)]);
    let error = scale(&machine, 9).unwrap_err();
    assert_eq!(error.to_string(), "test has 8 CPUs, not 9; ask for 2 to 8");
    let error = scale(&machine, 1).unwrap_err();
    assert_eq!(
        error.to_string(),
        "test has 2 nodes with CPUs, 1 CPUs are too few; ask for 2 to 8"
    );
    assert!(matches!(
        scale(&machine, 0),
        Err(ScaleError::TooFew { least: 2, .. })
    ));
    assert_eq!(scale(&machine, 8).unwrap(), machine);
}

#[test]
fn cpus_are_shared_out_in_proportion_and_keep_their_order() {
    // 8 and 4 CPUs to 6: 4 and 2. To 5: one each, then by claim 8/3, 8/5, then 8/7 against 4/3:
    // 3 and 2.
    let machine = machine(&["0-7", "8-11"], 4, &[(0, 1)]);
    assert_eq!(cpu_lists(&scale(&machine, 6).unwrap()), ["0-3", "4-5"]);
    assert_eq!(cpu_lists(&scale(&machine, 5).unwrap()), ["0-2", "3-4"]);
    assert_eq!(cpu_lists(&scale(&machine, 2).unwrap()), ["0", "1"]);
}

#[test]
fn interleaved_numbers_stay_interleaved() {
    let machine = machine(&["0,2,4,6", "1,3,5,7"], 4, &[(0, 1)]);
    assert_eq!(cpu_lists(&scale(&machine, 4).unwrap()), ["0,2", "1,3"]);
}

#[test]
fn domains_stay_while_each_can_have_two_cpus() {
    // Two domains of four to three CPUs: 2 and 1; 8 MB * 3/8 = 3 MB, half of it each.
    let machine = machine(&["0-7"], 4, &[]);
    assert_eq!(
        domains(&scale(&machine, 3).unwrap()),
        pairs(&[("0-1", 1536), ("2", 1536)])
    );
    // To two CPUs: one domain with 8 MB / 4.
    assert_eq!(
        domains(&scale(&machine, 2).unwrap()),
        pairs(&[("0-1", 2048)])
    );
}

#[test]
fn caches_of_one_cpu_stay_with_it() {
    let machine = machine(&["0-3"], 1, &[]);
    assert_eq!(
        domains(&scale(&machine, 2).unwrap()),
        pairs(&[("0", 4096), ("1", 4096)])
    );
}

#[test]
fn a_cache_meets_its_size_by_its_associativity() {
    // 4 MB * 3/8 = 1.5 MB = 24576 lines: 12 ways of 2048 sets. Three CPUs of eight in one domain.
    let machine = machine(&["0-7"], 8, &[]);
    let scaled = scale(&machine, 3).unwrap();
    let cache = &scaled.domains[0].cache;
    assert_eq!((cache.size_kb, cache.ways), (1536, 12));
    // 5/8 has no exact form below 20 ways: 40960 lines are 20 of 2048 or 10 of 4096.
    let cache = &scale(&machine, 5).unwrap().domains[0].cache;
    assert_eq!(cache.size_kb, 2560);
    assert!((cache.size_kb * 1024 / 64 / u64::from(cache.ways)).is_power_of_two());
}

#[test]
fn scaling_twice_tells_both_steps() {
    let machine = machine(&["0-7"], 8, &[]);
    let twice = scale(&scale(&machine, 4).unwrap(), 2).unwrap();
    assert!(
        twice.scaling.contains("from 8 to 4 CPUs"),
        "{}",
        twice.scaling
    );
    assert!(
        twice.scaling.contains("from 4 to 2 CPUs"),
        "{}",
        twice.scaling
    );
    assert_eq!(twice.nodes[0].capacity.points, [(1.0, 2.0)]);
}

#[test]
fn memory_is_shared_out_in_steps_and_never_grows() {
    let machine = machine(&["0", "1"], 1, &[(0, 1)]);
    let memory = |machine: &Machine| {
        machine
            .nodes
            .iter()
            .map(|n| n.memory_mb)
            .collect::<Vec<_>>()
    };
    // 1000 MiB are 15 steps of 64: one each and half of 13 each, rounded down: 7 steps.
    assert_eq!(
        memory(&with_total_memory_mb(&machine, 1000).unwrap()),
        [448, 448]
    );
    assert_eq!(with_total_memory_mb(&machine, 4096).unwrap(), machine);
    let error = with_total_memory_mb(&machine, 100).unwrap_err();
    assert_eq!(
        error.to_string(),
        "node0 of test cannot have 0 MiB; give it 64 to 16777216 MiB"
    );
    let odd = with_memory_mb(&machine, &|node| 128 + u64::from(node.id.0) * 64).unwrap();
    assert_eq!(memory(&odd), [128, 192]);
    assert!(
        odd.scaling.contains("node1 192 instead of 1024"),
        "{}",
        odd.scaling
    );
}

#[test]
fn equal_ways_share_equally_and_a_split_favours_the_first() {
    let square = [(0, 1), (0, 2), (1, 3), (2, 3)];
    let nodes = ["0", "1", "2", "3"];
    let shares = |machine: &Machine| -> Vec<f64> {
        machine.routes[0][3]
            .iter()
            .map(|route| route.share)
            .collect()
    };
    assert_eq!(shares(&machine(&nodes, 1, &square)), [0.5, 0.5]);
    let split = |share: &str| build(&format!("route_split = {share}"), &nodes, 1, &square, "");
    assert_eq!(shares(&split("0.75").unwrap()), [0.75, 0.25]);
    assert_eq!(shares(&split("1").unwrap()), [1.0]);
    // A neighbour has one way, whatever the split.
    assert_eq!(split("0.75").unwrap().routes[0][1][0].share, 1.0);
}

#[test]
fn fewer_links_win_over_less_latency() {
    // 0-1 direct costs 300 ns, by way of 2 only 100 ns: hardware takes the direct link.
    let slow = "[[link]]\nbetween = [0, 1]\nhop_ns = 300\n";
    let machine = build("", &["0", "1", "2"], 1, &[(0, 2), (2, 1)], slow).unwrap();
    assert_eq!(machine.idle_latency_ns(0, 1), 400.0);
}

#[test]
fn listed_routes_replace_those_found() {
    let listed = "[[route]]\nfrom = 0\nto = 1\nvia = [2]\nshare = 0.25\n\
                  [[route]]\nfrom = 0\nto = 1\nshare = 0.75\n";
    let machine = build("", &["0", "1", "2"], 1, &[(0, 1), (0, 2), (2, 1)], listed).unwrap();
    // From memory 0 to a CPU of node 1: 100 + 0.25 * 100 + 0.75 * 50 = 162.5 ns; back: 150.
    assert_eq!(machine.idle_latency_ns(1, 0), 162.5);
    assert_eq!(machine.idle_latency_ns(0, 1), 150.0);
}

#[test]
fn sparse_ids_are_sorted_and_named_by_links() {
    let rest = "[[node]]\nid = 9\n[[node]]\nid = 4\n[[link]]\nbetween = [0, 9]\n\
                [[link]]\nbetween = [9, 4]\n";
    let machine = build("", &["0-1"], 2, &[], rest).unwrap();
    assert_eq!(
        machine
            .nodes
            .iter()
            .map(|node| node.id.0)
            .collect::<Vec<_>>(),
        [0, 4, 9]
    );
    assert_eq!(machine.idle_latency_ns(0, 2), 150.0);
    assert_eq!(machine.idle_latency_ns(0, 1), 200.0);
}

#[test]
fn bandwidths_of_caches_are_optional_survive_and_shrink_where_they_are_all_cpus() {
    const LEVELS: &str = "\n[[cache_bandwidth]]\nlevel = 1\nsize_kb = 32\none_gbs = 200\nall_gbs = 800\n\
                          [[cache_bandwidth]]\nlevel = 3\nsize_kb = 4096\none_gbs = 40.5\n";
    let without = machine(&["0-3"], 4, &[]);
    assert!(without.cache_bandwidths.is_empty());
    let with = build("", &["0-3"], 4, &[], LEVELS).unwrap();
    let told = |machine: &Machine| -> Vec<(u32, u64, f64, Option<f64>)> {
        let levels = machine.cache_bandwidths.iter();
        levels
            .map(|l| (l.level, l.size_kb, l.one_gbs, l.all_gbs))
            .collect()
    };
    let expected = [(1, 32, 200.0, Some(800.0)), (3, 4096, 40.5, None)];
    assert_eq!(told(&with), expected);
    let back = parse(&hither_core::machine::write::to_toml(&with)).unwrap();
    assert_eq!(back, with);
    // One CPU alone has what it had.
    let scaled = scale(&with, 1).unwrap();
    assert_eq!(told(&scaled)[0], (1, 32, 200.0, Some(200.0)));
}

#[test]
fn an_engine_scales_with_the_cpus_and_a_small_node_stays_small() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../machines/keystone2.toml");
    let machine =
        hither_core::machine::parse::parse(&std::fs::read_to_string(file).unwrap()).unwrap();
    let two = scale(&machine, 2).unwrap();
    let gbs =
        |machine: &hither_core::machine::Machine| machine.engine.as_ref().unwrap().bandwidth_gbs;
    assert_eq!(gbs(&two), gbs(&machine) / 2.0);
    assert_eq!(two.engine.as_ref().unwrap().channels, 6);
    // 6 MiB, where a step is 64.
    let small = with_total_memory_mb(&machine, 1024).unwrap();
    assert_eq!(small.nodes[1].memory_mb, 6);
    assert!(with_memory_mb(&machine, &|node| if node.id.0 == 1 { 5 } else { 512 }).is_err());
}
