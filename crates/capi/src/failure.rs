//! Failures: a code for programs, a sentence for people, and the boundary that no panic crosses.

use crate::constants::{
    HITHER_E2BIG, HITHER_EAGAIN, HITHER_EALREADY, HITHER_EBADF, HITHER_EBUSY, HITHER_ECONNREFUSED,
    HITHER_ECORRUPT, HITHER_EFAULT, HITHER_EFORK, HITHER_EINTERNAL, HITHER_EINVAL, HITHER_ENOENT,
    HITHER_ENOMEM, HITHER_ENOSYS, HITHER_EPERM, HITHER_ETIMEDOUT, HITHER_OK,
};
use std::cell::{Cell, RefCell};
use std::ffi::{CStr, c_char, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Why a call failed.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    pub(crate) code: c_int,
    /// What is wrong, where, and how to mend it.
    pub(crate) text: String,
}

impl Failure {
    pub(crate) fn new(code: c_int, text: impl Into<String>) -> Self {
        Self {
            code,
            text: text.into(),
        }
    }
}

pub(crate) type Outcome<T> = Result<T, Failure>;

/// An argument without meaning.
pub(crate) fn invalid<T>(text: impl Into<String>) -> Outcome<T> {
    Err(Failure::new(HITHER_EINVAL, text))
}

/// An argument that is NULL and must not be.
pub(crate) fn missing<T>(name: &str) -> Outcome<T> {
    Err(Failure::new(
        HITHER_EFAULT,
        format!("{name} is NULL: pass an address"),
    ))
}

/// Longest sentence that is told whole.
const MOST_BYTES: usize = 1024;

thread_local! {
    /// Code of this thread's last call.
    static CODE: Cell<c_int> = const { Cell::new(HITHER_OK) };
    /// Sentence of this thread's last call that failed, with a final zero; empty before.
    static TEXT: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Runs a call that returns a number: of success 0 or more, of failure the code.
pub(crate) fn number(call: impl FnOnce() -> Outcome<c_int>) -> c_int {
    guarded(call).unwrap_or_else(|code| code)
}

/// Runs a call that returns a pointer: NULL for nothing and of failure.
pub(crate) fn pointer<T>(call: impl FnOnce() -> Outcome<*mut T>) -> *mut T {
    guarded(call).unwrap_or(std::ptr::null_mut())
}

/// Runs a call; a panic in it is a failure. Notes how it ended for this thread.
fn guarded<T>(call: impl FnOnce() -> Outcome<T>) -> Result<T, c_int> {
    // What a panicking call leaves behind is used again: all of it is atomics and locks, and locks
    // are taken although poisoned, since nothing under them is ever half written.
    let outcome = catch_unwind(AssertUnwindSafe(call)).unwrap_or_else(|_| {
        let text = "the library failed in itself: the lines above on standard error say where";
        Err(Failure::new(HITHER_EINTERNAL, text))
    });
    let code = match &outcome {
        Ok(_) => HITHER_OK,
        Err(failure) => failure.code,
    };
    // While a thread ends there may be nowhere to note it.
    let _ = CODE.try_with(|last| last.set(code));
    outcome.map_err(|failure| {
        let _ = TEXT.try_with(|last| {
            let mut text = clipped(failure.text).into_bytes();
            text.retain(|&byte| byte != 0);
            text.push(0);
            last.replace(text);
        });
        code
    })
}

/// A sentence of a length to be read: of one that repeats a long name, beginning and end, where the
/// remedy is.
fn clipped(text: String) -> String {
    if text.len() <= MOST_BYTES {
        return text;
    }
    let begin = &text[..text.floor_char_boundary(MOST_BYTES / 2)];
    let end = &text[text.ceil_char_boundary(text.len() - MOST_BYTES / 2)..];
    format!("{begin} ... {end}")
}

/// Code of this thread's last call.
pub(crate) fn last_code() -> c_int {
    CODE.try_with(Cell::get).unwrap_or(HITHER_OK)
}

/// Sentence of this thread's last call, empty where that succeeded. Valid until its next call.
pub(crate) fn last_text() -> *const c_char {
    if last_code() == HITHER_OK {
        return c"".as_ptr();
    }
    let text = TEXT.try_with(|last| last.borrow().as_ptr().cast());
    text.unwrap_or(c"".as_ptr())
}

/// What a code means.
pub(crate) fn meaning(code: c_int) -> &'static CStr {
    match code {
        HITHER_OK => c"success",
        HITHER_EPERM => c"the daemon refuses",
        HITHER_ENOENT => c"no mover has this name",
        HITHER_E2BIG => c"the structure is newer than the library",
        HITHER_EBADF => c"the handle names nothing open of this process",
        HITHER_EFORK => c"this is a child after fork: the mover belongs to the parent",
        HITHER_EAGAIN => c"all requests, readers or regions are in use",
        HITHER_ENOMEM => c"the system has no memory, descriptor or thread to give",
        HITHER_EFAULT => c"a pointer is NULL",
        HITHER_EBUSY => c"somebody uses it: a request not yet retrieved, a mover with streams, a stream that runs, an array with readers, a region with visits",
        HITHER_EINVAL => c"an argument or a field of the request has no meaning",
        HITHER_ENOSYS => c"the kernel cannot do it, or does not let this process",
        HITHER_ETIMEDOUT => c"it did not happen in time",
        HITHER_ECONNREFUSED => c"no daemon answers",
        HITHER_EALREADY => c"too late to cancel",
        HITHER_ECORRUPT => c"the queues were written over",
        HITHER_EINTERNAL => c"an error in the library itself",
        _ => c"no code of this library",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said() -> String {
        // SAFETY: `last_text` returns a text that lives until this thread's next call.
        let text = unsafe { CStr::from_ptr(last_text()) };
        text.to_str().unwrap().to_owned()
    }

    #[test]
    fn the_last_call_is_noted_for_its_thread() {
        assert_eq!((last_code(), said()), (HITHER_OK, String::new()));
        let failed = number(|| Err(Failure::new(HITHER_EINVAL, "a\0b")));
        assert_eq!(failed, HITHER_EINVAL);
        assert_eq!((last_code(), said()), (HITHER_EINVAL, "ab".to_owned()));
        std::thread::spawn(|| assert_eq!(last_code(), HITHER_OK))
            .join()
            .unwrap();
        assert_eq!(number(|| Ok(3)), 3);
        assert_eq!((last_code(), said()), (HITHER_OK, String::new()));
    }

    #[test]
    fn long_names_are_not_repeated_whole() {
        let name = "\u{e4}".repeat(1 << 19);
        number(|| {
            Err(Failure::new(
                HITHER_EINVAL,
                format!("no set `{name}`: name one"),
            ))
        });
        let said = said();
        assert!(said.starts_with("no set `") && said.ends_with(": name one"));
        assert!(said.len() <= MOST_BYTES + 5, "{}", said.len());
    }

    #[test]
    fn a_panic_is_a_failure() {
        let pointer = pointer::<u8>(|| panic!("meant by this test"));
        assert!(pointer.is_null());
        assert_eq!(last_code(), HITHER_EINTERNAL);
        assert!(said().contains("standard error"));
    }
}
