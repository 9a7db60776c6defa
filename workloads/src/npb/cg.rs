//! Conjugate gradients: products of a sparse matrix and a vector, and updates of vectors.
//!
//! A round is [`STEPS`] steps from the normalised last result, as NPB's CG makes 25. A row has [`ROW`]
//! elements, the diagonal and others anywhere, 16 bytes each: one multiplication and one addition for each
//! 16 bytes, near the paper's ratio. The matrix is not symmetric; its diagonal is so large that the steps
//! converge all the same.
//!
//! Sums over vectors are made for [`PARTS`] parts, then over parts by one thread: bits do not
//! depend on the number of threads.
//!
//! **Work** for n rows. A step: 95 n operations for products, 10 n for vectors, 2 x [`PARTS`] for
//! sums over parts, 2 for their ratios; a round's begin: 2 n for the norm, n to divide by it, 2 n for the first
//! residual, and 2 x [`PARTS`] + 1. Bytes read by a step: 768 n of the matrix, q twice (fetched to be
//! written, read again), r and z once, 8 n each; written: q, r and z. p stays in the cache: each
//! element is used 48 times a step. Read by a round's begin: z and r; written: z and r.

use super::real::{Real, fraction};
use super::table::Work;
use super::{Kernel, Words, carve};
use crate::cli::Failure;
use crate::memory::FirstNode;
use crate::random::{STEP, mix};
use crate::team::{Member, part};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Elements of a row.
const ROW: usize = 48;
/// Steps per round.
const STEPS: u64 = 5;
/// Parts of the rows with a sum of their own.
const PARTS: usize = 64;

/// The kernel.
pub struct Cg {
    words: Words,
    rows: usize,
    /// Sums of two kinds over parts, in turns, so that one can be read while the next is made.
    sums: [Vec<AtomicU64>; 2],
    /// What thread 0 made of the sums.
    factors: [AtomicU64; 2],
    /// The square of the residual's length.
    residual: AtomicU64,
}

/// Parts of the arrays.
struct Arrays<'a> {
    columns: &'a [AtomicU64],
    values: &'a [AtomicU64],
    p: &'a [AtomicU64],
    q: &'a [AtomicU64],
    r: &'a [AtomicU64],
    z: &'a [AtomicU64],
}

impl Kernel for Cg {
    const NAME: &'static str = "cg";

    fn new(bytes: usize, _: usize, start: FirstNode) -> Result<Self, Failure> {
        let rows = (bytes / (8 * (2 * ROW + 4))).max(1);
        let zeros = || (0..PARTS).map(|_| AtomicU64::new(0)).collect();
        Ok(Self {
            words: Words::new(rows * (2 * ROW + 4), start)?,
            rows,
            sums: [zeros(), zeros()],
            factors: Default::default(),
            residual: AtomicU64::new(0),
        })
    }

    fn words(&self) -> &Words {
        &self.words
    }

    fn write(&self) {
        let elements = self.rows * ROW;
        self.words.fill(|at| {
            let bits = mix(((at % elements) as u64).wrapping_mul(STEP));
            match (at / elements, at % elements % ROW) {
                (0, 0) => (at / ROW) as u64,
                (0, _) => bits % self.rows as u64,
                (1, 0) => 4.0f64.to_bits(),
                (1, _) => (0.02 * fraction(bits)).to_bits(),
                // The first round begins from z.
                _ => (1.0 + fraction(bits)).to_bits(),
            }
        });
    }

    fn round_work(&self) -> Work {
        let (rows, parts) = (self.rows as u64, PARTS as u64);
        let row = ROW as u64;
        Work {
            flops: STEPS * (rows * (2 * row - 1 + 10) + 2 * parts + 2) + 5 * rows + 2 * parts + 1,
            read_bytes: STEPS * rows * (16 * row + 32) + 16 * rows,
            write_bytes: STEPS * rows * 24 + 16 * rows,
        }
    }

    fn round<R: Real>(&self, member: &Member<'_>, _: u64) {
        let n = self.rows;
        let [columns, values, p, q, r, z] = carve(self.words.all(), [n * ROW, n * ROW, n, n, n, n]);
        let arrays = Arrays {
            columns,
            values,
            p,
            q,
            r,
            z,
        };
        let parts = member.part(PARTS);
        self.each::<R>(0, &parts, |own| square(&z[own]));
        let norm = self.factor::<R>(member, 0, |_, sum| sum.sqrt());
        self.each::<R>(1, &parts, |own| begin(&arrays, own, norm));
        self.factor::<R>(member, 1, |residual, sum| {
            residual.store(sum.value().to_bits(), Relaxed);
            sum
        });
        for _ in 0..STEPS {
            self.each::<R>(0, &parts, |own| multiply(&arrays, own));
            let alpha = self.factor::<R>(member, 0, |residual, sum| number::<R>(residual) / sum);
            self.each::<R>(1, &parts, |own| follow(&arrays, own, alpha));
            let beta = self.factor::<R>(member, 1, |residual, sum| {
                let old = number::<R>(residual);
                residual.store(sum.value().to_bits(), Relaxed);
                sum / old
            });
            for at in parts.clone() {
                turn(&arrays, part(n, PARTS, at), beta);
            }
            member.sync_awake();
        }
    }
}

impl Cg {
    /// Makes sums of one of two kinds over the thread's parts.
    fn each<R: Real>(&self, kind: usize, parts: &Range<usize>, sum: impl Fn(Range<usize>) -> R) {
        for at in parts.clone() {
            let sum = sum(part(self.rows, PARTS, at)).value();
            self.sums[kind][at].store(sum.to_bits(), Relaxed);
        }
    }

    /// Sums over the parts, which thread 0 makes into a factor for all threads. They wait for it.
    fn factor<R: Real>(
        &self,
        member: &Member<'_>,
        kind: usize,
        make: impl Fn(&AtomicU64, R) -> R,
    ) -> R {
        member.sync_awake();
        if member.id == 0 {
            let parts = self.sums[kind].iter().map(number::<R>);
            let factor = make(
                &self.residual,
                parts.fold(R::of(0.0), |sum, part| sum + part),
            );
            self.factors[kind].store(factor.value().to_bits(), Relaxed);
        }
        member.sync_awake();
        number(&self.factors[kind])
    }
}

/// A number that is in no array.
fn number<R: Real>(word: &AtomicU64) -> R {
    R::of(f64::from_bits(word.load(Relaxed)))
}

#[inline(never)]
fn square<R: Real>(z: &[AtomicU64]) -> R {
    z.iter().fold(R::of(0.0), |sum, z| {
        let z = R::load(z);
        sum + z * z
    })
}

/// r = p = z / norm, z = 0; the square of r.
#[inline(never)]
fn begin<R: Real>(arrays: &Arrays<'_>, own: Range<usize>, norm: R) -> R {
    let mut sum = R::of(0.0);
    for row in own {
        let x = R::load(&arrays.z[row]) / norm;
        x.store(&arrays.r[row]);
        x.store(&arrays.p[row]);
        R::of(0.0).store(&arrays.z[row]);
        sum = sum + x * x;
    }
    sum
}

/// q = A p; p times q.
#[inline(never)]
fn multiply<R: Real>(arrays: &Arrays<'_>, own: Range<usize>) -> R {
    let (columns, _) = arrays.columns.as_chunks::<ROW>();
    let (values, _) = arrays.values.as_chunks::<ROW>();
    let mut sum = R::of(0.0);
    for row in own {
        let product = |at: usize| {
            let column = R::load_word(&columns[row][at]) as usize;
            R::load(&values[row][at]) * R::load(&arrays.p[column])
        };
        let q = (1..ROW).fold(product(0), |sum, at| sum + product(at));
        q.store(&arrays.q[row]);
        sum = sum + R::load(&arrays.p[row]) * q;
    }
    sum
}

/// z += alpha p, r -= alpha q; the square of r.
#[inline(never)]
fn follow<R: Real>(arrays: &Arrays<'_>, own: Range<usize>, alpha: R) -> R {
    let mut sum = R::of(0.0);
    for row in own {
        let z = R::load(&arrays.z[row]) + alpha * R::load(&arrays.p[row]);
        z.store(&arrays.z[row]);
        let r = R::load(&arrays.r[row]) - alpha * R::load(&arrays.q[row]);
        r.store(&arrays.r[row]);
        sum = sum + r * r;
    }
    sum
}

/// p = r + beta p.
#[inline(never)]
fn turn<R: Real>(arrays: &Arrays<'_>, own: Range<usize>, beta: R) {
    for row in own {
        let p = R::load(&arrays.r[row]) + beta * R::load(&arrays.p[row]);
        p.store(&arrays.p[row]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::npb::tests::{kernel, run};

    #[test]
    fn steps_converge() {
        let cg = kernel::<Cg>(400_000, 2);
        run::<_, f64>(&cg, 2, 0..3);
        let residual: f64 = number(&cg.residual);
        assert!(residual > 0.0 && residual < 1e-6, "{residual}");
    }
}
