//! Filters and secondary counters of the device, and the thresholds that they reach.
//!
//! They are the machine's, and one program has them at a time: who sets one claims all, by a lock on the device's file
//! that the kernel lets go of when the program ends, however it ends.

use super::OpiumDevice;
use crate::sys::SharedMap;
use hither_core::opium::{
    self as layout, MAX_NODES, control, filter, node, notice, secondary, vcpu,
};
use rustix::fs::{FlockOperation, flock};

type Outcome<T> = std::result::Result<T, String>;

/// A filter, see `hither_core::opium::filter`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Filter {
    /// First physical address.
    pub start: u64,
    /// End address (exclusive).
    pub end: u64,
    /// log2 of the granularity in bytes.
    pub shift: u32,
    /// Bits of `hither_core::opium::transaction` that it counts.
    pub types: u32,
    /// Node position whose traffic is meant; `None` is every node's.
    pub node: Option<usize>,
    /// Directions, bits of `hither_core::opium::filter`; 0 is all.
    pub directions: u32,
    /// Leave out what kernel mode asked for?
    pub user_only: bool,
    /// First counter it uses.
    pub base_counter: u32,
    /// Count of one requesting node at which a counter fires; 0 never.
    pub threshold: u32,
}

/// A secondary counter: it counts along with each filter of its set, what is of its own types.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Secondary {
    /// Its set: bit f for filter f.
    pub filters: u32,
    /// Bits of `hither_core::opium::transaction`.
    pub types: u32,
    /// Count of all nodes together at which it fires; 0 never.
    pub threshold: u64,
}

/// A threshold that was reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Notice {
    /// By which.
    pub source: Source,
    /// Node position of whoever asked for the transaction that reached it.
    pub requester: usize,
}

/// What reached a threshold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// A base counter of a filter.
    Counter {
        /// The filter.
        filter: usize,
        /// The counter.
        counter: usize,
    },
    /// A secondary counter.
    Secondary(usize),
}

/// What the machine as a whole did since boot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Packets between nodes without a line.
    pub short_packets: u64,
    /// Packets between nodes with a line.
    pub line_packets: u64,
    /// Fills and write-backs: transactions of last-level caches with memory.
    pub transactions: u64,
    /// Floating-point operations in user mode.
    pub flops: u64,
}

impl Totals {
    /// Packets between nodes.
    #[must_use]
    pub fn packets(&self) -> u64 {
        self.short_packets + self.line_packets
    }

    /// Floating-point operations for each packet; `None` where no packet crossed.
    #[must_use]
    pub fn flops_per_packet(&self) -> Option<f64> {
        (self.packets() > 0).then(|| self.flops as f64 / self.packets() as f64)
    }

    /// What was done since `before`.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        Self {
            short_packets: self.short_packets.saturating_sub(before.short_packets),
            line_packets: self.line_packets.saturating_sub(before.line_packets),
            transactions: self.transactions.saturating_sub(before.transactions),
            flops: self.flops.saturating_sub(before.flops),
        }
    }
}

impl OpiumDevice {
    /// Claims filters and secondary counters for this [`OpiumDevice`], until it is dropped, and switches all off.
    ///
    /// # Errors
    /// Another program has them.
    pub fn claim_filters(&self) -> Outcome<()> {
        flock(&self.file, FlockOperation::NonBlockingLockExclusive)
            .map_err(|_| "its filters are in use by another program that counts".to_owned())?;
        for index in 0..layout::FILTERS {
            self.map
                .write32_release(control::FILTERS + 64 * index + filter::FLAGS, 0);
        }
        for index in 0..layout::SECONDARIES {
            self.map
                .write32_release(control::SECONDARIES + 32 * index + secondary::FLAGS, 0);
        }
        self.apply();
        Ok(())
    }

    /// Has the plugin read what was set: it does within microseconds of each vCPU's time.
    fn apply(&self) {
        let sequence = self.map.read32(control::FILTER_SEQ);
        self.map
            .write32_release(control::FILTER_SEQ, sequence.wrapping_add(1));
    }

    /// Another epoch: what was counted is cleared.
    fn renew(&self, epoch: usize) {
        let next = self.map.read32(epoch).wrapping_add(1);
        self.map.write32_release(epoch, next);
    }

    /// Sets a filter up and clears its counters; `None` switches it off. Takes effect when the
    /// plugin sees the new sequence number.
    ///
    /// # Errors
    /// What is wrong with it, or its counters cannot be mapped.
    ///
    /// # Panics
    /// There is no such filter.
    pub fn set_filter(&self, index: usize, wanted: Option<Filter>) -> Outcome<()> {
        assert!(index < layout::FILTERS, "filter {index}");
        let base = control::FILTERS + 64 * index;
        // Off while the fields change, so that no half-written filter counts.
        self.map.write32_release(base + filter::FLAGS, 0);
        if let Some(wanted) = wanted {
            self.check_filter(&wanted)?;
            if self.counters.get().is_none() {
                let bytes = layout::COUNTERS * MAX_NODES * 4;
                let counters = SharedMap::at(&self.file, layout::COUNTER_BASE, bytes)
                    .map_err(|error| format!("its counters cannot be mapped ({error})"))?;
                let _ = self.counters.set(counters);
            }
            let put = |field: usize, value: u32| self.map.write32_release(base + field, value);
            put(filter::SHIFT, wanted.shift);
            self.map.write64_release(base + filter::START, wanted.start);
            self.map.write64_release(base + filter::END, wanted.end);
            put(filter::BASE_COUNTER, wanted.base_counter);
            put(filter::THRESHOLD, wanted.threshold);
            put(filter::TYPES, wanted.types);
            let node = wanted.node.map_or(filter::ANY_NODE, |node| node as u32);
            put(filter::NODE, node);
            put(filter::DIRECTIONS, wanted.directions);
            self.renew(base + filter::EPOCH);
            let user = if wanted.user_only { filter::USER } else { 0 };
            put(filter::FLAGS, filter::ENABLED | user);
        }
        self.apply();
        Ok(())
    }

    fn check_filter(&self, wanted: &Filter) -> Outcome<()> {
        let lowest = self.line_bytes.trailing_zeros();
        if !(lowest..=filter::MAX_SHIFT).contains(&wanted.shift) {
            return Err(format!(
                "granularity 2^{} is not in 2^{lowest} to 2^{}",
                wanted.shift,
                filter::MAX_SHIFT
            ));
        }
        if wanted.end <= wanted.start {
            return Err(format!(
                "range {:#x}-{:#x} is empty",
                wanted.start, wanted.end
            ));
        }
        let regions = (wanted.end - wanted.start).div_ceil(1 << wanted.shift);
        let room = (layout::COUNTERS as u64).saturating_sub(wanted.base_counter.into());
        if regions > room {
            return Err(format!(
                "{regions} regions from counter {} on exceed {} counters",
                wanted.base_counter,
                layout::COUNTERS
            ));
        }
        Ok(())
    }

    /// Sets a secondary counter up and clears it; `None` switches it off.
    ///
    /// # Panics
    /// There is no such counter.
    pub fn set_secondary(&self, index: usize, wanted: Option<Secondary>) {
        assert!(index < layout::SECONDARIES, "secondary counter {index}");
        let base = control::SECONDARIES + 32 * index;
        self.map.write32_release(base + secondary::FLAGS, 0);
        if let Some(wanted) = wanted {
            self.map
                .write32_release(base + secondary::FILTERS, wanted.filters);
            self.map
                .write32_release(base + secondary::TYPES, wanted.types);
            self.map
                .write64_release(base + secondary::THRESHOLD, wanted.threshold);
            self.renew(base + secondary::EPOCH);
            self.map
                .write32_release(base + secondary::FLAGS, filter::ENABLED);
        }
        self.apply();
    }

    /// Counts of a run of base counters, 8 requesting nodes each, two counts to a word in
    /// little-endian order: `words` holds 4 words per counter.
    ///
    /// # Panics
    /// No filter was set up by this [`OpiumDevice`] before.
    pub fn read_counters(&self, first: usize, words: &mut [u64]) {
        assert!(
            first + words.len().div_ceil(4) <= layout::COUNTERS,
            "counter {first}"
        );
        let Some(counters) = self.counters.get() else {
            panic!("counters are read before a filter counts");
        };
        counters.read_block(first * MAX_NODES * 4, words);
    }

    /// Has this base counter reached its threshold?
    #[must_use]
    pub fn fired(&self, counter: usize) -> bool {
        assert!(counter < layout::COUNTERS, "counter {counter}");
        self.map.read64(layout::FIRED + counter / 64 * 8) >> (counter % 64) & 1 == 1
    }

    /// Counts of a secondary counter, by requesting node position.
    ///
    /// # Panics
    /// There is no such counter.
    #[must_use]
    pub fn secondary(&self, index: usize) -> [u64; MAX_NODES] {
        assert!(index < layout::SECONDARIES, "secondary counter {index}");
        let counts = secondary::COUNTS + secondary::COUNTS_STRIDE * index;
        std::array::from_fn(|node| self.map.read64(counts + 8 * node))
    }

    /// How many thresholds were reached since boot, whoever asked for them.
    #[must_use]
    pub fn notice_count(&self) -> u64 {
        self.map.read64(notice::SEQUENCE)
    }

    /// The notices after the first `seen`, oldest first, and how many are seen now. Of very many the oldest are lost;
    /// whoever waits looks at the counts anyway.
    pub fn notices(&self, seen: u64) -> (Vec<Notice>, u64) {
        let count = self.notice_count();
        let first = seen.max(count.saturating_sub(notice::CAPACITY as u64));
        let mut found = Vec::new();
        for number in first + 1..=count {
            let slot = (number - 1) as usize % notice::CAPACITY;
            let word = self.map.read64_acquire(notice::WORDS + 8 * slot);
            match (word >> notice::NUMBER_SHIFT) as u32 {
                at if at == number as u32 => found.push(decode(word)),
                // Written over, as more came meanwhile; or not there yet: it is looked at again.
                at if (at.wrapping_sub(number as u32) as i32) < 0 => return (found, number - 1),
                _ => {}
            }
        }
        (found, count)
    }

    /// What the machine did since boot.
    #[must_use]
    pub fn totals(&self) -> Totals {
        let mut totals = Totals::default();
        for position in 0..self.node_ids.len() {
            let base = node::BASE + 64 * position;
            totals.short_packets += self.map.read64(base + node::SHORT_PACKETS);
            totals.line_packets += self.map.read64(base + node::LINE_PACKETS);
        }
        for index in 0..self.vcpu_count {
            let base = vcpu::BASE + index * vcpu::STRIDE;
            totals.flops += self.map.read64(base + vcpu::FLOPS);
            for position in 0..self.node_ids.len() {
                let fills = (0..4).map(|kind| vcpu::fills(kind, position));
                let words = fills.chain([vcpu::write_backs(position)]);
                totals.transactions += words.map(|word| self.map.read64(base + word)).sum::<u64>();
            }
        }
        totals
    }
}

fn decode(word: u64) -> Notice {
    let index = (word >> notice::INDEX_SHIFT & 0x1f) as usize;
    let source = match word & notice::SECONDARY {
        0 => Source::Counter {
            filter: index,
            counter: (word & ((1 << notice::COUNTER_BITS) - 1)) as usize,
        },
        _ => Source::Secondary(index),
    };
    Notice {
        source,
        requester: (word >> notice::REQUESTER_SHIFT & 7) as usize,
    }
}
