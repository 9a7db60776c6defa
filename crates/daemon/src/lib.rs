//! hither-daemon: the loop as a service, for the programs of many users.
//!
//! ```text
//! config ─► targets ─► scopes (a target's processes of one user) ─► the agent's loop ─► movers
//!                                    │                                  │ witness
//! control socket ─► orders ──────────┤                                  ▼
//! control socket, metrics ◄─ published, once a second          journal of moved pages
//! ```
//!
//! What a person writes is [`config`]; [`service`] is the loop's client that steers it; what it tells is
//! [`publish`]ed as a whole and served by threads of their own ([`server`]), which hand what is to be done
//! to the loop as orders. [`journal`] outlives the process: the next daemon can put back what this one
//! moved. Nothing here prints: sentences go into a sink.

pub mod config;
pub mod goal;
pub mod journal;
mod metrics;
mod pods;
pub mod protocol;
pub mod publish;
pub mod roll;
pub mod server;
pub mod service;
pub mod window;
