//! The program `cg`: see [`hither_workloads::cg`].
#![forbid(unsafe_code)]

fn main() -> std::process::ExitCode {
    hither_workloads::cli::main(&hither_workloads::cg::PROGRAM)
}
