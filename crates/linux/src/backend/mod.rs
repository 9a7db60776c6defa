//! What moves memory here. Each backend is one file; which one serves a job is decided where
//! backends are offered.

pub mod copy;
pub mod engine;
pub mod kernel;
pub mod own;
pub mod swap;
