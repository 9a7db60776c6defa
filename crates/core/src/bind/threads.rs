//! Which CPU each thread of a program gets: fill, round-robin, float (IBM ccNUMA paper, section 4).

use crate::ids::CpuId;
use crate::rset::{Level, Resources};
use crate::set::CpuSet;
use std::fmt;
use std::str::FromStr;

/// How threads are laid on the CPUs of a set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ThreadPolicy {
    /// Every thread may run on every CPU of the set; the scheduler decides.
    Float,
    /// Close together: a cache domain is filled before the next begins, a node before the next. In
    /// a domain every core gets one thread before any gets a second.
    Fill,
    /// Apart: one thread on each part of a level in turn, each part filled as above.
    RoundRobin(Level),
}

impl ThreadPolicy {
    /// The CPUs in the order in which threads get them; the thread after the last gets the first
    /// again. Each CPU of `cpus` is in it once. None where threads float.
    #[must_use]
    pub fn order(self, cpus: &CpuSet, resources: &Resources) -> Vec<CpuId> {
        match self {
            Self::Float => Vec::new(),
            Self::Fill => filled(cpus, resources, &[Level::Node, Level::Domain]),
            Self::RoundRobin(level) => in_turns(
                split(cpus, resources, level)
                    .iter()
                    .map(|part| filled(part, resources, &[Level::Node, Level::Domain]))
                    .collect(),
            ),
        }
    }
}

/// The parts of a set at a level, and what is in none of them.
fn split(cpus: &CpuSet, resources: &Resources, level: Level) -> Vec<CpuSet> {
    let mut rest = cpus.clone();
    let mut parts = Vec::new();
    for (_, part) in resources.parts(level) {
        let part = part.cpus.intersection(&rest);
        rest = rest.difference(&part);
        parts.push(part);
    }
    parts.push(rest);
    parts.retain(|part| !part.is_empty());
    parts
}

/// Part after part of the levels, wide to narrow; below them one CPU of each core in turn.
fn filled(cpus: &CpuSet, resources: &Resources, levels: &[Level]) -> Vec<CpuId> {
    match levels.split_first() {
        Some((&level, narrower)) => split(cpus, resources, level)
            .iter()
            .flat_map(|part| filled(part, resources, narrower))
            .collect(),
        None => {
            let cores = split(cpus, resources, Level::Core);
            in_turns(cores.iter().map(|core| core.iter().collect()).collect())
        }
    }
}

/// The first of each list, the second of each, and so on.
fn in_turns(lists: Vec<Vec<CpuId>>) -> Vec<CpuId> {
    let longest = lists.iter().map(Vec::len).max().unwrap_or(0);
    (0..longest)
        .flat_map(|turn| lists.iter().filter_map(move |list| list.get(turn).copied()))
        .collect()
}

/// `float`, `fill`, `round-robin:node`.
impl fmt::Display for ThreadPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Float => f.write_str("float"),
            Self::Fill => f.write_str("fill"),
            Self::RoundRobin(level) => write!(f, "round-robin:{}", level.word()),
        }
    }
}

/// As printed; `round-robin` alone goes over nodes.
impl FromStr for ThreadPolicy {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (word, level) = text.split_once(':').unwrap_or((text, "node"));
        let level = Level::ALL.into_iter().find(|known| known.word() == level);
        match (word, level) {
            ("float", _) if text == word => Ok(Self::Float),
            ("fill", _) if text == word => Ok(Self::Fill),
            ("round-robin", Some(level)) => Ok(Self::RoundRobin(level)),
            _ => Err(format!(
                "there is no thread policy `{text}`; there are float, fill, round-robin:package, \
                 round-robin:node, round-robin:domain and round-robin:core"
            )),
        }
    }
}
