use super::super::file::read;
use super::super::writes::{Group, Write, writes};
use super::super::{Layout, REST, State};
use super::*;
use proptest::prelude::*;

fn state() -> State {
    State {
        layout: read(FILE, &machine(6)).unwrap().layout,
        moving: None,
    }
}

#[test]
fn a_node_leaves_before_it_arrives() {
    let machine = machine(6);
    let begun = state().begin(NodeId(2), "db", "web", &machine).unwrap();
    let shown = |state: &State| -> Vec<String> {
        let groups = state.groups();
        let shown = groups
            .iter()
            .map(|group| format!("{} {}|{}", group.name, group.set.cpus, group.set.nodes));
        shown.collect()
    };
    assert_eq!(
        shown(&begun),
        ["rest |0,4-5", "db 4-7|1-2", "web 12-15|3", "moving 8-11|2"]
    );
    assert_eq!(
        shown(&begun.closed()),
        ["rest |0,4-5", "db 4-7|1", "web 12-15|3", "moving 8-11|2"]
    );
    let done = begun.closed().handed_over().unwrap();
    assert_eq!(shown(&done), ["rest |0,4-5", "db 4-7|1", "web 8-15|2-3"]);
    assert_eq!(begun.taken_back(), state());
    // Memory without CPUs moves as well, without a group for CPUs.
    let begun = state().begin(NodeId(5), REST, "db", &machine).unwrap();
    assert_eq!(shown(&begun), ["rest |0,4-5", "db 4-11|1-2", "web 12-15|3"]);
    assert_eq!(shown(&begun.closed())[0], "rest |0,4");
}

#[test]
fn what_cannot_move_is_refused_with_the_reason() {
    let machine = machine(6);
    let busy = state().begin(NodeId(2), "db", "web", &machine).unwrap();
    for (state, node, from, to, part) in [
        (&busy, 1, "db", "web", "node2 is on its way already"),
        (&state(), 2, "db", "db", "`db` has node2 already"),
        (&state(), 9, "db", "web", "no node9; there are node0, node1"),
        (&state(), 3, "db", "web", "node3 is not in `db` but in web"),
        (
            &state(),
            2,
            "dc",
            "web",
            "no partition `dc`; there are rest, db, web",
        ),
        (
            &state(),
            2,
            "db",
            "wen",
            "no partition `wen`; there are rest, db, web",
        ),
        (&state(), 3, "web", "db", "then `web` has no CPU"),
    ] {
        let refusal = state.begin(NodeId(node), from, to, &machine).unwrap_err();
        assert!(refusal.contains(part), "{refusal}");
    }
    // A partition may lose its CPUs' memory while it has other memory, but never all of it.
    let text = FILE.replace("node:3", "node:3,5");
    let layout = read(&text, &machine).unwrap().layout;
    let state = State {
        layout,
        moving: None,
    };
    assert!(state.begin(NodeId(5), "web", "db", &machine).is_ok());
    assert!(state.begin(NodeId(3), "web", "db", &machine).is_err());
}

/// Carries writes out as the kernel would; `check` looks after each.
fn carry_out(groups: &mut Vec<Group>, todo: &[Write], mut check: impl FnMut(&[Group])) {
    for write in todo {
        fn find<'a>(groups: &'a mut [Group], name: &str) -> &'a mut Group {
            groups.iter_mut().find(|group| group.name == name).unwrap()
        }
        match write {
            Write::Make(name) => groups.push(Group {
                name: name.clone(),
                kind: None,
                set: ResourceSet::new(),
            }),
            Write::Nodes(name, nodes) => find(groups, name).set.nodes = nodes.clone(),
            Write::Cpus(name, cpus) => find(groups, name).set.cpus = cpus.clone(),
            Write::Kind(name, kind) => find(groups, name).kind = Some(*kind),
            Write::Remove(name) => groups.retain(|group| group.name != *name),
        }
        check(groups);
    }
}

fn sorted(mut groups: Vec<Group>) -> Vec<Group> {
    groups.sort_by(|a, b| a.name.cmp(&b.name));
    groups
}

fn never_shared(groups: &[Group]) {
    for (index, group) in groups.iter().enumerate() {
        for other in &groups[..index] {
            let both = group.set.cpus.intersection(&other.set.cpus);
            assert!(both.is_empty(), "{} and {}", group.name, other.name);
        }
    }
}

proptest! {
    /// Any moves, interrupted anywhere: no CPU is ever in two groups, no group with CPUs loses all
    /// of them, every layout holds, and what is interrupted ends as one of the two layouts.
    #[test]
    fn cpus_have_one_owner_at_every_moment(
        steps in prop::collection::vec((0u32..8, 0usize..4, 0usize..4, 0usize..30, any::<bool>()), 1..40)
    ) {
        let machine = machine(8);
        let text = FILE.replace("node:3", "node:3-5");
        let mut state = State { layout: read(&text, &machine).unwrap().layout, moving: None };
        let mut groups = Vec::new();
        carry_out(&mut groups, &writes(&[], &state.groups()), never_shared);
        let owners = [REST, "db", "web", "none"];
        let mut moved = 0;
        for (node, from, to, cut, is_closed) in steps {
            let Ok(begun) = state.begin(NodeId(node), owners[from], owners[to], &machine) else {
                continue;
            };
            let before = groups.clone();
            let check = |groups: &[Group]| {
                never_shared(groups);
                for group in groups {
                    let had = before.iter().any(|old| old.name == group.name && !old.set.cpus.is_empty());
                    assert!(!had || !group.set.cpus.is_empty(), "{} has no CPU", group.name);
                    assert!(!group.set.nodes.is_empty() || !before.contains(group), "{}", group.name);
                }
            };
            // Cut short somewhere on the way there.
            let stage = if is_closed { begun.closed() } else { begun };
            let mut todo = writes(&groups, &stage.groups());
            todo.truncate(cut);
            carry_out(&mut groups, &todo, check);
            state = if is_closed { stage.handed_over().unwrap() } else { stage.taken_back() };
            moved += usize::from(is_closed);
            let todo = writes(&groups, &state.groups());
            carry_out(&mut groups, &todo, check);
            prop_assert_eq!(sorted(groups.clone()), sorted(state.groups()));
            prop_assert!(writes(&groups, &state.groups()).is_empty());
            state.layout.check(&machine).unwrap();
            let all = state.layout.owners().fold(ResourceSet::new(), |sum, (_, set)| sum.union(set));
            prop_assert_eq!(all, machine.machine());
            // What is kept in a file is the same when it is read again.
            let kept: State = toml::from_str(&toml::to_string(&stage).unwrap()).unwrap();
            prop_assert_eq!(&kept, &stage);
        }
        let _ = moved;
    }
}

#[test]
fn a_layout_is_kept_as_text() {
    let layout = state().layout;
    let text = toml::to_string(&layout).unwrap();
    assert!(text.contains("cpus = \"4-11\""), "{text}");
    assert_eq!(toml::from_str::<Layout>(&text).unwrap(), layout);
}
