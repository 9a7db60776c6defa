//! The rules by hand, and what holds of all runs.

use super::*;
use crate::engine::{CampaignRow, DirectionRow, Grounds, Summary, Verdict};
use crate::ids::NodeId;
use crate::plan::Mechanism;
use proptest::prelude::*;

fn key(nodes: &str) -> Key {
    Key {
        program: "/usr/bin/solver".to_owned(),
        build: "build-id:ab".to_owned(),
        arguments: vec!["--mb".to_owned(), "64".to_owned()],
        nodes: nodes.to_owned(),
    }
}

fn kept_pages(mechanism: Mechanism, page_count: u64) -> Kept {
    Kept {
        mechanism,
        page_count,
        gain_ns: Some(1e6),
    }
}

/// A run of so many seconds in which interleaving and collocation paid on so many pages.
fn run(seconds: f64, turns: u64, near: u64) -> Run {
    Run {
        at_s: 1000,
        seconds,
        evidence: Some(Rung::Pmu),
        kept: vec![
            kept_pages(Mechanism::Interleave, turns),
            kept_pages(Mechanism::Collocate, near),
        ],
        judged_count: 2,
        ..Run::default()
    }
}

fn started(seconds: f64, start: Start) -> Run {
    Run {
        start,
        ..run(seconds, 0, 0)
    }
}

#[test]
fn starts_follow_what_paid() {
    for (turns, near, is_divided, expected) in [
        (0, 0, false, Start::Nothing),
        (1000, 0, false, Start::Nothing), // less than 4 MiB
        (9000, 0, false, Start::Turns),
        (6000, 3000, false, Start::Turns), // two thirds
        (5000, 4000, false, Start::LargeInTurns),
        (3000, 6000, true, Start::LargeInTurns), // a third
        (2000, 7000, true, Start::LargeDivided),
        (2000, 7000, false, Start::Nothing),
        (0, 7000, false, Start::Nothing),
    ] {
        let run = Run {
            is_divided,
            ..run(1.0, turns, near)
        };
        assert_eq!(choose(&run).0, expected, "{turns} {near} {is_divided}");
    }
    let blind = Run {
        evidence: None,
        ..run(1.0, 9000, 0)
    };
    assert_eq!(choose(&blind).1, "nothing was watched");
    let harmed = Run {
        harmful_count: 1,
        ..run(1.0, 0, 0)
    };
    assert!(choose(&harmed).1.ends_with("and 1 did harm"));
}

#[test]
fn a_start_is_learned_checked_and_renewed() {
    let mut program = Program::new(key("0-3"));
    assert_eq!(program.advise(1000).start, Start::Nothing);
    let lesson = program.learn(run(2.0, 9000, 0));
    assert!(
        lesson.starts_with("the next run begins with `all pages in turns`"),
        "{lesson}"
    );
    for count in 0..TRUSTED_RUNS {
        assert_eq!(
            program.advise(2000).start,
            Start::Turns,
            "after {count} runs"
        );
        let lesson = program.learn(started(1.5, Start::Turns));
        assert_eq!(
            lesson,
            "`all pages in turns` is kept: it took 1.50 s, 2.00 s without"
        );
    }
    let advice = program.advise(2000);
    assert_eq!(advice.start, Start::Nothing);
    assert!(advice.why.ends_with("measured anew"), "{}", advice.why);
    // Measured anew, it pays again, or no longer.
    let mut other = program.clone();
    assert!(
        program
            .learn(run(2.0, 9000, 0))
            .starts_with("`all pages in turns` again")
    );
    assert_eq!(program.advise(2000).start, Start::Turns);
    assert!(other.learn(run(2.0, 0, 0)).contains("no longer begun with"));
    assert_eq!(other.advise(2000).start, Start::Nothing);
    // Age, and a clock that went back.
    assert_eq!(program.advise(1000 + TRUSTED_S).start, Start::Turns);
    let why = program.advise(1001 + TRUSTED_S).why;
    assert_eq!(why, "it was learned 30 days ago: measured anew");
    assert_eq!(program.advise(999).start, Start::Nothing);
}

#[test]
fn what_turns_out_worse_is_unlearned() {
    let learned = || {
        let mut program = Program::new(key("0-3"));
        program.learn(run(2.0, 9000, 0));
        program
    };
    // 2.0 s and a tenth: not worse. One that is worse is not enough, and a good one clears it.
    let mut program = learned();
    for seconds in [2.2, 2.3, 2.0, 2.3] {
        program.learn(started(seconds, Start::Turns));
        assert_eq!(program.start, Start::Turns, "{seconds}");
    }
    let lesson = program.learn(started(2.4, Start::Turns));
    assert_eq!(
        lesson,
        "`all pages in turns` was unlearned: it took 2.40 s, 2.00 s without"
    );
    assert_eq!(program.advise(1000).start, Start::Nothing);
    assert_eq!(program.advise(1000).why, lesson);
    // For 10 runs nothing is learned; then it may be again, and is barred for longer the next time.
    for _ in 0..10 {
        assert!(
            program
                .learn(run(2.0, 9000, 0))
                .starts_with("nothing was learned")
        );
    }
    assert!(
        program
            .learn(run(2.0, 9000, 0))
            .starts_with("the next run begins")
    );
    program.learn(started(3.0, Start::Turns));
    program.learn(started(3.0, Start::Turns));
    assert_eq!((program.unlearned_count, program.barred_runs), (2, 20));

    // Slower memory besides: one is enough.
    let mut program = learned();
    program.reference.as_mut().unwrap().figures.latency_ns = Some(100.0);
    let mut slow = started(2.3, Start::Turns);
    slow.figures.latency_ns = Some(120.0);
    program.learn(slow);
    assert_eq!(program.unlearned_count, 1);

    // A guess has one chance, and less room.
    let mut program = Program::new(key("0-3"));
    program.learn(Run {
        is_divided: true,
        ..run(10.0, 0, 9000)
    });
    assert_eq!(program.advise(1000).start, Start::LargeDivided);
    program.learn(started(10.3, Start::LargeDivided));
    assert_eq!(program.unlearned_count, 1);
}

#[test]
fn failed_runs_and_single_nodes_teach_nothing() {
    let mut program = Program::new(key("0-3"));
    let failed = Run {
        status: 1,
        ..run(0.1, 9000, 0)
    };
    assert_eq!(
        program.learn(failed.clone()),
        "nothing was learned: it ended with status 1"
    );
    assert!(program.reference.is_none() && program.run_count == 1);
    program.learn(run(2.0, 9000, 0));
    program.learn(Run {
        start: Start::Turns,
        seconds: 9.0,
        ..failed
    });
    assert_eq!((program.start, program.worse_runs), (Start::Turns, 0));

    let mut alone = Program::new(key("0"));
    let lesson = alone.learn(run(2.0, 9000, 0));
    assert_eq!(
        lesson,
        "nothing to do at the start: one node has all of its memory"
    );
    assert_eq!(alone.advise(1000).start, Start::Nothing);
}

#[test]
fn keys_differ_by_every_part_and_have_names() {
    let base = key("0-3");
    let mut others = vec![
        base.clone(),
        base.clone(),
        base.clone(),
        base.clone(),
        base.clone(),
    ];
    others[0].program.push('x');
    others[1].build.push('x');
    others[2].arguments.push(String::new());
    others[3].nodes = "0-1".to_owned();
    // The same letters, divided otherwise.
    others[4].arguments = vec!["--mb6".to_owned(), "4".to_owned()];
    for other in &others {
        assert_ne!(other.name(), base.name(), "{other:?}");
    }
    // Pinned: names of files must not change between versions.
    assert_eq!(base.name(), "e6d21becafbef4a5");
    let program = Program::new(base.clone());
    for word in ["solver", "/usr/bin/solver", &base.name()] {
        assert!(program.is_meant(word), "{word}");
    }
    assert!(!program.is_meant("bin/solver") && !program.is_meant(""));
    assert_eq!(program.command(), "/usr/bin/solver --mb 64");
    let long = Key {
        arguments: vec!["x".repeat(MOST_KEY_BYTES)],
        ..base
    };
    assert!(!long.is_storable());
}

#[test]
fn pages_of_a_campaign_are_shared_out_by_what_was_moved() {
    let campaign = |mechanisms: &[Mechanism], page_count, verdict| CampaignRow {
        campaign: 1,
        started_us: 0,
        judged_us: 0,
        mechanisms: mechanisms.to_vec(),
        page_count,
        reverted_count: 0,
        verdict,
        grounds: Grounds::Imbalance,
        before: Default::default(),
        after: Default::default(),
        predicted: Default::default(),
        predicted_gain_ns: None,
        measured_gain_ns: Some(800.0),
        forecast: None,
    };
    let direction = |mechanism, from, to, page_count| DirectionRow {
        mechanism,
        from: NodeId(from),
        to: NodeId(to),
        page_count,
    };
    use Mechanism::{Collocate, Interleave};
    let mut summary = Summary {
        directions: vec![
            direction(Interleave, 0, 1, 3000),
            direction(Collocate, 0, 1, 500),
            direction(Collocate, 0, 2, 500),
        ],
        campaigns: vec![
            campaign(&[Interleave, Collocate], 2000, Verdict::Success),
            campaign(&[Interleave], 900, Verdict::NoEffect),
            campaign(&[Interleave], 700, Verdict::Success),
        ],
        ..Summary::default()
    };
    // 2000 pages as 3000 to 1000: 1500 and 500; and 700 more.
    let told = kept(&summary);
    let pages: Vec<_> = told
        .iter()
        .map(|kept| (kept.mechanism, kept.page_count))
        .collect();
    assert_eq!(pages, [(Interleave, 2200), (Collocate, 500)]);
    assert_eq!(told[0].gain_ns, Some(1400.0));
    // To both other nodes of three alike; not to all of four; not from two; not unevenly.
    assert!(is_divided(&summary, 3) && !is_divided(&summary, 4));
    summary.directions.push(direction(Collocate, 1, 2, 1));
    assert!(!is_divided(&summary, 3));
    summary.directions[3] = direction(Collocate, 0, 2, 501);
    assert!(!is_divided(&summary, 3));
    assert!(!is_divided(&Summary::default(), 1));
}

#[test]
fn damaged_records_are_told() {
    let mut program = Program::new(key("0-3"));
    program.learn(run(2.0, 9000, 0));
    assert_eq!(program.check(), Ok(()));
    let why = |change: fn(&mut Program)| {
        let mut damaged = program.clone();
        change(&mut damaged);
        damaged.check().unwrap_err()
    };
    assert!(why(|program| program.format = 2).contains("format 2"));
    assert!(why(|program| program.key.nodes = "x".into()).contains("key"));
    assert!(why(|program| program.reference = None).contains("no run"));
    assert!(why(|program| program.last.as_mut().unwrap().seconds = f64::NAN).contains("no number"));
}

fn any_run() -> impl Strategy<Value = Run> {
    let figures = (0.0..100.0, 0u8..3, 0usize..4, 0u64..20_000, 0u64..20_000);
    (figures, any::<bool>(), 0u64..2_000_000_000).prop_map(|(figures, is_divided, at_s)| {
        let (seconds, status, start, turns, near) = figures;
        Run {
            at_s,
            status: status / 2,
            start: Start::ALL[start],
            is_divided,
            ..run(seconds, turns, near)
        }
    })
}

proptest! {
    /// Whatever runs come: the record stays sound, trust is bounded, and what is advised is what is known.
    #[test]
    fn a_record_stays_sound(runs in proptest::collection::vec(any_run(), 0..80), now_s in any::<u64>()) {
        let mut program = Program::new(key("0-3"));
        let mut since_measured = 0;
        for mut run in runs {
            let advice = program.advise(run.at_s);
            // hither begins a run with what is advised; now and then the record changed meanwhile.
            if run.start != Start::Nothing {
                run.start = advice.start;
            }
            since_measured = match run.start {
                Start::Nothing => 0,
                _ => since_measured + u32::from(run.status == 0),
            };
            let lesson = program.learn(run);
            prop_assert!(!lesson.is_empty());
            prop_assert_eq!(program.check(), Ok(()));
            prop_assert!(program.trusted_runs <= TRUSTED_RUNS);
            prop_assert!(since_measured <= 2 * TRUSTED_RUNS + 1, "{} runs", since_measured);
            prop_assert!(program.barred_runs <= BARRED_RUNS << MOST_DOUBLINGS);
            prop_assert!(program.barred_runs == 0 || program.start == Start::Nothing);
        }
        let advice = program.advise(now_s);
        prop_assert!(advice.start == Start::Nothing || advice.start == program.start);
        let late = program.advise(u64::MAX);
        prop_assert_eq!(late.start, Start::Nothing);
    }
}
