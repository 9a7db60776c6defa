//! One interval after the other: the sampler reads what the model asks for, within its allowance.

use super::ageing::Ageing;
use super::device::Opened;
use super::model::{About, Model, SortKey};
use super::rotation::{self, Allowance};
use super::sampler::{Sampler, now_us};
use hither_core::snapshot::Evidence;
use hither_linux::root::Root;
use hither_linux::sys;
use hither_linux::topology::Topology;
use std::collections::VecDeque;

/// Share of one CPU for reading CPU times of processes.
const TASK_SHARE: f64 = 0.0025;
/// Processes whose CPU time is read in any interval.
const LEAST_TASKS: usize = 64;
/// Share of one CPU for looking where pages are and where threads ran.
const LOOK_SHARE: f64 = 0.0035;
/// CPU time for the same where it is done once, in ns.
const ONCE_NS: u64 = 1_000_000_000;
/// Intervals over which the own use of CPU time is told.
const OWN_INTERVALS: usize = 10;

/// The sampler and what it has told.
pub struct Session {
    /// What is known.
    pub model: Model,
    sampler: Sampler,
    tasks: Allowance,
    looks: Allowance,
    /// Times and own CPU times, oldest first.
    own: VecDeque<(u64, u64)>,
}

impl Session {
    /// Opens the machine; with `only`, for one process; with `ages`, with ages of memory.
    pub fn open(
        root: &Root,
        topology: &Topology,
        interval_us: u64,
        sort: Option<SortKey>,
        only: Option<i32>,
        ages: Option<Ageing>,
        open: impl FnOnce() -> Opened,
    ) -> Self {
        let mut about = About::new(topology, interval_us);
        let sampler = Sampler::open(root, topology, only, ages, open, &mut about);
        let usual = match about.tracker.is_known() {
            true => SortKey::Local,
            false => SortKey::Cpu,
        };
        let at_us = now_us();
        Self {
            model: Model::new(about, sort.unwrap_or(usual)),
            sampler,
            tasks: Allowance::new(TASK_SHARE, at_us),
            looks: Allowance::new(LOOK_SHARE, at_us),
            own: VecDeque::new(),
        }
    }

    /// An interval has passed. `shown`: the processes on the screen.
    pub fn step(&mut self, shown: &[i32]) {
        let at_us = self.begin();
        self.tasks.earn(at_us);
        self.looks.earn(at_us);
        let due = rotation::order(self.model.due_tasks(shown), at_us);
        for (count, pid) in due.into_iter().enumerate() {
            if count >= LEAST_TASKS && !self.tasks.allows() {
                break;
            }
            let spent = cpu_of(|| self.model.task(pid, self.sampler.task(pid)));
            self.tasks.spend(spent);
        }
        let focus = self.model.focus.as_ref();
        let focus = focus.map(|focus| (focus.pid, focus.mappings_us.is_none()));
        if let Some((pid, is_new)) = focus {
            let spent = cpu_of(|| self.look_closely(pid, is_new || self.looks.allows()));
            self.looks.spend(spent);
        }
        self.finish(at_us);
        for pid in rotation::order(self.model.due_threads(shown), at_us) {
            if !self.looks.allows() {
                break;
            }
            let spent = cpu_of(|| self.read_threads(pid));
            self.looks.spend(spent);
        }
        for pid in rotation::order(self.model.due_residency(shown), at_us) {
            if !self.looks.allows() {
                break;
            }
            let spent = cpu_of(|| self.read_residency(pid));
            self.looks.spend(spent);
        }
    }

    /// Reads everything, in bounded time: for who looks once. Returns how many processes were left
    /// out.
    pub fn read_all(&mut self, with_pages: bool) -> usize {
        let at_us = self.begin();
        for pid in rotation::order(self.model.due_tasks(&[]), at_us) {
            self.model.task(pid, self.sampler.task(pid));
        }
        if let Some(pid) = self.model.focus.as_ref().map(|focus| focus.pid) {
            self.look_closely(pid, with_pages);
        }
        self.finish(at_us);
        for pid in rotation::order(self.model.due_threads(&[]), at_us) {
            self.read_threads(pid);
        }
        if !with_pages {
            return 0;
        }
        // The busiest and the largest first.
        let mut due: Vec<i32> = self
            .model
            .due_residency(&[])
            .iter()
            .map(|due| due.pid)
            .collect();
        due.sort_by_key(|&pid| {
            let process = self.model.process(pid);
            let cpu = process.and_then(|process| process.cpu.get()).unwrap_or(0.0);
            let resident = process.map_or(0, |process| process.task.stat.resident_pages);
            std::cmp::Reverse(((cpu * 1e3) as u64, resident))
        });
        let end_ns = sys::own_cpu_ns() + ONCE_NS;
        let mut left = due.into_iter();
        while sys::own_cpu_ns() < end_ns {
            let Some(pid) = left.next() else { break };
            self.read_residency(pid);
        }
        left.count()
    }

    /// Looks closely at a process from now on.
    pub fn focus_on(&mut self, pid: i32) {
        self.model.set_focus(Some(pid));
        self.read_threads(pid);
    }

    /// Takes the time, and finds processes that are new or gone.
    fn begin(&mut self) -> u64 {
        let at_us = now_us();
        self.model.begin(at_us);
        self.own.push_back((at_us, sys::own_cpu_ns()));
        if self.own.len() > OWN_INTERVALS + 1 {
            self.own.pop_front();
        }
        self.model.own_cpu = own_share(&self.own);
        if let Some(alive) = self.sampler.processes(at_us) {
            for pid in self.model.list(&alive) {
                if let Some(task) = self.sampler.task(pid) {
                    self.model.task(pid, Some(task));
                }
            }
        }
        at_us
    }

    /// What is read in every interval, however many processes there are.
    fn finish(&mut self, at_us: u64) {
        let focus = self.model.focus.as_ref().map(|focus| focus.pid);
        let samples = self.sampler.samples(at_us, focus);
        self.model.samples(&samples);
        self.model.machine(self.sampler.machine(at_us));
        if let Some(focus) = &mut self.model.focus {
            focus.group_ages = self.sampler.group_ages(focus.pid);
        }
    }

    fn look_closely(&mut self, pid: i32, with_mappings: bool) {
        self.read_threads(pid);
        if with_mappings {
            self.model.mappings(pid, self.sampler.mappings(pid));
            self.model.astray(pid, self.sampler.astray(pid));
        }
        let pressure = self.sampler.group_pressure(pid);
        if let Some(focus) = &mut self.model.focus {
            focus.group_pressure = pressure;
        }
    }

    fn read_threads(&mut self, pid: i32) {
        self.model.threads(pid, self.sampler.threads(pid));
    }

    fn read_residency(&mut self, pid: i32) {
        let resident = self.model.process(pid).map(|p| p.task.stat.resident_pages);
        if let Some(resident) = resident {
            let hugetlb = self.sampler.hugetlb(pid);
            let (pages, figures) = self.sampler.residency(pid, resident + hugetlb);
            self.model.residency(pid, pages);
            self.model.astray(pid, figures);
            self.model.hugetlb(pid, hugetlb);
        }
    }
}

/// CPU time that something took, in ns.
fn cpu_of(work: impl FnOnce()) -> u64 {
    let before = sys::own_cpu_ns();
    work();
    sys::own_cpu_ns().saturating_sub(before)
}

/// Share of one CPU between the oldest and the newest reading.
fn own_share(own: &VecDeque<(u64, u64)>) -> Evidence<f64> {
    match (own.front(), own.back()) {
        (Some(first), Some(last)) if last.0 > first.0 => {
            let (elapsed_us, used_ns) = (last.0 - first.0, last.1.saturating_sub(first.1));
            let share = used_ns as f64 / 1e3 / elapsed_us as f64;
            Evidence::measured(share, "CLOCK_PROCESS_CPUTIME_ID")
        }
        _ => Evidence::unknown("nothing was measured yet"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Child, Command};

    fn sleeper() -> Child {
        Command::new("sleep").arg("60").spawn().unwrap()
    }

    fn session(only: Option<i32>) -> Session {
        let root = Root::host();
        let topology = Topology::read(&root).unwrap();
        let none = || Err("none".to_owned());
        Session::open(&root, &topology, 1_000_000, None, only, None, none)
    }

    #[test]
    fn own_use_is_over_the_readings_kept() {
        let own = [(1_000_000, 5_000_000), (3_000_000, 25_000_000)].into();
        assert_eq!(own_share(&own).get(), Some(0.01));
        assert_eq!(own_share(&VecDeque::new()).get(), None);
    }

    #[test]
    fn a_process_that_ends_is_gone_also_from_under_a_close_look() {
        let mut child = sleeper();
        let pid = child.id() as i32;
        let mut session = session(None);
        session.step(&[]);
        session.model.set_focus(Some(pid));
        session.step(&[pid]);
        let focus = session.model.focus.as_ref().expect("it is looked at");
        assert!(
            focus.mappings.value().is_some_and(|all| !all.is_empty()),
            "{focus:?}"
        );
        assert!(
            session
                .model
                .process(pid)
                .unwrap()
                .threads
                .contains_key(&pid)
        );
        child.kill().unwrap();
        child.wait().unwrap();
        // Between listing and reading: the model still names it, the edge finds nothing.
        session.look_closely(pid, true);
        session.read_residency(pid);
        session.step(&[pid]);
        assert!(session.model.process(pid).is_none() && session.model.focus.is_none());
        let notice = session.model.notice.as_deref().unwrap();
        assert_eq!(notice, format!("process {pid} (sleep) has ended"));
    }

    #[test]
    fn looking_once_reads_every_process() {
        let mut child = sleeper();
        let pid = child.id() as i32;
        let mut session = session(Some(pid));
        session.read_all(false);
        session.focus_on(pid);
        std::thread::sleep(std::time::Duration::from_millis(20));
        assert_eq!(session.read_all(true), 0);
        let process = session.model.process(pid).unwrap();
        assert!(
            process.residency.is_known() && process.cpu.is_known(),
            "{process:?}"
        );
        assert!(process.threads[&pid].cpu.is_known());
        assert_eq!(session.model.count(), 1);
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
