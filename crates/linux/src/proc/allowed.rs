//! `/proc/PID/status`: which CPUs and which memory a process may use.
//!
//! The CPUs are those of its cpuset and its affinity together, as numactl takes them: who was
//! started by `taskset` or a batch system is meant to stay there. The nodes are its cpuset's.

use crate::error::Fault;
use crate::parse::{self, Parsed};
use hither_core::set::{CpuSet, IdSet, NodeSet, Numbered};

/// What a process may use. Both name what could be as well as what is: on many machines CPUs up
/// to the kernel's limit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Allowed {
    /// CPUs, where the kernel tells.
    pub cpus: Option<CpuSet>,
    /// Nodes to take memory from; `None` on kernels without cpusets or NUMA.
    pub nodes: Option<NodeSet>,
}

/// Reads the two lines.
///
/// ```text
/// Cpus_allowed_list:  0-1
/// Mems_allowed_list:  0
/// ```
pub fn parse(text: &str) -> Parsed<Allowed> {
    Ok(Allowed {
        cpus: line(text, "Cpus_allowed_list:")?,
        nodes: line(text, "Mems_allowed_list:")?,
    })
}

fn line<T: Numbered>(text: &str, key: &str) -> Parsed<Option<IdSet<T>>> {
    let mut lines = text.lines().enumerate();
    let found = lines.find_map(|(index, line)| Some((index, line.strip_prefix(key)?)));
    let Some((index, list)) = found else {
        return Ok(None);
    };
    let set = parse::list(list).map_err(|fault| Fault::new(index + 1, fault.reason))?;
    Ok(Some(set))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_lines_are_read_and_either_may_be_missing() {
        let text = "Name:\tcat\nCpus_allowed:\tf3\nCpus_allowed_list:\t0-1,4-7\n\
                    Mems_allowed:\t1\nMems_allowed_list:\t0,8\n";
        let allowed = parse(text).unwrap();
        assert_eq!(allowed.cpus.unwrap().to_string(), "0-1,4-7");
        assert_eq!(allowed.nodes.unwrap().to_string(), "0,8");
        assert_eq!(parse("Name:\tcat\n").unwrap(), Allowed::default());
        let fault = parse("Name:\tcat\nMems_allowed_list:\tx\n").unwrap_err();
        assert_eq!((fault.line, fault.reason.contains("`x`")), (2, true));
    }

    #[test]
    fn the_kernels_own_lines_agree_with_the_affinity() {
        let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
        let cpus = parse(&status).unwrap().cpus.unwrap();
        assert_eq!(cpus, crate::sys::allowed_cpus().unwrap());
    }
}
