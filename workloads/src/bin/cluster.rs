//! The program `cluster`: see [`hither_workloads::cluster`].
#![forbid(unsafe_code)]

fn main() -> std::process::ExitCode {
    hither_workloads::cli::main(&hither_workloads::cluster::PROGRAM)
}
