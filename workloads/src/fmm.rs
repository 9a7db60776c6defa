//! `fmm`: the fast multipole method in the plane.
//!
//! After SPLASH-2's FMM (Woo et al., 1995; Greengard and Rokhlin, 1987): charges attract each other
//! by 1/z, complex. Cells hold a multipole expansion of their charges and a local expansion of all
//! that is far away: expansions are gathered from fine to coarse cells, translated between cells
//! that are well apart, and handed down again, once up and once down in a step, whatever the
//! number of charges. Neighbouring cells are computed charge by charge.
//!
//! FMM refines where charges are dense; here charges are spread evenly and all finest cells are on
//! one level, each with 64 charges. Charges rest where they are, and steps change their
//! velocities only. Threads own cells in Morton order and the charges in
//! them; what other threads write is read only after a barrier, and each sum has one order, so that
//! the bits of the result do not depend on the number of threads.

use crate::cli::{self, Args, Failure, Opt, Workload, WorkloadReport};
use crate::floats::Floats;
use crate::random::mix;
use crate::team::{Member, ThreadTeam};
use std::ops::Range;
use std::time::Instant;

/// Terms of an expansion. Cells well apart are two sides from each other, and a charge at most
/// 0.71 from its cell's middle: (0.71 / 1.29)^20 is 6e-6. FMM is run with 1e-6.
const TERMS: usize = 20;
/// Charges in a cell of the finest level.
const CROWD: usize = 64;
/// Words of a charge: position, strength, field, velocity.
const RECORD: usize = 8;
const TIME_STEP: f64 = 1e-6;

type Complex = (f64, f64);
type Expansion = [Complex; TERMS];
const ZERO: Expansion = [(0.0, 0.0); TERMS];

/// The program.
pub const PROGRAM: Workload = Workload {
    name: "fmm",
    about: "The fast multipole method in the plane, each thread on its own cells.",
    operand: None,
    options: &[
        cli::THREADS,
        Opt {
            name: "levels",
            value: Some("L"),
            default: "5",
            help: "levels of cells; 4^L finest cells of 64 charges, 2 to 10",
        },
        cli::STEPS,
        cli::PIN,
        cli::NO_PIN,
    ],
    run,
};

fn run(args: &Args) -> Result<WorkloadReport, Failure> {
    let team = ThreadTeam::from_args(args)?;
    let finest = args.number("levels", 2..=10)? as usize;
    let steps = args.number("steps", 1..=1 << 24)?;
    let started = Instant::now();
    let plane = Plane::new(finest)?;
    plane.write();
    let setup = started.elapsed().as_secs_f64();
    let times = team.run(|member| {
        let binomials = binomials();
        let work = || (0..steps).for_each(|_| plane.step(member, &binomials));
        member.measure(work).1
    })?;
    let title = format!(
        "fmm: {} threads, {} charges, {steps} steps",
        team.threads(),
        CROWD << (2 * finest)
    );
    Ok(WorkloadReport::new(title)
        .line("setup_seconds", format!("{setup:.6}"))
        .finish(times[0], plane.charges.checksum(0)))
}

/// The unit square. Cell `number` of a level, in Morton order, has the cells `4 number ..` of the
/// next below it.
struct Plane {
    finest: usize,
    charges: Floats,
    /// Expansions of all levels, the coarsest first.
    multipoles: Floats,
    locals: Floats,
}

impl Plane {
    fn new(finest: usize) -> Result<Self, Failure> {
        let cells = first(finest + 1);
        Ok(Self {
            finest,
            charges: Floats::new((CROWD << (2 * finest)) * RECORD)?,
            multipoles: Floats::new(cells * TERMS * 2)?,
            locals: Floats::new(cells * TERMS * 2)?,
        })
    }

    /// The main thread writes everything.
    fn write(&self) {
        for charge in 0..self.charges.len() / RECORD {
            let (x, y) = centre(self.finest, charge / CROWD);
            let place = |salt: usize| {
                let bits = mix((charge * 3 + salt) as u64) >> 11;
                bits as f64 / (1u64 << 53) as f64 - 0.5
            };
            let cell = side(self.finest);
            let record = [x + place(1) * cell, y + place(2) * cell, 1.0 + place(3)];
            self.charges.set_vector(charge * RECORD, record);
            (3..RECORD).for_each(|word| self.charges.set(charge * RECORD + word, 0.0));
        }
        for word in 0..self.multipoles.len() {
            self.multipoles.set(word, 0.0);
            self.locals.set(word, 0.0);
        }
    }

    fn step(&self, member: &Member<'_>, binomials: &Binomials) {
        let own = |level: usize| member.part(1 << (2 * level));
        for cell in own(self.finest) {
            let multipole = self.gather(cell);
            put(&self.multipoles, self.finest, cell, &multipole);
        }
        member.sync_awake();
        for level in (2..self.finest).rev() {
            for cell in own(level) {
                let mut sum = ZERO;
                for child in 4 * cell..4 * cell + 4 {
                    let part = get(&self.multipoles, level + 1, child);
                    let apart = minus(centre(level + 1, child), centre(level, cell));
                    raise(&mut sum, &part, apart, binomials);
                }
                put(&self.multipoles, level, cell, &sum);
            }
            member.sync_awake();
        }
        for level in 2..=self.finest {
            for cell in own(level) {
                let mut sum = ZERO;
                if level > 2 {
                    let whole = get(&self.locals, level - 1, cell / 4);
                    let apart = minus(centre(level, cell), centre(level - 1, cell / 4));
                    hand_down(&mut sum, &whole, apart, binomials);
                }
                for other in well_apart(level, cell) {
                    let part = get(&self.multipoles, level, other);
                    let apart = minus(centre(level, other), centre(level, cell));
                    translate(&mut sum, &part, apart, binomials);
                }
                put(&self.locals, level, cell, &sum);
            }
            member.sync_awake();
        }
        own(self.finest).for_each(|cell| self.field(cell));
        member.sync_awake();
        for word in own(self.finest).flat_map(|cell| self.within(cell)) {
            for axis in 0..2 {
                let change = self.charges.get(word + 3 + axis) * TIME_STEP;
                self.charges.add(word + 5 + axis, change);
            }
        }
        member.sync_awake();
    }

    /// First words of the charges in a finest cell.
    fn within(&self, cell: usize) -> std::iter::StepBy<Range<usize>> {
        (cell * CROWD * RECORD..(cell + 1) * CROWD * RECORD).step_by(RECORD)
    }

    /// a_k = sum of q (z - c)^k: the field outside is the sum of a_k / (z - c)^(k + 1).
    fn gather(&self, cell: usize) -> Expansion {
        let (mut sum, middle) = (ZERO, centre(self.finest, cell));
        for word in self.within(cell) {
            let [x, y, strength] = self.charges.vector(word);
            let (apart, mut power) = (minus((x, y), middle), (strength, 0.0));
            for term in &mut sum {
                *term = plus(*term, power);
                power = times(power, apart);
            }
        }
        sum
    }

    /// The field at each charge of a cell: the local expansion, and neighbours one by one.
    #[inline(never)]
    fn field(&self, cell: usize) {
        let (local, middle) = (
            get(&self.locals, self.finest, cell),
            centre(self.finest, cell),
        );
        for word in self.within(cell) {
            let [x, y, _] = self.charges.vector(word);
            let apart = minus((x, y), middle);
            let mut sum = local
                .iter()
                .rev()
                .fold((0.0, 0.0), |sum, term| plus(times(sum, apart), *term));
            for other in neighbours(self.finest, cell).flat_map(|cell| self.within(cell)) {
                let [other_x, other_y, strength] = self.charges.vector(other);
                let apart = minus((x, y), (other_x, other_y));
                let square = apart.0 * apart.0 + apart.1 * apart.1;
                if other != word {
                    let factor = strength / square;
                    sum = plus(sum, (apart.0 * factor, -apart.1 * factor));
                }
            }
            self.charges.set(word + 3, sum.0);
            self.charges.set(word + 4, sum.1);
        }
    }
}

/// Number of the first cell of a level, over all levels.
fn first(level: usize) -> usize {
    ((1 << (2 * level)) - 1) / 3
}

fn get(array: &Floats, level: usize, cell: usize) -> Expansion {
    let start = (first(level) + cell) * TERMS * 2;
    std::array::from_fn(|term| {
        let at = start + 2 * term;
        (array.get(at), array.get(at + 1))
    })
}

fn put(array: &Floats, level: usize, cell: usize, expansion: &Expansion) {
    let start = (first(level) + cell) * TERMS * 2;
    for (term, value) in expansion.iter().enumerate() {
        array.set(start + 2 * term, value.0);
        array.set(start + 2 * term + 1, value.1);
    }
}

/// Length of a cell's side.
fn side(level: usize) -> f64 {
    1.0 / (1u64 << level) as f64
}

fn centre(level: usize, cell: usize) -> Complex {
    let (x, y) = column_and_row(cell);
    let at = |number: usize| (number as f64 + 0.5) * side(level);
    (at(x), at(y))
}

/// Even bits are the column, odd ones the row.
fn column_and_row(cell: usize) -> (usize, usize) {
    (0..usize::BITS / 2).fold((0, 0), |(x, y), bit| {
        let pair = cell >> (2 * bit);
        (x | (pair & 1) << bit, y | (pair >> 1 & 1) << bit)
    })
}

fn number(column: usize, row: usize) -> usize {
    (0..usize::BITS / 2).fold(0, |cell, bit| {
        cell | (column >> bit & 1) << (2 * bit) | (row >> bit & 1) << (2 * bit + 1)
    })
}

/// The cell and those that touch it.
fn neighbours(level: usize, cell: usize) -> impl Iterator<Item = usize> {
    let (x, y) = column_and_row(cell);
    let near = move |at: usize| at.saturating_sub(1)..=(at + 1).min((1 << level) - 1);
    near(y).flat_map(move |y| near(x).map(move |x| number(x, y)))
}

/// Cells below the neighbours of the cell above that do not touch the cell.
fn well_apart(level: usize, cell: usize) -> impl Iterator<Item = usize> {
    let (x, y) = column_and_row(cell);
    neighbours(level - 1, cell / 4)
        .flat_map(|above| 4 * above..4 * above + 4)
        .filter(move |other| {
            let (other_x, other_y) = column_and_row(*other);
            x.abs_diff(other_x) > 1 || y.abs_diff(other_y) > 1
        })
}

type Binomials = [[f64; 2 * TERMS]; 2 * TERMS];

fn binomials() -> Binomials {
    let mut table = [[0.0; 2 * TERMS]; 2 * TERMS];
    for n in 0..2 * TERMS {
        table[n][0] = 1.0;
        for k in 1..=n {
            table[n][k] = table[n - 1][k - 1] + table[n - 1][k];
        }
    }
    table
}

/// Adds a multipole about a centre that lies `apart` from the one of `sum`.
fn raise(sum: &mut Expansion, part: &Expansion, apart: Complex, binomials: &Binomials) {
    let powers = powers(apart);
    for (k, sum) in sum.iter_mut().enumerate() {
        for (j, part) in part.iter().enumerate().take(k + 1) {
            *sum = plus(*sum, scale(times(*part, powers[k - j]), binomials[k][j]));
        }
    }
}

/// Adds a local expansion about a centre from which the one of `sum` lies `apart`.
fn hand_down(sum: &mut Expansion, whole: &Expansion, apart: Complex, binomials: &Binomials) {
    let powers = powers(apart);
    for (k, sum) in sum.iter_mut().enumerate() {
        for (j, whole) in whole.iter().enumerate().skip(k) {
            *sum = plus(*sum, scale(times(*whole, powers[j - k]), binomials[j][k]));
        }
    }
}

/// Adds a multipole, whose centre lies `apart`, as a local expansion:
/// 1 / (z - t)^(j + 1) = (-1 / t)^(j + 1) * sum over k of C(j + k, k) (z / t)^k.
#[inline(never)]
fn translate(sum: &mut Expansion, part: &Expansion, apart: Complex, binomials: &Binomials) {
    let square = apart.0 * apart.0 + apart.1 * apart.1;
    let inverse = (apart.0 / square, -apart.1 / square);
    let mut power = (-inverse.0, -inverse.1);
    let mut signed = ZERO;
    for (signed, part) in signed.iter_mut().zip(part) {
        *signed = times(*part, power);
        power = times(power, (-inverse.0, -inverse.1));
    }
    let mut power = (1.0, 0.0);
    for (k, sum) in sum.iter_mut().enumerate() {
        let mut inner = (0.0, 0.0);
        for (j, signed) in signed.iter().enumerate() {
            inner = plus(inner, scale(*signed, binomials[j + k][k]));
        }
        *sum = plus(*sum, times(inner, power));
        power = times(power, inverse);
    }
}

fn powers(base: Complex) -> Expansion {
    let mut power = (1.0, 0.0);
    std::array::from_fn(|_| {
        let this = power;
        power = times(power, base);
        this
    })
}

#[inline(always)]
fn plus(a: Complex, b: Complex) -> Complex {
    (a.0 + b.0, a.1 + b.1)
}

#[inline(always)]
fn minus(a: Complex, b: Complex) -> Complex {
    (a.0 - b.0, a.1 - b.1)
}

#[inline(always)]
fn times(a: Complex, b: Complex) -> Complex {
    (a.0 * b.0 - a.1 * b.1, a.0 * b.1 + a.1 * b.0)
}

#[inline(always)]
fn scale(a: Complex, factor: f64) -> Complex {
    (a.0 * factor, a.1 * factor)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_field_is_that_of_all_charges_one_by_one() {
        let plane = Plane::new(3).unwrap();
        plane.write();
        let words: Vec<String> = ["--threads", "3", "--no-pin"].map(str::to_owned).into();
        let team = ThreadTeam::from_args(&PROGRAM.parse(&words).unwrap().unwrap()).unwrap();
        team.run(|member| plane.step(member, &binomials())).unwrap();
        let records = || (0..plane.charges.len()).step_by(RECORD);
        for word in records().step_by(97) {
            let [x, y, _] = plane.charges.vector(word);
            let mut sum = (0.0, 0.0);
            for other in records().filter(|other| *other != word) {
                let [other_x, other_y, strength] = plane.charges.vector(other);
                let apart = (x - other_x, y - other_y);
                let factor = strength / (apart.0 * apart.0 + apart.1 * apart.1);
                sum = plus(sum, (apart.0 * factor, -apart.1 * factor));
            }
            let found = (plane.charges.get(word + 3), plane.charges.get(word + 4));
            let wrong = minus(found, sum);
            let size = (sum.0 * sum.0 + sum.1 * sum.1).sqrt();
            assert!(
                wrong.0.abs() + wrong.1.abs() < 1e-5 * size,
                "{found:?} {sum:?}"
            );
        }
    }
}
