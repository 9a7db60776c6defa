//! The numbers of the interface. None is ever given another meaning.

use std::ffi::c_int;

/// Version of this header: raised when something is taken away or changes its meaning.
pub const HITHER_VERSION_MAJOR: u32 = 0;
/// Version of this header: raised when something is added.
pub const HITHER_VERSION_MINOR: u32 = 2;
/// Version of this header: raised when something is mended.
pub const HITHER_VERSION_PATCH: u32 = 0;

/// Success.
pub const HITHER_OK: c_int = 0;
/// The daemon refuses; hither_last_error() says why.
pub const HITHER_EPERM: c_int = -1;
/// No mover has this name.
pub const HITHER_ENOENT: c_int = -2;
/// The structure is larger than the library knows, and what it does not know is not zero.
pub const HITHER_E2BIG: c_int = -7;
/// The handle names no open mover, stream, replicated array, reader or region of this process.
pub const HITHER_EBADF: c_int = -9;
/// This is a child after fork(): the mover belongs to the parent.
pub const HITHER_EFORK: c_int = -10;
/// All requests of the mover, or all readers, are in use: retrieve, free or close some.
pub const HITHER_EAGAIN: c_int = -11;
/// The system has no memory, descriptor or thread to give.
pub const HITHER_ENOMEM: c_int = -12;
/// A pointer that must not be NULL is.
pub const HITHER_EFAULT: c_int = -14;
/// Somebody uses it: a request is submitted and not yet retrieved, a mover has streams, a stream runs,
/// an array has readers, a region is visited.
pub const HITHER_EBUSY: c_int = -16;
/// An argument or a field of the request has no meaning.
pub const HITHER_EINVAL: c_int = -22;
/// The kernel cannot do it, or does not let this process; hither_last_error() says what it takes.
pub const HITHER_ENOSYS: c_int = -38;
/// What it waited for did not happen in time; hither_last_error() says what that was.
pub const HITHER_ETIMEDOUT: c_int = -110;
/// No daemon answers; hither_last_error() says where it was looked for.
pub const HITHER_ECONNREFUSED: c_int = -111;
/// Too late to cancel: the request runs or is finished, and will be retrieved as usual.
pub const HITHER_EALREADY: c_int = -114;
/// Somebody wrote over the mover's queues. Close it; its requests are lost.
pub const HITHER_ECORRUPT: c_int = -117;
/// An error in the library itself. Please report it with hither_last_error().
pub const HITHER_EINTERNAL: c_int = -131;

/// `hint` of hither_declare(): what was declared is taken back.
pub const HITHER_HINT_NONE: u32 = 0;
/// `hint` of hither_declare(): the memory will be used often.
pub const HITHER_HINT_HOT: u32 = 1;
/// `hint` of hither_declare(): the memory will hardly be used.
pub const HITHER_HINT_COLD: u32 = 2;
/// `hint` of hither_declare(): the memory belongs into the fastest tier, as far as the quota goes.
pub const HITHER_HINT_PIN_FAST: u32 = 3;
/// `hint` of hither_declare(): the memory belongs below the fastest tier.
pub const HITHER_HINT_PIN_SLOW: u32 = 4;

/// `kind` of a request: copy `length` bytes from `src_base` to `dst_base`, as memcpy() does. The
/// ranges must not overlap. Accesses meanwhile see old or new bytes.
pub const HITHER_REPLICATE: u32 = 1;
/// `kind` of a request: move the pages of `length` bytes from `src_base` on to node `node`. Their
/// addresses and contents stay. Both ends must be multiples of 4096.
pub const HITHER_MIGRATE: u32 = 2;

/// `flags` of a request: an access to a page on its way goes on at once, on the page where it was;
/// the page is tried again, and refused as busy if that does not help. What happens unless
/// another `HITHER_RACE_*` is set.
pub const HITHER_RACE_RECOVER: u32 = 0;
/// `flags` of a request: an access to a page on its way goes on at once and ends the request, which
/// fails with `race_address` and `race_thread`.
pub const HITHER_RACE_FAIL: u32 = 1;
/// `flags` of a request: an access to a page on its way waits until the page has arrived. Not
/// together with HITHER_RACE_FAIL.
pub const HITHER_RACE_BLOCK: u32 = 2;
/// `flags` of a request: it goes before all requests without this flag that have not begun.
pub const HITHER_PRIORITY_HIGH: u32 = 4;

/// `status` of a request that was not submitted yet.
pub const HITHER_BLANK: c_int = 0;
/// `status` of a request that was submitted. Only retrieval tells that it is completed.
pub const HITHER_SUBMITTED: c_int = 1;
/// `status` of a retrieved request: every page is where it was asked to be, every byte is copied.
pub const HITHER_DONE: c_int = 2;
/// `status` of a retrieved request: at least one page was refused (`refused`), or an access ended
/// it (`race_thread` is not 0).
pub const HITHER_FAILED: c_int = 3;
/// `status` of a retrieved request: it was cancelled and has not run.
pub const HITHER_CANCELLED: c_int = 4;

/// Index into `refused`: under I/O, locked, or otherwise in use just now; may succeed later.
pub const HITHER_REFUSED_BUSY: u32 = 0;
/// Index into `refused`: pinned by a device or by a long-term reference.
pub const HITHER_REFUSED_PINNED: u32 = 1;
/// Index into `refused`: the target had no free memory; may succeed later.
pub const HITHER_REFUSED_NO_MEMORY: u32 = 2;
/// Index into `refused`: nothing is mapped there.
pub const HITHER_REFUSED_UNMAPPED: u32 = 3;
/// Index into `refused`: it belongs to a file or to somebody else and may not be moved.
pub const HITHER_REFUSED_NOT_OURS: u32 = 4;
/// Index into `refused`: several processes map it (after fork, say), so it is left alone.
pub const HITHER_REFUSED_SHARED: u32 = 5;
/// Index into `refused`: the process has ended.
pub const HITHER_REFUSED_PROCESS_GONE: u32 = 6;
/// Index into `refused`: this process may not use the target node, or there is no such node.
pub const HITHER_REFUSED_TARGET_FORBIDDEN: u32 = 7;
/// Index into `refused`: not tried, as the request was cancelled or ended before.
pub const HITHER_REFUSED_DROPPED: u32 = 8;
/// Index into `refused`: nothing here can do this kind of move.
pub const HITHER_REFUSED_NOT_SUPPORTED: u32 = 9;
/// Entries of `refused`. Those beyond the reasons above are 0.
pub const HITHER_REFUSED_COUNT: usize = 16;

/// `how` of hither_close_how(): run what was submitted.
pub const HITHER_DRAIN: c_int = 0;
/// `how` of hither_close_how(): drop what was submitted and has not begun.
pub const HITHER_ABANDON: c_int = 1;

/// `flags` of a configuration: exchange pages from user space without CAP_SYS_PTRACE too. The
/// program promises to make no raw clone() and no system call on memory under way.
pub const HITHER_EXCHANGE_ALWAYS: u32 = 1;
/// `flags` of a configuration: never exchange pages from user space; the kernel moves them. Not
/// together with HITHER_EXCHANGE_ALWAYS.
pub const HITHER_EXCHANGE_NEVER: u32 = 2;
/// `flags` of a configuration: workers sleep as soon as nothing is queued, whatever `spin_us`.
pub const HITHER_NO_SPIN: u32 = 4;
/// `flags` of a configuration: use pages that moves leave behind again. The program promises to move
/// no memory that vmsplice(), MSG_ZEROCOPY or an io_uring send still reads.
pub const HITHER_RECYCLE: u32 = 8;
/// `flags` of hither_alloc(): pages of 4 KiB.
pub const HITHER_SMALL: u32 = 1;
/// `flags` of hither_alloc(): pages of 2 MiB, where there are any free. Without this and
/// HITHER_SMALL the system chooses.
pub const HITHER_HUGE: u32 = 2;
/// `flags` of hither_alloc(): bring all pages into memory at once. Where they are bound to nodes
/// without enough free memory, the kernel may end the process.
pub const HITHER_POPULATE: u32 = 4;
/// `flags` of hither_bind_range(): pages that are there go where the policy wants them.
pub const HITHER_MOVE: u32 = 1;
/// `flags` of a replicated array: only what readers on two nodes or more have taken is copied, to those nodes.
/// hither_replicated_read() takes all of it where the copy is not complete.
pub const HITHER_REPLICATED_PARTIAL: u32 = 1;
/// `flags` of a replicated array: the master is spread over all nodes page by page, and each gets copies.
/// Without it the master is on the first node, which needs no copy.
pub const HITHER_REPLICATED_INTERLEAVE: u32 = 2;
/// `flags` of a replicated array: pages of 2 MiB for master and copies, where there are any free.
pub const HITHER_REPLICATED_HUGE: u32 = 4;
/// `results` of a stream: they are written straight to the arrays.
pub const HITHER_STREAM_IN_PLACE: u32 = 0;
/// `results` of a stream: the function writes them to fast memory, from where they are copied. It
/// must write every element: what it finds there is any value that was once there or in the array.
pub const HITHER_STREAM_FAST: u32 = 1;
/// `results` of a stream: as HITHER_STREAM_FAST, and the present values are brought first, for
/// functions that read results or leave some as they are.
pub const HITHER_STREAM_FAST_UPDATED: u32 = 2;
/// `adapt` of a stream: it measures both ways, and uses fast memory where that is faster.
pub const HITHER_STREAM_MEASURE: u32 = 0;
/// `adapt` of a stream: always through fast memory.
pub const HITHER_STREAM_ALWAYS: u32 = 1;
/// `adapt` of a stream: never through fast memory.
pub const HITHER_STREAM_NEVER: u32 = 2;
/// `flags` of a stream: each thread takes whole blocks and waits for no other. Without it all threads
/// compute each block together, each its part.
pub const HITHER_STREAM_WHOLE: u32 = 1;
/// `flags` of a stream: pages of 2 MiB for the fast memory that the library allocates.
pub const HITHER_STREAM_HUGE: u32 = 2;
/// `decision` of a report: it was not measured long enough.
pub const HITHER_STREAM_UNDECIDED: u32 = 0;
/// `decision` of a report: slow memory alone.
pub const HITHER_STREAM_PLAIN: u32 = 1;
/// `decision` of a report: through fast memory.
pub const HITHER_STREAM_THROUGH: u32 = 2;
/// In struct hither_residency: the kernel does not tell.
pub const HITHER_UNKNOWN: u64 = 18446744073709551615;
/// Size in bytes of struct hither_config as of version 0.1.
pub const HITHER_CONFIG_BYTES_0_1: usize = 72;

/// `flags` of hither_monitor_open(): estimates by samples, although a device may count.
pub const HITHER_MONITOR_SAMPLES: u32 = 1;
/// `types` of an area or a sum: lines that memory delivered for loads.
pub const HITHER_TYPE_READ: u32 = 1;
/// `types`: lines that memory delivered for stores.
pub const HITHER_TYPE_WRITE: u32 = 2;
/// `types`: lines that the hardware fetched ahead of loads.
pub const HITHER_TYPE_PREFETCH: u32 = 4;
/// `types`: lines that the hardware fetched ahead of stores.
pub const HITHER_TYPE_PREFETCH_WRITE: u32 = 8;
/// `types`: lines that a cache wrote back, or a store wrote past the caches.
pub const HITHER_TYPE_WRITE_BACK: u32 = 16;
/// `types`: lines that another CPU's cache had modified and handed over, for loads.
pub const HITHER_TYPE_TRANSFER: u32 = 32;
/// `types`: the same for stores.
pub const HITHER_TYPE_TRANSFER_WRITE: u32 = 64;
/// `types`: lines of another node's memory that were held and became the CPU's own.
pub const HITHER_TYPE_OWNERSHIP: u32 = 128;
/// `types`: all that memory delivered; what 0 means.
pub const HITHER_TYPE_FILLS: u32 = 15;
/// `directions` of an area: other nodes ask a node's memory.
pub const HITHER_INBOUND: u32 = 1;
/// `directions` of an area: a node's CPUs ask other nodes' memory.
pub const HITHER_OUTBOUND: u32 = 2;
/// `directions` of an area: a node's CPUs ask its own memory.
pub const HITHER_LOCAL: u32 = 4;
/// `directions` of an area: what crosses between nodes.
pub const HITHER_REMOTE: u32 = 3;
/// `directions` of an area: the node that `node` names is meant; without this any.
pub const HITHER_AT_NODE: u32 = 256;

#[cfg(test)]
mod tests {
    use super::*;
    use hither_core::plan::Refusal;
    use hither_mover::reason_index;

    #[test]
    fn reasons_are_where_the_mover_counts_them() {
        for (refusal, index) in [
            (Refusal::Busy, HITHER_REFUSED_BUSY),
            (Refusal::Pinned, HITHER_REFUSED_PINNED),
            (Refusal::NoMemory, HITHER_REFUSED_NO_MEMORY),
            (Refusal::Unmapped, HITHER_REFUSED_UNMAPPED),
            (Refusal::NotOurs, HITHER_REFUSED_NOT_OURS),
            (Refusal::Shared, HITHER_REFUSED_SHARED),
            (Refusal::ProcessGone, HITHER_REFUSED_PROCESS_GONE),
            (Refusal::TargetForbidden, HITHER_REFUSED_TARGET_FORBIDDEN),
            (Refusal::Dropped, HITHER_REFUSED_DROPPED),
            (Refusal::NotSupported, HITHER_REFUSED_NOT_SUPPORTED),
        ] {
            assert_eq!(reason_index(refusal), index as usize, "{refusal}");
        }
    }

    #[test]
    fn the_version_is_the_packages() {
        let version = [
            HITHER_VERSION_MAJOR,
            HITHER_VERSION_MINOR,
            HITHER_VERSION_PATCH,
        ];
        assert_eq!(
            version.map(|part| part.to_string()).join("."),
            env!("CARGO_PKG_VERSION")
        );
    }
}
