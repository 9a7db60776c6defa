//! What moves pages here: the backends that serve the agent, and the movers made of them.

use super::seats::MOST_MOVERS;
use super::{Error, Result};
use crate::Movers;
use hither_linux::backend::kernel::KernelBackend;
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

    /// Threads that move pages by it.
    ///
    /// # Errors
    /// They cannot be started.
    pub fn movers(self) -> Result<Movers> {
        let movers = Movers::start(Limits::default(), MOST_MOVERS, self.factory);
        movers.map_err(Error::system("starting what moves pages"))
    }
}
