//! Sampling and counting through `perf_event_open(2)`: events, the rings that they fill, and what is
//! in them; counters, and what they tell.
//!
//! - [`record`]: bytes of a ring to records: pure, and safe against any bytes;
//! - [`source`]: where an access was served, from the word that the hardware fills in (of
//!   `hither-core`, as recordings of perf hold the word too);
//! - [`ring`]: the memory that the kernel writes records to;
//! - [`pmu`]: events as sysfs describes them;
//! - [`sampler`]: one event on every CPU;
//! - [`catalogue`]: what this machine counts, by the event table of its processor;
//! - [`counter`]: counting it for processes, CPUs and memory controllers;
//! - [`tally`]: counts of several processes, and the shares that follow;
//! - [`refusal`]: the sentences for when the kernel refuses.

pub mod catalogue;
pub mod counter;
pub mod pmu;
pub mod record;
pub mod refusal;
pub mod ring;
pub mod sampler;
pub mod switches;
pub mod tally;

pub use hither_core::perf::source;
