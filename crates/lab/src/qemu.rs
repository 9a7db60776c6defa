//! The QEMU command for a machine: pure, from description to arguments.
//!
//! Guest and model must agree on nodes and CPUs, so what QEMU or Linux would number differently
//! is refused here, with the reason. What the emulated hardware cannot say at all (cache sizes,
//! link routes) reaches the guest's tools by file ([`crate::protocol::MACHINE_PATH`]).
//!
//! Sources: QEMU 10.0 manual ("QEMU system emulation invocation": `-numa`, `-smp`, `-plugin`),
//! `include/system/numa.h` for the HMAT limits.

pub mod offline;

use crate::devices::Devices;
use crate::error::{Error, Result};
use hither_core::ids::NodeId;
use hither_core::machine::Machine;
use hither_core::opium;

/// Largest ratio that HMAT's 16-bit entries can express over their common unit; 0 and 0xffff
/// are reserved (ACPI 6.5, table 5.146).
const MAX_HMAT_ENTRY: u64 = 65_534;

/// Transparent huge pages in the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HugePages {
    /// For every mapping.
    Always,
    /// Where a program asks: the kernel's own default.
    Madvise,
    /// Never.
    Never,
}

impl HugePages {
    /// The kernel's word.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Always => "always",
            Self::Madvise => "madvise",
            Self::Never => "never",
        }
    }
}

/// What the plugin does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PluginMode {
    /// Models memory time and owns the guest's clock.
    Model,
    /// Only resolves the address of every access: the yardstick of the speed benchmark.
    Resolve,
}

impl PluginMode {
    /// The plugin's word.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Model => "model",
            Self::Resolve => "resolve",
        }
    }
}

/// The plugin and what it reads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plugin {
    /// The shared object.
    pub path: String,
    /// File with the scaled machine.
    pub machine: String,
    /// File behind the Opium device.
    pub opium: String,
    /// Files behind the nodes' memory, by position, where the machine has a copy engine, which reaches the
    /// guest's memory through them; else none.
    pub memory: Vec<String>,
    /// What it does.
    pub mode: PluginMode,
}

/// Everything that a boot needs besides the machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parts {
    /// Kernel image.
    pub kernel: String,
    /// Guest image.
    pub initrd: String,
    /// Number of the inherited socket that carries frames.
    pub channel_fd: i32,
    /// The plugin; without it time is the host's and there is no Opium device.
    pub plugin: Option<Plugin>,
    /// Disk and network.
    pub devices: Devices,
    /// The disk's file.
    pub disk: Option<String>,
    /// Huge pages.
    pub huge_pages: HugePages,
    /// More words for the kernel's command line.
    pub kernel_arguments: Vec<String>,
}

/// Checks that QEMU and Linux will number this machine's CPUs and nodes as its description does.
///
/// # Errors
/// With the place in the description and what to change.
pub fn check(machine: &Machine) -> Result<()> {
    let cpus = machine.cpu_count();
    if cpus > opium::MAX_VCPUS {
        return Err(Error::bad(
            format!(
                "{} has {cpus} CPUs, the lab emulates up to {}",
                machine.name,
                opium::MAX_VCPUS
            ),
            format!("scale it with --cpus {}", opium::MAX_VCPUS),
        ));
    }
    if machine.nodes.len() > opium::MAX_NODES || machine.links.len() > opium::MAX_LINKS {
        return Err(Error::bad(
            format!(
                "{} has {} nodes and {} directed links, the lab emulates up to {} and {}",
                machine.name,
                machine.nodes.len(),
                machine.links.len(),
                opium::MAX_NODES,
                opium::MAX_LINKS
            ),
            "describe a part of the machine",
        ));
    }
    let mut without_cpus = None;
    for (position, node) in machine.nodes.iter().enumerate() {
        if node.id != NodeId(position as u32) {
            return Err(Error::bad(
                format!(
                    "{}: {} stands at position {position}; QEMU cannot leave node numbers out",
                    machine.name, node.id
                ),
                "number the nodes 0, 1, 2 and so on in the machine file",
            ));
        }
        match (node.cpus.is_empty(), without_cpus) {
            (true, None) => without_cpus = Some(node.id),
            (false, Some(earlier)) => {
                return Err(Error::bad(
                    format!(
                        "{}: {} has CPUs but comes after {earlier}, which has none; Linux would number them the other way round",
                        machine.name, node.id
                    ),
                    "put the nodes without CPUs last in the machine file",
                ));
            }
            _ => {}
        }
    }
    Ok(())
}

/// QEMU's arguments.
///
/// # Errors
/// As [`check`].
pub fn arguments(machine: &Machine, parts: &Parts) -> Result<Vec<String>> {
    check(machine)?;
    let mut args = Arguments::default();
    args.flag("-no-user-config")
        .flag("-nodefaults")
        .flag("-no-reboot");
    args.pair("-display", "none");
    args.pair("-accel", "tcg,thread=multi");
    // No PCID and no INVPCID: page-table switches and flushes stay visible to the plugin as the
    // instructions it prices. No 5-level tables and no MONITOR: idle CPUs must halt.
    args.pair("-cpu", "max,-pcid,-invpcid,-la57,-monitor");
    args.pair("-machine", "q35,hmat=on,usb=off,vmport=off");
    args.pair("-smp", smp(machine));
    let total_mb: u64 = machine.nodes.iter().map(|node| node.memory_mb).sum();
    args.pair("-m", format!("{total_mb}M"));
    let shared = parts
        .plugin
        .as_ref()
        .map_or(&[][..], |plugin| &plugin.memory);
    nodes(machine, shared, &mut args);
    distances(machine, &mut args);
    attributes(machine, &mut args);
    // The console goes to standard output, which hither reads; `signal=off` leaves Ctrl-C to it.
    args.pair("-chardev", "stdio,id=console,signal=off")
        .pair("-serial", "chardev:console");
    args.pair(
        "-chardev",
        format!("socket,id=channel,fd={}", parts.channel_fd),
    );
    args.pair("-device", "virtio-serial-pci");
    args.pair(
        "-device",
        format!(
            "virtserialport,chardev=channel,name={}",
            crate::protocol::PORT_NAME
        ),
    );
    if let Some(plugin) = &parts.plugin {
        let size = opium::SIZE;
        args.pair(
            "-object",
            format!(
                "memory-backend-file,id=opium,share=on,mem-path={},size={size}",
                plugin.opium
            ),
        );
        args.pair("-device", "ivshmem-plain,memdev=opium");
        let Plugin {
            path,
            machine,
            opium,
            memory,
            mode,
        } = plugin;
        let memory: String = (memory.iter())
            .map(|path| format!(",memory={path}"))
            .collect();
        args.pair(
            "-plugin",
            format!(
                "{},machine={machine},opium={opium}{memory},mode={}",
                comma(path),
                mode.name()
            ),
        );
    }
    for (option, value) in parts.devices.arguments(parts.disk.as_deref()) {
        args.pair(option, value);
    }
    args.pair("-kernel", &parts.kernel)
        .pair("-initrd", &parts.initrd);
    args.pair("-append", kernel_command_line(parts));
    Ok(args.0)
}

/// The kernel's command line.
#[must_use]
pub fn kernel_command_line(parts: &Parts) -> String {
    let mut words: Vec<String> = [
        "console=ttyS0",
        "quiet",
        "panic=-1",
        "oops=panic",
        // The TSC is the host's own, so it must not be used; the delay loop must not be timed.
        "clocksource=acpi_pm",
        "notsc",
        "tsc=unstable",
        "no_timer_check",
        "lpj=2000000",
        // Runs must be alike; the emulated CPU has no side channels to guard.
        "nokaslr",
        "mitigations=off",
        "no5lvl",
        // Modelled time is slower than the host's: watchdogs would bark at the wrong tree.
        "nowatchdog",
        "rcupdate.rcu_cpu_stall_suppress=1",
        // Self-tests of ciphers would go on beside the first seconds of the program.
        "cryptomgr.notests=1",
        "numa_balancing=disable",
    ]
    .map(str::to_owned)
    .to_vec();
    words.push(format!("transparent_hugepage={}", parts.huge_pages.name()));
    words.extend(parts.kernel_arguments.iter().cloned());
    words.push(format!("rdinit={} -- lab guest", crate::image::AGENT_PATH));
    words.join(" ")
}

#[derive(Default)]
struct Arguments(Vec<String>);

impl Arguments {
    fn flag(&mut self, name: &str) -> &mut Self {
        self.0.push(name.to_owned());
        self
    }

    fn pair(&mut self, name: &str, value: impl Into<String>) -> &mut Self {
        self.0.push(name.to_owned());
        self.0.push(value.into());
        self
    }
}

/// In QEMU's option lists a comma inside a value is doubled.
fn comma(text: &str) -> String {
    text.replace(',', ",,")
}

/// Cache domains become sockets, because the emulated processor's last-level cache is shared by
/// a socket and QEMU's TCG has no processor with a finer one that both kernels read (`topoext` is
/// not emulated). Where domains differ in size or are not runs of CPUs, every CPU is a socket.
fn smp(machine: &Machine) -> String {
    let cpus = machine.cpu_count();
    let size = cpus / machine.domains.len().max(1);
    let mut domains: Vec<Vec<u32>> = machine
        .domains
        .iter()
        .map(|domain| domain.cpus.iter().map(|cpu| cpu.0).collect())
        .collect();
    domains.sort();
    let regular = domains.concat().iter().copied().eq(0..cpus as u32)
        && domains.iter().all(|domain| domain.len() == size);
    let (sockets, cores) = if regular {
        (domains.len(), size)
    } else {
        (cpus, 1)
    };
    format!("{cpus},sockets={sockets},dies=1,cores={cores},threads=1")
}

/// Can the guest see which CPUs share a last-level cache?
#[must_use]
pub fn cache_sharing_is_visible(machine: &Machine) -> bool {
    machine.cpu_count() == machine.domains.len()
        || !smp(machine).contains(&format!("sockets={}", machine.cpu_count()))
}

fn nodes(machine: &Machine, shared: &[String], args: &mut Arguments) {
    for (position, node) in machine.nodes.iter().enumerate() {
        let backend = match shared.get(position) {
            Some(path) => format!("memory-backend-file,share=on,mem-path={path}"),
            None => "memory-backend-ram".to_owned(),
        };
        args.pair(
            "-object",
            format!("{backend},id=memory{position},size={}M", node.memory_mb),
        );
        let initiator = nearest_initiator(machine, position);
        let mut text =
            format!("node,nodeid={position},memdev=memory{position},initiator={initiator}");
        if !node.cpus.is_empty() {
            // The kernel's list format with each run as an option of its own.
            text.extend(
                node.cpus
                    .to_string()
                    .split(',')
                    .map(|run| format!(",cpus={run}")),
            );
        }
        args.pair("-numa", text);
    }
}

/// The node whose CPUs reach this memory first: itself where it has CPUs.
fn nearest_initiator(machine: &Machine, target: usize) -> usize {
    if !machine.nodes[target].cpus.is_empty() {
        return target;
    }
    initiators(machine)
        .min_by(|&a, &b| {
            machine
                .idle_latency_ns(a, target)
                .total_cmp(&machine.idle_latency_ns(b, target))
        })
        .unwrap_or(0)
}

fn initiators(machine: &Machine) -> impl Iterator<Item = usize> + '_ {
    (0..machine.nodes.len()).filter(|&position| !machine.nodes[position].cpus.is_empty())
}

fn distances(machine: &Machine, args: &mut Arguments) {
    for (from, row) in machine.distances.iter().enumerate() {
        for (to, value) in row.iter().enumerate().filter(|&(to, _)| to != from) {
            args.pair("-numa", format!("dist,src={from},dst={to},val={value}"));
        }
    }
}

fn attributes(machine: &Machine, args: &mut Arguments) {
    let mut bandwidths = Vec::new();
    for initiator in initiators(machine) {
        for target in 0..machine.nodes.len() {
            let latency = machine.idle_latency_ns(initiator, target).round().max(1.0) as u64;
            args.pair("-numa", format!("hmat-lb,initiator={initiator},target={target},hierarchy=memory,data-type=access-latency,latency={latency}"));
            let mbs = (bandwidth_gbs(machine, initiator, target) * 1000.0)
                .round()
                .max(1.0) as u64;
            bandwidths.push((initiator, target, mbs));
        }
    }
    // All entries share one unit, which QEMU takes from their common factor: round to a power
    // of two of MB/s that lets the largest fit.
    let largest = bandwidths.iter().map(|&(_, _, mbs)| mbs).max().unwrap_or(1);
    let unit = largest.div_ceil(MAX_HMAT_ENTRY).next_power_of_two();
    for (initiator, target, mbs) in bandwidths {
        let rounded = (mbs / unit).max(1) * unit;
        args.pair("-numa", format!("hmat-lb,initiator={initiator},target={target},hierarchy=memory,data-type=access-bandwidth,bandwidth={rounded}M"));
    }
}

/// What CPUs of one node can read from another, in GB/s: the controller's capacity, or less where
/// a link on the way fills up first.
fn bandwidth_gbs(machine: &Machine, initiator: usize, target: usize) -> f64 {
    let mut share_of_link = vec![0.0; machine.links.len()];
    for route in &machine.routes[target][initiator] {
        for &link in &route.links {
            share_of_link[link] += route.share;
        }
    }
    let links = machine
        .links
        .iter()
        .zip(share_of_link)
        .filter(|(_, share)| *share > 0.0);
    let narrowest = links.map(|(link, share)| link.gbs / (share * link.overhead));
    narrowest.fold(machine.nodes[target].capacity.at(1.0), f64::min)
}

#[cfg(test)]
mod tests;
