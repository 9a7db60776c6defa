//! The virtual clock: guest time is modelled time.
//!
//! Each vCPU has its own modelled time. Guest time is that of the slowest running vCPU; one that
//! gets further ahead than the skew limit waits. The wait is bounded, because a vCPU that waits
//! inside a callback holds up QEMU's exclusive sections, for which the slowest may be waiting;
//! such breaks are counted. A halted vCPU does not count; when all are halted, time follows the
//! host. A CPU that reads the clock adds what it has accrued since it last synchronised.
//!
//! Who writes: `time` its vCPU (and the sender of an inter-processor interrupt, when it wakes a
//! halted one); `running` its vCPU, that sender, and whoever finds that a promise was not kept;
//! `now` anyone, forward only.

use crate::seats::{Seats, allowed};
use crate::turns::{Turns, bits};
use hither_core::opium::MAX_VCPUS;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};

/// Rounds of spinning before a waiting vCPU sleeps: some 30 us, about twice what it takes to wake a thread of another core,
/// so that no wait costs much more than the better choice. With 2000 the laboratory was no faster and took up to a third
/// more of the host's CPU time, of which others have better use.
const SPINS: u32 = 20;
/// After this many naps without progress a waiting vCPU is let go.
const NAPS: u32 = 3;
/// A worker that sleeps looks again after this host time. Longer than the host's tick: a sooner
/// time-out would have the host's timer programmed anew each time, which costs more than a switch.
const NAP_NS: u64 = 20_000_000;

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
    skew_ps: u64,
    /// Longest time between two looks at the clock, in ps: what skew allows a vCPU that is not
    /// ahead. The limit is kept from below, as a block in translation can take longer than it is
    /// allowed.
    pub quantum_ps: u64,
    turns: Turns,
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
            alarm_ps: AtomicU64::new(u64::MAX),
            ring,
            skew_ps: skew_ns * 1000,
            quantum_ps: skew_ns * 800,
            turns: Turns::new(Seats::new(allowed(), vcpus), vcpus),
            max_skew_ps: AtomicU64::new(0),
            breaks: AtomicU64::new(0),
        }
    }

    /// The slowest running vCPU's time; `None` when all are halted.
    fn slowest(&self) -> Option<u64> {
        bits(self.running.load(SeqCst))
            .map(|vcpu| self.time_ps[vcpu].load(SeqCst))
            .min()
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

    /// Recomputes guest time after a vCPU's has changed, and calls those whose time has come.
    fn progress(&self) -> u64 {
        let now = self.advance();
        self.wake(now);
        if now >= self.alarm_ps.load(Relaxed) {
            self.ring_once();
        }
        now
    }

    /// Wakes the seats where somebody's time has come and nobody is awake to see it when its own
    /// turn ends.
    fn wake(&self, now: u64) {
        for seat in 0..self.turns.seats.count() {
            if self.turns.is_due(seat, now) && !self.awake(seat, None) {
                self.turns.ring(seat);
            }
        }
    }

    /// Is a vCPU of this seat, other than `except`, running and not waiting?
    fn awake(&self, seat: usize, except: Option<usize>) -> bool {
        let running = self.running.load(SeqCst) & !except.map_or(0, |vcpu| 1 << vcpu);
        self.turns.awake(seat, running)
    }

    /// A vCPU has left this seat, or is about to leave its host CPU idle.
    fn relieve(&self, seat: usize) {
        self.turns.arm(seat);
        self.progress();
    }

    /// Takes back promises that were not kept.
    fn expire(&self) {
        for vcpu in 0..MAX_VCPUS {
            let promised = self.promised[vcpu].load(SeqCst);
            if promised == 0 || host_ns().saturating_sub(promised) < PROMISE_NS {
                continue;
            }
            // Who holds it is changing the very thing. Waiting for it could write `errno` (see
            // `turns`).
            let Ok(mut idle) = self.idle.try_lock() else {
                return;
            };
            if (self.promised[vcpu].compare_exchange(promised, 0, SeqCst, SeqCst)).is_ok() {
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
            Some(_) => self.progress(),
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
        time
    }

    /// A vCPU halts.
    pub fn halt(&self, vcpu: usize, own_ps: u64) {
        let mut idle = self.idle.lock().expect("no thread panics while holding it");
        self.time_ps[vcpu].store(own_ps, Relaxed);
        self.promised[vcpu].store(0, SeqCst);
        self.stop(&mut idle, vcpu);
        drop(idle);
        self.relieve(self.turns.seats.of(vcpu));
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

    /// How much longer a vCPU may run before it looks again, in ps, where guest time is `now_ps`.
    pub fn allowance(&self, own_ps: u64, now_ps: u64) -> u64 {
        self.quantum_ps
            .saturating_sub(own_ps.saturating_sub(now_ps))
    }

    /// A running vCPU reports its time and waits while it is too far ahead. It has executed up
    /// to `executed_ps`; `own_ps` adds what it then waits for memory, during which it does
    /// nothing that others could see, so only the former counts as skew.
    pub fn synchronise(&self, vcpu: usize, executed_ps: u64, own_ps: u64) -> u64 {
        self.time_ps[vcpu].store(own_ps, SeqCst);
        let now = self.progress();
        let skew = executed_ps.saturating_sub(now);
        if skew > self.max_skew_ps.load(Relaxed) {
            self.max_skew_ps.fetch_max(skew, Relaxed);
        }
        if self.allowance(own_ps, now) >= self.skew_ps / 10 {
            return now;
        }
        if let Some(left) = self.turns.settle(vcpu, self.running.load(Relaxed)) {
            self.relieve(left);
        }
        // Turns that are longer cost fewer hand-overs, but more waiting for the other host CPUs.
        self.wait(vcpu, own_ps - self.skew_ps / 3)
    }

    /// Gives way until guest time is there: to another vCPU of the same seat, or to none, which
    /// costs the host CPU's time for a while; one that goes idle is slow to wake up.
    fn wait(&self, vcpu: usize, target: u64) -> u64 {
        let seat = self.turns.seats.of(vcpu);
        for _ in 0..SPINS {
            let now = self.advance();
            if now >= target {
                return now;
            }
            if let Some(next) = self.turns.take(seat, now) {
                self.turns.hand_over(vcpu, target, next);
                return self.advance();
            }
            if self.turns.seats.shared() && self.awake(seat, Some(vcpu)) {
                break; // its thread needs this host CPU
            }
            self.wake(now);
            for _ in 0..20 {
                std::hint::spin_loop();
            }
        }
        let clock = std::ptr::from_ref(self).cast();
        self.turns.rest(vcpu, target, find_work, clock);
        self.advance()
    }

    /// A worker without a vCPU: waits for one whose time has come.
    fn find_work(&self, worker: usize) -> ! {
        let (mut naps, mut before) = (0, 0);
        loop {
            let seat = self.turns.seat_of(worker);
            let bell = self.turns.arm(seat);
            self.expire();
            let now = self.advance();
            if now > before {
                naps = 0;
            }
            before = now;
            // Who is awake takes the next one itself, unless it is stuck in the kernel, or was
            // promised and does not come.
            if naps > 0 || !self.awake(seat, None) {
                let let_go = naps >= NAPS;
                let until = if let_go { u64::MAX } else { now };
                if let Some(next) = self.turns.take(seat, until) {
                    self.breaks.fetch_add(u64::from(let_go), Relaxed);
                    self.turns.carry(worker, next);
                }
            }
            self.wake(now);
            let promised = |vcpu: &AtomicU64| vcpu.load(SeqCst) != 0;
            let limit_ns = if self.promised.iter().any(promised) {
                PROMISE_NS
            } else {
                NAP_NS
            };
            naps += u32::from(!self.turns.nap(seat, bell, limit_ns));
        }
    }
}

/// [`Clock::find_work`] as `turns` calls it.
///
/// # Safety
/// `clock` points to the clock whose worker this is.
unsafe extern "C" fn find_work(clock: *const (), worker: u64) -> ! {
    // SAFETY: the clock outlives its vCPUs.
    unsafe { &*clock.cast::<Clock>() }.find_work(worker as usize)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

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

    /// A clock whose vCPUs sit on so many host CPUs, all of them the first that we may use.
    fn seated(skew_ns: u64, vcpus: usize, cpus: usize) -> Clock {
        let mut clock = Clock::new(skew_ns, vcpus, || {});
        clock.turns = Turns::new(Seats::new(vec![allowed()[0]; cpus], vcpus), vcpus);
        clock
    }

    thread_local! {
        static OWN: Cell<usize> = const { Cell::new(usize::MAX) };
    }

    /// Runs four vCPUs, which halt now and then, for 2 ms of guest time; what each then finds in
    /// its thread-local storage. Threads that handed their context over must not end: they would
    /// take their worker's place with them.
    fn four_take_turns(cpus: usize, quick: bool) -> (&'static Clock, Vec<(usize, u64)>) {
        let clock = Box::leak(Box::new(seated(10_000, 4, cpus)));
        clock.turns.quick &= quick;
        let clock: &'static Clock = clock;
        let (sender, ended) = std::sync::mpsc::channel();
        for vcpu in 0..4 {
            clock.start(vcpu, 0);
        }
        for vcpu in 0..4 {
            let sender = sender.clone();
            std::thread::spawn(move || {
                OWN.set(vcpu);
                let mut time = 0;
                let mut own = 0.0;
                for step in 0..1000 {
                    time += 1_000_000 + 700_000 * vcpu as u64;
                    own += 0.5;
                    clock.synchronise(vcpu, time, time);
                    if step % 100 == 99 {
                        clock.halt(vcpu, time);
                        time = clock.start(vcpu, time);
                    }
                }
                clock.halt(vcpu, time);
                assert_eq!(own, 500.0);
                sender.send((OWN.get(), time)).unwrap();
                loop {
                    std::thread::park();
                }
            });
        }
        (clock, ended.iter().take(4).collect())
    }

    #[test]
    fn those_that_share_a_host_cpu_take_turns_and_keep_their_storage() {
        for (cpus, quick) in [(1, true), (2, true), (1, false)] {
            let (clock, mut ended) = four_take_turns(cpus, quick);
            ended.sort_unstable();
            let vcpus: Vec<usize> = ended.iter().map(|&(vcpu, _)| vcpu).collect();
            assert_eq!(vcpus, [0, 1, 2, 3]);
            assert!(ended.iter().all(|&(_, time)| time >= 1_000_000_000));
            // Each looks at the clock after up to 3.1 us, and then waits if it is too far ahead,
            // unless a busy host let it go.
            let skew = clock.max_skew_ps.load(Relaxed);
            let limit = 10_000_000 + 3_100_000 * (1 + clock.breaks.load(Relaxed));
            assert!((8_000_000..limit).contains(&skew), "{skew} of {limit}");
            // All run until the first halts, after 100 us; until then each gives way when it is
            // 10 us ahead, one look late, after it has made up what it was behind: after 20 us at
            // the latest, where there is one seat to another of it, but for the three that begin
            // before the others. From then on others may run alone, as long as the host lets the
            // halted one's thread wait; and of two seats each may have none to give way to.
            let turns = clock.turns.count();
            assert!(cpus > 1 || turns >= 4 * 100 / 20 - 3, "{turns} turns");
        }
    }

    #[test]
    fn one_ahead_waits_until_the_other_comes_near() {
        let clock = std::sync::Arc::new(seated(10, 2, 2));
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
