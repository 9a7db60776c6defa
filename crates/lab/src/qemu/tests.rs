//! Arguments: golden for one machine file, properties for all of them.

use super::*;
use hither_core::machine::{parse, scale};
use std::fs;
use std::path::Path;

fn machines() -> Vec<(String, Machine)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../machines");
    let mut found: Vec<(String, Machine)> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|end| end == "toml"))
        .map(|path| {
            let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
            (
                name,
                parse::parse(&fs::read_to_string(path).unwrap()).unwrap(),
            )
        })
        .collect();
    found.sort_by(|a, b| a.0.cmp(&b.0));
    assert!(!found.is_empty());
    found
}

/// As the lab scales it: at most 8 CPUs, 512 MiB a node.
fn scaled(machine: &Machine) -> Machine {
    let machine = scale::scale(machine, machine.cpu_count().min(8)).unwrap();
    scale::with_memory_mb(&machine, &|_| 512).unwrap()
}

fn parts() -> Parts {
    Parts {
        kernel: "/k/vmlinuz".into(),
        initrd: "/proc/self/fd/5".into(),
        channel_fd: 7,
        plugin: Some(Plugin {
            path: "/l/a,b.so".into(),
            machine: "/proc/self/fd/6".into(),
            opium: "/proc/self/fd/8".into(),
            memory: Vec::new(),
            mode: PluginMode::Model,
        }),
        devices: Devices::default(),
        disk: None,
        huge_pages: HugePages::Madvise,
        kernel_arguments: Vec::new(),
    }
}

/// One `-option value` per line.
fn lines(args: &[String]) -> String {
    let mut text = String::new();
    for arg in args {
        let flag = arg.starts_with('-') && !arg.contains(' ');
        text.push_str(if text.is_empty() {
            ""
        } else if flag {
            "\n"
        } else {
            " "
        });
        text.push_str(arg);
    }
    text + "\n"
}

/// The whole command of every machine file. `HITHER_BLESS=1` writes the files anew.
#[test]
fn the_command_of_every_machine_file_is_as_recorded() {
    for (name, machine) in machines() {
        let got = lines(&arguments(&scaled(&machine), &parts()).unwrap());
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/qemu/{name}.txt"));
        if std::env::var_os("HITHER_BLESS").is_some() {
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, &got).unwrap();
        }
        let expected = fs::read_to_string(&path).unwrap_or_else(|_| {
            panic!(
                "{} is missing: run the test with HITHER_BLESS=1 and read what it wrote",
                path.display()
            )
        });
        assert_eq!(got, expected, "{name}");
    }
}

#[test]
fn attributes_fit_into_their_sixteen_bits() {
    for (name, machine) in machines() {
        let args = arguments(&scaled(&machine), &parts()).unwrap();
        let values: Vec<u64> = args
            .iter()
            .filter_map(|arg| {
                arg.split_once("bandwidth=")?
                    .1
                    .strip_suffix('M')?
                    .parse()
                    .ok()
            })
            .collect();
        let nodes = machine.nodes.len();
        let with_cpus = machine
            .nodes
            .iter()
            .filter(|node| !node.cpus.is_empty())
            .count();
        assert_eq!(values.len(), nodes * with_cpus, "{name}");
        let unit = 1
            << values
                .iter()
                .map(|value| value.trailing_zeros())
                .min()
                .unwrap();
        assert!(
            values
                .iter()
                .all(|&value| value > 0 && value / unit <= MAX_HMAT_ENTRY),
            "{name}: {values:?}"
        );
    }
}

#[test]
fn all_nodes_have_memory_and_cpus_appear_once() {
    for (name, machine) in machines() {
        let machine = scaled(&machine);
        let args = arguments(&machine, &parts()).unwrap();
        let nodes: Vec<&String> = args.iter().filter(|arg| arg.starts_with("node,")).collect();
        assert_eq!(nodes.len(), machine.nodes.len(), "{name}");
        let total = args[args.iter().position(|arg| arg == "-m").unwrap() + 1].clone();
        assert_eq!(total, format!("{}M", 512 * machine.nodes.len()));
        for (position, node) in nodes.iter().enumerate() {
            assert!(
                node.contains(&format!("nodeid={position},memdev=memory{position},")),
                "{node}"
            );
            assert_eq!(
                node.contains("cpus="),
                !machine.nodes[position].cpus.is_empty(),
                "{node}"
            );
        }
    }
}

#[test]
fn without_the_plugin_there_is_no_device() {
    let (_, machine) = machines().remove(0);
    let args = arguments(
        &scaled(&machine),
        &Parts {
            plugin: None,
            ..parts()
        },
    )
    .unwrap();
    assert!(
        !args
            .iter()
            .any(|arg| arg == "-plugin" || arg.contains("ivshmem"))
    );
}

#[test]
fn commas_in_the_plugins_path_are_doubled() {
    let (_, machine) = machines().remove(0);
    let args = arguments(&scaled(&machine), &parts()).unwrap();
    assert!(
        args.iter()
            .any(|arg| arg.starts_with("/l/a,,b.so,machine="))
    );
}

#[test]
fn what_qemu_or_linux_would_number_differently_is_refused() {
    let find = |name: &str| {
        machines()
            .into_iter()
            .find(|(found, _)| found == name)
            .unwrap()
            .1
    };
    let mut sparse = scaled(&find("opteron8385"));
    sparse.nodes[3].id = NodeId(7);
    let error = check(&sparse).unwrap_err().to_string();
    assert!(
        error.contains("node7") && error.contains("number the nodes"),
        "{error}"
    );

    let mut reversed = scaled(&find("knl7250"));
    reversed.nodes.swap(0, 1);
    for (position, node) in reversed.nodes.iter_mut().enumerate() {
        node.id = NodeId(position as u32);
    }
    let error = check(&reversed).unwrap_err().to_string();
    assert!(error.contains("last in the machine file"), "{error}");

    let whole = find("knl7250");
    let error = check(&whole).unwrap_err().to_string();
    assert!(error.contains("--cpus 16"), "{error}");
}

#[test]
fn uneven_domains_become_single_cpus_and_are_told() {
    let find = |name: &str| {
        machines()
            .into_iter()
            .find(|(found, _)| found == name)
            .unwrap()
            .1
    };
    let mut machine = scaled(&find("opteron8385"));
    assert_eq!(smp(&machine), "8,sockets=4,dies=1,cores=2,threads=1");
    assert!(cache_sharing_is_visible(&machine));
    let moved = machine.domains[3].cpus.iter().next().unwrap();
    let mut first = machine.domains[0].cpus.clone();
    first.insert(moved);
    machine.domains[0].cpus = first;
    machine.domains[3].cpus = machine.domains[3].cpus.iter().skip(1).collect();
    assert_eq!(smp(&machine), "8,sockets=8,dies=1,cores=1,threads=1");
    assert!(!cache_sharing_is_visible(&machine));
}
