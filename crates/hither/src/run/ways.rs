//! `--ways`: a part of the last-level caches that only the program fills, by resctrl.

use super::place::Placement;
use anyhow::{Context, ensure};
use hither_core::set::CpuSet;
use hither_linux::resctrl::{OwnGroups, Schemata, Tree};
use hither_linux::restore;
use hither_linux::root::Root;
use hither_linux::sys;

/// The group of the program, and that of everybody else.
const PROGRAM: &str = "program";
const REST: &str = "rest";

/// Caches that are divided as long as this lives.
pub struct Divided {
    groups: OwnGroups,
    /// A sentence for a person.
    pub note: String,
}

impl Divided {
    /// Leaves everything as it was.
    ///
    /// # Errors
    /// A group cannot be removed.
    pub fn finish(self) -> anyhow::Result<()> {
        self.groups.stop().context("--ways: putting caches back")
    }
}

/// Gives so many ways of the caches of the program's CPUs to it, and the others to everybody else.
///
/// # Errors
/// The caches cannot be divided here; why, and what would help.
pub fn divide(count: u32, placement: Option<&Placement>) -> anyhow::Result<Divided> {
    let root = Root::host();
    let tree = Tree::find(&root).context("--ways")?;
    let split = tree.info().ways.split(count).context("--ways")?;
    let given = split.priority.count_ones();
    let all = tree.info().ways.count();
    ensure!(
        given == count,
        "--ways {count}: these caches have {all} ways, of which a program can have {given} at the most or the least; \
         ask for that"
    );
    let cpus = match placement {
        Some(placement) => placement.granted.cpus.clone(),
        None => sys::allowed_cpus().context("--ways: asking for the CPUs of this process")?,
    };
    let caches = tree.caches().context("--ways")?;
    let masks = |mask: u32| {
        let own = |shared: &CpuSet| !shared.intersection(&cpus).is_empty();
        let mut masks = Schemata::of_ways(caches.keys().copied(), tree.info().ways.all());
        for (&cache, _) in caches.iter().filter(|(_, shared)| own(shared)) {
            masks.ways.insert(cache, mask);
        }
        masks
    };
    let journals = restore::runtime_folder().context("--ways")?;
    let (mut groups, left) = OwnGroups::take(&tree, &journals).context("--ways")?;
    groups
        .create(PROGRAM, &masks(split.priority))
        .context("--ways")?;
    groups.create(REST, &masks(split.rest)).context("--ways")?;
    let everywhere = caches
        .values()
        .fold(CpuSet::new(), |sum, cpus| sum.union(cpus));
    let whose = match tree.follows_tasks() {
        true => {
            // The program inherits the group from this process.
            let own = std::process::id() as i32;
            groups.assign_cpus(REST, &everywhere).context("--ways")?;
            groups.assign_process(PROGRAM, own).context("--ways")?;
            "the program".to_owned()
        }
        false => {
            let others = everywhere.difference(&cpus);
            groups.assign_cpus(PROGRAM, &cpus).context("--ways")?;
            groups.assign_cpus(REST, &others).context("--ways")?;
            format!("whoever runs on CPUs {cpus}, as the laboratory divides by CPUs,")
        }
    };
    let mut note =
        format!("{whose} fills {given} of {all} ways of its last-level caches, others the rest");
    if !left.is_empty() {
        note += &format!(
            "; groups that a killed hither left were removed: {}",
            left.join(", ")
        );
    }
    Ok(Divided { groups, note })
}
