//! The copy engine on an emulated KeyStone II: contents, faults, CPU time, streams.

use crate::common::built;
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
    let output = Command::new(built("hither"))
        .args(["lab", "run", "--cpus", "4", "--timeout", "9m"])
        .arg("--machine")
        .arg(&machine)
        .args(programs.iter().flat_map(|file| [Path::new("--file"), file]))
        .args(["--", "sh", "-c", &script])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    let told = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{said}{told}");
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
    let huge = words(&told, "times", "huge=true");
    assert!(number(&huge, "cpu_less") > 10.0, "{told}");
    assert!(
        number(&huge, "engine_ns") < number(&huge, "copy_ns"),
        "{told}"
    );
    let pages = words(&told, "times", "bytes=1048576");
    assert!(number(&pages, "cpu_less") > 1.2, "{told}");
    // Where it loses, it is not chosen.
    for line in told.lines().filter(|line| line.starts_with("times")) {
        let loses = number(&words(line, "times", ""), "cpu_less") < 0.9;
        assert!(!loses || line.ends_with("chosen=false"), "{told}");
    }
    assert!(told.contains("equal, bit by bit"), "{told}");
}
