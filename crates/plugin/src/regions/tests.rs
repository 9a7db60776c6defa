use super::*;
use hither_core::opium::transaction::{self, FILLS, READ, WRITE};

/// A device whose first filter counts these of 16 lines from 0x1000 on, two lines each.
struct Rig {
    device: Device,
    regions: Regions,
    sequence: u32,
}

impl Rig {
    fn new(types: u32) -> Self {
        let rig = Self {
            device: Device::map(None).unwrap(),
            regions: Regions::default(),
            sequence: 0,
        };
        let at = control::FILTERS;
        rig.device.set(at + filter::START, 0x1000);
        rig.device.set(at + filter::END, 0x1400);
        for (field, value) in [
            (filter::SHIFT, 7),
            (filter::BASE_COUNTER, 100),
            (filter::TYPES, types),
            (filter::NODE, filter::ANY_NODE),
            (filter::EPOCH, 1),
            (filter::FLAGS, filter::ENABLED),
        ] {
            rig.put(at + field, value);
        }
        rig
    }

    fn put(&self, at: usize, value: u32) {
        self.device.u32(at).store(value, Relaxed);
    }

    fn refresh(&mut self) {
        self.sequence += 1;
        self.regions.refresh(&self.device, self.sequence, 64);
    }

    /// A transaction of node 0's memory.
    fn count(&self, paddr: u64, kind: u32, requester: usize) {
        self.count_of(paddr, kind, 0, requester);
    }

    fn count_of(&self, paddr: u64, kind: u32, home: usize, requester: usize) {
        let what = Transaction {
            paddr,
            kind,
            kernel: false,
            home,
            requester,
        };
        self.regions.active.count(&self.device, &what);
    }

    fn counter(&self, counter: usize, node: usize) -> u32 {
        let at = opium::COUNTER_BASE + (counter * opium::MAX_NODES + node) * 4;
        self.device.u32(at).load(Relaxed)
    }

    fn secondary(&self, index: usize) -> [u64; 3] {
        let at = secondary::COUNTS + secondary::COUNTS_STRIDE * index;
        [0, 8, secondary::SUM].map(|word| self.device.get(at + word))
    }

    fn notices(&self) -> Vec<u64> {
        let count = self.device.get(notice::SEQUENCE) as usize;
        (0..count)
            .map(|n| self.device.get(notice::WORDS + 8 * (n % notice::CAPACITY)))
            .collect()
    }
}

#[test]
fn a_filter_counts_its_types_by_place_and_requester() {
    let mut rig = Rig::new(READ | transaction::WRITE_BACK);
    rig.refresh();
    assert!(!rig.regions.active.is_off());
    rig.count(0x1000, READ, 0);
    rig.count(0x107f, READ, 1);
    rig.count(0x1080, READ, 1);
    rig.count(0x13c0, transaction::WRITE_BACK, 1);
    for kind in [
        WRITE,
        transaction::PREFETCH,
        transaction::TRANSFER,
        transaction::OWNERSHIP,
    ] {
        rig.count(0x1000, kind, 0);
    }
    rig.count(0xfff, READ, 0);
    rig.count(0x1400, READ, 0);
    let counts = |counter| [rig.counter(counter, 0), rig.counter(counter, 1)];
    assert_eq!(
        [counts(100), counts(101), counts(107)],
        [[1, 1], [0, 1], [0, 1]]
    );
    assert_eq!(counts(108), [0, 0]);
}

#[test]
fn directions_are_seen_from_a_node() {
    // Who asks whom, and from which directions of node 1, and of any node, it is counted.
    let cases = [
        ((0, 0), [0, filter::LOCAL]),
        ((1, 1), [filter::LOCAL, filter::LOCAL]),
        ((1, 0), [filter::INBOUND, filter::REMOTE]),
        ((0, 1), [filter::OUTBOUND, filter::REMOTE]),
        ((2, 0), [0, filter::REMOTE]),
    ];
    for ((home, requester), seen) in cases {
        for (node, seen) in [1, filter::ANY_NODE].into_iter().zip(seen) {
            for directions in 0..8 {
                let mut rig = Rig::new(FILLS);
                rig.put(control::FILTERS + filter::NODE, node);
                rig.put(control::FILTERS + filter::DIRECTIONS, directions);
                rig.refresh();
                rig.count_of(0x1000, READ, home, requester);
                let wanted = match directions {
                    0 => seen != 0,
                    _ => seen & directions != 0,
                };
                assert_eq!(
                    rig.counter(100, requester),
                    u32::from(wanted),
                    "{home} {requester} node {node} directions {directions}"
                );
            }
        }
    }
}

#[test]
fn secondary_counters_count_along_what_is_of_their_types() {
    let mut rig = Rig::new(READ | WRITE);
    // A second filter, of the next 16 lines; both are in the set of the first counter, one in the second's.
    let second = control::FILTERS + 64;
    for field in (0..64).step_by(4) {
        let word = rig.device.u32(control::FILTERS + field).load(Relaxed);
        rig.put(second + field, word);
    }
    rig.device.set(second + filter::START, 0x1400);
    rig.device.set(second + filter::END, 0x1800);
    rig.put(second + filter::BASE_COUNTER, 200);
    for (index, set, types) in [(0, 3, WRITE), (5, 2, FILLS)] {
        let at = control::SECONDARIES + 32 * index;
        rig.put(at + secondary::FILTERS, set);
        rig.put(at + secondary::TYPES, types);
        rig.put(at + secondary::FLAGS, filter::ENABLED);
        rig.put(at + secondary::EPOCH, 1);
    }
    rig.refresh();
    for (paddr, kind, requester) in [
        (0x1000, READ, 0),
        (0x1000, WRITE, 0),
        (0x1400, WRITE, 1),
        (0x1400, READ, 1),
        // No filter counts it, so that nobody counts along.
        (0x1400, transaction::PREFETCH, 1),
    ] {
        rig.count(paddr, kind, requester);
    }
    assert_eq!(rig.secondary(0), [1, 1, 2]);
    assert_eq!(rig.secondary(5), [0, 2, 2]);
    // Another epoch clears one, and nothing else.
    rig.put(control::SECONDARIES + secondary::EPOCH, 2);
    rig.refresh();
    assert_eq!((rig.secondary(0), rig.secondary(5)), ([0; 3], [0, 2, 2]));
    assert_eq!((rig.counter(100, 0), rig.counter(200, 1)), (2, 2));
}

#[test]
fn thresholds_are_told_once_with_who_reached_them() {
    let mut rig = Rig::new(FILLS);
    rig.put(control::FILTERS + filter::THRESHOLD, 3);
    let at = control::SECONDARIES + 32 * 4;
    rig.put(at + secondary::FILTERS, 1);
    rig.put(at + secondary::TYPES, FILLS);
    rig.put(at + secondary::FLAGS, filter::ENABLED);
    rig.device.set(at + secondary::THRESHOLD, 5);
    rig.refresh();
    for turn in 0..4 {
        rig.count(0x1100, READ, 1);
        if turn == 2 {
            rig.count(0x1100, READ, 0);
        }
    }
    rig.count(0x1100, READ, 1);
    let of = |number: u64, index: u64, requester: u64, rest: u64| {
        number << 32 | requester << 26 | index << 20 | rest
    };
    let wanted = [of(1, 0, 1, 102), of(2, 4, 1, notice::SECONDARY)];
    assert_eq!(rig.notices(), wanted);
    let counter = 102;
    let fired = rig.device.get(opium::FIRED + counter / 64 * 8);
    assert_eq!(fired, 1 << (102 % 64));
    // A new epoch begins anew.
    rig.put(control::FILTERS + filter::EPOCH, 2);
    rig.refresh();
    (0..3).for_each(|_| rig.count(0x1100, READ, 0));
    assert_eq!(rig.notices()[2], of(3, 0, 0, 102));
}

#[test]
fn nonsense_is_left_out() {
    for (field, value) in [
        (filter::SHIFT, 5),
        (filter::SHIFT, 22),
        (filter::BASE_COUNTER, opium::COUNTERS as u32 - 7),
        (filter::BASE_COUNTER, u32::MAX),
        (filter::FLAGS, 0),
    ] {
        let mut rig = Rig::new(FILLS);
        rig.put(control::FILTERS + field, value);
        rig.refresh();
        assert!(rig.regions.active.is_off(), "field {field} {value}");
    }
    let mut rig = Rig::new(FILLS);
    rig.device.set(control::FILTERS + filter::END, 0x1000);
    rig.refresh();
    assert!(rig.regions.active.is_off());
}
