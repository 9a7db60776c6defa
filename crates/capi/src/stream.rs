//! The functions of the interface that stream: a program computes over arrays in slow memory, from fast memory that a
//! mover fills ahead.
//!
//! A stream holds its mover, which cannot be closed before. Its requests are the mover's futures: the program never
//! retrieves one of them.

use crate::constants::{
    HITHER_EBUSY, HITHER_EINVAL, HITHER_ENOMEM, HITHER_OK, HITHER_STREAM_ALWAYS,
    HITHER_STREAM_FAST, HITHER_STREAM_FAST_UPDATED, HITHER_STREAM_HUGE, HITHER_STREAM_IN_PLACE,
    HITHER_STREAM_MEASURE, HITHER_STREAM_NEVER, HITHER_STREAM_PLAIN, HITHER_STREAM_THROUGH,
    HITHER_STREAM_UNDECIDED, HITHER_STREAM_WHOLE,
};
use crate::failure::{Failure, Outcome, invalid, missing, number};
use crate::handles::{Handles, Kind};
use crate::types::{HitherStreamConfig, HitherStreamPart, HitherStreamReport};
use crate::{lifetime, placement, registry, structures};
use hither_core::ids::NodeId;
use hither_linux::bind;
use hither_linux::sys::NodeMemory;
use hither_mover::stream::{
    Adapt, ArrayKind, Decision, RawPart, RawStream, StreamError, StreamReport, StreamResults,
    StreamSettings, TeamSharing,
};
use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::{Mutex, MutexGuard, TryLockError};

/// Arrays of either kind: pointers to their parts lie on a thread's stack.
const MOST_ARRAYS: u32 = 64;
/// Threads of a team.
const MOST_THREADS: u32 = 1024;
/// Bytes of a block of the largest elements, where the program says nothing.
const BLOCK_BYTES: usize = 256 << 10;

static STREAMS: Handles<Held> = Handles::new(Kind {
    name: "stream",
    made_by: "hither_stream_create",
    ended_by: "hither_stream_destroy",
});

/// A stream of a program. Who runs or destroys it has the lock; `None` once it is destroyed.
struct Held(Mutex<Option<Open>>);

/// In the order in which they end.
struct Open {
    stream: RawStream,
    inputs: usize,
    outputs: usize,
    /// Fast memory, where it is not the program's.
    _memory: Option<NodeMemory>,
    mover: registry::Kept,
}

/// A pointer of the program, which vouches that the threads of a team may use it.
struct Shared(*mut c_void);

// SAFETY: whoever calls `hither_stream_run` vouches for it.
unsafe impl Sync for Shared {}

impl Shared {
    fn get(&self) -> *mut c_void {
        self.0
    }
}

/// Makes a stream over a mover: buffers in fast memory that hither_stream_run() has filled ahead. `size` is
/// sizeof(struct hither_stream_config). The mover should take requests one by one (`batch_requests` 1), as completions
/// of a batch are told together, and needs a request for each array of each buffer (`capacity`); with several
/// workers more is copied at a time. It cannot be closed before the stream is destroyed.
///
/// Returns a number above 0 for the other calls. Errors: HITHER_EFAULT (config, or fast_memory with fast_node -1, is
/// NULL), HITHER_EINVAL (size, a field without meaning, no such node, no room for one buffer, a mover of too few
/// requests), HITHER_E2BIG (a field is set that this version of the library does not know), HITHER_ENOMEM,
/// HITHER_EBADF (mover is no open mover), HITHER_EFORK.
///
/// # Safety
/// `config` is NULL or has `size` bytes. Memory that it names is not accessed before hither_stream_run().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hither_stream_create(
    mover: c_int,
    config: *const HitherStreamConfig,
    size: usize,
) -> c_int {
    number(|| {
        lifetime::begin()?;
        // SAFETY: as the caller of this function vouches; all fields are numbers and addresses.
        let asked = unsafe {
            structures::read(
                config,
                size,
                size_of::<HitherStreamConfig>(),
                "hither_stream_config",
            )?
        };
        let Some(asked) = asked else {
            return missing("config");
        };
        let mover = registry::keep(mover)?;
        let settings = settings(&asked)?;
        let (inputs, outputs) = kinds(&asked)?;
        let needed = settings.results.block_requests(inputs.count, outputs.count);
        if needed > mover.capacity() {
            return invalid(format!(
                "a block takes {needed} requests, and the mover has {}: open it with a larger capacity",
                mover.capacity()
            ));
        }
        let (fast, memory) = fast_memory(&asked, inputs, outputs, &settings)?;
        let stream = RawStream::new(fast, inputs, outputs, settings).map_err(failure)?;
        keep(Open {
            stream,
            inputs: inputs.count,
            outputs: outputs.count,
            _memory: memory,
            mover,
        })
    })
}

/// Computes arrays of `length` elements, block by block: each thread of the team, the calling one first, calls
/// `compute` with `context` for its parts, in about, but not exactly, ascending order, and each element is in one part.
/// `inputs` and `outputs` have as many addresses as the stream has arrays. The pointers in a part are to fast memory
/// where the part is there, and to the arrays otherwise; they end with `compute`. Returns when all results are in the
/// arrays and no request of the run is in flight. `report` may be NULL.
///
/// No output may overlap another array or fast memory, and nobody else writes to an array or uses an output
/// meanwhile. `compute` must return: neither longjmp(), pthread_exit(), cancellation nor an exception of C++ may leave
/// it. A child that is forked in `compute` must call exec or _exit() there.
///
/// Returns 0. Errors, of which `compute` was not called: HITHER_EFAULT (compute, inputs, outputs or an address in
/// them is NULL), HITHER_EINVAL (arrays overlap, or leave the address space), HITHER_EBUSY (it runs, also from within
/// compute), HITHER_ENOMEM (no thread), HITHER_EBADF, HITHER_EFORK.
///
/// # Safety
/// The arrays, and fast memory that the program gave, are as said above; `compute` may be called with `context` by
/// other threads, and accesses nothing beyond the part. `report` is NULL or a structure to write to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hither_stream_run(
    stream: c_int,
    inputs: *const *const c_void,
    outputs: *const *mut c_void,
    length: usize,
    compute: Option<unsafe extern "C" fn(part: *const HitherStreamPart, context: *mut c_void)>,
    context: *mut c_void,
    report: *mut HitherStreamReport,
) -> c_int {
    number(|| {
        let held = STREAMS.find(stream)?;
        let mut slot = held.lock(stream)?;
        let open = slot.as_mut().ok_or_else(|| STREAMS.missing(stream))?;
        let Some(compute) = compute else {
            return missing("compute");
        };
        // SAFETY: as the caller of this function vouches.
        let inputs = unsafe { addresses("inputs", inputs, open.inputs, length)? };
        // SAFETY: as above.
        let outputs = unsafe { addresses("outputs", outputs.cast(), open.outputs, length)? };
        let inputs: Vec<*const u8> = inputs.into_iter().map(|one| one.cast()).collect();
        let outputs: Vec<*mut u8> = outputs
            .into_iter()
            .map(|one| one.cast_mut().cast())
            .collect();
        let counts = (open.inputs, open.outputs);
        let context = Shared(context);
        let each = |part: RawPart<'_>| {
            let mut from = [ptr::null::<c_void>(); MOST_ARRAYS as usize];
            let mut to = [ptr::null_mut::<c_void>(); MOST_ARRAYS as usize];
            for (array, place) in from.iter_mut().take(counts.0).enumerate() {
                *place = part.input(array).cast();
            }
            for (array, place) in to.iter_mut().take(counts.1).enumerate() {
                *place = part.output(array).cast();
            }
            let told = HitherStreamPart {
                inputs: from.as_ptr(),
                outputs: to.as_ptr(),
                block: part.block as u64,
                first: part.first as u64,
                length: part.length as u64,
                thread: part.thread as u32,
                is_fast: part.is_fast.into(),
            };
            // SAFETY: as the caller of this function vouches.
            unsafe { compute(&raw const told, context.get()) };
        };
        let mover = open.mover.mover();
        // SAFETY: the caller vouches for the arrays, and for fast memory that it gave; other fast memory is this
        // stream's, which nobody else runs meanwhile.
        let run = unsafe { open.stream.run(mover, &inputs, &outputs, length, each) };
        let told = run.map_err(failure)?;
        if !report.is_null() {
            // SAFETY: the caller vouches for it.
            unsafe { report.write(reported(&told, open.stream.buffer_count())) };
        }
        Ok(HITHER_OK)
    })
}

/// Ends a stream: its fast memory is given back, or is the program's again.
///
/// Returns 0. Errors: HITHER_EBADF, HITHER_EBUSY (it runs), HITHER_EFORK.
#[unsafe(no_mangle)]
pub extern "C" fn hither_stream_destroy(stream: c_int) -> c_int {
    number(|| {
        let mut ended = None;
        STREAMS.remove(stream, |held| {
            ended = held.lock(stream)?.take();
            Ok(())
        })?;
        // Memory is unmapped without a lock.
        ended
            .map(|_| HITHER_OK)
            .ok_or_else(|| STREAMS.missing(stream))
    })
}

impl Held {
    /// For who runs or destroys it: one at a time.
    fn lock(&self, number: c_int) -> Outcome<MutexGuard<'_, Option<Open>>> {
        match self.0.try_lock() {
            Ok(slot) => Ok(slot),
            Err(TryLockError::Poisoned(slot)) => Ok(slot.into_inner()),
            Err(TryLockError::WouldBlock) => {
                let text = format!(
                    "stream {number} runs: wait for its hither_stream_run(), or make a stream for each thread"
                );
                Err(Failure::new(HITHER_EBUSY, text))
            }
        }
    }
}

/// Keeps a stream until it is destroyed; its number.
fn keep(open: Open) -> Outcome<c_int> {
    STREAMS.keep(Held(Mutex::new(Some(open))))
}

fn settings(asked: &HitherStreamConfig) -> Outcome<StreamSettings> {
    let unknown = asked.flags & !(HITHER_STREAM_WHOLE | HITHER_STREAM_HUGE);
    if unknown != 0 {
        return invalid(format!(
            "flags has the unknown bits {unknown:#x}: clear them"
        ));
    }
    if asked.threads > MOST_THREADS {
        return invalid(format!(
            "threads is {}: it is 1 to {MOST_THREADS}",
            asked.threads
        ));
    }
    let element = asked.input_bytes.max(asked.output_bytes).max(1);
    let block = match asked.block {
        0 => (BLOCK_BYTES / element).max(1),
        block => block,
    };
    let usual = StreamSettings::new(block);
    Ok(StreamSettings {
        buffers: match asked.buffers {
            0 => usual.buffers,
            buffers => buffers as usize,
        },
        cache_bytes: asked.cache_bytes,
        threads: asked.threads.max(1) as usize,
        sharing: match asked.flags & HITHER_STREAM_WHOLE {
            0 => TeamSharing::Together,
            _ => TeamSharing::Whole,
        },
        results: match asked.results {
            HITHER_STREAM_IN_PLACE => StreamResults::InPlace,
            HITHER_STREAM_FAST => StreamResults::Fast,
            HITHER_STREAM_FAST_UPDATED => StreamResults::FastUpdated,
            other => {
                return invalid(format!(
                    "results is {other}: it is HITHER_STREAM_IN_PLACE, HITHER_STREAM_FAST or \
                     HITHER_STREAM_FAST_UPDATED"
                ));
            }
        },
        adapt: match asked.adapt {
            HITHER_STREAM_MEASURE => Adapt::Measure,
            HITHER_STREAM_ALWAYS => Adapt::Always,
            HITHER_STREAM_NEVER => Adapt::Never,
            other => {
                return invalid(format!(
                    "adapt is {other}: it is HITHER_STREAM_MEASURE, HITHER_STREAM_ALWAYS or HITHER_STREAM_NEVER"
                ));
            }
        },
        ..usual
    })
}

fn kinds(asked: &HitherStreamConfig) -> Outcome<(ArrayKind, ArrayKind)> {
    let kind = |name: &str, count: u32, element_bytes: usize| match (count, element_bytes) {
        (1.., 0) => invalid(format!(
            "{name}_bytes is 0: set it to the size of an element of {name}s"
        )),
        (count, _) if count > MOST_ARRAYS => invalid(format!(
            "{name}s is {count}: a stream has {MOST_ARRAYS} at most"
        )),
        // Blocks begin at multiples of 64, which is enough for elements of C.
        (count, element_bytes) => Ok(ArrayKind {
            element_bytes,
            align: 1,
            count: count as usize,
        }),
    };
    let inputs = kind("input", asked.inputs, asked.input_bytes)?;
    let outputs = kind("output", asked.outputs, asked.output_bytes)?;
    if inputs.count + outputs.count == 0 {
        return invalid("inputs and outputs are 0: a stream needs an array at least");
    }
    Ok((inputs, outputs))
}

/// Where the buffers are: in the program's memory, or in memory of a node.
fn fast_memory(
    asked: &HitherStreamConfig,
    inputs: ArrayKind,
    outputs: ArrayKind,
    settings: &StreamSettings,
) -> Outcome<(*mut [MaybeUninit<u8>], Option<NodeMemory>)> {
    let given = asked.fast_memory;
    let node = match (u32::try_from(asked.fast_node), given.is_null()) {
        (Ok(node), true) => node,
        (Ok(node), false) => {
            return invalid(format!(
                "fast_memory is set, but fast_node is {node}: set fast_node to -1, or leave fast_memory out"
            ));
        }
        (Err(_), _) if asked.fast_node != -1 => {
            return invalid(format!(
                "fast_node is {}: it is the kernel's number of a node, or -1 with fast_memory",
                asked.fast_node
            ));
        }
        (Err(_), true) => return missing("fast_memory"),
        (Err(_), false) => {
            let end = given.addr().checked_add(asked.fast_bytes);
            if end.is_none() || isize::try_from(asked.fast_bytes).is_err() {
                return invalid("fast_memory leaves the address space: mend fast_bytes");
            }
            let fast = ptr::slice_from_raw_parts_mut(given.cast(), asked.fast_bytes);
            return Ok((fast, None));
        }
    };
    let needed = RawStream::fast_bytes(inputs, outputs, settings).map_err(failure)?;
    let bytes = match asked.fast_bytes {
        0 => needed,
        bytes => bytes,
    };
    let mut memory = memory_on(node, bytes, asked.flags & HITHER_STREAM_HUGE != 0)?;
    let fast: *mut [MaybeUninit<u8>] = memory.uninit_mut();
    Ok((fast, Some(memory)))
}

fn memory_on(node: u32, bytes: usize, huge: bool) -> Outcome<NodeMemory> {
    // All its pages are brought in: where more is asked for than there can be, the kernel would end the process.
    let here = bind::here().map_err(placement::failure)?;
    let Some(position) = here.position(NodeId(node)) else {
        return invalid(format!(
            "fast_node is {node}, which this machine does not have: name a node with memory"
        ));
    };
    let total = here.nodes[position].total_bytes;
    if bytes as u64 > total {
        return invalid(format!(
            "{bytes} bytes of fast memory are more than node {node} has ({total}): lower fast_bytes, block, buffers \
             or cache_bytes"
        ));
    }
    NodeMemory::new(bytes, node, huge).map_err(|error| {
        let text = format!("no {bytes} bytes of fast memory on node {node}: {error}");
        match error.raw_os_error() {
            // mbind(2): a node that this process may not use.
            Some(22) => Failure::new(HITHER_EINVAL, format!("{text}; name another node")),
            _ => Failure::new(
                HITHER_ENOMEM,
                format!("{text}; free some there, or ask for less"),
            ),
        }
    })
}

/// As many addresses as a stream has arrays.
///
/// # Safety
/// `list` is NULL or has `count` entries.
unsafe fn addresses(
    name: &str,
    list: *const *const c_void,
    count: usize,
    length: usize,
) -> Outcome<Vec<*const c_void>> {
    if list.is_null() && count > 0 {
        return missing(name);
    }
    let mut found = Vec::with_capacity(count);
    for index in 0..count {
        // SAFETY: the caller vouches for `count` entries.
        let address = unsafe { list.add(index).read_unaligned() };
        if address.is_null() && length > 0 {
            return missing(&format!("{name}[{index}]"));
        }
        found.push(address);
    }
    Ok(found)
}

fn reported(report: &StreamReport, buffers: usize) -> HitherStreamReport {
    HitherStreamReport {
        blocks: report.blocks,
        fast_blocks: report.fast_blocks,
        late_fills: report.late_fills,
        failed_fills: report.failed_fills,
        failed_returns: report.failed_returns,
        copied_bytes: report.copied_bytes,
        copying_ns: report.copying_ns,
        overlapped_ns: report.overlapped_ns,
        elapsed_ns: report.elapsed.as_nanos() as u64,
        gain: report.gain.unwrap_or(0.0),
        decision: match report.decision {
            Decision::Undecided => HITHER_STREAM_UNDECIDED,
            Decision::Plain => HITHER_STREAM_PLAIN,
            Decision::Through => HITHER_STREAM_THROUGH,
        },
        buffers: u32::try_from(buffers).unwrap_or(u32::MAX),
    }
}

/// As codes of the interface, each with its remedy.
fn failure(error: StreamError) -> Failure {
    let (code, remedy) = match &error {
        StreamError::Block | StreamError::Threads | StreamError::Arrays => {
            (HITHER_EINVAL, "mend the configuration".to_owned())
        }
        StreamError::NoBuffers { needed: 0, .. } => (
            HITHER_EINVAL,
            "a stream needs inputs, or results by HITHER_STREAM_FAST".to_owned(),
        ),
        StreamError::NoBuffers { .. } => (
            HITHER_EINVAL,
            "raise fast_bytes, or lower block".to_owned(),
        ),
        StreamError::Lengths(..) | StreamError::Extent(_) => {
            (HITHER_EINVAL, "mend length or the address".to_owned())
        }
        StreamError::Overlap(..) => (
            HITHER_EINVAL,
            "pass arrays apart; present values of an output are read by HITHER_STREAM_FAST_UPDATED or \
             HITHER_STREAM_IN_PLACE"
                .to_owned(),
        ),
        StreamError::Thread(cause) => (
            HITHER_ENOMEM,
            format!("{cause}; lower threads, or raise the limits"),
        ),
    };
    Failure::new(code, format!("{error}: {remedy}"))
}
