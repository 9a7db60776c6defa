//! All tests of machine files as one program, since each program more has to be linked.

mod machine_bad;
mod machine_files;
mod machine_fuzz;
mod machine_opteron;
mod machine_scale;
