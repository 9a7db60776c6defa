//! Looks up for whoever moves pages what must not move, process by process, at bounded cost.

use super::{Fixed, read};
use crate::root::Root;
use crate::sys;
use std::collections::BTreeMap;

/// A look is good for so long, in ns: what is registered later, the kernel itself refuses.
const GOOD_NS: u64 = 1_000_000_000;
/// And for so many times what it took, so that looks take 2 % of the time at most.
const TIMES: u64 = 50;
/// Processes that are remembered.
const MOST_PROCESSES: usize = 256;

/// What must not move, by process.
#[derive(Debug)]
pub struct Guard {
    root: Root,
    known: BTreeMap<i32, Known>,
}

#[derive(Debug)]
struct Known {
    fixed: Fixed,
    until_ns: u64,
}

impl Default for Guard {
    fn default() -> Self {
        Self::new(&Root::host())
    }
}

impl Guard {
    /// Of a machine.
    #[must_use]
    pub fn new(root: &Root) -> Self {
        Self {
            root: root.clone(),
            known: BTreeMap::new(),
        }
    }

    /// What of a process must not move. Of one that has ended, or may not be looked into, nothing:
    /// it may not be moved either, as the kernel asks for the same rights.
    pub fn fixed(&mut self, pid: i32) -> &Fixed {
        let start_ns = sys::monotonic_ns();
        let is_good = |known: &Known| start_ns < known.until_ns;
        if !self.known.get(&pid).is_some_and(is_good) {
            if self.known.len() >= MOST_PROCESSES {
                self.known.clear();
            }
            let fixed = read(&self.root, pid).unwrap_or_default();
            let end_ns = sys::monotonic_ns();
            let good_ns = (TIMES * end_ns.saturating_sub(start_ns)).max(GOOD_NS);
            let known = Known {
                fixed,
                until_ns: end_ns + good_ns,
            };
            self.known.insert(pid, known);
        }
        &self.known[&pid].fixed
    }
}
