//! Binding: giving threads CPUs and memory policies, and looking afterwards what came of it.
//!
//! What is wanted is decided in `hither_core::bind`. Here it is tried out first ([`Binding::try_out`]):
//! in a thread of its own, which ends with what it was given, so that what the kernel refuses or
//! makes less of is known, with a remedy, before a program is started.

pub mod board;
pub mod shared;
pub mod threads;
pub mod whereabouts;

use crate::error::{Error, Result};
use crate::sys;
use hither_core::bind::{KernelPolicy, Mode};
use hither_core::set::CpuSet;
use std::io;
use std::process::Command;

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
    /// The policy that it will have.
    pub policy: KernelPolicy,
}

impl Binding {
    /// Is nothing wanted?
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.cpus.is_none() && self.policy.is_none()
    }

    /// Binds a thread that ends at once, and asks what it got.
    ///
    /// # Errors
    /// What the kernel refuses.
    pub fn try_out(&self) -> Result<Granted> {
        let wanted = self.clone();
        let tried = std::thread::Builder::new().spawn(move || {
            wanted.apply()?;
            let failed =
                |error| Error::io("get_mempolicy", "cannot be asked", "say no policy", error);
            Ok(Granted {
                cpus: sys::allowed_cpus().map_err(failed)?,
                policy: sys::own_policy().map_err(failed)?,
            })
        });
        let failed = |error| Error::io("a thread", "cannot be started", "free some memory", error);
        tried.map_err(failed)?.join().unwrap_or_else(|_| {
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
        if let Some(policy) = &self.policy {
            sys::set_own_policy(policy).map_err(|error| refused_policy(policy, error))?;
        }
        Ok(())
    }

    /// Binds the child that `command` will start.
    ///
    /// # Errors
    /// Node numbers beyond the kernel's limit.
    pub fn place(&self, command: &mut Command) -> Result<()> {
        sys::place_child(command, self.cpus.clone(), self.policy.as_ref()).map_err(|error| {
            Error::io(
                "set_mempolicy",
                "takes no such nodes",
                "name nodes that are there",
                error,
            )
        })
    }
}

fn refused_cpus(cpus: &CpuSet, error: io::Error) -> Error {
    let reason = match cpus.is_empty() {
        true => "no CPU is named".to_owned(),
        false => format!("CPUs {cpus} are refused"),
    };
    let remedy = "name CPUs that run and that the cpuset allows (hither topo --set allowed)";
    Error::io("sched_setaffinity", reason, remedy, error)
}

fn refused_policy(policy: &KernelPolicy, error: io::Error) -> Error {
    let since = match (policy.mode, policy.is_balanced) {
        (Mode::WeightedInterleave, _) => "; it needs Linux 6.9",
        (Mode::PreferredMany, _) => "; it needs Linux 5.15",
        (_, true) => "; balancing needs Linux 5.12 and NUMA balancing in the kernel",
        _ => "",
    };
    let remedy = format!(
        "name nodes that have memory and that the cpuset allows (hither topo --set allowed){since}"
    );
    Error::io(
        "set_mempolicy",
        format!("`{policy}` is refused"),
        remedy,
        error,
    )
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
            (granted.cpus, granted.policy.to_string()),
            (first, "bind:0".to_owned())
        );
        assert_eq!(
            (sys::allowed_cpus().unwrap(), sys::own_policy().unwrap()),
            before
        );
        let granted = Binding::default().try_out().unwrap();
        assert_eq!((granted.cpus, granted.policy), before);
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
