//! The structures of the interface, with frozen layouts.

use crate::constants::{HITHER_BLANK, HITHER_CONFIG_BYTES_0_1, HITHER_REFUSED_COUNT};
use std::ffi::{c_char, c_int, c_void};

/// A move that is asked for, and after retrieval what became of it.
///
/// Requests are made by hither_alloc_request() only. Between hither_submit_request() and retrieval
/// the structure belongs to the library: neither read nor write it. A retrieved request keeps what
/// was asked, and can be submitted again as it is or changed.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct HitherRequest {
    /// Asked: first byte to copy, or first page to move.
    pub src_base: *const c_void,
    /// Asked, of a replication: first byte to write. Of a migration: not looked at.
    pub dst_base: *mut c_void,
    /// Asked: how many bytes.
    pub length: u64,
    /// Asked: the caller's own; the library does not look at it.
    pub tag: u64,
    /// Asked: HITHER_REPLICATE or HITHER_MIGRATE. 0 when allocated, which is refused.
    pub kind: u32,
    /// Asked: HITHER_RACE_* and HITHER_PRIORITY_HIGH. Unknown bits are refused.
    pub flags: u32,
    /// Asked, of a migration: the node, by the kernel's number. -1 when allocated, which is
    /// refused. Of a replication: not looked at.
    pub node: i32,
    /// Must be 0.
    pub reserved: u32,
    /// Result: HITHER_DONE, HITHER_FAILED or HITHER_CANCELLED.
    pub status: c_int,
    /// Result: who carried it out, for hither_backend_name().
    pub backend: u32,
    /// Result: pages of 4096 bytes now on the target that were elsewhere; of a replication, pages
    /// written to.
    pub moved: u64,
    /// Result: pages that were on the target already.
    pub already_there: u64,
    /// Result: bytes copied.
    pub bytes: u64,
    /// Result: time from submission until it was begun, in ns.
    pub queue_ns: u64,
    /// Result: time that the move took, in ns.
    pub move_ns: u64,
    /// Result: time that threads of the program waited for pages on their way, in ns, summed over
    /// threads.
    pub stall_ns: u64,
    /// Result: huge pages that arrived as such.
    pub huge_kept: u32,
    /// Result: huge pages that were split on the way.
    pub huge_split: u32,
    /// Result: the address whose access ended the request (HITHER_RACE_FAIL). NULL if none did.
    pub race_address: *const c_void,
    /// Result: the thread that made that access, by the kernel's number. 0 if none did.
    pub race_thread: i32,
    /// Result: pages that stayed where they were, by reason: HITHER_REFUSED_* is the index. A
    /// count ends at 4294967295.
    pub refused: [u32; HITHER_REFUSED_COUNT],
    /// 0.
    pub reserved_result: u32,
}

impl HitherRequest {
    /// As it is allocated.
    pub(crate) const fn blank() -> Self {
        Self {
            src_base: std::ptr::null(),
            dst_base: std::ptr::null_mut(),
            length: 0,
            tag: 0,
            kind: 0,
            flags: 0,
            node: -1,
            reserved: 0,
            status: HITHER_BLANK,
            backend: 0,
            moved: 0,
            already_there: 0,
            bytes: 0,
            queue_ns: 0,
            move_ns: 0,
            stall_ns: 0,
            huge_kept: 0,
            huge_split: 0,
            race_address: std::ptr::null(),
            race_thread: 0,
            refused: [0; HITHER_REFUSED_COUNT],
            reserved_result: 0,
        }
    }

    /// What was asked, without results.
    pub(crate) const fn asked(&self) -> Self {
        Self {
            src_base: self.src_base,
            dst_base: self.dst_base,
            length: self.length,
            tag: self.tag,
            kind: self.kind,
            flags: self.flags,
            node: self.node,
            reserved: self.reserved,
            ..Self::blank()
        }
    }
}

/// Settings of a mover. Set it to zero first: zero is the default of every field, of those too
/// that a later version adds.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct HitherConfig {
    /// Which mover: as the argument of hither_open().
    pub name: *const c_char,
    /// HITHER_EXCHANGE_*, HITHER_NO_SPIN and HITHER_RECYCLE. Unknown bits are refused.
    pub flags: u32,
    /// Requests that may be allocated at a time: 1 to 32768. 0: 256.
    pub capacity: u32,
    /// Worker threads: 1 to 256. 0: 1.
    pub workers: u32,
    /// Threads that share a replication of 1 MiB or more, the worker included: 1 to 256. 0: 1.
    pub copiers: u32,
    /// How long a worker looks on for the next request after small ones before it sleeps, in us.
    /// 0: 50.
    pub spin_us: u32,
    /// Most requests that are begun together. More lets neighbouring ranges move together. 0: 64.
    pub batch_requests: u32,
    /// A batch takes no more requests once it has this many bytes. 0: 1 MiB.
    pub batch_bytes: u64,
    /// What a small request is smaller than, in bytes. 0: 512 KiB.
    pub small_bytes: u64,
    /// Most bytes moved per second, as a mean. 0: no limit.
    pub rate_limit_bytes_per_s: u64,
    /// CPUs that the workers may run on, by the kernel's numbers; read during the call only.
    /// NULL: those of the calling thread.
    pub cpus: *const u32,
    /// Entries of `cpus`: at most 4096.
    pub cpu_count: usize,
    /// A request of at most so many bytes is carried out by the thread that submits it, where a worker sleeps and
    /// none was carried out so within `spin_us`: no worker has to be woken up for it. Replications, and
    /// migrations where pages are not exchanged; not with a rate limit. 0: submitting never blocks.
    pub first_bytes: u64,
}

/// Where the pages of a range are, as hither_where() found them.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HitherResidency {
    /// Pages of 4096 bytes that have a byte of the range.
    pub pages: u64,
    /// Those that are not in memory: never written to, or swapped out.
    pub absent: u64,
    /// Those on a node that the policy of their address does not name.
    pub astray: u64,
    /// Those that are parts of huge pages; HITHER_UNKNOWN before Linux 6.7.
    pub huge: u64,
}

/// Settings of a replicated array. Set it to zero first: zero is the default of every field, of those too that a
/// later version adds.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct HitherReplicatedConfig {
    /// Most bytes of all copies together. 0: as much as nodes have free.
    pub budget_bytes: u64,
    /// Bytes that stay free on each node. 0: a 32nd of what it has.
    pub reserve_bytes: u64,
    /// Bytes that are copied, and are stale, at once: a power of two from 64 KiB to 1 GiB. 0: 2 MiB; of arrays
    /// below 16 MiB 64 KiB.
    pub chunk_bytes: u32,
    /// HITHER_REPLICATED_PARTIAL, HITHER_REPLICATED_INTERLEAVE and HITHER_REPLICATED_HUGE. Unknown bits are refused.
    pub flags: u32,
    /// Readers at one time: 1 to 16384. 0: 256.
    pub readers: u32,
    /// Threads that copy for a node. 0: one for each of its CPUs, 4 at most.
    pub workers: u32,
    /// 0: a place for each node with memory and CPUs. More: so many places on the first of them, to try a
    /// program on a machine with one node; up to 64.
    pub copies: u32,
    /// A thread of the library makes copies, makes them again when something was written, and gives them up
    /// where writes dominate, at least each so many ms. 0: none does.
    pub keep_ms: u32,
}

/// An epoch that a reader holds.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct HitherView {
    /// All bytes in one piece.
    pub data: *const c_void,
    /// Where each chunk is; an entry may change to that of a copy with the same bytes.
    pub chunks: *const *const c_void,
    /// Length of the array.
    pub bytes: u64,
    /// Which epoch: the first is 1.
    pub epoch: u64,
    /// Byte i is in chunk i >> chunk_shift.
    pub chunk_shift: u32,
    /// Is all of it on the reader's own node? 1 or 0.
    pub is_local: u32,
}

/// Settings of a stream. Set it to zero first: zero is the default of every field, of those too that a later version
/// adds.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct HitherStreamConfig {
    /// Elements of a block, of each array. Some hundred KiB of bytes: less, and handing over weighs; more, and fewer
    /// buffers fit. 0: 256 KiB of the larger elements.
    pub block: usize,
    /// Bytes of the last-level cache that the team computes with: there are so many buffers that they exceed it by a
    /// quarter, where fast memory has room. 0: `buffers` alone counts.
    pub cache_bytes: usize,
    /// Bytes of an element of the arrays read.
    pub input_bytes: usize,
    /// Bytes of an element of the arrays written.
    pub output_bytes: usize,
    /// With `fast_node` -1: the program's own fast memory. It is the stream's until that is destroyed. Otherwise NULL.
    pub fast_memory: *mut c_void,
    /// Bytes of fast memory. 0: as many as the buffers need; with `fast_node` -1 it must be set.
    pub fast_bytes: usize,
    /// The node on which the library allocates fast memory, by the kernel's number; -1: the program gives
    /// `fast_memory`. Where the node has not so much free, the kernel may end the process.
    pub fast_node: i32,
    /// Arrays read: 0 to 64.
    pub inputs: u32,
    /// Arrays written: 0 to 64.
    pub outputs: u32,
    /// Most buffers, of a block of each array; fewer where fast memory has no room for them. 0: 8.
    pub buffers: u32,
    /// Threads that compute, the calling one included: 1 to 1024. 0: 1.
    pub threads: u32,
    /// HITHER_STREAM_IN_PLACE, HITHER_STREAM_FAST or HITHER_STREAM_FAST_UPDATED. 0: in place.
    pub results: u32,
    /// HITHER_STREAM_MEASURE, HITHER_STREAM_ALWAYS or HITHER_STREAM_NEVER. 0: the stream measures.
    pub adapt: u32,
    /// HITHER_STREAM_WHOLE and HITHER_STREAM_HUGE. Unknown bits are refused.
    pub flags: u32,
}

/// A block of a stream, or one thread's part of it, to be computed.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct HitherStreamPart {
    /// Where the part of each array read begins.
    pub inputs: *const *const c_void,
    /// Where the part of each array written begins.
    pub outputs: *const *mut c_void,
    /// The block's number.
    pub block: u64,
    /// Position in the arrays of the part's first element.
    pub first: u64,
    /// Elements of the part.
    pub length: u64,
    /// Number of the calling thread in the team, from 0.
    pub thread: u32,
    /// Is the input in fast memory? 1 or 0.
    pub is_fast: u32,
}

/// What a run of a stream did.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct HitherStreamReport {
    /// Blocks computed: all of them.
    pub blocks: u64,
    /// Those computed from fast memory.
    pub fast_blocks: u64,
    /// Those computed from slow memory while they were being filled: nothing else was left.
    pub late_fills: u64,
    /// Fills that the mover refused or failed.
    pub failed_fills: u64,
    /// Results that the mover failed to bring back, so that the team did.
    pub failed_returns: u64,
    /// Bytes that the mover copied for this stream.
    pub copied_bytes: u64,
    /// Time it copied, in ns, summed over requests.
    pub copying_ns: u64,
    /// The part of that time before computing ended, in ns.
    pub overlapped_ns: u64,
    /// From the first block to the last result in place, in ns.
    pub elapsed_ns: u64,
    /// The worst comparison of the last try: how many times as fast fast memory is. 0: nothing was compared.
    pub gain: f64,
    /// HITHER_STREAM_UNDECIDED, HITHER_STREAM_PLAIN or HITHER_STREAM_THROUGH: what the stream holds of fast memory now.
    pub decision: u32,
    /// Buffers that the stream has.
    pub buffers: u32,
}

/// Memory that a monitor watches. Set it to zero first: zero is the default of every field, of those too that a later
/// version adds.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct HitherArea {
    /// First byte; a multiple of the machine's line.
    pub start: *const c_void,
    /// How many bytes; a multiple of the line.
    pub length: u64,
    /// Bytes that are counted together, a *grain*: a power of two from 32, or the line where that is longer, to 2 MiB.
    /// 0: 4096.
    pub grain: u64,
    /// HITHER_TYPE_*. 0: HITHER_TYPE_FILLS.
    pub types: u32,
    /// HITHER_INBOUND, HITHER_OUTBOUND, HITHER_LOCAL and HITHER_AT_NODE. 0: all.
    pub directions: u32,
    /// With HITHER_AT_NODE: the node that directions are seen from, by the kernel's number.
    pub node: u32,
    /// Count of one grain from one node at which hither_monitor_wait() tells of it. 0: never.
    pub threshold: u32,
}

/// A threshold that was reached.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct HitherReached {
    /// The area of the grain that reached it; -1 where a sum did.
    pub area: c_int,
    /// The sum that reached it; -1 where a grain did.
    pub sum: c_int,
    /// The grain, from 0 on.
    pub grain: u64,
    /// The node of whoever asked last.
    pub node: c_int,
    /// 0.
    pub reserved: c_int,
}

/// What the whole machine did while a monitor counted.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct HitherTotals {
    /// Packets between nodes without a line: requests, and answers to who asked for ownership.
    pub short_packets: u64,
    /// Packets between nodes with a line: delivered, or written back.
    pub line_packets: u64,
    /// Lines that memory delivered or took.
    pub transactions: u64,
    /// Floating-point operations.
    pub flops: u64,
}

impl Default for HitherConfig {
    fn default() -> Self {
        Self {
            name: std::ptr::null(),
            flags: 0,
            capacity: 0,
            workers: 0,
            copiers: 0,
            spin_us: 0,
            batch_requests: 0,
            batch_bytes: 0,
            small_bytes: 0,
            rate_limit_bytes_per_s: 0,
            cpus: std::ptr::null(),
            cpu_count: 0,
            first_bytes: 0,
        }
    }
}

// Programs were compiled against these.
const _: () = {
    assert!(size_of::<HitherRequest>() == 192);
    assert!(std::mem::offset_of!(HitherConfig, first_bytes) == HITHER_CONFIG_BYTES_0_1);
    assert!(size_of::<HitherResidency>() == 32);
    assert!(size_of::<HitherReplicatedConfig>() == 40);
    assert!(size_of::<HitherView>() == 40);
    assert!(size_of::<HitherArea>() == 40);
    assert!(size_of::<HitherReached>() == 24);
    assert!(size_of::<HitherTotals>() == 32);
    assert!(size_of::<HitherStreamConfig>() == 80);
    assert!(size_of::<HitherStreamPart>() == 48);
    assert!(size_of::<HitherStreamReport>() == 88);
};

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::offset_of;

    #[test]
    fn layouts_are_frozen() {
        macro_rules! offsets {
            ($type:ty: $($field:ident $offset:expr),* $(,)?) => {
                $(assert_eq!(offset_of!($type, $field), $offset, stringify!($field));)*
            };
        }
        assert_eq!(
            (size_of::<HitherRequest>(), align_of::<HitherRequest>()),
            (192, 8)
        );
        offsets!(HitherRequest:
            src_base 0, dst_base 8, length 16, tag 24, kind 32, flags 36, node 40, reserved 44,
            status 48, backend 52, moved 56, already_there 64, bytes 72, queue_ns 80, move_ns 88,
            stall_ns 96, huge_kept 104, huge_split 108, race_address 112, race_thread 120,
            refused 124, reserved_result 188,
        );
        assert_eq!(
            (size_of::<HitherConfig>(), align_of::<HitherConfig>()),
            (80, 8)
        );
        offsets!(HitherConfig:
            name 0, flags 8, capacity 12, workers 16, copiers 20, spin_us 24, batch_requests 28,
            batch_bytes 32, small_bytes 40, rate_limit_bytes_per_s 48, cpus 56, cpu_count 64,
            first_bytes 72,
        );
    }
}
