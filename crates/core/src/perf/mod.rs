//! What perf's records and events mean, wherever they come from: rings of this machine, files of
//! others.
//!
//! - [`source`]: where a sampled access was served;
//! - [`events`]: which event of which processor family tells what hither wants to know;
//! - [`count`]: counts that were read, their differences, and what follows from them.

pub mod count;
pub mod events;
pub mod source;
