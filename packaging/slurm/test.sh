#!/bin/bash
# Tests prolog.sh and epilog.sh under a real Slurm: a controller and one node on this machine, with the
# packages of Debian, in a folder of their own. As root, on a machine on which no Slurm runs.
#
#     packaging/slurm/test.sh [--purge] [HITHER]
#
# HITHER is the command to be tested (target/release/hither). `--purge` removes the packages again that the
# test installed. What the test started is stopped at its end in any case.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
purge=no
if [ "${1:-}" = --purge ]; then purge=yes; shift; fi
hither=$(realpath "${1:-$here/../../target/release/hither}")
[ "$(id -u)" = 0 ] || { echo "test.sh: must be run as root" >&2; exit 2; }
[ -x "$hither" ] || { echo "test.sh: no hither at $hither" >&2; exit 2; }
if pgrep -x slurmd > /dev/null || pgrep -x slurmctld > /dev/null; then
  echo "test.sh: a Slurm runs on this machine; the test wants one without" >&2
  exit 2
fi

# Two accounts of every Debian that own nothing here and may be used by jobs.
readonly first=games second=news
passed=0
failed=0
installed=()
work=$(mktemp -d /tmp/hither-slurm.XXXXXX)
chmod 755 "$work"

check() {
  local what=$1
  shift
  if "$@" > /dev/null; then
    passed=$((passed + 1))
    echo "ok: $what"
  else
    failed=$((failed + 1))
    echo "FAILED: $what ($*)"
  fi
}

not() { ! "$@"; }

stop_all() {
  set +e
  local pid name
  for name in slurmd slurmctld munged; do
    pid=$(cat "$work/$name.pid" 2> /dev/null) && kill "$pid" && for _ in {1..50}; do
      kill -0 "$pid" 2> /dev/null || break
      sleep 0.1
    done
  done 2> /dev/null
  if [ "$failed" -gt 0 ] || [ "${finished:-no}" = no ]; then
    tail -n 20 "$work/slurmd.log" "$work/slurmctld.log" "$work/hither.log" 2> /dev/null
  fi
  [ -z "${tree:-}" ] || find "$tree/hither-test.slice" -depth -type d -exec rmdir {} + 2> /dev/null
  rm -rf "$work"
  if [ "$purge" = yes ] && [ ${#installed[@]} -gt 0 ]; then
    DEBIAN_FRONTEND=noninteractive apt-get purge -y -qq "${installed[@]}" > /dev/null
  fi
}
trap stop_all EXIT

packages() { dpkg-query -W -f '${db:Status-Abbrev}${Package}\n' | sed -n 's/^ii *//p' | sort -u; }

install_packages() {
  local package before wanted=()
  for package in slurmctld slurmd slurm-client munge; do
    dpkg-query -W -f '${Status}' "$package" 2> /dev/null | grep -q ' installed' || wanted+=("$package")
  done
  [ ${#wanted[@]} -gt 0 ] || return 0
  echo "installs ${wanted[*]}"
  before=$(packages)
  # Nothing is started by the packages, as far as they ask.
  local policy=/usr/sbin/policy-rc.d made=no
  if ! [ -e "$policy" ]; then
    printf '#!/bin/sh\nexit 101\n' > "$policy"
    chmod +x "$policy"
    made=yes
  fi
  apt-get update -qq
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${wanted[@]}" > /dev/null
  [ "$made" = no ] || rm "$policy"
  # What came with them, too.
  mapfile -t installed < <(comm -13 <(echo "$before") <(packages))
}

options() {
  printf '%s\n' "$@" "log=$work/hither.log" > "$work/hither.conf"
}

start_cluster() {
  local host
  host=$(hostname -s)
  mkdir -p "$work/ctld" "$work/spool"
  for name in prolog epilog; do
    printf '#!/bin/sh\nHITHER_SLURM_CONF=%s exec %s/%s.sh\n' "$work/hither.conf" "$here" "$name" > "$work/$name"
    chmod 755 "$work/$name"
  done
  (umask 077; head -c 1024 /dev/urandom > "$work/munge.key")
  munged --force --key-file="$work/munge.key" --socket="$work/munge.socket" --pid-file="$work/munged.pid" \
    --log-file="$work/munged.log" --seed-file="$work/munged.seed"
  cat > "$work/slurm.conf" <<END
ClusterName=hither-test
SlurmctldHost=$host(127.0.0.1)
SlurmUser=root
SlurmctldPort=16817
SlurmdPort=16818
AuthType=auth/munge
AuthInfo=socket=$work/munge.socket
CredType=cred/munge
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
MpiDefault=none
SwitchType=switch/none
ReturnToService=2
KillWait=5
SlurmctldPidFile=$work/slurmctld.pid
SlurmdPidFile=$work/slurmd.pid
StateSaveLocation=$work/ctld
SlurmdSpoolDir=$work/spool
SlurmctldLogFile=$work/slurmctld.log
SlurmdLogFile=$work/slurmd.log
Prolog=$work/prolog
Epilog=$work/epilog
NodeName=$host NodeAddr=127.0.0.1 CPUs=8 State=UNKNOWN
PartitionName=test Nodes=$host Default=YES MaxTime=10 State=UP
END
  export SLURM_CONF=$work/slurm.conf
  slurmctld -f "$SLURM_CONF"
  slurmd -f "$SLURM_CONF"
  for _ in {1..60}; do
    [ "$(sinfo -h -o %T 2> /dev/null)" != idle ] || return 0
    sleep 0.5
  done
  echo "test.sh: the node did not come up: $(sinfo 2>&1)" >&2
  return 1
}

# Submits a job script (standard input) as a user, in a folder of that user's; prints the job's number.
submit() {
  local user=$1 folder=$2
  shift 2
  [ -d "$folder" ] || install -d -o "$user" -g "$(id -gn "$user")" -m 700 "$folder"
  cat > "$folder/script"
  chmod 644 "$folder/script"
  (cd "$folder" && setpriv --reuid "$user" --regid "$(id -g "$user")" --clear-groups \
    env -i PATH=/usr/bin:/bin SLURM_CONF="$SLURM_CONF" sbatch --parsable -n 1 "$@" script)
}

state_of() { scontrol show job "$1" | sed -n 's/^ *JobState=\([A-Z]*\).*/\1/p'; }

# Waits until a job is in one of the states and, for an ended one, until the epilog is done.
wait_for() {
  local job=$1 states=$2
  for _ in {1..300}; do
    [[ " $states " != *" $(state_of "$job") "* ]] || return 0
    sleep 0.1
  done
  echo "test.sh: job $job is $(state_of "$job"), not $states" >&2
  return 1
}

ended() {
  wait_for "$1" "COMPLETED CANCELLED FAILED TIMEOUT" || return 1
  for _ in {1..200}; do
    [ -d "/run/hither-slurm/$1" ] || [ "$(sinfo -h -o %T)" = completing ] || return 0
    sleep 0.1
  done
  echo "test.sh: the epilog of job $1 did not end" >&2
  return 1
}

nothing_left() {
  local left
  left=$(pgrep -af "$here/prolog.sh|/run/hither-slurm|$hither attach" | grep -v "test.sh" || true)
  [ -z "$left" ] || { echo "left: $left" >&2; return 1; }
  [ ! -e /run/hither-slurm ] || { ls -RA /run/hither-slurm >&2; return 1; }
}

# The names of the processes in a report, one a line.
names() { jq -r '.processes[].name' "$1" | sort -u; }

has() { names "$1" | grep -qx "$2"; }

node_is_up() { [ "$(sinfo -h -o %T)" = idle ]; }

# Programs whose names the reports must show.
for name in ant bee cat dog eel fox gnu hen; do
  install -m 755 /bin/sleep "$work/prog-$name"
done

install_packages
options "hither=$hither" dry_run=yes
start_cluster
sinfo --version

echo "== one job with a step of srun"
job=$(submit "$first" "$work/one" <<END
#!/bin/sh
$work/prog-ant 3
srun $work/prog-bee 4
END
)
check "job $job ends" ended "$job"
check "its state is COMPLETED" [ "$(state_of "$job")" = COMPLETED ]
report=$work/one/hither-$job
ls -l "$work/one"
cat "$report.txt" || true
check "the JSON report is there and parses" jq -e '.schema == "hither.job/1"' "$report.json"
check "it holds reports of hither attach" jq -e '[.parts[].attach.schema] | length == 2 and all(. == "hither.attach/1")' "$report.json"
check "the second covers both steps" jq -e '.parts[1].steps | split(" ") | sort == ["0", "batch"]' "$report.json"
check "it names the program of the batch step" has "$report.json" prog-ant
check "it names the program of srun's step" has "$report.json" prog-bee
check "the text report names them, too" grep -q prog-bee "$report.txt"
check "the reports are the user's" [ "$(stat -c %U%a "$report.json" "$report.txt" | tr '\n' ' ')" = "${first}600 ${first}600 " ]
check "nothing is left" nothing_left

echo "== two jobs at once, of one user and of another"
a=$(submit "$first" "$work/a" <<END
#!/bin/sh
$work/prog-cat 6
END
)
b=$(submit "$first" "$work/b" <<END
#!/bin/sh
$work/prog-dog 6
END
)
c=$(submit "$second" "$work/c" <<END
#!/bin/sh
srun $work/prog-eel 6
END
)
for job in "$a" "$b" "$c"; do check "job $job runs" wait_for "$job" RUNNING; done
check "they run at once" [ "$(squeue -h -t RUNNING | wc -l)" = 3 ]
for job in "$a" "$b" "$c"; do check "job $job ends" ended "$job"; done
for pair in "a $a cat" "b $b dog" "c $c eel"; do
  read -r folder job own <<< "$pair"
  for name in cat dog eel; do
    if [ "$name" = "$own" ]; then
      check "the report of job $job names prog-$name" has "$work/$folder/hither-$job.json" "prog-$name"
    else
      check "the report of job $job does not name prog-$name" not has "$work/$folder/hither-$job.json" "prog-$name"
    fi
  done
done
check "nothing is left" nothing_left

echo "== a job that is cancelled"
job=$(submit "$first" "$work/cancelled" <<END
#!/bin/sh
$work/prog-fox 300 &
srun $work/prog-gnu 300
END
)
check "job $job runs" wait_for "$job" RUNNING
sleep 5
check "one hither attach runs for it" \
  [ "$(pgrep -fc "^$hither attach.*/run/hither-slurm/$job/")" = 1 ]
scancel "$job"
check "job $job ends" ended "$job"
check "its state is CANCELLED" [ "$(state_of "$job")" = CANCELLED ]
check "its report is there" has "$work/cancelled/hither-$job.json" prog-gnu
check "its programs are gone" not pgrep -f "$work/prog-(fox|gnu)"
check "nothing is left" nothing_left

echo "== links in the job's folder are not followed"
echo untouched > "$work/victim"
chmod 666 "$work/victim"
job=$(submit "$second" "$work/links" <<END
#!/bin/sh
ln -s $work/victim hither-\$SLURM_JOB_ID.json
ln -s /etc/hither-slurm-test hither-\$SLURM_JOB_ID.txt
$work/prog-hen 3
END
)
check "job $job ends" ended "$job"
check "the file behind the link is untouched" [ "$(cat "$work/victim")" = untouched ]
check "no file came to be in /etc" not [ -e /etc/hither-slurm-test ]
check "the link was replaced by the report" [ ! -L "$work/links/hither-$job.json" ]
check "the report is the user's" [ "$(stat -c %U "$work/links/hither-$job.json")" = "$second" ]

echo "== a process that looks like another job's slurmstepd"
job=$(submit "$first" "$work/honest" <<END
#!/bin/sh
$work/prog-ant 6
END
)
cp /bin/bash "$work/slurmstepd"
setpriv --reuid "$second" --clear-groups bash -c "exec -a 'slurmstepd: [$job.7]' $work/slurmstepd -c '$work/prog-bee 6; :'" &
check "job $job ends" ended "$job"
check "its report names its own program" has "$work/honest/hither-$job.json" prog-ant
check "its report does not name the impostor's" not has "$work/honest/hither-$job.json" prog-bee
wait %1 2> /dev/null || true

echo "== jobs that do not want it"
job=$(submit "$first" "$work/off" --comment=hither=off <<END
#!/bin/sh
$work/prog-ant 3
END
)
check "job $job ends" ended "$job"
check "--comment=hither=off: no report" not [ -e "$work/off/hither-$job.json" ]
job=$(submit "$first" "$work/off2" --export=HITHER=off <<END
#!/bin/sh
$work/prog-ant 3
END
)
check "job $job ends" ended "$job"
check "HITHER=off: no report" not [ -e "$work/off2/hither-$job.json" ]
options "hither=$hither" dry_run=yes jobs=opt-in
job=$(submit "$first" "$work/in" <<END
#!/bin/sh
$work/prog-ant 3
END
)
check "job $job ends" ended "$job"
check "jobs=opt-in without a comment: no report" not [ -e "$work/in/hither-$job.json" ]
job=$(submit "$first" "$work/in2" --comment=hither=on <<END
#!/bin/sh
$work/prog-ant 3
END
)
check "job $job ends" ended "$job"
check "jobs=opt-in with --comment=hither=on: a report" has "$work/in2/hither-$job.json" prog-ant
check "nothing is left" nothing_left

echo "== hither is missing, refuses, or hangs"
quick() {
  local folder=$1
  job=$(submit "$first" "$work/$folder" <<< "#!/bin/sh
$work/prog-ant 3
echo finished")
  check "job $job ends" ended "$job"
  check "its state is COMPLETED" [ "$(state_of "$job")" = COMPLETED ]
  check "its own output is whole" grep -qx finished "$work/$folder/slurm-$job.out"
  check "the node is not drained" node_is_up
  check "nothing is left" nothing_left
}
options hither=/nonexistent/hither
quick missing
check "a line of the log says so" grep -q "job $job: hither is not installed" "$work/hither.log"
options "hither=$hither" policy=no-such-policy
quick refused
check "the report says what hither said" grep -q no-such-policy "$work/refused/hither-$job.txt"
check "its status is told" jq -e '.parts[0].status != 0 and .parts[0].attach == null' "$work/refused/hither-$job.json"
cat > "$work/stubborn" <<'END'
#!/bin/sh
trap '' INT TERM HUP
while :; do sleep 1; done
END
chmod 755 "$work/stubborn"
options "hither=$work/stubborn" dry_run=yes
quick hangs
check "a line of the log says so" grep -q "job $job: hither did not end in time" "$work/hither.log"
options "hither=$hither" dry_run=yes
job=$(submit "$first" "$work/nowhere" -o /dev/null <<END
#!/bin/sh
chmod 500 .
$work/prog-ant 3
END
)
check "job $job ends" ended "$job"
check "its state is COMPLETED" [ "$(state_of "$job")" = COMPLETED ]
check "a folder without write permission: a line of the log says so" \
  grep -q "job $job: hither-$job.json could not be written" "$work/hither.log"
check "nothing is left" nothing_left

echo "== the watcher is killed"
job=$(submit "$first" "$work/killed" <<END
#!/bin/sh
$work/prog-ant 5
END
)
check "job $job runs" wait_for "$job" RUNNING
sleep 2.5
kill -KILL "$(cut -d ' ' -f 1 "/run/hither-slurm/$job/watcher")"
check "job $job ends" ended "$job"
check "its state is COMPLETED" [ "$(state_of "$job")" = COMPLETED ]
check "nothing is left" nothing_left
check "the node is not drained" node_is_up

tree=
for folder in /sys/fs/cgroup /sys/fs/cgroup/unified; do
  [ "$(stat -f -c %T "$folder" 2> /dev/null)" != cgroup2fs ] || tree=$folder
done
if [ -n "$tree" ]; then
  # Slurm's own cgroup plugin needs systemd, or a machine without cgroup v1. Here a helper of the test puts
  # slurmstepd and its children into groups as Slurm names them. Where the tree of cgroup v2 is not at
  # /sys/fs/cgroup (hybrid hierarchy), the prolog gets a mount namespace in which it is.
  echo "== a job with a control group"
  cat > "$work/prolog" <<END
#!/bin/sh
setsid -f "$work/grouper" < /dev/null > /dev/null 2>&1
export HITHER_SLURM_CONF=$work/hither.conf
exec unshare -m sh -c '[ $tree = /sys/fs/cgroup ] || mount --bind $tree /sys/fs/cgroup; exec $here/prolog.sh'
END
  cat > "$work/grouper" <<'END'
#!/bin/bash
# Puts each slurmstepd of the job, and its children, into job_N/step_S/{slurm,user/task_0}.
cd TREE || exit
top=hither-test.slice/node_slurmstepd.scope/job_$SLURM_JOB_ID
end=$((SECONDS + 12))
while [ $SECONDS -lt $end ]; do
  for pid in $(pgrep -U 0 -x slurmstepd); do
    step=$(tr '\0' ' ' < /proc/$pid/cmdline | sed -n "s/^slurmstepd: \[$SLURM_JOB_ID\.\([^]]*\)\].*/\1/p")
    [ -n "$step" ] || continue
    mkdir -p "$top/step_$step/slurm" "$top/step_$step/user/task_0"
    echo "$pid" > "$top/step_$step/slurm/cgroup.procs"
    for child in $(pgrep -P "$pid"); do echo "$child" > "$top/step_$step/user/task_0/cgroup.procs"; done
  done
  sleep 0.05
done 2> /dev/null
END
  sed -i "s,TREE,$tree," "$work/grouper"
  chmod 755 "$work/grouper"
  job=$(submit "$first" "$work/grouped" <<END
#!/bin/sh
$work/prog-ant 4
srun $work/prog-bee 4
END
)
  check "job $job runs" wait_for "$job" RUNNING
  sleep 3
  check "hither attach is told the job's group" \
    pgrep -f "$hither attach --cgroup hither-test.slice/node_slurmstepd.scope/job_$job --policy"
  check "job $job ends" ended "$job"
  report=$work/grouped/hither-$job.json
  check "one hither attach was enough" jq -e '[.parts[].steps] == ["job"]' "$report"
  check "it watched the group" jq -e '.parts[0].attach.scopes[0].name | endswith("/job_'"$job"'")' "$report"
  check "its report names the program of the batch step" has "$report" prog-ant
  check "its report names the program of srun's step" has "$report" prog-bee
  check "nothing is left" nothing_left
  head -n 12 "$work/grouped/hither-$job.txt"
else
  echo "skipped: a job with a control group (no cgroup v2 here)"
fi

echo "== the log of the scripts"
cat "$work/hither.log" || true
finished=yes
echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
