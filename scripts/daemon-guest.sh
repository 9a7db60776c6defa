#!/bin/sh
# What scripts/evidence.sh runs within the laboratory for the daemon, with hither and the programs in the path.
# usage: daemon-guest.sh gains ROUNDS IDLE_SECONDS
#        daemon-guest.sh minutes LOADS SECONDS POLICY POLICY
#        daemon-guest.sh kills COUNT LOADS
# gains: four programs of two users under two policies, by first touch, under `hither attach` and under the
# daemon; then what the daemon costs beside programs for which nothing is to be done.
# minutes: four programs of two users start and end for so many seconds, under `hither attach` and under the daemon.
# kills: the daemon is killed again and again while one policy moves pages to and fro and another moves them
# to their users; then the last daemon puts all back.
set -eu
mode=$1
shift
export PATH="$PATH:/tmp"
cd /tmp
mkdir -p /run
echo 'alice:x:1000:1000::/:/bin/sh' >> /etc/passwd

# Targets db and app with these policies.
configure() {
  printf 'format = "hither.daemon/1"\n' > h.toml
  for target in "db $1" "app $2"; do
    printf '[[target]]\nname = "%s"\ncommand = "%s"\npolicy = "%s"\n' "${target% *}" "${target% *}" "${target#* }" >> h.toml
  done
}
start() {
  hither daemon --config h.toml 2>> daemon.log &
  daemon=$!
}
ready() { until hither status > /dev/null 2>&1; do sleep 0.05; done; }
stop() { kill $daemon; wait $daemon || true; }

# CPUs 0 and 1 are of node 0, 2 and 3 of node 1, and so on: each program has a CPU on each of two nodes.
four() {
  taskset 11 ./db "$@" > db.root &
  su -s /bin/sh alice -c "exec taskset 22 /tmp/db $*" > db.alice &
  taskset 44 ./app "$@" > app.root &
  su -s /bin/sh alice -c "exec taskset 88 /tmp/app $*" > app.alice &
}
ended() {
  for pid in $(pidof db app); do
    while [ -e "/proc/$pid" ] && ! grep -q '^State:.Z' "/proc/$pid/status"; do sleep 0.05; done
  done
}
# A figure that each program prints.
tell() {
  for program in db.root db.alice app.root app.alice; do
    echo "$1 $program $(sed -n "s/^$2: //p" $program)"
  done
}
nodes_of() {
  awk '/anon=/ { for (i = 3; i <= NF; i++) if ($i ~ /^N[0-9]+=/) { split($i, p, "="); n[p[1]] += p[2] } }
    END { for (k = 0; k < 4; k++) printf " %d", n["N" k]; print "" }' "/proc/$1/numa_maps"
}

gains() {
  cp "$(command -v cluster)" db && cp db app && chmod 755 db app
  work="partitioned --threads 2 --mb 16 --rounds $1"
  configure carrefour auto
  four $work
  ended
  tell first-touch seconds
  four $work
  hither attach --name db --name app --policy db=carrefour --for 600s 2> attach.log &
  attach=$!
  ended
  kill -INT $attach
  wait $attach || true
  tell attach seconds
  start
  ready
  four $work
  ended
  tell daemon seconds
  hither status
  hither explain > explain.log
  four local --threads 2 --mb 16 --rounds 1000000
  sleep 1
  own() { hither status --json | sed -n 's/.*"cpu_seconds": \([0-9.]*\).*/\1/p'; }
  before=$(own)
  sleep "$2"
  echo "idle: $before to $(own) s of CPU time in $2 s"
  hither status
  kill $(pidof db app)
  stop
}

# Dependent loads, so that much guest time costs little of the host's. A CPU is on each node; memory of db
# begins on another node than its CPU's.
db_root() { taskset 1 ./db --mb 16 --first-node 1 --accesses "$@"; }
db_alice() { su -s /bin/sh alice -c "exec taskset 2 /tmp/db --mb 16 --first-node 2 --accesses $1"; }
app_root() { taskset 4 ./app --mb 16 --first-node 3 --accesses "$1"; }
app_alice() { su -s /bin/sh alice -c "exec taskset 8 /tmp/app --mb 16 --first-node 0 --accesses $1"; }
uptime_s() { cut -d . -f 1 /proc/uptime; }

# Each of the four again and again, with a pause that differs, for so many seconds.
by_turns() {
  until=$(($(uptime_s) + $3))
  pause=1
  for program in db_root db_alice app_root app_alice; do
    (while [ "$(uptime_s)" -lt $until ]; do
      echo "$1 $program $($program "$2" | sed -n 's/^seconds: //p')"
      sleep $pause
    done) &
    turns="$turns $!"
    pause=$((pause + 1))
  done
  wait $turns
  turns=
}

minutes() {
  cp "$(command -v memlat)" db && cp db app && chmod 755 db app
  mkdir off && cp "$(command -v grow)" off/db
  turns=
  HITHER=off taskset 8 off/db --mb 16 --first-node 1 --hold 3600 > /dev/null & off=$!
  settings=$(cat /proc/sys/kernel/numa_balancing)
  by_turns first-touch "$1" 1
  hither attach --name db --name app --policy db="$3" --policy app="$4" --for 600s 2> attach.log & attach=$!
  sleep 1
  by_turns attach "$1" "$2"
  kill -INT $attach
  wait $attach || true
  configure "$3" "$4"
  before=$(nodes_of $off)
  start
  ready
  by_turns daemon "$1" "$2"
  hither status
  own() { hither status --json | sed -n 's/.*"cpu_seconds": \([0-9.]*\).*/\1/p'; }
  first=$(own)
  sleep 10
  echo "idle: $first to $(own) s of CPU time in 10 s, 4 CPUs"
  [ "$before" = "$(nodes_of $off)" ] && echo 'left alone: as before'
  # It must outlast its undo.
  db_root $(($1 * 4)) > db.root & sleep 0.01
  pid=$(pidof db | tr ' ' '\n' | grep -vx $off)
  before=$(nodes_of "$pid")
  sleep 1.5
  echo "moved:$before to$(nodes_of "$pid")"
  hither undo
  sleep 1
  echo "undone:$(nodes_of "$pid")"
  stop
  [ "$settings" = "$(cat /proc/sys/kernel/numa_balancing)" ] && echo 'settings: as before'
  kill "$pid" $off
}

kills() {
  cp "$(command -v memlat)" db && cp db app && cp db ref && chmod 755 db app
  settings=$(cat /proc/sys/kernel/numa_balancing)
  configure auto wrong-node
  taskset 4 ./ref --mb 16 --stretch 16 --accesses "$2" > ref.out & ref=$!
  db_root "$2" --stretch 16 > db.out &
  su -s /bin/sh alice -c "exec taskset 2 /tmp/app --mb 16 --stretch 16 --accesses $2" > app.out &
  sleep 1
  for pid in $(pidof db app); do echo "before $pid$(nodes_of "$pid")"; done
  for at in $(seq "$1"); do
    start
    # Up to 0.64 s, by a rule that meets its start, its first moves and its verdicts.
    usleep $((at * 7919 % 640000))
    kill -9 $daemon
    wait $daemon 2> /dev/null || true
    [ $((at % 10)) != 0 ] || for pid in $(pidof db app); do echo "kill $at: $pid$(nodes_of "$pid")"; done
  done
  start
  ready
  sleep 2
  hither status
  hither undo
  sleep 2
  for pid in $(pidof db app); do echo "after $pid$(nodes_of "$pid")"; done
  stop
  [ "$settings" = "$(cat /proc/sys/kernel/numa_balancing)" ] && echo 'settings: as before'
  [ "$(pidof db app ref | wc -w)" = 3 ] && echo 'all three still run'
  wait $ref
  ended
  for program in ref db app; do
    echo "$program: $(grep -E '^(checksum|longest_gap_seconds|seconds)' $program.out | tr '\n' ' ')"
  done
}

$mode "$@"
grep -E 'campaign|own cost' attach.log >&2 || true
head -n 60 explain.log >&2 || true
tail -n 20 daemon.log >&2
