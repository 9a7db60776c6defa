//! Keeps the threads of running programs on the CPUs of a cache, and gives them back what they had.
//!
//! Each thread keeps to what it might use before, within the CPUs that are asked for; one that could use none of them is left
//! alone. A thread that a placed one starts inherits its CPUs.

use crate::proc::{self, stat};
use crate::root::Root;
use crate::sys;
use hither_core::set::CpuSet;
use std::collections::{BTreeMap, BTreeSet};
use std::io;

/// Looks for threads that were started meanwhile.
const PASSES: usize = 3;

/// A program whose threads were placed.
#[derive(Debug)]
struct Program {
    /// In clock ticks since boot: another program of the same number is none of ours.
    start_ticks: u64,
    /// What each thread might use before.
    before: BTreeMap<i32, CpuSet>,
}

/// All programs whose threads were placed. They have back what they had when this is dropped.
#[derive(Debug)]
pub struct Placed {
    root: Root,
    programs: BTreeMap<i32, Program>,
}

impl Placed {
    /// None yet.
    #[must_use]
    pub fn new() -> Self {
        Self {
            root: Root::host(),
            programs: BTreeMap::new(),
        }
    }

    /// Keeps the threads of a program on these CPUs; says how many there are.
    ///
    /// # Errors
    /// `ESRCH`: it has ended. `EPERM`: it is another user's. `EINVAL`: no thread may use any of them.
    pub fn put(&mut self, pid: i32, cpus: &CpuSet) -> io::Result<usize> {
        let gone = || io::Error::from_raw_os_error(sys::ESRCH);
        let start_ticks = stat::read(&self.root, pid).ok_or_else(gone)?.start_ticks;
        let fresh = || Program {
            start_ticks,
            before: BTreeMap::new(),
        };
        let program = self.programs.entry(pid).or_insert_with(fresh);
        if program.start_ticks != start_ticks {
            *program = fresh();
        }
        let mut done = BTreeSet::new();
        let mut refused = io::Error::from_raw_os_error(sys::EINVAL);
        let was_placed = !program.before.is_empty();
        for pass in 0..PASSES {
            let count = done.len();
            let living = proc::threads(&self.root, pid).unwrap_or_default();
            for &tid in &living {
                if done.contains(&tid) {
                    continue;
                }
                // A thread that a placed one started had, but for that, what its program had.
                let inherits = was_placed || pass > 0;
                let of_first = program.before.get(&pid).filter(|_| inherits);
                let had = match program.before.get(&tid).or(of_first) {
                    Some(had) => had.clone(),
                    None => match sys::allowed_cpus_of(tid) {
                        Ok(had) => had,
                        Err(_) => continue,
                    },
                };
                let wanted = had.intersection(cpus);
                let kept = match wanted.is_empty() {
                    true => Err(io::Error::from_raw_os_error(sys::EINVAL)),
                    false => sys::keep_thread_on(tid, &wanted),
                };
                match kept {
                    Ok(()) => {
                        program.before.entry(tid).or_insert(had);
                        done.insert(tid);
                    }
                    Err(error) if error.raw_os_error() != Some(sys::ESRCH) => refused = error,
                    Err(_) => {}
                }
            }
            program.before.retain(|tid, _| living.contains(tid));
            if done.len() == count {
                break;
            }
        }
        match done.len() {
            0 => Err(refused),
            count => Ok(count),
        }
    }

    /// Gives the threads of a program what they had; those that were started since have what its first had.
    pub fn release(&mut self, pid: i32) {
        let Some(program) = self.programs.remove(&pid) else {
            return;
        };
        if stat::read(&self.root, pid).is_none_or(|stat| stat.start_ticks != program.start_ticks) {
            return;
        }
        for tid in proc::threads(&self.root, pid).unwrap_or_default() {
            let had = program.before.get(&tid).or(program.before.get(&pid));
            if let Some(had) = had {
                // It has ended, or its cpuset was changed meanwhile, to which the kernel has adapted it.
                let _ = sys::keep_thread_on(tid, had);
            }
        }
    }

    /// The same of all.
    pub fn release_all(&mut self) {
        let pids: Vec<i32> = self.programs.keys().copied().collect();
        pids.into_iter().for_each(|pid| self.release(pid));
    }
}

impl Default for Placed {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for Placed {
    fn drop(&mut self) {
        self.release_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hither_core::ids::CpuId;
    use std::process::{Child, Command};

    struct Ended(Child);

    impl Drop for Ended {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    #[test]
    fn a_program_is_kept_and_has_back_what_it_had() {
        let child = Ended(Command::new("sleep").arg("60").spawn().unwrap());
        let pid = child.0.id() as i32;
        let had = sys::allowed_cpus_of(pid).unwrap();
        let first: CpuSet = had.first().into_iter().collect();
        let mut placed = Placed::new();
        assert_eq!(placed.put(pid, &first).unwrap(), 1);
        assert_eq!(sys::allowed_cpus_of(pid).unwrap(), first);
        // Once more elsewhere: it is what it had at first that counts.
        placed.put(pid, &had).unwrap();
        assert_eq!(sys::allowed_cpus_of(pid).unwrap(), had);
        placed.put(pid, &first).unwrap();
        drop(placed);
        assert_eq!(sys::allowed_cpus_of(pid).unwrap(), had);
    }

    #[test]
    fn who_may_use_none_of_the_cpus_and_who_is_gone_is_refused() {
        let child = Ended(Command::new("sleep").arg("60").spawn().unwrap());
        let pid = child.0.id() as i32;
        let mut placed = Placed::new();
        let none: CpuSet = [CpuId(8000)].into_iter().collect();
        let error = placed.put(pid, &none).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(sys::EINVAL));
        drop(child);
        let error = placed.put(pid, &none).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(sys::ESRCH));
    }
}
