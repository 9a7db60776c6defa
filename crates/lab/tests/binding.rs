//! Every memory and thread policy of `hither run` on emulated machines, and rules for blocks: the
//! kernel's policy, the CPUs, and the node of every page, against what topology and distances say they
//! must be. And the same for programs that allocate on a set themselves, with stripes, home nodes and
//! pages that move.
//!
//! `HITHER_MACHINES` names machine files, with commas between, each followed by a slash
//! and a node where one stays offline (`knl7250-snc4/5`); without it one machine is taken.

use crate::common::{bare, built};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

/// Four nodes with CPUs and three without, whose numbers have a hole.
const MACHINE: &str = "knl7250-snc4/5";
/// Sets that every machine has, and most have memory elsewhere.
const SETS: [&str; 4] = [
    "machine",
    "machine-node:0",
    "cpus:0 + ~machine-node:0",
    "cpus:1 + machine - mem:0 + mem:0",
];
const POLICIES: [&str; 7] = [
    "float",
    "local",
    "remote",
    "striped",
    "bind",
    "preferred",
    "weighted",
];
/// Of allocations; the home node of `@` is the last one with memory.
const LAYOUTS: [&str; 9] = [
    "bind",
    "preferred",
    "striped",
    "striped:4",
    "weighted",
    "local",
    "bind@",
    "preferred@",
    "moved",
];
const THREADS: [&str; 3] = ["fill", "round-robin:node", "round-robin:core"];

fn ids(list: &Value) -> Vec<u32> {
    let list = list.as_str().unwrap();
    let ranges = list.split(',').filter(|range| !range.is_empty());
    ranges
        .flat_map(|range| {
            let (first, last) = range.split_once('-').unwrap_or((range, range));
            first.parse().unwrap()..=last.parse::<u32>().unwrap()
        })
        .collect()
}

/// A machine as `hither topo --json` tells it.
struct Machine {
    /// Number, CPUs, weight.
    nodes: Vec<(u32, Vec<u32>, u64)>,
    distances: Vec<Vec<u64>>,
}

impl Machine {
    fn read(topology: &Value) -> Self {
        let nodes = topology["nodes"].as_array().unwrap().iter();
        let number = |value: &Value| value.as_u64().unwrap();
        let rows = topology["distances"].as_array().unwrap().iter();
        Self {
            nodes: nodes
                .map(|node| {
                    let weight = node["weight"].as_u64().unwrap_or(1);
                    (number(&node["id"]) as u32, ids(&node["cpus"]), weight)
                })
                .collect(),
            distances: rows
                .map(|row| row.as_array().unwrap().iter().map(number).collect())
                .collect(),
        }
    }

    /// Of some nodes those nearest to a CPU.
    fn nearest(&self, cpu: u32, among: &[u32]) -> Vec<u32> {
        let from = self
            .nodes
            .iter()
            .position(|node| node.1.contains(&cpu))
            .unwrap();
        let at = |id: &u32| self.nodes.iter().position(|node| node.0 == *id).unwrap();
        let distance = |id: &u32| self.distances[from][at(id)];
        let least = among.iter().map(distance).min().unwrap();
        among
            .iter()
            .copied()
            .filter(|id| distance(id) == least)
            .collect()
    }

    /// Are these pages, in order, where a policy puts them that runs on `cpus` and was given
    /// `nodes`?
    fn is_right(&self, policy: &str, cpus: &[u32], nodes: &[u32], pages: &[u32]) -> bool {
        let all: Vec<u32> = self.nodes.iter().map(|node| node.0).collect();
        let all_on = |among: &[u32]| {
            let nearest = self.nearest(cpus[0], among);
            nearest.contains(&pages[0]) && pages.iter().all(|page| *page == pages[0])
        };
        match policy {
            "float" | "local" => all_on(&all),
            "bind" | "preferred" => all_on(nodes),
            "remote" => {
                let has_none = |id: &u32| {
                    let node = self.nodes.iter().find(|node| node.0 == *id).unwrap();
                    !node.1.iter().any(|cpu| cpus.contains(cpu))
                };
                let remote: Vec<u32> = nodes.iter().copied().filter(has_none).collect();
                all_on(&remote)
            }
            "bind@" | "preferred@" => pages.iter().all(|page| Some(page) == nodes.last()),
            "striped:4" => {
                let turn = |at: usize| nodes[at / 4 % nodes.len()];
                pages.iter().enumerate().all(|(at, page)| *page == turn(at))
            }
            "striped" | "moved" => {
                let next = |page: u32| {
                    let at = nodes.iter().position(|node| *node == page);
                    at.map(|at| nodes[(at + 1) % nodes.len()])
                };
                pages.windows(2).all(|pair| next(pair[0]) == Some(pair[1]))
            }
            "weighted" => {
                // One turn takes as many pages of each node as it weighs.
                let weight = |id: &u32| self.nodes.iter().find(|node| node.0 == *id).unwrap().2;
                let turn: u64 = nodes.iter().map(weight).sum();
                let mut counts = BTreeMap::<u32, u64>::new();
                let whole = pages.len() as u64 / turn * turn;
                for page in &pages[..whole as usize] {
                    *counts.entry(*page).or_default() += 1;
                }
                whole > 0
                    && nodes
                        .iter()
                        .all(|id| counts.get(id) == Some(&(whole / turn * weight(id))))
            }
            _ => false,
        }
    }
}

fn judge(name: &str) {
    let (hither, placed) = (built("hither"), bare("examples/placed"));
    // The guest's own.
    let run = |words: &str| format!("/hither/hither {words}");
    let mut script = format!("{}; echo; ", run("topo --json"));
    for set in SETS {
        script += &format!("{}; ", run(&format!("topo --json --set '{set}'")));
        for policy in POLICIES {
            let words = format!("run --on '{set}' --memory {policy} {}", placed.display());
            script += &format!(
                "{} 2>/tmp/error; echo {policy}: $?; grep remote /tmp/error; echo ==; ",
                run(&words)
            );
        }
    }
    for policy in THREADS {
        let words = format!("run --on machine --threads {policy} sh -c 'sleep 0.2; sleep 0.1; :'");
        script += &format!("echo {policy}; {} 2>&1; echo ==; ", run(&words));
    }
    script += &format!(
        "last=$(sed 's/.*[-,]//' /sys/devices/system/node/has_memory); {} --allocate machine {} 2>&1; echo ==; ",
        placed.display(),
        LAYOUTS
            .map(|layout| layout.replace('@', "@$last"))
            .join(" ")
    );
    // CPU 0 is busy: another node is better, if another has CPUs.
    script += &format!(
        "taskset -c 0 sh -c 'while :; do :; done' & sleep 0.2; {} 2>&1; kill $!; echo ==; ",
        run(&format!("run --choose {}", placed.display()))
    );
    script += &ruled_script();
    let (file, offline) = name.split_once('/').unwrap_or((name, ""));
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../../machines/{file}.toml"));
    let mut command = Command::new(&hither);
    command.args(["lab", "run", "--cpus", "4", "--timeout", "9m", "--machine"]);
    command.arg(file).args(["--offline", offline]);
    for file in [&placed, &bare("examples/placed_blocks")] {
        command.arg("--file").arg(file);
    }
    let output = command.args(["--", "sh", "-c", &script]).output().unwrap();
    let told = String::from_utf8(output.stdout).unwrap();
    assert!(
        output.status.success(),
        "{}{told}",
        String::from_utf8_lossy(&output.stderr)
    );
    let mut documents = serde_json::Deserializer::from_str(&told).into_iter::<Value>();
    let machine = Machine::read(&documents.next().unwrap().unwrap());
    assert!(
        offline.is_empty()
            || !machine
                .nodes
                .iter()
                .any(|node| offline == node.0.to_string()),
        "{name}: {told}"
    );
    let mut rest = &told[documents.byte_offset()..];
    let (mut right_count, mut refused_count) = (0, 0);
    let mut with_memory = Vec::new();
    for set in SETS {
        let mut documents = serde_json::Deserializer::from_str(rest).into_iter::<Value>();
        let document = documents.next();
        let Some(Ok(document)) = document else {
            // Of one node there is nothing besides: refused, and by `run` as well.
            assert!(set.contains('~') || machine.nodes.len() > 1, "{rest}");
            panic!("{name}: {set} is refused\n{rest}");
        };
        rest = &rest[documents.byte_offset()..];
        let resolved = &document["sets"][0];
        let (cpus, mut nodes) = (ids(&resolved["cpus"]), ids(&resolved["nodes"]));
        if nodes.is_empty() {
            nodes = machine.nodes.iter().map(|node| node.0).collect();
        }
        if set == "machine" {
            with_memory = nodes.clone();
        }
        for policy in POLICIES {
            let (answer, after) = rest.split_once("==\n").unwrap();
            rest = after;
            let case = format!("{name}: --on '{set}' --memory {policy}: {answer}");
            if answer.contains(&format!("{policy}: 2")) {
                // Memory elsewhere there is not on every machine.
                assert!(
                    policy == "remote" && answer.contains("has some of the CPUs"),
                    "{case}"
                );
                refused_count += 1;
                continue;
            }
            assert!(answer.contains(&format!("{policy}: 0")), "{case}");
            let line = answer
                .lines()
                .find(|line| line.starts_with("cpus "))
                .unwrap();
            let (before, pages) = line.split_once(" pages ").unwrap();
            let pages: Vec<u32> = pages.split(',').map(|page| page.parse().unwrap()).collect();
            let list = before.split(' ').nth(1).unwrap();
            assert_eq!(ids(&list.into()), cpus, "{case}");
            assert!(machine.is_right(policy, &cpus, &nodes, &pages), "{case}");
            right_count += 1;
        }
    }
    for policy in THREADS {
        let (answer, after) = rest.split_once("==\n").unwrap();
        rest = after;
        let told = format!("threads {policy}");
        assert!(
            answer.contains(&told) && answer.contains("pinned to a CPU each"),
            "{answer}"
        );
    }
    let (answer, after) = rest.split_once("==\n").unwrap();
    rest = after;
    let lines: Vec<&str> = answer.lines().collect();
    assert_eq!(lines.len(), LAYOUTS.len(), "{name}: {answer}");
    for (layout, line) in LAYOUTS.iter().zip(lines) {
        let (before, pages) = line.split_once(" pages ").unwrap_or((line, ""));
        assert!(before.ends_with(" astray 0"), "{name}: {line}");
        let pages: Vec<u32> = pages.split(',').map(|page| page.parse().unwrap()).collect();
        assert!(
            pages.len() == 64 && machine.is_right(layout, &[0], &with_memory, &pages),
            "{name}: {line}"
        );
        right_count += 1;
    }
    // What was chosen is for a reader.
    let (_, after) = rest.split_once("==\n").unwrap();
    let page_count = judge_ruled(&machine, after);
    let memory = machine
        .nodes
        .iter()
        .filter(|node| node.1.is_empty())
        .count();
    println!(
        "{name}: {} nodes ({memory} without CPUs), {right_count} placements right page by page, \
         {refused_count} refused as there is no memory elsewhere; {page_count} pages right under rules",
        machine.nodes.len()
    );
    assert!(right_count >= 18 + LAYOUTS.len());
}

/// Sizes of blocks, and the rule of each: `{last}` is the last node.
const BLOCKS: [(u64, &str); 5] = [
    (16 << 20, "size>=8M: blocks"),
    (4 << 20, "size>=1M: striped:16"),
    (300_000, "size>=256K: striped"),
    (100_000, "size>=64K: bind mem:{last}"),
    (4321, "heap,size>=4321,size<4322: preferred mem:{last}"),
];

/// Which node each page of a block of `BLOCKS` belongs on; nothing where the first is any.
fn expected_nodes(at: usize, page: u64, pages: u64, nodes: &[u32]) -> Option<u32> {
    let count = nodes.len() as u64;
    let index = match at {
        0 => page / pages.div_ceil(count),
        1 => page / 16 % count,
        2 => return None,
        _ => count - 1,
    };
    Some(nodes[index as usize])
}

/// Thread policies under which blocks are placed by rules.
const RULED: [&str; 2] = ["fill", "round-robin:node"];

/// Runs under all rules: what the program tells, then the report.
fn ruled_script() -> String {
    let rules: String = BLOCKS
        .iter()
        .map(|(_, rule)| format!("--place '{}' ", rule.replace("{last}", "'$last'")))
        .collect();
    let sizes: Vec<String> = BLOCKS.iter().map(|(bytes, _)| bytes.to_string()).collect();
    let mut script = "last=$(ls -d /sys/devices/system/node/node[0-9]* | sed s/.*node// | sort -n | tail -n 1); \
                      "
    .to_owned();
    for threads in RULED {
        script += &format!(
            "/hither/hither run --on machine --memory float --threads {threads} {rules} \
             --json /tmp/report -- {} {} 2>/tmp/error || cat /tmp/error; cat /tmp/report; ",
            bare("examples/placed_blocks").display(),
            sizes.join(" ")
        );
    }
    script
}

/// Judges what `ruled_script` has printed. Returns how many pages were looked at.
fn judge_ruled(machine: &Machine, mut rest: &str) -> usize {
    let nodes: Vec<u32> = machine.nodes.iter().map(|node| node.0).collect();
    let mut page_count = 0;
    for policy in RULED {
        let (lines, after) = rest.split_at(rest.find('{').unwrap());
        let mut documents = serde_json::Deserializer::from_str(after).into_iter::<Value>();
        let report = documents.next().unwrap().unwrap();
        rest = &after[documents.byte_offset()..];
        let shim = &report["placed"]["shim"];
        let mut cpus = Vec::new();
        for line in lines.lines().filter(|line| !line.is_empty()) {
            let words: Vec<&str> = line.split(' ').collect();
            if words[0] == "thread" {
                cpus.push(words[1].parse::<u32>().unwrap());
                continue;
            }
            let bytes: u64 = words[1].parse().unwrap();
            let at = BLOCKS.iter().position(|block| block.0 == bytes).unwrap();
            // The last rule is not about mappings.
            if words[0] == "map" && BLOCKS[at].1.starts_with("heap") {
                continue;
            }
            let pages: Vec<u32> = words[2..]
                .iter()
                .flat_map(|run| {
                    let (node, count) = run.split_once('*').unwrap();
                    vec![node.parse().unwrap(); count.parse().unwrap()]
                })
                .collect();
            assert_eq!(pages.len() as u64, bytes.div_ceil(4096), "{line}");
            for (page, node) in pages.iter().enumerate() {
                let expected = expected_nodes(at, page as u64, pages.len() as u64, &nodes);
                assert_eq!(expected.unwrap_or(*node), *node, "page {page}: {line}");
            }
            if at == 2 {
                assert!(machine.is_right("striped", &[0], &nodes, &pages), "{line}");
            }
            page_count += pages.len();
        }
        let rules = shim["rules"].as_array().unwrap();
        assert_eq!(rules.len(), BLOCKS.len(), "{shim}");
        for rule in rules {
            assert!(rule["blocks"].as_u64() > Some(0), "{shim}");
            assert_eq!(
                (&rule["unplaced_blocks"], &rule["coarse_blocks"]),
                (&0.into(), &0.into())
            );
        }
        // The first, and each thread that was looked at, before one that stays.
        assert_eq!(cpus.len(), 4, "{lines}");
        assert_eq!(
            cpus.iter().collect::<std::collections::BTreeSet<_>>().len(),
            4,
            "{lines}"
        );
        let node = |cpu: &u32| {
            machine
                .nodes
                .iter()
                .position(|node| node.1.contains(cpu))
                .unwrap()
        };
        let with_cpus = machine
            .nodes
            .iter()
            .filter(|node| !node.1.is_empty())
            .count();
        if policy != "fill" && with_cpus > 1 {
            assert!(node(&cpus[0]) != node(&cpus[1]), "{lines}");
        }
        // The last may not have begun when the program ended.
        assert!(shim["threads"].as_u64() >= Some(6), "{shim}");
    }
    page_count
}

#[test]
#[ignore = "boots QEMU; make test runs it"]
fn every_policy_puts_pages_where_it_should() {
    let machines = std::env::var("HITHER_MACHINES").unwrap_or_else(|_| MACHINE.to_owned());
    machines.split(',').for_each(judge);
}
