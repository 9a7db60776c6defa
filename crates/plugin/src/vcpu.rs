//! One vCPU: what only its own thread touches, and its share of the device.

use crate::cache::all_ways;
use crate::device::Device;
use crate::guest::Executed;
use crate::load::{Prices, Traffic};
use crate::regions::{Regions, Transaction, Watch};
use crate::spaces::{Spaces, Tally};
use crate::stream::{Burst, Dependence, Streams};
use crate::tlb::Tlb;
use hither_core::machine::Machine;
use hither_core::opium::{control, ring, transaction, vcpu as block};
use std::sync::Mutex;
use std::sync::atomic::Ordering::{Relaxed, Release};

/// Counters that translated code adds to inline; QEMU's scoreboard holds one per vCPU.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct Score {
    /// What nearly every block adds to, in one word: modelled time in ps since the last
    /// synchronisation, stalls and a head start included, and below its low bits
    /// ([`Score::TIME_SHIFT`]) the instructions in user mode since then. The next synchronisation
    /// is due when the time reaches the quantum, which one comparison tells.
    pub spent: u64,
    /// Instructions in kernel mode.
    pub kernel: u64,
    /// Floating-point operations.
    pub flops: u64,
    /// System calls.
    pub syscalls: u64,
    /// Port accesses.
    pub ports: u64,
    /// Keeps the counters of two vCPUs in cache lines of their own, however QEMU aligns them.
    pub apart: [u64; 11],
}

impl Score {
    /// Where the time begins: 16 million instructions below, a second above.
    pub const TIME_SHIFT: u32 = 24;

    /// Modelled time in ps.
    #[inline(always)]
    pub fn since_ps(&self) -> u64 {
        self.spent >> Self::TIME_SHIFT
    }

    /// Time passes.
    #[inline(always)]
    pub fn pass(&mut self, ps: u64) {
        self.spent += ps << Self::TIME_SHIFT;
    }

    /// Instructions in user mode.
    pub fn user(&self) -> u64 {
        self.spent & ((1 << Self::TIME_SHIFT) - 1)
    }
}

/// A line that came from memory, or (a transfer) from another CPU's cache.
#[derive(Clone, Copy)]
pub struct Fill<'a> {
    /// Address of the instruction when it was translated.
    pub pc: u64,
    /// Reads where it is in the process that runs.
    pub executed: &'a dyn Fn() -> Executed,
    /// Virtual address of the access.
    pub vaddr: u64,
    /// Physical address of the access.
    pub paddr: u64,
    /// Node position of the memory.
    pub node: usize,
    /// A store?
    pub store: bool,
    /// In kernel mode?
    pub kernel: bool,
    /// Brought by a stream?
    pub stream: bool,
    /// What it cost.
    pub latency_ps: u64,
}

/// State of one vCPU.
pub struct Vcpu {
    /// Its number.
    pub id: usize,
    /// Position of its node.
    pub node: usize,
    /// Its cache domain.
    pub domain: u32,
    /// Its place within the domain.
    pub slot: u32,
    /// Ways of the domain's cache that it may fill.
    pub ways: u32,
    /// Translations.
    pub tlb: Tlb,
    /// Stream table.
    pub streams: Streams,
    /// Dependence of misses.
    pub dependence: Dependence,
    /// Lines moved since the last synchronisation.
    pub traffic: Traffic,
    /// Present prices.
    pub prices: Prices,
    /// Its modelled time is this and [`Score::since_ps`].
    pub time_ps: u64,
    /// Its modelled time after the last synchronisation.
    pub begun_ps: u64,
    /// Stalls within [`Score::since_ps`].
    pub stall_ps: u64,
    /// Demand misses since the last synchronisation.
    pub demand_misses: u64,
    /// Their latencies together.
    pub demand_latency_ps: u64,
    /// What they stalled, all of them: less than their latencies where some were under way together.
    pub demand_stall_ps: u64,
    /// Computing time that may still hide stream time.
    pub overlap_ps: u64,
    /// Value of the computing clock at the last stream line.
    pub overlap_mark_ps: u64,
    /// Load misses that overlap.
    pub burst: Burst,
    /// All stalls so far.
    pub stalled_ps: u64,
    /// Those of them that memory's own latency and bandwidth cost: no caches, walks or other CPUs.
    pub waited_ps: u64,
    /// Line that the write-combining buffer holds.
    pub combining_line: u64,
    /// A page fault's address was read since the last `iret`.
    pub fault_seen: bool,
    /// High half of the last interrupt command.
    pub icr_high: u32,
    /// Is it halted?
    pub halted: bool,
    /// Its block in the device.
    block: usize,
    latency_sum_ps: u64,
    idle_ps: u64,
    sample_left: u64,
    sample_period: u32,
    sample_skip: u32,
    transfer_left: u64,
    transfer_period: u32,
    reference_left: u64,
    reference_period: u32,
    /// Time between two samples of references, and when the next may be, by the time for which the CPU was busy: a
    /// program that sleeps again and again would else be sampled where it wakes.
    reference_ns: u32,
    reference_due_ps: u64,
    /// The mask that `ways` was made of, and all ways of the cache.
    way_mask: u32,
    all_ways: u32,
    /// Instruction and virtual address of the latest sample of a load, and the sample's place; of a reference
    /// whose fill was sampled just before, that one's too.
    sampled_load: Option<(u64, u64, [usize; 2])>,
    random: u64,
    filter_sequence: u32,
    watch: Watch,
    tally: Tally,
}

impl Vcpu {
    /// A vCPU of this machine. `id` must be one of its CPUs.
    pub fn new(machine: &Machine, id: usize) -> Self {
        let cpu = hither_core::ids::CpuId(id as u32);
        let node = machine
            .node_of_cpu(cpu)
            .expect("the machine file covers every vCPU");
        let domain = machine
            .domain_of_cpu(cpu)
            .expect("every CPU is in a domain");
        let slot = domain
            .cpus
            .iter()
            .position(|member| member == cpu)
            .expect("just found") as u32;
        Self {
            id,
            node,
            domain: domain.id.0,
            slot,
            ways: all_ways(domain.cache.ways),
            tlb: Tlb::new(
                machine.tlb.small_entries as usize,
                machine.tlb.huge_entries as usize,
            ),
            streams: Streams::default(),
            dependence: Dependence::default(),
            traffic: Traffic::default(),
            prices: Prices::default(),
            time_ps: 0,
            begun_ps: 0,
            stall_ps: 0,
            demand_misses: 0,
            demand_latency_ps: 0,
            demand_stall_ps: 0,
            overlap_ps: 0,
            overlap_mark_ps: 0,
            burst: Burst::default(),
            stalled_ps: 0,
            waited_ps: 0,
            combining_line: u64::MAX,
            fault_seen: false,
            icr_high: 0,
            halted: false,
            block: block::BASE + block::STRIDE * id,
            latency_sum_ps: 0,
            idle_ps: 0,
            sample_left: u64::MAX,
            sample_period: 0,
            sample_skip: 0,
            transfer_left: u64::MAX,
            transfer_period: 0,
            reference_left: u64::MAX,
            reference_period: 0,
            reference_ns: 0,
            reference_due_ps: 0,
            way_mask: 0,
            all_ways: all_ways(domain.cache.ways),
            sampled_load: None,
            random: 0x9e37_79b9_7f4a_7c15 ^ (id as u64 + 1),
            filter_sequence: 0,
            watch: Watch::default(),
            tally: Tally::default(),
        }
    }

    /// Adds to a counter of this vCPU's block.
    #[inline]
    pub fn count(&self, device: &Device, field: usize, by: u64) {
        device.add(self.block + field, by);
    }

    /// Books a memory fill: counters, traffic, filters, samples.
    #[inline(always)]
    pub fn fill(&mut self, device: &Device, fill: &Fill<'_>) {
        let kind = usize::from(fill.kernel) * 2 + usize::from(fill.store);
        device.add(self.block + block::fills(kind, fill.node), 1);
        self.traffic.read[fill.node] += 1;
        if !fill.kernel {
            (self.tally).fill(fill.node, fill.store, fill.vaddr, fill.paddr);
        }
        if fill.stream {
            device.add(self.block + block::stream_fills(kind, fill.node), 1);
        } else {
            self.demand_misses += 1;
            self.latency_sum_ps += fill.latency_ps;
            self.demand_latency_ps += fill.latency_ps;
        }
        if !self.watch.is_off() {
            let kind = match (fill.store, fill.stream) {
                (false, false) => transaction::READ,
                (true, false) => transaction::WRITE,
                (false, true) => transaction::PREFETCH,
                (true, true) => transaction::PREFETCH_WRITE,
            };
            self.watched(device, kind, fill);
        }
        let skipped = self.sample_skip & control::SKIP_KERNEL != 0 && fill.kernel
            || self.sample_skip & control::SKIP_STREAMS != 0 && fill.stream;
        match (skipped, self.sample_left) {
            (true, _) => {}
            (false, ..=1) => self.sample(device, fill),
            (false, _) => self.sample_left -= 1,
        }
    }

    /// Books a line that another CPU's cache had modified and handed over: counter, filters,
    /// samples.
    #[inline(never)]
    pub fn transfer(&mut self, device: &Device, fill: &Fill<'_>) {
        self.count(device, block::TRANSFERS, 1);
        if !self.watch.is_off() {
            let kind = match fill.store {
                false => transaction::TRANSFER,
                true => transaction::TRANSFER_WRITE,
            };
            self.watched(device, kind, fill);
        }
        if self.sample_skip & control::SKIP_KERNEL != 0 && fill.kernel || self.transfer_period == 0
        {
            return;
        }
        self.transfer_left -= 1;
        if self.transfer_left == 0 {
            self.transfer_left = self.draw(self.transfer_period);
            self.put(device, fill, ring::TRANSFER);
        }
    }

    /// Counts it in filters.
    fn watched(&self, device: &Device, kind: u32, fill: &Fill<'_>) {
        let what = Transaction {
            paddr: fill.paddr,
            kind,
            kernel: fill.kernel,
            home: fill.node,
            requester: self.node,
        };
        self.watch.count(device, &what);
    }

    /// Counts in filters what is no fill and no transfer, where there are any.
    #[inline(always)]
    pub fn watch(&self, device: &Device, what: impl FnOnce() -> Transaction) {
        if !self.watch.is_off() {
            self.watch.count(device, &what());
        }
    }

    /// Books a reference of user mode to the last-level cache; tells whether it is one to sample.
    #[inline(always)]
    pub fn reference(&mut self) -> bool {
        self.tally.reference();
        match self.reference_left {
            ..=1 => true,
            _ => {
                self.reference_left -= 1;
                false
            }
        }
    }

    /// Samples a reference that [`Vcpu::reference`] told of, whoever served it.
    #[inline(never)]
    pub fn sample_reference(&mut self, device: &Device, fill: &Fill<'_>) {
        if self.reference_period == 0 {
            self.reference_left = u64::MAX;
            return;
        }
        self.reference_left = self.draw(self.reference_period);
        let busy_ps = self.time_ps.saturating_sub(self.idle_ps);
        if busy_ps < self.reference_due_ps {
            return;
        }
        self.reference_due_ps = match self.reference_ns {
            0 => busy_ps,
            least_ns => busy_ps + 1000 * self.draw(least_ns),
        };
        let stream = u8::from(fill.stream) * ring::STREAM;
        self.put(device, fill, stream | ring::REFERENCE);
    }

    /// Books a line written back or past the caches.
    pub fn write_back(&mut self, device: &Device, node: usize) {
        device.add(self.block + block::write_backs(node), 1);
        self.traffic.written[node] += 1;
        self.tally.write_back(node);
    }

    /// Books what was done in the address space that is in force, where that is due or must be now.
    pub fn book(&mut self, device: &Device, spaces: &Spaces, score: &Score, table: Option<u64>) {
        let now = (self.time_ps + score.since_ps(), self.waited_ps);
        self.tally.take(score);
        if let Some(table) = table {
            self.tally.book(device, spaces, table, now);
        }
    }

    /// Nothing ran before this time.
    pub fn starts_at(&mut self, time_ps: u64) {
        self.time_ps = time_ps;
        self.begun_ps = time_ps;
        self.tally.skip(time_ps);
    }

    /// Is it time to book?
    pub fn books(&self, score: &Score) -> bool {
        self.tally.is_due(self.time_ps + score.since_ps())
    }

    #[inline(never)]
    fn sample(&mut self, device: &Device, fill: &Fill<'_>) {
        if self.sample_period == 0 {
            self.sample_left = u64::MAX;
            return;
        }
        self.sample_left = self.draw(self.sample_period);
        let stream = u8::from(fill.stream) * ring::STREAM;
        self.put(device, fill, stream);
    }

    /// Between half and one and a half periods, so that strides do not alias.
    fn draw(&mut self, period: u32) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        let period = u64::from(period);
        (period / 2 + self.random % (period + 1)).max(1)
    }

    /// Writes a sample into the ring, with these flags besides those of every access.
    fn put(&mut self, device: &Device, fill: &Fill<'_>, flags: u8) {
        let head = device.get(self.block + block::RING_HEAD);
        let tail = device.get(control::RING_TAIL + 8 * self.id);
        if head.wrapping_sub(tail) >= ring::CAPACITY as u64 {
            device.add(self.block + block::RING_LOST, 1);
            return;
        }
        let at = ring::BASE
            + ring::STRIDE * self.id
            + (head as usize % ring::CAPACITY) * ring::SAMPLE_BYTES;
        device.set(at + ring::VADDR, fill.vaddr);
        device.set(at + ring::PADDR, fill.paddr);
        device.set(at + ring::TIME_NS, self.time_ps / 1000);
        device
            .u32(at + ring::LATENCY_NS)
            .store((fill.latency_ps / 1000) as u32, Relaxed);
        device.u8(at + ring::NODE).store(fill.node as u8, Relaxed);
        let flags =
            flags | (u8::from(fill.store) * ring::WRITE) | (u8::from(fill.kernel) * ring::KERNEL);
        device.u8(at + ring::FLAGS).store(flags, Relaxed);
        let executed = (fill.executed)();
        device.set(at + ring::CODE, executed.code);
        device.set(at + ring::PAGE_TABLE, executed.page_table);
        let before = match self.sampled_load {
            Some((pc, vaddr, [before, _]))
                if flags & ring::REFERENCE != 0 && (pc, vaddr) == (fill.pc, fill.vaddr) =>
            {
                before
            }
            _ => at,
        };
        self.sampled_load = (!fill.store).then_some((fill.pc, fill.vaddr, [at, before]));
        // Pairs with the reader's acquire load of the head: the sample is complete first.
        device
            .u64(self.block + block::RING_HEAD)
            .store(head + 1, Release);
    }

    /// A store: where it belongs to the instruction whose load was sampled last, the sample is of
    /// a write too. The reader may have the sample already, which loses no more than this.
    pub fn stored(&mut self, device: &Device, pc: u64, vaddr: u64) {
        if let Some((_, _, places)) = self
            .sampled_load
            .take_if(|&mut (load_pc, load_vaddr, _)| (load_pc, load_vaddr) == (pc, vaddr))
        {
            for at in places {
                let flags = device.u8(at + ring::FLAGS);
                flags.store(flags.load(Relaxed) | ring::WRITE | ring::UPDATE, Relaxed);
            }
        }
    }

    /// Moves the scoreboard's counts to the device.
    pub fn flush(&mut self, device: &Device, score: &mut Score) {
        self.tally.take_last(score);
        self.count(device, block::INSTRUCTIONS_USER, score.user());
        self.count(device, block::INSTRUCTIONS_KERNEL, score.kernel);
        self.count(device, block::FLOPS, score.flops);
        self.count(device, block::SYSCALLS, score.syscalls);
        self.count(device, block::DEVICE_ACCESSES, score.ports);
        self.count(device, block::DEMAND_MISSES, self.demand_misses);
        self.stalled_ps += self.stall_ps;
        self.stall_ps = 0;
        self.demand_misses = 0;
        self.time_ps += std::mem::take(&mut *score).since_ps();
        device.set(self.block + block::STALL_NS, self.waited_ps / 1000);
        let other_ps = self.stalled_ps.saturating_sub(self.waited_ps);
        device.set(self.block + block::OTHER_STALL_NS, other_ps / 1000);
        device.set(
            self.block + block::LATENCY_SUM_NS,
            self.latency_sum_ps / 1000,
        );
        device.set(self.block + block::TIME_NS, self.time_ps / 1000);
    }

    /// Starts [`Score::since_ps`] at this much, so that it reaches the quantum so much sooner.
    pub fn begin(&mut self, score: &mut Score, head_start_ps: u64) {
        let by = head_start_ps.min(self.time_ps);
        self.begun_ps = self.time_ps;
        self.time_ps -= by;
        score.pass(by);
    }

    /// A wait for capacity: time passes, and so many demand misses as were under way waited.
    pub fn delay(&mut self, delay_ps: u64, under_way: f64) {
        self.time_ps += delay_ps;
        self.stalled_ps += delay_ps;
        self.waited_ps += delay_ps;
        self.latency_sum_ps += (delay_ps as f64 * under_way) as u64;
    }

    /// Demand misses that were under way at a time since the last synchronisation, in the mean over
    /// their stalls (Little's law): 1 to `mlp`, or 0 where there was none.
    pub fn take_under_way(&mut self, mlp: f64) -> f64 {
        let latency_ps = std::mem::take(&mut self.demand_latency_ps) as f64;
        let stall_ps = std::mem::take(&mut self.demand_stall_ps).max(1) as f64;
        let most = mlp.min(self.demand_misses as f64);
        (latency_ps / stall_ps).max(1.0).min(most)
    }

    /// Time spent halted.
    pub fn idle(&mut self, device: &Device, idle_ps: u64) {
        self.idle_ps += idle_ps;
        self.tally.skip(idle_ps);
        device.set(self.block + block::IDLE_NS, self.idle_ps / 1000);
    }

    /// Looks at what the guest wrote into the control page.
    pub fn control(&mut self, device: &Device, shared: &Mutex<Regions>, line_bytes: u32) {
        let period = device.u32(control::SAMPLE_PERIOD).load(Relaxed);
        if period != self.sample_period {
            self.sample_period = period;
            self.sample_left = if period == 0 {
                u64::MAX
            } else {
                u64::from(period)
            };
        }
        let period = device.u32(control::TRANSFER_PERIOD).load(Relaxed);
        if period != self.transfer_period {
            self.transfer_period = period;
            self.transfer_left = u64::from(period.max(1));
        }
        let period = device.u32(control::REFERENCE_PERIOD).load(Relaxed);
        if period != self.reference_period {
            self.reference_period = period;
            self.reference_left = if period == 0 {
                u64::MAX
            } else {
                u64::from(period)
            };
        }
        self.reference_ns = device.u32(control::REFERENCE_NS).load(Relaxed);
        let mask = device.u32(control::WAY_MASKS + 4 * self.id).load(Relaxed);
        if mask != self.way_mask {
            self.way_mask = mask;
            self.ways = match mask & self.all_ways {
                0 => self.all_ways,
                allowed => allowed,
            };
        }
        self.sample_skip = device.u32(control::SAMPLE_SKIP).load(Relaxed);
        let sequence = device.u32(control::FILTER_SEQ).load(Relaxed);
        if sequence != self.filter_sequence {
            let mut shared = shared.lock().expect("no thread panics while holding it");
            shared.refresh(device, sequence, line_bytes);
            self.filter_sequence = sequence;
            self.watch.clone_from(&shared.active);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PC: u64 = 0x40_0000;
    const EXECUTED: Executed = Executed {
        code: 0x5555_0000_1000,
        page_table: 0x1234_5000,
    };

    fn fill(vaddr: u64, kernel: bool) -> Fill<'static> {
        Fill {
            pc: PC,
            executed: &|| EXECUTED,
            vaddr,
            paddr: vaddr,
            node: 0,
            store: false,
            kernel,
            stream: false,
            latency_ps: 100_000,
        }
    }

    fn sampling(skip: u32) -> (Device, Vcpu) {
        let file = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../../machines/opteron8385.toml"
        );
        let text = std::fs::read_to_string(file).unwrap();
        let machine = hither_core::machine::parse::parse(&text).unwrap();
        let device = Device::map(None).unwrap();
        device.u32(control::SAMPLE_PERIOD).store(100, Relaxed);
        device.u32(control::SAMPLE_SKIP).store(skip, Relaxed);
        let mut vcpu = Vcpu::new(&machine, 0);
        vcpu.control(&device, &Mutex::default(), 64);
        (device, vcpu)
    }

    fn taken(device: &Device) -> u64 {
        device.get(block::BASE + block::RING_HEAD)
    }

    #[test]
    fn as_many_misses_wait_for_capacity_as_were_under_way() {
        let (device, mut vcpu) = sampling(0);
        // 100 misses of 100 ns each, of which four at a time, one at a time, or all at once.
        for (stall_ps, wanted) in [(2_500_000, 4.0), (10_000_000, 1.0), (0, 8.0)] {
            for at in 0..100 {
                vcpu.fill(&device, &fill(at * 64, false));
            }
            vcpu.demand_stall_ps = stall_ps;
            assert_eq!(vcpu.take_under_way(8.0), wanted);
            vcpu.flush(&device, &mut Score::default());
        }
        assert_eq!(vcpu.take_under_way(8.0), 0.0, "none waits");
    }

    #[test]
    fn fills_left_out_are_not_counted_down() {
        for (skip, kernel_share) in [(0, 1), (1, 0)] {
            let (device, mut vcpu) = sampling(skip);
            for at in 0..100_000 {
                vcpu.fill(&device, &fill(at * 64, at % 10 != 0));
            }
            // Of 10,000 user fills and 90,000 of the kernel.
            let wanted = (10_000 + kernel_share * 90_000) / 100;
            assert!(
                taken(&device).abs_diff(wanted) < wanted / 5,
                "{}",
                taken(&device)
            );
        }
    }

    #[test]
    fn transfers_are_sampled_by_a_period_of_their_own() {
        let (device, mut vcpu) = sampling(1);
        vcpu.transfer(&device, &fill(64, false));
        assert_eq!(taken(&device), 0, "off until asked for");
        device.u32(control::TRANSFER_PERIOD).store(10, Relaxed);
        vcpu.control(&device, &Mutex::default(), 64);
        for at in 0..10_000 {
            vcpu.transfer(&device, &fill(at * 64, at % 2 == 0));
        }
        // Half of them are the kernel's, which is left out.
        assert!(taken(&device).abs_diff(500) < 50, "{}", taken(&device));
        assert_eq!(device.get(block::BASE + block::TRANSFERS), 10_001);
        let flags = device.u8(ring::BASE + ring::FLAGS).load(Relaxed);
        assert_eq!(flags, ring::TRANSFER);
        assert_eq!(device.get(ring::BASE + ring::CODE), EXECUTED.code);
        let page_table = device.get(ring::BASE + ring::PAGE_TABLE);
        assert_eq!(page_table, EXECUTED.page_table);
    }

    #[test]
    fn references_are_sampled_by_a_period_of_their_own() {
        let (device, mut vcpu) = sampling(0);
        device.u32(control::SAMPLE_PERIOD).store(0, Relaxed);
        device.u32(control::REFERENCE_PERIOD).store(10, Relaxed);
        vcpu.control(&device, &Mutex::default(), 64);
        for at in 0..10_000 {
            if vcpu.reference() {
                vcpu.sample_reference(&device, &fill(at * 64, false));
            }
        }
        assert!(taken(&device).abs_diff(1000) < 100, "{}", taken(&device));
        let flags = device.u8(ring::BASE + ring::FLAGS).load(Relaxed);
        assert_eq!(flags, ring::REFERENCE);
        // None within the time that must lie between two, and one when it has passed.
        device.u32(control::REFERENCE_NS).store(5000, Relaxed);
        vcpu.control(&device, &Mutex::default(), 64);
        let before = taken(&device);
        for _ in 0..10 {
            for at in 0..1000 {
                if vcpu.reference() {
                    vcpu.sample_reference(&device, &fill(at * 64, false));
                }
            }
            vcpu.time_ps += 2_500_000;
        }
        assert!((4..=8).contains(&(taken(&device) - before)));
        device.u32(control::REFERENCE_PERIOD).store(0, Relaxed);
        vcpu.control(&device, &Mutex::default(), 64);
        let before = taken(&device);
        assert!((0..10_000).all(|_| !vcpu.reference()));
        assert_eq!(taken(&device), before);
    }

    #[test]
    fn a_load_whose_instruction_stores_is_sampled_as_a_write() {
        let (device, mut vcpu) = sampling(0);
        let mut at = 0;
        let mut next = |vcpu: &mut Vcpu| {
            let before = taken(&device);
            while taken(&device) == before {
                at += 64;
                vcpu.fill(&device, &fill(at, false));
            }
            (
                at,
                ring::BASE + before as usize * ring::SAMPLE_BYTES + ring::FLAGS,
            )
        };
        let (vaddr, flags) = next(&mut vcpu);
        vcpu.stored(&device, PC, vaddr);
        let told = device.u8(flags).load(Relaxed);
        assert_eq!(told & ring::WRITE, ring::WRITE);
        assert!(ring::is_load(told), "it is one of a load all the same");
        let (vaddr, flags) = next(&mut vcpu);
        vcpu.stored(&device, PC + 4, vaddr);
        vcpu.stored(&device, PC, vaddr + 8);
        assert_eq!(device.u8(flags).load(Relaxed) & ring::WRITE, 0);
        // A reference whose fill was sampled just before: both.
        device.u32(control::REFERENCE_PERIOD).store(1, Relaxed);
        vcpu.control(&device, &Mutex::default(), 64);
        let (vaddr, flags) = next(&mut vcpu);
        vcpu.sample_reference(&device, &fill(vaddr, false));
        vcpu.stored(&device, PC, vaddr);
        for flags in [flags, flags + ring::SAMPLE_BYTES] {
            assert_eq!(device.u8(flags).load(Relaxed) & ring::WRITE, ring::WRITE);
        }
    }
}
