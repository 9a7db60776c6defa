//! All tests of the C library as one program, since each program more has to be linked.

mod abi;
mod calls;
mod common;
mod opting;
mod programs;
