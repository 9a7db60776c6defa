#!/bin/sh
# What scripts/evidence.sh runs within the laboratory for the daemon, with hither and the programs in the path.
# usage: daemon-guest.sh gains ROUNDS IDLE_SECONDS
#        daemon-guest.sh kills COUNT ROUNDS
# gains: four programs of two users under two policies, by first touch, under `hither attach` and under the
# daemon; then what the daemon costs beside programs for which nothing is to be done.
# kills: the daemon is killed again and again while one policy moves pages to and fro and another moves them
# to their users; then the last daemon puts all back.
set -eu
mode=$1
shift
export PATH="$PATH:/tmp"
cd /tmp
mkdir -p /run
echo 'alice:x:1000:1000::/:/bin/sh' >> /etc/passwd
cp "$(command -v cluster)" db && cp db app && chmod 755 db app

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

kills() {
  balancing=$(cat /proc/sys/kernel/numa_balancing)
  four partitioned --threads 2 --mb 16 --rounds 100 --gaps
  ended
  tell alone longest_gap_seconds
  configure carrefour wrong-node
  four partitioned --threads 2 --mb 16 --rounds "$2" --gaps
  sleep 0.5
  for pid in $(pidof db app); do echo "before $pid$(nodes_of "$pid")"; done
  for at in $(seq "$1"); do
    start
    # Up to 0.64 s, by a rule that meets its start, its first moves and its verdicts.
    usleep $((at * 7919 % 640000))
    kill -9 $daemon
    wait $daemon 2> /dev/null || true
  done
  start
  ready
  sleep 2
  hither status
  hither undo
  for pid in $(pidof db app); do echo "after $pid$(nodes_of "$pid")"; done
  stop
  [ "$balancing" = "$(cat /proc/sys/kernel/numa_balancing)" ] && echo 'settings: as before'
  ended
  tell killed checksum
  tell killed longest_gap_seconds
}

$mode "$@"
grep -E 'campaign|own cost' attach.log >&2 || true
head -n 60 explain.log >&2 || true
tail -n 20 daemon.log >&2
