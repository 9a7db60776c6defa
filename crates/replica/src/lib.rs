//! hither-replica: one logical array, a copy on each node, every read from the nearest copy.
//!
//! Threads of one process share one page table: one address is one page for all of them, so that no kernel and
//! no library can replicate their pages behind their back. What can be done is done here with the program's
//! help: it asks for a [`Reader`] in each thread and reads through it.
//!
//! **Terms.** A *place* is a node that may have a copy, with the CPUs near it. The *master* is whole and always
//! there. An array is cut into *chunks* (2 MiB unless said otherwise); a place has copies of all chunks, of
//! some, or of none. An *epoch* is one published content, counted from 1. A *tick* counts changes of what
//! readers may find: epochs, and copies that are given up.
//!
//! **Reading.** A [`Reader`] belongs to one thread. [`Reader::read`] gives a [`Guard`]: it pins the current
//! tick, and for its life every chunk has one content and one address table; an access costs one load more than
//! in a plain array (the chunk's address). [`Guard::whole`] is one slice, with no load more: the local copy
//! where it is complete, else the master.
//!
//! **Writing.** A [`ArrayWriter`] prepares the next epoch in a second master that no reader can see, and publishes it
//! by one store. Chunks that it did not write keep their copies; copies of chunks that it wrote are stale, and
//! readers find the master for these until [`Array::refresh`] or the keeper ([`Array::keep`]) has copied the pages
//! that were written. Readers see whole epochs, in order: never a mixture, never an earlier one again.
//!
//! **Limits.** Publishing never waits for readers. What comes after it does: the next writer, and the copies of
//! what was written, wait until the readers of earlier ticks have let go, as their memory is used again. A
//! reader that keeps a guard for long so delays the second next epoch and keeps copies stale; a writer has a
//! time-out for that ([`Array::write_within`]). Memory is the master, a second one from the first write on, and
//! the copies.
//!
//! [`protocol`] has the memory orderings and is tried by loom; [`rule`] and [`forecast`] decide and are pure.
//! `docs/replication.md` is the manual.

#![cfg_attr(loom, allow(dead_code))]

#[cfg(not(loom))]
mod account;
#[cfg(not(loom))]
mod array;
#[cfg(not(loom))]
mod bits;
#[cfg(not(loom))]
mod build;
#[cfg(not(loom))]
mod error;
#[cfg(not(loom))]
pub mod forecast;
#[cfg(not(loom))]
mod keeper;
#[cfg(not(loom))]
mod memory;
#[cfg(not(loom))]
mod places;
pub mod plan;
mod protocol;
#[cfg(not(loom))]
mod reader;
#[cfg(not(loom))]
mod report;
pub mod rule;
mod sync;
#[cfg(test)]
mod tests;
#[cfg(not(loom))]
mod typed;
#[cfg(not(loom))]
mod writer;

#[cfg(not(loom))]
pub use array::{Array, Config, CopiedChunks, HomeNode};
#[cfg(not(loom))]
pub use error::Error;
#[cfg(not(loom))]
pub use places::{Place, Places};
#[cfg(not(loom))]
pub use reader::{Guard, Reader};
#[cfg(not(loom))]
pub use report::{ArrayReport, Built};
#[cfg(not(loom))]
pub use typed::{Plain, Replicated, TypedGuard, TypedReader, TypedWriter};
#[cfg(not(loom))]
pub use writer::ArrayWriter;
