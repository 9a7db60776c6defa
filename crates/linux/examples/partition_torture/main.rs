//! Torture of partitions: moves nodes between three partitions under load, again and again, with
//! faults, and looks after each whether every process lives, every page is where it may be, and
//! nobody reaches what is not theirs.
//!
//! `partition_torture HITHER [--moves N] [--seed S] [--pages N] [--windows N]`, as root on a machine
//! of eight nodes with hither's Opium device (`hither lab run`). Ends with 1 where something did not
//! hold, with 2 where it was called wrongly.
//!
//! Faults: hither is killed at any moment of a move, of the split and of its end, or interrupted; a program of the
//! partition ends, or is killed, during a move; the nodes that a partition keeps have no room.

mod board;
mod chance;
mod machine;
mod moves;
mod worker;

use board::{Board, CHECKS, ERRORS, SLOTS};
use chance::Chance;
use hither_core::partition::State;
use hither_linux::partition as partitions;
use hither_linux::partition::kept::{self, Phase};
use hither_linux::proc::cgroup;
use hither_linux::root::Root;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

const BOARD: &str = "/tmp/partition_torture.board";
const FILE: &str = "/tmp/partition_torture.toml";
/// Who gets which nodes at the beginning.
const PARTS: [(&str, &str); 3] = [("a", "node:2-3"), ("b", "node:4-5"), ("c", "node:6-7")];
/// Workers of a partition that go on to the end.
const WORKERS: usize = 2;

struct Options {
    hither: PathBuf,
    moves: u64,
    seed: u64,
    pages: usize,
    /// Moves between two windows of counting.
    windows: u64,
}

struct Torture {
    options: Options,
    root: Root,
    chance: Chance,
    /// Moves that come next, the last one first.
    kinds: Vec<moves::Kind>,
    board: Board,
    next_slot: usize,
    /// Workers that must live: name of the partition, process.
    workers: Vec<(&'static str, Child)>,
    met: BTreeMap<&'static str, u64>,
    wrong: Vec<String>,
    longest: Duration,
}

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if let [mode, rest @ ..] = &words[..]
        && mode == "worker"
    {
        let numbers: Vec<u64> = rest.iter().filter_map(|word| word.parse().ok()).collect();
        let [slot, pages, seed, rounds] = numbers[..] else {
            return ExitCode::from(2);
        };
        let mut board = Board::open(Path::new(BOARD)).expect("the board");
        let rounds = (rounds > 0).then_some(rounds);
        worker::work(&mut board, slot as usize, pages as usize, seed, rounds);
        return ExitCode::SUCCESS;
    }
    let Some(options) = parse(&words) else {
        eprintln!(
            "usage: partition_torture HITHER [--moves N] [--seed S] [--pages N] [--windows N]"
        );
        return ExitCode::from(2);
    };
    let mut torture = Torture {
        chance: Chance::new(options.seed),
        options,
        kinds: Vec::new(),
        root: Root::host(),
        board: {
            // What an earlier one told is none of this one's.
            let _ = std::fs::remove_file(BOARD);
            Board::open(Path::new(BOARD)).expect("the board")
        },
        next_slot: 0,
        workers: Vec::new(),
        met: BTreeMap::new(),
        wrong: Vec::new(),
        longest: Duration::ZERO,
    };
    torture.run();
    let checks: u64 = (0..SLOTS).map(|slot| torture.board.get(slot, CHECKS)).sum();
    torture.met.insert("pages checked", checks);
    for (what, count) in &torture.met {
        println!("{what}: {count}");
    }
    println!("longest move: {} ms", torture.longest.as_millis());
    for wrong in &torture.wrong {
        println!("WRONG: {wrong}");
    }
    ExitCode::from(u8::from(!torture.wrong.is_empty()))
}

fn lives(child: &mut Child) -> bool {
    child.try_wait().is_ok_and(|ended| ended.is_none())
}

fn parse(words: &[String]) -> Option<Options> {
    let (hither, rest) = words.split_first()?;
    let mut options = Options {
        hither: PathBuf::from(hither),
        moves: 40,
        seed: 1,
        pages: 1024,
        windows: 8,
    };
    for pair in rest.chunks(2) {
        let number: u64 = pair.get(1)?.parse().ok()?;
        match pair[0].as_str() {
            "--moves" => options.moves = number,
            "--seed" => options.seed = number,
            "--pages" => options.pages = number as usize,
            "--windows" => options.windows = number.max(1),
            _ => return None,
        }
    }
    Some(options)
}

impl Torture {
    fn run(&mut self) {
        let before = machine::settings(&self.root);
        let parts =
            PARTS.map(|(name, on)| format!("[[partition]]\nname = \"{name}\"\non = \"{on}\"\n"));
        let text = format!("format = \"hither.partitions/1\"\n{}", parts.concat());
        std::fs::write(FILE, text).expect("the file of partitions");
        self.splits(&before);
        // From here on as where a system's own groups stand, which have processes.
        let mut other = self.other_group();
        let before = machine::settings(&self.root);
        self.splits(&before);
        self.must(&["partition", "apply", FILE]);
        for (name, _) in PARTS {
            for _ in 0..WORKERS {
                let worker = self.start(name, self.options.pages, 0);
                self.workers.push((name, worker));
            }
        }
        for number in 1..=self.options.moves {
            self.one_move();
            self.judge();
            if number % 50 == 0 {
                eprintln!("after {number} moves: {:?}", self.met);
            }
            if number % self.options.windows == 0 {
                self.window();
            }
            if !self.wrong.is_empty() {
                break;
            }
        }
        self.must(&["partition", "stop"]);
        self.compare(&before, "after the last stop");
        for (_, worker) in &mut self.workers {
            if !lives(worker) {
                self.wrong
                    .push("a worker did not outlive the partitions".to_owned());
            }
            let _ = worker.kill();
            let _ = worker.wait();
        }
        let _ = other.kill();
        let _ = other.wait();
    }

    /// A group that is not hither's, with a process, on a tree that gives CPUs and memory away.
    fn other_group(&self) -> Child {
        let tree = self.root.path(cgroup::TREE);
        std::fs::write(tree.join("cgroup.subtree_control"), "+cpuset").expect("cpuset");
        std::fs::create_dir(tree.join("other")).expect("a group");
        let other = Command::new("sleep").arg("1000000").spawn().expect("sleep");
        std::fs::write(tree.join("other/cgroup.procs"), other.id().to_string()).expect("joining");
        other
    }

    fn count(&mut self, what: &'static str) {
        *self.met.entry(what).or_default() += 1;
    }

    fn hither(&self, words: &[&str]) -> Child {
        let mut command = Command::new(&self.options.hither);
        command
            .args(words)
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        command.spawn().expect("hither starts")
    }

    fn must(&mut self, words: &[&str]) {
        let mut command = Command::new(&self.options.hither);
        let output = command.args(words).output().expect("hither starts");
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            let line = format!("hither {}: {}: {said}", words.join(" "), output.status);
            self.wrong.push(line);
        }
    }

    /// Splits that are cut short, and ends of splits that are: nothing is left of them.
    fn splits(&mut self, before: &BTreeMap<String, String>) {
        for _ in 0..self.options.moves.div_ceil(20).min(50) {
            let delay = self.chance.below(60);
            self.kill_after(&["partition", "apply", FILE], delay);
            self.count("splits cut short");
            self.must(&["partition", "stop"]);
            self.compare(before, "after a split cut short");
            self.must(&["partition", "apply", FILE]);
            let delay = self.chance.below(60);
            self.kill_after(&["partition", "stop"], delay);
            self.count("ends cut short");
            self.must(&["partition", "stop"]);
            self.compare(before, "after an end cut short");
        }
    }

    fn compare(&mut self, before: &BTreeMap<String, String>, when: &str) {
        let now = machine::settings(&self.root);
        for (path, text) in before {
            if now[path] != *text {
                let line = format!("{when}: {path} is {:?}, not {text:?}", now[path]);
                self.wrong.push(line);
            }
        }
    }

    fn kill_after(&self, words: &[&str], delay_ms: u64) {
        let mut child = self.hither(words);
        std::thread::sleep(Duration::from_millis(delay_ms));
        let _ = child.kill();
        let _ = child.wait();
    }

    fn start(&mut self, name: &str, pages: usize, rounds: u64) -> Child {
        let slot = self.next_slot % SLOTS;
        self.next_slot += 1;
        let own = std::env::current_exe().expect("own path");
        let [slot, pages, rounds] = [slot as u64, pages as u64, rounds].map(|n| n.to_string());
        let seed = self.chance.below(1 << 30).to_string();
        let mut command = Command::new(&self.options.hither);
        command.args(["partition", "run", name, "--"]).arg(own);
        command.args(["worker", &slot, &pages, &seed, &rounds]);
        let mut child = command.spawn().expect("a worker starts");
        // It has joined when its group says so.
        let folder = cgroup::folder(name);
        let start = Instant::now();
        let has_joined = |pid| cgroup::own_processes(&self.root, &folder).contains(&pid);
        // One of few rounds may have ended by then.
        while !has_joined(child.id() as i32) && lives(&mut child) {
            assert!(
                start.elapsed() < Duration::from_secs(60),
                "a worker does not join"
            );
            std::thread::sleep(Duration::from_millis(1));
        }
        child
    }

    fn state(&self) -> State {
        let kept = kept::read(&partitions::folder()).expect("what is kept");
        kept.map(|kept| kept.state).unwrap_or_default()
    }

    /// What holds between any two calls.
    fn judge(&mut self) {
        let kept = kept::read(&partitions::folder()).expect("what is kept");
        let Some(kept) =
            kept.filter(|kept| kept.phase == Phase::Running && kept.state.moving.is_none())
        else {
            return self.wrong.push("something is left half done".to_owned());
        };
        self.wrong
            .extend(machine::differences(&self.root, &kept.state));
        let left = machine::left_behind(&self.root, &kept.state);
        if left > 0 {
            self.wrong
                .push(format!("{left} anonymous pages are left behind"));
        }
        for (name, worker) in &mut self.workers {
            let pid = worker.id() as i32;
            let group = hither_linux::proc::pressure::group_of(&self.root, pid);
            let lives = lives(worker);
            if !lives || group != Some(format!("/hither.{name}")) {
                self.wrong.push(format!(
                    "worker {pid} of {name}: lives {lives}, in {group:?}"
                ));
            }
        }
        let errors: u64 = (0..SLOTS).map(|slot| self.board.get(slot, ERRORS)).sum();
        if errors > 0 {
            self.wrong
                .push(format!("{errors} pages have other bytes than were written"));
        }
        self.count("states judged");
    }

    /// Nobody's CPUs reach another's anonymous memory, while all workers work.
    fn window(&mut self) {
        let state = self.state();
        let counted = machine::accesses(&self.root, &state, || {
            std::thread::sleep(Duration::from_millis(100));
        });
        if counted.own == 0 {
            self.wrong
                .push("no access of anybody was counted".to_owned());
        }
        if counted.foreign > 0 {
            self.wrong
                .push(format!("accesses to what is another's: {counted:?}"));
        }
        *self.met.entry("accesses to own memory").or_default() += counted.own;
        *self.met.entry("accesses to another's memory").or_default() += counted.foreign;
        *self.met.entry("frames watched").or_default() += counted.frames;
        self.count("windows");
    }
}
