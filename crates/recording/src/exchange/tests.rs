use super::*;
use miniz_oxide::deflate::compress_to_vec_zlib;
use proptest::prelude::*;
use std::fs;
use std::path::{Path, PathBuf};

fn fixture(name: &str) -> Vec<u8> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures");
    fs::read(folder.join(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

fn fixtures() -> Vec<(PathBuf, Vec<u8>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures");
    let files = ["damo", "perf-data"]
        .iter()
        .flat_map(|name| fs::read_dir(folder.join(name)).unwrap());
    files
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_none_or(|end| end != "c" && end != "md"))
        .map(|path| (path.clone(), fs::read(path).unwrap()))
        .collect()
}

fn read(bytes: &[u8]) -> Result<Imported, Malformed> {
    import(bytes, detect(bytes)?)
}

fn notes(imported: &Imported) -> String {
    imported.about.notes.join("\n")
}

#[test]
fn damo_tells_the_same_in_each_of_its_forms() {
    // All four were written by damo 3.4.3, out of the lines of trace.txt.
    let json = read(&fixture("damo/records.json")).unwrap();
    let zlib = read(&fixture("damo/records.zlib")).unwrap();
    assert_eq!(json, zlib);
    assert_eq!(json.regions.len(), 136);
    assert_eq!(json.about.interval_us, 100_000);
    let first = &json.regions[0];
    assert_eq!(
        (
            first.start,
            first.end,
            first.access_count,
            first.check_count
        ),
        (0x55d0_c000_0000, 0x55d0_c080_0000, 18, 20)
    );
    assert_eq!((first.pid, first.age_count), (Some(1), Some(0)));
    // Of two processes, which damo does not name.
    let pids: Vec<i32> = json.processes.iter().map(|process| process.pid).collect();
    assert_eq!(pids, [1, 2]);
    assert!(
        notes(&json).contains("do not tell which process"),
        "{}",
        notes(&json)
    );

    let lines = read(&fixture("damo/trace.txt")).unwrap();
    assert_eq!(read(&fixture("damo/perf-script.txt")).unwrap(), lines);
    assert!(
        notes(&lines).contains("how many checks"),
        "{}",
        notes(&lines)
    );
    assert_eq!(lines.regions.len(), json.regions.len());
    for (line, region) in lines.regions.iter().zip(&json.regions) {
        // Times passed through text and doubles.
        assert!(line.time_ns.abs_diff(region.time_ns) < 1000);
        assert!(line.length_ns.abs_diff(region.length_ns) < 1_000_000);
        let same = |r: &Region| (r.pid, r.start, r.end, r.access_count, r.age_count);
        assert_eq!(same(line), same(region));
    }
    // 12 aggregations of 100.213 ms.
    assert!(lines.about.length_ns.abs_diff(12 * 100_213_000) < 1_000_000);
}

#[test]
fn damo_writes_numbers_for_people_too() {
    let text = br#"[{"target_id": 0,
        "intervals": {"sample_us": "5 ms", "aggr_us": "100 ms", "ops_update_us": "1 s"},
        "snapshots": [{"start_time": "1 m 1 s 500 ms", "end_time": "1 m 1 s 600.5 ms",
            "regions": [
                {"start": "4,294,967,296", "end": "4.500 GiB",
                 "nr_accesses": {"samples": null, "percent": "50 %"},
                 "age": {"usec": "300 ms", "aggr_intervals": null}},
                {"start": 9, "end": 9, "nr_accesses": {"samples": 0}, "age": null}]}]}]"#;
    let imported = read(text).unwrap();
    let expected = Region {
        time_ns: 100_500_000,
        length_ns: 100_500_000,
        pid: None,
        start: 4 << 30,
        end: 4831838208,
        access_count: 10,
        check_count: 20,
        age_count: Some(3),
    };
    assert_eq!(imported.regions, [expected]);
    assert!(
        notes(&imported).contains("1 regions of target 0"),
        "{}",
        notes(&imported)
    );
    assert!(imported.processes.is_empty());
    assert_eq!(imported.about.watched, "physical memory, by damo");
}

#[test]
fn what_damo_adds_to_one_snapshot_alone_is_taken_out_again() {
    let lines = "\
kdamond.x xxxx xxxx 10.100000: damon:damon_aggregated: target_id=0 nr_regions=1 4096-8192: 3 1
kdamond.x xxxx xxxx 10.200000: damon:damon_aggregated: target_id=0 nr_regions=1 0-0: -1 -1
";
    let imported = read(lines.as_bytes()).unwrap();
    assert_eq!(imported.regions.len(), 1);
    assert_eq!(imported.regions[0].length_ns / 1_000_000, 100);
}

/// Start, accesses, age and length in ms of each region.
fn told(imported: &Imported) -> Vec<(u64, u32, Option<u32>, u64)> {
    let regions = imported.regions.iter();
    let told = regions.map(|r| {
        (
            r.start,
            r.access_count,
            r.age_count,
            r.length_ns / 1_000_000,
        )
    });
    told.collect()
}

#[test]
fn traces_are_read_whoever_printed_them() {
    let read = |name: &str| read(&fixture(&format!("damo/{name}"))).unwrap();
    let new = read("trace-cmd.txt");
    let (low, high) = (4_294_967_296, 4_701_806_592);
    assert_eq!(
        told(&new),
        [
            (low, 0, Some(1635), 100),
            (high, 7, Some(12), 100),
            (low, 0, Some(1636), 100),
            (high, 7, Some(13), 100),
        ]
    );
    assert_eq!(read("trace-cmd-3.2.txt"), new);
    // perf trace has ms since the trace began, and here one snapshot alone: 100 ms are assumed.
    let trace = read("perf-trace.txt");
    assert_eq!(
        told(&trace),
        [
            (8_232_701_952, 0, Some(1485), 100),
            (8_371_830_784, 3, Some(1), 100)
        ]
    );
    // Without ages: damo's conversion writes None, old kernels nothing.
    let converted = read("converted-no-age.txt");
    assert_eq!(converted.regions.len(), 20);
    assert!(
        converted
            .regions
            .iter()
            .all(|region| region.age_count.is_none())
    );
    assert!(converted.regions.iter().all(|region| region.pid == Some(1)));
    // 1,234 us between checks, as DAMON's tuning said: 81 in 100 ms.
    let tuned = read("kthreadd.txt");
    let checks: Vec<_> = tuned
        .regions
        .iter()
        .map(|r| (r.access_count, r.check_count))
        .collect();
    assert_eq!(checks, [(0, 81), (3, 81), (0, 81), (3, 81)]);
    assert!(!notes(&tuned).contains("is assumed"), "{}", notes(&tuned));
    let hits = read("probe-hits.txt");
    assert_eq!(told(&hits)[1], (4096, 13, Some(27), 100));
    assert!(
        notes(&hits).contains("left out: fields behind a region's age (probe_hits: 4)"),
        "{}",
        notes(&hits)
    );
}

#[test]
fn what_a_trace_lost_or_says_besides_is_told() {
    let text = "\
CPU:3 [1234 EVENTS DROPPED]
 kworker/0:1-ev-7 [000] ..... 1.000: sched_switch:  prev_comm=a: 2: b ==> next_comm=c
 kdamond.0-9 [000] ..... 1.100: damon_aggregated:   target_id=0 nr_regions=1 4096-8192: 3 1
 kdamond.0-9 [000] ..... 1.200: damos_before_apply:  ctx_idx=0 scheme_idx=0 target_idx=0
 kworker/0:1-ev-7 [000] ..... 1.300: sched_switch:  prev_comm=a
";
    let imported = read(text.as_bytes()).unwrap();
    assert_eq!(imported.regions.len(), 1);
    let notes = notes(&imported);
    for words in [
        "says 1 times that events were lost",
        "left out: lines of other events (damos_before_apply: 1, sched_switch: 2)",
    ] {
        assert!(notes.contains(words), "{notes}");
    }
}

#[test]
fn what_damo_held_back_is_told() {
    let text = br#"[{"kdamond_idx": 0, "context_idx": 0, "scheme_idx": 2, "target_id": 0,
        "intervals": null, "data_source": "damon_stat",
        "scheme_filters": [
            {"filter_type": "anon", "matching": true, "allow": false},
            {"filter_type": "memcg", "matching": false, "filter_pass": true, "memcg_path": "/a"}],
        "snapshots": [{"start_time": 0, "end_time": 100000000, "damos_stats": {"nr_tried": 3},
            "regions": [{"start": 0, "end": 4096, "nr_accesses": {"samples": 2}, "age": null,
                         "probe_hits": [1, 2], "sz_filter_passed": "4.000 KiB"}]}]},
        {"kdamond_idx": 1, "context_idx": 0, "target_id": 0, "intervals": null,
         "scheme_filters": [], "snapshots": []}]"#;
    let imported = read(text).unwrap();
    assert_eq!(imported.regions[0].age_count, None);
    let notes = notes(&imported);
    for words in [
        "target 0 was recorded through filters (reject anon, allow not memcg /a)",
        "that a scheme of DAMON was tried on",
        "has its regions from damon_stat",
        "left out: fields of target 0 (damos_stats: 1, probe_hits: 1, sz_filter_passed: 1)",
    ] {
        assert!(notes.contains(words), "{words} is not in {notes}");
    }
    assert!(
        !notes.contains("kdamond 1 context 0 was recorded"),
        "{notes}"
    );
}

#[test]
fn a_file_that_yields_nothing_is_an_error() {
    let told = |bytes: &[u8]| read(bytes).unwrap_err().to_string();
    assert!(
        told(b"[]").contains("ends without a sample or a region"),
        "{}",
        told(b"[]")
    );
    let record = br#"[{"target_id": 0, "intervals": null, "snapshots": [
        {"end_time": 5, "regions": [{"start": 9, "end": 9, "nr_accesses": {"samples": 0}}]}]}]"#;
    let why = told(record);
    assert!(
        why.contains("end where they start or before, and were left out"),
        "{why}"
    );
    // What damo adds to a snapshot alone is none.
    let line = "k 1 [0] 1.0: damon:damon_aggregated: target_id=0 nr_regions=1 0-0: -1 -1\n";
    assert!(told(line.as_bytes()).contains("damo record"));
    // Samples of the kernel's memory alone.
    let mut kernel = memory_sample(1000, 0, 2);
    kernel[8 + 24..8 + 32].copy_from_slice(&(1_u64 << 63).to_le_bytes());
    let why = told(&perf_file(MEMORY, &kernel));
    assert!(
        why.contains("1 samples are of the kernel's memory"),
        "{why}"
    );
}

#[test]
fn unknown_figures_of_other_tools_stay_unknown() {
    for name in ["damo/negzero.txt", "perf-data/page-faults.data"] {
        let imported = read(&fixture(name)).unwrap();
        let meta = imported.about.meta("test");
        assert_eq!(meta.began_unix_ms, None);
        let ended = meta.ended.unwrap();
        let own = (ended.own_user_us, ended.own_system_us, ended.own_peak_kb);
        assert_eq!(own, (None, None, None), "{name}");
        assert!(
            imported
                .intervals
                .iter()
                .all(|interval| interval.own_cpu_us.is_none())
        );
    }
}

#[test]
fn faults_of_damos_files_are_told_with_their_place() {
    let told = |bytes: &[u8]| read(bytes).unwrap_err().to_string();
    let json = fixture("damo/records.json");
    let cut = told(&json[..5000]);
    assert!(
        cut.starts_with("byte 5000: no list of damo records"),
        "{cut}"
    );
    let cut = told(&fixture("damo/records.zlib")[..1000]);
    assert!(cut.contains("cut off or damaged"), "{cut}");
    let line = "k 1 [0] 1.0: damon:damon_aggregated: target_id=0 nr_regions=1 1-2: 0 0\n";
    let late = told(
        format!("{line}{line}")
            .replace("1.0", "0.5")
            .replacen("0.5", "1.0", 1)
            .as_bytes(),
    );
    assert!(
        late.starts_with(&format!("byte {}: ", line.len())),
        "{late}"
    );
    assert!(late.contains("older"), "{late}");
    let no_region = told(&format!("{line}{}", line.replace("1-2:", "1+2")).into_bytes());
    assert!(no_region.contains("holds no region"), "{no_region}");
    let wrong = told(br#"[{"snapshots": [{"end_time": "noon", "regions": []}]}]"#);
    assert!(
        wrong.contains("record 0: snapshot 0: `end_time` is no time"),
        "{wrong}"
    );
    assert!(told(b"\n  \n").contains("empty"));
    assert!(told(b"\x7fELF").contains("neither damo"));
}

#[test]
fn what_is_compressed_has_a_limit() {
    // Hundreds of times smaller than its content.
    let small = compress_to_vec_zlib(&vec![b' '; 4 << 20], 1);
    assert!(small.len() < 1 << 15, "{}", small.len());
    let told = damo::unpacked(&small, 3 << 20).unwrap_err();
    assert!(told.reason.contains("larger than 3 MiB"), "{told}");
    assert_eq!(damo::unpacked(&small, 4 << 20).unwrap().len(), 4 << 20);
}

#[test]
fn page_faults_that_perf_recorded_are_read() {
    let imported = read(&fixture("perf-data/page-faults.data")).unwrap();
    let about = &imported.about;
    // As `perf report --header-only` shows it, and `perf script | wc -l`.
    assert_eq!(about.kernel, "6.18.44-fc-v669");
    assert_eq!(about.command, ["./faults"]);
    assert!(
        about.tracker.1.contains("page-faults"),
        "{}",
        about.tracker.1
    );
    assert_eq!(about.nodes.len(), 1);
    assert_eq!(
        (about.nodes[0].id, about.nodes[0].cpus.as_str()),
        (0, "0-1")
    );
    assert_eq!(about.line_bytes, Some(64));
    assert_eq!(imported.samples.len(), 322);
    assert_eq!(imported.intervals[0].sample_count, 322);
    // The program and the child that it forked.
    let names: Vec<&str> = imported.processes.iter().map(|p| p.name.as_str()).collect();
    assert_eq!(names, ["faults", "faults"]);
    assert!(
        imported
            .processes
            .iter()
            .all(|process| process.end_ns.is_some())
    );
    // It wrote 192 pages of a mapping of its own, in three threads; its child 32 of them again.
    let (parent, child) = (imported.processes[0].pid, imported.processes[1].pid);
    let largest = imported
        .mappings
        .iter()
        .filter(|mapping| mapping.pid == parent && mapping.name.is_empty())
        .filter(|mapping| mapping.permissions == "rw-p" && mapping.end - mapping.start >= 1 << 20)
        .find(|mapping| {
            let of = imported.samples.iter().filter(|s| s.pid == parent);
            of.filter(|s| (mapping.start..mapping.end).contains(&s.address))
                .count()
                >= 192
        })
        .expect("the mapping of the program");
    let inside = |pid: i32| {
        let samples = imported
            .samples
            .iter()
            .filter(move |sample| sample.pid == pid);
        samples.filter(|sample| (largest.start..largest.end).contains(&sample.address))
    };
    assert!(inside(parent).count() >= 192);
    assert!(inside(child).count() >= 32);
    let threads: std::collections::BTreeSet<_> = inside(parent).map(|s| s.tid).collect();
    assert!(threads.len() >= 3, "{threads:?}");
    // The child has the mappings of its parent.
    assert!(
        imported
            .mappings
            .iter()
            .any(|m| m.pid == child && m.start == largest.start)
    );
    assert!(
        imported
            .samples
            .iter()
            .all(|s| s.is_write.is_none() && s.latency_ns.is_none())
    );
    assert!(imported.samples.is_sorted_by_key(|sample| sample.time_ns));
}

#[test]
fn physical_addresses_tell_the_node() {
    let imported = read(&fixture("perf-data/physical.data")).unwrap();
    // A page that faults for the first time has no physical address yet: 62 of 319 have one, as
    // `perf script -F phys_addr` prints them.
    let told = |home| {
        imported
            .samples
            .iter()
            .filter(|s| s.home_node == home)
            .count()
    };
    assert_eq!((told(Some(0)), told(None)), (62, 257));
}

#[test]
fn stacks_and_several_events_are_passed_over() {
    let stacks = read(&fixture("perf-data/stacks.data")).unwrap();
    assert!(stacks.samples.len() > 250, "{}", stacks.samples.len());
    let two = read(&fixture("perf-data/two-events.data")).unwrap();
    assert!(two.samples.len() > 250, "{}", two.samples.len());
    for (file, words) in [
        (
            &stacks,
            "left out: fields of samples (call chains, registers, stacks)",
        ),
        (&two, "have no address"),
    ] {
        assert!(notes(file).contains(words), "{words}: {}", notes(file));
    }
    // The other event has no addresses.
    assert!(notes(&two).contains("have no address"), "{}", notes(&two));
}

#[test]
fn files_of_perf_that_cannot_be_imported_say_what_to_do() {
    let told = |name: &str| read(&fixture(name)).unwrap_err().to_string();
    let pipe = told("perf-data/pipe.data");
    assert!(
        pipe.contains("pipe") && pipe.contains("`perf record -o FILE`"),
        "{pipe}"
    );
    let compressed = told("perf-data/compressed.data");
    assert!(
        compressed.contains("compressed") && compressed.contains("-z"),
        "{compressed}"
    );
    let bare = told("perf-data/no-addresses.data");
    assert!(
        bare.contains("page-faults") && bare.contains("perf mem record"),
        "{bare}"
    );
    let mut swapped = fixture("perf-data/page-faults.data");
    swapped[..8].reverse();
    assert!(read(&swapped).unwrap_err().reason.contains("byte order"));
}

#[test]
fn a_file_of_perf_that_was_cut_off_is_read_as_far_as_it_goes() {
    let whole = fixture("perf-data/page-faults.data");
    let all = read(&whole).unwrap().samples.len();
    let half = read(&whole[..whole.len() / 2]).unwrap();
    assert!(half.samples.len() > 10 && half.samples.len() < all);
    assert!(notes(&half).contains("cut off"), "{}", notes(&half));
    // perf was killed: it had not written the size of the records yet.
    let mut killed = whole.clone();
    killed[48..56].fill(0);
    let killed = read(&killed[..264 + 19_616]).unwrap();
    assert_eq!(killed.samples.len(), all);
    assert!(
        notes(&killed).contains("did not close"),
        "{}",
        notes(&killed)
    );
}

/// A file with one event of these fields and these records; the machine has two nodes.
fn perf_file(fields: u64, records: &[u8]) -> Vec<u8> {
    let word = |words: &[u64]| -> Vec<u8> { words.iter().flat_map(|w| w.to_le_bytes()).collect() };
    let data_at = 104 + 144;
    let mut file = b"PERFILE2".to_vec();
    file.extend(word(&[
        104,
        144,
        104,
        144,
        data_at,
        records.len() as u64,
        0,
        0,
    ]));
    // Features 8 (CPU) and 14 (nodes).
    file.extend(word(&[1 << 8 | 1 << 14, 0, 0, 0]));
    let mut attr = word(&[4 | 128 << 32, 0, 1000, fields]);
    attr.resize(144, 0);
    file.extend(attr);
    file.extend(records);
    let string = |text: &str| {
        let mut bytes = 64_u32.to_le_bytes().to_vec();
        bytes.extend(text.as_bytes());
        bytes.resize(68, 0);
        bytes
    };
    let cpu = string("Some CPU @ 2.00GHz");
    let mut nodes = 2_u32.to_le_bytes().to_vec();
    for (id, cpus) in [(0_u32, "0"), (3, "1")] {
        nodes.extend(id.to_le_bytes());
        nodes.extend(word(&[1024, 512]));
        nodes.extend(string(cpus));
    }
    let at = file.len() as u64 + 32;
    let sections = [
        at,
        cpu.len() as u64,
        at + cpu.len() as u64,
        nodes.len() as u64,
    ];
    file.extend(word(&sections));
    file.extend(cpu);
    file.extend(nodes);
    file
}

/// A record of the kernel.
fn record(kind: u32, mode: u16, words: &[u64]) -> Vec<u8> {
    let mut bytes = kind.to_le_bytes().to_vec();
    bytes.extend(mode.to_le_bytes());
    bytes.extend((8 + 8 * words.len() as u16).to_le_bytes());
    bytes.extend(words.iter().flat_map(|word| word.to_le_bytes()));
    bytes
}

/// IP, TID, TIME, ADDR, CPU, PERIOD, WEIGHT_STRUCT, DATA_SRC: what `perf mem record` asks for.
const MEMORY: u64 = 0xf | 1 << 7 | 1 << 8 | 1 << 24 | 1 << 15;

/// A sample of [`MEMORY`] by thread 8 of process 7, in user mode.
fn memory_sample(time_ns: u64, cpu: u64, source: u64) -> Vec<u8> {
    let thread = 7 | 8 << 32;
    let weight = 400 | 77 << 32;
    record(
        9,
        2,
        &[
            0x40_1000,
            thread,
            time_ns,
            0x7000_0040,
            cpu,
            50,
            weight,
            source,
        ],
    )
}

#[test]
fn memory_samples_tell_nodes_kinds_and_latencies() {
    // Loads and a store: local memory, remote memory, a cache.
    let (load, store, hit) = (0x02, 0x04, 0x02 << 5);
    let (local, remote, third) = (0x80 << 5, 0x100 << 5, 0x40 << 5);
    let mut records = memory_sample(1000, 0, load | hit | local);
    records.extend(memory_sample(3000, 1, store | hit | remote));
    records.extend(memory_sample(2000, 1, load | hit | third));
    records.extend(record(2, 0, &[0, 5]));
    let imported = read(&perf_file(MEMORY, &records)).unwrap();
    let told: Vec<_> = imported
        .samples
        .iter()
        .map(|s| (s.time_ns, s.from_node, s.home_node, s.is_write))
        .collect();
    assert_eq!(
        told,
        [
            (0, Some(0), Some(0), Some(false)),
            (1000, Some(3), None, Some(false)),
            (2000, Some(3), Some(0), Some(true)),
        ]
    );
    let first = &imported.samples[0];
    assert_eq!((first.pid, first.tid, first.cpu), (7, Some(8), Some(0)));
    assert_eq!((first.weight, first.latency_ns), (50, Some(200)));
    assert_eq!(first.code, Some(0x40_1000));
    assert_eq!(imported.intervals[0].lost_count, 5);
    assert!(notes(&imported).contains("2 GHz"), "{}", notes(&imported));
    assert_eq!(imported.about.nodes[1].total_bytes, 1 << 20);
}

#[test]
fn a_record_that_is_too_short_for_its_fields_is_told_with_its_place() {
    let mut records = memory_sample(1000, 0, 0x02);
    records.extend(record(9, 2, &[1, 2, 3]));
    let told = read(&perf_file(MEMORY, &records)).unwrap_err().to_string();
    assert!(
        told.starts_with("byte 320: a record of type 9 ends after 32 bytes"),
        "{told}"
    );
}

#[test]
fn forks_without_end_do_not_take_memory_without_limit() {
    // 2000 mappings, and 4000 children that are sampled.
    let mut records = Vec::new();
    for index in 0..2000_u64 {
        let words = [7 | 7 << 32, index << 20, 4096, 0, 0, 0, 0, 0, 3, 0];
        records.extend(record(10, 2, &words[..]));
    }
    for child in 100..4100_u64 {
        records.extend(record(7, 0, &[child | 7 << 32, child | 7 << 32, 10]));
        let words = [1, child | child << 32, 20, 4096, 0, 1, 0, 0];
        records.extend(record(9, 2, &words));
    }
    let imported = read(&perf_file(MEMORY, &records)).unwrap();
    assert_eq!(imported.processes.len(), 4000);
    assert!(imported.mappings.len() <= 1 << 20);
    assert!(
        notes(&imported).contains("not all mappings"),
        "{}",
        notes(&imported)
    );
}

#[test]
fn what_is_imported_becomes_a_recording_and_is_read_again() {
    for name in ["damo/records.json", "perf-data/page-faults.data"] {
        let imported = read(&fixture(name)).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let meta = imported.about.meta("test");
        let mut writer = crate::Writer::create(
            crate::Folder::make_or_take(folder.path()).unwrap(),
            meta.clone(),
        )
        .unwrap();
        writer.add(imported.samples.clone()).unwrap();
        writer.add(imported.regions.clone()).unwrap();
        writer.add(imported.processes.clone()).unwrap();
        writer.finish().unwrap();
        let recording = crate::Recording::open(folder.path()).unwrap();
        assert_eq!(*recording.meta(), meta);
        assert_eq!(recording.rows::<Sample>(), imported.samples);
        assert_eq!(recording.rows::<Region>(), imported.regions);
        assert_eq!(recording.rows::<Process>(), imported.processes);
        assert!(recording.notes().is_empty());
    }
}

/// Neither a panic nor more memory than a few rows to each byte, whatever it is.
fn is_safe(bytes: &[u8]) {
    for format in [Format::Damo, Format::Perf] {
        match import(bytes, format) {
            Ok(imported) => {
                assert!(imported.samples.len() <= bytes.len());
                assert!(imported.about.nodes.len() <= 1024);
            }
            Err(told) => assert!(!told.reason.is_empty() && !told.remedy.is_empty()),
        }
    }
    let _ = detect(bytes);
}

#[test]
fn every_fixture_cut_off_anywhere_is_safe() {
    for (_, bytes) in fixtures() {
        let step = (bytes.len() / 150).max(1);
        for end in (0..bytes.len())
            .step_by(step)
            .chain(0..bytes.len().min(300))
        {
            is_safe(&bytes[..end]);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn any_bytes_are_safe(bytes in proptest::collection::vec(any::<u8>(), 0..2000)) {
        is_safe(&bytes);
        let mut file = b"PERFILE2".to_vec();
        file.extend(&bytes);
        is_safe(&file);
    }

    #[test]
    fn any_records_of_any_event_are_safe(
        fields: u64,
        kinds in proptest::collection::vec((0_u32..90, any::<u16>(), proptest::collection::vec(0_u64..200, 0..20)), 0..20),
    ) {
        let records: Vec<u8> = kinds
            .iter()
            .flat_map(|(kind, mode, words)| record(*kind, *mode, words))
            .collect();
        is_safe(&perf_file(fields, &records));
    }

    #[test]
    fn fixtures_with_flipped_bits_are_safe(
        index: prop::sample::Index,
        flips in proptest::collection::vec((any::<prop::sample::Index>(), 0_u32..8), 1..8),
        head: bool,
    ) {
        let fixtures = fixtures();
        let (_, mut bytes) = fixtures[index.index(fixtures.len())].clone();
        let span = if head { bytes.len().min(300) } else { bytes.len() };
        for (at, bit) in flips {
            bytes[at.index(span)] ^= 1 << bit;
        }
        is_safe(&bytes);
    }
}
