//! The program `mix`: see [`hither_workloads::mix`].
#![forbid(unsafe_code)]

fn main() -> std::process::ExitCode {
    hither_workloads::cli::main(&hither_workloads::mix::PROGRAM)
}
