//! Sampling through `perf_event_open(2)`: events, the rings that they fill, and what is in them.
//!
//! - [`record`]: bytes of a ring to records: pure, and safe against any bytes;
//! - [`source`]: where an access was served, from the word that the hardware fills in (of
//!   `hither-core`, as recordings of perf hold the word too);
//! - [`ring`]: the memory that the kernel writes records to;
//! - [`pmu`]: events as sysfs describes them;
//! - [`sampler`]: one event on every CPU, and the sentences for when the kernel refuses.

pub mod pmu;
pub mod record;
pub mod ring;
pub mod sampler;
pub mod switches;

pub use hither_core::perf::source;
