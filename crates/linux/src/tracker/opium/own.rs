//! This process's own CPU time, as the device counts it.
//!
//! Problem: in the laboratory the kernel takes the CPU time of a thread between two ticks from the host's clock,
//! which runs on while the host emulates: what runs for a millisecond is told as several (docs/lab.md, "CPU
//! time"). By that figure hither would use up its budget of CPU time, and stop moving, in runs where it took a
//! tenth of it. Mechanism: the device counts the modelled time of each page table; the own one is that whose
//! page lies in the frame that this process's page map tells.

use super::spaces::Match;
use crate::opium::OpiumDevice;
use crate::proc::pagemap::Pagemap;
use crate::root::Root;

/// The own address space.
#[derive(Debug)]
pub(super) struct Own {
    root: Root,
    /// Its place among the device's, once it was found.
    number: Option<usize>,
}

impl Own {
    pub fn new(root: &Root) -> Self {
        Self {
            root: root.clone(),
            number: None,
        }
    }

    /// CPU time of all threads since boot in ns; `None` until the address space is found.
    pub fn cpu_ns(&mut self, device: &OpiumDevice) -> Option<u64> {
        if let Some(number) = self.number {
            return Some(device.space(number)?.time_ns);
        }
        let map = Pagemap::open(&self.root, std::process::id() as i32).ok()?;
        let mut bytes = Vec::new();
        let mut spaces = device.spaces().ok()?.enumerate();
        let (number, counts) = spaces.find(|(_, counts)| {
            let (page, frame) = (counts.vaddr >> 12, counts.paddr >> 12);
            Match::of(&map, page, frame, &mut bytes) == Some(Match::Alone)
        })?;
        self.number = Some(number);
        Some(counts.time_ns)
    }
}
