//! Keeps the threads of running processes on CPUs, one each, in a given order.
//!
//! A thread that the preload shim places sits on the [`Board`] before its first instruction. Threads
//! of programs that do not load the shim (static ones, Go's own) are looked for: such a thread runs
//! where the one that made it may run, until a turn finds it.

use super::board::Board;
use crate::proc;
use crate::root::Root;
use crate::sys;
use hither_core::ids::CpuId;
use std::collections::BTreeSet;
use std::rc::Rc;

/// Gives each new thread the first CPU that fewest living ones have.
#[derive(Debug)]
pub struct Keeper {
    order: Vec<CpuId>,
    board: Rc<Board>,
    /// Does the shim place threads, too?
    has_shim: bool,
    /// Threads that sat at the end of the last turn.
    sat: BTreeSet<i32>,
    /// Threads that had no place at the last turn: those of the shim have not begun yet.
    new: BTreeSet<i32>,
    /// Threads that may not be moved: another user's, or under a scheduler of their own.
    refused: BTreeSet<i32>,
    most: usize,
}

impl Keeper {
    /// `order` must not be empty, and the board have its length.
    #[must_use]
    pub fn new(order: Vec<CpuId>, board: Rc<Board>, has_shim: bool) -> Self {
        Self {
            order,
            board,
            has_shim,
            sat: BTreeSet::new(),
            new: BTreeSet::new(),
            refused: BTreeSet::new(),
            most: 0,
        }
    }

    /// Finds new threads of these processes and gives them CPUs; forgets those that ended.
    pub fn turn(&mut self, root: &Root, pids: impl IntoIterator<Item = i32>) {
        let mut living = BTreeSet::new();
        for pid in pids {
            // None of a process that has just ended.
            living.extend(proc::threads(root, pid).unwrap_or_default());
        }
        let seats = self.board.seats();
        // Those that sat before anybody looked who lives: whoever sits since then may live as well.
        for gone in self.sat.difference(&living) {
            seats.stand_up(*gone as u32);
        }
        self.refused.retain(|tid| living.contains(tid));
        let before = std::mem::take(&mut self.new);
        for &tid in &living {
            if seats.place(tid as u32).is_some() || self.refused.contains(&tid) {
                continue;
            }
            if self.has_shim && !before.contains(&tid) {
                self.new.insert(tid);
                continue;
            }
            let Some(place) = seats.take_place() else {
                return;
            };
            let cpus = self.order.get(place).copied().into_iter().collect();
            match sys::keep_thread_on(tid, &cpus) {
                Ok(()) => seats.sit(tid as u32, place),
                Err(error) => {
                    seats.leave_place(place);
                    if error.raw_os_error() != Some(sys::ESRCH) {
                        self.refused.insert(tid);
                    }
                }
            }
        }
        self.sat = seats.threads().map(|tid| tid as i32).collect();
        self.most = self.most.max(self.sat.intersection(&living).count());
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
        let board = Rc::new(Board::new(order.len()).unwrap());
        let mut keeper = Keeper::new(order.clone(), Rc::clone(&board), true);
        let pid = child.id() as i32;
        keeper.turn(&root, [pid]);
        // The shim has its chance.
        assert_eq!(board.seats().threads().count(), 0);
        keeper.turn(&root, [pid]);
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let wanted = format!("Cpus_allowed_list:\t{}\n", order[0].0);
        assert!(status.contains(&wanted), "{status}");
        assert_eq!(board.seats().place(pid as u32), Some(0));
        child.kill().unwrap();
        child.wait().unwrap();
        keeper.turn(&root, [pid]);
        assert_eq!(board.seats().threads().count(), 0);
        assert_eq!(board.seats().take_place(), Some(0));
        assert_eq!((keeper.most_count(), keeper.refused_count()), (1, 0));
    }
}
