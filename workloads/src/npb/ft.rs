//! Fourier transforms of three dimensions of a field that changes with time.
//!
//! A round turns the phase of each of the field's waves, copies the field, and transforms the copy along z, y and
//! x, each from one array into the other. Lines along y and z are strided: four lines side by
//! side, 64 bytes wide, are gathered, transformed and scattered, as NPB's FT does in blocks. The first
//! two passes of a transform need no multiplication.
//!
//! **Work** for n points, n = x y z. Operations: 12 n for phases and 6 per row of x; along an axis of 2^k points
//! 4 n for the first two passes and 5 n for each of the other k - 2. Bytes read: phases 32 n (field, copy
//! fetched), each axis 32 n; written: 32 n, and 16 n for each axis. The ratio grows with the logarithm of the size, by 5 %
//! for twice as many points.

#![expect(
    clippy::needless_range_loop,
    reason = "indices name places of several arrays at once"
)]

use super::grid::Grid;
use super::real::{Real, fraction};
use super::table::Work;
use super::{Kernel, Words, carve};
use crate::cli::Failure;
use crate::fft3d::Roots;
use crate::memory::FirstNode;
use crate::random::mix;
use crate::team::Member;
use std::sync::atomic::AtomicU64;

/// Lines transformed side by side: their points are a line of memory.
const WIDTH: usize = 4;

/// A complex number.
type Complex<R> = [R; 2];

/// The kernel.
pub struct Ft {
    words: Words,
    grid: Grid,
    roots: Roots,
}

impl Kernel for Ft {
    const NAME: &'static str = "ft";

    fn new(bytes: usize, _: usize, start: FirstNode) -> Result<Self, Failure> {
        // The size is a power of two by the choice of --scale-mb.
        let points = 1usize << (bytes / 48).max(64).ilog2();
        let grid = Grid::of(points, 1);
        Ok(Self {
            words: Words::new(6 * points, start)?,
            grid,
            roots: Roots::new(grid.z),
        })
    }

    fn words(&self) -> &Words {
        &self.words
    }

    fn write(&self) {
        let field = 2 * self.grid.points();
        self.words.fill(|at| match at < field {
            true => fraction(mix(at as u64 + 1)).to_bits(),
            false => 0,
        });
    }

    fn round_work(&self) -> Work {
        let points = self.grid.points() as u64;
        let passes = |side: usize| 4 + 5 * (u64::from(side.ilog2()) - 2);
        let Grid { x, y, z } = self.grid;
        Work {
            flops: points * (12 + passes(x) + passes(y) + passes(z)) + 6 * (y * z) as u64,
            read_bytes: points * (32 + 3 * 32),
            write_bytes: points * (32 + 3 * 16),
        }
    }

    fn round<R: Real>(&self, member: &Member<'_>, _: u64) {
        let grid = self.grid;
        let words = 2 * grid.points();
        let [field, first, second] = carve(self.words.all(), [words; 3]);
        let roots = &self.roots;
        turn::<R>(grid, field, first, roots, member);
        member.sync_awake();
        let mut lines = Lines::<R>::new(roots, grid.z);
        for y in member.part(grid.y) {
            for x in (0..grid.x).step_by(WIDTH) {
                lines.transform_side_by_side(first, second, grid.at(0, y, x), grid.x * grid.y);
            }
        }
        member.sync_awake();
        let mut lines = Lines::<R>::new(roots, grid.y);
        for z in member.part(grid.z) {
            for x in (0..grid.x).step_by(WIDTH) {
                lines.transform_side_by_side(second, first, grid.at(z, 0, x), grid.x);
            }
        }
        member.sync_awake();
        let mut lines = Lines::<R>::new(roots, grid.x);
        for z in member.part(grid.z) {
            for y in 0..grid.y {
                lines.transform_along(first, second, grid.at(z, y, 0));
            }
        }
        member.sync_awake();
    }
}

/// Turns the phase of each wave by a root of unity that depends on its numbers' squares; copies it.
#[inline(never)]
fn turn<R: Real>(
    grid: Grid,
    field: &[AtomicU64],
    copy: &[AtomicU64],
    roots: &Roots,
    member: &Member<'_>,
) {
    let phases = |side: usize| -> Vec<Complex<R>> {
        let half = &roots.0[side.ilog2() as usize - 1];
        let phase = |at: usize| {
            let at = at * at % side;
            match at < side / 2 {
                true => half[at],
                false => (-half[at - side / 2].0, -half[at - side / 2].1),
            }
        };
        let phases = (0..side).map(phase);
        phases
            .map(|(real, imaginary)| [R::of(real), R::of(imaginary)])
            .collect()
    };
    let (along_x, along_y, along_z) = (phases(grid.x), phases(grid.y), phases(grid.z));
    for z in member.part(grid.z) {
        for y in 0..grid.y {
            let row = multiply(along_y[y], along_z[z]);
            for (x, phase) in along_x.iter().enumerate() {
                let at = 2 * grid.at(z, y, x);
                let wave = multiply(R::load_all(field, at), multiply(row, *phase));
                R::store_all(&wave, field, at);
                R::store_all(&wave, copy, at);
            }
        }
    }
}

/// Room for lines while they are transformed.
struct Lines<'a, R> {
    roots: &'a [Vec<(f64, f64)>],
    lines: [Vec<Complex<R>>; WIDTH],
    /// The points' numbers with their bits read backwards.
    places: Vec<usize>,
}

impl<'a, R: Real> Lines<'a, R> {
    fn new(roots: &'a Roots, len: usize) -> Self {
        let unused = usize::BITS - len.ilog2();
        Self {
            roots: &roots.0[..len.ilog2() as usize],
            lines: std::array::from_fn(|_| vec![[R::of(0.0); 2]; len]),
            places: (0..len).map(|at| at.reverse_bits() >> unused).collect(),
        }
    }

    /// Lines from point `start` on and the next ones along x, strided.
    #[inline(never)]
    fn transform_side_by_side(
        &mut self,
        from: &[AtomicU64],
        to: &[AtomicU64],
        start: usize,
        stride: usize,
    ) {
        for (at, place) in self.places.iter().enumerate() {
            let first = 2 * (start + at * stride);
            for (number, line) in self.lines.iter_mut().enumerate() {
                line[*place] = R::load_all(from, first + 2 * number);
            }
        }
        self.lines
            .iter_mut()
            .for_each(|line| transform(line, self.roots));
        for at in 0..self.places.len() {
            let first = 2 * (start + at * stride);
            for (number, line) in self.lines.iter().enumerate() {
                R::store_all(&line[at], to, first + 2 * number);
            }
        }
    }

    /// A line along x.
    #[inline(never)]
    fn transform_along(&mut self, from: &[AtomicU64], to: &[AtomicU64], start: usize) {
        let line = &mut self.lines[0];
        for (at, place) in self.places.iter().enumerate() {
            line[*place] = R::load_all(from, 2 * (start + at));
        }
        transform(line, self.roots);
        for (at, value) in line.iter().enumerate() {
            R::store_all(value, to, 2 * (start + at));
        }
    }
}

/// Transforms a line that is in the order of its numbers' bits read backwards.
#[inline(never)]
fn transform<R: Real>(line: &mut [Complex<R>], roots: &[Vec<(f64, f64)>]) {
    for four in line.as_chunks_mut::<4>().0 {
        let (a, b) = (plus(four[0], four[1]), minus(four[0], four[1]));
        let (c, d) = (plus(four[2], four[3]), minus(four[2], four[3]));
        // The second pass's other root is -i: it turns d = (x, y) into (y, -x).
        let below = [b[0] + d[1], b[1] - d[0]];
        let above = [b[0] - d[1], b[1] + d[0]];
        *four = [plus(a, c), below, minus(a, c), above];
    }
    for roots in &roots[2..] {
        for block in line.chunks_exact_mut(2 * roots.len()) {
            let (low, high) = block.split_at_mut(roots.len());
            for ((low, high), root) in low.iter_mut().zip(high).zip(roots) {
                let turned = multiply([R::of(root.0), R::of(root.1)], *high);
                (*low, *high) = (plus(*low, turned), minus(*low, turned));
            }
        }
    }
}

#[inline(always)]
fn multiply<R: Real>(a: Complex<R>, b: Complex<R>) -> Complex<R> {
    [a[0] * b[0] - a[1] * b[1], a[0] * b[1] + a[1] * b[0]]
}

#[inline(always)]
fn plus<R: Real>(a: Complex<R>, b: Complex<R>) -> Complex<R> {
    [a[0] + b[0], a[1] + b[1]]
}

#[inline(always)]
fn minus<R: Real>(a: Complex<R>, b: Complex<R>) -> Complex<R> {
    [a[0] - b[0], a[1] - b[1]]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::npb::tests::{kernel, run};

    #[test]
    fn a_wave_becomes_one_point() {
        for size in [4usize, 8, 32] {
            let roots = Roots::new(size);
            let unused = usize::BITS - size.ilog2();
            let mut line = vec![[0.0; 2]; size];
            for at in 0..size {
                let angle = std::f64::consts::TAU * 3.0 * at as f64 / size as f64;
                line[at.reverse_bits() >> unused] = [angle.cos(), angle.sin()];
            }
            transform(&mut line, &roots.0);
            for (at, value) in line.into_iter().enumerate() {
                let expected = if at == 3 { size as f64 } else { 0.0 };
                assert!((value[0] - expected).abs() < 1e-12, "{size}: {at}");
                assert!(value[1].abs() < 1e-12, "{size}: {at}");
            }
        }
    }

    #[test]
    fn turns_and_transforms_keep_a_fields_energy() {
        let ft = kernel::<Ft>(3 << 18, 3);
        let energy =
            |words: &[AtomicU64]| -> f64 { words.iter().map(f64::load).map(|a: f64| a * a).sum() };
        let n = 2 * ft.grid.points();
        let before = energy(&ft.words.all()[..n]);
        run::<_, f64>(&ft, 3, 0..3);
        let [field, _, second] = carve(ft.words.all(), [n; 3]);
        let points = ft.grid.points() as f64;
        assert!((energy(field) / before - 1.0).abs() < 1e-12);
        assert!((energy(second) / before / points - 1.0).abs() < 1e-12);
    }
}
