//! Where the threads of processes run, and for how many CPUs they are.
//!
//! Two files of each thread: `schedstat` has the time for which it ran and the time for which it waited for a CPU
//! (`Documentation/scheduler/sched-stats.rst`), `stat` the CPU on which it ran last (`proc_pid_stat(5)`, field 39).

use super::task;
use crate::root::Root;
use crate::sys;
use hither_core::ids::{CpuId, SpaceId};
use hither_core::snapshot::{CacheState, Evidence, Snapshot, Threads};
use std::collections::BTreeMap;

/// Time for which each thread ran, and waited, so far, in ns.
type Times = BTreeMap<i32, [u64; 2]>;

/// Follows the threads of watched processes.
#[derive(Debug, Default)]
pub struct ThreadTimes {
    known: BTreeMap<SpaceId, Times>,
}

impl ThreadTimes {
    /// Fills in where the threads of each process ran in the interval.
    pub fn fill_in(&mut self, root: &Root, snapshot: &mut Snapshot) {
        let caches = &snapshot.caches;
        let mut known = BTreeMap::new();
        for process in &mut snapshot.processes {
            let before = self.known.remove(&process.space).unwrap_or_default();
            let (threads, now) = look(root, process.pid.0, &before, caches, snapshot.interval_us);
            process.threads = threads;
            known.insert(process.space, now);
        }
        self.known = known;
    }
}

/// Looks at the threads of a process.
fn look(
    root: &Root,
    pid: i32,
    before: &Times,
    caches: &[CacheState],
    interval_us: u64,
) -> (Evidence<Threads>, Times) {
    let mut times = Times::new();
    let mut by_cache = vec![0u64; caches.len()];
    let mut waiting_ns = 0;
    for (tid, task) in task::threads(root, pid) {
        let text = root.text(&format!("proc/{pid}/task/{tid}/schedstat"));
        let Some(now) = text.ok().and_then(|text| ran_and_waited(&text)) else {
            continue;
        };
        let then = before.get(&tid).copied().unwrap_or(now);
        let [ran, waited] = [0, 1].map(|at| u64::saturating_sub(now[at], then[at]));
        waiting_ns += waited;
        let holds = |cache: &CacheState| cache.cpus.contains(CpuId(task.last_cpu));
        if let Some(at) = caches.iter().position(holds) {
            by_cache[at] += (ran + waited).max(1);
        }
        times.insert(tid, now);
    }
    let allowed = sys::allowed_cpus_of(pid).unwrap_or_default();
    let has = |cache: &CacheState| !cache.cpus.intersection(&allowed).is_empty();
    let most = (0..by_cache.len()).max_by_key(|&at| (by_cache[at], std::cmp::Reverse(at)));
    let threads = Threads {
        waiting: waiting_ns as f64 / (interval_us.max(1) * 1000) as f64,
        cache: most.filter(|&at| by_cache[at] > 0),
        may: caches.iter().map(has).collect(),
    };
    let told = match times.is_empty() {
        false => Evidence::measured(threads, "/proc/PID/task/TID/schedstat and stat"),
        true => Evidence::unknown(
            "the kernel keeps no times of threads (CONFIG_SCHED_INFO), or the process has ended",
        ),
    };
    (told, times)
}

/// Time for which a thread ran, and for which it waited, in ns.
fn ran_and_waited(text: &str) -> Option<[u64; 2]> {
    let mut words = text.split_ascii_whitespace();
    let ran = words.next()?.parse().ok()?;
    let waited = words.next()?.parse().ok()?;
    Some([ran, waited])
}

#[cfg(test)]
mod tests {
    use super::*;
    use hither_core::ids::Pid;
    use hither_core::snapshot::ProcessState;
    use std::time::{Duration, Instant};

    #[test]
    fn lines_are_read() {
        assert_eq!(ran_and_waited("1200 34 5\n"), Some([1200, 34]));
        assert_eq!(ran_and_waited("1200\n"), None);
    }

    #[test]
    fn this_process_is_seen_where_it_runs() {
        let mut snapshot = Snapshot::of_nodes(Vec::new(), "test");
        let all = sys::allowed_cpus().unwrap();
        snapshot.caches.push(CacheState {
            cpus: all,
            bytes: 1 << 20,
        });
        let pid = Pid(std::process::id() as i32);
        snapshot
            .processes
            .push(ProcessState::unknown(pid, SpaceId(1), "test"));
        let mut times = ThreadTimes::default();
        times.fill_in(&Root::host(), &mut snapshot);
        let begin = Instant::now();
        while begin.elapsed() < Duration::from_millis(20) {
            std::hint::spin_loop();
        }
        snapshot.interval_us = begin.elapsed().as_micros() as u64;
        times.fill_in(&Root::host(), &mut snapshot);
        let threads = snapshot.processes[0].threads.value().unwrap();
        assert!(threads.waiting >= 0.0, "{threads:?}");
        assert_eq!((threads.cache, &threads.may[..]), (Some(0), &[true][..]));
        let ours = times.known[&SpaceId(1)].values().map(|times| times[0]);
        assert!(ours.sum::<u64>() > 10_000_000, "it ran");
    }
}
