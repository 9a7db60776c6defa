//! Threads that run on the CPUs of a set.

use super::Binding;
use crate::error::{Error, Result};
use crate::filter;
use hither_core::bind::{MemoryPolicy, ThreadPolicy};
use hither_core::ids::CpuId;
use hither_core::rset::{ResourceSet, Resources};
use hither_core::set::CpuSet;
use std::panic::resume_unwind;
use std::sync::mpsc;
use std::thread;

/// Most threads of a team: a larger number is a mistake.
const MOST_THREADS: usize = 65_536;

/// Threads with CPUs and a memory policy each. They live while a job runs ([`Team::run`]).
///
/// ```
/// use hither_core::bind::ThreadPolicy;
/// use hither_linux::bind::{self, Team};
///
/// let here = bind::here()?;
/// let set = bind::resolve("set", "allowed", &here)?.set;
/// let team = Team::new(&set, ThreadPolicy::Fill, &here)?.of(3)?;
/// let squares = team.run(|member| member.index * member.index)?;
/// assert_eq!(squares, [0, 1, 4]);
/// # Ok::<(), hither_linux::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Team {
    /// What every thread gets, but for its CPU.
    binding: Binding,
    /// CPUs in the order in which threads get them; empty where they float.
    order: Vec<CpuId>,
    count: usize,
}

/// One thread of a team.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Member {
    /// Its number, from 0.
    pub index: usize,
    /// Threads of the team.
    pub count: usize,
    /// Its CPU; `None` where threads float.
    pub cpu: Option<CpuId>,
}

impl Team {
    /// A thread for every CPU of the set, or of all that may be used where it names none. Where the
    /// set has memory, threads take pages from there alone.
    ///
    /// # Errors
    /// What the kernel refuses, which is tried out.
    pub fn new(set: &ResourceSet, threads: ThreadPolicy, resources: &Resources) -> Result<Self> {
        Self::with_memory(set, threads, None, resources)
    }

    /// The same with a memory policy.
    ///
    /// # Errors
    /// As [`Team::new`]; or there is no memory that the policy could mean.
    pub fn with_memory(
        set: &ResourceSet,
        threads: ThreadPolicy,
        memory: Option<MemoryPolicy>,
        resources: &Resources,
    ) -> Result<Self> {
        let mut binding = Binding::on(set, memory, resources)?;
        let cpus = binding.cpus.take();
        binding.cpus = Some(cpus.unwrap_or_else(|| resources.usable().cpus));
        let granted = binding.try_out()?;
        Ok(Self {
            order: threads.order(&granted.cpus, resources),
            count: granted.cpus.len(),
            binding,
        })
    }

    /// With another number of threads; the thread after the last CPU gets the first again.
    ///
    /// # Errors
    /// 0, or more than 65536.
    pub fn of(mut self, count: usize) -> Result<Self> {
        if !(1..=MOST_THREADS).contains(&count) {
            let reason = format!("{count} threads are asked for");
            let remedy = format!("ask for 1 to {MOST_THREADS}");
            return Err(Error::new("team", reason, remedy));
        }
        self.count = count;
        Ok(self)
    }

    /// Threads of it.
    #[must_use]
    pub fn count(&self) -> usize {
        self.count
    }

    /// The thread of a number.
    #[must_use]
    pub fn member(&self, index: usize) -> Member {
        let cpu = index.checked_rem(self.order.len());
        Member {
            index,
            count: self.count,
            cpu: cpu.map(|place| self.order[place]),
        }
    }

    /// What the thread of a number is bound to: for threads that are made elsewhere.
    #[must_use]
    pub fn binding(&self, index: usize) -> Binding {
        let mut binding = self.binding.clone();
        if let Some(cpu) = self.member(index).cpu {
            binding.cpus = Some(CpuSet::from_iter([cpu]));
        }
        binding
    }

    /// Starts the threads, runs `job` once in each, and returns what they returned, in order.
    ///
    /// # Errors
    /// A thread cannot be started or bound; then no job has run.
    ///
    /// # Panics
    /// As the first job that panics, when all have ended.
    pub fn run<T: Send>(&self, job: impl Fn(Member) -> T + Sync) -> Result<Vec<T>> {
        let job = &job;
        thread::scope(|scope| {
            let (told, bound) = mpsc::channel();
            let mut threads = Vec::new();
            let mut failed = None;
            for index in 0..self.count {
                let (told, (go, gate)) = (told.clone(), mpsc::channel::<()>());
                let (binding, member) = (self.binding(index), self.member(index));
                let started = thread::Builder::new().spawn_scoped(scope, move || {
                    let _ = told.send(binding.apply());
                    drop(told);
                    // Closed where another could not be bound: then nobody begins.
                    gate.recv().ok().map(|()| job(member))
                });
                match started {
                    Ok(thread) => threads.push((thread, go)),
                    Err(error) => {
                        let reason = format!("thread {index} of {} cannot be started", self.count);
                        failed = Some(Error {
                            place: "team".into(),
                            reason,
                            ..filter::no_thread(error)
                        });
                        break;
                    }
                }
            }
            drop(told);
            let refused = bound.into_iter().filter_map(Result::err).last();
            let failed = failed.or(refused);
            if failed.is_none() {
                for (_, go) in &threads {
                    // It waits for this, and has nothing else to end of.
                    let _ = go.send(());
                }
            }
            let ended: Vec<_> = threads
                .into_iter()
                .map(|(thread, go)| {
                    drop(go);
                    thread.join()
                })
                .collect();
            if let Some(error) = failed {
                return Err(error);
            }
            let results = ended.into_iter().map(|end| match end {
                Ok(result) => result,
                Err(panic) => resume_unwind(panic),
            });
            Ok(results.flatten().collect())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bind;
    use crate::sys;

    fn team(threads: &str) -> Team {
        let here = bind::here().unwrap();
        let set = bind::resolve("set", "allowed", &here).unwrap().set;
        Team::new(&set, threads.parse().unwrap(), &here).unwrap()
    }

    #[test]
    fn each_thread_has_its_cpu_and_the_memory() {
        let own = sys::allowed_cpus().unwrap();
        for threads in ["fill", "round-robin:node", "round-robin:core", "float"] {
            let team = team(threads).of(own.len() + 1).unwrap();
            let state = |member: Member| {
                let cpus = sys::allowed_cpus().unwrap();
                let policy = sys::own_policy().unwrap().to_string();
                (member, cpus, policy)
            };
            let found = team.run(state).unwrap();
            for (index, (member, cpus, policy)) in found.iter().enumerate() {
                assert_eq!((member.index, member.count), (index, own.len() + 1));
                assert!(policy.starts_with("bind:0"), "{policy}");
                match member.cpu {
                    Some(cpu) => assert_eq!(*cpus, CpuSet::from_iter([cpu]), "{threads}"),
                    None => assert_eq!((*cpus == own, threads), (true, "float")),
                }
            }
            // One more than there are CPUs: it shares the first.
            assert_eq!(found[own.len()].0.cpu, found[0].0.cpu);
        }
        assert_eq!(sys::allowed_cpus().unwrap(), own, "the caller is not bound");
    }

    #[test]
    fn nobody_begins_where_one_cannot_be_bound() {
        let mut team = team("fill").of(3).unwrap();
        team.order = vec![team.order[0], CpuId(60_000)];
        let count = std::sync::atomic::AtomicUsize::new(0);
        let ran = team.run(|_| count.fetch_add(1, std::sync::atomic::Ordering::Relaxed));
        let why = ran.unwrap_err().to_string();
        assert!(why.contains("CPUs 60000 are refused"), "{why}");
        assert_eq!(count.into_inner(), 0);
    }

    #[test]
    #[should_panic(expected = "meant by this test")]
    fn a_panic_is_passed_on() {
        let _ = team("fill").run(|_| panic!("meant by this test"));
    }

    #[test]
    fn bad_counts_are_refused() {
        for count in [0, MOST_THREADS + 1] {
            let why = team("float").of(count).unwrap_err().to_string();
            assert!(why.contains("ask for 1 to 65536"), "{why}");
        }
    }
}
