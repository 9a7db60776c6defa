//! Multigrid: V-cycles for a Poisson equation on a periodic grid of three dimensions.
//!
//! A round is a V-cycle: on each grid but the coarsest a smoothing step, the residual, which is restricted to
//! the next coarser grid by NPB's weights of 27 points, the coarser correction added by
//! trilinear interpolation, and another residual and smoothing step. Operator and smoother have
//! seven points; NPB's operator of 27 needs more operations per byte than the paper's ratio says.
//!
//! **Work** for n points of a grid. Residual: 9 n operations, 24 n bytes read (solution,
//! right-hand side, residual fetched), 8 n written. Smoothing: 9 n, 16 n read, 8 n written; from zero 8 n and
//! the same bytes. Restriction: 24 operations for each coarse point, 8 n bytes read and, per coarse
//! point, 8 fetched and 8 written. Interpolation: 23 per coarse point, 8 n bytes read and, per coarse
//! point, 8; 8 n written. The finest grid has three residuals and two smoothing steps, coarser ones two
//! residuals and two smoothing steps, the first of them from zero; the coarsest has this one alone.

#![expect(
    clippy::needless_range_loop,
    reason = "indices name places of several arrays at once"
)]

use super::grid::{Grid, after, before};
use super::real::Real;
use super::table::Work;
use super::{Kernel, Words};
use crate::cli::Failure;
use crate::memory::FirstNode;
use crate::random::mix;
use crate::team::Member;
use std::sync::atomic::AtomicU64;

/// Grids.
const LEVELS: usize = 4;
/// Points of the right-hand side that are not zero: as many of 1 as of -1.
const CHARGES: usize = 20;
/// The operator: the point itself and its neighbours.
const OPERATOR: [f64; 2] = [-3.0, 0.5];
/// The smoother, likewise.
const SMOOTHER: [f64; 2] = [-0.25, -0.01];

/// The kernel.
pub struct Mg {
    words: Words,
    levels: Vec<Level>,
}

/// A grid and where its three arrays begin.
#[derive(Clone, Copy)]
struct Level {
    grid: Grid,
    first: usize,
}

/// The arrays of a grid.
#[derive(Clone, Copy)]
struct Arrays<'a> {
    grid: Grid,
    solution: &'a [AtomicU64],
    right: &'a [AtomicU64],
    residual: &'a [AtomicU64],
}

impl Kernel for Mg {
    const NAME: &'static str = "mg";

    fn new(bytes: usize, _: usize, start: FirstNode) -> Result<Self, Failure> {
        // Three arrays, and an eighth of them for each coarser grid.
        let points: f64 = (0..LEVELS as i32).map(|level| 8f64.powi(-level)).sum();
        let points = bytes as f64 / 24.0 / points;
        let finest = Grid::of(points as usize, 1 << (LEVELS - 1));
        let mut levels = Vec::new();
        let mut first = 0;
        for level in 0..LEVELS {
            let grid = Grid {
                x: finest.x >> level,
                y: finest.y >> level,
                z: finest.z >> level,
            };
            levels.push(Level { grid, first });
            first += 3 * grid.points();
        }
        Ok(Self {
            words: Words::new(first, start)?,
            levels,
        })
    }

    fn words(&self) -> &Words {
        &self.words
    }

    fn write(&self) {
        self.words.fill(|_| 0);
        let right = self.arrays(0).right;
        for charge in 0..CHARGES {
            let sign = if charge % 2 == 0 { 1.0 } else { -1.0 };
            let at = mix(charge as u64) as usize % right.len();
            // Two at one place are still as many of either sign.
            (f64::load(&right[at]) + sign).store(&right[at]);
        }
    }

    fn round_work(&self) -> Work {
        let mut work = Work::default();
        for (number, level) in self.levels.iter().enumerate() {
            let points = level.grid.points() as u64;
            let coarse = points / 8;
            // Residuals, smoothing steps, of these from zero, transfers.
            let [residuals, smoothings, from_zero, transfers] = match number {
                0 => [3, 2, 0, 1],
                _ if number + 1 == LEVELS => [0, 1, 1, 0],
                _ => [2, 2, 1, 1],
            };
            work.flops += 9 * points * (residuals + smoothings) - from_zero * points
                + transfers * coarse * (24 + 23);
            work.read_bytes += 24 * points * residuals
                + 16 * points * smoothings
                + transfers * (16 * points + 16 * coarse);
            work.write_bytes +=
                8 * points * (residuals + smoothings) + transfers * (8 * points + 8 * coarse);
        }
        work
    }

    fn round<R: Real>(&self, member: &Member<'_>, _: u64) {
        let finest = self.arrays(0);
        each(member, finest.grid, |z, y, rows| {
            residual::<R>(finest, z, y, rows)
        });
        each(member, finest.grid, |z, y, rows| {
            smooth::<R>(
                finest.grid,
                finest.residual,
                finest.solution,
                false,
                z,
                y,
                rows,
            );
        });
        for level in 0..LEVELS - 1 {
            let (fine, coarse) = (self.arrays(level), self.arrays(level + 1));
            each(member, fine.grid, |z, y, rows| {
                residual::<R>(fine, z, y, rows)
            });
            each(member, coarse.grid, |z, y, rows| {
                restrict::<R>(fine.grid, fine.residual, coarse, z, y, rows);
            });
            each(member, coarse.grid, |z, y, rows| {
                smooth::<R>(coarse.grid, coarse.right, coarse.solution, true, z, y, rows);
            });
        }
        for level in (0..LEVELS - 1).rev() {
            let (fine, coarse) = (self.arrays(level), self.arrays(level + 1));
            each(member, coarse.grid, |z, y, rows| {
                interpolate::<R>(coarse, fine, z, y, rows);
            });
            each(member, fine.grid, |z, y, rows| {
                residual::<R>(fine, z, y, rows)
            });
            each(member, fine.grid, |z, y, rows| {
                smooth::<R>(fine.grid, fine.residual, fine.solution, false, z, y, rows);
            });
        }
    }
}

impl Mg {
    fn arrays(&self, level: usize) -> Arrays<'_> {
        let Level { grid, first } = self.levels[level];
        let points = grid.points();
        let words = &self.words.all()[first..];
        Arrays {
            grid,
            solution: &words[..points],
            right: &words[points..2 * points],
            residual: &words[2 * points..3 * points],
        }
    }
}

/// Calls `body` for each row of x of the thread's planes, with room for rows, and waits for all.
fn each<R: Real>(
    member: &Member<'_>,
    grid: Grid,
    mut body: impl FnMut(usize, usize, &mut Rows<R>),
) {
    let zeros = || vec![R::of(0.0); grid.x + 1];
    let mut rows = [zeros(), zeros(), zeros()];
    for z in member.part(grid.z) {
        for y in 0..grid.y {
            body(z, y, &mut rows);
        }
    }
    member.sync_awake();
}

/// Sums along a row that are used more than once. They have one element more than the row.
type Rows<R> = [Vec<R>; 3];

fn row(array: &[AtomicU64], grid: Grid, z: usize, y: usize) -> &[AtomicU64] {
    let first = grid.at(z, y, 0);
    &array[first..first + grid.x]
}

/// The rows above, below and to both sides of a row.
fn around(array: &[AtomicU64], grid: Grid, z: usize, y: usize) -> [&[AtomicU64]; 4] {
    [
        row(array, grid, z, before(y, grid.y)),
        row(array, grid, z, after(y, grid.y)),
        row(array, grid, before(z, grid.z), y),
        row(array, grid, after(z, grid.z), y),
    ]
}

/// `weights[0]` times an element and `weights[1]` times its six neighbours' sum: 8 operations.
#[inline(always)]
fn seven<R: Real>(own: &[AtomicU64], around: &[&[AtomicU64]; 4], weights: [f64; 2], x: usize) -> R {
    let len = own.len();
    let sum = R::load(&own[before(x, len)])
        + R::load(&own[after(x, len)])
        + (R::load(&around[0][x]) + R::load(&around[1][x]))
        + (R::load(&around[2][x]) + R::load(&around[3][x]));
    R::of(weights[0]) * R::load(&own[x]) + R::of(weights[1]) * sum
}

#[inline(never)]
fn residual<R: Real>(arrays: Arrays<'_>, z: usize, y: usize, _: &mut Rows<R>) {
    let grid = arrays.grid;
    let own = row(arrays.solution, grid, z, y);
    let around = around(arrays.solution, grid, z, y);
    let right = row(arrays.right, grid, z, y);
    let residual = row(arrays.residual, grid, z, y);
    for x in 0..grid.x {
        let difference = R::load(&right[x]) - seven::<R>(own, &around, OPERATOR, x);
        difference.store(&residual[x]);
    }
}

#[inline(never)]
fn smooth<R: Real>(
    grid: Grid,
    residual: &[AtomicU64],
    solution: &[AtomicU64],
    from_zero: bool,
    z: usize,
    y: usize,
    _: &mut Rows<R>,
) {
    let own = row(residual, grid, z, y);
    let around = around(residual, grid, z, y);
    let solution = row(solution, grid, z, y);
    if from_zero {
        for x in 0..grid.x {
            seven::<R>(own, &around, SMOOTHER, x).store(&solution[x]);
        }
        return;
    }
    for x in 0..grid.x {
        let sum = R::load(&solution[x]) + seven::<R>(own, &around, SMOOTHER, x);
        sum.store(&solution[x]);
    }
}

/// A row of the coarse right-hand side from the fine residual: weights 1/2, 1/4, 1/8 and 1/16 for the point
/// and its neighbours by faces, edges and corners.
#[inline(never)]
fn restrict<R: Real>(
    fine: Grid,
    residual: &[AtomicU64],
    coarse: Arrays<'_>,
    z: usize,
    y: usize,
    rows: &mut Rows<R>,
) {
    let (z_fine, y_fine) = (2 * z, 2 * y);
    let own = row(residual, fine, z_fine, y_fine);
    let faces = around(residual, fine, z_fine, y_fine);
    let (z_before, z_after) = (before(z_fine, fine.z), after(z_fine, fine.z));
    let (y_before, y_after) = (before(y_fine, fine.y), after(y_fine, fine.y));
    let edges = [
        row(residual, fine, z_before, y_before),
        row(residual, fine, z_before, y_after),
        row(residual, fine, z_after, y_before),
        row(residual, fine, z_after, y_after),
    ];
    let four = |rows: &[&[AtomicU64]; 4], x: usize| {
        R::load(&rows[0][x]) + R::load(&rows[1][x]) + (R::load(&rows[2][x]) + R::load(&rows[3][x]))
    };
    let right = row(coarse.right, coarse.grid, z, y);
    let [odd_faces, odd_edges, _] = rows;
    for at in 0..coarse.grid.x {
        odd_faces[at] = four(&faces, 2 * at + 1);
        odd_edges[at] = four(&edges, 2 * at + 1);
    }
    for at in 0..coarse.grid.x {
        let (x, left) = (2 * at, before(at, coarse.grid.x));
        let sides = R::load(&own[2 * left + 1]) + R::load(&own[x + 1]);
        let sum = R::of(0.5) * R::load(&own[x])
            + R::of(0.25) * (sides + four(&faces, x))
            + R::of(0.125) * (odd_faces[left] + odd_faces[at] + four(&edges, x))
            + R::of(0.0625) * (odd_edges[left] + odd_edges[at]);
        sum.store(&right[at]);
    }
}

/// Adds a row of the coarse solution to four rows of the fine one.
#[inline(never)]
fn interpolate<R: Real>(
    coarse: Arrays<'_>,
    fine: Arrays<'_>,
    z: usize,
    y: usize,
    rows: &mut Rows<R>,
) {
    let grid = coarse.grid;
    let (z_after, y_after) = (after(z, grid.z), after(y, grid.y));
    let own = row(coarse.solution, grid, z, y);
    let beside = row(coarse.solution, grid, z, y_after);
    let above = row(coarse.solution, grid, z_after, y);
    let across = row(coarse.solution, grid, z_after, y_after);
    let len = grid.x;
    let [two_y, two_z, all] = rows;
    for x in 0..len {
        let own = R::load(&own[x]);
        let above = R::load(&above[x]);
        two_y[x] = R::load(&beside[x]) + own;
        two_z[x] = above + own;
        all[x] = R::load(&across[x]) + above + two_y[x];
    }
    for row in [&mut *two_y, two_z, all] {
        row[len] = row[0];
    }
    let fine_row = |dz: usize, dy: usize| row(fine.solution, fine.grid, 2 * z + dz, 2 * y + dy);
    let (first, second, third, fourth) = (
        fine_row(0, 0),
        fine_row(0, 1),
        fine_row(1, 0),
        fine_row(1, 1),
    );
    for x in 0..len {
        let here = R::load(&own[x]);
        let next = R::load(&own[after(x, len)]);
        add(&first[2 * x], here);
        add(&first[2 * x + 1], R::of(0.5) * (here + next));
        pair(second, x, two_y, [0.5, 0.25]);
        pair(third, x, two_z, [0.5, 0.25]);
        pair(fourth, x, all, [0.25, 0.125]);
    }
}

/// Adds to two elements next to each other: 5 operations.
#[inline(always)]
fn pair<R: Real>(row: &[AtomicU64], x: usize, sums: &[R], weights: [f64; 2]) {
    add(&row[2 * x], R::of(weights[0]) * sums[x]);
    add(&row[2 * x + 1], R::of(weights[1]) * (sums[x] + sums[x + 1]));
}

#[inline(always)]
fn add<R: Real>(word: &AtomicU64, value: R) {
    (R::load(word) + value).store(word);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::npb::tests::{kernel, run};

    #[test]
    fn cycles_converge() {
        let mg = kernel::<Mg>(600_000, 2);
        let length = || -> f64 {
            let residual = mg.arrays(0).residual.iter().map(f64::load);
            residual.map(|r: f64| r * r).sum::<f64>().sqrt()
        };
        run::<_, f64>(&mg, 2, 0..1);
        let first = length();
        run::<_, f64>(&mg, 2, 1..5);
        let later = length();
        assert!(later > 0.0 && later < first / 20.0, "{first}, {later}");
    }
}
