/*
 * hither: puts memory and threads of a program on parts of the machine, and moves memory without
 * blocking the program. See hither(7).
 *
 * Every call may be made by any thread at any time, but not in a signal handler. A number below 0
 * is an error (HITHER_E*); hither_last_error() says what is wrong, where, and how to mend it. A
 * child after fork() finds every call refused with HITHER_EFORK, but for hither_opt_out(),
 * hither_opt_in() and hither_declare().
 *
 * Generated from crates/capi/src by `cargo xtask gen`: change it there.
 */

#ifndef HITHER_H
#define HITHER_H

#include <stddef.h>
#include <stdint.h>

// Version of this header: raised when something is taken away or changes its meaning.
#define HITHER_VERSION_MAJOR 0

// Version of this header: raised when something is added.
#define HITHER_VERSION_MINOR 2

// Version of this header: raised when something is mended.
#define HITHER_VERSION_PATCH 0

// Success.
#define HITHER_OK 0

// The daemon refuses; hither_last_error() says why.
#define HITHER_EPERM -1

// No mover has this name.
#define HITHER_ENOENT -2

// The structure is larger than the library knows, and what it does not know is not zero.
#define HITHER_E2BIG -7

// The handle names no open mover, stream, replicated array, reader or region of this process.
#define HITHER_EBADF -9

// This is a child after fork(): the mover belongs to the parent.
#define HITHER_EFORK -10

// All requests of the mover, or all readers, are in use: retrieve, free or close some.
#define HITHER_EAGAIN -11

// The system has no memory, descriptor or thread to give.
#define HITHER_ENOMEM -12

// A pointer that must not be NULL is.
#define HITHER_EFAULT -14

// Somebody uses it: a request is submitted and not yet retrieved, a mover has streams, a stream runs,
// an array has readers, a region is visited.
#define HITHER_EBUSY -16

// An argument or a field of the request has no meaning.
#define HITHER_EINVAL -22

// The kernel cannot do it, or does not let this process; hither_last_error() says what it takes.
#define HITHER_ENOSYS -38

// What it waited for did not happen in time; hither_last_error() says what that was.
#define HITHER_ETIMEDOUT -110

// No daemon answers; hither_last_error() says where it was looked for.
#define HITHER_ECONNREFUSED -111

// Too late to cancel: the request runs or is finished, and will be retrieved as usual.
#define HITHER_EALREADY -114

// Somebody wrote over the mover's queues. Close it; its requests are lost.
#define HITHER_ECORRUPT -117

// An error in the library itself. Please report it with hither_last_error().
#define HITHER_EINTERNAL -131

// `hint` of hither_declare(): what was declared is taken back.
#define HITHER_HINT_NONE 0

// `hint` of hither_declare(): the memory will be used often.
#define HITHER_HINT_HOT 1

// `hint` of hither_declare(): the memory will hardly be used.
#define HITHER_HINT_COLD 2

// `hint` of hither_declare(): the memory belongs into the fastest tier, as far as the quota goes.
#define HITHER_HINT_PIN_FAST 3

// `hint` of hither_declare(): the memory belongs below the fastest tier.
#define HITHER_HINT_PIN_SLOW 4

// `kind` of a request: copy `length` bytes from `src_base` to `dst_base`, as memcpy() does. The
// ranges must not overlap. Accesses meanwhile see old or new bytes.
#define HITHER_REPLICATE 1

// `kind` of a request: move the pages of `length` bytes from `src_base` on to node `node`. Their
// addresses and contents stay. Both ends must be multiples of 4096.
#define HITHER_MIGRATE 2

// `flags` of a request: an access to a page on its way goes on at once, on the page where it was;
// the page is tried again, and refused as busy if that does not help. What happens unless
// another `HITHER_RACE_*` is set.
#define HITHER_RACE_RECOVER 0

// `flags` of a request: an access to a page on its way goes on at once and ends the request, which
// fails with `race_address` and `race_thread`.
#define HITHER_RACE_FAIL 1

// `flags` of a request: an access to a page on its way waits until the page has arrived. Not
// together with HITHER_RACE_FAIL.
#define HITHER_RACE_BLOCK 2

// `flags` of a request: it goes before all requests without this flag that have not begun.
#define HITHER_PRIORITY_HIGH 4

// `status` of a request that was not submitted yet.
#define HITHER_BLANK 0

// `status` of a request that was submitted. Only retrieval tells that it is completed.
#define HITHER_SUBMITTED 1

// `status` of a retrieved request: every page is where it was asked to be, every byte is copied.
#define HITHER_DONE 2

// `status` of a retrieved request: at least one page was refused (`refused`), or an access ended
// it (`race_thread` is not 0).
#define HITHER_FAILED 3

// `status` of a retrieved request: it was cancelled and has not run.
#define HITHER_CANCELLED 4

// Index into `refused`: under I/O, locked, or otherwise in use just now; may succeed later.
#define HITHER_REFUSED_BUSY 0

// Index into `refused`: pinned by a device or by a long-term reference.
#define HITHER_REFUSED_PINNED 1

// Index into `refused`: the target had no free memory; may succeed later.
#define HITHER_REFUSED_NO_MEMORY 2

// Index into `refused`: nothing is mapped there.
#define HITHER_REFUSED_UNMAPPED 3

// Index into `refused`: it belongs to a file or to somebody else and may not be moved.
#define HITHER_REFUSED_NOT_OURS 4

// Index into `refused`: several processes map it (after fork, say), so it is left alone.
#define HITHER_REFUSED_SHARED 5

// Index into `refused`: the process has ended.
#define HITHER_REFUSED_PROCESS_GONE 6

// Index into `refused`: this process may not use the target node, or there is no such node.
#define HITHER_REFUSED_TARGET_FORBIDDEN 7

// Index into `refused`: not tried, as the request was cancelled or ended before.
#define HITHER_REFUSED_DROPPED 8

// Index into `refused`: nothing here can do this kind of move.
#define HITHER_REFUSED_NOT_SUPPORTED 9

// Entries of `refused`. Those beyond the reasons above are 0.
#define HITHER_REFUSED_COUNT 16

// `how` of hither_close_how(): run what was submitted.
#define HITHER_DRAIN 0

// `how` of hither_close_how(): drop what was submitted and has not begun.
#define HITHER_ABANDON 1

// `flags` of a configuration: exchange pages from user space without CAP_SYS_PTRACE too. The
// program promises to make no raw clone() and no system call on memory under way.
#define HITHER_EXCHANGE_ALWAYS 1

// `flags` of a configuration: never exchange pages from user space; the kernel moves them. Not
// together with HITHER_EXCHANGE_ALWAYS.
#define HITHER_EXCHANGE_NEVER 2

// `flags` of a configuration: workers sleep as soon as nothing is queued, whatever `spin_us`.
#define HITHER_NO_SPIN 4

// `flags` of a configuration: use pages that moves leave behind again. The program promises to move
// no memory that vmsplice(), MSG_ZEROCOPY or an io_uring send still reads.
#define HITHER_RECYCLE 8

// `flags` of hither_alloc(): pages of 4 KiB.
#define HITHER_SMALL 1

// `flags` of hither_alloc(): pages of 2 MiB, where there are any free. Without this and
// HITHER_SMALL the system chooses.
#define HITHER_HUGE 2

// `flags` of hither_alloc(): bring all pages into memory at once. Where they are bound to nodes
// without enough free memory, the kernel may end the process.
#define HITHER_POPULATE 4

// `flags` of hither_bind_range(): pages that are there go where the policy wants them.
#define HITHER_MOVE 1

// `flags` of a replicated array: only what readers on two nodes or more have taken is copied, to those nodes.
// hither_replicated_read() takes all of it where the copy is not complete.
#define HITHER_REPLICATED_PARTIAL 1

// `flags` of a replicated array: the master is spread over all nodes page by page, and each gets copies.
// Without it the master is on the first node, which needs no copy.
#define HITHER_REPLICATED_INTERLEAVE 2

// `flags` of a replicated array: pages of 2 MiB for master and copies, where there are any free.
#define HITHER_REPLICATED_HUGE 4

// `results` of a stream: they are written straight to the arrays.
#define HITHER_STREAM_IN_PLACE 0

// `results` of a stream: the function writes them to fast memory, from where they are copied. It
// must write every element: what it finds there is any value that was once there or in the array.
#define HITHER_STREAM_FAST 1

// `results` of a stream: as HITHER_STREAM_FAST, and the present values are brought first, for
// functions that read results or leave some as they are.
#define HITHER_STREAM_FAST_UPDATED 2

// `adapt` of a stream: it measures both ways, and uses fast memory where that is faster.
#define HITHER_STREAM_MEASURE 0

// `adapt` of a stream: always through fast memory.
#define HITHER_STREAM_ALWAYS 1

// `adapt` of a stream: never through fast memory.
#define HITHER_STREAM_NEVER 2

// `flags` of a stream: each thread takes whole blocks and waits for no other. Without it all threads
// compute each block together, each its part.
#define HITHER_STREAM_WHOLE 1

// `flags` of a stream: pages of 2 MiB for the fast memory that the library allocates.
#define HITHER_STREAM_HUGE 2

// `decision` of a report: it was not measured long enough.
#define HITHER_STREAM_UNDECIDED 0

// `decision` of a report: slow memory alone.
#define HITHER_STREAM_PLAIN 1

// `decision` of a report: through fast memory.
#define HITHER_STREAM_THROUGH 2

// In struct hither_residency: the kernel does not tell.
#define HITHER_UNKNOWN 18446744073709551615ull

// Size in bytes of struct hither_config as of version 0.1.
#define HITHER_CONFIG_BYTES_0_1 72

// `flags` of hither_monitor_open(): estimates by samples, although a device may count.
#define HITHER_MONITOR_SAMPLES 1

// `types` of an area or a sum: lines that memory delivered for loads.
#define HITHER_TYPE_READ 1

// `types`: lines that memory delivered for stores.
#define HITHER_TYPE_WRITE 2

// `types`: lines that the hardware fetched ahead of loads.
#define HITHER_TYPE_PREFETCH 4

// `types`: lines that the hardware fetched ahead of stores.
#define HITHER_TYPE_PREFETCH_WRITE 8

// `types`: lines that a cache wrote back, or a store wrote past the caches.
#define HITHER_TYPE_WRITE_BACK 16

// `types`: lines that another CPU's cache had modified and handed over, for loads.
#define HITHER_TYPE_TRANSFER 32

// `types`: the same for stores.
#define HITHER_TYPE_TRANSFER_WRITE 64

// `types`: lines of another node's memory that were held and became the CPU's own.
#define HITHER_TYPE_OWNERSHIP 128

// `types`: all that memory delivered; what 0 means.
#define HITHER_TYPE_FILLS 15

// `directions` of an area: other nodes ask a node's memory.
#define HITHER_INBOUND 1

// `directions` of an area: a node's CPUs ask other nodes' memory.
#define HITHER_OUTBOUND 2

// `directions` of an area: a node's CPUs ask its own memory.
#define HITHER_LOCAL 4

// `directions` of an area: what crosses between nodes.
#define HITHER_REMOTE 3

// `directions` of an area: the node that `node` names is meant; without this any.
#define HITHER_AT_NODE 256

// Settings of a mover. Set it to zero first: zero is the default of every field, of those too
// that a later version adds.
struct hither_config {
  // Which mover: as the argument of hither_open().
  const char *name;
  // HITHER_EXCHANGE_*, HITHER_NO_SPIN and HITHER_RECYCLE. Unknown bits are refused.
  uint32_t flags;
  // Requests that may be allocated at a time: 1 to 32768. 0: 256.
  uint32_t capacity;
  // Worker threads: 1 to 256. 0: 1.
  uint32_t workers;
  // Threads that share a replication of 1 MiB or more, the worker included: 1 to 256. 0: 1.
  uint32_t copiers;
  // How long a worker looks on for the next request after small ones before it sleeps, in us.
  // 0: 50.
  uint32_t spin_us;
  // Most requests that are begun together. More lets neighbouring ranges move together. 0: 64.
  uint32_t batch_requests;
  // A batch takes no more requests once it has this many bytes. 0: 1 MiB.
  uint64_t batch_bytes;
  // What a small request is smaller than, in bytes. 0: 512 KiB.
  uint64_t small_bytes;
  // Most bytes moved per second, as a mean. 0: no limit.
  uint64_t rate_limit_bytes_per_s;
  // CPUs that the workers may run on, by the kernel's numbers; read during the call only.
  // NULL: those of the calling thread.
  const uint32_t *cpus;
  // Entries of `cpus`: at most 4096.
  size_t cpu_count;
  // A request of at most so many bytes is carried out by the thread that submits it, where a worker sleeps and
  // none was carried out so within `spin_us`: no worker has to be woken up for it. Replications, and
  // migrations where pages are not exchanged; not with a rate limit. 0: submitting never blocks.
  uint64_t first_bytes;
};

// A move that is asked for, and after retrieval what became of it.
//
// Requests are made by hither_alloc_request() only. Between hither_submit_request() and retrieval
// the structure belongs to the library: neither read nor write it. A retrieved request keeps what
// was asked, and can be submitted again as it is or changed.
struct hither_request {
  // Asked: first byte to copy, or first page to move.
  const void *src_base;
  // Asked, of a replication: first byte to write. Of a migration: not looked at.
  void *dst_base;
  // Asked: how many bytes.
  uint64_t length;
  // Asked: the caller's own; the library does not look at it.
  uint64_t tag;
  // Asked: HITHER_REPLICATE or HITHER_MIGRATE. 0 when allocated, which is refused.
  uint32_t kind;
  // Asked: HITHER_RACE_* and HITHER_PRIORITY_HIGH. Unknown bits are refused.
  uint32_t flags;
  // Asked, of a migration: the node, by the kernel's number. -1 when allocated, which is
  // refused. Of a replication: not looked at.
  int32_t node;
  // Must be 0.
  uint32_t reserved;
  // Result: HITHER_DONE, HITHER_FAILED or HITHER_CANCELLED.
  int status;
  // Result: who carried it out, for hither_backend_name().
  uint32_t backend;
  // Result: pages of 4096 bytes now on the target that were elsewhere; of a replication, pages
  // written to.
  uint64_t moved;
  // Result: pages that were on the target already.
  uint64_t already_there;
  // Result: bytes copied.
  uint64_t bytes;
  // Result: time from submission until it was begun, in ns.
  uint64_t queue_ns;
  // Result: time that the move took, in ns.
  uint64_t move_ns;
  // Result: time that threads of the program waited for pages on their way, in ns, summed over
  // threads.
  uint64_t stall_ns;
  // Result: huge pages that arrived as such.
  uint32_t huge_kept;
  // Result: huge pages that were split on the way.
  uint32_t huge_split;
  // Result: the address whose access ended the request (HITHER_RACE_FAIL). NULL if none did.
  const void *race_address;
  // Result: the thread that made that access, by the kernel's number. 0 if none did.
  int32_t race_thread;
  // Result: pages that stayed where they were, by reason: HITHER_REFUSED_* is the index. A
  // count ends at 4294967295.
  uint32_t refused[HITHER_REFUSED_COUNT];
  // 0.
  uint32_t reserved_result;
};

// Settings of a stream. Set it to zero first: zero is the default of every field, of those too that a later version
// adds.
struct hither_stream_config {
  // Elements of a block, of each array. Some hundred KiB of bytes: less, and handing over weighs; more, and fewer
  // buffers fit. 0: 256 KiB of the larger elements.
  size_t block;
  // Bytes of the last-level cache that the team computes with: there are so many buffers that they exceed it by a
  // quarter, where fast memory has room. 0: `buffers` alone counts.
  size_t cache_bytes;
  // Bytes of an element of the arrays read.
  size_t input_bytes;
  // Bytes of an element of the arrays written.
  size_t output_bytes;
  // With `fast_node` -1: the program's own fast memory. It is the stream's until that is destroyed. Otherwise NULL.
  void *fast_memory;
  // Bytes of fast memory. 0: as many as the buffers need; with `fast_node` -1 it must be set.
  size_t fast_bytes;
  // The node on which the library allocates fast memory, by the kernel's number; -1: the program gives
  // `fast_memory`. Where the node has not so much free, the kernel may end the process.
  int32_t fast_node;
  // Arrays read: 0 to 64.
  uint32_t inputs;
  // Arrays written: 0 to 64.
  uint32_t outputs;
  // Most buffers, of a block of each array; fewer where fast memory has no room for them. 0: 8.
  uint32_t buffers;
  // Threads that compute, the calling one included: 1 to 1024. 0: 1.
  uint32_t threads;
  // HITHER_STREAM_IN_PLACE, HITHER_STREAM_FAST or HITHER_STREAM_FAST_UPDATED. 0: in place.
  uint32_t results;
  // HITHER_STREAM_MEASURE, HITHER_STREAM_ALWAYS or HITHER_STREAM_NEVER. 0: the stream measures.
  uint32_t adapt;
  // HITHER_STREAM_WHOLE and HITHER_STREAM_HUGE. Unknown bits are refused.
  uint32_t flags;
};

// A block of a stream, or one thread's part of it, to be computed.
struct hither_stream_part {
  // Where the part of each array read begins.
  const void *const *inputs;
  // Where the part of each array written begins.
  void *const *outputs;
  // The block's number.
  uint64_t block;
  // Position in the arrays of the part's first element.
  uint64_t first;
  // Elements of the part.
  uint64_t length;
  // Number of the calling thread in the team, from 0.
  uint32_t thread;
  // Is the input in fast memory? 1 or 0.
  uint32_t is_fast;
};

// What a run of a stream did.
struct hither_stream_report {
  // Blocks computed: all of them.
  uint64_t blocks;
  // Those computed from fast memory.
  uint64_t fast_blocks;
  // Those computed from slow memory while they were being filled: nothing else was left.
  uint64_t late_fills;
  // Fills that the mover refused or failed.
  uint64_t failed_fills;
  // Results that the mover failed to bring back, so that the team did.
  uint64_t failed_returns;
  // Bytes that the mover copied for this stream.
  uint64_t copied_bytes;
  // Time it copied, in ns, summed over requests.
  uint64_t copying_ns;
  // The part of that time before computing ended, in ns.
  uint64_t overlapped_ns;
  // From the first block to the last result in place, in ns.
  uint64_t elapsed_ns;
  // The worst comparison of the last try: how many times as fast fast memory is. 0: nothing was compared.
  double gain;
  // HITHER_STREAM_UNDECIDED, HITHER_STREAM_PLAIN or HITHER_STREAM_THROUGH: what the stream holds of fast memory now.
  uint32_t decision;
  // Buffers that the stream has.
  uint32_t buffers;
};

// Where the pages of a range are, as hither_where() found them.
struct hither_residency {
  // Pages of 4096 bytes that have a byte of the range.
  uint64_t pages;
  // Those that are not in memory: never written to, or swapped out.
  uint64_t absent;
  // Those on a node that the policy of their address does not name.
  uint64_t astray;
  // Those that are parts of huge pages; HITHER_UNKNOWN before Linux 6.7.
  uint64_t huge;
};

// Settings of a replicated array. Set it to zero first: zero is the default of every field, of those too that a
// later version adds.
struct hither_replicated_config {
  // Most bytes of all copies together. 0: as much as nodes have free.
  uint64_t budget_bytes;
  // Bytes that stay free on each node. 0: a 32nd of what it has.
  uint64_t reserve_bytes;
  // Bytes that are copied, and are stale, at once: a power of two from 64 KiB to 1 GiB. 0: 2 MiB; of arrays
  // below 16 MiB 64 KiB.
  uint32_t chunk_bytes;
  // HITHER_REPLICATED_PARTIAL, HITHER_REPLICATED_INTERLEAVE and HITHER_REPLICATED_HUGE. Unknown bits are refused.
  uint32_t flags;
  // Readers at one time: 1 to 16384. 0: 256.
  uint32_t readers;
  // Threads that copy for a node. 0: one for each of its CPUs, 4 at most.
  uint32_t workers;
  // 0: a place for each node with memory and CPUs. More: so many places on the first of them, to try a
  // program on a machine with one node; up to 64.
  uint32_t copies;
  // A thread of the library makes copies, makes them again when something was written, and gives them up
  // where writes dominate, at least each so many ms. 0: none does.
  uint32_t keep_ms;
};

// An epoch that a reader holds.
struct hither_view {
  // All bytes in one piece.
  const void *data;
  // Where each chunk is; an entry may change to that of a copy with the same bytes.
  const void *const *chunks;
  // Length of the array.
  uint64_t bytes;
  // Which epoch: the first is 1.
  uint64_t epoch;
  // Byte i is in chunk i >> chunk_shift.
  uint32_t chunk_shift;
  // Is all of it on the reader's own node? 1 or 0.
  uint32_t is_local;
};

// Memory that a monitor watches. Set it to zero first: zero is the default of every field, of those too that a later
// version adds.
struct hither_area {
  // First byte; a multiple of the machine's line.
  const void *start;
  // How many bytes; a multiple of the line.
  uint64_t length;
  // Bytes that are counted together, a *grain*: a power of two from 32, or the line where that is longer, to 2 MiB.
  // 0: 4096.
  uint64_t grain;
  // HITHER_TYPE_*. 0: HITHER_TYPE_FILLS.
  uint32_t types;
  // HITHER_INBOUND, HITHER_OUTBOUND, HITHER_LOCAL and HITHER_AT_NODE. 0: all.
  uint32_t directions;
  // With HITHER_AT_NODE: the node that directions are seen from, by the kernel's number.
  uint32_t node;
  // Count of one grain from one node at which hither_monitor_wait() tells of it. 0: never.
  uint32_t threshold;
};

// A threshold that was reached.
struct hither_reached {
  // The area of the grain that reached it; -1 where a sum did.
  int area;
  // The sum that reached it; -1 where a grain did.
  int sum;
  // The grain, from 0 on.
  uint64_t grain;
  // The node of whoever asked last.
  int node;
  // 0.
  int reserved;
};

// What the whole machine did while a monitor counted.
struct hither_totals {
  // Packets between nodes without a line: requests, and answers to who asked for ownership.
  uint64_t short_packets;
  // Packets between nodes with a line: delivered, or written back.
  uint64_t line_packets;
  // Lines that memory delivered or took.
  uint64_t transactions;
  // Floating-point operations.
  uint64_t flops;
};

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// Opens a mover with default settings. `name` says whose memory it moves: NULL, "" or "self" is
// that of this process, the only one so far.
//
// Returns a handle: a file descriptor, 0 or more, that poll() reports as readable when a request
// may be completed. Do nothing else with it than poll() and the calls of this library.
// Errors: HITHER_ENOENT (no such name), HITHER_ENOMEM, HITHER_EFORK.
int hither_open(const char *name);

// Opens a mover as configured. `size` is sizeof(struct hither_config), by which the library knows
// the version of the structure.
//
// Returns a handle as hither_open() does.
// Errors: HITHER_EFAULT (config is NULL), HITHER_EINVAL (size, an unknown flag or a value out of
// range), HITHER_E2BIG (a field is set that this version of the library does not know), and those
// of hither_open().
int hither_open_config(const struct hither_config *config, size_t size);

// Closes a mover: hither_close_how() with HITHER_DRAIN.
//
// Returns 0. Errors: HITHER_EBADF, HITHER_EBUSY (it has streams), HITHER_EFORK.
int hither_close(int handle);

// Closes a mover. With HITHER_DRAIN it blocks until everything submitted has run; with
// HITHER_ABANDON until what has begun is finished, and the rest does not run. Results not
// retrieved before are lost, and every request of the mover is freed. Other threads that wait for
// it are woken with HITHER_EBADF.
//
// Returns 0. Errors: HITHER_EBADF (not open, or closed already), HITHER_EINVAL (how), HITHER_EBUSY
// (it has streams: hither_stream_destroy() first), HITHER_EFORK.
int hither_close_how(int handle, int how);

// Allocates a request to fill: all fields 0 or NULL, `node` -1. Never blocks.
//
// Returns NULL where it fails; hither_last_code() is HITHER_EAGAIN (all are in use),
// HITHER_EBADF or HITHER_EFORK then.
struct hither_request *hither_alloc_request(int handle);

// Frees a request that is not submitted, or retrieved.
//
// Returns 0. Errors: HITHER_EFAULT (NULL), HITHER_EINVAL (no request of an open mover, or freed
// already), HITHER_EBUSY (submitted and not yet retrieved), HITHER_EFORK.
int hither_free_request(struct hither_request *request);

// Submits a request. Never blocks, and makes no system call while a worker is awake. From now on
// until it is retrieved the request belongs to the library.
//
// Returns 0. Errors, after which the request is still the caller's and unchanged: HITHER_EFAULT
// (NULL), HITHER_EINVAL (no request of an open mover, freed, or a field without meaning;
// hither_last_error() says which), HITHER_EBUSY (submitted already), HITHER_EAGAIN (streams have the
// mover's requests), HITHER_EFORK.
int hither_submit_request(struct hither_request *request);

// Cancels a submitted request that has not begun. Cancelled or not, it is still to be retrieved.
//
// Returns 0: it will be retrieved as HITHER_CANCELLED. Errors: HITHER_EALREADY (too late),
// HITHER_EFAULT (NULL), HITHER_EINVAL (no request of an open mover, or not submitted),
// HITHER_EFORK.
int hither_cancel(struct hither_request *request);

// Retrieves a completed request of any mover of this process, each mover in its turn. Never
// blocks.
//
// Returns the request, which is the caller's again, to be read, submitted anew or freed. NULL: no
// request is completed (hither_last_code() is 0), or it is HITHER_EFORK or HITHER_ECORRUPT.
struct hither_request *hither_retrieve_completed(void);

// Retrieves a completed request of one mover. Never blocks. Before sleeping in poll(), call it
// until it returns NULL; poll() may return once more than needed.
//
// Returns as hither_retrieve_completed(); hither_last_code() may be HITHER_EBADF too.
struct hither_request *hither_retrieve(int handle);

// Retrieves a completed request of one mover, waiting for it up to `timeout_ms` milliseconds; -1
// waits for ever, 0 not at all. Signals do not end the waiting.
//
// Returns as hither_retrieve(); NULL with hither_last_code() 0 after the time. Errors:
// HITHER_EBADF (also when it is closed meanwhile), HITHER_EINVAL (a time below -1),
// HITHER_ECORRUPT, HITHER_EFORK.
struct hither_request *hither_wait(int handle, int timeout_ms);

// Writes to `text` which backends serve a mover and why the others do not: a line each. At most
// `size` bytes are written, a final zero included; of a longer text the beginning. `text` may be
// NULL where `size` is 0.
//
// Returns the length of the whole text in bytes, without its final zero, as snprintf() does.
// Errors: HITHER_EBADF, HITHER_EFAULT (text is NULL but size is not 0), HITHER_EFORK.
int hither_describe(int handle, char *text, size_t size);

// Name of the backend that carried a request out (`backend` of a retrieved request): "copy",
// "swap", "kernel".
//
// Returns a text that is never freed, or NULL: there is no such backend, and hither_last_code()
// is HITHER_EINVAL, HITHER_EBADF or HITHER_EFORK.
const char *hither_backend_name(int handle, uint32_t backend);

// Words for a reason (`HITHER_REFUSED_*`), to be read by people.
//
// Returns a text that is never freed; of an unknown reason "unknown".
const char *hither_reason_name(uint32_t reason);

// What a code of this library (`HITHER_E*`) means, to be read by people.
//
// Returns a text that is never freed; of an unknown code one that says so.
const char *hither_strerror(int code);

// Code of this thread's last call: 0 where it succeeded, for calls that return NULL for nothing
// as well as for errors. Calls that cannot fail (names, words, this one) do not count.
int hither_last_code(void);

// A sentence on this thread's last call: what is wrong, where, and how to mend it. Empty where
// that call succeeded. Valid until the thread's next call that can fail.
const char *hither_last_error(void);

// Version of the library in use, as text: "0.2.0". That of the header is in `HITHER_VERSION_*`.
const char *hither_version(void);

// Makes a stream over a mover: buffers in fast memory that hither_stream_run() has filled ahead. `size` is
// sizeof(struct hither_stream_config). The mover should take requests one by one (`batch_requests` 1), as completions
// of a batch are told together, and needs a request for each array of each buffer (`capacity`); with several
// workers more is copied at a time. It cannot be closed before the stream is destroyed.
//
// Returns a number above 0 for the other calls. Errors: HITHER_EFAULT (config, or fast_memory with fast_node -1, is
// NULL), HITHER_EINVAL (size, a field without meaning, no such node, no room for one buffer, a mover of too few
// requests), HITHER_E2BIG (a field is set that this version of the library does not know), HITHER_ENOMEM,
// HITHER_EBADF (mover is no open mover), HITHER_EFORK.
int hither_stream_create(int mover,
                         const struct hither_stream_config *config,
                         size_t size);

// Computes arrays of `length` elements, block by block: each thread of the team, the calling one first, calls
// `compute` with `context` for its parts, in about, but not exactly, ascending order, and each element is in one part.
// `inputs` and `outputs` have as many addresses as the stream has arrays. The pointers in a part are to fast memory
// where the part is there, and to the arrays otherwise; they end with `compute`. Returns when all results are in the
// arrays and no request of the run is in flight. `report` may be NULL.
//
// No output may overlap another array or fast memory, and nobody else writes to an array or uses an output
// meanwhile. `compute` must return: neither longjmp(), pthread_exit(), cancellation nor an exception of C++ may leave
// it. A child that is forked in `compute` must call exec or _exit() there.
//
// Returns 0. Errors, of which `compute` was not called: HITHER_EFAULT (compute, inputs, outputs or an address in
// them is NULL), HITHER_EINVAL (arrays overlap, or leave the address space), HITHER_EBUSY (it runs, also from within
// compute), HITHER_ENOMEM (no thread), HITHER_EBADF, HITHER_EFORK.
int hither_stream_run(int stream,
                      const void *const *inputs,
                      void *const *outputs,
                      size_t length,
                      void (*compute)(const struct hither_stream_part *part, void *context),
                      void *context,
                      struct hither_stream_report *report);

// Ends a stream: its fast memory is given back, or is the program's again.
//
// Returns 0. Errors: HITHER_EBADF, HITHER_EBUSY (it runs), HITHER_EFORK.
int hither_stream_destroy(int stream);

// Writes to `text` what a resource set comes to for this process: a line with its CPUs and nodes,
// and one for each thing that cpuset or affinity leave out of it. `set` is an expression such as
// "node:0 + mem:2". At most `size` bytes are written, a final zero included; of a longer text the
// beginning. `text` may be NULL where `size` is 0.
//
// Returns the length of the whole text in bytes, without its final zero, as snprintf() does.
// Errors: HITHER_EFAULT (set is NULL, or text is but size is not 0), HITHER_EINVAL (the set cannot
// be read, names what is not there, or nothing is left of it; hither_last_error() marks where),
// HITHER_EFORK.
int hither_describe_set(const char *set, char *text, size_t size);

// Allocates `bytes` of zeroed memory on the nodes of a resource set. A page comes into being on
// its node when it is first written to, whichever thread does so. `memory` says how nodes are
// chosen: "float", "local", "remote", "striped" (or "striped:16", 16 pages of a node at a time),
// "bind" (or "bind@2", from node 2 first), "preferred" (or "preferred@2") or "weighted"; NULL is
// "bind" where the set has memory, else "float". `flags` are HITHER_SMALL, HITHER_HUGE and
// HITHER_POPULATE.
//
// Returns an address, a multiple of 2 MiB, for hither_free(). NULL where it fails;
// hither_last_code() is HITHER_EFAULT (set is NULL), HITHER_EINVAL (bytes is 0 or more than the
// nodes have, a text cannot be read or does not go with the set, an unknown flag), HITHER_ENOMEM
// (no memory, or no mappings left), HITHER_ENOSYS (the kernel cannot do it) or HITHER_EFORK then.
void *hither_alloc(size_t bytes, const char *set, const char *memory, uint32_t flags);

// Frees memory of hither_alloc().
//
// Returns 0. Errors: HITHER_EFAULT (NULL), HITHER_EINVAL (not an address that hither_alloc()
// returned, or freed already), HITHER_EFORK.
int hither_free(void *memory);

// Gives memory of this process that exists already a set and a memory policy, which are as those
// of hither_alloc(). `address` and `bytes` are multiples of 4096. With HITHER_MOVE in `flags`
// pages that are there go where the policy wants them, as far as no other process maps them and
// the nodes have room: hither_where() tells.
//
// Returns 0. Errors: HITHER_EFAULT (address or set is NULL), HITHER_EINVAL (the range is empty,
// not of whole pages or not mapped, a text cannot be read or does not go with the set, an unknown
// flag), HITHER_ENOMEM (no memory, or more stripes than the kernel allows mappings), HITHER_ENOSYS
// (the kernel cannot do it), HITHER_EFORK.
int hither_bind_range(void *address,
                      size_t bytes,
                      const char *set,
                      const char *memory,
                      uint32_t flags);

// Binds the calling thread, and threads and children that it starts from now on, to a set: it runs
// on its CPUs alone, and takes memory as `memory` says: a word of hither_alloc() without stride or
// home node; NULL is "bind" where the set has memory, else nothing changes of memory. A set without
// CPUs changes nothing of CPUs. hither_unbind_thread() undoes it.
//
// Returns 0. Errors, after which the thread is as before: HITHER_EFAULT (set is NULL),
// HITHER_EINVAL (a text cannot be read or does not go with the set, the kernel refuses it, or the
// thread is bound 64 times), HITHER_ENOMEM, HITHER_ENOSYS, HITHER_EFORK.
int hither_bind_thread(const char *set, const char *memory);

// Binds the calling thread as thread `index`, from 0, of a team on a set: to one CPU in the order
// that `threads` says, "fill" (close together) or "round-robin:node" (apart; also package, domain,
// core), the first CPU again after the last; or to all with "float". NULL is "fill". Of memory it
// does what hither_bind_thread() does, and hither_unbind_thread() undoes it.
//
// Returns 0. Errors: as hither_bind_thread().
int hither_place_thread(const char *set, const char *threads, uint32_t index);

// Undoes the last hither_bind_thread() or hither_place_thread() of the calling thread that is not
// undone yet.
//
// Returns 0. Errors: HITHER_EINVAL (there is none, or the kernel refuses what the thread had),
// HITHER_EFORK.
int hither_unbind_thread(void);

// Tells where the pages of a range are, without bringing any into memory: those that have a byte
// of it are looked at. `nodes[n]` gets the number of pages on node n, for n below `node_count`;
// `nodes` may be NULL where that is 0. `residency` gets the rest; it may be NULL.
//
// Returns the highest node that has a page, plus 1; 0 where no page is in memory. Where that is
// more than `node_count`, others have pages too. Errors: HITHER_EFAULT (address is NULL, or nodes
// is but node_count is not 0), HITHER_EINVAL (the range is empty or not mapped), HITHER_ENOSYS
// (the kernel does not tell), HITHER_EFORK.
int hither_where(const void *address,
                 size_t bytes,
                 uint64_t *nodes,
                 size_t node_count,
                 struct hither_residency *residency);

// Makes an array of `bytes` zero bytes, of which each node with CPUs may have a copy. `config` may be NULL;
// `size` is sizeof(struct hither_replicated_config) then as well. Threads read through
// hither_replicated_reader(). Copies are made by hither_replicated_refresh(), or by a thread of the library
// where `keep_ms` is set.
//
// Returns a number above 0 for the other calls. Errors: HITHER_EINVAL (0 bytes, size, an unknown flag, a value
// out of range), HITHER_E2BIG (a field is set that this version of the library does not know), HITHER_ENOMEM,
// HITHER_EFORK.
int hither_replicated_create(size_t bytes,
                             const struct hither_replicated_config *config,
                             size_t size);

// Ends an array: its thread ends and its memory is given back. An epoch that is being prepared is lost.
//
// Returns 0. Errors: HITHER_EBADF, HITHER_EBUSY (it has readers), HITHER_EFORK.
int hither_replicated_destroy(int array);

// Writes `bytes` bytes from `data` at `offset` of the array, and publishes them as the next epoch: readers see
// all of them or none. Copies of the chunks that they are in are stale until they are made again. Waits at most
// `timeout_ms` for other writers and for readers that hold an epoch before the current one; -1 for ever.
//
// Returns 0. Errors: HITHER_EFAULT, HITHER_EINVAL (the bytes end behind the array, a time below -1),
// HITHER_ETIMEDOUT, HITHER_EBUSY (an epoch is prepared), HITHER_ENOMEM (no second master), HITHER_EBADF,
// HITHER_EFORK.
int hither_replicated_write(int array,
                            size_t offset,
                            const void *data,
                            size_t bytes,
                            int timeout_ms);

// Prepares the next epoch: `*memory` is set to where the bytes of a range may be read and changed, as no reader
// sees yet. May be called for several ranges before hither_replicated_publish(). Waits as
// hither_replicated_write(), the first time. One thread at a time may prepare.
//
// Returns 0. Errors: as hither_replicated_write().
int hither_replicated_prepare(int array,
                              size_t offset,
                              size_t bytes,
                              int timeout_ms,
                              void **memory);

// Publishes what was prepared: readers find it from their next hither_replicated_read() on. Never waits for
// readers. Memory of hither_replicated_prepare() is not the caller's any more.
//
// Returns 0. Errors: HITHER_EINVAL (nothing is prepared), HITHER_EBUSY (another thread prepares),
// HITHER_EBADF, HITHER_EFORK.
int hither_replicated_publish(int array);

// Drops what was prepared: the current epoch stays.
//
// Returns 0. Errors: as hither_replicated_publish().
int hither_replicated_abandon(int array);

// Makes copies that are missing or stale, by threads on all nodes at once, and returns when they are there.
// Readers read meanwhile. What finds no room on its node, or no budget, is left: readers there use the master,
// and hither_replicated_report() says so. Waits for readers as hither_replicated_write().
//
// Returns 0. Errors: HITHER_ETIMEDOUT, HITHER_EINVAL, HITHER_ENOMEM, HITHER_EBADF, HITHER_EFORK.
int hither_replicated_refresh(int array,
                              int timeout_ms);

// Gives all copies up, and their memory back once no reader holds them.
//
// Returns 0. Errors: HITHER_ETIMEDOUT (a reader holds them: memory is given back by the next write or refresh),
// HITHER_EINVAL, HITHER_EBADF, HITHER_EFORK.
int hither_replicated_collapse(int array,
                               int timeout_ms);

// Writes to `text` what an array did: copies, memory, what was read locally, what was refused and why. At most
// `size` bytes are written, a final zero included. `text` may be NULL where `size` is 0.
//
// Returns the length of the whole text, as snprintf() does. Errors: HITHER_EFAULT, HITHER_EBADF, HITHER_EFORK.
int hither_replicated_report(int array,
                             char *text,
                             size_t size);

// Opens a reader of an array for one thread. `place` is the number of a copy from 0 on, in the order of nodes;
// -1 is the one nearest to the CPU that the thread runs on now.
//
// Returns a number, 0 or more. Errors: HITHER_EBADF, HITHER_EINVAL (there is no such place), HITHER_EAGAIN (all
// readers are in use), HITHER_EFORK.
int hither_replicated_reader(int array,
                             int place);

// Closes a reader; what it holds is let go.
//
// Returns 0. Errors: HITHER_EBADF, HITHER_EBUSY (another thread uses it), HITHER_EFORK.
int hither_replicated_close_reader(int reader);

// Holds the current epoch, and sets `*view` to where it is: `data` is all of it in one piece, the local copy
// where that is complete, else the master; `chunks[i >> chunk_shift]` is where the chunk of byte i is, the local
// copy where that chunk has one. Both are read until hither_replicated_done(). Where the reader holds an epoch
// already, that is let go.
//
// While an epoch is held, the second next one cannot be prepared.
//
// Returns 0. Errors: HITHER_EFAULT, HITHER_EBADF, HITHER_EBUSY (another thread uses the reader), HITHER_EFORK.
int hither_replicated_read(int reader,
                           struct hither_view *view);

// Lets go what a reader holds.
//
// Returns 0. Errors: HITHER_EINVAL (it holds nothing), HITHER_EBADF, HITHER_EBUSY (another thread uses the
// reader), HITHER_EFORK.
int hither_replicated_done(int reader);

// Makes a region: threads that are kept on the CPUs of a resource set, such as "domain:1", those that share the
// second last-level cache, and that answer hither_region_run(). `workers` is how many; 0 is 1, which answers visits
// one after another.
//
// Returns a number above 0 for the other calls. Errors: HITHER_EFAULT (set is NULL), HITHER_EINVAL (the set cannot be
// read, names what is not there, or has no CPUs that may be used; more than 1024 workers), HITHER_EAGAIN (there are 1024
// regions), HITHER_ENOMEM (no memory or thread), HITHER_EFORK.
int hither_region_create(const char *set,
                         uint32_t workers);

// Has a thread of the region call `work` with `argument`, and returns when it has returned; `*result` is set to what it
// returned, unless `result` is NULL. Makes no system call while both threads are awake. Within `work`, a call for the same
// region runs in place, and one for another region lets this region's thread answer other callers meanwhile: a lock that
// is held across such a call must not be taken by other visits to the same region.
//
// `work` must return: neither longjmp(), pthread_exit(), cancellation nor an exception of C++ may leave it. A child
// that is forked in `work` must call exec or _exit() there.
//
// Returns 0. Errors: HITHER_EFAULT (work is NULL), HITHER_EBADF, HITHER_EFORK; `work` was not called then.
int hither_region_run(int region,
                      void *(*work)(void *argument),
                      void *argument,
                      void **result);

// Ends a region and its threads.
//
// Returns 0. Errors: HITHER_EBADF, HITHER_EBUSY (a thread is in hither_region_run() for it), HITHER_EFORK.
int hither_region_destroy(int region);

// Opens a monitor of this process's own memory. It counts by the laboratory's device where there is one and this
// process may use it (root), else by samples of the processor's PMU, which are estimates (hither_monitor_describe() says
// what they leave out). With HITHER_MONITOR_SAMPLES samples are taken in any case. The device counts for one process at
// a time.
//
// Returns a number above 0 for the other calls. Errors: HITHER_EINVAL (an unknown flag, or nothing here counts:
// hither_last_error() has each reason), HITHER_ENOSYS (the kernel does not let this process), HITHER_EFORK.
int hither_monitor_open(uint32_t flags);

// Closes a monitor. What it counted is lost. Threads in hither_monitor_wait() for it are woken with HITHER_EBADF.
//
// Returns 0. Errors: HITHER_EBADF, HITHER_EFORK.
int hither_monitor_close(int monitor);

// Adds an area; `size` is sizeof(struct hither_area). Only while it does not count.
//
// Returns the area's number, from 0 on. Errors: HITHER_EFAULT (area is NULL), HITHER_EINVAL (size, a field without
// meaning, what samples cannot tell, 32 areas, or it counts), HITHER_EBADF, HITHER_EFORK.
int hither_monitor_add_area(int monitor,
                            const struct hither_area *area,
                            size_t size);

// Adds a counter over `count` areas: of what these count, it counts `types` (HITHER_TYPE_*; 0: HITHER_TYPE_FILLS), and
// hither_monitor_wait() tells where it reaches `threshold`, all nodes together (0: never). Only while the monitor does
// not count.
//
// Returns the sum's number, from 0 on. Errors: HITHER_EFAULT (areas is NULL), HITHER_EINVAL (no such area or type, 16
// sums, or it counts), HITHER_EBADF, HITHER_EFORK.
int hither_monitor_add_sum(int monitor,
                           const int *areas,
                           size_t count,
                           uint32_t types,
                           uint64_t threshold);

// Begins to count, all from 0 on. Pages count where they are now: one that moves, or comes into memory later, is counted
// from the next start on.
//
// Returns 0. Errors: HITHER_EINVAL (no area, no page of them in memory, it counts already, or areas of sums lie in more
// pieces of physical memory than there are filters: use memory of huge pages), HITHER_EBADF, HITHER_EFORK.
int hither_monitor_start(int monitor);

// Ends counting. What was counted can be read until the next start.
//
// Returns 0. Errors: HITHER_EBADF, HITHER_EFORK, and where samples cannot be read HITHER_ENOSYS.
int hither_monitor_stop(int monitor);

// Reads an area: `counts[grain * nodes + node]` is set to what CPUs of the node (the kernel's number) asked for of the
// grain since the start, for `grains` grains at most. `missed_pages` is set to how many of its pages were not in memory
// at the start or have moved since, unless it is NULL.
//
// Returns how many grains the area has. Errors: HITHER_EFAULT (counts is NULL but grains is not 0), HITHER_EINVAL (no
// such area, or it was never started), HITHER_EBADF, HITHER_EFORK.
int hither_monitor_read(int monitor,
                        int area,
                        uint64_t *counts,
                        size_t grains,
                        size_t nodes,
                        uint64_t *missed_pages);

// Reads a sum: `counts[node]` is set to what CPUs of the node asked for since the start, for `nodes` nodes.
//
// Returns 0. Errors: HITHER_EFAULT (counts is NULL), HITHER_EINVAL (no such sum, or it was never started), HITHER_EBADF,
// HITHER_EFORK.
int hither_monitor_read_sum(int monitor,
                            int sum,
                            uint64_t *counts,
                            size_t nodes);

// Waits until a threshold is reached that was not told yet, up to `timeout_ms` milliseconds; -1 for ever, 0 not at all.
// The calling thread looks every half millisecond (samples: every 10 ms). `reached` may be NULL.
//
// Returns 1: `reached` says which; 0: the time is over. Errors: HITHER_EINVAL (a time below -1, or it does not count),
// HITHER_EBADF (also when it is closed meanwhile), HITHER_EFORK.
int hither_monitor_wait(int monitor,
                        int timeout_ms,
                        struct hither_reached *reached);

// Tells what the whole machine did from the start to the stop, or now: packets between nodes and floating-point
// operations. `size` is sizeof(struct hither_totals).
//
// Returns 1; 0 where only samples tell, which leave that out. Errors: HITHER_EFAULT (totals is NULL), HITHER_EINVAL
// (size), HITHER_EBADF, HITHER_EFORK.
int hither_monitor_totals(int monitor,
                          struct hither_totals *totals,
                          size_t size);

// Writes to `text` what counts for a monitor and what it leaves out. At most `size` bytes are written, a final zero
// included; of a longer text the beginning. `text` may be NULL where `size` is 0.
//
// Returns the length of the whole text in bytes, as snprintf() does. Errors: HITHER_EFAULT, HITHER_EBADF, HITHER_EFORK.
int hither_monitor_describe(int monitor,
                            char *text,
                            size_t size);

// Has the daemon leave this process alone until it ends, and the children that it makes from now on: no
// page of theirs is moved. Pages that were moved stay where they are. Blocks until the daemon has answered,
// 10 seconds at most. Also in a child after fork().
//
// Returns 0. Errors: HITHER_ECONNREFUSED (no daemon answers), HITHER_EPERM (it refuses).
int hither_opt_out(void);

// Lets the daemon look after this process: takes hither_opt_out() back, and is as HITHER=on in the
// environment for targets with `opt_in = true`. Blocks as hither_opt_out() does.
//
// Returns 0, also where no target takes the process. Errors: HITHER_ECONNREFUSED (no daemon answers),
// HITHER_EPERM (HITHER=off is in the environment that this process was executed with, or its control group
// says so).
int hither_opt_in(void);

// Tells the daemon of `length` bytes from `start` on, of which the pages that lie wholly within count, for the
// policy tiers. HITHER_HINT_HOT and HITHER_HINT_COLD are expectations: they count like evidence for 10 seconds,
// then what is seen counts alone; declare them again at a new phase. HITHER_HINT_PIN_FAST and
// HITHER_HINT_PIN_SLOW hold until HITHER_HINT_NONE takes them back. All ends with the address space, and with
// the daemon. Blocks as hither_opt_out() does. Also in a child after fork(), which declares its own memory.
//
// Returns 0, also where no target takes the process or its policy does not hear of tiers. Errors:
// HITHER_EINVAL (no such hint, or the end is not in the address space), HITHER_ECONNREFUSED (no daemon answers),
// HITHER_EPERM (it refuses: a process declares 4096 ranges at most).
int hither_declare(const void *start,
                   uint64_t length,
                   uint32_t hint);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* HITHER_H */
