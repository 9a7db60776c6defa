//! Copying with stores that go around the caches.
//!
//! Problem: an ordinary store first reads the line that it is about to overwrite, and leaves the
//! copy in the cache of a CPU that will not use it. A streaming store does neither, but it needs
//! whole lines, and one stream of reads alone keeps too few of them on their way.
//!
//! Mechanism: the target is brought to a line boundary by an ordinary copy, then one page follows the
//! other, and what is read soon is asked for by prefetch instructions, as the processor's own
//! read-ahead stops at page boundaries. A store fence ends it.
//!
//! Figures, one thread, memory that no cache holds. An AMD EPYC (Zen 4; GB/s in huge, in small pages), requests
//! of 1 MiB: in order with prefetch 22.8, 20.7, without 20.9, 19.7, four pages by 2 KiB in turn 13.7,
//! 12.7; of 64 KiB 16.4, 15.1, without 16.9, 15.9, four pages 13.1, 12.1. An Intel Xeon with AVX-512, 16 MiB: in
//! order with prefetch 14.0, without 10.4, four pages 13.8, glibc's memcpy and `rep movsb` 7.9. A
//! single scattered page loses by prefetch there (7.1 to 6.7). An AMD EPYC (Zen 5; huge, small pages), 2 MiB: with
//! prefetch of the next page alone 29.3, 28.5, of all 25.5, 25.1, without 27.4, 26.9. All in shared
//! virtual machines.
//!
//! The loops are assembly: other threads may write to the source meanwhile (memif replicates live
//! memory), and an access that the compiler does not see cannot be reasoned about by it.

// Elsewhere the library copies, and the figures have no use.
#![cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]

use super::tuning::Tuning;
use std::sync::atomic::{Ordering, fence};

/// A cache line.
const LINE: usize = 64;
/// What is copied side by side when pages take turns, and where read-ahead stops.
pub(super) const PAGE: usize = 4096;

/// Below this a streaming copy has no middle worth the name, in bytes.
const STREAM_LEAST: usize = 1024;
/// From here what is read soon is asked for.
const PREFETCH_LEAST: usize = 64 << 10;

/// Through the caches or around them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stores {
    /// What is overwritten is read first, and the copy stays in the caches.
    Ordinary,
    /// Neither.
    Streaming,
}

impl Stores {
    /// What suits a copy of so many bytes: ordinary ones where both ranges fit a near cache.
    pub(crate) fn of(total: usize) -> Self {
        match total <= Tuning::get().ordinary_most {
            true => Self::Ordinary,
            false => Self::Streaming,
        }
    }
}

/// The order of a streaming copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    /// One page after the other.
    Ascending,
    /// Four pages side by side, 2 KiB of each in turn.
    Interleaved,
}

/// Copies by the way that suits the size: ordinary stores where both ranges fit a cache,
/// streaming stores otherwise.
///
/// # Safety
/// As [`nontemporal`].
pub unsafe fn copy(from: *const u8, to: *mut u8, bytes: usize) {
    // SAFETY: as the caller promises.
    unsafe { copy_by(from, to, bytes, Stores::of(bytes)) }
}

/// The same by stores that the caller chooses: this may be a part of a larger copy.
///
/// # Safety
/// As [`nontemporal`].
pub(super) unsafe fn copy_by(from: *const u8, to: *mut u8, bytes: usize, stores: Stores) {
    // SAFETY: as the caller promises.
    unsafe {
        match stores {
            #[cfg(target_arch = "x86_64")]
            Stores::Ordinary if bytes >= PAGE && Tuning::get().by_string => {
                x86::string(from, to, bytes)
            }
            Stores::Ordinary => std::ptr::copy_nonoverlapping(from, to, bytes),
            Stores::Streaming => nontemporal(from, to, bytes),
        }
    }
}

/// Copies with streaming stores, whatever the size; later stores are ordered after it. For the
/// caller who knows that neither range is wanted in this CPU's caches. Any alignment, any length.
/// Architectures other than x86-64 use the library's memcpy.
///
/// # Safety
/// `from` is readable and `to` is writable for `bytes` bytes, and the two do not overlap. Other
/// threads may write to the source meanwhile, then old or new bytes are copied; nobody else
/// accesses the target through a reference.
pub unsafe fn nontemporal(from: *const u8, to: *mut u8, bytes: usize) {
    // SAFETY: as the caller promises; `Way::best` is one that this processor has.
    unsafe { Way::best().copy(from, to, bytes, Order::Ascending) }
}

/// The same with four pages side by side, as memcpy of glibc copies what is large: some machines are
/// faster so, others slower, which a probe tells.
///
/// # Safety
/// As [`nontemporal`].
pub unsafe fn interleaved(from: *const u8, to: *mut u8, bytes: usize) {
    // SAFETY: as the caller promises; `Way::best` is one that this processor has.
    unsafe { Way::best().copy(from, to, bytes, Order::Interleaved) }
}

/// The instructions that copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// 64 bytes at a time.
    #[cfg(target_arch = "x86_64")]
    Avx512,
    /// 32 bytes at a time.
    #[cfg(target_arch = "x86_64")]
    Avx2,
    /// 16 bytes at a time: every x86-64.
    #[cfg(target_arch = "x86_64")]
    Sse2,
    /// The library's memcpy, with ordinary stores.
    #[cfg_attr(target_arch = "x86_64", allow(dead_code))]
    Plain,
}

impl Way {
    /// The widest that this processor has; what it has is asked once, by the standard library.
    #[cfg(target_arch = "x86_64")]
    pub(super) fn best() -> Self {
        if is_x86_feature_detected!("avx512f") {
            Self::Avx512
        } else if is_x86_feature_detected!("avx2") {
            Self::Avx2
        } else {
            Self::Sse2
        }
    }

    #[cfg(not(target_arch = "x86_64"))]
    pub(super) fn best() -> Self {
        Self::Plain
    }

    /// The words for a report.
    pub(super) fn name(self) -> &'static str {
        match self {
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => "streaming stores of AVX-512",
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => "streaming stores of AVX2",
            #[cfg(target_arch = "x86_64")]
            Self::Sse2 => "streaming stores of SSE2",
            Self::Plain => "the library's memcpy",
        }
    }

    /// Copies, then fences.
    ///
    /// # Safety
    /// As [`nontemporal`], and the processor has these instructions.
    pub(super) unsafe fn copy(self, from: *const u8, to: *mut u8, bytes: usize, order: Order) {
        // SAFETY: as the caller promises.
        unsafe {
            match self {
                #[cfg(target_arch = "x86_64")]
                Self::Avx512 if bytes >= STREAM_LEAST => {
                    x86::copy::<x86::Avx512>(from, to, bytes, order)
                }
                #[cfg(target_arch = "x86_64")]
                Self::Avx2 if bytes >= STREAM_LEAST => {
                    x86::copy::<x86::Avx2>(from, to, bytes, order)
                }
                #[cfg(target_arch = "x86_64")]
                Self::Sse2 if bytes >= STREAM_LEAST => {
                    x86::copy::<x86::Sse2>(from, to, bytes, order)
                }
                _ => std::ptr::copy_nonoverlapping(from, to, bytes),
            }
        }
        // For ordinary stores; streaming ones have had their own fence.
        fence(Ordering::Release);
    }
}

#[cfg(target_arch = "x86_64")]
pub(super) mod x86 {
    use super::{LINE, Order, PAGE, PREFETCH_LEAST, Tuning};
    use std::arch::asm;
    use std::arch::x86_64::{_MM_HINT_NTA, _mm_prefetch, _mm_sfence};

    /// Bytes that one step copies: four lines.
    const STEP: usize = 4 * LINE;
    /// How far ahead of the copy lines are asked for.
    const AHEAD: usize = 2048;
    /// Pages side by side, and what of each is copied in turn.
    const PAGES: usize = 4;
    const BLOCK: usize = 2048;

    /// One width of vector registers.
    pub(super) trait Vector {
        /// Copies [`STEP`] bytes to a line boundary.
        ///
        /// # Safety
        /// Both are valid for [`STEP`] bytes, `to` is a multiple of [`LINE`], and the processor
        /// has the instructions.
        unsafe fn step(from: *const u8, to: *mut u8);

        /// After the last step: leaves the registers as other code wants them.
        fn finish();
    }

    pub(super) struct Avx512;
    pub(super) struct Avx2;
    pub(super) struct Sse2;

    impl Vector for Avx512 {
        #[inline(always)]
        unsafe fn step(from: *const u8, to: *mut u8) {
            // SAFETY: reads and writes STEP bytes that the caller gives; registers are named.
            unsafe {
                asm!(
                    "vmovdqu64 zmm0, [{from}]",
                    "vmovdqu64 zmm1, [{from} + 64]",
                    "vmovdqu64 zmm2, [{from} + 128]",
                    "vmovdqu64 zmm3, [{from} + 192]",
                    "vmovntdq [{to}], zmm0",
                    "vmovntdq [{to} + 64], zmm1",
                    "vmovntdq [{to} + 128], zmm2",
                    "vmovntdq [{to} + 192], zmm3",
                    from = in(reg) from,
                    to = in(reg) to,
                    out("xmm0") _, out("xmm1") _, out("xmm2") _, out("xmm3") _,
                    options(nostack, preserves_flags),
                );
            }
        }

        fn finish() {
            clear_upper_halves();
        }
    }

    impl Vector for Avx2 {
        #[inline(always)]
        unsafe fn step(from: *const u8, to: *mut u8) {
            // SAFETY: reads and writes STEP bytes that the caller gives; registers are named.
            unsafe {
                asm!(
                    "vmovdqu ymm0, [{from}]",
                    "vmovdqu ymm1, [{from} + 32]",
                    "vmovdqu ymm2, [{from} + 64]",
                    "vmovdqu ymm3, [{from} + 96]",
                    "vmovdqu ymm4, [{from} + 128]",
                    "vmovdqu ymm5, [{from} + 160]",
                    "vmovdqu ymm6, [{from} + 192]",
                    "vmovdqu ymm7, [{from} + 224]",
                    "vmovntdq [{to}], ymm0",
                    "vmovntdq [{to} + 32], ymm1",
                    "vmovntdq [{to} + 64], ymm2",
                    "vmovntdq [{to} + 96], ymm3",
                    "vmovntdq [{to} + 128], ymm4",
                    "vmovntdq [{to} + 160], ymm5",
                    "vmovntdq [{to} + 192], ymm6",
                    "vmovntdq [{to} + 224], ymm7",
                    from = in(reg) from,
                    to = in(reg) to,
                    out("xmm0") _, out("xmm1") _, out("xmm2") _, out("xmm3") _,
                    out("xmm4") _, out("xmm5") _, out("xmm6") _, out("xmm7") _,
                    options(nostack, preserves_flags),
                );
            }
        }

        fn finish() {
            clear_upper_halves();
        }
    }

    impl Vector for Sse2 {
        #[inline(always)]
        unsafe fn step(from: *const u8, to: *mut u8) {
            for half in [0, STEP / 2] {
                // SAFETY: reads and writes half of the STEP bytes that the caller gives;
                // registers are named.
                unsafe {
                    asm!(
                        "movdqu xmm0, [{from}]",
                        "movdqu xmm1, [{from} + 16]",
                        "movdqu xmm2, [{from} + 32]",
                        "movdqu xmm3, [{from} + 48]",
                        "movdqu xmm4, [{from} + 64]",
                        "movdqu xmm5, [{from} + 80]",
                        "movdqu xmm6, [{from} + 96]",
                        "movdqu xmm7, [{from} + 112]",
                        "movntdq [{to}], xmm0",
                        "movntdq [{to} + 16], xmm1",
                        "movntdq [{to} + 32], xmm2",
                        "movntdq [{to} + 48], xmm3",
                        "movntdq [{to} + 64], xmm4",
                        "movntdq [{to} + 80], xmm5",
                        "movntdq [{to} + 96], xmm6",
                        "movntdq [{to} + 112], xmm7",
                        from = in(reg) from.add(half),
                        to = in(reg) to.add(half),
                        out("xmm0") _, out("xmm1") _, out("xmm2") _, out("xmm3") _,
                        out("xmm4") _, out("xmm5") _, out("xmm6") _, out("xmm7") _,
                        options(nostack, preserves_flags),
                    );
                }
            }
        }

        fn finish() {}
    }

    /// Upper halves in use slow down later code that is compiled for SSE.
    fn clear_upper_halves() {
        // SAFETY: only vectors that used AVX call this; all registers that it changes are named.
        unsafe {
            asm!(
                "vzeroupper",
                out("xmm0") _, out("xmm1") _, out("xmm2") _, out("xmm3") _,
                out("xmm4") _, out("xmm5") _, out("xmm6") _, out("xmm7") _,
                out("xmm8") _, out("xmm9") _, out("xmm10") _, out("xmm11") _,
                out("xmm12") _, out("xmm13") _, out("xmm14") _, out("xmm15") _,
                options(nostack, nomem, preserves_flags),
            );
        }
    }

    /// By the processor's own loop, to a line boundary: it is slower to any other.
    ///
    /// # Safety
    /// As [`super::nontemporal`].
    pub(in super::super) unsafe fn string(from: *const u8, to: *mut u8, bytes: usize) {
        let head = (to.addr().wrapping_neg() % LINE).min(bytes);
        // SAFETY: head and rest are within `bytes`; the direction flag is clear, as everywhere.
        unsafe {
            std::ptr::copy_nonoverlapping(from, to, head);
            asm!(
                "rep movsb",
                inout("rsi") from.add(head) => _,
                inout("rdi") to.add(head) => _,
                inout("rcx") bytes - head => _,
                options(nostack, preserves_flags),
            );
        }
    }

    /// The whole copy: head, groups of pages where asked for, single stream, tail, fence.
    ///
    /// # Safety
    /// As [`super::nontemporal`], and the processor has the vector's instructions.
    pub(super) unsafe fn copy<V: Vector>(from: *const u8, to: *mut u8, bytes: usize, order: Order) {
        let head = (to as usize).wrapping_neg() % LINE;
        let head = head.min(bytes);
        // SAFETY: all offsets stay below `bytes`: `done` never passes it.
        unsafe {
            std::ptr::copy_nonoverlapping(from, to, head);
            let mut done = head;
            if order == Order::Interleaved {
                done += groups::<V>(from.add(done), to.add(done), bytes - done);
            }
            done += single::<V>(from.add(done), to.add(done), bytes - done);
            V::finish();
            std::ptr::copy_nonoverlapping(from.add(done), to.add(done), bytes - done);
        }
        // SAFETY: a fence; every x86-64 has it. The streaming stores above are weakly ordered.
        unsafe { _mm_sfence() };
    }

    /// Copies whole groups of pages, a block of each page in turn; returns the bytes copied.
    ///
    /// # Safety
    /// Both valid for `bytes`, `to` a multiple of [`LINE`], the processor has the instructions.
    unsafe fn groups<V: Vector>(from: *const u8, to: *mut u8, bytes: usize) -> usize {
        const { assert!(PAGE.is_multiple_of(BLOCK) && BLOCK.is_multiple_of(STEP)) };
        let group = PAGES * PAGE;
        let whole = bytes - bytes % group;
        for start in (0..whole).step_by(group) {
            for block in (start..start + PAGE).step_by(BLOCK) {
                for page in (0..group).step_by(PAGE) {
                    for step in (block..block + BLOCK).step_by(STEP) {
                        // SAFETY: page + step < whole, and a step fits below it.
                        unsafe { V::step(from.add(page + step), to.add(page + step)) };
                    }
                }
            }
        }
        whole
    }

    /// Copies whole steps one after the other; returns the bytes copied.
    ///
    /// # Safety
    /// As [`groups`].
    unsafe fn single<V: Vector>(from: *const u8, to: *mut u8, bytes: usize) -> usize {
        let whole = bytes - bytes % STEP;
        let asks_from = match bytes >= PREFETCH_LEAST {
            true => Tuning::get().asks_from,
            false => PAGE,
        };
        for step in (0..whole).step_by(STEP) {
            if from.addr().wrapping_add(step) % PAGE >= asks_from {
                for line in (0..STEP).step_by(LINE) {
                    // What lies beyond the end is not read, and no prefetch faults.
                    let soon = from.wrapping_add(step + AHEAD + line);
                    // SAFETY: a hint; every x86-64 has it.
                    unsafe { _mm_prefetch::<_MM_HINT_NTA>(soon.cast()) };
                }
            }
            // SAFETY: a whole step is left.
            unsafe { V::step(from.add(step), to.add(step)) };
        }
        whole
    }
}
