//! Call stacks that have a number: a set of hashes, each written into the log once.

use crate::hash::{finish, mix, top};
use crate::record;
use crate::state::STATE;
use hither_core::sites::{MAX_FRAMES, SLOT_FRAMES, kind};
use std::sync::atomic::{AtomicU64, Ordering};

const BITS: u32 = 14;
const PROBES: usize = 64;

/// Hashes of call stacks; the place of one is its site's number, less one.
pub struct Table([AtomicU64; 1 << BITS]);

impl Table {
    /// Nothing.
    pub const fn new() -> Self {
        Self([const { AtomicU64::new(0) }; 1 << BITS])
    }

    /// The number of a hash that is not zero, and whether it is new; nothing where there is no room.
    fn number(&self, hash: u64) -> Option<(u32, bool)> {
        let start = top(hash, BITS);
        for probe in 0..PROBES {
            let index = (start + probe) % (1 << BITS);
            let place = &self.0[index];
            let mut found = place.load(Ordering::Relaxed);
            if found == 0 {
                match place.compare_exchange(0, hash, Ordering::Relaxed, Ordering::Relaxed) {
                    Ok(_) => return Some((index as u32 + 1, true)),
                    Err(now) => found = now,
                }
            }
            if found == hash {
                return Some((index as u32 + 1, false));
            }
        }
        None
    }
}

/// The number of a call stack, which is written into the log where it is new; 0 where there is no
/// room for another. Two stacks with one hash of 64 bits do not happen.
pub fn number(frames: &[usize]) -> u32 {
    let frames = frames.get(..MAX_FRAMES).unwrap_or(frames);
    let hash = frames
        .iter()
        .fold(frames.len() as u64, |hash, frame| mix(hash, *frame as u64));
    let Some((site, is_new)) = STATE.sites.number(finish(hash)) else {
        STATE.log.dropped_other();
        return 0;
    };
    if is_new {
        STATE.modules.write_new();
        let time = record::now_ns();
        for (part, frames) in frames.chunks(SLOT_FRAMES).enumerate() {
            let mut body = [0; SLOT_FRAMES];
            for (word, frame) in body.iter_mut().zip(frames) {
                *word = *frame as u64;
            }
            let first = (part * SLOT_FRAMES) as u16;
            let word = record::word(kind::SITE, frames.len() as u8, first, site);
            STATE.log.append_other(word, time, &body);
        }
    }
    site
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hash_keeps_its_number_and_a_full_table_says_so() {
        // SAFETY: zeros are a table without hashes.
        let table = unsafe { Box::<Table>::new_zeroed().assume_init() };
        let (one, is_new) = table.number(0xabc1).unwrap();
        assert!(is_new && one > 0);
        assert_eq!(table.number(0xabc1), Some((one, false)));
        let mut numbers = std::collections::BTreeSet::new();
        let full = (0..20_000u64)
            .find(|index| match table.number(finish(mix(3, *index))) {
                Some((number, is_new)) => !(is_new && numbers.insert(number)),
                None => true,
            })
            .unwrap();
        assert!(full > 10_000, "{full}");
    }
}
