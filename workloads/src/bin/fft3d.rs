//! The program `fft3d`: see [`hither_workloads::fft3d`].
#![forbid(unsafe_code)]

fn main() -> std::process::ExitCode {
    hither_workloads::cli::main(&hither_workloads::fft3d::PROGRAM)
}
