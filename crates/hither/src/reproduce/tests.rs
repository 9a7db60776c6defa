//! Commands that the parsers take, pages that hold all rows, names that are refused.

use super::*;
use clap::Parser;
use hither_lab::reproduce::assess::RowOutcome;

fn shown(results: KeptResults) -> Shown {
    Shown {
        rows: assess::assess(rows::all(), &results),
        results,
        commit: "c0ffee".into(),
        has_mechanisms: true,
    }
}

/// Words of a simple command of the shell: double quotes alone.
fn shell_words(text: &str) -> Vec<String> {
    let mut words = Vec::new();
    for (number, part) in text.split('"').enumerate() {
        match number % 2 {
            1 => words.push(part.to_owned()),
            _ => words.extend(part.split_whitespace().map(str::to_owned)),
        }
    }
    words
}

/// Commands of hither itself that a script runs, its variables replaced by one of their values.
fn inner(script: &str) -> Vec<Vec<String>> {
    let values = [
        ("$((threads - 1))", "3"),
        ("$threads", "4"),
        ("$memory", "local"),
        ("$kernel", "read"),
        ("$program", "ocean"),
        ("$1", "0,4,8,12"),
        ("$2", "0-3"),
        ("$node", "0"),
    ];
    let filled = values
        .iter()
        .fold(script.to_owned(), |script, (name, value)| {
            script.replace(name, value)
        });
    let commands = filled.split([';']).map(str::trim);
    let own =
        commands.filter_map(|command| command.find("/hither/hither ").map(|at| &command[at..]));
    own.map(shell_words).collect()
}

fn assert_parses(name: &str, words: &[String]) {
    if let Err(error) = crate::Arguments::try_parse_from(words) {
        panic!("{name}: {words:?}: {error}");
    }
}

#[test]
fn every_command_is_one_that_the_parsers_take() {
    let mut count = 0;
    for experiment in experiments::ALL {
        let words = experiment.words("/programs", "/scripts");
        if words[0] == "/programs/hither" {
            assert_parses(experiment.name, &words);
            count += 1;
        }
        let program = words
            .iter()
            .position(|word| word == "--")
            .map(|at| &words[at + 1..]);
        if let Some([first, ..]) = program
            && first == "/programs/hither"
        {
            assert_parses(experiment.name, program.unwrap());
            count += 1;
        }
        for script in words.iter().filter(|word| word.contains("/hither/hither ")) {
            for command in inner(script) {
                // What a variable of the script holds goes on behind it.
                let mut command = command;
                if command.last().is_some_and(|last| last == "--") {
                    command.push("program".into());
                }
                assert_parses(experiment.name, &command);
                count += 1;
            }
        }
    }
    assert!(count > experiments::ALL.len(), "{count}");
}

#[test]
fn names_that_are_none_are_refused_with_the_list() {
    let told = |paper, table| chosen(paper, table).unwrap_err().to_string();
    assert!(told(Some("carrefor"), None).contains("carrefour, ibm, memif, hydm, regions"));
    assert!(told(Some("ibm"), Some("table-9")).contains("table-2"));
    assert_eq!(chosen(None, None).unwrap().len(), rows::all().len());
    let latency = chosen(Some("ibm"), Some("latency")).unwrap();
    assert!(!latency.is_empty() && latency.iter().all(|row| row.table == "latency"));
    assert!(
        named(&["no-such".into()])
            .unwrap_err()
            .to_string()
            .contains("ibm-two-node")
    );
    assert_eq!(named(&["ibm-two-node".into()]).unwrap().len(), 1);
}

#[test]
fn bad_command_lines_are_refused() {
    for bad in [
        "reproduce --kept --dry-run",
        "reproduce --budget soon",
        "reproduce ibm latency row",
        "reproduce --list --kept",
    ] {
        let words = ["hither"].into_iter().chain(bad.split(' '));
        assert!(crate::Arguments::try_parse_from(words).is_err(), "{bad}");
    }
}

#[test]
fn only_what_is_asked_for_and_due_is_planned() {
    let command = |line: &str| {
        let words = ["hither", "reproduce"]
            .into_iter()
            .chain(line.split_whitespace());
        match crate::Arguments::try_parse_from(words).unwrap().command {
            crate::Command::Reproduce(command) => command,
            _ => unreachable!(),
        }
    };
    let plan = |line: &str| {
        let command = command(line);
        let wanted = chosen(command.paper.as_deref(), command.table.as_deref()).unwrap();
        let named = named(&command.experiment).unwrap();
        let plan = command.plan(&wanted, &named, &KeptResults::new(), "c0ffee");
        plan.into_iter().map(|one| one.name).collect::<Vec<_>>()
    };
    assert_eq!(plan("").len(), experiments::ALL.len());
    assert_eq!(plan("ibm latency"), ["ibm-two-node", "ibm-four-node"]);
    assert_eq!(plan("--experiment ibm-ocean"), ["ibm-ocean"]);
    assert!(plan("--each 1s").is_empty());
    assert!(!plan("ibm table-2").is_empty());
}

#[test]
fn every_row_stands_on_the_page() {
    let shown = shown(KeptResults::new());
    let page = document::document(&shown);
    let (html, markdown) = (page.html(), document::markdown(&page));
    for one in &shown.rows {
        assert!(
            markdown.contains(&format!("| {} |", one.row.name)),
            "{}",
            one.row.name
        );
    }
    for paper in Paper::ALL {
        assert!(html.contains(paper.name()) && markdown.contains(paper.title()));
    }
    assert!(html.contains("MOV_ONE") && markdown.contains("MOV_ONE"));
    assert!(!html.contains("<script") && !html.contains("http:"));
    assert!(markdown.contains("not reproducible from the text [1]"));
}

#[test]
fn the_document_counts_every_row() {
    let shown = shown(KeptResults::new());
    let document = show::json(&shown);
    assert_eq!(document["schema"], "hither.reproduce/1");
    assert_eq!(document["rows"].as_array().unwrap().len(), shown.rows.len());
    let counts = document["counts"].as_object().unwrap();
    let sum: u64 = counts.values().filter_map(serde_json::Value::as_u64).sum();
    assert_eq!(
        (sum as usize, counts.len()),
        (shown.rows.len(), RowOutcome::WORDS.len())
    );
    let row = &document["rows"][0];
    assert_eq!(row["verdict"], "not run");
    assert!(row["told"].as_str().unwrap().starts_with("not run: "));
}

#[test]
fn the_table_fits() {
    let shown = shown(KeptResults::new());
    print::assert_fits(|terminal| show::table(&shown, terminal));
    print::assert_fits(|terminal| show::list(&rows::all(), terminal));
}
