//! Turns: vCPUs that share a host CPU hand it over to each other.
//!
//! A vCPU that is ahead of guest time gives way to one that is behind, every 10 us or so of guest
//! time, so that what one hand-over costs decides how fast the laboratory is. Measured on a 2-core
//! virtual machine: 12 us where the kernel wakes a thread of another, idle core; 1.8 us between
//! threads of one core; 0.05 us without the kernel, as here (see `context`), a look at the clock
//! included.
//!
//! Each vCPU's own thread is at first its worker. A vCPU that waits leaves its context here, and
//! its worker goes on with the context of another of the same seat, or sleeps. So there are as
//! many workers on a seat as vCPUs: one that halts in the kernel, and keeps its worker, leaves
//! enough for the others. One that blocks there otherwise, which the plugin does not see, holds up
//! its seat until a sleeping worker finds that guest time stands still.

use crate::context::{self, Context, Stack};
use crate::seats::Seats;
use hither_core::opium::MAX_VCPUS;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering::Relaxed, Ordering::SeqCst};

/// So many hand-overs, about 100 us of the host, and the kernel may run other threads: one that
/// it has just woken (QEMU's main loop, a vCPU that was halted) would else wait for its tick.
const YIELD: u32 = 4;

/// Who waits, and who carries whom.
pub struct Turns {
    /// Which vCPUs share a host CPU.
    pub seats: Seats,
    /// Guest time for which each waiting vCPU waits, `u64::MAX` where it does not: stored last by
    /// the vCPU that leaves its context, taken by the worker that goes on with it.
    awaited_ps: [AtomicU64; MAX_VCPUS],
    contexts: [Context; MAX_VCPUS],
    /// The worker that carries each vCPU.
    carrier: [AtomicUsize; MAX_VCPUS],
    /// The seat of each worker: that of the vCPU it carries, or carried last.
    worker_seat: [AtomicUsize; MAX_VCPUS],
    hand_overs: [AtomicU32; MAX_VCPUS],
    stacks: Vec<Stack>,
    /// Futex word of each seat: bumped when a sleeping worker of it should look again.
    bell: [AtomicU32; MAX_VCPUS],
    /// Not above the lowest awaited time of each seat from when a worker of it went to sleep, until
    /// one is woken; then `u64::MAX`.
    wake_at_ps: [AtomicU64; MAX_VCPUS],
    /// See [`context::is_quick`].
    pub quick: bool,
}

impl Turns {
    /// Nobody waits.
    ///
    /// # Panics
    /// Where the host has no memory for the workers' stacks.
    pub fn new(seats: Seats, vcpus: usize) -> Self {
        Self {
            worker_seat: std::array::from_fn(|vcpu| AtomicUsize::new(seats.of(vcpu))),
            seats,
            awaited_ps: std::array::from_fn(|_| AtomicU64::new(u64::MAX)),
            contexts: std::array::from_fn(|_| Context::empty()),
            carrier: std::array::from_fn(AtomicUsize::new),
            hand_overs: std::array::from_fn(|_| AtomicU32::new(0)),
            stacks: (0..vcpus)
                .map(|_| Stack::new().expect("memory for the stacks of sleeping workers"))
                .collect(),
            bell: std::array::from_fn(|_| AtomicU32::new(0)),
            wake_at_ps: std::array::from_fn(|_| AtomicU64::new(u64::MAX)),
            quick: context::is_quick(),
        }
    }

    /// Sees to it that a vCPU, which is the caller, sits where it belongs; returns the seat that
    /// it left.
    pub fn settle(&self, vcpu: usize, running: u32) -> Option<usize> {
        let left = self.seats.settle(vcpu, running)?;
        let worker = self.carrier[vcpu].load(Relaxed);
        self.worker_seat[worker].store(self.seats.of(vcpu), Relaxed);
        Some(left)
    }

    /// Is one of these vCPUs on this seat and not waiting?
    pub fn awake(&self, seat: usize, running: u32) -> bool {
        bits(self.seats.members(seat) & running)
            .any(|vcpu| self.awaited_ps[vcpu].load(SeqCst) == u64::MAX)
    }

    /// Takes the vCPU of this seat that has waited for the earliest time, if that has come. The
    /// caller must go on with it.
    pub fn take(&self, seat: usize, now_ps: u64) -> Option<usize> {
        loop {
            let (target, vcpu) = bits(self.seats.members(seat))
                .map(|vcpu| (self.awaited_ps[vcpu].load(SeqCst), vcpu))
                .min()
                .filter(|&(target, _)| target <= now_ps && target != u64::MAX)?;
            let awaited = &self.awaited_ps[vcpu];
            if (awaited.compare_exchange(target, u64::MAX, SeqCst, Relaxed)).is_err() {
                continue;
            }
            // It may have moved since we looked who sits here: a seat must not lose a worker.
            let its_seat = self.seats.of(vcpu);
            if its_seat == seat {
                return Some(vcpu);
            }
            awaited.store(target, SeqCst);
            self.ring(its_seat);
        }
    }

    /// The calling vCPU leaves its context until `target_ps`; its worker goes on with `next`, which
    /// it has taken.
    pub fn hand_over(&self, vcpu: usize, target_ps: u64, next: usize) {
        let worker = self.carrier[vcpu].load(Relaxed);
        let hand_overs = self.hand_overs[worker].load(Relaxed).wrapping_add(1);
        self.hand_overs[worker].store(hand_overs, Relaxed);
        if hand_overs.is_multiple_of(YIELD) {
            // SAFETY: no preconditions.
            unsafe { libc::sched_yield() };
        }
        self.carrier[next].store(worker, Relaxed);
        self.leave(vcpu, target_ps, &self.contexts[next]);
    }

    /// The calling vCPU leaves its context until `target_ps`; its worker calls
    /// `run(argument, worker)`, which may end only with [`Self::carry`].
    pub fn rest(
        &self,
        vcpu: usize,
        target_ps: u64,
        run: unsafe extern "C" fn(*const (), u64) -> !,
        argument: *const (),
    ) {
        let worker = self.carrier[vcpu].load(Relaxed);
        // SAFETY: the worker carries us, so it is not on its own stack.
        let own = unsafe { self.stacks[worker].context(run, argument, worker as u64) };
        self.leave(vcpu, target_ps, own);
    }

    fn leave(&self, vcpu: usize, target_ps: u64, to: &Context) {
        // SAFETY: our context is ours until it is offered by `awaited_ps`; `to` was taken, or made
        // for this worker.
        unsafe {
            context::leave(
                &self.contexts[vcpu],
                &self.awaited_ps[vcpu],
                target_ps,
                to,
                self.quick,
            );
        }
    }

    /// A worker without a context goes on with that of `next`, which it has taken.
    pub fn carry(&self, worker: usize, next: usize) -> ! {
        self.carrier[next].store(worker, Relaxed);
        let (nowhere, nobody) = (Context::empty(), AtomicU64::new(0));
        // SAFETY: the context that is left is never offered; the other was taken.
        unsafe { context::leave(&nowhere, &nobody, 0, &self.contexts[next], self.quick) };
        unreachable!("nobody has this context");
    }

    /// Hand-overs so far.
    #[cfg(test)]
    pub fn count(&self) -> u32 {
        self.hand_overs
            .iter()
            .map(|count| count.load(Relaxed))
            .sum()
    }

    /// The seat of a worker.
    pub fn seat_of(&self, worker: usize) -> usize {
        self.worker_seat[worker].load(Relaxed)
    }

    /// Notes for whom this seat must be woken; returns the state of its bell before that.
    pub fn arm(&self, seat: usize) -> u32 {
        let bell = self.bell[seat].load(SeqCst);
        let earliest = bits(self.seats.members(seat))
            .map(|vcpu| self.awaited_ps[vcpu].load(SeqCst))
            .min();
        // Never up: another may have noted an earlier time since we looked. A full fence: who
        // changes guest time after this sees the note, or we see the change.
        self.wake_at_ps[seat].fetch_min(earliest.unwrap_or(u64::MAX), SeqCst);
        bell
    }

    /// Has the time of a seat come that has been armed?
    pub fn is_due(&self, seat: usize, now_ps: u64) -> bool {
        now_ps >= self.wake_at_ps[seat].load(SeqCst)
    }

    /// Wakes a sleeping worker of this seat.
    pub fn ring(&self, seat: usize) {
        self.wake_at_ps[seat].store(u64::MAX, SeqCst);
        self.bell[seat].fetch_add(1, SeqCst);
        futex(&self.bell[seat], libc::FUTEX_WAKE, 1, std::ptr::null());
    }

    /// Sleeps until somebody rings, as seen from a state of the bell. False where nobody did for
    /// so long.
    pub fn nap(&self, seat: usize, bell: u32, limit_ns: u64) -> bool {
        let limit = libc::timespec {
            tv_sec: 0,
            tv_nsec: limit_ns as _,
        };
        let answer = futex(&self.bell[seat], libc::FUTEX_WAIT, bell, &raw const limit);
        answer != -i64::from(libc::ETIMEDOUT)
    }
}

/// Positions of the bits that are set.
pub fn bits(mut mask: u32) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let bit = mask.trailing_zeros() as usize;
        mask &= mask.wrapping_sub(1);
        (bit < MAX_VCPUS).then_some(bit)
    })
}

/// Not the C library's: that would write `errno` into the thread-local storage of a context that
/// somebody else may carry by now. Returns what the kernel does: errors are negative.
fn futex(
    word: &AtomicU32,
    operation: libc::c_int,
    value: u32,
    timeout: *const libc::timespec,
) -> i64 {
    let answer;
    // SAFETY: the word outlives the call; the time-out is null or valid.
    unsafe {
        std::arch::asm!(
            "syscall",
            inlateout("rax") libc::SYS_futex => answer,
            in("rdi") word.as_ptr(),
            in("rsi") operation | libc::FUTEX_PRIVATE_FLAG,
            in("rdx") u64::from(value),
            in("r10") timeout,
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack),
        );
    }
    answer
}
