//! hither-mover: how memory is moved, whatever moves it.
//!
//! A [`Backend`] carries out [`Job`]s and nothing else; what to move is decided in `hither_core`
//! or by the program itself, and what only tells of the machine is a tracker. A new backend is
//! one file plus one line in the table of whoever offers backends.
//!
//! A [`Mover`] is a service over backends: programs submit requests and retrieve completions
//! through lock-free queues, without blocking and, while a worker is awake, without a system call
//! (Lin and Liu, "memif: Towards Programming Heterogeneous Memory Asynchronously", ASPLOS 2016).
//! `docs/mover.md` describes the protocol.

pub mod backend;
mod clock;
// A lock and condition variables alone; what may meet is told apart by the queue's own tests.
#[cfg(not(any(loom, shuttle)))]
pub mod executor;
mod free_list;
mod future;
mod instance;
mod layout;
mod notify;
mod queue;
pub mod rate;
mod record;
mod region;
mod request;
mod service;
mod staging;
// Of threads and blocks alone; what it shares with workers is the service's, which is modelled.
#[cfg(not(any(loom, shuttle)))]
pub mod stream;
mod sync;
#[cfg(test)]
mod tests;
mod worker;

pub use backend::{
    Action, Backend, Job, Outcome, OutcomeBuilder, Pages, Race, Raced, Unavailable, collect,
};
pub use future::MoveFuture;
pub use instance::Depths;
pub use record::{Completion, Invalid, PAGE_BYTES, RequestId, Status, reason_index};
pub use region::Forked;
pub use request::{Priority, Rejected, Request, SubmitError};
pub use service::{Close, Config, Mover, Notify, OpenError, Server, Statistics};
#[doc(hidden)]
#[cfg(not(any(loom, shuttle)))]
pub use sync::spawn;
#[doc(hidden)]
pub use sync::{boxed, room};
