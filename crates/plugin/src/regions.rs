//! Filters and secondary counters of the device: counts of the transactions on ranges of memory that the guest asked
//! for (`hither_core::opium::{filter, secondary, notice}`). Where nobody asked, a transaction costs the look at an empty
//! list.

use crate::device::Device;
use hither_core::opium::{self, control, filter, notice, secondary};
use std::sync::atomic::Ordering::{Relaxed, Release};

/// A transaction, as filters see it.
#[derive(Clone, Copy, Debug)]
pub struct Transaction {
    /// Physical address.
    pub paddr: u64,
    /// Its bit of `hither_core::opium::transaction`.
    pub kind: u32,
    /// Asked for in kernel mode?
    pub kernel: bool,
    /// Node position of the memory.
    pub home: usize,
    /// Node position of whoever asked.
    pub requester: usize,
}

/// One active filter of the device.
#[derive(Clone, Copy)]
struct Region {
    index: usize,
    types: u32,
    user_only: bool,
    /// Bit r for requesting node r, by the memory's node: what its directions let through.
    let_through: [u8; opium::MAX_NODES],
    shift: u32,
    start: u64,
    end: u64,
    base: usize,
    threshold: u32,
    /// Bit s for secondary counter s that counts along.
    shadows: u32,
}

/// One active secondary counter.
#[derive(Clone, Copy, Default)]
struct Secondary {
    types: u32,
    threshold: u64,
}

/// What counts.
#[derive(Clone, Default)]
pub struct Watch {
    regions: Vec<Region>,
    secondaries: [Secondary; opium::SECONDARIES],
}

/// Filters and secondary counters as last read from the control page.
#[derive(Default)]
pub struct Regions {
    sequence: u32,
    filter_epochs: [u32; opium::FILTERS],
    secondary_epochs: [u32; opium::SECONDARIES],
    /// Those that count.
    pub active: Watch,
}

impl Regions {
    /// Reads the control page again where the guest changed it, clearing what it asks to clear.
    /// Fields out of range leave that filter out: the guest must not be able to hurt us.
    pub fn refresh(&mut self, device: &Device, sequence: u32, line_bytes: u32) {
        if self.sequence == sequence {
            return;
        }
        self.sequence = sequence;
        self.active = Watch::default();
        let mut shadows = [0; opium::FILTERS];
        for index in 0..opium::SECONDARIES {
            self.read_secondary(device, index, &mut shadows);
        }
        for (index, shadows) in shadows.into_iter().enumerate() {
            let epoch = device
                .u32(control::FILTERS + 64 * index + filter::EPOCH)
                .load(Relaxed);
            let is_new = std::mem::replace(&mut self.filter_epochs[index], epoch) != epoch;
            if let Some((region, end)) = read_filter(device, index, shadows, line_bytes) {
                if is_new {
                    clear(device, region.base, end);
                }
                self.active.regions.push(region);
            }
        }
    }

    fn read_secondary(
        &mut self,
        device: &Device,
        index: usize,
        shadows: &mut [u32; opium::FILTERS],
    ) {
        let at = control::SECONDARIES + 32 * index;
        let word = |field: usize| device.u32(at + field).load(Relaxed);
        let epoch = word(secondary::EPOCH);
        if std::mem::replace(&mut self.secondary_epochs[index], epoch) != epoch {
            let counts = secondary::COUNTS + secondary::COUNTS_STRIDE * index;
            (0..=secondary::SUM)
                .step_by(8)
                .for_each(|word| device.set(counts + word, 0));
        }
        if word(secondary::FLAGS) & filter::ENABLED == 0 {
            return;
        }
        let set = word(secondary::FILTERS);
        for (filter, shadows) in shadows.iter_mut().enumerate() {
            *shadows |= (set >> filter & 1) << index;
        }
        self.active.secondaries[index] = Secondary {
            types: word(secondary::TYPES),
            threshold: device.get(at + secondary::THRESHOLD),
        };
    }
}

/// A filter that counts, with the end of its counters; `None` where it does not, or its fields make no sense.
fn read_filter(
    device: &Device,
    index: usize,
    shadows: u32,
    line_bytes: u32,
) -> Option<(Region, usize)> {
    let at = control::FILTERS + 64 * index;
    let word = |field: usize| device.u32(at + field).load(Relaxed);
    let flags = word(filter::FLAGS);
    let (shift, base) = (word(filter::SHIFT), word(filter::BASE_COUNTER) as usize);
    let (start, end) = (device.get(at + filter::START), device.get(at + filter::END));
    let sane = (line_bytes.trailing_zeros()..=filter::MAX_SHIFT).contains(&shift) && start < end;
    if flags & filter::ENABLED == 0 || !sane {
        return None;
    }
    let count = usize::try_from((end - start).div_ceil(1 << shift)).ok()?;
    let last = count
        .checked_add(base)
        .filter(|&last| last <= opium::COUNTERS)?;
    let region = Region {
        index,
        types: word(filter::TYPES),
        user_only: flags & filter::USER != 0,
        let_through: let_through(word(filter::NODE), word(filter::DIRECTIONS)),
        shift,
        start,
        end,
        base,
        threshold: word(filter::THRESHOLD),
        shadows,
    };
    Some((region, last))
}

/// Which requesting nodes' transactions the directions of a node let through, by the memory's node.
fn let_through(node: u32, directions: u32) -> [u8; opium::MAX_NODES] {
    let node = (node != filter::ANY_NODE).then_some(node as usize);
    std::array::from_fn(|home| {
        (0..opium::MAX_NODES).fold(0, |mask, requester| {
            let passes = filter::lets_through(directions, node, requester, home);
            mask | u8::from(passes) << requester
        })
    })
}

fn clear(device: &Device, from: usize, to: usize) {
    for counter in from..to {
        for node in 0..opium::MAX_NODES {
            device
                .u32(opium::COUNTER_BASE + (counter * opium::MAX_NODES + node) * 4)
                .store(0, Relaxed);
        }
        device
            .u64(opium::FIRED + (counter >> 6) * 8)
            .fetch_and(!(1 << (counter & 63)), Relaxed);
    }
}

/// Tells whoever waits that a counter reached its threshold.
#[inline(never)]
fn notify(device: &Device, what: u64, requester: usize) {
    let number = device.u64(notice::SEQUENCE).fetch_add(1, Relaxed) + 1;
    let slot = (number - 1) as usize % notice::CAPACITY;
    let word =
        number << notice::NUMBER_SHIFT | (requester as u64) << notice::REQUESTER_SHIFT | what;
    device.u64(notice::WORDS + 8 * slot).store(word, Release);
}

impl Watch {
    /// Does nothing count?
    #[inline(always)]
    pub fn is_off(&self) -> bool {
        self.regions.is_empty()
    }

    /// Counts a transaction in every filter that it matches, and in what counts along.
    #[inline(never)]
    pub fn count(&self, device: &Device, what: &Transaction) {
        for region in &self.regions {
            if region.matches(what) {
                region.count(device, what);
                self.count_along(device, region, what);
            }
        }
    }

    fn count_along(&self, device: &Device, region: &Region, what: &Transaction) {
        let mut left = region.shadows;
        while left != 0 {
            let index = left.trailing_zeros() as usize;
            left &= left - 1;
            let counter = &self.secondaries[index];
            if counter.types & what.kind == 0 {
                continue;
            }
            let counts = secondary::COUNTS + secondary::COUNTS_STRIDE * index;
            device
                .u64(counts + 8 * what.requester)
                .fetch_add(1, Relaxed);
            let sum = device.u64(counts + secondary::SUM).fetch_add(1, Relaxed) + 1;
            if sum == counter.threshold {
                let index = (index as u64) << notice::INDEX_SHIFT;
                notify(device, notice::SECONDARY | index, what.requester);
            }
        }
    }
}

impl Region {
    #[inline]
    fn matches(&self, what: &Transaction) -> bool {
        (self.start..self.end).contains(&what.paddr)
            && self.types & what.kind != 0
            && self.let_through[what.home] >> what.requester & 1 != 0
            && !(self.user_only && what.kernel)
    }

    fn count(&self, device: &Device, what: &Transaction) {
        let counter = self.base + ((what.paddr - self.start) >> self.shift) as usize;
        let at = opium::COUNTER_BASE + (counter * opium::MAX_NODES + what.requester) * 4;
        let now = device.u32(at).fetch_add(1, Relaxed).wrapping_add(1);
        if now == self.threshold {
            device
                .u64(opium::FIRED + (counter >> 6) * 8)
                .fetch_or(1 << (counter & 63), Relaxed);
            let index = (self.index as u64) << notice::INDEX_SHIFT;
            notify(device, index | counter as u64, what.requester);
        }
    }
}

#[cfg(test)]
mod tests;
