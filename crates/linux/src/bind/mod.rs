//! Binding: giving threads CPUs and memory policies, and looking afterwards what came of it.
//!
//! What is wanted is decided in `hither_core::bind`. Here it is tried out first ([`Binding::try_out`]):
//! in a thread of its own, which ends with what it was given, so that what the kernel refuses or
//! makes less of is known, with a remedy, before a program is started.
//!
//! A program does the same for itself: it binds its threads ([`Binding::hold`], [`Team`]), allocates
//! in a set ([`Memory`]), and asks where its pages are ([`range::residency`]).

pub mod astray;
pub mod board;
pub mod loaded;
mod memory;
pub mod placed;
pub mod range;
pub mod shared;
pub mod spread;
mod team;
pub mod threads;
pub mod weights;
pub mod whereabouts;

pub use memory::{Memory, PageSize};
pub use team::{Member, Team};

use crate::error::{Error, Result};
use crate::filter;
use crate::proc::numa_maps;
use crate::resources;
use crate::root::Root;
use crate::sys;
use crate::topology::Topology;
use hither_core::bind::{KernelPolicy, MemoryPolicy, Mode};
use hither_core::ids::NodeId;
use hither_core::rset::{Expression, ExpressionFault, Resolved, ResourceSet, Resources};
use hither_core::set::CpuSet;
use std::io;
use std::marker::PhantomData;
use std::process::Command;
use std::sync::OnceLock;

/// This machine as sets see it. What the process may use is what it could at the first call: a
/// thread that is bound later names sets as before, and an unbound one is not held to them.
///
/// # Errors
/// A file of the kernel's that cannot be read, with place and remedy.
pub fn here() -> Result<Resources> {
    static ALLOWED: OnceLock<ResourceSet> = OnceLock::new();
    let root = Root::host();
    let mut resources = resources::read(&root, &Topology::read(&root)?)?;
    resources.allowed = ALLOWED.get_or_init(|| resources.allowed.clone()).clone();
    Ok(resources)
}

/// What a text comes to here. `place` says where the text stands, for messages: `--on`.
///
/// # Errors
/// It cannot be read, names what is not there, or nothing is left of it; with a mark below the
/// text.
///
/// ```
/// use hither_linux::bind;
///
/// let here = bind::here()?;
/// let all = bind::resolve("set", "allowed", &here)?;
/// assert!(!all.set.is_empty());
/// let why = bind::resolve("set", "nod:0", &here).unwrap_err().to_string();
/// assert!(why.starts_with("set: ") && why.contains("^^^"), "{why}");
/// # Ok::<(), hither_linux::Error>(())
/// ```
pub fn resolve(place: &str, text: &str, resources: &Resources) -> Result<Resolved> {
    let fault = |fault: ExpressionFault| Error::new(place, fault.pointed(text), "");
    let expression: Expression = text.parse().map_err(fault)?;
    expression.resolve(resources).map_err(fault)
}

/// CPUs and a memory policy for a program; what is `None` stays as hither itself has it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Binding {
    /// To run on.
    pub cpus: Option<CpuSet>,
    /// To get pages by.
    pub policy: Option<KernelPolicy>,
}

/// What the kernel made of a [`Binding`]: clipped to the cpuset.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Granted {
    /// CPUs that a program will run on.
    pub cpus: CpuSet,
    /// The policy that it will have; where nobody tells, why.
    pub policy: std::result::Result<KernelPolicy, String>,
}

impl Granted {
    /// What was wanted and is not had, in sentences.
    #[must_use]
    pub fn lost(&self, wanted: &Binding) -> Vec<String> {
        let cpus = wanted.cpus.iter().map(|cpus| cpus.difference(&self.cpus));
        let cpus = cpus.filter(|lost| !lost.is_empty());
        let cpus =
            cpus.map(|lost| format!("CPUs {lost} are left out: the cpuset has not got them"));
        let nodes = wanted.policy.iter().zip(&self.policy);
        let nodes = nodes.map(|(policy, granted)| policy.nodes.difference(&granted.nodes));
        let nodes = nodes.filter(|lost| !lost.is_empty());
        let nodes =
            nodes.map(|lost| format!("nodes {lost} are left out: the cpuset has not got them"));
        cpus.chain(nodes).collect()
    }
}

/// A thread that is bound for a while: as before when this is dropped.
#[derive(Debug)]
pub struct Held {
    before: Binding,
    /// It belongs to the thread that made it.
    thread: PhantomData<*const ()>,
}

impl Held {
    /// Gives the thread back what it had.
    ///
    /// # Errors
    /// What the kernel refuses: CPUs that went offline meanwhile.
    pub fn release(mut self) -> Result<()> {
        std::mem::take(&mut self.before).apply()
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        // Whoever wants to know calls `release`.
        let _ = self.before.apply();
    }
}

impl Binding {
    /// The CPUs of a set, and a memory policy on it: without one `bind` where the set has memory,
    /// and none where it has none.
    ///
    /// # Errors
    /// There is no memory that the policy could mean.
    pub fn on(
        set: &ResourceSet,
        memory: Option<MemoryPolicy>,
        resources: &Resources,
    ) -> Result<Self> {
        let memory = memory.or((!set.nodes.is_empty()).then_some(MemoryPolicy::Bind));
        let policy = memory.map(|memory| memory.on(set, resources)).transpose();
        Ok(Self {
            cpus: (!set.cpus.is_empty()).then(|| set.cpus.clone()),
            policy: policy.map_err(|why| Error::new("memory", why, ""))?,
        })
    }

    /// Is nothing wanted?
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.cpus.is_none() && self.policy.is_none()
    }

    /// Binds a thread that ends at once, and asks what it got. Where no thread can be had, as old
    /// containers forbid to make any, the calling one is bound for that long.
    ///
    /// # Errors
    /// What the kernel refuses.
    pub fn try_out(&self) -> Result<Granted> {
        let wanted = self.clone();
        let tried = std::thread::Builder::new().spawn(move || {
            wanted.apply()?;
            granted()
        });
        let Ok(tried) = tried else {
            let held = self.hold()?;
            let granted = granted()?;
            held.release()?;
            return Ok(granted);
        };
        tried.join().unwrap_or_else(|_| {
            Err(Error::new(
                "binding",
                "the thread that tried it is lost",
                "report this",
            ))
        })
    }

    /// Binds the calling thread and what it starts or becomes (`exec`) from now on.
    ///
    /// # Errors
    /// What the kernel refuses.
    pub fn apply(&self) -> Result<()> {
        if let Some(cpus) = &self.cpus {
            sys::stay_on(cpus).map_err(|error| refused_cpus(cpus, error))?;
        }
        if let Some(policy) = self.policy_to_set() {
            sys::set_own_policy(policy).map_err(|error| {
                let is_refused = filter::refuses(&error);
                let mut refused = refused_policy("set_mempolicy", policy, error);
                if is_refused {
                    refused.remedy += "; or name CPUs, and leave memory alone (`float`)";
                }
                refused
            })?;
        }
        Ok(())
    }

    /// The policy that the kernel has to be asked for: who has the default one keeps it, also where
    /// that call is refused.
    fn policy_to_set(&self) -> Option<&KernelPolicy> {
        let has_default = || match own_policy() {
            Ok(own) => own.mode == Mode::Default,
            // A kernel without policies has none but that.
            Err(error) => error.errno() == Some(libc::ENOSYS),
        };
        let policy = self.policy.as_ref()?;
        (policy.mode != Mode::Default || !has_default()).then_some(policy)
    }

    /// Binds the calling thread, and says what it had before: applied, that undoes it.
    ///
    /// # Errors
    /// What the kernel refuses; the thread is then as before.
    pub fn replace(&self) -> Result<Self> {
        let before = Self {
            cpus: match self.cpus {
                Some(_) => Some(sys::allowed_cpus().map_err(unasked)?),
                None => None,
            },
            policy: self.policy_to_set().map(|_| own_policy()).transpose()?,
        };
        match self.apply() {
            Ok(()) => Ok(before),
            Err(error) => {
                // What it had it may have again.
                let _ = before.apply();
                Err(error)
            }
        }
    }

    /// Binds the calling thread until the answer is dropped.
    ///
    /// # Errors
    /// What the kernel refuses; the thread is then as before.
    ///
    /// ```
    /// use hither_linux::bind::{self, Binding};
    ///
    /// let here = bind::here()?;
    /// let first = bind::resolve("set", "allowed", &here)?.set.cpus.iter().next().unwrap();
    /// let set = bind::resolve("set", &format!("cpus:{}", first.0), &here)?.set;
    /// let held = Binding::on(&set, None, &here)?.hold()?;
    /// // ... runs on that CPU alone ...
    /// held.release()?;
    /// # Ok::<(), hither_linux::Error>(())
    /// ```
    pub fn hold(&self) -> Result<Held> {
        Ok(Held {
            before: self.replace()?,
            thread: PhantomData,
        })
    }

    /// Binds the child that `command` will start.
    ///
    /// # Errors
    /// Node numbers beyond the kernel's limit.
    pub fn place(&self, command: &mut Command) -> Result<()> {
        sys::place_child(command, self.cpus.clone(), self.policy_to_set()).map_err(|error| {
            Error::io(
                "set_mempolicy",
                "takes no such nodes",
                "name nodes that are there",
                error,
            )
        })
    }
}

/// What the calling thread has.
fn granted() -> Result<Granted> {
    Ok(Granted {
        cpus: sys::allowed_cpus().map_err(unasked)?,
        policy: own_policy().map_err(|error| error.to_string()),
    })
}

/// The policy of the calling thread: by the kernel's own call or, where that is refused, as the file
/// of the thread's mappings tells it.
///
/// # Errors
/// The call is refused, and there is no such file.
pub fn own_policy() -> Result<KernelPolicy> {
    sys::own_policy().or_else(|error| {
        let remedy = "use a newer version of hither";
        let untold = || Error::call("get_mempolicy", "does not tell the policy", remedy, error);
        policy_by_mappings().ok_or_else(untold)
    })
}

/// Memory that has no policy of its own, as a program's code, is shown with the thread's.
fn policy_by_mappings() -> Option<KernelPolicy> {
    let mappings = Root::host().parse_if_any("proc/thread-self/numa_maps", numa_maps::parse);
    let code = mappings
        .ok()??
        .into_iter()
        .find(|mapping| mapping.file.is_some())?;
    code.policy.parse().ok()
}

/// Can this process have memory on a node of its choice?
///
/// # Errors
/// The kernel refuses every policy, and there are several nodes.
pub fn can_choose_node(node: NodeId) -> Result<()> {
    match range::try_out(&KernelPolicy::bound_to(node)) {
        Err(error) if error.source.as_ref().is_some_and(filter::needs_no_policy) => Ok(()),
        done => done,
    }
}

fn unasked(error: io::Error) -> Error {
    Error::call(
        "sched_getaffinity",
        "does not tell the CPUs",
        "report this",
        error,
    )
}

fn refused_cpus(cpus: &CpuSet, error: io::Error) -> Error {
    let reason = match cpus.is_empty() {
        true => "no CPU is named".to_owned(),
        false => format!("CPUs {cpus} are refused"),
    };
    let remedy = "name CPUs that run and that the cpuset allows (hither topo --set allowed)";
    Error::call("sched_setaffinity", reason, remedy, error)
}

fn refused_policy(call: &str, policy: &KernelPolicy, error: io::Error) -> Error {
    let since = match (policy.mode, policy.is_balanced) {
        (Mode::WeightedInterleave, _) => "; it needs Linux 6.9",
        (Mode::PreferredMany, _) => "; it needs Linux 5.15",
        (_, true) => "; balancing needs Linux 5.12 and NUMA balancing in the kernel",
        _ => "",
    };
    let remedy = format!(
        "name nodes that have memory and that the cpuset allows (hither topo --set allowed){since}"
    );
    Error::call(call, format!("`{policy}` is refused"), remedy, error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trying_out_changes_nothing_here() {
        let before = (sys::allowed_cpus().unwrap(), sys::own_policy().unwrap());
        let first: CpuSet = before.0.iter().take(1).collect();
        let wanted = Binding {
            cpus: Some(first.clone()),
            policy: Some("bind:0".parse().unwrap()),
        };
        let granted = wanted.try_out().unwrap();
        assert_eq!(
            (granted.cpus, granted.policy.unwrap().to_string()),
            (first, "bind:0".to_owned())
        );
        assert_eq!(
            (sys::allowed_cpus().unwrap(), sys::own_policy().unwrap()),
            before
        );
        let granted = Binding::default().try_out().unwrap();
        assert_eq!((granted.cpus, granted.policy.unwrap()), before);
    }

    #[test]
    fn mappings_tell_the_policy_as_the_kernel_does() {
        std::thread::spawn(|| {
            for text in ["default", "bind:0", "interleave:0", "local", "prefer:0"] {
                sys::set_own_policy(&text.parse().unwrap()).unwrap();
                assert_eq!(policy_by_mappings(), sys::own_policy().ok(), "{text}");
            }
        })
        .join()
        .unwrap();
    }

    #[test]
    fn a_thread_is_bound_for_a_while() {
        std::thread::spawn(|| {
            let state = || (sys::allowed_cpus().unwrap(), sys::own_policy().unwrap());
            let (before, here) = (state(), here().unwrap());
            let first: CpuSet = before.0.iter().take(1).collect();
            let set = resolve("set", &format!("cpus:{first} + mem:0"), &here).unwrap();
            let outer = Binding::on(&set.set, Some(MemoryPolicy::Preferred), &here).unwrap();
            let outer = outer.hold().unwrap();
            let bound = (first, "prefer:0".parse().unwrap());
            assert_eq!(state(), bound);
            {
                // A set without CPUs says nothing of them.
                let set = ResourceSet::of_memory("0".parse().unwrap());
                let inner = Binding::on(&set, None, &here).unwrap();
                assert_eq!(inner.cpus, None);
                let _inner = inner.hold().unwrap();
                assert_eq!(
                    (state().0, state().1.to_string()),
                    (bound.0.clone(), "bind:0".into())
                );
            }
            assert_eq!(state(), bound);
            // What is refused in part leaves nothing behind.
            let half = Binding {
                cpus: Some(before.0.clone()),
                policy: Some("bind:1000".parse().unwrap()),
            };
            assert!(
                half.hold()
                    .unwrap_err()
                    .to_string()
                    .contains("`bind:1000` is refused")
            );
            assert_eq!(state(), bound);
            // Sets are not narrowed by it.
            assert_eq!(super::here().unwrap().allowed, here.allowed);
            outer.release().unwrap();
            assert_eq!(state(), before);
        })
        .join()
        .unwrap();
    }

    #[test]
    fn what_is_lost_is_said() {
        let wanted = Binding {
            cpus: Some("0-3".parse().unwrap()),
            policy: Some("bind:0-1".parse().unwrap()),
        };
        let granted = |cpus: &str, policy: &str| Granted {
            cpus: cpus.parse().unwrap(),
            policy: Ok(policy.parse().unwrap()),
        };
        let lost = granted("0-1", "bind:0").lost(&wanted);
        assert!(lost[0].starts_with("CPUs 2-3 are") && lost[1].starts_with("nodes 1 are"));
        assert!(granted("0-3", "bind:0-1").lost(&wanted).is_empty());
        assert!(granted("0", "bind:0").lost(&Binding::default()).is_empty());
    }

    #[test]
    fn refusals_say_what_and_how_to_mend_it() {
        let refused = |cpus: Option<&str>, policy: Option<&str>| {
            let binding = Binding {
                cpus: cpus.map(|list| list.parse().unwrap()),
                policy: policy.map(|text| text.parse().unwrap()),
            };
            binding.try_out().unwrap_err().to_string()
        };
        assert!(refused(Some(""), None).contains("no CPU is named"));
        assert!(refused(Some("8000"), None).contains("CPUs 8000 are refused"));
        let why = refused(None, Some("prefer (many):900"));
        assert!(
            why.contains("prefer (many):900") && why.contains("5.15"),
            "{why}"
        );
    }
}
