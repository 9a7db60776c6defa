#!/bin/sh
# What scripts/vm/run.sh runs within the laboratory: a virtual machine whose memory begins in the slow tier, as
# the fast one is full; then it is free, and hither moves what is hot. QEMU and its guest know nothing of it.
# usage: in-guest.sh FIRMWARE [OPTIONS OF hither attach]
set -eu
firmware=$1
shift
cd /tmp
nodes_of() {
  awk '/anon=/ { for (i = 3; i <= NF; i++) if ($i ~ /^N[0-9]+=/) { split($i, p, "="); n[p[1]] += p[2] } }
    END { printf "%d %d\n", n["N0"], n["N1"] }' "/proc/$1/numa_maps" 2> /dev/null || true
}
# All of the fast tier but some MiB.
free=$(awk '/MemFree/ { print int($4 / 1024) }' /sys/devices/system/node/node0/meminfo)
fill=$((free - 16))
grow --mb "$fill" --first-node 0 --hold 3600 > /dev/null & filler=$!
until [ "$(awk '/RssAnon/ { print $2 }' /proc/$filler/status)" -gt $((fill * 1020)) ]; do
  kill -0 $filler || exit 1
  sleep 0.1
done
echo "filled: $fill MiB of the fast tier"
qemu-system-x86_64 -M isapc -m 96 -nodefaults -display none -serial file:serial -no-reboot -bios "$firmware" & vm=$!
until grep -q f serial 2> /dev/null; do sleep 0.1; done
echo "written: pages on nodes 0 and 1: $(nodes_of $vm)"
kill $filler
hither=
[ $# = 0 ] || { hither attach --pid $vm "$@" 2> attach.log & hither=$!; }
last=
while ! grep -q h serial; do sleep 0.2; now=$(nodes_of $vm); [ -z "$now" ] || last=$now; done
echo "read: $last"
status=0
wait $vm || status=$?
echo "ended: status $status, it said $(cat serial)"
[ -z "$hither" ] || { wait $hither || true; grep -vE '^ *$' attach.log | tail -n 25; }
exit $status
