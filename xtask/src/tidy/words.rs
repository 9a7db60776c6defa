//! Names of types that say something only to who wrote them, and what to write instead.

use super::Finding;
use crate::files::Source;

/// Words that a type's name may not be, with the field's own.
const WORDS: [(&str, &str); 9] = [
    ("Attendant", "Supervisor, Upkeep"),
    ("Beside", "Companion, Supervisor"),
    ("Here", "Inputs, LocalMachine"),
    ("Look", "Reading, Round, Sample"),
    ("Told", "Report, Count"),
    ("Turn", "Step, TurnResult"),
    ("Vigil", "BandwidthGuard"),
    ("Whereabouts", "Residency, Placement"),
    ("Outlook", "Forecast"),
];

/// Looks for types of these names that others can see.
pub fn check(source: &Source) -> Vec<Finding> {
    if !source.is("rs") {
        return Vec::new();
    }
    let mut findings = Vec::new();
    for (position, line) in source.text.lines().enumerate() {
        let Some(rest) = line.trim_start().strip_prefix("pub ") else {
            continue;
        };
        let mut words = rest.split(|letter: char| !letter.is_alphanumeric() && letter != '_');
        let (Some("struct" | "enum" | "trait" | "type"), Some(name)) = (words.next(), words.next())
        else {
            continue;
        };
        if let Some((word, instead)) = WORDS.iter().find(|(word, _)| *word == name) {
            let text = format!(
                "`{word}` tells a reader nothing: use the field's word ({instead}), or one more exact"
            );
            findings.push(Finding::new(&source.path, position + 1, text));
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::super::source;
    use super::*;

    #[test]
    fn a_riddle_is_refused_and_longer_names_are_not() {
        let text =
            "pub struct Told;\n    pub enum Here<'a> {}\npub struct LookAhead;\nstruct Look;\n";
        let found = check(&source("crates/a/src/lib.rs", text));
        let lines: Vec<usize> = found.iter().map(|finding| finding.line).collect();
        assert_eq!(lines, [1, 2], "{found:#?}");
    }
}
