//! The file that says how a machine is split (`hither.partitions/1`, described in
//! `docs/partitions.md`).

use super::manager::{Goal, Pace};
use super::{Kind, Layout, Partition, REST};
pub use crate::fault::TextFault;
use crate::rset::{Expression, ResourceSet, Resources};
use serde::Deserialize;
use toml::Spanned;

/// The format that this reader knows, in the file's `format`.
pub const FORMAT: &str = "hither.partitions/1";
/// Letters of a name at most.
const NAME_LETTERS: usize = 32;
/// Bytes of a file at most.
const MAX_BYTES: usize = 1 << 20;

/// Where interrupts and the kernel's own work go.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Work {
    /// To CPUs of the rest.
    #[default]
    Rest,
    /// As they are.
    Leave,
}

/// What becomes of what no partition has and the rest does not name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Unused {
    /// It is the rest's.
    #[default]
    Rest,
    /// Taken off-line.
    Offline,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    format: Spanned<String>,
    #[serde(default)]
    interrupts: Work,
    #[serde(default)]
    workqueues: Work,
    #[serde(default)]
    unused: Unused,
    rest: Option<Rest>,
    #[serde(default)]
    manager: Pace,
    #[serde(default)]
    partition: Vec<Section>,
}

#[derive(Debug, Deserialize)]
#[serde(
    deny_unknown_fields,
    expecting = "a table such as { on = \"node:0\", goal = {} }"
)]
struct Rest {
    on: Option<Spanned<String>>,
    goal: Option<Spanned<Goal>>,
}

#[derive(Debug, Deserialize)]
#[serde(
    deny_unknown_fields,
    expecting = "a table `[[partition]]` with `name` and `on`"
)]
struct Section {
    name: Spanned<String>,
    on: Spanned<String>,
    #[serde(default)]
    kind: Kind,
    goal: Option<Spanned<Goal>>,
}

/// A file that was read and fits the machine.
#[derive(Clone, Debug, PartialEq)]
pub struct Wish {
    /// Who has what.
    pub layout: Layout,
    /// Where interrupts go.
    pub interrupts: Work,
    /// Where the kernel's own work goes.
    pub workqueues: Work,
    /// What owners want, by name.
    pub goals: Vec<(String, Goal)>,
    /// How eagerly the manager acts.
    pub pace: Pace,
}

/// Reads a file for a machine.
///
/// # Errors
/// The first fault, with its line.
pub fn read(text: &str, machine: &Resources) -> Result<Wish, TextFault> {
    let at = |offset: usize, reason: String| TextFault::at(text, offset, reason);
    if text.len() > MAX_BYTES {
        return Err(at(
            0,
            "has more than 1 MiB: no file of partitions has".to_owned(),
        ));
    }
    let document: Document = match toml::from_str(text) {
        Ok(document) => document,
        Err(error) => {
            let start = error.span().map_or(0, |span| span.start);
            return Err(at(start, error.message().replace('\n', " ")));
        }
    };
    if document.format.get_ref() != FORMAT {
        let start = document.format.span().start;
        return Err(at(start, format!("the format is not \"{FORMAT}\"")));
    }
    if document.partition.is_empty() {
        return Err(at(
            text.len(),
            "there is no [[partition]]: name one".to_owned(),
        ));
    }
    let resolve = |on: &Spanned<String>| -> Result<ResourceSet, TextFault> {
        let fail = |reason: String| Err(at(on.span().start, reason));
        let expression: Expression = match on.get_ref().parse() {
            Ok(expression) => expression,
            Err(fault) => return fail(fault.pointed(on.get_ref())),
        };
        match expression.resolve(machine) {
            // What hither itself may not use here, it cannot give to others either.
            Ok(found) if found.left_out().is_empty() => Ok(found.set),
            Ok(found) => fail(format!(
                "CPUs {} and memory {} are not allowed here: run hither outside any cpuset",
                found.left_out().cpus,
                found.left_out().nodes
            )),
            Err(fault) => fail(fault.reason),
        }
    };
    let mut layout = Layout::default();
    let mut taken = ResourceSet::new();
    let mut goals = Vec::new();
    let mut goal_of = |name: &str, goal: &Option<Spanned<Goal>>| match goal {
        None => Ok(()),
        Some(goal) => match goal.get_ref().check() {
            Ok(()) => {
                goals.push((name.to_owned(), goal.get_ref().clone()));
                Ok(())
            }
            Err(reason) => Err(at(goal.span().start, reason)),
        },
    };
    for section in &document.partition {
        let name = section.name.get_ref();
        let start = section.name.span().start;
        if let Err(reason) = check_name(name) {
            return Err(at(start, reason));
        }
        if layout.of(name).is_some() {
            return Err(at(start, format!("there are two partitions `{name}`")));
        }
        goal_of(name, &section.goal)?;
        let set = resolve(&section.on)?;
        taken = taken.union(&set);
        layout.partitions.push(Partition {
            name: name.clone(),
            kind: section.kind,
            set,
        });
    }
    // Memory that several partitions share is none of the rest's.
    let left = taken.complement(&machine.machine());
    let rest_on = document.rest.as_ref().and_then(|rest| rest.on.as_ref());
    layout.rest = match rest_on {
        Some(on) => resolve(on)?,
        None => left.clone(),
    };
    if let Some(rest) = &document.rest {
        goal_of(REST, &rest.goal)?;
    }
    layout.unused = left.difference(&layout.rest);
    if document.unused == Unused::Rest && !layout.unused.is_empty() {
        let start = rest_on.map_or(0, |on| on.span().start);
        let unused = &layout.unused;
        let reason = format!(
            "nobody has CPUs `{}` and memory `{}`: give them to somebody, or write \
             unused = \"offline\"",
            unused.cpus, unused.nodes
        );
        return Err(at(start, reason));
    }
    if let Err(broken) = layout.check(machine) {
        let sections = document.partition.iter();
        let mut named = sections.filter(|section| *section.name.get_ref() == broken.owner);
        let start = match named.next() {
            Some(section) => section.on.span().start,
            None => rest_on.map_or(0, |on| on.span().start),
        };
        return Err(at(start, format!("`{}` {}", broken.owner, broken.reason)));
    }
    Ok(Wish {
        layout,
        interrupts: document.interrupts,
        workqueues: document.workqueues,
        goals,
        pace: document.manager,
    })
}

/// May a partition be called so?
///
/// # Errors
/// Why not.
pub fn check_name(name: &str) -> Result<(), String> {
    let fits = |letter: char| letter.is_ascii_alphanumeric() || letter == '-' || letter == '_';
    if name == REST || name == super::writes::MOVING {
        return Err(format!("`{name}` is hither's own word: take another name"));
    }
    if name.is_empty() || name.len() > NAME_LETTERS || !name.chars().all(fits) {
        return Err(format!(
            "a name has 1 to {NAME_LETTERS} letters, digits, `-` and `_`"
        ));
    }
    Ok(())
}
