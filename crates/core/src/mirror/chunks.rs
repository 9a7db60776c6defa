//! Which chunks of a file a process uses again and again, and which of them are worth a copy.
//!
//! **Problem.** A copy of a whole file costs its size on each node; often a part is used. Nobody tells a
//! process which of its read-only pages it reads, but its page table does, once emptied: what is there after
//! a *window* was used in it.
//!
//! **Mechanism.** [`ChunkHeat`] keeps for each chunk the last eight windows as bits. A chunk is *hot* with
//! [`HOT_COUNT`] uses in the last [`HOT_OF`] windows: what is read once, by a scan or at start, is not copied.
//! [`choose`] takes hot chunks that lie elsewhere, most used first, as many as there is room for.
//!
//! **Properties.** Never more than the room. No chunk twice. The same windows give the same choice.

/// Bytes of a chunk of large files: a huge page.
pub const LARGE_CHUNK_BYTES: u64 = 2 << 20;
/// Bytes of a chunk of small files: what the kernel maps around one fault.
pub const SMALL_CHUNK_BYTES: u64 = 64 << 10;
/// From this size on a file is large. All as with replicated arrays.
pub const LARGE_FILE_BYTES: u64 = 16 << 20;
/// Uses that make a chunk hot.
pub const HOT_COUNT: u32 = 2;
/// Of so many windows.
pub const HOT_OF: u32 = 3;
/// A chunk is elsewhere when this part of its sampled pages is, in per cent: from interleaved pages on two
/// nodes a copy has half to gain, from a few strays nothing.
pub const ELSEWHERE_PERCENT: u32 = 25;

/// Bytes of a chunk of a file of that size.
#[must_use]
pub fn chunk_bytes(file_bytes: u64) -> u64 {
    match file_bytes < LARGE_FILE_BYTES {
        true => SMALL_CHUNK_BYTES,
        false => LARGE_CHUNK_BYTES,
    }
}

/// Where pages of a chunk were found: sampled on the process's own node, and on others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Homes {
    /// Pages on the own node.
    pub here: u32,
    /// Pages on others.
    pub elsewhere: u32,
}

impl Homes {
    /// Is a copy of the chunk worth having?
    #[must_use]
    pub fn are_elsewhere(&self) -> bool {
        let all = self.here + self.elsewhere;
        self.elsewhere > 0 && self.elsewhere * 100 >= all * ELSEWHERE_PERCENT
    }
}

/// Uses of the chunks of one mapping.
#[derive(Clone, Debug)]
pub struct ChunkHeat {
    /// Bits of the last windows, the newest lowest.
    windows: Vec<u8>,
}

impl ChunkHeat {
    /// Nothing seen yet.
    #[must_use]
    pub fn new(chunk_count: usize) -> Self {
        Self {
            windows: vec![0; chunk_count],
        }
    }

    /// One window is over, in which these chunks were used.
    pub fn window(&mut self, used: &[bool]) {
        for (bits, used) in self.windows.iter_mut().zip(used) {
            *bits = *bits << 1 | u8::from(*used);
        }
    }

    /// How often it was used in the windows that count.
    #[must_use]
    pub fn count(&self, chunk: usize) -> u32 {
        let mask = (1u8 << HOT_OF) - 1;
        (self.windows.get(chunk).copied().unwrap_or(0) & mask).count_ones()
    }

    /// Is it used again and again?
    #[must_use]
    pub fn is_hot(&self, chunk: usize) -> bool {
        self.count(chunk) >= HOT_COUNT
    }
}

/// What is chosen.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Choice {
    /// Chunks to copy, ascending.
    pub chunks: Vec<usize>,
    /// Chunks that would be worth it, but for which there is no room.
    pub refused_count: usize,
}

/// Chooses among `wanted` (chunk, uses, bytes that a copy of it would still take: none where another
/// process has made it).
#[must_use]
pub fn choose(wanted: &[(usize, u32, u64)], room_bytes: u64) -> Choice {
    let mut order = wanted.to_vec();
    order.sort_by_key(|&(chunk, count, _)| (std::cmp::Reverse(count), chunk));
    let mut choice = Choice::default();
    let mut left = room_bytes;
    for (chunk, _, bytes) in order {
        match left.checked_sub(bytes) {
            Some(rest) => {
                left = rest;
                choice.chunks.push(chunk);
            }
            None => choice.refused_count += 1,
        }
    }
    choice.chunks.sort_unstable();
    choice
}

/// Neighbours put together: half-open runs of ascending numbers.
#[must_use]
pub fn runs(chunks: &[usize]) -> Vec<(usize, usize)> {
    let mut runs: Vec<(usize, usize)> = Vec::new();
    for &chunk in chunks {
        match runs.last_mut() {
            Some((_, end)) if *end == chunk => *end += 1,
            _ => runs.push((chunk, chunk + 1)),
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_is_used_once_is_not_hot() {
        let mut heat = ChunkHeat::new(3);
        heat.window(&[true, true, false]);
        heat.window(&[true, false, false]);
        assert!(heat.is_hot(0) && !heat.is_hot(1) && !heat.is_hot(2));
        // Two of the last three windows: the first falls out.
        heat.window(&[false, false, false]);
        assert!(heat.is_hot(0));
        heat.window(&[false, true, false]);
        assert!(!heat.is_hot(0) && !heat.is_hot(1));
        assert_eq!(heat.count(7), 0);
    }

    #[test]
    fn a_chunk_is_elsewhere_by_its_sampled_pages() {
        let homes = |here, elsewhere| Homes { here, elsewhere }.are_elsewhere();
        assert!(!homes(0, 0) && !homes(16, 0) && !homes(15, 1));
        assert!(homes(0, 1) && homes(12, 4) && homes(4, 12));
    }

    #[test]
    fn the_most_used_come_first_and_room_bounds_them() {
        // Chunk 2 is used most; another process has made 5, which takes no room.
        let wanted = [(1, 2, 10), (2, 3, 10), (3, 2, 10), (5, 2, 0)];
        let choice = choose(&wanted, 20);
        assert_eq!(choice.chunks, [1, 2, 5]);
        assert_eq!(choice.refused_count, 1);
        assert_eq!(choose(&wanted, 0).chunks, [5]);
        assert_eq!(choose(&wanted, 30).refused_count, 0);
        assert_eq!(runs(&[1, 2, 5]), [(1, 3), (5, 6)]);
    }

    #[test]
    fn chunks_are_those_of_replicated_arrays() {
        assert_eq!(chunk_bytes(LARGE_FILE_BYTES - 1), 64 << 10);
        assert_eq!(chunk_bytes(LARGE_FILE_BYTES), 2 << 20);
    }

    proptest! {
        #[test]
        fn never_more_than_the_room_and_none_twice(
            wanted in prop::collection::vec((0..4u32, 0..100u64), 0..40), room in 0..1000u64,
        ) {
            let wanted: Vec<_> = wanted.iter().enumerate().map(|(chunk, &(count, bytes))| (chunk, count, bytes)).collect();
            let choice = choose(&wanted, room);
            let taken: u64 = choice.chunks.iter().map(|&chunk| wanted[chunk].2).sum();
            prop_assert!(taken <= room);
            prop_assert!(choice.chunks.windows(2).all(|pair| pair[0] < pair[1]));
            prop_assert_eq!(choice.chunks.len() + choice.refused_count, wanted.len());
            let count: usize = runs(&choice.chunks).iter().map(|(start, end)| end - start).sum();
            prop_assert_eq!(count, choice.chunks.len());
        }
    }
}
