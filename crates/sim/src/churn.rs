//! Processes that come, change and go while somebody looks after them.

use crate::chance::{below, between, happens};
use crate::process::{Pattern, ProcessKind, ProcessPhase};
use crate::world::{NO_PROGRAM, STRANGER, World};
use hither_core::ids::Pid;

impl World {
    /// Processes that fork, execute, end, and numbers that are used again.
    pub(crate) fn churn(&mut self, interval_us: u64) {
        let expected = self.faults.events_per_s * interval_us as f64 / 1e6;
        let mut events = expected as usize;
        events += usize::from(happens(&mut self.random, expected.fract()));
        for _ in 0..events {
            let pids: Vec<Pid> = self.processes.keys().copied().collect();
            if pids.is_empty() {
                return;
            }
            let pid = pids[below(&mut self.random, pids.len())];
            let process = &self.processes[&pid];
            let mut kind = process.kind.clone();
            match below(&mut self.random, 4) {
                0 if pids.len() < self.faults.most_processes => {
                    self.vary(&mut kind);
                    self.spawn(kind, pid);
                }
                // Whose parent and memory change between two looks, nobody can know again.
                1 if process.is_seen => {
                    kind.name.push('x');
                    self.vary(&mut kind);
                    self.exec(pid, kind);
                }
                2 if self.may_end(pid) => self.kill(pid),
                3 if self.may_end(pid) => {
                    // The number is used again at once, by a stranger.
                    self.kill(pid);
                    kind.program = NO_PROGRAM;
                    kind.user = 7;
                    "/elsewhere".clone_into(&mut kind.group);
                    "stranger".clone_into(&mut kind.name);
                    self.vary(&mut kind);
                    self.spawn_as(pid, kind, STRANGER);
                }
                _ => {}
            }
        }
    }

    /// Not the last of a program, and nobody whose children were not seen yet: of these nobody could
    /// know whose children they are.
    fn may_end(&self, pid: Pid) -> bool {
        let program = self.processes[&pid].kind.program;
        let mut others = self.processes.values().filter(|other| other.pid != pid);
        let has_company =
            program == NO_PROGRAM || others.any(|other| other.kind.program == program);
        let mut children = self.processes.values().filter(|other| other.parent == pid);
        has_company && children.all(|child| child.is_seen)
    }

    /// Somewhat different: other size, other pattern.
    fn vary(&mut self, kind: &mut ProcessKind) {
        let random = &mut self.random;
        let most = kind.units.max(2) as u64;
        kind.units = between(random, most / 2, most * 3 / 2).clamp(1, 512) as usize;
        let patterns = [Pattern::Shared, Pattern::Partitioned, Pattern::Striped];
        kind.phases = vec![ProcessPhase {
            pattern: patterns[below(random, patterns.len())],
            length_us: 0,
        }];
    }
}
