use super::super::Layout;
use super::super::file::read;
use super::super::manager::{Goal, Manager, Pace, PartitionReading, Proposal, Slot, Use};
use super::*;

/// `db` has nodes 1 and 2, `web` 3 and 4, the rest 0 and 5.
fn layout() -> Layout {
    let text = FILE.replace("node:3", "node:3-4");
    read(&text, &machine(7)).unwrap().layout
}

fn manager(goals: &[(&str, Goal)]) -> Manager {
    let goals: Vec<_> = goals
        .iter()
        .map(|(name, goal)| ((*name).to_owned(), goal.clone()))
        .collect();
    Manager::new(
        &goals,
        Pace {
            hold: 3,
            cooldown_s: 60,
            interval_s: 5,
        },
    )
}

fn look(now_s: f64, uses: &[(&str, f64, f64)]) -> PartitionReading {
    let uses = uses.iter().map(|&(name, cpu, memory)| {
        let used = Use {
            cpu,
            memory,
            stall: None,
        };
        (name.to_owned(), used)
    });
    PartitionReading {
        now_s,
        uses: uses.collect(),
        ..PartitionReading::default()
    }
}

/// What comes of several looks, 5 s apart.
fn looks(
    manager: &mut Manager,
    from_s: f64,
    count: u32,
    uses: &[(&str, f64, f64)],
) -> Vec<Option<Proposal>> {
    (0..count)
        .map(|at| {
            let look = look(from_s + 5.0 * f64::from(at), uses);
            manager.step(&layout(), &machine(7), &look).0
        })
        .collect()
}

#[test]
fn a_want_must_last_and_moves_are_apart() {
    let goal = Goal::default();
    let mut manager = manager(&[("db", goal.clone()), ("web", goal)]);
    let busy = [("db", 0.95, 0.5), ("web", 0.1, 0.2)];
    let said = looks(&mut manager, 0.0, 3, &busy);
    assert_eq!(said[..2], [None, None]);
    let proposal = said[2].clone().unwrap();
    // Of nodes 3 and 4 the third is nearer to db's.
    assert_eq!(
        (proposal.node, proposal.from.as_str(), proposal.to.as_str()),
        (NodeId(3), "web", "db")
    );
    assert_eq!(
        proposal.why,
        "db: uses 95 % of its CPUs; web: would use 20 % of its CPUs and 40 % of its memory without it"
    );
    manager.moved(15.0);
    // Not before a minute has passed.
    let said = looks(&mut manager, 20.0, 12, &busy);
    let first = said.iter().position(Option::is_some);
    assert_eq!(first, Some(11), "75 s is a minute after 15 s");
}

#[test]
fn one_quiet_look_begins_the_count_anew() {
    let goal = Goal::default();
    let mut manager = manager(&[("db", goal.clone()), ("web", goal)]);
    let busy = [("db", 0.95, 0.5), ("web", 0.1, 0.2)];
    let quiet = [("db", 0.5, 0.5), ("web", 0.1, 0.2)];
    looks(&mut manager, 0.0, 2, &busy);
    looks(&mut manager, 10.0, 1, &quiet);
    assert_eq!(looks(&mut manager, 15.0, 2, &busy), [None, None]);
    assert!(looks(&mut manager, 25.0, 1, &busy)[0].is_some());
}

#[test]
fn nobody_gives_what_it_needs() {
    let goal = Goal::default();
    for (web, memory) in [(0.4, 0.2), (0.1, 0.5)] {
        let mut manager = manager(&[("db", goal.clone()), ("web", goal.clone())]);
        let said = looks(
            &mut manager,
            0.0,
            5,
            &[("db", 0.95, 0.5), ("web", web, memory)],
        );
        assert_eq!(said, vec![None; 5], "web uses {web} and {memory}");
        let (_, lines) = manager.step(
            &layout(),
            &machine(7),
            &look(30.0, &[("db", 0.95, 0.5), ("web", web, memory)]),
        );
        assert!(
            lines
                .iter()
                .any(|line| line == "db: nobody can spare a node"),
            "{lines:?}"
        );
    }
    // The rest has no goal: it is left alone, though it is idle.
    let mut manager = manager(&[("db", goal)]);
    let said = looks(
        &mut manager,
        0.0,
        5,
        &[("db", 0.95, 0.5), ("rest", 0.0, 0.0)],
    );
    assert_eq!(said, vec![None; 5]);
}

#[test]
fn a_schedule_goes_before_use() {
    let night = Goal {
        schedule: vec![Slot {
            from: "22:00".to_owned(),
            to: "06:00".to_owned(),
            nodes: 3,
        }],
        ..Goal::default()
    };
    let mut manager = manager(&[("db", night), ("web", Goal::default())]);
    let mut at = |minute: u32| {
        let mut said = None;
        for step in 0..3 {
            let mut look = look(f64::from(step), &[("db", 0.0, 0.0), ("web", 0.2, 0.2)]);
            look.minute = minute;
            said = manager.step(&layout(), &machine(7), &look).0;
        }
        said.map(|proposal| proposal.why)
    };
    assert_eq!(at(12 * 60), None);
    assert!(
        at(23 * 60)
            .unwrap()
            .starts_with("db: has 2 of 3 from 22:00 to 06:00")
    );
    assert!(at(60).is_some());
    assert_eq!(at(6 * 60), None);
}

#[test]
fn priority_decides_who_is_served_and_who_gives() {
    let goal = |priority| Goal {
        priority,
        ..Goal::default()
    };
    let mut manager = manager(&[("db", goal(1)), ("rest", goal(2)), ("web", goal(0))]);
    let uses = [("db", 0.95, 0.1), ("rest", 0.95, 0.1), ("web", 0.0, 0.0)];
    let said = looks(&mut manager, 0.0, 3, &uses);
    let proposal = said[2].clone().unwrap();
    assert_eq!(
        (proposal.from.as_str(), proposal.to.as_str()),
        ("web", "rest")
    );
}
