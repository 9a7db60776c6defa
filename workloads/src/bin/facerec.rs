//! The program `facerec`: see [`hither_workloads::facerec`].
#![forbid(unsafe_code)]

fn main() -> std::process::ExitCode {
    hither_workloads::cli::main(&hither_workloads::facerec::PROGRAM)
}
