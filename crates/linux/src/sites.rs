//! Logs of allocation sites, as the preload shim leaves them (layout: [`hither_core::sites`]).
//!
//! [`decode`] reads any bytes: of a process that was killed while it wrote, of one that still
//! writes, or of no log at all. What is not whole is left out and counted.

use crate::error::{Error, Result};
use hither_core::sites::{
    BODY, HEADER_BYTES, How, MAGIC, MAX_FRAMES, SLOT_BYTES, SLOT_FRAMES, SLOT_TEXT, VERSION,
    header, kind,
};
use std::collections::BTreeMap;
use std::io::Read;
use std::ops::Range;
use std::path::Path;

/// Most bytes of a log that are read. A shim writes 64 MiB unless it is told otherwise.
const MOST_BYTES: u64 = 4 << 30;

/// A log, decoded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sites {
    /// The process.
    pub pid: i32,
    /// Its parent when the log was begun.
    pub parent: i32,
    /// When the log was begun, with the first large allocation; ns of CLOCK_MONOTONIC, as all times.
    pub start_ns: u64,
    /// Smallest allocation that was recorded.
    pub threshold_bytes: u64,
    /// What happened, by time.
    pub events: Vec<SiteEvent>,
    /// Call stacks by number.
    pub stacks: BTreeMap<u32, Stack>,
    /// Loaded objects, by time.
    pub modules: Vec<Module>,
    /// What found no room in the log, or not in the shim's table of live allocations.
    pub dropped: Dropped,
    /// Sentences about what was not whole.
    pub notes: Vec<String>,
}

/// Records that a log does not hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Dropped {
    /// Allocations.
    pub allocation_count: u64,
    /// Others: ends of allocations, call stacks, loaded objects.
    pub other_count: u64,
}

/// Something that happened to memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SiteEvent {
    /// When: of an allocation when it was done, of all else when it was begun.
    pub time_ns: u64,
    /// The thread that did it; 0 for the end of heap memory, which does not tell.
    pub tid: i32,
    /// What.
    pub change: Change,
}

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Memory was given to the program.
    Allocated {
        /// How.
        how: How,
        /// First address.
        address: u64,
        /// Bytes that were asked for.
        bytes: u64,
        /// Number of the call stack; 0, or one that is missing, where none was written.
        site: u32,
    },
    /// Heap memory was given back.
    Freed {
        /// First address.
        address: u64,
    },
    /// A range of addresses was unmapped, or mapped anew.
    Unmapped {
        /// First address.
        address: u64,
        /// Bytes.
        bytes: u64,
    },
}

/// A call stack.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stack {
    /// When it was first seen.
    pub time_ns: u64,
    /// Return addresses, innermost first. 0 where a part is missing.
    pub frames: Vec<u64>,
}

/// An object that was loaded: the program, a library.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Module {
    /// When it was listed: some time after it was loaded.
    pub time_ns: u64,
    /// What was added to the file's own addresses.
    pub bias: u64,
    /// Where it lies.
    pub addresses: Range<u64>,
    /// Which build of it; empty for files without.
    pub build_id: Vec<u8>,
    /// Absolute path, or a name for what has no file (`linux-vdso.so.1`).
    pub path: String,
}

/// An allocation from beginning to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SiteAllocation {
    /// How memory was asked for.
    pub how: How,
    /// Number of the call stack.
    pub site: u32,
    /// The thread that allocated.
    pub tid: i32,
    /// First address.
    pub address: u64,
    /// Bytes that were asked for.
    pub bytes: u64,
    /// When it was there.
    pub start_ns: u64,
    /// When it went; `None` for what lived to the end of the log.
    pub end_ns: Option<u64>,
}

/// Reads a log from its file.
///
/// # Errors
/// The file cannot be read, or is no log of this version.
pub fn read(path: &Path) -> Result<Sites> {
    let mut bytes = Vec::new();
    hither_files::open(path)
        .and_then(|file| file.take(MOST_BYTES).read_to_end(&mut bytes))
        .map_err(|error| {
            let remedy = "read it as the user who recorded it";
            Error::io(path, "cannot be read", remedy, error)
        })?;
    decode(&bytes).map_err(|reason| {
        let remedy = "record again with the shim and the hither of one build";
        Error::new(path, reason, remedy)
    })
}

/// Decodes a log. Any bytes are an answer.
///
/// # Errors
/// What they are instead of a log of this version.
pub fn decode(bytes: &[u8]) -> std::result::Result<Sites, String> {
    if word64(bytes, header::MAGIC) != Some(MAGIC) {
        return Err("is no log of allocation sites, or was not begun".into());
    }
    let version = word32(bytes, header::VERSION).unwrap_or(0);
    if version != VERSION {
        return Err(format!(
            "is a log of version {version}; this hither reads version {VERSION}"
        ));
    }
    let field = |offset| word64(bytes, offset).unwrap_or(0);
    let sites = Sites {
        pid: word32(bytes, header::PID).unwrap_or(0) as i32,
        parent: word32(bytes, header::PARENT).unwrap_or(0) as i32,
        start_ns: field(header::START_NS),
        threshold_bytes: field(header::THRESHOLD_BYTES),
        dropped: Dropped {
            allocation_count: field(header::DROPPED_ALLOCATIONS),
            other_count: field(header::DROPPED_OTHERS),
        },
        ..Sites::default()
    };
    let mut decoder = Decoder {
        sites,
        ..Decoder::default()
    };
    let used = field(header::NEXT_SLOT).saturating_mul(SLOT_BYTES as u64);
    let slots = bytes.get(HEADER_BYTES..).unwrap_or(&[]);
    let used = usize::try_from(used).unwrap_or(usize::MAX).min(slots.len());
    let mut slots = slots[..used].chunks_exact(SLOT_BYTES);
    for slot in &mut slots {
        decoder.slot(slot);
    }
    if !slots.remainder().is_empty() {
        decoder.unwritten_count += 1;
    }
    Ok(decoder.finish())
}

fn word64(bytes: &[u8], offset: usize) -> Option<u64> {
    let bytes = bytes.get(offset..offset.checked_add(8)?)?;
    Some(u64::from_le_bytes(bytes.try_into().ok()?))
}

fn word32(bytes: &[u8], offset: usize) -> Option<u32> {
    let bytes = bytes.get(offset..offset.checked_add(4)?)?;
    Some(u32::from_le_bytes(bytes.try_into().ok()?))
}

/// A module whose parts are being gathered.
#[derive(Default)]
struct Parts {
    module: Option<Module>,
    build_id_bytes: usize,
    path_bytes: usize,
    text: BTreeMap<u8, Vec<u8>>,
}

#[derive(Default)]
struct Decoder {
    sites: Sites,
    modules: BTreeMap<u32, Parts>,
    unwritten_count: u64,
    unknown_count: u64,
}

impl Decoder {
    fn slot(&mut self, slot: &[u8]) {
        let word = |index: usize| word64(slot, BODY + 8 * index).unwrap_or(0);
        let (kind, a) = (slot[0], slot[1]);
        let b = u16::from_le_bytes([slot[2], slot[3]]);
        let c = word32(slot, 4).unwrap_or(0);
        let time_ns = word64(slot, 8).unwrap_or(0);
        let change = match kind {
            // Asked for, and never written: the writer was killed, or is writing it now.
            0 => return self.unwritten_count += 1,
            kind::ALLOCATION => match How::from_number(a) {
                Some(how) => Change::Allocated {
                    how,
                    address: word(0),
                    bytes: word(1),
                    site: word(2) as u32,
                },
                None => return self.unknown_count += 1,
            },
            kind::FREE => Change::Freed { address: word(0) },
            kind::UNMAP => Change::Unmapped {
                address: word(0),
                bytes: word(1),
            },
            kind::SITE => return self.stack(slot, usize::from(a), usize::from(b), c, time_ns),
            kind::MODULE => return self.module(slot, a, c, time_ns),
            _ => return self.unknown_count += 1,
        };
        self.sites.events.push(SiteEvent {
            time_ns,
            tid: c as i32,
            change,
        });
    }

    fn stack(&mut self, slot: &[u8], count: usize, first: usize, number: u32, time_ns: u64) {
        let end = first + count;
        if count > SLOT_FRAMES || end > MAX_FRAMES {
            return self.unknown_count += 1;
        }
        let stack = self.sites.stacks.entry(number).or_default();
        stack.time_ns = time_ns;
        if stack.frames.len() < end {
            stack.frames.resize(end, 0);
        }
        for (index, frame) in stack.frames[first..end].iter_mut().enumerate() {
            *frame = word64(slot, BODY + 8 * index).unwrap_or(0);
        }
    }

    fn module(&mut self, slot: &[u8], part: u8, number: u32, time_ns: u64) {
        let parts = self.modules.entry(number).or_default();
        if part > 0 {
            parts
                .text
                .insert(part, slot[BODY..BODY + SLOT_TEXT].to_vec());
            return;
        }
        let word = |index: usize| word64(slot, BODY + 8 * index).unwrap_or(0);
        parts.build_id_bytes = usize::from(word(3) as u16);
        parts.path_bytes = usize::from((word(3) >> 16) as u16);
        parts.module = Some(Module {
            time_ns,
            bias: word(0),
            addresses: word(1)..word(2),
            ..Module::default()
        });
    }

    fn finish(mut self) -> Sites {
        for parts in std::mem::take(&mut self.modules).into_values() {
            match parts.whole() {
                Some(module) => self.sites.modules.push(module),
                None => self.unwritten_count += 1,
            }
        }
        let mut sites = self.sites;
        // Threads write in any order. What ended is told with the time before it ended, what began
        // with the time after: so the order by time is right for each address.
        sites.events.sort_by_key(|event| event.time_ns);
        sites.modules.sort_by_key(|module| module.time_ns);
        let mut note = |count: u64, text: &str| {
            if count > 0 {
                sites.notes.push(format!("{count} {text}"));
            }
        };
        note(
            self.unwritten_count,
            "record(s) were not written to their end: the process was killed or is running",
        );
        note(
            self.unknown_count,
            "record(s) cannot be read: the file was damaged",
        );
        note(
            sites.dropped.allocation_count,
            "allocation(s) found no room in the log",
        );
        note(
            sites.dropped.other_count,
            "other record(s) found no room in the log",
        );
        sites
    }
}

impl Parts {
    fn whole(self) -> Option<Module> {
        let mut module = self.module?;
        let length = self.build_id_bytes + self.path_bytes;
        let mut text = Vec::new();
        for part in 1..=length.div_ceil(SLOT_TEXT) {
            text.extend(self.text.get(&u8::try_from(part).ok()?)?);
        }
        module.build_id = text.get(..self.build_id_bytes)?.to_vec();
        let path = text.get(self.build_id_bytes..length)?;
        module.path = String::from_utf8_lossy(path).into_owned();
        Some(module)
    }
}

impl Sites {
    /// Every allocation with its end, in the order of their beginnings.
    #[must_use]
    pub fn allocations(&self) -> Vec<SiteAllocation> {
        let mut allocations = Vec::<SiteAllocation>::new();
        // Heap memory by its address; mapped memory by pieces that are still mapped: first address
        // to end and allocation.
        let mut heap = BTreeMap::<u64, usize>::new();
        let mut mapped = BTreeMap::<u64, (u64, usize)>::new();
        let mut mapped_bytes = BTreeMap::<usize, u64>::new();
        for event in &self.events {
            let ended = Some(event.time_ns);
            match event.change {
                Change::Allocated {
                    how,
                    address,
                    bytes,
                    site,
                } => {
                    let index = allocations.len();
                    allocations.push(SiteAllocation {
                        how,
                        site,
                        tid: event.tid,
                        address,
                        bytes,
                        start_ns: event.time_ns,
                        end_ns: None,
                    });
                    if how.is_mapping() {
                        for gone in unmap(&mut mapped, &mut mapped_bytes, address, bytes) {
                            allocations[gone].end_ns = ended;
                        }
                        let end = address.saturating_add(bytes);
                        mapped.insert(address, (end, index));
                        mapped_bytes.insert(index, end - address);
                    } else if let Some(lost) = heap.insert(address, index) {
                        // Its end was not recorded: it is here at the latest.
                        allocations[lost].end_ns = ended;
                    }
                }
                // In a forked child, what its parent had allocated.
                Change::Freed { address } => {
                    if let Some(index) = heap.remove(&address) {
                        allocations[index].end_ns = ended;
                    }
                }
                Change::Unmapped { address, bytes } => {
                    // The kernel unmaps whole pages.
                    let bytes = bytes.checked_next_multiple_of(4096).unwrap_or(bytes);
                    for gone in unmap(&mut mapped, &mut mapped_bytes, address, bytes) {
                        allocations[gone].end_ns = ended;
                    }
                }
            }
        }
        allocations
    }

    /// The object that covered an address at a time, so far as it was listed.
    #[must_use]
    pub fn module_at(&self, address: u64, time_ns: u64) -> Option<&Module> {
        let covers = |module: &&Module| module.addresses.contains(&address);
        let before = |module: &&Module| covers(module) && module.time_ns <= time_ns;
        let found = self.modules.iter().rfind(before);
        found.or_else(|| self.modules.iter().find(covers))
    }
}

/// Takes a range away from the pieces, and returns the allocations of which nothing is left.
fn unmap(
    pieces: &mut BTreeMap<u64, (u64, usize)>,
    left_bytes: &mut BTreeMap<usize, u64>,
    address: u64,
    bytes: u64,
) -> Vec<usize> {
    let range = address..address.saturating_add(bytes);
    let mut gone = Vec::new();
    loop {
        // The last piece that begins before the range's end.
        let found = pieces.range(..range.end).next_back();
        let Some((&start, &(end, index))) = found.filter(|(_, (end, _))| *end > range.start) else {
            return gone;
        };
        pieces.remove(&start);
        let mut left = 0;
        for (from, to) in [(start, range.start), (range.end, end)] {
            if from < to {
                pieces.insert(from, (to, index));
                left += to - from;
            }
        }
        if let Some(bytes) = left_bytes.get_mut(&index) {
            *bytes = bytes.saturating_sub(end - start - left);
            if *bytes == 0 {
                left_bytes.remove(&index);
                gone.push(index);
            }
        }
        if start < range.start {
            return gone;
        }
    }
}

#[cfg(test)]
mod tests;
