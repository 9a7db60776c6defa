//! Memory in sets, and where memory is.

use crate::raised;
use crate::set::resolve;
use hither_core::bind::MemoryLayout;
use hither_core::rset::{ResourceSet, Resources};
use hither_linux::bind::{self, PageSize, range};
use hither_linux::sys::Present;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};
use std::collections::BTreeMap;
use std::ops::Range;

/// Bytes in a set, zero at first; freed with the last array on them.
#[pyclass(frozen, module = "hither")]
pub struct Memory {
    memory: bind::Memory,
}

fn layout(memory: Option<&str>, set: &ResourceSet) -> PyResult<MemoryLayout> {
    match memory {
        None => Ok(MemoryLayout::usual(set)),
        Some(text) => text
            .parse()
            .map_err(|why| PyValueError::new_err(format!("memory: {why}"))),
    }
}

#[pymethods]
impl Memory {
    #[new]
    #[pyo3(signature = (nbytes, on, memory=None, pages=None, populate=false))]
    fn new(
        nbytes: usize,
        on: &Bound<'_, PyAny>,
        memory: Option<&str>,
        pages: Option<&str>,
        populate: bool,
    ) -> PyResult<Self> {
        let pages = match pages {
            None => PageSize::System,
            Some("small") => PageSize::Small,
            Some("huge") => PageSize::Huge,
            Some(other) => {
                let text = format!("pages is 'small', 'huge' or None, not '{other}'");
                return Err(PyValueError::new_err(text));
            }
        };
        let (resolved, here) = resolve("on", on)?;
        let layout = layout(memory, &resolved.set)?;
        on.py().detach(|| {
            let memory = bind::Memory::new(nbytes, &resolved.set, layout, pages, &here);
            let memory = memory.map_err(raised)?;
            if populate {
                memory.populate().map_err(raised)?;
            }
            Ok(Self { memory })
        })
    }

    /// Its first address.
    #[getter]
    fn address(&self) -> u64 {
        self.memory.range().start
    }

    /// Its length in bytes.
    #[getter]
    fn nbytes(&self) -> usize {
        self.memory.len()
    }

    fn __len__(&self) -> usize {
        self.memory.len()
    }

    /// By which numpy makes an array of it that keeps it alive (numpy's array interface, version 3).
    #[getter]
    fn __array_interface__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let interface = PyDict::new(py);
        interface.set_item("typestr", "|u1")?;
        interface.set_item("shape", (self.memory.len(),))?;
        interface.set_item("data", (self.memory.range().start, false))?;
        interface.set_item("version", 3)?;
        Ok(interface)
    }
}

/// The bytes of an array.
pub struct Span {
    pub address: u64,
    pub bytes: u64,
    pub is_writable: bool,
}

impl Span {
    /// Of an array whose bytes are in one piece, or of a `Memory`.
    pub fn of(array: &Bound<'_, PyAny>) -> PyResult<Self> {
        if let Ok(memory) = array.cast::<Memory>() {
            let range = memory.get().memory.range();
            return Ok(Self {
                address: range.start,
                bytes: memory.get().memory.len() as u64,
                is_writable: true,
            });
        }
        // numpy's scalars have the interface too, of bytes that are gone with the answer.
        let arrays = array.py().import("numpy")?.getattr("ndarray")?;
        if !array.is_instance(&arrays)? {
            let kind = array.get_type();
            return Err(PyTypeError::new_err(format!(
                "pass a numpy array, not {kind}"
            )));
        }
        let flag = |name: &str| array.getattr("flags")?.get_item(name)?.extract::<bool>();
        if !flag("C_CONTIGUOUS")? && !flag("F_CONTIGUOUS")? {
            return Err(PyValueError::new_err(
                "the array is not in one piece: pass the array it is a view of, or a copy \
                 (numpy.ascontiguousarray)",
            ));
        }
        let data = array.getattr("__array_interface__")?.get_item("data")?;
        let (address, is_readonly): (u64, bool) = data.extract()?;
        let bytes: u64 = array.getattr("nbytes")?.extract()?;
        if bytes == 0 {
            return Err(PyValueError::new_err(
                "the array has no bytes: pass a larger one",
            ));
        }
        Ok(Self {
            address,
            bytes,
            is_writable: !is_readonly,
        })
    }

    /// Pages that have a byte of it.
    fn pages_around(&self) -> PyResult<Range<u64>> {
        range::pages_around(self.address, self.bytes).map_err(raised)
    }

    /// Whole pages of it, which no other object has a byte of.
    pub fn pages_within(&self) -> PyResult<Range<u64>> {
        let pages = self.address.next_multiple_of(4096)..(self.address + self.bytes) / 4096 * 4096;
        match pages.is_empty() {
            false => Ok(pages),
            true => Err(PyValueError::new_err(format!(
                "the array has no page of 4096 bytes to itself ({} bytes from {:#x} on): make it \
                 with hither.empty(), or a larger one",
                self.bytes, self.address
            ))),
        }
    }
}

/// Where the pages of an array are.
#[pyclass(frozen, get_all, module = "hither")]
pub struct Residency {
    /// Pages of 4 KiB by node.
    nodes: BTreeMap<u32, u64>,
    /// Pages that are not in memory: never written to, or swapped out.
    absent: u64,
    /// Pages on a node that the policy of their address does not name.
    astray: u64,
    /// Pages that are parts of huge pages; None before Linux 6.7.
    huge: Option<u64>,
}

#[pymethods]
impl Residency {
    /// All pages.
    #[getter]
    fn pages(&self) -> u64 {
        self.absent + self.nodes.values().sum::<u64>()
    }

    fn __repr__(&self) -> String {
        let nodes: Vec<String> = self
            .nodes
            .iter()
            .map(|(node, count)| format!("node{node} {count}"))
            .collect();
        format!(
            "Residency({}; {} of {} pages absent, {} astray)",
            nodes.join(", "),
            self.absent,
            self.pages(),
            self.astray
        )
    }
}

/// Where the pages of an array are; brings none into memory.
#[pyfunction]
pub fn residency(array: &Bound<'_, PyAny>) -> PyResult<Residency> {
    let pages = Span::of(array)?.pages_around()?;
    let found = array
        .py()
        .detach(|| range::residency(pages))
        .map_err(raised)?;
    Ok(Residency {
        nodes: found
            .nodes
            .iter()
            .map(|(node, count)| (node.0, *count))
            .collect(),
        absent: found.absent,
        astray: found.astray,
        huge: found.huge,
    })
}

/// The node of each page of an array in order, -1 for one that is not in memory: 32-bit numbers.
#[pyfunction]
pub fn nodes_by_page<'py>(array: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyBytes>> {
    let pages = Span::of(array)?.pages_around()?;
    let found = array
        .py()
        .detach(|| range::nodes_by_page(pages))
        .map_err(raised)?;
    let numbers = found
        .iter()
        .map(|node| node.map_or(-1, |node| node.0 as i32));
    let bytes: Vec<u8> = numbers.flat_map(i32::to_ne_bytes).collect();
    Ok(PyBytes::new(array.py(), &bytes))
}

/// Gives the pages that an array has to itself a set and a memory policy.
#[pyfunction]
#[pyo3(signature = (array, on, memory=None, move_pages=false))]
pub fn bind_range(
    array: &Bound<'_, PyAny>,
    on: &Bound<'_, PyAny>,
    memory: Option<&str>,
    move_pages: bool,
) -> PyResult<()> {
    let pages = Span::of(array)?.pages_within()?;
    let (resolved, here): (_, Resources) = resolve("on", on)?;
    let laid = layout(memory, &resolved.set)?.on(&resolved.set, &here);
    let laid = laid.map_err(|why| PyValueError::new_err(format!("memory: {why}")))?;
    let present = match move_pages {
        true => Present::Move,
        false => Present::Stay,
    };
    let bound = array.py().detach(|| range::bind(pages, &laid, present));
    bound.map_err(raised)
}
