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
        if let Some(seat) = self.better(vcpu, running)
            && bind(self.cpus[seat])
        {
            self.seat[vcpu].store(seat, Relaxed);
            self.bound[vcpu].store(true, Relaxed);
        }
    }

    /// The seat that this vCPU should move to, if any.
    fn better(&self, vcpu: usize, running: impl Fn(usize) -> bool) -> Option<usize> {
        if !self.shared() {
            return None;
        }
        let others = |seat: usize| {
            (0..self.vcpus)
                .filter(|&other| other != vcpu && self.of(other) == seat && running(other))
                .count()
        };
        let (least, seat) = (0..self.cpus.len())
            .map(|seat| (others(seat), seat))
            .min()?;
        let stays = self.bound[vcpu].load(Relaxed) && others(self.of(vcpu)) <= least + 1;
        (!stays).then_some(seat)
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

    fn seated(cpus: usize, seats: &[usize]) -> Seats {
        let all = Seats {
            cpus: (0..cpus).collect(),
            ..Seats::new(seats.len())
        };
        for (vcpu, &seat) in seats.iter().enumerate() {
            all.seat[vcpu].store(seat, Relaxed);
            all.bound[vcpu].store(true, Relaxed);
        }
        all
    }

    #[test]
    fn an_even_spread_stays() {
        let seats = seated(2, &[0, 1, 0, 1]);
        assert!((0..4).all(|vcpu| seats.better(vcpu, |_| true).is_none()));
    }

    #[test]
    fn one_moves_when_its_cpu_has_two_more() {
        let seats = seated(2, &[0, 0, 0, 1]);
        assert_eq!(seats.better(0, |_| true), None, "2 against 2 is no gain");
        let seats = seated(2, &[0, 0, 1, 1]);
        assert_eq!(
            seats.better(0, |other| other < 2),
            None,
            "one other here, none there"
        );
        let seats = seated(2, &[0, 0, 0, 1]);
        assert_eq!(seats.better(0, |other| other < 3), Some(1));
    }

    #[test]
    fn nobody_is_bound_where_each_has_a_cpu() {
        let seats = seated(4, &[0, 0, 0, 0]);
        assert_eq!(seats.better(0, |_| true), None);
        assert_eq!(seats.count(), 1);
    }
}
