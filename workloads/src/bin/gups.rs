//! The program `gups`: see [`hither_workloads::gups`].
#![forbid(unsafe_code)]

fn main() -> std::process::ExitCode {
    hither_workloads::cli::main(&hither_workloads::gups::PROGRAM)
}
