//! How hot pages turn out to be that were taken for hot, and for cold.
//!
//! Problem: whoever takes the hottest of many pages by few samples takes those that were lucky, besides those that are
//! hot (the winner's curse); and the coldest are those that were unlucky. Exchanged, they change nothing but cost their
//! moves. Mechanism: before two pages change places, both are *tried*: the samples of the next interval, which had no
//! part in their choice, tell how hot they are. That is kept for each octave of heat and each side, and corrects
//! what is expected of further pages.
//!
//! Shape: three tables of sums that fade as heat does.

use crate::ids::Pid;
use crate::policy::heat::{Judged, left_after};
use crate::snapshot::base_pages;

/// Octaves of the rate of samples that are told apart, from 2^-20 a second on; below them no sample.
const OCTAVES: usize = 40;
const LEAST: f64 = -20.0;
/// Expected samples below which nothing is believed, and that count as if none had come.
const DOUBT: f64 = 10.0;

/// What pages of an octave were expected to have, and had.
#[derive(Clone, Copy, Debug, Default)]
struct Sums {
    /// Seconds that base pages were on trial.
    page_s: f64,
    /// Samples.
    expected: f64,
    seen: f64,
}

/// Pages on one side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    /// To go up into room.
    Room,
    /// To go up against others.
    Hot,
    /// To leave.
    Cold,
}

/// A page on trial.
#[derive(Clone, Copy, Debug)]
struct Tried {
    pid: Pid,
    page: u64,
    base_pages: f64,
    /// Samples a second of each base page, as expected.
    rate: f64,
    /// The place of its sums.
    at: usize,
}

/// The pages on trial, and what others before them had.
#[derive(Clone, Debug, Default)]
pub(super) struct Trial {
    /// By process and number.
    pages: Vec<Tried>,
    /// The first that is not behind the page that was told last.
    next: usize,
    /// Of each octave, side by side; none before the first trial.
    sums: Vec<Sums>,
    /// What one sample counts.
    sample: f64,
}

impl Trial {
    /// An interval of so many us is told next.
    pub fn begin(&mut self, interval_us: u64) {
        let faded = left_after(interval_us);
        for sums in &mut self.sums {
            sums.page_s *= faded;
            sums.expected *= faded;
            sums.seen *= faded;
        }
        let seconds = interval_us as f64 / 1e6;
        for tried in &self.pages {
            let page_s = tried.base_pages * seconds;
            self.sums[tried.at].page_s += page_s;
            self.sums[tried.at].expected += page_s * tried.rate;
        }
        self.next = 0;
    }

    /// A page had so many samples; pages come in order of process and number.
    pub fn take(&mut self, pid: Pid, page: u64, samples: f64) {
        let left = self.pages[self.next..].iter();
        let is_before = |tried: &&Tried| (tried.pid, tried.page) < (pid, page);
        self.next += left.take_while(is_before).count();
        if let Some(tried) = self.pages.get(self.next)
            && (tried.pid, tried.page) == (pid, page)
        {
            self.sums[tried.at].seen += samples;
        }
    }

    /// From the next interval on these are on trial. Heat is samples of so many seconds, each of which counts so much.
    pub fn set(&mut self, pages: &[(Judged, Side)], window_s: f64, sample: f64) {
        self.sample = sample;
        self.sums.resize(3 * OCTAVES, Sums::default());
        let tried = pages.iter().map(|&(page, side)| Tried {
            pid: page.pid,
            page: page.page,
            base_pages: base_pages(page.huge) as f64,
            rate: page.heat / window_s,
            at: place(page.heat / window_s, side),
        });
        self.pages.clear();
        self.pages.extend(tried);
        let key = |tried: &Tried| (tried.pid, tried.page);
        self.pages.sort_unstable_by_key(key);
    }

    /// The heat of a page that is told as so hot, as others told alike turned out: no more than told of one to go up, no
    /// less of one to leave. `None` where too few were tried.
    pub fn believed(&self, heat: f64, side: Side, window_s: f64) -> Option<f64> {
        let sums = self.sums.get(place(heat / window_s, side))?;
        let least = DOUBT * self.sample;
        match side {
            Side::Room | Side::Hot if sums.expected < least => None,
            Side::Room | Side::Hot => Some(heat * (sums.seen / (sums.expected + least)).min(1.0)),
            Side::Cold if sums.page_s == 0.0 => None,
            // One sample more than was seen: of a few seconds of a page none tells little.
            Side::Cold => Some(heat.max((sums.seen + self.sample) / sums.page_s * window_s)),
        }
    }
}

fn place(rate: f64, side: Side) -> usize {
    let octave = match rate > 0.0 {
        true => (rate.log2() - LEAST).clamp(0.0, (OCTAVES - 2) as f64) as usize + 1,
        false => 0,
    };
    side as usize * OCTAVES + octave
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::random::Random;

    const PID: Pid = Pid(3);

    fn judged(page: u64, heat: f64) -> Judged {
        Judged {
            pid: PID,
            page,
            huge: false,
            home: 1,
            heat,
            seen: 9,
        }
    }

    /// Believed of each side after intervals of 100 ms in which each of 1000 pages has so many samples a second.
    fn after(intervals: u64, told: f64, side: Side, rate: f64) -> Option<f64> {
        let (mut trial, mut random) = (Trial::default(), Random::new(1));
        let pages: Vec<_> = (0..1000).map(|page| (judged(page, told), side)).collect();
        for _ in 0..intervals {
            trial.set(&pages, 2.0, 1.0);
            trial.begin(100_000);
            for page in 0..1100 {
                trial.take(PID, page, f64::from(random.unit() < rate / 10.0));
            }
        }
        trial.believed(told, side, 2.0)
    }

    #[test]
    fn lucky_pages_are_believed_as_far_as_they_are_hot() {
        for side in [Side::Hot, Side::Cold] {
            assert_eq!(after(0, 2.0, side, 1.0), None, "nothing is known");
        }
        // Told twice as hot as they are: 100 samples an interval where 200 were expected.
        let lucky = after(10, 4.0, Side::Hot, 1.0).unwrap();
        assert!((1.8..2.2).contains(&lucky), "{lucky}");
        let hot = after(1, 2.0, Side::Hot, 1.0).unwrap();
        assert!((1.5..=2.0).contains(&hot), "{hot}");
        let more = after(1, 1.0, Side::Hot, 1.0).unwrap();
        assert!(more <= 1.0, "no more than told: {more}");
        assert_eq!(after(1, 0.1, Side::Hot, 1.0), None, "5 were expected");
        // Taken for unused.
        let cold = after(10, 0.0, Side::Cold, 0.5).unwrap();
        assert!((0.9..1.1).contains(&cold), "{cold}");
        assert!(after(1, 0.0, Side::Cold, 0.0).unwrap() < 0.05);
        assert_eq!(after(10, 3.0, Side::Cold, 0.5), Some(3.0));
    }

    #[test]
    fn each_octave_and_side_has_its_own() {
        let mut trial = Trial::default();
        trial.set(&[(judged(5, 8.0), Side::Hot)], 2.0, 1.0);
        trial.begin(100_000_000);
        trial.take(PID, 4, 1000.0);
        trial.take(PID, 5, 400.0);
        assert!(trial.believed(8.0, Side::Hot, 2.0).unwrap() > 7.0);
        assert_eq!(trial.believed(4.0, Side::Hot, 2.0), None);
        assert_eq!(trial.believed(8.0, Side::Cold, 2.0), None);
    }
}
