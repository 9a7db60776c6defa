//! `mg`: a multigrid solver in three dimensions, each thread on its own planes: the use of memory of NPB's
//! MG.
//!
//! A Poisson equation on a cube that repeats in all directions, with the 7-point stencil. A round is a
//! V-cycle as in NPB: the residual is restricted from grid to grid down to 2 points a side, smoothed there,
//! and corrections are prolongated back, with a residual and a smoothing on each grid. Restriction is full
//! weighting (27 points), prolongation linear. Sweeps go over three arrays of each grid in sequence; only
//! the planes at the edges of a thread's part are read by its neighbours. The fine grids do nearly all the
//! work: a grid has an eighth of the points of the one above it.
//!
//! **First touch:** the main thread, so that all traffic hits one node; with `--local` each thread its own
//! planes of each grid, which is good locality that a policy must not spoil.
//!
//! A smoothing is a damped Jacobi step, so a point does not depend on the order of others; norms are
//! largest magnitudes. So the bits of the result do not depend on the number of threads.

use crate::cli::{self, Args, Failure, Opt, Workload, WorkloadReport, usage};
use crate::floats::{Floats, load, store};
use crate::random::{FastRandom, mix};
use crate::team::{Member, ThreadTeam};
use std::ops::Range;
use std::sync::atomic::AtomicU64;
use std::time::Instant;

/// Points along a side of the coarsest grid, as in NPB.
const COARSEST: usize = 2;
/// Points of the right-hand side that are 1, and that are -1.
const CHARGES: usize = 10;
/// Damping of a Jacobi step: 6/7 is best for the 7-point stencil (Trottenberg et al., "Multigrid", 2.9.2).
const DAMPING: f64 = 6.0 / 7.0;

/// The program.
pub const PROGRAM: Workload = Workload {
    name: "mg",
    about: "Multigrid cycles in three dimensions, each thread on its own planes of each grid.",
    operand: None,
    options: &[
        cli::THREADS,
        Opt {
            name: "size",
            value: Some("N"),
            default: "128",
            help: "points along each side, a power of two from 8 to 1024",
        },
        Opt {
            name: "rounds",
            value: Some("N"),
            default: "4",
            help: "V-cycles",
        },
        Opt {
            name: "local",
            value: None,
            default: "",
            help: "each thread writes its planes first, instead of the main thread",
        },
        cli::SEED,
        cli::PIN,
        cli::NO_PIN,
    ],
    run,
};

fn run(args: &Args) -> Result<WorkloadReport, Failure> {
    let team = ThreadTeam::from_args(args)?;
    let size = args.number("size", 8..=1024)? as usize;
    if !size.is_power_of_two() {
        return Err(usage(format!(
            "--size {size} is no power of two: the nearest is {}",
            size.next_power_of_two()
        )));
    }
    let rounds = args.number("rounds", 1..=1 << 24)?;
    let seed = args.number(cli::SEED.name, 0..=u64::MAX)?;
    let is_local = args.has("local");
    let started = Instant::now();
    let solver = Solver::new(size, seed)?;
    if !is_local {
        solver
            .grids
            .iter()
            .for_each(|grid| grid.clear(0..grid.size));
    }
    let results = team.run(|member| {
        if is_local {
            for grid in &solver.grids {
                grid.clear(member.part(grid.size));
            }
        }
        member.sync_awake();
        solver.charge(member);
        let setup = started.elapsed().as_secs_f64();
        let work = || (0..rounds).for_each(|_| solver.cycle(member));
        let seconds = member.measure(work).1;
        (setup, seconds)
    })?;
    let (setup, seconds) = results[0];
    let finest = &solver.grids[0];
    let title = format!(
        "mg: {} threads, {size} x {size} x {size} points, {rounds} rounds",
        team.threads()
    );
    Ok(WorkloadReport::new(title)
        .line("setup_seconds", format!("{setup:.6}"))
        .line("residual", format!("{:.6e}", finest.norm()))
        .finish(seconds, finest.solution.checksum(0)))
}

/// One grid: what is sought, what it should come to, and what is missing to that. Of the finest grid
/// `right` is given; of others it is the restricted residual of the grid above.
struct Grid {
    size: usize,
    /// Square of the distance between points; the finest grid's is 1.
    spacing_squared: f64,
    solution: Floats,
    right: Floats,
    residual: Floats,
}

impl Grid {
    fn new(size: usize, spacing: f64) -> Result<Self, Failure> {
        let floats = || Floats::new(size * size * size);
        Ok(Self {
            size,
            spacing_squared: spacing * spacing,
            solution: floats()?,
            right: floats()?,
            residual: floats()?,
        })
    }

    /// Points of a line along x.
    fn line<'a>(&self, of: &'a Floats, z: usize, y: usize) -> &'a [AtomicU64] {
        let start = (z * self.size + y) * self.size;
        of.slice(start..start + self.size)
    }

    /// The number of a point's neighbour before and after, around the edge.
    fn around(&self, at: usize) -> (usize, usize) {
        let mask = self.size - 1;
        (at.wrapping_sub(1) & mask, (at + 1) & mask)
    }

    fn clear(&self, planes: Range<usize>) {
        let points = self.size * self.size;
        for of in [&self.solution, &self.right, &self.residual] {
            let words = of.slice(planes.start * points..planes.end * points);
            words.iter().for_each(|word| store(word, 0.0));
        }
    }

    /// residual = right - A solution, on planes of the thread.
    #[inline(never)]
    fn measure(&self, planes: Range<usize>) {
        let scale = 1.0 / self.spacing_squared;
        for z in planes {
            let (below, above) = self.around(z);
            for y in 0..self.size {
                let (before, after) = self.around(y);
                let lines = [(below, y), (above, y), (z, before), (z, after)];
                let lines = lines.map(|(z, y)| self.line(&self.solution, z, y));
                let own = self.line(&self.solution, z, y);
                let right = self.line(&self.right, z, y);
                let residual = self.line(&self.residual, z, y);
                for x in 0..self.size {
                    let (left, next) = self.around(x);
                    let sum = (load(&lines[0][x]) + load(&lines[1][x]))
                        + (load(&lines[2][x]) + load(&lines[3][x]))
                        + (load(&own[left]) + load(&own[next]));
                    let product = (6.0 * load(&own[x]) - sum) * scale;
                    store(&residual[x], load(&right[x]) - product);
                }
            }
        }
    }

    /// A damped Jacobi step, with the residual as it is.
    #[inline(never)]
    fn smooth(&self, planes: Range<usize>) {
        let points = self.size * self.size;
        let range = planes.start * points..planes.end * points;
        let weight = DAMPING * self.spacing_squared / 6.0;
        let residual = self.residual.slice(range.clone());
        for (point, residual) in self.solution.slice(range).iter().zip(residual) {
            store(point, load(point) + weight * load(residual));
        }
    }

    /// The coarser grid's right-hand side, on its planes of the thread: weights 1/8, 1/16, 1/32 and 1/64 by
    /// distance. Its solution begins at 0.
    #[inline(never)]
    fn restrict(&self, coarse: &Grid, planes: Range<usize>) {
        coarse.clear(planes.clone());
        let weigh = |at: usize| {
            let (before, after) = self.around(2 * at);
            [(before, 0.25), (2 * at, 0.5), (after, 0.25)]
        };
        for z in planes {
            for y in 0..coarse.size {
                let line = coarse.line(&coarse.right, z, y);
                for (x, point) in line.iter().enumerate() {
                    let mut sum = 0.0;
                    for (fine_z, weight_z) in weigh(z) {
                        for (fine_y, weight_y) in weigh(y) {
                            let fine = self.line(&self.residual, fine_z, fine_y);
                            let row = weigh(x).map(|(x, weight)| weight * load(&fine[x]));
                            sum += weight_z * weight_y * (row[0] + row[1] + row[2]);
                        }
                    }
                    store(point, sum);
                }
            }
        }
    }

    /// Adds the coarser grid's solution, on planes of the thread: between two of its points their mean.
    #[inline(never)]
    fn correct(&self, coarse: &Grid, planes: Range<usize>) {
        let ends = |at: usize| {
            let low = at / 2;
            match at % 2 {
                0 => (low, low),
                _ => (low, (low + 1) & (coarse.size - 1)),
            }
        };
        for z in planes {
            let (z0, z1) = ends(z);
            for y in 0..self.size {
                let (y0, y1) = ends(y);
                let lines = [(z0, y0), (z0, y1), (z1, y0), (z1, y1)];
                let lines = lines.map(|(z, y)| coarse.line(&coarse.solution, z, y));
                for (x, point) in self.line(&self.solution, z, y).iter().enumerate() {
                    let (x0, x1) = ends(x);
                    let both = lines.map(|line| load(&line[x0]) + load(&line[x1]));
                    let mean = ((both[0] + both[1]) + (both[2] + both[3])) * 0.125;
                    store(point, load(point) + mean);
                }
            }
        }
    }

    /// The largest magnitude of the residual.
    fn norm(&self) -> f64 {
        let points = (0..self.residual.len()).map(|at| self.residual.get(at).abs());
        points.fold(0.0, f64::max)
    }
}

/// All grids, the finest first.
struct Solver {
    grids: Vec<Grid>,
    seed: u64,
}

impl Solver {
    fn new(size: usize, seed: u64) -> Result<Self, Failure> {
        let sizes = std::iter::successors(Some(size), |size| Some(size / 2));
        let sizes = sizes.take_while(|&size| size >= COARSEST);
        let grids = sizes.map(|own| Grid::new(own, (size / own) as f64));
        Ok(Self {
            grids: grids.collect::<Result<_, _>>()?,
            seed,
        })
    }

    /// The right-hand side, as NPB has it: ten points of 1 and ten of -1, elsewhere 0. Its sum is 0 also
    /// where two fall on the same point. The residual of a solution of 0 is the right-hand side.
    fn charge(&self, member: &Member<'_>) {
        let finest = &self.grids[0];
        if member.id == 0 {
            let mut random = FastRandom::new(mix(self.seed));
            for number in 0..2 * CHARGES {
                let at = random.below(finest.right.len() as u64) as usize;
                finest
                    .right
                    .add(at, if number % 2 == 0 { 1.0 } else { -1.0 });
            }
        }
        member.sync_awake();
        finest.measure(member.part(finest.size));
        member.sync_awake();
    }

    /// A V-cycle; afterwards the residual of the finest grid is up to date.
    fn cycle(&self, member: &Member<'_>) {
        let own = |grid: &Grid| member.part(grid.size);
        for pair in self.grids.windows(2) {
            let (fine, coarse) = (&pair[0], &pair[1]);
            fine.restrict(coarse, own(coarse));
            member.sync_awake();
            // The solution there is 0, so that its right-hand side is all that is missing.
            coarse.measure(own(coarse));
            member.sync_awake();
        }
        let coarsest = &self.grids[self.grids.len() - 1];
        coarsest.smooth(own(coarsest));
        member.sync_awake();
        for pair in self.grids.windows(2).rev() {
            let (fine, coarse) = (&pair[0], &pair[1]);
            fine.correct(coarse, own(fine));
            member.sync_awake();
            fine.measure(own(fine));
            member.sync_awake();
            fine.smooth(own(fine));
            member.sync_awake();
        }
        let finest = &self.grids[0];
        finest.measure(own(finest));
        member.sync_awake();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn team(threads: &str) -> ThreadTeam {
        let words: Vec<String> = ["--threads", threads, "--no-pin"].map(str::to_owned).into();
        ThreadTeam::from_args(&PROGRAM.parse(&words).unwrap().unwrap()).unwrap()
    }

    #[test]
    fn every_cycle_lessens_the_residual() {
        let solver = Solver::new(32, 1).unwrap();
        assert_eq!(solver.grids.len(), 5);
        team("1").run(|member| solver.charge(member)).unwrap();
        let mut before = solver.grids[0].norm();
        assert!(before >= 1.0);
        for cycle in 0..6 {
            team("3").run(|member| solver.cycle(member)).unwrap();
            let after = solver.grids[0].norm();
            assert!(after < before, "cycle {cycle}: {before} to {after}");
            before = after;
        }
        // Of high frequencies a damped step leaves 5/7, so that two cycles go well below a half.
        assert!(before < 0.02, "{before}");
    }

    #[test]
    fn grids_pass_constants_on_unchanged() {
        let (fine, coarse) = (Grid::new(8, 1.0).unwrap(), Grid::new(4, 2.0).unwrap());
        (0..512).for_each(|at| fine.residual.set(at, 3.0));
        fine.restrict(&coarse, 0..4);
        assert!((0..64).all(|at| coarse.right.get(at) == 3.0));
        (0..64).for_each(|at| coarse.solution.set(at, 5.0));
        fine.correct(&coarse, 0..8);
        assert!((0..512).all(|at| fine.solution.get(at) == 5.0));
        // A constant has no curvature.
        fine.measure(0..8);
        assert!((0..512).all(|at| fine.residual.get(at) == 0.0));
    }
}
