#!/bin/sh
# What scripts/evidence.sh runs within the laboratory for file replicas, with the example `mapped` in the path:
# four processes on four nodes read the first 1/SHARE of a file whose pages lie on node 0.
# usage: files-guest.sh SHIM FILE_MB SHARE SETTLE_MS MEASURE_MS [WAY...]
# Ways: plain (no copies), hot and all (file replicas of what is used, and of everything), own (each process
# reads a private copy that it has made: first touch, warm); apart and apart-hot: each reads a quarter that lies
# on its own node already, without and with file replicas.
set -eu
shim=$1 mb=$2 share=$3 settle=$4 measure=$5
shift 5
[ $# -gt 0 ] || set -- plain hot all own
mapped make /run/weights "$mb" 0
for cpu in 0 1 2 3; do mapped make /run/apart $((mb / 4)) $cpu; done
# Files rest before they are copied.
sleep 1.2
node() { awk '/MemFree/ { print $4 }' /sys/devices/system/node/node"$1"/meminfo; }
free() { for n in 0 1 2 3; do node $n; done | awk '{ sum += $1 } END { print sum / 1024 }'; }
echo "file $mb MB on node 0, 1/$share of it read by 4 processes"
for way in "$@"; do
  rm -rf /tmp/reports && mkdir /tmp/reports
  own= plan= file=/run/weights part=$share
  case $way in
    own) own=own ;;
    hot | all) plan="min 1M; $way" ;;
    apart) own=apart file=/run/apart part=4 ;;
    apart-hot) own=apart file=/run/apart part=4 plan='min 1M' ;;
  esac
  before=$(free)
  for cpu in 0 1 2 3; do
    if [ -n "$plan" ]; then
      LD_PRELOAD=$shim HITHER_MIRROR_PLAN=$plan HITHER_MIRROR_REPORTS=/tmp/reports \
        mapped read $file $cpu "$part" "$settle" "$measure" $own > /tmp/out.$cpu &
    else
      mapped read $file $cpu "$part" "$settle" "$measure" $own > /tmp/out.$cpu &
    fi
  done
  sleep "$(awk -v ms="$settle" 'BEGIN { print ms / 1000 + 0.05 }')"
  used=$(awk -v b="$before" -v a="$(free)" 'BEGIN { print b - a }')
  copies=$(du -sk /dev/shm/hither-0 2> /dev/null | awk '{ print $1 / 1024 }')
  wait
  awk -v way="$way" -v used="$used" -v copies="${copies:-0}" '
    { sum += $2; each = each " " $2; sums[$NF] = 1 }
    END { for (s in sums) kinds++
      printf "%-9s %8.1f MB/s (%s), %s MB of memory used while reading, copies %s MB, checksums: %d\n", way, sum, substr(each, 2), used, copies, kinds }
  ' /tmp/out.0 /tmp/out.1 /tmp/out.2 /tmp/out.3
  cat /tmp/reports/* 2> /dev/null || true
  left=$(ls /dev/shm/hither-0 2> /dev/null | wc -l)
  [ "$left" = 0 ] || echo "$left copies are left"
done
