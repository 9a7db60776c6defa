//! All tests of the command line as one program, since each program more has to be linked.

mod cli;
mod common;
mod foreign;
mod hwloc;
mod imports;
mod install;
mod moves;
mod partition;
mod place;
mod private;
mod record;
mod recordings;
mod sets;
mod top;
mod zoom;
