//! Moves memory with `async` and `await`, on whatever runs futures: here on a dozen lines that
//! poll one and sleep until it is woken.
//!
//!     cargo run --release -p hither-linux --example mover_async

use hither_linux::backend::own::{self, Settings};
use hither_mover::{Completion, Config, Mover, Status};
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Runs a future on this thread.
fn block_on<F: Future>(future: F) -> F::Output {
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut context = Context::from_waker(&waker);
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut context) {
            Poll::Ready(output) => return output,
            // Woken before this line, it returns at once.
            Poll::Pending => std::thread::park(),
        }
    }
}

/// Copies `from` to `to`, both of which stay borrowed until it is done.
async fn copy(mover: &Mover, from: &[u8], to: &mut [u8]) -> Completion {
    let bytes = from.len().min(to.len());
    let request = mover.request().expect("a free request");
    let request = request.replicate(from.as_ptr().addr(), to.as_mut_ptr().addr(), bytes);
    let future = mover.submit_async(request).expect("a request in order");
    future.await.expect("the process that opened the mover")
}

/// The example; also run by the tests.
pub fn main() {
    let (mover, _) = own::open(Config::default(), Settings::default()).expect("a mover");
    let first: Vec<u8> = (0..1 << 20).map(|byte: u32| byte as u8).collect();
    let (mut second, mut third) = (vec![0; first.len()], vec![0; first.len()]);
    let (one, other) = block_on(async {
        // One after the other, as the second reads what the first writes.
        let one = copy(&mover, &first, &mut second).await;
        let other = copy(&mover, &second, &mut third).await;
        (one, other)
    });
    for done in [&one, &other] {
        assert_eq!(done.status, Status::Done);
        println!(
            "copied {} bytes by {} in {} us",
            done.bytes,
            mover.backend_name(done.backend).unwrap_or("nobody"),
            (done.queued_ns + done.moving_ns) / 1000,
        );
    }
    assert_eq!(first, third);
}
