//! The tracker `damon` in the lab's kernel: it finds a known hot area, and leaves DAMON as it was,
//! also after it was killed.

use crate::common::built;
use std::path::Path;
use std::process::Command;

/// Dumps DAMON's settings, watches, is killed while it watches, and watches again.
const SCRIPT: &str = "
$0 dump > /tmp/before
$0 watch setting=thesis at=60 mb=64 hot=6 rest=5 > /tmp/killed &
killed=$!
until grep -q kdamonds/0/state.*on /tmp/during 2> /tmp/errors; do
    sleep 0.1
    $0 dump > /tmp/during
done
kill -9 $killed
$0 watch setting=adaptive at=5 mb=256 hot=25 rest=5
echo watched: $?
$0 dump > /tmp/after
cmp /tmp/before /tmp/after && echo as before
";

#[test]
#[ignore = "boots QEMU; make test runs it"]
fn a_hot_area_is_found_and_everything_is_put_back() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../machines/opteron8385.toml");
    let program = built("examples/hot_pages");
    let output = Command::new(built("hither"))
        .args(["lab", "run", "--cpus", "4", "--timeout", "5m"])
        .arg("--machine")
        .arg(&file)
        .arg("--file")
        .arg(&program)
        .args(["--", "sh", "-c", SCRIPT])
        .arg(&program)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    let told = String::from_utf8_lossy(&output.stdout);
    println!("{told}");
    assert!(output.status.success(), "{said}{told}");
    for expected in ["without putting back", "watched: 0", "as before"] {
        assert!(told.contains(expected), "no `{expected}`: {told}");
    }
    let found = told
        .lines()
        .find_map(|line| line.strip_prefix("found at 5 s: "));
    let found = found
        .and_then(|line| line.split(',').next())
        .unwrap_or_default();
    let words: Vec<&str> = found.split(' ').collect();
    let ["precision", precision, "recall", recall] = words[..] else {
        panic!("nothing was found: {told}");
    };
    // Of a hot tenth, after 5 s at most. A region is a fortieth of the memory there, so that two
    // that are mistaken cost a fifth; docs/damon.md has what is usual.
    for (what, figure) in [("precision", precision), ("recall", recall)] {
        let figure: f64 = figure.parse().unwrap();
        assert!(figure > 80.0, "{what} {figure}: {told}");
    }
}
