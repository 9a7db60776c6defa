//! `ocean`: a two-layer ocean basin under wind, by finite differences.
//!
//! The quasi-geostrophic model that SPLASH-2's Ocean simulates (Woo et al., 1995), with its use of
//! memory: some twenty-five square grids, each an allocation of its own, every thread on its own
//! band of rows of all of them, neighbours' rows read at the edges of bands. A time step computes
//! vorticities, their advection (Jacobians), friction and wind, then finds how the stream functions'
//! mean and difference change by multigrid. As in SPLASH-2's, each term has a grid of its own, and a
//! pass over all of a thread's rows finds it; both problems are solved on the same grids, beginning
//! with the last step's answer, by red-black Gauss-Seidel sweeps that go to a coarser grid where
//! they have become slow and come back when they have done enough there (Brandt, 1977).
//!
//! Each point has one writer in a phase and red points depend on black ones only, so that the bits
//! of the result do not depend on the number of threads. Nor does the number of sweeps: they end,
//! as Ocean's, where none changes by more than a tolerance, and a maximum has no order.

use crate::cli::{self, Args, Failure, Opt, Workload, WorkloadReport, usage};
use crate::floats::{Floats, load, store};
use crate::team::{Member, ThreadTeam};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Instant;

/// Least points along each side of the coarsest grid.
const COARSEST: usize = 3;
/// Sweeps end where no point changes by more: the default of SPLASH-2's Ocean. Most sweeps, should
/// rounding stand in the way.
const TOLERANCE: f64 = 1e-7;
const MOST_SWEEPS: usize = 10_000;
/// Where a sweep changes more than this part of what the one before it did, the coarser grid is
/// swept, until changes there are this part of the last one here: as in SPLASH-2's Ocean.
const SLOW: f64 = 0.6;
const ENOUGH: f64 = 0.3;
/// Dimensionless model constants: change of the Earth's rotation from coast to coast, how often
/// the layers' radius of deformation fits in between, viscosity, wind, and the step of time.
const BETA: f64 = 1.0;
const RADII: f64 = 16.0;
const VISCOSITY: f64 = 0.05;
const WIND: f64 = 1.0;
const TIME_STEP: f64 = 0.01;

/// The program.
pub const PROGRAM: Workload = Workload {
    name: "ocean",
    about: "A two-layer ocean by finite differences and multigrid, each thread on its own rows.",
    operand: None,
    options: &[
        cli::THREADS,
        Opt {
            name: "size",
            value: Some("N"),
            default: "512",
            help: "distances between points from coast to coast, a power of two from 8 to 16384",
        },
        Opt {
            name: "steps",
            value: Some("N"),
            default: "2",
            help: "steps of time that are measured, after a first one that is not",
        },
        cli::PIN,
        cli::NO_PIN,
    ],
    run,
};

fn run(args: &Args) -> Result<WorkloadReport, Failure> {
    let team = ThreadTeam::from_args(args)?;
    let size = args.number("size", 8..=1 << 14)? as usize;
    if !size.is_power_of_two() {
        return Err(usage(format!(
            "--size {size} is no power of two: the nearest is {}",
            size.next_power_of_two()
        )));
    }
    let steps = args.number("steps", 1..=1 << 24)?;
    let started = Instant::now();
    let ocean = Ocean::new(size - 1)?;
    ocean.write();
    let setup = started.elapsed().as_secs_f64();
    let results = team.run(|member| {
        // SPLASH-2's Ocean does not time its first step either, whose problems have no last answer.
        ocean.step(member);
        member.measure(|| (0..steps).map(|_| ocean.step(member)).sum::<usize>())
    })?;
    let checksum = ocean.layers.iter().fold(0, |sum, layer| {
        let sum = layer.stream.data.checksum(sum);
        layer.curvature.data.checksum(sum)
    });
    let title = format!(
        "ocean: {} threads, {side} x {side} points, {steps} steps",
        team.threads(),
        side = size + 1
    );
    Ok(WorkloadReport::new(title)
        .line("setup_seconds", format!("{setup:.6}"))
        .line("sweeps", results[0].0)
        .finish(results[0].1, checksum))
}

/// A square of `size` points within a coast of zeros.
struct Grid {
    size: usize,
    data: Floats,
}

impl Grid {
    fn new(size: usize) -> Result<Self, Failure> {
        let data = Floats::new((size + 2) * (size + 2))?;
        Ok(Self { size, data })
    }

    #[inline(always)]
    fn index(&self, row: usize, column: usize) -> usize {
        row * (self.size + 2) + column
    }

    /// The main thread writes it.
    fn write(&self, value: impl Fn(usize, usize) -> f64) {
        for index in 0..self.data.len() {
            self.data.set(index, 0.0);
        }
        for row in 1..=self.size {
            for column in 1..=self.size {
                self.data.set(self.index(row, column), value(row, column));
            }
        }
    }

    /// A row, coast included.
    #[inline(always)]
    fn row(&self, row: usize) -> &[AtomicU64] {
        self.data.slice(self.index(row, 0)..self.index(row + 1, 0))
    }

    /// A row within those above and below.
    #[inline(always)]
    fn rows(&self, row: usize) -> Rows<'_> {
        Rows {
            above: self.row(row - 1),
            here: self.row(row),
            below: self.row(row + 1),
        }
    }

    /// The thread's own rows.
    fn own(&self, member: &Member<'_>) -> impl Iterator<Item = usize> {
        member.part(self.size).map(|row| row + 1)
    }

    /// A pass over the thread's own rows: each point from the same point of other grids.
    #[inline(always)]
    fn points<const N: usize>(
        &self,
        member: &Member<'_>,
        from: [&Self; N],
        value: impl Fn([f64; N]) -> f64,
    ) {
        for row in self.own(member) {
            let (to, from) = (self.row(row), from.map(|grid| grid.row(row)));
            for at in 1..=self.size {
                store(&to[at], value(from.map(|from| load(&from[at]))));
            }
        }
    }

    /// A pass over the thread's own rows: the laplacian of another grid.
    fn laplacian(&self, member: &Member<'_>, from: &Self) {
        for row in self.own(member) {
            let (to, from) = (self.row(row), from.rows(row));
            for (at, to) in (1..=self.size).zip(&to[1..]) {
                store(to, from.laplacian(at));
            }
        }
    }

    /// A pass over the thread's own rows: how one quantity is carried along the other's lines.
    fn jacobian(&self, member: &Member<'_>, along: &Self, carried: &Self) {
        for row in self.own(member) {
            let (to, a, b) = (self.row(row), along.rows(row), carried.rows(row));
            for (at, to) in (1..=self.size).zip(&to[1..]) {
                let jacobian = a.along(at) * b.across(at) - a.across(at) * b.along(at);
                store(to, jacobian / 4.0);
            }
        }
    }
}

/// A row of a grid and its neighbours.
struct Rows<'a> {
    above: &'a [AtomicU64],
    here: &'a [AtomicU64],
    below: &'a [AtomicU64],
}

impl Rows<'_> {
    /// Sum of the four neighbours less four times the point itself.
    #[inline(always)]
    fn laplacian(&self, at: usize) -> f64 {
        load(&self.here[at - 1])
            + load(&self.here[at + 1])
            + load(&self.above[at])
            + load(&self.below[at])
            - 4.0 * load(&self.here[at])
    }

    #[inline(always)]
    fn along(&self, at: usize) -> f64 {
        load(&self.here[at + 1]) - load(&self.here[at - 1])
    }

    #[inline(always)]
    fn across(&self, at: usize) -> f64 {
        load(&self.below[at]) - load(&self.above[at])
    }
}

/// A problem "laplacian of q, less `pull` times q, is right" of multigrid; `residual` is what is
/// wrong with q.
struct Level {
    q: Grid,
    right: Grid,
    residual: Grid,
}

impl Level {
    /// A grid of problems and the same on ever coarser ones, whose points are twice as far apart.
    fn all(size: usize) -> Result<Vec<Self>, Failure> {
        let mut levels = vec![Self {
            q: Grid::new(size)?,
            right: Grid::new(size)?,
            residual: Grid::new(size)?,
        }];
        if size / 2 >= COARSEST {
            levels.extend(Self::all(size / 2)?);
        }
        Ok(levels)
    }
}

struct Layer {
    stream: Grid,
    /// The stream one step ago, and two.
    previous: Grid,
    older: Grid,
    /// Vorticity, of the Earth's rotation too; where it is carried.
    curvature: Grid,
    advection: Grid,
    /// Curvature two steps ago, and its own: friction.
    bent: Grid,
    friction: Grid,
}

impl Layer {
    fn new(size: usize) -> Result<Self, Failure> {
        Ok(Self {
            stream: Grid::new(size)?,
            previous: Grid::new(size)?,
            older: Grid::new(size)?,
            curvature: Grid::new(size)?,
            advection: Grid::new(size)?,
            bent: Grid::new(size)?,
            friction: Grid::new(size)?,
        })
    }

    fn grids(&self) -> [&Grid; 7] {
        [
            &self.stream,
            &self.previous,
            &self.older,
            &self.curvature,
            &self.advection,
            &self.bent,
            &self.friction,
        ]
    }
}

/// How the mean or the difference of both layers' streams changes, and did in the step before.
struct Change {
    now: Grid,
    last: Grid,
}

impl Change {
    fn new(size: usize) -> Result<Self, Failure> {
        Ok(Self {
            now: Grid::new(size)?,
            last: Grid::new(size)?,
        })
    }
}

struct Ocean {
    layers: [Layer; 2],
    /// Mean and difference of both layers' streams, then how each layer's stream changes.
    mean: Grid,
    difference: Grid,
    /// How the layers carry each other.
    between: Grid,
    wind: Grid,
    mean_change: Change,
    difference_change: Change,
    levels: Vec<Level>,
    beta: f64,
    coupling: f64,
    changes: Changes,
}

/// What changed most, of three sweeps in turns: positive floats order as their bits. Threads add
/// theirs to one before a barrier and read it after; the next one is cleared then, which
/// nobody has used since two sweeps.
#[derive(Default)]
struct Changes([AtomicU64; 3]);

impl Ocean {
    fn new(size: usize) -> Result<Self, Failure> {
        let length = (size + 1) as f64;
        let coupling = (RADII / length) * (RADII / length);
        Ok(Self {
            layers: [Layer::new(size)?, Layer::new(size)?],
            mean: Grid::new(size)?,
            difference: Grid::new(size)?,
            between: Grid::new(size)?,
            wind: Grid::new(size)?,
            mean_change: Change::new(size)?,
            difference_change: Change::new(size)?,
            levels: Level::all(size)?,
            beta: BETA / length,
            coupling,
            changes: Changes::default(),
        })
    }

    /// The main thread writes all grids: still water, a wind that turns from west to east and back.
    fn write(&self) {
        let layers = self.layers.iter().flat_map(Layer::grids);
        let levels = self.levels.iter();
        let levels = levels.flat_map(|level| [&level.q, &level.right, &level.residual]);
        let changes = [&self.mean_change, &self.difference_change];
        let changes = changes.map(|change| [&change.now, &change.last]);
        let others = [&self.mean, &self.difference, &self.between];
        let all = layers.chain(levels).chain(others);
        all.chain(changes.into_iter().flatten())
            .for_each(|grid| grid.write(|_, _| 0.0));
        let length = (self.wind.size + 1) as f64;
        self.wind.write(|row, _| {
            let y = row as f64 / length;
            WIND * (2.0 * y - 1.0) * y * (1.0 - y)
        });
    }

    /// One step of time; how many sweeps it took, those of coarser grids included.
    fn step(&self, member: &Member<'_>) -> usize {
        let [upper, lower] = &self.layers;
        for layer in &self.layers {
            layer.curvature.laplacian(member, &layer.stream);
            layer.older.points(member, [&layer.previous], |[at]| at);
            layer.previous.points(member, [&layer.stream], |[at]| at);
        }
        let streams = [&upper.stream, &lower.stream];
        (self.mean).points(member, streams, |[upper, lower]| (upper + lower) / 2.0);
        (self.difference).points(member, streams, |[upper, lower]| upper - lower);
        for layer in &self.layers {
            for row in layer.curvature.own(member) {
                let earth = self.beta * row as f64;
                let row = &layer.curvature.row(row)[1..=layer.curvature.size];
                row.iter().for_each(|at| store(at, load(at) + earth));
            }
        }
        member.sync_awake();
        for layer in &self.layers {
            (layer.advection).jacobian(member, &layer.stream, &layer.curvature);
            layer.bent.laplacian(member, &layer.older);
        }
        (self.between).jacobian(member, &self.difference, &self.mean);
        member.sync_awake();
        for layer in &self.layers {
            layer.friction.laplacian(member, &layer.bent);
        }
        self.forces(member);
        let sweeps = self.solve(&self.mean_change, 0.0, member)
            + self.solve(&self.difference_change, 2.0 * self.coupling, member);
        let changes = [&self.mean_change.now, &self.difference_change.now];
        (self.mean).points(member, changes, |[mean, other]| mean + other / 2.0);
        (self.difference).points(member, changes, |[mean, other]| mean - other / 2.0);
        for (layer, change) in self.layers.iter().zip([&self.mean, &self.difference]) {
            (layer.stream).points(member, [&layer.older, change], |[older, by]| older + by);
        }
        member.sync_awake();
        sweeps
    }

    /// How the vorticities' mean and difference change from two steps ago: the wind blows over the
    /// upper layer, and what carries one layer along the other counts for their difference alone.
    fn forces(&self, member: &Member<'_>) {
        let [upper, lower] = &self.layers;
        let terms = [
            &upper.advection,
            &lower.advection,
            &upper.friction,
            &lower.friction,
            &self.wind,
        ];
        (self.mean_change.now).points(member, terms, |[upper, lower, above, below, wind]| {
            TIME_STEP * (wind - upper - lower + VISCOSITY * (above + below))
        });
        let [a, b, c, d, e] = terms;
        let terms = [a, b, c, d, e, &self.between];
        (self.difference_change.now).points(
            member,
            terms,
            |[upper, lower, above, below, wind, between]| {
                let carried = upper - lower + 2.0 * self.coupling * between;
                2.0 * TIME_STEP * (wind - carried + VISCOSITY * (above - below))
            },
        );
    }

    /// From how a vorticity changes to how its stream does; how many sweeps it took.
    fn solve(&self, change: &Change, pull: f64, member: &Member<'_>) -> usize {
        let level = &self.levels[0];
        level.right.points(member, [&change.now], |[at]| at);
        level.q.points(member, [&change.last], |[at]| at);
        member.sync_awake();
        let sweeps = self.changes.solve(&self.levels, pull, member);
        change.now.points(member, [&level.q], |[at]| at);
        change.last.points(member, [&level.q], |[at]| at);
        member.sync_awake();
        sweeps
    }
}

impl Changes {
    /// Sweeps the grids until the finest meets the tolerance; how many times.
    fn solve(&self, levels: &[Level], pull: f64, member: &Member<'_>) -> usize {
        let mut enough = vec![TOLERANCE; levels.len()];
        let (mut at, mut before) = (0, f64::INFINITY);
        let mut sweeps = 0;
        while sweeps < MOST_SWEEPS {
            // Points are twice as far apart on each coarser grid: what pulls one weighs four times as much.
            let pull = pull * f64::from(1 << (2 * at));
            let changed = self.sweep(sweeps, &levels[at], pull, member);
            sweeps += 1;
            if changed < enough[at] {
                if at == 0 {
                    break;
                }
                at -= 1;
                correct(&levels[at], &levels[at + 1], member);
                before = f64::INFINITY;
            } else if changed >= SLOW * before && at + 1 < levels.len() {
                coarsen(&levels[at], &levels[at + 1], pull, member);
                at += 1;
                enough[at] = ENOUGH * changed;
                before = f64::INFINITY;
            } else {
                before = changed;
            }
        }
        // The next problem begins with the first.
        member.sync_awake();
        if member.id == 0 {
            self.0.iter().for_each(|changed| store(changed, 0.0));
        }
        member.sync_awake();
        sweeps
    }

    /// Red points, then black ones, as on a chess board; the most that one changed by.
    #[inline(never)]
    fn sweep(&self, number: usize, level: &Level, pull: f64, member: &Member<'_>) -> f64 {
        let share = 1.0 / (4.0 + pull);
        let largest = &self.0[number % 3];
        let mut changed = 0.0f64;
        for colour in 0..2 {
            for row in level.q.own(member) {
                let (q, right) = (level.q.rows(row), level.right.row(row));
                for at in (1 + (row + colour) % 2..=level.q.size).step_by(2) {
                    let here = load(&q.here[at]);
                    let wrong = q.laplacian(at) - pull * here - load(&right[at]);
                    store(&q.here[at], here + wrong * share);
                    changed = changed.max((wrong * share).abs());
                }
            }
            if colour == 1 {
                // Not before: only the barrier between the colours is after the clearing.
                largest.fetch_max(changed.to_bits(), Relaxed);
            }
            member.sync_awake();
        }
        if member.id == 0 {
            store(&self.0[(number + 1) % 3], 0.0);
        }
        load(largest)
    }
}

/// Makes what is still wrong on a grid the problem of the next coarser one.
fn coarsen(level: &Level, coarse: &Level, pull: f64, member: &Member<'_>) {
    for row in level.q.own(member) {
        let (q, right) = (level.q.rows(row), level.right.row(row));
        let residual = level.residual.row(row);
        for at in 1..=level.q.size {
            let wrong = load(&right[at]) - q.laplacian(at) + pull * load(&q.here[at]);
            store(&residual[at], wrong);
        }
    }
    member.sync_awake();
    // The mean of nine points by their nearness, times four: coarse points are twice as far apart.
    for row in coarse.q.own(member) {
        let fine = level.residual.rows(2 * row);
        let (q, right) = (coarse.q.row(row), coarse.right.row(row));
        let across = |row: &[AtomicU64], at: usize| {
            load(&row[at - 1]) + 2.0 * load(&row[at]) + load(&row[at + 1])
        };
        for at in 1..=coarse.q.size {
            let sides = across(fine.above, 2 * at) + across(fine.below, 2 * at);
            store(&right[at], (sides + 2.0 * across(fine.here, 2 * at)) / 4.0);
            store(&q[at], 0.0);
        }
    }
    member.sync_awake();
}

/// Adds a coarser grid's answer. A fine point is a coarse one or between two or four: their mean in
/// each case.
fn correct(level: &Level, coarse: &Level, member: &Member<'_>) {
    for row in level.q.own(member) {
        let (above, below) = (coarse.q.row(row / 2), coarse.q.row(row.div_ceil(2)));
        for (at, q) in (1..=level.q.size).zip(&level.q.row(row)[1..]) {
            let (left, right) = (at / 2, at.div_ceil(2));
            let upper = load(&above[left]) + load(&above[right]);
            let sum = upper + load(&below[left]) + load(&below[right]);
            store(q, load(q) + sum / 4.0);
        }
    }
    member.sync_awake();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sweeps_solve_the_problem() {
        let ocean = Ocean::new(31).unwrap();
        ocean.write();
        let (levels, pull) = (&ocean.levels, 2.0 * ocean.coupling);
        let level = &levels[0];
        level
            .right
            .write(|row, column| (row * 7 + column * 3) as f64 % 5.0 - 2.0);
        let words: Vec<String> = ["--threads", "2", "--no-pin"].map(str::to_owned).into();
        let team = ThreadTeam::from_args(&PROGRAM.parse(&words).unwrap().unwrap()).unwrap();
        let wrong = || {
            let mut largest = 0.0f64;
            for row in 1..=31 {
                for column in 1..=31 {
                    let right = load(&level.right.row(row)[column]);
                    let q = level.q.rows(row);
                    let wrong = right - q.laplacian(column) + pull * load(&q.here[column]);
                    largest = largest.max(wrong.abs());
                }
            }
            largest
        };
        assert_eq!(wrong(), 2.0);
        let sweeps = team
            .run(|member| ocean.changes.solve(levels, pull, member))
            .unwrap();
        assert!(sweeps[0] > 1 && sweeps[0] < 200, "{sweeps:?}");
        // Nothing is wrong with black points, and with red ones what four black ones changed by.
        assert!(wrong() < 4.0 * TOLERANCE, "{}", wrong());
    }
}
