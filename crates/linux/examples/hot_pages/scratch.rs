//! A program that has its CPU's TLB flushed, which the emulator's needs.

use hither_workloads::memory::{Placement, RegionMemory};
use std::sync::atomic::Ordering::Relaxed;

/// Pages whose protection is changed so that the kernel flushes the CPU's TLB: above 33 it flushes
/// all of it (x86's `tlb_single_page_flush_ceiling`).
///
/// A TLB of the machines that are modelled holds some 1,500 translations, and what a program uses
/// evicts them. The emulator's grows to tens of thousands and may then keep those of all hot pages:
/// nobody walks the page tables, and accessed bits that the kernel has cleared stay clear.
pub struct Scratch(RegionMemory);

impl Scratch {
    const BYTES: usize = 64 * 4096;

    /// Its pages, present.
    pub fn new() -> Self {
        let region = RegionMemory::new(Self::BYTES, Placement::default());
        let region = region.unwrap_or_else(|error| panic!("{error:?}"));
        let first_words = region.words().iter().step_by(512);
        first_words.for_each(|word| word.store(1, Relaxed));
        Self(region)
    }

    /// Flushes the TLB of the CPU that runs this. Takes the pages away rather than only the right to
    /// write to them: whose soft-dirty bits were cleared has not got that, and the kernel would have
    /// nothing to flush.
    pub fn flush(&self) {
        let start = self.0.words().as_ptr().cast_mut().cast();
        for access in [libc::PROT_NONE, libc::PROT_READ | libc::PROT_WRITE] {
            // SAFETY: a mapping of this thread, which nobody uses meanwhile.
            unsafe { libc::mprotect(start, Self::BYTES, access) };
        }
    }
}
