//! Counting: events of a process's threads, of CPUs, and of what lies outside the cores.
//!
//! Events that are put in proportion to each other are opened as one group, which the kernel gives
//! counters to together or not at all: instructions with cycles and stalls, local misses with remote
//! ones. What does not fit takes turns; each reading tells for how much of the time it was counted.
//!
//! Threads that a counted thread starts are counted with it; threads of the process that are there
//! already are opened each. What one of them starts before its turn is missed. Only user mode is counted where the source can tell.

use super::catalogue::{Catalogue, Served, Source};
use super::refusal::{Asked, PLACE, refusal};
use crate::error::{Error, Result};
use crate::proc;
use crate::root::Root;
use crate::sys::{
    self, EventAttribute, EventScope, event_flag, open_event, read_count, switch_event,
};
use hither_core::ids::CpuId;
use hither_core::perf::count::{Count, Estimate, Estimates};
use hither_core::perf::events::Role;
use std::fs::File;
use std::io;

/// Threads of one process that are counted at most: each needs a descriptor for each event.
const MOST_THREADS: usize = 4096;

/// Whom a count is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Whose {
    /// A thread, and those that it started since.
    Thread(i32),
    /// Whatever ran on this CPU; outside the cores: what is read on it.
    Cpu(CpuId),
}

/// What an event counted in an interval.
#[derive(Clone, Debug, PartialEq)]
pub struct EventCount {
    /// What it tells.
    pub role: Role,
    /// Of whom.
    pub whose: Whose,
    /// The event source.
    pub source: String,
    /// How many, in the unit of the role's line; `None`: it never had a counter.
    pub estimate: Option<Estimate>,
}

/// All counts of an interval.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Interval {
    /// How long it was (ns).
    pub passed_ns: u64,
    /// The counts.
    pub told: Vec<EventCount>,
}

impl Interval {
    /// Sums by role, of what `pick` picks. A role of which a part never had a counter is left out: its
    /// sum would be too small.
    #[must_use]
    pub fn sums(&self, pick: impl Fn(&EventCount) -> bool) -> Estimates {
        let mut sums = Estimates::new();
        let mut starved = Vec::new();
        for told in self.told.iter().filter(|told| pick(told)) {
            let Some(estimate) = told.estimate else {
                starved.push(told.role);
                continue;
            };
            let sum = sums
                .get(&told.role)
                .map_or(estimate, |&sum| sum.plus(estimate));
            sums.insert(told.role, sum);
        }
        sums.retain(|role, _| !starved.contains(role));
        sums
    }

    /// Roles of which a part never had a counter, each once.
    #[must_use]
    pub fn starved(&self) -> Vec<Role> {
        let starved = self.told.iter().filter(|told| told.estimate.is_none());
        let mut roles: Vec<Role> = starved.map(|told| told.role).collect();
        roles.sort_unstable();
        roles.dedup();
        roles
    }
}

/// One open event. Groups are switched by their leaders.
#[derive(Debug)]
struct Slot {
    role: Role,
    whose: Whose,
    source: String,
    each: f64,
    event: File,
    is_leader: bool,
    last: Count,
}

/// Open events.
#[derive(Debug)]
pub struct Counters {
    slots: Vec<Slot>,
    last_ns: u64,
}

impl Counters {
    /// Counts a process: every thread that it has now, and those that they start. Threads that end
    /// meanwhile are left out.
    ///
    /// # Errors
    /// The machine counts none of these roles, or the kernel refuses.
    pub fn of_process(
        root: &Root,
        catalogue: &Catalogue,
        pid: i32,
        roles: &[Role],
    ) -> Result<Self> {
        let threads = proc::threads(root, pid)?;
        let served = wanted(catalogue, roles, Role::is_counted_by_core)?;
        let flags =
            event_flag::EXCLUDE_KERNEL | event_flag::EXCLUDE_HYPERVISOR | event_flag::INHERIT;
        let mut counters = Self::empty();
        if threads.len() > MOST_THREADS {
            return Err(Error::new(
                root.path(&format!("proc/{pid}/task")),
                format!(
                    "there are {} threads, and hither counts {MOST_THREADS} of a process at most",
                    threads.len()
                ),
                "count CPUs instead of the process",
            ));
        }
        for &thread in &threads {
            let opened = counters.open(&served, Whose::Thread(thread), flags);
            match opened {
                Err((_, error)) if error.raw_os_error() == Some(libc::ESRCH) => {}
                Err((what, error)) => {
                    return Err(refusal(root, what.name(), Asked::ProcessCounts, error));
                }
                Ok(()) => {}
            }
        }
        match counters.slots.is_empty() {
            true => Err(Error::new(
                root.path(&format!("proc/{pid}")),
                "the process has ended",
                "name one that runs",
            )),
            false => Ok(counters),
        }
    }

    /// Counts user mode of whatever runs on these CPUs.
    ///
    /// # Errors
    /// The machine counts none of these roles, or the kernel refuses.
    pub fn of_cpus(
        root: &Root,
        catalogue: &Catalogue,
        cpus: &[CpuId],
        roles: &[Role],
    ) -> Result<Self> {
        let served = wanted(catalogue, roles, Role::is_counted_by_core)?;
        let flags = event_flag::EXCLUDE_KERNEL | event_flag::EXCLUDE_HYPERVISOR;
        let mut counters = Self::empty();
        for &cpu in cpus {
            counters
                .open(&served, Whose::Cpu(cpu), flags)
                .map_err(|(what, error)| refusal(root, what.name(), Asked::CpuCounts, error))?;
        }
        Ok(counters)
    }

    /// Counts outside the cores, each source on the CPUs that its `cpumask` names.
    ///
    /// # Errors
    /// The machine counts none of these roles, or the kernel refuses.
    pub fn of_uncore(root: &Root, catalogue: &Catalogue, roles: &[Role]) -> Result<Self> {
        let served = wanted(catalogue, roles, Role::is_uncore)?;
        let mut counters = Self::empty();
        for served in served {
            for source in &served.sources {
                let cpus = source.cpus.iter().flat_map(|cpus| cpus.iter());
                for cpu in cpus {
                    for (at, code) in source.codes.iter().enumerate() {
                        let attribute = EventAttribute::counted(source.kind, code.words, 0);
                        let scope = EventScope::Cpu(cpu.0);
                        let event = open_event(&attribute, scope, None).map_err(|error| {
                            refusal(root, served.role.name(), Asked::UncoreCounts, error)
                        })?;
                        counters.push(served.role, Whose::Cpu(cpu), (source, at), event, true);
                    }
                }
            }
        }
        Ok(counters)
    }

    /// How many events are open.
    #[must_use]
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// Is none?
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// Switches counting on or off.
    ///
    /// # Errors
    /// An event's CPU went offline.
    pub fn switch(&mut self, on: bool) -> Result<()> {
        for slot in self.slots.iter().filter(|slot| slot.is_leader) {
            switch_event(&slot.event, on).map_err(|error| lost(slot.role, error))?;
        }
        if on {
            self.last_ns = sys::monotonic_ns();
        }
        Ok(())
    }

    /// What was counted since the last reading, or since it was switched on.
    ///
    /// # Errors
    /// An event's CPU went offline.
    pub fn read(&mut self) -> Result<Interval> {
        let now_ns = sys::monotonic_ns();
        let mut told = Vec::with_capacity(self.slots.len());
        for slot in &mut self.slots {
            let count = read_count(&slot.event).map_err(|error| lost(slot.role, error))?;
            let passed = count.since(&slot.last).unwrap_or(count);
            slot.last = count;
            told.push(EventCount {
                role: slot.role,
                whose: slot.whose,
                source: slot.source.clone(),
                estimate: passed.estimate().map(|estimate| estimate.times(slot.each)),
            });
        }
        let passed_ns = now_ns.saturating_sub(self.last_ns);
        self.last_ns = now_ns;
        Ok(Interval { passed_ns, told })
    }

    fn empty() -> Self {
        Self {
            slots: Vec::new(),
            last_ns: sys::monotonic_ns(),
        }
    }

    /// `at`: which of the source's events it is.
    fn push(
        &mut self,
        role: Role,
        whose: Whose,
        (source, at): (&Source, usize),
        event: File,
        is_leader: bool,
    ) {
        let times = source.times.get(at).copied().unwrap_or(1);
        self.slots.push(Slot {
            role,
            whose,
            source: source.name.clone(),
            each: source.each * f64::from(times),
            event,
            is_leader,
            last: Count::default(),
        });
    }

    /// Opens all events of one thread or CPU: groups of one source and of roles that belong together.
    fn open(
        &mut self,
        served: &[&Served],
        whose: Whose,
        flags: u64,
    ) -> std::result::Result<(), (Role, io::Error)> {
        let scope = match whose {
            Whose::Thread(thread) => EventScope::Task(thread),
            Whose::Cpu(cpu) => EventScope::Cpu(cpu.0),
        };
        // Positions of the leaders: of a source (by its number) and a group.
        let mut leaders: Vec<((u32, u8), usize)> = Vec::new();
        for served in served {
            for source in &served.sources {
                let is_here = match (whose, &source.cpus) {
                    (Whose::Cpu(cpu), Some(cpus)) => cpus.contains(cpu),
                    _ => true,
                };
                if !is_here {
                    continue;
                }
                for (at, code) in source.codes.iter().enumerate() {
                    let key = (source.kind, group_of(served.role));
                    let attribute = EventAttribute::counted(source.kind, code.words, flags);
                    let leader = leaders.iter().find(|(of, _)| *of == key).map(|&(_, at)| at);
                    let event = leader.map(|at| {
                        open_event(
                            &attribute,
                            scope,
                            self.slots.get(at).map(|slot| &slot.event),
                        )
                    });
                    let (event, is_leader) = match event {
                        Some(Ok(event)) => (event, false),
                        // A group of which the hardware cannot count so many: it is one of its own.
                        Some(Err(error)) if error.raw_os_error() != Some(libc::EINVAL) => {
                            return Err((served.role, error));
                        }
                        _ => {
                            let event = open_event(&attribute, scope, None);
                            (event.map_err(|error| (served.role, error))?, true)
                        }
                    };
                    if is_leader {
                        leaders.retain(|(of, _)| *of != key);
                        leaders.push((key, self.slots.len()));
                    }
                    self.push(served.role, whose, (source, at), event, is_leader);
                }
            }
        }
        Ok(())
    }
}

/// Roles whose counts are put in proportion to each other have the same group.
fn group_of(role: Role) -> u8 {
    match role {
        Role::Instructions | Role::Cycles | Role::MemoryStalls => 0,
        Role::Operations => 2,
        _ => 1,
    }
}

/// Who serves these roles, as far as the machine does.
fn wanted<'a>(
    catalogue: &'a Catalogue,
    roles: &[Role],
    fits: impl Fn(Role) -> bool,
) -> Result<Vec<&'a Served>> {
    let asked = |served: &&Served| roles.contains(&served.role) && fits(served.role);
    let served: Vec<&Served> = catalogue.served.iter().filter(asked).collect();
    if !served.is_empty() {
        return Ok(served);
    }
    let roles: Vec<Role> = roles.iter().copied().filter(|&role| fits(role)).collect();
    let (why, remedy) = catalogue.obstacle(&roles).map_or(
        ("nothing was asked for that can be counted", ""),
        |missing| (missing.why.as_str(), missing.remedy.as_str()),
    );
    let remedy = match remedy {
        "" => "use other figures: this processor does not count it",
        remedy => remedy,
    };
    Err(Error::new(PLACE, why, remedy))
}

fn lost(role: Role, error: io::Error) -> Error {
    Error::io(
        PLACE,
        format!("the counter of {} cannot be used ({error})", role.name()),
        "see whether its CPU is still online",
        error,
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::perf::pmu::EventCode;
    use hither_core::perf::events::GENERIC;

    /// A machine that counts software events in place of hardware's: page faults (2) and task clock (1).
    fn software() -> Catalogue {
        let served = |role, word, each| Served {
            role,
            line: &GENERIC.lines[0],
            sources: vec![Source {
                name: "software".into(),
                kind: 1,
                codes: vec![EventCode {
                    words: [word, 0, 0],
                }],
                each,
                times: vec![1],
                cpus: None,
            }],
        };
        Catalogue {
            processor: None,
            family: &GENERIC,
            served: vec![
                served(Role::Instructions, 1, 1.0),
                served(Role::Cycles, 1, 2.0),
                served(Role::Misses, 2, 1.0),
            ],
            missing: Vec::new(),
        }
    }

    #[test]
    fn a_process_is_counted_with_threads_that_start_later() {
        let root = Root::host();
        let roles = [Role::Instructions, Role::Cycles, Role::Misses];
        let own = std::process::id() as i32;
        let opened = Counters::of_process(&root, &software(), own, &roles);
        let mut counters = match opened {
            Ok(counters) => counters,
            // Not every place allows it; then it says why and what helps.
            Err(error) => {
                assert!(!error.reason.is_empty() && !error.remedy.is_empty());
                println!("not measured: {error}");
                return;
            }
        };
        assert!(counters.len() >= 3 && !counters.is_empty());
        counters.switch(true).unwrap();
        let touch = || {
            let mut memory = vec![0u8; 40 << 20];
            for byte in memory.iter_mut().step_by(4096) {
                *byte = 1;
            }
            std::hint::black_box(&memory);
        };
        std::thread::spawn(touch).join().unwrap();
        let interval = counters.read().unwrap();
        counters.switch(false).unwrap();
        assert!(interval.passed_ns > 0 && interval.starved().is_empty());
        let sums = interval.sums(|_| true);
        assert!(sums[&Role::Misses].value >= 1.0, "{sums:?}");
        assert!(!sums[&Role::Misses].is_multiplexed());
        // The same event twice, of which one counts double.
        let (once, twice) = (sums[&Role::Instructions].value, sums[&Role::Cycles].value);
        assert!(once > 0.0 && twice > once, "{once} {twice}");
        let gone = Counters::of_process(&root, &software(), i32::MAX, &roles).unwrap_err();
        assert!(gone.reason.contains("ended"), "{gone}");
    }

    #[test]
    fn what_nobody_counts_is_refused_in_words() {
        let root = Root::host();
        let mut catalogue = software();
        let error = Counters::of_uncore(&root, &catalogue, &[Role::ControllerReads]).unwrap_err();
        assert!(!error.remedy.is_empty(), "{error}");
        let error = Counters::of_cpus(&root, &catalogue, &[CpuId(0)], &[]).unwrap_err();
        assert!(error.reason.contains("nothing"), "{error}");
        for served in &mut catalogue.served {
            served.sources[0].kind = 0x7fff_fff0;
        }
        let error = Counters::of_cpus(&root, &catalogue, &[CpuId(0)], &[Role::Misses]).unwrap_err();
        assert!(
            error.errno().is_some() && !error.remedy.is_empty(),
            "{error}"
        );
    }

    #[test]
    fn a_role_of_which_a_part_was_not_counted_has_no_sum() {
        let told = |role, thread, estimate| EventCount {
            role,
            whose: Whose::Thread(thread),
            source: "cpu".into(),
            estimate,
        };
        let some = |value, counted_share| {
            Some(Estimate {
                value,
                counted_share,
            })
        };
        let interval = Interval {
            passed_ns: 10,
            told: vec![
                told(Role::Cycles, 1, some(5.0, 1.0)),
                told(Role::Cycles, 2, some(7.0, 0.5)),
                told(Role::LocalMemory, 1, some(3.0, 1.0)),
                told(Role::LocalMemory, 2, None),
            ],
        };
        let sums = interval.sums(|_| true);
        assert_eq!((sums.len(), sums[&Role::Cycles].value), (1, 12.0));
        assert_eq!(sums[&Role::Cycles].counted_share, 0.5);
        assert_eq!(interval.starved(), [Role::LocalMemory]);
        let first = interval.sums(|told| told.whose == Whose::Thread(1));
        assert_eq!(first[&Role::LocalMemory].value, 3.0);
    }
}
