//! Programs over last-level caches: policy `caches`, and exclusive ways.

use crate::common::{bare, built};
use std::path::Path;
use std::process::Command;

/// Two large programs begin on one cache and two small ones on the other. Then a server alone on a CPU beside a program
/// that sweeps their cache, without and with ways of its own; the groups go when it ends.
const SCRIPT: &str = r#"
cd /tmp; PATH=$PATH:@BARE:/hither
echo "== caches"
hither run --policy caches --machine /hither/machine.toml --explain -- \
  cachemix --ws 4M,4M,16K,16K --divisions 1 --seconds 2 2>&1
sweep() {
  hither run -C 0 -- cachemix --ws 16M --start-cpus 0 --divisions 1 --seconds 2 > sweep.txt 2>&1 &
  sleep 0.3
  hither run -C 1 $1 -- cachemix --ws none --start-cpus 1 --server-kb 2048 --divisions 1 --seconds 1 2>&1
  ls /run/hither/resctrl | sed 's/^/GROUP /'
  wait
}
echo "== shared"; sweep
echo "== ways"; sweep "--ways 8"
"#;

/// Loads in each half second of the program of this number in a part.
fn series(told: &str, part: &str, program: u32) -> Vec<f64> {
    let head = format!("loads_per_second: {program} ");
    let part = told.split("== ").find(|text| text.starts_with(part));
    let line = part.and_then(|text| text.lines().find_map(|line| line.strip_prefix(&head)));
    let line = line.unwrap_or_else(|| panic!("no `{head}` in\n{told}"));
    line.split_whitespace()
        .map(|word| word.parse().unwrap())
        .collect()
}

/// Median time of a request in a part, in us.
fn median_us(told: &str, part: &str) -> f64 {
    let part = told.split("== ").find(|text| text.starts_with(part));
    let (_, rest) = part.and_then(|text| text.split_once(" p50_us ")).unwrap();
    rest.split_whitespace().next().unwrap().parse().unwrap()
}

#[test]
#[ignore = "boots the laboratory"]
fn programs_are_placed_on_caches_and_get_ways_of_their_own() {
    let program = bare("cachemix");
    let machine = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../machines/clovertown.toml");
    let folder = program.parent().unwrap().to_str().unwrap();
    let output = Command::new(built("hither"))
        .args(["lab", "run", "--timeout", "15m", "--cpus", "4", "--machine"])
        .arg(&machine)
        .arg("--file")
        .arg(&program)
        .args(["--", "sh", "-c", &SCRIPT.replace("@BARE", folder)])
        .output()
        .unwrap();
    let told = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{told}\n{errors}");
    for large in [0, 1] {
        let speeds = series(&told, "caches", large);
        let (first, last) = (speeds[0], speeds[3]);
        // The memory-region thesis has over +50 % (2.5.2).
        assert!(last > 1.5 * first, "{speeds:?}\n{told}");
    }
    for small in [2, 3] {
        let speeds = series(&told, "caches", small);
        assert!(speeds[3] > 0.95 * speeds[0], "{speeds:?}\n{told}");
    }
    // Without ways of its own the server finds next to nothing of its 2 MiB.
    assert!(
        median_us(&told, "ways") < 0.5 * median_us(&told, "shared"),
        "{told}"
    );
    assert!(told.contains("fills 8 of 16 ways"), "{told}");
    assert!(!told.contains("GROUP hither-"), "{told}");
}
