//! Replicated arrays that programs of C hold, and their readers, found by number.
//!
//! Arrays are looked up under a lock that readers do not take: each reader has a line of its own, as a lock that
//! threads of several nodes take in turns would cost more than what reads of a copy save.

use crate::constants::{HITHER_EAGAIN, HITHER_EBADF, HITHER_EBUSY};
use crate::failure::{Failure, Outcome};
use crate::lifetime;
use hither_replica::{Array, ArrayWriter, Reader};
use std::collections::BTreeMap;
use std::ffi::c_int;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, TryLockError};

/// Readers of a process at one time.
const MOST_READERS: usize = 1 << 12;
/// Handles of readers begin again after so many uses of one place.
const GENERATIONS: c_int = 1 << 18;

static ARRAYS: Mutex<BTreeMap<c_int, Arc<Held>>> = Mutex::new(BTreeMap::new());
static NEXT: AtomicUsize = AtomicUsize::new(1);
static READERS: [OnceLock<Box<Line>>; MOST_READERS] = [const { OnceLock::new() }; MOST_READERS];
/// Places that were used and are free, and how many were ever used.
static FREE: Mutex<(Vec<usize>, usize)> = Mutex::new((Vec::new(), 0));

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

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Keeps an array until it is destroyed; its number.
pub(crate) fn keep(array: Array) -> Outcome<c_int> {
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let number = c_int::try_from(number).map_err(|_| {
        Failure::new(
            HITHER_EAGAIN,
            "no number for an array is left: keep arrays for longer",
        )
    })?;
    let held = Held {
        array,
        writer: Mutex::new(None),
        readers: AtomicUsize::new(0),
    };
    locked(&ARRAYS).insert(number, Arc::new(held));
    Ok(number)
}

/// The array of a number.
pub(crate) fn find(number: c_int) -> Outcome<Arc<Held>> {
    lifetime::check()?;
    let found = locked(&ARRAYS).get(&number).cloned();
    found.ok_or_else(|| no_array(number))
}

fn no_array(number: c_int) -> Failure {
    let text = format!(
        "{number} is no replicated array of this process: pass what hither_replicated_create() returned, before \
         hither_replicated_destroy()"
    );
    Failure::new(HITHER_EBADF, text)
}

/// Ends an array that nobody reads.
pub(crate) fn destroy(number: c_int) -> Outcome<()> {
    lifetime::check()?;
    let mut arrays = locked(&ARRAYS);
    let held = arrays.get(&number).ok_or_else(|| no_array(number))?;
    let readers = held.readers.load(Ordering::Relaxed);
    if readers > 0 {
        let text = format!(
            "array {number} has {readers} readers: close them by hither_replicated_close_reader() before"
        );
        return Err(Failure::new(HITHER_EBUSY, text));
    }
    let held = arrays.remove(&number);
    // Its keeper ends and its memory is unmapped without the lock.
    drop(arrays);
    drop(held);
    Ok(())
}

/// Opens a reader of an array; its number.
pub(crate) fn open(array: c_int, place: Option<usize>) -> Outcome<c_int> {
    lifetime::check()?;
    // Under the lock, so that the array cannot be destroyed meanwhile.
    let arrays = locked(&ARRAYS);
    let held = arrays.get(&array).ok_or_else(|| no_array(array))?;
    let reader = match place {
        None => held.array.reader(),
        Some(place) => held.array.reader_at(place),
    };
    let open = Open {
        reader: reader.map_err(crate::replicated::failure)?,
        tick: None,
        array: Arc::clone(held),
    };
    let mut free = locked(&FREE);
    let index = match free.0.pop() {
        Some(index) => index,
        None if free.1 < MOST_READERS => {
            free.1 += 1;
            free.1 - 1
        }
        None => {
            let text = format!("all {MOST_READERS} readers are in use: close some");
            return Err(Failure::new(HITHER_EAGAIN, text));
        }
    };
    drop(free);
    held.readers.fetch_add(1, Ordering::Relaxed);
    let line = READERS[index].get_or_init(|| Box::new(Line(Mutex::default())));
    let mut place = locked(&line.0);
    place.generation = (place.generation + 1) % GENERATIONS;
    place.reader = Some(open);
    Ok(place.generation * MOST_READERS as c_int + index as c_int)
}

fn no_reader(number: c_int) -> Failure {
    let text = format!(
        "{number} is no open reader: pass what hither_replicated_reader() returned, before \
         hither_replicated_close_reader()"
    );
    Failure::new(HITHER_EBADF, text)
}

/// The place of a reader, which nobody else uses meanwhile.
fn place(number: c_int) -> Outcome<MutexGuard<'static, Place>> {
    lifetime::check()?;
    let index = usize::try_from(number).map_err(|_| no_reader(number))? % MOST_READERS;
    let line = READERS[index].get().ok_or_else(|| no_reader(number))?;
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
        false => Err(no_reader(number)),
    }
}

/// Acts on a reader.
#[inline]
pub(crate) fn with_reader<T>(
    number: c_int,
    act: impl FnOnce(&mut Open) -> Outcome<T>,
) -> Outcome<T> {
    let mut place = place(number)?;
    let open = place.reader.as_mut().ok_or_else(|| no_reader(number))?;
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
        locked(&FREE).0.push(number as usize % MOST_READERS);
    }
    Ok(())
}
