//! The program `grow`: see [`hither_workloads::grow`].
#![forbid(unsafe_code)]

fn main() -> std::process::ExitCode {
    hither_workloads::cli::main(&hither_workloads::grow::PROGRAM)
}
