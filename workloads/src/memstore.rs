//! `memstore`: a store in memory that answers look-ups of clients, second by second.
//!
//! After the memory-region thesis's memstore, "a memory lookup operation in response to each request", which
//! loads memory and neither CPU nor network. Each thread is a client and its server in one: it draws keys,
//! finds their values by an index and adds each value up. A request is for several keys. What the fast
//! memory is worth at any time shows in the lines for each second: requests, mean latency, 99th percentile.
//!
//! The index is an open-addressing table of words; values lie one after the other, in an order that has
//! nothing to do with how often their keys are drawn. A trace file ([`trace`]) says how much of the data is
//! in use at which second and how many requests come. With a rate, a request's latency counts from when it
//! was due, so that a store that falls behind shows it.

mod live;
mod store;
mod trace;

use crate::cli::{self, Args, Failure, Opt, Workload, WorkloadReport};
use crate::latency::{Latencies, in_us};
use crate::memory::{FIRST_NODE, FirstNode, HUGE, NODE};
use crate::random::FastRandom;
use crate::series;
use crate::team::{Member, ThreadTeam};
use crate::zipf::Zipf;
use live::Live;
use std::time::{Duration, Instant};
use store::Store;
use trace::{Load, Trace};

/// A client that is early by less does not sleep: waking up takes about as long.
const SLEEP_LEAST: Duration = Duration::from_micros(100);

/// The program.
pub const PROGRAM: Workload = Workload {
    name: "memstore",
    about: "A store in memory under look-ups of all threads: requests and latencies of each second.",
    operand: None,
    options: &[
        cli::THREADS,
        Opt {
            name: "mb",
            value: Some("MB"),
            default: "64",
            help: "size of all values",
        },
        Opt {
            name: "value",
            value: Some("BYTES"),
            default: "1024",
            help: "size of a value, a multiple of 64",
        },
        Opt {
            name: "gets",
            value: Some("N"),
            default: "16",
            help: "keys of a request",
        },
        Opt {
            name: "skew",
            value: Some("PERCENT"),
            default: "0",
            help: "100 times the exponent of Zipf's law; 0 draws all keys alike",
        },
        Opt {
            name: "seconds",
            value: Some("S"),
            default: "10",
            help: "how long it runs; with --trace the trace's length",
        },
        Opt {
            name: "rate",
            value: Some("N"),
            default: "0",
            help: "requests a second of all threads; 0 for as many as can be",
        },
        Opt {
            name: "trace",
            value: Some("FILE"),
            default: "",
            help: "data in use and requests a second by time, see docs/workloads.md",
        },
        Opt {
            name: "live",
            value: None,
            default: "",
            help: "print the line of each second when it is over, not at the end",
        },
        Opt {
            name: "period",
            value: Some("MS"),
            default: "1000",
            help: "lines of so many ms instead of seconds",
        },
        NODE,
        FIRST_NODE,
        HUGE,
        cli::PIN,
        cli::NO_PIN,
    ],
    run,
};

fn run(args: &Args) -> Result<WorkloadReport, Failure> {
    let team = ThreadTeam::from_args(args)?;
    let mb = args.number("mb", 1..=1 << 18)?;
    let value_bytes = args.number("value", 64..=1 << 20)?;
    if value_bytes % 64 != 0 {
        return Err(cli::usage(format!(
            "--value: {value_bytes} is no multiple of 64 bytes"
        )));
    }
    let gets = args.number("gets", 1..=1 << 16)?;
    let skew = args.number("skew", 0..=300)?;
    let trace = load_of(args, mb)?;
    let period = Duration::from_millis(args.number("period", 1..=1000)?);
    if 1000 % period.as_millis() != 0 {
        let ms = period.as_millis();
        return Err(cli::usage(format!(
            "--period: a second is no multiple of {ms} ms"
        )));
    }
    let start = FirstNode::from_args(args)?;
    let started = Instant::now();
    let store = Store::new(mb << 20, value_bytes as usize, start)?;
    let zipf = Zipf::new(store.keys(), skew as f64 / 100.0);
    let setup = started.elapsed().as_secs_f64();
    let client = Client {
        store: &store,
        zipf: &zipf,
        trace: &trace,
        gets,
        data_mb: mb,
        period,
    };
    let of_second = |second: usize, latencies: &Latencies| {
        let load = trace.at((period * second as u32).as_secs());
        format!(
            "requests {} mean_us {} p99_us {} active_mb {}",
            latencies.requests(second),
            in_us(latencies.mean_ns(second)),
            in_us(latencies.quantile_ns(second, 0.99)),
            load.active_mb.min(mb)
        )
    };
    let is_live = args.has("live");
    let live = Live::new(team.threads(), |second, latencies: &Latencies| {
        if is_live {
            let text = of_second(second, latencies);
            cli::tell(&format!("second: {} {text}\n", second + 1));
        }
    });
    let results = team.run(|member| member.measure(|| client.serve(member, &live)))?;
    let (mut latencies, mut wrong) = (Latencies::by(period), 0);
    for ((own, amiss), _) in &results {
        latencies.merge(own);
        wrong += amiss;
    }
    let title = format!(
        "memstore: {} threads, {mb} MB, {} values of {value_bytes} bytes, {gets} in a request",
        team.threads(),
        store.keys()
    );
    let report = WorkloadReport::new(title).line("setup_seconds", format!("{setup:.6}"));
    let all = latencies.period_of(Duration::from_secs(trace.seconds()));
    let seconds = if is_live { 0 } else { all as u64 };
    let report = series::lines(report, seconds, |second| of_second(second, &latencies));
    let took = results[0].1;
    Ok(report
        .line(
            "requests_per_second",
            format!("{:.0}", latencies.total() as f64 / took),
        )
        .line("wrong_values", wrong)
        .finish(took, store.checksum(wrong)))
}

/// The trace of `--trace`, or one that says what `--seconds` and `--rate` say.
fn load_of(args: &Args, mb: u64) -> Result<Trace, Failure> {
    let Some(path) = args.text("trace") else {
        let load = Load {
            second: 0,
            active_mb: mb,
            requests: args.number("rate", 0..=1 << 32)?,
        };
        let seconds = args.number("seconds", 1..=1 << 16)?;
        return Ok(Trace::steady(load, seconds));
    };
    for other in ["seconds", "rate"] {
        if args.has(other) {
            return Err(cli::usage(format!(
                "--{other} and --trace exclude each other: the trace says both"
            )));
        }
    }
    let fault = |what: String| cli::usage(format!("--trace {path}: {what}"));
    let text = std::fs::read_to_string(path).map_err(|error| fault(error.to_string()))?;
    Trace::parse(&text).map_err(fault)
}

/// What all clients share.
struct Client<'a> {
    store: &'a Store,
    zipf: &'a Zipf,
    trace: &'a Trace,
    gets: u64,
    data_mb: u64,
    period: Duration,
}

impl Client<'_> {
    /// One client's requests until the trace ends: latencies, and values that were not what had been
    /// stored.
    #[inline(never)]
    fn serve<F>(&self, member: &Member<'_>, live: &Live<F>) -> (Latencies, u64)
    where
        F: Fn(usize, &Latencies) + Sync,
    {
        let mut random = FastRandom::new(member.id as u64 + 1);
        let (mut latencies, mut wrong) = (Latencies::by(self.period), 0);
        let limit = Duration::from_secs(self.trace.seconds());
        let began = Instant::now();
        let mut now = Duration::ZERO;
        let mut pace = Pace::default();
        let mut told = 0;
        while now < limit {
            told = live.pass(told, latencies.period_of(now), &latencies);
            let load = self.trace.at(now.as_secs());
            let keys = self.keys_in_use(load.active_mb);
            let due = pace.next(now, load.requests, member.threads as u64);
            if let Some(wait) = due.checked_sub(now).filter(|wait| *wait > SLEEP_LEAST) {
                std::thread::sleep(wait.min(limit - now));
                now = began.elapsed();
                if due > now {
                    continue;
                }
            }
            pace.sent();
            for _ in 0..self.gets {
                let drawn = self.zipf.draw(&mut random);
                // Of the keys in use, with the same law.
                let rank =
                    (u128::from(drawn) * u128::from(keys) / u128::from(self.store.keys())) as u64;
                wrong += u64::from(!self.store.look_up(rank));
            }
            let from = if load.requests > 0 { due.min(now) } else { now };
            now = began.elapsed();
            latencies.add(now, now - from);
        }
        live.pass(told, latencies.period_of(limit), &latencies);
        (latencies, wrong)
    }

    fn keys_in_use(&self, active_mb: u64) -> u64 {
        let share = active_mb.min(self.data_mb) as f64 / self.data_mb as f64;
        ((self.store.keys() as f64 * share) as u64).max(1)
    }
}

/// When a client's next request is due.
#[derive(Debug, Default)]
struct Pace {
    /// The second that the schedule is of.
    second: Option<u64>,
    /// Requests of this second so far.
    count: u64,
}

impl Pace {
    /// The time of the next request, where all `clients` together make `requests` a second: spread evenly
    /// over the second. 0 requests means at once. What a second had too much is not made up for.
    fn next(&mut self, now: Duration, requests: u64, clients: u64) -> Duration {
        if requests == 0 {
            return now;
        }
        let second = now.as_secs();
        if self.second != Some(second) {
            (self.second, self.count) = (Some(second), 0);
        }
        let offset = self.count as f64 * clients as f64 / requests as f64;
        Duration::from_secs(second) + Duration::from_secs_f64(offset)
    }

    fn sent(&mut self) {
        self.count += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_due_evenly_and_seconds_start_anew() {
        let mut pace = Pace::default();
        let at = Duration::from_millis;
        assert_eq!(pace.next(at(0), 0, 4), at(0));
        // 4 clients, 40 requests a second: one each 100 ms.
        assert_eq!(pace.next(at(1000), 40, 4), at(1000));
        pace.sent();
        assert_eq!(pace.next(at(1020), 40, 4), at(1100));
        pace.sent();
        assert_eq!(pace.next(at(1900), 40, 4), at(1200));
        // The second is over, and so is what it had too much.
        assert_eq!(pace.next(at(2050), 40, 4), at(2000));
    }
}
