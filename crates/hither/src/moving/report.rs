//! What a move came to, for a person and as `hither.move/1` (`docs/cli.md`).

use super::perform::{Account, Piece, Places, Stop, count};
use super::select::addresses;
use super::target::{Room, Wanted};
use crate::print;
use crate::units;
use hither_core::foreign::Foreign;
use serde_json::{Value, json};

/// Everything that is reported.
pub struct Report<'a> {
    /// Of the process.
    pub pid: i32,
    /// Its command name.
    pub program: &'a str,
    /// What `--to` said.
    pub wanted: Wanted,
    /// The nodes behind it.
    pub rooms: &'a [Room],
    /// What was selected and has pages in memory.
    pub pieces: &'a [Piece],
    /// Mappings that were selected and have none.
    pub empty_count: usize,
    /// What became of each piece; `None` where nothing was to be changed.
    pub accounts: Option<&'a [Account]>,
    /// Why it ended early.
    pub stop: Option<Stop>,
}

impl Report<'_> {
    /// Sums over the pieces.
    #[must_use]
    pub fn total(&self) -> Account {
        let mut accounts = self.accounts.unwrap_or_default().iter();
        let mut total = accounts.next().cloned().unwrap_or_default();
        accounts.for_each(|account| total.add(account));
        total
    }

    fn resident(&self) -> u64 {
        self.pieces.iter().map(|piece| count(&piece.resident)).sum()
    }

    fn to_move(&self) -> u64 {
        self.pieces.iter().map(|piece| count(&piece.to_move)).sum()
    }

    fn places(&self) -> Places {
        let mut sum = Places::default();
        self.pieces.iter().for_each(|piece| sum.add(&piece.before));
        sum
    }

    /// The target as a sentence has it: `node2` or `tier:0 (node0, node2)`.
    fn target(&self) -> String {
        match self.wanted {
            Wanted::Node(_) => self.wanted.to_string(),
            Wanted::Tier(_) => {
                let nodes: Vec<String> = self.rooms.iter().map(|r| r.node.to_string()).collect();
                format!("{} ({})", self.wanted, nodes.join(", "))
            }
        }
    }

    /// For a person.
    #[must_use]
    pub fn text(&self) -> String {
        let mut text = format!(
            "pid {} ({}) to {}: {} in memory in {}",
            self.pid,
            self.program.shown(),
            self.target(),
            pages(self.resident()),
            print::count(self.pieces.len(), "mapping"),
        );
        if self.empty_count > 0 {
            text.push_str(&format!(", {} without a page", self.empty_count));
        }
        text.push_str("\n\n");
        text.push_str(&self.table());
        text.push('\n');
        match self.accounts {
            None => text.push_str(&self.intention()),
            Some(_) => text.push_str(&self.verdict()),
        }
        text
    }

    fn table(&self) -> String {
        let head = [
            "range",
            "name",
            "before",
            "would move",
            "moved",
            "there",
            "refused",
            "not tried",
            "time",
            "GB/s",
            "after",
        ];
        let mut rows: Vec<Vec<String>> = Vec::new();
        for (index, piece) in self.pieces.iter().enumerate() {
            let account = self.accounts.map(|accounts| &accounts[index]);
            let name = match piece.mapping.name.as_str() {
                "" => "[anon]",
                name => name,
            };
            rows.push(row(
                [addresses(&piece.mapping.pages()), name.to_owned()],
                &piece.before,
                count(&piece.to_move),
                piece.before.on(self.rooms),
                account,
            ));
        }
        if self.pieces.len() > 1 {
            let total = self.total();
            let places = self.places();
            let account = self.accounts.map(|_| &total);
            let names = ["total".to_owned(), String::new()];
            rows.push(row(
                names,
                &places,
                self.to_move(),
                places.on(self.rooms),
                account,
            ));
        }
        print::columns(&head, &rows)
    }

    fn intention(&self) -> String {
        format!(
            "dry run, nothing was changed: {} would be tried, {} there already\n",
            pages(self.to_move()),
            is_or_are(self.places().on(self.rooms)),
        )
    }

    fn verdict(&self) -> String {
        let total = self.total();
        let mut text = format!(
            "moved {} in {}{}; {} there already\n",
            pages(total.moved),
            units::time(total.duration_ns as f64),
            total
                .gbs()
                .map_or(String::new(), |gbs| format!(", {gbs:.2} GB/s")),
            is_or_are(total.already_there),
        );
        if !total.refused.is_empty() {
            text.push_str(&format!("refused: {}\n", refusals(&total)));
        }
        match self.stop {
            None => {}
            Some(Stop::Signal(_)) => text.push_str(&format!(
                "interrupted: {} not tried\n",
                pages(total.not_tried)
            )),
            Some(Stop::Gone) => text.push_str("the process has ended meanwhile\n"),
        }
        match total.strayed(self.rooms) {
            None => text.push_str("not verified: the process cannot be looked at any more\n"),
            Some(0) => text.push_str(&format!(
                "verified: {} found on {}\n",
                is_or_are(
                    total
                        .after
                        .as_ref()
                        .map_or(0, |places| places.on(self.rooms))
                ),
                self.target()
            )),
            Some(strayed) => text.push_str(&format!(
                "differs: {} that were on {} are not there any more (freed, swapped out, or moved \
                 by the program or the kernel)\n",
                pages(strayed),
                self.target()
            )),
        }
        text
    }

    /// The same as a document, indented, with a final newline.
    #[must_use]
    pub fn json(&self) -> String {
        let nodes: Vec<_> = self.rooms.iter().map(|room| room.node).collect();
        let mappings = self.pieces.iter().enumerate().map(|(index, piece)| {
            let account = self.accounts.map(|accounts| &accounts[index]);
            let mut row = figures(
                count(&piece.resident),
                &piece.before,
                count(&piece.to_move),
                self.rooms,
                account,
            );
            row["range"] = addresses(&piece.mapping.pages()).into();
            row["name"] = piece.mapping.name.as_str().into();
            row["permissions"] = piece.mapping.permissions().into();
            row
        });
        let mappings: Vec<Value> = mappings.collect();
        let total = self.total();
        let places = self.places();
        let account = self.accounts.map(|_| &total);
        let ended = match (self.accounts, self.stop) {
            (None, _) => "dry_run",
            (_, None) => "done",
            (_, Some(Stop::Signal(_))) => "interrupted",
            (_, Some(Stop::Gone)) => "process_gone",
        };
        let document = json!({
            "schema": "hither.move/1",
            "pid": self.pid,
            "program": self.program,
            "to": self.wanted.to_string(),
            "to_nodes": nodes,
            "ended": ended,
            "page_bytes": 4096,
            "mappings": mappings,
            "empty_mapping_count": self.empty_count,
            "total": figures(self.resident(), &places, self.to_move(), self.rooms, account),
        });
        print::json(document)
    }
}

fn row(
    names: [String; 2],
    before: &Places,
    to_move: u64,
    on_target: u64,
    account: Option<&Account>,
) -> Vec<String> {
    let mut cells = names.to_vec();
    cells.push(places(before));
    match account {
        None => cells.extend([to_move.to_string(), String::new(), on_target.to_string()]),
        Some(account) => cells.extend([
            String::new(),
            account.moved.to_string(),
            account.already_there.to_string(),
            refusals(account),
            some(account.not_tried),
            units::time(account.duration_ns as f64),
            account
                .gbs()
                .map_or(String::new(), |gbs| format!("{gbs:.2}")),
            account.after.as_ref().map_or("unknown".to_owned(), places),
        ]),
    }
    cells
}

fn figures(
    resident: u64,
    before: &Places,
    to_move: u64,
    rooms: &[Room],
    account: Option<&Account>,
) -> Value {
    let mut figures = json!({
        "resident_pages": resident,
        "before": places_json(before),
        "to_move_pages": to_move,
        "already_there_pages": before.on(rooms),
    });
    if let Some(account) = account {
        let refused = account.refused.iter();
        let refused: Vec<_> = refused
            .map(|(refusal, count)| (refusal.name(), count))
            .collect();
        figures["already_there_pages"] = account.already_there.into();
        figures["moved_pages"] = account.moved.into();
        figures["refused"] = json!(refused);
        figures["not_tried_pages"] = account.not_tried.into();
        figures["duration_ns"] = account.duration_ns.into();
        figures["throughput_gbs"] = account.gbs().into();
        figures["after"] = account.after.as_ref().map_or(Value::Null, places_json);
        figures["strayed_pages"] = account.strayed(rooms).into();
    }
    figures
}

fn places_json(places: &Places) -> Value {
    let nodes = places.nodes.iter();
    let nodes: Vec<_> = nodes
        .map(|(node, pages)| json!({ "node": node, "pages": pages }))
        .collect();
    json!({ "nodes": nodes, "nowhere_pages": places.nowhere })
}

/// `node0 12, node1 7, nowhere 1`.
fn places(places: &Places) -> String {
    let mut parts: Vec<String> = places
        .nodes
        .iter()
        .map(|(node, count)| format!("{node} {count}"))
        .collect();
    if places.nowhere > 0 {
        parts.push(format!("nowhere {}", places.nowhere));
    }
    parts.join(", ")
}

fn refusals(account: &Account) -> String {
    let refused = account.refused.iter();
    let parts: Vec<String> = refused
        .map(|(why, count)| format!("{count} {why}"))
        .collect();
    parts.join(", ")
}

/// Nothing for zero, so that an empty column is left out.
fn some(count: u64) -> String {
    match count {
        0 => String::new(),
        count => count.to_string(),
    }
}

/// `12 pages (48 KiB)`.
fn pages(count: u64) -> String {
    let pages = print::count(count as usize, "page");
    match count {
        0 => pages,
        count => format!("{pages} ({})", print::size(count * 4)),
    }
}

/// `1 page (4 KiB) is`, `12 pages (48 KiB) are`.
fn is_or_are(count: u64) -> String {
    format!("{} {}", pages(count), if count == 1 { "is" } else { "are" })
}
