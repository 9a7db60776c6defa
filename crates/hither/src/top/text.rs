//! Sentences and lines that the live view and the table have in common.

use super::ages;
use super::figures::{by_node, memory, percent_sign, running, whole};
use super::machine::{CacheFigures, MachineFigures, Moves};
use super::model::{Focus, Model};
use super::process::{Process, Thread};
use crate::print::{DASH, or_dash};
use hither_core::foreign::Foreign;

/// `1 process`, `2 processes`.
pub fn processes(count: usize) -> String {
    match count {
        1 => "1 process".to_owned(),
        count => format!("{count} processes"),
    }
}

/// `1 s`, `250 ms`.
pub fn interval(us: u64) -> String {
    match us {
        us if us % 1_000_000 == 0 => format!("{} s", us / 1_000_000),
        us => format!("{} ms", us / 1000),
    }
}

/// The machine in one line.
pub fn machine(machine: &MachineFigures) -> String {
    format!(
        "machine: local {}, latency {}, waiting for memory {}",
        percent_sign(&machine.local),
        or_dash(machine.latency_ns.get(), |ns| format!("{ns:.0} ns")),
        percent_sign(&machine.pressure),
    )
}

/// The last-level caches in one line; nothing where nobody counts for them.
pub fn caches(machine: &MachineFigures) -> Option<String> {
    let caches = machine.caches.value()?;
    let figure = |gbs: Option<f64>| or_dash(gbs, |gbs| format!("{gbs:.2}"));
    let one = |cache: &CacheFigures| {
        let (total, local) = (figure(cache.total_gbs), figure(cache.local_gbs));
        format!("L3 {} {total}, local {local}", cache.id)
    };
    let all: Vec<String> = caches.iter().map(one).collect();
    Some(format!("caches GB/s: {}", all.join("; ")))
}

/// How lately memory was used, in one line; nothing where nobody asked.
pub fn ages(machine: &MachineFigures) -> Option<String> {
    let told = machine.ages.as_ref()?;
    let line = |nodes: &Vec<_>| ages::line(&ages::sum(nodes));
    Some(format!("used within: {}", or_dash(told.value(), line)))
}

/// Moves in one line.
pub fn moves(moves: &Moves) -> String {
    format!(
        "pages/s: moved {} failed {} promoted {} demoted {}; hint faults {}, local {}",
        whole(&moves.migrated),
        whole(&moves.failed),
        whole(&moves.promoted),
        whole(&moves.demoted),
        whole(&moves.hint_faults),
        percent_sign(&moves.hint_local),
    )
}

/// The process that is looked at closely.
pub fn process(model: &Model, process: &Process, focus: &Focus) -> Vec<String> {
    let names = model.about.node_numbers();
    let stat = &process.task.stat;
    let (minor, major) = match process.faults.get() {
        Some((minor, major)) => (format!("{minor:.0}"), format!("{major:.0}")),
        None => (DASH.to_owned(), DASH.to_owned()),
    };
    let mut lines = vec![
        format!(
            "process {} ({}): CPU {}, {}, memory {}",
            process.pid,
            stat.name.shown(),
            percent_sign(&process.cpu),
            crate::print::count(process.task.thread_count as usize, "thread"),
            memory(process.resident_kb()),
        ),
        format!(
            "local {}, latency {}, misplaced {}; faults/s {minor}, from disk {major}",
            percent_sign(&process.local),
            or_dash(process.latency_ns.get(), |ns| format!("{ns:.0} ns")),
            percent_sign(&process.misplaced()),
        ),
        format!(
            "ran on nodes % {}; pages on nodes % {}",
            running(process.running.shares(), &names),
            or_dash(process.residency.value(), |pages| by_node(pages, &names)),
        ),
        format!(
            "its control group waited for memory in the last 10 s: {}",
            percent_sign(&focus.group_pressure)
        ),
    ];
    lines.extend(astray(process));
    if let Some(told) = &focus.group_ages {
        lines.push(format!(
            "its control group used memory within: {}",
            or_dash(told.value(), ages::line)
        ));
    }
    lines
}

/// Memory that its binding does not name, and pages of files on other nodes; nothing where neither is
/// worth a word.
pub fn astray(process: &Process) -> Option<String> {
    let figures = process.astray.value()?;
    let pid = process.pid;
    let mut parts = Vec::new();
    if figures.has_astray() {
        let percent = 100.0 * figures.share().unwrap_or(0.0);
        let size = memory(figures.astray_pages * 4);
        parts.push(format!(
            "{percent:.1} % ({size}) astray: `hither move --astray -p {pid}`"
        ));
    }
    if figures.has_files_elsewhere() {
        let size = memory(figures.files_elsewhere_pages * 4);
        parts.push(format!(
            "{size} of files on other nodes: `hither move --files -p {pid}`"
        ));
    }
    (!parts.is_empty()).then(|| parts.join("; "))
}

/// The same of all processes, the worst first, a few at most.
pub fn badly_placed(model: &Model) -> Vec<String> {
    /// Lines at most.
    const MOST: usize = 5;
    let mut found: Vec<(u64, String)> = Vec::new();
    for process in model.sorted() {
        if let (Some(words), Some(figures)) = (astray(process), process.astray.value()) {
            let pages = figures.astray_pages + figures.files_elsewhere_pages;
            let name = process.task.stat.name.shown();
            found.push((pages, format!("{} ({name}): {words}", process.pid)));
        }
    }
    found.sort_by_key(|(pages, _)| std::cmp::Reverse(*pages));
    let lines = found.into_iter().take(MOST);
    lines.map(|(_, line)| line).collect()
}

/// Threads, the busiest first.
pub fn by_cpu<'a>(threads: impl Iterator<Item = (&'a i32, &'a Thread)>) -> Vec<(i32, &'a Thread)> {
    let mut all: Vec<(i32, &Thread)> = threads.map(|(tid, thread)| (*tid, thread)).collect();
    let cpu = |thread: &Thread| thread.cpu.get().unwrap_or(0.0);
    all.sort_by(|(a, one), (b, two)| cpu(two).total_cmp(&cpu(one)).then(a.cmp(b)));
    all
}

/// What this machine does not tell, one sentence each: what the dashes stand for.
pub fn unknowns(model: &Model) -> Vec<String> {
    let mut sentences = Vec::new();
    let mut add = |what: &str, why: &str| sentences.push(format!("{what}: {why}"));
    if !model.about.tracker.is_known() {
        add("local and latency by process", model.about.tracker.basis());
    }
    // A tracker may tell who is local and not how long it takes.
    let sampled = model.sorted().into_iter().find(|p| p.local.is_known());
    if let Some(process) = sampled.filter(|process| !process.latency_ns.is_known()) {
        add("latency by process", process.latency_ns.basis());
    }
    if let Some(machine) = &model.machine {
        if !machine.links.is_known() {
            add(
                "latency of the machine, traffic by node and link",
                machine.links.basis(),
            );
        }
        if !machine.caches.is_known() {
            add("bandwidth by cache", machine.caches.basis());
        }
        if let Some(ages) = machine.ages.as_ref().filter(|ages| !ages.is_known()) {
            add("how lately memory was used", ages.basis());
        }
        for (what, figure) in [
            ("waiting for memory", &machine.pressure),
            ("moved pages", &machine.moves.migrated),
            ("promoted pages", &machine.moves.promoted),
            ("demoted pages", &machine.moves.demoted),
            ("NUMA hint faults", &machine.moves.hint_faults),
        ] {
            if !figure.is_known() {
                add(what, figure.basis());
            }
        }
    }
    add("moves by pair of nodes", super::machine::NO_PAIRS);
    if model.about.own_only {
        add(
            "processes of other users",
            "they may not be examined; run hither as root",
        );
    }
    sentences
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::terminal::Terminal;
    use crate::top::examples::{machine_reading, model_of};
    use crate::top::once;
    use crate::top::reading::{Accesses, Samples};
    use hither_core::snapshot::Evidence;
    use hither_linux::bind::astray::AstrayFigures;
    use hither_linux::counters::lru_gen::Ages;

    #[test]
    fn every_dash_has_its_sentence() {
        let mut model = model_of(1);
        let accesses = Accesses {
            count: 100,
            local_count: 50,
            ..Accesses::default()
        };
        model.samples(&Samples {
            processes: [(100, accesses)].into(),
            pages: Vec::new(),
        });
        let sentences = unknowns(&model);
        for (what, why) in [
            (
                "latency by process",
                "the tracker tells no latency by process",
            ),
            ("bandwidth by cache", "resctrl is not mounted"),
            ("promoted pages", "this kernel does not count it"),
            ("moves by pair of nodes", "nothing by pair of nodes"),
        ] {
            let told = |sentence: &String| sentence.starts_with(what) && sentence.contains(why);
            assert!(sentences.iter().any(told), "{what}: {sentences:?}");
        }
        assert!(
            !sentences
                .iter()
                .any(|sentence| sentence.starts_with("local"))
        );
        model.about.own_only = true;
        let last = unknowns(&model).pop().unwrap();
        assert!(last.ends_with("run hither as root"), "{last}");
    }

    #[test]
    fn ages_are_told_where_somebody_asked() {
        let mut model = model_of(1);
        assert_eq!(ages(model.machine.as_ref().unwrap()), None);
        assert!(!once::table(&model, 0, Terminal::PIPE).contains("used within"));
        let of = |anonymous_pages, file_pages| Ages {
            anonymous_pages,
            file_pages,
        };
        let first = of([256, 0, 0, 0, 0, 512], [0; 6]);
        let second = of([0; 6], [0, 0, 1024, 0, 0, 0]);
        let mut reading = machine_reading(2);
        reading.ages = Some(Evidence::measured(vec![first, second], "test"));
        model.begin(2_000_000);
        model.machine(reading.clone());
        let line = ages(model.machine.as_ref().unwrap()).unwrap();
        assert_eq!(line, "used within: 2 s 1.0M, 2 min 4.0M, longer ago 2.0M");
        let table = once::table(&model, 0, Terminal::PIPE);
        let row = table
            .lines()
            .rfind(|line| line.starts_with("node1"))
            .unwrap();
        let words: Vec<&str> = row.split_whitespace().collect();
        assert_eq!(words, ["node1", "0K", "0K", "4.0M", "0K", "0K", "0K"]);
        let document: serde_json::Value = serde_json::from_str(&once::document(&model, 0)).unwrap();
        assert_eq!(document["nodes"][1]["ages"][2]["file_bytes"], 4 << 20);
        // What cannot be read is a dash with its sentence.
        reading.ages = Some(Evidence::unknown("debugfs is gone"));
        model.machine(reading);
        let line = ages(model.machine.as_ref().unwrap()).unwrap();
        assert_eq!(line, format!("used within: {DASH}"));
        assert!(
            unknowns(&model)
                .iter()
                .any(|told| told.contains("debugfs is gone"))
        );
    }

    #[test]
    fn what_lies_badly_is_told_with_what_mends_it() {
        let mut model = model_of(2);
        let figures = |astray_pages, files_elsewhere_pages| {
            let figures = AstrayFigures {
                bound_pages: 10_000,
                astray_pages,
                file_pages: 50_000,
                files_elsewhere_pages,
            };
            Evidence::measured(figures, "test")
        };
        model.astray(100, figures(100, 16_383));
        assert!(badly_placed(&model).is_empty());
        model.astray(100, figures(2200, 16_384));
        model.astray(101, figures(9000, 20_000));
        let lines = badly_placed(&model);
        assert!(
            lines[0].starts_with("101 (p1): 90.0 % (35M) astray: "),
            "{lines:?}"
        );
        assert_eq!(
            lines[1],
            "100 (p0): 22.0 % (8.6M) astray: `hither move --astray -p 100`; 64M of files on other nodes: \
             `hither move --files -p 100`"
        );
        assert!(once::table(&model, 0, Terminal::PIPE).contains(&lines[1]));
        // A passing look that cannot tell leaves what is known.
        model.astray(100, Evidence::unknown("too large"));
        assert_eq!(badly_placed(&model).len(), 2);
        let document: serde_json::Value = serde_json::from_str(&once::document(&model, 0)).unwrap();
        assert_eq!(document["processes"][0]["astray"], 0.9);
        assert_eq!(document["processes"][1]["files_elsewhere_pages"], 16_384);
    }

    #[test]
    fn counts_and_intervals_are_words() {
        assert_eq!(
            (processes(1), processes(0)),
            ("1 process".into(), "0 processes".into())
        );
        assert_eq!(
            (interval(2_000_000), interval(250_000)),
            ("2 s".into(), "250 ms".into())
        );
    }
}
