//! Says where it was placed: its CPUs, its memory policy, its arguments, and the node of each of 64
//! pages that it touches in order, on the first of its CPUs. For comparisons of tools that place programs.

use hither_linux::sys::{self, PrivateMemory};
use std::process::ExitCode;

const PAGES: usize = 64;

fn main() -> ExitCode {
    match placed() {
        Ok(line) => {
            println!("{line}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("placed: {error}");
            ExitCode::FAILURE
        }
    }
}

fn placed() -> std::io::Result<String> {
    let cpus = sys::allowed_cpus()?;
    // What is near a CPU must not depend on which of them happened to be free.
    sys::stay_on(&cpus.iter().take(1).collect())?;
    let mut memory = PrivateMemory::new(PAGES * 4096, false)?;
    memory.fill_pages(1);
    let first = memory.address();
    let pages = (0..PAGES as u64).map(|page| sys::node_at(first + page * 4096));
    let nodes = pages.collect::<Result<Vec<_>, _>>()?;
    let nodes: Vec<String> = nodes.iter().map(|node| node.0.to_string()).collect();
    let words: Vec<String> = std::env::args().skip(1).collect();
    Ok(format!(
        "cpus {cpus} policy {} words {words:?} pages {}",
        sys::own_policy()?,
        nodes.join(",")
    ))
}
