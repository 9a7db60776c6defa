//! The program `water`: see [`hither_workloads::water`].
#![forbid(unsafe_code)]

fn main() -> std::process::ExitCode {
    hither_workloads::cli::main(&hither_workloads::water::PROGRAM)
}
