//! hither-linux: everything that is read from, or asked of, a Linux kernel.
//!
//! Split by kernel source; every reader takes a [`root::Root`], so that a captured machine is a
//! test. [`sys`] is the only home of system calls.

pub mod backend;
pub mod bind;
pub mod counters;
pub mod counting;
pub mod cpu_limit;
pub mod doctor;
pub mod error;
pub mod filecache;
pub mod filereplicas;
pub mod filter;
pub mod fixed;
pub mod monitor;
pub mod opium;
pub mod opting;
pub mod parse;
pub mod partition;
pub mod parts;
pub mod perf;
pub mod probe;
pub mod proc;
pub mod resctrl;
pub mod resources;
pub mod restore;
pub mod rivals;
pub mod root;
pub mod services;
pub mod sites;
pub mod sys;
pub mod topology;
pub mod tracker;
pub mod watch;

pub use error::{Error, Result};
pub use root::Root;
