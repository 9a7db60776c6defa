//! The tracker that the policies of all targets decide by.

use super::Service;
use hither_core::policy::{self, EvidenceKind, Policy};
use hither_linux::tracker::table::{self, TrackerInputs};

impl Service {
    /// Opens the tracker that the policies need, once there is a target, and another where that does not tell what
    /// a new one needs.
    pub(super) fn watch_accesses(&mut self) {
        let targets = self.config.targets.iter();
        let policies = targets.filter_map(|target| policy::by_name(&target.policy).ok());
        let policies: Vec<Box<dyn Policy>> = policies.collect();
        let needs = policy::needs_of(policies.iter().map(|policy| &**policy));
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
        match table::to_serve("the configuration", &needs, &here) {
            Ok((mut tracker, missing)) => {
                if !missing.is_empty() {
                    (self.sink)(&missing.join("\n"));
                }
                // What is missing is looked for again when the configuration is read again.
                let served = needs.into_iter();
                let served = served.filter(|kind| missing.is_empty() || kind.is_sampled());
                self.served = Some(served.collect());
                self.missing.extend(missing);
                let sampling = tracker.first_sampling();
                tracker.set_sampling(sampling);
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
