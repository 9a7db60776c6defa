//! Where each page shall go.

use super::target::Room;
use hither_core::bind::astray::Bound;
use hither_core::ids::NodeId;
use hither_core::set::NodeSet;
use hither_core::snapshot::HUGE_PAGES;
use std::ops::Range;

/// What is asked for of every page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Aim {
    /// Any of these nodes, which are filled in their order.
    Fill(Vec<Room>),
    /// These nodes in turns, as the kernel's `interleave` would have it: the number of the page, or
    /// of the huge page, says whose turn it is.
    Spread(Vec<NodeId>),
    /// Where it was: ascending ranges of pages with their node. Pages of none are left alone.
    Back(Vec<(Range<u64>, NodeId)>),
    /// On nodes that its mapping is bound to: ascending ranges of pages; a page elsewhere goes to the
    /// targets in turns. Pages of none are left alone.
    Bound(Vec<(Range<u64>, Bound)>),
}

impl Aim {
    /// All nodes that may get pages.
    #[must_use]
    pub fn nodes(&self) -> NodeSet {
        match self {
            Self::Fill(rooms) => rooms.iter().map(|room| room.node).collect(),
            Self::Spread(nodes) => nodes.iter().copied().collect(),
            Self::Back(places) => places.iter().map(|(_, node)| *node).collect(),
            Self::Bound(all) => all
                .iter()
                .flat_map(|(_, bound)| bound.targets.clone())
                .collect(),
        }
    }

    /// The node that a page belongs on; `None` where several are as good, or none is meant.
    #[must_use]
    pub fn node_of(&self, page: u64, is_huge: bool) -> Option<NodeId> {
        match self {
            Self::Fill(_) => None,
            Self::Spread(nodes) => {
                let turn = if is_huge { page / HUGE_PAGES } else { page };
                Some(nodes[turn as usize % nodes.len()])
            }
            Self::Bound(all) => {
                let nodes = &within(all, page)?.targets;
                let turn = if is_huge { page / HUGE_PAGES } else { page };
                Some(nodes[turn as usize % nodes.len()])
            }
            Self::Back(places) => within(places, page).copied(),
        }
    }

    /// Is a page where it shall be that is on this node, or on none (negative)?
    #[must_use]
    pub fn is_met(&self, page: u64, is_huge: bool, status: i32) -> bool {
        let Ok(on) = u32::try_from(status) else {
            return false;
        };
        match self {
            Self::Fill(rooms) => rooms.iter().any(|room| room.node.0 == on),
            Self::Bound(all) => {
                within(all, page).is_some_and(|bound| bound.right.contains(NodeId(on)))
            }
            _ => self.node_of(page, is_huge) == Some(NodeId(on)),
        }
    }
}

/// What the range says that a page is in, of ascending ranges.
fn within<T>(ranges: &[(Range<u64>, T)], page: u64) -> Option<&T> {
    let at = ranges.partition_point(|(pages, _)| pages.end <= page);
    let (pages, what) = ranges.get(at)?;
    pages.contains(&page).then_some(what)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turns_go_by_page_and_by_huge_page() {
        let aim = Aim::Spread(vec![NodeId(0), NodeId(2), NodeId(5)]);
        let node = |page, is_huge| aim.node_of(page, is_huge).unwrap().0;
        assert_eq!([0, 1, 2, 3].map(|page| node(page, false)), [0, 2, 5, 0]);
        // Every page of a huge page has one turn.
        assert_eq!([512, 700, 1023].map(|page| node(page, true)), [2, 2, 2]);
        assert_eq!(node(1024, true), 5);
        assert!(aim.is_met(1, false, 2) && !aim.is_met(1, false, 5) && !aim.is_met(1, false, -14));
        assert_eq!(aim.nodes().to_string(), "0,2,5");
    }

    #[test]
    fn pages_of_a_bound_mapping_may_be_on_any_of_its_nodes() {
        let bound = |right: &str, targets: &[u32]| Bound {
            right: right.parse().unwrap(),
            targets: targets.iter().copied().map(NodeId).collect(),
        };
        let aim = Aim::Bound(vec![
            (10..20, bound("1-2", &[1])),
            (30..40, bound("0,3", &[0, 3])),
        ]);
        assert!(aim.is_met(10, false, 2) && !aim.is_met(10, false, 0) && !aim.is_met(25, false, 1));
        let node = |page| aim.node_of(page, false).map(|node| node.0);
        assert_eq!(
            [12, 25, 30, 31].map(node),
            [Some(1), None, Some(0), Some(3)]
        );
        assert_eq!(aim.nodes().to_string(), "0-1,3");
    }

    #[test]
    fn what_was_nowhere_goes_nowhere() {
        let aim = Aim::Back(vec![(10..20, NodeId(1)), (20..30, NodeId(3))]);
        let node = |page| aim.node_of(page, true).map(|node| node.0);
        assert_eq!(
            [9, 10, 19, 20, 29, 30].map(node),
            [None, Some(1), Some(1), Some(3), Some(3), None]
        );
        assert!(aim.is_met(10, false, 1) && !aim.is_met(10, false, 3) && !aim.is_met(30, false, 1));
    }
}
