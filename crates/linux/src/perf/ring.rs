//! A ring: memory that the kernel writes an event's records to, and that is read without calls.
//!
//! The first page tells `data_head` (the kernel writes it after the records) and `data_tail`
//! (this side writes it when the records have been read, so that their room is used again). Both
//! count bytes for ever; a place in the ring is their remainder by its size, a power of two.
//! Reading the head acquires what was written before it, writing the tail releases what was read.

use super::record;
use crate::sys::{SharedMap, page_bytes};
use std::fs::File;
use std::io;

/// Offsets into the first page (`struct perf_event_mmap_page`).
const DATA_HEAD: usize = 1024;
const DATA_TAIL: usize = 1032;
const DATA_OFFSET: usize = 1040;
const DATA_SIZE: usize = 1048;

/// What one reading found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Drained {
    /// Records.
    pub records: u64,
    /// Bytes that were given up because no record could be found in them.
    pub broken_bytes: u64,
}

/// The ring of one event.
#[derive(Debug)]
pub struct Ring {
    map: SharedMap,
    /// Offset of the records in the mapping.
    start: usize,
    /// Bytes of records; a power of two.
    bytes: u64,
    tail: u64,
    words: Vec<u64>,
    record: Vec<u8>,
}

impl Ring {
    /// Maps the ring of an event with `pages` pages of records, a power of two. `EPERM`: more
    /// locked memory than this user may have (`kernel.perf_event_mlock_kb`).
    pub fn new(event: &File, pages: usize) -> io::Result<Self> {
        let page = page_bytes() as usize;
        Self::of(SharedMap::new(event, (pages + 1) * page)?, page)
    }

    /// On a mapping whose records begin behind the first page at the latest.
    fn of(map: SharedMap, page: usize) -> io::Result<Self> {
        let told = (map.read64(DATA_OFFSET), map.read64(DATA_SIZE));
        // Kernels before 4.1 tell neither.
        let (start, bytes) = match told {
            (_, 0) => (page as u64, map.len().saturating_sub(page) as u64),
            told => told,
        };
        let fits = start
            .checked_add(bytes)
            .is_some_and(|end| end <= map.len() as u64);
        if !fits || !bytes.is_power_of_two() || bytes < 8 || !start.is_multiple_of(8) {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                format!("the kernel tells of a ring of {bytes} bytes at {start}"),
            ));
        }
        Ok(Self {
            tail: map.read64(DATA_TAIL) & !7,
            map,
            start: start as usize,
            bytes,
            words: Vec::new(),
            record: Vec::new(),
        })
    }

    /// Size of the ring in bytes.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.bytes
    }

    /// Never.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// Hands out the records that are there, each with its header, the oldest first, and makes
    /// room. What comes in meanwhile is left for the next time, so that this ends.
    pub fn drain(&mut self, mut each: impl FnMut(&[u8])) -> Drained {
        let told = self.map.read64_acquire(DATA_HEAD);
        let head = told & !7;
        let mut drained = Drained::default();
        let mut left = head.wrapping_sub(self.tail);
        if left > self.bytes || head != told {
            // The kernel never writes past the tail, and records end at multiples of 8: nothing
            // of this can be relied upon.
            drained.broken_bytes = self.bytes;
            left = 0;
        }
        while left > 0 {
            let size = self.size_of_next(left);
            if size == 0 {
                drained.broken_bytes += left;
                break;
            }
            self.take(size);
            each(&self.record);
            drained.records += 1;
            left -= size as u64;
            self.tail = self.tail.wrapping_add(size as u64);
        }
        if self.tail != head || drained != Drained::default() {
            self.tail = head;
            self.map.write64_release(DATA_TAIL, head);
        }
        drained
    }

    /// Size of the record at the tail; 0 where there is none.
    fn size_of_next(&mut self, left: u64) -> usize {
        if left < record::HEADER_BYTES as u64 {
            return 0;
        }
        self.take(record::HEADER_BYTES);
        let size = u16::from_ne_bytes([self.record[6], self.record[7]]);
        let fits = usize::from(size) >= record::HEADER_BYTES && size.is_multiple_of(8);
        match fits && u64::from(size) <= left {
            true => usize::from(size),
            false => 0,
        }
    }

    /// Copies `size` bytes from the tail on to `record`: in two parts where they wrap around.
    fn take(&mut self, size: usize) {
        let at = (self.tail & (self.bytes - 1)) as usize;
        let first = size.min(self.bytes as usize - at) / 8;
        self.words.clear();
        self.words.resize(size / 8, 0);
        let (front, back) = self.words.split_at_mut(first);
        self.map.read_block(self.start + at, front);
        self.map.read_block(self.start, back);
        self.record.clear();
        for word in &self.words {
            self.record.extend_from_slice(&word.to_ne_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: usize = 4096;

    /// A ring of one page of records, with the other side in the tests' hands.
    struct Kernel {
        map: SharedMap,
        head: u64,
    }

    fn pair(told: bool) -> (Kernel, Ring) {
        let file = tempfile::tempfile().unwrap();
        file.set_len(2 * PAGE as u64).unwrap();
        let map = SharedMap::new(&file, 2 * PAGE).unwrap();
        if told {
            map.write64_release(DATA_OFFSET, PAGE as u64);
            map.write64_release(DATA_SIZE, PAGE as u64);
        }
        let ring = Ring::of(SharedMap::new(&file, 2 * PAGE).unwrap(), PAGE).unwrap();
        (Kernel { map, head: 0 }, ring)
    }

    impl Kernel {
        /// Writes a record of `size` bytes whose body is `fill`; false where there is no room.
        fn put(&mut self, size: u16, fill: u64) -> bool {
            let tail = self.map.read64_acquire(DATA_TAIL);
            if self.head + u64::from(size) - tail > PAGE as u64 {
                return false;
            }
            self.word(u64::from_ne_bytes(header(size)));
            (1..size / 8).for_each(|_| self.word(fill));
            self.map.write64_release(DATA_HEAD, self.head);
            true
        }

        fn word(&mut self, word: u64) {
            let at = PAGE + (self.head % PAGE as u64) as usize;
            self.map.write64_release(at, word);
            self.head += 8;
        }
    }

    fn header(size: u16) -> [u8; 8] {
        let [low, high] = size.to_ne_bytes();
        [9, 0, 0, 0, 2, 0, low, high]
    }

    #[test]
    fn records_come_out_whole_over_many_rounds() {
        for told in [true, false] {
            let (mut kernel, mut ring) = pair(told);
            assert_eq!(ring.len(), PAGE as u64);
            let (mut written, mut read) = (0u64, 0u64);
            while written < 1000 {
                // 56 is no divisor of 4096: records wrap around at many places.
                while kernel.put(56, written) {
                    written += 1;
                }
                let drained = ring.drain(|record| {
                    assert_eq!(record.len(), 56);
                    assert_eq!(record[..8], header(56));
                    let body = record[8..].chunks_exact(8);
                    assert!(body.into_iter().all(|word| *word == read.to_ne_bytes()));
                    read += 1;
                });
                assert_eq!((drained.records, drained.broken_bytes), (73, 0));
            }
            assert_eq!(read, written);
            assert_eq!(
                ring.drain(|_| panic!("nothing is left")),
                Drained::default()
            );
        }
    }

    #[test]
    fn what_is_no_record_is_given_up_and_later_ones_are_read() {
        for size in [0, 4, 12, 4096, u16::MAX] {
            let (mut kernel, mut ring) = pair(true);
            assert!(kernel.put(16, 7));
            kernel.word(u64::from_ne_bytes(header(size)));
            kernel.map.write64_release(DATA_HEAD, kernel.head);
            let mut found = 0;
            let drained = ring.drain(|_| found += 1);
            assert_eq!((drained.broken_bytes, found), (8, 1), "size {size}");
            assert!(kernel.put(24, 1));
            assert_eq!(ring.drain(|record| assert_eq!(record.len(), 24)).records, 1);
        }
    }

    #[test]
    fn a_head_that_cannot_be_is_survived() {
        let (kernel, mut ring) = pair(true);
        for head in [PAGE as u64 * 9, 3, u64::MAX] {
            kernel.map.write64_release(DATA_HEAD, head);
            let drained = ring.drain(|_| panic!("no record"));
            assert!(drained.broken_bytes > 0);
            assert_eq!(kernel.map.read64(DATA_TAIL), head & !7);
        }
    }

    #[test]
    fn a_ring_that_does_not_fit_its_mapping_is_refused() {
        for (offset, bytes) in [
            (4096, 8192),
            (u64::MAX, 4096),
            (4096, 4095),
            (4097, 8),
            (4096, 4),
        ] {
            let file = tempfile::tempfile().unwrap();
            file.set_len(2 * PAGE as u64).unwrap();
            let map = SharedMap::new(&file, 2 * PAGE).unwrap();
            map.write64_release(DATA_OFFSET, offset);
            map.write64_release(DATA_SIZE, bytes);
            let error = Ring::of(map, PAGE).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidData, "{offset} {bytes}");
        }
    }
    proptest::proptest! {
        /// Whatever stands in a ring, and wherever its head is said to be: reading ends, hands out no
        /// more than there is room for, and what it hands out is decoded or refused.
        #[test]
        fn any_ring_is_survived(
            words in proptest::collection::vec(proptest::prelude::any::<u64>(), PAGE / 8),
            sizes in proptest::collection::vec((0..PAGE / 8, 0u16..600), 0..40),
            heads in proptest::collection::vec(proptest::prelude::any::<u64>(), 1..4),
            near in proptest::collection::vec(0..2 * PAGE as u64, 0..4),
            sample_type in proptest::prelude::any::<u64>(),
        ) {
            let (kernel, mut ring) = pair(true);
            for (index, word) in words.iter().enumerate() {
                kernel.map.write64_release(PAGE + index * 8, *word);
            }
            // Headers that may be some, at places that may be reached.
            for (index, size) in sizes {
                let word = u64::from_ne_bytes(header(size));
                kernel.map.write64_release(PAGE + index * 8, word);
            }
            let mut head = 0u64;
            for step in near {
                head = head.wrapping_add(step);
                kernel.map.write64_release(DATA_HEAD, head);
                drain_all(&mut ring, sample_type & record::field::KNOWN);
            }
            for head in heads {
                kernel.map.write64_release(DATA_HEAD, head);
                drain_all(&mut ring, sample_type);
                proptest::prop_assert_eq!(kernel.map.read64(DATA_TAIL), head & !7);
            }
        }
    }

    fn drain_all(ring: &mut Ring, sample_type: u64) {
        let mut bytes = 0;
        let drained = ring.drain(|found| {
            bytes += found.len();
            let _ = record::decode(found, sample_type);
        });
        assert!(bytes <= PAGE && drained.records <= (PAGE / 8) as u64);
    }
}
