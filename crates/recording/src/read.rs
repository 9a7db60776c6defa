//! Reading a recording: all that is whole of it, and what is not.

use crate::error::{Error, Result};
use crate::meta::{Meta, SCHEMA};
use crate::pages::Budget;
use crate::table::{self, Row};
use crate::write::{META, SUMS, sum};
use bytes::Bytes;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// Largest segment that is read: this crate's own have some 2 MB.
const MOST_BYTES: u64 = 1 << 30;
/// Largest description: a command line has some MB at most.
const MOST_META_BYTES: u64 = 64 << 20;
/// Largest list of sums: of some 700,000 segments.
const MOST_SUMS_BYTES: u64 = 64 << 20;

/// A recording.
#[derive(Debug)]
pub struct Recording {
    folder: PathBuf,
    meta: Meta,
    /// Name of a segment to its sum.
    sums: BTreeMap<String, String>,
    notes: RefCell<Vec<String>>,
}

impl Recording {
    /// Opens the folder.
    ///
    /// # Errors
    /// It is no recording, or one of another version. Segments are looked at when they are read.
    pub fn open(folder: &Path) -> Result<Self> {
        const NO_RECORDING: &str = "give the folder that `hither record` wrote";
        let path = folder.join(META);
        let text = hither_files::read(&path, MOST_META_BYTES)
            .map_err(|error| Error::io(&path, "cannot be read", NO_RECORDING, error))?;
        let version: serde_json::Value = serde_json::from_slice(&text)
            .map_err(|error| Error::new(&path, format!("is no JSON ({error})"), NO_RECORDING))?;
        match version.get("schema").and_then(|schema| schema.as_str()) {
            Some(SCHEMA) => {}
            Some(other) => {
                return Err(Error::new(
                    &path,
                    format!("has schema `{other}`, this hither reads `{SCHEMA}`"),
                    "use the release of hither that wrote it",
                ));
            }
            None => return Err(Error::new(&path, "names no schema", NO_RECORDING)),
        }
        let meta = serde_json::from_value(version)
            .map_err(|error| Error::new(&path, format!("is damaged: {error}"), NO_RECORDING))?;
        let mut recording = Self {
            folder: folder.to_owned(),
            meta,
            sums: BTreeMap::new(),
            notes: RefCell::new(Vec::new()),
        };
        recording.read_sums();
        Ok(recording)
    }

    /// What was recorded where.
    #[must_use]
    pub fn meta(&self) -> &Meta {
        &self.meta
    }

    /// Sentences on what could not be read so far.
    #[must_use]
    pub fn notes(&self) -> Vec<String> {
        self.notes.borrow().clone()
    }

    /// All rows of a table, in the order in which they were written. A segment that is cut off,
    /// damaged or missing is left out, with a note.
    #[must_use]
    pub fn rows<R: Row>(&self) -> Vec<R> {
        let mut all = Vec::new();
        self.segments(|rows: &mut Vec<R>| all.append(rows));
        all
    }

    /// The same, segment by segment, for tables that are large.
    pub fn segments<R: Row>(&self, mut each: impl FnMut(&mut Vec<R>)) {
        let prefix = format!("{}-", R::TABLE);
        let mut rows = Vec::new();
        let mut budget = Budget::new();
        for (name, expected) in &self.sums {
            if !name.starts_with(&prefix) {
                continue;
            }
            rows.clear();
            match self.read_segment(name, expected, &mut budget, &mut rows) {
                Ok(()) => each(&mut rows),
                Err(why) => self.note(format!("{name} was left out: it {why}")),
            }
        }
    }

    fn read_segment<R: Row>(
        &self,
        name: &str,
        expected: &str,
        budget: &mut Budget,
        rows: &mut Vec<R>,
    ) -> std::result::Result<(), String> {
        let path = self.folder.join(name);
        let bytes = hither_files::read(&path, MOST_BYTES).map_err(|error| match error.kind() {
            ErrorKind::NotFound => "is missing".to_owned(),
            _ => format!("cannot be read ({error})"),
        })?;
        if sum(&bytes) != expected {
            return Err("does not have its sum: it is cut off or damaged".to_owned());
        }
        table::from_parquet(Bytes::from(bytes), budget, rows)
    }

    fn read_sums(&mut self) {
        let path = self.folder.join(SUMS);
        let text = match hither_files::read(&path, MOST_SUMS_BYTES) {
            Ok(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
            Err(error) => {
                self.note(format!(
                    "{SUMS} cannot be read ({error}): without it no segment is trusted"
                ));
                return;
            }
        };
        for line in text.lines() {
            // Names with a separator would lead out of the folder.
            match line.split_once("  ") {
                Some((sum, name)) if !name.contains('/') => {
                    self.sums.insert(name.to_owned(), sum.to_owned());
                }
                _ => self.note(format!("{SUMS} has a line that is none: it was left out")),
            }
        }
    }

    fn note(&self, note: String) {
        let mut notes = self.notes.borrow_mut();
        if !notes.contains(&note) {
            notes.push(note);
        }
    }
}
