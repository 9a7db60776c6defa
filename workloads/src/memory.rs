//! Memory straight from the kernel: untouched until written, so that the first touch decides.
//!
//! A heap allocation would do for size but not for placement: an aligned zeroed one is written by
//! its allocator, and a plain one begins 16 bytes after a page, so that a 64-byte element lies on
//! two lines.

use crate::cli::{Args, Failure, Opt, usage};
use crate::team::part;
use std::io::Error;
use std::sync::atomic::AtomicU64;

/// Bytes of a huge page on x86-64.
const HUGE_BYTES: usize = 2 << 20;
/// Highest node number plus one that a mask here can hold (the kernel's own limit).
pub const MAX_NODES: usize = 1024;
/// Words of 8 bytes in a 64-byte line.
pub const LINE_WORDS: usize = 8;

/// `--node`: where memory stays.
pub const NODE: Opt = Opt {
    name: "node",
    value: Some("N"),
    default: "",
    help: "bind the memory to this node",
};
/// `--first-node`: where memory starts.
pub const FIRST_NODE: Opt = Opt {
    name: "first-node",
    value: Some("N"),
    default: "",
    help: "first touch puts the memory on this node; then nothing binds it",
};
/// `--huge`.
pub const HUGE: Opt = Opt {
    name: "huge",
    value: None,
    default: "",
    help: "ask for huge pages",
};

/// A private anonymous mapping: zero, page aligned (2 MiB aligned where huge pages were asked
/// for), unmapped when dropped.
#[derive(Debug)]
pub struct RegionMemory {
    mapping: *mut libc::c_void,
    mapped_bytes: usize,
    start: *mut u64,
    words: usize,
}

// SAFETY: the pointers own a mapping that no other `RegionMemory` has; shared access goes through
// atomics ([`RegionMemory::words`]), exclusive access through `&mut` ([`RegionMemory::words_mut`]).
unsafe impl Send for RegionMemory {}
// SAFETY: as above.
unsafe impl Sync for RegionMemory {}

/// Where a region's pages go.
#[derive(Clone, Copy, Debug, Default)]
pub struct Placement {
    /// Bind to this node (`MPOL_BIND`); `None` leaves it to the process's policy.
    pub node: Option<u64>,
    /// Ask for huge pages (`MADV_HUGEPAGE`).
    pub huge: bool,
}

/// What `--node`, `--first-node` and `--huge` say of a program's memory.
#[derive(Clone, Copy, Debug, Default)]
pub struct FirstNode {
    /// For [`RegionMemory::new`].
    pub placement: Placement,
    /// Is the binding to be taken away once the region has been written?
    is_first: bool,
}

impl FirstNode {
    /// From the command line of a program that has the three options.
    ///
    /// # Errors
    /// [`Failure::Usage`] for what is no node, and for `--node` with `--first-node`.
    pub fn from_args(args: &Args) -> Result<Self, Failure> {
        let node = args.optional(NODE.name, 0..=MAX_NODES as u64 - 1)?;
        let first = Self::first_from_args(args)?;
        if node.and(first).is_some() {
            return Err(usage(
                "--node and --first-node exclude each other: give one".to_owned(),
            ));
        }
        let placement = Placement {
            node: node.or(first),
            huge: args.has(HUGE.name),
        };
        Ok(Self::new(placement, first.is_some()))
    }

    /// With this placement, whose binding holds for the first touch alone where `is_first`.
    #[must_use]
    pub fn new(placement: Placement, is_first: bool) -> Self {
        Self {
            placement,
            is_first,
        }
    }

    /// The node of `--first-node`.
    ///
    /// # Errors
    /// [`Failure::Usage`] for what is no node.
    pub fn first_from_args(args: &Args) -> Result<Option<u64>, Failure> {
        args.optional(FIRST_NODE.name, 0..=MAX_NODES as u64 - 1)
    }

    /// Once the region has been written: takes the binding of `--first-node` away; its pages stay where
    /// they are until something moves them.
    ///
    /// # Errors
    /// [`Failure::Machine`] where the kernel refuses.
    pub fn written(&self, region: &RegionMemory) -> Result<(), Failure> {
        if self.is_first {
            region.unbind()
        } else {
            Ok(())
        }
    }
}

impl RegionMemory {
    /// Maps `bytes` (rounded up to whole lines) without touching them.
    ///
    /// # Errors
    /// [`Failure::Machine`] where the kernel has no memory, [`Failure::Usage`] for a node or page
    /// size that it refuses.
    pub fn new(bytes: usize, placement: Placement) -> Result<Self, Failure> {
        let words = bytes.div_ceil(8).next_multiple_of(LINE_WORDS);
        let mapped_bytes = words * 8 + if placement.huge { HUGE_BYTES } else { 0 };
        // SAFETY: a new anonymous mapping at an address of the kernel's choice.
        let mapping = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                mapped_bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        if mapping == libc::MAP_FAILED {
            let error = Error::last_os_error();
            return Err(Failure::Machine(format!(
                "cannot map {mapped_bytes} bytes: {error}"
            )));
        }
        let skip = if placement.huge {
            mapping.cast::<u8>().align_offset(HUGE_BYTES)
        } else {
            0
        };
        // SAFETY: `skip` is less than the HUGE_BYTES that were mapped in addition.
        let start = unsafe { mapping.cast::<u8>().add(skip) }.cast::<u64>();
        let region = Self {
            mapping,
            mapped_bytes,
            start,
            words,
        };
        region.place(placement)?;
        Ok(region)
    }

    fn place(&self, placement: Placement) -> Result<(), Failure> {
        if placement.huge {
            // SAFETY: the range is this mapping; advice changes no content.
            let status =
                unsafe { libc::madvise(self.start.cast(), self.words * 8, libc::MADV_HUGEPAGE) };
            if status != 0 {
                let error = Error::last_os_error();
                return Err(usage(format!(
                    "--huge: the kernel refuses huge pages ({error}): leave --huge out"
                )));
            }
        }
        let Some(node) = placement.node else {
            return Ok(());
        };
        let mut mask = [0u64; MAX_NODES / 64];
        mask[node as usize / 64] = 1 << (node % 64);
        // SAFETY: mbind reads MAX_NODES bits of `mask` (it counts one more than it reads) and
        // changes the policy of this mapping only.
        let status = unsafe {
            libc::syscall(
                libc::SYS_mbind,
                self.mapping,
                self.mapped_bytes,
                libc::MPOL_BIND,
                mask.as_ptr(),
                MAX_NODES + 1,
                0,
            )
        };
        if status != 0 {
            let error = Error::last_os_error();
            return Err(usage(format!(
                "--node {node}: the kernel refuses to bind memory to it ({error}): name a node \
                 with memory from /sys/devices/system/node/has_memory"
            )));
        }
        Ok(())
    }

    /// Gives new pages the process's policy again; pages that are there stay.
    fn unbind(&self) -> Result<(), Failure> {
        // SAFETY: mbind changes the policy of this mapping only; the default policy has no mask.
        let status = unsafe {
            libc::syscall(
                libc::SYS_mbind,
                self.mapping,
                self.mapped_bytes,
                libc::MPOL_DEFAULT,
                std::ptr::null::<u64>(),
                0,
                0,
            )
        };
        match status {
            0 => Ok(()),
            _ => Err(Failure::Machine(format!(
                "--first-node: the kernel does not take the binding back: {}",
                Error::last_os_error()
            ))),
        }
    }

    /// Spreads the pages over all nodes that the process may use (`MPOL_INTERLEAVE`), as they are
    /// touched.
    ///
    /// # Errors
    /// [`Failure::Machine`] where the kernel does not tell of nodes or refuses.
    pub fn interleave(&self) -> Result<(), Failure> {
        const MPOL_F_MEMS_ALLOWED: libc::c_ulong = 4;
        let refused = |what: &str| {
            let error = Error::last_os_error();
            Failure::Machine(format!("{what}: {error}"))
        };
        let mut mask = [0u64; MAX_NODES / 64];
        // SAFETY: get_mempolicy writes MAX_NODES bits into `mask`; the mode is not wanted.
        let status = unsafe {
            libc::syscall(
                libc::SYS_get_mempolicy,
                std::ptr::null_mut::<libc::c_int>(),
                mask.as_mut_ptr(),
                MAX_NODES,
                std::ptr::null_mut::<libc::c_void>(),
                MPOL_F_MEMS_ALLOWED,
            )
        };
        if status != 0 {
            return Err(refused("the kernel does not tell the nodes of memory"));
        }
        // SAFETY: mbind reads MAX_NODES bits of `mask` (it counts one more than it reads) and
        // changes the policy of this mapping only.
        let status = unsafe {
            libc::syscall(
                libc::SYS_mbind,
                self.mapping,
                self.mapped_bytes,
                libc::MPOL_INTERLEAVE,
                mask.as_ptr(),
                MAX_NODES + 1,
                0,
            )
        };
        match status {
            0 => Ok(()),
            _ => Err(refused("the kernel refuses to interleave memory")),
        }
    }

    /// The memory as words that several threads may use at once.
    #[must_use]
    pub fn words(&self) -> &[AtomicU64] {
        // SAFETY: `words` words of live, aligned, initialised (zero) memory; while this borrow
        // lives no `&mut` to them can.
        unsafe { std::slice::from_raw_parts(self.start.cast::<AtomicU64>(), self.words) }
    }

    /// The memory as words of one owner.
    #[must_use]
    pub fn words_mut(&mut self) -> &mut [u64] {
        // SAFETY: as in `words`, and `&mut self` makes it the only access.
        unsafe { std::slice::from_raw_parts_mut(self.start, self.words) }
    }

    /// The memory divided among `parts` owners as evenly as whole units of `unit_words` allow;
    /// what is left after the last whole unit belongs to none.
    #[must_use]
    pub fn split(&mut self, parts: usize, unit_words: usize) -> Vec<&mut [u64]> {
        let mut rest = self.words_mut();
        let units = rest.len() / unit_words;
        let mut all = Vec::with_capacity(parts);
        for id in 0..parts {
            let (mine, others) = rest.split_at_mut(part(units, parts, id).len() * unit_words);
            all.push(mine);
            rest = others;
        }
        all
    }
}

impl Drop for RegionMemory {
    fn drop(&mut self) {
        // SAFETY: the mapping is this region's own and no borrow outlives it.
        unsafe { libc::munmap(self.mapping, self.mapped_bytes) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering::Relaxed;

    #[test]
    fn is_zero_aligned_and_whole_lines() {
        let mut region = RegionMemory::new(100, Placement::default()).unwrap();
        assert_eq!(region.words().len(), 16);
        assert_eq!(region.words().as_ptr().addr() % 4096, 0);
        assert!(region.words().iter().all(|word| word.load(Relaxed) == 0));
        region.words_mut()[15] = 7;
        assert_eq!(region.words()[15].load(Relaxed), 7);
    }

    #[test]
    fn split_gives_whole_units_to_each() {
        let mut region = RegionMemory::new(10 * 64, Placement::default()).unwrap();
        let sizes: Vec<_> = region.split(4, 24).iter().map(|part| part.len()).collect();
        assert_eq!(sizes, [0, 24, 24, 24]);
    }

    #[test]
    fn a_node_that_is_not_there_is_a_usage_error() {
        let placement = Placement {
            node: Some(1000),
            huge: false,
        };
        match RegionMemory::new(4096, placement) {
            Err(Failure::Usage(message)) => assert!(message.contains("--node 1000"), "{message}"),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_first_node_binds_first_touch_alone() {
        let policies = |region: &RegionMemory| {
            let start = format!("{:x} ", region.mapping.addr());
            let text = std::fs::read_to_string("/proc/self/numa_maps").ok()?;
            let line = text.lines().find_map(|line| line.strip_prefix(&start));
            line.map(str::to_owned)
        };
        let start = |is_first| FirstNode {
            placement: Placement {
                node: Some(0),
                huge: false,
            },
            is_first,
        };
        for (is_first, word) in [(false, "bind:0"), (true, "default")] {
            let start = start(is_first);
            let region = RegionMemory::new(1 << 20, start.placement).unwrap();
            region.words()[0].store(1, Relaxed);
            start.written(&region).unwrap();
            // A kernel without NUMA has no such file.
            if let Some(line) = policies(&region) {
                assert!(line.starts_with(word), "{line}");
            }
            assert_eq!(region.words()[0].load(Relaxed), 1);
        }
    }

    #[test]
    fn too_much_memory_is_a_failure_of_the_machine() {
        let region = RegionMemory::new(1 << 60, Placement::default());
        assert!(matches!(region, Err(Failure::Machine(_))), "{region:?}");
    }
}
