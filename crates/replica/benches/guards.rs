//! What reading through a guard costs: `cargo bench -p hither-replica`.
//!
//! Medians of several runs, on the CPU that this runs on: a guard taken and dropped; a random value of a plain
//! slice, through a guard's table, and through its one slice; an epoch of one value published.

use hither_replica::{Config, Place, Places, Replicated};
use hither_workloads::random::FastRandom;
use std::hint::black_box;
use std::time::{Duration, Instant};

const RUNS: usize = 9;
/// Fits a last-level cache, so that the memory's latency does not hide the difference.
const VALUES: usize = 1 << 17;

fn median(count: u64, mut run: impl FnMut(u64)) -> f64 {
    let mut all: Vec<f64> = (0..RUNS)
        .map(|_| {
            let start = Instant::now();
            run(count);
            start.elapsed().as_nanos() as f64 / count as f64
        })
        .collect();
    all.sort_by(f64::total_cmp);
    all[RUNS / 2]
}

fn main() -> Result<(), hither_replica::Error> {
    let here = Places::here()?;
    let place = Place {
        node: here.list()[0].node,
        cpus: here.list()[0].cpus.clone(),
    };
    let places = Places::chosen(vec![place; 4], 20)?;
    let values: Vec<u64> = (0..VALUES as u64).collect();
    let array = Replicated::filled(VALUES, places, Config::default(), |all| {
        all.copy_from_slice(&values);
    })?;
    array.refresh(Duration::from_secs(10))?;
    let mut reader = array.reader_at(1)?;
    let mut random = FastRandom::new(1);
    let indices: Vec<usize> = (0..1 << 16)
        .map(|_| random.below(VALUES as u64) as usize)
        .collect();
    let index = |turn: u64| indices[turn as usize % indices.len()];

    let guard = median(1 << 22, |count| {
        for _ in 0..count {
            black_box(reader.read().is_ok());
        }
    });
    let plain = median(1 << 24, |count| {
        let values = black_box(values.as_slice());
        let sum = (0..count).fold(0u64, |sum, turn| sum.wrapping_add(values[index(turn)]));
        black_box(sum);
    });
    let held = reader.read()?;
    let table = median(1 << 24, |count| {
        let sum = (0..count).filter_map(|turn| held.get(index(turn)));
        black_box(sum.fold(0u64, u64::wrapping_add));
    });
    let whole = median(1 << 24, |count| {
        let values = black_box(held.whole());
        let sum = (0..count).fold(0u64, |sum, turn| sum.wrapping_add(values[index(turn)]));
        black_box(sum);
    });
    drop(held);
    let mut next = 0;
    let epoch = median(1 << 14, |count| {
        for _ in 0..count {
            next += 1;
            let published = array.write().and_then(|mut writer| {
                writer.write(0, &[next])?;
                writer.publish()
            });
            black_box(published.is_ok());
        }
    });
    println!("guard taken and dropped   {guard:8.2} ns");
    println!("value of a plain slice    {plain:8.2} ns");
    println!("value by a guard's table  {table:8.2} ns");
    println!("value by its whole slice  {whole:8.2} ns");
    println!("epoch of one value        {epoch:8.2} ns");
    Ok(())
}
