//! What a recorded program would gain by more or less fast memory, on another machine or its own.
//!
//! - *Places*: of each size of fast memory the hottest memory is in it all the time ([`hottest`]): the best
//!   placement that does not change. Where less of it is faster, as where the fast tier answers later, less of
//!   it is used.
//! - *Time*: of each stretch of the recording ([`windows`]) a part computes and stays, and a part waits and
//!   follows the latency under the load that the program then makes ([`place`]).
//! - *Error*: the ends of what samples leave open of the shares and of what is known of the stalls, and
//!   beyond them [`MODEL_ERROR`] of the change, in the logarithm of the speed. Where the machine of the
//!   recording is given, the model is asked for the recorded run, too: what it is off there adds to the error.
//!
//! Moving, first touch and caches of another size are not modelled.

mod figures;
mod hottest;
mod place;
mod windows;

use super::data::Data;
use figures::{busy_cpus, check_samples, footprint, latency, missing, no_samples, notes, stalls};
use hither_core::machine::Machine;
use hither_core::set::CpuSet;
use hither_core::snapshot::PAGE_BYTES;
use hottest::{Hottest, Share};
use place::{Core, Places, Tiers};
use windows::Window;

/// Error of the model as a share of the logarithm of the speed: an estimate, that of
/// `hither_core::forecast`.
pub const MODEL_ERROR: f64 = 0.4;
/// Nobody can tell less from noise.
const LEAST_ERROR: f64 = 0.02;
/// What a counter of stalled cycles may be off, as a share of the time: an estimate.
const STALL_ERROR: f64 = 0.1;
/// Samples that a forecast needs: a share is then known within 4 points (90 %).
pub const LEAST_SAMPLES: usize = 400;
/// Parts of the fast memory of which the fastest is taken.
const PARTS: u64 = 8;
/// Most stall: some computing is always between two misses.
const MOST_STALL: f64 = 0.999;

/// What is asked.
#[derive(Clone, Copy, Debug)]
pub struct WhatIfQuestion<'a> {
    /// The machine that it is about.
    pub target: &'a Machine,
    /// The machine of the recording, where there is a description.
    pub recorded_on: Option<&'a Machine>,
    /// Sizes of fast memory in bytes; none: parts of the footprint.
    pub sizes: &'a [u64],
}

/// Why there is no forecast.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what}; {remedy}")]
pub struct Missing {
    /// What is missing or does not fit.
    pub what: String,
    /// How to mend it.
    pub remedy: String,
}

/// The forecast of a recording.
#[derive(Clone, Debug, PartialEq)]
pub struct WhatIf {
    /// Memory that the programs have.
    pub footprint_bytes: u64,
    /// Where that is from.
    pub footprint_basis: &'static str,
    /// Samples that it rests on.
    pub sample_count: usize,
    /// Windows that were solved for.
    pub window_count: usize,
    /// Bytes of the unit by which memory was ranked.
    pub unit_bytes: u64,
    /// Share of the CPU time that waits for memory: its ends, alike where it was counted.
    pub stall_share: [f64; 2],
    /// Where that is from.
    pub stall_basis: &'static str,
    /// Mean latency of a miss as recorded, in ns.
    pub latency_ns: f64,
    /// Where that is from.
    pub latency_basis: &'static str,
    /// Memory fills per us.
    pub accesses_per_us: f64,
    /// Bytes between memory and caches for each fill, where they were counted.
    pub bytes_per_fill: Option<f64>,
    /// CPUs that were busy on average, where that is known.
    pub cpus: Option<f64>,
    /// Speed that the model gives the recorded run itself, which is 1, where the recording's machine is
    /// known.
    pub check: Option<f64>,
    /// Bytes of the target's fast nodes, and of its other nodes.
    pub tier_bytes: [u64; 2],
    /// By size.
    pub rows: Vec<Row>,
    /// What has to be known beside the figures.
    pub notes: Vec<String>,
}

/// The forecast for a size of fast memory.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Row {
    /// The size.
    pub fast_bytes: u64,
    /// How much of it the placement uses.
    pub used_bytes: u64,
    /// Share of the accesses that it serves, and the ends between which that is expected.
    pub fast_share: [f64; 3],
    /// Times as fast as recorded; `None` where the stall share is a range.
    pub speed: Option<f64>,
    /// The ends between which the speed is expected.
    pub low: f64,
    /// The upper one.
    pub high: f64,
}

/// Makes the forecast.
///
/// # Errors
/// What the recording lacks, or what does not fit it.
pub fn what_if(data: &Data, question: &WhatIfQuestion<'_>) -> Result<WhatIf, Missing> {
    let windows = windows::windows(data);
    check_samples(data, &windows)?;
    let tiers = Tiers::new(question.target);
    let tier_bytes = tiers.bytes();
    if tier_bytes[1] == 0 && !question.sizes.is_empty() {
        return Err(missing(
            format!(
                "all nodes of {} are of one tier, so that it has no fast memory of another size",
                question.target.name
            ),
            "leave --fast out, or give --machine a file with nodes of two tiers (`tier =`)",
        ));
    }
    let (footprint_bytes, footprint_basis) = footprint(data);
    let hottest = Hottest::new(&data.accesses, footprint_bytes).ok_or_else(no_samples)?;
    let cpus = busy_cpus(data);
    let (latency_ns, latency_basis) = latency(data, &windows)?;
    let (stalls, stall_basis) = stalls(data, &windows, cpus, latency_ns);
    let mut run = Run {
        tiers: &tiers,
        hottest: &hottest,
        windows: &windows,
        stalls,
        latency_ns,
        core: core(question, cpus),
        check: None,
    };
    if let Some(recorded_on) = question.recorded_on {
        run.check = Some(check(data, recorded_on, &run)?);
    }
    let sizes = match (question.sizes, tier_bytes[1]) {
        (_, 0) => vec![footprint_bytes],
        ([], _) => default_sizes(footprint_bytes),
        (sizes, _) => sorted(sizes),
    };
    let length_ns: f64 = windows.iter().map(|window| window.length_ns).sum();
    let fills: f64 = windows
        .iter()
        .map(|window| window.rate * window.length_ns)
        .sum();
    let carried = windows
        .iter()
        .filter_map(|w| Some((w.bytes_per_fill?, w.rate * w.length_ns)));
    let carried = carried.fold((0.0, 0.0), |sum, (bytes, fills)| {
        (sum.0 + bytes * fills, sum.1 + fills)
    });
    let mean = |end: usize| {
        let waited = windows
            .iter()
            .zip(&run.stalls)
            .map(|(w, s)| w.length_ns * s[end]);
        waited.sum::<f64>() / length_ns
    };
    Ok(WhatIf {
        footprint_bytes,
        footprint_basis,
        sample_count: data.accesses.len(),
        window_count: windows.len(),
        unit_bytes: hottest.unit_bytes(),
        stall_share: [mean(0), mean(1)],
        stall_basis,
        latency_ns,
        latency_basis,
        accesses_per_us: fills / length_ns * 1e3,
        bytes_per_fill: (carried.1 > 0.0).then(|| carried.0 / carried.1),
        cpus,
        check: run.check,
        tier_bytes,
        rows: sizes
            .iter()
            .map(|&bytes| run.row(bytes, footprint_bytes))
            .collect(),
        notes: notes(
            question,
            &sizes,
            (footprint_bytes, tier_bytes),
            cpus,
            carried.1 > 0.0,
        ),
    })
}

fn default_sizes(footprint_bytes: u64) -> Vec<u64> {
    let pages = footprint_bytes / PAGE_BYTES;
    let parts =
        [0, 1, 2, 4, 6, 8].map(|eighths| (u128::from(pages) * eighths / 8) as u64 * PAGE_BYTES);
    sorted(&parts)
}

fn sorted(sizes: &[u64]) -> Vec<u64> {
    let mut sizes = sizes.to_vec();
    sizes.sort_unstable();
    sizes.dedup();
    sizes
}

/// What differs between the cores of the recording and those of the target.
fn core(question: &WhatIfQuestion<'_>, cpus: Option<f64>) -> Core {
    let target = question.target;
    let busy = cpus.map(|cpus| [cpus, cpus.min(target.cpu_count() as f64)]);
    let Some(from) = question.recorded_on else {
        return Core {
            cpus: busy,
            ..Core::SAME
        };
    };
    Core {
        cpus: busy,
        compute: (target.cpu.cpi / target.cpu.ghz) / (from.cpu.cpi / from.cpu.ghz),
        overlap: target.cpu.mlp / from.cpu.mlp,
    }
}

/// Speed that the model gives the recorded run on the machine that it was recorded on.
fn check(data: &Data, machine: &Machine, run: &Run<'_>) -> Result<f64, Missing> {
    let fits = machine.nodes.len() == data.meta.nodes.len()
        && machine
            .nodes
            .iter()
            .zip(&data.meta.nodes)
            .all(|(node, meta)| {
                let cpus: Option<CpuSet> = meta.cpus.parse().ok();
                node.id.0 == meta.id && cpus.is_some_and(|cpus| cpus.len() == node.cpus.len())
            });
    if !fits {
        let nodes = data.meta.nodes.iter();
        let nodes: Vec<String> = nodes
            .map(|node| format!("node{} (CPUs {})", node.id, node.cpus))
            .collect();
        return Err(missing(
            format!(
                "{} is not the machine of the recording, which has {}",
                machine.name,
                nodes.join(", ")
            ),
            "give --recorded-on the machine that it was recorded on, and --cpus what the lab scaled it to",
        ));
    }
    let count = machine.nodes.len();
    let tiers = Tiers::new(machine);
    let at = |time_ns| {
        data.accesses
            .partition_point(|access| access.time_ns < time_ns)
    };
    let core = Core {
        cpus: run.core.cpus.map(|[before, _]| [before, before]),
        ..Core::SAME
    };
    let speed = |window: &Window, stalls: &[f64; 2]| {
        let mut places: Places = vec![vec![0.0; count]; count];
        let mut sum = 0.0;
        for access in &data.accesses[at(window.from_ns)..at(window.until_ns)] {
            let (Some(from), Some(home)) = (access.from(), access.home()) else {
                continue;
            };
            places[from][home] += f64::from(access.weight);
            sum += f64::from(access.weight);
        }
        if sum <= 0.0 {
            return None;
        }
        places.iter_mut().flatten().for_each(|share| *share /= sum);
        let figures = (
            f64::midpoint(stalls[0], stalls[1]),
            window.latency_ns.unwrap_or(run.latency_ns),
        );
        Some((
            window.length_ns,
            tiers.speed(window, figures, &core, &places),
        ))
    };
    let speeds: Vec<(f64, f64)> = run
        .windows
        .iter()
        .zip(&run.stalls)
        .filter_map(|(w, s)| speed(w, s))
        .collect();
    together(speeds.into_iter()).ok_or_else(|| missing(
        "the samples do not tell which node served them, so that --recorded-on cannot be compared with the recording",
        "leave --recorded-on out",
    ))
}

/// The speed of several windows, `(length, speed)`, one after the other.
fn together(windows: impl Iterator<Item = (f64, f64)>) -> Option<f64> {
    let times = windows.fold((0.0, 0.0), |sum, (length, speed)| {
        (sum.0 + length, sum.1 + length / speed)
    });
    (times.1 > 0.0).then(|| times.0 / times.1)
}

/// All that a row is reckoned from.
struct Run<'a> {
    tiers: &'a Tiers<'a>,
    hottest: &'a Hottest,
    windows: &'a [Window],
    stalls: Vec<[f64; 2]>,
    latency_ns: f64,
    core: Core,
    check: Option<f64>,
}

impl Run<'_> {
    /// Times as fast as recorded, with these shares of each window in the fast tier and the stalls that `stall`
    /// makes of their ends.
    fn speed(&self, shares: &[f64], stall: impl Fn(&[f64; 2]) -> f64) -> f64 {
        let windows = self.windows.iter().zip(&self.stalls).zip(shares);
        let speeds = windows.map(|((window, stalls), &fast)| {
            let figures = (stall(stalls), window.latency_ns.unwrap_or(self.latency_ns));
            let places = self.tiers.places(fast);
            (
                window.length_ns,
                self.tiers.speed(window, figures, &self.core, &places),
            )
        });
        // What the model is off of the recorded run, it is off of the others.
        together(speeds).unwrap_or(1.0) / self.check.unwrap_or(1.0)
    }

    fn shares(&self, bytes: u64) -> Vec<f64> {
        let within = |w: &Window| self.hottest.share_within(w.from_ns..w.until_ns, bytes);
        self.windows.iter().map(within).collect()
    }

    fn row(&self, fast_bytes: u64, footprint_bytes: u64) -> Row {
        let most = fast_bytes.min(footprint_bytes);
        let middle = |stalls: &[f64; 2]| f64::midpoint(stalls[0], stalls[1]);
        // The most first: of two that are as fast it is taken.
        let parts = (0..=PARTS)
            .rev()
            .map(|part| (u128::from(most) * u128::from(part) / u128::from(PARTS)) as u64);
        let tried = parts.map(|bytes| (self.speed(&self.shares(bytes), middle), bytes));
        let (central, used_bytes) = tried
            .reduce(|a, b| if b.0 > a.0 * 1.000_1 { b } else { a })
            .unwrap_or((1.0, 0));
        let Share { value, low, high } = match used_bytes {
            0 => Share {
                value: 0.0,
                low: 0.0,
                high: 0.0,
            },
            bytes => self.hottest.share(bytes),
        };
        let shares = self.shares(used_bytes);
        let moved = |by: f64| {
            shares
                .iter()
                .map(|share| (share + by).clamp(0.0, 1.0))
                .collect::<Vec<f64>>()
        };
        let (fewer, more) = (moved(low - value), moved(high - value));
        let corners = [&fewer, &more]
            .into_iter()
            .flat_map(|shares| [0, 1].map(|end| self.speed(shares, |s| s[end])));
        let (least, most) = corners.fold((central, central), |ends, speed| {
            (ends.0.min(speed), ends.1.max(speed))
        });
        let check = self.check.map_or(0.0, f64::ln);
        let error = |speed: f64| (MODEL_ERROR * speed.ln()).hypot(check).max(LEAST_ERROR);
        let is_known = self
            .stalls
            .iter()
            .all(|[low, high]| high - low <= 2.0 * STALL_ERROR + 1e-9);
        Row {
            fast_bytes,
            used_bytes,
            fast_share: [low, value, high],
            speed: is_known.then_some(central),
            low: least * (-error(least)).exp(),
            high: most * error(most).exp(),
        }
    }
}

#[cfg(test)]
mod tests;
