//! Sharing the machine among scopes: bytes a second, and hither's own CPU time.
//!
//! Problem: what one scope moves another cannot, and whoever asks first must not take everything.
//! Mechanism (deficit round robin): the machine has one bucket of pages that fills with time. What
//! flows in is credited in equal parts to the scopes that wanted more than they got in their last
//! step; one more part is nobody's, so that who begins to want finds something. In a step the scopes
//! that wanted nothing are asked first, the others after them in turn; each may use its credit and
//! its part of what is nobody's.
//!
//! Properties: no more is granted than the bucket holds; what a scope does not use is left to the
//! others at once; a scope that wants gets its equal share however much others want; credit grows
//! until even a huge page can be paid.
//!
//! Room on nodes needs no account here: it is what is free now, less what is under way, and
//! [`Turn`](super::Turn) hands what is left from scope to scope.
//!
//! *Disturbance*: the CPU time that hither itself uses is taken from the programs. It has a bucket
//! too; while that is empty, new moves wait and sampling is sparse, but verdicts and reverts go on. A second,
//! smaller bucket is for looking: while that is empty, scopes that only look do so less often.

use super::budget::RateBudget;
use super::config::EngineConfig;
use crate::snapshot::{HUGE_PAGES, Snapshot};

/// What is kept of one scope.
#[derive(Clone, Copy, Debug, Default)]
struct Account {
    /// Pages that are its own.
    credit: f64,
    /// It wanted more than it got.
    is_hungry: bool,
}

/// The budgets.
#[derive(Clone, Debug)]
pub(super) struct Arbiter {
    pages: RateBudget,
    accounts: Vec<Account>,
    /// Pages asked for in the step.
    used: u64,
    /// Steps: the hungry take turns at being asked first.
    step_count: usize,
    /// Scopes of this step that were not asked yet.
    waiting: usize,
    disturbance: Disturbance,
}

impl Arbiter {
    /// Full buckets, no scopes.
    pub fn new(config: &EngineConfig) -> Self {
        Self {
            pages: RateBudget::new(config),
            accounts: Vec::new(),
            used: 0,
            step_count: 0,
            waiting: 0,
            disturbance: Disturbance::default(),
        }
    }

    /// One scope more.
    pub fn add_scope(&mut self) {
        self.accounts.push(Account::default());
    }

    /// A step begins; moves that are known to have ended since the last took so long.
    pub fn begin(
        &mut self,
        config: &EngineConfig,
        now_us: u64,
        snapshot: &Snapshot,
        moves_us: u64,
    ) {
        let flowed_in = self.pages.fill(config, now_us);
        if self.used == 0 {
            // Nobody could use what was its own: parts too small for a huge page. They are nobody's.
            for account in &mut self.accounts {
                account.credit = 0.0;
            }
        }
        self.used = 0;
        let hungry = self.accounts.iter().filter(|account| account.is_hungry);
        let hungry = hungry.count();
        let nobodys = usize::from(hungry < self.accounts.len());
        let part = flowed_in / (hungry + nobodys).max(1) as f64;
        for account in self.accounts.iter_mut().filter(|account| account.is_hungry) {
            account.credit += part;
        }
        self.waiting = self.accounts.len();
        self.step_count = self.step_count.wrapping_add(1);
        self.disturbance.begin(config, snapshot, moves_us);
    }

    /// The scopes in the order in which they are asked.
    pub fn order(&self) -> Vec<usize> {
        let (mut hungry, mut order): (Vec<usize>, Vec<usize>) =
            (0..self.accounts.len()).partition(|&at| self.accounts[at].is_hungry);
        let first = self.step_count % hungry.len().max(1);
        hungry.rotate_left(first);
        order.extend(hungry);
        order
    }

    /// Base pages that the next scope may ask for.
    pub fn grant(&self, at: usize) -> u64 {
        let credited: f64 = self.accounts.iter().map(|account| account.credit).sum();
        let nobodys = (self.pages.level() - credited).max(0.0);
        let part = nobodys / self.waiting.max(1) as f64;
        // A part that pays no huge page would be of no use to whoever has only such.
        let part = part.max(nobodys.min(HUGE_PAGES as f64));
        (self.accounts[at].credit + part).min(self.pages.level()) as u64
    }

    /// It used so many, and would have used more where `is_short`.
    pub fn settle(&mut self, at: usize, used: u64, is_short: bool) {
        self.pages.spend(used);
        self.used += used;
        self.waiting = self.waiting.saturating_sub(1);
        let account = &mut self.accounts[at];
        account.is_hungry = is_short;
        account.credit = match is_short {
            true => (account.credit - used as f64).max(0.0),
            false => 0.0,
        };
    }

    /// Has hither used up its CPU time?
    pub fn is_exhausted(&self) -> bool {
        self.disturbance.is_exhausted()
    }

    /// CPU time that looking took in the last interval, in us, where it is known.
    pub fn look_us(&self) -> Option<u64> {
        self.disturbance.look_us
    }

    /// How long hither has to rest until it may look again, in us.
    pub fn rest_us(&self, config: &EngineConfig) -> u64 {
        self.disturbance.rest_us(config)
    }
}

/// CPU time that hither may use.
#[derive(Clone, Debug, Default)]
struct Disturbance {
    /// Of the machine's, for all that it does.
    all: Bucket,
    /// Of one CPU's, for looking alone.
    looks: Bucket,
    /// What looking took in the last interval.
    look_us: Option<u64>,
}

impl Disturbance {
    fn begin(&mut self, config: &EngineConfig, snapshot: &Snapshot, moves_us: u64) {
        let own_us = snapshot.own_cpu_us.get();
        self.look_us = own_us.map(|own_us| own_us.saturating_sub(moves_us));
        let used = own_us.unwrap_or(0) as f64;
        let per_us = f64::from(snapshot.cpu_count()) * config.disturbance_share;
        let span_us = config.disturbance_span_us;
        (self.all).pass(per_us, span_us, snapshot.interval_us, used);
        let looked = self.look_us.unwrap_or(0) as f64;
        let (share, span_us) = (config.look_share, config.look_span_us);
        (self.looks).pass(share, span_us, snapshot.interval_us, looked);
        // Moves that go on are not told apart: what they use is paid by one long rest.
        let most = share * config.max_interval_us as f64;
        self.looks.left_us = self.looks.left_us.map(|left| left.max(-most));
    }

    fn is_exhausted(&self) -> bool {
        self.all.missing_us() > 0.0
    }

    fn rest_us(&self, config: &EngineConfig) -> u64 {
        (self.looks.missing_us() / config.look_share) as u64
    }
}

/// A bucket of us; below nothing where more was used.
#[derive(Clone, Debug, Default)]
struct Bucket {
    /// `None` before the first step.
    left_us: Option<f64>,
}

impl Bucket {
    /// A step: so much flows in for each us of the interval, and that for `span_us` is kept at most.
    fn pass(&mut self, per_us: f64, span_us: u64, interval_us: u64, used_us: f64) {
        let full = per_us * span_us as f64;
        let left = self.left_us.unwrap_or(full) + per_us * interval_us as f64;
        self.left_us = Some(left.min(full) - used_us);
    }

    /// What was used beyond what there was.
    fn missing_us(&self) -> f64 {
        (-self.left_us.unwrap_or(0.0)).max(0.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::snapshot::{Evidence, GlobalMetrics, NodeState, PAGE_BYTES};

    fn snapshot(own_cpu_us: u64) -> Snapshot {
        let node = NodeState {
            id: crate::ids::NodeId(0),
            cpu_count: 8,
            free_bytes: 0,
            total_bytes: 0,
            cache_bytes: 0,
            idle_ns: None,
            rated: crate::snapshot::Rated::default(),
            latency_ns: None,
            read_bytes: Evidence::unknown("test"),
            write_bytes: Evidence::unknown("test"),
            utilisation: Evidence::unknown("test"),
        };
        Snapshot {
            now_us: 0,
            interval_us: 100_000,
            nodes: vec![node],
            caches: Vec::new(),
            distances: Vec::new(),
            metrics: GlobalMetrics::unknown("test"),
            pages: Vec::new(),
            present: Vec::new(),
            sample_count: Evidence::unknown("test"),
            sample_period: 0,
            samples_lost: 0,
            by_use: false,
            processes: Vec::new(),
            own_cpu_us: Evidence::measured(own_cpu_us, "test"),
        }
    }

    /// 1000 pages a step of 100 ms flow in, and 5000 may gather.
    fn config() -> EngineConfig {
        EngineConfig {
            rate_bytes_per_s: 10_000 * PAGE_BYTES,
            burst_bytes: 5_000 * PAGE_BYTES,
            ..EngineConfig::default()
        }
    }

    /// Plays steps in which each scope wants so many pages, in units of `unit`; returns what each
    /// used in all.
    fn play(wants: &[u64], units: &[u64], steps: u64) -> Vec<u64> {
        let config = config();
        let mut arbiter = Arbiter::new(&config);
        wants.iter().for_each(|_| arbiter.add_scope());
        let mut used = vec![0; wants.len()];
        for step in 1..=steps {
            arbiter.begin(&config, step * 100_000, &snapshot(0), 0);
            let mut in_step = 0;
            for at in arbiter.order() {
                let granted = arbiter.grant(at);
                let takes = wants[at].min(granted) / units[at] * units[at];
                arbiter.settle(at, takes, takes < wants[at]);
                used[at] += takes;
                in_step += takes;
            }
            assert!(in_step <= 5_000, "{in_step} pages in step {step}");
        }
        used
    }

    #[test]
    fn who_wants_more_shares_equally_what_others_leave() {
        // 200 steps: 200,000 pages flow in, beside the 5,000 of the start. The modest one gets its
        // 100 a step; the two greedy ones share the rest.
        let used = play(&[1 << 20, 100, 1 << 20, 0], &[1; 4], 200);
        assert_eq!(used[1], 20_000);
        assert_eq!(used[3], 0);
        let (a, b) = (used[0] as f64, used[2] as f64);
        assert!((a / b - 1.0).abs() < 0.05, "{used:?}");
        assert!(a + b > 0.97 * 185_000.0, "{used:?}");
    }

    #[test]
    fn one_alone_gets_everything() {
        let used = play(&[1 << 20, 0, 0], &[1; 3], 200);
        assert!(used[0] > 203_000, "{used:?}");
    }

    #[test]
    fn a_scope_of_huge_pages_does_not_starve_beside_many_of_small_ones() {
        // Each share is 100 pages a step: five steps pay a huge page.
        let mut units = [1; 10];
        units[9] = 512;
        let used = play(&[1 << 20; 10], &units, 1_000);
        let fair = 100_000.0;
        for used in &used {
            assert!((*used as f64 / fair - 1.0).abs() < 0.1, "{used}");
        }
    }

    #[test]
    fn huge_pages_move_however_many_share_the_bucket() {
        // Equal parts of what may gather are 416 pages: no huge page.
        let used = play(&[1 << 20; 12], &[512; 12], 1_000);
        let fair = 1_000_000.0 / 12.0;
        for used in &used {
            assert!((*used as f64 / fair - 1.0).abs() < 0.1, "{used}");
        }
    }

    #[test]
    fn own_cpu_time_is_a_budget() {
        // 8 CPUs at 2 %: 16 ms a step of 100 ms, and 30 s of that at the start: 4.8 s.
        let config = EngineConfig::default();
        let mut arbiter = Arbiter::new(&config);
        let mut at = |own_us| {
            arbiter.begin(&config, 0, &snapshot(own_us), 0);
            arbiter.is_exhausted()
        };
        assert!(!at(4_000_000));
        assert!(!at(800_000));
        assert!(at(50_000));
        let waited = (0..100).take_while(|_| at(0)).count();
        assert!(waited <= 2, "{waited}");
        // As much as flows in, for ever.
        assert!((0..1000).filter(|_| at(16_000)).count() == 0);
        assert!((0..1000).filter(|_| at(32_000)).count() > 450);
    }

    #[test]
    fn looking_is_a_budget_of_its_own() {
        // 0.5 % of a CPU: 0.5 ms in 100 ms, and 30 ms at the start.
        let config = EngineConfig::default();
        let mut arbiter = Arbiter::new(&config);
        let mut at = |own_us, moves_us| {
            arbiter.begin(&config, 0, &snapshot(own_us), moves_us);
            arbiter.rest_us(&config)
        };
        assert_eq!(at(30_000, 0), 0);
        assert_eq!(at(4_000, 0), 700_000);
        assert_eq!(at(0, 0), 600_000);
        assert_eq!(at(50_000, 50_000), 500_000, "moves are no looks");
        assert_eq!(at(700_000, 0), 1_000_000, "they go on, perhaps");
        assert!(!arbiter.is_exhausted());
    }
}
