//! Addresses spread over what a process maps, to be asked about in place of all.

use hither_linux::sys::OwnMapping;

/// Addresses of pages, ascending.
#[derive(Debug)]
pub struct Spread {
    /// The addresses.
    pub addresses: Vec<u64>,
    /// Base pages that each stands for.
    pub step: u64,
}

impl Spread {
    /// One of each `step` pages of all that is mapped and may be read or written, so that there are
    /// `most` at most. Which one of the step differs from step to step and with the turn: pages that
    /// are placed in rotation would else be of one node.
    pub fn over(mappings: &[OwnMapping], most: usize, turn: u64) -> Self {
        let may_have_pages = |mapping: &&OwnMapping| mapping.readable || mapping.writable;
        let ranges = mappings
            .iter()
            .filter(may_have_pages)
            .map(OwnMapping::pages);
        let all: u64 = ranges.clone().map(|pages| pages.end - pages.start).sum();
        let step = all.div_ceil(most as u64).max(1);
        let inside = |index: u64| scrambled(index.wrapping_add(turn << 32)) % step;
        let mut addresses = Vec::with_capacity(most);
        let (mut index, mut before) = (0, 0);
        let mut next = inside(0);
        for pages in ranges {
            let length = pages.end - pages.start;
            while next < before + length {
                addresses.push((pages.start + next - before) << 12);
                index += 1;
                next = index * step + inside(index);
            }
            before += length;
        }
        Self { addresses, step }
    }
}

/// Numbers that look like chance: the finaliser of SplitMix64 (Steele, Lea & Flood, OOPSLA 2014).
fn scrambled(number: u64) -> u64 {
    let mut z = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mapping(pages: std::ops::Range<u64>, readable: bool) -> OwnMapping {
        OwnMapping {
            range: pages.start << 12..pages.end << 12,
            readable,
            writable: readable,
            ..OwnMapping::default()
        }
    }

    #[test]
    fn addresses_are_spread_evenly_and_turn() {
        let mappings = [
            mapping(100..200, true),
            mapping(200..900, false),
            mapping(1000..1900, true),
        ];
        let spread = |most, turn| Spread::over(&mappings, most, turn);
        let addresses = spread(100, 0).addresses;
        assert_eq!((addresses.len(), spread(100, 0).step), (100, 10));
        let of_first = addresses.iter().filter(|&&a| a >> 12 < 200).count();
        assert_eq!(of_first, 10);
        assert!(addresses.is_sorted());
        assert!(addresses.iter().all(|a| !(200..900).contains(&(a >> 12))));
        assert_ne!(spread(100, 1).addresses, addresses);
        assert_eq!(spread(5000, 3).addresses.len(), 1000, "no page twice");
        assert!(Spread::over(&[], 100, 0).addresses.is_empty());
    }

    #[test]
    fn pages_placed_in_rotation_are_found_on_every_node() {
        // A step of 16 pages, and four nodes in turn.
        let spread = Spread::over(&[mapping(0..16_000, true)], 1000, 0);
        let mut nodes = [0; 4];
        for address in &spread.addresses {
            nodes[(address >> 12) as usize % 4] += 1;
        }
        assert!(nodes.iter().all(|n| (200..300).contains(n)), "{nodes:?}");
    }
}
