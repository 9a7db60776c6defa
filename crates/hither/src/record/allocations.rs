//! Allocation sites of the command, as rows of the recording.

use crate::sites::{self, ProcessSites, Shim};
use hither_recording::rows::{Allocation, Frame};
use hither_recording::{Folder, Writer};
use std::collections::HashMap;
use std::process;

/// Folder of the logs inside the recording; it stays where the recorder is killed.
const FOLDER: &str = "sites";

/// Allocations that are recorded by the shim.
pub struct Allocations {
    shim: Shim,
    recording: Folder,
    threshold_bytes: u64,
}

impl Allocations {
    /// Finds the shim; logs go into the recording's folder.
    pub fn new(recording: &Folder, threshold_bytes: u64) -> anyhow::Result<Self> {
        Ok(Self {
            shim: Shim::find()?,
            recording: recording.clone(),
            threshold_bytes,
        })
    }

    /// Has the command write logs.
    pub fn attach(&self, command: &mut process::Command) -> anyhow::Result<()> {
        let folder = self.recording.make_inner(FOLDER)?;
        self.shim.attach(command, &folder, self.threshold_bytes);
        Ok(())
    }

    /// Takes the logs away again, without reading them.
    pub fn abandon(&self) {
        self.recording.remove_inner(FOLDER);
    }

    /// Reads the logs into the recording and takes them away; returns what is missing.
    pub fn write(&self, writer: &mut Writer, start_ns: u64) -> anyhow::Result<Vec<String>> {
        let rows = self.rows(start_ns)?;
        writer.add(rows.allocations)?;
        writer.add(rows.frames)?;
        self.abandon();
        Ok(rows.notes)
    }

    /// What the logs hold by now, by time; `start_ns` is the recording's zero.
    pub fn rows(&self, start_ns: u64) -> anyhow::Result<Rows> {
        let processes = sites::collect(&self.recording.lasting_path().join(FOLDER))?;
        let mut rows = Rows::default();
        // A process that executes another program has sites of both.
        let mut taken: HashMap<i32, u32> = HashMap::new();
        for process in &processes {
            let first = taken.entry(process.pid).or_default();
            rows.allocations
                .extend(allocations(process, *first, start_ns));
            rows.frames.extend(frames(process, *first));
            *first += process.sites.len() as u32;
            rows.notes.extend(process.notes.iter().cloned());
            if process.dropped_count > 0 {
                rows.notes.push(format!(
                    "{} allocations of process {} found no room in its log",
                    process.dropped_count, process.pid
                ));
            }
        }
        rows.allocations.sort_by_key(|row| row.start_ns);
        rows.notes.dedup();
        Ok(rows)
    }
}

/// Rows of a recording.
#[derive(Default)]
pub struct Rows {
    /// By time.
    pub allocations: Vec<Allocation>,
    /// Of their sites.
    pub frames: Vec<Frame>,
    /// What is missing.
    pub notes: Vec<String>,
}

fn allocations(process: &ProcessSites, first: u32, start_ns: u64) -> Vec<Allocation> {
    let row = |allocation: &sites::Allocation| Allocation {
        pid: process.pid,
        tid: allocation.tid,
        address: allocation.address,
        bytes: allocation.bytes,
        start_ns: allocation.start_ns.saturating_sub(start_ns),
        end_ns: allocation.end_ns.map(|end| end.saturating_sub(start_ns)),
        site: first + allocation.site as u32,
        is_mapping: allocation.how.is_mapping(),
    };
    process.allocations.iter().map(row).collect()
}

/// From the program's own innermost frame on: what is inside of it is the allocator.
fn frames(process: &ProcessSites, first: u32) -> Vec<Frame> {
    let rows = process
        .sites
        .iter()
        .zip(first..)
        .flat_map(|(site, number)| {
            let own = site.frames.get(site.first..).unwrap_or_default();
            own.iter().zip(0..).map(move |(frame, depth)| Frame {
                pid: process.pid,
                site: number,
                depth,
                module: frame.module.clone(),
                offset: frame.offset,
                function: Some(frame.function.clone()).filter(|name| !name.contains("+0x")),
                file: frame.file.clone(),
                line: frame.line,
            })
        });
    rows.collect()
}
