use super::*;
use proptest::prelude::*;

/// A log as the shim writes it.
struct Log(Vec<u8>);

impl Log {
    fn new() -> Self {
        let mut log = Log(vec![0; HEADER_BYTES]);
        log.put(header::MAGIC, &MAGIC.to_le_bytes());
        log.put(header::VERSION, &VERSION.to_le_bytes());
        log.put(header::PID, &7u32.to_le_bytes());
        log.put(header::PARENT, &6u32.to_le_bytes());
        log.put(header::START_NS, &100u64.to_le_bytes());
        log.put(header::THRESHOLD_BYTES, &65536u64.to_le_bytes());
        log
    }

    fn put(&mut self, offset: usize, bytes: &[u8]) {
        self.0[offset..offset + bytes.len()].copy_from_slice(bytes);
    }

    fn slot(mut self, kind: u8, a: u8, b: u16, c: u32, time_ns: u64, body: &[u64]) -> Self {
        let mut slot = vec![kind, a];
        slot.extend(b.to_le_bytes());
        slot.extend(c.to_le_bytes());
        slot.extend(time_ns.to_le_bytes());
        for word in body {
            slot.extend(word.to_le_bytes());
        }
        slot.resize(SLOT_BYTES, 0);
        self.0.extend(slot);
        let slots = ((self.0.len() - HEADER_BYTES) / SLOT_BYTES) as u64;
        self.put(header::NEXT_SLOT, &slots.to_le_bytes());
        self
    }

    fn allocation(self, how: How, time_ns: u64, address: u64, bytes: u64) -> Self {
        let body = [address, bytes, 3];
        self.slot(kind::ALLOCATION, how as u8, 0, 7, time_ns, &body)
    }

    fn free(self, time_ns: u64, address: u64) -> Self {
        self.slot(kind::FREE, 0, 0, 0, time_ns, &[address])
    }

    fn unmap(self, time_ns: u64, address: u64, bytes: u64) -> Self {
        self.slot(kind::UNMAP, 0, 0, 8, time_ns, &[address, bytes])
    }

    fn module(self, number: u32, time_ns: u64, start: u64, path: &str) -> Self {
        let mut text = vec![0xab; 20];
        text.extend(path.as_bytes());
        let lengths = 20 | (path.len() as u64) << 16;
        let body = [start, start, start + 0x1000, lengths];
        let mut log = self.slot(kind::MODULE, 0, 0, number, time_ns, &body);
        for (index, chunk) in text.chunks(SLOT_TEXT).enumerate() {
            let mut chunk = chunk.to_vec();
            chunk.resize(SLOT_TEXT, 0);
            let words: Vec<u64> = chunk
                .chunks(8)
                .map(|bytes| u64::from_le_bytes(bytes.try_into().unwrap()))
                .collect();
            log = log.slot(kind::MODULE, index as u8 + 1, 0, number, time_ns, &words);
        }
        log
    }

    fn sites(&self) -> Sites {
        decode(&self.0).unwrap()
    }

    /// Beginning and end of each allocation.
    fn lives(&self) -> Vec<(u64, Option<u64>)> {
        let allocations = self.sites().allocations();
        allocations.iter().map(|a| (a.start_ns, a.end_ns)).collect()
    }
}

#[test]
fn a_whole_log_is_read() {
    let long = format!("/{}", "folder/".repeat(12));
    let frames: Vec<u64> = (1..=8).map(|frame| frame * 0x11).collect();
    let log = Log::new()
        .module(9, 101, 0x1000, &long)
        .slot(kind::SITE, 2, 6, 3, 102, &frames[6..])
        .slot(kind::SITE, 6, 0, 3, 102, &frames[..6])
        .allocation(How::Calloc, 103, 0x7f00, 70_000)
        .free(105, 0x7f00);
    let sites = log.sites();
    assert_eq!((sites.pid, sites.parent), (7, 6));
    assert_eq!((sites.start_ns, sites.threshold_bytes), (100, 65536));
    assert_eq!(sites.stacks[&3].frames, frames);
    assert_eq!(sites.modules.len(), 1);
    let module = &sites.modules[0];
    assert_eq!(module.path, long);
    assert_eq!(module.build_id, [0xab; 20]);
    assert_eq!(
        (module.bias, module.addresses.clone()),
        (0x1000, 0x1000..0x2000)
    );
    assert_eq!(sites.notes, Vec::<String>::new());
    assert_eq!(
        sites.allocations(),
        [SiteAllocation {
            how: How::Calloc,
            site: 3,
            tid: 7,
            address: 0x7f00,
            bytes: 70_000,
            start_ns: 103,
            end_ns: Some(105),
        }]
    );
}

#[test]
fn events_of_many_threads_are_put_in_order() {
    // Written late, but it happened before the address was given out again.
    let log = Log::new()
        .allocation(How::Malloc, 10, 0x7f00, 70_000)
        .allocation(How::Malloc, 30, 0x7f00, 80_000)
        .free(20, 0x7f00);
    assert_eq!(log.lives(), [(10, Some(20)), (30, None)]);
    // An end that was lost is put where the next beginning is.
    let log = Log::new()
        .allocation(How::Malloc, 10, 0x7f00, 70_000)
        .allocation(How::Malloc, 30, 0x7f00, 80_000)
        .free(40, 0x7f00)
        .free(50, 0xbeef);
    assert_eq!(log.lives(), [(10, Some(30)), (30, Some(40))]);
}

#[test]
fn a_mapping_ends_when_its_last_page_is_unmapped() {
    let map = |log: Log| log.allocation(How::Map, 10, 0x10_0000, 0x10_000);
    let log = map(Log::new())
        .unmap(20, 0x10_4000, 0x4000)
        .unmap(30, 0x10_0000, 0x4000)
        .unmap(35, 0x0f_0000, 0x1_0000);
    assert_eq!(log.lives(), [(10, None)]);
    let log = log.unmap(40, 0x10_6000, 0xa000 - 5);
    assert_eq!(log.lives(), [(10, Some(40))]);
    // Mapped anew over the end of one and the whole of another.
    let log = map(Log::new())
        .allocation(How::Map, 11, 0x11_0000, 0x1000)
        .allocation(How::Reserve, 12, 0x10_8000, 0x10_000)
        .unmap(13, 0, u64::MAX);
    assert_eq!(
        log.lives(),
        [(10, Some(13)), (11, Some(12)), (12, Some(13))]
    );
    // The heap is not unmapped with it.
    let log = Log::new()
        .allocation(How::Malloc, 10, 0x10_0000, 0x1000)
        .unmap(20, 0x10_0000, 0x1000);
    assert_eq!(log.lives(), [(10, None)]);
}

#[test]
fn modules_are_found_by_address_and_time() {
    let sites = Log::new()
        .module(1, 100, 0x1000, "/old.so")
        .module(2, 200, 0x1000, "/new.so")
        .sites();
    let path = |address, time| sites.module_at(address, time).map(|m| m.path.as_str());
    assert_eq!(path(0x1fff, 150), Some("/old.so"));
    assert_eq!(path(0x1000, 200), Some("/new.so"));
    // Another thread may have listed it a moment after the stack was seen.
    assert_eq!(path(0x1000, 50), Some("/old.so"));
    assert_eq!(path(0x2000, 200), None);
}

#[test]
fn what_was_not_written_is_left_out_and_told() {
    let mut log = Log::new()
        .allocation(How::Malloc, 10, 0x7f00, 70_000)
        .slot(0, 0, 0, 0, 99, &[1, 2, 3])
        .slot(99, 0, 0, 0, 0, &[])
        .slot(kind::ALLOCATION, 77, 0, 0, 0, &[])
        .slot(kind::SITE, 7, 0, 1, 0, &[])
        .slot(kind::SITE, 6, 11, 1, 0, &[])
        .free(20, 0x7f00);
    log.put(header::DROPPED_ALLOCATIONS, &5u64.to_le_bytes());
    assert_eq!(log.lives(), [(10, Some(20))]);
    let sites = log.sites();
    assert_eq!(sites.dropped.allocation_count, 5);
    let notes = sites.notes.join("\n");
    for text in [
        "1 record(s) were not",
        "4 record(s) cannot",
        "5 allocation(s)",
    ] {
        assert!(notes.contains(text), "{notes}");
    }
    // A last record that was cut off.
    log.0.truncate(log.0.len() - 1);
    assert_eq!(log.lives(), [(10, None)]);
    // A file that was given room beyond what was used.
    let mut log = Log::new().allocation(How::Malloc, 10, 0x7f00, 70_000);
    log.0.resize(100_000, 0);
    assert_eq!(log.sites().notes, Vec::<String>::new());
}

#[test]
fn other_files_are_refused_with_what_to_do() {
    assert!(decode(b"").unwrap_err().contains("no log"));
    assert!(decode(&[0; 8192]).unwrap_err().contains("no log"));
    let mut log = Log::new();
    log.put(header::VERSION, &9u32.to_le_bytes());
    assert!(decode(&log.0).unwrap_err().contains("version 9"));
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("7.sites");
    assert!(
        read(&path)
            .unwrap_err()
            .to_string()
            .contains("cannot be read")
    );
    std::fs::write(&path, &log.0).unwrap();
    let error = read(&path).unwrap_err().to_string();
    assert!(error.contains("7.sites: is a log of version 9"), "{error}");
    assert!(error.contains("record again"), "{error}");
}

proptest! {
    #[test]
    fn any_bytes_are_an_answer(
        body in prop::collection::vec(any::<u8>(), 0..2000),
        cut in any::<prop::sample::Index>(),
    ) {
        let mut log = Log::new().0;
        log[header::NEXT_SLOT] = 0xff;
        // Kinds that exist, so that more than the refusal of unknown ones is tried.
        let mut body = body;
        for slot in body.chunks_mut(SLOT_BYTES) {
            slot[0] %= 8;
            if let Some(how) = slot.get_mut(1) {
                *how %= 10;
            }
        }
        log.extend(body);
        if let Ok(sites) = decode(&log[..cut.index(log.len() + 1)]) {
            let allocations = sites.allocations();
            prop_assert!(allocations.iter().all(|a| a.end_ns.is_none_or(|end| end >= a.start_ns)));
            for stack in sites.stacks.values() {
                prop_assert!(stack.frames.len() <= MAX_FRAMES);
                let _ = sites.module_at(stack.frames.first().copied().unwrap_or(0), stack.time_ns);
            }
        }
    }

    #[test]
    fn pieces_of_mappings_agree_with_pages_one_by_one(
        steps in prop::collection::vec((any::<bool>(), 0u64..24, 1u64..8), 0..60),
    ) {
        let mut log = Log::new();
        let mut pages = [None; 32];
        let mut ends = Vec::new();
        for (time, (is_map, first, count)) in steps.into_iter().enumerate() {
            let time = time as u64 + 1;
            let had: std::collections::BTreeSet<usize> = pages.iter().flatten().copied().collect();
            let range = first as usize..(first + count) as usize;
            pages[range.clone()].fill(None);
            for gone in had {
                if !pages.contains(&Some(gone)) {
                    ends[gone] = Some(time);
                }
            }
            log = if is_map {
                pages[range].fill(Some(ends.len()));
                ends.push(None);
                log.allocation(How::Map, time, first << 12, count << 12)
            } else {
                log.unmap(time, first << 12, count << 12)
            };
        }
        let found: Vec<_> = log.lives().into_iter().map(|(_, end)| end).collect();
        prop_assert_eq!(found, ends);
    }
}
