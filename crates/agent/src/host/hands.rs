//! What moves pages here: the backends that serve the agent, and the movers made of them.

use super::seats::MOST_MOVERS;
use super::{Error, Result};
use crate::{Execute, Movers};
use hither_core::ids::CpuId;
use hither_core::plan::{MoveOutcome, MoveRequest, PlaceRequest};
use hither_core::snapshot::ProcessState;
use hither_linux::backend::kernel::KernelBackend;
use hither_linux::bind::placed::Placed;
use hither_linux::sys;
use hither_mover::Backend;
use hither_mover::executor::{Factory, Limits};

/// The backends there are, the best first.
const TABLE: [fn() -> Box<dyn Backend + Send>; 1] = [|| Box::new(KernelBackend::new())];

/// A backend that works here.
pub struct Hands {
    /// Its name.
    pub name: &'static str,
    /// Makes one for each mover.
    factory: Factory,
}

impl Hands {
    /// The first backend that works here.
    ///
    /// # Errors
    /// Where none does, with the reason of each.
    pub fn find() -> Result<Self> {
        let mut reasons = String::new();
        for make in TABLE {
            let backend = make();
            let name = backend.name();
            match backend.probe() {
                Ok(()) => {
                    let factory = Box::new(move |_| make());
                    return Ok(Self { name, factory });
                }
                Err(why) => reasons += &format!("\n  backend {name}: {why}"),
            }
        }
        let why = format!("nothing can move pages here{reasons}");
        Err(Error::Refused(why))
    }

    /// Threads that move pages by it, beside which programs are placed.
    ///
    /// # Errors
    /// They cannot be started.
    pub fn movers(self) -> Result<Placing> {
        let movers = Movers::start(Limits::default(), MOST_MOVERS, self.factory);
        let movers = movers.map_err(Error::system("starting what moves pages"))?;
        Ok(Placing {
            movers,
            placed: Placed::new(),
        })
    }
}

/// Movers, and programs whose threads were placed: they have back what they had when it closes.
#[derive(Debug)]
pub struct Placing {
    movers: Movers,
    placed: Placed,
}

impl Execute for Placing {
    fn submit(&mut self, now_us: u64, requests: Vec<MoveRequest>) -> Vec<MoveOutcome> {
        self.movers.submit(now_us, requests)
    }

    fn keep(&mut self, living: &[ProcessState]) {
        self.movers.keep(living);
    }

    fn place(&mut self, movers: Vec<Vec<CpuId>>) {
        self.movers.place(movers);
    }

    fn is_moving(&self) -> bool {
        self.movers.is_moving()
    }

    fn run_on(&mut self, places: Vec<PlaceRequest>) -> Vec<String> {
        let mut notes = Vec::new();
        for place in places {
            let pid = place.pid.0;
            if place.cpus.is_empty() {
                self.placed.release(pid);
            } else if let Err(error) = self.placed.put(pid, &place.cpus)
                && error.raw_os_error() != Some(sys::ESRCH)
            {
                let cpus = &place.cpus;
                notes.push(format!(
                    "process {pid} cannot be kept on CPUs {cpus}: {error}"
                ));
            }
        }
        notes
    }

    fn collect(&mut self, now_us: u64) -> Vec<MoveOutcome> {
        self.movers.collect(now_us)
    }

    fn close(&mut self, now_us: u64) -> Vec<MoveOutcome> {
        self.placed.release_all();
        self.movers.close(now_us)
    }
}
