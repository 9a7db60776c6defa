use super::super::file::{Work, read};
use super::super::{Kind, REST};
use super::*;

#[test]
fn the_rest_has_what_is_left() {
    let wish = read(FILE, &machine(6)).unwrap();
    let shown: Vec<String> = wish
        .layout
        .owners()
        .map(|(name, set)| format!("{name} {} {}", set.cpus, set.nodes))
        .collect();
    assert_eq!(
        shown,
        ["rest 0-3,16-19 0,4-5", "db 4-11 1-2", "web 12-15 3"]
    );
    assert_eq!(wish.layout.partitions[1].kind, Kind::Isolated);
    assert_eq!(wish.interrupts, Work::Rest);
    assert!(wish.goals.is_empty());
}

#[test]
fn domains_share_the_memory_of_their_node() {
    let text = r#"
format = "hither.partitions/1"
workqueues = "leave"
unused = "offline"
[rest]
on = "node:0"
goal = { min_nodes = 2 }
[manager]
hold = 1
[[partition]]
name = "a"
on = "domain:2 + mem:1"
[[partition]]
name = "b"
on = "domain:3 + mem:1,5"
[partition.goal]
schedule = [{ from = "22:00", to = "06:30", nodes = 2 }]
"#;
    let wish = read(text, &machine(6)).unwrap();
    assert_eq!(wish.layout.of("a").unwrap().cpus.to_string(), "4-5");
    assert_eq!(wish.layout.of("b").unwrap().nodes.to_string(), "1,5");
    assert_eq!(wish.layout.unused.cpus.to_string(), "8-19");
    assert_eq!(wish.layout.unused.nodes.to_string(), "2-4");
    assert_eq!(wish.workqueues, Work::Leave);
    let goals: Vec<&str> = wish.goals.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(goals, ["b", REST]);
    assert_eq!((wish.pace.hold, wish.pace.cooldown_s), (1, 60));
}

#[test]
fn what_does_not_fit_is_refused_with_its_line() {
    let two = |first: &str, second: &str| {
        format!(
            "format = \"hither.partitions/1\"\n[[partition]]\nname = \"a\"\non = \"{first}\"\n\
             [[partition]]\nname = \"b\"\non = \"{second}\"\n"
        )
    };
    for (text, line, part) in [
        (String::new(), 1, "missing field `format`"),
        ("format = \"x\"".to_owned(), 1, "the format is not"),
        ("format = 1".to_owned(), 1, "expected a string"),
        ("a b".to_owned(), 1, "expected"),
        (
            "format = \"hither.partitions/1\"\n".to_owned(),
            2,
            "name one",
        ),
        (two("node:1", "node:9"), 7, "no node 9"),
        (two("node:1", "node:1"), 7, "has the CPUs 4-7 of a too"),
        (
            two("node:1", "cpus:8-9 + mem:1"),
            7,
            "memory of node1 as a has",
        ),
        (two("node:1", "cpus:8 + mem:2"), 7, "8-9 of domain 4"),
        (two("domain:2", "node:2"), 4, "has no memory; name some"),
        (two("mem:1", "node:2"), 4, "has no CPU"),
        (two("node:1", "node:"), 7, "node:"),
        (two("node:0-1,5", "node:2-4"), 1, "`rest` has no CPU"),
        (
            FILE.replace("\"web\"", "\"rest\""),
            7,
            "`rest` is hither's own word",
        ),
        (FILE.replace("\"web\"", "\"db\""), 7, "two partitions `db`"),
        (FILE.replace("\"web\"", "\"../x\""), 7, "letters, digits"),
        (FILE.replace("isolated", "lonely"), 9, "unknown variant"),
        (FILE.replace("kind", "kinds"), 9, "unknown field"),
        (
            format!("{FILE}goal = {{ cpu_below = 0.95 }}\n"),
            10,
            "less than cpu_above",
        ),
        (
            format!("{FILE}goal = 3\n"),
            10,
            "a table such as { min_nodes = 1, max_nodes = 4 }",
        ),
        (
            format!("{FILE}goal = {{ schedule = [7] }}\n"),
            10,
            "a table such as { from = \"08:00\"",
        ),
        (
            "format = \"hither.partitions/1\"\npartition = [3]\n".to_owned(),
            2,
            "a table `[[partition]]`",
        ),
        (
            format!("{FILE}goal = {{ min_nodes = 0 }}\n"),
            10,
            "at least 1",
        ),
        (
            format!(
                "{FILE}goal = {{ schedule = [{{ from = \"8\", to = \"9:00\", nodes = 1 }}] }}\n"
            ),
            10,
            "`8` is no time of day",
        ),
        (
            format!("{FILE}[rest]\non = \"node:0\"\n"),
            11,
            "nobody has CPUs `16-19` and memory `4-5`",
        ),
    ] {
        let fault = read(&text, &machine(6)).unwrap_err();
        assert!(fault.reason.contains(part), "{text}: {fault}");
        assert_eq!(fault.line, line, "{text}: {fault}");
    }
}
