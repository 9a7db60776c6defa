//! The service by its public interface, with backends that only pretend, or copy.

use hither_core::ids::{CpuId, NodeId};
use hither_core::plan::Refusal;
use hither_mover::{
    Action, Backend, Close, Completion, Config, Invalid, Job, Mover, Notify, OpenError, Outcome,
    OutcomeBuilder, Pages, Priority, Race, Raced, Status, SubmitError, Unavailable,
};
use std::collections::BTreeSet;
use std::future::Future;
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

const PAGE: usize = 4096;
/// Long enough for anything but a hang.
const PATIENCE: Option<Duration> = Some(Duration::from_secs(60));

/// What a test's backend does with its jobs.
type Behaviour = dyn Fn(&[Job<'_>]) -> Vec<Outcome> + Send + Sync;

struct Scripted(Arc<Behaviour>);

impl Backend for Scripted {
    fn name(&self) -> &'static str {
        "scripted"
    }

    fn probe(&self) -> Result<(), Unavailable> {
        Ok(())
    }

    fn serves_submitters(&self, action: &Action<'_>) -> bool {
        matches!(action, Action::Replicate { .. })
    }

    fn execute(&mut self, jobs: &[Job<'_>]) -> Vec<Outcome> {
        (self.0)(jobs)
    }
}

/// Every page moves.
fn all_moved(job: &Job<'_>) -> Outcome {
    let mut builder = OutcomeBuilder::new(job);
    match &job.action {
        Action::Migrate { pages, .. } => pages.iter().for_each(|page| builder.moved(page)),
        Action::Replicate { to, bytes, .. } => {
            builder.moved_many(to >> 12..((to + bytes - 1) >> 12) + 1);
            builder.figures().bytes = *bytes;
        }
    }
    builder.took(5);
    builder.finish()
}

fn open_with(
    config: Config,
    behaviour: impl Fn(&[Job<'_>]) -> Vec<Outcome> + Send + Sync + 'static,
) -> Mover {
    let behaviour: Arc<Behaviour> = Arc::new(behaviour);
    Mover::open(config, move |_| Box::new(Scripted(Arc::clone(&behaviour)))).expect("a mover")
}

fn open(config: Config) -> Mover {
    open_with(config, |jobs| jobs.iter().map(all_moved).collect())
}

fn small(capacity: u16) -> Config {
    Config {
        capacity,
        ..Config::default()
    }
}

fn submit(mover: &Mover, tag: u64) -> hither_mover::RequestId {
    let request = mover.request().expect("a free request");
    let request = request.migrate(PAGE..2 * PAGE, NodeId(1)).tag(tag);
    mover.submit(request).expect("a valid request")
}

/// A gate that holds the backend within a batch.
struct Gate {
    entered: Barrier,
    leave: Barrier,
}

impl Gate {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            entered: Barrier::new(2),
            leave: Barrier::new(2),
        })
    }
}

/// A mover whose first batch stays within its backend until the gate opens; the second value is
/// the tags, as addresses, in order of execution.
fn gated(config: Config) -> (Mover, Arc<Gate>, Arc<Mutex<Vec<u64>>>) {
    let gate = Gate::new();
    let order = Arc::new(Mutex::new(Vec::new()));
    let (inner, log) = (Arc::clone(&gate), Arc::clone(&order));
    let batches = AtomicUsize::new(0);
    let mover = open_with(config, move |jobs| {
        if batches.fetch_add(1, Ordering::Relaxed) == 0 {
            inner.entered.wait();
            inner.leave.wait();
        }
        for job in jobs {
            if let Action::Replicate { from, .. } = job.action {
                log.lock().unwrap().push(from);
            }
        }
        jobs.iter().map(all_moved).collect()
    });
    (mover, gate, order)
}

fn submit_from(mover: &Mover, from: usize, priority: Priority) -> hither_mover::RequestId {
    let request = mover.request().expect("a free request");
    let request = request.replicate(from, 1 << 30, 64).priority(priority);
    mover.submit(request).expect("a valid request")
}

#[test]
fn a_request_completes_with_its_figures() {
    let mover = open_with(small(4), |jobs| {
        let job = &jobs[0];
        assert_eq!(job.pid.0, std::process::id() as i32);
        assert_eq!(job.race, Race::Fail);
        let expected = Action::Migrate {
            pages: Pages::Run(16..24),
            to: NodeId(3),
        };
        assert_eq!(job.action, expected);
        let mut builder = OutcomeBuilder::new(job);
        builder.moved_many(16..20);
        builder.already_there();
        builder.refused_many(Refusal::Pinned, 2);
        builder.refused(Refusal::Busy);
        builder.took(77);
        let figures = builder.figures();
        figures.bytes = 4 << 12;
        figures.stall_ns = 9;
        figures.huge_kept = 1;
        figures.huge_split = 2;
        figures.raced = Some(Raced {
            address: 0x10_123,
            thread: 42,
        });
        vec![builder.finish()]
    });
    let request = mover.request().expect("a free request");
    let request = request
        .migrate(16 * PAGE..24 * PAGE, NodeId(3))
        .race(Race::Fail)
        .tag(0xfeed);
    let id = mover.submit(request).expect("a valid request");
    let completion = mover.wait(PATIENCE).expect("a completion");
    assert_eq!((completion.id, completion.tag), (id, 0xfeed));
    assert_eq!(completion.status, Status::Failed);
    assert_eq!((completion.moved_pages, completion.already_there), (4, 1));
    assert_eq!(completion.refused(Refusal::Pinned), 2);
    assert_eq!(completion.refused(Refusal::Busy), 1);
    assert_eq!(completion.refused_pages(), 3);
    assert_eq!((completion.bytes, completion.moving_ns), (4 << 12, 77));
    assert_eq!(completion.stall_ns, 9);
    assert_eq!((completion.huge_kept, completion.huge_split), (1, 2));
    let raced = completion.raced().expect("an access");
    assert_eq!((raced.address, raced.thread), (0x10_123, 42));
    assert_eq!(mover.backend_name(completion.backend), Some("scripted"));
    assert_eq!(mover.backend_name(200), None);
    let statistics = mover.statistics();
    assert_eq!((statistics.failed, statistics.done), (1, 0));
    assert_eq!(statistics.depths.free, 4);
}

#[test]
fn a_full_pool_says_so_and_retrieving_makes_room() {
    let mover = open(small(2));
    let (one, two) = (mover.request(), mover.request());
    assert!(one.is_some() && two.is_some() && mover.request().is_none());
    drop(one);
    submit(&mover, 1);
    assert!(mover.request().is_none());
    assert!(mover.wait(PATIENCE).is_some());
    assert!(mover.request().is_some());
}

#[test]
fn invalid_requests_come_back_with_a_reason() {
    let mover = open(small(1));
    let other = open(small(1));
    let reason = |request: hither_mover::Request<'_>| match mover.submit(request) {
        Ok(_) => panic!("it was taken"),
        Err(rejected) => {
            assert!(rejected.request.is_some());
            rejected.reason
        }
    };
    let request = || mover.request().expect("the only request is back again");
    assert_eq!(
        reason(request()),
        SubmitError::Invalid(Invalid::NothingAsked)
    );
    let odd = request().migrate(1..PAGE, NodeId(0));
    assert_eq!(reason(odd), SubmitError::Invalid(Invalid::Unaligned));
    let (start, end) = (2 * PAGE, PAGE);
    let backwards = request().migrate(start..end, NodeId(0));
    assert_eq!(reason(backwards), SubmitError::Invalid(Invalid::Empty));
    let nowhere = request().migrate(0..PAGE, NodeId(4096));
    assert_eq!(reason(nowhere), SubmitError::Invalid(Invalid::Node));
    let overlapping = request().replicate(0, 7, 8);
    assert_eq!(reason(overlapping), SubmitError::Invalid(Invalid::Overlap));
    let beyond = request().replicate(usize::MAX, 0, 8);
    assert_eq!(reason(beyond), SubmitError::Invalid(Invalid::Overflow));
    let foreign = other.request().expect("a free request");
    assert_eq!(
        reason(foreign.migrate(0..PAGE, NodeId(0))),
        SubmitError::Foreign
    );
    // Mended, it is taken.
    let rejected = mover.submit(request()).expect_err("nothing asked");
    let mended = rejected.request.expect("back").migrate(0..PAGE, NodeId(0));
    assert!(mover.submit(mended).is_ok());
}

#[test]
fn settings_out_of_range_are_refused() {
    let refused = |config| {
        Mover::open(config, |_| -> Box<dyn Backend + Send> {
            panic!("not asked for")
        })
        .expect_err("out of range")
    };
    assert!(matches!(refused(small(0)), OpenError::Capacity(0)));
    assert!(matches!(
        refused(small(40_000)),
        OpenError::Capacity(40_000)
    ));
    let workers = |workers| Config {
        workers,
        ..Config::default()
    };
    assert!(matches!(refused(workers(0)), OpenError::Workers(0)));
    assert!(matches!(refused(workers(1000)), OpenError::Workers(1000)));
    let batch = Config {
        batch_requests: 0,
        ..Config::default()
    };
    assert!(matches!(refused(batch), OpenError::Batch));
    let cpus = Config {
        cpus: vec![CpuId(5000)],
        ..Config::default()
    };
    assert!(matches!(refused(cpus), OpenError::Cpus(_)));
}

#[test]
fn workers_run_where_they_are_told() {
    let seen = Arc::new(Mutex::new(None));
    let inner = Arc::clone(&seen);
    let config = Config {
        cpus: vec![CpuId(0)],
        ..small(1)
    };
    let mover = open_with(config, move |jobs| {
        let set = rustix::thread::sched_getaffinity(None).expect("affinity");
        *inner.lock().unwrap() = Some((set.count(), set.is_set(0)));
        jobs.iter().map(all_moved).collect()
    });
    submit(&mover, 0);
    assert!(mover.wait(PATIENCE).is_some());
    assert_eq!(*seen.lock().unwrap(), Some((1, true)));
}

#[test]
fn high_priority_goes_first_and_the_rest_in_order() {
    let (mover, gate, order) = gated(small(8));
    submit_from(&mover, 1, Priority::Normal);
    gate.entered.wait();
    for (from, priority) in [
        (2, Priority::Normal),
        (3, Priority::High),
        (4, Priority::Normal),
        (5, Priority::High),
    ] {
        submit_from(&mover, from, priority);
    }
    gate.leave.wait();
    for _ in 0..5 {
        assert!(mover.wait(PATIENCE).is_some());
    }
    assert_eq!(*order.lock().unwrap(), [1, 3, 5, 2, 4]);
    // What queued up was one batch.
    assert_eq!(mover.statistics().batches, 2);
}

#[test]
fn a_cancelled_request_completes_and_does_not_run() {
    let (mover, gate, order) = gated(small(8));
    let running = submit_from(&mover, 1, Priority::Normal);
    gate.entered.wait();
    let queued = submit_from(&mover, 2, Priority::Normal);
    assert!(mover.cancel(queued));
    assert!(!mover.cancel(queued), "only once");
    assert!(!mover.cancel(running), "it has begun");
    assert!(!mover.cancel(hither_mover::RequestId::from_number(u64::MAX)));
    gate.leave.wait();
    let both = [(); 2].map(|()| mover.wait(PATIENCE).expect("a completion"));
    let cancelled = both.iter().find(|done| done.id == queued).expect("both");
    assert_eq!(cancelled.status, Status::Cancelled);
    assert_eq!(cancelled.refused(Refusal::Dropped), 1);
    assert_eq!(*order.lock().unwrap(), [1]);
    // Numbers of finished requests mean nothing any more.
    assert!(!mover.cancel(queued) && !mover.cancel(running));
}

#[test]
fn closing_drains_or_abandons() {
    for how in [Close::Drain, Close::Abandon] {
        let (mover, gate, order) = gated(small(8));
        submit_from(&mover, 1, Priority::Normal);
        gate.entered.wait();
        submit_from(&mover, 2, Priority::Normal);
        submit_from(&mover, 3, Priority::Normal);
        let closer = std::thread::spawn(move || mover.close(how));
        gate.leave.wait();
        let rest = closer.join().expect("closed");
        assert_eq!(rest.len(), 3);
        let executed = order.lock().unwrap().len();
        let done = rest.iter().filter(|one| one.status == Status::Done);
        assert_eq!(done.count(), executed);
        // What had begun finishes. What had not may have begun before the closing thread did.
        assert!(executed >= 1);
        assert!(how == Close::Abandon || executed == 3);
    }
}

#[test]
fn abandoned_requests_do_not_run() {
    let config = small(8);
    let never = |_| -> Box<dyn Backend + Send> {
        Box::new(Scripted(Arc::new(|_: &[Job<'_>]| -> Vec<Outcome> {
            panic!("nothing is to run")
        })))
    };
    let (mover, _server) = Mover::open_unserved(config, never).expect("a mover");
    submit(&mover, 1);
    submit(&mover, 2);
    let rest = mover.close(Close::Abandon);
    assert_eq!(rest.iter().map(|one| one.tag).collect::<Vec<_>>(), [1, 2]);
    assert!(rest.iter().all(|one| one.status == Status::Cancelled));
}

#[test]
fn a_backend_that_panics_is_replaced() {
    let calls = AtomicUsize::new(0);
    let made = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&made);
    let behaviour: Arc<Behaviour> = Arc::new(move |jobs: &[Job<'_>]| {
        match calls.fetch_add(1, Ordering::Relaxed) {
            0 => panic!("this panic is part of a test"),
            // A backend that forgets a job is no better.
            1 => Vec::new(),
            _ => jobs.iter().map(all_moved).collect(),
        }
    });
    let mover = Mover::open(small(4), move |number| {
        assert_eq!(number, 0);
        count.fetch_add(1, Ordering::Relaxed);
        Box::new(Scripted(Arc::clone(&behaviour)))
    })
    .expect("a mover");
    for _ in 0..2 {
        submit(&mover, 0);
        let completion = mover.wait(PATIENCE).expect("a completion all the same");
        assert_eq!(completion.status, Status::Failed);
        assert_eq!(completion.refused(Refusal::Busy), 1);
    }
    submit(&mover, 0);
    let completion = mover.wait(PATIENCE).expect("a completion");
    assert_eq!(completion.status, Status::Done);
    assert_eq!(mover.statistics().backend_panics, 2);
    assert_eq!(made.load(Ordering::Relaxed), 3);
}

#[test]
fn a_worker_that_dies_is_replaced_and_loses_no_request() {
    let calls = AtomicUsize::new(0);
    let made = AtomicUsize::new(0);
    let behaviour: Arc<Behaviour> = Arc::new(move |jobs: &[Job<'_>]| {
        assert!(
            calls.fetch_add(1, Ordering::Relaxed) > 0,
            "this panic is part of a test"
        );
        jobs.iter().map(all_moved).collect()
    });
    let mover = Mover::open(small(4), move |_| {
        // The second one is the replacement, which kills its thread.
        assert!(
            made.fetch_add(1, Ordering::Relaxed) != 1,
            "this panic is part of a test"
        );
        Box::new(Scripted(Arc::clone(&behaviour)))
    })
    .expect("a mover");
    submit(&mover, 1);
    let first = mover.wait(PATIENCE).expect("a completion all the same");
    assert_eq!((first.tag, first.status), (1, Status::Failed));
    submit(&mover, 2);
    let second = mover
        .wait(PATIENCE)
        .expect("a completion by another worker");
    assert_eq!((second.tag, second.status), (2, Status::Done));
    assert_eq!(mover.statistics().replaced_workers, 1);
}

#[test]
fn waiting_ends_after_its_time() {
    let mover = open(small(1));
    assert_eq!(mover.wait(Some(Duration::ZERO)), None);
    assert_eq!(mover.wait(Some(Duration::from_millis(5))), None);
}

#[test]
fn submissions_to_an_awake_worker_do_not_kick() {
    let config = Config {
        // Longer than any pause of this thread.
        spin_us: 60_000_000,
        ..small(8)
    };
    let mover = open(config);
    for tag in 0..10_000 {
        submit(&mover, tag);
        loop {
            if let Some(completion) = mover.retrieve() {
                assert_eq!(completion.tag, tag);
                break;
            }
            std::hint::spin_loop();
        }
    }
    let statistics = mover.statistics();
    assert_eq!((statistics.kicks, statistics.done), (1, 10_000));
}

#[test]
fn a_worker_sleeps_at_once_after_a_large_request() {
    let config = Config {
        spin_us: u32::MAX,
        small_bytes: 1,
        ..small(8)
    };
    let mover = open(config);
    let sleep = |times| {
        while mover.statistics().sleeps < times {
            std::thread::yield_now();
        }
    };
    sleep(1);
    for tag in 0..3 {
        submit(&mover, tag);
        assert!(mover.wait(PATIENCE).is_some());
        // Asleep again: the next submission kicks.
        sleep(tag + 2);
    }
    assert_eq!(mover.statistics().kicks, 3);
}

#[test]
fn many_threads_share_a_mover() {
    const THREADS: u64 = 4;
    const EACH: u64 = 5000;
    for workers in [1, 3] {
        let config = Config {
            workers,
            capacity: 16,
            notify: Notify::Eventfd,
            ..Config::default()
        };
        let mover = open(config);
        let found = Mutex::new(BTreeSet::new());
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let (mover, found) = (&mover, &found);
                scope.spawn(move || {
                    let (mut sent, mut own) = (0, 0);
                    while sent < EACH || own < EACH {
                        if sent < EACH
                            && let Some(request) = mover.request()
                        {
                            let tag = thread * EACH + sent;
                            let request = request.migrate(0..PAGE, NodeId(0)).tag(tag);
                            mover.submit(request).expect("a valid request");
                            sent += 1;
                        }
                        // As many as it sent, of whomever.
                        let completion = match (sent == EACH, own == EACH) {
                            (_, true) => None,
                            (true, false) => mover.wait(PATIENCE),
                            (false, false) => mover.retrieve(),
                        };
                        if let Some(completion) = completion {
                            assert!(found.lock().unwrap().insert(completion.tag));
                            own += 1;
                        }
                    }
                });
            }
        });
        assert_eq!(found.into_inner().unwrap().len() as u64, THREADS * EACH);
        assert_eq!(mover.statistics().depths.free, 16);
    }
}

struct Unparker(std::thread::Thread);

impl Wake for Unparker {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

fn block_on<F: Future>(future: F) -> F::Output {
    let waker = Waker::from(Arc::new(Unparker(std::thread::current())));
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(output) => return output,
            Poll::Pending => std::thread::park(),
        }
    }
}

#[test]
fn futures_bring_their_own_completions() {
    let mover = open(small(4));
    for tag in 0..1000 {
        let request = mover.request().expect("a free request");
        let request = request.migrate(0..PAGE, NodeId(0)).tag(tag);
        let future = mover.submit_async(request).expect("a valid request");
        let completion: Completion = block_on(future).expect("the same process");
        assert_eq!(completion.tag, tag);
        assert_eq!(mover.retrieve(), None);
    }
    assert_eq!(mover.statistics().depths.free, 4);
}

#[test]
fn dropped_futures_cancel_or_let_go() {
    let (mover, gate, order) = gated(small(4));
    let ask = |from| {
        let request = mover.request().expect("a free request");
        let request = request.replicate(from, 1 << 30, 64);
        mover.submit_async(request).expect("a valid request")
    };
    let running = ask(1);
    gate.entered.wait();
    let queued = ask(2);
    let cancelled = ask(3);
    assert!(mover.cancel(cancelled.id()));
    drop(running);
    drop(queued);
    gate.leave.wait();
    let completion = block_on(cancelled).expect("the same process");
    assert_eq!(completion.status, Status::Cancelled);
    while mover.statistics().depths.free < 4 {
        std::thread::yield_now();
    }
    assert_eq!(*order.lock().unwrap(), [1]);
    assert_eq!(mover.retrieve(), None);
}

#[test]
fn the_rate_limit_delays() {
    let config = Config {
        rate_limit_bytes_per_s: Some(64 << 20),
        batch_requests: 1,
        ..small(64)
    };
    let start = std::time::Instant::now();
    let mover = open(config);
    for _ in 0..20 {
        let request = mover.request().expect("a free request");
        let request = request.replicate(0, 1 << 30, 1 << 20);
        mover.submit(request).expect("a valid request");
    }
    let rest = mover.close(Close::Drain);
    assert!(
        rest.iter()
            .all(|completion| completion.status == Status::Done)
    );
    // 20 MiB less a full bucket of 6.4 MiB and the last request, at 64 MiB/s.
    assert!(
        start.elapsed() >= Duration::from_millis(190),
        "{:?}",
        start.elapsed()
    );
    assert_eq!(rest.len(), 20);
}

/// The loop of figure 2 of the paper, beside another descriptor, as a server's loop has it.
#[test]
fn an_event_loop_polls_for_completions() {
    use rustix::event::{PollFd, PollFlags, poll};
    let config = Config {
        notify: Notify::Eventfd,
        ..small(8)
    };
    let mover = open(config);
    let descriptor = mover.notify_fd().expect("asked for");
    let (other, _writer) = std::io::pipe().expect("a pipe");
    let minute = rustix::time::Timespec {
        tv_sec: 60,
        tv_nsec: 0,
    };
    let (mut sent, mut found) = (0u64, 0u64);
    while found < 2000 {
        while sent < 2000
            && let Some(request) = mover.request()
        {
            let request = request.migrate(0..PAGE, NodeId(0)).tag(sent);
            mover.submit(request).expect("a valid request");
            sent += 1;
        }
        if let Some(completion) = mover.retrieve() {
            assert_eq!(completion.status, Status::Done);
            found += 1;
            continue;
        }
        let mut descriptors = [
            PollFd::new(&descriptor, PollFlags::IN),
            PollFd::new(&other, PollFlags::IN),
        ];
        let ready = poll(&mut descriptors, Some(&minute)).expect("poll");
        assert_eq!(ready, 1, "slept past a completion");
    }
    // Idle, it sleeps: after at most two looks the descriptor is quiet.
    assert_eq!((mover.retrieve(), mover.retrieve()), (None, None));
    let none = rustix::time::Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    let mut descriptors = [PollFd::new(&descriptor, PollFlags::IN)];
    assert_eq!(poll(&mut descriptors, Some(&none)).expect("poll"), 0);
}

/// Waits until no worker is awake.
fn until_asleep(mover: &Mover) {
    let begun = std::time::Instant::now();
    while mover.statistics().sleeps == 0 {
        assert!(begun.elapsed() < PATIENCE.unwrap(), "a worker sleeps");
        std::thread::yield_now();
    }
}

/// A mover whose small replications are carried out by who submits them, and the threads that carried out
/// something.
fn first_by_submitter(spin_us: u32) -> (Mover, Arc<Mutex<Vec<std::thread::ThreadId>>>) {
    let threads = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&threads);
    let config = Config {
        spin_us,
        first_bytes: 64,
        ..small(8)
    };
    let mover = open_with(config, move |jobs| {
        let one = jobs.iter().map(|_| std::thread::current().id());
        log.lock().unwrap().extend(one);
        jobs.iter().map(all_moved).collect()
    });
    until_asleep(&mover);
    (mover, threads)
}

#[test]
fn the_first_small_request_is_its_submitters_and_a_worker_goes_on() {
    // So long that the second comes within it, whatever the machine does.
    let (mover, threads) = first_by_submitter(u32::MAX);
    let id = submit_from(&mover, 1 << 20, Priority::Normal);
    // Complete when the submission is back.
    let first = mover.retrieve().expect("it was carried out");
    assert_eq!((first.id, first.status), (id, Status::Done));
    assert!(submit_from(&mover, 2 << 20, Priority::Normal) != id);
    assert!(mover.wait(PATIENCE).is_some());
    let figures = mover.statistics();
    assert_eq!((figures.by_submitters, figures.kicks), (1, 1));
    let own = std::thread::current().id();
    let by: Vec<bool> = threads
        .lock()
        .unwrap()
        .iter()
        .map(|&id| id == own)
        .collect();
    assert_eq!(by, [true, false]);
}

#[test]
fn what_is_large_or_may_not_be_is_a_workers() {
    let (mover, threads) = first_by_submitter(0);
    let large = mover.request().unwrap().replicate(1 << 20, 1 << 30, 65);
    mover.submit(large).unwrap();
    assert!(mover.wait(PATIENCE).is_some());
    submit(&mover, 7);
    assert!(mover.wait(PATIENCE).is_some());
    assert_eq!(mover.statistics().by_submitters, 0);
    let own = std::thread::current().id();
    assert!(threads.lock().unwrap().iter().all(|&id| id != own));
}

#[test]
fn a_future_of_a_request_that_its_submitter_carried_out_is_ready() {
    let (mover, _) = first_by_submitter(0);
    let request = mover.request().unwrap().replicate(1 << 20, 1 << 30, 64);
    let future = pin!(mover.submit_async(request).expect("valid"));
    let poll = future.poll(&mut Context::from_waker(Waker::noop()));
    assert!(matches!(poll, Poll::Ready(Ok(done)) if done.status == Status::Done));
    assert_eq!(mover.statistics().by_submitters, 1);
}

#[test]
fn a_backend_that_panics_under_a_submitter_is_replaced() {
    let calls = AtomicUsize::new(0);
    let config = Config {
        spin_us: 0,
        first_bytes: 64,
        ..small(4)
    };
    let mover = open_with(config, move |jobs| {
        assert!(calls.fetch_add(1, Ordering::Relaxed) > 0, "planted");
        jobs.iter().map(all_moved).collect()
    });
    until_asleep(&mover);
    submit_from(&mover, 1 << 20, Priority::Normal);
    assert_eq!(mover.retrieve().map(|one| one.status), Some(Status::Failed));
    submit_from(&mover, 1 << 20, Priority::Normal);
    assert_eq!(
        mover.wait(PATIENCE).map(|one| one.status),
        Some(Status::Done)
    );
    let figures = mover.statistics();
    assert_eq!((figures.backend_panics, figures.replaced_workers), (1, 0));
}
