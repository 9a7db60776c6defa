//! What is refused, where the mark stands, and what is said.

use super::*;

fn fault(text: &str, machine: &Resources) -> ExpressionFault {
    let expression = text.parse::<Expression>();
    let resolved = expression.and_then(|expression| expression.resolve(machine));
    resolved.map_or_else(|fault| fault, |set| panic!("`{text}` gave {set:?}"))
}

#[test]
fn faults_of_the_text_are_marked() {
    let machine = sparse();
    for (text, marked, words) in [
        ("", "", "a set is missing here: machine, allowed"),
        ("   ", "", "a set is missing"),
        ("node:0 +", "", "a set is missing"),
        ("node:0 + + node:1", "+", "a set belongs here"),
        ("& node:0", "&", "a set belongs here"),
        ("nod:0", "nod:0", "there is no `nod:`"),
        ("Node:0", "Node:0", "there is no `Node:`"),
        ("2", "2", "write node:2 or cpus:2"),
        ("0-3,8", "0-3,8", "write node:0-3,8 or cpus:0-3,8"),
        ("node2", "node2", "write node:2"),
        ("cpu0-3", "cpu0-3", "write cpus:0-3"),
        ("gpu0", "gpu0", "does not say what it is"),
        (
            "node:",
            "node:",
            "lacks what follows the colon, as in node:0-1",
        ),
        (
            "node:x",
            "node:x",
            "`x` is no number; write it as in node:0-1",
        ),
        ("node:3-1", "node:3-1", "runs backwards"),
        ("node:0, 8", "node:0,", "is no number"),
        ("machine:0", "machine:0", "stands alone"),
        ("node:0 node:8", "n", "an operator belongs here"),
        ("node:0|node:8", "|", "write + for the union"),
        ("node:0 \\ node:8", "\\", "write \" - \""),
        ("!node:0", "!", "write ~ for the complement"),
        ("cpus:!0", "!", "as in ~cpus:0"),
        ("node:0 + mem:!1", "!", "as in ~mem:0"),
        ("+0,+2", "+", "as in allowed-node:0,2"),
        ("node:+0,+2", "+", "as in allowed-node:0,2"),
        ("all", "all", "machine or allowed"),
        ("cpus:all", "cpus:all", "for all there is machine"),
        ("node:0 -node:8", "-", "a space on both sides of -"),
        ("(node:0)-node:8", "-", "a space on both sides of -"),
        ("node:0- node:8", "node:0-", "a space on both sides of -"),
        ("- node:8", "-", "a space on both sides of -"),
        ("(node:0", "(", "this `(` has no `)`"),
        ("node:0)", ")", "this `)` has no `(`"),
        ("near:a,b", "near:a,b", "names of devices hold"),
        ("fastest:", "fastest:", "as in fastest:64G"),
        ("fastest:0", "fastest:0", "more than no memory"),
        (
            "fastest:much",
            "fastest:much",
            "is no size: write a whole number",
        ),
        ("node:0 + nöde:1", "n", "does not say what it is"),
        ("é", "é", "a set belongs here"),
    ] {
        let fault = fault(text, &machine);
        let at = fault.at.clone().unwrap();
        assert_eq!(&text[at], marked, "{text}: {fault}");
        assert!(fault.reason.contains(words), "{text}: {fault}");
    }
}

#[test]
fn what_the_machine_has_not_is_marked_and_what_it_has_is_listed() {
    let machine = sparse();
    for (text, marked, words) in [
        (
            "node:0 + node:7-8",
            "node:7-8",
            "there is no node 7; this machine has node 0,8,252",
        ),
        (
            "package:1",
            "package:1",
            "there is no package 1; this machine has package 0,8",
        ),
        ("domain:4", "domain:4", "this machine has domain 0-3"),
        ("core:8", "core:8", "this machine has core 0-7"),
        (
            "machine-node:8",
            "machine-node:8",
            "has machine-node 0-2, counted from 0; node8 is machine-node:1",
        ),
        (
            "allowed-node:3",
            "allowed-node:3",
            "may use memory of nodes 0,8,252",
        ),
        (
            "cpus:7-8",
            "cpus:7-8",
            "CPUs 8 are offline; CPUs 0-7 run here",
        ),
        ("cpus:70", "cpus:70", "there are no CPUs 70"),
        (
            "mem:1",
            "mem:1",
            "there is no node 1; nodes 0,8,252 have memory here",
        ),
        ("tier:0", "tier:0", "names no memory tiers"),
        (
            "~local-to:eth1",
            "local-to:eth1",
            "there are eth0, gpu0, lost, unplaced, and devices by PCI address, as in 0000:3b:00.0",
        ),
        (
            "local-to:node0",
            "local-to:node0",
            "there is no device `node0`",
        ),
        (
            "near:lost",
            "near:lost",
            "attached to node9, which is not online",
        ),
        ("near:unplaced", "near:unplaced", "firmware does not say"),
        ("near:node1", "near:node1", "this machine has nodes 0,8,252"),
        (
            "fastest:1G",
            "fastest:1G",
            "the bandwidth of nodes 0,8,252 is not known",
        ),
    ] {
        let fault = fault(text, &machine);
        assert_eq!(&text[fault.at.clone().unwrap()], marked, "{text}: {fault}");
        assert!(fault.reason.contains(words), "{text}: {fault}");
    }
    let less = memory_less();
    assert!(
        fault("mem:1", &less)
            .reason
            .contains("node without memory; node 0 have")
    );
    assert!(
        fault("domain:0", &less)
            .reason
            .contains("which CPUs share a domain")
    );
    assert!(
        fault("package:0", &less)
            .reason
            .contains("numbers no packages")
    );
    assert!(
        fault("near:x", &less)
            .reason
            .contains("none has a name here")
    );
    let hbm = hbm_and_cxl();
    assert!(
        fault("tier:3", &hbm)
            .reason
            .contains("this machine has tier 0-2")
    );
    assert!(
        fault("fastest:1T", &hbm)
            .reason
            .contains("200G are available")
    );
}

#[test]
fn nothing_left_is_refused() {
    let mut machine = sparse();
    assert!(
        fault("node:0 & node:8", &machine)
            .reason
            .contains("neither a CPU nor memory")
    );
    machine.allowed.cpus = "0-3".parse().unwrap();
    // Its memory is allowed; bound to that alone, the program would run anywhere.
    let without_cpus = fault("node:8", &machine);
    assert!(
        without_cpus
            .reason
            .contains("CPUs 4-7 and none of them is allowed"),
        "{without_cpus}"
    );
    assert!(without_cpus.reason.contains("CPUs 0-3"), "{without_cpus}");
    machine.allowed.nodes = "8".parse().unwrap();
    let without_memory = fault("node:0", &machine);
    assert!(
        without_memory.reason.contains("memory of node 0 and none"),
        "{without_memory}"
    );
    machine.allowed.cpus = CpuSet::new();
    assert!(fault("cpus:0", &machine).reason.contains("CPUs none"));
    assert_eq!(
        fault("cpus:0", &machine).pointed("cpus:0").lines().count(),
        1
    );
}

#[test]
fn the_mark_stands_under_letters_not_bytes() {
    let fault = fault("node:0 é", &sparse());
    assert_eq!(
        fault
            .pointed("node:0 é")
            .lines()
            .skip(1)
            .collect::<Vec<_>>(),
        ["  node:0 é", "         ^"]
    );
    let broken = "\tnode:9\n";
    let fault = broken
        .parse::<Expression>()
        .unwrap()
        .resolve(&sparse())
        .unwrap_err();
    assert_eq!(
        fault.pointed(broken).lines().skip(1).collect::<Vec<_>>(),
        ["   node:9 ", "   ^^^^^^"]
    );
}

#[test]
fn long_and_deep_texts_are_refused() {
    let long = "core:0+".repeat(200);
    assert!(
        parse::parse(&long)
            .unwrap_err()
            .reason
            .contains("1400 bytes")
    );
    for open in ["(", "~", "~("] {
        let deep = open.repeat(300) + "core:0";
        assert!(
            parse::parse(&deep)
                .unwrap_err()
                .reason
                .contains("64 levels"),
            "{open}"
        );
    }
    let fine = format!("{}core:0{}", "(".repeat(64), ")".repeat(64));
    assert_eq!(parse::parse(&fine).unwrap().to_string(), "core:0");
}

#[test]
fn every_example_is_read() {
    for (word, example) in expression::WORDS {
        let expression = parse::parse(example).unwrap();
        assert_eq!(expression.to_string(), example);
        assert!(example.starts_with(word));
    }
}

#[test]
fn who_takes_all_cpus_away_is_told() {
    let machine = sparse();
    let warnings = |text: &str| {
        let expression: Expression = text.parse().unwrap();
        expression.resolve(&machine).unwrap().warnings
    };
    let told = warnings("node:0 - cpus:0-7");
    assert!(told[0].contains("has memory alone"), "{told:?}");
    for meant in [
        "node:0 & mem:0",
        "mem:0",
        "node:0 - cpus:0",
        "node:0 - mem:8",
    ] {
        assert_eq!(warnings(meant), [""; 0], "{meant}");
    }
}

#[test]
fn a_long_set_is_read_as_it_is_printed() {
    let text = vec!["cpus:0"; 140].join("+");
    let expression: Expression = text.parse().unwrap();
    assert_eq!(expression.to_string().parse(), Ok(expression));
    assert!(vec!["cpus:0"; 180].join("+").parse::<Expression>().is_err());
}
