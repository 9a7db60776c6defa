//! What a client pays for a request: `cargo bench -p hither-mover`.
//!
//! The client's two calls, submit and retrieve, against one push and one pop of crossbeam's
//! `ArrayQueue`, whose elements are as large as what `submit` is told and `retrieve` returns. Both
//! on one thread, in batches of 64, in alternating rounds of one run; the server's part happens in
//! between, on the same thread, and is not timed. Prints medians, and the ratio, which is to be at
//! most 2.
//!
//! Then one request to copy a page after each sleep of the worker, from submission to completion: by the woken
//! worker, and by its submitter (`Config::first_bytes`), beside the bare copy.

#[path = "../tests/common/mod.rs"]
mod common;

use common::Nothing;
use crossbeam_queue::ArrayQueue;
use hither_mover::{Action, Backend, Completion, Config, Job, Mover, Outcome, Unavailable};
use std::hint::black_box;
use std::time::{Duration, Instant};

const BATCH: usize = 64;
const BATCHES: usize = 200;
const ROUNDS: usize = 301;
const PAGE: usize = 4096;

fn main() {
    let config = Config {
        capacity: 256,
        ..Config::default()
    };
    let (mover, mut server) =
        Mover::open_unserved(config, |_| Box::new(Nothing)).expect("an open mover");
    let words = ArrayQueue::new(256);
    let completions = ArrayQueue::new(256);
    let sample = one_completion(&mover, &mut server);
    let mut calls_ns = Vec::new();
    let mut all_ns = Vec::new();
    let mut words_ns = Vec::new();
    let mut completions_ns = Vec::new();
    for _ in 0..ROUNDS {
        let (calls, all) = mover_round(&mover, &mut server);
        calls_ns.push(calls);
        all_ns.push(all);
        words_ns.push(array_round(&words, || 7u64));
        completions_ns.push(array_round(&completions, || sample.clone()));
    }
    let [calls, all, words, completions] = [calls_ns, all_ns, words_ns, completions_ns].map(median);
    let kicks = mover.statistics().kicks;
    println!("ArrayQueue push + pop, of a u64          {words:6.1} ns");
    println!("ArrayQueue push + pop, of a completion   {completions:6.1} ns");
    println!("submit + retrieve                        {calls:6.1} ns");
    println!("request + submit + retrieve              {all:6.1} ns");
    println!("ratio to the u64 pair: {:.2}", calls / words);
    println!(
        "ratio to the u64 pair, request included: {:.2}",
        all / words
    );
    println!("ratio to the completion pair: {:.2}", calls / completions);
    println!("system calls of submissions: {kicks}");
    after_sleep();
}

/// Copies.
struct Copying;

impl Backend for Copying {
    fn name(&self) -> &'static str {
        "copying"
    }

    fn probe(&self) -> Result<(), Unavailable> {
        Ok(())
    }

    fn serves_submitters(&self, _: &Action<'_>) -> bool {
        true
    }

    fn execute(&mut self, jobs: &[Job<'_>]) -> Vec<Outcome> {
        for job in jobs {
            let &Action::Replicate { from, to, bytes } = &job.action else {
                unreachable!("copies are asked for");
            };
            let from = std::ptr::with_exposed_provenance::<u8>(from as usize);
            let to = std::ptr::with_exposed_provenance_mut::<u8>(to as usize);
            // SAFETY: the pages of `after_sleep`, which are left alone until the request is complete.
            unsafe { std::ptr::copy_nonoverlapping(from, to, bytes as usize) };
        }
        jobs.iter().map(|_| Outcome::default()).collect()
    }
}

fn after_sleep() {
    let from = vec![7u8; PAGE];
    let mut to = vec![0u8; PAGE];
    let addresses = (
        from.as_ptr().expose_provenance(),
        to.as_mut_ptr().expose_provenance(),
    );
    let open = |first_bytes| {
        let config = Config {
            spin_us: 0,
            first_bytes,
            ..Config::default()
        };
        Mover::open(config, |_| Box::new(Copying)).expect("a mover")
    };
    let movers = [open(0), open(PAGE as u64)];
    let mut spent: [Vec<f64>; 3] = Default::default();
    for _ in 0..ROUNDS {
        for (mover, spent) in movers.iter().zip(&mut spent) {
            // Longer than a worker takes to fall asleep.
            std::thread::sleep(Duration::from_millis(1));
            let start = Instant::now();
            let request = mover.request().expect("a free request");
            let request = request.replicate(addresses.0, addresses.1, PAGE);
            mover.submit(request).expect("a valid request");
            assert!(mover.wait(None).is_some(), "a completion");
            spent.push(start.elapsed().as_nanos() as f64);
        }
        std::thread::sleep(Duration::from_millis(1));
        let start = Instant::now();
        to.copy_from_slice(black_box(&from));
        black_box(&to);
        spent[2].push(start.elapsed().as_nanos() as f64);
    }
    let kicks = movers.each_ref().map(|mover| mover.statistics().kicks);
    let [worker, submitter, bare] = spent.map(median);
    println!("a page after a sleep, by the woken worker  {worker:8.0} ns");
    println!("                      by its submitter     {submitter:8.0} ns");
    println!("                      bare copy            {bare:8.0} ns");
    println!("workers woken: {kicks:?} of {ROUNDS}");
}

fn one_completion(mover: &Mover, server: &mut hither_mover::Server) -> Completion {
    let request = mover.request().expect("a free request");
    mover
        .submit(request.replicate(0, 4096, 4096))
        .expect("a valid request");
    server.serve();
    mover.retrieve().expect("a completion")
}

/// Nanoseconds per request: of submit and retrieve, and of these and request.
fn mover_round(mover: &Mover, server: &mut hither_mover::Server) -> (f64, f64) {
    let (mut request_ns, mut calls_ns) = (0, 0);
    let mut requests = Vec::with_capacity(BATCH);
    for _ in 0..BATCHES {
        let start = Instant::now();
        for tag in 0..BATCH as u64 {
            let request = mover.request().expect("a free request");
            requests.push(request.replicate(0, 4096, 4096).tag(tag));
        }
        request_ns += start.elapsed().as_nanos();
        let start = Instant::now();
        for request in requests.drain(..) {
            black_box(mover.submit(request).expect("a valid request"));
        }
        calls_ns += start.elapsed().as_nanos();
        server.serve();
        let start = Instant::now();
        for _ in 0..BATCH {
            // Looked at where it is, as a program does that uses its fields.
            let completion = mover.retrieve();
            assert!(black_box(&completion).is_some(), "a completion");
        }
        calls_ns += start.elapsed().as_nanos();
    }
    let count = (BATCH * BATCHES) as f64;
    (
        calls_ns as f64 / count,
        (request_ns + calls_ns) as f64 / count,
    )
}

fn array_round<T>(queue: &ArrayQueue<T>, make: impl Fn() -> T) -> f64 {
    let mut spent_ns = 0;
    for _ in 0..BATCHES {
        let start = Instant::now();
        for _ in 0..BATCH {
            let pushed = queue.push(black_box(make()));
            assert!(pushed.is_ok(), "there is room");
        }
        spent_ns += start.elapsed().as_nanos();
        let start = Instant::now();
        for _ in 0..BATCH {
            black_box(queue.pop().expect("an element"));
        }
        spent_ns += start.elapsed().as_nanos();
    }
    spent_ns as f64 / (BATCH * BATCHES) as f64
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
