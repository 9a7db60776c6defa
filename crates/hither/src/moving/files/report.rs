//! What became of cached pages of files, for a person and as `hither.move-files/1` (`docs/cli.md`).

use crate::moving::report::pages;
use crate::print::{self, Table};
use crate::terminal::Terminal;
use crate::{STATUS_FAILED, signal_status};
use hither_core::foreign::Foreign;
use hither_core::ids::NodeId;
use hither_core::plan::Refusal;
use hither_core::set::NodeSet;
use hither_linux::filecache::{HowUsed, Seen};
use hither_mover::Outcome;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::PathBuf;

/// A file, and what became of its pages.
#[derive(Clone, Debug)]
pub struct Row {
    pub path: PathBuf,
    pub how: HowUsed,
    pub before: Seen,
    pub done: Option<Done>,
}

/// What became of the pages of a file.
#[derive(Clone, Debug, Default)]
pub struct Done {
    pub moved: u64,
    pub already_there: u64,
    pub refused: BTreeMap<Refusal, u64>,
    pub duration_ns: u64,
    pub after: Option<Seen>,
}

impl Done {
    /// Adds what became of some pages.
    pub fn count(&mut self, outcome: &Outcome) {
        self.moved += outcome.moved.len() as u64;
        self.already_there += outcome.already_there;
        self.duration_ns += outcome.duration_ns;
        for &(why, count) in &outcome.refused {
            *self.refused.entry(why).or_default() += count;
        }
    }

    fn add(&mut self, other: &Self) {
        self.moved += other.moved;
        self.already_there += other.already_there;
        self.duration_ns += other.duration_ns;
        for (&why, count) in &other.refused {
            *self.refused.entry(why).or_default() += count;
        }
        match (&mut self.after, &other.after) {
            (Some(sum), Some(after)) => sum.add(after),
            (sum, _) => *sum = None,
        }
    }
}

/// Everything that is told.
pub struct Report {
    pub pid: i32,
    pub program: String,
    pub nodes: NodeSet,
    /// Files with cached pages, those with most elsewhere first.
    pub rows: Vec<Row>,
    /// Files without any.
    pub empty_count: usize,
    /// Files that could not be looked at, with the reasons.
    pub skipped: Vec<String>,
    /// Files beyond the most that are looked at.
    pub more_count: usize,
    pub is_dry: bool,
    pub signal: Option<i32>,
    pub moves_shared: bool,
}

impl Report {
    fn before(&self) -> Seen {
        let mut sum = Seen::default();
        self.rows.iter().for_each(|row| sum.add(&row.before));
        sum
    }

    fn done(&self) -> Option<Done> {
        let mut all = self
            .rows
            .iter()
            .map(|row| row.done.clone().unwrap_or_default());
        let mut sum = all.next().unwrap_or(Done {
            after: Some(Seen::default()),
            ..Done::default()
        });
        all.for_each(|done| sum.add(&done));
        (!self.is_dry).then_some(sum)
    }

    pub fn status(&self) -> u8 {
        let done = self.done().unwrap_or_default();
        let wanted = self.before().elsewhere > 0 && !self.is_dry;
        match self.signal {
            Some(signal) => signal_status(signal),
            None if wanted && done.moved == 0 => STATUS_FAILED,
            None => 0,
        }
    }

    pub fn text(&self, terminal: Terminal) -> String {
        let before = self.before();
        let mut text = format!(
            "pid {} ({}), files to nodes {}: {} in memory of {}",
            self.pid,
            self.program.shown(),
            self.nodes,
            pages(before.pages()),
            print::count(self.rows.len(), "file"),
        );
        if self.empty_count > 0 {
            text += &format!(", {} without a page", self.empty_count);
        }
        text += "\n\n";
        let head = [
            "file",
            "use",
            "before",
            "would move",
            "moved",
            "refused",
            "after",
        ];
        let rows: Vec<Vec<String>> = self.rows.iter().map(|row| self.cells(row)).collect();
        text += &Table::new(&head, &rows).text(terminal);
        text += "\n";
        let share = |seen: &Seen| {
            let percent = 100.0 * seen.elsewhere as f64 / seen.pages().max(1) as f64;
            format!(
                "{percent:.1} % ({} of {} pages)",
                seen.elsewhere,
                seen.pages()
            )
        };
        match self.done() {
            None => {
                text += &format!(
                    "elsewhere: {}\ndry run, nothing was changed: {} would be tried\n",
                    share(&before),
                    pages(before.elsewhere)
                );
            }
            Some(done) => {
                let after = done.after.as_ref().map_or("unknown".to_owned(), share);
                text += &format!("elsewhere: before {}, after {after}\n", share(&before));
                text += &format!(
                    "moved {} in {}\n",
                    pages(done.moved),
                    crate::units::time(done.duration_ns as f64)
                );
            }
        }
        for note in self.notes() {
            text += &format!("{note}\n");
        }
        text
    }

    fn cells(&self, row: &Row) -> Vec<String> {
        let done = row.done.as_ref();
        vec![
            row.path.shown().to_string(),
            row.how.word().to_owned(),
            by_node(&row.before),
            match self.is_dry {
                true => row.before.elsewhere.to_string(),
                false => String::new(),
            },
            done.map_or_else(String::new, |done| done.moved.to_string()),
            done.map_or_else(String::new, refusals),
            done.and_then(|done| done.after.as_ref())
                .map_or_else(String::new, by_node),
        ]
    }

    fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        let shared = self
            .done()
            .is_some_and(|done| done.refused.contains_key(&Refusal::Shared));
        if shared && !self.moves_shared {
            notes.push(
                "what other processes map, too (the program itself is one), moves where root asks for it \
                 (CAP_SYS_NICE): run hither as root"
                    .to_owned(),
            );
        }
        if self.signal.is_some() {
            notes.push("interrupted: the files that follow were not tried".to_owned());
        }
        notes.extend(
            self.skipped
                .iter()
                .map(|why| format!("not looked at: {why}")),
        );
        if self.more_count > 0 {
            notes.push(format!("not looked at: {} more files", self.more_count));
        }
        notes
    }

    pub fn json(&self) -> Value {
        let nodes = |seen: &Seen| {
            let nodes = seen.nodes.iter();
            let nodes: Vec<Value> = nodes
                .map(|(node, pages): (&NodeId, _)| json!({ "node": node, "pages": pages }))
                .collect();
            json!({ "nodes": nodes, "pages": seen.pages(), "elsewhere_pages": seen.elsewhere })
        };
        let done = |value: &mut Value, done: Option<&Done>| {
            let Some(done) = done else { return };
            value["moved_pages"] = done.moved.into();
            value["refused"] = done
                .refused
                .iter()
                .map(|(why, n)| json!([why.name(), n]))
                .collect();
            value["duration_ns"] = done.duration_ns.into();
            value["after"] = done.after.as_ref().map_or(Value::Null, nodes);
        };
        let rows = self.rows.iter().map(|row| {
            let mut value = json!({
                "path": row.path.to_string_lossy(),
                "use": row.how.word(),
                "before": nodes(&row.before),
            });
            done(&mut value, row.done.as_ref());
            value
        });
        let rows: Vec<Value> = rows.collect();
        let mut total = json!({ "before": nodes(&self.before()) });
        done(&mut total, self.done().as_ref());
        json!({
            "schema": "hither.move-files/1",
            "pid": self.pid,
            "program": self.program,
            "to_nodes": self.nodes.iter().collect::<Vec<_>>(),
            "ended": match (self.is_dry, self.signal) {
                (true, _) => "dry_run",
                (_, None) => "done",
                (_, Some(_)) => "interrupted",
            },
            "page_bytes": 4096,
            "files": rows,
            "empty_file_count": self.empty_count,
            "total": total,
            "skipped": self.skipped,
            "more_file_count": self.more_count,
            "notes": self.notes(),
        })
    }
}

/// `node0 12, node1 7`.
fn by_node(seen: &Seen) -> String {
    let parts: Vec<String> = seen
        .nodes
        .iter()
        .map(|(node, count)| format!("{node} {count}"))
        .collect();
    parts.join(", ")
}

fn refusals(done: &Done) -> String {
    let refused = done.refused.iter();
    let parts: Vec<String> = refused
        .map(|(why, count)| format!("{count} {why}"))
        .collect();
    parts.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(nodes: &[(u32, u64)], elsewhere: u64) -> Seen {
        Seen {
            nodes: nodes
                .iter()
                .map(|&(node, count)| (NodeId(node), count))
                .collect(),
            gone: 0,
            elsewhere,
        }
    }

    fn report(done: Option<Done>) -> Report {
        let row = |path: &str, before: Seen, done: Option<Done>| Row {
            path: path.into(),
            how: HowUsed::Open,
            before,
            done,
        };
        let nothing = done.as_ref().map(|_| Done {
            after: Some(seen(&[(0, 10)], 0)),
            ..Done::default()
        });
        Report {
            pid: 7,
            program: "db".to_owned(),
            nodes: "0".parse().unwrap(),
            is_dry: done.is_none(),
            rows: vec![
                row("/srv/a", seen(&[(0, 2), (1, 88)], 88), done),
                row("/srv/b", seen(&[(0, 10)], 0), nothing),
            ],
            empty_count: 1,
            skipped: vec!["/srv/c: cannot be opened".to_owned()],
            more_count: 0,
            signal: None,
            moves_shared: false,
        }
    }

    #[test]
    fn before_and_after_are_told_with_what_stayed_and_why() {
        let text = report(None).text(Terminal::PIPE);
        assert!(
            text.contains("elsewhere: 88.0 % (88 of 100 pages)\ndry run, "),
            "{text}"
        );
        assert!(
            text.contains("not looked at: /srv/c: cannot be opened"),
            "{text}"
        );
        let done = Done {
            moved: 80,
            refused: BTreeMap::from([(Refusal::Shared, 8)]),
            after: Some(seen(&[(0, 82), (1, 8)], 8)),
            ..Done::default()
        };
        let report = report(Some(done));
        let text = report.text(Terminal::PIPE);
        assert!(
            text.contains("before 88.0 % (88 of 100 pages), after 8.0 % (8 of 100"),
            "{text}"
        );
        assert!(text.contains("run hither as root"), "{text}");
        let data = report.json();
        assert_eq!(data["total"]["after"]["elsewhere_pages"], 8);
        assert_eq!(data["files"][0]["refused"][0][1], 8);
        assert_eq!((report.status(), data["ended"].as_str()), (0, Some("done")));
    }

    #[test]
    fn nothing_moved_of_what_should_is_a_failure() {
        assert_eq!(report(None).status(), 0);
        assert_eq!(report(Some(Done::default())).status(), STATUS_FAILED);
    }
}
