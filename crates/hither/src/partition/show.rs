//! Partitions as a table and as JSON (`hither.partition/1`, docs/partitions.md).

use crate::print::{self, Table};
use crate::terminal::Terminal;
use hither_core::partition::file::Wish;
use hither_core::partition::{Layout, REST, Stage, State};
use hither_core::rset::{ResourceSet, Resources};
use hither_linux::partition::kept::{KeptPartitions, Phase};
use hither_linux::partition::{self as machine};
use hither_linux::proc::cgroup;
use hither_linux::root::Root;
use serde_json::{Value, json};

const SCHEMA: &str = "hither.partition/1";

/// One row.
struct Owner<'a> {
    name: &'a str,
    kind: &'static str,
    set: &'a ResourceSet,
    /// Where there are processes to count.
    processes: Option<usize>,
}

fn owners<'a>(layout: &'a Layout, count: impl Fn(&str) -> Option<usize>) -> Vec<Owner<'a>> {
    let kind = |name: &str| {
        let found = layout.partitions.iter().find(|part| part.name == name);
        found.map_or("", |part| part.kind.word())
    };
    let owners = layout.owners().map(|(name, set)| Owner {
        name,
        kind: kind(name),
        set,
        processes: count(name),
    });
    let unused = (!layout.unused.is_empty()).then_some(Owner {
        name: "unused",
        kind: "offline",
        set: &layout.unused,
        processes: None,
    });
    owners.chain(unused).collect()
}

fn table(owners: &[Owner<'_>], machine: &Resources) -> String {
    let rows: Vec<Vec<String>> = owners
        .iter()
        .map(|owner| {
            let (total, free) = machine.memory_bytes(&owner.set.nodes);
            vec![
                owner.name.to_owned(),
                owner.kind.to_owned(),
                owner.set.cpus.to_string(),
                owner.set.nodes.to_string(),
                print::bytes(total),
                print::bytes(free),
                owner
                    .processes
                    .map_or_else(String::new, |count| count.to_string()),
            ]
        })
        .collect();
    let head = [
        "partition",
        "kind",
        "CPUs",
        "nodes",
        "memory",
        "free",
        "processes",
    ];
    Table::new(&head, &rows).text(Terminal::of_output())
}

fn json_rows(owners: &[Owner<'_>], machine: &Resources) -> Vec<Value> {
    owners
        .iter()
        .map(|owner| {
            let (total, free) = machine.memory_bytes(&owner.set.nodes);
            json!({
                "name": owner.name,
                "kind": (!owner.kind.is_empty()).then_some(owner.kind),
                "cpus": owner.set.cpus.to_string(),
                "nodes": owner.set.nodes.to_string(),
                "memory_bytes": total,
                "free_bytes": free,
                "processes": owner.processes,
            })
        })
        .collect()
}

/// Who has, or would have, what.
pub fn layout(wish: &Wish, machine: &Resources, json: bool) -> anyhow::Result<()> {
    let owners = owners(&wish.layout, |_| None);
    if json {
        let document = json!({"schema": SCHEMA, "partitions": json_rows(&owners, machine)});
        return Ok(print::out(&print::json(document))?);
    }
    Ok(print::report(&table(&owners, machine))?)
}

/// What there is on this machine.
pub fn running(root: &Root, kept: Option<&KeptPartitions>, json: bool) -> anyhow::Result<()> {
    let Some(kept) = kept else {
        let document = json!({"schema": SCHEMA, "partitions": []});
        print::out(&match json {
            true => print::json(document),
            false => "this machine has no partitions\n".to_owned(),
        })?;
        return Ok(());
    };
    let machine = machine::machine(root)?;
    let count = |name: &str| {
        // The system's own processes are in groups that are not ours.
        (name != REST).then(|| cgroup::processes(root, &cgroup::folder(name)).len())
    };
    let owners = owners(&kept.state.layout, count);
    if json {
        let moving = kept.state.moving.as_ref().map(|moving| {
            json!({
                "node": moving.node.0,
                "from": moving.from,
                "to": moving.to,
                "closed": moving.stage == Stage::Closed,
            })
        });
        let document = json!({
            "schema": SCHEMA,
            "phase": phase(kept.phase),
            "partitions": json_rows(&owners, &machine),
            "moving": moving,
        });
        return Ok(print::out(&print::json(document))?);
    }
    let mut text = table(&owners, &machine);
    text.push_str(&on_the_way(&kept.state));
    if kept.phase != Phase::Running {
        text.push_str(&format!(
            "they are {}, or hither was killed while they were: the next call mends that\n",
            phase(kept.phase)
        ));
    }
    Ok(print::report(&text)?)
}

fn phase(phase: Phase) -> &'static str {
    match phase {
        Phase::Starting => "starting",
        Phase::Running => "running",
        Phase::Stopping => "stopping",
    }
}

fn on_the_way(state: &State) -> String {
    state.moving.as_ref().map_or_else(String::new, |moving| {
        format!(
            "{} is on its way from {} to {}\n",
            moving.node, moving.from, moving.to
        )
    })
}
