//! Which of the kernel's ways a mapping's pages go: alone, or for all processes that map them.

use hither_linux::backend::kernel::KernelBackend;
use hither_linux::sys::{self, OwnMapping};
use hither_mover::{Action, Backend, Job, Outcome, Unavailable};
use std::ops::Range;

/// Moves by the kernel: also what others map, where it may (CAP_SYS_NICE) and that is meant.
#[derive(Debug)]
pub struct Backends {
    alone: KernelBackend,
    with_others: Option<KernelBackend>,
    /// Pages of programs and libraries, ascending, which moving one process's memory should not take
    /// away from others.
    programs: Vec<Range<u64>>,
}

impl Backends {
    /// `all`: all mappings are meant, none by its name.
    pub fn new(all: Option<&[OwnMapping]>) -> Self {
        let is_program = |mapping: &&OwnMapping| !mapping.shared && mapping.inode != 0;
        let programs = all.unwrap_or_default().iter().filter(is_program);
        Self {
            alone: KernelBackend::new(),
            with_others: sys::may_move_shared_pages().then(KernelBackend::with_shared_pages),
            programs: programs.map(OwnMapping::pages).collect(),
        }
    }

    /// Does it move what other processes map, too?
    pub fn moves_shared(&self) -> bool {
        self.with_others.is_some()
    }
}

impl Backend for Backends {
    fn name(&self) -> &'static str {
        self.alone.name()
    }

    fn probe(&self) -> Result<(), Unavailable> {
        self.alone.probe()
    }

    /// The jobs are of one mapping.
    fn execute(&mut self, jobs: &[Job<'_>]) -> Vec<Outcome> {
        let first = jobs.first().and_then(|job| match &job.action {
            Action::Migrate { pages, .. } => pages.iter().next(),
            Action::Replicate { .. } => None,
        });
        let is_program = first.is_some_and(|page| {
            let at = self.programs.partition_point(|pages| pages.end <= page);
            self.programs
                .get(at)
                .is_some_and(|pages| pages.contains(&page))
        });
        match &mut self.with_others {
            Some(backend) if !is_program => backend.execute(jobs),
            _ => self.alone.execute(jobs),
        }
    }
}
