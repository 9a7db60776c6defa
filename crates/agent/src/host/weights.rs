//! Whether measured weights pay while the program runs.
//!
//! If it uses so little bandwidth that the near nodes' shorter latency is worth more, its pages move
//! near, and to all nodes again if it comes to need them.

use hither_core::bind::demand::{Demand, Reach};
use hither_core::bind::{KernelPolicy, Weights};
use hither_core::plan::Sampling;
use hither_core::set::NodeSet;
use hither_linux::bind::spread::Spread;
use hither_linux::bind::weights::Table;
use hither_linux::root::Root;
use hither_linux::sys;
use hither_linux::watch::Watch;
use hither_mover::Backend;

/// Time between two looks at what the program uses, in us.
const LOOK_US: u64 = 50_000;

/// What is guarded.
#[derive(Clone, Debug)]
pub struct Guarding {
    /// The nodes with the shorter latency.
    pub near: NodeSet,
    /// What they deliver, in GB/s.
    pub near_gbs: f64,
    /// The weights of all nodes.
    pub weights: Weights,
    /// Whose memory is moved: what lies under this policy.
    pub policy: KernelPolicy,
}

/// A look at a running program, again and again.
pub struct Guard {
    watch: Watch,
    backend: Box<dyn Backend>,
    guarding: Guarding,
    demand: Demand,
    spread: Option<Spread>,
    start_ns: u64,
    told: Guarded,
}

/// What came of guarding.
#[derive(Clone, Debug)]
pub struct Guarded {
    /// Where pages go at last.
    pub reach: Reach,
    /// How often that changed.
    pub changes: u32,
    /// Pages that moved.
    pub moved_pages: u64,
    /// Pages that could not be moved.
    pub refused_pages: u64,
    /// Sentences for a person.
    pub notes: Vec<String>,
}

impl Guard {
    /// Looks by this watch, whose tracker must count the traffic of nodes.
    #[must_use]
    pub fn new(mut watch: Watch, backend: Box<dyn Backend>, guarding: Guarding) -> Self {
        watch.tracker().set_sampling(Sampling::Off);
        let demand = Demand::new(guarding.near_gbs);
        Self {
            told: Guarded {
                reach: demand.reach(),
                changes: 0,
                moved_pages: 0,
                refused_pages: 0,
                notes: Vec::new(),
            },
            watch,
            backend,
            guarding,
            demand,
            spread: None,
            start_ns: sys::monotonic_ns(),
        }
    }

    /// Looks whether the weights pay, and moves pages if not. Returns the time to sleep in us;
    /// `None` where nothing can be looked at any more.
    pub fn turn(&mut self, root: &Root, table: &Table) -> Option<u64> {
        if let Some(sleep_us) = self.go_on() {
            return Some(sleep_us);
        }
        match self.look() {
            Err(error) => {
                let text = format!("weights: not watched any more: {error}");
                self.told.notes.push(text);
                return None;
            }
            Ok(None) => {}
            Ok(Some(used_gbs)) => self.change(root, table, used_gbs),
        }
        Some(LOOK_US)
    }

    /// Pages shall be elsewhere from now on.
    fn change(&mut self, root: &Root, table: &Table, used_gbs: f64) {
        let Guarding {
            near,
            near_gbs,
            weights,
            policy,
        } = &self.guarding;
        let names = list(near);
        let (wanted, pattern, reach) = match self.demand.reach() {
            Reach::Near => (
                weights.leaning_on(near),
                weights.only(near),
                format!("{names} alone"),
            ),
            Reach::All => (weights.clone(), weights.clone(), "all nodes".to_owned()),
        };
        if let Err(error) = table.set(&wanted) {
            let text = format!("weights: cannot be changed: {error}");
            self.told.notes.push(text);
        }
        self.told.notes.push(format!(
            "weights: pages go to {reach}, as the program uses {used_gbs:.1} GB/s where {names} \
             gives {near_gbs:.1}"
        ));
        let processes = self.watch.tree().processes();
        let pids = processes.iter().map(|process| process.pid);
        self.spread = Some(Spread::new(root, pids, policy, pattern));
        self.told.changes += 1;
    }

    /// What came of it.
    #[must_use]
    pub fn finish(mut self) -> Guarded {
        self.watch.tracker().stop();
        self.count();
        self.told.reach = self.demand.reach();
        if self.told.changes > 0 {
            self.told.notes.push(format!(
                "weights: {} pages of 4 KiB moved, {} could not be",
                self.told.moved_pages, self.told.refused_pages
            ));
        }
        self.told
    }

    fn now_us(&self) -> u64 {
        (sys::monotonic_ns() - self.start_ns) / 1000
    }

    /// A step of the move in hand, if there is one: half of the time is left to the program.
    fn go_on(&mut self) -> Option<u64> {
        let spread = self.spread.as_mut()?;
        let begun_ns = sys::monotonic_ns();
        let is_more = spread.step(&mut *self.backend);
        if !is_more {
            self.count();
            // What was used while pages moved says nothing.
            let _ = self.watch.observe(self.now_us());
            return Some(LOOK_US);
        }
        Some(((sys::monotonic_ns() - begun_ns) / 1000).max(1000))
    }

    /// Takes the counts of the move in hand over.
    fn count(&mut self) {
        if let Some(spread) = self.spread.take() {
            let (moved, refused) = spread.counts();
            self.told.moved_pages += moved;
            self.told.refused_pages += refused;
        }
    }

    /// What is used, in GB/s, if pages should be elsewhere from now on.
    fn look(&mut self) -> hither_linux::Result<Option<f64>> {
        let snapshot = self.watch.observe(self.now_us())?;
        let Some(traffic) = snapshot.node_traffic() else {
            return Ok(None);
        };
        let us = snapshot.interval_us.max(1) as f64;
        let used_gbs = traffic.iter().sum::<u64>() as f64 / us / 1000.0;
        let cpu_us = snapshot.processes.iter();
        let cpu_us: u64 = cpu_us.filter_map(|process| process.cpu_us.get()).sum();
        let is_time = self.demand.look(used_gbs, cpu_us as f64 / us);
        Ok(is_time.then_some(used_gbs))
    }
}

impl std::fmt::Debug for Guard {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Guard")
            .field("guarding", &self.guarding)
            .field("told", &self.told)
            .finish_non_exhaustive()
    }
}

fn list(nodes: &NodeSet) -> String {
    let names: Vec<String> = nodes.iter().map(|node| node.to_string()).collect();
    names.join(", ")
}
