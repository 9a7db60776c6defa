//! What is executed in each address space: programs' own counters, as a PMU that is switched with them has.
//!
//! A vCPU sums up in memory of its own and books the sum to the page table in force: before another one comes
//! into force, and each [`BOOKED_PS`] of its time.

use crate::device::Device;
use crate::vcpu::Score;
use hither_core::opium::{MAX_NODES, SPACES, header, space};
use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::Ordering::Relaxed;

/// Longest time between two bookings: a thousandth of the 100 ms in which programs are judged.
const BOOKED_PS: u64 = 100_000_000;

/// Which entry of the device each page table has.
#[derive(Default)]
pub struct Spaces {
    entries: Mutex<HashMap<u64, usize>>,
}

impl Spaces {
    /// Offset of a page table's entry; `None` where all entries are taken.
    fn entry(&self, device: &Device, table: u64) -> Option<usize> {
        // Nobody panics with it.
        let mut entries = self.entries.lock().ok()?;
        let next = entries.len();
        let number = *entries.entry(table).or_insert(next);
        if number >= SPACES {
            return None;
        }
        let at = space::BASE + space::STRIDE * number;
        if number == next {
            device.set(at + space::PAGE_TABLE, table);
            device.set(header::SPACE_COUNT, number as u64 + 1);
        }
        Some(at)
    }
}

/// What one vCPU has not booked yet.
#[derive(Default)]
pub struct Tally {
    /// Of the scoreboard's present words, already taken over.
    seen: (u64, u64),
    instructions: u64,
    flops: u64,
    fills: [[u64; MAX_NODES]; 3],
    references: u64,
    place: Option<(u64, u64)>,
    /// Time and stalls up to the last booking, in ps.
    booked: (u64, u64),
    /// The page table of the last booking, and its entry.
    known: Option<(u64, Option<usize>)>,
}

impl Tally {
    /// A fill in user mode.
    #[inline(always)]
    pub fn fill(&mut self, node: usize, store: bool, vaddr: u64, paddr: u64) {
        self.fills[usize::from(store)][node] += 1;
        self.place = Some((vaddr, paddr));
    }

    /// A private-cache miss in user mode.
    #[inline(always)]
    pub fn reference(&mut self) {
        self.references += 1;
    }

    /// A line written back or past the caches.
    #[inline(always)]
    pub fn write_back(&mut self, node: usize) {
        self.fills[2][node] += 1;
    }

    /// Takes over what the scoreboard has counted since the last time.
    pub fn take(&mut self, score: &Score) {
        let (user, flops) = (score.user(), score.flops);
        self.instructions += user - self.seen.0;
        self.flops += flops - self.seen.1;
        self.seen = (user, flops);
    }

    /// The same, before the scoreboard is emptied.
    pub fn take_last(&mut self, score: &Score) {
        self.take(score);
        self.seen = (0, 0);
    }

    /// Has it waited long enough at this time?
    pub fn is_due(&self, time_ps: u64) -> bool {
        time_ps.saturating_sub(self.booked.0) >= BOOKED_PS
    }

    /// Books all of it to the page table in force, which was in force since the last booking. `now`: the
    /// vCPU's time, and how much of it waited for memory.
    pub fn book(&mut self, device: &Device, spaces: &Spaces, table: u64, now: (u64, u64)) {
        let entry = match self.known {
            Some((known, entry)) if known == table => entry,
            _ => spaces.entry(device, table),
        };
        self.known = Some((table, entry));
        let since = |now: u64, before: &mut u64| {
            let change = now.saturating_sub(*before) / 1000;
            *before += change * 1000;
            change
        };
        let time_ns = since(now.0, &mut self.booked.0);
        let stall_ns = since(now.1, &mut self.booked.1);
        let instructions = std::mem::take(&mut self.instructions);
        let flops = std::mem::take(&mut self.flops);
        let references = std::mem::take(&mut self.references);
        let fills = std::mem::take(&mut self.fills);
        let Some(at) = entry else {
            return;
        };
        let add = |field: usize, by: u64| {
            if by > 0 {
                device.u64(at + field).fetch_add(by, Relaxed);
            }
        };
        add(space::INSTRUCTIONS, instructions);
        add(space::FLOPS, flops);
        add(space::TIME_NS, time_ns);
        add(space::STALL_NS, stall_ns);
        add(space::PRIVATE_MISSES, references);
        let fields = [space::READ_FILLS, space::WRITE_FILLS, space::WRITE_BACKS];
        for (field, by_node) in fields.into_iter().zip(fills) {
            for (node, by) in by_node.into_iter().enumerate() {
                add(field + 8 * node, by);
            }
        }
        if let Some((vaddr, paddr)) = self.place.take() {
            device.set(at + space::VADDR, vaddr);
            device.set(at + space::PADDR, paddr);
        }
    }

    /// Time that passed without a program, while the vCPU was halted or before it began, is nobody's.
    pub fn skip(&mut self, idle_ps: u64) {
        self.booked.0 += idle_ps;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_address_space_gets_its_own() {
        let device = Device::map(None).unwrap();
        let spaces = Spaces::default();
        let (mut one, mut other) = (Tally::default(), Tally::default());
        let mut score = Score {
            spent: 500,
            flops: 7,
            ..Score::default()
        };
        one.take(&score);
        one.fill(1, false, 0x5000, 0x9000);
        one.write_back(0);
        (0..3).for_each(|_| one.reference());
        one.book(&device, &spaces, 0x1000, (2_000_500, 1_000));
        // What was taken over is not taken again.
        score.spent += 20;
        one.take_last(&score);
        one.book(&device, &spaces, 0x2000, (3_000_500, 1_000));
        other.fill(1, true, 0x6000, 0xa000);
        other.book(&device, &spaces, 0x1000, (0, 0));
        let at = |number: usize, field| device.get(space::BASE + number * space::STRIDE + field);
        assert_eq!(device.get(header::SPACE_COUNT), 2);
        let first = [
            space::PAGE_TABLE,
            space::INSTRUCTIONS,
            space::FLOPS,
            space::TIME_NS,
            space::STALL_NS,
            space::READ_FILLS + 8,
            space::WRITE_FILLS + 8,
            space::WRITE_BACKS,
            space::PRIVATE_MISSES,
            space::VADDR,
        ];
        assert_eq!(
            first.map(|field| at(0, field)),
            [0x1000, 500, 7, 2000, 1, 1, 1, 1, 3, 0x6000]
        );
        assert_eq!(
            first.map(|field| at(1, field)),
            [0x2000, 20, 0, 1000, 0, 0, 0, 0, 0, 0]
        );
    }

    #[test]
    fn a_space_too_many_is_not_counted() {
        let device = Device::map(None).unwrap();
        let spaces = Spaces::default();
        let mut tally = Tally::default();
        for table in 0..SPACES as u64 + 2 {
            tally.write_back(0);
            tally.book(&device, &spaces, table << 12, (0, 0));
        }
        assert_eq!(device.get(header::SPACE_COUNT), SPACES as u64);
        let last = space::BASE + space::STRIDE * (SPACES - 1);
        assert_eq!(device.get(last + space::WRITE_BACKS), 1);
        assert_eq!(device.get(space::BASE + space::STRIDE * SPACES), 0);
    }
}
