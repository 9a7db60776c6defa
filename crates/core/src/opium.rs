//! Layout of the Opium device: the pages that the lab's plugin and the guest share.
//!
//! The device is QEMU's `ivshmem-plain` (PCI 1af4:1110); the guest maps its BAR 2 through the
//! sysfs file `resource2`, the plugin maps the same memory. After the Opium card of the IBM
//! ccNUMA work (filters, granularity 32 B to 2 MB, 512K counters, secondary counters,
//! threshold). Everything is little-endian; every field is naturally aligned and accessed whole.
//! *P* marks fields that the plugin writes and the guest reads, *G* the reverse.
//!
//! ```text
//! 0x000000  header      P   4 KiB   identity, sizes, clock
//! 0x001000  control     G   4 KiB   sampling, way masks, filters, secondary counters, read positions
//! 0x002000  vcpus       P   16 x 2 KiB counters of one vCPU each
//! 0x00a000  nodes       P   8 x 64 B
//! 0x00a400  links       P   64 x 64 B
//! 0x00c000  windows     P   16 x 1 KiB measuring windows
//! 0x010000  fired       P   64 KiB  one bit per base counter
//! 0x020000  secondary   P   16 x 128 B counts of secondary counters
//! 0x021000  notices     P   4 KiB   thresholds that were reached
//! 0x080000  spaces      P   2048 x 256 B address spaces
//! 0x100000  rings       P   16 x 640 KiB sample rings
//! 0x1000000 counters    P   512K x 8 x u32, one per region and requesting node
//! 0x2000000 end (32 MiB)
//! ```
//!
//! The pages are priced as private-cache hits: a real sampling buffer is cached local memory.

/// First eight bytes of the header: `HITHEROP`.
pub const MAGIC: u64 = u64::from_le_bytes(*b"HITHEROP");
/// Version of this layout. A reader refuses any other.
pub const VERSION: u32 = 8;
/// PCI vendor of `ivshmem-plain`.
pub const PCI_VENDOR: u16 = 0x1af4;
/// PCI device of `ivshmem-plain`.
pub const PCI_DEVICE: u16 = 0x1110;
/// Size of the whole device in bytes.
pub const SIZE: usize = 0x200_0000;

/// Most vCPUs.
pub const MAX_VCPUS: usize = 16;
/// Most nodes.
pub const MAX_NODES: usize = 8;
/// Most directed links.
pub const MAX_LINKS: usize = 64;
/// Filters, each of a range of memory (IBM ccNUMA paper, section 2: 32).
pub const FILTERS: usize = 32;
/// Secondary counters, each over a set of filters (the same: 16).
pub const SECONDARIES: usize = 16;
/// Address spaces that are counted apart; later ones are not.
pub const SPACES: usize = 2048;
/// Measuring windows.
pub const WINDOWS: usize = 16;
/// Base counters per requesting node.
pub const COUNTERS: usize = 512 * 1024;

/// Header fields, at offset 0. *P*
pub mod header {
    /// u64 [`super::MAGIC`], written last.
    pub const MAGIC: usize = 0;
    /// u32 [`super::VERSION`].
    pub const VERSION: usize = 8;
    /// u32 vCPUs.
    pub const VCPU_COUNT: usize = 12;
    /// u32 nodes (positions of the machine file's list).
    pub const NODE_COUNT: usize = 16;
    /// u32 directed links.
    pub const LINK_COUNT: usize = 20;
    /// u32 bytes per cache line.
    pub const LINE_BYTES: usize = 24;
    /// u32 largest skew between running vCPUs that was allowed, in ns.
    pub const SKEW_LIMIT_NS: usize = 28;
    /// u64 modelled time in ns (the slowest running vCPU).
    pub const TIME_NS: usize = 32;
    /// u64 largest skew seen at a synchronisation, in ns.
    pub const MAX_SKEW_NS: usize = 40;
    /// u64 times a waiting vCPU was let go beyond the skew limit so as not to deadlock.
    pub const SKEW_BREAKS: usize = 48;
    /// u32 x 8: the kernel's number of each node position.
    pub const NODE_IDS: usize = 64;
    /// u8 x 16: node position of each vCPU.
    pub const VCPU_NODES: usize = 96;
    /// u64 entries of [`super::space`] that are in use, the first ones.
    pub const SPACE_COUNT: usize = 112;
}

/// Control fields. *G*
pub mod control {
    /// Offset of the control page.
    pub const BASE: usize = 0x1000;
    /// u32: one sample per this many memory fills of a vCPU, of those not left out; 0 turns
    /// sampling off.
    pub const SAMPLE_PERIOD: usize = BASE;
    /// u32: [`SKIP_KERNEL`] leaves out kernel accesses, [`SKIP_STREAMS`] stream (prefetch) fills.
    pub const SAMPLE_SKIP: usize = BASE + 4;
    /// Bit of [`SAMPLE_SKIP`].
    pub const SKIP_KERNEL: u32 = 1;
    /// Bit of [`SAMPLE_SKIP`].
    pub const SKIP_STREAMS: u32 = 2;
    /// u32: a change of this number makes the plugin read filters and secondary counters, and clear the counts of
    /// those whose epoch changed.
    pub const FILTER_SEQ: usize = BASE + 8;
    /// u32: one sample per this many *transfers* of a vCPU, lines that another CPU's cache had
    /// modified and handed over (Intel's HITM event, AMD's fill from another cache); 0 turns that
    /// off. Kernel accesses are left out as [`SAMPLE_SKIP`] says.
    pub const TRANSFER_PERIOD: usize = BASE + 12;
    /// u32: what hither may tell of the device, an agreement among its readers; the plugin ignores it.
    /// [`EVIDENCE_PMU`]: what a processor's PMU tells; else all.
    pub const EVIDENCE: usize = BASE + 16;
    /// A value of [`EVIDENCE`].
    pub const EVIDENCE_PMU: u32 = 1;
    /// u32: one sample per this many *references* of a vCPU to its last-level cache, misses of its private
    /// cache in user mode, on demand or by a stream, whether the last-level cache has the line or not; 0
    /// turns that off.
    pub const REFERENCE_PERIOD: usize = BASE + 20;
    /// u32: of these samples two of a vCPU are so many ns of its time apart, about, at the least: programs that share it
    /// have samples by the time for which they run, as those of a PMU are that is told a frequency.
    pub const REFERENCE_NS: usize = BASE + 24;
    /// u64 x 16: samples that the reader has consumed, per vCPU.
    pub const RING_TAIL: usize = BASE + 0x80;
    /// u32 x 16: ways of its last-level cache that a vCPU may fill, bit w for way w; 0, and a mask that names
    /// none of the cache's ways, stand for all. As Intel's CAT has it, a mask says which lines a fill may
    /// replace; a line is found in whatever way it is.
    pub const WAY_MASKS: usize = BASE + 0x100;
    /// 32 filters of 64 bytes.
    pub const FILTERS: usize = BASE + 0x200;
    /// 16 secondary counters of 32 bytes.
    pub const SECONDARIES: usize = BASE + 0xa00;
}

/// Types of transactions: one bit each, masks of which filters and secondary counters have. A *fill* is a line that
/// memory delivers.
pub mod transaction {
    /// A fill for a load.
    pub const READ: u32 = 1;
    /// A fill for a store.
    pub const WRITE: u32 = 1 << 1;
    /// A fill that a stream brought ahead of loads.
    pub const PREFETCH: u32 = 1 << 2;
    /// A fill that a stream brought ahead of stores.
    pub const PREFETCH_WRITE: u32 = 1 << 3;
    /// A line written back, or written past the caches. Its requester is the node of the cache that gives it up.
    pub const WRITE_BACK: u32 = 1 << 4;
    /// A line that another CPU's cache had modified and handed over, for a load.
    pub const TRANSFER: u32 = 1 << 5;
    /// The same for a store.
    pub const TRANSFER_WRITE: u32 = 1 << 6;
    /// A line that was held, and of another node's memory, became the CPU's own.
    pub const OWNERSHIP: u32 = 1 << 7;
    /// All fills.
    pub const FILLS: u32 = READ | WRITE | PREFETCH | PREFETCH_WRITE;
    /// All that caches hand over.
    pub const TRANSFERS: u32 = TRANSFER | TRANSFER_WRITE;
    /// All that stores ask for.
    pub const WRITES: u32 = WRITE | PREFETCH_WRITE | TRANSFER_WRITE | OWNERSHIP;
    /// Every type.
    pub const ALL: u32 = FILLS | TRANSFERS | WRITE_BACK | OWNERSHIP;
}

/// One filter: 64 bytes at `control::FILTERS + 64 * index`. *G*
pub mod filter {
    /// u32 flags, below.
    pub const FLAGS: usize = 0;
    /// u32 log2 of the granularity in bytes: line size to [`MAX_SHIFT`].
    pub const SHIFT: usize = 4;
    /// u64 first physical address.
    pub const START: usize = 8;
    /// u64 end (exclusive).
    pub const END: usize = 16;
    /// u32 first counter.
    pub const BASE_COUNTER: usize = 24;
    /// u32 count of one requesting node at which a counter fires; 0 never.
    pub const THRESHOLD: usize = 28;
    /// u32 bits of [`super::transaction`] that it counts.
    pub const TYPES: usize = 32;
    /// u32 position of the node whose traffic is meant; [`ANY_NODE`] is that of every node.
    pub const NODE: usize = 36;
    /// u32 directions as seen from that node, below; 0 is all.
    pub const DIRECTIONS: usize = 40;
    /// u32: where it differs from what the plugin read last, the filter's counts are cleared.
    pub const EPOCH: usize = 44;
    /// Flag: the filter counts.
    pub const ENABLED: u32 = 1;
    /// Flag: leave out what kernel mode asked for. Who wrote what is written back is not known: that is counted.
    pub const USER: u32 = 32;
    /// Largest granularity: 2 MiB.
    pub const MAX_SHIFT: u32 = 21;
    /// A value of [`NODE`].
    pub const ANY_NODE: u32 = u32::MAX;
    /// Direction: other nodes ask the node's memory.
    pub const INBOUND: u32 = 1;
    /// Direction: the node's CPUs ask other nodes' memory.
    pub const OUTBOUND: u32 = 2;
    /// Direction: the node's CPUs ask its own memory. Opium, which taps the interconnect, sees none of that.
    pub const LOCAL: u32 = 4;
    /// What crosses between nodes.
    pub const REMOTE: u32 = INBOUND | OUTBOUND;

    /// Do directions (0: all), as seen from a node (`None`: any), let through what a requester asks of the memory
    /// of `home`?
    #[must_use]
    pub fn lets_through<N: Copy + PartialEq>(
        directions: u32,
        node: Option<N>,
        requester: N,
        home: N,
    ) -> bool {
        let is_meant = |other: N| node.is_none_or(|node| node == other);
        let has = |direction: u32| directions == 0 || directions & direction != 0;
        match home == requester {
            true => has(LOCAL) && is_meant(home),
            false => has(INBOUND) && is_meant(home) || has(OUTBOUND) && is_meant(requester),
        }
    }
}

/// One secondary counter: 32 bytes at `control::SECONDARIES + 32 * index`. It counts along with each filter of its set,
/// what is of its own types. *G*
pub mod secondary {
    /// u32: [`super::filter::ENABLED`].
    pub const FLAGS: usize = 0;
    /// u32: its set, bit f for filter f.
    pub const FILTERS: usize = 4;
    /// u32 bits of [`super::transaction`]: what it counts of what its filters count.
    pub const TYPES: usize = 8;
    /// u32 as of a filter.
    pub const EPOCH: usize = 12;
    /// u64 count of all nodes together at which it fires; 0 never.
    pub const THRESHOLD: usize = 16;
    /// Offset of the counts of the first. *P*
    pub const COUNTS: usize = 0x2_0000;
    /// Bytes of one's counts: u64 `[requesting node]`, and the sum of them.
    pub const COUNTS_STRIDE: usize = 128;
    /// Where the sum is.
    pub const SUM: usize = super::MAX_NODES * 8;
}

/// Thresholds that were reached: a number that grows by one for each, for whoever waits, and the last ones of them. *P*
pub mod notice {
    /// Offset of the u64 number of notices since boot.
    pub const SEQUENCE: usize = 0x2_1000;
    /// Offset of the u64 words; notice n, from 1 on, is the one at `(n - 1) % CAPACITY`. It is written after the number
    /// has grown: until its upper half is n, it is not there yet.
    pub const WORDS: usize = 0x2_1800;
    /// How many are kept.
    pub const CAPACITY: usize = 256;
    /// Bits of the counter within a word: of a filter the base counter, else 0.
    pub const COUNTER_BITS: u32 = 20;
    /// Lowest bit of the filter's or the secondary counter's number, of 5.
    pub const INDEX_SHIFT: u32 = 20;
    /// Bit: of a secondary counter.
    pub const SECONDARY: u64 = 1 << 25;
    /// Lowest bit of the requesting node's position, of 3: whose transaction was the last that it took.
    pub const REQUESTER_SHIFT: u32 = 26;
    /// Lowest bit of the notice's number, of which there are 32 bits.
    pub const NUMBER_SHIFT: u32 = 32;
}

/// Counters of one vCPU: 2 KiB at `vcpu::BASE + vcpu::STRIDE * index`; all u64. *P*
pub mod vcpu {
    /// Offset of the first block.
    pub const BASE: usize = 0x2000;
    /// Bytes per block.
    pub const STRIDE: usize = 0x800;
    /// Instructions in user mode.
    pub const INSTRUCTIONS_USER: usize = 0;
    /// Instructions in kernel mode.
    pub const INSTRUCTIONS_KERNEL: usize = 8;
    /// Floating-point operations (user mode; an operation on n lanes counts n).
    pub const FLOPS: usize = 16;
    /// Modelled time of this vCPU in ns.
    pub const TIME_NS: usize = 24;
    /// Time lost to memory itself, in ns; see [`OTHER_STALL_NS`].
    pub const STALL_NS: usize = 32;
    /// Sum of latencies of demand misses to memory, in ns.
    pub const LATENCY_SUM_NS: usize = 40;
    /// Demand misses in that sum.
    pub const DEMAND_MISSES: usize = 48;
    /// Misses that depended on an earlier miss.
    pub const DEPENDENT_MISSES: usize = 56;
    /// TLB misses.
    pub const TLB_MISSES: usize = 64;
    /// System calls.
    pub const SYSCALLS: usize = 72;
    /// Exceptions (page faults).
    pub const EXCEPTIONS: usize = 80;
    /// Interrupts.
    pub const INTERRUPTS: usize = 88;
    /// Page-table switches.
    pub const PAGE_TABLE_SWITCHES: usize = 96;
    /// Single-page flushes.
    pub const INVLPGS: usize = 104;
    /// Lines taken from another cache that had modified them.
    pub const TRANSFERS: usize = 112;
    /// Stores that invalidated clean copies elsewhere.
    pub const INVALIDATIONS: usize = 120;
    /// Hits in the last-level cache.
    pub const LLC_HITS: usize = 128;
    /// Inter-processor interrupts sent.
    pub const IPIS: usize = 136;
    /// Halts ended by an interrupt.
    pub const WAKEUPS: usize = 144;
    /// Samples written to the ring since boot (its head).
    pub const RING_HEAD: usize = 152;
    /// Samples lost because the ring was full.
    pub const RING_LOST: usize = 160;
    /// Device accesses.
    pub const DEVICE_ACCESSES: usize = 168;
    /// Time spent halted, in ns.
    pub const IDLE_NS: usize = 176;
    /// Private-cache misses (fills from last-level cache, other caches or memory).
    pub const PRIVATE_MISSES: usize = 184;
    /// Those of them in kernel mode.
    pub const KERNEL_REFERENCES: usize = 192;
    /// Time lost to loads and stores otherwise, in ns: caches, page walks, lines of other CPUs.
    pub const OTHER_STALL_NS: usize = 200;
    /// Memory fills, demand and prefetch, `[8 nodes]` each, for: user read, user write, kernel
    /// read, kernel write (a write is a fill for a store).
    pub const FILLS: usize = 256;
    /// Fills of those four kinds that a stream brought (prefetch), same shape.
    pub const STREAM_FILLS: usize = 512;
    /// Lines written back or written past the caches, `[8 nodes]`.
    pub const WRITE_BACKS: usize = 768;

    /// Offset of a fill counter within a block. `kind`: see [`FILLS`].
    #[must_use]
    pub const fn fills(kind: usize, node: usize) -> usize {
        FILLS + (kind * super::MAX_NODES + node) * 8
    }

    /// Offset of a stream-fill counter within a block.
    #[must_use]
    pub const fn stream_fills(kind: usize, node: usize) -> usize {
        STREAM_FILLS + (kind * super::MAX_NODES + node) * 8
    }

    /// Offset of a write-back counter within a block.
    #[must_use]
    pub const fn write_backs(node: usize) -> usize {
        WRITE_BACKS + node * 8
    }
}

/// State of one node: 64 bytes at `node::BASE + 64 * position`. *P*
pub mod node {
    /// Offset of the first.
    pub const BASE: usize = 0xa000;
    /// u64 bytes read from this memory since boot.
    pub const READ_BYTES: usize = 0;
    /// u64 bytes written to it.
    pub const WRITE_BYTES: usize = 8;
    /// u32 recent utilisation in parts per million.
    pub const UTILISATION_PPM: usize = 16;
    /// u32 present capacity in MB/s.
    pub const CAPACITY_MBS: usize = 20;
    /// u64 sum over time of the utilisation, in ppm * us (differences give the mean).
    pub const UTILISATION_INTEGRAL: usize = 24;
    /// u64 packets without a line that crossed between this memory and other nodes' CPUs: a line asked for, or a line
    /// that was held asked for as their own, and the answer to that.
    pub const SHORT_PACKETS: usize = 32;
    /// u64 packets with a line that crossed: delivered, or written back. What caches hand over is in neither.
    pub const LINE_PACKETS: usize = 40;
}

/// State of one link: 64 bytes at `link::BASE + 64 * position`. *P*
pub mod link {
    /// Offset of the first.
    pub const BASE: usize = 0xa400;
    /// u64 bytes on the wire since boot, headers included.
    pub const BYTES: usize = 0;
    /// u32 recent utilisation in parts per million.
    pub const UTILISATION_PPM: usize = 16;
    /// u32 capacity in MB/s.
    pub const CAPACITY_MBS: usize = 20;
    /// u64 sum over time of the utilisation, in ppm * us.
    pub const UTILISATION_INTEGRAL: usize = 24;
}

/// One measuring window: 1 KiB at `window::BASE + window::STRIDE * id`. A marker opens and
/// closes it; totals add up over openings. *P*
pub mod window {
    /// Offset of the first.
    pub const BASE: usize = 0xc000;
    /// Bytes per window.
    pub const STRIDE: usize = 0x400;
    /// u64 times opened.
    pub const OPENED: usize = 0;
    /// u64 times closed; open while less than `OPENED`.
    pub const CLOSED: usize = 8;
    /// u64 modelled ns between, of the vCPU that marked.
    pub const TIME_NS: usize = 16;
    /// The sum over vCPUs of the first 1000 bytes of their blocks would not fit, so a window
    /// keeps these: u64 instructions, user and kernel.
    pub const INSTRUCTIONS: usize = 24;
    /// u64 TLB misses.
    pub const TLB_MISSES: usize = 32;
    /// u64 stall ns.
    pub const STALL_NS: usize = 40;
    /// u64 latency sum ns.
    pub const LATENCY_SUM_NS: usize = 48;
    /// u64 demand misses.
    pub const DEMAND_MISSES: usize = 56;
    /// u64 transfers.
    pub const TRANSFERS: usize = 64;
    /// u64 last-level hits.
    pub const LLC_HITS: usize = 72;
    /// u64 floating-point operations.
    pub const FLOPS: usize = 80;
    /// u64 x 8 user read fills by memory node.
    pub const USER_READ_FILLS: usize = 128;
    /// u64 x 8 user write fills by memory node.
    pub const USER_WRITE_FILLS: usize = 192;
    /// u64 x 8 write-backs by memory node.
    pub const WRITE_BACKS: usize = 256;
    /// u64 x 8 user fills served by the requester's own node.
    pub const USER_LOCAL_FILLS: usize = 320;
}

/// Fired bits: bit `i & 63` of u64 `i >> 6`. *P*
pub const FIRED: usize = 0x1_0000;

/// What was executed in one address space since boot: 256 bytes at `space::BASE + space::STRIDE * index`; all
/// u64, added to by every vCPU, some 100 us late and at each switch of address spaces. Where the kernel uses a
/// page table again, its counts go on. *P*
pub mod space {
    /// Offset of the first.
    pub const BASE: usize = 0x8_0000;
    /// Bytes per entry.
    pub const STRIDE: usize = 256;
    /// Physical address of the page table (as [`super::ring::PAGE_TABLE`]).
    pub const PAGE_TABLE: usize = 0;
    /// Instructions in user mode.
    pub const INSTRUCTIONS: usize = 8;
    /// Floating-point operations (user mode; an operation on n lanes counts n).
    pub const FLOPS: usize = 16;
    /// Modelled time in ns in which it was in force, user and kernel mode.
    pub const TIME_NS: usize = 24;
    /// Time of that lost to memory, in ns.
    pub const STALL_NS: usize = 32;
    /// Virtual address of a recent fill in user mode; with [`PADDR`], which may be of another fill where a
    /// vCPU writes meanwhile, it tells whose address space this is.
    pub const VADDR: usize = 40;
    /// Physical address of the same.
    pub const PADDR: usize = 48;
    /// Private-cache misses in user mode: references to the last-level cache.
    pub const PRIVATE_MISSES: usize = 56;
    /// Fills for loads in user mode, `[8 nodes]`.
    pub const READ_FILLS: usize = 64;
    /// Fills for stores in user mode, `[8 nodes]`.
    pub const WRITE_FILLS: usize = 128;
    /// Lines written back or written past the caches while it was in force, `[8 nodes]`.
    pub const WRITE_BACKS: usize = 192;
}

/// Sample rings. *P*
pub mod ring {
    /// Offset of the first ring.
    pub const BASE: usize = 0x10_0000;
    /// Samples per ring: a power of two.
    pub const CAPACITY: usize = 16_384;
    /// Bytes per sample.
    pub const SAMPLE_BYTES: usize = 48;
    /// Bytes per ring.
    pub const STRIDE: usize = CAPACITY * SAMPLE_BYTES;
    /// u64 virtual address.
    pub const VADDR: usize = 0;
    /// u64 physical address.
    pub const PADDR: usize = 8;
    /// u64 modelled time in ns.
    pub const TIME_NS: usize = 16;
    /// u32 latency in ns (a stream fill has the time it cost).
    pub const LATENCY_NS: usize = 24;
    /// u8 position of the memory node; of the line's home also where a cache served.
    pub const NODE: usize = 28;
    /// u8 flags, below.
    pub const FLAGS: usize = 29;
    /// u64 virtual address of the instruction, in the process that ran it; of a stream fill, of the one
    /// that brought it.
    pub const CODE: usize = 32;
    /// u64 physical address of the page table in force (CR3, its flags left out): which address space
    /// the virtual addresses are of, of a stream fill as for [`CODE`].
    pub const PAGE_TABLE: usize = 40;
    /// Flag: a store, or a load by an instruction that stores to the same place (as AMD IBS tells
    /// of an operation that does both).
    pub const WRITE: u8 = 1;
    /// Flag: kernel mode.
    pub const KERNEL: u8 = 2;
    /// Flag: brought by a stream.
    pub const STREAM: u8 = 4;
    /// Flag: no memory fill, but a line that another CPU's cache had modified and handed over.
    pub const TRANSFER: u8 = 8;
    /// Flag: no memory fill, but a reference to the last-level cache, whoever served it
    /// ([`super::control::REFERENCE_PERIOD`]). Its latency is that of whoever did; [`STREAM`] says that a
    /// stream brought it, [`TRANSFER`] is not set.
    pub const REFERENCE: u8 = 16;
    /// Flag, with [`WRITE`]: it was the load of an instruction that stores to the same place.
    pub const UPDATE: u8 = 32;

    /// Is a sample with these flags one of a load, whatever its instruction does besides?
    #[must_use]
    pub const fn is_load(flags: u8) -> bool {
        flags & WRITE == 0 || flags & UPDATE != 0
    }

    /// Is its latency what a load of memory took: neither a stream's nor a transfer between caches?
    #[must_use]
    pub const fn tells_latency(flags: u8) -> bool {
        is_load(flags) && flags & (TRANSFER | STREAM) == 0
    }
}

/// Base counters: u32 `[counter][8 requesting nodes]`. *P*
pub const COUNTER_BASE: usize = 0x100_0000;

/// Markers: `nop dword ptr [rax + imm32]` (0f 1f 80 imm32), a no-operation on every x86-64 CPU,
/// seen by the plugin at translation. `imm32 = MARKER_MAGIC | window << 4 | what`.
pub const MARKER_MAGIC: u32 = 0x4f50_4900;
/// `what`: open the window.
pub const MARKER_OPEN: u32 = 1;
/// `what`: close the window.
pub const MARKER_CLOSE: u32 = 2;
/// `what`: the guest's kernel has started. Accesses before are not modelled. Without a window.
pub const MARKER_STARTED: u32 = 3;
/// `what`: the doorbell of the copy engine, for the ring at the address in `rax`
/// ([`crate::copy_engine`]). Without a window.
pub const MARKER_DOORBELL: u32 = 4;
/// `what`: a look at that ring's completion records. A real engine writes them when the time has
/// come; here they are brought up to the CPU's time by this, for nothing. Without a window.
pub const MARKER_LOOK: u32 = 5;

const _: () = {
    assert!(control::RING_TAIL + MAX_VCPUS * 8 <= control::WAY_MASKS);
    assert!(control::WAY_MASKS + MAX_VCPUS * 4 <= control::FILTERS);
    assert!(vcpu::BASE + MAX_VCPUS * vcpu::STRIDE <= node::BASE);
    assert!(vcpu::write_backs(MAX_NODES) <= vcpu::STRIDE);
    assert!(node::BASE + MAX_NODES * 64 <= link::BASE);
    assert!(link::BASE + MAX_LINKS * 64 <= window::BASE);
    assert!(window::BASE + WINDOWS * window::STRIDE <= FIRED);
    assert!(control::FILTERS + FILTERS * 64 <= control::SECONDARIES);
    assert!(control::SECONDARIES + SECONDARIES * 32 <= vcpu::BASE);
    assert!(FILTERS <= 32 && SECONDARIES <= 32);
    assert!(FIRED + COUNTERS / 8 <= secondary::COUNTS);
    assert!(secondary::SUM + 8 <= secondary::COUNTS_STRIDE);
    assert!(secondary::COUNTS + SECONDARIES * secondary::COUNTS_STRIDE <= notice::SEQUENCE);
    assert!(notice::WORDS + notice::CAPACITY * 8 <= space::BASE);
    assert!(COUNTERS <= 1 << notice::COUNTER_BITS);
    assert!(space::WRITE_BACKS + MAX_NODES * 8 <= space::STRIDE);
    assert!(space::BASE + SPACES * space::STRIDE <= ring::BASE);
    assert!(ring::BASE + MAX_VCPUS * ring::STRIDE <= COUNTER_BASE);
    assert!(COUNTER_BASE + COUNTERS * MAX_NODES * 4 <= SIZE);
};
