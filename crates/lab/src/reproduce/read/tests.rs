//! Captured outputs.

use super::*;

/// Of a recorded comparison, as the laboratory gave it.
#[test]
fn a_recorded_comparison_is_read() {
    let out = include_str!("../../../../../docs/evidence/cg.json");
    let err = "lab: boot\nhydm@device | program: cg.0 cpu 3 seconds 0.5 mflops 465.391 checksum 0x9\n\
               hydm@device | program: ft.1 cpu 1 seconds 1.5 mflops 1 checksum 0x9\n\
               caches@device | program: 0 cachemix-0 ws 4M cpu 0 first_second 8123456 last_half 16234567\n\
               first-touch | second: 5 ns_per_access 337.4\n";
    let values = read(Reads::Compare, out, err).unwrap();
    assert_eq!(values["cpus"], 8.0);
    assert_eq!(values["first-touch.seconds"], 10.230_517_564);
    assert!((values["first-touch.latency_ns"] - 163.968).abs() < 0.01);
    assert_eq!(values["hydm@device.cg.0.seconds"], 0.5);
    assert_eq!(values["hydm@device.mean.seconds"], 1.0);
    assert_eq!(values["caches@device.0.last_half"], 16_234_567.0);
    assert_eq!(values["first-touch.second.5.ns_per_access"], 337.4);
    assert!(!values.contains_key("first-touch.mean.ns_per_access"));
}

#[test]
fn a_failed_run_is_no_figure() {
    let out = r#"{"cpus": 8, "rows": [{"policy": "kernel", "seconds": {"median": 1.0}, "runs": [{"status": 1}]}]}"#;
    assert!(
        read(Reads::Compare, out, "")
            .unwrap_err()
            .contains("kernel")
    );
    assert!(read(Reads::Compare, "lab: nothing", "").is_err());
    assert!(read(Reads::Compare, "{}", "").is_err());
}

#[test]
fn lines_belong_to_their_section() {
    let out = "== read 0-3 local\nstream: 4 threads\nread_gbs: 0.248\nseconds: 1.5\nchecksum: 0xff\n\
               == triad\ntriad: arrays on node 1, 16 buffers\n  plain              5316.2 MB/s, median\n\
               \x20 speed-up           1.3996, median of pairs\n  speed-up           1.3418, whole time\n\
               \x20 hit share            90.1 %\nsecond: 2 ns_per_access 337.0\n";
    let values = read(Reads::Lines, out, "").unwrap();
    assert_eq!(values["read_0-3_local.read_gbs"], 0.248);
    assert_eq!(values["read_0-3_local.seconds"], 1.5);
    assert_eq!(values["triad.plain"], 5316.2);
    assert_eq!(values["triad.speed-up"], 1.3996);
    assert_eq!(values["triad.hit_share"], 90.1);
    assert_eq!(values["triad.second.2.ns_per_access"], 337.0);
    assert!(read(Reads::Lines, "no figure\n", "").is_err());
}

#[test]
fn the_service_is_read() {
    let out = r#"{"schema": "hither.bench-service/1", "streams": [
        {"pages": "small", "bytes": 65536, "traffic": "both ways", "by": "service, recycling",
         "requests": 2, "moved_bytes": 131072, "refused_pages": 0, "wall_ns": 65536, "cpu_ns": 262144}],
        "latency": {"service": {"mean_ns": 130.0, "submitter_cpu_ns": 9.0},
                    "move_pages": {"mean_ns": 295.0, "submitter_cpu_ns": 316.0}}}"#;
    let values = read(Reads::Service, out, "").unwrap();
    assert_eq!(values["small.65536.both_ways.service,_recycling.gbs"], 2.0);
    assert_eq!(
        values["small.65536.both_ways.service,_recycling.cpu_ns_per_kb"],
        2048.0
    );
    assert_eq!(values["latency.move_pages.mean_ns"], 295.0);
}

#[test]
fn a_map_has_its_best_point() {
    let point = |visit: u32, unified: f64| {
        format!(
            "{{\"tworegion\":\"point\",\"kb\":3072,\"visit\":{visit},\"confined_ns\":100,\"unified_ns\":{unified},\
             \"auto_ns\":50,\"is_on\":true,\"reason\":\"gained\",\"why\":\"\"}}\n"
        )
    };
    let setting = "first-touch | {\"tworegion\":\"setting\",\"machine\":\"clovertown\",\"caches\":2,\
                   \"cache_kb\":4096,\"ms\":60,\"awake_ns\":900,\"asleep_ns\":5000}\n";
    let out = format!(
        "lab: x\n{setting}{}{}",
        point(256, 200.0),
        point(4096, 25.0)
    );
    let values = read(Reads::Map, &out, "").unwrap();
    assert_eq!(values["3072.4096.gain"], 4.0);
    assert_eq!(values["3072.256.gain"], 0.5);
    assert_eq!((values["best.gain"], values["awake_ns"]), (4.0, 900.0));
}

#[test]
fn steps_have_a_first_and_a_last() {
    let out = "quota 0 MiB: 0 96 MiB fast and slow, 42588 requests a second, 23.5 us each\n\
               quota 24 MiB: 22 74 MiB fast and slow, 56084 requests a second, 17.8 us each\n";
    let values = read(Reads::Steps, out, "").unwrap();
    assert_eq!((values["first.us"], values["last.us"]), (23.5, 17.8));
    assert_eq!(
        (values["last.requests"], values["last.fast_mb"]),
        (56084.0, 22.0)
    );
}
