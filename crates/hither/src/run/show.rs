//! `--show`, `--hardware`, and policies of shared memory: as numactl prints them, since scripts read
//! that.

use super::numactl;
use crate::print;
use crate::print::DASH;
use anyhow::Context;
use hither_core::bind::{KernelPolicy, Mode};
use hither_core::rset::Resources;
use hither_core::set::{CpuSet, IdSet, NodeSet, Numbered};
use hither_linux::bind::shared::{Part, Shared};
use hither_linux::bind::{self, range};
use hither_linux::sys;
use hither_linux::topology::Topology;

/// By what policy this process was started, and why it is not told.
///
/// # Errors
/// The kernel does not tell the CPUs.
pub fn show(resources: &Resources) -> anyhow::Result<(String, Option<String>)> {
    let cpus = sys::allowed_cpus().context("asking for the CPUs")?;
    Ok(shown(resources, &cpus, bind::own_policy()))
}

fn shown(
    resources: &Resources,
    cpus: &CpuSet,
    policy: hither_linux::Result<KernelPolicy>,
) -> (String, Option<String>) {
    let with_cpus = resources.nodes.iter();
    let with_cpus = with_cpus.filter(|node| !node.cpus.intersection(cpus).is_empty());
    let nodes: NodeSet = with_cpus.map(|node| node.id).collect();
    let cpu_lines = format!(
        "physcpubind: {}\ncpubind: {1}\nnodebind: {1}\n",
        numbers(cpus),
        numbers(&nodes)
    );
    let policy = match policy {
        Ok(policy) => policy,
        Err(error) => {
            let text = format!(
                "policy: {DASH}\npreferred node: {DASH}\n{cpu_lines}membind: {DASH}\npreferred: {DASH}\n"
            );
            return (text, Some(error.to_string()));
        }
    };
    let first = || policy.nodes.first().map_or(0, |node| node.0);
    let next = || sys::next_interleaved().map_or_else(|_| first(), |node| node.0);
    let preferred = match policy.mode {
        Mode::Default | Mode::Local => "current".to_owned(),
        Mode::Preferred | Mode::Bind => first().to_string(),
        Mode::PreferredMany => format!("{} (preferred-many)", first()),
        Mode::Interleave => format!("{} (interleave next)", next()),
        Mode::WeightedInterleave => format!("{} (weighted interleave next)", next()),
    };
    let mut text = format!(
        "policy: {}\npreferred node: {preferred}\n",
        name(policy.mode)
    );
    if policy.mode == Mode::Interleave {
        text += &format!("interleavemask: {}\n", numbers(&policy.nodes));
        text += &format!("interleavenode: {}\n", next());
    }
    text += &cpu_lines;
    let bound = match policy.mode {
        Mode::Bind => &policy.nodes,
        _ => &resources.usable().nodes,
    };
    text += &format!("membind: {}\n", numbers(bound));
    text += &format!("preferred: {}\n", numbers(&policy.nodes));
    (text, None)
}

/// What numactl calls a mode.
fn name(mode: Mode) -> &'static str {
    match mode {
        Mode::Preferred => "preferred",
        Mode::PreferredMany => "preferred-many",
        other => other.name(),
    }
}

/// `0 1 5 `, with the space at the end.
fn numbers<T: Numbered>(set: &IdSet<T>) -> String {
    set.iter().map(|id| format!("{} ", id.number())).collect()
}

/// Nodes, their CPUs and memory, and distances. For programs there is `hither topo --json`.
#[must_use]
pub fn hardware(topology: &Topology) -> String {
    let nodes = &topology.nodes;
    let ids: hither_core::set::NodeSet = nodes.iter().map(|node| node.id).collect();
    let mut text = format!("available: {} nodes ({ids})\n", nodes.len());
    for node in nodes {
        let cpus: String = node.cpus.iter().map(|cpu| format!(" {}", cpu.0)).collect();
        let number = node.id.0;
        text += &format!("node {number} cpus:{cpus}\n");
        text += &format!("node {number} size: {} MB\n", node.memory.total_kb >> 10);
        text += &format!("node {number} free: {} MB\n", node.memory.free_kb >> 10);
    }
    if topology.distances.is_empty() {
        return text + "No distance information available.\n";
    }
    let cell = |number: u32| format!("{number:>3} ");
    let heads: String = nodes.iter().map(|node| cell(node.id.0)).collect();
    text += &format!("node distances:\nnode {heads}\n");
    for (node, row) in nodes.iter().zip(&topology.distances) {
        let row: String = row.iter().map(|&distance| cell(distance)).collect();
        text += &format!("{:>3}: {row}\n", node.id.0);
    }
    text
}

/// Does to shared memory what was asked. Returns what was printed for programs.
///
/// # Errors
/// What cannot be opened or is refused; pages that are not where the policy wants them, with
/// `verify`.
pub fn shared(
    options: &numactl::Shared,
    policy: Option<&KernelPolicy>,
    verify: bool,
) -> anyhow::Result<String> {
    let part = Part {
        offset: options.offset.unwrap_or(0),
        length: options.length,
        mode: options.shmmode.unwrap_or(0o600),
        is_huge: options.huge,
        id: options.shmid.unwrap_or(0),
    };
    // What is refused must leave nothing behind that was made for it.
    let tried = KernelPolicy::new(Mode::Default, NodeSet::new());
    let asks = options.dump || options.dump_nodes || verify;
    if let Some(policy) = policy.or(asks.then_some(&tried)) {
        range::try_out(policy)?;
    }
    let shared = match (&options.file, &options.shm) {
        (Some(file), _) => Shared::open_file(file, &part)?,
        (None, Some(key)) => Shared::open_segment(key, &part)?,
        (None, None) => return Ok(String::new()),
    };
    for made in &shared.made {
        print::err_lines(&format!("{made}\n"));
    }
    if let Some(policy) = policy {
        shared.bind(policy, options.strict)?;
    }
    // As numactl: to look where pages are they must be there.
    if options.touch || verify {
        shared.touch()?;
    }
    let mut text = String::new();
    if options.dump {
        for (run, policy) in shared.policies()? {
            if policy.mode != Mode::Default {
                let (name, nodes) = (name(policy.mode), numbers(&policy.nodes));
                text += &format!("{:016x}-{:016x}: {name} : {nodes}\n", run.start, run.end);
            }
        }
    }
    if options.dump_nodes {
        for (run, node) in shared.nodes()? {
            text += &format!("{:016x}-{:016x}: {}\n", run.start, run.end, node.0);
        }
    }
    if let (true, Some(policy)) = (verify, policy) {
        let runs = shared.nodes()?;
        let strays = runs
            .iter()
            .filter(|(_, node)| !policy.nodes.contains(*node));
        if let (true, Some((run, node))) = (policy.mode.has_nodes(), strays.clone().next()) {
            let pages: u64 = strays.map(|(run, _)| (run.end - run.start) / 4096).sum();
            anyhow::bail!(
                "--verify: {pages} pages are not where `{policy}` wants them, the first at byte \
                 {:#x} on {node}; pages that were there before stay where they are",
                run.start
            );
        }
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use hither_linux::root::Root;

    #[test]
    fn a_policy_that_nobody_tells_is_a_dash_with_the_reason() {
        let root = Root::host();
        let topology = Topology::read(&root).unwrap();
        let resources = hither_linux::resources::read(&root, &topology).unwrap();
        let untold = || hither_linux::Error::new("get_mempolicy", "does not tell", "");
        let (text, why) = shown(&resources, &"0".parse().unwrap(), Err(untold()));
        let head = "policy: –\npreferred node: –\nphyscpubind: 0 \ncpubind: ";
        assert!(text.starts_with(head), "{text}");
        assert!(text.ends_with("membind: –\npreferred: –\n"), "{text}");
        assert_eq!(why.unwrap(), "get_mempolicy: does not tell");
    }

    #[test]
    fn hardware_is_printed_as_numactl_prints_it() {
        let folder = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../../fixtures/machines/sparse-nodes"
        );
        let topology = Topology::read(&Root::new(folder)).unwrap();
        let text = hardware(&topology);
        assert!(
            text.starts_with("available: 3 nodes (0,8,252)\nnode 0 cpus: 0 1 2 3\n"),
            "{text}"
        );
        assert!(
            text.contains("node distances:\nnode   0   8 252 \n  0:  10 "),
            "{text}"
        );
    }
}
