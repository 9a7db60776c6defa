//! The functions that are replaced. Each hands the program's request to the allocator behind it,
//! unchanged, and looks at those only that are large, or that a rule may be about.
//!
//! The exported entries are one instruction before a jump: they keep where the return address of the
//! program's call lies, which no later code could tell. What they jump to ends in a jump to the
//! allocator, for all that is small. (Slow halves are `extern "C"` too: such calls do not unwind,
//! which saves the fast halves a frame.)

#![allow(
    clippy::missing_safety_doc,
    reason = "what these ask of their callers is what the C library documents"
)]

use crate::bootstrap::{self, Next};
use crate::config::{is_recorded, is_small};
use crate::place::{self, Block};
use crate::record;
use crate::state::STATE;
use hither_core::sites::How;
use std::ffi::{c_int, c_void};

/// Defines an exported function that passes its arguments, and the place of its return address, on.
/// The register is the one that the System V ABI has for the argument behind the function's own.
macro_rules! entry {
    ($name:ident => $inner:ident, $register:literal, ($($argument:ident: $kind:ty),*) -> $result:ty) => {
        #[doc = concat!("As in the C library: `", stringify!($name), "`.")]
        #[cfg(target_arch = "x86_64")]
        #[cfg_attr(not(test), unsafe(no_mangle))]
        #[unsafe(naked)]
        pub unsafe extern "C" fn $name($($argument: $kind),*) -> $result {
            std::arch::naked_asm!(
                concat!("mov ", $register, ", rsp"),
                "jmp {inner}",
                inner = sym $inner,
            )
        }

        #[doc = concat!("As in the C library: `", stringify!($name), "`.")]
        #[cfg(not(target_arch = "x86_64"))]
        #[cfg_attr(not(test), unsafe(no_mangle))]
        pub unsafe extern "C" fn $name($($argument: $kind),*) -> $result {
            // SAFETY: the caller's arguments are handed on.
            unsafe { $inner($($argument,)* 0) }
        }
    };
}

type Pointer = *mut c_void;

/// The function behind, of the type that the C library gives it; `None` while it is looked up.
///
/// # Safety
/// `F` is the type of the C function with that name.
unsafe fn next<F: Copy>(next: &Next) -> Option<F> {
    match next.address() {
        0 => None,
        // SAFETY: the caller vouches for the type.
        address => Some(unsafe { function_at(address) }),
    }
}

/// # Safety
/// There is a function of the type `F` at this address.
#[inline(always)]
unsafe fn function_at<F: Copy>(address: usize) -> F {
    const { assert!(size_of::<F>() == size_of::<usize>()) };
    // SAFETY: as the caller says.
    unsafe { std::mem::transmute_copy(&address) }
}

type Allocate1 = unsafe extern "C" fn(usize) -> Pointer;
type Allocate2 = unsafe extern "C" fn(usize, usize) -> Pointer;
/// A block that a rule places, before the allocator behind is asked.
fn placed(bytes: usize, align: usize, caller: usize) -> Option<Block> {
    match place::is_below_heap(bytes) || !align.is_power_of_two() {
        true => None,
        false => place::heap(bytes, align, caller),
    }
}

type Reallocate = unsafe extern "C" fn(Pointer, usize) -> Pointer;

/// The end of every allocation of the heap that was looked at.
fn given(how: How, pointer: Pointer, bytes: usize, caller: usize) -> Pointer {
    if !pointer.is_null() && is_recorded(bytes) {
        record::allocated(how, pointer as usize, bytes, caller);
    }
    pointer
}

/// Functions of a size: what is small goes straight to the function behind.
macro_rules! of_size {
    ($name:ident => $slow:ident, $next:ident, $how:ident, $align:literal) => {
        #[doc = concat!("As in the C library: `", stringify!($name), "`.")]
        #[cfg(target_arch = "x86_64")]
        #[cfg_attr(not(test), unsafe(no_mangle))]
        #[unsafe(naked)]
        pub unsafe extern "C" fn $name(bytes: usize) -> Pointer {
            // By hand, as this is most of what the shim costs: `is_small`, then the function behind.
            std::arch::naked_asm!(
                "cmp rdi, qword ptr [rip + {threshold}]",
                "jae 2f",
                "jmp qword ptr [rip + {next}]",
                "2:",
                "mov rsi, rsp",
                "jmp {slow}",
                threshold = sym crate::config::THRESHOLD,
                next = sym bootstrap::$next,
                slow = sym $slow,
            )
        }

        #[doc = concat!("As in the C library: `", stringify!($name), "`.")]
        #[cfg(not(target_arch = "x86_64"))]
        #[cfg_attr(not(test), unsafe(no_mangle))]
        pub unsafe extern "C" fn $name(bytes: usize) -> Pointer {
            if is_small(bytes) {
                // SAFETY: the function of that name, and the program's own request; so in all below.
                return unsafe { function_at::<Allocate1>(bootstrap::$next.known())(bytes) };
            }
            $slow(bytes, 0)
        }

        #[cold]
        #[inline(never)]
        extern "C" fn $slow(bytes: usize, caller: usize) -> Pointer {
            // SAFETY: as above.
            let Some(function) = (unsafe { next::<Allocate1>(&bootstrap::$next) }) else {
                return bootstrap::arena(bytes, $align);
            };
            let pointer = match placed(bytes, $align, caller) {
                Some(block) => block.address as Pointer,
                // SAFETY: as above.
                None => unsafe { function(bytes) },
            };
            given(How::$how, pointer, bytes, caller)
        }
    };
}
of_size!(malloc => malloc_slow, MALLOC, Malloc, 16);
of_size!(valloc => valloc_slow, VALLOC, Aligned, 4096);
of_size!(pvalloc => pvalloc_slow, PVALLOC, Aligned, 4096);

/// Functions of two numbers, from which `$bytes` and `$align` follow.
macro_rules! of_two {
    ($name:ident => $inner:ident, $slow:ident, $next:ident, $how:ident, $fill:ident, |$one:ident, $two:ident| $bytes:expr, $align:expr) => {
        entry!($name => $inner, "rdx", ($one: usize, $two: usize) -> Pointer);
        unsafe extern "C" fn $inner($one: usize, $two: usize, caller: usize) -> Pointer {
            if is_small($bytes) {
                // SAFETY: as in malloc.
                return unsafe { function_at::<Allocate2>(bootstrap::$next.known())($one, $two) };
            }
            $slow($one, $two, caller)
        }

        #[cold]
        #[inline(never)]
        extern "C" fn $slow($one: usize, $two: usize, caller: usize) -> Pointer {
            // SAFETY: as in malloc.
            let Some(function) = (unsafe { next::<Allocate2>(&bootstrap::$next) }) else {
                return bootstrap::arena($bytes, $align);
            };
            let pointer = match placed($bytes, $align, caller) {
                Some(block) => $fill(block, $bytes),
                // SAFETY: as in malloc.
                None => unsafe { function($one, $two) },
            };
            given(How::$how, pointer, $bytes, caller)
        }
    };
}

fn as_it_is(block: Block, _: usize) -> Pointer {
    block.address as Pointer
}

/// A placed block as `calloc` gives it.
fn zeroed(block: Block, bytes: usize) -> Pointer {
    if !block.is_zeroed {
        // SAFETY: a block of that many bytes, which is nobody else's.
        unsafe { std::ptr::write_bytes(block.address as *mut u8, 0, bytes) };
    }
    block.address as Pointer
}

// A product that overflows is large, and refused by the allocator.
of_two!(calloc => calloc_from, calloc_slow, CALLOC, Calloc, zeroed, |count, size| count.saturating_mul(size), 16);
of_two!(aligned_alloc => aligned_alloc_from, aligned_alloc_slow, ALIGNED_ALLOC, Aligned, as_it_is, |align, bytes| bytes, align);
of_two!(memalign => memalign_from, memalign_slow, MEMALIGN, Aligned, as_it_is, |align, bytes| bytes, align);

entry!(realloc => realloc_from, "rdx", (old: Pointer, bytes: usize) -> Pointer);
unsafe extern "C" fn realloc_from(old: Pointer, bytes: usize, caller: usize) -> Pointer {
    if is_small(bytes) && !bootstrap::is_looked_at(old as usize) {
        // SAFETY: as in malloc.
        return unsafe { function_at::<Reallocate>(bootstrap::REALLOC.known())(old, bytes) };
    }
    realloc_slow(old, bytes, caller)
}

#[cold]
#[inline(never)]
extern "C" fn realloc_slow(old: Pointer, bytes: usize, caller: usize) -> Pointer {
    if let Some(had) = bootstrap::arena_bytes(old) {
        return copied_out(old, had, bytes);
    }
    // SAFETY: as in malloc.
    let Some(function) = (unsafe { next::<Reallocate>(&bootstrap::REALLOC) }) else {
        return bootstrap::arena(bytes, 16);
    };
    let is_tracked = STATE.tracked.may_contain(old as usize);
    if is_small(bytes) && !is_tracked && !place::holds(old as usize) {
        // SAFETY: as in malloc.
        return unsafe { function(old, bytes) };
    }
    let resizing = record::resizing(old as usize);
    let pointer = match replaced(old, bytes, caller) {
        Some(pointer) => pointer,
        // SAFETY: as in malloc.
        None => unsafe { function(old, bytes) },
    };
    finish_resizing(&resizing, pointer, bytes, caller)
}

/// Resizes a block that is placed, or is to be; nothing for one that stays with the allocator.
fn replaced(old: Pointer, bytes: usize, caller: usize) -> Option<Pointer> {
    let is_placed = place::holds(old as usize);
    if !is_placed && place::is_below_heap(bytes) {
        return None;
    }
    if is_placed && bytes == 0 {
        // As the C library does.
        place::release(old as usize);
        return Some(std::ptr::null_mut());
    }
    if is_placed && place::resize(old as usize, bytes) {
        return Some(old);
    }
    let block = placed(bytes, 16, caller).map(|block| block.address as Pointer);
    let new = match (block, is_placed) {
        (Some(new), _) => new,
        (None, false) => return None,
        // SAFETY: as in malloc.
        (None, true) => match unsafe { next::<Allocate1>(&bootstrap::MALLOC) } {
            // SAFETY: as in malloc.
            Some(function) => unsafe { function(bytes) },
            None => std::ptr::null_mut(),
        },
    };
    if new.is_null() || old.is_null() {
        return Some(new);
    }
    let had = room(old);
    // SAFETY: both have that many bytes, and the new one is nobody else's.
    unsafe { std::ptr::copy_nonoverlapping(old.cast::<u8>(), new.cast(), had.min(bytes)) };
    match is_placed {
        true => place::release(old as usize),
        false => {
            // SAFETY: free has this type.
            let free = unsafe { next::<unsafe extern "C" fn(Pointer)>(&bootstrap::FREE) };
            if let Some(function) = free {
                // SAFETY: as in malloc; whoever resizes a recorded block has recorded its end.
                unsafe { function(old) };
            }
        }
    }
    Some(new)
}

/// Bytes that a block has room for.
extern "C" fn room(pointer: Pointer) -> usize {
    if place::holds(pointer as usize) {
        return place::capacity(pointer as usize);
    }
    if let Some(bytes) = bootstrap::arena_bytes(pointer) {
        return bytes;
    }
    type Function = unsafe extern "C" fn(Pointer) -> usize;
    // SAFETY: malloc_usable_size has this type.
    match unsafe { next::<Function>(&bootstrap::MALLOC_USABLE_SIZE) } {
        // SAFETY: as in malloc.
        Some(function) => unsafe { function(pointer) },
        None => 0,
    }
}

entry!(reallocarray => reallocarray_from, "rcx", (old: Pointer, count: usize, size: usize) -> Pointer);
unsafe extern "C" fn reallocarray_from(
    old: Pointer,
    count: usize,
    size: usize,
    caller: usize,
) -> Pointer {
    // As the C library does it: by `realloc`, which would be seen a second time.
    match count.checked_mul(size) {
        // SAFETY: as in malloc.
        Some(bytes) => unsafe { realloc_from(old, bytes, caller) },
        None => {
            record::set_errno(libc::ENOMEM);
            std::ptr::null_mut()
        }
    }
}

#[cold]
extern "C" fn finish_resizing(
    resizing: &record::Resizing,
    pointer: Pointer,
    bytes: usize,
    caller: usize,
) -> Pointer {
    // The C library frees what is resized to nothing; otherwise null leaves the old memory.
    record::resized(resizing, !pointer.is_null() || bytes == 0);
    given(How::Realloc, pointer, bytes, caller)
}

/// Memory that was handed out before the allocator was known, moved to the allocator.
#[cold]
fn copied_out(old: Pointer, had: usize, bytes: usize) -> Pointer {
    // SAFETY: malloc has this type.
    let pointer = match unsafe { next::<Allocate1>(&bootstrap::MALLOC) } {
        // SAFETY: as in malloc.
        Some(function) => unsafe { function(bytes) },
        None => bootstrap::arena(bytes, 16),
    };
    if !pointer.is_null() {
        // SAFETY: both have at least that many bytes, and the new memory is nobody else's.
        unsafe { std::ptr::copy_nonoverlapping(old.cast::<u8>(), pointer.cast(), had.min(bytes)) };
    }
    pointer
}

/// Functions of a pointer: what nobody has to look at goes straight to the function behind.
macro_rules! of_pointer {
    ($name:ident => $slow:ident, $next:ident, $result:ty) => {
        #[doc = concat!("As in the C library: `", stringify!($name), "`.")]
        #[cfg(target_arch = "x86_64")]
        #[cfg_attr(not(test), unsafe(no_mangle))]
        #[unsafe(naked)]
        pub unsafe extern "C" fn $name(pointer: Pointer) -> $result {
            // `is_looked_at`, by hand as in `malloc`.
            std::arch::naked_asm!(
                "mov rax, rdi",
                "sub rax, qword ptr [rip + {from}]",
                "cmp rax, qword ptr [rip + {bytes}]",
                "jb {slow}",
                "jmp qword ptr [rip + {next}]",
                from = sym bootstrap::LOOKED_FROM,
                bytes = sym bootstrap::LOOKED_BYTES,
                slow = sym $slow,
                next = sym bootstrap::$next,
            )
        }

        #[doc = concat!("As in the C library: `", stringify!($name), "`.")]
        #[cfg(not(target_arch = "x86_64"))]
        #[cfg_attr(not(test), unsafe(no_mangle))]
        pub unsafe extern "C" fn $name(pointer: Pointer) -> $result {
            if !bootstrap::is_looked_at(pointer as usize) {
                let next = bootstrap::$next.known();
                // SAFETY: as in malloc.
                return unsafe { function_at::<unsafe extern "C" fn(Pointer) -> $result>(next)(pointer) };
            }
            $slow(pointer)
        }
    };
}
of_pointer!(free => free_slow, FREE, ());
of_pointer!(malloc_usable_size => room, MALLOC_USABLE_SIZE, usize);

#[inline(never)]
extern "C" fn free_slow(pointer: Pointer) {
    if STATE.tracked.may_contain(pointer as usize) {
        record::freed(pointer as usize);
    }
    if place::holds(pointer as usize) {
        return place::release(pointer as usize);
    }
    if bootstrap::arena_bytes(pointer).is_some() {
        return;
    }
    // SAFETY: as in malloc.
    if let Some(function) = unsafe { next::<unsafe extern "C" fn(Pointer)>(&bootstrap::FREE) } {
        // SAFETY: as in malloc.
        unsafe { function(pointer) };
    }
}

/// Memory for this library's own functions, by this library's own functions: a program that brings an
/// allocator of its own takes the names `malloc` and `free`, and may not know the other's blocks.
pub fn take(bytes: usize, align: usize) -> Pointer {
    match align {
        0..=16 => malloc_slow(bytes, 0),
        _ => memalign_slow(align, bytes, 0),
    }
}

/// Gives back what [`take`] gave, or a placed block.
pub fn give_back(pointer: Pointer) {
    free_slow(pointer);
}

entry!(posix_memalign => posix_memalign_from, "rcx", (place: *mut Pointer, align: usize, bytes: usize) -> c_int);
unsafe extern "C" fn posix_memalign_from(
    place: *mut Pointer,
    align: usize,
    bytes: usize,
    caller: usize,
) -> c_int {
    type Function = unsafe extern "C" fn(*mut Pointer, usize, usize) -> c_int;
    // SAFETY: posix_memalign has this type.
    let Some(function) = (unsafe { next::<Function>(&bootstrap::POSIX_MEMALIGN) }) else {
        return libc::ENOMEM;
    };
    let block = match align.is_multiple_of(size_of::<usize>()) {
        true => placed(bytes, align, caller),
        false => None,
    };
    let failure = match block {
        Some(block) => {
            // SAFETY: the program's own place for a pointer.
            unsafe { *place = block.address as Pointer };
            0
        }
        // SAFETY: as in malloc.
        None => unsafe { function(place, align, bytes) },
    };
    if failure == 0 {
        // SAFETY: a call that succeeded has written the pointer there.
        given(How::Aligned, unsafe { *place }, bytes, caller);
    }
    failure
}

type Map = unsafe extern "C" fn(Pointer, usize, c_int, c_int, c_int, i64) -> Pointer;

#[inline(always)]
unsafe fn map_with(
    function: &Next,
    address: Pointer,
    bytes: usize,
    rights: c_int,
    flags: c_int,
    file: c_int,
    offset: i64,
) -> Pointer {
    let replaces = flags & libc::MAP_FIXED != 0 && record::tells_unmaps();
    let start_ns = if replaces { record::now_ns() } else { 0 };
    // SAFETY: mmap and mmap64 have this type where addresses have 64 bits.
    let pointer = match unsafe { next::<Map>(function) } {
        // SAFETY: as in malloc.
        Some(function) => unsafe { function(address, bytes, rights, flags, file, offset) },
        // SAFETY: as in malloc; the kernel's own call, with the C library's way to fail.
        None => unsafe {
            libc::syscall(libc::SYS_mmap, address, bytes, rights, flags, file, offset) as Pointer
        },
    };
    if pointer == libc::MAP_FAILED {
        return pointer;
    }
    if replaces {
        record::unmapped(pointer as usize, bytes, start_ns);
    }
    let is_own = flags & libc::MAP_ANONYMOUS != 0 && flags & libc::MAP_SHARED == 0;
    if !place::is_below_map(bytes) && is_own && rights != libc::PROT_NONE {
        place::map(pointer as usize, bytes);
    }
    if is_recorded(bytes) {
        let how = match (rights, flags & libc::MAP_ANONYMOUS) {
            (libc::PROT_NONE, _) => How::Reserve,
            (_, 0) => How::MapFile,
            _ => How::Map,
        };
        record::allocated(how, pointer as usize, bytes, 0);
    }
    pointer
}

/// As in the C library: `mmap`.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn mmap(
    address: Pointer,
    bytes: usize,
    rights: c_int,
    flags: c_int,
    file: c_int,
    offset: i64,
) -> Pointer {
    // SAFETY: as in malloc.
    unsafe {
        map_with(
            &bootstrap::MMAP,
            address,
            bytes,
            rights,
            flags,
            file,
            offset,
        )
    }
}

/// As in the C library: `mmap64`.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn mmap64(
    address: Pointer,
    bytes: usize,
    rights: c_int,
    flags: c_int,
    file: c_int,
    offset: i64,
) -> Pointer {
    // SAFETY: as in malloc.
    unsafe {
        map_with(
            &bootstrap::MMAP64,
            address,
            bytes,
            rights,
            flags,
            file,
            offset,
        )
    }
}

/// As in the C library: `munmap`.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn munmap(address: Pointer, bytes: usize) -> c_int {
    let tells = record::tells_unmaps();
    let start_ns = if tells { record::now_ns() } else { 0 };
    type Function = unsafe extern "C" fn(Pointer, usize) -> c_int;
    // SAFETY: munmap has this type.
    let failure = match unsafe { next::<Function>(&bootstrap::MUNMAP) } {
        // SAFETY: as in malloc.
        Some(function) => unsafe { function(address, bytes) },
        // SAFETY: as in malloc.
        None => unsafe { libc::syscall(libc::SYS_munmap, address, bytes) as c_int },
    };
    if failure == 0 && tells {
        record::unmapped(address as usize, bytes, start_ns);
    }
    failure
}

entry!(mremap => mremap_from, "r9", (old: Pointer, had: usize, bytes: usize, flags: c_int, place: Pointer) -> Pointer);
/// Its last argument is there for some flags only, and passed on as it is.
unsafe extern "C" fn mremap_from(
    old: Pointer,
    had: usize,
    bytes: usize,
    flags: c_int,
    place: Pointer,
    caller: usize,
) -> Pointer {
    let is_told = record::tells_unmaps() || is_recorded(bytes);
    let start_ns = if is_told { record::now_ns() } else { 0 };
    type Function = unsafe extern "C" fn(Pointer, usize, usize, c_int, ...) -> Pointer;
    // SAFETY: mremap has this type.
    let pointer = match unsafe { next::<Function>(&bootstrap::MREMAP) } {
        // SAFETY: as in malloc.
        Some(function) => unsafe { function(old, had, bytes, flags, place) },
        // SAFETY: as in malloc.
        None => unsafe {
            libc::syscall(libc::SYS_mremap, old, had, bytes, flags, place) as Pointer
        },
    };
    if pointer == libc::MAP_FAILED || !is_told {
        return pointer;
    }
    if flags & libc::MREMAP_FIXED != 0 {
        record::unmapped(pointer as usize, bytes, start_ns);
    }
    // A size of 0 doubles a shared mapping; the flag leaves the addresses mapped.
    if had > 0 && flags & libc::MREMAP_DONTUNMAP == 0 {
        record::unmapped(old as usize, had, start_ns);
    }
    if is_recorded(bytes) {
        record::allocated(How::Remap, pointer as usize, bytes, caller);
    }
    pointer
}

/// As in the C library: `pthread_create`.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn pthread_create(
    thread: Pointer,
    attributes: Pointer,
    start: unsafe extern "C-unwind" fn(Pointer) -> Pointer,
    argument: Pointer,
) -> c_int {
    // SAFETY: the program's own request.
    unsafe { place::threads::create(thread, attributes, start, argument) }
}
