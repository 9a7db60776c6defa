//! A program with planted regions, the samples of it, and how much of it was found again.
//!
//! Each thread visits one region after another, in turns or at random, each for its own time, and touches
//! its pages at random. Samples are what is left of that: one touch at a time, at gaps that scatter by a
//! quarter around their mean or as chance has them. The bench includes this file, so that it has no
//! imports of its own but what its parent has.

use super::{Forming, Hint, Kind, Program, SpaceId, Touch};
use std::collections::{BTreeMap, HashMap};

/// A small seeded source of chance (SplitMix64).
pub struct Random(pub u64);

impl Random {
    /// The next 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let bits = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^ (bits >> 31)
    }

    /// In 0..1.
    pub fn unit(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Below a number.
    pub fn below(&mut self, end: usize) -> usize {
        ((u128::from(self.next_u64()) * end as u128) >> 64) as usize
    }

    /// Between two, evenly by factors.
    pub fn between(&mut self, least: f64, most: f64) -> f64 {
        least * (most / least).powf(self.unit())
    }
}

/// In which order regions are visited.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Order {
    /// One after the other, always the same.
    Turns,
    /// Any other one.
    Random,
}

/// What a plan gives at least to find it by.
#[derive(Clone, Copy, Debug)]
pub struct Least {
    /// Samples of a visit.
    pub visit_samples: f64,
    /// Samples of a page in 2 s.
    pub page_samples: f64,
    /// Visits to a region in 2 s.
    pub visits: f64,
}

/// What a program does, and how it is sampled.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Pages of each region.
    pub regions: Vec<Vec<u64>>,
    /// Pages that are touched from everywhere, and the share of touches.
    pub globals: Vec<u64>,
    pub global_share: f64,
    pub order: Order,
    /// Mean length of visits, of one region the least and of one the most.
    pub visit_ns: [f64; 2],
    /// Do visits to a region all take the same time? Else they scatter by half.
    pub visits_are_even: bool,
    /// Mean time between two samples of a thread.
    pub gap_ns: f64,
    /// Do gaps scatter as chance has them? Else by a quarter.
    pub gaps_are_random: bool,
    pub threads: i32,
}

impl Plan {
    /// A plan drawn from a seed, such that a visit has so many samples or more, and in 2 s every page so many
    /// and every region so many visits. Rates are 1,000 to 20,000 samples a second over
    /// all threads, visits 0.2 to 20 ms, regions 2 to 16 of 8 to 4096 pages.
    pub fn drawn(random: &mut Random, least: Least) -> Self {
        loop {
            let count = 2 + random.below(15);
            let threads = 1 + random.below(3);
            let rate = random.between(1e3, 20e3);
            let most_pages = random.between(8.0, 4096.0);
            let size = |_| random.between(8.0, most_pages) as usize;
            let sizes: Vec<usize> = (0..count).map(size).collect();
            let gap_ns = threads as f64 * 1e9 / rate;
            let shortest_ns = (least.visit_samples * gap_ns).max(0.2e6);
            let least_ns = random.between(shortest_ns, shortest_ns.max(20e6));
            let most_ns = (least_ns * (1.0 + 4.0 * random.unit())).min(20e6);
            let mean_ns = (least_ns + most_ns) / 2.0;
            let fewest = 2.0 * rate / count as f64 * least_ns / mean_ns;
            let visits = 2e9 * threads as f64 / (mean_ns * count as f64);
            let has_enough = sizes
                .iter()
                .all(|&size| fewest / size as f64 >= least.page_samples);
            if least_ns > 20e6 || !has_enough || visits < least.visits {
                continue;
            }
            let stripe = [0, 0, 1, 4, 16, 64][random.below(6)];
            let has_globals = random.below(3) == 0;
            return Self {
                regions: laid_out(&sizes, stripe),
                globals: if has_globals {
                    vec![0x1000, 0x1001]
                } else {
                    Vec::new()
                },
                global_share: if has_globals {
                    0.05 + 0.1 * random.unit()
                } else {
                    0.0
                },
                order: if random.below(2) == 0 {
                    Order::Turns
                } else {
                    Order::Random
                },
                visit_ns: [least_ns, most_ns],
                visits_are_even: random.below(2) == 0,
                gap_ns,
                gaps_are_random: random.below(2) == 0,
                threads: threads as i32,
            };
        }
    }

    /// The pages of all regions among regions of the same sizes, drawn anew.
    pub fn shuffled(&self, random: &mut Random) -> Self {
        let mut pages: Vec<u64> = self.regions.iter().flatten().copied().collect();
        for at in (1..pages.len()).rev() {
            pages.swap(at, random.below(at + 1));
        }
        let mut rest = pages.as_slice();
        let mut new = self.clone();
        for region in &mut new.regions {
            let (pages, left) = rest.split_at(region.len());
            *region = pages.to_vec();
            rest = left;
        }
        new
    }
}

/// Pages of regions of these sizes: one after the other, or in turns by so many pages.
pub fn laid_out(sizes: &[usize], stripe: usize) -> Vec<Vec<u64>> {
    let mut regions = vec![Vec::new(); sizes.len()];
    let mut next = 0x7f00_0000;
    while regions
        .iter()
        .zip(sizes)
        .any(|(pages, &size)| pages.len() < size)
    {
        for (pages, &size) in regions.iter_mut().zip(sizes) {
            let left = size - pages.len();
            let count = if stripe == 0 { left } else { left.min(stripe) };
            pages.extend(next..next + count as u64);
            next += count as u64;
        }
    }
    regions
}

/// A thread of the program.
struct Walker {
    sample_ns: f64,
    visit_end_ns: f64,
    region: usize,
    visit_ns: Vec<f64>,
}

/// A program that runs, is sampled, and whose regions are formed.
pub struct Run {
    pub plan: Plan,
    pub forming: Forming,
    random: Random,
    walkers: Vec<Walker>,
    now_ns: u64,
    /// Samples of each page since [`Run::forget_counts`].
    counts: HashMap<u64, u32>,
    pub sample_count: u64,
}

impl Run {
    pub fn new(plan: Plan, forming: Forming, seed: u64) -> Self {
        let mut random = Random(seed);
        let [least_ns, most_ns] = plan.visit_ns;
        let mut walker = |_| Walker {
            sample_ns: 0.0,
            visit_end_ns: 0.0,
            region: 0,
            visit_ns: plan
                .regions
                .iter()
                .map(|_| random.between(least_ns, most_ns))
                .collect(),
        };
        let walkers = (0..plan.threads).map(&mut walker).collect();
        Self {
            plan,
            forming,
            random,
            walkers,
            now_ns: 0,
            counts: HashMap::new(),
            sample_count: 0,
        }
    }

    /// The samples of the time until then.
    pub fn samples(&mut self, until_ns: u64) -> Vec<Touch> {
        let mut touches = Vec::new();
        for thread in 0..self.walkers.len() {
            while self.walkers[thread].sample_ns < until_ns as f64 {
                touches.push(self.sample(thread));
            }
        }
        touches.sort_by_key(|touch| touch.time_ns);
        for touch in &touches {
            *self.counts.entry(touch.page).or_default() += 1;
        }
        self.sample_count += touches.len() as u64;
        touches
    }

    fn sample(&mut self, thread: usize) -> Touch {
        let (plan, random, walker) = (&self.plan, &mut self.random, &mut self.walkers[thread]);
        let count = plan.regions.len();
        while walker.visit_end_ns <= walker.sample_ns {
            walker.region = match plan.order {
                _ if count == 1 => 0,
                Order::Turns => (walker.region + 1) % count,
                Order::Random => (walker.region + 1 + random.below(count - 1)) % count,
            };
            let scatter = if plan.visits_are_even {
                1.0
            } else {
                0.5 + random.unit()
            };
            walker.visit_end_ns += scatter * walker.visit_ns[walker.region];
        }
        let pages = match random.unit() < plan.global_share {
            true => &plan.globals,
            false => &plan.regions[walker.region],
        };
        let touch = Touch {
            time_ns: walker.sample_ns as u64,
            space: SpaceId(1),
            thread: Some(thread as i32),
            page: pages[random.below(pages.len())],
            hint: Hint::None,
        };
        walker.sample_ns += plan.gap_ns
            * match plan.gaps_are_random {
                true => -(1.0 - random.unit()).ln(),
                false => 0.75 + 0.5 * random.unit(),
            };
        touch
    }

    /// Runs for so many turns.
    pub fn turns(&mut self, count: u64) {
        for _ in 0..count {
            self.now_ns += super::TURN_NS;
            for touch in self.samples(self.now_ns) {
                self.forming.touch(&touch);
            }
            self.forming.turn(self.now_ns, 0);
        }
    }

    /// Runs on without a turn, for so much of one.
    pub fn part_of_a_turn(&mut self, part: f64) {
        let until_ns = self.now_ns + (part * super::TURN_NS as f64) as u64;
        for touch in self.samples(until_ns) {
            self.forming.touch(&touch);
        }
    }

    /// Forgets which pages were sampled.
    pub fn forget_counts(&mut self) {
        self.counts.clear();
    }

    /// The program as it is told.
    pub fn program(&self) -> Program {
        self.forming
            .programs()
            .into_iter()
            .next()
            .expect("it was sampled")
    }

    /// Regions that were formed.
    pub fn formed(&self) -> usize {
        self.program()
            .regions
            .iter()
            .filter(|region| region.name.is_some())
            .count()
    }

    /// How much of the plan was found, of pages with three samples or more.
    pub fn score(&self) -> Score {
        let mut region_of: HashMap<u64, usize> = HashMap::new();
        for (at, region) in self.program().regions.iter().enumerate() {
            if !matches!(region.kind, Kind::Seed | Kind::Global) {
                let pages = region.pages.iter().flat_map(Clone::clone);
                region_of.extend(pages.map(|page| (page, at)));
            }
        }
        let mut score = Score {
            recovered: 1.0,
            pure: 1.0,
            covered: 1.0,
        };
        let mut planted_in: BTreeMap<usize, BTreeMap<usize, usize>> = BTreeMap::new();
        for (planted, pages) in self.plan.regions.iter().enumerate() {
            let was_seen = |page: &&u64| self.counts.get(page).is_some_and(|&count| count >= 3);
            let seen: Vec<u64> = pages.iter().filter(was_seen).copied().collect();
            let mut parts: BTreeMap<usize, usize> = BTreeMap::new();
            for region in seen.iter().filter_map(|page| region_of.get(page)) {
                *parts.entry(*region).or_default() += 1;
                *planted_in
                    .entry(*region)
                    .or_default()
                    .entry(planted)
                    .or_default() += 1;
            }
            let most = parts.values().max().copied().unwrap_or(0);
            score.recovered = score.recovered.min(most as f64 / seen.len().max(1) as f64);
            score.covered = score.covered.min(seen.len() as f64 / pages.len() as f64);
        }
        for parts in planted_in.values() {
            let (most, all) = (
                parts.values().max().unwrap_or(&0),
                parts.values().sum::<usize>(),
            );
            score.pure = score.pure.min(*most as f64 / all as f64);
        }
        score
    }
}

/// The worst of all regions.
#[derive(Clone, Copy, Debug)]
pub struct Score {
    /// Share of a planted region's pages that are in one formed region.
    pub recovered: f64,
    /// Share of a formed region's pages that are of one planted region.
    pub pure: f64,
    /// Share of a planted region's pages that were sampled often enough to count.
    pub covered: f64,
}

impl Score {
    /// Is it what the issue asks for?
    pub fn is_good(self) -> bool {
        self.recovered >= 0.95 && self.pure >= 0.95
    }
}
