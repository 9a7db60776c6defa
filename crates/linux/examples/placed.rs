//! Says where it was placed: its CPUs, its memory policy, its arguments, and the node of each of 64
//! pages that it touches in order, on the first of its CPUs. For comparisons of tools that place programs.
//!
//! With `--allocate SET LAYOUT...` it allocates on a set itself, in each layout, and says the node of
//! each page; the layout `moved` is memory of the first node that is then bound to be striped.
//!
//! With `--share FILE` it maps a file of memory with others, has all its pages, says `ready`, and at the
//! end of its input says whether they hold what they should.

use hither_core::bind::{MemoryLayout, MemoryPolicy};
use hither_core::rset::ResourceSet;
use hither_linux::bind::{self, Memory, PageSize, range};
use hither_linux::sys::{self, Present, PrivateMemory, SharedMap};
use std::error::Error;
use std::fs::OpenOptions;
use std::io::Read;
use std::process::ExitCode;

const PAGES: usize = 64;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let told = match words.split_first() {
        Some((option, rest)) if option == "--allocate" => allocated(rest),
        Some((option, rest)) if option == "--share" => shared(rest),
        _ => placed().map_err(Into::into),
    };
    match told {
        Ok(lines) => {
            println!("{lines}");
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

fn shared(words: &[String]) -> Result<String, Box<dyn Error>> {
    let [path] = words else {
        return Err("--share FILE".into());
    };
    let file = OpenOptions::new().read(true).write(true).open(path)?;
    let bytes = usize::try_from(file.metadata()?.len())?;
    let map = SharedMap::new(&file, bytes)?;
    let pages = || (0..bytes).step_by(4096);
    pages().for_each(|at| map.write64_release(at, at as u64 + 1));
    println!("ready");
    std::io::stdin().read_to_end(&mut Vec::new())?;
    let kept = pages().all(|at| map.read64(at) == at as u64 + 1);
    Ok(if kept { "kept" } else { "lost" }.to_owned())
}

/// A line for each layout: its name, pages astray, and the node of each page.
fn allocated(words: &[String]) -> Result<String, Box<dyn Error>> {
    let (text, layouts) = words.split_first().ok_or("--allocate SET LAYOUT...")?;
    let cpus = sys::allowed_cpus()?;
    sys::stay_on(&cpus.iter().take(1).collect())?;
    let here = bind::here()?;
    let set = bind::resolve("set", text, &here)?.set;
    let allocate = |set: &ResourceSet, layout: MemoryLayout| {
        let mut memory = Memory::new(PAGES * 4096, set, layout, PageSize::Small, &here)?;
        memory.bytes_mut().fill(1);
        Ok::<Memory, hither_linux::Error>(memory)
    };
    let mut lines = Vec::new();
    for layout in layouts {
        let memory = if layout == "moved" {
            let first = ResourceSet::of_memory(set.nodes.iter().take(1).collect());
            let memory = allocate(&first, MemoryPolicy::Bind.into())?;
            let striped: MemoryLayout = MemoryPolicy::Striped.into();
            range::bind(memory.range(), &striped.on(&set, &here)?, Present::Move)?;
            memory
        } else {
            allocate(&set, layout.parse()?)?
        };
        let astray = memory.residency()?.astray;
        let nodes = range::nodes_by_page(memory.range())?;
        let nodes = nodes.iter().map(|node| match node {
            Some(node) => node.0.to_string(),
            None => "absent".to_owned(),
        });
        let nodes: Vec<String> = nodes.collect();
        lines.push(format!(
            "{layout} astray {astray} pages {}",
            nodes.join(",")
        ));
    }
    Ok(lines.join("\n"))
}
