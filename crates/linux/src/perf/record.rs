//! Records of a perf ring: from bytes to what they say. Pure; any bytes are safe.
//!
//! A record is a header (type, mode, size) and a body. Samples hold the fields that the event's
//! `sample_type` asks for, in the fixed order of `linux/perf_event.h`, with nothing that says
//! which: the caller must know. Records of other types are skipped by their size.

use std::fmt;

/// Bits of `sample_type`: what a sample holds.
pub mod field {
    /// Address of the instruction.
    pub const IP: u64 = 1 << 0;
    /// Process and thread.
    pub const TID: u64 = 1 << 1;
    /// Time.
    pub const TIME: u64 = 1 << 2;
    /// The address concerned.
    pub const ADDR: u64 = 1 << 3;
    /// Call chain.
    pub const CALLCHAIN: u64 = 1 << 5;
    /// Id of the event.
    pub const ID: u64 = 1 << 6;
    /// CPU.
    pub const CPU: u64 = 1 << 7;
    /// Events that the sample stands for.
    pub const PERIOD: u64 = 1 << 8;
    /// Id of the event's opening.
    pub const STREAM_ID: u64 = 1 << 9;
    /// What it took, one number.
    pub const WEIGHT: u64 = 1 << 14;
    /// Where it was served; see [`super::super::source`].
    pub const DATA_SRC: u64 = 1 << 15;
    /// Id of the event, first of all.
    pub const IDENTIFIER: u64 = 1 << 16;
    /// Transaction flags.
    pub const TRANSACTION: u64 = 1 << 17;
    /// Physical address.
    pub const PHYS_ADDR: u64 = 1 << 19;
    /// Control group.
    pub const CGROUP: u64 = 1 << 21;
    /// Size of the page of the address.
    pub const DATA_PAGE_SIZE: u64 = 1 << 22;
    /// Size of the page of the instruction.
    pub const CODE_PAGE_SIZE: u64 = 1 << 23;
    /// What it took, three numbers.
    pub const WEIGHT_STRUCT: u64 = 1 << 24;
    /// Fields that are read here. The others have lengths that depend on more than this word.
    pub const KNOWN: u64 = IP
        | TID
        | TIME
        | ADDR
        | CALLCHAIN
        | ID
        | CPU
        | PERIOD
        | STREAM_ID
        | WEIGHT
        | DATA_SRC
        | IDENTIFIER
        | TRANSACTION
        | PHYS_ADDR
        | CGROUP
        | DATA_PAGE_SIZE
        | CODE_PAGE_SIZE
        | WEIGHT_STRUCT;
}

/// Bytes of a record's header: `u32` type, `u16` mode, `u16` size of the whole record.
pub const HEADER_BYTES: usize = 8;

/// Types of records (`linux/perf_event.h`).
pub(crate) const RECORD_LOST: u32 = 2;
const RECORD_THROTTLE: u32 = 5;
const RECORD_UNTHROTTLE: u32 = 6;
pub(crate) const RECORD_SAMPLE: u32 = 9;
const RECORD_LOST_SAMPLES: u32 = 13;

/// Mode of a record: the low three bits of its header's second word.
const MODE_MASK: u16 = 7;
const MODE_USER: u16 = 2;

/// One sample; `None` where the event does not ask for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PerfSample {
    /// Was the CPU in user mode?
    pub is_user: bool,
    /// Address of the instruction.
    pub ip: Option<u64>,
    /// Process; -1 where it is in none of this process's name spaces.
    pub pid: Option<i32>,
    /// Thread.
    pub tid: Option<i32>,
    /// Time on the event's clock, in ns.
    pub time_ns: Option<u64>,
    /// The address concerned; 0 where the hardware did not know.
    pub address: Option<u64>,
    /// The CPU.
    pub cpu: Option<u32>,
    /// Events that it stands for.
    pub period: Option<u64>,
    /// What the access took, in the hardware's unit (Intel, AMD: cycles of the core).
    pub weight: Option<u64>,
    /// What the instruction took in all, where the hardware tells (Intel, from Alder Lake).
    pub instruction_weight: Option<u16>,
    /// Where it was served.
    pub data_source: Option<u64>,
    /// Physical address; 0 where the kernel does not tell.
    pub physical_address: Option<u64>,
    /// Size of the page of the address in bytes.
    pub page_bytes: Option<u64>,
}

/// What a record says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Record {
    /// A sample.
    Sample(PerfSample),
    /// So many records did not fit into the ring.
    Lost(u64),
    /// The kernel stops (true) or resumes sampling, because there were too many samples.
    Throttled(bool),
    /// A record of another type, which is skipped: mappings, commands, forks, exits.
    Other(u32),
}

/// Why bytes are no record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Malformed {
    /// Fewer bytes than a header has.
    NoHeader {
        /// How many there are.
        left: usize,
    },
    /// A size below that of a header, or one that is no multiple of 8.
    BadSize {
        /// The size.
        size: u16,
    },
    /// A size beyond the end of the bytes.
    PastTheEnd {
        /// The size.
        size: u16,
        /// Bytes that there are.
        left: usize,
    },
    /// The body is shorter than its fields.
    ShortBody {
        /// Type of the record.
        kind: u32,
        /// Its size.
        size: usize,
    },
    /// `sample_type` asks for fields that are not read here.
    UnknownFields {
        /// Their bits.
        bits: u64,
    },
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoHeader { left } => write!(f, "{left} bytes are left, a header has 8"),
            Self::BadSize { size } => {
                write!(f, "a record's size is {size}, which no record has")
            }
            Self::PastTheEnd { size, left } => {
                write!(
                    f,
                    "a record's size is {size}, and there are {left} bytes left"
                )
            }
            Self::ShortBody { kind, size } => {
                write!(
                    f,
                    "a record of type {kind} ends after {size} bytes, before its last field"
                )
            }
            Self::UnknownFields { bits } => {
                write!(f, "samples hold fields {bits:#x}, which are not read here")
            }
        }
    }
}

impl std::error::Error for Malformed {}

/// A record, and what follows it.
type RecordAndRest<'a> = (&'a [u8], &'a [u8]);

/// The first record of `bytes`, and what follows it; `None` at the end.
///
/// # Errors
/// Where there is no whole record: the rest is of no use then, as nothing tells where the next
/// one begins.
pub fn split(bytes: &[u8]) -> Result<Option<RecordAndRest<'_>>, Malformed> {
    if bytes.is_empty() {
        return Ok(None);
    }
    let left = bytes.len();
    let header: &[u8; HEADER_BYTES] = bytes.first_chunk().ok_or(Malformed::NoHeader { left })?;
    let size = u16::from_ne_bytes([header[6], header[7]]);
    if usize::from(size) < HEADER_BYTES || !size.is_multiple_of(8) {
        return Err(Malformed::BadSize { size });
    }
    match bytes.split_at_checked(usize::from(size)) {
        Some((record, rest)) => Ok(Some((record, rest))),
        None => Err(Malformed::PastTheEnd { size, left }),
    }
}

/// What one whole record says, as [`split`] found it. `sample_type` is that of the event.
///
/// # Errors
/// Where the record is shorter than what it must hold.
pub fn decode(record: &[u8], sample_type: u64) -> Result<Record, Malformed> {
    let left = record.len();
    let header: &[u8; HEADER_BYTES] = record.first_chunk().ok_or(Malformed::NoHeader { left })?;
    let kind = u32::from_ne_bytes([header[0], header[1], header[2], header[3]]);
    let mode = u16::from_ne_bytes([header[4], header[5]]);
    let mut body = Body(&record[HEADER_BYTES..]);
    let found = match kind {
        RECORD_SAMPLE => {
            let bits = sample_type & !field::KNOWN;
            if bits != 0 {
                return Err(Malformed::UnknownFields { bits });
            }
            sample(&mut body, sample_type, mode).map(Record::Sample)
        }
        // The id of the event comes first.
        RECORD_LOST => body.word().and_then(|_| body.word()).map(Record::Lost),
        RECORD_LOST_SAMPLES => body.word().map(Record::Lost),
        RECORD_THROTTLE => Some(Record::Throttled(true)),
        RECORD_UNTHROTTLE => Some(Record::Throttled(false)),
        other => Some(Record::Other(other)),
    };
    found.ok_or(Malformed::ShortBody { kind, size: left })
}

/// The fields of a sample in the kernel's order.
fn sample(body: &mut Body<'_>, sample_type: u64, mode: u16) -> Option<PerfSample> {
    let asked = |bit| sample_type & bit != 0;
    let mut sample = PerfSample {
        is_user: mode & MODE_MASK == MODE_USER,
        ..PerfSample::default()
    };
    body.skip(asked(field::IDENTIFIER))?;
    sample.ip = body.word_if(asked(field::IP))?;
    if let Some((pid, tid)) = body.pair_if(asked(field::TID))? {
        (sample.pid, sample.tid) = (Some(pid as i32), Some(tid as i32));
    }
    sample.time_ns = body.word_if(asked(field::TIME))?;
    sample.address = body.word_if(asked(field::ADDR))?;
    body.skip(asked(field::ID))?;
    body.skip(asked(field::STREAM_ID))?;
    sample.cpu = body.pair_if(asked(field::CPU))?.map(|(cpu, _)| cpu);
    sample.period = body.word_if(asked(field::PERIOD))?;
    if asked(field::CALLCHAIN) {
        let count = body.word()?;
        body.0 = body.0.get(usize::try_from(count.checked_mul(8)?).ok()?..)?;
    }
    if asked(field::WEIGHT_STRUCT) {
        let (low, high) = weights(body.word()?);
        (sample.weight, sample.instruction_weight) = (Some(low), Some(high));
    } else {
        sample.weight = body.word_if(asked(field::WEIGHT))?;
    }
    sample.data_source = body.word_if(asked(field::DATA_SRC))?;
    body.skip(asked(field::TRANSACTION))?;
    sample.physical_address = body.word_if(asked(field::PHYS_ADDR))?;
    body.skip(asked(field::CGROUP))?;
    sample.page_bytes = body.word_if(asked(field::DATA_PAGE_SIZE))?;
    body.skip(asked(field::CODE_PAGE_SIZE))?;
    Some(sample)
}

/// `union perf_sample_weight`: 32 bits, then 16 and 16, from the low end on machines of either
/// byte order.
fn weights(word: u64) -> (u64, u16) {
    (word & 0xffff_ffff, (word >> 32) as u16)
}

/// What is left of a record.
struct Body<'a>(&'a [u8]);

impl Body<'_> {
    fn word(&mut self) -> Option<u64> {
        let (word, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u64::from_ne_bytes(*word))
    }

    /// The next word where it was asked for; the outer `None`: it is missing.
    fn word_if(&mut self, asked: bool) -> Option<Option<u64>> {
        match asked {
            true => self.word().map(Some),
            false => Some(None),
        }
    }

    fn skip(&mut self, asked: bool) -> Option<()> {
        self.word_if(asked).map(drop)
    }

    /// Two half words.
    fn pair_if(&mut self, asked: bool) -> Option<Option<(u32, u32)>> {
        let Some(word) = self.word_if(asked)? else {
            return Some(None);
        };
        let [a, b, c, d, e, f, g, h] = word.to_ne_bytes();
        let half = u32::from_ne_bytes;
        Some(Some((half([a, b, c, d]), half([e, f, g, h]))))
    }
}

#[cfg(test)]
mod tests;
