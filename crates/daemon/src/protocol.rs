//! The control socket: one JSON object a line, asked and answered in turn (`docs/daemon.md`).
//!
//! ```text
//! {"hither":1,"ask":"pause","scopes":["db"]}
//! {"hither":1,"did":["db@postgres"]}
//! ```

use hither_core::declared::Hint;
use serde::{Deserialize, Serialize};

/// Version of the protocol. It changes where an old question gets another meaning.
pub const VERSION: u32 = 1;
/// Bytes of a question at most, its end of line included.
pub const MOST_BYTES: usize = 64 << 10;
/// Scopes, or ranges of addresses, named in a question at most.
pub const MOST_SCOPES: usize = 1024;

/// A question.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Question {
    /// Version of the protocol.
    pub hither: u32,
    /// What is asked.
    pub ask: Ask,
    /// About whom, by target or by scope; all that who asks may see where it is empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub scopes: Vec<String>,
    /// Whom `opt_out` and `opt_in` are about: who asks, where it is left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid: Option<i32>,
    /// What `declare` is about: addresses in bytes, first and behind the last, of who asks. The pages that lie
    /// wholly within count.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ranges: Vec<(u64, u64)>,
    /// What is declared of them; without it, what was declared is taken back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hint: Option<Hint>,
}

/// What can be asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ask {
    /// How everything stands: `hither.status/1`.
    Status,
    /// What was decided, and why: entries of the log.
    Explain,
    /// No new moves of these scopes.
    Pause,
    /// Moves again.
    Resume,
    /// Puts back what was moved of these scopes, and pauses them.
    Undo,
    /// Leaves a process alone until it ends.
    OptOut,
    /// Looks after a process: takes `OptOut` back, and is as `HITHER=on` in its environment.
    OptIn,
    /// Takes in what a process says of its own memory.
    Declare,
}

impl Question {
    /// About these scopes.
    #[must_use]
    pub fn new(ask: Ask, scopes: Vec<String>) -> Self {
        Self {
            hither: VERSION,
            ask,
            scopes,
            pid: None,
            ranges: Vec::new(),
            hint: None,
        }
    }

    /// From a line.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn parse(line: &[u8]) -> Result<Self, String> {
        let question: Self = serde_json::from_slice(line)
            .map_err(|error| format!("the question is not understood: {error}"))?;
        if question.hither != VERSION {
            return Err(format!(
                "this daemon speaks version {VERSION} of the protocol"
            ));
        }
        if question.scopes.len() > MOST_SCOPES {
            return Err(format!("a question names {MOST_SCOPES} scopes at most"));
        }
        if question.ranges.len() > MOST_SCOPES {
            return Err(format!("a question names {MOST_SCOPES} ranges at most"));
        }
        if let Some((start, end)) = question.ranges.iter().find(|(start, end)| start >= end) {
            return Err(format!("the range {start:#x} to {end:#x} is empty"));
        }
        Ok(question)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn questions_are_read_as_they_are_written() {
        let question = Question::new(Ask::OptOut, vec!["db".to_owned()]);
        let text = serde_json::to_string(&question).unwrap();
        assert_eq!(Question::parse(text.as_bytes()).unwrap(), question);
        for (bad, expected) in [
            (&br#"{"hither":2,"ask":"status"}"#[..], "version 1"),
            (br#"{"hither":1,"ask":"stop"}"#, "unknown variant `stop`"),
            (br#"{"hither":1,"ask":"status","x":1}"#, "unknown field `x`"),
            (
                br#"{"hither":1,"ask":"declare","ranges":[[8,8]]}"#,
                "is empty",
            ),
            (
                br#"{"hither":1,"ask":"declare","hint":"warm"}"#,
                "unknown variant `warm`",
            ),
            (b"", "not understood"),
            (b"[[[[", "not understood"),
        ] {
            let error = Question::parse(bad).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
        // As deep as a line can be.
        assert!(Question::parse(&vec![b'['; MOST_BYTES]).is_err());
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(20_000))]

        #[test]
        fn no_bytes_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = Question::parse(&bytes);
        }

        #[test]
        fn no_changed_question_panics(at in 0usize..60, with in any::<u8>(), cut in 0usize..60) {
            let mut line = br#"{"hither":1,"ask":"pause","scopes":["db","x"],"pid":7}"#.to_vec();
            let last = line.len() - 1;
            line[at.min(last)] = with;
            let _ = Question::parse(&line);
            line.truncate(cut);
            let _ = Question::parse(&line);
        }
    }
}
