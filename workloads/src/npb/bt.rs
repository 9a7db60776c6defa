//! Block-tridiagonal solves along the lines of a grid, in three directions one after the other.
//!
//! A round computes the right-hand side, solves along x, y and z with blocks of five by five, and adds
//! the change. Per point there are three blocks (before, diagonal, after), as NPB 2 keeps them for
//! the whole grid; here they are the same in all directions and rounds. Elimination writes what
//! becomes of the block after into a fourth one, from which the change is substituted back.
//!
//! **Work** per point. Right-hand side and addition: [`super::solve`]. Each direction: 365 operations to solve
//! with the diagonal block (for five columns and the right-hand side, by Gauss and Jordan), and
//! for all points of a line but one 300 for the two products of elimination and 50 for
//! substitution; bytes read: 600 of the blocks, 200 of the fourth one fetched, 40 of the right-hand side; written:
//! 200 and 40. A line's data stay in the cache until it is substituted.

#![expect(
    clippy::needless_range_loop,
    reason = "indices name places of several arrays at once"
)]

use super::grid::{Grid, Line};
use super::real::Real;
use super::solve::{
    ADD_WORK, BLOCK, Block, FIELD_WORDS, Fields, LESS_PRODUCT_FLOPS, RIGHT_WORK, VALUES, Vector,
    add, less_product, load_block, place, right_hand_side, small, store_block,
};
use super::table::Work;
use super::{Kernel, Words};
use crate::cli::Failure;
use crate::memory::FirstNode;
use crate::random::mix;
use crate::team::Member;
use std::sync::atomic::AtomicU64;

const POINT_WORDS: usize = FIELD_WORDS + 4 * BLOCK;
/// The diagonal of the diagonal block.
const DIAGONAL: f64 = 3.0;
/// Operations of [`solve_with`].
const SOLVE_FLOPS: u64 = 365;

/// The kernel.
pub struct Bt {
    words: Words,
    grid: Grid,
}

/// The coefficients.
#[derive(Clone, Copy)]
struct Blocks<'a> {
    /// Three blocks per point.
    given: &'a [AtomicU64],
    /// One per point, which elimination makes.
    eliminated: &'a [AtomicU64],
}

impl Kernel for Bt {
    const NAME: &'static str = "bt";

    fn new(bytes: usize, _: usize, start: FirstNode) -> Result<Self, Failure> {
        let (grid, words) = place(bytes, POINT_WORDS, start)?;
        Ok(Self { words, grid })
    }

    fn words(&self) -> &Words {
        &self.words
    }

    fn write(&self) {
        let points = self.grid.points();
        let (fields, given) = (points * FIELD_WORDS, points * 3 * BLOCK);
        self.words.fill(|at| {
            if at < fields {
                return Fields::word(at, points);
            }
            let at = at - fields;
            let (block, element) = (at / BLOCK % 3, at % BLOCK);
            match at < given {
                true if block == 1 && element.is_multiple_of(VALUES + 1) => DIAGONAL.to_bits(),
                true => small(mix(at as u64)),
                false => 0,
            }
        });
    }

    fn round_work(&self) -> Work {
        let points = self.grid.points() as u64;
        let eliminate = BLOCK as u64 * 2 * VALUES as u64 + LESS_PRODUCT_FLOPS;
        let lines = self.grid.line_counts();
        let solves = lines.iter().map(|(lines, len)| {
            lines * (len * SOLVE_FLOPS + (len - 1) * (eliminate + LESS_PRODUCT_FLOPS))
        });
        Work {
            flops: points * (RIGHT_WORK.flops + ADD_WORK.flops) + solves.sum::<u64>(),
            read_bytes: points * (RIGHT_WORK.read_bytes + ADD_WORK.read_bytes + 3 * 840),
            write_bytes: points * (RIGHT_WORK.write_bytes + ADD_WORK.write_bytes + 3 * 240),
        }
    }

    fn round<R: Real>(&self, member: &Member<'_>, _: u64) {
        let (grid, words) = (self.grid, self.words.all());
        let fields = Fields::of(words, grid.points());
        let (given, eliminated) =
            words[grid.points() * FIELD_WORDS..].split_at(grid.points() * 3 * BLOCK);
        let blocks = Blocks { given, eliminated };
        right_hand_side::<R>(grid, fields, member);
        for axis in 0..3 {
            member.sync_awake();
            let own = member.part(grid.planes(axis));
            grid.lines(axis, own, |line| solve::<R>(line, blocks, fields.right));
        }
        member.sync_awake();
        add::<R>(grid, fields, member);
        member.sync_awake();
    }
}

/// Solves along a line.
#[inline(never)]
fn solve<R: Real>(line: Line, blocks: Blocks<'_>, right: &[AtomicU64]) {
    let zero = R::of(0.0);
    let (mut before, mut change) = ([[zero; VALUES]; VALUES], [zero; VALUES]);
    for at in 0..line.len {
        let point = line.at(at);
        let block = |number: usize| load_block::<R>(blocks.given, (3 * point + number) * BLOCK);
        let (mut diagonal, mut after) = (block(1), block(2));
        let mut own: Vector<R> = R::load_all(right, point * VALUES);
        if at > 0 {
            let below = block(0);
            less_product(&mut own, &below, &change);
            less_blocks(&mut diagonal, &below, &before);
        }
        solve_with(&mut diagonal, &mut after, &mut own);
        store_block(&after, blocks.eliminated, point * BLOCK);
        R::store_all(&own, right, point * VALUES);
        (before, change) = (after, own);
    }
    for at in (0..line.len - 1).rev() {
        let point = line.at(at);
        let block = load_block(blocks.eliminated, point * BLOCK);
        let mut own = R::load_all(right, point * VALUES);
        less_product(&mut own, &block, &change);
        R::store_all(&own, right, point * VALUES);
        change = own;
    }
}

/// `block -= one * other`.
#[inline(always)]
fn less_blocks<R: Real>(block: &mut Block<R>, one: &Block<R>, other: &Block<R>) {
    for (row, one) in block.iter_mut().zip(one) {
        for (column, value) in row.iter_mut().enumerate() {
            for (coefficient, other) in one.iter().zip(other) {
                *value = *value - *coefficient * other[column];
            }
        }
    }
}

/// Multiplies a block and a vector by the inverse of `diagonal`, without pivoting: the diagonal dominates.
#[inline(always)]
fn solve_with<R: Real>(diagonal: &mut Block<R>, block: &mut Block<R>, vector: &mut Vector<R>) {
    for pivot in 0..VALUES {
        let inverse = R::of(1.0) / diagonal[pivot][pivot];
        for column in pivot + 1..VALUES {
            diagonal[pivot][column] = diagonal[pivot][column] * inverse;
        }
        block[pivot] = block[pivot].map(|value| value * inverse);
        vector[pivot] = vector[pivot] * inverse;
        let (pivot_row, pivot_block, pivot_value) = (diagonal[pivot], block[pivot], vector[pivot]);
        for row in (0..VALUES).filter(|&row| row != pivot) {
            let factor = diagonal[row][pivot];
            for column in pivot + 1..VALUES {
                diagonal[row][column] = diagonal[row][column] - factor * pivot_row[column];
            }
            for column in 0..VALUES {
                block[row][column] = block[row][column] - factor * pivot_block[column];
            }
            vector[row] = vector[row] - factor * pivot_value;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::npb::tests::{kernel, run};

    #[test]
    fn a_line_is_solved() {
        let bt = kernel::<Bt>(200_000, 1);
        let (grid, words) = (bt.grid, bt.words.all());
        let right = Fields::of(words, grid.points()).right;
        let (given, eliminated) =
            words[grid.points() * FIELD_WORDS..].split_at(grid.points() * 3 * BLOCK);
        right.iter().for_each(|word| 1.0f64.store(word));
        let line = Line {
            first: 0,
            stride: 2,
            len: 8,
        };
        solve::<f64>(line, Blocks { given, eliminated }, right);
        let change = |at: usize| -> Vector<f64> { f64::load_all(right, line.at(at) * VALUES) };
        for at in 0..line.len {
            let block = |number: usize| load_block(given, (3 * line.at(at) + number) * BLOCK);
            let mut rest = [1.0; VALUES];
            less_product(&mut rest, &block(1), &change(at));
            if at > 0 {
                less_product(&mut rest, &block(0), &change(at - 1));
            }
            if at + 1 < line.len {
                less_product(&mut rest, &block(2), &change(at + 1));
            }
            assert!(rest.iter().all(|rest| rest.abs() < 1e-13), "{at}: {rest:?}");
        }
    }

    #[test]
    fn solutions_settle() {
        let bt = kernel::<Bt>(400_000, 2);
        run::<_, f64>(&bt, 2, 0..400);
        crate::npb::tests::assert_settled(bt.words.all(), bt.grid.points());
    }
}
