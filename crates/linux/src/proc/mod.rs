//! What `/proc` tells of processes.

pub mod maps;
pub mod numa_maps;
pub mod pagemap;
pub mod stat;
pub mod tree;
