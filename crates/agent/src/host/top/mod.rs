//! Sampling for `hither top`: what is read of a machine in each interval, within an allowance, and
//! what is known from it.

mod ageing;
mod device;
#[cfg(test)]
mod examples;
pub mod machine;
pub mod model;
pub mod process;
pub mod reading;
mod residency;
mod rotation;
mod sampler;
mod session;

pub use ageing::Ageing;
pub use device::Opened;
pub use session::Session;
