//! This process's own CPU time, as the device counts it.
//!
//! Problem: in the laboratory the kernel takes the CPU time of a thread between two ticks from the host's clock,
//! which runs on while the host emulates: what runs for a millisecond is told as several (docs/lab.md, "CPU
//! time"). By that figure hither would use up its budget of CPU time, and stop moving, in runs where it took a
//! tenth of it. Mechanism: the device counts the modelled time of each page table; the own one is that whose
//! page lies in the frame that this process's page map tells.

use crate::opium::{Device, SpaceCounts};
use crate::proc::pagemap::{self, Pagemap};
use crate::root::Root;

/// The own address space.
#[derive(Debug)]
pub(super) struct Own {
    map: Option<Pagemap>,
    /// Its place among the device's, once it was found.
    number: Option<usize>,
    bytes: Vec<u8>,
}

impl Own {
    pub fn new(root: &Root) -> Self {
        Self {
            map: Pagemap::open(root, std::process::id() as i32).ok(),
            number: None,
            bytes: Vec::new(),
        }
    }

    /// CPU time of all threads since boot in ns; `None` until the address space is found.
    pub fn cpu_ns(&mut self, device: &Device) -> Option<u64> {
        let mut spaces = device.spaces().ok()?;
        if let Some(number) = self.number {
            return Some(spaces.nth(number)?.time_ns);
        }
        let map = self.map.as_ref()?;
        let bytes = &mut self.bytes;
        let mut is_own = |counts: &SpaceCounts| {
            let mut entry = [0];
            let is_read = matches!(map.read(counts.vaddr >> 12, &mut entry, bytes), Ok(1));
            is_read
                && pagemap::frame(entry[0]) == Some(counts.paddr >> 12)
                && pagemap::is_exclusive(entry[0])
        };
        let (number, counts) = spaces.enumerate().find(|(_, counts)| is_own(counts))?;
        self.number = Some(number);
        Some(counts.time_ns)
    }
}
