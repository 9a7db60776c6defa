//! The plainest ways to copy memory of one's own.

use super::{Copier, Stores, nontemporal};
use crate::sys::PrivateMemory;
use std::ops::Range;

/// Which stores a copy uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyStores {
    /// Whatever the C library's `memcpy` chooses for this size.
    Library,
    /// Non-temporal: past the caches. As `Library` where the processor is no x86-64.
    NonTemporal,
}

impl PrivateMemory {
    /// Copies `bytes` at `offset` from the same offset of another. What was copied is visible to
    /// whatever follows.
    ///
    /// # Panics
    /// Where the range is not within both, or not of whole 64-byte lines.
    pub fn copy_from(&mut self, source: &Self, offset: usize, bytes: usize, stores: CopyStores) {
        let range = offset..offset.saturating_add(bytes);
        assert!(
            offset.is_multiple_of(64) && bytes.is_multiple_of(64),
            "{range:?} is not of whole lines"
        );
        let from = &source.bytes()[range.clone()];
        let to = &mut self.bytes_mut()[range];
        match stores {
            CopyStores::Library => to.copy_from_slice(from),
            // SAFETY: two slices of one length, the one exclusive.
            CopyStores::NonTemporal => unsafe {
                nontemporal(from.as_ptr(), to.as_mut_ptr(), bytes);
            },
        }
    }

    /// Copies a part from the same part of another, by several threads with streaming stores.
    ///
    /// # Panics
    /// Where it is not within both.
    pub fn copy_shared(&mut self, source: &Self, part: Range<usize>, copier: &mut Copier) {
        let bytes = part.len();
        let (from, to) = (&source.bytes()[part.clone()], &mut self.bytes_mut()[part]);
        // SAFETY: two slices of one length, the one exclusive.
        unsafe { copier.copy_by(from.as_ptr(), to.as_mut_ptr(), bytes, Stores::Streaming) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_are_equal_and_stay_in_their_range() {
        let mut source = PrivateMemory::new(3 << 20, false).unwrap();
        assert_eq!(source.len(), 4 << 20);
        assert!(source.address().is_multiple_of(2 << 20) && !source.is_empty());
        source.fill_pages(7);
        let line = (0..).take(64).collect::<Vec<u8>>();
        source.bytes_mut()[64..128].copy_from_slice(&line);
        for stores in [CopyStores::Library, CopyStores::NonTemporal] {
            let mut target = PrivateMemory::new(1, false).unwrap();
            target.copy_from(&source, 64, 128, stores);
            assert_eq!(target.bytes()[64..128], line);
            assert_eq!(target.bytes()[128..192], [7; 64]);
            let outside = |part: &[u8]| part.iter().all(|&byte| byte == 0);
            assert!(outside(&target.bytes()[..64]) && outside(&target.bytes()[192..8192]));
            target.copy_from(&source, 0, 2 << 20, stores);
            assert!(target.bytes() == &source.bytes()[..2 << 20]);
        }
    }

    #[test]
    #[should_panic(expected = "range end index")]
    fn nothing_behind_the_end_is_copied() {
        let source = PrivateMemory::new(4 << 20, false).unwrap();
        let mut target = PrivateMemory::new(2 << 20, false).unwrap();
        target.copy_from(&source, 2 << 20, 64, CopyStores::NonTemporal);
    }
}
