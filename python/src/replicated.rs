//! Replicated arrays: bytes with a copy on each node. Shapes and dtypes are Python's side.

use crate::memory::Span;
use crate::raised;
use hither_core::set::CpuSet;
use hither_replica::{Array, Config, Error, HomeNode, Place, Places, Reader};
use pyo3::exceptions::{PyMemoryError, PyRuntimeError, PyTimeoutError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use std::time::Duration;

/// How long a call waits before it looks for signals (Ctrl-C).
const SLICE: Duration = Duration::from_millis(50);

/// As Python's exceptions.
fn failed(error: Error) -> PyErr {
    let text = error.to_string();
    match error {
        Error::Linux(error) => raised(error),
        Error::Invalid(_) | Error::NoReader(_) => PyValueError::new_err(text),
        Error::Forked => PyRuntimeError::new_err(text),
        Error::Busy { .. } => PyTimeoutError::new_err(text),
        Error::System { .. } => PyMemoryError::new_err(text),
    }
}

/// Seconds; None is for ever.
fn limit(timeout: Option<f64>) -> PyResult<Duration> {
    match timeout {
        None => Ok(Duration::MAX),
        Some(seconds) => Duration::try_from_secs_f64(seconds).map_err(|_| {
            PyValueError::new_err(format!(
                "timeout is {seconds}: give seconds from 0 on, or None"
            ))
        }),
    }
}

/// Tries again and again without the interpreter's lock, so that Ctrl-C ends it.
fn patiently<T: Send>(
    py: Python<'_>,
    timeout: Option<f64>,
    step: impl Fn(Duration) -> Result<T, Error> + Sync,
) -> PyResult<T> {
    let mut left = limit(timeout)?;
    loop {
        let slice = left.min(SLICE);
        match py.detach(|| step(slice)) {
            Err(Error::Busy { .. }) if left > slice => left -= slice,
            done => return done.map_err(failed),
        }
        py.check_signals()?;
    }
}

/// One logical block of bytes with a copy on each node.
#[pyclass(frozen, module = "hither")]
pub struct ReplicatedBytes {
    array: Array,
}

#[pymethods]
impl ReplicatedBytes {
    #[new]
    #[pyo3(signature = (source, budget, chunk, readers, copies, interleave, huge))]
    fn new(
        source: &Bound<'_, PyAny>,
        budget: Option<u64>,
        chunk: usize,
        readers: usize,
        copies: usize,
        interleave: bool,
        huge: bool,
    ) -> PyResult<Self> {
        let span = Span::of(source)?;
        let usual = Config::default();
        let config = Config {
            home: if interleave {
                HomeNode::Interleaved
            } else {
                usual.home
            },
            chunk_bytes: chunk,
            budget_bytes: budget,
            max_readers: readers,
            huge,
            ..usual
        };
        let made = source.py().detach(|| {
            let mut places = Places::here()?;
            if copies > 0 {
                let place = Place {
                    node: places.list()[0].node,
                    cpus: CpuSet::new(),
                };
                places = Places::chosen(vec![place; copies.min(1 << 16)], 20)?;
            }
            Array::filled(span.bytes as usize, places, config, |bytes| {
                bytes.copy_from_slice(bytes_of(&span));
            })
        });
        Ok(Self {
            array: made.map_err(failed)?,
        })
    }

    /// Holds the current epoch; the nearest place where none is given.
    #[pyo3(signature = (place=None))]
    fn read(&self, place: Option<usize>) -> PyResult<ReplicatedView> {
        let reader = match place {
            None => self.array.reader(),
            Some(place) => self.array.reader_at(place),
        };
        ReplicatedView::new(reader.map_err(failed)?)
    }

    /// Writes the bytes of an array at an offset and publishes them; the epoch.
    #[pyo3(signature = (offset, source, timeout=None))]
    fn write(
        &self,
        offset: usize,
        source: &Bound<'_, PyAny>,
        timeout: Option<f64>,
    ) -> PyResult<u64> {
        let span = Span::of(source)?;
        patiently(source.py(), timeout, |slice| {
            let mut writer = self.array.write_within(slice)?;
            writer.write(offset, bytes_of(&span))?;
            writer.publish()
        })
    }

    /// Makes copies: bytes copied, seconds, and what was refused.
    #[pyo3(signature = (timeout=None))]
    fn refresh(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<(u64, f64, Vec<String>)> {
        let built = patiently(py, timeout, |slice| self.array.refresh(slice))?;
        Ok((built.bytes, built.seconds, built.refused))
    }

    /// Gives copies up.
    #[pyo3(signature = (timeout=None))]
    fn collapse(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<()> {
        patiently(py, timeout, |slice| self.array.collapse(slice))
    }

    /// Has a thread maintain it.
    fn keep(&self, py: Python<'_>, seconds: f64) -> PyResult<()> {
        let period = limit(Some(seconds))?;
        py.detach(|| self.array.keep(period)).map_err(failed)
    }

    /// What it did.
    fn report(&self, py: Python<'_>) -> PyResult<String> {
        let report = py.detach(|| self.array.report()).map_err(failed)?;
        Ok(report.to_string())
    }

    /// Figures of the report.
    fn figures<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let report = py.detach(|| self.array.report()).map_err(failed)?;
        let figures = PyDict::new(py);
        figures.set_item("epoch", report.epoch)?;
        figures.set_item("places", report.places)?;
        figures.set_item("copies", report.copies.0)?;
        figures.set_item("all_copies", report.copies.1)?;
        figures.set_item("copy_bytes", report.copy_bytes)?;
        figures.set_item("master_bytes", report.master_bytes)?;
        figures.set_item("local_share", report.local_share())?;
        Ok(figures)
    }
}

/// The bytes of an array of Python's.
fn bytes_of(span: &Span) -> &[u8] {
    let start = std::ptr::with_exposed_provenance(span.address as usize);
    // SAFETY: the caller holds the array, whose bytes are in one piece; what Python threads write meanwhile is
    // torn, as in numpy's own copies.
    unsafe { std::slice::from_raw_parts(start, span.bytes as usize) }
}

/// An epoch that is held until the last array on it is gone.
#[pyclass(frozen, module = "hither")]
pub struct ReplicatedView {
    address: usize,
    bytes: usize,
    epoch: u64,
    is_local: bool,
    /// Last, so that it lets go when nothing refers to its bytes.
    _reader: Reader,
}

impl ReplicatedView {
    fn new(mut reader: Reader) -> PyResult<Self> {
        let tick = reader.pin().map_err(failed)?;
        let guard = reader.view(tick);
        let found = (
            guard.whole().as_ptr().addr(),
            guard.len(),
            guard.epoch(),
            guard.is_local(),
        );
        // The reader holds on until it is dropped.
        std::mem::forget(guard);
        let (address, bytes, epoch, is_local) = found;
        Ok(Self {
            address,
            bytes,
            epoch,
            is_local,
            _reader: reader,
        })
    }
}

#[pymethods]
impl ReplicatedView {
    /// Its epoch.
    #[getter]
    fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Is it on the reader's own node?
    #[getter]
    fn is_local(&self) -> bool {
        self.is_local
    }

    /// By which numpy makes an array of it that keeps it alive; not to be written.
    #[getter]
    fn __array_interface__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let interface = PyDict::new(py);
        interface.set_item("typestr", "|u1")?;
        interface.set_item("shape", (self.bytes,))?;
        interface.set_item("data", (self.address, true))?;
        interface.set_item("version", 3)?;
        Ok(interface)
    }
}
