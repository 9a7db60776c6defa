//! `hither topo --from` and `--hwloc` as a person sees them.

use crate::common::{output, refused, text};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};

fn fixture(name: &str) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures");
    folder.join(name).to_str().unwrap().to_owned()
}

fn shown(arguments: &[&str]) -> String {
    let output = output(arguments);
    assert!(output.status.success(), "{}", text(&output.stderr));
    text(&output.stdout)
}

/// The part that sysfs and hwloc both tell: up to the notes, without columns that only one has.
fn table(text: &str, below: &str) -> String {
    let from = text.find(below).unwrap();
    let to = text.find("\nkernel:").or(text.find("\noffline:"));
    let to = to.or(text.find("\nnotes")).unwrap_or(text.len());
    text[from..to].trim_end().to_owned()
}

#[test]
fn a_machine_of_lstopo_is_shown_like_its_tree() {
    for name in ["two-socket", "sparse-nodes", "hbm-and-cxl", "memory-less"] {
        let file = shown(&["topo", "--from", &fixture(&format!("hwloc/{name}.xml"))]);
        let tree = shown(&["topo", "--root", &fixture(&format!("machines/{name}"))]);
        assert_eq!(table(&file, "distances"), table(&tree, "distances"));
        assert_eq!(file.lines().next(), tree.lines().next());
        assert!(file.contains("free memory: all memory counts as free"));
    }
}

#[test]
fn a_machine_of_hwloc_3_is_shown_like_that_of_2() {
    for name in ["two-socket", "memory-less"] {
        let of =
            |folder: &str| shown(&["topo", "--from", &fixture(&format!("{folder}/{name}.xml"))]);
        let (new, old) = (of("hwloc3"), of("hwloc"));
        assert_eq!(table(&new, "distances"), table(&old, "distances"));
        assert!(new.contains("how many huge pages"), "{new}");
    }
    // Of unknown size, and of an unknown number of huge pages.
    let text = fs::read_to_string(fixture("hwloc3/small.xml")).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("unknown.xml");
    fs::write(&file, text.replace("local_memory=\"1073741824\"", "")).unwrap();
    let file = file.to_str().unwrap();
    let unknown = shown(&["topo", "--from", file]);
    assert!(
        unknown.starts_with("1 node, 1 package, 2 CPUs (CPUs 0-1), – of memory"),
        "{unknown}"
    );
    let json: Value = serde_json::from_str(&shown(&["topo", "--from", file, "--json"])).unwrap();
    for field in ["memory_kb", "free_kb", "huge_pages"] {
        assert_eq!(json["nodes"][0][field], Value::Null, "{field}");
    }
    // The smallest that lstopo 3 writes.
    let small = shown(&["topo", "--from", &fixture("hwloc3/small.xml"), "--json"]);
    let document: Value = serde_json::from_str(&small).unwrap();
    assert_eq!(
        (
            &document["cpus"]["online"],
            &document["nodes"][0]["memory_kb"]
        ),
        (&"0-1".into(), &1_048_576.into())
    );
}

#[test]
fn sets_are_worked_out_on_a_foreign_machine() {
    let file = fixture("hwloc/two-socket.xml");
    let arguments = ["topo", "--from", &file, "--set", "near:gpu0 - core:2"];
    let json = shown(&[&arguments[..], &["--json"]].concat());
    let document: Value = serde_json::from_str(&json).unwrap();
    let set = &document["sets"][0];
    assert_eq!((&set["cpus"], &set["nodes"]), (&"3,7".into(), &"1".into()));
    let fast = ["--set", "fastest:16G", "--set", "node:2"];
    let file = fixture("hwloc/hbm-and-cxl.xml");
    assert_eq!(
        shown(&[&["topo", "--from", &file], &fast[..]].concat()),
        "set          CPUs  nodes  memory   free\n\
         fastest:16G  none  1      16 GiB   16 GiB\n\
         node:2       none  2      256 GiB  256 GiB\n"
    );
}

#[test]
fn what_is_written_is_the_same_machine() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder
        .path()
        .join("machine.xml")
        .to_str()
        .unwrap()
        .to_owned();
    let tree = fixture("machines/hbm-and-cxl");
    let written = output(&["topo", "--root", &tree, "--hwloc", &file]);
    assert!(written.status.success() && written.stdout.is_empty());
    assert_eq!(text(&written.stderr), "");
    let printed = shown(&["topo", "--root", &tree, "--hwloc", "-"]);
    assert_eq!(printed, fs::read_to_string(&file).unwrap());
    let document = |arguments: &[&str]| -> Value {
        serde_json::from_str(&shown(&[&["topo", "--json"], arguments].concat())).unwrap()
    };
    let (read, tree) = (document(&["--from", &file]), document(&["--root", &tree]));
    assert_eq!(read["schema"], "hither.topo/1");
    for field in ["distances", "cpus", "domains", "packages"] {
        assert_eq!(read[field], tree[field], "{field}");
    }
    for field in ["id", "cpus", "memory_kb", "free_kb", "tier", "weight"] {
        for node in 0..3 {
            assert_eq!(read["nodes"][node][field], tree["nodes"][node][field]);
        }
    }
    assert_eq!(read["numa_balancing"], Value::Null);
    let again = shown(&["topo", "--from", &file, "--hwloc", "-"]);
    assert_eq!(
        again, printed,
        "base pages of 4 KiB are taken on both sides"
    );
    let sockets = fixture("machines/two-socket");
    let written = output(&["topo", "--root", &sockets, "--hwloc", &file]);
    assert_eq!(
        text(&written.stderr),
        "hither: firmware gives no latency or bandwidth of the nodes (no HMAT): only distances are \
         known\nhither: devices are not written\n"
    );
}

#[test]
fn bad_files_are_refused_with_place_and_remedy() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| -> PathBuf { folder.path().join(name) };
    let good = fs::read_to_string(fixture("hwloc/two-socket.xml")).unwrap();
    let within = good.find(" complete_cpuset").unwrap() - 2;
    let after = good.find("    <info").unwrap();
    let version = good.replace("version=\"2.0\"", "version=\"1.0\"");
    let bomb = format!(
        "<!DOCTYPE topology [<!ENTITY a \"aaaa\"><!ENTITY b \"{}\">]>\n<topology version=\"&b;\"/>",
        "&a;".repeat(1_000)
    );
    let deep = format!(
        "<topology version='2.0'>{}",
        "<object type='Group'>".repeat(100_000)
    );
    for (name, bytes, words) in [
        (
            "empty",
            Vec::new(),
            "empty:1: has no XML element; give a file of hwloc 2 or 3",
        ),
        (
            "cut",
            good.as_bytes()[..within].to_vec(),
            "cut:4: is no XML: syntax error: attribute value not closed",
        ),
        (
            "short",
            good.as_bytes()[..after].to_vec(),
            "short:5: the file ends within <object> of line 4",
        ),
        (
            "old",
            version.into_bytes(),
            "old:3: is of hwloc 1; load it with lstopo of hwloc 2",
        ),
        (
            "bomb",
            bomb.into_bytes(),
            "bomb:1: defines a document type of its own",
        ),
        ("deep", deep.into_bytes(), "deep:1: has elements 128 deep"),
        ("bytes", vec![0xff; 64], "is not text in UTF-8"),
    ] {
        fs::write(path(name), bytes).unwrap();
        refused(&["topo", "--from", path(name).to_str().unwrap()], words);
    }
    let huge = fs::File::create(path("huge")).unwrap();
    huge.set_len(1 << 30).unwrap();
    let file = |name: &str| path(name).to_str().unwrap().to_owned();
    refused(&["topo", "--from", &file("huge")], "larger than 64 MiB");
    refused(
        &["topo", "--from", &file("none")],
        "cannot be read; give a file of hwloc 2 or 3",
    );
    refused(
        &["topo", "--from", folder.path().to_str().unwrap()],
        "cannot be read",
    );
    refused(
        &["topo", "--from", "a", "--root", "/"],
        "cannot be used with",
    );
    refused(&["topo", "--from", "a", "--doctor"], "cannot be used with");
    refused(&["topo", "--hwloc", "a", "--json"], "cannot be used with");
    refused(
        &["topo", "--hwloc", &file("none/x")],
        "give --hwloc a file in a folder of yours",
    );
}
