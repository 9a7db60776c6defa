//! Boots of the laboratory: each test starts QEMU once and is ignored by plain `cargo test`.
//!
//! They run the built `hither` (beside the test's folder, or `HITHER_BIN`) as a person would, with
//! kernels from `hither lab setup`. `make test` runs them one at a time.

use crate::common;
use serde_json::Value;
use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// `hither` as built with this test's profile.
fn hither() -> PathBuf {
    let given = std::env::var_os("HITHER_BIN");
    given.map_or_else(|| common::built("hither"), PathBuf::from)
}

fn machine(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../../machines/{name}.toml"));
    path.canonicalize().unwrap().to_str().unwrap().to_owned()
}

/// A scratch place: an empty working folder and an empty folder for temporary files.
struct Place {
    folder: TempDir,
}

impl Place {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("work")).unwrap();
        fs::create_dir(folder.path().join("tmp")).unwrap();
        Self { folder }
    }

    fn work(&self) -> PathBuf {
        self.folder.path().join("work").canonicalize().unwrap()
    }

    /// `hither lab ACTION --machine NAME --timeout 5m WORDS...`, split at spaces, then `-- CMD`.
    fn command(&self, words: &str, command: &[&str]) -> Command {
        let mut words = words.split(' ');
        let mut hither = Command::new(hither());
        hither.args([
            "lab",
            words.next().unwrap(),
            "--machine",
            &machine(words.next().unwrap()),
        ]);
        hither.args(["--timeout", "5m"]).args(words);
        if !command.is_empty() {
            hither.arg("--").args(command);
        }
        hither
            .current_dir(self.work())
            .env("TMPDIR", self.folder.path().join("tmp"));
        hither
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        hither
    }

    fn run(&self, words: &str, command: &[&str]) -> Answer {
        Answer::of(self.command(words, command).output().unwrap())
    }

    /// Nothing was left in either folder.
    fn assert_empty(&self) {
        for name in ["work", "tmp"] {
            let left: Vec<_> = fs::read_dir(self.folder.path().join(name))
                .unwrap()
                .flatten()
                .collect();
            assert!(left.is_empty(), "left in {name}: {left:?}");
        }
    }
}

#[derive(Debug)]
struct Answer {
    status: Option<i32>,
    out: String,
    err: String,
}

impl Answer {
    fn of(output: Output) -> Self {
        Self {
            status: output.status.code(),
            out: String::from_utf8_lossy(&output.stdout).into_owned(),
            err: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }

    #[track_caller]
    fn expect(&self, status: i32) -> &Self {
        assert_eq!(self.status, Some(status), "{self:#?}");
        self
    }
}

/// A script that can be executed.
fn write_program(path: &Path, text: &str) {
    fs::write(path, text).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}

/// Small and quick: what is tested does not depend on size.
const SMALL: &str = "opteron8385 --cpus 4 --memory 256";

#[test]
#[ignore = "boots QEMU; make test runs it"]
fn a_program_runs_unmodified_and_everything_comes_back() {
    let place = Place::new();
    let work = place.work();
    fs::create_dir(work.join("data")).unwrap();
    fs::write(work.join("data/input"), "from a file\n").unwrap();
    let script = work.join("program");
    let text = "#!/bin/sh\necho \"$0 $1 $NAME in $PWD\"; cat; cat data/input\n\
                echo complaint >&2; mkdir -p out/deep; echo result > out/deep/file\n\
                echo other > /tmp/other; sleep 1000 & exit 7\n";
    write_program(&script, text);
    let words = format!(
        "run {SMALL} --file data --env NAME=value --back out --back /tmp/other:here --json r.json"
    );
    let mut child = place
        .command(&words, &["./program", "an argument"])
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    child
        .stdin
        .take()
        .unwrap()
        .write_all(b"from standard input\n")
        .unwrap();
    let answer = Answer::of(child.wait_with_output().unwrap());
    answer.expect(7);
    let expected = format!(
        "./program an argument value in {}\nfrom standard input\nfrom a file\n",
        work.display()
    );
    assert_eq!(answer.out, expected);
    assert!(answer.err.contains("\ncomplaint\n"), "{}", answer.err);
    assert!(answer.err.contains("huge pages madvise"), "{}", answer.err);
    assert_eq!(
        fs::read_to_string(work.join("out/deep/file")).unwrap(),
        "result\n"
    );
    assert_eq!(fs::read_to_string(work.join("here")).unwrap(), "other\n");
    let report: Value =
        serde_json::from_str(&fs::read_to_string(work.join("r.json")).unwrap()).unwrap();
    assert_eq!(report["schema"], "hither.lab.run/1");
    assert_eq!(report["status"], 7);
    assert!(report["seconds"].as_f64().unwrap() > 0.0, "{report}");
    assert!(
        report["figures"]["instructions"].as_u64().unwrap() > 100_000,
        "{report}"
    );
}

/// Prints one line `path: content` for every file that matches.
const SHOW: &str = "for f in /sys/devices/system/node/node*/cpulist \
    /sys/devices/system/node/node*/distance \
    /sys/devices/system/node/node*/access0/initiators/read_latency \
    /sys/devices/system/node/node*/access0/initiators/read_bandwidth \
    /sys/devices/system/cpu/cpu*/cache/index3/shared_cpu_list \
    /sys/devices/virtual/memory_tiering/memory_tier*/nodelist \
    /sys/kernel/mm/transparent_hugepage/enabled; do echo \"$f: $(cat $f)\"; done; \
    grep MemTotal /sys/devices/system/node/node*/meminfo; uname -r";

/// The value that [`SHOW`] printed for a path's end.
#[track_caller]
fn shown<'a>(answer: &'a Answer, path: &str) -> &'a str {
    let line = answer.out.lines().find_map(|line| {
        line.split_once(": ")
            .filter(|(name, _)| name.ends_with(path))
    });
    line.unwrap_or_else(|| panic!("no {path} in {answer:#?}")).1
}

/// Number of the kernel's memory tier that holds exactly these nodes; a smaller one is faster.
#[track_caller]
fn tier(answer: &Answer, nodes: &str) -> u32 {
    let line = answer.out.lines().find_map(|line| {
        let (path, list) = line.split_once("/nodelist: ")?;
        (list == nodes).then(|| path.rsplit_once("memory_tier").unwrap().1.parse().unwrap())
    });
    line.unwrap_or_else(|| panic!("no tier of nodes {nodes} in {answer:#?}"))
}

#[test]
#[ignore = "boots QEMU; make test runs it"]
fn linux_6_12_sees_the_machine_with_a_slow_node() {
    let place = Place::new();
    let words = "run spr-2s-cxl --cpus 4 --memory 512 --kernel 6.12 --thp always";
    let answer = place.run(words, &["sh", "-c", SHOW]);
    answer.expect(0);
    assert!(answer.out.contains("\n6.12."), "{}", answer.out);
    assert_eq!(shown(&answer, "node0/cpulist"), "0-1");
    assert_eq!(shown(&answer, "node1/cpulist"), "2-3");
    assert_eq!(shown(&answer, "node2/cpulist"), "");
    let text = fs::read_to_string(machine("spr-2s-cxl")).unwrap();
    let distances = hither_core::machine::parse::parse(&text).unwrap().distances;
    for (node, row) in distances.iter().enumerate() {
        let row: Vec<String> = row.iter().map(u32::to_string).collect();
        assert_eq!(
            shown(&answer, &format!("node{node}/distance")),
            row.join(" ")
        );
    }
    assert_eq!(
        shown(&answer, "node0/access0/initiators/read_latency"),
        "114"
    );
    let near: u32 = shown(&answer, "node0/access0/initiators/read_latency")
        .parse()
        .unwrap();
    let far: u32 = shown(&answer, "node2/access0/initiators/read_latency")
        .parse()
        .unwrap();
    assert!(far > near, "{far} {near}");
    assert_eq!(shown(&answer, "cpu2/cache/index3/shared_cpu_list"), "2-3");
    assert!(tier(&answer, "2") > tier(&answer, "0-1"), "{answer:#?}");
    assert!(shown(&answer, "transparent_hugepage/enabled").contains("[always]"));
    place.assert_empty();
}

#[test]
#[ignore = "boots QEMU; make test runs it"]
fn the_newest_kernel_sees_a_machine_with_a_fast_node_above_the_pci_hole() {
    let place = Place::new();
    // 2 x 2 GiB: half of it lies above 4 GiB, behind the hole for devices.
    let words = "run knl7250 --cpus 4 --memory 2048 --no-plugin";
    let answer = place.run(words, &["sh", "-c", SHOW]);
    answer.expect(0);
    let release = answer.out.lines().last().unwrap();
    let major: u32 = release.split('.').next().unwrap().parse().unwrap();
    assert!(major >= 7, "{release}");
    assert_eq!(shown(&answer, "node0/cpulist"), "0-3");
    assert_eq!(shown(&answer, "node1/cpulist"), "");
    for node in ["node0", "node1"] {
        let line = answer
            .out
            .lines()
            .find(|line| line.contains(&format!("{node}/meminfo")))
            .unwrap();
        let kb: u64 = line
            .split_whitespace()
            .rev()
            .nth(1)
            .unwrap()
            .parse()
            .unwrap();
        assert!((1_900_000..=2_097_152).contains(&kb), "{line}");
    }
    let bandwidth = |node: u32| -> f64 {
        shown(
            &answer,
            &format!("node{node}/access0/initiators/read_bandwidth"),
        )
        .parse()
        .unwrap()
    };
    // The file has 78 and 350 GB/s; entries are rounded to their common unit.
    assert!(
        (bandwidth(1) / bandwidth(0) / (350.0 / 78.0) - 1.0).abs() < 0.02,
        "{answer:#?}"
    );
    assert!(tier(&answer, "1") < tier(&answer, "0"), "{answer:#?}");
}

#[test]
#[ignore = "boots QEMU; make test runs it"]
fn policies_take_effect_in_alternating_order_within_one_boot() {
    let place = Place::new();
    // What the program sees of its own policy, and whether the run before left anything.
    let script = "echo balancing $(cat /proc/sys/kernel/numa_balancing) \
        policy $(grep -c interleave:0-3 /proc/self/numa_maps) left $(ls /dev/shm | wc -l); \
        touch /dev/shm/left; sleep 100 & exit 0";
    let words = format!(
        "compare {SMALL} --policies first-touch,interleave,kernel,none --repeat 2 --json c.json"
    );
    let answer = place.run(&words, &["sh", "-c", script]);
    answer.expect(0);
    let runs: Vec<(&str, &str, bool)> = answer
        .err
        .lines()
        .filter_map(|line| {
            let (name, rest) = line.split_once(" | balancing ")?;
            let words: Vec<&str> = rest.split(' ').collect();
            assert_eq!(words[4], "0", "a file was left: {line}");
            Some((name.trim(), words[0], words[2] != "0"))
        })
        .collect();
    let first = ("first-touch", "0", false);
    let interleave = ("interleave", "0", true);
    let kernel = ("kernel", "1", false);
    let none = ("none", "0", false);
    assert_eq!(
        runs,
        [
            first, interleave, kernel, none, interleave, kernel, none, first
        ],
        "{}",
        answer.err
    );
    let table = &answer.out;
    assert!(
        ["first-touch", "interleave", "kernel", "none"]
            .iter()
            .all(|name| table.contains(name)),
        "{table}"
    );
    let json: Value =
        serde_json::from_str(&fs::read_to_string(place.work().join("c.json")).unwrap()).unwrap();
    assert_eq!(json["schema"], "hither.lab.compare/1");
    assert_eq!(json["modelled"], true);
    for row in json["rows"].as_array().unwrap() {
        assert_eq!(row["runs"].as_array().unwrap().len(), 2);
        assert!(row["seconds"]["median"].as_f64().unwrap() > 0.0, "{row}");
        assert!(
            row["steady_seconds"]["median"].as_f64().unwrap() > 0.0,
            "{row}"
        );
        assert!(row["instructions"].as_f64().unwrap() > 1e5, "{row}");
    }
    // hither's own report came back with its run.
    assert_eq!(
        json["rows"][3]["runs"][0]["hither"]["schema"],
        "hither.run/1"
    );
    assert!(json["rows"][0]["runs"][0]["hither"].is_null());
}

#[test]
#[ignore = "boots QEMU; make test runs it"]
fn figures_tell_local_from_interleaved_memory() {
    let place = Place::new();
    let memlat = common::bare("memlat");
    let memlat = memlat.to_str().unwrap();
    let words =
        "compare opteron8385 --cpus 4 --memory 512 --policies first-touch,interleave --json";
    let answer = place.run(
        words,
        &[memlat, "--mb", "32", "--accesses", "400000", "--cpu", "2"],
    );
    answer.expect(0);
    let json: Value = serde_json::from_str(&answer.out).unwrap();
    let figure = |row: usize, name: &str| json["rows"][row][name].as_f64().unwrap();
    // All on the node of CPU 2, against a quarter there: programs, libraries and loader count,
    // too, and lie where they were unpacked.
    assert!(figure(0, "local_access_ratio") > 0.95, "{json:#}");
    assert!(
        (figure(1, "local_access_ratio") - 0.25).abs() < 0.05,
        "{json:#}"
    );
    assert!(figure(0, "controller_imbalance") > 1.5, "{json:#}");
    assert!(figure(1, "controller_imbalance") < 0.5, "{json:#}");
    assert!(
        figure(1, "link_use") > 10.0 * figure(0, "link_use"),
        "{json:#}"
    );
}

#[test]
#[ignore = "boots QEMU; make test runs it"]
fn a_panicking_guest_is_reported_with_its_console() {
    let place = Place::new();
    let answer = place.run(
        &format!("run {SMALL} --no-plugin"),
        &["sh", "-c", "echo c > /proc/sysrq-trigger; sleep 9"],
    );
    answer.expect(125);
    assert!(
        answer
            .err
            .contains("kernel panicked (run 1 of 1, first-touch)"),
        "{}",
        answer.err
    );
    assert!(answer.err.contains("\nhither:   | "), "{}", answer.err);
    place.assert_empty();
}

/// An emulator that crashes while the guest boots is started again, since nothing has run yet: QEMU has
/// races of its own. One that crashes each time is given up.
#[test]
#[ignore = "boots QEMU; make test runs it"]
fn an_emulator_that_crashes_before_the_guest_is_up_is_started_again() {
    let place = Place::new();
    let folder = place.work().join("bin");
    fs::create_dir(&folder).unwrap();
    let real = hither_lab::fetch::find_qemu().unwrap().path;
    let (crashes, stand_in) = (
        place.work().join("crashes"),
        folder.join("qemu-system-x86_64"),
    );
    let text = format!(
        "#!/bin/sh\ncase \" $* \" in *\" -accel \"*) if [ $(wc -l < '{0}') -gt 0 ]; then sed -i 1d '{0}'; \
         echo a race of QEMU >&2; kill -ABRT $$; fi;; esac\nexec {1} \"$@\"\n",
        crashes.display(),
        real.display(),
    );
    write_program(&stand_in, &text);
    let path = std::env::var("PATH").unwrap();
    for (times, status) in [(1, 0), (3, 125)] {
        fs::write(&crashes, "crash\n".repeat(times)).unwrap();
        let output = place
            .command(&format!("run {SMALL} --no-plugin"), &["echo", "done"])
            .env("PATH", format!("{}:{path}", folder.display()))
            .output()
            .unwrap();
        let answer = Answer::of(output);
        answer.expect(status);
        assert_eq!(
            answer.err.matches("a race of QEMU").count(),
            times,
            "{answer:#?}"
        );
        assert_eq!(answer.out, if status == 0 { "done\n" } else { "" });
        assert_eq!(fs::read_to_string(&crashes).unwrap(), "");
    }
}

#[test]
#[ignore = "boots QEMU; make test runs it"]
fn the_installed_command_boots_from_anywhere_and_is_in_the_guests_path() {
    let place = Place::new();
    let prefix = place.folder.path().join("usr");
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scripts/install.sh");
    let installed = Command::new(script)
        .arg(hither().parent().unwrap())
        .env("PREFIX", &prefix)
        .status();
    assert!(installed.unwrap().success());
    let program = "hither --version && hither record --sites -o /tmp/r -- true >&2 && ls /tmp/r; exec /no/such/thing";
    let answer = Answer::of(
        Command::new(prefix.join("bin/hither"))
            .args(["lab", "run", "--machine", "opteron8385", "--cpus", "4"])
            .args(["--memory", "256", "--", "sh", "-c", program])
            .current_dir("/")
            .output()
            .unwrap(),
    );
    // As a shell says it of a program that is not there.
    answer.expect(127);
    let version = concat!("hither ", env!("CARGO_PKG_VERSION"), "\n");
    assert!(answer.out.starts_with(version), "{answer:#?}");
    assert!(answer.out.contains("\nrecording.json\n"), "{answer:#?}");
    assert!(answer.err.contains("lab: booting; "), "{answer:#?}");
}

/// QEMU's process, once hither has started it.
fn emulator_of(hither: &Child) -> i32 {
    let path = format!("/proc/{0}/task/{0}/children", hither.id());
    let limit = Instant::now() + Duration::from_secs(20);
    loop {
        let children = fs::read_to_string(&path).unwrap_or_default();
        for pid in children.split_whitespace() {
            // Not the short life that only asks QEMU for its version.
            let line = fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            if line.contains("qemu-system") && line.contains("-accel") {
                return pid.parse().unwrap();
            }
        }
        assert!(Instant::now() < limit, "no QEMU below {}", hither.id());
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Waits until a process is gone; a zombie that nobody collects is gone, too.
fn assert_gone(pid: i32) {
    let limit = Instant::now() + Duration::from_secs(10);
    loop {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let state = stat
            .rsplit_once(") ")
            .and_then(|(_, rest)| rest.chars().next());
        if state.is_none_or(|state| state == 'Z' || state == 'X') {
            return;
        }
        assert!(Instant::now() < limit, "QEMU is still there: {stat}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
#[ignore = "boots QEMU; make test runs it"]
fn signals_and_time_outs_leave_no_process_and_no_file() {
    for (signal, status) in [
        ("INT", Some(130)),
        ("TERM", Some(143)),
        ("HUP", Some(129)),
        ("KILL", None),
    ] {
        let place = Place::new();
        let hither = place
            .command(&format!("run {SMALL} --back out"), &["sleep", "1000"])
            .spawn()
            .unwrap();
        let qemu = emulator_of(&hither);
        // The shell's own: Debian's smallest installation has no `kill` program.
        let sent = Command::new("sh")
            .args(["-c", &format!("kill -s {signal} {}", hither.id())])
            .status();
        assert!(sent.unwrap().success());
        let answer = Answer::of(hither.wait_with_output().unwrap());
        assert_eq!(answer.status, status, "SIG{signal}: {answer:#?}");
        assert_eq!(
            answer.err.contains("interrupted by signal"),
            status.is_some(),
            "{}",
            answer.err
        );
        assert_gone(qemu);
        place.assert_empty();
    }
    let place = Place::new();
    let started = Instant::now();
    // The later --timeout counts.
    let mut command = Command::new(hither());
    command.args([
        "lab",
        "run",
        "--machine",
        &machine("opteron8385"),
        "--cpus",
        "4",
        "--memory",
        "256",
    ]);
    command
        .args(["--timeout", "2", "--", "sleep", "1000"])
        .current_dir(place.work());
    let answer = Answer::of(command.output().unwrap());
    answer.expect(124);
    assert!(
        answer
            .err
            .contains("stopped after 2 s: the guest was booting"),
        "{}",
        answer.err
    );
    assert!(answer.err.contains("--timeout"), "{}", answer.err);
    assert!(started.elapsed() < Duration::from_secs(20));
    place.assert_empty();
}

#[test]
#[ignore = "boots QEMU; make test runs it"]
fn a_shell_takes_commands_and_a_closed_output_ends_the_guest() {
    let place = Place::new();
    let mut shell = place.command(&format!("shell {SMALL} --no-plugin"), &[]);
    let mut child = shell.stdin(Stdio::piped()).spawn().unwrap();
    child
        .stdin
        .take()
        .unwrap()
        .write_all(b"ls /hither; exit 5\n")
        .unwrap();
    let answer = Answer::of(child.wait_with_output().unwrap());
    answer.expect(5);
    assert!(answer.out.contains("machine.toml"), "{}", answer.out);

    let endless = ["sh", "-c", "while :; do echo y; done"];
    let mut child = place
        .command(&format!("run {SMALL} --no-plugin"), &endless)
        .spawn()
        .unwrap();
    let qemu = emulator_of(&child);
    let mut line = [0; 2];
    std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut line).unwrap();
    assert_eq!(&line, b"y\n");
    drop(child.stdout.take());
    let answer = Answer::of(child.wait_with_output().unwrap());
    answer.expect(0);
    assert_gone(qemu);
}
