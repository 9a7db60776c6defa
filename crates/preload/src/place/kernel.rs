//! The system calls of placement. Made directly: the C library's functions of these names are those
//! that this library replaces.

use super::plan::Rule;
use crate::config::number;
use hither_core::bind::Mode;
use hither_core::shim::{MOST_NODES, MOST_PARTS, Stride};

/// Base pages: x86-64 has no others, and elsewhere a multiple is asked for at start.
pub const PAGE: usize = 4096;

/// Nodes as the kernel takes them.
#[derive(Clone, Copy)]
pub struct Mask(pub [u64; MOST_NODES / 64]);

impl Mask {
    /// None.
    pub const EMPTY: Self = Self([0; MOST_NODES / 64]);

    /// One node.
    pub fn of(node: u32) -> Self {
        let mut mask = Self::EMPTY;
        mask.insert(node);
        mask
    }

    /// Adds a node; says whether there is such a number.
    pub fn insert(&mut self, node: u32) -> bool {
        match self.0.get_mut(node as usize / 64) {
            Some(word) => *word |= 1 << (node % 64),
            None => return false,
        }
        true
    }

    /// How many.
    pub fn count(&self) -> u64 {
        self.0.iter().map(|word| u64::from(word.count_ones())).sum()
    }

    /// The nodes, in order.
    pub fn nodes(&self) -> impl Iterator<Item = u32> + Clone + '_ {
        (0..MOST_NODES as u32).filter(|node| {
            self.0
                .get(*node as usize / 64)
                .is_some_and(|word| word >> (node % 64) & 1 == 1)
        })
    }
}

/// Reserves addresses, without memory.
pub fn reserve(bytes: usize) -> Option<usize> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: a new mapping at an address that the kernel chooses.
    let address = unsafe {
        libc::syscall(
            libc::SYS_mmap,
            0usize,
            bytes,
            libc::PROT_NONE,
            flags,
            -1,
            0usize,
        )
    };
    (address != -1).then_some(address as usize)
}

/// Bytes of addresses that this process may still take; nothing where they are not limited.
pub fn addresses_left() -> Option<u64> {
    let mut limit = libc::rlimit64 {
        rlim_cur: libc::RLIM64_INFINITY,
        rlim_max: 0,
    };
    let nothing = std::ptr::null::<libc::rlimit64>();
    // SAFETY: the call fills the structure, and sets nothing.
    unsafe {
        libc::syscall(
            libc::SYS_prlimit64,
            0,
            libc::RLIMIT_AS,
            nothing,
            &raw mut limit,
        )
    };
    if limit.rlim_cur == libc::RLIM64_INFINITY {
        return None;
    }
    Some(
        limit
            .rlim_cur
            .saturating_sub(used_pages().unwrap_or(0) * PAGE as u64),
    )
}

/// Pages of all mappings: the first number of `/proc/self/statm`.
fn used_pages() -> Option<u64> {
    let (path, flags) = (c"/proc/self/statm", libc::O_RDONLY | libc::O_CLOEXEC);
    let mut text = [0u8; 64];
    // SAFETY: a path that ends in a zero, a descriptor that is closed at once, room for 64 bytes.
    let read = unsafe {
        let file = libc::syscall(libc::SYS_openat, libc::AT_FDCWD, path.as_ptr(), flags, 0);
        if file < 0 {
            return None;
        }
        let read = libc::syscall(libc::SYS_read, file, text.as_mut_ptr(), text.len());
        libc::syscall(libc::SYS_close, file);
        read
    };
    let text = text.get(..usize::try_from(read).ok()?)?;
    let end = text.iter().position(|letter| *letter == b' ')?;
    number(text.get(..end)?)
}

/// Sleeps for a millisecond, or until a signal comes.
pub fn sleep_a_millisecond() {
    let span = libc::timespec {
        tv_sec: 0,
        tv_nsec: 1_000_000,
    };
    let rest = std::ptr::null::<libc::timespec>();
    // SAFETY: the call reads the structure.
    unsafe { libc::syscall(libc::SYS_nanosleep, &raw const span, rest) };
}

/// Gives addresses back that were reserved and are not used.
pub fn give_back(address: usize, bytes: usize) {
    if bytes > 0 {
        // SAFETY: a part of a reservation of this library's that nobody was given.
        unsafe { libc::syscall(libc::SYS_munmap, address, bytes) };
    }
}

/// Makes reserved addresses memory. Doing it twice does no harm.
pub fn open(address: usize, bytes: usize) -> bool {
    let rights = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: addresses of this library's reservation.
    unsafe { libc::syscall(libc::SYS_mprotect, address, bytes, rights) == 0 }
}

/// Makes memory reserved addresses again: pages and policies are gone.
pub fn close(address: usize, bytes: usize) {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED;
    // SAFETY: memory of this library's reservation that the program has given back.
    unsafe {
        libc::syscall(
            libc::SYS_mmap,
            address,
            bytes,
            libc::PROT_NONE,
            flags,
            -1,
            0usize,
        )
    };
}

/// Gives a range a policy, for pages that are not there yet.
pub fn bind(address: usize, bytes: usize, mode: Mode, mask: &Mask) -> bool {
    let (pointer, bits) = match mode.has_nodes() {
        // One more than there are, as the kernel reads one less than it is told.
        true => (mask.0.as_ptr(), MOST_NODES + 1),
        false => (std::ptr::null(), 0),
    };
    // SAFETY: the mask has the bits announced, or there is none; it changes where pages come from.
    unsafe {
        libc::syscall(
            libc::SYS_mbind,
            address,
            bytes,
            mode as i32,
            pointer,
            bits,
            0,
        ) == 0
    }
}

/// The node that the calling thread runs on.
pub fn node() -> u32 {
    let mut node = 0u32;
    // SAFETY: writes one number; the last argument is unused since Linux 2.6.24.
    unsafe { libc::syscall(libc::SYS_getcpu, 0usize, &raw mut node, 0usize) };
    node
}

/// What came of [`place`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bound {
    /// Did the kernel take the policy?
    pub is_done: bool,
    /// Are there fewer parts than asked for?
    pub is_coarse: bool,
    /// Mappings that it may take.
    pub parts: u64,
}

/// Pages between two changes of the node, and how many parts that makes: so many as are left, at
/// most.
pub fn parts(pages: u64, nodes: u64, stride: Stride, left: u64) -> (u64, u64, bool) {
    let asked = match stride {
        Stride::Kernel => return (pages, 1, false),
        Stride::Pages(stride) => stride.max(1),
        Stride::Blocks => pages.div_ceil(nodes.max(1)).max(1),
    };
    let most = left.clamp(1, MOST_PARTS);
    let mut stride = asked;
    while pages.div_ceil(stride) > most {
        stride = stride.saturating_mul(2);
    }
    (stride, pages.div_ceil(stride), stride != asked)
}

/// Gives a new block a rule's policy, in at most `left` parts.
pub fn place(rule: &Rule, address: usize, bytes: usize, left: u64) -> Bound {
    let pages = bytes.div_ceil(PAGE);
    let (stride, count, is_coarse) = parts(pages as u64, rule.mask.count(), rule.stride, left);
    let mut bound = Bound {
        is_done: true,
        is_coarse,
        parts: count,
    };
    if count == 1 {
        bound.is_done = bind(address, pages * PAGE, rule.mode, &rule.mask);
        return bound;
    }
    let stride = stride as usize * PAGE;
    for (part, node) in (0..count as usize).zip(rule.mask.nodes().cycle()) {
        let start = part * stride;
        let length = stride.min(pages * PAGE - start);
        // As the kernel's interleaving: a node that is full does not end the program.
        if !bind(address + start, length, Mode::Preferred, &Mask::of(node)) {
            // Too many mappings in this process: page by page needs one.
            bound.is_coarse = true;
            bound.parts = 1;
            bound.is_done = bind(address, pages * PAGE, Mode::Interleave, &rule.mask);
            break;
        }
    }
    bound
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strides_make_parts_and_too_many_are_made_fewer() {
        let left = u64::MAX;
        assert_eq!(parts(100, 2, Stride::Kernel, left), (100, 1, false));
        assert_eq!(parts(100, 3, Stride::Blocks, left), (34, 3, false));
        assert_eq!(parts(2, 4, Stride::Blocks, left), (1, 2, false));
        assert_eq!(parts(100, 2, Stride::Pages(10), left), (10, 10, false));
        assert_eq!(parts(1000, 2, Stride::Pages(10), 30), (40, 25, true));
        assert_eq!(parts(1 << 20, 2, Stride::Pages(1), left), (512, 2048, true));
        assert_eq!(parts(10, 2, Stride::Pages(1), 0), (16, 1, true));
    }

    #[test]
    fn masks_tell_their_nodes() {
        let mut mask = Mask::of(3);
        assert!(mask.insert(1023) && !mask.insert(1024));
        assert_eq!(
            (mask.count(), mask.nodes().collect::<Vec<_>>()),
            (2, vec![3, 1023])
        );
    }

    #[test]
    fn reserved_addresses_become_memory_and_go_again() {
        let base = reserve(1 << 30).unwrap();
        assert!(open(base + PAGE, PAGE) && open(base + PAGE, PAGE));
        // SAFETY: one page that was just opened.
        unsafe { ((base + PAGE) as *mut u8).write(7) };
        close(base, 1 << 30);
        assert!(open(base + PAGE, PAGE));
        // SAFETY: as above.
        assert_eq!(unsafe { ((base + PAGE) as *const u8).read() }, 0);
        give_back(base, 1 << 30);
    }
}
