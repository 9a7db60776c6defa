//! Queues against plain collections, and threads at all of them.

use crate::instance::Instance;
use crate::layout::{Colour, Ends};
use crate::record::Asked;
use crate::region::Region;
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
            let found = free_list::pop(region);
            prop_assert_eq!(found, model.free.pop());
            model.held.extend(found);
        }
        Step::Free(_) | Step::Stage(_) | Step::Enqueue(..) if model.held.is_empty() => {}
        Step::Free(which) => {
            let slot = model.held.swap_remove(which.index(model.held.len()));
            free_list::push(region, slot);
            model.free.push(slot);
        }
        Step::Stage(which) => {
            let slot = model.held.swap_remove(which.index(model.held.len()));
            prop_assert_eq!(staging::push(region, slot), model.colour);
            model.staged.push_back(slot);
        }
        Step::Flush => {
            let Some(newest) = staging::take_all(region) else {
                prop_assert!(model.staged.is_empty());
                return Ok(());
            };
            let mut current = Some(staging::reverse(region, newest));
            while let Some(slot) = current {
                prop_assert_eq!(Some(slot), model.staged.pop_front());
                model.held.push(slot);
                current = staging::after(region, slot);
            }
            prop_assert!(model.staged.is_empty());
        }
        Step::Colour(red) => {
            let colour = if *red { Colour::Red } else { Colour::Blue };
            let before = staging::set_colour(region, colour);
            let expected = model.staged.is_empty().then_some(model.colour);
            prop_assert_eq!(before, expected);
            if expected.is_some() {
                model.colour = colour;
            }
        }
        Step::Enqueue(which, second) => {
            let slot = model.held.swap_remove(which.index(model.held.len()));
            queue::enqueue(region, ends(*second), slot);
            model.queues[usize::from(*second)].push_back(slot);
        }
        Step::Dequeue(second) => {
            let found = queue::dequeue(region, ends(*second));
            prop_assert_eq!(found, model.queues[usize::from(*second)].pop_front());
            model.held.extend(found);
        }
    }
    for second in [false, true] {
        let expected = &model.queues[usize::from(second)];
        prop_assert_eq!(queue::depth(ends(second)), expected.len() as u64);
        prop_assert_eq!(queue::is_empty(region, ends(second)), expected.is_empty());
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

#[test]
fn an_exhausted_list_says_so() {
    let instance = Instance::new(1, 1, false).expect("memory");
    let held = instance.allocate().expect("one is free");
    assert!(instance.allocate().is_none());
    instance.release(held);
    assert!(instance.allocate().is_some());
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
                        && let Some(held) = instance.allocate()
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
                        && let Some(completion) = instance.retrieve()
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
                instance.flush();
                match instance.take() {
                    Some(taken) => {
                        instance.complete(&taken, &Default::default(), 0, 0);
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
