//! `recording.json`: what was recorded where, and how it ended.

use serde::{Deserialize, Serialize};

/// The format's version: a reader refuses another one.
pub const SCHEMA: &str = "hither.recording/1";

/// The file's content.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Meta {
    /// [`SCHEMA`].
    pub schema: String,
    /// Release of hither that wrote it.
    pub hither: String,
    /// When it began, in ms since 1970; `null` where an imported file does not tell.
    pub began_unix_ms: Option<u64>,
    /// Kernel release.
    pub kernel: String,
    /// Nodes, ascending.
    pub nodes: Vec<MetaNode>,
    /// ACPI SLIT distances between them; empty where unknown.
    pub distances: Vec<Vec<u32>>,
    /// Bytes in a cache line; `null` where that is not known.
    pub line_bytes: Option<u32>,
    /// The command that was started; empty where running processes were watched.
    pub command: Vec<String>,
    /// What was watched, in words.
    pub watched: String,
    /// Where it came from.
    pub trackers: Vec<MetaTracker>,
    /// Length of an interval in us.
    pub interval_us: u64,
    /// How it ended; `null` where the recorder was killed, or still runs.
    pub ended: Option<RecordingEnd>,
}

/// A node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MetaNode {
    /// The kernel's number.
    pub id: u32,
    /// Its CPUs, as the kernel lists them (`0-3,8`); empty for memory alone.
    pub cpus: String,
    /// Its memory.
    pub total_bytes: u64,
    /// Physical addresses between which its memory lies, half-open, in bytes; empty where the recording
    /// has no physical addresses.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub spans: Vec<(u64, u64)>,
}

/// Bytes of a cache line where nobody tells: those of nearly every machine.
const LINE_BYTES: u32 = 64;

impl Meta {
    /// Bytes of a cache line, a power of two: as known, else 64.
    #[must_use]
    pub fn line_bytes(&self) -> u64 {
        let known = self.line_bytes.unwrap_or(LINE_BYTES);
        u64::from(known.max(8)).next_power_of_two()
    }

    /// The node that a physical address belongs to; `None` where no node's memory is known to lie
    /// there, or that of two.
    #[must_use]
    pub fn node_of(&self, physical: u64) -> Option<u32> {
        let holds = |node: &&MetaNode| {
            let mut spans = node.spans.iter();
            spans.any(|&(start, end)| (start..end).contains(&physical))
        };
        let mut holders = self.nodes.iter().filter(holds);
        let node = holders.next()?.id;
        holders.next().is_none().then_some(node)
    }
}

/// A tracker.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MetaTracker {
    /// Its name.
    pub name: String,
    /// What its samples stand for, in words.
    pub about: String,
}

/// The end of a recording.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RecordingEnd {
    /// Its length in ns.
    pub length_ns: u64,
    /// The command's exit status; `null` without a command.
    pub status: Option<u8>,
    /// The signal that ended it, or `null`.
    pub signal: Option<i32>,
    /// CPU time of hither itself, user mode, in us; `null` where another tool recorded.
    pub own_user_us: Option<u64>,
    /// The same in kernel mode.
    pub own_system_us: Option<u64>,
    /// CPU time of what was watched, in us; `null` where nobody knows.
    #[serde(default)]
    pub watched_cpu_us: Option<u64>,
    /// Largest resident set of hither in KiB.
    pub own_peak_kb: Option<u64>,
    /// Sentences of the trackers.
    pub notes: Vec<String>,
}

impl RecordingEnd {
    /// What the recording cost in CPU time, from the start of hither to its end, in us, where that is
    /// known.
    #[must_use]
    pub fn own_cpu_us(&self) -> Option<u64> {
        Some(self.own_user_us?.saturating_add(self.own_system_us?))
    }
}
