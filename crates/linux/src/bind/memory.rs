//! Memory of this process on the nodes of a set.

use super::range::{self, Residency};
use crate::error::{Error, Result};
use crate::sys::{self, Access, Present, PrivateMemory};
use hither_core::bind::MemoryLayout;
use hither_core::rset::{ResourceSet, Resources};
use hither_core::set::NodeSet;
use hither_core::size::short_bytes;
use std::ops::Range;

/// Which pages an allocation gets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PageSize {
    /// Those that the system chooses (`/sys/kernel/mm/transparent_hugepage/enabled`).
    #[default]
    System,
    /// Of 4 KiB.
    Small,
    /// Of 2 MiB, where there are any free.
    Huge,
}

/// Zeroed private memory with a layout of its own, whatever the policies of the threads that use
/// it. A page comes into being on its node when it is first written to, or by [`Memory::populate`].
/// Freed when dropped. Children after `fork` share it until they write.
///
/// ```
/// use hither_core::bind::MemoryPolicy;
/// use hither_linux::bind::{self, Memory, PageSize};
///
/// let here = bind::here()?;
/// let set = bind::resolve("set", "machine", &here)?.set;
/// let mut memory = Memory::new(1 << 20, &set, MemoryPolicy::Striped.into(), PageSize::Small, &here)?;
/// memory.bytes_mut()[0] = 1;
/// let found = memory.residency()?;
/// assert_eq!((found.page_count(), found.absent, found.astray), (256, 255, 0));
/// # Ok::<(), hither_linux::Error>(())
/// ```
#[derive(Debug)]
pub struct Memory {
    memory: PrivateMemory,
    bytes: usize,
}

impl Memory {
    /// `bytes` of memory, 1 at least; it begins at a multiple of 2 MiB.
    ///
    /// # Errors
    /// The layout cannot be had on the set, nodes to which pages are bound have less memory in all,
    /// or there are no addresses; what the kernel refuses.
    pub fn new(
        bytes: usize,
        set: &ResourceSet,
        layout: MemoryLayout,
        pages: PageSize,
        resources: &Resources,
    ) -> Result<Self> {
        let laid = layout.on(set, resources);
        let laid = laid.map_err(|why| Error::new("memory", why, ""))?;
        if bytes == 0 {
            return Err(fault("0 bytes are asked for", "ask for 1 at least"));
        }
        // Nothing is reserved: without this a size that can never be had shows when it is used, by
        // the kernel killing the process.
        let all: NodeSet = resources.nodes.iter().map(|node| node.id).collect();
        let nodes = match laid.policy().mode {
            hither_core::bind::Mode::Bind => &laid.policy().nodes,
            _ => &all,
        };
        let (total, _) = resources.memory_bytes(nodes);
        if bytes as u64 > total {
            let reason = format!(
                "{bytes} bytes are more than nodes {nodes} have ({})",
                short_bytes(total)
            );
            return Err(fault(reason, "ask for less, or for more nodes"));
        }
        let memory = match pages {
            PageSize::System => PrivateMemory::unadvised(bytes),
            PageSize::Small => PrivateMemory::new(bytes, false),
            PageSize::Huge => PrivateMemory::new(bytes, true),
        };
        let memory = memory.map_err(|error| {
            let reason = format!("{bytes} bytes cannot be mapped");
            let remedy = match pages {
                PageSize::Huge => "ask for less, or for small pages where the kernel has no others",
                _ => "ask for less",
            };
            Error::io("memory", reason, remedy, error)
        })?;
        let allocated = Self { memory, bytes };
        range::bind(allocated.range(), &laid, Present::Stay)?;
        Ok(allocated)
    }

    /// Its addresses, whole pages.
    #[must_use]
    pub fn range(&self) -> Range<u64> {
        let start = self.memory.address();
        start..start + (self.bytes as u64).next_multiple_of(4096)
    }

    /// Its length in bytes, as asked for.
    #[must_use]
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Never.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// The bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.memory.bytes()[..self.bytes]
    }

    /// The bytes, to write.
    #[must_use]
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.memory.bytes_mut()[..self.bytes]
    }

    /// Brings all its pages into memory, on their nodes; contents stay.
    ///
    /// # Errors
    /// There is no memory. Where pages are bound to nodes without enough, the kernel may end the
    /// process instead.
    pub fn populate(&self) -> Result<()> {
        let Range { start, end } = self.range();
        sys::populate(start, end - start, Access::Write).map_err(|error| {
            let reason = format!("{} bytes cannot be brought into memory", self.bytes);
            let remedy = "free memory on its nodes; it needs Linux 5.14";
            Error::io("memory", reason, remedy, error)
        })
    }

    /// Where its pages are.
    ///
    /// # Errors
    /// The kernel does not tell.
    pub fn residency(&self) -> Result<Residency> {
        range::residency(self.range())
    }
}

fn fault(reason: impl Into<String>, remedy: &str) -> Error {
    Error::new("memory", reason, remedy)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bind;
    use hither_core::bind::MemoryPolicy;

    fn allocate(bytes: usize, layout: &str, pages: PageSize) -> Result<Memory> {
        let here = bind::here()?;
        let set = bind::resolve("set", "mem:0", &here)?.set;
        let layout = layout.parse().map_err(|why: String| fault(why, ""))?;
        Memory::new(bytes, &set, layout, pages, &here)
    }

    #[test]
    fn what_is_allocated_has_its_policy_and_is_freed() {
        let mut memory = allocate(5000, "striped:1", PageSize::Small).unwrap();
        let range = memory.range();
        assert_eq!((memory.len(), range.end - range.start), (5000, 8192));
        assert!(memory.bytes().iter().all(|byte| *byte == 0) && !memory.is_empty());
        memory.bytes_mut().fill(7);
        let policy = sys::policy_at(range.start).unwrap();
        assert_eq!(policy.to_string(), "interleave:0");
        let found = memory.residency().unwrap();
        assert_eq!((found.absent, found.page_count()), (0, 2));
        drop(memory);
        assert!(!sys::is_mapped(range.start, 8192));
    }

    #[test]
    fn pages_come_when_asked_for_and_huge_where_asked_for() {
        let memory = allocate(4 << 20, "bind", PageSize::Huge).unwrap();
        assert_eq!(memory.residency().unwrap().absent, 1024);
        memory.populate().unwrap();
        let found = memory.residency().unwrap();
        assert_eq!((found.absent, found.astray), (0, 0));
        // How many there are depends on what is free, not on this code.
        assert!(found.huge.is_none_or(|huge| huge.is_multiple_of(512)));
    }

    #[test]
    fn what_cannot_be_had_is_refused() {
        for (bytes, layout, says) in [
            (0, "bind", "0 bytes"),
            (1 << 60, "bind", "more than nodes 0 have"),
            (usize::MAX, "float", "more than nodes"),
            (1, "bind:2", "no stride"),
            (1, "bind@77", "home node 77 is not there"),
        ] {
            let error = allocate(bytes, layout, PageSize::System).unwrap_err();
            assert!(error.to_string().contains(says), "{error}");
        }
        let here = bind::here().unwrap();
        let nowhere = ResourceSet::of_memory("1000".parse().unwrap());
        let layout = MemoryPolicy::Preferred.into();
        let error = Memory::new(1, &nowhere, layout, PageSize::System, &here).unwrap_err();
        assert!(
            error.to_string().contains("`prefer:1000` is refused"),
            "{error}"
        );
    }
}
