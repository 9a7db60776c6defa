//! `barnes`: bodies that attract each other, by Barnes and Hut's tree.
//!
//! After SPLASH-2's Barnes (Woo et al., 1995; Barnes and Hut, 1986): in each step an oct-tree is
//! built over the bodies, the mass and centre of each cell are computed, and each body walks the
//! tree: a cell that looks small enough from there (its side below its distance, an opening angle
//! of 1) counts as one body. Bodies are Plummer's model, dense in the middle.
//!
//! Barnes's threads insert bodies into one tree under locks. Here they sort bodies into 4096
//! columns, cells of the fourth level, first, then each thread builds the subtrees below its own
//! columns, so that the shape of the tree, and with it the bits of the result, do not depend on the
//! order of threads.
//! Bodies are stored in the order of the columns in which they begin; each thread computes and moves
//! as many as any other, in that order. Cells have a mass and its centre, not Barnes's quadrupoles.
//! With `--grouped`, what all read of a body (position and mass) and what its thread alone uses
//! (velocity and acceleration) are two arrays, as in the ccNUMA paper's "extra".

use crate::cli::{self, Args, Failure, Opt, Workload, WorkloadReport};
use crate::floats::{Floats, load, store};
use crate::memory::{Placement, RegionMemory};
use crate::random::mix;
use crate::team::{Member, ThreadTeam};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Instant;

/// Words of a body: position, mass, velocity, acceleration, and some to spare.
const BODY: usize = 16;
const MASS: usize = 3;
const VELOCITY: usize = 4;
/// Words after the velocity's first.
const ACCELERATION: usize = 3;
/// Words of a cell: centre of mass, mass, four to spare, eight children.
const CELL: usize = 16;
const CHILDREN: usize = 8;
/// A child: nothing, a cell's number, or a body's with this bit.
const NOTHING: u64 = u64::MAX;
const IS_BODY: u64 = 1 << 63;
/// Levels of cells above the columns, how many cells these are, and how many columns.
const TOP_LEVELS: u32 = 4;
const TOP: usize = 585;
const COLUMNS: usize = 4096;
/// Half the side of the root cell; bodies begin within.
const REACH: f64 = 4.0;
/// Square of the opening angle: a cell is opened unless its side over its distance is below.
const OPENING: f64 = 1.0;
const SOFTENING: f64 = 0.05;
const TIME_STEP: f64 = 0.025;

/// The program.
pub const PROGRAM: Workload = Workload {
    name: "barnes",
    about: "Barnes and Hut's tree of attracting bodies, each thread on its own part of space.",
    operand: None,
    options: &[
        cli::THREADS,
        Opt {
            name: "bodies",
            value: Some("N"),
            default: "65536",
            help: "bodies, 16 to 16777216",
        },
        Opt {
            name: "grouped",
            value: None,
            default: "",
            help: "what all read of a body and what its thread alone uses are two arrays",
        },
        cli::STEPS,
        cli::PIN,
        cli::NO_PIN,
    ],
    run,
};

fn run(args: &Args) -> Result<WorkloadReport, Failure> {
    let team = ThreadTeam::from_args(args)?;
    let bodies = args.number("bodies", 16..=1 << 24)? as usize;
    let steps = args.number("steps", 1..=1 << 24)?;
    let started = Instant::now();
    let space = Space::new(bodies, team.threads(), args.has("grouped"))?;
    space.write();
    let setup = started.elapsed().as_secs_f64();
    let results =
        team.run(|member| member.measure(|| (0..steps).map(|_| space.step(member)).sum::<u64>()))?;
    let interactions: u64 = results.iter().map(|(count, _)| count).sum();
    let title = format!(
        "barnes: {} threads, {bodies} bodies, {steps} steps",
        team.threads()
    );
    Ok(WorkloadReport::new(title)
        .line("setup_seconds", format!("{setup:.6}"))
        .line("interactions", interactions)
        .finish(results[0].1, space.checksum()))
}

struct Space {
    count: usize,
    bodies: Floats,
    /// Words of a body there.
    body: usize,
    /// Velocities and accelerations, where they are not in `bodies`.
    motions: Option<Floats>,
    /// First the top cells, level by level; then each thread's own.
    cells: RegionMemory,
    cells_each: usize,
    /// Bodies in the order of columns.
    order: RegionMemory,
    /// How many bodies of each thread's part are in each column.
    counts: RegionMemory,
}

/// A thread's columns, and where in the order each column begins.
struct Sorted {
    starts: Vec<usize>,
    columns: Range<usize>,
}

impl Space {
    fn new(count: usize, threads: usize, is_grouped: bool) -> Result<Self, Failure> {
        let region = |words: usize| RegionMemory::new(words * 8, Placement::default());
        let body = if is_grouped { VELOCITY } else { BODY };
        // In the worst case one thread has them all; pages that it does not use are never touched.
        let cells_each = 4 * count + COLUMNS;
        Ok(Self {
            count,
            bodies: Floats::new(count * body)?,
            body,
            motions: is_grouped
                .then(|| Floats::new(count * (BODY - body)))
                .transpose()?,
            cells: region((TOP + threads * cells_each) * CELL)?,
            cells_each,
            order: region(count)?,
            counts: region(threads * COLUMNS)?,
        })
    }

    /// The main thread writes the bodies, in the order of columns. Cells are written by who makes
    /// them.
    fn write(&self) {
        let mut all: Vec<([f64; 3], usize)> = (0..self.count).map(|n| (plummer(n), n)).collect();
        all.sort_by_key(|(position, _)| column(*position));
        for (body, (position, number)) in all.into_iter().enumerate() {
            let at = body * self.body;
            (0..self.body).for_each(|word| self.bodies.set(at + word, 0.0));
            self.bodies.set_vector(at, position);
            self.bodies.set(at + MASS, 1.0 / self.count as f64);
            let velocity = std::array::from_fn(|axis| 0.2 * (fraction(number * 7 + axis) - 0.5));
            let (motions, at) = self.motion(body);
            motions.set_vector(at, velocity);
            motions.set_vector(at + ACCELERATION, [0.0; 3]);
            self.order.words()[body].store(body as u64, Relaxed);
        }
        self.counts
            .words()
            .iter()
            .for_each(|word| word.store(0, Relaxed));
    }

    /// One step; how many bodies and cells acted upon this thread's bodies.
    fn step(&self, member: &Member<'_>) -> u64 {
        let sorted = self.sort(member);
        self.build(&sorted, member);
        member.sync_awake();
        if member.id == 0 {
            self.join();
        }
        member.sync_awake();
        let own = member.part(self.count);
        let mut walk = Vec::new();
        let acted = own
            .clone()
            .map(|place| self.attract(self.at(place), &mut walk));
        let count = acted.sum();
        member.sync_awake();
        own.for_each(|place| self.advance(self.at(place)));
        member.sync_awake();
        count
    }

    fn position(&self, body: usize) -> [f64; 3] {
        self.bodies.vector(body * self.body)
    }

    /// Where a body's velocity is, and its acceleration after it.
    fn motion(&self, body: usize) -> (&Floats, usize) {
        match &self.motions {
            Some(motions) => (motions, body * (BODY - self.body)),
            None => (&self.bodies, body * BODY + VELOCITY),
        }
    }

    fn checksum(&self) -> u64 {
        let sum = self.bodies.checksum(0);
        (self.motions.iter()).fold(sum, |sum, motions| motions.checksum(sum))
    }

    /// The body at a place of the order.
    fn at(&self, place: usize) -> usize {
        self.order.words()[place].load(Relaxed) as usize
    }

    /// Sorts the bodies of all threads by column: by counting, each thread its part.
    fn sort(&self, member: &Member<'_>) -> Sorted {
        let own = member.part(self.count);
        let counts = |thread: usize| &self.counts.words()[thread * COLUMNS..][..COLUMNS];
        counts(member.id)
            .iter()
            .for_each(|count| count.store(0, Relaxed));
        for body in own.clone() {
            let count = &counts(member.id)[column(self.position(body))];
            count.store(count.load(Relaxed) + 1, Relaxed);
        }
        member.sync_awake();
        let (mut starts, mut next) = (vec![0; COLUMNS + 1], vec![0; COLUMNS]);
        let mut place = 0;
        for column in 0..COLUMNS {
            starts[column] = place;
            for thread in 0..member.threads {
                if thread == member.id {
                    next[column] = place;
                }
                place += counts(thread)[column].load(Relaxed) as usize;
            }
        }
        starts[COLUMNS] = place;
        for body in own.clone() {
            let next = &mut next[column(self.position(body))];
            self.order.words()[*next].store(body as u64, Relaxed);
            *next += 1;
        }
        member.sync_awake();
        // A column is built by the thread in whose part it begins.
        let first = |place: usize| starts[..COLUMNS].partition_point(|start| *start < place);
        let last = member.id + 1 == member.threads;
        let end = if last { COLUMNS } else { first(own.end) };
        Sorted {
            columns: first(own.start)..end,
            starts,
        }
    }

    /// Builds the trees below a thread's columns.
    fn build(&self, sorted: &Sorted, member: &Member<'_>) {
        let mut spare = TOP + member.id * self.cells_each;
        for column in sorted.columns.clone() {
            let slot = self.child(TOP - COLUMNS / 8 + column / 8, column % 8);
            slot.store(NOTHING, Relaxed);
            let (centre, half) = place_of(column);
            for place in sorted.starts[column]..sorted.starts[column + 1] {
                self.insert(slot, self.at(place), centre, half, &mut spare);
            }
            self.weigh(slot.load(Relaxed));
        }
    }

    /// Makes the top cells of what the threads have built.
    fn join(&self) {
        let leaves = TOP - COLUMNS / 8;
        for cell in (0..TOP).rev() {
            if cell < leaves {
                for child in 0..8 {
                    let below = (8 * cell + 1 + child) as u64;
                    self.child(cell, child).store(below, Relaxed);
                }
            }
            self.sum_up(cell);
        }
    }

    fn child(&self, cell: usize, octant: usize) -> &AtomicU64 {
        &self.cells.words()[cell * CELL + CHILDREN + octant]
    }

    /// Centre of mass, and mass, of what a child's word means; none is without mass.
    #[inline(always)]
    fn mass(&self, child: u64) -> ([f64; 3], f64) {
        if child & IS_BODY != 0 {
            let at = (child & !IS_BODY) as usize * self.body;
            return (self.bodies.vector(at), self.bodies.get(at + MASS));
        }
        let at = child as usize * CELL;
        let words = &self.cells.words()[at..at + 4];
        (
            [load(&words[0]), load(&words[1]), load(&words[2])],
            load(&words[3]),
        )
    }

    fn insert<'a>(
        &'a self,
        mut slot: &'a AtomicU64,
        body: usize,
        mut centre: [f64; 3],
        mut half: f64,
        spare: &mut usize,
    ) {
        let position = self.position(body);
        loop {
            let mut held = slot.load(Relaxed);
            if held == NOTHING {
                return slot.store(body as u64 | IS_BODY, Relaxed);
            }
            if held & IS_BODY != 0 {
                let cell = *spare;
                *spare += 1;
                (0..8).for_each(|octant| self.child(cell, octant).store(NOTHING, Relaxed));
                let other = self.position((held & !IS_BODY) as usize);
                self.child(cell, octant(other, centre)).store(held, Relaxed);
                held = cell as u64;
                slot.store(held, Relaxed);
            }
            let octant = octant(position, centre);
            slot = self.child(held as usize, octant);
            half /= 2.0;
            for (axis, centre) in centre.iter_mut().enumerate() {
                *centre += if octant >> axis & 1 == 1 { half } else { -half };
            }
        }
    }

    /// Masses of a cell and of those below it.
    fn weigh(&self, child: u64) {
        if child & IS_BODY != 0 {
            return;
        }
        let cell = child as usize;
        (0..8).for_each(|octant| self.weigh(self.child(cell, octant).load(Relaxed)));
        self.sum_up(cell);
    }

    fn sum_up(&self, cell: usize) {
        let (mut centre, mut mass) = ([0.0; 3], 0.0);
        for octant in 0..8 {
            let child = self.child(cell, octant).load(Relaxed);
            if child != NOTHING {
                let (part, weight) = self.mass(child);
                (0..3).for_each(|axis| centre[axis] += part[axis] * weight);
                mass += weight;
            }
        }
        // A cell of the top may be empty.
        let share = if mass > 0.0 { 1.0 / mass } else { 0.0 };
        let words = &self.cells.words()[cell * CELL..];
        (0..3).for_each(|axis| store(&words[axis], centre[axis] * share));
        store(&words[3], mass);
    }

    /// Walks the tree for a body; how many cells and bodies acted upon it.
    #[inline(never)]
    fn attract(&self, body: usize, walk: &mut Vec<(u64, f64)>) -> u64 {
        let own = self.position(body);
        let (mut sum, mut count) = ([0.0; 3], 0);
        walk.push((0, 4.0 * REACH * REACH));
        while let Some((child, side_2)) = walk.pop() {
            let (centre, mass) = self.mass(child);
            let apart: [f64; 3] = std::array::from_fn(|axis| centre[axis] - own[axis]);
            let square = apart[0] * apart[0] + apart[1] * apart[1] + apart[2] * apart[2];
            if child & IS_BODY == 0 && side_2 >= OPENING * square {
                let cell = child as usize;
                for child in &self.cells.words()[cell * CELL + CHILDREN..][..8] {
                    let child = child.load(Relaxed);
                    if child != NOTHING && child != body as u64 | IS_BODY {
                        walk.push((child, side_2 / 4.0));
                    }
                }
                continue;
            }
            let soft = square + SOFTENING * SOFTENING;
            let factor = mass / (soft * soft.sqrt());
            (0..3).for_each(|axis| sum[axis] += factor * apart[axis]);
            count += 1;
        }
        let (motions, at) = self.motion(body);
        motions.set_vector(at + ACCELERATION, sum);
        count
    }

    fn advance(&self, body: usize) {
        let (motions, at) = self.motion(body);
        for axis in 0..3 {
            let change = motions.get(at + ACCELERATION + axis) * TIME_STEP;
            motions.add(at + axis, change);
            let way = motions.get(at + axis) * TIME_STEP;
            self.bodies.add(body * self.body + axis, way);
        }
    }
}

/// Which eighth of a cell a position is in: one bit for each axis.
#[inline(always)]
fn octant(position: [f64; 3], centre: [f64; 3]) -> usize {
    (0..3).fold(0, |bits, axis| {
        bits | usize::from(position[axis] >= centre[axis]) << axis
    })
}

/// The column of a position: the octants from the root down.
fn column(position: [f64; 3]) -> usize {
    let (mut centre, mut half, mut column) = ([0.0; 3], REACH, 0);
    for _ in 0..TOP_LEVELS {
        let octant = octant(position, centre);
        half /= 2.0;
        for (axis, centre) in centre.iter_mut().enumerate() {
            *centre += if octant >> axis & 1 == 1 { half } else { -half };
        }
        column = 8 * column + octant;
    }
    column
}

/// Centre of a column, and half its side.
fn place_of(column: usize) -> ([f64; 3], f64) {
    let (mut centre, mut half) = ([0.0; 3], REACH);
    for level in (0..TOP_LEVELS).rev() {
        half /= 2.0;
        for (axis, centre) in centre.iter_mut().enumerate() {
            let upper = column >> (3 * level as usize + axis) & 1 == 1;
            *centre += if upper { half } else { -half };
        }
    }
    (centre, half)
}

/// Place of a body in Plummer's model (Aarseth, Henon, Wielen, 1974), without the outer tenth.
fn plummer(number: usize) -> [f64; 3] {
    let mass = 0.9 * fraction(number * 1000);
    // Newton's iteration for the cube root, as powers are not rounded alike everywhere.
    let root = (0..60).fold(1.0, |root: f64, _| {
        root - (root - mass / (root * root)) / 3.0
    });
    let radius = root / (1.0 - root * root).sqrt();
    // A direction: the first point of a sequence that lies in the unit ball.
    for salt in 1.. {
        let point: [f64; 3] =
            std::array::from_fn(|axis| 2.0 * fraction(number * 1000 + 3 * salt + axis) - 1.0);
        let square: f64 = point.iter().map(|part| part * part).sum();
        if square > 1e-6 && square <= 1.0 {
            return point.map(|part| part * radius / square.sqrt());
        }
    }
    unreachable!("half of all points lie in the ball")
}

/// A number from 0 to 1 for a number.
fn fraction(number: usize) -> f64 {
    (mix(number as u64 + 1) >> 11) as f64 / (1u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tree_attracts_as_all_bodies_do() {
        let [one, two] = [false, true].map(attracts_as_all_bodies_do);
        assert_eq!(one, two, "the layout changes nothing");
    }

    /// Where the bodies are after the step.
    fn attracts_as_all_bodies_do(is_grouped: bool) -> Vec<[f64; 3]> {
        let space = Space::new(600, 3, is_grouped).unwrap();
        space.write();
        let words: Vec<String> = ["--threads", "3", "--no-pin"].map(str::to_owned).into();
        let team = ThreadTeam::from_args(&PROGRAM.parse(&words).unwrap().unwrap()).unwrap();
        let before: Vec<[f64; 3]> = (0..600).map(|body| space.position(body)).collect();
        let counts = team.run(|member| space.step(member)).unwrap();
        let count: u64 = counts.iter().sum();
        assert!(count > 600 * 30 && count < 600 * 599, "{count}");
        let (mut wrong, mut size) = (0.0, 0.0);
        for (body, own) in before.iter().enumerate() {
            let mut sum = [0.0; 3];
            for other in &before {
                let apart: [f64; 3] = std::array::from_fn(|axis| other[axis] - own[axis]);
                let square: f64 = apart.iter().map(|part| part * part).sum();
                let soft = square + SOFTENING * SOFTENING;
                (0..3).for_each(|axis| sum[axis] += apart[axis] / (soft * soft.sqrt()) / 600.0);
            }
            let (motions, at) = space.motion(body);
            let found = motions.vector(at + ACCELERATION);
            for axis in 0..3 {
                wrong += (found[axis] - sum[axis]).powi(2);
                size += sum[axis].powi(2);
            }
        }
        assert!(wrong < size * 0.05 * 0.05, "{wrong} {size}");
        (0..600).map(|body| space.position(body)).collect()
    }

    #[test]
    fn columns_lie_where_they_are_looked_for() {
        for number in 0..500 {
            let position = plummer(number);
            let (centre, half) = place_of(column(position));
            for axis in 0..3 {
                assert!(
                    (position[axis] - centre[axis]).abs() <= half,
                    "{position:?}"
                );
            }
        }
    }
}
