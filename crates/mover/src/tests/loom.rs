//! Every order in which two clients and a worker can meet, as far as loom can tell: up to three
//! preemptions, and every value that the memory model lets a load return.
//!
//! `RUSTFLAGS="--cfg loom" cargo test --release -p hither-mover --lib --target-dir target/loom`
//!
//! Beside every slot stands a cell in loom's sight that its owner writes without any ordering: if
//! the queues ever gave a slot to two threads, or to one that does not see what the last did, loom
//! says so.

use crate::backend::Outcome;
use crate::instance::{Held, Instance, Taken};
use crate::layout::Colour;
use crate::record::{Asked, FLAG_HIGH, RequestId, Status};
use crate::region::Region;
use crate::sync::quietly;
use crate::{free_list, notify, queue, staging};
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::Ordering;
use loom::thread;

/// One value per slot, for whoever owns the slot.
struct Cells(Vec<UnsafeCell<u64>>);

// SAFETY: that the cells are used by one thread at a time is what loom checks.
unsafe impl Sync for Cells {}

impl Cells {
    fn new(count: u16) -> Self {
        Self((0..count).map(|_| UnsafeCell::new(0)).collect())
    }

    fn write(&self, index: u16, value: u64) {
        // SAFETY: loom fails the test where another thread may be at the cell.
        self.0[usize::from(index)].with_mut(|cell| unsafe { *cell = value });
    }

    fn read(&self, index: u16) -> u64 {
        // SAFETY: as above.
        self.0[usize::from(index)].with(|cell| unsafe { *cell })
    }
}

/// Preemptions of the models that take minutes: 2, or 3 where `HITHER_MODELS=long` asks for it.
fn most() -> usize {
    match std::env::var("HITHER_MODELS").as_deref() {
        Ok("long") => 3,
        _ => 2,
    }
}

fn model(preemptions: usize, body: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.max_branches = 10_000;
    let counted = std::sync::Arc::new(std::sync::atomic::AtomicU64::new(0));
    let counter = std::sync::Arc::clone(&counted);
    builder.check(move || {
        counter.fetch_add(1, Ordering::Relaxed);
        body();
    });
    println!("{} executions", counted.load(Ordering::Relaxed));
}

fn region(slots: u16) -> Region {
    Region::new(slots).expect("boxes")
}

/// Two clients take and return slots while a third thread returns one. The client that takes two
/// at a time is what a list without tags cannot bear.
fn free_list_of(slots: u16, publish: Ordering) {
    model(3, move || {
        let shared = Arc::new((region(slots), Cells::new(slots)));
        let own = |shared: &(Region, Cells)| {
            let index = free_list::pop(&shared.0)?;
            shared.1.write(index, 1);
            Some(index)
        };
        let put = move |shared: &(Region, Cells), index| {
            shared.1.write(index, 2);
            free_list::push_with(&shared.0, index, publish);
        };
        let held = own(&shared).expect("all are free");
        let clients: Vec<_> = [2, 1]
            .into_iter()
            .map(|count| {
                let shared = Arc::clone(&shared);
                thread::spawn(move || {
                    let mut owned = Vec::new();
                    for _ in 0..count {
                        owned.extend(own(&shared));
                    }
                    for index in owned {
                        put(&shared, index);
                    }
                })
            })
            .collect();
        put(&shared, held);
        for client in clients {
            client.join().unwrap();
        }
        // All are there again, each once.
        let mut found: Vec<u16> = std::iter::from_fn(|| own(&shared)).collect();
        found.sort_unstable();
        assert_eq!(found, (0..slots).collect::<Vec<_>>());
    });
}

#[test]
fn free_list_of_two() {
    free_list_of(2, Ordering::Release);
}

#[test]
fn free_list_of_three() {
    free_list_of(3, Ordering::Release);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn free_list_with_a_broken_ordering_is_found() {
    free_list_of(2, Ordering::Relaxed);
}

/// Two clients push, the server takes all, again and again: every request arrives once, with what
/// its client wrote, and those of one client in order.
fn staging_with(publish: Ordering) {
    const EACH: u16 = 2;
    model(3, move || {
        let shared = Arc::new((region(2 * EACH), Cells::new(2 * EACH)));
        let clients: Vec<_> = (0..2)
            .map(|client| {
                let shared = Arc::clone(&shared);
                thread::spawn(move || {
                    for index in client * EACH..(client + 1) * EACH {
                        shared.1.write(index, u64::from(index) + 1);
                        staging::push_with(&shared.0, index, publish);
                    }
                })
            })
            .collect();
        let mut found = Vec::new();
        let drain = |found: &mut Vec<u16>| {
            let Some(newest) = staging::take_all(&shared.0) else {
                return;
            };
            let mut current = Some(staging::reverse(&shared.0, newest));
            while let Some(index) = current {
                let written = shared.1.read(index);
                assert_eq!(written, u64::from(index) + 1, "not what its client wrote");
                found.push(index);
                current = staging::after(&shared.0, index);
            }
        };
        drain(&mut found);
        drain(&mut found);
        for client in clients {
            client.join().unwrap();
        }
        drain(&mut found);
        for client in 0..2 {
            let own: Vec<u16> = found
                .iter()
                .copied()
                .filter(|i| i / EACH == client)
                .collect();
            let expected: Vec<u16> = (client * EACH..(client + 1) * EACH).collect();
            assert_eq!(own, expected, "of {found:?}");
        }
    });
}

#[test]
fn staging_hands_over_every_request_once() {
    staging_with(Ordering::Release);
}

#[test]
#[should_panic(expected = "not what its client wrote")]
fn staging_with_a_broken_ordering_is_found() {
    staging_with(Ordering::Relaxed);
}

/// The colour changes only while nothing is staged, and a push learns the colour it met.
#[test]
fn colour_and_pushes_are_one() {
    model(3, || {
        let region = Arc::new(region(2));
        let clients: Vec<_> = (0..2)
            .map(|index| {
                let region = Arc::clone(&region);
                thread::spawn(move || staging::push(&region, index))
            })
            .collect();
        let before = staging::set_colour(&region, Colour::Red);
        let met: Vec<Colour> = clients.into_iter().map(|c| c.join().unwrap()).collect();
        match before {
            // Both came later: both met red.
            Some(before) => {
                assert_eq!(before, Colour::Blue);
                assert_eq!(met, [Colour::Red; 2]);
            }
            // One was there: it met blue, and so the other did.
            None => assert_eq!(met, [Colour::Blue; 2]),
        }
    });
}

/// Two threads enqueue, two dequeue.
#[test]
fn queue_hands_over_every_request_once() {
    model(3, || {
        let shared = Arc::new((region(2), Cells::new(2)));
        let clients: Vec<_> = (0..2)
            .map(|index| {
                let shared = Arc::clone(&shared);
                thread::spawn(move || {
                    shared.1.write(index, 7);
                    let ends = &shared.0.header().normal;
                    queue::enqueue(&shared.0, ends, index);
                })
            })
            .collect();
        let take = |shared: &(Region, Cells)| {
            let index = queue::dequeue(&shared.0, &shared.0.header().normal)?;
            assert_eq!(shared.1.read(index), 7);
            shared.1.write(index, 8);
            // Into another queue, by the node of the old dummy.
            queue::enqueue(&shared.0, &shared.0.header().done, index);
            Some(index)
        };
        let mut found: Vec<u16> = take(&shared).into_iter().collect();
        for client in clients {
            client.join().unwrap();
        }
        found.extend(std::iter::from_fn(|| take(&shared)));
        found.sort_unstable();
        assert_eq!(found, [0, 1]);
        for _ in 0..2 {
            let index = queue::dequeue(&shared.0, &shared.0.header().done);
            assert_eq!(shared.1.read(index.unwrap()), 8);
        }
    });
}

fn asked(tag: u64) -> Asked {
    Asked {
        flags: if tag == 1 { FLAG_HIGH } else { 0 },
        from: 0,
        to: 1 << 20,
        bytes: 1,
        tag,
    }
}

struct Whole {
    instance: Instance,
    cells: Cells,
}

impl Whole {
    fn new(slots: u16) -> Arc<Self> {
        Self::of(quietly(|| Instance::new(slots, 1, false)), slots)
    }

    fn of(instance: std::io::Result<Instance>, slots: u16) -> Arc<Self> {
        Arc::new(Self {
            instance: instance.expect("boxes"),
            cells: Cells::new(slots),
        })
    }

    fn submit(&self, tag: u64) -> RequestId {
        let held = self.instance.allocate().expect("a free slot");
        self.cells.write(held.index, tag);
        self.instance.submit(held, &asked(tag), 0, false).unwrap()
    }

    /// Executes and completes a request; its cell shows that nobody did before.
    fn serve(&self, taken: &Taken) {
        assert_eq!(self.cells.read(taken.index), taken.asked.tag);
        self.cells.write(taken.index, taken.asked.tag + 100);
        let outcome = Outcome::default();
        let status = self.instance.complete(taken, &outcome, 0, 0);
        assert_eq!(status, Status::Done);
        self.instance.announce();
    }

    /// A worker's loop, until it has served so many.
    fn work(&self, count: usize) {
        let mut served = 0;
        while served < count {
            let rings = self.instance.rings();
            self.instance.flush();
            let before = served;
            while let Some(taken) = self.instance.take() {
                self.serve(&taken);
                served += 1;
            }
            if served == before {
                self.instance.rest(rings);
            }
        }
        assert_eq!(served, count);
    }

    /// Every time that staging was blue, from the start on, was ended by one kick or by a worker
    /// that found itself awake.
    fn check_kicks(&self) {
        let tally = &self.instance.tally;
        let ends = tally.kicks.get() + tally.recoloured.get() + u64::from(self.instance.is_blue());
        assert_eq!(ends, 1 + tally.blues.get());
    }

    /// Everything is complete, once.
    fn check_completions(&self, tags: &[u64]) {
        let mut found = Vec::new();
        while let Some(completion) = self.instance.retrieve() {
            assert_eq!(self.cells.read(completion.id.index()), completion.tag + 100);
            found.push(completion.tag);
        }
        found.sort_unstable();
        assert_eq!(found, tags);
    }
}

/// No worker yet: of two clients that submit to a blue queue one kicks, and both requests are
/// where a worker looks.
#[test]
fn one_kick_for_two_clients() {
    model(3, || {
        let whole = Whole::new(2);
        let clients: Vec<_> = (1..=2)
            .map(|tag| {
                let whole = Arc::clone(&whole);
                thread::spawn(move || whole.submit(tag))
            })
            .collect();
        for client in clients {
            client.join().unwrap();
        }
        assert_eq!(whole.instance.tally.kicks.get(), 1);
        assert_eq!(whole.instance.rings(), 1);
        assert!(!whole.instance.is_blue());
        whole.work(2);
        whole.check_completions(&[1, 2]);
        whole.check_kicks();
    });
}

/// Submits what is held already, from a thread of its own.
fn client(whole: &Arc<Whole>, held: Held, tag: u64) -> thread::JoinHandle<()> {
    let whole = Arc::clone(whole);
    thread::spawn(move || {
        whole.cells.write(held.index, tag);
        whole.instance.submit(held, &asked(tag), 0, false).unwrap();
    })
}

/// Flushes and takes what there is; a request's cell shows that nobody took it before.
fn take_all(whole: &Whole, served: &mut Vec<u64>) {
    whole.instance.flush();
    while let Some(taken) = whole.instance.take() {
        assert_eq!(whole.cells.read(taken.index), taken.asked.tag);
        whole.cells.write(taken.index, 0);
        served.push(taken.asked.tag);
    }
}

/// The hand-over: two clients submit while the worker, if `awake`, takes what there is, and goes to
/// sleep. If nobody rings after it looked at the bell, it has everything.
fn hand_over(awake: bool) {
    model(most(), move || {
        let whole = Whole::new(2);
        let instance = &whole.instance;
        let held = [(); 2].map(|()| instance.allocate().expect("a free slot"));
        if awake {
            staging::set_colour(&instance.region, Colour::Red);
            instance.tally.recoloured.add(1);
        }
        let clients = [2, 3].map(|tag| client(&whole, held[tag as usize - 2], tag));
        let mut served = Vec::new();
        let rings = instance.rings();
        if awake {
            take_all(&whole, &mut served);
        }
        let sleeps = instance.make_blue() && instance.is_idle();
        for client in clients {
            client.join().unwrap();
        }
        let rung = instance.rings() != rings;
        if sleeps && !rung {
            assert_eq!(served.len(), 2, "slept past a request");
            assert!(instance.is_blue());
        }
        whole.check_kicks();
        take_all(&whole, &mut served);
        served.sort_unstable();
        assert_eq!(served, [2, 3]);
    });
}

#[test]
fn two_clients_hand_over_to_a_worker_that_falls_asleep() {
    hand_over(true);
}

#[test]
fn two_clients_hand_over_to_a_worker_about_to_sleep() {
    hand_over(false);
}

/// Submission to completion with real sleeping: a lost wake-up is a deadlock, which loom reports.
fn whole(clients: u64, each: u64, preemptions: usize) {
    let slots = (clients * each) as u16;
    model(preemptions, move || {
        let whole = Whole::new(slots);
        let clients: Vec<_> = (0..clients)
            .map(|client| {
                let whole = Arc::clone(&whole);
                thread::spawn(move || {
                    for request in 0..each {
                        whole.submit(client * each + request + 1);
                    }
                })
            })
            .collect();
        whole.work(slots.into());
        for client in clients {
            client.join().unwrap();
        }
        whole.check_completions(&(1..=u64::from(slots)).collect::<Vec<_>>());
        whole.check_kicks();
    });
}

#[test]
fn one_client_of_two_requests_and_a_worker() {
    whole(1, 2, most());
}

/// From allocation to retrieval there are too many orders of three threads; shuttle goes on there.
#[test]
fn two_clients_and_a_worker() {
    whole(2, 1, 1);
}

/// The loop of the paper's figure 2 never sleeps past a completion: `retrieve`, and `poll()` where
/// it found nothing.
#[test]
fn polling_sleeps_past_nothing() {
    model(3, || {
        let whole = Whole::of(Instance::new(2, 1, true), 2);
        whole.submit(1);
        whole.submit(2);
        let worker = {
            let whole = Arc::clone(&whole);
            thread::spawn(move || whole.work(2))
        };
        let mut found = 0;
        while found < 2 {
            let instance = &whole.instance;
            let completion = match instance.retrieve() {
                None => {
                    let look = || instance.retrieve();
                    let header = instance.region.header();
                    instance.notifier.found_nothing(header, look)
                }
                Some(completion) => {
                    instance.notifier.found();
                    Some(completion)
                }
            };
            match completion {
                Some(_) => found += 1,
                None => instance.notifier.flag().expect("eventfd").poll(),
            }
        }
        worker.join().unwrap();
    });
}

/// Who waits for two completions sleeps past neither, whichever way the worker that finds one too
/// few arms again: a lost wake-up is a deadlock, which loom reports.
#[test]
fn waiting_for_two_sleeps_past_none() {
    model(most(), || {
        let whole = Whole::new(2);
        for tag in [1, 2] {
            whole.submit(tag);
        }
        whole.instance.flush();
        let workers = [(); 2].map(|()| {
            let taken = whole.instance.take().expect("submitted");
            let whole = Arc::clone(&whole);
            thread::spawn(move || whole.serve(&taken))
        });
        let (header, notifier) = (whole.instance.region.header(), &whole.instance.notifier);
        loop {
            let rings = notifier.rings(header);
            notifier.arm_waiting(header, 2);
            if notify::completed(header) >= 2 {
                break;
            }
            header.completion_bell.0.wait(rings, None);
        }
        whole.check_completions(&[1, 2]);
        for worker in workers {
            worker.join().unwrap();
        }
    });
}
