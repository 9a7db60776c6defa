//! A steady stream of requests from one thread, for looking at with `strace -f`.
//!
//! usage: stream_submit awake|asleep|polled REQUESTS
//!
//! `awake`: the worker looks on between requests, and the stream is free of system calls.
//! `asleep`: it sleeps whenever it has nothing to do, and submissions wake it.
//! `polled`: as `awake`, with an eventfd that the stream never needs to poll.
//!
//! The stream runs in a thread whose number is printed, between two calls of `getppid`, which
//! nothing else makes.

#[path = "../tests/common/mod.rs"]
mod common;

use common::Nothing;
use hither_core::ids::NodeId;
use hither_mover::{Config, Mover, Notify, Status};
use std::process::ExitCode;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [mode, count] = &words[..] else {
        eprintln!("usage: stream_submit awake|asleep|polled REQUESTS");
        return ExitCode::from(2);
    };
    let Ok(count) = count.parse() else {
        eprintln!("{count} is not a number of requests");
        return ExitCode::from(2);
    };
    let config = Config {
        capacity: 64,
        // Awake: longer than this machine can keep the submitting thread from running.
        spin_us: if mode == "asleep" { 0 } else { 60_000_000 },
        notify: if mode == "polled" {
            Notify::Eventfd
        } else {
            Notify::Off
        },
        ..Config::default()
    };
    let mover = Mover::open(config, |_| Box::new(Nothing)).expect("a mover");
    // Wakes the worker: the stream begins when it is awake.
    stream(&mover, 1);
    std::thread::scope(|scope| {
        let submitter = std::thread::Builder::new().name("submitter".to_owned());
        let body = || {
            println!("thread {}", rustix::thread::gettid().as_raw_nonzero());
            let _ = rustix::process::getppid();
            stream(&mover, count);
            let _ = rustix::process::getppid();
        };
        submitter.spawn_scoped(scope, body).expect("a thread");
    });
    println!("kicks {}", mover.statistics().kicks);
    ExitCode::SUCCESS
}

/// Submits and retrieves so many requests, as many at a time as there is room for.
fn stream(mover: &Mover, count: u64) {
    let (mut sent, mut found) = (0, 0);
    while found < count {
        while sent < count
            && let Some(request) = mover.request()
        {
            let request = request.migrate(0..4096, NodeId(0)).tag(sent);
            mover.submit(request).expect("a valid request");
            sent += 1;
        }
        // A look, then something else to do: with an eventfd a second look in a row may drain it.
        if let Some(completion) = mover.retrieve() {
            assert_eq!(completion.status, Status::Done);
            found += 1;
        } else {
            while mover.statistics().depths.queue_done == 0 {
                std::hint::spin_loop();
            }
        }
    }
}
