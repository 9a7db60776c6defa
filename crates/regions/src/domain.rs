//! Domains: which CPUs hold a region in their cache.

use crate::error::Error;
use hither_core::ids::{CpuId, NodeId};
use hither_core::set::CpuSet;
use hither_linux::Root;
use hither_linux::bind;
use hither_linux::topology::Topology;
use std::fmt;

/// CPUs whose cache holds a region: usually those that share a last-level cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Domain {
    name: String,
    cpus: CpuSet,
    cache_bytes: Option<u64>,
}

impl Domain {
    /// One for each last-level cache that has CPUs which this process may use, by lowest CPU.
    ///
    /// # Errors
    /// The kernel does not tell.
    pub fn caches() -> Result<Vec<Self>, Error> {
        let here = bind::here()?;
        let topology = Topology::read(&Root::host())?;
        let caches = topology.domains.iter().enumerate();
        let found = caches.map(|(number, cache)| Self {
            name: format!("domain:{number}"),
            cpus: cache.cpus.intersection(&here.allowed.cpus),
            cache_bytes: cache.size_kb.map(|kb| kb << 10),
        });
        Ok(found.filter(|domain| !domain.cpus.is_empty()).collect())
    }

    /// The CPUs of a memory node that this process may use.
    ///
    /// # Errors
    /// There is no such node, or none of its CPUs may be used.
    pub fn of_node(node: NodeId) -> Result<Self, Error> {
        Self::of_set(&format!("node:{}", node.0))
    }

    /// The CPUs of a resource set, such as `domain:1` or `cpus:0-7 - core:0`
    /// (`docs/resource-sets.md`), that this process may use.
    ///
    /// # Errors
    /// It cannot be read, names what is not there, or no CPU is left of it.
    pub fn of_set(text: &str) -> Result<Self, Error> {
        let resolved = bind::resolve("domain", text, &bind::here()?)?;
        if resolved.set.cpus.is_empty() {
            return Err(Error::Invalid(format!(
                "domain: `{text}` has no CPUs: add some, as in `{text} + cpus:0`"
            )));
        }
        Ok(Self {
            name: text.to_owned(),
            cpus: resolved.set.cpus,
            cache_bytes: None,
        })
    }

    /// These CPUs. Whether they may be used is asked when a region is made: a thread that is bound to one CPU may make
    /// regions on others.
    ///
    /// # Errors
    /// There is none.
    pub fn of_cpus(cpus: impl IntoIterator<Item = CpuId>) -> Result<Self, Error> {
        let cpus: CpuSet = cpus.into_iter().collect();
        if cpus.is_empty() {
            let text = "domain: the list of CPUs is empty: name one at least";
            return Err(Error::Invalid(text.to_owned()));
        }
        let name = format!("cpus:{cpus}");
        Ok(Self {
            name,
            cpus,
            cache_bytes: None,
        })
    }

    /// The same with a cache of this size, whatever the kernel tells.
    #[must_use]
    pub fn with_cache_bytes(self, bytes: u64) -> Self {
        Self {
            cache_bytes: Some(bytes),
            ..self
        }
    }

    /// Bytes of its cache, where it is one of [`Domain::caches`] and the kernel tells, or they were said.
    #[must_use]
    pub fn cache_bytes(&self) -> Option<u64> {
        self.cache_bytes
    }

    /// Its CPUs.
    #[must_use]
    pub fn cpus(&self) -> &CpuSet {
        &self.cpus
    }
}

/// As a resource set.
impl fmt::Display for Domain {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.name)
    }
}
