//! Nodes that stay offline, so that the numbers of the others have holes.
//!
//! QEMU describes every node in ACPI, but nothing makes Linux use its memory: where the kernel's
//! command line takes all of it out of the memory map (`memmap=SIZE$START`), a node without CPUs is
//! never put online. Real machines look so where memory is kept for one purpose (HBM, CXL) and
//! nobody has put it online. The plugin's own map from addresses to nodes stays as it is.
//!
//! Unlike memory that is unplugged later, this needs no ACPI hot-plug and cannot fail halfway.

use crate::error::{Error, Result};
use hither_core::machine::Machine;
use hither_core::set::NodeSet;
use std::ops::Range;

/// q35 leaves this much below 4 GB where memory does not fit there at once (QEMU `pc_q35.c`).
const LOW_LIMIT: u64 = 0xb000_0000;
const LOW_WITH_HIGH: u64 = 0x8000_0000;
const FOUR_GB: u64 = 1 << 32;

/// Words for the kernel's command line that keep these nodes offline.
///
/// # Errors
/// Where there is no such node, where it has CPUs, and where QEMU puts what the kernel starts
/// from into its memory.
pub fn kernel_arguments(machine: &Machine, nodes: &NodeSet) -> Result<Vec<String>> {
    let total: u64 = machine.nodes.iter().map(|node| node.memory_mb << 20).sum();
    let low = if total >= LOW_LIMIT {
        LOW_WITH_HIGH
    } else {
        total
    };
    let mut words = Vec::new();
    for id in nodes.iter() {
        let Some(position) = machine.nodes.iter().position(|node| node.id == id) else {
            return Err(Error::bad(
                format!("--offline {nodes}: {} has no {id}", machine.name),
                "name nodes of the machine file",
            ));
        };
        if !machine.nodes[position].cpus.is_empty() {
            return Err(Error::bad(
                format!("--offline {nodes}: {id} of {} has CPUs", machine.name),
                "name nodes without CPUs: Linux puts the others online",
            ));
        }
        let before = &machine.nodes[..position];
        let start = before.iter().map(|node| node.memory_mb << 20).sum::<u64>();
        let end = start + (machine.nodes[position].memory_mb << 20);
        // Kernel, image of the guest and ACPI tables.
        if start < low && end >= low {
            return Err(Error::bad(
                format!("--offline {nodes}: the guest starts from the memory of {id}"),
                "give nodes more memory (--memory), so that it lies above 2 GB",
            ));
        }
        words.extend(
            addresses(start..end, low)
                .map(|part| format!("memmap={:#x}${:#x}", part.end - part.start, part.start)),
        );
    }
    Ok(words)
}

/// Guest-physical addresses of a range of QEMU's memory, of which `low` bytes lie below 4 GB.
fn addresses(memory: Range<u64>, low: u64) -> impl Iterator<Item = Range<u64>> {
    let below = memory.start..memory.end.min(low);
    let high = |at: u64| at.max(low) - low + FOUR_GB;
    let above = high(memory.start)..high(memory.end);
    [below, above].into_iter().filter(|part| !part.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use hither_core::machine::parse::parse;
    use hither_core::machine::scale;

    /// Of `machines/knl7250.toml`, with CPUs for node 0 only.
    fn words(memory_mb: u64, nodes: &str) -> std::result::Result<Vec<String>, String> {
        let file = parse(include_str!("../../../../machines/knl7250.toml")).unwrap();
        let machine = scale::with_memory_mb(&file, &|_| memory_mb).unwrap();
        kernel_arguments(&machine, &nodes.parse().unwrap()).map_err(|error| error.to_string())
    }

    #[test]
    fn all_memory_of_a_node_is_taken_and_no_other() {
        // Two of 4 GB: 2 of node 0 lie below 4 GB, then come 2 more, then node 1.
        assert_eq!(
            words(4096, "1").unwrap(),
            ["memmap=0x100000000$0x180000000"]
        );
        assert_eq!(words(4096, "").unwrap(), [""; 0]);
        // Of a node from 1 to 3 GB half lies below.
        let parts: Vec<_> = addresses(1 << 30..3 << 30, LOW_WITH_HIGH).collect();
        assert_eq!(parts, [1 << 30..2 << 30, 4 << 30..5 << 30]);
    }

    #[test]
    fn what_linux_needs_is_refused() {
        assert!(words(4096, "0").unwrap_err().contains("has CPUs"));
        assert!(words(4096, "2").unwrap_err().contains("has no node2"));
        assert!(words(512, "1").unwrap_err().contains("starts from"));
    }
}
