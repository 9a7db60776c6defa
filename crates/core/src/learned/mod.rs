//! What is kept of programs between runs, so that a known one is placed right from its first page.
//!
//! Problem: hither moves pages after a program has touched them, and a short program has ended by then.
//! Mechanism: a run under a policy is *measured*. Its successful campaigns say which mechanism paid on how many
//! pages, and a rule ([`choose`]) turns that into a *start*: what is done before the program's first
//! instruction. A run that begins with a start is *checked*: its time is compared with that of the measured run.
//!
//! Terms:
//! - A [`Key`] says which program: its file, which build of it, its arguments, and the nodes that it may have
//!   memory on. Other arguments make another program, as they are other work.
//! - The *reference* is the measured run from which a start was learned.
//! - A checked run is *worse* where it took a tenth longer than the reference. After two of them in a row the
//!   start is unlearned; one is enough where the accesses took longer as well, and of a start that is a guess.
//!   For some runs after that nothing is learned, for twice as many each time.
//!
//! Properties: trust has bounds. After [`TRUSTED_RUNS`] checked runs, and [`TRUSTED_S`] seconds after the
//! reference, the next run is measured anew, without a start. Runs that failed are neither reference nor check.
//! The same record and run give the same lesson.

mod choose;

#[cfg(test)]
mod tests;

pub use choose::{Kept, choose, is_divided, kept};

use crate::bind::MemoryPolicy;
use crate::foreign::Foreign;
use crate::policy::Rung;
use crate::set::NodeSet;
use serde::{Deserialize, Serialize};
use std::fmt;

/// Version of [`Program`] as it is stored: one of another version is not used.
pub const FORMAT: u32 = 1;
/// Checked runs after which a program is measured anew.
pub const TRUSTED_RUNS: u32 = 20;
/// Age of the reference after which a program is measured anew: 30 days.
pub const TRUSTED_S: u64 = 30 * 24 * 60 * 60;
/// Bytes of a program's name and arguments that are kept; a longer command line is not learned.
pub const MOST_KEY_BYTES: usize = 64 << 10;

/// A checked run is worse from this share of the reference's time on; a tenth is beyond the noise of repeated
/// runs in the laboratory (3 to 5 %).
const WORSE: f64 = 1.10;
/// The same of a start that is a guess, which has to prove itself.
const WORSE_GUESS: f64 = 1.02;
/// Less than this many seconds more is noise, whatever share it is.
const NOISE_S: f64 = 0.05;
/// Runs for which nothing is learned after the first unlearning.
const BARRED_RUNS: u32 = 10;
/// Unlearnings after which that number no longer doubles.
const MOST_DOUBLINGS: u32 = 6;

/// Which program, on which machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Key {
    /// Path of its file, without links.
    pub program: String,
    /// `build-id:HEX`, or `size:BYTES mtime:NS` of a file without one.
    pub build: String,
    /// Its arguments.
    pub arguments: Vec<String>,
    /// Nodes that it may have memory on, as a list.
    pub nodes: String,
}

impl Key {
    /// Sixteen hexadecimal digits that name the record: FNV-1a of all of the key. Two keys may share them; whoever
    /// looks a record up compares the keys.
    #[must_use]
    pub fn name(&self) -> String {
        let mut hash = 0xcbf2_9ce4_8422_2325_u64;
        let words = [&self.program, &self.build, &self.nodes].into_iter();
        for word in words.chain(&self.arguments) {
            // The byte between words is in no text of UTF-8.
            for byte in word.bytes().chain([0xff]) {
                hash = (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
            }
        }
        format!("{hash:016x}")
    }

    /// Is it short enough to be kept?
    #[must_use]
    pub fn is_storable(&self) -> bool {
        let arguments = self.arguments.iter().map(|word| word.len() + 1);
        self.program.len() + arguments.sum::<usize>() <= MOST_KEY_BYTES
    }

    /// How many nodes it may have memory on; `None` where the list cannot be read.
    #[must_use]
    pub fn node_count(&self) -> Option<usize> {
        let nodes: NodeSet = self.nodes.parse().ok()?;
        Some(nodes.len())
    }
}

/// What is done before a program's first instruction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Start {
    /// Nothing: a page stays where it is first touched, until the policy moves it.
    #[default]
    Nothing,
    /// All pages go to the nodes in turns, by a memory policy of the process.
    Turns,
    /// Large blocks do, by a rule for the preload shim; stacks and small blocks stay near.
    LargeInTurns,
    /// Large blocks are divided among the nodes in order, by a rule for the shim: a guess.
    LargeDivided,
}

impl Start {
    /// All of them.
    pub const ALL: [Self; 4] = [
        Self::Nothing,
        Self::Turns,
        Self::LargeInTurns,
        Self::LargeDivided,
    ];

    /// The memory policy of the process.
    #[must_use]
    pub fn memory(self) -> Option<MemoryPolicy> {
        (self == Self::Turns).then_some(MemoryPolicy::Striped)
    }

    /// The rule for the shim, as `--place` has it.
    #[must_use]
    pub fn rule(self) -> Option<&'static str> {
        match self {
            Self::Nothing | Self::Turns => None,
            Self::LargeInTurns => Some("size>=1M: striped"),
            Self::LargeDivided => Some("size>=1M: blocks"),
        }
    }

    /// Was it not measured that it pays, but inferred?
    #[must_use]
    pub fn is_guess(self) -> bool {
        self == Self::LargeDivided
    }
}

impl fmt::Display for Start {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Nothing => "nothing",
            Self::Turns => "all pages in turns",
            Self::LargeInTurns => "large blocks in turns",
            Self::LargeDivided => "large blocks divided",
        })
    }
}

/// How memory was used over a run; fractions of 1, `None` where unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Figures {
    /// Share of accesses that the own node served.
    pub local_ratio: Option<f64>,
    /// Controller imbalance.
    pub imbalance: Option<f64>,
    /// Mean latency of demand misses in ns.
    pub latency_ns: Option<f64>,
}

/// What is kept of a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Run {
    /// When it ended, in s since 1970.
    pub at_s: u64,
    /// How long it ran.
    pub seconds: f64,
    /// Its exit status.
    pub status: u8,
    /// What it began with.
    pub start: Start,
    /// Over the whole run.
    pub figures: Figures,
    /// Where the evidence came from; `None` without a tracker.
    pub evidence: Option<Rung>,
    /// Mechanisms whose campaigns succeeded.
    pub kept: Vec<Kept>,
    /// Campaigns that were judged, and those that did harm.
    pub judged_count: u64,
    /// See `judged_count`.
    pub harmful_count: u64,
    /// Collocated pages left one node for all others, to each about as many: threads may each have a part.
    pub is_divided: bool,
}

impl Run {
    /// Did it take longer than the reference, beyond noise?
    fn is_worse_than(&self, reference: &Self) -> bool {
        let limit = match self.start.is_guess() {
            true => WORSE_GUESS,
            false => WORSE,
        };
        self.seconds > reference.seconds * limit && self.seconds - reference.seconds > NOISE_S
    }

    /// Did its accesses take longer, too?
    fn is_slower_memory_than(&self, reference: &Self) -> bool {
        let both = self.figures.latency_ns.zip(reference.figures.latency_ns);
        both.is_some_and(|(own, other)| own > other * WORSE)
    }
}

/// What is known of a program: a record as it is stored.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Program {
    /// [`FORMAT`].
    pub format: u32,
    /// Which program.
    pub key: Key,
    /// What its runs begin with.
    pub start: Start,
    /// Why: half a sentence.
    pub why: String,
    /// The measured run from which that was learned.
    pub reference: Option<Run>,
    /// The latest run.
    pub last: Option<Run>,
    /// All runs.
    pub run_count: u64,
    /// Checked runs since the reference that were not worse.
    pub trusted_runs: u32,
    /// The latest checked runs in a row that were worse.
    pub worse_runs: u32,
    /// How often a start was unlearned.
    pub unlearned_count: u32,
    /// Runs for which nothing is learned yet.
    pub barred_runs: u32,
}

/// What to begin a run with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Advice {
    /// That.
    pub start: Start,
    /// Why: half a sentence.
    pub why: String,
}

impl Program {
    /// Nothing is known yet.
    #[must_use]
    pub fn new(key: Key) -> Self {
        Self {
            format: FORMAT,
            key,
            start: Start::Nothing,
            why: "it was not run yet".to_owned(),
            reference: None,
            last: None,
            run_count: 0,
            trusted_runs: 0,
            worse_runs: 0,
            unlearned_count: 0,
            barred_runs: 0,
        }
    }

    /// What the next run is to begin with.
    #[must_use]
    pub fn advise(&self, now_s: u64) -> Advice {
        let nothing = |why: String| Advice {
            start: Start::Nothing,
            why,
        };
        let Some(reference) = self.reference.as_ref() else {
            return nothing(self.why.clone());
        };
        if self.key.node_count().is_none_or(|count| count < 2) {
            return nothing(ONE_NODE.to_owned());
        }
        if self.start == Start::Nothing {
            return nothing(self.why.clone());
        }
        match now_s.checked_sub(reference.at_s) {
            None => nothing("it was learned in the future of this clock: measured anew".to_owned()),
            Some(age_s) if age_s > TRUSTED_S => nothing(format!(
                "it was learned {} days ago: measured anew",
                age_s / (24 * 60 * 60)
            )),
            Some(_) if self.trusted_runs >= TRUSTED_RUNS => nothing(format!(
                "{TRUSTED_RUNS} runs have begun with it: measured anew"
            )),
            Some(_) => Advice {
                start: self.start,
                why: self.why.clone(),
            },
        }
    }

    /// Takes a run in. Returns what was learned: a sentence.
    pub fn learn(&mut self, run: Run) -> String {
        self.run_count = self.run_count.saturating_add(1);
        let lesson = match (run.status, run.start) {
            (0, Start::Nothing) => self.measured(&run),
            (0, _) => self.checked(&run),
            (status, _) => format!("nothing was learned: it ended with status {status}"),
        };
        self.last = Some(run);
        lesson
    }

    /// A run without a start.
    fn measured(&mut self, run: &Run) -> String {
        if self.barred_runs > 0 {
            self.barred_runs -= 1;
            return match self.barred_runs {
                0 => "nothing was learned; the next run is measured again".to_owned(),
                left => format!("nothing was learned, nor will be for {left} more runs"),
            };
        }
        let known = self.reference.as_ref().map(|_| self.start);
        let (start, why) = match self.key.node_count() {
            Some(count) if count >= 2 => choose(run),
            _ => (Start::Nothing, ONE_NODE.to_owned()),
        };
        (self.start, self.why) = (start, why);
        self.reference = Some(run.clone());
        (self.trusted_runs, self.worse_runs) = (0, 0);
        match (known, start) {
            (None | Some(Start::Nothing), Start::Nothing) => {
                format!("nothing to do at the start: {}", self.why)
            }
            (Some(known), Start::Nothing) => {
                format!("`{known}` is no longer begun with: {}", self.why)
            }
            (Some(known), _) if known == start => format!("`{start}` again: {}", self.why),
            _ => format!("the next run begins with `{start}`: {}", self.why),
        }
    }

    /// A run that began with a start.
    fn checked(&mut self, run: &Run) -> String {
        let start = run.start;
        // Another hither may have learned something else meanwhile: that is not judged by this run.
        let Some(reference) = self.reference.as_ref().filter(|_| start == self.start) else {
            return format!("nothing was learned: `{start}` is not what is known any more");
        };
        let times = format!("{:.2} s, {:.2} s without", run.seconds, reference.seconds);
        if !run.is_worse_than(reference) {
            self.worse_runs = 0;
            self.trusted_runs = self.trusted_runs.saturating_add(1);
            return format!("`{start}` is kept: it took {times}");
        }
        self.worse_runs = self.worse_runs.saturating_add(1);
        let is_enough = self.worse_runs >= 2
            || (start.is_guess() && self.trusted_runs == 0)
            || run.is_slower_memory_than(reference);
        if !is_enough {
            return format!("`{start}` is kept for another run, though it took {times}");
        }
        self.why = format!("`{start}` was unlearned: it took {times}");
        self.barred_runs = BARRED_RUNS << self.unlearned_count.min(MOST_DOUBLINGS);
        self.unlearned_count = self.unlearned_count.saturating_add(1);
        self.start = Start::Nothing;
        self.reference = None;
        (self.trusted_runs, self.worse_runs) = (0, 0);
        self.why.clone()
    }

    /// Is a record that was read one that this code could have written?
    ///
    /// # Errors
    /// What is wrong with it: half a sentence.
    pub fn check(&self) -> Result<(), String> {
        if self.format != FORMAT {
            return Err(format!("it has format {}, not {FORMAT}", self.format));
        }
        if !self.key.is_storable() || self.key.node_count().is_none() {
            return Err("its key is none".to_owned());
        }
        let runs = [&self.reference, &self.last].into_iter().flatten();
        for run in runs {
            let figures = run.figures;
            let known = [figures.local_ratio, figures.imbalance, figures.latency_ns];
            let known = known.into_iter().flatten().chain([run.seconds]);
            let gains = run.kept.iter().filter_map(|kept| kept.gain_ns);
            if !known.chain(gains).all(f64::is_finite) || run.seconds < 0.0 {
                return Err("a figure in it is no number".to_owned());
            }
        }
        if self.start != Start::Nothing && self.reference.is_none() {
            return Err("it has a start and no run that it was learned from".to_owned());
        }
        Ok(())
    }

    /// Is it the program that a person means: by the name of its record, its path, or the name of its file?
    #[must_use]
    pub fn is_meant(&self, word: &str) -> bool {
        let file = self.key.program.rsplit('/').next();
        self.key.name() == word || self.key.program == word || file == Some(word)
    }

    /// Program and arguments, for a person.
    #[must_use]
    pub fn command(&self) -> String {
        let words = std::iter::once(&self.key.program).chain(&self.key.arguments);
        let words: Vec<&str> = words.map(String::as_str).collect();
        words.join(" ").shown().to_string()
    }
}

/// Why there is nothing to choose.
const ONE_NODE: &str = "one node has all of its memory";
