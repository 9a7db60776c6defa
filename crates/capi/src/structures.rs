//! Structures that a program passes with their size, by which a newer or older one is known.

use crate::constants::{HITHER_E2BIG, HITHER_EINVAL};
use crate::failure::{Failure, Outcome};

/// No structure ever is larger: a larger size is a mistake of the caller.
const MOST: usize = 4096;

/// A structure of a program, called `name` in C; `None` where the program passes NULL.
///
/// # Safety
/// `given` is NULL or has `size` bytes. Any bytes are a `T`.
pub(crate) unsafe fn read<T: Copy>(given: *const T, size: usize, name: &str) -> Outcome<Option<T>> {
    let known = size_of::<T>();
    if !(known..=MOST).contains(&size) {
        let text = format!("size is {size}: pass sizeof(struct {name}), set to zero first");
        return Err(Failure::new(HITHER_EINVAL, text));
    }
    if given.is_null() {
        return Ok(None);
    }
    let bytes = given.cast::<u8>();
    for offset in known..size {
        // SAFETY: the caller vouches for `size` bytes.
        if unsafe { bytes.add(offset).read() } != 0 {
            let text = format!(
                "byte {offset} of the configuration is set, but this version knows {known} bytes: clear it, or \
                 use a newer library"
            );
            return Err(Failure::new(HITHER_E2BIG, text));
        }
    }
    // SAFETY: the caller vouches for the bytes, which need no alignment this way.
    Ok(Some(unsafe { given.read_unaligned() }))
}

/// A field's value, or where that is zero its default.
pub(crate) fn or<T: Default + PartialEq>(asked: T, default: T) -> T {
    if asked == T::default() {
        default
    } else {
        asked
    }
}
