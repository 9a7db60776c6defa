//! Memory that must not move: what of a process is pinned, registered or a device's.
//!
//! Problem: a page that a device or the kernel holds by its physical address cannot move. The kernel
//! refuses such a page, but only after it has unmapped it, waited, and tried up to ten times, while
//! the program stalls at it; and its answer ("busy") does not say why.
//!
//! Mechanism: what `/proc` tells is read ([`read`]) and judged by [`decide`], which is pure:
//! 1. *Registered buffers of io_uring* have addresses (`fdinfo`): exactly these pages stay.
//! 2. *Mappings of devices* ([`device`]): registers, rings, staging buffers. They stay.
//! 3. *Pinned memory without addresses* is told as an amount (`VmPin`; `VmLck` counts what
//!    vfio's first IOMMU driver pins, and mlock(2), which pins nothing). Which pages are meant, nobody
//!    tells. Where the process also has a device open that pins memory of programs, all memory that
//!    such a device may have been given stays: private and shared anonymous memory, huge pages, and
//!    files that it may write through a mapping. For vfio that is so whatever the amounts are: a guest
//!    with a device passed through has all of its memory pinned. For GPUs and RDMA it is so where
//!    `VmPin` has more than io_uring's buffers explain.
//! 4. Without such a device (a ring without a descriptor, buffers of perf) the amount is told and
//!    the rest of the memory may move: the kernel refuses the pinned pages themselves, and no other
//!    page suffers. To leave all of it alone would make a database immovable for one small buffer.
//!
//! What always holds: nothing here lets a page move that the kernel would refuse; a page that is left
//! alone without need costs speed, never data.
//!
//! Source: `io_uring/fdinfo.c`, `io_uring/rsrc.c` (`io_account_mem`), `drivers/vfio/vfio_iommu_type1.c`
//! (`vfio_lock_acct`), `drivers/iommu/iommufd/pages.c`, `drivers/infiniband/core/umem.c`.

pub mod device;
pub mod guard;
pub mod io_uring;

use crate::error::{Error, Result};
use crate::filter;
use crate::parse;
use crate::proc::{maps, numa_maps};
use crate::root::Root;
use crate::sys::OwnMapping;
use device::PinningDevice;
use io_uring::Buffers;
use std::collections::BTreeSet;
use std::fmt;
use std::ops::Range;

/// Most descriptors of a process that are looked at.
const MOST_DESCRIPTORS: usize = 1 << 16;
/// Looks at a ring whose lock is held, in which case the kernel tells no buffers.
const MOST_LOOKS: usize = 5;
/// A buffer pins at most the huge page (2 MiB) around it, and is counted so.
const HUGE_PAGES: u64 = 512;

/// Why a range stays.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FixedReason {
    /// A buffer registered with the io_uring that has this descriptor.
    Registered(i32),
    /// A mapping of this device.
    Mapped(&'static str),
    /// Memory that this device may have been given, which nobody tells.
    Reachable(&'static str),
}

impl fmt::Display for FixedReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Registered(fd) => write!(f, "registered with io_uring (descriptor {fd})"),
            Self::Mapped(what) => write!(f, "a mapping of {what}"),
            Self::Reachable(what) => write!(f, "may be pinned for {what}"),
        }
    }
}

/// Pages that stay, with the reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stays {
    /// By virtual page number.
    pub pages: Range<u64>,
    /// Why.
    pub why: FixedReason,
}

/// What of a process must not move.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fixed {
    /// Ranges with their reasons, ascending by first page. Buffers may overlap.
    pub ranges: Vec<Stays>,
    /// Memory that is pinned (`VmPin`), in KiB.
    pub pinned_kb: u64,
    /// Of that what nothing gives addresses of, in KiB: at least so much.
    pub unplaced_kb: u64,
    /// Rings whose buffers the kernel did not tell, as they were at work at every look.
    pub unseen_rings: usize,
    /// The same pages as in `ranges`: ascending, none twice.
    union: Vec<Range<u64>>,
}

impl Fixed {
    /// Of these ranges, in any order.
    #[must_use]
    pub fn of(mut ranges: Vec<Stays>) -> Self {
        ranges.sort_by_key(|range| (range.pages.start, range.why));
        let ranges = joined(ranges);
        Self {
            union: union(&ranges),
            ranges,
            ..Self::default()
        }
    }

    /// Must this page stay?
    #[must_use]
    pub fn contains(&self, page: u64) -> bool {
        let at = self.union.partition_point(|range| range.end <= page);
        self.union
            .get(at)
            .is_some_and(|range| range.contains(&page))
    }

    /// Does no page have to stay?
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.union.is_empty()
    }

    /// Splits ascending runs of pages into those that may move and those that stay.
    #[must_use]
    pub fn split(&self, runs: &[Range<u64>]) -> (Vec<Range<u64>>, Vec<Range<u64>>) {
        let (mut free, mut stay) = (Vec::new(), Vec::new());
        for run in runs {
            let mut next = run.start;
            let from = self.union.partition_point(|range| range.end <= run.start);
            for range in self.union[from..].iter().take_while(|r| r.start < run.end) {
                let part = range.start.max(next)..range.end.min(run.end);
                if next < part.start {
                    free.push(next..part.start);
                }
                next = part.end;
                stay.push(part);
            }
            if next < run.end {
                free.push(next..run.end);
            }
        }
        (free, stay)
    }
}

/// What `/proc` tells of a process.
#[derive(Clone, Debug, Default)]
pub struct Facts {
    /// Its mappings, ascending.
    pub mappings: Vec<OwnMapping>,
    /// Its rings, by descriptor.
    pub rings: Vec<(i32, Buffers)>,
    /// Devices that it has open.
    pub open: BTreeSet<PinningDevice>,
    /// `VmPin`, in KiB.
    pub pinned_kb: u64,
}

/// What of it must not move.
#[must_use]
pub fn decide(facts: &Facts) -> Fixed {
    let mut ranges = Vec::new();
    let mut huge = BTreeSet::new();
    for (fd, buffers) in &facts.rings {
        for pages in &buffers.pages {
            ranges.push(Stays {
                pages: pages.clone(),
                why: FixedReason::Registered(*fd),
            });
            huge.extend(pages.start / HUGE_PAGES..pages.end.div_ceil(HUGE_PAGES));
        }
    }
    let mut devices = facts.open.clone();
    for mapping in &facts.mappings {
        if let Some(device) = device::of_name(&mapping.name) {
            devices.insert(device);
            ranges.push(Stays {
                pages: mapping.pages(),
                why: FixedReason::Mapped(device.row().words),
            });
        }
    }
    let explained_kb = huge.len() as u64 * HUGE_PAGES * 4;
    let unplaced_kb = facts.pinned_kb.saturating_sub(explained_kb);
    let pins = devices
        .iter()
        .find(|device| device.row().reach.is_any(unplaced_kb));
    if let Some(device) = pins {
        let why = FixedReason::Reachable(device.row().words);
        let may_be_given = facts
            .mappings
            .iter()
            .filter(|mapping| is_reachable(mapping));
        ranges.extend(may_be_given.map(|mapping| Stays {
            pages: mapping.pages(),
            why,
        }));
    }
    Fixed {
        pinned_kb: facts.pinned_kb,
        unplaced_kb,
        unseen_rings: facts
            .rings
            .iter()
            .filter(|(_, told)| !told.is_whole)
            .count(),
        ..Fixed::of(ranges)
    }
}

/// Memory that a device may have been given.
fn is_reachable(mapping: &OwnMapping) -> bool {
    device::of_name(&mapping.name).is_none()
        && (mapping.is_private_anonymous()
            || numa_maps::is_memory(&mapping.name)
            || mapping.shared && mapping.writable)
}

/// Neighbours with one reason as one.
fn joined(ranges: Vec<Stays>) -> Vec<Stays> {
    let mut joined: Vec<Stays> = Vec::new();
    for range in ranges {
        match joined.last_mut() {
            Some(last) if last.why == range.why && last.pages.end == range.pages.start => {
                last.pages.end = range.pages.end;
            }
            _ => joined.push(range),
        }
    }
    joined
}

fn union(ranges: &[Stays]) -> Vec<Range<u64>> {
    let mut union: Vec<Range<u64>> = Vec::new();
    for Stays { pages, .. } in ranges {
        match union.last_mut() {
            Some(last) if pages.start <= last.end => last.end = last.end.max(pages.end),
            _ => union.push(pages.clone()),
        }
    }
    union
}

/// What of a process must not move, as far as this user may see it.
///
/// # Errors
/// It has ended, or it is somebody else's.
pub fn read(root: &Root, pid: i32) -> Result<Fixed> {
    let mappings = maps::read(root, pid)?;
    let mut facts = Facts {
        mappings,
        pinned_kb: root
            .parse_if_any(&format!("proc/{pid}/status"), pinned_kb)?
            .unwrap_or(0),
        ..Facts::default()
    };
    let descriptors = root.numbered(&format!("proc/{pid}/fd"), "");
    let descriptors = descriptors.map_err(explained)?;
    for fd in descriptors.into_iter().take(MOST_DESCRIPTORS) {
        // One that is closed meanwhile holds nothing.
        let Ok(target) = std::fs::read_link(root.path(&format!("proc/{pid}/fd/{fd}"))) else {
            continue;
        };
        match target.to_str() {
            Some(io_uring::LINK) => {
                if let Some(buffers) = ring(root, pid, fd)? {
                    facts.rings.push((fd as i32, buffers));
                }
            }
            Some(name) => facts.open.extend(device::of_name(name)),
            None => {}
        }
    }
    Ok(decide(&facts))
}

/// The buffers of a ring; `None` where it is closed by now.
fn ring(root: &Root, pid: i32, fd: u32) -> Result<Option<Buffers>> {
    let mut told = None;
    for _ in 0..MOST_LOOKS {
        told = root.parse_if_any(&format!("proc/{pid}/fdinfo/{fd}"), io_uring::parse)?;
        if told.as_ref().is_none_or(|buffers| buffers.is_whole) {
            break;
        }
        std::thread::yield_now();
    }
    Ok(told)
}

/// `VmPin` of `/proc/PID/status`, in KiB; 0 where there is none.
///
/// ```text
/// VmPin:          12 kB
/// ```
fn pinned_kb(text: &str) -> parse::Parsed<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix("VmPin:"));
    let number = line.map(|rest| rest.trim().trim_end_matches("kB"));
    number.map_or(Ok(0), parse::number)
}

fn explained(error: Error) -> Error {
    Error {
        reason: "what the process has open is not told".to_owned(),
        remedy: filter::to_see_others().to_owned(),
        ..error
    }
}

#[cfg(test)]
mod tests;
