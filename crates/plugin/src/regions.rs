//! Region filters of the device: counters of the accesses to ranges of memory that the guest asked
//! for (`hither_core::opium::filter`).

use crate::device::Device;
use crate::vcpu::Fill;
use hither_core::opium::{self, control, filter};
use std::sync::atomic::Ordering::Relaxed;

/// One active filter of the device.
#[derive(Clone, Copy)]
pub struct Region {
    index: usize,
    flags: u32,
    shift: u32,
    start: u64,
    end: u64,
    base: usize,
    threshold: u32,
    secondary: u32,
}

/// The filters as last read from the control page.
#[derive(Default)]
pub struct Regions {
    sequence: u32,
    /// Those that count.
    pub active: Vec<Region>,
}

impl Regions {
    /// Reads the control page again where the guest changed it, clearing what it asks to clear.
    /// Fields out of range leave that filter out: the guest must not be able to hurt us.
    pub fn refresh(&mut self, device: &Device, sequence: u32, line_bytes: u32) {
        if self.sequence == sequence {
            return;
        }
        self.sequence = sequence;
        self.active.clear();
        for index in 0..opium::FILTERS {
            let at = control::FILTERS + 64 * index;
            let word = |field: usize| device.u32(at + field).load(Relaxed);
            let read = Region {
                index,
                flags: word(filter::FLAGS),
                shift: word(filter::SHIFT),
                start: device.get(at + filter::START),
                end: device.get(at + filter::END),
                base: word(filter::BASE_COUNTER) as usize,
                threshold: word(filter::THRESHOLD),
                secondary: word(filter::SECONDARY),
            };
            let sane =
                (line_bytes.trailing_zeros()..=21).contains(&read.shift) && read.start < read.end;
            if read.flags & filter::ENABLED == 0 || !sane {
                continue;
            }
            let regions = (read.end - read.start).div_ceil(1 << read.shift);
            let Some(end) = usize::try_from(regions)
                .ok()
                .and_then(|n| n.checked_add(read.base))
            else {
                continue;
            };
            if end > opium::COUNTERS {
                continue;
            }
            if read.flags & filter::CLEAR != 0 {
                clear(device, index, read.base, end);
            }
            self.active.push(read);
        }
    }
}

fn clear(device: &Device, index: usize, from: usize, to: usize) {
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
    for node in 0..opium::MAX_NODES {
        device.set(opium::SECONDARY + (index * opium::MAX_NODES + node) * 8, 0);
    }
}

impl Region {
    /// Counts a fill, or a transfer, that `requester`'s node asked for, where it lies in the region
    /// and is of the kind that the filter counts.
    #[inline]
    pub fn count(&self, device: &Device, fill: &Fill<'_>, requester: usize, transfer: bool) {
        let wanted = self.flags & filter::TRANSFERS != 0;
        if self.flags & filter::USER != 0 && fill.kernel {
            return;
        }
        if wanted != transfer || !(self.start..self.end).contains(&fill.paddr) {
            return;
        }
        let direction = if fill.store {
            filter::WRITES
        } else {
            filter::READS
        };
        if self.secondary & direction != 0 {
            let at = opium::SECONDARY + (self.index * opium::MAX_NODES + requester) * 8;
            device.u64(at).fetch_add(1, Relaxed);
        }
        if self.flags & direction == 0 {
            return;
        }
        let counter = self.base + ((fill.paddr - self.start) >> self.shift) as usize;
        let at = opium::COUNTER_BASE + (counter * opium::MAX_NODES + requester) * 4;
        let now = device.u32(at).fetch_add(1, Relaxed).wrapping_add(1);
        if now == self.threshold {
            device
                .u64(opium::FIRED + (counter >> 6) * 8)
                .fetch_or(1 << (counter & 63), Relaxed);
        }
    }
}
