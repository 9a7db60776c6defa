//! Last-level caches and memory bandwidth divided by groups of tasks or CPUs: the kernel's resctrl
//! (`Documentation/arch/x86/resctrl.rst`; Intel RDT, AMD QoS).
//!
//! A task in a group fills the ways that the group's `schemata` names. A task in no group fills those of the
//! group that its CPU is in, and where that is none either, those of the root. So hither never changes the
//! root's `schemata`: who is to go first gets a group, all CPUs get another one, for the rest, and both
//! vanish with their folders. Groups of others are read and left as they are.
//!
//! [`Tree`] reads, for everybody; [`OwnGroups`] makes groups, one hither at a time. In the laboratory the guest
//! agent offers a folder of the same shape ([`LAB_FOLDER`]), in which groups go by CPUs alone: no kernel is
//! there to tell which task runs. Bandwidth by group *read* is [`crate::counters::resctrl`]'s.

mod groups;
mod schemata;

pub use groups::{OwnGroups, remove_leftovers};
pub use schemata::Schemata;

use crate::error::{Error, Result};
use crate::parse;
use crate::root::Root;
use hither_core::ids::CpuId;
use hither_core::set::CpuSet;
use hither_core::ways::WayLimits;
use std::collections::BTreeMap;

/// Where the kernel's is mounted, below the root folder.
pub const FOLDER: &str = "sys/fs/resctrl";
/// Where the laboratory's is, below the root folder.
pub const LAB_FOLDER: &str = "run/hither/resctrl";
/// How names of hither's groups begin.
pub const PREFIX: &str = "hither-";
/// The laboratory's list of each cache's CPUs, which the kernel's sysfs tells elsewhere.
///
/// ```text
/// 0=0-3
/// 1=4-7
/// ```
pub const LAB_CPUS: &str = "info/L3/cache_cpus";
/// Entries of a tree that are no groups.
pub(crate) const NO_GROUPS: [&str; 3] = ["info", "mon_groups", "mon_data"];
const CPUS: &str = "sys/devices/system/cpu";
/// Why there is no tree, and what would help.
pub(crate) const NOT_MOUNTED: (&str, &str) = (
    "resctrl is not mounted",
    "mount it (mount -t resctrl resctrl /sys/fs/resctrl)",
);
pub(crate) const NONE: &str = "this kernel or CPU has no resctrl";

/// What memory bandwidth can be given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BandwidthLimits {
    /// Least value.
    pub least: u32,
    /// What values are multiples of; the kernel rounds up.
    pub step: u32,
}

/// What a machine's caches can be divided into.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Info {
    /// Masks of ways.
    pub ways: WayLimits,
    /// Bandwidth, where it can be limited.
    pub bandwidth: Option<BandwidthLimits>,
    /// Most groups at a time, the root among them.
    pub group_count: u32,
}

/// A group as it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// Its folder's name.
    pub name: String,
    /// What it has.
    pub schemata: Schemata,
    /// CPUs whose tasks it holds, where these are in no other group.
    pub cpus: CpuSet,
    /// Are its ways nobody else's?
    pub is_exclusive: bool,
}

impl Group {
    /// Is it hither's, by its name?
    #[must_use]
    pub fn is_own(&self) -> bool {
        self.name.starts_with(PREFIX)
    }
}

/// A resctrl tree.
#[derive(Clone, Debug)]
pub struct Tree {
    root: Root,
    folder: String,
    info: Info,
    /// What the root group has: all caches are there.
    whole: Schemata,
}

impl Tree {
    /// The machine's: the kernel's where it is mounted, else the laboratory's.
    ///
    /// # Errors
    /// There is none, or as [`Tree::open`].
    pub fn find(root: &Root) -> Result<Self> {
        let is_there = |folder: &str| root.has(&format!("{folder}/info"));
        if let Some(folder) = [FOLDER, LAB_FOLDER].into_iter().find(|f| is_there(f)) {
            return Self::open(root, folder);
        }
        let (reason, remedy) = match root.has(FOLDER) {
            true => NOT_MOUNTED,
            false => (
                NONE,
                "use a CPU whose last-level cache can be divided (Intel CAT, AMD QoS) and a kernel with \
                 CONFIG_X86_CPU_RESCTRL",
            ),
        };
        Err(Error::new(root.path(FOLDER), reason, remedy))
    }

    /// The one in a folder below the root folder.
    ///
    /// # Errors
    /// It cannot be read, or the last-level cache cannot be divided by it.
    pub fn open(root: &Root, folder: &str) -> Result<Self> {
        let info = read_info(root, folder)?;
        let whole = root.parse(&format!("{folder}/schemata"), Schemata::parse)?;
        Ok(Self {
            root: root.clone(),
            folder: folder.to_owned(),
            info,
            whole,
        })
    }

    /// What can be divided.
    #[must_use]
    pub fn info(&self) -> &Info {
        &self.info
    }

    /// What the root group had when the tree was opened: a value for each cache.
    #[must_use]
    pub fn whole(&self) -> &Schemata {
        &self.whole
    }

    /// Can tasks be put into groups, or CPUs alone (in the laboratory)?
    #[must_use]
    pub fn follows_tasks(&self) -> bool {
        self.root.has(&self.below("", "tasks"))
    }

    /// All groups but the root, hither's among them.
    ///
    /// # Errors
    /// A file that cannot be read, or is not what the kernel prints.
    pub fn groups(&self) -> Result<Vec<Group>> {
        let mut groups = Vec::new();
        for name in self.names()? {
            let text = |file: &str| self.root.text_if_any(&self.below(&name, file));
            let schemata = self.below(&name, "schemata");
            // A group that is just being made or removed.
            let Some(schemata) = self.root.parse_if_any(&schemata, Schemata::parse)? else {
                continue;
            };
            let cpus = self.below(&name, "cpus_list");
            let cpus = self.root.parse_if_any(&cpus, parse::list)?;
            let mode = text("mode")?.unwrap_or_default();
            groups.push(Group {
                schemata,
                cpus: cpus.unwrap_or_default(),
                is_exclusive: mode.trim() == "exclusive",
                name,
            });
        }
        Ok(groups)
    }

    /// Online CPUs of each last-level cache, by the number that `schemata` has.
    ///
    /// # Errors
    /// A file that cannot be read.
    pub fn caches(&self) -> Result<BTreeMap<u32, CpuSet>> {
        let lab = self.below("", LAB_CPUS);
        if let Some(caches) = self.root.parse_if_any(&lab, parse_lab_cpus)? {
            return Ok(caches);
        }
        let mut caches: BTreeMap<u32, CpuSet> = BTreeMap::new();
        let online: CpuSet = self.root.parse(&format!("{CPUS}/online"), parse::list)?;
        for cpu in online.iter() {
            if let Some(id) = self.cache_of(cpu)? {
                caches.entry(id).or_default().insert(cpu);
            }
        }
        Ok(caches)
    }

    /// The kernel's number of a CPU's cache of level 3.
    fn cache_of(&self, cpu: CpuId) -> Result<Option<u32>> {
        let folder = format!("{CPUS}/{cpu}/cache");
        for index in self.root.numbered(&folder, "index")? {
            let number = |file: &str| {
                let path = format!("{folder}/index{index}/{file}");
                self.root.parse_if_any(&path, parse::number)
            };
            if number("level")? == Some(3) {
                return Ok(number("id")?.and_then(|id| u32::try_from(id).ok()));
            }
        }
        Ok(None)
    }

    /// Names of the groups' folders.
    fn names(&self) -> Result<Vec<String>> {
        let mut names = self.root.names(&self.folder)?;
        names.retain(|name| {
            let path = self.root.path(&self.below(name, ""));
            !NO_GROUPS.contains(&name.as_str()) && path.is_dir()
        });
        Ok(names)
    }

    /// A file of a group, below the root folder; the root group has no name.
    fn below(&self, group: &str, file: &str) -> String {
        match group {
            "" => format!("{}/{file}", self.folder),
            group => format!("{}/{group}/{file}", self.folder),
        }
    }
}

fn read_info(root: &Root, folder: &str) -> Result<Info> {
    let l3 = format!("{folder}/info/L3");
    if !root.has(&l3) {
        let (reason, remedy) = match root.has(&format!("{l3}CODE")) {
            true => (
                "the last-level cache is divided for code and data apart, which hither does not do",
                "mount resctrl again without `-o cdp`",
            ),
            false => (
                "this CPU's last-level cache cannot be divided",
                "use a CPU with Intel CAT or AMD QoS; it may be switched off in the firmware, or by `rdt=` on \
                 the kernel's command line",
            ),
        };
        return Err(Error::new(root.path(&l3), reason, remedy));
    }
    let number = |file: &str| -> Result<u32> {
        let value = root.parse(&format!("{folder}/info/{file}"), parse::number)?;
        Ok(u32::try_from(value).unwrap_or(u32::MAX))
    };
    let mask = |file: &str| root.parse(&format!("{l3}/{file}"), parse_mask);
    let (all, shared) = (mask("cbm_mask")?, mask("shareable_bits")?);
    let ways = WayLimits::new(all, number("L3/min_cbm_bits")?, shared);
    let ways =
        ways.map_err(|error| Error::new(root.path(&l3), error.to_string(), root.tree_remedy()))?;
    let mut group_count = number("L3/num_closids")?;
    let mut bandwidth = None;
    if root.has(&format!("{folder}/info/MB")) {
        group_count = group_count.min(number("MB/num_closids")?);
        bandwidth = Some(BandwidthLimits {
            least: number("MB/min_bandwidth")?,
            step: number("MB/bandwidth_gran")?.max(1),
        });
    }
    Ok(Info {
        ways,
        bandwidth,
        group_count,
    })
}

/// A mask such as `7ff`.
fn parse_mask(text: &str) -> parse::Parsed<u32> {
    let text = text.trim();
    u32::from_str_radix(text, 16).map_err(|_| {
        let reason = format!("`{}` is no mask of ways", parse::clip(text));
        crate::error::Fault::new(1, reason)
    })
}

fn parse_lab_cpus(text: &str) -> parse::Parsed<BTreeMap<u32, CpuSet>> {
    let line = |(index, line): (usize, &str)| {
        let parts = line.split_once('=').and_then(|(id, cpus)| {
            let id = id.parse().ok()?;
            Some((id, cpus.parse().ok()?))
        });
        parts.ok_or_else(|| {
            let reason = format!("`{}` is not like `0=0-3`", parse::clip(line));
            crate::error::Fault::new(index + 1, reason)
        })
    };
    text.lines().enumerate().map(line).collect()
}

#[cfg(test)]
mod tests;
