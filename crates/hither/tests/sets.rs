//! `hither topo --set` as a person sees it.

use crate::common::{output, refused, text};
use serde_json::Value;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

fn machine(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../fixtures/machines")
        .join(name)
}

/// A captured machine seen by a process that may use only some of it.
fn confined(name: &str, cpus: &str, nodes: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let sys = machine(name).canonicalize().unwrap().join("sys");
    symlink(sys, folder.path().join("sys")).unwrap();
    fs::create_dir_all(folder.path().join("proc/self")).unwrap();
    let status =
        format!("Name:\thither\nCpus_allowed_list:\t{cpus}\nMems_allowed_list:\t{nodes}\n");
    fs::write(folder.path().join("proc/self/status"), status).unwrap();
    folder
}

fn shown(root: &Path, more: &[&str]) -> String {
    let mut arguments = vec!["topo", "--root", root.to_str().unwrap()];
    arguments.extend(more);
    let output = output(&arguments);
    assert!(output.status.success(), "{}", text(&output.stderr));
    text(&output.stdout)
}

#[test]
fn a_row_for_each_set() {
    let sets = [
        "--set",
        "near:gpu0 - core:2",
        "--set",
        "~package:1+mem:1",
        "--set",
        "cpus:0",
    ];
    assert_eq!(
        shown(&machine("two-socket"), &sets),
        "set                 CPUs     nodes  memory   free\n\
         near:gpu0 - core:2  3,7      1      64 GiB   61 GiB\n\
         ~package:1 + mem:1  0-1,4-5  0-1    128 GiB  111 GiB\n\
         cpus:0              0        none   0        0\n"
    );
}

#[test]
fn what_the_cpuset_leaves_out_is_said() {
    let root = confined("hbm-and-cxl", "0-1", "0,2");
    assert_eq!(
        shown(
            root.path(),
            &["--set", "machine", "--set", "fastest:1G", "--set", "node:2"]
        ),
        "set         CPUs  nodes  memory   free     left out\n\
         machine     0-1   0,2    384 GiB  375 GiB  CPUs 2-3, nodes 1\n\
         fastest:1G  none  0      128 GiB  120 GiB\n\
         node:2      none  2      256 GiB  255 GiB\n\
         \n\
         machine: CPUs 2-3 are left out: cpuset or affinity leave this process CPUs 0-1\n\
         machine: memory of node 1 is left out: the cpuset leaves this process memory of nodes 0,2\n\
         fastest:1G: memory of node 1 is faster and passed over: \
         the cpuset leaves this process memory of nodes 0,2\n"
    );
    let json = shown(root.path(), &["--json", "--set", "allowed-node:1+cpus:1-2"]);
    let document: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(document["schema"], "hither.topo-set/1");
    let set = &document["sets"][0];
    assert_eq!(set["expression"], "allowed-node:1 + cpus:1-2");
    assert_eq!((&set["cpus"], &set["nodes"]), (&"1".into(), &"2".into()));
    assert_eq!(set["memory_kb"], 256u64 << 20);
    assert_eq!(set["free_kb"], 255u64 << 20);
    assert_eq!(set["asked"]["cpus"], "1-2");
    assert_eq!(set["left_out"]["cpus"], "2");
    assert_eq!(set["left_out"]["nodes"], "");
    assert_eq!(set["warnings"].as_array().unwrap().len(), 1);
}

#[test]
fn what_cannot_be_had_is_refused_and_marked() {
    let root = confined("hbm-and-cxl", "0-1", "0,2");
    let root = root.path().to_str().unwrap();
    for (set, words) in [
        ("node:0 + nod:1", "hither:            ^^^^^\n"),
        (
            "node:0 + node:7",
            "this machine has node 0-2\nhither:   node:0 + node:7\n",
        ),
        ("", "a set is missing here: machine"),
        ("node:0 -node:1", "hither:          ^\n"),
        ("near:eth9", "there is no device `eth9`"),
        ("mem:1", "none of it is allowed"),
        ("cpus:3", "leave this process CPUs 0-1"),
        ("fastest:900G", "375G are available"),
    ] {
        refused(&["topo", "--root", root, "--set", set], words);
    }
    refused(
        &["topo", "--doctor", "--set", "machine"],
        "cannot be used with",
    );
    refused(&["topo", "--set"], "--set <EXPR>");
}

#[test]
fn this_machine_can_be_asked() {
    let rows = shown(Path::new("/"), &["--set", "allowed", "--set", "machine"]);
    assert!(
        rows.lines().nth(1).unwrap().starts_with("allowed "),
        "{rows}"
    );
}
