//! Resource sets.

use crate::raised;
use hither_core::ids::{CpuId, NodeId};
use hither_core::rset::{Expression, ExpressionFault, Resolved, ResourceSet, Resources};
use hither_linux::bind;
use pyo3::basic::CompareOp;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;

/// CPUs and memory nodes as one thing: Set("node:0 + mem:2"), with | & - ~ and comparisons.
#[pyclass(frozen, module = "hither")]
pub struct Set {
    expression: Expression,
}

/// Reads a text, with a mark where it is wrong.
fn parse(text: &str) -> PyResult<Expression> {
    let fault = |fault: ExpressionFault| PyValueError::new_err(fault.pointed(text));
    text.parse().map_err(fault)
}

/// What an argument of this name was given: a set or its text, worked out here.
pub fn resolve(name: &str, on: &Bound<'_, PyAny>) -> PyResult<(Resolved, Resources)> {
    let text = match on.cast::<Set>() {
        Ok(set) => set.get().expression.to_string(),
        Err(_) => on.extract::<String>().map_err(|_| {
            let kind = on.get_type();
            PyTypeError::new_err(format!(
                "{name} is a Set or its text, as in 'node:0', not {kind}"
            ))
        })?,
    };
    on.py().detach(|| {
        let here = bind::here().map_err(raised)?;
        let resolved = bind::resolve(name, &text, &here).map_err(raised)?;
        Ok((resolved, here))
    })
}

impl Set {
    /// What of it this process may use.
    fn usable(&self, py: Python<'_>) -> PyResult<ResourceSet> {
        py.detach(|| {
            let here = bind::here().map_err(raised)?;
            let text = || self.expression.to_string();
            let fault = |fault: ExpressionFault| PyValueError::new_err(fault.pointed(&text()));
            // Read again, so that marks are where its own text has them.
            let again: Expression = text().parse().map_err(fault)?;
            again.usable(&here).map_err(fault)
        })
    }

    /// Of operators; a text that grew too long is refused as one that was written so.
    fn made(expression: &Expression) -> PyResult<Self> {
        let expression = parse(&expression.to_string())?;
        Ok(Self { expression })
    }
}

#[pymethods]
impl Set {
    #[new]
    fn new(py: Python<'_>, text: &str) -> PyResult<Self> {
        let set = Self {
            expression: parse(text)?,
        };
        // What is not there is told at once.
        set.usable(py)?;
        Ok(set)
    }

    /// CPUs that this process may use of it, ascending.
    #[getter]
    fn cpus(&self, py: Python<'_>) -> PyResult<Vec<u32>> {
        let set = self.usable(py)?;
        Ok(set.cpus.iter().map(|CpuId(cpu)| cpu).collect())
    }

    /// Nodes whose memory this process may use of it, by the kernel's numbers, ascending.
    #[getter]
    fn nodes(&self, py: Python<'_>) -> PyResult<Vec<u32>> {
        let set = self.usable(py)?;
        Ok(set.nodes.iter().map(|NodeId(node)| node).collect())
    }

    /// A sentence for each thing that cpuset or affinity leave out of it.
    #[getter]
    fn left_out(slf: &Bound<'_, Self>) -> PyResult<Vec<String>> {
        let (resolved, _) = resolve("set", slf.as_any())?;
        Ok(resolved.warnings)
    }

    fn __or__(&self, other: &Self) -> PyResult<Self> {
        let (one, other) = (self.expression.clone(), other.expression.clone());
        Self::made(&Expression::Union(Box::new(one), Box::new(other)))
    }

    fn __and__(&self, other: &Self) -> PyResult<Self> {
        let (one, other) = (self.expression.clone(), other.expression.clone());
        Self::made(&Expression::Intersection(Box::new(one), Box::new(other)))
    }

    fn __sub__(&self, other: &Self) -> PyResult<Self> {
        let (one, other) = (self.expression.clone(), other.expression.clone());
        Self::made(&Expression::Difference(Box::new(one), Box::new(other)))
    }

    fn __invert__(&self) -> PyResult<Self> {
        Self::made(&Expression::Complement(Box::new(self.expression.clone())))
    }

    /// Of what this process may use: equal, subset, superset.
    fn __richcmp__(&self, py: Python<'_>, other: &Self, how: CompareOp) -> PyResult<bool> {
        let (one, other) = (self.usable(py)?, other.usable(py)?);
        Ok(match how {
            CompareOp::Eq => one == other,
            CompareOp::Ne => one != other,
            CompareOp::Le => one.is_subset(&other),
            CompareOp::Ge => other.is_subset(&one),
            CompareOp::Lt => one != other && one.is_subset(&other),
            CompareOp::Gt => one != other && other.is_subset(&one),
        })
    }

    /// Is there anything in it that this process may use?
    fn __bool__(&self, py: Python<'_>) -> PyResult<bool> {
        Ok(!self.usable(py)?.is_empty())
    }

    fn __str__(&self) -> String {
        self.expression.to_string()
    }

    fn __repr__(&self) -> String {
        format!("Set('{}')", self.expression)
    }
}
