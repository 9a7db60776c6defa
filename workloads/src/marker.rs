//! Marker instructions that open and close a measuring window of the lab.
//!
//! `nop dword ptr [rax + imm32]` does nothing on any x86-64 CPU and needs no privilege; the lab's
//! plugin recognises the displacement when it translates the instruction (`hither_core::opium`).

/// The window that the programs put around their measured part.
pub const WINDOW: u32 = 0;

#[cfg(target_arch = "x86_64")]
macro_rules! mark {
    ($what:ident) => {
        // SAFETY: a no-operation: it touches no memory, no flags and no register. Without
        // `nomem`, so that the compiler keeps memory accesses on their side of the marker.
        unsafe {
            std::arch::asm!(
                "nop dword ptr [rax + {marker}]",
                marker = const hither_core::opium::MARKER_MAGIC
                    | (WINDOW << 4)
                    | hither_core::opium::$what,
                options(nostack, preserves_flags)
            );
        }
    };
}

/// Opens window 0.
#[inline]
pub fn open() {
    #[cfg(target_arch = "x86_64")]
    mark!(MARKER_OPEN);
}

/// Closes window 0.
#[inline]
pub fn close() {
    #[cfg(target_arch = "x86_64")]
    mark!(MARKER_CLOSE);
}
