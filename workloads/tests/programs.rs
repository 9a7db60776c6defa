//! Runs every program as a user would, small: what it prints, what it refuses, what stays the same.

use std::process::{Command, Output};

const PROGRAMS: [(&str, &str, &[&str]); 19] = [
    (
        "cluster",
        env!("CARGO_BIN_EXE_cluster"),
        &["shared", "--mb", "1", "--rounds", "2"],
    ),
    (
        "memlat",
        env!("CARGO_BIN_EXE_memlat"),
        &["--mb", "1", "--accesses", "1000"],
    ),
    (
        "stream",
        env!("CARGO_BIN_EXE_stream"),
        &["--mb", "1", "--iterations", "2"],
    ),
    (
        "gups",
        env!("CARGO_BIN_EXE_gups"),
        &["--mb", "1", "--updates", "1000"],
    ),
    (
        "cg",
        env!("CARGO_BIN_EXE_cg"),
        &["--mb", "1", "--products", "3"],
    ),
    (
        "kvstore",
        env!("CARGO_BIN_EXE_kvstore"),
        &["--mb", "1", "--operations", "1000"],
    ),
    (
        "memstore",
        env!("CARGO_BIN_EXE_memstore"),
        &["--mb", "1", "--seconds", "1"],
    ),
    (
        "hotspot",
        env!("CARGO_BIN_EXE_hotspot"),
        &["--mb", "1", "--seconds", "1"],
    ),
    (
        "scan",
        env!("CARGO_BIN_EXE_scan"),
        &["--mb", "1", "--seconds", "1", "--threads", "2"],
    ),
    ("grow", env!("CARGO_BIN_EXE_grow"), &["--mb", "1"]),
    ("fft3d", env!("CARGO_BIN_EXE_fft3d"), &["--size", "16"]),
    ("ocean", env!("CARGO_BIN_EXE_ocean"), &["--size", "32"]),
    ("water", env!("CARGO_BIN_EXE_water"), &["--side", "6"]),
    ("fmm", env!("CARGO_BIN_EXE_fmm"), &["--levels", "2"]),
    (
        "barnes",
        env!("CARGO_BIN_EXE_barnes"),
        &["--bodies", "500", "--steps", "2"],
    ),
    ("pca", env!("CARGO_BIN_EXE_pca"), &["--mb", "1"]),
    (
        "facerec",
        env!("CARGO_BIN_EXE_facerec"),
        &["--mb", "1", "--rounds", "2", "--phases", "3"],
    ),
    (
        "is",
        env!("CARGO_BIN_EXE_is"),
        &["--mb", "1", "--rounds", "3"],
    ),
    ("mg", env!("CARGO_BIN_EXE_mg"), &["--size", "16"]),
];

fn run(program: &str, words: &[&str]) -> Output {
    let (_, path, _) = PROGRAMS.iter().find(|(name, ..)| *name == program).unwrap();
    Command::new(path).args(words).output().unwrap()
}

fn value(output: &Output, key: &str) -> String {
    let text = String::from_utf8_lossy(&output.stdout);
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix(key)?.strip_prefix(": "));
    line.unwrap_or_else(|| panic!("no `{key}` in {output:?}"))
        .to_owned()
}

fn checksum(program: &str, words: &[&str]) -> String {
    let output = run(program, words);
    assert!(output.status.success(), "{program} {words:?}: {output:?}");
    value(&output, "checksum")
}

#[test]
fn every_program_prints_its_time_and_a_steady_checksum() {
    for (name, _, words) in PROGRAMS {
        let output = run(name, words);
        assert_eq!(output.status.code(), Some(0), "{name}: {output:?}");
        assert!(value(&output, "seconds").parse::<f64>().unwrap() > 0.0);
        let first = value(&output, "checksum");
        assert_ne!(first, "0x0000000000000000", "{name}");
        assert_eq!(checksum(name, words), first, "{name} is not repeatable");
    }
}

#[test]
fn checksums_are_these_on_every_machine() {
    for (program, words, expected) in [
        (
            "cluster",
            &["shared", "--mb", "1", "--rounds", "2", "--threads", "3"][..],
            "0x00084cc25718d993",
        ),
        (
            "cluster",
            &["mixed", "--mb", "1", "--rounds", "2", "--threads", "3"],
            "0x00109984ae31b326",
        ),
        (
            "memlat",
            &["--mb", "1", "--accesses", "1000"],
            "0x00000000000004bc",
        ),
        (
            "stream",
            &["--mb", "1", "--iterations", "2", "--threads", "3"],
            "0xa17d489a9269f2fc",
        ),
        (
            "gups",
            &["--mb", "1", "--updates", "1000", "--threads", "3"],
            "0xf08834c69db4b110",
        ),
        (
            "gups",
            &[
                "--mb",
                "1",
                "--updates",
                "1000",
                "--threads",
                "3",
                "--hot",
                "10",
            ],
            "0x8ccb811702c207ef",
        ),
        (
            "memstore",
            &["--mb", "1", "--seconds", "1"],
            "0x48faac6ec2c1609b",
        ),
        (
            "hotspot",
            &["--mb", "1", "--seconds", "1"],
            "0x08088b31d285fb67",
        ),
        (
            "scan",
            &["--mb", "1", "--seconds", "1", "--threads", "2"],
            "0x08088b31d285fb67",
        ),
        (
            "cg",
            &["--mb", "1", "--products", "3"],
            "0xc07c97d4f4c4b6bc",
        ),
        (
            "kvstore",
            &["--mb", "1", "--operations", "1000", "--threads", "3"],
            "0x0c9395bf46a0c86b",
        ),
        ("fft3d", &["--size", "16"], "0xa9fbbcf8990be1b7"),
        (
            "ocean",
            &["--size", "32", "--steps", "1"],
            "0x7f56b68cad53c260",
        ),
        ("water", &["--side", "6"], "0x608513f3c68e991d"),
        ("fmm", &["--levels", "2"], "0xfc013a3c68708491"),
        (
            "barnes",
            &["--bodies", "500", "--steps", "2"],
            "0x91d7f2ed08b5a5ce",
        ),
        ("pca", &["--mb", "1"], "0x0fac736c5f49af79"),
        (
            "facerec",
            &["--mb", "1", "--rounds", "2"],
            "0xaa2705d5227853bc",
        ),
        ("is", &["--mb", "1", "--rounds", "3"], "0x662fcb771040f749"),
        ("mg", &["--size", "16"], "0xc8a9a9f420f8f499"),
    ] {
        assert_eq!(checksum(program, words), expected, "{program} {words:?}");
    }
}

#[test]
fn placement_threads_and_pinning_do_not_change_a_result() {
    let base = ["--mb", "1", "--rounds", "4"];
    let cluster =
        |mode: &str, more: &[&str]| checksum("cluster", &[&[mode], &base[..], more].concat());
    let partitioned = cluster("partitioned", &["--threads", "1"]);
    assert_eq!(cluster("partitioned", &["--threads", "5"]), partitioned);
    assert_eq!(cluster("local", &["--threads", "3"]), partitioned);
    assert_eq!(
        cluster("mixed", &["--threads", "4", "--no-pin"]),
        cluster("mixed", &["--threads", "4", "--pin"])
    );
    // All threads read all points: two threads have twice the sum of one.
    let sum = |text: String| u64::from_str_radix(&text[2..], 16).unwrap();
    let one = sum(cluster("shared", &["--threads", "1"]));
    assert_eq!(
        sum(cluster("shared", &["--threads", "2"])),
        one.wrapping_mul(2)
    );

    let cg = |threads: &str| {
        checksum(
            "cg",
            &["--mb", "1", "--products", "3", "--threads", threads],
        )
    };
    assert_eq!(cg("1"), cg("4"));
    for (program, words) in [
        ("fft3d", ["--size", "16"]),
        ("ocean", ["--size", "32"]),
        ("water", ["--side", "6"]),
        ("fmm", ["--levels", "2"]),
        ("barnes", ["--bodies", "500"]),
        ("pca", ["--mb", "1"]),
        ("facerec", ["--mb", "1"]),
        ("is", ["--mb", "1"]),
        ("mg", ["--size", "16"]),
    ] {
        let of = |more: &[&str]| checksum(program, &[&words, more].concat());
        assert_eq!(of(&["--threads", "1"]), of(&["--threads", "3", "--no-pin"]));
    }
    for (program, words) in [
        ("pca", ["--mb", "1"]),
        ("facerec", ["--mb", "1"]),
        ("is", ["--mb", "1"]),
        ("mg", ["--size", "16"]),
    ] {
        let seeded = |seed| checksum(program, &[&words[..], &["--seed", seed]].concat());
        assert_ne!(seeded("1"), seeded("2"), "{program}");
        assert_eq!(seeded("1"), checksum(program, &words), "{program}");
    }
    let mg = |more: &[&str]| checksum("mg", &[&["--size", "16"], more].concat());
    assert_eq!(mg(&["--local", "--threads", "20"]), mg(&["--threads", "2"]));
    let stream = |more: &[&str]| {
        checksum(
            "stream",
            &[&["--mb", "1", "--iterations", "3"], more].concat(),
        )
    };
    assert_eq!(
        stream(&["--threads", "1"]),
        stream(&["--threads", "4", "--local"])
    );
    assert_eq!(stream(&["--nt"]), stream(&["--no-pin"]));
    assert_eq!(stream(&["--nt", "--integer"]), stream(&["--integer"]));
}

#[test]
fn kernels_and_regions_report_their_rates() {
    for (kernel, key) in [
        ("read", "read_gbs"),
        ("memcpy", "memcpy_gbs"),
        ("copy", "copy_gbs"),
    ] {
        let output = run(
            "stream",
            &[kernel, "--mb", "1", "--iterations", "2", "--threads", "2"],
        );
        let rate = value(&output, key);
        let best: f64 = rate.split(' ').next().unwrap().parse().unwrap();
        assert!(best > 0.0, "{kernel}: {rate}");
    }
    assert_eq!(
        checksum("stream", &["memcpy", "--mb", "1", "--iterations", "2"]),
        checksum("stream", &["copy", "--mb", "1", "--iterations", "2"])
    );
    let words = [
        "--regions",
        "2",
        "--mb",
        "1",
        "--accesses",
        "320",
        "--visit",
        "32",
    ];
    let output = run("memlat", &words);
    assert!(
        value(&output, "ns_per_access").parse::<f64>().unwrap() > 0.0,
        "{output:?}"
    );
}

#[test]
fn programs_that_run_for_a_time_tell_of_each_second_and_of_lost_writes() {
    let seconds = |output: &Output| {
        let text = String::from_utf8_lossy(&output.stdout);
        let lines = text
            .lines()
            .filter_map(|line| line.strip_prefix("second: "));
        lines.map(str::to_owned).collect::<Vec<_>>()
    };
    let figure = |line: &str, key: &str| {
        let mut words = line.split(' ').skip_while(|word| *word != key);
        words.nth(1).unwrap().parse::<f64>().unwrap()
    };
    let base = ["--mb", "2", "--seconds", "2"];
    for (program, words, key) in [
        (
            "hotspot",
            &["--every", "1", "--threads", "2"][..],
            "updates",
        ),
        ("scan", &["--threads", "3"], "updates"),
        ("memstore", &["--threads", "2", "--rate", "500"], "requests"),
    ] {
        let output = run(program, &[&base[..], words].concat());
        let lines = seconds(&output);
        assert_eq!(lines.len(), 2, "{program}: {output:?}");
        assert!(
            lines.iter().all(|line| figure(line, key) > 0.0),
            "{lines:?}"
        );
        // However many updates were made, and whichever threads made them, the checksum is of the size alone.
        assert_eq!(
            value(&output, "checksum"),
            checksum(program, &["--mb", "2", "--seconds", "1", "--threads", "4"])
        );
    }
    let output = run("hotspot", &[&base[..], &["--every", "1"]].concat());
    let places: Vec<f64> = seconds(&output)
        .iter()
        .map(|line| figure(line, "hot_at_mb"))
        .collect();
    assert_ne!(places[0], places[1], "{output:?}");
}

#[test]
fn a_trace_says_what_is_in_use_and_how_long() {
    let path = std::env::temp_dir().join(format!("trace-{}", std::process::id()));
    std::fs::write(&path, "0,1,50\n1,2,100\n2\n").unwrap();
    let name = path.to_str().unwrap();
    let output = run(
        "memstore",
        &["--mb", "2", "--threads", "2", "--trace", name],
    );
    let both = run("memstore", &["--mb", "2", "--rate", "5", "--trace", name]);
    std::fs::write(&path, "0,1\n").unwrap();
    let wrong = run("memstore", &["--mb", "2", "--trace", name]);
    std::fs::remove_file(&path).unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let lines: Vec<&str> = text
        .lines()
        .filter(|line| line.starts_with("second: "))
        .collect();
    assert!(lines[0].ends_with("active_mb 1"), "{text}");
    assert!(lines[1].ends_with("active_mb 2"), "{text}");
    assert_eq!(lines.len(), 2, "{text}");
    for (output, part) in [(both, "exclude each other"), (wrong, "line 1, `0,1`")] {
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        let message = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(message.contains(part), "{message}");
    }
}

#[test]
fn wrong_command_lines_end_with_status_2_and_a_remedy() {
    for (program, words, part) in [
        ("cluster", &[][..], "MODE is missing"),
        (
            "cluster",
            &["everything"],
            "it is shared | partitioned | mixed | local",
        ),
        ("cluster", &["shared", "--mb", "0"], "whole number from 1"),
        (
            "cluster",
            &["shared", "--threads", "2000"],
            "from 1 to 1024",
        ),
        ("cluster", &["shared", "--pin", "--no-pin"], "give one"),
        ("memlat", &["--regions", "3"], "from 1 to 2"),
        ("memlat", &["--node", "0,0"], "name one, or one for each"),
        ("memlat", &["--node", "900"], "has_memory"),
        ("memlat", &["--cpu", "60000"], "it may use"),
        ("memlat", &["--accesses", "many"], "no whole number"),
        ("stream", &["daxpy"], "it is all | copy"),
        ("stream", &["read", "--nt"], "leave it out"),
        ("stream", &["copy", "--pause", "5"], "is for `read` only"),
        ("stream", &["--cpus", "0,", "--mb", "1"], "no whole number"),
        ("stream", &["--iterations", "1"], "from 2"),
        ("gups", &["fast"], "options begin with --"),
        ("gups", &["--updates"], "needs a value"),
        ("cg", &["--products", "-3"], "no whole number"),
        (
            "cg",
            &["--rows", "3"],
            "there are --threads, --mb, --products",
        ),
        ("kvstore", &["--writes", "101"], "from 0 to 100"),
        ("kvstore", &["--mb", "1", "--mb", "2"], "twice"),
        ("kvstore", &["--node", "0", "--first-node", "0"], "give one"),
        ("memlat", &["--node", "0", "--first-node", "0"], "give one"),
        ("gups", &["--hot", "0"], "from 1 to 100"),
        ("gups", &["--hot-accesses", "50"], "give --hot"),
        ("scan", &["--threads", "1"], "needs 2 threads"),
        ("memstore", &["--value", "100"], "multiple of 64"),
        (
            "pca",
            &["--mb", "1", "--variables", "4096"],
            "fewer --variables",
        ),
        ("mg", &["--size", "100"], "the nearest is 128"),
        ("mg", &["--size", "4"], "from 8 to 1024"),
        ("facerec", &["--phases", "0"], "from 1 to"),
        ("is", &["--seed", "x"], "no whole number"),
        ("memstore", &["--trace", "/nowhere"], "--trace /nowhere"),
    ] {
        let output = run(program, words);
        let message = String::from_utf8_lossy(&output.stderr);
        assert_eq!(
            output.status.code(),
            Some(2),
            "{program} {words:?}: {output:?}"
        );
        assert!(message.contains(part), "{program} {words:?}: {message}");
        assert!(output.stdout.is_empty(), "{program} {words:?}");
    }
}

#[test]
fn help_goes_to_standard_output() {
    for (name, ..) in PROGRAMS {
        let output = run(name, &["--help"]);
        assert_eq!(output.status.code(), Some(0));
        let help = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(help.contains(&format!("Usage: {name}")), "{help}");
        assert!(output.stderr.is_empty());
    }
}
