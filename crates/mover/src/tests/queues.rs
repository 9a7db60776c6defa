//! Queues against plain collections, and against a peer that writes anything into the region.

use crate::instance::Instance;
use crate::layout::{Colour, Ends, Link};
use crate::record::Asked;
use crate::region::{Corrupt, Region};
use crate::sync::Ordering;
use crate::{free_list, queue, staging};
use proptest::prelude::*;
use std::collections::VecDeque;

const SLOTS: u16 = 5;

fn region() -> Region {
    Region::new(SLOTS).expect("memory")
}

/// One random step on everything at once; slots wander between the lists as requests do.
#[derive(Clone, Debug)]
enum Step {
    Allocate,
    Free(prop::sample::Index),
    Stage(prop::sample::Index),
    Flush,
    Colour(bool),
    Enqueue(prop::sample::Index, bool),
    Dequeue(bool),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => Just(Step::Allocate),
        1 => any::<prop::sample::Index>().prop_map(Step::Free),
        3 => any::<prop::sample::Index>().prop_map(Step::Stage),
        1 => Just(Step::Flush),
        1 => any::<bool>().prop_map(Step::Colour),
        3 => (any::<prop::sample::Index>(), any::<bool>()).prop_map(|(i, q)| Step::Enqueue(i, q)),
        3 => any::<bool>().prop_map(Step::Dequeue),
    ]
}

/// What the collections of the standard library make of the same steps.
struct Model {
    free: Vec<u16>,
    staged: VecDeque<u16>,
    colour: Colour,
    queues: [VecDeque<u16>; 2],
    held: Vec<u16>,
}

fn apply(region: &Region, model: &mut Model, step: &Step) -> Result<(), TestCaseError> {
    let ends = |second: bool| -> &Ends {
        if second {
            &region.header().done
        } else {
            &region.header().normal
        }
    };
    match step {
        Step::Allocate => {
            let found = free_list::pop(region).unwrap();
            prop_assert_eq!(found, model.free.pop());
            model.held.extend(found);
        }
        Step::Free(_) | Step::Stage(_) | Step::Enqueue(..) if model.held.is_empty() => {}
        Step::Free(which) => {
            let slot = model.held.swap_remove(which.index(model.held.len()));
            free_list::push(region, slot).unwrap();
            model.free.push(slot);
        }
        Step::Stage(which) => {
            let slot = model.held.swap_remove(which.index(model.held.len()));
            prop_assert_eq!(staging::push(region, slot).unwrap(), model.colour);
            model.staged.push_back(slot);
        }
        Step::Flush => {
            let Some(newest) = staging::take_all(region).unwrap() else {
                prop_assert!(model.staged.is_empty());
                return Ok(());
            };
            let mut current = Some(staging::reverse(region, newest).unwrap());
            while let Some(slot) = current {
                prop_assert_eq!(Some(slot), model.staged.pop_front());
                model.held.push(slot);
                current = staging::after(region, slot).unwrap();
            }
            prop_assert!(model.staged.is_empty());
        }
        Step::Colour(red) => {
            let colour = if *red { Colour::Red } else { Colour::Blue };
            let before = staging::set_colour(region, colour).unwrap();
            let expected = model.staged.is_empty().then_some(model.colour);
            prop_assert_eq!(before, expected);
            if expected.is_some() {
                model.colour = colour;
            }
        }
        Step::Enqueue(which, second) => {
            let slot = model.held.swap_remove(which.index(model.held.len()));
            queue::enqueue(region, ends(*second), slot).unwrap();
            model.queues[usize::from(*second)].push_back(slot);
        }
        Step::Dequeue(second) => {
            let found = queue::dequeue(region, ends(*second)).unwrap();
            prop_assert_eq!(found, model.queues[usize::from(*second)].pop_front());
            model.held.extend(found);
        }
    }
    for second in [false, true] {
        let expected = &model.queues[usize::from(second)];
        prop_assert_eq!(queue::depth(ends(second)), expected.len() as u64);
        prop_assert_eq!(
            queue::is_empty(region, ends(second)).unwrap(),
            expected.is_empty()
        );
    }
    prop_assert_eq!(staging::is_empty(region), model.staged.is_empty());
    prop_assert_eq!(staging::colour(region), model.colour);
    Ok(())
}

proptest! {
    #[test]
    fn lists_agree_with_plain_collections(steps in prop::collection::vec(step(), 0..200)) {
        let region = region();
        let mut model = Model {
            free: (0..SLOTS).rev().collect(),
            staged: VecDeque::new(),
            colour: Colour::Blue,
            queues: Default::default(),
            held: Vec::new(),
        };
        for step in &steps {
            apply(&region, &mut model, step)?;
        }
    }

    /// Whatever stands in the region, every call returns; and once one has failed, all do.
    #[test]
    fn a_hostile_peer_ends_only_its_own_instance(
        writes in prop::collection::vec((any::<prop::sample::Index>(), hostile_word()), 1..20),
        calls in prop::collection::vec(0u8..6, 1..60),
    ) {
        let instance = Instance::new(SLOTS, 2, false).expect("memory");
        let mut held = Vec::new();
        let mut writes = writes.iter();
        let mut failed = false;
        for (number, call) in calls.iter().enumerate() {
            if number % 3 == 0 && let Some((place, word)) = writes.next() {
                scribble(&instance, *place, *word);
            }
            let result = match call {
                0 => instance.allocate().map(|found| held.extend(found)),
                1 => held.pop().map_or(Ok(()), |slot| instance.submit(slot, &asked(), 0, false).map(|_| ())),
                2 => instance.flush(),
                3 => instance.take().and_then(|taken| match taken {
                    Some(taken) => instance.complete(&taken, &Default::default(), 0, 0).map(|_| ()),
                    None => Ok(()),
                }),
                4 => instance.retrieve().map(|_| ()),
                _ => instance.share().and_then(|()| instance.is_idle()).map(|_| ()),
            };
            if instance.region.check().is_err() {
                failed = true;
            }
            prop_assert_eq!(result == Err(Corrupt), result.is_err());
        }
        let _ = instance.depths();
        if failed {
            prop_assert!(instance.allocate().is_err() && instance.retrieve().is_err());
            prop_assert!(instance.take().is_err() && instance.is_idle().is_err());
        }
    }
}

fn asked() -> Asked {
    Asked {
        flags: 0,
        from: 0,
        to: 4096,
        bytes: 4096,
        tag: 0,
    }
}

/// Words that could mean something, and words that cannot.
fn hostile_word() -> impl Strategy<Value = u64> {
    let links = (0u64..14, any::<bool>(), 0u64..4)
        .prop_map(|(index, red, tag)| tag << 17 | u64::from(red) << 16 | index);
    prop_oneof![3 => links, 1 => any::<u64>()]
}

/// Writes into a word that links, or a state.
fn scribble(instance: &Instance, place: prop::sample::Index, word: u64) {
    let region = &instance.region;
    let header = region.header();
    let mut words = vec![
        &header.free.0,
        &header.staging.0,
        &header.high.head.0,
        &header.high.tail.0,
        &header.normal.head.0,
        &header.normal.tail.0,
        &header.done.head.0,
        &header.done.tail.0,
    ];
    for index in 0..SLOTS {
        let slot = region.slot(index).expect("in range");
        words.extend([&slot.state, &slot.link]);
        slot.node.set((word >> 20) as u32);
    }
    for index in 0..SLOTS + 4 {
        words.push(&region.node(index).expect("in range").next);
    }
    words[place.index(words.len())].store(word, Ordering::Relaxed);
}

#[test]
fn an_exhausted_list_says_so() {
    let instance = Instance::new(1, 1, false).expect("memory");
    let held = instance.allocate().unwrap().expect("one is free");
    assert!(instance.allocate().unwrap().is_none());
    instance.release(held).unwrap();
    assert!(instance.allocate().unwrap().is_some());
}

#[test]
fn rings_of_links_end_in_an_error() {
    let ring = |index: u16| Link(0).to(Some(index)).0;
    // Staging: 0 leads to 1, 1 to 2, 2 back to 1.
    let instance = Instance::new(SLOTS, 1, false).expect("memory");
    let staged = &instance.region;
    staged.header().staging.0.store(ring(0), Ordering::Relaxed);
    for (index, next) in [(0, 1), (1, 2), (2, 1)] {
        let link = &staged.slot(index).unwrap().link;
        link.store(ring(next), Ordering::Relaxed);
    }
    assert_eq!(instance.flush(), Err(Corrupt));
    assert_eq!(staged.check(), Err(Corrupt));
    // A queue whose last node leads to itself has no end to enqueue at.
    let queued = region();
    let dummy = SLOTS + 1;
    queued
        .node(dummy)
        .unwrap()
        .next
        .store(ring(dummy), Ordering::Relaxed);
    let ends = &queued.header().normal;
    assert_eq!(queue::enqueue(&queued, ends, 0), Err(Corrupt));
}

#[test]
fn threads_move_every_slot_round_and_lose_none() {
    const ROUNDS: u64 = 20_000;
    let instance = Instance::new(8, 1, false).expect("memory");
    let sum = std::sync::atomic::AtomicU64::new(0);
    std::thread::scope(|scope| {
        for client in 0..2u64 {
            let (instance, sum) = (&instance, &sum);
            scope.spawn(move || {
                let (mut sent, mut found) = (0, 0);
                while sent < ROUNDS || found < ROUNDS {
                    if sent < ROUNDS
                        && let Some(held) = instance.allocate().unwrap()
                    {
                        let asked = Asked {
                            tag: client * ROUNDS + sent,
                            ..asked()
                        };
                        instance.submit(held, &asked, 0, false).unwrap();
                        sent += 1;
                    }
                    // As many as it sent, of whomever.
                    if found < ROUNDS
                        && let Some(completion) = instance.retrieve().unwrap()
                    {
                        sum.fetch_add(completion.tag, std::sync::atomic::Ordering::Relaxed);
                        found += 1;
                    }
                }
            });
        }
        scope.spawn(|| {
            let mut served = 0;
            while served < 2 * ROUNDS {
                instance.flush().unwrap();
                match instance.take().unwrap() {
                    Some(taken) => {
                        instance
                            .complete(&taken, &Default::default(), 0, 0)
                            .unwrap();
                        served += 1;
                    }
                    None => std::thread::yield_now(),
                }
            }
        });
    });
    let expected: u64 = (0..2 * ROUNDS).sum();
    assert_eq!(sum.into_inner(), expected);
    assert_eq!(instance.depths().free, 8);
}
