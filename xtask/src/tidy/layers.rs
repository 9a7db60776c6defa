//! Which module of a crate may use which: the tables of layers in `docs/ARCHITECTURE.md` are the rule.
//!
//! A table begins with the heading `| layer of `crates/NAME` | modules |`; its rows stand from the bottom to the
//! top. A module uses modules of its own row and of the rows above it in the table, which are lower layers.

use super::Finding;
use crate::files::Source;
use std::path::Path;

const DOCUMENT: &str = "docs/ARCHITECTURE.md";
const HEADING: &str = "| layer of `";

/// The layers of one crate, from the bottom.
struct Layers {
    /// Folder of the crate.
    folder: String,
    /// Name of each layer with its modules.
    rows: Vec<(String, Vec<String>)>,
}

/// Compares every `crate::` path of the crates that have a table with it.
pub fn check(sources: &[Source]) -> Vec<Finding> {
    let document = sources
        .iter()
        .find(|source| source.path == Path::new(DOCUMENT));
    let tables = document.map_or_else(Vec::new, |document| tables(&document.text));
    tables
        .iter()
        .flat_map(|layers| layers.check(sources))
        .collect()
}

impl Layers {
    fn check(&self, sources: &[Source]) -> Vec<Finding> {
        let root = format!("{}/src", self.folder);
        let mut findings = Vec::new();
        for source in sources.iter().filter(|source| source.is("rs")) {
            let Ok(inner) = source.path.strip_prefix(&root) else {
                continue;
            };
            let Some(module) = module_of(inner) else {
                continue;
            };
            let Some(own) = self.rank(&module) else {
                let text = format!(
                    "module `{module}` is in no layer of `{}`: add it to the table in {DOCUMENT}",
                    self.folder
                );
                findings.push(Finding::new(&source.path, 0, text));
                continue;
            };
            for (line, used) in uses(&source.text) {
                if self.rank(&used).is_some_and(|rank| rank > own) {
                    let text = format!(
                        "`{module}` (layer {}) uses `{used}` of the higher layer {}: move what both need down, or change the table in {DOCUMENT}",
                        self.rows[own].0,
                        self.rows[self.rank(&used).unwrap_or(own)].0
                    );
                    findings.push(Finding::new(&source.path, line, text));
                }
            }
        }
        findings
    }

    fn rank(&self, module: &str) -> Option<usize> {
        self.rows
            .iter()
            .position(|(_, modules)| modules.iter().any(|one| one == module))
    }
}

fn tables(text: &str) -> Vec<Layers> {
    let mut lines = text.lines().peekable();
    let mut found = Vec::new();
    while let Some(line) = lines.next() {
        let Some(folder) = line
            .strip_prefix(HEADING)
            .and_then(|rest| rest.split('`').next())
        else {
            continue;
        };
        let mut rows = Vec::new();
        while let Some(row) = lines.next_if(|line| line.starts_with('|')) {
            let mut cells = row.trim_matches('|').split('|').map(str::trim);
            let (Some(name), Some(modules)) = (cells.next(), cells.next()) else {
                continue;
            };
            let modules: Vec<String> = modules
                .split('`')
                .skip(1)
                .step_by(2)
                .map(str::to_owned)
                .collect();
            if !modules.is_empty() {
                rows.push((name.to_owned(), modules));
            }
        }
        found.push(Layers {
            folder: folder.to_owned(),
            rows,
        });
    }
    found
}

/// The top-level module that a file belongs to; none for the crate's root and for tests.
fn module_of(inner: &Path) -> Option<String> {
    let is_test = inner
        .iter()
        .any(|part| part == "tests" || part == "tests.rs");
    let first = inner.iter().next()?.to_str()?;
    let module = first.strip_suffix(".rs").unwrap_or(first);
    (!is_test && module != "lib").then(|| module.to_owned())
}

/// Line and top-level module of every path that begins with `crate::`, before the file's own tests.
fn uses(text: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    for (position, line) in text.lines().enumerate() {
        if line.starts_with("#[cfg(test)]") {
            break;
        }
        if line.trim_start().starts_with("//") {
            continue;
        }
        for rest in line.split("crate::").skip(1) {
            let names = rest
                .strip_prefix('{')
                .map_or(rest, |group| group.split('}').next().unwrap_or(group));
            let count = if rest.starts_with('{') { usize::MAX } else { 1 };
            for name in names.split(',').take(count) {
                let word = |letter: char| {
                    letter.is_ascii_lowercase() || letter.is_ascii_digit() || letter == '_'
                };
                let name: String = name
                    .trim()
                    .chars()
                    .take_while(|&letter| word(letter))
                    .collect();
                if !name.is_empty() {
                    found.push((position + 1, name));
                }
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::super::source;
    use super::*;

    const TABLE: &str = "| layer of `crates/a` | modules |\n|---|---|\n| low | `sys`, `root` |\n| high | `work` |\n";

    fn texts(files: &[(&str, &str)]) -> Vec<String> {
        let mut sources = vec![source(DOCUMENT, TABLE)];
        sources.extend(files.iter().map(|(path, text)| source(path, text)));
        check(&sources).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn arrows_down_and_sideways_are_fine() {
        let files = [
            ("crates/a/src/lib.rs", "pub use crate::work::Work;\n"),
            (
                "crates/a/src/work/mod.rs",
                "use crate::sys;\nuse crate::{root, sys::x};\n",
            ),
            (
                "crates/a/src/sys.rs",
                "use crate::root::Root;\n/// [`crate::work`]\n",
            ),
            ("crates/a/src/sys/tests.rs", "use crate::work::Work;\n"),
            ("crates/b/src/sys.rs", "use crate::work;\n"),
        ];
        assert_eq!(texts(&files), Vec::<String>::new());
    }

    #[test]
    fn arrows_up_are_refused_with_the_line() {
        let found = texts(&[
            (
                "crates/a/src/sys/one.rs",
                "\nfn f() { crate::work::g() }\n#[cfg(test)]\nuse crate::work;\n",
            ),
            ("crates/a/src/root.rs", "use crate::{sys, work};\n"),
        ]);
        assert_eq!(found.len(), 2, "{found:#?}");
        assert!(
            found[0].starts_with("crates/a/src/sys/one.rs:2: `sys` (layer low) uses `work`"),
            "{found:#?}"
        );
        assert!(
            found[1].starts_with("crates/a/src/root.rs:1: `root`"),
            "{found:#?}"
        );
    }

    #[test]
    fn a_module_without_a_layer_is_refused() {
        let found = texts(&[("crates/a/src/new.rs", "")]);
        assert!(
            found.len() == 1 && found[0].contains("module `new` is in no layer"),
            "{found:#?}"
        );
    }
}
