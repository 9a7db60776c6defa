//! The program `cachemix`: see [`hither_workloads::cachemix`].
#![forbid(unsafe_code)]

fn main() -> std::process::ExitCode {
    hither_workloads::cli::main(&hither_workloads::cachemix::PROGRAM)
}
