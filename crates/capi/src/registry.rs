//! The open movers of this process, found by handle or by the address of a request.
//!
//! Calls look up and act under a read lock, which costs no system call while nobody opens or
//! closes. Nothing blocks under it; a call that waits takes a reference along instead, and closing
//! waits until that is dropped.

use crate::constants::{HITHER_EBADF, HITHER_EBUSY, HITHER_EFAULT, HITHER_EINVAL};
use crate::failure::{Failure, Outcome};
use crate::instance::Instance;
use crate::lifetime;
use crate::types::HitherRequest;
use hither_mover::{Close, Mover};
use std::ops::Deref;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, RwLock, RwLockReadGuard};
use std::time::Duration;

static OPEN: RwLock<Vec<Arc<Instance>>> = RwLock::new(Vec::new());
/// Whose turn it is in [`retrieve_any`].
static TURN: AtomicUsize = AtomicUsize::new(0);

/// How often closing looks whether the last waiting call has left, which was woken before.
const NAP: Duration = Duration::from_micros(50);

fn open_movers() -> RwLockReadGuard<'static, Vec<Arc<Instance>>> {
    OPEN.read().unwrap_or_else(|held| held.into_inner())
}

/// Makes a mover findable and returns its handle.
pub(crate) fn add(instance: Instance) -> i32 {
    let handle = instance.handle();
    let mut movers = OPEN.write().unwrap_or_else(|held| held.into_inner());
    // The kernel gives out a number again only where the program has closed a handle with close(2).
    // The old mover must not close that number now, so that it stays until the process ends.
    if let Some(position) = movers.iter().position(|other| other.handle() == handle) {
        std::mem::forget(movers.swap_remove(position));
    }
    movers.push(Arc::new(instance));
    handle
}

fn find(movers: &[Arc<Instance>], handle: i32) -> Outcome<&Arc<Instance>> {
    let found = movers.iter().find(|instance| instance.handle() == handle);
    found.ok_or_else(|| bad_handle(handle))
}

fn bad_handle(handle: i32) -> Failure {
    let text = format!(
        "{handle} is no open mover of this process: pass what hither_open() returned, before \
         hither_close()"
    );
    Failure::new(HITHER_EBADF, text)
}

/// Acts on the mover of a handle.
#[inline]
pub(crate) fn with_handle<T>(handle: i32, act: impl FnOnce(&Instance) -> Outcome<T>) -> Outcome<T> {
    lifetime::check()?;
    act(find(&open_movers(), handle)?)
}

/// Acts on a request and its mover.
#[inline]
pub(crate) fn with_request<T>(
    request: *const HitherRequest,
    act: impl FnOnce(&Instance, u16) -> Outcome<T>,
) -> Outcome<T> {
    lifetime::check()?;
    if request.is_null() {
        let text = "the request is NULL: check what hither_alloc_request() returned";
        return Err(Failure::new(HITHER_EFAULT, text));
    }
    let movers = open_movers();
    let found = movers
        .iter()
        .find_map(|instance| Some((instance, instance.index_of(request)?)));
    let Some((instance, index)) = found else {
        let text = format!(
            "{request:p} is no request of an open mover: pass what hither_alloc_request() or \
             retrieval returned, before hither_close()"
        );
        return Err(Failure::new(HITHER_EINVAL, text));
    };
    act(instance, index)
}

/// The mover of a handle, for a call that blocks and must not hold the lock.
pub(crate) fn take_along(handle: i32) -> Outcome<Arc<Instance>> {
    lifetime::check()?;
    find(&open_movers(), handle).cloned()
}

/// A mover that cannot be closed meanwhile.
pub(crate) struct Kept(Arc<Instance>);

impl Deref for Kept {
    type Target = Instance;

    fn deref(&self) -> &Instance {
        &self.0
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        self.0.streams().fetch_sub(1, Ordering::Release);
    }
}

/// Keeps the mover of a handle from being closed.
pub(crate) fn keep(handle: i32) -> Outcome<Kept> {
    lifetime::check()?;
    // Counted under the lock: closing looks while nobody else has it.
    let movers = open_movers();
    let instance = find(&movers, handle)?;
    instance.streams().fetch_add(1, Ordering::Relaxed);
    Ok(Kept(Arc::clone(instance)))
}

/// A completed request of any mover, each in its turn, or null.
pub(crate) fn retrieve_any() -> Outcome<*mut HitherRequest> {
    lifetime::check()?;
    let movers = open_movers();
    let first = TURN.fetch_add(1, Ordering::Relaxed);
    let mut failed = None;
    for step in 0..movers.len() {
        let instance = &movers[first.wrapping_add(step) % movers.len()];
        match instance.retrieve() {
            Ok(request) if request.is_null() => {}
            Ok(request) => return Ok(request),
            // The others work nevertheless.
            Err(failure) => failed = Some(failure),
        }
    }
    failed.map_or(Ok(std::ptr::null_mut()), Err)
}

/// Ends a mover. Its requests are gone, retrieved or not.
pub(crate) fn close(handle: i32, how: Close) -> Outcome<()> {
    lifetime::check()?;
    let instance = {
        let mut movers = OPEN.write().unwrap_or_else(|held| held.into_inner());
        let position = movers
            .iter()
            .position(|instance| instance.handle() == handle);
        let position = position.ok_or_else(|| bad_handle(handle))?;
        // Acquire: what a stream did before it ended is done.
        let streams = movers[position].streams().load(Ordering::Acquire);
        if streams > 0 {
            let text = format!(
                "mover {handle} has {streams} streams: end them by hither_stream_destroy() before"
            );
            return Err(Failure::new(HITHER_EBUSY, text));
        }
        movers.swap_remove(position)
    };
    instance.begin_closing();
    drop(alone(instance).close(how));
    Ok(())
}

/// Waits until no call uses the instance any more.
fn alone(mut instance: Arc<Instance>) -> Mover {
    loop {
        match Arc::try_unwrap(instance) {
            Ok(instance) => return instance.into_mover(),
            Err(shared) => instance = shared,
        }
        std::thread::sleep(NAP);
    }
}
