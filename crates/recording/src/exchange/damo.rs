//! damo's records (github.com/damonitor/damo, `_damo_records.py`): a list of records in JSON, each
//! with the snapshots of one target, each of those with its regions; or the same in a zlib stream.
//!
//! damo writes numbers as numbers, as text (`"4096"`), and as text for people (`"1,024"`,
//! `"4.000 KiB"`, `"1 s 200 ms"`); all of these are read.
//!
//! A record does not say which process a target is, nor whether its addresses are virtual. No
//! machine has memory at physical addresses from 64 TiB on, and the stack of every process lies
//! beyond: targets with such an address are processes, others are physical memory.

use super::{Imported, LeftOut, MOST_BYTES, Malformed};
use crate::rows::{Process, Region};
use miniz_oxide::inflate::{TINFLStatus, decompress_to_vec_zlib_with_limit};
use serde::Deserialize;
use serde::de::IgnoredAny;
use std::collections::BTreeMap;

/// Addresses from here on are virtual ones.
const VIRTUAL_FROM: u64 = 1 << 46;
/// ns since 1970 from here on; clocks that begin with the machine stay below (30 years).
const UNIX_FROM_NS: f64 = 946_684_800e9;
/// Checks in an aggregation where the record does not tell: DAMON's defaults, 100 ms of 5 ms.
pub(super) const DEFAULT_CHECKS: u32 = 20;
const REMEDY: &str = "give the file as `damo record` wrote it (--output_type json or \
                      json_compressed)";

#[derive(Deserialize)]
struct Record {
    kdamond_idx: Option<Number>,
    context_idx: Option<Number>,
    /// The scheme whose regions these are; those that DAMON monitors otherwise.
    scheme_idx: Option<Number>,
    target_id: Option<Number>,
    #[serde(default)]
    scheme_filters: Option<Vec<Filter>>,
    intervals: Option<Intervals>,
    snapshots: Vec<Snapshot>,
    data_source: Option<String>,
}

/// What a scheme lets pass.
#[derive(Deserialize)]
struct Filter {
    filter_type: Option<String>,
    matching: Option<bool>,
    /// `filter_pass` in older files.
    #[serde(alias = "filter_pass")]
    allow: Option<bool>,
    memcg_path: Option<String>,
}

#[derive(Deserialize)]
struct Intervals {
    sample_us: Number,
    aggr_us: Number,
}

#[derive(Deserialize)]
struct Snapshot {
    start_time: Option<Number>,
    end_time: Number,
    /// Where DAMON tunes its intervals.
    sample_interval_us: Option<Number>,
    regions: Vec<DamoRegion>,
    damos_stats: Option<IgnoredAny>,
}

#[derive(Deserialize)]
struct DamoRegion {
    start: Number,
    end: Number,
    nr_accesses: Option<Accesses>,
    age: Option<Age>,
    probe_hits: Option<Vec<IgnoredAny>>,
    /// Bytes of it that passed the scheme's filters.
    sz_filter_passed: Option<Number>,
}

#[derive(Deserialize)]
struct Accesses {
    samples: Option<Number>,
    percent: Option<Number>,
}

#[derive(Deserialize)]
struct Age {
    usec: Option<Number>,
    aggr_intervals: Option<Number>,
}

/// A number as damo writes it.
#[derive(Deserialize)]
#[serde(untagged)]
enum Number {
    Whole(u64),
    Negative(i64),
    Fraction(f64),
    Text(String),
}

/// Units of sizes, in bytes.
const BYTES: &[(&str, f64)] = &[
    ("B", 1.0),
    ("KiB", (1_u64 << 10) as f64),
    ("MiB", (1_u64 << 20) as f64),
    ("GiB", (1_u64 << 30) as f64),
    ("TiB", (1_u64 << 40) as f64),
    ("PiB", (1_u64 << 50) as f64),
    ("EiB", (1_u64 << 60) as f64),
];
/// Units of times, in ns.
const TIMES: &[(&str, f64)] = &[
    ("ns", 1.0),
    ("us", 1e3),
    ("ms", 1e6),
    ("s", 1e9),
    ("m", 60e9),
    ("h", 3600e9),
    ("d", 86400e9),
];
/// Of shares and counts.
const PERCENT: &[(&str, f64)] = &[("%", 1.0)];

impl Number {
    /// Its value; a number without a unit has the unit `plain`.
    fn value(&self, units: &[(&str, f64)], plain: f64) -> Option<f64> {
        let found = match self {
            Self::Whole(whole) => *whole as f64 * plain,
            Self::Negative(negative) => *negative as f64 * plain,
            Self::Fraction(fraction) => fraction * plain,
            Self::Text(text) => value_of(text.trim(), units, plain)?,
        };
        found.is_finite().then_some(found)
    }

    /// An address, exact to the byte where it is written so.
    fn address(&self) -> Option<u64> {
        match self {
            Self::Whole(whole) => Some(*whole),
            Self::Negative(_) | Self::Fraction(_) => None,
            Self::Text(text) => {
                let digits = text.replace(',', "");
                match digits.trim().parse() {
                    Ok(address) => Some(address),
                    Err(_) => Some(self.value(BYTES, 1.0)? as u64),
                }
            }
        }
    }

    fn count(&self) -> Option<f64> {
        self.value(PERCENT, 1.0)
    }
}

/// `1,024`, `4.000 KiB`, `1 s 200 ms`, `max`.
fn value_of(text: &str, units: &[(&str, f64)], plain: f64) -> Option<f64> {
    match text {
        "max" => return Some(u64::MAX as f64),
        "min" => return Some(0.0),
        _ => {}
    }
    let number = |text: &str| text.replace(',', "").parse::<f64>().ok();
    if let Some(value) = number(text) {
        return Some(value * plain);
    }
    let (sign, mut rest) = match text.strip_prefix('-') {
        Some(rest) => (-1.0, rest.trim_start()),
        None => (1.0, text),
    };
    let mut sum = 0.0;
    while !rest.is_empty() {
        let is_digit = |c: char| c.is_ascii_digit() || c == ',' || c == '.';
        let split = rest.find(|c| !is_digit(c))?;
        let (value, behind) = rest.split_at(split);
        let behind = behind.trim_start();
        let end = behind.find(|c: char| c.is_whitespace() || is_digit(c));
        let (unit, behind) = behind.split_at(end.unwrap_or(behind.len()));
        let (_, factor) = units.iter().find(|(name, _)| *name == unit)?;
        sum += number(value)? * factor;
        rest = behind.trim_start();
    }
    Some(sign * sum)
}

/// Does it begin as a zlib stream does (RFC 1950, 2.2)?
pub(super) fn is_zlib(bytes: &[u8]) -> bool {
    match bytes {
        [method, flags, ..] => {
            method & 0xf == 8 && (u32::from(*method) << 8 | u32::from(*flags)) % 31 == 0
        }
        _ => false,
    }
}

pub(super) fn import(bytes: &[u8]) -> Result<Imported, Malformed> {
    match is_zlib(bytes) {
        true => of_json(&unpacked(bytes, MOST_BYTES as usize)?),
        false => of_json(bytes),
    }
}

/// The content of a zlib stream, if it is not larger than the limit.
pub(super) fn unpacked(bytes: &[u8], most_bytes: usize) -> Result<Vec<u8>, Malformed> {
    decompress_to_vec_zlib_with_limit(bytes, most_bytes).map_err(|error| match error.status {
        TINFLStatus::HasMoreOutput => Malformed::new(
            bytes.len(),
            format!("the content is larger than {} MiB", most_bytes >> 20),
            "record a shorter time, or longer aggregations",
        ),
        status => Malformed::new(
            0,
            format!(
                "the zlib stream is cut off or damaged ({status:?} after {} bytes of content)",
                error.output.len()
            ),
            REMEDY,
        ),
    })
}

fn of_json(bytes: &[u8]) -> Result<Imported, Malformed> {
    let records: Vec<Record> = serde_json::from_slice(bytes).map_err(|error| {
        let offset = offset_of(bytes, error.line(), error.column());
        Malformed::new(offset, format!("no list of damo records ({error})"), REMEDY)
    })?;
    let mut targets = Vec::new();
    let mut notes = Vec::new();
    for (index, record) in records.iter().enumerate() {
        let target = target(index, record, &mut notes).map_err(|what| {
            // Where in the text it was is not known any more: all that is read is one value.
            Malformed::new(0, format!("record {index}: {what}"), REMEDY)
        })?;
        targets.push(target);
    }
    Ok(assemble(targets, notes))
}

/// A line and a column as serde_json counts them.
fn offset_of(bytes: &[u8], line: usize, column: usize) -> usize {
    let mut lines = bytes.split_inclusive(|&byte| byte == b'\n');
    let before: usize = lines.by_ref().take(line.max(1) - 1).map(<[u8]>::len).sum();
    (before + column).min(bytes.len())
}

/// What was seen of one target.
#[derive(Debug, Default)]
pub(super) struct Target {
    /// As damo calls it.
    pub name: String,
    pub snapshots: Vec<TargetSnapshot>,
    /// Length of an aggregation, where it is told.
    pub aggregation_ns: Option<f64>,
    /// Checks in an aggregation, where it is told.
    pub check_count: Option<u32>,
}

/// A target's regions at a moment.
#[derive(Debug, Default)]
pub(super) struct TargetSnapshot {
    pub start_ns: Option<f64>,
    pub end_ns: f64,
    /// Time between checks, where it is told of this snapshot.
    pub check_ns: Option<f64>,
    pub regions: Vec<Seen>,
}

/// A region of it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seen {
    pub start: u64,
    pub end: u64,
    pub accesses: Count,
    pub age: Option<Count>,
}

/// A count, or in what it can be turned into one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Count {
    /// The count.
    Of(f64),
    /// A percentage of the checks.
    Percent(f64),
    /// A time in us.
    Us(f64),
}

/// As damo calls a target: its number, with those of its kdamond and context where these are not the
/// first.
fn name(index: usize, record: &Record) -> String {
    let number = |number: &Option<Number>| match number {
        Some(Number::Whole(id)) => Some(id.to_string()),
        Some(Number::Text(id)) => Some(id.clone()),
        _ => None,
    };
    let target = number(&record.target_id).unwrap_or_else(|| index.to_string());
    let of = [&record.kdamond_idx, &record.context_idx]
        .map(|index| number(index).filter(|index| index != "0"));
    match of {
        [None, None] => target,
        [kdamond, context] => {
            let or_first = |index: Option<String>| index.unwrap_or_else(|| "0".to_owned());
            format!(
                "{target} of kdamond {} context {}",
                or_first(kdamond),
                or_first(context)
            )
        }
    }
}

/// Of what the regions are, and what of the record is not kept.
fn limits(name: &str, record: &Record, notes: &mut Vec<String>) {
    let filters = record.scheme_filters.iter().flatten().map(|filter| {
        let word = |is: Option<bool>, yes, no| if is.unwrap_or(false) { yes } else { no };
        let path = filter.memcg_path.as_deref().unwrap_or("");
        format!(
            "{} {}{} {path}",
            word(filter.allow, "allow", "reject"),
            word(filter.matching, "", "not "),
            filter.filter_type.as_deref().unwrap_or("of unknown type"),
        )
        .trim_end()
        .to_owned()
    });
    let filters: Vec<String> = filters.collect();
    if !filters.is_empty() {
        notes.push(format!(
            "target {name} was recorded through filters ({}): what they hold back is in the regions \
             and their counts all the same",
            filters.join(", ")
        ));
    }
    if matches!(record.scheme_idx, Some(Number::Whole(_) | Number::Text(_))) {
        notes.push(format!(
            "target {name}: the regions are those that a scheme of DAMON was tried on, not all"
        ));
    }
    match record.data_source.as_deref() {
        None | Some("unknown" | "") => {}
        Some(source) => notes.push(format!("target {name}: damo has its regions from {source}")),
    }
    let mut left_out = LeftOut::default();
    for snapshot in &record.snapshots {
        if snapshot.damos_stats.is_some() {
            left_out.add("damos_stats");
        }
        for region in &snapshot.regions {
            if region
                .probe_hits
                .as_ref()
                .is_some_and(|hits| !hits.is_empty())
            {
                left_out.add("probe_hits");
            }
            let passed = region.sz_filter_passed.as_ref().and_then(Number::address);
            if passed.is_some_and(|bytes| bytes > 0) {
                left_out.add("sz_filter_passed");
            }
        }
    }
    notes.extend(left_out.note(&format!("fields of target {name}")));
}

fn target(index: usize, record: &Record, notes: &mut Vec<String>) -> Result<Target, String> {
    let mut target = Target {
        name: name(index, record),
        ..Target::default()
    };
    limits(&target.name, record, notes);
    if let Some(intervals) = &record.intervals {
        // Without a unit they are in us, and times are kept in ns.
        let time = |number: &Number| number.value(TIMES, 1e3).filter(|&time| time > 0.0);
        let sample = time(&intervals.sample_us).ok_or("`sample_us` is no time")?;
        let aggregation = time(&intervals.aggr_us).ok_or("`aggr_us` is no time")?;
        target.aggregation_ns = Some(aggregation);
        target.check_count = Some(((aggregation / sample).round() as u32).max(1));
    }
    for (place, snapshot) in record.snapshots.iter().enumerate() {
        let fault = |what: &str| format!("snapshot {place}: {what}");
        let time = |number: &Number| number.value(TIMES, 1.0);
        let mut seen = TargetSnapshot {
            start_ns: snapshot.start_time.as_ref().and_then(time),
            end_ns: time(&snapshot.end_time).ok_or_else(|| fault("`end_time` is no time"))?,
            check_ns: snapshot
                .sample_interval_us
                .as_ref()
                .and_then(|time| time.value(TIMES, 1e3).filter(|&time| time > 0.0)),
            regions: Vec::with_capacity(snapshot.regions.len()),
        };
        for region in &snapshot.regions {
            let address = |number: &Number, name: &str| {
                let wrong = || fault(&format!("`{name}` of a region is no address"));
                number.address().ok_or_else(wrong)
            };
            let (start, end) = (
                address(&region.start, "start")?,
                address(&region.end, "end")?,
            );
            let number = |number: &Option<Number>| number.as_ref().and_then(Number::count);
            let accesses = region.nr_accesses.as_ref().and_then(|accesses| {
                let percent = || number(&accesses.percent).map(Count::Percent);
                number(&accesses.samples).map(Count::Of).or_else(percent)
            });
            let age = region.age.as_ref().and_then(|age| {
                let us = |age: &Number| age.value(TIMES, 1e3).map(|ns| Count::Us(ns / 1e3));
                let usec = || age.usec.as_ref().and_then(us);
                number(&age.aggr_intervals).map(Count::Of).or_else(usec)
            });
            seen.regions.push(Seen {
                start,
                end,
                accesses: accesses.ok_or_else(|| fault("a region has no `nr_accesses`"))?,
                age,
            });
        }
        target.snapshots.push(seen);
    }
    Ok(target)
}

/// A recording out of what was seen of each target.
pub(super) fn assemble(mut targets: Vec<Target>, notes: Vec<String>) -> Imported {
    let mut imported = Imported::default();
    let about = &mut imported.about;
    about.notes = notes;
    for target in &mut targets {
        // What damo adds where there is one snapshot alone: the region 0-0 with -1 accesses.
        let is_added = |seen: &Seen| seen.end == 0 && seen.accesses == Count::Of(-1.0);
        let snapshots = &mut target.snapshots;
        snapshots.sort_by(|a, b| a.end_ns.total_cmp(&b.end_ns));
        fill_starts(snapshots, target.aggregation_ns);
        snapshots.retain(|snapshot| !snapshot.regions.iter().any(is_added));
    }
    let snapshots = || targets.iter().flat_map(|target| &target.snapshots);
    let began = snapshots()
        .filter_map(|snapshot| snapshot.start_ns)
        .fold(f64::INFINITY, f64::min);
    let began = if began.is_finite() { began } else { 0.0 };
    let ended = snapshots().map(|s| s.end_ns).fold(began, f64::max);
    about.length_ns = (ended - began) as u64;
    if began >= UNIX_FROM_NS {
        about.began_unix_ms = Some((began / 1e6) as u64);
    } else {
        let note = "the file does not tell at what time of day it was recorded";
        about.notes.push(note.to_owned());
    }
    let told = targets.iter().find_map(|target| target.aggregation_ns);
    about.interval_us = (told.unwrap_or_else(|| mean_length(&targets)) / 1e3) as u64;
    let most_seen = targets
        .iter()
        .flat_map(|target| &target.snapshots)
        .flat_map(|snapshot| &snapshot.regions);
    let most_seen = most_seen.fold(0.0, |most: f64, seen| match seen.accesses {
        Count::Of(count) => most.max(count),
        _ => most,
    });
    let assumed = (most_seen.min(1e9) as u32).max(DEFAULT_CHECKS);
    let is_told = |target: &Target| {
        target.check_count.is_some() || target.snapshots.iter().all(|s| s.check_ns.is_some())
    };
    if !targets.iter().all(is_told) {
        about.notes.push(format!(
            "the file does not tell how many checks an aggregation had: {assumed} is assumed, \
             DAMON's default of {DEFAULT_CHECKS} or the largest count that was seen"
        ));
    }
    let mut pids: BTreeMap<String, i32> = BTreeMap::new();
    for target in &targets {
        let all = target.snapshots.iter().flat_map(|s| &s.regions);
        let is_virtual = all.clone().any(|seen| seen.end > VIRTUAL_FROM);
        let next = pids.len() as i32 + 1;
        let pid = is_virtual.then(|| *pids.entry(target.name.clone()).or_insert(next));
        add_regions(&mut imported, target, pid, began, assumed);
    }
    for (name, &pid) in &pids {
        imported.processes.push(Process {
            pid,
            name: format!("target {name} of damo"),
            start_ns: 0,
            end_ns: None,
            peak_bytes: None,
        });
    }
    let about = &mut imported.about;
    if !pids.is_empty() {
        about.notes.push(
            "damo's files do not tell which process a target is: targets are numbered from 1 in \
             place of process numbers"
                .to_owned(),
        );
    }
    about.watched = match (targets.len(), pids.len()) {
        (0, _) => "nothing: the file holds no record".to_owned(),
        (_, 0) => "physical memory, by damo".to_owned(),
        (_, 1) => "one target of damo".to_owned(),
        (_, count) => format!("{count} targets of damo"),
    };
    about.tracker = (
        "damo",
        "regions of DAMON, recorded by damo; counts are checks of access bits".to_owned(),
    );
    imported.regions.sort_by_key(|region| region.time_ns);
    imported
}

/// A snapshot without a start begins where the last one ended, the first one a mean length before
/// its end, as damo does it; one alone has the length of an aggregation.
fn fill_starts(snapshots: &mut [TargetSnapshot], aggregation_ns: Option<f64>) {
    let (Some(first), Some(last)) = (snapshots.first(), snapshots.last()) else {
        return;
    };
    let mean_ns = match snapshots.len() {
        1 => aggregation_ns.unwrap_or(100e6),
        count => (last.end_ns - first.end_ns) / (count - 1) as f64,
    };
    let mut before = first.end_ns - mean_ns;
    for snapshot in snapshots {
        snapshot.start_ns.get_or_insert(before);
        before = snapshot.end_ns;
    }
}

fn mean_length(targets: &[Target]) -> f64 {
    let lengths = targets.iter().flat_map(|target| &target.snapshots);
    let (sum, count) = lengths.fold((0.0, 0.0), |(sum, count), s| {
        (sum + s.end_ns - s.start_ns.unwrap_or(s.end_ns), count + 1.0)
    });
    if count > 0.0 { sum / count } else { 0.0 }
}

fn add_regions(into: &mut Imported, target: &Target, pid: Option<i32>, began: f64, assumed: u32) {
    let mut backwards = 0_u64;
    for snapshot in &target.snapshots {
        let start_ns = snapshot.start_ns.unwrap_or(snapshot.end_ns);
        let length_ns = (snapshot.end_ns - start_ns).max(0.0);
        let told = snapshot
            .check_ns
            .map(|check_ns| ((length_ns / check_ns).round() as u32).max(1));
        let check_count = told.or(target.check_count).unwrap_or(assumed);
        for seen in &snapshot.regions {
            if seen.start >= seen.end {
                backwards += 1;
                continue;
            }
            let count = |count: Count| match count {
                Count::Of(count) => count,
                Count::Percent(percent) => percent * f64::from(check_count) / 100.0,
                Count::Us(us) => us * 1e3 / target.aggregation_ns.unwrap_or(length_ns).max(1.0),
            };
            into.regions.push(Region {
                time_ns: (snapshot.end_ns - began).max(0.0) as u64,
                length_ns: length_ns as u64,
                pid,
                start: seen.start,
                end: seen.end,
                access_count: count(seen.accesses).round() as u32,
                check_count,
                age_count: seen.age.map(|age| count(age).round() as u32),
            });
        }
    }
    if backwards > 0 {
        into.about.notes.push(format!(
            "{backwards} regions of target {} end where they start or before, and were left out",
            target.name
        ));
    }
}
