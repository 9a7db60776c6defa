//! The head of a perf.data file: which events, where their records are, and perf's features.
//!
//! Layout: tools/perf/Documentation/perf.data-file-format.txt of the kernel; features that it does
//! not describe, tools/perf/util/header.c.

use super::super::Malformed;
use super::bytes::{Bytes, part, u64_at};
use super::record::Layout;

pub(super) const MAGIC: &[u8; 8] = b"PERFILE2";
const SWAPPED: &[u8; 8] = b"2ELIFREP";
const OLD_MAGIC: &[u8; 8] = b"PERFFILE";
/// Bytes of the header; that of a pipe has 16.
const HEADER_BYTES: u64 = 104;
/// Bytes of the first release of an event's description.
const ATTR_BYTES: u64 = 64;
/// Bytes of a description's ids: where they are, and how many bytes.
const SECTION_BYTES: u64 = 16;
/// Nodes that are believed in: Linux has 1024 at most.
pub(super) const MOST_NODES: u64 = 1024;
pub(super) const REMEDY: &str = "give a file as `perf mem record` or `perf record -d` wrote it";

/// An event.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Event {
    pub layout: Layout,
    /// Its ids, one for each CPU or thread.
    pub ids: Vec<u64>,
}

/// The head.
#[derive(Debug)]
pub(super) struct Header<'a> {
    pub events: Vec<Event>,
    /// Where the records begin in the file.
    pub data_at: usize,
    pub data: &'a [u8],
    pub features: Features,
    pub notes: Vec<String>,
}

/// What perf wrote about the machine.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Features {
    pub host: String,
    pub kernel: String,
    pub version: String,
    pub cpu: String,
    pub command_line: Vec<String>,
    /// Names of the events.
    pub events: Vec<String>,
    pub nodes: Vec<FeatureNode>,
    pub line_bytes: Option<u32>,
    pub memory: Option<Memory>,
    /// Time of day and time of the events' clock at one moment, in ns.
    pub clocks: Option<(u64, u64)>,
}

#[derive(Debug, PartialEq)]
pub(super) struct FeatureNode {
    pub id: u32,
    pub total_bytes: u64,
    pub cpus: String,
}

/// Which node has which physical memory.
#[derive(Debug, PartialEq)]
pub(super) struct Memory {
    block_bytes: u64,
    /// Node, and a bit for each of its blocks.
    nodes: Vec<(u32, Vec<u64>)>,
}

impl Memory {
    /// The node of a physical address.
    pub fn node(&self, address: u64) -> Option<u32> {
        let block = address / self.block_bytes;
        let word = usize::try_from(block / 64).ok()?;
        let has = |bits: &[u64]| bits.get(word).is_some_and(|w| w >> (block % 64) & 1 == 1);
        let node = self.nodes.iter().find(|(_, bits)| has(bits));
        node.map(|&(node, _)| node)
    }
}

impl<'a> Header<'a> {
    pub fn read(file: &'a [u8]) -> Result<Self, Malformed> {
        let fault = |at: usize, what: String| Malformed::new(at, what, REMEDY);
        let magic = file.first_chunk::<8>();
        if magic == Some(SWAPPED) || magic == Some(OLD_MAGIC) {
            return Err(Malformed::new(
                0,
                "the file is of a machine of the other byte order, or of perf before Linux 3.6",
                "record with a perf of today on a little-endian machine",
            ));
        }
        if magic != Some(MAGIC) {
            return Err(fault(0, "this is no perf.data file".to_owned()));
        }
        let field = |at| u64_at(file, at);
        if field(8) == 16 {
            return Err(Malformed::new(
                8,
                "the file was written through a pipe, and has no table of events",
                "record with `perf record -o FILE`",
            ));
        }
        if (file.len() as u64) < HEADER_BYTES {
            let what = format!(
                "the header has {HEADER_BYTES} bytes, the file {}",
                file.len()
            );
            return Err(fault(0, what));
        }
        let entry = field(16);
        if entry < ATTR_BYTES + SECTION_BYTES {
            return Err(fault(
                16,
                format!("descriptions of events have {entry} bytes"),
            ));
        }
        let attrs = part(file, field(24), field(32))
            .ok_or_else(|| fault(24, "the events' descriptions lie beyond the end".to_owned()))?;
        let entries = attrs.chunks_exact(usize::try_from(entry).unwrap_or(usize::MAX));
        let mut header = Self {
            events: Vec::new(),
            data_at: 0,
            data: &[],
            features: Features::default(),
            notes: Vec::new(),
        };
        // A damaged file may name the same bytes as the ids of many events.
        let mut ids_left = file.len();
        for bytes in entries {
            let (attr, ids) = bytes.split_at(bytes.len() - SECTION_BYTES as usize);
            let ids = part(file, u64_at(ids, 0), u64_at(ids, 8)).ok_or_else(|| {
                fault(
                    24,
                    "ids of an event lie beyond the end of the file".to_owned(),
                )
            })?;
            ids_left = ids_left.checked_sub(ids.len()).ok_or_else(|| {
                fault(
                    24,
                    "the events have more ids than the file has room for".to_owned(),
                )
            })?;
            header.events.push(Event {
                layout: Layout::read(attr),
                ids: ids.chunks_exact(8).map(|id| u64_at(id, 0)).collect(),
            });
        }
        if header.events.is_empty() {
            return Err(fault(32, "the file describes no event".to_owned()));
        }
        header.find_data(file)?;
        header.read_features(file);
        Ok(header)
    }

    /// The records: as many as there are, where the file is cut off or was never closed.
    fn find_data(&mut self, file: &'a [u8]) -> Result<(), Malformed> {
        let (offset, size) = (u64_at(file, 40), u64_at(file, 48));
        let start = usize::try_from(offset).ok();
        let Some(rest) = start.and_then(|start| file.get(start..)) else {
            return Err(Malformed::new(
                40,
                format!("records begin at byte {offset}, beyond the end of the file"),
                REMEDY,
            ));
        };
        self.data_at = start.unwrap_or(0);
        self.data = match usize::try_from(size).ok().and_then(|size| rest.get(..size)) {
            Some([]) if !rest.is_empty() => {
                self.notes.push(
                    "perf did not close the file: what it had written until then is read"
                        .to_owned(),
                );
                rest
            }
            Some(data) => data,
            None => {
                self.notes.push(format!(
                    "the file is cut off: {size} bytes of records were written, {} are there",
                    rest.len()
                ));
                rest
            }
        };
        Ok(())
    }

    /// Behind the records, a section for each bit that is set. What is damaged is left out: the
    /// samples do not depend on it.
    fn read_features(&mut self, file: &[u8]) {
        let Some(start) = u64_at(file, 40).checked_add(u64_at(file, 48)) else {
            return;
        };
        if u64_at(file, 48) == 0 {
            return;
        }
        let bits =
            (0..256_usize).filter(|bit| u64_at(file, 72 + bit / 64 * 8) >> (bit % 64) & 1 == 1);
        let mut damaged = Vec::new();
        for (place, bit) in bits.enumerate() {
            let at = start.saturating_add(place as u64 * SECTION_BYTES);
            let content = part(file, at, SECTION_BYTES)
                .and_then(|section| part(file, u64_at(section, 0), u64_at(section, 8)));
            let read = content.and_then(|content| self.features.read(bit, Bytes(content)));
            if read.is_none() {
                damaged.push(bit.to_string());
            }
        }
        if !damaged.is_empty() {
            self.notes.push(format!(
                "the file's parts about the machine are damaged or missing (features {})",
                damaged.join(", ")
            ));
        }
    }
}

impl Features {
    /// Takes one; those of other numbers are not needed.
    fn read(&mut self, number: usize, mut bytes: Bytes<'_>) -> Option<()> {
        match number {
            3 => self.host = bytes.string()?,
            4 => self.kernel = bytes.string()?,
            5 => self.version = bytes.string()?,
            8 => self.cpu = bytes.string()?,
            11 => {
                for _ in 0..bytes.u32()? {
                    self.command_line.push(bytes.string()?);
                }
            }
            12 => {
                let (count, attr_bytes) = (bytes.u32()?, bytes.u32()?);
                for _ in 0..count {
                    bytes.take(u64::from(attr_bytes))?;
                    let ids = bytes.u32()?;
                    self.events.push(bytes.string()?);
                    bytes.take(u64::from(ids) * 8)?;
                }
            }
            14 => {
                for _ in 0..bytes.u32()? {
                    let (id, total_kb, _free_kb) = (bytes.u32()?, bytes.u64()?, bytes.u64()?);
                    self.nodes.push(FeatureNode {
                        id,
                        total_bytes: total_kb.saturating_mul(1 << 10),
                        cpus: bytes.string()?,
                    });
                }
            }
            20 => {
                let _version = bytes.u32()?;
                if bytes.u32()? > 0 {
                    let _level = bytes.u32()?;
                    let line = bytes.u32()?;
                    self.line_bytes = line.is_power_of_two().then_some(line);
                }
            }
            22 => self.memory = Some(memory(bytes)?),
            29 => {
                let (_version, _clock) = (bytes.u32()?, bytes.u32()?);
                self.clocks = Some((bytes.u64()?, bytes.u64()?));
            }
            _ => {}
        }
        Some(())
    }
}

fn memory(mut bytes: Bytes<'_>) -> Option<Memory> {
    let (_version, block_bytes, count) = (bytes.u64()?, bytes.u64()?, bytes.u64()?);
    let mut memory = Memory {
        block_bytes: (block_bytes > 0).then_some(block_bytes)?,
        nodes: Vec::new(),
    };
    for _ in 0..count.min(MOST_NODES) {
        let (node, _bits) = (bytes.u64()?, bytes.u64()?);
        let bits = bytes.u64()?;
        let words = bytes.take(bits.div_ceil(64).checked_mul(8)?)?;
        let words = words.chunks_exact(8).map(|word| u64_at(word, 0)).collect();
        memory.nodes.push((u32::try_from(node).ok()?, words));
    }
    Some(memory)
}
