//! How long eight requests of sixteen pages take to complete, and what submitting costs (memif
//! figure 7).

use super::{Arena, Caller, PATIENCE, Plan, config, stuck};
use crate::bench::methods::PageKind;
use hither_linux::backend::own::{self, Settings};
use hither_linux::sys;
use hither_mover::{Close, Race, Status};
use std::time::Duration;

pub(super) const REQUESTS: usize = 8;
const BYTES: usize = 16 * 4096;

/// Mean time to completion of [`REQUESTS`], and what submitting took of the submitting thread: means.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Latency {
    pub(super) mean_ns: f64,
    pub(super) submitter_cpu_ns: f64,
    /// System calls that submitting took.
    pub(super) system_calls: f64,
    pub(super) repetitions: u64,
}

/// Eight requests of sixteen pages by the service, and the same pages by one call.
pub(super) fn latencies(plan: &Plan, settings: &Settings) -> anyhow::Result<[Latency; 2]> {
    let bytes = REQUESTS * BYTES;
    let arena = Arena::new(PageKind::Small, bytes, plan.from)?;
    let start = arena.memory.address() as usize;
    let mut settings = settings.clone();
    // Pages go to and fro.
    settings.swap.limits.recycle = true;
    let (mover, _) = own::open(config(plan), settings)?;
    let mut service = Latency::default();
    let mut call = Latency::default();
    let repetitions = plan.repeat as u64 + 2;
    for repetition in 0..repetitions {
        let to = [plan.to, plan.from][repetition as usize % 2];
        let kicks = mover.statistics().kicks;
        let cpu = sys::thread_cpu_ns();
        let begin = sys::monotonic_ns();
        for part in 0..REQUESTS {
            let request = mover.request().ok_or_else(stuck)?;
            let from = start + part * BYTES;
            let request = request.migrate(from..from + BYTES, to).race(Race::Block);
            mover
                .submit(request)
                .map_err(|rejected| anyhow::anyhow!("{rejected}"))?;
        }
        let mut sum = 0;
        for _ in 0..REQUESTS {
            let done = mover.wait(Some(PATIENCE)).ok_or_else(stuck)?;
            anyhow::ensure!(done.status == Status::Done, "a move failed: {done:?}");
            sum += sys::monotonic_ns() - begin;
        }
        if repetition >= 2 {
            service.submitter_cpu_ns += (sys::thread_cpu_ns() - cpu) as f64;
            service.mean_ns += sum as f64 / REQUESTS as f64;
            service.system_calls += (mover.statistics().kicks - kicks) as f64;
            service.repetitions += 1;
        } else {
            std::thread::sleep(Duration::from_millis(100));
        }
    }
    drop(mover.close(Close::Drain));
    arena.settle(plan.from)?;
    let mut caller = Caller::default();
    for repetition in 0..if plan.from == plan.to { 0 } else { repetitions } {
        let to = [plan.to, plan.from][repetition as usize % 2];
        let cpu = sys::thread_cpu_ns();
        let begin = sys::monotonic_ns();
        caller.call(arena.memory.address(), bytes, 4096, to)?;
        if repetition >= 2 {
            // All of its requests complete when it returns.
            call.mean_ns += (sys::monotonic_ns() - begin) as f64;
            call.submitter_cpu_ns += (sys::thread_cpu_ns() - cpu) as f64;
            call.system_calls += 1.0;
            call.repetitions += 1;
        }
    }
    Ok([service, call].map(|sum| Latency {
        mean_ns: sum.mean_ns / sum.repetitions as f64,
        submitter_cpu_ns: sum.submitter_cpu_ns / sum.repetitions as f64,
        system_calls: sum.system_calls / sum.repetitions as f64,
        ..sum
    }))
}
