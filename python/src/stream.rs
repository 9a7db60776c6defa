//! Streams: Python computes over arrays in slow memory, from fast memory that workers fill ahead. Views of parts are
//! Python's side.

use crate::memory::Span;
use crate::mover::{opened, within};
use hither_linux::backend::own::Settings;
use hither_mover::stream::{
    Adapt, ArrayKind, Decision, RawPart, RawStream, StreamError, StreamReport, StreamResults,
    StreamSettings,
};
use hither_mover::{Close, Config, Mover as Service};
use pyo3::exceptions::{PyMemoryError, PyRuntimeError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use std::mem::MaybeUninit;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::ptr;
use std::sync::{Mutex, TryLockError};

/// What the arrays of a run must be like to go on with what was learned.
type Shape = (ArrayKind, ArrayKind, usize);

/// What a stream holds, in the order in which it ends.
struct Open {
    /// Made at the first run, and again where the arrays are other than before.
    stream: Option<(RawStream, Shape)>,
    service: Service,
}

/// A stream with workers of its own.
#[pyclass(frozen, module = "hither")]
pub struct BufferStream {
    /// The process that has the workers: see the mover.
    pid: u32,
    /// Who runs or closes it has the lock. `None` once closed.
    open: Mutex<Option<Open>>,
    settings: StreamSettings,
    fast: Span,
    /// The object whose bytes `fast` are, so that they stay.
    _fast: Py<PyAny>,
}

/// As Python's exceptions.
fn failed(error: StreamError) -> PyErr {
    let text = error.to_string();
    match error {
        StreamError::Thread(_) => PyMemoryError::new_err(text),
        StreamError::NoBuffers { needed: 0, .. } => {
            PyValueError::new_err("nothing goes through fast memory: pass inputs, or set results")
        }
        StreamError::NoBuffers { .. } => {
            PyValueError::new_err(format!("{text}: raise nbytes, or lower block"))
        }
        StreamError::Overlap(..) => PyValueError::new_err(format!(
            "{text}: pass arrays apart; present values of an output are read with results='fast_updated' or \
             'in_place'"
        )),
        _ => PyValueError::new_err(text),
    }
}

fn choose<T>(name: &str, given: &str, choices: [(&str, T); 3]) -> PyResult<T> {
    let names = choices.each_ref().map(|(name, _)| format!("'{name}'"));
    let found = choices.into_iter().find(|(name, _)| *name == given);
    found.map(|(_, value)| value).ok_or_else(|| {
        let names = names.join(", ");
        PyValueError::new_err(format!("{name} is one of {names}, not '{given}'"))
    })
}

/// An array of a run: where it begins, once it is known to have so many bytes.
fn start(name: &str, index: usize, array: &Bound<'_, PyAny>, bytes: usize) -> PyResult<Span> {
    let span = Span::of(array)?;
    match span.bytes == bytes as u64 {
        true => Ok(span),
        false => Err(PyValueError::new_err(format!(
            "{name}[{index}] has {} bytes instead of {bytes}: arrays of a stream have one length",
            span.bytes
        ))),
    }
}

impl BufferStream {
    /// Acts on what is open, without the interpreter's lock.
    fn with<T: Send>(
        &self,
        py: Python<'_>,
        act: impl FnOnce(&mut Option<Open>) -> PyResult<T> + Send,
    ) -> PyResult<T> {
        if self.pid != std::process::id() {
            return Err(PyRuntimeError::new_err(
                "this process is a child after fork, and the stream is its parent's: make another",
            ));
        }
        py.detach(|| match self.open.try_lock() {
            Ok(mut open) => act(&mut open),
            Err(TryLockError::Poisoned(open)) => act(&mut open.into_inner()),
            Err(TryLockError::WouldBlock) => Err(PyRuntimeError::new_err(
                "the stream runs: wait for its run(), or make a stream for each thread",
            )),
        })
    }
}

#[pymethods]
impl BufferStream {
    #[new]
    #[pyo3(signature = (fast, buffers, cache_bytes, results, adapt, workers, copiers))]
    fn new(
        fast: &Bound<'_, PyAny>,
        buffers: usize,
        cache_bytes: usize,
        results: &str,
        adapt: &str,
        workers: i64,
        copiers: i64,
    ) -> PyResult<Self> {
        let span = Span::of(fast)?;
        if !span.is_writable {
            return Err(PyTypeError::new_err("fast is read-only: pass another"));
        }
        let results = choose(
            "results",
            results,
            [
                ("in_place", StreamResults::InPlace),
                ("fast", StreamResults::Fast),
                ("fast_updated", StreamResults::FastUpdated),
            ],
        )?;
        let adapt = choose(
            "adapt",
            adapt,
            [
                ("measure", Adapt::Measure),
                ("always", Adapt::Always),
                ("never", Adapt::Never),
            ],
        )?;
        let settings = StreamSettings {
            buffers,
            cache_bytes,
            results,
            adapt,
            // Its block is told with the arrays.
            ..StreamSettings::new(1)
        };
        let config = Config {
            workers: within("workers", workers, 256)?,
            // A block is ready as soon as it is there.
            batch_requests: 1,
            ..Config::default()
        };
        let copying = Settings {
            copiers: within("copiers", copiers, 256)?,
            ..Settings::default()
        };
        let (service, _) = opened(fast.py(), config, copying)?;
        let open = Open {
            stream: None,
            service,
        };
        Ok(Self {
            pid: std::process::id(),
            open: Mutex::new(Some(open)),
            settings,
            fast: span,
            _fast: fast.clone().unbind(),
        })
    }

    /// Has `part` called for each part of arrays of so many elements, of so many bytes each: with the block's number,
    /// the part's first element, its length, whether it is in fast memory, and for inputs and outputs where in fast
    /// memory each begins; None: in its array.
    fn run(
        &self,
        inputs: Vec<Bound<'_, PyAny>>,
        outputs: Vec<Bound<'_, PyAny>>,
        element_bytes: (usize, usize),
        length: usize,
        block: usize,
        part: Bound<'_, PyAny>,
    ) -> PyResult<Streamed> {
        let py = part.py();
        let kind = |element_bytes: usize, count: usize| ArrayKind {
            element_bytes,
            align: 1,
            count,
        };
        let kinds = (
            kind(element_bytes.0, inputs.len()),
            kind(element_bytes.1, outputs.len()),
        );
        let mut from = Vec::with_capacity(inputs.len());
        for (index, array) in inputs.iter().enumerate() {
            let bytes = length.saturating_mul(element_bytes.0);
            from.push(start("inputs", index, array, bytes)?.address as usize);
        }
        let mut to = Vec::with_capacity(outputs.len());
        for (index, array) in outputs.iter().enumerate() {
            let bytes = length.saturating_mul(element_bytes.1);
            let span = start("outputs", index, array, bytes)?;
            if !span.is_writable {
                return Err(PyTypeError::new_err(format!(
                    "outputs[{index}] is read-only: pass another"
                )));
            }
            to.push(span.address as usize);
        }
        let part = part.unbind();
        let each = |told: RawPart<'_>| {
            // Parts follow each other on this thread; an exception ends the run as a panic does.
            let called = Python::attach(|py| self.call(py, &part, &told, kinds));
            if let Err(raised) = called {
                resume_unwind(Box::new(raised));
            }
        };
        self.with(py, |open| {
            let open = open.as_mut().ok_or_else(closed)?;
            let shape = (kinds.0, kinds.1, block);
            let mut stream = match open.stream.take() {
                Some((stream, same)) if same == shape => stream,
                _ => self.made(shape)?,
            };
            let from: Vec<*const u8> = from
                .iter()
                .map(|&start| ptr::with_exposed_provenance(start))
                .collect();
            let to: Vec<*mut u8> = to
                .iter()
                .map(|&start| ptr::with_exposed_provenance_mut(start))
                .collect();
            // SAFETY: the caller holds the arrays, each of so many bytes in one piece, and this object fast memory,
            // which a stream that runs has alone. What other threads of Python write to arrays meanwhile is torn, as
            // in numpy's own work.
            let run = catch_unwind(AssertUnwindSafe(|| unsafe {
                stream.run(&open.service, &from, &to, length, each)
            }));
            let buffers = stream.buffer_count();
            open.stream = Some((stream, shape));
            match run {
                Ok(report) => Ok(Streamed::of(&report.map_err(failed)?, buffers)),
                // Nothing is in flight any more.
                Err(panic) => match panic.downcast::<PyErr>() {
                    Ok(raised) => Err(*raised),
                    Err(panic) => resume_unwind(panic),
                },
            }
        })
    }

    /// Ends the workers; a second call does nothing, nor does one in a child after fork.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        if self.pid != std::process::id() {
            return Ok(());
        }
        self.with(py, |open| {
            if let Some(open) = open.take() {
                drop(open.service.close(Close::Drain));
            }
            Ok(())
        })
    }
}

impl BufferStream {
    fn made(&self, (inputs, outputs, block): Shape) -> PyResult<RawStream> {
        let start = ptr::with_exposed_provenance_mut::<MaybeUninit<u8>>(self.fast.address as usize);
        let fast = ptr::slice_from_raw_parts_mut(start, self.fast.bytes as usize);
        let settings = StreamSettings {
            block,
            ..self.settings.clone()
        };
        RawStream::new(fast, inputs, outputs, settings).map_err(failed)
    }

    fn call(
        &self,
        py: Python<'_>,
        part: &Py<PyAny>,
        told: &RawPart<'_>,
        kinds: (ArrayKind, ArrayKind),
    ) -> PyResult<()> {
        let fast = self.fast.address as usize;
        let within = |address: usize| {
            let offset = address.wrapping_sub(fast);
            (offset < self.fast.bytes as usize).then_some(offset)
        };
        let inputs = (0..kinds.0.count).map(|array| within(told.input(array).addr()));
        let outputs = (0..kinds.1.count).map(|array| within(told.output(array).addr()));
        let (inputs, outputs): (Vec<_>, Vec<_>) = (inputs.collect(), outputs.collect());
        let arguments = (
            told.block,
            told.first,
            told.length,
            told.is_fast,
            inputs,
            outputs,
        );
        part.call1(py, arguments).map(drop)
    }
}

fn closed() -> PyErr {
    PyRuntimeError::new_err("the stream is closed: make another")
}

/// What a run of a stream did.
#[pyclass(frozen, get_all, module = "hither")]
pub struct Streamed {
    /// Blocks computed: all of them.
    blocks: u64,
    /// Those computed from fast memory.
    fast_blocks: u64,
    /// Those computed from slow memory while they were being filled: nothing else was left.
    late_fills: u64,
    /// Fills that the mover refused or failed.
    failed_fills: u64,
    /// Results that the mover failed to bring back, so that the run did.
    failed_returns: u64,
    /// Bytes that the workers copied.
    copied_bytes: u64,
    /// Time they copied, in ns, summed over copies.
    copying_ns: u64,
    /// Share of that time in which computing went on, too; 1 where nothing was copied.
    overlap: f64,
    /// Share of blocks computed from fast memory.
    hit_share: f64,
    /// From the first block to the last result in place, in ns.
    elapsed_ns: u64,
    /// What the stream holds of fast memory now: 'undecided', 'plain' or 'through'.
    decision: &'static str,
    /// The worst comparison of the last try: how many times as fast fast memory is; None: nothing was compared.
    gain: Option<f64>,
    /// Buffers that the stream has.
    buffers: usize,
}

impl Streamed {
    fn of(report: &StreamReport, buffers: usize) -> Self {
        Self {
            blocks: report.blocks,
            fast_blocks: report.fast_blocks,
            late_fills: report.late_fills,
            failed_fills: report.failed_fills,
            failed_returns: report.failed_returns,
            copied_bytes: report.copied_bytes,
            copying_ns: report.copying_ns,
            overlap: report.overlap(),
            hit_share: report.hit_share(),
            elapsed_ns: report.elapsed.as_nanos() as u64,
            decision: match report.decision {
                Decision::Undecided => "undecided",
                Decision::Plain => "plain",
                Decision::Through => "through",
            },
            gain: report.gain,
            buffers,
        }
    }
}

#[pymethods]
impl Streamed {
    fn __repr__(&self) -> String {
        format!(
            "Streamed({} of {} blocks from fast memory, {} bytes copied, {} us; {})",
            self.fast_blocks,
            self.blocks,
            self.copied_bytes,
            self.elapsed_ns / 1000,
            self.decision
        )
    }
}
