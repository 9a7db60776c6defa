//! What a client pays for a request: `cargo bench -p hither-mover`.
//!
//! The client's two calls, submit and retrieve, against one push and one pop of crossbeam's
//! `ArrayQueue`, whose elements are as large as what `submit` is told and `retrieve` returns. Both
//! on one thread, in batches of 64, in alternating rounds of one run; the server's part happens in
//! between, on the same thread, and is not timed. Prints medians, and the ratio, which is to be at
//! most 2.

#[path = "../tests/common/mod.rs"]
mod common;

use common::Nothing;
use crossbeam_queue::ArrayQueue;
use hither_mover::{Completion, Config, Mover};
use std::hint::black_box;
use std::time::Instant;

const BATCH: usize = 64;
const BATCHES: usize = 200;
const ROUNDS: usize = 301;

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
