//! `/proc/stat`: what CPUs have spent their time on.

use crate::error::Fault;
use crate::parse::{Parsed, clip};
use hither_core::ids::CpuId;
use std::collections::BTreeMap;

/// Time of a CPU since the system started, in clock ticks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Times {
    /// All but idle and waiting for input or output.
    pub busy: u64,
    /// All.
    pub all: u64,
}

/// Reads the lines of CPUs; others are skipped.
///
/// ```text
/// cpu  41 0 30 5000 12 0 3 0 0 0
/// cpu0 20 0 15 2500  6 0 1 0 0 0
/// ```
pub fn parse(text: &str) -> Parsed<BTreeMap<CpuId, Times>> {
    let mut cpus = BTreeMap::new();
    for (index, line) in text.lines().enumerate() {
        let mut words = line.split_whitespace();
        let name = words.next().and_then(|name| name.strip_prefix("cpu"));
        let Some(Ok(cpu)) = name.map(str::parse) else {
            continue;
        };
        let fault = || Fault::new(index + 1, format!("`{}` has no times of a CPU", clip(line)));
        // user, nice, system, idle, iowait, irq, softirq, steal; guests count as user already.
        let times: Vec<u64> = words
            .take(8)
            .map(|word| word.parse().map_err(|_| fault()))
            .collect::<Result<_, _>>()?;
        let [user, nice, system, idle, ..] = times[..] else {
            return Err(fault());
        };
        let rest = times
            .iter()
            .skip(5)
            .fold(0u64, |sum, time| sum.saturating_add(*time));
        let busy = user
            .saturating_add(nice)
            .saturating_add(system)
            .saturating_add(rest);
        let waiting = times.get(4).copied().unwrap_or(0);
        let all = busy.saturating_add(idle).saturating_add(waiting);
        cpus.insert(CpuId(cpu), Times { busy, all });
    }
    Ok(cpus)
}

/// The share of the time between two readings in which a CPU was idle; all of it where no time has
/// passed on it.
#[must_use]
pub fn idle_share(before: Times, after: Times) -> f64 {
    let all = after.all.saturating_sub(before.all);
    let busy = after.busy.saturating_sub(before.busy);
    match all {
        0 => 1.0,
        _ => 1.0 - (busy as f64 / all as f64).min(1.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_and_waiting_are_not_busy() {
        let before = parse("cpu  1 1 1 1\ncpu3 10 0 10 100 5 1 1 1 9 9\nintr 5\n").unwrap();
        assert_eq!(before.len(), 1);
        let before = before[&CpuId(3)];
        assert_eq!(before, Times { busy: 23, all: 128 });
        let after = parse("cpu3 20 0 10 120 15 1 1 1 9 9\n").unwrap()[&CpuId(3)];
        assert!((idle_share(before, after) - 0.75).abs() < 1e-9);
        assert!((idle_share(after, after) - 1.0).abs() < 1e-9);
        assert_eq!(parse("cpu0 1 2\n").unwrap_err().line, 1);
        assert!(
            parse("x\ncpu0 1 2 three 4\n")
                .unwrap_err()
                .reason
                .contains("three")
        );
        let text = std::fs::read_to_string("/proc/stat").unwrap();
        assert!(!parse(&text).unwrap().is_empty());
    }
}
