//! A command line as a person types it, and what came out.

use std::process::{Command, Output};

pub fn hither(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_hither"));
    command.args(arguments);
    command
}

pub fn output(arguments: &[&str]) -> Output {
    hither(arguments).output().unwrap()
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// Exit status and standard error of a command line that must be refused.
pub fn refused(arguments: &[&str], words: &str) {
    let output = output(arguments);
    let error = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{arguments:?}: {error}");
    assert!(
        error.contains(words),
        "{arguments:?}: `{words}` is not in {error}"
    );
    assert!(!error.contains("panicked"), "{arguments:?}: {error}");
}
