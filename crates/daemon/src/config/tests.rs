use super::*;
use proptest::prelude::*;

fn parsed(rest: &str) -> Result<Config, TextFault> {
    read(
        &format!("format = \"hither.daemon/1\"\n{rest}"),
        &Root::host(),
    )
}

const WHOLE: &str = r#"
[daemon]
interval = "200ms"
dry_run = true
socket = "/run/hither/c.sock"
metrics = "127.0.0.1:9752"
take_over = ["numa_balancing"]
[limits]
move_rate = "500M"
cpu_share = 0.01
memory_pressure = 20.0
[[target]]
name = "db"
cgroup = "/sys/fs/cgroup/system.slice/postgresql.service/"
policy = "carrefour"
windows = ["Mon-Fri 22:00-06:00", "Sun"]
[[target]]
name = "mine"
user = "root"
dry_run = true
[[target]]
name = "any"
opt_in = true
[[target]]
name = "web"
command = "memstore"
policy = "tiers"
fast = "512M"
goal = { file = "/run/web.log", figure = "mean_us", below = 20, steps = 4, every = "500ms" }
[[target]]
name = "batch"
cgroup = "batch.slice"
policy = "tiers"
fast = "1G"
goal = { file = "/run/b.prom", figure = "rows_per_second", may_lose = 0.02 }
cpu_goal = { file = "/run/b.prom", figure = "p99", below = 3.5, cpus = 2.5 }
"#;

#[test]
fn what_is_shown_says_the_same() {
    let config = parsed(WHOLE).unwrap();
    assert_eq!(config.interval_us, 200_000);
    assert_eq!(config.memory_pressure, 0.2);
    let choices: Vec<&Choice> = config.targets.iter().map(|target| &target.choice).collect();
    let group = Choice::Cgroup("/system.slice/postgresql.service".to_owned());
    assert_eq!(choices[..3], [&group, &Choice::User(0), &Choice::OptIn]);
    let goal = config.targets[3].goal.as_ref().unwrap();
    assert_eq!(
        (goal.wanted, goal.steps, goal.every_us),
        (Wanted::Below(20.0), 4, 500_000)
    );
    let goal = config.targets[4].goal.as_ref().unwrap();
    assert_eq!((goal.wanted, goal.steps), (Wanted::MayLose(0.02), 8));
    let goal = config.targets[4].cpu_goal.as_ref().unwrap();
    assert_eq!(
        (goal.milli_cpus, goal.spec.wanted),
        (2500, Wanted::Below(3.5))
    );
    assert_eq!(config.targets[1].policy, "auto");
    for config in [config, Config::default()] {
        assert_eq!(read(&config.to_string(), &Root::host()).unwrap(), config);
    }
}

#[test]
fn faults_have_a_line_and_a_remedy() {
    let target = "[[target]]\nname = \"a\"\n";
    let fast = &format!("{target}opt_in = true\npolicy = \"tiers\"\nfast = \"1G\"\n");
    for (rest, line, expected) in [
        (
            "[daemon]\nintervall = \"1s\"\n",
            3,
            "unknown field `intervall`",
        ),
        (
            "[daemon]\ninterval = \"1ms\"\n",
            3,
            "write a time from 10ms to 10s",
        ),
        ("[daemon]\nmetrics = \"0.0.0.0:80\"\n", 3, "loopback"),
        ("[daemon]\nmetrics = \"unix:x\"\n", 3, "loopback"),
        (
            "[daemon]\ntake_over = [\"numad\"]\n",
            3,
            "cannot take over from it: stop it",
        ),
        (
            "[daemon]\ntake_over = [\"x\"]\n",
            3,
            "there are numa_balancing, damon, numad",
        ),
        (
            "[limits]\nmove_rate = \"0\"\n",
            3,
            "nothing would ever move",
        ),
        ("[limits]\ncpu_share = 2.0\n", 3, "from 0 to 1"),
        (target, 2, "nothing chooses its processes"),
        (
            &format!("{target}user = \"0\"\nopt_in = true\n"),
            2,
            "more than one key",
        ),
        (
            &format!("{target}user = \"no-such-user\"\n"),
            4,
            "no such user",
        ),
        (
            &format!("{target}cgroup = \"../x\"\n"),
            4,
            "path of a control group",
        ),
        (
            &format!("{target}opt_in = true\npolicy = \"carefour\"\n"),
            5,
            "no policy `carefour`",
        ),
        (
            &format!("{target}opt_in = true\nwindows = [\"x\"]\n"),
            5,
            "is no window",
        ),
        (
            &format!("{target}opt_in = true\n{target}opt_in = true\n"),
            6,
            "there twice",
        ),
        (
            "[[target]]\nname = \"a b\"\nopt_in = true\n",
            3,
            "up to 64 letters",
        ),
        (
            &format!(
                "{target}opt_in = true\npolicy = \"tiers\"\ngoal = {{ file = \"/x\", figure = \"y\", below = 1 }}\n"
            ),
            6,
            "write fast as a size",
        ),
        (
            &format!("{fast}goal = {{ file = \"x\", figure = \"y\", below = 1 }}\n"),
            7,
            "the whole path",
        ),
        (
            &format!("{fast}goal = {{ file = \"/x\", figure = \"y\", below = 1, above = 2 }}\n"),
            7,
            "give one of below, above, may_lose",
        ),
        (
            &format!("{fast}goal = {{ file = \"/x\", figure = \"y\", may_lose = 2 }}\n"),
            7,
            "a share from 0.001 to 1",
        ),
        (
            &format!("{fast}goal = {{ file = \"/x\", figure = \"y\", below = 1, cpus = 2 }}\n"),
            7,
            "is cpu_goal",
        ),
        (
            &format!("{fast}cpu_goal = {{ file = \"/x\", figure = \"y\", below = 1, cpus = 2 }}\n"),
            7,
            "choose the target by cgroup",
        ),
        (
            &format!(
                "{target}cgroup = \"a\"\ncpu_goal = {{ file = \"/x\", figure = \"y\", below = 1 }}\n"
            ),
            5,
            "add cpus",
        ),
        (
            &format!(
                "{target}cgroup = \"a\"\ncpu_goal = {{ file = \"/x\", figure = \"y\", below = 1, cpus = 0.5 }}\n"
            ),
            5,
            "has 0.1 of one",
        ),
        ("x = [", 2, ""),
    ] {
        let fault = parsed(rest).unwrap_err();
        assert_eq!(fault.line, line, "{rest}: {fault}");
        assert!(fault.reason.contains(expected), "{rest}: {fault}");
    }
    let fault = read("format = \"hither.daemon/9\"", &Root::host()).unwrap_err();
    assert!(
        fault.to_string().starts_with("line 1: the format is not"),
        "{fault}"
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// Any text is read or refused, and what is cut or changed anywhere too.
    #[test]
    fn no_text_panics(text in "\\PC{0,200}", at in 0..WHOLE.len(), with in "\\PC{0,3}") {
        let _ = read(&text, &Root::host());
        let mut changed = format!("format = \"hither.daemon/1\"\n{WHOLE}");
        let at = (at..changed.len()).find(|&at| changed.is_char_boundary(at)).unwrap();
        changed.insert_str(at, &with);
        let _ = read(&changed, &Root::host());
        changed.truncate(at);
        let _ = read(&changed, &Root::host());
    }
}
