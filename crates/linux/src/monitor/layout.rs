//! Which filters and counters watch areas whose pages lie anywhere in physical memory. Pure.
//!
//! A filter takes one range of physical addresses. Pages of an area that lie side by side there are one range, whatever
//! their order. Where there are more ranges than filters, ranges go over the smallest gaps, as nobody asks for what was
//! counted there; but not those of areas that are summed, since a sum would have it in.
//!
//! A counter holds one grain, or a part of it: its size is the largest at which no counter holds two pieces of an area
//! or of two grains.

use hither_core::opium::{COUNTERS, FILTERS};
use std::ops::Range;

/// Bytes of an area that lie in one piece.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    /// From the area's start on.
    pub offset: u64,
    /// Physical addresses.
    pub physical: Range<u64>,
}

/// Pieces of addresses whose pages are in these frames (`None`: not in memory), and how many are not.
pub(super) fn pieces(addresses: &Range<u64>, frames: &[Option<u64>]) -> (Vec<Piece>, u64) {
    let mut pieces: Vec<Piece> = Vec::new();
    let mut absent = 0;
    for (page, frame) in (addresses.start >> 12..).zip(frames) {
        let Some(frame) = frame else {
            absent += 1;
            continue;
        };
        let from = (page << 12).max(addresses.start);
        let to = ((page + 1) << 12).min(addresses.end);
        let start = (frame << 12) + (from & 0xfff);
        let physical = start..start + (to - from);
        let offset = from - addresses.start;
        match pieces.last_mut() {
            Some(last)
                if last.physical.end == physical.start
                    && last.offset + (last.physical.end - last.physical.start) == offset =>
            {
                last.physical.end = physical.end;
            }
            _ => pieces.push(Piece { offset, physical }),
        }
    }
    (pieces, absent)
}

/// An area to lay out.
#[derive(Clone, Debug)]
pub(super) struct Asked {
    pub pieces: Vec<Piece>,
    pub grain_bytes: u64,
    /// Must no filter of it go over gaps?
    pub is_summed: bool,
}

/// A filter's range and its counters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Watched {
    pub area: usize,
    pub physical: Range<u64>,
    pub base: u32,
}

/// An area as it is counted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Laid {
    pub pieces: Vec<Piece>,
    /// As it was asked for; a counter may be a part of it.
    pub grain_bytes: u64,
    /// log2 of a counter's bytes.
    pub shift: u32,
    /// Its filters.
    pub filters: Range<usize>,
}

/// All of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Layout {
    pub areas: Vec<Laid>,
    pub filters: Vec<Watched>,
}

/// Lays areas out.
///
/// # Errors
/// They are in too many pieces, or need more counters than there are.
pub(super) fn lay_out(asked: &[Asked]) -> Result<Layout, String> {
    let exact: Vec<Vec<Range<u64>>> = asked.iter().map(|area| joined(&area.pieces)).collect();
    let all: usize = exact.iter().map(Vec::len).sum();
    let summed = |index: usize| asked[index].is_summed;
    let needed: usize = (0..asked.len())
        .filter(|&i| summed(i))
        .map(|i| exact[i].len())
        .sum();
    let others = (0..asked.len())
        .filter(|&i| !summed(i) && !exact[i].is_empty())
        .count();
    if needed + others > FILTERS {
        return Err(format!(
            "the areas of its sums lie in {needed} pieces of physical memory, and {FILTERS} filters watch one each"
        ));
    }
    let share = match all <= FILTERS {
        true => FILTERS,
        false => (FILTERS - needed) / others.max(1),
    };
    let mut layout = Layout::default();
    let mut next = 0_u64;
    for (index, (area, exact)) in asked.iter().zip(exact).enumerate() {
        let ranges = match area.is_summed {
            true => exact,
            false => over_gaps(exact, share),
        };
        let shift = shift(area, &ranges);
        let first = layout.filters.len();
        for physical in ranges {
            let count = (physical.end - physical.start).div_ceil(1 << shift);
            layout.filters.push(Watched {
                area: index,
                physical,
                base: next as u32,
            });
            next += count;
            if next > COUNTERS as u64 {
                return Err(format!(
                    "the areas have more grains than {COUNTERS} counters"
                ));
            }
        }
        layout.areas.push(Laid {
            pieces: area.pieces.clone(),
            grain_bytes: area.grain_bytes,
            shift,
            filters: first..layout.filters.len(),
        });
    }
    Ok(layout)
}

/// Physical ranges of pieces, ascending, those side by side as one.
fn joined(pieces: &[Piece]) -> Vec<Range<u64>> {
    let mut ranges: Vec<Range<u64>> = pieces.iter().map(|piece| piece.physical.clone()).collect();
    ranges.sort_by_key(|range| range.start);
    ranges.dedup_by(|next, before| {
        let touches = before.end == next.start;
        if touches {
            before.end = next.end;
        }
        touches
    });
    ranges
}

/// At most `most` ranges that hold all these: the widest gaps stay.
fn over_gaps(ranges: Vec<Range<u64>>, most: usize) -> Vec<Range<u64>> {
    if ranges.len() <= most {
        return ranges;
    }
    let mut gaps: Vec<u64> = ranges
        .windows(2)
        .map(|pair| pair[1].start - pair[0].end)
        .collect();
    gaps.sort_unstable_by(|a, b| b.cmp(a));
    let (least, mut left) = (gaps[most.max(2) - 2], most.saturating_sub(1));
    let mut found: Vec<Range<u64>> = Vec::new();
    for range in ranges {
        match found.last_mut() {
            Some(last) if left > 0 && range.start - last.end >= least => {
                left -= 1;
                found.push(range);
            }
            Some(last) => last.end = range.end,
            None => found.push(range),
        }
    }
    found
}

/// The largest counters that hold one piece and one grain each.
fn shift(area: &Asked, ranges: &[Range<u64>]) -> u32 {
    let mut shift = area.grain_bytes.trailing_zeros();
    for piece in &area.pieces {
        let range = ranges
            .iter()
            .find(|range| range.contains(&piece.physical.start));
        let within = range.map_or(0, |range| piece.physical.start - range.start);
        // Zero is a multiple of all.
        shift = shift
            .min(piece.offset.trailing_zeros())
            .min(within.trailing_zeros());
    }
    shift
}

impl Layout {
    /// Counters of an area, in its own order: each with the offset in the area of its first byte.
    pub(super) fn counters(&self, area: usize) -> impl Iterator<Item = (u32, u64)> + '_ {
        let laid = &self.areas[area];
        laid.pieces.iter().flat_map(move |piece| {
            let filters = &self.filters[laid.filters.clone()];
            let filter = filters
                .iter()
                .find(|filter| filter.physical.contains(&piece.physical.start));
            let bytes = piece.physical.end - piece.physical.start;
            let count = filter.map_or(0, |_| bytes.div_ceil(1 << laid.shift));
            let first = filter.map_or(0, |filter| {
                filter.base + ((piece.physical.start - filter.physical.start) >> laid.shift) as u32
            });
            (0..count)
                .map(move |number| (first + number as u32, piece.offset + (number << laid.shift)))
        })
    }

    /// Area, and grain of it, of a filter's counter; `None` of one in a gap.
    pub(super) fn grain(&self, filter: usize, counter: u32) -> Option<(usize, usize)> {
        let watched = self.filters.get(filter)?;
        let laid = &self.areas[watched.area];
        let address =
            watched.physical.start + (u64::from(counter.checked_sub(watched.base)?) << laid.shift);
        let piece = laid
            .pieces
            .iter()
            .find(|piece| piece.physical.contains(&address))?;
        let offset = piece.offset + (address - piece.physical.start);
        Some((watched.area, (offset / laid.grain_bytes) as usize))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn area(start: u64, frames: &[u64], grain_bytes: u64, is_summed: bool) -> Asked {
        let frames: Vec<Option<u64>> = frames.iter().map(|&frame| Some(frame)).collect();
        let addresses = start..(start & !0xfff) + ((frames.len() as u64) << 12);
        Asked {
            pieces: pieces(&addresses, &frames).0,
            grain_bytes,
            is_summed,
        }
    }

    #[test]
    fn pages_side_by_side_are_one_piece_and_absent_ones_none() {
        let frames = [Some(7), Some(8), None, Some(20), Some(19)];
        let (found, absent) = pieces(&(0x1100..0x5f00), &frames);
        let wanted = [
            (0, 0x7100..0x9000),
            (0x2f00, 0x14000..0x15000),
            (0x3f00, 0x13000..0x13f00),
        ];
        let found: Vec<_> = found.into_iter().map(|p| (p.offset, p.physical)).collect();
        assert_eq!((found.as_slice(), absent), (wanted.as_slice(), 1));
    }

    #[test]
    fn pages_in_any_order_side_by_side_need_one_filter() {
        let layout = lay_out(&[area(0x10000, &[9, 8, 7, 6], 4096, true)]).unwrap();
        assert_eq!(layout.filters.len(), 1);
        assert_eq!(layout.filters[0].physical, 0x6000..0xa000);
        let counters: Vec<(u32, u64)> = layout.counters(0).collect();
        assert_eq!(counters, [(3, 0), (2, 0x1000), (1, 0x2000), (0, 0x3000)]);
        for (counter, offset) in counters {
            assert_eq!(layout.grain(0, counter), Some((0, offset as usize / 4096)));
        }
    }

    #[test]
    fn counters_are_as_large_as_pieces_and_grains_let_them() {
        // Huge pages: two of 512 frames, apart.
        let frames: Vec<u64> = (1024..1536).chain(4096..4608).collect();
        let layout = lay_out(&[area(0, &frames, 2 << 20, true)]).unwrap();
        assert_eq!((layout.filters.len(), layout.areas[0].shift), (2, 21));
        assert_eq!(
            layout.counters(0).collect::<Vec<_>>(),
            [(0, 0), (1, 2 << 20)]
        );
        // A page apart: grains are added up of pages.
        let layout = lay_out(&[area(0, &[1, 2, 7, 8], 8192 * 2, true)]).unwrap();
        assert_eq!(layout.areas[0].shift, 13);
        let layout = lay_out(&[area(0, &[1, 7, 8], 8192 * 2, true)]).unwrap();
        assert_eq!(layout.areas[0].shift, 12);
        // Each of them is told as the grain that it is a part of.
        assert_eq!(layout.grain(1, 2), Some((0, 0)));
        let layout = lay_out(&[area(0, &[1, 2, 4, 3, 5, 6, 7, 8], 4096 * 4, true)]).unwrap();
        let grains = (layout.counters(0)).map(|(counter, _)| layout.grain(0, counter));
        let grains: Vec<usize> = grains.map(|grain| grain.unwrap().1).collect();
        assert_eq!(grains, [0, 0, 0, 0, 1, 1, 1, 1]);
        // Lines of an area that begins within a page.
        let layout = lay_out(&[area(0x1040, &[3, 9], 64, false)]).unwrap();
        assert_eq!(layout.areas[0].shift, 6);
        assert_eq!(layout.counters(0).count(), 127);
    }

    #[test]
    fn areas_share_filters_and_counters() {
        let scattered: Vec<u64> = (0..40).map(|page| page * 3).collect();
        let one = area(0, &scattered, 4096, false);
        let two = area(0x100_0000, &[500, 501], 64, true);
        let layout = lay_out(&[one.clone(), two]).unwrap();
        assert!(layout.filters.len() <= FILTERS, "{}", layout.filters.len());
        assert_eq!(layout.areas[1].filters.len(), 1);
        // Each page has a counter of its own, and none is used twice.
        let mut counters: Vec<u32> = (0..2)
            .flat_map(|area| layout.counters(area))
            .map(|c| c.0)
            .collect();
        assert_eq!(counters.len(), 40 + 128);
        counters.sort_unstable();
        counters.dedup();
        assert_eq!(counters.len(), 168);
        let summed = Asked {
            is_summed: true,
            ..one
        };
        let error = lay_out(&[summed]).unwrap_err();
        assert!(error.contains("40 pieces"), "{error}");
        let far = area(0, &[0, 1 << 20], 4096, false);
        assert_eq!(lay_out(&[far]).unwrap().filters.len(), 2);
        let large: Vec<u64> = (0..10_000).collect();
        let error = lay_out(&[area(0, &large, 64, true)]).unwrap_err();
        assert!(error.contains("524288 counters"), "{error}");
    }

    #[test]
    fn gaps_have_no_place() {
        let layout = Layout {
            areas: vec![Laid {
                pieces: vec![
                    Piece {
                        offset: 0,
                        physical: 0x1000..0x2000,
                    },
                    Piece {
                        offset: 0x1000,
                        physical: 0x3000..0x4000,
                    },
                ],
                grain_bytes: 4096,
                shift: 12,
                filters: 0..1,
            }],
            filters: vec![Watched {
                area: 0,
                physical: 0x1000..0x4000,
                base: 5,
            }],
        };
        let places = [5, 6, 7, 8, 4].map(|counter| layout.grain(0, counter));
        assert_eq!(places, [Some((0, 0)), None, Some((0, 1)), None, None]);
        assert_eq!(layout.grain(1, 5), None);
    }
}
