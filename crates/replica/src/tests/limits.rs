//! What is refused, what is given up, and what comes back.

use super::coherence::{SOON, four_places};
use crate::rule::{ByteCosts, LEAST_BYTES, Verdict};
use crate::{Array, Config, Error, HomeNode, Place, Places, Replicated};
use hither_core::ids::NodeId;
use hither_core::set::CpuSet;
use std::time::{Duration, Instant};

fn small() -> Config {
    Config {
        chunk_bytes: 1 << 16,
        ..Config::default()
    }
}

/// Pages in memory of all private mappings, in KiB: of this test's own thread of numbers only a difference is
/// used, and that of arrays much larger than what other tests have.
fn resident_kb() -> u64 {
    let text = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = text
        .lines()
        .find(|line| line.starts_with("RssAnon"))
        .unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

#[test]
fn arguments_without_meaning_are_refused() {
    let make = |bytes: usize, change: &dyn Fn(&mut Config)| {
        let mut config = small();
        change(&mut config);
        Array::filled(bytes, four_places(), config, |_| {})
            .unwrap_err()
            .to_string()
    };
    assert!(make(0, &|_| {}).contains("0 bytes"));
    assert!(make(1, &|config| config.chunk_bytes = 4096).contains("power of two"));
    assert!(make(1, &|config| config.chunk_bytes = 3 << 16).contains("power of two"));
    assert!(make(1, &|config| config.max_readers = 0).contains("max_readers is 0"));
    assert!(make(1, &|config| config.home = HomeNode::Place(4)).contains("place 4"));
    assert!(make(1 << 60, &|_| {}).contains("larger chunks"));
    assert!(make(usize::MAX, &|_| {}).contains("more than an address space"));
    let odd = Replicated::<[u8; 3]>::new(4, small()).unwrap_err();
    assert!(odd.to_string().contains("values of 3 bytes"));
    let array = Array::filled(1, four_places(), small(), |_| {}).unwrap();
    assert!(array.reader_at(4).is_err());
    assert!(array.write().unwrap().bytes_mut(0..2).is_err());
    #[allow(clippy::reversed_empty_ranges)]
    let empty = 1..0;
    assert!(array.write().unwrap().bytes_mut(empty).unwrap().is_empty());
    assert!(array.write().unwrap().write(usize::MAX, &[1]).is_err());
}

#[test]
fn readers_are_bounded_and_their_slots_used_again() {
    let config = Config {
        max_readers: 2,
        ..small()
    };
    let array = Array::filled(1, four_places(), config, |_| {}).unwrap();
    let first = array.reader().unwrap();
    let _second = array.reader().unwrap();
    assert!(matches!(array.reader(), Err(Error::NoReader(2))));
    drop(first);
    assert!(array.reader().is_ok());
}

#[test]
fn a_guard_that_stays_delays_the_second_next_epoch_and_no_more() {
    let array = Array::filled(1 << 16, four_places(), small(), |_| {}).unwrap();
    let mut reader = array.reader_at(1).unwrap();
    let guard = reader.read().unwrap();
    let mut writer = array.write_within(Duration::ZERO).unwrap();
    writer.write(0, &[7]).unwrap();
    assert_eq!(writer.publish().unwrap(), 2);
    let start = Instant::now();
    let busy = array.write_within(Duration::from_millis(30)).unwrap_err();
    assert!(start.elapsed() >= Duration::from_millis(30));
    assert!(
        busy.to_string().starts_with("1 readers still hold"),
        "{busy}"
    );
    assert!(matches!(
        array.refresh(Duration::ZERO),
        Err(Error::Busy { .. })
    ));
    assert!(
        array
            .report()
            .unwrap()
            .to_string()
            .contains("1 readers hold an earlier")
    );
    // It reads its own epoch, others the next.
    assert_eq!((guard.epoch(), guard.whole()[0]), (1, 0));
    let mut other = array.reader_at(2).unwrap();
    assert_eq!(other.read().unwrap().whole()[0], 7);
    drop(guard);
    assert!(array.write_within(Duration::ZERO).is_ok());
    // A writer that has the turn keeps others out.
    let held = array.write().unwrap();
    let busy = array.write_within(Duration::from_millis(1)).unwrap_err();
    assert!(busy.to_string().contains("another writer"), "{busy}");
    drop(held);
}

#[test]
fn a_budget_and_a_full_node_leave_the_master() {
    let budget = Config {
        budget_bytes: Some(5 << 16),
        ..small()
    };
    let array = Array::filled(4 << 16, four_places(), budget, |all| all.fill(3)).unwrap();
    let built = array.refresh(SOON).unwrap();
    assert_eq!(built.bytes, 5 << 16);
    assert!(
        built
            .refused
            .iter()
            .all(|why| why.starts_with("the budget has no")),
        "{built:?}"
    );
    assert_eq!(array.report().unwrap().copies, (5, 12));
    let mut reader = array.reader_at(3).unwrap();
    assert!(reader.read().unwrap().whole().iter().all(|byte| *byte == 3));
    // Nothing more the next time, and what was written is copied again within it.
    assert_eq!(array.refresh(SOON).unwrap().bytes, 0);
    let mut writer = array.write().unwrap();
    writer.write(0, &[4; 4 << 16]).unwrap();
    writer.publish().unwrap();
    assert_eq!(array.refresh(SOON).unwrap().again_bytes, 5 << 16);

    // All of the node is to stay free: it is as full as can be.
    let full = Config {
        reserve_bytes: Some(u64::MAX),
        ..small()
    };
    let array = Array::filled(4 << 16, four_places(), full, |all| all.fill(3)).unwrap();
    let built = array.refresh(SOON).unwrap();
    assert_eq!((built.bytes, built.refused.len()), (0, 3));
    assert!(
        built.refused[0].contains("has no room for 0.3 MB more of copies"),
        "{built:?}"
    );
    let report = array.report().unwrap();
    assert!(report.to_string().contains("has no room"), "{report}");
    let mut reader = array.reader_at(3).unwrap();
    assert_eq!(reader.read().unwrap().whole()[9], 3);
}

#[test]
fn a_node_whose_pages_come_from_elsewhere_refuses() {
    let here = Places::here().unwrap();
    let node = here.list()[0].node;
    // The kernel puts pages of a node without memory elsewhere; one that is not there it refuses.
    let place = |node: u32| Place {
        node: NodeId(node),
        cpus: CpuSet::new(),
    };
    let places = Places::chosen(vec![place(node.0), place(1000)], 20).unwrap();
    let config = Config {
        reserve_bytes: Some(0),
        ..small()
    };
    let array = Array::filled(1 << 16, places, config, |all| all.fill(5)).unwrap();
    let told = array.refresh(SOON).unwrap();
    assert_eq!((told.bytes, told.refused.len()), (0, 1), "{told:?}");
    let mut reader = array.reader_at(1).unwrap();
    assert_eq!(reader.read().unwrap().whole()[0], 5);
}

#[test]
fn memory_comes_back_when_copies_are_given_up() {
    let bytes = 96 << 20;
    let array = Array::filled(bytes, four_places(), Config::default(), |all| all.fill(1)).unwrap();
    array.refresh(SOON).unwrap();
    let full = resident_kb();
    let mut reader = array.reader_at(1).unwrap();
    let guard = reader.read().unwrap();
    let copy = guard.whole().as_ptr();
    // A reader holds it: given up, but not given back.
    assert!(matches!(
        array.collapse(Duration::from_millis(5)),
        Err(Error::Busy { .. })
    ));
    assert!(guard.whole().iter().all(|byte| *byte == 1));
    drop(guard);
    let guard = reader.read().unwrap();
    assert_ne!(guard.whole().as_ptr(), copy);
    assert_eq!((guard.epoch(), guard.is_local()), (1, false));
    array.collapse(SOON).unwrap();
    let report = array.report().unwrap();
    assert_eq!(
        (report.copies.0, report.copy_bytes, report.is_given_up),
        (0, 0, true)
    );
    let back = full.saturating_sub(resident_kb());
    // 288 MiB of copies; other tests take and give some meanwhile.
    assert!(back > 150 << 10, "{back} KiB came back");
    drop(guard);
    // Asked for, copies come back.
    assert_eq!(array.refresh(SOON).unwrap().bytes, 288 << 20);
    assert!(reader.read().unwrap().is_local());
}

#[test]
fn copies_are_given_up_when_writes_dominate_and_come_back() {
    let bytes = LEAST_BYTES as usize / 4;
    let config = Config {
        costs: Some(ByteCosts::of_distance(20.0)),
        ..Config::default()
    };
    let array = Array::filled(bytes, four_places(), config, |_| {}).unwrap();
    let tend = || array.maintain(SOON, u64::MAX).unwrap();
    assert_eq!(tend().verdict, Verdict::Unknown);
    assert_eq!(array.report().unwrap().copies.0, 24);
    let write = || {
        let mut writer = array.write().unwrap();
        writer.bytes_mut(0..bytes).unwrap()[0] += 1;
        writer.publish().unwrap();
    };
    let read = |times: usize| {
        let mut reader = array.reader_at(1).unwrap();
        (0..times).for_each(|_| assert_eq!(reader.read().unwrap().whole().len(), bytes));
    };
    // Three copies of 16 MiB for each write, and nobody reads.
    let mut last = tend();
    for _ in 0..3 {
        write();
        last = tend();
    }
    assert_eq!(last.verdict, Verdict::Collapse, "{}", last.sentence);
    assert!(
        last.sentence
            .starts_with("copies are given up: local reads of 0.0 MB")
    );
    let report = array.report().unwrap();
    assert_eq!((report.copies.0, report.collapses), (0, 1));
    assert!(
        report.to_string().contains("copies are given up"),
        "{report}"
    );
    // Written as much, and read: not yet enough.
    write();
    read(5);
    assert_eq!(tend().verdict, Verdict::Keep);
    // Read alone.
    read(5);
    let back = tend();
    assert_eq!(back.verdict, Verdict::Return, "{}", back.sentence);
    assert_eq!(array.report().unwrap().copies.0, 24);
    read(5);
    assert_eq!(tend().verdict, Verdict::Keep);
}

#[test]
fn a_keeper_builds_in_the_background_and_ends_with_the_array() {
    let threads = || {
        let all = std::fs::read_dir("/proc/self/task").unwrap().flatten();
        let name = |entry: std::fs::DirEntry| std::fs::read_to_string(entry.path().join("comm"));
        all.filter_map(|entry| name(entry).ok())
            .filter(|name| name.trim() == "hither-replica")
            .count()
    };
    let array = Array::filled(64 << 16, four_places(), small(), |_| {}).unwrap();
    array.keep(Duration::from_millis(2)).unwrap();
    array.keep(Duration::from_secs(3600)).unwrap();
    let wait = |done: &dyn Fn() -> bool| {
        let start = Instant::now();
        while !done() {
            assert!(start.elapsed() < SOON, "not in time");
            std::thread::sleep(Duration::from_millis(1));
        }
    };
    wait(&|| array.report().unwrap().copies.0 == 192);
    // It wakes when something is published, although the period is an hour.
    let mut writer = array.write().unwrap();
    writer.write(0, &[1]).unwrap();
    writer.publish().unwrap();
    wait(&|| array.report().unwrap().copies.0 == 192);
    assert!(array.report().unwrap().recopied_bytes >= 3 << 12);
    assert!(threads() >= 1);
    // Dropping waits for it: a reader keeps the memory, not the thread.
    let mut reader = array.reader_at(1).unwrap();
    drop(array);
    assert_eq!(reader.read().unwrap().whole()[0], 1);
}

#[test]
fn on_this_machine_it_works_without_a_word_of_places() {
    let array = Replicated::<u32>::of(&[1, 2, 3], Config::default()).unwrap();
    let built = array.refresh(SOON).unwrap();
    let copies = array.places().list().len() - 1;
    assert_eq!(built.bytes, copies as u64 * array.chunk_bytes() as u64);
    let mut reader = array.reader().unwrap();
    reader.follow();
    let guard = reader.read().unwrap();
    assert_eq!(
        (guard.whole(), guard.get(2), guard.get(3)),
        (&[1, 2, 3][..], Some(3), None)
    );
    if copies == 0 {
        assert!(guard.is_local());
        let told = array.report().unwrap().to_string();
        assert!(told.contains("there is one place"), "{told}");
    }
}
