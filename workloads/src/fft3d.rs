//! `fft3d`: three-dimensional Fourier transforms, forth and back.
//!
//! A textbook transform: radix-2 passes in place, along x and then along y, each
//! thread on its own planes of z; the array is then transposed into a second one, in which the
//! lines along z are contiguous and each thread has its own rows of y. The transposition reads
//! what all threads wrote; everything else is a thread's own. Each step goes over all of a thread's
//! planes before the next begins, as a program does that is written as a row of calls. Scaled and transformed back, the
//! second array ends in the first. After the six subranges that the IBM paper found in 3DFFT
//! ("Experience with building a commodity Intel-based ccNUMA system", figure 8): parts of each
//! thread, and an area in between that threads share.
//!
//! Threads stagger their reading of the others' parts, as those of SPLASH-2's FFT do against hot
//! spots (Woo et al., 1995).
//!
//! Lines do not depend on who transforms them, so the bits of the result do not depend on the
//! number of threads.

use crate::cli::{self, Args, Failure, Opt, Workload, WorkloadReport, usage};
use crate::floats::{Floats, load, store};
use crate::random::mix;
use crate::team::{Member, ThreadTeam};
use std::sync::atomic::AtomicU64;
use std::time::Instant;

/// The program.
pub const PROGRAM: Workload = Workload {
    name: "fft3d",
    about: "Three-dimensional Fourier transforms, forth and back, each thread on its own planes.",
    operand: None,
    options: &[
        cli::THREADS,
        Opt {
            name: "size",
            value: Some("N"),
            default: "128",
            help: "points along each side, a power of two from 4 to 1024",
        },
        Opt {
            name: "rounds",
            value: Some("N"),
            default: "1",
            help: "transforms forth and back",
        },
        cli::PIN,
        cli::NO_PIN,
    ],
    run,
};

fn run(args: &Args) -> Result<WorkloadReport, Failure> {
    let team = ThreadTeam::from_args(args)?;
    let size = args.number("size", 4..=1024)? as usize;
    if !size.is_power_of_two() {
        return Err(usage(format!(
            "--size {size} is no power of two: the nearest is {}",
            size.next_power_of_two()
        )));
    }
    let rounds = args.number("rounds", 1..=1 << 24)? as usize;
    let started = Instant::now();
    let cube = Cube {
        size,
        first: Floats::new(2 * size * size * size)?,
        second: Floats::new(2 * size * size * size)?,
    };
    cube.write();
    let setup = started.elapsed().as_secs_f64();
    let times = team.run(|member| {
        let roots = Roots::new(size);
        let work = || (0..rounds).for_each(|_| cube.forth_and_back(member, &roots));
        member.measure(work).1
    })?;
    let points = (size * size * size) as f64;
    // 5 n log2 n operations for each transform of n points (Cooley and Tukey), and the scaling.
    let flops = points * (2.0 * 5.0 * 3.0 * f64::from(size.ilog2()) + 2.0) * rounds as f64;
    let title = format!(
        "fft3d: {} threads, {size} x {size} x {size} points, {rounds} rounds",
        team.threads()
    );
    Ok(WorkloadReport::new(title)
        .line("setup_seconds", format!("{setup:.6}"))
        .line("mflops", format!("{:.3}", flops / times[0] / 1e6))
        .finish(times[0], cube.first.checksum(0)))
}

/// Complex numbers: real and imaginary part in turns.
struct Cube {
    size: usize,
    /// In the order z, y, x.
    first: Floats,
    /// In the order y, x, z.
    second: Floats,
}

impl Cube {
    /// The main thread writes both arrays.
    fn write(&self) {
        for index in 0..self.first.len() {
            let bits = mix(index as u64 + 1) >> 11;
            self.first.set(index, bits as f64 / (1u64 << 53) as f64);
            self.second.set(index, 0.0);
        }
    }

    fn forth_and_back(&self, member: &Member<'_>, roots: &Roots) {
        let (size, own) = (self.size, member.part(self.size));
        let plane = |at: usize| 2 * at * size * size..2 * (at + 1) * size * size;
        // Everyone begins with what is its own, so that not all read from one thread at a time.
        let first = own.start;
        let staggered = move || (0..size).map(move |at| (first + at) % size);
        let scale = 1.0 / (size * size * size) as f64;
        let first_planes = || own.clone().map(|z| self.first.slice(plane(z)));
        let second_planes = || own.clone().map(|y| self.second.slice(plane(y)));
        let along = |plane, forth| lines(plane, size, |line| transform(line, roots, forth));
        first_planes().for_each(|plane| along(plane, true));
        first_planes().for_each(|plane| transform_rows(plane, size, roots, true));
        member.sync_awake();
        for y in own.clone() {
            for z in staggered() {
                for x in 0..size {
                    let from = (z * size + y) * size + x;
                    copy(&self.first, from, &self.second, (y * size + x) * size + z);
                }
            }
        }
        second_planes().for_each(|plane| along(plane, true));
        second_planes().for_each(|plane| {
            plane
                .iter()
                .for_each(|word| store(word, load(word) * scale));
        });
        second_planes().for_each(|plane| along(plane, false));
        member.sync_awake();
        for z in own.clone() {
            for y in staggered() {
                for x in 0..size {
                    let from = (y * size + x) * size + z;
                    copy(&self.second, from, &self.first, (z * size + y) * size + x);
                }
            }
        }
        first_planes().for_each(|plane| transform_rows(plane, size, roots, false));
        first_planes().for_each(|plane| along(plane, false));
        member.sync_awake();
    }
}

/// Calls `body` with each line of a plane.
fn lines(plane: &[AtomicU64], size: usize, body: impl FnMut(&[AtomicU64])) {
    plane.chunks_exact(2 * size).for_each(body);
}

#[inline(always)]
fn copy(from: &Floats, source: usize, to: &Floats, target: usize) {
    to.set(2 * target, from.get(2 * source));
    to.set(2 * target + 1, from.get(2 * source + 1));
}

/// exp(-2 pi i k / n) for k below n / 2, for n = 2, 4 and so on up to the size.
pub(crate) struct Roots(pub(crate) Vec<Vec<(f64, f64)>>);

impl Roots {
    /// By halving angles and adding them, with square roots alone.
    pub(crate) fn new(size: usize) -> Self {
        // The first root for n = 1, 2, 4: 1, -1, -i; then half the angle each time.
        let mut firsts = vec![(1.0, 0.0), (-1.0, 0.0), (0.0, -1.0)];
        while firsts.len() <= size.ilog2() as usize {
            let (cosine, sine): (f64, f64) = firsts[firsts.len() - 1];
            let half = ((1.0 + cosine) / 2.0).sqrt();
            firsts.push((half, sine / (2.0 * half)));
        }
        let roots = |log: u32| {
            let root = |k: usize| {
                let bits = (0..log).filter(|bit| k >> bit & 1 == 1);
                bits.fold((1.0, 0.0), |product, bit| {
                    multiply(product, firsts[(log - bit) as usize])
                })
            };
            (0..1 << (log - 1)).map(root).collect()
        };
        Self((1..=size.ilog2()).map(roots).collect())
    }
}

#[inline(always)]
fn multiply(a: (f64, f64), b: (f64, f64)) -> (f64, f64) {
    (a.0 * b.0 - a.1 * b.1, a.0 * b.1 + a.1 * b.0)
}

/// Transforms a line in place: numbers are brought into bit-reversed order, then there is a pass
/// for each bit.
#[inline(never)]
fn transform(line: &[AtomicU64], roots: &Roots, forth: bool) {
    let (numbers, _) = line.as_chunks::<2>();
    reorder(numbers, swap);
    let sign = if forth { 1.0 } else { -1.0 };
    for roots in &roots.0 {
        for block in numbers.chunks_exact(2 * roots.len()) {
            let (low, high) = block.split_at(roots.len());
            for ((low, high), root) in low.iter().zip(high).zip(roots) {
                butterfly(low, high, (root.0, sign * root.1));
            }
        }
    }
}

/// The same along the columns of a plane, for whole rows at once.
#[inline(never)]
fn transform_rows(plane: &[AtomicU64], size: usize, roots: &Roots, forth: bool) {
    let (numbers, _) = plane.as_chunks::<2>();
    let rows: Vec<&[[AtomicU64; 2]]> = numbers.chunks_exact(size).collect();
    reorder(&rows, |a, b| a.iter().zip(*b).for_each(|(a, b)| swap(a, b)));
    let sign = if forth { 1.0 } else { -1.0 };
    for roots in &roots.0 {
        for block in rows.chunks_exact(2 * roots.len()) {
            let (low, high) = block.split_at(roots.len());
            for ((low, high), root) in low.iter().zip(high).zip(roots) {
                for (low, high) in low.iter().zip(*high) {
                    butterfly(low, high, (root.0, sign * root.1));
                }
            }
        }
    }
}

/// Brings elements into the order of their numbers' bits read backwards.
fn reorder<T>(elements: &[T], swap: impl Fn(&T, &T)) {
    let unused = usize::BITS - elements.len().ilog2();
    for at in 0..elements.len() {
        let other = at.reverse_bits() >> unused;
        if at < other {
            swap(&elements[at], &elements[other]);
        }
    }
}

#[inline(always)]
fn swap(a: &[AtomicU64; 2], b: &[AtomicU64; 2]) {
    for (a, b) in a.iter().zip(b) {
        let kept = load(a);
        store(a, load(b));
        store(b, kept);
    }
}

#[inline(always)]
fn butterfly(low: &[AtomicU64; 2], high: &[AtomicU64; 2], root: (f64, f64)) {
    let a = (load(&low[0]), load(&low[1]));
    let b = multiply(root, (load(&high[0]), load(&high[1])));
    store(&low[0], a.0 + b.0);
    store(&low[1], a.1 + b.1);
    store(&high[0], a.0 - b.0);
    store(&high[1], a.1 - b.1);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wave_becomes_one_point() {
        let size = 16;
        let (array, roots) = (Floats::new(2 * size).unwrap(), Roots::new(size));
        for at in 0..size {
            let angle = std::f64::consts::TAU * 3.0 * at as f64 / size as f64;
            array.set(2 * at, angle.cos());
            array.set(2 * at + 1, angle.sin());
        }
        transform(array.slice(0..2 * size), &roots, true);
        for at in 0..size {
            let expected = if at == 3 { 16.0 } else { 0.0 };
            assert!((array.get(2 * at) - expected).abs() < 1e-12, "{at}");
            assert!(array.get(2 * at + 1).abs() < 1e-12, "{at}");
        }
    }

    #[test]
    fn back_is_where_it_began() {
        let size = 8;
        let new = || Floats::new(2 * size * size * size).unwrap();
        let cube = Cube {
            size,
            first: new(),
            second: new(),
        };
        cube.write();
        let before: Vec<f64> = (0..cube.first.len()).map(|at| cube.first.get(at)).collect();
        let words: Vec<String> = ["--threads", "3", "--no-pin"].map(str::to_owned).into();
        let team = ThreadTeam::from_args(&PROGRAM.parse(&words).unwrap().unwrap()).unwrap();
        team.run(|member| cube.forth_and_back(member, &Roots::new(size)))
            .unwrap();
        for (at, before) in before.into_iter().enumerate() {
            assert!((cube.first.get(at) - before).abs() < 1e-14, "{at}");
        }
    }
}
