//! The explanation log: who did what, why, what was predicted, what was measured.
//!
//! Every entry is data (for `--json`) and prints as one line for a person.

use crate::engine::{Grounds, PredictedChange, Reading, Verdict};
use crate::ids::{NodeId, Pid};
use crate::plan::{Mechanism, Refusal};
use crate::snapshot::Evidence;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::fmt;

/// One thing that happened.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "event")]
#[expect(
    clippy::large_enum_variant,
    reason = "a log has some thousand entries: 300 bytes each are less than a pointer to follow costs readers"
)]
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
        /// Stall time (CPU time) to be saved per interval, in ns; negative where it is to be lost.
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
        /// What it stands on.
        grounds: Grounds,
        /// Metrics before the first move.
        before: Reading,
        /// Metrics after the last.
        after: Reading,
        /// Change that was predicted.
        predicted: PredictedChange,
        /// The same as it was predicted.
        predicted_gain_ns: Option<f64>,
        /// The same as it was saved, by the fall in latency.
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
    /// Everything that was moved was put back, on leaving.
    Undone {
        /// Base pages put back.
        page_count: u64,
        /// Base pages that could not be put back.
        left_count: u64,
        /// Why not, at the last attempt: pages by reason, `left_count` together.
        refused: Vec<(Refusal, u64)>,
    },
}

/// An event with its time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Entry {
    /// When, in us on the caller's clock.
    pub at_us: u64,
    /// Whose scope, by name; empty where there is but one, or it concerns none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub scope: String,
    /// What.
    #[serde(flatten)]
    pub event: Event,
}

impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:9.3} s  ", self.at_us as f64 / 1e6)?;
        match self.scope.as_str() {
            "" => write!(f, "{}", self.event),
            name => write!(f, "{name}: {}", self.event),
        }
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

/// A gain with its direction in words, as a figure without a sign: how `falls`, or how it `rises`;
/// `None` where it is unknown, or too small for a figure.
fn directed(gain_ns: Option<f64>, falls: &str, rises: &str, none: &str) -> Option<String> {
    let millis = gain_ns? / 1e6;
    Some(match millis {
        less if less >= 0.05 => format!("{falls} {less:.1} ms"),
        more if more <= -0.05 => format!("{rises} {:.1} ms", -more),
        _ => none.to_owned(),
    })
}

/// A gain with its sign: `+3.2 ms`.
fn signed(gain_ns: Option<f64>) -> String {
    let Some(gain_ns) = gain_ns else {
        return "unknown".to_owned();
    };
    match gain_ns / 1e6 {
        millis if millis.abs() < 0.05 => "none".to_owned(),
        millis => format!("{millis:+.1} ms"),
    }
}

/// What was gained of the time that CPUs stall for memory, as predicted and as measured; a loss is
/// negative: `gain in stall time per interval: predicted +3.2 ms, measured -0.4 ms`.
#[must_use]
pub fn stall_time(predicted_gain_ns: Option<f64>, measured_gain_ns: Option<f64>) -> String {
    format!(
        "gain in stall time per interval: predicted {}, measured {}",
        signed(predicted_gain_ns),
        signed(measured_gain_ns),
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
                let gain = directed(predicted_gain_ns.get(), "save", "add", "change nothing");
                let gain = match gain {
                    Some(gain) if gain.ends_with("ms") => {
                        format!("predicted to {gain} of stall time per interval")
                    }
                    Some(gain) => format!("predicted to {gain} about stall time"),
                    None => "what stall time it saves is not known".to_owned(),
                };
                write!(
                    f,
                    "#{request} {mechanism} {page_count} pages of {pid} to {to}: {because}; {gain}"
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
            Self::Undone {
                page_count,
                left_count,
                refused,
            } => {
                write!(f, "undone: {page_count} pages were put back")?;
                if *left_count > 0 {
                    let reasons = refused.iter().map(|(why, count)| format!("{count} {why}"));
                    let reasons: Vec<String> = reasons.collect();
                    write!(f, ", {left_count} could not be ({})", reasons.join(", "))?;
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
            grounds,
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
            grounds.told(*verdict),
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
        write!(f, "; {}", stall_time(*predicted_gain_ns, *measured_gain_ns))
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
    pub fn push(&mut self, at_us: u64, scope: &str, event: Event) {
        self.keep(Entry {
            at_us,
            scope: scope.to_owned(),
            event,
        });
    }

    /// The same of an entry that was taken out of a log.
    pub fn keep(&mut self, entry: Entry) {
        if self.entries.len() == self.capacity {
            self.entries.pop_front();
            self.dropped_count += 1;
        }
        self.entries.push_back(entry);
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
    fn entries_read_as_sentences() {
        let mut log = Log::new(2);
        log.push(
            0,
            "",
            Event::Note {
                text: "dropped".to_owned(),
            },
        );
        log.push(
            1_500_000,
            "",
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
            "work",
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
                 predicted to save 3.2 ms of stall time per interval",
                "    1.600 s  work: #12 moved 1360 pages in 7.6 ms, 2 were there, 3 busy",
            ]
        );
        assert_eq!(log.dropped_count(), 1);
    }

    #[test]
    fn a_loss_is_told_as_a_loss() {
        let told = |predicted, measured| stall_time(predicted, measured);
        for (predicted, measured, expected) in [
            (
                Some(4e8),
                Some(-1.922e8),
                "predicted +400.0 ms, measured -192.2 ms",
            ),
            (Some(-3e6), Some(2e6), "predicted -3.0 ms, measured +2.0 ms"),
            (Some(-1.0), Some(-4.9e4), "predicted none, measured none"),
            (None, None, "predicted unknown, measured unknown"),
        ] {
            assert_eq!(
                told(predicted, measured),
                format!("gain in stall time per interval: {expected}")
            );
        }
        let asked = |gain: Evidence<f64>| {
            let event = Event::Asked {
                request: 1,
                campaign: 1,
                pid: Pid(7),
                page_count: 1,
                to: NodeId(2),
                mechanism: Mechanism::Misplace,
                because: "why".to_owned(),
                predicted_gain_ns: gain,
            };
            event.to_string()
        };
        for (gain, expected) in [
            (
                Evidence::estimated(-3.25e6, "test"),
                "predicted to add 3.2 ms of stall time per interval",
            ),
            (
                Evidence::estimated(-1.0, "test"),
                "predicted to change nothing about stall time",
            ),
            (
                Evidence::unknown("test"),
                "what stall time it saves is not known",
            ),
        ] {
            assert!(asked(gain).ends_with(&format!("node2: why; {expected}")));
        }
    }

    #[test]
    fn a_verdict_is_told_with_its_grounds_and_gains() {
        let reading = |imbalance, latency_ns| Reading {
            local_ratio: Some(0.25),
            imbalance: Some(imbalance),
            latency_ns: Some(latency_ns),
            accesses_per_us: Some(40.0),
            instructions_per_cpu_us: None,
            fast_share: None,
            fast_error: None,
        };
        let event = Event::Judged {
            campaign: 1,
            mechanisms: vec![Mechanism::Interleave],
            page_count: 100,
            verdict: Verdict::Success,
            grounds: Grounds::Imbalance,
            before: reading(1.7, 200.0),
            after: reading(0.1, 148.0),
            predicted: PredictedChange::default(),
            predicted_gain_ns: Some(4e8),
            measured_gain_ns: Some(1.922e8),
        };
        assert_eq!(
            event.to_string(),
            "campaign 1 (interleave, 100 pages): success by controller imbalance; local 25 to 25 %, \
             imbalance 170 to 10 %, latency 200 to 148 ns, 40.0 to 40.0 accesses per us; gain in stall \
             time per interval: predicted +400.0 ms, measured +192.2 ms"
        );
    }
}
