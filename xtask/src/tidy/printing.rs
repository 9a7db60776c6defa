//! Text of others reaches a terminal through one printer: names of files are written with `shown()`, and
//! who prints is known. Documents for programs have one printer too, which knows what JSON cannot say.

use super::Finding;
use crate::files::Source;
use std::path::Path;

/// Crates whose texts a person reads.
const SHOWN: [&str; 5] = [
    "crates/agent/src",
    "crates/hither/src",
    "crates/lab/src",
    "crates/linux/src",
    "crates/recording/src",
];

/// Who prints: the printer; the live view, which draws cells; what hands on the bytes of the guest's
/// program; and the first process of the guest, which has a console.
const PRINTERS: [&str; 4] = [
    "crates/hither/src/print.rs",
    "crates/hither/src/top/screen.rs",
    "crates/lab/src/viewer.rs",
    "crates/lab/src/guest/mod.rs",
];

/// Calls that print, in halves so that this file does not contain them.
const PRINTING: [(&str, &str); 7] = [
    ("print", "!("),
    ("println", "!("),
    ("eprint", "!("),
    ("eprintln", "!("),
    ("dbg", "!("),
    ("stdout", "()"),
    ("stderr", "()"),
];

/// How a document is laid out in lines.
const DOCUMENT: &str = concat!(":", "#}\\n");

/// Lines that show a path as it is, or print by themselves.
pub fn check(source: &Source) -> Vec<Finding> {
    let is_shown = SHOWN.iter().any(|folder| source.path.starts_with(folder));
    if !source.is("rs") || !is_shown || is_test(&source.path) {
        return Vec::new();
    }
    let prints = PRINTERS.iter().any(|path| source.path == Path::new(path));
    let mut findings = Vec::new();
    let mut of_tests = false;
    for (number, line) in source.text.lines().enumerate() {
        // What follows are the file's own tests.
        if of_tests && line.ends_with("mod tests {") {
            break;
        }
        of_tests = line == "#[cfg(test)]";
        let code = line.split("//").next().unwrap_or("");
        let mut add = |text: &str| findings.push(Finding::new(&source.path, number + 1, text));
        if code.contains(".display()") {
            add("a path holds what others like: write `.shown()` (hither_core::foreign)");
        }
        if !prints && source.path.starts_with("crates/hither/src") && code.contains(DOCUMENT) {
            add("a document is printed by print::json, which leaves zero without a sign");
        }
        if !prints && is_printing(code) {
            add(
                "prints by itself: use crates/hither/src/print.rs, which lets nothing steer a terminal",
            );
        }
    }
    findings
}

fn is_test(path: &Path) -> bool {
    let is_tests = |part: std::path::Component<'_>| part.as_os_str() == "tests";
    path.ends_with("tests.rs") || path.components().any(is_tests)
}

/// Is a stream written to? Whether it is a terminal may be asked, and where it leads.
fn is_printing(code: &str) -> bool {
    let is_part = |letter: char| letter.is_alphanumeric() || letter == '_' || letter == '.';
    PRINTING.iter().any(|(one, two)| {
        let word = format!("{one}{two}");
        code.match_indices(&word).any(|(at, _)| {
            let after = &code[at + word.len()..];
            let asks = [".is_terminal()", ".as_fd()", ".as_raw_fd()"];
            !code[..at].ends_with(is_part) && !asks.iter().any(|ask| after.starts_with(ask))
        })
    })
}

#[cfg(test)]
mod tests {
    use super::super::source;
    use super::*;

    fn lines(path: &str, text: &str) -> Vec<usize> {
        let found = check(&source(path, text));
        found.iter().map(|finding| finding.line).collect()
    }

    #[test]
    fn paths_and_prints_are_found_where_people_read() {
        let text = "\
format!(\"{}\", path.display());
path.shown();
println!(\"x\");
let out = std::io::stderr().lock();
io::stdout().is_terminal();
// println!(\"x\");
child.stdout();
writeln!(file);
#[cfg(test)]
mod tests;
path.display();
#[cfg(test)]
mod tests {
println!(\"x\");
path.display();
";
        assert_eq!(lines("crates/hither/src/a.rs", text), [1, 3, 4, 11]);
        assert_eq!(lines("crates/linux/src/b/c.rs", text), [1, 3, 4, 11]);
        assert_eq!(lines("crates/hither/src/print.rs", text), [1, 11]);
        let document = "format!(\"{document:#}\\n\")";
        assert_eq!(lines("crates/hither/src/a.rs", document), [1]);
        assert_eq!(lines("crates/hither/src/print.rs", document), [0; 0]);
        for path in [
            "crates/hither/src/a/tests.rs",
            "crates/hither/tests/a.rs",
            "crates/lab/src/tests/a.rs",
            "workloads/src/a.rs",
            "crates/hither/src/a.md",
        ] {
            assert_eq!(lines(path, text), [0; 0], "{path}");
        }
    }
}
