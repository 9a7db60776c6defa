//! Which crate may depend on which: the table in `docs/ARCHITECTURE.md` is the rule.

use super::Finding;
use crate::files::Source;
use std::collections::BTreeMap;
use std::path::Path;

const DOCUMENT: &str = "docs/ARCHITECTURE.md";

/// Compares every crate's dependencies on crates of this workspace with the table.
pub fn check(sources: &[Source]) -> Vec<Finding> {
    let Some(document) = sources
        .iter()
        .find(|source| source.path == Path::new(DOCUMENT))
    else {
        return vec![Finding::new(
            Path::new(DOCUMENT),
            0,
            "is missing: it holds the crate table",
        )];
    };
    let allowed = table(&document.text);
    let manifests: Vec<_> = sources
        .iter()
        .filter(|source| {
            source
                .path
                .file_name()
                .is_some_and(|name| name == "Cargo.toml")
        })
        .filter_map(|source| Some((source, package(&source.text)?)))
        .collect();
    let names: Vec<&str> = manifests
        .iter()
        .map(|(_, package)| package.name.as_str())
        .collect();
    let mut findings = Vec::new();
    for (source, package) in &manifests {
        let folder = source
            .path
            .parent()
            .unwrap_or(Path::new(""))
            .display()
            .to_string();
        let Some(may) = allowed.get(&folder) else {
            let text = format!("`{folder}` is not in the crate table of {DOCUMENT}: add its row");
            findings.push(Finding::new(&source.path, 0, text));
            continue;
        };
        for used in package
            .dependencies
            .iter()
            .filter(|used| names.contains(&used.as_str()))
        {
            if !may.iter().any(|may| may == short(used)) {
                let text = format!(
                    "depends on {used}, which the crate table of {DOCUMENT} does not allow \
                     `{folder}`: move the code, or change the table and say why"
                );
                findings.push(Finding::new(&source.path, 0, text));
            }
        }
    }
    findings
}

/// A crate's name as the table has it.
fn short(package: &str) -> &str {
    package.strip_prefix("hither-").unwrap_or(package)
}

/// Rows of the table: folder to allowed crates. A row: ``| `crates/lab` | … | core, linux |``.
fn table(text: &str) -> BTreeMap<String, Vec<String>> {
    let mut rows = BTreeMap::new();
    for line in text.lines() {
        let cells: Vec<&str> = line
            .trim()
            .trim_matches('|')
            .split('|')
            .map(str::trim)
            .collect();
        let Some(folder) = cells[0]
            .strip_prefix('`')
            .and_then(|cell| cell.split('`').next())
        else {
            continue;
        };
        if !(folder.starts_with("crates/") || ["python", "workloads", "xtask"].contains(&folder)) {
            continue;
        }
        if let [_, _, may] = cells[..] {
            let may = may.split(',').map(|name| name.trim().to_owned()).collect();
            rows.insert(folder.to_owned(), may);
        }
    }
    rows
}

struct Package {
    name: String,
    dependencies: Vec<String>,
}

/// Name and dependencies of a manifest; `None` for one without a package. Development
/// dependencies are free: tests may look at anything.
fn package(text: &str) -> Option<Package> {
    let manifest: toml::Table = text.parse().ok()?;
    let name = manifest.get("package")?.get("name")?.as_str()?.to_owned();
    let tables = ["dependencies", "build-dependencies"];
    let dependencies = tables
        .iter()
        .filter_map(|table| manifest.get(*table)?.as_table());
    let dependencies = dependencies
        .flat_map(|table| table.keys().cloned())
        .collect();
    Some(Package { name, dependencies })
}

#[cfg(test)]
mod tests {
    use super::super::source;
    use super::*;

    fn repository(manifest: &str) -> Vec<Source> {
        vec![
            source(
                DOCUMENT,
                "| crate | holds | may depend on |\n|---|---|---|\n\
                 | `crates/core` | types | nothing |\n| `crates/lab` (x) | boots | core |\n",
            ),
            source(
                "crates/core/Cargo.toml",
                "[package]\nname = \"hither-core\"\n",
            ),
            source(
                "crates/linux/Cargo.toml",
                "[package]\nname = \"hither-linux\"\n",
            ),
            source("crates/lab/Cargo.toml", manifest),
        ]
    }

    #[test]
    fn an_edge_in_the_table_is_good_and_one_outside_is_found() {
        let package = "[package]\nname = \"hither-lab\"\n[dependencies]\nserde = \"1\"\n";
        let good = repository(&format!("{package}hither-core.workspace = true\n"));
        let bad = repository(&format!("{package}hither-linux.workspace = true\n"));
        let text = |sources: &[Source]| -> Vec<String> {
            check(sources)
                .into_iter()
                .map(|finding| finding.to_string())
                .collect()
        };
        // In both, crates/linux has no row.
        assert_eq!(text(&good).len(), 1);
        assert!(text(&good)[0].contains("`crates/linux` is not in the crate table"));
        assert!(
            text(&bad)
                .iter()
                .any(|text| text.contains("depends on hither-linux"))
        );
    }
}
