//! libhither: memory and threads on resource sets, replicated arrays, visits to regions, and the asynchronous
//! memory-move service with streams over it, for C.
//!
//! The service is modelled on the user interface of memif (Lin and Liu, "memif: Towards Programming Heterogeneous
//! Memory Asynchronously", ASPLOS 2016, section 4.1): a program written from the paper's figure 2
//! compiles with its names changed. `include/hither.h` is made from [`constants`], [`types`] and
//! the functions in [`calls`], [`stream`], [`placement`], [`replicated`], [`regions`], [`monitor`] and [`opting`]
//! (`cargo xtask gen`); the manual is in `docs/man`.
//!
//! What always holds, whatever a program passes:
//! - A handle and a request are looked up before they are used; what is not found is an error.
//!   Only memory that the program names as its own (a name, a configuration, a buffer for text) is
//!   taken at its word, as C must.
//! - No panic leaves the library ([`failure::guarded`]).
//! - A child after `fork` finds every call refused ([`lifetime`]) but those of [`opting`], which need nothing
//!   of the parent's.

mod allocations;
mod arrays;
pub mod calls;
pub mod constants;
mod failure;
mod handles;
mod instance;
mod lifetime;
pub mod monitor;
mod open;
pub mod opting;
pub mod placement;
pub mod regions;
mod registry;
pub mod replicated;
pub mod stream;
mod structures;
pub mod types;

pub use calls::*;
pub use constants::*;
pub use monitor::*;
pub use opting::*;
pub use placement::*;
pub use regions::*;
pub use replicated::*;
pub use stream::*;
pub use types::{
    HitherArea, HitherConfig, HitherReached, HitherReplicatedConfig, HitherRequest,
    HitherResidency, HitherStreamConfig, HitherStreamPart, HitherStreamReport, HitherTotals,
    HitherView,
};
