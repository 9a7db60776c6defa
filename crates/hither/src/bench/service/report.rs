//! What was measured, for people and programs.

use super::latency::{Latency, REQUESTS};
use super::{Report, Row, Took, Traffic};
use crate::print::{self, Table};
use crate::terminal::Terminal;
use crate::units::{short_bytes, time};
use serde_json::{Value, json};

impl Traffic {
    fn name(self) -> &'static str {
        match self {
            Self::Both => "both ways",
            Self::One => "one way",
        }
    }
}

impl Report {
    /// The calls that a row of the service is compared with: the cheapest.
    fn rival(&self, row: &Row) -> Option<&Took> {
        let same = |other: &&Row| {
            !other.way.is_service()
                && (other.kind, other.bytes) == (row.kind, row.bytes)
                && other.traffic == row.traffic
        };
        let rivals = self.rows.iter().filter(same).map(|other| &other.took);
        rivals.min_by_key(|took| took.wall_ns / took.requests.max(1))
    }

    /// For a person.
    #[must_use]
    pub fn text(&self, terminal: Terminal) -> String {
        let direction = match self.plan.from == self.plan.to {
            true => format!("in place on {}", self.plan.from),
            false => format!("between {} and {}", self.plan.from, self.plan.to),
        };
        let workers = match self.plan.workers {
            1 => "one worker; one thread that calls".to_owned(),
            count => format!("{count} workers; {count} threads that call"),
        };
        let mut text = format!("streams of requests, {direction}; {workers}\n\n");
        for (name, works) in &self.chosen {
            let line = match works {
                Ok(()) => format!("backend {name}: serves\n"),
                Err(why) => format!("backend {name}: does not serve: {why}\n"),
            };
            text.push_str(&line);
        }
        let head = [
            "pages",
            "size",
            "traffic",
            "by",
            "requests",
            "per request",
            "GB/s",
            "CPU per request",
            "whole machine",
            "of a copy",
            "by as many",
            "speed-up",
            "CPU saved",
            "of machine",
        ];
        let mut rows = Vec::new();
        for row in &self.rows {
            let took = &row.took;
            let each = |ns: u64| time(ns as f64 / took.requests.max(1) as f64);
            let mut cells = vec![
                row.kind.name().to_owned(),
                short_bytes(row.bytes as u64),
                row.traffic.name().to_owned(),
                row.way.name().to_owned(),
                match took.refused {
                    0 => took.requests.to_string(),
                    refused => format!("{} ({refused} pages refused)", took.requests),
                },
                each(took.wall_ns),
                format!("{:.2}", took.bytes as f64 / took.wall_ns as f64),
                each(took.cpu_ns),
                took.machine_ns.map_or("not told".to_owned(), each),
                format!("{:.2}", took.bare_ns()[0] / took.wall_ns as f64),
                format!("{:.2}", took.bare_ns()[1] / took.wall_ns as f64),
            ];
            if let Some(rival) = self.rival(row).filter(|_| row.way.is_service()) {
                let machine = rival.machine_ns.zip(took.machine_ns);
                let gains = [
                    Some((rival.wall_ns, took.wall_ns)),
                    Some((rival.cpu_ns, took.cpu_ns)),
                    machine,
                ];
                cells.extend(gains.map(|times| {
                    let gain = |(other, own)| format!("{:.2}", gain(other, rival, own, took));
                    times.map_or("not told".to_owned(), gain)
                }));
            }
            rows.push(cells);
        }
        text.push('\n');
        text.push_str(&Table::new(&head, &rows).keys(4).text(terminal));
        if let Some([service, call]) = self.latency {
            text.push_str(&format!(
                "\n{REQUESTS} requests of 16 pages: mean latency {}; {} of CPU and {:.1} system calls of \
                 the submitting thread ({} repetitions)\n",
                time(service.mean_ns),
                time(service.submitter_cpu_ns),
                service.system_calls,
                service.repetitions
            ));
            if call.repetitions > 0 {
                text.push_str(&format!(
                    "the same pages by one call: {} and {}; by the service {} latency, {} CPU\n",
                    time(call.mean_ns),
                    time(call.submitter_cpu_ns),
                    percent_of_change(service.mean_ns, call.mean_ns),
                    times(service.submitter_cpu_ns, call.submitter_cpu_ns),
                ));
            }
        }
        text
    }

    /// `hither.bench-service/1` (`docs/cli.md`).
    #[must_use]
    pub fn json(&self) -> String {
        let rows: Vec<Value> = self
            .rows
            .iter()
            .map(|row| {
                json!({
                    "pages": row.kind.name(),
                    "bytes": row.bytes,
                    "traffic": row.traffic.name(),
                    "by": row.way.name(),
                    "requests": row.took.requests,
                    "wall_ns": row.took.wall_ns,
                    "cpu_ns": row.took.cpu_ns,
                    "machine_cpu_ns": row.took.machine_ns,
                    "moved_bytes": row.took.bytes,
                    "refused_pages": row.took.refused,
                    "copy_ns": row.took.bare_ns()[0],
                    "shared_copy_ns": row.took.bare_ns()[1],
                })
            })
            .collect();
        let latency = self.latency.map(|[service, call]| {
            let one = |latency: Latency| {
                (latency.repetitions > 0).then(|| {
                    json!({
                        "mean_ns": latency.mean_ns,
                        "submitter_cpu_ns": latency.submitter_cpu_ns,
                        "system_calls": latency.system_calls,
                        "repetitions": latency.repetitions,
                    })
                })
            };
            json!({ "service": one(service), "move_pages": one(call) })
        });
        let backends: Vec<Value> = self
            .chosen
            .iter()
            .map(|(name, works)| {
                json!({ "name": name, "unavailable": works.as_ref().err().map(ToString::to_string) })
            })
            .collect();
        let document = json!({
            "schema": "hither.bench-service/1",
            "from": self.plan.from,
            "to": self.plan.to,
            "in_place": self.plan.from == self.plan.to,
            "workers": self.plan.workers,
            "copiers": self.plan.copiers,
            "backends": backends,
            "streams": rows,
            "latency": latency,
        });
        print::json(document)
    }
}

/// `59 % less`, `2 % more` than another figure.
fn percent_of_change(own: f64, other: f64) -> String {
    let change = 100.0 * (own / other - 1.0);
    match change <= 0.0 {
        true => format!("{:.0} % less", -change),
        false => format!("{change:.0} % more"),
    }
}

/// `24.8 times less`, `1.3 times more` than another figure.
fn times(own: f64, other: f64) -> String {
    match own <= other {
        true => format!("{:.1} times less", other / own),
        false => format!("{:.1} times more", own / other),
    }
}

/// How many times less per request.
fn gain(rival_ns: u64, rival: &Took, own_ns: u64, own: &Took) -> f64 {
    let each = |ns: u64, took: &Took| ns as f64 / took.requests.max(1) as f64;
    each(rival_ns, rival) / each(own_ns, own)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_is_not_told_as_less() {
        assert_eq!(percent_of_change(41.0, 100.0), "59 % less");
        assert_eq!(percent_of_change(102.0, 100.0), "2 % more");
        assert_eq!(times(10.0, 248.0), "24.8 times less");
        assert_eq!(times(13.0, 10.0), "1.3 times more");
    }
}
