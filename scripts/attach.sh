#!/usr/bin/env bash
# usage: attach.sh gains MACHINE.toml EVIDENCE REPEATS | two MACHINE.toml EVIDENCE | churn MACHINE.toml EVIDENCE
# `hither attach` and `hither run` on programs of the laboratory, on the evidence `device` or `software`.
# gains: seconds of work, medians; two: one program is helped and one harmed, each in its own scope;
# churn: 200 processes that fork, execute and exit while pages move, and where pages are after --undo.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
part=$1 machine=$2 evidence=$3 repeats=${4:-3}
programs=target/release
lab=("$programs/hither" lab run --machine "$machine" --cpus 8 --timeout 2h --evidence "$evidence"
  --file "$programs/cluster" --file "$programs/cg" --file "$programs/stream" --file "$programs/churn"
  --file scripts/attach-guest.sh -- sh -c "PATH=\$PATH:\$PWD/$programs exec scripts/attach-guest.sh \"\$@\"" guest)

case $part in
  gains)
    printf '%s, evidence %s: seconds of work, median of %s (least to most)\n' "$machine" "$evidence" "$repeats"
    "${lab[@]}" gains "$repeats" \
      'partitioned:first-touch,kernel,run,attach:cluster partitioned --rounds 120' \
      'local:first-touch,run,attach:cluster local --rounds 600' 'cg:first-touch,run,attach:cg --products 400' \
      | tee /dev/stderr | awk '
      { key = $1 " " $2; if (!(key in count)) order[++keys] = key; value[key, ++count[key]] = $3 }
      function median(key,   n, i, j, t) {
        n = count[key]
        for (i = 1; i <= n; i++) for (j = i + 1; j <= n; j++)
          if (value[key, j] < value[key, i]) { t = value[key, i]; value[key, i] = value[key, j]; value[key, j] = t }
        return value[key, int((n + 1) / 2)]
      }
      END {
        for (k = 1; k <= keys; k++) {
          key = order[k]; split(key, part, " "); m = median(key)
          if (part[2] == "first-touch") alone = m
          printf "%-12s %-12s %8.3f (%.3f to %.3f) %+7.1f %%\n", part[1], part[2], m, value[key, 1], value[key, count[key]], 100 * (alone / m - 1)
        }
      }'
    ;;
  two) "${lab[@]}" two 2000 4000 6s ;;
  churn) "${lab[@]}" churn 60 200 64 100 ;;
esac
