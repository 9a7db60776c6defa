//! What of the programs' memory is astray, and which pages of their files lie elsewhere: before and
//! after. Looked at beside the loop, as a large process takes a second.

use crate::{moving, print};
use hither_core::foreign::Foreign;
use hither_linux::bind::astray::{self, AstrayFigures};
use hither_linux::proc::stat;
use hither_linux::proc::tree::{Scope, Tree};
use hither_linux::root::Root;
use hither_linux::topology::Topology;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::thread::JoinHandle;

/// Processes that are looked at.
const MOST_PROCESSES: usize = 256;
/// Exit statuses above it are of signals.
const SIGNALLED: u8 = 128;
/// Processes that are named.
const MOST_NAMED: usize = 5;

/// Figures by process, with its name.
pub type Figured = BTreeMap<i32, (String, AstrayFigures)>;

/// What was found before and after.
pub struct Placed {
    /// When watching began.
    pub before: Figured,
    /// When it ended.
    pub after: Figured,
}

/// Looks at processes; those that end meanwhile, or may not be looked into, are left out.
pub fn look(root: &Root, topology: &Topology, pids: &[i32]) -> Figured {
    let mut found = Figured::new();
    if topology.nodes.len() < 2 {
        return found;
    }
    let places = astray::places(topology);
    for &pid in pids.iter().take(MOST_PROCESSES) {
        if let Ok(figures) = astray::look(root, &places, pid) {
            let name = stat::read(root, pid).map_or_else(String::new, |stat| stat.name);
            found.insert(pid, (name, figures));
        }
    }
    found
}

/// The same in a thread of its own.
pub fn look_aside(root: &Root, topology: &Topology, pids: Vec<i32>) -> Option<JoinHandle<Figured>> {
    let (root, topology) = (root.clone(), topology.clone());
    let thread = std::thread::Builder::new().name("hither-astray".to_owned());
    thread.spawn(move || look(&root, &topology, &pids)).ok()
}

/// Puts what is astray, and pages of files that lie elsewhere, where they belong, where that is much;
/// returns what was found before. A process for which that fails is told and left.
///
/// # Errors
/// The exit status, where a signal ended it.
pub fn mend(root: &Root, topology: &Topology, scope: &Scope, dry_run: bool) -> Result<Figured, u8> {
    let mut tree = Tree::new(root.clone(), scope.clone());
    if let Err(error) = tree.refresh(0) {
        print::error(&error.into());
    }
    let pids: Vec<i32> = tree.processes().iter().map(|process| process.pid).collect();
    let found = look(root, topology, &pids);
    for (&pid, (_, figures)) in &found {
        let both = [
            (figures.has_astray(), false),
            (figures.has_files_elsewhere(), true),
        ];
        for (_, files) in both.into_iter().filter(|&(is_much, _)| is_much) {
            match moving::Command::mending(pid, files, dry_run).carry_out() {
                Ok(status) if status > SIGNALLED => return Err(status),
                Ok(_) => {}
                Err(error) => print::error(&error),
            }
        }
    }
    Ok(found)
}

impl Placed {
    /// Sentences, none where neither is worth a word.
    pub fn text(&self) -> String {
        let (before, after) = (sum(&self.before), sum(&self.after));
        let mut text = String::new();
        if before.has_astray() || after.has_astray() {
            text += &format!(
                "astray, on nodes that their binding does not name: {} of the programs' pages before, {} \
                 after\n",
                percent(&before),
                percent(&after)
            );
        }
        if before.has_files_elsewhere() || after.has_files_elsewhere() {
            let mib = |figures: &AstrayFigures| figures.files_elsewhere_pages / 256;
            text += &format!(
                "pages of files on nodes where the programs do not run: {} MiB before, {} MiB after\n",
                mib(&before),
                mib(&after)
            );
        }
        let mut worst: Vec<_> = self.after.iter().collect();
        worst
            .sort_by_key(|(_, (_, f))| std::cmp::Reverse(f.astray_pages + f.files_elsewhere_pages));
        for (pid, (name, figures)) in worst.into_iter().take(MOST_NAMED) {
            for (is_much, word) in [
                (figures.has_astray(), "astray"),
                (figures.has_files_elsewhere(), "files"),
            ] {
                if is_much {
                    text += &format!(
                        "  {pid} ({}): `hither move --{word} -p {pid}`\n",
                        name.shown()
                    );
                }
            }
        }
        text
    }

    /// The same as data.
    pub fn json(&self) -> Value {
        let one = |figures: &AstrayFigures| {
            json!({
                "bound_pages": figures.bound_pages,
                "astray_pages": figures.astray_pages,
                "share": figures.share(),
                "file_pages": figures.file_pages,
                "files_elsewhere_pages": figures.files_elsewhere_pages,
            })
        };
        let processes = self.after.iter().map(|(pid, (name, figures))| {
            let before = self.before.get(pid).map(|(_, figures)| one(figures));
            json!({ "pid": pid, "name": name, "before": before, "after": one(figures) })
        });
        json!({
            "before": one(&sum(&self.before)),
            "after": one(&sum(&self.after)),
            "processes": processes.collect::<Vec<_>>(),
        })
    }
}

fn sum(all: &Figured) -> AstrayFigures {
    let mut sum = AstrayFigures::default();
    all.values().for_each(|(_, figures)| sum.add(figures));
    sum
}

fn percent(figures: &AstrayFigures) -> String {
    let share = figures.share();
    print::or_dash(share, |share| format!("{:.1} %", 100.0 * share))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figured(astray_pages: u64, files_elsewhere_pages: u64) -> Figured {
        let figures = AstrayFigures {
            bound_pages: 10_000,
            astray_pages,
            file_pages: 90_000,
            files_elsewhere_pages,
        };
        [(7, ("db".to_owned(), figures))].into()
    }

    #[test]
    fn what_is_left_is_told_with_what_mends_it() {
        let placed = |before, after| Placed { before, after };
        assert_eq!(placed(figured(9, 9), figured(9, 9)).text(), "");
        let text = placed(figured(2200, 0), figured(9, 0)).text();
        assert!(
            text.ends_with("22.0 % of the programs' pages before, 0.1 % after\n"),
            "{text}"
        );
        let both = placed(figured(2200, 20_480), figured(2200, 20_480));
        let text = both.text();
        assert!(text.contains("80 MiB before, 80 MiB after\n"), "{text}");
        assert!(
            text.contains("  7 (db): `hither move --astray -p 7`\n"),
            "{text}"
        );
        assert!(
            text.contains("  7 (db): `hither move --files -p 7`\n"),
            "{text}"
        );
        let data = both.json();
        assert_eq!(data["processes"][0]["before"]["share"], 0.22);
    }
}
