//! The backend for a program's own memory: whichever of the others suits a job.
//!
//! Replications go to `copy`, or to `engine` where the machine has one. Migrations go to `swap` where it works here (it hands on what it
//! cannot exchange), else to `kernel`. The outcome of each job says who did it.

use super::copy::CopyBackend;
use super::engine::EngineDriver;
use super::kernel::KernelBackend;
use super::swap::{self, SwapBackend};
use hither_core::ids::CpuId;
use hither_mover::{Action, Backend, Config, Job, Mover, OpenError, Outcome, Unavailable, collect};
use std::io;

/// When to exchange pages from user space.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Exchange {
    /// Where nothing can be lost by it: with `CAP_SYS_PTRACE` on Linux 6.11 or newer.
    #[default]
    WhereSafe,
    /// Without that privilege too: the program promises to make no raw `clone` and no system call
    /// on memory under way (see [`swap`]).
    Always,
    /// Not at all.
    Never,
}

/// How to move this process's own memory.
#[derive(Clone, Default)]
pub struct Settings {
    /// When to exchange pages.
    pub exchange: Exchange,
    /// More about exchanges; its `without_privilege` follows from `exchange`.
    pub swap: swap::Config,
    /// Workers of replications of 1 MiB and more, the mover's own thread included; 0 is 1.
    pub copiers: usize,
    /// Where those may run. Empty: anywhere.
    pub copier_cpus: Vec<CpuId>,
    /// Leave the machine's copy engine alone, if it has one.
    pub without_engine: bool,
}

/// Which backends serve, and why the others do not.
pub type Chosen = Vec<(&'static str, Result<(), Unavailable>)>;

/// Moves this process's own memory.
pub struct OwnBackend {
    copy: CopyBackend,
    swap: Option<SwapBackend>,
    kernel: KernelBackend,
    chosen: Chosen,
}

impl OwnBackend {
    /// Makes whatever works here.
    ///
    /// # Errors
    /// No threads for copies.
    pub fn new(settings: &Settings) -> io::Result<Self> {
        let engine = match settings.without_engine {
            true => Err(Unavailable::new("it is switched off", "ask for it")),
            false => EngineDriver::open(),
        };
        let has_engine = engine.as_ref().map(drop).map_err(Clone::clone);
        let copy = CopyBackend::new(settings.copiers.max(1), settings.copier_cpus.clone())?
            .with_engine(engine.ok());
        let kernel = KernelBackend::of_own_memory();
        let mut config = settings.swap.clone();
        config.without_privilege = settings.exchange == Exchange::Always;
        config.engine &= !settings.without_engine;
        let swap = match settings.exchange {
            Exchange::Never => Err(Unavailable::new(
                "it is switched off",
                "ask for exchanges where they are safe",
            )),
            _ => SwapBackend::new(config),
        };
        let chosen = vec![
            ("copy", copy.probe()),
            ("swap", swap.as_ref().map(drop).map_err(Clone::clone)),
            ("kernel", kernel.probe()),
            ("engine", has_engine),
        ];
        Ok(Self {
            copy,
            swap: swap.ok(),
            kernel,
            chosen,
        })
    }

    /// Which backends serve, and why the others do not.
    #[must_use]
    pub fn chosen(&self) -> &Chosen {
        &self.chosen
    }

    fn of(&mut self, action: &Action<'_>) -> &mut dyn Backend {
        match (action, &mut self.swap) {
            (Action::Replicate { .. }, _) => &mut self.copy,
            (Action::Migrate { .. }, Some(swap)) => swap,
            (Action::Migrate { .. }, None) => &mut self.kernel,
        }
    }
}

impl Backend for OwnBackend {
    fn name(&self) -> &'static str {
        "own"
    }

    fn probe(&self) -> Result<(), Unavailable> {
        let works = |(_, probe): &&(&str, Result<(), Unavailable>)| probe.is_ok();
        match self.chosen.iter().find(works) {
            Some(_) => Ok(()),
            None => self.kernel.probe(),
        }
    }

    fn serves_submitters(&self, action: &Action<'_>) -> bool {
        match action {
            Action::Replicate { .. } => self.copy.serves_submitters(action),
            Action::Migrate { .. } => self.swap.is_none() && self.kernel.serves_submitters(action),
        }
    }

    fn execute(&mut self, jobs: &[Job<'_>]) -> Vec<Outcome> {
        collect(jobs, |tell| self.execute_each(jobs, tell))
    }

    fn execute_each(&mut self, jobs: &[Job<'_>], tell: &mut dyn FnMut(usize, Outcome)) {
        let is_copy = |job: &Job<'_>| matches!(job.action, Action::Replicate { .. });
        let mut first = 0;
        for group in jobs.chunk_by(|one, next| is_copy(one) == is_copy(next)) {
            let backend = self.of(&group[0].action);
            let name = backend.name();
            backend.execute_each(group, &mut |index, mut outcome| {
                outcome.backend = outcome.backend.or(Some(name));
                tell(first + index, outcome);
            });
            first += group.len();
        }
    }
}

/// A service for this process's own memory, and what serves in it.
///
/// # Errors
/// A setting out of range, or a system out of resources.
pub fn open(config: Config, settings: Settings) -> Result<(Mover, Chosen), OpenError> {
    let first = OwnBackend::new(&settings)?;
    let chosen = first.chosen().clone();
    let mut first = Some(first);
    let mover = Mover::open(config, move |_| match first.take() {
        Some(backend) => Box::new(backend) as Box<dyn Backend + Send>,
        None => match OwnBackend::new(&settings) {
            Ok(backend) => Box::new(backend),
            // It could be made before: the system is out of threads. The kernel needs none.
            Err(_) => Box::new(KernelBackend::of_own_memory()),
        },
    })?;
    Ok((mover, chosen))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys;
    use hither_core::ids::NodeId;
    use hither_core::plan::Refusal;
    use hither_mover::{Close, Status};
    use std::time::Duration;

    fn settings(exchange: Exchange) -> Settings {
        let mut settings = Settings {
            exchange,
            ..Settings::default()
        };
        settings.swap.in_place = true;
        settings
    }

    #[test]
    fn each_kind_of_request_finds_its_backend() {
        let area = sys::MemoryArea::new(2 << 20, false).unwrap();
        sys::fill(&area.range()).unwrap();
        let start = area.range().start as usize;
        for exchange in [Exchange::Always, Exchange::Never] {
            let (mover, chosen) = open(Config::default(), settings(exchange)).unwrap();
            let has_swap = chosen[1].1.is_ok();
            assert_eq!(has_swap, exchange == Exchange::Always, "{chosen:?}");
            let migrate = || {
                let request = mover.request().unwrap().tag(1);
                request.migrate(start..start + (64 << 10), NodeId(0))
            };
            // The first finds nothing in stock and gets pages on the way; the pool fills up when
            // moves rest.
            mover.submit(migrate()).unwrap();
            let first = mover.wait(Some(Duration::from_secs(20))).unwrap();
            assert_eq!((first.tag, first.status), (1, Status::Done), "{first:?}");
            std::thread::sleep(Duration::from_millis(100));
            mover.submit(migrate()).unwrap();
            let second = mover.wait(Some(Duration::from_secs(20))).unwrap();
            assert_eq!(
                second.moved_pages,
                if has_swap { 16 } else { 0 },
                "{second:?}"
            );
            let by = mover.backend_name(second.backend);
            assert_eq!(by, Some(if has_swap { "swap" } else { "kernel" }));
            let request = mover.request().unwrap().tag(2);
            let request = request.replicate(start, start + (1 << 20), 4096);
            mover.submit(request).unwrap();
            let third = mover.wait(Some(Duration::from_secs(20))).unwrap();
            assert_eq!(
                (third.tag, third.status, third.bytes),
                (2, Status::Done, 4096)
            );
            assert_eq!(mover.backend_name(third.backend), Some("copy"));
            assert!(mover.close(Close::Drain).is_empty());
        }
    }

    #[test]
    fn what_is_not_there_fails_and_says_why() {
        let (mover, _) = open(Config::default(), settings(Exchange::WhereSafe)).unwrap();
        let request = mover.request().unwrap().migrate(4096..8192, NodeId(0));
        mover.submit(request).unwrap();
        let done = mover.wait(Some(Duration::from_secs(20))).unwrap();
        assert_eq!(done.status, Status::Failed);
        assert_eq!(done.refused(Refusal::Unmapped), 1, "{done:?}");
    }
}
