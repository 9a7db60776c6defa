//! Partitions on an emulated machine of eight nodes: nodes move between three of them under load
//! and with faults (`crates/linux/examples/partition_torture`), and the manager moves one by itself.

use crate::common::{bare, built, ran};
use hither_core::set::NodeSet;
use hither_lab::image::AGENT_PATH;
use std::path::Path;
use std::process::Command;

/// Eight nodes of one CPU each, every two of them linked: what `machines/uniform.toml` has, eight
/// times. What is looked at here are places, not times.
fn machine() -> String {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../machines/uniform.toml");
    let text = std::fs::read_to_string(file).unwrap();
    let (head, node) = text.split_once("[[node]]").unwrap();
    let (_, node) = node.split_once("cpus = \"0-7\"").unwrap();
    let head = head.replace("name = \"uniform\"", "name = \"eight\"");
    let nodes: String = (0..8)
        .map(|number| format!("[[node]]\ncpus = \"{number}\"\n"))
        .collect();
    let pairs = (0..8).flat_map(|high| (0..high).map(move |low| (low, high)));
    let links: String = pairs
        .map(|(low, high)| format!("[[link]]\nbetween = [{low}, {high}]\n"))
        .collect();
    let curve = "curve.a_ns = 0\ncurve.b_ns = 2\ncurve.n = 1\n";
    format!(
        "{head}[node_defaults]{node}\n{nodes}\n[link_defaults]\ngbs = 20\nhop_ns = 60\n\
         overhead = 1.2\n{curve}{links}"
    )
}

/// What a script prints in the guest; `$0` is the program, `$1` hither.
fn run(script: &str, program: &Path, timeout: &str) -> String {
    let folder = tempfile::tempdir().unwrap();
    let machine_file = folder.path().join("eight.toml");
    std::fs::write(&machine_file, machine()).unwrap();
    let (told, _) = ran(Command::new(built("hither"))
        .args(["lab", "run", "--cpus", "8", "--memory", "160"])
        .args(["--timeout", timeout])
        .arg("--machine")
        .arg(&machine_file)
        .arg("--file")
        .arg(program)
        .args(["--", "sh", "-c", script])
        .arg(program)
        .arg(AGENT_PATH));
    told
}

/// One partition fills its memory, the other is idle; the manager gives it a node of the other's.
const MANAGE: &str = "
cat > /tmp/goals.toml <<'EOF'
format = \"hither.partitions/1\"
[manager]
interval_s = 1
hold = 2
cooldown_s = 30
[[partition]]
name = \"idle\"
on = \"node:1-3\"
goal = {}
[[partition]]
name = \"full\"
on = \"node:4-5\"
goal = { memory_above = 0.2 }
EOF
$1 partition apply /tmp/goals.toml > /tmp/applied
$1 partition run full -- $0 worker 1 20000 5 0 & full=$!
until test $(awk '/RssAnon/ {print $2}' /proc/$full/status) -gt 79000; do sleep 0.1; done
kill -STOP $full
$1 partition manage /tmp/goals.toml --looks 4
$1 partition show
$1 partition stop
kill -KILL $full
";

/// The long form is `scripts/evidence.sh partitions`.
#[test]
#[ignore = "boots QEMU; make test runs it"]
fn nodes_move_between_partitions_and_nothing_is_lost() {
    let program = bare("examples/partition_torture");
    let moves = std::env::var("HITHER_MOVES").unwrap_or_else(|_| "16".to_owned());
    let torture = format!("$0 $1 --moves {moves} --seed 7 || exit 1");
    let timeout = if moves.len() > 2 { "3h" } else { "9m" };
    let told = run(&format!("{torture}\n{MANAGE}"), &program, timeout);
    let met = |what: &str| -> u64 {
        let line = told.lines().find_map(|line| line.strip_prefix(what));
        let number = line.and_then(|rest| rest.strip_prefix(": ")?.parse().ok());
        number.unwrap_or_else(|| panic!("nothing is told of {what}"))
    };
    assert_eq!(met("states judged").to_string(), moves);
    assert_eq!(met("accesses to another's memory"), 0);
    // What it is about was met.
    for what in [
        "moves",
        "moves with programs that end",
        "moves without room",
        "killed while leaving",
        "interrupted and taken back",
        "accesses to own memory",
        "windows",
        "splits cut short",
        "ends cut short",
    ] {
        assert!(met(what) > 0, "{what}");
    }
    // So short that few moves do not meet it for sure.
    assert!(moves.len() <= 3 || met("killed when closed") > 0);
    // The manager: not at the first look, once, and with both reasons.
    let said = |part: &str| told.lines().filter(|line| line.contains(part)).count();
    assert!(said("full: wants a node, look 1 of 2: uses ") > 0);
    assert_eq!(said(" goes from idle to full: full: uses "), 1);
    assert_eq!(said("; idle: would use "), 1);
    let full = told.lines().find(|line| line.starts_with("full  "));
    let words: Vec<&str> = full.unwrap_or("").split_whitespace().collect();
    let nodes: NodeSet = words[3].parse().unwrap();
    assert_eq!(nodes.len(), 3, "{words:?}");
}
