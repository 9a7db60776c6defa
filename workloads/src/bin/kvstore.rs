//! The program `kvstore`: see [`hither_workloads::kvstore`].
#![forbid(unsafe_code)]

fn main() -> std::process::ExitCode {
    hither_workloads::cli::main(&hither_workloads::kvstore::PROGRAM)
}
