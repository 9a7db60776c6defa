//! The ccNUMA paper's measurements. Tables 2 and 3, which count packets, are in [`packets`](super::packets).

use super::{PaperRow, Rows};
use crate::reproduce::Paper::Ibm;

/// Tests of the paper, kernels of `stream` and what these print.
const TESTS: [(&str, &str, &str); 3] = [
    ("BwMemRd", "read", "read_gbs"),
    ("BwMemWr", "write", "write_gbs"),
    ("BwMemCp", "memcpy", "memcpy_gbs"),
];

/// Programs of figure 10: ours, sequential seconds (table 1), speed-up on 16 CPUs original and reorganised. The
/// speed-ups follow from the tables: figure 10 has no numbers in the text. Table 2's packets of 16 and 48 bytes,
/// over its bytes a second, are the seconds of the run on 16 CPUs ([`super::packets`] has the test).
pub const PROGRAMS: [(&str, &str, &str, f64, f64, f64); 6] = [
    (
        "3DFFT",
        "fft3d",
        "128 x 128 x 128 array",
        170.58,
        3.70,
        9.11,
    ),
    ("Ocean", "ocean", "514 x 514 grid", 17.44, 4.39, 9.77),
    (
        "Water-spatial",
        "water",
        "32K molecules, 5 time steps",
        178.96,
        13.94,
        15.36,
    ),
    (
        "FMM",
        "fmm",
        "64K particles, 10 iterations",
        52.06,
        12.56,
        13.42,
    ),
    (
        "Water-nsquared",
        "nsquared",
        "9261 particles, 5 time steps",
        1269.9,
        13.36,
        13.41,
    ),
    (
        "Barnes-Hut",
        "barnes",
        "128K particles, 4 time steps",
        160.82,
        13.53,
        13.37,
    ),
];

const FEWER: &str = "our program of that pattern makes fewer steps (docs/workloads.md, programs of the ccNUMA paper), and what it \
                     computes is not counted to be the original's: seconds are not compared, speed-ups are";
const WEB: &str =
    "the benchmark, its server and its clients are not in the text; the figure's axis is lost";
const SMALL: &str = "differs from the original in how much it computes for each line (docs/workloads.md, operations per transaction)";
const STENCILS: &str = "22 operations for each transaction on a memory bus where the original has 12, so that ours scales better; boots differ, too \
                        (docs/workloads.md, docs/evidence/ccnuma.md)";
const BOOTS: &str = "one boot; of five boots the medians are 2.25 and 2.26, single ones 2.09 to 2.49 (docs/evidence/ccnuma.md)";
const UNITS: &str = "in blocks each node's memory is asked for as much as the file's nodes give (docs/workloads.md, what placement gains)";

pub fn add(rows: &mut Rows) {
    latency(rows);
    bandwidth(rows);
    table_1(rows);
    speed_ups(rows);
    contention(rows);
    opium(rows);
    rows.table(Ibm, "machine", "Basic hardware description");
    for (name, figure, unit) in [
        ("CPUs", 350.0, "MHz"),
        ("L2 cache of a CPU", 1.0, "MB"),
        ("memory of a node", 1.0, "GB"),
        ("a link of the switch, each way", 720.0, "MB/s"),
    ] {
        rows.near(name, figure, unit)
            .input("machines/ibm-ccnuma.toml");
    }
    rows.table(Ibm, "web", "Web-serving performance, figures 11 and 12");
    rows.near(
        "more connections a second from 8 to 12 CPUs",
        100.0,
        "connections/s",
    )
    .beyond(WEB);
    rows.at_most("memory in use on a node", 300.0, "MB")
        .beyond(WEB);
}

fn latency(rows: &mut Rows) {
    rows.table(Ibm, "latency", "Local vs. remote memory latency, figure 5");
    for (test, kernel, key) in TESTS {
        let of = |experiment: &str| {
            format!("{experiment}/{kernel}_1_local.{key} / {experiment}/{kernel}_1_remote.{key}")
        };
        rows.between(
            format!("{test}, two nodes joined directly"),
            2.0,
            3.0,
            "times as long",
        )
        .measured(of("ibm-two-node"));
        rows.at_most(
            format!("{test}, four nodes through the switch"),
            6.0,
            "times as long",
        )
        .measured(of("ibm-four-node"));
    }
    let through = |experiment: &str| {
        format!("{experiment}/read_1_local.read_gbs / {experiment}/read_1_remote.read_gbs")
    };
    rows.near(
        "the switch: latency of remote memory, \"almost doubles\"",
        2.0,
        "times",
    )
    .measured(format!(
        "( {} ) / ( {} )",
        through("ibm-four-node"),
        through("ibm-two-node")
    ));
}

fn bandwidth(rows: &mut Rows) {
    rows.table(Ibm, "local-bandwidth", "Local-memory bandwidth, figure 6");
    for (test, kernel, key) in TESTS {
        for threads in [2, 4] {
            let of = |threads: u32| format!("ibm-four-node/{kernel}_{threads}_local.{key}");
            let name = format!("{test}, {threads} threads on one node beside one");
            rows.unprinted(name, "times")
                .measured(format!("{} / {}", of(threads), of(1)));
        }
    }
    rows.table(
        Ibm,
        "remote-bandwidth",
        "Local vs. remote memory bandwidth, figure 7",
    );
    for (test, kernel, key) in TESTS {
        let lost = format!(
            "100 * ( 1 - ibm-four-node/{kernel}_4_remote.{key} / ibm-four-node/{kernel}_4_local.{key} )"
        );
        let name = format!("{test}, four threads of a node, lost with remote memory");
        let row: &mut PaperRow = match test {
            "BwMemWr" => rows.near(name, 0.0, "%").why(
                "\"no noticeable difference\"; the file's nodes give 0.16 GB/s where half is written and its coherence units 0.15",
            ),
            _ => rows.at_most(name, 40.0, "%").why(
                "40 % is what the file was made for: a node gives 0.25 GB/s to readers and its coherence unit 0.15; runs come out on \
                 either side of that, by a hundredth",
            ),
        };
        row.measured(lost);
    }
}

fn table_1(rows: &mut Rows) {
    rows.table(Ibm, "table-1", "table 1");
    for (program, _, size, seconds, ..) in PROGRAMS {
        rows.near(format!("{program}, {size}: sequential time"), seconds, "s")
            .beyond(FEWER);
    }
}

fn speed_ups(rows: &mut Rows) {
    rows.table(
        Ibm,
        "speed-up",
        "figure 10, derived from tables 1 and 2: 16 threads, beside one with local memory",
    );
    for (program, ours, _, _, original, reorganised) in PROGRAMS {
        for (version, section, figure) in [
            ("original", "striped", original),
            ("reorganised", "blocks", reorganised),
        ] {
            rows.near(format!("{program}, {version}"), figure, "times")
                .percent(15.0)
                .measured(format!(
                    "ibm-{}/alone.seconds / ibm-{}/{section}.seconds",
                    experiment(ours),
                    experiment(ours)
                ))
                .why(match ours {
                    "fft3d" => UNITS,
                    "ocean" => STENCILS,
                    _ => SMALL,
                });
        }
    }
    rows.near("Barnes-Hut, extra", 14.15, "times")
        .percent(15.0)
        .measured("ibm-barnes/alone.seconds / ibm-barnes-extra/blocks.seconds")
        .why(SMALL);
    for program in ["fft3d", "ocean"] {
        let name = experiment(program);
        rows.at_least(
            format!("{name}: reorganised beside original, \"more than doubled\""),
            2.0,
            "times",
        )
        .measured(format!(
            "ibm-{name}/striped.seconds / ibm-{name}/blocks.seconds"
        ))
        .why(BOOTS);
    }
    // The paper's order, each beside the next one.
    for (faster, slower) in [
        ("fft3d", "ocean"),
        ("ocean", "water"),
        ("water", "fmm"),
        ("fmm", "barnes"),
    ] {
        let gain = |program: &str| {
            let name = experiment(program);
            format!("( ibm-{name}/striped.seconds / ibm-{name}/blocks.seconds )")
        };
        rows.at_least(
            format!("order: {} gains more than {}", experiment(faster), experiment(slower)),
            1.0,
            "times",
        )
        .measured(format!("{} / {}", gain(faster), gain(slower)))
        .why("the digest's order by gains: 3DFFT 2.46, Ocean 2.23, Water-spatial 1.10, FMM 1.07, Barnes-Hut 0.99; one boot each, which differ by more than some of \
              these (docs/evidence/ccnuma.md)");
    }
}

pub fn experiment(program: &str) -> &str {
    match program {
        "fft3d" => "3dfft",
        other => other,
    }
}

fn contention(rows: &mut Rows) {
    rows.table(
        Ibm,
        "contention",
        "Effects of local-memory contention on application performance",
    );
    for (program, name) in [("fft3d", "3DFFT"), ("ocean", "Ocean")] {
        for (cpus, nodes) in [("0-1,4-5", "two"), ("0,4,8,12", "four")] {
            rows.at_least(
                format!("{name}, four threads on {nodes} nodes beside one node"),
                1.0,
                "times as fast",
            )
            .measured(format!(
                "ibm-contention/{program}_0-3.seconds / ibm-contention/{program}_{cpus}.seconds"
            ));
        }
    }
    rows.unprinted("the same of other programs", "times as fast")
        .beyond("\"some applications\", which the text does not name; the study that it cites is not at hand");
}

fn opium(rows: &mut Rows) {
    rows.table(Ibm, "opium", "The Opium performance monitor card");
    for (name, figure, unit, formula) in [
        ("filters", 32.0, "filters", "declared/opium.filters"),
        ("counters", 524_288.0, "counters", "declared/opium.counters"),
        (
            "secondary counters over a set of regions",
            16.0,
            "counters",
            "declared/opium.secondaries",
        ),
        (
            "least granularity",
            32.0,
            "bytes",
            "declared/opium.least_grain",
        ),
        (
            "largest granularity",
            2.0,
            "MB",
            "declared/opium.most_grain / 1048576",
        ),
    ] {
        rows.near(name, figure, unit).percent(0.0).measured(formula);
    }
}
