//! Reports on terminals and in pipes of several widths: no line is wider, no figure is lost, colours
//! are where they are wanted, and each says what it is of.

use crate::common::{Sleeper, hither, output, refused, text};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const WIDTHS: [usize; 3] = [60, 80, 120];

fn fixtures(path: &str) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures");
    root.join(path).to_str().unwrap().to_owned()
}

/// All in letters of one column, as what is looked at here is.
fn width_of(line: &str) -> usize {
    line.chars().count()
}

/// Prose is broken between words, of which one may be wider than the line.
fn assert_fits(shown: &str, width: usize, of: &str) {
    for line in shown.lines() {
        let is_word = line.split_whitespace().count() < 2;
        assert!(
            width_of(line) <= width || is_word,
            "{of} at {width}: {line}\n{shown}"
        );
    }
}

fn count(words: &[&str], word: &str) -> usize {
    words.iter().filter(|other| **other == word).count()
}

/// Words that begin with a digit, but for those of the picture of heat, whose axes are drawn anew.
fn figures(shown: &str) -> Vec<&str> {
    let (before, heat) = shown.split_once("\nheat by address").unwrap_or((shown, ""));
    let after = heat.split_once("\n\n").map_or("", |(_, after)| after);
    let words = before.split_whitespace().chain(after.split_whitespace());
    let is_figure = |word: &&str| word.starts_with(|c: char| c.is_ascii_digit());
    // Lists of numbers may be broken at their commas.
    words
        .filter(is_figure)
        .filter(|word| !word.contains(','))
        .collect()
}

fn at(width: usize, arguments: &[&str]) -> Output {
    let mut command = hither(arguments);
    command.env("COLUMNS", width.to_string()).output().unwrap()
}

/// The same in a pipe without a width has the figures of all.
fn assert_whole(arguments: &[&str]) {
    let whole = output(arguments);
    assert!(
        whole.status.success(),
        "{arguments:?}: {}",
        text(&whole.stderr)
    );
    let whole = text(&whole.stdout);
    let expected = figures(&whole);
    for width in WIDTHS {
        let shown = text(&at(width, arguments).stdout);
        assert_fits(&shown, width, &format!("{arguments:?}"));
        let found = figures(&shown);
        for figure in &expected {
            assert!(
                count(&found, figure) >= count(&expected, figure),
                "{arguments:?} at {width}: {figure} is lost:\n{shown}"
            );
        }
    }
}

#[test]
fn recordings_fit_with_all_their_figures() {
    for name in ["whole", "cut-off", "damo", "empty"] {
        let folder = fixtures(&format!("recordings/{name}"));
        assert_whole(&["report", &folder]);
        assert_whole(&["zoom", &folder]);
    }
    let whole = fixtures("recordings/whole");
    assert_whole(&["zoom", &whole, "--page", "7f73b3780000"]);
    assert_whole(&["zoom", &whole, "--area", "anon", "--top", "100"]);
}

#[test]
fn machines_fit_with_all_their_figures() {
    let mut count = 0;
    for entry in fs::read_dir(fixtures("machines")).unwrap() {
        let root = entry.unwrap().path();
        let root = root.to_str().unwrap();
        assert_whole(&["topo", "--root", root]);
        assert_whole(&[
            "topo",
            "--root",
            root,
            "--set",
            "machine",
            "--set",
            "machine - cpus:0",
        ]);
        count += 1;
    }
    assert!(count >= 8, "{count} machines");
    for width in WIDTHS {
        let shown = text(&at(width, &["topo", "--doctor"]).stdout);
        assert_fits(&shown, width, "topo --doctor");
        assert!(shown.contains("pagemap"), "{shown}");
    }
}

#[test]
fn measurements_and_processes_fit() {
    let sleeper = Sleeper::start();
    let pid = sleeper.pid();
    let short: [&[&str]; 4] = [
        &["move", "--pid", &pid, "--to", "0", "--dry-run"],
        &["top", "--once", "--interval", "100ms", "--pid", &pid],
        &[
            "bench",
            "move",
            "--sizes",
            "64K",
            "--pages",
            "small",
            "--repeat",
            "1",
            "--seconds",
            "0.2",
        ],
        &[
            "bench", "service", "--sizes", "64K", "--pages", "small", "--repeat", "1",
        ],
    ];
    for arguments in short {
        for width in WIDTHS {
            let done = at(width, arguments);
            assert!(
                done.status.success(),
                "{arguments:?}: {}",
                text(&done.stderr)
            );
            assert_fits(&text(&done.stdout), width, &format!("{arguments:?}"));
        }
    }
}

#[test]
fn help_fits() {
    for command in [
        &["topo"][..],
        &["run"],
        &["move"],
        &["bench", "move"],
        &["bench", "service"],
        &["probe"],
        &["record"],
        &["report"],
        &["top"],
        &["import"],
        &["zoom"],
        &["partition"],
        &["lab", "run"],
    ] {
        for help in ["-h", "--help"] {
            let arguments = [command, &[help]].concat();
            for width in WIDTHS {
                let shown = at(width, &arguments);
                assert!(shown.status.success(), "{arguments:?}");
                let shown = text(&shown.stdout);
                assert_fits(&shown, width, &format!("{arguments:?}"));
                assert!(shown.contains("Usage: hither"), "{shown}");
            }
        }
    }
    // A refusal keeps its status and goes to standard error.
    let refused = at(60, &["report", "--nonsense"]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(text(&refused.stderr).contains("--nonsense") && refused.stdout.is_empty());
}

/// What a terminal of its own shows: `environment` as in `A=1 B=2`.
fn on_terminal(columns: usize, environment: &str, arguments: &[&str]) -> String {
    let program = env!("CARGO_BIN_EXE_hither");
    let words: Vec<String> = arguments.iter().map(|word| format!("'{word}'")).collect();
    let words = words.join(" ");
    let line = format!("stty cols {columns}; {environment} exec '{program}' {words}");
    let shown = Command::new("script")
        .args(["-qec", &line, "/dev/null"])
        .env("SHELL", "/bin/sh")
        .env("TERM", "xterm")
        .env_remove("COLUMNS")
        .env_remove("NO_COLOR")
        .output()
        .expect("script(1) of util-linux gives the test its terminal");
    assert!(shown.status.success(), "{line}: {}", text(&shown.stdout));
    text(&shown.stdout).replace('\r', "")
}

/// Without colours.
fn seen(shown: &str) -> String {
    let mut parts = shown.split('\x1b');
    let first = parts.next().unwrap_or_default().to_owned();
    let rest = parts.map(|part| part.split_once('m').unwrap_or_default().1);
    first + &rest.collect::<String>()
}

#[test]
fn a_terminal_is_asked_for_its_width() {
    let whole = fixtures("recordings/whole");
    for width in WIDTHS {
        for arguments in [&["report", &whole][..], &["topo", "--doctor"]] {
            let shown = on_terminal(width, "", arguments);
            assert_fits(&seen(&shown), width, &format!("{arguments:?}"));
            let widest = seen(&shown).lines().map(width_of).max();
            assert!(widest > Some(width - 20), "{arguments:?}: {shown}");
        }
    }
    // COLUMNS counts before it.
    let shown = on_terminal(120, "COLUMNS=60", &["report", &whole]);
    assert_fits(&seen(&shown), 60, "COLUMNS");
}

#[test]
fn colours_are_for_terminals_that_show_them() {
    let machine = fixtures("machines/four-node-hmat");
    let arguments = ["topo", "--root", &machine];
    let shown = on_terminal(120, "", &arguments);
    // On the diagonal of the distances, nearer ones, and the farthest.
    for distance in [
        "\x1b[32m10\x1b[0m",
        "\x1b[33m16\x1b[0m",
        "\x1b[1;31m22\x1b[0m",
    ] {
        assert!(shown.contains(distance), "{shown:?}");
    }
    let plain = text(&output(&arguments).stdout);
    assert!(!plain.contains('\x1b'), "{plain:?}");
    assert_eq!(seen(&shown), plain);
    for environment in ["NO_COLOR=1", "TERM=dumb", "TERM="] {
        let shown = on_terminal(120, environment, &arguments);
        assert_eq!(shown, plain, "{environment}");
    }
    assert!(on_terminal(120, "NO_COLOR=", &arguments).contains('\x1b'));
    // A width alone makes no terminal of a pipe.
    assert!(!text(&at(120, &arguments).stdout).contains('\x1b'));
    for options in [
        &["topo", "--doctor"][..],
        &["report", &fixtures("recordings/whole")],
    ] {
        assert!(
            on_terminal(120, "", options).contains("\x1b["),
            "{options:?}"
        );
        assert!(
            !on_terminal(120, "NO_COLOR=1", options).contains('\x1b'),
            "{options:?}"
        );
        assert!(
            !text(&output(options).stdout).contains('\x1b'),
            "{options:?}"
        );
    }
}

#[test]
fn what_is_shown_says_which_recording_it_is() {
    let whole = fixtures("recordings/whole");
    let into = tempfile::tempdir().unwrap();
    let path = |name: &str| into.path().join(name);
    let (page, picture) = (path("page.html"), path("heat.svg"));
    let (page, picture) = (page.to_str().unwrap(), picture.to_str().unwrap());
    let shown = output(&["report", &whole, "--html", page, "--svg", picture]);
    let about = format!("{whole}: ./cluster shared --threads 4 --mb 8 --rounds 8");
    let report = text(&shown.stdout);
    assert_eq!(
        report.lines().next(),
        Some(format!("recording {about}").as_str())
    );
    let page = fs::read_to_string(page).unwrap();
    assert!(
        page.contains(&format!("<title>hither: {about}</title>")),
        "{page}"
    );
    let picture = fs::read_to_string(picture).unwrap();
    assert!(picture.contains("<title>whole: Heat of cluster (pid 133)</title>"));
    for more in [&[][..], &["--page", "7f73b3780000"]] {
        let zoomed = text(&output(&[&["zoom", whole.as_str()], more].concat()).stdout);
        assert_eq!(
            zoomed.lines().next(),
            Some(format!("zoom of {about}").as_str())
        );
    }
}

#[test]
fn one_file_that_fails_does_not_keep_others_from_being_written() {
    let into = tempfile::tempdir().unwrap();
    let path = |name: &str| into.path().join(name).to_str().unwrap().to_owned();
    let is_there = |path: &str| PathBuf::from(path).exists();
    let (page, picture, json) = (path("page.html"), path("heat.svg"), path("report.json"));
    // Nothing was seen: no picture, but a page.
    let empty = fixtures("recordings/empty");
    refused(
        &[
            "report", &empty, "--svg", &picture, "--html", &page, "--json", &json,
        ],
        "--svg: no access was seen",
    );
    assert!(is_there(&page) && is_there(&json) && !is_there(&picture));
    fs::remove_file(&page).unwrap();
    // The other way round, where the page has no place.
    let whole = fixtures("recordings/whole");
    let lost = path("none/page.html");
    refused(
        &["report", &whole, "--html", &lost, "--svg", &picture],
        "give --html a file",
    );
    assert!(is_there(&picture));
    // Both fail: both are told, and the report is shown.
    let arguments = ["report", &empty, "--html", &lost, "--svg", &picture];
    refused(&arguments, "--svg: no access was seen");
    refused(&arguments, "give --html a file");
    assert!(text(&output(&arguments).stdout).starts_with("recording "));
    // Nor does JSON without a place keep the page and the tables from being there.
    let arguments = ["report", &whole, "--json", &lost, "--html", &page];
    refused(&arguments, "give --json a file");
    assert!(is_there(&page) && text(&output(&arguments).stdout).starts_with("recording "));
    fs::remove_file(&page).unwrap();
    // One file for two things is neither.
    refused(
        &["report", &whole, "--html", &page, "--svg", &page],
        "--html and --svg are the same file",
    );
    assert!(!is_there(&page));
}
