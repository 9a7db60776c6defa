//! hither-mirror: the shim that gives read-only file mappings a copy on the node where they are read.
//!
//! `LD_PRELOAD` puts it between a program and the C library's `mmap` and its relatives ([`exports`]). A
//! mapping that may get copies is noted in a fixed table ([`table`]), with a second mapping of the same file
//! beside it, its *original*: whatever happens, the original is moved over the mapping in one system call,
//! for which no file needs to be open and no memory allocated. A thread of the shim's own ([`helper`]) looks
//! which chunks are used ([`touched`]) and where they lie, builds *mirrors* ([`copy`]) and maps them over
//! those chunks, which is atomic for the program's threads. What a copy is made of must not change:
//! [`guard`] says how that is known and how copies are given up. A child made by fork maps the originals
//! back before any of its code runs, and begins anew ([`fork`]).
//!
//! The rules are `hither_core::mirror`'s. Why this is a library of its own and not a part of the shim that
//! places memory: it needs a thread, an allocator and the standard library, and each program that is
//! started under that one pays for all that it links (`crates/preload/src/lib.rs`).
//!
//! Properties: a failure leaves the original mapping, with a reason in the report. The helper has a table of
//! descriptors of its own (`close_range` with `CLOSE_RANGE_UNSHARE`): programs close all descriptors, or count
//! on the number of the next, and must neither close nor see the helper's; forked children have none of them.
//! What the helper replaces it has verified to be what it believes it is, under the lock that the program's own
//! calls take.
//!
//! Without `HITHER_MIRROR_PLAN` nothing is ever replicated.

mod code;
mod copy;
pub mod exports;
mod fork;
mod guard;
mod helper;
mod maps;
mod nodes;
mod start;
mod sys;
mod table;
mod touched;
mod watched;
