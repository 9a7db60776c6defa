//! `ocean`: a two-layer ocean basin under wind, by finite differences.
//!
//! The quasi-geostrophic model that SPLASH-2's Ocean simulates (Woo et al., 1995), with its use of
//! memory: some twenty square grids, each an allocation of its own, every thread on its own band
//! of rows of all of them, neighbours' rows read at the edges of bands. A time step computes
//! vorticity, its advection (a Jacobian), friction and wind, then finds the stream function of
//! each layer by multigrid: V-cycles of red-black Gauss-Seidel sweeps.
//!
//! Each point has one writer in a phase and red points depend on black ones only, so that the bits
//! of the result do not depend on the number of threads. Ocean iterates to a tolerance; here the
//! number of cycles is given, as a sum over threads would depend on their number.

use crate::cli::{self, Args, Failure, Opt, Program, Report, usage};
use crate::floats::{Floats, load, store};
use crate::team::{Member, Team};
use std::sync::atomic::AtomicU64;
use std::time::Instant;

const LAYERS: usize = 2;
/// Sweeps before a cycle goes to the coarser grid, and after it came back.
const SWEEPS: usize = 2;
/// Sweeps on the coarsest grid, of 4 x 4 points.
const COARSEST_SWEEPS: usize = 8;
/// Dimensionless model constants: gradient of the Earth's rotation, coupling of the layers,
/// viscosity, wind, and the step of time.
const BETA: f64 = 1.0;
const COUPLING: f64 = 0.5;
const VISCOSITY: f64 = 0.05;
const WIND: f64 = 1.0;
const TIME_STEP: f64 = 0.01;

/// The program.
pub const PROGRAM: Program = Program {
    name: "ocean",
    about: "A two-layer ocean by finite differences and multigrid, each thread on its own rows.",
    operand: None,
    options: &[
        cli::THREADS,
        Opt {
            name: "size",
            value: Some("N"),
            default: "512",
            help: "points along each side within the coast, a power of two from 8 to 16384",
        },
        Opt {
            name: "steps",
            value: Some("N"),
            default: "3",
            help: "steps of time",
        },
        Opt {
            name: "cycles",
            value: Some("N"),
            default: "2",
            help: "multigrid cycles for each layer in a step",
        },
        cli::PIN,
        cli::NO_PIN,
    ],
    run,
};

fn run(args: &Args) -> Result<Report, Failure> {
    let team = Team::from_args(args)?;
    let size = args.number("size", 8..=1 << 14)? as usize;
    if !size.is_power_of_two() {
        return Err(usage(format!(
            "--size {size} is no power of two: the nearest is {}",
            size.next_power_of_two()
        )));
    }
    let steps = args.number("steps", 1..=1 << 24)?;
    let cycles = args.number("cycles", 1..=1000)? as usize;
    let started = Instant::now();
    let ocean = Ocean::new(size)?;
    ocean.write();
    let setup = started.elapsed().as_secs_f64();
    let times = team.run(|member| {
        let work = || (0..steps).for_each(|_| ocean.step(member, cycles));
        member.measure(work).1
    })?;
    let checksum = ocean.layers.iter().fold(0, |sum, layer| {
        layer
            .vorticity
            .data
            .checksum(layer.stream().data.checksum(sum))
    });
    let title = format!(
        "ocean: {} threads, {side} x {side} points, {steps} steps, {cycles} cycles",
        team.threads(),
        side = size + 2
    );
    Ok(Report::new(title)
        .line("setup_seconds", format!("{setup:.6}"))
        .finish(times[0], checksum))
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

/// A problem "laplacian of q is right" of multigrid; `residual` is what is wrong with q.
struct Level {
    q: Grid,
    right: Grid,
    residual: Grid,
}

struct Layer {
    /// One level per size; the first level's q is the stream function.
    levels: Vec<Level>,
    vorticity: Grid,
    /// A step ago.
    previous: Grid,
    advection: Grid,
    friction: Grid,
    coupling: Grid,
}

impl Layer {
    fn stream(&self) -> &Grid {
        &self.levels[0].q
    }
}

struct Ocean {
    layers: Vec<Layer>,
    wind: Grid,
}

impl Ocean {
    fn new(size: usize) -> Result<Self, Failure> {
        let sizes = std::iter::successors(Some(size), |size| Some(size / 2).filter(|&s| s >= 4));
        let sizes: Vec<usize> = sizes.collect();
        let mut layers = Vec::with_capacity(LAYERS);
        for _ in 0..LAYERS {
            let mut levels = Vec::with_capacity(sizes.len());
            for &size in &sizes {
                levels.push(Level {
                    q: Grid::new(size)?,
                    right: Grid::new(size)?,
                    residual: Grid::new(size)?,
                });
            }
            layers.push(Layer {
                levels,
                vorticity: Grid::new(size)?,
                previous: Grid::new(size)?,
                advection: Grid::new(size)?,
                friction: Grid::new(size)?,
                coupling: Grid::new(size)?,
            });
        }
        let wind = Grid::new(size)?;
        Ok(Self { layers, wind })
    }

    /// The main thread writes all grids: still water, a wind that turns from west to east and back.
    fn write(&self) {
        for layer in &self.layers {
            let work = [
                &layer.vorticity,
                &layer.previous,
                &layer.advection,
                &layer.friction,
                &layer.coupling,
            ];
            let levels = layer.levels.iter();
            let levels = levels.flat_map(|level| [&level.q, &level.right, &level.residual]);
            for grid in levels.chain(work) {
                grid.write(|_, _| 0.0);
            }
        }
        let size = self.wind.size as f64;
        self.wind.write(|row, _| {
            let y = row as f64 / (size + 1.0);
            WIND * (2.0 * y - 1.0) * y * (1.0 - y)
        });
    }

    fn step(&self, member: &Member<'_>, cycles: usize) {
        let size = self.wind.size;
        for (number, layer) in self.layers.iter().enumerate() {
            let other = self.layers[1 - number].stream();
            for row in self.wind.own(member) {
                let (psi, other) = (layer.stream().rows(row), other.row(row));
                let (zeta, coupling) = (layer.vorticity.row(row), layer.coupling.row(row));
                for at in 1..=size {
                    let coupled = COUPLING * (load(&other[at]) - load(&psi.here[at]));
                    store(&coupling[at], coupled);
                    store(&zeta[at], psi.laplacian(at) + coupled);
                }
            }
        }
        member.sync_awake();
        for layer in &self.layers {
            for row in self.wind.own(member) {
                let (psi, zeta) = (layer.stream().rows(row), layer.vorticity.rows(row));
                let (previous, advection) = (layer.previous.rows(row), layer.advection.row(row));
                let friction = layer.friction.row(row);
                for at in 1..=size {
                    let jacobian = psi.along(at) * (zeta.across(at) + 2.0 * BETA)
                        - psi.across(at) * zeta.along(at);
                    store(&advection[at], jacobian / 4.0);
                    store(&friction[at], VISCOSITY * previous.laplacian(at));
                }
            }
        }
        member.sync_awake();
        for (number, layer) in self.layers.iter().enumerate() {
            // The wind blows over the upper layer.
            let wind_share = if number == 0 { 1.0 } else { 0.0 };
            for row in self.wind.own(member) {
                let (zeta, previous) = (layer.vorticity.row(row), layer.previous.row(row));
                let (advection, friction) = (layer.advection.row(row), layer.friction.row(row));
                let (coupling, wind) = (layer.coupling.row(row), self.wind.row(row));
                let right = layer.levels[0].right.row(row);
                for at in 1..=size {
                    let change =
                        load(&friction[at]) + wind_share * load(&wind[at]) - load(&advection[at]);
                    let next = load(&previous[at]) + 2.0 * TIME_STEP * change;
                    store(&right[at], next - load(&coupling[at]));
                    store(&previous[at], load(&zeta[at]));
                }
            }
        }
        member.sync_awake();
        for layer in &self.layers {
            (0..cycles).for_each(|_| cycle(&layer.levels, member));
        }
    }
}

/// One V-cycle.
fn cycle(levels: &[Level], member: &Member<'_>) {
    let level = &levels[0];
    let [_, coarse, ..] = levels else {
        (0..COARSEST_SWEEPS).for_each(|_| sweep(level, member));
        return;
    };
    (0..SWEEPS).for_each(|_| sweep(level, member));
    for row in level.q.own(member) {
        let (q, right, residual) = (
            level.q.rows(row),
            level.right.row(row),
            level.residual.row(row),
        );
        for at in 1..=level.q.size {
            store(&residual[at], load(&right[at]) - q.laplacian(at));
        }
    }
    member.sync_awake();
    // The mean of four points, times four: the coarse grid's points are twice as far apart.
    for row in coarse.q.own(member) {
        let (above, below) = (level.residual.row(2 * row - 1), level.residual.row(2 * row));
        let (q, right) = (coarse.q.row(row), coarse.right.row(row));
        for at in 1..=coarse.q.size {
            let upper = load(&above[2 * at - 1]) + load(&above[2 * at]);
            store(
                &right[at],
                upper + load(&below[2 * at - 1]) + load(&below[2 * at]),
            );
            store(&q[at], 0.0);
        }
    }
    member.sync_awake();
    cycle(&levels[1..], member);
    for row in level.q.own(member) {
        let (q, from) = (level.q.row(row), coarse.q.row(row.div_ceil(2)));
        for at in 1..=level.q.size {
            store(&q[at], load(&q[at]) + load(&from[at.div_ceil(2)]));
        }
    }
    member.sync_awake();
    (0..SWEEPS).for_each(|_| sweep(level, member));
}

/// Red points, then black ones, as on a chess board.
#[inline(never)]
fn sweep(level: &Level, member: &Member<'_>) {
    for colour in 0..2 {
        for row in level.q.own(member) {
            let (q, right) = (level.q.rows(row), level.right.row(row));
            for at in (1 + (row + colour) % 2..=level.q.size).step_by(2) {
                let wrong = q.laplacian(at) - load(&right[at]);
                store(&q.here[at], load(&q.here[at]) + wrong / 4.0);
            }
        }
        member.sync_awake();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cycles_solve_the_problem() {
        let ocean = Ocean::new(32).unwrap();
        ocean.write();
        let levels = &ocean.layers[0].levels;
        let level = &levels[0];
        level
            .right
            .write(|row, column| (row * 7 + column * 3) as f64 % 5.0 - 2.0);
        let words: Vec<String> = ["--threads", "2", "--no-pin"].map(str::to_owned).into();
        let team = Team::from_args(&PROGRAM.parse(&words).unwrap().unwrap()).unwrap();
        let wrong = || {
            let mut largest = 0.0f64;
            for row in 1..=32 {
                for column in 1..=32 {
                    let right = load(&level.right.row(row)[column]);
                    let wrong = right - level.q.rows(row).laplacian(column);
                    largest = largest.max(wrong.abs());
                }
            }
            largest
        };
        assert_eq!(wrong(), 2.0);
        team.run(|member| (0..20).for_each(|_| cycle(levels, member)))
            .unwrap();
        assert!(wrong() < 1e-6, "{}", wrong());
    }
}
