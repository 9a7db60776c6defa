//! `water`: molecules of three charged atoms in a periodic box, with a cut-off.
//!
//! After SPLASH-2's Water-spatial (Woo et al., 1995): cells as long as the cut-off, so that a
//! molecule meets those of 27 cells only; threads own cells; motion by Gear's predictor-corrector
//! with derivatives up to the sixth. Nine pairs of charges for each pair of molecules, between
//! their oxygens also a Lennard-Jones force, within a molecule springs. Eight molecules to a cell, as
//! Water's cut-off of 6.2 angstrom gives with water's density.
//!
//! As in Water, all nine distances of two molecules of neighbouring cells are computed before any is
//! compared with the cut-off, which each has to keep by itself: of the pairs in 27 cells some four
//! in five are too far apart, and most of the computing is to find that.
//!
//! Water computes a pair once and adds its force to both molecules under locks; here the owner of
//! each molecule computes it, so that sums do not depend on the order of threads and the bits of
//! the result not on their number. That is twice the computing for each access.
//!
//! With `--all-pairs`, after Water-nsquared: threads own molecules by number, and each of these meets all others.
//! The other distances of a pair are computed only where its oxygens are near: that is less computing for
//! each line from memory than the original has (docs/workloads.md, operations per transaction).
//!
//! A molecule's record is 576 bytes: eight values (six derivatives and the force besides the
//! position) for nine coordinates. Records lie in the order of the cells in which the molecules
//! begin.

use crate::cli::{self, Args, Failure, Opt, Workload, WorkloadReport, usage};
use crate::floats::Floats;
use crate::memory::{Placement, RegionMemory};
use crate::random::mix;
use crate::team::{Member, ThreadTeam};
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

/// Positions and scaled derivatives, then the force.
const ORDERS: usize = 7;
const FORCE: usize = ORDERS;
/// Coordinates of a molecule: oxygen, hydrogen, hydrogen.
const COORDINATES: usize = 9;
const RECORD: usize = (ORDERS + 1) * COORDINATES;
/// Words of a cell: how many molecules are in it, and their numbers.
const CELL: usize = 64;
/// Length of a cell and of the cut-off, in distances between molecules.
const CUT_OFF: f64 = 2.0;
/// Charges, in units of the model; masses as of water.
const CHARGES: [f64; 3] = [-0.8, 0.4, 0.4];
const MASSES: [f64; 3] = [16.0, 1.0, 1.0];
/// Lennard-Jones: strength, and the sixth power of its length.
const STRENGTH: f64 = 0.25;
const LENGTH_6: f64 = 0.5;
const SPRING: f64 = 400.0;
/// Distances at rest: oxygen to hydrogen, and between the hydrogens.
const BOND: f64 = 0.31;
const SPREAD: f64 = 0.49;
/// Of molecules whose oxygens are farther apart no atoms are within the cut-off: hydrogens are a third of a distance
/// between molecules away from their oxygen, and swing by less than another tenth.
const REACH: f64 = CUT_OFF + 2.0 * 0.45;
const TIME_STEP: f64 = 0.002;
/// Of Gear's corrector for equations of second order with seven values (Gear, "Numerical Initial
/// Value Problems in Ordinary Differential Equations", 1971).
const CORRECTOR: [f64; ORDERS] = [
    863.0 / 6048.0,
    665.0 / 1008.0,
    1.0,
    25.0 / 36.0,
    35.0 / 144.0,
    1.0 / 24.0,
    1.0 / 360.0,
];

/// The program.
pub const PROGRAM: Workload = Workload {
    name: "water",
    about: "Molecular dynamics in cells with a cut-off, each thread on its own cells.",
    operand: None,
    options: &[
        cli::THREADS,
        Opt {
            name: "side",
            value: Some("N"),
            default: "32",
            help: "cube root of the number of molecules, even, from 6 to 1024",
        },
        Opt {
            name: "all-pairs",
            value: None,
            default: "",
            help: "each molecule meets all others, instead of those of the 27 cells around it",
        },
        cli::STEPS,
        cli::PIN,
        cli::NO_PIN,
    ],
    run,
};

fn run(args: &Args) -> Result<WorkloadReport, Failure> {
    let team = ThreadTeam::from_args(args)?;
    let side = args.number("side", 6..=1024)? as usize;
    if !side.is_multiple_of(2) {
        return Err(usage(format!(
            "--side {side}: a cell is two molecules long; give an even number"
        )));
    }
    let steps = args.number("steps", 1..=1 << 24)?;
    let started = Instant::now();
    let all_pairs = args.has("all-pairs");
    let mut water = Water::new(side)?;
    water.write();
    let water = &water;
    let setup = started.elapsed().as_secs_f64();
    let results = team.run(|member| {
        member.measure(|| {
            (0..steps as usize)
                .map(|step| match all_pairs {
                    true => water.step_all(member),
                    false => water.step(member, step),
                })
                .sum::<u64>()
        })
    })?;
    let pairs: u64 = results.iter().map(|(pairs, _)| pairs).sum();
    let title = format!(
        "water: {} threads, {} molecules, {steps} steps",
        team.threads(),
        side * side * side
    );
    Ok(WorkloadReport::new(title)
        .line("setup_seconds", format!("{setup:.6}"))
        .line("pairs", pairs)
        .finish(results[0].1, water.molecules.checksum(0)))
}

/// The molecules and in which cells they are, for steps with even and with odd numbers.
struct Water {
    /// Cells along each side.
    cells: usize,
    length: f64,
    molecules: Floats,
    lists: [RegionMemory; 2],
}

impl Water {
    fn new(side: usize) -> Result<Self, Failure> {
        let cells = side / 2;
        let list = || RegionMemory::new(cells * cells * cells * CELL * 8, Placement::default());
        Ok(Self {
            cells,
            length: side as f64,
            molecules: Floats::new(side * side * side * RECORD)?,
            lists: [list()?, list()?],
        })
    }

    /// The main thread writes all: eight molecules in each cell, turned and shifted a little.
    fn write(&mut self) {
        let cells = self.cells;
        for cell in 0..cells * cells * cells {
            let corner = [cell / cells / cells, cell / cells % cells, cell % cells];
            for place in 0..8 {
                let molecule = cell * 8 + place;
                self.lists[0].words()[cell * CELL + 1 + place].store(molecule as u64, Relaxed);
                let oxygen: [f64; 3] = std::array::from_fn(|axis| {
                    let shift = fraction(molecule * 3 + axis) * 0.1 + 0.25;
                    corner[axis] as f64 * CUT_OFF + (place >> axis & 1) as f64 + shift
                });
                let turn = if fraction(molecule * 5) < 0.5 {
                    1.0
                } else {
                    -1.0
                };
                let record = molecule * RECORD;
                (0..RECORD).for_each(|word| self.molecules.set(record + word, 0.0));
                for (atom, [across, along]) in [[0.0, 0.0], [0.245, 0.19], [-0.245, 0.19]]
                    .into_iter()
                    .enumerate()
                {
                    let [x, y, z] = oxygen;
                    let position = [x + across, y + turn * along, z];
                    self.molecules.set_vector(record + atom * 3, position);
                }
            }
            self.lists[0].words()[cell * CELL].store(8, Relaxed);
            self.lists[1].words()[cell * CELL].store(0, Relaxed);
        }
    }

    /// Numbers of the molecules in a cell.
    fn within(&self, list: usize, cell: usize) -> impl Iterator<Item = usize> {
        let words = &self.lists[list].words()[cell * CELL..][..CELL];
        let count = words[0].load(Relaxed) as usize;
        words[1..=count]
            .iter()
            .map(|word| word.load(Relaxed) as usize)
    }

    /// The 27 cells around a cell, itself included.
    fn around(&self, cell: usize) -> [usize; 27] {
        let (cells, place) = (self.cells, |at: usize, by: usize| {
            (at + self.cells + by - 1) % self.cells
        });
        let [x, y, z] = [cell / cells / cells, cell / cells % cells, cell % cells];
        std::array::from_fn(|number| {
            let (x, y) = (place(x, number / 9), place(y, number / 3 % 3));
            (x * cells + y) * cells + place(z, number % 3)
        })
    }

    /// One step of time; the pairs of molecules that this thread computed.
    fn step(&self, member: &Member<'_>, step: usize) -> u64 {
        let (old, new) = (step % 2, (step + 1) % 2);
        let own = member.part(self.cells * self.cells * self.cells);
        for molecule in own.clone().flat_map(|cell| self.within(old, cell)) {
            self.predict(molecule);
        }
        member.sync_awake();
        own.clone().for_each(|cell| self.collect(old, new, cell));
        member.sync_awake();
        let mut pairs = 0;
        for cell in own.clone() {
            let around = self.around(cell);
            for molecule in self.within(new, cell) {
                let others = around.iter().flat_map(|&cell| self.within(new, cell));
                pairs += self.force(molecule, others);
            }
        }
        member.sync_awake();
        for molecule in own.flat_map(|cell| self.within(new, cell)) {
            self.correct(molecule);
        }
        member.sync_awake();
        pairs
    }

    /// One step of time in which each molecule meets all others; the pairs that this thread computed.
    fn step_all(&self, member: &Member<'_>) -> u64 {
        let all = 0..8 * self.cells * self.cells * self.cells;
        let own = member.part(all.end);
        own.clone().for_each(|molecule| self.predict(molecule));
        member.sync_awake();
        let mut pairs = 0;
        for molecule in own.clone() {
            let oxygen = self.molecules.vector(molecule * RECORD);
            let others = all.clone().filter(|&other| {
                let its = self.molecules.vector(other * RECORD);
                let (_, square) = difference(oxygen, its, self.shift(oxygen, its));
                square < REACH * REACH
            });
            pairs += self.force(molecule, others);
        }
        member.sync_awake();
        own.for_each(|molecule| self.correct(molecule));
        member.sync_awake();
        pairs
    }

    /// What brings `other` to the image of it that is nearest.
    fn shift(&self, own: [f64; 3], other: [f64; 3]) -> [f64; 3] {
        std::array::from_fn(|axis| {
            let apart = own[axis] - other[axis];
            if apart > self.length / 2.0 {
                self.length
            } else if apart < -self.length / 2.0 {
                -self.length
            } else {
                0.0
            }
        })
    }

    /// Pascal's triangle on the scaled derivatives; molecules that leave the box enter opposite.
    fn predict(&self, molecule: usize) {
        let record = molecule * RECORD;
        for coordinate in record..record + COORDINATES {
            for lowest in 0..ORDERS - 1 {
                for order in (lowest..ORDERS - 1).rev() {
                    let next = self.molecules.get(coordinate + (order + 1) * COORDINATES);
                    self.molecules.add(coordinate + order * COORDINATES, next);
                }
            }
        }
        for axis in 0..3 {
            let at = self.molecules.get(record + axis);
            let shift = if at < 0.0 {
                self.length
            } else if at >= self.length {
                -self.length
            } else {
                continue;
            };
            (0..3).for_each(|atom| self.molecules.add(record + atom * 3 + axis, shift));
        }
    }

    /// Fills a cell's new list with those of the cells around it that are in it now.
    fn collect(&self, old: usize, new: usize, cell: usize) {
        let words = &self.lists[new].words()[cell * CELL..][..CELL];
        let mut count = 0;
        for molecule in self
            .around(cell)
            .into_iter()
            .flat_map(|c| self.within(old, c))
        {
            let [x, y, z] = self.molecules.vector(molecule * RECORD);
            let number = |at: f64| ((at / CUT_OFF) as usize).min(self.cells - 1);
            if (number(x) * self.cells + number(y)) * self.cells + number(z) == cell {
                count += 1;
                // Molecules repel each other: a cell for eight never holds 63.
                words[count].store(molecule as u64, Relaxed);
            }
        }
        words[0].store(count as u64, Relaxed);
    }

    /// Force on a molecule, from its own springs and from those around it; how many these were.
    #[inline(never)]
    fn force(&self, molecule: usize, others: impl Iterator<Item = usize>) -> u64 {
        let record = molecule * RECORD;
        let atom = |record: usize, atom: usize| self.molecules.vector(record + atom * 3);
        let own = [atom(record, 0), atom(record, 1), atom(record, 2)];
        let mut force = [[0.0; 3]; 3];
        for (a, b, rest) in [(0, 1, BOND), (0, 2, BOND), (1, 2, SPREAD)] {
            let (apart, square) = difference(own[a], own[b], [0.0; 3]);
            let distance = square.sqrt();
            add(&mut force[a], apart, -SPRING * (distance - rest) / distance);
            add(&mut force[b], apart, SPRING * (distance - rest) / distance);
        }
        let mut pairs = 0;
        for other in others {
            let record = other * RECORD;
            let oxygen = atom(record, 0);
            let shift = self.shift(own[0], oxygen);
            if other == molecule {
                continue;
            }
            let atoms = [oxygen, atom(record, 1), atom(record, 2)];
            let apart = own.map(|own| atoms.map(|other| difference(own, other, shift)));
            let is_near = |square: f64| square < CUT_OFF * CUT_OFF;
            if !apart.iter().flatten().any(|&(_, square)| is_near(square)) {
                continue;
            }
            pairs += 1;
            let (between, square) = apart[0][0];
            if is_near(square) {
                let inverse = 1.0 / square;
                let sixth = LENGTH_6 * inverse * inverse * inverse;
                let lennard_jones = 24.0 * STRENGTH * sixth * (2.0 * sixth - 1.0) * inverse;
                add(&mut force[0], between, lennard_jones);
            }
            for (a, force) in force.iter_mut().enumerate() {
                for (b, &(between, square)) in apart[a].iter().enumerate() {
                    if is_near(square) {
                        let coulomb = CHARGES[a] * CHARGES[b] / (square * square.sqrt());
                        add(force, between, coulomb);
                    }
                }
            }
        }
        for (atom, force) in force.into_iter().enumerate() {
            let at = record + FORCE * COORDINATES + atom * 3;
            self.molecules.set_vector(at, force);
        }
        pairs
    }

    fn correct(&self, molecule: usize) {
        for coordinate in 0..COORDINATES {
            let word = |order: usize| molecule * RECORD + order * COORDINATES + coordinate;
            let acceleration = self.molecules.get(word(FORCE)) / MASSES[coordinate / 3];
            let scaled = acceleration * TIME_STEP * TIME_STEP / 2.0;
            let wrong = scaled - self.molecules.get(word(2));
            for (order, share) in CORRECTOR.into_iter().enumerate() {
                self.molecules.add(word(order), share * wrong);
            }
        }
    }
}

/// A number from 0 to 1 for a number.
fn fraction(number: usize) -> f64 {
    (mix(number as u64 + 1) >> 11) as f64 / (1u64 << 53) as f64
}

/// `a - b - shift`, and its square.
#[inline(always)]
fn difference(a: [f64; 3], b: [f64; 3], shift: [f64; 3]) -> ([f64; 3], f64) {
    let apart: [f64; 3] = std::array::from_fn(|axis| a[axis] - b[axis] - shift[axis]);
    (
        apart,
        apart[0] * apart[0] + apart[1] * apart[1] + apart[2] * apart[2],
    )
}

#[inline(always)]
fn add(sum: &mut [f64; 3], vector: [f64; 3], factor: f64) {
    for (sum, value) in sum.iter_mut().zip(vector) {
        *sum += factor * value;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn team() -> ThreadTeam {
        let words: Vec<String> = ["--threads", "2", "--no-pin"].map(str::to_owned).into();
        ThreadTeam::from_args(&PROGRAM.parse(&words).unwrap().unwrap()).unwrap()
    }

    #[test]
    fn all_pairs_have_the_forces_of_cells() {
        let side = 10;
        let run = |all_pairs| {
            let mut water = Water::new(side).unwrap();
            water.write();
            let all = &water;
            let pairs = team().run(|member| {
                let step = |step| match all_pairs {
                    true => all.step_all(member),
                    false => all.step(member, step),
                };
                (0..6).map(step).sum::<u64>()
            });
            (water, pairs.unwrap().iter().sum::<u64>())
        };
        let ((cells, by_cells), (all, by_all)) = (run(false), run(true));
        assert_eq!(by_cells, by_all);
        for molecule in 0..side * side * side {
            for atom in 0..3 {
                let at = molecule * RECORD + FORCE * COORDINATES + atom * 3;
                let (one, other) = (cells.molecules.vector(at), all.molecules.vector(at));
                let (_, square) = difference(one, other, [0.0; 3]);
                assert!(square < 1e-12, "{one:?} {other:?}");
            }
        }
    }

    #[test]
    fn forces_cancel_and_molecules_stay() {
        let mut water = Water::new(6).unwrap();
        water.write();
        let team = team();
        let all = &water;
        team.run(|member| {
            for step in 0..10 {
                all.step(member, step);
            }
        })
        .unwrap();
        let (mut sum, mut largest) = ([0.0; 3], 0.0f64);
        for molecule in 0..216 {
            for atom in 0..3 {
                let at = molecule * RECORD + FORCE * COORDINATES + atom * 3;
                let force = water.molecules.vector(at);
                add(&mut sum, force, 1.0);
                largest = force
                    .iter()
                    .fold(largest, |most, part| most.max(part.abs()));
            }
        }
        assert!(largest > 0.1 && largest < 1e3, "{largest}");
        assert!(sum.iter().all(|sum| sum.abs() < 1e-9), "{sum:?}");
        let mut found: Vec<usize> = (0..27).flat_map(|cell| water.within(0, cell)).collect();
        found.sort_unstable();
        assert_eq!(found, (0..216).collect::<Vec<_>>());
    }
}
