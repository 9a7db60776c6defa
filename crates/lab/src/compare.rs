//! Comparing policies: order of runs, statistics, table and JSON. Pure.

pub mod programs;

use crate::measure::{self, Figures};
use crate::policies::Choice;
use crate::protocol::RunEnded;
use serde::{Deserialize, Serialize};
use std::fmt::Write;

/// Schema of the JSON form; `docs/lab.md` documents it.
pub const SCHEMA: &str = "hither.lab.compare/1";

/// Order of runs as positions in the list of policies: A B C D, then B C D A, and so on, so that
/// every policy comes early and late, and neighbours change.
#[must_use]
pub fn order(policy_count: usize, repeat: usize) -> Vec<usize> {
    (0..repeat)
        .flat_map(|round| (0..policy_count).map(move |index| (index + round) % policy_count))
        .collect()
}

/// Median, least and most of some values.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Spread {
    /// Median; the mean of the two in the middle of an even count.
    pub median: f64,
    /// Least.
    pub min: f64,
    /// Most.
    pub max: f64,
}

impl Spread {
    /// Of the values; `None` without any.
    #[must_use]
    pub fn of(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut sorted: Vec<f64> = values
            .into_iter()
            .filter(|value| value.is_finite())
            .collect();
        sorted.sort_by(f64::total_cmp);
        let (&min, &max) = (sorted.first()?, sorted.last()?);
        let middle = sorted.len() / 2;
        let median = if sorted.len() % 2 == 1 {
            sorted[middle]
        } else {
            f64::midpoint(sorted[middle - 1], sorted[middle])
        };
        Some(Self { median, min, max })
    }
}

/// Standard deviation of a sample over its mean; `None` of less than two values.
#[must_use]
pub fn deviation(values: &[f64]) -> Option<f64> {
    let count = values.len() as f64;
    let mean = values.iter().sum::<f64>() / count;
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    (values.len() > 1 && mean > 0.0).then(|| (squares / (count - 1.0)).sqrt() / mean)
}

/// What was measured of one run.
#[derive(Clone, Debug, PartialEq)]
pub struct Run {
    /// Position in the list of policies.
    pub policy: usize,
    /// What the guest sent.
    pub ended: RunEnded,
    /// Host seconds that it took.
    pub host_seconds: f64,
}

/// One run in the JSON form.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunRow {
    /// Exit status of the program.
    pub status: u8,
    /// Guest seconds from exec to exit.
    pub seconds: f64,
    /// See [`measure`].
    pub steady_seconds: Option<f64>,
    /// Host seconds.
    pub host_seconds: f64,
    /// Figures of the whole run.
    #[serde(flatten)]
    pub figures: Figures,
    /// Figures of its steady part.
    pub steady: Figures,
    /// Report of `hither run`, schema `hither.run/1`.
    pub hither: Option<serde_json::Value>,
}

/// One policy.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ComparedRow {
    /// Its name.
    pub policy: String,
    /// Guest seconds from exec to exit.
    pub seconds: Option<Spread>,
    /// Standard deviation of the seconds over their mean, where there are two runs or more.
    #[serde(default)]
    pub seconds_deviation: Option<f64>,
    /// Speed of the median run over first-touch's (over the first row's without first-touch).
    pub speed: Option<f64>,
    /// Seconds that the whole work takes at the steady part's speed.
    pub steady_seconds: Option<Spread>,
    /// The same for steady seconds.
    pub steady_speed: Option<f64>,
    /// Medians over the runs of the figures below.
    pub local_access_ratio: Option<f64>,
    /// Mean latency of demand misses in ns.
    pub latency_ns: Option<f64>,
    /// 0 even, 2 all on one of four.
    pub controller_imbalance: Option<f64>,
    /// Mean utilisation of the controllers, 0 to 1.
    pub controller_use: Option<f64>,
    /// Mean utilisation of the links, 0 to 1.
    pub link_use: Option<f64>,
    /// Imbalance of the links' traffic.
    pub link_imbalance: Option<f64>,
    /// Instructions, user and kernel.
    pub instructions: Option<f64>,
    /// Lines that came from memory in 1000 instructions, user and kernel.
    #[serde(default)]
    pub misses_per_1000: Option<f64>,
    /// Pages moved by whomever.
    pub moved_pages: Option<f64>,
    /// Host seconds.
    pub host_seconds: Option<f64>,
    /// Every run, in the order they took place.
    pub runs: Vec<RunRow>,
}

/// Where and how a comparison was made.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Setting {
    /// Name of the machine file.
    pub machine: String,
    /// What was scaled.
    pub scaling: String,
    /// CPUs of the guest.
    pub cpus: usize,
    /// Memory of each node in MiB.
    pub memory_mb: Vec<u64>,
    /// `uname -r` of the guest.
    pub kernel: String,
    /// Transparent huge pages: `always`, `madvise` or `never`.
    pub thp: String,
    /// Is time modelled? Without the plugin it is the host's, and means nothing.
    pub modelled: bool,
    /// Program and arguments.
    pub command: Vec<String>,
}

/// A whole comparison: the JSON document.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Comparison {
    /// [`SCHEMA`].
    pub schema: String,
    /// Where and how.
    #[serde(flatten)]
    pub setting: Setting,
    /// Progress (share of the program's user instructions) from which the steady part counts.
    pub steady_start: f64,
    /// One row per policy, in the order asked for.
    pub rows: Vec<ComparedRow>,
}

impl Comparison {
    /// From what the guest sent, in the order of the runs.
    #[must_use]
    pub fn new(setting: Setting, policies: &[String], runs: &[Run]) -> Self {
        let steady_start = steady_start(policies, runs);
        let mut rows: Vec<ComparedRow> = policies
            .iter()
            .enumerate()
            .map(|(index, name)| row(name, index, runs, steady_start))
            .collect();
        if let Some((seconds, steady_seconds)) =
            base(&rows).map(|row| (row.seconds, row.steady_seconds))
        {
            let ratio =
                |base: Option<Spread>, own: Option<Spread>| Some(base?.median / own?.median);
            for row in &mut rows {
                row.speed = ratio(seconds, row.seconds);
                row.steady_speed = ratio(steady_seconds, row.steady_seconds);
            }
        }
        Self {
            schema: SCHEMA.to_owned(),
            setting,
            steady_start,
            rows,
        }
    }

    /// Runs that did not succeed: policy, number of the run from 1, exit status.
    pub fn failures(&self) -> impl Iterator<Item = (&str, usize, u8)> {
        self.rows.iter().flat_map(|row| {
            let runs = row.runs.iter().enumerate();
            runs.filter(|(_, run)| run.status != 0)
                .map(|(index, run)| (row.policy.as_str(), index + 1, run.status))
        })
    }
}

/// The row that speeds are measured against: first-touch, or the first where it is not among them.
fn base(rows: &[ComparedRow]) -> Option<&ComparedRow> {
    rows.iter()
        .find(|row| row.policy == "first-touch")
        .or(rows.first())
}

/// Progress from which all runs are compared: see [`measure`].
fn steady_start(policies: &[String], runs: &[Run]) -> f64 {
    let of_hither = |run: &&Run| Choice::is_of_hither(&policies[run.policy]);
    let starts = runs
        .iter()
        .filter(of_hither)
        .filter_map(|run| measure::last_move_progress(&run.ended.timeline));
    starts.fold(0.0, f64::max).min(measure::LATEST_START)
}

fn run_row(run: &Run, steady_start: f64) -> RunRow {
    let timeline = &run.ended.timeline;
    let ends = timeline.first().zip(timeline.last());
    let steady = measure::point_at(timeline, steady_start).zip(timeline.last());
    RunRow {
        status: run.ended.status,
        seconds: run.ended.end_ns.saturating_sub(run.ended.start_ns) as f64 / 1e9,
        steady_seconds: measure::steady_seconds(timeline, steady_start),
        host_seconds: run.host_seconds,
        figures: ends.map_or_else(Figures::default, |(from, to)| measure::between(from, to)),
        steady: steady.map_or_else(Figures::default, |(from, to)| measure::between(from, to)),
        hither: run.ended.report.clone(),
    }
}

fn row(name: &str, policy: usize, runs: &[Run], steady_start: f64) -> ComparedRow {
    let runs: Vec<RunRow> = runs
        .iter()
        .filter(|run| run.policy == policy)
        .map(|run| run_row(run, steady_start))
        .collect();
    // A failed run has no time worth comparing; it is listed, and the command's status says so.
    let good = || runs.iter().filter(|run| run.status == 0);
    let median = |get: fn(&RunRow) -> Option<f64>| {
        Spread::of(good().filter_map(get)).map(|spread| spread.median)
    };
    // Without the device nothing was counted, which is not the same as none.
    let counted = |get: fn(&Figures) -> Option<u64>| {
        let measured = good()
            .map(|run| &run.figures)
            .filter(|figures| figures.instructions.is_some());
        let measured = measured.filter_map(get).map(|count| count as f64);
        Spread::of(measured).map(|spread| spread.median)
    };
    ComparedRow {
        policy: name.to_owned(),
        seconds: Spread::of(good().map(|run| run.seconds)),
        seconds_deviation: deviation(&good().map(|run| run.seconds).collect::<Vec<_>>()),
        speed: None,
        steady_seconds: Spread::of(good().filter_map(|run| run.steady_seconds)),
        steady_speed: None,
        local_access_ratio: median(|run| run.figures.local_access_ratio),
        latency_ns: median(|run| run.figures.latency_ns),
        controller_imbalance: median(|run| run.figures.controller_imbalance),
        controller_use: median(|run| run.figures.controller_use),
        link_use: median(|run| run.figures.link_use),
        link_imbalance: median(|run| run.figures.link_imbalance),
        instructions: counted(|figures| figures.instructions),
        misses_per_1000: median(|run| run.figures.misses_per_1000),
        moved_pages: counted(|figures| figures.moved_pages),
        host_seconds: median(|run| Some(run.host_seconds)),
        runs,
    }
}

/// Cells of the longest bar.
const BAR_CELLS: f64 = 20.0;

/// A bar of eighths of cells.
fn bar(value: f64, most: f64) -> String {
    const PARTS: [&str; 8] = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"];
    if !(value > 0.0 && most > 0.0) {
        return String::new();
    }
    let eighths = (value / most * BAR_CELLS * 8.0).round() as usize;
    format!("{}{}", "█".repeat(eighths / 8), PARTS[eighths % 8])
}

/// `1 node`, `4 nodes`.
#[must_use]
pub fn nodes(count: usize) -> String {
    format!("{count} node{}", if count == 1 { "" } else { "s" })
}

/// What a person reads of a comparison.
pub struct Parts {
    /// Of what it is.
    pub above: String,
    /// Names of columns.
    pub head: [String; 11],
    /// A row for each policy.
    pub rows: Vec<[String; 11]>,
    /// What the words mean, and what failed.
    pub below: String,
}

/// The parts of [`table`], for who prints them as wide as there is room.
#[must_use]
pub fn parts(comparison: &Comparison) -> Parts {
    let mut head = HEAD.map(str::to_owned);
    let base = base(&comparison.rows).map_or("", |row| row.policy.as_str());
    head[HEAD.len() - 1] = format!("speed ({base} = 1)");
    Parts {
        above: above(comparison),
        head,
        rows: cells(comparison),
        below: below(comparison),
    }
}

fn above(comparison: &Comparison) -> String {
    let setting = &comparison.setting;
    let mut out = String::new();
    let _ = writeln!(out, "{}", setting.command.join(" "));
    let _ = writeln!(
        out,
        "on {}, {} CPUs, {}, Linux {}, huge pages {}",
        setting.machine,
        setting.cpus,
        nodes(setting.memory_mb.len()),
        setting.kernel,
        setting.thp
    );
    if !setting.scaling.is_empty() {
        let _ = writeln!(out, "{}", setting.scaling);
    }
    if !setting.modelled {
        let _ = writeln!(
            out,
            "without the plugin: times are the host's and say nothing about placement"
        );
    }
    out
}

fn below(comparison: &Comparison) -> String {
    let mut out = format!(
        "\nseconds: guest time from exec to exit, median (least to most). steady: the whole work at the \
         speed of its last {:.0} %.\n",
        (1.0 - comparison.steady_start) * 100.0
    );
    for (policy, run, status) in comparison.failures() {
        let _ = writeln!(
            out,
            "FAILED: run {run} of {policy} ended with status {status}"
        );
    }
    out
}

/// The table for a person, with bars.
#[must_use]
pub fn table(comparison: &Comparison) -> String {
    let mut out = above(comparison);
    let base = base(&comparison.rows).map_or("", |row| row.policy.as_str());
    let mut lines = vec![HEAD.map(str::to_owned)];
    lines.extend(cells(comparison));
    let widths: Vec<usize> = (0..HEAD.len())
        .map(|column| {
            lines
                .iter()
                .map(|line| line[column].chars().count())
                .max()
                .unwrap_or(0)
        })
        .collect();
    out.push('\n');
    let most = comparison
        .rows
        .iter()
        .filter_map(|row| row.speed)
        .fold(0.0, f64::max);
    for (index, line) in lines.iter().enumerate() {
        let padded: Vec<String> = line
            .iter()
            .zip(&widths)
            .enumerate()
            .map(|(column, (text, &width))| {
                if column == 0 {
                    format!("{text:<width$}")
                } else {
                    format!("{text:>width$}")
                }
            })
            .collect();
        let end = match index.checked_sub(1) {
            None => format!("speed ({base} = 1)"),
            Some(row) => bar(comparison.rows[row].speed.unwrap_or(0.0), most),
        };
        let _ = writeln!(
            out,
            "{}",
            format!("{}  {end}", padded.join("  ")).trim_end()
        );
    }
    out + &below(comparison)
}

const HEAD: [&str; 11] = [
    "policy",
    "seconds",
    "",
    "steady",
    "local",
    "latency",
    "imbalance",
    "links",
    "their imb.",
    "moved",
    "speed",
];

fn cells(comparison: &Comparison) -> Vec<[String; 11]> {
    let number = |value: Option<f64>, digits: usize| {
        value.map_or("-".into(), |value| format!("{value:.digits$}"))
    };
    let percent =
        |value: Option<f64>| value.map_or("-".into(), |value| format!("{:.0} %", value * 100.0));
    let rows = comparison.rows.iter().map(|row| {
        let range = row.seconds.map_or(String::new(), |spread| {
            format!("({:.3} to {:.3})", spread.min, spread.max)
        });
        [
            row.policy.clone(),
            number(row.seconds.map(|spread| spread.median), 3),
            range,
            number(row.steady_seconds.map(|spread| spread.median), 3),
            percent(row.local_access_ratio),
            row.latency_ns
                .map_or("-".into(), |value| format!("{value:.0} ns")),
            percent(row.controller_imbalance),
            percent(row.link_use),
            percent(row.link_imbalance),
            number(row.moved_pages, 0),
            number(row.speed, 2),
        ]
    });
    rows.collect()
}

#[cfg(test)]
mod tests;
