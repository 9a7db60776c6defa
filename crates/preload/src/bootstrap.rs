//! The allocator that the program would have had, and what serves until it is known.
//!
//! It is looked up with `dlsym(RTLD_NEXT)`, so that another preloaded allocator keeps its place.
//! `dlsym` may itself call `calloc`: until the look-up is done, memory comes from a small arena.

use std::ffi::{CStr, c_void};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};

/// Addresses of the functions that come after this library.
#[repr(C)]
pub struct Next {
    // First, as the fastest entries jump to what lies here.
    address: AtomicUsize,
    name: &'static CStr,
}

macro_rules! next {
    ($($constant:ident $name:literal)*) => {
        $(pub static $constant: Next = Next::new($name);)*
        static ALL: &[&Next] = &[$(&$constant),*];
    };
}

next! {
    MALLOC c"malloc" CALLOC c"calloc" REALLOC c"realloc"
    FREE c"free" POSIX_MEMALIGN c"posix_memalign" ALIGNED_ALLOC c"aligned_alloc"
    MEMALIGN c"memalign" VALLOC c"valloc" PVALLOC c"pvalloc"
    MMAP c"mmap" MMAP64 c"mmap64" MUNMAP c"munmap" MREMAP c"mremap"
    MALLOC_USABLE_SIZE c"malloc_usable_size" PTHREAD_CREATE c"pthread_create"
}

impl Next {
    const fn new(name: &'static CStr) -> Self {
        Self {
            name,
            address: AtomicUsize::new(0),
        }
    }

    /// The function's address, which was looked up: after `config::is_small` has said so.
    #[inline(always)]
    pub fn known(&self) -> usize {
        self.address.load(Ordering::Relaxed)
    }

    /// The function's address; 0 while it is being looked up, or where there is none.
    pub fn address(&self) -> usize {
        match self.address.load(Ordering::Relaxed) {
            0 => self.look_up(),
            address => address,
        }
    }

    #[cold]
    fn look_up(&self) -> usize {
        resolve();
        self.address.load(Ordering::Relaxed)
    }
}

/// The thread that is looking functions up; 0 for nobody.
static RESOLVING: AtomicU32 = AtomicU32::new(0);

/// Looks all functions up. The first call comes while the process has one thread: from the dynamic
/// linker's own allocations, or from the constructor.
pub fn resolve() {
    let own = crate::record::thread();
    if RESOLVING
        .compare_exchange(0, own, Ordering::Acquire, Ordering::Relaxed)
        .is_err()
    {
        return;
    }
    for next in ALL {
        if next.address.load(Ordering::Relaxed) == 0 {
            // SAFETY: the name ends in a zero; dlsym may allocate, which the arena serves.
            let address = unsafe { libc::dlsym(libc::RTLD_NEXT, next.name.as_ptr()) };
            next.address.store(address as usize, Ordering::Relaxed);
        }
    }
    RESOLVING.store(0, Ordering::Release);
}

const ARENA_BYTES: usize = 64 << 10;

#[repr(C, align(64))]
struct Arena(std::cell::UnsafeCell<[u8; ARENA_BYTES]>);
// SAFETY: every piece is handed out once, to one caller.
unsafe impl Sync for Arena {}
#[unsafe(link_section = ".bss.large")]
static ARENA: Arena = Arena(std::cell::UnsafeCell::new([0; ARENA_BYTES]));
static ARENA_USED: AtomicUsize = AtomicUsize::new(0);
static ARENA_IS_USED: AtomicBool = AtomicBool::new(false);

/// Addresses that have to be looked at before they go to the allocator behind, for [`is_looked_at`]:
/// where they begin and how many there are. All of them until it is known what this process does. Not
/// in the state that ends with a fork: a child has the arena's pieces, and placed blocks, too.
pub static LOOKED_FROM: AtomicUsize = AtomicUsize::new(0);
/// See [`LOOKED_FROM`].
pub static LOOKED_BYTES: AtomicUsize = AtomicUsize::new(usize::MAX);

/// Has somebody to look at this pointer? If not, the functions behind are known.
#[inline(always)]
pub fn is_looked_at(address: usize) -> bool {
    address.wrapping_sub(LOOKED_FROM.load(Ordering::Relaxed)) < LOOKED_BYTES.load(Ordering::Relaxed)
}

/// What addresses are compared with where none are meant: so far away that who reads one of the two
/// words before they change and the other one after finds none meant either.
pub const NOWHERE: usize = 1 << (usize::BITS - 1);

/// From now on none have to be looked at, unless a piece of the arena is about.
pub fn look_at_none() {
    if !ARENA_IS_USED.load(Ordering::Relaxed) && FREE.known() != 0 {
        LOOKED_FROM.store(NOWHERE, Ordering::Relaxed);
        LOOKED_BYTES.store(0, Ordering::Relaxed);
    }
}

/// Where none had to be looked at, these have to be from now on.
pub fn look_at(start: usize, bytes: usize) {
    if LOOKED_BYTES.load(Ordering::Relaxed) != usize::MAX {
        LOOKED_FROM.store(start, Ordering::Relaxed);
        LOOKED_BYTES.store(bytes, Ordering::Relaxed);
    }
}

/// Zeroed memory that is never given back, or null where there is no more.
#[cold]
pub fn arena(bytes: usize, align: usize) -> *mut c_void {
    ARENA_IS_USED.store(true, Ordering::Relaxed);
    LOOKED_FROM.store(0, Ordering::Relaxed);
    LOOKED_BYTES.store(usize::MAX, Ordering::Relaxed);
    let align = align.clamp(16, 4096);
    let base = ARENA.0.get() as usize;
    let mut used = ARENA_USED.load(Ordering::Relaxed);
    loop {
        // The size lies in front of each piece, for realloc.
        let start = (base + used + 16).next_multiple_of(align);
        let Some(end) = start.checked_add(bytes.max(1)) else {
            return std::ptr::null_mut();
        };
        if end > base + ARENA_BYTES {
            return std::ptr::null_mut();
        }
        let taken = ARENA_USED.compare_exchange(
            used,
            (end - base).next_multiple_of(16),
            Ordering::Relaxed,
            Ordering::Relaxed,
        );
        match taken {
            Ok(_) => {
                let piece = start as *mut c_void;
                // SAFETY: the 16 bytes before `start` are inside the arena and nobody else's.
                unsafe { piece.cast::<usize>().sub(1).write(bytes) };
                return piece;
            }
            Err(now) => used = now,
        }
    }
}

/// The size of a piece of the arena; nothing for any other pointer.
pub fn arena_bytes(pointer: *const c_void) -> Option<usize> {
    if !ARENA_IS_USED.load(Ordering::Relaxed) {
        return None;
    }
    let offset = (pointer as usize).wrapping_sub(ARENA.0.get() as usize);
    if !(16..ARENA_BYTES).contains(&offset) {
        return None;
    }
    // SAFETY: a pointer into the arena was handed out by `arena`, which wrote the size before it.
    Some(unsafe { pointer.cast::<usize>().sub(1).read() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_arena_serves_aligned_zeroed_pieces_until_it_is_used_up() {
        let one = arena(24, 16);
        let two = arena(100, 64);
        assert!(!one.is_null() && !two.is_null() && one != two);
        assert_eq!(two as usize % 64, 0);
        assert_eq!((arena_bytes(one), arena_bytes(two)), (Some(24), Some(100)));
        // SAFETY: 100 bytes of the arena that belong to this test.
        let bytes = unsafe { std::slice::from_raw_parts(two.cast::<u8>(), 100) };
        assert!(bytes.iter().all(|byte| *byte == 0));
        assert!(arena(ARENA_BYTES, 16).is_null());
        assert!(arena(usize::MAX, 16).is_null());
        assert_eq!(arena_bytes(std::ptr::null()), None);
        assert_eq!(arena_bytes((&raw const ALL).cast()), None);
    }
}
