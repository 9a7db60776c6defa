//! After `fork` the child's copy of a service is empty and does its parent no harm.

mod common;

use common::Nothing;
use hither_core::ids::NodeId;
use hither_mover::{Config, Forked, Mover, Status, SubmitError};
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

#[test]
fn a_child_has_an_empty_copy() {
    let mover = Mover::open(Config::default(), |_| Box::new(Nothing)).expect("a mover");
    let submit = |tag| {
        let request = mover.request().expect("a free request");
        let request = request.migrate(0..4096, NodeId(0)).tag(tag);
        mover.submit(request).expect("a valid request");
    };
    submit(1);
    // Held over the fork: the child must not be able to submit it.
    let held = mover.request().expect("a free request");
    let released = mover.request().expect("a free request");
    let request = mover.request().expect("a free request");
    let request = request.migrate(0..4096, NodeId(0));
    let mut future = mover.submit_async(request).expect("a valid request");
    let mut context = Context::from_waker(Waker::noop());
    // SAFETY: the child calls nothing that a thread of the parent could have locked at this
    // moment: no allocation, no output; it ends by `_exit`.
    let child = unsafe { libc::fork() };
    assert!(child >= 0);
    if child == 0 {
        let empty = mover.request().is_none()
            && mover.retrieve().is_none()
            && mover.wait(None).is_none()
            && mover.wait(Some(Duration::from_secs(60))).is_none();
        let refused = mover.submit(held.migrate(0..4096, NodeId(0)));
        let refused = refused.is_err_and(|rejected| rejected.reason == SubmitError::Forked(Forked));
        let polled = Pin::new(&mut future).poll(&mut context);
        drop((released, future));
        let empty = empty && mover.request().is_none() && polled == Poll::Ready(Err(Forked));
        // Closing must not wait for threads that the child does not have.
        drop(mover);
        // SAFETY: ends this process, as above.
        unsafe { libc::_exit(i32::from(!(empty && refused))) };
    }
    let mut status = -1;
    // SAFETY: waits for the child just made; `status` outlives the call.
    let ended = unsafe { libc::waitpid(child, &mut status, 0) };
    assert_eq!((ended, status), (child, 0));
    submit(2);
    for tag in [1, 2] {
        let completion = mover
            .wait(Some(Duration::from_secs(60)))
            .expect("a completion");
        assert_eq!((completion.tag, completion.status), (tag, Status::Done));
    }
    drop(held);
    drop(released);
    while Pin::new(&mut future).poll(&mut context).is_pending() {
        std::thread::yield_now();
    }
    assert_eq!(mover.statistics().depths.free, 256);
}
