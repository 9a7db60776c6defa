//! What tests of the parts begin with: those here, and those of who shows it.

use super::machine::NodeName;
use super::model::{About, Model, SortKey};
use super::reading::{MachineReading, OpiumReading, Requests};
use hither_core::ids::NodeId;
use hither_core::snapshot::Evidence;
use hither_linux::counters::task::{self, TaskTimes};
use hither_linux::counters::vmstat;
use hither_linux::opium::{LinkTraffic, NodeTraffic};
use hither_linux::proc::pressure::Pressure;

/// A reading of a process: its name, CPU time in ticks, threads, and the CPU it ran on last.
pub fn task(name: &str, ticks: u64, threads: u32, cpu: u32) -> TaskTimes {
    let line = format!(
        "9 ({name}) S 1 9 9 0 -1 4194304 0 0 0 0 {ticks} 0 0 0 20 0 {threads} 0 50 0 1000 \
         0 1 1 0 0 0 0 0 0 0 0 0 0 17 {cpu} 0 0 0 0 0"
    );
    task::parse(&line).unwrap()
}

/// The counters of a machine with two nodes after so many seconds. In each, node 0 reads 3e9 bytes
/// and writes 1e9 at half of its capacity, its CPUs ask for 100 lines of which 75 are local, 10
/// misses take 150 ns each, the first link carries 0.5e9 bytes at an eighth of its capacity, 100
/// pages move, and of 40 hint faults 10 are local.
pub fn machine_reading(seconds: u64) -> MachineReading {
    let text = format!(
        "pgmigrate_success {}\npgmigrate_fail 0\nnuma_hint_faults {}\nnuma_hint_faults_local {}\n",
        100 * seconds,
        40 * seconds,
        10 * seconds
    );
    let idle = NodeTraffic::default();
    MachineReading {
        events: vmstat::parse(&text).unwrap(),
        node_events: vec![vmstat::parse("numa_miss 0\n").unwrap(); 2],
        free_kb: vec![Some(1 << 20), Some(2 << 20)],
        pressure: Evidence::measured(Pressure::default(), "test"),
        bandwidth: Evidence::unknown("resctrl is not mounted"),
        ages: None,
        opium: Evidence::measured(
            OpiumReading {
                time_ns: seconds * 1_000_000_000,
                traffic: vec![
                    NodeTraffic {
                        read_bytes: seconds * 3_000_000_000,
                        write_bytes: seconds * 1_000_000_000,
                        utilisation_integral: seconds * 500_000 * 1_000_000,
                        ..idle
                    },
                    idle,
                ],
                requests: vec![
                    Requests {
                        fills: 100 * seconds,
                        local_fills: 75 * seconds,
                        misses: 10 * seconds,
                        latency_ns: 1500 * seconds,
                    },
                    Requests::default(),
                ],
                links: vec![
                    LinkTraffic {
                        bytes: seconds * 500_000_000,
                        utilisation_integral: seconds * 125_000 * 1_000_000,
                        capacity_mbs: 4000,
                    },
                    LinkTraffic::default(),
                ],
            },
            "opium counters",
        ),
    }
}

/// Two nodes of four CPUs each.
pub fn about() -> About {
    let node = |id: u32, cpus: &str| NodeName {
        id: NodeId(id),
        cpus: cpus.to_owned(),
        total_kb: 4 << 20,
    };
    About {
        nodes: vec![node(0, "0-3"), node(1, "4-7")],
        cpu_nodes: (0..8).map(|cpu| Some(cpu / 4)).collect(),
        link_names: vec!["node0>node1".to_owned(), "node1>node0".to_owned()],
        tracker: Evidence::measured("opium", "opium"),
        own_only: false,
        interval_us: 1_000_000,
    }
}

/// A model of so many processes p0, p1, ... numbered from 100 on, the later the busier, read twice.
pub fn model_of(count: u64) -> Model {
    let mut model = Model::new(about(), SortKey::Cpu);
    for second in 0..=1 {
        model.begin(second * 1_000_000);
        model.machine(machine_reading(second));
        for number in 0..count {
            let ticks = second * number * 10;
            let task = task(&format!("p{number}"), ticks, 1, number as u32 % 8);
            model.task(100 + number as i32, Some(task));
        }
    }
    model
}
