//! The program `pca`: see [`hither_workloads::pca`].
#![forbid(unsafe_code)]

fn main() -> std::process::ExitCode {
    hither_workloads::cli::main(&hither_workloads::pca::PROGRAM)
}
