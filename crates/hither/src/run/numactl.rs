//! The options of numactl, with its letters and its lists, so that `hither run` may stand in for it.

use super::places;
use anyhow::{anyhow, bail, ensure};
use hither_core::bind::{KernelPolicy, Mode, numactl};
use hither_core::ids::{CpuId, NodeId};
use hither_core::rset::{ResourceSet, Resources};
use hither_core::set::{CpuSet, NodeSet};
use hither_linux::bind::Binding;
use hither_linux::root::Root;
use std::path::PathBuf;

/// Options as in numactl(8). Where one is repeated, the last counts; a second memory policy is
/// refused, be it the same.
#[derive(Debug, Default, clap::Args)]
#[group(id = "numactl")]
#[command(next_help_heading = "Placement, as numactl has it")]
pub struct Options {
    /// CPUs and nodes beyond those that hither was given may be named
    #[arg(short, long, overrides_with = "all")]
    all: bool,
    /// NUMA balancing goes over memory that --membind binds
    #[arg(short, long, overrides_with = "balancing")]
    balancing: bool,
    /// Take pages from these nodes in turns
    #[arg(
        short,
        long,
        value_name = "NODES",
        group = "memory policy",
        allow_hyphen_values = true
    )]
    interleave: Option<String>,
    /// The same, by the system's weights
    #[arg(
        short,
        long,
        value_name = "NODES",
        group = "memory policy",
        allow_hyphen_values = true
    )]
    weighted_interleave: Option<String>,
    /// Take pages from this node while it has some
    #[arg(
        short,
        long,
        value_name = "NODE",
        group = "memory policy",
        allow_hyphen_values = true
    )]
    preferred: Option<String>,
    /// Take pages from these nodes while they have some, the nearest first
    #[arg(
        short = 'P',
        long,
        value_name = "NODES",
        group = "memory policy",
        allow_hyphen_values = true
    )]
    preferred_many: Option<String>,
    /// Take pages from these nodes alone
    #[arg(
        short,
        long,
        value_name = "NODES",
        group = "memory policy",
        allow_hyphen_values = true
    )]
    membind: Option<String>,
    /// Take pages near the CPU that asks
    #[arg(short, long, group = "memory policy")]
    localalloc: bool,
    /// Run on the CPUs of these nodes
    #[arg(
        short = 'N',
        long,
        value_name = "NODES",
        visible_short_alias = 'c',
        alias = "cpubind",
        allow_hyphen_values = true
    )]
    cpunodebind: Vec<String>,
    /// Run on these CPUs
    #[arg(short = 'C', long, value_name = "CPUS", allow_hyphen_values = true)]
    physcpubind: Vec<String>,
    /// Show by what policy hither was started itself
    #[arg(short, long, overrides_with = "show")]
    pub show: bool,
    /// Show nodes with CPUs, memory and distances
    #[arg(short = 'H', long, overrides_with = "hardware")]
    pub hardware: bool,
    #[command(flatten)]
    pub shared: Shared,
}

/// Options for memory that is shared by name, instead of a program.
#[derive(Debug, Default, clap::Args)]
#[group(id = "shared memory")]
#[command(next_help_heading = "Placement of shared memory, as numactl has it")]
pub struct Shared {
    /// Give a policy to a System V segment, by its key file
    #[arg(short = 'S', long, value_name = "KEYFILE", conflicts_with = "file")]
    pub shm: Option<PathBuf>,
    /// Give a policy to a file in tmpfs or hugetlbfs
    #[arg(short, long, value_name = "FILE")]
    pub file: Option<PathBuf>,
    /// Number that makes several segments of one key file
    #[arg(short = 'I', long, value_name = "ID", overrides_with = "shmid",
          allow_hyphen_values = true, value_parser = parse_id)]
    pub shmid: Option<u8>,
    /// Where the part begins that is meant; k, m, g
    #[arg(short, long, value_name = "BYTES", overrides_with = "offset",
          allow_hyphen_values = true, value_parser = parse_length)]
    pub offset: Option<u64>,
    /// How long it is; needed where the memory is made
    #[arg(short = 'L', long, value_name = "BYTES", overrides_with = "length",
          allow_hyphen_values = true, value_parser = parse_length)]
    pub length: Option<u64>,
    /// Permissions of what is made
    #[arg(short = 'M', long, value_name = "OCTAL", overrides_with = "shmmode",
          allow_hyphen_values = true, value_parser = parse_mode)]
    pub shmmode: Option<u32>,
    /// Make the segment of huge pages
    #[arg(short = 'u', long, overrides_with = "huge")]
    pub huge: bool,
    /// Fail where pages are elsewhere already
    #[arg(short = 't', long, overrides_with = "strict")]
    pub strict: bool,
    /// Bring all its pages into memory now
    #[arg(short = 'T', long, overrides_with = "touch")]
    pub touch: bool,
    /// Print its policies
    #[arg(short, long, overrides_with = "dump")]
    pub dump: bool,
    /// Print the nodes of its pages
    #[arg(short = 'D', long, overrides_with = "dump_nodes")]
    pub dump_nodes: bool,
}

impl Shared {
    /// Is shared memory meant?
    pub fn is_meant(&self) -> bool {
        self.shm.is_some() || self.file.is_some()
    }

    /// An option that means nothing for a program.
    pub fn misplaced(&self) -> Option<&'static str> {
        let options = [
            (self.shmid.is_some(), "--shmid"),
            (self.offset.is_some(), "--offset"),
            (self.length.is_some(), "--length"),
            (self.shmmode.is_some(), "--shmmode"),
            (self.huge, "--huge"),
            (self.touch, "--touch"),
            (self.dump, "--dump"),
            (self.dump_nodes, "--dump-nodes"),
        ];
        options
            .iter()
            .find(|(is_given, _)| *is_given)
            .map(|(_, name)| *name)
    }
}

impl Options {
    /// An option that means nothing for the shared memory which is named, and what it is about.
    pub fn misplaced_beside_shared(&self) -> Option<(&'static str, &'static str)> {
        let program = "a program, and --shm and --file go without one";
        let segment = "System V segments; name one with --shm";
        let is_file = self.shared.file.is_some();
        let options = [
            (!self.cpunodebind.is_empty(), "--cpunodebind", program),
            (!self.physcpubind.is_empty(), "--physcpubind", program),
            (is_file && self.shared.huge, "--huge", segment),
            (is_file && self.shared.shmid.is_some(), "--shmid", segment),
        ];
        let (_, option, about) = options.into_iter().find(|(is_given, ..)| *is_given)?;
        Some((option, about))
    }

    /// Is any of those given that are about a program?
    pub fn is_used(&self) -> bool {
        let names_cpus = !self.cpunodebind.is_empty() || !self.physcpubind.is_empty();
        let has_flag = self.all || self.balancing || self.shared.strict;
        names_cpus || has_flag || self.has_policy()
    }

    /// Does any of them name a memory policy?
    pub fn has_policy(&self) -> bool {
        self.named_policy().is_some() || self.localalloc
    }

    /// The list of the policy that names nodes.
    fn named_policy(&self) -> Option<(Mode, &'static str, &str)> {
        let policies = [
            (Mode::Interleave, "--interleave", &self.interleave),
            (
                Mode::WeightedInterleave,
                "--weighted-interleave",
                &self.weighted_interleave,
            ),
            (Mode::Preferred, "--preferred", &self.preferred),
            (
                Mode::PreferredMany,
                "--preferred-many",
                &self.preferred_many,
            ),
            (Mode::Bind, "--membind", &self.membind),
        ];
        let mut given = policies.into_iter();
        given.find_map(|(mode, option, list)| Some((mode, option, list.as_deref()?)))
    }

    /// What a program is to be given.
    ///
    /// # Errors
    /// A list that cannot be read or names what is not there.
    pub fn binding(&self, resources: &Resources, root: &Root) -> anyhow::Result<Binding> {
        Ok(Binding {
            cpus: self.cpus(resources, root)?,
            policy: self.policy(resources, root)?,
        })
    }

    /// What CPUs and nodes may be named.
    fn nameable(&self, resources: &Resources) -> ResourceSet {
        match self.all {
            true => resources.machine(),
            false => resources.usable(),
        }
    }

    fn cpus(&self, resources: &Resources, root: &Root) -> anyhow::Result<Option<CpuSet>> {
        let mut cpus: Option<CpuSet> = None;
        for (at, list) in self.cpunodebind.iter().enumerate() {
            let list = self.same("--cpunodebind", list, &self.cpunodebind[..at])?;
            cpus = Some(self.cpus_of_nodes(list, resources, root)?);
        }
        let mut named = None;
        for list in &self.physcpubind {
            let (usable, present) = (self.nameable(resources).cpus, resources.machine().cpus);
            let nameable = numactl::Nameable {
                usable: &usable,
                present: &present,
            };
            let place = |_: &str| Err::<CpuId, _>("CPUs have no names".to_owned());
            let found = numactl::parse(list, nameable, place);
            let found = found.map_err(|why| anyhow!("--physcpubind {why}"))?;
            let found = match &cpus {
                None => found,
                Some(others) => others.intersection(&found),
            };
            ensure!(
                !found.is_empty(),
                "--physcpubind {list}: no CPU is left{}; name some",
                if cpus.is_some() {
                    " of those of --cpunodebind"
                } else {
                    ""
                }
            );
            named = Some(found);
        }
        Ok(named.or(cpus))
    }

    /// As numactl: the nodes' CPUs, whatever affinity hither was started with.
    fn cpus_of_nodes(
        &self,
        list: &str,
        resources: &Resources,
        root: &Root,
    ) -> anyhow::Result<CpuSet> {
        let nameable = self.nameable(resources).nodes;
        // A node without memory is in no cpuset, and has CPUs nonetheless.
        let nodes = resources.nodes.iter();
        let nodes = nodes.filter(|node| nameable.contains(node.id) || !node.has_memory());
        let usable: NodeSet = nodes.map(|node| node.id).collect();
        let nameable = numactl::Nameable {
            usable: &usable,
            present: &resources.nodes.iter().map(|node| node.id).collect(),
        };
        let named = read_nodes("--cpunodebind", list, nameable, resources, root)?;
        let of_nodes = resources
            .nodes
            .iter()
            .filter(|node| named.contains(node.id));
        let found: CpuSet = of_nodes.flat_map(|node| node.cpus.iter()).collect();
        ensure!(
            !found.is_empty(),
            "--cpunodebind {list}: none of these nodes has a CPU; name others, or CPUs with \
             --physcpubind"
        );
        Ok(found)
    }

    /// The memory policy that is named, if one is.
    ///
    /// # Errors
    /// A list that cannot be read or names what is not there.
    pub fn policy(
        &self,
        resources: &Resources,
        root: &Root,
    ) -> anyhow::Result<Option<KernelPolicy>> {
        if self.localalloc {
            return Ok(Some(KernelPolicy::new(Mode::Local, NodeSet::new())));
        }
        let Some((mode, option, list)) = self.named_policy() else {
            return Ok(None);
        };
        let (usable, present) = (self.nameable(resources).nodes, resources.machine().nodes);
        let nameable = numactl::Nameable {
            usable: &usable,
            present: &present,
        };
        let list = self.same(option, list, &self.cpunodebind)?;
        let nodes = read_nodes(option, list, nameable, resources, root)?;
        let interleaves = matches!(mode, Mode::Interleave | Mode::WeightedInterleave);
        if nodes.is_empty() && interleaves {
            // As numactl: in turns over nothing is no policy.
            return Ok(Some(KernelPolicy::new(Mode::Default, nodes)));
        }
        ensure!(
            !nodes.is_empty(),
            "{option} {list}: no node is left; name some"
        );
        ensure!(
            mode != Mode::Preferred || nodes.len() == 1,
            "--preferred {list}: one node alone is preferred; for several there is --preferred-many"
        );
        Ok(Some(KernelPolicy {
            is_balanced: self.balancing && mode == Mode::Bind,
            ..KernelPolicy::new(mode, nodes)
        }))
    }

    /// `same` is the list of nodes before it, else the other option's.
    fn same<'a>(
        &'a self,
        option: &str,
        list: &'a str,
        before: &'a [String],
    ) -> anyhow::Result<&'a str> {
        if list != "same" {
            return Ok(list);
        }
        let policy = self.named_policy().map(|(.., list)| list);
        let mut lists = before.iter().rev().map(String::as_str).chain(policy);
        let Some(other) = lists.find(|list| *list != "same") else {
            bail!("{option} same: no other option names nodes; name them");
        };
        Ok(other)
    }
}

fn read_nodes(
    option: &str,
    list: &str,
    nameable: numactl::Nameable<'_, NodeId>,
    resources: &Resources,
    root: &Root,
) -> anyhow::Result<NodeSet> {
    let place = |name: &str| -> Result<NodeId, String> { places::node(name, resources, root) };
    numactl::parse(list, nameable, place).map_err(|why| anyhow!("{option} {why}"))
}

/// `100`, `20m`, `0x1000`, `1g`, `64kB`; octal with a leading 0.
fn parse_length(text: &str) -> Result<u64, String> {
    let fault = || format!("`{text}` is no size; sizes are as in 4096, 64k, 20m and 1g");
    let number = numactl::Number::read(text).filter(|number| !number.is_negative);
    let number = number.ok_or_else(fault)?;
    let shift = match number.rest.to_ascii_lowercase().as_str() {
        "" => 0,
        "k" | "kb" | "kib" => 10,
        "m" | "mb" | "mib" => 20,
        "g" | "gb" | "gib" => 30,
        _ => return Err(fault()),
    };
    number.magnitude.checked_mul(1 << shift).ok_or_else(fault)
}

fn parse_mode(text: &str) -> Result<u32, String> {
    let mode = u32::from_str_radix(text, 8).ok();
    mode.filter(|mode| *mode <= 0o777)
        .ok_or_else(|| format!("`{text}` is no mode; modes are octal, as in 600"))
}

fn parse_id(text: &str) -> Result<u8, String> {
    let number = numactl::Number::read(text);
    let number = number.filter(|number| number.rest.is_empty() && !number.is_negative);
    let number = number.and_then(|number| u8::try_from(number.magnitude).ok());
    number.ok_or_else(|| format!("`{text}` is no id of a key file (ftok); those are 0 to 255"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_modes_and_ids() {
        for (text, bytes) in [
            ("20m", 20 << 20),
            ("4096", 4096),
            ("0x1000", 4096),
            ("1G", 1 << 30),
            ("64kB", 64 << 10),
            ("010", 8),
        ] {
            assert_eq!(parse_length(text), Ok(bytes));
        }
        for bad in ["", "m", "-1", "1t", "99999999999g", "1.5m"] {
            assert!(parse_length(bad).is_err(), "{bad}");
        }
        assert_eq!((parse_mode("640"), parse_id("0x1f")), (Ok(0o640), Ok(31)));
        assert_eq!(parse_id("010"), Ok(8));
        assert!(
            parse_mode("888").is_err() && parse_mode("7777").is_err() && parse_id("256").is_err()
        );
    }
}
