//! The root's files back where booting left them.
//!
//! They are in memory, in some 25 MB of the first node's. A run whose policy demotes, or that fills the node, leaves
//! them in slower memory, and the runs after it would have so much more of the fast one. On a machine of one tier
//! they stay where they are.

use super::{Result, doing, rivals};
use hither_linux::root::Root;
use hither_linux::sys::{self, FileWindow};
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// The folder of the CPU that boots, which unpacks the files.
const BOOT_CPU: &str = "sys/devices/system/cpu/cpu0";

/// Moves all of them to the node that booted.
pub fn bring_back(root: &Root) -> Result<()> {
    if rivals::fast_nodes(root).is_err() {
        return Ok(());
    }
    let nodes = root.numbered(BOOT_CPU, "node");
    let Some(&node) = nodes.map_err(|error| error.to_string())?.first() else {
        return Ok(());
    };
    let top = root.path("");
    let device = fs::metadata(&top)
        .map_err(doing("looking at the root"))?
        .dev();
    bring(&top, device, node as i32).map_err(doing("moving the root's files"))
}

fn bring(folder: &Path, device: u64, node: i32) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let about = entry.metadata()?;
        if about.dev() != device {
            continue;
        }
        if about.is_dir() {
            bring(&entry.path(), device, node)?;
        } else if about.is_file() && about.len() > 0 {
            bring_file(&File::open(entry.path())?, about.len(), node)?;
        }
    }
    Ok(())
}

fn bring_file(file: &File, bytes: u64, node: i32) -> io::Result<()> {
    let window = FileWindow::map(file, 0, bytes)?;
    let mut addresses = Vec::new();
    for (page, _) in (0..).zip(window.cached()?).filter(|(_, is)| *is) {
        window.enter(page..page + 1)?;
        addresses.push(window.address() + page * 4096);
    }
    let nodes = vec![node; addresses.len()];
    let mut status = vec![0; addresses.len()];
    // A page that cannot go now stays: the run has so much more fast memory, which its figures say.
    sys::move_shared_pages(0, &addresses, &nodes, &mut status).map(drop)
}
