//! What a move came to, for a person and as `hither.move/1` (`docs/cli.md`).

use super::aim::Aim;
use super::astray::{Astray, Share};
use super::perform::{Account, Origin, Piece, Places, Stop, count};
use super::policy::{Held, Memory};
use super::select::addresses;
use super::stays;
use super::undo::Life;
use crate::print::{self, Table};
use crate::terminal::Terminal;
use crate::units;
use hither_core::foreign::Foreign;
use hither_core::plan::Refusal;
use hither_core::set::NodeSet;
use hither_linux::fixed::Fixed;
use serde_json::{Value, json};

/// Everything that is reported.
pub struct Report<'a> {
    /// Of the process.
    pub pid: i32,
    /// Its command name.
    pub program: &'a str,
    /// What `--to` said, or `undo`.
    pub to: String,
    /// What that comes to.
    pub aim: &'a Aim,
    /// What was selected and has pages in memory.
    pub pieces: &'a [Piece],
    /// Mappings that were selected and have none.
    pub empty_count: usize,
    /// What became of each piece; `None` where nothing was to be changed.
    pub accounts: Option<&'a [Account]>,
    /// Why it ended early.
    pub stop: Option<Stop>,
    /// The process's life; `None` where it had ended.
    pub life: Option<Life>,
    /// Policies of what was selected that name nodes.
    pub held: &'a [Held],
    /// The control group whose memory was narrowed, and to what.
    pub narrowed: Option<(&'a Memory, NodeSet)>,
    /// May pages move that other processes map, too?
    pub moves_shared: bool,
    /// Pages that the report which is taken back speaks of; 0 where none is.
    pub recorded_pages: u64,
    /// What must not move.
    pub fixed: &'a Fixed,
    /// `--astray`: what the process is bound to.
    pub astray: Option<&'a Astray>,
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

    /// The target as a sentence has it: `node2`, `tier:0 (node0, node2)`, `nodes 0-1, in turns`.
    fn target(&self) -> String {
        let nodes = self.aim.nodes();
        match self.aim {
            Aim::Fill(rooms) if rooms.len() == 1 => format!("node{nodes}"),
            Aim::Fill(rooms) => {
                let nodes: Vec<String> = rooms.iter().map(|room| room.node.to_string()).collect();
                format!("{} ({})", self.to, nodes.join(", "))
            }
            Aim::Spread(_) => format!("nodes {nodes}, in turns"),
            Aim::Back(_) => format!("where they were (nodes {nodes})"),
            Aim::Bound(_) => self.astray.map_or_else(String::new, Astray::words),
        }
    }

    /// For a person.
    #[must_use]
    pub fn text(&self, terminal: Terminal) -> String {
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
        let gone_pages = self.recorded_pages.saturating_sub(self.resident());
        if gone_pages > 0 {
            text.push_str(&format!(", {} not any more", pages(gone_pages)));
        }
        text.push_str("\n\n");
        text.push_str(&self.table(terminal));
        text.push('\n');
        match self.accounts {
            None => text.push_str(&self.intention()),
            Some(_) => text.push_str(&self.verdict()),
        }
        if let Some((before, after)) = self.shares() {
            text.push_str(&match after {
                Some(after) => {
                    format!("astray: before {}, after {}\n", before.text(), after.text())
                }
                None => format!("astray: {}\n", before.text()),
            });
        }
        for note in self.notes() {
            text.push_str(&format!("{note}\n"));
        }
        text
    }

    /// With `--astray`: pages astray before and, where pages moved, after.
    fn shares(&self) -> Option<(Share, Option<Share>)> {
        self.astray?;
        let after = self.accounts.and_then(|_| Share::after(&self.total()));
        Some((Share::before(self.pieces), after))
    }

    /// Sentences on what the figures do not show: shared pages, and where new ones come from.
    fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        let shared = self.total().refused.contains_key(&Refusal::Shared);
        match (shared, self.moves_shared) {
            (false, _) => {}
            (true, false) => notes.push(
                "what other processes map, too, moves where root asks for it: run hither as root"
                    .to_owned(),
            ),
            (true, true) => notes.push(
                "programs and libraries that other processes use, too, stay; name them with \
                 --mapping to move them for all"
                    .to_owned(),
            ),
        }
        notes.extend(stays::notes(self.fixed));
        let targets = self.aim.nodes();
        for held in self.held {
            let (policy, nodes) = (&held.policy, &held.policy.nodes);
            let mappings = print::count(held.mapping_count, "mapping");
            match &self.narrowed {
                Some(_) => notes.push(format!(
                    "policy: the kernel puts other nodes into `{policy}` ({mappings}), and keeps them \
                     when the group gets its memory back"
                )),
                None if !held.leads_away_from(&targets) || self.astray.is_some() => {}
                None => notes.push(format!(
                    "warning: new pages of {mappings} ({}) come from nodes {nodes} still: their policy \
                     is `{policy}`; start the program with `hither run --membind={targets}`, or see \
                     --policy",
                    print::size(held.pages * 4),
                )),
            }
        }
        if let Some((memory, nodes)) = &self.narrowed {
            notes.push(match self.aim {
                Aim::Back(_) => format!(
                    "policy: /{} is `{}` again",
                    memory.file.shown(),
                    memory.before
                ),
                _ => format!(
                    "policy: new pages come from nodes {nodes}: /{} was `{}`",
                    memory.file.shown(),
                    memory.before
                ),
            });
        }
        notes
    }

    fn table(&self, terminal: Terminal) -> String {
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
            // Of what is astray only the mappings in question.
            let is_right = piece.to_move.is_empty() && piece.fixed.is_empty();
            if self.astray.is_some() && is_right {
                continue;
            }
            let account = self.accounts.map(|accounts| &accounts[index]);
            let name = match piece.mapping.name.as_str() {
                "" => "[anon]",
                name => name,
            };
            rows.push(row(
                [addresses(&piece.mapping.pages()), name.to_owned()],
                &piece.before,
                count(&piece.to_move),
                piece.before.there,
                account,
            ));
        }
        if self.pieces.len() > 1 {
            let total = self.total();
            let places = self.places();
            let account = self.accounts.map(|_| &total);
            let names = ["total".to_owned(), String::new()];
            rows.push(row(names, &places, self.to_move(), places.there, account));
        }
        Table::new(&head, &rows).text(terminal)
    }

    fn intention(&self) -> String {
        format!(
            "dry run, nothing was changed: {} would be tried, {} there already\n",
            pages(self.to_move()),
            is_or_are(self.places().there),
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
        match total.strayed() {
            None => text.push_str("not verified: the process cannot be looked at any more\n"),
            Some(0) => text.push_str(&format!(
                "verified: {} found on {}\n",
                is_or_are(total.after.as_ref().map_or(0, |places| places.there)),
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

    /// `null` where it was too scattered to be remembered.
    fn moves(&self) -> Value {
        let accounts = self.accounts.unwrap_or_default();
        let mut moves = Vec::new();
        for account in accounts {
            let Some(origins) = &account.origins else {
                return Value::Null;
            };
            moves.extend(origins.iter().filter(|origin| origin.moved > 0).map(moved));
        }
        moves.into()
    }

    /// The same as a document, indented, with a final newline.
    #[must_use]
    pub fn json(&self) -> String {
        let nodes: Vec<_> = self.aim.nodes().iter().collect();
        let mappings = self.pieces.iter().enumerate().map(|(index, piece)| {
            let account = self.accounts.map(|accounts| &accounts[index]);
            let mut row = figures(
                count(&piece.resident),
                &piece.before,
                count(&piece.to_move),
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
        let mut document = json!({
            "schema": "hither.move/1",
            "pid": self.pid,
            "program": self.program,
            "to": self.to,
            "to_nodes": nodes,
            "ended": ended,
            "page_bytes": 4096,
            "mappings": mappings,
            "empty_mapping_count": self.empty_count,
            "total": figures(self.resident(), &places, self.to_move(), account),
            "process": self.life.as_ref().map(Life::json),
            "policies": self.held.iter().map(|held| json!({
                "policy": held.policy.to_string(),
                "mapping_count": held.mapping_count,
                "resident_pages": held.pages,
                "leads_away": held.leads_away_from(&self.aim.nodes()),
            })).collect::<Vec<_>>(),
            "policy": self.narrowed.as_ref().map(|(memory, nodes)| json!({
                "file": memory.file,
                "before": memory.before,
                "after": nodes.to_string(),
            })),
            "notes": self.notes(),
            "fixed": stays::json(self.fixed),
        });
        if let Some((before, after)) = self.shares() {
            document["astray"] = json!({
                "before": before.json(),
                "after": after.map(Share::json),
            });
        }
        if self.accounts.is_some() {
            document["moves"] = self.moves();
        }
        print::json(document)
    }
}

/// What went where: ranges of pages that were on one node, of which some have moved.
fn moved(origin: &Origin) -> Value {
    json!({
        "range": addresses(&origin.pages),
        "from": origin.from,
        "moved_pages": origin.moved,
        "to": origin.to.iter().collect::<Vec<_>>(),
    })
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

fn figures(resident: u64, before: &Places, to_move: u64, account: Option<&Account>) -> Value {
    let mut figures = json!({
        "resident_pages": resident,
        "before": places_json(before),
        "to_move_pages": to_move,
        "already_there_pages": before.there,
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
        figures["strayed_pages"] = account.strayed().into();
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
pub fn pages(count: u64) -> String {
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

#[cfg(test)]
mod tests {
    use super::*;
    use hither_core::ids::NodeId;
    use std::collections::BTreeMap;

    #[test]
    fn notes_say_what_figures_do_not() {
        let aim = Aim::Spread(vec![NodeId(0), NodeId(1)]);
        let account = Account {
            refused: BTreeMap::from([(Refusal::Shared, 3)]),
            ..Account::default()
        };
        let held = |policy: &str| Held {
            policy: policy.parse().unwrap(),
            mapping_count: 2,
            pages: 256,
        };
        let (inside, outside) = ([held("bind:0-1")], [held("prefer:3")]);
        let memory = Memory {
            file: "sys/fs/cgroup/db/cpuset.mems".to_owned(),
            before: "0-3".to_owned(),
        };
        let fixed = Fixed::default();
        let report = |held, moves_shared, narrowed| Report {
            pid: 7,
            program: "db",
            to: "0-1".to_owned(),
            aim: &aim,
            pieces: &[],
            empty_count: 0,
            accounts: Some(std::slice::from_ref(&account)),
            stop: None,
            life: None,
            held,
            narrowed,
            moves_shared,
            recorded_pages: 0,
            fixed: &fixed,
            astray: None,
        };
        let notes = report(&inside, false, None).notes();
        assert!(
            notes.len() == 1 && notes[0].ends_with("run hither as root"),
            "{notes:?}"
        );
        let notes = report(&outside, true, None).notes();
        assert!(
            notes.len() == 2 && notes[0].contains("with --mapping"),
            "{notes:?}"
        );
        assert!(
            notes[1]
                .starts_with("warning: new pages of 2 mappings (1 MiB) come from nodes 3 still")
                && notes[1].contains("`prefer:3`")
                && notes[1].contains("--membind=0-1`"),
            "{notes:?}"
        );
        let nodes = "0-1".parse().unwrap();
        let notes = report(&outside, true, Some((&memory, nodes))).notes();
        assert!(
            notes[1].contains("the kernel puts other nodes into `prefer:3`"),
            "{notes:?}"
        );
        assert!(notes[2].ends_with("come from nodes 0-1: /sys/fs/cgroup/db/cpuset.mems was `0-3`"));
        let text = report(&outside, true, None).text(Terminal::PIPE);
        assert!(
            text.contains("to nodes 0-1, in turns: ") && text.contains("\nwarning: "),
            "{text}"
        );
    }
}
