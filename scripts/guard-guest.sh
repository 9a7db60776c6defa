#!/bin/sh
# What scripts/evidence.sh runs within the laboratory for nodes that run out of memory, with hither and `grow` in
# the path: an old program has filled most of node 0, and another, whose memory is bound to that node, grows.
# usage: guard-guest.sh OLD_MB NEW_MB RATE_MB [POLICY]
# Without a policy nobody looks after the node. Exits as the growing program does.
set -eu
cd /tmp
cp "$(command -v grow)" old && cp old new
./old --mb "$1" --first-node 0 --hold 8 > old.out &
old=$!
until [ "$(awk '/RssAnon/ { print $2 }' /proc/$old/status)" -gt $(($1 * 1020)) ]; do
  kill -0 $old
  sleep 0.05
done
free() { awk '/MemFree/ { print $4 / 1024 }' /sys/devices/system/node/node0/meminfo; }
echo "before: $(free) MiB of node 0 are free"
guard=
if [ -n "${4:-}" ]; then
  hither attach --name old --policy "$4" --for 600s --explain 2> guard.log &
  guard=$!
  sleep 0.5
fi
status=0
./new --mb "$2" --rate "$3" --node 0 > new.out || status=$?
echo "new: status $status, $(grep checksum new.out || echo killed)"
status_old=0
wait $old || status_old=$?
echo "old: status $status_old, $(grep checksum old.out || echo killed)"
[ -z "$guard" ] || { kill -INT $guard; wait $guard || true; grep -E 'relieve|policy guard|own cost' guard.log || tail -n 20 guard.log; }
exit $status
