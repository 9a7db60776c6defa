//! Replicated arrays that programs of C hold, and their readers, found by number.
//!
//! Arrays are looked up under a lock that readers do not take: each reader has a line of its own, as a lock that
//! threads of several nodes take in turns would cost more than what reads of a copy save.

use crate::constants::{HITHER_EAGAIN, HITHER_EBUSY};
use crate::failure::{Failure, Outcome};
use crate::handles::{FreeLines, Handles, Kind, locked};
use crate::lifetime;
use hither_replica::{Array, ArrayWriter, Reader};
use std::ffi::c_int;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, TryLockError};

/// Readers of a process at one time.
const MOST_READERS: usize = 1 << 12;
/// Handles of readers begin again after so many uses of one place.
const GENERATIONS: c_int = 1 << 18;

static ARRAYS: Handles<Held> = Handles::new(Kind {
    name: "replicated array",
    made_by: "hither_replicated_create",
    ended_by: "hither_replicated_destroy",
});
const READER: Kind = Kind {
    name: "open reader",
    made_by: "hither_replicated_reader",
    ended_by: "hither_replicated_close_reader",
};
static READERS: [OnceLock<Box<Line>>; MOST_READERS] = [const { OnceLock::new() }; MOST_READERS];
static FREE: FreeLines = FreeLines::new(MOST_READERS);

/// An array of a program.
pub(crate) struct Held {
    pub(crate) array: Array,
    /// The epoch that is being prepared.
    pub(crate) writer: Mutex<Option<ArrayWriter>>,
    readers: AtomicUsize,
}

/// In cache lines of its own.
#[repr(align(128))]
struct Line(Mutex<Place>);

#[derive(Default)]
struct Place {
    generation: c_int,
    reader: Option<Open>,
}

/// A reader of a program.
pub(crate) struct Open {
    pub(crate) reader: Reader,
    /// What it holds.
    pub(crate) tick: Option<u64>,
    array: Arc<Held>,
}

/// Keeps an array until it is destroyed; its number.
pub(crate) fn keep(array: Array) -> Outcome<c_int> {
    ARRAYS.keep(Held {
        array,
        writer: Mutex::new(None),
        readers: AtomicUsize::new(0),
    })
}

/// The array of a number.
pub(crate) fn find(number: c_int) -> Outcome<Arc<Held>> {
    ARRAYS.find(number)
}

/// Ends an array that nobody reads.
pub(crate) fn destroy(number: c_int) -> Outcome<()> {
    let held = ARRAYS.remove(number, |held| match held.readers.load(Ordering::Relaxed) {
        0 => Ok(()),
        readers => {
            let text = format!(
                "array {number} has {readers} readers: close them by hither_replicated_close_reader() before"
            );
            Err(Failure::new(HITHER_EBUSY, text))
        }
    })?;
    // Its keeper ends and its memory is unmapped without the lock.
    drop(held);
    Ok(())
}

/// Opens a reader of an array; its number.
pub(crate) fn open(array: c_int, place: Option<usize>) -> Outcome<c_int> {
    // Under the lock, so that the array cannot be destroyed meanwhile.
    ARRAYS.with(array, |held| {
        let reader = match place {
            None => held.array.reader(),
            Some(place) => held.array.reader_at(place),
        };
        let open = Open {
            reader: reader.map_err(crate::replicated::failure)?,
            tick: None,
            array: Arc::clone(held),
        };
        let index = FREE.take().ok_or_else(|| {
            let text = format!("all {MOST_READERS} readers are in use: close some");
            Failure::new(HITHER_EAGAIN, text)
        })?;
        held.readers.fetch_add(1, Ordering::Relaxed);
        let line = READERS[index].get_or_init(|| Box::new(Line(Mutex::default())));
        let mut place = locked(&line.0);
        place.generation = (place.generation + 1) % GENERATIONS;
        place.reader = Some(open);
        Ok(place.generation * MOST_READERS as c_int + index as c_int)
    })
}

/// The place of a reader, which nobody else uses meanwhile.
fn place(number: c_int) -> Outcome<MutexGuard<'static, Place>> {
    lifetime::check()?;
    let index = usize::try_from(number).map_err(|_| READER.missing(number))? % MOST_READERS;
    let line = READERS[index].get().ok_or_else(|| READER.missing(number))?;
    let place = match line.0.try_lock() {
        Ok(place) => place,
        Err(TryLockError::Poisoned(place)) => place.into_inner(),
        Err(TryLockError::WouldBlock) => {
            let text = format!("another thread uses reader {number}: open one for each thread");
            return Err(Failure::new(HITHER_EBUSY, text));
        }
    };
    match place.generation == number / MOST_READERS as c_int && place.reader.is_some() {
        true => Ok(place),
        false => Err(READER.missing(number)),
    }
}

/// Acts on a reader.
#[inline]
pub(crate) fn with_reader<T>(
    number: c_int,
    act: impl FnOnce(&mut Open) -> Outcome<T>,
) -> Outcome<T> {
    let mut place = place(number)?;
    let open = place
        .reader
        .as_mut()
        .ok_or_else(|| READER.missing(number))?;
    act(open)
}

/// Closes a reader, and lets go what it holds.
pub(crate) fn close(number: c_int) -> Outcome<()> {
    let mut place = place(number)?;
    let open = place.reader.take();
    drop(place);
    if let Some(open) = open {
        open.array.readers.fetch_sub(1, Ordering::Relaxed);
        drop(open);
        FREE.give_back(number as usize % MOST_READERS);
    }
    Ok(())
}
