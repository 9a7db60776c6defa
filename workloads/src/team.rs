//! A team of threads: pinned, in step at barriers that sleep, measured by thread 0.
//!
//! The barrier is the standard library's (a futex underneath): a spinning one would spend the
//! emulator's instructions on waiting. Programs with hundreds of barriers a second have a spinning one
//! besides: sixteen sleepers take longer to wake than such a program computes in between.

use crate::cli::{Args, Failure, usage};
use crate::marker;
use std::io::Error;
use std::ops::Range;
use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

/// Most threads of a team.
pub const MAX_THREADS: u64 = 1024;

/// Looks at a spinning barrier before the CPU is offered to others, as there may be fewer CPUs than
/// threads: about a tenth of a millisecond on the slowest machine file's CPU.
const SPINS: u32 = 2000;

/// How many threads, and where they run.
#[derive(Debug)]
pub struct ThreadTeam {
    threads: usize,
    cpus: Option<Vec<usize>>,
}

/// One thread of a team.
#[derive(Debug)]
pub struct Member<'a> {
    /// Its number, from 0.
    pub id: usize,
    /// How many there are.
    pub threads: usize,
    barrier: &'a Barrier,
    spinning: &'a Spinning,
}

/// A barrier whose waiters stay awake.
#[derive(Debug, Default)]
struct Spinning {
    /// How many have come: each adds itself, the last one takes all away.
    arrived: AtomicUsize,
    /// How often it has opened. The last to come writes it, which releases what all wrote before;
    /// those who wait acquire it.
    opened: AtomicUsize,
}

impl Spinning {
    fn wait(&self, threads: usize) {
        let opened = self.opened.load(Ordering::Acquire);
        // Acquires what those wrote who came before, for the release below to hand on.
        if self.arrived.fetch_add(1, Ordering::AcqRel) + 1 == threads {
            self.arrived.store(0, Ordering::Relaxed);
            self.opened.store(opened.wrapping_add(1), Ordering::Release);
            return;
        }
        let mut spins = 0;
        while self.opened.load(Ordering::Acquire) == opened {
            spins += 1;
            match spins < SPINS {
                true => std::hint::spin_loop(),
                false => std::thread::yield_now(),
            }
        }
    }
}

impl ThreadTeam {
    /// As `--threads`, `--pin` and `--no-pin` say.
    ///
    /// # Errors
    /// [`Failure::Usage`] for a wrong number or for `--pin --no-pin`.
    pub fn from_args(args: &Args) -> Result<Self, Failure> {
        Self::from_args_or(args, None)
    }

    /// As [`ThreadTeam::from_args`], with so many threads where `--threads` is not given; `None` is one per CPU.
    ///
    /// # Errors
    /// As there.
    pub fn from_args_or(args: &Args, threads: Option<usize>) -> Result<Self, Failure> {
        if args.has("pin") && args.has("no-pin") {
            return Err(usage(
                "--pin and --no-pin exclude each other: give one".to_owned(),
            ));
        }
        let cpus = allowed_cpus()?;
        let given = args.optional("threads", 1..=MAX_THREADS)?;
        let threads = given.map(|given| given as usize).or(threads);
        Ok(Self {
            threads: threads.unwrap_or(cpus.len()),
            cpus: (!args.has("no-pin")).then_some(cpus),
        })
    }

    /// So many threads, which the kernel's scheduler places.
    #[cfg(test)]
    pub(crate) fn unpinned(threads: usize) -> Self {
        Self {
            threads,
            cpus: None,
        }
    }

    /// As [`ThreadTeam::from_args`], on the CPUs of `--cpus` where that is given: one thread on each
    /// unless `--threads` says otherwise.
    ///
    /// # Errors
    /// [`Failure::Usage`] for a CPU that the process may not use.
    pub fn from_args_with_cpus(args: &Args) -> Result<Self, Failure> {
        let mut team = Self::from_args(args)?;
        let chosen = args.list("cpus", &(0..=u64::from(u16::MAX)))?;
        if chosen.is_empty() {
            return Ok(team);
        }
        if args.has("no-pin") {
            return Err(usage(
                "--cpus and --no-pin exclude each other: give one".to_owned(),
            ));
        }
        let cpus: Vec<usize> = chosen.iter().map(|&cpu| cpu as usize).collect();
        for &cpu in &cpus {
            check_cpu("cpus", cpu)?;
        }
        if !args.has("threads") {
            team.threads = cpus.len();
        }
        team.cpus = Some(cpus);
        Ok(team)
    }

    /// Number of threads.
    #[must_use]
    pub fn threads(&self) -> usize {
        self.threads
    }

    /// Runs `body` on every thread and returns what they return, by thread number.
    ///
    /// # Errors
    /// [`Failure::Machine`] where a thread cannot be started.
    pub fn run<T: Send>(&self, body: impl Fn(&Member<'_>) -> T + Sync) -> Result<Vec<T>, Failure> {
        let barrier = Barrier::new(self.threads);
        let spinning = Spinning::default();
        let (body, barrier, spinning) = (&body, &barrier, &spinning);
        std::thread::scope(|scope| {
            let mut handles = Vec::with_capacity(self.threads);
            for id in 0..self.threads {
                let cpu = self.cpus.as_ref().map(|cpus| cpus[id % cpus.len()]);
                let member = Member {
                    id,
                    threads: self.threads,
                    barrier,
                    spinning,
                };
                let work = move || {
                    if let Some(Err(error)) = cpu.map(pin) {
                        abandon(&format!("cannot pin thread {id}: {error}"));
                    }
                    body(&member)
                };
                match std::thread::Builder::new().spawn_scoped(scope, work) {
                    Ok(handle) => handles.push(handle),
                    Err(error) => abandon(&format!(
                        "cannot start thread {id} of {}: {error}; use fewer --threads",
                        self.threads
                    )),
                }
            }
            Ok(handles
                .into_iter()
                .map(|handle| {
                    handle
                        .join()
                        .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
                })
                .collect())
        })
    }
}

impl Member<'_> {
    /// Waits for all members.
    pub fn sync(&self) {
        self.barrier.wait();
    }

    /// Waits for all members, awake.
    pub fn sync_awake(&self) {
        self.spinning.wait(self.threads);
    }

    /// This member's part of `count` things.
    #[must_use]
    pub fn part(&self, count: usize) -> Range<usize> {
        part(count, self.threads, self.id)
    }

    /// Runs `work` on all members at once inside the measuring window. Returns its result and the
    /// seconds from the common start to the common end.
    pub fn measure<T>(&self, work: impl FnOnce() -> T) -> (T, f64) {
        self.sync();
        if self.id == 0 {
            marker::open();
        }
        let start = Instant::now();
        self.sync();
        let result = work();
        self.sync();
        let seconds = start.elapsed().as_secs_f64();
        if self.id == 0 {
            marker::close();
        }
        (result, seconds)
    }
}

/// Part `id` of `count` things in `parts` parts whose sizes differ by at most one.
#[must_use]
pub fn part(count: usize, parts: usize, id: usize) -> Range<usize> {
    let edge = |id: usize| (count as u128 * id as u128 / parts as u128) as usize;
    edge(id)..edge(id + 1)
}

/// Ends the process: the other threads wait at a barrier that will not open.
fn abandon(message: &str) -> ! {
    eprintln!("{message}");
    std::process::exit(1);
}

/// CPUs that this process may use, ascending.
///
/// # Errors
/// [`Failure::Machine`] where the kernel does not say.
pub fn allowed_cpus() -> Result<Vec<usize>, Failure> {
    // SAFETY: an all-zero cpu_set_t is the empty set.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: the kernel writes at most the size that it is told.
    let status = unsafe { libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &raw mut set) };
    if status != 0 {
        let error = Error::last_os_error();
        return Err(Failure::Machine(format!(
            "cannot read the CPUs of this process: {error}"
        )));
    }
    // SAFETY: every index is below CPU_SETSIZE, the number of bits in the set.
    Ok((0..libc::CPU_SETSIZE as usize)
        .filter(|&cpu| unsafe { libc::CPU_ISSET(cpu, &set) })
        .collect())
}

/// Refuses a CPU that this process may not use.
///
/// # Errors
/// [`Failure::Usage`] naming the option and the CPUs there are.
pub fn check_cpu(option: &str, cpu: usize) -> Result<(), Failure> {
    let allowed = allowed_cpus()?;
    if allowed.contains(&cpu) {
        return Ok(());
    }
    let list: Vec<String> = allowed.iter().map(usize::to_string).collect();
    Err(usage(format!(
        "--{option}: this process may not use CPU {cpu}; it may use {}",
        list.join(",")
    )))
}

/// Keeps the calling thread on one CPU, one of [`allowed_cpus`].
///
/// # Errors
/// The kernel's, where the CPU has gone meanwhile.
pub fn pin(cpu: usize) -> Result<(), Error> {
    stay_on(&[cpu])
}

/// Has the kernel end this process when its parent ends. Makes system calls alone.
///
/// # Errors
/// The parent has ended already, or the kernel refuses.
pub fn end_with(parent: u32) -> Result<(), Error> {
    // SAFETY: prctl reads its arguments alone.
    if unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) } != 0 {
        return Err(Error::last_os_error());
    }
    // SAFETY: getppid has no arguments.
    match unsafe { libc::getppid() }.cast_unsigned() == parent {
        true => Ok(()),
        // It ended before the kernel was asked.
        false => Err(Error::from(std::io::ErrorKind::BrokenPipe)),
    }
}

/// Keeps the calling thread on these CPUs, each one of [`allowed_cpus`].
///
/// # Errors
/// The kernel's, where all of them have gone meanwhile.
pub fn stay_on(cpus: &[usize]) -> Result<(), Error> {
    // SAFETY: an all-zero cpu_set_t is the empty set.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    for &cpu in cpus {
        // SAFETY: callers take `cpus` from `allowed_cpus`, hence below CPU_SETSIZE.
        unsafe { libc::CPU_SET(cpu, &mut set) };
    }
    // SAFETY: the kernel reads the size that it is told; 0 is the calling thread.
    let status =
        unsafe { libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const set) };
    if status == 0 {
        Ok(())
    } else {
        Err(Error::last_os_error())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_passes_a_barrier_before_the_last_has_come() {
        let team = ThreadTeam {
            threads: 5,
            cpus: None,
        };
        let come = AtomicUsize::new(0);
        team.run(|member| {
            for round in 1..=100 {
                come.fetch_add(1, Ordering::Relaxed);
                member.sync_awake();
                assert_eq!(come.load(Ordering::Relaxed), 5 * round);
                member.sync_awake();
            }
        })
        .unwrap();
    }

    #[test]
    fn parts_cover_everything_once_and_evenly() {
        for (count, parts) in [(10, 3), (2, 4), (0, 2), (64, 8), (7, 7)] {
            let ranges: Vec<_> = (0..parts).map(|id| part(count, parts, id)).collect();
            assert_eq!(ranges[0].start, 0);
            assert_eq!(ranges[parts - 1].end, count);
            assert!(ranges.windows(2).all(|pair| pair[0].end == pair[1].start));
            let sizes: Vec<_> = ranges.iter().map(ExactSizeIterator::len).collect();
            let spread = sizes.iter().max().unwrap() - sizes.iter().min().unwrap();
            assert!(spread <= 1, "{sizes:?}");
        }
    }

    #[test]
    fn a_team_returns_results_by_number_and_measures_together() {
        let team = ThreadTeam {
            threads: 3,
            cpus: None,
        };
        let results = team
            .run(|member| member.measure(|| member.id * 10))
            .unwrap();
        assert_eq!(
            results.iter().map(|(value, _)| *value).collect::<Vec<_>>(),
            [0, 10, 20]
        );
        assert!(results.iter().all(|(_, seconds)| *seconds > 0.0));
    }
}
