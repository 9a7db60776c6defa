//! Formulas against what the loops do, and results that do not depend on threads.

use super::bt::Bt;
use super::cg::Cg;
use super::ep::Ep;
use super::ft::Ft;
use super::is::Is;
use super::lu::Lu;
use super::mg::Mg;
use super::real::Real;
use super::real::counting::{self, Counted};
use super::solve::{Fields, right_hand_side};
use super::sp::Sp;
use super::table::{LARGEST_MB, Row, TABLE};
use super::*;
use std::ops::Range;

/// The scale that the table in docs/workloads.md is of: the default.
const SCALE: u64 = 48;

/// A kernel with its arrays written.
pub fn kernel<K: Kernel>(bytes: usize, threads: usize) -> K {
    let kernel = K::new(bytes, threads, FirstNode::default()).unwrap();
    kernel.write();
    kernel
}

/// Runs rounds; what each thread counted, where numbers are such that count.
pub fn run<K: Kernel, R: Real>(
    kernel: &K,
    threads: usize,
    rounds: Range<u64>,
) -> Vec<counting::Counts> {
    run_with_cache::<K, R>(kernel, threads, rounds, 0)
}

/// The same, with a cache for each thread; counts are of the last round.
fn run_with_cache<K: Kernel, R: Real>(
    kernel: &K,
    threads: usize,
    rounds: Range<u64>,
    cache_bytes: usize,
) -> Vec<counting::Counts> {
    let team = ThreadTeam::unpinned(threads);
    team.run(|member| {
        counting::start(cache_bytes);
        for round in rounds.clone() {
            if cache_bytes > 0 {
                counting::take();
            }
            kernel.round::<R>(member, round);
        }
        counting::take()
    })
    .unwrap()
}

/// Is the solution bounded, and is little left of the right-hand side, which was up to 1?
pub fn assert_settled(words: &[AtomicU64], points: usize) {
    let fields = Fields::of(words, points);
    let grid = grid::Grid::of(points, 1);
    assert_eq!(grid.points(), points);
    ThreadTeam::unpinned(1)
        .run(|member| right_hand_side::<f64>(grid, fields, member))
        .unwrap();
    let largest = |words: &[AtomicU64]| -> f64 {
        words
            .iter()
            .map(|word| f64::load(word).abs())
            .fold(0.0, f64::max)
    };
    let (solution, right) = (largest(fields.solution), largest(fields.right));
    assert!((0.5..2.0).contains(&solution), "{solution}");
    assert!(right < 0.05, "{right}");
}

/// Calls a generic function for every kernel.
macro_rules! for_each_kernel {
    ($function:ident) => {{
        $function::<Is>();
        $function::<Ep>();
        $function::<Cg>();
        $function::<Mg>();
        $function::<Ft>();
        $function::<Bt>();
        $function::<Sp>();
        $function::<Lu>();
    }};
}

#[test]
fn ratios_and_sizes_are_those_of_the_table() {
    fn check<K: Kernel>() {
        let row = Row::of(K::NAME);
        let kernel = K::new(row.bytes(SCALE), 1, FirstNode::default()).unwrap();
        let own = kernel.round_work();
        let (ratio, wanted) = (own.flops_per_byte(), row.flops_per_byte());
        let share = own.write_bytes as f64 / (own.read_bytes + own.write_bytes) as f64;
        println!(
            "| `{}` | {wanted:.3} | {ratio:.3} | {:+.1} % | {:.0} % | {:.0} % | {:.0} | {:.2} | {:+.1} % |",
            K::NAME,
            100.0 * (ratio / wanted - 1.0),
            100.0 * row.writes / (row.reads + row.writes),
            100.0 * share,
            row.mb,
            kernel.words().bytes() as f64 / f64::from(1 << 20),
            100.0 * (kernel.words().bytes() as f64 / row.bytes(SCALE) as f64 - 1.0),
        );
        assert!((ratio / wanted - 1.0).abs() < 0.1, "{}: {ratio}", K::NAME);
        let size = kernel.words().bytes() as f64 / (SCALE << 20) as f64;
        let wanted = row.mb / LARGEST_MB;
        assert!((size / wanted - 1.0).abs() < 0.1, "{}: {size}", K::NAME);
    }
    for_each_kernel!(check);
    assert_eq!(TABLE.len(), 8);
}

#[test]
fn operations_are_those_of_the_formula() {
    fn check<K: Kernel>() {
        for threads in [1, 3] {
            let kernel = kernel::<K>(Row::of(K::NAME).bytes(3), threads);
            let counts = run::<K, Counted>(&kernel, threads, 0..2);
            let flops: u64 = counts.iter().map(|counts| counts.flops).sum();
            assert_eq!(flops, kernel.work(2).flops, "{}", K::NAME);
        }
    }
    for_each_kernel!(check);
}

#[test]
fn traffic_is_near_the_formulas() {
    const CACHE: usize = 256 << 10;
    fn check<K: Kernel>() {
        // A fourth of the default scale and of the machine's cache; ep's array exceeds the cache at no
        // such scale.
        let bytes = Row::of(K::NAME).bytes(SCALE / 4).max(2 << 20);
        let kernel = kernel::<K>(bytes, 1);
        let counts = run_with_cache::<K, Counted>(&kernel, 1, 0..2, CACHE);
        let own = kernel.round_work();
        for (counted, formula) in [
            (counts[0].fills, own.read_bytes),
            (counts[0].write_backs, own.write_bytes),
        ] {
            let ratio = counted as f64 * 64.0 / formula as f64;
            println!("{}: {ratio:.3}", K::NAME);
            assert!((0.85..1.15).contains(&ratio), "{}: {ratio}", K::NAME);
        }
    }
    for_each_kernel!(check);
}

#[test]
fn counting_numbers_and_threads_do_not_change_a_result() {
    fn check<K: Kernel>() {
        let bytes = Row::of(K::NAME).bytes(3);
        let made = |threads: usize| kernel::<K>(bytes, threads);
        let (one, three, counted) = (made(1), made(3), made(1));
        run::<K, f64>(&one, 1, 0..2);
        run::<K, f64>(&three, 3, 0..2);
        run::<K, Counted>(&counted, 1, 0..2);
        assert_eq!(one.checksum(), three.checksum(), "{}", K::NAME);
        assert_eq!(one.checksum(), counted.checksum(), "{}", K::NAME);
        assert!(
            one.checksum() != kernel::<K>(bytes, 1).checksum(),
            "{}",
            K::NAME
        );
    }
    for_each_kernel!(check);
}
