//! The program `churn`: see [`hither_workloads::churn`].
#![forbid(unsafe_code)]

fn main() -> std::process::ExitCode {
    hither_workloads::cli::main(&hither_workloads::churn::PROGRAM)
}
