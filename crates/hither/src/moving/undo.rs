//! `--undo`: back to where a report says that pages were.
//!
//! A report (`--json`) says of each stretch of pages from which node some of it moved. It is about one
//! process in one life: number, start, boot, and the place of its stack, which every program that a
//! process becomes (`exec`) has elsewhere. Nothing else of it is trusted: root may be given a report
//! that somebody else wrote.

use super::aim::Aim;
use super::select::{USER_END_PAGE, parse_range};
use anyhow::{Context, bail, ensure};
use hither_core::foreign::Foreign;
use hither_core::ids::NodeId;
use hither_linux::root::Root;
use hither_linux::topology::Topology;
use serde_json::{Value, json};
use std::fs::File;
use std::io::Read;
use std::ops::Range;
use std::path::Path;

/// Largest report that is read: some four million stretches.
const MOST_BYTES: u64 = 1 << 30;

/// One life of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Life {
    /// Start, in clock ticks since boot.
    start_ticks: u64,
    /// Where its stack begins; 0 where the kernel does not tell.
    stack_start: u64,
    /// Which boot.
    boot: String,
}

impl Life {
    /// Of a process now; `None` where it has ended.
    #[must_use]
    pub fn of(root: &Root, pid: i32) -> Option<Self> {
        let text = root.text(&format!("proc/{pid}/stat")).ok()?;
        // Field numbers of proc(5); the field after the name is 3.
        let fields: Vec<&str> = text.rsplit_once(')')?.1.split_whitespace().collect();
        let field = |number: usize| fields.get(number - 3)?.parse().ok();
        let boot = root
            .text("proc/sys/kernel/random/boot_id")
            .unwrap_or_default();
        Some(Self {
            start_ticks: field(22)?,
            stack_start: field(28)?,
            boot: boot.trim().to_owned(),
        })
    }

    /// For a report.
    #[must_use]
    pub fn json(&self) -> Value {
        json!({
            "start_ticks": self.start_ticks,
            "stack_start": format!("{:x}", self.stack_start),
            "boot": self.boot,
        })
    }

    fn read(value: &Value) -> Option<Self> {
        Some(Self {
            start_ticks: value["start_ticks"].as_u64()?,
            stack_start: u64::from_str_radix(value["stack_start"].as_str()?, 16).ok()?,
            boot: value["boot"].as_str()?.to_owned(),
        })
    }
}

/// What a report says.
#[derive(Clone, Debug)]
pub struct Undo {
    /// Of which process.
    pub pid: i32,
    /// Its command name.
    program: String,
    life: Life,
    /// Where pages were: ascending, none twice.
    pub places: Vec<(Range<u64>, NodeId)>,
    /// `cpuset.mems` before and after `--policy`.
    pub policy: Option<(String, String)>,
}

impl Undo {
    /// Reads a report.
    ///
    /// # Errors
    /// It is none, or one of a move that changed nothing.
    pub fn read(path: &Path) -> anyhow::Result<Self> {
        let about = || format!("--undo {}", path.shown());
        let kind = std::fs::metadata(path).with_context(about)?;
        ensure!(
            kind.is_file() && kind.len() <= MOST_BYTES,
            "{}: no report of a move; give the file that `hither move --json` was written to",
            about()
        );
        let mut text = String::new();
        let file = File::open(path).with_context(about)?;
        file.take(MOST_BYTES)
            .read_to_string(&mut text)
            .with_context(about)?;
        Self::parse(&text).with_context(about)
    }

    fn parse(text: &str) -> anyhow::Result<Self> {
        let none = "no report of a move; give the file that `hither move --json` was written to";
        let document: Value = serde_json::from_str(text).context(none)?;
        ensure!(document["schema"] == "hither.move/1", none);
        ensure!(
            document["ended"] != "dry_run",
            "the report of a dry run: nothing was moved"
        );
        let (pid, life) = (document["pid"].as_i64(), Life::read(&document["process"]));
        let pid = pid
            .and_then(|pid| i32::try_from(pid).ok())
            .filter(|&pid| pid > 0);
        let (Some(pid), Some(life)) = (pid, life) else {
            bail!("the report does not say of which process it is; that of this version does");
        };
        let Some(moves) = document["moves"].as_array() else {
            bail!(
                "the report does not say where pages were: they were too scattered, or it is older"
            );
        };
        let place = |value: &Value| {
            let pages = parse_range(value["range"].as_str()?).ok()?.0;
            let node = u32::try_from(value["from"].as_u64()?).ok()?;
            (pages.end <= USER_END_PAGE).then_some((pages, NodeId(node)))
        };
        let places = moves.iter().map(place).collect::<Option<Vec<_>>>();
        let places = places.context("`moves` of the report is damaged; make the report anew")?;
        ensure!(
            places
                .windows(2)
                .all(|pair| pair[0].0.end <= pair[1].0.start),
            "`moves` of the report are not ascending; make the report anew"
        );
        let text = |value: &Value| value.as_str().map(str::to_owned);
        let policy = &document["policy"];
        Ok(Self {
            pid,
            program: text(&document["program"]).unwrap_or_default(),
            life,
            places,
            policy: text(&policy["before"]).zip(text(&policy["after"])),
        })
    }

    /// The process is still the one that was moved.
    ///
    /// # Errors
    /// It is gone, another has its number, or it has become another program.
    pub fn check(&self, root: &Root) -> anyhow::Result<()> {
        let name = self.program.shown();
        let who = format!("process {} ({name}), which the report is about,", self.pid);
        let Some(life) = Life::of(root, self.pid) else {
            bail!("{who} has ended: there is nothing to take back");
        };
        ensure!(
            life.boot == self.life.boot && life.start_ticks == self.life.start_ticks,
            "{who} has ended, and another one has its number now: there is nothing to take back"
        );
        ensure!(
            life.stack_start == self.life.stack_start,
            "{who} has become another program, and its memory is gone: there is nothing to take back"
        );
        Ok(())
    }

    /// Where its pages shall go.
    ///
    /// # Errors
    /// A node is not there any more, or has no memory.
    pub fn aim(&self, topology: &Topology) -> anyhow::Result<Aim> {
        let aim = Aim::Back(self.places.clone());
        for node in aim.nodes().iter() {
            let at = topology.position(node);
            let has_memory = at.is_some_and(|at| topology.nodes[at].memory.total_kb > 0);
            ensure!(
                has_memory,
                "{node} of the report is not here any more, or has no memory"
            );
        }
        Ok(aim)
    }
}

/// Parts of ascending runs that lie in ascending ranges.
#[must_use]
pub fn within(runs: &[Range<u64>], places: &[(Range<u64>, NodeId)]) -> Vec<Range<u64>> {
    let mut found: Vec<Range<u64>> = Vec::new();
    let mut at = 0;
    for run in runs {
        at += places[at..].partition_point(|(pages, _)| pages.end <= run.start);
        let meeting = places[at..]
            .iter()
            .take_while(|(pages, _)| pages.start < run.end);
        for (pages, _) in meeting {
            let part = pages.start.max(run.start)..pages.end.min(run.end);
            match found.last_mut() {
                Some(last) if last.end == part.start => last.end = part.end,
                _ => found.push(part),
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(change: impl FnOnce(&mut Value)) -> String {
        let mut document = json!({
            "schema": "hither.move/1", "ended": "done", "pid": 7, "program": "db",
            "process": {"start_ticks": 5, "stack_start": "7ffc00001000", "boot": "b"},
            "moves": [
                {"range": "00001000-00003000", "from": 3, "moved_pages": 2, "to": [0, 1]},
                {"range": "00003000-00004000", "from": 1, "moved_pages": 1, "to": [0]},
            ],
            "policy": {"file": "sys/x", "before": "", "after": "2"},
        });
        change(&mut document);
        document.to_string()
    }

    #[test]
    fn a_report_says_where_pages_were() {
        let undo = Undo::parse(&report(|_| ())).unwrap();
        assert_eq!(undo.places, [(1..3, NodeId(3)), (3..4, NodeId(1))]);
        assert_eq!(undo.policy, Some((String::new(), "2".to_owned())));
        for (change, part) in [
            (
                (|d| d["schema"] = "x".into()) as fn(&mut Value),
                "no report of a move",
            ),
            (|d| d["ended"] = "dry_run".into(), "nothing was moved"),
            (|d| d["pid"] = 0.into(), "of which process"),
            (|d| d["pid"] = (1u64 << 40).into(), "of which process"),
            (
                |d| d["process"]["start_ticks"] = "x".into(),
                "of which process",
            ),
            (|d| d["moves"] = Value::Null, "too scattered"),
            (|d| d["moves"][0]["range"] = "1000-2001".into(), "damaged"),
            (
                |d| d["moves"][1]["range"] = "3000-ffffffffffff0000".into(),
                "damaged",
            ),
            (|d| d["moves"][0]["from"] = (-1).into(), "damaged"),
            (
                |d| d["moves"][1]["range"] = "2000-3000".into(),
                "not ascending",
            ),
        ] {
            let why = Undo::parse(&report(change)).unwrap_err().to_string();
            assert!(why.contains(part), "{part}: {why}");
        }
        assert!(
            Undo::parse("[")
                .unwrap_err()
                .to_string()
                .contains("no report")
        );
    }

    #[test]
    fn another_life_of_a_number_is_told() {
        let folder = tempfile::tempdir().unwrap();
        let root = Root::new(folder.path());
        std::fs::create_dir_all(root.path("proc/7")).unwrap();
        std::fs::create_dir_all(root.path("proc/sys/kernel/random")).unwrap();
        std::fs::write(root.path("proc/sys/kernel/random/boot_id"), "b\n").unwrap();
        let undo = Undo::parse(&report(|_| ())).unwrap();
        let why = || undo.check(&root).unwrap_err().to_string();
        assert!(why().contains("process 7 (db), which the report is about, has ended"));
        let write = |start: u64, stack: u64| {
            let line = format!(
                "7 (a) b) S {}{start} 1 1 1 1 1 {stack} 0\n",
                "0 ".repeat(18)
            );
            std::fs::write(root.path("proc/7/stat"), line).unwrap();
        };
        write(5, 0x7ffc_0000_1000);
        undo.check(&root).unwrap();
        write(6, 0x7ffc_0000_1000);
        assert!(why().contains("another one has its number now"));
        write(5, 0x7ffc_0000_2000);
        assert!(why().contains("has become another program"));
        std::fs::write(root.path("proc/sys/kernel/random/boot_id"), "c\n").unwrap();
        assert!(why().contains("another one has its number now"));
    }

    #[test]
    fn only_pages_of_the_report_are_taken() {
        let places = [
            (10..20, NodeId(1)),
            (20..30, NodeId(2)),
            (40..50, NodeId(1)),
        ];
        let parts = |runs: &[Range<u64>]| within(runs, &places);
        assert_eq!(
            parts(&[0..5, 12..25, 28..45, 60..70]),
            [12..25, 28..30, 40..45]
        );
        assert_eq!(parts(&[0..100]), [10..30, 40..50]);
        assert!(parts(&[30..40]).is_empty() && parts(&[]).is_empty());
    }
}
