//! The report of a trial that nobody ran.

use super::*;
use clap::Parser as _;
use hither_linux::services::meter::{Modes, ServiceUse};

#[derive(Debug, clap::Parser)]
struct Line {
    #[command(flatten)]
    command: Command,
}

fn command() -> Command {
    Line::try_parse_from(["try", "--cpus", "2-3", "--", "server"])
        .unwrap()
        .command
}

fn reading(program: f64) -> ServiceReading {
    let each = |by: f64| ServiceUse {
        instructions: Some(program * by),
        references: Some(program * by / 100.0),
        misses: None,
    };
    let modes = |by: f64| Modes {
        user: each(by),
        kernel: each(by / 2.0),
    };
    ServiceReading {
        seconds: 1.0,
        program,
        service_cpus: modes(0.1),
        other_cpus: modes(1.0),
    }
}

fn trial(arranged: f64) -> Trial {
    let pairs = vec![[reading(1e8), reading(arranged)]; 3];
    let rates: Vec<(f64, f64)> = pairs
        .iter()
        .map(|pair| (rate(&pair[0]), rate(&pair[1])))
        .collect();
    Trial {
        source: "device",
        judgement: judge(&rates),
        pairs,
        arranged: Arranged {
            moved: 5,
            refused: vec![("interrupt 30 nvme0q1".into(), "refused".into())],
        },
        rest: ServiceReading::default(),
    }
}

#[test]
fn user_and_service_work_stand_apart_beside_the_verdict() {
    let text = command().text(&trial(1.1e8), Terminal::PIPE);
    assert!(
        text.contains("not moved: interrupt 30 nvme0q1: refused"),
        "{text}"
    );
    assert!(
        text.contains("+10.0 % by the program's instructions"),
        "{text}"
    );
    assert!(text.contains("kept until the program ended"), "{text}");
    let row = |words: [&str; 3]| {
        let found = text
            .lines()
            .find(|line| line.split_whitespace().take(3).eq(words));
        found
            .unwrap_or_else(|| panic!("{words:?} is not in {text}"))
            .to_owned()
    };
    assert!(
        row(["plain", "others", "user"]).contains("100.0 "),
        "{text}"
    );
    assert!(
        row(["arranged", "service", "kernel"]).ends_with('–'),
        "{text}"
    );
    let lost = command().text(&trial(0.9e8), Terminal::PIPE);
    assert!(
        lost.contains("-10.0 %") && lost.contains("not kept"),
        "{lost}"
    );
}

#[test]
fn the_document_has_the_pairs_and_what_is_unknown_is_null() {
    let document = command().document(&trial(1.1e8));
    assert_eq!(document["schema"], SCHEMA);
    assert_eq!(document["kept"], true);
    assert_eq!(document["pairs"].as_array().unwrap().len(), 3);
    assert_eq!(
        document["pairs"][0]["plain"]["other_cpus"]["user"]["references"],
        1e6
    );
    assert!(document["pairs"][0]["plain"]["other_cpus"]["user"]["misses"].is_null());
    let undecided = Trial::default();
    assert!(command().document(&undecided)["gain"].is_null());
    assert!(verdict(&undecided).contains("nothing was kept"));
}
