//! The copy engine: a device that reads descriptors from a program's ring, copies, and tells of
//! completion. Layout: `hither_core::copy_engine`.
//!
//! *Contents.* All bytes of a descriptor are copied when its doorbell rings, within the callback
//! of the vCPU that rang, through the page tables of its address space: nobody can take a page
//! away meanwhile (`walk`), and no reader finds half of a word. A real engine copies at some time
//! between doorbell and completion; who reads the target before completion sees what is new
//! sooner here, and who writes to the source after the doorbell never changes the copy.
//!
//! *Time.* A descriptor goes to the channel that is free first. It takes the set-up and then its
//! bytes over the channel's bandwidth, in parts of 4 KiB, each of which is booked on the
//! controllers and links of its two nodes (`load`) and waits for their capacity as a CPU's
//! traffic does. Whoever has the lock takes channels forward, up to its own time.
//!
//! *Completion.* Records are written by a vCPU that runs in the ring's address space, at its next
//! synchronisation or look after the time of completion: only there is it known that the ring's
//! pages are still the program's. A program that has ended gets none.
//!
//! *The CPU's price.* The vCPU that rings pays for writing each element, or for writing source and
//! target alone where one of that size is at hand that an earlier transfer left ([`Elements`]).

use crate::load::Traffic;
use crate::model::Model;
use crate::ram::Ram;
use crate::walk::{Refusal, Want, walk};
use hither_core::copy_engine::{self as layout, descriptor, record, ring};
use hither_core::machine::{CopyEngine, Machine};
use std::collections::{HashMap, VecDeque};
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed, Ordering::Release};

/// Rings that are known at a time. Beyond it those at rest are forgotten; their programs see that
/// nothing is taken any more.
const RINGS: usize = 64;
/// A channel's traffic is booked in parts of this many bytes.
const PART_BYTES: u64 = 4096;

/// Address space and address of a ring.
type Key = (u64, u64);

/// Bytes between two nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Run {
    from: usize,
    to: usize,
    bytes: u64,
}

/// A descriptor under way.
struct Transfer {
    ring: Key,
    serial: u64,
    outcome: Outcome,
    /// Not before this time.
    from_ps: u64,
    runs: VecDeque<Run>,
    /// Bytes of each of its elements.
    elements: Vec<u64>,
}

/// What its record will say.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Outcome {
    place: usize,
    status: u64,
    done: u64,
    fault: u64,
    time_ps: u64,
    elements: u64,
}

/// A piece of a copy within one page of the source and one of the target.
struct Part {
    from: *const u8,
    to: *mut u8,
    to_paddr: u64,
    run: Run,
}

/// The engine's own descriptors: those that transfers left configured, by the bytes that they copy,
/// and how many are in use. (memif's driver knows of chains of them and uses parts of these again.)
#[derive(Default)]
struct Elements {
    idle: HashMap<u64, u64>,
    used: u64,
}

impl Elements {
    /// Takes one for each of these sizes; how many of them had to be written as a whole.
    fn take(&mut self, sizes: &[u64], most: u64) -> u64 {
        let mut new = 0;
        for size in sizes {
            match self.idle.get_mut(size).filter(|count| **count > 0) {
                Some(count) => *count -= 1,
                None => new += 1,
            }
        }
        self.used += sizes.len() as u64;
        // Those of other sizes make room.
        let mut idle: u64 = self.idle.values().sum();
        for count in self.idle.values_mut() {
            let taken = (idle + self.used).saturating_sub(most).min(*count);
            *count -= taken;
            idle -= taken;
        }
        new
    }

    /// They are free again, and stay as they are.
    fn give_back(&mut self, sizes: &[u64]) {
        for &size in sizes {
            *self.idle.entry(size).or_default() += 1;
        }
        self.used -= sizes.len() as u64;
        self.idle.retain(|_, count| *count > 0);
    }
}

struct Ring {
    /// Tells rings apart that are opened at one place one after the other.
    serial: u64,
    entries: usize,
    taken: u64,
    /// Under way on channels.
    running: usize,
    /// Complete, not told yet.
    complete: Vec<Outcome>,
}

#[derive(Default)]
struct Channel {
    free_ps: u64,
    queue: VecDeque<Transfer>,
    started: bool,
}

struct State {
    rings: HashMap<Key, Ring>,
    opened: u64,
    elements: Elements,
    channels: Vec<Channel>,
}

/// The device.
pub struct Engine {
    config: CopyEngine,
    ram: Ram,
    state: Mutex<State>,
    /// Descriptors that are taken and not told of yet.
    under_way: AtomicUsize,
}

impl Engine {
    /// The machine's engine, over the files of its nodes' memory.
    pub fn new(machine: &Machine, memory: &[PathBuf]) -> Result<Option<Self>, String> {
        let Some(config) = &machine.engine else {
            return Ok(None);
        };
        if memory.len() != machine.nodes.len() {
            return Err(format!(
                "{} has a copy engine and {} nodes: give memory=FILE for each, not {}",
                machine.name,
                machine.nodes.len(),
                memory.len()
            ));
        }
        let sizes = machine.nodes.iter().map(|node| node.memory_mb << 20);
        let files: Vec<(PathBuf, u64)> = memory.iter().cloned().zip(sizes).collect();
        let ram = Ram::map(&files).map_err(|error| format!("the guest's memory: {error}"))?;
        Ok(Some(Self {
            state: Mutex::new(State {
                rings: HashMap::new(),
                opened: 0,
                elements: Elements::default(),
                channels: (0..config.channels).map(|_| Channel::default()).collect(),
            }),
            config: config.clone(),
            ram,
            under_way: AtomicUsize::new(0),
        }))
    }

    /// Is there something under way?
    pub fn is_busy(&self) -> bool {
        self.under_way.load(Relaxed) > 0
    }

    /// A vCPU that runs in the address space of `table` rings for the ring at `address`. Returns
    /// what it pays for writing the descriptors, in ps.
    pub fn doorbell(&self, model: &Model, table: u64, address: u64, now_ps: u64) -> u64 {
        let Ok(mut state) = self.state.lock() else {
            return 0;
        };
        let memory = Space {
            engine: self,
            model,
            table,
        };
        let spent_ps = self
            .submit(&mut state, &memory, address, now_ps)
            .unwrap_or(0);
        self.advance(&mut state, model, now_ps);
        self.publish(&mut state, &memory, now_ps);
        spent_ps
    }

    /// Brings the records of this address space up to the vCPU's time.
    pub fn look(&self, model: &Model, table: u64, now_ps: u64) {
        if self.is_busy() {
            self.turn(model, Some(table), now_ps);
        }
    }

    /// Takes channels forward, and tells the address space that is in force, if it is known, what
    /// is complete. Does nothing where another vCPU is at it.
    pub fn turn(&self, model: &Model, table: Option<u64>, now_ps: u64) {
        let Ok(mut state) = self.state.try_lock() else {
            return;
        };
        self.advance(&mut state, model, now_ps);
        if let Some(table) = table {
            let memory = Space {
                engine: self,
                model,
                table,
            };
            self.publish(&mut state, &memory, now_ps);
        }
    }

    /// Takes what is new in a ring. `None`: it is no ring.
    fn submit(
        &self,
        state: &mut State,
        memory: &Space<'_>,
        address: u64,
        now_ps: u64,
    ) -> Option<u64> {
        if !address.is_multiple_of(ring::BYTES as u64) || address >> 47 != 0 {
            return None;
        }
        let header = |field: usize| memory.word(address + field as u64, Want::Write);
        if header(ring::MAGIC)?.load(Relaxed) != layout::MAGIC {
            return None;
        }
        let present = header(ring::PRESENT)?;
        let entries = header(ring::ENTRIES)?.load(Relaxed) as usize;
        let fits = entries.is_power_of_two() && entries <= self.config.descriptors as usize;
        let key = (memory.table, address);
        if present.load(Relaxed) == 0 {
            self.describe(memory, address)?;
            if !fits {
                return None;
            }
            self.make_room(state);
            state.opened += 1;
            let replaced = state.rings.insert(key, Ring::new(entries, state.opened));
            self.forget(replaced);
            header(ring::TAIL)?.store(0, Relaxed);
        }
        let ring = state
            .rings
            .get(&key)
            .filter(|ring| ring.entries == entries)?;
        let tail = header(ring::TAIL)?.load(Relaxed);
        let free = (entries - ring.running - ring.complete.len()) as u64;
        let count = tail.wrapping_sub(ring.taken).min(free);
        let (first, serial) = (ring.taken, ring.serial);
        let mut spent_ps = 0.0;
        for number in first..first + count {
            let place = number as usize % entries;
            let at = address + descriptor::at(place) as u64;
            let field = |field: usize| {
                let word = memory.word(at + field as u64, Want::Read)?;
                Some(word.load(Relaxed))
            };
            let (bytes, operation) = (field(descriptor::SIZE)?, field(descriptor::OPERATION)?);
            let (source, target) = (field(descriptor::SOURCE)?, field(descriptor::TARGET)?);
            let (mut outcome, mut parts) = match operation {
                descriptor::COPY => memory.parts(source, target, bytes),
                _ => (refused(), Vec::new()),
            };
            let most = u64::from(self.config.descriptors);
            let mut elements = self.elements_of(&parts);
            if elements.len() as u64 > most {
                (outcome, parts, elements) = (refused(), Vec::new(), Vec::new());
            }
            if elements.len() as u64 + state.elements.used > most {
                break; // taken when others are done and the doorbell rings again
            }
            outcome.place = place;
            outcome.elements = elements.len() as u64;
            let new = state.elements.take(&elements, most);
            let reused = outcome.elements - new;
            let config = &self.config;
            let price_ns = config.descriptor_ns * new as f64 + config.reuse_ns * reused as f64;
            spent_ps += price_ns * 1000.0;
            let transfer = Transfer {
                ring: key,
                serial,
                outcome,
                from_ps: now_ps + spent_ps as u64,
                runs: memory.perform(&parts),
                elements,
            };
            let ring = state.rings.get_mut(&key)?;
            ring.taken += 1;
            ring.running += 1;
            self.under_way.fetch_add(1, Relaxed);
            let backlog = |channel: &&mut Channel| {
                let waiting: u64 = channel.queue.iter().map(Transfer::bytes).sum();
                (channel.free_ps.max(now_ps), waiting)
            };
            if let Some(channel) = state.channels.iter_mut().min_by_key(backlog) {
                channel.queue.push_back(transfer);
            }
        }
        let taken = state.rings.get(&key)?.taken;
        header(ring::TAKEN)?.store(taken, Release);
        Some(spent_ps as u64)
    }

    /// Bytes of each element that a copy takes.
    fn elements_of(&self, parts: &[Part]) -> Vec<u64> {
        let sizes = parts.iter().map(|part| part.run.bytes);
        match self.config.per_page {
            true => sizes.collect(),
            false => vec![sizes.sum()],
        }
    }

    /// Tells what the engine is: opens a ring.
    fn describe(&self, memory: &Space<'_>, address: u64) -> Option<()> {
        let config = &self.config;
        let words = [
            (ring::TAKEN, 0),
            (ring::CHANNELS, u64::from(config.channels)),
            (ring::BANDWIDTH_MBS, (config.bandwidth_gbs * 1000.0) as u64),
            (ring::SETUP_NS, config.setup_ns as u64),
            (ring::DESCRIPTORS, u64::from(config.descriptors)),
            (ring::ELEMENT_NS, config.descriptor_ns as u64),
            (ring::REUSE_NS, config.reuse_ns as u64),
            (ring::PER_PAGE, u64::from(config.per_page)),
            (ring::PRESENT, layout::VERSION),
        ];
        for (field, value) in words {
            let word = memory.word(address + field as u64, Want::Write)?;
            word.store(value, Release);
        }
        Some(())
    }

    /// Forgets rings at rest where there are too many.
    fn make_room(&self, state: &mut State) {
        if state.rings.len() >= RINGS {
            let mut forgotten = 0;
            state.rings.retain(|_, ring| {
                let stays = ring.running > 0;
                forgotten += if stays { 0 } else { ring.complete.len() };
                stays
            });
            self.under_way.fetch_sub(forgotten, Relaxed);
        }
    }

    /// A ring is gone: what is complete is told to nobody; what runs ends by itself.
    fn forget(&self, ring: Option<Ring>) {
        if let Some(ring) = ring {
            self.under_way.fetch_sub(ring.complete.len(), Relaxed);
        }
    }

    /// Takes every channel up to this time, the earliest first.
    fn advance(&self, state: &mut State, model: &Model, now_ps: u64) {
        loop {
            let due = |channel: &&mut Channel| {
                let from_ps = channel.queue.front().map(|first| first.from_ps);
                from_ps.is_some_and(|from_ps| from_ps.max(channel.free_ps) < now_ps)
            };
            let earliest = |channel: &&mut Channel| channel.free_ps;
            let Some(channel) = (state.channels.iter_mut().filter(due)).min_by_key(earliest) else {
                return;
            };
            let Some(ended) = self.step(channel, model) else {
                continue;
            };
            state.elements.give_back(&ended.elements);
            match state.rings.get_mut(&ended.ring) {
                Some(ring) if ring.serial == ended.serial => {
                    ring.running -= 1;
                    ring.complete.push(ended.outcome);
                }
                _ => {
                    self.under_way.fetch_sub(1, Relaxed);
                }
            }
        }
    }

    /// A channel begins its first transfer, or moves a part of it; the transfer, once it is done.
    fn step(&self, channel: &mut Channel, model: &Model) -> Option<Transfer> {
        let transfer = channel.queue.front_mut()?;
        if !channel.started {
            channel.started = true;
            let setup_ps = (self.config.setup_ns * 1000.0) as u64;
            channel.free_ps = channel.free_ps.max(transfer.from_ps) + setup_ps;
        }
        if let Some(run) = transfer.runs.front_mut() {
            let bytes = run.bytes.min(PART_BYTES);
            let until_ps =
                channel.free_ps + (bytes as f64 * 1000.0 / self.config.bandwidth_gbs) as u64;
            let delay_ps = post(model, run, bytes, channel.free_ps, until_ps);
            channel.free_ps = until_ps + delay_ps;
            run.bytes -= bytes;
            if run.bytes == 0 {
                transfer.runs.pop_front();
            }
        }
        if !transfer.runs.is_empty() {
            return None;
        }
        channel.started = false;
        transfer.outcome.time_ps = channel.free_ps;
        channel.queue.pop_front()
    }

    /// Writes the records of this address space that are due.
    fn publish(&self, state: &mut State, memory: &Space<'_>, now_ps: u64) {
        let own = |(key, _): &(&Key, &mut Ring)| key.0 == memory.table;
        for (&(_, address), ring) in state.rings.iter_mut().filter(own) {
            let entries = ring.entries;
            ring.complete.retain(|outcome| {
                if outcome.time_ps > now_ps {
                    return true;
                }
                // Where the ring's pages are gone, nobody waits for it.
                let _ = memory.tell(address, entries, outcome);
                self.under_way.fetch_sub(1, Relaxed);
                false
            });
        }
    }
}

impl Ring {
    fn new(entries: usize, serial: u64) -> Self {
        Self {
            serial,
            entries,
            taken: 0,
            running: 0,
            complete: Vec::new(),
        }
    }
}

impl Transfer {
    fn bytes(&self) -> u64 {
        self.runs.iter().map(|run| run.bytes).sum()
    }
}

fn refused() -> Outcome {
    Outcome {
        status: record::REFUSED,
        ..Outcome::default()
    }
}

/// Books a part on both nodes and on the links between them: the engine is at the target, reads
/// from the source and writes at home.
fn post(model: &Model, run: &Run, bytes: u64, from_ps: u64, until_ps: u64) -> u64 {
    let lines = (bytes >> model.line_shift).max(1) as u32;
    let mut traffic = Traffic::default();
    traffic.read[run.from] = lines;
    traffic.written[run.to] = lines;
    let (load, machine) = (&model.load, &model.machine);
    load.post(machine, run.to, &traffic, from_ps, until_ps)
}

/// A program's memory, as the engine reaches it.
struct Space<'a> {
    engine: &'a Engine,
    model: &'a Model,
    table: u64,
}

impl Space<'_> {
    /// A word of physical memory.
    fn physical(&self, paddr: u64) -> Option<&AtomicU64> {
        let (node, offset) = self.model.place(paddr)?;
        self.engine.ram.word(node, offset)
    }

    fn walk(&self, vaddr: u64, want: Want) -> Result<crate::walk::Found, Refusal> {
        walk(|at| self.physical(at), self.table, vaddr, want)
    }

    /// A word of the program's.
    fn word(&self, vaddr: u64, want: Want) -> Option<&AtomicU64> {
        let found = self.walk(vaddr, want).ok()?;
        if want == Want::Write {
            self.overwrite(found.paddr, 8);
        }
        self.physical(found.paddr)
    }

    /// Nobody's cache holds these bytes any more.
    fn overwrite(&self, paddr: u64, bytes: u64) {
        if let Some((first, _)) = self.model.locate(paddr)
            && let Some((last, _)) = self.model.locate(paddr + bytes - 1)
        {
            (first..=last).for_each(|line| self.model.overwrite(line));
        }
    }

    /// The parts of a copy as far as pages are there, and what its record will say.
    fn parts(&self, source: u64, target: u64, bytes: u64) -> (Outcome, Vec<Part>) {
        let mut parts = Vec::new();
        let ends = (source.checked_add(bytes), target.checked_add(bytes));
        let (Some(source_end), Some(target_end)) = ends else {
            return (refused(), parts);
        };
        if bytes > layout::MOST_BYTES || source < target_end && target < source_end {
            return (refused(), parts);
        }
        let mut done = 0;
        let ended = |status, done, fault| Outcome {
            status,
            done,
            fault,
            ..Outcome::default()
        };
        while done < bytes {
            let (from, to) = (source + done, target + done);
            let read = match self.walk(from, Want::Read) {
                Ok(found) => found,
                Err(_) => return (ended(record::FAULT_SOURCE, done, from), parts),
            };
            let written = match self.walk(to, Want::Write) {
                Ok(found) => found,
                Err(Refusal::Absent) => return (ended(record::FAULT_TARGET, done, to), parts),
                Err(Refusal::Executable) => return (ended(record::EXECUTABLE, done, to), parts),
            };
            let bytes = read.bytes.min(written.bytes).min(bytes - done);
            let place = |paddr| {
                let (node, offset) = self.model.place(paddr)?;
                Some((node, self.engine.ram.at(node, offset, bytes)?))
            };
            let Some((from_node, from_bytes)) = place(read.paddr) else {
                return (ended(record::FAULT_SOURCE, done, from), parts);
            };
            let Some((to_node, to_bytes)) = place(written.paddr) else {
                return (ended(record::FAULT_TARGET, done, to), parts);
            };
            parts.push(Part {
                from: from_bytes,
                to: to_bytes,
                to_paddr: written.paddr,
                run: Run {
                    from: from_node,
                    to: to_node,
                    bytes,
                },
            });
            done += bytes;
        }
        (ended(record::COPIED, done, 0), parts)
    }

    /// Copies them; what went where.
    fn perform(&self, parts: &[Part]) -> VecDeque<Run> {
        let mut runs: VecDeque<Run> = VecDeque::new();
        for part in parts {
            let bytes = part.run.bytes;
            // SAFETY: both are of so many bytes within mappings that stay; the guest's accesses
            // race with this as with a device's.
            unsafe { std::ptr::copy(part.from, part.to, bytes as usize) };
            self.overwrite(part.to_paddr, bytes);
            match runs.back_mut() {
                Some(last) if (last.from, last.to) == (part.run.from, part.run.to) => {
                    last.bytes += bytes;
                }
                _ => runs.push_back(part.run),
            }
        }
        runs
    }

    /// Writes a completion record, where the ring is still there: another program may have come
    /// by the page table of one that has ended.
    fn tell(&self, ring: u64, entries: usize, outcome: &Outcome) -> Option<()> {
        let header = |field: usize| self.word(ring + field as u64, Want::Read);
        let is_open = header(ring::MAGIC)?.load(Relaxed) == layout::MAGIC
            && header(ring::PRESENT)?.load(Relaxed) == layout::VERSION
            && header(ring::ENTRIES)?.load(Relaxed) == entries as u64;
        if !is_open {
            return None;
        }
        let at = ring + record::at(entries, outcome.place) as u64;
        let words = [
            (record::DONE, outcome.done),
            (record::FAULT, outcome.fault),
            (record::TIME_NS, outcome.time_ps / 1000),
            (record::ELEMENTS, outcome.elements),
            (record::STATUS, outcome.status),
        ];
        for (field, value) in words {
            let word = self.word(at + field as u64, Want::Write)?;
            word.store(value, Release);
        }
        Some(())
    }
}

#[cfg(test)]
mod tests;
