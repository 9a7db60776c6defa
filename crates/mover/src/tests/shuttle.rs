//! The whole service under shuttle: clients, workers, futures, cancelling and closing, over random
//! schedules.
//!
//! `RUSTFLAGS="--cfg shuttle" cargo test --release -p hither-mover --lib --target-dir
//! target/shuttle`. `HITHER_SCHEDULES` sets how many schedules each test takes. A failure prints a
//! schedule that `shuttle::replay` takes.
//!
//! Threads, locks, sleeps and shared words are shuttle's; memory is sequentially consistent here,
//! which is why loom looks at the queues besides. A sleep never times out, so that a lost wake-up
//! is a deadlock, which shuttle reports.

use crate::backend::{Action, Backend, Job, Outcome, Unavailable};
use crate::record::Status;
use crate::service::{Close, Config, Mover, Notify};
use hither_core::ids::NodeId;
use shuttle::scheduler::{PctScheduler, RandomScheduler};
use shuttle::sync::Mutex;
use shuttle::thread;
use std::sync::Arc;

/// Schedules of each test by each of two schedulers: with seven tests 168,000 in all.
const SCHEDULES: usize = 12_000;
const PAGE: usize = 4096;

fn check(body: impl Fn() + Send + Sync + 'static) {
    let schedules = std::env::var("HITHER_SCHEDULES")
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(SCHEDULES);
    let body = Arc::new(body);
    let again = Arc::clone(&body);
    let random = shuttle::Runner::new(RandomScheduler::new(schedules), Default::default());
    assert_eq!(random.run(move || body()), schedules);
    // Few switches, at the worst places (Burckhardt and others, ASPLOS 2010).
    let pct = shuttle::Runner::new(PctScheduler::new(3, schedules), Default::default());
    assert_eq!(pct.run(move || again()), schedules);
}

/// Notes the number of every job: the page that it moves.
struct Noting(Arc<Mutex<Vec<u64>>>);

impl Backend for Noting {
    fn name(&self) -> &'static str {
        "noting"
    }

    fn probe(&self) -> Result<(), Unavailable> {
        Ok(())
    }

    fn serves_submitters(&self, _: &Action<'_>) -> bool {
        true
    }

    fn execute(&mut self, jobs: &[Job<'_>]) -> Vec<Outcome> {
        let mut noted = self.0.lock().unwrap();
        for job in jobs {
            let Action::Migrate { pages, .. } = &job.action else {
                panic!("only migrations are asked for");
            };
            noted.extend(pages.iter());
        }
        jobs.iter().map(|_| Outcome::default()).collect()
    }
}

struct Setting {
    mover: Arc<Mover>,
    noted: Arc<Mutex<Vec<u64>>>,
}

fn open(capacity: u16, workers: usize, notify: Notify) -> Setting {
    open_with(capacity, workers, notify, 0)
}

/// Requests up to `first_bytes` may be carried out by who submits them.
fn open_with(capacity: u16, workers: usize, notify: Notify, first_bytes: u64) -> Setting {
    let noted = Arc::new(Mutex::new(Vec::new()));
    let inner = Arc::clone(&noted);
    let config = Config {
        capacity,
        workers,
        notify,
        spin_us: 0,
        first_bytes,
        ..Config::default()
    };
    let mover = Mover::open(config, move |_| Box::new(Noting(Arc::clone(&inner))));
    Setting {
        mover: Arc::new(mover.expect("a mover")),
        noted,
    }
}

fn submit(mover: &Mover, number: u64) -> crate::RequestId {
    let request = mover.request().expect("a free request");
    let start = number as usize * PAGE;
    let request = request.migrate(start..start + PAGE, NodeId(0)).tag(number);
    mover.submit(request).expect("a valid request")
}

/// Ends the service and checks what must hold of any run: every request was completed once, those
/// not cancelled ran once, the others did not, and the colours add up.
fn close(setting: Setting, how: Close, mut completions: Vec<(u64, Status)>, count: u64) {
    let mover = Arc::into_inner(setting.mover).expect("every client has ended");
    let shared = Arc::clone(&mover.shared);
    completions.extend(mover.close(how).iter().map(|one| (one.tag, one.status)));
    // Only now, as each change of colour is counted a moment after it was made.
    let tally = &shared.instance.tally;
    let ends = tally.kicks.get() + tally.recoloured.get();
    let is_blue = shared.instance.is_blue();
    assert_eq!(1 + tally.blues.get(), ends + u64::from(is_blue), "colours");
    completions.sort_unstable_by_key(|one| one.0);
    let tags: Vec<u64> = completions.iter().map(|one| one.0).collect();
    assert_eq!(tags, (0..count).collect::<Vec<_>>(), "completed");
    let ran = completions.iter().filter(|one| one.1 == Status::Done);
    let ran: Vec<u64> = ran.map(|one| one.0).collect();
    let mut noted = setting.noted.lock().unwrap().clone();
    noted.sort_unstable();
    assert_eq!(noted, ran, "executed");
}

/// Several clients submit, cancel and wait; one or two workers.
fn clients_and_workers(workers: usize, first_bytes: u64) {
    check(move || {
        let setting = open_with(4, workers, Notify::Off, first_bytes);
        let clients: Vec<_> = (0..2u64)
            .map(|client| {
                let mover = Arc::clone(&setting.mover);
                thread::spawn(move || {
                    let mut found = Vec::new();
                    submit(&mover, client * 2);
                    let second = submit(&mover, client * 2 + 1);
                    let cancelled = client == 1 && mover.cancel(second);
                    for _ in 0..2 {
                        let one = mover.wait(None).expect("as many as were submitted");
                        found.push((one.tag, one.status));
                    }
                    (found, cancelled)
                })
            })
            .collect();
        let mut completions = Vec::new();
        let mut cancelled = 0;
        for client in clients {
            let (found, own) = client.join().unwrap();
            completions.extend(found);
            cancelled += usize::from(own);
        }
        let told = completions.iter().filter(|one| one.1 == Status::Cancelled);
        assert_eq!(told.count(), cancelled);
        close(setting, Close::Drain, completions, 4);
    });
}

#[test]
fn clients_and_a_worker() {
    clients_and_workers(1, 0);
}

#[test]
fn clients_that_carry_out_their_first_and_a_worker() {
    clients_and_workers(1, PAGE as u64);
}

#[test]
fn clients_and_two_workers() {
    clients_and_workers(2, 0);
}

/// Closing while requests are queued and running.
#[test]
fn closing_in_the_middle() {
    check(|| {
        for how in [Close::Drain, Close::Abandon] {
            let setting = open(3, 2, Notify::Off);
            let client = {
                let mover = Arc::clone(&setting.mover);
                thread::spawn(move || {
                    for number in 0..3 {
                        submit(&mover, number);
                    }
                })
            };
            client.join().unwrap();
            let noted = Arc::clone(&setting.noted);
            let mover = Arc::into_inner(setting.mover).expect("the client has ended");
            let rest = mover.close(how);
            assert_eq!(rest.len(), 3);
            let done = rest.iter().filter(|one| one.status == Status::Done).count();
            assert_eq!(noted.lock().unwrap().len(), done);
            assert!(how == Close::Abandon || done == 3);
        }
    });
}

/// A future is polled to its end, another is dropped at any moment.
#[test]
fn futures_kept_and_dropped() {
    check(|| {
        let setting = open(2, 1, Notify::Off);
        let clients: Vec<_> = (0..2usize)
            .map(|client| {
                let mover = Arc::clone(&setting.mover);
                thread::spawn(move || {
                    let request = mover.request().expect("one each");
                    let range = client * PAGE..(client + 1) * PAGE;
                    let request = request.migrate(range, NodeId(0));
                    let future = mover.submit_async(request).expect("a valid request");
                    if client == 0 {
                        let completion =
                            shuttle::future::block_on(future).expect("the same process");
                        assert_eq!(completion.status, Status::Done);
                    }
                })
            })
            .collect();
        for client in clients {
            client.join().unwrap();
        }
        let noted = Arc::clone(&setting.noted);
        let mover = Arc::into_inner(setting.mover).expect("the clients have ended");
        assert_eq!(mover.close(Close::Drain), []);
        let noted = noted.lock().unwrap();
        assert!(noted.contains(&0) && noted.len() <= 2);
    });
}

/// The loop of the paper's figure 2, in one thread and in two.
fn event_loops(threads: u64) {
    check(move || {
        let setting = open(4, 1, Notify::Eventfd);
        let found = Arc::new(Mutex::new(Vec::new()));
        let loops: Vec<_> = (0..threads)
            .map(|thread| {
                let (mover, found) = (Arc::clone(&setting.mover), Arc::clone(&found));
                thread::spawn(move || {
                    let each = 4 / threads;
                    for number in 0..each {
                        submit(&mover, thread * each + number);
                    }
                    let mut own = 0;
                    while own < each {
                        match mover.retrieve() {
                            Some(one) => {
                                found.lock().unwrap().push((one.tag, one.status));
                                own += 1;
                            }
                            None => {
                                let flag = mover.instance().notifier.flag();
                                flag.expect("asked for").poll();
                            }
                        }
                    }
                })
            })
            .collect();
        for one in loops {
            one.join().unwrap();
        }
        let completions = std::mem::take(&mut *found.lock().unwrap());
        close(setting, Close::Drain, completions, 4);
    });
}

#[test]
fn an_event_loop() {
    event_loops(1);
}

#[test]
fn two_event_loops() {
    event_loops(2);
}
