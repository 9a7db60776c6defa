//! The functions of the interface that replicate: one array, a copy on each node.

use crate::arrays;
use crate::calls::write_text;
use crate::constants::{
    HITHER_EAGAIN, HITHER_EBUSY, HITHER_EFORK, HITHER_EINVAL, HITHER_ENOMEM, HITHER_ETIMEDOUT,
    HITHER_OK, HITHER_REPLICATED_HUGE, HITHER_REPLICATED_INTERLEAVE, HITHER_REPLICATED_PARTIAL,
};
use crate::failure::{Failure, Outcome, invalid, missing, number};
use crate::types::{HitherReplicatedConfig, HitherView};
use crate::{lifetime, placement, structures};
use hither_core::set::CpuSet;
use hither_replica::{Array, Config, CopiedChunks, Error, HomeNode, Place, Places};
use std::ffi::{c_char, c_int, c_void};
use std::time::Duration;

/// Longer than any program.
const FOR_EVER: Duration = Duration::from_secs(1 << 30);

/// Makes an array of `bytes` zero bytes, of which each node with CPUs may have a copy. `config` may be NULL;
/// `size` is sizeof(struct hither_replicated_config) then as well. Threads read through
/// hither_replicated_reader(). Copies are made by hither_replicated_refresh(), or by a thread of the library
/// where `keep_ms` is set.
///
/// Returns a number above 0 for the other calls. Errors: HITHER_EINVAL (0 bytes, size, an unknown flag, a value
/// out of range), HITHER_E2BIG (a field is set that this version of the library does not know), HITHER_ENOMEM,
/// HITHER_EFORK.
///
/// # Safety
/// `config` is NULL or has `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hither_replicated_create(
    bytes: usize,
    config: *const HitherReplicatedConfig,
    size: usize,
) -> c_int {
    number(|| {
        lifetime::begin()?;
        // SAFETY: as the caller of this function vouches; all fields are numbers.
        let asked = unsafe {
            structures::read(
                config,
                size,
                size_of::<HitherReplicatedConfig>(),
                "hither_replicated_config",
            )?
        };
        let asked = asked.unwrap_or_default();
        let known =
            HITHER_REPLICATED_PARTIAL | HITHER_REPLICATED_INTERLEAVE | HITHER_REPLICATED_HUGE;
        if asked.flags & !known != 0 {
            return invalid(format!(
                "flags has the unknown bits {:#x}: clear them",
                asked.flags & !known
            ));
        }
        let places = places(asked.copies)?;
        let array = Array::filled(bytes, places, settings(&asked), |_| {}).map_err(failure)?;
        if asked.keep_ms > 0 {
            let period = Duration::from_millis(asked.keep_ms.into());
            array.keep(period).map_err(failure)?;
        }
        arrays::keep(array)
    })
}

/// Ends an array: its thread ends and its memory is given back. An epoch that is being prepared is lost.
///
/// Returns 0. Errors: HITHER_EBADF, HITHER_EBUSY (it has readers), HITHER_EFORK.
#[unsafe(no_mangle)]
pub extern "C" fn hither_replicated_destroy(array: c_int) -> c_int {
    number(|| {
        if let Ok(held) = arrays::find(array) {
            // A writer of this program keeps the array's memory.
            let held = held.writer.try_lock().map(|mut writer| writer.take());
            drop(held);
        }
        arrays::destroy(array).map(|()| HITHER_OK)
    })
}

/// Writes `bytes` bytes from `data` at `offset` of the array, and publishes them as the next epoch: readers see
/// all of them or none. Copies of the chunks that they are in are stale until they are made again. Waits at most
/// `timeout_ms` for other writers and for readers that hold an epoch before the current one; -1 for ever.
///
/// Returns 0. Errors: HITHER_EFAULT, HITHER_EINVAL (the bytes end behind the array, a time below -1),
/// HITHER_ETIMEDOUT, HITHER_EBUSY (an epoch is prepared), HITHER_ENOMEM (no second master), HITHER_EBADF,
/// HITHER_EFORK.
///
/// # Safety
/// `data` is NULL or has `bytes` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hither_replicated_write(
    array: c_int,
    offset: usize,
    data: *const c_void,
    bytes: usize,
    timeout_ms: c_int,
) -> c_int {
    number(|| {
        let held = arrays::find(array)?;
        if data.is_null() {
            return missing("data");
        }
        let slot = lock(&held)?;
        if slot.is_some() {
            let text = "an epoch is prepared: publish or abandon it before";
            return Err(Failure::new(HITHER_EBUSY, text));
        }
        if bytes > isize::MAX as usize {
            return invalid(format!("{bytes} bytes are more than memory has"));
        }
        // SAFETY: the caller vouches for so many bytes.
        let data = unsafe { std::slice::from_raw_parts(data.cast::<u8>(), bytes) };
        let mut writer = held
            .array
            .write_within(limit(timeout_ms)?)
            .map_err(failure)?;
        writer.write(offset, data).map_err(failure)?;
        writer.publish().map_err(failure)?;
        Ok(HITHER_OK)
    })
}

/// Prepares the next epoch: `*memory` is set to where the bytes of a range may be read and changed, as no reader
/// sees yet. May be called for several ranges before hither_replicated_publish(). Waits as
/// hither_replicated_write(), the first time. One thread at a time may prepare.
///
/// Returns 0. Errors: as hither_replicated_write().
///
/// # Safety
/// `memory` is NULL or a pointer to write to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hither_replicated_prepare(
    array: c_int,
    offset: usize,
    bytes: usize,
    timeout_ms: c_int,
    memory: *mut *mut c_void,
) -> c_int {
    number(|| {
        let held = arrays::find(array)?;
        if memory.is_null() {
            return missing("memory");
        }
        let limit = limit(timeout_ms)?;
        let Some(end) = offset.checked_add(bytes) else {
            return invalid("the range leaves the address space: mend offset or bytes");
        };
        let mut slot = lock(&held)?;
        let mut writer = match slot.take() {
            Some(writer) => writer,
            None => held.array.write_within(limit).map_err(failure)?,
        };
        let prepared = writer.bytes_mut(offset..end).map(<[u8]>::as_mut_ptr);
        // Kept even so: what was prepared before is not lost by a wrong range.
        *slot = Some(writer);
        // SAFETY: not null, and the caller vouches for it.
        unsafe { memory.write(prepared.map_err(failure)?.cast()) };
        Ok(HITHER_OK)
    })
}

/// Publishes what was prepared: readers find it from their next hither_replicated_read() on. Never waits for
/// readers. Memory of hither_replicated_prepare() is not the caller's any more.
///
/// Returns 0. Errors: HITHER_EINVAL (nothing is prepared), HITHER_EBUSY (another thread prepares),
/// HITHER_EBADF, HITHER_EFORK.
#[unsafe(no_mangle)]
pub extern "C" fn hither_replicated_publish(array: c_int) -> c_int {
    number(|| {
        let held = arrays::find(array)?;
        let Some(writer) = lock(&held)?.take() else {
            return invalid("nothing is prepared: call hither_replicated_prepare() before");
        };
        writer.publish().map_err(failure)?;
        Ok(HITHER_OK)
    })
}

/// Drops what was prepared: the current epoch stays.
///
/// Returns 0. Errors: as hither_replicated_publish().
#[unsafe(no_mangle)]
pub extern "C" fn hither_replicated_abandon(array: c_int) -> c_int {
    number(|| {
        let held = arrays::find(array)?;
        match lock(&held)?.take() {
            Some(_) => Ok(HITHER_OK),
            None => invalid("nothing is prepared: call hither_replicated_prepare() before"),
        }
    })
}

/// Makes copies that are missing or stale, by threads on all nodes at once, and returns when they are there.
/// Readers read meanwhile. What finds no room on its node, or no budget, is left: readers there use the master,
/// and hither_replicated_report() says so. Waits for readers as hither_replicated_write().
///
/// Returns 0. Errors: HITHER_ETIMEDOUT, HITHER_EINVAL, HITHER_ENOMEM, HITHER_EBADF, HITHER_EFORK.
#[unsafe(no_mangle)]
pub extern "C" fn hither_replicated_refresh(array: c_int, timeout_ms: c_int) -> c_int {
    number(|| {
        let held = arrays::find(array)?;
        held.array.refresh(limit(timeout_ms)?).map_err(failure)?;
        Ok(HITHER_OK)
    })
}

/// Gives all copies up, and their memory back once no reader holds them.
///
/// Returns 0. Errors: HITHER_ETIMEDOUT (a reader holds them: memory is given back by the next write or refresh),
/// HITHER_EINVAL, HITHER_EBADF, HITHER_EFORK.
#[unsafe(no_mangle)]
pub extern "C" fn hither_replicated_collapse(array: c_int, timeout_ms: c_int) -> c_int {
    number(|| {
        let held = arrays::find(array)?;
        held.array.collapse(limit(timeout_ms)?).map_err(failure)?;
        Ok(HITHER_OK)
    })
}

/// Writes to `text` what an array did: copies, memory, what was read locally, what was refused and why. At most
/// `size` bytes are written, a final zero included. `text` may be NULL where `size` is 0.
///
/// Returns the length of the whole text, as snprintf() does. Errors: HITHER_EFAULT, HITHER_EBADF, HITHER_EFORK.
///
/// # Safety
/// `text` is NULL or has room for `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hither_replicated_report(
    array: c_int,
    text: *mut c_char,
    size: usize,
) -> c_int {
    number(|| {
        let held = arrays::find(array)?;
        let report = held.array.report().map_err(failure)?;
        // SAFETY: as the caller of this function vouches.
        unsafe { write_text(&report.to_string(), text, size) }
    })
}

/// Opens a reader of an array for one thread. `place` is the number of a copy from 0 on, in the order of nodes;
/// -1 is the one nearest to the CPU that the thread runs on now.
///
/// Returns a number, 0 or more. Errors: HITHER_EBADF, HITHER_EINVAL (there is no such place), HITHER_EAGAIN (all
/// readers are in use), HITHER_EFORK.
#[unsafe(no_mangle)]
pub extern "C" fn hither_replicated_reader(array: c_int, place: c_int) -> c_int {
    number(|| match place {
        -1 => arrays::open(array, None),
        0.. => arrays::open(array, Some(place as usize)),
        _ => invalid(format!("place is {place}: it is -1, the nearest, or more")),
    })
}

/// Closes a reader; what it holds is let go.
///
/// Returns 0. Errors: HITHER_EBADF, HITHER_EBUSY (another thread uses it), HITHER_EFORK.
#[unsafe(no_mangle)]
pub extern "C" fn hither_replicated_close_reader(reader: c_int) -> c_int {
    number(|| arrays::close(reader).map(|()| HITHER_OK))
}

/// Holds the current epoch, and sets `*view` to where it is: `data` is all of it in one piece, the local copy
/// where that is complete, else the master; `chunks[i >> chunk_shift]` is where the chunk of byte i is, the local
/// copy where that chunk has one. Both are read until hither_replicated_done(). Where the reader holds an epoch
/// already, that is let go.
///
/// While an epoch is held, the second next one cannot be prepared.
///
/// Returns 0. Errors: HITHER_EFAULT, HITHER_EBADF, HITHER_EBUSY (another thread uses the reader), HITHER_EFORK.
///
/// # Safety
/// `view` is NULL or a structure to write to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hither_replicated_read(reader: c_int, view: *mut HitherView) -> c_int {
    number(|| {
        if view.is_null() {
            return missing("view");
        }
        let found = arrays::with_reader(reader, |open| {
            let tick = open.reader.pin().map_err(failure)?;
            open.tick = Some(tick);
            let guard = open.reader.view(tick);
            let found = HitherView {
                data: guard.whole().as_ptr().cast(),
                chunks: guard.table().as_ptr().cast(),
                bytes: guard.len() as u64,
                epoch: guard.epoch(),
                chunk_shift: guard.chunk_bytes().trailing_zeros(),
                is_local: u32::from(guard.is_local()),
            };
            // The reader holds on.
            std::mem::forget(guard);
            Ok(found)
        })?;
        // SAFETY: not null, and the caller vouches for it.
        unsafe { view.write(found) };
        Ok(HITHER_OK)
    })
}

/// Lets go what a reader holds.
///
/// Returns 0. Errors: HITHER_EINVAL (it holds nothing), HITHER_EBADF, HITHER_EBUSY (another thread uses the
/// reader), HITHER_EFORK.
#[unsafe(no_mangle)]
pub extern "C" fn hither_replicated_done(reader: c_int) -> c_int {
    number(|| {
        arrays::with_reader(reader, |open| match open.tick.take() {
            Some(_) => {
                open.reader.unpin();
                Ok(HITHER_OK)
            }
            None => invalid("the reader holds nothing: call hither_replicated_read() before"),
        })
    })
}

/// A place for each node, or so many on the first one.
fn places(copies: u32) -> Outcome<Places> {
    let here = Places::here().map_err(failure)?;
    if copies == 0 {
        return Ok(here);
    }
    let place = Place {
        node: here.list()[0].node,
        cpus: CpuSet::new(),
    };
    Places::chosen(vec![place; copies.min(1 << 16) as usize], 20).map_err(failure)
}

fn settings(asked: &HitherReplicatedConfig) -> Config {
    let usual = Config::default();
    let given = |number: u64| (number > 0).then_some(number);
    Config {
        which: match asked.flags & HITHER_REPLICATED_PARTIAL {
            0 => CopiedChunks::All,
            _ => CopiedChunks::Shared,
        },
        home: match asked.flags & HITHER_REPLICATED_INTERLEAVE {
            0 => usual.home,
            _ => HomeNode::Interleaved,
        },
        chunk_bytes: asked.chunk_bytes as usize,
        budget_bytes: given(asked.budget_bytes),
        reserve_bytes: given(asked.reserve_bytes),
        max_readers: match asked.readers {
            0 => usual.max_readers,
            readers => readers as usize,
        },
        workers: asked.workers as usize,
        huge: asked.flags & HITHER_REPLICATED_HUGE != 0,
        costs: None,
    }
}

/// Who prepares an epoch.
fn lock(
    held: &arrays::Held,
) -> Outcome<std::sync::MutexGuard<'_, Option<hither_replica::ArrayWriter>>> {
    use std::sync::TryLockError;
    match held.writer.try_lock() {
        Ok(slot) => Ok(slot),
        Err(TryLockError::Poisoned(slot)) => Ok(slot.into_inner()),
        Err(TryLockError::WouldBlock) => Err(Failure::new(
            HITHER_EBUSY,
            "another thread writes to this array now: one at a time may prepare or write",
        )),
    }
}

fn limit(timeout_ms: c_int) -> Outcome<Duration> {
    match timeout_ms {
        -1 => Ok(FOR_EVER),
        0.. => Ok(Duration::from_millis(timeout_ms.unsigned_abs().into())),
        _ => invalid(format!(
            "timeout_ms is {timeout_ms}: it is -1, for ever, or more"
        )),
    }
}

/// As codes of the interface.
pub(crate) fn failure(error: Error) -> Failure {
    let code = match error {
        Error::Linux(error) => return placement::failure(error),
        Error::Invalid(_) => HITHER_EINVAL,
        Error::Forked => HITHER_EFORK,
        Error::Busy { .. } => HITHER_ETIMEDOUT,
        Error::NoReader(_) => HITHER_EAGAIN,
        Error::System { .. } => HITHER_ENOMEM,
    };
    Failure::new(code, error.to_string())
}
