//! The moves and their faults.

use super::board::{CHECKS, SLOTS};
use super::{PARTS, Torture, lives, machine};
use hither_core::ids::NodeId;
use hither_core::partition::Stage;
use hither_linux::partition::{self as partitions, Partitions, evacuate};
use std::process::Child;
use std::time::{Duration, Instant};

/// How a node moves, and at which stage the fault comes; at any moment where none is named.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Plain,
    Killed(Option<Stage>),
    Interrupted(Option<Stage>),
    Exits,
    NoRoom,
}

/// How often each is met in so many moves. They are shuffled, not drawn, so that a short torture
/// meets all.
const KINDS: [(Kind, usize); 8] = [
    (Kind::Plain, 5),
    (Kind::Killed(None), 2),
    (Kind::Killed(Some(Stage::Leaving)), 2),
    (Kind::Killed(Some(Stage::Closed)), 2),
    (Kind::Interrupted(None), 1),
    (Kind::Interrupted(Some(Stage::Leaving)), 1),
    (Kind::Exits, 2),
    (Kind::NoRoom, 1),
];

impl Torture {
    fn next_kind(&mut self) -> Kind {
        if self.kinds.is_empty() {
            let each = |(kind, often)| std::iter::repeat_n(kind, often);
            self.kinds = KINDS.into_iter().flat_map(each).collect();
            self.chance.shuffle(&mut self.kinds);
        }
        self.kinds.pop().expect("there are some")
    }

    /// One move of the next kind; what came too late for its kind is tried again with the next.
    pub fn one_move(&mut self) {
        let layout = self.state().layout;
        let nodes_of = |name: &str| -> Vec<u32> {
            let set = layout.of(name).expect("it is there");
            set.nodes.iter().map(|node| node.0).collect()
        };
        let owners: Vec<(&'static str, Vec<u32>)> = PARTS
            .iter()
            .map(|&(name, _)| (name, nodes_of(name)))
            .filter(|(_, nodes)| nodes.len() > 1)
            .collect();
        let mut kind = self.next_kind();
        // What is filled is one node: that of an owner of two.
        let of_two: Vec<_> = owners
            .iter()
            .filter(|(_, n)| n.len() == 2)
            .cloned()
            .collect();
        if kind == Kind::NoRoom && of_two.is_empty() {
            self.kinds.insert(0, kind);
            kind = Kind::Plain;
        }
        let (from, nodes) = match kind {
            Kind::NoRoom => self.chance.one_of(&of_two),
            _ => self.chance.one_of(&owners),
        };
        let node = self.chance.one_of(nodes).to_string();
        let others = PARTS.map(|(name, _)| name);
        let others: Vec<_> = others.into_iter().filter(|name| name != from).collect();
        let to = *self.chance.one_of(&others);
        let words = ["partition", "move", &node, "--from", from, "--to", to];
        let was_met = match kind {
            Kind::Plain => self.plain_move(&words),
            Kind::Killed(stage) => self.killed_move(&words, stage),
            Kind::Interrupted(stage) => self.interrupted_move(&words, stage),
            Kind::Exits => self.move_with_exits(&words, from),
            Kind::NoRoom => self.move_without_room(&words, from),
        };
        if !was_met {
            self.kinds.push(kind);
        }
    }

    fn plain_move(&mut self, words: &[&str]) -> bool {
        let start = Instant::now();
        self.must(words);
        self.longest = self.longest.max(start.elapsed());
        self.count("moves");
        true
    }

    /// Waits until hither has noted a stage, or ended.
    fn wait_for(child: &mut Child, stage: Stage) {
        let word = match stage {
            Stage::Closed => "\"closed\"",
            Stage::Leaving => "\"leaving\"",
        };
        // A stage may last a millisecond: the text is not parsed.
        let path = partitions::folder().join("partitions.toml");
        let is_there = || std::fs::read_to_string(&path).is_ok_and(|text| text.contains(word));
        while !is_there() && lives(child) {}
    }

    /// hither is killed at any moment, or soon after it has noted a stage.
    fn killed_move(&mut self, words: &[&str], stage: Option<Stage>) -> bool {
        let wait = Duration::from_micros(self.chance.below(60_000));
        let mut child = self.hither(words);
        if let Some(stage) = stage {
            Self::wait_for(&mut child, stage);
        }
        // A stage takes a few milliseconds, a whole move ten times as long.
        std::thread::sleep(wait / if stage.is_some() { 20 } else { 1 });
        let killed = lives(&mut child);
        let _ = child.kill();
        let _ = child.wait();
        if !killed {
            self.count("moves that ended before they were killed");
            return true;
        }
        let moving = self.state().moving;
        self.count(match moving.as_ref().map(|moving| moving.stage) {
            None => "killed before or behind",
            Some(Stage::Leaving) => "killed while leaving",
            Some(Stage::Closed) => "killed when closed",
        });
        // Whoever comes next mends it.
        match Partitions::open(&self.root, &partitions::folder()) {
            Ok((_, notes)) if moving.is_some() && notes.is_empty() => {
                self.wrong.push("nothing was mended".to_owned());
            }
            Ok(_) => {}
            Err(error) => self.wrong.push(format!("it cannot be mended: {error}")),
        }
        // Closed is so short that most come too late.
        stage != Some(Stage::Leaving) || moving.is_some_and(|moving| Some(moving.stage) == stage)
    }

    /// Somebody presses Ctrl-C, at any moment or as soon as hither has noted a stage.
    fn interrupted_move(&mut self, words: &[&str], stage: Option<Stage>) -> bool {
        let before = self.state();
        let mut child = self.hither(words);
        match stage {
            Some(stage) => Self::wait_for(&mut child, stage),
            None => std::thread::sleep(Duration::from_micros(self.chance.below(50_000))),
        }
        // SAFETY: sends a signal to a child that was not waited for yet.
        unsafe { libc::kill(child.id() as i32, libc::SIGINT) };
        let status = child.wait().expect("it ends");
        // Before it reads signals as data, one ends it as it ends any program.
        let is_signal =
            std::os::unix::process::ExitStatusExt::signal(&status) == Some(libc::SIGINT);
        match status.code() {
            Some(0) => self.count("interrupted too late"),
            Some(130) if self.state() != before => {
                self.wrong
                    .push("an interrupted move changed something".to_owned());
            }
            Some(130) => self.count("interrupted and taken back"),
            _ if is_signal && self.state() == before => self.count("interrupted before it began"),
            _ => self
                .wrong
                .push(format!("an interrupted move ended with {status}")),
        }
        stage.is_none() || status.code() == Some(130)
    }

    /// Programs that end by themselves, and one that is killed, while their pages move.
    fn move_with_exits(&mut self, words: &[&str], name: &'static str) -> bool {
        let pages = self.options.pages;
        let mut brief: Vec<Child> = (1..4).map(|n| self.start(name, pages, n * 4)).collect();
        let delay = Duration::from_millis(self.chance.below(40));
        std::thread::scope(|scope| {
            let first = &mut brief[0];
            scope.spawn(move || {
                std::thread::sleep(delay);
                let _ = first.kill();
            });
            self.must(words);
        });
        for child in &mut brief {
            let _ = child.wait();
        }
        self.count("moves with programs that end");
        true
    }

    /// A program fills what the partition would keep: the move fails and changes nothing. But where others'
    /// memory lies on the node, as of kernel and files, so little may be the partition's that the other
    /// has room for it.
    fn move_without_room(&mut self, words: &[&str], name: &'static str) -> bool {
        let before = self.state();
        let part = before.layout.of(name).expect("it is there").nodes.clone();
        let free: u64 = part
            .iter()
            .map(|node| machine::free(&self.root, node))
            .sum();
        // Leaves both nodes nearly full, and more on each than the other has room for.
        let pages = (free * 85 / 100) as usize;
        let slot = (self.next_slot % SLOTS) as u64;
        let mut hog = self.start(name, pages, 0);
        let start = Instant::now();
        while self.board.get(slot as usize, CHECKS) == 0
            && start.elapsed() < Duration::from_secs(120)
        {
            std::thread::sleep(Duration::from_millis(20));
        }
        let of = |node: NodeId| evacuate::memory(&self.root, node);
        let on_node = words[2]
            .parse()
            .map(|node| of(NodeId(node)))
            .expect("a node");
        let others = part.iter().filter(|node| node.0.to_string() != words[2]);
        let room_kb: u64 = others
            .map(of)
            .map(|other| other.free_kb + other.file_kb)
            .sum();
        let status = self.hither(words).wait().expect("it ends");
        match status.code() {
            Some(0) if on_node.anonymous_kb <= room_kb => self.count("moves that had room"),
            Some(1) if self.state() == before => self.count("moves without room"),
            Some(1) => {
                let line = "a move without room changed something".to_owned();
                self.wrong.push(line);
            }
            _ => self.wrong.push(format!(
                "without room it ended with {status}: {} kB are there, room is for {room_kb}",
                on_node.anonymous_kb
            )),
        }
        let _ = hog.kill();
        let _ = hog.wait();
        status.code() == Some(1)
    }
}
