//! hither-agent: the one loop that watches programs, decides what moves, has it moved, and tells.
//!
//! Two layers. The pure one, without features, is [`Agent`]: it observes, asks the engine, hands
//! moves over and collects what came of them, one turn at a time. What it takes from a machine
//! comes as arguments: an [`Observer`](hither_core::observation::Observer), an [`Execute`], and the
//! time. So the simulator drives it unchanged.
//!
//! The feature `host` (on by default) adds what a real machine needs, in [`host`]:
//! [`host::Supervisor`] starts a program, attaches to one, or stands by itself; it waits for the
//! timer, signals, keys and the program's end, and gives its *clients* their turns when they are
//! due. Recording, zooming, sampling for `top`, the guard of weights, the attendant of a placement
//! and the agent are such clients.
//!
//! Nothing here prints: what is to be told goes out by return values and sinks.

mod agent;
mod execute;
#[cfg(feature = "host")]
pub mod host;
mod overhead;

pub use agent::{Agent, LEAST_SLEEP_US, TurnResult, Witness};
pub use execute::{Dry, Execute, Gate, Movers, Stepped};
pub use overhead::Overhead;
