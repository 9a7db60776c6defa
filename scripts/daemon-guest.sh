#!/bin/sh
# What scripts/daemon.sh runs within the laboratory: four programs of two users under two policies, by first
# touch, under `hither attach` and under the daemon, in one boot; then programs for which nothing is to be
# done beside the daemon.
# usage: daemon-guest.sh HITHER CLUSTER ROUNDS IDLE_SECONDS
set -eu
hither=$1 cluster=$2 rounds=$3 idle=$4
cd /tmp
mkdir -p /run
echo 'alice:x:1000:1000::/:/bin/sh' >> /etc/passwd
cp "$cluster" db && cp "$cluster" app && chmod 755 db app
cat > h.toml << 'EOF'
format = "hither.daemon/1"
[[target]]
name = "db"
command = "db"
policy = "carrefour"
[[target]]
name = "app"
command = "app"
policy = "auto"
EOF

# CPUs 0 and 1 are of node 0, 2 and 3 of node 1, and so on: each program has one CPU of two nodes.
four() {
  taskset 11 ./db "$@" > db.root &
  su -s /bin/sh alice -c "exec taskset 22 ./db $*" > db.alice &
  taskset 44 ./app "$@" > app.root &
  su -s /bin/sh alice -c "exec taskset 88 ./app $*" > app.alice &
}
tell() {
  for program in db.root db.alice app.root app.alice; do
    echo "$1 $program $(sed -n 's/^seconds: //p' $program)"
  done
}
ended() { for pid in $(pidof db app); do while [ -e "/proc/$pid" ] && ! grep -q '^State:.Z' "/proc/$pid/status"; do sleep 0.05; done; done; }

work="partitioned --threads 2 --mb 16 --rounds $rounds"
four $work; ended; tell first-touch
four $work
$hither attach --name db --name app --policy db=carrefour --for 600s 2> attach.log & attach=$!
ended; kill -INT $attach; wait $attach || true; tell attach
$hither daemon --config h.toml 2> daemon.log & daemon=$!
until $hither status > /dev/null 2>&1; do sleep 0.05; done
four $work; ended; tell daemon
$hither status
four local --threads 2 --mb 16 --rounds 1000000
sleep 1
own() { $hither status --json | sed -n 's/.*"cpu_seconds": \([0-9.]*\).*/\1/p'; }
before=$(own); sleep "$idle"; after=$(own)
echo "idle: $before to $after s of CPU time in $idle s"
$hither status
kill $(pidof db app)
kill $daemon; wait $daemon || true
grep -E 'campaign|own cost' attach.log >&2 || true
cat daemon.log >&2
