//! A submitted request as a `Future`, tied to no runtime.

use crate::record::{Completion, RequestId};
use crate::region::Forked;
use crate::service::Mover;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

/// Becomes the completion of its request, which no `retrieve` returns then.
///
/// Dropped before that, the request is cancelled if it has not begun; one that has begun ends as
/// it would have, and its result is thrown away.
#[derive(Debug)]
#[must_use = "a dropped future cancels its request"]
pub struct MoveFuture<'m> {
    mover: &'m Mover,
    id: RequestId,
    finished: bool,
}

impl<'m> MoveFuture<'m> {
    pub(crate) fn new(mover: &'m Mover, id: RequestId) -> Self {
        Self {
            mover,
            id,
            finished: false,
        }
    }

    /// The request's number, for [`Mover::cancel`].
    #[must_use]
    pub fn id(&self) -> RequestId {
        self.id
    }
}

impl Future for MoveFuture<'_> {
    /// Fails only in a child after `fork`.
    type Output = Result<Completion, Forked>;

    /// # Panics
    /// Where it is polled again after it was ready.
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        assert!(!self.finished, "polled after it was ready");
        match self.mover.poll_request(self.id, context.waker()) {
            Ok(None) => Poll::Pending,
            Ok(Some(completion)) => {
                self.finished = true;
                Poll::Ready(Ok(completion))
            }
            Err(forked) => {
                self.finished = true;
                Poll::Ready(Err(forked))
            }
        }
    }
}

impl Drop for MoveFuture<'_> {
    fn drop(&mut self) {
        if !self.finished {
            self.mover.abandon(self.id);
        }
    }
}
