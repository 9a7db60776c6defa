#!/bin/sh
# What scripts/evidence.sh runs within the laboratory for forecasts from a recording, on a machine of two tiers:
# each program is recorded in slow memory, forecast with so many MiB of fast memory, and run with them.
# usage: whatif-guest.sh SECONDS 'MIB..' PROGRAM [MORE..]
# PROGRAM is a command line that takes --seconds and --first-node and prints a line `second:` for each second.
set -eu
seconds=$1 sizes=$2
shift 2
cd /tmp
# Mean of the last three whole seconds of what the third word from `second:` counts.
rate() { grep '^second:' "$1" | tail -n 3 | awk '{ n++; for (i = 3; i < NF; i += 2) if ($i ~ /updates|requests/) s += $(i + 1) } END { printf "%.0f", s / n }'; }
list=$(for size in $sizes; do printf '%sM,' "$size"; done)
for program in "$@"; do
  rm -rf rec
  hither record --output rec -- $program --first-node 1 --seconds 6 > log 2> err || { cat err >&2; exit 1; }
  hither forecast rec --machine "$HITHER_MACHINE" --recorded-on "$HITHER_MACHINE" --fast "${list%,}" --json > forecast.json
  tr -d '\n ' < forecast.json; echo
  $program --first-node 1 --seconds 4 > log
  slow=$(rate log)
  for size in $sizes; do
    hither run --policy tiers --fast "${size}M" -- $program --first-node 1 --seconds "$seconds" > log 2> err
    echo "result: $program: $size MiB: $(rate log) of $slow, $(tail -n 1 err)"
  done
done
