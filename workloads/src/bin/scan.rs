//! The program `scan`: see [`hither_workloads::scan`].
#![forbid(unsafe_code)]

fn main() -> std::process::ExitCode {
    hither_workloads::cli::main(&hither_workloads::scan::PROGRAM)
}
