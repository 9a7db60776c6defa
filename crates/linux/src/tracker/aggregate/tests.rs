//! Against a fake `/proc` in a folder: page maps are plain sparse files.

use super::*;
use crate::root::Root;
use std::fs;
use std::io::{Seek, SeekFrom, Write};
use std::path::Path;

const BASE: i32 = 100;

/// Makes `BASE` the parent of these processes.
fn fake_proc(root: &Path, pids: &[i32]) {
    let task = root.join(format!("proc/{BASE}/task/{BASE}"));
    fs::create_dir_all(&task).unwrap();
    let children: String = pids.iter().map(|pid| format!("{pid} ")).collect();
    fs::write(task.join("children"), children).unwrap();
    for pid in pids {
        let task = root.join(format!("proc/{pid}/task/{pid}"));
        fs::create_dir_all(&task).unwrap();
        fs::write(task.join("children"), "").unwrap();
        let fields = "S 100 1 1 0 -1 0 0 0 0 0 5 6 0 0 20 0 1 0 777 4096 99 0";
        fs::write(
            root.join(format!("proc/{pid}/stat")),
            format!("{pid} (p{pid}) {fields}\n"),
        )
        .unwrap();
        fs::write(root.join(format!("proc/{pid}/pagemap")), [0u8; 8]).unwrap();
    }
}

fn map_page(root: &Path, pid: i32, page: u64, frame: u64) {
    let path = root.join(format!("proc/{pid}/pagemap"));
    let mut file = fs::OpenOptions::new().write(true).open(path).unwrap();
    file.seek(SeekFrom::Start(page * 8)).unwrap();
    file.write_all(&(1 << 63 | 1 << 56 | frame).to_ne_bytes())
        .unwrap();
}

fn access(page: u64, frame: u64, from: usize, home: u32, write: bool, time_ns: u64) -> Access {
    Access {
        page,
        frame,
        from,
        home: NodeId(home),
        write,
        time_ns,
    }
}

fn tree(root: &Path) -> Tree {
    let mut tree = Tree::new(Root::new(root), BASE);
    tree.refresh(0).unwrap();
    tree
}

#[test]
fn samples_go_to_the_process_that_maps_the_frame() {
    let folder = tempfile::tempdir().unwrap();
    fake_proc(folder.path(), &[201, 202]);
    // Both have page 0x7f000; a frame belongs to one of them.
    map_page(folder.path(), 201, 0x7f000, 11);
    map_page(folder.path(), 202, 0x7f000, 22);
    let mut tree = tree(folder.path());
    let mut aggregator = Aggregator::new(false);
    let mut pages = Vec::new();
    for _ in 0..2 {
        aggregator.begin(&mut pages);
        aggregator.add(&access(0x7f000, 11, 1, 0, false, 1), &mut pages);
        aggregator.add(&access(0x7f000, 11, 1, 0, true, 2), &mut pages);
        aggregator.add(&access(0x7f000, 22, 2, 3, false, 3), &mut pages);
        aggregator.add(&access(0x7f000, 33, 2, 3, false, 4), &mut pages);
        aggregator.add(&access(0x9f000, 11, 2, 3, false, 4), &mut pages);
        let found = aggregator.finish(&mut tree, &mut pages, &mut Vec::new());
        assert_eq!((found.attributed, found.foreign), (3, 2));
        pages.sort_by_key(|page| page.pid);
        assert_eq!(
            pages.iter().map(|p| (p.pid, p.page)).collect::<Vec<_>>(),
            [(Pid(201), 0x7f000), (Pid(202), 0x7f000)]
        );
        assert_eq!(
            (pages[0].reads.get(1), pages[0].writes.get(1), pages[0].home),
            (1, 1, NodeId(0))
        );
        assert_eq!((pages[1].reads.get(2), pages[1].home), (1, NodeId(3)));
    }
}

#[test]
fn known_pairs_are_not_looked_up_again() {
    let folder = tempfile::tempdir().unwrap();
    fake_proc(folder.path(), &[201]);
    (0..100).for_each(|page| map_page(folder.path(), 201, 0x1000 + page, 5000 + page));
    let mut tree = tree(folder.path());
    let mut aggregator = Aggregator::new(false);
    let mut pages = Vec::new();
    let mut looked_up = Vec::new();
    for round in 0..3 {
        aggregator.begin(&mut pages);
        for page in 0..100 {
            aggregator.add(
                &access(0x1000 + page, 5000 + page, 0, 0, false, round),
                &mut pages,
            );
        }
        aggregator.add(&access(0x5000, 1, 0, 0, false, round), &mut pages);
        let found = aggregator.finish(&mut tree, &mut pages, &mut Vec::new());
        assert_eq!((found.attributed, pages.len()), (100, 100));
        looked_up.push(found.looked_up);
    }
    assert_eq!(looked_up, [101, 0, 0]);
}

#[test]
fn a_page_that_moves_within_the_interval_is_one_page_at_its_new_home() {
    let folder = tempfile::tempdir().unwrap();
    fake_proc(folder.path(), &[201]);
    map_page(folder.path(), 201, 0x42, 7);
    let mut tree = tree(folder.path());
    let mut aggregator = Aggregator::new(false);
    let mut pages = Vec::new();
    aggregator.begin(&mut pages);
    aggregator.add(&access(0x42, 7, 0, 0, false, 1), &mut pages);
    aggregator.finish(&mut tree, &mut pages, &mut Vec::new());
    map_page(folder.path(), 201, 0x42, 8);
    aggregator.begin(&mut pages);
    aggregator.add(&access(0x42, 8, 1, 1, false, 20), &mut pages);
    aggregator.add(&access(0x42, 7, 0, 0, false, 10), &mut pages);
    aggregator.add(&access(0x42, 7, 0, 0, true, 11), &mut pages);
    let found = aggregator.finish(&mut tree, &mut pages, &mut Vec::new());
    assert_eq!((found.attributed, pages.len()), (3, 1));
    assert_eq!((pages[0].home, pages[0].total()), (NodeId(1), 3));
    assert_eq!(
        (
            pages[0].reads.get(0),
            pages[0].reads.get(1),
            pages[0].writes.get(0)
        ),
        (1, 1, 1)
    );
}

#[test]
fn a_process_that_appears_later_gets_its_samples() {
    let folder = tempfile::tempdir().unwrap();
    fake_proc(folder.path(), &[201]);
    let mut tree = tree(folder.path());
    let mut aggregator = Aggregator::new(false);
    let mut pages = Vec::new();
    let sampled = access(0x42, 7, 0, 0, false, 1);
    aggregator.begin(&mut pages);
    aggregator.add(&sampled, &mut pages);
    assert_eq!(
        aggregator
            .finish(&mut tree, &mut pages, &mut Vec::new())
            .foreign,
        1
    );
    fake_proc(folder.path(), &[201, 202]);
    map_page(folder.path(), 202, 0x42, 7);
    tree.refresh(10_000_000).unwrap();
    aggregator.begin(&mut pages);
    aggregator.add(&sampled, &mut pages);
    assert_eq!(
        aggregator
            .finish(&mut tree, &mut pages, &mut Vec::new())
            .attributed,
        1
    );
    assert_eq!(pages[0].pid, Pid(202));
}

#[test]
fn the_table_grows_and_keeps_what_it_knows() {
    let folder = tempfile::tempdir().unwrap();
    fake_proc(folder.path(), &[201]);
    let count = 3 * FIRST_SLOTS as u64;
    for page in 0..count {
        map_page(folder.path(), 201, 0x10_0000 + page * 3, page + 1);
    }
    let mut tree = tree(folder.path());
    let mut aggregator = Aggregator::new(false);
    let mut pages = Vec::new();
    for looked_up in [count, 0] {
        aggregator.begin(&mut pages);
        for page in 0..count {
            for repeat in 0..2 {
                aggregator.add(
                    &access(0x10_0000 + page * 3, page + 1, 0, 0, false, repeat),
                    &mut pages,
                );
            }
        }
        let found = aggregator.finish(&mut tree, &mut pages, &mut Vec::new());
        assert_eq!((found.attributed, found.looked_up), (2 * count, looked_up));
        assert_eq!(pages.len() as u64, count);
        assert!(pages.iter().all(|page| page.reads.get(0) == 2));
    }
}

#[test]
fn what_ended_processes_had_does_not_stay() {
    let folder = tempfile::tempdir().unwrap();
    let count = FIRST_SLOTS as u64;
    let mut aggregator = Aggregator::new(false);
    let mut pages = Vec::new();
    fake_proc(folder.path(), &[300, 301]);
    map_page(folder.path(), 300, 0x9_0000, 7);
    let mut tree = tree(folder.path());
    // One stays; of the others each has ended when the next is seen.
    for pid in 301..309 {
        if pid > 301 {
            // As the file of a process reads that has ended.
            let stat = folder.path().join(format!("proc/{}/stat", pid - 1));
            fs::write(stat, "").unwrap();
            fake_proc(folder.path(), &[300, pid]);
            map_page(folder.path(), 300, 0x9_0000, 7);
            tree.refresh(u64::from(pid as u32) * 10_000_000).unwrap();
        }
        let frames = u64::from(pid as u32) * count;
        (0..count).for_each(|page| map_page(folder.path(), pid, 0x1000 + page, frames + page));
        aggregator.begin(&mut pages);
        let stays = u64::from(pid == 301);
        if stays == 1 {
            aggregator.add(&access(0x9_0000, 7, 0, 0, false, 1), &mut pages);
        }
        for page in 0..count {
            let access = access(0x1000 + page, frames + page, 0, 0, false, 1);
            aggregator.add(&access, &mut pages);
        }
        let found = aggregator.finish(&mut tree, &mut pages, &mut Vec::new());
        assert_eq!(
            (found.attributed, found.foreign),
            (count + stays, 0),
            "{pid}"
        );
        assert!(aggregator.slots.len() <= 8 * FIRST_SLOTS);
    }
    // The one that stayed was known all the time.
    aggregator.begin(&mut pages);
    aggregator.add(&access(0x9_0000, 7, 0, 0, false, 1), &mut pages);
    let found = aggregator.finish(&mut tree, &mut pages, &mut Vec::new());
    assert_eq!((found.attributed, found.looked_up), (1, 0));
}

#[test]
fn runs_respect_gap_and_length() {
    let pages = |list: &[u64]| list.iter().map(|&page| (page, 0)).collect::<Vec<_>>();
    let lengths = |list: &[u64], gap, most| {
        runs(&pages(list), 0, gap, most)
            .map(<[_]>::len)
            .collect::<Vec<_>>()
    };
    assert_eq!(lengths(&[1, 2, 10, 11, 500], 8, 1000), [4, 1]);
    assert_eq!(lengths(&[0, 1, 2, 3, 4], 8, 2), [2, 2, 1]);
    assert_eq!(lengths(&[], 8, 2), [0usize; 0]);
    assert_eq!(lengths(&[u64::MAX - 1], 8, 2), [1]);
}

/// Frames below 10,000 are node0's, those up to 20,000 node3's.
fn frames() -> FrameNodes {
    FrameNodes::new(vec![(1..10_000, NodeId(0)), (10_000..20_000, NodeId(3))])
}

fn listed(present: &[PresentPage]) -> Vec<(u64, u32)> {
    assert!(present.iter().all(|page| page.pid == Pid(201)));
    let mut listed: Vec<(u64, u32)> = present
        .iter()
        .map(|page| (page.page, page.home.0))
        .collect();
    listed.sort_unstable();
    listed
}

#[test]
fn neighbours_of_a_sampled_page_are_listed_once_and_with_every_new_page() {
    let folder = tempfile::tempdir().unwrap();
    fake_proc(folder.path(), &[201]);
    // Block 8 holds pages 4096 to 4607; block 9 is not sampled.
    for page in [4096, 4100, 4607, 4608] {
        map_page(folder.path(), 201, page, page);
    }
    let mut tree = tree(folder.path());
    let mut aggregator = Aggregator::new(false);
    aggregator.set_frames(frames());
    let mut pages = Vec::new();
    let mut interval = |page: u64, frame: u64| {
        let mut present = Vec::new();
        aggregator.begin(&mut pages);
        aggregator.add(&access(page, frame, 1, 0, false, 5), &mut pages);
        let found = aggregator.finish(&mut tree, &mut pages, &mut present);
        assert_eq!((found.attributed, pages.len()), (1, 1));
        assert_eq!(found.listed, present.len() as u64);
        listed(&present)
    };
    assert_eq!(interval(4100, 4100), [(4096, 0), (4607, 0)]);
    assert_eq!(interval(4100, 4100), [], "known pages are not listed again");
    // A page that moved brings nobody, a new one brings what came or moved since.
    map_page(folder.path(), 201, 4100, 10_100);
    map_page(folder.path(), 201, 4607, 10_607);
    assert_eq!(interval(4100, 10_100), []);
    map_page(folder.path(), 201, 4200, 4200);
    map_page(folder.path(), 201, 4201, 4201);
    assert_eq!(interval(4200, 4200), [(4201, 0), (4607, 3)]);
}

#[test]
fn shared_pages_and_pages_of_nobodys_frames_are_not_listed() {
    let folder = tempfile::tempdir().unwrap();
    fake_proc(folder.path(), &[201]);
    map_page(folder.path(), 201, 4096, 7);
    map_page(folder.path(), 201, 4097, 50_000);
    let path = folder.path().join("proc/201/pagemap");
    let mut file = fs::OpenOptions::new().write(true).open(path).unwrap();
    file.seek(SeekFrom::Start(4098 * 8)).unwrap();
    file.write_all(&(1u64 << 63 | 9).to_ne_bytes()).unwrap();
    let mut tree = tree(folder.path());
    let mut aggregator = Aggregator::new(false);
    aggregator.set_frames(frames());
    let mut pages = Vec::new();
    for full in [false, true] {
        aggregator.set_full(full);
        aggregator.begin(&mut pages);
        aggregator.add(&access(4096, 7, 1, 0, false, 5), &mut pages);
        assert_eq!(
            aggregator
                .finish(&mut tree, &mut pages, &mut Vec::new())
                .listed,
            0
        );
        assert_eq!(pages.len(), 1);
    }
}

#[test]
fn a_page_sampled_before_its_move_is_listed_at_its_new_home() {
    let folder = tempfile::tempdir().unwrap();
    fake_proc(folder.path(), &[201]);
    map_page(folder.path(), 201, 4096, 7);
    let mut tree = tree(folder.path());
    let mut aggregator = Aggregator::new(false);
    aggregator.set_frames(frames());
    let mut pages = Vec::new();
    aggregator.begin(&mut pages);
    aggregator.add(&access(4096, 7, 1, 0, false, 5), &mut pages);
    aggregator.finish(&mut tree, &mut pages, &mut Vec::new());
    // It moves; its old frame was sampled before, a neighbour of it after.
    map_page(folder.path(), 201, 4096, 10_007);
    map_page(folder.path(), 201, 4097, 8);
    aggregator.begin(&mut pages);
    aggregator.add(&access(4096, 7, 1, 0, false, 15), &mut pages);
    aggregator.add(&access(4097, 8, 1, 0, false, 16), &mut pages);
    let mut present = Vec::new();
    aggregator.finish(&mut tree, &mut pages, &mut present);
    pages.sort_by_key(|page| page.page);
    let seen: Vec<_> = pages
        .iter()
        .map(|p| (p.page, p.home.0, p.total()))
        .collect();
    assert_eq!(seen, [(4096, 0, 1), (4097, 0, 1)]);
    assert_eq!(listed(&present), [(4096, 3)]);
}

#[test]
fn listing_survives_growth_of_the_table() {
    let folder = tempfile::tempdir().unwrap();
    fake_proc(folder.path(), &[201]);
    // One sampled page in each of 20 blocks of 512: 10,240 pairs exceed half the first table.
    let count = 20 * HUGE_PAGES;
    for page in 0..count {
        map_page(folder.path(), 201, 0x10_0000 + page, 1 + page % 9_999);
    }
    let mut tree = tree(folder.path());
    let mut aggregator = Aggregator::new(false);
    aggregator.set_frames(frames());
    let mut pages = Vec::new();
    aggregator.begin(&mut pages);
    for page in (0..count).step_by(HUGE_PAGES as usize) {
        let frame = 1 + page % 9_999;
        aggregator.add(&access(0x10_0000 + page, frame, 0, 0, false, 1), &mut pages);
    }
    let mut present = Vec::new();
    let found = aggregator.finish(&mut tree, &mut pages, &mut present);
    assert_eq!((found.attributed, found.listed), (20, count - 20));
    assert!(pages.len() == 20 && pages.iter().all(|page| page.total() == 1));
    let seen = pages.iter().map(|page| page.page);
    let mut all: Vec<u64> = seen.chain(present.iter().map(|page| page.page)).collect();
    all.sort_unstable();
    all.dedup();
    assert_eq!(all.len() as u64, count, "each page once");
}
