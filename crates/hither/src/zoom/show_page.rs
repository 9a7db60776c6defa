//! The look at a page as text, and as hither.zoom-page/1 (docs/cli.md).

use super::Wanted;
use super::page::PageLook;
use super::show::{advice, choice_json, count, heads, percent, table, users};
use crate::print::or_none;
use crate::terminal::Terminal;
use crate::{print, units};
use hither_core::foreign::Foreign;
use hither_recording::analysis::page::{PageDetail, WordUse};
use serde_json::{Value, json};

/// Everything but the conclusion.
pub fn tables(of: &PageLook, wanted: &Wanted) -> String {
    let look = &of.look;
    let (top, terminal) = (wanted.top, wanted.terminal);
    let mut text = format!(
        "zoom of {}\npage {} of {} ({}): {}, {}\n",
        wanted.about,
        of.asked,
        of.program.shown(),
        of.pid,
        print::count(look.sample_count, "sample"),
        match look.is_counted {
            true => "fills and HITM by node counted by the device",
            false => "nothing counted by a device",
        },
    );
    for mapping in &of.mappings {
        text += &format!("  mapping {}\n", mapping_name(mapping));
    }
    for area in &look.areas.list {
        text += &format!(
            "  area    {}, {}\n",
            area.name.shown(),
            print::bytes(area.bytes)
        );
    }
    if !of.variables.is_empty() {
        let first: Vec<&str> = of.variables.iter().take(top).map(String::as_str).collect();
        let rest = of.variables.len() - first.len();
        let more = if rest > 0 {
            format!(" and {rest} more")
        } else {
            String::new()
        };
        text += &format!("  holds   {}{more}\n", first.join(", ").shown());
    }
    if let Some(absent @ 1..) = of.absent_pages {
        text += &format!(
            "  {} not in memory: nobody touched them yet, or they are swapped out\n",
            print::count(absent as usize, "page")
        );
    }
    if look.pages.is_empty() {
        return text;
    }
    text += &by_node(of, terminal);
    text += &by_user(of, top, terminal);
    text += &lines(of, top, terminal);
    text += &source(of, top, terminal);
    text
}

fn mapping_name(mapping: &hither_linux::sys::OwnMapping) -> String {
    let name = if mapping.name.is_empty() {
        "[anon]"
    } else {
        &mapping.name
    };
    let (start, end) = (mapping.range.start, mapping.range.end);
    let name = name.shown();
    format!("{name} {start:x}-{end:x}, {}", mapping.permissions())
}

/// Reads, writes, and how many of both came from caches; where samples do not tell reads from writes,
/// all accesses in place of reads.
fn used(look: &PageDetail, by: &WordUse) -> [String; 3] {
    let known = |is_known: bool, of: f64| or_none(is_known.then(|| count(of)));
    [
        count(if look.tells_kinds { by.reads } else { by.all() }),
        known(look.tells_kinds, by.writes),
        known(look.tells_transfers, by.transfers),
    ]
}

/// What the first of [`used`] is.
fn reads(look: &PageDetail) -> &'static str {
    if look.tells_kinds {
        "reads"
    } else {
        "accesses"
    }
}

fn by_node(of: &PageLook, terminal: Terminal) -> String {
    let look = &of.look;
    let has_homes = look.pages.iter().any(|page| page.home.is_some());
    let homes = |position: usize| {
        let here = look.pages.iter().filter(|page| page.home == Some(position));
        here.count()
    };
    let sum = |parts: fn(&hither_recording::analysis::pages::CountedPage) -> &Vec<f64>,
               node: usize| {
        let all: f64 = look.pages.iter().map(|page| parts(page)[node]).sum();
        count(all)
    };
    let rows: Vec<Vec<String>> = (0..of.nodes.len())
        .map(|node| {
            let on_it = has_homes.then(|| homes(node).to_string());
            let mut row = vec![format!("node{}", of.nodes[node]), or_none(on_it)];
            row.extend(match look.tells_nodes {
                true => used(look, &look.by_node[node]),
                false => [(); 3].map(|()| or_none(None)),
            });
            if look.is_counted {
                row.push(sum(|page| &page.users, node));
                row.push(sum(|page| &page.transfers, node));
            }
            row
        })
        .collect();
    let words = [
        "node",
        "pages on it",
        reads(look),
        "writes",
        "HITM",
        "counted fills",
        "counted HITM",
    ];
    format!("by node\n{}", table(&heads(&words), &rows, terminal))
}

fn by_user(of: &PageLook, top: usize, terminal: Terminal) -> String {
    let look = &of.look;
    if look.users.is_empty() {
        return String::new();
    }
    let rows: Vec<Vec<String>> = look
        .users
        .iter()
        .take(top)
        .map(|user| {
            let mut row = vec![user.id.to_string()];
            row.push(or_none(
                user.node.map(|node| format!("node{}", of.nodes[node])),
            ));
            row.extend(used(look, &user.by));
            let threads = of.threads_on(user.id);
            let names = threads.iter().take(3);
            let names = names.map(|thread| format!("{} ({})", thread.tid, thread.name));
            row.push(names.collect::<Vec<_>>().join(", "));
            row
        })
        .collect();
    let (title, who) = match look.by_thread {
        true => ("by thread\n", "thread"),
        false => ("by CPU: the tracker does not tell threads\n", "CPU"),
    };
    let words = [
        who,
        "on",
        reads(look),
        "writes",
        "HITM",
        "threads that ran there last",
    ];
    title.to_owned() + &table(&heads(&words), &rows, terminal)
}

fn lines(of: &PageLook, top: usize, terminal: Terminal) -> String {
    let look = &of.look;
    if look.lines.is_empty() {
        return String::new();
    }
    let mut shown: Vec<_> = look.lines.iter().collect();
    shown.sort_by(|a, b| b.by.all().total_cmp(&a.by.all()));
    let rest = shown.len().saturating_sub(top);
    shown.truncate(top);
    let rows: Vec<Vec<String>> = shown
        .iter()
        .map(|line| {
            let mut row = vec![format!("{:x}", line.address)];
            row.extend(used(look, &line.by));
            row.push(or_none(line.latency_ns.map(units::time)));
            row.push(line.user_count.to_string());
            let counted = counted(of, line.address);
            row.push(counted.map_or(String::new(), |counts| {
                let counts = counts.iter().map(|&lines| count(lines));
                counts.collect::<Vec<_>>().join(" ")
            }));
            let shared = line.shared.as_ref();
            row.push(shared.map_or(String::new(), |line| {
                let kind = line.kind().unwrap_or("not known");
                format!("{kind}, {} words apart", percent(line.apart))
            }));
            row.push(shared.map_or(String::new(), users));
            row
        })
        .collect();
    let words = [
        "line",
        reads(look),
        "writes",
        "HITM",
        "latency",
        "users",
        "counted HITM, by node",
        "sharing",
        "users: offsets",
    ];
    let mut text = format!("by line\n{}", table(&heads(&words), &rows, terminal));
    if rest > 0 {
        text += &format!("  and {} with less\n", print::count(rest, "line"));
    }
    text
}

fn counted(of: &PageLook, line: u64) -> Option<&Vec<f64>> {
    of.line_counts.as_ref()?.get(&(of.pid, line))
}

fn source(of: &PageLook, top: usize, terminal: Terminal) -> String {
    if of.source.is_empty() {
        return "by source line\n  the tracker does not tell instructions\n".to_owned();
    }
    let rows: Vec<Vec<String>> = of
        .source
        .iter()
        .take(top)
        .map(|line| {
            let mut row = vec![line.name()];
            row.extend(used(&of.look, &line.by));
            row.push(line.users.len().to_string());
            row
        })
        .collect();
    let words = ["source line", reads(&of.look), "writes", "HITM", "users"];
    format!("by source line\n{}", table(&heads(&words), &rows, terminal))
}

/// What would help.
pub fn conclusion(of: &PageLook, notes: &[String], width: Option<usize>) -> String {
    let choice = &of.look.choice;
    let short = match choice.advice {
        Some(_) => advice(choice),
        None => "open".to_owned(),
    };
    let mut text = format!(
        "what would help\n  {short}: {} ({})\n",
        of.sentence.shown(),
        choice.why.shown()
    );
    if !of.next.is_empty() {
        let next = of.next.shown().to_string();
        text += &print::command("  try next: ", &next, width);
    }
    for note in notes {
        text += &format!("  note: {}\n", note.shown());
    }
    text
}

/// hither.zoom-page/1.
pub fn json(of: &PageLook, notes: &[String]) -> String {
    let look = &of.look;
    let node = |position: usize| of.nodes[position];
    let mappings = of.mappings.iter().map(|mapping| {
        json!({
            "range": format!("{:x}-{:x}", mapping.range.start, mapping.range.end),
            "permissions": mapping.permissions(), "name": mapping.name,
        })
    });
    let areas = look.areas.list.iter().map(|area| {
        let (kind, start) = area.kind.told();
        json!({
            "name": area.name, "kind": kind, "start": start, "bytes": area.bytes,
            "fills": area.accesses,
            "transfers": area.tells_transfers.then_some(area.transfers),
        })
    });
    let by_node = (0..of.nodes.len()).map(|position| {
        let row = json!({"node": node(position)});
        match look.tells_nodes {
            true => with(look, &look.by_node[position], row),
            false => without(row),
        }
    });
    let pages = look.pages.iter().map(|page| {
        json!({
            "address": page.address, "home": page.home.map(node),
            "fills": page.users, "transfers": page.transfers,
            "is_contested": page.is_contested(),
        })
    });
    let users = look.users.iter().map(|user| {
        let threads = of.threads_on(user.id).into_iter();
        let threads: Vec<i32> = threads.map(|thread| thread.tid).collect();
        let row = json!({"id": user.id, "node": user.node.map(node), "last_ran": threads});
        with(look, &user.by, row)
    });
    let lines = look.lines.iter().map(|line| {
        let shared = line.shared.as_ref();
        let users = shared
            .map_or(&[][..], |line| &line.users)
            .iter()
            .map(|user| {
                json!({
                    "id": user.id, "accesses": user.accesses, "writes": user.writes,
                    "offsets": user.offsets,
                })
            });
        let row = json!({
            "address": line.address, "latency_ns": line.latency_ns,
            "user_count": line.user_count,
            "apart_share": shared.map(|line| line.apart),
            "is_false_sharing": match shared {
                Some(line) => line.is_false(),
                // Of several users, nothing tells a write, or they were seen too rarely.
                None => (line.user_count < 2).then_some(false),
            },
            "users": users.collect::<Vec<_>>(),
            "counted_transfers": counted(of, line.address),
        });
        with(look, &line.by, row)
    });
    let source = of.source.iter().map(|line| {
        let row = json!({
            "function": line.function, "file": line.file, "line": line.line,
            "module": line.module, "users": line.users,
        });
        with(look, &line.by, row)
    });
    let document = json!({
        "schema": "hither.zoom-page/1",
        "pid": of.pid, "program": of.program, "range": of.asked.to_string(),
        "nodes": of.nodes, "sample_count": look.sample_count,
        "absent_page_count": of.absent_pages,
        "mappings": mappings.collect::<Vec<_>>(),
        "areas": areas.collect::<Vec<_>>(),
        "variables": of.variables,
        "is_counted": look.is_counted,
        "pages": pages.collect::<Vec<_>>(),
        "by_node": by_node.collect::<Vec<_>>(),
        "users_are": if look.by_thread { "threads" } else { "cpus" },
        "users": users.collect::<Vec<_>>(),
        "lines": lines.collect::<Vec<_>>(),
        "source": source.collect::<Vec<_>>(),
        "written": look.written.get(), "written_basis": look.written.basis(),
        "choice": choice_json(&look.choice),
        "sentence": of.sentence,
        "next": of.next,
        "notes": notes,
    });
    print::json(document)
}

/// A row whose use is not known.
fn without(mut row: Value) -> Value {
    for field in ["accesses", "reads", "writes", "transfers"] {
        row[field] = Value::Null;
    }
    row
}

/// A row with its reads, writes and lines from caches.
fn with(look: &PageDetail, by: &WordUse, mut row: Value) -> Value {
    row["accesses"] = json!(by.all());
    row["reads"] = json!(look.tells_kinds.then_some(by.reads));
    row["writes"] = json!(look.tells_kinds.then_some(by.writes));
    row["transfers"] = json!(look.tells_transfers.then_some(by.transfers));
    row
}
