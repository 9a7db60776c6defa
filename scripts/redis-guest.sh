#!/usr/bin/env bash
# usage: redis-guest.sh KEYS BYTES REQUESTS
# In the laboratory: redis-server (Debian's redis-server) with KEYS values of BYTES bytes, then REQUESTS reads of its own
# benchmark. Prints the requests a second of both.
set -euo pipefail
keys=$1 bytes=$2 requests=$3
socket=/tmp/redis.sock
redis-server --port 0 --unixsocket $socket --save '' --appendonly no --dir /tmp > /dev/null &
server=$!
trap 'kill $server 2> /dev/null; wait $server || true' EXIT
bench() {
  redis-benchmark -s $socket -c 4 -P 32 -r "$keys" -d "$bytes" --csv "$@" | sed -n 's/^"\([A-Z]*\)","\([0-9.]*\)".*/\1: \2 requests a second/p'
}
until redis-cli -s $socket ping > /dev/null 2>&1; do sleep 0.01; done
# Each key is set with a probability of 0.95.
bench -t set -n $((keys * 3))
bench -t get -n "$requests"
redis-cli -s $socket dbsize | sed 's/^/keys: /'
