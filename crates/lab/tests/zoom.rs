//! `hither zoom` finds planted mistakes on an emulated machine, and names what would help.

use crate::common::{bare, built};
use hither_lab::image::AGENT_PATH;
use serde_json::Value;
use std::path::Path;
use std::process::Command;

#[test]
#[ignore = "boots QEMU; make test runs it"]
fn planted_mistakes_are_found() {
    // Counters of 256 bytes are to be named by their line, too: with its lines of source.
    let planted = built("planted");
    let zoom = |mode: &str, rounds: u32| {
        let sites = if mode == "false-sharing" {
            "--sites=64"
        } else {
            ""
        };
        format!(
            "{AGENT_PATH} zoom {sites} --seconds 0.3 --json /tmp/{mode} -- {} {mode} --rounds {rounds} >/dev/null \
             || exit; cat /tmp/{mode};",
            planted.display(),
        )
    };
    // A process that runs: the refinement says which page to look at, and that is looked at.
    let at_page = format!(
        "{planted} false-sharing --rounds 1000000 >/dev/null & pid=$!; sleep 0.2; \
         {AGENT_PATH} zoom $pid --seconds 0.3 >/tmp/steps || exit; \
         page=$(sed -n 's/.*closer: .*--page //p' /tmp/steps | head -n 1); \
         cat /tmp/steps >&2; {AGENT_PATH} zoom $pid --page $page --seconds 0.3 --json /tmp/page >&2; \
         kill $pid; cat /tmp/page",
        planted = planted.display(),
    );
    // A table that two nodes read and, one time in twenty, write after the read: its fills are reads.
    // It is loaded in a tenth of a second. The look at it is kept, for the report of the same samples.
    let kvstore = bare("kvstore");
    let read_before_written = format!(
        "; numactl -N 0,1 -m 3 {kvstore} --threads 2 --mb 16 --operations 100000000 --no-pin \
         >/dev/null & pid=$!; sleep 0.3; \
         {AGENT_PATH} zoom $pid --steps 2 --seconds 0.2 -o /tmp/rec --json /tmp/kv >&2 || exit; \
         kill $pid; cat /tmp/kv; {AGENT_PATH} report /tmp/rec --json /tmp/report >&2; cat /tmp/report",
        kvstore = kvstore.display(),
    );
    let script = zoom("false-sharing", 150)
        + &zoom("master-init", 8)
        + &zoom("all-to-one", 16)
        + &at_page
        + &read_before_written;
    let machine = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../machines/opteron8385.toml");
    let output = Command::new(built("hither"))
        .args(["lab", "run", "--cpus", "4", "--timeout", "9m", "--machine"])
        .arg(machine)
        .arg("--file")
        .arg(&planted)
        .arg("--file")
        .arg(&kvstore)
        .args(["--file", "numactl"])
        .args(["--", "/bin/sh", "-c", &script])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    let documents = serde_json::Deserializer::from_slice(&output.stdout).into_iter::<Value>();
    let documents: Vec<Value> = documents.map(Result::unwrap).collect();
    let advice: Vec<&str> = documents
        .iter()
        .take(3)
        .map(|document| {
            document["conclusions"][0]["advice"]
                .as_str()
                .unwrap_or("open")
        })
        .collect();
    assert_eq!(advice, ["pad", "make local", "interleave"], "{said}");
    let false_sharing = &documents[0];
    let area = false_sharing["conclusions"][0]["area"].as_str();
    assert!(
        area.is_some_and(|area| area.contains("planted.rs:") && area.contains("(run)")),
        "{area:?}"
    );
    let line = &false_sharing["lines"][0]["lines"][0];
    assert_eq!(line["is_false_sharing"], true, "{line}");
    assert!(line["users"].as_array().unwrap().len() >= 2, "{line}");
    // Its pages are counted by the device, each alone.
    assert_eq!(documents[2]["pages"][0]["is_counted"], true, "{said}");
    check_page(&documents[3], &said);
    check_written(&documents[4], &documents[5], &said);
}

/// A table that is written, whatever its fills were: nobody says that it is only read.
fn check_written(zoom: &Value, report: &Value, said: &str) {
    assert_eq!(zoom["schema"], "hither.zoom/1", "{said}");
    assert_eq!(report["schema"], "hither.report/1", "{said}");
    // The device counts lines of its pages that another CPU had modified.
    assert_eq!(zoom["pages"][0]["written"], true, "{zoom:#}\n{said}");
    let table = &report["areas"][0];
    assert_ne!(table["written"], false, "{table:#}");
    assert!(
        table["sample_count"].as_u64().unwrap() >= 16,
        "{table:#}\n{said}"
    );
    assert_eq!(table["remedy"], "interleave", "{table:#}\n{said}");
    for wrong in ["only read", "replicate", "not written"] {
        assert!(!said.contains(wrong), "{wrong}: {said}");
    }
}

/// The page of the counters: one line, written by all CPUs, in one place of the source.
fn check_page(document: &Value, said: &str) {
    assert_eq!(document["schema"], "hither.zoom-page/1", "{said}");
    assert_eq!(document["program"], "planted");
    assert_eq!(document["choice"]["advice"], "pad", "{document:#}");
    assert_eq!(document["is_counted"], true, "{document:#}");
    assert_eq!(document["absent_page_count"], 0);
    let line = &document["lines"][0];
    assert_eq!(line["is_false_sharing"], true, "{line}");
    let nodes = line["counted_transfers"].as_array().unwrap();
    assert!(
        nodes.iter().all(|count| count.as_f64().unwrap() > 1000.0),
        "each of four nodes has a CPU that counts: {line}\n{said}"
    );
    assert_eq!(document["users"].as_array().unwrap().len(), 4);
    let source = &document["source"][0];
    let file = source["file"].as_str().unwrap_or_default();
    assert!(file.ends_with("planted.rs"), "{document:#}");
    assert!(source["line"].as_u64().is_some(), "{source}");
    let share = |part: &Value, all: f64| part["transfers"].as_f64().unwrap() / all;
    let all = line["transfers"].as_f64().unwrap();
    assert!(share(source, all) > 0.9, "{document:#}");
}
