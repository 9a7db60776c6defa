//! What a forked child sees: guards of before are whole; all else is refused, and nothing waits for ever.

use super::coherence::{SOON, four_places};
use crate::{Array, Config, Error};
use std::time::Duration;

/// Runs `body` in a child, which must answer with true.
fn in_child(body: impl FnOnce() -> bool) {
    // SAFETY: the child calls what does not take locks that other threads may hold (this is what is tested) and
    // ends by _exit.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0);
    if pid == 0 {
        let good = std::panic::catch_unwind(std::panic::AssertUnwindSafe(body)).unwrap_or(false);
        // SAFETY: ends this process at once.
        unsafe { libc::_exit(if good { 0 } else { 1 }) };
    }
    let mut status = 0;
    // SAFETY: a child of ours, and a place for its status.
    assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
    assert_eq!(status, 0, "the child says no, or was ended by a signal");
}

#[test]
fn a_child_reads_through_guards_of_before_and_is_refused_others() {
    let config = Config {
        chunk_bytes: 1 << 16,
        ..Config::default()
    };
    let array = Array::filled(4 << 16, four_places(), config, |all| all.fill(1)).unwrap();
    array.keep(Duration::from_millis(1)).unwrap();
    array.refresh(SOON).unwrap();
    let mut reader = array.reader_at(1).unwrap();
    let mut other = array.reader_at(2).unwrap();
    let guard = reader.read().unwrap();
    // The next epoch is on its way while forking.
    let mut writer = array.write().unwrap();
    writer.write(0, &[2; 4 << 16]).unwrap();
    in_child(|| {
        let whole = guard.whole().iter().all(|byte| *byte == 1);
        let refused = matches!(other.read(), Err(Error::Forked))
            && matches!(array.reader(), Err(Error::Forked))
            && matches!(array.write(), Err(Error::Forked))
            && matches!(array.refresh(SOON), Err(Error::Forked))
            && matches!(array.collapse(SOON), Err(Error::Forked))
            && matches!(array.keep(SOON), Err(Error::Forked))
            && matches!(array.report(), Err(Error::Forked));
        whole && refused && matches!(writer.publish(), Err(Error::Forked))
    });
    // The parent goes on as if nothing had been.
    let mut writer = {
        drop(guard);
        array.write().unwrap_or_else(|error| panic!("{error}"))
    };
    writer.write(0, &[3]).unwrap();
    writer.publish().unwrap();
    assert_eq!(other.read().unwrap().whole()[0], 3);
}

#[test]
fn a_child_may_drop_everything_and_make_its_own() {
    let array = Array::filled(1 << 16, four_places(), Config::default(), |_| {}).unwrap();
    array.keep(Duration::from_secs(3600)).unwrap();
    let reader = array.reader().unwrap();
    in_child(move || {
        drop(reader);
        drop(array);
        let own = Array::filled(1 << 16, four_places(), Config::default(), |all| all.fill(4));
        let own = own.unwrap();
        let mut reader = own.reader_at(3).unwrap();
        own.refresh(SOON).unwrap().bytes == 3 << 16 && reader.read().unwrap().whole()[7] == 4
    });
}
