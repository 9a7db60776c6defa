//! What is read from the guest itself: registers, and page tables to learn a page's size.
//!
//! QEMU tells a plugin the physical address of an access but not the size of its page. On a
//! modelled TLB miss the upper levels of the guest's page table are read through the kernel's
//! direct map, whose address is fixed without address randomisation (the lab boots with
//! `nokaslr no5lvl`). Answers are kept per 2 MB region until the guest flushes it.

use qemu_plugin_sys as sys;
use std::ffi::CStr;

/// Linux's direct map of physical memory, 4-level paging (Documentation/arch/x86/x86_64/mm.rst).
const DIRECT_MAP: u64 = 0xffff_8880_0000_0000;
const PRESENT: u64 = 1;
const LARGE: u64 = 1 << 7;
const FRAME: u64 = 0x000f_ffff_ffff_f000;
const REGIONS: usize = 256;

unsafe extern "C" {
    // GLib is part of QEMU's process.
    fn g_byte_array_new() -> *mut sys::GByteArray;
    fn g_byte_array_set_size(array: *mut sys::GByteArray, length: u32) -> *mut sys::GByteArray;
}

/// Where an instruction runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Executed {
    /// Its virtual address.
    pub code: u64,
    /// Physical address of the page table in force; 0 where it cannot be read.
    pub page_table: u64,
}

/// Reader of one vCPU's state. Used on its thread only.
pub struct Guest {
    buffer: *mut sys::GByteArray,
    cr3: *mut sys::qemu_plugin_register,
    rip: *mut sys::qemu_plugin_register,
    /// rax rcx rdx rbx rsp rbp rsi rdi r8..r15.
    general: [*mut sys::qemu_plugin_register; 16],
    /// Page-table root, read again after a switch.
    root: Option<u64>,
    /// `(region number + 1, huge)`.
    regions: Vec<(u64, bool)>,
}

impl Default for Guest {
    fn default() -> Self {
        Self {
            buffer: std::ptr::null_mut(),
            cr3: std::ptr::null_mut(),
            rip: std::ptr::null_mut(),
            general: [std::ptr::null_mut(); 16],
            root: None,
            regions: vec![(0, false); REGIONS],
        }
    }
}

const GENERAL: [&str; 16] = [
    "rax", "rcx", "rdx", "rbx", "rsp", "rbp", "rsi", "rdi", "r8", "r9", "r10", "r11", "r12", "r13",
    "r14", "r15",
];

impl Guest {
    /// Looks the registers up; to be called from the vCPU's init callback.
    pub fn new() -> Self {
        let mut guest = Self::default();
        // SAFETY: in the init callback of this vCPU; the array holds `len` descriptors.
        unsafe {
            guest.buffer = g_byte_array_new();
            let array = sys::qemu_plugin_get_registers();
            if array.is_null() {
                return guest;
            }
            let first: *const sys::qemu_plugin_reg_descriptor = (*array).data.cast();
            for index in 0..(*array).len as usize {
                let descriptor = &*first.add(index);
                let name = CStr::from_ptr(descriptor.name).to_bytes();
                if name == b"cr3" {
                    guest.cr3 = descriptor.handle;
                }
                if name == b"rip" {
                    guest.rip = descriptor.handle;
                }
                if let Some(number) = GENERAL.iter().position(|known| known.as_bytes() == name) {
                    guest.general[number] = descriptor.handle;
                }
            }
        }
        guest
    }

    fn read_register(&self, handle: *mut sys::qemu_plugin_register) -> Option<u64> {
        if handle.is_null() {
            return None;
        }
        // SAFETY: a handle and a buffer of this vCPU, on its thread; the bytes read are checked.
        unsafe {
            g_byte_array_set_size(self.buffer, 0);
            if sys::qemu_plugin_read_register(handle, self.buffer) < 8 || (*self.buffer).len < 8 {
                return None;
            }
            Some((*self.buffer).data.cast::<u64>().read_unaligned())
        }
    }

    /// A general register by its number in instruction encodings.
    pub fn read_general(&self, number: u32) -> Option<u64> {
        self.read_register(*self.general.get(number as usize)?)
    }

    /// Where and in which address space an instruction runs that was translated at `translated`; see
    /// [`address_now`].
    pub fn executed(&self, translated: u64) -> Executed {
        Executed {
            code: match self.read_register(self.rip) {
                Some(before) => address_now(translated, before),
                None => translated,
            },
            page_table: self.read_register(self.cr3).unwrap_or(0) & FRAME,
        }
    }

    /// Physical address of the page table in force; `None` where it cannot be read.
    pub fn table(&mut self) -> Option<u64> {
        if self.root.is_none() {
            self.root = self.read_register(self.cr3);
        }
        Some(self.root? & FRAME)
    }

    fn read_word(&self, physical: u64) -> Option<u64> {
        // SAFETY: a buffer of this vCPU; the bytes read are checked.
        unsafe {
            g_byte_array_set_size(self.buffer, 0);
            if !sys::qemu_plugin_read_memory_vaddr(DIRECT_MAP + physical, self.buffer, 8)
                || (*self.buffer).len < 8
            {
                return None;
            }
            Some((*self.buffer).data.cast::<u64>().read_unaligned())
        }
    }

    /// Is this address mapped by a 2 MB or larger page? Unknown counts as no.
    pub fn is_huge(&mut self, vaddr: u64) -> bool {
        let region = vaddr >> 21;
        let slot = region as usize % REGIONS;
        let (known, huge) = self.regions[slot];
        if known == region + 1 {
            return huge;
        }
        let huge = self.walk(vaddr).unwrap_or(false);
        self.regions[slot] = (region + 1, huge);
        huge
    }

    fn walk(&mut self, vaddr: u64) -> Option<bool> {
        let mut table = self.table()?;
        for shift in [39, 30, 21] {
            let entry = self.read_word(table + (vaddr >> shift & 0x1ff) * 8)?;
            if entry & PRESENT == 0 {
                return None;
            }
            if shift < 39 && entry & LARGE != 0 {
                return Some(true);
            }
            table = entry & FRAME;
        }
        Some(false)
    }

    /// The page table changed altogether.
    pub fn forget_all(&mut self) {
        self.root = None;
        self.regions.fill((0, false));
    }

    /// One page was flushed: its region may have been split or joined.
    pub fn forget(&mut self, vaddr: u64) {
        self.regions[(vaddr >> 21) as usize % REGIONS] = (0, false);
    }
}

/// Where an instruction is now. QEMU translates code once for each physical page, position
/// independent, and tells plugins the address of that first time: in a process that has the page
/// elsewhere only its last twelve bits hold. `before` is the register as QEMU has it in memory while a
/// block runs: the block's first instruction or a later one, at most a page before this one.
fn address_now(translated: u64, before: u64) -> u64 {
    before.wrapping_add(translated.wrapping_sub(before) & 0xfff)
}

#[cfg(test)]
mod tests {
    use super::address_now;

    #[test]
    fn code_is_where_the_running_process_has_it() {
        // At the same place, and another process's; at the block's beginning, and across a page.
        assert_eq!(
            address_now(0x5555_0000_1234, 0x5555_0000_1200),
            0x5555_0000_1234
        );
        assert_eq!(
            address_now(0x5555_0000_1234, 0x7777_0000_3234),
            0x7777_0000_3234
        );
        assert_eq!(
            address_now(0x5555_0000_1234, 0x7777_0000_3200),
            0x7777_0000_3234
        );
        assert_eq!(
            address_now(0x5555_0000_2004, 0x7777_0000_3ff8),
            0x7777_0000_4004
        );
    }
}
