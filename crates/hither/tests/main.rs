//! All tests of the command line as one program, since each program more has to be linked.

mod attach;
mod cli;
mod common;
mod daemon;
mod filereplicas;
mod forecast;
mod foreign;
mod hwloc;
mod imports;
mod install;
mod launch;
mod learned;
mod moves;
mod partition;
mod place;
mod preloaded;
mod private;
mod record;
mod recordings;
mod reproduce;
mod restricted;
mod sets;
mod terminals;
mod top;
mod zoom;
