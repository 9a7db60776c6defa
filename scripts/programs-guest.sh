#!/bin/sh
# Within the laboratory, on a machine whose node 1 is fast memory: 32 programs at a time, which start and end at
# random for so many seconds, under a policy that gives fast memory to programs. Then all have ended, and fast
# memory must be as free as before. Four programs at once show before and after that they are given some of it.
# usage: programs-guest.sh SECONDS POLICY NPB
set -eu
seconds=$1 policy=$2 npb=$3
cd /tmp
now() { cut -d. -f1 /proc/uptime; }
free_mb() { awk '/MemFree/ { print int($4 / 1024) }' /sys/devices/system/node/node1/meminfo; }
hither attach --name npb --policy "$policy" --json attach.json 2> attach.log &
agent=$!
sleep 2
# Fast memory that four programs are given at most, which wait for the slow memory's bandwidth together.
given() {
  free=$(free_mb) least=$free jobs=
  for number in 1 2 3 4; do
    "$npb" ft --scale-mb 12 --rounds 24 --first-node 0 --no-pin > /dev/null & jobs="$jobs $!"
  done
  while kill -0 $jobs 2> /dev/null; do
    sleep 0.5
    now_free=$(free_mb)
    [ "$now_free" -ge "$least" ] || least=$now_free
  done
  wait $jobs
  echo "given $1: $((free - least)) MB of fast memory"
}
before=$(free_mb)
given before
end=$(($(now) + seconds))
# Of each of the 32 places, the kernels and their rounds by a generator of its own.
place() {
  state=$1
  while [ "$(now)" -lt "$end" ]; do
    state=$(((state * 1103515245 + 12345) % 2147483648))
    kernel=$(echo is ep cg mg ft bt sp lu | cut -d' ' -f$((state / 65536 % 8 + 1)))
    "$npb" "$kernel" --scale-mb 12 --rounds $((state / 1048576 % 8 + 1)) --first-node 0 --no-pin > /dev/null && echo "$kernel"
  done >> "ended.$1"
}
for number in $(seq 32); do place "$number" & places="${places-} $!"; done
least=$before
while [ "$(now)" -lt "$end" ]; do
  sleep 1
  free=$(free_mb)
  [ "$free" -ge "$least" ] || least=$free
done
wait $places
sleep 3
after=$(free_mb)
echo "programs: $(cat ended.* | wc -l) ended; fast memory free: $before MB before, $least at least, $after after"
given after
kill -INT "$agent"
wait "$agent" || true
grep -v '^ *$' attach.log | tail -n 12
