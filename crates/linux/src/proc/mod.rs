//! What `/proc` tells of processes and CPUs.

pub mod allowed;
pub mod cpu_times;
pub mod maps;
pub mod numa_maps;
pub mod pagemap;
pub mod schedstat;
pub mod soft_dirty;
pub mod stat;
pub mod tree;
