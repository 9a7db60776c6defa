//! The functions of the interface. Each says what it does, what it returns and what it refuses;
//! from these comments the header is made.

use crate::constants::{
    HITHER_ABANDON, HITHER_DRAIN, HITHER_EBADF, HITHER_EFAULT, HITHER_EINVAL, HITHER_OK,
};
use crate::failure::{self, Failure, Outcome, number, pointer};
use crate::instance::Instance;
use crate::types::{HitherConfig, HitherRequest};
use crate::{open, registry};
use hither_core::plan::Refusal;
use hither_mover::{Close, reason_index};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::ffi::{CStr, CString, c_char, c_int};
use std::ptr;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Opens a mover with default settings. `name` says whose memory it moves: NULL, "" or "self" is
/// that of this process, the only one so far.
///
/// Returns a handle: a file descriptor, 0 or more, that poll() reports as readable when a request
/// may be completed. Do nothing else with it than poll() and the calls of this library.
/// Errors: HITHER_ENOENT (no such name), HITHER_ENOMEM, HITHER_EFORK.
///
/// # Safety
/// `name` is NULL or a text with a final zero.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hither_open(name: *const c_char) -> c_int {
    // SAFETY: as the caller of this function vouches.
    number(|| unsafe { open::by_name(name) })
}

/// Opens a mover as configured. `size` is sizeof(struct hither_config), by which the library knows
/// the version of the structure.
///
/// Returns a handle as hither_open() does.
/// Errors: HITHER_EFAULT (config is NULL), HITHER_EINVAL (size, an unknown flag or a value out of
/// range), HITHER_E2BIG (a field is set that this version of the library does not know), and those
/// of hither_open().
///
/// # Safety
/// `config` is NULL or has `size` bytes, with pointers as the structure says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hither_open_config(config: *const HitherConfig, size: usize) -> c_int {
    // SAFETY: as the caller of this function vouches.
    number(|| unsafe { open::by_config(config, size) })
}

/// Closes a mover: hither_close_how() with HITHER_DRAIN.
///
/// Returns 0. Errors: HITHER_EBADF, HITHER_EBUSY (it has streams), HITHER_EFORK.
#[unsafe(no_mangle)]
pub extern "C" fn hither_close(handle: c_int) -> c_int {
    hither_close_how(handle, HITHER_DRAIN)
}

/// Closes a mover. With HITHER_DRAIN it blocks until everything submitted has run; with
/// HITHER_ABANDON until what has begun is finished, and the rest does not run. Results not
/// retrieved before are lost, and every request of the mover is freed. Other threads that wait for
/// it are woken with HITHER_EBADF.
///
/// Returns 0. Errors: HITHER_EBADF (not open, or closed already), HITHER_EINVAL (how), HITHER_EBUSY
/// (it has streams: hither_stream_destroy() first), HITHER_EFORK.
#[unsafe(no_mangle)]
pub extern "C" fn hither_close_how(handle: c_int, how: c_int) -> c_int {
    number(|| {
        let how = match how {
            HITHER_DRAIN => Close::Drain,
            HITHER_ABANDON => Close::Abandon,
            other => {
                let text = format!("how is {other}: it is HITHER_DRAIN or HITHER_ABANDON");
                return Err(Failure::new(HITHER_EINVAL, text));
            }
        };
        registry::close(handle, how).map(|()| HITHER_OK)
    })
}

/// Allocates a request to fill: all fields 0 or NULL, `node` -1. Never blocks.
///
/// Returns NULL where it fails; hither_last_code() is HITHER_EAGAIN (all are in use),
/// HITHER_EBADF or HITHER_EFORK then.
#[unsafe(no_mangle)]
pub extern "C" fn hither_alloc_request(handle: c_int) -> *mut HitherRequest {
    pointer(|| registry::with_handle(handle, Instance::allocate))
}

/// Frees a request that is not submitted, or retrieved.
///
/// Returns 0. Errors: HITHER_EFAULT (NULL), HITHER_EINVAL (no request of an open mover, or freed
/// already), HITHER_EBUSY (submitted and not yet retrieved), HITHER_EFORK.
#[unsafe(no_mangle)]
pub extern "C" fn hither_free_request(request: *mut HitherRequest) -> c_int {
    number(|| registry::with_request(request, Instance::release).map(|()| HITHER_OK))
}

/// Submits a request. Never blocks, and makes no system call while a worker is awake. From now on
/// until it is retrieved the request belongs to the library.
///
/// Returns 0. Errors, after which the request is still the caller's and unchanged: HITHER_EFAULT
/// (NULL), HITHER_EINVAL (no request of an open mover, freed, or a field without meaning;
/// hither_last_error() says which), HITHER_EBUSY (submitted already), HITHER_EAGAIN (streams have the
/// mover's requests), HITHER_EFORK.
#[unsafe(no_mangle)]
pub extern "C" fn hither_submit_request(request: *mut HitherRequest) -> c_int {
    number(|| registry::with_request(request, Instance::submit).map(|()| HITHER_OK))
}

/// Cancels a submitted request that has not begun. Cancelled or not, it is still to be retrieved.
///
/// Returns 0: it will be retrieved as HITHER_CANCELLED. Errors: HITHER_EALREADY (too late),
/// HITHER_EFAULT (NULL), HITHER_EINVAL (no request of an open mover, or not submitted),
/// HITHER_EFORK.
#[unsafe(no_mangle)]
pub extern "C" fn hither_cancel(request: *mut HitherRequest) -> c_int {
    number(|| registry::with_request(request, Instance::cancel).map(|()| HITHER_OK))
}

/// Retrieves a completed request of any mover of this process, each mover in its turn. Never
/// blocks.
///
/// Returns the request, which is the caller's again, to be read, submitted anew or freed. NULL: no
/// request is completed (hither_last_code() is 0), or it is HITHER_EFORK or HITHER_ECORRUPT.
#[unsafe(no_mangle)]
pub extern "C" fn hither_retrieve_completed() -> *mut HitherRequest {
    pointer(registry::retrieve_any)
}

/// Retrieves a completed request of one mover. Never blocks. Before sleeping in poll(), call it
/// until it returns NULL; poll() may return once more than needed.
///
/// Returns as hither_retrieve_completed(); hither_last_code() may be HITHER_EBADF too.
#[unsafe(no_mangle)]
pub extern "C" fn hither_retrieve(handle: c_int) -> *mut HitherRequest {
    pointer(|| registry::with_handle(handle, Instance::retrieve))
}

/// Retrieves a completed request of one mover, waiting for it up to `timeout_ms` milliseconds; -1
/// waits for ever, 0 not at all. Signals do not end the waiting.
///
/// Returns as hither_retrieve(); NULL with hither_last_code() 0 after the time. Errors:
/// HITHER_EBADF (also when it is closed meanwhile), HITHER_EINVAL (a time below -1),
/// HITHER_ECORRUPT, HITHER_EFORK.
#[unsafe(no_mangle)]
pub extern "C" fn hither_wait(handle: c_int, timeout_ms: c_int) -> *mut HitherRequest {
    pointer(|| {
        let timeout = match timeout_ms {
            -1 => None,
            0.. => Some(Duration::from_millis(timeout_ms.unsigned_abs().into())),
            _ => {
                let text = format!("timeout_ms is {timeout_ms}: it is -1, for ever, or more");
                return Err(Failure::new(HITHER_EINVAL, text));
            }
        };
        wait(handle, timeout)
    })
}

/// Waits on the eventfd, as a program's own poll() does: closing can wake this, too.
fn wait(handle: c_int, timeout: Option<Duration>) -> Outcome<*mut HitherRequest> {
    let instance = registry::take_along(handle)?;
    let end = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
    loop {
        if instance.is_closing() {
            let text = format!("handle {handle} was closed while this thread waited");
            return Err(Failure::new(HITHER_EBADF, text));
        }
        let request = instance.retrieve()?;
        if !request.is_null() {
            return Ok(request);
        }
        let left = end.map(|end| end.saturating_duration_since(Instant::now()));
        if left == Some(Duration::ZERO) {
            return Ok(ptr::null_mut());
        }
        let Some(descriptor) = instance.mover().notify_fd() else {
            unreachable!("opened with an eventfd");
        };
        let left = left.map(|left| Timespec {
            tv_sec: left.as_secs() as i64,
            tv_nsec: left.subsec_nanos().into(),
        });
        // Every error (a signal) means: look again.
        let _ = poll(
            &mut [PollFd::new(&descriptor, PollFlags::IN)],
            left.as_ref(),
        );
    }
}

/// Writes to `text` which backends serve a mover and why the others do not: a line each. At most
/// `size` bytes are written, a final zero included; of a longer text the beginning. `text` may be
/// NULL where `size` is 0.
///
/// Returns the length of the whole text in bytes, without its final zero, as snprintf() does.
/// Errors: HITHER_EBADF, HITHER_EFAULT (text is NULL but size is not 0), HITHER_EFORK.
///
/// # Safety
/// `text` is NULL or has room for `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hither_describe(handle: c_int, text: *mut c_char, size: usize) -> c_int {
    number(|| {
        let described = registry::with_handle(handle, |instance| Ok(instance.describe()))?;
        // SAFETY: as the caller of this function vouches.
        unsafe { write_text(&described, text, size) }
    })
}

/// Writes as much of a text as there is room for, and tells its length.
///
/// # Safety
/// `text` is NULL or has room for `size` bytes.
pub(crate) unsafe fn write_text(described: &str, text: *mut c_char, size: usize) -> Outcome<c_int> {
    if text.is_null() && size > 0 {
        return Err(Failure::new(
            HITHER_EFAULT,
            "text is NULL: pass a buffer, or size 0",
        ));
    }
    if size > 0 {
        let written = described.len().min(size - 1);
        // SAFETY: the caller vouches for `size` bytes, and `written` is less.
        unsafe {
            ptr::copy_nonoverlapping(described.as_ptr().cast(), text, written);
            text.add(written).write(0);
        }
    }
    Ok(c_int::try_from(described.len()).unwrap_or(c_int::MAX))
}

/// Name of the backend that carried a request out (`backend` of a retrieved request): "copy",
/// "swap", "kernel".
///
/// Returns a text that is never freed, or NULL: there is no such backend, and hither_last_code()
/// is HITHER_EINVAL, HITHER_EBADF or HITHER_EFORK.
#[unsafe(no_mangle)]
pub extern "C" fn hither_backend_name(handle: c_int, backend: u32) -> *const c_char {
    pointer(|| {
        registry::with_handle(handle, |instance| {
            let number = u8::try_from(backend).ok();
            match number.and_then(|number| instance.mover().backend_name(number)) {
                Some(name) => Ok(kept(name).cast_mut()),
                None => {
                    let text = format!("backend {backend} is not one of this mover's");
                    Err(Failure::new(HITHER_EINVAL, text))
                }
            }
        })
    })
}

/// A name with a final zero, made once for the life of the process.
fn kept(name: &'static str) -> *const c_char {
    static NAMES: Mutex<Vec<CString>> = Mutex::new(Vec::new());
    let mut names = NAMES.lock().unwrap_or_else(PoisonError::into_inner);
    let known = names.iter().find(|kept| kept.to_bytes() == name.as_bytes());
    if let Some(known) = known {
        return known.as_ptr();
    }
    let made = CString::new(name).unwrap_or_default();
    let pointer = made.as_ptr();
    // The text itself does not move when the list grows.
    names.push(made);
    pointer
}

/// Words for a reason (`HITHER_REFUSED_*`), to be read by people.
///
/// Returns a text that is never freed; of an unknown reason "unknown".
#[unsafe(no_mangle)]
pub extern "C" fn hither_reason_name(reason: u32) -> *const c_char {
    let words: [(Refusal, &CStr); 10] = [
        (Refusal::Busy, c"busy"),
        (Refusal::Pinned, c"pinned"),
        (Refusal::NoMemory, c"no memory on the target"),
        (Refusal::Unmapped, c"unmapped"),
        (Refusal::NotOurs, c"not ours"),
        (Refusal::Shared, c"shared with another process"),
        (Refusal::ProcessGone, c"process gone"),
        (Refusal::TargetForbidden, c"target forbidden"),
        (Refusal::Dropped, c"not tried"),
        (Refusal::NotSupported, c"not supported"),
    ];
    let known = words
        .into_iter()
        .find(|&(refusal, _)| reason_index(refusal) == reason as usize);
    known.map_or(c"unknown", |(_, words)| words).as_ptr()
}

/// What a code of this library (`HITHER_E*`) means, to be read by people.
///
/// Returns a text that is never freed; of an unknown code one that says so.
#[unsafe(no_mangle)]
pub extern "C" fn hither_strerror(code: c_int) -> *const c_char {
    failure::meaning(code).as_ptr()
}

/// Code of this thread's last call: 0 where it succeeded, for calls that return NULL for nothing
/// as well as for errors. Calls that cannot fail (names, words, this one) do not count.
#[unsafe(no_mangle)]
pub extern "C" fn hither_last_code() -> c_int {
    failure::last_code()
}

/// A sentence on this thread's last call: what is wrong, where, and how to mend it. Empty where
/// that call succeeded. Valid until the thread's next call that can fail.
#[unsafe(no_mangle)]
pub extern "C" fn hither_last_error() -> *const c_char {
    failure::last_text()
}

/// Version of the library in use, as text: "0.2.0". That of the header is in `HITHER_VERSION_*`.
#[unsafe(no_mangle)]
pub extern "C" fn hither_version() -> *const c_char {
    const VERSION: &[u8] = concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes();
    VERSION.as_ptr().cast()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_have_the_words_of_reports() {
        for index in 0..10 {
            // SAFETY: the texts are constants.
            let words = unsafe { CStr::from_ptr(hither_reason_name(index)) };
            assert_eq!(words.to_str().unwrap(), Refusal::ALL[index as usize].name());
        }
        // SAFETY: as above.
        let words = unsafe { CStr::from_ptr(hither_reason_name(10)) };
        assert_eq!(words, c"unknown");
    }
}
