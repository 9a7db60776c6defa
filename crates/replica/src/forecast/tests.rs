use super::*;
use hither_core::machine::parse::parse;
use std::path::Path;

fn machine(name: &str) -> Figures {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../machines")
        .join(name);
    let text = std::fs::read_to_string(path).unwrap();
    Figures::of_machine(&parse(&text).unwrap())
}

const STREAM: CopyDemand = CopyDemand {
    bytes: 1 << 30,
    shared_bytes: 1 << 30,
    sharing: CopySharing::Shared,
    written_per_read: 0.0,
    compute_ns_per_byte: 0.0,
    home: 0,
};

/// Two nodes with two CPUs each, 100 and 200 ns, 10 GB/s a CPU, 15 GB/s a controller, links without limit.
fn two() -> Figures {
    Figures {
        controllers_gbs: vec![15.0; 2],
        ..Figures::of_distances(vec![2, 2], &[vec![10, 20], vec![20, 10]])
    }
}

#[test]
fn the_steady_state_by_hand() {
    let found = forecast(&two(), &STREAM);
    // First touch: CPUs draw 10, 10, 5, 5 of 15 at node 0, twice too much: 1.0737 GB at 5 / 2 GB/s.
    // Interleaved: 150 ns, 6.67 GB/s each, 26.7 of 30. Replicated: 20 of 15 on each controller.
    // Passes: 0.4295, 0.1611, 0.1432 s.
    assert!((found.gain - 2.0).abs() < 1e-6, "{}", found.gain);
    assert!((found.gain_over_interleave - 0.125).abs() < 1e-6);
    assert_eq!((found.copy_bytes, found.second_master_bytes), (1 << 30, 0));
    // Two CPUs of node 1 copy at 5 / 2 GB/s each.
    assert!((found.build_seconds - 1.073_741_824 / 5.0).abs() < 1e-9);
    assert!(!found.is_declined);
    assert!((found.pays_after_passes.unwrap() - 0.75).abs() < 1e-6);
    assert!(found.sentence.contains("200 % faster than warmed first"));
}

#[test]
fn where_warmed_first_touch_has_the_same_it_declines() {
    let declined = |figures: &Figures, demand: CopyDemand, says: &str| {
        let found = forecast(figures, &demand);
        assert!(found.is_declined, "{}", found.sentence);
        assert!(found.sentence.contains(says), "{}", found.sentence);
        found
    };
    let one = Figures::of_distances(vec![8], &[vec![10]]);
    declined(&one, STREAM, "nothing is remote");
    let partitioned = CopyDemand {
        sharing: CopySharing::Partitioned,
        ..STREAM
    };
    let found = declined(&two(), partitioned, "once warm");
    assert!(found.gain.abs() < 1e-9);
    // Eight bytes written for each byte read.
    let written = CopyDemand {
        written_per_read: 8.0,
        ..STREAM
    };
    let found = declined(&two(), written, "is written costs what");
    assert!(found.gain < 0.0 && found.second_master_bytes == 1 << 30);
    assert_eq!(found.pays_after_passes, None);
    // It computes for a microsecond a byte.
    let busy = CopyDemand {
        compute_ns_per_byte: 1000.0,
        ..STREAM
    };
    declined(&two(), busy, "as fast within 4 %");
    let full = Figures {
        free_bytes: vec![1 << 40, 1 << 20],
        ..two()
    };
    declined(&full, STREAM, "position 1 has no room");
}

#[test]
fn carrefours_machine_gains_as_the_paper_says() {
    let found = forecast(&machine("opteron8385.toml"), &STREAM);
    // Streamcluster computes besides: its +180 % are below what memory alone allows.
    assert!(found.gain > 1.8 && !found.is_declined, "{}", found.sentence);
    assert!(found.gain_over_interleave > 0.1, "{}", found.sentence);
    assert_eq!(found.copy_bytes, 3 << 30);
    // A part is hot: copies of that part alone.
    let part = CopyDemand {
        shared_bytes: 1 << 28,
        ..STREAM
    };
    assert_eq!(
        forecast(&machine("opteron8385.toml"), &part).copy_bytes,
        3 << 28
    );
}

#[test]
fn every_machine_has_a_forecast() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../machines");
    let mut count = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let name = entry.unwrap().file_name();
        let figures = machine(name.to_str().unwrap());
        let found = forecast(&figures, &STREAM);
        assert!(found.gain.is_finite() && found.build_seconds.is_finite());
        assert!(found.gain_over_interleave.is_finite());
        let costs = figures.byte_costs();
        assert!(costs.local_ns > 0.0 && costs.remote_ns >= costs.local_ns);
        count += 1;
    }
    assert!(count >= 5, "{count} machines");
}
