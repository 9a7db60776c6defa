//! The program `memlat`: see [`hither_workloads::memlat`].
#![forbid(unsafe_code)]

fn main() -> std::process::ExitCode {
    hither_workloads::cli::main(&hither_workloads::memlat::PROGRAM)
}
