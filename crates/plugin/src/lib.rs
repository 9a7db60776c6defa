//! hither-plugin: a QEMU TCG plugin that gives an emulated machine modelled memory time.
//!
//! It sees every load and store of the guest, keeps caches, memory controllers and links, and
//! owns the guest's clock, so that `time ./app` inside shows what placement costs. One file per
//! part: `model` (the path of an access), `filter`, `cache`, `contest`, `tlb`, `stream` (overlap),
//! `load` (controllers and links), `clock`, `seats` (which host CPU a vCPU runs on), `turns` and
//! `context` (how vCPUs hand a host CPU over), `vcpu`, `regions` and `device` (counters and
//! samples), `window`, `engine` (the copy engine; `ram` and `walk` are its ways to the guest's memory), `decode`, `guest`, `plugin` (the edge to QEMU), `translation` and `access`
//! (its callbacks), `preload` (its view of time), `options`.

#![cfg_attr(
    test,
    allow(dead_code, reason = "the edge to QEMU is not part of unit tests")
)]

#[cfg(not(test))]
mod access;

#[cfg(not(test))]
mod plugin;

#[cfg(not(test))]
mod translation;

mod guest;

#[cfg(not(test))]
mod preload;

mod cache;
mod clock;
mod contest;
mod context;
mod decode;
mod device;
mod engine;
mod filter;
mod load;
mod model;
mod options;
mod ram;
mod regions;
mod seats;
mod spaces;
mod stream;
mod tlb;
mod turns;
mod vcpu;
mod walk;
mod window;
