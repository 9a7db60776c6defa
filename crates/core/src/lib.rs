//! hither-core: everything that is decided, nothing that is done.
//!
//! Machine descriptions, ids and sets, resource sets and binding, the Opium device layout, the belief about
//! a machine (`snapshot`), the policies, the plan they produce, the engine that wraps them, and
//! the memory-timing model that the lab's emulator and the simulator share. No I/O, no clock,
//! no threads, no environment: time and data are arguments.
#![forbid(unsafe_code)]

pub mod bind;
pub mod copy_engine;
pub mod declared;
pub mod engine;
pub mod explain;
pub mod fault;
pub mod flow;
pub mod forecast;
pub mod foreign;
pub mod forming;
pub mod goal;
pub mod ids;
pub mod learned;
pub mod machine;
pub mod metrics;
pub mod mirror;
pub mod observation;
pub mod opium;
pub mod partition;
pub mod perf;
pub mod phases;
pub mod plan;
pub mod policy;
pub mod quota;
pub mod refine;
pub mod rset;
pub mod scope;
pub mod services;
pub mod set;
pub mod shim;
pub mod sites;
pub mod size;
pub mod snapshot;
pub mod tiers;
pub mod timing;
pub mod ways;
pub mod working_set;
