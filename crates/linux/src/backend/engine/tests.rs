use super::*;
use crate::backend::copy::{Copier, CopyBackend};
use hither_mover::Backend;

/// Unit tests run on a machine without an engine; `crates/lab/tests/engine.rs` boots one.
#[test]
fn without_an_engine_its_absence_has_a_reason_and_the_cpu_copies() {
    let why = EngineDriver::open().expect_err("no engine answers here");
    assert!(why.why.contains("no copy engine"), "{why}");
    assert!(why.remedy.contains("keystone2"), "{why}");
    assert!(EngineDriver::open_if(true).is_none() && EngineDriver::open_if(false).is_none());
    let mut copier = Copier::new(1, &[]).unwrap().with_engine(None);
    let (from, mut to) = (vec![7u8; 100_000], vec![0u8; 100_000]);
    // SAFETY: two vectors of one length.
    unsafe { copier.copy(from.as_ptr(), to.as_mut_ptr(), from.len()) };
    assert_eq!(from, to);
    let backend = CopyBackend::new(1, Vec::new()).unwrap().with_engine(None);
    assert_eq!(backend.name(), "copy");
}
