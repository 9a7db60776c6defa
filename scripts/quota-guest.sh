#!/bin/sh
# What scripts/evidence.sh runs within the laboratory for quotas of fast memory, with hither and memstore in the
# path, on a machine of two tiers.
# usage: quota-guest.sh steps MB STEP_MB SECONDS
#        quota-guest.sh goal MB SECONDS KEY NUMBER FIGURE
#        quota-guest.sh shares MB SECONDS
# steps: a store of MB under the daemon, whose quota goes up by a step every so many seconds.
# goal: the same with a goal, from all of its memory in the fast tier on; a line for each state.
# shares: three stores in control groups of the weights 1, 2 and 5, each larger than its part.
set -eu
mode=$1
shift
cd /tmp
mkdir -p /run
nodes_of() {
  awk '/anon=/ { for (i = 3; i <= NF; i++) if ($i ~ /^N[0-9]+=/) { split($i, p, "="); n[p[1]] += p[2] } }
    END { printf "%d %d", n["N0"] / 256, n["N1"] / 256 }' "/proc/$1/numa_maps"
}
ready() { until hither status > /dev/null 2>&1; do sleep 0.1; done; }
target() { # NAME CHOICE FAST [GOAL]
  printf '[[target]]\nname = "%s"\n%s\npolicy = "tiers"\nfast = "%s"\n%s\n' "$1" "$2" "$3" "${4:-}" >> next.toml
}
begin() { printf 'format = "hither.daemon/1"\n' > next.toml; }
# Means of the last so many whole seconds.
told() {
  grep '^second:' log | tail -n "$1" |
    awk '{ n++; r += $4; u += $6 } END { printf "%.0f requests a second, %.1f us each", r / n, u / n }'
}

steps() {
  begin; target store 'command = "memstore"' 0; mv next.toml h.toml
  hither daemon --config h.toml 2> daemon.log & daemon=$!
  ready
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
  mv next.toml h.toml
  hither daemon --config h.toml 2> daemon.log & daemon=$!
  ready
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
  mv next.toml h.toml
  hither daemon --config h.toml 2> daemon.log & daemon=$!
  ready
  stores=
  for weight in 1 2 5; do
    sh -c "echo \$\$ > /sys/fs/cgroup/w$weight/cgroup.procs; exec memstore --mb $1 --threads 1 --seconds 60000 --live" > log.$weight &
    stores="$stores $!"
  done
  for at in $(seq "$2"); do
    sleep 1
    echo "$at s:$(for store in $stores; do echo " $(nodes_of "$store" | cut -d ' ' -f 1)"; done | tr '\n' ' ')MiB of fast memory"
  done
  hither status
  kill $stores $daemon
  tail -n 5 daemon.log >&2
}

$mode "$@"
