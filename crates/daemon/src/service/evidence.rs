//! The tracker that the policies of all targets decide by.

use super::Service;
use crate::config::Config;
use hither_core::policy::{self, EvidenceKind};
use hither_linux::tracker::table::{self, TrackerInputs};

impl Service {
    /// Opens the tracker that the policies need, once there is a target, and another where that does not tell what
    /// a new one needs.
    pub(super) fn watch_accesses(&mut self) {
        let needs = needs_of(&self.config);
        let serves = |served: &Vec<EvidenceKind>| needs.iter().all(|kind| served.contains(kind));
        if self.config.targets.is_empty() || self.served.as_ref().is_some_and(serves) {
            return;
        }
        let here = TrackerInputs {
            root: &self.root,
            topology: &self.topology,
            ghz: None,
        };
        if self.served.take().is_some()
            && let Ok(none) = (table::NONE.open)(&here)
        {
            // What the one before has of the kernel is free for the next.
            self.session.agent_mut().observer_mut().set_tracker(none);
        }
        let all = table::that_gives("the configuration", &needs, &here);
        let opened = all.or_else(|why| {
            // Who decides by samples has them, whatever else is missing here.
            let sampled: Vec<EvidenceKind> = needs
                .iter()
                .copied()
                .filter(|kind| kind.is_sampled())
                .collect();
            if sampled.is_empty() || sampled == needs {
                return Err(why);
            }
            self.missing
                .extend(why.to_string().lines().map(str::to_owned));
            table::that_gives("the configuration", &sampled, &here)
        });
        match opened {
            Ok(mut tracker) => {
                let sampling = tracker.first_sampling();
                tracker.set_sampling(sampling);
                self.served = Some(needs);
                self.evidence = tracker.rung();
                self.session.agent_mut().observer_mut().set_tracker(tracker);
            }
            Err(why) => {
                let why = why.to_string();
                (self.sink)(&why);
                self.missing.extend(why.lines().map(str::to_owned));
            }
        }
    }
}

/// What the policies of all targets need, each once; who tells the users of pages tells of their use, too.
fn needs_of(config: &Config) -> Vec<EvidenceKind> {
    let targets = config.targets.iter();
    let policies = targets.filter_map(|target| policy::by_name(&target.policy).ok());
    let mut needs: Vec<EvidenceKind> = Vec::new();
    for kind in policies.flat_map(|policy| policy.needs().to_vec()) {
        if !needs.contains(&kind) {
            needs.push(kind);
        }
    }
    if needs.contains(&EvidenceKind::PageAccesses) {
        needs.retain(|&kind| kind != EvidenceKind::PageUse);
    }
    needs
}
