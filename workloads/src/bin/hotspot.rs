//! The program `hotspot`: see [`hither_workloads::hotspot`].
#![forbid(unsafe_code)]

fn main() -> std::process::ExitCode {
    hither_workloads::cli::main(&hither_workloads::hotspot::PROGRAM)
}
