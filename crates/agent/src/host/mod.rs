//! The loop on a real machine.

pub mod attendant;
pub mod drive;
mod error;
pub mod estimate;
mod hands;
pub mod record;
mod seats;
pub mod spread;
mod supervisor;
pub mod top;
pub mod weighing;
pub mod weights;
pub mod zoom;

pub use error::{Error, Result};
pub use hands::{Hands, Placing};
pub use supervisor::{Beat, Client, End, Input, Supervisor, cannot_start};
