//! Exchange with other tools: recordings of theirs in, traces for theirs out. Pure: bytes to rows,
//! rows to text; any bytes are safe.
//!
//! | file | reads or writes |
//! |---|---|
//! | `damo` | damo's records: JSON, the same compressed by zlib |
//! | `trace` | trace lines of DAMON as perf, trace-cmd and damo print them |
//! | `perf` | memory samples of perf.data: `perf mem record`, `perf c2c record`, `perf record -d` |
//! | `perfetto` | trace events for ui.perfetto.dev |
//!
//! What is read takes memory in proportion to the file: no size in it is believed beyond the bytes
//! that are there, and what is compressed has a limit.

mod damo;
mod perf;
pub mod perfetto;
mod trace;

use crate::meta::{Meta, MetaNode, MetaTracker, RecordingEnd, SCHEMA};
use crate::rows::{Interval, Mapping, Process, Region, Sample};
use std::collections::BTreeMap;
use std::fmt;

/// Largest file that is imported, and largest content of a compressed one.
pub const MOST_BYTES: u64 = 1 << 30;

/// Whose file it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// damo's, in any of its forms.
    Damo,
    /// perf's.
    Perf,
}

/// Why a file cannot be imported: what, where, and how to mend it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Malformed {
    /// Bytes before the fault; of the content, where the file is compressed.
    pub offset: u64,
    /// What is wrong.
    pub reason: String,
    /// What would help.
    pub remedy: &'static str,
}

impl Malformed {
    fn new(offset: usize, reason: impl Into<String>, remedy: &'static str) -> Self {
        Self {
            offset: offset as u64,
            reason: reason.into(),
            remedy,
        }
    }
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            offset,
            reason,
            remedy,
        } = self;
        write!(f, "byte {offset}: {reason}; {remedy}")
    }
}

impl std::error::Error for Malformed {}

/// What a file holds, as rows of a recording.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Imported {
    /// What it tells of the machine and of the recording.
    pub about: About,
    /// Sampled accesses.
    pub samples: Vec<Sample>,
    /// Regions.
    pub regions: Vec<Region>,
    /// The whole as one interval, where losses are told.
    pub intervals: Vec<Interval>,
    /// Processes.
    pub processes: Vec<Process>,
    /// Mappings.
    pub mappings: Vec<Mapping>,
}

impl Imported {
    /// The notes that say what was left out.
    fn left_out(&self) -> impl Iterator<Item = &str> {
        let notes = self.about.notes.iter().map(String::as_str);
        notes.filter(|note| note.contains("left out"))
    }
}

/// What a file holds and a recording does not, by name, with how often.
#[derive(Debug, Default)]
struct LeftOut(BTreeMap<String, u64>);

impl LeftOut {
    /// Names that are told apart; the others count together.
    const MOST: usize = 8;

    fn add(&mut self, name: &str) {
        let is_known = self.0.contains_key(name) || self.0.len() < Self::MOST;
        let name = if is_known { name } else { "others" };
        *self.0.entry(name.to_owned()).or_default() += 1;
    }

    /// `left out: fields behind a region's age (probe_hits: 4)`.
    fn note(&self, what: &str) -> Option<String> {
        let list: Vec<String> = self
            .0
            .iter()
            .map(|(name, n)| format!("{name}: {n}"))
            .collect();
        (!list.is_empty()).then(|| format!("left out: {what} ({})", list.join(", ")))
    }
}

/// What a file tells of the machine and of the recording; empty, `None` or zero where it does not.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct About {
    /// When it began, in ms since 1970.
    pub began_unix_ms: Option<u64>,
    /// Its length.
    pub length_ns: u64,
    /// Length of an aggregation in us.
    pub interval_us: u64,
    /// Kernel release.
    pub kernel: String,
    /// Nodes, ascending.
    pub nodes: Vec<MetaNode>,
    /// Bytes in a cache line.
    pub line_bytes: Option<u32>,
    /// The command that was started.
    pub command: Vec<String>,
    /// What was watched, in words.
    pub watched: String,
    /// What recorded, and what its rows stand for.
    pub tracker: (&'static str, String),
    /// What could not be told or was left out.
    pub notes: Vec<String>,
}

impl About {
    /// The description of the recording that the file becomes.
    #[must_use]
    pub fn meta(&self, hither: &str) -> Meta {
        Meta {
            schema: SCHEMA.to_owned(),
            hither: hither.to_owned(),
            began_unix_ms: self.began_unix_ms,
            kernel: self.kernel.clone(),
            nodes: self.nodes.clone(),
            distances: Vec::new(),
            line_bytes: self.line_bytes,
            command: self.command.clone(),
            watched: self.watched.clone(),
            trackers: vec![MetaTracker {
                name: self.tracker.0.to_owned(),
                about: self.tracker.1.clone(),
            }],
            interval_us: self.interval_us,
            ended: Some(RecordingEnd {
                length_ns: self.length_ns,
                status: None,
                signal: None,
                own_user_us: None,
                own_system_us: None,
                watched_cpu_us: None,
                own_peak_kb: None,
                notes: self.notes.clone(),
            }),
        }
    }
}

/// Whose file it is, by its content.
///
/// # Errors
/// Nobody's that is known here.
pub fn detect(bytes: &[u8]) -> Result<Format, Malformed> {
    let first = bytes.iter().find(|byte| !byte.is_ascii_whitespace());
    match first {
        _ if perf::is_perf(bytes) => Ok(Format::Perf),
        _ if damo::is_zlib(bytes) || trace::is_trace(bytes) => Ok(Format::Damo),
        Some(b'[' | b'{') => Ok(Format::Damo),
        None => Err(Malformed::new(
            0,
            "the file is empty",
            "give a file of damo or perf that holds something",
        )),
        _ => Err(Malformed::new(
            0,
            "the content is of neither damo (JSON, zlib), nor perf (PERFILE2), nor lines of \
             damon_aggregated as perf or trace-cmd print them",
            "give a file that `damo record` or `perf mem record` wrote, or that text; unpack it \
             first if it is compressed otherwise",
        )),
    }
}

/// Reads a file.
///
/// # Errors
/// What is wrong where, and how to mend it; that it holds neither a sample nor a region.
pub fn import(bytes: &[u8], format: Format) -> Result<Imported, Malformed> {
    let imported = match format {
        Format::Damo if trace::is_trace(bytes) => trace::import(bytes),
        Format::Damo => damo::import(bytes),
        Format::Perf => perf::import(bytes),
    }?;
    if imported.samples.is_empty() && imported.regions.is_empty() {
        let why: Vec<&str> = imported.left_out().collect();
        let why = if why.is_empty() {
            String::new()
        } else {
            format!(" ({})", why.join("; "))
        };
        return Err(Malformed::new(
            bytes.len(),
            format!("the file ends without a sample or a region that could be imported{why}"),
            match format {
                Format::Damo => "record anew with `damo record`, for a second at least",
                Format::Perf => {
                    "record anew with `perf mem record` or `perf record -d`, in user \
                                 mode too"
                }
            },
        ));
    }
    Ok(imported)
}

#[cfg(test)]
mod tests;
