//! Memory that programs of C hold, found by its address.

use crate::constants::{HITHER_EFAULT, HITHER_EINVAL};
use crate::failure::{Failure, Outcome};
use hither_linux::bind::Memory;
use std::collections::BTreeMap;
use std::ffi::c_void;
use std::ptr;
use std::sync::{Mutex, PoisonError};

static HELD: Mutex<BTreeMap<usize, Memory>> = Mutex::new(BTreeMap::new());

/// Keeps it until it is freed.
pub(crate) fn keep(memory: Memory) -> *mut c_void {
    // The program's address was exposed when the memory was mapped.
    let address = memory.range().start as usize;
    let mut held = HELD.lock().unwrap_or_else(PoisonError::into_inner);
    held.insert(address, memory);
    ptr::with_exposed_provenance_mut(address)
}

/// Frees what [`keep`] returned.
pub(crate) fn free(memory: *mut c_void) -> Outcome<()> {
    if memory.is_null() {
        let text = "memory is NULL: check what hither_alloc() returned";
        return Err(Failure::new(HITHER_EFAULT, text));
    }
    let mut held = HELD.lock().unwrap_or_else(PoisonError::into_inner);
    let taken = held.remove(&memory.addr());
    // Unmapping takes a while, and others need not wait for it.
    drop(held);
    taken.map(drop).ok_or_else(|| {
        let text = format!(
            "{memory:p} is no memory of hither_alloc(), or is freed already: pass what it returned"
        );
        Failure::new(HITHER_EINVAL, text)
    })
}
