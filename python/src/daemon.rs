//! What a program tells the daemon of itself.

use crate::memory::Span;
use hither_core::declared::Hint;
use hither_linux::opting::{self, Answer, Opting, default_socket, tell};
use pyo3::exceptions::{PyConnectionRefusedError, PyPermissionError, PyValueError};
use pyo3::prelude::*;

/// Has the daemon leave this process alone until it ends.
#[pyfunction]
pub fn opt_out(py: Python<'_>) -> PyResult<()> {
    told(py, Opting::Out)
}

/// Takes opt_out() back, and lets targets with `opt_in = true` take this process.
#[pyfunction]
pub fn opt_in(py: Python<'_>) -> PyResult<()> {
    told(py, Opting::In)
}

/// Tells the daemon of the memory of a buffer, as a numpy array.
#[pyfunction]
#[pyo3(signature = (memory, hint))]
pub fn declare(py: Python<'_>, memory: &Bound<'_, PyAny>, hint: Option<&str>) -> PyResult<()> {
    let hint = match hint {
        None => None,
        Some(word) => {
            let known = Hint::ALL.into_iter().find(|hint| hint.name() == word);
            let names = Hint::ALL.map(Hint::name).join(", ");
            Some(known.ok_or_else(|| {
                PyValueError::new_err(format!("there is no hint {word:?}; the hints are {names}"))
            })?)
        }
    };
    let span = Span::of(memory)?;
    let end = span.address + span.bytes;
    // Addresses of this process fit.
    let range = span.address as usize..end as usize;
    answered(py.detach(|| opting::declare(&default_socket(), std::slice::from_ref(&range), hint)))
}

fn told(py: Python<'_>, opting: Opting) -> PyResult<()> {
    answered(py.detach(|| tell(&default_socket(), opting)))
}

fn answered(answer: hither_linux::Result<Answer>) -> PyResult<()> {
    // The numbers are those of ECONNREFUSED and EPERM.
    match answer {
        Ok(Answer::Heard) => Ok(()),
        Ok(Answer::Refused(why)) => Err(PyPermissionError::new_err((1, why))),
        Err(error) => Err(PyConnectionRefusedError::new_err((111, error.to_string()))),
    }
}
