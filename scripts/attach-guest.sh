#!/bin/sh
# What scripts/attach.sh runs within the laboratory, with the programs and hither in the path.
# usage: attach-guest.sh gains REPEATS NAME:VARIANT,..:COMMAND...
#        attach-guest.sh two ROUNDS ITERATIONS TIME
#        attach-guest.sh churn SECONDS PROCESSES KB READINGS
set -u
said=/tmp/said

# One program alone, under the kernel's balancing, started by hither, and attached to, as `run` and
# `attach` (carrefour), or with another policy, as `run-auto`. The seconds are those that the program tells
# of its work.
one() {
  variant=${1%-*} policy=carrefour
  case $1 in run-* | attach-*) policy=${1#*-} ;; first-touch) variant=$1 ;; esac
  shift
  echo "== $variant $policy $*" >> $said
  case $variant in
    first-touch) "$@" ;;
    kernel)
      echo 1 > /proc/sys/kernel/numa_balancing
      "$@"
      echo 0 > /proc/sys/kernel/numa_balancing
      ;;
    run) hither run --policy "$policy" -- "$@" 2>> $said ;;
    attach)
      "$@" &
      hither attach -p $! --policy "$policy" 2>> $said
      wait $!
      ;;
  esac
}

gains() {
  repeats=$1
  shift
  for entry in "$@"; do
    name=${entry%%:*} command=${entry##*:} variants=${entry#*:}
    for round in $(seq "$repeats"); do
      for variant in $(echo "${variants%:*}" | tr , ' '); do
        seconds=$(one $variant $command | sed -n 's/^seconds: //p')
        echo "$name $variant ${seconds:-failed}"
      done
    done
  done
  grep -E '^==|campaign|own cost|moved in|refused|expected|declines|expects' $said >&2
}

# Anonymous pages of a process by node.
nodes_of() {
  awk '/anon=/ { for (i = 3; i <= NF; i++) if ($i ~ /^N[0-9]+=/) { split($i, p, "="); n[p[1]] += p[2] } }
    END { for (k in n) printf " %s %d", k, n[k]; print "" }' "/proc/$1/numa_maps" 2> /dev/null
}

# Numbers of the processes of a name.
pids_of() {
  for comm in $(grep -sxl "$1" /proc/[0-9]*/comm); do
    basename "$(dirname "$comm")"
  done
}

# The points of cluster are on node 0 and its threads on nodes 0 and 2, so that carrefour helps it; stream,
# on nodes 1 and 3, has its memory at hand, so that wrong-node harms it.
two() {
  taskset 33 cluster partitioned --threads 4 --rounds "$1" > /dev/null &
  taskset cc stream read --threads 4 --local --mb 16 --iterations "$2" > /dev/null &
  hither attach --name cluster --name stream --policy stream=wrong-node --for "$3" 2>&1
  echo "attach: exit status $?"
  for program in cluster stream; do
    for pid in $(pids_of $program); do
      echo "$program: anonymous pages:$(nodes_of "$pid")"
      kill "$pid"
    done
  done
  wait
}

# All processes run on node 0, and memory is not short: their pages were made there. After --undo none may
# be elsewhere; a process that loses a word of its table ends with a status that churn tells.
churn() {
  taskset 3 churn --seconds $(($1 + 15)) --processes "$2" --kb "$3" --readings "$4" > /tmp/churn.txt &
  churn=$!
  sleep 3
  hither attach --name churn --policy wrong-node --undo --for "$1s" --json /tmp/report.json 2> $said
  echo "attach: exit status $?"
  tail -n 25 $said
  lives=0 home=0 away=0
  for pid in $(pids_of churn); do
    set -- $(nodes_of "$pid")
    [ $# -gt 0 ] && lives=$((lives + 1))
    while [ $# -gt 1 ]; do
      case $1 in N0) home=$((home + $2)) ;; *) away=$((away + $2)) ;; esac
      shift 2
    done
  done
  echo "after undo: $lives processes alive, $home anonymous pages on node 0, $away elsewhere"
  wait $churn
  echo "churn: exit status $?"
  cat /tmp/churn.txt
}

"$@"
