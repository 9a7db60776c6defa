use super::*;
use crate::publish::{NodeRow, ProcessRow};
use hither_core::engine::{DirectionRow, Summary};
use hither_core::ids::NodeId;
use hither_core::plan::{Mechanism, Refusal};

fn published() -> Published {
    let mut published = crate::server::tests::published();
    let scope = &mut published.scopes[0];
    scope.user_name = "o\"x\\y\nz".to_owned();
    scope.local_access_ratio = Some(0.5);
    scope.processes = vec![ProcessRow {
        pid: 7,
        name: "db".to_owned(),
        resident_bytes: 4096,
        cgroup: Some("/kubepods/pod0f8b1c2d-3e4f-5061-7283-94a5b6c7d8e9/x".to_owned()),
    }];
    scope.summary = Summary {
        directions: vec![DirectionRow {
            mechanism: Mechanism::Collocate,
            from: NodeId(1),
            to: NodeId(0),
            page_count: 12,
        }],
        refused: vec![(Refusal::Busy, 3)],
        ..Summary::default()
    };
    published.nodes = vec![NodeRow {
        node: NodeId(3),
        memory_bytes: 10,
        free_bytes: 5,
        utilisation: None,
    }];
    published.holding_back = vec!["memory".to_owned()];
    published
}

#[test]
fn metrics_are_told_with_their_labels() {
    let text = encode(&Arc::new(published())).unwrap();
    for line in [
        "# TYPE hither_scope_moved_pages counter",
        "hither_scope_moved_pages_total{target=\"db\",user=\"o\\\"x\\\\y\\nz\",mechanism=\"collocate\",from=\"1\",to=\"0\"} 12",
        "hither_scope_refused_pages_total{target=\"db\",user=\"o\\\"x\\\\y\\nz\",reason=\"busy\"} 3",
        "hither_scope_processes{target=\"web\",user=\"1001\"} 0",
        "hither_scope_local_access_ratio{target=\"db\",user=\"o\\\"x\\\\y\\nz\"} 0.5",
        "hither_node_free_bytes{node=\"3\"} 5",
        "hither_holding_back{reason=\"memory\"} 1",
        "hither_turns_total 3",
        "hither_processes 1",
    ] {
        assert!(
            text.lines()
                .any(|found| found.trim_end_matches(".0") == line),
            "no {line} in\n{text}"
        );
    }
    assert!(
        text.contains("pod_uid=\"0f8b1c2d-3e4f-5061-7283-94a5b6c7d8e9\""),
        "{text}"
    );
    assert!(text.ends_with("# EOF\n"));
    // A metric that nobody has a value of has no line.
    assert!(!text.contains("hither_node_utilisation_ratio{"));
}
