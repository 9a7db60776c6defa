//! Laws that hold on any machine and for any expression.

use super::*;
use crate::ids::CpuId;
use crate::set::NumberSet;
use proptest::collection::{btree_set, vec};
use proptest::prelude::*;

/// A machine with holes in every numbering, nodes without CPUs or memory, and any cpuset.
fn machines() -> impl Strategy<Value = Resources> {
    let nodes = vec((1u32..5, 0u32..4, 0u64..3, 0u64..4, 1u64..900), 1..6);
    (nodes, any::<u32>(), any::<u8>()).prop_map(|(drawn, allowed_cpus, allowed_nodes)| {
        let (mut id, mut cpu) = (0, 0);
        let mut all = Vec::new();
        for (gap, cpu_count, total_gib, tier, bandwidth_mbs) in drawn {
            let cpus = (cpu..cpu + cpu_count).map(|number| CpuId(number * 2));
            all.push(Node {
                cpus: cpus.collect(),
                tier: u32::try_from(tier).unwrap().checked_sub(1),
                read_bandwidth_mbs: (bandwidth_mbs > 9).then_some(bandwidth_mbs),
                ..node(id, "", total_gib)
            });
            id += gap;
            cpu += cpu_count;
        }
        let count = all.len();
        let far = |from: usize| {
            (0..count)
                .map(|to| if from == to { 10 } else { 20 })
                .collect()
        };
        let rows: Vec<Vec<u32>> = (0..count).map(far).collect();
        let rows: Vec<&[u32]> = rows.iter().map(Vec::as_slice).collect();
        let mut machine = resources(all, &rows);
        let with_cpus = machine.nodes.iter().filter(|node| !node.cpus.is_empty());
        machine.domains = with_cpus.map(|node| node.cpus.clone()).collect();
        machine.cores = machine
            .machine()
            .cpus
            .iter()
            .map(|cpu| [cpu].into_iter().collect())
            .collect();
        // Packages that may cut through nodes.
        let package = |third: u32| {
            let all = machine.machine().cpus;
            let cpus = all.iter().filter(|cpu| cpu.0 / 6 == third).collect();
            (third * 3, cpus)
        };
        machine.packages = (0..6).map(package).collect();
        machine.devices = vec![device("eth0", Some(0)), device("unplaced", None)];
        machine.allowed = ResourceSet {
            cpus: (0..32)
                .filter(|bit| allowed_cpus >> bit & 1 == 1)
                .map(CpuId)
                .collect(),
            nodes: (0..8)
                .filter(|bit| allowed_nodes >> bit & 1 == 1)
                .map(NodeId)
                .collect(),
        };
        machine
    })
}

fn numbers() -> impl Strategy<Value = NumberSet> {
    btree_set(0u32..20, 1..5).prop_map(|set| set.into_iter().collect())
}

fn terms() -> impl Strategy<Value = Expression> {
    let levels = prop_oneof![
        Just(Level::Package),
        Just(Level::Node),
        Just(Level::Domain),
        Just(Level::Core)
    ];
    prop_oneof![
        Just(What::Machine),
        Just(What::Allowed),
        (levels, numbers()).prop_map(|(level, numbers)| What::Parts(level, numbers)),
        numbers().prop_map(What::MachineNodes),
        numbers().prop_map(What::AllowedNodes),
        numbers().prop_map(|set| What::Cpus(set.iter().map(CpuId).collect())),
        numbers().prop_map(|set| What::Memory(set.iter().map(NodeId).collect())),
        numbers().prop_map(What::Tiers),
        "[a-zA-Z0-9_.:@-]{1,12}".prop_map(What::LocalTo),
        prop_oneof![Just("eth0".to_owned()), "[a-z0-9_.:@-]{1,12}", "node[0-9]"]
            .prop_map(What::Near),
        (1u64..u64::MAX).prop_map(What::Fastest),
        (1u64..64).prop_map(|gib| What::Fastest(gib << 30)),
    ]
    .prop_map(Expression::from)
}

fn joined(
    leaves: impl Strategy<Value = Expression> + 'static,
) -> impl Strategy<Value = Expression> {
    leaves.prop_recursive(5, 24, 2, |inner| {
        let two = || {
            (
                inner.clone().prop_map(Box::new),
                inner.clone().prop_map(Box::new),
            )
        };
        prop_oneof![
            inner
                .clone()
                .prop_map(|one| Expression::Complement(Box::new(one))),
            two().prop_map(|(left, right)| Expression::Intersection(left, right)),
            two().prop_map(|(left, right)| Expression::Union(left, right)),
            two().prop_map(|(left, right)| Expression::Difference(left, right)),
        ]
    })
}

/// A machine with an expression of terms that it knows, besides any other.
fn known() -> impl Strategy<Value = (Resources, Expression)> {
    machines().prop_flat_map(|machine| {
        let mut whats = vec![What::Machine, What::Allowed, What::Near("eth0".into())];
        for level in Level::ALL {
            let parts = machine.parts(level).into_iter();
            whats.extend(
                parts.map(|(number, _)| What::Parts(level, [number].into_iter().collect())),
            );
        }
        let all = machine.machine();
        whats.extend(
            all.cpus
                .iter()
                .map(|cpu| What::Cpus([cpu].into_iter().collect())),
        );
        whats.extend(
            all.nodes
                .iter()
                .map(|node| What::Memory([node].into_iter().collect())),
        );
        let leaves = proptest::sample::select(whats).prop_map(Expression::from);
        (Just(machine), joined(leaves))
    })
}

/// Three sets of one machine.
fn sets() -> impl Strategy<Value = (ResourceSet, [ResourceSet; 3])> {
    fn set() -> impl Strategy<Value = ResourceSet> {
        let cpus = btree_set(0u32..12, 0..10);
        let nodes = btree_set(0u32..6, 0..5);
        (cpus, nodes).prop_map(|(cpus, nodes)| ResourceSet {
            cpus: cpus.into_iter().map(CpuId).collect(),
            nodes: nodes.into_iter().map(NodeId).collect(),
        })
    }
    (set(), [set(), set(), set()]).prop_map(|(machine, sets)| {
        let within = sets.map(|set| set.intersection(&machine));
        (machine, within)
    })
}

/// The mark is within the text and the message can be made.
fn is_sound(fault: &ExpressionFault, text: &str) {
    if let Some(at) = &fault.at {
        assert!(text.get(at.clone()).is_some(), "{at:?} of {text:?}");
    }
    assert!(!fault.reason.is_empty() && fault.reason.len() < 4000);
    assert!(fault.pointed(text).starts_with(&fault.reason));
}

fn read_any(text: &str) {
    match parse::parse(text) {
        Ok(expression) => {
            let printed = expression.to_string();
            assert_eq!(
                parse::parse(&printed).as_ref(),
                Ok(&expression),
                "{printed}"
            );
            let resolved = expression.resolve(&sparse());
            resolved.map_or_else(
                |fault| is_sound(&fault, text),
                |set| assert!(!set.set.is_empty()),
            );
        }
        Err(fault) => is_sound(&fault, text),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn union_and_intersection((_, [a, b, c]) in sets()) {
        prop_assert_eq!(a.union(&b), b.union(&a));
        prop_assert_eq!(a.intersection(&b), b.intersection(&a));
        prop_assert_eq!(a.union(&b).union(&c), a.union(&b.union(&c)));
        prop_assert_eq!(a.intersection(&b).intersection(&c), a.intersection(&b.intersection(&c)));
        prop_assert_eq!(a.union(&b.intersection(&c)), a.union(&b).intersection(&a.union(&c)));
        prop_assert_eq!(a.intersection(&b.union(&c)), a.intersection(&b).union(&a.intersection(&c)));
        prop_assert_eq!(a.union(&a.intersection(&b)), a.clone());
        prop_assert_eq!(a.intersection(&a.union(&b)), a.clone());
        prop_assert_eq!(a.union(&a), a.clone());
        prop_assert_eq!(a.union(&ResourceSet::new()), a.clone());
        prop_assert!(a.intersection(&ResourceSet::new()).is_empty());
    }

    #[test]
    fn complement_and_difference((machine, [a, b, c]) in sets()) {
        let not = |set: &ResourceSet| set.complement(&machine);
        prop_assert_eq!(not(&a.union(&b)), not(&a).intersection(&not(&b)));
        prop_assert_eq!(not(&a.intersection(&b)), not(&a).union(&not(&b)));
        prop_assert_eq!(not(&not(&a)), a.clone());
        prop_assert_eq!(a.union(&not(&a)), machine.clone());
        prop_assert!(a.intersection(&not(&a)).is_empty());
        prop_assert_eq!(a.difference(&b), a.intersection(&not(&b)));
        prop_assert_eq!(a.difference(&b).union(&a.intersection(&b)), a.clone());
        prop_assert_eq!(a.difference(&b).difference(&c), a.difference(&b.union(&c)));
    }

    #[test]
    fn subsets((machine, [a, b, c]) in sets()) {
        prop_assert!(a.is_subset(&a) && a.is_subset(&machine) && ResourceSet::new().is_subset(&a));
        prop_assert!(a.intersection(&b).is_subset(&a) && a.is_subset(&a.union(&b)));
        prop_assert_eq!(a.is_subset(&b), a.union(&b) == b);
        prop_assert_eq!(a.is_subset(&b), a.difference(&b).is_empty());
        prop_assert_eq!(a.is_subset(&b) && b.is_subset(&a), a == b);
        prop_assert!(!(a.is_subset(&b) && b.is_subset(&c)) || a.is_subset(&c));
        prop_assert_eq!(a.is_subset(&b), b.complement(&machine).is_subset(&a.complement(&machine)));
    }

    #[test]
    fn printing_then_parsing_is_identity(expression in joined(terms())) {
        let printed = expression.to_string();
        // Longer ones are refused, by design.
        if printed.split_whitespace().map(str::len).sum::<usize>() <= 1024 {
            prop_assert_eq!(parse::parse(&printed), Ok(expression), "{}", printed);
        }
    }

    #[test]
    fn any_text_is_read_or_refused(text in "\\PC{0,80}") {
        read_any(&text);
    }

    #[test]
    fn any_words_are_read_or_refused(words in vec(proptest::sample::select(vec![
        "node:0", "node:0,8", "mem:252", "cpus:0-7", "machine", "allowed", "near:gpu0", "tier:0",
        "fastest:1G", "local-to:", "eth0", ":", "node", "+", "&", "-", " - ", " ", "~", "(", ")",
        "0-3", ",", "!", "|", "\\", "\t", "\u{e9}", "\u{301}", "18446744073709551616", "core:65536",
    ]), 0..14)) {
        read_any(&words.concat());
    }

    #[test]
    fn operators_mean_those_of_sets((machine, expression) in known()) {
        let mean = |expression: &Expression| {
            resolve::evaluate(expression, &machine, &mut Vec::new()).unwrap()
        };
        let whole = mean(&expression);
        prop_assert!(whole.is_subset(&machine.machine()));
        match &expression {
            Expression::Term(_) => {}
            Expression::Complement(a) => prop_assert_eq!(whole, mean(a).complement(&machine.machine())),
            Expression::Intersection(a, b) => prop_assert_eq!(whole, mean(a).intersection(&mean(b))),
            Expression::Union(a, b) => prop_assert_eq!(whole, mean(a).union(&mean(b))),
            Expression::Difference(a, b) => prop_assert_eq!(whole, mean(a).difference(&mean(b))),
        }
    }

    #[test]
    fn clipping_is_a_subset_and_idempotent((machine, expression) in known()) {
        let Ok(found) = expression.resolve(&machine) else { return Ok(()) };
        prop_assert!(!found.set.is_empty());
        prop_assert_eq!(&found.set, &found.asked.intersection(&machine.usable()));
        prop_assert_eq!(found.left_out().union(&found.set), found.asked.clone());
        // Never silently, and never without cause.
        let mut told = found.warnings.iter().filter(|told| told.contains("left out"));
        prop_assert_eq!(told.next().is_none(), found.left_out().is_empty());
        // A part that was asked for is there.
        prop_assert_eq!(found.set.cpus.is_empty(), found.asked.cpus.is_empty());
        prop_assert_eq!(found.set.nodes.is_empty(), found.asked.nodes.is_empty());
        // Clipping again changes nothing: neither what is allowed, nor the clipped set itself.
        let allowed = Expression::from(What::Allowed);
        let again = Expression::Intersection(Box::new(expression), Box::new(allowed));
        let again = again.resolve(&machine).unwrap();
        prop_assert_eq!(&again.set, &found.set);
        prop_assert_eq!(again.warnings.len(), 0);
    }

    #[test]
    fn parts_of_a_level_are_disjoint_and_have_every_cpu(machine in machines()) {
        for level in Level::ALL {
            let mut all = ResourceSet::new();
            for (number, part) in machine.parts(level) {
                prop_assert!(all.intersection(&part).is_empty(), "{} {}", level.word(), number);
                all = all.union(&part);
            }
            prop_assert_eq!(&all.cpus, &machine.machine().cpus);
            prop_assert!(all.is_subset(&machine.machine()));
        }
    }

    #[test]
    fn any_expression_resolves_or_says_why(machine in machines(), expression in joined(terms())) {
        match expression.resolve(&machine) {
            Ok(found) => prop_assert!(found.set.is_subset(&machine.usable()) && !found.set.is_empty()),
            Err(fault) => prop_assert!(!fault.reason.is_empty()),
        }
    }
}
