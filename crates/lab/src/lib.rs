//! hither-lab: an emulated NUMA machine for unmodified programs.
//!
//! The host side fetches kernels ([`fetch`]), packs a guest image ([`image`]), boots QEMU
//! ([`boot`]) and shows results ([`compare`]); the guest side ([`guest`]) is the first process of
//! the guest and runs the programs. Both ends are the same binary and speak [`protocol`].

pub mod back;
pub mod boot;
pub mod cache;
pub mod compare;
pub mod console;
pub mod cpio;
pub mod devices;
pub mod elf;
pub mod error;
pub mod fetch;
pub mod guest;
pub mod image;
pub mod measure;
pub mod os;
pub mod policies;
pub mod protocol;
pub mod qemu;
pub mod report;
pub mod reproduce;
pub mod session;
pub mod viewer;
mod vmlinux;
mod waiting;

pub use error::{Error, Result};
