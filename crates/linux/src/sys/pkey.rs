//! Memory protection keys of x86 (pkeys(7)): each page has one of 16 keys, each thread a register, PKRU, that says
//! which keys it may use. A change of the register is an instruction; a change of a page's key is a call, as
//! mprotect(2) is.
//!
//! All but [`alloc_key`] may be called in a signal handler: nothing is allocated, no lock is taken.

use super::check;
use std::io;

/// `si_code` of a SIGSEGV: the key of the page is closed for this thread.
pub const SEGV_PKUERR: i32 = 4;
/// `si_code` of a SIGSEGV: the protection of the mapping does not allow it.
pub const SEGV_ACCERR: i32 = 2;
/// Keys that there are; key 0 is what pages have by themselves.
pub const KEYS: u32 = 16;

/// The bits of PKRU that close a key: no loads and no stores.
#[must_use]
pub const fn closed(key: u32) -> u32 {
    0b11 << (2 * key)
}

/// Gets a key that nobody has. It stays closed for the calling thread, and is so for others, unless they inherited
/// the register from a thread that had it open.
///
/// # Errors
/// `ENOSPC`: all are used, or the processor or the kernel has none (`ENOSYS` before Linux 4.9).
pub fn alloc_key() -> io::Result<u32> {
    /// `PKEY_DISABLE_ACCESS`.
    const NO_ACCESS: libc::c_ulong = 1;
    // SAFETY: integers only.
    let key = check(unsafe { libc::syscall(libc::SYS_pkey_alloc, 0, NO_ACCESS) })?;
    Ok(key as u32)
}

/// Gives a key back. No page may have it any more: whoever gets it next would own that page too.
pub fn free_key(key: u32) {
    // SAFETY: integers only; the kernel refuses a key that is not there.
    unsafe { libc::syscall(libc::SYS_pkey_free, key) };
}

/// Gives whole pages this protection (`PROT_*`) and this key.
///
/// # Errors
/// What pkey_mprotect(2) says: `ENOMEM` where something is not mapped, or there are too many mappings.
///
/// # Safety
/// Nobody relies on these pages being accessible where they are closed now.
pub unsafe fn protect_by_key(start: u64, bytes: u64, access: i32, key: u32) -> io::Result<()> {
    // SAFETY: as the caller vouches.
    let result = unsafe { libc::syscall(libc::SYS_pkey_mprotect, start, bytes, access, key) };
    check(result).map(drop)
}

/// Gives whole pages this protection (`PROT_*`).
///
/// # Errors
/// What mprotect(2) says.
///
/// # Safety
/// As [`protect_by_key`].
pub unsafe fn protect(start: u64, bytes: u64, access: i32) -> io::Result<()> {
    // SAFETY: as the caller vouches.
    let result = unsafe { libc::syscall(libc::SYS_mprotect, start, bytes, access) };
    check(result).map(drop)
}

#[cfg(target_arch = "x86_64")]
mod register {
    use std::arch::asm;
    use std::arch::x86_64::__cpuid_count;

    /// CPUID leaf 7: the system has switched keys on (`OSPKE`, ECX bit 4).
    pub(super) fn has_keys() -> bool {
        __cpuid_count(0, 0).eax >= 7 && __cpuid_count(7, 0).ecx & 1 << 4 != 0
    }

    /// CPUID leaf 0xD: where the state of a feature lies in the uncompacted area (EBX).
    pub(super) fn offset() -> usize {
        __cpuid_count(0xd, super::FEATURE).ebx as usize
    }

    pub(super) unsafe fn read() -> u32 {
        let pkru: u32;
        // SAFETY: the caller vouches that there are keys; ECX must be 0, EDX is set to 0.
        unsafe {
            asm!("rdpkru", in("ecx") 0, out("eax") pkru, out("edx") _, options(nomem, nostack));
        }
        pkru
    }

    pub(super) unsafe fn write(pkru: u32) {
        // SAFETY: the caller vouches that there are keys; ECX and EDX must be 0. Not `nomem`: accesses stay on
        // their side of it.
        unsafe { asm!("wrpkru", in("eax") pkru, in("ecx") 0, in("edx") 0, options(nostack)) };
    }
}

/// `XFEATURE_PKRU`.
#[cfg(target_arch = "x86_64")]
const FEATURE: u32 = 9;

/// PKRU of the calling thread, and where the kernel keeps it in signal frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pkru {
    offset: usize,
}

impl Pkru {
    /// Where processor and kernel have keys.
    #[must_use]
    pub fn find() -> Option<Self> {
        #[cfg(target_arch = "x86_64")]
        if register::has_keys() {
            return Some(Self {
                offset: register::offset(),
            });
        }
        None
    }

    /// As [`Pkru::offset`] told it, by a process that found it.
    #[must_use]
    pub const fn at(offset: usize) -> Self {
        Self { offset }
    }

    /// Of its state in an uncompacted area, in bytes.
    #[must_use]
    pub const fn offset(self) -> usize {
        self.offset
    }

    /// The register.
    #[must_use]
    #[inline]
    pub fn read(self) -> u32 {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: there is a value of this type only where there are keys.
        return unsafe { register::read() };
        #[cfg(not(target_arch = "x86_64"))]
        return 0;
    }

    /// Sets the register.
    #[inline]
    pub fn write(self, pkru: u32) {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: as above. What it closes faults, which is no undefined behaviour.
        unsafe {
            register::write(pkru);
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = pkru;
    }

    /// PKRU that a signal handler returns to: [`None`] where the frame has no such state.
    ///
    /// # Safety
    /// `context` is what the kernel passed to the running handler as its third argument.
    #[must_use]
    pub unsafe fn in_frame(self, context: *mut libc::c_void) -> Option<FramePkru> {
        #[cfg(target_arch = "x86_64")]
        {
            // SAFETY: as the caller vouches.
            let area = unsafe { (*context.cast::<libc::ucontext_t>()).uc_mcontext.fpregs };
            let area = area.cast::<u8>();
            if area.is_null() {
                return None;
            }
            let word = |at: usize| area.wrapping_add(at).cast::<u32>();
            // SAFETY: the first 512 bytes of the area are always there; these belong to `struct _fpx_sw_bytes`.
            let (magic, bytes) = unsafe { (word(SW_BYTES).read(), word(SW_BYTES + 16).read()) };
            if magic != FP_XSTATE_MAGIC1 || (bytes as usize) < self.offset + 4 {
                return None;
            }
            Some(FramePkru {
                present: word(XSTATE_BV).cast(),
                value: word(self.offset),
            })
        }
        #[cfg(not(target_arch = "x86_64"))]
        {
            let _ = context;
            None
        }
    }
}

/// Of `struct _fpx_sw_bytes` in the legacy area: `magic1` is its first word, `xstate_size` its fifth.
#[cfg(target_arch = "x86_64")]
const SW_BYTES: usize = 464;
#[cfg(target_arch = "x86_64")]
const FP_XSTATE_MAGIC1: u32 = 0x4650_5853;
/// Of the header that follows the legacy area: which states are not their initial ones.
#[cfg(target_arch = "x86_64")]
const XSTATE_BV: usize = 512;

/// PKRU in a signal frame.
#[derive(Debug)]
pub struct FramePkru {
    #[cfg_attr(not(target_arch = "x86_64"), expect(dead_code))]
    present: *mut u64,
    #[cfg_attr(not(target_arch = "x86_64"), expect(dead_code))]
    value: *mut u32,
}

impl FramePkru {
    /// What the register was.
    #[must_use]
    pub fn get(&self) -> u32 {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: within the area of the frame, whose handler runs.
        unsafe {
            match self.present.read_unaligned() & 1 << FEATURE {
                // Its initial state: all open.
                0 => 0,
                _ => self.value.read_unaligned(),
            }
        }
        #[cfg(not(target_arch = "x86_64"))]
        0
    }

    /// What it will be when the handler returns.
    pub fn set(&self, pkru: u32) {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: as above; nobody else uses the frame.
        unsafe {
            let present = self.present.read_unaligned();
            self.present.write_unaligned(present | 1 << FEATURE);
            self.value.write_unaligned(pkru);
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = pkru;
    }
}
