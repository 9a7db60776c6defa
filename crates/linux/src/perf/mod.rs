//! Sampling through `perf_event_open(2)`: the rings that events fill, and what is in them.
//!
//! - [`record`]: bytes of a ring to records: pure, and safe against any bytes;
//! - [`ring`]: the memory that the kernel writes records to.

pub mod record;
pub mod ring;
