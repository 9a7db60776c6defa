//! Which CPUs the threads of processes may use.

use super::allowed;
use crate::root::Root;
use hither_core::set::CpuSet;

/// Threads looked at, at most: beyond it there are more than CPUs to stay off.
const MOST_THREADS: usize = 4096;

/// The CPUs that each thread of these processes may use. Threads that end meanwhile, or may not be
/// looked at, are left out.
#[must_use]
pub fn threads(root: &Root, pids: impl IntoIterator<Item = i32>) -> Vec<CpuSet> {
    let tasks = pids.into_iter().flat_map(|pid| {
        let tids = super::threads(root, pid).unwrap_or_default().into_iter();
        tids.map(move |tid| format!("task/{tid}/status"))
            .map(move |file| (pid, file))
    });
    let allowed = tasks.take(MOST_THREADS).filter_map(|(pid, file)| {
        let status = super::read(root, pid, &file, allowed::parse);
        status.ok().and_then(|allowed| allowed.cpus)
    });
    allowed.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys;

    #[test]
    fn every_thread_is_told() {
        let cpus = sys::allowed_cpus().unwrap();
        let first = cpus.iter().take(1).collect::<CpuSet>();
        let kept = first.clone();
        let (ready, is_ready) = std::sync::mpsc::channel();
        let (end, is_end) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::spawn(move || {
            sys::stay_on(&kept).unwrap();
            ready.send(()).unwrap();
            let _ = is_end.recv();
        });
        is_ready.recv().unwrap();
        let found = threads(&Root::host(), [std::process::id() as i32, -1]);
        assert!(found.contains(&first) && found.contains(&cpus), "{found:?}");
        drop(end);
        thread.join().unwrap();
    }
}
