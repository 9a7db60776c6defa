//! The program `npb`: see [`hither_workloads::npb`].
#![forbid(unsafe_code)]

fn main() -> std::process::ExitCode {
    hither_workloads::cli::main(&hither_workloads::npb::PROGRAM)
}
