//! Allocates blocks of the sizes it is given, from the heap and as mappings, and says on which node
//! each page of them is; then starts three threads, and says on which CPUs each begins. For tests of
//! placement by rules.

use hither_linux::sys;
use std::process::ExitCode;

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("placed_blocks: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), Box<dyn std::error::Error>> {
    for word in std::env::args().skip(1) {
        let bytes: usize = word.parse()?;
        let block = vec![1u8; bytes];
        println!("heap {bytes} {}", nodes(block.as_ptr() as u64, bytes)?);
        if bytes >= 4096 {
            let mut block = memmap2::MmapMut::map_anon(bytes)?;
            block.fill(1);
            println!("map {bytes} {}", nodes(block.as_ptr() as u64, bytes)?);
        }
    }
    println!("thread {}", sys::allowed_cpus()?);
    for _ in 0..3 {
        let cpus = std::thread::spawn(sys::allowed_cpus);
        // Its place is free again for the next unless it lives on.
        let (cpus, keep) = (cpus.join(), std::thread::spawn(std::thread::park));
        println!("thread {}", cpus.map_err(|_| "a thread is lost")??);
        std::mem::forget(keep);
    }
    Ok(())
}

/// Nodes of a block's pages, in order: `0*16 1*16`.
fn nodes(address: u64, bytes: usize) -> std::io::Result<String> {
    let mut runs: Vec<(u32, u64)> = Vec::new();
    for page in (address..address + bytes as u64).step_by(4096) {
        let node = sys::node_at(page)?.0;
        match runs.last_mut() {
            Some((last, count)) if *last == node => *count += 1,
            _ => runs.push((node, 1)),
        }
    }
    let runs: Vec<String> = runs
        .iter()
        .map(|(node, count)| format!("{node}*{count}"))
        .collect();
    Ok(runs.join(" "))
}
