//! hither-sim: the agent's loop and its engine over simulated machines, programs and faults, with checkers that stand apart.
//!
//! ```text
//!            seed ─► scenario: machine, programs, scopes, policies, faults
//!   World: time, traffic, trackers, movers ◄──► agent, turn after turn ◄── Simulation
//!            └───────────────► Checks: budgets, pages, campaigns ─► violations
//! ```
//!
//! Everything comes from one seed, in one thread, with a clock that only the simulation turns: the
//! same seed finds the same fault again. First things go wrong ([`Faults`]): pages are busy, moves are late,
//! samples are lost, processes fork, execute and end. Then they stop, and what is left must become
//! quiet; then everything is put back. What must hold meanwhile is in [`check::Invariant`].
#![forbid(unsafe_code)]

mod chance;
pub mod check;
mod churn;
mod faults;
mod hands;
mod observe;
pub mod policies;
mod process;
pub mod scenario;
mod simulation;
mod world;

pub use faults::Faults;
pub use hands::{Journal, Moved, SimHands};
pub use observe::{Sight, SimTracker};
pub use process::{Pattern, Process, ProcessKind, ProcessPhase, SimPage};
pub use simulation::{Simulation, Tamper};
pub use world::{INIT, NO_PROGRAM, Node, STRANGER, World};
