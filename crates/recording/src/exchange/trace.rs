//! Lines of DAMON's trace events, as perf, trace-cmd, the kernel's own `trace` file and damo
//! (`--output_type perf_script`) print them:
//!
//! ```text
//! kdamond.0  4452 [000] 82877.315633: damon:damon_aggregated: target_id=0 nr_regions=17 \
//!     140731667070976-140731668037632: 0 3                                  (perf script, damo)
//! kdamond.0-4452 [000] ..... 82877.315633: damon_aggregated:   target_id=0 ...   (trace-cmd report)
//! kdamond.0-4452 [000] 82877.315633: damon_aggregated:   target_id=0 ...        (trace-cmd 3.2)
//! 1241.509 kdamond.0/4452 damon:damon_aggregated(target_id=0 ...)               (perf trace, in ms)
//! ```
//!
//! The last figure, the age, is missing before Linux 5.17, and damo writes `None` there. Fields
//! behind it (`probe_hits=`) are left out. A snapshot is as many lines of a target as `nr_regions`
//! says; the time of its last line is its end. Where DAMON tunes its intervals,
//! `damon_monitor_intervals_tune: sample_us=80000` tells the time between checks from there on.

use super::damo::{Count, Seen, Target, TargetSnapshot, assemble};
use super::{Imported, LeftOut, Malformed};
use std::collections::HashMap;

const EVENT: &str = "damon_aggregated";
const TUNED: &str = "damon_monitor_intervals_tune";
/// Bytes at the beginning in which the event's name must occur.
const LOOKED_AT: usize = 1 << 16;
const REMEDY: &str = "give the output of `perf script`, `perf trace` or `trace-cmd report` on a \
                      recording of damon:damon_aggregated, unchanged";

/// Are there such lines near the beginning?
pub(super) fn is_trace(bytes: &[u8]) -> bool {
    let bytes = &bytes[..bytes.len().min(LOOKED_AT)];
    // Binary files may hold the name too: those of perf name their events.
    !bytes.contains(&0)
        && bytes.windows(EVENT.len() + 1).any(|window| {
            window.starts_with(EVENT.as_bytes()) && matches!(window[EVENT.len()], b':' | b'(')
        })
}

pub(super) fn import(bytes: &[u8]) -> Result<Imported, Malformed> {
    let mut targets: Vec<Target> = Vec::new();
    // Name of a target to its place and to the regions that its open snapshot still lacks.
    let mut open: HashMap<String, (usize, u64)> = HashMap::new();
    let mut check_ns = None;
    let (mut fields, mut others) = (LeftOut::default(), LeftOut::default());
    let mut gap_count = 0_u64;
    let mut offset = 0;
    for line in bytes.split_inclusive(|&byte| byte == b'\n') {
        let at = offset;
        offset += line.len();
        let line = String::from_utf8_lossy(line);
        gap_count += u64::from(tells_of_losses(&line));
        let fault = |what| Malformed::new(at, format!("a line of {EVENT} {what}"), REMEDY);
        let event = match event(&line) {
            Some(event) if event.name == EVENT => event,
            _ if has_name(&line) => return Err(fault("has no time before it")),
            Some(event) if event.name == TUNED => {
                let us = event.fields.trim().strip_prefix("sample_us=");
                let us = us
                    .and_then(|us| us.parse::<u64>().ok())
                    .filter(|&us| us > 0);
                check_ns = us.map(|us| us as f64 * 1e3);
                continue;
            }
            Some(event) => {
                others.add(event.name);
                continue;
            }
            None => continue,
        };
        let end_ns = event.time_ns;
        let region = region(event.fields, &mut fields);
        let (id, count, seen) =
            region.ok_or_else(|| fault("holds no region after the event's name"))?;
        let (place, left) = open.entry(id.to_owned()).or_insert_with(|| {
            targets.push(Target {
                name: id.to_owned(),
                ..Target::default()
            });
            (targets.len() - 1, 0)
        });
        let snapshots = &mut targets[*place].snapshots;
        if *left == 0 {
            if snapshots.last().is_some_and(|last| last.end_ns > end_ns) {
                return Err(fault("is older than the ones before it"));
            }
            *left = count.max(1);
            snapshots.push(TargetSnapshot {
                check_ns,
                ..TargetSnapshot::default()
            });
        }
        *left -= 1;
        if let Some(snapshot) = snapshots.last_mut() {
            snapshot.end_ns = end_ns;
            snapshot.regions.push(seen);
        }
    }
    let mut notes = Vec::new();
    if gap_count > 0 {
        notes.push(format!(
            "the file says {gap_count} times that events were lost: regions are missing there"
        ));
    }
    notes.extend(fields.note("fields behind a region's age"));
    notes.extend(others.note("lines of other events"));
    Ok(assemble(targets, notes))
}

/// A line of a trace event.
struct Event<'a> {
    time_ns: f64,
    /// Without its subsystem.
    name: &'a str,
    fields: &'a str,
}

/// The event that a line is of, whoever printed it; `None` of headers, comments and stacks.
fn event(line: &str) -> Option<Event<'_>> {
    let line = line.trim();
    let (time, rest, unit) = match line.split_once(char::is_whitespace) {
        // perf trace: the time comes first, in ms.
        Some((first, rest)) if first.parse::<f64>().is_ok() && rest.ends_with(')') => {
            (first, rest.strip_suffix(')')?, 1e6)
        }
        // Names of threads may hold colons and spaces, so the first that is a time counts.
        _ => {
            let mut words = line.match_indices(": ");
            let time = words.find_map(|(end, _)| {
                let word = line[..end].rsplit(char::is_whitespace).next()?;
                word.parse::<f64>().ok().map(|_| (word, &line[end + 2..]))
            });
            let (time, rest) = time?;
            (time, rest, 1e9)
        }
    };
    let time = time.parse::<f64>().ok();
    let time = time.filter(|time| (0.0..1e12).contains(time))?;
    let (name, fields) = match unit == 1e6 {
        true => {
            // `kdamond.0/4452 damon:damon_aggregated(`
            let (before, fields) = rest.split_once('(')?;
            (before.rsplit(char::is_whitespace).next()?, fields)
        }
        false => {
            let rest = rest.trim_start();
            let end = rest.find(char::is_whitespace).unwrap_or(rest.len());
            (rest[..end].strip_suffix(':')?, &rest[end..])
        }
    };
    Some(Event {
        time_ns: time * unit,
        name: name.rsplit(':').next()?,
        fields,
    })
}

/// Does the line have the event's name as that of an event?
fn has_name(line: &str) -> bool {
    line.split_once(EVENT)
        .is_some_and(|(_, after)| after.starts_with([':', '(']))
}

/// `CPU:3 [EVENTS DROPPED]` of trace-cmd, `CPU:1 [LOST 1234 EVENTS]` of the kernel, and `PERF_RECORD_LOST`
/// of perf.
fn tells_of_losses(line: &str) -> bool {
    ["EVENTS DROPPED", "[LOST ", "PERF_RECORD_LOST"]
        .iter()
        .any(|words| line.contains(words))
}

/// ` target_id=1 nr_regions=17 4096-8192: 0 3`: target, regions of the snapshot, region.
fn region<'a>(text: &'a str, left_out: &mut LeftOut) -> Option<(&'a str, u64, Seen)> {
    let mut words = text.split_whitespace();
    let id = words.next()?.strip_prefix("target_id=")?;
    let count = words.next()?.strip_prefix("nr_regions=")?.parse().ok()?;
    let (start, end) = words.next()?.strip_suffix(':')?.split_once('-')?;
    let accesses: i64 = words.next()?.parse().ok()?;
    let mut words = words.peekable();
    let age = words.next_if(|word| !word.contains('='));
    let age = match age {
        None | Some("None") => None,
        Some(age) => Some(Count::Of(age.parse::<i64>().ok()? as f64)),
    };
    for (name, _) in words.filter_map(|word| word.split_once('=')) {
        left_out.add(name);
    }
    let seen = Seen {
        start: start.parse().ok()?,
        end: end.parse().ok()?,
        accesses: Count::Of(accesses as f64),
        age,
    };
    Some((id, count, seen))
}
