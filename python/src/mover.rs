//! The mover's calls: arrays are moved or copied while the program goes on.
//!
//! A service has one queue of completions, and each caller waits for a move of its own. So whoever
//! waits first looks for all (the leader), and notes what it finds for the others, who sleep on a
//! condition until then. Locks are held for moments, and never while the interpreter's is taken.

use crate::memory::Span;
use crate::set::resolve;
use hither_core::ids::NodeId;
use hither_core::plan::Refusal;
use hither_linux::backend::own::{self, Settings};
use hither_mover::{Close, Completion, Config, Mover as Service, Race, RequestId, Status};
use pyo3::exceptions::{PyOSError, PyRuntimeError, PyTimeoutError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard};
use std::time::{Duration, Instant};

/// How long a wait goes on before it looks for signals (Ctrl-C) and for closing.
const SLICE: Duration = Duration::from_millis(50);

/// One move, by its tag.
#[derive(Default)]
struct Entry {
    completion: Option<Completion>,
    /// Its arrays, while it is under way.
    arrays: Vec<Py<PyAny>>,
    /// Nobody will ask for it.
    is_forgotten: bool,
}

#[derive(Default)]
struct Ledger {
    next: u64,
    entries: HashMap<u64, Entry>,
    /// Somebody waits for the service's next completion.
    has_leader: bool,
}

struct Shared {
    /// The process that has the workers: a child after fork has none, and locks that another thread
    /// held at the fork stay held there.
    pid: u32,
    /// First, so that what is under way has ended when the arrays go. `None` once closed.
    service: RwLock<Option<Service>>,
    ledger: Mutex<Ledger>,
    noted: Condvar,
}

impl Shared {
    fn check(&self) -> PyResult<()> {
        match self.pid == std::process::id() {
            true => Ok(()),
            false => Err(PyRuntimeError::new_err(
                "this process is a child after fork, and the mover is its parent's: make another",
            )),
        }
    }

    fn service(&self) -> RwLockReadGuard<'_, Option<Service>> {
        self.service.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes completions; the arrays that they free are the caller's to drop.
    fn note(&self, completions: impl IntoIterator<Item = Completion>) -> Vec<Py<PyAny>> {
        let mut freed = Vec::new();
        let mut ledger = self.ledger();
        for completion in completions {
            let tag = completion.tag;
            let Some(entry) = ledger.entries.get_mut(&tag) else {
                continue;
            };
            freed.append(&mut entry.arrays);
            entry.completion = Some(completion);
            if entry.is_forgotten {
                ledger.entries.remove(&tag);
            }
        }
        self.noted.notify_all();
        freed
    }

    /// Notes what is complete, without waiting.
    fn collect(&self) -> Vec<Py<PyAny>> {
        let service = self.service();
        let Some(service) = service.as_ref() else {
            return Vec::new();
        };
        self.note(std::iter::from_fn(|| service.retrieve()))
    }

    /// Waits for a move up to a time; its completion, if there is one then, and arrays to drop.
    fn wait(&self, tag: u64, slice: Duration) -> (Option<Completion>, Vec<Py<PyAny>>) {
        let found = |ledger: &Ledger| {
            let entry = ledger.entries.get(&tag);
            entry.and_then(|entry| entry.completion.clone())
        };
        let mut ledger = self.ledger();
        if let Some(completion) = found(&ledger) {
            return (Some(completion), Vec::new());
        }
        if ledger.has_leader {
            let waited = self.noted.wait_timeout(ledger, slice);
            let (ledger, _) = waited.unwrap_or_else(PoisonError::into_inner);
            return (found(&ledger), Vec::new());
        }
        ledger.has_leader = true;
        drop(ledger);
        let next = self
            .service()
            .as_ref()
            .and_then(|service| service.wait(Some(slice)));
        let freed = self.note(next);
        let mut ledger = self.ledger();
        ledger.has_leader = false;
        (found(&ledger), freed)
    }

    /// Ends the service; what was submitted has run then.
    fn close(&self) -> Vec<Py<PyAny>> {
        let service = self.service.write();
        let service = service.unwrap_or_else(PoisonError::into_inner).take();
        service.map_or_else(Vec::new, |service| self.note(service.close(Close::Drain)))
    }
}

/// Moves arrays to other nodes, and copies arrays, while the program goes on.
#[pyclass(frozen, module = "hither")]
pub struct Mover {
    shared: Arc<Shared>,
    described: Vec<(&'static str, Option<String>)>,
}

fn closed() -> PyErr {
    PyRuntimeError::new_err("the mover is closed: make another")
}

/// A service for this process's own memory, and what serves in it.
pub fn opened(
    py: Python<'_>,
    config: Config,
    settings: Settings,
) -> PyResult<(Service, own::Chosen)> {
    let opened = py.detach(|| own::open(config, settings));
    opened.map_err(|error| match error {
        hither_mover::OpenError::System(cause) => PyOSError::new_err(cause.to_string()),
        other => PyValueError::new_err(other.to_string()),
    })
}

pub fn within(name: &str, number: i64, most: usize) -> PyResult<usize> {
    let fits = usize::try_from(number).ok();
    fits.filter(|number| (1..=most).contains(number))
        .ok_or_else(|| PyValueError::new_err(format!("{name} is {number}: it is 1 to {most}")))
}

fn race(text: &str) -> PyResult<Race> {
    match text {
        "recover" => Ok(Race::Recover),
        "fail" => Ok(Race::Fail),
        "block" => Ok(Race::Block),
        other => Err(PyValueError::new_err(format!(
            "race is 'recover', 'fail' or 'block', not '{other}'"
        ))),
    }
}

/// The one node that a set, its text or a number means.
fn target(to: &Bound<'_, PyAny>) -> PyResult<NodeId> {
    if let Ok(node) = to.extract::<u32>() {
        return Ok(NodeId(node));
    }
    let (resolved, _) = resolve("to", to)?;
    let nodes = &resolved.set.nodes;
    match (nodes.iter().next(), nodes.len()) {
        (Some(node), 1) => Ok(node),
        (None, _) => Err(PyValueError::new_err(
            "the set to move to has no memory: name a node's, as in 'mem:1'",
        )),
        _ => Err(PyValueError::new_err(format!(
            "the set to move to has memory of nodes {nodes}: a move goes to one; name it, or \
             spread the array with hither.bind_range(..., move_pages=True)"
        ))),
    }
}

impl Mover {
    fn submit(
        &self,
        py: Python<'_>,
        arrays: Vec<Py<PyAny>>,
        fill: impl FnOnce(hither_mover::Request<'_>) -> hither_mover::Request<'_> + Send,
    ) -> PyResult<Move> {
        self.shared.check()?;
        let tag = {
            let mut ledger = self.shared.ledger();
            ledger.next += 1;
            let (tag, entry) = (
                ledger.next,
                Entry {
                    arrays,
                    ..Entry::default()
                },
            );
            ledger.entries.insert(tag, entry);
            tag
        };
        let (submitted, freed) = py.detach(|| {
            let freed = self.shared.collect();
            let service = self.shared.service();
            let submitted = match service.as_ref() {
                None => Err(closed()),
                Some(service) => match service.request() {
                    None => Err(PyRuntimeError::new_err(
                        "all requests are in use: wait for some moves, or make the mover with a \
                         larger capacity",
                    )),
                    Some(request) => service.submit(fill(request).tag(tag)).map_err(|rejected| {
                        PyValueError::new_err(format!("the move is refused: {}", rejected.reason))
                    }),
                },
            };
            (submitted, freed)
        });
        drop(freed);
        match submitted {
            Ok(id) => Ok(Move {
                shared: Arc::clone(&self.shared),
                tag,
                id,
            }),
            Err(error) => {
                let entry = self.shared.ledger().entries.remove(&tag);
                drop(entry);
                Err(error)
            }
        }
    }
}

#[pymethods]
impl Mover {
    #[new]
    #[pyo3(signature = (workers=1, capacity=256, copiers=1))]
    fn new(py: Python<'_>, workers: i64, capacity: i64, copiers: i64) -> PyResult<Self> {
        let config = Config {
            workers: within("workers", workers, 256)?,
            capacity: within("capacity", capacity, 32768)? as u16,
            ..Config::default()
        };
        let settings = Settings {
            copiers: within("copiers", copiers, 256)?,
            ..Settings::default()
        };
        let (service, chosen) = opened(py, config, settings)?;
        let described = chosen
            .into_iter()
            .map(|(name, probe)| (name, probe.err().map(|why| why.to_string())))
            .collect();
        let shared = Shared {
            pid: std::process::id(),
            service: RwLock::new(Some(service)),
            ledger: Mutex::default(),
            noted: Condvar::new(),
        };
        Ok(Self {
            shared: Arc::new(shared),
            described,
        })
    }

    /// Which backends serve, and why the others do not: None, or a sentence.
    #[getter]
    fn backends(&self) -> BTreeMap<&'static str, Option<String>> {
        self.described.iter().cloned().collect()
    }

    /// Has the pages that an array has to itself moved to a node: a set with memory of one, its
    /// text, or the node's number. race says what an access to a page on its way does.
    #[pyo3(signature = (array, to, race="recover"))]
    fn migrate(
        &self,
        array: &Bound<'_, PyAny>,
        to: &Bound<'_, PyAny>,
        race: &str,
    ) -> PyResult<Move> {
        let race = self::race(race)?;
        let pages = Span::of(array)?.pages_within()?;
        let node = target(to)?;
        let range = pages.start as usize..pages.end as usize;
        let arrays = vec![array.clone().unbind()];
        self.submit(array.py(), arrays, move |request| {
            request.race(race).migrate(range, node)
        })
    }

    /// Has the bytes of one array copied to another of as many bytes.
    fn replicate(&self, source: &Bound<'_, PyAny>, target: &Bound<'_, PyAny>) -> PyResult<Move> {
        let (from, to) = (Span::of(source)?, Span::of(target)?);
        if from.bytes != to.bytes {
            return Err(PyValueError::new_err(format!(
                "the source has {} bytes and the target {}: pass arrays of one size",
                from.bytes, to.bytes
            )));
        }
        if !to.is_writable {
            return Err(PyTypeError::new_err(
                "the target is read-only: pass another",
            ));
        }
        let arrays = vec![source.clone().unbind(), target.clone().unbind()];
        let (source_address, target_address) = (from.address as usize, to.address as usize);
        let bytes = from.bytes as usize;
        self.submit(source.py(), arrays, move |request| {
            request.replicate(source_address, target_address, bytes)
        })
    }

    /// Ends it when all that was submitted has run; a second call does nothing, nor does one in a
    /// child after fork.
    fn close(&self, py: Python<'_>) {
        if self.shared.check().is_ok() {
            let freed = py.detach(|| self.shared.close());
            drop(freed);
        }
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[pyo3(signature = (*_raised))]
    fn __exit__(&self, py: Python<'_>, _raised: &Bound<'_, PyAny>) {
        self.close(py);
    }
}

/// A move that was submitted.
#[pyclass(frozen, module = "hither")]
pub struct Move {
    shared: Arc<Shared>,
    tag: u64,
    id: RequestId,
}

#[pymethods]
impl Move {
    /// Is it finished, whether or not it succeeded? Does not wait.
    fn done(&self, py: Python<'_>) -> PyResult<bool> {
        self.shared.check()?;
        let freed = py.detach(|| self.shared.collect());
        drop(freed);
        let ledger = self.shared.ledger();
        let entry = ledger.entries.get(&self.tag);
        Ok(entry.is_some_and(|entry| entry.completion.is_some()))
    }

    /// What became of it, when it is finished. TimeoutError after so many seconds; None waits for
    /// ever.
    #[pyo3(signature = (timeout=None))]
    fn wait(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Moved> {
        self.shared.check()?;
        let limit = timeout.map(Duration::try_from_secs_f64);
        let limit = limit.transpose().map_err(|_| {
            PyValueError::new_err("timeout is a number of seconds, 0 or more, or None")
        })?;
        let end = limit.and_then(|limit| Instant::now().checked_add(limit));
        loop {
            let left = end.map_or(SLICE, |end| end.saturating_duration_since(Instant::now()));
            let (found, freed) = py.detach(|| self.shared.wait(self.tag, left.min(SLICE)));
            drop(freed);
            if let Some(completion) = found {
                return Ok(self.told(&completion));
            }
            py.check_signals()?;
            if self.shared.service().is_none() {
                return Err(closed());
            }
            if end.is_some_and(|end| end <= Instant::now()) {
                return Err(PyTimeoutError::new_err("the move is not finished yet"));
            }
        }
    }

    /// Cancels it if it has not begun. True: it will end as 'cancelled' and has not run.
    fn cancel(&self) -> PyResult<bool> {
        self.shared.check()?;
        let service = self.shared.service();
        let cancel = |service: &Service| service.cancel(self.id);
        Ok(service.as_ref().is_some_and(cancel))
    }
}

impl Move {
    fn told(&self, completion: &Completion) -> Moved {
        let service = self.shared.service();
        let name = service
            .as_ref()
            .and_then(|service| service.backend_name(completion.backend));
        let refused = Refusal::ALL
            .into_iter()
            .map(|why| (why.name(), completion.refused(why)));
        Moved {
            status: match completion.status {
                Status::Done => "done",
                Status::Failed => "failed",
                Status::Cancelled => "cancelled",
            },
            backend: name,
            moved: completion.moved_pages,
            already_there: completion.already_there,
            refused: refused.filter(|(_, count)| *count > 0).collect(),
            bytes: completion.bytes,
            queue_ns: completion.queued_ns,
            move_ns: completion.moving_ns,
            stall_ns: completion.stall_ns,
        }
    }
}

impl Drop for Move {
    fn drop(&mut self) {
        if self.shared.check().is_err() {
            return;
        }
        let mut ledger = self.shared.ledger();
        let Some(entry) = ledger.entries.get_mut(&self.tag) else {
            return;
        };
        match entry.completion {
            Some(_) => drop(ledger.entries.remove(&self.tag)),
            None => entry.is_forgotten = true,
        }
    }
}

/// What became of a move.
#[pyclass(frozen, get_all, module = "hither")]
pub struct Moved {
    /// 'done', 'failed' (a page was refused, or an access ended it) or 'cancelled'.
    status: &'static str,
    /// Who carried it out; None where nobody did, or the mover is closed.
    backend: Option<&'static str>,
    /// Pages of 4 KiB now on the target that were elsewhere; of a copy, pages written to.
    moved: u32,
    /// Pages that were on the target already.
    already_there: u32,
    /// Pages that stayed where they were, by reason.
    refused: BTreeMap<&'static str, u32>,
    /// Bytes copied.
    bytes: u64,
    /// Time from submission until it was begun, in ns.
    queue_ns: u64,
    /// Time that it took, in ns.
    move_ns: u64,
    /// Time that threads waited for pages on their way, in ns.
    stall_ns: u64,
}

#[pymethods]
impl Moved {
    fn __repr__(&self) -> String {
        format!(
            "Moved({}: {} pages moved, {} there already, {} refused, {} bytes, {} us)",
            self.status,
            self.moved,
            self.already_there,
            self.refused.values().sum::<u32>(),
            self.bytes,
            self.move_ns / 1000
        )
    }
}
