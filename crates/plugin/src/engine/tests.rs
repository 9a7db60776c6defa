use super::*;
use crate::device::Device;
use hither_core::machine::parse::parse;
use std::os::fd::{AsRawFd, FromRawFd};

const PRESENT: u64 = 1 | 2 | 4;
const NO_EXECUTE: u64 = 1 << 63;
const LARGE: u64 = 1 << 7;
/// The program's page table.
const TABLE: u64 = 0x1000;
/// Its ring, of eight descriptors: one page of header and one of the rest.
const RING: u64 = 0x10_0000;
const ENTRIES: usize = 8;
/// Small pages: 0x20_0000 on node 0, 0x30_0000 on node 1; 0x34_0000 is not there.
const SLOW: u64 = 0x12_0000;
const FAST: u64 = 0x13_0000;
const PAGES: u64 = 16;
const US: u64 = 1_000_000;

struct Bench {
    model: Model,
    engine: Engine,
    tail: u64,
}

fn memory_file(bytes: u64) -> (std::fs::File, PathBuf) {
    // SAFETY: the name is a C string; the descriptor is new and the file's alone.
    let file = unsafe {
        let fd = libc::memfd_create(c"test".as_ptr(), libc::MFD_CLOEXEC);
        assert!(fd >= 0);
        std::fs::File::from_raw_fd(fd)
    };
    file.set_len(bytes).unwrap();
    let path = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
    (file, path)
}

impl Bench {
    fn new() -> Self {
        let text = include_str!("../../../../machines/keystone2.toml");
        let mut machine = parse(text).unwrap();
        machine.nodes[0].memory_mb = 64;
        let files: Vec<_> = (machine.nodes.iter())
            .map(|node| memory_file(node.memory_mb << 20))
            .collect();
        let paths: Vec<PathBuf> = files.iter().map(|(_, path)| path.clone()).collect();
        let engine = Engine::new(&machine, &paths).unwrap().unwrap();
        let model = Model::new(machine, Device::map(None).unwrap(), 10_000, || ());
        let bench = Self {
            model,
            engine,
            tail: 0,
        };
        bench.put(0x1000, 0x2000 | PRESENT);
        bench.put(0x2000, 0x3000 | PRESENT);
        bench.put(0x3000, 0x4000 | PRESENT);
        let small = |vaddr: u64, paddr: u64| {
            bench.put(
                0x4000 + (vaddr >> 12 & 0x1ff) * 8,
                paddr | PRESENT | NO_EXECUTE,
            );
        };
        small(RING, 0x5000);
        small(RING + 0x1000, 0x6000);
        for page in 0..PAGES {
            small(SLOW + (page << 12), 0x20_0000 + (page << 12));
            small(FAST + (page << 12), (64 << 20) + (page << 12));
        }
        // Huge pages at 1 GiB: two of node 0.
        bench.put(0x2008, 0x7000 | PRESENT);
        bench.put(0x7000, 0x40_0000 | PRESENT | LARGE | NO_EXECUTE);
        bench.put(0x7008, 0x60_0000 | PRESENT | LARGE | NO_EXECUTE);
        bench.set(ring::MAGIC, layout::MAGIC);
        bench.set(ring::ENTRIES, ENTRIES as u64);
        bench
    }

    /// A physical word.
    fn word(&self, paddr: u64) -> &AtomicU64 {
        let (node, offset) = self.model.place(paddr).unwrap();
        self.engine.ram.word(node, offset).unwrap()
    }

    fn put(&self, paddr: u64, value: u64) {
        self.word(paddr).store(value, Relaxed);
    }

    /// A word of the ring, which lies in two pages.
    fn set(&self, offset: usize, value: u64) {
        self.put(0x5000 + offset as u64, value);
    }

    fn get(&self, offset: usize) -> u64 {
        self.word(0x5000 + offset as u64).load(Relaxed)
    }

    /// Submits a copy and rings; its place, and what the CPU pays.
    fn copy(&mut self, source: u64, target: u64, bytes: u64, now_ps: u64) -> (usize, u64) {
        let place = self.tail as usize % ENTRIES;
        let at = descriptor::at(place);
        self.set(at + descriptor::OPERATION, descriptor::COPY);
        self.set(at + descriptor::SIZE, bytes);
        self.set(at + descriptor::SOURCE, source);
        self.set(at + descriptor::TARGET, target);
        self.set(record::at(ENTRIES, place) + record::STATUS, 0);
        self.tail += 1;
        self.set(ring::TAIL, self.tail);
        let spent = self.engine.doorbell(&self.model, TABLE, RING, now_ps);
        (place, spent)
    }

    fn open(&self) {
        self.engine.doorbell(&self.model, TABLE, RING, 0);
        assert_eq!(self.get(ring::PRESENT), layout::VERSION);
    }

    fn look(&self, now_ps: u64) {
        self.engine.look(&self.model, TABLE, now_ps);
    }

    fn record(&self, place: usize, field: usize) -> u64 {
        self.get(record::at(ENTRIES, place) + field)
    }

    fn status(&self, place: usize) -> u64 {
        self.record(place, record::STATUS)
    }
}

#[test]
fn bytes_arrive_and_the_record_follows_when_the_time_has_come() {
    let mut bench = Bench::new();
    bench.open();
    assert_eq!(bench.get(ring::CHANNELS), 6);
    for page in 0..2u64 {
        bench.put(0x20_0000 + (page << 12) + 8, 0xabcd + page);
    }
    let (place, spent) = bench.copy(SLOW, FAST, 8192, 0);
    // Two pages, and an element for each.
    assert_eq!(spent, 2 * 4500 * 1000);
    assert_eq!(bench.word((64 << 20) + 0x1008).load(Relaxed), 0xabce);
    assert_eq!((bench.get(ring::TAKEN), bench.status(place)), (1, 0));
    // Set-up 1 us, 8192 bytes at 6.4 GB/s: 1.3 us. From 9 us on.
    bench.look(10_900_000);
    assert_eq!(bench.status(place), 0);
    bench.look(12_000_000);
    assert_eq!(bench.status(place), record::COPIED);
    assert_eq!(bench.record(place, record::DONE), 8192);
    assert_eq!(bench.record(place, record::ELEMENTS), 2);
    assert!((11_200..11_800).contains(&bench.record(place, record::TIME_NS)));
    assert!(!bench.engine.is_busy());
    // Both memories have seen it.
    let nodes = [0, 1].map(|node| {
        let base = hither_core::opium::node::BASE + 64 * node;
        bench
            .model
            .load
            .advance(&bench.model.machine, &bench.model.device, 50 * US);
        let device = &bench.model.device;
        (device.get(base), device.get(base + 8))
    });
    assert_eq!(nodes, [(8192, 0), (0, 8192)]);
}

#[test]
fn elements_that_a_transfer_left_cost_less() {
    let mut bench = Bench::new();
    bench.open();
    let mut now = 0;
    let mut spent_ns = |bench: &mut Bench, bytes| {
        now += 100 * US;
        bench.look(now);
        bench.copy(SLOW, FAST, bytes, now).1 / 1000
    };
    assert_eq!(spent_ns(&mut bench, 4 << 12), 4 * 4500);
    assert_eq!(spent_ns(&mut bench, 4 << 12), 4 * 1125);
    // A part of the chain, and one that is longer; another size.
    assert_eq!(spent_ns(&mut bench, 1 << 12), 1125);
    assert_eq!(spent_ns(&mut bench, 6 << 12), 4 * 1125 + 2 * 4500);
    assert_eq!(spent_ns(&mut bench, 512), 4500);
    assert_eq!(spent_ns(&mut bench, 6 << 12), 6 * 1125);
}

#[test]
fn elements_are_bounded() {
    let mut elements = Elements::default();
    assert_eq!(elements.take(&[4096; 6], 8), 6);
    elements.give_back(&[4096; 6]);
    // Six are at hand; of these four make room for others.
    assert_eq!(elements.take(&[512; 6], 8), 6);
    assert_eq!(elements.take(&[4096; 2], 8), 0);
    elements.give_back(&[512; 6]);
    elements.give_back(&[4096; 2]);
    assert_eq!(elements.used, 0);
    assert_eq!(elements.take(&[4096; 6], 8), 4);
}

#[test]
fn an_absent_page_ends_a_descriptor_with_what_was_done() {
    let mut bench = Bench::new();
    bench.open();
    let end = FAST + (PAGES << 12);
    bench.put(0x20_0000, 77);
    let (place, _) = bench.copy(SLOW, end - 4096, 8192, 0);
    let (source, _) = bench.copy(end, FAST, 4096, 0);
    bench.look(100 * US);
    assert_eq!(bench.status(place), record::FAULT_TARGET);
    assert_eq!(bench.record(place, record::DONE), 4096);
    assert_eq!(bench.record(place, record::FAULT), end);
    assert_eq!(bench.word((64 << 20) + 0xf000).load(Relaxed), 77);
    assert_eq!(bench.status(source), record::FAULT_SOURCE);
}

#[test]
fn pages_that_may_be_executed_are_not_written_to() {
    let mut bench = Bench::new();
    bench.open();
    bench.put(0x4000 + (FAST >> 12 & 0x1ff) * 8, (64 << 20) | PRESENT);
    bench.put(0x20_0000, 77);
    let (place, _) = bench.copy(SLOW, FAST, 4096, 0);
    bench.look(100 * US);
    assert_eq!(bench.status(place), record::EXECUTABLE);
    assert_eq!(bench.word(64 << 20).load(Relaxed), 0);
}

#[test]
fn nonsense_is_refused() {
    let mut bench = Bench::new();
    bench.open();
    for (source, target, bytes) in [
        (SLOW, SLOW + 4096, 8192),
        (SLOW, FAST, layout::MOST_BYTES + 1),
        (u64::MAX - 10, FAST, 4096),
    ] {
        let (place, _) = bench.copy(source, target, bytes, 0);
        bench.look(100 * US);
        assert_eq!(bench.status(place), record::REFUSED);
    }
    // Not rings: another place, and one without its mark.
    assert_eq!(bench.engine.doorbell(&bench.model, TABLE, SLOW, 0), 0);
    assert_eq!(bench.engine.doorbell(&bench.model, TABLE, RING + 8, 0), 0);
    assert_eq!(
        bench.engine.doorbell(&bench.model, TABLE, u64::MAX - 7, 0),
        0
    );
    assert_eq!(bench.engine.doorbell(&bench.model, 0x30_0000, RING, 0), 0);
}

#[test]
fn huge_pages_take_one_descriptor_and_the_memorys_time() {
    let mut bench = Bench::new();
    bench.open();
    bench.put(0x40_0000 + (2 << 20) - 8, 99);
    let (place, _) = bench.copy(1 << 30, (1 << 30) + (2 << 20), 2 << 20, 0);
    assert_eq!(bench.word(0x60_0000 + (2 << 20) - 8).load(Relaxed), 99);
    // The engine goes forward as the clock does.
    for step in 1..100 {
        bench.look(step * 10 * US);
    }
    assert_eq!(bench.record(place, record::ELEMENTS), 1);
    // Read and written in one memory of 6.2 GB/s: 676 us.
    let time_us = bench.record(place, record::TIME_NS) / 1000;
    assert!((660..720).contains(&time_us), "{time_us}");
}

#[test]
fn channels_copy_at_once_and_one_after_the_other_share_the_memory() {
    let mut bench = Bench::new();
    bench.open();
    for number in 0..8 {
        bench.copy(SLOW, FAST + (number << 13) % 0x1_0000, 8192, 0);
    }
    bench.look(500 * US);
    let times: Vec<u64> = (0..8)
        .map(|place| bench.record(place, record::TIME_NS))
        .collect();
    assert!((0..8).all(|place| bench.status(place) == record::COPIED));
    // 64 KiB read of a memory of 6.2 GB/s: 10.6 us after 10, of which 4 are queueing's (`load`);
    // one channel would take 18.
    let last = times.iter().max().unwrap();
    assert!((15_000..19_000).contains(last), "{times:?}");
}

#[test]
fn a_copy_leaves_no_old_line_in_a_cache() {
    use crate::guest::Executed;
    use crate::model::Access;
    use crate::vcpu::{Score, Vcpu};
    let mut bench = Bench::new();
    bench.open();
    let mut vcpu = Vcpu::new(&bench.model.machine, 0);
    vcpu.prices.latency_ps[..2].copy_from_slice(&[113_000, 37_000]);
    let load = |bench: &Bench, vcpu: &mut Vcpu| {
        let access = Access {
            vaddr: FAST,
            paddr: 64 << 20,
            pc: 0x40_0000,
            executed: &Executed::default,
            value: &|| 0,
            store: false,
            kernel: false,
        };
        bench.model.access(vcpu, &Score::default(), &access)
    };
    assert!(load(&bench, &mut vcpu) > 0);
    assert_eq!(load(&bench, &mut vcpu), 0);
    bench.copy(SLOW, FAST, 4096, 0);
    assert!(load(&bench, &mut vcpu) > 0);
}

#[test]
fn a_ring_opened_anew_gets_nothing_of_the_one_before() {
    let mut bench = Bench::new();
    bench.open();
    let (place, _) = bench.copy(SLOW, FAST, 8192, 0);
    bench.set(ring::PRESENT, 0);
    bench.tail = 0;
    bench.set(ring::TAIL, 0);
    bench.open();
    bench.look(100 * US);
    assert_eq!((bench.status(place), bench.get(ring::TAKEN)), (0, 0));
    assert!(!bench.engine.is_busy());
    bench.copy(SLOW, FAST, 8192, 100 * US);
    bench.look(200 * US);
    assert_eq!(bench.status(0), record::COPIED);
}

#[test]
fn a_full_ring_takes_no_more_than_it_has_room_for() {
    let mut bench = Bench::new();
    bench.open();
    for _ in 0..ENTRIES + 3 {
        bench.copy(SLOW, FAST, 4096, 0);
    }
    assert_eq!(bench.get(ring::TAKEN), ENTRIES as u64);
    bench.look(100 * US);
    bench.engine.doorbell(&bench.model, TABLE, RING, 100 * US);
    assert_eq!(bench.get(ring::TAKEN), ENTRIES as u64 + 3);
}
