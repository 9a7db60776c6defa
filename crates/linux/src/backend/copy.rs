//! The backend `copy`: replication between two ranges of this process, by the CPU.
//!
//! Problem: to copy at the speed of the memory, without a detour through the caches, and to answer
//! a bad address with an outcome instead of a signal.
//!
//! Mechanism: `reach` has the kernel look at both ranges and bring in what is missing; then a
//! [`Copier`] copies, with [`nontemporal`] stores where the copy is large, in parts by several
//! threads where there are any. A kernel that cannot look ahead (before Linux 5.14) copies by
//! itself (process_vm_readv): slower, but it stops at a bad address instead of raising a signal.
//!
//! What always holds: a job is refused before its first byte, or copied whole. Two exceptions:
//! with process_vm_readv the pages before a bad one are written; and a program that unmaps,
//! protects or truncates a range while it is copied gets the signal that a memcpy would get.
//!
//! Refusals: `NotSupported` for a migration and for ranges that overlap; `NotOurs` for another
//! process, and in a forked child, which makes its own backend; `Unmapped` where an access would
//! raise a signal; `NoMemory` where the target cannot be brought in.

mod copier;
mod memory;
mod reach;
mod stream;
mod tuning;

pub use copier::Copier;
pub use memory::CopyStores;
pub(crate) use stream::Stores;
pub use stream::{copy, interleaved, nontemporal};

use super::engine::EngineDriver;
use crate::sys::{self, Access};
use hither_core::ids::CpuId;
use hither_core::plan::Refusal;
use hither_mover::{Action, Backend, Job, Outcome, OutcomeBuilder, Unavailable};
use reach::Reach;
use std::io;
use std::ops::Range;

/// Most bytes per system call on the slow way: the kernel's own limit is just below 2 GiB.
const KERNEL_COPY_MOST: u64 = 1 << 30;

/// Copies between ranges of this process.
#[derive(Debug)]
pub struct CopyBackend {
    copier: Copier,
    /// None where the kernel cannot look ahead: it copies itself.
    reach: Option<Reach>,
}

impl CopyBackend {
    /// With so many workers, the calling thread included; further threads run on `cpus` where any
    /// are given, best those of the source's or the target's node.
    ///
    /// # Errors
    /// Those of [`Copier::new`].
    pub fn new(workers: usize, cpus: Vec<CpuId>) -> io::Result<Self> {
        Ok(Self {
            copier: Copier::new(workers, &cpus)?,
            reach: Reach::open().ok(),
        })
    }

    /// The backend `engine`: the same, with a copy engine for what is cheaper by it.
    #[must_use]
    pub fn with_engine(mut self, engine: Option<EngineDriver>) -> Self {
        self.copier = self.copier.with_engine(engine);
        self
    }

    /// Its copy engine, where it has one.
    #[must_use]
    pub fn engine(&self) -> Option<&EngineDriver> {
        self.copier.engine()
    }

    /// Are addresses checked before a copy? Else the kernel copies.
    #[must_use]
    pub fn looks_ahead(&self) -> bool {
        self.reach.is_some()
    }

    /// What large copies are done with, for a person.
    #[must_use]
    pub fn instructions(&self) -> &'static str {
        stream::Way::best().name()
    }

    /// Copies whole, or refuses whole, or has the kernel copy and says page by page.
    fn replicate(
        &mut self,
        from: u64,
        to: u64,
        bytes: u64,
        builder: &mut OutcomeBuilder,
    ) -> Result<(), Refusal> {
        let (source, target) = disjoint(from, to, bytes)?;
        let Some(reach) = &mut self.reach else {
            copy_by_kernel(from, to, bytes, builder);
            return Ok(());
        };
        reach.ensure(source, Access::Read)?;
        reach.ensure(target, Access::Write)?;
        let source = std::ptr::with_exposed_provenance(from as usize);
        let target = std::ptr::with_exposed_provenance_mut(to as usize);
        // SAFETY: both ranges have just been accessible, and do not overlap; whoever asks for a
        // replication gives the target (`Action::Replicate`). What remains is said above.
        unsafe { self.copier.copy(source, target, bytes as usize) };
        builder.moved_many(pages(to, bytes));
        builder.figures().bytes += bytes;
        Ok(())
    }

    fn execute_one(&mut self, job: &Job<'_>) -> Outcome {
        let mut builder = OutcomeBuilder::new(job);
        let engine_bytes = |copier: &Copier| copier.engine().map_or(0, |it| it.counts().bytes);
        let before = engine_bytes(&self.copier);
        let start = sys::monotonic_ns();
        match job.action {
            Action::Replicate { bytes: 0, .. } => {}
            _ if job.pid.0 != std::process::id() as i32 || !self.copier.is_ours() => {
                builder.refused_many(Refusal::NotOurs, job.page_count());
            }
            Action::Migrate { .. } => {
                builder.refused_many(Refusal::NotSupported, job.page_count());
            }
            Action::Replicate { from, to, bytes } => {
                if let Err(refusal) = self.replicate(from, to, bytes, &mut builder) {
                    builder.refused_many(refusal, job.page_count());
                }
            }
        }
        builder.took(sys::monotonic_ns().saturating_sub(start));
        if engine_bytes(&self.copier) > before {
            builder.figures().backend = Some("engine");
        }
        builder.finish()
    }
}

/// The pages that hold these bytes, of which there is at least one; `to + bytes` does not overflow.
fn pages(to: u64, bytes: u64) -> Range<u64> {
    to >> 12..((to + bytes - 1) >> 12) + 1
}

/// The source and the target.
fn disjoint(from: u64, to: u64, bytes: u64) -> Result<(Range<u64>, Range<u64>), Refusal> {
    let range = |start: u64| {
        let end = start.checked_add(bytes).ok_or(Refusal::Unmapped)?;
        Ok(start..end)
    };
    let (source, target) = (range(from)?, range(to)?);
    if source.start < target.end && target.start < source.end {
        return Err(Refusal::NotSupported);
    }
    Ok((source, target))
}

/// The slow way, up to the first bad address.
fn copy_by_kernel(from: u64, to: u64, bytes: u64, builder: &mut OutcomeBuilder) {
    let mut done = 0;
    while done < bytes {
        let part = (bytes - done).min(KERNEL_COPY_MOST) as usize;
        // SAFETY: whoever asks for a replication gives the target (`Action::Replicate`).
        match unsafe { sys::copy_by_kernel(from + done, to + done, part) } {
            Ok(0) | Err(_) => break,
            Ok(copied) => done += copied as u64,
        }
    }
    let all = pages(to, bytes);
    // A page counts as written when the last of its bytes that was asked for is.
    let whole = match done == bytes {
        true => all.end,
        false => ((to + done) >> 12).max(all.start),
    };
    builder.moved_many(all.start..whole);
    builder.refused_many(Refusal::Unmapped, all.end - whole);
    builder.figures().bytes += done;
}

impl Backend for CopyBackend {
    fn name(&self) -> &'static str {
        match self.copier.engine() {
            Some(_) => "engine",
            None => "copy",
        }
    }

    fn probe(&self) -> Result<(), Unavailable> {
        if !self.copier.is_ours() {
            return Err(Unavailable::new(
                "it belongs to the process that forked this one",
                "make a new one after fork",
            ));
        }
        if self.reach.is_some() {
            return Ok(());
        }
        let (from, mut to) = (Box::new(1u8), Box::new(0u8));
        let (source, target) = (&raw const *from as u64, &raw mut *to as u64);
        // SAFETY: one byte of our own to another.
        let copied = unsafe { sys::copy_by_kernel(source, target, 1) };
        copied.map(drop).map_err(|error| {
            Unavailable::new(
                format!("neither MADV_POPULATE nor process_vm_readv works ({error})"),
                "use Linux 5.14 or later, or allow process_vm_readv in the seccomp profile",
            )
        })
    }

    fn serves_submitters(&self, action: &Action<'_>) -> bool {
        matches!(action, Action::Replicate { .. })
    }

    fn execute(&mut self, jobs: &[Job<'_>]) -> Vec<Outcome> {
        jobs.iter().map(|job| self.execute_one(job)).collect()
    }
}

#[cfg(test)]
mod tests;
