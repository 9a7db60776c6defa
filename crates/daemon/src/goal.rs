//! Fast memory or CPU time by a goal: a figure that the service itself tells, held with as little as that takes.
//!
//! The figure is read from a file that the service, or a command beside it, writes: its own log, or a text file
//! for the Prometheus node exporter. The states between the least and all that there may be are the thesis's
//! E-states (4.3.3, 4.4.1); both controllers are [`hither_core::goal`]'s.

use crate::publish::GoalRow;
use hither_core::goal::{Better, Goal, Steps, Thrift};
use hither_core::size::short_bytes;
use hither_core::snapshot::PAGE_BYTES;
use std::fmt;
use std::io::{Read, Seek, SeekFrom};
use std::path::PathBuf;
use std::time::SystemTime;

/// Bytes at a file's end in which the figure is looked for.
const TAIL_BYTES: u64 = 8 << 10;
/// Steps unless a goal says otherwise.
pub const STEPS: u32 = 8;

/// What goes in steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resource {
    /// Base pages of the fastest tier.
    FastMemory,
    /// Thousandths of a CPU.
    CpuTime,
}

impl Resource {
    /// Steps below which it never goes: without CPU time nothing runs, and no figure is told.
    fn least(self) -> u32 {
        match self {
            Self::FastMemory => 0,
            Self::CpuTime => 1,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::FastMemory => "fast memory",
            Self::CpuTime => "CPU time",
        }
    }

    /// An amount, for a person.
    fn shown(self, amount: u64) -> String {
        match self {
            Self::FastMemory => short_bytes(amount * PAGE_BYTES),
            Self::CpuTime => format!("{} CPUs", amount as f64 / 1e3),
        }
    }
}

/// What is wanted of the figure.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Wanted {
    /// A latency: at most so much.
    Below(f64),
    /// A throughput: at least so much.
    Above(f64),
    /// A throughput: the share of it that giving back may cost.
    MayLose(f64),
}

/// A goal as it is configured.
#[derive(Clone, Debug, PartialEq)]
pub struct Spec {
    /// Who tells the figure.
    pub file: PathBuf,
    /// The word before its number.
    pub figure: String,
    /// What is wanted of it.
    pub wanted: Wanted,
    /// Steps from nothing to all that there may be.
    pub steps: u32,
    /// Time between two readings, in us.
    pub every_us: u64,
}

#[derive(Clone, Debug)]
enum Controller {
    Goal(Goal),
    Thrift(Thrift),
}

/// A goal that is pursued.
#[derive(Clone, Debug)]
pub struct Pursuit {
    spec: Spec,
    resource: Resource,
    controller: Controller,
    due_us: u64,
    /// Of the file as it was read last: a reading counts once.
    seen: Option<(SystemTime, u64)>,
    /// The last reading.
    reading: Option<f64>,
    /// Why there is none.
    why: Option<String>,
}

/// What a look brought.
#[derive(Debug, Default, PartialEq)]
pub struct Found {
    /// The amount from now on, where it changed.
    pub amount: Option<u64>,
    /// A sentence for a person.
    pub note: Option<String>,
}

impl Pursuit {
    /// Begins with all of it.
    #[must_use]
    pub fn new(spec: Spec, resource: Resource, most: u64) -> Self {
        let steps = Steps {
            step: most / u64::from(spec.steps.max(1)),
            least: resource.least(),
            most: spec.steps,
            now: spec.steps,
        };
        let controller = match spec.wanted {
            Wanted::Below(wanted) => Controller::Goal(Goal::new(wanted, Better::Low, steps)),
            Wanted::Above(wanted) => Controller::Goal(Goal::new(wanted, Better::High, steps)),
            Wanted::MayLose(share) => Controller::Thrift(Thrift::new(share, steps)),
        };
        Self {
            spec,
            resource,
            controller,
            due_us: 0,
            seen: None,
            reading: None,
            why: None,
        }
    }

    /// What is pursued.
    #[must_use]
    pub fn spec(&self) -> &Spec {
        &self.spec
    }

    /// The present state.
    #[must_use]
    pub fn steps(&self) -> Steps {
        match &self.controller {
            Controller::Goal(goal) => goal.steps(),
            Controller::Thrift(thrift) => thrift.steps(),
        }
    }

    /// How it stands.
    #[must_use]
    pub fn row(&self) -> GoalRow {
        let steps = self.steps();
        GoalRow {
            wanted: self.spec.to_string(),
            reading: self.reading,
            state: steps.state(),
            steps: [steps.now, steps.most],
            amount: self.resource.shown(steps.amount()),
        }
    }

    /// Reads the figure where it is time to.
    pub fn look(&mut self, now_us: u64) -> Found {
        if now_us < self.due_us {
            return Found::default();
        }
        self.due_us = now_us + self.spec.every_us;
        let reading = match self.read() {
            Ok(reading) => reading,
            Err(why) => {
                let is_new = self.why.as_ref() != Some(&why);
                self.why = Some(why.clone());
                let note = format!("{why}: its {} stays as it is", self.resource.name());
                return Found {
                    amount: None,
                    note: is_new.then_some(note),
                };
            }
        };
        self.why = None;
        let Some(reading) = reading else {
            return Found::default();
        };
        self.reading = Some(reading);
        let has_changed = match &mut self.controller {
            Controller::Goal(goal) => goal.take(reading),
            Controller::Thrift(thrift) => thrift.take(reading),
        };
        if !has_changed {
            return Found::default();
        }
        let steps = self.steps();
        Found {
            amount: Some(steps.amount()),
            note: Some(format!(
                "E{} from now on, {} of {} steps of {} ({}): {}, and was {reading}",
                steps.state(),
                steps.now,
                steps.most,
                self.resource.name(),
                self.resource.shown(steps.amount()),
                self.spec,
            )),
        }
    }

    /// The figure; `None` where the file is as it was.
    fn read(&mut self) -> Result<Option<f64>, String> {
        let path = &self.spec.file;
        let fail = |what: &dyn fmt::Display| format!("{}: {what}", path.to_string_lossy());
        let mut file = hither_files::open(path).map_err(|error| fail(&error))?;
        let metadata = file.metadata().map_err(|error| fail(&error))?;
        let modified = metadata.modified().map_err(|error| fail(&error))?;
        let now = Some((modified, metadata.len()));
        if self.seen == now {
            return Ok(None);
        }
        self.seen = now;
        let start = metadata.len().saturating_sub(TAIL_BYTES);
        let mut bytes = Vec::new();
        file.seek(SeekFrom::Start(start))
            .and_then(|_| file.take(TAIL_BYTES).read_to_end(&mut bytes))
            .map_err(|error| fail(&error))?;
        let text = String::from_utf8_lossy(&bytes);
        let found = last_figure(&text, &self.spec.figure);
        let missing = format!("it has no number after `{}` at its end", self.spec.figure);
        found.map(Some).ok_or_else(|| fail(&missing))
    }
}

impl fmt::Display for Spec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let figure = &self.figure;
        match self.wanted {
            Wanted::Below(most) => write!(f, "{figure} is to be at most {most}"),
            Wanted::Above(least) => write!(f, "{figure} is to be at least {least}"),
            Wanted::MayLose(share) => write!(f, "{figure} may lose {} %", 100.0 * share),
        }
    }
}

/// The number after the last place of a word: `word 12`, `word=12`, `word: 12`, `word{label="a b"} 12`.
fn last_figure(text: &str, word: &str) -> Option<f64> {
    let is_edge = |letter: Option<char>| {
        !letter.is_some_and(|letter| letter.is_alphanumeric() || letter == '_')
    };
    let places = text.rmatch_indices(word);
    let mut whole = places.filter(|&(at, _)| is_edge(text[..at].chars().next_back()));
    whole.find_map(|(at, _)| {
        let rest = &text[at + word.len()..];
        if !is_edge(rest.chars().next()) {
            return None;
        }
        let line = rest.lines().next().unwrap_or_default();
        let line = match line.strip_prefix('{') {
            Some(labels) => &labels[labels.find('}')? + 1..],
            None => line,
        };
        let line = line.trim_start_matches([' ', '\t', ':', '=']);
        let number = line.split([' ', '\t', ',', ';']).next()?;
        number
            .parse::<f64>()
            .ok()
            .filter(|number| number.is_finite())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_found_in_what_programs_write() {
        let log = "second: 1 requests 9 mean_us 50.5 p99_us 80\nsecond: 2 requests 7 mean_us 23.4 p99_us 40.0\n";
        for (text, word, expected) in [
            (log, "mean_us", Some(23.4)),
            (log, "requests", Some(7.0)),
            (log, "us", None),
            (
                "# TYPE lat gauge\nlat{job=\"a b\"} 1.5e-3\nlat_sum 9\n",
                "lat",
                Some(0.0015),
            ),
            ("lat=4, x=5", "lat", Some(4.0)),
            ("lat: 4", "lat", Some(4.0)),
            // A line that is being written.
            ("lat 4\nlat ", "lat", Some(4.0)),
            ("lat NaN", "lat", None),
            ("", "lat", None),
        ] {
            assert_eq!(last_figure(text, word), expected, "{word} in {text:?}");
        }
    }

    #[test]
    fn a_service_that_is_fast_enough_gives_back_and_gets_again() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("log");
        let spec = Spec {
            file: file.clone(),
            figure: "mean_us".to_owned(),
            wanted: Wanted::Below(20.0),
            steps: 4,
            every_us: 1_000_000,
        };
        let mut pursuit = Pursuit::new(spec, Resource::FastMemory, 4096);
        let missing = pursuit.look(0);
        let note = missing.note.unwrap();
        assert!(note.ends_with("its fast memory stays as it is"), "{note}");
        assert_eq!(pursuit.look(1_000_000), Found::default(), "once is enough");
        let mut quotas = Vec::new();
        // 10 us with all of it, 5 more for each step less: 3 steps hold 20.
        for turn in 2..60u64 {
            let less = f64::from(4 - pursuit.steps().now);
            let mut text = "x".repeat(turn as usize);
            text += &format!("\nmean_us {}\n", 10.0 + 5.0 * less);
            std::fs::write(&file, text).unwrap();
            let found = pursuit.look(turn * 1_000_000);
            // Between two readings nothing is read, and what was read counts once.
            assert_eq!(pursuit.look(turn * 1_000_000 + 500_000), Found::default());
            quotas.extend(found.amount);
        }
        assert_eq!(quotas[..2], [3072, 2048]);
        assert_eq!(pursuit.steps().now, 2, "{quotas:?}");
        assert_eq!(pursuit.row().reading, Some(20.0));
    }
}
