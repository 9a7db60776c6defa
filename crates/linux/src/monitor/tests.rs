//! The monitor against a fake device, and what it refuses. That counts are right is tried in the laboratory
//! (`crates/lab/tests/monitor.rs`).

use super::*;
use std::path::Path;

fn area() -> WatchedArea {
    WatchedArea {
        addresses: 0x10_0000..0x20_0000,
        grain_bytes: 4096,
        types: transaction::FILLS,
        directions: 0,
        node: None,
        threshold: 0,
    }
}

#[test]
fn areas_without_meaning_are_refused() {
    let nodes = [NodeId(0), NodeId(1)];
    let good = area();
    check_area(&good, 64, &nodes).unwrap();
    let smallest = WatchedArea {
        grain_bytes: 32,
        ..good.clone()
    };
    check_area(&smallest, 32, &nodes).unwrap();
    let largest = WatchedArea {
        grain_bytes: 2 << 20,
        ..good.clone()
    };
    check_area(&largest, 32, &nodes).unwrap();
    let with = |change: fn(&mut WatchedArea)| {
        let mut bad = good.clone();
        change(&mut bad);
        check_area(&bad, 64, &nodes).unwrap_err().to_string()
    };
    for (change, words) in [
        (
            (|a| a.grain_bytes = 32) as fn(&mut WatchedArea),
            "a power of two of 64 to 2097152",
        ),
        (|a| a.grain_bytes = 4 << 20, "granularity is 4194304"),
        (|a| a.grain_bytes = 96, "granularity is 96"),
        (|a| a.grain_bytes = 0, "granularity is 0"),
        (|a| a.addresses.start = 0x10_0020, "multiples of 64"),
        (|a| a.addresses.end = a.addresses.start, "is empty"),
        (|a| a.addresses = 1 << 47..(1 << 47) + 4096, "no program's"),
        (|a| a.types = 0, "types are 0x0"),
        (|a| a.types = 1 << 8, "types are 0x100"),
        (|a| a.directions = 8, "directions are 0x8"),
        (|a| a.node = Some(NodeId(7)), "there is no node7"),
    ] {
        let error = with(change);
        assert!(error.contains(words), "{error}");
    }
}

#[test]
fn samples_refuse_what_they_cannot_tell() {
    sampled::check(&area()).unwrap();
    let cases = [
        WatchedArea {
            types: transaction::ALL,
            ..area()
        },
        WatchedArea {
            node: Some(NodeId(0)),
            directions: filter::INBOUND,
            ..area()
        },
    ];
    for (bad, words) in cases.iter().zip(["no write-backs", "comes in to a node"]) {
        let error = sampled::check(bad).unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    }
}

#[test]
fn where_nothing_counts_it_is_said_why() {
    let root = Root::new(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures"));
    let error = Monitor::open(&root, Wanted::Device)
        .err()
        .unwrap()
        .to_string();
    assert!(error.contains("no Opium device"), "{error}");
}
