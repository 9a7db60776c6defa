//! All tests of the shim as one program, since each program more has to be linked.

mod common;
mod placed;
mod programs;
