//! `--learn`: what is known of the program before it starts, and what its run teaches.
//!
//! Nothing here keeps a program from running: what cannot be read, had or written is told, and it runs without.

use super::place::{Options, Placement};
use super::supervise::Finished;
use super::{numactl, read_host, redirect};
use crate::learned::now_s;
use crate::learned::store::Store;
use crate::print;
use anyhow::Context;
use hither_core::engine::Verdict;
use hither_core::foreign::Foreign;
use hither_core::learned::{Advice, Figures, Key, Program, Run, Start, is_divided, kept};
use hither_core::set::NodeSet;
use serde_json::{Value, json};
use std::ffi::OsString;
use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// What is known, while the program runs.
pub struct Learning {
    store: Store,
    /// `None` where nothing can be kept of it.
    program: Option<Program>,
    /// What it began with, and why.
    begun: Advice,
    /// Nodes that it may have memory on.
    node_count: usize,
}

/// What was known, and what was learned.
#[derive(Debug)]
pub struct Learned {
    key: Option<String>,
    /// Runs before this one.
    known_runs: u64,
    begun: Advice,
    lesson: String,
}

/// Looks the program up, and prepares what it is to begin with.
///
/// # Errors
/// There is no place for what is learned, or the machine cannot be read.
pub fn begin(
    words: &[OsString],
    numactl: &numactl::Options,
) -> anyhow::Result<(Learning, Option<Placement>)> {
    let store = Store::of_user().context("--learn")?;
    let host = read_host()?;
    let nodes = &host.2.usable().nodes;
    let program = match key(words, nodes) {
        Ok(key) => {
            // One that is damaged or of another version is replaced by what this run teaches.
            let known = store.find(&key).unwrap_or_else(|error| {
                print::error(&error);
                None
            });
            Some(known.unwrap_or_else(|| Program::new(key)))
        }
        Err(why) => {
            print::err_lines(&format!("nothing is learned: {why}"));
            None
        }
    };
    let mut begun = match &program {
        Some(program) => program.advise(now_s()),
        None => Advice {
            start: Start::Nothing,
            why: "nothing can be kept of it".to_owned(),
        },
    };
    let placement = Options::begin(begun.start, numactl, &words[0], &host);
    let placement = placement.unwrap_or_else(|error| {
        begun = Advice {
            why: format!("`{}` cannot be had: {error:#}", begun.start),
            start: Start::Nothing,
        };
        None
    });
    let learning = Learning {
        store,
        program,
        begun,
        node_count: nodes.len(),
    };
    Ok((learning, placement))
}

impl Learning {
    /// Is there but one node to have memory on? Then nothing need be watched.
    #[must_use]
    pub fn is_alone(&self) -> bool {
        self.node_count < 2
    }

    /// What is known and done, before the program starts.
    #[must_use]
    pub fn explained(&self) -> String {
        let Some(program) = &self.program else {
            return format!("learned: it begins with nothing: {}\n", self.begun.why);
        };
        let known = match program.run_count {
            0 => "not known yet".to_owned(),
            count => format!("known by {}", print::count(count as usize, "run")),
        };
        format!(
            "learned: {} is {known} ({}); it begins with {}: {}\n",
            program.key.program.shown(),
            program.key.name(),
            self.begun.start,
            self.begun.why
        )
    }

    /// Learns from the run, and keeps that.
    #[must_use]
    pub fn finish(self, finished: &Finished) -> Learned {
        let mut learned = Learned {
            key: None,
            known_runs: 0,
            begun: self.begun,
            lesson: "nothing was learned: nothing can be kept of it".to_owned(),
        };
        if let Some(mut program) = self.program {
            learned.key = Some(program.key.name());
            learned.known_runs = program.run_count;
            learned.lesson =
                program.learn(observed(finished, learned.begun.start, self.node_count));
            if let Err(error) = self.store.keep(&program) {
                // The program has run: its status must not be lost for a full disk.
                print::error(&error);
                learned.lesson += "; that could not be kept";
            }
        }
        learned
    }
}

impl Learned {
    /// For a person.
    #[must_use]
    pub fn text(&self) -> String {
        let known = match self.known_runs {
            0 => "not known before".to_owned(),
            count => format!("known by {} before", print::count(count as usize, "run")),
        };
        format!(
            "learned: {known}, it began with {}: {}\nlearned: {}\n",
            self.begun.start, self.begun.why, self.lesson
        )
    }

    /// The same for programs (`learned` of hither.run/1).
    #[must_use]
    pub fn json(&self) -> Value {
        json!({
            "key": self.key,
            "known_runs": self.known_runs,
            "began_with": self.begun.start,
            "why": self.begun.why,
            "lesson": self.lesson,
        })
    }
}

/// Which program it is.
///
/// # Errors
/// Why nothing can be kept of it: half a sentence.
fn key(words: &[OsString], nodes: &NodeSet) -> Result<Key, String> {
    let path = redirect::found(&words[0])
        .ok_or_else(|| format!("there is no file of program `{}`", words[0].shown()))?;
    let text = |word: &OsString| word.to_str().map(str::to_owned);
    let arguments: Option<Vec<String>> = words[1..].iter().map(text).collect();
    let program = path.to_str().map(str::to_owned);
    let (program, arguments) = program
        .zip(arguments)
        .ok_or("its name or arguments are not text in UTF-8")?;
    let key = Key {
        build: build(&path).map_err(|error| format!("{}: {error}", path.shown()))?,
        program,
        arguments,
        nodes: nodes.to_string(),
    };
    match key.is_storable() {
        true => Ok(key),
        false => Err("its command line is longer than 64 KiB".to_owned()),
    }
}

/// Which build of it: another one may use its memory otherwise.
fn build(path: &Path) -> std::io::Result<String> {
    if let Some(id) = hither_symbols::build_id(path) {
        let mut text = "build-id:".to_owned();
        for byte in id {
            let _ = write!(text, "{byte:02x}");
        }
        return Ok(text);
    }
    let seen = fs::metadata(path)?;
    let changed_ns = i128::from(seen.mtime()) * 1_000_000_000 + i128::from(seen.mtime_nsec());
    Ok(format!("size:{} mtime:{changed_ns}", seen.len()))
}

/// What is kept of a run.
fn observed(finished: &Finished, start: Start, node_count: usize) -> Run {
    let mut run = Run {
        at_s: now_s(),
        seconds: finished.run_us as f64 / 1e6,
        status: finished.ended.status(),
        start,
        ..Run::default()
    };
    let Some((decided, _)) = &finished.decided else {
        return run;
    };
    run.evidence = decided.rung;
    let whole = decided.estimate.whole();
    run.figures = Figures {
        local_ratio: whole.local_access_ratio,
        imbalance: whole.controller_imbalance,
        latency_ns: whole.latency_ns,
    };
    if let Some((_, summary)) = decided.scopes.first() {
        run.kept = kept(summary);
        run.is_divided = is_divided(summary, node_count);
        let verdicts = summary.verdicts.iter();
        run.judged_count = verdicts.clone().map(|(_, count)| count).sum();
        let harmful = verdicts.filter(|(verdict, _)| *verdict == Verdict::Harmful);
        run.harmful_count = harmful.map(|(_, count)| count).sum();
    }
    run
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_names_file_build_and_arguments() {
        let own = std::env::current_exe().unwrap();
        let nodes: NodeSet = "0-1".parse().unwrap();
        let words = [own.clone().into_os_string(), "--mb".into(), "7".into()];
        let key = key(&words, &nodes).unwrap();
        assert_eq!(key.program, own.canonicalize().unwrap().to_str().unwrap());
        assert_eq!(
            (key.arguments.join(" ").as_str(), key.nodes.as_str()),
            ("--mb 7", "0-1")
        );
        assert!(key.build.starts_with("build-id:") || key.build.starts_with("size:"));

        let folder = tempfile::tempdir().unwrap();
        let script = folder.path().join("script");
        fs::write(&script, "#!/bin/sh\n").unwrap();
        let before = build(&script).unwrap();
        assert!(before.starts_with("size:10 mtime:"), "{before}");
        fs::write(&script, "#!/bin/sh\n\n").unwrap();
        assert_ne!(build(&script).unwrap(), before);
    }

    #[test]
    fn what_cannot_be_kept_is_told() {
        use std::os::unix::ffi::OsStringExt;
        let nodes: NodeSet = "0".parse().unwrap();
        let refused = |words: &[OsString]| key(words, &nodes).unwrap_err();
        assert!(refused(&["no-such-program-at-all".into()]).contains("no file of program"));
        let bytes = OsString::from_vec(vec![0xff]);
        assert!(refused(&["sh".into(), bytes]).contains("UTF-8"));
        assert!(refused(&["sh".into(), "x".repeat(70_000).into()]).contains("64 KiB"));
    }
}
