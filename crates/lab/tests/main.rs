//! All tests of the laboratory as one program, since each program more has to be linked. Most boot
//! QEMU and are ignored by plain `cargo test`; one file of them by its name:
//! `cargo test --release --package hither-lab --test boot -- --ignored --test-threads=1 binding::`.

mod astray;
mod bad_input;
mod binding;
mod boot;
mod caches;
mod ccnuma;
mod common;
mod daemon;
mod damon;
mod emulator;
mod engine;
mod hintfault;
mod monitor;
mod moves;
mod numactl;
mod partition;
mod policies;
mod probe;
mod programs;
mod quickstart;
mod record;
mod rsets;
mod services;
mod tiers;
mod weights;
mod written;
mod zoom;
