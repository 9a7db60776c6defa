#!/usr/bin/env bash
# usage: record-cost.sh MACHINE.toml CPUS RUNS
# What `hither record` costs programs at its default settings in the laboratory: instructions of user
# and kernel, all CPUs and processes, beside the same program alone. Medians of RUNS runs each, in
# turn, each in a boot of its own.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
machine=$1 cpus=$2 runs=$3
programs=target/release
report=$(mktemp) said=$(mktemp) alone=$(mktemp) recorded=$(mktemp)
trap 'rm -f "$report" "$said" "$alone" "$recorded"' EXIT
commands=(
  "$programs/cluster partitioned --threads $cpus --rounds 200"
  "$programs/cluster shared --threads $cpus --rounds 20"
  "$programs/gups --threads $cpus --updates 8000000"
  "$programs/kvstore --threads $cpus --operations 2000000"
  # The last two for longer: what starting and ending costs is the same.
  "$programs/gups --threads $cpus --updates 48000000"
  "$programs/kvstore --threads $cpus --operations 12000000"
)

# Instructions and seconds of a run in the laboratory.
run() {
  target/release/hither lab run --machine "$machine" --cpus "$cpus" --timeout 1h --json "$report" \
    --file "${words[0]}" -- "$@" \
    > /dev/null 2> "$said" || { cat "$said" >&2; exit 1; }
  jq -r '"\(.figures.instructions) \(.seconds)"' "$report"
}

median() {
  sort -g | awk '{ all[NR] = $1 } END { print (all[int((NR + 1) / 2)] + all[int(NR / 2) + 1]) / 2 }'
}

printf '%-48s %12s %12s %8s %9s %9s\n' program 'alone, G' 'recorded, G' more 'alone, s' 'rec., s'
for command in "${commands[@]}"; do
  read -ra words <<< "$command"
  : > "$alone"
  : > "$recorded"
  for ((turn = 0; turn < runs; turn++)); do
    run "${words[@]}" >> "$alone"
    run "$programs/hither" record -o /tmp/rec -- "${words[@]}" >> "$recorded"
  done
  name=${command#"$programs/"}
  instructions=($(cut -d ' ' -f 1 "$alone" | median) $(cut -d ' ' -f 1 "$recorded" | median))
  seconds=($(cut -d ' ' -f 2 "$alone" | median) $(cut -d ' ' -f 2 "$recorded" | median))
  awk -v name="$name" -v a="${instructions[0]}" -v r="${instructions[1]}" -v t="${seconds[0]}" -v u="${seconds[1]}" \
    'BEGIN { printf "%-48s %12.4f %12.4f %6.2f %% %9.3f %9.3f\n", name, a / 1e9, r / 1e9, 100 * (r / a - 1), t, u }'
done
