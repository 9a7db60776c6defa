//! What a program tells the daemon of itself.

use hither_linux::opting::{Answer, Opting, default_socket, tell};
use pyo3::exceptions::{PyConnectionRefusedError, PyPermissionError};
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

fn told(py: Python<'_>, opting: Opting) -> PyResult<()> {
    // The numbers are those of ECONNREFUSED and EPERM.
    match py.detach(|| tell(&default_socket(), opting)) {
        Ok(Answer::Heard) => Ok(()),
        Ok(Answer::Refused(why)) => Err(PyPermissionError::new_err((1, why))),
        Err(error) => Err(PyConnectionRefusedError::new_err((111, error.to_string()))),
    }
}
