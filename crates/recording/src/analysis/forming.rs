//! Regions that were formed while the recording went on, as a live run would have formed them.
//!
//! Samples are given to [`hither_core::forming`] in order of time, with a turn every 250 ms of the recording.
//! Where there are none, access bits stand in: every aggregation is one look, whose touched memory counts as
//! touched at once, in an order that does not follow addresses. As looks are tenths of a second apart and
//! forming is made for milliseconds, their time is counted in looks, of [`LOOK_NS`] each, and memory
//! in blocks, so that a look has [`MOST_BLOCKS`] at most. So visits shorter than a few aggregations are not
//! told apart.
//!
//! Pages of mappings with the right to execute, of instructions that read themselves, and of `[stack]` are
//! global from the start. A region is told with what it had when it was looked at last, once a second.

use super::data::Data;
use crate::rows::{Mapping, Region as Row};
use hither_core::forming::{Config, FormedRegion, Forming, Hint, Kind, Program, TURN_NS, Touch};
use hither_core::ids::SpaceId;
use std::collections::BTreeMap;
use std::ops::Range;

/// Turns from one look at all regions to the next: a second.
const LOOK_TURNS: u64 = 4;
/// Shortest life of a region that is told, where it is not there in the end.
const LEAST_LIFE_NS: u64 = 1_000_000_000;
/// Length that an aggregation of access bits is given.
const LOOK_NS: u64 = 20_000_000;
/// Blocks of memory that a look at access bits has at most, about: each is a touch.
const MOST_BLOCKS: u64 = 1024;
/// Bits of an address within a base page.
const PAGE_BITS: u32 = 12;

/// All that was formed.
#[derive(Clone, Debug, PartialEq)]
pub struct Formed {
    /// Of samples? Of access bits otherwise.
    pub of_samples: bool,
    /// Bytes of a unit: base pages, or blocks of access bits.
    pub unit_bytes: u64,
    /// Touches: samples, or blocks of all looks.
    pub touch_count: u64,
    /// Touches that were left out, as there were too many pages, threads or processes.
    pub left_out_count: u64,
    /// Processes by number.
    pub programs: Vec<Lives>,
}

/// Regions of a process.
#[derive(Clone, Debug, PartialEq)]
pub struct Lives {
    /// Its number.
    pub pid: i32,
    /// What was in use of its memory when it was last seen.
    pub touched_bytes: u64,
    /// The thesis's weighted sum of that.
    pub weighted_bytes: f64,
    /// Its regions: those that were there in the end first, the largest first.
    pub regions: Vec<Life>,
}

/// A region, as it was last.
#[derive(Clone, Debug, PartialEq)]
pub struct Life {
    /// Its number in the process; none of seeds and of what is global.
    pub name: Option<u64>,
    /// What it was.
    pub kind: Kind,
    /// Its addresses, ascending, with short gaps.
    pub ranges: Vec<Range<u64>>,
    /// Bytes in them.
    pub bytes: u64,
    /// Bytes of pages that were seen.
    pub seen_bytes: u64,
    /// What of it was in use.
    pub touched_bytes: u64,
    /// The thesis's weighted sum of that.
    pub weighted_bytes: f64,
    /// When it was formed.
    pub from_ns: u64,
    /// When it was seen last.
    pub until_ns: u64,
    /// Was it there in the end?
    pub is_last: bool,
    /// Entries that were seen.
    pub entry_count: u64,
    /// Mean time of a visit.
    pub access_ns: Option<f64>,
    /// Mean time from one visit to the next.
    pub idle_ns: Option<f64>,
    /// Threads that made a twentieth of its touches and more, the busiest first.
    pub threads: Vec<i32>,
}

/// How time and addresses of the recording are those of touches.
#[derive(Clone, Copy, Debug)]
struct Scale {
    unit_bits: u32,
    /// ns of the recording for each ns of touches, and where they begin.
    factor: f64,
    begin_ns: u64,
}

impl Scale {
    fn time_ns(self, touch_ns: u64) -> u64 {
        self.begin_ns
            .saturating_add((touch_ns as f64 * self.factor) as u64)
    }
}

/// Forms them; `None` where there is neither a sample nor an access bit of a process.
#[must_use]
pub fn formed(data: &Data) -> Option<Formed> {
    match data.accesses.is_empty() {
        false => Some(of_samples(data)),
        true => of_access_bits(data),
    }
}

fn of_samples(data: &Data) -> Formed {
    let hints = Hints::of(&data.mappings);
    let scale = Scale {
        unit_bits: PAGE_BITS,
        factor: 1.0,
        begin_ns: 0,
    };
    let mut replay = Replay::new(scale, Config::default());
    for access in &data.accesses {
        let page = access.address >> PAGE_BITS;
        let is_read_by_itself = access.code >> PAGE_BITS == page;
        let hint = match is_read_by_itself {
            true => Hint::Code,
            false => hints.get(access.pid, access.address),
        };
        replay.touch(&Touch {
            time_ns: access.time_ns,
            space: SpaceId(access.pid as u32),
            thread: access.tid(),
            page,
            hint,
        });
    }
    replay.finish(true)
}

/// Of writes nothing is formed: what is read is not seen.
fn of_access_bits(data: &Data) -> Option<Formed> {
    let is_touched = |row: &&Row| row.access_count > 0 && row.pid.is_some() && row.end > row.start;
    let looks: Vec<&[Row]> = data
        .regions
        .chunk_by(|one, other| one.time_ns == other.time_ns)
        .filter(|look| look.iter().any(|row| is_touched(&row)))
        .collect();
    let (first, last) = (looks.first()?, looks.last()?);
    if data.is_of_writes() {
        return None;
    }
    let bytes = |look: &&[Row]| -> u64 {
        let touched = look.iter().filter(is_touched);
        touched.fold(0, |all, row| all.saturating_add(row.end - row.start))
    };
    let most = looks.iter().map(bytes).max().unwrap_or(0);
    let unit_bytes = (most / MOST_BLOCKS).next_power_of_two();
    let passed_ns = last[0].time_ns - first[0].time_ns;
    let scale = Scale {
        unit_bits: unit_bytes.ilog2().max(PAGE_BITS),
        factor: passed_ns as f64 / (LOOK_NS * (looks.len() as u64 - 1).max(1)) as f64,
        begin_ns: first[0].time_ns,
    };
    // Touches of a look follow those of the look before.
    let config = Config {
        near_ns: LOOK_NS * 3 / 2,
        ..Config::default()
    };
    let mut replay = Replay::new(scale, config);
    let mut touches: Vec<(u64, Touch)> = Vec::new();
    for (number, look) in (0..).zip(&looks) {
        touches.clear();
        for row in look.iter().filter(is_touched) {
            let blocks = row.start >> scale.unit_bits..=(row.end - 1) >> scale.unit_bits;
            touches.extend(blocks.map(|page| {
                let touch = Touch {
                    time_ns: number * LOOK_NS,
                    space: SpaceId(row.pid.unwrap_or(0) as u32),
                    thread: None,
                    page,
                    hint: Hint::None,
                };
                (scattered(page ^ number << 40), touch)
            }));
        }
        touches.sort_unstable_by_key(|&(order, touch)| (order, touch.page));
        touches.dedup_by_key(|(order, touch)| (*order, touch.space, touch.page));
        touches.iter().for_each(|(_, touch)| replay.touch(touch));
    }
    Some(replay.finish(false))
}

/// A number that looks drawn at random (the mixing of SplitMix64).
fn scattered(number: u64) -> u64 {
    let mixed = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed ^ (mixed >> 31)
}

/// Touches on their way into regions, and the lives of these.
struct Replay {
    scale: Scale,
    forming: Forming,
    next_turn_ns: u64,
    turns: u64,
    touch_count: u64,
    last_ns: u64,
    lives: BTreeMap<(u32, Option<u64>), Life>,
    programs: BTreeMap<u32, Program>,
}

impl Replay {
    fn new(scale: Scale, config: Config) -> Self {
        Self {
            scale,
            forming: Forming::new(config),
            next_turn_ns: TURN_NS,
            turns: 0,
            touch_count: 0,
            last_ns: 0,
            lives: BTreeMap::new(),
            programs: BTreeMap::new(),
        }
    }

    fn touch(&mut self, touch: &Touch) {
        if touch.time_ns > self.next_turn_ns {
            self.turn();
            // Where nothing was sampled for long, turns in between would find nothing.
            let missed_ns = (touch.time_ns - self.next_turn_ns) / TURN_NS * TURN_NS;
            let next_ns = self.next_turn_ns.saturating_add(missed_ns);
            self.next_turn_ns = next_ns.saturating_add(TURN_NS);
        }
        self.touch_count += 1;
        self.last_ns = touch.time_ns;
        self.forming.touch(touch);
    }

    fn turn(&mut self) {
        self.forming.turn(self.next_turn_ns, 0);
        self.turns += 1;
        if self.turns.is_multiple_of(LOOK_TURNS) {
            self.look();
        }
    }

    /// Looks at all regions.
    fn look(&mut self) {
        let now_ns = self.scale.time_ns(self.next_turn_ns);
        self.lives
            .values_mut()
            .for_each(|life| life.is_last = false);
        for program in self.forming.programs() {
            for region in &program.regions {
                let life = self.life(region, now_ns);
                self.lives.insert((program.space.0, region.name), life);
            }
            self.programs.insert(program.space.0, program);
        }
    }

    fn life(&self, region: &FormedRegion, now_ns: u64) -> Life {
        let bits = self.scale.unit_bits;
        let scaled = |ns: f64| ns * self.scale.factor;
        let bytes = |pages: f64| pages * (1_u64 << bits) as f64;
        let last = |page: u64| page << bits | ((1 << bits) - 1);
        let addresses =
            |pages: &Range<u64>| pages.start << bits..last(pages.end - 1).saturating_add(1);
        Life {
            name: region.name,
            kind: region.kind,
            ranges: region.pages.iter().map(addresses).collect(),
            bytes: region.page_count() << bits,
            seen_bytes: region.seen_pages << bits,
            touched_bytes: region.working_set.touched_pages << bits,
            weighted_bytes: bytes(region.working_set.weighted_pages),
            from_ns: self.scale.time_ns(region.formed_ns),
            until_ns: now_ns,
            is_last: true,
            entry_count: region.entry_count,
            access_ns: region.access_ns.map(scaled),
            idle_ns: region.idle_ns.map(scaled),
            threads: region.threads.clone(),
        }
    }

    fn finish(mut self, of_samples: bool) -> Formed {
        self.next_turn_ns = self.last_ns;
        self.turn();
        self.look();
        let unit_bytes = 1_u64 << self.scale.unit_bits;
        let mut programs: BTreeMap<u32, Lives> = BTreeMap::new();
        for (&space, program) in &self.programs {
            let lives = Lives {
                pid: space as i32,
                touched_bytes: program.working_set.touched_pages * unit_bytes,
                weighted_bytes: program.working_set.weighted_pages * unit_bytes as f64,
                regions: Vec::new(),
            };
            programs.insert(space, lives);
        }
        for ((space, name), life) in self.lives {
            // Seeds and what is global are told as they were in the end.
            let is_told = match name {
                Some(_) => life.is_last || life.until_ns >= life.from_ns + LEAST_LIFE_NS,
                None => life.is_last,
            };
            if let Some(program) = programs.get_mut(&space).filter(|_| is_told) {
                program.regions.push(life);
            }
        }
        for program in programs.values_mut() {
            let order = |life: &Life| {
                let is_unnamed = life.name.is_none();
                (!life.is_last, is_unnamed, std::cmp::Reverse(life.bytes))
            };
            program.regions.sort_by_key(order);
        }
        Formed {
            of_samples,
            unit_bytes,
            touch_count: self.touch_count,
            left_out_count: self.forming.left_out_count(),
            programs: programs.into_values().collect(),
        }
    }
}

/// What mappings say of addresses.
struct Hints {
    /// By process and first address; later mappings of an address have replaced earlier ones.
    by_start: BTreeMap<(i32, u64), (u64, Hint)>,
}

impl Hints {
    fn of(mappings: &[Mapping]) -> Self {
        let mut by_start = BTreeMap::new();
        for mapping in mappings {
            let hint = match mapping.permissions.contains('x') {
                true => Hint::Code,
                false if mapping.name == "[stack]" => Hint::Stack,
                false => Hint::None,
            };
            by_start.insert((mapping.pid, mapping.start), (mapping.end, hint));
        }
        Self { by_start }
    }

    fn get(&self, pid: i32, address: u64) -> Hint {
        let before = self.by_start.range((pid, 0)..=(pid, address)).next_back();
        match before {
            Some((_, &(end, hint))) if address < end => hint,
            _ => Hint::None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::data::tests::{access, empty};
    use super::*;
    use hither_core::forming::Kind;

    /// The next number of a generator below another.
    fn below(state: &mut u64, end: u64) -> u64 {
        *state = state.wrapping_add(1);
        scattered(*state << 20) % end
    }

    /// Samples of a program at 5,000 a second, which is in one of `count` regions of 64 pages for 10 ms, then
    /// in the next.
    fn visits(data: &mut Data, from_ns: u64, until_ns: u64, first_page: u64, count: u64) {
        let mut state = from_ns;
        for time_ns in (from_ns..until_ns).step_by(200_000) {
            let region = time_ns / 10_000_000 % count;
            let page = first_page + region * 64 + below(&mut state, 64);
            data.accesses.push(access(time_ns, page << PAGE_BITS, 0, 0));
        }
    }

    fn mapping(start: u64, end: u64, permissions: &str, name: &str) -> Mapping {
        Mapping {
            time_ns: 0,
            pid: 7,
            start,
            end,
            permissions: permissions.into(),
            name: name.into(),
        }
    }

    #[test]
    fn regions_are_told_with_their_lives() {
        let mut data = empty();
        let second_ns = 1_000_000_000;
        visits(&mut data, 0, 6 * second_ns, 0x1000, 3);
        visits(&mut data, 6 * second_ns, 12 * second_ns, 0x9000, 4);
        let formed = formed(&data).unwrap();
        assert!(formed.of_samples);
        assert_eq!((formed.touch_count, formed.left_out_count), (60_000, 0));
        let program = &formed.programs[0];
        assert_eq!((program.pid, formed.programs.len()), (7, 1));
        let named = program.regions.iter().filter(|life| life.name.is_some());
        let (last, past): (Vec<&Life>, Vec<&Life>) = named.partition(|life| life.is_last);
        assert_eq!((last.len(), past.len()), (4, 3), "{formed:#?}");
        for life in &last {
            let start = life.ranges[0].start;
            let end = start + (64 << PAGE_BITS);
            assert_eq!(life.ranges[..], [std::ops::Range { start, end }]);
            assert_eq!(start >> PAGE_BITS & !0xff, 0x9000);
            assert_eq!((life.bytes, life.seen_bytes), (64 << 12, 64 << 12));
            assert!(life.from_ns >= 6 * second_ns && life.from_ns <= 8 * second_ns);
            assert_eq!(life.until_ns, 12 * second_ns - 200_000);
            let (access_ns, idle_ns) = (life.access_ns.unwrap(), life.idle_ns.unwrap());
            assert!((9e6..11e6).contains(&access_ns), "{access_ns}");
            assert!((29e6..31e6).contains(&idle_ns), "{idle_ns}");
        }
        for life in &past {
            assert_eq!(life.ranges[0].start >> PAGE_BITS & !0xff, 0x1000);
            assert!((6 * second_ns..11 * second_ns).contains(&life.until_ns));
        }
    }

    #[test]
    fn code_and_stack_are_global() {
        let mut data = empty();
        visits(&mut data, 0, 3_000_000_000, 0x1000, 3);
        // Each is touched now and then: an executable mapping, the stack, an instruction that reads itself.
        for (turn, access) in data.accesses.iter_mut().enumerate() {
            match turn % 40 {
                0 => access.address = 0x40_0000,
                1 => access.address = 0x7fff_0000,
                2 => (access.address, access.code) = (0x50_0010, 0x50_0000),
                _ => {}
            }
        }
        data.mappings = vec![
            mapping(0x40_0000, 0x40_1000, "r-xp", "/bin/app"),
            mapping(0x7ffe_0000, 0x8000_0000, "rw-p", "[stack]"),
        ];
        let formed = formed(&data).unwrap();
        let global = formed.programs[0]
            .regions
            .iter()
            .find(|life| life.kind == Kind::Global);
        let starts: Vec<u64> = global
            .unwrap()
            .ranges
            .iter()
            .map(|range| range.start)
            .collect();
        assert_eq!(starts, [0x40_0000, 0x50_0000, 0x7fff_0000]);
    }

    #[test]
    fn access_bits_stand_in_for_samples() {
        let mut data = empty();
        // 8 MiB each, for 1 to 2 s by turns; a look every 100 ms finds most of the quarters in use.
        let mut state = 1;
        let (mut region, mut left) = (0, 0);
        for look in 0..600_u64 {
            if left == 0 {
                (region, left) = ((region + 1) % 3, 10 + below(&mut state, 10));
            }
            left -= 1;
            for quarter in 0..32_u64 {
                let start = (region << 30) + (quarter << 18);
                data.regions.push(Row {
                    time_ns: 5_000_000_000 + look * 100_000_000,
                    length_ns: 100_000_000,
                    pid: Some(7),
                    start,
                    end: start + (1 << 18),
                    access_count: u32::from(below(&mut state, 5) > 0),
                    check_count: 20,
                    age_count: None,
                });
            }
        }
        let all = formed(&data).unwrap();
        assert!(!all.of_samples);
        assert_eq!(all.unit_bytes, 1 << 13);
        let regions = &all.programs[0].regions;
        let named: Vec<&Life> = regions
            .iter()
            .filter(|life| life.name.is_some() && life.is_last)
            .collect();
        assert_eq!(named.len(), 3, "{named:#?}");
        for life in named {
            assert_eq!(life.bytes, 8 << 20);
            let access_ns = life.access_ns.unwrap();
            assert!((0.7e9..2.0e9).contains(&access_ns), "{access_ns}");
            assert_eq!(life.until_ns, 64_900_000_000);
        }
        // Of what was written, and of nothing, no regions are formed.
        data.meta.trackers[0].name = "written".into();
        assert_eq!(formed(&data), None);
        assert_eq!(formed(&empty()), None);
    }
}
