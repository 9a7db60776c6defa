//! Regions out of the tracepoint `damon:damon_aggregated`: the kernel emits one event per region
//! when an aggregation ends.
//!
//! Pure but for reading the event's description. Any bytes are safe; an aggregation of which a
//! region is missing is dropped whole, and counted.

use crate::error::{Error, Fault, Result};
use crate::parse::{Parsed, clip};
use crate::perf::record::{HEADER_BYTES, RECORD_LOST, RECORD_SAMPLE};
use crate::root::Root;
use hither_core::ids::Pid;
use hither_core::observation::RegionAccess;

/// Where tracefs may be: mounted by itself, or below debugfs.
const TRACE_FOLDERS: [&str; 2] = ["sys/kernel/tracing", "sys/kernel/debug/tracing"];
const EVENT: &str = "events/damon/damon_aggregated";

/// Place and size of a field.
type Field = (usize, usize);

/// The event as this kernel lays it out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    /// The kernel's number of the event.
    pub id: u64,
    region_count: Field,
    start: Field,
    end: Field,
    access_count: Field,
    age: Field,
}

impl Layout {
    /// Reads it from tracefs.
    ///
    /// # Errors
    /// tracefs is not mounted, or the kernel has no such event.
    pub fn read(root: &Root) -> Result<Self> {
        for folder in TRACE_FOLDERS {
            let file = format!("{folder}/{EVENT}/format");
            if let Some(layout) = root.parse_if_any(&file, parse_format)? {
                return Ok(layout);
            }
        }
        Err(Error::new(
            root.path(&format!("{}/{EVENT}", TRACE_FOLDERS[0])),
            "cannot be seen: the kernel tells of regions by this tracepoint",
            "mount tracefs (mount -t tracefs tracefs /sys/kernel/tracing) and run hither as root",
        ))
    }

    fn decode(&self, raw: &[u8]) -> Option<Event> {
        let number = |(offset, size): Field| {
            let bytes = raw.get(offset..offset.checked_add(size)?)?;
            match *bytes {
                [a, b, c, d] => Some(u64::from(u32::from_ne_bytes([a, b, c, d]))),
                _ => Some(u64::from_ne_bytes(bytes.try_into().ok()?)),
            }
        };
        let (start, end) = (number(self.start)?, number(self.end)?);
        (start < end).then_some(())?;
        Some(Event {
            region_count: number(self.region_count)?,
            start,
            end,
            access_count: number(self.access_count)?.min(u32::MAX.into()) as u32,
            age_count: number(self.age)?.min(u32::MAX.into()) as u32,
        })
    }
}

struct Event {
    region_count: u64,
    start: u64,
    end: u64,
    access_count: u32,
    age_count: u32,
}

/// The description of the event.
///
/// ```text
/// name: damon_aggregated
/// ID: 744
/// format:
///         field:unsigned long start;      offset:24;      size:8; signed:0;
/// ```
pub fn parse_format(text: &str) -> Parsed<Layout> {
    let mut id = None;
    let mut fields: Vec<(&str, Field)> = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let line = line.trim();
        let fail = || Fault::new(index + 1, format!("`{}` is not understood", clip(line)));
        if let Some(number) = line.strip_prefix("ID:") {
            id = Some(number.trim().parse().map_err(|_| fail())?);
        } else if let Some(rest) = line.strip_prefix("field:") {
            let mut parts = rest.split(';').map(str::trim);
            let name = parts.next().and_then(|words| words.split(' ').next_back());
            let mut number = |word: &str| parts.next()?.strip_prefix(word)?.parse().ok();
            let place = number("offset:").zip(number("size:"));
            fields.push((name.ok_or_else(fail)?, place.ok_or_else(fail)?));
        }
    }
    let of = |name: &str| {
        let found = fields.iter().find(|(known, _)| *known == name);
        match found {
            Some(&(_, place @ (_, 4 | 8))) => Ok(place),
            _ => Err(Fault::new(1, format!("has no number `{name}`"))),
        }
    };
    Ok(Layout {
        id: id.ok_or_else(|| Fault::new(1, "has no line `ID:`"))?,
        region_count: of("nr_regions")?,
        start: of("start")?,
        end: of("end")?,
        access_count: of("nr_accesses")?,
        age: of("age")?,
    })
}

/// Puts the regions of one target together.
#[derive(Debug)]
pub struct Collector {
    layout: Layout,
    pid: Option<Pid>,
    check_count: u32,
    /// End of the last aggregation, or the start of watching.
    since_ns: u64,
    partial: Vec<RegionAccess>,
    /// Aggregations that were dropped because something of them was missing.
    pub dropped: u64,
    /// Records that did not fit into the ring.
    pub lost: u64,
}

impl Collector {
    /// Of a target that is watched since `now_ns`, with so many checks in an aggregation.
    #[must_use]
    pub fn new(layout: Layout, pid: Option<Pid>, check_count: u32, now_ns: u64) -> Self {
        Self {
            layout,
            pid,
            check_count: check_count.max(1),
            since_ns: now_ns,
            partial: Vec::new(),
            dropped: 0,
            lost: 0,
        }
    }

    /// An aggregation has so many checks from now on; what of one is there already, the kernel
    /// converts.
    pub fn set_check_count(&mut self, check_count: u32) {
        self.check_count = check_count.max(1);
    }

    /// Takes a record of the ring; a whole aggregation is appended to `into`.
    pub fn add(&mut self, record: &[u8], into: &mut Vec<RegionAccess>) {
        let word = |at: usize| -> Option<[u8; 8]> { record.get(at..at + 8)?.try_into().ok() };
        let Some(header) = word(0) else { return };
        match u32::from_ne_bytes([header[0], header[1], header[2], header[3]]) {
            RECORD_SAMPLE => {
                // The body: time, size of the raw bytes as a u32, the raw bytes.
                let time = word(HEADER_BYTES).map(u64::from_ne_bytes);
                let event = record
                    .get(HEADER_BYTES + 12..)
                    .and_then(|raw| self.layout.decode(raw));
                match time.zip(event) {
                    Some((time_ns, event)) => self.add_event(time_ns, &event, into),
                    None => self.drop_partial(),
                }
            }
            RECORD_LOST => {
                // The body: the event's id, the count.
                self.lost += word(HEADER_BYTES + 8).map_or(1, u64::from_ne_bytes);
                self.drop_partial();
            }
            _ => {}
        }
    }

    fn add_event(&mut self, time_ns: u64, event: &Event, into: &mut Vec<RegionAccess>) {
        let is_above = |last: &RegionAccess| last.addresses.end <= event.start;
        if !self.partial.last().is_none_or(is_above) {
            self.drop_partial();
        }
        self.partial.push(RegionAccess {
            time_ns,
            length_ns: 0,
            pid: self.pid,
            addresses: event.start..event.end,
            access_count: event.access_count.min(self.check_count),
            check_count: self.check_count,
            age_count: Some(event.age_count),
        });
        if (self.partial.len() as u64) < event.region_count {
            return;
        }
        // All of an aggregation are told together: they share the last one's time.
        let length_ns = time_ns.saturating_sub(self.since_ns).max(1);
        self.since_ns = time_ns;
        for mut region in self.partial.drain(..) {
            (region.time_ns, region.length_ns) = (time_ns, length_ns);
            into.push(region);
        }
    }

    fn drop_partial(&mut self) {
        if !self.partial.is_empty() {
            self.partial.clear();
            self.dropped += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As Linux 7.3 prints it.
    const FORMAT: &str = "\
name: damon_aggregated
ID: 744
format:
\tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;
\tfield:unsigned char common_flags;\toffset:2;\tsize:1;\tsigned:0;
\tfield:unsigned char common_preempt_count;\toffset:3;\tsize:1;\tsigned:0;
\tfield:int common_pid;\toffset:4;\tsize:4;\tsigned:1;

\tfield:unsigned long target_id;\toffset:8;\tsize:8;\tsigned:0;
\tfield:unsigned int nr_regions;\toffset:16;\tsize:4;\tsigned:0;
\tfield:unsigned long start;\toffset:24;\tsize:8;\tsigned:0;
\tfield:unsigned long end;\toffset:32;\tsize:8;\tsigned:0;
\tfield:unsigned int nr_accesses;\toffset:40;\tsize:4;\tsigned:0;
\tfield:unsigned int age;\toffset:44;\tsize:4;\tsigned:0;

print fmt: \"target_id=%lu nr_regions=%u %lu-%lu: %u %u\", REC->target_id
";

    fn record(time_ns: u64, count: u32, start: u64, end: u64, accesses: u32, age: u32) -> Vec<u8> {
        let mut raw = vec![0; 16];
        raw.extend(count.to_ne_bytes());
        raw.extend([0; 4]);
        raw.extend(start.to_ne_bytes());
        raw.extend(end.to_ne_bytes());
        raw.extend(accesses.to_ne_bytes());
        raw.extend(age.to_ne_bytes());
        let mut body = time_ns.to_ne_bytes().to_vec();
        body.extend((raw.len() as u32 + 4).to_ne_bytes());
        body.extend(raw);
        body.extend([0; 4]);
        let mut record = RECORD_SAMPLE.to_ne_bytes().to_vec();
        record.extend([0, 0]);
        record.extend((body.len() as u16 + 8).to_ne_bytes());
        record.extend(body);
        record
    }

    fn collector() -> Collector {
        let layout = parse_format(FORMAT).unwrap();
        Collector::new(layout, Some(Pid(7)), 20, 1000)
    }

    #[test]
    fn the_layout_is_read_wherever_the_fields_are() {
        let layout = parse_format(FORMAT).unwrap();
        assert_eq!(
            (layout.id, layout.start, layout.age),
            (744, (24, 8), (44, 4))
        );
        for (bad, what) in [
            (FORMAT.replace("ID: 744", "ID: x"), "not understood"),
            (FORMAT.replace("ID: 744", ""), "ID:"),
            (FORMAT.replace("nr_accesses", "hits"), "nr_accesses"),
            (FORMAT.replace("offset:24", "offset:-1"), "not understood"),
            (
                FORMAT.replace("offset:24;\tsize:8", "offset:24;\tsize:3"),
                "start",
            ),
        ] {
            let fault = parse_format(&bad).unwrap_err();
            assert!(fault.reason.contains(what), "{fault:?}");
        }
        for cut in 0..FORMAT.len() {
            let _ = parse_format(&FORMAT[..cut]);
        }
    }

    #[test]
    fn an_aggregation_is_told_when_it_is_whole() {
        let (mut collector, mut found) = (collector(), Vec::new());
        collector.add(&record(3000, 2, 0x1000, 0x4000, 25, 3), &mut found);
        assert!(found.is_empty());
        collector.add(&record(3001, 2, 0x4000, 0x9000, 1, 0), &mut found);
        assert_eq!(found.len(), 2);
        let region = &found[0];
        assert_eq!((region.time_ns, region.length_ns), (3001, 2001));
        assert_eq!(region.addresses, 0x1000..0x4000);
        assert_eq!(
            (region.access_count, region.check_count, region.age_count),
            (20, 20, Some(3))
        );
        assert_eq!(region.pid, Some(Pid(7)));
        collector.add(&record(5001, 1, 0x1000, 0x9000, 0, 1), &mut found);
        assert_eq!(
            (found.len(), found[2].length_ns, collector.dropped),
            (3, 2000, 0)
        );
    }

    #[test]
    fn what_is_missing_costs_its_aggregation_alone() {
        let (mut collector, mut found) = (collector(), Vec::new());
        // The second region of the first aggregation does not come.
        collector.add(&record(3000, 2, 0x1000, 0x4000, 5, 3), &mut found);
        collector.add(&record(4000, 2, 0x1000, 0x4000, 6, 3), &mut found);
        collector.add(&record(4000, 2, 0x4000, 0x9000, 7, 3), &mut found);
        assert_eq!(
            (found.len(), found[0].access_count, collector.dropped),
            (2, 6, 1)
        );
        // The kernel says that records did not fit.
        collector.add(&record(5000, 2, 0x1000, 0x4000, 6, 3), &mut found);
        let mut lost = RECORD_LOST.to_ne_bytes().to_vec();
        lost.extend([0, 0, 24, 0]);
        lost.extend(1u64.to_ne_bytes());
        lost.extend(40u64.to_ne_bytes());
        collector.add(&lost, &mut found);
        assert_eq!((found.len(), collector.dropped, collector.lost), (2, 2, 40));
    }

    #[test]
    fn any_bytes_are_safe() {
        let whole = record(3000, 1, 0x1000, 0x4000, 5, 3);
        for cut in 0..whole.len() {
            let (mut collector, mut found) = (collector(), Vec::new());
            collector.add(&whole[..cut], &mut found);
            for byte in [0, 1, 9, 0x80, 0xff] {
                let mut text = whole.clone();
                text[cut] = byte;
                collector.add(&text, &mut found);
            }
            assert!(found.iter().all(|region| !region.addresses.is_empty()));
        }
    }
}
