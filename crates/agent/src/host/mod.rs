//! The loop on a real machine.

pub mod attendant;
pub mod drive;
mod error;
pub mod estimate;
pub mod record;
mod seats;
pub mod spread;
mod supervisor;
pub mod top;
pub mod weights;
pub mod zoom;

pub use error::{Error, Result};
pub use seats::MOST_MOVERS;
pub use supervisor::{Beat, Client, End, Input, Supervisor, cannot_start};
