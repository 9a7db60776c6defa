//! A folder of resctrl's shape for programs of the guest, as the emulated processor has no resctrl: groups say
//! which CPUs may fill which ways of their last-level cache, and the device's way masks follow.
//!
//! The kernel's own masks follow the task that runs; here nobody tells the device of that, so there is no
//! file `tasks` in the root, and groups go by `cpus_list` alone. A group that somebody makes is a plain
//! folder, whose files its maker writes (`hither_linux::resctrl` does so). What cannot be understood leaves
//! the masks as they are, and is said in `info/last_cmd_status`, where the kernel says it, too.
//!
//! The agent is told of changes by inotify, and does nothing until then: to look at the folder every few
//! milliseconds would take time and caches from every program that is measured.

use super::{Result, doing};
use crate::os::Changes;
use hither_core::ids::CpuId;
use hither_core::machine::Machine;
use hither_core::set::CpuSet;
use hither_linux::resctrl::{LAB_CPUS, LAB_FOLDER, Schemata, Tree};
use hither_linux::root::Root;
use std::fs;
use std::os::fd::{AsRawFd, RawFd};
use std::path::PathBuf;

/// What came of the last change.
const STATUS: &str = "info/last_cmd_status";

/// The folder, and who may fill what by it.
#[derive(Debug)]
pub struct Feeder {
    root: Root,
    folder: PathBuf,
    changes: Changes,
    /// What is in it at first.
    files: Vec<(&'static str, String)>,
    /// All ways.
    all: u32,
    cpu_count: usize,
}

impl Feeder {
    /// Makes the folder for this machine, below the root folder. Caches go by the machine file's domains, and
    /// have the ways that the smallest has.
    pub fn offer(root: &Root, machine: &Machine) -> Result<Self> {
        let domains = &machine.domains;
        let ways = domains.iter().map(|domain| domain.cache.ways).min();
        let all = u32::MAX >> (u32::BITS - ways.unwrap_or(1).clamp(1, u32::BITS));
        let caches = domains.iter().map(|domain| domain.id.0);
        let cpus: CpuSet = (0..machine.cpu_count() as u32).map(CpuId).collect();
        let lines = domains.iter();
        let lines = lines.map(|domain| format!("{}={}\n", domain.id.0, domain.cpus));
        let feeder = Self {
            root: root.clone(),
            folder: root.path(LAB_FOLDER),
            changes: Changes::new().map_err(doing("watching folders"))?,
            files: vec![
                (LAB_CPUS, lines.collect()),
                ("info/L3/cbm_mask", format!("{all:x}\n")),
                ("info/L3/min_cbm_bits", "1\n".to_owned()),
                // As most processors have; nothing here counts groups.
                ("info/L3/num_closids", "16\n".to_owned()),
                ("info/L3/shareable_bits", "0\n".to_owned()),
                (STATUS, "ok\n".to_owned()),
                ("cpus_list", format!("{cpus}\n")),
                ("schemata", Schemata::of_ways(caches, all).to_string()),
            ],
            all,
            cpu_count: machine.cpu_count(),
        };
        feeder.fill()?;
        Ok(feeder)
    }

    /// Makes the folder, or writes everything in it anew.
    fn fill(&self) -> Result<()> {
        let making = || doing(format!("making /{LAB_FOLDER}"));
        fs::create_dir_all(self.folder.join("info/L3")).map_err(making())?;
        for (below, text) in &self.files {
            fs::write(self.folder.join(below), text).map_err(making())?;
        }
        self.changes.watch(&self.folder).map_err(making())
    }

    /// Can be read once something has changed: then [`Feeder::feed`] is due.
    pub fn fd(&self) -> RawFd {
        self.changes.as_raw_fd()
    }

    /// Reads all groups and sets each CPU's mask, 0 for all ways.
    pub fn feed(&self, mut set: impl FnMut(usize, u32)) {
        self.changes.forget();
        let said = match self.masks() {
            Ok(masks) => {
                for (cpu, mask) in masks.into_iter().enumerate() {
                    set(cpu, mask);
                }
                "ok".to_owned()
            }
            Err(reason) => reason,
        };
        // Who removes the folder is not told.
        let _ = fs::write(self.folder.join(STATUS), format!("{said}\n"));
    }

    /// Everything as it was at first, for the next run.
    pub fn reset(&self, set: impl FnMut(usize, u32)) -> Result<()> {
        for group in self.groups() {
            fs::remove_dir_all(group).map_err(doing("removing a group"))?;
        }
        self.fill()?;
        self.feed(set);
        Ok(())
    }

    /// The groups' folders.
    fn groups(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(&self.folder).into_iter().flatten().flatten();
        let groups = entries.filter(|entry| {
            let is_folder = entry.file_type().is_ok_and(|kind| kind.is_dir());
            is_folder && entry.file_name() != "info"
        });
        groups.map(|entry| entry.path()).collect()
    }

    /// By CPU.
    fn masks(&self) -> Result<Vec<u32>> {
        let told = |error: hither_linux::Error| error.to_string();
        let tree = Tree::open(&self.root, LAB_FOLDER).map_err(told)?;
        // Watched before they are read: what comes later is told.
        for group in self.groups() {
            // One that is gone again has no masks.
            let _ = self.changes.watch(&group);
        }
        let groups = tree.groups().map_err(told)?;
        let mut masks = vec![0; self.cpu_count];
        for (cache, cpus) in tree.caches().map_err(told)? {
            for cpu in cpus.iter() {
                let group = groups.iter().find(|group| group.cpus.contains(cpu));
                let schemata = group.map_or(tree.whole(), |group| &group.schemata);
                let mask = schemata.ways.get(&cache).copied().unwrap_or(self.all);
                let limits = &tree.info().ways;
                (limits.check(mask)).map_err(|error| format!("of cache {cache}: {error}"))?;
                if let Some(own) = masks.get_mut(cpu.0 as usize) {
                    *own = if mask == self.all { 0 } else { mask };
                }
            }
        }
        Ok(masks)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::os::{Interest, wait};
    use hither_core::machine::{parse::parse, scale::scale};
    use hither_linux::resctrl::OwnGroups;
    use std::time::Duration;

    struct Guest {
        folder: tempfile::TempDir,
        root: Root,
        feeder: Feeder,
    }

    impl Guest {
        /// Eight CPUs in two domains or more.
        fn new() -> Self {
            let whole = parse(include_str!("../../../../machines/opteron8385.toml")).unwrap();
            let machine = scale(&whole, 8).unwrap();
            assert_eq!(machine.domains[1].cpus.first(), Some(CpuId(2)));
            let folder = tempfile::tempdir().unwrap();
            let root = Root::new(folder.path());
            let feeder = Feeder::offer(&root, &machine).unwrap();
            Self {
                folder,
                root,
                feeder,
            }
        }

        fn is_due_within(&self, limit: Duration) -> bool {
            let fd = self.feeder.fd();
            let ready = wait(&[Interest { fd, write: false }], Some(limit));
            ready.unwrap()[0].read
        }

        /// A child that another test forks holds the written file open until its exec, and the
        /// file counts as closed only then.
        fn is_due(&self) -> bool {
            self.is_due_within(Duration::from_secs(10))
        }

        /// Masks after what has changed; those of CPUs that none was set for are `None`.
        fn fed(&self) -> [Option<u32>; 8] {
            let mut masks = [None; 8];
            self.feeder.feed(|cpu, mask| masks[cpu] = Some(mask));
            masks
        }

        fn put(&self, below: &str, text: &str) {
            let path = self.feeder.folder.join(below);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }

        fn said(&self) -> String {
            fs::read_to_string(self.feeder.folder.join(STATUS)).unwrap()
        }
    }

    #[test]
    fn what_hither_asks_of_resctrl_reaches_the_device() {
        let guest = Guest::new();
        let all = guest.feeder.all;
        assert_eq!(guest.fed(), [Some(0); 8]);
        assert!(!guest.is_due_within(Duration::ZERO));
        let tree = Tree::find(&guest.root).unwrap();
        assert!(!tree.follows_tasks());
        let caches: Vec<u32> = tree.whole().ways.keys().copied().collect();
        let journals = guest.folder.path().join("journals");
        let (mut own, _) = OwnGroups::take(&tree, &journals).unwrap();
        let split = tree.info().ways.split(3).unwrap();
        own.create("fast", &Schemata::of_ways(caches.clone(), split.priority))
            .unwrap();
        own.create("rest", &Schemata::of_ways(caches, split.rest))
            .unwrap();
        assert!(guest.is_due());
        assert_eq!(guest.fed(), [Some(0); 8], "nobody has CPUs yet");
        own.assign_cpus("fast", &"0-1".parse().unwrap()).unwrap();
        own.assign_cpus("rest", &"2-6".parse().unwrap()).unwrap();
        assert!(guest.is_due(), "a file in a group's folder was written");
        let (fast, rest) = (Some(split.priority), Some(split.rest));
        let wanted = [fast, fast, rest, rest, rest, rest, rest, Some(0)];
        assert_eq!(guest.fed(), wanted);
        assert_eq!(guest.said(), "ok\n");
        // Of one cache alone; all ways are no mask.
        let second = Schemata {
            ways: [(0, 1), (1, all)].into(),
            ..Schemata::default()
        };
        own.write("rest", &second).unwrap();
        assert_eq!(guest.fed()[2], Some(0));
        own.stop().unwrap();
        assert!(guest.is_due());
        assert_eq!(guest.fed(), [Some(0); 8]);
    }

    #[test]
    fn what_is_not_understood_changes_nothing_and_is_said() {
        let guest = Guest::new();
        guest.put("a/schemata", "L3:0=3\n");
        guest.put("a/cpus_list", "0\n");
        assert_eq!(guest.fed()[..2], [Some(3), Some(0)]);
        for (text, words) in [
            ("L3:0=5\n", "no run of ways"),
            ("L3:0\n", "not understood"),
            ("L3DATA:0=3\n", "without `-o cdp`"),
        ] {
            guest.put("a/schemata", text);
            assert!(guest.is_due());
            assert_eq!(guest.fed(), [None; 8]);
            assert!(guest.said().contains(words), "{}", guest.said());
        }
        // The root's masks are for who is in no group; what is there besides is left alone.
        guest.put("a/schemata", "L3:0=3\n");
        guest.put("schemata", "L3:0=c;1=c\n");
        guest.put("notes", "");
        let fed = guest.fed();
        assert_eq!((fed[0], fed[1], fed[2]), (Some(3), Some(0xc), Some(0xc)));
        let mut masks = [None; 8];
        let reset = guest.feeder.reset(|cpu, mask| masks[cpu] = Some(mask));
        reset.unwrap();
        assert_eq!(masks, [Some(0); 8]);
        assert!(!guest.feeder.folder.join("a").exists());
        assert_eq!(guest.said(), "ok\n");
        // A program may have removed it all.
        fs::remove_dir_all(&guest.feeder.folder).unwrap();
        assert_eq!(guest.fed(), [None; 8]);
        guest.feeder.reset(|_, _| ()).unwrap();
        guest.put("b/schemata", "L3:0=1\n");
        assert!(guest.is_due());
    }
}
