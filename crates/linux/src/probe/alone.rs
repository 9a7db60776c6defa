//! One kind of work alone, by one thread and in memory of a given size: to be compared with what
//! another program measures in the same.

use super::team::{CHUNK_BYTES, ProbeTask, Team};
use super::{Probe, ProbeSample, ProbeWork, Settings};
use crate::topology::Topology;
use hither_core::bind::KernelPolicy;
use hither_core::ids::{CpuId, NodeId};
use std::io;

/// Of a node's available memory at most this share is used.
const MOST_SHARE: u64 = 2;

/// What is worked on.
#[derive(Clone, Copy, Debug)]
pub struct Memory {
    /// All of it: source and target of a copy together. Without it, as much as for latencies.
    pub bytes: Option<u64>,
    /// In huge pages; without it, where the kernel has some.
    pub huge: Option<bool>,
}

/// Bandwidth of one kind of work.
#[derive(Clone, Copy, Debug)]
pub struct Alone {
    /// What the thread did.
    pub work: ProbeWork,
    /// In GB/s; `None` where the thread was given no time.
    pub gbs: Option<ProbeSample>,
}

/// What was measured, and where.
#[derive(Clone, Debug)]
pub struct Report {
    /// On this CPU.
    pub cpu: CpuId,
    /// In this node's memory, the nearest.
    pub node: NodeId,
    /// So much of it.
    pub bytes: u64,
    /// Whether it was in huge pages.
    pub huge: bool,
    /// One for each kind of work, as they were asked for.
    pub works: Vec<Alone>,
}

/// Measures one kind of work after the other, by a thread on the first CPU that may be used.
/// `progress` is told how many of how many are done, and which is next.
///
/// # Errors
/// No CPU that may be used; memory that is too small to be counted or larger than half of what is
/// free (`InvalidInput`); what the kernel said.
pub fn measure(
    topology: &Topology,
    settings: &Settings,
    works: &[ProbeWork],
    memory: &Memory,
    progress: &mut dyn FnMut(usize, usize, &str),
) -> io::Result<Report> {
    let mut probe = Probe::new(topology, settings, progress)?;
    let place = probe.places[0].clone();
    let available = probe.available[place.near];
    let bytes = memory.bytes.unwrap_or_else(|| probe.bytes(place.near));
    let (least, most) = (2 * CHUNK_BYTES as u64, available / MOST_SHARE);
    if !(least..=most).contains(&bytes) {
        let text = format!(
            "{} KiB cannot be measured: {} KiB at least, and {} MiB at most, half of what {} has available",
            bytes >> 10,
            least >> 10,
            most >> 20,
            probe.memory[place.near]
        );
        return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
    }
    probe.share_among(works.len());
    let (cpu, node) = (place.cpus[0], probe.memory[place.near]);
    let huge = memory.huge.unwrap_or(probe.huge);
    let task = ProbeTask {
        policy: KernelPolicy::bound_to(node),
        bytes: bytes as usize,
        huge,
    };
    let team = Team::start(vec![cpu], &task)?;
    let rounds = probe.rounds;
    let works = works.iter().map(|&work| {
        probe.begin(&format!("{}, {cpu}, memory of {node}", work.name()));
        team.turn_to(work);
        let gbs = rounds.of_some(|slice| team.gbs(slice));
        Alone { work, gbs }
    });
    Ok(Report {
        cpu,
        node,
        bytes,
        huge,
        works: works.collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::root::Root;
    use std::time::Duration;

    fn measured(bytes: Option<u64>) -> io::Result<Report> {
        let settings = Settings {
            budget: Duration::from_millis(20),
            rounds: 2,
            cpus: crate::sys::allowed_cpus().unwrap(),
            caches: Vec::new(),
        };
        let memory = Memory {
            bytes,
            huge: Some(false),
        };
        let works = [ProbeWork::CopyStreaming, ProbeWork::Read];
        let mut told = 0;
        let report = measure(
            &Topology::read(&Root::host()).unwrap(),
            &settings,
            &works,
            &memory,
            &mut |_, total, _| {
                assert_eq!(total, 2);
                told += 1;
            },
        )?;
        assert_eq!(told, 2);
        Ok(report)
    }

    #[test]
    fn what_is_asked_for_is_measured_in_memory_of_that_size() {
        // On a busy machine the one thread may be given no time in slices as short as these.
        let is_whole = |report: &Report| {
            report
                .works
                .iter()
                .all(|one| one.gbs.is_some_and(|gbs| gbs.median > 0.01))
        };
        let mut reports = (0..200).map(|_| measured(Some(2 << 20)).unwrap());
        let report = reports.find(is_whole).expect("nothing was measured");
        let works: Vec<ProbeWork> = report.works.iter().map(|one| one.work).collect();
        assert_eq!(works, [ProbeWork::CopyStreaming, ProbeWork::Read]);
        assert_eq!((report.bytes, report.huge), (2 << 20, false));
    }

    #[test]
    fn sizes_that_cannot_be_measured_are_refused() {
        for bytes in [0, CHUNK_BYTES as u64, 1 << 60] {
            let error = measured(Some(bytes)).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
            assert!(error.to_string().contains("512 KiB at least"), "{error}");
        }
    }
}
