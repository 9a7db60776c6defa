//! `--replicate-files`: files that programs map read-only get a copy on the node where they run, by a shim of
//! its own (`crates/mirror`).

use crate::print;
use crate::sites::Shim;
use anyhow::Context;
use clap::builder::PossibleValue;
use hither_core::foreign::Foreign;
use hither_core::mirror::report::{FileReport, ProcessReport};
use hither_core::mirror::{Plan, Which, environment, name};
use hither_core::size::parse_bytes;
use hither_linux::{filereplicas, parts};
use hither_recording::Folder;
use serde_json::json;
use std::collections::BTreeMap;
use std::process::Command;

/// Files that are printed; the rest is counted.
const MOST_FILES: usize = 20;

/// Words for file replicas.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "File replicas")]
pub struct Options {
    /// Give files that programs map read-only a copy on the node where they run, from mappings of this size on
    /// (docs/replication.md)
    #[arg(long, value_name = "SIZE", num_args = 0..=1, default_missing_value = "4M",
          require_equals = true, value_parser = parse_bytes)]
    replicate_files: Option<u64>,
    /// Most bytes of all copies on a node, as in 8G
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes, requires = "replicate_files")]
    replica_budget: Option<u64>,
    /// Which parts get copies [default: hot]
    #[arg(long, value_name = "PARTS", requires = "replicate_files")]
    replica_parts: Option<Parts>,
    /// Also code: of programs, and of libraries that they are linked with
    #[arg(long, requires = "replicate_files")]
    replica_code: bool,
}

#[derive(Clone, Copy, Debug)]
struct Parts(Which);

impl clap::ValueEnum for Parts {
    fn value_variants<'a>() -> &'a [Self] {
        &[Self(Which::Hot), Self(Which::All)]
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        Some(match self.0 {
            Which::Hot => PossibleValue::new("hot").help("those that are used again and again"),
            Which::All => PossibleValue::new("all").help("all that are mapped"),
        })
    }
}

/// What programs are told.
#[derive(Debug)]
pub struct Mirrors {
    shim: Shim,
    plan: Plan,
    /// Of reports.
    folder: Folder,
}

impl Options {
    /// Is any file to have copies?
    pub fn is_meant(&self) -> bool {
        self.replicate_files.is_some()
    }

    /// What programs are to be told; `None` where nothing is asked for.
    ///
    /// # Errors
    /// There is no shim, or no folder for reports.
    pub fn prepare(&self) -> anyhow::Result<Option<Mirrors>> {
        let Some(least_bytes) = self.replicate_files else {
            return Ok(None);
        };
        let shim = Shim::find_part(&parts::MIRROR).context("--replicate-files")?;
        let folder = Folder::make_temporary(&std::env::temp_dir(), "hither-files-")
            .context("--replicate-files: the folder for reports (TMPDIR)")?;
        let plan = Plan {
            least_bytes,
            budget_bytes: self.replica_budget,
            which: self.replica_parts.map_or(Which::Hot, |parts| parts.0),
            code: self.replica_code,
            always: false,
        };
        Ok(Some(Mirrors { shim, plan, folder }))
    }
}

impl Mirrors {
    /// For the program and what it starts: before the shim that places memory, which knows its own mappings
    /// alone.
    pub fn attach(&self, command: &mut Command) {
        self.shim.preload(command);
        command
            .env(environment::PLAN, self.plan.to_string())
            .env(environment::REPORTS, self.folder.path());
    }

    /// What came of it. Copies that killed processes left are removed.
    #[must_use]
    pub fn finish(self) -> Mirrored {
        let user = hither_linux::sys::effective_uid();
        filereplicas::reap(name::folder(user).as_ref());
        Mirrored {
            processes: filereplicas::reports(self.folder.path()),
        }
    }
}

impl Drop for Mirrors {
    fn drop(&mut self) {
        self.folder.remove_all();
    }
}

/// What the shim did.
#[derive(Debug)]
pub struct Mirrored {
    processes: Vec<ProcessReport>,
}

/// One file on one node, of all processes.
#[derive(Debug, Default)]
struct Sum {
    process_count: usize,
    most_bytes: u64,
    file: FileReport,
}

impl Mirrored {
    fn sums(&self) -> BTreeMap<(String, Option<u32>), Sum> {
        let mut sums = BTreeMap::<_, Sum>::new();
        for file in self.processes.iter().flat_map(|process| &process.files) {
            let sum = sums.entry((file.path.clone(), file.node)).or_default();
            sum.process_count += 1;
            sum.most_bytes = sum.most_bytes.max(file.most_bytes);
            sum.file.bytes = file.bytes;
            sum.file.copied_bytes += file.copied_bytes;
            sum.file.local_bytes = sum.file.local_bytes.max(file.local_bytes);
            sum.file.copy_us += file.copy_us;
            sum.file.collapse_count += file.collapse_count;
            if !file.reason.is_empty() {
                sum.file.reason.clone_from(&file.reason);
            }
        }
        sums
    }

    /// For a person.
    #[must_use]
    pub fn text(&self) -> String {
        if self.processes.is_empty() {
            return "files: no program mapped one that is large enough, read-only and for long enough\n".to_owned();
        }
        let sums = self.sums();
        let mut text = String::new();
        for ((path, node), sum) in sums.iter().take(MOST_FILES) {
            let file = &sum.file;
            let by = print::count(sum.process_count, "process");
            let on = node.map_or(String::new(), |node| format!(" on node {node}"));
            text += &match path.as_str() {
                "" => format!("files: {by}{on}"),
                path => format!(
                    "file {} ({}){on}, {by}",
                    path.shown(),
                    print::bytes(file.bytes)
                ),
            };
            if sum.most_bytes > 0 {
                text += &format!(
                    ": {} mapped from copies, {} copied in {:.3} s",
                    print::bytes(sum.most_bytes),
                    print::bytes(file.copied_bytes),
                    file.copy_us as f64 / 1e6,
                );
            }
            if file.local_bytes > 0 {
                text += &format!(
                    "; {} that are used are there already",
                    print::bytes(file.local_bytes)
                );
            }
            if file.collapse_count > 0 {
                text += &format!("; given up {} times", file.collapse_count);
            }
            if !file.reason.is_empty() {
                text += &format!("; {}", file.reason.shown());
            }
            text.push('\n');
        }
        if sums.len() > MOST_FILES {
            text += &format!("files: and {} more\n", sums.len() - MOST_FILES);
        }
        let look_us: u64 = self.processes.iter().map(|process| process.look_us).sum();
        text + &format!(
            "files: looked for {:.3} s in all processes\n",
            look_us as f64 / 1e6
        )
    }

    /// The same for programs (`files` of hither.run/1).
    #[must_use]
    pub fn json(&self) -> serde_json::Value {
        let file = |file: &FileReport| {
            json!({
                "path": file.path,
                "bytes": file.bytes,
                "node": file.node,
                "copied_bytes": file.copied_bytes,
                "mapped_bytes": file.mapped_bytes,
                "most_bytes": file.most_bytes,
                "local_bytes": file.local_bytes,
                "copy_us": file.copy_us,
                "collapse_count": file.collapse_count,
                "reason": (!file.reason.is_empty()).then_some(&file.reason),
            })
        };
        let process = |process: &ProcessReport| {
            json!({
                "pid": process.pid,
                "look_us": process.look_us,
                "files": process.files.iter().map(file).collect::<Vec<_>>(),
            })
        };
        self.processes.iter().map(process).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_told_by_node() {
        let file = FileReport {
            path: "/data/weights".to_owned(),
            bytes: 64 << 20,
            node: Some(1),
            copied_bytes: 4 << 20,
            mapped_bytes: 0,
            most_bytes: 4 << 20,
            local_bytes: 0,
            copy_us: 20_000,
            collapse_count: 2,
            reason: "it was opened for writing, or changed".to_owned(),
        };
        let shared = FileReport {
            copied_bytes: 0,
            collapse_count: 0,
            reason: String::new(),
            ..file.clone()
        };
        let process = |pid, file| ProcessReport {
            pid,
            look_us: 500,
            files: vec![file],
        };
        let mirrored = Mirrored {
            processes: vec![process(1, file), process(2, shared)],
        };
        assert_eq!(
            mirrored.text(),
            "file /data/weights (64 MiB) on node 1, 2 processes: 4 MiB mapped from copies, 4 MiB copied in \
             0.040 s; given up 2 times; it was opened for writing, or changed\n\
             files: looked for 0.001 s in all processes\n"
        );
        assert_eq!(
            mirrored.json()[1]["files"][0]["reason"],
            serde_json::Value::Null
        );
    }
}
