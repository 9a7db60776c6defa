//! Trace lines of DAMON as `perf script` prints them, and as damo writes them (`--output_type
//! perf_script`). Other lines are left out.
//!
//! ```text
//! kdamond.0  4452 [000] 82877.315633: damon:damon_aggregated: target_id=18446623435582458880 \
//!     nr_regions=17 140731667070976-140731668037632: 0 3
//! ```
//!
//! The last figure, the age, is missing before Linux 5.17. A snapshot is as many lines of a target
//! as `nr_regions` says; the time of its last line is its end.

use super::damo::{Count, Seen, Target, TargetSnapshot, assemble};
use super::{Imported, Malformed};
use std::collections::HashMap;

const EVENT: &str = "damon:damon_aggregated:";
/// Bytes at the beginning in which the event's name must occur.
const LOOKED_AT: usize = 1 << 16;
const REMEDY: &str = "give the output of `perf script` on a recording of damon:damon_aggregated, \
                      unchanged";

/// Are there such lines near the beginning?
pub(super) fn is_trace(bytes: &[u8]) -> bool {
    let bytes = &bytes[..bytes.len().min(LOOKED_AT)];
    // Binary files may hold the name too: those of perf name their events.
    !bytes.contains(&0)
        && bytes
            .windows(EVENT.len())
            .any(|window| window == EVENT.as_bytes())
}

pub(super) fn import(bytes: &[u8]) -> Result<Imported, Malformed> {
    let mut targets: Vec<Target> = Vec::new();
    // Name of a target to its place and to the regions that its open snapshot still lacks.
    let mut open: HashMap<String, (usize, u64)> = HashMap::new();
    let mut offset = 0;
    for line in bytes.split_inclusive(|&byte| byte == b'\n') {
        let at = offset;
        offset += line.len();
        let line = String::from_utf8_lossy(line);
        let Some((before, after)) = line.split_once(EVENT) else {
            continue;
        };
        let fault = |what| Malformed::new(at, format!("a line of {EVENT} {what}"), REMEDY);
        let time = before.split_whitespace().next_back();
        let time = time.and_then(|time| time.strip_suffix(':')?.parse::<f64>().ok());
        let end_ns = 1e9
            * time
                .filter(|time| (0.0..1e12).contains(time))
                .ok_or_else(|| fault("has no time before it"))?;
        let (id, count, seen) =
            region(after).ok_or_else(|| fault("holds no region after the event's name"))?;
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
            snapshots.push(TargetSnapshot::default());
        }
        *left -= 1;
        if let Some(snapshot) = snapshots.last_mut() {
            snapshot.end_ns = end_ns;
            snapshot.regions.push(seen);
        }
    }
    Ok(assemble(targets))
}

/// ` target_id=1 nr_regions=17 4096-8192: 0 3`: target, regions of the snapshot, region.
fn region(text: &str) -> Option<(&str, u64, Seen)> {
    let mut words = text.split_whitespace();
    let id = words.next()?.strip_prefix("target_id=")?;
    let count = words.next()?.strip_prefix("nr_regions=")?.parse().ok()?;
    let (start, end) = words.next()?.strip_suffix(':')?.split_once('-')?;
    let accesses: i64 = words.next()?.parse().ok()?;
    let age: i64 = match words.next() {
        Some(age) => age.parse().ok()?,
        None => 0,
    };
    let seen = Seen {
        start: start.parse().ok()?,
        end: end.parse().ok()?,
        accesses: Count::Of(accesses as f64),
        age: Count::Of(age as f64),
    };
    Some((id, count, seen))
}
