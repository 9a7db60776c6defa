//! The staging queue: submitted requests that no worker knows of yet, and the colour that says who
//! must pass them on (memif sections 4.3 and 4.4).
//!
//! The paper's red-blue queue carries the colour in every link of a Michael-Scott queue, so that
//! two compare-and-swaps enqueue an element and learn the colour. But nobody ever takes a single
//! element from staging: whoever flushes wants all. So here staging is one word, {newest request,
//! colour, tag}, over a chain of requests from newest to oldest:
//!
//! - [`push`] is one compare-and-swap, which also proves that the colour it returns was the
//!   queue's at that instant;
//! - [`take_all`] takes the whole chain by one, colour unchanged, and [`reverse`] makes it first
//!   come, first served;
//! - [`set_colour`] succeeds only while the queue is empty.
//!
//! ABA cannot hurt even without the tag: a push only relies on the request it found being the
//! newest, which is true again if the same one is found again; taking all relies on no link read
//! before; a colour is only set where the word is empty at that instant. The tag is there all the
//! same: it costs nothing, and an operation that is added later need not be argued about anew.

use crate::layout::{Colour, Link};
use crate::region::Region;
use crate::sync::Ordering;

/// Adds a request and returns the colour of the queue that it joined.
#[inline]
pub(crate) fn push(region: &Region, index: u16) -> Colour {
    push_with(region, index, Ordering::Release)
}

/// `publish` is [`Ordering::Release`], but for a test that shows that nothing weaker will do.
#[inline]
pub(crate) fn push_with(region: &Region, index: u16, publish: Ordering) -> Colour {
    // Whoever takes the chain sees the request's fields and link, and those of the requests pushed
    // before, since every change of the word is a read-modify-write.
    let head = &region.header().staging.0;
    region.push(head, index, publish).colour()
}

/// Takes all requests: the newest, which links to the one before it, and so on.
#[inline]
pub(crate) fn take_all(region: &Region) -> Option<u16> {
    let head = &region.header().staging.0;
    let mut seen = Link(head.load(Ordering::Relaxed));
    loop {
        let newest = seen.index()?;
        // Acquire: pairs with every push of the chain.
        let next = seen.to(None).0;
        match head.compare_exchange(seen.0, next, Ordering::Acquire, Ordering::Relaxed) {
            Ok(_) => return Some(newest),
            Err(now) => seen = Link(now),
        }
    }
}

/// Turns a chain that [`take_all`] returned round: the oldest, which links to the one after it.
pub(crate) fn reverse(region: &Region, newest: u16) -> u16 {
    let mut behind = None;
    let mut current = newest;
    loop {
        let link = &region.slot(current).link;
        let before = Link(link.load(Ordering::Relaxed)).index();
        link.store(Link(0).to(behind).0, Ordering::Relaxed);
        let Some(before) = before else {
            return current;
        };
        behind = Some(current);
        current = before;
    }
}

/// The request after this one in a chain.
pub(crate) fn after(region: &Region, index: u16) -> Option<u16> {
    Link(region.slot(index).link.load(Ordering::Relaxed)).index()
}

/// Gives the queue a colour if it is empty and returns the colour before, or `None` where it is
/// not empty.
///
/// Even where the colour stays the same the word is written. That makes a chain of all changes of
/// colour: who reads a value of it has seen what every earlier one of the chain was preceded by.
/// [`crate::instance`] relies on that.
pub(crate) fn set_colour(region: &Region, colour: Colour) -> Option<Colour> {
    let head = &region.header().staging.0;
    let mut seen = Link(head.load(Ordering::Relaxed));
    loop {
        if seen.index().is_some() {
            return None;
        }
        let next = seen.to(None).coloured(colour).0;
        match head.compare_exchange(seen.0, next, Ordering::AcqRel, Ordering::Relaxed) {
            Ok(_) => return Some(seen.colour()),
            Err(now) => seen = Link(now),
        }
    }
}

/// Is nothing staged, as far as this thread can see?
#[inline]
pub(crate) fn is_empty(region: &Region) -> bool {
    let head = &region.header().staging.0;
    Link(head.load(Ordering::Relaxed)).index().is_none()
}

/// The colour.
#[cfg(test)]
pub(crate) fn colour(region: &Region) -> Colour {
    Link(region.header().staging.0.load(Ordering::Relaxed)).colour()
}
