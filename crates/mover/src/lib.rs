//! hither-mover: how memory is moved, whatever moves it.
//!
//! A [`Backend`] carries out [`Job`]s and nothing else; what to move is decided in `hither_core`
//! or by the program itself, and what only tells of the machine is a tracker. A new backend is
//! one file plus one line in the table of whoever offers backends.

pub mod backend;

pub use backend::{Action, Backend, Job, Outcome, OutcomeBuilder, Pages, Race, Raced, Unavailable};
