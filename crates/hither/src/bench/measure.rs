//! Repetitions: methods alternate within one run, so that whatever disturbs the machine disturbs
//! them alike, and each repetition takes other bytes than the one before it.

use super::methods::{Failure, METHODS, Method, PageKind, Place, Request, Sample, timed};

/// Rounds whose samples are dropped: they fill caches, page lists and branch predictors.
const WARM_UP_ROUNDS: usize = 2;
/// A cell goes on that long even when it has its repetitions: small requests need many, in ns.
const LEAST_CELL_NS: u64 = 100_000_000;
/// Repetitions in a row without a result after which a method is given up.
const MOST_INCOMPLETE: u64 = 5;
/// Empty measurements for [`overhead`].
const EMPTY_COUNT: usize = 1001;

/// How long to measure.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Repetitions of each method that are wanted.
    pub repeat: usize,
    /// Time for this cell in ns: it ends then, with what it has.
    pub cell_ns: u64,
}

/// All methods with one page kind and one size.
#[derive(Clone, Debug)]
pub struct Cell {
    /// Of the pages.
    pub kind: PageKind,
    /// Of one request.
    pub bytes: usize,
    /// One per method, in the order of [`METHODS`].
    pub results: Vec<Result<Figures, String>>,
}

/// What the repetitions of one method came to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Figures {
    /// Repetitions that count.
    pub count: usize,
    /// Repetitions in which pages did not arrive; they do not count.
    pub incomplete_count: u64,
    /// Time per request in ns.
    pub median_ns: f64,
    /// The shortest, in ns.
    pub min_ns: f64,
    /// The longest, in ns.
    pub max_ns: f64,
    /// CPU time of all threads per byte, in ns, mean over the repetitions.
    pub cpu_ns_per_byte: Option<f64>,
}

impl Figures {
    /// Of samples of requests of one size; `None` without a sample.
    #[must_use]
    pub fn of(samples: &[Sample], bytes: usize, incomplete_count: u64) -> Option<Self> {
        let mut wall: Vec<u64> = samples.iter().map(|sample| sample.wall_ns).collect();
        wall.sort_unstable();
        let cpu: Option<u64> = samples.iter().map(|sample| sample.cpu_ns).sum();
        Some(Self {
            count: wall.len(),
            incomplete_count,
            median_ns: median(&wall)?,
            min_ns: *wall.first()? as f64,
            max_ns: *wall.last()? as f64,
            cpu_ns_per_byte: cpu.map(|ns| ns as f64 / (wall.len() * bytes) as f64),
        })
    }

    /// Bytes per ns, that is 10^9 bytes per second, at the median.
    #[must_use]
    pub fn throughput_gbs(&self, bytes: usize) -> f64 {
        bytes as f64 / self.median_ns.max(1.0)
    }
}

impl Cell {
    /// Throughput of the fastest bare copy, in GB/s: no move can be faster.
    #[must_use]
    pub fn copy_gbs(&self) -> Option<f64> {
        let copies = METHODS.iter().zip(&self.results);
        copies
            .filter(|(method, _)| method.role == super::methods::Role::Copy)
            .filter_map(|(_, result)| Some(result.as_ref().ok()?.throughput_gbs(self.bytes)))
            .reduce(f64::max)
    }

    /// How much slower than the bare copy, in percent: -60 is two and a half times slower.
    #[must_use]
    pub fn copy_distance_percent(&self, figures: &Figures) -> Option<f64> {
        let copy = self.copy_gbs()?;
        Some(100.0 * (figures.throughput_gbs(self.bytes) / copy - 1.0))
    }
}

/// What an empty measurement takes, in ns: median wall time and CPU time. It is taken off every
/// sample.
#[must_use]
pub fn overhead() -> (u64, u64) {
    let samples: Vec<Sample> = (0..EMPTY_COUNT)
        .filter_map(|_| timed(|| Ok(())).ok())
        .collect();
    let middle = |ns: &dyn Fn(&Sample) -> u64| {
        let mut all: Vec<u64> = samples.iter().map(ns).collect();
        all.sort_unstable();
        median(&all).unwrap_or(0.0) as u64
    };
    (
        middle(&|sample| sample.wall_ns),
        middle(&|sample| sample.cpu_ns.unwrap_or(0)),
    )
}

/// A cell in which nothing can be measured, for one reason.
#[must_use]
pub fn without(kind: PageKind, bytes: usize, why: &str) -> Cell {
    Cell {
        kind,
        bytes,
        results: METHODS.iter().map(|_| Err(why.to_owned())).collect(),
    }
}

/// Measures all methods at one size. `now_ns` is a clock; `tell` hears of every round.
pub fn cell(
    place: &mut Place,
    bytes: usize,
    limits: Limits,
    overhead: (u64, u64),
    now_ns: &dyn Fn() -> u64,
    tell: &mut dyn FnMut(usize),
) -> Cell {
    let mut runs: Vec<Run> = METHODS
        .iter()
        .map(|method| Run::new(method, place))
        .collect();
    let slots = (place.bytes() / bytes).max(1);
    let start_ns = now_ns();
    let mut slot = 0;
    for round in 0.. {
        for index in 0..runs.len() {
            // Each round begins with another method: nobody is always behind the same one.
            let run = &mut runs[(round + index) % METHODS.len()];
            if run.broken.is_none() {
                let offset = slot % slots * bytes;
                slot += 1;
                run.once(place, Request { offset, bytes }, overhead);
            }
        }
        if round + 1 == WARM_UP_ROUNDS {
            runs.iter_mut().for_each(|run| run.samples.clear());
            continue;
        }
        if round < WARM_UP_ROUNDS {
            continue;
        }
        let count = round + 1 - WARM_UP_ROUNDS;
        tell(count);
        let passed_ns = now_ns() - start_ns;
        let is_enough = count >= limits.repeat && passed_ns >= LEAST_CELL_NS.min(limits.cell_ns);
        let is_over = passed_ns >= limits.cell_ns;
        if is_enough || is_over || runs.iter().all(|run| run.broken.is_some()) {
            break;
        }
    }
    Cell {
        kind: place.kind,
        bytes,
        results: runs.into_iter().map(|run| run.finish(bytes)).collect(),
    }
}

/// One method's samples.
struct Run {
    method: &'static Method,
    samples: Vec<Sample>,
    incomplete_count: u64,
    incomplete_in_a_row: u64,
    broken: Option<String>,
}

impl Run {
    fn new(method: &'static Method, place: &Place) -> Self {
        Self {
            method,
            samples: Vec::new(),
            incomplete_count: 0,
            incomplete_in_a_row: 0,
            broken: (method.check)(place).err(),
        }
    }

    fn once(&mut self, place: &mut Place, request: Request, overhead: (u64, u64)) {
        match (self.method.run)(place, request) {
            Ok(sample) => {
                self.incomplete_in_a_row = 0;
                self.samples.push(Sample {
                    wall_ns: sample.wall_ns.saturating_sub(overhead.0).max(1),
                    cpu_ns: sample.cpu_ns.map(|ns| ns.saturating_sub(overhead.1)),
                });
            }
            Err(Failure::Incomplete) => {
                self.incomplete_count += 1;
                self.incomplete_in_a_row += 1;
                if self.incomplete_in_a_row >= MOST_INCOMPLETE {
                    self.broken = Some("some pages never arrive".to_owned());
                }
            }
            Err(Failure::Broken(why)) => self.broken = Some(why),
        }
    }

    fn finish(self, bytes: usize) -> Result<Figures, String> {
        match self.broken {
            Some(why) => Err(why),
            None => Figures::of(&self.samples, bytes, self.incomplete_count)
                .ok_or_else(|| "the time was up before its first repetition".to_owned()),
        }
    }
}

/// Of ascending values.
fn median(sorted: &[u64]) -> Option<f64> {
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => None,
        count if count % 2 == 1 => Some(sorted[middle] as f64),
        _ => Some(f64::midpoint(
            sorted[middle - 1] as f64,
            sorted[middle] as f64,
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hither_linux::root::Root;
    use hither_linux::topology::Topology;
    use std::cell::Cell as Counter;

    fn samples(wall: &[u64], cpu_ns: Option<u64>) -> Vec<Sample> {
        let sample = |&wall_ns: &u64| Sample { wall_ns, cpu_ns };
        wall.iter().map(sample).collect()
    }

    #[test]
    fn figures_are_of_all_samples() {
        let figures = Figures::of(&samples(&[4000, 1000, 2000, 3000], Some(8192)), 4096, 7);
        let figures = figures.unwrap();
        assert_eq!((figures.count, figures.incomplete_count), (4, 7));
        assert_eq!(
            (figures.median_ns, figures.min_ns, figures.max_ns),
            (2500.0, 1000.0, 4000.0)
        );
        // 4 x 8192 ns over 4 x 4096 bytes.
        assert_eq!(figures.cpu_ns_per_byte, Some(2.0));
        assert_eq!(figures.throughput_gbs(5000), 2.0);
        assert_eq!(Figures::of(&[], 4096, 0), None);
        let other = Figures::of(&samples(&[5], None), 4096, 0).unwrap();
        assert_eq!((other.median_ns, other.cpu_ns_per_byte), (5.0, None));
    }

    #[test]
    fn the_distance_is_to_the_faster_copy() {
        let figures = |ns| Figures::of(&samples(&[ns], None), 4000, 0).ok_or_else(String::new);
        let cell = Cell {
            kind: PageKind::Small,
            bytes: 4000,
            // In the order of METHODS: move_pages, mbind, migspeed, memcpy, memcpy-nt, engine.
            results: vec![
                figures(4000),
                Err("x".into()),
                Err("y".into()),
                figures(1000),
                figures(500),
                Err("z".into()),
            ],
        };
        assert_eq!(cell.results.len(), METHODS.len());
        assert_eq!(cell.copy_gbs(), Some(8.0));
        let distance = |index: usize| {
            let figures: &Result<Figures, String> = &cell.results[index];
            cell.copy_distance_percent(figures.as_ref().unwrap())
                .unwrap()
        };
        assert_eq!((distance(0), distance(3), distance(4)), (-87.5, -50.0, 0.0));
        assert_eq!(without(PageKind::Huge, 4096, "no").copy_gbs(), None);
    }

    #[test]
    fn a_cell_has_its_repetitions_or_ends_in_time() {
        let node = Topology::read(&Root::host())
            .unwrap()
            .memory_nodes()
            .first()
            .unwrap();
        let mut place = Place::new(PageKind::Small, 2 << 20, node, node).unwrap();
        // A clock of our own: 30 ms per look.
        let measure = |place: &mut Place, repeat, cell_ns| {
            let clock = Counter::new(0);
            let now_ns = || clock.replace(clock.get() + 30_000_000);
            let mut told = 0;
            let limits = Limits { repeat, cell_ns };
            let cell = cell(place, 65_536, limits, (0, 0), &now_ns, &mut |count| {
                told = count
            });
            let copies = cell
                .results
                .iter()
                .filter_map(|result| result.as_ref().ok());
            let counts: Vec<usize> = copies.map(|figures| figures.count).collect();
            assert!(
                counts.iter().all(|&count| count == told),
                "{counts:?}, {told}"
            );
            assert_eq!(counts.len(), 2, "both copies");
            told
        };
        assert_eq!(measure(&mut place, 30, u64::MAX), 30);
        // At least 100 ms: four looks.
        assert_eq!(measure(&mut place, 1, u64::MAX), 4);
        // 300 ms are over at the tenth look.
        assert_eq!(measure(&mut place, 1000, 300_000_000), 10);
        assert!(place.is_whole());
    }

    #[test]
    fn medians() {
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[3]), Some(3.0));
        assert_eq!(median(&[1, 2, 10]), Some(2.0));
        assert_eq!(median(&[1, 2, 4, 10]), Some(3.0));
    }
}
