//! Copies are made: at all places at once, by threads that run there.
//!
//! Threads of a place read the master, wherever it is, and write to memory of their own node with stores that go
//! past the caches (the mover's `copy`). They are not the mover's workers, as these are bound once for all
//! requests, while here each copy is to be made by its own node's CPUs: streams of several nodes then use
//! several links at once.

use crate::array::{CopiedChunks, Shared, Turn};
use crate::error::Error;
use crate::memory::{self, NoPages, PAGE_BYTES, Store};
use crate::plan::{self, Means, Wish};
use crate::report::Built;
use hither_core::ids::NodeId;
use hither_linux::{bind, sys};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

/// Threads that copy for a place, unless told otherwise.
const MOST_WORKERS: usize = 4;

/// Copies for one place.
struct Job {
    place: usize,
    node: NodeId,
    wishes: Vec<Wish>,
    next: AtomicUsize,
    /// The node is full: copies that need pages are left.
    is_full: AtomicBool,
    /// With the bytes that were copied.
    done: Mutex<Vec<(Wish, u64)>>,
    refused: Mutex<Option<NoPages>>,
}

/// Turn, quiet: copies up to `most_bytes` of what has no copy or a stale one.
pub(crate) fn build(turn: &Turn, most_bytes: u64) -> Result<Built, Error> {
    let shared = &turn.0;
    let start = Instant::now();
    let wishes = wishes(shared);
    if wishes.is_empty() {
        shared.state().figures.later = 0;
        return Ok(Built::default());
    }
    let means = means(shared, &wishes, most_bytes)?;
    let plan = plan::plan(wishes, &means, |place| shared.places.name(place));
    let (jobs, front) = jobs(shared, plan.taken)?;
    carry_out(shared, &jobs, front);
    let mut built = Built {
        refused: plan.refused,
        later: plan.later,
        ..Built::default()
    };
    let mut state = shared.state();
    for job in jobs {
        let done = job
            .done
            .into_inner()
            .unwrap_or_else(PoisonError::into_inner);
        for (wish, bytes) in &done {
            let copies = &mut state.copies[wish.place];
            copies.stale.clear(shared.pages_of(wish.chunk));
            copies.valid[wish.chunk] = true;
            copies.has_pages[wish.chunk] = true;
            built.bytes += bytes;
            if !wish.needs_pages {
                built.again_bytes += bytes;
            }
        }
        let refused = job.refused.into_inner();
        if let Some(reason) = refused.unwrap_or_else(PoisonError::into_inner) {
            let left = job.wishes.len() - done.len();
            built.refused.push(format!(
                "{}: {}; {left} chunks stay at the master",
                shared.places.name(job.place),
                reason.0
            ));
        }
    }
    built.seconds = start.elapsed().as_secs_f64();
    state.figures.take(&built);
    Ok(built)
}

/// Copies that would help.
fn wishes(shared: &Shared) -> Vec<Wish> {
    let state = shared.state();
    let places = state.copies.len();
    let mut wishes = Vec::new();
    for chunk in 0..shared.chunks {
        let is_shared = match shared.config.which {
            CopiedChunks::All => true,
            CopiedChunks::Shared => shared.accounts.readers_of(chunk, places) >= 2,
        };
        if !is_shared {
            continue;
        }
        for (place, copies) in state.copies.iter().enumerate() {
            let weight = shared.accounts.heat(place, chunk);
            let is_wanted = shared.config.which == CopiedChunks::All || weight > 0;
            if is_wanted && !shared.is_home(place) && !copies.valid[chunk] {
                wishes.push(Wish {
                    place,
                    chunk,
                    weight,
                    needs_pages: !copies.has_pages[chunk],
                });
            }
        }
    }
    wishes
}

/// What there is: the budget less what copies have, and what nodes have available less what stays so.
fn means(shared: &Shared, wishes: &[Wish], most_bytes: u64) -> Result<Means, Error> {
    let places = shared.places.list();
    let chunk_bytes = shared.chunk_bytes as u64;
    let mut room_bytes = vec![0; places.len()];
    if wishes.iter().any(|wish| wish.needs_pages) {
        let here = bind::here()?;
        for (place, one) in places.iter().enumerate() {
            let Some(node) = here.node(one.node) else {
                continue;
            };
            let reserve = shared.config.reserve_bytes.unwrap_or(node.total_bytes / 32);
            // Places of one node, where a caller emulates several, share what it has.
            let sharers = places.iter().filter(|other| other.node == one.node).count();
            room_bytes[place] = node.available_bytes.saturating_sub(reserve) / sharers as u64;
        }
    }
    let state = shared.state();
    let held = state.chunks_with_pages() as u64;
    let budget = shared.config.budget_bytes.unwrap_or(u64::MAX);
    Ok(Means {
        chunk_bytes,
        budget_bytes: budget.saturating_sub(held * chunk_bytes),
        room_bytes,
        most_bytes: most_bytes.max(chunk_bytes),
    })
}

/// Wishes by place, each with a store; and the front's first address.
fn jobs(shared: &Shared, taken: Vec<Wish>) -> Result<(Vec<Job>, usize), Error> {
    let mut state = shared.state();
    let front = state.masters[state.front].as_ref().map_or(0, Store::base);
    let mut jobs = Vec::new();
    for (place, one) in shared.places.list().iter().enumerate() {
        let mine = taken.iter().filter(|wish| wish.place == place);
        let wishes: Vec<Wish> = mine.copied().collect();
        if wishes.is_empty() {
            continue;
        }
        let store = &mut state.copies[place].store;
        if store.is_none() {
            *store = Some(shared.store(&[one.node].into_iter().collect())?);
        }
        jobs.push(Job {
            place,
            node: one.node,
            wishes,
            next: AtomicUsize::new(0),
            is_full: AtomicBool::new(false),
            done: Mutex::new(Vec::new()),
            refused: Mutex::new(None),
        });
    }
    Ok((jobs, front))
}

/// All places at once. Where no thread can be started, the calling one does the work.
fn carry_out(shared: &Shared, jobs: &[Job], front: usize) {
    let state = shared.state();
    let stores: Vec<Option<usize>> = state
        .copies
        .iter()
        .map(|copies| copies.store.as_ref().map(Store::base))
        .collect();
    drop(state);
    std::thread::scope(|scope| {
        for job in jobs {
            let cpus = &shared.places.list()[job.place].cpus;
            let Some(base) = stores[job.place] else {
                continue;
            };
            let workers = match shared.config.workers {
                0 => cpus.len().clamp(1, MOST_WORKERS),
                given => given,
            };
            for _ in 0..workers.min(job.wishes.len()) {
                let work = move || {
                    if !cpus.is_empty() {
                        // CPUs that this process may not use: it copies from elsewhere.
                        let _ = sys::stay_on(cpus);
                    }
                    copy_some(shared, job, front, base);
                };
                let named = std::thread::Builder::new().name("hither-copies".to_owned());
                if named.spawn_scoped(scope, work).is_err() {
                    copy_some(shared, job, front, base);
                }
            }
        }
    });
}

/// Takes wishes of a job until there are none.
fn copy_some(shared: &Shared, job: &Job, front: usize, base: usize) {
    let mut done = Vec::new();
    loop {
        let index = job.next.fetch_add(1, Ordering::Relaxed);
        let Some(wish) = job.wishes.get(index) else {
            break;
        };
        if wish.needs_pages {
            if job.is_full.load(Ordering::Relaxed) {
                continue;
            }
            let state = shared.state();
            let store = state.copies[job.place].store.as_ref();
            let pages = store.map(|store| store.part(wish.chunk));
            drop(state);
            if let Some(Err(reason)) = pages.map(|part| part.populate_on(job.node)) {
                job.is_full.store(true, Ordering::Relaxed);
                *job.refused.lock().unwrap_or_else(PoisonError::into_inner) = Some(reason);
                continue;
            }
        }
        // What is stale; of new pages all.
        let pages = shared.pages_of(wish.chunk);
        let runs: Vec<Range<usize>> = match wish.needs_pages {
            true => std::iter::once(pages).collect(),
            false => shared.state().copies[job.place].stale.runs(pages).collect(),
        };
        let mut bytes = 0;
        for run in runs {
            let (offset, length) = (run.start * PAGE_BYTES, run.len() * PAGE_BYTES);
            // SAFETY: pages of two stores that live as long as the array. The front is not written while this
            // thread's caller has the turn; no reader finds the copy's address in a table, and none of an
            // earlier tick is left.
            unsafe { memory::copy_bytes(front + offset, base + offset, length) };
            bytes += length as u64;
        }
        let address = base + wish.chunk * shared.chunk_bytes;
        shared.protocol.set_copy(job.place, wish.chunk, address);
        done.push((*wish, bytes));
    }
    let mut all = job.done.lock().unwrap_or_else(PoisonError::into_inner);
    all.append(&mut done);
}
