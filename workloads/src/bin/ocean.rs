//! The program `ocean`: see [`hither_workloads::ocean`].
#![forbid(unsafe_code)]

fn main() -> std::process::ExitCode {
    hither_workloads::cli::main(&hither_workloads::ocean::PROGRAM)
}
