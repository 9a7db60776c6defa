//! Every order in which readers can meet a writer, a builder of copies and a collapse, as far as loom can tell:
//! up to three preemptions, and every value that the memory model lets a load return.
//!
//! `RUSTFLAGS="--cfg loom" cargo test --release -p hither-replica --lib --target-dir target/loom`
//!
//! Each of these was tried, and is found: without either fence, without the second look of `pin`, `Relaxed` instead
//! of `Release` in `pin`, `unpin`, `publish` and the two stores of `set_copy`, a turn that does not wait.
//!
//! Memory is cells in loom's sight: two masters and one copy, each of one chunk. Loom fails a test where a cell
//! is written while it may be read, or read by who does not see what was written last.

use crate::protocol::Protocol;
use loom::cell::UnsafeCell;
use loom::sync::{Arc, Mutex};
use loom::thread;

/// Cells 0 and 1 are masters, 2 is the copy of place 0; an address is a cell's number.
const COPY: usize = 2;

struct World {
    protocol: Protocol,
    cells: [UnsafeCell<u64>; 3],
    /// The turn: whose holder has a copy that is valid, and which master is in front.
    turn: Mutex<(bool, usize)>,
}

// SAFETY: that cells are used by one thread at a time, or only read, is what loom checks.
unsafe impl Sync for World {}
// SAFETY: as above.
unsafe impl Send for World {}

impl World {
    fn new(readers: usize) -> Arc<Self> {
        Arc::new(Self {
            protocol: Protocol::new(readers, 1, 1, 0, |_| 0).expect("boxes"),
            cells: [1, 0, 0].map(UnsafeCell::new),
            turn: Mutex::new((false, 0)),
        })
    }

    fn read_cell(&self, index: usize) -> u64 {
        // SAFETY: loom fails the test where another thread may write it.
        self.cells[index].with(|cell| unsafe { *cell })
    }

    fn write_cell(&self, index: usize, value: u64) {
        // SAFETY: loom fails the test where another thread may be at it.
        self.cells[index].with_mut(|cell| unsafe { *cell = value });
    }

    /// Reads twice under one guard: both see the epoch that the guard says.
    fn read(&self, slot: usize) -> u64 {
        let tick = self.protocol.pin(slot).expect("no fork");
        let epoch = self.protocol.epoch(tick);
        assert_eq!(
            self.read_cell(self.protocol.address(tick, 0, 0)),
            epoch,
            "whole"
        );
        let is_complete = self.protocol.is_complete(tick, 0);
        let whole = match is_complete {
            true => COPY,
            false => self.protocol.master(tick),
        };
        assert_eq!(self.read_cell(whole), epoch, "whole");
        self.protocol.unpin(slot);
        epoch
    }

    /// Publishes the next epoch, unless readers of earlier ticks are in the way.
    fn write(&self) -> bool {
        let mut turn = self.turn.lock().unwrap();
        if !self.protocol.is_quiet() {
            return false;
        }
        let spare = 1 - turn.1;
        let epoch = self.protocol.epoch(self.protocol.tick()) + 1;
        self.write_cell(spare, epoch);
        *turn = (false, spare);
        self.protocol.publish(epoch, spare, |_| spare, |_, _| None);
        true
    }

    /// Copies, where there is no valid copy.
    fn build(&self) -> bool {
        let mut turn = self.turn.lock().unwrap();
        if turn.0 || !self.protocol.is_quiet() {
            return false;
        }
        let value = self.read_cell(turn.1);
        self.write_cell(COPY, value);
        self.protocol.set_copy(0, 0, COPY);
        turn.0 = true;
        true
    }

    /// Gives the copy up: a tick without a new epoch; then its memory is overwritten, as if it was given back.
    fn collapse(&self) {
        let mut turn = self.turn.lock().unwrap();
        if !turn.0 || !self.protocol.is_quiet() {
            return;
        }
        let front = turn.1;
        let epoch = self.protocol.epoch(self.protocol.tick());
        turn.0 = false;
        self.protocol.publish(epoch, front, |_| front, |_, _| None);
        if self.protocol.is_quiet() {
            self.write_cell(COPY, 0);
        }
    }
}

fn model(preemptions: usize, body: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.max_branches = 10_000;
    builder.check(body);
}

#[test]
fn epochs_are_whole_and_in_order() {
    model(3, || {
        let world = World::new(1);
        let other = Arc::clone(&world);
        let reader = thread::spawn(move || {
            let mut last = 0;
            for _ in 0..2 {
                let epoch = other.read(0);
                assert!(epoch >= last, "in order");
                last = epoch;
            }
        });
        let written = (0..3).filter(|_| world.write()).count();
        assert!(written >= 1, "the first write meets no earlier tick");
        reader.join().unwrap();
        assert_eq!(world.read(0), 1 + written as u64);
    });
}

#[test]
fn a_copy_is_found_with_its_bytes_and_used_again_when_nobody_reads_it() {
    model(2, || {
        let world = World::new(2);
        let readers: Vec<_> = (0..2)
            .map(|slot| {
                let world = Arc::clone(&world);
                thread::spawn(move || world.read(slot))
            })
            .collect();
        assert!(world.build(), "nothing is stale at first");
        world.write();
        world.build();
        world.write();
        for reader in readers {
            assert!(reader.join().unwrap() <= 3);
        }
    });
}

#[test]
fn a_copy_that_is_given_up_is_nobodys_before_it_is_overwritten() {
    model(3, || {
        let world = World::new(1);
        let other = Arc::clone(&world);
        let reader = thread::spawn(move || other.read(0) + other.read(0));
        assert!(world.build());
        world.collapse();
        world.build();
        assert_eq!(reader.join().unwrap(), 2);
    });
}

#[test]
fn a_writer_and_a_builder_take_turns() {
    model(2, || {
        let world = World::new(1);
        let other = Arc::clone(&world);
        let builder = thread::spawn(move || {
            other.build();
        });
        world.write();
        let epoch = world.read(0);
        builder.join().unwrap();
        assert_eq!(epoch, 2);
        world.build();
        assert_eq!(world.read(0), 2);
    });
}

/// The canary: a reader that does not pin is overtaken, and loom finds it.
#[test]
#[should_panic(expected = "Causality violation")]
fn a_reader_that_does_not_look_again_is_found() {
    model(3, || {
        let world = World::new(1);
        let other = Arc::clone(&world);
        let reader = thread::spawn(move || {
            // Reads without pinning.
            let tick = other.protocol.tick();
            let epoch = other.protocol.epoch(tick);
            assert_eq!(
                other.read_cell(other.protocol.address(tick, 0, 0)),
                epoch,
                "whole"
            );
        });
        world.write();
        world.write();
        reader.join().unwrap();
    });
}
