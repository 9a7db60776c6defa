#!/bin/sh
# What scripts/evidence.sh runs within the laboratory for quotas of fast memory, with hither and memstore in the
# path, on a machine of two tiers.
# usage: quota-guest.sh steps MB STEP_MB SECONDS
#        quota-guest.sh goal MB SECONDS KEY NUMBER FIGURE
#        quota-guest.sh shares MB SECONDS
#        quota-guest.sh one_job TRACE
#        quota-guest.sh spare TRACE
# steps: a store of MB under the daemon, whose quota goes up by a step every so many seconds.
# goal: the same with a goal, from all of its memory in the fast tier on; a line for each state.
# one_job: a job of the thesis's figure 73, with a quota and with a goal (see there).
# spare: the same store with all of its memory in fast memory, and with a quota that may cost 2 % of its requests.
# shares: three stores in control groups of the weights 1, 2 and 5, each larger than its part.
set -eu
mode=$1
shift
cd /tmp
mkdir -p /run
# MiB of a process on either node: of its own memory, or (`=`) of all that it maps, as quotas count.
nodes_of() { # PID [PATTERN]
  awk -v what="${2:-anon=}" '$0 ~ what { for (i = 3; i <= NF; i++) if ($i ~ /^N[0-9]+=/) { split($i, p, "="); n[p[1]] += p[2] } }
    END { printf "%.1f %.1f", n["N0"] / 256, n["N1"] / 256 }' "/proc/$1/numa_maps"
}
ready() { until hither status > /dev/null 2>&1; do sleep 0.1; done; }
target() { # NAME CHOICE FAST [GOAL]
  printf '[[target]]\nname = "%s"\n%s\npolicy = "tiers"\nfast = "%s"\n%s\n' "$1" "$2" "$3" "${4:-}" >> next.toml
}
# A daemon under next.toml.
start() {
  mv next.toml h.toml
  hither daemon --config h.toml 2> daemon.log & daemon=$!
  ready
}
begin() { printf 'format = "hither.daemon/1"\n' > next.toml; }
# Means of the last so many whole seconds.
told() {
  grep '^second:' log | tail -n "$1" |
    awk '{ n++; r += $4; u += $6 } END { printf "%.0f requests a second, %.1f us each", r / n, u / n }'
}

steps() {
  begin; target store 'command = "memstore"' 0
  start
  memstore --mb "$1" --threads 1 --seconds 60000 --live > log & store=$!
  until grep -q '^second:' log; do sleep 0.1; done
  quota=0
  while [ $quota -le "$1" ]; do
    begin; target store 'command = "memstore"' "${quota}M"; mv next.toml h.toml
    kill -HUP $daemon
    sleep "$3"
    echo "quota $quota MiB: $(nodes_of $store) MiB fast and slow, $(told 2)"
    quota=$((quota + $2))
  done
  hither status
  kill $store $daemon
  tail -n 5 daemon.log >&2
}

goal() {
  begin
  target store 'command = "memstore"' "$1M" "goal = { file = \"/tmp/log\", figure = \"$5\", $3 = $4, steps = 8 }"
  start
  memstore --mb "$1" --threads 1 --seconds 60000 --live > log & store=$!
  for at in $(seq "$2"); do
    sleep 1
    echo "$at s: $(nodes_of $store) MiB fast and slow, $(grep '^second:' log | tail -n 1)"
  done
  hither status
  kill $store $daemon
  grep 'store@' daemon.log
}

shares() {
  begin
  for weight in 1 2 5; do
    mkdir "/sys/fs/cgroup/w$weight"
    target "w$weight" "cgroup = \"w$weight\"" "shares:$weight"
  done
  start
  stores=
  for weight in 1 2 5; do
    sh -c "echo \$\$ > /sys/fs/cgroup/w$weight/cgroup.procs; exec memstore --mb $1 --threads 1 --seconds 60000 --live" > log.$weight &
    stores="$stores $!"
  done
  for at in $(seq "$2"); do
    sleep 1
    echo "$at s:$(for store in $stores; do echo " $(nodes_of "$store" = | cut -d ' ' -f 1)"; done | tr '\n' ' ')MiB of fast memory"
  done
  hither status
  kill $stores $daemon
  tail -n 5 daemon.log >&2
}

# A load trace at a quarter of its data and a fifth of its time, so many seconds of its first load before it.
trace() { # FILE BEFORE
  awk -F , -v before="$2" '/^#/ { next } NF == 1 { print $1 / 5 + before; next }
    { printf "%d,%d,%d\n", ($1 > 0 ? $1 / 5 + before : 0), $2 / 4, $3 }' "$1" > trace
}

# A program under next.toml and the trace: `STEPS BEFORE COMMAND...`. Prints of the time after the first load: mean steps of
# what it might use (STEPS where that never changes), requests a second, and their mean latency.
job() {
  first=$1
  before=$(($2 * 10))
  shift 2
  start
  "$@" --trace trace --live --period 100 > log & store=$!
  : > held
  while kill -0 $store 2> /dev/null; do
    # The thesis counts what a job may use; a quota that does not change is not in the log.
    echo "$(grep -c '^second:' log) $(grep -o '[0-9]* of 8 steps' daemon.log | tail -n 1)" >> held
    sleep 0.2
  done
  kill $daemon
  wait
  grep '^second:' log | awk -v before=$before '$2 > before { n++; r += $4; u += $4 * $6 }
    END { printf "requests %.0f\nlatency_us %.2f\n", r / n * 10, u / r }'
  awk -v first="$first" -v before=$before '$1 > before { n++; steps += NF > 1 ? $2 : first } END { printf "steps %.3f\n", steps / n }' held
  grep 'wrong_values' log
}

# A store of 128 MiB in slow memory, a quarter of the thesis's (what is less stays in the caches), at a fifth of its time: with
# E4 of eight states, and with a goal, a quarter above the latency that the daemon brings about with all in fast memory.
program='memstore --mb 128 --value 256 --gets 64 --threads 1'
one_job() { # TRACE
  printf '0,128,0\n3\n' > trace
  begin; target store 'command = "memstore"' 128M
  told=$(job 8 1 $program --first-node 0)
  goal=$(echo "$told" | awk '/^latency_us/ { print $2 * 1.25 }')
  echo "goal_us $goal"
  trace "$1" 3
  echo '== base'
  begin; target store 'command = "memstore"' 64M
  job 4 3 $program --first-node 1
  echo '== scaled'
  begin; target store 'command = "memstore"' 128M \
    "goal = { file = \"/tmp/log\", figure = \"mean_us\", below = $goal, steps = 8, every = \"100ms\" }"
  job 8 3 $program --first-node 1
}

spare() { # TRACE
  trace "$1" 3
  for goal in '' 'goal = { file = "/tmp/log", figure = "requests", may_lose = 0.02, steps = 8, every = "100ms" }'; do
    echo "== ${goal:-all of it}"
    begin; target store 'command = "memstore"' 128M "$goal"
    job 8 3 $program --first-node 1
  done
}

$mode "$@"
