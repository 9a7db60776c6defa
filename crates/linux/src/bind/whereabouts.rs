//! Where the pages of a program really went, beside the policy that it was given.

use crate::proc::numa_maps;
use crate::root::Root;
use hither_core::bind::KernelPolicy;
use hither_core::ids::NodeId;
use std::collections::BTreeMap;

/// Memory that some processes have made, private and shared, at one moment. Pages of files are left
/// out but for what a process has written of a private mapping: they may have been in memory before, by
/// anybody's policy.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PolicyResidency {
    /// Pages of 4 KiB that are under the policy, per node, ascending.
    pub pages: Vec<(NodeId, u64)>,
    /// Pages of mappings for which the program has set another policy itself.
    pub other_count: u64,
    /// Processes that were looked at.
    pub process_count: usize,
    /// Processes that were not to be read: another user's.
    pub hidden_count: usize,
}

impl PolicyResidency {
    /// All pages under the policy.
    #[must_use]
    pub fn page_count(&self) -> u64 {
        self.pages.iter().map(|(_, count)| count).sum()
    }
}

/// Looks at processes that live; one that ends meanwhile has no pages.
#[must_use]
pub fn look(
    root: &Root,
    pids: impl IntoIterator<Item = i32>,
    policy: &KernelPolicy,
) -> PolicyResidency {
    let mut found = PolicyResidency::default();
    let mut pages: BTreeMap<NodeId, u64> = BTreeMap::new();
    for pid in pids {
        let mappings = match numa_maps::read(root, pid) {
            Ok(mappings) => mappings,
            Err(error) => {
                let is_gone = matches!(error.errno(), Some(libc::ENOENT | libc::ESRCH));
                found.hidden_count += usize::from(!is_gone);
                continue;
            }
        };
        found.process_count += 1;
        for mapping in mappings {
            let is_ours = mapping.policy.parse().as_ref() == Ok(policy);
            for (node, count) in numa_maps::own_totals(&[mapping]) {
                match is_ours {
                    true => *pages.entry(node).or_default() += count,
                    false => found.other_count += count,
                }
            }
        }
    }
    found.pages = pages.into_iter().collect();
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn pages_are_counted_by_policy_and_node() {
        let folder = tempfile::tempdir().unwrap();
        let write = |pid: i32, text: &str| {
            let below = folder.path().join(format!("proc/{pid}"));
            fs::create_dir_all(&below).unwrap();
            fs::write(below.join("numa_maps"), text).unwrap();
        };
        write(
            7,
            "1000 bind:1 anon=5 N0=1 N1=4 kernelpagesize_kB=4\n\
             2000 bind:1 file=/lib/libc.so N0=9 kernelpagesize_kB=4\n\
             2800 bind:1 file=/dev/zero\\040(deleted) dirty=1000 N1=1000 kernelpagesize_kB=4\n\
             3000 interleave:0-1 anon=2 N0=1 N1=1 kernelpagesize_kB=4\n\
             4000 bind:1 huge anon=1 N1=1 kernelpagesize_kB=2048\n",
        );
        write(8, "1000 bind:1 anon=1 N1=1 kernelpagesize_kB=4\n");
        write(9, "nonsense\n");
        let root = Root::new(folder.path());
        let policy = "bind:1".parse().unwrap();
        let found = look(&root, [7, 8, 9, 10], &policy);
        assert_eq!(found.pages, [(NodeId(0), 1), (NodeId(1), 1517)]);
        assert_eq!(
            (found.other_count, found.process_count, found.hidden_count),
            (2, 2, 1)
        );
        assert_eq!(
            (found.page_count(), policy.astray(&found.pages)),
            (1518, Some(1))
        );
    }

    #[test]
    fn a_child_is_where_it_was_put() {
        let mut command = std::process::Command::new("sleep");
        command.arg("60");
        let policy: KernelPolicy = "bind:0".parse().unwrap();
        crate::sys::place_child(&mut command, None, Some(&policy)).unwrap();
        let mut child = command.spawn().unwrap();
        // It gets its pages as it starts.
        let pid = child.id() as i32;
        let looks = std::iter::repeat_with(|| look(&Root::host(), [pid], &policy));
        let found = looks.take(60_000).find(|found| {
            std::thread::sleep(std::time::Duration::from_millis(1));
            found.page_count() > 10
        });
        child.kill().unwrap();
        child.wait().unwrap();
        let found = found.unwrap();
        assert_eq!(
            (policy.astray(&found.pages), found.other_count),
            (Some(0), 0)
        );
    }
}
