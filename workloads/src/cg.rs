//! `cg`: sparse matrix-vector products, as iterative solvers make them.
//!
//! y = A x, then x = y / max|y|: power iteration. Rows are divided among the threads; each thread
//! writes its own rows and its own part of the vectors first, reads its matrix part in sequence,
//! and gathers mostly from its own part of x: good locality under first touch, which a policy must
//! not spoil. The largest magnitude is the norm because it does not depend on the order of
//! threads, so the checksum (the bits of x) is the same for any number of them.

use crate::cli::{self, Args, Failure, Opt, Workload, WorkloadReport};
use crate::csr::{self, ROW_ELEMENTS};
use crate::floats::load;
use crate::memory::{Placement, RegionMemory};
use crate::random::mix;
use crate::team::{Member, ThreadTeam};
use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Instant;

/// Bytes per row: 16 elements of column and value, and one element of x and of y.
const ROW_BYTES: usize = ROW_ELEMENTS * 16 + 16;

/// The program.
pub const PROGRAM: Workload = Workload {
    name: "cg",
    about: "Sparse matrix-vector products, rows divided among threads that wrote them first.",
    operand: None,
    options: &[
        cli::THREADS,
        Opt {
            name: "mb",
            value: Some("MB"),
            default: "64",
            help: "size of the matrix and both vectors",
        },
        Opt {
            name: "products",
            value: Some("N"),
            default: "40",
            help: "products",
        },
        cli::PIN,
        cli::NO_PIN,
    ],
    run,
};

/// One thread's rows of the matrix.
struct Rows<'a> {
    columns: &'a mut [u64],
    values: &'a mut [u64],
}

/// The vectors. A thread writes its own part only, between barriers; others read it only after
/// one, so that relaxed accesses are ordered by the barriers.
struct Vectors {
    x: RegionMemory,
    y: RegionMemory,
    rows: usize,
    /// Bits of the largest magnitude in y of each product; positive floats order as their bits.
    norms: Vec<AtomicU64>,
}

fn run(args: &Args) -> Result<WorkloadReport, Failure> {
    let team = ThreadTeam::from_args(args)?;
    let mb = args.number("mb", 1..=1 << 20)? as usize;
    let products = args.number("products", 1..=1 << 24)? as usize;
    let started = Instant::now();
    let rows = (mb << 20) / ROW_BYTES;
    let region = |words: usize| RegionMemory::new(words * 8, Placement::default());
    let (mut columns, mut values) = (region(rows * ROW_ELEMENTS)?, region(rows * ROW_ELEMENTS)?);
    let norms = (0..products).map(|_| AtomicU64::new(0)).collect();
    let vectors = Vectors {
        x: region(rows)?,
        y: region(rows)?,
        rows,
        norms,
    };
    let parts = columns.split(team.threads(), ROW_ELEMENTS).into_iter();
    let parts = parts.zip(values.split(team.threads(), ROW_ELEMENTS));
    let parts: Vec<_> = parts
        .map(|(columns, values)| Mutex::new(Rows { columns, values }))
        .collect();
    let results = team.run(|member| {
        let mut matrix = parts[member.id]
            .lock()
            .expect("each thread has its own part");
        let own = member.part(rows);
        write_rows(&mut matrix, &vectors, own.clone());
        let setup = started.elapsed().as_secs_f64();
        let ((), seconds) = member.measure(|| iterate(&matrix, &vectors, own, member));
        (setup, seconds)
    })?;
    let x = &vectors.x.words()[..rows];
    let checksum = x
        .iter()
        .fold(0u64, |sum, word| mix(sum) ^ word.load(Relaxed));
    let (setup, seconds) = results[0];
    let elements = (rows * ROW_ELEMENTS * products) as f64;
    let title = format!(
        "cg: {} threads, {mb} MB, {rows} rows, {products} products",
        team.threads()
    );
    Ok(WorkloadReport::new(title)
        .line("setup_seconds", format!("{setup:.6}"))
        .line("mflops", format!("{:.3}", 2.0 * elements / seconds / 1e6))
        .finish(seconds, checksum))
}

fn write_rows(matrix: &mut Rows<'_>, vectors: &Vectors, own: Range<usize>) {
    let (columns, _) = matrix.columns.as_chunks_mut::<ROW_ELEMENTS>();
    let (values, _) = matrix.values.as_chunks_mut::<ROW_ELEMENTS>();
    for (row, (columns, values)) in own.zip(columns.iter_mut().zip(values)) {
        *columns = csr::columns(row, vectors.rows);
        *values = columns.map(|column| csr::value(row, column).to_bits());
        vectors.x.words()[row].store(1.0f64.to_bits(), Relaxed);
        vectors.y.words()[row].store(0, Relaxed);
    }
}

fn iterate(matrix: &Rows<'_>, vectors: &Vectors, own: Range<usize>, member: &Member<'_>) {
    let x = &vectors.x.words()[..vectors.rows];
    let y = &vectors.y.words()[own.clone()];
    for norm in &vectors.norms {
        let largest = multiply(matrix, x, y);
        norm.fetch_max(largest.to_bits(), Relaxed);
        member.sync();
        normalise(&x[own.clone()], y, f64::from_bits(norm.load(Relaxed)));
        member.sync();
    }
}

/// y = A x over the thread's rows; the largest magnitude in y.
#[inline(never)]
fn multiply(matrix: &Rows<'_>, x: &[AtomicU64], y: &[AtomicU64]) -> f64 {
    let (columns, _) = matrix.columns.as_chunks::<ROW_ELEMENTS>();
    let (values, _) = matrix.values.as_chunks::<ROW_ELEMENTS>();
    let mut largest = 0.0f64;
    for (y, (columns, values)) in y.iter().zip(columns.iter().zip(values)) {
        let sum = csr::dot(columns, values, |column| load(&x[column as usize]));
        y.store(sum.to_bits(), Relaxed);
        largest = largest.max(sum.abs());
    }
    largest
}

/// x = y / norm over the thread's rows.
#[inline(never)]
fn normalise(x: &[AtomicU64], y: &[AtomicU64], norm: f64) {
    for (x, y) in x.iter().zip(y) {
        x.store((load(y) / norm).to_bits(), Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_product_of_ones_is_the_sum_of_each_row() {
        let rows = 40;
        let region = || RegionMemory::new(rows * 8, Placement::default()).unwrap();
        let vectors = Vectors {
            x: region(),
            y: region(),
            rows,
            norms: Vec::new(),
        };
        let (mut columns, mut values) = ([0; 40 * ROW_ELEMENTS], [0; 40 * ROW_ELEMENTS]);
        let mut matrix = Rows {
            columns: &mut columns,
            values: &mut values,
        };
        write_rows(&mut matrix, &vectors, 0..rows);
        let y = &vectors.y.words()[..rows];
        let largest = multiply(&matrix, &vectors.x.words()[..rows], y);
        for (row, y) in y.iter().enumerate() {
            let columns = csr::columns(row, rows);
            let sum: f64 = columns.iter().map(|&column| csr::value(row, column)).sum();
            assert_eq!(load(y), sum);
            assert!(sum <= largest && sum >= ROW_ELEMENTS as f64);
        }
        normalise(&vectors.x.words()[..rows], y, largest);
        let top = vectors.x.words()[..rows]
            .iter()
            .map(load)
            .fold(0.0, f64::max);
        assert_eq!(top, 1.0);
    }
}
