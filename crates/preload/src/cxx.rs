//! C++: `operator new` and `operator delete`, in all their forms.
//!
//! Those of libstdc++ and libc++ call `malloc`, and would need no help. Other allocators (jemalloc,
//! mimalloc) bring their own, which do not. A form that is replaced hands on to the one behind; what
//! throws throws through here. Where a C++ library was loaded later and for itself alone
//! (`dlopen(RTLD_LOCAL)`), the look-up behind this library does not find it: then it is asked for by
//! name.

#![allow(
    clippy::missing_safety_doc,
    reason = "what these ask of their callers is what the C++ library documents"
)]
#![allow(non_snake_case, reason = "the names are those of the C++ ABI")]

use crate::{exports, place};
use std::ffi::{CStr, c_void};
use std::sync::atomic::{AtomicUsize, Ordering};

type Pointer = *mut c_void;

/// The libraries that may have been loaded for themselves alone.
const LIBRARIES: [&CStr; 2] = [c"libstdc++.so.6", c"libc++.so.1"];

#[cold]
fn look_up(name: &CStr, known: &AtomicUsize) -> usize {
    // SAFETY: the name ends in a zero.
    let mut address = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) } as usize;
    for library in LIBRARIES {
        if address != 0 {
            break;
        }
        // SAFETY: as above; nothing is loaded that is not there.
        unsafe {
            let library = libc::dlopen(library.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD);
            if !library.is_null() {
                address = libc::dlsym(library, name.as_ptr()) as usize;
            }
        }
    }
    known.store(address, Ordering::Relaxed);
    address
}

#[inline(always)]
fn known(name: &CStr, place: &AtomicUsize) -> usize {
    match place.load(Ordering::Relaxed) {
        0 => look_up(name, place),
        address => address,
    }
}

/// A placed block for `new`, or nothing.
#[inline(always)]
fn placed(bytes: usize, align: usize, caller: usize) -> Option<Pointer> {
    if place::is_below_heap(bytes) || !align.is_power_of_two() {
        return None;
    }
    place::heap(bytes, align, caller).map(|block| block.address as Pointer)
}

/// Without any C++ library nobody can throw: what cannot be had ends the program.
#[cold]
fn or_abort(pointer: Pointer) -> Pointer {
    if pointer.is_null() {
        // SAFETY: ends the process.
        unsafe { libc::abort() }
    }
    pointer
}

macro_rules! new {
    ($name:ident => $inner:ident, $text:literal, $register:literal,
     ($($argument:ident: $kind:ty),*), $align:expr, $otherwise:expr) => {
        #[doc = concat!("`operator new`: ", stringify!($name), ".")]
        #[cfg(target_arch = "x86_64")]
        #[cfg_attr(not(test), unsafe(no_mangle))]
        #[unsafe(naked)]
        pub unsafe extern "C-unwind" fn $name(bytes: usize $(, $argument: $kind)*) -> Pointer {
            std::arch::naked_asm!(
                concat!("mov ", $register, ", rsp"),
                "jmp {inner}",
                inner = sym $inner,
            )
        }

        #[doc = concat!("`operator new`: ", stringify!($name), ".")]
        #[cfg(not(target_arch = "x86_64"))]
        #[cfg_attr(not(test), unsafe(no_mangle))]
        pub unsafe extern "C-unwind" fn $name(bytes: usize $(, $argument: $kind)*) -> Pointer {
            // SAFETY: the caller's arguments are handed on.
            unsafe { $inner(bytes $(, $argument)*, 0) }
        }

        unsafe extern "C-unwind" fn $inner(bytes: usize $(, $argument: $kind)*, caller: usize) -> Pointer {
            static NEXT: AtomicUsize = AtomicUsize::new(0);
            if let Some(pointer) = placed(bytes, $align, caller) {
                return pointer;
            }
            match known($text, &NEXT) {
                0 => $otherwise(bytes, $align),
                address => {
                    // SAFETY: the function of that name has this type.
                    let next = unsafe {
                        std::mem::transmute::<
                            usize,
                            unsafe extern "C-unwind" fn(usize $(, $kind)*) -> Pointer,
                        >(address)
                    };
                    // SAFETY: the program's own request.
                    unsafe { next(bytes $(, $argument)*) }
                }
            }
        }
    };
}

fn quietly(bytes: usize, align: usize) -> Pointer {
    // C++ has no block without a byte.
    exports::take(bytes.max(1), align)
}

fn surely(bytes: usize, align: usize) -> Pointer {
    or_abort(quietly(bytes, align))
}

new!(_Znwm => new_from, c"_Znwm", "rsi", (), 16, surely);
new!(_Znam => new_array_from, c"_Znam", "rsi", (), 16, surely);
new!(_ZnwmRKSt9nothrow_t => new_quiet_from, c"_ZnwmRKSt9nothrow_t", "rdx", (tag: Pointer), 16, quietly);
new!(_ZnamRKSt9nothrow_t => new_array_quiet_from, c"_ZnamRKSt9nothrow_t", "rdx", (tag: Pointer), 16, quietly);
new!(_ZnwmSt11align_val_t => new_aligned_from, c"_ZnwmSt11align_val_t", "rdx", (align: usize), align, surely);
new!(_ZnamSt11align_val_t => new_array_aligned_from, c"_ZnamSt11align_val_t", "rdx", (align: usize), align, surely);
new!(_ZnwmSt11align_val_tRKSt9nothrow_t => new_aligned_quiet_from, c"_ZnwmSt11align_val_tRKSt9nothrow_t", "rcx", (align: usize, tag: Pointer), align, quietly);
new!(_ZnamSt11align_val_tRKSt9nothrow_t => new_array_aligned_quiet_from, c"_ZnamSt11align_val_tRKSt9nothrow_t", "rcx", (align: usize, tag: Pointer), align, quietly);

macro_rules! delete {
    ($name:ident, $text:literal $(, $argument:ident: $kind:ty)*) => {
        #[doc = concat!("`operator delete`: ", stringify!($name), ".")]
        #[cfg_attr(not(test), unsafe(no_mangle))]
        pub unsafe extern "C-unwind" fn $name(pointer: Pointer $(, $argument: $kind)*) {
            static NEXT: AtomicUsize = AtomicUsize::new(0);
            if place::holds(pointer as usize) {
                return exports::give_back(pointer);
            }
            match known($text, &NEXT) {
                // Without a C++ library, what this library's `new` took.
                0 => exports::give_back(pointer),
                address => {
                    // SAFETY: the function of that name has this type.
                    let next = unsafe {
                        std::mem::transmute::<usize, unsafe extern "C-unwind" fn(Pointer $(, $kind)*)>(
                            address,
                        )
                    };
                    // SAFETY: the program's own request.
                    unsafe { next(pointer $(, $argument)*) }
                }
            }
        }
    };
}

delete!(_ZdlPv, c"_ZdlPv");
delete!(_ZdaPv, c"_ZdaPv");
delete!(_ZdlPvm, c"_ZdlPvm", bytes: usize);
delete!(_ZdaPvm, c"_ZdaPvm", bytes: usize);
delete!(_ZdlPvSt11align_val_t, c"_ZdlPvSt11align_val_t", align: usize);
delete!(_ZdaPvSt11align_val_t, c"_ZdaPvSt11align_val_t", align: usize);
delete!(_ZdlPvmSt11align_val_t, c"_ZdlPvmSt11align_val_t", bytes: usize, align: usize);
delete!(_ZdaPvmSt11align_val_t, c"_ZdaPvmSt11align_val_t", bytes: usize, align: usize);
delete!(_ZdlPvRKSt9nothrow_t, c"_ZdlPvRKSt9nothrow_t", tag: Pointer);
delete!(_ZdaPvRKSt9nothrow_t, c"_ZdaPvRKSt9nothrow_t", tag: Pointer);
delete!(_ZdlPvSt11align_val_tRKSt9nothrow_t, c"_ZdlPvSt11align_val_tRKSt9nothrow_t", align: usize, tag: Pointer);
delete!(_ZdaPvSt11align_val_tRKSt9nothrow_t, c"_ZdaPvSt11align_val_tRKSt9nothrow_t", align: usize, tag: Pointer);
