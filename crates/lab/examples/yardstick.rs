//! Measures the emulated machine from inside, one JSON object a line, for `tests/emulator.rs`.
//!
//! It knows nothing of the machine file: what it prints is held against the file on the host.

use hither_core::opium::vcpu;
use hither_linux::Root;
use hither_linux::opium::{Filter, OpiumDevice, VcpuCounters};
use serde_json::json;
use std::hint::black_box;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

const MB: usize = 1 << 20;
const LINE: usize = 64;

/// Anonymous memory on one node, in huge pages or not, touched.
struct Memory {
    start: *mut u8,
    bytes: usize,
}

// SAFETY: plain memory; the users below share it by disjoint parts or through atomics.
unsafe impl Sync for Memory {}

impl Memory {
    fn on(node: usize, bytes: usize, huge: bool) -> Self {
        let align = 2 * MB;
        // SAFETY: a fresh mapping, then calls on parts of it.
        unsafe {
            let raw = libc::mmap(
                std::ptr::null_mut(),
                bytes + align,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            );
            assert_ne!(raw, libc::MAP_FAILED);
            let start = raw.cast::<u8>().add(raw.align_offset(align));
            let advice = if huge {
                libc::MADV_HUGEPAGE
            } else {
                libc::MADV_NOHUGEPAGE
            };
            assert_eq!(libc::madvise(start.cast(), bytes, advice), 0);
            let mask = 1u64 << node;
            let bind = 2;
            assert_eq!(
                libc::syscall(libc::SYS_mbind, start, bytes, bind, &raw const mask, 64, 0),
                0
            );
            for offset in (0..bytes).step_by(4096) {
                start.add(offset).write_volatile(1);
            }
            Self { start, bytes }
        }
    }

    fn lines(&self) -> usize {
        self.bytes / LINE
    }

    fn word(&self, line: usize) -> *mut u64 {
        assert!(line < self.lines());
        // SAFETY: in bounds.
        unsafe { self.start.add(line * LINE).cast() }
    }

    /// Reads one word of each line, in order.
    fn sweep(&self) -> u64 {
        // SAFETY: in bounds.
        (0..self.lines())
            .map(|line| unsafe { self.word(line).read_volatile() })
            .fold(0, u64::wrapping_add)
    }

    /// Links the lines into one random cycle (Sattolo) of pointers.
    fn link(&self) {
        let mut order: Vec<u32> = (0..self.lines() as u32).collect();
        let mut state = 0x9e37_79b9_7f4a_7c15u64;
        for index in (1..order.len()).rev() {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            order.swap(index, state as usize % index);
        }
        for (line, &next) in order.iter().enumerate() {
            // SAFETY: in bounds.
            unsafe { self.word(line).write(self.word(next as usize) as u64) };
        }
    }

    /// Follows the cycle; nanoseconds per load.
    fn chase(&self, loads: u32) -> f64 {
        let begin = Instant::now();
        let mut at = self.word(0);
        for _ in 0..loads {
            // SAFETY: every word holds the address of another.
            at = unsafe { at.read_volatile() } as *mut u64;
        }
        black_box(at);
        begin.elapsed().as_nanos() as f64 / f64::from(loads)
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: ours, and nothing refers to it any more.
        unsafe { libc::munmap(self.start.cast(), self.bytes) };
    }
}

fn pin(cpu: usize) {
    // SAFETY: a zeroed set is valid; the call reads it.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(cpu, &mut set);
        assert_eq!(
            libc::sched_setaffinity(0, size_of_val(&set), &raw const set),
            0
        );
    }
}

struct Yardstick {
    device: OpiumDevice,
    nodes: Vec<usize>,
}

/// The piece during which half of the whole time was over, the pieces sorted.
fn at_half_time(mut pieces: Vec<f64>) -> f64 {
    pieces.sort_by(f64::total_cmp);
    let half = pieces.iter().sum::<f64>() / 2.0;
    let mut passed = 0.0;
    *pieces
        .iter()
        .find(|&&piece| {
            passed += piece;
            passed >= half
        })
        .expect("there are pieces")
}

impl Yardstick {
    fn cpus_of(&self, node: usize) -> Vec<usize> {
        (0..self.nodes.len())
            .filter(|&cpu| self.nodes[cpu] == node)
            .collect()
    }

    fn counters(&self, cpu: usize) -> VcpuCounters {
        let mut counters = VcpuCounters::default();
        self.device.read_vcpu(cpu, &mut counters);
        counters
    }

    fn latency(&self) {
        pin(0);
        for node in 0..self.device.node_ids().len() {
            let memory = Memory::on(node, 16 * MB, true);
            memory.link();
            // No line is visited twice, and none is left in a cache.
            Memory::on(node, 48 * MB, true).sweep();
            println!(
                "{}",
                json!({"check": "latency", "node": node, "ns": memory.chase(100_000)})
            );
        }
    }

    /// Threads on `cpus` that read memory of `node`, pausing `pause` turns after each line, while
    /// `measure` runs.
    fn under_load(
        &self,
        cpus: &[usize],
        node: usize,
        pause: &AtomicU32,
        measure: &mut dyn FnMut(),
    ) {
        let stop = AtomicBool::new(false);
        let memories: Vec<Memory> = cpus
            .iter()
            .map(|_| Memory::on(node, 16 * MB, true))
            .collect();
        std::thread::scope(|scope| {
            for (&cpu, memory) in cpus.iter().zip(&memories) {
                let stop = &stop;
                scope.spawn(move || {
                    pin(cpu);
                    while !stop.load(Relaxed) {
                        for line in 0..memory.lines() {
                            // SAFETY: in bounds.
                            black_box(unsafe { memory.word(line).read_volatile() });
                            for turn in 0..pause.load(Relaxed) {
                                black_box(turn);
                            }
                            if line % 1024 == 0 && stop.load(Relaxed) {
                                break;
                            }
                        }
                    }
                });
            }
            std::thread::sleep(Duration::from_millis(2));
            measure();
            stop.store(true, Relaxed);
        });
    }

    /// GB/s read from and written to a node, and on each link, during `span`.
    fn traffic(&self, node: usize, span: &mut dyn FnMut()) -> (f64, f64, Vec<f64>) {
        let look = || {
            let traffic = self.device.node_traffic(node);
            let links: Vec<u64> = (0..self.device.link_count())
                .map(|link| self.device.link_traffic(link).bytes)
                .collect();
            (
                self.device.time_ns(),
                traffic.read_bytes,
                traffic.write_bytes,
                links,
            )
        };
        let before = look();
        span();
        let after = look();
        let ns = (after.0 - before.0) as f64;
        let links = after
            .3
            .iter()
            .zip(&before.3)
            .map(|(after, before)| (after - before) as f64 / ns);
        (
            (after.1 - before.1) as f64 / ns,
            (after.2 - before.2) as f64 / ns,
            links.collect(),
        )
    }

    fn capacity(&self) {
        pin(0);
        let cpus = self.cpus_of(0);
        let pause = AtomicU32::new(0);
        self.under_load(&cpus[1..], 0, &pause, &mut || {
            let (read, written, _) =
                self.traffic(0, &mut || std::thread::sleep(Duration::from_millis(8)));
            println!(
                "{}",
                json!({"check": "capacity", "read_gbs": read, "written_gbs": written})
            );
        });
        let cpus = self.cpus_of(1);
        self.under_load(&cpus, 0, &pause, &mut || {
            let (.., links) = self.traffic(0, &mut || std::thread::sleep(Duration::from_millis(8)));
            println!("{}", json!({"check": "link", "gbs": links}));
        });
    }

    fn curve(&self, capacity_gbs: f64) {
        pin(0);
        let cpus = self.cpus_of(0);
        let pause = AtomicU32::new(0);
        let memory = Memory::on(0, 32 * MB, true);
        memory.link();
        self.under_load(&cpus[1..], 0, &pause, &mut || {
            for target in [0.5, 0.8, 0.9] {
                let (mut low, mut high) = (0u32, 2000u32);
                while high - low > 1 {
                    let middle = u32::midpoint(low, high);
                    pause.store(middle, Relaxed);
                    std::thread::sleep(Duration::from_millis(2));
                    let (read, written, _) = self.traffic(0, &mut || {
                        memory.chase(8_000);
                    });
                    let more = (read + written) / capacity_gbs > target;
                    (low, high) = if more { (middle, high) } else { (low, middle) };
                }
                pause.store(high, Relaxed);
                std::thread::sleep(Duration::from_millis(3));
                let mut ns = 0.0;
                let (read, written, _) = self.traffic(0, &mut || ns = memory.chase(40_000));
                println!(
                    "{}",
                    json!({"check": "curve", "target": target, "read_gbs": read,
                    "written_gbs": written, "ns": ns})
                );
            }
        });
    }

    fn memcpy(&self) {
        let node = self.nodes.len() - 1;
        pin(node);
        let own = self.nodes[node];
        let (from, to) = (
            Memory::on(own, 48 * MB, true),
            Memory::on(own, 48 * MB, true),
        );
        for _ in 0..2 {
            let before = self.counters(node);
            let begin = Instant::now();
            // SAFETY: both are mapped and do not overlap.
            unsafe { libc::memcpy(to.start.cast(), from.start.cast(), from.bytes) };
            let ns = begin.elapsed().as_nanos() as f64;
            let done = self.counters(node).since(&before);
            let fills: u64 = (0..8)
                .map(|node| done.fills(0, node) + done.fills(1, node))
                .sum();
            let past: u64 = (0..8).map(|node| done.at(vcpu::write_backs(node))).sum();
            println!(
                "{}",
                json!({"check": "memcpy", "gbs": from.bytes as f64 / ns,
                "fill_gbs": (fills * LINE as u64) as f64 / ns, "write_back_gbs": (past * LINE as u64) as f64 / ns})
            );
        }
    }

    /// Physical page numbers of a memory.
    fn frames(memory: &Memory) -> Vec<u64> {
        use std::os::unix::fs::FileExt;
        let file = std::fs::File::open("/proc/self/pagemap").unwrap();
        let mut bytes = vec![0; memory.bytes / 4096 * 8];
        file.read_exact_at(&mut bytes, memory.start as u64 / 4096 * 8)
            .unwrap();
        bytes
            .chunks(8)
            .map(|chunk| u64::from_le_bytes(chunk.try_into().unwrap()) & ((1 << 55) - 1))
            .collect()
    }

    fn counts(&mut self) {
        pin(0);
        let array = Memory::on(0, 16 * MB, false);
        let other = Memory::on(0, 48 * MB, true);
        let frames = Self::frames(&array);
        let (low, high) = (*frames.iter().min().unwrap(), *frames.iter().max().unwrap());
        let regions = (high - low + 1) as usize;
        let filter = Filter {
            start: low * 4096,
            end: (high + 1) * 4096,
            shift: 12,
            types: hither_core::opium::transaction::FILLS,
            node: None,
            directions: 0,
            user_only: false,
            base_counter: 0,
            threshold: 0,
        };
        other.sweep();
        other.sweep();
        self.device.set_filter(0, Some(filter)).unwrap();
        // The plugin looks at the control page at each synchronisation.
        std::thread::sleep(Duration::from_millis(2));
        let mut words = vec![0u64; regions * 4];
        let count = |device: &OpiumDevice, words: &mut [u64]| {
            device.read_counters(0, words);
            let own = |frame: &u64| {
                let at = (frame - low) as usize * 4;
                words[at..at + 4]
                    .iter()
                    .map(|word| (word & 0xffff_ffff) + (word >> 32))
                    .sum::<u64>()
            };
            frames.iter().map(own).sum::<u64>()
        };
        let before = count(&self.device, &mut words);
        array.sweep();
        let once = count(&self.device, &mut words) - before;
        other.sweep();
        other.sweep();
        array.sweep();
        let twice = count(&self.device, &mut words) - before;
        println!(
            "{}",
            json!({"check": "counts", "lines": array.lines(), "once": once, "twice": twice})
        );
    }

    /// Two threads that store: ns per store of each.
    fn coherence(&self) {
        let memory = Memory::on(0, 2 * MB, false);
        let near = self.cpus_of(0);
        let far = self.cpus_of(1);
        for (name, pair) in [("same", [near[0], near[1]]), ("cross", [near[0], far[0]])] {
            for (what, offset) in [("line", 8), ("lines", 64), ("pages", 8192)] {
                // Pieces of 7 us uncontended. While one thread is interrupted the other stores for
                // nothing, thousands of times: the piece at half the time counts, not the mean. Where
                // stores do not wait there are a hundred times as many pieces.
                let whole_ms = if what == "line" { 40 } else { 8 };
                let (whole, stores) = (Duration::from_millis(whole_ms), 10_000u32);
                let ready = AtomicU32::new(0);
                let times: Vec<f64> = std::thread::scope(|scope| {
                    let threads: Vec<_> = (0..2)
                        .map(|index| {
                            let (memory, ready, cpu) = (&memory, &ready, pair[index]);
                            scope.spawn(move || {
                                pin(cpu);
                                // SAFETY: within the 2 MB.
                                let word = unsafe {
                                    &*memory
                                        .start
                                        .add(65_536 + index * offset)
                                        .cast::<AtomicU64>()
                                };
                                ready.fetch_add(1, Relaxed);
                                while ready.load(Relaxed) < 2 {
                                    std::hint::spin_loop();
                                }
                                let (first, mut times) = (Instant::now(), Vec::new());
                                while first.elapsed() < whole {
                                    let begin = Instant::now();
                                    for value in 0..stores {
                                        word.store(u64::from(value), Relaxed);
                                    }
                                    let ns = begin.elapsed().as_nanos() as f64;
                                    times.push(ns / f64::from(stores));
                                }
                                at_half_time(times)
                            })
                        })
                        .collect();
                    threads
                        .into_iter()
                        .map(|thread| thread.join().unwrap())
                        .collect()
                });
                println!(
                    "{}",
                    json!({"check": "coherence", "pair": name, "what": what, "ns": times})
                );
            }
        }
    }

    /// What a piece of work took, and what the device says that it consisted of.
    fn account(&self, name: &str, cpus: &[usize], times: u32, work: &mut dyn FnMut()) {
        // So that other CPUs have posted what they did before.
        std::thread::sleep(Duration::from_millis(1));
        let before: Vec<_> = cpus.iter().map(|&cpu| self.counters(cpu)).collect();
        let begin = Instant::now();
        work();
        let ns = begin.elapsed().as_nanos() as f64;
        std::thread::sleep(Duration::from_millis(1));
        let done: Vec<_> = cpus
            .iter()
            .zip(&before)
            .map(|(&cpu, before)| self.counters(cpu).since(before))
            .collect();
        let sum = |field: usize| done.iter().map(|counters| counters.at(field)).sum::<u64>();
        println!(
            "{}",
            json!({"check": "events", "what": name, "times": times, "ns": ns,
            "instructions": sum(vcpu::INSTRUCTIONS_USER) + sum(vcpu::INSTRUCTIONS_KERNEL),
            "stall_ns": sum(vcpu::STALL_NS) + sum(vcpu::OTHER_STALL_NS), "syscalls": sum(vcpu::SYSCALLS),
            "exceptions": sum(vcpu::EXCEPTIONS), "interrupts": sum(vcpu::INTERRUPTS),
            "switches": sum(vcpu::PAGE_TABLE_SWITCHES), "flushes": sum(vcpu::INVLPGS),
            "ipis": sum(vcpu::IPIS), "wakeups": sum(vcpu::WAKEUPS)})
        );
    }

    fn events(&self) {
        pin(1);
        let calls = 20_000;
        self.account("syscall", &[1], calls, &mut || {
            for _ in 0..calls {
                // SAFETY: no arguments.
                unsafe { libc::syscall(libc::SYS_getppid) };
            }
        });
        let pages = 4096;
        let memory = Memory::on(0, pages * 4096, false);
        // SAFETY: our own memory; it reads as zeros afterwards.
        unsafe { libc::madvise(memory.start.cast(), memory.bytes, libc::MADV_DONTNEED) };
        self.account("fault", &[1], pages as u32, &mut || {
            for page in 0..pages {
                // SAFETY: in bounds.
                unsafe { memory.start.add(page * 4096).write_volatile(1) };
            }
        });
        self.eventfd();
    }

    fn eventfd(&self) {
        let rounds = 1000u32;
        // SAFETY: plain system calls; the descriptors live until the end of the process.
        let (there, back) = unsafe { (libc::eventfd(0, 0), libc::eventfd(0, 0)) };
        let signal = |fd: i32| {
            let one = 1u64;
            // SAFETY: eight readable bytes.
            assert_eq!(unsafe { libc::write(fd, (&raw const one).cast(), 8) }, 8);
        };
        let wait = |fd: i32| {
            let mut count = 0u64;
            // SAFETY: eight writable bytes.
            assert_eq!(unsafe { libc::read(fd, (&raw mut count).cast(), 8) }, 8);
        };
        std::thread::scope(|scope| {
            scope.spawn(move || {
                pin(2);
                for _ in 0..=3 * rounds {
                    wait(there);
                    signal(back);
                }
            });
            signal(there);
            wait(back);
            for _ in 0..3 {
                self.account("eventfd", &[1, 2], rounds, &mut || {
                    for _ in 0..rounds {
                        signal(there);
                        wait(back);
                    }
                });
            }
        });
    }
}

fn main() {
    let device = OpiumDevice::open(&Root::host()).expect("run this in the lab");
    let nodes = device.vcpu_nodes().to_vec();
    let mut yardstick = Yardstick { device, nodes };
    for word in std::env::args().skip(1) {
        match word.split_once('=') {
            Some(("curve", capacity)) => yardstick.curve(capacity.parse().unwrap()),
            _ => match word.as_str() {
                "latency" => yardstick.latency(),
                "capacity" => yardstick.capacity(),
                "memcpy" => yardstick.memcpy(),
                "counts" => yardstick.counts(),
                "coherence" => yardstick.coherence(),
                "events" => yardstick.events(),
                other => panic!("no check {other}"),
            },
        }
    }
    let (skew_ns, breaks) = yardstick.device.skew();
    println!(
        "{}",
        json!({"check": "skew", "max_ns": skew_ns, "breaks": breaks})
    );
}
