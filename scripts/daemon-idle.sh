#!/bin/sh
# What hither daemon costs on this machine beside so many processes for which nothing is to be done.
# usage: scripts/daemon-idle.sh SECONDS COUNT...
# Run as root, with no other hither daemon; the folder of hither comes first in PATH.
set -eu
seconds=$1
shift
folder=$(mktemp -d)
daemon='' group=''
end() {
  [ -z "$daemon" ] || kill "$daemon" 2> /dev/null || true
  [ -z "$group" ] || kill -- "-$group" 2> /dev/null || true
  rm -rf "$folder"
}
trap end EXIT
trap 'exit 1' INT TERM
cp "$(command -v sleep)" "$folder/hither-idle"
socket=$folder/control.sock
cat > "$folder/hither.toml" << END
format = "hither.daemon/1"
[daemon]
socket = "$socket"
metrics = "off"
[[target]]
name = "idle"
command = "hither-idle"
END
status() { hither status --socket "$socket" --json; }
figure() { status | sed -n "s/.*\"$1\": *\([0-9.]*\).*/\1/p" | head -n 1; }
for count in "$@"; do
  # A group of their own, by which they are ended.
  setsid sh -c 'i=0; while [ $i -lt '"$count"' ]; do "$0" 100000 & i=$((i+1)); done; wait' \
    "$folder/hither-idle" &
  group=$!
  hither daemon --config "$folder/hither.toml" 2> "$folder/log" &
  daemon=$!
  until status > /dev/null 2>&1; do
    kill -0 "$daemon" || { cat "$folder/log" >&2; exit 1; }
    sleep 0.1
  done
  sleep 15
  before=$(figure cpu_seconds)
  turns=$(figure turns)
  sleep "$seconds"
  after=$(figure cpu_seconds)
  turned=$(figure turns)
  memory=$(figure peak_memory_bytes)
  watched=$(status | grep -c '"pid": ' || true)
  awk -v count="$count" -v watched="$watched" -v used="$before $after" -v s="$seconds" -v m="$memory" \
    -v turns="$turns $turned" 'BEGIN { split(used, u, " "); split(turns, t, " ")
      printf "%d processes, %d watched: %.2f %% of one CPU, %.1f MiB at most, %.1f turns a minute\n",
        count, watched - 1, 100 * (u[2] - u[1]) / s, m / 1048576, 60 * (t[2] - t[1]) / s }'
  kill "$daemon"
  wait "$daemon" || true
  kill -- "-$group"
  wait "$group" 2> /dev/null || true
  daemon='' group=''
done
