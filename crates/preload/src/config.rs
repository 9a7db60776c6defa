//! What was asked for, read once from the environment before the program's first instruction.

use crate::place::kernel;
use crate::{bootstrap, cxx, place, record, sanitizer, state, walk};
use hither_core::sites::{DEFAULT_LIMIT_BYTES, DEFAULT_THRESHOLD_BYTES, HEADER_BYTES, SLOT_BYTES};
use std::cell::UnsafeCell;
use std::ffi::CStr;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

/// Allocations below this many bytes are not looked at. 0 until the environment was read, so that
/// the one comparison also finds out whether the allocator behind is known yet.
pub static THRESHOLD: AtomicUsize = AtomicUsize::new(0);
/// Allocations below this many bytes are not recorded.
static RECORDED_FROM: AtomicUsize = AtomicUsize::new(usize::MAX);
/// Is anything recorded?
static RECORDS: AtomicBool = AtomicBool::new(false);
/// Slots of a log.
static SLOTS: AtomicU64 = AtomicU64::new(0);

// As in `hither_core::sites::environment`, with the closing zeros that getenv asks for.
const FOLDER_NAME: &CStr = c"HITHER_PRELOAD_DIR";
const LIMIT_NAME: &CStr = c"HITHER_PRELOAD_LIMIT";
const THRESHOLD_NAME: &CStr = c"HITHER_PRELOAD_THRESHOLD";
// As in `hither_core::shim::environment`.
const PLAN_NAME: &CStr = c"HITHER_PLACE_PLAN";
const BOARD_NAME: &CStr = c"HITHER_PLACE_BOARD";

/// Most that a log is allowed to become: its addresses are taken when it is begun.
const MOST_LIMIT_BYTES: u64 = 64 << 30;

/// Of the addresses that a limited process has left a log takes one part in so many, and this at least.
const LOG_SHARE: u64 = 16;
const LEAST_LIMIT_BYTES: u64 = 1 << 20;

/// Longest path of the folder: a file's name must fit behind it in what the kernel takes.
const FOLDER_BYTES: usize = 4000;

struct Folder(UnsafeCell<[u8; FOLDER_BYTES]>);
// SAFETY: written by `start` alone, before `RECORDS` lets anybody read it.
unsafe impl Sync for Folder {}
#[unsafe(link_section = ".bss.large")]
static FOLDER: Folder = Folder(UnsafeCell::new([0; FOLDER_BYTES]));

/// Is an allocation of this size to be handed on without a look?
#[inline(always)]
pub fn is_small(bytes: usize) -> bool {
    bytes < THRESHOLD.load(Ordering::Relaxed)
}

/// Is an allocation of this size recorded?
pub fn is_recorded(bytes: usize) -> bool {
    RECORDS.load(Ordering::Relaxed) && bytes >= RECORDED_FROM.load(Ordering::Relaxed)
}

/// The threshold of what is recorded, in bytes.
pub fn threshold_bytes() -> u64 {
    RECORDED_FROM.load(Ordering::Relaxed) as u64
}

/// Most slots of a log.
pub fn slots() -> u64 {
    SLOTS.load(Ordering::Relaxed)
}

/// The folder of the logs, without its closing zero.
pub fn folder() -> &'static [u8] {
    // SAFETY: `start` has written it and nobody writes it again.
    let bytes = unsafe { &*FOLDER.0.get() };
    let end = bytes.iter().position(|byte| *byte == 0);
    bytes.get(..end.unwrap_or(0)).unwrap_or(&[])
}

/// A variable of the environment, without any allocation.
fn variable(name: &CStr) -> Option<&'static CStr> {
    // SAFETY: called while the process has one thread, so that nobody changes the environment; the
    // answer is used before the program runs.
    let value = unsafe { libc::getenv(name.as_ptr()) };
    if value.is_null() {
        return None;
    }
    // SAFETY: getenv returns text that ends in a zero.
    Some(unsafe { CStr::from_ptr(value) })
}

/// A decimal number; nothing for anything else.
pub fn number(text: &[u8]) -> Option<u64> {
    if text.is_empty() {
        return None;
    }
    text.iter().try_fold(0u64, |sum, letter| {
        let digit = letter.checked_sub(b'0').filter(|digit| *digit < 10)?;
        sum.checked_mul(10)?.checked_add(u64::from(digit))
    })
}

fn number_of(name: &CStr, otherwise: u64) -> u64 {
    variable(name)
        .and_then(|text| number(text.to_bytes()))
        .unwrap_or(otherwise)
}

extern "C" fn start() {
    // A program begins with no error.
    let _errno = record::Errno::keep();
    bootstrap::resolve();
    cxx::resolve();
    let is_aside = sanitizer::is_there();
    let threshold = match is_aside {
        true => None,
        false => threshold_if_recording(),
    };
    if let Some(folder) = variable(FOLDER_NAME).filter(|_| is_aside) {
        sanitizer::leave_word(folder.to_bytes());
    }
    let bytes = threshold.unwrap_or(u64::MAX).max(1);
    let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
    RECORDED_FROM.store(bytes, Ordering::Relaxed);
    RECORDS.store(threshold.is_some(), Ordering::Relaxed);
    if threshold.is_none() {
        // Before anything is placed, from where on blocks are looked at.
        bootstrap::look_at_none();
    }
    if let Some(plan) = variable(PLAN_NAME) {
        place::start(plan.to_bytes(), variable(BOARD_NAME), is_aside);
    }
    THRESHOLD.store(bytes.min(place::least_heap()), Ordering::Relaxed);
}

/// The threshold; nothing where nothing is recorded.
fn threshold_if_recording() -> Option<u64> {
    let folder = variable(FOLDER_NAME)?.to_bytes();
    if folder.len() >= FOLDER_BYTES || folder.first() != Some(&b'/') || !state::wipe_on_fork() {
        return None;
    }
    // SAFETY: the process has one thread, and nobody reads before `RECORDS` is set.
    let own = unsafe { &mut *FOLDER.0.get() };
    if let Some(place) = own.get_mut(..folder.len()) {
        place.copy_from_slice(folder);
    }
    // The log's addresses are taken from the program's, where those are limited.
    let room = kernel::addresses_left().map_or(u64::MAX, |left| left / LOG_SHARE);
    let limit = number_of(LIMIT_NAME, DEFAULT_LIMIT_BYTES)
        .min(MOST_LIMIT_BYTES)
        .min(room.max(LEAST_LIMIT_BYTES));
    let slots = limit.saturating_sub(HEADER_BYTES as u64) / SLOT_BYTES as u64;
    SLOTS.store(slots, Ordering::Relaxed);
    walk::start();
    Some(number_of(THRESHOLD_NAME, DEFAULT_THRESHOLD_BYTES))
}

/// Run by the dynamic linker before the program's own constructors.
#[cfg(not(test))]
#[used]
#[unsafe(link_section = ".init_array")]
static CONSTRUCTOR: extern "C" fn() = start;
#[cfg(test)]
const _: extern "C" fn() = start;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_decimal_and_nothing_else() {
        assert_eq!(number(b"65536"), Some(65536));
        assert_eq!(number(b"0"), Some(0));
        for bad in [&b""[..], b"-1", b"64K", b"99999999999999999999"] {
            assert_eq!(number(bad), None);
        }
    }

    #[test]
    fn names_are_those_that_the_rest_of_hither_sets() {
        use hither_core::sites::environment;
        assert_eq!(FOLDER_NAME.to_str(), Ok(environment::FOLDER));
        assert_eq!(LIMIT_NAME.to_str(), Ok(environment::LIMIT));
        assert_eq!(THRESHOLD_NAME.to_str(), Ok(environment::THRESHOLD));
        use hither_core::shim::environment as place;
        assert_eq!(PLAN_NAME.to_str(), Ok(place::PLAN));
        assert_eq!(BOARD_NAME.to_str(), Ok(place::BOARD));
    }

    #[test]
    fn nothing_is_handed_on_or_recorded_before_the_environment_was_read() {
        assert!(!is_small(1) && !is_recorded(usize::MAX));
        assert_eq!(folder(), b"");
    }
}
