//! `--astray`: pages on nodes that what the process is bound to does not name, to nodes that it does.

use super::aim::Aim;
use super::perform::{Account, Piece, count};
use anyhow::{Context, ensure};
use hither_core::bind::astray::Bound;
use hither_linux::bind::astray::{self, Binding};
use hither_linux::proc::numa_maps;
use hither_linux::root::Root;
use hither_linux::sys::OwnMapping;
use hither_linux::topology::Topology;
use serde_json::{Value, json};
use std::ops::Range;

/// What the process is bound to.
#[derive(Clone, Debug)]
pub struct Astray {
    /// As a whole.
    binding: Binding,
    /// Its mappings with memory of its own that are bound, ascending.
    bound: Vec<(Range<u64>, Bound)>,
}

impl Astray {
    /// Looks at a process.
    ///
    /// # Errors
    /// It cannot be looked at, or is bound to nothing.
    pub fn of(
        root: &Root,
        topology: &Topology,
        pid: i32,
        all: &[OwnMapping],
    ) -> anyhow::Result<Self> {
        let about = || format!("--astray: process {pid}");
        let binding = astray::binding(root, &astray::places(topology), pid).with_context(about)?;
        let told = numa_maps::read(root, pid).with_context(about)?;
        let mut bound = Vec::new();
        for mapping in all {
            let at = told.binary_search_by_key(&mapping.range.start, |known| known.start);
            let Some(known) = at.ok().map(|at| &told[at]) else {
                continue;
            };
            // Pages of files are what anybody has read: see --files.
            if known.is_of_file() && mapping.shared {
                continue;
            }
            if let Some(to) = astray::bound(known, &binding.home) {
                bound.push((mapping.pages(), to));
            }
        }
        ensure!(
            !bound.is_empty(),
            "{}: it is bound to no nodes: it has no memory policy that names some, and its threads may \
             run on CPUs of all nodes; bind it (`taskset -apc CPUS {pid}`, or the memory of its control \
             group), or say where its pages shall go with --to",
            about()
        );
        Ok(Self { binding, bound })
    }

    /// Where pages shall go.
    pub fn aim(&self) -> Aim {
        Aim::Bound(self.bound.clone())
    }

    /// Those mappings in which a page can be astray.
    pub fn chosen(&self, all: Vec<OwnMapping>) -> Vec<OwnMapping> {
        let is_bound = |mapping: &OwnMapping| {
            let start = mapping.range.start >> 12;
            let at = self
                .bound
                .binary_search_by_key(&start, |(pages, _)| pages.start);
            at.is_ok()
        };
        all.into_iter().filter(is_bound).collect()
    }

    /// Its nodes, for a sentence.
    pub fn words(&self) -> String {
        let nodes = &self.binding.home.nodes;
        match self.binding.home.is_bound() {
            true => format!("nodes that it is bound to ({nodes}, or its memory policies')"),
            false => "nodes that its memory policies name".to_owned(),
        }
    }
}

/// Pages astray, of how many.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Share {
    /// Pages on the wrong node.
    pub astray: u64,
    /// Pages in memory on any node.
    pub of: u64,
}

impl Share {
    /// Before the move.
    pub fn before(pieces: &[Piece]) -> Self {
        let of: u64 = pieces
            .iter()
            .map(|piece| count(&piece.resident) - piece.before.nowhere)
            .sum();
        let there: u64 = pieces.iter().map(|piece| piece.before.there).sum();
        Self {
            astray: of.saturating_sub(there),
            of,
        }
    }

    /// After it; `None` where nobody could look.
    pub fn after(total: &Account) -> Option<Self> {
        let after = total.after.as_ref()?;
        let of: u64 = after.nodes.values().sum();
        Some(Self {
            astray: of.saturating_sub(after.there),
            of,
        })
    }

    fn ratio(self) -> Option<f64> {
        (self.of > 0).then(|| self.astray as f64 / self.of as f64)
    }

    /// `22.0 % (5632 of 25600 pages)`.
    pub fn text(self) -> String {
        let percent = self.ratio().map_or(0.0, |ratio| 100.0 * ratio);
        format!("{percent:.1} % ({} of {} pages)", self.astray, self.of)
    }

    /// As data.
    pub fn json(self) -> Value {
        json!({ "astray_pages": self.astray, "pages": self.of, "share": self.ratio() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::moving::perform::Places;
    use hither_core::ids::NodeId;
    use std::collections::BTreeMap;

    #[test]
    fn shares_are_of_pages_that_are_on_some_node() {
        let places = Places {
            nodes: BTreeMap::from([(NodeId(0), 22), (NodeId(1), 78)]),
            nowhere: 5,
            there: 78,
        };
        let piece = Piece {
            resident: std::iter::once(0..105).collect(),
            before: places.clone(),
            ..Piece::default()
        };
        let before = Share::before(&[piece]);
        assert_eq!(before.text(), "22.0 % (22 of 100 pages)");
        let account = Account {
            after: Some(Places {
                nodes: BTreeMap::from([(NodeId(1), 99), (NodeId(0), 1)]),
                nowhere: 5,
                there: 99,
            }),
            ..Account::default()
        };
        let after = Share::after(&account).unwrap();
        assert_eq!(after.json()["share"], 0.01);
        assert_eq!(Share::after(&Account::default()), None);
        assert_eq!(Share { astray: 0, of: 0 }.json()["share"], Value::Null);
    }
}
