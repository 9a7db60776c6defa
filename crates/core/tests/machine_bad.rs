//! Malformed machine files: each is refused with the line that its `# <-- fault` comment marks,
//! and with the message that `bad-machines/expected.txt` holds.
//!
//! After a wanted change of messages: `HITHER_BLESS=1 cargo test -p hither-core --test
//! machine_bad`, then read the difference.

use hither_core::machine::parse::parse;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

const MARK: &str = "# <-- fault";

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/bad-machines")
}

fn bad_files() -> Vec<(String, String)> {
    let mut files: Vec<(String, String)> = std::fs::read_dir(folder())
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| {
            path.extension()
                .is_some_and(|extension| extension == "toml")
        })
        .map(|path| {
            let name = path.file_stem().unwrap().to_string_lossy().into_owned();
            (name, std::fs::read_to_string(path).unwrap())
        })
        .collect();
    files.sort();
    files
}

#[test]
fn every_bad_file_is_refused_at_its_marked_line() {
    let files = bad_files();
    assert!(
        files.len() >= 40,
        "only {} bad files were found",
        files.len()
    );
    for (name, text) in files {
        let error = parse(&text).expect_err(&format!("{name} was accepted"));
        let marked = 1 + text
            .lines()
            .position(|line| line.contains(MARK))
            .expect("a marked line");
        assert_eq!(error.line, marked, "{name}: {error}");
        assert!(
            !error.problem.is_empty() && !error.remedy.is_empty(),
            "{name}: {error}"
        );
    }
}

#[test]
fn messages_are_as_recorded() {
    let mut actual = String::new();
    for (name, text) in bad_files() {
        let error = parse(&text).expect_err(&format!("{name} was accepted"));
        writeln!(actual, "{name}: {error}").unwrap();
    }
    let recorded = folder().join("expected.txt");
    if std::env::var_os("HITHER_BLESS").is_some() {
        std::fs::write(&recorded, &actual).unwrap();
    }
    let expected = std::fs::read_to_string(&recorded).unwrap_or_default();
    for (actual, expected) in actual.lines().zip(expected.lines()) {
        assert_eq!(actual, expected);
    }
    assert_eq!(
        actual.lines().count(),
        expected.lines().count(),
        "files came or went"
    );
}

#[test]
fn the_good_twin_of_the_bad_files_is_accepted() {
    // Else each of them might be refused for a fault that all of them share.
    let (_, text) = bad_files()
        .into_iter()
        .find(|(name, _)| name == "mlp-below-one")
        .unwrap();
    parse(&text.replace("mlp = 0.5", "mlp = 1")).unwrap();
}
