//! Where a sampled access was served: the word `PERF_SAMPLE_DATA_SRC`.
//!
//! Layout: `union perf_mem_data_src` of `linux/perf_event.h`, from bit 0: operation 5 bits, level
//! 14, snoop 5, lock 2, TLB 7, level number 4, remote 1, snoop extension 2, blocked 3, hops 3.
//! The first level field is the older one, a bit for each level; newer hardware fills in the
//! level's number, `remote` and `hops`. Where both are given, the newer is believed.

/// What the instruction did.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operation {
    /// A load.
    Load,
    /// A store.
    Store,
    /// A prefetch.
    Prefetch,
    /// The fetch of an instruction.
    Execute,
    /// Not told, or no access to memory at all.
    Unknown,
}

/// What served the access.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Level {
    /// First-level cache.
    L1,
    /// A line that was on its way already.
    LineFillBuffer,
    /// Second-level cache.
    L2,
    /// Third-level cache.
    L3,
    /// Fourth-level cache.
    L4,
    /// Some cache.
    AnyCache,
    /// Memory.
    Memory,
    /// Persistent memory.
    Persistent,
    /// Memory behind CXL.
    Cxl,
    /// A device.
    Device,
    /// Uncached memory.
    Uncached,
    /// Not told.
    Unknown,
}

/// How far away it was served.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Distance {
    /// By the CPU's own node, as far as the hardware tells it from another.
    Local,
    /// By another node, not told which.
    Remote,
    /// By another node of the same socket.
    SameSocket,
    /// By another socket of the same board.
    OtherSocket,
    /// By another board.
    OtherBoard,
}

/// What other caches answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Snoop {
    /// None was asked.
    None,
    /// One had the line, unchanged.
    Hit,
    /// None had it.
    Miss,
    /// One had it changed: two CPUs use the line, and one of them writes (HITM).
    Modified,
    /// One handed it on.
    Forwarded,
    /// Not told.
    Unknown,
}

/// The look-up of the address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Tlb {
    /// Found in the first level, or in one that is not named.
    Hit,
    /// Found in the second level.
    SecondLevelHit,
    /// Found by walking the page tables.
    Walked,
    /// The kernel had to help.
    Fault,
    /// Not found; not told what followed.
    Miss,
    /// Not told.
    Unknown,
}

/// The word's meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DataSource {
    /// What the instruction did.
    pub operation: Operation,
    /// What served it.
    pub level: Level,
    /// Was it found there? `None`: not told. A miss names the level that was missed.
    pub hit: Option<bool>,
    /// How far away.
    pub distance: Distance,
    /// What other caches answered.
    pub snoop: Snoop,
    /// The look-up of the address.
    pub tlb: Tlb,
    /// Was it a locked instruction? `None`: not told.
    pub locked: Option<bool>,
}

/// Bits of the older level field.
mod level_bit {
    pub const HIT: u64 = 0x02;
    pub const MISS: u64 = 0x04;
    pub const L1: u64 = 0x08;
    pub const LINE_FILL_BUFFER: u64 = 0x10;
    pub const L2: u64 = 0x20;
    pub const L3: u64 = 0x40;
    pub const LOCAL_MEMORY: u64 = 0x80;
    pub const REMOTE_MEMORY: u64 = 0x100 | 0x200;
    pub const REMOTE_CACHE: u64 = 0x400 | 0x800;
    pub const DEVICE: u64 = 0x1000;
    pub const UNCACHED: u64 = 0x2000;
}

impl DataSource {
    /// Reads the word; every value has a meaning, if only "not told".
    #[must_use]
    pub fn decode(word: u64) -> Self {
        let field = |shift: u32, bits: u32| word >> shift & ((1 << bits) - 1);
        let levels = field(5, 14);
        let level = match level_by_number(field(33, 4)) {
            Level::Unknown => level_by_bits(levels),
            level => level,
        };
        Self {
            operation: operation(field(0, 5)),
            level,
            hit: match (levels & level_bit::HIT != 0, levels & level_bit::MISS != 0) {
                (true, false) => Some(true),
                (false, true) => Some(false),
                _ => None,
            },
            distance: distance(levels, field(37, 1) == 1, field(43, 3)),
            snoop: snoop(field(19, 5), field(38, 2)),
            tlb: tlb(field(26, 7)),
            locked: match field(24, 2) {
                1 => None,
                bits => Some(bits & 2 != 0),
            },
        }
    }

    /// Was it served by memory rather than by a cache? A miss of which no more is told is not
    /// counted.
    #[must_use]
    pub fn is_memory(&self) -> bool {
        matches!(self.level, Level::Memory | Level::Persistent | Level::Cxl)
    }

    /// Did it get as far as the last cache, whether that had the line or not?
    #[must_use]
    pub fn reached_last_cache(&self) -> bool {
        self.is_memory() || matches!(self.level, Level::L3 | Level::L4)
    }

    /// Was it served by another node?
    #[must_use]
    pub fn is_remote(&self) -> bool {
        self.distance != Distance::Local
    }

    /// Did another CPU hold the line changed? Many of these on one line, at different offsets,
    /// are false sharing.
    #[must_use]
    pub fn is_modified_elsewhere(&self) -> bool {
        self.snoop == Snoop::Modified
    }
}

fn operation(bits: u64) -> Operation {
    match bits {
        bits if bits & 0x02 != 0 => Operation::Load,
        bits if bits & 0x04 != 0 => Operation::Store,
        bits if bits & 0x08 != 0 => Operation::Prefetch,
        bits if bits & 0x10 != 0 => Operation::Execute,
        _ => Operation::Unknown,
    }
}

fn level_by_number(number: u64) -> Level {
    match number {
        0x1 => Level::L1,
        0x2 => Level::L2,
        0x3 => Level::L3,
        0x4 => Level::L4,
        0x8 => Level::Uncached,
        0x9 => Level::Cxl,
        0xa => Level::Device,
        0xb => Level::AnyCache,
        0xc => Level::LineFillBuffer,
        0xd => Level::Memory,
        0xe => Level::Persistent,
        // 5 to 7 came later, for two kinds of buffers and the memory side; 15 is "not available".
        _ => Level::Unknown,
    }
}

/// The outermost level named: hardware names one, or one and the caches before it.
fn level_by_bits(bits: u64) -> Level {
    use level_bit::{
        DEVICE, L1, L2, L3, LINE_FILL_BUFFER, LOCAL_MEMORY, REMOTE_CACHE, REMOTE_MEMORY, UNCACHED,
    };
    let found = [
        (UNCACHED, Level::Uncached),
        (DEVICE, Level::Device),
        (LOCAL_MEMORY | REMOTE_MEMORY, Level::Memory),
        (REMOTE_CACHE, Level::AnyCache),
        (L3, Level::L3),
        (L2, Level::L2),
        (LINE_FILL_BUFFER, Level::LineFillBuffer),
        (L1, Level::L1),
    ];
    let found = found.iter().find(|(mask, _)| bits & mask != 0);
    found.map_or(Level::Unknown, |&(_, level)| level)
}

fn distance(levels: u64, remote: bool, hops: u64) -> Distance {
    let by_bits = levels & (level_bit::REMOTE_MEMORY | level_bit::REMOTE_CACHE) != 0;
    match hops {
        2 => Distance::SameSocket,
        3 => Distance::OtherSocket,
        4 => Distance::OtherBoard,
        // A hop count of 1 is another core of the same node.
        1 => Distance::Local,
        _ if remote || by_bits => Distance::Remote,
        _ => Distance::Local,
    }
}

fn snoop(bits: u64, more: u64) -> Snoop {
    match bits {
        bits if bits & 0x10 != 0 => Snoop::Modified,
        bits if bits & 0x04 != 0 => Snoop::Hit,
        _ if more != 0 => Snoop::Forwarded,
        // Intel says "none" and "miss" together for a line that came from memory.
        bits if bits & 0x08 != 0 => Snoop::Miss,
        bits if bits & 0x02 != 0 => Snoop::None,
        _ => Snoop::Unknown,
    }
}

fn tlb(bits: u64) -> Tlb {
    let (hit, miss) = (bits & 0x02 != 0, bits & 0x04 != 0);
    match () {
        () if bits & 0x40 != 0 => Tlb::Fault,
        // Both levels named, and a hit: either.
        () if hit && bits & 0x08 != 0 => Tlb::Hit,
        () if hit && bits & 0x10 != 0 => Tlb::SecondLevelHit,
        () if bits & 0x20 != 0 => Tlb::Walked,
        () if hit => Tlb::Hit,
        () if miss => Tlb::Miss,
        () => Tlb::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The kernel's `PERF_MEM_S`.
    const fn at(shift: u32, value: u64) -> u64 {
        value << shift
    }

    #[test]
    fn words_that_intel_hardware_gave() {
        // As published in output of `perf mem report -D`: a hit in L1, and one in L3.
        let first = DataSource::decode(0x6810_0142);
        assert_eq!(
            first,
            DataSource {
                operation: Operation::Load,
                level: Level::L1,
                hit: Some(true),
                distance: Distance::Local,
                snoop: Snoop::None,
                tlb: Tlb::Hit,
                locked: Some(false),
            }
        );
        let third = DataSource::decode(0x6810_0842);
        assert_eq!((third.level, third.hit), (Level::L3, Some(true)));
        assert!(!third.is_memory() && !third.is_remote());
    }

    #[test]
    fn memory_near_and_far_in_both_spellings() {
        let load_hit = 0x02 | at(5, 0x02);
        let old = |level| DataSource::decode(load_hit | at(5, level));
        assert!(old(0x80).is_memory() && !old(0x80).is_remote());
        for far in [0x100, 0x200] {
            assert!(old(far).is_memory() && old(far).is_remote());
        }
        let cache = old(0x400);
        assert!(!cache.is_memory() && cache.is_remote() && cache.level == Level::AnyCache);
        let new = |level, remote, hops| {
            DataSource::decode(0x02 | at(33, level) | at(37, remote) | at(43, hops))
        };
        assert!(new(0xd, 0, 0).is_memory() && !new(0xd, 0, 0).is_remote());
        assert_eq!(new(0xd, 1, 0).distance, Distance::Remote);
        assert_eq!(new(0xd, 1, 2).distance, Distance::SameSocket);
        assert_eq!(new(0xe, 1, 3).distance, Distance::OtherSocket);
        assert_eq!(new(0x9, 1, 4).distance, Distance::OtherBoard);
        assert_eq!(new(0x3, 1, 1).distance, Distance::Local);
        assert!([0x9, 0xd, 0xe].map(|level| new(level, 0, 0).is_memory()) == [true; 3]);
        // The newer field is believed: AMD names the level by number, and old bits beside it.
        let both = DataSource::decode(load_hit | at(5, 0x40) | at(33, 0xd));
        assert_eq!(both.level, Level::Memory);
    }

    #[test]
    fn lines_that_another_cpu_changed_are_told() {
        for (bits, more, expected) in [
            (0x10, 0, Snoop::Modified),
            (0x14, 0, Snoop::Modified),
            (0x04, 0, Snoop::Hit),
            (0x0a, 0, Snoop::Miss),
            (0x02, 0, Snoop::None),
            (0x01, 0, Snoop::Unknown),
            (0x00, 1, Snoop::Forwarded),
            (0x00, 2, Snoop::Forwarded),
        ] {
            let source = DataSource::decode(at(19, bits) | at(38, more));
            assert_eq!(source.snoop, expected, "{bits:#x} {more}");
            assert_eq!(source.is_modified_elsewhere(), bits & 0x10 != 0);
        }
    }

    #[test]
    fn the_look_up_and_the_lock() {
        for (bits, expected) in [
            (0x01, Tlb::Unknown),
            (0x0a, Tlb::Hit),
            (0x1a, Tlb::Hit),
            (0x12, Tlb::SecondLevelHit),
            (0x24, Tlb::Walked),
            (0x22, Tlb::Walked),
            (0x44, Tlb::Fault),
            (0x04, Tlb::Miss),
            (0x02, Tlb::Hit),
        ] {
            assert_eq!(DataSource::decode(at(26, bits)).tlb, expected, "{bits:#x}");
        }
        let lock = |bits| DataSource::decode(at(24, bits)).locked;
        assert_eq!([0, 1, 2].map(lock), [Some(false), None, Some(true)]);
    }

    #[test]
    fn operations_and_words_without_meaning() {
        for (bits, expected) in [
            (0x01, Operation::Unknown),
            (0x02, Operation::Load),
            (0x04, Operation::Store),
            (0x08, Operation::Prefetch),
            (0x10, Operation::Execute),
            (0x00, Operation::Unknown),
        ] {
            assert_eq!(DataSource::decode(bits).operation, expected);
        }
        let nothing = DataSource::decode(0);
        assert_eq!((nothing.level, nothing.hit), (Level::Unknown, None));
        let missed = DataSource::decode(0x02 | at(5, 0x44));
        assert_eq!((missed.level, missed.hit), (Level::L3, Some(false)));
        assert!(!missed.is_memory());
        let all = DataSource::decode(u64::MAX);
        assert_eq!((all.level, all.hit), (Level::Uncached, None));
    }

    proptest::proptest! {
        #[test]
        fn reserved_bits_do_not_matter(word: u64) {
            let told = word & ((1 << 46) - 1);
            proptest::prop_assert_eq!(DataSource::decode(word), DataSource::decode(told));
        }
    }
}
