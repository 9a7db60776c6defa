//! The program `is`: see [`hither_workloads::is`].
#![forbid(unsafe_code)]

fn main() -> std::process::ExitCode {
    hither_workloads::cli::main(&hither_workloads::is::PROGRAM)
}
