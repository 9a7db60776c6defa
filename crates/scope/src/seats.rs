//! Where vCPU threads run on the host.
//!
//! vCPUs take turns of microseconds (see `clock`), so that what one hand-over costs decides how
//! fast the laboratory is. Measured on a 2-core virtual machine: a futex hand-over between threads
//! that may run anywhere costs 12 us, because the waker's kernel sends an interrupt to the other,
//! idle core; between threads of one core it costs 1.8 us. Where vCPUs outnumber the host's CPUs,
//! each is therefore bound to one, and moves when that one has two more than another. They are
//! batch threads: one that is woken waits until the waker has ended its turn.
//!
//! Only the vCPU's own thread binds it; `running` and the seat are read by all.

use hither_core::opium::MAX_VCPUS;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};

/// The host's CPUs and who sits on each.
pub struct Seats {
    /// Host CPUs that QEMU may use.
    cpus: Vec<usize>,
    vcpus: usize,
    /// Position in `cpus` of each vCPU.
    seat: [AtomicUsize; MAX_VCPUS],
    /// Has its thread been bound there?
    bound: [AtomicBool; MAX_VCPUS],
}

impl Seats {
    /// Every CPU that this process may use, nobody seated.
    pub fn new(vcpus: usize) -> Self {
        Self {
            cpus: allowed(),
            vcpus,
            seat: std::array::from_fn(|_| AtomicUsize::new(0)),
            bound: std::array::from_fn(|_| AtomicBool::new(false)),
        }
    }

    /// Do vCPUs share host CPUs?
    pub fn shared(&self) -> bool {
        self.vcpus > self.cpus.len()
    }

    /// Number of seats: one for all where none has to be shared.
    pub fn count(&self) -> usize {
        if self.shared() {
            self.cpus.len().max(1)
        } else {
            1
        }
    }

    /// The seat of a vCPU; 0 before it has one.
    pub fn of(&self, vcpu: usize) -> usize {
        self.seat[vcpu].load(Relaxed)
    }

    /// Binds the calling vCPU's thread where that spreads the running ones more evenly.
    pub fn settle(&self, vcpu: usize, running: impl Fn(usize) -> bool) {
        if !self.shared() {
            return;
        }
        let own = self.bound[vcpu].load(Relaxed).then(|| self.of(vcpu));
        let others = |seat: usize| {
            (0..self.vcpus)
                .filter(|&other| other != vcpu && self.seat[other].load(Relaxed) == seat)
                .filter(|&other| running(other))
                .count()
        };
        let Some((seat, least)) = (0..self.cpus.len())
            .map(|seat| (seat, others(seat)))
            .min_by_key(|&(_, others)| others)
        else {
            return;
        };
        if own.is_some_and(|own| others(own) <= least + 1) {
            return;
        }
        if bind(self.cpus[seat]) {
            self.seat[vcpu].store(seat, Relaxed);
            self.bound[vcpu].store(true, Relaxed);
        }
    }
}

fn allowed() -> Vec<usize> {
    // SAFETY: `set` is a plain bit set of the size given.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        if libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &raw mut set) != 0 {
            return Vec::new();
        }
        (0..libc::CPU_SETSIZE as usize)
            .filter(|&cpu| libc::CPU_ISSET(cpu, &set))
            .collect()
    }
}

/// Binds the calling thread; false where the host does not let us.
fn bind(cpu: usize) -> bool {
    // SAFETY: plain structures that outlive the calls. A refused batch policy costs speed only.
    unsafe {
        let parameter: libc::sched_param = std::mem::zeroed();
        libc::sched_setscheduler(0, libc::SCHED_BATCH, &raw const parameter);
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(cpu, &mut set);
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const set) == 0
    }
}
