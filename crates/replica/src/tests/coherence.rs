//! Issue 34, Must 3: threads read and publish at once, and readers see whole epochs in order.
//!
//! Four places with copies on this machine's first node, so that the protocol runs as on four nodes.
//! `HITHER_EPOCHS` sets how many epochs; the long run takes 10,000,000.

use crate::{Array, Config, CopiedChunks, HomeNode, Place, Places, Replicated};
use hither_core::ids::NodeId;
use hither_core::set::CpuSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The node where a page of this process comes from: node 0, unless the cpuset says otherwise.
pub(super) fn four_places() -> Places {
    let here = Places::here().unwrap();
    let node = here.list()[0].node;
    let place = Place {
        node: NodeId(node.0),
        cpus: CpuSet::new(),
    };
    Places::chosen(vec![place; 4], 20).unwrap()
}

pub(super) const SOON: Duration = Duration::from_secs(20);

/// Words 0, every 4096th and the last one hold the epoch.
fn marks(words: usize) -> impl Iterator<Item = usize> + Clone {
    (0..words).step_by(4096).chain([words - 1])
}

/// `threads` threads; each reads at its place and every `writer_share`-th of its turns publishes an epoch.
fn run(epochs: u64, threads: usize, words: usize, keeps: bool) -> (u64, f64) {
    let array = Replicated::<u64>::filled(words, four_places(), Config::default(), |all| {
        marks(words).for_each(|mark| all[mark] = 1);
    })
    .unwrap();
    if keeps {
        array.keep(Duration::from_millis(1)).unwrap();
    }
    let reads = AtomicU64::new(0);
    let is_over = AtomicBool::new(false);
    let start = Instant::now();
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let (array, reads, is_over) = (&array, &reads, &is_over);
            scope.spawn(move || {
                let mut reader = array.reader_at(thread % 4).unwrap();
                let (mut last, mut count) = (0, 0);
                while !is_over.load(Ordering::Relaxed) {
                    {
                        let guard = reader.read().unwrap();
                        let epoch = guard.epoch();
                        assert!(epoch >= last, "{epoch} after {last}");
                        last = epoch;
                        for mark in marks(words) {
                            assert_eq!(guard.get(mark), Some(epoch), "torn at {mark}");
                        }
                        assert_eq!(guard.whole()[words - 1], epoch, "torn");
                        count += 1;
                    }
                    let mut writer = match array.write_within(Duration::ZERO) {
                        Ok(writer) => writer,
                        // Another one's turn, or a reader of the last epoch but one.
                        Err(crate::Error::Busy { .. }) => {
                            std::thread::yield_now();
                            continue;
                        }
                        Err(error) => panic!("{error}"),
                    };
                    let next = writer.epoch();
                    for mark in marks(words) {
                        writer.write(mark, &[next]).unwrap();
                    }
                    assert_eq!(writer.publish().unwrap(), next);
                    if next > epochs {
                        is_over.store(true, Ordering::Relaxed);
                    }
                }
                reads.fetch_add(count, Ordering::Relaxed);
            });
        }
    });
    let report = array.report().unwrap();
    assert!(report.epoch > epochs, "{report}");
    assert_eq!(report.holders, (0, 0));
    (reads.into_inner(), start.elapsed().as_secs_f64())
}

fn epochs(usual: u64) -> u64 {
    let given = std::env::var("HITHER_EPOCHS").ok();
    given.and_then(|text| text.parse().ok()).unwrap_or(usual)
}

#[test]
fn eight_threads_read_and_publish() {
    let (reads, _) = run(epochs(100_000), 8, 1024, false);
    assert!(reads > 0);
}

#[test]
fn a_keeper_copies_meanwhile() {
    // Several chunks, so that a place is complete or not.
    let (reads, _) = run(epochs(2_000), 8, 3 * 8192 + 5, true);
    assert!(reads > 0);
}

/// `cargo test --release -p hither-replica --lib long_ -- --ignored --nocapture`
#[test]
#[ignore = "takes minutes"]
fn long_ten_million_epochs() {
    let wanted = epochs(10_000_000);
    let (reads, seconds) = run(wanted, 8, 1024, true);
    eprintln!("{wanted} epochs and {reads} reads in {seconds:.1} s: all whole, all in order");
    assert!(reads > 0);
}

#[test]
fn reads_are_served_before_copies_are_there_and_local_after() {
    let bytes = 9 << 20;
    let config = Config {
        chunk_bytes: 1 << 20,
        huge: true,
        ..Config::default()
    };
    let fill = |all: &mut [u8]| {
        all.iter_mut()
            .zip(0u32..)
            .for_each(|(byte, at)| *byte = at as u8)
    };
    let array = Array::filled(bytes, four_places(), config, fill).unwrap();
    let mut reader = array.reader_at(2).unwrap();
    let guard = reader.read().unwrap();
    assert!(!guard.is_local());
    let master = guard.whole().as_ptr();
    let built = array.refresh(SOON).unwrap();
    assert_eq!((built.bytes, built.again_bytes), (27 << 20, 0));
    assert!(built.refused.is_empty() && built.gbs() > 0.0, "{built:?}");
    // The same guard finds the copy now, with the same bytes.
    assert!(guard.is_local());
    assert_ne!(guard.whole().as_ptr(), master);
    assert!(
        guard
            .whole()
            .iter()
            .zip(0u32..)
            .all(|(byte, at)| *byte == at as u8)
    );
    let pieces: Vec<&[u8]> = guard.pieces(5..bytes + 9).collect();
    assert_eq!(pieces.len(), 9);
    assert!(pieces.concat() == guard.whole()[5..]);
    assert_eq!(guard.chunk(8).map(<[u8]>::len), Some(1 << 20));
    assert!(guard.chunk(9).is_none() && guard.chunk(usize::MAX).is_none());
    drop(guard);
    let report = array.report().unwrap();
    assert_eq!((report.copies, report.copy_bytes), ((27, 27), 27 << 20));
    assert!(
        report.local_bytes > 0 && report.remote_bytes > 0,
        "{report}"
    );
    // The place of the master reads it, and needs no copy.
    let mut home = array.reader_at(0).unwrap();
    assert!(home.read().unwrap().is_local());
}

#[test]
fn what_is_written_is_stale_at_its_chunks_alone() {
    let config = Config {
        chunk_bytes: 1 << 16,
        ..Config::default()
    };
    let array = Array::filled(8 << 16, four_places(), config, |all| all.fill(1)).unwrap();
    array.refresh(SOON).unwrap();
    let mut writer = array.write().unwrap();
    writer.write((1 << 16) - 1, &[2, 2]).unwrap();
    writer.bytes_mut(7 << 16..(7 << 16) + 1).unwrap()[0] += 1;
    assert!(writer.write(8 << 16, &[0]).is_err());
    assert_eq!(writer.publish().unwrap(), 2);
    assert_eq!(array.report().unwrap().copies, (15, 24));
    let mut reader = array.reader_at(1).unwrap();
    let check = |reader: &mut crate::Reader| {
        let guard = reader.read().unwrap();
        let twos: Vec<usize> = (0..8 << 16).filter(|&at| guard.whole()[at] == 2).collect();
        assert_eq!(twos, [(1 << 16) - 1, 1 << 16, 7 << 16]);
    };
    check(&mut reader);
    let built = array.refresh(SOON).unwrap();
    // Two pages and one, at three places.
    assert_eq!((built.bytes, built.again_bytes), (9 << 12, 9 << 12));
    check(&mut reader);
    // Abandoned: nothing has happened, and the next epoch is whole all the same.
    let mut writer = array.write().unwrap();
    writer.write(0, &[9; 100]).unwrap();
    drop(writer);
    check(&mut reader);
    let mut writer = array.write().unwrap();
    writer.write(3 << 16, &[1]).unwrap();
    assert_eq!(writer.publish().unwrap(), 3);
    check(&mut reader);
    array.trim(SOON).unwrap();
    array.write().unwrap().publish().unwrap();
    check(&mut reader);
    assert_eq!(reader.read().unwrap().epoch(), 4);
}

#[test]
fn partial_copies_are_of_what_two_places_read() {
    let config = Config {
        which: CopiedChunks::Shared,
        home: HomeNode::Interleaved,
        chunk_bytes: 1 << 16,
        ..Config::default()
    };
    let array = Array::filled(16 << 16, four_places(), config, |_| {}).unwrap();
    assert_eq!(array.refresh(SOON).unwrap().bytes, 0);
    let read = |place: usize, chunks: std::ops::Range<usize>| {
        let mut reader = array.reader_at(place).unwrap();
        let guard = reader.read().unwrap();
        let range = chunks.start << 16..chunks.end << 16;
        assert_eq!(
            guard.pieces(range).map(<[u8]>::len).sum::<usize>(),
            chunks.len() << 16
        );
    };
    read(0, 0..4);
    read(1, 2..6);
    read(2, 10..16);
    // Chunks 2 and 3, at places 0 and 1.
    assert_eq!(array.refresh(SOON).unwrap().bytes, 4 << 16);
    assert_eq!(array.report().unwrap().copy_bytes, 4 << 16);
    let before = array.report().unwrap();
    read(1, 2..4);
    read(2, 2..4);
    let after = array.report().unwrap();
    assert_eq!(after.local_bytes - before.local_bytes, 2 << 16);
    assert_eq!(after.remote_bytes - before.remote_bytes, 2 << 16);
}

/// Random writes, abandoned ones, refreshes, collapses and trims against a plain array.
#[test]
fn pages_that_were_written_are_all_that_is_copied_again() {
    let bytes = (4 << 16) - 77;
    let config = Config {
        chunk_bytes: 1 << 16,
        ..Config::default()
    };
    let array = Array::filled(bytes, four_places(), config, |_| {}).unwrap();
    let mut plain = vec![0u8; bytes];
    let mut readers: Vec<_> = (0..4)
        .map(|place| array.reader_at(place).unwrap())
        .collect();
    let mut random = hither_workloads::random::FastRandom::new(34);
    let mut draw = |below: usize| random.below(below as u64) as usize;
    for turn in 0..400u32 {
        match draw(10) {
            0..7 => {
                let mut writer = array.write().unwrap();
                let mut next = plain.clone();
                for _ in 0..=draw(3) {
                    let start = draw(bytes);
                    let length = draw((bytes - start).min(30_000) + 1);
                    let data = vec![draw(256) as u8; length];
                    next[start..start + length].copy_from_slice(&data);
                    if draw(2) == 0 {
                        writer.write(start, &data).unwrap();
                    } else {
                        let slice = writer.bytes_mut(start..start + length).unwrap();
                        slice.copy_from_slice(&data);
                    }
                }
                if draw(5) > 0 {
                    writer.publish().unwrap();
                    plain = next;
                }
            }
            7..9 => {
                let built = array.refresh(SOON).unwrap();
                assert!(built.refused.is_empty(), "{built:?}");
                assert_eq!(array.report().unwrap().copies, (12, 12));
            }
            _ if draw(2) == 0 => array.collapse(SOON).unwrap(),
            _ => array.trim(SOON).unwrap(),
        }
        for reader in &mut readers {
            let guard = reader.read().unwrap();
            assert!(guard.whole() == plain, "turn {turn}");
            let pieces: Vec<&[u8]> = guard.pieces(0..bytes).collect();
            assert!(pieces.concat() == plain, "turn {turn}");
        }
    }
}
