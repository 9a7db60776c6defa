//! Ages of memory, as the multi-generational LRU tells them: made at a steady pace, and read. Only
//! where they are asked for, since the kernel's own look is seldom, and one for hither costs CPU time.

use hither_core::ids::NodeId;
use hither_core::snapshot::Evidence;
use hither_linux::counters::lru_gen::{self, Ages, List};
use hither_linux::root::Root;

/// Makes generations and reads them.
pub struct Ageing {
    root: Root,
    every_us: u64,
    aged_us: Option<u64>,
    lists: Evidence<Vec<List>>,
}

impl Ageing {
    /// Begins to, with a generation so often.
    ///
    /// # Errors
    /// The kernel tells no generations here: why, and what would help.
    pub fn open(root: &Root, every_us: u64) -> hither_linux::Result<Self> {
        lru_gen::check(root)?;
        Ok(Self {
            root: root.clone(),
            every_us,
            aged_us: None,
            lists: Evidence::unknown("it was not read yet"),
        })
    }

    /// Makes a generation if it is time to, and reads. Aged first: what was used since the last time
    /// is known only then.
    pub fn read(&mut self, at_us: u64) {
        let aged_us = self.aged_us;
        let is_due = aged_us.is_none_or(|aged_us| at_us.saturating_sub(aged_us) >= self.every_us);
        let read = lru_gen::read(&self.root).and_then(|lists| {
            if !is_due {
                return Ok(lists);
            }
            self.aged_us = Some(at_us);
            lru_gen::age(&self.root, &lists)?;
            lru_gen::read(&self.root)
        });
        self.lists = match read {
            Ok(lists) => Evidence::measured(lists, "lru_gen"),
            Err(error) => Evidence::unknown(error.to_string()),
        };
    }

    /// By node position.
    pub fn by_node(&self, nodes: &[NodeId]) -> Evidence<Vec<Ages>> {
        let of = |lists: &[List], node: &NodeId| {
            Ages::of(lists.iter().filter(|list| list.node == *node))
        };
        let all = |lists: Vec<List>| nodes.iter().map(|node| of(&lists, node)).collect();
        self.lists.clone().map(all)
    }

    /// Of a control group, all nodes together.
    pub fn of_group(&self, group: &str) -> Evidence<Ages> {
        let of = |lists: Vec<List>| Ages::of(lru_gen::of_group(&lists, group).into_iter());
        self.lists.clone().map(of)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    const LRU_GEN: &str = "sys/kernel/debug/lru_gen";
    const TEXT: &str = "\
memcg 1 /
 node 0
 1 300000 256 0
 2 1000 512 256
 node 1
 1 9000000 256 0
memcg 7 /a
 node 1
 5 10 0 1024
";

    fn machine() -> (tempfile::TempDir, Root) {
        let folder = tempfile::tempdir().unwrap();
        for (below, text) in [
            ("sys/kernel/mm/lru_gen/enabled", "0x0007\n"),
            (LRU_GEN, TEXT),
        ] {
            let path = folder.path().join(below);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let root = Root::new(folder.path());
        (folder, root)
    }

    #[test]
    fn memory_is_told_by_node_and_group() {
        let (_folder, root) = machine();
        let mut ageing = Ageing::open(&root, 1_000_000).unwrap();
        assert!(!ageing.by_node(&[NodeId(0)]).is_known());
        // Not due, so that the file stays as it is.
        ageing.aged_us = Some(5);
        ageing.read(1_000_004);
        let nodes = ageing.by_node(&[NodeId(0), NodeId(1), NodeId(2)]);
        let sums = |ages: &Ages| (0..6).map(|class| ages.pages(class)).sum::<u64>();
        let sums: Vec<u64> = nodes.value().unwrap().iter().map(sums).collect();
        assert_eq!(sums, [1024, 1280, 0]);
        let group = ageing.of_group("/a/b");
        assert_eq!(group.value().unwrap().pages(0), 1024);
    }

    #[test]
    fn generations_are_made_at_their_pace() {
        let (_folder, root) = machine();
        let asked = || fs::read_to_string(root.path(LRU_GEN)).unwrap();
        let mut ageing = Ageing::open(&root, 1_000_000).unwrap();
        ageing.read(7);
        assert!(asked().starts_with("+ 1 0 2 1 1\n+ 1 1 1 1 1\n+ 7 1 5 1 1\n"));
        // What was asked for took the place of the file's text here, which cannot be read any more.
        assert!(!ageing.of_group("/").is_known());
        fs::write(root.path(LRU_GEN), TEXT).unwrap();
        ageing.read(1_000_006);
        assert_eq!(asked(), TEXT);
        ageing.read(1_000_007);
        assert!(asked().starts_with("+ "));
    }

    #[test]
    fn without_generations_it_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let error = Ageing::open(&Root::new(folder.path()), 1).err().unwrap();
        assert!(error.to_string().contains("CONFIG_LRU_GEN"), "{error}");
    }
}
