#!/usr/bin/env bash
# usage: record-cost.sh MACHINE.toml CPUS RUNS
# What `hither record` costs programs at its default settings in the laboratory: instructions of user
# and kernel, all CPUs and processes, beside the same program alone. Medians of RUNS runs each, in
# turns in one boot; of the longer programs a sixth as many, as the kernel's own work, which differs by
# some 4 million, is less of them.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
machine=$1 cpus=$2 runs=$3
programs=target/release
report=$(mktemp) said=$(mktemp)
trap 'rm -f "$report" "$said"' EXIT
longer=$(((runs + 5) / 6))
commands=(
  "$runs $programs/gups --threads $cpus --updates 4000000"
  "$runs $programs/gups --threads $cpus --updates 8000000"
  "$runs $programs/gups --threads $cpus --updates 12000000"
  "$runs $programs/kvstore --threads $cpus --operations 2000000"
  "$longer $programs/cluster shared --threads $cpus --rounds 20"
  "$longer $programs/gups --threads $cpus --updates 48000000"
  "$longer $programs/kvstore --threads $cpus --operations 12000000"
  "$longer $programs/cluster partitioned --threads $cpus --rounds 200"
)

printf '%-46s %4s %9s %17s %9s %17s %7s %8s %8s\n' \
  program runs 'alone, G' 'least to most' 'rec., G' 'least to most' more 'alone, s' 'rec., s'
for line in "${commands[@]}"; do
  read -r times command <<< "$line"
  # Every second run is recorded, in a folder of its own.
  script="echo >> /tmp/runs; n=\$(wc -l < /tmp/runs); case \$((n % 2)) in 1) exec $command;; esac; "
  script+="exec /hither/hither record -o /tmp/rec-\$n -- $command"
  target/release/hither lab compare --machine "$machine" --cpus "$cpus" --timeout 2h --json \
    --policies first-touch --repeat $((2 * times)) --file "${command%% *}" -- sh -c "$script" \
    > "$report" 2> "$said" || { cat "$said" >&2; exit 1; }
  jq -r --arg name "${command#"$programs/"}" --argjson times "$times" '
    def median: sort | (.[(length - 1) / 2 | floor] + .[length / 2 | floor]) / 2;
    [.rows[0].runs | [.[range(0; length; 2)]], [.[range(1; length; 2)]]]
      | map({instructions: map(.instructions / 1e9), seconds: map(.seconds)})
      | [$name, $times] + (map([.instructions | median, min, max]) | add)
        + [(.[1].instructions | median) / (.[0].instructions | median) - 1 | . * 100]
        + map(.seconds | median)
      | @tsv' "$report" \
    | awk -F '\t' '{ printf "%-46s %4d %9.4f %8.4f %8.4f %9.4f %8.4f %8.4f %5.2f %% %8.3f %8.3f\n", $1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11 }'
done
