//! Where vCPU threads run on the host.
//!
//! Where vCPUs outnumber the host's CPUs, each is bound to one, evenly, and neighbours to the same
//! one: they share caches in the model, whose tables then stay in one host CPU's own cache. Else
//! each has a seat of its own, wherever the kernel runs it.
//!
//! Only the vCPU itself binds the worker that carries it (see `turns`) and changes its seat, which
//! all read.

use hither_core::opium::MAX_VCPUS;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering::Relaxed};

/// The host's CPUs and who sits on each.
pub struct Seats {
    /// Host CPUs that QEMU may use.
    cpus: Vec<usize>,
    vcpus: usize,
    /// Position in `cpus` of each vCPU; its own number where none is shared.
    seat: [AtomicUsize; MAX_VCPUS],
    /// Who sits on each seat, a bit per vCPU.
    members: [AtomicU32; MAX_VCPUS],
    /// Has its thread been bound there?
    bound: [AtomicBool; MAX_VCPUS],
    /// How often more its seat was found wrong than right.
    doubts: [AtomicU32; MAX_VCPUS],
}

/// So many doubts move a vCPU: about a millisecond of the host.
const PATIENCE: u32 = 8;

impl Seats {
    /// Seats for these host CPUs, nobody bound.
    pub fn new(cpus: Vec<usize>, vcpus: usize) -> Self {
        let mut seats = Self {
            cpus,
            vcpus,
            seat: std::array::from_fn(|_| AtomicUsize::new(0)),
            members: std::array::from_fn(|_| AtomicU32::new(0)),
            bound: std::array::from_fn(|_| AtomicBool::new(false)),
            doubts: std::array::from_fn(|_| AtomicU32::new(0)),
        };
        for vcpu in 0..vcpus {
            let seat = if seats.shared() { 0 } else { vcpu };
            *seats.seat[vcpu].get_mut() = seat;
            *seats.members[seat].get_mut() |= 1 << vcpu;
        }
        seats
    }

    /// Do vCPUs share host CPUs?
    pub fn shared(&self) -> bool {
        !self.cpus.is_empty() && self.vcpus > self.cpus.len()
    }

    /// Number of seats.
    pub fn count(&self) -> usize {
        if self.shared() {
            self.cpus.len()
        } else {
            self.vcpus
        }
    }

    /// The seat of a vCPU; 0 before it has one of several that are shared.
    pub fn of(&self, vcpu: usize) -> usize {
        self.seat[vcpu].load(Relaxed)
    }

    /// Who sits there, a bit per vCPU.
    pub fn members(&self, seat: usize) -> u32 {
        self.members[seat].load(Relaxed)
    }

    /// Binds the thread of the calling vCPU where it belongs, as soon as that has been elsewhere more
    /// often than not: who runs (a bit per vCPU) changes at every interrupt. Returns the seat that
    /// it has left.
    pub fn settle(&self, vcpu: usize, running: u32) -> Option<usize> {
        if !self.shared() {
            return None;
        }
        let before = self.of(vcpu);
        let seat = self.belongs(vcpu, running);
        let bound = self.bound[vcpu].load(Relaxed);
        let doubts = self.doubts[vcpu].load(Relaxed);
        if bound && seat == before {
            self.doubts[vcpu].store(doubts.saturating_sub(1), Relaxed);
        } else if bound && doubts < PATIENCE {
            self.doubts[vcpu].store(doubts + 1, Relaxed);
        } else if bind(self.cpus[seat]) {
            self.members[before].fetch_and(!(1 << vcpu), Relaxed);
            self.members[seat].fetch_or(1 << vcpu, Relaxed);
            self.seat[vcpu].store(seat, Relaxed);
            self.bound[vcpu].store(true, Relaxed);
            self.doubts[vcpu].store(0, Relaxed);
        }
        (self.of(vcpu) != before).then_some(before)
    }

    /// The seat of this vCPU where it and all that run are spread evenly, in their order.
    fn belongs(&self, vcpu: usize, running: u32) -> usize {
        let own = 1 << vcpu;
        let before = (running & (own - 1)).count_ones() as usize;
        before * self.cpus.len() / (running | own).count_ones() as usize
    }
}

/// Host CPUs that this process may use.
pub fn allowed() -> Vec<usize> {
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
    // SAFETY: a plain structure that outlives the call.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(cpu, &mut set);
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const set) == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seats(cpus: usize, vcpus: usize) -> Seats {
        Seats::new((0..cpus).collect(), vcpus)
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
    fn without_a_known_host_cpu_none_is_shared() {
        let all = seats(0, 4);
        assert_eq!(
            (all.settle(3, 0b1111), all.of(3), all.count()),
            (None, 3, 4)
        );
    }

    #[test]
    fn nobody_is_bound_where_each_has_a_cpu() {
        let all = seats(4, 4);
        all.settle(3, 0b1111);
        assert!(!all.bound[3].load(Relaxed));
        assert_eq!((all.count(), all.of(3), all.members(3)), (4, 3, 0b1000));
    }

    #[test]
    fn one_doubt_moves_nobody() {
        // Host CPU 0 twice, so that the binding is one that this machine allows.
        let all = Seats::new(vec![allowed()[0]; 2], 4);
        all.settle(1, 0b1111);
        assert_eq!(all.of(1), 0);
        all.settle(1, 0b1);
        assert_eq!(all.of(1), 0);
        let left: Vec<_> = (0..PATIENCE).filter_map(|_| all.settle(1, 0b1)).collect();
        assert_eq!(left, [0]);
        assert_eq!(all.of(1), 1);
        assert_eq!([0, 1].map(|seat| all.members(seat)), [0b1101, 0b10]);
    }
}
