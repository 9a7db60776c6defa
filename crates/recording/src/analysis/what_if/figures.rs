//! Figures of a recording as a whole that a forecast needs, and what to say where one is missing.

use super::super::data::Data;
use super::super::{homes, working_set};
use super::windows::{LEAST_LATENCY_NS, Window};
use super::{LEAST_SAMPLES, MOST_STALL, Missing, PAGE_BYTES, STALL_ERROR, WhatIfQuestion};

/// A refusal.
pub fn missing(what: impl Into<String>, remedy: &str) -> Missing {
    Missing {
        what: what.into(),
        remedy: remedy.to_owned(),
    }
}

/// The refusal of a recording without samples.
pub fn no_samples() -> Missing {
    missing(
        "the recording has no samples, which tell what memory is hot",
        "record with a tracker that samples accesses: in the lab (`hither lab run -- hither record -- CMD`), or on a \
         machine whose PMU samples them (`hither topo --doctor`)",
    )
}

/// Are there samples and counts of fills?
pub fn check_samples(data: &Data, windows: &[Window]) -> Result<(), Missing> {
    match data.accesses.len() {
        0 => return Err(no_samples()),
        count if count < LEAST_SAMPLES => {
            return Err(missing(
                format!("the recording has {count} samples, and a forecast needs {LEAST_SAMPLES}"),
                "record longer, or with a larger --overhead",
            ));
        }
        _ => {}
    }
    let fills: f64 = windows
        .iter()
        .map(|window| window.rate * window.length_ns)
        .sum();
    if fills > 0.0 {
        return Ok(());
    }
    Err(missing(
        "the recording does not tell how many memory fills there were (accesses_per_us of intervals)",
        "record in the lab (`hither lab run -- hither record -- CMD`), or where a PMU counts fills \
         (`hither topo --doctor`)",
    ))
}

/// Bytes that the programs had at most, and where that is from.
pub fn footprint(data: &Data) -> (u64, &'static str) {
    let mut pages: Vec<(i32, u64)> = data
        .accesses
        .iter()
        .map(|a| (a.pid, a.address >> 12))
        .collect();
    pages.sort_unstable();
    pages.dedup();
    let sampled = pages.len() as u64 * PAGE_BYTES;
    // Looks at pages are rare: a program may have grown since the last one.
    let looked = homes::residents(data).into_iter().map(|one| one.most_bytes);
    let peaks = data
        .processes
        .iter()
        .filter_map(|process| process.peak_bytes);
    let [looked, peak] = [
        looked.fold(0, u64::saturating_add),
        peaks.fold(0, u64::saturating_add),
    ];
    let resident = looked.max(peak);
    if resident >= sampled {
        return (
            resident / PAGE_BYTES * PAGE_BYTES,
            "resident memory when it was largest",
        );
    }
    let set = working_set::working_set(data, u64::MAX);
    let estimated = set
        .windows
        .last()
        .map_or(0.0, |window| window.weighted_bytes) as u64;
    (
        (estimated / PAGE_BYTES * PAGE_BYTES).max(sampled),
        "estimated from the pages that were sampled",
    )
}

/// CPUs that were busy with what was watched, on average.
pub fn busy_cpus(data: &Data) -> Option<f64> {
    let watched_us = data.meta.ended.as_ref()?.watched_cpu_us? as f64;
    let length_us = data.length_ns() as f64 / 1e3;
    (length_us > 0.0 && watched_us > 0.0).then(|| watched_us / length_us)
}

/// Mean latency of a miss, and where that is from.
pub fn latency(data: &Data, windows: &[Window]) -> Result<(f64, &'static str), Missing> {
    let told = windows
        .iter()
        .filter_map(|w| Some((w.latency_ns?, w.rate * w.length_ns)));
    let (sum, fills) = told.fold((0.0, 0.0), |sum, (ns, fills)| {
        (sum.0 + ns * fills, sum.1 + fills)
    });
    if fills > 0.0 {
        return Ok((sum / fills, "counted misses"));
    }
    let told = data.accesses.iter().filter(|access| !access.is_transfer());
    let told = told.filter_map(|a| Some((f64::from(a.latency_ns()?), f64::from(a.weight))));
    let (sum, weight) = told.fold((0.0, 0.0), |sum, (ns, weight)| {
        (sum.0 + ns * weight, sum.1 + weight)
    });
    if sum >= LEAST_LATENCY_NS * weight && weight > 0.0 {
        return Ok((sum / weight, "samples"));
    }
    Err(missing(
        "the recording does not tell what a memory access takes (latency_ns of intervals and of samples)",
        "record in the lab (`hither lab run -- hither record -- CMD`), or where a PMU samples latencies \
         (`hither topo --doctor`)",
    ))
}

/// The ends of the stall share of each window, and where they are from.
pub fn stalls(
    data: &Data,
    windows: &[Window],
    cpus: Option<f64>,
    latency_ns: f64,
) -> (Vec<[f64; 2]>, &'static str) {
    let told: Vec<(f64, f64)> = windows
        .iter()
        .filter_map(|w| Some((w.stall_share?, w.length_ns)))
        .collect();
    let length_ns: f64 = told.iter().map(|told| told.1).sum();
    let mean = told.iter().map(|told| told.0 * told.1).sum::<f64>() / length_ns;
    let is_exact = data
        .meta
        .trackers
        .iter()
        .any(|tracker| tracker.name == "opium");
    let (error, basis) = match (told.is_empty(), is_exact, cpus) {
        (false, true, _) => (0.0, "counted by the lab"),
        (false, false, _) => (
            STALL_ERROR,
            "counted by the PMU, known within a tenth of the time",
        ),
        (true, _, Some(_)) => (
            1.0,
            "not recorded: at most all latencies one after the other",
        ),
        (true, _, None) => (1.0, "not recorded: anything"),
    };
    // At most all misses one after the other.
    let waited_ns: f64 = windows
        .iter()
        .map(|w| w.rate * w.length_ns * w.latency_ns.unwrap_or(latency_ns))
        .sum();
    let of = |window: &Window| {
        let share = match told.is_empty() {
            false => window.stall_share.unwrap_or(mean),
            true => 0.0,
        };
        let limit = match (told.is_empty(), cpus) {
            // Over the whole: which CPUs were busy when is not known.
            (true, Some(cpus)) => waited_ns / (cpus * data.length_ns() as f64),
            _ => 1.0,
        };
        [share - error, (share + error).min(limit)].map(|share| share.clamp(0.0, MOST_STALL))
    };
    (windows.iter().map(of).collect(), basis)
}

/// What has to be known beside the figures.
pub fn notes(
    question: &WhatIfQuestion<'_>,
    sizes: &[u64],
    (footprint_bytes, [fast_bytes, slow_bytes]): (u64, [u64; 2]),
    cpus: Option<f64>,
    has_traffic: bool,
) -> Vec<String> {
    let mut notes = Vec::new();
    let target = question.target;
    let mb = |bytes: u64| bytes >> 20;
    if slow_bytes == 0 {
        notes.push(format!(
            "{} has memory of one tier: all is in it, spread over its nodes.",
            target.name
        ));
    } else if sizes
        .last()
        .is_some_and(|&size| size.min(footprint_bytes) > fast_bytes)
    {
        notes.push(format!(
            "{} has {} MiB of fast memory; rows of more suppose that it had more.",
            target.name,
            mb(fast_bytes)
        ));
    }
    if footprint_bytes > fast_bytes + slow_bytes {
        notes.push(format!(
            "The program has {} MiB, more than the memory of {}.",
            mb(footprint_bytes),
            target.name
        ));
    }
    if let Some(cpus) = cpus.filter(|&cpus| cpus > target.cpu_count() as f64 + 0.05) {
        notes.push(format!(
            "The program kept {cpus:.1} CPUs busy, and {} has {}.",
            target.name,
            target.cpu_count()
        ));
    }
    if question.recorded_on.is_none() {
        notes.push(
            "Computing takes the time that it took: the machine of the recording is not known \
             (--recorded-on)."
                .to_owned(),
        );
    }
    if !has_traffic {
        notes.push(
            "The bytes between memory and caches were not counted: one line for each fill is assumed, \
             and nothing written back."
                .to_owned(),
        );
    }
    notes
}
