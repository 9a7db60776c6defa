//! The program `memstore`: see [`hither_workloads::memstore`].
#![forbid(unsafe_code)]

fn main() -> std::process::ExitCode {
    hither_workloads::cli::main(&hither_workloads::memstore::PROGRAM)
}
