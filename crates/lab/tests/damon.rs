//! The tracker `damon` in the lab's kernel: it finds a known hot area, and leaves DAMON as it was,
//! also after it was killed.

use crate::common::bare;
use crate::common::together::{self, Part};

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
$0 watch setting=adaptive before=0 at=8 until=80.1 mb=128 hot=12 rest=5
echo watched: $?
$0 dump > /tmp/after
cmp /tmp/before /tmp/after && echo as before
";

pub fn part() -> Part {
    let program = bare("examples/hot_pages");
    Part {
        name: "damon",
        script: SCRIPT.to_owned(),
        first: program.clone(),
        files: vec![program],
        back: None,
    }
}

#[test]
#[ignore = "boots QEMU; make test runs it"]
fn a_hot_area_is_found_and_everything_is_put_back() {
    let told = together::told("damon");
    for expected in ["without putting back", "watched: 0", "as before"] {
        assert!(told.contains(expected), "no `{expected}`: {told}");
    }
    // Of a hot tenth, within 8 s; once it is found the watch is over. Not at one moment: where the
    // kernel's threads took more CPU time than they may, DAMON begins anew with another pace, and
    // what it knows is younger for a while. A region is a fortieth of the memory, so that two that
    // are mistaken cost a fifth; docs/damon.md has what is usual.
    let looks = told.lines().filter_map(|line| {
        let (_, figures) = line.split_once("hottest: precision")?;
        let (precision, rest) = figures.split_once(" %, recall")?;
        let (recall, _) = rest.split_once(" %")?;
        let figures = [precision, recall].map(|figure| figure.trim().parse::<f64>().unwrap());
        Some(figures[0].min(figures[1]))
    });
    let best = looks.fold(0.0, f64::max);
    assert!(best > 80.0, "{best}: {told}");
}
