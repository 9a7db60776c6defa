//! The program `netserve`: see [`hither_workloads::netserve`].
#![forbid(unsafe_code)]

fn main() -> std::process::ExitCode {
    hither_workloads::cli::main(&hither_workloads::netserve::PROGRAM)
}
