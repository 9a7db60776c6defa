//! What each memory allows: from the figures of `hither probe`.

use crate::draw::Ceiling;
use crate::probe;
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;

/// What all CPUs together can do with the memory of each node.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Roofs {
    /// By node, ascending: its number, and the roof.
    pub memories: Vec<(u64, Ceiling)>,
}

impl Roofs {
    /// Of a `hither.probe/1`.
    ///
    /// # Errors
    /// The file cannot be read, or has no roofline.
    pub fn read(path: &Path) -> anyhow::Result<Self> {
        let roofs = Self::of(&probe::read("--probe", path)?);
        if roofs.memories.is_empty() {
            return Err(probe::without_roofline("--probe", path));
        }
        Ok(roofs)
    }

    /// The peak is the sum over the nodes with CPUs, and so is what they read from the memory of a node.
    fn of(probe: &Value) -> Self {
        let mut memories = BTreeMap::<u64, Ceiling>::new();
        for roof in probe["roofline"].as_array().into_iter().flatten() {
            let median = |field: &str| roof[field]["median"].as_f64().filter(|&value| value > 0.0);
            let (Some(to), Some(gflops), Some(gbs)) =
                (roof["to"].as_u64(), median("gflops"), median("gbs"))
            else {
                continue;
            };
            if roof["threads"] == "all" {
                let sum = memories.entry(to).or_insert(Ceiling {
                    gflops: 0.0,
                    gbs: 0.0,
                });
                sum.gflops += gflops;
                sum.gbs += gbs;
            }
        }
        Self {
            memories: memories.into_iter().collect(),
        }
    }

    /// GFLOP/s that the memory of a node allows at so many operations a byte.
    pub fn at(&self, node: u64, flops_per_byte: f64) -> Option<f64> {
        let roof = self.memories.iter().find(|(of, _)| *of == node);
        roof.map(|(_, roof)| roof.at(flops_per_byte))
    }

    /// Is a program of this intensity bound by the memory of every node?
    pub fn is_memory_bound(&self, flops_per_byte: f64) -> Option<bool> {
        let ridges = self.memories.iter().map(|(_, roof)| roof.ridge());
        let least = ridges.reduce(f64::min)?;
        Some(flops_per_byte < least)
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use serde_json::json;

    /// One node with CPUs, whose own memory is slow, and one without, whose memory is fast.
    pub fn roofs() -> Roofs {
        let roof = |to: u64, threads: &str, gbs: f64| {
            json!({"from": 0, "to": to, "threads": threads,
                   "gflops": {"median": 400.0}, "gbs": {"median": gbs}})
        };
        let probe = json!({"roofline": [
            roof(0, "one", 8.0), roof(0, "all", 80.0), roof(1, "all", 320.0),
            {"from": 0, "to": 2, "threads": "all", "gflops": null, "gbs": {"median": 5.0}},
        ]});
        Roofs::of(&probe)
    }

    #[test]
    fn each_memory_has_its_roof() {
        let roofs = roofs();
        assert_eq!(roofs.memories.len(), 2);
        assert_eq!(
            (roofs.at(0, 0.5), roofs.at(1, 0.5)),
            (Some(40.0), Some(160.0))
        );
        assert_eq!((roofs.at(0, 50.0), roofs.at(7, 1.0)), (Some(400.0), None));
        assert_eq!(roofs.is_memory_bound(1.0), Some(true));
        assert_eq!(roofs.is_memory_bound(2.0), Some(false));
        assert_eq!(Roofs::default().is_memory_bound(1.0), None);
    }
}
