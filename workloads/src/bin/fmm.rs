//! The program `fmm`: see [`hither_workloads::fmm`].
#![forbid(unsafe_code)]

fn main() -> std::process::ExitCode {
    hither_workloads::cli::main(&hither_workloads::fmm::PROGRAM)
}
