//! Monitors: who asks for which part of an array, and a wait until that is much.

use crate::memory::Span;
use crate::raised;
use hither_core::ids::NodeId;
use hither_core::opium::{filter, transaction};
use hither_linux::monitor::{Monitor as Native, Reached as Told, Sum, Wanted, WatchedArea, What};
use hither_linux::root::Root;
use pyo3::exceptions::{PyRuntimeError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Words for types of transactions.
const TYPES: [(&str, u32); 11] = [
    ("read", transaction::READ),
    ("write", transaction::WRITE),
    ("prefetch", transaction::PREFETCH),
    ("prefetch_write", transaction::PREFETCH_WRITE),
    ("write_back", transaction::WRITE_BACK),
    ("transfer", transaction::TRANSFER),
    ("transfer_write", transaction::TRANSFER_WRITE),
    ("ownership", transaction::OWNERSHIP),
    ("fills", transaction::FILLS),
    ("transfers", transaction::TRANSFERS),
    ("all", transaction::ALL),
];
/// Words for directions.
const DIRECTIONS: [(&str, u32); 4] = [
    ("inbound", filter::INBOUND),
    ("outbound", filter::OUTBOUND),
    ("local", filter::LOCAL),
    ("remote", filter::REMOTE),
];

/// The bits of one word or of several.
fn bits(given: &Bound<'_, PyAny>, name: &str, words: &[(&str, u32)]) -> PyResult<u32> {
    let given: Vec<String> = match given.extract::<String>() {
        Ok(word) => vec![word],
        Err(_) => given
            .extract()
            .map_err(|_| PyTypeError::new_err(format!("{name} is a word or a list of words")))?,
    };
    given.iter().try_fold(0, |bits, word| {
        let known = words.iter().find(|(known, _)| known == word);
        let (_, bit) = known.ok_or_else(|| {
            let all: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
            PyValueError::new_err(format!("{name} has `{word}`: use {}", all.join(", ")))
        })?;
        Ok(bits | bit)
    })
}

/// A threshold that was reached.
#[pyclass(frozen, get_all, module = "hither")]
pub struct Reached {
    /// The area of the grain that reached it, or None.
    area: Option<usize>,
    /// The grain, or None.
    grain: Option<usize>,
    /// The sum that reached it, or None.
    sum: Option<usize>,
    /// Node of whoever asked last.
    node: u32,
}

#[pymethods]
impl Reached {
    fn __repr__(&self) -> String {
        match (self.area, self.grain, self.sum) {
            (Some(area), Some(grain), _) => {
                format!("Reached(area={area}, grain={grain}, node={})", self.node)
            }
            (.., sum) => format!("Reached(sum={}, node={})", sum.unwrap_or(0), self.node),
        }
    }
}

impl From<Told> for Reached {
    fn from(told: Told) -> Self {
        let (area, grain, sum) = match told.what {
            What::Grain { area, grain } => (Some(area), Some(grain), None),
            What::Sum(sum) => (None, None, Some(sum)),
        };
        Self {
            area,
            grain,
            sum,
            node: told.node.0,
        }
    }
}

/// Counts who asks for which part of arrays.
#[pyclass(frozen, module = "hither")]
pub struct Monitor {
    pid: u32,
    /// The native one, and the arrays that it watches, which must not be freed and used for something else.
    held: Mutex<Option<(Native, Vec<Py<PyAny>>)>>,
}

impl Monitor {
    fn lock(&self) -> MutexGuard<'_, Option<(Native, Vec<Py<PyAny>>)>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does something with it, without the interpreter's lock while another thread may have it.
    fn with<T: Send>(
        &self,
        py: Python<'_>,
        act: impl FnOnce(&mut Native) -> hither_linux::Result<T> + Send,
    ) -> PyResult<T> {
        if self.pid != std::process::id() {
            return Err(PyRuntimeError::new_err(
                "this process is a child after fork, and the monitor is its parent's: make another",
            ));
        }
        py.detach(|| self.lock().as_mut().map(|(native, _)| act(native)))
            .ok_or_else(|| PyRuntimeError::new_err("the monitor is closed: make another"))?
            .map_err(raised)
    }
}

#[pymethods]
impl Monitor {
    #[new]
    #[pyo3(signature = (*, samples=false))]
    fn new(py: Python<'_>, samples: bool) -> PyResult<Self> {
        let wanted = match samples {
            true => Wanted::Samples,
            false => Wanted::Best,
        };
        let native = py.detach(|| Native::open(&Root::host(), wanted));
        Ok(Self {
            pid: std::process::id(),
            held: Mutex::new(Some((native.map_err(raised)?, Vec::new()))),
        })
    }

    /// What counts, and what it leaves out.
    #[getter]
    fn limits(&self, py: Python<'_>) -> PyResult<String> {
        self.with(py, |native| Ok(native.limits()))
    }

    /// Is every transaction counted?
    #[getter]
    fn is_exact(&self, py: Python<'_>) -> PyResult<bool> {
        self.with(py, |native| Ok(native.is_exact()))
    }

    #[pyo3(signature = (array, *, grain=4096, types=None, directions=None, node=None, threshold=0))]
    fn add_area(
        &self,
        array: &Bound<'_, PyAny>,
        grain: u64,
        types: Option<&Bound<'_, PyAny>>,
        directions: Option<&Bound<'_, PyAny>>,
        node: Option<u32>,
        threshold: u32,
    ) -> PyResult<usize> {
        let span = Span::of(array)?;
        let start = span.address;
        let area = WatchedArea {
            addresses: start..start.saturating_add(span.bytes),
            grain_bytes: grain,
            types: types.map_or(Ok(transaction::FILLS), |given| bits(given, "types", &TYPES))?,
            directions: directions.map_or(Ok(0), |given| bits(given, "directions", &DIRECTIONS))?,
            node: node.map(NodeId),
            threshold,
        };
        let number = self.with(array.py(), |native| native.add_area(area))?;
        if let Some((_, arrays)) = self.lock().as_mut() {
            arrays.push(array.clone().unbind());
        }
        Ok(number)
    }

    #[pyo3(signature = (areas, *, types=None, threshold=0))]
    fn add_sum(
        &self,
        py: Python<'_>,
        areas: Vec<usize>,
        types: Option<&Bound<'_, PyAny>>,
        threshold: u64,
    ) -> PyResult<usize> {
        let types = types.map_or(Ok(transaction::FILLS), |given| bits(given, "types", &TYPES))?;
        let sum = Sum {
            areas,
            types,
            threshold,
        };
        self.with(py, |native| native.add_sum(sum))
    }

    fn start(&self, py: Python<'_>) -> PyResult<()> {
        self.with(py, Native::start)
    }

    fn stop(&self, py: Python<'_>) -> PyResult<()> {
        self.with(py, Native::stop)
    }

    /// By node the counts of each grain, and pages missed.
    fn read_area<'py>(&self, py: Python<'py>, area: usize) -> PyResult<(Bound<'py, PyDict>, u64)> {
        let (nodes, read) = self.with(py, |native| {
            let read = native.read_area(area)?;
            Ok((native.nodes().to_vec(), read))
        })?;
        let by_node = PyDict::new(py);
        for (position, node) in nodes.iter().enumerate() {
            let own = read.counts.iter().skip(position).step_by(nodes.len());
            by_node.set_item(node.0, own.copied().collect::<Vec<u64>>())?;
        }
        Ok((by_node, read.missed_pages))
    }

    fn read_sum<'py>(&self, py: Python<'py>, sum: usize) -> PyResult<Bound<'py, PyDict>> {
        let (nodes, counts) = self.with(py, |native| {
            let counts = native.read_sum(sum)?;
            Ok((native.nodes().to_vec(), counts))
        })?;
        let by_node = PyDict::new(py);
        for (node, count) in nodes.iter().zip(counts) {
            by_node.set_item(node.0, count)?;
        }
        Ok(by_node)
    }

    /// Waits for a threshold; None when the time is over.
    #[pyo3(signature = (timeout=None))]
    fn wait(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Option<Reached>> {
        let timeout = match timeout {
            None => Duration::MAX,
            Some(seconds) => Duration::try_from_secs_f64(seconds).map_err(|_| {
                PyValueError::new_err(format!(
                    "timeout is {seconds}: give seconds from 0 on, or None"
                ))
            })?,
        };
        let end = Instant::now().checked_add(timeout);
        loop {
            // Of a wait a moment, after which Ctrl-C and other threads have their turn.
            let left = end.map(|end| end.saturating_duration_since(Instant::now()));
            let slice = left.unwrap_or(SLICE).min(SLICE);
            if let Some(told) = self.with(py, |native| native.wait(slice))? {
                return Ok(Some(told.into()));
            }
            if left == Some(Duration::ZERO) {
                return Ok(None);
            }
            py.check_signals()?;
        }
    }

    /// What the whole machine did; None where samples do not tell.
    fn totals<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyDict>>> {
        let Some(told) = self.with(py, |native| Ok(native.totals()))? else {
            return Ok(None);
        };
        let totals = PyDict::new(py);
        totals.set_item("packets", told.packets())?;
        totals.set_item("transactions", told.transactions)?;
        totals.set_item("flops", told.flops)?;
        totals.set_item("flops_per_packet", told.flops_per_packet())?;
        Ok(Some(totals))
    }

    fn close(&self, py: Python<'_>) {
        let held = py.detach(|| self.lock().take());
        drop(held);
    }

    fn __enter__(this: Py<Self>) -> Py<Self> {
        this
    }

    fn __exit__(
        &self,
        py: Python<'_>,
        _kind: &Bound<'_, PyAny>,
        _error: &Bound<'_, PyAny>,
        _trace: &Bound<'_, PyAny>,
    ) {
        self.close(py);
    }
}

/// How long a wait goes on before it looks for signals.
const SLICE: Duration = Duration::from_millis(50);
