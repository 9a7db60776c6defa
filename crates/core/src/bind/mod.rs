//! Binding: what a program is told about CPUs and memory before it runs. Pure.
//!
//! People name a [`MemoryPolicy`] and a [`ThreadPolicy`] (the words of IBM's RSets: float, local,
//! remote, striped; fill, round-robin); the kernel knows a [`KernelPolicy`] per process, and CPUs
//! per thread. This module turns the one into the other against a resource set, and judges
//! afterwards where pages went.

pub mod astray;
pub mod choose;
pub mod demand;
mod layout;
mod memory;
pub mod numactl;
mod policy;
pub mod ranks;
pub mod rules;
#[cfg(test)]
mod tests;
mod threads;
mod weights;

pub use layout::{Laid, MemoryLayout};
pub use memory::MemoryPolicy;
pub use policy::{KernelPolicy, Mode, PolicyError};
pub use threads::ThreadPolicy;
pub use weights::Weights;
