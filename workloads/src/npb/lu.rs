//! Symmetric successive over-relaxation: sweeps through a grid and back, each point after its neighbours.
//!
//! A round computes the right-hand side, sweeps from the first point to the last and back, and adds the
//! change. Per point there are four blocks of five by five, for the point and for its neighbours along x, y and
//! z, as NPB's LU makes them. A sweep makes those of the point and of z anew from the solution, as all
//! of them would need more operations per byte than the paper's ratio says; those of x and y stay.
//!
//! Threads have bands of y and follow one another as a wavefront: in step s thread t sweeps its part of the plane
//! z = s - t. Every point comes after the same neighbours for any number of threads.
//!
//! **Work** per point. Right-hand side and addition: [`super::solve`]. Each sweep: 3 operations for the density, 80
//! for each of the two new blocks; 155 for the neighbours' products (past an edge with zeros); 120 to solve with the
//! block of the point; bytes read: 400 of blocks that stay, 400 fetched of new ones, 40 of the right-hand side, 40 of
//! the solution; written: 400 and 40.

use super::grid::Grid;
use super::real::Real;
use super::solve::{
    ADD_WORK, BLOCK, Block, FIELD_WORDS, Fields, RIGHT_WORK, VALUES, Vector, add, load_block,
    place, right_hand_side, small, store_block,
};
use super::table::Work;
use super::{Kernel, Words};
use crate::cli::Failure;
use crate::memory::FirstNode;
use crate::random::mix;
use crate::team::{Member, part};
use std::sync::atomic::AtomicU64;

/// Blocks of a point: its own, then those of its neighbours along z, y and x.
const BLOCKS: usize = 4;
const POINT_WORDS: usize = FIELD_WORDS + BLOCKS * BLOCK;
/// What relaxation takes of the neighbours.
const RELAXATION: f64 = 1.2;
/// Factors of the solution in new blocks, of the point and of z.
const FACTORS: [f64; 2] = [0.02, 0.01];

/// The kernel.
pub struct Lu {
    words: Words,
    grid: Grid,
}

impl Kernel for Lu {
    const NAME: &'static str = "lu";

    fn new(bytes: usize, _: usize, start: FirstNode) -> Result<Self, Failure> {
        let (grid, words) = place(bytes, POINT_WORDS, start)?;
        Ok(Self { words, grid })
    }

    fn words(&self) -> &Words {
        &self.words
    }

    fn write(&self) {
        let points = self.grid.points();
        self.words.fill(|at| match at < points * FIELD_WORDS {
            true => Fields::word(at, points),
            false => small(mix(at as u64)),
        });
    }

    fn round_work(&self) -> Work {
        let points = self.grid.points() as u64;
        let sweep = 3 + 2 * 80 + 155 + 120;
        Work {
            flops: points * (RIGHT_WORK.flops + 2 * sweep + ADD_WORK.flops),
            read_bytes: points * (RIGHT_WORK.read_bytes + 2 * 880 + ADD_WORK.read_bytes),
            write_bytes: points * (RIGHT_WORK.write_bytes + 2 * 440 + ADD_WORK.write_bytes),
        }
    }

    fn round<R: Real>(&self, member: &Member<'_>, _: u64) {
        let (grid, words) = (self.grid, self.words.all());
        let fields = Fields::of(words, grid.points());
        let blocks = &words[grid.points() * FIELD_WORDS..];
        right_hand_side::<R>(grid, fields, member);
        member.sync_awake();
        for back in [false, true] {
            let place = if back {
                member.threads - 1 - member.id
            } else {
                member.id
            };
            for step in 0..grid.z + member.threads - 1 {
                if let Some(z) = step.checked_sub(place).filter(|&z| z < grid.z) {
                    let z = if back { grid.z - 1 - z } else { z };
                    self.sweep::<R>(fields, blocks, z, back, member);
                }
                member.sync_awake();
            }
        }
        add::<R>(grid, fields, member);
        member.sync_awake();
    }
}

impl Lu {
    /// Sweeps the thread's band of a plane.
    #[inline(never)]
    fn sweep<R: Real>(
        &self,
        fields: Fields<'_>,
        blocks: &[AtomicU64],
        z: usize,
        back: bool,
        member: &Member<'_>,
    ) {
        let grid = self.grid;
        let own = part(grid.y, member.threads, member.id);
        for row in 0..own.len() {
            let y = if back {
                own.end - 1 - row
            } else {
                own.start + row
            };
            for column in 0..grid.x {
                let x = if back { grid.x - 1 - column } else { column };
                let point = grid.at(z, y, x);
                // The neighbours that were swept before; none past an edge.
                let near = |at: usize, count: usize, stride: usize| match back {
                    false => (at > 0).then(|| point - stride),
                    true => (at + 1 < count).then(|| point + stride),
                };
                let near = [
                    near(z, grid.z, grid.x * grid.y),
                    near(y, grid.y, grid.x),
                    near(x, grid.x, 1),
                ];
                let solution = R::load_all(fields.solution, point * VALUES);
                renew::<R>(blocks, point, &solution);
                relax::<R>(blocks, point, near, fields.right);
            }
        }
    }
}

/// The blocks of the point and of its neighbour along z from the point's solution.
#[inline(always)]
fn renew<R: Real>(blocks: &[AtomicU64], point: usize, solution: &Vector<R>) {
    let density = R::of(1.0) / (solution[0] * solution[0] + R::of(1.0));
    for (number, factor) in FACTORS.into_iter().enumerate() {
        let block: Block<R> = std::array::from_fn(|row| {
            let flux = R::of(factor) * solution[row];
            std::array::from_fn(|column| {
                let base = R::of(BASES[number][row][column]);
                (base + flux * solution[column]) * density
            })
        });
        store_block(&block, blocks, (point * BLOCKS + number) * BLOCK);
    }
}

/// The blocks for a solution of zero: one with a large diagonal, and a small one.
const BASES: [[[f64; VALUES]; VALUES]; 2] = {
    let mut bases = [[[0.05; VALUES]; VALUES], [[0.03; VALUES]; VALUES]];
    let mut at = 0;
    while at < VALUES {
        bases[0][at][at] = 6.0;
        bases[1][at][at] = 0.2;
        at += 1;
    }
    bases
};

/// Takes the neighbours' products from the right-hand side, and solves with the point's own block.
#[inline(always)]
fn relax<R: Real>(
    blocks: &[AtomicU64],
    point: usize,
    near: [Option<usize>; 3],
    right: &[AtomicU64],
) {
    let block = |number: usize| load_block::<R>(blocks, (point * BLOCKS + number) * BLOCK);
    let (mut own, others) = (block(0), [block(1), block(2), block(3)]);
    let near: [Vector<R>; 3] = near.map(|point| match point {
        Some(point) => R::load_all(right, point * VALUES),
        None => [R::of(0.0); VALUES],
    });
    let mut change: Vector<R> = R::load_all(right, point * VALUES);
    for (row, change) in change.iter_mut().enumerate() {
        let product =
            |at: usize| others[at / VALUES][row][at % VALUES] * near[at / VALUES][at % VALUES];
        let sum = (1..3 * VALUES).fold(product(0), |sum, at| sum + product(at));
        *change = *change - R::of(RELAXATION) * sum;
    }
    solve_with(&mut own, &mut change);
    R::store_all(&change, right, point * VALUES);
}

/// Multiplies a vector by the inverse of a block, by Gauss and without pivoting: the diagonal dominates.
#[inline(always)]
fn solve_with<R: Real>(block: &mut Block<R>, vector: &mut Vector<R>) {
    let mut inverses = [R::of(0.0); VALUES];
    for pivot in 0..VALUES {
        inverses[pivot] = R::of(1.0) / block[pivot][pivot];
        let (pivot_row, pivot_value) = (block[pivot], vector[pivot]);
        for row in pivot + 1..VALUES {
            let factor = block[row][pivot] * inverses[pivot];
            for column in pivot + 1..VALUES {
                block[row][column] = block[row][column] - factor * pivot_row[column];
            }
            vector[row] = vector[row] - factor * pivot_value;
        }
    }
    for pivot in (0..VALUES).rev() {
        let mut value = vector[pivot];
        for column in pivot + 1..VALUES {
            value = value - block[pivot][column] * vector[column];
        }
        vector[pivot] = value * inverses[pivot];
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::npb::solve::less_product;
    use crate::npb::tests::{assert_settled, kernel, run};

    #[test]
    fn a_block_is_solved() {
        let block: Block<f64> = BASES[0];
        let mut change = [1.0, 2.0, 3.0, 4.0, 5.0];
        solve_with(&mut block.clone(), &mut change);
        let mut rest = [1.0, 2.0, 3.0, 4.0, 5.0];
        less_product(&mut rest, &block, &change);
        assert!(rest.iter().all(|rest| rest.abs() < 1e-14), "{rest:?}");
    }

    #[test]
    fn solutions_settle() {
        let lu = kernel::<Lu>(400_000, 2);
        run::<_, f64>(&lu, 2, 0..400);
        assert_settled(lu.words.all(), lu.grid.points());
    }
}
