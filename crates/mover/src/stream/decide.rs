//! Whether a stream goes through fast memory: measured, decided, looked at again.
//!
//! Problem: filling ahead costs time where there is nothing to gain (one memory, no spare CPU, a
//! program that computes more than it loads), and nobody knows beforehand where that is.
//!
//! Mechanism: groups of blocks alternate between the two ways. Each group is a [`Sample`];
//! [`decide`] compares neighbours, so that what slows down both ways alike does not matter. After
//! a decision the stream rests for a while and then tries the other way again, with the samples of
//! the rest as one side of the comparison. A rest is as long as keeps tries below 1 % of the time
//! ([`TRY_SHARE`]), and twice as long after each try that changed nothing.
//!
//! Always: no clock in here, same samples, same decision. A try that goes badly ends early.

/// To switch on, every comparison must show this gain: more than the noise of a quiet machine.
const ON_GAIN: f64 = 1.05;
/// Comparisons that must agree to switch on: plain, through, plain, through.
const ON_COMPARISONS: usize = 3;
/// Switched on, one comparison with this gain is enough to stay so.
const STAY_GAIN: f64 = 1.02;
/// Comparisons that must agree to switch off.
const OFF_COMPARISONS: usize = 2;
/// A try ends early once it has lost this share of the time of a plain group.
const HOPELESS_LOSS: f64 = 0.25;
/// Most of the time that tries may cost in the long run.
const TRY_SHARE: f64 = 0.01;
/// Blocks of the shortest rest.
const REST_LEAST: u64 = 64;
/// A rest has so many times the blocks of its try: a loss that was not seen for noise costs little.
const REST_TRIES: u64 = 4;
/// Doublings of the shortest rest.
const REST_DOUBLINGS: u32 = 6;
/// Blocks of the longest rest.
const REST_MOST: u64 = 1 << 16;

/// How blocks are computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// From slow memory, and nothing is filled.
    Plain,
    /// From fast memory where it is filled, else from slow memory.
    Through,
}

impl Way {
    fn other(self) -> Self {
        match self {
            Self::Plain => Self::Through,
            Self::Through => Self::Plain,
        }
    }
}

/// A measured group of blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample {
    /// How they were computed.
    pub way: Way,
    /// How many.
    pub blocks: u64,
    /// Their elements.
    pub elements: u64,
    /// Time they took, in ns, what lies between two blocks included.
    pub elapsed_ns: u64,
}

impl Sample {
    fn of(way: Way) -> Self {
        Self {
            way,
            blocks: 0,
            elements: 0,
            elapsed_ns: 0,
        }
    }

    fn add(&mut self, blocks: u64, elements: u64, elapsed_ns: u64) {
        self.blocks += blocks;
        self.elements += elements;
        self.elapsed_ns += elapsed_ns;
    }

    fn ns_per_element(&self) -> f64 {
        self.elapsed_ns as f64 / self.elements.max(1) as f64
    }
}

/// Which way pays.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Decision {
    /// Not known yet.
    #[default]
    Undecided,
    /// Slow memory only.
    Plain,
    /// Through fast memory.
    Through,
}

/// How much faster through fast memory is, by two neighbouring samples: 1 is as fast.
fn gain(one: &Sample, other: &Sample) -> Option<f64> {
    let (plain, through) = match (one.way, other.way) {
        (Way::Plain, Way::Through) => (one, other),
        (Way::Through, Way::Plain) => (other, one),
        _ => return None,
    };
    let through = through.ns_per_element();
    (through > 0.0).then(|| plain.ns_per_element() / through)
}

fn gains(samples: &[Sample]) -> impl Iterator<Item = f64> {
    samples
        .windows(2)
        .filter_map(|pair| gain(&pair[0], &pair[1]))
}

/// What the samples of a try say, in their order, for a stream that goes one way now.
/// [`Decision::Undecided`] asks for another sample.
///
/// Switching on takes three comparisons that all show 5 %; one that does not is enough to stay
/// plain. Switching off takes two that both show less than 2 %. In between nothing changes.
#[must_use]
pub fn decide(now: Decision, samples: &[Sample]) -> Decision {
    let count = gains(samples).count();
    if now == Decision::Through {
        if gains(samples).any(|gain| gain >= STAY_GAIN) {
            return Decision::Through;
        }
        return match count >= OFF_COMPARISONS {
            true => Decision::Plain,
            false => Decision::Undecided,
        };
    }
    if gains(samples).any(|gain| gain < ON_GAIN) {
        return Decision::Plain;
    }
    match count >= ON_COMPARISONS {
        true => Decision::Through,
        false => Decision::Undecided,
    }
}

/// Blocks to rest after a try of `blocks` blocks that changed nothing, so many times in a row
/// (from 1). `loss` is what the tried way cost more, as a share of the other's time.
fn rest(blocks: u64, loss: f64, times: u32) -> u64 {
    let least = REST_LEAST.max(REST_TRIES * blocks);
    let doubled = least << times.saturating_sub(1).min(REST_DOUBLINGS);
    let paid = (blocks as f64 * loss.max(0.0) / TRY_SHARE).ceil();
    doubled.max(paid as u64).min(REST_MOST)
}

/// Who decides.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Adapt {
    /// The stream, by what it measures.
    #[default]
    Measure,
    /// Always through fast memory.
    Always,
    /// Never: slow memory only.
    Never,
}

/// Leads a stream from block to block; lives as long as the stream.
#[derive(Debug)]
pub(super) struct Pilot {
    adapt: Adapt,
    /// Blocks of a sample, at least.
    group: u64,
    /// Its time, at least, in ns: longer than what disturbs it.
    group_ns: u64,
    decision: Decision,
    way: Way,
    /// Counts changes of `way`, so that a block begun before one is not counted after it.
    phase: u64,
    /// Blocks still to let pass uncounted: nothing is filled yet.
    settle: u64,
    /// Blocks still to rest; `None`: a try is under way.
    resting: Option<u64>,
    sum: Sample,
    /// The blocks that pass uncounted.
    settling: Sample,
    /// Blocks of the try under way.
    tried: u64,
    samples: Vec<Sample>,
    /// Tries in a row that changed nothing.
    times: u32,
    gain: Option<f64>,
}

impl Pilot {
    pub(super) fn new(adapt: Adapt, group: u64, group_ns: u64) -> Self {
        let (way, decision) = match adapt {
            Adapt::Measure => (Way::Plain, Decision::Undecided),
            Adapt::Always => (Way::Through, Decision::Through),
            Adapt::Never => (Way::Plain, Decision::Plain),
        };
        Self {
            adapt,
            group,
            group_ns,
            decision,
            way,
            phase: 0,
            settle: 0,
            resting: None,
            sum: Sample::of(way),
            settling: Sample::of(way),
            tried: 0,
            samples: Vec::new(),
            times: 0,
            gain: None,
        }
    }

    pub(super) fn way(&self) -> Way {
        self.way
    }

    pub(super) fn phase(&self) -> u64 {
        self.phase
    }

    pub(super) fn decision(&self) -> Decision {
        self.decision
    }

    /// The worst comparison of the last try: how much faster fast memory is.
    pub(super) fn gain(&self) -> Option<f64> {
        self.gain
    }

    /// Blocks until something changes at the earliest.
    pub(super) fn left(&self) -> u64 {
        if self.adapt != Adapt::Measure {
            return u64::MAX;
        }
        if let Some(left) = self.resting {
            return left.max(1);
        }
        let Sample {
            blocks, elapsed_ns, ..
        } = self.sum;
        let missing_ns = self.group_ns.saturating_sub(elapsed_ns);
        let by_time = (missing_ns * blocks).div_ceil(elapsed_ns.max(1));
        self.group.saturating_sub(blocks).max(by_time).max(1)
    }

    /// A run of so many blocks begins: nothing is filled.
    pub(super) fn begin(&mut self, blocks: u64) {
        self.settle = if self.way == Way::Through {
            self.settle_blocks().min(blocks / 4)
        } else {
            0
        };
    }

    /// Blocks until the first fills have arrived: a quarter of a group.
    fn settle_blocks(&self) -> u64 {
        self.group / 4
    }

    /// Blocks were computed that were begun in this phase, by the way that it tells; `pure`:
    /// nothing of the other way went on meanwhile.
    pub(super) fn finished(&mut self, phase: u64, pure: bool, blocks: u64, elements: u64, ns: u64) {
        if self.adapt != Adapt::Measure || phase != self.phase {
            return;
        }
        if let Some(left) = &mut self.resting {
            *left = left.saturating_sub(blocks);
        } else {
            self.tried += blocks;
        }
        if self.settle > 0 {
            self.settle = self.settle.saturating_sub(blocks);
            self.settling.add(blocks, elements, ns);
        } else if pure {
            self.sum.add(blocks, elements, ns);
        }
        let full = self.sum.blocks >= self.group && self.sum.elapsed_ns >= self.group_ns;
        if self.resting.is_none() && (full || self.is_hopeless()) {
            self.sampled();
        } else if full {
            // Of a rest only the last sample counts.
            self.samples = vec![self.take_sum()];
        }
        if self.resting == Some(0) && !self.samples.is_empty() {
            self.resting = None;
            self.tried = 0;
            self.turn();
        }
    }

    /// A run ended after so much time in which nothing was computed.
    pub(super) fn ended(&mut self, ns: u64) {
        if self.sum.blocks > 0 {
            self.sum.elapsed_ns += ns;
        }
    }

    fn take_sum(&mut self) -> Sample {
        std::mem::replace(&mut self.sum, Sample::of(self.way))
    }

    fn turn(&mut self) {
        self.way = self.way.other();
        self.phase += 1;
        self.sum = Sample::of(self.way);
        self.settling = self.sum;
        if self.way == Way::Through {
            self.settle = self.settle_blocks();
        }
    }

    /// Has fast memory cost too much for its try to go on?
    fn is_hopeless(&self) -> bool {
        let trying = self.way == Way::Through && self.decision != Decision::Through;
        let Some(last) = self.samples.last().filter(|_| trying) else {
            return false;
        };
        let (spent, elements) = (
            self.settling.elapsed_ns + self.sum.elapsed_ns,
            self.settling.elements + self.sum.elements,
        );
        let lost = spent as f64 - elements as f64 * last.ns_per_element();
        let group_ns = last.elapsed_ns as f64 * self.group as f64 / last.blocks.max(1) as f64;
        lost > HOPELESS_LOSS * group_ns.max(self.group_ns as f64)
    }

    /// A group of a try is complete.
    fn sampled(&mut self) {
        let counted = self.take_sum();
        // Hopeless before anything was counted: by what it was while it settled.
        let sample = match counted.elements {
            0 => self.settling,
            _ => counted,
        };
        self.samples.push(sample);
        if self.samples.len() < 2 {
            self.turn();
            return;
        }
        self.gain = gains(&self.samples).min_by(f64::total_cmp);
        let verdict = decide(self.decision, &self.samples);
        if verdict == Decision::Undecided {
            self.turn();
            return;
        }
        self.times = if verdict == self.decision {
            self.times.saturating_add(1)
        } else {
            1
        };
        let goal = match verdict {
            Decision::Through => Way::Through,
            _ => Way::Plain,
        };
        // The way not taken lost this much, by its best comparison for either side.
        let gain = self.gain.unwrap_or(1.0);
        let loss = match goal {
            Way::Plain => 1.0 / gain - 1.0,
            Way::Through => gain - 1.0,
        };
        self.decision = verdict;
        self.resting = Some(rest(self.tried, loss, self.times));
        self.samples.clear();
        if self.way == goal {
            self.phase += 1;
        } else {
            self.turn();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A group of 10 blocks of 100 elements at so many ns per element.
    fn sample(way: Way, ns_per_element: u64) -> Sample {
        Sample {
            way,
            blocks: 10,
            elements: 1000,
            elapsed_ns: 1000 * ns_per_element,
        }
    }

    /// Plain and through in turn, plain first.
    fn turns(times: &[u64]) -> Vec<Sample> {
        let ways = [Way::Plain, Way::Through].into_iter().cycle();
        ways.zip(times).map(|(way, &ns)| sample(way, ns)).collect()
    }

    #[test]
    fn switching_on_takes_three_comparisons_of_five_percent() {
        use Decision::*;
        for now in [Undecided, Plain] {
            assert_eq!(decide(now, &turns(&[])), Undecided);
            assert_eq!(decide(now, &turns(&[100])), Undecided);
            // 100/95 = 1.053, 100/96 = 1.042.
            assert_eq!(decide(now, &turns(&[100, 95])), Undecided);
            assert_eq!(decide(now, &turns(&[100, 96])), Plain);
            assert_eq!(decide(now, &turns(&[100, 95, 100])), Undecided);
            assert_eq!(decide(now, &turns(&[100, 95, 100, 95])), Through);
            // The second plain group was as fast: it was the machine that changed.
            assert_eq!(decide(now, &turns(&[100, 95, 96])), Plain);
            assert_eq!(decide(now, &turns(&[100, 80, 100, 110])), Plain);
            // The same time for half the elements is half as fast.
            let mut short = turns(&[100, 90]);
            short[1].elements /= 2;
            assert_eq!(decide(now, &short), Plain);
        }
    }

    #[test]
    fn switching_off_takes_two_comparisons_below_two_percent() {
        use Decision::*;
        // 102/100 = 1.02, 101/100 = 1.01.
        assert_eq!(decide(Through, &turns(&[102, 100])), Through);
        assert_eq!(decide(Through, &turns(&[101, 100])), Undecided);
        assert_eq!(decide(Through, &turns(&[101, 100, 101])), Plain);
        assert_eq!(decide(Through, &turns(&[90, 100, 101])), Plain);
        assert_eq!(decide(Through, &turns(&[90, 100, 102])), Through);
        // Between 2 and 5 %: stays as it is, on or off.
        assert_eq!(decide(Through, &turns(&[103, 100])), Through);
        assert_eq!(decide(Plain, &turns(&[103, 100])), Plain);
    }

    #[test]
    fn samples_without_content_decide_nothing() {
        let mut empty = turns(&[100, 0]);
        empty[1].elements = 0;
        assert_eq!(decide(Decision::Undecided, &empty), Decision::Undecided);
        let same = [sample(Way::Plain, 1), sample(Way::Plain, 2)];
        assert_eq!(decide(Decision::Undecided, &same), Decision::Undecided);
    }

    #[test]
    fn rests_are_long_enough_to_pay_for_tries() {
        // 20 blocks that take 30 % longer cost 6 blocks: 1 % of 600.
        assert_eq!(rest(20, 0.3, 1), 600);
        assert_eq!(rest(10, 0.0, 1), 64);
        assert_eq!(rest(20, 0.0, 1), 80);
        assert_eq!(rest(10, -1.0, 3), 256);
        assert_eq!(rest(10, 0.3, 5), 1024);
        assert_eq!(rest(10, 0.3, 1000), 4096);
        assert_eq!(rest(20, 1e9, 1), 65536);
    }

    /// Runs blocks that take `ns(way)` each and returns how many went each way, and the time.
    fn drive(pilot: &mut Pilot, blocks: u64, ns: impl Fn(Way) -> u64) -> (u64, u64, u64) {
        let (mut plain, mut through, mut time) = (0, 0, 0);
        for _ in 0..blocks {
            let way = pilot.way();
            match way {
                Way::Plain => plain += 1,
                Way::Through => through += 1,
            }
            time += ns(way);
            pilot.finished(pilot.phase(), true, 1, 100, ns(way));
        }
        (plain, through, time)
    }

    #[test]
    fn where_it_costs_a_fifth_it_is_tried_for_at_most_three_percent() {
        let mut pilot = Pilot::new(Adapt::Measure, 16, 0);
        let ns = |way| if way == Way::Plain { 100 } else { 120 };
        // 16 plain; 4 to settle and 16 to count; then a rest.
        let (plain, through, _) = drive(&mut pilot, 36, ns);
        assert_eq!((plain, through), (16, 20));
        assert_eq!(pilot.decision(), Decision::Plain);
        assert_eq!(pilot.way(), Way::Plain);
        let mut time = 36 * 100 + 20 * 20;
        time += drive(&mut pilot, 964, ns).2;
        assert!(time < 103_000, "{time}");
        let (_, again, time) = drive(&mut pilot, 20_000, ns);
        assert!(again >= 20, "it is tried again");
        assert!(time < 2_020_000, "{time}");
    }

    #[test]
    fn a_hopeless_try_ends_early() {
        let mut pilot = Pilot::new(Adapt::Measure, 16, 0);
        let ns = |way| if way == Way::Plain { 100 } else { 1000 };
        // A block loses 900 of the 1600 ns of the sample before, of which 400 may be lost.
        let (_, through, _) = drive(&mut pilot, 1000, ns);
        assert_eq!(through, 1);
        assert_eq!(pilot.decision(), Decision::Plain);
        // By a half: 50 ns a block, so it is the ninth.
        let mut pilot = Pilot::new(Adapt::Measure, 16, 0);
        let ns = |way| if way == Way::Plain { 100 } else { 150 };
        let (_, through, _) = drive(&mut pilot, 100, ns);
        assert_eq!(through, 9);
    }

    #[test]
    fn where_it_pays_it_stays_on_and_goes_off_when_it_does_not_any_more() {
        let mut pilot = Pilot::new(Adapt::Measure, 16, 0);
        let pays = |way| if way == Way::Plain { 133 } else { 100 };
        let (plain, _, _) = drive(&mut pilot, 100, pays);
        assert_eq!(plain, 32, "plain, through, plain, through");
        assert_eq!(pilot.decision(), Decision::Through);
        let (_, _, time) = drive(&mut pilot, 20_000, pays);
        assert!(time < 2_020_000, "{time}");
        // Now it costs: found out at the next try, after at most 4096 blocks, and two groups.
        let costs = |way| if way == Way::Plain { 100 } else { 133 };
        drive(&mut pilot, 5000, costs);
        assert_eq!(pilot.decision(), Decision::Plain);
    }

    #[test]
    fn blocks_of_an_earlier_phase_and_impure_ones_do_not_count() {
        let mut pilot = Pilot::new(Adapt::Measure, 4, 0);
        for _ in 0..100 {
            pilot.finished(pilot.phase(), false, 1, 100, 1);
        }
        assert_eq!(pilot.way(), Way::Plain);
        pilot.finished(pilot.phase(), true, 4, 400, 400);
        assert_eq!((pilot.way(), pilot.phase()), (Way::Through, 1));
        for _ in 0..100 {
            pilot.finished(0, true, 1, 100, 1);
        }
        assert_eq!(pilot.phase(), 1);
    }

    #[test]
    fn a_sample_takes_its_time() {
        let mut pilot = Pilot::new(Adapt::Measure, 4, 1000);
        for blocks in 1..=10 {
            assert_eq!(pilot.way(), Way::Plain);
            pilot.finished(0, true, 1, 100, 100);
            // 100 ns each: ten of them are 1000 ns.
            assert!(blocks == 10 || pilot.left() == 10 - blocks);
        }
        assert_eq!(pilot.way(), Way::Through);
    }

    #[test]
    fn short_runs_add_up() {
        let mut pilot = Pilot::new(Adapt::Measure, 16, 0);
        for _ in 0..100 {
            pilot.begin(2);
            drive(
                &mut pilot,
                2,
                |way| if way == Way::Plain { 100 } else { 133 },
            );
            pilot.ended(10);
        }
        assert_eq!(pilot.decision(), Decision::Plain);
    }

    #[test]
    fn who_is_told_does_not_measure() {
        for (adapt, way) in [(Adapt::Always, Way::Through), (Adapt::Never, Way::Plain)] {
            let mut pilot = Pilot::new(adapt, 16, 0);
            drive(&mut pilot, 1000, |way| way as u64 + 1);
            assert_eq!((pilot.way(), pilot.phase()), (way, 0));
        }
    }
}
