//! Memory of an array: masters, and areas for copies whose chunks come and go.

use crate::error::Error;
use hither_core::bind::{KernelPolicy, Mode};
use hither_core::ids::NodeId;
use hither_core::set::NodeSet;
use hither_linux::backend::copy;
use hither_linux::filter;
use hither_linux::sys::{self, Access, Present, PrivateMemory};
use std::ops::Range;

/// Bytes of a page.
const PAGE: u64 = hither_core::snapshot::PAGE_BYTES;
pub(crate) const PAGE_BYTES: usize = PAGE as usize;
/// Of a chunk's pages so many are asked where they are, evenly spread, the last included: the kernel fills a
/// node up, so that pages from elsewhere come in runs.
const ASKED: u64 = 16;

/// Private memory of whole chunks.
///
/// Its bytes are reached by addresses alone, as readers of several threads hold some of them while others
/// change: [`crate::protocol`] says who may do what when.
#[derive(Debug)]
pub(crate) struct Store {
    memory: PrivateMemory,
    chunk_bytes: usize,
}

/// Why a chunk has no pages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NoPages(pub String);

impl Store {
    /// Addresses for `bytes`, without pages, that prefers some nodes.
    ///
    /// Not `bind`: where bound memory is not to be had the kernel ends a process. Whether pages came from the
    /// nodes is looked at after ([`Part::populate_on`]).
    ///
    /// With `huge` in pages of 2 MiB, where the kernel has them and some are free.
    pub(crate) fn new(
        bytes: usize,
        chunk_bytes: usize,
        nodes: &NodeSet,
        huge: bool,
    ) -> Result<Self, Error> {
        let wanted = format!("{bytes} bytes cannot be mapped for a replicated array");
        let advised = huge.then(|| PrivateMemory::new(bytes, true));
        // A kernel without huge pages refuses the advice.
        let memory = match advised {
            Some(Ok(memory)) => Ok(memory),
            _ => PrivateMemory::unadvised(bytes),
        };
        let memory = memory.map_err(Error::system(wanted))?;
        let mode = match nodes.len() {
            1 => Mode::Preferred,
            _ => Mode::Interleave,
        };
        let policy = KernelPolicy::new(mode, nodes.clone());
        let length = memory.len() as u64;
        match sys::bind_range(memory.address(), length, &policy, Present::Stay) {
            Ok(()) => {}
            Err(error) if filter::needs_no_policy(&error) => {}
            Err(error) => {
                let what = format!("memory cannot be put on nodes {nodes}");
                return Err(Error::system(what)(error));
            }
        }
        Ok(Self {
            memory,
            chunk_bytes,
        })
    }

    /// First address.
    pub(crate) fn base(&self) -> usize {
        self.memory.address() as usize
    }

    pub(crate) fn address(&self, chunk: usize) -> usize {
        self.base() + chunk * self.chunk_bytes
    }

    /// A chunk's addresses.
    pub(crate) fn part(&self, chunk: usize) -> Part {
        let start = self.address(chunk) as u64;
        Part(start..start + self.chunk_bytes as u64)
    }

    /// Gives a chunk's pages back to the system; nobody may read them any more.
    pub(crate) fn discard(&self, chunk: usize) {
        sys::discard(&self.part(chunk).0);
    }
}

/// A chunk's addresses, for threads that get its pages without a lock.
#[derive(Clone, Debug)]
pub(crate) struct Part(Range<u64>);

impl Part {
    /// Gets its pages, and refuses where one is not on the node.
    pub(crate) fn populate_on(&self, node: NodeId) -> Result<(), NoPages> {
        let (start, bytes) = (self.0.start, self.0.end - self.0.start);
        sys::populate(start, bytes, Access::Write)
            .map_err(|error| NoPages(format!("node {} gives no pages: {error}", node.0)))?;
        let step = (bytes / ASKED).max(PAGE);
        let asked: Vec<u64> = (1..=bytes / step)
            .map(|part| start + part * step - PAGE)
            .collect();
        let mut found = vec![-1; asked.len()];
        // A kernel that does not tell has one node, or a filter of system calls: then nothing can be said.
        if sys::query_pages(0, &asked, &mut found).is_err() {
            return Ok(());
        }
        // Below 0: swapped out meanwhile, or not told.
        match found.iter().find(|&&at| at >= 0 && at != node.0 as i32) {
            None => Ok(()),
            Some(other) => {
                sys::discard(&self.0);
                let reason = format!("node {} is full: pages came from node {other}", node.0);
                Err(NoPages(reason))
            }
        }
    }
}

/// Copies bytes between stores, past the caches where that is faster.
///
/// # Safety
/// Both ranges are within stores that live, the source is not written and the target neither read nor written
/// by anybody else meanwhile.
pub(crate) unsafe fn copy_bytes(from: usize, to: usize, bytes: usize) {
    let from = std::ptr::with_exposed_provenance(from);
    let to = std::ptr::with_exposed_provenance_mut(to);
    // SAFETY: as the caller promises.
    unsafe { copy::copy(from, to, bytes) }
}

/// Bytes of a store that readers or the writer may use.
///
/// # Safety
/// As [`copy_bytes`] for a source, for as long as the slice is used.
pub(crate) unsafe fn bytes_at<'a>(address: usize, bytes: usize) -> &'a [u8] {
    // SAFETY: as the caller promises.
    unsafe { std::slice::from_raw_parts(std::ptr::with_exposed_provenance(address), bytes) }
}

/// The same to write.
///
/// # Safety
/// As [`copy_bytes`] for a target, for as long as the slice is used.
pub(crate) unsafe fn bytes_at_mut<'a>(address: usize, bytes: usize) -> &'a mut [u8] {
    // SAFETY: as the caller promises.
    unsafe { std::slice::from_raw_parts_mut(std::ptr::with_exposed_provenance_mut(address), bytes) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_come_and_go() {
        let store =
            Store::new(3 << 16, 1 << 16, &[NodeId(0)].into_iter().collect(), false).unwrap();
        let pages = || {
            hither_linux::bind::range::residency(store.base() as u64..store.address(3) as u64)
                .unwrap()
        };
        assert_eq!(pages().absent, 48);
        store.part(1).populate_on(NodeId(0)).unwrap();
        assert_eq!(pages().nodes, [(NodeId(0), 16)]);
        store.discard(1);
        assert_eq!(pages().absent, 48);
    }

    #[test]
    fn pages_of_another_node_are_refused_and_given_back() {
        let store =
            Store::new(1 << 16, 1 << 16, &[NodeId(0)].into_iter().collect(), false).unwrap();
        let refused = store.part(0).populate_on(NodeId(7)).unwrap_err();
        assert_eq!(refused.0, "node 7 is full: pages came from node 0");
        let range = store.base() as u64..store.address(1) as u64;
        assert_eq!(
            hither_linux::bind::range::residency(range).unwrap().absent,
            16
        );
    }

    #[test]
    fn nodes_that_are_not_there_are_an_error() {
        let nowhere = [NodeId(1000)].into_iter().collect();
        let error = Store::new(1 << 16, 1 << 16, &nowhere, false)
            .unwrap_err()
            .to_string();
        assert!(
            error.starts_with("memory cannot be put on nodes 1000"),
            "{error}"
        );
    }
}
