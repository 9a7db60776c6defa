//! The system's weights of memory nodes (Linux 6.9, `/sys/kernel/mm/mempolicy/weighted_interleave`):
//! set for as long as a program runs, and put back; and measured.
//!
//! The kernel has one table for the whole machine. Whoever changes it changes the next pages of
//! every program under weighted interleave, so that one hither at a time may, and the journal
//! ([`crate::restore`]) puts it back also after `kill -9`.

use crate::error::{Error, Result};
use crate::probe::under;
use crate::restore::{self, Journal, Setting};
use crate::root::Root;
use crate::topology::Topology;
use hither_core::bind::{KernelPolicy, Mode, Weights};
use hither_core::foreign::Foreign;
use hither_core::ids::NodeId;
use hither_core::set::{CpuSet, NodeSet};
use std::collections::BTreeMap;
use std::io;
use std::path::Path;

/// The kernel's table: a file per node, and since Linux 6.16 a switch.
const FOLDER: &str = "sys/kernel/mm/mempolicy/weighted_interleave";
/// The switch; Linux 6.18 calls it by the second name.
const SWITCHES: [&str; 2] = ["auto", "__auto_type"];
/// Nodes that give less than so much more together than the near ones alone are not worth their
/// latency.
const GAIN: f64 = 1.02;
/// The kernel's table in somebody's hands; put back when it is dropped.
#[derive(Debug)]
pub struct Table {
    root: Root,
    journal: Journal,
}

impl Table {
    /// Takes it, for these nodes; the second value is a sentence about what a dead owner left.
    ///
    /// # Errors
    /// The kernel has no weights; another hither has changed them; no journal can be kept.
    pub fn take(root: &Root, folder: &Path, nodes: &NodeSet) -> Result<(Self, Option<String>)> {
        let (mut journal, note) = Journal::open(root, folder, "weights")?;
        let mut settings = Vec::new();
        for node in nodes.iter() {
            let path = format!("{FOLDER}/{node}");
            let setting = Setting::of(root, &path)?.ok_or_else(|| {
                Error::new(
                    root.path(&path),
                    "is not there: the kernel has no weight for it",
                    "use Linux 6.9 or later, or another policy than weighted",
                )
            })?;
            settings.push(setting);
        }
        let mut notes: Vec<String> = note.into_iter().collect();
        // After the weights: each that is written ends automatic ones.
        for name in SWITCHES {
            let path = format!("{FOLDER}/{name}");
            let switch = Setting::of(root, &path)?;
            let Some(switch) = switch.filter(|s| ["1", "Y", "true"].contains(&&*s.content)) else {
                continue;
            };
            match may_be_automatic(root, &switch) {
                true => settings.push(switch),
                false => notes.push(format!(
                    "the kernel knows no bandwidths (HMAT, CDAT), so that {} stays off after \
                     this; the weights are put back",
                    root.path(&path).shown()
                )),
            }
        }
        journal.begin(settings)?;
        let root = root.clone();
        let note = (!notes.is_empty()).then(|| notes.join("; "));
        Ok((Self { root, journal }, note))
    }

    /// Sets weights.
    ///
    /// # Errors
    /// The kernel's word, mostly for want of rights.
    pub fn set(&self, weights: &Weights) -> Result<()> {
        for (node, weight) in weights.iter() {
            restore::write(&self.root, &format!("{FOLDER}/{node}"), &weight.to_string())?;
        }
        Ok(())
    }

    /// Puts back what was there.
    ///
    /// # Errors
    /// It cannot be written; the journal is kept, and the next start tries again.
    pub fn put_back(mut self) -> Result<()> {
        self.journal.put_back()
    }
}

/// Would the kernel take back what the switch holds? Without a table of bandwidths it refuses (ENODEV,
/// `weighted_interleave_auto_store` of mm/mempolicy.c), now as later; to write what is there changes
/// nothing.
fn may_be_automatic(root: &Root, switch: &Setting) -> bool {
    let refused = switch.write(root).err().and_then(|error| error.source);
    refused.and_then(|error| error.raw_os_error()) != Some(libc::ENODEV)
}

impl Drop for Table {
    fn drop(&mut self) {
        // Nobody is left to be told; the journal is kept, and the next start tries again.
        let _ = self.journal.put_back();
    }
}

/// What some CPUs draw from nodes, in GB/s.
#[derive(Clone, Debug, PartialEq)]
pub struct Measured {
    /// Each node alone.
    pub alone: BTreeMap<NodeId, f64>,
    /// Weights in proportion.
    pub weights: Weights,
    /// All nodes by these weights.
    pub together: f64,
    /// The nodes that have some of the CPUs.
    pub near: NodeSet,
    /// The near nodes by their weights; 0 where there are none.
    pub near_gbs: f64,
}

impl Measured {
    /// Reads from the nodes, first from each alone, then from all and from the near ones; the
    /// table holds the weights afterwards. Takes about a quarter of a second for two nodes.
    ///
    /// # Errors
    /// What the kernel said of CPUs, memory or weights.
    pub fn take(
        topology: &Topology,
        cpus: &CpuSet,
        nodes: &NodeSet,
        table: &Table,
    ) -> io::Result<Self> {
        let read = |policy: &KernelPolicy| under::read_gbs(topology, cpus, policy);
        let alone = nodes.iter().map(|node| {
            let gbs = read(&KernelPolicy::bound_to(node))?;
            Ok((node, gbs))
        });
        let alone: BTreeMap<NodeId, f64> = alone.collect::<io::Result<_>>()?;
        let has_cpus = |node: &&crate::topology::NodeInfo| {
            nodes.contains(node.id) && !node.cpus.intersection(cpus).is_empty()
        };
        let places = topology.nodes.iter();
        let near: NodeSet = places.filter(has_cpus).map(|node| node.id).collect();
        let weights = Weights::of_bandwidths(&alone);
        table.set(&weights).map_err(io::Error::other)?;
        let read_by_turns =
            |nodes: &NodeSet| read(&KernelPolicy::new(Mode::WeightedInterleave, nodes.clone()));
        let together = read_by_turns(nodes)?;
        let near_gbs = match near.len() {
            0 => 0.0,
            1 => near
                .first()
                .and_then(|node| alone.get(&node))
                .copied()
                .unwrap_or(0.0),
            _ => read_by_turns(&near)?,
        };
        Ok(Self {
            alone,
            weights,
            together,
            near,
            near_gbs,
        })
    }

    /// Do all nodes give more together than the near ones alone?
    #[must_use]
    pub fn pays(&self) -> bool {
        self.together >= GAIN * self.near_gbs
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Machine {
        folder: tempfile::TempDir,
        root: Root,
    }

    impl Machine {
        fn new(files: &[(&str, &str)]) -> Self {
            let folder = tempfile::tempdir().unwrap();
            let root = Root::new(folder.path().join("machine"));
            let machine = Self { folder, root };
            std::fs::create_dir_all(machine.root.path(FOLDER)).unwrap();
            for (name, text) in files {
                std::fs::write(machine.root.path(&format!("{FOLDER}/{name}")), text).unwrap();
            }
            machine
        }

        fn get(&self, name: &str) -> String {
            let text = self.root.text(&format!("{FOLDER}/{name}")).unwrap();
            text.trim().to_owned()
        }

        fn take(&self, nodes: &str) -> Result<(Table, Option<String>)> {
            let nodes = nodes.parse().unwrap();
            Table::take(&self.root, &self.folder.path().join("run"), &nodes)
        }
    }

    fn weights(text: &str) -> Weights {
        Weights::parse(text, &"0-1".parse().unwrap()).unwrap()
    }

    #[test]
    fn weights_are_put_back_also_after_a_kill() {
        let machine = Machine::new(&[("node0", "1\n"), ("node1", "7\n"), ("auto", "false\n")]);
        let (table, note) = machine.take("0-1").unwrap();
        assert_eq!(note, None);
        table.set(&weights("9:4")).unwrap();
        assert_eq!(
            (machine.get("node0"), machine.get("node1")),
            ("9".into(), "4".into())
        );
        // Somebody else may not, as long as this one lives.
        assert!(machine.take("0-1").is_err());
        table.put_back().unwrap();
        assert_eq!(
            (machine.get("node0"), machine.get("node1")),
            ("1".into(), "7".into())
        );

        let (table, _) = machine.take("0-1").unwrap();
        table.set(&weights("9:4")).unwrap();
        drop(table);
        assert_eq!(machine.get("node1"), "7");
        // As after `kill -9`: the lock goes, nothing is put back.
        let (table, _) = machine.take("0-1").unwrap();
        table.set(&weights("9:4")).unwrap();
        let journal = machine.folder.path().join("run/weights.journal");
        let left = std::fs::read(&journal).unwrap();
        drop(table);
        std::fs::write(&journal, left).unwrap();
        std::fs::write(machine.root.path(&format!("{FOLDER}/node1")), "4").unwrap();
        let (_table, note) = machine.take("0-1").unwrap();
        assert!(note.unwrap().contains("weights"));
        assert_eq!(machine.get("node1"), "7");
    }

    #[test]
    fn automatic_weights_are_switched_on_again_last() {
        for switch in SWITCHES {
            let machine = Machine::new(&[("node0", "1"), ("node1", "1"), (switch, "true\n")]);
            let (table, _) = machine.take("0-1").unwrap();
            let settings =
                std::fs::read_to_string(machine.folder.path().join("run/weights.journal"));
            let settings = settings.unwrap();
            let lines: Vec<&str> = settings.lines().filter(|l| l.starts_with("put")).collect();
            assert_eq!(lines.len(), 3);
            assert!(
                lines[2].ends_with(&format!("{switch}\ttrue")),
                "{}",
                lines[2]
            );
            drop(table);
        }
    }

    #[test]
    fn a_kernel_without_weights_is_told() {
        let machine = Machine::new(&[("node0", "1")]);
        let error = machine.take("0-1").unwrap_err().to_string();
        assert!(error.contains("node1") && error.contains("6.9"), "{error}");
        // Nothing was begun.
        assert!(machine.take("0").is_ok());
    }

    #[test]
    fn all_nodes_pay_where_they_give_more() {
        let measured = |together, near_gbs| Measured {
            alone: BTreeMap::new(),
            weights: weights("1:1"),
            together,
            near: "0".parse().unwrap(),
            near_gbs,
        };
        assert!(measured(50.0, 30.0).pays());
        assert!(!measured(30.5, 30.0).pays());
        assert!(measured(10.0, 0.0).pays());
    }
}
