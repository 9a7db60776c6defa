//! Tests of this crate as one program, since each program more has to be linked. `torture` is its
//! own: it changes settings of the machine and uses all of its CPUs.

mod examples;
mod hwloc;
mod malformed_trees;
mod native;
mod sysfs_fuzz;
mod text_fuzz;
