//! Ten minutes of a simulated machine on which programs of two users come and go under two policies: what
//! each gets done is what it gets done alone, who wants to be left alone is, and an undo puts every page back.

use hither_core::engine::{Engine, EngineConfig};
use hither_core::ids::Pid;
use hither_core::policy::random::Random;
use hither_core::snapshot::Snapshot;
use hither_daemon::config::{self, Config};
use hither_daemon::roll::Roll;
use hither_linux::root::Root;
use hither_sim::check::Rules;
use hither_sim::scenario::machine;
use hither_sim::{INIT, Pattern, ProcessKind, ProcessPhase, SimTracker, Simulation};
use std::collections::{BTreeMap, BTreeSet};

const CONFIG: &str = "format = \"hither.daemon/1\"
[[target]]
name = \"db\"
command = \"db\"
policy = \"carrefour\"
[[target]]
name = \"app\"
command = \"app\"
policy = \"auto\"
";
const SEEDS: u64 = 2;
const SECOND_US: u64 = 1_000_000;
/// Simulated time.
const LENGTH_US: u64 = 600 * SECOND_US;
/// Differences that a program's work may have beside others.
const MOST_APART: f64 = 0.05;
/// Turns within which an undo must end.
const MOST_TURNS: usize = 2_000;
/// Control group of those who want to be left alone.
const LEFT_ALONE: &str = "/left-alone";

/// A program with its life.
#[derive(Clone, Debug)]
struct Life {
    kind: ProcessKind,
    begin_us: u64,
    end_us: u64,
}

fn kind(program: usize, name: &str, user: u32, pattern: Pattern, threads: [u32; 4]) -> ProcessKind {
    ProcessKind {
        program,
        user,
        group: "/user".to_owned(),
        name: name.to_owned(),
        threads: threads.to_vec(),
        lies_on: Some(0),
        phases: vec![ProcessPhase {
            pattern,
            length_us: 0,
        }],
        units: 200,
        huge: false,
        pinned: 0.0,
    }
}

/// Four programs of two users, some of which end and are started again; and one of each user that wants to
/// be left alone.
fn lives(seed: u64) -> Vec<Life> {
    let mut random = Random::new(seed);
    let mut lives = Vec::new();
    let mut add = |mut kind: ProcessKind, begin_us: u64, end_us: u64| {
        kind.program = lives.len();
        lives.push(Life {
            kind,
            begin_us,
            end_us,
        });
    };
    let partitioned = |name, user| kind(0, name, user, Pattern::Partitioned, [1, 1, 0, 0]);
    let shared = |name, user| kind(0, name, user, Pattern::Shared, [0, 0, 1, 1]);
    add(partitioned("db", 1000), 0, u64::MAX);
    for (name, user) in [("db", 1001), ("app", 1000), ("app", 1001)] {
        let mut now_us = random.next_u64() % (20 * SECOND_US);
        while now_us < LENGTH_US {
            let length_us = 20 * SECOND_US + random.next_u64() % (100 * SECOND_US);
            let kind = match (name, random.next_u64() % 2) {
                ("db", 0) => shared(name, user),
                _ => partitioned(name, user),
            };
            add(kind, now_us, now_us + length_us);
            now_us += length_us + random.next_u64() % (20 * SECOND_US);
        }
    }
    for user in [1000, 1001] {
        let mut alone = kind(0, "db", user, Pattern::Partitioned, [0, 0, 1, 1]);
        LEFT_ALONE.clone_into(&mut alone.group);
        add(alone, user.into(), u64::MAX);
    }
    lives
}

/// Who wants to be left alone is not among the watched.
fn leave_alone(snapshot: &mut Snapshot) {
    let is_out = |group: &Option<String>| group.as_deref() == Some(LEFT_ALONE);
    let out = snapshot.processes.iter();
    let out = out.filter(|process| is_out(&process.group));
    let out: BTreeSet<Pid> = out.map(|process| process.pid).collect();
    snapshot
        .processes
        .retain(|process| !out.contains(&process.pid));
    snapshot.pages.retain(|page| !out.contains(&page.pid));
}

/// A machine with these programs, as time goes by.
struct Run {
    simulation: Simulation,
    roll: Roll,
    config: Config,
    coming: Vec<Life>,
    going: BTreeMap<Pid, (usize, u64)>,
    /// What each program got done in its life, by its number.
    done: BTreeMap<usize, f64>,
}

impl Run {
    fn new(seed: u64, lives: &[Life], text: &str) -> Self {
        let mut world = machine(seed, 4, 0);
        // Memory and CPUs have room for all of them, so that they do not slow each other down.
        world.memory.capacity_gbs = vec![1e6; 4];
        world.tracker = SimTracker::default();
        let config = config::read(text, &Root::host()).unwrap();
        let engine_config = EngineConfig::default();
        let rules = Rules {
            config: engine_config.clone(),
            scopes: Vec::new(),
            quotas: Vec::new(),
            is_for_all: false,
        };
        let mut simulation = Simulation::new(world, Engine::new(engine_config.clone()), rules);
        // Scopes are made meanwhile, of which the checks know nothing: what must hold is checked here.
        simulation.restart(Engine::new(engine_config));
        simulation.tamper(leave_alone);
        let mut coming = lives.to_vec();
        coming.sort_by_key(|life| std::cmp::Reverse(life.begin_us));
        Self {
            simulation,
            roll: Roll::default(),
            config,
            coming,
            going: BTreeMap::new(),
            done: BTreeMap::new(),
        }
    }

    fn turn(&mut self) {
        let (roll, config) = (&mut self.roll, &self.config);
        self.simulation.turn_with(|engine, snapshot| {
            roll.meet(config, engine, snapshot, &Root::host());
        });
    }

    /// Programs start and end between two turns.
    fn run(&mut self) {
        let begin_us = self.simulation.world().now_us();
        loop {
            let now_us = self.simulation.world().now_us() - begin_us;
            let mut world = self.simulation.world_mut();
            let ended = self
                .going
                .iter()
                .filter(|(_, (_, end_us))| *end_us <= now_us);
            for pid in ended.map(|(&pid, _)| pid).collect::<Vec<_>>() {
                let fills = world.processes[&pid].fills;
                world.kill(pid);
                let (program, _) = self.going.remove(&pid).unwrap();
                self.done.insert(program, fills);
            }
            while self
                .coming
                .last()
                .is_some_and(|life| life.begin_us <= now_us)
            {
                let life = self.coming.pop().unwrap();
                let program = life.kind.program;
                let pid = world.spawn(life.kind, INIT);
                self.going.insert(pid, (program, life.end_us));
            }
            if now_us >= LENGTH_US || self.coming.is_empty() && self.going.is_empty() {
                break;
            }
            drop(world);
            self.turn();
        }
        for (pid, (program, _)) in &self.going {
            let fills = self.simulation.world().processes[pid].fills;
            self.done.insert(*program, fills);
        }
    }

    /// Units that are not where they were before hither moved them, by program.
    fn away(&self) -> BTreeMap<usize, usize> {
        let world = self.simulation.world();
        let away = world.processes.values().map(|process| {
            let pages = process.pages.iter();
            let away = pages.filter(|page| page.home != page.origin).count();
            (process.kind.program, away)
        });
        away.collect()
    }

    fn undo(&mut self) {
        self.simulation.engine_mut().begin_undo_all();
        for _ in 0..MOST_TURNS {
            self.turn();
            let engine = self.simulation.engine_mut();
            if engine.is_undone() && engine.pending_count() == 0 {
                return;
            }
        }
        panic!("the undo does not end");
    }
}

#[test]
fn programs_of_two_users_get_done_what_they_get_done_alone() {
    for seed in 0..SEEDS {
        let lives = lives(seed);
        let mut together = Run::new(seed, &lives, CONFIG);
        together.run();
        let names: BTreeSet<&str> = together
            .roll
            .seats()
            .iter()
            .map(|seat| &*seat.name)
            .collect();
        assert_eq!(names.len(), 4, "{names:?}");
        let away = together.away();
        let mut gained = BTreeMap::new();
        for life in &lives {
            let program = life.kind.program;
            let mut alone = Run::new(seed, std::slice::from_ref(life), CONFIG);
            alone.run();
            let mut untouched = Run::new(
                seed,
                std::slice::from_ref(life),
                "format = \"hither.daemon/1\"",
            );
            untouched.run();
            let [alone, untouched] = [alone, untouched].map(|run| run.done[&program]);
            let share = together.done[&program] / alone;
            let text = format!("seed {seed}, {life:?}: {share} of what it does alone");
            assert!((share - 1.0).abs() <= MOST_APART, "{text}");
            match life.kind.group == LEFT_ALONE {
                true => assert!((alone, away[&program]) == (untouched, 0), "{text}"),
                false => {
                    let best = gained.entry(life.kind.name.clone()).or_insert(0.0f64);
                    *best = best.max(together.done[&program] / untouched);
                }
            }
        }
        println!(
            "seed {seed}: {} programs, speed-up at most {gained:?}",
            lives.len()
        );
        assert!(gained.values().all(|&gain| gain > 1.08), "{gained:?}");
        assert!(away.values().sum::<usize>() > 100, "{away:?}");
        together.undo();
        let away = together.away();
        assert!(away.values().all(|&count| count == 0), "{away:?}");
    }
}
