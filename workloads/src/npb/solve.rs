//! What the three solvers of flow share: five values per point, their right-hand side, blocks of five by five.

use super::Words;
use super::grid::Grid;
use super::real::{Real, fraction};
use super::table::Work;
use crate::cli::Failure;
use crate::memory::FirstNode;
use crate::random::mix;
use crate::team::Member;
use std::sync::atomic::AtomicU64;

/// Values per point.
pub const VALUES: usize = 5;
/// Words of a block.
pub const BLOCK: usize = VALUES * VALUES;

/// The values of a point.
pub type Vector<R> = [R; VALUES];
/// A block of coefficients, row by row.
pub type Block<R> = [[R; VALUES]; VALUES];

/// The operator of the right-hand side: the point and its six neighbours. For a steady field it is
/// half the field, so that solutions stay around 1.
const OPERATOR: [f64; 2] = [1.1, -0.1];

/// The largest grid that fits, with so many words per point.
pub fn place(bytes: usize, point_words: usize, start: FirstNode) -> Result<(Grid, Words), Failure> {
    let grid = Grid::of(bytes / (8 * point_words), 1);
    let words = Words::new(grid.points() * point_words, start)?;
    Ok((grid, words))
}

/// The arrays that every solver has, five values per point.
#[derive(Clone, Copy)]
pub struct Fields<'a> {
    /// The solution.
    pub solution: &'a [AtomicU64],
    /// What drives it.
    pub forcing: &'a [AtomicU64],
    /// The right-hand side, which becomes the solution's change.
    pub right: &'a [AtomicU64],
}

/// Words of the fields per point.
pub const FIELD_WORDS: usize = 3 * VALUES;

impl<'a> Fields<'a> {
    /// The fields are the first arrays of a kernel.
    pub fn of(words: &'a [AtomicU64], points: usize) -> Self {
        let size = points * VALUES;
        Self {
            solution: &words[..size],
            forcing: &words[size..2 * size],
            right: &words[2 * size..3 * size],
        }
    }

    /// The first content of a word of the fields.
    pub fn word(at: usize, points: usize) -> u64 {
        match at / (points * VALUES) {
            1 => fraction(mix(at as u64)).to_bits(),
            _ => 0,
        }
    }
}

/// Work of [`right_hand_side`] per point: forcing and solution are read, the right-hand side is fetched and written.
pub const RIGHT_WORK: Work = Work {
    flops: 9 * VALUES as u64,
    read_bytes: 3 * 40,
    write_bytes: 40,
};

/// Forcing less the operator times the solution, in the thread's planes.
#[inline(never)]
pub fn right_hand_side<R: Real>(grid: Grid, fields: Fields<'_>, member: &Member<'_>) {
    for z in member.part(grid.z) {
        for y in 0..grid.y {
            for x in 0..grid.x {
                let own = grid.at(z, y, x) * VALUES;
                let near = grid.neighbours(z, y, x).map(|point| point * VALUES);
                for value in 0..VALUES {
                    let load = |point: usize| R::load(&fields.solution[point + value]);
                    let sum = load(near[0])
                        + load(near[1])
                        + (load(near[2]) + load(near[3]))
                        + (load(near[4]) + load(near[5]));
                    let operator = R::of(OPERATOR[0]) * load(own) + R::of(OPERATOR[1]) * sum;
                    let right = R::load(&fields.forcing[own + value]) - operator;
                    right.store(&fields.right[own + value]);
                }
            }
        }
    }
}

/// Work of [`add`] per point.
pub const ADD_WORK: Work = Work {
    flops: VALUES as u64,
    read_bytes: 2 * 40,
    write_bytes: 40,
};

/// Adds the change to the solution, in the thread's planes.
#[inline(never)]
pub fn add<R: Real>(grid: Grid, fields: Fields<'_>, member: &Member<'_>) {
    let own = member.part(grid.z);
    let plane = grid.x * grid.y * VALUES;
    let own = own.start * plane..own.end * plane;
    for (solution, change) in fields.solution[own.clone()].iter().zip(&fields.right[own]) {
        (R::load(solution) + R::load(change)).store(solution);
    }
}

/// A block from an array.
#[inline(always)]
pub fn load_block<R: Real>(words: &[AtomicU64], first: usize) -> Block<R> {
    std::array::from_fn(|row| R::load_all(words, first + row * VALUES))
}

/// A block into an array.
#[inline(always)]
pub fn store_block<R: Real>(block: &Block<R>, words: &[AtomicU64], first: usize) {
    for (at, row) in block.iter().enumerate() {
        R::store_all(row, words, first + at * VALUES);
    }
}

/// Operations of [`less_product`].
pub const LESS_PRODUCT_FLOPS: u64 = 2 * BLOCK as u64;

/// `vector -= block * other`.
#[inline(always)]
pub fn less_product<R: Real>(vector: &mut Vector<R>, block: &Block<R>, other: &Vector<R>) {
    for (value, row) in vector.iter_mut().zip(block) {
        for (coefficient, other) in row.iter().zip(other) {
            *value = *value - *coefficient * *other;
        }
    }
}

/// A number for an element of a block off its diagonal, from random bits: small beside the diagonal's.
pub fn small(bits: u64) -> u64 {
    (0.1 * fraction(bits) + 0.01).to_bits()
}
