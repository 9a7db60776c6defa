//! The turns of a recording: observe, write down, hold the cost.

use super::places::Places;
use crate::Overhead;
use crate::host::Result;
use hither_core::observation::Observations;
use hither_core::plan::Sampling;
use hither_core::snapshot::Snapshot;
use hither_linux::proc::tree::{Scope, Tree};
use hither_linux::root::Root;
use hither_linux::sys;
use hither_linux::topology::Topology;
use hither_linux::tracker::Tracker;
use hither_linux::watch::empty_snapshot;
use hither_recording::Writer;
use hither_recording::rows::{Interval, Node, Region, Sample};

/// What a session begins with.
pub struct Setup<'a> {
    /// Where `/proc` and `/sys` are.
    pub root: &'a Root,
    /// The machine.
    pub topology: &'a Topology,
    /// Who is watched.
    pub scope: Scope,
    /// Tells of accesses.
    pub tracker: Box<dyn Tracker>,
    /// Zero of the recording's times, on CLOCK_MONOTONIC.
    pub start_ns: u64,
    /// Time between two turns.
    pub interval_us: u64,
    /// Share of the CPU time of what is watched that recording may cost, 0..=1.
    pub overhead: f64,
}

/// A recording under way.
pub struct Session {
    tree: Tree,
    tracker: Box<dyn Tracker>,
    snapshot: Snapshot,
    places: Places,
    overhead: Overhead,
    observations: Observations,
    start_ns: u64,
    interval_us: u64,
    /// End of the last interval, since the beginning.
    last_ns: u64,
    own_cpu_ns: u64,
    totals: Totals,
    notes: Vec<String>,
}

/// What a recording came to.
#[derive(Clone, Copy, Debug, Default)]
pub struct Totals {
    /// Samples that were written down.
    pub samples: u64,
    /// Regions that were.
    pub regions: u64,
    /// Samples that were lost, as buffers were full.
    pub lost: u64,
    /// CPU time of what was watched, as far as looks at times saw it, in us.
    pub watched_us: u64,
    /// Intervals that could not be observed.
    pub failures: u64,
}

impl Session {
    /// Begins to observe.
    pub fn new(setup: Setup<'_>) -> Self {
        let mut tracker = setup.tracker;
        let overhead = Overhead::new(setup.overhead);
        let own_cpu_ns = sys::own_cpu_ns();
        // Accesses are written down as they are: sums of pages are nobody's.
        tracker.fill_in_pages(false);
        tracker.set_budget(overhead.share());
        tracker.set_instruction_budget(overhead.samples());
        tracker.set_sampling(Sampling::Full);
        tracker.keep_observations(true);
        Self {
            tree: Tree::new(setup.root.clone(), setup.scope),
            tracker,
            snapshot: empty_snapshot(setup.topology),
            places: Places::new(setup.root.clone()),
            overhead,
            observations: Observations::default(),
            start_ns: setup.start_ns,
            interval_us: setup.interval_us,
            last_ns: 0,
            own_cpu_ns,
            totals: Totals::default(),
            notes: Vec::new(),
        }
    }

    /// Have all processes ended that were to be watched? Not asked of a command, which is waited
    /// for, and of a group, which may get new ones.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.tree.is_over()
    }

    /// Processes that are watched.
    #[must_use]
    pub fn pids(&self) -> Vec<i32> {
        self.tree
            .processes()
            .iter()
            .map(|process| process.pid)
            .collect()
    }

    /// One turn; returns the time to sleep in us.
    ///
    /// # Errors
    /// The recording cannot be written.
    pub fn turn(&mut self, writer: &mut Writer) -> Result<u64> {
        let now_ns = sys::monotonic_ns().saturating_sub(self.start_ns);
        let length_ns = now_ns.saturating_sub(self.last_ns);
        self.last_ns = now_ns;
        self.snapshot.interval_us = length_ns / 1000;
        self.snapshot.now_us = now_ns / 1000;
        // A failed observation costs an interval, not the recording.
        let observed = self
            .tree
            .refresh(now_ns / 1000)
            .and_then(|()| self.tracker.observe(&mut self.tree, &mut self.snapshot));
        match observed {
            Ok(()) => self.write_down(writer, now_ns, length_ns)?,
            Err(error) => {
                self.totals.failures += 1;
                if self.totals.failures == 1 {
                    self.notes
                        .push(format!("an interval could not be observed: {error}"));
                }
            }
        }
        let executed = self.snapshot.metrics.instructions_per_us.get();
        if let Some(per_us) = executed {
            self.overhead
                .add_executed(per_us * length_ns as f64 / 1000.0);
            self.tracker.set_instruction_budget(self.overhead.samples());
        }
        let affordable = self.overhead.looks_per_us(executed);
        if let Some(found) = self.places.look(&self.tree, now_ns, affordable) {
            writer.add(found.mappings)?;
            writer.add(found.residency)?;
        }
        writer.add(self.places.take_ended())?;
        writer.flush_due(now_ns)?;
        let spent_us = sys::monotonic_ns().saturating_sub(self.start_ns + now_ns) / 1000;
        let interval_us = self.overhead.interval_us(self.interval_us, executed);
        Ok(interval_us.saturating_sub(spent_us).max(1000))
    }

    fn write_down(&mut self, writer: &mut Writer, now_ns: u64, length_ns: u64) -> Result<()> {
        self.observations.clear();
        self.tracker.take_observations(&mut self.observations);
        let start_ns = self.start_ns;
        let seen = &self.observations;
        let samples = seen
            .samples
            .iter()
            .map(|s| Sample::from_access(s, start_ns));
        writer.add(samples)?;
        let regions = seen
            .regions
            .iter()
            .map(|r| Region::from_access(r, start_ns));
        writer.add(regions)?;
        let own_ns = sys::own_cpu_ns();
        let own_us = own_ns.saturating_sub(self.own_cpu_ns) / 1000;
        self.own_cpu_ns = own_ns;
        let metrics = &self.snapshot.metrics;
        writer.add([Interval {
            time_ns: now_ns,
            length_ns,
            local_access_ratio: metrics.local_access_ratio.get(),
            latency_ns: metrics.latency_ns.get(),
            controller_imbalance: metrics.controller_imbalance.get(),
            link_use: metrics.link_use.get(),
            accesses_per_us: metrics.memory_accesses_per_us.get(),
            instructions_per_us: metrics.instructions_per_us.get(),
            flops_per_us: metrics.flops_per_us.get(),
            stall_share: metrics.stall_share.get(),
            l3_mpki: metrics.l3_mpki.get(),
            sample_count: seen.samples.len() as u64,
            lost_count: self.snapshot.samples_lost,
            own_cpu_us: Some(own_us),
        }])?;
        let nodes = self.snapshot.nodes.iter();
        let known = nodes.filter(|node| node.read_bytes.is_known() || node.write_bytes.is_known());
        writer.add(known.map(|node| Node {
            time_ns: now_ns,
            length_ns,
            node: node.id.0,
            read_bytes: node.read_bytes.get(),
            write_bytes: node.write_bytes.get(),
            utilisation: node.utilisation.get(),
        }))?;
        let watched_us = self.tree.cpu_us();
        if self.overhead.add(length_ns / 1000, watched_us, own_us) {
            self.tracker.set_budget(self.overhead.share());
        }
        self.totals.samples += self.observations.samples.len() as u64;
        self.totals.regions += self.observations.regions.len() as u64;
        self.totals.lost += self.snapshot.samples_lost;
        self.totals.watched_us += watched_us;
        Ok(())
    }

    /// The last interval, and what is known only now. The tracker puts back what it changed, also
    /// where writing fails.
    ///
    /// # Errors
    /// The recording cannot be written.
    pub fn finish(&mut self, writer: &mut Writer) -> Result<()> {
        let turned = self.turn(writer);
        self.tracker.stop();
        turned?;
        Ok(writer.add(self.places.take_processes())?)
    }

    /// Sentences of the trackers, for the recording.
    pub fn take_notes(&mut self) -> Vec<String> {
        let mut notes = std::mem::take(&mut self.notes);
        notes.extend(self.tree.take_notes());
        notes.extend(self.tracker.take_notes());
        notes
    }

    /// What it came to so far.
    #[must_use]
    pub fn totals(&self) -> Totals {
        self.totals
    }

    /// Name of the tracker.
    #[must_use]
    pub fn tracker(&self) -> &'static str {
        self.tracker.name()
    }

    /// Time between two turns, as it was asked for.
    #[must_use]
    pub fn interval_us(&self) -> u64 {
        self.interval_us
    }
}
