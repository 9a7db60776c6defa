//! Instructions and use of the last-level caches by user mode and by kernel mode, on service CPUs and on the others:
//! from the laboratory's device where there is one, else from the cores' counters (**never run on hardware**).
//!
//! Kernel mode is system calls, interrupts and the kernel's threads; the CPUs on which it ran tell the work that
//! was placed from the work that programs ask for themselves. Whatever runs is counted, other programs too.

use crate::error::{Error, Result};
use crate::opium::{OpiumDevice, VcpuCounters};
use crate::perf::catalogue::Catalogue;
use crate::perf::counter::{Counters, Mode, Whose};
use crate::root::Root;
use hither_core::ids::CpuId;
use hither_core::opium::vcpu;
use hither_core::perf::events::Role;
use hither_core::set::CpuSet;
use std::ops::AddAssign;

const ROLES: [Role; 3] = [Role::Instructions, Role::References, Role::Misses];

/// Counts of one mode. `None`: this processor does not count it.
#[derive(Clone, Copy, Debug, Default, PartialEq, serde::Serialize)]
pub struct ServiceUse {
    /// Instructions.
    pub instructions: Option<f64>,
    /// Lines that were asked of the last-level cache.
    pub references: Option<f64>,
    /// Of them those that it did not have: fills by memory or another cache.
    pub misses: Option<f64>,
}

/// Counts of some CPUs.
#[derive(Clone, Copy, Debug, Default, PartialEq, serde::Serialize)]
pub struct Modes {
    /// In user mode.
    pub user: ServiceUse,
    /// In kernel mode.
    pub kernel: ServiceUse,
}

/// Counts of a stretch.
#[derive(Clone, Copy, Debug, Default, PartialEq, serde::Serialize)]
pub struct ServiceReading {
    /// How long it was.
    pub seconds: f64,
    /// Instructions of the program in user mode.
    pub program: f64,
    /// On the CPUs that were chosen for the operating system.
    pub service_cpus: Modes,
    /// On all others.
    pub other_cpus: Modes,
}

fn add(own: &mut Option<f64>, more: Option<f64>) {
    if let Some(more) = more {
        *own = Some(own.unwrap_or(0.0) + more);
    }
}

impl AddAssign for ServiceUse {
    fn add_assign(&mut self, more: Self) {
        add(&mut self.instructions, more.instructions);
        add(&mut self.references, more.references);
        add(&mut self.misses, more.misses);
    }
}

impl AddAssign for Modes {
    fn add_assign(&mut self, more: Self) {
        self.user += more.user;
        self.kernel += more.kernel;
    }
}

impl AddAssign for ServiceReading {
    fn add_assign(&mut self, more: Self) {
        self.seconds += more.seconds;
        self.program += more.program;
        self.service_cpus += more.service_cpus;
        self.other_cpus += more.other_cpus;
    }
}

/// Counters that are open.
#[derive(Debug)]
pub struct Meter {
    services: CpuSet,
    source: Source,
    last_ns: u64,
}

#[derive(Debug)]
enum Source {
    Device {
        device: Box<OpiumDevice>,
        before: Vec<VcpuCounters>,
    },
    Cores {
        user: Counters,
        kernel: Counters,
        program: Counters,
    },
}

impl Meter {
    /// Begins to count; `pid` is the program's process.
    ///
    /// # Errors
    /// There is no device, and no counters of cores are to be had.
    pub fn open(root: &Root, services: &CpuSet, all: &CpuSet, pid: i32) -> Result<Self> {
        let source = match OpiumDevice::find(root)? {
            Some(folder) => {
                let device = Box::new(OpiumDevice::open_at(&folder)?);
                let before = vec![VcpuCounters::default(); device.vcpu_count()];
                Source::Device { device, before }
            }
            None => Source::cores(root, all, pid)?,
        };
        let mut meter = Self {
            services: services.clone(),
            source,
            last_ns: 0,
        };
        meter.take()?;
        Ok(meter)
    }

    /// Who counts.
    #[must_use]
    pub fn source(&self) -> &'static str {
        match self.source {
            Source::Device { .. } => "device",
            Source::Cores { .. } => "pmu",
        }
    }

    /// What was counted since the last time.
    ///
    /// # Errors
    /// A CPU went offline.
    pub fn take(&mut self) -> Result<ServiceReading> {
        let now_ns = crate::sys::monotonic_ns();
        let mut reading = ServiceReading {
            seconds: now_ns.saturating_sub(self.last_ns) as f64 / 1e9,
            ..ServiceReading::default()
        };
        self.last_ns = now_ns;
        match &mut self.source {
            Source::Device { device, before } => {
                let nodes = device.node_ids().len();
                for (cpu, before) in (0..).zip(before) {
                    let mut now = VcpuCounters::default();
                    device.read_vcpu(cpu as usize, &mut now);
                    let modes = of_vcpu(&now.since(before), nodes);
                    *before = now;
                    reading.program += modes.user.instructions.unwrap_or(0.0);
                    *side(&mut reading, &self.services, CpuId(cpu)) += modes;
                }
            }
            Source::Cores {
                user,
                kernel,
                program,
            } => {
                type Pick = fn(&mut Modes) -> &mut ServiceUse;
                let modes: [(_, Pick); 2] = [
                    (user.read()?, |modes| &mut modes.user),
                    (kernel.read()?, |modes| &mut modes.kernel),
                ];
                for (interval, of_mode) in modes {
                    for told in &interval.told {
                        if let Whose::Cpu(cpu) = told.whose {
                            count(of_mode(side(&mut reading, &self.services, cpu)), told);
                        }
                    }
                }
                let own = program.read()?.sums(|_| true);
                let own = own.get(&Role::Instructions).map(|estimate| estimate.value);
                reading.program = own.unwrap_or(0.0);
            }
        }
        Ok(reading)
    }
}

impl Source {
    fn cores(root: &Root, all: &CpuSet, pid: i32) -> Result<Self> {
        let catalogue = Catalogue::read(root)?;
        let cpus: Vec<CpuId> = all.iter().collect();
        let open = |mode| Counters::of_cpus_in(root, &catalogue, &cpus, &ROLES, mode);
        let opened = (|| {
            Ok(Self::Cores {
                user: open(Mode::User)?,
                kernel: open(Mode::Kernel)?,
                program: Counters::of_process(root, &catalogue, pid, &[Role::Instructions])?,
            })
        })();
        let mut source = opened.map_err(|error: Error| {
            Error::new(
                error.place,
                format!(
                    "what the program gets done cannot be counted, so that nothing tells whether an arrangement pays: {}",
                    error.reason
                ),
                error.remedy,
            )
        })?;
        if let Self::Cores {
            user,
            kernel,
            program,
        } = &mut source
        {
            for counters in [user, kernel, program] {
                counters.switch(true)?;
            }
        }
        Ok(source)
    }
}

fn side<'a>(reading: &'a mut ServiceReading, services: &CpuSet, cpu: CpuId) -> &'a mut Modes {
    match services.contains(cpu) {
        true => &mut reading.service_cpus,
        false => &mut reading.other_cpus,
    }
}

fn count(into: &mut ServiceUse, told: &crate::perf::counter::EventCount) {
    let value = told.estimate.map(|estimate| estimate.value);
    match told.role {
        Role::Instructions => add(&mut into.instructions, value),
        Role::References => add(&mut into.references, value),
        Role::Misses => add(&mut into.misses, value),
        _ => {}
    }
}

/// Of one vCPU. The device's fills are lines that memory delivered, by kind: user read and write, kernel read and
/// write; a line that another cache handed over is none.
fn of_vcpu(change: &VcpuCounters, nodes: usize) -> Modes {
    let fills = |kinds: [usize; 2]| -> u64 {
        let of = |kind| {
            (0..nodes)
                .map(move |node| change.fills(kind, node))
                .sum::<u64>()
        };
        kinds.into_iter().map(of).sum()
    };
    let kernel = change.at(vcpu::KERNEL_REFERENCES);
    let of_use = |instructions: usize, references: u64, misses: u64| ServiceUse {
        instructions: Some(change.at(instructions) as f64),
        references: Some(references as f64),
        misses: Some(misses as f64),
    };
    Modes {
        user: of_use(
            vcpu::INSTRUCTIONS_USER,
            change.at(vcpu::PRIVATE_MISSES).saturating_sub(kernel),
            fills([0, 1]),
        ),
        kernel: of_use(vcpu::INSTRUCTIONS_KERNEL, kernel, fills([2, 3])),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sides_and_modes_add_up_and_what_is_not_counted_stays_unknown() {
        let counted = |value| ServiceUse {
            instructions: Some(value),
            references: Some(value / 10.0),
            misses: None,
        };
        let services: CpuSet = "2-3".parse().unwrap();
        let mut reading = ServiceReading::default();
        for cpu in 0..4 {
            *side(&mut reading, &services, CpuId(cpu)) += Modes {
                user: counted(100.0),
                kernel: counted(10.0),
            };
        }
        assert_eq!(reading.service_cpus.user, counted(200.0));
        assert_eq!(reading.other_cpus.kernel, counted(20.0));
        assert_eq!(reading.other_cpus.kernel.misses, None);
    }
}
