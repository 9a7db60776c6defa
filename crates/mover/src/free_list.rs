//! The free list: a stack of slots (Treiber), taken from and returned to by any thread.
//!
//! The head carries a tag that grows with every change. Without it a thread that has read "slot 3,
//! followed by slot 5" could be overtaken by others that take 3 and 5 and return 3, and would then
//! make 5 the head though somebody owns it (ABA).

use crate::layout::Link;
use crate::region::Region;
use crate::sync::Ordering;

/// Takes a free slot, or `None` where all are in use.
#[inline]
pub(crate) fn pop(region: &Region) -> Option<u16> {
    let head = &region.header().free.0;
    // Acquire, here and below: pairs with the push of that slot, so that its link is the one that
    // the push wrote or a later one, in which case the tag has grown too.
    let mut seen = Link(head.load(Ordering::Acquire));
    loop {
        let index = seen.index()?;
        let below = Link(region.slot(index).link.load(Ordering::Relaxed)).index();
        let swap = head.compare_exchange(
            seen.0,
            seen.to(below).0,
            Ordering::Acquire,
            Ordering::Acquire,
        );
        match swap {
            Ok(_) => return Some(index),
            Err(now) => seen = Link(now),
        }
    }
}

/// Returns a slot.
#[inline]
pub(crate) fn push(region: &Region, index: u16) {
    push_with(region, index, Ordering::Release);
}

/// `publish` is [`Ordering::Release`], but for a test that shows that nothing weaker will do.
#[inline]
pub(crate) fn push_with(region: &Region, index: u16, publish: Ordering) {
    // The next owner sees all that this one did to the slot.
    let head = &region.header().free.0;
    region.push(head, index, publish);
}
