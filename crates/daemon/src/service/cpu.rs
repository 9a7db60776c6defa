//! CPU time by goals: control groups of targets are limited to what their goals take, while the targets are looked
//! after. A target that is paused, undone, dry or outside of its windows has what its group had before.

use super::Service;
use super::hold::local_time;
use crate::config::{Choice, Config, CpuGoal};
use crate::goal::{Pursuit, Resource};
use crate::publish::GoalRow;
use crate::roll::Roll;
use hither_linux::cpu_limit::CpuLimits;
use hither_linux::root::Root;
use std::collections::BTreeMap;

/// Who holds the goals of CPU time.
#[derive(Default)]
pub(super) struct CpuStates {
    /// Where anything was ever limited.
    limits: Option<CpuLimits>,
    /// By target: its control group, and how its goal stands.
    seats: BTreeMap<String, (String, Pursuit)>,
}

impl CpuStates {
    /// How the goal of a target stands.
    pub(super) fn row(&self, target: &str) -> Option<GoalRow> {
        self.seats.get(target).map(|(_, pursuit)| pursuit.row())
    }

    /// Looks how the goals of these targets stand, and limits their groups; gives others what they had. Returns
    /// sentences.
    fn pursue(
        &mut self,
        now_us: u64,
        wanted: &BTreeMap<&str, (&str, &CpuGoal)>,
        root: &Root,
    ) -> Vec<String> {
        let mut notes = Vec::new();
        let is_wanted = |target: &String, (group, pursuit): &(String, Pursuit)| {
            wanted
                .get(target.as_str())
                .is_some_and(|(path, goal)| path == group && goal.spec == *pursuit.spec())
        };
        let ended: Vec<String> = self
            .seats
            .iter()
            .filter(|(target, seat)| !is_wanted(target, seat))
            .map(|(target, _)| target.clone())
            .collect();
        for target in ended {
            let seat = self.seats.remove(&target);
            if let (Some((group, _)), Some(limits)) = (seat, &mut self.limits) {
                notes.push(match limits.release(&group) {
                    Ok(()) => format!("{target}: {group} has its own limit of CPU time again"),
                    Err(error) => format!("{target}: {error}"),
                });
            }
        }
        for (&target, &(group, goal)) in wanted {
            let mut amount = None;
            let (_, pursuit) = self.seats.entry(target.to_owned()).or_insert_with(|| {
                amount = Some(goal.milli_cpus);
                let pursuit = Pursuit::new(goal.spec.clone(), Resource::CpuTime, goal.milli_cpus);
                (group.to_owned(), pursuit)
            });
            let found = pursuit.look(now_us);
            if let Some(milli_cpus) = found.amount.or(amount) {
                let limited = limits_of(&mut self.limits, root, &mut notes)
                    .and_then(|limits| limits.limit(group, milli_cpus));
                if let Err(error) = limited {
                    notes.push(format!("{target}: {error}"));
                    continue;
                }
            }
            notes.extend(found.note.map(|note| format!("{target}: {note}")));
        }
        notes
    }
}

/// Opened with the first limit: most configurations have none.
fn limits_of<'a>(
    limits: &'a mut Option<CpuLimits>,
    root: &Root,
    notes: &mut Vec<String>,
) -> hither_linux::error::Result<&'a mut CpuLimits> {
    match limits {
        Some(limits) => Ok(limits),
        None => {
            let (opened, note) = CpuLimits::open(root)?;
            notes.extend(note);
            Ok(limits.insert(opened))
        }
    }
}

/// Targets whose CPU time is to follow a goal now: somebody of theirs is looked after.
fn wanted<'a>(config: &'a Config, roll: &Roll) -> BTreeMap<&'a str, (&'a str, &'a CpuGoal)> {
    let now = local_time();
    let is_open = |target: &str| {
        roll.seats()
            .iter()
            .any(|seat| seat.target == target && !seat.is_dry(config) && !seat.rests(config, now))
    };
    let mut all = BTreeMap::new();
    for target in config.targets.iter().filter(|target| is_open(&target.name)) {
        if let (Some(goal), Choice::Cgroup(group)) = (&target.cpu_goal, &target.choice) {
            all.insert(target.name.as_str(), (group.as_str(), goal));
        }
    }
    all
}

impl Service {
    /// Goals of CPU time.
    pub(super) fn pursue_cpus(&mut self, now_us: u64) {
        let has_any = self.config.targets.iter().any(|it| it.cpu_goal.is_some());
        if !has_any && self.cpus.seats.is_empty() {
            return;
        }
        let wanted = wanted(&self.config, &self.roll);
        let notes = self.cpus.pursue(now_us, &wanted, &self.root);
        notes.iter().for_each(|note| (self.sink)(note));
    }
}
