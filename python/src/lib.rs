//! The native part of the Python package `hither`: sets, memory, threads, replicated arrays, monitors,
//! streams and the mover's calls.
//! What is plain Python (numpy's shapes, teams over executors) is in `hither/`.
//!
//! A fault of the caller is a ValueError or TypeError, a refusal of the kernel's an OSError with its
//! number; both say what is wrong, where, and how to mend it. Calls that may take long run without
//! the interpreter's lock.

mod daemon;
mod memory;
mod monitor;
mod mover;
mod replicated;
mod set;
mod stream;
mod thread;

use pyo3::exceptions::{PyMemoryError, PyOSError, PyValueError};
use pyo3::prelude::*;

/// As Python's exceptions.
fn raised(error: hither_linux::Error) -> PyErr {
    let text = error.to_string();
    match error.source {
        Some(source) if source.kind() == std::io::ErrorKind::OutOfMemory => {
            PyMemoryError::new_err(text)
        }
        Some(source) => match source.raw_os_error() {
            Some(number) => PyOSError::new_err((number, text)),
            None => PyValueError::new_err(text),
        },
        None => PyValueError::new_err(text),
    }
}

/// Memory, threads and moves on resource sets.
#[pymodule]
mod _hither {
    #[pymodule_export]
    use crate::daemon::{declare, opt_in, opt_out};
    #[pymodule_export]
    use crate::memory::{Memory, Residency, bind_range, nodes_by_page, residency};
    #[pymodule_export]
    use crate::monitor::{Monitor, Reached};
    #[pymodule_export]
    use crate::mover::{Move, Moved, Mover};
    #[pymodule_export]
    use crate::replicated::{ReplicatedBytes, ReplicatedView};
    #[pymodule_export]
    use crate::set::Set;
    #[pymodule_export]
    use crate::stream::{BufferStream, Streamed};
    #[pymodule_export]
    use crate::thread::{BoundThread, Places, bind_thread};

    #[pymodule_export]
    const VERSION: &str = env!("CARGO_PKG_VERSION");
}
