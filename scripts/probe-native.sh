#!/usr/bin/env bash
# usage: probe-native.sh [RUNS]
# Compares what `hither probe --work` measures with public benchmarks (mbw, likwid-bench, sysbench,
# perf bench): the same kernel, bytes, CPU and pages; RUNS runs of each (10), interleaved, in an order
# that turns round from one run to the next. Prints medians, spreads and ratios.
# Bytes are counted as hither does: read, written, or copied, a copied byte once.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

RUNS=${1:-10}
HITHER=${HITHER:-target/release/hither}
CPU=0
# Of one array; a copy has two. Far more than any cache of one socket holds.
ARRAY_MIB=256
BOTH_MIB=$((2 * ARRAY_MIB))
# likwid counts in thousands.
BOTH_KB=$((BOTH_MIB * 1048576 / 1000))
# perf lays its two arrays one behind the other. Five pages more keep the same bytes of both from
# looking alike to caches, as hither has it (`SKEW_WORDS`).
PERF_KIB=$((ARRAY_MIB * 1024 + 20))
within=0.10

for program in mbw likwid-bench sysbench perf "$HITHER"; do
  command -v "$program" > /dev/null || {
    printf 'probe-native: %s is missing: run scripts/setup.sh --evidence and make build\n' "$program" >&2
    exit 2
  }
done
has() { grep -qw "$1" /proc/cpuinfo; }
# The widest streaming stores of likwid, beside those of 16 bytes.
streaming=copy_mem
has avx2 && streaming=copy_mem_avx
has avx512f && streaming=copy_mem_avx512

# Every one prints GB/s (10^9 bytes per second).
hither() {
  timeout 60 "$HITHER" probe --cpus "$CPU" --work "$1" --size "${BOTH_MIB}M" --pages "$pages" \
    --seconds 1 --rounds 9 --json - | awk '/"median"/ { gsub(/[^0-9.]/, "", $2); print $2; exit }'
}
public() { timeout 60 taskset -c "$CPU" "$@"; }
mbw_() { public mbw -q "$1" -n 10 "$ARRAY_MIB" | awk '/^AVG/ { print $(NF - 1) * 1.048576e-3 }'; }
likwid_() { # KERNEL DIVISOR: 2 where it counts a copied byte as read and as written
  public likwid-bench -t "$1" -i 20 -w "N:${BOTH_KB}kB:1" 2> /dev/null |
    awk -v by="$2" '/^MByte\/s/ { print $2 / by / 1e3 }'
}
perf_() { # FUNCTION; it says GB and means GiB
  public perf bench mem memcpy -f "$1" -s "${PERF_KIB}KB" -l 20 2> /dev/null |
    awk '/GB\/sec/ { print $1 * 1.073741824 }'
}
sysbench_() {
  public sysbench memory --time=1 --memory-block-size="${BOTH_MIB}M" --memory-total-size=10T \
    --memory-scope=local --memory-oper="$1" run |
    awk '/MiB transferred/ { gsub(/\(/, "", $4); print $4 * 1.048576e-3 }'
}

# work|name|function and arguments. The first of each work is what the others are compared with.
programs=(
  "copy|hither probe, copy|hither copy"
  "copy|mbw -t1 (dumb)|mbw_ -t1"
  "copy|likwid-bench copy_sse|likwid_ copy_sse 2"
  "copy|perf bench, x86-64-unrolled|perf_ x86-64-unrolled"
  "copy-streaming|hither probe, copy-streaming|hither copy-streaming"
  "copy-streaming|likwid-bench copy_mem_sse|likwid_ copy_mem_sse 2"
  "copy-streaming|likwid-bench $streaming|likwid_ $streaming 2"
  "copy-streaming|perf bench, x86-64-movsb|perf_ x86-64-movsb"
  "copy-interleaved|hither probe, copy-interleaved|hither copy-interleaved"
  "copy-interleaved|mbw -t0 (memcpy)|mbw_ -t0"
  "copy-interleaved|perf bench, default (memcpy)|perf_ default"
  "read|hither probe, read|hither read"
  "read|sysbench memory, read|sysbench_ read"
  "read|likwid-bench load_sse|likwid_ load_sse 1"
  "write|hither probe, write|hither write"
  "write|sysbench memory, write|sysbench_ write"
  "write|likwid-bench store_sse|likwid_ store_sse 1"
)

figures=$(mktemp)
# Who may go first does, so that other programs take less of the CPU; it is undone at the end.
group=/proc/self/autogroup
nice=$(sed -n 's/.* nice //p' "$group" 2> /dev/null || true)
leave() {
  rm -f "$figures"
  [ -z "$nice" ] || printf '%s' "$nice" > "$group"
}
{ [ -n "$nice" ] && printf -- -15 > "$group"; } 2> /dev/null || nice=
trap leave EXIT
measure() { # RUN: appends `PAGES|INDEX|GB/s` of every program, from either end of the list
  local run=$1 step index gbs command
  for step in "${!programs[@]}"; do
    index=$((run % 2 ? ${#programs[@]} - 1 - step : step))
    IFS='|' read -r _ _ command <<< "${programs[index]}"
    gbs=$($command) && [ -n "$gbs" ] || {
      printf 'probe-native: no figure from: %s\n' "$command" >&2
      exit 1
    }
    printf '%s|%s|%s\n' "$pages" "$index" "$gbs" >> "$figures"
  done
}

load() { cut -d ' ' -f 1 /proc/loadavg; }
began=$(load)
kinds=(small)
# The library asks for huge pages where it is told to; nobody asks for small ones.
[ "$(sed 's/.*\[\(.*\)\].*/\1/' /sys/kernel/mm/transparent_hugepage/enabled)" = madvise ] && kinds+=(huge)
for ((run = 0; run < RUNS; run++)); do
  for pages in "${kinds[@]}"; do
    if [ "$pages" = huge ]; then
      GLIBC_TUNABLES=glibc.malloc.hugetlb=1
      export GLIBC_TUNABLES
    else
      unset GLIBC_TUNABLES
    fi
    measure "$run"
  done
done
unset GLIBC_TUNABLES

tunable() { /lib64/ld-linux-x86-64.so.2 --list-tunables | sed -n "s/^glibc.cpu.$1: \([^ ]*\) .*/\1/p"; }
printf '%s runs of each, interleaved; CPU %s, arrays of %s MiB (all of read and write: %s MiB)\n' \
  "$RUNS" "$CPU" "$ARRAY_MIB" "$BOTH_MIB"
[ -z "$nice" ] || printf 'before other programs: nice -15 for the session\n'
version() { dpkg-query -W -f='${Version}' "$1"; }
printf 'mbw %s, likwid %s, sysbench %s, linux-perf %s; load of this machine %s at the beginning, %s at the end\n' \
  "$(version mbw)" "$(version likwid)" "$(version sysbench)" "$(version linux-perf)" "$began" "$(load)"
printf 'memcpy of glibc takes streaming stores from %d MiB on, in arrays of that size or less: %s\n\n' \
  $(($(tunable x86_non_temporal_threshold) >> 20)) \
  "$([ $(($(tunable x86_non_temporal_threshold))) -le $((ARRAY_MIB << 20)) ] && echo here || echo not here)"
{
  printf 'pages|kernel|by|GB/s|least|most|of hither|within %s %%\n' "$(awk "BEGIN { print $within * 100 }")"
  for pages in "${kinds[@]}"; do
    reference=
    for index in "${!programs[@]}"; do
      IFS='|' read -r work name command <<< "${programs[index]}"
      read -r median least most < <(grep "^$pages|$index|" "$figures" | cut -d '|' -f 3 | sort -g |
        awk '{ of[NR] = $1 } END { print (of[int((NR + 1) / 2)] + of[int(NR / 2) + 1]) / 2, of[1], of[NR] }')
      if [ "${command%% *}" = hither ]; then
        reference=$median
        awk -v p="$pages" -v w="$work" -v n="$name" -v m="$median" -v l="$least" -v h="$most" \
          'BEGIN { printf "%s|%s|%s|%.2f|%.2f|%.2f|-|-\n", p, w, n, m, l, h }'
      else
        awk -v p="$pages" -v w="$work" -v n="$name" -v m="$median" -v l="$least" -v h="$most" \
          -v r="$reference" -v t="$within" \
          'BEGIN { off = m / r - 1; off = off < 0 ? -off : off
            printf "%s|%s|%s|%.2f|%.2f|%.2f|%.3f|%s\n", p, w, n, m, l, h, m / r, off <= t ? "yes" : "no" }'
      fi
    done
  done
} | column -t -s '|'

cat << 'END'

what the kernels are
  hither copy              16-byte loads and stores in order, each line of the target fetched before it is overwritten
  mbw -t1                  8-byte loads and stores, one a turn
  likwid copy_sse          16-byte loads and stores; likwid counts a copied byte twice, which is halved here
  perf x86-64-unrolled     8-byte loads and stores, four a turn
  hither copy-streaming    16-byte streaming stores in order, a fence every 256 KiB
  likwid copy_mem_*        streaming stores in order, of 16 bytes and of the widest that there are
  perf x86-64-movsb        the processor's own instruction (rep movsb) for the whole array: how it stores is its
                           choice; on a Zen 4 it fetches nothing, while parts of 256 KiB take as long as ordinary stores
  hither copy-interleaved  the widest streaming stores to four pages in turn, a fence every 256 KiB
  memcpy of glibc          above its threshold streaming stores, to two pages in turn, from 16 times that on to four
  likwid load, store       16-byte loads or stores in order
  sysbench memory          8-byte loads or stores in order
not compared
  mbw -t2 (mcblock)      copies the first block of its source over and over, which stays in a cache
  stress-ng --stream     one figure for four kernels together
  stress-ng --memrate    all its methods in one run, a few passes each
END
