//! The explanation log: who did what, why, what was predicted, what was measured.
//!
//! Every entry is data (for `--json`) and prints as one line for a person.

use crate::engine::{PredictedChange, Reading, Verdict};
use crate::ids::{NodeId, Pid};
use crate::plan::{Mechanism, Refusal};
use crate::size::decimals;
use crate::snapshot::Evidence;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::fmt;

/// One thing that happened.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "event")]
pub enum Event {
    /// The policy was not asked because evidence is missing.
    MissingEvidence {
        /// The policy.
        policy: String,
        /// What is missing.
        what: String,
        /// Why it is.
        why: String,
        /// How to get it.
        remedy: String,
    },
    /// A sentence of the policy or the engine.
    Note {
        /// The sentence.
        text: String,
    },
    /// A move was asked for.
    Asked {
        /// Request number.
        request: u64,
        /// Campaign it belongs to.
        campaign: u64,
        /// Whose pages.
        pid: Pid,
        /// Base pages.
        page_count: u64,
        /// The target.
        to: NodeId,
        /// How it is meant to help.
        mechanism: Mechanism,
        /// Why.
        because: String,
        /// Stall time to be saved per interval, in ns.
        predicted_gain_ns: Evidence<f64>,
    },
    /// A move came back.
    Moved {
        /// Request number.
        request: u64,
        /// Base pages that moved.
        page_count: u64,
        /// Pages that were there already.
        already_there: u64,
        /// Pages left, by reason.
        refused: Vec<(Refusal, u64)>,
        /// Duration in ns.
        duration_ns: u64,
    },
    /// A campaign was judged.
    Judged {
        /// Campaign number.
        campaign: u64,
        /// What it used.
        mechanisms: Vec<Mechanism>,
        /// Base pages that it moved.
        page_count: u64,
        /// The verdict.
        verdict: Verdict,
        /// Metrics before the first move.
        before: Reading,
        /// Metrics after the last.
        after: Reading,
        /// Change that was predicted.
        predicted: PredictedChange,
        /// Stall time that was predicted to be saved per interval, in ns.
        predicted_gain_ns: Option<f64>,
        /// Stall time that was saved per interval by the fall in latency, in ns.
        measured_gain_ns: Option<f64>,
    },
    /// Mechanisms were switched off.
    SwitchedOff {
        /// Which.
        mechanisms: Vec<Mechanism>,
        /// Until when, in us on the caller's clock.
        until_us: u64,
    },
    /// Pages of a campaign were put back.
    Reverted {
        /// Campaign number.
        campaign: u64,
        /// Base pages that are back.
        page_count: u64,
        /// Base pages that could not be put back.
        left_count: u64,
    },
}

/// An event with its time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Entry {
    /// When, in us on the caller's clock.
    pub at_us: u64,
    /// What.
    #[serde(flatten)]
    pub event: Event,
}

impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:9.3} s  {}", self.at_us as f64 / 1e6, self.event)
    }
}

fn list(mechanisms: &[Mechanism]) -> String {
    mechanisms
        .iter()
        .map(|mechanism| mechanism.name())
        .collect::<Vec<_>>()
        .join(" and ")
}

fn percent(figure: Option<f64>) -> String {
    figure.map_or_else(|| "?".to_owned(), |figure| format!("{:.0}", 100.0 * figure))
}

fn millis(gain_ns: Option<f64>) -> String {
    gain_ns.map_or_else(
        || "an unknown time".to_owned(),
        |gain_ns| format!("{} ms", decimals(gain_ns / 1e6, 1)),
    )
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::MissingEvidence {
                policy,
                what,
                why,
                remedy,
            } => {
                write!(
                    f,
                    "policy {policy} needs {what}, which is unknown: {why}; {remedy}"
                )
            }
            Self::Note { text } => f.write_str(text),
            Self::Asked {
                request,
                pid,
                page_count,
                to,
                mechanism,
                because,
                predicted_gain_ns,
                ..
            } => {
                let gain = millis(predicted_gain_ns.get());
                write!(
                    f,
                    "#{request} {mechanism} {page_count} pages of {pid} to {to}: {because}; predicted to save {gain} of waiting per interval"
                )
            }
            Self::Moved { .. } => self.fmt_moved(f),
            Self::Judged { .. } => self.fmt_judged(f),
            Self::SwitchedOff {
                mechanisms,
                until_us,
            } => {
                write!(
                    f,
                    "{} is off until {:.1} s",
                    list(mechanisms),
                    *until_us as f64 / 1e6
                )
            }
            Self::Reverted {
                campaign,
                page_count,
                left_count,
            } => {
                write!(
                    f,
                    "campaign {campaign} reverted: {page_count} pages are back where they were"
                )?;
                if *left_count > 0 {
                    write!(f, ", {left_count} could not be put back")?;
                }
                Ok(())
            }
        }
    }
}

impl Event {
    fn fmt_moved(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self::Moved {
            request,
            page_count,
            already_there,
            refused,
            duration_ns,
        } = self
        else {
            return Ok(());
        };
        write!(
            f,
            "#{request} moved {page_count} pages in {:.1} ms",
            *duration_ns as f64 / 1e6
        )?;
        if *already_there > 0 {
            write!(f, ", {already_there} were there")?;
        }
        for (refusal, count) in refused {
            write!(f, ", {count} {refusal}")?;
        }
        Ok(())
    }

    fn fmt_judged(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self::Judged {
            campaign,
            mechanisms,
            page_count,
            verdict,
            before,
            after,
            predicted_gain_ns,
            measured_gain_ns,
            ..
        } = self
        else {
            return Ok(());
        };
        write!(
            f,
            "campaign {campaign} ({}, {page_count} pages): {}; local {} to {} %, imbalance {} to {} %",
            list(mechanisms),
            verdict.name(),
            percent(before.local_ratio),
            percent(after.local_ratio),
            percent(before.imbalance),
            percent(after.imbalance),
        )?;
        if let (Some(before), Some(after)) = (before.latency_ns, after.latency_ns) {
            write!(f, ", latency {before:.0} to {after:.0} ns")?;
        }
        if let (Some(before), Some(after)) = (before.accesses_per_us, after.accesses_per_us) {
            write!(f, ", {before:.1} to {after:.1} accesses per us")?;
        }
        write!(
            f,
            "; waiting per interval: predicted to save {}, saved {}",
            millis(*predicted_gain_ns),
            millis(*measured_gain_ns)
        )
    }
}

/// The last entries, oldest first; bounded.
#[derive(Clone, Debug)]
pub struct Log {
    entries: VecDeque<Entry>,
    capacity: usize,
    dropped_count: u64,
}

impl Log {
    /// A log that keeps this many entries, at least one.
    #[must_use]
    pub fn new(capacity: usize) -> Self {
        Self {
            entries: VecDeque::new(),
            capacity: capacity.max(1),
            dropped_count: 0,
        }
    }

    /// Appends; the oldest entry makes room.
    pub fn push(&mut self, at_us: u64, event: Event) {
        if self.entries.len() == self.capacity {
            self.entries.pop_front();
            self.dropped_count += 1;
        }
        self.entries.push_back(Entry { at_us, event });
    }

    /// Entries, oldest first.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &Entry> + ExactSizeIterator {
        self.entries.iter()
    }

    /// Entries that made room for later ones.
    #[must_use]
    pub fn dropped_count(&self) -> u64 {
        self.dropped_count
    }

    /// Takes all entries out, oldest first.
    pub fn drain(&mut self) -> impl Iterator<Item = Entry> + '_ {
        self.entries.drain(..)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_that_is_rounded_to_nothing_has_no_sign() {
        assert_eq!(millis(Some(-40_000.0)), "0.0 ms");
        assert_eq!(millis(Some(-192.2e6)), "-192.2 ms");
        assert_eq!(millis(None), "an unknown time");
    }

    #[test]
    fn entries_read_as_sentences() {
        let mut log = Log::new(2);
        log.push(
            0,
            Event::Note {
                text: "dropped".to_owned(),
            },
        );
        log.push(
            1_500_000,
            Event::Asked {
                request: 12,
                campaign: 1,
                pid: Pid(7),
                page_count: 1365,
                to: NodeId(2),
                mechanism: Mechanism::Interleave,
                because: "used by several nodes".to_owned(),
                predicted_gain_ns: Evidence::estimated(3.25e6, "samples"),
            },
        );
        log.push(
            1_600_000,
            Event::Moved {
                request: 12,
                page_count: 1360,
                already_there: 2,
                refused: vec![(Refusal::Busy, 3)],
                duration_ns: 7_600_000,
            },
        );
        let lines: Vec<String> = log.iter().map(Entry::to_string).collect();
        assert_eq!(
            lines,
            [
                "    1.500 s  #12 interleave 1365 pages of pid 7 to node2: used by several nodes; \
                 predicted to save 3.2 ms of waiting per interval",
                "    1.600 s  #12 moved 1360 pages in 7.6 ms, 2 were there, 3 busy",
            ]
        );
        assert_eq!(log.dropped_count(), 1);
    }
}
