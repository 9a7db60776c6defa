//! The program `planted`: see [`hither_workloads::planted`].
#![forbid(unsafe_code)]

fn main() -> std::process::ExitCode {
    hither_workloads::cli::main(&hither_workloads::planted::PROGRAM)
}
