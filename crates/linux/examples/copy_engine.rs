//! The copy engine against the CPU: contents, faults, CPU time. `copy_engine --from 0 --to 1`.
//! With `--migrate-to NODE` also what the kernel's own migration takes (memif, 2.2 and 5.2).
//!
//! Prints `key=value` words, a line for each part; ends with an error where a byte is wrong.

use hither_core::copy_engine::record;
use hither_linux::backend::copy;
use hither_linux::backend::engine::{EngineDriver, Record, Ring};
use hither_linux::sys::{self, MemoryArea, Present, PrivateMemory, pkey};
use hither_linux::tracker::opium::OwnTime;
use std::error::Error;

const HUGE: usize = 2 << 20;

type Failure = Box<dyn Error>;

struct Memory(PrivateMemory);

impl Memory {
    fn new(bytes: usize, node: u32, huge: bool, byte: u8) -> Result<Self, Failure> {
        let mut memory = PrivateMemory::new(bytes, huge)?;
        sys::bind_memory(memory.address(), memory.len() as u64, node, Present::Stay)?;
        memory.fill_pages(byte);
        Ok(Self(memory))
    }

    fn at(&self) -> u64 {
        self.0.address()
    }

    fn scribble(&mut self, seed: usize) {
        for (index, byte) in self.0.bytes_mut().iter_mut().enumerate() {
            *byte = (index * 31 + index / 4096 + seed) as u8;
        }
    }
}

fn told(engine: &EngineDriver) -> String {
    let costs = engine.costs();
    format!(
        "costs fixed_ns={:.0} element_ns={:.0} setup_ns={:.0} engine_ns_per_byte={:.3} copy_ns_per_byte={:.3} \
         sleep_ns={:.0} element_bytes={:.0}",
        costs.fixed_ns,
        costs.element_ns,
        costs.setup_ns,
        costs.engine_ns_per_byte,
        costs.copy_ns_per_byte[16],
        costs.sleep_ns,
        costs.element_bytes
    )
}

fn wait(ring: &Ring, place: usize) -> Record {
    loop {
        if let Some(record) = ring.record(place) {
            return record;
        }
        std::hint::spin_loop();
    }
}

/// Wall and CPU time of so many calls, in ns each.
fn time(clock: &mut Option<OwnTime>, rounds: u32, mut work: impl FnMut()) -> (f64, f64) {
    (0..rounds.div_ceil(2)).for_each(|_| work());
    let mut cpu = || clock.as_mut().map_or_else(sys::own_cpu_ns, OwnTime::cpu_ns);
    let (cpu_start, start) = (cpu(), sys::monotonic_ns());
    (0..rounds).for_each(|_| work());
    let wall = sys::monotonic_ns() - start;
    // The device's account is 100 us late.
    std::thread::sleep(std::time::Duration::from_micros(300));
    let each = |ns: u64| ns as f64 / f64::from(rounds);
    (each(wall), each(cpu() - cpu_start))
}

fn contents(
    engine: &mut EngineDriver,
    from: u32,
    to: u32,
    bytes: usize,
    huge: bool,
) -> Result<(), Failure> {
    let mut source = Memory::new(bytes, from, huge, 1)?;
    let target = Memory::new(bytes, to, huge, 2)?;
    for seed in 0..3 {
        source.scribble(seed);
        let before = engine.counts();
        // SAFETY: two mappings, of which nobody else uses either.
        let done = unsafe { engine.copy(source.at(), target.at(), bytes) };
        let elements = engine.counts().elements - before.elements;
        let equal = source.0.bytes()[..bytes] == target.0.bytes()[..bytes];
        println!(
            "contents huge={huge} bytes={bytes} done={done} elements={elements} equal={equal}"
        );
        if done != bytes || !equal {
            return Err("what the engine copied is not what was there".into());
        }
    }
    Ok(())
}

fn faults() -> Result<(), Failure> {
    let mut ring = Ring::open().map_err(|why| why.to_string())?;
    let area = MemoryArea::new(HUGE as u64, false)?;
    let (from, to) = (area.range().start, area.range().start + (64 << 10));
    sys::fill(&(from..from + 8192))?;
    sys::fill(&(to..to + 4096))?;
    // SAFETY: parts of the area, of which nobody uses either.
    let (target, source) = unsafe {
        let target = ring.submit(from, to, 8192);
        (wait(&ring, target), ring.submit(from + 8192, to, 4096))
    };
    let source = wait(&ring, source);
    let at = target.fault == to + 4096;
    println!(
        "faults target={} done={} at_the_page={at} source={}",
        target.status, target.done, source.status
    );
    let expected = (record::FAULT_TARGET, 4096, true, record::FAULT_SOURCE);
    match (target.status, target.done, at, source.status) == expected {
        true => Ok(()),
        false => Err("a page that is not there did not end the descriptor".into()),
    }
}

/// The kernel's migration of 1500 pages by one mbind, or of as many as there is room for; a copy of as many pages; and a
/// change of one entry of a page table with its TLB flush.
fn migration(from: u32, to: u32, copy_ns: f64) -> Result<(), Failure> {
    let (mut pages, mut spent_ns) = (0, 0);
    for _ in 0..5 {
        let memory = Memory::new(1500 * 4096, from, false, 1)?;
        let start = sys::monotonic_ns();
        // A full node refuses the rest of them.
        let outcome = sys::bind_memory(memory.at(), 1500 * 4096, to, Present::Move);
        spent_ns += sys::monotonic_ns() - start;
        let addresses: Vec<u64> = (0..1500).map(|page| memory.at() + page * 4096).collect();
        let mut nodes = vec![-1; addresses.len()];
        sys::query_pages(0, &addresses, &mut nodes)?;
        let there = nodes.iter().filter(|node| **node == to as i32).count();
        println!("mbind pages={there} outcome={outcome:?}");
        pages += there;
    }
    if pages == 0 {
        return Err("no page was migrated".into());
    }
    let mut memory = Memory::new(4096, from, false, 1)?;
    let (mut change_ns, changes) = (0, 4000);
    for round in 0..changes {
        // The entry is in the TLB, and permits writing, when it changes.
        memory.0.bytes_mut()[0] = round as u8;
        let start = sys::monotonic_ns();
        // SAFETY: nobody writes to this mapping before it may be written to again.
        unsafe { pkey::protect(memory.at(), 4096, libc::PROT_READ)? };
        change_ns += sys::monotonic_ns() - start;
        // SAFETY: this takes no access away.
        unsafe { pkey::protect(memory.at(), 4096, libc::PROT_READ | libc::PROT_WRITE)? };
    }
    println!("== migration");
    println!("pages: {}", pages / 5);
    println!("page_us: {:.2}", spent_ns as f64 / 1e3 / pages as f64);
    println!("copy_us: {:.2}", copy_ns / 1e3);
    println!("== page_table");
    println!(
        "change_us: {:.2}",
        change_ns as f64 / 1e3 / f64::from(changes)
    );
    Ok(())
}

fn run() -> Result<(), Failure> {
    let words: Vec<String> = std::env::args().collect();
    let given = |name: &str| {
        let at = words.iter().position(|word| word == name)?;
        words.get(at + 1).map(|text| text.parse())
    };
    let node = |name: &str, default: u32| given(name).unwrap_or(Ok(default));
    let (from, to) = (node("--from", 0)?, node("--to", 0)?);
    let mut engine = EngineDriver::open().map_err(|why| why.to_string())?;
    println!("engine {:?}", engine.facts());
    println!("{}", told(&engine));
    let least = engine.costs().least_bytes();
    println!(
        "rule least_bytes={}",
        least.map_or("none".to_owned(), |bytes| bytes.to_string())
    );
    contents(&mut engine, from, to, 4096, false)?;
    contents(&mut engine, from, to, 1 << 20, false)?;
    contents(&mut engine, from, to, HUGE, true)?;
    faults()?;
    let mut clock = OwnTime::open();
    println!("clock device={}", clock.is_some());
    // Through more memory than caches hold, where the target has so much.
    let mut copy_ns = None;
    let room = node("--room-mb", 16)? as usize * (1 << 20);
    for (bytes, huge, rounds) in [
        (4096, false, 800),
        (16 << 10, false, 400),
        (64 << 10, false, 200),
        (1 << 20, false, 32),
        (HUGE, true, 16),
    ] {
        let source = Memory::new(16 << 20, from, huge, 1)?;
        let target = Memory::new(room, to, huge, 2)?;
        let mut next = 0;
        let mut place = |of: usize| {
            next += 1;
            let step = bytes.max(64 << 10);
            ((next * step) % (16 << 20), (next * step) % of)
        };
        let (wall, cpu) = time(&mut clock, rounds, || {
            let (at, to) = place(room);
            let (from, to) = (source.at() + at as u64, target.at() + to as u64);
            // SAFETY: as in `contents`.
            unsafe { copy::copy(from as *const u8, to as *mut u8, bytes) }
        });
        copy_ns.get_or_insert(wall);
        engine.learn_copy(bytes, wall as u64);
        let chosen = engine.costs().prefers_engine(bytes);
        let (engine_wall, engine_cpu) = time(&mut clock, rounds, || {
            let (at, to) = place(room);
            // SAFETY: as in `contents`.
            let done =
                unsafe { engine.copy(source.at() + at as u64, target.at() + to as u64, bytes) };
            assert_eq!(done, bytes);
        });
        let pages = if huge { "huge" } else { "small" };
        println!("== {pages} {bytes}");
        for (name, value) in [
            ("copy_ns", wall),
            ("copy_cpu_ns", cpu),
            ("engine_ns", engine_wall),
            ("engine_cpu_ns", engine_cpu),
            ("cpu_less", cpu / engine_cpu),
            ("chosen", f64::from(u8::from(chosen))),
        ] {
            println!("{name}: {value:.2}");
        }
    }
    println!("== rule");
    let costs = engine.costs();
    let slept = (costs.sleep_from_ns() - costs.setup_ns) / costs.engine_ns_per_byte;
    println!(
        "copied_by_the_engine_from_kb: {}",
        least.map_or(0, |bytes| bytes >> 10)
    );
    println!("slept_from_kb: {:.0}", slept / 1024.0);
    println!("counts {:?}", engine.counts());
    println!("{}", told(&engine));
    if let (Some(target), Some(copy_ns)) = (given("--migrate-to").transpose()?, copy_ns) {
        migration(from, target, copy_ns)?;
    }
    Ok(())
}

fn main() {
    if let Err(error) = run() {
        eprintln!("copy_engine: {error}");
        std::process::exit(1);
    }
}
