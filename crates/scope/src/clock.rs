//! The virtual clock: guest time is modelled time.
//!
//! Each vCPU has its own modelled time. Guest time is that of the slowest running vCPU; one that
//! gets further ahead than the skew limit waits. The wait is bounded, because a vCPU that waits
//! inside a callback holds up QEMU's exclusive sections, for which the slowest may be waiting;
//! such breaks are counted. A halted vCPU does not count; when all are halted, time follows the
//! host. A CPU that reads the clock adds what it has accrued since it last synchronised.
//!
//! Who writes: `time` its vCPU (and the sender of an inter-processor interrupt, when it wakes a
//! halted one); `running` its vCPU and that sender; `now` anyone, forward only.

use crate::seats::Seats;
use hither_core::opium::MAX_VCPUS;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};

/// Host waits are cut into pieces of this length. Longer than the host's tick: a sooner time-out
/// would have the host's timer programmed anew at each wait, which costs more than the switch.
const NAP_NS: i64 = 20_000_000;
/// Rounds of spinning before a waiting vCPU sleeps after all.
const SPINS: u32 = 2000;
/// After this many naps without progress a waiting vCPU is let go.
const NAPS: u32 = 3;

/// A vCPU that was promised to run but has not begun within this host time will not: the plugin
/// hears of an interrupt only after QEMU delivered it, so its target may have run and halted
/// again before the sender says so.
const PROMISE_NS: u64 = 5_000_000;

/// Time when nobody runs.
struct Idle {
    /// Host ns and modelled ps when the last vCPU halted.
    since: Option<(u64, u64)>,
}

/// The clock of the machine.
pub struct Clock {
    time_ps: [AtomicU64; MAX_VCPUS],
    /// A bit per vCPU.
    running: AtomicU32,
    /// Host ns at which the sender of an interrupt counted this vCPU as running, 0 once its own
    /// thread has taken over. Written by the sender, cleared by the thread or by `expire`.
    promised: [AtomicU64; MAX_VCPUS],
    now_ps: AtomicU64,
    /// Latest time any reader was told.
    told_ps: AtomicU64,
    idle: Mutex<Idle>,
    /// Guest time for which each waiting vCPU waits, `u64::MAX` where it does not. Written by the
    /// vCPU, taken by whoever wakes it.
    awaited_ps: [AtomicU64; MAX_VCPUS],
    /// Futex word of each vCPU: bumped when it should look again.
    turn: [AtomicU32; MAX_VCPUS],
    /// Not above the lowest awaited time of each seat, so that most synchronisations look no
    /// further.
    wake_at_ps: [AtomicU64; MAX_VCPUS],
    skew_ps: u64,
    /// Longest time between two looks at the clock, in ps.
    pub quantum_ps: u64,
    seats: Seats,
    vcpus: usize,
    /// Guest time at which QEMU's main loop wants to be called, `u64::MAX` when it does not wait.
    alarm_ps: AtomicU64,
    /// Calls it.
    ring: fn(),
    /// Largest skew seen.
    pub max_skew_ps: AtomicU64,
    /// Waits given up.
    pub breaks: AtomicU64,
}

/// Monotonic host time in ns, past our own override of `clock_gettime`.
pub fn host_ns() -> u64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `time` is a valid timespec; the raw system call avoids the preloaded function.
    unsafe {
        libc::syscall(
            libc::SYS_clock_gettime,
            libc::CLOCK_MONOTONIC,
            &raw mut time,
        )
    };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

impl Clock {
    /// A clock at zero.
    pub fn new(skew_ns: u64, vcpus: usize, ring: fn()) -> Self {
        Self {
            time_ps: std::array::from_fn(|_| AtomicU64::new(0)),
            running: AtomicU32::new(0),
            promised: std::array::from_fn(|_| AtomicU64::new(0)),
            now_ps: AtomicU64::new(0),
            told_ps: AtomicU64::new(0),
            idle: Mutex::new(Idle { since: None }),
            awaited_ps: std::array::from_fn(|_| AtomicU64::new(u64::MAX)),
            turn: std::array::from_fn(|_| AtomicU32::new(0)),
            wake_at_ps: std::array::from_fn(|_| AtomicU64::new(u64::MAX)),
            vcpus,
            alarm_ps: AtomicU64::new(u64::MAX),
            ring,
            skew_ps: skew_ns * 1000,
            quantum_ps: skew_ns * 250,
            seats: Seats::new(vcpus),
            max_skew_ps: AtomicU64::new(0),
            breaks: AtomicU64::new(0),
        }
    }

    /// The slowest running vCPU's time; `None` when all are halted.
    fn slowest(&self) -> Option<u64> {
        let mut left = self.running.load(Relaxed);
        let mut slowest = None;
        while left != 0 {
            let time = self.time_ps[left.trailing_zeros() as usize % MAX_VCPUS].load(Relaxed);
            slowest = Some(slowest.map_or(time, |least: u64| least.min(time)));
            left &= left - 1;
        }
        slowest
    }

    fn runs(&self, vcpu: usize) -> bool {
        self.running.load(SeqCst) >> vcpu & 1 != 0
    }

    /// Recomputes guest time.
    fn advance(&self) -> u64 {
        let now = self.now_ps.load(Relaxed);
        match self.slowest() {
            Some(slowest) if slowest > now => self.now_ps.fetch_max(slowest, Relaxed).max(slowest),
            _ => now,
        }
    }

    /// Calls the main loop in so much guest time. False when nobody runs: time follows the host.
    pub fn set_alarm(&self, in_ns: u64) -> bool {
        let at = self.read().saturating_add(in_ns.saturating_mul(1000));
        self.alarm_ps.store(at, SeqCst);
        // A vCPU that halts now sees the alarm, or we see that it has halted.
        let running = self.running.load(SeqCst) != 0;
        if !running {
            self.clear_alarm();
        }
        running
    }

    /// The main loop waits no more.
    pub fn clear_alarm(&self) {
        self.alarm_ps.store(u64::MAX, SeqCst);
    }

    fn ring_once(&self) {
        if self.alarm_ps.swap(u64::MAX, SeqCst) != u64::MAX {
            (self.ring)();
        }
    }

    /// Recomputes guest time after this vCPU's has changed, and calls those whose time has come.
    fn progress(&self, vcpu: usize) -> u64 {
        let now = self.advance();
        self.wake(self.seats.of(vcpu), now);
        if now >= self.alarm_ps.load(Relaxed) {
            self.ring_once();
        }
        now
    }

    /// Wakes the waiting vCPUs whose time has come: those of this host CPU, and those of host
    /// CPUs where nobody is awake to do it. Waking another CPU's threads costs an interrupt.
    fn wake(&self, own_seat: usize, now: u64) {
        for seat in 0..self.seats.count() {
            let due = now >= self.wake_at_ps[seat].load(SeqCst);
            if due && (seat == own_seat || !self.awake(seat, None)) {
                self.wake_seat(seat, now);
            }
        }
    }

    fn wake_seat(&self, seat: usize, now: u64) {
        self.wake_at_ps[seat].store(u64::MAX, SeqCst);
        for vcpu in (0..self.vcpus).filter(|&vcpu| self.seats.of(vcpu) == seat) {
            let (awaited, turn) = (&self.awaited_ps[vcpu], &self.turn[vcpu]);
            let target = awaited.load(SeqCst);
            if target > now {
                self.wake_at_ps[seat].fetch_min(target, SeqCst);
            } else if awaited.swap(u64::MAX, SeqCst) != u64::MAX {
                turn.fetch_add(1, SeqCst);
                futex(turn, libc::FUTEX_WAKE, 1, None);
            }
        }
    }

    /// Is a vCPU of this host CPU, other than `except`, running and not asleep?
    fn awake(&self, seat: usize, except: Option<usize>) -> bool {
        (0..self.vcpus).any(|vcpu| {
            Some(vcpu) != except
                && self.seats.of(vcpu) == seat
                && self.runs(vcpu)
                && self.awaited_ps[vcpu].load(SeqCst) == u64::MAX
        })
    }

    /// Takes back promises that were not kept.
    fn expire(&self) {
        for vcpu in 0..MAX_VCPUS {
            let promised = self.promised[vcpu].load(SeqCst);
            if promised == 0 || host_ns().saturating_sub(promised) < PROMISE_NS {
                continue;
            }
            let mut idle = self.idle.lock().expect("no thread panics while holding it");
            if self.promised[vcpu].swap(0, SeqCst) != 0 {
                self.stop(&mut idle, vcpu);
            }
        }
    }

    /// The vCPU counts no longer; time follows the host where it was the last.
    fn stop(&self, idle: &mut Idle, vcpu: usize) {
        self.running.fetch_and(!(1 << vcpu), SeqCst);
        if self.slowest().is_none() {
            self.now_ps
                .fetch_max(self.time_ps[vcpu].load(Relaxed), Relaxed);
            idle.since = Some((host_ns(), self.now_ps.load(Relaxed)));
            // From here on the main loop waits by host time.
            self.ring_once();
        }
    }

    /// Guest time as any thread of QEMU that is no vCPU sees it, in ps.
    pub fn read(&self) -> u64 {
        self.expire();
        let now = match self.slowest() {
            Some(_) => self.advance(),
            None => self.idle_now(&self.idle.lock().expect("no thread panics while holding it")),
        };
        self.tell(now)
    }

    /// Guest time as a vCPU sees it, whose own time is `own_ps`.
    pub fn read_from(&self, own_ps: u64) -> u64 {
        self.tell(own_ps)
    }

    /// Never tell an earlier time than somebody was told before.
    fn tell(&self, ps: u64) -> u64 {
        self.told_ps.fetch_max(ps, Relaxed).max(ps)
    }

    fn idle_now(&self, idle: &Idle) -> u64 {
        match idle.since {
            Some((host, modelled)) => modelled + host_ns().saturating_sub(host) * 1000,
            None => self.now_ps.load(Relaxed),
        }
    }

    /// A vCPU begins to run, at creation or out of a halt; returns its time in ps.
    pub fn start(&self, vcpu: usize, own_ps: u64) -> u64 {
        let mut idle = self.idle.lock().expect("no thread panics while holding it");
        self.promised[vcpu].store(0, SeqCst);
        if self.runs(vcpu) {
            // The sender of an interrupt has set our time and counts us as running already.
            return self.time_ps[vcpu].load(Relaxed).max(own_ps);
        }
        let now = if self.slowest().is_none() {
            self.idle_now(&idle)
        } else {
            self.now_ps.load(Relaxed)
        };
        idle.since = None;
        self.now_ps.fetch_max(now, Relaxed);
        let time = own_ps.max(now);
        self.time_ps[vcpu].store(time, Relaxed);
        self.running.fetch_or(1 << vcpu, SeqCst);
        drop(idle);
        self.settle(vcpu);
        time
    }

    fn settle(&self, vcpu: usize) {
        self.seats.settle(vcpu, self.running.load(Relaxed));
    }

    /// A vCPU halts.
    pub fn halt(&self, vcpu: usize, own_ps: u64) {
        let mut idle = self.idle.lock().expect("no thread panics while holding it");
        self.time_ps[vcpu].store(own_ps, Relaxed);
        self.promised[vcpu].store(0, SeqCst);
        self.stop(&mut idle, vcpu);
        drop(idle);
        self.progress(vcpu);
    }

    /// An interrupt sent to a halted vCPU: it runs from `at_ps`, however long its thread takes
    /// to wake up on the host. True where it was halted.
    pub fn promise(&self, vcpu: usize, at_ps: u64) -> bool {
        let _idle = self.idle.lock().expect("no thread panics while holding it");
        if self.runs(vcpu) {
            return false;
        }
        self.time_ps[vcpu].fetch_max(at_ps, Relaxed);
        self.promised[vcpu].store(host_ns(), SeqCst);
        self.running.fetch_or(1 << vcpu, SeqCst);
        true
    }

    /// Waits without sleeping for as long as no other vCPU could use this host CPU, and wakes
    /// those of this host CPU: one that goes idle is slow to wake up. `None` where sleeping is
    /// better.
    fn spin(&self, vcpu: usize, target: u64) -> Option<u64> {
        let seat = self.seats.of(vcpu);
        for _ in 0..SPINS {
            if self.seats.shared() && self.awake(seat, Some(vcpu)) {
                return None;
            }
            for _ in 0..20 {
                std::hint::spin_loop();
            }
            let now = self.advance();
            if now >= target {
                return Some(now);
            }
            self.wake(seat, now);
        }
        None
    }

    /// How much longer a vCPU may run before it looks again, in ps, where guest time is `now_ps`.
    /// The limit is kept from below, as a block in translation can take longer than it is allowed.
    pub fn allowance(&self, own_ps: u64, now_ps: u64) -> u64 {
        let lead = own_ps.saturating_sub(now_ps);
        (self.skew_ps * 8 / 10)
            .saturating_sub(lead)
            .min(self.quantum_ps)
    }

    /// A running vCPU reports its time and waits while it is too far ahead. It has executed up
    /// to `executed_ps`; `own_ps` adds what it then waits for memory, during which it does
    /// nothing that others could see, so only the former counts as skew.
    pub fn synchronise(&self, vcpu: usize, executed_ps: u64, own_ps: u64) -> u64 {
        self.time_ps[vcpu].store(own_ps, SeqCst);
        let mut now = self.progress(vcpu);
        let skew = executed_ps.saturating_sub(now);
        if skew > self.max_skew_ps.load(Relaxed) {
            self.max_skew_ps.fetch_max(skew, Relaxed);
        }
        if self.allowance(own_ps, now) >= self.skew_ps / 10 {
            return now;
        }
        // Wait until the others have all but caught up: fewer, longer turns.
        let target = own_ps - self.skew_ps / 8;
        self.settle(vcpu);
        let seat = self.seats.of(vcpu);
        let mut naps = 0;
        loop {
            if let Some(now) = self.spin(vcpu, target) {
                return now;
            }
            let turn = self.turn[vcpu].load(SeqCst);
            self.awaited_ps[vcpu].store(target, SeqCst);
            self.wake_at_ps[seat].fetch_min(target, SeqCst);
            let before = now;
            now = self.advance();
            if now >= target {
                break;
            }
            if now > before {
                naps = 0;
            }
            if naps == NAPS {
                self.breaks.fetch_add(1, Relaxed);
                break;
            }
            naps += 1;
            self.expire();
            self.wake(seat, now);
            futex(&self.turn[vcpu], libc::FUTEX_WAIT, turn, Some(NAP_NS));
            // Awake again, for those who look; `spin` or the next round sees whether it is time.
            self.awaited_ps[vcpu].store(u64::MAX, SeqCst);
        }
        self.awaited_ps[vcpu].store(u64::MAX, SeqCst);
        now
    }
}

fn futex(word: &AtomicU32, operation: libc::c_int, value: u32, timeout_ns: Option<i64>) {
    let timeout = libc::timespec {
        tv_sec: 0,
        tv_nsec: timeout_ns.unwrap_or(0),
    };
    let pointer = if timeout_ns.is_some() {
        &raw const timeout
    } else {
        std::ptr::null()
    };
    // SAFETY: the word outlives the call; the time-out is null or valid. Errors (interrupted,
    // value changed, timed out) all mean: look again.
    unsafe {
        libc::syscall(
            libc::SYS_futex,
            word.as_ptr(),
            operation | libc::FUTEX_PRIVATE_FLAG,
            value,
            pointer,
        )
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guest_time_is_the_slowest_running_vcpus() {
        let clock = Clock::new(1_000, 2, || {});
        clock.start(0, 0);
        clock.start(1, 0);
        clock.synchronise(0, 500_000, 500_000);
        assert_eq!(clock.read(), 0);
        clock.synchronise(1, 300_000, 300_000);
        assert_eq!(clock.read(), 300_000);
        clock.halt(1, 300_000);
        assert_eq!(clock.read(), 500_000);
    }

    #[test]
    fn a_halted_vcpu_resumes_at_guest_time_or_at_the_interrupt() {
        let clock = Clock::new(1_000, 2, || {});
        clock.start(0, 0);
        clock.start(1, 0);
        clock.halt(1, 0);
        clock.synchronise(0, 700_000, 700_000);
        assert_eq!(clock.start(1, 0), 700_000);
        clock.halt(1, 700_000);
        assert!(clock.promise(1, 900_000));
        assert!(!clock.promise(1, 950_000), "it runs already");
        assert_eq!(clock.start(1, 700_000), 900_000);
    }

    #[test]
    fn a_promise_that_is_not_kept_does_not_stop_time() {
        let clock = Clock::new(1_000, 2, || {});
        clock.start(0, 0);
        clock.start(1, 0);
        clock.halt(1, 0);
        assert!(clock.promise(1, 100));
        assert!(
            clock.synchronise(0, 9_000_000, 9_000_000) >= 8_750_000,
            "the promise expires"
        );
        assert_eq!(clock.breaks.load(Relaxed), 0);
    }

    #[test]
    fn readers_never_see_time_go_back() {
        let clock = Clock::new(1_000, 2, || {});
        clock.start(0, 0);
        assert_eq!(clock.read_from(5_000), 5_000);
        assert_eq!(clock.read(), 5_000);
    }

    #[test]
    fn time_follows_the_host_when_all_are_halted() {
        let clock = Clock::new(1_000, 2, || {});
        clock.start(0, 0);
        clock.halt(0, 1_000_000);
        let first = clock.read();
        std::thread::sleep(std::time::Duration::from_millis(2));
        assert!(
            clock.read() >= first + 1_000_000_000,
            "2 ms of host time are at least 1 ms"
        );
    }

    #[test]
    fn one_ahead_waits_until_the_other_comes_near() {
        let clock = std::sync::Arc::new(Clock::new(10, 2, || {}));
        clock.start(0, 0);
        clock.start(1, 0);
        let other = clock.clone();
        let ahead = std::thread::spawn(move || other.synchronise(0, 100_000, 100_000));
        for step in 1..=10 {
            clock.synchronise(1, step * 10_000, step * 10_000);
        }
        assert!(ahead.join().unwrap() >= 97_500);
        assert_eq!(clock.breaks.load(Relaxed), 0);
    }
}
