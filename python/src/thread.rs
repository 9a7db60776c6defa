//! Threads on the CPUs of sets.

use crate::raised;
use crate::set::resolve;
use hither_core::bind::{MemoryPolicy, ThreadPolicy};
use hither_linux::bind::{Binding, Team};
use hither_linux::sys;
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use std::sync::Mutex;

fn policy(memory: Option<&str>) -> PyResult<Option<MemoryPolicy>> {
    let read = |text: &str| {
        text.parse()
            .map_err(|why| PyValueError::new_err(format!("memory: {why}")))
    };
    memory.map(read).transpose()
}

/// A thread that is bound, until undo() or the end of a with block.
#[pyclass(frozen, module = "hither")]
pub struct BoundThread {
    /// What undoes it, until it is undone.
    before: Mutex<Option<Binding>>,
    thread: i32,
}

impl BoundThread {
    fn new(binding: &Binding) -> PyResult<Self> {
        Ok(Self {
            before: Mutex::new(Some(binding.replace().map_err(raised)?)),
            thread: sys::thread_id(),
        })
    }
}

#[pymethods]
impl BoundThread {
    /// Gives the thread back what it had; a second call does nothing.
    fn undo(&self) -> PyResult<()> {
        if self.thread != sys::thread_id() {
            return Err(PyRuntimeError::new_err(format!(
                "thread {} is bound and thread {} calls: undo it in the thread itself",
                self.thread,
                sys::thread_id()
            )));
        }
        let before = self.before.lock().map_or(None, |mut before| before.take());
        before.map_or(Ok(()), |before| before.apply().map_err(raised))
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[pyo3(signature = (*_raised))]
    fn __exit__(&self, _raised: &Bound<'_, PyAny>) -> PyResult<()> {
        self.undo()
    }
}

/// Binds the calling thread, and threads that it starts from now on, to a set.
#[pyfunction]
#[pyo3(signature = (on, memory=None))]
pub fn bind_thread(on: &Bound<'_, PyAny>, memory: Option<&str>) -> PyResult<BoundThread> {
    let memory = policy(memory)?;
    let (resolved, here) = resolve("on", on)?;
    let binding = Binding::on(&resolved.set, memory, &here).map_err(raised)?;
    BoundThread::new(&binding)
}

/// Places for the threads of a team.
#[pyclass(frozen, module = "hither")]
pub struct Places {
    team: Team,
}

#[pymethods]
impl Places {
    #[new]
    #[pyo3(signature = (on, threads="fill", count=None, memory=None))]
    fn new(
        on: &Bound<'_, PyAny>,
        threads: &str,
        count: Option<i64>,
        memory: Option<&str>,
    ) -> PyResult<Self> {
        let threads: ThreadPolicy = threads.parse().map_err(PyValueError::new_err)?;
        let memory = policy(memory)?;
        let (resolved, here) = resolve("on", on)?;
        let team = Team::with_memory(&resolved.set, threads, memory, &here).map_err(raised)?;
        let team = match count {
            // A number that is none at all is refused by the same words.
            Some(count) => team
                .of(usize::try_from(count).unwrap_or(0))
                .map_err(raised)?,
            None => team,
        };
        Ok(Self { team })
    }

    /// Threads of the team.
    #[getter]
    fn count(&self) -> usize {
        self.team.count()
    }

    /// The CPU of the thread of a number; None where threads float.
    fn cpu(&self, index: usize) -> Option<u32> {
        self.team.member(index).cpu.map(|cpu| cpu.0)
    }

    /// Binds the calling thread as the thread of a number.
    fn bind(&self, index: usize) -> PyResult<BoundThread> {
        BoundThread::new(&self.team.binding(index))
    }
}
