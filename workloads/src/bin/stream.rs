//! The program `stream`: see [`hither_workloads::stream`].
#![forbid(unsafe_code)]

fn main() -> std::process::ExitCode {
    hither_workloads::cli::main(&hither_workloads::stream::PROGRAM)
}
