//! Visits are begun in the order in which they came, in whatever pieces they are taken.

use crate::patience::Patience;
use crate::protocol::{Desk, Inbox, Visit};
use std::cell::RefCell;

struct Frame<'a> {
    number: usize,
    begun: &'a RefCell<Vec<usize>>,
    /// Pushed when this one runs: by then the worker has taken some.
    later: &'a [Visit],
    inbox: &'a Inbox,
}

unsafe fn enter(data: *mut ()) {
    // SAFETY: a frame of the test below.
    let frame = unsafe { &*data.cast::<Frame<'_>>() };
    frame.begun.borrow_mut().push(frame.number);
    for visit in frame.later {
        // SAFETY: visits live as long as the test, and are pushed once.
        unsafe { Inbox::push(frame.inbox, visit) };
    }
}

#[test]
fn first_come_first_served() {
    let (inbox, begun) = (Inbox::new(), RefCell::new(Vec::new()));
    // Where answers go; nobody takes them.
    let frame = |number, later| Frame {
        number,
        begun: &begun,
        later,
        inbox: &inbox,
    };
    let last: Vec<_> = (3..6).map(|number| frame(number, &[])).collect();
    let visits = |frames: &[Frame<'_>]| -> Vec<Visit> {
        let data = frames.iter().map(|frame| (&raw const *frame).cast_mut());
        data.map(|data| Visit::new(enter, data.cast())).collect()
    };
    let last = visits(&last);
    let first: Vec<_> = [frame(0, &[]), frame(1, &last), frame(2, &[])].into();
    let first = visits(&first);
    let stop = Visit::stop();
    for visit in first.iter().chain(&last) {
        visit.answer_to_itself();
    }
    for visit in &first {
        // SAFETY: as above.
        unsafe { Inbox::push(&raw const inbox, visit) };
    }
    // SAFETY: as above.
    unsafe { Inbox::push(&raw const inbox, &stop) };
    let desk = Desk::new(&inbox);
    desk.serve(None, &Patience::new(1));
    assert_eq!(*begun.borrow(), [0, 1, 2, 3, 4, 5]);
}
