//! One name, one meaning: what crates take from each other under one name comes from one crate.
//!
//! Two crates may have a type of the same name as long as nobody else sees both. Names that Rust's own
//! conventions give to every crate, and rows of recordings, which are named as their tables, are left out.

use super::Finding;
use crate::files::Source;
use std::collections::BTreeMap;
use std::path::Path;

/// Names that a crate's own path completes, as `regions::Error`.
const CONVENTIONS: [&str; 3] = ["Config", "Error", "Result"];
/// Module whose types are rows of tables.
const ROWS: &str = "rows";
const CRATE: &str = "hither_";

/// Where a type's name is taken from a crate: the first place.
type Taken<'a> = BTreeMap<&'a str, BTreeMap<&'a str, (&'a Path, usize)>>;

/// Looks for names of types that are taken from two crates.
pub fn check(sources: &[Source]) -> Vec<Finding> {
    let mut taken = Taken::new();
    let ours = |source: &&Source| source.is("rs") && !source.path.starts_with("xtask");
    for source in sources.iter().filter(ours) {
        for (offset, path) in paths(&source.text) {
            let Some((crate_name, name)) = of_type(&source.text, path) else {
                continue;
            };
            let line = 1 + source.text[..offset].matches('\n').count();
            taken
                .entry(name)
                .or_default()
                .entry(crate_name)
                .or_insert((&source.path, line));
        }
    }
    let mut findings = Vec::new();
    for (name, crates) in taken {
        let Some((&(path, line), true)) = crates
            .values()
            .next_back()
            .map(|place| (place, crates.len() > 1))
        else {
            continue;
        };
        let names: Vec<&str> = crates.keys().copied().collect();
        let text = format!(
            "`{name}` is a type of {}: give each meaning a name of its own",
            names.join(" and of ")
        );
        findings.push(Finding::new(path, line, text));
    }
    findings
}

/// A path from a crate on, with each branch of a group: offsets of its parts in the text.
type Parts = Vec<(usize, usize)>;

/// Every path that begins with a crate of ours, with the offset at which its last part stands.
fn paths(text: &str) -> Vec<(usize, Parts)> {
    let mut found = Vec::new();
    for (start, _) in text.match_indices(CRATE) {
        let before = text[..start].chars().next_back();
        let line = text[..start].rfind('\n').map_or(0, |newline| newline + 1);
        let is_comment = text[line..start].contains("//");
        if !is_comment
            && before
                .is_none_or(|letter| !letter.is_alphanumeric() && letter != '_' && letter != '"')
        {
            walk(text, start, &Vec::new(), &mut found);
        }
    }
    found
}

/// Follows a path from an offset; returns the offset behind it.
fn walk(text: &str, start: usize, before: &Parts, found: &mut Vec<(usize, Parts)>) -> usize {
    let mut parts = before.clone();
    let mut at = start;
    loop {
        let word = text[at..].find(|letter: char| !letter.is_alphanumeric() && letter != '_');
        let end = word.map_or(text.len(), |length| at + length);
        if end > at {
            parts.push((at, end));
        }
        let Some(rest) = text[end..].strip_prefix("::") else {
            if let Some(&(last, _)) = parts.last() {
                found.push((last, parts));
            }
            return end;
        };
        at = end + 2;
        if rest.starts_with('{') {
            return group(text, at + 1, &parts, found);
        }
    }
}

fn group(text: &str, start: usize, parts: &Parts, found: &mut Vec<(usize, Parts)>) -> usize {
    let mut at = start;
    loop {
        let skipped = text[at..].find(|letter: char| !letter.is_whitespace() && letter != ',');
        let Some(skipped) = skipped else {
            return text.len();
        };
        at += skipped;
        let letter = text[at..].chars().next().unwrap_or('}');
        if letter == '}' {
            return at + 1;
        }
        let end = match letter.is_alphanumeric() || letter == '_' {
            true => walk(text, at, parts, found),
            // `*`, or what is no path at all.
            false => at + letter.len_utf8(),
        };
        // A name of its own (`as`), up to the next branch.
        at = text[end..]
            .find([',', '}'])
            .map_or(text.len(), |length| end + length);
    }
}

/// Crate and name, where the first part with a capital is a type's.
fn of_type(text: &str, parts: Parts) -> Option<(&str, &str)> {
    let mut words = parts.iter().map(|&(from, to)| &text[from..to]);
    let crate_name = words.next()?.strip_prefix(CRATE)?;
    let mut module = "";
    let name = loop {
        let word = words.next()?;
        if word.starts_with(|letter: char| letter.is_ascii_uppercase()) {
            break word;
        }
        module = word;
    };
    let is_type = name.chars().any(|letter| letter.is_ascii_lowercase());
    (is_type && module != ROWS && !CONVENTIONS.contains(&name)).then_some((crate_name, name))
}

#[cfg(test)]
mod tests {
    use super::super::source;
    use super::*;

    fn texts(text: &str) -> Vec<String> {
        let sources = [source("crates/a/src/lib.rs", text)];
        check(&sources).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_name_from_two_crates_is_refused() {
        let found = texts(
            "use hither_core::plan::{self, Plan as P, moves::{Step, Reason}};\nuse hither_sim::Step;\n\
             fn f(_: hither_replica::Plan) {}\n",
        );
        assert_eq!(found.len(), 2, "{found:#?}");
        assert!(
            found[0].starts_with("crates/a/src/lib.rs:3: `Plan` is a type of core and of replica"),
            "{found:#?}"
        );
        assert!(
            found[1].contains("`Step` is a type of core and of sim"),
            "{found:#?}"
        );
    }

    #[test]
    fn one_crate_conventions_rows_variants_and_comments_are_fine() {
        let found = texts(
            "use hither_core::{Error, Plan, plan::Reason};\nuse hither_sim::Error;\n// hither_sim::Plan\n\
             use hither_recording::rows::Plan;\nuse hither_core::plan::Why::Reason as R;\nlet x = hither_sim::f(Reason);\n\
             use hither_sim::PLAN;\nuse hither_core::PLAN;\n",
        );
        assert_eq!(found, Vec::<String>::new());
    }
}
