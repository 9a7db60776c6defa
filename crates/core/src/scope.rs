//! Scopes: which processes are judged together.
//!
//! A *selector* says who belongs to a scope; children of a member are members. A process belongs
//! to at most one scope, the first whose selector takes it, and stays there until it ends: a
//! process whose parent has ended, or whose name has changed, is still the one that was chosen.

use crate::ids::{Pid, SpaceId};
use crate::policy::Policy;
use crate::snapshot::ProcessState;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// Who belongs to a scope.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Selector {
    /// Every watched process.
    All,
    /// This process and its children.
    Tree(Pid),
    /// Processes of this control group and of those below it, by path as in `/proc/PID/cgroup`.
    Cgroup(String),
    /// Processes whose command name fits: `*` stands for any characters, `?` for one.
    Name(String),
    /// Processes of this user.
    User(u32),
    /// Processes that ask to be looked after ([`ProcessState::opted_in`]).
    OptedIn,
    /// Of those that another selector takes, the processes of one user: children of another user are no
    /// members, so that what is told of the scope and done to it concerns that user alone.
    Within {
        /// The user.
        user: u32,
        /// Who takes processes.
        of: Box<Selector>,
    },
    /// Whoever one of these takes.
    Any(Vec<Selector>),
}

impl Selector {
    /// Does it name this process itself, whatever its parents are?
    #[must_use]
    pub fn names(&self, process: &ProcessState) -> bool {
        self.names_but(process, &BTreeSet::new())
    }

    /// The same, where these numbers belong to others by now than those that were chosen by number.
    fn names_but(&self, process: &ProcessState, spent: &BTreeSet<Pid>) -> bool {
        match self {
            Self::All => true,
            Self::Tree(pid) => process.pid == *pid && !spent.contains(pid),
            Self::Cgroup(path) => process
                .group
                .as_ref()
                .is_some_and(|group| is_within(group, path)),
            Self::Name(pattern) => fits(pattern, &process.name),
            Self::User(user) => process.user == *user,
            Self::OptedIn => process.opted_in,
            Self::Within { user, of } => process.user == *user && of.names_but(process, spent),
            Self::Any(selectors) => {
                let mut selectors = selectors.iter();
                selectors.any(|selector| selector.names_but(process, spent))
            }
        }
    }
}

impl Selector {
    /// The processes that it names by number.
    fn roots(&self) -> Vec<Pid> {
        match self {
            Self::Tree(pid) => vec![*pid],
            Self::Any(selectors) => selectors.iter().flat_map(Self::roots).collect(),
            Self::Within { of, .. } => of.roots(),
            Self::All | Self::Cgroup(_) | Self::Name(_) | Self::User(_) | Self::OptedIn => {
                Vec::new()
            }
        }
    }

    /// May it be a member because its parent is one, or because it was one before?
    fn admits(&self, process: &ProcessState) -> bool {
        match self {
            Self::Within { user, .. } => process.user == *user,
            _ => true,
        }
    }
}

/// Is the control group this one, or below it?
fn is_within(group: &str, path: &str) -> bool {
    let path = path.trim_end_matches('/');
    group
        .strip_prefix(path)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Does a name fit a pattern of `*` and `?`? Takes time in the product of both lengths at most: a
/// mismatch goes back to the last star alone.
#[must_use]
pub fn fits(pattern: &str, name: &str) -> bool {
    let (pattern, name): (Vec<char>, Vec<char>) =
        (pattern.chars().collect(), name.chars().collect());
    let (mut at, mut from) = (0, 0);
    // Position after the last star, and how many characters it has taken so far.
    let mut star: Option<(usize, usize)> = None;
    while from < name.len() {
        match pattern.get(at) {
            Some('*') => {
                at += 1;
                star = Some((at, from));
            }
            Some(&one) if one == '?' || one == name[from] => {
                at += 1;
                from += 1;
            }
            _ => {
                let Some((after, taken)) = star else {
                    return false;
                };
                at = after;
                from = taken + 1;
                star = Some((after, from));
            }
        }
    }
    pattern[at..].iter().all(|&rest| rest == '*')
}

/// The processes that a selector takes, children of members included.
#[must_use]
pub fn members(selector: &Selector, processes: &[ProcessState]) -> BTreeSet<Pid> {
    let named = processes.iter().filter(|process| selector.names(process));
    with_children(
        named.map(|process| process.pid),
        &children(processes),
        |_| true,
    )
}

/// Children by parent.
fn children(processes: &[ProcessState]) -> BTreeMap<Pid, Vec<Pid>> {
    let mut children: BTreeMap<Pid, Vec<Pid>> = BTreeMap::new();
    for process in processes {
        children
            .entry(process.parent)
            .or_default()
            .push(process.pid);
    }
    children
}

fn with_children(
    first: impl Iterator<Item = Pid>,
    children: &BTreeMap<Pid, Vec<Pid>>,
    admits: impl Fn(Pid) -> bool,
) -> BTreeSet<Pid> {
    let mut waiting: Vec<Pid> = first.collect();
    let mut members = BTreeSet::new();
    while let Some(pid) = waiting.pop() {
        if admits(pid) && members.insert(pid) {
            waiting.extend(children.get(&pid).into_iter().flatten());
        }
    }
    members
}

/// A scope that an engine shall look after.
pub struct ScopeSpec {
    /// Its name in the log; empty where there is only one and nothing needs to be told apart.
    pub name: String,
    /// Who belongs to it.
    pub selector: Selector,
    /// What decides for it.
    pub policy: Box<dyn Policy>,
}

/// Which process belongs to which scope.
#[derive(Clone, Debug, Default)]
pub struct Roster {
    places: BTreeMap<Pid, Place>,
    /// Numbers of members that have ended: whoever has one of them now was not chosen by it.
    spent: BTreeSet<Pid>,
}

/// Where a process belongs, and by what it is known again.
#[derive(Clone, Copy, Debug)]
struct Place {
    scope: usize,
    space: SpaceId,
    parent: Pid,
}

impl Roster {
    /// Lets the members of a scope go: another may take them.
    pub fn release(&mut self, scope: usize) {
        self.places.retain(|_, place| place.scope != scope);
    }

    /// Members of each scope, by its position in `selectors`.
    ///
    /// A known process stays where it was. It is known by its address space, or, as exec changes
    /// that, by its parent: a number that is used again belongs to another parent's child.
    pub fn assign(
        &mut self,
        selectors: &[&Selector],
        processes: &[ProcessState],
    ) -> Vec<BTreeSet<Pid>> {
        let children = children(processes);
        let is_known = |process: &ProcessState, place: &Place| {
            place.space == process.space || place.parent == process.parent
        };
        let now: BTreeMap<Pid, &ProcessState> = processes
            .iter()
            .map(|process| (process.pid, process))
            .collect();
        let ended = self.places.iter().filter(|&(pid, place)| {
            let process = now.get(pid);
            process.is_none_or(|process| !is_known(process, place))
        });
        let ended = ended.map(|(&pid, _)| pid);
        let roots = selectors.iter().flat_map(|selector| selector.roots());
        let roots: BTreeSet<Pid> = roots.collect();
        self.spent.extend(ended.filter(|pid| roots.contains(pid)));
        let kept: Vec<(Pid, usize)> = processes
            .iter()
            .filter_map(|process| {
                let place = self.places.get(&process.pid)?;
                let is_member = is_known(process, place) && selectors[place.scope].admits(process);
                is_member.then_some((process.pid, place.scope))
            })
            .collect();
        let mut taken: BTreeMap<Pid, usize> = kept.iter().copied().collect();
        for (scope, selector) in selectors.iter().enumerate() {
            let kept = kept.iter().filter(|&&(_, of)| of == scope);
            let named = processes
                .iter()
                .filter(|process| selector.names_but(process, &self.spent));
            let first = kept
                .map(|&(pid, _)| pid)
                .chain(named.map(|process| process.pid));
            let admits = |pid| {
                now.get(&pid)
                    .is_some_and(|process| selector.admits(process))
            };
            for pid in with_children(first, &children, admits) {
                taken.entry(pid).or_insert(scope);
            }
        }
        let mut members = vec![BTreeSet::new(); selectors.len()];
        self.places.clear();
        for process in processes {
            let Some(&scope) = taken.get(&process.pid) else {
                continue;
            };
            members[scope].insert(process.pid);
            let place = Place {
                scope,
                space: process.space,
                parent: process.parent,
            };
            self.places.insert(process.pid, place);
        }
        members
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(pid: i32, parent: i32, name: &str) -> ProcessState {
        ProcessState {
            parent: Pid(parent),
            user: 1000 + pid as u32 % 2,
            group: Some(format!("/work/{}", pid / 100)),
            name: name.to_owned(),
            ..ProcessState::of_test(Pid(pid), SpaceId(pid as u32))
        }
    }

    fn pids(members: &BTreeSet<Pid>) -> Vec<i32> {
        members.iter().map(|pid| pid.0).collect()
    }

    #[test]
    fn selectors_take_whom_they_name_and_their_children() {
        let processes = [
            process(100, 1, "sh"),
            process(101, 100, "make"),
            process(102, 101, "cc1"),
            process(200, 1, "postgres"),
            process(1000, 1, "cc1plus"),
        ];
        let cases: [(Selector, &[i32]); 9] = [
            (Selector::All, &[100, 101, 102, 200, 1000]),
            (Selector::Tree(Pid(101)), &[101, 102]),
            (Selector::Tree(Pid(7)), &[]),
            (Selector::Cgroup("/work/1".into()), &[100, 101, 102]),
            (Selector::Cgroup("/".into()), &[100, 101, 102, 200, 1000]),
            // Not /work/10, whose name begins alike.
            (Selector::Cgroup("/work/2/".into()), &[200]),
            (Selector::Name("cc?*".into()), &[102, 1000]),
            (Selector::User(1001), &[101, 102]),
            (
                Selector::Any(vec![
                    Selector::Name("post*".into()),
                    Selector::Tree(Pid(102)),
                ]),
                &[102, 200],
            ),
        ];
        for (selector, expected) in cases {
            assert_eq!(
                pids(&members(&selector, &processes)),
                expected,
                "{selector:?}"
            );
        }
    }

    #[test]
    fn names_fit_patterns() {
        for (pattern, name, expected) in [
            ("*", "", true),
            ("", "", true),
            ("", "a", false),
            ("a*b", "axxb", true),
            ("a*b*c", "abxbc", true),
            ("a*b", "abx", false),
            ("?", "\u{e4}", true),
            ("a?c", "ac", false),
            ("**x", "yx", true),
        ] {
            assert_eq!(fits(pattern, name), expected, "{pattern} {name}");
        }
    }

    #[test]
    fn a_process_belongs_to_the_first_scope_that_takes_it_and_stays() {
        let (tree, name) = (Selector::Tree(Pid(100)), Selector::Name("work".into()));
        let selectors = [&tree, &name];
        let mut roster = Roster::default();
        let mut processes = vec![
            process(100, 1, "sh"),
            process(101, 100, "work"),
            process(200, 1, "work"),
        ];
        let of = |members: Vec<BTreeSet<Pid>>| members.iter().map(pids).collect::<Vec<_>>();
        assert_eq!(
            of(roster.assign(&selectors, &processes)),
            [vec![100, 101], vec![200]]
        );
        // The shell ends, init takes its child; the other one executes something of another name.
        processes.remove(0);
        processes[0].parent = Pid(1);
        processes[1].name = "other".into();
        processes[1].space = SpaceId(900);
        processes.push(process(201, 200, "child"));
        assert_eq!(
            of(roster.assign(&selectors, &processes)),
            [vec![101], vec![200, 201]]
        );
        // The shell's number is used again: nobody chose that one.
        processes.push(process(100, 1, "stranger"));
        processes[3].space = SpaceId(902);
        assert_eq!(
            of(roster.assign(&selectors, &processes)),
            [vec![101], vec![200, 201]]
        );
        processes.pop();
        // The number 101 is used again, by somebody else's child.
        processes[0] = process(101, 7, "stranger");
        processes[0].space = SpaceId(901);
        assert_eq!(
            of(roster.assign(&selectors, &processes)),
            [vec![], vec![200, 201]]
        );
    }
}
