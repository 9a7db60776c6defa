//! Each second's figures while the clients still run.

use crate::latency::Latencies;
use std::sync::Mutex;

/// Gathers what the clients did, and tells of each second that all of them have passed.
pub struct Live<F> {
    clients: usize,
    gathered: Mutex<Gathered>,
    tell: F,
}

#[derive(Default)]
struct Gathered {
    latencies: Latencies,
    /// Clients that have passed each second.
    passed: Vec<usize>,
}

impl<F: Fn(usize, &Latencies) + Sync> Live<F> {
    /// For so many clients; `tell` gets each second, counted from 0, in order.
    pub fn new(clients: usize, tell: F) -> Self {
        Self {
            clients,
            gathered: Mutex::default(),
            tell,
        }
    }

    /// A client has passed the seconds before `second`; it has told of those before `told`. Returns how many
    /// it has told of now.
    pub fn pass(&self, told: usize, second: usize, own: &Latencies) -> usize {
        if told >= second {
            return told;
        }
        let mut gathered = self.gathered.lock().expect("no client panics here");
        for passed in told..second {
            if passed >= gathered.passed.len() {
                gathered.passed.resize(passed + 1, 0);
            }
            gathered.latencies.merge_second(own, passed);
            gathered.passed[passed] += 1;
            if gathered.passed[passed] == self.clients {
                (self.tell)(passed, &gathered.latencies);
            }
        }
        second
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_second_is_told_of_once_all_clients_have_passed_it() {
        let seen = Mutex::new(Vec::new());
        let live = Live::new(2, |second, all: &Latencies| {
            seen.lock().unwrap().push((second, all.requests(second)));
        });
        let mut one = Latencies::default();
        let took = Duration::from_micros(10);
        one.add(Duration::from_millis(100), took);
        one.add(Duration::from_millis(1100), took);
        let told = live.pass(0, 1, &one);
        assert_eq!((told, seen.lock().unwrap().len()), (1, 0));
        // What lies in a second that is not over is not counted twice.
        assert_eq!(live.pass(told, 1, &one), 1);
        let mut other = Latencies::default();
        other.add(Duration::from_millis(200), took);
        live.pass(0, 2, &other);
        assert_eq!(*seen.lock().unwrap(), [(0, 2)]);
        live.pass(told, 2, &one);
        assert_eq!(*seen.lock().unwrap(), [(0, 2), (1, 1)]);
    }
}
