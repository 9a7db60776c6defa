//! Scalar pentadiagonal solves along the lines of a grid, in three directions one after the other.
//!
//! A round computes the right-hand side and two speeds, and for each direction the five diagonals of
//! three systems per line, solves these (the first for three values of each point, the others for one), and turns
//! the changes by the solution; at the end it adds the change. Diagonals are kept for the whole grid, as
//! in NPB's SP.
//!
//! **Work** per point. Right-hand side and addition: [`super::solve`]; the speeds 4 operations, 16 bytes fetched
//! and 16 written. Each direction: 14 operations for the diagonals; 14 for the pivots; for all points of a line but
//! one 22 to eliminate in the next and 10 to substitute, and for all but two the same again;
//! bytes read: 16 of speeds, 120 of diagonals fetched, 40 of the right-hand side; written: 120 and 40. Each turn: 15
//! operations, 80 bytes read, 40 written.

use super::grid::{Grid, Line};
use super::real::Real;
use super::solve::{
    ADD_WORK, FIELD_WORDS, Fields, RIGHT_WORK, VALUES, Vector, add, place, right_hand_side,
};
use super::table::Work;
use super::{Kernel, Words};
use crate::cli::Failure;
use crate::memory::FirstNode;
use crate::team::Member;
use std::ops::Range;
use std::sync::atomic::AtomicU64;

const DIAGONALS: usize = 5;
const SYSTEMS: usize = 3;
const SPEEDS: usize = 2;
const POINT_WORDS: usize = FIELD_WORDS + SPEEDS + SYSTEMS * DIAGONALS;
/// The values of a point that each system is solved for.
const SOLVED: [Range<usize>; SYSTEMS] = [0..3, 3..4, 4..5];
/// Outer diagonals, the main one's constant part and its factor of the first speed.
const OUTER: f64 = 0.05;
const MAIN: f64 = 2.5;
const MAIN_SPEED: f64 = 0.3;
/// Factors of the speeds in the diagonals next to the main one, and what sets systems apart.
const BELOW: [f64; 2] = [-0.2, -0.1];
const ABOVE: [f64; 2] = [0.2, -0.1];
const APART: f64 = 0.15;
/// How far changes are turned.
const TURN: f64 = 0.05;

/// The kernel.
pub struct Sp {
    words: Words,
    grid: Grid,
}

impl Kernel for Sp {
    const NAME: &'static str = "sp";

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
            false => 0,
        });
    }

    fn round_work(&self) -> Work {
        let points = self.grid.points() as u64;
        let lines = self.grid.line_counts();
        let solves = lines
            .iter()
            .map(|(lines, len)| lines * ((len - 1) * 32 + (len - 2) * 32));
        Work {
            flops: points * (RIGHT_WORK.flops + 4 + 3 * (14 + 14 + 15) + ADD_WORK.flops)
                + solves.sum::<u64>(),
            read_bytes: points
                * (RIGHT_WORK.read_bytes + 16 + 3 * (176 + 80) + ADD_WORK.read_bytes),
            write_bytes: points
                * (RIGHT_WORK.write_bytes + 16 + 3 * (160 + 40) + ADD_WORK.write_bytes),
        }
    }

    fn round<R: Real>(&self, member: &Member<'_>, _: u64) {
        let (grid, words) = (self.grid, self.words.all());
        let fields = Fields::of(words, grid.points());
        let (speeds, diagonals) =
            words[grid.points() * FIELD_WORDS..].split_at(grid.points() * SPEEDS);
        right_hand_side::<R>(grid, fields, member);
        let plane = grid.x * grid.y;
        let planes = member.part(grid.z);
        let own = planes.start * plane..planes.end * plane;
        set_speeds::<R>(fields.solution, speeds, own.clone());
        for axis in 0..3 {
            member.sync_awake();
            grid.lines(axis, member.part(grid.planes(axis)), |line| {
                set_diagonals::<R>(line, speeds, diagonals);
                eliminate::<R>(line, diagonals, fields.right);
                substitute::<R>(line, diagonals, fields.right);
            });
            member.sync_awake();
            turn::<R>(fields, own.clone());
        }
        member.sync_awake();
        add::<R>(grid, fields, member);
        member.sync_awake();
    }
}

#[inline(never)]
fn set_speeds<R: Real>(solution: &[AtomicU64], speeds: &[AtomicU64], own: Range<usize>) {
    for point in own {
        let [density, momentum] = R::load_all(solution, point * VALUES);
        let inverse = R::of(1.0) / (density * density + R::of(1.0));
        R::store_all(&[inverse, momentum * inverse], speeds, point * SPEEDS);
    }
}

/// The diagonals of a line, in the order of columns. A line's ends have themselves for neighbours.
#[inline(never)]
fn set_diagonals<R: Real>(line: Line, speeds: &[AtomicU64], diagonals: &[AtomicU64]) {
    for at in 0..line.len {
        let point = line.at(at);
        let speed = |at: usize| -> [R; SPEEDS] { R::load_all(speeds, line.at(at) * SPEEDS) };
        let (below, above) = (
            speed(at.saturating_sub(1)),
            speed((at + 1).min(line.len - 1)),
        );
        let beside = |weights: [f64; 2], speed: [R; SPEEDS]| {
            R::of(weights[0]) * speed[1] + R::of(weights[1]) * speed[0]
        };
        let main = R::of(MAIN) + R::of(MAIN_SPEED) * speed(at)[0];
        let (low, high) = (beside(BELOW, below), beside(ABOVE, above));
        let (low_apart, high_apart) = (R::of(APART) * below[0], R::of(APART) * above[0]);
        let outer = R::of(OUTER);
        let systems = [
            [outer, low, main, high, outer],
            [outer, low - low_apart, main, high + high_apart, outer],
            [outer, low + low_apart, main, high - high_apart, outer],
        ];
        for (number, system) in systems.iter().enumerate() {
            R::store_all(system, diagonals, (point * SYSTEMS + number) * DIAGONALS);
        }
    }
}

/// Eliminates below the main diagonals, which become 1.
#[inline(never)]
fn eliminate<R: Real>(line: Line, diagonals: &[AtomicU64], right: &[AtomicU64]) {
    for at in 0..line.len {
        for (system, solved) in SOLVED.into_iter().enumerate() {
            let first = |at: usize| (line.at(at) * SYSTEMS + system) * DIAGONALS;
            let own = first(at);
            let inverse = R::of(1.0) / R::load(&diagonals[own + 2]);
            let pivots = [3, 4].map(|number| {
                let scaled = R::load(&diagonals[own + number]) * inverse;
                scaled.store(&diagonals[own + number]);
                scaled
            });
            let values = line.at(at) * VALUES;
            for value in solved.clone() {
                let word = &right[values + value];
                (R::load(word) * inverse).store(word);
            }
            // In the point that is `ahead` points ahead the diagonal 2 - ahead becomes 0.
            for ahead in 1..=2 {
                if at + ahead >= line.len {
                    break;
                }
                let other = first(at + ahead);
                let factor = R::load(&diagonals[other + 2 - ahead]);
                for (number, pivot) in pivots.into_iter().enumerate() {
                    let word = &diagonals[other + 3 - ahead + number];
                    (R::load(word) - factor * pivot).store(word);
                }
                let others = line.at(at + ahead) * VALUES;
                for value in solved.clone() {
                    let word = &right[others + value];
                    (R::load(word) - factor * R::load(&right[values + value])).store(word);
                }
            }
        }
    }
}

/// Substitutes from the end of a line to its begin.
#[inline(never)]
fn substitute<R: Real>(line: Line, diagonals: &[AtomicU64], right: &[AtomicU64]) {
    for at in (0..line.len).rev() {
        for (system, solved) in SOLVED.into_iter().enumerate() {
            let own = (line.at(at) * SYSTEMS + system) * DIAGONALS;
            for value in solved {
                let word = &right[line.at(at) * VALUES + value];
                let mut change = R::load(word);
                for ahead in 1..=2 {
                    if at + ahead < line.len {
                        let other = R::load(&right[line.at(at + ahead) * VALUES + value]);
                        change = change - R::load(&diagonals[own + 2 + ahead]) * other;
                    }
                }
                change.store(word);
            }
        }
    }
}

/// Turns each change a little towards the next value's, by the solution.
#[inline(never)]
fn turn<R: Real>(fields: Fields<'_>, own: Range<usize>) {
    for point in own {
        let change: Vector<R> = R::load_all(fields.right, point * VALUES);
        let solution: Vector<R> = R::load_all(fields.solution, point * VALUES);
        let turned = std::array::from_fn(|value| {
            let next = change[(value + 1) % VALUES];
            change[value] + R::of(TURN) * (solution[value] * next)
        });
        R::store_all::<VALUES>(&turned, fields.right, point * VALUES);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::npb::tests::{assert_settled, kernel, run};

    #[test]
    fn a_line_is_solved() {
        let sp = kernel::<Sp>(100_000, 1);
        let (points, words) = (sp.grid.points(), sp.words.all());
        let fields = Fields::of(words, points);
        let (speeds, diagonals) = words[points * FIELD_WORDS..].split_at(points * SPEEDS);
        fields.solution.iter().for_each(|word| 1.5f64.store(word));
        fields.right.iter().for_each(|word| 1.0f64.store(word));
        let line = Line {
            first: 1,
            stride: 4,
            len: 9,
        };
        set_speeds::<f64>(fields.solution, speeds, 0..points);
        set_diagonals::<f64>(line, speeds, diagonals);
        let given: Vec<f64> = diagonals.iter().map(f64::load).collect();
        eliminate::<f64>(line, diagonals, fields.right);
        substitute::<f64>(line, diagonals, fields.right);
        for (system, solved) in SOLVED.into_iter().enumerate() {
            for value in solved {
                for at in 0..line.len {
                    let own = (line.at(at) * SYSTEMS + system) * DIAGONALS;
                    let product = |number: usize| {
                        let other = (at + number)
                            .checked_sub(2)
                            .filter(|&other| other < line.len);
                        other.map_or(0.0, |other| {
                            let change = f64::load(&fields.right[line.at(other) * VALUES + value]);
                            given[own + number] * change
                        })
                    };
                    let sum: f64 = (0..DIAGONALS).map(product).sum();
                    assert!((sum - 1.0).abs() < 1e-13, "{value}, {at}: {sum}");
                }
            }
        }
    }

    #[test]
    fn solutions_settle() {
        let sp = kernel::<Sp>(100_000, 2);
        run::<_, f64>(&sp, 2, 0..800);
        assert_settled(sp.words.all(), sp.grid.points());
    }
}
