//! Memory of one node, for streams and their arrays.

use super::{Access, Present, PrivateMemory, bind_range, populate};
use hither_core::bind::KernelPolicy;
use hither_core::ids::NodeId;
use std::io;
use std::mem::MaybeUninit;

/// Private memory whose pages are all there, where a policy wants them: mostly on one node and
/// nowhere else.
///
/// Its bytes are lent either as values of one type or without any: whoever has the values has
/// given each of them.
#[derive(Debug)]
pub struct NodeMemory(PrivateMemory);

impl NodeMemory {
    /// At least `bytes`, up to whole huge pages, on `node`.
    ///
    /// # Errors
    /// `EINVAL` or `InvalidInput`: there is no such node. `ENOMEM`: it has not so much memory.
    /// `huge` where the kernel has no huge pages.
    pub fn new(bytes: usize, node: u32, huge: bool) -> io::Result<Self> {
        Self::under(bytes, Some(&KernelPolicy::bound_to(NodeId(node))), huge)
    }

    /// The same under any policy, or none.
    ///
    /// # Errors
    /// As above.
    pub fn under(bytes: usize, policy: Option<&KernelPolicy>, huge: bool) -> io::Result<Self> {
        let memory = PrivateMemory::new(bytes, huge)?;
        let length = memory.len() as u64;
        if let Some(policy) = policy {
            bind_range(memory.address(), length, policy, Present::Stay)?;
        }
        populate(memory.address(), length, Access::Write)?;
        Ok(Self(memory))
    }

    /// Size in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Never.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The bytes, to be given to `hither_mover::stream::Stream` or written at will.
    #[must_use]
    pub fn uninit_mut(&mut self) -> &mut [MaybeUninit<u8>] {
        let (start, length) = (self.0.address() as usize, self.0.len());
        let start = std::ptr::with_exposed_provenance_mut(start);
        // SAFETY: the mapping is as long as that, lives as long as `self`, which is borrowed
        // exclusively, and the kernel made it of readable and writable bytes.
        unsafe { std::slice::from_raw_parts_mut(start, length) }
    }

    /// As many values as fit, each of them `value`.
    ///
    /// # Panics
    /// Where `T` has no bytes, or is aligned to more than 2 MiB.
    #[must_use]
    pub fn values_mut<T: Copy + 'static>(&mut self, value: T) -> &mut [T] {
        assert!(size_of::<T>() > 0 && align_of::<T>() <= 2 << 20);
        let bytes = self.uninit_mut();
        let count = bytes.len() / size_of::<T>();
        let start = bytes.as_mut_ptr().cast::<MaybeUninit<T>>();
        // SAFETY: so many fit, the mapping begins at a huge page, and bytes without values may be
        // lent as values that are none.
        let places = unsafe { std::slice::from_raw_parts_mut(start, count) };
        for place in &mut *places {
            place.write(value);
        }
        // SAFETY: every one has just been written.
        unsafe { places.assume_init_mut() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::query_pages;

    #[test]
    fn memory_of_a_node_is_there_and_holds_values() {
        let mut memory = NodeMemory::new(3 << 20, 0, false).unwrap();
        assert_eq!((memory.len(), memory.is_empty()), (4 << 20, false));
        let start = memory.uninit_mut().as_ptr() as u64;
        let pages: Vec<u64> = (0..1024).map(|page| start + page * 4096).collect();
        let mut nodes = vec![-1; pages.len()];
        query_pages(0, &pages, &mut nodes).unwrap();
        assert!(nodes.iter().all(|&node| node == 0), "{nodes:?}");
        let values = memory.values_mut([1u32, 2, 3]);
        assert_eq!(values.len(), (4 << 20) / 12);
        assert!(values.iter().all(|&value| value == [1, 2, 3]));
    }

    #[test]
    fn a_node_that_is_not_there_is_refused() {
        let refused = NodeMemory::new(1, 1023, false).unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(libc::EINVAL));
    }
}
