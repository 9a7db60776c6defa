//! Every step of `docs/quickstart.md` on an emulated machine of four nodes: the commands are taken from the
//! page, and what it shows is compared with what they print, figures aside.

use crate::common::{built, ran};
use hither_lab::image::AGENT_PATH;
use std::path::Path;
use std::process::Command;

/// A command of the page and what it shows.
#[derive(Debug)]
struct Step {
    command: String,
    shown: Vec<String>,
}

/// Commands of blocks that are marked `console`, or `console EVIDENCE`: behind `$ ` or `# `, going on
/// behind `> `.
fn steps(page: &str, evidence: &str) -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    let mut is_inside = false;
    let own = format!("```console {evidence}");
    for line in page.lines() {
        match line {
            "```console" => is_inside = true,
            _ if line == own => is_inside = true,
            _ if line.starts_with("```") => is_inside = false,
            _ if !is_inside => {}
            _ => match (
                line.strip_prefix("$ ").or(line.strip_prefix("# ")),
                steps.last_mut(),
            ) {
                (Some(command), _) => steps.push(Step {
                    command: command.to_owned(),
                    shown: Vec::new(),
                }),
                (None, Some(step)) => match line.strip_prefix("> ") {
                    Some(more) => step.command += &format!("\n{more}"),
                    None => step.shown.push(line.to_owned()),
                },
                (None, None) => panic!("output before any command: {line}"),
            },
        }
    }
    steps
}

/// Figures, times and widths of columns aside.
fn normalised(line: &str) -> String {
    let mut text = String::new();
    let mut was_digit = false;
    for letter in line.chars() {
        let is_digit = letter.is_ascii_digit() || was_digit && matches!(letter, '.' | ',');
        match (is_digit, was_digit) {
            (true, false) => text.push('9'),
            (true, true) => {}
            (false, _) => text.push(letter),
        }
        was_digit = is_digit;
    }
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Lines of the page are among those that were printed, in their order; `...` stands for any.
fn check(step: &Step, printed: &str) -> Result<(), String> {
    let mut lines = printed.lines().map(normalised);
    for line in &step.shown {
        if line.trim() == "..." || line.trim().is_empty() {
            continue;
        }
        let wanted = normalised(line);
        if !lines.any(|found| found == wanted) {
            return Err(format!(
                "`{}`\nshows: {line}\nand printed:\n{printed}",
                step.command
            ));
        }
    }
    Ok(())
}

/// What stands for systemd, and for the program: its points are on one node, its threads on all.
const HEAD: &str = r#"
cd /tmp; mkdir -p /run /etc/hither bin; export PATH=/tmp/bin:$PATH
cp $P bin/db; cp $H bin/hither; chmod 755 bin/*
systemctl() {
  case "$*" in
    "enable --now hither") hither daemon 2> daemon.log & daemon=$!
      until hither status > /dev/null 2>&1; do sleep 0.1; done; sleep 3 ;;
    "reload hither") kill -HUP $daemon; sleep 1 ;;
    "disable --now hither") kill $daemon; wait $daemon ;;
    *) echo "no such step: systemctl $*" ;;
  esac
}
db partitioned --mb 64 --rounds 1000000 > /dev/null & db=$!
sleep 0.5
"#;

/// In `make evidence`: half a minute of guest time.
#[test]
#[ignore = "boots QEMU; make evidence runs it"]
fn long_every_step_shows_what_the_page_says() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/quickstart.md");
    let evidence = std::env::var("HITHER_EVIDENCE").unwrap_or_else(|_| "software".to_owned());
    let steps = steps(&std::fs::read_to_string(page).unwrap(), &evidence);
    assert!(steps.len() >= 10, "{steps:#?}");
    let program = built("cluster");
    let mut script = format!("P={} H={AGENT_PATH}\n{HEAD}", program.display());
    for step in &steps {
        script += &format!("echo '== '; {{ {}\n}} 2>&1\n", step.command);
    }
    script += "kill $db; cat daemon.log >&2\n";
    let machine = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../machines/opteron8385.toml");
    let (told, _) = ran(Command::new(built("hither"))
        .args([
            "lab",
            "run",
            "--cpus",
            "4",
            "--timeout",
            "30m",
            "--evidence",
            &evidence,
            "--machine",
        ])
        .arg(&machine)
        .arg("--file")
        .arg(&program)
        .args(["--", "bash", "-c", &script]));
    let printed: Vec<&str> = told.split("== \n").skip(1).collect();
    assert_eq!(printed.len(), steps.len());
    let checked = steps
        .iter()
        .zip(printed)
        .map(|(step, printed)| check(step, printed));
    let wrong: Vec<String> = checked.filter_map(Result::err).collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
    println!(
        "{} steps of docs/quickstart.md show what the page says, by evidence {evidence}",
        steps.len()
    );
}

#[test]
fn figures_do_not_matter_and_words_do() {
    let step = |shown: &str| Step {
        command: "x".to_owned(),
        shown: shown.lines().map(str::to_owned).collect(),
    };
    let printed = "node  12 MiB\nrest 1.5 s\nend\n";
    check(&step("node 7 MiB\n...\nend"), printed).unwrap();
    assert!(check(&step("node 7 GiB"), printed).is_err());
    assert!(check(&step("end\nnode 1 MiB"), printed).is_err());
    let page = "x\n```console\n$ a\nout\n```\n```console pmu\n$ no\n```\n```console x\n# b <<E\n> c\n> E\n```\n$ no\n";
    let found = steps(page, "x");
    assert_eq!(found[1].command, "b <<E\nc\nE");
    assert_eq!(
        (found.len(), found[0].shown.as_slice()),
        (2, &["out".to_owned()][..])
    );
}
