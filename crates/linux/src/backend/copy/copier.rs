//! A few threads that share large copies.
//!
//! Problem: one CPU does not use up a memory controller, and two helpers that each get a half are
//! as slow as the slower one, which on a busy machine may not even have been woken yet.
//!
//! Mechanism: the calling thread is a worker itself and starts at once. Parts are handed out under
//! a lock, large ones first and ever smaller ones after that (guided self-scheduling, Polychronopoulos
//! and Kuck 1987), so that a late helper finds less left and nobody waits for it. The calling
//! thread has them from the front, helpers from the back: of ranges that are copied again and
//! again each CPU finds in its caches what it had before.
//!
//! Always: every byte is in exactly one part; `copy` returns when all parts are done.

use super::stream::{self, Stores};
use crate::backend::engine::EngineDriver;
use crate::backend::engine::rule::Way;
use crate::sys;
use hither_core::ids::CpuId;
use std::hint::spin_loop;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

/// Least bytes of a part: about 20 us of copying from memory, against some 10 us to wake a thread.
const PART_LEAST: usize = 256 << 10;
/// Parts end at such an address of the target: a huge page is written by one CPU where parts are
/// that large, a page always.
const CUTS: [usize; 2] = [2 << 20, 4096];
/// Workers are threads; more than this is a caller's mistake.
const MOST_WORKERS: usize = 256;
/// How long a worker spins before it sleeps, in ns: what a part and a wake-up take. The caller waits
/// for one last part at most; a helper finds the next copy at once where copies follow each other.
const SPIN_NS: u64 = 50_000;

/// Copies with a fixed number of workers, of which the calling thread is one.
#[derive(Debug)]
pub struct Copier {
    shared: Arc<Shared>,
    helpers: Vec<JoinHandle<()>>,
    /// Copies what it is cheaper for than the CPU.
    engine: Option<EngineDriver>,
    /// The process that made it: a forked child has none of the threads.
    owner: u32,
}

/// In cache lines of its own: of the lock and what it protects only one has to come over from the CPU that
/// had it last, and who spins on a counter takes nothing else away.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Line<T>(T);

#[derive(Debug, Default)]
struct Shared {
    /// Written by all workers under its lock.
    state: Line<Mutex<State>>,
    /// There is a task, or it is time to go. Helpers wait.
    work: Condvar,
    /// The last part is done. The caller waits.
    done: Condvar,
    /// Counts tasks that came and went, and the end. Written under the lock; read without it by
    /// who spins, and takes the lock before it believes anything.
    changes: Line<AtomicU64>,
}

#[derive(Debug, Default)]
struct State {
    task: Option<Task>,
    closing: bool,
    /// Threads that sleep, or are about to: with none there is nobody to wake by a system call.
    sleepers: u32,
}

/// One copy. Addresses are numbers here, so that they may go to other threads.
#[derive(Clone, Copy, Debug)]
struct Task {
    from: usize,
    to: usize,
    stores: Stores,
    /// Where what is not handed out yet begins and ends.
    left: (usize, usize),
    /// Bytes whose copy has not ended.
    open: usize,
}

const _: () = assert!(size_of::<Line<Mutex<State>>>() == 64);

/// From where a worker takes parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    Front,
    Back,
}

impl Task {
    /// Offset and length of the next part, which is handed out by this.
    fn take(&mut self, workers: usize, side: Side) -> Option<(usize, usize)> {
        let (start, end) = self.left;
        let left = end - start;
        if left == 0 {
            return None;
        }
        let wanted = (left / (2 * workers)).max(PART_LEAST);
        // What would be left is too little for a part of its own: this one takes it.
        if left < wanted + PART_LEAST {
            self.left = (end, end);
            return Some((start, left));
        }
        let cut = CUTS.into_iter().find(|&cut| wanted >= 2 * cut);
        let past_cut = |offset| cut.map_or(0, |cut| self.to.wrapping_add(offset) % cut);
        match side {
            Side::Front => {
                let middle = start + wanted - past_cut(start + wanted);
                self.left = (middle, end);
                Some((start, middle - start))
            }
            Side::Back => {
                let middle = end - wanted;
                let middle = middle - past_cut(middle).min(left - wanted);
                self.left = (start, middle);
                Some((middle, end - middle))
            }
        }
    }
}

impl Copier {
    /// Starts `workers - 1` threads; with one worker none. The threads run on `cpus` where any are
    /// given: those near the source or the target; the calling thread stays where it is.
    ///
    /// # Errors
    /// `InvalidInput` for no or far too many workers; what the kernel says where it gives no
    /// thread (`EAGAIN`) or none of the CPUs (`EINVAL`).
    pub fn new(workers: usize, cpus: &[CpuId]) -> io::Result<Self> {
        if !(1..=MOST_WORKERS).contains(&workers) {
            let text = format!("{workers} workers are not in 1 to {MOST_WORKERS}");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
        let mut copier = Self {
            shared: Arc::default(),
            helpers: Vec::new(),
            engine: None,
            owner: std::process::id(),
        };
        let cpus: Vec<u32> = cpus.iter().map(|cpu| cpu.0).collect();
        for number in 1..workers {
            let shared = Arc::clone(&copier.shared);
            let name = format!("hither-copy{number}");
            let helper = hither_mover::spawn(name, move || help(&shared, workers))?;
            let bound = match cpus.as_slice() {
                [] => Ok(()),
                cpus => sys::bind_thread(&helper, cpus),
            };
            // Kept even so: dropping the copier ends it.
            copier.helpers.push(helper);
            bound?;
        }
        Ok(copier)
    }

    /// With a copy engine beside the workers.
    #[must_use]
    pub fn with_engine(mut self, engine: Option<EngineDriver>) -> Self {
        self.engine = engine;
        self
    }

    /// Its copy engine, where it has one.
    #[must_use]
    pub fn engine(&self) -> Option<&EngineDriver> {
        self.engine.as_ref()
    }

    /// How many workers, the calling thread included.
    #[must_use]
    pub fn worker_count(&self) -> usize {
        self.helpers.len() + 1
    }

    /// What it needs to copy, beside its own bytes.
    #[must_use]
    pub fn memory(&self) -> std::ops::Range<u64> {
        let start = Arc::as_ptr(&self.shared) as u64;
        start..start + size_of::<Shared>() as u64
    }

    /// Was it made by this process, rather than by one that forked it?
    #[must_use]
    pub fn is_ours(&self) -> bool {
        self.owner == std::process::id()
    }

    /// Copies, by the way and with the workers that suit the size; later stores of the calling
    /// thread are ordered after it. In a forked child the calling thread copies alone.
    ///
    /// # Safety
    /// As [`stream::nontemporal`].
    pub unsafe fn copy(&mut self, from: *const u8, to: *mut u8, bytes: usize) {
        // SAFETY: as the caller promises.
        unsafe { self.copy_by(from, to, bytes, Stores::of(bytes)) }
    }

    /// The same by stores that the caller chooses.
    ///
    /// # Safety
    /// As [`stream::nontemporal`].
    pub(crate) unsafe fn copy_by(
        &mut self,
        from: *const u8,
        to: *mut u8,
        bytes: usize,
        stores: Stores,
    ) {
        let way = self.engine.as_mut().map(|engine| engine.way(bytes));
        let done = match (way, &mut self.engine) {
            // SAFETY: as the caller promises.
            (Some(Way::Engine), Some(engine)) => unsafe {
                let (from, to) = (from.expose_provenance(), to.expose_provenance());
                engine.copy(from as u64, to as u64, bytes)
            },
            _ => 0,
        };
        let start = (way == Some(Way::CpuTimed)).then(sys::monotonic_ns);
        if done < bytes {
            // SAFETY: as the caller promises, of a part of his ranges.
            unsafe { self.copy_by_cpu(from.add(done), to.add(done), bytes - done, stores) };
        }
        if let (Some(start), Some(engine)) = (start, &mut self.engine) {
            engine.learn_copy(bytes, sys::monotonic_ns().saturating_sub(start));
        }
    }

    /// The same by the workers.
    ///
    /// # Safety
    /// As [`stream::nontemporal`].
    unsafe fn copy_by_cpu(&self, from: *const u8, to: *mut u8, bytes: usize, stores: Stores) {
        if self.helpers.is_empty() || bytes < 2 * PART_LEAST || !self.is_ours() {
            // SAFETY: as the caller promises.
            return unsafe { stream::copy_by(from, to, bytes, stores) };
        }
        let mut state = self.shared.lock();
        state.task = Some(Task {
            from: from.expose_provenance(),
            to: to.expose_provenance(),
            stores,
            left: (0, bytes),
            open: bytes,
        });
        self.shared.changed(&state, &self.shared.work);
        state = self
            .shared
            .work_off(state, self.worker_count(), Side::Front);
        // Gone once the last part is done, by whichever worker.
        while state.task.is_some() {
            state = self
                .shared
                .wait(&self.shared.done, state, |state| state.task.is_some());
        }
    }
}

impl Drop for Copier {
    fn drop(&mut self) {
        // A forked child has none of these threads, and the lock may be held by one for ever.
        if !self.is_ours() {
            std::mem::forget(std::mem::take(&mut self.helpers));
            return;
        }
        let mut state = self.shared.lock();
        state.closing = true;
        self.shared.changed(&state, &self.shared.work);
        drop(state);
        for helper in self.helpers.drain(..) {
            // A helper cannot panic, and there would be nobody to tell.
            let _ = helper.join();
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Says that the state, whose lock is held, has changed, to who spins and to who sleeps.
    fn changed(&self, state: &State, sleepers: &Condvar) {
        self.changes.0.fetch_add(1, Ordering::Relaxed);
        if state.sleepers > 0 {
            sleepers.notify_all();
        }
    }

    /// Spins for a while, then sleeps if `is_idle` even so; the state may still be idle afterwards.
    fn wait<'a>(
        &'a self,
        sleepers: &Condvar,
        state: MutexGuard<'a, State>,
        is_idle: impl Fn(&State) -> bool,
    ) -> MutexGuard<'a, State> {
        let before = self.changes.0.load(Ordering::Relaxed);
        drop(state);
        let end = sys::monotonic_ns() + SPIN_NS;
        while self.changes.0.load(Ordering::Relaxed) == before && sys::monotonic_ns() < end {
            spin_loop();
        }
        let mut state = self.lock();
        if !is_idle(&state) {
            return state;
        }
        state.sleepers += 1;
        // The state is whole at every unlock, also where another thread panicked.
        let mut state = sleepers.wait(state).unwrap_or_else(PoisonError::into_inner);
        state.sleepers -= 1;
        state
    }

    /// Copies parts as long as there are any to hand out.
    fn work_off<'a>(
        &'a self,
        mut state: MutexGuard<'a, State>,
        workers: usize,
        side: Side,
    ) -> MutexGuard<'a, State> {
        while let Some(task) = &mut state.task
            && let Some((start, length)) = task.take(workers, side)
        {
            let from = std::ptr::with_exposed_provenance::<u8>(task.from + start);
            let to = std::ptr::with_exposed_provenance_mut::<u8>(task.to + start);
            let stores = task.stores;
            drop(state);
            // SAFETY: a part of the copy whose caller promised what is needed; it waits until all
            // parts are done, and no other worker has this part.
            unsafe { stream::copy_by(from, to, length, stores) };
            state = self.lock();
            let task = state.task.as_mut();
            let task = task.expect("a task stays until its last part is done, and this is one");
            task.open -= length;
            if task.open == 0 {
                state.task = None;
                self.changed(&state, &self.done);
            }
        }
        state
    }
}

/// A helper's life.
fn help(shared: &Shared, workers: usize) {
    let is_idle = |state: &State| {
        let has_parts = |task: Task| task.left.0 < task.left.1;
        !state.closing && !state.task.is_some_and(has_parts)
    };
    let mut state = shared.lock();
    while !state.closing {
        state = shared.work_off(state, workers, Side::Back);
        if is_idle(&state) {
            state = shared.wait(&shared.work, state, is_idle);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn parts_cover_every_byte_once(
            to in 0usize..1 << 40,
            bytes in 2 * PART_LEAST..1 << 30,
            workers in 2usize..20,
            turns in proptest::collection::vec(any::<bool>(), 1..20),
        ) {
            let stores = Stores::Ordinary;
            let left = (0, bytes);
            let mut task = Task { from: 0, to, stores, left, open: bytes };
            let mut parts = Vec::new();
            let mut turns = turns.iter().cycle();
            let mut side = || if *turns.next().unwrap() { Side::Front } else { Side::Back };
            while let Some(part) = task.take(workers, side()) {
                parts.push(part);
            }
            parts.sort_unstable();
            let mut next = 0;
            for (start, length) in parts {
                prop_assert_eq!(start, next);
                next += length;
                prop_assert!(next == bytes || (to + next) % 4096 == 0);
                prop_assert!(length >= PART_LEAST / 2, "{}", length);
            }
            prop_assert_eq!(next, bytes);
        }
    }

    #[test]
    fn impossible_teams_are_errors() {
        assert_eq!(
            Copier::new(0, &[]).unwrap_err().kind(),
            io::ErrorKind::InvalidInput
        );
        assert!(Copier::new(MOST_WORKERS + 1, &[]).is_err());
        let nowhere = Copier::new(2, &[CpuId(60_000)]).unwrap_err();
        assert_eq!(nowhere.raw_os_error(), Some(libc::EINVAL));
        // With one worker there is nobody to bind.
        assert_eq!(Copier::new(1, &[CpuId(60_000)]).unwrap().worker_count(), 1);
    }
}
