//! `hither move` and `hither bench move` as a person sees them. One node is enough: pages are
//! found where they shall be, and everything that can be wrong is said.

use crate::common::{Sleeper, hither, output, refused, refused_to_others, text};
use serde_json::Value;
use std::fs;
use std::process::{Command, Stdio};
use std::time::Duration;

/// A node with memory.
fn a_node() -> String {
    let shown = output(&["topo", "--json"]);
    let machine: Value = serde_json::from_slice(&shown.stdout).unwrap();
    let nodes = machine["nodes"].as_array().unwrap();
    let node = nodes
        .iter()
        .find(|node| node["memory_kb"].as_u64() > Some(0));
    node.unwrap()["id"].to_string()
}

fn json(arguments: &[&str]) -> Value {
    let shown = output(arguments);
    assert!(
        shown.status.success(),
        "{arguments:?}: {}",
        text(&shown.stderr)
    );
    serde_json::from_slice(&shown.stdout).unwrap()
}

/// Every page is accounted for, in every mapping and in all.
fn adds_up(figures: &Value) {
    let number = |name: &str| figures[name].as_u64().unwrap();
    let refused = figures["refused"].as_array().unwrap();
    let refused: u64 = refused.iter().map(|pair| pair[1].as_u64().unwrap()).sum();
    assert_eq!(
        number("moved_pages") + number("already_there_pages") + number("not_tried_pages") + refused,
        number("resident_pages"),
        "{figures:#}"
    );
}

#[test]
fn a_range_is_moved_to_where_it_may_be_already() {
    // Ours: 64 whole pages in the middle of a larger buffer, all touched.
    let mut memory = vec![0u8; 66 * 4096];
    let start = (memory.as_ptr() as usize).next_multiple_of(4096);
    let first = start - memory.as_ptr() as usize;
    for page in 0..64 {
        memory[first + page * 4096] = page as u8 + 1;
    }
    let pid = std::process::id().to_string();
    let range = format!("{start:x}-{:x}", start + 64 * 4096);
    let node = a_node();
    let arguments = [
        "move", "--pid", &pid, "--to", &node, "--range", &range, "--json",
    ];
    let document = json(&arguments);
    assert_eq!(document["schema"], "hither.move/1");
    assert_eq!(document["ended"], "done");
    assert_eq!(document["to_nodes"][0].to_string(), node);
    let total = &document["total"];
    adds_up(total);
    assert_eq!(total["resident_pages"], 64);
    assert_eq!(total["refused"].as_array().unwrap().len(), 0, "{total:#}");
    assert_eq!(total["after"]["nodes"][0]["pages"], 64);
    assert_eq!(total["strayed_pages"], 0);
    for mapping in document["mappings"].as_array().unwrap() {
        adds_up(mapping);
    }
    assert!((0..64).all(|page| memory[first + page * 4096] == page as u8 + 1));

    let again = json(&[&arguments[..], &["--dry-run"]].concat());
    assert_eq!(again["ended"], "dry_run");
    assert_eq!(again["total"]["already_there_pages"], 64);
    assert_eq!(again["total"]["to_move_pages"], 0);
    assert!(again["total"].get("moved_pages").is_none());
}

/// A report of pages that moved from the only node there may be is made of one of pages that stayed.
#[test]
fn a_move_is_taken_back_while_its_process_lives() {
    let sleeper = Sleeper::start();
    let node: u64 = a_node().parse().unwrap();
    let to = node.to_string();
    let mut report = json(&["move", "--pid", &sleeper.pid(), "--to", &to, "--json"]);
    assert_eq!(
        report["moves"].as_array().map(Vec::len),
        Some(0),
        "{report:#}"
    );
    let stack = report["mappings"].as_array().unwrap();
    let stack = stack.iter().find(|row| row["name"] == "[stack]").unwrap();
    let pages = stack["resident_pages"].as_u64().unwrap();
    report["moves"] = serde_json::json!([{"range": stack["range"], "from": node}]);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("report.json");
    let path = file.to_str().unwrap();
    let write = |report: &Value| fs::write(&file, report.to_string()).unwrap();
    write(&report);
    let back = json(&["move", "--undo", path, "--json"]);
    assert_eq!(
        (&back["to"], &back["ended"]),
        (&"undo".into(), &"done".into())
    );
    assert_eq!(back["total"]["already_there_pages"], pages);
    assert_eq!(back["mappings"].as_array().unwrap().len(), 1);
    assert_eq!(back["process"], report["process"]);
    adds_up(&back["total"]);
    let told = text(&output(&["move", "--undo", path, "--dry-run"]).stdout);
    assert!(
        told.contains(&format!("to where they were (nodes {node}): ")),
        "{told}"
    );
    assert!(
        told.contains(" not any more\n"),
        "a stack has more pages than are there: {told}"
    );

    let mut other = report.clone();
    other["process"]["stack_start"] = "7ffc00000000".into();
    write(&other);
    refused(&["move", "--undo", path], "has become another program");
    other["process"]["start_ticks"] = 1.into();
    write(&other);
    refused(&["move", "--undo", path], "another one has its number now");
    other = report.clone();
    other["moves"][0]["from"] = 777.into();
    write(&other);
    refused(
        &["move", "--undo", path],
        "node777 of the report is not here",
    );
    // What is asked of a control group is the process's own group's affair.
    other = report.clone();
    other["policy"] = serde_json::json!({"file": "etc/passwd", "before": "", "after": "0"});
    write(&other);
    refused(
        &["move", "--undo", path],
        "--undo: --policy: the policy of another process",
    );
    fs::write(&file, "{}").unwrap();
    refused(&["move", "--undo", path], "no report of a move");
    refused(&["move", "--undo", "/dev/zero"], "no report of a move");
    refused(&["move", "--undo", "/no/such/file"], "/no/such/file");
    write(&report);
    drop(sleeper);
    refused(
        &["move", "--undo", path],
        "has ended: there is nothing to take back",
    );
}

#[test]
fn a_whole_program_is_moved_and_verified() {
    let sleeper = Sleeper::start();
    let node = format!("node{}", a_node());
    let shown = output(&["move", "--pid", &sleeper.pid(), "--to", &node]);
    let table = text(&shown.stdout);
    assert!(shown.status.success(), "{}", text(&shown.stderr));
    assert!(table.starts_with(&format!("pid {} (sleep) to {node}: ", sleeper.pid())));
    assert!(
        table.contains("[stack]") && table.contains("/sleep"),
        "{table}"
    );
    assert!(
        !table.contains("[vdso]"),
        "the kernel's own is left alone: {table}"
    );
    assert!(table.contains(&format!("found on {node}")), "{table}");

    let shown = output(&[
        "move",
        "--pid",
        &sleeper.pid(),
        "--to",
        &node,
        "--mapping",
        "[stack]",
        "--dry-run",
    ]);
    let table = text(&shown.stdout);
    assert!(
        table.contains("in 1 mapping\n") && table.contains("would move"),
        "{table}"
    );
    assert!(table.contains("nothing was changed"), "{table}");
}

#[test]
fn bad_moves_are_refused_with_a_remedy() {
    let sleeper = Sleeper::start();
    let pid = sleeper.pid();
    let node = a_node();
    let on = |extra: &[&'static str], words: &str| {
        refused(&[&["move", "--pid", &pid][..], extra].concat(), words);
    };
    on(&[], "--to <NODES|TIER>");
    on(
        &["--to", "777"],
        "there is no such node here; choose one of node",
    );
    on(&["--to", "tier:77"], "--to tier:77");
    on(&["--to", "fast"], "write a node as 2 or node2");
    on(&["--to", "-1"], "--to `-1`: -1 is no number of a node");
    on(
        &["--to", "0,777"],
        "--to `0,777`: 777 is not there or may not be used; ",
    );
    on(&["--to", "+777,+0"], "+777 is more than there is");
    on(&["--to", "!all"], "no node is left");
    on(
        &["--to", "0", "--policy", "--range", "1000-2000"],
        "cannot be used with",
    );
    on(&["--to", "0", "--undo", "x"], "cannot be used with");
    // This process runs in the same control group, or in none.
    on(
        &["--to", "0", "--policy"],
        "--policy: the policy of another process changes with its control",
    );
    on(&["--to", "0", "--rate", "0"], "nothing would ever move");
    on(
        &["--to", "0", "--range", "1000-2001"],
        "2001 is not page aligned",
    );
    on(&["--to", "0", "--range", "2000-1000"], "is not above");
    on(&["--to", "0", "--range", "here"], "hexadecimal");
    on(
        &["--to", "0", "--range", "1000-2000", "--mapping", "x"],
        "cannot be used with",
    );
    let to_node = |extra: &[&str], words: &str| {
        refused(
            &[&["move", "--pid", &pid, "--to", &node][..], extra].concat(),
            words,
        );
    };
    to_node(
        &["--range", "1000-2000"],
        "nothing is mapped there; the nearest",
    );
    to_node(&["--mapping", "no-such-name"], "there are [heap]");
    to_node(
        &["--mapping", "[vdso]", "--mapping", "[heap"],
        "[heap: no mapping",
    );
    refused(&["move", "--to", &node], "--pid");
    refused(&["move", "--pid", "0", "--to", &node], "1..=");
    refused(
        &["move", "--pid", "2147483647", "--to", &node],
        "no such process",
    );
}

#[test]
fn threads_and_ended_processes_are_told_apart() {
    let node = a_node();
    let mut ended = Command::new("true").spawn().unwrap();
    let pid = ended.id().to_string();
    let stat = format!("/proc/{pid}/stat");
    while !fs::read_to_string(&stat).unwrap().contains(") Z ") {
        std::thread::sleep(Duration::from_millis(1));
    }
    refused(
        &["move", "--pid", &pid, "--to", &node],
        "a kernel thread or ended",
    );
    ended.wait().unwrap();
    refused(&["move", "--pid", &pid, "--to", &node], "no such process");

    // This test runs in a thread of the test program.
    let own = fs::read_link("/proc/thread-self").unwrap();
    let thread = own.file_name().unwrap().to_str().unwrap().to_owned();
    if thread != std::process::id().to_string() {
        refused(
            &["move", "--pid", &thread, "--to", &node],
            "not a thread of it",
        );
    }
}

#[test]
fn a_process_of_somebody_else_is_refused() {
    let node = a_node();
    refused_to_others(&Sleeper::start().pid(), |pid| {
        ["move", "--pid", pid, "--to", &node]
            .map(str::to_owned)
            .into()
    });
}

/// The interrupt is there before the first batch: blocked, pending, and kept by exec.
#[test]
fn an_interrupt_ends_it_with_what_was_done() {
    let sleeper = Sleeper::start();
    let shown = Command::new("env")
        .args(["--default-signal=INT", "--block-signal=INT", "sh", "-c"])
        .arg("kill -INT $$; exec \"$0\" \"$@\"")
        .arg(env!("CARGO_BIN_EXE_hither"))
        .args(["move", "--pid", &sleeper.pid(), "--to", &a_node()])
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let printed = text(&shown.stdout);
    assert_eq!(
        shown.status.code(),
        Some(130),
        "{printed}{}",
        text(&shown.stderr)
    );
    assert!(printed.contains("interrupted: "), "{printed}");
    assert!(printed.contains("there already"), "{printed}");
}

#[test]
fn the_comparison_is_a_table_a_document_and_a_chart() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (file, chart) = (path("move.json"), path("move.svg"));
    let quick = [
        "bench",
        "move",
        "--sizes",
        "64K,4K",
        "--repeat",
        "3",
        "--seconds",
        "5",
    ];
    let quick = [&quick[..], &["--pages", "small"]].concat();
    let shown = output(&[&quick[..], &["--json", &file, "--svg", &chart]].concat());
    let table = text(&shown.stdout);
    assert!(shown.status.success(), "{}", text(&shown.stderr));
    for words in [
        "small  4K    move_pages",
        "small  64K   memcpy-nt",
        "GB/s",
        "to copy",
    ] {
        assert!(table.contains(words), "`{words}` is not in {table}");
    }
    let document: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    assert_eq!(document["schema"], "hither.bench-move/1");
    let methods = document["methods"].as_array().unwrap();
    let results = document["results"].as_array().unwrap();
    assert_eq!(results.len(), 2 * methods.len());
    for result in results {
        let method = methods
            .iter()
            .find(|method| method["name"] == result["method"]);
        // The engine's copies are measured where there is one: on no machine but the laboratory's.
        if result["method"] == "engine" {
            let why = result["not_measured"].as_str().unwrap();
            assert!(why.contains("no copy engine"), "{result}");
            continue;
        }
        let is_copy = method.unwrap()["is_copy"].as_bool().unwrap();
        match result["not_measured"].as_str() {
            None => {
                assert!(
                    result["repetition_count"].as_u64().unwrap() >= 3,
                    "{result}"
                );
                assert!(result["min_ns"].as_f64() <= result["median_ns"].as_f64());
                assert!(result["median_ns"].as_f64() <= result["max_ns"].as_f64());
            }
            Some(why) => assert!(!is_copy && !why.is_empty(), "{result}"),
        }
        // On one node nothing moves; on two, the calls must have been measured.
        if document["in_place"] == true {
            assert_eq!(result["not_measured"].is_null(), is_copy, "{result}");
        } else if result["method"] == "move_pages" {
            assert!(result["not_measured"].is_null(), "{result}");
        }
    }
    let chart = fs::read_to_string(&chart).unwrap();
    assert!(
        chart.starts_with("<svg ") && chart.contains("memcpy, small pages"),
        "{chart}"
    );

    let printed = json(&[&quick[..], &["--sizes", "4K", "--json", "-"]].concat());
    assert_eq!(printed["results"][0]["size_bytes"], 4096);
}

#[test]
fn bad_comparisons_are_refused_with_a_remedy() {
    for (arguments, words) in [
        (&["--sizes", "5000"][..], "whole pages of 4K"),
        (&["--pages", "huge", "--sizes", "1M"], "multiples of 2M"),
        (&["--from", "777"], "--from node777: there is no such node"),
        (&["--to", "777"], "--to node777: there is no such node"),
        (&["--sizes", "1T"], "give smaller --sizes"),
        (&["--json", "/no/such/folder/x"], "give --json"),
        (&["--svg", "/no/such/folder/x"], "give --svg"),
        (&["--repeat", "0"], "--repeat"),
        (&["--seconds", "-1"], "-1"),
        (&["extra"], "extra"),
    ] {
        refused(&[&["bench", "move"][..], arguments].concat(), words);
    }
    refused(&["bench"], "Usage");
    refused(&["bench", "copy"], "unrecognized subcommand");
}

#[test]
fn a_closed_pipe_is_no_failure() {
    let sleeper = Sleeper::start();
    let mut child = hither(&["move", "--pid", &sleeper.pid(), "--to", &a_node()])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let ended = child.wait_with_output().unwrap();
    assert_eq!(
        (ended.status.code(), text(&ended.stderr)),
        (Some(0), String::new())
    );
}
