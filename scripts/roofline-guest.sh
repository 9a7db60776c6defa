#!/bin/sh
# What runs within the laboratory to compare what `hither roofline` counts with what `npb` reckons by its formulas, with
# both in the path.
# usage: roofline-guest.sh KERNEL:SCALE_MB:FEW:MANY...
# Each kernel with few and with many rounds; what is counted and reckoned of the difference is of its rounds alone. The
# formulas hold where the arrays are much larger than the last-level cache.
set -eu
cd /tmp
# What a run counted, and what it reckoned: operations and bytes.
figures() {
  hither roofline --name npb --interval 20ms --json told.json > /dev/null 2>&1 &
  sleep 0.1
  npb "$1" --scale-mb "$2" --rounds "$3" > reckoned.txt
  wait $!
  tr -d ' \n' < told.json | sed 's/.*"programs":\[{//' |
    awk 'function of(key) { match($0, "\"" key "\":[0-9.e+]+"); return substr($0, RSTART + length(key) + 3, RLENGTH - length(key) - 3) }
      { printf "%.0f %.0f ", of("flops"), of("bytes") }'
  awk '/^flops:/ { f = $2 } /^(read|write)_bytes:/ { b += $2 } /^seconds:/ { s = $2 } END { printf "%.0f %.0f %.3f\n", f, b, s }' reckoned.txt
}
for entry in "$@"; do
  kernel=${entry%%:*} rest=${entry#*:}
  scale=${rest%%:*} rounds=${rest#*:}
  few=$(figures "$kernel" "$scale" "${rounds%:*}")
  many=$(figures "$kernel" "$scale" "${rounds#*:}")
  echo "$kernel $scale $few $many" | awk '{
    printf "%s of %d MB: %.0f million operations, counted %.3f times as many; %.0f MB, counted %.3f times as many; %.2f and %.2f s\n",
      $1, $2, ($10 - $5) / 1e6, ($8 - $3) / ($10 - $5), ($11 - $6) / 1e6, ($9 - $4) / ($11 - $6), $7, $12 }'
done
