//! Keeps the threads of running processes on CPUs, one each, in a given order.
//!
//! A new thread runs where the one that made it may run, until the next turn finds it.

use crate::root::Root;
use crate::sys;
use hither_core::ids::CpuId;
use hither_core::set::CpuSet;
use std::collections::{BTreeMap, BTreeSet};

/// Gives each new thread the first CPU that fewest living ones have.
#[derive(Debug)]
pub struct Keeper {
    order: Vec<CpuId>,
    /// Places in `order`, by thread.
    given: BTreeMap<i32, usize>,
    /// Threads that may not be moved: another user's, or under a scheduler of their own.
    refused: BTreeSet<i32>,
    most: usize,
}

impl Keeper {
    /// `order` must not be empty.
    #[must_use]
    pub fn new(order: Vec<CpuId>) -> Self {
        Self {
            order,
            given: BTreeMap::new(),
            refused: BTreeSet::new(),
            most: 0,
        }
    }

    /// Finds new threads of these processes and gives them CPUs; forgets those that ended.
    pub fn turn(&mut self, root: &Root, pids: impl IntoIterator<Item = i32>) {
        let mut living = BTreeSet::new();
        for pid in pids {
            // None of a process that has just ended.
            let threads = root.numbered(&format!("proc/{pid}/task"), "");
            living.extend(
                threads
                    .unwrap_or_default()
                    .into_iter()
                    .map(|tid| tid as i32),
            );
        }
        self.given.retain(|tid, _| living.contains(tid));
        self.refused.retain(|tid| living.contains(tid));
        for tid in living {
            if self.given.contains_key(&tid) || self.refused.contains(&tid) {
                continue;
            }
            let place = self.freest();
            let Some(&cpu) = self.order.get(place) else {
                return;
            };
            match sys::keep_thread_on(tid, &CpuSet::from_iter([cpu])) {
                Ok(()) => {
                    self.given.insert(tid, place);
                }
                Err(error) if error.raw_os_error() == Some(sys::ESRCH) => {}
                Err(_) => {
                    self.refused.insert(tid);
                }
            }
        }
        self.most = self.most.max(self.given.len());
    }

    fn freest(&self) -> usize {
        let mut counts = vec![0usize; self.order.len()];
        for &place in self.given.values() {
            counts[place] += 1;
        }
        let fewest = counts.iter().min().copied();
        counts
            .iter()
            .position(|&count| Some(count) == fewest)
            .unwrap_or(0)
    }

    /// Most threads that were kept at once.
    #[must_use]
    pub fn most_count(&self) -> usize {
        self.most
    }

    /// Threads that live and could not be placed.
    #[must_use]
    pub fn refused_count(&self) -> usize {
        self.refused.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_thread_gets_a_cpu_and_a_free_one_is_given_again() {
        // In a process of its own, since all threads of one are kept.
        let mut child = std::process::Command::new("sleep")
            .arg("60")
            .spawn()
            .unwrap();
        let root = Root::host();
        let own = sys::allowed_cpus().unwrap();
        let order: Vec<CpuId> = own.iter().collect();
        let mut keeper = Keeper::new(order.clone());
        let pid = child.id() as i32;
        keeper.turn(&root, [pid]);
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let wanted = format!("Cpus_allowed_list:\t{}\n", order[0].0);
        assert!(status.contains(&wanted), "{status}");
        assert_eq!(keeper.freest(), 1 % order.len());
        child.kill().unwrap();
        child.wait().unwrap();
        keeper.turn(&root, [pid]);
        assert_eq!((keeper.freest(), keeper.given.len()), (0, 0));
        assert_eq!((keeper.most_count(), keeper.refused_count()), (1, 0));
    }

    #[test]
    fn the_cpu_with_fewest_threads_is_next() {
        let mut keeper = Keeper::new([4, 0, 2].map(CpuId).to_vec());
        let mut next = |tid| {
            let place = keeper.freest();
            keeper.given.insert(tid, place);
            keeper.order[place].0
        };
        assert_eq!([1, 2, 3, 4].map(&mut next), [4, 0, 2, 4]);
        keeper.given.remove(&2);
        assert_eq!(keeper.order[keeper.freest()], CpuId(0));
    }
}
