//! Which node a physical frame belongs to, from the spans of `/proc/zoneinfo`.
//!
//! A page map tells a page's frame; the frame tells the node, without a system call per page and
//! without disturbing anybody. `move_pages(2)` would tell it too, at a page-table walk each.
//!
//! Spans are exact to the frame and may hold holes, which no page map ever shows. Where firmware
//! interleaves nodes, their spans overlap: frames that two nodes claim belong to nobody here.
//! Rejected: the memory blocks of `/sys/devices/system/memory`, of 128 MiB to 2 GiB each, because
//! one block may hold two nodes and kernels without memory hotplug have none.

use crate::error::Fault;
use crate::parse::{Parsed, clip};
use crate::root::Root;
use hither_core::ids::NodeId;
use std::ops::Range;

/// Frames of nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FrameNodes {
    /// Ascending; spans of one node that touch are one.
    spans: Vec<(Range<u64>, NodeId)>,
}

impl FrameNodes {
    /// Reads the spans; empty where the kernel does not tell them.
    #[must_use]
    pub fn read(root: &Root) -> Self {
        let zones = root.parse_if_any("proc/zoneinfo", parse_zones);
        zones.ok().flatten().map_or_else(Self::default, Self::new)
    }

    /// From the spans of zones, in any order.
    #[must_use]
    pub fn new(mut zones: Vec<(Range<u64>, NodeId)>) -> Self {
        zones.sort_unstable_by_key(|(span, node)| (span.start, node.0));
        let mut spans: Vec<(Range<u64>, NodeId)> = Vec::new();
        for (span, node) in zones {
            match spans.last_mut() {
                Some((last, same)) if *same == node && span.start <= last.end => {
                    last.end = last.end.max(span.end);
                }
                _ => spans.push((span, node)),
            }
        }
        Self { spans }
    }

    /// The node of a frame; `None` where no node claims it, or two do.
    #[must_use]
    pub fn node(&self, frame: u64) -> Option<NodeId> {
        self.around(frame).map(|(_, node)| node)
    }

    /// The same, with frames around it of which the same holds: for who looks up many.
    #[must_use]
    pub fn around(&self, frame: u64) -> Option<(Range<u64>, NodeId)> {
        let mut holders = self.spans.iter().filter(|(span, _)| span.contains(&frame));
        let (mut around, node) = holders.next().cloned()?;
        for (other, _) in self.spans.iter().filter(|(_, of)| *of != node) {
            if other.end <= frame {
                around.start = around.start.max(other.end);
            } else if other.start > frame {
                around.end = around.end.min(other.start);
            } else {
                return None;
            }
        }
        Some((around, node))
    }

    /// What each node spans, ascending.
    #[must_use]
    pub fn spans(&self) -> &[(Range<u64>, NodeId)] {
        &self.spans
    }

    /// Is nothing known?
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.spans.is_empty()
    }
}

/// Frames of every populated zone.
///
/// ```text
/// Node 0, zone      DMA
///   pages free     3840
///         spanned  4095
///   start_pfn:           1
/// ```
pub fn parse_zones(text: &str) -> Parsed<Vec<(Range<u64>, NodeId)>> {
    let mut zones = Vec::new();
    let mut spanned = None;
    each_pair(text, |node, key, value| {
        match key {
            "Node" => spanned = None,
            "spanned" => spanned = Some(value.parse::<u64>().ok()?),
            "start_pfn:" => {
                let start: u64 = value.parse().ok()?;
                let (node, count) = node.zip(spanned.take())?;
                let end = start.checked_add(count)?;
                if count > 0 {
                    zones.push((start..end, node));
                }
            }
            _ => {}
        }
        Some(())
    })?;
    Ok(zones)
}

/// Calls `each` with the first two words of every line of `/proc/zoneinfo`, and the node that they are about; where it
/// says `None`, the line is not understood.
pub(super) fn each_pair(
    text: &str,
    mut each: impl FnMut(Option<NodeId>, &str, &str) -> Option<()>,
) -> Parsed<()> {
    let mut node = None;
    for (index, line) in text.lines().enumerate() {
        let mut words = line.split_whitespace();
        let (Some(key), Some(value)) = (words.next(), words.next()) else {
            continue;
        };
        let is_head = key == "Node";
        if is_head {
            let number = value.strip_suffix(',').and_then(|word| word.parse().ok());
            node = number.map(NodeId);
        }
        if (is_head && node.is_none()) || each(node, key, value).is_none() {
            let reason = format!("`{}` is not understood", clip(line));
            return Err(Fault::new(index + 1, reason));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
Node 0, zone      DMA
  per-node stats
      nr_inactive_anon 1
  pages free     2814
        min      7
        spanned  4095
        present  3998
        managed  3840
        protection: (0, 1, 2)
      nr_free_pages 2814
  pagesets
    cpu: 0
              count:    0
  node_unreclaimable:  0
  start_pfn:           1
Node 0, zone    DMA32
        spanned  258048
  start_pfn:           4096
Node 0, zone   Normal
        spanned  0
Node 4, zone   Normal
        spanned  262144
  start_pfn:           1048576
";

    #[test]
    fn zones_become_spans_of_nodes() {
        let frames = FrameNodes::new(parse_zones(TEXT).unwrap());
        assert_eq!(
            frames.spans,
            [(1..262_144, NodeId(0)), (1_048_576..1_310_720, NodeId(4))]
        );
        let node = |frame| frames.node(frame).map(|node| node.0);
        assert_eq!(
            [0, 1, 262_143, 262_144, 1_048_576].map(node),
            [None, Some(0), Some(0), None, Some(4)]
        );
    }

    #[test]
    fn frames_that_two_nodes_claim_belong_to_nobody() {
        let spans = vec![
            (0..100, NodeId(0)),
            (50..150, NodeId(1)),
            (90..95, NodeId(0)),
        ];
        let frames = FrameNodes::new(spans);
        let node = |frame| frames.node(frame).map(|node| node.0);
        assert_eq!([10, 60, 92, 120].map(node), [Some(0), None, None, Some(1)]);
        assert_eq!(frames.around(10), Some((0..50, NodeId(0))));
        assert_eq!(frames.around(120), Some((100..150, NodeId(1))));
    }

    #[test]
    fn nonsense_is_refused_with_its_line() {
        for (text, line) in [
            ("Node x, zone DMA", 1),
            ("start_pfn: 5", 1),
            ("Node 0, zone A\nspanned many", 2),
            ("Node 0, zone A\nspanned 2\nstart_pfn: -1", 3),
            (
                "Node 0, zone A\nspanned 2\nstart_pfn: 18446744073709551615",
                3,
            ),
        ] {
            assert_eq!(parse_zones(text).unwrap_err().line, line, "{text}");
        }
        assert!(FrameNodes::read(&Root::new("/nowhere")).is_empty());
    }

    #[test]
    fn this_machine_tells_its_spans() {
        let frames = FrameNodes::read(&Root::host());
        assert!(!frames.is_empty());
    }
}
