//! What several tests of the laboratory need.

pub mod turns;

use std::path::PathBuf;

/// A program as built with this test's profile.
pub fn built(name: &str) -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let path = test.parent().unwrap().parent().unwrap().join(name);
    assert!(
        path.is_file(),
        "{} is not built: run `cargo build --release`",
        path.display()
    );
    path
}
