//! The program `mg`: see [`hither_workloads::mg`].
#![forbid(unsafe_code)]

fn main() -> std::process::ExitCode {
    hither_workloads::cli::main(&hither_workloads::mg::PROGRAM)
}
