#!/usr/bin/env bash
# usage: redis-guest.sh KEYS BYTES REQUESTS
# In the laboratory: redis-server (Debian's redis-server) with KEYS values of BYTES bytes, then REQUESTS reads of its own
# benchmark, of keys at random. Prints the requests a second.
set -euo pipefail
keys=$1 bytes=$2 requests=$3
socket=/tmp/redis.sock
redis-server --port 0 --unixsocket $socket --save '' --appendonly no --dir /tmp > /dev/null &
server=$!
trap 'kill $server 2> /dev/null; wait $server || true' EXIT
until redis-cli -s $socket ping > /dev/null 2>&1; do sleep 0.01; done
# The keys of the benchmark; setting them one request each would take longer than the reads.
redis-cli -s $socket eval "local value = string.rep('x', ARGV[2])
  for i = 0, ARGV[1] - 1 do redis.call('SET', string.format('key:%012d', i), value) end
  return redis.call('DBSIZE')" 0 "$keys" "$bytes" | sed 's/^/keys: /'
redis-benchmark -s $socket -c 4 -P 32 -r "$keys" -n "$requests" -t get --csv |
  sed -n 's/^"\([A-Z]*\)","\([0-9.]*\)".*/\1: \2 requests a second/p'
