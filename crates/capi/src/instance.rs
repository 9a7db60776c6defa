//! One mover and the request structures that a program holds of it.
//!
//! A structure's way: free → held by the program → in flight → held again at retrieval. Its
//! [`Stage`] is kept outside of the structure, where the program cannot write over it. Whoever
//! changes the stage to or from `InFlight` has the structure to itself: before submission the
//! submitting thread, afterwards the one that retrieves. The mover's own request is allocated at
//! submission and given back at retrieval, so that there are never fewer of those than structures.

use crate::constants::{
    HITHER_CANCELLED, HITHER_DONE, HITHER_EAGAIN, HITHER_EALREADY, HITHER_EBUSY, HITHER_ECORRUPT,
    HITHER_EFORK, HITHER_EINVAL, HITHER_FAILED, HITHER_MIGRATE, HITHER_PRIORITY_HIGH,
    HITHER_RACE_BLOCK, HITHER_RACE_FAIL, HITHER_REPLICATE, HITHER_SUBMITTED,
};
use crate::failure::{Failure, Outcome};
use crate::types::HitherRequest;
use crossbeam_queue::ArrayQueue;
use hither_core::ids::NodeId;
use hither_linux::backend::own::Chosen;
use hither_mover::{Completion, Mover, Priority, Race, Request, RequestId, Status, boxed, room};
use std::cell::UnsafeCell;
use std::fmt::Write as _;
use std::io;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering};

const FREE: u8 = 0;
const HELD: u8 = 1;
const IN_FLIGHT: u8 = 2;

/// No request has this number.
const NO_ID: u64 = u64::MAX;

/// Memory that must be left for the program and the service once all is set up.
const SLACK_BYTES: usize = 1 << 20;

const KNOWN_FLAGS: u32 = HITHER_RACE_FAIL | HITHER_RACE_BLOCK | HITHER_PRIORITY_HIGH;

/// What the library knows of a structure.
struct Stage {
    /// `FREE`, `HELD` or `IN_FLIGHT`. Written by whoever passes the structure on.
    stage: AtomicU8,
    /// The mover's number of the last submission, for cancelling. Written by the submitting
    /// thread after submission; one that is late or old names no queued request, since no number
    /// is given twice.
    id: AtomicU64,
}

/// A mover and its structures.
pub(crate) struct Instance {
    /// Number of the eventfd, which the mover owns.
    handle: i32,
    mover: Mover,
    chosen: Chosen,
    requests: Box<[UnsafeCell<HitherRequest>]>,
    stages: Box<[Stage]>,
    free: ArrayQueue<u16>,
    closing: AtomicBool,
    /// Streams that hold it. Raised under the registry's lock, which closing has to itself.
    streams: AtomicUsize,
}

// SAFETY: `requests` is all that is not Sync by itself; who may touch an entry is told by its
// stage, and its pointers are only numbers to this library.
unsafe impl Sync for Instance {}
// SAFETY: as above; nothing belongs to a thread.
unsafe impl Send for Instance {}

impl Instance {
    /// `mover` must have an eventfd of the number `handle`, and `capacity` requests.
    ///
    /// # Errors
    /// There is no memory for the structures.
    pub(crate) fn new(
        handle: i32,
        mover: Mover,
        chosen: Chosen,
        capacity: u16,
    ) -> io::Result<Self> {
        // The eventfd is readable for completions since the last look that found none. With one
        // look now a program may poll() before its first retrieval, as figure 2 does.
        let nothing = mover.retrieve();
        debug_assert!(nothing.is_none(), "nothing was submitted");
        // The queue has a number and a turn of 8 bytes each for a structure, and cannot say no.
        room(usize::from(capacity) * 16 + SLACK_BYTES)?;
        let free = ArrayQueue::new(capacity.into());
        for index in 0..capacity {
            let pushed = free.push(index);
            debug_assert!(pushed.is_ok(), "there is room for all");
        }
        let stage = |_| Stage {
            stage: AtomicU8::new(FREE),
            id: AtomicU64::new(NO_ID),
        };
        let instance = Self {
            handle,
            mover,
            chosen,
            requests: boxed((0..capacity).map(|_| UnsafeCell::new(HitherRequest::blank())))?,
            stages: boxed((0..capacity).map(stage))?,
            free,
            closing: AtomicBool::new(false),
            streams: AtomicUsize::new(0),
        };
        room(SLACK_BYTES)?;
        Ok(instance)
    }

    pub(crate) fn handle(&self) -> i32 {
        self.handle
    }

    pub(crate) fn mover(&self) -> &Mover {
        &self.mover
    }

    /// Requests that it has.
    pub(crate) fn capacity(&self) -> usize {
        self.requests.len()
    }

    /// How many streams hold it.
    pub(crate) fn streams(&self) -> &AtomicUsize {
        &self.streams
    }

    /// Ends the waiting of others, and says so to those who come.
    pub(crate) fn begin_closing(&self) {
        self.closing.store(true, Ordering::Release);
        if let Some(descriptor) = self.mover.notify_fd() {
            // Nobody lowers it any more, as everybody looks at `closing` first.
            let _ = rustix::io::write(descriptor, &1u64.to_ne_bytes());
        }
    }

    pub(crate) fn is_closing(&self) -> bool {
        self.closing.load(Ordering::Acquire)
    }

    pub(crate) fn into_mover(self) -> Mover {
        self.mover
    }

    /// Which structure this is, if it is one of ours. The pointer is not followed.
    pub(crate) fn index_of(&self, request: *const HitherRequest) -> Option<u16> {
        let bytes = size_of::<HitherRequest>();
        let offset = request.addr().checked_sub(self.requests.as_ptr().addr())?;
        let index = offset / bytes;
        let is_ours = offset % bytes == 0 && index < self.requests.len();
        is_ours.then_some(index as u16)
    }

    pub(crate) fn allocate(&self) -> Outcome<*mut HitherRequest> {
        let Some(index) = self.free.pop() else {
            let text = format!(
                "all {} requests of handle {} are in use: retrieve or free some, or open with a \
                 larger capacity",
                self.requests.len(),
                self.handle
            );
            return Err(Failure::new(HITHER_EAGAIN, text));
        };
        let cell = self.requests[usize::from(index)].get();
        // SAFETY: the structure was free, and this thread took its number.
        unsafe { cell.write(HitherRequest::blank()) };
        self.stage(index).stage.store(HELD, Ordering::Release);
        Ok(cell)
    }

    pub(crate) fn release(&self, index: u16) -> Outcome<()> {
        self.pass(index, HELD, FREE)?;
        let pushed = self.free.push(index);
        debug_assert!(pushed.is_ok(), "each number is there once");
        Ok(())
    }

    pub(crate) fn submit(&self, index: u16) -> Outcome<()> {
        self.pass(index, HELD, IN_FLIGHT)?;
        let submitted = self.submit_held(index);
        match submitted {
            Ok(id) => self.stage(index).id.store(id.get(), Ordering::Relaxed),
            Err(_) => self.stage(index).stage.store(HELD, Ordering::Release),
        }
        submitted.map(drop)
    }

    /// Of a structure that is in flight by this thread's doing, and unknown to the mover yet.
    fn submit_held(&self, index: u16) -> Outcome<RequestId> {
        let cell = self.requests[usize::from(index)].get();
        // SAFETY: the program has passed the structure to this thread, which has it to itself.
        let asked = unsafe { cell.read() };
        check(&asked)?;
        let request = self.mover.request().ok_or_else(no_request)?;
        let request = fill(request, &asked).tag(index.into());
        let submitted = HitherRequest {
            status: HITHER_SUBMITTED,
            ..asked.asked()
        };
        // SAFETY: as above; after `submit` whoever retrieves it may have it.
        unsafe { cell.write(submitted) };
        self.mover.submit(request).map_err(|rejected| {
            if rejected.request.is_none() {
                return Failure::new(HITHER_EFORK, rejected.reason.to_string());
            }
            // SAFETY: it was not submitted, so that it is still this thread's.
            unsafe { cell.write(asked) };
            let text = format!(
                "the request is refused: {}; mend the field",
                rejected.reason
            );
            Failure::new(HITHER_EINVAL, text)
        })
    }

    /// A completed structure, now the program's, or null. Never blocks.
    pub(crate) fn retrieve(&self) -> Outcome<*mut HitherRequest> {
        let Some(completion) = self.mover.retrieve() else {
            return Ok(ptr::null_mut());
        };
        // The tag came through memory that a stray write of the program can hit.
        let index = u16::try_from(completion.tag).unwrap_or(u16::MAX);
        let stage = self.stages.get(usize::from(index));
        let Some(stage) = stage.filter(|at| at.stage.load(Ordering::Acquire) == IN_FLIGHT) else {
            return Err(self.corrupt());
        };
        let cell = self.requests[usize::from(index)].get();
        // SAFETY: in flight, and the mover gave its completion to this thread alone.
        unsafe { write_result(&mut *cell, &completion) };
        stage.stage.store(HELD, Ordering::Release);
        Ok(cell)
    }

    pub(crate) fn cancel(&self, index: u16) -> Outcome<()> {
        let stage = self.stage(index);
        if stage.stage.load(Ordering::Acquire) != IN_FLIGHT {
            let text = "the request is not in flight: only submitted requests can be cancelled";
            return Err(Failure::new(HITHER_EINVAL, text));
        }
        let id = RequestId::from_number(stage.id.load(Ordering::Relaxed));
        if self.mover.cancel(id) {
            return Ok(());
        }
        let text = "the request has begun or is finished: retrieve it as usual";
        Err(Failure::new(HITHER_EALREADY, text))
    }

    /// Which backends serve, and why the others do not: a line each.
    pub(crate) fn describe(&self) -> String {
        let mut text = String::new();
        for (name, probe) in &self.chosen {
            let _ = match probe {
                Ok(()) => writeln!(text, "{name}: serves"),
                Err(unavailable) => writeln!(text, "{name}: does not serve: {unavailable}"),
            };
        }
        text
    }

    fn stage(&self, index: u16) -> &Stage {
        &self.stages[usize::from(index)]
    }

    fn pass(&self, index: u16, from: u8, to: u8) -> Outcome<()> {
        let stage = &self.stage(index).stage;
        // Acquire: what its last owner wrote is seen. Release: what this one wrote will be.
        let passed = stage.compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed);
        match passed {
            Ok(_) => Ok(()),
            Err(IN_FLIGHT) => Err(Failure::new(
                HITHER_EBUSY,
                "the request is submitted and not yet retrieved: retrieve it first",
            )),
            Err(_) => Err(Failure::new(
                HITHER_EINVAL,
                "the request was freed: allocate another with hither_alloc_request()",
            )),
        }
    }

    fn corrupt(&self) -> Failure {
        let text = format!(
            "the queues of handle {} were written over, so that its requests are lost: look for \
             stray writes, close it and open another",
            self.handle
        );
        Failure::new(HITHER_ECORRUPT, text)
    }
}

fn no_request() -> Failure {
    Failure::new(
        HITHER_EAGAIN,
        "the mover has no request free: retrieve some, or give its streams a mover of their own",
    )
}

/// What the mover cannot see or would call by another name.
fn check(asked: &HitherRequest) -> Outcome<()> {
    let invalid = |text: String| Err(Failure::new(HITHER_EINVAL, text));
    if asked.kind != HITHER_REPLICATE && asked.kind != HITHER_MIGRATE {
        return invalid(format!(
            "kind is {}: set HITHER_REPLICATE or HITHER_MIGRATE",
            asked.kind
        ));
    }
    if asked.flags & !KNOWN_FLAGS != 0 {
        return invalid(format!(
            "flags has unknown bits {:#x}: clear them, or use the library that knows them",
            asked.flags & !KNOWN_FLAGS
        ));
    }
    let races = HITHER_RACE_FAIL | HITHER_RACE_BLOCK;
    if asked.flags & races == races {
        return invalid("flags has two HITHER_RACE_*: set one".to_owned());
    }
    if asked.kind == HITHER_MIGRATE && asked.node < 0 {
        return invalid(format!("node is {}: set the target node", asked.node));
    }
    if asked.src_base.is_null() {
        return invalid("src_base is NULL: set the first byte".to_owned());
    }
    if asked.kind == HITHER_REPLICATE && asked.dst_base.is_null() {
        return invalid("dst_base is NULL: set the first byte to write".to_owned());
    }
    let end = asked.src_base.addr().checked_add(asked.length as usize);
    if end.is_none() {
        return invalid("the range leaves the address space: mend src_base or length".to_owned());
    }
    if asked.reserved != 0 {
        return invalid("reserved is not 0: clear it".to_owned());
    }
    Ok(())
}

/// Tells the mover what was asked, after [`check`].
fn fill<'m>(request: Request<'m>, asked: &HitherRequest) -> Request<'m> {
    let race = match asked.flags & (HITHER_RACE_FAIL | HITHER_RACE_BLOCK) {
        HITHER_RACE_FAIL => Race::Fail,
        HITHER_RACE_BLOCK => Race::Block,
        _ => Race::Recover,
    };
    let priority = match asked.flags & HITHER_PRIORITY_HIGH {
        0 => Priority::Normal,
        _ => Priority::High,
    };
    let request = request.race(race).priority(priority);
    let from = asked.src_base.addr();
    // On x86-64 an address has as many bits as `length`.
    let bytes = asked.length as usize;
    if asked.kind == HITHER_MIGRATE {
        let node = NodeId(asked.node.unsigned_abs());
        request.migrate(from..from.saturating_add(bytes), node)
    } else {
        request.replicate(from, asked.dst_base.addr(), bytes)
    }
}

fn write_result(request: &mut HitherRequest, completion: &Completion) {
    request.status = match completion.status {
        Status::Done => HITHER_DONE,
        Status::Failed => HITHER_FAILED,
        Status::Cancelled => HITHER_CANCELLED,
    };
    request.backend = completion.backend.into();
    request.moved = completion.moved_pages.into();
    request.already_there = completion.already_there.into();
    request.bytes = completion.bytes;
    request.queue_ns = completion.queued_ns;
    request.move_ns = completion.moving_ns;
    request.stall_ns = completion.stall_ns;
    request.huge_kept = completion.huge_kept;
    request.huge_split = completion.huge_split;
    if let Some(raced) = completion.raced() {
        request.race_address = ptr::without_provenance(raced.address as usize);
        request.race_thread = raced.thread;
    }
    for (count, from) in request.refused.iter_mut().zip(completion.refused_counts) {
        *count = from;
    }
}
