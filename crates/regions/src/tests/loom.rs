//! Every order in which callers and workers can meet, as far as loom can tell: up to three preemptions, and every
//! value that the memory model lets a load return.
//!
//! `RUSTFLAGS="--cfg loom" cargo test --release -p hither-regions --lib --target-dir target/loom`
//!
//! Each of these was tried, and is found: `Relaxed` instead of `Release` in `push`, instead of `Acquire` in `take` and in
//! `has_arrived`; no wake; a wake where the inbox was empty instead of asleep; going to sleep by a swap; a worker that
//! answers nobody while it waits; the visit changed after its push; `next` set after the exchange; taking by a load
//! and a store. (A list that loses what was taken before is found by `order`, as it needs no other thread.) A lost wake
//! is a deadlock, at which loom ends the whole test program.
//!
//! Closures and their results are cells in loom's sight, and so are the fields of visits; each region has a cell that
//! its visits change without a lock. Loom fails a test where a cell is used by two threads at once, or by one that does
//! not see what was written last, and where all threads sleep.

use crate::patience::Patience;
use crate::protocol::{Desk, Inbox, Visit};
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread::{self, JoinHandle};

/// A region: an inbox, and what its visits change.
struct Place {
    inbox: Inbox,
    memory: UnsafeCell<u64>,
    patience: Patience,
}

// SAFETY: that the cell is used by one thread at a time is what loom checks.
unsafe impl Sync for Place {}
// SAFETY: as above.
unsafe impl Send for Place {}

/// What a visit does: adds to the memory, then visits the places that follow, and answers with what it found.
struct Frame<'a> {
    path: &'a [Arc<Place>],
    answer: UnsafeCell<u64>,
}

/// # Safety
/// `data` is a frame.
unsafe fn enter(data: *mut ()) {
    // SAFETY: as the caller vouches.
    let frame = unsafe { &*data.cast::<Frame<'_>>() };
    let (here, further) = frame.path.split_first().expect("a place");
    // SAFETY: loom fails the test where another thread may be at it.
    let found = here.memory.with_mut(|value| unsafe {
        *value += 1;
        *value
    });
    let mut answer = found;
    if !further.is_empty() {
        CALLER.with(|desk| {
            // SAFETY: this runs in `serve` of that desk.
            let desk = unsafe { &*desk.get() };
            answer += 100 * visit(further, Some(desk));
        });
    }
    // SAFETY: as above.
    frame.answer.with_mut(|value| unsafe { *value = answer });
}

loom::thread_local! {
    /// The worker's desk.
    static CALLER: std::cell::Cell<*const Desk<'static>> = std::cell::Cell::new(std::ptr::null());
}

fn visit(path: &[Arc<Place>], caller: Option<&Desk<'_>>) -> u64 {
    let frame = Frame {
        path,
        answer: UnsafeCell::new(0),
    };
    let visit = Visit::new(enter, (&raw const frame).cast_mut().cast());
    let to = &path[0];
    // SAFETY: the frame is not used before the answer; places have workers.
    unsafe { visit.make(&to.inbox, caller, &to.patience) };
    // SAFETY: loom fails the test where another thread may write it.
    frame.answer.with(|value| unsafe { *value })
}

/// A place with its worker.
fn place() -> (Arc<Place>, JoinHandle<()>) {
    let place = Arc::new(Place {
        inbox: Inbox::new(),
        memory: UnsafeCell::new(0),
        patience: Patience::new(0),
    });
    let own = Arc::clone(&place);
    let worker = thread::spawn(move || {
        let desk = Desk::new(&own.inbox);
        CALLER.with(|caller| caller.set((&raw const desk).cast()));
        desk.serve(None, &own.patience);
    });
    (place, worker)
}

fn end(place: Arc<Place>, worker: JoinHandle<()>, visits: u64) {
    let stop = Visit::stop();
    // SAFETY: it lives until the worker has ended.
    unsafe { Inbox::push(&raw const place.inbox, &stop) };
    worker.join().unwrap();
    // SAFETY: nobody else is left.
    assert_eq!(place.memory.with(|value| unsafe { *value }), visits);
}

fn model(preemptions: usize, body: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.max_branches = 10_000;
    builder.check(body);
}

#[test]
fn a_caller_finds_its_answer() {
    model(3, || {
        let (place, worker) = place();
        let path = [Arc::clone(&place)];
        // The same stack, and so the same address, twice.
        assert_eq!(visit(&path, None), 1);
        assert_eq!(visit(&path, None), 2);
        drop(path);
        end(place, worker, 2);
    });
}

#[test]
fn two_callers_are_answered_one_after_another() {
    model(2, || {
        let (place, worker) = place();
        let other = Arc::clone(&place);
        let caller = thread::spawn(move || visit(&[other], None));
        let own = visit(&[Arc::clone(&place)], None);
        let others = caller.join().unwrap();
        assert_eq!(own + others, 3);
        end(place, worker, 2);
    });
}

#[test]
fn regions_visit_each_other_in_a_circle() {
    model(2, || {
        let (one, first) = place();
        let (two, second) = place();
        let path = [Arc::clone(&one), Arc::clone(&two), Arc::clone(&one)];
        // The third visit is answered by the first's worker, beneath which the first waits.
        assert_eq!(visit(&path, None), 1 + 100 * (1 + 100 * 2));
        drop(path);
        end(one, first, 2);
        end(two, second, 1);
    });
}

#[test]
fn crossing_visits_do_not_wait_for_each_other() {
    model(2, || {
        let (one, first) = place();
        let (two, second) = place();
        let path = [Arc::clone(&two), Arc::clone(&one)];
        let caller = thread::spawn(move || visit(&path, None));
        visit(&[Arc::clone(&one), Arc::clone(&two)], None);
        caller.join().unwrap();
        end(one, first, 2);
        end(two, second, 2);
    });
}

/// The canary: an answer that is used before it is there is found.
#[test]
#[should_panic(expected = "Causality violation")]
fn an_answer_that_is_not_waited_for_is_found() {
    model(3, || {
        let (place, worker) = place();
        let path = [Arc::clone(&place)];
        let own = Arc::clone(&place);
        let other = thread::spawn(move || {
            // SAFETY: this is what loom shall find.
            own.memory.with(|value| unsafe { *value })
        });
        visit(&path, None);
        let _ = other.join();
        drop(path);
        end(place, worker, 1);
    });
}
