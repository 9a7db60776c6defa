//! Structures that a program passes with their size, by which a newer or older one is known.

use crate::constants::HITHER_E2BIG;
use crate::failure::{Failure, Outcome, invalid};
use std::mem::MaybeUninit;
use std::ptr;

/// No structure ever is larger: a larger size is a mistake of the caller.
const MOST: usize = 4096;

/// A structure of a program, called `name` in C, of which the first version had `least` bytes: fields of later
/// ones are zero where the program does not know them. `None` where the program passes NULL.
///
/// # Safety
/// `given` is NULL or has `size` bytes. Any bytes are a `T`.
pub(crate) unsafe fn read<T: Copy>(
    given: *const T,
    size: usize,
    least: usize,
    name: &str,
) -> Outcome<Option<T>> {
    let known = size_of::<T>();
    if !(least..=MOST).contains(&size) {
        return invalid(format!(
            "size is {size}: pass sizeof(struct {name}), set to zero first"
        ));
    }
    if given.is_null() {
        return Ok(None);
    }
    let bytes = given.cast::<u8>();
    // A program that knows more than this library may still use it, if it asks for nothing new.
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
    let mut read = MaybeUninit::<T>::zeroed();
    // SAFETY: both have that many bytes, which need no alignment this way, and any are a `T`.
    let read = unsafe {
        ptr::copy_nonoverlapping(bytes, read.as_mut_ptr().cast(), size.min(known));
        read.assume_init()
    };
    Ok(Some(read))
}

/// A field's value, or where that is zero its default.
pub(crate) fn or<T: Default + PartialEq>(asked: T, default: T) -> T {
    if asked == T::default() {
        default
    } else {
        asked
    }
}
