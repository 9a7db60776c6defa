//! Moves memory of this program while it computes: a few migrations and copies, waited for in the
//! end, each with what became of it.
//!
//!     cargo run --release -p hither-linux --example mover

use hither_core::ids::NodeId;
use hither_linux::backend::own::{self, Settings};
use hither_mover::{Close, Completion, Config, Mover, Priority, Race, Status};
use std::time::Duration;

const BYTES: usize = 256 << 10;
const PAGE: usize = 4096;

fn print(mover: &Mover, what: &str, done: &Completion) {
    println!(
        "{what} {}: {:?} by {}, {} pages moved, {} there already, {} stayed, {} us",
        done.tag,
        done.status,
        mover.backend_name(done.backend).unwrap_or("nobody"),
        done.moved_pages,
        done.already_there,
        done.refused_pages(),
        (done.queued_ns + done.moving_ns) / 1000,
    );
}

/// The example; also run by the tests.
pub fn main() {
    let (mover, chosen) = own::open(Config::default(), Settings::default()).expect("a mover");
    for (name, serves) in &chosen {
        match serves {
            Ok(()) => println!("{name} serves"),
            Err(unavailable) => println!("{name} does not serve: {unavailable}"),
        }
    }

    let from: Vec<u8> = (0..4 * BYTES).map(|byte| byte as u8).collect();
    let mut to = vec![0u8; 4 * BYTES];
    for tag in 0..4 {
        let offset = tag * BYTES;
        let request = mover.request().expect("a free request").tag(tag as u64);
        let source = from[offset..].as_ptr().addr();
        let target = to[offset..].as_mut_ptr().addr();
        let request = request.replicate(source, target, BYTES);
        mover.submit(request).expect("a request in order");
    }

    // Here the program computes.
    let sum: u64 = from.iter().map(|&byte| u64::from(byte)).sum();

    for _ in 0..4 {
        let done = mover.wait(Some(Duration::from_secs(20))).expect("in time");
        assert_eq!(done.status, Status::Done);
        print(&mover, "copy", &done);
    }
    assert_eq!(from, to);

    // Whole pages only; the bytes stay as they are, and may be used meanwhile.
    let first = to.as_ptr().addr().next_multiple_of(PAGE);
    for (tag, race) in [(0, Race::Recover), (1, Race::Block)] {
        let start = first + tag * BYTES;
        let request = mover.request().expect("a free request").tag(tag as u64);
        let request = request.migrate(start..start + BYTES, NodeId(0));
        let request = request.race(race).priority(Priority::High);
        mover.submit(request).expect("a request in order");
    }
    for _ in 0..2 {
        let done = mover.wait(Some(Duration::from_secs(20))).expect("in time");
        print(&mover, "migration", &done);
    }
    assert_eq!(from, to);
    let left = mover.close(Close::Drain);
    assert!(left.is_empty());
    println!("sum of the bytes: {sum}");
}
