#!/bin/sh
# What scripts/evidence.sh runs within the laboratory for forecasts from a recording, on a machine of two tiers:
# each program is recorded in slow memory, forecast with so many MiB of fast memory, and run with them.
# usage: whatif-guest.sh SECONDS 'MIB..' PROGRAM [MORE..]
# PROGRAM is a command line that takes --first-node, and --seconds or --accesses (which it then has), and prints a
# line `second:` for each second.
set -eu
seconds=$1 sizes=$2
shift 2
cd /tmp
# Mean of the last three whole seconds of what the third word from `second:` counts; of memlat, loads a second.
rate() {
  grep '^second:' "$1" | tail -n 3 | awk '
    { n++
      for (i = 3; i < NF; i += 2) {
        if ($i ~ /updates|requests/) s += $(i + 1)
        if ($i == "ns_per_access") s += 1e9 / $(i + 1)
      } }
    END { printf "%.0f", s / n }'
}
# $1 is PROGRAM in slow memory at first, for $2 seconds or as many accesses as it has.
timed() { case $1 in *--accesses*) echo "$1 --first-node 1" ;; *) echo "$1 --first-node 1 --seconds $2" ;; esac; }
list=$(for size in $sizes; do printf '%sM,' "$size"; done)
for program in "$@"; do
  rm -rf rec
  hither record --output rec -- $(timed "$program" 6) > log 2> err || { cat err >&2; exit 1; }
  hither forecast rec --machine "$HITHER_MACHINE" --recorded-on "$HITHER_MACHINE" --fast "${list%,}" --json > forecast.json
  tr -d '\n ' < forecast.json; echo
  $(timed "$program" 4) > log
  slow=$(rate log)
  for size in $sizes; do
    hither run --policy tiers --fast "${size}M" -- $(timed "$program" "$seconds") > log 2> err
    echo "result: $program: $size MiB: $(rate log) of $slow, $(tail -n 1 err)"
  done
done
