//! What the children did, as lines.

use super::child::{HALF_NS, Outcome, Task};
use crate::cli::WorkloadReport;
use hither_core::size::short_bytes;

/// Latencies of a server's requests, in ns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Latency {
    /// How many there were.
    pub count: u64,
    /// Half of them took no longer.
    pub p50: u64,
    /// 99 of 100 took no longer.
    pub p99: u64,
    /// The longest.
    pub max: u64,
    /// Requests of the same time that were not begun when it was over; not among the others.
    pub late: u64,
}

impl Latency {
    /// Of requests that took so long.
    pub fn of(mut took: Vec<u64>, late: u64) -> Self {
        took.sort_unstable();
        let quantile = |share: f64| {
            let place = (took.len() as f64 * share).ceil() as usize;
            took.get(place.saturating_sub(1)).copied().unwrap_or(0)
        };
        Self {
            count: took.len() as u64,
            p50: quantile(0.5),
            p99: quantile(0.99),
            max: quantile(1.0),
            late,
        }
    }

    /// As a child tells them.
    pub fn words(&self) -> [u64; 5] {
        [self.count, self.p50, self.p99, self.max, self.late]
    }

    /// As they were told.
    pub fn from_words([count, p50, p99, max, late]: [u64; 5]) -> Self {
        Self {
            count,
            p50,
            p99,
            max,
            late,
        }
    }
}

/// Adds the lines of all children, and the geometric means.
pub fn lines(mut report: WorkloadReport, tasks: &[Task], outcomes: &[Outcome]) -> WorkloadReport {
    let (mut firsts, mut lasts) = (Vec::new(), Vec::new());
    for (index, (task, outcome)) in tasks.iter().zip(outcomes).enumerate() {
        let set = short_bytes(task.bytes as u64);
        let about = format!("{} ws {set} cpu {}", task.name, task.cpu);
        match outcome {
            Outcome::Walked { halves, checksum } => {
                let rates: Vec<f64> = halves.iter().map(|&loads| rate(loads)).collect();
                let (first, last) = (mean(&rates[..2]), mean(&rates[rates.len() / 2..]));
                firsts.push(first);
                lasts.push(last);
                let line = format!(
                    "{index} {about} first_second {first:.0} last_half {last:.0} checksum {checksum:#018x}"
                );
                let series: Vec<String> = rates.iter().map(|rate| format!("{rate:.0}")).collect();
                report = report.line("program", line);
                report = report.line("loads_per_second", format!("{index} {}", series.join(" ")));
            }
            Outcome::Served {
                latency,
                service,
                checksum,
            } => {
                let us = |ns: u64| ns as f64 / 1e3;
                let line = format!(
                    "{about} requests {} p50_us {:.1} p99_us {:.1} max_us {:.1} late {} service_p50_us {:.1} \
                     service_p99_us {:.1} service_max_us {:.1} checksum {checksum:#018x}",
                    latency.count,
                    us(latency.p50),
                    us(latency.p99),
                    us(latency.max),
                    latency.late,
                    us(service.p50),
                    us(service.p99),
                    us(service.max),
                );
                report = report.line("server", line);
            }
        }
    }
    // A server alone has no loads to tell of.
    if firsts.is_empty() {
        return report;
    }
    let line = |values: &[f64]| format!("{:.0}", geometric_mean(values));
    report
        .line("geometric_mean_first_second", line(&firsts))
        .line("geometric_mean_last_half", line(&lasts))
}

/// Loads of a half second, for a second.
fn rate(loads: u64) -> f64 {
    loads as f64 * 1e9 / HALF_NS as f64
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

fn geometric_mean(values: &[f64]) -> f64 {
    let logarithms: Vec<f64> = values.iter().map(|value| value.ln()).collect();
    mean(&logarithms).exp()
}

#[cfg(test)]
mod tests {
    use super::super::child::Job;
    use super::*;

    #[test]
    fn quantiles_are_of_what_was_served() {
        let took: Vec<u64> = (1..=200).rev().collect();
        let latency = Latency::of(took, 3);
        assert_eq!(latency.words(), [200, 100, 198, 200, 3]);
        assert_eq!(Latency::from_words(latency.words()), latency);
        assert_eq!(Latency::of(Vec::new(), 1).words(), [0, 0, 0, 0, 1]);
    }

    #[test]
    fn means_are_of_the_first_second_and_of_the_last_half() {
        let task = |index: usize, bytes| Task {
            name: format!("cachemix-{index}"),
            bytes,
            cpu: index,
            home: vec![0, 1],
            seed: 0,
            seconds: 3,
            job: Job::Walk(Default::default()),
        };
        let walked = |halves: [u64; 6]| Outcome::Walked {
            halves: halves.to_vec(),
            checksum: 0xab,
        };
        let outcomes = [
            walked([10, 20, 99, 40, 40, 40]),
            walked([5, 5, 99, 100, 10, 40]),
        ];
        let tasks = [task(0, 4 << 20), task(1, 16 << 10)];
        let text = lines(WorkloadReport::default(), &tasks, &outcomes).text();
        for line in [
            "program: 0 cachemix-0 ws 4M cpu 0 first_second 30 last_half 80 checksum 0x00000000000000ab",
            "loads_per_second: 0 20 40 198 80 80 80",
            "program: 1 cachemix-1 ws 16K cpu 1 first_second 10 last_half 100 checksum 0x00000000000000ab",
            // The root of 30 times 10, and of 80 times 100.
            "geometric_mean_first_second: 17",
            "geometric_mean_last_half: 89",
        ] {
            assert!(
                text.lines().any(|found| found == line),
                "{line} is not in\n{text}"
            );
        }
    }
}
