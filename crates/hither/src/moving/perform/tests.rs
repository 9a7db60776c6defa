//! Moves in a world of our own: pages on nodes with little memory.

use super::*;
use crate::moving::target::Room;
use hither_mover::{Action, Job, OutcomeBuilder, Unavailable};
use std::cell::RefCell;
use std::rc::Rc;

#[derive(Debug, Default)]
struct World {
    /// Node of each page.
    pages: BTreeMap<u64, i32>,
    /// Pages that a node still takes, where that is limited.
    capacity: BTreeMap<u32, u64>,
    /// Pages that cannot move.
    busy: Vec<u64>,
    /// Sizes of the batches, with their targets.
    batches: Vec<(u64, u32)>,
    slept_us: u64,
    /// Stop after so many batches.
    stop_after: Option<(usize, Stop)>,
}

#[derive(Clone, Debug, Default)]
struct Shared(Rc<RefCell<World>>);

impl Backend for Shared {
    fn name(&self) -> &'static str {
        "world"
    }

    fn probe(&self) -> Result<(), Unavailable> {
        Ok(())
    }

    fn execute(&mut self, jobs: &[Job<'_>]) -> Vec<Outcome> {
        let mut world = self.0.borrow_mut();
        let one = |job: &Job<'_>| {
            let Action::Migrate { pages, to } = &job.action else {
                panic!("not asked for here");
            };
            world.batches.push((pages.count(), to.0));
            let mut builder = OutcomeBuilder::new(job);
            for page in pages.iter() {
                let room = world.capacity.get(&to.0).copied();
                match world.pages.get(&page) {
                    None => builder.refused(Refusal::Unmapped),
                    Some(&node) if node == to.0 as i32 => builder.already_there(),
                    Some(_) if world.busy.contains(&page) => builder.refused(Refusal::Busy),
                    Some(_) if room == Some(0) => builder.refused_page(page, Refusal::NoMemory),
                    Some(_) => {
                        world.pages.insert(page, to.0 as i32);
                        if let Some(room) = world.capacity.get_mut(&to.0) {
                            *room -= 1;
                        }
                        builder.moved(page);
                    }
                }
            }
            builder.took(1000);
            builder.finish()
        };
        jobs.iter().map(one).collect()
    }
}

impl Surroundings for Shared {
    fn locate(&mut self, pages: &[u64], status: &mut [i32]) -> io::Result<()> {
        let world = self.0.borrow();
        for (page, status) in pages.iter().zip(status) {
            *status = world.pages.get(page).copied().unwrap_or(-2);
        }
        Ok(())
    }

    fn pause(&mut self, sleep_us: u64) -> Option<Stop> {
        let mut world = self.0.borrow_mut();
        world.slept_us += sleep_us;
        let (batches, stop) = world.stop_after?;
        (world.batches.len() >= batches).then_some(stop)
    }

    fn elapsed_us(&self) -> u64 {
        self.0.borrow().slept_us
    }

    fn progress(&mut self, tried: u64, of: u64, _: u64) {
        assert!(tried <= of, "{tried} of {of}");
    }
}

fn rooms(free: &[(u32, u64)]) -> Aim {
    let room = |&(node, available_pages)| Room {
        node: NodeId(node),
        available_pages,
    };
    Aim::Fill(free.iter().map(room).collect())
}

/// One mapping with pages `first..` on these nodes.
fn world(first: u64, nodes: &[(u64, i32)], aim: &Aim) -> (Shared, Piece) {
    world_of_huge(first, nodes, Vec::new(), aim)
}

/// The same, with pages that belong to huge pages.
fn world_of_huge(
    first: u64,
    nodes: &[(u64, i32)],
    huge: Vec<Range<u64>>,
    aim: &Aim,
) -> (Shared, Piece) {
    let world = Shared::default();
    let mut page = first;
    for &(count, node) in nodes {
        for _ in 0..count {
            world.0.borrow_mut().pages.insert(page, node);
            page += 1;
        }
    }
    let mapping = OwnMapping {
        range: first << 12..page << 12,
        readable: true,
        writable: true,
        ..OwnMapping::default()
    };
    let runs = std::iter::once(first..page).collect();
    let piece = piece(mapping, (runs, huge), aim, &mut world.clone()).unwrap();
    (world, piece)
}

fn run(world: &Shared, piece: &Piece, aim: &Aim, rate: Option<u64>) -> (Account, Option<Stop>) {
    let pieces = std::slice::from_ref(piece);
    let (mut backend, mut around) = (world.clone(), world.clone());
    let (mut accounts, stop) = perform(Pid(1), pieces, aim, rate, &mut backend, &mut around);
    let mut account = accounts.remove(0);
    account.after = Some(places(piece, aim, &mut around).unwrap());
    let refused: u64 = account.refused.values().sum();
    assert_eq!(
        account.moved + account.already_there + refused + account.not_tried,
        count(&piece.resident),
        "every page once: {account:?}"
    );
    (account, stop)
}

#[test]
fn pages_elsewhere_move_and_the_others_are_left_alone() {
    let rooms = rooms(&[(1, 1_000_000)]);
    let (world, piece) = world(1024, &[(600, 0), (100, 1), (300, 2), (5, -14)], &rooms);
    assert_eq!(piece.to_move, [1024..1624, 1724..2029]);
    assert_eq!(piece.before.nowhere, 5);
    world.0.borrow_mut().busy = vec![1030, 1900];
    let (account, stop) = run(&world, &piece, &rooms, None);
    assert_eq!(
        (account.moved, account.already_there, stop),
        (898 + 5, 100, None)
    );
    assert_eq!(account.refused, BTreeMap::from([(Refusal::Busy, 2)]));
    assert_eq!(account.strayed(), Some(0));
    assert_eq!(world.0.borrow().batches, [(905, 1)]);
    assert_eq!(account.gbs(), Some(903.0 * 4096.0 / 1000.0));
}

#[test]
fn batches_end_between_huge_pages() {
    let rooms = rooms(&[(1, 1_000_000)]);
    let (world, piece) = world(100, &[(40_000, 0)], &rooms);
    let (account, _) = run(&world, &piece, &rooms, None);
    assert_eq!(account.moved, 40_000);
    // Page 100 + 16384 lies within a huge page; the last boundary before it is 16384.
    let sizes: Vec<u64> = world
        .0
        .borrow()
        .batches
        .iter()
        .map(|batch| batch.0)
        .collect();
    assert_eq!(sizes, [16_284, 16_384, 7332]);
}

#[test]
fn a_tier_is_filled_node_by_node() {
    // node2 has room for 1300 pages, of which two whole huge pages are used; node5 has the rest.
    let rooms = rooms(&[(2, 1300), (5, 100)]);
    let (world, piece) = world(0, &[(3000, 0), (50, 5)], &rooms);
    let (account, _) = run(&world, &piece, &rooms, None);
    assert_eq!((account.moved, account.already_there), (3000, 50));
    assert_eq!(world.0.borrow().batches, [(1024, 2), (1976, 5)]);
    let after = account.after.unwrap();
    assert_eq!(
        after.nodes,
        BTreeMap::from([(NodeId(2), 1024), (NodeId(5), 2026)])
    );
}

#[test]
fn what_a_full_node_refuses_goes_to_the_next() {
    let rooms = rooms(&[(2, 10_000), (5, 10_000)]);
    let (world, piece) = world(0, &[(2000, 0)], &rooms);
    world.0.borrow_mut().capacity = BTreeMap::from([(2, 700), (5, 1000)]);
    world.0.borrow_mut().busy = vec![1, 1999];
    let (account, _) = run(&world, &piece, &rooms, None);
    assert_eq!(account.moved, 1700);
    // What is busy stays, wherever it should go: it is tried once.
    let expected = BTreeMap::from([(Refusal::Busy, 2), (Refusal::NoMemory, 298)]);
    assert_eq!(account.refused, expected);
    assert_eq!(world.0.borrow().batches, [(2000, 2), (1298, 5)]);
}

#[test]
fn a_stop_ends_it_after_the_present_batch() {
    for stop in [Stop::Signal(2), Stop::Gone] {
        let rooms = rooms(&[(1, 1_000_000)]);
        let (world, piece) = world(0, &[(40_000, 0)], &rooms);
        world.0.borrow_mut().stop_after = Some((2, stop));
        let (account, stopped) = run(&world, &piece, &rooms, None);
        assert_eq!(stopped, Some(stop));
        assert_eq!(
            (account.moved, account.not_tried),
            (32_768, 40_000 - 32_768)
        );
    }
}

#[test]
fn a_rate_sleeps_between_small_batches() {
    let rooms = rooms(&[(1, 1_000_000)]);
    let (world, piece) = world(0, &[(10_240, 0)], &rooms);
    // 40 MiB at 40 MiB/s take a second, in batches of a tenth of that.
    let (account, _) = run(&world, &piece, &rooms, Some(40 << 20));
    assert_eq!(account.moved, 10_240);
    assert_eq!(world.0.borrow().slept_us, 1_000_000);
    assert_eq!(world.0.borrow().batches, [(1024, 1); 10]);
    assert_eq!(Limits::with_rate(Some(1)).slice_pages, 512);
    assert_eq!(Limits::with_rate(Some(u64::MAX)).slice_pages, 16_384);
}

#[test]
fn pages_that_wander_off_are_noticed() {
    let rooms = rooms(&[(1, 1_000_000)]);
    let (world, piece) = world(0, &[(10, 0)], &rooms);
    let (mut account, _) = run(&world, &piece, &rooms, None);
    world.0.borrow_mut().pages.insert(3, 0);
    world.0.borrow_mut().pages.remove(&4);
    account.after = Some(places(&piece, &rooms, &mut world.clone()).unwrap());
    assert_eq!(account.strayed(), Some(2));
    account.after = None;
    assert_eq!(account.strayed(), None);
}

#[test]
fn pages_are_spread_in_turns_and_huge_ones_whole() {
    let aim = Aim::Spread(vec![NodeId(0), NodeId(1)]);
    // Pages 0 to 511 are small, the next two times 512 are huge; all on node 0.
    let huge = std::iter::once(512..1536).collect();
    let (world, piece) = world_of_huge(0, &[(1536, 0)], huge, &aim);
    // Even small pages and the second huge page are there already.
    assert_eq!(
        (piece.before.there, count(&piece.to_move)),
        (256 + 512, 256 + 512)
    );
    let (account, stop) = run(&world, &piece, &aim, None);
    assert_eq!(
        (account.moved, account.strayed(), stop),
        (768, Some(0), None)
    );
    let node = |page: u64| world.0.borrow().pages[&page];
    assert_eq!(
        [0, 1, 510, 511, 512, 1023, 1024, 1535].map(node),
        [0, 1, 0, 1, 1, 1, 0, 0]
    );
}

#[test]
fn a_move_is_taken_back_page_by_page() {
    let aim = Aim::Spread([0, 1, 2].map(NodeId).into());
    let (world, piece) = world(100, &[(300, 2), (20, -14), (300, 1)], &aim);
    let before = world.0.borrow().pages.clone();
    world.0.borrow_mut().busy = vec![100];
    let (account, _) = run(&world, &piece, &aim, None);
    let origins = account.origins.unwrap();
    // Of each 300 a third was there already; one was busy, and what was nowhere has no place.
    let told = |origin: &Origin| {
        (
            origin.pages.clone(),
            origin.from.0,
            origin.moved,
            origin.to.to_string(),
        )
    };
    assert_eq!(
        origins.iter().map(told).collect::<Vec<_>>(),
        [
            (100..400, 2, 199, "0-1".to_owned()),
            (420..720, 1, 200, "0,2".to_owned())
        ]
    );
    let back = Aim::Back(origins.into_iter().map(|o| (o.pages, o.from)).collect());
    let resident = [100..400, 420..720].to_vec();
    let mapping = piece.mapping.clone();
    let piece = super::piece(mapping, (resident, Vec::new()), &back, &mut world.clone()).unwrap();
    let (account, _) = run(&world, &piece, &back, None);
    assert_eq!((account.moved, account.already_there), (399, 201));
    let after = world.0.borrow().pages.clone();
    let differs = before
        .iter()
        .filter(|&(page, node)| after[page] != *node && *node >= 0);
    assert_eq!(differs.count(), 0);
}

#[test]
fn what_is_too_scattered_is_not_remembered() {
    let mut origins = Some(Vec::new());
    for page in 0..MOST_ORIGINS as u64 {
        remember(&mut origins, page, (page % 2) as i32);
    }
    remember(&mut origins, 1 << 30, -14);
    assert_eq!(origins.as_ref().unwrap().len(), MOST_ORIGINS);
    remember(&mut origins, 1 << 30, 0);
    assert_eq!(origins, None);
}
