//! Work of the operating system on chosen CPUs: found, moved there and put back.
//!
//! What the kernel lets be placed, each by a setting of its own ([`find`]): interrupts of disks and network cards, the
//! CPUs that receive and send a queue's packets (RPS, XPS), where block requests are completed, unbound
//! workqueues, and threads of the kernel that are not tied to a CPU, with those that submit for io_uring. What each
//! was is noted in the restore journal before anything changes, so that all of it is put back, also after a kill.
//!
//! Left alone: threads that the kernel ties to a CPU (`PF_NO_SETAFFINITY`), interrupts that it manages itself
//! (one a queue, as NVMe has; writing to them is refused, and told), cards of other network namespaces, and what is not
//! known to serve files or networks.

pub mod meter;

use crate::error::Result;
use crate::partition::around::print_mask;
use crate::proc::stat::{self, Stat};
use crate::restore::{Journal, Setting};
use crate::root::Root;
use hither_core::services::Class;
use hither_core::set::CpuSet;
use std::path::Path;

/// Name of the journal.
pub const JOURNAL: &str = "services";
const WORKQUEUES: &str = "sys/devices/virtual/workqueue";
const DEVICES: &str = "sys/bus/pci/devices";

/// What a piece of work is to the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// An interrupt of a device.
    Interrupt,
    /// CPUs that receive a queue's packets (RPS).
    Receive,
    /// CPUs that send by a queue (XPS).
    Send,
    /// Where a disk's requests are completed: on the CPU that is interrupted, not on the one that asked.
    Completion,
    /// An unbound workqueue, or all of them.
    Workqueue,
    /// A thread.
    Thread,
}

impl Kind {
    /// Its word.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Interrupt => "interrupt",
            Self::Receive => "receive",
            Self::Send => "send",
            Self::Completion => "completion",
            Self::Workqueue => "workqueue",
            Self::Thread => "thread",
        }
    }
}

/// A piece of work, as it is now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceWork {
    /// What it is.
    pub kind: Kind,
    /// Its name, for a person: others chose it.
    pub name: String,
    /// Whose work.
    pub class: Class,
    /// What says where it is done, and what it says now.
    pub setting: Setting,
}

impl ServiceWork {
    /// What the setting shall say; `None` where it stays: one CPU alone receives what it is interrupted for.
    #[must_use]
    pub fn wanted(&self, cpus: &CpuSet) -> Option<String> {
        match self.kind {
            Kind::Interrupt | Kind::Thread => Some(cpus.to_string()),
            Kind::Receive => (cpus.len() > 1).then(|| print_mask(cpus)),
            Kind::Send | Kind::Workqueue => Some(print_mask(cpus)),
            Kind::Completion => Some("0".to_owned()),
        }
    }
}

/// All work of these classes that this machine lets be placed.
///
/// # Errors
/// A folder that cannot be read.
pub fn find(root: &Root, classes: &[Class]) -> Result<Vec<ServiceWork>> {
    let mut found = Vec::new();
    interrupts(root, &mut found)?;
    queues(root, &mut found)?;
    for disk in root.names("sys/block")? {
        let path = format!("sys/block/{disk}/queue/rq_affinity");
        push(root, &mut found, Kind::Completion, disk, Class::File, &path);
    }
    for name in root.names(WORKQUEUES)? {
        if let Some(class) = Class::of_workqueue(&name) {
            let path = format!("{WORKQUEUES}/{name}/cpumask");
            push(root, &mut found, Kind::Workqueue, name, class, &path);
        }
    }
    let path = format!("{WORKQUEUES}/cpumask");
    push(
        root,
        &mut found,
        Kind::Workqueue,
        "all unbound".to_owned(),
        Class::Any,
        &path,
    );
    threads(root, &mut found)?;
    found.retain(|work| classes.contains(&work.class));
    Ok(found)
}

/// Adds work whose setting can be read. What this kernel has not, or does not tell, cannot be placed.
fn push(
    root: &Root,
    found: &mut Vec<ServiceWork>,
    kind: Kind,
    name: String,
    class: Class,
    path: &str,
) {
    if let Ok(Some(setting)) = Setting::of(root, path)
        && !setting.content.contains(['\n', '\t'])
    {
        found.push(ServiceWork {
            kind,
            name,
            class,
            setting,
        });
    }
}

/// Interrupts of disks and of cards that this network namespace sees.
fn interrupts(root: &Root, found: &mut Vec<ServiceWork>) -> Result<()> {
    for device in root.names(DEVICES)? {
        let folder = format!("{DEVICES}/{device}");
        let class = root.text_if_any(&format!("{folder}/class"))?;
        // A line such as `0x020000`.
        let class =
            class.and_then(|text| u32::from_str_radix(text.trim().strip_prefix("0x")?, 16).ok());
        let Some(class) = class.and_then(Class::of_device) else {
            continue;
        };
        if class == Class::Network && !has_interface(root, &folder)? {
            continue;
        }
        let mut numbers = root.numbered(&format!("{folder}/msi_irqs"), "")?;
        if numbers.is_empty() {
            let line = root.text_if_any(&format!("{folder}/irq"))?;
            numbers.extend(
                line.and_then(|text| text.trim().parse().ok())
                    .filter(|&line: &u32| line > 0),
            );
        }
        for number in numbers {
            let actions = root.names(&format!("proc/irq/{number}"))?;
            let is_action =
                |name: &&String| root.path(&format!("proc/irq/{number}/{name}")).is_dir();
            let Some(action) = actions.iter().find(is_action) else {
                // Nobody has asked for it.
                continue;
            };
            let name = format!("{number} {action}");
            let path = format!("proc/irq/{number}/smp_affinity_list");
            push(root, found, Kind::Interrupt, name, class, &path);
        }
    }
    Ok(())
}

/// Does a card have an interface that is seen here? Paravirtual ones have a device between.
fn has_interface(root: &Root, folder: &str) -> Result<bool> {
    if !root.names(&format!("{folder}/net"))?.is_empty() {
        return Ok(true);
    }
    for name in root.names(folder)? {
        if name.starts_with("virtio") && !root.names(&format!("{folder}/{name}/net"))?.is_empty() {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Queues of interfaces, the loopback's too: what it receives is work of the network.
fn queues(root: &Root, found: &mut Vec<ServiceWork>) -> Result<()> {
    for interface in root.names("sys/class/net")? {
        let folder = format!("sys/class/net/{interface}/queues");
        for queue in root.names(&folder)? {
            let (kind, file) = match queue.starts_with("rx-") {
                true => (Kind::Receive, "rps_cpus"),
                false => (Kind::Send, "xps_cpus"),
            };
            let path = format!("{folder}/{queue}/{file}");
            push(
                root,
                found,
                kind,
                format!("{interface} {queue}"),
                Class::Network,
                &path,
            );
        }
    }
    Ok(())
}

/// Threads of the kernel, and those that submit for programs.
fn threads(root: &Root, found: &mut Vec<ServiceWork>) -> Result<()> {
    for process in root.numbered("proc", "")? {
        // One that has ended meanwhile is nobody's work.
        let Some(stat) = stat::read(root, process as i32) else {
            continue;
        };
        if stat.is_kernel() {
            thread(root, found, process as i32, &stat);
            continue;
        }
        for number in root
            .numbered(&format!("proc/{process}/task"), "")
            .unwrap_or_default()
        {
            let path = format!("proc/{process}/task/{number}/comm");
            let comm = root.text_if_any(&path).ok().flatten();
            if comm.is_some_and(|comm| Class::of_thread(&comm) == Some(Class::Any))
                && let Some(stat) = stat::read(root, number as i32)
            {
                thread(root, found, number as i32, &stat);
            }
        }
    }
    Ok(())
}

fn thread(root: &Root, found: &mut Vec<ServiceWork>, number: i32, stat: &Stat) {
    // A program may call its own threads so, too: the kernel makes those of io_uring itself.
    let is_made = stat.is_kernel() || stat.is_io_worker();
    if let Some(class) = Class::of_thread(&stat.name).filter(|_| is_made && !stat.is_tied()) {
        let path = Setting::thread_path(number, stat.start_ticks);
        let name = format!("{number} {}", stat.name);
        push(root, found, Kind::Thread, name, class, &path);
    }
}

/// What came of arranging.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Arranged {
    /// Pieces of work that are on the chosen CPUs now.
    pub moved: usize,
    /// What the kernel refused to move, with its reason.
    pub refused: Vec<(String, String)>,
}

/// The machine's services, of which one hither at a time has charge.
#[derive(Debug)]
pub struct Services {
    root: Root,
    journal: Journal,
    classes: Vec<Class>,
}

impl Services {
    /// Takes charge, and puts back first what a dead owner left: then the second value says so.
    ///
    /// # Errors
    /// As [`Journal::open`].
    pub fn open(root: &Root, folder: &Path, classes: &[Class]) -> Result<(Self, Option<String>)> {
        let (journal, note) = Journal::open(root, folder, JOURNAL)?;
        let services = Self {
            root: root.clone(),
            journal,
            classes: classes.to_vec(),
        };
        Ok((services, note))
    }

    /// Puts the work on these CPUs, as far as the kernel lets it. What was there is noted first.
    ///
    /// # Errors
    /// It cannot be found or noted: nothing is changed then.
    pub fn arrange(&mut self, cpus: &CpuSet) -> Result<Arranged> {
        self.put_back()?;
        let works = find(&self.root, &self.classes)?;
        let settings = works.iter().map(|work| work.setting.clone());
        self.journal.begin(settings.collect())?;
        let mut arranged = Arranged::default();
        for work in works {
            let Some(content) = work.wanted(cpus) else {
                continue;
            };
            let wish = Setting::new(work.setting.path, content);
            match wish.write(&self.root) {
                Ok(()) => arranged.moved += 1,
                Err(error) => {
                    let name = format!("{} {}", work.kind.name(), work.name);
                    arranged.refused.push((name, error.reason.clone()));
                }
            }
        }
        Ok(arranged)
    }

    /// Everything is where it was.
    ///
    /// # Errors
    /// As [`Journal::put_back`].
    pub fn put_back(&mut self) -> Result<()> {
        self.journal.put_back()
    }
}

#[cfg(test)]
mod tests;
