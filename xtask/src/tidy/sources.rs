//! Rules about single files: length, leftovers, words, unsafe code, and files nobody includes.

use super::Finding;
use crate::files::Source;
use std::path::Path;

/// Most lines of a Rust file.
const MOST_LINES: usize = 800;

/// Marks of unfinished work, in halves so that this file does not contain them.
const LEFTOVERS: [(&str, &str); 5] = [
    ("TO", "DO"),
    ("FIX", "ME"),
    ("XX", "X"),
    ("to", "do!("),
    ("unimple", "mented!("),
];

/// Words of public names that the glossary has another word for.
const SYNONYMS: [(&str, &str); 8] = [
    ("vma", "mapping (a region is what a tracker reports)"),
    ("vmas", "mappings"),
    ("numanode", "node"),
    ("lat", "latency, with its unit last"),
    ("bw", "bandwidth, with its unit last"),
    ("num", "a name that ends in _count"),
    ("llcgroup", "domain"),
    ("upgrade", "promote"),
];

/// Every rule on one file.
pub fn check(source: &Source) -> Vec<Finding> {
    let mut findings = leftovers(source);
    if source.is("rs") {
        findings.extend(length(source));
        findings.extend(unsafe_without_reason(source));
        if source.path.starts_with("crates") {
            findings.extend(synonyms(source));
        }
    }
    findings
}

fn length(source: &Source) -> Option<Finding> {
    let lines = source.text.lines().count();
    (lines > MOST_LINES).then(|| {
        let text = format!("{lines} lines, more than {MOST_LINES}: look for the seam and split");
        Finding::new(&source.path, 0, text)
    })
}

fn leftovers(source: &Source) -> Vec<Finding> {
    let words: Vec<String> = LEFTOVERS
        .iter()
        .map(|(one, two)| format!("{one}{two}"))
        .collect();
    let mut findings = Vec::new();
    for (number, line) in source.text.lines().enumerate() {
        for word in words.iter().filter(|word| has_word(line, word)) {
            let text = format!("`{word}`: finish it, or write down why not in docs/");
            findings.push(Finding::new(&source.path, number + 1, text));
        }
    }
    findings
}

/// Does `word` stand in `line` with no letter, digit or underscore before it, nor after it where
/// it ends in a letter?
fn has_word(line: &str, word: &str) -> bool {
    let is_part = |letter: char| letter.is_alphanumeric() || letter == '_';
    line.match_indices(word).any(|(at, _)| {
        let after = line[at + word.len()..].chars().next();
        let ends_open = word.ends_with(|letter: char| !is_part(letter));
        !line[..at].ends_with(is_part) && (ends_open || !after.is_some_and(is_part))
    })
}

fn unsafe_without_reason(source: &Source) -> Vec<Finding> {
    let lines: Vec<&str> = source.text.lines().collect();
    let mut findings = Vec::new();
    for (number, line) in lines.iter().enumerate() {
        let code = line.split("//").next().unwrap_or("");
        if !(has_word(code, "unsafe {") || has_word(code, "unsafe impl")) || code.contains('"') {
            continue;
        }
        let above = &lines[number.saturating_sub(8)..=number];
        if !above.iter().any(|line| line.contains("SAFETY:")) {
            let text = "unsafe without its reason: say in a `// SAFETY:` comment why it is sound";
            findings.push(Finding::new(&source.path, number + 1, text));
        }
    }
    findings
}

/// Public names with a word that the glossary spells otherwise.
fn synonyms(source: &Source) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (number, line) in source.text.lines().enumerate() {
        let Some(name) = declared(line) else { continue };
        let parts: Vec<String> = name.split('_').map(str::to_lowercase).collect();
        for (word, instead) in SYNONYMS
            .iter()
            .filter(|(word, _)| parts.iter().any(|p| p == word))
        {
            let text = format!("`{name}`: the glossary's word for `{word}` is {instead}");
            findings.push(Finding::new(&source.path, number + 1, text));
        }
    }
    findings
}

/// The identifier that a line declares as public, if any.
fn declared(line: &str) -> Option<&str> {
    let rest = line.trim_start().strip_prefix("pub ")?;
    let rest = [
        "const fn ",
        "unsafe fn ",
        "fn ",
        "const ",
        "static ",
        "struct ",
        "enum ",
        "mod ",
    ]
    .iter()
    .find_map(|keyword| rest.strip_prefix(keyword))
    .unwrap_or(rest);
    let end = rest.find(|letter: char| !letter.is_alphanumeric() && letter != '_')?;
    Some(&rest[..end])
}

/// Rust files below a `src` folder, or beside a `tests/main.rs`, that nothing declares: nobody would
/// notice that such tests never run.
pub fn dead_files(sources: &[Source]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for source in sources.iter().filter(|source| source.is("rs")) {
        let Some(stem) = source.path.file_stem().and_then(|stem| stem.to_str()) else {
            continue;
        };
        let folder = source.path.parent().unwrap_or(Path::new(""));
        let in_src = folder.components().any(|part| part.as_os_str() == "src");
        let is_root = matches!(stem, "main" | "lib") || folder.ends_with("src/bin");
        let main = folder.join("main.rs");
        let in_tests = folder.ends_with("tests") && sources.iter().any(|other| other.path == main);
        if !(in_src || in_tests) || is_root {
            continue;
        }
        // A test program of its own.
        let manifest = folder.with_file_name("Cargo.toml");
        let named = format!("name = \"{stem}\"");
        let manifest = sources.iter().find(|other| other.path == manifest);
        if in_tests && manifest.is_some_and(|own| own.text.lines().any(|line| line == named)) {
            continue;
        }
        let (name, parents) = if stem == "mod" {
            let name = folder
                .file_name()
                .and_then(|name| name.to_str())
                .unwrap_or("");
            (name, candidates(folder.parent().unwrap_or(Path::new(""))))
        } else {
            (stem, candidates(folder))
        };
        let declared = sources
            .iter()
            .filter(|other| parents.contains(&other.path))
            .any(|other| other.text.lines().any(|line| declares(line, name)));
        if !declared {
            let text = format!("no module declares `mod {name};`: include it or delete it");
            findings.push(Finding::new(&source.path, 0, text));
        }
    }
    findings
}

/// Files that may declare the modules of a folder.
fn candidates(folder: &Path) -> Vec<std::path::PathBuf> {
    let mut files: Vec<_> = ["lib.rs", "main.rs", "mod.rs"]
        .iter()
        .map(|name| folder.join(name))
        .collect();
    files.push(folder.with_extension("rs"));
    files
}

fn declares(line: &str, name: &str) -> bool {
    let code = line.trim();
    let declaration = format!("mod {name};");
    code == declaration || (code.starts_with("pub") && code.ends_with(&format!(" {declaration}")))
}

#[cfg(test)]
mod tests {
    use super::super::source;
    use super::*;

    fn texts(findings: &[Finding]) -> String {
        findings
            .iter()
            .map(|finding| format!("{finding}\n"))
            .collect()
    }

    #[test]
    fn leftovers_are_found_as_words() {
        let mark = format!("{}{}", "TO", "DO");
        let text = format!("// {mark}: later\nlet {mark}S = 1;\nlet a{mark} = 2;\n");
        let found = leftovers(&source("crates/a/src/lib.rs", &text));
        assert_eq!(texts(&found).lines().count(), 1);
        assert_eq!(found[0].line, 1);
        let call = format!("    to{}\"x\")", "do!(");
        assert_eq!(leftovers(&source("a.rs", &call)).len(), 1);
    }

    #[test]
    fn long_files_and_bare_unsafe_are_found() {
        let long = source("crates/a/src/lib.rs", &"x\n".repeat(MOST_LINES + 1));
        assert!(texts(&check(&long)).contains("801 lines"));
        let block = format!("{} {{ f() }}", "unsafe");
        assert_eq!(unsafe_without_reason(&source("a.rs", &block)).len(), 1);
        let reasoned = format!("// SAFETY: f is sound.\n{block}");
        assert_eq!(unsafe_without_reason(&source("a.rs", &reasoned)).len(), 0);
    }

    #[test]
    fn public_names_use_the_glossary() {
        let text = "pub fn node_lat_ns() {}\npub latency_ns: f64,\nlet bw = 3;\npub struct Vma {\n";
        let found = synonyms(&source("crates/a/src/lib.rs", text));
        assert_eq!(
            found.iter().map(|finding| finding.line).collect::<Vec<_>>(),
            [1, 4]
        );
    }

    #[test]
    fn files_that_nobody_declares_are_found() {
        let sources = [
            source("crates/a/src/lib.rs", "pub mod b;\nmod c;\n"),
            source("crates/a/src/b.rs", "pub(crate) mod d;\n"),
            source("crates/a/src/b/d.rs", ""),
            source("crates/a/src/c/mod.rs", ""),
            source("crates/a/src/dead.rs", ""),
            source("crates/a/tests/t.rs", ""),
            source("crates/b/Cargo.toml", "[[test]]\nname = \"own\"\n"),
            source("crates/b/tests/main.rs", "mod part;\n"),
            source("crates/b/tests/part.rs", ""),
            source("crates/b/tests/own.rs", ""),
            source("crates/b/tests/forgotten.rs", ""),
        ];
        let found = dead_files(&sources);
        assert_eq!(texts(&found).lines().count(), 2);
        assert!(texts(&found).contains("dead.rs"));
        assert!(texts(&found).contains("forgotten.rs"));
    }
}
