//! Runs every program as a user would, small: what it prints, what it refuses, what stays the same.

use std::process::{Command, Output};

const PROGRAMS: [(&str, &str, &[&str]); 24] = [
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
    (
        "npb",
        env!("CARGO_BIN_EXE_npb"),
        &["mg", "--scale-mb", "3", "--rounds", "2"],
    ),
    (
        "mix",
        env!("CARGO_BIN_EXE_mix"),
        &["--programs", "9", "--scale-mb", "3", "--rounds", "1"],
    ),
    (
        "fileserve",
        env!("CARGO_BIN_EXE_fileserve"),
        &[
            "--folder",
            "/tmp",
            "--files",
            "2",
            "--file-kb",
            "64",
            "--seconds",
            "1",
            "--threads",
            "2",
        ],
    ),
    (
        "netserve",
        env!("CARGO_BIN_EXE_netserve"),
        &["--seconds", "1", "--threads", "2"],
    ),
    (
        "cachemix",
        env!("CARGO_BIN_EXE_cachemix"),
        &[
            "--ws",
            "64K,16K",
            "--seconds",
            "1",
            "--server-kb",
            "64",
            "--request-loads",
            "16",
            "--every-us",
            "5000",
        ],
    ),
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
fn kernels_of_npb_have_these_checksums_for_any_threads() {
    for (kernel, expected) in [
        ("is", "0x4d864a28e8f2b409"),
        ("ep", "0x1352d8f38d2303be"),
        ("cg", "0x4dd444b0869dd46b"),
        ("mg", "0x6420673babfa84f7"),
        ("ft", "0x8e6b8e13a7b04d06"),
        ("bt", "0x9d12a7fa1157bfb1"),
        ("sp", "0x8ead8436e9ea7aea"),
        ("lu", "0x3cb162e6b9fc6d18"),
    ] {
        let of = |threads: &str| {
            let words = [
                kernel,
                "--scale-mb",
                "3",
                "--rounds",
                "2",
                "--threads",
                threads,
            ];
            checksum("npb", &words)
        };
        assert_eq!(of("1"), expected, "{kernel}");
        assert_eq!(of("3"), expected, "{kernel}");
    }
    let output = run("npb", &["cg", "--scale-mb", "3", "--divide", "100000"]);
    let number = |key: &str| value(&output, key).parse::<f64>().unwrap();
    // As many rounds as are nearest to the table's 261 GFlop, divided.
    assert!((number("flops") / 2.61e6 - 1.0).abs() < 0.1, "{output:?}");
    let bytes = number("read_bytes") + number("write_bytes");
    assert!((number("flops") / bytes / number("flops_per_byte") - 1.0).abs() < 0.01);
}

fn mix_programs(output: &Output) -> Vec<Vec<String>> {
    let text = String::from_utf8_lossy(&output.stdout);
    let lines = text
        .lines()
        .filter_map(|line| line.strip_prefix("program: "));
    lines
        .map(|line| line.split(' ').map(str::to_owned).collect())
        .collect()
}

#[test]
fn a_mix_runs_each_program_on_its_cpu_and_repeats_by_seed() {
    let base = [
        "--programs",
        "10",
        "--scale-mb",
        "3",
        "--rounds",
        "1",
        "--policy",
        "none",
    ];
    let with = |more: &[&str]| run("mix", &[&base, more].concat());
    let (one, again, even) = (
        with(&[]),
        with(&["--seed", "1"]),
        with(&["--even", "--seed", "9"]),
    );
    let programs = mix_programs(&one);
    let column = |programs: &[Vec<String>], at: usize| -> Vec<String> {
        programs.iter().map(|words| words[at].clone()).collect()
    };
    assert_eq!(
        column(&programs, 0),
        [
            "is.0", "ep.0", "cg.0", "mg.0", "ft.0", "bt.0", "sp.0", "lu.0", "is.1", "ep.1"
        ]
    );
    assert_eq!(column(&programs, 2), column(&mix_programs(&again), 2));
    // CPUs decide about times, not about results.
    assert_eq!(column(&programs, 8), column(&mix_programs(&even), 8));
    assert_eq!(
        programs[3][8],
        checksum("npb", &["mg", "--scale-mb", "3", "--rounds", "1"])
    );
    assert_eq!(value(&one, "policy"), "none");
    assert_eq!(value(&even, "seed"), "9");
    let mean: f64 = value(&one, "mean_seconds").parse().unwrap();
    let seconds: Vec<f64> = column(&programs, 4)
        .iter()
        .map(|word| word.parse().unwrap())
        .collect();
    assert!((seconds.iter().sum::<f64>() / 10.0 - mean).abs() < 1e-5);
}

#[test]
fn a_mix_whose_programs_fail_says_which() {
    let output = run("mix", &["--programs", "2", "--npb", "/bin/false"]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        message.contains("is.0: exit status: 1") && message.contains("ep.0"),
        "{message}"
    );
}

#[test]
fn children_end_with_their_parent_and_have_names() {
    for (program, words, names) in [
        (
            "mix",
            &["--programs", "2", "--rounds", "1000000"][..],
            &["npb", "npb"][..],
        ),
        (
            "cachemix",
            &["--ws", "64K,16K", "--seconds", "1000", "--server-kb", "16"],
            &["cachemix-0", "cachemix-1", "cachemix-server"],
        ),
    ] {
        let (_, path, _) = PROGRAMS.iter().find(|(name, ..)| *name == program).unwrap();
        let mut parent = Command::new(path).args(words).spawn().unwrap();
        let children = || {
            let path = format!("/proc/{0}/task/{0}/children", parent.id());
            let text = std::fs::read_to_string(path).unwrap_or_default();
            text.split_whitespace()
                .map(str::to_owned)
                .collect::<Vec<_>>()
        };
        let wait = |done: &dyn Fn() -> bool| {
            (0..1000).any(|_| {
                std::thread::sleep(std::time::Duration::from_millis(10));
                done()
            })
        };
        let has_names = || {
            let of = |id: &String| std::fs::read_to_string(format!("/proc/{id}/comm"));
            let found: Vec<String> = children().iter().flat_map(of).collect();
            found
                .iter()
                .map(|name| name.trim_end())
                .eq(names.iter().copied())
        };
        assert!(wait(&has_names), "{program} has not these children");
        let started = children();
        parent.kill().unwrap();
        parent.wait().unwrap();
        let ended = |id: &String| {
            // One that nobody waits for is a zombie until init has taken it.
            let state = std::fs::read_to_string(format!("/proc/{id}/stat")).unwrap_or_default();
            state.is_empty() || state.contains(") Z ")
        };
        assert!(wait(&|| started.iter().all(ended)), "{started:?} go on");
    }
}

#[test]
fn programs_that_compete_for_caches_tell_of_each_half_second() {
    let words = [
        "--programs",
        "3",
        "--seed",
        "5",
        "--most",
        "256K",
        "--seconds",
        "2",
    ];
    let output = run("cachemix", &words);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let lines = |key: &str| -> Vec<Vec<String>> {
        let found = text.lines().filter_map(|line| line.strip_prefix(key));
        found
            .map(|line| line.split(' ').map(str::to_owned).collect())
            .collect()
    };
    let (programs, series) = (lines("program: "), lines("loads_per_second: "));
    assert_eq!((programs.len(), series.len()), (3, 3), "{text}");
    for (program, series) in programs.iter().zip(&series) {
        let number = |word: &String| word.parse::<f64>().unwrap();
        let rates: Vec<f64> = series[1..].iter().map(number).collect();
        assert_eq!(rates.len(), 4, "{text}");
        assert!(rates.iter().sum::<f64>() > 0.0, "{text}");
        let last = (rates[2] + rates[3]) / 2.0;
        assert_eq!(program[8], "last_half");
        assert!((number(&program[9]) - last).abs() <= 1.0, "{text}");
    }
    assert_eq!(value(&output, "seed"), "5");
    assert!(
        value(&output, "geometric_mean_last_half")
            .parse::<f64>()
            .unwrap()
            > 0.0
    );
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
        ("npb", &[], "KERNEL is missing"),
        ("npb", &["dc"], "it is is | ep | cg"),
        ("npb", &["ft", "--scale-mb", "50"], "are 48 and 96"),
        ("npb", &["ft", "--scale-mb", "1"], "from 3 to"),
        (
            "npb",
            &["is", "--rounds", "1", "--divide", "9"],
            "exclude each other",
        ),
        (
            "npb",
            &["is", "--node", "0", "--first-node", "0"],
            "give one",
        ),
        ("mix", &["--programs", "0"], "from 1 to 1024"),
        ("mix", &["--cpus", "60000"], "it may use"),
        ("mix", &["--scale-mb", "7"], "are 6 and 12"),
        ("mix", &["--npb", "/nowhere"], "there is no such file"),
        ("mix", &["--policy", "a\nb"], "one line"),
        ("fileserve", &["--file-kb", "65"], "multiple of 64"),
        (
            "fileserve",
            &["--folder", "/no/such/folder"],
            "/no/such/folder",
        ),
        (
            "netserve",
            &["--peer", "/no/such/file"],
            "--peer /no/such/file",
        ),
        ("netserve", &["--address", "here"], "no IP address"),
        ("netserve", &["--value-bytes", "12"], "multiple of 8"),
        ("netserve", &["--peer-cpus", "60000"], "it may use"),
        ("cachemix", &["--ws", "4M,x"], "K, M, G or T"),
        ("cachemix", &["--start-cpus", "60000"], "it may use"),
        ("cachemix", &["--ws", "2T"], "1K to 1T"),
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
