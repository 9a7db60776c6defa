//! Placement of a program: a resource set with a memory and a thread policy, tried out before the
//! program starts and looked at while it runs.

use super::redirect::{Redirect, Redirected};
use super::{numactl, start, weigh};
use crate::print::DASH;
use anyhow::{Context, bail};
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use hither_agent::host::attendant::{Attended, PlacementUpkeep, UpkeepFn};
use hither_agent::host::weighing::{self, Weighed, Weighing};
use hither_core::bind::rules::WrittenRule;
use hither_core::bind::{KernelPolicy, MemoryPolicy, Mode, ThreadPolicy};
use hither_core::learned::Start;
use hither_core::rset::{ResourceSet, Resources};
use hither_core::size::parse_bytes;
use hither_linux::bind::threads::Keeper;
use hither_linux::bind::whereabouts::PolicyResidency;
use hither_linux::bind::{self, Binding, Granted};
use hither_linux::root::Root;
use hither_linux::topology::Topology;
use std::ffi::OsStr;
use std::rc::Rc;

/// hither's own words for placement.
#[derive(Debug, Default, clap::Args)]
#[group(id = "placement")]
#[command(next_help_heading = "Placement")]
pub struct Options {
    /// Run on the CPUs of a set and take memory from its nodes, as in 'node:0 + mem:2'
    /// (docs/resource-sets.md)
    #[arg(long, value_name = "EXPR", conflicts_with_all = ["cpunodebind", "physcpubind"],
          allow_negative_numbers = true)]
    on: Option<String>,
    /// Choose nodes for the program, of the set's or of all, by what is free now, and say why
    #[arg(long, value_name = "COUNT", num_args = 0..=1, default_missing_value = "1",
          require_equals = true, value_parser = clap::value_parser!(u16).range(1..=1024),
          conflicts_with_all = ["cpunodebind", "physcpubind"])]
    choose: Option<u16>,
    /// Memory that the chosen nodes must have available together, as in 16G
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes, requires = "choose")]
    needs: Option<u64>,
    /// Choose near a device or a node, as in gpu0, eth0 or node2
    #[arg(long, value_name = "NAME", requires = "choose")]
    near: Option<String>,
    /// How pages are taken from the set's nodes; bind where the set has some, else float
    #[arg(long, value_name = "POLICY", value_parser = memory_policies(), group = "memory policy")]
    memory: Option<MemoryPolicy>,
    /// Of --memory weighted: kernel (as they are), hmat, measured, or one for each node as in 3:1
    #[arg(long, value_name = "WEIGHTS", value_parser = weigh::parse)]
    weights: Option<weighing::Source>,
    /// Which CPUs threads get: float, fill, round-robin[:package|:node|:domain|:core]
    #[arg(long, value_name = "POLICY", value_parser = parse_threads)]
    threads: Option<ThreadPolicy>,
    /// Where some of its memory goes, by size and call site, as in 'size>=1M: striped' or
    /// 'size>=64M,site=load: bind node:1'; repeatable, the first that fits counts (docs/binding.md)
    #[arg(long, value_name = "RULE", value_parser = parse_rule)]
    place: Vec<WrittenRule>,
    /// Look where pages really go, and say so at the end
    #[arg(short = 'V', long, overrides_with = "verify")]
    pub verify: bool,
}

pub fn memory_policies() -> impl TypedValueParser<Value = MemoryPolicy> {
    let values = MemoryPolicy::ALL.map(|(_, word, about)| PossibleValue::new(word).help(about));
    PossibleValuesParser::new(values).try_map(|word| word.parse::<MemoryPolicy>())
}

fn parse_rule(text: &str) -> Result<WrittenRule, String> {
    text.parse()
}

fn parse_threads(text: &str) -> Result<ThreadPolicy, String> {
    text.parse()
}

/// What a program is given, and what the kernel made of it.
#[derive(Debug)]
pub struct Placement {
    /// For the child.
    pub binding: Binding,
    /// As tried out.
    pub granted: Granted,
    /// CPUs for threads, one each; empty where they float.
    order: Vec<hither_core::ids::CpuId>,
    threads: ThreadPolicy,
    weighing: Option<Weighing>,
    /// For the shim; `None` where neither rules nor threads need it.
    redirect: Option<Redirect>,
    /// Sentences for a person, before the program starts: what was chosen, what is left out.
    pub warnings: Vec<String>,
}

impl Placement {
    /// Prepares the program's start.
    ///
    /// # Errors
    /// Node numbers beyond the kernel's limit.
    pub fn attach(&self, command: &mut std::process::Command) -> anyhow::Result<()> {
        if let Some(redirect) = &self.redirect {
            redirect.attach(command);
        }
        Ok(self.binding.place(command)?)
    }
}

impl Options {
    /// What a program begins with where nobody places it; `None` where that is nothing.
    ///
    /// # Errors
    /// As [`Options::placement`].
    pub fn begin(
        start: Start,
        numactl: &numactl::Options,
        program: &OsStr,
        host: &(Root, Topology, Resources),
    ) -> anyhow::Result<Option<Placement>> {
        if start == Start::Nothing {
            return Ok(None);
        }
        Self::of_start(start)?.placement(numactl, program, host, false)
    }

    fn of_start(start: Start) -> anyhow::Result<Self> {
        let rule = start.rule().map(parse_rule).transpose();
        Ok(Self {
            memory: start.memory(),
            place: rule.map_err(anyhow::Error::msg)?.into_iter().collect(),
            ..Self::default()
        })
    }

    /// Does any of them need hither beside the program?
    pub fn stays_beside(&self) -> bool {
        self.verify
            || self.on.is_some()
            || self.choose.is_some()
            || self.memory.is_some()
            || self.weights.is_some()
            || self.threads.is_some()
            || !self.place.is_empty()
    }

    /// What is to be given, tried out; `None` where nothing is asked for. `may_move`: nobody else
    /// moves the program's pages.
    ///
    /// # Errors
    /// Sets and lists that cannot be read or come to nothing; what the kernel refuses.
    pub fn placement(
        &self,
        numactl: &numactl::Options,
        program: &OsStr,
        (root, topology, resources): &(Root, Topology, Resources),
        may_move: bool,
    ) -> anyhow::Result<Option<Placement>> {
        let mut warnings = Vec::new();
        let mut set = self.set(resources, &mut warnings)?;
        if let Some(count) = self.choose {
            let wanted = start::Wanted {
                count: usize::from(count),
                needed_bytes: self.needs.unwrap_or(0),
                near: self.near.as_deref(),
                from: &set,
            };
            let (chosen, reasons) = start::choose(&wanted, resources, root)?;
            warnings.extend(reasons);
            set = chosen;
        }
        let mut binding = numactl.binding(resources, root)?;
        let around = ResourceSet {
            cpus: binding.cpus.clone().unwrap_or(set.cpus),
            nodes: set.nodes,
        };
        let placed = Binding::on(&around, self.memory, resources)?;
        binding.cpus = binding.cpus.or(placed.cpus);
        if self.memory.is_some() || !numactl.has_policy() {
            binding.policy = placed.policy.or(binding.policy);
        }
        if self.weights.is_some() {
            // The kernel's weights are changed for it: what is refused is refused before.
            binding.try_out()?;
        }
        let weighing = match (&self.weights, &binding.policy) {
            (None, _) => None,
            (Some(source), Some(policy)) if policy.mode == Mode::WeightedInterleave => {
                let wanted = weighing::Wanted {
                    source,
                    cpus: (binding.cpus.clone()).unwrap_or_else(|| resources.usable().cpus),
                    policy,
                    may_move,
                };
                Weighing::begin(&wanted, root, topology, resources)
                    .with_context(|| format!("--weights {source}"))?
            }
            _ => bail!("--weights says how --memory weighted takes turns; give that, too"),
        };
        if let Some(weighing) = &weighing {
            binding.policy = Some(weighing.policy().clone());
            warnings.extend_from_slice(&weighing.told);
        }
        let threads = self.threads.unwrap_or(ThreadPolicy::Float);
        let needs_shim = !self.place.is_empty() || threads != ThreadPolicy::Float;
        if binding.is_empty() && !needs_shim && !self.verify {
            return Ok(None);
        }
        let granted = binding.try_out()?;
        warnings.extend(granted.lost(&binding));
        let order = threads.order(&granted.cpus, resources);
        if let Some(&first) = order.first() {
            let alone = Binding {
                cpus: Some([first].into_iter().collect()),
                policy: None,
            };
            alone
                .try_out()
                .with_context(|| format!("--threads {threads}"))?;
        }
        let redirect = match needs_shim {
            true => Some(Redirect::new(
                &self.place,
                &order,
                &around,
                program,
                resources,
            )?),
            false => None,
        };
        warnings.extend(
            redirect
                .iter()
                .filter_map(|redirect| redirect.warning.clone()),
        );
        Ok(Some(Placement {
            order,
            redirect,
            threads,
            binding,
            granted,
            weighing,
            warnings,
        }))
    }

    fn set(
        &self,
        resources: &Resources,
        warnings: &mut Vec<String>,
    ) -> anyhow::Result<ResourceSet> {
        let Some(text) = &self.on else {
            return Ok(ResourceSet::new());
        };
        let resolved = bind::resolve("--on", text, resources)?;
        warnings.extend(resolved.warnings);
        Ok(resolved.set)
    }
}

/// What became of a placement.
#[derive(Debug)]
pub struct Placed {
    pub granted: Granted,
    pub threads: ThreadPolicy,
    /// What was seen of it while it ran.
    pub attended: Attended,
    /// What became of weights.
    weighed: Option<Weighed>,
    /// What the shim did; `None` where nobody needed it.
    pub redirected: Option<Redirected>,
}

impl Placement {
    /// What works beside the program: who looks after it, and who looks after its weights.
    pub fn beside(&mut self, root: &Root) -> (PlacementUpkeep<'_>, Option<&mut Weighing>) {
        let redirect = self.redirect.as_mut();
        let keeper = redirect
            .as_ref()
            .filter(|_| !self.order.is_empty())
            .map(|redirect| {
                let board = Rc::clone(&redirect.board);
                Keeper::new(self.order.clone(), board, redirect.has_shim())
            });
        let look = redirect.map(|redirect| -> UpkeepFn<'_> {
            let root = root.clone();
            Box::new(move |now_us, pids| redirect.turn(now_us, &root, pids))
        });
        let policy = self.granted.policy.as_ref().ok().cloned();
        let attendant = PlacementUpkeep::new(root, policy, keeper, look);
        (attendant, self.weighing.as_mut())
    }

    /// What came of it.
    #[must_use]
    pub fn finish(self, attended: Attended) -> Placed {
        Placed {
            granted: self.granted,
            threads: self.threads,
            attended,
            weighed: self.weighing.map(Weighing::finish),
            redirected: self.redirect.map(Redirect::finish),
        }
    }
}

impl Placed {
    /// For a person.
    #[must_use]
    pub fn text(&self) -> String {
        let Granted { cpus, policy } = &self.granted;
        let mut text = format!("placed: CPUs {cpus}, threads {}, memory ", self.threads);
        text += &match policy {
            Ok(policy) => format!("{policy}\n"),
            Err(why) => format!("{DASH}\nmemory: {why}\n"),
        };
        if self.attended.kept_count > 0 {
            text += &format!(
                "threads: {} pinned to a CPU each at most",
                self.attended.kept_count
            );
            if self.attended.refused_count > 0 {
                text += &format!(", {} could not be", self.attended.refused_count);
            }
            text.push('\n');
        }
        for note in self.weighed.iter().flat_map(|weighed| &weighed.notes) {
            text += &format!("{note}\n");
        }
        if let Some(redirected) = &self.redirected {
            text += &redirected.text();
        }
        let (policy, seen) = match (policy, &self.attended.seen) {
            (Ok(policy), Some(seen)) => (policy, seen),
            (Ok(_), None) => return text + "memory: it ended before anybody could look\n",
            (Err(_), _) => return text,
        };
        text += &told(policy, seen);
        if seen.other_count > 0 {
            text += &format!(
                "memory: {} pages under policies of {}\n",
                seen.other_count,
                match &self.redirected {
                    Some(redirected) if redirected.has_rules() => "rules, or of its own",
                    _ => "its own",
                }
            );
        }
        if seen.hidden_count > 0 {
            text += &format!(
                "memory: {} processes were not to be read\n",
                seen.hidden_count
            );
        }
        text
    }

    /// The same for programs (`placed` of hither.run/1).
    #[must_use]
    pub fn json(&self) -> serde_json::Value {
        let policy = self.granted.policy.as_ref().ok();
        let seen = self.attended.seen.as_ref().map(|seen| {
            let nodes: Vec<_> = seen
                .pages
                .iter()
                .map(|(node, pages)| serde_json::json!({"node": node, "pages": pages}))
                .collect();
            serde_json::json!({
                "nodes": nodes,
                "astray_pages": policy.and_then(|policy| policy.astray(&seen.pages)),
                "other_policy_pages": seen.other_count,
                "process_count": seen.process_count,
                "hidden_process_count": seen.hidden_count,
            })
        });
        serde_json::json!({
            "cpus": self.granted.cpus.to_string(),
            "memory": policy.map(ToString::to_string),
            "threads": self.threads.to_string(),
            "kept_threads": self.attended.kept_count,
            "refused_threads": self.attended.refused_count,
            "shim": self.redirected.as_ref().map(Redirected::json),
            "look_count": self.attended.look_count,
            "seen": seen,
            "weights": self.weighed.as_ref().map(weigh::json),
        })
    }
}

/// Where the pages under a policy were seen.
fn told(policy: &KernelPolicy, seen: &PolicyResidency) -> String {
    let pages = seen.page_count();
    // That none of no pages is astray says nothing of the policy.
    if pages == 0 {
        return "memory: no page under that policy was seen\n".to_owned();
    }
    let nodes = seen.pages.iter();
    let nodes: Vec<String> = nodes
        .map(|(node, count)| format!("{node} {count}"))
        .collect();
    let verdict = match policy.astray(&seen.pages) {
        None => String::new(),
        Some(0) => ", each where it should be".to_owned(),
        Some(astray) => format!(
            "; {astray} ({:.1} %) are elsewhere",
            100.0 * astray as f64 / pages as f64
        ),
    };
    format!(
        "memory: {pages} pages of 4 KiB under that policy: {}{verdict}\n",
        nodes.join(", ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use hither_core::ids::NodeId;

    #[test]
    fn every_start_is_options_for_placement() {
        for start in Start::ALL {
            let options = Options::of_start(start).unwrap();
            assert_eq!(options.stays_beside(), start != Start::Nothing, "{start}");
        }
        // The kernel takes it: of the child, before its first instruction.
        let host = super::super::read_host().unwrap();
        let options = Options::of_start(Start::Turns).unwrap();
        let numactl = numactl::Options::default();
        let placement = options.placement(&numactl, OsStr::new("sh"), &host, false);
        let policy = placement.unwrap().unwrap().granted.policy.unwrap();
        let expected = KernelPolicy::new(Mode::Interleave, host.2.usable().nodes);
        assert_eq!(policy, expected);
    }

    #[test]
    fn nothing_seen_is_not_called_placed() {
        let policy = KernelPolicy::new(Mode::Bind, [NodeId(1)].into_iter().collect());
        let seen = |pages: &[(u32, u64)]| PolicyResidency {
            pages: pages
                .iter()
                .map(|&(node, count)| (NodeId(node), count))
                .collect(),
            ..PolicyResidency::default()
        };
        for (pages, expected) in [
            (&[][..], "no page under that policy was seen"),
            (
                &[(1, 8)],
                "8 pages of 4 KiB under that policy: node1 8, each where it should be",
            ),
            (
                &[(0, 2), (1, 6)],
                "8 pages of 4 KiB under that policy: node0 2, node1 6; 2 (25.0 %) are elsewhere",
            ),
        ] {
            assert_eq!(told(&policy, &seen(pages)), format!("memory: {expected}\n"));
        }
    }

    #[test]
    fn a_policy_that_nobody_tells_is_a_dash_and_null() {
        let placed = Placed {
            granted: Granted {
                cpus: "0-3".parse().unwrap(),
                policy: Err("get_mempolicy: does not tell the policy".to_owned()),
            },
            threads: ThreadPolicy::Float,
            attended: Attended::default(),
            weighed: None,
            redirected: None,
        };
        assert_eq!(
            placed.text(),
            "placed: CPUs 0-3, threads float, memory –\n\
             memory: get_mempolicy: does not tell the policy\n"
        );
        let document = placed.json();
        assert!(document["memory"].is_null() && document["seen"].is_null());
        assert_eq!(document["cpus"], "0-3");
    }
}
