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

/// Every form, by its name.
const NAMES: [&CStr; 20] = [
    c"_Znwm",
    c"_Znam",
    c"_ZnwmRKSt9nothrow_t",
    c"_ZnamRKSt9nothrow_t",
    c"_ZnwmSt11align_val_t",
    c"_ZnamSt11align_val_t",
    c"_ZnwmSt11align_val_tRKSt9nothrow_t",
    c"_ZnamSt11align_val_tRKSt9nothrow_t",
    c"_ZdlPv",
    c"_ZdaPv",
    c"_ZdlPvm",
    c"_ZdaPvm",
    c"_ZdlPvSt11align_val_t",
    c"_ZdaPvSt11align_val_t",
    c"_ZdlPvmSt11align_val_t",
    c"_ZdaPvmSt11align_val_t",
    c"_ZdlPvRKSt9nothrow_t",
    c"_ZdaPvRKSt9nothrow_t",
    c"_ZdlPvSt11align_val_tRKSt9nothrow_t",
    c"_ZdaPvSt11align_val_tRKSt9nothrow_t",
];

/// The forms behind this library; 0 where they were not found yet.
static NEXT: [AtomicUsize; NAMES.len()] = [const { AtomicUsize::new(0) }; NAMES.len()];

/// Looks all forms up, where the program has C++: before it runs, as a look-up later may wait for who
/// loads a library.
pub fn resolve() {
    for (name, place) in NAMES.iter().zip(&NEXT) {
        // SAFETY: the name ends in a zero.
        let address = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) };
        if address.is_null() {
            return;
        }
        place.store(address as usize, Ordering::Relaxed);
    }
}

#[cold]
fn look_up(index: usize) -> usize {
    let name = NAMES[index];
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
    NEXT[index].store(address, Ordering::Relaxed);
    address
}

#[inline(always)]
fn known(index: usize) -> usize {
    match NEXT[index].load(Ordering::Relaxed) {
        0 => look_up(index),
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
    ($name:ident => $inner:ident, $index:literal, $register:literal,
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
            if let Some(pointer) = placed(bytes, $align, caller) {
                return pointer;
            }
            match known($index) {
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

new!(_Znwm => new_from, 0, "rsi", (), 16, surely);
new!(_Znam => new_array_from, 1, "rsi", (), 16, surely);
new!(_ZnwmRKSt9nothrow_t => new_quiet_from, 2, "rdx", (tag: Pointer), 16, quietly);
new!(_ZnamRKSt9nothrow_t => new_array_quiet_from, 3, "rdx", (tag: Pointer), 16, quietly);
new!(_ZnwmSt11align_val_t => new_aligned_from, 4, "rdx", (align: usize), align, surely);
new!(_ZnamSt11align_val_t => new_array_aligned_from, 5, "rdx", (align: usize), align, surely);
new!(_ZnwmSt11align_val_tRKSt9nothrow_t => new_aligned_quiet_from, 6, "rcx", (align: usize, tag: Pointer), align, quietly);
new!(_ZnamSt11align_val_tRKSt9nothrow_t => new_array_aligned_quiet_from, 7, "rcx", (align: usize, tag: Pointer), align, quietly);

macro_rules! delete {
    ($name:ident, $index:literal $(, $argument:ident: $kind:ty)*) => {
        #[doc = concat!("`operator delete`: ", stringify!($name), ".")]
        #[cfg_attr(not(test), unsafe(no_mangle))]
        pub unsafe extern "C-unwind" fn $name(pointer: Pointer $(, $argument: $kind)*) {
            if place::holds(pointer as usize) {
                return exports::give_back(pointer);
            }
            match known($index) {
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

delete!(_ZdlPv, 8);
delete!(_ZdaPv, 9);
delete!(_ZdlPvm, 10, bytes: usize);
delete!(_ZdaPvm, 11, bytes: usize);
delete!(_ZdlPvSt11align_val_t, 12, align: usize);
delete!(_ZdaPvSt11align_val_t, 13, align: usize);
delete!(_ZdlPvmSt11align_val_t, 14, bytes: usize, align: usize);
delete!(_ZdaPvmSt11align_val_t, 15, bytes: usize, align: usize);
delete!(_ZdlPvRKSt9nothrow_t, 16, tag: Pointer);
delete!(_ZdaPvRKSt9nothrow_t, 17, tag: Pointer);
delete!(_ZdlPvSt11align_val_tRKSt9nothrow_t, 18, align: usize, tag: Pointer);
delete!(_ZdaPvSt11align_val_tRKSt9nothrow_t, 19, align: usize, tag: Pointer);
