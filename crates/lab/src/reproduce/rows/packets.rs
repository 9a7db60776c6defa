//! Tables 2 and 3 of the ccNUMA paper: what 16 CPUs asked of caches, memory and the interconnect.

use super::Rows;
use super::ibm::{PROGRAMS, experiment};
use crate::reproduce::Paper::Ibm;

/// Table 2: accesses of CPUs and of L2 caches (10^6), request, response and all packets (10^6), MB/s on the network.
pub const TABLE_2: [(&str, [f64; 6]); 13] = [
    (
        "3DFFT orig",
        [41967.0, 408.46, 497.89, 308.42, 806.31, 494.11],
    ),
    (
        "3DFFT reorg",
        [31867.0, 374.33, 76.38, 59.2, 135.58, 216.95],
    ),
    ("Ocean orig", [6339.0, 31.73, 36.98, 23.64, 60.62, 435.03]),
    ("Ocean reorg", [6016.0, 28.11, 3.58, 1.33, 4.91, 67.85]),
    (
        "Water-spatial orig",
        [34952.0, 29.96, 28.16, 20.60, 48.77, 112.11],
    ),
    (
        "Water-spatial reorg",
        [35024.0, 17.56, 3.83, 2.27, 6.10, 14.61],
    ),
    ("FMM orig", [19916.0, 18.96, 19.83, 13.86, 33.69, 237.07]),
    ("FMM reorg", [19044.0, 18.50, 12.27, 8.24, 20.51, 152.59]),
    (
        "Water-nsquared orig",
        [219_836.0, 31.88, 26.79, 19.50, 46.29, 14.36],
    ),
    (
        "Water-nsquared reorg",
        [219_816.0, 31.95, 17.56, 13.54, 31.09, 9.83],
    ),
    (
        "Barnes-Hut orig",
        [29534.0, 24.75, 26.62, 18.19, 44.80, 109.32],
    ),
    (
        "Barnes-Hut reorg",
        [29488.0, 24.92, 21.25, 14.70, 35.95, 86.90],
    ),
    (
        "Barnes-Hut extra",
        [29195.0, 22.40, 17.87, 12.04, 29.92, 75.99],
    ),
];
const COLUMNS_2: [(&str, &str); 6] = [
    ("accesses of CPUs", "10^6"),
    ("accesses of L2 caches to memory", "10^6"),
    ("request packets", "10^6"),
    ("response packets", "10^6"),
    ("packets", "10^6"),
    ("network", "MB/s"),
];

/// Table 3: packets for each memory transaction, MFLOP a second, MFLOP for 10^6 memory transactions and for 10^6
/// packets.
#[expect(
    clippy::approx_constant,
    reason = "a paper's 6.28 that is not a circle's"
)]
const TABLE_3: [(&str, [f64; 4]); 13] = [
    ("3DFFT orig", [1.97, 9.01, 1.07, 0.54]),
    ("3DFFT reorg", [0.36, 20.65, 1.16, 3.21]),
    ("Ocean orig", [1.91, 4.49, 0.75, 0.39]),
    ("Ocean reorg", [0.17, 7.01, 0.84, 4.81]),
    ("Water-spatial orig", [1.63, 52.27, 32.10, 19.72]),
    ("Water-spatial reorg", [0.35, 57.64, 54.77, 157.67]),
    ("FMM orig", [1.78, 42.72, 18.66, 10.50]),
    ("FMM reorg", [1.11, 46.12, 19.12, 17.25]),
    ("Water-nsquared orig", [1.45, 55.74, 151.41, 104.27]),
    ("Water-nsquared reorg", [0.97, 55.86, 151.07, 155.25]),
    ("Barnes-Hut orig", [1.81, 19.96, 11.37, 6.28]),
    ("Barnes-Hut reorg", [1.44, 20.17, 11.29, 7.83]),
    ("Barnes-Hut extra", [1.34, 20.69, 12.56, 9.41]),
];
const COLUMNS_3: [(&str, &str); 4] = [
    ("packets for each memory transaction", "packets"),
    ("operations", "MFLOP/s"),
    ("operations for 10^6 memory transactions", "MFLOP"),
    ("operations for 10^6 packets", "MFLOP"),
];

const SIZE: &str = "totals of a whole run: ours make fewer steps (docs/workloads.md, programs of the ccNUMA paper)";
const PACKETS: &str = "ours are what lines and requests for ownership take; packets by which a directory invalidates copies or has \
                       another cache hand a line over are not counted (docs/opium.md)";
const OPERATIONS: &str = "differs from the original in how much it computes for each line (docs/workloads.md, operations per transaction)";
/// Experiment and section of a row of the tables.
fn section(name: &str) -> String {
    let (program, version) = name.rsplit_once(' ').unwrap_or((name, ""));
    let ours = PROGRAMS.iter().find(|known| known.0 == program);
    let ours = experiment(ours.map_or("", |known| known.1));
    match version {
        "orig" => format!("ibm-{ours}/striped"),
        "reorg" => format!("ibm-{ours}/blocks"),
        _ => format!("ibm-{ours}-extra/blocks"),
    }
}

pub fn add(rows: &mut Rows) {
    rows.table(Ibm, "table-2", "table 2");
    for (program, figures) in TABLE_2 {
        for (number, (figure, (column, unit))) in figures.into_iter().zip(COLUMNS_2).enumerate() {
            let row = rows.near(format!("{program}: {column}"), figure, unit);
            let of = section(program);
            match number {
                5 => row.why(PACKETS).measured(format!(
                    "( 16 * {of}.short_packets + 48 * {of}.line_packets ) / {of}.seconds / 1000000"
                )),
                _ => row.beyond(SIZE),
            };
        }
    }
    rows.table(Ibm, "table-3", "table 3");
    for (program, figures) in TABLE_3 {
        for (number, (figure, (column, unit))) in figures.into_iter().zip(COLUMNS_3).enumerate() {
            let row = rows.near(format!("{program}: {column}"), figure, unit);
            let of = section(program);
            let (formula, why) = match number {
                0 => (format!("{of}.packets / {of}.transactions"), PACKETS),
                1 => (
                    format!("{of}.operations / {of}.seconds / 1000000"),
                    OPERATIONS,
                ),
                2 => (format!("{of}.operations / {of}.transactions"), OPERATIONS),
                _ => (format!("{of}.operations / {of}.packets"), PACKETS),
            };
            row.measured(formula).why(why);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The speed-ups are not in the text: they follow from the bytes of a run and the bytes a second.
    #[test]
    fn speed_ups_follow_from_the_tables() {
        let speed_up = |name: &str, version: &str, seconds: f64| {
            let wanted = format!("{name} {version}");
            let (_, row) = TABLE_2.iter().find(|(name, _)| *name == wanted).unwrap();
            let bytes = row[2] * 16.0 + row[3] * 48.0;
            seconds / (bytes / row[5])
        };
        for (name, _, _, seconds, original, reorganised) in PROGRAMS {
            for (version, figure) in [("orig", original), ("reorg", reorganised)] {
                let derived = speed_up(name, version, seconds);
                assert!(
                    (derived / figure - 1.0).abs() < 0.005,
                    "{name} {version}: {derived}"
                );
            }
        }
        assert!((speed_up("Barnes-Hut", "extra", 160.82) / 14.15 - 1.0).abs() < 0.005);
    }

    #[test]
    fn packets_add_up() {
        for (name, [_, transactions, requests, responses, packets, _]) in TABLE_2 {
            assert!((requests + responses - packets).abs() < 0.02, "{name}");
            let (_, ratios) = TABLE_3.iter().find(|(other, _)| *other == name).unwrap();
            assert!((packets / transactions - ratios[0]).abs() < 0.011, "{name}");
        }
    }
}
