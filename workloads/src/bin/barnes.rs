//! The program `barnes`: see [`hither_workloads::barnes`].
#![forbid(unsafe_code)]

fn main() -> std::process::ExitCode {
    hither_workloads::cli::main(&hither_workloads::barnes::PROGRAM)
}
