//! The daemon on an emulated machine of four nodes: programs of two users, one of whom wants to be left
//! alone; killed in the middle, undone by the next daemon. One boot.

use crate::common::{bare, built, ran};
use hither_lab::image::AGENT_PATH;
use serde_json::Value;
use std::path::Path;
use std::process::Command;

/// `$P` is the program, `$H` hither. The points of each program are on one node, its threads on that one and
/// another (there is a CPU a node), so that half of its pages are to move.
const SCRIPT: &str = r#"
set -e; cd /tmp; mkdir -p /run; echo 'alice:x:1000:1000::/:/bin/sh' >> /etc/passwd
cat > h.toml <<'EOF'
format = "hither.daemon/1"
[daemon]
metrics = "unix:/run/hither/metrics.sock"
[[target]]
name = "db"
command = "cluster"
policy = "carrefour"
dry_run = true
EOF
nodes_of() {
  awk '/anon=/ { for (i = 3; i <= NF; i++) if ($i ~ /^N[0-9]+=/) { split($i, p, "="); n[p[1]] += p[2] } }
    END { for (k = 0; k < 4; k++) printf "%d ", n["N" k]; print "" }' /proc/$1/numa_maps
}
as_alice() { su -s /bin/sh alice -c "$*"; }
start_daemon() {
  $H daemon --config h.toml 2>> daemon.log & daemon=$!
  until $H status > /dev/null 2>&1; do sleep 0.1; done
}
# Until so many scopes have more displaced pages than so many.
until_displaced() {
  for i in $(seq 150); do
    $H status --json > now
    [ $(awk -v least=$2 '/"displaced_pages"/ && $2 + 0 > least { n++ } END { print n + 0 }' now) -ge $1 ] && return
    sleep 0.2
  done
  echo "displaced: waited in vain" >&2; cat now daemon.log >&2; exit 1
}
chmod 755 $P; $H config check h.toml
before=$(cat /proc/sys/kernel/numa_balancing)
start_daemon
taskset 3 $P partitioned --mb 32 --threads 2 --rounds 100000 > /dev/null & a=$!
as_alice "exec taskset c $P partitioned --mb 32 --threads 2 --rounds 100000 > /dev/null" & b=$!
HITHER=off taskset 3 $P partitioned --mb 32 --threads 2 --rounds 100000 > /dev/null & c=$!
for p in $a $c; do until nodes_of $p | awk '{ exit $1 + $2 + $3 + $4 < 8192 }'; do sleep 0.1; done; done
echo "== $(nodes_of $a) / $(nodes_of $c)"
sed -i /dry_run/d h.toml; kill -HUP $daemon
until_displaced 2 2000
echo "== $($H status --json)"
echo "== $(as_alice $H status --json)"
echo "== $(nodes_of $c)"
echo "== $(as_alice $H pause db@root 2>&1)"
kill -9 $daemon; wait $daemon || true
start_daemon
until_displaced 2 2000
as_alice $H undo > /dev/null
echo "== $($H status --json)"
$H undo db@root >&2
echo "== $(nodes_of $a) / $(nodes_of $c)"
$H status >&2; $H explain | tail -n 5 >&2; $H resume db > /dev/null
kill $daemon; wait $daemon; echo "== ended $?"
kill -9 $a $b $c
cat >> h.toml <<'EOF'
[[target]]
name = "web"
cgroup = "web"
policy = "guard"
cpu_goal = { cpus = 0.8, file = "/tmp/web.log", figure = "us", below = 1000, steps = 2, every = "100ms" }
EOF
mkdir /sys/fs/cgroup/web; echo +cpu > /sys/fs/cgroup/cgroup.subtree_control
sh -c 'echo $$ > /sys/fs/cgroup/web/cgroup.procs; exec sleep 1000' & w=$!
(while :; do echo us 10 >> web.log; sleep 0.1; done) & f=$!
until_limit() {
  for i in $(seq 100); do
    [ "$(cat /sys/fs/cgroup/web/cpu.max)" = "$1" ] && return
    sleep 0.2
  done
  echo "limit: waited in vain for $1" >&2; cat /sys/fs/cgroup/web/cpu.max daemon.log >&2; exit 1
}
start_daemon
until_limit '4000 10000'
for i in $(seq 50); do
  $H status > now; grep -q '^web@root: at most 0.4 CPUs; E1' now && break
  [ $i != 50 ] || { cat now >&2; exit 1; }
  sleep 0.2
done
$H pause web > /dev/null; until_limit 'max 100000'
$H resume web > /dev/null; until_limit '4000 10000'
kill -9 $daemon; wait $daemon || true
$H daemon --restore >&2; until_limit 'max 100000'
start_daemon; until_limit '4000 10000'
kill $daemon; wait $daemon
echo "== $(cat /sys/fs/cgroup/web/cpu.max)"
kill $w $f; cat daemon.log >&2
[ "$before" = "$(cat /proc/sys/kernel/numa_balancing)" ]
"#;

fn run() -> Vec<String> {
    let machine = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../machines/opteron8385.toml");
    let program = bare("cluster");
    let script = format!("P={} H={AGENT_PATH}\n{SCRIPT}", program.display());
    let (told, _) = ran(Command::new(built("hither"))
        .args(["lab", "run", "--cpus", "4", "--timeout", "15m", "--machine"])
        .arg(&machine)
        .arg("--file")
        .arg(&program)
        .args(["--", "sh", "-c", &script]));
    let answers = told.split("== ").skip(1);
    answers.map(|answer| answer.trim().to_owned()).collect()
}

fn document(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

/// Names of the scopes, with the pages that are not where hither found them.
fn displaced(status: &Value) -> Vec<(String, u64)> {
    let scopes = status["scopes"].as_array().unwrap().iter();
    let one = |scope: &Value| {
        let pages = scope["summary"]["displaced_pages"].as_u64().unwrap();
        (scope["name"].as_str().unwrap().to_owned(), pages)
    };
    let mut all: Vec<(String, u64)> = scopes.map(one).collect();
    all.sort();
    all
}

/// Whether so many pages of a program are on each node as before, but for those that it has touched since.
fn are_back(now: &str, before: &str) -> bool {
    let pages = |text: &str| -> Vec<u64> {
        let words = text.split_whitespace();
        words.map(|word| word.parse().unwrap()).collect()
    };
    let (now, before) = (pages(now), pages(before));
    assert!(before.iter().sum::<u64>() >= 8192, "{before:?}");
    now.iter()
        .zip(&before)
        .all(|(now, before)| now.abs_diff(*before) <= 16)
}

#[test]
#[ignore = "boots QEMU; make test runs it"]
fn a_daemon_serves_its_users_and_leaves_nothing() {
    let mut answers = run().into_iter();
    let mut next = || answers.next().expect("an answer for each step");
    let places = next();
    let (first, left_alone_first) = places.split_once('/').unwrap();
    let status = document(&next());
    assert_eq!(status["schema"], "hither.status/1");
    let names = |status: &Value| -> Vec<String> {
        displaced(status)
            .into_iter()
            .map(|(name, _)| name)
            .collect()
    };
    assert_eq!(names(&status), ["db@alice", "db@root"], "{status:#}");
    for scope in status["scopes"].as_array().unwrap() {
        // Who wants to be left alone is not among them.
        assert_eq!(scope["processes"].as_array().unwrap().len(), 1, "{scope:#}");
    }
    // A user sees no other's.
    let own = document(&next());
    assert_eq!(names(&own), ["db@alice"], "{own:#}");
    let left_alone = next();
    assert!(are_back(&left_alone, left_alone_first), "{left_alone}");
    let refused = next();
    assert!(
        refused.contains("no target or scope `db@root` of yours"),
        "{refused}"
    );
    // After a kill the next daemon knows what the one before moved; a user takes back what is the user's.
    let status = document(&next());
    let displaced = displaced(&status);
    assert!(
        displaced[0].1 < 100 && displaced[1].1 > 2000,
        "{displaced:?}"
    );
    assert_eq!(
        status["scopes"]
            .as_array()
            .unwrap()
            .iter()
            .filter(|scope| scope["standing"] == "undone")
            .count(),
        1
    );
    let places = next();
    let (undone, left_alone) = places.split_once('/').unwrap();
    assert!(are_back(undone, first), "{places}, first {first}");
    assert!(are_back(left_alone, left_alone_first), "{places}");
    assert_eq!(next(), "ended 0");
    // A goal of CPU time came and went, by an order, a kill and an end.
    assert_eq!(next(), "max 100000");
}
