//! hither-preload: the shim that `LD_PRELOAD` puts between a program and its allocator.
//!
//! It records where allocations above a threshold were made, by which thread, how large, and how
//! long they lived, into a log ([`hither_core::sites`]); and it places blocks that rules are about,
//! and threads ([`place`]). The program is not built again and not changed: what it asked for is
//! handed to the allocator that it would have had, but for placed blocks.
//!
//! What it costs is what it does not do. Below the threshold there is one comparison. A pointer that
//! is freed is compared with the addresses of placed blocks, and looked up in a filter of 32 KiB where
//! allocations are recorded. Above the threshold a stack that was seen before at
//! the same place is verified rather than walked ([`walk`]), and records are stores into a shared
//! mapping of a file ([`log`]). There are no locks to wait for, no allocation, no thread-local
//! storage (the first use of which may allocate) and nothing that can panic. After a fork the kernel
//! itself wipes what was recorded of the parent ([`state`]), so that a child begins a log of its own.
//!
//! A program that ends at once pays for being linked with this library: each function of the C
//! library that is named here is looked up whenever a program starts. In a release build there are
//! some fifteen, and nothing of the standard library's (see `build.rs`); system calls go through
//! `syscall`. Large tables are in the section `.bss.large` (see `large.ld`), since a start pays for each
//! page that it touches, too.
//!
//! Without `HITHER_PRELOAD_DIR` nothing is ever recorded, without `HITHER_PLACE_PLAN` nothing placed.

mod bootstrap;
mod config;
pub mod cxx;
pub mod exports;
mod hash;
mod log;
mod modules;
mod place;
mod record;
pub mod sanitizer;
mod sites;
mod state;
mod tracked;
mod walk;
