//! The array: what is shared, who has the turn, and giving copies up.

use crate::account::{Accounts, Sums};
use crate::bits::Bits;
use crate::build;
use crate::error::Error;
use crate::keeper::Keeper;
use crate::memory::{self, PAGE_BYTES, Store};
use crate::places::Places;
use crate::protocol::Protocol;
use crate::reader::Reader;
use crate::report::{ArrayReport, Built, Figures};
use crate::rule::{self, Account, ByteCosts, Judgement, Verdict};
use crate::writer::ArrayWriter;
use hither_core::set::NodeSet;
use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Chunks of small arrays and of others: a page of page tables covers the latter, and it is what a huge page
/// holds.
const SMALL_CHUNK: usize = 64 << 10;
const CHUNK: usize = 2 << 20;
/// Below this an array is small.
const SMALL_ARRAY: usize = 16 << 20;
/// Most bytes of a chunk, and most readers: bounds for what a caller may mistake.
const MOST_CHUNK: usize = 1 << 30;
const MOST_READERS: usize = 1 << 14;
/// Most entries of an address table: 128 MiB of them.
const MOST_ENTRIES: usize = 1 << 24;
/// How often somebody who waits for readers looks again, at first and at last.
const NAPS: (Duration, Duration) = (Duration::from_micros(20), Duration::from_millis(1));
/// How long a wait without a limit is.
pub(crate) const FOR_EVER: Duration = Duration::from_secs(1 << 32);

/// Where the master is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HomeNode {
    /// At one place, which needs no other copy.
    Place(usize),
    /// Page by page over the nodes of all places: where only a part is replicated, the rest is spread. Every
    /// place gets copies.
    Interleaved,
}

/// Which chunks get copies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CopiedChunks {
    /// All, at every place.
    #[default]
    All,
    /// Those that readers of two places or more have taken, at the places that took them.
    Shared,
}

/// How an array is made. Zeros and `None` choose what suits.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// Which chunks get copies.
    pub which: CopiedChunks,
    /// Where the master is.
    pub home: HomeNode,
    /// Bytes of a chunk: a power of two from 64 KiB to 1 GiB; 0: 2 MiB, of arrays below 16 MiB 64 KiB.
    pub chunk_bytes: usize,
    /// Most bytes of all copies together; the master, and its second from the first write on, are not among
    /// them.
    pub budget_bytes: Option<u64>,
    /// Bytes that stay free on each node; `None`: a 32nd of what it has.
    pub reserve_bytes: Option<u64>,
    /// Readers at one time.
    pub max_readers: usize,
    /// Threads that copy for a place; 0: one for each of its CPUs, 4 at most, as few CPUs use up a controller.
    pub workers: usize,
    /// Pages of 2 MiB for master and copies, where there are any free; else those that the system chooses.
    /// Compare with a run whose plain memory has huge pages as well.
    pub huge: bool,
    /// What a byte costs, for the rule; `None`: by distances.
    pub costs: Option<ByteCosts>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            which: CopiedChunks::All,
            home: HomeNode::Place(0),
            chunk_bytes: 0,
            budget_bytes: None,
            reserve_bytes: None,
            max_readers: 256,
            workers: 0,
            huge: false,
            costs: None,
        }
    }
}

/// One logical array of bytes with copies at several places. [`crate::Replicated`] is the same with a type.
///
/// Dropping it ends its keeper; memory is given back with the last reader.
#[derive(Debug)]
pub struct Array {
    pub(crate) shared: Arc<Shared>,
}

#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) protocol: Protocol,
    pub(crate) accounts: Accounts,
    pub(crate) places: Places,
    pub(crate) config: Config,
    pub(crate) bytes: usize,
    pub(crate) chunk_bytes: usize,
    pub(crate) chunks: usize,
    pub(crate) costs: ByteCosts,
    state: Mutex<State>,
    /// The turn is free.
    freed: Condvar,
    /// Slots that no reader has.
    pub(crate) slots: Mutex<Vec<usize>>,
    keeper: Mutex<Option<Keeper>>,
}

/// What only the holder of the turn changes; others look under the lock.
#[derive(Debug)]
pub(crate) struct State {
    has_turn: bool,
    pub(crate) waiting: usize,
    pub(crate) epoch: u64,
    /// Which master readers find.
    pub(crate) front: usize,
    pub(crate) masters: [Option<Store>; 2],
    /// Pages in which the other master is not as the front.
    pub(crate) lags: Bits,
    pub(crate) copies: Vec<Copies>,
    /// Copies were given up as they did not pay.
    pub(crate) given_up: bool,
    pub(crate) figures: Figures,
    /// Sums and copied bytes at the last verdict.
    judged: (Sums, u64),
}

/// Of one place.
#[derive(Debug)]
pub(crate) struct Copies {
    pub(crate) store: Option<Store>,
    /// Chunks whose copy is the front's content.
    pub(crate) valid: Vec<bool>,
    /// Pages of chunks with pages that are not the front's content.
    pub(crate) stale: Bits,
    /// Chunks with pages.
    pub(crate) has_pages: Vec<bool>,
    /// Chunks whose pages are to be given back once nobody reads an earlier tick.
    pub(crate) gone: Vec<usize>,
}

/// The right to change tables and memory; one at a time.
pub(crate) struct Turn(pub(crate) Arc<Shared>);

impl Drop for Turn {
    fn drop(&mut self) {
        // In a child after fork another thread's lock is held for ever.
        if !self.0.protocol.is_forked() {
            self.0.state().has_turn = false;
            self.0.freed.notify_all();
        }
    }
}

impl Shared {
    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn check(&self) -> Result<(), Error> {
        match self.protocol.is_forked() {
            true => Err(Error::Forked),
            false => Ok(()),
        }
    }

    /// Takes the turn, and waits until no reader holds an earlier tick.
    pub(crate) fn turn(self: &Arc<Self>, limit: Duration) -> Result<Turn, Error> {
        self.check()?;
        let start = Instant::now();
        let mut state = self.state();
        state.waiting += 1;
        while state.has_turn {
            let left = limit.saturating_sub(start.elapsed());
            if left.is_zero() {
                state.waiting -= 1;
                return Err(Error::Busy {
                    what: "another writer or builder has not finished".to_owned(),
                    waited: start.elapsed(),
                });
            }
            let waited = self.freed.wait_timeout(state, left.min(FOR_EVER));
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        state.waiting -= 1;
        state.has_turn = true;
        drop(state);
        let turn = Turn(Arc::clone(self));
        self.wait_quiet(limit.saturating_sub(start.elapsed()))?;
        self.give_back(&turn);
        Ok(turn)
    }

    fn wait_quiet(&self, limit: Duration) -> Result<(), Error> {
        let start = Instant::now();
        let mut nap = NAPS.0;
        while !self.protocol.is_quiet() {
            if start.elapsed() >= limit {
                let late = self.protocol.holders().1;
                return Err(Error::Busy {
                    what: format!("{late} readers still hold an earlier epoch"),
                    waited: start.elapsed(),
                });
            }
            std::thread::sleep(nap);
            nap = (nap * 2).min(NAPS.1);
        }
        Ok(())
    }

    /// Gives pages of copies back that were given up; nobody holds an earlier tick.
    fn give_back(&self, _turn: &Turn) {
        let mut state = self.state();
        for copies in &mut state.copies {
            for chunk in std::mem::take(&mut copies.gone) {
                if let Some(store) = &copies.store
                    && !copies.valid[chunk]
                    && copies.has_pages[chunk]
                {
                    store.discard(chunk);
                    copies.has_pages[chunk] = false;
                }
            }
        }
    }

    /// Memory for all chunks.
    pub(crate) fn store(&self, nodes: &NodeSet) -> Result<Store, Error> {
        let bytes = self.chunks * self.chunk_bytes;
        Store::new(bytes, self.chunk_bytes, nodes, self.config.huge)
    }

    pub(crate) fn keeper(&self) -> MutexGuard<'_, Option<Keeper>> {
        self.keeper.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// All pages.
    pub(crate) fn pages(&self) -> usize {
        self.chunks * self.chunk_bytes / PAGE_BYTES
    }

    /// Pages of a chunk.
    pub(crate) fn pages_of(&self, chunk: usize) -> Range<usize> {
        let count = self.chunk_bytes / PAGE_BYTES;
        chunk * count..(chunk + 1) * count
    }

    /// Is this place where the master is, so that it needs no copy?
    pub(crate) fn is_home(&self, place: usize) -> bool {
        self.config.home == HomeNode::Place(place)
    }

    /// Makes the state's content the next tick.
    pub(crate) fn publish(&self, state: &State) {
        let front = state.masters[state.front].as_ref();
        let base = front.map_or(0, Store::base);
        self.protocol.publish(
            state.epoch,
            base,
            |chunk| base + chunk * self.chunk_bytes,
            |place, chunk| {
                let copies = &state.copies[place];
                let store = copies.store.as_ref()?;
                copies.valid[chunk].then(|| store.address(chunk))
            },
        );
    }
}

fn count(flags: &[bool]) -> usize {
    flags.iter().filter(|flag| **flag).count()
}

impl State {
    /// First addresses of the front and of the other master.
    pub(crate) fn front_and_spare(&self) -> Option<(usize, usize)> {
        let front = self.masters[self.front].as_ref()?;
        let spare = self.masters[1 - self.front].as_ref()?;
        Some((front.base(), spare.base()))
    }

    pub(crate) fn copy_count(&self) -> usize {
        self.copies.iter().map(|copies| count(&copies.valid)).sum()
    }

    /// Chunks of copies that have pages.
    pub(crate) fn chunks_with_pages(&self) -> usize {
        let held = self.copies.iter().map(|copies| count(&copies.has_pages));
        held.sum()
    }
}

impl Array {
    /// An array of `bytes` zero bytes at the nodes of this machine.
    ///
    /// # Errors
    /// An argument without meaning, or no memory.
    pub fn new(bytes: usize, config: Config) -> Result<Self, Error> {
        Self::filled(bytes, Places::here()?, config, |_| {})
    }

    /// An array at places of the caller's choice, whose first epoch `fill` writes into zeroed memory.
    ///
    /// # Errors
    /// An argument without meaning, or no memory.
    pub fn filled(
        bytes: usize,
        places: Places,
        config: Config,
        fill: impl FnOnce(&mut [u8]),
    ) -> Result<Self, Error> {
        let chunk_bytes = checked(bytes, &places, &config)?;
        let chunks = bytes.div_ceil(chunk_bytes);
        let count = places.list().len();
        let pages = chunks * chunk_bytes / PAGE_BYTES;
        let nodes = home(&places, &config);
        let master = Store::new(chunks * chunk_bytes, chunk_bytes, &nodes, config.huge)?;
        // SAFETY: zeroed memory of this store, which nobody else knows yet.
        fill(unsafe { memory::bytes_at_mut(master.base(), bytes) });
        let readers = config.max_readers;
        let address = |chunk| master.address(chunk);
        let protocol = Protocol::new(readers, count, chunks, master.base(), address);
        let copies = || Copies {
            store: None,
            valid: vec![false; chunks],
            stale: Bits::new(pages),
            has_pages: vec![false; chunks],
            gone: Vec::new(),
        };
        let shared = Shared {
            protocol: protocol.map_err(Error::system("no page to note forks in"))?,
            accounts: Accounts::new(readers, count, chunks),
            costs: config
                .costs
                .unwrap_or_else(|| ByteCosts::of_distance(places.distance())),
            places,
            config,
            bytes,
            chunk_bytes,
            chunks,
            state: Mutex::new(State {
                has_turn: false,
                waiting: 0,
                epoch: 1,
                front: 0,
                masters: [Some(master), None],
                lags: Bits::new(pages),
                copies: (0..count).map(|_| copies()).collect(),
                given_up: false,
                figures: Figures::default(),
                judged: (Sums::default(), 0),
            }),
            freed: Condvar::new(),
            slots: Mutex::new((0..readers).rev().collect()),
            keeper: Mutex::new(None),
        };
        Ok(Self {
            shared: Arc::new(shared),
        })
    }

    /// Its length in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.shared.bytes
    }

    /// Never.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.shared.bytes == 0
    }

    /// Bytes of a chunk.
    #[must_use]
    pub fn chunk_bytes(&self) -> usize {
        self.shared.chunk_bytes
    }

    /// Its places.
    #[must_use]
    pub fn places(&self) -> &Places {
        &self.shared.places
    }

    /// A reader for the calling thread, which reads the place nearest to the CPU that it runs on now.
    ///
    /// # Errors
    /// All slots are in use, or this is a child after `fork`.
    pub fn reader(&self) -> Result<Reader, Error> {
        Reader::new(&self.shared, self.shared.places.near_here())
    }

    /// A reader of a place.
    ///
    /// # Errors
    /// There is no such place; as [`Array::reader`].
    pub fn reader_at(&self, place: usize) -> Result<Reader, Error> {
        let count = self.shared.places.list().len();
        if place >= count {
            return Err(Error::Invalid(format!(
                "there is no place {place}: the array has {count}, from 0"
            )));
        }
        Reader::new(&self.shared, place)
    }

    /// Prepares the next epoch; waits for its turn and for readers of earlier epochs as long as it takes: for ever,
    /// where the calling thread itself holds a guard of one.
    ///
    /// # Errors
    /// No memory for a second master, or this is a child after `fork`.
    pub fn write(&self) -> Result<ArrayWriter, Error> {
        self.write_within(FOR_EVER)
    }

    /// The same, waiting at most so long; zero: not at all.
    ///
    /// # Errors
    /// [`Error::Busy`] then; as [`Array::write`].
    pub fn write_within(&self, limit: Duration) -> Result<ArrayWriter, Error> {
        ArrayWriter::new(self.shared.turn(limit)?)
    }

    /// Copies what has no copy or a stale one, at all places in parallel; readers read meanwhile. Copies that
    /// were given up come back. Waits for readers of earlier epochs at most `limit`.
    ///
    /// # Errors
    /// [`Error::Busy`]; a thread that cannot be started.
    pub fn refresh(&self, limit: Duration) -> Result<Built, Error> {
        let turn = self.shared.turn(limit)?;
        self.shared.state().given_up = false;
        build::build(&turn, u64::MAX)
    }

    /// Judges what was read and copied since the last verdict ([`rule`]), and does what follows: gives copies
    /// up, makes them again, or copies up to `most_bytes` of what is stale.
    ///
    /// # Errors
    /// As [`Array::refresh`].
    pub fn maintain(&self, limit: Duration, most_bytes: u64) -> Result<Judgement, Error> {
        maintain(&self.shared, limit, most_bytes)
    }

    /// Has a thread maintain the array from now on: at once, when something is published, and every `period`.
    /// Until copies are there, reads find the master. A second call changes the period.
    ///
    /// # Errors
    /// No thread can be started.
    pub fn keep(&self, period: Duration) -> Result<(), Error> {
        self.shared.check()?;
        let keeper = Keeper::start(&self.shared, period)?;
        let mut kept = self.shared.keeper();
        let before = kept.replace(keeper);
        drop(kept);
        drop(before);
        Ok(())
    }

    /// Gives all copies up: readers find the master from their next guard on, and memory is given back as soon
    /// as the last guard of before is gone, for which this waits at most `limit`.
    ///
    /// # Errors
    /// [`Error::Busy`]: the memory comes back with the next turn (a write, refresh or collapse).
    pub fn collapse(&self, limit: Duration) -> Result<(), Error> {
        let turn = self.shared.turn(limit)?;
        collapse(&turn);
        drop(turn);
        drop(self.shared.turn(limit)?);
        Ok(())
    }

    /// Gives the pages of the second master back, which only the next write needs: of an array that is hardly
    /// ever written. That write copies the whole array.
    ///
    /// # Errors
    /// [`Error::Busy`], or this is a child after `fork`.
    pub fn trim(&self, limit: Duration) -> Result<(), Error> {
        let _turn = self.shared.turn(limit)?;
        let mut state = self.shared.state();
        let spare = 1 - state.front;
        state.masters[spare] = None;
        Ok(())
    }

    /// What it did so far.
    ///
    /// # Errors
    /// This is a child after `fork`.
    pub fn report(&self) -> Result<ArrayReport, Error> {
        self.shared.check()?;
        Ok(ArrayReport::of(&self.shared))
    }
}

impl Drop for Array {
    fn drop(&mut self) {
        if self.shared.check().is_ok() {
            let keeper = self.shared.keeper().take();
            drop(keeper);
        }
    }
}

/// The step of [`Array::maintain`].
pub(crate) fn maintain(
    shared: &Arc<Shared>,
    limit: Duration,
    most_bytes: u64,
) -> Result<Judgement, Error> {
    let turn = shared.turn(limit)?;
    let sums = shared.accounts.sums();
    let judgement = {
        let mut state = shared.state();
        let copied = state.figures.recopied_bytes;
        let account: Account = sums.since(state.judged.0, copied - state.judged.1);
        let judgement = rule::judge(&account, &shared.costs, !state.given_up);
        if judgement.verdict != Verdict::Unknown {
            state.judged = (sums, copied);
            state.figures.verdict = Some(judgement.sentence.clone());
        }
        match judgement.verdict {
            Verdict::Collapse => state.given_up = true,
            Verdict::Return => state.given_up = false,
            Verdict::Keep | Verdict::Unknown => {}
        }
        judgement
    };
    if judgement.verdict == Verdict::Collapse {
        shared.state().figures.collapses += 1;
        collapse(&turn);
    }
    if !shared.state().given_up {
        build::build(&turn, most_bytes)?;
    }
    Ok(judgement)
}

/// Turn: a tick without copies.
fn collapse(turn: &Turn) {
    let mut state = turn.0.state();
    state.given_up = true;
    // Without a valid copy no reader finds one, and the tick may stay.
    let is_found = state.copy_count() > 0;
    for copies in &mut state.copies {
        let pages = copies.has_pages.iter().enumerate();
        copies.gone = pages
            .filter(|(_, has)| **has)
            .map(|(chunk, _)| chunk)
            .collect();
        copies.valid.fill(false);
    }
    if is_found {
        turn.0.publish(&state);
    }
}

/// Nodes of the master.
pub(crate) fn home(places: &Places, config: &Config) -> NodeSet {
    match config.home {
        HomeNode::Place(place) => [places.list()[place].node].into_iter().collect(),
        HomeNode::Interleaved => places.list().iter().map(|place| place.node).collect(),
    }
}

/// The bytes of a chunk, if the arguments have a meaning.
fn checked(bytes: usize, places: &Places, config: &Config) -> Result<usize, Error> {
    let invalid = |text: String| Err(Error::Invalid(text));
    if bytes == 0 {
        return invalid("an array of 0 bytes is asked for: ask for 1 at least".to_owned());
    }
    let chunk_bytes = match config.chunk_bytes {
        0 if bytes < SMALL_ARRAY => SMALL_CHUNK,
        0 => CHUNK,
        given => given,
    };
    if !chunk_bytes.is_power_of_two() || !(SMALL_CHUNK..=MOST_CHUNK).contains(&chunk_bytes) {
        return invalid(format!(
            "chunks of {chunk_bytes} bytes: give a power of two from 64 KiB to 1 GiB"
        ));
    }
    if bytes > isize::MAX as usize - MOST_CHUNK {
        return invalid(format!(
            "{bytes} bytes are more than an address space has: ask for less"
        ));
    }
    let count = places.list().len();
    if bytes.div_ceil(chunk_bytes).saturating_mul(count) > MOST_ENTRIES {
        return invalid(format!(
            "{bytes} bytes are too many chunks of {chunk_bytes} bytes at {count} places: take larger chunks"
        ));
    }
    if !(1..=MOST_READERS).contains(&config.max_readers) {
        return invalid(format!(
            "max_readers is {}: give 1 to {MOST_READERS}",
            config.max_readers
        ));
    }
    if let HomeNode::Place(place) = config.home
        && place >= count
    {
        return invalid(format!(
            "the master's place {place} is not there: the array has {count} places, from 0"
        ));
    }
    Ok(chunk_bytes)
}
