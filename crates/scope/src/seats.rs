//! Where vCPU threads run on the host.
//!
//! vCPUs take turns of microseconds (see `clock`), so that what one hand-over costs decides how
//! fast the laboratory is. Measured on a 2-core virtual machine: a futex hand-over between threads
//! that may run anywhere costs 12 us, because the waker's kernel sends an interrupt to the other,
//! idle core; between threads of one core it costs 1.8 us. Where vCPUs outnumber the host's CPUs,
//! each is therefore bound to one, evenly, and neighbours to the same one: they share caches in the
//! model, whose tables then stay in one host CPU's own cache. They are batch threads: one that is
//! woken waits until the waker has ended its turn.
//!
//! Only the vCPU's own thread binds it; `running` and the seat are read by all.

use hither_core::opium::MAX_VCPUS;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering::Relaxed};

/// The host's CPUs and who sits on each.
pub struct Seats {
    /// Host CPUs that QEMU may use.
    cpus: Vec<usize>,
    vcpus: usize,
    /// Position in `cpus` of each vCPU.
    seat: [AtomicUsize; MAX_VCPUS],
    /// Has its thread been bound there?
    bound: [AtomicBool; MAX_VCPUS],
    /// How often more its seat was found wrong than right.
    doubts: [AtomicU32; MAX_VCPUS],
}

/// So many doubts move a vCPU: about a millisecond of the host.
const PATIENCE: u32 = 8;

impl Seats {
    /// Every CPU that this process may use, nobody seated.
    pub fn new(vcpus: usize) -> Self {
        Self {
            cpus: allowed(),
            vcpus,
            seat: std::array::from_fn(|_| AtomicUsize::new(0)),
            bound: std::array::from_fn(|_| AtomicBool::new(false)),
            doubts: std::array::from_fn(|_| AtomicU32::new(0)),
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

    /// Binds the calling vCPU's thread where it belongs, as soon as that has been elsewhere more
    /// often than not: who runs (a bit per vCPU) changes at every interrupt.
    pub fn settle(&self, vcpu: usize, running: u32) {
        if !self.shared() {
            return;
        }
        let seat = self.belongs(vcpu, running);
        let bound = self.bound[vcpu].load(Relaxed);
        let doubts = self.doubts[vcpu].load(Relaxed);
        if bound && seat == self.of(vcpu) {
            self.doubts[vcpu].store(doubts.saturating_sub(1), Relaxed);
        } else if bound && doubts < PATIENCE {
            self.doubts[vcpu].store(doubts + 1, Relaxed);
        } else if bind(self.cpus[seat]) {
            self.seat[vcpu].store(seat, Relaxed);
            self.bound[vcpu].store(true, Relaxed);
            self.doubts[vcpu].store(0, Relaxed);
        }
    }

    /// The seat of this vCPU where it and all that run are spread evenly, in their order.
    fn belongs(&self, vcpu: usize, running: u32) -> usize {
        let own = 1 << vcpu;
        let before = (running & (own - 1)).count_ones() as usize;
        before * self.cpus.len() / (running | own).count_ones() as usize
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

#[cfg(test)]
mod tests {
    use super::*;

    fn seats(cpus: usize, vcpus: usize) -> Seats {
        Seats {
            cpus: (0..cpus).collect(),
            ..Seats::new(vcpus)
        }
    }

    #[test]
    fn those_that_run_are_spread_evenly_and_neighbours_sit_together() {
        let all = seats(2, 8);
        let places = |running: &[usize]| -> Vec<usize> {
            let mask = running.iter().fold(0, |mask, vcpu| mask | 1 << vcpu);
            (running.iter())
                .map(|&vcpu| all.belongs(vcpu, mask))
                .collect()
        };
        assert_eq!(places(&[0, 1, 2, 3, 4, 5, 6, 7]), [0, 0, 0, 0, 1, 1, 1, 1]);
        assert_eq!(places(&[0, 1]), [0, 1]);
        assert_eq!(places(&[2, 3, 7]), [0, 0, 1]);
        assert_eq!(places(&[5]), [0]);
        assert_eq!(all.belongs(7, 0b11), 1, "one that begins to run");
    }

    #[test]
    fn nobody_is_bound_where_each_has_a_cpu() {
        let all = seats(4, 4);
        all.settle(3, 0b1111);
        assert!(!all.bound[3].load(Relaxed));
        assert_eq!(all.count(), 1);
    }

    #[test]
    fn one_doubt_moves_nobody() {
        // Host CPU 0 twice, so that the binding is one that this machine allows.
        let all = Seats {
            cpus: vec![allowed()[0]; 2],
            ..Seats::new(4)
        };
        all.settle(1, 0b1111);
        assert_eq!(all.of(1), 0);
        all.settle(1, 0b1);
        assert_eq!(all.of(1), 0);
        for _ in 0..PATIENCE {
            all.settle(1, 0b1);
        }
        assert_eq!(all.of(1), 1);
    }
}
