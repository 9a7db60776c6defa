//! `hither zoom --page`: bad input is refused with what, where and how to mend it; and looks at pages
//! of a running process and of a recording, which need no tracker of accesses.

use crate::common::{Sleeper, output, refused, refused_to_others, text};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};

/// First address of a mapping of this name, once it is there.
fn mapping(sleeper: &Sleeper, name: &str) -> String {
    for _ in 0..6000 {
        let maps = fs::read_to_string(format!("/proc/{}/maps", sleeper.pid())).unwrap();
        if let Some(line) = maps.lines().find(|line| line.ends_with(name)) {
            return line.split('-').next().unwrap().to_owned();
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    panic!("no {name}");
}

#[test]
fn bad_addresses_are_refused_with_a_remedy() {
    let sleeper = Sleeper::start();
    let pid = sleeper.pid();
    mapping(&sleeper, "[heap]");
    for (address, words) in [
        (
            "heap",
            "write an address in hexadecimal, as in 7f3c8d2a1040",
        ),
        ("", "write an address in hexadecimal"),
        ("7000-6000", "6000 is not above 7000: the end is exclusive"),
        (
            "7001-9000",
            "7001 is not page aligned (4096 bytes): use 7000 or 8000",
        ),
        (
            "ffffffff81000000",
            "is the kernel's: addresses of programs end at 800000000000",
        ),
        (
            "1000-1000000",
            "that are 4095 pages, and at most 64 are looked at",
        ),
        (
            "1000",
            "--page 00001000-00002000: 1000 is not mapped in process",
        ),
        ("1000", "the nearest mappings are"),
    ] {
        refused(&["zoom", &pid, "--page", address], words);
    }
    let vdso = mapping(&sleeper, "[vdso]");
    refused(
        &["zoom", &pid, "--page", &vdso],
        "[vdso] is the kernel's, which nobody can move or pad; give an address",
    );
    refused(
        &["zoom", "999999999", "--page", "1000"],
        "there is no such process; give the number of a running one",
    );
    refused(
        &["zoom", "--page", "1000", "--", "true"],
        "cannot be used with",
    );
}

#[test]
fn a_page_of_another_users_process_is_refused() {
    let sleeper = Sleeper::start();
    let heap = mapping(&sleeper, "[heap]");
    refused_to_others(&sleeper.pid(), |pid| {
        ["zoom", pid, "--page", &heap].map(str::to_owned).into()
    });
}

#[test]
fn a_page_that_nobody_uses_says_what_it_is_and_stays_open() {
    let sleeper = Sleeper::start();
    let (pid, heap) = (sleeper.pid(), mapping(&sleeper, "[heap]"));
    let look = |json: bool| {
        let mut words = vec!["zoom", &pid, "--page", &heap, "--seconds", "0.2"];
        words.extend(["--tracker", "none"]);
        words.extend(if json { &["--json", "-"][..] } else { &[] });
        let shown = output(&words);
        assert!(shown.status.success(), "{}", text(&shown.stderr));
        text(&shown.stdout)
    };
    let shown = look(false);
    for part in [
        "of sleep (",
        "mapping [heap] ",
        "open: look longer (--seconds) (no access to it was seen)",
        "try next: hither zoom ",
    ] {
        assert!(shown.contains(part), "{part} is not in {shown}");
    }
    let document: Value = serde_json::from_str(&look(true)).unwrap();
    assert_eq!(document["schema"], "hither.zoom-page/1");
    assert_eq!(document["mappings"][0]["name"], "[heap]");
    assert_eq!(document["choice"]["advice"], Value::Null);
    assert_eq!(document["sample_count"], 0);
}

fn recording(name: &str) -> PathBuf {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures");
    fixtures.join("recordings").join(name)
}

#[test]
fn a_page_of_a_recording_is_told_from_its_samples() {
    let folder = recording("whole");
    let folder = folder.to_str().unwrap();
    // The refinement of the whole names pages; one of them is looked at.
    let whole = output(&["zoom", folder, "--area", "anon", "--json", "-"]);
    let whole: Value = serde_json::from_slice(&whole.stdout).unwrap();
    let page = &whole["pages"][0]["pages"][0];
    let address = format!("{:#x}", page["address"].as_u64().unwrap());
    let shown = output(&["zoom", folder, "--page", &address, "--json", "-"]);
    assert!(shown.status.success(), "{}", text(&shown.stderr));
    let document: Value = serde_json::from_slice(&shown.stdout).unwrap();
    assert_eq!(document["program"], "cluster");
    // The same samples: the same fills and transfers of the page, and of its lines together.
    assert_eq!(document["pages"][0]["fills"], page["fills"]);
    assert_eq!(document["pages"][0]["transfers"], page["transfers"]);
    let sum = |rows: &Value, fields: &[&str]| -> f64 {
        let rows = rows.as_array().unwrap().iter();
        rows.map(|row| {
            fields
                .iter()
                .map(|f| row[*f].as_f64().unwrap())
                .sum::<f64>()
        })
        .sum()
    };
    let of_page: f64 = ["fills", "transfers"]
        .iter()
        .flat_map(|part| page[*part].as_array().unwrap())
        .map(|count| count.as_f64().unwrap())
        .sum();
    assert!(of_page > 0.0, "{whole:#}");
    for part in ["by_node", "users", "lines"] {
        assert_eq!(
            sum(&document[part], &["reads", "writes"]),
            of_page,
            "{part}"
        );
    }
    refused(&["zoom", folder, "--page", "1000"], "1000 is not mapped");
    refused(
        &[
            "zoom",
            recording("empty").to_str().unwrap(),
            "--page",
            "1000",
        ],
        "holds no mappings",
    );
}
