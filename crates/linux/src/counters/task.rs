//! What `/proc/PID/stat` and `/proc/PID/task/TID/stat` tell beyond [`crate::proc::stat`]: faults,
//! threads and the CPU on which a thread ran last.

use crate::error::Fault;
use crate::parse::{Parsed, clip};
use crate::proc;
use crate::proc::stat::{self, Stat};
use crate::root::Root;

/// One reading of a process or a thread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskTimes {
    /// Name, parent, CPU time, start, resident pages.
    pub stat: Stat,
    /// Faults that needed no reading from a disk, since it began.
    pub minor_faults: u64,
    /// Faults that did.
    pub major_faults: u64,
    /// Threads of its process.
    pub thread_count: u32,
    /// The CPU on which it ran last (of a process: its first thread).
    pub last_cpu: u32,
}

/// Parses the line; fields by the numbers of proc(5).
pub fn parse(text: &str) -> Parsed<TaskTimes> {
    let stat = stat::parse(text)?;
    let after = text.rsplit_once(')').map_or("", |(_, after)| after);
    let mut fields = after.split_whitespace();
    let mut taken = 2;
    let mut field = |number: usize| -> Parsed<u64> {
        let word = fields.nth(number - taken - 1).unwrap_or("");
        taken = number;
        word.parse().map_err(|_| {
            let line = clip(text.trim());
            Fault::new(1, format!("`{line}` has no number as field {number}"))
        })
    };
    Ok(TaskTimes {
        stat,
        minor_faults: field(10)?,
        major_faults: field(12)?,
        thread_count: field(20)? as u32,
        last_cpu: field(39)? as u32,
    })
}

/// A process; `None` where it has ended or cannot be read.
#[must_use]
pub fn process(root: &Root, pid: i32) -> Option<TaskTimes> {
    read(root, pid, "stat")
}

/// The threads of a process by number, ascending; those that end meanwhile are left out.
#[must_use]
pub fn threads(root: &Root, pid: i32) -> Vec<(i32, TaskTimes)> {
    let threads = proc::threads(root, pid).unwrap_or_default().into_iter();
    let read = |tid| Some((tid, read(root, pid, &format!("task/{tid}/stat"))?));
    threads.filter_map(read).collect()
}

fn read(root: &Root, pid: i32, file: &str) -> Option<TaskTimes> {
    proc::read(root, pid, file, parse).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: &str = "77 (a ) b) R 1 77 77 0 -1 4194304 1234 9 56 8 12 3 0 0 20 0 6 0 8342 2457600 225 18446744073709551615 1 1 0 0 0 0 0 0 0 0 0 0 17 5 0 0 0 0 0\n";

    #[test]
    fn fields_are_those_of_proc_5() {
        let task = parse(LINE).unwrap();
        assert_eq!(
            (task.stat.name.as_str(), task.stat.cpu_ticks),
            ("a ) b", 15)
        );
        assert_eq!((task.minor_faults, task.major_faults), (1234, 56));
        assert_eq!((task.thread_count, task.last_cpu), (6, 5));
    }

    #[test]
    fn short_lines_are_faults_and_never_panics() {
        assert!(parse(&LINE[..80]).is_err());
        for cut in 0..LINE.len() {
            let _ = parse(&LINE[..cut]);
        }
    }

    #[test]
    fn this_process_and_its_threads_are_read() {
        let root = Root::host();
        let pid = std::process::id() as i32;
        let own = process(&root, pid).unwrap();
        assert!(own.minor_faults > 0 && own.thread_count >= 1, "{own:?}");
        let threads = threads(&root, pid);
        assert!(threads.iter().any(|(tid, _)| *tid == pid));
        assert_eq!(process(&root, i32::MAX), None);
        assert!(super::threads(&root, i32::MAX).is_empty());
    }
}
