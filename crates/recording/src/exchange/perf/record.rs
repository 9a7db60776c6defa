//! Records of perf.data: samples, mappings, names, ends. Any bytes are safe.
//!
//! Samples hold the fields that their event asks for, in the fixed order of `linux/perf_event.h`;
//! other records of the kernel have the same ids behind them (`sample_id_all`).

use super::bytes::{Bytes, text, u64_at};

/// Bits of `sample_type`.
pub(super) mod field {
    pub const IP: u64 = 1 << 0;
    pub const TID: u64 = 1 << 1;
    pub const TIME: u64 = 1 << 2;
    pub const ADDR: u64 = 1 << 3;
    pub const READ: u64 = 1 << 4;
    pub const CALLCHAIN: u64 = 1 << 5;
    pub const ID: u64 = 1 << 6;
    pub const CPU: u64 = 1 << 7;
    pub const PERIOD: u64 = 1 << 8;
    pub const STREAM_ID: u64 = 1 << 9;
    pub const RAW: u64 = 1 << 10;
    pub const BRANCH_STACK: u64 = 1 << 11;
    pub const REGS_USER: u64 = 1 << 12;
    pub const STACK_USER: u64 = 1 << 13;
    pub const WEIGHT: u64 = 1 << 14;
    pub const DATA_SRC: u64 = 1 << 15;
    pub const IDENTIFIER: u64 = 1 << 16;
    pub const TRANSACTION: u64 = 1 << 17;
    pub const REGS_INTR: u64 = 1 << 18;
    pub const PHYS_ADDR: u64 = 1 << 19;
    pub const WEIGHT_STRUCT: u64 = 1 << 24;
}

/// Bits of `read_format`.
mod read {
    pub const ENABLED: u64 = 1 << 0;
    pub const RUNNING: u64 = 1 << 1;
    pub const ID: u64 = 1 << 2;
    pub const GROUP: u64 = 1 << 3;
    pub const LOST: u64 = 1 << 4;
}

/// Bit of an event's flags: records other than samples have ids.
const SAMPLE_ID_ALL: u64 = 1 << 18;
/// Bit of `branch_sample_type`: branch stacks begin with an index of the hardware.
const BRANCH_INDEX: u64 = 1 << 17;
/// Bit of `branch_sample_type`: branch stacks have a second list.
const BRANCH_COUNTERS: u64 = 1 << 19;
/// Bit of an MMAP's mode: a mapping of data.
const MODE_DATA: u16 = 1 << 13;
/// The same bit of a COMM's mode: by execve().
const MODE_EXEC: u16 = 1 << 13;
/// Bits of the mode that say where the CPU was.
const MODE_CPU: u16 = 7;
const MODE_USER: u16 = 2;
const MODE_KERNEL: u16 = 1;

/// How an event's records are laid out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Layout {
    pub is_tracepoint: bool,
    pub fields: u64,
    has_ids: bool,
    read_format: u64,
    branches: u64,
    user_registers: u64,
    interrupt_registers: u64,
    /// Events to a sample; `None` where their number changes from sample to sample.
    pub period: Option<u64>,
}

impl Layout {
    /// Of `struct perf_event_attr`.
    pub fn read(attr: &[u8]) -> Self {
        let flags = u64_at(attr, 40);
        Self {
            is_tracepoint: u64_at(attr, 0) & 0xffff_ffff == 2,
            fields: u64_at(attr, 24),
            has_ids: flags & SAMPLE_ID_ALL != 0,
            read_format: u64_at(attr, 32),
            branches: u64_at(attr, 72),
            user_registers: u64_at(attr, 80),
            interrupt_registers: u64_at(attr, 96),
            // Bit 10: the figure is a frequency.
            period: (flags >> 10 & 1 == 0).then(|| u64_at(attr, 16)),
        }
    }

    pub fn has(&self, field: u64) -> bool {
        self.fields & field == field
    }

    /// What its samples have and a recording has no room for.
    pub fn left_out(&self) -> impl Iterator<Item = &'static str> {
        let fields = [
            (field::CALLCHAIN, "call chains"),
            (field::STACK_USER, "stacks"),
            (field::REGS_USER, "registers"),
            (field::REGS_INTR, "registers"),
            (field::BRANCH_STACK, "branches"),
            (field::RAW, "raw data"),
            (field::READ, "counts"),
            (field::TRANSACTION, "transactions"),
            (field::PHYS_ADDR, "physical addresses"),
        ];
        let named = fields.into_iter().filter(|&(field, _)| self.has(field));
        named.map(|(_, name)| name)
    }

    /// Is the time of its accesses known, whose they are, and of what?
    pub fn tells_accesses(&self) -> bool {
        self.has(field::TID | field::TIME | field::ADDR)
    }

    /// Where a sample has its event's id, in bytes from its body.
    pub fn id_at(&self) -> Option<usize> {
        if self.has(field::IDENTIFIER) {
            return Some(0);
        }
        let before = field::IP | field::TID | field::TIME | field::ADDR;
        self.has(field::ID)
            .then(|| 8 * (self.fields & before).count_ones() as usize)
    }
}

/// A sample.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Access {
    pub code: Option<u64>,
    pub pid: i32,
    pub tid: i32,
    pub time_ns: u64,
    pub address: u64,
    pub cpu: Option<u32>,
    pub period: Option<u64>,
    /// What it took, in cycles of the CPU.
    pub weight: Option<u64>,
    pub data_source: Option<u64>,
    pub physical: Option<u64>,
}

/// What a record says; times are those behind it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Record {
    Sample(Access),
    Mapping {
        pid: i32,
        start: u64,
        bytes: u64,
        permissions: String,
        name: String,
        time_ns: u64,
    },
    Name {
        pid: i32,
        tid: i32,
        name: String,
        by_exec: bool,
        time_ns: u64,
    },
    Fork {
        pid: i32,
        parent: i32,
        time_ns: u64,
    },
    Exit {
        pid: i32,
        tid: i32,
        time_ns: u64,
    },
    Lost(u64),
    /// The kernel held samples back, as there were too many.
    Throttled,
    /// What the hardware traced by itself (Intel PT, Arm SPE), not decoded.
    Traced,
    /// So many bytes of other data follow.
    Followed(u64),
    /// Records in compressed form.
    Compressed,
    Other,
}

/// A record's first eight bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Head {
    pub kind: u32,
    pub mode: u16,
    /// Bytes, these eight included.
    pub size: u16,
}

pub(super) const HEAD_BYTES: usize = 8;
pub(super) const SAMPLE: u32 = 9;

impl Head {
    pub fn read(bytes: &[u8]) -> Option<Self> {
        let &[a, b, c, d, e, f, g, h] = bytes.first_chunk::<HEAD_BYTES>()?;
        Some(Self {
            kind: u32::from_le_bytes([a, b, c, d]),
            mode: u16::from_le_bytes([e, f]),
            size: u16::from_le_bytes([g, h]),
        })
    }
}

/// A record; `None` where it ends before its last field.
pub(super) fn decode(head: Head, body: &[u8], layout: &Layout) -> Option<Record> {
    let mut bytes = Bytes(body);
    let time_ns = || time_behind(body, layout);
    let pid = |number: u32| number.cast_signed();
    Some(match head.kind {
        SAMPLE => Record::Sample(sample(bytes, layout)?),
        1 | 10 => mapping(head, bytes, time_ns())?,
        2 => {
            let _id = bytes.u64()?;
            Record::Lost(bytes.u64()?)
        }
        3 => Record::Name {
            pid: pid(bytes.u32()?),
            tid: pid(bytes.u32()?),
            name: text(bytes.0),
            by_exec: head.mode & MODE_EXEC != 0,
            time_ns: time_ns(),
        },
        4 | 7 => {
            let (of, parent, tid) = (bytes.u32()?, bytes.u32()?, bytes.u32()?);
            let _parent_thread = bytes.u32()?;
            let time_ns = bytes.u64()?;
            match head.kind {
                4 => Record::Exit {
                    pid: pid(of),
                    tid: pid(tid),
                    time_ns,
                },
                _ => Record::Fork {
                    pid: pid(of),
                    parent: pid(parent),
                    time_ns,
                },
            }
        }
        13 => Record::Lost(bytes.u64()?),
        5 => Record::Throttled,
        11 => Record::Traced,
        71 => Record::Followed(bytes.u64()?),
        81 | 83 => Record::Compressed,
        _ => Record::Other,
    })
}

/// Is it a sample of a process's own code or of the kernel on its behalf? Guests and hypervisors
/// have other addresses.
pub(super) fn is_of_host(head: Head) -> bool {
    matches!(head.mode & MODE_CPU, MODE_USER | MODE_KERNEL)
}

/// The time among the ids behind a record that is no sample; 0 for what perf wrote itself.
fn time_behind(body: &[u8], layout: &Layout) -> u64 {
    use field::{CPU, ID, IDENTIFIER, STREAM_ID, TID, TIME};
    let ids = layout.fields & (TID | TIME | ID | STREAM_ID | CPU | IDENTIFIER);
    let bytes = 8 * ids.count_ones() as usize;
    if !layout.has_ids || !layout.has(TIME) || bytes > body.len() {
        return 0;
    }
    u64_at(
        body,
        body.len() - bytes + if layout.has(TID) { 8 } else { 0 },
    )
}

fn mapping(head: Head, mut bytes: Bytes<'_>, time_ns: u64) -> Option<Record> {
    let (pid, _tid) = (bytes.u32()?.cast_signed(), bytes.u32()?);
    let (start, length, _offset) = (bytes.u64()?, bytes.u64()?, bytes.u64()?);
    let permissions = if head.kind == 10 {
        // Device and inode with its generation, or a build id.
        bytes.take(24)?;
        let (protection, flags) = (bytes.u32()?, bytes.u32()?);
        let bit = |bit, yes, no| if protection & bit != 0 { yes } else { no };
        // MAP_SHARED is 1, MAP_SHARED_VALIDATE 3.
        let shared = if flags & 1 != 0 { 's' } else { 'p' };
        [bit(1, 'r', '-'), bit(2, 'w', '-'), bit(4, 'x', '-'), shared]
            .iter()
            .collect()
    } else {
        // The older record tells code from data, and no more.
        let kind = head.mode & MODE_DATA;
        if kind == 0 { "??x?" } else { "??-?" }.to_owned()
    };
    let name = match text(bytes.0) {
        name if name == "//anon" => String::new(),
        name => name,
    };
    Some(Record::Mapping {
        pid,
        start,
        bytes: length,
        permissions,
        name,
        time_ns,
    })
}

/// The fields of a sample in the kernel's order, up to the last that is needed.
fn sample(mut bytes: Bytes<'_>, layout: &Layout) -> Option<Access> {
    let asked = |field| layout.has(field);
    let mut access = Access::default();
    let skip = |bytes: &mut Bytes<'_>, field| match asked(field) {
        true => bytes.u64().map(drop),
        false => Some(()),
    };
    let word = |bytes: &mut Bytes<'_>, field| match asked(field) {
        true => bytes.u64().map(Some),
        false => Some(None),
    };
    skip(&mut bytes, field::IDENTIFIER)?;
    access.code = word(&mut bytes, field::IP)?;
    if asked(field::TID) {
        access.pid = bytes.u32()?.cast_signed();
        access.tid = bytes.u32()?.cast_signed();
    }
    access.time_ns = word(&mut bytes, field::TIME)?.unwrap_or(0);
    access.address = word(&mut bytes, field::ADDR)?.unwrap_or(0);
    skip(&mut bytes, field::ID)?;
    skip(&mut bytes, field::STREAM_ID)?;
    // The upper half is reserved.
    access.cpu = word(&mut bytes, field::CPU)?.map(|word| word as u32);
    access.period = word(&mut bytes, field::PERIOD)?.or(layout.period);
    if asked(field::READ) {
        skip_counts(&mut bytes, layout.read_format)?;
    }
    if asked(field::CALLCHAIN) {
        let count = bytes.u64()?;
        bytes.take(count.checked_mul(8)?)?;
    }
    if asked(field::RAW) {
        let size = bytes.u32()?;
        bytes.take(u64::from(size))?;
    }
    if asked(field::BRANCH_STACK) {
        let count = bytes.u64()?;
        bytes.take(if layout.branches & BRANCH_INDEX != 0 {
            8
        } else {
            0
        })?;
        bytes.take(count.checked_mul(24)?)?;
        let counters = layout.branches & BRANCH_COUNTERS != 0;
        bytes.take(if counters { count.checked_mul(8)? } else { 0 })?;
    }
    if asked(field::REGS_USER) {
        skip_registers(&mut bytes, layout.user_registers)?;
    }
    if asked(field::STACK_USER) {
        let size = bytes.u64()?;
        bytes.take(size)?;
        bytes.take(if size > 0 { 8 } else { 0 })?;
    }
    if asked(field::WEIGHT_STRUCT) {
        // 32 bits, then twice 16.
        access.weight = Some(bytes.u64()? & 0xffff_ffff);
    } else {
        access.weight = word(&mut bytes, field::WEIGHT)?;
    }
    access.data_source = word(&mut bytes, field::DATA_SRC)?;
    skip(&mut bytes, field::TRANSACTION)?;
    if asked(field::REGS_INTR) {
        skip_registers(&mut bytes, layout.interrupt_registers)?;
    }
    access.physical = word(&mut bytes, field::PHYS_ADDR)?;
    Some(access)
}

/// Registers: an ABI, and where that is one, a word for each bit.
fn skip_registers(bytes: &mut Bytes<'_>, mask: u64) -> Option<()> {
    let abi = bytes.u64()?;
    let count = if abi == 0 { 0 } else { mask.count_ones() };
    bytes.take(u64::from(count) * 8).map(drop)
}

/// Counts of the event, or of its group.
fn skip_counts(bytes: &mut Bytes<'_>, format: u64) -> Option<()> {
    let each = 1 + u64::from((format & (read::ID | read::LOST)).count_ones());
    let times = u64::from((format & (read::ENABLED | read::RUNNING)).count_ones());
    let counts = match format & read::GROUP != 0 {
        true => bytes.u64()?.checked_mul(each)?,
        false => each,
    };
    bytes
        .take(counts.checked_add(times)?.checked_mul(8)?)
        .map(drop)
}
