//! What some CPUs draw from memory under a policy, all at once: in well under a second, for whoever
//! is about to start a program there.

use super::team::{CHUNK_BYTES, ProbeTask, Team};
use super::{CACHES, LEAST_BYTES, LEAST_SHARE, MOST_BYTES, MOST_SHARE, ProbeSample};
use crate::topology::Topology;
use hither_core::bind::KernelPolicy;
use hither_core::ids::CpuId;
use hither_core::set::CpuSet;
use std::io;
use std::time::Duration;

const ROUNDS: usize = 5;
const SLICE: Duration = Duration::from_millis(10);

/// GB/s that a thread on each of these CPUs reads, all together (BwMemRd), from memory in ordinary
/// pages that it got by `policy`. The median of five looks of 10 ms.
///
/// # Errors
/// What the kernel said of CPUs, nodes, memory or threads.
pub fn read_gbs(topology: &Topology, cpus: &CpuSet, policy: &KernelPolicy) -> io::Result<f64> {
    let cpus: Vec<CpuId> = cpus.iter().collect();
    let caches = topology.domains.iter().filter_map(|domain| domain.size_kb);
    let cache_bytes = caches.max().unwrap_or(0) << 10;
    let wanted = (CACHES * cache_bytes).clamp(LEAST_BYTES, MOST_BYTES);
    let nodes = topology.nodes.iter();
    let nodes = nodes.filter(|node| policy.nodes.contains(node.id));
    let available = nodes.map(|node| node.memory.available_kb() << 10).min();
    let threads = cpus.len().max(1) as u64;
    let share = (wanted / threads).max(LEAST_SHARE);
    let most = available.unwrap_or(0) / MOST_SHARE / threads;
    let task = ProbeTask {
        policy: policy.clone(),
        bytes: (share.min(most) as usize).max(CHUNK_BYTES),
        // The kernel takes turns by pages: few huge ones would say nothing of weights.
        huge: false,
    };
    let team = Team::start(cpus, &task)?;
    let looks: Vec<f64> = (0..ROUNDS).map_while(|_| team.gbs(SLICE)).collect();
    if looks.is_empty() {
        let text = "other programs leave these CPUs no time to measure their memory";
        return Err(io::Error::new(io::ErrorKind::TimedOut, text));
    }
    Ok(ProbeSample::of(looks).median)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::root::Root;
    use crate::sys;

    #[test]
    fn memory_of_this_machine_gives_something() {
        let topology = Topology::read(&Root::host()).unwrap();
        let cpus = sys::allowed_cpus().unwrap().iter().take(1).collect();
        let read = |policy: &str| read_gbs(&topology, &cpus, &policy.parse().unwrap());
        let gbs = read("bind:0").unwrap();
        assert!(gbs > 0.01 && gbs < 10_000.0, "{gbs}");
        assert!(read("bind:1023").is_err());
    }
}
