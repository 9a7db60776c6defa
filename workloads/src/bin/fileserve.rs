//! The program `fileserve`: see [`hither_workloads::fileserve`].
#![forbid(unsafe_code)]

fn main() -> std::process::ExitCode {
    hither_workloads::cli::main(&hither_workloads::fileserve::PROGRAM)
}
