//! Captured machines with one thing broken: every fault is an error with place and remedy.

use hither_linux::root::Root;
use hither_linux::topology::Topology;
use std::fs;
use std::path::{Path, PathBuf};

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../fixtures/machines")
        .join(name)
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        let kind = entry.file_type().unwrap();
        if kind.is_dir() {
            copy(&entry.path(), &target);
        } else if kind.is_symlink() {
            std::os::unix::fs::symlink(fs::read_link(entry.path()).unwrap(), target).unwrap();
        } else {
            fs::copy(entry.path(), target).unwrap();
        }
    }
}

/// What is done to a file.
enum Break {
    Write(&'static [u8]),
    Remove,
    Folder,
}

use Break::{Folder, Remove, Write};

const NODE: &str = "sys/devices/system/node";
const CPU: &str = "sys/devices/system/cpu";

#[test]
fn each_fault_is_named_with_place_and_remedy() {
    let mm = "sys/kernel/mm";
    let cases: &[(&str, String, Break, &str)] = &[
        (
            "two-socket",
            format!("{CPU}/online"),
            Remove,
            "no such file",
        ),
        (
            "two-socket",
            format!("{CPU}/online"),
            Write(b"0-"),
            "not a list",
        ),
        (
            "two-socket",
            format!("{CPU}/online"),
            Write(b""),
            "names no CPU",
        ),
        (
            "two-socket",
            format!("{CPU}/online"),
            Write(b"7-0"),
            "runs backwards",
        ),
        (
            "two-socket",
            format!("{CPU}/online"),
            Write(b"0-70000"),
            "above the limit",
        ),
        (
            "two-socket",
            format!("{CPU}/online"),
            Write(b"0-3\xff"),
            "not text",
        ),
        (
            "two-socket",
            format!("{CPU}/online"),
            Folder,
            "cannot be read",
        ),
        (
            "two-socket",
            format!("{NODE}/online"),
            Write(b"\n"),
            "names no node",
        ),
        (
            "two-socket",
            format!("{NODE}/online"),
            Write(b"0-2"),
            "2 distances, and 3 nodes",
        ),
        (
            "two-socket",
            format!("{NODE}/online"),
            Write(b"0"),
            "2 distances, and 1 nodes",
        ),
        (
            "two-socket",
            format!("{NODE}/node1/cpulist"),
            Remove,
            "no such file",
        ),
        (
            "two-socket",
            format!("{NODE}/node1/cpulist"),
            Write(b"2-3,6-9"),
            "cpu8, which is not online",
        ),
        (
            "two-socket",
            format!("{NODE}/node1/cpulist"),
            Write(b"1-3,6-7"),
            "cpu1 is in node0 already",
        ),
        (
            "two-socket",
            format!("{NODE}/node0/distance"),
            Write(b"10"),
            "1 distances, and 2 nodes",
        ),
        (
            "two-socket",
            format!("{NODE}/node0/distance"),
            Write(b"10 x"),
            "`x` is no distance",
        ),
        (
            "two-socket",
            format!("{NODE}/node0/distance"),
            Write(b"21 10"),
            "node0 distance 21 to itself",
        ),
        (
            "two-socket",
            format!("{NODE}/node0/distance"),
            Write(b"10 300"),
            "not in 10 to 255",
        ),
        (
            "two-socket",
            format!("{NODE}/node0/meminfo"),
            Write(b"Node 0 MemTotal: 1 kB\n"),
            "MemFree",
        ),
        (
            "two-socket",
            format!("{NODE}/node0/meminfo"),
            Write(b"Node 1 MemTotal: 1 kB\n"),
            "not about node0",
        ),
        (
            "two-socket",
            format!("{NODE}/node0/meminfo"),
            Write(b"Node 0 MemTotal: 1 kB\nNode 0 MemFree: 2 kB\n"),
            "more free memory",
        ),
        (
            "two-socket",
            format!("{NODE}/node0/meminfo"),
            Write(b"\nMemTotal: 1 kB"),
            "meminfo:2",
        ),
        (
            "two-socket",
            format!("{CPU}/cpu0/cache/index3/level"),
            Write(b"9"),
            "not in 1 to 8",
        ),
        (
            "two-socket",
            format!("{CPU}/cpu0/cache/index3/shared_cpu_list"),
            Write(b"1"),
            "does not contain cpu0",
        ),
        (
            "two-socket",
            format!("{CPU}/cpu0/cache/index3/shared_cpu_list"),
            Write(b"0-2,4-5"),
            "says otherwise",
        ),
        (
            "two-socket",
            format!("{CPU}/cpu0/cache/index3/size"),
            Write(b"32768"),
            "no cache size",
        ),
        (
            "two-socket",
            format!("{CPU}/cpu5/topology/physical_package_id"),
            Write(b"one"),
            "no number",
        ),
        (
            "two-socket",
            format!("{NODE}/node0/hugepages/hugepages-2048kB/free_hugepages"),
            Write(b"17"),
            "17 pages are free of 16",
        ),
        (
            "two-socket",
            format!("{mm}/transparent_hugepage/enabled"),
            Write(b"always"),
            "no choice",
        ),
        (
            "two-socket",
            format!("{mm}/numa/demotion_enabled"),
            Write(b"maybe"),
            "neither true nor false",
        ),
        (
            "two-socket",
            "proc/sys/kernel/numa_balancing".into(),
            Write(b"-1"),
            "no number",
        ),
        (
            "hbm-and-cxl",
            "sys/devices/virtual/memory_tiering/memory_tier10/nodelist".into(),
            Write(b"1-2"),
            "node1, which is in memory_tier3 already",
        ),
        (
            "hbm-and-cxl",
            format!("{mm}/mempolicy/weighted_interleave/node1"),
            Write(b"0"),
            "not in 1 to 255",
        ),
        (
            "hbm-and-cxl",
            format!("{mm}/mempolicy/weighted_interleave/auto"),
            Write(b"2"),
            "neither",
        ),
        (
            "hbm-and-cxl",
            format!("{NODE}/node1/access0/initiators/read_latency"),
            Write(b"130 ns"),
            "no number",
        ),
        (
            "memory-less",
            format!("{NODE}/node0/meminfo"),
            Write(b"Node 0 MemTotal: 0 kB\nNode 0 MemFree: 0 kB\n"),
            "no node has memory",
        ),
        (
            "no-numa",
            "proc/meminfo".into(),
            Write(b"MemTotal: much\n"),
            "no size in kB",
        ),
    ];
    for (machine, file, fault, words) in cases {
        let folder = tempfile::tempdir().unwrap();
        copy(&fixture(machine), folder.path());
        let path = folder.path().join(file);
        match fault {
            Write(bytes) => {
                assert!(
                    path.is_file(),
                    "{} is not there to be broken",
                    path.display()
                );
                fs::write(&path, bytes).unwrap();
            }
            Remove => fs::remove_file(&path).unwrap(),
            Folder => {
                fs::remove_file(&path).unwrap();
                fs::create_dir(&path).unwrap();
            }
        }
        let error = Topology::read(&Root::new(folder.path()))
            .expect_err(&format!("{machine} {file}: {words}"));
        let text = error.to_string();
        assert!(text.contains(words), "{machine} {file}: {text}");
        assert!(
            text.starts_with(&folder.path().display().to_string()),
            "no place: {text}"
        );
        assert!(text.contains("--root DIR"), "no remedy: {text}");
    }
}

#[test]
fn an_endless_file_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    copy(&fixture("two-socket"), folder.path());
    let path = folder.path().join(format!("{CPU}/online"));
    fs::remove_file(&path).unwrap();
    std::os::unix::fs::symlink("/dev/zero", &path).unwrap();
    let error = Topology::read(&Root::new(folder.path()))
        .unwrap_err()
        .to_string();
    assert!(error.contains("larger than 1 MiB"), "{error}");
}

#[test]
fn a_cpu_in_no_node_is_a_note() {
    let folder = tempfile::tempdir().unwrap();
    copy(&fixture("two-socket"), folder.path());
    fs::write(folder.path().join(format!("{NODE}/node1/cpulist")), "2-3").unwrap();
    let root = Root::new(folder.path());
    let topology = Topology::read(&root).unwrap();
    let notes = topology.notes.join("\n");
    assert!(
        notes.contains("CPUs 6-7 are online and in no node's cpulist"),
        "{notes}"
    );
    let cpu = hither_core::ids::CpuId(6);
    assert_eq!(topology.node_of_cpu(cpu), None);
    // It can be named all the same.
    let resources = hither_linux::resources::read(&root, &topology).unwrap();
    assert!(resources.machine().cpus.contains(cpu));
}

#[test]
fn the_captured_machines_themselves_are_sound() {
    for entry in fs::read_dir(fixture("")).unwrap() {
        let path = entry.unwrap().path();
        let topology = Topology::read(&Root::new(&path)).unwrap();
        for cpu in topology.online.iter() {
            let domains = topology
                .domains
                .iter()
                .filter(|domain| domain.cpus.contains(cpu))
                .count();
            assert_eq!(domains, 1, "{}: {cpu}", path.display());
            assert!(topology.node_of_cpu(cpu).is_some());
        }
        assert_eq!(topology.distances.len(), topology.nodes.len());
    }
}
