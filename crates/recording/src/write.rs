//! Writing a recording, segment by segment.

use crate::error::{Error, Result};
use crate::folder::Folder;
use crate::meta::Meta;
use crate::rows::{Allocation, Frame, Interval, Mapping, Node, Process, Region, Residency, Sample};
use crate::table::{self, Row};
use sha2::{Digest, Sha256};
use std::fs::File;
use std::io::Write as _;

/// Name of the description.
pub(crate) const META: &str = "recording.json";
/// Name of the sums.
pub(crate) const SUMS: &str = "SHA256SUMS";
/// Rows that make a segment: some 2 MB of samples.
const SEGMENT_ROWS: usize = 1 << 16;
/// A segment is closed after this time at the latest, in ns: what a kill may cost.
const SEGMENT_NS: u64 = 10_000_000_000;

/// Rows that have not been written yet.
#[doc(hidden)]
#[derive(Debug)]
pub struct Pending<R> {
    rows: Vec<R>,
    segments: u32,
}

impl<R> Default for Pending<R> {
    fn default() -> Self {
        Self {
            rows: Vec::new(),
            segments: 0,
        }
    }
}

/// Writes a recording. What is dropped without [`Writer::finish`] is as one that was killed.
#[derive(Debug)]
pub struct Writer {
    folder: Folder,
    sums: File,
    meta: Meta,
    written_ns: u64,
    samples: Pending<Sample>,
    regions: Pending<Region>,
    intervals: Pending<Interval>,
    nodes: Pending<Node>,
    residency: Pending<Residency>,
    processes: Pending<Process>,
    mappings: Pending<Mapping>,
    allocations: Pending<Allocation>,
    frames: Pending<Frame>,
}

/// Rows that a [`Writer`] takes.
pub trait Recorded: Row {
    #[doc(hidden)]
    fn pending(writer: &mut Writer) -> &mut Pending<Self>;
}

macro_rules! recorded {
    ($($row:ident: $field:ident,)*) => {
        $(impl Recorded for $row {
            fn pending(writer: &mut Writer) -> &mut Pending<Self> {
                &mut writer.$field
            }
        })*

        impl Writer {
            /// Writes what is pending.
            fn write_all(&mut self) -> Result<()> {
                $(self.write_segment::<$row>()?;)*
                Ok(())
            }
        }
    };
}

recorded! {
    Sample: samples,
    Region: regions,
    Interval: intervals,
    Node: nodes,
    Residency: residency,
    Process: processes,
    Mapping: mappings,
    Allocation: allocations,
    Frame: frames,
}

impl Writer {
    /// Begins a recording.
    ///
    /// # Errors
    /// The folder cannot be written.
    pub fn create(folder: Folder, meta: Meta) -> Result<Self> {
        let sums = folder.file(SUMS)?;
        let writer = Self {
            folder,
            sums,
            meta,
            written_ns: 0,
            samples: Pending::default(),
            regions: Pending::default(),
            intervals: Pending::default(),
            nodes: Pending::default(),
            residency: Pending::default(),
            processes: Pending::default(),
            mappings: Pending::default(),
            allocations: Pending::default(),
            frames: Pending::default(),
        };
        writer.write_meta()?;
        Ok(writer)
    }

    /// Where it is written.
    #[must_use]
    pub fn folder(&self) -> &Folder {
        &self.folder
    }

    /// The description, which [`Writer::finish`] writes again.
    pub fn meta_mut(&mut self) -> &mut Meta {
        &mut self.meta
    }

    /// Adds rows; writes a segment where there are enough.
    pub fn add<R: Recorded>(&mut self, rows: impl IntoIterator<Item = R>) -> Result<()> {
        let mut rows = rows.into_iter();
        loop {
            let pending = R::pending(self);
            // An import has all of its rows at once: they are no one segment.
            pending.rows.extend(rows.by_ref().take(SEGMENT_ROWS));
            if pending.rows.len() < SEGMENT_ROWS {
                return Ok(());
            }
            self.write_segment::<R>()?;
        }
    }

    /// Writes what has waited for so long that its loss would be felt; `now_ns` since the
    /// recording began.
    pub fn flush_due(&mut self, now_ns: u64) -> Result<()> {
        if now_ns.saturating_sub(self.written_ns) >= SEGMENT_NS {
            self.written_ns = now_ns;
            self.write_all()?;
        }
        Ok(())
    }

    /// Writes all that is pending and the description, so that they can be read while the recording
    /// goes on.
    pub fn flush(&mut self) -> Result<()> {
        self.write_all()?;
        self.write_meta()
    }

    /// Ends the recording: everything is written, and the description says how it ended.
    pub fn finish(mut self) -> Result<()> {
        self.flush()
    }

    /// Takes a recording of nothing away again: what was to be recorded could not begin.
    pub fn abandon(self) {
        self.folder.undo(&[META, SUMS]);
    }

    fn write_segment<R: Recorded>(&mut self) -> Result<()> {
        let pending = R::pending(self);
        if pending.rows.is_empty() {
            return Ok(());
        }
        let name = format!("{}-{:05}.parquet", R::TABLE, pending.segments);
        let bytes = table::to_parquet(&pending.rows);
        pending.rows.clear();
        pending.segments += 1;
        let path = self.folder.path().join(&name);
        let bytes = bytes.map_err(|error| {
            Error::new(&path, format!("cannot be encoded ({error})"), "report this")
        })?;
        // Its sum first: a segment that has its name has its sum too, wherever the kill comes.
        let line = format!("{}  {name}\n", sum(&bytes));
        self.sums
            .write_all(line.as_bytes())
            .map_err(|error| self.folder.cannot_be_written(SUMS, error))?;
        self.folder.replace(&name, &bytes)
    }

    fn write_meta(&self) -> Result<()> {
        let mut text = serde_json::to_vec_pretty(&self.meta).map_err(|error| {
            let path = self.folder.path().join(META);
            Error::new(&path, error.to_string(), "report this")
        })?;
        text.push(b'\n');
        self.folder.replace(META, &text)
    }
}

/// As sha256sum(1) prints it.
pub(crate) fn sum(bytes: &[u8]) -> String {
    Sha256::digest(bytes)
        .iter()
        .flat_map(|byte| [byte >> 4, byte & 15])
        .filter_map(|digit| char::from_digit(digit.into(), 16))
        .collect()
}
