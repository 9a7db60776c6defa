//! Counters that the kernel and the hardware keep anyway: nothing is switched on to read them, but for
//! those of [`uncore`], which are opened through perf.
//!
//! Split by kernel source: [`vmstat`] (moves, promotions, allocations by node), [`resctrl`] (bandwidth by last-level cache), [`uncore`] (traffic
//! of memory controllers and links), [`task`] (CPU time, last CPU and faults of processes and threads), [`placed`] (pages of processes by node), [`lru_gen`] (ages
//! of pages by control group and node, which are no counters). Counters grow from boot on;
//! differences between two readings are pure functions.

pub mod lru_gen;
pub mod placed;
pub mod resctrl;
pub mod task;
pub mod threads;
pub mod uncore;
pub mod vmstat;
