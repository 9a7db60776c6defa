//! A queue of requests, first in, first out, for any number of threads at both ends (Michael and
//! Scott, "Simple, fast, and practical non-blocking and blocking concurrent queue algorithms",
//! 1996), linked by number.
//!
//! The queue always holds one node more than it has requests, the dummy at its head. A request
//! owns a node; enqueueing links that node at the tail. Dequeueing makes that node the new dummy,
//! and the request goes away with the old one. So nothing is allocated, and a request can always
//! be enqueued.
//!
//! Tags on `head`, `tail` and every `next` grow with each change. They also count: the tail's has
//! grown by one for every request that came in, the head's for every one that left.

use crate::layout::{Ends, Link};
use crate::region::Region;
use crate::sync::Ordering;

/// Adds the request at the tail.
#[inline]
pub(crate) fn enqueue(region: &Region, ends: &Ends, index: u16) {
    let own = region.slot(index).node.get() as u16;
    let node = region.node(own);
    node.slot.set(index.into());
    let clear = Link(node.next.load(Ordering::Relaxed)).to(None);
    // Release: a thread that still thinks this node to be some queue's tail, and reads this, then
    // also sees that the tail has moved on.
    node.next.store(clear.0, Ordering::Release);
    loop {
        let tail = Link(ends.tail.0.load(Ordering::Acquire));
        let Some(last) = tail.index() else {
            // A child after fork, which submits nothing.
            return;
        };
        let last = &region.node(last).next;
        let next = Link(last.load(Ordering::Acquire));
        if ends.tail.0.load(Ordering::Relaxed) == tail.0 {
            match next.index() {
                None => {
                    // Release: the dequeuer sees the request.
                    let linked = last.compare_exchange(
                        next.0,
                        next.to(Some(own)).0,
                        Ordering::Release,
                        Ordering::Relaxed,
                    );
                    if linked.is_ok() {
                        advance(ends, tail, own);
                        return;
                    }
                }
                Some(next) => advance(ends, tail, next),
            }
        }
    }
}

/// Moves the tail one on, unless somebody else has.
#[inline]
fn advance(ends: &Ends, tail: Link, next: u16) {
    let _ = ends.tail.0.compare_exchange(
        tail.0,
        tail.to(Some(next)).0,
        Ordering::Release,
        Ordering::Relaxed,
    );
}

/// Takes the request at the head, if there is one.
#[inline]
pub(crate) fn dequeue(region: &Region, ends: &Ends) -> Option<u16> {
    loop {
        let head = Link(ends.head.0.load(Ordering::Acquire));
        let tail = Link(ends.tail.0.load(Ordering::Acquire));
        // None: a word of zeros, in a child after fork.
        let dummy = head.index()?;
        // Acquire: pairs with the enqueuer that linked the node.
        let next = Link(region.node(dummy).next.load(Ordering::Acquire));
        match next.index() {
            None if ends.head.0.load(Ordering::Relaxed) == head.0 => return None,
            None => {}
            // The head never overtakes the tail, so that no enqueuer is led to a node that left.
            Some(next) if head.index() == tail.index() => advance(ends, tail, next),
            Some(next) => {
                // Read before the swap, since afterwards the node is somebody's dummy; if it has
                // another request by now, the swap fails.
                let index = region.node(next).slot.get() as u16;
                let taken = ends.head.0.compare_exchange(
                    head.0,
                    head.to(Some(next)).0,
                    Ordering::AcqRel,
                    Ordering::Relaxed,
                );
                if taken.is_ok() {
                    region.slot(index).node.set(dummy.into());
                    return Some(index);
                }
            }
        }
    }
}

/// Is the queue empty, as far as this thread can see?
#[inline]
pub(crate) fn is_empty(region: &Region, ends: &Ends) -> bool {
    loop {
        let head = Link(ends.head.0.load(Ordering::Acquire));
        let Some(dummy) = head.index() else {
            return true;
        };
        let next = Link(region.node(dummy).next.load(Ordering::Acquire));
        if next.index().is_some() {
            return false;
        }
        // An old head's node may have become another queue's last.
        if ends.head.0.load(Ordering::Relaxed) == head.0 {
            return true;
        }
    }
}

/// Requests in the queue, as far as two looks one after the other can tell.
pub(crate) fn depth(ends: &Ends) -> u64 {
    let head = Link(ends.head.0.load(Ordering::Relaxed)).tag();
    let tail = Link(ends.tail.0.load(Ordering::Relaxed)).tag();
    // 47 bits of tag; the tail may lag behind, and the head be read earlier.
    let ahead = tail.wrapping_sub(head) & ((1 << 47) - 1);
    if ahead >> 46 == 0 { ahead } else { 0 }
}
