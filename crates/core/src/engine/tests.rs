//! The loop closed over the test world.

use super::world::{Loop, Pattern, World};
use super::*;
use crate::policy;

fn carrefour() -> Box<dyn Policy> {
    policy::by_name("carrefour").unwrap()
}

#[test]
fn debug_run() {
    for pattern in [Pattern::Shared, Pattern::Partitioned, Pattern::Striped] {
        for residents in [false, true] {
            let mut world = World::new(pattern, 16_384);
            world.period = 1000;
            world.lists_residents = residents;
            let mut run = Loop::new(world, carrefour());
            println!("== {pattern:?} {residents}");
            for (turn, seen) in run.run(40).iter().enumerate() {
                println!("{turn} {seen:?}");
            }
            println!("{:?}", run.world.spread());
            println!("{}", run.engine.summary());
            for entry in run.engine.log().iter() {
                println!("{entry}");
            }
        }
    }
}
