//! The policy in a small world that runs by another model than its own: each line of a full cache is held for as long
//! as its program's share of the misses says, and programs follow rates of their own.

use super::*;
use crate::policy::{Proposal, asked};
use crate::set::CpuSet;
use crate::snapshot::{CacheState, CacheUse, Evidence, Threads};
use std::sync::OnceLock;

const CACHE_BYTES: u64 = 4 << 20;
const INTERVAL_US: u64 = 100_000;
static PREFERRED: OnceLock<Vec<String>> = OnceLock::new();

/// A program of dependent loads over its working set.
#[derive(Clone)]
struct Walker {
    bytes: f64,
    at: usize,
    may: Vec<bool>,
    name: &'static str,
    is_placed: bool,
    /// Loads of an interval, where it waits for requests in between.
    requested: Option<f64>,
    /// Instructions in the last interval.
    done: f64,
}

struct World {
    walkers: Vec<Walker>,
    policy: Caches,
    now_us: u64,
    /// Time of a miss in ns, whatever the policy thinks of it.
    miss_ns: f64,
    notes: Vec<String>,
    changes: usize,
}

fn world(walkers: &[(f64, usize)]) -> World {
    let walker = |&(mib, at): &(f64, usize)| Walker {
        bytes: mib * (1 << 20) as f64,
        at,
        may: vec![true; 2],
        name: "walker",
        is_placed: false,
        requested: None,
        done: 0.0,
    };
    World {
        walkers: walkers.iter().map(walker).collect(),
        policy: Caches::default(),
        now_us: 0,
        miss_ns: 80.0,
        notes: Vec::new(),
        changes: 0,
    }
}

impl World {
    /// Part of a walker's references that its cache serves: shares of the cache in proportion to the sets.
    fn hits(&self, walker: &Walker) -> f64 {
        let here = self.walkers.iter().filter(|other| other.at == walker.at);
        let wanted: f64 = here.map(|other| other.bytes).sum();
        (CACHE_BYTES as f64 / wanted).min(1.0)
    }

    fn step(&mut self) -> Proposal {
        self.now_us += INTERVAL_US;
        let mut snapshot = Snapshot::of_nodes(Vec::new(), "test");
        snapshot.now_us = self.now_us;
        snapshot.interval_us = INTERVAL_US;
        let cpus = ["0-1", "2-3"];
        snapshot.caches = (cpus.iter())
            .map(|cpus| CacheState {
                cpus: cpus.parse::<CpuSet>().unwrap(),
                bytes: CACHE_BYTES,
            })
            .collect();
        let hits: Vec<f64> = self
            .walkers
            .iter()
            .map(|walker| self.hits(walker))
            .collect();
        let counts: Vec<f64> = (0..2)
            .map(|at| self.walkers.iter().filter(|walker| walker.at == at).count() as f64)
            .collect();
        for (number, (walker, hits)) in self.walkers.iter_mut().zip(hits).enumerate() {
            let load_ns = 4.0 + (1.0 - hits) * self.miss_ns;
            let most_us = INTERVAL_US as f64 * (2.0 / counts[walker.at]).min(1.0);
            let (cpu_us, loads) = match walker.requested {
                Some(loads) => (loads * load_ns / 1000.0, loads),
                None => (most_us, most_us * 1000.0 / load_ns),
            };
            let waiting = match walker.requested {
                Some(_) => 0.0,
                None => 1.0 - cpu_us / INTERVAL_US as f64,
            };
            walker.done = 2.0 * loads;
            let mut process =
                ProcessState::of_test(Pid(number as i32 + 1), SpaceId(number as u32 + 1));
            process.name = walker.name.to_owned();
            process.cpu_us = Evidence::measured(cpu_us as u64, "test");
            let used = CacheUse {
                instructions: walker.done as u64,
                cpu_us: None,
                references: loads as u64,
                misses: (loads * (1.0 - hits)) as u64,
                working_set_bytes: Some(walker.bytes as u64),
            };
            process.cache = Evidence::measured(used, "test");
            let threads = Threads {
                waiting,
                cache: Some(walker.at),
                may: walker.may.clone(),
            };
            process.threads = Evidence::measured(threads, "test");
            snapshot.processes.push(process);
        }
        let proposal = asked(&mut self.policy, &snapshot, &[], |context| {
            context.preferred = PREFERRED.get_or_init(|| vec!["server".to_owned()]);
        });
        for place in &proposal.places {
            self.changes += 1;
            let walker = &mut self.walkers[place.pid.0 as usize - 1];
            walker.is_placed = place.cache.is_some();
            walker.at = place.cache.unwrap_or(walker.at);
        }
        self.balance();
        self.notes.extend(proposal.notes.clone());
        proposal
    }

    /// The kernel brings programs that are free to go to CPUs that are idle.
    fn balance(&mut self) {
        for from in 0..2 {
            let on = |at| self.walkers.iter().filter(|walker| walker.at == at).count();
            if on(from) < on(1 - from) + 2 {
                continue;
            }
            let mut walkers = self.walkers.iter_mut();
            let free = walkers.find(|walker| {
                walker.at == from
                    && !walker.is_placed
                    && walker.may[1 - from]
                    && walker.requested.is_none()
            });
            if let Some(walker) = free {
                walker.at = 1 - from;
            }
        }
    }

    fn run(&mut self, seconds: f64) {
        for _ in 0..(seconds * 1e6) as u64 / INTERVAL_US {
            self.step();
        }
    }

    fn done(&self) -> Vec<f64> {
        self.walkers.iter().map(|walker| walker.done).collect()
    }
}

#[test]
fn large_programs_are_parted_within_two_seconds_and_stay_so() {
    let mut world = world(&[(4.0, 0), (4.0, 0), (0.02, 1), (0.02, 1)]);
    world.step();
    let before = world.done();
    world.run(1.9);
    let after = world.done();
    assert!(
        after[0] > 1.5 * before[0] && after[1] > 1.5 * before[1],
        "{before:?} {after:?}"
    );
    // A small one beside a large one lacks what the large one fetches meanwhile.
    assert!(
        after[2] > 0.9 * before[2] && after[3] > 0.9 * before[3],
        "{before:?} {after:?}"
    );
    let changes = world.changes;
    world.run(60.0);
    assert_eq!(world.changes, changes);
    assert!(
        world.notes.iter().any(|note| note.ends_with("kept")),
        "{:?}",
        world.notes
    );
}

#[test]
fn what_is_well_is_left_alone() {
    for walkers in [
        [(4.0, 0), (0.02, 0), (4.0, 1), (0.02, 1)],
        // Small ones, and large ones that no cache helps.
        [(0.5, 0), (0.5, 0), (1.0, 1), (1.0, 1)],
        [(400.0, 0), (400.0, 0), (400.0, 1), (400.0, 1)],
    ] {
        let mut world = world(&walkers);
        world.run(20.0);
        assert_eq!(world.changes, 0, "{walkers:?}: {:?}", world.notes);
    }
}

#[test]
fn a_preferred_server_that_waits_for_requests_is_judged_by_the_time_that_they_take() {
    let mut world = world(&[(2.0, 0), (4.0, 0), (4.0, 1), (4.0, 1)]);
    world.walkers[0].name = "server";
    world.walkers[0].requested = Some(400_000.0);
    world.run(3.0);
    let alone = |world: &World| {
        world.walkers[1..]
            .iter()
            .all(|other| other.at != world.walkers[0].at)
    };
    assert!(alone(&world), "{:?}", world.notes);
    world.run(30.0);
    assert!(alone(&world), "{:?}", world.notes);
}

#[test]
fn a_change_that_does_not_pay_is_taken_back_and_tried_ever_more_rarely() {
    let mut world = world(&[(4.0, 0), (4.0, 0), (0.02, 1), (0.02, 1)]);
    // Programs run slower together than apart by nothing that the model knows.
    let slow = |world: &mut World| {
        let parted = world.walkers[0].at != world.walkers[1].at;
        world.miss_ns = if parted { 2000.0 } else { 80.0 };
        if parted {
            world
                .walkers
                .iter_mut()
                .for_each(|walker| walker.bytes = 64e6);
        }
    };
    for _ in 0..20 {
        world.step();
        slow(&mut world);
    }
    assert!(
        world.notes.iter().any(|note| note.ends_with("taken back")),
        "{:?}",
        world.notes
    );
    let changes = world.changes;
    world.run(4.0);
    assert_eq!(world.changes, changes, "it pauses");
}

#[test]
fn who_may_not_leave_a_cache_is_not_sent_away() {
    let mut world = world(&[(4.0, 0), (4.0, 0), (0.02, 1), (0.02, 1)]);
    for (number, walker) in world.walkers.iter_mut().enumerate() {
        walker.may = vec![number < 2, number >= 2];
    }
    world.run(10.0);
    assert_eq!(world.changes, 0);
}

#[test]
fn programs_of_unknown_size_are_waited_for() {
    let mut caches = Caches::default();
    caches.seen.insert(
        Pid(1),
        Seen {
            references: 1000,
            cpu_us: 100,
            ..Seen::default()
        },
    );
    let mut snapshot = Snapshot::of_nodes(Vec::new(), "test");
    let mut process = ProcessState::of_test(Pid(1), SpaceId(1));
    process.name = "big".into();
    snapshot.processes.push(process);
    assert_eq!(caches.unweighed(&snapshot), Some("big"));
}
