//! What host and guest say to each other: frames over one virtio-serial port, and the job file.
//!
//! A frame is `sync u8 = 0xA7, kind u8, run u16, length u32, payload`, little-endian. The channel
//! is reliable and ordered, so there is no checksum; the sync byte and the bounds turn a bug or a
//! stray writer into a clear error at once. The job travels inside the guest image
//! (`/hither/job.json`), so the guest needs nothing from the host before its first frame.

use crate::devices::Devices;
use crate::measure::Point;
use crate::policies::Launch;
use hither_core::policy::Rung;
use serde::{Deserialize, Serialize};

/// Version of frames and job; both ends are the same binary, a mismatch is a packing bug.
pub const VERSION: u32 = 1;
/// Name of the virtio-serial port.
pub const PORT_NAME: &str = "hither";
/// Where the guest finds its job.
pub const JOB_PATH: &str = "/hither/job.json";
/// Where the guest finds the machine description: cache sizes and the like, which the emulated
/// hardware cannot express.
pub const MACHINE_PATH: &str = "/hither/machine.toml";
/// First byte of every frame.
pub const SYNC: u8 = 0xa7;
/// Bytes before the payload.
pub const HEADER_BYTES: usize = 8;
/// Longest payload. A timeline of an hour fits.
pub const MAX_PAYLOAD_BYTES: usize = 16 << 20;
/// Longest payload of data frames, so that output streams.
pub const CHUNK_BYTES: usize = 32 << 10;

macro_rules! kinds {
    ($($(#[$doc:meta])* $name:ident = $number:literal),* $(,)?) => {
        /// What a frame carries.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u8)]
        pub enum Kind { $($(#[$doc])* $name = $number),* }

        impl Kind {
            /// Every kind.
            pub const ALL: &'static [Kind] = &[$(Kind::$name),*];

            fn from_number(number: u8) -> Option<Self> {
                match number { $($number => Some(Self::$name),)* _ => None }
            }
        }
    };
}

kinds! {
    /// Guest: I am up. JSON [`Hello`].
    Hello = 1,
    /// Guest: bytes that the program wrote to its standard output.
    Stdout = 2,
    /// Guest: bytes that the program wrote to its standard error.
    Stderr = 3,
    /// Guest: the run is about to start. Empty.
    RunStarted = 4,
    /// Guest: the run has ended. JSON [`RunEnded`].
    RunEnded = 5,
    /// Guest: a file comes. JSON [`FileBegin`].
    FileBegin = 6,
    /// Guest: its next bytes.
    FileData = 7,
    /// Guest: the file is complete. Empty.
    FileEnd = 8,
    /// Guest: everything was sent. Empty.
    Done = 9,
    /// Guest: the agent cannot go on. Text.
    Fault = 10,
    /// Guest: one line for the person. Text.
    Notice = 11,
    /// Host: bytes for the program's standard input.
    Stdin = 32,
    /// Host: end of standard input. Empty.
    StdinEnd = 33,
    /// Host: everything arrived, power off. Empty.
    Bye = 34,
    /// Host: the terminal's size, u16 rows and u16 columns.
    WindowSize = 35,
}

/// One frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// What it carries.
    pub kind: Kind,
    /// Position in [`Job::runs`]; 0 where it does not matter.
    pub run: u16,
    /// Its content.
    pub payload: Vec<u8>,
}

/// Bytes that are no frame.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// The first byte is not [`SYNC`].
    #[error("byte {0:#04x} where a frame should start")]
    NoSync(u8),
    /// No such kind.
    #[error("frame of unknown kind {0}")]
    UnknownKind(u8),
    /// Longer than allowed.
    #[error("frame of {0} bytes, above the limit of {MAX_PAYLOAD_BYTES}")]
    TooLong(usize),
}

/// The header of a frame.
///
/// # Panics
/// Where the payload is longer than [`MAX_PAYLOAD_BYTES`]: a programmer's error.
#[must_use]
pub fn header(kind: Kind, run: u16, payload_bytes: usize) -> [u8; HEADER_BYTES] {
    assert!(
        payload_bytes <= MAX_PAYLOAD_BYTES,
        "frame of {payload_bytes} bytes"
    );
    let mut bytes = [0; HEADER_BYTES];
    bytes[0] = SYNC;
    bytes[1] = kind as u8;
    bytes[2..4].copy_from_slice(&run.to_le_bytes());
    bytes[4..8].copy_from_slice(&(payload_bytes as u32).to_le_bytes());
    bytes
}

/// A whole frame as bytes.
#[must_use]
pub fn encode(kind: Kind, run: u16, payload: &[u8]) -> Vec<u8> {
    let mut bytes = header(kind, run, payload.len()).to_vec();
    bytes.extend_from_slice(payload);
    bytes
}

/// Cuts a byte stream into frames.
#[derive(Debug, Default)]
pub struct Decoder {
    buffer: Vec<u8>,
    start: usize,
}

impl Decoder {
    /// Takes bytes as they arrive.
    pub fn push(&mut self, bytes: &[u8]) {
        // Moving the rest to the front only when half is consumed keeps this linear.
        if self.start > self.buffer.len() / 2 {
            self.buffer.drain(..self.start);
            self.start = 0;
        }
        self.buffer.extend_from_slice(bytes);
    }

    /// The next complete frame, if there is one.
    ///
    /// # Errors
    /// Where the bytes are no frame; the stream is then lost.
    pub fn next_frame(&mut self) -> Result<Option<Frame>, FrameError> {
        let bytes = &self.buffer[self.start..];
        if let Some(&first) = bytes.first()
            && first != SYNC
        {
            return Err(FrameError::NoSync(first));
        }
        if bytes.len() < HEADER_BYTES {
            return Ok(None);
        }
        let kind = Kind::from_number(bytes[1]).ok_or(FrameError::UnknownKind(bytes[1]))?;
        let run = u16::from_le_bytes([bytes[2], bytes[3]]);
        let length = u32::from_le_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]) as usize;
        if length > MAX_PAYLOAD_BYTES {
            return Err(FrameError::TooLong(length));
        }
        let Some(payload) = bytes.get(HEADER_BYTES..HEADER_BYTES + length) else {
            return Ok(None);
        };
        let frame = Frame {
            kind,
            run,
            payload: payload.to_vec(),
        };
        self.start += HEADER_BYTES + length;
        Ok(Some(frame))
    }

    /// Bytes that wait for the rest of their frame.
    #[must_use]
    pub fn pending_bytes(&self) -> usize {
        self.buffer.len() - self.start
    }
}

/// What the guest is to do.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Job {
    /// [`VERSION`].
    pub version: u32,
    /// Working directory; made where it does not exist.
    pub cwd: String,
    /// The program's whole environment.
    pub env: Vec<(String, String)>,
    /// Where its standard input comes from.
    pub stdin: Stdin,
    /// Runs, in order.
    pub runs: Vec<RunSpec>,
    /// Paths to send back after the last run.
    pub back: Vec<String>,
    /// Disk and network.
    #[serde(default)]
    pub devices: Devices,
    /// Milliseconds of guest time between two points of a run's timeline; 0 for none.
    pub sample_ms: u64,
    /// Is there an Opium device?
    pub opium: bool,
    /// CPU list of each node, by the kernel's number, `None` where it stays offline: checked at boot.
    pub node_cpus: Vec<Option<String>>,
    /// More arguments for `hither run`.
    pub hither_arguments: Vec<String>,
}

/// One run of a program.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RunSpec {
    /// Program and arguments.
    pub argv: Vec<String>,
    /// Path of the program in the guest, from [`Job::cwd`] where it is relative.
    pub program: String,
    /// Name of the policy.
    pub policy: String,
    /// How it is brought about.
    pub launch: Launch,
    /// What hither may decide by.
    pub evidence: Rung,
    /// hither learns, and begins with what was learned under the same policy on the same evidence.
    pub learns: bool,
    /// Put caches, balancing and memory into the same state first (needed between runs).
    pub reset: bool,
}

/// Where a program's standard input comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stdin {
    /// `/dev/null`.
    Null,
    /// The host's standard input, through frames.
    Pipe,
    /// A terminal; output then comes through it as well.
    Terminal,
}

/// First frame of the guest.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Hello {
    /// [`VERSION`] of the agent.
    pub version: u32,
    /// `uname -r`.
    pub kernel: String,
    /// Guest time since boot, in s.
    pub uptime_s: f64,
}

/// Result of one run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunEnded {
    /// Exit status as a shell has it: 128 + signal where a signal ended it.
    pub status: u8,
    /// `CLOCK_MONOTONIC` just before exec, in ns.
    pub start_ns: u64,
    /// `CLOCK_MONOTONIC` when its exit was seen, in ns.
    pub end_ns: u64,
    /// Counters at the start, at points between, and at the end; empty without Opium device.
    pub timeline: Vec<Point>,
    /// What `hither run --json` wrote.
    pub report: Option<serde_json::Value>,
}

/// Head of a file that comes back.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FileBegin {
    /// Position in [`Job::back`].
    pub asked: usize,
    /// Path below it, empty for a plain file; `/`-separated, never `..`.
    pub below: String,
    /// Permission bits.
    pub mode: u32,
}

#[cfg(test)]
mod tests;
