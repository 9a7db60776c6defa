//! A machine with two tiers: its latencies are the thesis's, and the kernel's own ways of using both are set up
//! for a run and gone after it.

use crate::common::{bare, built};
use std::path::Path;
use std::process::Command;

/// What a run finds, on one line each.
const SCRIPT: &str = "
echo balancing $(cat /proc/sys/kernel/numa_balancing) demotion $(cat /sys/kernel/mm/numa/demotion_enabled)
echo damon_stat $(cat /sys/module/damon_stat/parameters/enabled) \
kdamonds $(cat /sys/kernel/mm/damon/admin/kdamonds/nr_kdamonds) $(cat /sys/kernel/mm/damon/admin/kdamonds/*/state)
cd /sys/kernel/mm/mempolicy/weighted_interleave
echo weights $(cat node0) $(cat node1) auto $(cat auto)
read line < /proc/self/numa_maps
echo maps $line
";

fn lab(words: &[&str]) -> (bool, String, String) {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../machines/westmere-m2.toml");
    let output = Command::new(built("hither"))
        .args(["lab", words[0], "--timeout", "20m", "--machine"])
        .arg(&file)
        .args(&words[1..])
        .output()
        .unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (
        output.status.success(),
        text(&output.stdout),
        text(&output.stderr),
    )
}

#[test]
#[ignore = "boots the laboratory"]
fn the_kernels_ways_are_set_up_for_a_run_alone() {
    let policies = "kernel-tiering,damon,weighted,first-touch,oracle";
    let memlat = bare("memlat");
    let memlat = memlat.to_str().unwrap();
    // 1 s in the slow tier's memory.
    let script = format!("{SCRIPT}{memlat} --first-node 1 --mb 32 --accesses 3000000");
    let (is_good, _, said) = lab(&[
        "compare",
        "--file",
        memlat,
        "--memory",
        "256,512",
        "--policies",
        policies,
        "--",
        "sh",
        "-c",
        &script,
    ]);
    assert!(is_good, "{said}");
    for (policy, expected) in [
        ("kernel-tiering", "balancing 2 demotion true"),
        ("kernel-tiering", "damon_stat Y kdamonds 0"),
        ("damon", "balancing 0 demotion false"),
        ("damon", "damon_stat N kdamonds 2 on on"),
        ("weighted", "balancing 0 demotion false"),
        ("weighted", "damon_stat Y kdamonds 0"),
        ("weighted", "weights 10 1"),
        ("weighted", "weighted interleave:0-1"),
        ("first-touch", "balancing 0 demotion false"),
        ("first-touch", "damon_stat Y kdamonds 0"),
        ("first-touch", "default"),
    ] {
        let found = said
            .lines()
            .any(|line| line.trim_start().starts_with(policy) && line.contains(expected));
        assert!(found, "no `{expected}` under {policy}:\n{said}");
    }
    let automatic = said
        .lines()
        .filter(|line| line.contains("auto true"))
        .count();
    // The oracle runs twice: the first counts.
    assert_eq!(automatic, 5, "{said}");
    // What the oracle has counted in a run before is in fast memory soon: 0.41 of the latency from then on.
    let ns_under = |policy: &str| -> f64 {
        let own = said
            .lines()
            .filter(|line| line.trim_start().starts_with(policy));
        let mut ns = own.filter_map(|line| Some(line.split_once("ns_per_access: ")?.1));
        ns.next_back()
            .and_then(|ns| ns.trim().parse().ok())
            .unwrap_or_else(|| panic!("no latency under {policy}:\n{said}"))
    };
    let (before, after) = (ns_under("first-touch"), ns_under("oracle"));
    println!("{before} ns by first touch, {after} ns by the oracle");
    assert!(after < 0.65 * before, "{said}");
}

#[test]
#[ignore = "boots the laboratory"]
fn latencies_are_the_thesiss() {
    let memlat = bare("memlat");
    let memlat = memlat.to_str().unwrap();
    let script = format!(
        "for n in 0 1; do {memlat} --node $n --mb 96 --accesses 500000 --cpu 0; done; \
         {memlat} --first-node 1 --mb 96 --accesses 500000; \
         hither run --policy tiers --json /tmp/run.json -- {memlat} --first-node 1 --mb 32 --accesses 5000000 && \
         cat /tmp/run.json"
    );
    let (is_good, told, said) = lab(&[
        "run",
        "--file",
        memlat,
        "--evidence",
        "pmu",
        "--",
        "sh",
        "-c",
        &script,
    ]);
    assert!(is_good, "{said}{told}");
    let cycles: Vec<f64> = told
        .lines()
        .filter_map(|line| line.strip_prefix("ns_per_access: "))
        .map(|ns| ns.parse::<f64>().unwrap() * 2.666)
        .collect();
    println!("{cycles:?} cycles");
    // Table 9 of the thesis: 367 cycles in fast memory, 900 in slow; 5 %.
    for (found, expected) in cycles.iter().zip([367.0, 900.0, 900.0]) {
        assert!((found / expected - 1.0).abs() < 0.05, "{cycles:?}");
    }
    assert_eq!(cycles.len(), 4, "{told}");
    // All of the program's 8192 pages are hot, and go to the fast node while it runs.
    let moved: Vec<u64> = told
        .lines()
        .filter_map(|line| line.trim().strip_prefix("\"moved_pages\": "))
        .map(|count| count.trim_end_matches(',').parse().unwrap())
        .collect();
    println!("{moved:?} pages moved");
    assert!(moved.iter().any(|&pages| pages >= 7_500), "{told}{said}");
    assert!(cycles[3] < 700.0, "{cycles:?}");
}
