//! The functions of the interface that visit regions: work is taken to the cache that holds its memory.
//!
//! Each region has a line of its own: who visits one takes no lock that visitors of others take.

use crate::constants::{
    HITHER_EAGAIN, HITHER_EBUSY, HITHER_EFAULT, HITHER_EINVAL, HITHER_ENOMEM, HITHER_OK,
};
use crate::failure::{Failure, Outcome, number};
use crate::handles::{FreeLines, Kind};
use crate::lifetime;
use crate::placement;
use hither_regions::{Config, Domain, Error, Region};
use std::ffi::{c_char, c_int, c_void};
use std::sync::{Arc, PoisonError, RwLock};

/// Regions of a process at one time.
const MOST_REGIONS: usize = 1 << 10;
/// Numbers of regions begin again after so many uses of one line.
const GENERATIONS: c_int = 1 << 20;

static LINES: [Line; MOST_REGIONS] = [const { Line(RwLock::new(Place::NEW)) }; MOST_REGIONS];
static FREE: FreeLines = FreeLines::new(MOST_REGIONS);
const REGION: Kind = Kind {
    name: "region",
    made_by: "hither_region_create",
    ended_by: "hither_region_destroy",
};

/// In cache lines of its own.
#[repr(align(128))]
struct Line(RwLock<Place>);

struct Place {
    generation: c_int,
    region: Option<Arc<Region>>,
}

impl Place {
    const NEW: Self = Self {
        generation: 0,
        region: None,
    };
}

/// Makes a region: threads that are kept on the CPUs of a resource set, such as "domain:1", those that share the
/// second last-level cache, and that answer hither_region_run(). `workers` is how many; 0 is 1, which answers visits
/// one after another.
///
/// Returns a number above 0 for the other calls. Errors: HITHER_EFAULT (set is NULL), HITHER_EINVAL (the set cannot be
/// read, names what is not there, or has no CPUs that may be used; more than 1024 workers), HITHER_EAGAIN (there are 1024
/// regions), HITHER_ENOMEM (no memory or thread), HITHER_EFORK.
///
/// # Safety
/// `set` is NULL or a text with a final zero.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hither_region_create(set: *const c_char, workers: u32) -> c_int {
    number(|| {
        lifetime::begin()?;
        // SAFETY: as the caller of this function vouches.
        let text = unsafe { placement::read("set", set)? };
        let config = Config {
            workers: workers.max(1) as usize,
            ..Config::default()
        };
        let domain = Domain::of_set(&text).map_err(failure)?;
        keep(Region::with(domain, &config).map_err(failure)?)
    })
}

/// Has a thread of the region call `work` with `argument`, and returns when it has returned; `*result` is set to what it
/// returned, unless `result` is NULL. Makes no system call while both threads are awake. Within `work`, a call for the same
/// region runs in place, and one for another region lets this region's thread answer other callers meanwhile: a lock that
/// is held across such a call must not be taken by other visits to the same region.
///
/// `work` must return: neither longjmp(), pthread_exit(), cancellation nor an exception of C++ may leave it. A child
/// that is forked in `work` must call exec or _exit() there.
///
/// Returns 0. Errors: HITHER_EFAULT (work is NULL), HITHER_EBADF, HITHER_EFORK; `work` was not called then.
///
/// # Safety
/// `work` may be called with `argument` by another thread, and returns. `result` is NULL or a pointer to write to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hither_region_run(
    region: c_int,
    work: Option<unsafe extern "C" fn(argument: *mut c_void) -> *mut c_void>,
    argument: *mut c_void,
    result: *mut *mut c_void,
) -> c_int {
    number(|| {
        let found = find(region)?;
        let Some(work) = work else {
            let text = "work is NULL: pass a function";
            return Err(Failure::new(HITHER_EFAULT, text));
        };
        let argument = Passed(argument);
        let answer = found.run(move || {
            let Passed(argument) = { argument };
            // SAFETY: as the caller of this function vouches.
            Passed(unsafe { work(argument) })
        });
        if !result.is_null() {
            // SAFETY: the caller vouches for it.
            unsafe { result.write(answer.0) };
        }
        Ok(HITHER_OK)
    })
}

/// Ends a region and its threads.
///
/// Returns 0. Errors: HITHER_EBADF, HITHER_EBUSY (a thread is in hither_region_run() for it), HITHER_EFORK.
#[unsafe(no_mangle)]
pub extern "C" fn hither_region_destroy(region: c_int) -> c_int {
    number(|| destroy(region).map(|()| HITHER_OK))
}

/// A pointer of the program, which vouches that another thread may use it.
struct Passed(*mut c_void);

// SAFETY: whoever calls `hither_region_run` vouches for it.
unsafe impl Send for Passed {}

/// Keeps a region until it is destroyed; its number.
fn keep(region: Region) -> Outcome<c_int> {
    let index = FREE.take().ok_or_else(|| {
        let text = format!("there are {MOST_REGIONS} regions: destroy some");
        Failure::new(HITHER_EAGAIN, text)
    })?;
    let line = &LINES[index].0;
    let mut place = line.write().unwrap_or_else(PoisonError::into_inner);
    // From 1 on: no number is 0.
    place.generation = place.generation % (GENERATIONS - 1) + 1;
    place.region = Some(Arc::new(region));
    Ok(place.generation * MOST_REGIONS as c_int + index as c_int)
}

/// The line of a number, and the generation that the number means.
fn line(number: c_int) -> Outcome<(usize, c_int)> {
    lifetime::check()?;
    let whole = usize::try_from(number).map_err(|_| REGION.missing(number))?;
    Ok((whole % MOST_REGIONS, number / MOST_REGIONS as c_int))
}

fn find(number: c_int) -> Outcome<Arc<Region>> {
    let (index, generation) = line(number)?;
    let place = LINES[index].0.read();
    let place = place.unwrap_or_else(PoisonError::into_inner);
    let found = place
        .region
        .as_ref()
        .filter(|_| place.generation == generation);
    found.cloned().ok_or_else(|| REGION.missing(number))
}

fn destroy(number: c_int) -> Outcome<()> {
    let (index, generation) = line(number)?;
    let place = LINES[index].0.write();
    let mut place = place.unwrap_or_else(PoisonError::into_inner);
    if place.generation != generation {
        return Err(REGION.missing(number));
    }
    let region = place.region.take().ok_or_else(|| REGION.missing(number))?;
    // Nobody can find it meanwhile: who visits it holds it.
    match Arc::try_unwrap(region) {
        Ok(region) => {
            drop(place);
            drop(region);
            FREE.give_back(index);
            Ok(())
        }
        Err(visited) => {
            place.region = Some(visited);
            let text = format!("region {number} is visited: destroy it when all visits have ended");
            Err(Failure::new(HITHER_EBUSY, text))
        }
    }
}

fn failure(error: Error) -> Failure {
    let code = match error {
        Error::Linux(error) => return placement::failure(error),
        Error::Invalid(_) => HITHER_EINVAL,
        Error::System { ref source, .. } => match source.raw_os_error() {
            // sched_setaffinity(2): CPUs that may not be used.
            Some(22) => HITHER_EINVAL,
            _ => HITHER_ENOMEM,
        },
    };
    Failure::new(code, error.to_string())
}
