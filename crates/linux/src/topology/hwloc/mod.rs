//! Machines as files of hwloc 2 and 3 (`lstopo machine.xml`): read into the same types as sysfs, and
//! written as hwloc 2 has them, which hwloc 3 reads too.
//!
//! hwloc keeps a tree of CPUs, [`write`] builds it and [`read`] takes it apart. What one side has
//! and the other does not know is said in [`Topology::notes`], and listed in `docs/hwloc.md`. The
//! format is that of hwloc 2.9's `hwloc2.dtd` and `topology-xml.c`; what hwloc 3.0 has changed in it is
//! in the same places of its sources, and told where it is read.
//!
//! One thing hwloc does not keep is which node a CPU is local to: a node without CPUs (HBM, CXL) has
//! there the CPUs that are near it. The files that are written here say it besides, as infos, which
//! hwloc passes on and otherwise leaves alone; see [`read`] for how it is told of other files.

mod bitmap;
mod nodes;
mod performance;
mod read;
mod write;
mod xml;

use super::Topology;
use super::sysfs_cache::{self, Cache};
use crate::error::{Error, Result};
use crate::resources;
use crate::root::Root;
use hither_core::rset::Resources;
use std::io::ErrorKind;
use std::path::Path;

/// The file of a machine with 8192 CPUs is of some 50 MiB.
const MAX_FILE_BYTES: u64 = 64 << 20;

/// What mends a file that cannot be read.
const FILE_REMEDY: &str =
    "give a file of hwloc 2 or 3 (lstopo FILE.xml, or hither topo --hwloc FILE.xml)";

/// Who told what is in a file that is written here.
const OWN_BACKEND: &str = "hither";

// Infos of the files that are written here.
/// CPUs that are local to a node, in the kernel's list format, where the object names others.
const INFO_CPUS: &str = "HitherCPUs";
/// Unused memory in KiB.
const INFO_FREE: &str = "HitherFreeKiB";
/// Page cache in KiB that is taken back without swap; where there is none, no such info.
const INFO_CACHE: &str = "HitherCacheKiB";
/// N of the kernel's `memory_tierN`.
const INFO_TIER: &str = "HitherTier";
/// Weighted-interleave weight.
const INFO_WEIGHT: &str = "HitherWeight";

/// A whole machine: what `hither topo` shows, what resource sets see, and all caches.
#[derive(Clone, Debug, PartialEq)]
pub struct HwlocMachine {
    /// Nodes, CPUs, cache domains.
    pub topology: Topology,
    /// Cores, devices, and what may be used.
    pub resources: Resources,
    /// Caches of every level.
    pub caches: Vec<Cache>,
}

impl HwlocMachine {
    /// The machine below `root`.
    ///
    /// # Errors
    /// A file that cannot be read or contradicts itself, with place and remedy.
    pub fn read(root: &Root) -> Result<Self> {
        let topology = Topology::read(root)?;
        Ok(Self {
            resources: resources::read(root, &topology)?,
            caches: sysfs_cache::read(root, &topology.online)?,
            topology,
        })
    }

    /// The machine of a file of hwloc 2 or 3.
    ///
    /// # Errors
    /// A file that cannot be read, is not of hwloc 2 or 3, or contradicts itself: with path, line and
    /// remedy.
    pub fn read_hwloc(path: &Path) -> Result<Self> {
        let fail = |source| Error::io(path, "cannot be read", FILE_REMEDY, source);
        let bytes =
            hither_files::read_named(path, MAX_FILE_BYTES).map_err(|error| match error.kind() {
                ErrorKind::FileTooLarge => {
                    let reason = "is larger than 64 MiB, no machine needs that";
                    Error::new(path, reason, FILE_REMEDY)
                }
                _ => fail(error),
            })?;
        let text = String::from_utf8(bytes)
            .map_err(|_| Error::new(path, "is not text in UTF-8", FILE_REMEDY))?;
        Self::from_hwloc(&text).map_err(|fault| fault.at(path, FILE_REMEDY))
    }

    /// The same of a text.
    ///
    /// # Errors
    /// What is wrong and the line of it.
    pub fn from_hwloc(text: &str) -> crate::parse::Parsed<Self> {
        read::machine(text)
    }

    /// As hwloc 2 reads it.
    #[must_use]
    pub fn to_hwloc(&self) -> Written {
        write::document(self)
    }
}

/// A machine as text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Written {
    /// The XML.
    pub text: String,
    /// What could not be written, one sentence each.
    pub left_out: Vec<String>,
}
