//! Data areas: what a program would call its arrays, and who uses them from where.
//!
//! An area is what one site allocated (file and line, where allocations were recorded), or else a
//! mapping. Areas of one site are one area, however many allocations it made.

use super::data::{Access, Data};
use crate::rows::Frame;
use std::collections::{BTreeMap, HashMap};

/// What an area is.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum AreaKind {
    /// What a site allocated, by its number.
    Site(u32),
    /// A mapping, by its first address.
    Mapping(u64),
    /// No mapping that was seen.
    Unknown,
}

impl AreaKind {
    /// Its word in JSON, and its number or address there; 0 where it has none.
    #[must_use]
    pub fn told(&self) -> (&'static str, u64) {
        match *self {
            Self::Site(site) => ("site", u64::from(site)),
            Self::Mapping(start) => ("mapping", start),
            Self::Unknown => ("unknown", 0),
        }
    }
}

/// An area with its use.
#[derive(Clone, Debug, PartialEq)]
pub struct Area {
    /// Whose.
    pub pid: i32,
    /// What it is.
    pub kind: AreaKind,
    /// For people: `init.c:17 (load_points) < main.c:5 (main)`, a file, `[heap]`, or a range.
    pub name: String,
    /// Threads that allocated it, ascending; empty for mappings.
    pub threads: Vec<i32>,
    /// Its size: of the mapping, or of the most that lived at one moment.
    pub bytes: u64,
    /// Accesses from each node position that read; those of unknown kind count as reads.
    pub reads: Vec<f64>,
    /// Accesses from each node position that wrote.
    pub writes: Vec<f64>,
    /// Accesses that the memory of each node position served.
    pub homes: Vec<f64>,
    /// Accesses that the accessing CPU's own node served, where both are known.
    pub local: f64,
    /// Accesses of which both are known.
    pub placed: f64,
    /// All accesses that memory served, or of which nothing else is known.
    pub accesses: f64,
    /// Accesses of which the accessing node is known, and is in `reads` or `writes`.
    pub sided: f64,
    /// Accesses of which it is known whether they read or wrote.
    pub kind_known: f64,
    /// Accesses that other CPUs' caches served (transfers), which are in none of the sums above.
    pub transfers: f64,
    /// Does any sample tell whether it was one?
    pub tells_transfers: bool,
    /// Stores among all of them, transfers too.
    pub stores: f64,
    latency_sum: f64,
    latency_weight: f64,
    /// Samples behind it.
    pub sample_count: u64,
}

impl Area {
    /// Share of its accesses that were local; `None` without any that tell.
    #[must_use]
    pub fn local_ratio(&self) -> Option<f64> {
        (self.placed > 0.0).then(|| self.local / self.placed)
    }

    /// Mean latency of its sampled accesses in ns.
    #[must_use]
    pub fn latency_ns(&self) -> Option<f64> {
        (self.latency_weight > 0.0).then(|| self.latency_sum / self.latency_weight)
    }

    /// Share of sampled stores among its accesses: a lower bound of the writes, see [`written`](super::written).
    #[must_use]
    pub fn write_share(&self) -> f64 {
        let writes: f64 = self.writes.iter().sum();
        if self.accesses > 0.0 {
            writes / self.accesses
        } else {
            0.0
        }
    }

    /// Accesses from each node that read; `None` where no accessing node is known.
    #[must_use]
    pub fn reads(&self) -> Option<&[f64]> {
        (self.sided > 0.0).then_some(&self.reads)
    }

    /// Accesses from each node that wrote; `None` where no accessing node, or nothing of what accesses
    /// did, is known.
    #[must_use]
    pub fn writes(&self) -> Option<&[f64]> {
        (self.sided > 0.0 && self.kind_known > 0.0).then_some(&self.writes)
    }

    /// Accesses that the memory of each node served; `None` where that is not known of any.
    #[must_use]
    pub fn homes(&self) -> Option<&[f64]> {
        (self.homes.iter().any(|&of| of > 0.0)).then_some(&self.homes)
    }

    /// Memory time of its remote accesses: what better placement could save a part of.
    #[must_use]
    pub fn remote(&self) -> f64 {
        self.placed - self.local
    }
}

/// Areas, and which of them each access was to.
#[derive(Clone, Debug, Default)]
pub struct Areas {
    /// By accesses and transfers, most first.
    pub list: Vec<Area>,
    /// For each of [`Data::accesses`], its area's place in the list.
    pub of_access: Vec<u32>,
}

/// Finds the areas.
#[must_use]
pub fn areas(data: &Data) -> Areas {
    let mappings = mappings_by_process(data);
    let mut live = Live::new(data);
    let mut found: HashMap<(i32, AreaKind), u32> = HashMap::new();
    let mut list: Vec<Area> = Vec::new();
    let mut of_access = Vec::with_capacity(data.accesses.len());
    // Most accesses are to the area of the one before.
    let mut last: Option<(i32, AreaKind, u32)> = None;
    for access in &data.accesses {
        let kind = match live.site(access) {
            Some(site) => AreaKind::Site(site),
            None => match mapping_of(&mappings, access) {
                Some((start, _)) => AreaKind::Mapping(start),
                None => AreaKind::Unknown,
            },
        };
        let index = match &last {
            Some((pid, of, index)) if (*pid, of) == (access.pid, &kind) => *index,
            _ => *found.entry((access.pid, kind.clone())).or_insert_with(|| {
                list.push(new_area(data, &mappings, access, &kind));
                list.len() as u32 - 1
            }),
        };
        last = Some((access.pid, kind, index));
        add(&mut list[index as usize], access);
        of_access.push(index);
    }
    add_allocations(data, &mut list);
    sort(&mut list, &mut of_access);
    Areas { list, of_access }
}

fn new_area(data: &Data, mappings: &Mappings, access: &Access, kind: &AreaKind) -> Area {
    let (name, bytes) = match kind {
        AreaKind::Site(site) => (site_name(data, access.pid, *site), 0),
        AreaKind::Mapping(start) => {
            let found = mapping_of(mappings, access);
            let (end, index) = found.map_or((*start, None), |(_, (end, index))| (end, Some(index)));
            let name = index.map_or("", |index| data.mappings[index].name.as_str());
            (mapping_name(name, *start, end), end - start)
        }
        AreaKind::Unknown => ("(no mapping that was seen)".to_owned(), 0),
    };
    let nodes = data.nodes.len();
    Area {
        pid: access.pid,
        kind: kind.clone(),
        name,
        threads: Vec::new(),
        bytes,
        reads: vec![0.0; nodes],
        writes: vec![0.0; nodes],
        homes: vec![0.0; nodes],
        local: 0.0,
        placed: 0.0,
        accesses: 0.0,
        sided: 0.0,
        kind_known: 0.0,
        transfers: 0.0,
        tells_transfers: false,
        stores: 0.0,
        latency_sum: 0.0,
        latency_weight: 0.0,
        sample_count: 0,
    }
}

fn add(area: &mut Area, access: &Access) {
    let weight = f64::from(access.weight);
    area.sample_count += 1;
    area.tells_transfers |= access.tells_transfer();
    area.stores += if access.is_write() { weight } else { 0.0 };
    if access.is_transfer() {
        area.transfers += weight;
        return;
    }
    area.accesses += weight;
    area.kind_known += if access.kind_is_known() { weight } else { 0.0 };
    if let Some(from) = access.from() {
        area.sided += weight;
        let side = if access.is_write() {
            &mut area.writes
        } else {
            &mut area.reads
        };
        side[from] += weight;
    }
    if let Some(home) = access.home() {
        area.homes[home] += weight;
    }
    if let (Some(from), Some(home)) = (access.from(), access.home()) {
        area.placed += weight;
        area.local += if from == home { weight } else { 0.0 };
    }
    if let Some(latency) = access.latency_ns() {
        area.latency_sum += weight * f64::from(latency);
        area.latency_weight += weight;
    }
}

fn sort(list: &mut Vec<Area>, of_access: &mut [u32]) {
    let mut order: Vec<usize> = (0..list.len()).collect();
    let all = |index: usize| list[index].accesses + list[index].transfers;
    order.sort_by(|&a, &b| all(b).total_cmp(&all(a)));
    let mut place = vec![0; list.len()];
    for (new, &old) in order.iter().enumerate() {
        place[old] = new as u32;
    }
    of_access
        .iter_mut()
        .for_each(|index| *index = place[*index as usize]);
    let mut sorted: Vec<Option<Area>> = std::mem::take(list).into_iter().map(Some).collect();
    list.extend(order.into_iter().filter_map(|old| sorted[old].take()));
}

/// Threads that allocated an area, and its size.
fn add_allocations(data: &Data, list: &mut [Area]) {
    let mut by_site: HashMap<(i32, u32), Vec<usize>> = HashMap::new();
    for (index, allocation) in data.allocations.iter().enumerate() {
        by_site
            .entry((allocation.pid, allocation.site))
            .or_default()
            .push(index);
    }
    for area in list {
        let AreaKind::Site(site) = area.kind else {
            continue;
        };
        let mut events = Vec::new();
        for &index in by_site.get(&(area.pid, site)).into_iter().flatten() {
            let allocation = &data.allocations[index];
            area.threads.push(allocation.tid);
            events.push((allocation.start_ns, allocation.bytes.cast_signed()));
            let end_ns = allocation.end_ns.unwrap_or(u64::MAX);
            events.push((end_ns, -allocation.bytes.cast_signed()));
        }
        area.threads.sort_unstable();
        area.threads.dedup();
        events.sort_unstable();
        let sums = events.iter().scan(0_i64, |sum, event| {
            *sum = sum.saturating_add(event.1);
            Some(*sum)
        });
        area.bytes = sums.max().unwrap_or(0).max(0).cast_unsigned();
    }
}

/// `init.c:17 (load_points) < main.c:5 (main)`: the innermost frame that has a line, its caller.
fn site_name(data: &Data, pid: i32, site: u32) -> String {
    let mut frames: Vec<_> = data
        .frames
        .iter()
        .filter(|frame| frame.pid == pid && frame.site == site)
        .collect();
    frames.sort_by_key(|frame| frame.depth);
    let has_line = |frame: &Frame| frame.file.is_some() && frame.line.is_some();
    let with_line = frames.iter().find(|frame| has_line(frame));
    let Some(first) = with_line.or(frames.first()) else {
        return format!("site {site}");
    };
    // Who called it tells apart what one helper allocates for many.
    let caller = frames
        .iter()
        .find(|frame| frame.depth > first.depth && has_line(frame));
    let name = frame_name(first);
    match caller {
        Some(caller) => format!("{name} < {}", frame_name(caller)),
        None => name,
    }
}

/// `init.c:17 (load_points)`, or what is known of that.
fn frame_name(frame: &Frame) -> String {
    let file_name = |path: &str| path.rsplit('/').next().unwrap_or(path).to_owned();
    let place = match (&frame.file, frame.line) {
        (Some(file), Some(line)) => format!("{}:{line}", file_name(file)),
        _ => format!("{}+{:#x}", file_name(&frame.module), frame.offset),
    };
    match &frame.function {
        Some(function) => format!("{place} ({function})"),
        None => place,
    }
}

fn mapping_name(name: &str, start: u64, end: u64) -> String {
    match name {
        "" => format!("[anon] {start:x}-{end:x}"),
        name => name.to_owned(),
    }
}

/// Process to first address to end and place in [`Data::mappings`].
type Mappings = HashMap<i32, BTreeMap<u64, (u64, usize)>>;

/// Mappings of each process; where a range was mapped twice, the later one.
fn mappings_by_process(data: &Data) -> Mappings {
    let mut all: Mappings = HashMap::new();
    for (index, mapping) in data.mappings.iter().enumerate() {
        if mapping.start >= mapping.end {
            continue;
        }
        let map = all.entry(mapping.pid).or_default();
        // What it covers of older ones goes; what sticks out behind stays.
        while let Some((&start, &(end, of))) = map.range(..mapping.end).next_back() {
            if end <= mapping.start {
                break;
            }
            map.remove(&start);
            if end > mapping.end {
                map.insert(mapping.end, (end, of));
            }
            if start < mapping.start {
                map.insert(start, (mapping.start, of));
            }
        }
        map.insert(mapping.start, (mapping.end, index));
    }
    all
}

fn mapping_of(mappings: &Mappings, access: &Access) -> Option<(u64, (u64, usize))> {
    let map = mappings.get(&access.pid)?;
    let (&start, &(end, index)) = map.range(..=access.address).next_back()?;
    (access.address < end).then_some((start, (end, index)))
}

/// Process and first address to end, site and place in [`Data::allocations`].
type Blocks = BTreeMap<(i32, u64), (u64, u32, u32)>;

/// The allocations that live at the time of the accesses, which must come by time.
struct Live<'a> {
    data: &'a Data,
    /// Places in [`Data::allocations`] by start, and how many have begun.
    begun: usize,
    /// The same by end.
    ends: Vec<u32>,
    ended: usize,
    /// Mappings, and what an allocator may have placed inside of those.
    now: [Blocks; 2],
}

impl<'a> Live<'a> {
    fn new(data: &'a Data) -> Self {
        let has_end = |index: &u32| data.allocations[*index as usize].end_ns.is_some();
        let mut ends: Vec<u32> = (0..data.allocations.len() as u32).filter(has_end).collect();
        ends.sort_by_key(|&index| data.allocations[index as usize].end_ns);
        Self {
            data,
            begun: 0,
            ends,
            ended: 0,
            now: [BTreeMap::new(), BTreeMap::new()],
        }
    }

    fn site(&mut self, access: &Access) -> Option<u32> {
        self.advance(access.time_ns);
        let key = (access.pid, access.address);
        let inner_first = self.now.iter().rev();
        inner_first.into_iter().find_map(|now| {
            let (&(pid, _), &(end, site, _)) = now.range(..=key).next_back()?;
            (pid == access.pid && access.address < end).then_some(site)
        })
    }

    fn advance(&mut self, time_ns: u64) {
        let all = &self.data.allocations;
        loop {
            let start = all
                .get(self.begun)
                .map(|a| a.start_ns)
                .filter(|&t| t <= time_ns);
            let end = self
                .ends
                .get(self.ended)
                .and_then(|&i| all[i as usize].end_ns);
            let end = end.filter(|&t| t <= time_ns);
            match (start, end) {
                // What is freed makes room for what is allocated at the same time.
                (start, Some(end)) if start.is_none_or(|start| end <= start) => {
                    let index = self.ends[self.ended];
                    let gone = &all[index as usize];
                    let key = (gone.pid, gone.address);
                    let now = &mut self.now[usize::from(!gone.is_mapping)];
                    if now.get(&key).is_some_and(|&(_, _, of)| of == index) {
                        now.remove(&key);
                    }
                    self.ended += 1;
                }
                (Some(_), _) => {
                    let new = &all[self.begun];
                    let end = new.address.saturating_add(new.bytes);
                    let entry = (end, new.site, self.begun as u32);
                    self.now[usize::from(!new.is_mapping)].insert((new.pid, new.address), entry);
                    self.begun += 1;
                }
                _ => return,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::data::tests::{access, empty, write};
    use super::*;
    use crate::rows::{Allocation, Mapping};

    fn mapping(time_ns: u64, start: u64, end: u64, name: &str) -> Mapping {
        Mapping {
            time_ns,
            pid: 7,
            start,
            end,
            permissions: "rw-p".into(),
            name: name.into(),
        }
    }

    fn allocation(address: u64, start_ns: u64, end_ns: Option<u64>, site: u32) -> Allocation {
        Allocation {
            pid: 7,
            tid: 9,
            address,
            bytes: 0x1000,
            start_ns,
            end_ns,
            site,
            is_mapping: false,
        }
    }

    #[test]
    fn accesses_fall_into_mappings() {
        let mut data = empty();
        data.mappings = vec![
            mapping(0, 0x1000, 0x9000, "[heap]"),
            // Mapped over the middle of it.
            mapping(5, 0x4000, 0x6000, ""),
        ];
        data.accesses = vec![
            access(1, 0x1000, 0, 0),
            access(2, 0x3fff, 1, 0),
            write(3, 0x5000, 1, 1),
            access(4, 0x8fff, 0, 0),
            access(5, 0x9000, 0, 0),
        ];
        let found = areas(&data);
        let names: Vec<&str> = found.list.iter().map(|area| area.name.as_str()).collect();
        assert_eq!(names.len(), 4, "{names:?}");
        let heap = &found.list[found.of_access[0] as usize];
        assert_eq!((heap.name.as_str(), heap.bytes), ("[heap]", 0x3000));
        assert_eq!(
            (heap.reads.clone(), heap.local_ratio()),
            (vec![10.0, 10.0], Some(0.5))
        );
        assert_eq!(found.of_access[0], found.of_access[1]);
        let anon = &found.list[found.of_access[2] as usize];
        assert_eq!(anon.name, "[anon] 4000-6000");
        assert_eq!((anon.write_share(), anon.latency_ns()), (1.0, Some(100.0)));
        assert_eq!(
            found.list[found.of_access[4] as usize].kind,
            AreaKind::Unknown
        );
    }

    #[test]
    fn an_address_belongs_to_what_lives_there_at_the_time() {
        let mut data = empty();
        data.allocations = vec![
            allocation(0x1000, 10, Some(20), 1),
            allocation(0x1000, 20, None, 2),
            allocation(0x3000, 25, None, 2),
        ];
        // An allocator's mapping holds all of them, and is the area of what lies between.
        data.allocations.push(Allocation {
            bytes: 0x2800,
            is_mapping: true,
            ..allocation(0x1000, 28, None, 3)
        });
        data.frames = vec![Frame {
            pid: 7,
            site: 2,
            depth: 0,
            module: "/bin/app".into(),
            offset: 0x12,
            function: Some("load".into()),
            file: Some("/src/init.c".into()),
            line: Some(17),
        }];
        data.accesses = [
            (5, 0x1000),
            (15, 0x1fff),
            (20, 0x1000),
            (30, 0x2000),
            (31, 0x3fff),
        ]
        .map(|(time_ns, address)| access(time_ns, address, 0, 0))
        .to_vec();
        let found = areas(&data);
        let kinds: Vec<AreaKind> = found
            .of_access
            .iter()
            .map(|&index| found.list[index as usize].kind.clone())
            .collect();
        let [one, two, mapping] = [AreaKind::Site(1), AreaKind::Site(2), AreaKind::Site(3)];
        assert_eq!(kinds, [AreaKind::Unknown, one, two.clone(), mapping, two]);
        let area = found
            .list
            .iter()
            .find(|area| area.kind == AreaKind::Site(2))
            .unwrap();
        assert_eq!(area.name, "init.c:17 (load)");
        assert_eq!((area.bytes, &area.threads[..]), (0x2000, &[9][..]));
    }
}
