//! The steps as text, and as hither.zoom/1 (docs/cli.md).

use super::Wanted;
use crate::print::{Table, or_none};
use crate::terminal::Terminal;
use crate::{print, units};
use hither_agent::host::zoom::steps::{PagesOf, ZoomSteps};
use hither_core::foreign::Foreign;
use hither_recording::analysis::Data;
use hither_recording::analysis::sharing::SharedLine;
use hither_recording::analysis::use_of::AreaUse;
use hither_recording::analysis::zoom::{self, Next, ZoomChoice};
use serde_json::{Value, json};

/// Share of all accesses below which an area has no row.
const LEAST_SHARE: f64 = 0.005;

pub fn percent(share: f64) -> String {
    format!("{:.1} %", 100.0 * share)
}

pub fn count(number: f64) -> String {
    match number {
        n if n >= 1e6 => format!("{:.2} M", n / 1e6),
        n if n >= 1e3 => format!("{:.1} k", n / 1e3),
        n => format!("{n:.0}"),
    }
}

pub fn advice(choice: &ZoomChoice) -> String {
    or_none(choice.advice.map(|advice| advice.name().to_owned()))
}

fn by_node(heads: &mut Vec<String>, nodes: &[u32], what: &str) {
    heads.extend(nodes.iter().map(|node| format!("{what}{node}")));
}

pub fn table(heads: &[String], rows: &[Vec<String>], terminal: Terminal) -> String {
    let heads: Vec<&str> = heads.iter().map(String::as_str).collect();
    Table::new(&heads, rows).indent(2).text(terminal)
}

pub fn heads(words: &[&str]) -> Vec<String> {
    words.iter().map(|&word| word.to_owned()).collect()
}

/// Step 1.
pub fn areas(steps: &ZoomSteps, data: &Data, wanted: &Wanted) -> String {
    let mut text = format!(
        "zoom of {}\nstep 1: areas, from {} samples\n",
        wanted.about, steps.sample_count
    );
    if steps.areas.list.is_empty() {
        return text + "  no access was sampled: look longer, or see `hither topo --doctor`\n";
    }
    let words = [
        "area", "of", "size", "share", "fills", "HITM", "local", "latency", "used by", "remedy",
        "next",
    ];
    let mut rows = Vec::new();
    for ((area, judged), choice) in shown(steps) {
        rows.push(vec![
            area.name.clone(),
            data.process_name(area.pid),
            print::bytes(area.bytes),
            percent(zoom::share(&steps.areas, area)),
            count(area.accesses),
            or_none(area.tells_transfers.then(|| count(area.transfers))),
            or_none(area.local_ratio().map(percent)),
            or_none(area.latency_ns().map(units::time)),
            or_none(judged.by.words(&steps.nodes)),
            advice(choice),
            choice.next.name().to_owned(),
        ]);
    }
    text += &table(&heads(&words), &rows, wanted.terminal);
    for ((area, _), choice) in shown(steps) {
        if !choice.why.is_empty() {
            text += &format!("  {}: {}\n", area.name.shown(), choice.why.shown());
        }
    }
    let rest = steps.areas.list.len() - shown(steps).count();
    if rest > 0 {
        text += &format!(
            "  and {} with little or nothing\n",
            print::count(rest, "area")
        );
    }
    text
}

type Shown<'a> = (
    (
        &'a hither_recording::analysis::areas::Area,
        &'a hither_recording::analysis::use_of::Judged,
    ),
    &'a ZoomChoice,
);

fn shown(steps: &ZoomSteps) -> impl Iterator<Item = Shown<'_>> {
    let rows = steps.areas.list.iter().zip(&steps.judged);
    let is_shown = |row: &Shown<'_>| {
        zoom::share(&steps.areas, row.0.0) >= LEAST_SHARE || row.1.next != Next::Settled
    };
    rows.zip(&steps.choices)
        .filter(is_shown)
        .take(steps.wanted.top)
}

/// Step 2.
pub fn pages(steps: &ZoomSteps, wanted: &Wanted) -> String {
    let mut text = String::new();
    for of in &steps.pages {
        let source = if of.is_counted {
            "counted by the device"
        } else {
            "from samples"
        };
        text += &format!(
            "step 2: pages of {}, {source}: {} used, {} contested (HITM), {} of accesses by main users\n",
            of.name.shown(),
            of.summary.page_count,
            of.summary.contested_count,
            or_none((of.summary.known > 0.0).then(|| percent(of.summary.owned))),
        );
        let mut names = heads(&["page", "on", "main user"]);
        by_node(&mut names, &steps.nodes, "fills node");
        by_node(&mut names, &steps.nodes, "HITM node");
        let rows: Vec<Vec<String>> = of
            .pages
            .iter()
            .take(wanted.top)
            .map(|page| {
                let node = |position: usize| format!("node{}", steps.nodes[position]);
                let owner = page.owner().filter(|owner| owner.1 >= 0.8);
                let mut row = vec![
                    format!("{:x}", page.address),
                    or_none(page.home.map(node)),
                    or_none(owner.map(|owner| node(owner.0))),
                ];
                row.extend(page.users.iter().map(|&fills| count(fills)));
                let transfers = page.transfers.iter();
                row.extend(transfers.map(|&lines| match page.is_contested() {
                    true => count(lines),
                    false => String::new(),
                }));
                row
            })
            .collect();
        text += &table(&names, &rows, wanted.terminal);
        text += &format!(
            "  {}: {}: {}\n",
            of.choice.next.name(),
            advice(&of.choice),
            of.choice.why
        );
    }
    text
}

/// Step 3.
pub fn lines(steps: &ZoomSteps, wanted: &Wanted) -> String {
    let mut text = String::new();
    for of in &steps.lines {
        text += &format!("step 3: lines of {}\n", of.name.shown());
        if of.lines.is_empty() {
            text += "  too few samples of any of its lines: look longer (--seconds)\n";
            continue;
        }
        let mut names = heads(&["line", "HITM", "latency", "words apart"]);
        by_node(&mut names, &steps.nodes, "HITM node");
        names.extend(heads(&["users: offsets", "remedy"]));
        let mut rows = Vec::new();
        for (line, counted, choice) in of.lines.iter().take(wanted.top) {
            let mut row = vec![
                format!("{:x}", line.address),
                or_none(
                    line.tells_transfers
                        .then(|| percent(line.transfers / line.accesses.max(1.0))),
                ),
                or_none(line.latency_ns.map(units::time)),
                percent(line.apart),
            ];
            for node in 0..steps.nodes.len() {
                let counted = counted.as_ref().and_then(|counted| counted.get(node));
                row.push(counted.map_or(String::new(), |&lines| count(lines)));
            }
            row.push(users(line));
            row.push(advice(choice));
            rows.push(row);
        }
        text += &table(&names, &rows, wanted.terminal);
        if let Some((line, _, choice)) = of.lines.first() {
            text += &format!("  {:x}: {}\n", line.address, choice.why);
            if let Some(what) = &wanted.again {
                let closer = format!("hither zoom {what} --page {:x}", line.address);
                text += &print::command("  closer: ", &closer, wanted.terminal.width);
            }
        }
    }
    text
}

pub fn users(line: &SharedLine) -> String {
    let who = if line.by_thread { "thread" } else { "cpu" };
    let users = line.users.iter().take(8).map(|user| {
        let offsets: Vec<String> = user.offsets.iter().map(|o| format!("+{o}")).collect();
        format!("{who} {}: {}", user.id, offsets.join(" "))
    });
    users.collect::<Vec<_>>().join("; ")
}

/// What it comes to.
pub fn conclusions(steps: &ZoomSteps, wanted: &Wanted) -> String {
    let mut text = "what would help\n".to_owned();
    for conclusion in &steps.conclusions {
        let short = conclusion.advice.map_or("open", |advice| advice.name());
        text += &format!(
            "  {}: {short}: {} ({})\n",
            conclusion.area.shown(),
            conclusion.sentence.shown(),
            conclusion.why.shown()
        );
    }
    if steps.sample_count == 0 {
        text += "  open: no access was sampled, so that nothing can be said of where memory should be\n";
    } else if steps.conclusions.is_empty() {
        text += "  nothing: memory is where it is used, as far as was seen\n";
    }
    if let Some(command) = next_command(steps) {
        text += &print::command("  do it: ", &command, wanted.terminal.width);
    }
    for note in &steps.notes {
        text += &format!("  note: {}\n", note.shown());
    }
    text
}

/// Moves all memory of the process that would be better elsewhere, while it runs.
fn next_command(steps: &ZoomSteps) -> Option<String> {
    let pid = steps.process.filter(|_| steps.is_movable())?;
    Some(format!("hither attach --pid {pid}"))
}

/// hither.zoom/1.
pub fn json(steps: &ZoomSteps) -> String {
    let areas = steps.areas.list.iter().zip(&steps.judged);
    let areas = areas.zip(&steps.choices).map(|((area, judged), choice)| {
        let (kind, start) = area.kind.told();
        let (used_by, user) = judged.by.told(&steps.nodes);
        json!({
            "name": area.name, "pid": area.pid, "kind": kind, "start": start,
            "bytes": area.bytes,
            "share": zoom::share(&steps.areas, area),
            "fills": area.accesses,
            "transfers": area.tells_transfers.then_some(area.transfers),
            "reads": area.reads(), "writes": area.writes(), "homes": area.homes(),
            "sample_count": area.sample_count,
            "local_access_ratio": area.local_ratio(), "latency_ns": area.latency_ns(),
            "used_by": used_by, "user": user,
            "part_bytes": (judged.by != AreaUse::Unknown).then_some(judged.part_bytes),
            "written": judged.written.get(), "written_basis": judged.written.basis(),
            "choice": choice_json(choice),
        })
    });
    let lines = steps.lines.iter().map(|of| {
        let lines = of.lines.iter().map(|(line, counted, choice)| {
            let users = line.users.iter().map(|user| {
                json!({
                    "id": user.id, "accesses": user.accesses, "writes": user.writes,
                    "offsets": user.offsets,
                })
            });
            json!({
                "address": line.address,
                "accesses": line.accesses,
                "transfers": line.tells_transfers.then_some(line.transfers),
                "latency_ns": line.latency_ns, "apart_share": line.apart,
                "is_false_sharing": line.is_false(),
                "users_are": if line.by_thread { "threads" } else { "cpus" },
                "users": users.collect::<Vec<_>>(),
                "counted_transfers": counted,
                "choice": choice_json(choice),
            })
        });
        json!({"area": of.name, "pid": of.pid, "lines": lines.collect::<Vec<_>>()})
    });
    let conclusions = steps.conclusions.iter().map(|conclusion| {
        json!({
            "area": conclusion.area, "pid": conclusion.pid,
            "advice": conclusion.advice.map(|advice| advice.name()),
            "sentence": conclusion.sentence, "why": conclusion.why,
        })
    });
    let document = json!({
        "schema": "hither.zoom/1",
        "nodes": steps.nodes,
        "sample_count": steps.sample_count,
        "areas": areas.collect::<Vec<_>>(),
        "pages": steps.pages.iter().map(|of| pages_json(of, steps)).collect::<Vec<_>>(),
        "lines": lines.collect::<Vec<_>>(),
        "conclusions": conclusions.collect::<Vec<_>>(),
        "next": next_command(steps),
        "notes": steps.notes,
    });
    print::json(document)
}

fn pages_json(of: &PagesOf, steps: &ZoomSteps) -> Value {
    let (kind, start) = of.kind.told();
    let summary = &of.summary;
    let (used_by, user) = summary.by.told(&steps.nodes);
    let rows = of.pages.iter().take(steps.wanted.top).map(|page| {
        json!({
            "address": page.address,
            "home": page.home.map(|home| steps.nodes[home]),
            "fills": page.users, "transfers": page.transfers,
            "is_contested": page.is_contested(),
        })
    });
    json!({
        "area": of.name, "pid": of.pid, "kind": kind, "start": start,
        "is_counted": of.is_counted,
        "page_count": summary.page_count, "contested_count": summary.contested_count,
        "fills": summary.accesses, "transfers": summary.transfers,
        "known_share": summary.known,
        "owned_share": (summary.known > 0.0).then_some(summary.owned),
        "local_access_ratio": summary.local,
        "used_by": used_by, "user": user,
        "written": of.written.get(), "written_basis": of.written.basis(),
        "choice": choice_json(&of.choice),
        "pages": rows.collect::<Vec<_>>(),
    })
}

pub fn choice_json(choice: &ZoomChoice) -> Value {
    json!({
        "advice": choice.advice.map(|advice| advice.name()),
        "next": choice.next.name(),
        "why": choice.why,
    })
}
