#!/bin/sh
# Within the laboratory, on a machine with a little fast memory: sixteen programs at once, drawn by each seed, by turns
# with memory in turns on all nodes and under policy value. Prints mean seconds and what hither itself used.
# usage: mix-guest.sh SEED...
set -eu
cd /tmp
for seed in "$@"; do
  for variant in '-i all' '--policy value'; do
    # The words of a variant are options.
    mean=$(hither run $variant -- mix --programs 16 --seed "$seed" --scale-mb 24 2> said | sed -n 's/^mean_seconds: //p')
    echo "seed $seed, $variant: ${mean:-failed} s"
    grep -E 'pages moved|own cost' said || true
  done
done
