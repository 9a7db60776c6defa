//! A recording of ten minutes, 8 threads and 1,000,000 samples: how long it takes to load it and to
//! make everything of it that a report shows, and how much memory that needs at its most.
//!
//! `cargo bench --package hither-recording`; the limits are 2 s and 200 MB.

use hither_recording::analysis::{Data, areas, heat, homes, sharing, use_of, verdict, working_set};
use hither_recording::meta::{Meta, MetaNode, SCHEMA};
use hither_recording::rows::{Interval, Mapping, Node, Process, Sample};
use hither_recording::{Folder, Recording, Writer};
use std::time::Instant;

const SAMPLES: u64 = 1_000_000;
const LENGTH_NS: u64 = 600_000_000_000;

fn main() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    write(&folder.path().join("recording"));
    for round in 0..3 {
        let start = Instant::now();
        let recording = Recording::open(&folder.path().join("recording")).expect("it was written");
        let data = Data::read(&recording);
        let loaded = start.elapsed();
        let areas = areas::areas(&data);
        let judged = use_of::judge(&data, &areas);
        let lines = sharing::lines(&data, &areas.of_access, 12);
        let overall = verdict::overall(&data, &areas);
        let verdict = verdict::verdict(&data, &overall, &areas, &judged, &lines);
        let heat = heat::heat(&data, Some(7), 64, 128);
        let set = working_set::working_set(&data, 10_000_000_000);
        let moves = homes::moves(&data);
        let whole = start.elapsed();
        assert_eq!(data.accesses.len() as u64, SAMPLES);
        assert!(heat.is_some() && !set.windows.is_empty() && !moves.is_empty());
        println!(
            "round {round}: loaded in {loaded:.2?}, reported in {whole:.2?} (limit 2 s), peak {:.0} MB \
             (limit 200 MB), {}",
            peak_mb(),
            verdict.finding.name(),
        );
    }
}

/// The largest resident set of this process so far.
fn peak_mb() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kb = line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<f64>().ok());
    kb.map_or(f64::NAN, |kb| kb * 1024.0 / 1e6)
}

/// Writes it with the memory of a recorder: in parts.
fn write(folder: &std::path::Path) {
    let nodes = (0..4).map(|id| MetaNode {
        id,
        cpus: format!("{}-{}", 2 * id, 2 * id + 1),
        total_bytes: 8 << 30,
        spans: Vec::new(),
    });
    let meta = Meta {
        schema: SCHEMA.into(),
        hither: "bench".into(),
        began_unix_ms: None,
        kernel: "none".into(),
        nodes: nodes.collect(),
        distances: Vec::new(),
        line_bytes: Some(64),
        command: vec!["synthetic".into()],
        watched: "nothing".into(),
        trackers: Vec::new(),
        interval_us: 100_000,
        ended: None,
    };
    let mut writer = Writer::create(Folder::make(folder).expect("the folder is new"), meta)
        .expect("there is room");
    let must = |done: hither_recording::Result<()>| done.expect("there is room");
    must(writer.add([Process {
        pid: 7,
        name: "synthetic".into(),
        start_ns: 0,
        end_ns: None,
        peak_bytes: None,
    }]));
    // 64 arrays of 64 MiB, 1 GiB apart.
    must(writer.add((0..64_u64).map(|n| Mapping {
        time_ns: 0,
        pid: 7,
        start: n << 30,
        end: (n << 30) + (64 << 20),
        permissions: "rw-p".into(),
        name: format!("array {n}"),
    })));
    let mut state = 1_u64;
    let mut random = move || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        state >> 33
    };
    for number in 0..SAMPLES {
        let thread = random() % 8;
        // Half of all accesses are to a tenth of each array.
        let offset = match random() % 2 {
            0 => random() % (6 << 20),
            _ => random() % (64 << 20),
        };
        let address = ((random() % 64) << 30) + offset / 8 * 8;
        must(writer.add([Sample {
            time_ns: LENGTH_NS / SAMPLES * number,
            pid: 7,
            tid: Some(100 + thread as i32),
            cpu: Some(thread as u32),
            from_node: Some(thread as u32 / 2),
            home_node: Some((address >> 12) as u32 % 4),
            address,
            code: None,
            is_write: Some(random() % 4 == 0),
            latency_ns: Some(100 + (random() % 200) as u32),
            from_cache: None,
            weight: 2000,
        }]));
        if number % (SAMPLES / 6000) == 0 {
            let time_ns = LENGTH_NS / SAMPLES * number;
            must(writer.add([Interval {
                time_ns,
                length_ns: 100_000_000,
                local_access_ratio: Some(0.25),
                latency_ns: Some(200.0),
                controller_imbalance: Some(0.1),
                link_use: Some(0.1),
                accesses_per_us: Some(30.0),
                instructions_per_us: Some(4000.0),
                flops_per_us: Some(500.0),
                stall_share: Some(0.5),
                l3_mpki: Some(8.0),
                sample_count: 166,
                lost_count: 0,
                own_cpu_us: Some(1000),
            }]));
            must(writer.add((0..4).map(|node| Node {
                time_ns,
                length_ns: 100_000_000,
                node,
                read_bytes: Some(1 << 20),
                write_bytes: Some(1 << 18),
                utilisation: Some(0.3),
            })));
        }
    }
    must(writer.finish());
}
