//! `gen`: text in README.md, docs/ and the C header that is derived from the sources.
//!
//! A generated part stands between `<!-- generated: NAME -->` and `<!-- end -->`; what is around
//! it is written by hand. A document names the parts that it wants. The C header is generated
//! whole ([`header`]).

use crate::{evidence, files, header};
use anyhow::{Context, Result, bail};
use hither_core::machine::EventCosts;
use hither_workloads::PROGRAMS;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

const BEGIN: &str = "<!-- generated: ";
const END: &str = "<!-- end -->";

/// Writes every generated part that is not up to date.
pub fn write(root: &Path) -> Result<()> {
    for (path, old, new) in documents(root)? {
        if old != new {
            std::fs::write(root.join(&path), new)
                .with_context(|| format!("cannot write {}", path.display()))?;
            println!("gen: wrote {}", path.display());
        }
    }
    Ok(())
}

/// Fails where a generated part is not up to date.
pub fn check(root: &Path) -> Result<()> {
    let stale = documents(root)?
        .into_iter()
        .filter(|(_, old, new)| old != new);
    let stale: Vec<String> = stale.map(|(path, ..)| path.display().to_string()).collect();
    if stale.is_empty() {
        return Ok(());
    }
    bail!(
        "not up to date: {}: run `cargo xtask gen`",
        stale.join(", ")
    )
}

/// Path, present text and wanted text of every document with a generated part, and of the header.
fn documents(root: &Path) -> Result<Vec<(PathBuf, String, String)>> {
    let mut documents = Vec::new();
    for source in files::all(root)? {
        if !source.is("md") || !source.text.contains(BEGIN) {
            continue;
        }
        let new = fill(&source.text, &|name| part(root, name))
            .with_context(|| source.path.display().to_string())?;
        documents.push((source.path, source.text, new));
    }
    // A header that is not there yet is one that is not up to date.
    let old = std::fs::read_to_string(root.join(header::PATH)).unwrap_or_default();
    documents.push((PathBuf::from(header::PATH), old, header::text(root)?));
    Ok(documents)
}

/// Replaces the generated parts of a text.
fn fill(text: &str, part: &dyn Fn(&str) -> Result<String>) -> Result<String> {
    let mut new = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once(BEGIN) {
        let (name, body) = after
            .split_once(" -->")
            .context("a `generated` mark without its end")?;
        let (_, after) = body
            .split_once(END)
            .with_context(|| format!("`{name}` has no `{END}`"))?;
        let _ = write!(new, "{before}{BEGIN}{name} -->\n{}{END}", part(name)?);
        rest = after;
    }
    new.push_str(rest);
    Ok(new)
}

fn part(root: &Path, name: &str) -> Result<String> {
    match name {
        "workloads" => Ok(workloads()),
        "machines" => machines(root),
        "evidence" => evidence::summary(root),
        "forecasts" => evidence::forecasts(root),
        "tiers" => evidence::tiers(root),
        "costs" => Ok(costs()),
        other => bail!(
            "there is no generated part `{other}`: it is workloads, machines, evidence, forecasts, tiers, costs"
        ),
    }
}

/// The help of every program.
fn workloads() -> String {
    let mut text = String::new();
    for program in PROGRAMS {
        let _ = write!(
            text,
            "\n### `{}`\n\n```text\n{}```\n",
            program.name,
            program.help()
        );
    }
    text.push('\n');
    text
}

/// One row per price of an event.
fn costs() -> String {
    let mut text = "\n| field | event | without it |\n|---|---|---|\n".to_owned();
    for price in EventCosts::PRICES {
        let absent = price
            .absent_ns
            .map_or_else(|| "refused".to_owned(), |ns| format!("{ns}"));
        let _ = writeln!(text, "| `{}` | {} | {absent} |", price.name, price.about);
    }
    text.push('\n');
    text
}

/// One row per machine file.
fn machines(root: &Path) -> Result<String> {
    let folder = root.join("machines");
    let mut text = "\n| file | machine |\n|---|---|\n".to_owned();
    let entries = std::fs::read_dir(&folder).with_context(|| folder.display().to_string())?;
    let mut paths = entries
        .map(|entry| Ok(entry?.path()))
        .collect::<Result<Vec<_>>>()?;
    paths.retain(|path| path.extension().is_some_and(|ending| ending == "toml"));
    paths.sort();
    for path in paths {
        let machine: toml::Table = files::read(&path)?
            .parse()
            .with_context(|| path.display().to_string())?;
        let description = machine.get("description").and_then(toml::Value::as_str);
        let description =
            description.with_context(|| format!("{}: no text `description`", path.display()))?;
        let name = path.file_name().unwrap_or_default().display();
        let _ = writeln!(text, "| `machines/{name}` | {description} |");
    }
    text.push('\n');
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_replaced_and_the_rest_is_kept() {
        let text = format!("a\n{BEGIN}x -->\nold\n{END}\nb\n{BEGIN}y -->{END}c");
        let new = fill(&text, &|name| Ok(format!("new {name}\n"))).unwrap();
        assert_eq!(
            new,
            format!("a\n{BEGIN}x -->\nnew x\n{END}\nb\n{BEGIN}y -->\nnew y\n{END}c")
        );
        assert_eq!(
            fill(&new, &|name| Ok(format!("new {name}\n"))).unwrap(),
            new
        );
    }

    #[test]
    fn marks_without_an_end_and_unknown_parts_are_refused() {
        assert!(fill(&format!("{BEGIN}x -->"), &|_| Ok(String::new())).is_err());
        assert!(part(Path::new("/nowhere"), "z").is_err());
    }

    #[test]
    fn every_program_is_described() {
        let text = workloads();
        assert!(
            PROGRAMS
                .iter()
                .all(|program| text.contains(&format!("### `{}`", program.name)))
        );
    }

    #[test]
    fn machine_files_are_listed_in_order() {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir(root.path().join("machines")).unwrap();
        for name in ["b", "a"] {
            let path = root.path().join(format!("machines/{name}.toml"));
            std::fs::write(path, format!("description = \"machine {name}\"\n")).unwrap();
        }
        let text = machines(root.path()).unwrap();
        assert!(
            text.contains("| `machines/a.toml` | machine a |\n| `machines/b.toml`"),
            "{text}"
        );
    }
}
