//! One event on every CPU, each with its ring.

use super::record::{self, PerfSample, Record, field};
use super::refusal::{Asked, PLACE, refusal};
use super::ring::Ring;
use crate::error::{Error, Result};
use crate::root::Root;
use crate::sys::{
    EventAttribute, EventScope, event_flag, open_event, page_bytes, set_event_period, switch_event,
};
use hither_core::ids::CpuId;
use std::fs::File;
use std::io;

/// Memory of all rings together at most: beyond it each has less.
const RINGS_BYTES: u64 = 64 << 20;
/// Largest ring: 21,000 samples of 48 bytes.
const MOST_BYTES: u64 = 1 << 20;
/// Smallest ring. All users may lock as much for each CPU (`kernel.perf_event_mlock_kb`).
const LEAST_BYTES: u64 = 128 << 10;

/// `PERF_TYPE_SOFTWARE` and its page faults.
const SOFTWARE: u32 = 1;
const PAGE_FAULTS: u64 = 2;

/// What to sample.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventSpec {
    /// Words for a sentence: what is sampled.
    pub what: &'static str,
    /// The event.
    pub attribute: EventAttribute,
    /// Some events count only behind another, which is opened first.
    pub leader: Option<EventAttribute>,
}

impl EventSpec {
    /// Every page fault in user mode: the address, the code, the thread, the CPU, the time.
    #[must_use]
    pub fn page_faults() -> Self {
        let mut attribute = EventAttribute::of_user_mode(SOFTWARE, [PAGE_FAULTS, 0, 0]);
        attribute.sample_period = 1;
        attribute.sample_type = field::IP | field::TID | field::TIME | field::ADDR | field::CPU;
        Self {
            what: "page faults",
            attribute,
            leader: None,
        }
    }
}

/// What was read from the rings at once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reading {
    /// Samples.
    pub samples: u64,
    /// Samples that did not fit, or that were in bytes which hold no record.
    pub lost: u64,
    /// Times that the kernel stopped sampling because there was too much of it.
    pub throttled: u64,
}

/// The event on one CPU. The ring goes first, then the event, then its leader.
#[derive(Debug)]
struct Channel {
    ring: Ring,
    event: File,
    leader: Option<File>,
}

/// The event on every CPU.
#[derive(Debug)]
pub struct Sampler {
    channels: Vec<Channel>,
    sample_type: u64,
}

impl Sampler {
    /// Opens the event on these CPUs, switched off.
    pub fn open(root: &Root, spec: &EventSpec, cpus: &[CpuId]) -> Result<Self> {
        let fair = RINGS_BYTES / cpus.len().max(1) as u64;
        let mut bytes = fair.clamp(LEAST_BYTES, MOST_BYTES).next_power_of_two();
        let mut channels = Vec::with_capacity(cpus.len());
        for &cpu in cpus {
            let (event, leader) = open_on(spec, cpu)
                .map_err(|error| refusal(root, spec.what, Asked::Samples, error))?;
            let ring = loop {
                match Ring::new(&event, (bytes / page_bytes()).max(1) as usize) {
                    Err(error)
                        if error.raw_os_error() == Some(libc::EPERM) && bytes > LEAST_BYTES =>
                    {
                        bytes = LEAST_BYTES;
                    }
                    ring => break ring,
                }
            };
            let ring = ring.map_err(|error| no_ring(spec.what, bytes, error))?;
            channels.push(Channel {
                ring,
                event,
                leader,
            });
        }
        Ok(Self {
            channels,
            sample_type: spec.attribute.sample_type,
        })
    }

    /// Would [`Sampler::open`] be allowed? Opens the event on one CPU and closes it again.
    pub fn probe(root: &Root, spec: &EventSpec, cpu: CpuId) -> Result<()> {
        let opened =
            open_on(spec, cpu).map_err(|error| refusal(root, spec.what, Asked::Samples, error))?;
        drop(opened);
        Ok(())
    }

    /// Switches sampling on or off.
    pub fn switch(&self, on: bool) -> Result<()> {
        for channel in &self.channels {
            let first = channel.leader.as_ref().unwrap_or(&channel.event);
            switch_event(first, on).map_err(|error| control("be switched", error))?;
        }
        Ok(())
    }

    /// Sets the period, or the frequency of an event that has one.
    pub fn set_period(&self, period: u64) -> Result<()> {
        for channel in &self.channels {
            set_event_period(&channel.event, period)
                .map_err(|error| control("be given another period", error))?;
        }
        Ok(())
    }

    /// Hands out the samples that are there, CPU by CPU, the oldest of each first.
    pub fn drain(&mut self, mut each: impl FnMut(&PerfSample)) -> Reading {
        let mut reading = Reading::default();
        for channel in &mut self.channels {
            let drained =
                channel
                    .ring
                    .drain(|bytes| match record::decode(bytes, self.sample_type) {
                        Ok(Record::Sample(sample)) => {
                            reading.samples += 1;
                            each(&sample);
                        }
                        Ok(Record::Lost(count)) => reading.lost += count,
                        Ok(Record::Throttled(true)) => reading.throttled += 1,
                        Ok(_) => {}
                        Err(_) => reading.lost += 1,
                    });
            reading.lost += u64::from(drained.broken_bytes > 0);
        }
        reading
    }
}

fn open_on(spec: &EventSpec, cpu: CpuId) -> io::Result<(File, Option<File>)> {
    let scope = EventScope::Cpu(cpu.0);
    let leader = spec.leader.as_ref();
    let leader = leader
        .map(|leader| open_event(leader, scope, None))
        .transpose()?;
    let event = match open_event(&spec.attribute, scope, leader.as_ref()) {
        // Some sources cannot tell the modes apart (AMD IBS on older kernels): samples say
        // themselves in which they were taken.
        Err(error)
            if error.raw_os_error() == Some(libc::EINVAL)
                && spec.attribute.flags & event_flag::EXCLUDE_KERNEL != 0 =>
        {
            let flags = event_flag::EXCLUDE_KERNEL | event_flag::EXCLUDE_HYPERVISOR;
            let mut both = spec.attribute;
            both.flags &= !flags;
            open_event(&both, scope, leader.as_ref()).map_err(|_| error)?
        }
        opened => opened?,
    };
    Ok((event, leader))
}

fn no_ring(what: &str, bytes: u64, error: io::Error) -> Error {
    Error::io(
        PLACE,
        format!(
            "the ring for {what} ({} KiB for each CPU) cannot be had ({error})",
            bytes >> 10
        ),
        "raise kernel.perf_event_mlock_kb, or run hither as root",
        error,
    )
}

fn control(what: &str, error: io::Error) -> Error {
    Error::io(
        PLACE,
        format!("an open event cannot {what} ({error})"),
        "see whether the CPU is still online",
        error,
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys;
    use crate::topology::Topology;
    use std::collections::BTreeMap;

    /// Touches new pages of this process and returns the first's number.
    fn touch(pages: usize) -> (Vec<u8>, u64) {
        // Beyond 32 MiB malloc always maps memory anew, so that its pages are untouched.
        let mut memory = vec![0u8; (40 << 20) + (pages + 1) * 4096];
        let first = (memory.as_ptr() as u64).div_ceil(4096);
        let skip = (first * 4096 - memory.as_ptr() as u64) as usize;
        for page in 0..pages {
            memory[skip + page * 4096] = 1;
        }
        (memory, first)
    }

    #[test]
    fn page_faults_of_this_machine_are_seen() {
        let root = Root::host();
        let topology = Topology::read(&root).unwrap();
        let cpus: Vec<CpuId> = topology.online.iter().collect();
        let spec = EventSpec::page_faults();
        let mut sampler = match Sampler::open(&root, &spec, &cpus) {
            Ok(sampler) => sampler,
            Err(error) => {
                // Not every place allows it; then it says why and what helps.
                assert!(!error.reason.is_empty() && !error.remedy.is_empty());
                assert!(Sampler::probe(&root, &spec, cpus[0]).is_err());
                println!("not measured: {error}");
                return;
            }
        };
        Sampler::probe(&root, &spec, cpus[0]).unwrap();
        let begin_ns = sys::monotonic_ns();
        sampler.switch(true).unwrap();
        let (_memory, first) = touch(256);
        sampler.switch(false).unwrap();
        let end_ns = sys::monotonic_ns();
        let mut seen = BTreeMap::new();
        let own = std::process::id() as i32;
        let reading = sampler.drain(|sample| {
            assert!(sample.is_user, "{sample:?}");
            assert!((begin_ns..=end_ns).contains(&sample.time_ns.unwrap()));
            assert!(cpus.contains(&CpuId(sample.cpu.unwrap())));
            if sample.pid == Some(own) && sample.tid == Some(sys::thread_id()) {
                *seen.entry(sample.address.unwrap() >> 12).or_insert(0) += 1;
            }
        });
        assert_eq!(reading.lost, 0);
        // A huge page would need one fault only.
        let all = (first..first + 256).filter(|page| seen.contains_key(page));
        let huge = topology.transparent_huge_pages.as_deref() == Some("always");
        assert!(huge || all.count() == 256, "{} pages", seen.len());
        assert_eq!(sampler.drain(|_| ()), Reading::default(), "all were taken");
        sampler.set_period(1000).unwrap();
    }

    #[test]
    fn events_that_are_not_there_are_refused_in_words() {
        let root = Root::host();
        let mut spec = EventSpec::page_faults();
        spec.attribute.kind = 0x7fff_fff0;
        let error = Sampler::open(&root, &spec, &[CpuId(0)]).unwrap_err();
        assert!(error.reason.contains("page faults"), "{error}");
        assert!(error.errno().is_some() && !error.remedy.is_empty());
        let mut spec = EventSpec::page_faults();
        spec.leader = Some(spec.attribute);
        spec.leader.as_mut().unwrap().kind = 0x7fff_fff0;
        assert!(Sampler::probe(&root, &spec, CpuId(0)).is_err());
    }
}
