//! hither-regions: work is taken to the cache that holds its memory.
//!
//! A *region* is memory that a program uses together. Where a program's regions do not fit one last-level cache and
//! the machine has several, each region can live in a cache of its own, and the thread goes where the region is. The
//! memory-regions thesis calls this micro-scheduling and moves the thread by the hypervisor's scheduler, in 15.86 and
//! 6.36 us. Here the thread stays: [`Region::run`] hands a closure to a worker that was pinned to the region's CPUs
//! once, and waits for the result. No visit makes a system call while both sides are awake.
//!
//! **Terms.** A [`Domain`] is the set of CPUs whose cache holds a region. A *visit* is one closure handed over. A *lane*
//! is one worker with its inbox. An *inbox* is the word that a thread watches, and sleeps on.
//!
//! [`Unified`] does so by itself where it pays, and leaves visits where they are otherwise.
//!
//! [`Transparent`] needs no visits: threads go to a region's cache when they touch it, by protection keys.
//!
//! [`protocol`] has the queue and its memory orderings and is tried by loom; [`patience`] says how long a waiting
//! thread spins; [`life`] tells a forked child from its parent. `docs/regions.md` is the manual.

#![cfg_attr(loom, allow(dead_code))]

#[cfg(not(loom))]
mod domain;
#[cfg(not(loom))]
mod error;
#[cfg(not(loom))]
mod life;
mod patience;
mod protocol;
#[cfg(not(loom))]
mod region;
mod sync;
#[cfg(test)]
mod tests;
#[cfg(not(loom))]
mod transparent;
#[cfg(not(loom))]
mod unify;
#[cfg(not(loom))]
mod worker;

#[cfg(not(loom))]
pub use domain::Domain;
#[cfg(not(loom))]
pub use error::Error;
#[cfg(not(loom))]
pub use region::{Config, Counts, Region};
#[cfg(not(loom))]
pub use transparent::{
    Closing, Form, Global, Moves, Opened, Registered, Transparent, calls, leave, open_for,
    open_ranges,
};
#[cfg(not(loom))]
pub use unify::{Reason, RegionUse, Unified, UnifyState};
