//! Places of programs: from what a policy proposes to requests, and back when a scope undoes.

use super::Turn;
use super::scope::Scope;
use crate::plan::PlaceRequest;
use crate::policy::ProposedPlace;
use crate::set::CpuSet;

impl Scope {
    /// Requests for the places that its policy proposes; back go all while it undoes.
    pub(super) fn place(
        &mut self,
        turn: &mut Turn<'_>,
        proposed: Vec<ProposedPlace>,
    ) -> Vec<PlaceRequest> {
        let lives = &self.lives;
        self.placed.retain(|pid| lives.contains_key(pid));
        let back = |pid| ProposedPlace {
            pid,
            cache: None,
            because: "hither leaves and takes back what it did".into(),
        };
        let proposed: Vec<ProposedPlace> = match (&self.undo, self.is_paused) {
            (Some(_), _) => std::mem::take(&mut self.placed)
                .into_iter()
                .map(back)
                .collect(),
            (None, true) => Vec::new(),
            (None, false) => proposed,
        };
        let mut requests = Vec::new();
        for place in proposed {
            let Some(&space) = self.lives.get(&place.pid) else {
                continue;
            };
            let (cpus, to) = match place.cache {
                Some(cache) => {
                    self.placed.insert(place.pid);
                    let cpus = turn.snapshot.caches[cache].cpus.clone();
                    let to = format!("to the cache of CPUs {cpus}");
                    (cpus, to)
                }
                None => {
                    self.placed.remove(&place.pid);
                    (CpuSet::new(), "back to all CPUs that it had".to_owned())
                }
            };
            let process = turn.snapshot.process(place.pid);
            let name = process.map_or("", |process| &process.name);
            turn.note(format!(
                "{name} ({}) goes {to}: {}",
                place.pid, place.because
            ));
            requests.push(PlaceRequest {
                scope: self.id,
                pid: place.pid,
                space,
                cpus,
                because: place.because,
            });
        }
        requests
    }
}

#[cfg(test)]
mod tests {
    use crate::engine::{Engine, EngineConfig};
    use crate::ids::{Pid, ScopeId, SpaceId};
    use crate::plan::PlaceRequest;
    use crate::policy::{Context, EvidenceKind, Policy, Proposal, ProposedPlace};
    use crate::set::CpuSet;
    use crate::snapshot::{CacheState, ProcessState, Snapshot};

    /// Places each process on the second cache, once.
    #[derive(Default)]
    struct Second {
        placed: Vec<Pid>,
    }

    impl Policy for Second {
        fn name(&self) -> &'static str {
            "second"
        }

        fn needs(&self) -> &[EvidenceKind] {
            &[]
        }

        fn decide(&mut self, snapshot: &Snapshot, _: &mut Context<'_>) -> Proposal {
            let processes = snapshot.processes.iter().map(|process| process.pid);
            let new: Vec<Pid> = processes.filter(|pid| !self.placed.contains(pid)).collect();
            self.placed.extend(&new);
            let place = |pid| ProposedPlace {
                pid,
                cache: Some(1),
                because: "test".into(),
            };
            Proposal {
                places: new.into_iter().map(place).collect(),
                ..Proposal::default()
            }
        }
    }

    #[test]
    fn a_place_is_asked_for_once_and_taken_back_by_an_undo() {
        let mut engine = Engine::of_all(Box::new(Second::default()), EngineConfig::default());
        let mut snapshot = Snapshot::of_nodes(Vec::new(), "test");
        for cpus in ["0-1", "2-3"] {
            snapshot.caches.push(CacheState {
                cpus: cpus.parse().unwrap(),
                bytes: 1 << 20,
            });
        }
        let process = |pid| ProcessState::of_test(Pid(pid), SpaceId(pid as u32));
        snapshot.processes = vec![process(7), process(8)];
        let mut step = |snapshot: &Snapshot, undo: bool| {
            if undo {
                engine.begin_undo(ScopeId(0));
            }
            engine.step(snapshot.now_us, snapshot, &[]).places
        };
        let asked = |pid: i32, cpus: &str| PlaceRequest {
            scope: ScopeId(0),
            pid: Pid(pid),
            space: SpaceId(pid as u32),
            cpus: cpus.parse().unwrap_or_else(|_| CpuSet::new()),
            because: "test".into(),
        };
        assert_eq!(step(&snapshot, false), [asked(7, "2-3"), asked(8, "2-3")]);
        assert!(step(&snapshot, false).is_empty());
        // One ends: there is nothing of it to take back.
        snapshot.processes.remove(0);
        let back = step(&snapshot, true);
        assert_eq!(back.len(), 1);
        assert_eq!((back[0].pid, back[0].cpus.is_empty()), (Pid(8), true));
        assert!(step(&snapshot, false).is_empty());
    }
}
