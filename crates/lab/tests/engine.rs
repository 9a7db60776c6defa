//! The copy engine on an emulated KeyStone II: contents, faults, CPU time, streams.

use crate::common::{built, ran};
use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

/// Words of the form `key=value` of a line that begins with `first`.
fn words<'a>(text: &'a str, first: &str, has: &str) -> Vec<(&'a str, &'a str)> {
    let line = text
        .lines()
        .find(|line| line.starts_with(first) && line.contains(has))
        .unwrap_or_else(|| panic!("no line `{first}` with `{has}`:\n{text}"));
    let pairs = line.split_ascii_whitespace();
    pairs.filter_map(|word| word.split_once('=')).collect()
}

fn number(words: &[(&str, &str)], key: &str) -> f64 {
    let found = words.iter().find(|(name, _)| *name == key);
    let text = found.unwrap_or_else(|| panic!("no {key} in {words:?}")).1;
    text.parse().unwrap_or_else(|_| panic!("{key}={text}"))
}

/// The figures below a heading `== NAME`.
fn section<'a>(text: &'a str, name: &str) -> BTreeMap<&'a str, f64> {
    let heading = format!("== {name}");
    let below = text.lines().skip_while(|line| *line != heading).skip(1);
    let figures = below.map_while(|line| line.split_once(": "));
    let figures: BTreeMap<_, _> = figures
        .map_while(|(key, value)| Some((key, value.trim().parse().ok()?)))
        .collect();
    assert!(!figures.is_empty(), "no section `{name}`:\n{text}");
    figures
}

#[test]
#[ignore = "boots QEMU; make test runs it"]
fn an_engine_copies_tells_of_faults_and_saves_the_cpu() {
    let machine = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../machines/keystone2.toml");
    let programs = ["examples/copy_engine", "examples/streaming"].map(built);
    let [engine, streaming] = [0, 1].map(|index| programs[index].display().to_string());
    // A CPU that is busy all the time keeps the clock modelled.
    let script = format!(
        "(while :; do :; done) & {engine}; kill $!; \
         {streaming} --slow 0 --fast 1 --cpus 0 --copier-cpus 1 --engine --block 64 --buffers 8 --mb 8 --rounds 3"
    );
    let (told, said) = ran(Command::new(built("hither"))
        .args(["lab", "run", "--cpus", "4", "--timeout", "9m"])
        .arg("--machine")
        .arg(&machine)
        .args(programs.iter().flat_map(|file| [Path::new("--file"), file]))
        .args(["--", "sh", "-c", &script]));
    // The guest takes a node as small as the paper's.
    assert!(said.contains("1024 + 6 MiB"), "{said}");
    // The program ends with an error where a byte or a status is wrong.
    assert_eq!(told.matches("equal=true").count(), 9, "{told}");
    assert_eq!(
        number(&words(&told, "contents", "bytes=4096"), "elements"),
        1.0
    );
    assert!(number(&words(&told, "contents", "huge=true"), "elements") <= 4.0);
    let faults = words(&told, "faults", "");
    assert_eq!(
        [
            number(&faults, "target"),
            number(&faults, "done"),
            number(&faults, "source")
        ],
        [3.0, 4096.0, 2.0]
    );
    let huge = section(&told, "huge 2097152");
    assert!(huge["cpu_less"] > 10.0, "{told}");
    assert!(huge["engine_ns"] < huge["copy_ns"], "{told}");
    assert!(section(&told, "small 1048576")["cpu_less"] > 1.2, "{told}");
    // Where it loses, it is not chosen.
    let all = told.lines().filter_map(|line| line.strip_prefix("== "));
    let sizes: Vec<&str> = all.filter(|name| name.contains(' ')).collect();
    assert!(sizes.len() >= 4, "{told}");
    for size in sizes {
        let figures = section(&told, size);
        assert!(
            figures["cpu_less"] >= 0.9 || figures["chosen"] == 0.0,
            "{told}"
        );
    }
    assert!(told.contains("equal, bit by bit"), "{told}");
}
